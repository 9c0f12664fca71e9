"""A scenario as a TOML file that a person can read: what is unusual about it, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from supervisor.simulation.scenario import Scenario

__all__ = ["written"]

WIDE = 100
"""Characters from which a list takes a line for each of its members."""
BARE = re.compile(r"[A-Za-z0-9_-]+")
"""Keys that need no quotes."""


def written(scenario: Scenario, comment: str) -> str:
    """The text of the file; it is loaded as the same scenario."""
    lines = [f"# {one}".rstrip() for one in comment.splitlines()]
    return "\n".join([*lines, *_table((), scenario.model_dump(mode="json", exclude_none=True))]) + "\n"


def _table(path: tuple[str, ...], table: Mapping[str, Any]) -> Iterator[str]:
    """Values first, then the tables below; where there are no values, there is no head."""
    below = {key: value for key, value in table.items() if isinstance(value, dict) and "any" not in value}
    values = {key: value for key, value in table.items() if key not in below and value is not None}
    if path and values:
        yield ""
        yield f"[{'.'.join(path)}]"
    for key, value in values.items():
        yield f"{key if BARE.fullmatch(key) else json.dumps(key)} = {_value(value)}"
    for key, value in below.items():
        yield from _table((*path, key), value)


def _value(value: Any) -> str:
    """A value in TOML, whose strings are those of JSON but for one character."""
    match value:
        case dict():
            return "{ " + ", ".join(f"{key} = {_value(one)}" for key, one in value.items()) + " }"
        case list():
            members = [_value(one) for one in value]
            line = f"[{', '.join(members)}]"
            return line if len(line) <= WIDE else "[\n" + "".join(f"    {one},\n" for one in members) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
