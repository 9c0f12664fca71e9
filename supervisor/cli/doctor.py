"""``supervisor doctor``: the process guarantees that this machine can give, and how to get the missing ones.

JSON: ``abilities`` is a list of ``{name, there, used_for, fix}``; ``guarantees`` one of ``{dies, given, missing}`` with
``given`` one of ``at once``, ``mostly at once``, ``at the next start``, ``mostly at the next start``, ``not``;
``import_name`` is a sentence about another package with the import name ``supervisor``, or ``""``; ``plan`` are
sentences about the plan that is given.
"""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import click

from supervisor.cli.options import PATH, check_workdir, examples, json_option, say
from supervisor.cli.plan_input import read_plan
from supervisor.control.error_messages import BadInput
from supervisor.embedding.import_name import FIX, find_clash
from supervisor.embedding.runtime import check_environment
from supervisor.plans import BadPlan
from supervisor.plans.loading import programs_to_come
from supervisor.plans.source import spelled
from supervisor.processes.capabilities import Capability, Guarantee, guarantees, probe_capabilities
from supervisor.workspaces.git_command import WorkspaceError


@click.command("doctor", epilog=examples("supervisor doctor", "supervisor doctor plan.yaml"))
@click.argument("plan", type=click.Path(path_type=Path), required=False)
@click.option("--workdir", type=PATH, default=Path(), show_default=True, help="Directory in which the agents work.")
@json_option
def doctor(plan: Path | None, workdir: Path, as_json: bool) -> None:
    """Tests what the guarantees need, and prints how to get what is missing. The tests leave nothing behind. With PLAN,
    also what that plan needs: its programs, its repository, and the settings of git that have no effect there."""
    remarks = _remarks(plan, workdir) if plan is not None else []
    found, clash = probe_capabilities(), find_clash()
    promised = guarantees(found)
    if as_json:
        abilities, given = [one._asdict() for one in found], [one._asdict() for one in promised]
        told = {"abilities": abilities, "guarantees": given, "import_name": clash, "plan": remarks}
        say(json.dumps(told, indent=2))
        return
    if plan is not None:
        say(
            "\n".join(
                [f"{plan}: {'see to these:' if remarks else 'nothing is missing'}", *(f"  {one}" for one in remarks)]
            )
        )
    if clash:
        say(f"{clash}.\n    to mend it: {FIX}")
    say(
        "If one of these dies, everything that it had started is ended (a shim is the small process above each program,"
    )
    say("the fork server is the process that starts the shims):")
    width = max(len(one.dies) for one in promised)
    for guarantee in promised:
        say(f"  {guarantee.dies:<{width}}  {_given(guarantee)}")
    say("This machine has, for that:")
    for ability in found:
        say(f"  {_sentence(ability)}")
    missing = [one.name for one in found if not one.there]
    say(f"Missing: {', '.join(missing)}; each `to get it` says how to get it." if missing else "Nothing is missing.")


def _remarks(plan: Path, workdir: Path) -> list[str]:
    """Return sentences about what *plan* will miss, and about settings that have no effect on its work.

    Raises:
        BadInput: the plan cannot be run here at all.
    """
    try:
        read = read_plan(plan)
        check_workdir(workdir)
        about_git = anyio.run(check_environment, read.agents, read.settings, workdir)
    except (BadPlan, ValueError, WorkspaceError) as error:
        raise BadInput(str(error)) from None
    return [*(f"{spelled(path)}: {words}" for path, words in programs_to_come(read)), *about_git]


def _given(guarantee: Guarantee) -> str:
    return guarantee.given + (f" (no {', no '.join(guarantee.missing)})" if guarantee.missing else "")


def _sentence(ability: Capability) -> str:
    if ability.there:
        return f"{ability.name}: yes\n    used for: {ability.used_for}"
    return f"{ability.name}: NO\n    used for: {ability.used_for}\n    to get it: {ability.fix}"
