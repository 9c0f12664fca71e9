"""Putting a mutant into a program that is loaded already: only the code of what it changes is exchanged.

Whoever imports everything once and forks for each mutant saves the imports. A function that only changes inside is
given its other code, wherever it is alive, and so are all that it makes from then on. What runs at import (constants,
tables, defaults, classes), and what a function did while its module was imported, cannot be exchanged: then every
module of the project is imported anew, with the mutant among them.
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType

from specimens import Mutant, path_of

__all__ = ["Mutated", "Population", "forget", "population", "transplanted"]

OURS = ("actors", "supervisor")
Place = tuple[str, int, str]
Population = Mapping[Place, list[FunctionType]]
"""The functions that are alive, by file, line and name."""


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Lets one module be imported with another source."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != self._mutant.module:
            return None
        spec = importlib.machinery.ModuleSpec(name, self, origin=str(path_of(name)))
        if path_of(name).name == "__init__.py":
            spec.submodule_search_locations = [str(path_of(name).parent)]
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = str(path_of(self._mutant.module))
        exec(compile(self._mutant.source, module.__file__, "exec"), module.__dict__)


def forget() -> None:
    """Every module of the project is imported anew when it is asked for next."""
    for name in [one for one in sys.modules if one.partition(".")[0] in OURS]:
        del sys.modules[name]


def population() -> Population:
    """The functions of the project that are alive now. Ask before :func:`gc.freeze`."""
    found: dict[Place, list[FunctionType]] = {}
    for one in gc.get_objects():
        if type(one) is FunctionType:
            found.setdefault(_place(one.__code__), []).append(one)
    return found


def _place(code: CodeType) -> Place:
    return code.co_filename, code.co_firstlineno, code.co_qualname


def transplanted(mutant: Mutant, alive: Population) -> bool:
    """Exchange the code of what the mutant changes; false, and nothing has happened, where that is not enough."""
    path = str(path_of(mutant.module))
    before = compile(path_of(mutant.module).read_text(), path, "exec")
    try:
        pairs = list(_exchanged(before, compile(mutant.source, path, "exec"), False))
    except LookupError:
        return False
    if any(old.co_freevars != new.co_freevars for old, new in pairs) or not any(
        _place(old) in alive for old, _ in pairs
    ):
        return False
    for old, new in pairs:
        for function in alive.get(_place(old), ()):
            function.__code__ = new
    return True


def _exchanged(old: CodeType, new: CodeType, inside: bool) -> Iterator[tuple[CodeType, CodeType]]:
    """The functions that differ. *inside*: of a function, so that it differs as well.

    Raises:
        LookupError: what runs at import differs.
    """
    mine, other = _inner(old), _inner(new)
    if len(mine) != len(other):
        if not inside:
            raise LookupError
        return
    if not inside and _bare(old) != _bare(new):
        raise LookupError
    for one, changed in zip(mine, other, strict=True):
        if one == changed:
            continue
        function = inside or bool(one.co_flags & 1)  # CO_OPTIMIZED: no body of a class
        if function:
            yield one, changed
        yield from _exchanged(one, changed, function)


def _inner(code: CodeType) -> list[CodeType]:
    return [one for one in code.co_consts if isinstance(one, CodeType)]


def _bare(code: CodeType) -> tuple[object, ...]:
    """What it does itself; ``True`` and ``1`` are two."""
    constants = tuple((type(one), one) for one in code.co_consts if not isinstance(one, CodeType))
    return code.co_code, constants, code.co_names, code.co_varnames
