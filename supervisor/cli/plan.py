"""``supervisor plan``: check a plan without running it, show its stages, print the JSON Schema of plans for editors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import anyio
import click
from click.core import ParameterSource

from supervisor.agent_catalogue import catalogue
from supervisor.cli.options import PATH, check_workdir, examples, say, state_dir_option
from supervisor.cli.plan_input import STANDARD_INPUT, read_plan
from supervisor.cli.plan_show import show_command
from supervisor.cli.rendering import columns
from supervisor.cli.terminal import table_width
from supervisor.cli.time_outs import time_outs, time_outs_json, time_outs_text
from supervisor.control.error_messages import DONE, BadInput
from supervisor.embedding.journals import open_reader
from supervisor.embedding.runtime import check_environment
from supervisor.journal.statedir import StateDirError
from supervisor.plans import BadPlan, Plan
from supervisor.plans.enforcement import agent_started
from supervisor.plans.loading import programs_to_come
from supervisor.plans.source import spelled
from supervisor.plans.tasks import every_task
from supervisor.ports import JournalError
from supervisor.work.budgeting import narrowings
from supervisor.work.plan_histories import read_history
from supervisor.work.task_history import TaskHistory
from supervisor.work.worst_case import WorstCase, limit_of, retries_max, worst_cases
from supervisor.workspaces.git_command import WorkspaceError

NAMED_MAX: Final = 3
"""Number of tasks with equal worst cases that are named."""


@click.group("plan", epilog=examples("supervisor plan check plan.yaml"))
def plan_group() -> None:
    pass


@plan_group.command("check", epilog=examples("supervisor plan check plan.yaml"))
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--workdir", type=PATH, default=Path(), show_default=True, help="Directory in which the agents work.")
@state_dir_option
def _check(plan: Path, as_json: bool, workdir: Path, state_dir: Path) -> int:
    """Check the whole plan, as `run` does before it starts anything. Say which time-out each task has, why, and what
    earlier runs took and cost; and after how many tries and how long a task has failed if its agent fails for ever.
    PLAN is a YAML file, or - for standard input."""
    try:
        found = read_plan(plan)
        check_workdir(workdir)
        remarks = anyio.run(check_environment, found.agents, found.settings, workdir)
    except (BadPlan, ValueError, WorkspaceError) as error:
        raise BadInput(str(error)) from None
    name = "standard input" if plan == STANDARD_INPUT else plan
    history = _history(found, state_dir)
    warnings = {**_warnings(found, history), "repository": remarks}
    if as_json:
        say(json.dumps(_as_json(found, history, warnings)))
        return DONE
    say(f"{name}: {_summary(found)}: no problems")
    for words in (words for lines in warnings.values() for words in lines):
        say(f"{name}: {words}")
    limits = time_outs(found, history)
    say(f"\n{time_outs_text(limits, [_names(one.tasks, whole=len(limits) == 1) for one in limits])}")
    say(f"\n{_worst_cases_text(found, history)}")
    return DONE


def _history(plan: Plan, state_dir: Path) -> TaskHistory:
    """Return the history of the plan in the state directory; none if there is no state directory yet.

    Raises:
        StateDirError: ``--state-dir`` names no state directory.
    """
    try:
        with open_reader(state_dir) as reader:
            return read_history(reader, plan.workstream, where=str(state_dir))
    except StateDirError:
        if click.get_current_context().get_parameter_source("state_dir") is ParameterSource.COMMANDLINE:
            raise
        return TaskHistory()
    except JournalError as error:
        return TaskHistory(warnings=[f"earlier runs teach nothing: {error}"] if state_dir.is_dir() else [])


def _worst_cases(plan: Plan, history: TaskHistory) -> dict[tuple[WorstCase, ...], list[str]]:
    """Return the names of the tasks by their worst cases, in the order of the plan."""
    found: dict[tuple[WorstCase, ...], list[str]] = {}
    for one in every_task(plan.tasks):
        found.setdefault(tuple(worst_cases(plan, one.task, history)), []).append(one.task.id)
    return found


def _worst_cases_text(plan: Plan, history: TaskHistory) -> str:
    """Return a table of the worst cases, with a row for each way to fail of the tasks that have the same figures."""
    groups = _worst_cases(plan, history)
    rows = [
        (_names(names, whole=len(groups) == 1) if number == 0 else "", one.when, str(one.tries), _at_most(one.seconds))
        for cases, names in groups.items()
        for number, one in enumerate(cases)
    ]
    tasks = sum(len(names) for names in groups.values())
    together = f"Together, the tasks answer failures with at most {_counted(retries_max(plan), 'launch', 'es')}"
    return "\n".join(
        [
            "If its agent fails for ever, a task has failed after (agent's time not counted):",
            columns(("TASK", "ITS AGENT", "TRIES", "AT MOST"), rows, table_width()),
            *([f"{together} (retry_budget)."] if tasks > 1 else []),
        ]
    )


def _names(names: Sequence[str], *, whole: bool) -> str:
    if whole and len(names) > 1:
        return f"each of {len(names)}"
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"{', '.join(names[:NAMED_MAX])}{more}"


def _at_most(seconds: float) -> str:
    """Return a time in the unit in which people count it, rounded up: ``8 s``, ``18 min``, ``6 h``."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds > 2 * size:
            return f"{math.ceil(seconds / size)} {unit}"
    return f"{math.ceil(seconds)} s"


