"""Mutants of the pure modules, and which of them the suite kills. Run it with ``make mutants``.

Cosmic Ray makes the mutants, a fixed seed draws a sample of them, and each runs in a process of its own against the
tests of its module (``targets.py``), until the first failure. Those that survive are listed with their change; fewer
than ``KILLED_MIN`` killed is exit status 1.

With ``--by simulation`` (``make mutants-simulation``) there are no tests: mutants of the runtime and of the pure
modules below it run through a fixed soak in virtual time (``soak.py``), and only the simulator's oracle may kill them.
A mutant of a function that the soak never enters is listed apart, and counts as one that survived.

No mutant is what the compiler refuses or warns about (``+`` for the ``*`` of a signature, ``is 0`` for ``== 0``), and
what cannot be told from the original by anybody, by these rules and no others (see :func:`evaluated`):

* annotations and docstrings, which nothing here evaluates;
* ``gc=`` of a value: whether the collector looks at it;
* ``kw_only=`` of a value without a field of its own;
* ``==`` for ``is`` (and ``!=`` for ``is not``), or the reverse, where one side is ``None`` or a member of an enum:
  each of those is equal to itself and to nothing else.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import gc
import importlib
import importlib.abc
import importlib.machinery
import itertools
import json
import os
import random
import resource
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from cosmic_ray.ast import Visitor, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from soak import SIMULATED, judged, reached
from targets import ALWAYS, TESTS

ROOT = Path(__file__).parent.parent.parent
SEED = 20261121
SAMPLE = 250
SAMPLE_SIMULATED = 200
KILLED_MIN = 0.90
CPU_S = 5.0
"""A mutant that computes for this much longer than thrice what the original takes has made something endless."""
WALL_S = 120
"""And one that waits for this long waits for ever."""
MEMORY_MAX = 2 * 1024**3

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

SKIPPED_OPERATORS = ("core/RemoveDecorator", "core/VariableInserter", "core/VariableReplacer")
"""A decorator is seldom behaviour here; the other two want to be told which variables."""


class Mutant(NamedTuple):
    """One changed module."""

    module: str
    operator: str
    occurrence: int
    source: str

    @property
    def name(self) -> str:
        return f"{self.module} {self.operator.removeprefix('core/')} #{self.occurrence}"


def path_of(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


# ---------------------------------------------------------------------------------------------------- the mutants
class _Counter(Visitor):
    """Counts the places that each operator can change."""

    def __init__(self) -> None:
        names = [name for name in sorted(operator_names()) if name not in SKIPPED_OPERATORS and "NoOp" not in name]
        self.counts = dict.fromkeys(names, 0)
        self._operators = {name: get_operator(name)() for name in names}

    def visit(self, node: object) -> object:
        for name, operator in self._operators.items():
            self.counts[name] += sum(1 for _ in operator.mutation_positions(node))
        return node


def specimens(module: str) -> list[tuple[str, str, int]]:
    """Every (module, operator, occurrence) there is, in a fixed order."""
    counter = _Counter()
    counter.walk(get_ast(path_of(module).read_text()))
    return [(module, name, occurrence) for name, count in counter.counts.items() for occurrence in range(count)]


def make(specimen: tuple[str, str, int]) -> Mutant | None:
    """The mutant, if it can be told from the original."""
    module, operator, occurrence = specimen
    original = path_of(module).read_text()
    try:
        changed = mutate_code(original, get_operator(operator)(), occurrence)
    except AttributeError:  # the tool cannot replace an exception with a dotted name
        return None
    if changed is None or not compiles(changed) or evaluated(changed) == evaluated(original):
        return None
    return Mutant(module, operator, occurrence, changed)


def draw(modules: Sequence[str], sample: int, seed: int, jobs: int) -> list[Mutant]:
    """A seeded sample of the mutants that change something."""
    with ProcessPoolExecutor(jobs) as pool:
        population = [one for found in pool.map(specimens, modules) for one in found]
        random.Random(seed).shuffle(population)
        mutants: list[Mutant] = []
        while population and len(mutants) < sample:
            batch, population = population[: sample - len(mutants)], population[sample - len(mutants) :]
            mutants += filter(None, pool.map(make, batch, chunksize=4))
    return mutants


def compiles(source: str) -> bool:
    """Whether the compiler takes it without a word: what it refuses, or warns about, needs no test."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            compile(source, "mutant", "exec")
        except (SyntaxError, SyntaxWarning):
            return False
    return True


