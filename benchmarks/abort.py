"""Time of an abort of many sessions, receipts and records included, against bare cancel scopes in the same run.

Shapes: 100 x 100 sessions at rest, the same with every tenth in the middle of a call, 1 x 10,000, and chains. Each is
aborted at scope SESSION from its root, in memory (until the receipt reports that all sessions have ended) and on disk
(until the receipt reports that the records are durable). For comparison, in the same run and on the same backend: as
many tasks, each in a cancel scope and task group of its own, in the same shape, cancelled from the root and joined;
and, for the disk, the time in which the journal commits as many rows by itself, in batches as large as the journal
writer's. asyncio does not end nested task groups deeper than about 300, so there the bare figure of a chain is measured
with 250 levels, which the table notes.

Aborts that wait for no disk are measured in process time, which a loaded machine does not lengthen; aborts that do, by
the wall clock. Run: ``python -m benchmarks.abort [--rounds N] [--folder DIR] [--short]``.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import NamedTuple

import anyio
import msgspec

from benchmarks.harness import BACKENDS, Missing, options
from benchmarks.peers import ask_peer
from supervisor import AbortScope, AgentTurn, Session, Supervisor, open_supervisor
from supervisor.journal.sqlite import SqliteJournal
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Append
from supervisor.runtime.journal_writer import BATCH_MAX

BARE_DEPTH_MAX = {"asyncio": 250, "trio": 2_000}
DATA = msgspec.json.encode({"text": "x" * 469})
"""Stored data of an entity: 480 bytes of JSON."""


class Shape(NamedTuple):
    """Shape of a session tree: a root with *branches* below it, and *leaves* below each branch; or, with *depth*, a
    chain.

    Every *working*-th session is in the middle of a call (0: none).
    """

    name: str
    branches: int = 0
    leaves: int = 0
    depth: int = 0
    working: int = 0

    @property
    def sessions(self) -> int:
        return self.depth or 1 + self.branches * (1 + self.leaves)


FULL = (
    Shape("100 x 100 at rest", branches=100, leaves=99),
    Shape("100 x 100, a tenth in a call", branches=100, leaves=99, working=10),
    Shape("1 x 10,000 at rest", branches=10_000),
    *(Shape(f"chain of {depth:,}", depth=depth) for depth in (250, 500, 1_000, 2_000)),
    *(Shape(f"chain of {depth:,}, all in a call", depth=depth, working=1) for depth in (250, 500, 1_000)),
)
"""Shapes that are measured; the first one is also measured in Erlang."""
SHORT = (
    Shape("3 x 3 at rest", branches=3, leaves=2),
    Shape("3 x 3, a tenth in a call", branches=3, leaves=2, working=10),
    Shape("1 x 10 at rest", branches=10),
    Shape("chain of 5", depth=5),
    Shape("chain of 5, all in a call", depth=5, working=1),
)


# ---------------------------------------------------------------------------------------------------- ours
class _Crowd:
    """Agents that hang in a call, and an event that is set once all of them do."""

    def __init__(self, expected: int) -> None:
        self._missing = expected
        self.there = anyio.Event()

    async def hang(self) -> None:
        self._missing -= 1
        if self._missing == 0:
            self.there.set()
        await anyio.sleep_forever()

    async def agent(self, turn: AgentTurn) -> None:
        await turn.call("hang", self.hang)


async def _start(sup: Supervisor, shape: Shape, crowd: _Crowd) -> list[Session]:
    sessions = [await sup.start_session("root", agent=crowd.agent)]
    if shape.depth:
        while len(sessions) < shape.depth:
            sessions.append(await sessions[-1].start_child("c"))
        return sessions
    branches = [await sessions[0].start_child(f"b{number}") for number in range(shape.branches)]
    leaves = [await one.start_child(f"l{number}") for one in branches for number in range(shape.leaves)]
    return [*sessions, *branches, *leaves]


async def abort_tree(shape: Shape, state_dir: Path | None = None) -> float:
    """Return the seconds from the abort of the root to its receipt: process time; with *state_dir*, wall time."""
    clock = process_time if state_dir is None else perf_counter
    async with open_supervisor(state_dir) as sup, anyio.create_task_group() as group:
        works = range(0, shape.sessions, shape.working) if shape.working else range(0)
        crowd = _Crowd(len(works))
        sessions = await _start(sup, shape, crowd)
        for number in works:
            group.start_soon(sessions[number].run, "hang")
        if works:
            await crowd.there.wait()
        gc.collect()
        began = clock()
        receipt = await sup.abort("root", AbortScope.SESSION, reason="benchmark")
        took_s = clock() - began
        assert len(receipt.nodes) == shape.sessions
        assert receipt.survivors == 0
        assert receipt.recorded_at is not None
    return took_s


# ---------------------------------------------------------------------------------------------------- bare
async def bare_tree(shape: Shape) -> float:
    """Return the seconds (process time) from the cancel of the outermost of nested scopes to the end of every task,
    each in a task group."""
    missing, there = shape.sessions, anyio.Event()

    async def one(below: tuple[int, ...]) -> None:
        nonlocal missing
        async with anyio.create_task_group() as group:
            missing -= 1
            if missing == 0:
                there.set()
            for _ in range(below[0] if below else 0):
                group.start_soon(one, below[1:])
            await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(one, (1,) * (shape.depth - 1) if shape.depth else (shape.branches, shape.leaves))
        await there.wait()
        gc.collect()
        began = process_time()
        group.cancel_scope.cancel()
    return process_time() - began


# ---------------------------------------------------------------------------------------------------- the disk
async def commit_rows(folder: Path, rows: int) -> float:
    """Return the seconds in which the journal alone makes *rows* records durable, in batches as large as the journal
    writer's."""
    journal = await SqliteJournal.open(folder / "journal.db", jsonl=folder / "transitions.jsonl")
    try:
        began = perf_counter()
        for first in range(1, rows + 1, BATCH_MAX):
            await journal.append([_row(seq) for seq in range(first, min(first + BATCH_MAX, rows + 1))])
        return perf_counter() - began
    finally:
        await journal.close()


