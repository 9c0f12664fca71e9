"""Texts at the end of a run: a table of the tasks, the reason of each failure, and the result as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from types import MappingProxyType
from typing import Final

from supervisor.cli.options import DEFAULT, state_dir_words
from supervisor.cli.rendering import columns, cost, duration, json_line
from supervisor.diagnostics.worker_use import worker_use_words
from supervisor.lifecycles.run_ids import id_of_task
from supervisor.lifecycles.task import ENDS_WELL
from supervisor.policies.redaction import printable
from supervisor.work.results import PlanResult, TaskResult, named

_RUN_ENDS: Final = {"failed": "failed", "cancelled": "was cancelled"}
NO_STATES: Final[Mapping[str, str]] = MappingProxyType({})
TAIL_MAX: Final = 10
"""Number of lines of a test's output that are shown."""
WAITED_MIN_S: Final = 0.1
"""Seconds of waiting that are worth a word."""
NAMES_WIDTH: Final = 76
"""Columns of the names of tasks that have one reason, without the indentation."""


def results_text(result: PlanResult, state_dir: Path = DEFAULT, width: int | None = None) -> str:
    """Return the text at the end of a run: a row for each task, remarks and reasons below, and the reason why the run
    did not succeed. *state_dir* is the state directory that the named commands read, *width* the columns of the
    terminal."""
    lines = [*task_lines(result, state_dir, width=width), *completion_lines(result)]
    if not result.ok:
        end = printable(f"the run {_RUN_ENDS[result.outcome]}: {result.why}")
        return "\n".join([*lines, "", end, *_tail(result.output), *branch_lines(result, state_dir)])
    logs = [_id(result, one) for one in result.tasks.values() if one.session_id]
    return "\n".join([*lines, *(["", f"what the agents wrote: {_logs(logs[0], state_dir)}"] if logs else [])])


def task_lines(
    result: PlanResult, state_dir: Path, states: Mapping[str, str] = NO_STATES, width: int | None = None
) -> list[str]:
    """Return a table with a row for each task, and remarks and reasons below. *states* are the states of tasks by name,
    for tasks that have not ended. What a task has waited (for its next attempt, an approval, an obstacle) is a column
    of its own, if any has. In a table that is too wide for *width*, a session is named only if it has not its task's
    name."""
    tasks = list(result.tasks.values())
    table = {
        "TASK": [_id(result, one) for one in tasks],
        "OUTCOME": [one.outcome or states.get(one.id, "") for one in tasks],
        "LAUNCHES": [str(one.launches or "-") for one in tasks],
        "TOOK": [duration(one.worked_s or one.took_s) for one in tasks],
        "WAITED": [duration(one.waited_s) if one.waited_s >= WAITED_MIN_S else "" for one in tasks],
        "COST": [cost(one.cost_usd, one.tokens) or "-" for one in tasks],
        "SESSION": [one.session_id for one in tasks],
    }
    if not any(table["WAITED"]):
        del table["WAITED"]
    if width is not None and max(map(len, _table(table, None).splitlines())) > width:
        table["SESSION"] = ["" if one.session_id == one.id else one.session_id for one in tasks]
        if not any(table["SESSION"]):
            del table["SESSION"]
    return [_table(table, width), *_reasons(result, state_dir)]


def _table(table: Mapping[str, Sequence[str]], width: int | None) -> str:
    return columns(tuple(table), zip(*table.values(), strict=True), width)


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
    that prints the output of its agent. What is the same for several tasks stands once, with their number and names."""
    equal: dict[tuple[str, ...], list[TaskResult]] = {}
    for one in result.tasks.values():
        if one.outcome in ENDS_WELL:
            yield from (printable(f"{one.id}: {remark}") for remark in one.remarks)
        elif one.outcome:
            findings = one.findings.removeprefix(one.error).lstrip("\n")
            equal.setdefault((one.outcome, one.error, findings, *one.remarks), []).append(one)
    for (outcome, error, findings, *remarks), tasks in equal.items():
        names = tasks[0].id if len(tasks) == 1 else f"{len(tasks)} tasks"
        yield ""
        yield printable(f"{names} {outcome}: {error or 'no reason was recorded'}")
        if len(tasks) > 1:
            yield from (printable(f"    {line}") for line in wrap(named([one.id for one in tasks]), NAMES_WIDTH))
        yield from _tail(findings)
        yield from (printable(f"    {remark}") for remark in remarks)
        if outcome == "failed" and (logged := next((one for one in tasks if one.session_id), None)) is not None:
            yield f"    {_logs(_id(result, logged), state_dir)}"


def _tail(output: str) -> list[str]:
    """Return the last lines of an output, marked as such."""
    lines = output.splitlines()
    more = [f"    ... ({len(lines) - TAIL_MAX} lines before)"] if len(lines) > TAIL_MAX else []
    return [*more, *(printable(f"    | {line}") for line in lines[-TAIL_MAX:])]


def _logs(task_id: str, state_dir: Path) -> str:
    return f"supervisor logs {printable(task_id)}{state_dir_words(state_dir)}"
