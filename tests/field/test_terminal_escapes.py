"""Escaped output: text of agents, files and programs reaches a terminal escaped, on standard output and on standard
error.

Unescaped, such text could set the window's title, write the clipboard (OSC 52), clear the screen, or be shown from
right to left: a user would then believe a screen that an agent has drawn.
"""

from __future__ import annotations

import ast
import json
import os
import pty
import sys
import unicodedata
from contextlib import suppress
from pathlib import Path

import pytest
from field_kit import Scratch

import supervisor
from supervisor.cli.rendering import json_line
from supervisor.policies.redaction import printable
from tests.support import running_program

EVIL = "\x1b]0;title\x07\x1b]52;c;cHduZWQ=\x07\x1b[2J\x7f\x9b31m\u202eALL PASSED\U000e0041"
"""Text with a window title, a write to the clipboard, a cleared screen, DEL, a control character of C1, a right-to-left
override, and a tag character from beyond the first plane."""
PLAN = """
    agents:
      painter: {adapter: command, command: [sh, words.sh]}
      talker: {adapter: acp, command: [python3, agent.py]}
    task_lifecycle: {max_attempts: 1, circuit_breaker: {enabled: false}}
    tasks:
      - {id: t, agent: painter, prompt: "", max_retries: 0}
      - {id: u, agent: talker, prompt: go}
"""


def raw(text: str) -> list[str]:
    """Return the characters of *text* on which a terminal would act, apart from newlines and tabs."""
    acted_on = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return sorted({f"U+{ord(one):04X}" for one in text if unicodedata.category(one) in acted_on and one not in "\n\t"})


@pytest.fixture
def evil(scratch: Scratch) -> Scratch:
    """Fixture: a plan with a program that fails with the text EVIL as its last output, and an agent that sends EVIL as
    its reply and as the title of a tool call."""
    octal = "".join(f"\\{byte:03o}" for byte in EVIL.encode())
    scratch.write("words.sh", f"printf '{octal}\\n' >&2\nexit 3\n")
    scratch.acp_agent(f"agent.tool_call('k1', title={EVIL!r})\nagent.tool_ended('k1')\nreturn {EVIL!r} + chr(0x2028)")
    scratch.plan(PLAN)
    return scratch


@pytest.mark.parametrize("options", [(), ("--json",), ("--verbose",)], ids=["text", "json", "verbose"])
def test_the_last_words_of_a_failed_program_are_escaped(evil: Scratch, options: tuple[str, ...]) -> None:
    """`run` prints the last output of a failed program escaped, in its table, its records, its errors and its log; the
    JSON decodes to the original text."""
    done = evil.run("run", "plan.yaml", *options)
    assert done.status == 1, done.text
    assert (raw(done.out), raw(done.err)) == ([], [])
    assert "ALL PASSED" in done.text
    if options == ("--json",):
        assert EVIL in json.loads(done.out.splitlines()[-1])["tasks"][0]["error"]  # the JSON says the same as before


def test_a_title_and_a_message_are_escaped_in_every_command(evil: Scratch) -> None:
    """Every command that shows an agent's messages and calls prints them escaped."""
    evil.run("run", "plan.yaml")
    for command in (("tree", "--all"), ("ps", "--all"), ("events",), ("logs", "u"), ("logs", "t"), ("why", "t")):
        for options in ((), ("--json",)):
            shown = evil.run(*command, *options)
            assert shown.status == 0, shown.text
            assert raw(shown.text) == [], (command, options)
    assert "ALL PASSED" in evil.run("logs", "u").out
    assert "ALL PASSED" in evil.run("events").out


def test_the_live_view_escapes_what_agents_say(evil: Scratch) -> None:
    """The live table of `run` on a terminal contains control characters of the supervisor only, none of an agent's
    text."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "supervisor", "run", "plan.yaml"]
    env = {**evil.env, "TERM": "xterm", "COLUMNS": "200"}
    with running_program(command, cwd=evil.path, env=env, stdin=slave, stdout=slave, stderr=slave) as running:
        os.close(slave)
        shown = read_all(master)
    assert running.returncode == 1
    assert "ALL PASSED" in shown
    assert not any(one in shown for one in ("\x1b]0;", "\x1b]52", "\x1b[2J", "\x9b", "\u202e", "\u2028"))


def read_all(master: int) -> str:
    data = bytearray()
    with suppress(OSError):  # the end of a terminal is an error
        while piece := os.read(master, 65536):
            data += piece
    return data.decode()


def test_errors_about_files_are_escaped(scratch: Scratch) -> None:
    """Names and contents of files are escaped in error messages."""
    scratch.write("plan.yaml", 'agents: {a: {adapter: "\\e[2J\\u202e", command: [x]}}\ntasks: []\n')
    for command in (("run", "plan.yaml"), ("plan", "check", "plan.yaml"), ("run", "\x1b[2J\u202e.yaml")):
        refused = scratch.run(*command)
        assert refused.status == 2
        assert raw(refused.text) == [], command


def test_escaped_json_is_the_same_json() -> None:
    """Escaped JSON decodes to the original value, even with newlines and characters beyond the first plane."""
    said = {"said": f"{EVIL}\u2028\n\té 世界 😀"}
    assert raw(json_line(said)) == []
    assert json.loads(json_line(said)) == said


def test_letters_stay_as_they_are() -> None:
    """``printable`` does not change letters of every script, spaces, symbols and private-use characters; it escapes
    newlines and tabs, unless ``lines`` is set."""
    plain = "Grüße, 世界 😀 … a\u00a0b \ue0b0"
    assert printable(plain) == plain
    assert printable("a\nb\tc") == r"a\nb\tc"
    assert printable("a\nb\tc", lines=True) == "a\nb\tc"


def test_nothing_prints_around_the_one_function() -> None:
    """``print``, ``click.echo`` and writes to the standard streams occur in a few known modules of the product only, so
    that no output goes around the function that escapes."""
    ours = {
        "cli/options.py",  # the function itself
        "simulation/commands/options.py",  # a line of progress, with a control sequence of our own
        "cli/machines.py",  # the reference page, from the tables
        "agents/scripted_agent.py",  # an agent, not the command
        "tests/verification/prove.py",  # likewise
    }
    root = Path(supervisor.__path__[0])
    found = {str(path.relative_to(root)) for path in root.rglob("*.py") if prints(ast.parse(path.read_text()))}
    assert found <= ours


def prints(tree: ast.AST) -> bool:
    """Return whether a module calls ``print``, ``click.echo`` or ``write`` of a standard stream."""
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return bool(called & {"print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write"})
