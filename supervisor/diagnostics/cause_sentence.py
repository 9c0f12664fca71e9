"""Explain the last change of an entity in one sentence: what happened, and the root cause. Pure.

The sentence is made from the chain of causes. Its cause is the decision at the root, if somebody has decided the
change: a person, a signal, a budget. A chain that begins with the start of a run, or with the delivery that has started
it, has no decision. Then the cause is the reason of the change, and if another task failed on the way, the failure of
that task. Of a run that a trigger has started, the sentence also names the delivery::

    task r1#fix was aborted at 12:00:05: operator:ann aborted session fix at 12:00:04: too slow.
    session bad failed at 12:00:05: exit status 3.
    task r1#after was blocked at 12:00:06: it depends on bad, which did not complete; task r1#bad failed at 12:00:05:
    exit status 3.
    run r7 failed at 12:00:07: 1 of its tasks failed; trigger @push started it at 12:00:00 for delivery 7:d1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from supervisor.diagnostics.state_times import time_of_day
from supervisor.lifecycles.session import Session
from supervisor.lifecycles.task import SESSION_ENDS, Task, TaskEnd, task_end
from supervisor.lifecycles.trigger import DeliveryAccepted
from supervisor.lifecycles.turn import split_call
from supervisor.lifecycles.types import Kind, LifecycleEvent, RecordId
from supervisor.lifecycles.workstream import SettledWithFailures, Workstream

_KINDS: Final[Mapping[str, str]] = {Kind.WORKSTREAM: "run", Kind.RUN: "task run"}
"""Names of kinds of entities for people, where they differ from the journal's."""
_ENDS_OF_TASKS: Final = {reason: end.value for end, reason in SESSION_ENDS.items()}
_OF_RUNS: Final[Mapping[str, TaskEnd]] = {
    Workstream.COMPLETED.value: TaskEnd.COMPLETED,
    Workstream.FAILED.value: TaskEnd.FAILED,
    Workstream.CANCELLED.value: TaskEnd.CANCELLED,
}
_WELL: Final = ("", TaskEnd.COMPLETED)
_REAPED: Final = "agent_reaped"
"""Event of a turn that changes nothing about its result."""


def cause_sentence(
    entity_id: str,
    spine: Sequence[LifecycleEvent],
    missing: RecordId | None,
    end_of_task: str = "",
    delivery: LifecycleEvent | None = None,
) -> str:
    """Return the sentence about the last change of *entity_id*.

    Args:
        entity_id: the id of an entity, or of a tool call.
        spine: the chain of causes, from the root to the last change.
        missing: the number of a cause that the journal lacks, or ``None``.
        end_of_task: the word for the end of the task for which a session has worked until the end of the task.
        delivery: the record of the delivery of a trigger that has started the run *entity_id*.
    """
    last = _last(spine)
    end = _end(entity_id, last)
    end = end and (end_of_task or end)
    state = last.to_status if split_call(entity_id)[1] is None else "open"
    when = f"{_verb(end)} at" if end else f"is {state} since"
    is_decided = missing is None and not _starts_run(spine[0])
    causes = list(dict.fromkeys(_causes(entity_id, spine, last, end, is_decided=is_decided)))
    if missing is not None:
        causes.append(f"the journal does not hold record {missing}, which caused the first one")
    elif delivery is not None:
        found = delivery.metadata.get("delivery")
        trigger, at = _name(delivery.entity_id, delivery), time_of_day(delivery.timestamp)
        causes.append(f"{trigger} started it at {at} for delivery {found}")
    elif not causes:
        causes = [f"{last.event} by {last.actor or 'an unnamed actor'}"]
    return f"{_name(entity_id, last)} {when} {time_of_day(last.timestamp)}: {'; '.join(causes).rstrip('.')}."


def _starts_run(record: LifecycleEvent) -> bool:
    """Return whether a chain that begins with *record* begins with the start of a run: nobody has decided its end."""
    return record.outcome == "born" or record.event == DeliveryAccepted.spelled


def _last(spine: Sequence[LifecycleEvent]) -> LifecycleEvent:
    """Return the record with the last change, but for a turn that was put away the record with its result."""
    own = (one for one in reversed(spine) if one.entity_id == spine[-1].entity_id and one.event != _REAPED)
    return next(own, spine[-1])


