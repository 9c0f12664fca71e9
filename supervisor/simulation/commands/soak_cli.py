"""``supervisor simulate soak``: run many seeds, and report the violations, and the transitions, aborts and faults that
the runs reached."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import msgspec

from supervisor.cli.options import examples
from supervisor.simulation.commands.options import (
    Progress,
    as_json,
    finish,
    first_seed,
    jobs,
    runner,
    scenario,
    seeds,
)
from supervisor.simulation.commands.run_request import Runner, RunRequest
from supervisor.simulation.coverage import to_reach
from supervisor.simulation.search.soak import Soak, soak

SHOWN = 20
"""Number of failing seeds that are printed; JSON contains all failing seeds."""


@click.command("soak", epilog=examples("supervisor simulate soak --seeds 200"))
@seeds(1000)
@first_seed
@jobs
@scenario
@click.option("--must-reach", type=click.Choice(["all"]), help="Fail if a fault, transition or abort never occurred.")
@as_json
@runner
def command(
    runner: Runner,
    seeds: int,
    first_seed: int,
    jobs: int,
    scenario: str | None,
    must_reach: str | None,
    as_json: bool,
) -> int:
    """Run many seeds, and say what was violated and what was reached.

    Exit status 1 if anything was violated, or, with --must-reach all, anything was not reached.
    """
    progress = Progress()
    request = RunRequest(scenario=scenario)
    try:
        total, complete = soak(
            request,
            range(first_seed, first_seed + seeds),
            jobs,
            lambda sums: progress.show(lambda: f"{sums.scenarios} of {seeds}, {sums.violations} violations"),
            runner,
        )
    finally:
        progress.end()
    good = not total.violations and not (must_reach and total.not_reached)
    return finish(
        _as_json(total, progress.took_s), _text(total, progress.took_s), as_json=as_json, good=good, complete=complete
    )


def _as_json(total: Soak, took_s: float) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(total)
    told["reached"] = dict(sorted(total.reached.items()))
    measured = {"took_s": round(took_s, 3), "runs_per_minute": round(_per_minute(total, took_s), 1)}
    return {**told, "not_reached": total.not_reached, "measured": measured}


def _per_minute(total: Soak, took_s: float) -> float:
    return total.scenarios / took_s * 60


def _text(total: Soak, took_s: float) -> str:
    hours, known = total.simulated_s / 3600, len(to_reach())
    lines = [
        f"{total.scenarios} runs: {total.violations or 'no'} violations",
        f"  {total.sessions} sessions, {hours:.1f} simulated hours, {total.steps} steps, {total.faults} faults",
        f"  reached {known - len(total.not_reached)} of {known}, the rarest first:",
        *(f"    {line}" for line in _reached(total)),
        f"  not reached: {len(total.not_reached) or 'nothing'}",
        *(f"    {name}" for name in total.not_reached),
        f"  measured: {took_s:.1f} s, {_per_minute(total, took_s):.0f} runs per minute",
    ]
    for one in total.failing[:SHOWN]:
        lines += [f"  {one.problem}", f"    again: {one.reproduce}"]
    if len(total.failing) > SHOWN:
        lines.append(f"  and {len(total.failing) - SHOWN} failing seeds more")
    return "\n".join(lines)


def _reached(total: Soak) -> Iterator[str]:
    """Yield lines with the names and counts of everything reached: one line for faults, one for each state table, and
    one for aborts."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for name, count in total.reached.items():
        group, _, what = name.partition(": ")
        groups.setdefault(group, []).append((count, what))
    for group, found in sorted(groups.items()):
        yield f"{group}: {', '.join(f'{what} {count}' for count, what in sorted(found))}"
