"""The changes that make a mutant, and the names by which a mutant is found again.

A unit is a function, a method, or another statement of a module or a class. It is named by its qualified name and by a
digest of its syntax tree without docstrings, so it keeps its name when its module moves or its layout changes. A change
of a unit is named by its kind, and by its number among the changes of that kind in the unit.

No change is made to annotations, docstrings, prose (a text with a space), log lines, ``raise`` texts and ``__all__``.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "BUILD",
    "FUNCTIONS",
    "ROOT",
    "Change",
    "Key",
    "Unit",
    "changes",
    "find",
    "homes",
    "is_prose",
    "path_of",
    "product",
    "units",
]

ROOT = Path(__file__).parents[2]
PACKAGES = ("actors", "supervisor")
BUILD = ROOT / "build" / "mutation"
LEFT_OUT = ("supervisor.simulation", "supervisor.mock_model")

OPPOSITE: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
NEIGHBOUR: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
SKIPPED = ("annotation", "returns", "decorator_list", "type_params")
TYPING = ("Annotated", "Literal", "NewType", "ParamSpec", "TypeVar", "TypeVarTuple", "cast")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Key(NamedTuple):
    """A mutant, as a record names it."""

    module: str
    unit: str
    digest: str
    kind: str
    ordinal: int


class Unit(NamedTuple):
    """A function, or another statement of a module or a class."""

    name: str
    digest: str
    node: ast.stmt


class Change(NamedTuple):
    """A change of a unit that can be made in place. *path*: the nodes around it, the innermost last."""

    kind: str
    ordinal: int
    line: int
    path: tuple[ast.AST, ...]
    make: Callable[[], None]


# ------------------------------------------------------------------------------------------------- modules and units
def product(package: str = "", root: Path = ROOT) -> list[str]:
    """The modules that mutants are made of; *package*: those of a package, such as ``policies`` or ``actors``."""
    found = []
    for path in sorted(path for top in PACKAGES for path in (root / top).rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        wanted = not package or f"{module}.".startswith((f"{package}.", f"supervisor.{package}."))
        if wanted and not f"{module}.".startswith(tuple(f"{one}." for one in LEFT_OUT)):
            found.append(module)
    return found


def path_of(module: str, root: Path = ROOT) -> Path:
    path = root / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def units(tree: ast.Module) -> Iterator[Unit]:
    """The units of a module, in the order of its text. A nested function belongs to the function around it."""
    yield from _units(tree.body, "")


def _units(body: list[ast.stmt], prefix: str) -> Iterator[Unit]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _units(node.body, f"{prefix}{node.name}.")
        elif not isinstance(node, (ast.Import, ast.ImportFrom, ast.Pass)) and not is_prose(node):
            name = _name(node)
            if name not in ("__all__", "TYPE_CHECKING"):
                yield Unit(f"{prefix}{name}", _digest(node), node)


def _name(node: ast.stmt) -> str:
    if isinstance(node, FUNCTIONS):
        return node.name
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name):
        return node.test.id
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    names = [one.id for one in targets if isinstance(one, ast.Name)]
    return names[0] if names else "<statement>"


def _digest(node: ast.stmt) -> str:
    bare = ast.parse(ast.unparse(node))
    for one in ast.walk(bare):
        body = getattr(one, "body", None)
        if isinstance(body, list) and body and is_prose(body[0]):
            del body[0]
    return blake2b(ast.dump(bare).encode(), digest_size=8).hexdigest()


def is_prose(node: ast.AST) -> bool:
    """Whether this is a docstring, or another text that nothing evaluates."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def homes(keys: Iterable[Key]) -> dict[Key, str]:
    """The modules in which these mutants are now; one whose unit was changed or deleted is left out."""
    modules: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module in product():
        for unit in units(ast.parse(path_of(module).read_text())):
            modules[unit.name, unit.digest].append(module)
    found = {}
    for key in keys:
        known = modules[key.unit, key.digest]
        if known:
            found[key] = key.module if key.module in known else known[0]
    return found


def find(tree: ast.Module, key: Key) -> Change:
    """The change that makes the mutant, in this tree of its module."""
    unit = next(one for one in units(tree) if (one.name, one.digest) == (key.unit, key.digest))
    return next(one for one in changes(unit) if (one.kind, one.ordinal) == (key.kind, key.ordinal))


