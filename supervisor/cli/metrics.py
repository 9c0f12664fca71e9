"""``supervisor metrics``: figures computed from the records of the state directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from supervisor.cli.lookup import open_journal
from supervisor.cli.options import examples, json_option, say, state_dir_option
from supervisor.cli.rendering import columns, duration, json_text
from supervisor.diagnostics.state_metrics import StateFigures, measure_states
from supervisor.lifecycles import MACHINES


@click.group("metrics", epilog=examples("supervisor metrics states"))
def metrics_group() -> None:
    """Read the journal, whether or not a supervisor runs."""


@metrics_group.command("states", epilog=examples("supervisor metrics states", "supervisor metrics states job task"))
@click.argument("machines", nargs=-1, type=click.Choice(list(MACHINES)), metavar="[MACHINE]...")
@click.option("--all", "archived", is_flag=True, help="Also records that were moved to the archive.")
@state_dir_option
@json_option
def states_command(machines: tuple[str, ...], archived: bool, state_dir: Path, as_json: bool) -> None:
    """Show how long each state of MACHINE lasts (by default run, the lifecycle of task runs), how many of its visits
    ended well, and the state that follows most often. `supervisor machines` lists the machines."""
    with open_journal(state_dir) as (_, reader):
        figures = measure_states(reader.events(archived=archived), machines or ("run",))
    if as_json:
        say(json_text(figures))
    else:
        say(states_text(figures) if figures else "no entity of this kind is on record")


def states_text(figures: Sequence[StateFigures]) -> str:
    """Return a table with a line for each state."""
    return columns(
        ("MACHINE", "STATE", "VISITS", "MEAN", "ENDED WELL", "NEXT"),
        (
            (
                one.machine,
                one.state,
                str(one.visits),
                "-" if one.mean_s is None else duration(one.mean_s),
                "-" if one.succeeded is None else f"{one.succeeded:.0%}",
                one.next or "-",
            )
            for one in figures
        ),
    )
