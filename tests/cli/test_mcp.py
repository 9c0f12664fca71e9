"""MCP server of a running supervisor: its tools, called by the MCP library's own client in memory and over stdio."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
from click.testing import CliRunner
from mcp import Client, StdioServerParameters

from supervisor.cli.commands import mcp
from supervisor.cli.mcp_server import server_of
from supervisor.embedding.runtime import open_supervisor
from supervisor.host.api import Supervisor
from supervisor.host.handle import Session
from supervisor.journal.statedir import StateDir
from supervisor.plans import AgentConfig
from supervisor.plans.permissions import PermissionsConfig
from supervisor.policies.permissions import Decision
from tests.support import quick_settings, wait_for_record
from tests.unit.control.test_control import Played, served
from tests.unit.control.test_task_operations import Work

pytestmark = pytest.mark.anyio

AGENTS = {"a": AgentConfig(adapter="scripted", permissions=PermissionsConfig(default=Decision.ASK))}
TOOLS = [
    "abort", "access_levels", "add_tasks", "answer", "cancel_run", "close", "compact", "inspect", "list", "merge_run",
    "permissions", "processes", "prompt", "reload", "send", "split", "stalls", "start", "steer", "stop", "submit",
    "why",
]  # fmt: skip


@asynccontextmanager
async def waiting(state_dir: Path) -> AsyncIterator[Supervisor]:
    """Run a supervisor with a control socket, whose one session waits for a permission."""

    async def work(session: Session) -> None:
        await session.run("@ask edit: a.txt\n@say did it")

    async with anyio.create_task_group() as group:
        async with open_supervisor(state_dir, agents=AGENTS, settings=quick_settings()) as sup:
            session = await sup.start_session("lead", agent="a")
            group.start_soon(work, session)
            await wait_for_record(sup, "PermissionRequested", "lead:t1")
            yield sup
            await sup.stop(now=True)


async def called(client: Client, tool: str, **given: Any) -> Any:
    """Call a tool, assert that it succeeds, and return its structured result."""
    result = await client.call_tool(tool, given)
    assert not result.is_error, result.content
    told = result.structured_content
    return told["result"] if told is not None and set(told) == {"result"} else told


async def refused(client: Client, tool: str, **given: Any) -> str:
    result = await client.call_tool(tool, given)
    assert result.is_error
    return str(result.content[0].text)


async def test_the_parameters_of_a_tool_are_the_fields_of_the_request(tmp_path: Path) -> None:
    """A tool has the fields of its request as parameters, each with a description, and no field for its name or its
    sender."""
    async with Client(server_of(tmp_path / "sd")) as client:
        tools = {one.name: one for one in (await client.list_tools()).tools}
    schema = tools["send"].input_schema
    assert (list(schema["properties"]), schema["required"]) == (["id", "text", "urgent", "at"], ["id", "text"])
    assert all(one["description"] for one in schema["properties"].values())
    assert tools["abort"].annotations is not None
    hints = {name: one.annotations for name, one in tools.items() if one.annotations is not None}
    assert {name for name, one in hints.items() if one.destructive_hint} == {
        "abort",
        "cancel_run",
        "close",
        "steer",
        "stop",
    }
    assert {name for name, one in hints.items() if one.idempotent_hint} == {
        "abort",
        "cancel_run",
        "merge_run",
        "reload",
    }


async def test_an_agent_drives_a_supervisor(tmp_path: Path) -> None:
    """By the tools of the MCP server an agent can list and inspect entities, ask for causes, send a message, and abort
    with the id of a dry run's plan."""
    async with waiting(tmp_path / "sd"), Client(server_of(tmp_path / "sd")) as client:
        assert sorted(one.name for one in (await client.list_tools()).tools) == TOOLS
        rows = await called(client, "list")
        assert {(one["id"], one["kind"]) for one in rows} == {
            ("lead", "session"),
            ("lead:a1", "agent"),
            ("lead:t1", "turn"),
        }
        assert (await called(client, "inspect", id="lead:t1"))["inspected"]["permissions"] == ["lead:t1:p1"]
        assert (await called(client, "why", id="lead"))["roots"] == 1
        [asked] = (await called(client, "permissions"))["permissions"]
        assert (asked["id"], asked["title"]) == ("lead:t1:p1", "edit: a.txt")
        assert (await called(client, "send", id="lead", text="hello"))["message_id"]
        plan = (await called(client, "abort", id="lead", scope="session", dry_run=True))["plan"]
        assert [one["id"] for one in plan["nodes"]] == ["lead"]
        receipt = (await called(client, "abort", id="lead", scope="session", plan=plan["id"]))["receipt"]
        assert [one["id"] for one in receipt["nodes"]] == ["lead"]


