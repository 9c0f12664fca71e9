"""The commands ``supervisor journal check``, ``compact`` and ``export``: on journals, on archives, and on running
supervisors."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import apsw
import pytest

from supervisor import AgentTurn, open_supervisor
from supervisor.control.error_messages import BadInput, ControlError, WorkFailed
from supervisor.diagnostics.validate import validate_lines
from supervisor.journal.database import open_database
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir, StateDirError
from supervisor.plans import RetentionConfig, Settings
from supervisor.ports import JournalDamaged, JournalError
from supervisor.runtime.entity import Refused
from tests.support import stderr_of, stdout_of
from tests.unit.journal.test_journal import entry
from tests.unit.journal.test_journal_growth import kept_journal

pytestmark = pytest.mark.anyio


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    """Fixture: a state directory with the journal of a real run."""
    made = StateDir.open(tmp_path / "state")
    shutil.move(kept_journal(tmp_path), made.journal)
    compacted(made, "--records-max", 1_000)
    return made


def compacted(state: StateDir, *options: object) -> str:
    """Run ``journal compact`` and return its output; without *options* it moves everything that has ended to an
    archive."""
    return stdout_of("journal", "compact", *(options or ("--keep-s", 0)), "--state-dir", state.root)


def checked(path: Path, *options: object) -> str:
    return stdout_of("journal", "check", path, *options)


def exported(path: Path, *options: object) -> str:
    return stdout_of("journal", "export", path, *options)


def test_check_says_what_is_sound_of_a_journal_and_its_archives(state: StateDir) -> None:
    """``journal check`` prints one line for each file, with the number of its records and of the ranges of records that
    are elsewhere."""
    told = compacted(state)
    assert told.startswith("moved 58 records of 9 entities to journal-000001.db; the journal has 52 records")
    journal, archive = checked(state.root).splitlines()
    assert journal == f"{state.journal}: sound (52 records, 9 entities, 27 ranges of records are elsewhere)"
    assert archive.startswith(f"{state.archive}/journal-000001.db: sound (58 records, 9 entities, ")
    assert checked(state.journal) == journal
    assert checked(state.archive / "journal-000001.db") == archive
    told = compacted(state)
    assert told == "nothing to move: the journal has 52 records of 9 entities"


def test_check_names_damage_and_goes_on_with_the_next_file(state: StateDir) -> None:
    """``journal check`` reports a changed record of an archive with its number, or a missing archive, and checks the
    other files, too."""
    compacted(state)
    with closing(apsw.Connection(str(state.archive / "journal-000001.db"))) as db:
        seq = db.execute("SELECT min(seq) FROM events WHERE entity_id = 'works'").get
        db.execute("UPDATE events SET reason = 'no' WHERE seq = ?", (seq,))
    told = json.loads(checked(state.root, "--json"))
    assert told["sound"] is False
    journal, archive = told["files"]
    assert journal["problem"] is None
    assert archive["problem"].startswith(f"is damaged (record {seq} is not what was written there)")
    (state.archive / "journal-000001.db").unlink()
    _, archive = json.loads(checked(state.root, "--json"))["files"]
    assert archive["problem"] == f"is not there: {state.journal} has records in it; put the file back"


def test_export_is_every_transition_in_the_format_of_the_lines(state: StateDir, tmp_path: Path) -> None:
    """The output of ``journal export`` equals transitions.jsonl byte for byte, whether records are in the journal or in
    an archive; an existing file is not overwritten."""
    before = exported(state.root)
    assert before == state.transitions.read_text().rstrip("\n")
    compacted(state)
    assert exported(state.root) == before
    out = tmp_path / "out.jsonl"
    assert exported(state.root, "--out", out) == f"{out}: 91 transitions"
    assert out.read_text() == before + "\n"
    assert not validate_lines(out.read_bytes().splitlines(keepends=True)).problems
    with pytest.raises(BadInput, match="exists; name another file"):
        exported(state.root, "--out", out)
    with pytest.raises(BadInput, match="cannot be written: No such file or directory"):
        exported(state.root, "--out", tmp_path / "no" / "out")


def test_a_damaged_journal_is_not_exported_in_part(state: StateDir, tmp_path: Path) -> None:
    """``journal export`` of a damaged journal fails and leaves no file with a part of the records."""
    with closing(apsw.Connection(str(state.journal))) as db:
        db.execute("UPDATE events SET metadata = '{' WHERE seq = (SELECT max(seq) FROM events)")
    with pytest.raises(JournalDamaged, match=r"journal\.db is damaged"):
        exported(state.root, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_why_finds_what_has_gone_to_an_archive(state: StateDir) -> None:
    """``why`` prints the same chain of causes before and after a compaction has moved the records to an archive."""
    before = stdout_of("why", "works", "--state-dir", state.root)
    compacted(state)
    with JournalReader(state.journal) as reader:
        assert reader.entity("works") is None
    assert stdout_of("why", "works", "--state-dir", state.root) == before


def test_the_records_of_all_tell_how_many_are_in_an_archive(state: StateDir) -> None:
    """After a compaction ``events`` says on standard error how many records are in an archive, unless all of those
    precede --after."""
    records = ("events", "--json", "--state-dir", state.root)
    whole = stdout_of(*records).splitlines()
    assert stderr_of(*records) == ""
    compacted(state)
    left = stdout_of(*records).splitlines()
    gone = len(whole) - len(left)
    assert gone > 0
    words = "`supervisor events ID` prints those of one entity, `supervisor journal export` every transition"
    assert stderr_of(*records) == f"supervisor: {gone} records are in an archive: {words}"
    assert stderr_of(*records, "--after", json.loads(left[-1])["seq"] - 1) == ""


def test_the_records_of_all_take_none_that_is_lost_for_archived(state: StateDir) -> None:
    """``events`` does not count a record that is missing from the journal as one in an archive."""
    with closing(open_database(state.journal, state.transitions)) as database:
        database.db.execute("DELETE FROM events WHERE seq = 2")
    assert stderr_of("events", "--json", "--state-dir", state.root) == ""


def test_the_tree_needs_no_archive(state: StateDir) -> None:
    """When an archive is missing, ``tree`` prints the same tree as before; as JSON, with usage, it adds a warning that
    archived records are not counted."""
    compacted(state)
    tree = ("tree", "--all", "--state-dir", state.root)

    def without_ages() -> str:
        return re.sub(r'"silent_s": [\d.]+', "", stdout_of(*tree, "--json"))

    before = stdout_of(*tree), without_ages()
    plain = stderr_of(*tree)
    assert stderr_of(*tree, "--json") == plain
    [archive] = (state.root / "archive").glob("*.db")
    archive.unlink()
    assert (stdout_of(*tree), without_ages(), stderr_of(*tree)) == (*before, plain)
    words = f"{archive} is not there: {state.journal} has records in it; put the file back"
    assert stderr_of(*tree, "--json") == f"supervisor: usage is shown without archived records: {words}\n{plain}"


@pytest.mark.parametrize("command", ["check", "export", "compact"])
def test_where_there_is_no_journal_all_say_so(tmp_path: Path, command: str) -> None:
    """Without a journal each journal command fails with an error that names the directory and `supervisor run`, and
    creates nothing."""
    with pytest.raises((BadInput, StateDirError), match=f"{tmp_path}/none: .*`supervisor run`"):
        stdout_of("journal", command, "--state-dir", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_journal_whose_name_is_not_utf_8_is_refused(state: StateDir, tmp_path: Path) -> None:
    """A journal whose file name is not UTF-8 is refused, because SQLite cannot open it."""
    path = shutil.copy(state.journal, tmp_path / os.fsdecode(b"\xff.db"))
    for command in (("journal", "check"), ("validate",)):
        with pytest.raises(JournalError, match=r"cannot be opened: its name is not UTF-8; rename it$"):
            stdout_of(*command, path)


# ------------------------------------------------------------------------------------------- a supervisor that runs
async def agent(turn: AgentTurn) -> str:
    return turn.prompt


async def test_a_running_supervisor_compacts_when_it_is_asked(state: StateDir, anyio_backend_name: str) -> None:
    """``journal compact`` on a running supervisor moves records to an archive: sessions continue, and the ids of moved
    sessions are not given again."""
    async with open_supervisor(state.root) as sup:
        session = await sup.start_session("works", agent=agent)
        assert session.id == "works-2"
        told = await anyio.to_thread.run_sync(lambda: compacted(state, "--keep-s", 0, "--json"))
        assert json.loads(told)["archives"] == ["journal-000001.db"]
        assert (await session.run("go on")).outcome == "completed"
        assert (await sup.start_session("works", agent=agent)).id == "works-3"
    async with open_supervisor(state.root) as sup:
        assert (await sup.start_session("works", agent=agent)).id == "works-4"
        assert (await sup.start_session("fails", agent=agent)).id == "fails-2"
    assert checked(state.root).count(": sound (") == 2


async def test_an_archive_that_is_missing_is_told_through_the_socket(state: StateDir) -> None:
    """When an archive is missing, ``journal compact`` on a running supervisor fails with an error that says so, and the
    supervisor continues."""
    await anyio.to_thread.run_sync(lambda: compacted(state))
    with closing(apsw.Connection(str(state.journal))) as db:
        db.execute("UPDATE archives SET done = 0")
    (state.archive / "journal-000001.db").unlink()
    async with open_supervisor(state.root) as sup:
        with pytest.raises(ControlError, match="put the file back") as raised:
            await anyio.to_thread.run_sync(lambda: stdout_of("journal", "compact", "--json", "--state-dir", state.root))
        assert raised.value.kind == "failed"
        assert (await (await sup.start_session("a", agent=agent)).run("go on")).outcome == "completed"


def test_what_cannot_be_compacted_to_the_end_has_failed(state: StateDir) -> None:
    """``journal compact`` that cannot complete an interrupted compaction, since an archive is missing, is a failure,
    not bad input."""
    compacted(state)
    with closing(apsw.Connection(str(state.journal))) as db:
        db.execute("UPDATE archives SET done = 0")
    (state.archive / "journal-000001.db").unlink()
    with pytest.raises(WorkFailed, match="put the file back"):
        stdout_of("journal", "compact", "--json", "--state-dir", state.root)


async def test_a_journal_in_memory_cannot_be_compacted() -> None:
    """``compact`` of a supervisor whose journal is in memory is refused with an error that says so."""
    async with open_supervisor() as sup:
        with pytest.raises(Refused, match="is not on a disk"):
            await sup.compact()


async def test_a_supervisor_carries_out_its_retention_by_itself(state: StateDir) -> None:
    """A supervisor compacts its journal without a command, as often as its settings say."""
    settings = Settings(retention=RetentionConfig(keep_s=0.0, every_s=1.0))
    with JournalReader(state.journal) as reader:
        assert reader.entity("works") is not None
        async with open_supervisor(state.root, settings=settings):
            with anyio.fail_after(30):
                while reader.entity("works") is not None:
                    await anyio.lowlevel.checkpoint()
        assert list(reader.archives()) == ["journal-000001.db"]


def rows(path: Path, query: str) -> Iterator[tuple[Any, ...]]:
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        yield from db.execute(query).fetchall()


# --------------------------------------------------------------------------------------------------- spec 002's tables
TASK_STATES = [
    *("task_id", "workstream_id", "state", "previous_state", "attempt_count", "created_at", "started_at"),
    *("completed_at", "failed_at", "last_error", "error_count", "circuit_state", "execution_duration_ms"),
    *("validation_duration_ms", "total_duration_ms", "output_size_bytes", "exit_code"),
]
STATE_TRANSITIONS = ["id", "task_id", "from_state", "to_state", "timestamp", "reason", "metadata"]


def test_the_tables_of_the_specification_have_exactly_its_columns(state: StateDir) -> None:
    """The views ``task_states`` and ``state_transitions`` have exactly the columns of spec 002, in order; there is also
    a view of workstreams."""
    for view, columns in (("task_states", TASK_STATES), ("state_transitions", STATE_TRANSITIONS)):
        assert [row[1] for row in rows(state.journal, f"PRAGMA table_info({view})")] == columns
    assert list(rows(state.journal, "SELECT id FROM workstreams")) == []


def test_the_tables_tell_what_the_records_tell(state: StateDir) -> None:
    """The views of spec 002 agree, for each task, with the records of a real run."""
    with JournalReader(state.journal) as reader:
        tasks = [row for row in reader.entities() if row.kind == "task"]
        logs = {row.id: list(reader.events(row.id)) for row in tasks}
    told = {
        row[0]: dict(zip(TASK_STATES, row, strict=True)) for row in rows(state.journal, "SELECT * FROM task_states")
    }
    assert set(told) == set(logs) == {"task:works", "task:fails", "task:blocked"}
    for task in tasks:
        moves = [one for one in logs[task.id] if one.outcome == "transition" and one.from_status != one.to_status]
        entered = {one.to_status: one for one in moves}
        row = told[task.id]
        assert (row["state"], row["previous_state"]) == (task.state, moves[-1].from_status)
        assert row["attempt_count"] == sum(one.to_status == "IN_PROGRESS" for one in moves)
        for column, status in (("started_at", "IN_PROGRESS"), ("completed_at", "CLOSED"), ("failed_at", "FAILED")):
            assert (row[column] is not None) == (status in entered)
        if "IN_PROGRESS" in entered:
            after = moves[moves.index(entered["IN_PROGRESS"]) + 1]
            spent_ms = 1000 * (after.timestamp - entered["IN_PROGRESS"].timestamp)
            assert abs(row["execution_duration_ms"] - spent_ms) <= 1
        assert row["last_error"] == (entered["FAILED"].reason if "FAILED" in entered else None)
        unknown = ("workstream_id", "validation_duration_ms", "output_size_bytes", "exit_code")
        assert [row[name] for name in unknown] == [None] * 4
    transitions = [
        (one.seq, one.entity_id, one.from_status, one.to_status)
        for log in logs.values()
        for one in log
        if one.outcome == "transition"
    ]
    told_moves = rows(state.journal, "SELECT id, task_id, from_state, to_state FROM state_transitions")
    assert sorted(told_moves) == sorted(transitions)


def test_a_run_of_a_workstream_is_a_task_of_the_specification(tmp_path: Path) -> None:
    """The view ``task_states`` shows the circuit, the failures, the durations and the workstream of a task run."""
    with closing(open_database(tmp_path / "journal.db", None)) as database:
        run: dict[str, Any] = {"entity": "r", "entity_type": "run", "parent_id": "t"}
        data = b'{"failures": 4, "last_error": "no"}'
        database.append(
            [
                entry(1, 1, "ws", entity_type="workstream", state="executing"),
                entry(2, 1, "t", entity_type="task", parent_id="ws", state="OPEN"),
                entry(3, 1, **run, outcome="born", to_status="PENDING", state="PENDING"),
                entry(4, 2, **run, from_status="PENDING", to_status="IN_PROGRESS", state="IN_PROGRESS"),
                entry(5, 3, **run, from_status="IN_PROGRESS", to_status="VALIDATING", state="VALIDATING"),
                entry(9, 4, **run, from_status="VALIDATING", to_status="CIRCUIT_OPEN", state="CIRCUIT_OPEN", data=data),
            ]
        )
    (row,) = rows(tmp_path / "journal.db", "SELECT * FROM task_states WHERE task_id = 'r'")
    told = dict(zip(TASK_STATES, row, strict=True))
    assert (told["workstream_id"], told["circuit_state"], told["error_count"]) == ("ws", "OPEN", 4)
    assert (told["execution_duration_ms"], told["validation_duration_ms"], told["last_error"]) == (1000, 4000, "no")
    assert told["total_duration_ms"] == 6000, "a run whose circuit is open has ended, until somebody resets it"
    assert [*rows(tmp_path / "journal.db", "SELECT id, state FROM workstreams")] == [("ws", "executing")]
