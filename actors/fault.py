"""Points at which a simulation may have the code take its rarer way. Elsewhere a point is a constant ``False``.

A point never adds behaviour: it chooses a way that the code has anyway, such as a batch of one or a queue instead of a
fast lane. Only :func:`deciding` lets anybody decide, for as long as its block lasts and in its thread alone, and only a
simulation calls that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident

__all__ = ["deciding", "point"]

_deciders: dict[int, Callable[[str, str], bool]] = {}
"""Who decides, by thread; empty outside of simulations, so that a point there costs one look."""


def point(name: str, who: str = "") -> bool:
    """Whether to take the rarer way here, where *who* passes."""
    if not _deciders:
        return False
    decide = _deciders.get(get_ident())
    return decide is not None and decide(name, who)


@contextmanager
def deciding(decide: Callable[[str, str], bool]) -> Iterator[None]:
    """Have *decide* asked at every point that this thread passes."""
    thread = get_ident()
    before = _deciders.get(thread)
    _deciders[thread] = decide
    try:
        yield
    finally:
        if before is None:
            del _deciders[thread]
        else:
            _deciders[thread] = before
