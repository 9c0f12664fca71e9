"""Texts at the end of a run: a table of the tasks, the reason of each failure, and the result as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from supervisor.cli.options import DEFAULT, state_dir_words
from supervisor.cli.rendering import columns, cost, duration, json_line
from supervisor.diagnostics.worker_use import worker_use_words
from supervisor.lifecycles.run_ids import id_of_task
from supervisor.lifecycles.task import ENDS_WELL
from supervisor.policies.redaction import printable
from supervisor.work.results import PlanResult, TaskResult

_RUN_ENDS: Final = {"failed": "failed", "cancelled": "was cancelled"}
NO_STATES: Final[Mapping[str, str]] = MappingProxyType({})
TAIL_MAX: Final = 10
"""Number of lines of a test's output that are shown."""


def results_text(result: PlanResult, state_dir: Path = DEFAULT) -> str:
    """Return the text at the end of a run: a row for each task, remarks and reasons below, and the reason why the run
    did not succeed. *state_dir* is the state directory that the named commands read."""
    lines = [*task_lines(result, state_dir), *completion_lines(result)]
    if not result.ok:
        end = printable(f"the run {_RUN_ENDS[result.outcome]}: {result.why}")
        return "\n".join([*lines, "", end, *_tail(result.output), *branch_lines(result, state_dir)])
    logs = [_id(result, one) for one in result.tasks.values() if one.session_id]
    return "\n".join([*lines, *(["", f"what the agents wrote: {_logs(logs[0], state_dir)}"] if logs else [])])


def task_lines(result: PlanResult, state_dir: Path, states: Mapping[str, str] = NO_STATES) -> list[str]:
    """Return a table with a row for each task, and remarks and reasons below. *states* are the states of tasks by name,
    for tasks that have not ended."""
    heads = ("TASK", "OUTCOME", "LAUNCHES", "TOOK", "COST", "SESSION")
    rows = (
        (
            _id(result, one),
            one.outcome or states.get(one.id, ""),
            str(one.launches or "-"),
            duration(one.took_s),
            cost(one.cost_usd, one.tokens) or "-",
            one.session_id,
        )
        for one in result.tasks.values()
    )
    return [columns(heads, rows), *_reasons(result, state_dir)]


def completion_lines(result: PlanResult) -> list[str]:
    """Return a line with the number of tasks that ended well, and the use of the workers; none for a single task."""
    if len(result.tasks) < 2:
        return []
    done = sum(one.outcome in ENDS_WELL for one in result.tasks.values())
    return ["", printable("; ".join([f"{done} of {len(result.tasks)} tasks done", *worker_use_words(result.workers)]))]


def branch_lines(result: PlanResult, state_dir: Path) -> list[str]:
    """Return a line about the branch with the work of the completed tasks, if it is not merged."""
    if not result.branch:
        return []
    how = f"supervisor merge {result.run}{state_dir_words(state_dir)}"
    return [printable(f"what was completed is on the branch {result.branch}, and not merged: {how}")]


def results_json(result: PlanResult) -> str:
    """Return the last line of ``supervisor run --json``."""
    tasks = [one._asdict() for one in result.tasks.values()]
    end = {"run": result.run, "ok": result.ok, "outcome": result.outcome, "error": result.why, "output": result.output}
    end["branch"] = result.branch
    return json_line({**end, "tasks": tasks, "workers": result.workers})


def _id(result: PlanResult, one: TaskResult) -> str:
    """Return the id of a task, as commands take it."""
    return id_of_task(result.run, one.id) if result.run else one.id


def _reasons(result: PlanResult, state_dir: Path) -> Iterator[str]:
    """Yield the remarks about the tasks that have ended, and for each that did not succeed the reason and the command
    that prints the output of its agent."""
    for one in result.tasks.values():
        if not one.outcome:
            continue
        if one.outcome in ENDS_WELL:
            yield from (printable(f"{one.id}: {remark}") for remark in one.remarks)
            continue
        yield ""
        yield printable(f"{one.id} {one.outcome}: {one.error or 'no reason was recorded'}")
        yield from _tail(one.findings.removeprefix(one.error).lstrip("\n"))
        yield from (printable(f"    {remark}") for remark in one.remarks)
        if one.outcome == "failed" and one.session_id:
            yield f"    {_logs(_id(result, one), state_dir)}"


def _tail(output: str) -> list[str]:
    """Return the last lines of an output, marked as such."""
    lines = output.splitlines()
    more = [f"    ... ({len(lines) - TAIL_MAX} lines before)"] if len(lines) > TAIL_MAX else []
    return [*more, *(printable(f"    | {line}") for line in lines[-TAIL_MAX:])]


def _logs(task_id: str, state_dir: Path) -> str:
    return f"supervisor logs {printable(task_id)}{state_dir_words(state_dir)}"
