"""Limits on replies that wait for an agent: an agent that sends requests and does not read the replies must not fill
the memory.

The agents are real programs. The limit in bytes is that of the product; the time that an agent has to read is
shortened.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from supervisor.agents.protocols.acp import terminals as acp_terminals
from supervisor.agents.protocols.acp.messages import TerminalCreate
from supervisor.lifecycles.types import AbortScope, LifecycleEvent
from supervisor.plans import AgentConfig
from supervisor.ports import Out, Send, Signal
from supervisor.ports.input_limits import UNREAD_BYTES_MAX
from supervisor.runtime import subscriptions
from supervisor.runtime.subscriptions import SubscriptionLagged, Subscriptions
from supervisor.sessions import process_connection
from supervisor.sessions.agent_io import AgentIO
from supervisor.sessions.mcp_stdio import McpError
from tests.support import supervising

AGENT = """
import json, os, subprocess, sys, time

def send(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n")

def reply_to(number):
    sys.stdout.flush()
    return next(one for one in map(json.loads, sys.stdin) if one.get("id") == number and "method" not in one)

def prompted(words):
    way, _, count = words.splitlines()[0].partition(" ")
    numbers = range(1000, 1000 + int(count))
    method, params = "fs/read_text_file", {"path": os.path.abspath("big.txt")}
    if way == "outputs":
        send(id="t", method="terminal/create", params={"sessionId": "s", "command": "cat", "args": ["big.txt"]})
        method, params = "terminal/output", {"terminalId": reply_to("t")["result"]["terminalId"]}
        send(id="w", method="terminal/wait_for_exit", params={"sessionId": "s", **params})
        reply_to("w")
    for number in numbers:
        send(id=number, method=method, params={"sessionId": "s", **params})
    sys.stdout.flush()
    if way == "slow":
        return sum(len(reply_to(number)["result"]["content"]) for number in numbers)
    time.sleep(600)

for message in map(json.loads, sys.stdin):
    method, result = message.get("method"), {"sessionId": "s"}
    if method == "initialize":
        result = {"protocolVersion": 1, "agentCapabilities": {}}
    elif method == "session/prompt":
        text = str(prompted(message["params"]["prompt"][0]["text"]))
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
        send(method="session/update", params={"sessionId": "s", "update": update})
        result = {"stopReason": "end_turn"}
    if "id" in message:
        send(id=message["id"], result=result)
    sys.stdout.flush()
"""
FILE_BYTES = 1_000_000


@pytest.fixture
def agents(tmp_path: Path) -> dict[str, AgentConfig]:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "big.txt").write_text("z" * FILE_BYTES)
    return {"acp": AgentConfig(adapter="acp", command=(sys.executable, str(tmp_path / "agent.py")))}


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fixture: a list whose one item is the largest number of bytes that have waited for an agent."""
    seen, sort = [0], AgentIO.enqueue

    def watched(wire: AgentIO, outs: list[Out]) -> None:
        sort(wire, outs)
        seen[0] = max(seen[0], wire.unread_bytes)

    monkeypatch.setattr(AgentIO, "enqueue", watched)
    return seen


@pytest.mark.anyio
@pytest.mark.parametrize("asks", ["files 400", "outputs 400"])
async def test_an_agent_that_reads_no_reply_ends_its_conversation(
    asks: str, tmp_path: Path, agents: dict[str, AgentConfig], most: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that requests 400 megabytes and reads no reply is ended when more than 4 MiB wait for it; the error
    names the limit."""
    monkeypatch.setattr(process_connection, "UNREAD_S", 0.5)
    async with supervising(tmp_path, agents=agents) as run:
        session = await run.sup.start_session("s", agent="acp")
        result = await session.run(asks)
        said = re.search(r"does not read what it is sent: (\d+) bytes wait for it; the most is (\d+)", str(result))
        assert said is not None, result
        assert int(said[2]) == UNREAD_BYTES_MAX
        assert UNREAD_BYTES_MAX < most[0] < UNREAD_BYTES_MAX + 2 * FILE_BYTES


@pytest.mark.anyio
async def test_an_agent_that_reads_late_gets_every_reply(
    tmp_path: Path, agents: dict[str, AgentConfig], most: list[int]
) -> None:
    """An agent that requests 30 megabytes at once, and then reads, gets every reply; no more than about the limit waits
    at any time."""
    async with supervising(tmp_path, agents=agents) as run:
        session = await run.sup.start_session("s", agent="acp")
        assert (await session.run("slow 30")).text == str(30 * FILE_BYTES)
    assert most[0] < UNREAD_BYTES_MAX + 2 * FILE_BYTES


@pytest.mark.anyio
async def test_a_deaf_agent_can_be_aborted(tmp_path: Path, agents: dict[str, AgentConfig], most: list[int]) -> None:
    """An abort of an agent that reads nothing ends it by the kill stage, long before the time for reading is over."""
    async with supervising(tmp_path, agents=agents) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="acp")
        group.start_soon(session.run, "files 400")
        with anyio.fail_after(20):
            while most[0] <= UNREAD_BYTES_MAX:
                await anyio.wait_all_tasks_blocked()
        receipt = await run.sup.abort("s", AbortScope.SESSION, reason="enough")
        assert receipt.processes
        assert receipt.survivors == 0
        group.cancel_scope.cancel()


SERVER = """
import json, sys, time
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {}}), flush=True)
    if message["method"] == "deaf":
        time.sleep(600)
