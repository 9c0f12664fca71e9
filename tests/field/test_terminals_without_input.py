"""Commands that an agent runs in a terminal of its client, and that want input: nobody can type there, so they meet
the end of file at once, and the agent is told why its command has failed."""

from __future__ import annotations

import pytest
from field_kit import Scratch

PLAN = """
    agents: {{a: {{adapter: scripted}}}}
    limits: {{turn_timeout_s: 1000}}
    tasks: [{{id: t, agent: a, max_retries: 0, prompt: "@run {command}"}}]
"""


@pytest.mark.parametrize(
    "command",
    [
        "wc -c > seen",
        "head -1 > seen; echo done >> seen",
        "bash -c 'mapfile lines'; echo > seen",
        "test ! -p /dev/stdin && touch seen",
    ],
)
def test_a_command_that_reads_goes_on(scratch: Scratch, command: str) -> None:
    """A command reads its standard input, or looks whether it is a pipe: it finds nothing there, and goes on."""
    scratch.plan(PLAN.format(command=command))
    done = scratch.run("run", "plan.yaml")
    assert done.status == 0, done.text
    assert (scratch.path / "seen").exists()
    assert not [one for one in scratch.records() if one.get("event") == "InputWanted"]


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("python3 -c 'input()'", "EOFError: EOF when reading a line"),
        ("printf 'Really? [y/N] '; read answer", "Really? [y/N]"),
    ],
)
def test_a_command_that_asks_is_on_record(scratch: Scratch, command: str, line: str) -> None:
    """A command asks a question, and fails because nobody answers: the turn's records, and the transcript, say which
    command wanted input, and with which words it asked."""
    scratch.plan(PLAN.format(command=command))
    assert scratch.run("run", "plan.yaml").status == 0
    [fact] = [one for one in scratch.records("t:t1") if one.get("event") == "InputWanted"]
    assert fact["metadata"] == {"tool": "t:t1:c1", "line": line}
    assert f"the command wanted input ({line})" in scratch.run("logs", "t").out


def test_an_agent_is_told_that_its_command_wanted_input(scratch: Scratch) -> None:
    """The output of a command that asked a question ends with the reason why it has failed."""
    scratch.acp_agent("""
        made = agent.call("terminal/create", command="sh", args=["-c", "printf 'Password: '; read it"])
        named = {"terminalId": made["result"]["terminalId"]}
        agent.call("terminal/wait_for_exit", **named)
        Path("told").write_text(agent.call("terminal/output", **named)["result"]["output"])
        return "done"
    """)
    scratch.plan("""
        agents: {a: {adapter: acp, command: [python3, agent.py]}}
        tasks: [{id: t, agent: a, prompt: go}]
    """)
    assert scratch.run("run", "plan.yaml").status == 0
    told = (scratch.path / "told").read_text()
    assert (
        told
        == "Password: \nsupervisor: the command wanted input (Password:); it has none, since nobody can type here\n"
    )
