"""Time until a batch of records is durable, compared with the least time that a disk needs.

For each batch size the journal (``append``: tables, worker thread, transitions.jsonl) and a raw file (the same records
as JSON, one write, one fdatasync) take turns on the same disk in the same run, so the ratio is valid on any machine;
the rates are not. Run: ``python -m benchmarks.journal [--folder DIR] [--short]``.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import anyio
import msgspec

from benchmarks.harness import options
from supervisor.journal.sqlite import SqliteJournal
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Append


class Effort(NamedTuple):
    """Sizes of the measurement: records in a batch, rounds, and seconds of appends in each round."""

    batches: tuple[int, ...]
    rounds: int
    round_s: float


FULL = Effort((1, 10, 100, 512), 4, 0.5)
SHORT = Effort((1, 10), 1, 0.02)
ENTITIES = 1_000
DATA = msgspec.json.encode({"text": "x" * 229})
"""Stored data of an entity: 240 bytes of JSON, which the journal reads again with the entity's next record."""


def batch_after(seq: int, size: int) -> list[Append]:
    """Return the next *size* records of a thousand sessions that take turns; every fourth record owes an effect."""
    return [_entry(number) for number in range(seq + 1, seq + size + 1)]


def _entry(seq: int) -> Append:
    turn, who = divmod(seq - 1, ENTITIES)
    record = LifecycleEvent(
        seq=seq,
        timestamp=1.7e9 + seq,
        monotonic_s=float(seq),
        entity_type="session",
        entity_id=f"main/agent-{who}",
        entity_seq=turn + 1,
        event="SessionExited",
        from_status="Running",
        to_status="SessionComplete",
        actor="supervisor",
        metadata={"session_seq": turn, "exit": "Success"},
    )
    owed = ((f"effect-{seq}", b'{"type":"launch"}'),) if seq % 4 == 0 else ()
    return Append(record=record, parent_id="main", state="SessionComplete", data=DATA, owed=owed)


async def journal_round(journal: SqliteJournal, size: int, round_s: float) -> list[float]:
    """Append to the journal for *round_s* seconds; return the seconds of each append."""
    took: list[float] = []
    while sum(took) < round_s:
        batch = batch_after(journal.last_seq, size)
        start = perf_counter()
        await journal.append(batch)
        took.append(perf_counter() - start)
    return took


def raw_round(fd: int, size: int, round_s: float) -> list[float]:
    """Write the same records as lines of JSON to a file, one fdatasync per batch; return the seconds of each write."""
    encode: Callable[[LifecycleEvent], bytes] = msgspec.json.Encoder().encode
    took: list[float] = []
    while sum(took) < round_s:
        batch = batch_after(0, size)
        start = perf_counter()
        os.write(fd, b"\n".join([encode(one.record) for one in batch]))
        os.fdatasync(fd)
        took.append(perf_counter() - start)
    return took


async def measure(folder: Path, effort: Effort) -> None:
    """Measure each batch size, and print the table."""
    journal = await SqliteJournal.open(folder / "journal.db", jsonl=folder / "transitions.jsonl")
    fd = os.open(folder / "raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        print(f"{'batch':>6}{'raw rows/s':>13}{'journal rows/s':>16}{'ratio':>8}{'p50 ms':>9}{'p99 ms':>9}")
        for size in effort.batches:
            raw: list[float] = []
            ours: list[float] = []
            for _ in range(effort.rounds):
                raw += raw_round(fd, size, effort.round_s)
                ours += await journal_round(journal, size, effort.round_s)
            print(_row(size, raw, ours))
    finally:
        os.close(fd)
        await journal.close()


def _row(size: int, raw: list[float], ours: list[float]) -> str:
    raw_rows_s, rows_s = size * len(raw) / sum(raw), size * len(ours) / sum(ours)
    p50_ms, p99_ms = statistics.median(ours) * 1000, sorted(ours)[len(ours) * 99 // 100] * 1000
    return f"{size:>6}{raw_rows_s:>13,.0f}{rows_s:>16,.0f}{rows_s / raw_rows_s:>8.2f}{p50_ms:>9.2f}{p99_ms:>9.2f}"


def main(arguments: Sequence[str] | None = None) -> None:
    args = options(__doc__, folder=True).parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        anyio.run(measure, Path(folder), SHORT if args.short else FULL)


if __name__ == "__main__":
    main()
