"""A model server for tests: it speaks the dialects that agents speak, and what it answers is scripted.

An agent with its own tools works against it as against its provider, on loopback, without an account. What it answers
is decided by pure functions of the request (:mod:`.answers`, :mod:`.deciding`, :mod:`.dialects`); :mod:`.server` has
the sockets. Importing this package brings neither an event loop nor the HTTP library of the extra ``stub-model``.
"""

from __future__ import annotations

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
