"""What a record says of itself: its reason, the named reasons, the abort, and how loud it is, all from its event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from supervisor.lifecycles.types import LifecycleEvent

__all__ = ["words_of"]

TELLING = frozenset({"verdict", "reason", "message", "transition_reason", "abort_reason", "abort_id"})
"""The fields of events that say such things; most have none of them."""


def words_of(record: LifecycleEvent, effects: Sequence[tuple[Any, ...]]) -> tuple[object, ...]:
    """(reason, transition reason, abort reason, abort id, severity) of a transition with these effects."""
    meta = record.metadata
    if TELLING.isdisjoint(meta):
        return "", None, None, None, _severity(record, effects)
    verdict = meta.get("verdict") or {}
    reason = meta.get("reason") or meta.get("message") or verdict.get("error") or ""
    over = meta.get("transition_reason") or verdict.get("transition_reason")
    why = meta.get("abort_reason") or verdict.get("abort_reason")
    return str(reason), over, why, meta.get("abort_id"), _severity(record, effects)


def _severity(record: LifecycleEvent, effects: Sequence[tuple[Any, ...]]) -> str:
    if record.event == "FatalError":
        return "critical"
    if ("LogFatal",) in effects:
        return "error"
    stopped = record.event == "OperatorStop" and record.metadata.get("abort_id") is not None
    failed = "verdict" in record.metadata and (record.metadata["verdict"] or {}).get("exit") != "Success"
    return "warning" if stopped or failed else "info"
