"""Explain the last change of an entity by the records that led to it (``supervisor why``). Pure.

Theory of operation
-------------------
Every record names at most one cause, an older record (``cause_id``). Following the causes from an entity's last change
leads to a record without a cause, the root, for example an operator's command. This chain is the spine of the trace,
printed from the root to the last change.

Other records belong to a step of the spine without being its cause. They are its annotations:

* the abort that the record names (``abort_id``), with the policy edges that the abort crossed on its way;
* facts after the last change that name the last termination stage, and causes that came too late.

Example (``lead/docs`` was ended by an abort of ``lead`` with scope SESSION)::

    12  operator aborts lead           root, AbortRecord
    13  lead: OperatorStop             cause 12
    15  lead/docs: OperatorStop        cause 13, the last change of lead/docs
    17  lead/docs: Ended               annotation: stage request

Every end has exactly one root, over the causes and over the aborts that the records name; ``supervisor validate`` and
the simulator check that. No cause is guessed: if the journal lacks a cause, the explanation names the missing record. A
cause is always older than its effect, so that following causes ends even in a forged journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from supervisor.diagnostics.cause_sentence import cause_sentence
from supervisor.lifecycles.task import Claimed, StepFreed, StepHeld, task_end
from supervisor.lifecycles.turn import split_call
from supervisor.lifecycles.types import LifecycleEvent, RecordId

ABORT_RECORD: Final = "AbortRecord"
"""Pattern of the id of a tool call. A number is written in one way only, and the largest number of calls in a turn has
fewer digits than the pattern allows."""
_CAUSES: Final = frozenset({ABORT_RECORD, "OperatorStop", "FatalError", "GraceExceeded", "task_failed"})
"""Events that end an entity; such an event of an entity that has already ended is a later cause."""
_OBSTACLES: Final = frozenset({StepHeld.spelled, StepFreed.spelled})

Events = Mapping[RecordId, LifecycleEvent] | Iterable[LifecycleEvent]
BySeq = Mapping[RecordId, LifecycleEvent]


class RecordRole(StrEnum):
    """Role of a record in an explanation of an entity's last change."""

    ROOT = "root"
    CAUSE = "cause"
    ABORT = "abort"
    EDGE = "policy edge"
    END = "end"
    STAGE = "rung"
    LATER = "later cause"


class Annotation(msgspec.Struct, frozen=True, kw_only=True):
    """Record that belongs to a record of the spine (the chain of causes) without being its cause."""

    role: RecordRole
    record: LifecycleEvent


