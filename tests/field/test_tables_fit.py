"""Tables as a person reads them: on a terminal of 80 columns, with long names, and with what is equal said once."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import termios
from contextlib import suppress

import pytest
from field_kit import DEADLINE_S, Scratch, until

from supervisor.policies.redaction import Redactor

LONG = "move-the-billing-task-of-the-old-service-to-the-new-module"
"""Name of 58 characters, with an ending that others share."""
PLAN = f"""
    agents:
      a: {{adapter: command, command: [sh, -c, "echo hello"]}}
      an-agent-with-a-long-name: {{adapter: command, command: [sh, -c, "exit 3"]}}
    tasks:
      - {{id: {LONG}, agent: a, prompt: ""}}
      - {{id: {LONG}-2, agent: an-agent-with-a-long-name, prompt: "", depends_on: [{LONG}]}}
"""


def on_terminal(scratch: Scratch, *args: str, columns: int = 80) -> str:
    """Run a command on a terminal of *columns*, and return what was printed there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    command = scratch.start(*args, stdout=theirs, stderr=theirs)
    os.close(theirs)
    printed = b""
    with suppress(OSError):  # the end of a terminal whose programs have ended
        while piece := os.read(ours, 65_536):
            printed += piece
    os.close(ours)
    command.wait(DEADLINE_S)
    return printed.decode().replace("\r\n", "\n")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    """Fixture: a directory in which the plan with long names has been run."""
    scratch = Scratch(tmp_path_factory.mktemp("tables"))
    scratch.plan(PLAN)
    run = scratch.run("run", "plan.yaml", "--json")
    assert run.status == 1, run.text
    return scratch


@pytest.mark.parametrize(
    "command",
    [("ps", "--all"), ("report",), ("plan", "check", "plan.yaml"), ("plan", "show", "r1"), ("dead-letters",)],
    ids=" ".join,
)
def test_tables_fit_on_a_terminal(finished: Scratch, command: tuple[str, ...]) -> None:
    """Every line of a table has at most 80 columns, and no name is cut: each can be found, whole or over two lines."""
    printed = on_terminal(finished, *command)
    table = re.split(r"\n\n.* failed: ", printed)[0]  # a sentence below, with a command to copy, is not broken
    assert max(map(len, table.splitlines())) <= 80, printed
    if command[:2] != ("plan", "show"):  # where each name is folded within its column
        assert f"{LONG}-2" in re.sub(r"-\s+", "-", printed), printed


def test_the_table_at_the_end_of_a_run_fits(finished: Scratch) -> None:
    """The end table of `run` has at most 80 columns too, with each task's whole id on a line."""
    printed = on_terminal(finished, "run", "plan.yaml", "--resume", "--verbose")
    table = re.split(r"\n\n.* failed: ", printed[printed.rindex("OUTCOME") :])[0].splitlines()
    assert max(map(len, table)) <= 80, printed
    assert f"r2#{LONG}-2" in table


def test_a_pipe_has_whole_lines(finished: Scratch) -> None:
    """For a file or a program a row is one line, however long."""
    rows = finished.run("ps").out.splitlines()
    assert {f"r1#{LONG}", f"r1#{LONG}-2"} <= {row.split()[0] for row in rows if " task " in row}, rows
    narrow = finished.run("ps", env={"COLUMNS": "80"}).out
    assert max(map(len, narrow.splitlines())) <= 80


def test_names_with_a_word_before_a_hyphen_are_no_secrets(finished: Scratch) -> None:
    """A name that happens to hold `sk-` within a word (`task-of-...`) is shown, and one task is one task."""
    told = json.loads(finished.run("report", "r1", "--json").out)
    assert sorted(one["id"] for one in told["tasks"]) == [LONG, f"{LONG}-2"]
    assert "redacted" not in finished.run("report", "r1").text


@pytest.mark.parametrize(
    ("text", "is_secret"),
    [
        ("/src/disk-usage-of-the-old-service-in-2026", False),
        ("Desk-booking-for-the-whole-floor", False),
        ("sk-abcdefghijklmnopqrstuvwx", True),
        (r'{"out":"found\nsk-abcdefghijklmnopqrstuvwx"}', True),
        ("KEYsk-proj-Ab12cd34ef56gh78ij90", True),
    ],
)
def test_a_key_begins_a_word_or_looks_random(text: str, is_secret: bool) -> None:
    """Keys are still found: at the beginning of a word, behind an escaped newline, and, if random, within a word."""
    assert (Redactor().text(text) != text) is is_secret


def test_equal_reasons_stand_once(scratch: Scratch) -> None:
    """After Ctrl-C, what is the same for many tasks is one sentence with their number and names."""
    scratch.plan("""
        agents: {a: {adapter: command, command: [sh, -c, "touch $PWD/up; sleep 600"]}}
        drain_s: 0
        tasks:
          - {id: first, agent: a, prompt: ""}
          - {id: second, agent: a, prompt: "", depends_on: [first]}
          - {id: third, agent: a, prompt: "", depends_on: [first]}
          - {id: fourth, agent: a, prompt: "", depends_on: [first]}
    """)
    run = scratch.start("run", "plan.yaml")
    until((scratch.path / "up").exists)
    run.process.send_signal(signal.SIGINT)
    end = run.wait().out.partition("\nTASK")[2]
    assert end.count("it depends on first, which did not complete") == 1, end
    assert "3 tasks blocked: it depends on first" in end
    assert "    second, third, fourth" in end
    assert "first aborted: " in end


def test_waiting_is_not_work(scratch: Scratch) -> None:
    """TOOK is the time in which a task was worked on; what it has waited for its next attempts is named apart."""
    scratch.plan("""
        agents: {a: {adapter: command, command: [sh, -c, "exit 3"]}}
        tasks: [{id: t, agent: a, prompt: "", max_retries: 0}]
    """)
    run = scratch.run("run", "plan.yaml", "--json")
    [task] = run.json()["tasks"]
    assert task["launches"] == 3
    # Before the second and the third attempt lie pauses of at least 1.5 and 3 s, and the attempts do nothing.
    assert task["took_s"] - task["worked_s"] >= 4.4
    assert task["worked_s"] > 0
    head, row, *_ = scratch.run("report").out.partition("\nTASK")[2].splitlines()
    assert head.split() == ["OUTCOME", "LAUNCHES", "TOOK", "WAITED", "COST", "SESSION"]
    assert row.startswith("r1#t")