def _as_json(plan: Plan, history: TaskHistory, warnings: Mapping[str, list[str]]) -> dict[str, object]:
    """Return the names in *plan*, and *warnings*, as data; subtasks are listed among the tasks, each after its
    parent."""
    tasks = [one.task.id for one in every_task(plan.tasks)]
    said = {"workstream": plan.workstream, "agents": list(plan.agents), "workers": list(plan.workers), "tasks": tasks}
    groups = _worst_cases(plan, history)
    worst = [{"tasks": names, "ways": [one._asdict() for one in cases]} for cases, names in groups.items()]
    limits = time_outs_json(time_outs(plan, history))
    told = {"time_outs": limits, "worst_cases": worst, "retries_max": retries_max(plan)}
    return {"ok": True, **said, **told, **{name: lines for name, lines in warnings.items() if lines}}


def _warnings(plan: Plan, history: TaskHistory) -> dict[str, list[str]]:
    """Return the lines about what in *plan* may not have the wanted effect, by the names of these groups of lines."""
    return {
        "narrowed": list(narrowings(plan)),
        "unguarded": list(_unguarded(plan)),
        "unverified": list(_unverified(plan)),
        "untried_versions": list(_untried_versions(plan)),
        "late_answers": list(_late_answers(plan, history)),
        "history": list(history.warnings),
        "missing_programs": [f"{spelled(path)}: {words}" for path, words in programs_to_come(plan)],
    }


def _unguarded(plan: Plan) -> Iterator[str]:
    """Yield a line for each agent on which its permissions have no effect (``unguarded``)."""
    for name, agent in plan.agent_configs.items():
        if agent.unguarded:
            asked = f"'{agent.permissions.default}' answers what it asks"
            yield f"agents.{name}.unguarded: it may act without asking; permissions {asked}, and hold nothing else"


def _unverified(plan: Plan) -> Iterator[str]:
    """Yield a line for each agent whose command line does not show whether it asks."""
    for name, agent in plan.agent_configs.items():
        if agent.adapter == "acp" and agent.agent_options.guarded and not agent.agent_options.started:
            hold = "hold if it asks, which is checked at its start only if it calls itself an agent of the catalogue"
            yield f"agents.{name}.permissions: {hold}; run it once with `permissions: ask`, and watch"


def _untried_versions(plan: Plan) -> Iterator[str]:
    """Yield a line for each agent whose installed version was not tried with the supervisor."""
    from supervisor.agents.probe.discovery import find_program  # here, since most plans have no such agent

    for name, agent in plan.agent_configs.items():
        known = catalogue().get(agent_started(agent.program))
        if known is not None and (note := find_program(known, agent.env.get("PATH")).untried):
            shows = f"`supervisor agents probe {known.name}` shows what differs"
            yield f"agents.{name}: {known.title} {note}; {shows}"


def _late_answers(plan: Plan, history: TaskHistory) -> Iterator[str]:
    """Yield a line for each task whose attempt times out before a person has had the whole time to answer its agent."""
    for one in every_task(plan.tasks):
        if (agent := plan.agent_configs.get(one.task.agent)) is None:
            continue
        permissions = agent.permissions
        asks = "ask" in (permissions.default, *(rule.then for rule in permissions.rules))
        if asks and (attempt_s := limit_of(plan, one.task, history).longest_s) <= permissions.answer_within_s:
            answer_s = f"a person has {permissions.answer_within_s:g} s to answer (answer_within_s)"
            what = f"an attempt of {attempt_s:g} s ends while {answer_s}"
            yield f"{spelled(one.path)}: {what}; raise timeout_s, or lower answer_within_s"


def _summary(plan: Plan) -> str:
    subtasks = sum(one.parent is not None for one in every_task(plan.tasks))
    counts = [("task", len(plan.tasks)), ("subtask", subtasks), ("agent", len(plan.agents))]
    counts += [("worker", len(plan.workers))]
    return ", ".join(_counted(number, what) for what, number in counts if number)


plan_group.add_command(show_command)


@plan_group.command("schema", epilog=examples("supervisor plan schema > plan.schema.json"))
def _schema() -> int:
    """Print the JSON Schema of a plan, with which an editor can complete and check plans."""
    say(json.dumps(schema(), indent=2))
    return DONE


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a plan. Problems between fields are found only by `supervisor plan check`."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Plan.model_json_schema()}


def _counted(number: int, what: str, plural: str = "s") -> str:
    return f"{number} {what}{'' if number == 1 else plural}"
