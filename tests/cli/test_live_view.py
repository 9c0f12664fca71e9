"""The live view of ``supervisor run`` on a terminal, and its plain form: what runs is visible, nothing is cut or lost
without a word."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest

from supervisor.cli.live_view import JsonView, PlainView, TableView, view_for
from supervisor.cli.log_output import configure_logging
from supervisor.cli.options import warn
from supervisor.diagnostics.state_times import time_of_day
from supervisor.journal.statedir import StateDir
from supervisor.journal.transcript import Transcript
from supervisor.ports import EntityRow
from supervisor.ports.outages import Outage
from supervisor.work.results import PlanResult, TaskResult
from tests.cli.live_kit import Terminal, agent, record, run, session, stream, task

RESULT = TaskResult("build", "build", "completed", "", 1.5)


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, width: int, height: int) -> Iterator[tuple[TextIO, Terminal]]:
    """Make a terminal of that size standard output and standard error; yield its file, and the screen that it shows
    after ``Terminal.feed``."""
    master, slave = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("LINES", str(height))
    with os.fdopen(slave, "w", encoding="utf-8", newline="") as out, os.fdopen(master, "rb", 0) as reader:
        os.set_blocking(master, False)
        screen = _PtyTerminal(width, height, reader)
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", out)
        yield out, screen


class _PtyTerminal(Terminal):
    def __init__(self, width: int, height: int, reader: io.FileIO) -> None:
        super().__init__(width, height)
        self._reader = reader

    def refresh(self) -> list[str]:
        """Show what was written since the last call, and return the screen."""
        data = b""
        while piece := self._reader.read(65536):
            data += piece
        self.feed(data.decode().replace("\r\n", "\n"))  # the line discipline of the terminal adds a CR
        return self.screen


def state_of(tmp_path: Path) -> StateDir:
    return StateDir.open(tmp_path / "state")


# ------------------------------------------------------------------------------------------------------ terminal
def moment(first: int) -> list[EntityRow]:
    """Return the rows of a run of 40 tasks in which the tasks before *first* are closed and four tasks run."""
    rows = [stream(40)]
    for number in range(40):
        name, running = f"t{number:02}", first <= number < first + 4
        state = "CLOSED" if number < first else "IN_PROGRESS" if running else "OPEN"
        rows.append(task(name, state, born=number + 2, claimed_by=name if running else ""))
        rows.append(run(name, "IN_PROGRESS" if running else "PENDING", born=number + 50, attempts=1))
        if number < first + 4:
            rows.append(session(name, born=number + 100, ended=number < first))
            rows.append(agent(name, born=number + 150))
    return rows


def test_forty_tasks_fit_on_sixteen_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal of 16 lines every frame of a run of 40 tasks shows what runs and counts what is hidden, and each
    warning and log line stands above the table, whole and once."""
    logger = logging.getLogger("supervisor")
    for name in ("handlers", "level", "propagate"):
        monkeypatch.setattr(logger, name, getattr(logger, name))
    with terminal(monkeypatch, 80, 16) as (out, screen):
        configure_logging(verbose=0)
        view = TableView(out, state_of(tmp_path), now=lambda: 3.0)
        for first in range(37):
            view.show([], moment(first))
            frame = "\n".join(screen.refresh())
            assert re.findall(r"● (t\d\d) +RUNNING", frame) == [
                f"t{number:02}" for number in range(first, first + 4)
            ], frame
            shown = len(re.findall(r"^. (?:r1#)?t\d\d ", frame, re.MULTILINE))
            hidden = int(found[1]) if (found := re.search(r"… (\d+) more rows?", frame)) else 0
            assert shown + hidden == 40 - first, frame
            assert (f"ended: {first} completed" in frame) == (first > 0)
            assert f"{first} of 40 tasks completed" in frame
            warn(f"warning {first} " + "long " * 30)
            logger.warning("log %d", first)
        view.end(PlanResult({"build": RESULT}))
        screen.refresh()
        assert sys.stderr is out
        whole = "\n".join(screen.lines)
        flat = whole.replace("\n", "")
        assert [flat.count(f"supervisor: warning {n} " + "long " * 29) for n in range(37)] == [1] * 37
        assert [len(re.findall(rf"WARNING log {n}$", whole, re.MULTILINE)) for n in range(37)] == [1] * 37
        assert whole.count("run r1 of plan:") == 0  # the last table gives way to the results
        assert re.search(r"^build +completed .* 1\.50 s", whole, re.MULTILINE)


