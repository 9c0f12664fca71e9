"""Tests of the checkers of leases, heartbeats and the archive."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.lifecycles.types import LifecycleEvent
from tests.verification.checkers.archive import ArchiveChecker
from tests.verification.checkers.heartbeats import HeartbeatChecker
from tests.verification.checkers.leases import LeaseChecker
from tests.verification.records import append_of, record_of

BOUND_S = 60.0
PLAN = "workstream:w0"


class Log:
    """Checkers of leases, heartbeats and the archive that are given the same durable records, and a list of their
    reports."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str, str]] = []
        self.now_s = 0.0
        self.leases = LeaseChecker(self._say, BOUND_S, lambda: self.now_s)
        self.heartbeats = HeartbeatChecker(self._say, BOUND_S, lambda: self.now_s)
        self.archive = ArchiveChecker(self._say)
        self.records: list[LifecycleEvent] = []

    def _say(self, *words: str) -> None:
        law, who, message = words
        self.found.append((law, who, message))

    def hear(self, entity_id: str, event: str, states: str, above: str | None = None, **meta: Any) -> None:
        before, _, after = states.rpartition(">")
        if event == "Born" and entity_id.startswith("worker:"):
            meta = {"workstream": above, **meta}
        record = record_of(
            entity_id.partition(":")[0] if ":" in entity_id else "session",
            entity_id,
            event,
            seq=len(self.records) + 1,
            monotonic_s=self.now_s,
            from_status=before,
            to_status=after,
            outcome="born" if event == "Born" else "transition",
            metadata=meta,
        )
        self.records.append(record)
        one = append_of(record, after, above)
        self.archive.wrote(one)
        self.leases.wrote(one, self.now_s)
        self.heartbeats.happened(self.now_s)
        if record.entity_type == "worker":
            self.heartbeats.wrote(one, self.now_s)

    def at(self, now_s: float) -> Log:
        self.now_s = now_s
        return self

    @property
    def broken(self) -> list[str]:
        return [law for law, *_ in self.found]


@pytest.fixture
def log() -> Log:
    """Fixture: the checkers after the records of a worker with one task, whose job is running."""
    log = Log()
    log.hear(PLAN, "Born", ">planned")
    log.hear("worker:one", "Born", ">initializing", PLAN, misses_max=3)
    log.hear("worker:one", "registration_complete", "initializing>idle", PLAN)
    log.hear("task:w0t0", "Born", ">OPEN", PLAN, name="w0t0")
    log.hear("job:w0t0", "Born", ">pending", "task:w0t0", workstream_id=PLAN)
    log.hear("worker:one", "task_assigned", "idle>busy", PLAN, task_id="w0t0")
    log.hear("job:w0t0", "worker_started", "queued>running", "task:w0t0", worker_id="worker:one")
    return log


def _loses(log: Log) -> None:
    log.hear("worker:one", "health_check_timeout", "busy>unresponsive", PLAN, missed=3)


def _lets_go(log: Log) -> None:
    log.hear("job:w0t0", "worker_lost", "running>retrying", "task:w0t0")


# ------------------------------------------------------------------------------------------------------ what is held
@pytest.mark.parametrize(("at_s", "broken"), [(BOUND_S, []), (BOUND_S + 1, ["released"])])
def test_a_job_of_a_lost_worker_is_released_within_the_bound(log: Log, at_s: float, broken: list[str]) -> None:
    """A job that a lost worker held longer than the bound is reported when it is released."""
    _loses(log)
    _lets_go(log.at(at_s))
    assert log.broken == broken


def test_a_job_that_is_never_released_is_reported(log: Log) -> None:
    """A job that is never released is reported once, at the next record after the bound."""
    _loses(log)
    for _ in range(2):
        log.at(BOUND_S + 1).hear("worker:two", "Born", ">initializing", PLAN, misses_max=3)
    assert [(law, who) for law, who, _ in log.found] == [("released", "job:w0t0")]


