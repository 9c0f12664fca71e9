"""Quality of the work on tasks: the checks of their results, their attempts, retries and rejections. Pure.

A check is one verdict about a result: of the acceptance tests and completion signals, of a reviewing agent, of the
merge, or of a person. Rows and records of a journal come in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from supervisor.diagnostics.outcomes import Outcomes, data_of
from supervisor.lifecycles import task, task_run
from supervisor.lifecycles.types import Kind, LifecycleEvent
from supervisor.ports import EntityRow

REVIEWED: Final = "Reviewed"
"""Name of the fact, in the log of a session, that an agent has reviewed its work."""
_VERDICTS: Final = {
    task_run.TestsPassed.name(): ("tests", True),
    task_run.TestsFailed.name(): ("tests", False),
    task.VerificationRejected.name(): ("verification", False),
    task.ApprovalDenied.name(): ("approval", False),
    task.ApprovalGranted.name(): ("approval", True),
}
"""Kind of a check, and whether the result passed, by the event."""
_RETRIES: Final = frozenset({task.Retried.name(), task_run.RetryDecided.name()})
QUALITY_EVENTS: Final = (*_VERDICTS, *_RETRIES, REVIEWED, task.Claimed.name())
"""Names of the events whose records are read."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict about a result: its ``kind`` (tests, review, verification, approval), the record with the verdict, its
    Unix time, who gave it, and the findings."""

    kind: str
    passed: bool
    seq: int
    at: float
    by: str
    text: str = ""


class TaskQuality(msgspec.Struct, frozen=True, kw_only=True):
    """Quality of the work on a task. ``claims`` counts the sessions that took it, ``attempts`` and ``failures`` are
    those of all its task runs, ``retries`` counts the decisions to try again, ``rejections`` the checks that the result
    did not pass. ``given_up``: only a person can have it tried again."""

    id: str
    name: str
    run: str
    state: str
    outcome: str
    claims: int
    attempts: int
    failures: int
    retries: int
    rejections: int
    given_up: bool
    checks: tuple[Check, ...]


class QualityTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over tasks. ``first_time`` counts the completed tasks whose result passed every check the first time."""

    tasks: int
    completed: int
    first_time: int
    attempts: int
    retries: int
    rejections: int
    given_up: int


def read_quality(
    rows: Collection[EntityRow], records: Iterable[LifecycleEvent], *, run: str | None = None
) -> tuple[QualityTotals, list[TaskQuality]]:
    """Return the quality of the work on each task among *rows*, in the order of their births, and the sums; with *run*
    only of the tasks of that run. *records* are those of ``QUALITY_EVENTS``, in order."""
    outcomes = Outcomes(rows)
    tasks = {row.id: row for row in sorted(rows, key=lambda row: row.born_seq) if row.kind == Kind.TASK}
    runs_of: dict[str, list[EntityRow]] = {}
    for row in rows:
        if row.kind == Kind.RUN:
            runs_of.setdefault(row.parent_id or "", []).append(row)
    task_of = {row.id: row.parent_id or "" for row in rows if row.kind == Kind.RUN}
    checks: dict[str, list[Check]] = {}
    retries: dict[str, int] = {}
    for record in records:
        about = task_of.get(record.entity_id, record.entity_id)
        if record.event == task.Claimed.name() and record.outcome == "transition":
            task_of[str(record.metadata.get("by", ""))] = about  # for the verdict of a reviewer about this session
        elif record.outcome not in ("transition", "fact"):
            continue  # it was refused, or came too late
        elif record.event in _RETRIES:
            retries[about] = retries.get(about, 0) + (record.to_status in (task.Task.OPEN.value, _RETRYING))
        elif (check := _check(record)) is not None:
            checks.setdefault(about, []).append(check)
    found: list[TaskQuality] = []
    for row in tasks.values():
        data, of_runs = data_of(row), [data_of(one) for one in runs_of.get(row.id, ())]
        verdicts = tuple(checks.get(row.id, ()))
        if run is not None and data.get("workstream") != run:
            continue
        quality = TaskQuality(
            id=row.id,
            name=str(data.get("name", "")),
            run=str(data.get("workstream", "")),
            state=row.state,
            outcome=outcomes.of(row),
            claims=int(data.get("claims", 0)),
            attempts=sum(int(one.get("attempts", 0)) for one in of_runs),
            failures=sum(int(one.get("failures", 0)) for one in of_runs),
            retries=retries.get(row.id, 0),
            rejections=sum(not one.passed for one in verdicts),
            given_up=bool(data.get("dead_letter")),
            checks=verdicts,
        )
        found.append(quality)
    return _totals(found), found


_RETRYING: Final = task_run.TaskRun.RETRYING.value


def _check(record: LifecycleEvent) -> Check | None:
    fact = record.metadata
    if record.event == REVIEWED:
        kind, passed, by = "review", bool(fact.get("approved")), str(fact.get("agent", ""))
        text = str(fact.get("problem") or "; ".join(map(str, fact.get("findings") or ())))
    elif record.event in _VERDICTS:
        kind, passed = _VERDICTS[record.event]
        by = str(fact.get("by") or record.actor)
        text = str(fact.get("error") or fact.get("findings") or record.reason)
    else:
        return None
    return Check(kind=kind, passed=passed, seq=record.seq, at=record.timestamp, by=by, text=text)


def _totals(found: Collection[TaskQuality]) -> QualityTotals:
    completed = [one for one in found if one.outcome == task.TaskEnd.COMPLETED]
    return QualityTotals(
        tasks=len(found),
        completed=len(completed),
        first_time=sum(not (one.rejections or one.retries) for one in completed),
        attempts=sum(one.attempts for one in found),
        retries=sum(one.retries for one in found),
        rejections=sum(one.rejections for one in found),
        given_up=sum(one.given_up for one in found),
    )
