"""``supervisor simulate``: one run of one seed. The commands for many runs are in separate modules."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from typing import Any

import click
import msgspec

from supervisor.cli.options import examples, say
from supervisor.control.error_messages import BadInput
from supervisor.simulation.commands import bench_cli, shrink_cli, soak_cli
from supervisor.simulation.commands.options import ScenarioGroup, StepWatch, as_json, finish, scenario, schedule
from supervisor.simulation.commands.run_request import Runner, RunRequest
from supervisor.simulation.running import Report, simulate

COMMANDS = (soak_cli.command, shrink_cli.command, bench_cli.command)
SHOWN = 10
"""Number of problems that are printed with their messages; JSON contains all problems that the oracle kept."""
KIB_PER_MIB = 1024


@click.group(
    "simulate", cls=ScenarioGroup, invoke_without_command=True, epilog=examples("supervisor simulate --seed 1 --trace")
)
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Seed of the run.")
@scenario
@click.option(
    "--sessions", type=click.IntRange(1, 10**6), metavar="N", help="Number of simulated users, each with one session."
)
@click.option("--hours", type=click.FloatRange(0, 10_000), metavar="H", help="Hours over which their turns are spread.")
@schedule
@click.option("--trace", is_flag=True, help="Print every line of the trace (with --json: on standard error).")
@as_json
@click.pass_context
def group(
    context: click.Context,
    seed: int | None,
    scenario: str | None,
    sessions: int | None,
    hours: float | None,
    schedule: str | None,
    trace: bool,
    as_json: bool,
) -> int:
    """The same seed always gives exactly the same run. Without a command, one run takes place. Exit status 1: an
    invariant was violated."""
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return 0
    request = RunRequest(scenario=scenario, seed=seed, sessions=sessions, hours=hours, schedule=schedule)
    return _run(
        context.ensure_object(Runner),
        request,
        (lambda line: say(line, err=as_json)) if trace else None,
        as_json=as_json,
    )


for one in COMMANDS:
    group.add_command(one)


def _refuse_options(context: click.Context) -> None:
    """Refuse options of one run that stand before a subcommand, since these options would be ignored silently."""
    for name in context.params:
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            option = f"--{name.removeprefix('as_')}"
            raise BadInput(f"{option}: stands before {context.invoked_subcommand}; options of a command follow it")


# -------------------------------------------------------------------------------------------------------- one run
def _run(runner: Runner, request: RunRequest, on_line: Callable[[str], None] | None, *, as_json: bool) -> int:
    drawn = request.draw()
    watch = StepWatch(drawn.seed)
    try:
        report = simulate(drawn, on_line=on_line, watch=watch, checkers=runner.checkers)
    except KeyboardInterrupt:
        return watch.interrupted(as_json=as_json)
    finally:
        watch.progress.end()
    line = request.with_seed(report.seed).line(runner.program)
    answer = _as_json(report) | ({"reproduce": line} if report.violations else {})
    return finish(answer, _text(report, line, watch.progress.took_s), as_json=as_json, good=not report.violations)


def _as_json(report: Report) -> dict[str, Any]:
    """Convert a report to a JSON value, with only values that the seed determines."""
    told: dict[str, Any] = json.loads(msgspec.json.encode(report))
    return {name: value for name, value in told.items() if name not in ("struck", "reached")}


def _text(report: Report, line: str, took_s: float) -> str:
    tally = report.tally
    rates = f"{report.simulated_s / took_s:.0f} simulated seconds and {report.steps / took_s:.0f} steps per second"
    memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB_PER_MIB
    prompts = f"{tally.completed} completed, {tally.failed} failed, {tally.aborted} aborted, {tally.lost} lost"
    lines = [
        f"{report.scenario}, seed {report.seed}, {report.schedule}: {report.violations or 'no'} violations",
        f"  sessions   {report.sessions} ({_counts(report.ended)}), of {report.lives} supervisors",
        f"  prompts    {prompts}",
        f"  faults     {sum(report.faults.values())} ({_counts(report.faults)})",
        f"  time       {report.simulated_s:.1f} s simulated, {report.steps} steps, {report.records} records",
        f"  measured   {took_s:.2f} s: {rates}; {memory_mib:.0f} MiB at most",
        f"  digest     {report.digest}",
    ]
    if report.violations:
        shown = report.problems[:SHOWN]
        more = report.violations - len(shown)
        lines += ["", *(f"  {one}" for one in shown), *([f"  and {more} more"] if more else []), "", f"again: {line}"]
    return "\n".join(lines)


def _counts(counts: dict[str, int]) -> str:
    return (
        ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda one: (-one[1], one[0])))
        or "none"
    )
