"""Values of pure modules: they cannot be changed, and their fields are named where they are made."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

import msgspec
import pytest
from test_layers import SOURCES, is_pure

BY_POSITION = frozenset({"Problem", "ProcessSeen"})
"""In the order in which they are printed (line, field, message), or read from the shim (pid, parent, session, ...)."""
PURE = [*(module for module in SOURCES if is_pure(module))]


def values_of(module: ModuleType) -> list[type[msgspec.Struct]]:
    return [
        one
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, msgspec.Struct) and one.__module__ == module.__name__
    ]


@pytest.mark.parametrize("name", PURE)
def test_values_are_frozen(name: str) -> None:
    """A value that was decided, journalled or sent to another actor cannot be changed."""
    assert [one.__name__ for one in values_of(importlib.import_module(name)) if not one.__struct_config__.frozen] == []


@pytest.mark.parametrize("name", PURE)
def test_fields_are_named(name: str) -> None:
    """Values are made with named fields, so that a new or moved field changes the meaning of no call."""
    by_position = [
        f"{one.__name__}.{field.name}"
        for one in values_of(importlib.import_module(name))
        if one.__name__ not in BY_POSITION
        for field in inspect.signature(one).parameters.values()
        if field.kind is not inspect.Parameter.KEYWORD_ONLY
    ]
    assert by_position == []
