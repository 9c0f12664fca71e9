"""What each run of the soak reaches: which lines, and for how long it computes. Reckoned once, and kept.

A mutant is only tried on runs that come by what it changes: no other one can notice it. The cheapest of each schedule
comes first, then those with the drills, then the cheapest, and between those of one scenario some of the others. What
is kept stands for these sources.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from soak import SIMULATED, Run, play
from specimens import ROOT, path_of
from transplant import forget

__all__ = ["Reach", "chosen", "file_of", "keep", "kept"]

SIMULATION = ROOT / "supervisor" / "simulation"
IMPORTS = "imports"
"""What is reached before any run."""
FIRST = frozenset({"offices", "kernel"})
"""The scenarios with the drills, which tell most in the least time."""
Lines = dict[str, set[int]]


class Reach(NamedTuple):
    """What one run reaches, by module, and what it takes without anybody who notes that."""

    run: Run | None
    cpu_s: float
    lines: Mapping[str, Sequence[int]]


class _Tracer:
    """Notes which lines of these modules are run."""

    def __init__(self) -> None:
        self.lines: Lines = {one: set() for one in SIMULATED}
        self._modules = {str(path_of(one)): one for one in SIMULATED}
        self._watched: dict[CodeType, _Watched | None] = {}

    def called(self, frame: FrameType, what: str, argument: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if code not in self._watched:
            module = self._modules.get(code.co_filename)
            self._watched[code] = None if module is None else _Watched(code, self.lines[module])
        watched = self._watched[code]
        return watched.line(frame, what, argument) if watched is not None and watched.missing else None


class _Watched:
    """A piece of code, and its lines that were not seen yet. There is one for all its frames: one for each would keep
    itself, for ever where nobody collects garbage."""

    def __init__(self, code: CodeType, found: set[int]) -> None:
        self.missing = {line for _, _, line in code.co_lines() if line}
        self._found = found

    def line(self, frame: FrameType, what: str, argument: object) -> Callable[..., Any]:
        self._found.add(frame.f_lineno)
        self.missing.discard(frame.f_lineno)
        return self.line


def measured(run: Run | None) -> Reach:
    """Run it, and note where it comes by; ``None``: the imports alone. It is timed while nobody notes anything: the
    drills take five times as long under a tracer, other runs twice.

    Raises:
        AssertionError: it is not clean while somebody notes: who knows where it would have come by.
    """
    tracer = _Tracer()
    began_s = time.process_time()
    if run is None:
        forget()
    else:
        play(run)
    cpu_s = time.process_time() - began_s
    sys.settrace(tracer.called)
    try:
        for one in SIMULATED if run is None else ():
            importlib.import_module(one)
        problems = play(run) if run is not None else ()
    finally:
        sys.settrace(None)
    if problems:
        raise AssertionError(problems[0])
    return Reach(run, round(cpu_s, 3), {name: sorted(lines) for name, lines in tracer.lines.items() if lines})


@functools.cache
def place() -> Path:
    """Where it is kept for these sources, these scenarios and these drills."""
    digest = blake2b(sys.version.encode(), digest_size=16)
    told = [*SIMULATION.glob("scenarios/*.toml"), *SIMULATION.glob("drills/**/*.py")]
    for path in [*(path_of(one) for one in SIMULATED), *sorted(told)]:
        digest.update(path.read_bytes())
    found = ROOT / "build" / "mutation" / digest.hexdigest()
    found.mkdir(parents=True, exist_ok=True)
    return found


def file_of(run: Run | None) -> Path:
    """Where that of one run is kept."""
    return place() / f"{run or IMPORTS}.json"


def keep(run: Run | None) -> None:
    """Reckon it, and keep it."""
    file_of(run).write_text(json.dumps(measured(run)[1:]))


def kept(run: Run | None) -> Reach:
    """What was reckoned of it."""
    return Reach(run, *json.loads(file_of(run).read_text()))


@functools.cache
def way_of(run: Run) -> str:
    """The schedule of its steps."""
    scenario = importlib.import_module("supervisor.simulation.scenario")
    schedule: str = scenario.named(run.scenario).draw(run.seed).schedule
    return schedule


def chosen(reaches: Sequence[Reach], module: str, lines: frozenset[int], budget_s: float) -> list[Reach]:
    """The runs to try a mutant of these lines on, for so long in all; none of them reaches it: none at all."""
    runs = [one for one in reaches if one.run is not None]
    if not lines & set(reaches[0].lines.get(module, ())):
        runs = [one for one in runs if lines & set(one.lines.get(module, ()))]
    turn: dict[str, int] = {}
    ways: set[str] = set()
    ranked = []
    for one in sorted(runs, key=lambda one: one.cpu_s):
        assert one.run is not None, "the imports are no run"
        turn[one.run.scenario] = turn.get(one.run.scenario, 0) + 1
        way = way_of(one.run)
        late = one.run.scenario not in FIRST and way in ways  # what only trio runs, say, no other run comes by
        ways.add(way)
        ranked.append((late, one.cpu_s * turn[one.run.scenario], one))
    spent_s, picked = 0.0, []
    for _, _, one in sorted(ranked, key=lambda rank: rank[:2]):
        if spent_s + one.cpu_s <= budget_s or not picked:
            picked.append(one)
            spent_s += one.cpu_s
    return picked
