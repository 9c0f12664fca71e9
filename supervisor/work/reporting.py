"""Find the result of an earlier plan run if the result was never reported.

A run is over when its result has been printed, or returned to the host, and not when its workstream has ended: a
supervisor may be killed in between. So the log of each workstream has two facts. ``Result``, with the end of every
task, comes before the record that ends the workstream: a reader that finds that end finds the result.
``ResultReported`` comes after the result was printed or returned. Where ``ResultReported`` is missing, the next run of
the same plan returns the recorded result, and starts nothing. After a kill between the print and its record, the result
is printed twice; no work is done twice.

Tasks that are missing in a ``Result`` (a critical task fails the workstream while others are at work) are read from
their rows in the journal. Only a workstream that was ended by its own run has a result: a workstream that a later
supervisor ended was interrupted, or given up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from supervisor.lifecycles.task import TaskData, TaskEnd, task_end
from supervisor.lifecycles.types import BEGINNING, SUPERVISOR_ENDED, Kind, LifecycleEvent, RecordId
from supervisor.lifecycles.workstream import ValidationFailed
from supervisor.ports import EntityRow, Journal
from supervisor.sessions.journal_state import records_of
from supervisor.work.results import PlanResult, TaskResult, not_accepted, unmerged_of
from supervisor.work.task_execution import ACTOR

PLAN: Final = "Plan"
"""Name of the fact with the plan of a workstream; the last one is the plan with all tasks that were added."""
RESULT: Final = "Result"
"""Name of the fact that lists the ends of the tasks of a workstream."""
SUBMITTED: Final = "Submitted"
"""Name of the fact with the directory, the names of chosen variables, and the token of a plan that was submitted."""
REPORTED: Final = "ResultReported"
"""Name of the fact that the result was printed, or returned to the host, or superseded by another run."""


class UnreportedResult(NamedTuple):
    """A result that was never reported, with the row of its workstream in the journal and the number of that
    workstream's last record."""

    result: PlanResult
    row: EntityRow
    last_seq: RecordId

    @property
    def words(self) -> str:
        """A sentence about the result."""
        done = sum(1 for one in self.result.tasks.values() if one.outcome == TaskEnd.COMPLETED)
        how = "well" if self.result.ok else "not well"
        return f"run {self.row.id}, which ended {how}: {done} of {len(self.result.tasks)} tasks completed"


async def read_unreported_result(journal: Journal, workstream_id: str) -> UnreportedResult | None:
    """Read the result of a workstream that has ended; ``None`` if it was reported, or there is none.

    Raises:
        JournalError: the journal cannot be read.
    """
    return await read_result(journal, workstream_id, unreported=True)


async def read_result(journal: Journal, workstream_id: str, *, unreported: bool = False) -> UnreportedResult | None:
    """Read the result of a workstream that has ended; ``None`` if there is none, or, where it has to be *unreported*,
    if it was reported.

    Raises:
        JournalError: the journal cannot be read.
    """
    records = await records_of(journal, workstream_id)
    # A run whose merge was held has a second result, which is reported by itself.
    facts = {record.event: record.seq for record in records if record.outcome == "fact"}
    if RESULT not in facts or (unreported and facts.get(REPORTED, BEGINNING) > facts[RESULT]):
        return None
    rows = [row for row in await journal.entities() if row.id == workstream_id or row.kind == Kind.TASK]
    result = recorded_result(records, rows, workstream_id)
    if result is None:
        return None
    row = next(row for row in rows if row.id == workstream_id)
    return UnreportedResult(result._replace(earlier=workstream_id), row, records[-1].seq)


def recorded_result(
    records: Iterable[LifecycleEvent], rows: Sequence[EntityRow], workstream_id: str
) -> PlanResult | None:
    """Return the result of a workstream that its own run has ended; ``None`` if there is none.

    Args:
        records: the records of the workstream, in their order.
        rows: the rows of at least the tasks of the workstream.
        workstream_id: the id of the workstream.
    """
    result: LifecycleEvent | None = None
    end: LifecycleEvent | None = None
    for record in records:
        if record.event == RESULT:
            result = record
        elif record.outcome == "transition":
            end = record
    if result is None or end is None or end.actor != ACTOR:
        return None
    told = [TaskResult(**{**one, "remarks": tuple(one["remarks"])}) for one in result.metadata["tasks"]]
    known = {one.id: one for one in told}
    why = f"the task {told[-1].id} failed, which ends the run" if told else ""  # only that ends it before its tasks
    missing = [one for one in results_of_rows(rows, workstream_id, why) if one.id not in known]
    error = not_accepted(str(end.metadata["error"])) if end.event == ValidationFailed.name() else ""
    return PlanResult({**known, **{one.id: one for one in missing}}, error, run=workstream_id)


async def read_plan(journal: Journal, workstream_id: str) -> Mapping[str, Any] | None:
    """Read the plan of a workstream, as plain data; ``None`` if the journal has none.

    Raises:
        JournalError: the journal cannot be read.
    """
    plan: Mapping[str, Any] | None = None
    for record in await records_of(journal, workstream_id):
        if record.event == PLAN:
            plan = record.metadata["plan"]
    return plan


def results_of_rows(rows: Iterable[EntityRow], workstream_id: str, why: str | None) -> Iterable[TaskResult]:
    """Yield the results of the tasks of a workstream, read from their rows. A task that was ended only by the next
    supervisor was at work, or waited, when the workstream failed: *why* is the reason for that failure. With ``None``
    the workstream has not ended, and a task that has not ended has the outcome ``""``."""
    for row in rows:
        if row.kind == Kind.TASK:
            data = msgspec.json.decode(row.data, type=TaskData)
            if data.workstream == workstream_id:
                cut_short, end = data.last_failure == SUPERVISOR_ENDED, task_end(row.state, data.ended_as)
                if why is None:
                    outcome, error = end, data.last_failure if end not in ("", TaskEnd.COMPLETED) else ""
                else:
                    outcome = TaskEnd.CANCELLED.value if cut_short else end or TaskEnd.CANCELLED.value
                    error = "" if outcome == TaskEnd.COMPLETED else why if cut_short else data.last_failure or why
                yield TaskResult(data.name, data.claimed_by, outcome, error, row.lasted_s, *unmerged_of(data.rest))
