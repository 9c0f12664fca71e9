"""MCP server on standard input and output with which an agent can control a running supervisor.

Each tool sends a request to the control socket or reads the journal, as the command of the same name does; this module
decides nothing. A refusal is a tool error with the same text as on the command line. The required library is installed
by the extra ``mcp``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import anyio
import anyio.to_thread
import msgspec
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel, Field

from supervisor.cli.query import seen_entities
from supervisor.cli.why import explained
from supervisor.control.client import answers_to
from supervisor.control.error_messages import BadInput, ControlError, NotRunning
from supervisor.journal.statedir import StateDir, StateDirError
from supervisor.ports import JournalError

ACTOR: Final = "mcp"
"""Name of the actor in the records of commands that come by MCP."""
_REFUSALS: Final = (BadInput, NotRunning, ControlError, StateDirError, JournalError)
_READS: Final = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_CHANGES: Final = ToolAnnotations(destructive_hint=False, open_world_hint=False)
_ENDS: Final = ToolAnnotations(destructive_hint=True, idempotent_hint=True, open_world_hint=False)
_INSTRUCTIONS: Final = (
    "A supervisor of AI agent sessions. `list` shows what there is; ids look like lead (a session), lead:t1 (a turn), "
    "lead:t1:c2 (a tool call), lead:t1:p1 (a permission). Give `abort` dry_run=true first: it lists what would end."
)

Id = Annotated[str, Field(description="the id of a session, turn, agent, task or tool call, as `list` shows it")]


class Entity(BaseModel):
    """Session, agent, turn or task. ``visual`` is the visual state of an agent; ``age_s`` is counted from birth until
    the end."""

    id: str
    kind: str
    state: str
    visual: str | None
    age_s: float
    parent: str | None
    ended: bool
    pid: int | None
    note: str


class Permission(BaseModel):
    """Permission request of an agent that waits for an answer; it is denied after ``left_s`` seconds."""

    id: str
    session: str
    agent: str
    title: str
    kind: str
    tool: str
    detail: str
    options: list[str]
    left_s: float


class Sent(BaseModel):
    """Confirmation that the message is durable."""

    message_id: str


class Answered(BaseModel):
    """Option that is sent to the agent, and its kind; ``None`` if no option fits the answer."""

    option: str | None
    kind: str | None


@asynccontextmanager
async def _tool_errors() -> AsyncIterator[None]:
    """Raise the refusals of a supervisor as tool errors, with their own text."""
    try:
        yield
    except _REFUSALS as error:
        raise ToolError(str(error)) from error


class _Tools:
    """The tools of the MCP server, for one state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    async def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        async with _tool_errors():
            return (await answers_to(StateDir(self._state_dir).control_socket, message))[0]

    async def _read(self, read: Callable[[], Any]) -> Any:
        """Call *read*, which reads the journal and blocks, in a thread; return the result as plain data."""
        async with _tool_errors():
            found = await anyio.to_thread.run_sync(read)
        return msgspec.json.decode(msgspec.json.encode(found))

    async def listed(
        self, ended: Annotated[bool, Field(description="also agents and turns that have ended")] = False
    ) -> list[Entity]:
        """List the sessions, and their agents, turns and tasks."""
        rows = await self._read(lambda: seen_entities(self._state_dir, all_of_it=ended)[1])
        return [Entity.model_validate(row) for row in rows]

    async def inspect(self, id: Id) -> dict[str, Any]:
        """Show the present activity of a live entity: its mailbox, its tasks, and where each of them waits."""
        result: dict[str, Any] = (await self._ask({"do": "inspect", "entity": id}))["inspected"]
        return result

    async def why(self, id: Id) -> dict[str, Any]:
        """Explain the last change of an entity: the tree of causes, from the root event to the end."""
        result: dict[str, Any] = await self._read(lambda: explained(self._state_dir, id)[0])
        return result

    async def send(
        self,
        session: Annotated[str, Field(description="the id of the session")],
        text: str,
        urgent: Annotated[bool, Field(description="do not wait for the next prompt")] = False,
        at: Annotated[
            Literal["now", "tool_boundary", "turn_end"] | None,
            Field(description="when an urgent message is delivered; by default now"),
        ] = None,
    ) -> Sent:
        """Send a session a message: for its next prompt, or, if it is urgent, within the running turn."""
        asked = {"do": "send", "session": session, "text": text, "urgent": urgent, "at": at, "sender": ACTOR}
        return Sent.model_validate(await self._ask(asked))

    async def abort(
        self,
        target: Annotated[str, Field(description="the id of a tool call or session")],
        scope: Annotated[
            Literal["tool", "sibling", "session"],
            Field(description="that call; the siblings of the session; the session with all below it"),
        ],
        reason: str = "aborted over MCP",
        dry_run: Annotated[bool, Field(description="only list what would end, and the plan's id")] = False,
        plan: Annotated[
            str | None, Field(description="abort only if the effect is that of the plan with this id")
        ] = None,
        now: Annotated[bool, Field(description="kill at once, without asking first")] = False,
    ) -> dict[str, Any]:
        """Abort a tool call, a session, or its siblings, and return a receipt. With dry_run, only return the plan."""
        asked = {"do": "abort", "target": target, "scope": scope, "reason": reason, "actor": ACTOR, "now": now}
        result = await self._ask({**asked, "dry_run": dry_run, "plan": plan})
        answer: dict[str, Any] = result["plan"] if dry_run else result["receipt"]
        return answer

    async def permissions(self) -> list[Permission]:
        """List the permission requests that wait for an answer, oldest first."""
        result = (await self._ask({"do": "permissions"}))["permissions"]
        return [Permission.model_validate(one) for one in result]

    async def answer(
        self,
        permission: Annotated[str, Field(description="the id of the permission")],
        allow: bool,
        always: Annotated[bool, Field(description="also for the same request later in the session")] = False,
        because: Annotated[str, Field(description="reason, for the record")] = "",
    ) -> Answered:
        """Answer a permission that an agent waits for. The first answer counts; a later one is an error."""
        asked = {"do": "answer", "permission": permission, "allow": allow, "always": always, "because": because}
        return Answered.model_validate((await self._ask({**asked, "by": ACTOR}))["answered"])


def server_of(state_dir: Path) -> MCPServer[Any]:
    """Return the MCP server for the supervisor of that state directory, which need not run yet."""
    server = MCPServer[Any]("supervisor", instructions=_INSTRUCTIONS, log_level="WARNING")
    tools = _Tools(state_dir)
    server.tool("list", annotations=_READS)(tools.listed)
    server.tool(annotations=_READS)(tools.inspect)
    server.tool(annotations=_READS)(tools.why)
    server.tool(annotations=_READS)(tools.permissions)
    server.tool(annotations=_CHANGES)(tools.send)
    server.tool(annotations=_CHANGES)(tools.answer)
    server.tool(annotations=_ENDS)(tools.abort)
    return server


def serve(state_dir: Path) -> None:
    """Serve MCP on standard input and output until the input ends."""
    anyio.run(server_of(state_dir).run_stdio_async)
