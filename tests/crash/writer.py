"""Crash test of the journal alone: ``python -m tests.crash.writer --cycles 10000``.

A process appends to a real journal, prints which records are acknowledged, compacts the journal now and then, and is
killed with SIGKILL at a random moment: while it opens, commits, checkpoints or archives. Then the journal must open, no
part of it may be damaged, and every acknowledged record must be there once, in the journal or in an archive. (A kill
does not lose the page cache: the effect of a power cut is tested by ``python -m tests.verification disk``.) With
``--plant early-acknowledgement`` the process acknowledges a batch before it appends: a deliberate mistake, which the
test must find.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
from pathlib import Path

import apsw

from supervisor.journal.archive import compact_pieces
from supervisor.journal.database import Database, open_database
from supervisor.journal.files import JournalFiles
from supervisor.journal.history import History
from supervisor.journal.integrity import check_all
from supervisor.journal.possession import Possession
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Append, JournalError, Retention

BATCH_MAX = 40
COMPACTS = 0.1
CYCLES_PER_JOURNAL = 25
LONGEST_S = 30.0
EARLY = "early-acknowledgement"
"""Name of the planted mistake: a batch is acknowledged before it is committed."""
CAUGHT_WITHIN = 200
"""Number of kills within which the planted mistake must be found. Eight trials took 2 to 14 kills, so about one kill in
six finds it; if 200 do not, the test detects nothing."""


class FrequentCheckpoints(JournalFiles):
    """Files of a journal that makes a checkpoint every 20 pages, so that kills fall into checkpoints too."""

    def connect(self, path: Path, flags: int) -> apsw.Connection:
        db = super().connect(path, flags)
        db.wal_autocheckpoint(20)
        return db


def entry(seq: int, entity_id: str, entity_seq: int, *, ended: bool) -> Append:
    record = LifecycleEvent(
        seq=seq,
        timestamp=float(seq),
        monotonic_s=float(seq),
        entity_type="session",
        entity_id=entity_id,
        entity_seq=entity_seq,
        event="Happened",
        metadata={"text": "x" * (seq % 700)},
    )
    return Append(record=record, parent_id=None, state="Running", data=b"{}", ended=ended)


def batch_after(seq: int, size: int) -> list[Append]:
    """Return the records of one entity, from its birth to its end; every seventh entity does not end."""
    lives = seq % 7 == 0
    return [entry(seq + n, f"e{seq}", n, ended=n == size and not lives) for n in range(1, size + 1)]


def compact(folder: Path, database: Database) -> None:
    for _ in compact_pieces(database, folder / "archive", Retention(keep_s=0.0, records_max=None), time.time()):
        pass


def write(folder: Path, out: int, chance: random.Random, plant: str | None = None) -> None:
    """Append batches without end; print the last acknowledged number after each commit, or with the planted mistake
    before it."""
    possession = Possession()
    database = open_database(folder / "journal.db", folder / "transitions.jsonl", FrequentCheckpoints(), possession)
    while True:
        after = database.last_seq
        batch = batch_after(after, chance.randint(1, BATCH_MAX))
        if plant == EARLY:
            os.write(out, b"%d\n" % batch[-1].record.seq)
        database.append(batch)
        if plant != EARLY:
            os.write(out, b"%d\n" % database.last_seq)
        if chance.random() < COMPACTS:
            compact(folder, database)


def cycle(folder: Path, chance: random.Random, acknowledged: int, plant: str | None = None) -> tuple[int, str]:
    """Run the writer until it is killed; return the last acknowledged record number, and a description of the fault
    (``""`` without one)."""
    reading, writing = os.pipe()
    seed = chance.getrandbits(32)
    child = os.fork()
    if child == 0:
        os.close(reading)
        write(folder, writing, random.Random(seed), plant)
    os.close(writing)
    try:
        _wait(reading, chance)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        heard = b""
        while data := os.read(reading, 65536):
            heard += data
    finally:
        os.close(reading)
    lines = heard.split(b"\n")[:-1]
    acknowledged = int(lines[-1]) if lines else acknowledged
    return acknowledged, _fault(folder, acknowledged)


def _wait(reading: int, chance: random.Random) -> None:
    if chance.random() < 0.8:
        select.select([reading], [], [], LONGEST_S)
    time.sleep(chance.uniform(0.0, 0.01))


def _fault(folder: Path, acknowledged: int) -> str:
    try:
        database = open_database(folder / "journal.db", folder / "transitions.jsonl")
    except JournalError as error:
        return f"it does not open: {error}"
    last = database.last_seq
    try:
        check_all(database.db)
        with History(folder / "journal.db", folder / "archive") as history:
            there = [one.seq for one in history.events(archived=True)]
    except (apsw.CorruptError, JournalError) as error:
        return f"it is not sound: {error}"
    finally:
        database.close()
    if there != list(range(1, last + 1)):
        return f"journal and archives hold {len(there)} records up to {last}"
    return f"{acknowledged} was acknowledged, {last} is the last" if last < acknowledged else ""


def caught_after(seed: int) -> int | None:
    """Return the number of kills after which the planted mistake is found, or ``None`` if that takes more than
    :data:`CAUGHT_WITHIN`."""
    chance, acknowledged = random.Random(seed), 0
    with tempfile.TemporaryDirectory(prefix="writer-") as folder:
        for number in range(1, CAUGHT_WITHIN + 1):
            acknowledged, words = cycle(Path(folder), chance, acknowledged, EARLY)
            if words:
                return number
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="writer", description=__doc__)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plant", choices=[EARLY], help=f"must be caught within {CAUGHT_WITHIN} kills, else status 1")
    arguments = parser.parse_args()
    if arguments.plant is not None:
        caught = caught_after(arguments.seed)
        print(json.dumps({"planted": arguments.plant, "caught_after": caught}))
        return 0 if caught is not None else 1
    return run(arguments)


def run(arguments: argparse.Namespace) -> int:
    chance, faults, records, began_s = random.Random(arguments.seed), 0, 0, time.monotonic()
    for first in range(0, arguments.cycles, CYCLES_PER_JOURNAL):
        acknowledged = 0
        with tempfile.TemporaryDirectory(prefix="writer-") as folder:
            for number in range(first, min(arguments.cycles, first + CYCLES_PER_JOURNAL)):
                acknowledged, words = cycle(Path(folder), chance, acknowledged)
                if words:
                    faults += 1
                    print(f"cycle {number}: {words}")
        records += acknowledged
    minutes = (time.monotonic() - began_s) / 60
    rate = round(arguments.cycles / minutes)
    print(
        json.dumps({"cycles": arguments.cycles, "acknowledged": records, "faults": faults, "cycles_per_minute": rate})
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
