"""Opening a long journal and recovering its live entities, compared with a bare scan of the same rows.

The journal has ``--events`` records, of ``--live`` sessions that live and of turns that have ended. Each measurement is
a process of its own, so that its peak of memory is its own: a scan (every row of ``events`` through SQLite into
Python), the opening with a snapshot and without a valid one (as after a boot), the opening after a kill with a tenth as
many records since the snapshot, and a supervisor's start and orderly end. Ratios of CPU time are relative to that scan.
``--compaction`` also measures commits with and without a compaction of the journal under way; ``--short`` does so too.
Run: ``python -m benchmarks.recovery [--events 1000000] [--live 10000] [--folder DIR] [--compaction] [--short]``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from time import perf_counter, process_time, time
from typing import NamedTuple

import anyio
import apsw
import msgspec

from benchmarks.harness import options
from supervisor.journal.database import open_database
from supervisor.journal.files import JournalFiles
from supervisor.journal.sqlite import SqliteJournal
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.session_data import SessionData
from supervisor.lifecycles.turn import TurnData
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Append, Retention

BATCH = 2_000
TURN_RECORDS = 10
SESSION_RECORDS = 10
COMMIT_S = 0.005
"""Seconds between two commits while a journal is compacted, as in a busy supervisor."""
_encode = msgspec.json.Encoder().encode


class Effort(NamedTuple):
    """Sizes of the journal, and seconds for which commits are measured before and after a compaction."""

    events: int
    live: int
    commits_s: float = 10.0

    @property
    def since(self) -> int:
        """Number of records after the last snapshot that a killed process leaves."""
        return self.events // 10


SHORT = Effort(events=1_000, live=10, commits_s=0.1)


# --------------------------------------------------------------------------------------------------- the journal
def records(first: int, last: int, live: int) -> Iterator[Append]:
    """Yield records *first* to *last*: ten records for each living session, then turns of ten records each, of which
    the last ends the turn."""
    for seq in range(first, last + 1):
        number = seq - live * SESSION_RECORDS - 1
        if number < 0:
            turn, who = divmod(seq - 1, live)
            yield _entry(seq, "session", f"s{who}", turn + 1, None, "Running", False)
        else:
            turn, step = divmod(number, TURN_RECORDS)
            parent = f"s{turn % live}"
            last_one = step == TURN_RECORDS - 1
            yield _entry(
                seq, "turn", f"{parent}:t{turn}", step + 1, parent, "REAPED" if last_one else "RUNNING", last_one
            )


def _entry(seq: int, kind: str, who: str, entity_seq: int, parent: str | None, state: str, ended: bool) -> Append:
    record = LifecycleEvent(
        seq=seq,
        timestamp=1.7e9 + seq / 100,
        monotonic_s=1.7e9 + seq / 100,
        entity_type=kind,
        entity_id=who,
        entity_seq=entity_seq,
        event="tool_started",
        from_status=state,
        to_status=state,
        outcome="born" if entity_seq == 1 else "transition",
        actor="acp",
        cause_id=seq - 1 or None,
        metadata={"call_id": f"call-{seq}", "title": "run the tests of the module", "number": entity_seq},
    )
    session = SessionData(id=who, agent="a")
    data = session if parent is None else TurnData(id=who, session_id=parent, request_id="r1")
    owed = ((f"{seq}.0", b'{"effect":"ArmTimer"}'),) if seq % 4 == 0 and not ended else ()
    settled = (f"{seq - 1}.0",) if seq % 4 == 1 else ()
    return Append(
        record=record, parent_id=parent, state=state, data=_encode(data), owed=owed, settled=settled, ended=ended
    )


def fill(path: Path, events: int, live: int) -> None:
    with closing(open_database(path, None)) as database:
        for first in range(1, events + 1, BATCH):
            database.append(list(records(first, min(first + BATCH - 1, events), live)))


# ------------------------------------------------------------------------------------------------- measurements
class _Rebooted(JournalFiles):
    def boot(self) -> str:
        return "after a boot"


def scan(path: Path) -> None:
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        for _ in db.execute("SELECT * FROM events ORDER BY seq"):
            pass


def opened(path: Path) -> None:
    open_database(path, None).close()


def booted(path: Path) -> None:
    open_database(path, None, _Rebooted()).close()


def started(path: Path) -> None:
    from supervisor.embedding.runtime import open_supervisor

    async def start() -> None:
        async with open_supervisor(path.parent.parent):
            pass

    anyio.run(start)


MEASURED = {"scan": scan, "opened": opened, "killed": opened, "booted": booted, "started": started}
TOLD = {
    "scan": "bare scan of the rows",
    "opened": "opening, snapshot at its end",
    "killed": "opening, killed {since:,} records after its snapshot",
    "booted": "opening without a snapshot (after a boot)",
    "started": "a supervisor's start and end, books closed",
}


def measured(what: str, path: Path) -> dict[str, float]:
    """Run one measurement in a process of its own; return its seconds and MiB."""
    command = [sys.executable, "-m", "benchmarks.recovery", "--measure", what, str(path)]
    told: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return told


def measure(what: str, path: Path) -> None:
    start, cpu = perf_counter(), process_time()
    MEASURED[what](path)
    took_s, cpu_s = perf_counter() - start, process_time() - cpu
    print(json.dumps({"s": took_s, "cpu_s": cpu_s, "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


def killed_after(path: Path, copy: Path, effort: Effort) -> Path:
    """Make a copy of the journal with records after its last snapshot, as a kill leaves it; return the path."""
    shutil.copy(path, copy)
    database = open_database(copy, None)
    last = effort.events + effort.since
    database.snapshot_seq = last  # so that none is written
    for first in range(effort.events + 1, last + 1, BATCH):
        database.append(list(records(first, min(first + BATCH - 1, last), effort.live)))
    database.db.close()
    return copy


# ---------------------------------------------------------------------------------------------------- compaction
async def commits(path: Path, folder: Path | None, for_s: float) -> tuple[list[float], float, int]:
    """Commit single records while the journal is compacted into *folder*, or for *for_s* seconds; return the seconds of
    each commit, the duration of the compaction, and the number of records that it moved."""
    journal = await SqliteJournal.open(path, jsonl=None)
    took: list[float] = []
    done, moved = anyio.Event(), 0

    async def write() -> None:
        while not done.is_set():
            start = perf_counter()
            await journal.append([_entry(journal.last_seq + 1, "session", f"w{time()}", 1, None, "Running", False)])
            took.append(perf_counter() - start)
            await anyio.sleep(COMMIT_S)

    start = perf_counter()
    async with anyio.create_task_group() as group:
        group.start_soon(write)
        if folder is None:
            await anyio.sleep(for_s)
        else:
            told = await journal.compact(folder, Retention(keep_s=0.0, records_max=None), time(), pause_s=0.02)
            moved = told.records
        done.set()
    await journal.close()
    return took, perf_counter() - start, moved


def _latency(name: str, took: list[float]) -> str:
    took = sorted(took)
    p50, p99, worst = (1000 * took[min(len(took) - 1, len(took) * share // 1000)] for share in (500, 990, 1000))
    return f"{name:<52}{len(took):>8}{p50:>9.2f}{p99:>9.2f}{worst:>9.2f}"


def compaction(path: Path, folder: Path, for_s: float) -> None:
    print(f"\n{'commits of one record':<52}{'number':>8}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}")
    before, _, _ = anyio.run(commits, path, None, for_s)
    during, took_s, moved = anyio.run(commits, path, folder / "archive", for_s)
    after, _, _ = anyio.run(commits, path, None, for_s)
    for name, took in (
        ("before", before),
        (f"while {moved:,} records move ({took_s:.0f} s)", during),
        ("after", after),
    ):
        print(_latency(name, took))


# ----------------------------------------------------------------------------------------------------- the table
def table(folder: Path, effort: Effort) -> Path:
    state = StateDir.open(folder / "state")
    start = perf_counter()
    fill(state.journal, effort.events, effort.live)
    size_mib = state.journal.stat().st_size / (1 << 20)
    written = f"{size_mib:,.0f} MiB, written in {perf_counter() - start:.0f} s"
    print(f"{effort.events:,} records, {effort.live:,} live sessions: {written}")
    print(f"{'':<52}{'s':>8}{'CPU s':>8}{'of scan':>9}{'MiB':>9}")
    bare = 0.0
    for what in MEASURED:
        path = killed_after(state.journal, folder / "killed.db", effort) if what == "killed" else state.journal
        if what == "started":
            shutil.copytree(state.root, folder / "started", ignore=shutil.ignore_patterns("control.sock"))
            path = StateDir(folder / "started").journal
        found = measured(what, path)
        cpu_s = found["cpu_s"]
        bare = bare or cpu_s
        told = TOLD[what].format(since=effort.since)
        line = f"{told:<52}{found['s']:>8.2f}{cpu_s:>8.2f}{cpu_s / bare:>9.2f}{found['mib']:>9.0f}"
        print(line, flush=True)
        if what == "killed":
            os.remove(path)
        if what == "started":
            shutil.rmtree(folder / "started")
    return state.journal


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, folder=True)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--live", type=int, default=10_000)
    parser.add_argument("--compaction", action="store_true")
    parser.add_argument("--measure", nargs=2, metavar=("WHAT", "JOURNAL"), help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.measure:
        measure(args.measure[0], Path(args.measure[1]))
        return
    effort = SHORT if args.short else Effort(args.events, args.live)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = table(Path(folder), effort)
        if args.compaction or args.short:
            compaction(path, Path(folder), effort.commits_s)


if __name__ == "__main__":
    main()