class _Evaluated(ast.NodeTransformer):
    """Leaves of a module what somebody could tell apart."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [  # type: ignore[attr-defined]
                one for one in body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
            ]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        bare = not any(isinstance(one, ast.AnnAssign) and "ClassVar" not in ast.dump(one) for one in node.body)
        node.keywords = [one for one in node.keywords if one.arg != "gc" and not (one.arg == "kw_only" and bare)]
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        sides = [node.left, *node.comparators]
        for number, (left, right) in enumerate(itertools.pairwise(sides)):
            if _is_itself_only(left) or _is_itself_only(right):
                same = {ast.Is: ast.Eq, ast.IsNot: ast.NotEq}.get(type(node.ops[number]))
                node.ops[number] = same() if same else node.ops[number]
        return self.generic_visit(node)


def _is_itself_only(node: ast.expr) -> bool:
    """``None``, or a member of an enum as these modules write it: ``Exit.SUCCESS``."""
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id[0].isupper() and node.attr.isupper()
    return isinstance(node, ast.Constant) and node.value is None


@functools.lru_cache(maxsize=64)
def evaluated(source: str) -> str:
    """What of a module somebody could tell apart, as text that can be compared."""
    return ast.dump(_Evaluated().visit(ast.parse(source)))


# ------------------------------------------------------------------------------------------------------- the trial
class _Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Lets one module be imported with another source."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != self._mutant.module:
            return None
        return importlib.machinery.ModuleSpec(name, self, origin=str(path_of(name)))

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = str(path_of(self._mutant.module))
        exec(compile(self._mutant.source, module.__file__, "exec"), module.__dict__)


class Trial(NamedTuple):
    """A module, or a mutant of it, that the tests of the module are run against, or the simulator's soak."""

    module: str
    mutant: Mutant | None
    cpu_s: float
    simulated: bool = False


def suffer(trial: Trial) -> int:
    """In a process of its own: run the tests, or the soak; 0 means that nothing was noticed."""
    confine(trial)
    if trial.mutant is not None:
        sys.meta_path.insert(0, _Mutated(trial.mutant))
    return int(any(problems for _, _, problems in judged())) if trial.simulated else tested(trial)


