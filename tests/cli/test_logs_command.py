"""``supervisor logs --all --since``: the lines of all transcripts in the order of time, and the dates of lines."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from supervisor.cli.transcript_times import line_times, read_since
from supervisor.journal.statedir import StateDir
from supervisor.journal.transcript import Transcript
from tests.support import run_command as cli

pytestmark = pytest.mark.one_backend

PLAN = """
agents: {sh: {adapter: command, command: [sh, -eu]}}
tasks:
  - {id: one, agent: sh, prompt: echo first}
  - {id: two, agent: sh, prompt: echo second, depends_on: [one]}
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fixture: the state directory of two runs of a plan with two tasks, the second one after the first."""
    folder = tmp_path_factory.mktemp("ended")
    (folder / "plan.yaml").write_text(PLAN)
    for _ in range(2):
        assert cli("run", folder / "plan.yaml", "--workdir", folder, "--state-dir", folder / "state").status == 0
    return folder / "state"


def said(output: str) -> list[str]:
    return [line.partition(" ")[2] for line in output.splitlines()]


def test_all_transcripts_are_printed_in_the_order_of_time(ended: Path) -> None:
    """``logs --all`` prints the lines of every session with the session's name; with ``--run`` those of one run."""
    first = ["one prompt| echo first", "one message| first", "two prompt| echo second", "two message| second"]
    second = [line.replace(" ", "-2 ", 1) for line in first]
    assert said(cli("logs", "--all", "--state-dir", ended).out) == [*first, *second]
    assert said(cli("logs", "--all", "--run", "r2", "--state-dir", ended).out) == second
    lines = cli("logs", "--all", "--json", "--state-dir", ended).lines
    assert [(one["session"], one["text"]) for one in lines][:2] == [("one", "echo first"), ("one", "first")]
    assert cli("logs", "--all", "-f", "--state-dir", ended) == cli("logs", "--all", "--state-dir", ended)


def test_lines_before_the_time_are_left_out(ended: Path, tmp_path: Path) -> None:
    """``--since`` takes a duration or a time; a transcript that was last written before has no lines."""
    assert said(cli("logs", "--all", "--since", "1h", "--state-dir", ended).out)[0] == "one prompt| echo first"
    assert cli("logs", "--all", "--since", "2999-01-01", "--state-dir", ended).out == ""
    path = StateDir(ended).transcript("one")
    before = path.stat()
    os.utime(path, (0.0, 0.0))
    try:
        assert said(cli("logs", "--all", "--since", "1h", "--state-dir", ended).out)[0] == "two prompt| echo second"
        assert cli("logs", "one", "--exact", "--since", "1h", "--state-dir", ended).out == ""
    finally:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "ID: missing; name a task or session (`supervisor ps` shows them), or give --all"),
        (["one", "--all"], "--all: it means every session; leave out ID and --exact, or --all"),
        (["--all", "--since", "soon"], "--since: 'soon' is no time; give 10m, 2h, 14:30, or 2026-03-01T14:30"),
        (["--all", "--run", "r9"], "run 'r9' is not in the journal; the runs are: r1, r2"),
    ],
)
def test_bad_input_is_refused(ended: Path, words: list[str], message: str) -> None:
    """Options that cannot be meant are refused, with the fix."""
    assert cli("logs", *words, "--state-dir", ended) == (2, "", f"supervisor: {message}\n")


# ------------------------------------------------------------------------------------------------------- times
def test_lines_are_dated_backwards_from_the_last_write(tmp_path: Path) -> None:
    """The lines have the days that lead to the last write; a clock that was set back a little makes no day, and a line
    without a time has that of the line before."""
    at = datetime(2026, 3, 3, 0, 10, tzinfo=UTC).timestamp()
    times = [at - 80_000, at - 3_600, at - 600, at - 602, at]
    with Transcript(tmp_path / "t") as transcript:
        for one in times:
            transcript.write("message", "x\n", at=one)
    lines = (tmp_path / "t").read_text().splitlines()
    found = line_times([lines[0], "-- 9 bytes dropped --", *lines[1:]], at)
    assert found == pytest.approx([times[0], times[0], *times[1:]])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", "2026-03-03T11:58:30"),
        ("1h30m", "2026-03-03T10:30:00"),
        ("1.5d", "2026-03-02T00:00:00"),
        ("11:30", "2026-03-03T11:30:00"),
        ("12:30", "2026-03-02T12:30:00"),
        ("2026-03-01", "2026-03-01T00:00:00"),
        ("2026-03-01T09:15", "2026-03-01T09:15:00"),
    ],
)
def test_a_time_is_read_as_a_user_writes_it(text: str, expected: str) -> None:
    """A duration ends now, a time of day is the last one, and a date stands for its begin; all in local time."""
    now = datetime.fromisoformat("2026-03-03T12:00:00").astimezone().timestamp()
    assert read_since(text, now) == datetime.fromisoformat(expected).astimezone().timestamp()


@pytest.mark.parametrize("text", ["", "10", "m", "25:00", "10x", "yesterday", "-5m"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """Any other text raises ValueError."""
    with pytest.raises(ValueError, match=r".*"):
        read_since(text, 0.0)
