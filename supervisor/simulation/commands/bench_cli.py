"""``supervisor simulate bench``: run a suite, show and write the results, and compare the results with the digests.

Exit status: 0 done; 1 a run had a problem, or a digest differs; 2 bad input.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.options import examples, say
from supervisor.control.error_messages import DONE, INTERRUPTED, WORK_FAILED, BadInput
from supervisor.simulation.commands.options import Progress, as_json, jobs, refuse_unwritable, unwritable

if TYPE_CHECKING:
    from supervisor.simulation.bench import Bench
    from supervisor.simulation.bench.suite import Suite, SuiteFiles

SEEDS = 1000
KEPT_SEEDS = 2
"""Default number of seeds for digests, small enough for continuous integration."""
PROBLEMS_SHOWN = 10
Differing = dict[str, dict[str, str | None]]
"""Result files that differ: for each, the digest computed now and the digest in the digests file."""
A_DIRECTORY = "give a directory of your own"


@click.command("bench", epilog=examples("supervisor simulate bench --seeds 20 --out results"))
@click.option("--suite", "suite_name", default="failures", show_default=True, help="Name of a suite, or a FILE.toml.")
@click.option("--seeds", type=click.IntRange(min=1), help=f"Number of seeds.  [default: {SEEDS}]")
@click.option("--first-seed", type=click.IntRange(min=0), help="First seed.  [default: 1]")
@jobs
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Directory for the JSON and the pictures."
)
@click.option("--policy", "policies", multiple=True, metavar="NAME=KEY=VALUE,...", help="Compare this policy, too.")
@click.option("--verify", is_flag=True, help="Compare the files with the digests beside the suite.")
@click.option(
    "--write-digests", is_flag=True, help=f"Write new digests beside the suite (by default of {KEPT_SEEDS} seeds)."
)
@as_json
def command(
    suite_name: str,
    seeds: int | None,
    first_seed: int | None,
    jobs: int,
    out: Path | None,
    policies: tuple[str, ...],
    verify: bool,
    write_digests: bool,
    as_json: bool,
) -> int:
    """Compare policies under failures.

    Every scenario of the suite runs under each of its policies with the same seeds. What comes out is the same, byte
    for byte, on every machine.
    """
    from supervisor.simulation.bench.suite import BadSuite
    from supervisor.simulation.scenario import BadScenario

    if verify and (write_digests or policies or seeds is not None or first_seed is not None):
        raise BadInput("--verify: seeds and policies are those of the digests; leave the other options out")
    try:
        suite, place = _loaded(suite_name, policies)
        first_seed, seeds = _range(place, first_seed, seeds, verify=verify, write=write_digests)
        if write_digests:
            refuse_unwritable("--write-digests", place.digests_file, "copy the suite to where you may write")
        if out is not None:
            _refuse_unwritable(out, suite.files)
        result, complete = _bench(suite, seeds, first_seed, jobs)
        if not complete:
            _show(result, None, as_json=as_json, complete=False)
            return WORK_FAILED if result.problems else INTERRUPTED
        files = result.files()
        if out is not None:
            _write(out, files)
        differing = _differing(place, result, files) if verify else None
        _show(result, differing, as_json=as_json)
        if write_digests:
            _keep(place, result, files)
    except (BadSuite, BadScenario) as error:
        raise BadInput(str(error)) from None
    return WORK_FAILED if result.problems or differing else DONE


def _loaded(name: str, policies: tuple[str, ...]) -> tuple[Suite, SuiteFiles]:
    from supervisor.simulation.bench import check
    from supervisor.simulation.bench.suite import load_suite, parse_policy

    suite, place = load_suite(name)
    given = dict(map(parse_policy, policies))
    suite = suite.with_policies(given)
    check(suite, f"suite {name}", given)
    return suite, place


def _range(
    place: SuiteFiles, first_seed: int | None, seeds: int | None, *, verify: bool, write: bool
) -> tuple[int, int]:
    if verify:
        kept = place.read_digests()
        return kept.first_seed, kept.seeds
    usual = KEPT_SEEDS if write else SEEDS
    return 1 if first_seed is None else first_seed, usual if seeds is None else seeds


def _bench(suite: Suite, seeds: int, first_seed: int, jobs: int) -> tuple[Bench, bool]:
    from supervisor.simulation.bench import bench

    progress = Progress()
    try:
        return bench(
            suite,
            seeds=seeds,
            first_seed=first_seed,
            jobs=jobs,
            told=lambda done, of: progress.show(lambda: f"{done} of {of} runs"),
        )
    finally:
        progress.end()


def _refuse_unwritable(out: Path, names: Iterable[str]) -> None:
    """Check that each file can be written, without leaving files or directories behind."""
    missing = [one for one in (out, *out.parents) if not os.path.lexists(one)]
    try:
        _make(out)
        for name in names:
            refuse_unwritable("--out", out / name, A_DIRECTORY)
    finally:
        for one in missing:
            with suppress(OSError):  # it could not be made
                one.rmdir()


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable("--out", out, error, A_DIRECTORY) from None


def _write(out: Path, files: dict[str, str]) -> None:
    _make(out)
    for name, text in files.items():
        try:
            (out / name).write_text(text, encoding="utf-8", newline="\n")
        except OSError as error:
            raise unwritable("--out", out / name, error, A_DIRECTORY) from None


# ------------------------------------------------------------------------------------------------------------ digests
def _differing(place: SuiteFiles, result: Bench, files: dict[str, str]) -> Differing:
    from supervisor.simulation.bench.suite import digests_of

    kept, now = place.read_digests().by_file, digests_of(result.first_seed, result.seeds, files).by_file
    return {
        name: {"now": now.get(name), "kept": kept.get(name)}
        for name in sorted({*kept, *now})
        if kept.get(name) != now.get(name)
    }


def _keep(place: SuiteFiles, result: Bench, files: dict[str, str]) -> None:
    from supervisor.simulation.bench.suite import digests_of

    if result.problems:
        say("no digests are kept of runs that went wrong", err=True)
        return
    place.write_digests(digests_of(result.first_seed, result.seeds, files))


# ------------------------------------------------------------------------------------------------------------ showing
def _show(result: Bench, differing: Differing | None, *, as_json: bool, complete: bool = True) -> None:
    """Print the results, and the names of the files that differ, if the files were compared with the digests."""
    if as_json:
        more: dict[str, Any] = {} if complete else {"interrupted": True, "runs": result.runs}
        if differing is not None:
            more["differing"] = differing
        say(json.dumps(result.value() | more, sort_keys=True))
    else:
        if not complete:
            say(f"interrupted; what was reached until then: {result.runs} runs")
        _show_tables(result)
    for words in result.problems[:PROBLEMS_SHOWN]:
        say(words, err=True)
    if len(result.problems) > PROBLEMS_SHOWN:
        say(f"and {len(result.problems) - PROBLEMS_SHOWN} more", err=True)
    for name, digest in (differing or {}).items():
        say(f"{name}: {digest['now'] or 'not there'} now, {digest['kept'] or 'not there'} in the digests", err=True)
    if differing == {}:
        say(f"{len(result.suite.files)} files are as they were", err=True)


def _show_tables(result: Bench) -> None:
    from rich.console import Console
    from rich.table import Table

    from supervisor.simulation.bench import METRICS

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160)
    last = result.first_seed + result.seeds - 1
    for scenario, under in result.suite.scenarios.items():
        title = f"{scenario}, seeds {result.first_seed} to {last}: p50 / p90 / p99 / max"
        table = Table("policy", *(f"{one.title}\n{one.unit}" for one in METRICS), title=title, title_justify="left")
        for policy in under.policies:
            summaries = result.summaries(scenario, policy)
            table.add_row(policy, *(_cell(summaries[one.key], one.decimals) for one in METRICS))
        console.print(table)


def _cell(summary: Any, decimals: int) -> str:
    if summary.count == 0:
        return "none"
    return " / ".join(_short(one, decimals) for one in (summary.p50, summary.p90, summary.p99, summary.max))


def _short(value: float | None, decimals: int) -> str:
    if value is None:
        return "never"
    if value >= 10_000:
        return f"{value / 1000:.0f}k"
    return f"{value:.{min(decimals, 2 if value < 10 else 1)}f}"
