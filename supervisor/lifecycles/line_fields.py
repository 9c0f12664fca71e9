"""Fields of an entity's data that stand in the records of its transitions: those that spec 004's event schema and
invariants need. Pure.

The record of a transition describes the entity after the transition. Values that never change stand once, in the record
of the transition out of the first state; a reader keeps them. Times are seconds of the journal's clock,
which begins at Unix time.

Example: the ``metadata`` of a job's first two transitions, without the fields of the events::

    pending -> queued   {"duration_seconds": 0.0, "retry_count": 0, "max_retries": 4, "task_id": "w:a",
                         "workstream_id": "w", "created_at": 1764400000.5}
    queued -> running   {"duration_seconds": 0.1, "retry_count": 0, "started_at": 1764400000.6}
"""

from __future__ import annotations

from typing import Any

from supervisor.lifecycles.job import Job, JobData
from supervisor.lifecycles.task import TaskData
from supervisor.lifecycles.task_run import TaskRunData

Fields = dict[str, Any]


def job_fields(data: JobData, state: Job, first: bool) -> Fields:
    """Return the fields of a job that is now in *state*; *first*: the transition left the first state."""
    fields: Fields = {"retry_count": data.retry_count}
    if first:
        fields |= {"max_retries": data.max_retries, **_known(task_id=data.task, workstream_id=data.workstream_id)}
        fields |= {"critical": True} if data.critical else {}
        fields |= _time("created_at", data.created_at)
    if state is Job.RUNNING:
        fields |= _time("started_at", data.attempt_started_at)
    elif state is Job.COMPLETED:
        fields |= _time("completed_at", data.completed_at)
    return fields


def _known(**ids: str) -> Fields:
    """Return the ids that are not empty: a host may have a job without a task, or a task without a workstream."""
    return {name: value for name, value in ids.items() if value}


def _time(name: str, at: float | None) -> Fields:
    return {} if at is None else {name: round(at, 3)}


def run_fields(data: TaskRunData, state: object, first: bool) -> Fields:
    """Return the fields of a task run; *first*: the transition left the first state."""
    fields: Fields = {"retry_count": data.failures}
    return fields | {"max_retries": data.max_attempts - 1, **_known(task_id=data.task)} if first else fields


def task_fields(data: TaskData, state: object, first: bool) -> Fields:
    """Return the fields of a task; *first*: the transition left the first state."""
    fields: Fields = {"retry_count": data.retries}
    return fields | {"max_retries": data.max_retries, **_known(workstream_id=data.workstream)} if first else fields


def no_fields(data: object, state: object, first: bool) -> Fields:
    """Return no field: the events of a worker, a workstream and a trigger carry what their records need."""
    return {}
