"""Processor time of a record with telemetry, compared with that of a record without.

Sessions with function agents make turns with calls, with the journal on the disk. A run without telemetry and one with
each kind of it take turns, so that a busy machine shifts them all; a ratio is the median of the ratios of its rounds.
For traces an SDK makes the spans, and nothing exports them: what an exporter costs is its own affair. The row ``none``
compares two runs without telemetry, and shows how far the figures vary. Run: ``python -m benchmarks.telemetry``.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import anyio.lowlevel

from benchmarks.harness import Stopwatch, options, per_us
from supervisor import AgentTurn, Settings, TelemetryConfig, open_supervisor


class Effort(NamedTuple):
    """Rounds, and in each run the sessions at once, the turns of each, and the calls of each turn."""

    rounds: int
    sessions: int
    turns: int
    calls: int


FULL: Final = Effort(7, 5, 10, 5)
SHORT: Final = Effort(1, 2, 2, 1)
KINDS: Final[Mapping[str, tuple[TelemetryConfig, float | None]]] = {
    "none": (TelemetryConfig(), None),
    "metrics": (TelemetryConfig(metrics=True), 1.05),
    "traces": (TelemetryConfig(traces=True), 1.15),
}
"""Telemetry by name, and the ratio that it may have at most."""


async def record_us(telemetry: TelemetryConfig, folder: Path, effort: Effort) -> float:
    """Run the sessions, and return the microseconds of processor time for each record."""

    async def agent(turn: AgentTurn) -> str:
        for number in range(effort.calls):
            await turn.call(f"call {number}", anyio.lowlevel.checkpoint)
        return "done"

    settings = Settings(telemetry=telemetry)
    async with open_supervisor(folder, agents={"agent": agent}, settings=settings, control=False) as sup:

        async def prompt(name: str) -> None:
            session = await sup.start_session(name, agent="agent")
            for _ in range(effort.turns):
                await session.run("work")
            await session.close()

        before = sup.core.journal.last_seq
        with Stopwatch() as watch:
            async with anyio.create_task_group() as group:
                for number in range(effort.sessions):
                    group.start_soon(prompt, f"s{number}")
        return per_us(watch.spent_s, sup.core.journal.last_seq - before)


def measure(effort: Effort, folder: Path) -> None:
    """Measure each kind of telemetry, and print the table."""
    ratios: dict[str, list[float]] = {name: [] for name in KINDS}
    costs: dict[str, list[float]] = {name: [] for name in KINDS}
    for number in range(effort.rounds):
        base = anyio.run(record_us, TelemetryConfig(), folder / f"base{number}", effort)
        for name, (telemetry, _) in KINDS.items():
            cost = anyio.run(record_us, telemetry, folder / f"{name}{number}", effort)
            costs[name].append(cost)
            ratios[name].append(cost / base)
    print(f"{'telemetry':<12}{'us/record':>10}{'ratio':>8}{'least':>8}{'most':>8}{'aim':>8}")
    for name, (_, aim) in KINDS.items():
        shown = "" if aim is None else f"{aim:.2f}"
        found = (statistics.median(ratios[name]), min(ratios[name]), max(ratios[name]))
        row = "".join(f"{one:>8.3f}" for one in found)
        print(f"{name:<12}{statistics.median(costs[name]):>10.1f}{row}{shown:>8}")


def use_sdk() -> None:
    """Have this process use an SDK that exports nothing."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    trace.set_tracer_provider(TracerProvider())


def main(arguments: Sequence[str] | None = None) -> None:
    args = options(__doc__, folder=True).parse_args(arguments)
    use_sdk()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        measure(SHORT if args.short else FULL, Path(folder))


if __name__ == "__main__":
    main()
