"""Delta debugging (Zeller and Hildebrandt, 2002): the part of a list that is needed, found by leaving out parts of it.

Pure: what fails, and what that costs, is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

__all__ = ["ddmin"]

T = TypeVar("T")


def ddmin(items: Sequence[T], fails: Callable[[Sequence[T]], Sequence[T] | None]) -> Sequence[T]:
    """A part of *items* that still fails, and of which nothing can be left out.

    Args:
        fails: None if these do not fail; else the items that were needed at all, perhaps fewer.
    """
    if items and (needed := fails(())) is not None:
        return needed
    parts = 2
    while len(items) > 1:
        smaller = next((found for rest in _without_one(items, parts) if (found := fails(rest)) is not None), None)
        if smaller is not None:
            items, parts = smaller, max(parts - 1, 2)
        elif parts >= len(items):
            break
        else:
            parts = min(len(items), 2 * parts)
    return items


def _without_one(items: Sequence[T], parts: int) -> Iterator[Sequence[T]]:
    """*items* without each of their *parts*."""
    size = -(-len(items) // parts)
    for start in range(0, len(items), size):
        yield [*items[:start], *items[start + size :]]
