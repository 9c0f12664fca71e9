"""A seeded asyncio event loop in virtual time: one seed is one order of steps, in every process and on every CPython.

Theory of operation: a *step* is one call of a task's coroutine, or one plain callback. A *pass* runs the steps that are
ready at its start; what becomes ready meanwhile waits for the next pass. When no step is ready, time jumps to the next
timer.

- Each task has a birth number. The next step is a function of the seed, birth numbers and step numbers
  (``schedule.py``), never of the order of a queue, a set or an address. Plain callbacks keep their FIFO order.
- ``fifo`` and ``shuffle`` order a whole pass; ``window`` and ``pct`` run one step per pass, from a heap of ranks.
- A task that *before_step* starts has a negative birth number: it goes first, and moves no number of another task.
- A run that cannot end is an error that names the waiting tasks and their places; the tasks are then cancelled, and
  steps are run so that they unwind.

Example: tasks 1 and 2 both wake at 3.0 s. Nothing else is ready, so the clock jumps to 3.0; both timers are released,
the two steps form a pass, and ``shuffle`` runs the task with the smaller ``hash((key, birth, step))`` first.

The loop uses the documented surface of asyncio alone (``AbstractEventLoop``, ``Task``, ``_set_running_loop`` and
``_unregister_task``, which are documented for authors of event loops); no loop of CPython is patched.
"""

from __future__ import annotations

import asyncio
import gc
import math
import sys
import threading
from asyncio import events
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import msgspec

from supervisor.simulation.engine.errors import (
    UNWIND_ROUNDS,
    UNWIND_STEPS,
    Deadlock,
    EngineError,
    HorizonReached,
    Livelock,
    never_free,
    waiting_place,
)
from supervisor.simulation.engine.hermetic import SealedLoop, escape
from supervisor.simulation.engine.schedule import Schedule, key_of, on_grid, priority_of

_T = TypeVar("_T")

LIVELOCK_STEPS = 200_000
"""Number of steps at one moment of virtual time that is an error; a busy system of 1,000 actors takes some 10,000."""
COLLECT_STEPS = 400_000
"""Number of steps after which cyclic garbage is collected, so that a long run does not keep the garbage; the moments
follow from the run itself. Only young generations are collected: older objects mostly live as long as the run, and a
large host has millions of older objects."""
_YOUNG = 1
"""Garbage collector generation up to which objects are collected after COLLECT_STEPS; the oldest generation waits for
the end of the run."""
WATCH_STEPS = 4096
"""Number of steps between two calls of *watch*."""
STALE_TIMERS = 256
"""Number of cancelled timers above which these are removed from memory, if they are more than half of all timers."""


class SimulatedTask(asyncio.Task[_T]):
    """Asyncio task with a birth number (the number of its creation), by which the task's steps are ordered."""

    __slots__ = ("birth", "scheduled")

    def __init__(self, coro: Any, *, birth: int, **options: Any) -> None:
        self.birth = birth
        self.scheduled = 0  # steps scheduled so far; asyncio's own constructor schedules the first
        super().__init__(coro, **options)


class _Handle(msgspec.Struct, eq=False):
    """Call that waits for its step: the part of ``asyncio.Handle`` that is used. A run has tens of millions of these
    calls, so a handle keeps no reference to the loop, and makes no repr in advance."""

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    context: Context
    task: SimulatedTask[Any] | None
    step: int
    _cancelled: bool = False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled

    def __repr__(self) -> str:
        return f"<call of {getattr(self.call, '__qualname__', 'something')}>"


class _Timer(msgspec.Struct, eq=False):
    """Call that waits for a moment of virtual time: the part of ``asyncio.TimerHandle`` that is used."""

    due_s: float
    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    context: Context
    stale: list[int]
    task: None = None
    _cancelled: bool = False

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self.stale[0] += 1

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self.due_s

    def __repr__(self) -> str:
        return f"<timer at {self.due_s:g} s>"