# ----------------------------------------------------------------------------------------------------------- changes
def changes(unit: Unit) -> list[Change]:
    """Every change that can be made to the unit, in a fixed order."""
    counted: Counter[str] = Counter()
    found = []
    for kind, line, path, make in _walk(unit.node, ()):
        found.append(Change(kind, counted[kind], line, path, make))
        counted[kind] += 1
    return found


_Found = tuple[str, int, tuple[ast.AST, ...], Callable[[], None]]


def _walk(node: ast.AST, path: tuple[ast.AST, ...]) -> Iterator[_Found]:
    here = (*path, node)
    line = getattr(node, "lineno", 0)
    for kind, make in _inside(node):
        yield kind, line, here, make
    for field, value in ast.iter_fields(node):
        if field in SKIPPED or isinstance(node, ast.JoinedStr) or _is_typing(node):
            continue
        for index, one in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(one, ast.AST) or is_prose(one) or _is_log_line(one):
                continue
            if isinstance(node, ast.Raise) and isinstance(one, ast.Call):
                one = one.func
            for kind, new in _instead(one):
                make = _item(value, index, new) if isinstance(value, list) else _field(node, field, new)
                yield kind, getattr(one, "lineno", line), (*here, one), make
            yield from _walk(one, here)


def _inside(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    """The changes of a part of the node."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            yield "compare", _item(node.ops, index, OPPOSITE[type(operator)]())
            if type(operator) in NEIGHBOUR:
                yield "boundary", _item(node.ops, index, NEIGHBOUR[type(operator)]())
    elif isinstance(node, ast.BoolOp):
        yield "logic", _field(node, "op", OPPOSITE[type(node.op)]())
    elif isinstance(node, (ast.BinOp, ast.AugAssign)):
        if type(node.op) in OPPOSITE:
            yield "arithmetic", _field(node, "op", OPPOSITE[type(node.op)]())
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
        if not isinstance(node.test, (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Constant)):
            yield "negate", _field(node, "test", _no(node.test))
    elif isinstance(node, ast.comprehension):
        for index, test in enumerate(node.ifs):
            if not isinstance(test, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
                yield "negate", _item(node.ifs, index, _no(test))
    elif isinstance(node, ast.Return):
        if node.value is not None and not isinstance(node.value, ast.Constant):
            yield "return", _field(node, "value", ast.Constant(None))
    elif isinstance(node, ast.ExceptHandler) and node.type is not None:
        yield "except", _field(node, "type", ast.Tuple([], ast.Load()))


def _instead(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What a node is replaced by."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "negate", node.operand
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield "flag", ast.Constant(not node.value)
        elif isinstance(node.value, (int, float)):
            yield "number", ast.Constant(node.value + 1)
        elif isinstance(node.value, str) and " " not in node.value:
            yield "text", ast.Constant("" if node.value else "changed")
    elif isinstance(node, (ast.Raise, ast.Delete, ast.AugAssign)) or _is_effect(node):
        yield "drop", ast.Pass()
    elif isinstance(node, ast.Break):
        yield "leave", ast.Continue()
    elif isinstance(node, ast.Continue):
        yield "leave", ast.Break()


def _is_effect(node: ast.AST) -> bool:
    """Whether this is a call for its effect, or the assignment of an attribute or an item."""
    if isinstance(node, ast.Assign):
        return all(isinstance(one, (ast.Attribute, ast.Subscript)) for one in node.targets)
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value.value if isinstance(value, ast.Await) else value, ast.Call)


def _is_typing(node: ast.AST) -> bool:
    """Whether only a type checker reads what is in it."""
    named = node.func if isinstance(node, ast.Call) else node.value if isinstance(node, ast.Subscript) else None
    return isinstance(named, ast.Name) and named.id in TYPING


def _is_log_line(node: ast.AST) -> bool:
    called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    return isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "_log"


def _no(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def _field(node: ast.AST, field: str, new: ast.AST) -> Callable[[], None]:
    return lambda: setattr(node, field, new)


def _item(items: list[ast.AST], index: int, new: ast.AST) -> Callable[[], None]:
    return lambda: items.__setitem__(index, new)