@pytest.mark.parametrize(("at_s", "broken"), [(BOUND_S, []), (BOUND_S + 1, ["released"])])
def test_a_job_that_is_over_gives_its_slot_back(log: Log, at_s: float, broken: list[str]) -> None:
    """A worker that is not freed of a task within the bound after the task's job has ended is reported."""
    log.hear("job:w0t0", "execution_failed", "running>failed", "task:w0t0")
    log.at(at_s).hear("worker:one", "task_completed", "busy>idle", PLAN, task_id="w0t0")
    assert log.broken == broken


# ----------------------------------------------------------------------------------------------------- heartbeats


def test_no_other_worker_sends_heartbeats(log: Log) -> None:
    """Heartbeats of workers that are unregistered, shut down or unknown are reported."""
    log.hear("worker:two", "Born", ">initializing", PLAN, misses_max=3)
    log.hear("worker:one", "shutdown_requested", "idle>shutdown", PLAN)
    for worker in ("worker:one", "worker:two", "worker:three"):
        log.heartbeats.beat(worker, 2.0)
    assert log.broken == ["health_monitoring"] * 3


@pytest.mark.parametrize(("at_s", "broken"), [(95.0, []), (88.0, ["health_monitoring"])])
def test_a_worker_with_heartbeats_is_not_lost(log: Log, at_s: float, broken: list[str]) -> None:
    """A worker that is recorded as lost less than three checks of 30 s after a heartbeat is reported."""
    log.heartbeats.beat("worker:one", 5.0)
    _loses(log.at(at_s))
    assert log.broken == broken


@pytest.mark.parametrize(("lost", "broken"), [(True, []), (False, ["health_monitoring"])])
def test_a_silent_worker_is_lost(log: Log, lost: bool, broken: list[str]) -> None:
    """A worker that is silent for too long, and is not lost on record, is reported at the next record."""
    log.heartbeats.beat("worker:one", 0.0)
    if lost:
        _loses(log.at(90.0))
    log.at(4 * 30.0 + BOUND_S + 1).hear("w0t0", "Born", ">Initializing")
    assert [law for law in log.broken if law == "health_monitoring"] == broken


def test_a_lost_worker_comes_back_by_a_heartbeat_only(log: Log) -> None:
    """A lost worker that recovers on record without having sent a heartbeat is reported."""
    log.heartbeats.beat("worker:one", 0.0)
    _loses(log.at(90.0))
    log.at(95.0).hear("worker:one", "health_check_recovered", "unresponsive>idle", PLAN)
    assert log.broken == ["health_monitoring"]


# ----------------------------------------------------------------------------------------------------------- archive
def _fails(log: Log) -> None:
    """Record a session that works on the task, and the failure of the workstream."""
    log.hear("w0t0", "Born", ">Initializing")
    log.hear("task:w0t0", "claimed", "OPEN>CLAIMED", PLAN, by="w0t0")
    log.hear("w0t0:t1", "Born", ">IDLE", "w0t0")
    log.hear("other", "Born", ">Initializing")
    log.hear(PLAN, "settled_with_failures", "executing>failed")


def _about(log: Log) -> list[LifecycleEvent]:
    return [record for record in log.records if record.entity_id != "other"]


def test_a_failed_workstream_is_archived_with_all_that_belongs_to_it(log: Log) -> None:
    """A failed workstream is not reported if its archive file has the records of the workstream, its tasks and workers,
    and the sessions that worked for it."""
    _fails(log)
    log.archive.preserved(PLAN, _about(log))
    log.archive.closed()
    assert log.broken == []


@pytest.mark.parametrize("entity_id", [PLAN, "worker:one", "job:w0t0", "w0t0", "w0t0:t1"])
def test_a_record_that_the_archive_lacks_is_reported(log: Log, entity_id: str) -> None:
    """An archive file that lacks the last record of the workstream, a worker, a job, a session or a turn is
    reported."""
    _fails(log)
    about = _about(log)
    about.remove(next(record for record in reversed(about) if record.entity_id == entity_id))
    log.archive.preserved(PLAN, about)
    log.archive.closed()
    assert log.broken == ["archive_preservation"]


def test_a_failed_workstream_without_a_file_is_reported(log: Log) -> None:
    """A failed workstream without a file in the archive is reported once."""
    _fails(log)
    log.archive.closed()
    log.archive.closed()
    assert log.broken == ["archive_preservation"]
