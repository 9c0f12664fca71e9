"""The judge's books of workers, slots and the archive: what the dead held, who beats, and what is preserved."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.simulation.plan_workload.operator_bot import HeartbeatSender
from tests.verification.checkers.archive import ArchiveChecker
from tests.verification.checkers.heartbeats import HeartbeatChecker
from tests.verification.checkers.leases import LeaseChecker
from tests.verification.records import append_of, record_of

BOUND_S = 60.0
PLAN = "workstream:w0"


class Log:
    """Durable records, one after the other; and what the books that hear of them find."""

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
    """A worker has a task, and its job runs."""
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
def test_what_a_lost_worker_held_is_free_within_the_bound(log: Log, at_s: float, broken: list[str]) -> None:
    """Its job leaves it in that time, or that is told when it does."""
    _loses(log)
    _lets_go(log.at(at_s))
    assert log.broken == broken


def test_what_is_never_let_go_of_is_told_all_the_same(log: Log) -> None:
    """Whatever is recorded next after the bound shows that it is overdue, once."""
    _loses(log)
    for _ in range(2):
        log.at(BOUND_S + 1).hear("worker:two", "Born", ">initializing", PLAN, misses_max=3)
    assert [(law, who) for law, who, _ in log.found] == [("released", "job:w0t0")]


def test_a_disk_that_was_down_is_given_on_top(log: Log) -> None:
    """What nobody could record is not late."""
    _loses(log)
    log.leases.delayed(100.0)
    _lets_go(log.at(BOUND_S + 100.0))
    assert log.broken == []


@pytest.mark.parametrize(("at_s", "broken"), [(BOUND_S, []), (BOUND_S + 1, ["released"])])
def test_a_job_that_is_over_gives_its_slot_back(log: Log, at_s: float, broken: list[str]) -> None:
    """The worker is told that it has one task less."""
    log.hear("job:w0t0", "execution_failed", "running>failed", "task:w0t0")
    log.at(at_s).hear("worker:one", "task_completed", "busy>idle", PLAN, task_id="w0t0")
    assert log.broken == broken


@pytest.mark.parametrize(("goes_on", "broken"), [(True, ["released"]), (False, [])])
def test_what_a_dead_supervisor_held_is_free_when_its_plan_goes_on(log: Log, goes_on: bool, broken: list[str]) -> None:
    """The bound begins with the first worker of the next one; of what nobody goes on with, there is none."""
    log.leases.started()
    log.hear("worker:two", "Born", ">initializing", PLAN if goes_on else "workstream:w1", misses_max=3)
    _lets_go(log.at(BOUND_S + 1))
    assert log.broken == broken


# ----------------------------------------------------------------------------------------------------- heartbeats
def test_who_is_registered_beats(log: Log) -> None:
    """Idle, busy, or lost and back again: nothing is wrong with that."""
    log.heartbeats.beat("worker:one", 1.0)
    _loses(log.at(91.0))
    log.heartbeats.beat("worker:one", 95.0)
    log.at(95.0).hear("worker:one", "health_check_recovered", "unresponsive>idle", PLAN)
    assert log.broken == []


def test_nobody_else_beats(log: Log) -> None:
    """Neither who is not registered yet, nor who was shut down, nor who is not there."""
    log.hear("worker:two", "Born", ">initializing", PLAN, misses_max=3)
    log.hear("worker:one", "shutdown_requested", "idle>shutdown", PLAN)
    for worker in ("worker:one", "worker:two", "worker:three"):
        log.heartbeats.beat(worker, 2.0)
    assert log.broken == ["health_monitoring"] * 3


@pytest.mark.parametrize(("at_s", "broken"), [(95.0, []), (88.0, ["health_monitoring"])])
def test_who_beats_is_not_lost(log: Log, at_s: float, broken: list[str]) -> None:
    """Three looks of half a minute have passed since it was heard."""
    log.heartbeats.beat("worker:one", 5.0)
    _loses(log.at(at_s))
    assert log.broken == broken


@pytest.mark.parametrize(("lost", "broken"), [(True, []), (False, ["health_monitoring"])])
def test_who_is_silent_is_lost(log: Log, lost: bool, broken: list[str]) -> None:
    """The next record, of whatever, shows for how long there was no beat."""
    log.heartbeats.beat("worker:one", 0.0)
    if lost:
        _loses(log.at(90.0))
    log.at(4 * 30.0 + BOUND_S + 1).hear("w0t0", "Born", ">Initializing")
    assert [law for law in log.broken if law == "health_monitoring"] == broken


def test_nobody_comes_back_unheard(log: Log) -> None:
    """A lost worker is taken back for a beat, and for nothing else."""
    log.heartbeats.beat("worker:one", 0.0)
    _loses(log.at(90.0))
    log.at(95.0).hear("worker:one", "health_check_recovered", "unresponsive>idle", PLAN)
    assert log.broken == ["health_monitoring"]


@pytest.mark.parametrize(("at_s", "broken"), [(401.0, []), (400.0 + 4 * 30.0 + BOUND_S + 1, ["health_monitoring"])])
def test_who_is_back_is_lost_no_sooner_than_that_is_on_record(log: Log, at_s: float, broken: list[str]) -> None:
    """Its return waits for a disk that is down, and it is silent again meanwhile: its looks begin when it is back."""
    log.heartbeats.beat("worker:one", 0.0)
    _loses(log.at(90.0))
    log.heartbeats.beat("worker:one", 95.0)
    back = msgspec.structs.replace(log.records[-1], event="health_check_recovered", to_status="idle")
    log.at(400.0).heartbeats.wrote(append_of(back, "idle", PLAN), 96.0)
    log.heartbeats.happened(at_s)
    assert log.broken == broken


class Patient:
    """A pool in whose pauses time goes by, and that expects one sign of life."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.heard_s: list[float] = []

    def beat(self, worker_id: str) -> bool:
        self.heard_s.append(self._log.now_s)
        return False

    async def pause(self, seconds: float) -> None:
        self._log.now_s += seconds


