"""Export of a workstream: all records of the workstream, its tasks and their sessions, in one archive file (the
dossier).

The dossier is written when the workstream has ended, by its run or after a crash, whatever later happens to the
journal, so that a reader finds everything in one file. The dossier is a copy; the journal is authoritative. If an
export cannot be written, only a warning is logged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Final

from supervisor.diagnostics.worker_use import WorkerTimes, WorkerUse
from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles.record_ids import id_before
from supervisor.lifecycles.types import LifecycleEvent, RecordId
from supervisor.ports import JournalError
from supervisor.ports.logs import get_logger
from supervisor.work.attempt_limits import kind_of
from supervisor.work.plan_run import PlanRun
from supervisor.work.task_usage import TaskUsage

_ABOVE: Final = ("workstream", "workstream_id", "task")
"""Keys in the first record of a task, worker, job or run that name the entity above it."""
_log = get_logger()


async def record_usage(plan_run: PlanRun) -> tuple[WorkerUse, ...]:
    """Before the workstream ends, record the total amounts that it has used, and add to the result of each task the
    amounts, the launches, the agent and the time of the last attempt, under all supervisors. Return the
    use of the workers."""
    used, workers = TaskUsage(), WorkerTimes()
    try:
        async for record in records_since(plan_run.sup, plan_run.workstream.born_seq):
            used.take(record)
            workers.take(record)
    except JournalError as error:
        _log.warning(
            "what a workstream has used could not be summed up", workstream=plan_run.workstream.id, why=str(error)
        )
        return ()
    settled = [(one, one.result) for one in plan_run.executions.values() if one.result is not None]
    completed = used.complete(*((execution.id, result) for execution, result in settled))
    for (execution, _), result in zip(settled, completed, strict=True):
        kind = kind_of(execution.task)
        execution.result = result._replace(size=kind.words if kind is not None else "")
    if (whole := used.sums().get(plan_run.workstream.id)) is not None:
        plan_run.workstream.record_usage(whole)
    return workers.of(plan_run.workstream.id)


async def export_workstream(sup: SupervisorCore, workstream_id: str, born_seq: RecordId) -> None:
    """Write all records of a workstream, whose first one is *born_seq*, into the archive, if there is one."""
    upkeep = sup.upkeep
    if upkeep is None:
        return
    try:
        await upkeep.preserve(workstream_id, await _records(sup, workstream_id, born_seq))
    except (JournalError, OSError) as error:
        _log.warning("the dossier of a workstream could not be written", workstream=workstream_id, why=str(error))


async def _records(sup: SupervisorCore, workstream_id: str, born_seq: RecordId) -> list[LifecycleEvent]:
    """Return the records of the workstream in their order. The list is complete: no record of a workstream is removed
    from the journal while the workstream is under way."""
    about: set[str] = {workstream_id}
    async for record in records_since(sup, born_seq):
        _follow(record, about)
    return [record async for record in records_since(sup, born_seq) if _is_about(record.entity_id, about)]


async def records_since(sup: SupervisorCore, first: RecordId) -> AsyncIterator[LifecycleEvent]:
    """Yield all records from *first* on, the first record of a workstream."""
    after = id_before(first)
    while page := await sup.journal.events(after_seq=after):
        for record in page:
            yield record
        after = page[-1].seq


def _follow(record: LifecycleEvent, about: set[str]) -> None:
    """Add the entity of a record to *about*, if its first record or its claim shows that it belongs to the
    workstream."""
    told = record.metadata
    if record.event == "Born" and any(told.get(one) in about for one in _ABOVE):
        about.add(record.entity_id)
    elif record.event == "claimed" and record.entity_id in about:
        about.add(str(told["by"]))


def _is_about(entity_id: str, about: Collection[str]) -> bool:
    """Return whether the entity is in *about*, or is a turn, agent or child session of a session in *about*."""
    return entity_id in about or entity_id.partition(":")[0].partition("/")[0] in about
