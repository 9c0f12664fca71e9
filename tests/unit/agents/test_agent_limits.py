"""Limits on an ACP agent's requests: directories of commands, and the number of terminals, calls and children."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor.agents.protocols.acp.codec import AcpCodec
from supervisor.agents.protocols.acp.terminals import WAITING_MAX
from supervisor.agents.protocols.codec_base import CLOSED_MAX, ToolCallTable
from supervisor.plans import AgentConfig
from supervisor.ports import Send, StrayLine, TerminalOpened
from supervisor.ports.input_limits import OPEN_CALLS_MAX, TERMINALS_MAX
from tests.support import supervising

AGENT = """
import json, sys

def tell(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

def ask(number, method, **params):
    tell(id=number, method=method, params={"sessionId": "s", **params})
    while True:
        message = json.loads(sys.stdin.readline())
        if message.get("id") == number and "method" not in message:
            return message

def update(kind, **fields):
    tell(method="session/update", params={"sessionId": "s", "update": {"sessionUpdate": kind, **fields}})

def play(words):
    if words.startswith("cwd"):
        opened = ask(900, "terminal/create", command="pwd", cwd=words.split()[1])["result"]["terminalId"]
        ended = ask(901, "terminal/wait_for_exit", terminalId=opened)["result"]
        said = ask(902, "terminal/output", terminalId=opened)["result"]["output"]
        update("agent_message_chunk", content={"type": "text", "text": f"{ended['exitCode']} {said}"})
    else:
        for number in range(int(words.split()[1])):
            update("tool_call", toolCallId=f"c{number}", title="a call")

for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "initialize":
        tell(id=message["id"], result={"protocolVersion": 1, "agentCapabilities": {}})
    elif message.get("method") == "session/new":
        tell(id=message["id"], result={"sessionId": "s"})
    elif message.get("method") == "session/prompt":
        play(message["params"]["prompt"][0]["text"])
        tell(id=message["id"], result={"stopReason": "end_turn"})
"""


@pytest.fixture
def agents(tmp_path: Path) -> dict[str, AgentConfig]:
    program = tmp_path / "agent.py"
    program.write_text(AGENT)
    return {"acp": AgentConfig(adapter="acp", command=(sys.executable, str(program)))}


@pytest.mark.anyio
async def test_a_command_runs_within_the_directory_of_its_session(
    tmp_path: Path, agents: dict[str, AgentConfig]
) -> None:
    """An agent's command runs in a directory below the session's directory; a command with a directory elsewhere, also
    through a link, is refused with an error to the agent, and the turn continues."""
    (tmp_path / "below").mkdir()
    (tmp_path / "link").symlink_to("/")
    async with supervising(tmp_path, agents=agents) as run:
        session = await run.sup.start_session("s", agent="acp")
        assert (await session.run(f"cwd {tmp_path}/below")).text == f"0 {tmp_path}/below\n"
        for path in ("/", f"{tmp_path}/link", f"{tmp_path}/below/../.."):
            result = await session.run(f"cwd {path}")
            assert result.ok
            assert result.text.startswith(f"126 terminal/create: cwd: {path!r}")
            assert f"is not within {str(tmp_path)!r}" in result.text


@pytest.mark.anyio
async def test_too_many_open_calls_end_the_conversation(tmp_path: Path, agents: dict[str, AgentConfig]) -> None:
    """A turn fails when its agent has too many open tool calls; the error names their number and the limit."""
    async with supervising(tmp_path, agents=agents) as run:
        session = await run.sup.start_session("s", agent="acp")
        result = await session.run(f"calls {OPEN_CALLS_MAX + 1}")
        assert result.outcome != "completed"
        words = f"the agent has {OPEN_CALLS_MAX} tool calls open; the most is {OPEN_CALLS_MAX}"
        assert any(words in json.dumps(event.metadata) for event in run.events())


def talking() -> AcpCodec:
    codec = AcpCodec()
    codec.start("/work")
    for number, result in ((1, {"protocolVersion": 1}), (2, {"sessionId": "s"})):
        codec.feed(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode() + b"\n")
    codec.prompt("go")
    return codec


def asked(codec: AcpCodec, rpc_id: int | str, method: str, **params: Any) -> list[Any]:
    message = {"jsonrpc": "2.0", "id": rpc_id, "method": method, "params": {"sessionId": "s", **params}}
    return list(codec.feed(json.dumps(message).encode() + b"\n"))


def error_of(outs: list[Any]) -> str:
    (answer,) = [one for one in outs if isinstance(one, Send)]
    return str(json.loads(answer.data)["error"]["message"])


def test_terminals_that_are_never_released_are_bounded() -> None:
    """An agent that has the most terminals allowed gets an error for another one, until it releases a terminal."""
    codec = talking()
    opened = [
        one
        for number in range(TERMINALS_MAX)
        for one in asked(codec, number, "terminal/create", command="ls")
        if isinstance(one, TerminalOpened)
    ]
    assert len(opened) == TERMINALS_MAX
    assert "release some first" in error_of(asked(codec, "x", "terminal/create", command="ls"))
    codec.terminal_exited(opened[0].terminal_id, 0)
    asked(codec, "r", "terminal/release", terminalId=opened[0].terminal_id)
    assert any(isinstance(one, TerminalOpened) for one in asked(codec, "y", "terminal/create", command="ls"))


def test_requests_that_wait_for_one_command_are_bounded() -> None:
    """Of the requests that wait for one command's exit, the one beyond the limit is an error to the agent; the requests
    within the limit are answered when the command exits."""
    codec = talking()
    (opened,) = [one for one in asked(codec, 0, "terminal/create", command="ls") if isinstance(one, TerminalOpened)]
    for number in range(WAITING_MAX):
        assert asked(codec, f"w{number}", "terminal/wait_for_exit", terminalId=opened.terminal_id) == []
    assert "already, the most" in error_of(asked(codec, "x", "terminal/wait_for_exit", terminalId=opened.terminal_id))
    answers = [one for one in codec.terminal_exited(opened.terminal_id, 0) if isinstance(one, Send)]
    assert len(answers) == WAITING_MAX


def test_a_request_with_an_endless_name_is_no_request() -> None:
    """A request whose id is longer than 256 characters is not served, because the codec would store the id until the
    response."""
    (stray,) = asked(talking(), "n" * 257, "terminal/create", command="ls")
    assert isinstance(stray, StrayLine)


def test_calls_that_are_over_are_remembered_up_to_a_bound() -> None:
    """A late update does not open one of the last 20,000 closed calls again; an older call would be opened again."""
    calls = ToolCallTable()
    for number in range(CLOSED_MAX + 10):
        calls.open(f"c{number}", "t", "k")
        calls.close(f"c{number}", "completed")
    assert [calls.open(f"c{number}", "t", "k") == [] for number in (CLOSED_MAX + 9, 10, 9)] == [True, True, False]
