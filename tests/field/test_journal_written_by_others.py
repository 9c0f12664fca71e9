"""Other programs write into the journal in place, while its supervisor runs: no file is deleted or replaced, so the
inodes stay the same.

Expected: a write is a loss of the journal. The supervisor reports the loss on the terminal at once, ends its agents,
exits with status 1, and writes nothing more. What only reads, and what loses nothing, ends no run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import anyio
import apsw
import pytest
from field_kit import Running, Scratch, alive, until

from supervisor import Settings, open_supervisor
from supervisor.journal.database import Database, open_database
from supervisor.journal.files import JournalFiles
from supervisor.journal.possession import Possession
from supervisor.journal.reader import JournalReader
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Append, JournalLost

SLEEPS = """
    agents:
      a: {adapter: command, command: [sh, -c, "echo $$ > roll; while ! test -e go; do sleep 0.1; done"]}
      b: {adapter: command, command: [sh, -c, "touch second-task"]}
    tasks:
      - {id: t, agent: a, prompt: ""}
      - {id: then, agent: b, prompt: "", depends_on: [t]}
"""


CHECKPOINTS = ["PASSIVE", "FULL", "RESTART", "TRUNCATE"]


def started(scratch: Scratch) -> tuple[Running, int, Path]:
    """Start a run whose first task waits for the file ``go``; return the run, the pid of that task's agent, and the
    journal."""
    scratch.plan(SLEEPS)
    run = scratch.start("run", "plan.yaml")
    roll = scratch.path / "roll"
    agent = int(until(lambda: roll.exists() and roll.read_text().strip()))
    return run, agent, scratch.path / ".sdd" / "runtime" / "journal.db"


def execute(path: Path, statement: str) -> None:
    """Execute SQL as the ``sqlite3`` command of a user does: in a process of its own, since the locks of a database
    belong to a process."""
    script = "import sqlite3, sys; sqlite3.connect(sys.argv[1], isolation_level=None).execute(sys.argv[2]).fetchall()"
    subprocess.run([sys.executable, "-c", script, str(path), statement], check=True, timeout=60)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files in *folder* by name, except the shared memory, in which readers note what they read."""
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file() and one.suffix != ".db-shm"}


def emptied_file(journal: Path) -> None:
    os.truncate(journal, 0)


def emptied_log(journal: Path) -> None:
    os.truncate(f"{journal}-wal", 0)


def overwritten(journal: Path) -> None:
    with journal.open("r+b") as file:
        file.write(b"another file\n" * 1000)


def emptied_by_sql(journal: Path) -> None:
    execute(journal, "DELETE FROM events")


def edited_by_sql(journal: Path) -> None:
    """Change a table whose rows have no checksum."""
    execute(journal, "UPDATE meta SET value = 7 WHERE key = 'partly'")


def vacuumed(journal: Path) -> None:
    execute(journal, "VACUUM")


@pytest.mark.parametrize("lose", [emptied_file, emptied_log, overwritten, emptied_by_sql, edited_by_sql, vacuumed])
def test_a_journal_that_another_program_writes_ends_the_run(scratch: Scratch, lose: Callable[[Path], None]) -> None:
    """A journal that is truncated, overwritten or changed in place ends its run with a reason and a fix; no later task
    starts, and the files stay as the other program has left them."""
    run, agent, journal = started(scratch)
    lose(journal)
    left = contents(journal.parent)
    until(lambda: "under this supervisor: everything that runs is ended" in run.err, within_s=60)
    (scratch.path / "go").touch()
    done = run.wait(20)
    assert done.status == 1, done.text
    assert "the journal .sdd/runtime/journal.db" in done.err
    assert "supervisor journal check .sdd/runtime/journal.db" in done.err
    assert "Traceback" not in done.text, done.text
    assert "this is a bug" not in done.text
    until(lambda: not alive(agent))
    assert not (scratch.path / "second-task").exists()
    after = contents(journal.parent)
    assert {name: after[name] for name in ("journal.db", "journal.db-wal")} == {
        name: left[name] for name in ("journal.db", "journal.db-wal")
    }


def test_readers_and_copies_of_the_journal_end_no_run(scratch: Scratch) -> None:
    """Commands that read, a connection of another program that reads, a backup, and checkpoints of every kind disturb
    no run: its tasks complete, and the journal is sound."""
    run, _, journal = started(scratch)
    for words in (["ps"], ["tree"], ["events"], ["journal", "check"], ["validate", ".sdd"]):
        assert scratch.run(*words).status == 0
    execute(journal, "SELECT count(*) FROM task_states")
    execute(journal, f"VACUUM INTO '{scratch.path / 'copy.db'}'")
    for kind in CHECKPOINTS:
        execute(journal, f"PRAGMA wal_checkpoint({kind})")
    compacted = scratch.run("journal", "compact", "--keep-s", "0")
    assert compacted.status == 0, compacted.text
    (scratch.path / "go").touch()
    done = run.wait()
    assert done.status == 0, done.text
    assert (scratch.path / "second-task").exists()
    assert scratch.run("journal", "check").status == 0