"""


@pytest.mark.anyio
async def test_a_server_that_reads_no_request_is_not_sent_more(tmp_path: Path, agents: dict[str, AgentConfig]) -> None:
    """While 3 MB wait for an MCP server that reads nothing, a request of 3 MB more fails at once; the first request
    fails at its time-out."""
    async with supervising(tmp_path, agents=agents) as run:
        await run.sup.start_session("s", agent="acp")
        server = await run.sup.start_mcp_server("s", "git", [sys.executable, "-c", SERVER])
        large, over = {"text": "x" * 3_000_000}, list[str]()

        async def call(method: str, params: dict[str, str], timeout_s: float) -> None:
            with pytest.raises(McpError) as error:
                await server.call(method, params, timeout_s=timeout_s)
            over.append(str(error.value))

        await call("deaf", {}, 0.05)
        async with anyio.create_task_group() as group:
            group.start_soon(call, "first", large, 1.0)
            await anyio.wait_all_tasks_blocked()
            await call("second", large, 600.0)
        assert "the server does not read what it is sent" in over[1]
        assert over[2] == "git: first was not answered within 1 s"


class Full:
    """Program that reads nothing from its input, and collects the signals that it is sent."""

    def __init__(self) -> None:
        self.signals: list[int] = []

    async def send(self, data: bytes) -> None:
        await anyio.sleep_forever()

    def signal(self, number: int) -> None:
        self.signals.append(number)


@pytest.mark.anyio
async def test_a_signal_overtakes_unread_bytes() -> None:
    """A signal to a program is sent at once, before messages that wait since the program does not read them."""
    wire, program = AgentIO(), Full()
    async with anyio.create_task_group() as group:
        wire.open(group, program, None)  # type: ignore[arg-type]
        wire.process = program  # type: ignore[assignment]
        wire.put([Send(b"x" * (UNREAD_BYTES_MAX + 1))])
        await anyio.wait_all_tasks_blocked()
        assert wire.full
        wire.put([Signal(2)])
        assert program.signals == [2]
        wire.close()


def test_output_that_is_kept_for_all_terminals_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the kept output of all terminals exceeds the limit, the terminal that exceeds it loses the beginning of its
    output; other terminals keep theirs."""
    monkeypatch.setattr(acp_terminals, "TERMINALS_BYTES_MAX", 10)
    terminals = acp_terminals.AcpTerminals(acp_terminals.ToolCallTable())
    for name, written in (("a", b"12345678"), ("b", b"abcdef")):
        terminals.create(1, name, TerminalCreate(command="cat"))
        terminals.output(name, written)
    replies = [out for name in "ab" for out in terminals.request(2, "terminal/output", name)]
    results = [json.loads(out.data)["result"] for out in replies if isinstance(out, Send)]
    assert results == [{"output": "12345678", "truncated": False}, {"output": "ef", "truncated": True}]


class NoPast:
    async def events(self, *, after_seq: int = 0) -> list[LifecycleEvent]:
        return []


@pytest.mark.anyio
async def test_a_subscriber_is_dropped_at_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscriber whose buffer exceeds a number of bytes is dropped, even with few records; it gets the records in the
    buffer, then SubscriptionLagged."""
    monkeypatch.setattr(subscriptions, "SUBSCRIPTION_BYTES_MAX", 10_000)
    talk, heard = Subscriptions(NoPast()), list[int]()  # type: ignore[arg-type]
    async with talk.open(None) as told:
        for seq in range(1, 9):
            talk.publish(record(seq, "x" * 3_000))
        with pytest.raises(SubscriptionLagged):
            await collect(told, heard)
    assert heard == [1, 2, 3]


async def collect(told: AsyncIterator[LifecycleEvent], heard: list[int]) -> None:
    async for one in told:
        heard.append(one.seq)


def record(seq: int, reason: str) -> LifecycleEvent:
    return LifecycleEvent(
        seq=seq,
        timestamp=0.0,
        monotonic_s=0.0,
        entity_type="session",
        entity_id="s",
        entity_seq=seq,
        event="Noted",
        reason=reason,
    )
