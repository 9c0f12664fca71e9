"""Wait until nothing outside of the work holds a step in the user's repository.

A dirty checkout, a lock of another git, a target that moves, a full disk: nobody has failed (rule 48). Only the step is
made again, after pauses that double up to ``PAUSES.cap_s``, until the obstacle is gone. No agent is launched for that,
nothing is charged, and there is no limit. The wait is part of the effect that makes the step, so whatever ends the
effect ends the wait.

Example: the merge of ``a`` finds changes of a person in the checkout. The task stays DONE, and its ``held_by`` names
the checkout and the files. The person commits; within 30 s the work is merged, and the task is closed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import anyio
from msgspec.structs import replace

from actors.backoff import Backoff
from supervisor.lifecycles.types import HeldBy
from supervisor.ports import WallClock, WorkspaceHeld

_T = TypeVar("_T")

PAUSES: Final = Backoff(base_s=0.5, factor=2.0, cap_s=30.0)
"""Pauses between two tries, given by their upper bounds: a git that commits costs half a second, and the end of a long
obstacle is noticed within 30 s."""


async def outlast_obstacles(
    do: Callable[[], Awaitable[_T]],
    note: Callable[[HeldBy | None], None],
    clock: WallClock,
    until: anyio.Event,
    known: HeldBy | None = None,
) -> _T:
    """Call *do* until it does not raise ``WorkspaceHeld``; return its result.

    Args:
        note: function that is called with each obstacle that differs from the one before, and with ``None`` when there
            is none any more.
        clock: clock of the times since which obstacles are known.
        until: set when the step is not waited for any more.
        known: the obstacle that an earlier supervisor met, if any.

    Raises:
        WorkspaceHeld: *until* is set, and *do* is held.
    """
    tries = 0
    while True:
        is_last = until.is_set()
        try:
            done = await do()
        except WorkspaceHeld as error:
            tries += 1
            since = known.since if known is not None else clock.time()
            met = replace(error.held_by, since=error.held_by.since or since, pause_s=PAUSES.cap_s)
            if known is None or met.what != known.what:
                note(met)
            known = met
            if is_last:
                raise
            with anyio.move_on_after(PAUSES.ceiling_s(tries)):
                await until.wait()
        else:
            if known is not None:
                note(None)
            return done
