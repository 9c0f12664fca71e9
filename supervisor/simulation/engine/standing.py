"""Where a task stands: the innermost line of somebody's own code that it waits in. Read only, never a record."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import CodeType
from typing import Any

__all__ = ["place_of", "standing_in"]

LIBRARIES = tuple(f"{os.sep}{name}{os.sep}" for name in ("asyncio", "anyio", "trio"))
"""Code in these directories is how one waits, not what waits."""


def standing_in(coroutine: Any) -> str:
    """``function (file.py:12)``, where *coroutine* waits; the library's own line if there is no other."""
    frames = [frame for one in _awaiting(coroutine) if (frame := _first(one, "cr_frame", "gi_frame", "ag_frame"))]
    own = [one for one in frames if not any(name in one.f_code.co_filename for name in LIBRARIES)]
    innermost = (own or frames)[-1:]
    return place_of(innermost[0].f_code, innermost[0].f_lineno) if innermost else "nowhere any more"


def place_of(code: CodeType, line: int | None) -> str:
    """A line of code, named without the directories above it."""
    return f"{code.co_qualname} ({os.path.basename(code.co_filename)}:{line})"


def _awaiting(awaited: Any) -> Iterator[Any]:
    """A coroutine, what it awaits, what that awaits, and so on to what does not tell."""
    while awaited is not None:
        yield awaited
        awaited = _first(awaited, "cr_await", "gi_yieldfrom", "ag_await")


def _first(one: Any, *names: str) -> Any:
    return next((found for name in names if (found := getattr(one, name, None)) is not None), None)