@pytest.mark.anyio
async def test_who_is_silenced_is_not_heard_for_so_long(log: Log) -> None:
    """Neither by the pool nor by the judge; then it beats on, until nobody expects it any more."""
    pool: Any = Patient(log)
    sender = HeartbeatSender(lambda worker: log.heartbeats.beat(worker, log.now_s), lambda: log.now_s, anyio.Event())
    sender.silence("worker:one", 60.0)
    await sender.beat(pool, "worker:one", 10.0)
    assert (pool.heard_s, log.broken) == ([60.0], [])


@pytest.mark.anyio
async def test_who_beats_for_a_supervisor_that_was_killed_is_heard_by_nobody(log: Log) -> None:
    """What its tasks still do says nothing of workers of that name under the next one."""
    killed = anyio.Event()
    killed.set()
    pool: Any = Patient(log)
    log.now_s = 60.0
    sender = HeartbeatSender(lambda worker: log.heartbeats.beat(worker, log.now_s), lambda: log.now_s, killed)
    await sender.beat(pool, "worker:nobody", 10.0)
    assert (pool.heard_s, log.broken) == ([60.0], [])


# ----------------------------------------------------------------------------------------------------------- archive
def _fails(log: Log) -> None:
    """A session works on it, and the whole fails."""
    log.hear("w0t0", "Born", ">Initializing")
    log.hear("task:w0t0", "claimed", "OPEN>CLAIMED", PLAN, by="w0t0")
    log.hear("w0t0:t1", "Born", ">IDLE", "w0t0")
    log.hear("other", "Born", ">Initializing")
    log.hear(PLAN, "settled_with_failures", "executing>failed")


def _about(log: Log) -> list[LifecycleEvent]:
    return [record for record in log.records if record.entity_id != "other"]


def test_a_failed_workstream_is_archived_with_all_that_belongs_to_it(log: Log) -> None:
    """Its own records, those of its tasks and workers, and those of the sessions that worked for it; no others."""
    _fails(log)
    log.archive.preserved("workstream-w0", _about(log))
    log.archive.closed()
    assert log.broken == []


@pytest.mark.parametrize("entity_id", [PLAN, "worker:one", "job:w0t0", "w0t0", "w0t0:t1"])
def test_what_the_archive_lacks_is_told(log: Log, entity_id: str) -> None:
    """A file without the last record of one of them is not whole."""
    _fails(log)
    about = _about(log)
    about.remove(next(record for record in reversed(about) if record.entity_id == entity_id))
    log.archive.preserved("workstream-w0", about)
    log.archive.closed()
    assert log.broken == ["archive_preservation"]


def test_a_failed_workstream_that_is_in_no_file_is_told(log: Log) -> None:
    """Once, under the supervisor under which it failed."""
    _fails(log)
    log.archive.closed()
    log.archive.closed()
    assert log.broken == ["archive_preservation"]


def test_a_supervisor_that_was_killed_preserves_nothing(log: Log) -> None:
    """What it did not come to is in the journal."""
    _fails(log)
    log.archive.killed()
    log.archive.closed()
    assert log.broken == []
