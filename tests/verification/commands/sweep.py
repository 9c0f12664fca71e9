"""Command ``sweep``: run every golden scenario with an abort, a kill or a cancellation before every step."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from supervisor.control.error_messages import BadInput
from supervisor.simulation.commands.options import Progress, as_json, finish, jobs
from tests.verification.golden import GOLDEN_SEED, golden
from tests.verification.sweep import CANCEL, CRASH, LEVELS, Every, Sweep, sweep

SHOWN = 20
"""Largest number of failing points that are printed."""


@click.command("sweep")
@click.option("--scenario", "scenarios", multiple=True, metavar="NAME|FILE.toml", help="Again for more; else all.")
@click.option("--seed", type=click.IntRange(min=0), default=GOLDEN_SEED, show_default=True, metavar="N")
@click.option("--levels", default=",".join(LEVELS), show_default=True, metavar="LEVEL,...", help="What is aborted.")
@click.option("--crash", is_flag=True, help="Instead: the supervisor is killed.")
@click.option("--cancel", is_flag=True, help="Instead: its host is cancelled.")
@click.option("--every", type=click.IntRange(min=1), default=1, show_default=True, metavar="K", help="Not every step.")
@click.option("--offset", type=click.IntRange(min=0), default=0, show_default=True, metavar="O", help="From that step.")
@jobs
@as_json
@click.pass_context
def command(
    context: click.Context,
    scenarios: tuple[str, ...],
    seed: int,
    levels: str,
    crash: bool,
    cancel: bool,
    every: int,
    offset: int,
    jobs: int,
    as_json: bool,
) -> int:
    """Abort a tool call, its siblings or a session before every single step of small variants of the golden scenarios.

    Each point is a run of its own. A point at which a level has no target does not apply. Exit status 1 if an
    invariant was violated.
    """
    instead = _instead(crash, cancel)
    if instead and context.get_parameter_source("levels") is not click.core.ParameterSource.DEFAULT:
        raise BadInput(f"--levels: with --{instead[0]} nothing is aborted; leave one of them out")
    progress = Progress()
    try:
        total, complete = sweep(
            scenarios or golden(),
            seed,
            instead or _levels(levels),
            Every(every, offset),
            jobs,
            lambda sums, points: progress.show(lambda: f"{sums.points} of {points}, {sums.violations} violations"),
        )
    finally:
        progress.end()
    if complete and not (total.points or total.not_applicable):
        longest = max((one.steps for one in total.scenarios.values()), default=0)
        raise BadInput(f"--every {every} --offset {offset}: is no step; the longest of these runs has {longest} steps")
    answer = {**_told(total), "measured": {"took_s": round(progress.took_s, 3)}}
    text = _text(total, progress.took_s)
    return finish(answer, text, as_json=as_json, good=not total.violations, complete=complete)


def _instead(crash: bool, cancel: bool) -> tuple[str, ...]:
    return tuple(name for name, request in ((CRASH, crash), (CANCEL, cancel)) if request)


def _levels(words: str) -> tuple[str, ...]:
    levels = tuple(dict.fromkeys(one.strip() for one in words.split(",") if one.strip()))
    for one in levels:
        if one not in LEVELS:
            raise BadInput(f"--levels: {one!r} is no level; name some of {', '.join(LEVELS)}")
    if not levels:
        raise BadInput(f"--levels: is empty; name some of {', '.join(LEVELS)}")
    return levels


def _told(total: Sweep) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(total)
    return told


def _text(total: Sweep, took_s: float) -> str:
    swept = {name: one for name, one in total.scenarios.items() if not one.same_as}
    lines = [
        f"{total.points} points in {len(swept)} scenarios: {total.violations or 'no'} violations; "
        f"{total.not_applicable} points did not apply",
        *(
            f"  {name:20} {one.points:6} points, {one.steps:5} steps, {one.violations or 'no'} violations"
            for name, one in swept.items()
        ),
        *(f"  {name:20} in small it is {one.same_as}" for name, one in total.scenarios.items() if one.same_as),
        f"  measured: {took_s:.1f} s, {total.points / took_s * 60:.0f} points per minute",
    ]
    for one in total.failing[:SHOWN]:
        lines += [f"  {one.problem}", f"    again: {one.reproduce}"]
    if total.violations > SHOWN:
        lines.append(f"  and {total.violations - SHOWN} failing points more")
    return "\n".join(lines)
