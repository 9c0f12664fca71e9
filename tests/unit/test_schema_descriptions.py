"""Descriptions in the JSON Schemas that users see: of a plan, and of the requests to a running supervisor."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from supervisor.cli.plan import schema
from supervisor.control.operations import OPERATIONS

SCHEMAS = {"Plan": schema(), **{name: one.request.model_json_schema() for name, one in OPERATIONS.items()}}
FILLERS = frozenset({"a", "an", "the", "of", "for", "this", "its", "is"})


def described(root: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield every model, enumeration and property of a schema: its path, its own name, and its description."""
    for title, part in ((root, schema), *schema.get("$defs", {}).items()):
        yield title, title, part.get("description", "")
        for name, one in part.get("properties", {}).items():
            yield f"{title}.{name}", name, one.get("description", "")


def says_nothing(text: str, names: frozenset[frozenset[str]]) -> bool:
    """Return whether a description is shorter than three words, or is only the name of a field."""
    words = re.findall(r"\w+", text.lower().replace("_", " "))
    return len(words) < 3 or frozenset(words) - FILLERS in names


@pytest.mark.parametrize("root", SCHEMAS)
def test_every_property_has_a_description(root: str) -> None:
    """Every model, enumeration and property of the schema has a description of at least three words that is not only
    the name of a field."""
    parts = list(described(root, SCHEMAS[root]))
    names = frozenset(frozenset(name.lower().split("_")) for _, name, _ in parts)
    assert [(path, text) for path, _, text in parts if says_nothing(text, names)] == []


@pytest.mark.parametrize("text", ["", "Time-out.", "The max_sessions", "The max sessions of this."])
def test_a_description_without_content_is_found(text: str) -> None:
    """A text that is missing, too short, or only the name of a field is no description."""
    assert says_nothing(text, frozenset({frozenset({"max", "sessions"})}))
