"""A bug on purpose: one module of the runtime is imported with another source, in an interpreter of its own.

The product has no switch for it. The hunt starts ``python -m supervisor.simulation.search.planting`` and writes what to
plant to its standard input; nothing that the ``supervisor`` command runs imports this module's loader, and a module
that has been imported already is refused. What runs there is judged like any other run: the oracle does not know of
the bug.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from pathlib import Path
from time import process_time  # by name: `time` refuses it while a run goes on
from types import CodeType, FrameType, ModuleType
from typing import Any

__all__ = ["NotPlanted", "changed", "changing", "plant", "source_path"]

ENDLESS_S = 20.0
"""CPU seconds after which one run is endless: the longest scenario takes a tenth of that."""


class NotPlanted(Exception):
    """The bug does not fit the source as it is today; the message says why."""


def source_path(module: str) -> Path:
    """The file of a module, found without importing it (its packages are).

    Raises:
        NotPlanted: there is no such module, or it has no source.
    """
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise NotPlanted(f"module: there is no source of {module!r}")
    return Path(spec.origin)


def changed(source: str, find: str, replace: str) -> str:
    """*source* with its only *find* replaced.

    Raises:
        NotPlanted: *find* is not there, or is there more than once, or nothing would change.
    """
    count = source.count(find)
    if not find or count != 1:
        raise NotPlanted(f"find: occurs {count} times in the source, not once: {find!r}")
    if find == replace:
        raise NotPlanted(f"replace: is what it replaces: {find!r}")
    return source.replace(find, replace)


class _Changed(importlib.machinery.SourceFileLoader):
    """Loads a module from a text instead of its file; no byte code of it is read or written."""

    def __init__(self, module: str, path: str, source: str) -> None:
        super().__init__(module, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    """Finds one module, with another source."""

    def __init__(self, module: str, source: str) -> None:
        self._module, self._source = module, source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path)
        if found is None or found.origin is None:
            return found
        loader = _Changed(fullname, found.origin, self._source)
        return importlib.util.spec_from_file_location(
            fullname, found.origin, loader=loader, submodule_search_locations=found.submodule_search_locations
        )


def plant(module: str, source: str) -> None:
    """From now on *module* is imported with that *source*.

    Raises:
        NotPlanted: it has been imported already: what runs may hold on to what it was.
    """
    if module in sys.modules:
        raise NotPlanted(f"module: {module} has been imported already; plant in a fresh interpreter")
    sys.meta_path.insert(0, _Finder(module, source))


def changing(module: str, find: str, replace: str) -> str:
    """The source of *module* with the bug in it.

    Raises:
        NotPlanted: it does not fit.
    """
    return changed(source_path(module).read_text(encoding="utf-8"), find, replace)


# ------------------------------------------------------------------------------------------------- the child process
def _say(**answer: Any) -> None:
    """One line for the hunt. The runtime's own logs go to ``sys.stdout``, which is not that."""
    os.write(_ANSWERS, (json.dumps({**answer, "cpu_s": process_time()}) + "\n").encode())


_ANSWERS = 1


def _runs(order: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """The runs of a hunt in order: each seed in each scenario, then the next seed."""
    runs = [(name, seed) for seed in range(1, order["seeds"] + 1) for name in order["scenarios"]]
    chosen = [tuple(one) for one in order["exactly"]] or runs[: order["seeds"]]
    skipped = {tuple(one) for one in order["skip"]}
    yield from (one for one in chosen if one not in skipped)


def _hunt(order: dict[str, Any]) -> None:
    """Run until something is violated, or the seeds or the CPU time are used up; one line of answer.

    A run of which the simulator itself breaks says nothing: it is told as such, and the hunt goes on. One without an
    end takes this interpreter along; whoever wants the others starts another one behind it.
    """
    running = importlib.import_module("supervisor.simulation.running")
    scenario = importlib.import_module("supervisor.simulation.scenario")
    scenarios = {name: scenario.named(name) for name, _ in _runs(order)}
    number = done = order["done"]
    broken: list[str] = []
    problems: Sequence[str] = ()
    for number, (name, seed) in enumerate(list(_runs(order))[done:], done + 1):
        endless = [*broken, f"{name}, seed {seed}: it computes for more than {ENDLESS_S:g} s"]
        _watch(ENDLESS_S, partial(_say, found=False, runs=number, broken=endless, endless=True))
        try:
            problems = running.simulate(scenarios[name].draw(seed)).problems
        except Exception as error:
            broken.append(f"{name}, seed {seed}: {type(error).__name__}: {error}")
        if problems:
            return _say(found=True, runs=number, scenario=name, seed=seed, problems=problems, broken=broken)
        if process_time() > order["budget_s"]:
            break
    return _say(found=False, runs=number, broken=broken)


def _watch(limit_s: float, tell: Callable[[], None]) -> None:
    """What never ends takes its interpreter with it, after so many CPU seconds from now; *tell* says it first."""

    def endless(_: int, frame: FrameType | None) -> None:
        tell()
        os._exit(0)

    signal.signal(signal.SIGPROF, endless)
    signal.setitimer(signal.ITIMER_PROF, limit_s)


def _shrink(order: dict[str, Any]) -> None:
    """Shrink a failing run until nothing gets smaller or the CPU time is used up; one line of answer."""
    shrinking = importlib.import_module("supervisor.simulation.search.shrink")
    scenario = importlib.import_module("supervisor.simulation.scenario")
    written = importlib.import_module("supervisor.simulation.commands.written")
    [(name, seed)] = _runs(order)
    _watch(order["budget_s"] + ENDLESS_S, lambda: print("a run computes without an end", file=sys.stderr, flush=True))
    shrunk = shrinking.shrink(scenario.named(name), seed, lambda: process_time() < order["budget_s"], lambda runs: None)
    _say(
        invariant=shrunk.invariant,
        faults_before=shrunk.faults_before,
        faults=shrunk.faults,
        runs=shrunk.runs,
        minimal=shrunk.minimal,
        fails_again=shrinking.fails_again(shrunk),
        scenario=written.written(shrunk.scenario, shrunk.problem),
    )


def _main() -> None:
    order = json.loads(sys.stdin.readline())
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  until the process ends
    if order["module"]:
        plant(order["module"], order["source"])
    (_shrink if order["shrink"] else _hunt)(order)


if __name__ == "__main__":
    _main()