async def test_an_agent_answers_for_a_human(tmp_path: Path) -> None:
    """The tool ``answer`` answers a waiting permission request; a second answer is refused."""
    async with waiting(tmp_path / "sd"), Client(server_of(tmp_path / "sd")) as client:
        told = await called(client, "answer", id="lead:t1:p1", allow=False, because="not now")
        assert told == {"answered": {"option": "reject_once", "kind": "reject_once"}}
        assert "lead:t1:p1" in await refused(client, "answer", id="lead:t1:p1", allow=True)


async def test_what_is_refused_is_a_tool_error(tmp_path: Path) -> None:
    """A refused request is a tool error with the message of the command line, and the server continues."""
    async with waiting(tmp_path / "sd"), Client(server_of(tmp_path / "sd")) as client:
        assert "nothing alive has the id 'nobody'" in await refused(client, "inspect", id="nobody")
        assert "nothing has the id 'nobody'" in await refused(client, "why", id="nobody")
        assert "for urgent messages only" in await refused(client, "send", id="lead", text="x", at="now")
        unknown = {"id": "lead:t1:p9", "allow": True}
        assert "no permission 'lead:t1:p9' waits" in await refused(client, "answer", **unknown)
        assert "root session" in await refused(client, "abort", id="lead", scope="sibling")
        assert "no plan runs here" in await refused(client, "steer", verb="approve", tasks=["x"])
        assert "tasks: none is named; give at least" in await refused(client, "steer", verb="approve")
        assert "id: missing; give the id of a session" in await refused(client, "send", text="x")
        assert "at: 'soon' is not valid; give the point" in await refused(client, "send", id="a", text="x", at="soon")
        assert "loud: unknown field; the fields of stop are: now" in await refused(client, "stop", loud=True)
        assert "by: unknown field" in await refused(client, "stop", by="root")
        assert "do: unknown field" in await refused(client, "stop", do="ping")
        assert (await called(client, "list"))[0]["id"] == "lead"


async def test_a_text_that_is_json_stays_a_text(tmp_path: Path) -> None:
    """A string argument arrives as the caller wrote it, even if it is valid JSON. Only a list may come as JSON text."""
    work = Work()
    supervisor = Played(work)
    state = StateDir.open(tmp_path / "sd")
    async with served(state.control_socket, supervisor), Client(server_of(state.root)) as client:
        for text in ('{"status": "done"}', "null", "[1]"):
            await called(client, "send", id="lead", text=text)
            assert text in supervisor.asked[-1]
        await called(client, "split", task="a", subtasks='[{"id": "x", "agent": "w", "prompt": "go"}]')
        assert "at: 'null' is not valid" in await refused(client, "send", id="lead", text="x", at="null")
        await called(client, "steer", verb="approve", tasks='["a", "b"]')
        assert [one[1] for one in work.asked] == ["a", "a", "b"]


async def test_a_command_that_every_task_refused_is_a_tool_error(tmp_path: Path) -> None:
    """A command is a tool error if it was refused for each task; otherwise the result has an entry for each task."""
    supervisor = Played(Work())
    state = StateDir.open(tmp_path / "sd")
    async with served(state.control_socket, supervisor), Client(server_of(state.root)) as client:
        assert "open: " in await refused(client, "steer", verb="approve", tasks=["open"])
        entries = await called(client, "steer", verb="approve", tasks=["open", "a"])
        assert ["refused" in one for one in entries] == [True, False]


async def test_without_a_supervisor(tmp_path: Path) -> None:
    """Without a running supervisor every tool fails with an error that says so."""
    async with Client(server_of(tmp_path / "sd")) as client:
        assert "no supervisor runs on" in await refused(client, "permissions")
        assert "sd" in await refused(client, "list")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_over_standard_streams(tmp_path: Path) -> None:
    """`supervisor mcp`, as a program, serves the tools over its standard streams until its input ends."""
    command = ["-m", "supervisor", "mcp", "--state-dir", str(tmp_path / "sd")]
    async with waiting(tmp_path / "sd"):
        async with Client(StdioServerParameters(command=sys.executable, args=command)) as client:
            assert [one["id"] for one in (await called(client, "permissions"))["permissions"]] == ["lead:t1:p1"]


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the MCP library `supervisor mcp` fails with an error that says how to install the library."""
    for name in [one for one in sys.modules if one.partition(".")[0] == "mcp" or one.endswith("mcp_server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    result = CliRunner().invoke(mcp, ["--state-dir", str(tmp_path)])
    assert "pip install 'supervisor-runtime[mcp]'" in str(result.exception)
