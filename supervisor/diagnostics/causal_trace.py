"""Explain the last change of an entity by the records that led to it (``supervisor why``). Pure.

Theory of operation
-------------------
Every record names at most one cause, an older record (``cause_id``). Following the causes from an entity's last change
leads to a record without a cause, the root, for example an operator's command. This chain is the spine of the trace,
printed from the root to the last change.

Other records belong to a step of the spine without being its cause. They are its annotations:

* the abort that the record names (``abort_id``), with the policy edges that the abort crossed on its way;
* facts after the last change that name the last termination stage, and causes that came too late;
* the delivery of a trigger that has started the run in question, if the causes do not lead to it: those of a run that
  another supervisor goes on with begin there.

Example (``lead/docs`` was ended by an abort of ``lead`` with scope SESSION)::

    12  operator aborts lead           root, AbortRecord
    13  lead: OperatorStop             cause 12
    15  lead/docs: OperatorStop        cause 13, the last change of lead/docs
    17  lead/docs: Ended               annotation: stage request

Only the records that an explanation needs are read: the logs of the entities in question, their causes by number, and
the records of aborts. Of the journal, only the number of aborts counts for the time.

Every end has exactly one root, over the causes and over the aborts that the records name; ``supervisor validate`` and
the simulator check that. No cause is guessed: if the journal lacks a cause, the explanation names the missing record. A
cause is always older than its effect, so that following causes ends even in a forged journal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from supervisor.diagnostics.cause_sentence import cause_sentence
from supervisor.lifecycles.task import Claimed, StepFreed, StepHeld, task_end
from supervisor.lifecycles.trigger import DeliveryAccepted
from supervisor.lifecycles.turn import split_call
from supervisor.lifecycles.types import ABORT_RECORD, Kind, LifecycleEvent, RecordId
from supervisor.ports import Reader

_CAUSES: Final = frozenset({ABORT_RECORD, "OperatorStop", "FatalError", "GraceExceeded", "task_failed"})
"""Events that end an entity; such an event of an entity that has already ended is a later cause."""
_OBSTACLES: Final = frozenset({StepHeld.spelled, StepFreed.spelled})

_OF_A_TASK: Final = frozenset({Kind.TASK.value, Kind.RUN.value, Kind.JOB.value})


class Records(Protocol):
    """Records of a journal, found by number, entity or event. A :class:`supervisor.ports.Reader` is such an object."""

    def record(self, seq: RecordId) -> LifecycleEvent | None:
        """Return the record with that number; ``None`` if it is not there."""
        ...

    def events(self, entity_id: str) -> Iterator[LifecycleEvent]:
        """Yield the records of an entity in order."""
        ...

    def events_named(self, *names: str) -> Iterator[LifecycleEvent]:
        """Yield the records of events with one of these names, in order."""
        ...


class RecordList:
    """Records in memory (:class:`Records`), for callers that have all of them."""

    def __init__(self, records: Iterable[LifecycleEvent]) -> None:
        self._by_seq = {one.seq: one for one in sorted(records, key=_seq)}
        self._logs: defaultdict[str, list[LifecycleEvent]] = defaultdict(list)
        self._named: defaultdict[str, list[LifecycleEvent]] = defaultdict(list)
        for one in self._by_seq.values():
            self._logs[one.entity_id].append(one)
            self._named[one.event].append(one)

    def record(self, seq: RecordId) -> LifecycleEvent | None:
        return self._by_seq.get(seq)

    def events(self, entity_id: str) -> Iterator[LifecycleEvent]:
        return iter(self._logs.get(entity_id, ()))

    def events_named(self, *names: str) -> Iterator[LifecycleEvent]:
        return iter(sorted((one for name in names for one in self._named.get(name, ())), key=_seq))


class WithArchives:
    """Records of a journal and of its archives (:class:`Records`)."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def record(self, seq: RecordId) -> LifecycleEvent | None:
        return self._reader.record(seq, archived=True)

    def events(self, entity_id: str) -> Iterator[LifecycleEvent]:
        return self._reader.events(entity_id, archived=True)

    def events_named(self, *names: str) -> Iterator[LifecycleEvent]:
        return self._reader.events_named(*names, archived=True)