class SpineStep(msgspec.Struct, frozen=True, kw_only=True):
    """Record of the spine (the chain of causes), with its annotations."""

    role: RecordRole
    record: LifecycleEvent
    branches: tuple[Annotation, ...] = ()


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Explanation of an entity's last change: the steps from the root to that change, oldest first.

    ``sentence`` says what happened, and the root cause. ``roots`` counts the root records to which the records of the
    explanation lead back; with a complete journal it is 1, and ``root`` is that record. ``missing`` is the number of a
    cause that the journal lacks, or ``None``.
    """

    entity_id: str
    sentence: str
    root: LifecycleEvent | None
    roots: int
    missing: RecordId | None
    steps: tuple[SpineStep, ...]

    @property
    def records(self) -> tuple[LifecycleEvent, ...]:
        """Every record of the explanation, oldest first."""
        found = [
            one for step in self.steps for one in (step.record, *(annotation.record for annotation in step.branches))
        ]
        return tuple(sorted(found, key=_seq))


def why(events: Events, entity_id: str) -> Explanation:
    """Explain the last change of *entity_id*, which may be a tool call (``lead:t1:c2``).

    Raises:
        LookupError: no record is about *entity_id*.
    """
    by_seq = _by_seq(events)
    last = _last_change(by_seq, entity_id)
    spine, missing = _spine(by_seq, last)
    later = _later_records(by_seq, entity_id, last)
    aborts = _aborts(by_seq)
    shown = {one.seq for one in spine}
    steps = [SpineStep(role=_role(one), record=one, branches=_annotations(one, aborts, shown)) for one in spine]
    steps[-1] = SpineStep(
        role=RecordRole.END if len(steps) > 1 or missing is not None else RecordRole.ROOT,
        record=last,
        branches=(*steps[-1].branches, *(annotation for annotation in later if annotation.record.seq not in shown)),
    )
    found = _roots(
        by_seq, aborts, [last, *(annotation.record for annotation in later if annotation.role is RecordRole.STAGE)]
    )
    root = None if missing is not None else spine[0]
    return Explanation(
        entity_id=entity_id,
        sentence=cause_sentence(entity_id, spine, missing, _end_of_task(by_seq, entity_id)),
        root=root,
        roots=len(found),
        missing=missing,
        steps=tuple(steps),
    )


def roots(events: Events, entity_id: str) -> tuple[LifecycleEvent, ...]:
    """Return the root records to which the end of *entity_id* leads back, by causes and by the aborts that records
    name.

    Every end has exactly one root; if the journal lacks a cause, none is found.

    Raises:
        LookupError: no record is about *entity_id*.
    """
    by_seq = _by_seq(events)
    last = _last_change(by_seq, entity_id)
    stages = [
        annotation.record
        for annotation in _later_records(by_seq, entity_id, last)
        if annotation.role is RecordRole.STAGE
    ]
    return _roots(by_seq, _aborts(by_seq), [last, *stages])


# ------------------------------------------------------------------------------------------------------- the spine
def _seq(record: LifecycleEvent) -> RecordId:
    return record.seq


def _by_seq(events: Events) -> BySeq:
    return events if isinstance(events, Mapping) else {one.seq: one for one in events}


def _end_of_task(by_seq: BySeq, session_id: str) -> str:
    """Return the word for the end of the task that the session *session_id* has claimed, unless another session has
    claimed the task later; ``""`` if there is none, or the task has not ended."""
    claims = [one for one in by_seq.values() if one.event == Claimed.spelled and one.outcome == "transition"]
    task_id = next((one.entity_id for one in claims if one.metadata.get("by") == session_id), "")
    own = _records_of(by_seq, task_id) if task_id else []
    last_claim = next((one for one in reversed(own) if one.event == Claimed.spelled), None)
    if last_claim is None or last_claim.metadata.get("by") != session_id:
        return ""
    last = [one for one in own if _changes_state(one)][-1]
    return task_end(last.to_status, str(last.metadata.get("outcome") or ""))


def _spine(by_seq: BySeq, last: LifecycleEvent) -> tuple[list[LifecycleEvent], RecordId | None]:
    """Return the records from the root to *last*, and the number of a cause that the journal lacks, or ``None``. A
    cause is older than its effect, so the loop ends."""
    spine = [last]
    while (cause_id := spine[-1].cause_id) is not None:
        cause = by_seq.get(cause_id)
        if cause is None or cause.seq >= spine[-1].seq:
            return spine[::-1], cause_id
        spine.append(cause)
    return spine[::-1], None


def _role(record: LifecycleEvent) -> RecordRole:
    if record.event == ABORT_RECORD and record.metadata.get("policy_edge"):
        return RecordRole.EDGE
    return RecordRole.CAUSE if record.cause_id is not None else RecordRole.ROOT


# ----------------------------------------------------------------------------------------------------- annotations
def _aborts(by_seq: BySeq) -> dict[str, LifecycleEvent]:
    """Return the records of aborts by the ids of these records: one for the request, and one for each policy edge that
    the abort crossed."""
    found = (one for one in by_seq.values() if one.event == ABORT_RECORD)
    return {str(one.metadata.get("id", one.abort_id)): one for one in found}


def _annotations(
    record: LifecycleEvent, aborts: Mapping[str, LifecycleEvent], shown: set[RecordId]
) -> tuple[Annotation, ...]:
    """Return as annotations the aborts that *record* names and, for an abort, the other edges that it crossed, without
    records already *shown*."""
    found = list(_aborts_named_by(record, aborts))
    if record.event == ABORT_RECORD:
        found += [one for one in aborts.values() if one.metadata.get("parent_record") == record.metadata.get("id")]
    fresh = {one.seq: one for one in found if one.seq not in shown}
    shown.update(fresh)
    return tuple(
        Annotation(role=RecordRole.EDGE if _role(one) is RecordRole.EDGE else RecordRole.ABORT, record=one)
        for one in sorted(fresh.values(), key=_seq)
    )


def _aborts_named_by(record: LifecycleEvent, aborts: Mapping[str, LifecycleEvent]) -> Iterator[LifecycleEvent]:
    """Yield the record of the abort that *record* names, and the records of the aborts from which that abort spread."""
    wanted: object = record.metadata.get("parent_record") if record.event == ABORT_RECORD else record.abort_id
    seen: set[object] = set()
    while wanted not in seen and (found := aborts.get(str(wanted))) is not None:
        seen.add(wanted)
        yield found
        wanted = found.metadata.get("parent_record")


def _later_records(by_seq: BySeq, entity_id: str, last: LifecycleEvent) -> list[Annotation]:
    """Return annotations from the entity's records after its last change: the termination stage, and causes that came
    too late."""
    own = [one for one in _records_of(by_seq, entity_id) or _aborts_of_call(by_seq, entity_id) if one.seq > last.seq]
    stages = [Annotation(role=RecordRole.STAGE, record=one) for one in own if "rung" in one.metadata]
    later = [
        Annotation(role=RecordRole.LATER, record=one)
        for one in own
        if "rung" not in one.metadata and (one.event in _CAUSES or (one.outcome == "fact" and one.abort_id))
    ]
    return sorted([*stages, *later], key=lambda annotation: annotation.record.seq)


def _aborts_of_call(by_seq: BySeq, call_id: str) -> list[LifecycleEvent]:
    """Return the records of the aborts of a tool call: a call has no log of its own, so these are in the log of its
    turn."""
    return [one for one in by_seq.values() if one.event == ABORT_RECORD and one.metadata.get("target") == call_id]


def _roots(
    by_seq: BySeq, aborts: Mapping[str, LifecycleEvent], ends: Iterable[LifecycleEvent]
) -> tuple[LifecycleEvent, ...]:
    pending, seen, found = list(ends), set[RecordId](), list[LifecycleEvent]()
    while pending:
        one = pending.pop()
        if one.seq in seen:
            continue
        seen.add(one.seq)
        pending += [named for named in _aborts_named_by(one, aborts) if named.seq <= one.seq]
        cause = by_seq.get(one.cause_id) if one.cause_id is not None else None
        if one.cause_id is None:
            found.append(one)
        elif cause is not None and cause.seq < one.seq:
            pending.append(cause)
    return tuple(sorted(found, key=_seq))


# ------------------------------------------------------------------------------------------------------- last change
def _last_change(by_seq: BySeq, entity_id: str) -> LifecycleEvent:
    own = _records_of(by_seq, entity_id)
    if own:
        return ([one for one in own if _changes_state(one)] or own)[-1]
    turn_id, number = split_call(entity_id)
    found = _last_of_call(_records_of(by_seq, turn_id), number) if number is not None else None
    if found is None:
        raise LookupError(f"the journal has no record of {entity_id!r}")
    return found


def _changes_state(record: LifecycleEvent) -> bool:
    """Return whether the record changed the state of its entity, or said that an obstacle holds it, or does not any
    more."""
    if record.outcome == "transition" and record.event in _OBSTACLES:
        return True
    return record.outcome == "born" or (record.outcome == "transition" and record.from_status != record.to_status)


def _records_of(by_seq: BySeq, entity_id: str) -> list[LifecycleEvent]:
    return sorted((one for one in by_seq.values() if one.entity_id == entity_id), key=_seq)


def _last_of_call(turn: list[LifecycleEvent], number: int) -> LifecycleEvent | None:
    """Return the record that ended the call (the call's result, or the failure of its turn); while the call is open,
    the record of its start."""
    started = next((one for one in turn if _is_call(one, "tool_started", "number", number)), None)
    if started is None:
        return None
    later = [one for one in turn if one.entity_seq > started.entity_seq]
    call_id = started.metadata.get("call_id")
    return next((one for one in later if _ends(one, call_id)), started)


def _ends(record: LifecycleEvent, call_id: object) -> bool:
    return _is_call(record, "tool_completed", "call_id", call_id) or (
        record.event == "task_failed" and record.outcome == "transition"
    )


def _is_call(record: LifecycleEvent, event: str, field: str, value: object) -> bool:
    return record.event == event and record.outcome == "transition" and record.metadata.get(field) == value
