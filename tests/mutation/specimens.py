"""The mutants themselves: Cosmic Ray makes them, a fixed seed draws a sample of them.

No mutant is what the compiler refuses or warns about (``+`` for the ``*`` of a signature, ``is 0`` for ``== 0``), and
what cannot be told from the original by anybody, by these rules and no others (see :func:`evaluated`):

* annotations and docstrings, which nothing here evaluates;
* ``gc=`` of a value: whether the collector looks at it;
* ``kw_only=`` of a value without a field of its own;
* ``==`` for ``is`` (and ``!=`` for ``is not``), or the reverse, where one side is ``None`` or a member of an enum:
  each of those is equal to itself and to nothing else.

What only a reader or a type checker could tell apart is no mutant for the simulator either (``audible=True``):

* ``frozen=`` and ``kw_only=`` of any value, and the ``*`` and ``/`` of a signature: mypy holds every caller to them;
* the words of an error that is raised, of an assertion, and of a line of the log.
"""

from __future__ import annotations

import ast
import difflib
import functools
import itertools
import json
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from cosmic_ray.ast import Visitor, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

__all__ = [
    "ROOT",
    "Mutant",
    "change",
    "compiles",
    "draw",
    "evaluated",
    "lines_of",
    "make",
    "path_of",
    "specimens",
]

ROOT = Path(__file__).parent.parent.parent

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
    """Every (module, operator, occurrence) there is, in a fixed order; counted once for each source, and kept."""
    source = path_of(module).read_text()
    kept = ROOT / "build" / "mutation" / f"{module}-{blake2b(source.encode(), digest_size=16).hexdigest()}.json"
    if not kept.exists():
        counter = _Counter()
        counter.walk(get_ast(source))
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(counter.counts))
    counts: dict[str, int] = json.loads(kept.read_text())
    return [(module, name, occurrence) for name, count in counts.items() for occurrence in range(count)]


def make(specimen: tuple[str, str, int], *, audible: bool = False) -> Mutant | None:
    """The mutant, if it can be told from the original."""
    module, operator, occurrence = specimen
    original = path_of(module).read_text()
    try:
        changed = mutate_code(original, get_operator(operator)(), occurrence)
    except AttributeError:  # the tool cannot replace an exception with a dotted name
        return None
    if changed is None or not compiles(changed) or evaluated(changed, audible) == evaluated(original, audible):
        return None
    return Mutant(module, operator, occurrence, changed)


def draw(modules: Sequence[str], sample: int, seed: int, jobs: int, *, audible: bool = False) -> list[Mutant]:
    """A seeded sample of the mutants that change something: those of the smallest hashes, so that what changes in one
    module draws no others in the rest."""
    making = functools.partial(make, audible=audible)
    with ProcessPoolExecutor(jobs) as pool:
        population = [one for found in pool.map(specimens, modules) for one in found]
        population.sort(key=lambda one: blake2b(f"{seed} {one}".encode(), digest_size=16).digest())
        mutants: list[Mutant] = []
        while population and len(mutants) < sample:
            batch, population = population[: sample - len(mutants)], population[sample - len(mutants) :]
            mutants += filter(None, pool.map(making, batch, chunksize=4))
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


class _Audible(_Evaluated):
    """Leaves of it what a running program could tell apart."""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.keywords = [one for one in node.keywords if one.arg not in ("frozen", "kw_only")]
        return super().visit_ClassDef(node)

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        node.args = [*node.posonlyargs, *node.args, *node.kwonlyargs]
        node.defaults = [*node.defaults, *(one for one in node.kw_defaults if one is not None)]
        node.posonlyargs, node.kwonlyargs, node.kw_defaults = [], [], []
        return self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if isinstance(node.exc, ast.Call):
            node.exc = node.exc.func
        return self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        node.msg = None
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = node.func
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "_log":
            node.args, node.keywords = [], []
        return self.generic_visit(node)


def _is_itself_only(node: ast.expr) -> bool:
    """``None``, or a member of an enum as these modules write it: ``Exit.SUCCESS``, or ``job.Job.QUEUED``."""
    if isinstance(node, ast.Attribute):
        value = node.value
        owner = value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""
        return owner[:1].isupper() and node.attr.isupper()
    return isinstance(node, ast.Constant) and node.value is None


@functools.lru_cache(maxsize=64)
def evaluated(source: str, audible: bool = False) -> str:
    """What of a module somebody could tell apart, as text that can be compared; *audible*: by running it."""
    visitor = _Audible() if audible else _Evaluated()
    return ast.dump(visitor.visit(ast.parse(source)))


# ------------------------------------------------------------------------------------------------------ its change
def change(mutant: Mutant) -> str:
    """The lines that the mutant changes."""
    before = path_of(mutant.module).read_text().splitlines()
    lines = difflib.unified_diff(before, mutant.source.splitlines(), lineterm="", n=0)
    return "\n".join(f"    {line}" for line in lines if line[:2] not in ("--", "++"))


def lines_of(mutant: Mutant) -> frozenset[int]:
    """The lines of the original that the mutant is about: of each statement that it changes, those of its own."""
    original = path_of(mutant.module).read_text()
    blocks = difflib.SequenceMatcher(None, original.splitlines(), mutant.source.splitlines(), autojunk=False)
    changed = {
        line
        for tag, low, high, _, _ in blocks.get_opcodes()
        if tag != "equal"
        for line in range(low + 1, max(high, low + 1) + 1)
    }
    return frozenset(line for one in changed for line in _statement(original, one)) | changed


@functools.lru_cache(maxsize=4096)
def _statement(source: str, line: int) -> tuple[int, ...]:
    """The lines of the innermost statement there; of one that holds others, those before the first of them."""
    found: tuple[int, ...] = ()
    for node in ast.walk(_parsed(source)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
            body = getattr(node, "body", None)
            last = max(node.lineno, body[0].lineno - 1) if isinstance(body, list) and body else node.end_lineno
            if line <= (last or 0) and (not found or node.lineno >= found[0]):
                found = tuple(range(node.lineno, (last or 0) + 1))
    return found


@functools.lru_cache(maxsize=64)
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)
