"""Tests of the use of workers: jobs and slots in use, from the records of a run."""

from __future__ import annotations

from typing import Any

from supervisor.diagnostics.worker_use import WORKER_EVENTS, WorkerTimes, WorkerUse, worker_use_words
from supervisor.lifecycles.types import Kind, LifecycleEvent, RecordId


def worker_record(at_s: float, event: str, outcome: str = "transition", to: str = "", **fields: Any) -> LifecycleEvent:
    return LifecycleEvent(
        seq=RecordId(1),
        timestamp=at_s,
        monotonic_s=at_s,
        entity_type=Kind.WORKER,
        entity_id="worker:local",
        entity_seq=1,
        event=event,
        from_status="",
        to_status=to,
        outcome=outcome,
        actor="plan",
        reason="",
        severity="info",
        metadata=fields,
    )


def test_slots_are_in_use_from_the_assignment_to_the_end() -> None:
    """The seconds of all slots count together; a task that was refused counts for nothing, and neither does the
    time after the last job."""
    times = WorkerTimes()
    for one in (
        worker_record(100.0, "Born", "born", workstream="r1", max_concurrent_tasks=1),
        worker_record(100.0, "registration_complete", max_concurrent_tasks=2),
        worker_record(101.0, "task_assigned"),
        worker_record(102.0, "task_assigned"),
        worker_record(102.5, "task_assigned", "refused"),
        worker_record(103.0, "task_completed"),
        worker_record(105.0, "task_completed"),
        worker_record(110.0, "shutdown_requested", to="shutdown"),
        worker_record(200.0, "Standing", "fact"),
    ):
        times.take(one)
    assert {"Born", "task_assigned", "task_completed", "supervisor_lost"} <= set(WORKER_EVENTS)
    (used,) = times.of("r1")
    assert used == WorkerUse(id="worker:local", slots=2, jobs=2, lived_s=5.0, busy_s=5.0)
    assert (used.share, times.of("r2")) == (0.5, ())
    assert worker_use_words([used]) == ["worker:local: 2 jobs, 50% of 2 slots used"]


def test_a_worker_at_work_counts_up_to_the_last_record() -> None:
    """A worker that has not ended lives up to the last record that was read, and its open task too; the tasks of a
    worker that was lost end with it."""
    times = WorkerTimes()
    times.take(worker_record(0.0, "Born", "born", workstream="r1", max_concurrent_tasks=1))
    assert times.of("r1")[0].share == 0.0
    times.take(worker_record(2.0, "task_assigned"))
    times.take(worker_record(4.0, "Standing", "fact"))
    assert (times.of("r1")[0].busy_s, times.of("r1")[0].jobs) == (2.0, 0)
    times.take(worker_record(5.0, "health_check_timeout", to="unresponsive"))
    times.take(worker_record(9.0, "max_timeout_exceeded", to="shutdown"))
    assert (times.of("r1")[0].busy_s, times.of("r1")[0].lived_s) == (3.0, 5.0)
    assert worker_use_words(times.of("r1")) == ["worker:local: 0 jobs, 60% of 1 slot used"]
