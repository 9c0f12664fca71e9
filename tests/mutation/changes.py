"""Changes that make a mutant, and the names that identify a mutant in later versions of the code.

A unit is a function, a method, or another statement of a module or a class. Its qualified name and a digest of its code
without comments and docstrings identify it, also after its module has moved. The kind of a change, and its number among
the changes of that kind in the unit, identify the change.

No change is made to annotations, docstrings, texts with a space, log lines, the texts of errors, ``__all__``.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "mutation"
PACKAGES = ("actors", "supervisor")
LEFT_OUT = ("supervisor.simulation.", "supervisor.mock_model.")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SKIPPED = ("annotation", "returns", "decorator_list", "type_params")
TYPING = ("Annotated", "Literal", "NewType", "ParamSpec", "TypeVar", "TypeVarTuple", "cast")

_PAIRS: tuple[tuple[type[ast.AST], type[ast.AST]], ...] = (
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.Lt, ast.GtE),
    (ast.Gt, ast.LtE),
    (ast.And, ast.Or),
    (ast.Add, ast.Sub),
    (ast.Mult, ast.FloorDiv),
    (ast.BitOr, ast.BitAnd),
)
_ONE_WAY: dict[type[ast.AST], type[ast.AST]] = {ast.Div: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult}
OPPOSITE = {**_ONE_WAY, **dict(_PAIRS), **{after: before for before, after in _PAIRS}}
NEIGHBOUR = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}


class Key(NamedTuple):
    """Identity of a mutant in a record: module, unit, digest of the unit's code, kind of change, and number."""

    module: str
    unit: str
    digest: str
    kind: str
    ordinal: int

    def __str__(self) -> str:
        return f"{self.module}:{self.unit} {self.kind} {self.ordinal}"


class Unit(NamedTuple):
    """Function, method, or other statement of a module or a class, which mutants are made of."""

    name: str
    digest: str
    node: ast.stmt


class Change(NamedTuple):
    """Change of a unit that can be made in place, in the syntax tree. *path*: the nodes around the change, the
    innermost last."""

    kind: str
    ordinal: int
    line: int
    path: tuple[ast.AST, ...]
    make: Callable[[], None]


# ------------------------------------------------------------------------------------------------- modules and units
def product(package: str = "") -> list[str]:
    """Return the modules of which mutants are made; with *package* only those of a package such as ``policies`` or
    ``actors``."""
    paths = sorted(path for top in PACKAGES for path in (ROOT / top).rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    names = [one for one in names if not f"{one}.".startswith(LEFT_OUT)]
    return [one for one in names if not package or f"{one}.".startswith((f"{package}.", f"supervisor.{package}."))]


def path_of(module: str, root: Path = ROOT) -> Path:
    path = root / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def units(body: list[ast.stmt], prefix: str = "") -> Iterator[Unit]:
    """Yield the units of a module, in the order of its text. A nested function belongs to the unit of the function
    around it."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from units(node.body, f"{prefix}{node.name}.")
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
            body[0] = ast.Pass()
    return blake2b(ast.unparse(bare).encode(), digest_size=8).hexdigest()


def is_prose(node: ast.AST) -> bool:
    """Return whether *node* is a docstring, or another constant that stands alone as a statement."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def locate(keys: Iterable[Key]) -> tuple[dict[Key, str], set[str]]:
    """Return the present module of each mutant whose code is unchanged, and the names of all units."""
    modules: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module in product():
        for unit in units(ast.parse(path_of(module).read_text()).body):
            modules[unit.name, unit.digest].append(module)
    known = {key: modules.get((key.unit, key.digest), []) for key in keys}
    found = {key: key.module if key.module in names else names[0] for key, names in known.items() if names}
    return found, {name for name, _ in modules}


def find(tree: ast.Module, key: Key) -> Change:
    """Return the change that makes the mutant *key* in *tree*, the syntax tree of the mutant's module."""
    unit = next(one for one in units(tree.body) if (one.name, one.digest) == (key.unit, key.digest))
    return next(one for one in changes(unit) if (one.kind, one.ordinal) == (key.kind, key.ordinal))


# ----------------------------------------------------------------------------------------------------------- changes
def changes(unit: Unit) -> list[Change]:
    """Return every change that can be made to the unit, in a fixed order."""
    counted: Counter[str] = Counter()
    found = []
    for kind, path, make in _walk(unit.node, ()):
        line = next(one.lineno for one in reversed(path) if hasattr(one, "lineno"))
        found.append(Change(kind, counted[kind], line, path, make))
        counted[kind] += 1
    return found


def _walk(node: ast.AST, path: tuple[ast.AST, ...]) -> Iterator[tuple[str, tuple[ast.AST, ...], Callable[[], None]]]:
    here = (*path, node)
    for kind, make in _inside(node):
        yield kind, here, make
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
                yield kind, (*here, one), make
            yield from _walk(one, here)


def _inside(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield kind and function of each change inside of *node*, such as another operator."""
    match node:
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                yield "compare", _item(node.ops, index, OPPOSITE[type(operator)]())
                if type(operator) in NEIGHBOUR:
                    yield "boundary", _item(node.ops, index, NEIGHBOUR[type(operator)]())
        case ast.BoolOp():
            yield "logic", _field(node, "op", OPPOSITE[type(node.op)]())
        case ast.BinOp() | ast.AugAssign() if type(node.op) in OPPOSITE:
            yield "arithmetic", _field(node, "op", OPPOSITE[type(node.op)]())
        case ast.If() | ast.While() | ast.IfExp():
            if not isinstance(node.test, (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Constant)):
                yield "negate", _field(node, "test", ast.UnaryOp(ast.Not(), node.test))
        case ast.comprehension():
            for index, test in enumerate(node.ifs):
                if not isinstance(test, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
                    yield "negate", _item(node.ifs, index, ast.UnaryOp(ast.Not(), test))
        case ast.Return(value=ast.expr()) if not isinstance(node.value, ast.Constant):
            yield "return", _field(node, "value", ast.Constant(None))
        case ast.ExceptHandler(type=ast.expr()):
            yield "except", _field(node, "type", ast.Tuple([], ast.Load()))


def _instead(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield kind and new node of each change that replaces the whole of *node*."""
    match node:
        case ast.UnaryOp(op=ast.Not()):
            yield "negate", node.operand
        case ast.Constant(value=bool()):
            yield "flag", ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            yield "number", ast.Constant(node.value + 1)
        case ast.Constant(value=str()) if " " not in node.value:
            yield "text", ast.Constant("" if node.value else "changed")
        case ast.Break():
            yield "leave", ast.Continue()
        case ast.Continue():
            yield "leave", ast.Break()
        case ast.Raise() | ast.Delete() | ast.AugAssign() | ast.Expr(value=ast.Call() | ast.Await(value=ast.Call())):
            yield "drop", ast.Pass()
        case ast.Assign() if all(isinstance(one, (ast.Attribute, ast.Subscript)) for one in node.targets):
            yield "drop", ast.Pass()


def _is_typing(node: ast.AST) -> bool:
    """Return whether only a type checker reads the parts of *node*."""
    named = node.func if isinstance(node, ast.Call) else node.value if isinstance(node, ast.Subscript) else None
    return isinstance(named, ast.Name) and named.id in TYPING


def _is_log_line(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="_log")))):
            return True
    return False


def _field(node: ast.AST, field: str, new: ast.AST) -> Callable[[], None]:
    return lambda: setattr(node, field, new)


def _item(items: list[ast.AST], index: int, new: ast.AST) -> Callable[[], None]:
    return lambda: items.__setitem__(index, new)
