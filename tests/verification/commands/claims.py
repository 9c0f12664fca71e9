"""Command ``claims``: simulate many workers and tasks, while workers and supervisors are lost."""

from __future__ import annotations

import json
from typing import Any

import click
import msgspec

from supervisor.simulation.commands.options import StepWatch, as_json, finish
from tests.verification.claims import Claims, simulate_claims


@click.command("claims")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, metavar="N", help="The run.")
@click.option("--workers", type=click.IntRange(2, 10_000), default=200, show_default=True, help="How many workers.")
@click.option("--tasks", type=click.IntRange(1, 10**6), default=10_000, show_default=True, help="How many tasks.")
@click.option("--kills", type=click.IntRange(0, 20), default=2, show_default=True, help="Supervisors that are killed.")
@as_json
def command(seed: int, workers: int, tasks: int, kills: int, as_json: bool) -> int:
    """Simulate many workers that claim many tasks, while workers fall silent and supervisors are killed.

    No task may be lost, no task may be held twice, and the invariants of spec 004 must hold at every commit. Exit
    status 1 otherwise.
    """
    watch = StepWatch(seed)
    try:
        found = simulate_claims(seed, workers=workers, tasks=tasks, kills=kills, watch=watch)
    except KeyboardInterrupt:
        return watch.interrupted(as_json=as_json)
    finally:
        watch.progress.end()
    took_s = watch.progress.took_s
    line = f"python -m tests.verification claims --seed {seed} --workers {workers} --tasks {tasks} --kills {kills}"
    told: dict[str, Any] = json.loads(msgspec.json.encode(found))
    told["report"] = {name: told["report"][name] for name in ("digest", "records", "simulated_s", "problems", "lives")}
    good = not found.report.violations and found.closed == tasks
    answer = told | ({} if good else {"reproduce": line})
    answer["measured"] = {"took_s": round(took_s, 3)}
    return finish(answer, _text(found, line, took_s), as_json=as_json, good=good)


def _text(found: Claims, line: str, took_s: float) -> str:
    report = found.report
    lines = [
        f"{found.closed} of {found.tasks} tasks closed by {found.workers} workers, seed {report.seed},"
        f" {report.schedule}: {report.violations or 'no'} violations",
        f"  claims     {found.claims}: {found.claims - found.closed} were lost with a worker or a supervisor",
        f"  workers    fell silent {found.silences} times; {found.lost} were lost, {found.recovered} came back,"
        f" {found.replaced} were replaced",
        f"  lives      {report.lives} supervisors, {found.killed} of them killed; {report.simulated_s:.0f} simulated"
        f" seconds, {report.records} records",
        f"  measured   {took_s:.1f} s",
        f"  digest     {report.digest}",
    ]
    return "\n".join([*lines, *(f"  {words}" for words in report.problems[:10]), f"  {line}"])