# ------------------------------------------------------------------------------------------------------- the change
def _name(entity_id: str, record: LifecycleEvent) -> str:
    if split_call(entity_id)[1] is not None:
        return f"tool call {entity_id}"
    return f"{_KINDS.get(record.entity_type, record.entity_type)} {entity_id}"


def _end(entity_id: str, record: LifecycleEvent) -> str:
    """Return the word for the end of an entity; ``""`` if it has not ended."""
    outcome = str(record.metadata.get("outcome") or "")
    if split_call(entity_id)[1] is not None:
        return outcome or ("aborted" if record.abort_id else "failed" if record.event == "task_failed" else "")
    match record.entity_type:
        case Kind.TASK:
            return task_end(record.to_status, outcome)
        case Kind.WORKSTREAM:
            return _OF_RUNS.get(record.to_status, "")
        case Kind.SESSION if record.to_status == Session.STOPPED.value:
            return _ENDS_OF_TASKS.get(record.reason) or outcome or "ended"
        case Kind.TURN if record.event == "task_failed":
            return "aborted" if record.transition_reason == "aborted" else "failed"
        case Kind.TURN if record.event == "task_completed":
            return TaskEnd.COMPLETED
    return "ended" if record.to_status == "dead" else ""


def _verb(end: str) -> str:
    return end if end in ("failed", "ended") else f"was {end}"


# ------------------------------------------------------------------------------------------------------- the cause
def _causes(
    entity_id: str, spine: Sequence[LifecycleEvent], last: LifecycleEvent, end: str, *, is_decided: bool
) -> Iterator[str]:
    root = spine[0]
    if is_decided and root.seq == last.seq:
        yield _decision(root)
        return
    reason = _reason(spine, last, end)
    if reason and not (is_decided and reason == _first_line(root.reason)):
        yield reason
    if is_decided:
        yield _decision(root)
        yield from (f"the abort spread by {edge}" for one in spine if (edge := one.metadata.get("policy_edge")))
    elif end not in _WELL:
        failed = next((one for one in reversed(spine) if _is_failed_task(one) and one.entity_id != entity_id), None)
        if failed is not None and _first_line(failed.reason) != reason:
            yield f"{_name(failed.entity_id, failed)} failed at {_with_reason(failed)}"


def _reason(spine: Sequence[LifecycleEvent], last: LifecycleEvent, end: str) -> str:
    """Return the reason of the last change. A session that is closed since its task has failed has the reason of the
    task."""
    if last.entity_type == Kind.WORKSTREAM and last.event == SettledWithFailures.spelled:
        failed = int(last.metadata.get("failed") or 0)
        return f"{failed} of its tasks failed"
    if end == TaskEnd.FAILED:
        reasons = (one.reason for one in reversed(spine) if one.reason and one.reason not in _ENDS_OF_TASKS)
        return _first_line(next(reasons, last.reason))
    return _first_line(last.reason)


def _is_failed_task(record: LifecycleEvent) -> bool:
    return record.entity_type == Kind.TASK and record.to_status == Task.FAILED.value and bool(record.reason)


def _decision(record: LifecycleEvent) -> str:
    """Return what the actor of a root record has decided, when, and why."""
    actor, fact = record.actor or "an unnamed actor", record.metadata
    match record.event:
        case "AbortRecord":
            target = str(fact.get("target") or record.entity_id)
            kind = "tool call" if split_call(target)[1] is not None else "session"
            text = f"{actor} aborted {kind} {target}"
        case "Commanded":
            text = f"{actor} gave the command {fact.get('command')} for {_name(record.entity_id, record)}"
        case "UrgentMessage":
            text = f"{actor} sent {_name(record.entity_id, record)} an urgent message"
        case "OperatorStop":
            text = f"{actor} stopped {_name(record.entity_id, record)}"
        case _:
            text = f"{record.event} of {_name(record.entity_id, record)} by {actor}"
    return f"{text} at {_with_reason(record)}"


def _with_reason(record: LifecycleEvent) -> str:
    reason = _first_line(record.reason)
    return f"{time_of_day(record.timestamp)}{f': {reason}' if reason else ''}"


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
