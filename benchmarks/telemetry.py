"""Processor time of a record with telemetry, compared with that of the same record without.

Sessions with function agents make turns with calls, with the journal on the disk. The kinds of telemetry take turns. In
each run the time of the listener, which is all that telemetry does for a record, is measured by itself: the ratio is
the time of the run divided by that time without the listener, and holds on a busy machine too, where two runs differ by
half. For traces an SDK makes the spans, and nothing exports them: what an exporter costs is its own affair. With
nothing configured there is no listener, and what is left for a record is a look at the empty list of listeners; that is
timed by itself. Run: ``python -m benchmarks.telemetry``.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import anyio.lowlevel

from benchmarks.harness import Stopwatch, options, per_us
from supervisor import AgentTurn, LifecycleEvent, Settings, TelemetryConfig, open_supervisor


class Effort(NamedTuple):
    """Rounds, and in each run the sessions at once, the turns of each, and the calls of each turn."""

    rounds: int
    sessions: int
    turns: int
    calls: int


class Cost(NamedTuple):
    """Microseconds of processor time for a record: of everything, and of the listener."""

    whole_us: float
    listener_us: float

    @property
    def ratio(self) -> float:
        return self.whole_us / (self.whole_us - self.listener_us)


LOOKS: Final = 100_000
FULL: Final = Effort(7, 5, 10, 5)
SHORT: Final = Effort(1, 2, 2, 1)
KINDS: Final[Mapping[str, tuple[TelemetryConfig, float]]] = {
    "nothing": (TelemetryConfig(), 1.001),
    "metrics": (TelemetryConfig(metrics=True), 1.05),
    "traces": (TelemetryConfig(traces=True), 1.15),
    "all": (TelemetryConfig(metrics=True, traces=True, files=True), 1.2),
}
"""Telemetry by name, and the ratio that it may have at most."""


async def measure_run(telemetry: TelemetryConfig, folder: Path, effort: Effort) -> Cost:
    """Run the sessions, and return the cost of a record."""

    async def agent(turn: AgentTurn) -> str:
        for number in range(effort.calls):
            await turn.call(f"call {number}", anyio.lowlevel.checkpoint)
        return "done"

    settings = Settings(telemetry=telemetry)
    async with open_supervisor(folder, agents={"agent": agent}, settings=settings, control=False) as sup:
        listeners = tuple(sup.core.listeners)
        assert bool(listeners) == telemetry.is_on
        spent: list[float] = []

        def timed(record: LifecycleEvent) -> None:
            since = time.thread_time()
            for listen in listeners:
                listen(record)
            spent.append(time.thread_time() - since)

        async def prompt(name: str) -> None:
            session = await sup.start_session(name, agent="agent")
            for _ in range(effort.turns):
                await session.run("work")
            await session.close()

        sup.core.listeners[:] = [timed]
        with Stopwatch() as watch:
            async with anyio.create_task_group() as group:
                for number in range(effort.sessions):
                    group.start_soon(prompt, f"s{number}")
        listening_us = per_us(sum(spent), len(spent)) if listeners else empty_us()
        return Cost(per_us(watch.spent_s, len(spent)), listening_us)


def empty_us() -> float:
    """Return the microseconds of a look at an empty list of listeners."""
    listeners: list[Callable[[], None]] = []

    def publish() -> None:
        for listen in tuple(listeners):
            listen()

    return timeit.timeit(publish, number=LOOKS) / LOOKS * 1e6


def measure(effort: Effort, folder: Path) -> None:
    """Measure each kind of telemetry, and print the table."""
    found: dict[str, list[Cost]] = {name: [] for name in KINDS}
    for number in range(effort.rounds):
        for name, (telemetry, _) in KINDS.items():
            found[name].append(anyio.run(measure_run, telemetry, folder / f"{name}{number}", effort))
    print(f"{'telemetry':<12}{'us/record':>10}{'listener':>10}{'ratio':>8}{'least':>8}{'most':>8}{'aim':>8}")
    for name, costs in found.items():
        whole_us = statistics.median(one.whole_us for one in costs)
        listener_us = statistics.median(one.listener_us for one in costs)
        ratios = [one.ratio for one in costs]
        row = "".join(f"{one:>8.3f}" for one in (statistics.median(ratios), min(ratios), max(ratios)))
        print(f"{name:<12}{whole_us:>10.1f}{listener_us:>10.1f}{row}{KINDS[name][1]:>8.3f}")


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
