"""MCP server on standard input and output with which an agent can control a running supervisor.

The operations of the control socket are tools: name, parameters, and description come from the table of the operations,
and the result is the reply. Two more tools, ``list`` and ``why``, read the journal. A refusal is a tool error with the
same text as on the command line; if only some tasks of a command were refused, the result has both. The required
library is installed by the extra ``mcp``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import anyio
import anyio.to_thread
import msgspec
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, FuncMetadata
from mcp_types import ToolAnnotations
from pydantic import BaseModel, ConfigDict, Field, SkipValidation, create_model

from supervisor import __version__
from supervisor.cli.query import seen_entities
from supervisor.cli.why import explained
from supervisor.control.client import answers_to
from supervisor.control.error_messages import BadInput, ControlError, NotRunning
from supervisor.control.operations import OPERATIONS, Effect, Lines, Operation
from supervisor.control.requests import BadRequest, Command, unknown_field
from supervisor.journal.statedir import StateDir, StateDirError
from supervisor.ports import JournalError

ACTOR: Final = "mcp"
"""Name of the actor in the records of commands that come by MCP."""
_REFUSALS: Final = (BadInput, NotRunning, ControlError, StateDirError, JournalError)
_READS: Final = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_INSTRUCTIONS: Final = (
    "A supervisor of AI agent sessions. `list` shows what there is; ids look like lead (a session), lead:t1 (a turn), "
    "lead:t1:c2 (a tool call), lead:t1:p1 (a permission), r1 (a run), r1#fix (a task of it). "
    "Give `abort` dry_run=true first: it lists what would end."
)

Id = Annotated[str, Field(description="the id of a session, turn, agent, task or tool call, as `list` shows it")]


class Entity(BaseModel):
    """Session, agent, turn or task. ``visual`` is the visual state of an agent; ``age_s`` is counted from birth until
    the end; ``outcome`` is the word for the end; ``supervised`` is false for what a dead supervisor left. ``silent_s``
    are the seconds since the last sign of life of a living session; ``used`` is its reported usage."""

    id: str
    kind: str
    state: str
    visual: str | None
    age_s: float
    parent: str | None
    ended: bool
    pid: int | None
    note: str
    outcome: str
    supervised: bool
    silent_s: float | None
    used: dict[str, float] | None


@asynccontextmanager
async def _tool_errors() -> AsyncIterator[None]:
    """Raise the refusals of a supervisor as tool errors, with their own text."""
    try:
        yield
    except _REFUSALS as error:
        raise ToolError(str(error)) from error


def _annotations(operation: Operation) -> ToolAnnotations:
    if operation.effect is Effect.READS:
        return _READS
    is_end = operation.effect is Effect.ENDS
    return ToolAnnotations(destructive_hint=is_end, idempotent_hint=operation.idempotent, open_world_hint=False)


def _check_not_refused(lines: list[dict[str, Any]]) -> None:
    """Raise ToolError if the reply names tasks, and the command was refused for each of them."""
    if lines and all("refused" in one for one in lines):
        raise ToolError("\n".join(f"{one['task']}: {one['refused']['message']}" for one in lines))


class _Arguments(ArgModelBase):
    """Arguments of a tool as they come: the request checks them, with errors that name field, value and fix."""

    model_config = ConfigDict(extra="allow")

    def model_dump_one_level(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.model_fields_set}


class _Tools:
    """The tools of the MCP server, for one state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    def of_operation(self, operation: Operation) -> Tool:
        """Return the tool that calls *operation*: its parameters are the fields of the request, its result is the
        reply."""
        sender = {"by": ACTOR} if issubclass(operation.request, Command) else {}

        async def call(**given: Any) -> Any:
            async with _tool_errors():
                for name in given:
                    if name not in schema["properties"]:  # not even the name of the sender, which the model has
                        raise BadRequest(unknown_field(name, operation.name, schema["properties"]))
                asked = operation.request.model_validate({**given, **sender})
                lines = await answers_to(StateDir(self._state_dir).control_socket, asked)
                _check_not_refused(lines)
            return lines if operation.lines is Lines.MANY else lines[0]

        schema = operation.request.model_json_schema()
        schema["properties"] = {name: one for name, one in schema["properties"].items() if name not in ("do", "by")}
        # The library decodes a string as JSON unless the field is a str: only a list may come as JSON text.
        arguments: dict[str, Any] = {
            name: (Any if one.get("type") == "array" else SkipValidation[str], None)
            for name, one in schema["properties"].items()
        }
        return Tool(
            fn=call,
            name=operation.name,
            title=None,
            description=operation.handle.__doc__ or "",
            parameters=schema,
            fn_metadata=FuncMetadata(
                arg_model=create_model("Arguments", __base__=_Arguments, **arguments),
                output_model=dict[str, list[dict[str, Any]]] if operation.lines is Lines.MANY else dict[str, Any],
                wrap_output=operation.lines is Lines.MANY,
            ),
            is_async=True,
            context_kwarg=None,
            annotations=_annotations(operation),
        )

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

    async def why(self, id: Id) -> dict[str, Any]:
        """Explain the last change of an entity: the tree of causes, from the root event to the end."""
        result: dict[str, Any] = await self._read(lambda: explained(self._state_dir, id, exact=True)[0])
        return result


def server_of(state_dir: Path) -> MCPServer[Any]:
    """Return the MCP server for the supervisor of that state directory, which need not run yet."""
    tools = _Tools(state_dir)
    called = [  # MCP has a ping of its own, and no tool without an end; a link to the page is for people
        tools.of_operation(operation)
        for name, operation in OPERATIONS.items()
        if name not in ("ping", "page") and operation.lines is not Lines.ENDLESS
    ]
    server = MCPServer[Any](
        "supervisor", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING", tools=called
    )
    server.tool("list", annotations=_READS)(tools.listed)
    server.tool("why", annotations=_READS)(tools.why)
    return server


def serve(state_dir: Path) -> None:
    """Serve MCP on standard input and output until the input ends."""
    anyio.run(server_of(state_dir).run_stdio_async)
