"""The journal alone: ``python -m tests.crash.writer --cycles 10000``.

A process appends to a real journal, says which records are acknowledged, and is killed with SIGKILL at a random
instant: while it opens, commits or checkpoints. Then the journal must open, its chain must hold, and it must have every
acknowledged record. (A kill keeps the page cache: what a power cut does is ``supervisor simulate disk``'s question.)
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

from supervisor.journal.database import open_database
from supervisor.ports import Append, JournalError
from supervisor.vocabulary import LifecycleEvent

BATCH_MAX = 40
CYCLES_PER_JOURNAL = 100
LONGEST_S = 30.0


def entry(seq: int, entity_seq: int) -> Append:
    record = LifecycleEvent(
        seq=seq,
        timestamp=float(seq),
        monotonic_s=float(seq),
        entity_type="session",
        entity_id="writer",
        entity_seq=entity_seq,
        event="Happened",
        metadata={"text": "x" * (seq % 700)},
    )
    return Append(record=record, parent_id=None, state="Running", data=b"{}")


def write(folder: Path, out: int, chance: random.Random) -> None:
    """Append for ever; say the last acknowledged number after each commit."""
    database = open_database(folder / "journal.db", folder / "transitions.jsonl")
    database.db.wal_autocheckpoint(20)  # so that kills fall into checkpoints too
    while True:
        after = database.last_seq
        database.append([entry(after + n, after + n) for n in range(1, chance.randint(1, BATCH_MAX) + 1)])
        os.write(out, b"%d\n" % database.last_seq)


def cycle(folder: Path, chance: random.Random, acknowledged: int) -> tuple[int, str]:
    """The number that was acknowledged last, and what is wrong, if something is."""
    reading, writing = os.pipe()
    seed = chance.getrandbits(32)
    child = os.fork()
    if child == 0:
        os.close(reading)
        write(folder, writing, random.Random(seed))
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
    database.close()
    return f"{acknowledged} was acknowledged, {last} is the last" if last < acknowledged else ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="writer", description=__doc__)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
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
