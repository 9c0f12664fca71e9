"""Model server for tests: an HTTP server with the model providers' APIs that agents use, and with scripted answers.

An agent works against this server as against the agent's provider, with the agent's own tools, on loopback and without
an account. Answers are decided by pure functions of the request (:mod:`.answers`, :mod:`.matcher`, :mod:`.dialects`);
:mod:`.server` contains the sockets. The names of this package are imported on first use, because every run of pytest
imports the package for the pytest plug-in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisor.mock_model.answers import (
        Answer,
        Background,
        Delegate,
        Drop,
        Edit,
        Fail,
        Hang,
        Loop,
        Parallel,
        Run,
        Say,
        Slow,
        Spent,
        Use,
        answers_in,
    )

__all__ = [
    "Answer",
    "Background",
    "Delegate",
    "Drop",
    "Edit",
    "Fail",
    "Hang",
    "Loop",
    "Parallel",
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
