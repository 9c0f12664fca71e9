"""Messages of Claude Code's stream-json that we read, and functions that write ours: one compact object per line.

Only the fields that we use are declared; all other fields, and messages of other types, are ignored, because the
program adds both. A declared field of the wrong type is an error that names its path. The shapes are those of version
2.1.197. This module keeps no state.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta, Raw

from supervisor.agents.protocols.json_rpc import ProtocolError
from supervisor.policies.budgets import COUNT_MAX
from supervisor.ports import McpServer, Send

_Id: TypeAlias = Annotated[str, Meta(max_length=256)]
"""Type of an id; a longer text is an error."""
_Seconds: Final = Meta(ge=0, le=1e12)


class ClaudeMessage(msgspec.Struct):
    """Base of all messages and parts of messages. Undeclared fields are ignored."""


class MessageHead(ClaudeMessage):
    """Type and subtype, which every message has."""

    type: str
    subtype: str | None = None


# ------------------------------------------------------------------------------------------------- control
class ControlResult(ClaudeMessage):
    subtype: str
    request_id: _Id
    error: str | None = None


class ControlResponse(ClaudeMessage):
    """Response to a request of ours."""

    response: ControlResult


class ControlRequestHead(ClaudeMessage):
    subtype: str


class ControlRequest(ClaudeMessage):
    """Request of the agent; ``request`` holds its content."""

    request_id: _Id
    request: Raw


class ControlCancelled(ClaudeMessage):
    """Request of the agent that needs no response any more."""

    request_id: _Id


class PermissionRequest(ClaudeMessage):
    """``can_use_tool``. A permitted call gets its ``input`` back unchanged."""

    tool_name: str
    input: Raw
    tool_use_id: _Id | None = None
    description: str | None = None
    blocked_path: str | None = None
    decision_reason: str | None = None
    agent_id: str | None = None
    permission_suggestions: Any = None


# ------------------------------------------------------------------------------------------------- conversation
class Tokens(ClaudeMessage):
    """Usage of one request to the model. ``input_tokens`` excludes cached tokens."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class Block(ClaudeMessage):
    """Part of a message: text, thinking, a tool call, or the result of a call."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: _Id | None = None
    name: str | None = None
    input: Raw = Raw(b"")
    tool_use_id: _Id | None = None
    content: Raw = Raw(b"")
    is_error: bool | None = None


class MessageBody(ClaudeMessage):
    content: Raw
    id: _Id | None = None
    usage: Tokens | None = None


class Assistant(ClaudeMessage):
    """Message of the model. With ``error`` the message is not an answer but reports how the model failed."""

    message: MessageBody
    parent_tool_use_id: _Id | None = None
    error: str | None = None


class User(ClaudeMessage):
    """Message to the model: results of its calls, or one of our messages replayed."""

    message: MessageBody
    parent_tool_use_id: _Id | None = None
    uuid: _Id | None = None
    is_replay: bool | None = msgspec.field(default=None, name="isReplay")


class ModelUse(ClaudeMessage, rename="camel"):
    """Usage of one model since the program started."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class Origin(ClaudeMessage):
    kind: str


class Result(ClaudeMessage):
    """End of a turn. ``model_usage`` and the cost are totals since the program started."""

    subtype: str
    is_error: bool = False
    result: str | None = None
    errors: list[str] = []
    stop_reason: str | None = None
    terminal_reason: str | None = None
    api_error_status: int | None = None
    total_cost_usd: float | None = None
    origin: Origin | None = None
    model_usage: dict[str, ModelUse] | None = msgspec.field(default=None, name="modelUsage")


# ------------------------------------------------------------------------------------------------- system
class ApiRetry(ClaudeMessage):
    """A request to the model failed and is repeated."""

    attempt: Annotated[int, Meta(ge=0, le=COUNT_MAX)] = 0
    retry_delay_ms: Annotated[float, _Seconds] | None = None
    error_status: int | None = None
    error: str | None = None


class Status(ClaudeMessage):
    status: str | None = None
    compact_result: str | None = None
    compact_error: str | None = None


class Task(ClaudeMessage):
    """``task_started`` and ``task_notification``: work that has a name of its own, and the call it belongs to."""

    task_id: _Id
    tool_use_id: _Id | None = None
    status: str | None = None


# ------------------------------------------------------------------------------------------------- in and out
_BLOCKS: Final = msgspec.json.Decoder(list[Block])


def blocks_of(said: MessageBody) -> list[Block]:
    """Return the parts of a message; plain text is one part.

    Raises:
        ProtocolError: the content is neither text nor a list of parts.
    """
    try:
        if bytes(said.content).startswith(b'"'):
            return [Block("text", msgspec.json.decode(said.content, type=str))]
        return _BLOCKS.decode(said.content)
    except msgspec.DecodeError as wrong:
        raise ProtocolError(f"the content of a message: {wrong}") from None
    except RecursionError:
        raise ProtocolError("the content of a message: it is nested too deeply") from None


def control_request(request_id: str, subtype: str, **fields: Any) -> Send:
    return _line({"type": "control_request", "request_id": request_id, "request": {"subtype": subtype, **fields}})


def control_answer(request_id: str, value: dict[str, Any]) -> Send:
    return _response({"subtype": "success", "request_id": request_id, "response": value})


def control_refusal(request_id: str, why: str) -> Send:
    return _response({"subtype": "error", "request_id": request_id, "error": why})


def mcp_server(server: McpServer) -> dict[str, Any]:
    """Return a tool server in the form of the program's settings."""
    if server.url:
        return {"type": server.transport, "url": server.url, "headers": server.headers}
    return {"type": "stdio", "command": server.command[0], "args": server.command[1:], "env": server.env}


def user_message(uuid: str, text: str) -> Send:
    message = {"role": "user", "content": [{"type": "text", "text": text}]}
    return _line({"type": "user", "message": message, "parent_tool_use_id": None, "session_id": "", "uuid": uuid})


def _response(response: dict[str, Any]) -> Send:
    return _line({"type": "control_response", "response": response})


def _line(message: dict[str, Any]) -> Send:
    return Send(msgspec.json.encode(message) + b"\n")
