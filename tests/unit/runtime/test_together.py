"""Groups: the records of one decision about several entities are written in one append, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from actors import failpoint
from supervisor.journal.memory import MemoryJournal, MemoryStore
from supervisor.lifecycles import job, task_run
from supervisor.lifecycles.entity_types import JOB_KIND, RUN_KIND
from supervisor.lifecycles.job import Job, JobData
from supervisor.lifecycles.task_run import TaskRun, TaskRunData
from supervisor.lifecycles.types import NoSuchEntity
from supervisor.ports import Append
from supervisor.runtime.entity import Entity, Refused
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.runtime.journal_writer import BATCH_MAX, Cause
from supervisor.work.end_of_work import record_end_of_work
from tests.support import Run, supervising

pytestmark = pytest.mark.anyio

BY_TEST = Cause(actor="test")


class Batches(MemoryJournal):
    """Journal that records the entities and events of each append."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.written: list[list[tuple[str, str]]] = []

    async def append(self, batch: Sequence[Append]) -> None:
        await super().append(batch)
        self.written.append([(one.record.entity_id, one.record.event) for one in batch])


def batches_of(run: Run) -> list[list[tuple[str, str]]]:
    assert isinstance(run.sup.core.journal, Batches)
    return run.sup.core.journal.written


def create_run_and_job(registry: EntityRegistry) -> None:
    with registry.journal_writer.together():
        for kind, state, data in ((RUN_KIND, TaskRun.PENDING, TaskRunData()), (JOB_KIND, Job.PENDING, JobData())):
            entity_id = f"{kind.kind.value}:a"
            registry.create_entity(kind, entity_id, parent_id=None, state=state, data=data, cause=BY_TEST)


async def test_a_decision_about_two_entities_is_one_append(tmp_path: Path) -> None:
    """A group is written in one append even if each append has only one record; each record of a group is the cause of
    the next one."""
    async with supervising(tmp_path, journal=Batches) as run:
        registry = run.sup.core.registry
        with failpoint.controlled_by(lambda name, subject: name == "ledger.batch_of_one"):
            create_run_and_job(registry)
            registry.record_fact("run:a", "Noted", BY_TEST, {})
            skipped, cancelled = task_run.Skipped(), job.UserCancelled(reason="skipped")
            last = registry.apply(("run:a", skipped), ("job:a", cancelled), cause=Cause(1, None, "test"))
            assert (registry.entity("run:a").state, registry.entity("job:a").state) == (TaskRun.SKIPPED, Job.CANCELLED)
            await registry.journal_writer.flush()
        assert batches_of(run) == [
            [("run:a", "Born"), ("job:a", "Born")],
            [("run:a", "Noted")],
            [("run:a", "skipped"), ("job:a", "user_cancelled")],
        ]
        assert last.cause_id == last.seq - 1


async def test_a_batch_that_is_full_is_extended_to_the_end_of_a_group(tmp_path: Path) -> None:
    async with supervising(tmp_path, journal=Batches) as run:
        registry = run.sup.core.registry
        create_run_and_job(registry)
        for _ in range(BATCH_MAX - 3):
            registry.record_fact("run:a", "Noted", BY_TEST, {})
        registry.apply(("run:a", task_run.Skipped()), ("job:a", job.UserCancelled()), cause=BY_TEST)
        registry.record_fact("run:a", "Noted", BY_TEST, {})
        await registry.journal_writer.flush()
        assert [len(one) for one in batches_of(run)] == [BATCH_MAX + 1, 1]


async def test_nested_groups_are_one_append(tmp_path: Path) -> None:
    """A group within a group belongs to the outer group: records before, within and after it are one append."""
    async with supervising(tmp_path, journal=Batches) as run:
        registry = run.sup.core.registry
        with failpoint.controlled_by(lambda name, subject: name == "ledger.batch_of_one"):
            create_run_and_job(registry)
            with registry.journal_writer.together():
                registry.record_fact("run:a", "Before", BY_TEST, {})
                registry.apply(("run:a", task_run.Skipped()), ("job:a", job.UserCancelled()), cause=BY_TEST)
                registry.record_fact("job:a", "After", BY_TEST, {})
            registry.record_fact("job:a", "Outside", BY_TEST, {})
            await registry.journal_writer.flush()
        assert [[event for _, event in batch] for batch in batches_of(run)] == [
            ["Born", "Born"],
            ["Before", "skipped", "user_cancelled", "After"],
            ["Outside"],
        ]


