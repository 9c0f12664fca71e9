"""``supervisor plan``: a plan checked without being run, and what a plan may hold as a JSON Schema for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from supervisor.config import BadPlan, Plan, load_plan
from supervisor.surfaces.failure import DONE, BadInput

__all__ = ["plan_group", "schema"]


@click.group("plan")
def plan_group() -> None:
    """Check a plan, or say what one may hold."""


@plan_group.command("check")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def _check(plan: Path, as_json: bool) -> int:
    """Check the plan whole, as `run` does before it starts anything."""
    try:
        found = load_plan(plan)
    except BadPlan as error:
        raise BadInput(str(error)) from None
    told = {"ok": True, "agents": list(found.agents), "tasks": [task.id for task in found.tasks]}
    tasks, agents = _counted(len(found.tasks), "task"), _counted(len(found.agents), "agent")
    click.echo(json.dumps(told) if as_json else f"{plan}: {tasks}, {agents}: nothing to object to")
    return DONE


@plan_group.command("schema")
def _schema() -> int:
    """Print the JSON Schema of a plan: an editor can complete and check a plan with it."""
    click.echo(json.dumps(schema(), indent=2))
    return DONE


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a plan. What hangs together across fields, only `check` sees."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Plan.model_json_schema()}


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
