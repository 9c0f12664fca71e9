"""Trials of mutants: each in a process of its own, so many at a time; and what is told of them."""

from __future__ import annotations

import gc
import importlib
import os
import resource
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Generic, NamedTuple, NoReturn, TypeVar

from specimens import Mutant, change

__all__ = ["MEMORY_MAX", "OUTCOMES", "Ordeal", "Tally", "confine", "each", "stop_at", "warm"]

T = TypeVar("T")

MEMORY_MAX = 2 * 1024**3
NEVER_ENTERED = 9
OUTCOMES = {0: "survived", NEVER_ENTERED << 8: "never entered"}
"""By the status that a trial ends with; any other means that it was killed."""

WARMED = (
    "pytest",
    "hypothesis",
    "_hypothesis_pytestplugin",
    "anyio.pytest_plugin",
    "anyio._backends._asyncio",
    "anyio._backends._trio",
    "pytest_trio.plugin",
    "msgspec",
    "structlog",
    "pydantic",
    "rich.console",
    "click",
    "yaml",
    "apsw",
)
"""Imported once, before the first fork: nothing of these is ever mutated."""


class Ordeal(NamedTuple, Generic[T]):
    """A trial that is over: what became of it, by what (as far as it said so), and for how long did it compute."""

    trial: T
    outcome: str
    words: str
    cpu_s: float


def warm() -> None:
    """Import what is never mutated, once, before the first fork."""
    for name in WARMED:
        importlib.import_module(name)
    gc.freeze()


def confine(wall_s: int) -> None:
    """In a process of its own: say nothing, and use no more than a trial may."""
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.alarm(wall_s)


def each(trials: Sequence[T], suffer: Callable[[T, int], int], jobs: int) -> Iterator[Ordeal[T]]:
    """Each trial as it ends, at most *jobs* at a time; those that are under way when nobody asks any more are ended.

    *suffer* is called in a process of its own, with the trial and where its words go; it gives the exit status.
    """
    running: dict[int, tuple[T, int]] = {}
    try:
        for trial in trials:
            if len(running) == jobs:
                yield _reap(running)
            read, say = os.pipe()
            pid = os.fork()
            if pid == 0:
                _suffer(trial, say, suffer)
            os.close(say)
            running[pid] = trial, read
        while running:
            yield _reap(running)
    finally:
        for pid in running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _suffer(trial: T, say: int, suffer: Callable[[T, int], int]) -> NoReturn:
    status = 1
    try:
        status = suffer(trial, say)
    finally:
        os._exit(status)


def _reap(running: dict[int, tuple[T, int]]) -> Ordeal[T]:
    pid, status, used = os.wait4(-1, 0)
    trial, read = running.pop(pid)
    with os.fdopen(read, "rb") as told:
        words = told.read().decode(errors="replace").replace("\n", " ")
    if os.WIFSIGNALED(status):
        words = f"{words} {signal.Signals(os.WTERMSIG(status)).name}: it comes to no end".strip()
    return Ordeal(trial, OUTCOMES.get(status, "killed"), words, used.ru_utime + used.ru_stime)


class Tally:
    """What became of the mutants so far, told as it comes."""

    def __init__(self, wanted: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self.cpu_s = 0.0
        self._wanted = wanted

    @property
    def tried(self) -> int:
        return self.outcomes.total()

    @property
    def share(self) -> float:
        """Of those that were tried, how many were killed."""
        return self.outcomes["killed"] / max(1, self.tried)

    @property
    def told(self) -> int:
        """Of those that were tried, how many are not the same program in other words."""
        return self.tried - self.outcomes["equivalent"]

    @property
    def told_share(self) -> float:
        """Of these, how many were killed."""
        return self.outcomes["killed"] / max(1, self.told)

    def take(self, mutant: Mutant, one: Ordeal[T], why: str = "") -> None:
        """*why*: in which way one that was not killed cannot be told from the original."""
        outcome = "equivalent" if why and one.outcome != "killed" else one.outcome
        self.outcomes[outcome] += 1
        self.cpu_s += one.cpu_s
        what = f" {one.words}" if outcome == "killed" else f" {why} {one.words}\n{change(mutant)}"
        print(f"{self.tried}/{self._wanted} {outcome}: {mutant.name} ({one.cpu_s:.1f} s){what}", flush=True)


def stop_at(minutes: float | None) -> None:
    """Ctrl-C, a polite kill, and the end of the time all mean the same: the totals, please."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGALRM, interrupt)
    if minutes is not None:
        signal.setitimer(signal.ITIMER_REAL, 60 * minutes)
