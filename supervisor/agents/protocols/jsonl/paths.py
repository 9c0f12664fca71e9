"""Look up values in a line of JSON by path, and match them. Pure; a missing value is ``None`` and never an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import Any, Final

import msgspec

__all__ = ["COUNT_MAX", "amount_at", "bytes_at", "first", "fits", "look", "text_at"]

COUNT_MAX: Final = 10**12
"""Largest number that is believed, for tokens and for dollars."""


def look(value: Any, path: str) -> Any:
    """Return the value at *path*: keys, or positions in lists, with dots between them."""
    for part in path.split("."):
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isascii() and part.isdigit() and len(part) < 10:
            value = value[int(part)] if int(part) < len(value) else None
        else:
            return None
    return value


def first(value: Any, paths: Iterable[str]) -> Any:
    """Return the first value that is present at one of *paths*."""
    return next((found for path in paths if (found := look(value, path)) is not None), None)


def fits(value: Any, wanted: Mapping[str, tuple[Any, ...]]) -> bool:
    """Return whether every path of *wanted* holds one of the wanted values."""
    return all(any(_same(look(value, path), one) for one in values) for path, values in wanted.items())


def _same(found: Any, wanted: Any) -> bool:
    if wanted == "*":
        return found is not None
    if isinstance(wanted, str):
        return isinstance(found, str) and _like(found, wanted)
    return isinstance(found, bool) == isinstance(wanted, bool) and bool(found == wanted)


def _like(text: str, pattern: str) -> bool:
    """Return whether *text* matches *pattern*, in which ``*`` stands for any text."""
    head, *parts = pattern.split("*")
    if not parts:
        return text == head
    *middle, tail = parts
    if len(text) < len(head) + len(tail) or not (text.startswith(head) and text.endswith(tail)):
        return False
    at, end = len(head), len(text) - len(tail)
    for part in middle:
        at = text.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def text_at(value: Any, paths: Iterable[str]) -> str:
    """Return the first value present at *paths* as text: other values as JSON, a missing value as ``""``."""
    found = first(value, paths)
    if found is None or isinstance(found, str):
        return found or ""
    return "".join(_pieces(found)) or msgspec.json.encode(found).decode()


def _pieces(found: Any) -> Iterator[str]:
    """Yield the texts of a list of parts: ``[{"text": ...}, ...]``."""
    for part in found if isinstance(found, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part["text"]


def amount_at(value: Any, paths: Iterable[str]) -> float | None:
    """Return the first value present at *paths* if it is a number from 0 to ``COUNT_MAX``."""
    found = first(value, paths)
    if isinstance(found, bool) or not isinstance(found, int | float) or not isfinite(found):
        return None
    return found if 0 <= found <= COUNT_MAX else None


def bytes_at(value: Any, paths: Iterable[str]) -> bytes:
    """Return the first value present at *paths* as JSON, for a digest; ``b""`` for a missing or empty value."""
    found = first(value, paths)
    return msgspec.json.encode(found) if found not in (None, "", [], {}) else b""
