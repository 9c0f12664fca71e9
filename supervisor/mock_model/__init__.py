"""A model server for tests: it speaks the dialects that agents speak, and what it answers is scripted.

An agent with its own tools works against it as against its provider, on loopback, without an account. What it answers
is decided by pure functions of the request (:mod:`.answers`, :mod:`.matcher`, :mod:`.dialects`); :mod:`.server` has
the sockets. Its names are imported when they are used: a pytest plug-in lies in this package, which every run of pytest
loads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisor.mock_model.answers import (
        Answer,
        Delegate,
        Drop,
        Fail,
        Hang,
        Loop,
        Run,
        Say,
        Slow,
        Spent,
        Use,
        answers_in,
    )

__all__ = [
    "Answer",
    "Delegate",
    "Drop",
    "Fail",
    "Hang",
    "Loop",
    "Run",
    "Say",
    "Slow",
    "Spent",
    "Use",
    "answers_in",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'supervisor.mock_model' has no attribute {name!r}")
    from supervisor.mock_model import answers

    return getattr(answers, name)
