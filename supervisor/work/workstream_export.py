"""Export of a workstream: every record of it, its tasks and their sessions, in one file of the archive (the dossier).

It is written when the workstream has ended, completed or failed, whatever later becomes of the journal: a reader finds
everything in one file. It is a copy; the journal counts. An export that cannot be written ends nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Final

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.policies.usage import UsageTotals
from supervisor.ports import JournalError
from supervisor.ports.logs import get_logger
from supervisor.work.plan_run import PlanRun

_ABOVE: Final = ("workstream", "workstream_id", "task")
"""Keys with which the birth of a task, a worker, a job or a run names what it belongs to."""
_log = get_logger()


async def record_usage(plan_run: PlanRun) -> None:
    """Record, before the workstream ends, what it has used in all, under however many supervisors."""
    books = UsageTotals()
    try:
        async for record in _since(plan_run):
            books.take(record)
    except JournalError as error:
        _log.warning(
            "what a workstream has used could not be summed up", workstream=plan_run.workstream.id, why=str(error)
        )
        return
    used = books.sums().get(plan_run.workstream.id)
    if used is not None:
        plan_run.workstream.record_usage(used)


async def export_workstream(plan_run: PlanRun) -> None:
    """Write all that was recorded of the workstream into the archive, if there is one."""
    upkeep = plan_run.sup.upkeep
    if upkeep is None:
        return
    name = plan_run.workstream.id.replace(":", "-")
    try:
        await upkeep.preserve(name, await _records(plan_run))
    except (JournalError, OSError) as error:
        _log.warning(
            "the dossier of a workstream could not be written", workstream=plan_run.workstream.id, why=str(error)
        )


async def _records(plan_run: PlanRun) -> list[LifecycleEvent]:
    """Return the records in their order. They are all there: nothing of a workstream leaves the journal while it is
    under way."""
    about: set[str] = {plan_run.workstream.id}
    async for record in _since(plan_run):
        _follow(record, about)
    return [record async for record in _since(plan_run) if _is_about(record.entity_id, about)]


async def _since(plan_run: PlanRun) -> AsyncIterator[LifecycleEvent]:
    """Yield what was recorded since the workstream was born."""
    after = plan_run.workstream.born_seq - 1
    while page := await plan_run.sup.journal.events(after_seq=after):
        for record in page:
            yield record
        after = page[-1].seq


def _follow(record: LifecycleEvent, about: set[str]) -> None:
    """Add the entity of a record, if its birth or its claim says that it belongs to the workstream."""
    told = record.metadata
    if record.event == "Born" and any(told.get(one) in about for one in _ABOVE):
        about.add(record.entity_id)
    elif record.event == "claimed" and record.entity_id in about:
        about.add(str(told["by"]))


def _is_about(entity_id: str, about: Collection[str]) -> bool:
    """Return whether the entity is one of *about*, or a turn, agent or child of such a session."""
    return entity_id in about or entity_id.partition(":")[0].partition("/")[0] in about
