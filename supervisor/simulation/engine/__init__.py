"""The entry to the engine: run an async program in virtual time, under a seed and a schedule, sealed off from the
world.

The program is plain anyio on asyncio or trio, and cannot tell the difference. The same seed gives the same order of
steps in every process. The automatic garbage collector is off meanwhile, since finalizers would run at moments that no
seed decides.
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
"""Set while the collector is off. The collector itself cannot be asked cheaply: it counts frozen objects one by one."""


@dataclass
class EngineResult(Generic[_T]):
    """Result of a run. The run went well if there is no *error* and nothing *unhandled*."""

    value: _T | None = None
    error: BaseException | None = None
    """An :class:`EngineError`, or the error that the program raised; a group of one error is unwrapped."""
    steps: int = 0
    time_jumps: int = 0
    simulated_s: float = 0.0
    unhandled: list[str] = field(default_factory=list)
    """Errors that nothing in the program handled: of callbacks, and of tasks whose result was not read."""


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
    """Run *main* to its end.

    Args:
        seed: the run.
        schedule: the order of steps.
        horizon_s: virtual seconds it has, not counting those that were leapt.
        grain_s: timers are rounded up to multiples of it, so that more happens at once; 0 is exact.
        livelock_steps: steps at one moment that are an error.
        before_step: called before each step with its number, from 1; what it raises is the run's error.
        watch: told now and then how many steps there have been, and at the end; it must not raise.
        on_failed: called when the run cannot go on, before what is left of it is cancelled: how that unwinds, in which
            order and how late, is no part of the run. It must not raise.

    Raises:
        RuntimeError: an event loop runs already.
        KeyboardInterrupt: Ctrl-C came. Nothing else of what happens within comes out of here but in
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
    """Let the machine sleep for so many seconds, for everybody at once; called from within a run."""
    trio = sys.modules.get("trio")
    in_trio = trio is not None and trio.lowlevel.in_trio_run()
    clock: Any = trio.lowlevel.current_clock() if in_trio else asyncio.get_running_loop()  # type: ignore[union-attr]
    clock.leap(seconds)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Turn the garbage collector off, and at the end collect only what was created meanwhile: a full collection costs
    more than a run.

    What is still held at the end stays for ever, as the next run does not look at it: so it goes around everything that
    makes a run and is thrown away with it. Within another one it does nothing.
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
    """An engine that ends before its next step when it is interrupted."""

    interrupted: bool


@contextlib.contextmanager
def _interrupting(engine: _Interruptible) -> Iterator[None]:
    """End the run between two steps at the first Ctrl-C, unseen by the program, whose results would mean nothing; at
    the second one, end the step too.

    Raises:
        KeyboardInterrupt: it came, whatever the run made of that.
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
    """Run *main* under the guard, which is up from when the backend has its resources until everything has unwound."""
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
