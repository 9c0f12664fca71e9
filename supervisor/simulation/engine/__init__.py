"""The entry to the engine: run an async program in virtual time, under a seed and a schedule, sealed off from the
world.

The program is plain anyio on asyncio or trio, and cannot distinguish a simulated run from a real one. The same seed
gives the same order of steps in every process. The automatic garbage collector is off during a run, since finalizers
would run at moments that no seed determines.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import anyio

from supervisor.simulation.engine.errors import Deadlock, EngineError, HorizonReached, Livelock, SimulationEscape
from supervisor.simulation.engine.hermetic import hermetic
from supervisor.simulation.engine.loop import LIVELOCK_STEPS, SimulatedLoop
from supervisor.simulation.engine.schedule import Schedule

__all__ = [
    "Deadlock",
    "EngineError",
    "EngineResult",
    "HorizonReached",
    "Livelock",
    "Schedule",
    "SimulationEscape",
    "leap",
    "run",
    "uncollected",
]

_T = TypeVar("_T")
BeforeStep = Callable[[int], None]
Watch = Callable[[int], None]
Main = Callable[[], Awaitable[_T]]
_collection_off: ContextVar[bool] = ContextVar("collects_nothing", default=False)
"""Whether the garbage collector is off by :func:`uncollected`. A query of the collector itself would be expensive,
since the collector counts frozen objects one by one."""


@dataclass
class EngineResult(Generic[_T]):
    """Result of a simulated run. The run succeeded if *error* is ``None`` and *unhandled* is empty."""

    value: _T | None = None
    error: BaseException | None = None
    """An :class:`EngineError`, or the error that the program raised; a group of one error is unwrapped."""
    steps: int = 0
    time_jumps: int = 0
    simulated_s: float = 0.0
    unhandled: list[str] = field(default_factory=list)
    """Errors that the program did not handle: errors of callbacks, and of tasks whose result was not read."""


def run(
    main: Main[_T],
    *,
    seed: int,
    schedule: Schedule,
    horizon_s: float,
    grain_s: float = 0.0,
    livelock_steps: int = LIVELOCK_STEPS,
    before_step: BeforeStep | None = None,
    watch: Watch | None = None,
    on_failed: Callable[[], None] | None = None,
) -> EngineResult[_T]:
    """Run *main* to its end in virtual time, and return the result.

    Args:
        seed: the seed of the run.
        schedule: the schedule, which decides the order of steps.
        horizon_s: virtual seconds after which the run is an error; sleeps of the machine (:func:`leap`) do not count.
        grain_s: timers are rounded up to multiples of this number of seconds, so that more happens at once; 0 is exact.
        livelock_steps: number of steps at one moment of virtual time that is an error.
        before_step: called before each step with the step's number, from 1; an error that it raises is the run's error.
        watch: called now and then, and at the end, with the number of steps so far; it must not raise.
        on_failed: called when the run cannot go on, before the remaining tasks are cancelled: the order and the time of
            their unwinding is no part of the run. It must not raise.

    Raises:
        RuntimeError: an event loop runs already.
        KeyboardInterrupt: Ctrl-C came. Any other error within the run is not raised, but returned in
            :attr:`EngineResult.error`.
    """
    trio = sys.modules.get("trio")
    if asyncio._get_running_loop() is not None or (trio is not None and trio.lowlevel.in_trio_run()):
        raise RuntimeError("a simulation runs on an engine of its own: start it outside of every event loop")
    options: dict[str, Any] = {
        "horizon_s": horizon_s,
        "grain_s": grain_s,
        "livelock_steps": livelock_steps,
        "before_step": before_step,
        "watch": watch,
        "on_failed": on_failed,
    }
    on_engine = _on_trio if schedule is Schedule.TRIO else _on_loop
    ran: EngineResult[_T] = EngineResult()
    try:
        with uncollected():
            on_engine(main, ran, seed, schedule, options)
    finally:
        if watch is not None:
            watch(ran.steps)
    return ran


def leap(seconds: float) -> None:
    """Advance the clock of the current simulated run by *seconds* at once, as if the machine slept; call this from
    within a run."""
    trio = sys.modules.get("trio")
    in_trio = trio is not None and trio.lowlevel.in_trio_run()
    clock: Any = trio.lowlevel.current_clock() if in_trio else asyncio.get_running_loop()  # type: ignore[union-attr]
    clock.leap(seconds)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Turn the garbage collector off for the block, and at the end collect only objects that were created within the
    block: a full collection costs more than a run.

    An object that is still referenced at the end is not examined by the next block, and so may never be freed.
    Therefore the block should contain everything that makes a run and is thrown away with the run. Within another such
    block this function does nothing.
    """
    if _collection_off.get():
        yield
        return
    enabled, within = gc.isenabled(), _collection_off.set(True)
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()
        _collection_off.reset(within)
        if enabled:
            gc.enable()


def _on_loop(main: Main[_T], ran: EngineResult[_T], seed: int, schedule: Schedule, options: dict[str, Any]) -> None:
    loop = SimulatedLoop(seed, schedule, **options)  # type: ignore[abstract]  # the rest is set by name
    try:
        with _interrupting(loop):
            _guarded(main, ran, "asyncio", {"loop_factory": lambda: loop})
    finally:
        ran.steps, ran.time_jumps, ran.simulated_s = loop.steps, loop.time_jumps, loop.time()
        ran.unhandled = loop.unhandled


def _on_trio(main: Main[_T], ran: EngineResult[_T], seed: int, schedule: Schedule, options: dict[str, Any]) -> None:
    from supervisor.simulation.engine.trio_engine import TrioEngine, seeded

    engine = TrioEngine(**options)

    @functools.wraps(main)
    async def within() -> _T:
        return await engine.run(main)

    try:
        with seeded(seed), _interrupting(engine):
            _guarded(within, ran, "trio", {"clock": engine, "instruments": [engine]})
    finally:
        ran.steps, ran.time_jumps, ran.simulated_s = engine.steps, engine.time_jumps, engine.now_s
        engine.close()
    if engine.failed is not None and not isinstance(ran.error, SimulationEscape):
        ran.error = engine.failed


class _Interruptible(Protocol):
    """Interface of an engine that ends the run before the next step once *interrupted* is true."""

    interrupted: bool


@contextlib.contextmanager
def _interrupting(engine: _Interruptible) -> Iterator[None]:
    """End the run between two steps at the first Ctrl-C, which the program does not see, since the program's results
    would mean nothing; at the second Ctrl-C, end the current step too.

    Raises:
        KeyboardInterrupt: Ctrl-C came, whatever the result of the run.
    """

    def hear(number: int, frame: object) -> None:
        if engine.interrupted:
            raise KeyboardInterrupt
        engine.interrupted = True

    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if engine.interrupted:
        raise KeyboardInterrupt


def _guarded(main: Main[_T], ran: EngineResult[_T], backend: str, options: dict[str, Any]) -> None:
    """Run *main* under the guard against the real world. The guard is active from the moment when the backend has its
    resources until everything has unwound."""
    up = contextlib.ExitStack()

    @functools.wraps(main)  # tasks are named after it
    async def within() -> _T:
        up.enter_context(hermetic())
        return await main()

    try:
        with up:
            ran.value = anyio.run(within, backend=backend, backend_options=options)
    except BaseException as error:
        ran.error = _leaf(error)
    if isinstance(ran.error, KeyboardInterrupt):
        raise ran.error


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
