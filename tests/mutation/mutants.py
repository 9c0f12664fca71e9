"""Mutants of the pure modules, and which of them the suite kills. Run it with ``make mutants``.

Cosmic Ray makes the mutants, a fixed seed draws a sample of them, and each runs in a process of its own against the
tests of its module, until the first failure. A mutant that changes nothing that is ever evaluated (an annotation) is
none. Those that survive are listed with their change; fewer than ``KILLED_MIN`` killed is exit status 1.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib.abc
import importlib.machinery
import multiprocessing
import os
import random
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from cosmic_ray.ast import Visitor, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).parent.parent.parent
SEED = 20261121
SAMPLE = 250
KILLED_MIN = 0.90
TIMEOUT_S = 120.0
"""A mutant that runs longer than this has made something endless: killed."""

TESTS: dict[str, tuple[str, ...]] = {
    "actors.machine": ("test_machine.py", "test_lifecycles.py", "test_views.py"),
    "actors.views": ("test_views.py", "test_machine.py", "test_reference.py"),
    "actors.backoff": ("kernel",),
    "actors.restart": ("kernel",),
    "actors.waits": ("kernel",),
    "supervisor.abort": ("test_abort_plan.py", "test_abort_exhaustive.py", "test_aborts.py"),
    "supervisor.causality": ("test_causality.py", "test_render.py", "test_why_everywhere.py"),
    "supervisor.policy": ("test_policy.py", "test_sessions.py"),
    "supervisor.projection": ("test_visual_states.py",),
    "supervisor.validate": ("test_validate.py", "test_jsonl.py"),
    "supervisor.work_invariants": ("test_validate.py",),
    "supervisor.lifecycles.agent": ("test_agent_cells.py", "test_lifecycles.py"),
    "supervisor.lifecycles.job": ("test_lifecycles.py", "test_validate.py"),
    "supervisor.lifecycles.run": ("test_lifecycles.py", "test_validate.py"),
    "supervisor.lifecycles.session": ("test_session_cells.py", "test_lifecycles.py", "test_sessions.py"),
    "supervisor.lifecycles.task": ("test_lifecycles.py", "test_validate.py"),
    "supervisor.lifecycles.turn": ("test_turn_cells.py", "test_lifecycles.py"),
    "supervisor.lifecycles.worker": ("test_lifecycles.py", "test_validate.py"),
    "supervisor.lifecycles.workstream": ("test_lifecycles.py", "test_validate.py"),
}
"""The pure modules, and the tests that are about each."""

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
    return ROOT / (module.replace(".", "/") + ".py")


# ---------------------------------------------------------------------------------------------------- the mutants
class _Counter(Visitor):
    """Counts the places that an operator can change."""

    def __init__(self, operator: object) -> None:
        self.count = 0
        self._operator = operator

    def visit(self, node: object) -> object:
        self.count += sum(1 for _ in self._operator.mutation_positions(node))  # type: ignore[attr-defined]
        return node


def specimens(module: str) -> Iterator[tuple[str, str, int]]:
    """Every (module, operator, occurrence) there is, in a fixed order."""
    tree = get_ast(path_of(module).read_text())
    for name in sorted(operator_names()):
        if name in SKIPPED_OPERATORS or name.startswith("core/NoOp"):
            continue
        counter = _Counter(get_operator(name)())
        counter.walk(tree)
        for occurrence in range(counter.count):
            yield module, name, occurrence


def draw(modules: Sequence[str], sample: int, seed: int) -> list[Mutant]:
    """A seeded sample of the mutants that change something."""
    population = [one for module in modules for one in specimens(module)]
    random.Random(seed).shuffle(population)
    mutants: list[Mutant] = []
    for module, operator, occurrence in population:
        if len(mutants) == sample:
            break
        original = path_of(module).read_text()
        changed = mutate_code(original, get_operator(operator)(), occurrence)
        if changed is not None and evaluated(changed) != evaluated(original):
            mutants.append(Mutant(module, operator, occurrence, changed))
    return mutants


def evaluated(source: str) -> str:
    """What of a module is ever evaluated: without annotations and docstrings."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [  # type: ignore[attr-defined]
                one for one in body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
            ]
    return ast.dump(tree)


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


def suffer(mutant: Mutant | None, module: str) -> None:
    """In a process of its own: run the tests; exit status 0 means that none of them noticed."""
    import pytest

    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    if mutant is not None:
        sys.meta_path.insert(0, _Mutated(mutant))
    paths = [str(ROOT / "tests" / name) for name in TESTS[module] if (ROOT / "tests" / name).exists()]
    os.environ["HYPOTHESIS_DATABASE_FILE"] = os.devnull
    status = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT), *paths])
    os._exit(int(status))


def killed(mutant: Mutant | None, module: str) -> bool:
    """True if the tests of the module notice."""
    process = multiprocessing.get_context("fork").Process(target=suffer, args=(mutant, module))
    process.start()
    process.join(TIMEOUT_S)
    if process.is_alive():
        process.kill()
        process.join()
        return True
    return process.exitcode != 0


def change(mutant: Mutant) -> str:
    """The lines that the mutant changes."""
    before = path_of(mutant.module).read_text().splitlines()
    lines = difflib.unified_diff(before, mutant.source.splitlines(), lineterm="", n=0)
    return "\n".join(f"    {line}" for line in lines if line[:2] not in ("--", "++"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--sample", type=int, default=SAMPLE, help="how many mutants")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--module", action="append", choices=sorted(TESTS), help="only of this module; may be repeated")
    options = parser.parse_args()
    modules = options.module or sorted(TESTS)
    healthy = [module for module in modules if killed(None, module)]
    if healthy:
        print(f"the tests of {', '.join(healthy)} fail without any mutant: mend them first")
        return 1
    mutants = draw(modules, options.sample, options.seed)
    with ThreadPoolExecutor(options.jobs) as pool:
        verdicts = list(pool.map(lambda mutant: killed(mutant, mutant.module), mutants))
    survivors = [mutant for mutant, dead in zip(mutants, verdicts, strict=True) if not dead]
    for one in survivors:
        print(f"survived: {one.name}\n{change(one)}")
    share = 1 - len(survivors) / len(mutants)
    print(f"{len(mutants)} mutants of {len(modules)} modules (seed {options.seed}): {share:.1%} killed")
    return 0 if share >= KILLED_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
