"""The fourteen invariants of spec 004, for the records of jobs, workstreams and workers.

What they are is decided in :mod:`supervisor.diagnostics.work_invariants`, for records as for lines of a log.
"""

from __future__ import annotations

from typing import Any

from supervisor.diagnostics.invariants.catalogue import Say
from supervisor.diagnostics.invariants.shadow_state import Book
from supervisor.diagnostics.work_invariants import WorkInvariants
from supervisor.lifecycles.types import LifecycleEvent

__all__ = ["WorkLaws"]


class WorkLaws:
    """Jobs, workers and workstreams against each other."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._entity_id = ""
        self._work = WorkInvariants(self._found)

    def moved(self, record: LifecycleEvent, book: Book, step: Any) -> None:
        self._entity_id = book.id
        self._work.take(book.name, book.id, record.to_status, record.metadata)

    def _found(self, field: str | None, message: str) -> None:
        self._say(self._work.law, self._entity_id, f"{field}: {message}" if field else message)