def confine(trial: Trial) -> None:
    """Say nothing, and use no more than the trial may."""
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    resource.setrlimit(resource.RLIMIT_CPU, (int(trial.cpu_s), int(trial.cpu_s) + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    signal.alarm(WALL_S if not trial.simulated else 10 * WALL_S)


def tested(trial: Trial) -> int:
    """What pytest says of the tests of that module."""
    import pytest
    from hypothesis import Phase, settings

    settings.register_profile(
        "mutants", derandomize=True, database=None, deadline=None, phases=[Phase.explicit, Phase.generate]
    )
    settings.load_profile("mutants")
    own = [one.format(module=trial.module) for one in ALWAYS]
    asked = [name if name[0] == "-" else f"{ROOT}/tests/{name}" for name in (*TESTS[trial.module], *own)]
    ignored = "ignore::pytest.PytestAssertRewriteWarning"
    return int(pytest.main(["-x", "-q", "-W", ignored, "-p", "no:cacheprovider", "--rootdir", str(ROOT), *asked]))


def run(trials: Sequence[Trial], jobs: int) -> Iterator[tuple[Trial, bool, float]]:
    """Each trial as it ends, at most *jobs* at a time: did the tests notice, and how long did it compute (seconds)."""
    running: dict[int, Trial] = {}
    for trial in trials:
        if len(running) == jobs:
            yield _reap(running)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = suffer(trial)
            finally:
                os._exit(status)
        running[pid] = trial
    while running:
        yield _reap(running)


def _reap(running: dict[int, Trial]) -> tuple[Trial, bool, float]:
    pid, status, used = os.wait4(-1, 0)
    return running.pop(pid), status != 0, used.ru_utime + used.ru_stime


def change(mutant: Mutant) -> str:
    """The lines that the mutant changes."""
    before = path_of(mutant.module).read_text().splitlines()
    lines = difflib.unified_diff(before, mutant.source.splitlines(), lineterm="", n=0)
    return "\n".join(f"    {line}" for line in lines if line[:2] not in ("--", "++"))


def entered() -> dict[str, set[int]]:
    """The functions that the soak enters, by module and first line: found out in a process of its own."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            found = {name: sorted(lines) for name, lines in reached(ROOT).items()}
            with os.fdopen(write, "w") as out:
                json.dump(found, out)
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read) as told:
        found = json.load(told)
    os.waitpid(pid, 0)
    return {module: set(found.get(str(path_of(module).relative_to(ROOT)), ())) for module in SIMULATED}


def is_entered(mutant: Mutant, functions: set[int]) -> bool:
    """Whether the soak comes to what the mutant changes; outside of functions everything is executed."""
    before, after = path_of(mutant.module).read_text().splitlines(), mutant.source.splitlines()
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    changed = next(low + 1 for tag, low, *_ in blocks if tag != "equal")
    around = [
        min([node.lineno, *(one.lineno for one in node.decorator_list)])
        for node in ast.walk(ast.parse("\n".join(before)))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno < changed <= (node.end_lineno or 0)
    ]
    return not around or max(around) in functions


def warm() -> None:
    """Import what is never mutated, once, before the first fork."""
    for name in WARMED:
        importlib.import_module(name)
    gc.freeze()


def originals(modules: Sequence[str], jobs: int, *, simulated: bool) -> tuple[dict[str, float], list[str]]:
    """How long each module's tests compute without a mutant, and for which of them they fail; one soak is for all."""
    trials = [Trial(one, None, WALL_S, simulated) for one in (modules[:1] if simulated else modules)]
    spent_s: dict[str, float] = {}
    broken: list[str] = []
    for trial, noticed, cpu_s in run(trials, jobs):
        spent_s[trial.module] = cpu_s
        broken += [trial.module] * noticed
    return {one: spent_s.get(one, max(spent_s.values())) for one in modules}, broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--by", choices=("tests", "simulation"), default="tests", help="what may kill a mutant")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--sample", type=int, help=f"how many mutants: {SAMPLE}, or {SAMPLE_SIMULATED} by simulation")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--module", action="append", choices=sorted({*TESTS, *SIMULATED}), help="only of this module")
    options = parser.parse_args()
    simulated = options.by == "simulation"
    known = sorted(SIMULATED if simulated else TESTS)
    modules = options.module or known
    if strangers := [one for one in modules if one not in known]:
        parser.error(f"--module: {', '.join(strangers)} cannot be killed by {options.by}")
    started = time.monotonic()
    warm()
    original_s, broken = originals(modules, options.jobs, simulated=simulated)
    if broken:
        what = "the soak fails" if simulated else f"the tests of {', '.join(broken)} fail"
        print(f"{what} without any mutant: mend that first")
        return 1
    functions = entered() if simulated else {}
    if idle := [one for one in modules if simulated and not functions[one]]:
        print(f"the soak enters no function of {', '.join(idle)}: take them out of soak.py, or reach them")
        return 1
    sample = options.sample or (SAMPLE_SIMULATED if simulated else SAMPLE)
    mutants = draw(modules, sample, options.seed, options.jobs)
    survivors = 0
    unreached = 0
    for trial, noticed, _ in run(
        [Trial(one.module, one, CPU_S + 3 * original_s[one.module], simulated) for one in mutants], options.jobs
    ):
        if noticed or trial.mutant is None:
            continue
        survivors += 1
        reachable = not simulated or is_entered(trial.mutant, functions[trial.module])
        unreached += not reachable
        what = "survived" if reachable else "never entered"
        print(f"{what}: {trial.mutant.name}\n{change(trial.mutant)}", flush=True)
    share = 1 - survivors / len(mutants)
    print(
        f"{len(mutants)} mutants of {len(modules)} modules (seed {options.seed}): {share:.1%} killed by {options.by}, "
        f"in {time.monotonic() - started:.0f} s"
    )
    if simulated:
        tried = max(1, len(mutants) - unreached)
        print(f"of the {tried} in functions that the soak enters: {1 - (survivors - unreached) / tried:.1%} killed")
    return 0 if share >= KILLED_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