class RecordRole(StrEnum):
    """Role of a record in an explanation of an entity's last change."""

    ROOT = "root"
    CAUSE = "cause"
    ABORT = "abort"
    EDGE = "policy edge"
    END = "end"
    STAGE = "rung"
    LATER = "later cause"
    DELIVERY = "delivery"


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


def why(records: Records, entity_id: str) -> Explanation:
    """Explain the last change of *entity_id*, which may be a tool call (``lead:t1:c2``).

    Raises:
        LookupError: no record is about *entity_id*.
    """
    last = _last_change(records, entity_id)
    spine, missing = _spine(records, last)
    later = _later_records(records, entity_id, last)
    delivery = _delivery_of(records, entity_id)
    if delivery is not None:
        later.append(Annotation(role=RecordRole.DELIVERY, record=delivery))
    aborts = _aborts(records)
    shown = {one.seq for one in spine}
    steps = [SpineStep(role=_role(one), record=one, branches=_annotations(one, aborts, shown)) for one in spine]
    steps[-1] = SpineStep(
        role=RecordRole.END if len(steps) > 1 or missing is not None else RecordRole.ROOT,
        record=last,
        branches=(*steps[-1].branches, *(annotation for annotation in later if annotation.record.seq not in shown)),
    )
    found = _roots(
        records, aborts, [last, *(annotation.record for annotation in later if annotation.role is RecordRole.STAGE)]
    )
    root = None if missing is not None else spine[0]
    return Explanation(
        entity_id=entity_id,
        sentence=cause_sentence(entity_id, spine, missing, _end_of_task(records, entity_id), delivery),
        root=root,
        roots=len(found),
        missing=missing,
        steps=tuple(steps),
    )


def roots(records: Records, entity_id: str) -> tuple[LifecycleEvent, ...]:
    """Return the root records to which the end of *entity_id* leads back, by causes and by the aborts that records
    name.

    Every end has exactly one root; if the journal lacks a cause, none is found.

    Raises:
        LookupError: no record is about *entity_id*.
    """
    last = _last_change(records, entity_id)
    stages = [
        annotation.record
        for annotation in _later_records(records, entity_id, last)
        if annotation.role is RecordRole.STAGE
    ]
    return _roots(records, _aborts(records), [last, *stages])


# ------------------------------------------------------------------------------------------------------- the spine
def _seq(record: LifecycleEvent) -> RecordId:
    return record.seq


def _end_of_task(records: Records, session_id: str) -> str:
    """Return the word for the end of the task that the session *session_id* has claimed, unless another session has
    claimed the task later; ``""`` if there is none, or the task has not ended."""
    task_id = _task_of(records, session_id)
    own = list(records.events(task_id)) if task_id else []
    last_claim = next((one for one in reversed(own) if one.event == Claimed.spelled), None)
    if last_claim is None or last_claim.metadata.get("by") != session_id:
        return ""
    last = [one for one in own if _changes_state(one)][-1]
    return task_end(last.to_status, str(last.metadata.get("outcome") or ""))


def _delivery_of(records: Records, run: str) -> LifecycleEvent | None:
    """Return the record of the delivery that has started *run*; ``None`` if it is no run, or no trigger has."""
    born = next(iter(records.events(run)), None)
    if born is None or born.entity_type != Kind.WORKSTREAM or born.cause_id is None:
        return None
    cause = records.record(born.cause_id)
    return cause if cause is not None and cause.event == DeliveryAccepted.spelled else None


