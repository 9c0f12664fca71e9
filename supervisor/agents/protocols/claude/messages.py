"""Messages of Claude Code's stream-json that the supervisor reads, and functions that write its own: one compact object
per line.

Only the fields that the supervisor uses are declared; all other fields, and messages of other types, are ignored,
because the program adds fields and types. A declared field of the wrong type is an error that names its path. The
shapes are those of version 2.1.197. This module stores no state.
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
    """Type and subtype of a message, decoded first. Every message has a type."""

    type: str
    subtype: str | None = None


# ------------------------------------------------------------------------------------------------- control
class ControlResult(ClaudeMessage):
    """Result of a control request; *response* is what the request asked for."""

    subtype: str
    request_id: _Id
    error: str | None = None
    response: Raw = Raw(b"{}")


class ControlResponse(ClaudeMessage):
    """Response of the agent to a control request of ours."""

    response: ControlResult


class Initialized(ClaudeMessage):
    """Answer to ``initialize``; older versions do not report their mode."""

    current_permission_mode: str | None = None


class ControlRequestHead(ClaudeMessage):
    subtype: str


class ControlRequest(ClaudeMessage):
    """Control request of the agent; ``request`` holds its content."""

    request_id: _Id
    request: Raw


class ControlCancelled(ClaudeMessage):
    """Message by which the agent withdraws one of its own requests, which then needs no response."""

    request_id: _Id


class PermissionRequest(ClaudeMessage):
    """Request for a permission, ``can_use_tool``. The response that permits the call returns ``input`` unchanged."""

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
    """Part of a message: text, thinking, a tool call, or the result of a tool call."""

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
    """Message of the model. A message with ``error`` set reports a failure of the model and is not an answer."""

    message: MessageBody
    parent_tool_use_id: _Id | None = None
    error: str | None = None


class User(ClaudeMessage):
    """Message to the model: results of the model's tool calls, or a replay of a message of ours."""

    message: MessageBody
    parent_tool_use_id: _Id | None = None
    uuid: _Id | None = None
    is_replay: bool | None = msgspec.field(default=None, name="isReplay")


class ModelUse(ClaudeMessage, rename="camel"):
    """Usage of one model; part of :class:`Result`."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class Origin(ClaudeMessage):
    kind: str


class Result(ClaudeMessage):
    """Message that ends a turn. ``model_usage`` and the cost are totals of the conversation, as far as its processes
    have ended in order; ``since_last_result`` is missing in older versions."""

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
    since_last_result: dict[str, ModelUse] | None = msgspec.field(default=None, name="model_usage_since_last_result")


# ------------------------------------------------------------------------------------------------- system
class ApiRetry(ClaudeMessage):
    """Message that reports a failed request to the model, which the program repeats."""

    attempt: Annotated[int, Meta(ge=0, le=COUNT_MAX)] = 0
    retry_delay_ms: Annotated[float, _Seconds] | None = None
    error_status: int | None = None
    error: str | None = None


class Status(ClaudeMessage):
    status: str | None = None
    compact_result: str | None = None
    compact_error: str | None = None


class Task(ClaudeMessage):
    """Messages ``task_started`` and ``task_notification`` about a task of Claude Code: long work with a name of its
    own; ``tool_use_id`` is the call that the work belongs to."""

    task_id: _Id
    tool_use_id: _Id | None = None
    status: str | None = None


# ------------------------------------------------------------------------------------------------- in and out
_BLOCKS: Final = msgspec.json.Decoder(list[Block])


def blocks_of(said: MessageBody) -> list[Block]:
    """Return the parts of a message; a message that is plain text has one part.

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
    """Return the description of a tool server in the format of the program's settings."""
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
