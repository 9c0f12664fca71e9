"""Tests of the guard that isolates a simulated run: every access to the real world is refused on both engines, and
everything is as before after the run."""

from __future__ import annotations

import _thread
import asyncio
import logging
import os
import random
import secrets
import select
import selectors
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from trio._core._thread_cache import ThreadCache

from supervisor.simulation.engine import Schedule, SimulationEscape, run
from supervisor.simulation.engine.hermetic import hermetic

HERE = str(Path(__file__).parent)

ESCAPES: dict[str, Callable[[], Any]] = {
    "time.time": lambda: time.time(),
    "time.time_ns": lambda: time.time_ns(),
    "time.monotonic": lambda: time.monotonic(),
    "time.monotonic_ns": lambda: time.monotonic_ns(),
    "time.perf_counter": lambda: time.perf_counter(),
    "time.perf_counter_ns": lambda: time.perf_counter_ns(),
    "time.process_time": lambda: time.process_time(),
    "time.clock_gettime": lambda: time.clock_gettime(time.CLOCK_REALTIME),
    "time.localtime": lambda: time.localtime(),
    "time.asctime": lambda: time.asctime(),
    "time.strftime": lambda: time.strftime("%H"),
    "time.sleep": lambda: time.sleep(0),
    "random.random": lambda: random.random(),
    "random.shuffle": lambda: random.shuffle([]),
    "Random.seed": lambda: random.Random(),
    "SystemRandom": lambda: random.SystemRandom().random(),
    "SystemRandom.randbytes": lambda: secrets.token_hex(),
    "os.urandom": lambda: os.urandom(1),
    "os.times": lambda: os.times(),
    "os.getrandom": lambda: os.getrandom(1),
    "uuid.uuid1": lambda: uuid.uuid1(),
    "uuid.uuid4": lambda: uuid.uuid4(),
    "Thread.start": lambda: threading.Thread(target=print).start(),
    "_thread.start_new_thread": lambda: _thread.start_new_thread(print, ()),
    "select.select": lambda: select.select([], [], [], 0),
    "select.poll": lambda: select.poll().poll(0),
    "SelectSelector.select": lambda: selectors.SelectSelector().select(0),
    "Condition.wait": lambda: threading.Event().wait(0),
    "socket.": lambda: socket.socket(),
    "socket.getaddrinfo": lambda: socket.getaddrinfo("localhost", 1),
    "subprocess.Popen": lambda: subprocess.Popen(["true"]),
    "os.fork": lambda: os.fork(),
    "os.system": lambda: os.system("true"),
    "os.kill": lambda: os.kill(os.getpid(), 0),
    "os.pipe": lambda: os.pipe(),
    "os.mkdir": lambda: os.mkdir(f"{HERE}/never"),
    "os.remove": lambda: os.remove(f"{HERE}/never"),
    "os.rename": lambda: os.rename(f"{HERE}/never", f"{HERE}/nowhere"),
    "open(": lambda: open(f"{HERE}/never", "w"),  # noqa: SIM115
    "open": lambda: os.open(f"{HERE}/never", os.O_CREAT),
    "open('/dev/urandom": lambda: open("/dev/urandom", "rb"),  # noqa: SIM115
}


@pytest.mark.parametrize("schedule", [Schedule.SHUFFLE, Schedule.TRIO])
@pytest.mark.parametrize("name", [one for one in ESCAPES if one != "os.getrandom" or hasattr(os, "getrandom")])
def test_every_escape_is_caught(name: str, schedule: Schedule) -> None:
    """An access to the real world is refused, the error names it and its line, and the run fails although the program
    swallows the error."""

    async def main() -> str:
        with suppress(Exception):
            ESCAPES[name]()
        return "swallowed"

    error = run(main, seed=1, schedule=schedule, horizon_s=1).error
    assert isinstance(error, SimulationEscape)
    assert name in str(error)
    assert f"({Path(__file__).name}:{ESCAPES[name].__code__.co_firstlineno})" in str(error)
    assert not (Path(HERE) / "never").exists()


