"""Wait for the end of a killed tree whose processes the kernel may take seconds to end.

A process that was killed runs no code any more, but frees its memory first: with much pinned memory of a device that
takes seconds. Such a process is *exiting*. A process that was hidden behind its exiting parent may run for a moment,
until the shim kills it, too. So what runs counts only if it still runs ``KILL_EXTRA_S`` seconds later.

Real and simulated programs share this wait; they differ in the clock, and in where exiting processes are found.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf
from typing import Final

from actors.waiting import within
from supervisor.policies.stage_deadlines import EXITING_S
from supervisor.ports import OnExiting

KILL_EXTRA_S: Final = 2.0
"""Seconds that are added to ``kill_s``, so that a loaded machine can schedule the shim."""
LOOK_S: Final = 0.25
"""Seconds between two checks whether the kernel is still ending what is left of a killed tree."""


class ExitWait:
    """Wait of one program for the end of its tree after a kill.

    Parameters:
        find_exiting: returns what is left of the tree, if the kernel is ending all of that; else nothing.
        wait_ended: waits for the end of the tree.
        kill_s: seconds that a killed tree has to end before the kernel is asked.
        on_exiting: called once with the exiting processes, when it is known that the kernel takes long.
        now: clock, in seconds.
    """

    def __init__(
        self,
        find_exiting: Callable[[], tuple[int, ...]],
        wait_ended: Callable[[], Awaitable[object]],
        *,
        kill_s: float,
        on_exiting: OnExiting | None,
        now: Callable[[], float],
    ) -> None:
        self._find_exiting, self._wait_ended = find_exiting, wait_ended
        self._kill_s, self._on_exiting, self._now = kill_s, on_exiting, now
        self._killed_at_s: float | None = None
        self._is_exiting = False
        """True once it is known that the kernel takes long to end the killed processes."""

    def begin(self) -> bool:
        """Note the time of the kill; return whether this is the first one."""
        is_first = self._killed_at_s is None
        if is_first:
            self._killed_at_s = self._now()
        return is_first

    async def run(self) -> None:
        """Wait for the end: ``kill_s`` + ``KILL_EXTRA_S`` seconds, and then as long as the kernel is ending all that is
        left, at most ``EXITING_S`` seconds after the kill."""
        assert self._killed_at_s is not None, "the tree was killed"
        seen_at_s = -inf
        if await within(self._kill_s + KILL_EXTRA_S, self._wait_ended):
            return
        while (now_s := self._now()) < self._killed_at_s + EXITING_S:
            if pids := self._find_exiting():
                seen_at_s = now_s
                if not self._is_exiting and self._on_exiting is not None:
                    self._on_exiting(pids)
                self._is_exiting = True
            elif now_s > seen_at_s + KILL_EXTRA_S:
                return
            if await within(LOOK_S, self._wait_ended):
                return

    @property
    def exiting_s(self) -> float:
        """Seconds since the kill, if the kernel took long to end the tree; else 0."""
        since_s = self._killed_at_s if self._is_exiting else None
        return 0.0 if since_s is None else round(self._now() - since_s, 6)
