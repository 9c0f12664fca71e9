"""Command ``walks``: list the modules that an abort, a line of output and a task pass, and compare their numbers with
targets."""

from __future__ import annotations

from typing import Any

import click

from supervisor.simulation.commands.options import as_json, finish
from tests.verification.walks import WALKS, Walk, measure


@click.command("walks")
@click.option("--only", type=click.Choice([walk.name for walk in WALKS]), help="One of the walks.")
@as_json
def command(only: str | None, as_json: bool) -> int:
    """Perform three walks through the production code, and list the modules that each one passes.

    Each line has a module and how often it was entered from another one, in the order of the first entry. Exit status
    1 if a walk passes more modules than its target.
    """
    found = {walk: measure(walk) for walk in WALKS if only in (None, walk.name)}
    told: dict[str, Any] = {
        walk.name: {"modules": len(entries), "modules_max": walk.modules_max, "entries": entries}
        for walk, entries in found.items()
    }
    good = all(len(entries) <= walk.modules_max for walk, entries in found.items())
    return finish(told, "\n".join(_text(walk, entries) for walk, entries in found.items()), as_json=as_json, good=good)


def _text(walk: Walk, entries: dict[str, int]) -> str:
    lines = [f"{walk.title}: {len(entries)} modules (bar: {walk.modules_max})"]
    return "\n".join([*lines, *(f"  {count:4}  {module}" for module, count in entries.items())])