class SimulatedLoop(SealedLoop):
    """Seeded asyncio event loop in virtual time. The arguments are those of :func:`supervisor.simulation.engine.run`;
    *schedule* is any schedule except ``trio``."""

    def __init__(
        self,
        seed: int = 0,
        schedule: Schedule = Schedule.SHUFFLE,
        *,
        horizon_s: float = math.inf,
        grain_s: float = 0.0,
        livelock_steps: int = LIVELOCK_STEPS,
        before_step: Callable[[int], None] | None = None,
        watch: Callable[[int], None] | None = None,
        on_failed: Callable[[], None] | None = None,
    ) -> None:
        self.steps = 0
        """Number of steps of tasks and of plain callbacks that were run."""
        self.time_jumps = 0
        self.before_step = before_step
        self.unhandled: list[str] = []
        """Errors that the program did not handle: errors of callbacks, and of tasks whose result was not read."""
        self._key = key_of(seed)
        self._rank = priority_of(schedule, seed)
        self._keeps_slots = schedule is Schedule.FIFO
        self._one_at_a_time = schedule in (Schedule.WINDOW, Schedule.PCT)
        self._horizon_s, self._grain_s, self._livelock_steps = horizon_s, grain_s, livelock_steps
        self._now_s = 0.0
        self._ready: list[Any] = []
        self._ranked: list[tuple[int, int, int, _Handle]] = []
        self._timers: list[tuple[float, int, int, _Timer]] = []
        self._stale = [0]
        self._births = self._timers_made = self._passes = 0
        self._intruders = 0
        self._between_steps = False
        self.create_future: Callable[[], asyncio.Future[Any]] = partial(asyncio.Future, loop=self)
        self._livelock_at = livelock_steps
        self._collect_at = COLLECT_STEPS
        self._watch, self._on_failed = watch, on_failed
        self._watch_at = 0 if watch is not None else math.inf
        self.interrupted = False
        """Whether the run is to end before its next step."""
        self._stopping = self._closed = False
        self._failed: BaseException | None = None
        self._thread = threading.get_ident()
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        self._generators_made = 0
        self._generators: WeakValueDictionary[int, AsyncGenerator[Any, Any]] = WeakValueDictionary()

    # ------------------------------------------------------------------ what is to be done
    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Handle:
        if context is None:
            context = copy_context()
        task = getattr(callback, "__self__", None)
        if type(task) is not SimulatedTask:
            handle = _Handle(callback, args, context, None, 0)
        else:
            task.scheduled = step = task.scheduled + 1
            handle = _Handle(callback, args, context, task, step)
            if self._one_at_a_time:
                heappush(self._ranked, (self._rank(task.birth, step, self.steps), task.birth, step, handle))
                return handle
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Handle:
        if threading.get_ident() != self._thread:
            escape("loop.call_soon_threadsafe() from another thread")
        return self.call_soon(callback, *args, context=context)

    def leap(self, seconds: float) -> None:
        """Advance the clock at once, as if the machine slept, so that timers are late. The horizon moves too, since no
        work could be done meanwhile."""
        self._now_s += seconds
        self._horizon_s += seconds

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Timer:
        return self.call_at(self._now_s + delay if delay > 0.0 else self._now_s, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Timer:
        due_s = on_grid(when, self._grain_s) if self._grain_s else when
        timer = _Timer(due_s, callback, args, copy_context() if context is None else context, self._stale)
        if due_s < math.inf:  # sleep_forever() is a sleep until infinity: never due
            self._timers_made = number = self._timers_made + 1
            tie = number if self._keeps_slots else hash((self._key, number))
            heappush(self._timers, (due_s, tie, number, timer))
        return timer

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_s

    # ------------------------------------------------------------------ doing it
    def run_forever(self) -> None:
        if events._get_running_loop() is not None:
            raise RuntimeError("another event loop runs in this thread")
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._keep_generator, finalizer=self._close_generator)
        events._set_running_loop(self)
        try:
            while not self._stopping:
                self._run_pass()
        finally:
            self._stopping = False
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def _run_pass(self) -> None:
        """Run the steps that are ready now; steps that become ready meanwhile wait for the next pass."""
        if self.interrupted:
            raise KeyboardInterrupt
        timers = self._timers
        if not self._ready and not self._ranked:
            self._advance()
        elif timers and timers[0][0] <= self._now_s:
            self._release()
        if self.steps >= self._livelock_at:
            raise Livelock(self._now_s, self.waiting())
        batch, self._ready = self._ready, []
        if self._ranked:
            batch.append(heappop(self._ranked)[3])
        elif len(batch) > 1 and not self._one_at_a_time:
            batch = _oldest_first(batch) if self._keeps_slots else self._ordered(batch)
        left = iter(batch)
        try:
            for handle in left:
                if handle._cancelled:
                    continue
                self.steps = number = self.steps + 1
                if self.before_step is not None:
                    self._between_steps = True
                    self.before_step(number)
                    self._between_steps = False
                    if handle._cancelled:
                        continue
                try:
                    handle.context.run(handle.call, *handle.arguments)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": f"{handle!r} raised", "exception": error})
        except BaseException:
            self._ready[:0] = left
            raise

    def _ordered(self, batch: list[Any]) -> list[Any]:
        rank, now = self._rank, self.steps
        steps = [(rank(one.task.birth, one.step, now), one.task.birth, one) for one in batch if one.task is not None]
        if len(steps) < len(batch):
            steps += self._drawn_places(batch)
        steps.sort()
        return [one[2] for one in steps]

    def _drawn_places(self, batch: list[Any]) -> list[tuple[int, int, Any]]:
        """Draw places among the steps of tasks for the plain callbacks, which keep their order."""
        self._passes += 1
        plain = [one for one in batch if one.task is None]
        places = sorted([hash((self._key, self._passes, ~number)) for number in range(len(plain))])
        return [(place, -number, one) for number, (place, one) in enumerate(zip(places, plain, strict=True))]

    # ------------------------------------------------------------------ time
    def _advance(self) -> None:
        """Jump to the next timer, since no step is ready."""
        if self.steps >= self._collect_at:
            self._collect_at = self.steps + COLLECT_STEPS
            gc.collect(_YOUNG)
        if self.steps >= self._watch_at and self._watch is not None:
            self._watch_at = self.steps + WATCH_STEPS
            self._watch(self.steps)
        self._sweep()
        timers = self._timers
        while timers and timers[0][3]._cancelled:
            heappop(timers)
            self._stale[0] -= 1
        if not timers:
            raise Deadlock(self._now_s, self.waiting())
        due_s = timers[0][0]
        if due_s > self._horizon_s:
            self._now_s = self._horizon_s
            raise HorizonReached(self._now_s, self.waiting())
        if due_s > self._now_s:
            self._now_s = due_s
            self.time_jumps += 1
            self._livelock_at = self.steps + self._livelock_steps
        self._release()

    def _release(self) -> None:
        """Move the timers that are due to the ready steps."""
        timers, now_s = self._timers, self._now_s
        while timers and timers[0][0] <= now_s:
            timer = heappop(timers)[3]
            if timer._cancelled:
                self._stale[0] -= 1
            else:
                self._ready.append(timer)

    @property
    def timers(self) -> int:
        """Number of timers in memory, cancelled ones included."""
        return len(self._timers)

    def _sweep(self) -> None:
        if self._stale[0] > STALE_TIMERS and 2 * self._stale[0] > len(self._timers):
            self._timers = [one for one in self._timers if not one[3]._cancelled]
            heapify(self._timers)
            self._stale[0] = 0

    # ------------------------------------------------------------------ to the end
    def run_until_complete(self, future: Any) -> Any:
        """Run until *future* is done.

        Raises:
            Deadlock, Livelock, HorizonReached: *future* will never be done; the remaining tasks have been cancelled.
        """
        if self._failed is not None:
            if asyncio.iscoroutine(future):
                future.close()
            raise self._failed
        task: asyncio.Future[Any] = asyncio.ensure_future(future, loop=self)
        task.add_done_callback(self._stop_on)
        try:
            self.run_forever()
        except BaseException as error:
            self._failed = error
            if self._on_failed is not None:
                self._on_failed()
            self._unwind()
            raise
        finally:
            task.remove_done_callback(self._stop_on)
        if not task.done():
            raise RuntimeError("the loop was stopped before its main task was done")
        return task.result()

    def _stop_on(self, _: object) -> None:
        self._stopping = True

    def stop(self) -> None:
        self._stopping = True

    def _unwind(self) -> None:
        """Cancel the remaining tasks and run steps so that they unwind, but not after an interrupt; then keep tasks
        that go on regardless in memory for ever."""
        counts = self.steps, self.time_jumps, self._now_s
        self.before_step, self._horizon_s = None, math.inf
        left = self.tasks()
        for _ in range(0 if self.interrupted else UNWIND_ROUNDS):
            if not self.tasks():
                break
            self._cancel_everything()
        for task in left:
            _silence(task)
        for task in self.tasks():
            _keep(task)
        self.steps, self.time_jumps, self._now_s = counts

    def _cancel_everything(self) -> None:
        tasks = self.tasks()
        count = len(tasks)

        def ended(_: object) -> None:
            nonlocal count
            count -= 1
            self._stopping = self._stopping or count == 0

        for task in tasks:
            task.add_done_callback(ended)
            task.cancel()
        self.before_step = _Budget(self, UNWIND_STEPS)
        with suppress(EngineError):
            self.run_forever()

    def tasks(self) -> list[SimulatedTask[Any]]:
        """Tasks that have not ended, oldest first."""
        found = [one for one in asyncio.all_tasks(self) if isinstance(one, SimulatedTask)]
        return sorted(found, key=lambda one: one.birth)

    def waiting(self) -> list[str]:
        """Return the names of the unfinished tasks, with the place where each task waits."""
        return [f"{one.get_name()} in {waiting_place(one.get_coro())}" for one in self.tasks()]

    # ------------------------------------------------------------------ what asyncio asks of a loop
    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, _T], *, name: str | None = None, context: Context | None = None, **options: Any
    ) -> SimulatedTask[_T]:
        if self._between_steps:
            self._intruders = birth = self._intruders - 1
        else:
            self._births = birth = self._births + 1
        name = f"task-{birth}" if name is None else name
        return SimulatedTask(coro, birth=birth, loop=self, name=name, context=context, **options)

    def get_task_factory(self) -> None:
        return None

    def set_task_factory(self, factory: object) -> None:
        if factory is not None:
            escape("loop.set_task_factory()")

    def is_running(self) -> bool:
        return events._get_running_loop() is self

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._ranked.clear()
        self._timers.clear()

    get_debug: Callable[[], bool] = staticmethod(bool)
    """Return false: debug mode is off. Every future calls this, and ``bool`` replies without a call into Python."""

    def set_debug(self, enabled: bool) -> None:
        """Ignore the mode: ``PYTHONASYNCIODEBUG`` changes nothing."""

    # ------------------------------------------------------------------ what nobody handled
    def set_exception_handler(self, handler: Any) -> None:
        self._handler = handler

    def get_exception_handler(self) -> Any:
        return self._handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.unhandled.append(_described(context))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._handler is None:
            self.default_exception_handler(context)
        else:
            self._handler(self, context)

    # ------------------------------------------------------------------ asynchronous generators
    def _keep_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators_made += 1
        self._generators[self._generators_made] = generator

    def _close_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self._closed:
            self.create_task(generator.aclose(), name="aclose")

    async def shutdown_asyncgens(self) -> None:
        for _, generator in sorted(self._generators.items()):
            await generator.aclose()

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: there is no executor."""


class _Budget:
    """Function object for *before_step* that raises ``Livelock`` after *steps* more steps."""

    def __init__(self, loop: SimulatedLoop, steps: int) -> None:
        self._loop, self._until = loop, loop.steps + steps

    def __call__(self, number: int) -> None:
        if number > self._until:
            raise Livelock(self._loop.time(), ())


_birth = attrgetter("task.birth")


def _oldest_first(batch: list[Any]) -> list[Any]:
    """Return the batch with the steps of tasks sorted by the age of the tasks; plain callbacks keep their positions."""
    steps = [one for one in batch if one.task is not None]
    if len(steps) == len(batch):
        batch.sort(key=_birth)
        return batch
    if len(steps) < 2:
        return batch
    steps.sort(key=_birth)
    following = iter(steps)
    return [one if one.task is None else next(following) for one in batch]


# ------------------------------------------------------------------------------------------- the end of a failed run
def _silence(task: SimulatedTask[Any]) -> None:
    """Mark the error of a task as read, and its destruction as expected: the run has failed already."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    if task.done() and not task.cancelled():
        task.exception()


def _keep(task: SimulatedTask[Any]) -> None:
    """Unregister the task from asyncio, so that nothing waits for the task, and never free the task."""
    asyncio.tasks._unregister_task(task)
    never_free(task)


def _described(context: dict[str, Any]) -> str:
    """Describe an error in one line without memory addresses, so that the text is the same in every process."""
    error = context.get("exception")
    message = context.get("message", "unhandled")
    return message if error is None else f"{message}: {type(error).__name__}: {error}"