def test_a_failure_is_printed_above_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal a failure is a line above the table, which later frames do not erase; other progress is only in the
    table."""
    with terminal(monkeypatch, 80, 12) as (out, screen):
        view = TableView(out, state_of(tmp_path), now=lambda: 3.0)
        begins = record("task", "r1#t00", "claimed", "CLAIMED", by="t00", reason="agent w")
        failed = record("run", "r1#t00:run", "execution_failed", "FAILED", error="exit status 3")
        view.show([begins, failed], moment(0))
        view.show([], moment(1))
        screen.refresh()
        view.close()
    assert screen.lines[0].endswith("t00: attempt failed: exit status 3")
    assert "begins" not in "\n".join(screen.lines)


def test_standard_error_that_is_a_file_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If standard error is no terminal, warnings are written there at once, and not above the table."""
    with terminal(monkeypatch, 80, 12) as (out, screen):
        errors = io.StringIO()
        monkeypatch.setattr(sys, "stderr", errors)
        view = TableView(out, state_of(tmp_path), now=lambda: 3.0)
        warn("to the file")
        assert errors.getvalue() == "supervisor: to the file\n"
        view.close()
        assert "to the file" not in "\n".join(screen.refresh())


def test_what_is_written_last_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings after the last frame, also an unfinished line, are printed when the view closes."""
    with terminal(monkeypatch, 80, 12) as (out, screen):
        view = TableView(out, state_of(tmp_path), now=lambda: 3.0)
        warn("late")
        sys.stderr.write("unfinished")
        view.close()
        assert sys.stderr is out
        assert [line for line in screen.refresh() if line] == ["supervisor: late", "unfinished"]


def test_no_color_means_no_colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``NO_COLOR`` the table on a terminal has no colours and no other styles."""
    written: dict[str, str] = {}
    for value in ("", "1"):
        monkeypatch.setenv("NO_COLOR", value)
        with terminal(monkeypatch, 80, 12) as (_, screen):
            out = io.StringIO()
            monkeypatch.setattr(out, "isatty", lambda: True, raising=False)
            view = TableView(out, state_of(tmp_path), now=lambda: 3.0)
            view.show([], moment(0))
            view.close()
            written[value] = out.getvalue()
            screen.refresh()
    assert "\x1b[32m" in written[""]
    assert re.findall(r"\x1b\[[\d;]*m", written["1"]) == []


@pytest.mark.parametrize(("term", "expected"), [("xterm", TableView), ("dumb", PlainView), ("unknown", PlainView)])
def test_a_terminal_without_cursor_movement_gets_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, term: str, expected: type
) -> None:
    """A terminal gets the table, unless ``TERM`` says that it cannot move the cursor: then lines, as a pipe does."""
    state = state_of(tmp_path)
    with terminal(monkeypatch, 80, 12):
        monkeypatch.setenv("TERM", term)
        view = view_for(as_json=False, state=state)
        assert type(view) is expected
        view.close()
        assert type(view_for(as_json=True, state=state)) is JsonView
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert type(view_for(as_json=False, state=state)) is PlainView


