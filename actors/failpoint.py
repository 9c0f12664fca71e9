"""Failpoints: places where a test or a simulation makes the code take a rarer path.

:func:`active` chooses between two paths that the code has anyway, such as a batch of one message or a queue instead of
a fast lane. :func:`crash` raises :class:`InjectedCrash`, as an error in the code at that place would.

Outside of :func:`controlled_by` every failpoint is inactive and costs one lookup. :func:`controlled_by` affects its own
thread only, for as long as its block lasts; only tests and the simulator call it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident

deciders: dict[int, Callable[[str, str], bool]] = {}
"""Decision functions by thread id. Empty outside of tests and simulations, so that a failpoint costs one lookup."""


class InjectedCrash(Exception):
    """Error that :func:`crash` raises."""


def active(name: str, subject: str = "") -> bool:
    """Return whether the failpoint *name* is active for *subject*, such as the id of an actor."""
    if not deciders:
        return False
    decide = deciders.get(get_ident())
    return decide is not None and decide(name, subject)


def crash(name: str, subject: str = "") -> None:
    """Raise :class:`InjectedCrash` if the failpoint *name* is active for *subject*."""
    if active(name, subject):
        raise InjectedCrash(f"{name} {subject}".rstrip())


@contextmanager
def controlled_by(decide: Callable[[str, str], bool]) -> Iterator[None]:
    """While the body runs, call *decide* with name and subject at every failpoint that this thread passes; blocks may
    be nested."""
    thread = get_ident()
    before = deciders.get(thread)
    deciders[thread] = decide
    try:
        yield
    finally:
        if before is None:
            del deciders[thread]
        else:
            deciders[thread] = before
