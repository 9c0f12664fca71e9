"""Trio in virtual time, seeded, so that a program is also run with trio's semantics of cancellation.

Trio shuffles the runnable tasks by a random generator of its own. Two private names of trio make the order repeatable;
trio's Hypothesis plug-in and trio's tests use the same two names, and here only ``seeded`` uses them. The clock is a
public interface of trio, and exact: trio calls the clock for the time to sleep only when no task can run. This module
is imported only where trio runs.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import trio
import trio._core._run as trio_run

from supervisor.simulation.engine.errors import (
    UNWIND_ROUNDS,
    UNWIND_STEPS,
    Deadlock,
    HorizonReached,
    Livelock,
    never_free,
    waiting_place,
)
from supervisor.simulation.engine.loop import WATCH_STEPS
from supervisor.simulation.engine.schedule import key_of, on_grid

_T = TypeVar("_T")

PRIVATE_NAMES = ("_r", "_ALLOW_DETERMINISTIC_SCHEDULING")
"""Private names in ``trio._core._run``: the random generator, and whether trio sorts tasks by age before it shuffles
them."""
POLLS = 8
"""Passes without a step before the run counts as deadlocked: trio ends its own tasks through a pair of sockets."""


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Make trio's order of steps a function of *seed* for the block, and restore trio at the end.

    Raises:
        RuntimeError: the installed trio does not have the two private names any more.
    """
    missing = [name for name in PRIVATE_NAMES if not hasattr(trio_run, name)]
    if missing:
        raise RuntimeError(
            f"trio {trio.__version__} has no {' and no '.join(missing)} in trio._core._run any more, so its order"
            " cannot be seeded: install an older trio, or leave the schedule 'trio' out"
        )
    before = [getattr(trio_run, name) for name in PRIVATE_NAMES]
    for name, value in zip(PRIVATE_NAMES, (random.Random(key_of(seed)), True), strict=True):
        setattr(trio_run, name, value)
    try:
        yield
    finally:
        for name, value in zip(PRIVATE_NAMES, before, strict=True):
            setattr(trio_run, name, value)


class TrioEngine(trio.abc.Clock, trio.abc.Instrument):
    """Clock and instrument of trio for one simulated run. A failure cancels the whole run, so that the run unwinds. The
    arguments are those of :func:`supervisor.simulation.engine.run`."""

    def __init__(
        self,
        *,
        horizon_s: float = math.inf,
        grain_s: float = 0.0,
        livelock_steps: int = 200_000,
        before_step: Callable[[int], None] | None = None,
        watch: Callable[[int], None] | None = None,
        on_failed: Callable[[], None] | None = None,
    ) -> None:
        self.steps = 0
        """Number of steps of tasks, including trio's own tasks."""
        self.time_jumps = 0
        self.now_s = 0.0
        self.failed: BaseException | None = None
        """Error because of which the run was cancelled: an ``EngineError``, or an error that *before_step* raised."""
        self.interrupted = False
        """Whether the run is to end before its next pass."""
        self._horizon_s, self._grain_s, self._livelock_steps = horizon_s, grain_s, livelock_steps
        self._before_step = before_step
        self._watch, self._on_failed = watch, on_failed
        self._livelock_at = livelock_steps
        self._main = trio.CancelScope()
        self._polls = self._rounds = self._unwind_steps = 0
        self._tasks: dict[trio.lowlevel.Task, None] = {}

    async def run(self, main: Callable[[], Awaitable[_T]]) -> _T:
        """Run *main* inside of trio, and return the result of *main*.

        Raises:
            Deadlock, Livelock, HorizonReached: *main* does not end.
        """
        try:
            with self._main:
                value = await main()
        finally:
            if self.failed is not None:
                raise self.failed
        return value

    # ------------------------------------------------------------------ the clock
    def start_clock(self) -> None:
        """Do nothing: the clock starts at 0."""

    def current_time(self) -> float:
        """Return virtual time. Trio calls this once in every pass too: the one place where a run that does not unwind
        can be stopped."""
        if self.interrupted and not _in_task():
            raise KeyboardInterrupt
        if self._unwind_steps > UNWIND_STEPS and self.failed is not None and not _in_task():
            raise self.failed
        return self.now_s

    def leap(self, seconds: float) -> None:
        """Advance the clock and the horizon at once, as if the machine slept, so that deadlines pass."""
        self.now_s += seconds
        self._horizon_s += seconds

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Move the clock to *deadline*, since no task can run."""
        if deadline == math.inf or (deadline > self._horizon_s and self.failed is None):
            self._idle(deadline)
        elif deadline > self.now_s:
            self.now_s = on_grid(deadline, self._grain_s) if self._grain_s else deadline
            if self.failed is None:
                self.time_jumps += 1
                self._livelock_at = self.steps + self._livelock_steps
        return 0.0

    def _idle(self, deadline: float) -> None:
        self._polls += 1
        if self._polls <= POLLS:
            return
        self._polls = 0
        if deadline == math.inf:
            self._fail(Deadlock(self.now_s, self.waiting()))
        else:
            self.now_s = self._horizon_s
            self._fail(HorizonReached(self.now_s, self.waiting()))

    # ------------------------------------------------------------------ every step
    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self._tasks[task] = None

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        self._tasks.pop(task, None)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._polls = 0
        if self.failed is not None:
            self._unwind_steps += 1
            return
        if self.steps >= self._livelock_at:
            self._fail(Livelock(self.now_s, self.waiting()))
            return
        self.steps += 1
        if self._watch is not None and self.steps % WATCH_STEPS == 0:
            self._ask(self._watch)
        if self._before_step is not None:
            self._ask(self._before_step)

    def _ask(self, whom: Callable[[int], None]) -> None:
        """Call *whom* with the number of steps, and fail the run if *whom* raises: trio would only log the error."""
        try:
            whom(self.steps)
        except BaseException as error:
            self._fail(error)

    def waiting(self) -> list[str]:
        """Return the names of the unfinished tasks without trio's own, oldest first, with each task's waiting place."""
        own = [one for one in self._tasks if not one.name.startswith(("<", "trio."))]
        return [f"{one.name} in {waiting_place(one.coro)}" for one in own]

    # ------------------------------------------------------------------ the end of a failed run
    def _fail(self, error: BaseException) -> None:
        """Cancel the run. If the run goes on behind shielded cancel scopes, remove the shields; if the run still does
        not end, stop trio."""
        if self.failed is None:
            self.failed = error
            if self._on_failed is not None:
                self._on_failed()
        elif self._rounds < UNWIND_ROUNDS:
            self._rounds += 1
            self._unshield()
        else:
            raise error
        self._main.cancel()

    def _unshield(self) -> None:
        for task in self._tasks:
            status = getattr(task, "_cancel_status", None)
            while status is not None:
                status._scope.shield = False
                status = status.parent

    def close(self) -> None:
        """Hold the tasks that trio left unfinished, so that the garbage collector never finalizes them."""
        for task in self._tasks:
            never_free(task)


def _in_task() -> bool:
    """Whether the caller is a task, which might swallow an error, and not trio itself."""
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True
