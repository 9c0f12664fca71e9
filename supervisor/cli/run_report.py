"""``supervisor report``: the result of a run, also long after its end: its tasks, usage, merges, and what waits.

The command reads the state directory, with or without a running supervisor. The result of a run that ended by itself is
the one that was recorded, and so the same as at its end. The tasks of any other run are read from their rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import msgspec

from supervisor.cli.completion import complete_ids
from supervisor.cli.lookup import open_journal, run_given
from supervisor.cli.options import examples, json_option, say, state_dir_option, state_dir_words
from supervisor.cli.rendering import counted, duration, json_text, local_time
from supervisor.cli.results import branch_lines, completion_lines, task_lines
from supervisor.cli.terminal import table_width
from supervisor.diagnostics.outcomes import data_of
from supervisor.diagnostics.run_summary import RunSummary, merge_obstacle, summarize_runs
from supervisor.diagnostics.state_times import read_state_times
from supervisor.diagnostics.tree_view import Notes, permission_id, waiting_permissions
from supervisor.diagnostics.worker_use import WORKER_EVENTS, WorkerTimes
from supervisor.lifecycles.run_ids import id_of_task, run_of
from supervisor.lifecycles.task import ApprovalGranted, Closed, Task
from supervisor.lifecycles.types import Kind
from supervisor.lifecycles.workstream import ValidationPassed
from supervisor.policies.budgets import Amounts
from supervisor.policies.redaction import printable
from supervisor.policies.usage import NOTHING
from supervisor.ports import EntityRow, Reader
from supervisor.work.completion_pipeline import MERGED
from supervisor.work.reporting import recorded_result, results_of_rows
from supervisor.work.results import PlanResult
from supervisor.work.task_usage import TASK_USAGE_EVENTS, TaskUsage
from supervisor.work.workstream import MERGE_PLAN, WHOLE_MERGED

_FOR_A_PERSON: Final = (Task.PLANNED.value, Task.PENDING_APPROVAL.value, Task.BLOCKED.value)
_MERGE_EVENTS: Final = (Closed.spelled, ApprovalGranted.spelled, MERGED, ValidationPassed.spelled, WHOLE_MERGED)
_IS_MERGED: Final = "merged into "
"""Beginning of the sentence in the record of a merge that has changed the target."""


@click.command("report", epilog=examples("supervisor report", "supervisor report r1 --json"))
@click.argument("run", metavar="[RUN]", required=False, shell_complete=complete_ids(Kind.WORKSTREAM))
@state_dir_option
@json_option
def report_command(run: str | None, state_dir: Path, as_json: bool) -> None:
    """RUN is the id of a run (`supervisor runs` lists them); without RUN, the newest is reported. The table is that at
    the end of `supervisor run`. Below are what was merged, and what waits for a person."""
    with open_journal(state_dir) as (state, reader):
        running = state.lock_holder() is not None  # before the rows, as in ``runs``
        row = run_given(reader, run)
        report = read_report(reader, row, now=time.time(), supervised=running, options=state_dir_words(state.root))
    say(json_text(report_json(report)) if as_json else report_text(report, state_dir))


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """A task or permission request that waits for a person; ``note`` says for what, and the command that answers."""

    id: str
    note: str


class RunReport(NamedTuple):
    """Report about a run: its summary, the amounts that its tasks have used, the results of the tasks, the states of
    the tasks by their names, the sentences about merges by the ids of tasks and of the run, and what waits for a
    person. A task that has not ended has the outcome ``""``."""

    run: RunSummary
    used: Amounts
    result: PlanResult
    states: Mapping[str, str]
    merged: Mapping[str, str]
    waiting: Sequence[Wait]


def read_report(reader: Reader, run: EntityRow, *, now: float, supervised: bool, options: str) -> RunReport:
    """Read the report about *run*, the row of its workstream.

    Args:
        reader: the journal.
        run: the row of the workstream of the run.
        now: Unix time.
        supervised: whether a supervisor runs.
        options: options for the commands in the texts.
    """
    rows = reader.entities()
    if all(row.id != run.id for row in rows):
        rows = reader.entities(archived=True)
    usage = TaskUsage()
    workers = WorkerTimes()
    for record in reader.events_named(*{*TASK_USAGE_EVENTS, *WORKER_EVENTS}, archived=True):
        usage.take(record)
        workers.take(record)
    sums = usage.sums()
    (summary,) = [one for one in summarize_runs(rows, sums, now=now, supervised=supervised) if one.id == run.id]
    tasks = [row for row in rows if row.kind == Kind.TASK and data_of(row).get("workstream") == run.id]
    return RunReport(
        summary,
        sums.get(run.id, NOTHING),
        _result(reader, run, rows, usage)._replace(workers=workers.of(run.id), branch=_branch(reader, run)),
        {str(data_of(row).get("name")): row.state for row in tasks},
        dict(_merges(reader, run.id)),
        [] if run.ended else list(_waiting(reader, rows, tasks, now, options)),
    )


def _result(reader: Reader, run: EntityRow, rows: Sequence[EntityRow], usage: TaskUsage) -> PlanResult:
    """Return the result of a run: the recorded one, or else what the rows say."""
    recorded = recorded_result(reader.events(run.id, archived=True), rows, run.id)
    known = recorded.tasks if recorded is not None else {}
    why = str(data_of(run).get("last_error") or "its run has ended") if run.ended else None
    found = results_of_rows(rows, run.id, why)
    unknown = [(id_of_task(run.id, one.id), one) for one in found if one.id not in known]
    tasks = {**known, **{one.id: one for one in usage.complete(*unknown)}}
    error = recorded.error if recorded is not None else ""
    if obstacle := merge_obstacle(run):
        error = f"not merged: {obstacle}"
    return PlanResult(tasks, error, run=run.id)


def _branch(reader: Reader, run: EntityRow) -> str:
    """Return the branch with the work of a run that is not merged; ``""`` if there is none."""
    branch = ""
    for record in reader.events(run.id, archived=True):
        if record.event == MERGE_PLAN:
            branch = "" if record.metadata["is_merged"] else str(record.metadata["branch"])
        elif record.event in (WHOLE_MERGED, ValidationPassed.spelled):
            branch = ""
    return branch


def _merges(reader: Reader, run_id: str) -> Iterator[tuple[str, str]]:
    """Yield the id of each task of a run whose work was merged, or of the run, and the sentence about the merge."""
    for record in reader.events_named(*_MERGE_EVENTS, archived=True):
        if run_of(record.entity_id) == run_id and record.reason.startswith(_IS_MERGED):
            yield str(record.metadata.get("task") or record.entity_id), record.reason


def _waiting(
    reader: Reader, rows: Sequence[EntityRow], tasks: Sequence[EntityRow], now: float, options: str
) -> Iterator[Wait]:
    """Yield the tasks of a run that wait for a person, and the permission requests of their sessions."""
    notes = Notes(rows, read_state_times(reader, rows), options, now=now)
    holders = {str(data_of(row).get("claimed_by")) for row in tasks if data_of(row).get("claimed_by")}
    for row in tasks:
        if row.state in _FOR_A_PERSON:
            yield Wait(id=row.id, note=notes.of(row, data_of(row)))
    for row in rows:
        if row.kind == Kind.TURN and not row.ended and (row.parent_id or "").partition("/")[0] in holders:
            for one in waiting_permissions(data_of(row)):
                yield Wait(id=permission_id(row, one), note=f"{notes.permission(row, one)} ({one['title']})")


# ---------------------------------------------------------------------------------------------------------- text
def report_text(report: RunReport, state_dir: Path) -> str:
    """Return the report as text for people. *state_dir* is the state directory that the named commands read."""
    run, used = report.run, report.used
    tasks = counted(run.tasks, "task", "tasks")
    lines = [
        printable(f"run {run.id} of {run.plan}: {run.words}, {run.done} of {tasks} done"),
        f"started {local_time(run.started_at)}, took {duration(run.took_s)}; used: {used.words or 'nothing reported'}",
        "",
        *task_lines(report.result, state_dir, report.states, table_width()),
        *completion_lines(report.result),
    ]
    if report.merged:
        lines += ["", *(printable(f"{task}: {merge}") for task, merge in report.merged.items())]
    if report.waiting:
        lines += ["", "waits for a person:", *(printable(f"    {one.id}: {one.note}") for one in report.waiting)]
    if run.outcome and report.result.why:
        lines += ["", printable(report.result.why)]
    if run.held_by:
        lines += ["", printable(f"held by {run.held_by}")]
    lines += branch_lines(report.result, state_dir) if run.outcome else []
    return "\n".join(lines)


def report_json(report: RunReport) -> Mapping[str, Any]:
    """Return the report as plain data."""
    tasks = [{**one._asdict(), "state": report.states.get(one.id, "")} for one in report.result.tasks.values()]
    return {
        "run": report.run,
        "ok": report.result.ok,
        "error": report.result.why if report.run.outcome or report.run.held_by else "",
        "used": report.used.as_record,
        "tasks": tasks,
        "workers": report.result.workers,
        "merged": report.merged,
        "branch": report.result.branch,
        "waiting": report.waiting,
    }
