"""Command ``disk``: simulate power loss under the production journal, with the real SQLite engine."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from supervisor.simulation.commands.options import Progress, as_json, finish, jobs
from tests.verification.power_cuts.power_loss import DiskReport, power_loss


@click.command("disk")
@click.option("--cuts", type=click.IntRange(1, 10**9), default=10_000, show_default=True, help="How many power cuts.")
@click.option("--first-seed", type=click.IntRange(min=0), default=1, show_default=True, help="The first run's seed.")
@jobs
@as_json
def command(cuts: int, first_seed: int, jobs: int, as_json: bool) -> int:
    """Cut the power at any step of the journal's disk, and check the remaining journal.

    No acknowledged batch may be lost; the damage by a disk that lies about its syncs must be detected; planted
    mistakes must be caught. Exit status 1 otherwise.
    """
    progress = Progress()
    try:
        report = power_loss(
            cuts,
            first_seed=first_seed,
            jobs=jobs,
            progress=lambda done: progress.show(lambda: f"{done} of {cuts} cuts"),
        )
    finally:
        progress.end()
    told: dict[str, Any] = msgspec.to_builtins(report)
    told["measured"] = {"took_s": round(progress.took_s, 3)}
    complete = report.cuts >= cuts
    good = report.passed if complete else report.blameless
    return finish(told, _text(report, progress.took_s), as_json=as_json, good=good, complete=complete)


def _text(report: DiskReport, took_s: float) -> str:
    lying = report.lying
    lines = [
        f"{report.cuts} power cuts: {report.lost_acknowledgements} acknowledged batches lost, {report.corrupt} corrupt",
        f"  {report.acknowledged} batches acknowledged, {report.errors_injected} errors injected, {report.sectors_lost}"
        f" sectors lost, {report.sectors_torn} torn; {report.openings} different disks opened",
        f"  disks that lie: {lying.cuts} cuts, {lying.harmless} harmless, {lying.detected_by_opening} found out when"
        f" the journal was opened, {lying.detected_by_record} by what had been acknowledged, {lying.undetected} not",
        *(f"  planted: {name} caught in {one.caught} of {one.runs} runs" for name, one in report.controls.items()),
        f"  measured   {took_s:.1f} s, {report.cuts / took_s * 60:.0f} cuts per minute",
        f"  digest     {report.digest}",
    ]
    return "\n".join([*lines, *([f"  first: {report.first_failure}"] if report.first_failure else [])])
