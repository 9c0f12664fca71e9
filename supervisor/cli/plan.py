"""``supervisor plan``: check a plan without running it, and print the JSON Schema of plans for editors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from supervisor.cli.options import say
from supervisor.cli.plan_input import STANDARD_INPUT, read_plan
from supervisor.control.error_messages import DONE, BadInput
from supervisor.plans import BadPlan, Plan
from supervisor.plans.tasks import every_task
from supervisor.work.budgeting import narrowings


@click.group("plan")
def plan_group() -> None:
    pass


@plan_group.command("check")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def _check(plan: Path, as_json: bool) -> int:
    """Check the whole plan, as `run` does before it starts anything. PLAN is a YAML file, or - for standard input.

    \b
    supervisor plan check plan.yaml
    """
    try:
        found = read_plan(plan)
    except BadPlan as error:
        raise BadInput(str(error)) from None
    name = "standard input" if plan == STANDARD_INPUT else plan
    say(json.dumps(_as_json(found)) if as_json else f"{name}: {_summary(found)}: no problems")
    for words in () if as_json else (*narrowings(found), *_unguarded(found)):
        say(f"{name}: {words}")
    return DONE


def _as_json(plan: Plan) -> dict[str, object]:
    """Return the names in *plan* as data; subtasks are listed among the tasks, each after its parent."""
    tasks = [one.task.id for one in every_task(plan.tasks)]
    said = {"workstream": plan.workstream, "agents": list(plan.agents), "workers": list(plan.workers), "tasks": tasks}
    more = {"narrowed": list(narrowings(plan)), "unguarded": list(_unguarded(plan))}
    return {"ok": True, **said, **{name: words for name, words in more.items() if words}}


def _unguarded(plan: Plan) -> Iterator[str]:
    """Yield a line for each agent on which its permissions have no effect (``unguarded``)."""
    for name, agent in plan.agent_configs.items():
        if agent.unguarded:
            asked = f"'{agent.permissions.default}' answers what it asks"
            yield f"agents.{name}.unguarded: it may act without asking; permissions {asked}, and hold nothing else"


def _summary(plan: Plan) -> str:
    subtasks = sum(one.parent is not None for one in every_task(plan.tasks))
    counts = [("task", len(plan.tasks)), ("subtask", subtasks), ("agent", len(plan.agents))]
    counts += [("worker", len(plan.workers))]
    return ", ".join(_counted(number, what) for what, number in counts if number)


@plan_group.command("schema")
def _schema() -> int:
    """Print the JSON Schema of a plan, with which an editor can complete and check plans."""
    say(json.dumps(schema(), indent=2))
    return DONE


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a plan. Problems between fields are found only by `supervisor plan check`."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Plan.model_json_schema()}


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
