"""``supervisor runs``: the list of the runs of plans, read from the state directory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from supervisor.cli.lookup import open_journal
from supervisor.cli.options import examples, json_option, say, state_dir_option
from supervisor.cli.query import used_in
from supervisor.cli.rendering import columns, cost, duration, json_text, local_time
from supervisor.cli.terminal import table_width
from supervisor.diagnostics.run_summary import RunSummary, summarize_runs


@click.command("runs", epilog=examples("supervisor runs", "supervisor runs --all --json"))
@click.option("--all", "archived", is_flag=True, help="Also runs that were moved to the archive.")
@state_dir_option
@json_option
def runs_command(archived: bool, state_dir: Path, as_json: bool) -> None:
    """The newest run comes first. DONE counts the tasks that are completed, skipped or rejected. A run that had not
    ended when its supervisor died is interrupted: `supervisor run` continues it."""
    with open_journal(state_dir) as (state, reader):
        running = state.lock_holder() is not None  # before the rows: a run that ends now is not shown as interrupted
        rows = reader.entities(archived=archived)
        used = used_in(reader, archived=archived)
    found = summarize_runs(rows, used, now=time.time(), supervised=running)
    if as_json:
        say(json_text(found))
    else:
        say(runs_text(found) if found else "no plan was run here")


def runs_text(runs: Sequence[RunSummary]) -> str:
    """Return a table with a line for each run."""
    heads = ("RUN", "PLAN", "STATE", "DONE", "COST", "STARTED", "TOOK")
    return columns(
        heads,
        (
            (
                one.id,
                one.plan,
                one.words,
                f"{one.done}/{one.tasks}",
                cost(one.cost_usd, one.tokens) or "-",
                local_time(one.started_at),
                duration(one.took_s),
            )
            for one in runs
        ),
        table_width(),
    )
