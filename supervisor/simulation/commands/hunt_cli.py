"""``supervisor simulate hunt``: the planted bugs, and what it took to find each. It plants nothing here."""

from __future__ import annotations

import os
from math import isnan

import click
import msgspec

from supervisor.cli.options import say
from supervisor.control.error_messages import DONE, INTERRUPTED, WORK_FAILED
from supervisor.simulation.search.hunt import (
    BUDGET_S,
    RUNS_MAX,
    BadCatalogue,
    Found,
    Hunted,
    Reduced,
    chosen,
    control,
    hunt,
)

__all__ = ["command"]

BUDGET_MOST_S = 86_400.0


@click.command("hunt")
@click.option("--bug", "names", multiple=True, metavar="NAME", help="Only this bug; may be repeated.")
@click.option("--third", type=click.IntRange(0, 2), help="Only every third bug, from the first, second or third on.")
@click.option("--seeds", type=click.IntRange(1), default=RUNS_MAX, show_default=True, help="Most runs for each bug.")
@click.option(
    "--budget-s",
    type=click.FloatRange(1.0, BUDGET_MOST_S),
    default=BUDGET_S,
    show_default=True,
    help="CPU seconds each.",
)
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, show_default=True, help="Hunts at a time.")
@click.option("--shrink", is_flag=True, help="Shrink the run that found it: 5 faults at most, in 60 CPU seconds.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each bug, and one for the control.")
def command(
    names: tuple[str, ...], third: int | None, seeds: int, budget_s: float, jobs: int, shrink: bool, as_json: bool
) -> int:
    """Plant one bug after the other in interpreters of their own, and count the runs until each is noticed.

    The exit status is 1 where one was not found, or where the control (the same runs without a bug) found something;
    with --shrink, also where a run does not shrink, or what is left of it does not fail by itself.
    """
    if isnan(budget_s):  # in no range, and click lets it pass
        raise click.UsageError(f"--budget-s: nan is no time; give CPU seconds, 1 to {BUDGET_MOST_S:g}")
    try:
        bugs = chosen(names, third)
        tell = _json if as_json else _lines
        hunted, complete = hunt(bugs, seeds=seeds, budget_s=budget_s, jobs=jobs, tell=tell, shrink=shrink)
    except BadCatalogue as error:
        raise click.UsageError(str(error)) from None
    clean = _control(hunted, budget_s * max(1, len(bugs))) if complete else None
    missed = [one.bug for one in hunted if not one.result.found]
    if as_json:
        told = {"control": clean, "missed": missed} | ({"interrupted": True} if clean is None else {})
        say(msgspec.json.encode(told).decode())
    else:
        _summary(hunted, missed, clean)
    if not all(one.good for one in hunted) or not (clean is None or clean.clean):
        return WORK_FAILED
    return DONE if clean is not None else INTERRUPTED


def _control(hunted: list[Hunted], budget_s: float) -> Found | None:
    """``None``: Ctrl-C came first."""
    try:
        return control(hunted, budget_s=budget_s)
    except KeyboardInterrupt:
        return None


def _json(hunted: Hunted) -> None:
    say(msgspec.json.encode(hunted).decode())


def _lines(hunted: Hunted) -> None:
    """A line for the hunt, and one for what the run was shrunk to. Messages of a run that is stuck have several."""
    result = hunted.result
    what = " ".join(result.problems[0].split()) if result.problems else "nothing was violated"
    if result.broken:
        what += f"; {len(result.broken)} runs broke: {' '.join(result.broken[0].split())}"
    how = "found " if result.found else "MISSED"
    cost = f"{result.runs:4d} runs {result.cpu_s:6.1f} s"
    say(f"{hunted.invariant:2d} {hunted.bug:32s} {how} {cost}  {what[:240]}")
    if hunted.shrunk is not None:
        _shrunk_line(hunted.result, hunted.shrunk)


def _shrunk_line(found: Found, shrunk: Reduced) -> None:
    how = "shrunk " if shrunk.small else "TOO BIG" if shrunk.fails_again else "NO TEST"
    what = f"{found.scenario}, seed {found.seed}: {shrunk.faults_before} faults -> {len(shrunk.faults)}"
    told = shrunk.broken or f"{what}: {', '.join(shrunk.faults) or 'none'}"
    say(f"{'':35s} {how} {shrunk.runs:3d} runs {shrunk.cpu_s:6.1f} s  {told[:240]}")


def _summary(hunted: list[Hunted], missed: list[str], clean: Found | None) -> None:
    if clean is None:
        say("interrupted; what was reached until then:")
    found = len(hunted) - len(missed)
    spent_s = sum(one.result.cpu_s for one in hunted)
    say(f"{found} of {len(hunted)} bugs found, in {spent_s:.0f} CPU s; not found: {', '.join(missed) or 'none'}")
    if any(one.shrunk for one in hunted):
        big = [one.bug for one in hunted if one.shrunk is not None and not one.shrunk.small]
        say(f"{found - len(big)} of {found} failing runs shrunk; not shrunk: {', '.join(big) or 'none'}")
    broke = sum(len(one.result.broken) for one in hunted)
    say(f"runs that broke or had no end, and so said nothing: {broke}")
    if clean is None:
        return
    words = " ".join(next(iter(clean.problems + clean.broken), "nothing").split())
    say(f"control: {clean.runs} runs without a bug: {words}")