def test_emptied_transitions_are_written_again(scratch: Scratch) -> None:
    """A `transitions.jsonl` that is emptied while the supervisor runs gets all its lines again, from the journal, and
    no other bytes."""
    run, _, _ = started(scratch)
    os.truncate(scratch.path / ".sdd" / "transitions.jsonl", 0)
    (scratch.path / "go").touch()
    assert run.wait().status == 0
    lines = (scratch.path / ".sdd" / "transitions.jsonl").read_bytes().splitlines()
    exported = scratch.run("journal", "export").out.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [json.loads(line)["seq"] for line in exported]


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_host_gets_the_loss(tmp_path: Path, anyio_backend: str) -> None:
    """When the journal of an embedded supervisor is emptied by SQL, the pending prompt fails with the reason, and
    `open_supervisor` raises JournalLost at the end of its block."""

    async def agent(turn: object) -> None:
        emptied_by_sql(tmp_path / "state" / "runtime" / "journal.db")
        await anyio.sleep_forever()

    with pytest.raises(JournalLost, match="was changed by another program"):
        async with open_supervisor(tmp_path / "state", settings=Settings()) as sup:
            session = await sup.start_session("s", agent=agent)
            result = await session.run("go")
            assert result.outcome == "failed"
            assert "was changed by another program" in result.error


# ------------------------------------------------------------------------------------------------ the journal alone
class FrequentCheckpoints(JournalFiles):
    """Files of a journal that makes a checkpoint every 20 pages."""

    def connect(self, path: Path, flags: int) -> apsw.Connection:
        db = super().connect(path, flags)
        db.wal_autocheckpoint(20)
        return db


def write_records(database: Database, count: int) -> None:
    for _ in range(count):
        seq = database.last_seq + 1
        record = LifecycleEvent(
            seq=seq, timestamp=float(seq), monotonic_s=float(seq), entity_type="session", entity_id=f"s{seq}",
            entity_seq=1, event="Happened", metadata={"text": "x" * 500},
        )  # fmt: skip
        database.append([Append(record=record, parent_id=None, state="Running", data=b"{}")])


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """Fixture: an open journal of 100 records that has made checkpoints."""
    database = open_database(tmp_path / "journal.db", None, FrequentCheckpoints(), Possession())
    with suppress(JournalLost, apsw.ConnectionClosedError), closing(database):
        write_records(database, 100)
        yield database


def test_checkpoints_of_the_owner_are_no_change(database: Database, tmp_path: Path) -> None:
    """The owner's own commits and checkpoints, with a reader that holds a part of the log back, are not taken for
    another program's."""
    size = (tmp_path / "journal.db").stat().st_size
    with JournalReader(tmp_path / "journal.db") as reader, reader.read_transaction():
        assert reader.last_seq == 100
        write_records(database, 100)
        database.check()
    write_records(database, 100)
    database.check()
    assert (tmp_path / "journal.db").stat().st_size > size


def test_a_log_that_is_emptied_within_a_commit_is_lost(database: Database, tmp_path: Path) -> None:
    """A commit that is under way when another program empties the log writes behind the new end, and is reported as
    made: the next check finds the loss all the same."""
    with pytest.raises(JournalLost, match="has lost its write-ahead log"):  # a checkpoint, too, checks first
        with database.writing():
            emptied_log(tmp_path / "journal.db")
            database.db.execute("UPDATE meta SET value = value WHERE key = 'generation'")
        database.check()


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_checkpoint_of_another_program_is_no_loss(database: Database, tmp_path: Path, kind: str) -> None:
    """A checkpoint that another program makes moves pages from the log to the database file, and loses nothing: the
    owner goes on to write, and notices a later change."""
    for _ in range(3):
        write_records(database, 10)
        execute(tmp_path / "journal.db", f"PRAGMA wal_checkpoint({kind})")
        database.check()
    write_records(database, 10)
    edited_by_sql(tmp_path / "journal.db")
    with pytest.raises(JournalLost, match="was changed by another program"):
        write_records(database, 1)


def test_an_older_copy_over_the_database_file_is_a_loss(database: Database, tmp_path: Path) -> None:
    """An older copy of the database file that is written over the file is a loss, although the copy is a sound journal
    of the same supervisor."""
    copy = tmp_path / "copy.db"
    shutil.copy(tmp_path / "journal.db", copy)
    write_records(database, 100)
    with (tmp_path / "journal.db").open("r+b") as file:
        file.write(copy.read_bytes())
        file.truncate()
    with pytest.raises(JournalLost, match="was truncated or overwritten under this supervisor"):
        write_records(database, 1)


def test_a_loss_between_the_last_commit_and_the_end_is_raised(database: Database, tmp_path: Path) -> None:
    """A journal that was changed after the last commit is closed with an error, and without a checkpoint into it."""
    emptied_by_sql(tmp_path / "journal.db")
    left = contents(tmp_path)
    with pytest.raises(JournalLost, match="was changed by another program"):
        database.close()
    assert contents(tmp_path) == left


def test_a_deleted_file_of_locks_is_a_loss(database: Database, tmp_path: Path) -> None:
    """The shared memory beside the journal holds SQLite's locks; when that file is deleted, the journal is lost."""
    (tmp_path / "journal.db-shm").unlink()
    with pytest.raises(JournalLost, match="-shm was deleted or replaced"):
        database.check()


def test_a_recovered_journal_is_watched_again(database: Database, tmp_path: Path) -> None:
    """After the recovery from an outage of the disk the owner's commits are no loss, and another program's are."""
    database.recover()
    write_records(database, 50)
    database.recover()
    database.check()
    emptied_by_sql(tmp_path / "journal.db")
    with pytest.raises(JournalLost, match="was changed by another program"):
        database.recover()
