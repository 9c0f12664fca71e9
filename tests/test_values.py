"""Tests of the value classes (structs) of pure modules: they are immutable, and their fields are given by name."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

import msgspec
import pytest
from test_layers import SOURCES, is_pure

BY_POSITION = frozenset({"Problem", "ProcessSeen"})
"""Struct classes whose fields are given by position: in the order in which they are printed (line, field, message), or
read from the shim (pid, parent, session, ...)."""
PURE = [*(module for module in SOURCES if is_pure(module))]


def values_of(module: ModuleType) -> list[type[msgspec.Struct]]:
    return [
        one
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, msgspec.Struct) and one.__module__ == module.__name__
    ]


@pytest.mark.parametrize("name", PURE)
def test_values_are_frozen(name: str) -> None:
    """All structs of pure modules are frozen, so that a value that was decided, recorded or sent to another actor
    cannot be changed."""
    assert [one.__name__ for one in values_of(importlib.import_module(name)) if not one.__struct_config__.frozen] == []


@pytest.mark.parametrize("name", PURE)
def test_fields_are_named(name: str) -> None:
    """All structs of pure modules, except BY_POSITION, take their fields by name only, so that a new or moved field
    changes the meaning of no call."""
    by_position = [
        f"{one.__name__}.{field.name}"
        for one in values_of(importlib.import_module(name))
        if one.__name__ not in BY_POSITION
        for field in inspect.signature(one).parameters.values()
        if field.kind is not inspect.Parameter.KEYWORD_ONLY
    ]
    assert by_position == []
