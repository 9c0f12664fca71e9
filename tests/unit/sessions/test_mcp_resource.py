"""Stdio MCP server as a resource of a session: ready in time, called, restarted, given up, and ended with its
session."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from supervisor import AgentConfig, open_supervisor
from supervisor.plans.agents import McpServerConfig
from supervisor.sessions import mcp_stdio
from supervisor.sessions.mcp_stdio import McpError
from tests.support import Run, no_leaks, supervising, wait_for_record

pytestmark = pytest.mark.anyio

SERVER = """
import json, os, subprocess, sys
mode = sys.argv[1]
subprocess.Popen(["sleep", "1000"], start_new_session=True)  # what servers leave behind
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method = message["method"]
    if mode == "mute" or method == "mute":
        continue
    if method == "die":
        os._exit(3)
    answer = {"result": {"said": message["params"].get("say", method), "secret": os.environ.get("A_TOKEN")}}
    if method == "bad":
        answer = {"error": {"code": -32601, "message": "no such thing"}}
    print("this is no message", "[]", '{"jsonrpc":"2.0","id":[],"result":{}}', '{"id":null}', sep="\\n")
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}).replace("HALF", "\\\\ud83d"), flush=True)
if mode == "stays":
    import time
    time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with no_leaks():
        yield


def command(mode: str = "serves") -> list[str]:
    return [sys.executable, "-I", "-S", "-c", SERVER, mode]


def facts(run: Run, name: str) -> list[dict[str, object]]:
    return [one.metadata for one in run.events("s") if one.event == name]


async def test_it_is_there_and_asked(tmp_path: Path) -> None:
    """A call to an MCP server returns the server's result, raises the server's error, or times out without disturbing
    other calls; after the end of the session a call fails."""
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted")
        server = await run.sup.start_mcp_server("s", "git", command(), env={"A_TOKEN": "0123456789"})
        assert await server.call("tools/list") == {"said": "tools/list", "secret": "0123456789"}
        half = await server.call("tools/call", {"say": "cut HALF"})
        assert half["said"] == "cut \ufffd"
        with pytest.raises(McpError, match="git: bad: no such thing"):
            await server.call("bad")
        with pytest.raises(McpError, match=r"git: mute was not answered within 0\.05 s"):
            await server.call("mute", timeout_s=0.05)
        assert (await session.run("@say hello")).ok
        await session.close()
        with pytest.raises(McpError, match="its session has ended"):
            await server.call("tools/list")
    assert [one["why"] for one in facts(run, "McpServerEnded")] == ["its session ends"]
    assert [(one["status"], one["killed"], one["survivors"]) for one in facts(run, "McpServerEnded")] == [(0, 1, 0)]


@pytest.mark.parametrize("mode", ["serves", "stays"])
async def test_an_abort_takes_it_along(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An abort of the session ends an MCP server that ignores the end of its input, and every process that it
    started."""
    monkeypatch.setattr(mcp_stdio, "LEAVE_S", 0.05)
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted")
        await run.sup.start_mcp_server("s", "git", command(mode))
        receipt = await session.abort()
        assert receipt.survivors == 0
    assert [one["survivors"] for one in facts(run, "McpServerEnded")] == [0]


async def test_one_that_ends_is_started_again(tmp_path: Path) -> None:
    """An MCP server that exits fails its open calls and is started again; after four ends the supervisor gives it
    up."""
    async with supervising(tmp_path) as run:
        await run.sup.start_session("s", agent="scripted")
        server = await run.sup.start_mcp_server("s", "git", command())
        for number in range(1, 5):
            with pytest.raises(McpError, match="git: die: the server ended before it answered"):
                await server.call("die")
            if number < 4:
                await wait_for_record(run.sup, "McpServerStarted", "s", number=number + 1, outcome="fact")
        await wait_for_record(run.sup, "McpServerGivenUp", "s", outcome="fact")
        with pytest.raises(McpError, match=r"given up after 4 ends within 60 s: it ended by itself"):
            await server.call("tools/list")
    assert [one["status"] for one in facts(run, "McpServerEnded")] == [3] * 4


async def test_a_missing_program_is_given_up_at_once(tmp_path: Path) -> None:
    """An MCP server whose program does not exist is started once, and the error names the program."""
    async with supervising(tmp_path) as run:
        await run.sup.start_session("s", agent="scripted")
        with pytest.raises(McpError, match="git: cannot start '/nowhere/server': there is no such file; install it"):
            await run.sup.start_mcp_server("s", "git", ["/nowhere/server"])
    assert len(facts(run, "McpServerEnded")) == len(facts(run, "McpServerGivenUp")) == 1


async def test_a_missing_program_of_an_agents_server_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """An agent's MCP server whose program is not on PATH gives one warning, with the names of agent, server and
    program."""
    servers = {"git": McpServerConfig(command=("no-such-server",)), "sh": McpServerConfig(command=("sh",))}
    agent = AgentConfig(adapter="acp", command=("cat",), mcp_servers=servers)
    async with open_supervisor(agents={"a": agent}):
        pass
    [warning] = [one.getMessage() for one in caplog.records if "MCP server" in one.getMessage()]
    assert "agent=a server=git program=no-such-server" in warning


async def test_one_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An MCP server that does not answer is tried a few times and then given up."""
    monkeypatch.setattr(mcp_stdio, "LEAVE_S", 0.05)
    async with supervising(tmp_path) as run:
        await run.sup.start_session("s", agent="scripted")
        with anyio.fail_after(30), pytest.raises(McpError, match=r"given up after 4 ends.*was not answered"):
            await run.sup.start_mcp_server("s", "git", command("mute"), start_s=0.05)


async def test_one_whose_start_is_cancelled_is_given_up(tmp_path: Path) -> None:
    """A server that is given up while it starts ends before its session, and nobody waits for it any longer."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted")
        async with anyio.create_task_group() as group:
            start = ["sh", "-c", f"exec 3> {pipe}; exec sleep 1000"]
            group.start_soon(run.sup.start_mcp_server, "s", "git", start)
            async with await anyio.open_file(pipe, "rb"):  # opens when the server has opened the other end
                group.cancel_scope.cancel()
        await wait_for_record(run.sup, "McpServerEnded", "s", outcome="fact")
        assert (await session.run("@say hello")).ok
        await session.close()
    assert [one["why"] for one in facts(run, "McpServerEnded")] == ["it was cancelled"]
