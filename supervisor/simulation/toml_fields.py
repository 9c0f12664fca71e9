"""Errors of fields in TOML files, as text: the field, the value, and a valid value. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError

from supervisor.plans.error_texts import ModelAt
from supervisor.plans.fields import closest

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

THE_KEYS = "the keys here are"
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


def is_name(value: str) -> str:
    """Check that *value* is a name that can be part of a file name, and return the name.

    Raises:
        ValueError: *value* is not such a name.
    """
    if not NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not a name; give up to 64 of a-z, 0-9 and -, beginning with a letter or digit")
    return value


def problems(where: str, error: ValidationError, model_at: ModelAt) -> Iterator[str]:
    """Yield each error of the validation as a line that begins with *where*."""
    for one in error.errors():
        field = ".".join(map(str, one["loc"]))  # none, where fields do not go together
        yield ": ".join(filter(None, (where, field, _words(one, model_at(one["loc"][:-1])))))


def _words(one: ErrorDetails, model: type[BaseModel] | None) -> str:
    """Describe one error: the value, and the fix. Kinds of errors that are not listed here keep pydantic's message."""
    match one["type"]:
        case "value_error":
            return str(one["ctx"]["error"])
        case "extra_forbidden":
            return f"unknown key; {closest(str(one['loc'][-1]), model.model_fields if model else (), THE_KEYS)}"
        case "missing":
            return "is missing; add it"
        case "dict_type" | "model_type":
            return f"{one['input']!r} is not a table; write {{ KEY = VALUE, ... }}, or leave it out"
        case "tuple_type":
            return f"{one['input']!r} is not a list; write [VALUE, ...]"
        case _:
            return f"{one['input']!r}: {one['msg']}"