def _task_of(records: Records, session_id: str) -> str:
    """Return the task for which the session was begun, or given its first prompt: the session's records name a record
    of the task, its run or its job as their cause. ``""``: there is none."""
    for one in records.events(session_id):
        cause = records.record(one.cause_id) if one.cause_id is not None else None
        if cause is not None and cause.entity_type in _OF_A_TASK:
            return cause.entity_id.partition(":")[0]
    return ""


def _spine(records: Records, last: LifecycleEvent) -> tuple[list[LifecycleEvent], RecordId | None]:
    """Return the records from the root to *last*, and the number of a cause that the journal lacks, or ``None``. A
    cause is older than its effect, so the loop ends."""
    spine = [last]
    while (cause_id := spine[-1].cause_id) is not None:
        cause = records.record(cause_id)
        if cause is None or cause.seq >= spine[-1].seq:
            return spine[::-1], cause_id
        spine.append(cause)
    return spine[::-1], None


def _role(record: LifecycleEvent) -> RecordRole:
    if record.event == ABORT_RECORD and record.metadata.get("policy_edge"):
        return RecordRole.EDGE
    return RecordRole.CAUSE if record.cause_id is not None else RecordRole.ROOT


# ----------------------------------------------------------------------------------------------------- annotations
def _aborts(records: Records) -> dict[str, LifecycleEvent]:
    """Return the records of aborts by the ids of these records: one for the request, and one for each policy edge that
    the abort crossed."""
    found = records.events_named(ABORT_RECORD)
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


def _later_records(records: Records, entity_id: str, last: LifecycleEvent) -> list[Annotation]:
    """Return annotations from the entity's records after its last change: the termination stage, and causes that came
    too late."""
    own = [one for one in list(records.events(entity_id)) or _aborts_of_call(records, entity_id) if one.seq > last.seq]
    stages = [Annotation(role=RecordRole.STAGE, record=one) for one in own if "rung" in one.metadata]
    later = [
        Annotation(role=RecordRole.LATER, record=one)
        for one in own
        if "rung" not in one.metadata and (one.event in _CAUSES or (one.outcome == "fact" and one.abort_id))
    ]
    return sorted([*stages, *later], key=lambda annotation: annotation.record.seq)


def _aborts_of_call(records: Records, call_id: str) -> list[LifecycleEvent]:
    """Return the records of the aborts of a tool call: a call has no log of its own, so these are in the log of its
    turn."""
    return [one for one in records.events_named(ABORT_RECORD) if one.metadata.get("target") == call_id]


def _roots(
    records: Records, aborts: Mapping[str, LifecycleEvent], ends: Iterable[LifecycleEvent]
) -> tuple[LifecycleEvent, ...]:
    pending, seen, found = list(ends), set[RecordId](), list[LifecycleEvent]()
    while pending:
        one = pending.pop()
        if one.seq in seen:
            continue
        seen.add(one.seq)
        pending += [named for named in _aborts_named_by(one, aborts) if named.seq <= one.seq]
        cause = records.record(one.cause_id) if one.cause_id is not None else None
        if one.cause_id is None:
            found.append(one)
        elif cause is not None and cause.seq < one.seq:
            pending.append(cause)
    return tuple(sorted(found, key=_seq))


# ------------------------------------------------------------------------------------------------------- last change
def _last_change(records: Records, entity_id: str) -> LifecycleEvent:
    own = list(records.events(entity_id))
    if own:
        return ([one for one in own if _changes_state(one)] or own)[-1]
    turn_id, number = split_call(entity_id)
    found = _last_of_call(list(records.events(turn_id)), number) if number is not None else None
    if found is None:
        raise LookupError(f"the journal has no record of {entity_id!r}")
    return found


def _changes_state(record: LifecycleEvent) -> bool:
    """Return whether the record changed the state of its entity, or said that an obstacle holds it, or does not any
    more."""
    if record.outcome == "transition" and record.event in _OBSTACLES:
        return True
    return record.outcome == "born" or (record.outcome == "transition" and record.from_status != record.to_status)


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
