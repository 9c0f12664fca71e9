"""Where in a line of JSON something stands, and whether it is what is looked for. Pure, and never wrong about a line:
what is not there is ``None``, whatever stands around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import Any, Final

import msgspec

__all__ = ["COUNT_MAX", "amount_at", "bytes_at", "first", "fits", "look", "text_at"]

COUNT_MAX: Final = 10**12
"""The largest number that is believed, of tokens as of dollars."""


def look(value: Any, path: str) -> Any:
    """What stands at *path*: keys, or numbers of items, with dots between them."""
    for part in path.split("."):
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isascii() and part.isdigit() and len(part) < 10:
            value = value[int(part)] if int(part) < len(value) else None
        else:
            return None
    return value


def first(value: Any, paths: Iterable[str]) -> Any:
    """What stands at the first of *paths* where anything does."""
    return next((found for path in paths if (found := look(value, path)) is not None), None)


def fits(value: Any, wanted: Mapping[str, tuple[Any, ...]]) -> bool:
    """Whether at every path stands one of the values that are wanted there."""
    return all(any(_same(look(value, path), one) for one in values) for path, values in wanted.items())


def _same(found: Any, wanted: Any) -> bool:
    if wanted == "*":
        return found is not None
    if isinstance(wanted, str):
        return isinstance(found, str) and _like(found, wanted)
    return isinstance(found, bool) == isinstance(wanted, bool) and bool(found == wanted)


def _like(text: str, pattern: str) -> bool:
    """Whether *text* is *pattern*, in which ``*`` stands for any text."""
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
    """The text at the first of *paths* where anything stands; of other values their JSON, of nothing ``""``."""
    found = first(value, paths)
    if found is None or isinstance(found, str):
        return found or ""
    return "".join(_pieces(found)) or msgspec.json.encode(found).decode()


def _pieces(found: Any) -> Iterator[str]:
    """The texts of a list of parts: ``[{"text": ...}, ...]``."""
    for part in found if isinstance(found, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part["text"]


def amount_at(value: Any, paths: Iterable[str]) -> float | None:
    """The number at the first of *paths* where anything stands, if it is one that can be believed."""
    found = first(value, paths)
    if isinstance(found, bool) or not isinstance(found, int | float) or not isfinite(found):
        return None
    return found if 0 <= found <= COUNT_MAX else None


def bytes_at(value: Any, paths: Iterable[str]) -> bytes:
    """What stands at the first of *paths* where anything does, for a digest; ``b""`` for what stands for nothing."""
    found = first(value, paths)
    return msgspec.json.encode(found) if found not in (None, "", [], {}) else b""