async def test_a_group_whose_block_raises_has_the_records_made_before(tmp_path: Path) -> None:
    """Nothing is rolled back: the records made before the error are one append, and the next record is none of the
    group."""
    async with supervising(tmp_path, journal=Batches) as run:
        registry = run.sup.core.registry
        with failpoint.controlled_by(lambda name, subject: name == "ledger.batch_of_one"):
            create_run_and_job(registry)
            with pytest.raises(NoSuchEntity), registry.journal_writer.together():
                registry.apply(("run:a", task_run.Skipped()), ("job:a", job.UserCancelled()), cause=BY_TEST)
                registry.apply(("run:nobody", task_run.Skipped()), cause=BY_TEST)
            registry.record_fact("job:a", "Outside", BY_TEST, {})
            await registry.journal_writer.flush()
        assert [[event for _, event in batch] for batch in batches_of(run)] == [
            ["Born", "Born"],
            ["skipped", "user_cancelled"],
            ["Outside"],
        ]


async def test_events_of_one_entity_are_steps_one_after_the_other(tmp_path: Path) -> None:
    async with supervising(tmp_path, journal=Batches) as run:
        registry = run.sup.core.registry
        create_run_and_job(registry)
        failed = task_run.ExecutionFailed(error="it broke")
        moves = [("run:a", one) for one in (task_run.ExecutorStarted(), failed, task_run.RetryDecided())]
        registry.apply(*moves, cause=BY_TEST)
        assert registry.entity("run:a").state is TaskRun.RETRYING
        assert registry.entity("run:a").data.failures == 1
        registry.apply(("run:a", task_run.Cancelled()), ("job:a", job.UserCancelled()), cause=BY_TEST)
        await registry.journal_writer.flush()


async def test_left_work_ends_although_a_part_of_it_refuses_its_end(tmp_path: Path) -> None:
    """Of several jobs that no plan continues, one that has ended already refuses its end: the others end."""
    async with supervising(tmp_path, journal=Batches, refused=True) as run:
        registry = run.sup.core.registry
        jobs: list[Entity] = []
        for one in ("a", "b"):
            more: dict[str, Any] = {"parent_id": f"task:{one}", "contained": False, "cause": BY_TEST}
            jobs.append(registry.create_entity(JOB_KIND, f"job:{one}", state=Job.PENDING, data=JobData(), **more))
        registry.apply(("job:a", job.UserCancelled()), cause=BY_TEST)
        record_end_of_work(registry, jobs)
        assert [one.state for one in jobs] == [Job.CANCELLED, Job.CANCELLED]
        await registry.journal_writer.flush()


async def test_where_one_event_is_refused_no_entity_moves(tmp_path: Path) -> None:
    async with supervising(tmp_path, journal=Batches, refused=True) as run:
        registry = run.sup.core.registry
        create_run_and_job(registry)
        with pytest.raises(Refused, match="validation_passed"):
            registry.apply(("run:a", task_run.Skipped()), ("job:a", job.ValidationPassed()), cause=BY_TEST)
        assert registry.entity("run:a").state is TaskRun.PENDING
        with pytest.raises(NoSuchEntity):
            registry.apply(("run:a", task_run.Skipped()), ("job:b", job.UserCancelled()), cause=BY_TEST)
        assert registry.entity("run:a").state is TaskRun.PENDING
        registry.apply(("run:a", task_run.Skipped()), ("job:a", job.UserCancelled()), cause=BY_TEST)
        await registry.journal_writer.flush()
        assert [one.outcome for one in run.events() if one.outcome != "born"] == ["refused", *2 * ["transition"]]
