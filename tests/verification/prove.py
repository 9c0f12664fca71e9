"""Proof that a seed determines a run: the digests are the same in fresh processes, under other hash seeds, and on other
interpreters.

As a program (``python -m tests.verification.prove``) this module is one such process: it reads the requested runs from
its standard input, as JSON, and writes ``seed digest`` for each.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

import actors
import supervisor
from supervisor.simulation.commands.run_request import RunRequest
from supervisor.simulation.search.many import interrupts_blocked
from tests.verification.checkers import simulate

HASH_SEEDS = ("0", "1", "4294967295")
"""Hash seeds of the three processes of every proof; a process of another interpreter uses the last of these."""
TRACEBACK = "Traceback (most recent call last):"
RAISED = re.compile(r"\A[A-Za-z_][\w.]*(:|$)")
"""Pattern of the line of a traceback that names the exception."""


class CannotRun(Exception):
    """Error: an interpreter cannot run the simulator; the message names the interpreter and the reason."""


class Process(msgspec.Struct, frozen=True):
    """Fresh process of a proof: the path of its interpreter, and its hash seed."""

    python: str
    hash_seed: str

    @property
    def name(self) -> str:
        return f"{self.python} PYTHONHASHSEED={self.hash_seed}"


class Proof(msgspec.Struct, kw_only=True):
    """Result of a proof. ``compared``: number of seeds with a digest from every process. ``differing``: a map from a
    seed whose digests differ to a map from process to digest."""

    seeds: int
    processes: list[str]
    compared: int
    differing: dict[int, dict[str, str]]


class _Work(msgspec.Struct):
    wanted: RunRequest
    first_seed: int
    seeds: int


def processes(pythons: Sequence[str]) -> list[Process]:
    """Make the processes of a proof: three of this interpreter, and one of each other interpreter in *pythons*.

    Raises:
        CannotRun: there is no such interpreter.
    """
    own = [Process(sys.executable, one) for one in HASH_SEEDS]
    return own + [Process(_found(one), HASH_SEEDS[-1]) for one in pythons]


def _found(python: str) -> str:
    path = shutil.which(python)
    if path is None:
        raise CannotRun(f"{python!r} is no program; name an interpreter that is on the PATH, or give its path")
    return path


def prove(
    wanted: RunRequest, seeds: range, jobs: int, every: Sequence[Process], heard: Callable[[int], None]
) -> tuple[Proof, bool]:
    """Run every seed in every process; return the proof, and false if Ctrl-C interrupted the runs.

    Args:
        jobs: number of processes at a time.
        heard: called with the number of digests so far.

    Raises:
        CannotRun: an interpreter does not run the simulator.
        BadScenario: there is no such scenario.
    """
    wanted.read()
    children = _Children(_Work(wanted, seeds.start, len(seeds)), every, heard)
    complete = True
    with _sources() as path, ThreadPoolExecutor(jobs) as pool:
        try:
            list(pool.map(lambda process: children.run(process, path), every))
        except KeyboardInterrupt:
            complete = False
        finally:
            children.end()
    return _compared(seeds, every, children.digests, complete), complete


def _compared(seeds: range, every: Sequence[Process], digests: dict[Process, dict[int, str]], complete: bool) -> Proof:
    """Compare the digests. A seed without a digest from every process counts as differing, unless Ctrl-C interrupted
    the proof."""
    proof = Proof(seeds=len(seeds), processes=[one.name for one in every], compared=0, differing={})
    for seed in seeds:
        told = {one.name: digests[one][seed] for one in every if seed in digests[one]}
        proof.compared += len(told) == len(every)
        if len(set(told.values())) > 1 or (complete and len(told) < len(every)):
            proof.differing[seed] = told
    return proof


@contextmanager
def _sources() -> Iterator[str]:
    """Make a temporary directory with links to the packages of this project and nothing else, from which other
    interpreters import."""
    with tempfile.TemporaryDirectory(prefix="supervisor-prove-") as path:
        for package in (Path(actors.__path__[0]), Path(supervisor.__path__[0]), Path(__file__).parents[1]):
            (Path(path) / package.name).symlink_to(package.resolve())
        yield path


class _Children:
    """Processes of a proof, and their digests so far. A thread for each process reads that process's output."""

    def __init__(self, work: _Work, every: Sequence[Process], heard: Callable[[int], None]) -> None:
        self.digests: dict[Process, dict[int, str]] = {one: {} for one in every}
        self._work = msgspec.json.encode(work).decode()
        self._heard = heard
        self._running: list[subprocess.Popen[str]] = []
        self._ended = False

    def run(self, process: Process, path: str) -> None:
        """Start one process and read its digests.

        Raises:
            CannotRun: the interpreter does not run the simulator.
        """
        if self._ended:
            return
        with tempfile.TemporaryFile("w+") as complaints, self._started(process, path, complaints) as child:
            sound = [self._take(process, line) for line in child.stdout or ()]
            if not (all(sound) and child.wait() == 0 and self.digests[process]) and not self._ended:
                complaints.seek(0)
                said = (
                    _cause(complaints.read())
                    or f"exit status {child.wait()}, and what it printed is no seeds and digests"
                )
                raise CannotRun(f"{process.python} does not run the simulator; install the project for it: {said}")

    def _take(self, process: Process, line: str) -> bool:
        """Store the digest of a line ``seed digest``; return whether the line has that form."""
        words = line.split()
        if len(words) != 2 or not words[0].isdecimal():
            return False
        self.digests[process][int(words[0])] = words[1]
        self._heard(sum(map(len, self.digests.values())))
        return True

    def _started(self, process: Process, path: str, complaints: IO[str]) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": process.hash_seed}
        with interrupts_blocked():
            child = subprocess.Popen(
                [process.python, "-P", "-m", "tests.verification.prove"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
            )
        self._running.append(child)
        assert child.stdin is not None
        try:
            child.stdin.write(self._work)
            child.stdin.close()
        except BrokenPipeError:  # it has ended already; why, its exit tells
            pass
        return child

    def end(self) -> None:
        """End all processes."""
        self._ended = True
        for child in self._running:
            child.kill()
            child.wait()


def _cause(complaints: str) -> str:
    """Return the most informative line of an error output: the line that names the exception, or else the first
    line."""
    lines = complaints.strip().splitlines()
    last = next((line for line in reversed(lines) if RAISED.match(line)), "")
    return last if last and TRACEBACK in lines else "".join(lines[:1])


def _main() -> None:
    work = msgspec.json.decode(sys.stdin.read(), type=_Work)
    for seed in range(work.first_seed, work.first_seed + work.seeds):
        print(seed, simulate(work.wanted.with_seed(seed).draw()).digest, flush=True)


if __name__ == "__main__":
    _main()