def _row(seq: int) -> Append:
    record = LifecycleEvent(
        seq=seq,
        timestamp=1.7e9 + seq,
        monotonic_s=float(seq),
        entity_type="session",
        entity_id=f"root/b{seq // 100}/l{seq % 100}",
        entity_seq=1,
        event="OperatorStop",
        from_status="Initializing",
        to_status="Stopped",
        actor="host",
        reason="benchmark",
        abort_id="abort-1",
        metadata={"reason": "benchmark", "outcome": "aborted"},
    )
    return Append(record=record, parent_id="root", state="Stopped", data=DATA)


# ---------------------------------------------------------------------------------------------------- the table
def median_s(measure: Callable[[], Awaitable[float]], backend: str, rounds: int) -> float:
    return statistics.median(anyio.run(measure, backend=backend) for _ in range(rounds))


def _on_disk(work: Callable[[Path], Awaitable[float]], disk: Path | None) -> Callable[[], Awaitable[float]]:
    async def run() -> float:
        with tempfile.TemporaryDirectory(dir=disk) as folder:
            return await work(Path(folder))

    return run


def _print(shape: Shape, backend: str, what: str, took_s: float, note: str = "") -> None:
    each_us = took_s / shape.sessions * 1e6
    print(f"{shape.name:<32} {backend:<8} {what:<22} {took_s * 1000:>9.1f} ms {each_us:>8.1f} us each  {note}")


def against_erlang(took_s: float, branches: int) -> str:
    """Return a text with the ratio of *took_s* to the time of Erlang/OTP's supervisors for the same tree (aim: at most
    1), measured now."""
    try:
        (erlang_ms,) = ask_peer("erlang", "tree", branches)
    except Missing as why:
        return f"Erlang: {why}"
    return f"{took_s * 1000 / erlang_ms:.1f}x Erlang's {erlang_ms:.3g} ms"


def measure(shape: Shape, backend: str, rounds: int, disk: Path | None) -> None:
    """Print the rows of one shape on one backend."""
    depth_max = BARE_DEPTH_MAX[backend]
    least = shape._replace(depth=min(shape.depth, depth_max))
    bare_s = median_s(lambda: bare_tree(least), backend, rounds) / least.sessions * shape.sessions
    _print(shape, backend, "bare cancel scopes", bare_s, f"from {depth_max} levels" if least != shape else "")
    memory_s = median_s(lambda: abort_tree(shape), backend, rounds)
    erlang = f", {against_erlang(memory_s, shape.branches)}" if shape in (FULL[0], SHORT[0]) else ""
    _print(shape, backend, "in memory", memory_s, f"{memory_s / bare_s:.1f}x bare{erlang}")
    rows = 2 * shape.sessions
    disk_s = median_s(_on_disk(lambda folder: abort_tree(shape, folder / ".sdd"), disk), backend, rounds)
    commit_s = median_s(_on_disk(lambda folder: commit_rows(folder, rows), disk), backend, rounds)
    _print(shape, backend, "durable", disk_s, f"{disk_s / commit_s:.1f}x a commit of {rows:,} rows")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, folder=True)
    parser.add_argument("--rounds", type=int, default=3, help="repetitions of each measurement")
    args = parser.parse_args(arguments)
    rounds = 1 if args.short else args.rounds
    print(f"abort of a session and all below it, with records and a receipt; medians of {rounds}")
    for shape in SHORT if args.short else FULL:
        for backend in BACKENDS:
            measure(shape, backend, rounds, args.folder)


if __name__ == "__main__":
    main()
