"""Input that no supervisor has written: pipes without a writer, devices, and journals of others."""

from __future__ import annotations

import os
import sqlite3

import pytest
from field_kit import Scratch

JSONL = """
    agents: {a: {adapter: jsonl, command: ["true"], mapping: MAPPING}}
    tasks: [{id: t, agent: a, prompt: x}]
"""


@pytest.mark.parametrize(
    "command",
    [("plan", "check", "pipe"), ("run", "pipe"), ("doctor", "pipe"), ("validate", "pipe"), ("serve", "pipe")],
    ids=" ".join,
)
def test_a_named_pipe_without_a_writer_is_refused(scratch: Scratch, command: tuple[str, ...]) -> None:
    """A command that is given a named pipe ends with status 2 and says what it is; it waited for ever."""
    os.mkfifo(scratch.path / "pipe")
    said = scratch.run(*command, stdin=-3, within_s=60)
    assert said.status == 2, said.text
    assert "it is a named pipe, and no file" in said.err


@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "."])
def test_a_mapping_that_is_no_file_is_refused(scratch: Scratch, name: str) -> None:
    """A mapping of lines that is a pipe, a device or a directory is an error of the plan."""
    os.mkfifo(scratch.path / "pipe")
    scratch.plan(JSONL.replace("MAPPING", name))
    said = scratch.run("plan", "check", "plan.yaml", stdin=-3, within_s=60)
    assert said.status == 2, said.text
    assert "mapping" in said.err


def test_a_device_is_no_log(scratch: Scratch) -> None:
    """A device that never ends is no log to validate, and no plan."""
    for command in (("validate", "/dev/zero"), ("plan", "check", "/dev/zero")):
        said = scratch.run(*command, stdin=-3, within_s=60)
        assert said.status == 2, said.text
        assert "it is a device, and no file" in said.err


def test_a_plan_of_a_process_substitution_is_read(scratch: Scratch) -> None:
    """A pipe that is open already, as `<(command)` of a shell gives it, is read like a file."""
    scratch.plan("""
        agents: {a: {adapter: command, command: [echo, hello]}}
        tasks: [{id: t, agent: a, prompt: ""}]
    """)
    ours, theirs = os.pipe()
    os.write(theirs, (scratch.path / "plan.yaml").read_bytes())
    os.close(theirs)
    said = scratch.run("plan", "check", f"/dev/fd/{ours}", pass_fds=(ours,), stdin=-3)
    os.close(ours)
    assert said.status == 0, said.text


@pytest.fixture
def journal(scratch: Scratch) -> Scratch:
    """Fixture: a directory with the journal of a run that has ended."""
    scratch.plan("""
        agents: {a: {adapter: command, command: [echo, hello]}}
        tasks: [{id: t, agent: a, prompt: ""}]
    """)
    assert scratch.run("run", "plan.yaml").status == 0
    return scratch


def test_a_journal_with_views_is_none(journal: Scratch) -> None:
    """A file with a view, whose rows may have no end, is no journal: every command says so at once."""
    forged = """
        ALTER TABLE events RENAME TO other;
        CREATE VIEW events AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT * FROM n, other;
    """
    with sqlite3.connect(journal.path / ".sdd" / "runtime" / "journal.db") as database:
        database.executescript(forged)
    database.close()
    for command in (("ps",), ("events",), ("why", "t"), ("report",), ("validate", ".sdd")):
        said = journal.run(*command, stdin=-3, within_s=60)
        assert said.status == 2, said.text
        assert "is no journal: 'events' is a view there" in said.err


@pytest.mark.parametrize("time", ["1e999", "-1e999", "1e300", "-1e15"])
def test_times_that_no_clock_shows_are_shown_as_numbers(journal: Scratch, time: str) -> None:
    """A journal with an infinite or absurd time is shown; it was told to be a bug of the supervisor."""
    with sqlite3.connect(journal.path / ".sdd" / "runtime" / "journal.db") as database:
        database.executescript(f"UPDATE events SET timestamp = {time}; UPDATE entities SET changed_at = {time};")
    database.close()
    for command in (("ps",), ("events",), ("why", "t"), ("report",), ("runs",), ("tree",)):
        said = journal.run(*command)
        assert "bug" not in said.err, (command, said.err)


def test_a_link_in_the_place_of_a_transcript_is_not_followed(scratch: Scratch) -> None:
    """A link at `.sdd/agents/ID`, which an agent may have put there, leads neither output nor `logs` elsewhere."""
    elsewhere = scratch.path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "transcript.log").write_text("00:00:00.000 message| not of this agent\n")
    (scratch.path / ".sdd" / "agents").mkdir(parents=True)
    (scratch.path / ".sdd" / "agents" / "t").symlink_to(elsewhere)
    scratch.plan("""
        agents: {a: {adapter: command, command: [echo, hello]}}
        tasks: [{id: t, agent: a, prompt: ""}]
    """)
    assert scratch.run("run", "plan.yaml").status == 0
    assert (elsewhere / "transcript.log").read_text() == "00:00:00.000 message| not of this agent\n"
    assert [path.name for path in elsewhere.iterdir()] == ["transcript.log"]
    assert "not of this agent" not in scratch.run("logs", "t").text
