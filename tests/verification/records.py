"""Helpers that make durable records for tests of checkers."""

from __future__ import annotations

from typing import Any

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Append


def record_of(entity_type: str, entity_id: str, event: str, **fields: Any) -> LifecycleEvent:
    """Make a record; fields that are not given have neutral values."""
    given = {"seq": 1, "timestamp": 0.0, "monotonic_s": 0.0, "entity_seq": 1, **fields}
    return LifecycleEvent(entity_type=entity_type, entity_id=entity_id, event=event, **given)


def append_of(record: LifecycleEvent, state: str, parent_id: str | None = None, **fields: Any) -> Append:
    """Make the append (the row to be written to the journal) of a record after which the entity is in *state*."""
    return Append(record=record, parent_id=parent_id, state=state, **{"data": b"{}", **fields})
