"""``supervisor simulate shrink``: make a failing run small, and save it as a scenario for a regression test."""

from __future__ import annotations

import shlex
from math import isnan
from pathlib import Path
from typing import Any

import click

from supervisor.cli.options import examples
from supervisor.control.error_messages import BadInput
from supervisor.simulation.commands.options import (
    StepWatch,
    as_json,
    finish,
    refuse_unwritable,
    runner,
    scenario,
    schedule,
    unwritable,
)
from supervisor.simulation.commands.run_request import Runner, RunRequest
from supervisor.simulation.engine import Schedule
from supervisor.simulation.search.shrink import NothingViolated, Shrunk, fails_again, shrink, to_toml

A_FILE = "give the path of a file in a directory there is"


@click.command("shrink", epilog=examples("supervisor simulate shrink --seed 7 --save small.toml"))
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Seed of the run that failed.")
@scenario
@click.option("--sessions", type=click.IntRange(1, 10**6), metavar="N", help="Value of the run that failed.")
@click.option("--hours", type=click.FloatRange(0, 10_000), metavar="H", help="Value of the run that failed.")
@schedule
@click.option("--save", type=click.Path(path_type=Path), metavar="FILE.toml", help="Save the small run as a scenario.")
@click.option("--within", "within_s", type=click.FloatRange(min=0), default=60.0, show_default=True, metavar="SECONDS")
@as_json
@runner
def command(
    runner: Runner,
    seed: int | None,
    scenario: str | None,
    sessions: int | None,
    hours: float | None,
    schedule: str | None,
    save: Path | None,
    within_s: float,
    as_json: bool,
) -> int:
    """Make a failing run small: less work and fewer faults, as long as the same invariant is violated.

    A saved scenario holds the seed and exactly the faults that are needed: `supervisor simulate --scenario FILE.toml`.
    Exit status 1 if what is left does not fail by itself.
    """
    if save is not None:
        _refuse(save)
    if isnan(within_s):  # in no range, and click lets it pass
        raise BadInput(f"--within: {within_s} is not a time; give seconds, 0 or more")
    request = RunRequest(scenario=scenario, seed=seed, sessions=sessions, hours=hours, schedule=schedule)
    seed = request.draw().seed
    watch = StepWatch(seed)
    try:
        shrunk = _shrunk(runner, request, seed, within_s, watch)
    except KeyboardInterrupt:
        return watch.interrupted(as_json=as_json)
    took_s = watch.progress.took_s
    if save is not None:
        _save(runner.program, save, shrunk, request.with_seed(seed))
    again = None if shrunk.interrupted else fails_again(shrunk, runner.checkers)
    answer = {**_as_json(runner.program, shrunk, save), "fails_again": again, "measured": {"took_s": round(took_s, 3)}}
    text = _text(runner.program, shrunk, save, took_s, again)
    return finish(answer, text, as_json=as_json, good=again is not False, complete=not shrunk.interrupted)


def _shrunk(runner: Runner, request: RunRequest, seed: int, within_s: float, watch: StepWatch) -> Shrunk:
    scenario = request.read()
    if request.schedule is not None:
        world = scenario.world.model_copy(update={"schedules": (Schedule(request.schedule),)})
        scenario = scenario.model_copy(update={"world": world})
    progress = watch.progress
    try:
        return shrink(
            scenario,
            seed,
            lambda: progress.took_s < within_s,
            lambda runs: progress.show(lambda: f"{runs} runs"),
            watch,
            runner.checkers,
        )
    except NothingViolated as error:
        raise BadInput(f"--seed: {error}; `{runner.program} soak` looks for seeds that fail") from None
    finally:
        progress.end()


def _refuse(path: Path) -> None:
    if path.suffix != ".toml":
        raise BadInput(f"--save: {str(path)!r} is not a name of a scenario; end it in .toml")
    refuse_unwritable("--save", path, A_FILE)


def _save(program: str, path: Path, shrunk: Shrunk, found: RunRequest) -> None:
    comment = f"{shrunk.problem}\nFound by: {found.line(program)}\nAgain:    {_line(program, path)}"
    try:
        path.write_text(to_toml(shrunk.scenario, comment), encoding="utf-8")
    except OSError as error:
        raise unwritable("--save", path, error, A_FILE) from None


def _line(program: str, path: Path) -> str:
    return shlex.join([*program.split(), "--scenario", str(path)])


def _as_json(program: str, shrunk: Shrunk, save: Path | None) -> dict[str, Any]:
    return {
        "seed": shrunk.seed,
        "invariant": shrunk.invariant,
        "problem": shrunk.problem,
        "faults_before": shrunk.faults_before,
        "faults": list(shrunk.faults),
        "load": shrunk.scenario.load.model_dump(mode="json"),
        "operators": shrunk.scenario.world.operators,
        "runs": shrunk.runs,
        "minimal": shrunk.minimal,
        "reproduce": None if save is None else _line(program, save),
    }


def _text(program: str, shrunk: Shrunk, save: Path | None, took_s: float, again: bool | None) -> str:
    load, operators = shrunk.scenario.load, shrunk.scenario.world.operators
    lines = [
        f"{shrunk.problem}",
        f"  faults     {len(shrunk.faults)} of {shrunk.faults_before}{'' if shrunk.minimal else ' (not minimal yet)'}",
        *(f"    {one}" for one in shrunk.faults),
        f"  load       {load.customers} customers, {load.turns} turns each, {operators} operators",
        f"  measured   {shrunk.runs} runs, {took_s:.1f} s",
        *(["it does not fail by itself: the run is not determined by its seed"] if again is False else []),
        f"again: {_line(program, save)}" if save is not None else "keep it with --save FILE.toml",
    ]
    return "\n".join(lines)