@pytest.mark.parametrize("schedule", [Schedule.SHUFFLE, Schedule.TRIO])
def test_a_thread_is_an_escape(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a thread with anyio is refused as an access to the real world."""
    # Trio keeps idle threads for ten seconds: one of an earlier test would be used, and none be started.
    monkeypatch.setattr("trio._core._thread_cache.THREAD_CACHE", ThreadCache())

    async def main() -> None:
        await anyio.to_thread.run_sync(print)

    assert isinstance(run(main, seed=1, schedule=schedule, horizon_s=1).error, SimulationEscape)


@pytest.mark.parametrize("name", ["run_in_executor", "add_signal_handler", "subprocess_exec", "create_server"])
def test_the_loop_refuses_the_world(name: str) -> None:
    """Methods of the event loop that access the real world are refused; the error names the method."""

    async def main() -> None:
        getattr(asyncio.get_running_loop(), name)(None, None)

    error = run(main, seed=1, schedule=Schedule.FIFO, horizon_s=1).error
    assert isinstance(error, SimulationEscape)
    assert str(error).startswith(f"loop.{name}() is not simulated; it was reached from ")


@pytest.mark.parametrize("schedule", [Schedule.SHUFFLE, Schedule.TRIO])
def test_what_is_no_escape(schedule: Schedule) -> None:
    """Seeded random numbers, reading files, late imports, formatting a given time, and the runtime's log are
    allowed."""
    logging.getLogger("supervisor.late").setLevel(logging.NOTSET)

    async def main() -> float:
        assert Path(__file__).read_text(encoding="utf-8")
        sys.modules.pop("this", None)
        assert time.strftime("%H", time.localtime(0)) in time.asctime(time.localtime(0))
        logging.getLogger("supervisor.late").error("nobody hears this")
        return random.Random(1).random()

    assert run(main, seed=1, schedule=schedule, horizon_s=1).value == random.Random(1).random()


def originals() -> list[object]:
    members = [(time, "time"), (time, "sleep"), (os, "urandom"), (random, "random"), (uuid, "uuid4")]
    classes = [(threading.Thread, "start"), (random.Random, "seed"), (random.SystemRandom, "random")]
    found = [getattr(owner, name) for owner, name in [*members, *classes]]
    return [*found, logging.getLogger("supervisor").level, sys.dont_write_bytecode]


async def _deadlock() -> None:
    await anyio.sleep_forever()


async def _escape() -> None:
    time.time()


@pytest.mark.parametrize("schedule", [Schedule.SHUFFLE, Schedule.TRIO])
@pytest.mark.parametrize("main", [_deadlock, _escape])
def test_the_guard_is_down_afterwards(main: Any, schedule: Schedule, tmp_path: Path) -> None:
    """After a run that failed, every function that the guard had replaced is restored."""
    before = originals()
    assert run(main, seed=1, schedule=schedule, horizon_s=1).error is not None
    assert originals() == before
    (tmp_path / "written").write_text("again")


def test_guards_nest() -> None:
    """Of two nested guards, the inner one reports its own escapes alone, and the outer one still guards afterwards."""
    before = originals()
    with pytest.raises(SimulationEscape, match=r"time\.sleep"), hermetic() as outer:
        with pytest.raises(SimulationEscape, match=r"time\.time"), hermetic():
            with suppress(SimulationEscape):
                time.time()
        assert outer.escapes == []
        time.sleep(0)
    assert originals() == before


def test_other_threads_are_free() -> None:
    """A thread that was started before the guard is not guarded."""
    go, done, read = threading.Event(), threading.Lock(), []

    def elsewhere() -> None:
        with done:
            go.wait()
            read.append(time.time())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    with hermetic():
        go.set()
        done.acquire()
    thread.join()
    assert len(read) == 1
