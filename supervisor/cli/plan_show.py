"""``supervisor plan show``: the graph, the stages and the execution plan of a plan, or of a run."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from supervisor.cli.lookup import open_journal, run_given
from supervisor.cli.options import examples, json_option, say, state_dir_option
from supervisor.cli.plan_input import STANDARD_INPUT, read_plan
from supervisor.cli.rendering import columns, counted, json_text
from supervisor.cli.terminal import table_width
from supervisor.control.error_messages import BadInput
from supervisor.diagnostics.execution_plan import ExecutionPlan, mermaid
from supervisor.diagnostics.merge_plan import merge_plan_text
from supervisor.plans import BadPlan
from supervisor.policies.redaction import printable
from supervisor.ports import MergePlan
from supervisor.work.planned_stages import execution_plan_of, read_execution_plan, read_merge_plan


@click.command("show", epilog=examples("supervisor plan show plan.yaml", "supervisor plan show r1 --mermaid"))
@click.argument("plan_or_run", metavar="[PLAN|RUN]", required=False)
@click.option("--mermaid", "as_mermaid", is_flag=True, help="Print a Mermaid diagram of the graph.")
@state_dir_option
@json_option
def show_command(plan_or_run: str | None, as_mermaid: bool, state_dir: Path, as_json: bool) -> None:
    """Show in which stages the tasks may run, and what each waits for. PLAN is a YAML file, or - for standard input.
    RUN is the id of a run, whose tasks are shown with their states, and with the merge plan that was recorded at its
    end; without an argument, it is the newest run."""
    if as_mermaid and as_json:
        raise BadInput("--mermaid, --json: give one of them")
    found, merge = _found(plan_or_run, state_dir)
    if as_mermaid:
        say(mermaid(found))
    elif as_json:
        say(json_text({**msgspec.to_builtins(found), "merge_plan": merge}))
    else:
        say(_text(found))
        if merge is not None:
            say(f"\n{merge_plan_text(merge)}")


def _found(plan_or_run: str | None, state_dir: Path) -> tuple[ExecutionPlan, MergePlan | None]:
    if plan_or_run is not None and _is_plan(Path(plan_or_run)):
        try:
            return execution_plan_of(read_plan(Path(plan_or_run))), None
        except BadPlan as error:
            raise BadInput(str(error)) from None
    with open_journal(state_dir) as (_, reader):
        run = run_given(reader, plan_or_run)
        return read_execution_plan(reader, run), read_merge_plan(reader, run)


def _is_plan(given: Path) -> bool:
    """Return whether an argument names a plan: a file, standard input, or what can be no id of a run."""
    return given.exists() or given == STANDARD_INPUT or bool(given.suffix) or len(given.parts) > 1


def _text(found: ExecutionPlan) -> str:
    """Return the stages as a table, with a row for each task."""
    needs: dict[str, list[str]] = {}
    for before, after in found.edges:
        needs.setdefault(after, []).append(before)
    rows = [
        (
            str(number),
            one.name,
            one.agent or "-",
            ", ".join(needs.get(one.name, ())) or "-",
            one.part_of or "-",
            one.state,
        )
        for number, stage in enumerate(found.stages, 1)
        for one in stage
    ]
    whose = f"run {found.run} of {found.plan}" if found.run else f"plan {found.plan}"
    counts = f"{counted(len(rows), 'task', 'tasks')} in {counted(len(found.stages), 'stage', 'stages')}"
    heads = ("STAGE", "TASK", "AGENT", "WAITS FOR", "PART OF", "STATE")
    shown = [index for index in range(len(heads)) if index < 4 or any(row[index] not in ("", "-") for row in rows)]
    table = columns([heads[index] for index in shown], [[row[index] for index in shown] for row in rows], table_width())
    return f"{printable(whose)}: {counts}\n{table}"