# --------------------------------------------------------------------------------------------------------- plain
def test_the_plain_form_is_short_and_has_the_output(tmp_path: Path) -> None:
    """Without a terminal a task makes a line when it begins and when it ends, and the lines that its agent writes stand
    between them; prompts and tool output are left out."""
    state, out = state_of(tmp_path), io.StringIO()
    view = PlainView(out, state)
    with Transcript(state.transcript("one")) as transcript:
        transcript.write("prompt", "do it\n", at=2.1)
        transcript.write("message", "hello\n", at=2.2)
        transcript.write("stderr", "a warning\n", at=2.3)
        transcript.write("t1:c1", "output of a tool\n", at=2.4)
    view.show(
        [
            record("workstream", "r1", "Born", "planned", outcome="born", tasks=1, at=1.0),
            record("task", "r1#one", "claimed", "CLAIMED", by="one", reason="agent w"),
            record("task", "r1#one", "closed", "CLOSED", reason="merged into main as 1a2b", at=3.5),
        ],
        [stream(1), task("one", "CLOSED"), session("one", ended=True)],
    )
    assert [line[9:] for line in out.getvalue().splitlines()] == [
        "r1: 1 task",
        "one: begins (agent w)",
        "one| hello",
        "one| a warning",
        "one: completed in 1.50 s: merged into main as 1a2b",
    ]


def test_much_output_is_cut_with_a_word(tmp_path: Path) -> None:
    """Of much output at once the last 20 lines are printed, with the number of the others and the command that shows
    them."""
    state, out = state_of(tmp_path), io.StringIO()
    with Transcript(state.transcript("one")) as transcript:
        transcript.write("message", "".join(f"line {n}\n" for n in range(50)), at=2.0)
    PlainView(out, state).show([], [session("one")])
    lines = [line.strip() for line in out.getvalue().splitlines()]
    assert lines == ["one| … 30 more lines, see: supervisor logs one", *(f"one| line {n}" for n in range(30, 50))]


def test_characters_that_the_output_cannot_show_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an output that is ASCII, a letter or a symbol of another alphabet is a question mark, and no error."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    view = view_for(as_json=False, state=state_of(tmp_path))
    view.show([record("run", "r1#a:run", "execution_failed", "FAILED", error="Größe")], [run("a", "FAILED")])
    assert written.getvalue().endswith(b"a: attempt failed: Gr??e\n")


def test_an_outage_stands_below_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the journal cannot be written, the last rows of the table say so, within the height of the terminal."""
    with terminal(monkeypatch, 80, 16) as (out, screen):
        view = TableView(out, state_of(tmp_path), now=lambda: 3.0)
        view.outage(Outage(since=0.0, why="the disk is full", attempts=3, waiting=2))
        view.show([], moment(0))
        frame = " ".join(screen.refresh())
        assert "the disk is full; 2 records wait in memory" in frame
        assert re.findall(r"● (t\d\d) +RUNNING", frame) == ["t00", "t01", "t02", "t03"]
        view.outage(None)
        view.show([], moment(0))
        assert "the disk is full" not in " ".join(screen.refresh())
        view.close()


def test_a_failure_is_told_once(tmp_path: Path) -> None:
    """A failed attempt makes a line, and another one for the next attempt; where the task fails with it there is one
    line in all."""
    state, out = state_of(tmp_path), io.StringIO()
    view = PlainView(out, state)
    view.show(
        [
            record("run", "r1#a:run", "execution_failed", "FAILED", error="exit status 3"),
            record("run", "r1#a:run", "retry_decided", "RETRYING", before="FAILED"),
        ],
        [task("a", "IN_PROGRESS", claimed_by="a"), run("a", "RETRYING", attempts=1, delay_s=4.0)],
    )
    view.show(
        [
            record("run", "r1#a:run", "execution_failed", "FAILED", error="exit status 3"),
            record("task", "r1#a", "failed", "FAILED", reason="exit status 3 (no further try: stopped)"),
            record("task", "r1#a", "retried", "OPEN", before="FAILED", reason="try 2", delay_s=5.0),
        ],
        [task("a", "OPEN"), run("a", "CIRCUIT_OPEN", attempts=2)],
    )
    at_once = f"at once: supervisor retry r1#a --state-dir {state.root}"
    assert [line[9:] for line in out.getvalue().splitlines()] == [
        "a: attempt failed: exit status 3",
        f"a: attempt 1 of 5 ended, the next one comes not before {time_of_day(6.0)} ({at_once})",
        "a: failed: exit status 3 (no further try: stopped)",
        f"a: is tried again not before {time_of_day(7.0)} (try 2)",
    ]
