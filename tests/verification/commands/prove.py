"""Command ``prove``: compare the digests of seeds between processes, or those of the golden runs with the stored
ones."""

from __future__ import annotations

import click
import msgspec

from supervisor.control.error_messages import BadInput
from supervisor.simulation.commands.options import (
    Progress,
    as_json,
    finish,
    first_seed,
    jobs,
    refuse_unwritable,
    scenario,
    schedule,
    seeds,
)
from supervisor.simulation.commands.run_request import RunRequest
from supervisor.simulation.search.many import TaskFailed
from tests.verification import golden
from tests.verification.prove import CannotRun, Proof, processes, prove


@click.command("prove")
@seeds(50)
@first_seed
@jobs
@scenario
@schedule
@click.option("--pythons", metavar="PYTHON,...", default="", help="Other interpreters, with the project installed.")
@click.option("--golden", "check_golden", is_flag=True, help="Instead: check the digests that come with the code.")
@click.option("--write-golden", is_flag=True, help="Instead: keep the digests of the golden runs, as they are now.")
@as_json
@click.pass_context
def command(
    context: click.Context,
    seeds: int,
    first_seed: int,
    jobs: int,
    scenario: str | None,
    schedule: str | None,
    pythons: str,
    check_golden: bool,
    write_golden: bool,
    as_json: bool,
) -> int:
    """Run each seed in three fresh processes with different hash seeds, and compare the digests.

    Exit status 1 if any digest differs.
    """
    if check_golden or write_golden:
        _refuse_others(context, "--golden" if check_golden else "--write-golden")
        return _golden(jobs, write=write_golden, as_json=as_json)
    others = [one.strip() for one in pythons.split(",") if one.strip()]
    return _prove(
        RunRequest(scenario=scenario, schedule=schedule), range(first_seed, first_seed + seeds), jobs, others, as_json
    )


def _refuse_others(context: click.Context, golden: str) -> None:
    """Refuse options that would change the golden runs; the error names the option."""
    for option in context.command.get_params(context):
        given = context.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE
        if given and option.opts[0] not in (golden, "--jobs", "--json"):
            raise BadInput(
                f"{option.opts[0]}: with {golden} the golden runs are run as they are; leave one of them out"
            )


def _prove(request: RunRequest, seeds: range, jobs: int, others: list[str], as_json: bool) -> int:
    progress = Progress()
    try:
        every = processes(others)
        runs = len(every) * len(seeds)
        proof, complete = prove(request, seeds, jobs, every, lambda heard: progress.show(lambda: f"{heard} of {runs}"))
    except CannotRun as error:
        raise BadInput(f"--pythons: {error}") from None
    finally:
        progress.end()
    measured = {"took_s": round(progress.took_s, 3)}
    answer = {**msgspec.to_builtins(proof, str_keys=True), "measured": measured}
    text = _text(request, proof, progress.took_s)
    return finish(answer, text, as_json=as_json, good=not proof.differing, complete=complete)


def _text(request: RunRequest, proof: Proof, took_s: float) -> str:
    lines = [
        f"{proof.compared} of {proof.seeds} seeds in {len(proof.processes)} processes each: "
        f"{len(proof.differing) or 'none'} differs",
        *(f"  {name}" for name in proof.processes),
    ]
    for seed, told in proof.differing.items():
        lines += [f"seed {seed} differs: {request.with_seed(seed).line()}"]
        lines += [f"  {told.get(name, 'none'):32}  {name}" for name in proof.processes]
    return "\n".join([*lines, f"measured: {took_s:.1f} s"])


def _golden(jobs: int, *, write: bool, as_json: bool) -> int:
    if write:
        refuse_unwritable("--write-golden", golden.place(), "use a working copy of the project")
    progress = Progress()
    runs = len(golden.runs())
    try:
        found, complete = golden.digests(jobs, lambda heard: progress.show(lambda: f"{heard} of {runs}"))
    finally:
        progress.end()
    if write and complete:
        return _written(found, as_json)
    result = golden.compared(found)
    lines = [f"{result.runs} runs of {result.scenarios} golden scenarios: {len(result.differing) or 'none'} differs"]
    lines += [f"{line}\n  {words}" for line, words in result.differing.items()]
    answer = {**msgspec.to_builtins(result), "measured": {"took_s": round(progress.took_s, 3)}}
    return finish(answer, "\n".join(lines), as_json=as_json, good=not result.differing, complete=complete)


def _written(found: dict[RunRequest, str | TaskFailed], as_json: bool) -> int:
    failed = {one.line(): digest.words for one, digest in found.items() if isinstance(digest, TaskFailed)}
    path = golden.write(found)
    text = "\n".join([f"{len(found) - len(failed)} digests in {path}", *(f"{line}: {failed[line]}" for line in failed)])
    return finish({"written": str(path), "failed": failed}, text, as_json=as_json, good=not failed)
