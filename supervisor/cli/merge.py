"""``supervisor merge``: merge the branch of a run that has failed, was cancelled, or is held at its merge.

A supervisor that runs on the state directory makes the merge. Without one, this command is the supervisor, for as long
as the merge takes: no session is started. It is refused where an interrupted run waits for its plan, since a supervisor
that ends ends what no plan continues.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import click
import msgspec

from supervisor.cli.completion import complete_ids
from supervisor.cli.lookup import open_journal, run_given
from supervisor.cli.options import examples, json_option, say, state_dir_option, state_dir_words
from supervisor.cli.rendering import json_text
from supervisor.cli.sessions import operator, send_request
from supervisor.control.error_messages import DONE, WORK_FAILED, BadInput, WorkFailed, cause_of
from supervisor.control.requests import MergeRun
from supervisor.diagnostics.merge_plan import merge_plan_text
from supervisor.embedding.runtime import open_in
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import Kind
from supervisor.lifecycles.workstream import WorkstreamData
from supervisor.plans import Settings
from supervisor.policies.redaction import printable
from supervisor.ports import EntityRow, MergePlan
from supervisor.runtime.entity import Refused
from supervisor.work.one_merge import merge_run
from supervisor.work.reporting import PLAN
from supervisor.workspaces.git_command import WorkspaceError


@click.command("merge", epilog=examples("supervisor merge r3 --dry-run", "supervisor merge r3 --yes"))
@click.argument("run", metavar="RUN", shell_complete=complete_ids(Kind.WORKSTREAM))
@click.option("--dry-run", is_flag=True, help="Print the merge plan only; exit status 1 if there is a conflict.")
@click.option("--yes", is_flag=True, help="Merge without asking.")
@state_dir_option
@json_option
def merge_command(run: str, dry_run: bool, yes: bool, state_dir: Path, as_json: bool) -> int:
    """RUN is the id of a run whose work is on a branch of its own (`merge: once` in the plan): one that has failed or
    was cancelled, whose completed tasks are merged, or one whose merge is held by a conflict. Shows the merge plan,
    and asks; nothing is run again."""
    with open_journal(state_dir) as (state, reader):
        row = run_given(reader, run)
        rows = reader.entities()
        plans = [one.metadata["plan"] for one in reader.events(row.id) if one.event == PLAN]
        is_supervised = state.lock_holder() is not None
    request = partial(MergeRun, run=row.id, by=operator())
    if is_supervised:
        send = partial(_send, state_dir)
    else:
        _check_alone(rows, row, state_dir)
        send = partial(_merge_alone, state, _settings(plans), msgspec.json.decode(row.data, type=WorkstreamData))
    shown = _plan_of(send(request(dry_run=True)))
    if not as_json or not (dry_run or yes):
        say(merge_plan_text(shown), err=as_json)
    if dry_run:
        if as_json:
            say(json_text(shown))
        return WORK_FAILED if shown.conflicts else DONE
    if not (yes or _is_wanted(shown)):
        return WORK_FAILED
    reply = send(request(commit=shown.commit))
    say(json_text(reply) if as_json else f"{row.id}: {printable(str(reply['merged']))}")
    return DONE


def _send(state_dir: Path, request: MergeRun) -> Mapping[str, Any]:
    return send_request(state_dir, request, f"{request.title} goes on")


def _merge_alone(state: StateDir, settings: Settings, data: WorkstreamData, request: MergeRun) -> Mapping[str, Any]:
    """Open a supervisor on the state directory, and carry out the request.

    Raises:
        BadInput: the run cannot be merged, or git cannot be used.
    """
    return anyio.run(_merged_by_own_supervisor, state, settings, data, request)


async def _merged_by_own_supervisor(
    state: StateDir, settings: Settings, data: WorkstreamData, request: MergeRun
) -> Mapping[str, Any]:
    where = data.branch.directory if data.branch is not None else "."
    try:
        async with open_in(lambda: state, settings=settings, workdir=where) as sup:
            plan, merged = await merge_run(
                sup.core, request.run, by=request.by, dry_run=request.dry_run, commit=request.commit
            )
            return {"plan": plan, "merged": merged}
    except Exception as error:
        match cause_of(error):
            case Refused() as refusal if not request.dry_run:
                raise WorkFailed(str(refusal)) from error
            case Refused() | WorkspaceError() as refusal:
                raise BadInput(str(refusal)) from error
        raise


def _settings(plans: Sequence[Mapping[str, Any]]) -> Settings:
    """Return the settings for the merge of a run with the recorded *plans*: only its repository and branch count."""
    plan = plans[-1] if plans else {}
    return Settings(workspace="worktree", merge_into=str(plan.get("merge_into", "")), plugins=())


def _check_alone(rows: Sequence[EntityRow], run: EntityRow, state_dir: Path) -> None:
    """Check that nothing waits in the state directory for a run of its plan.

    Raises:
        BadInput: something does.
    """
    for row in rows:
        if row.ended or row.id == run.id or row.kind not in (Kind.WORKSTREAM, Kind.SESSION):
            continue
        if row.kind == Kind.WORKSTREAM and msgspec.json.decode(row.data, type=WorkstreamData).to_merge:
            continue
        fix = f"run its plan again, or `supervisor serve{state_dir_words(state_dir)}`, and merge then"
        raise BadInput(f"{row.kind} {row.id} was interrupted, and waits to be continued; {fix}")


def _is_wanted(shown: MergePlan) -> bool:
    """Ask whether to merge.

    Raises:
        BadInput: nobody can be asked.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadInput("merge: nobody can be asked here; give --yes to merge, or --dry-run for the plan only")
    return click.confirm(f"merge {shown.branch} into {shown.target}?", err=True)


def _plan_of(reply: Mapping[str, Any]) -> MergePlan:
    return msgspec.convert(msgspec.to_builtins(reply["plan"]), MergePlan)
