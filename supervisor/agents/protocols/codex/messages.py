"""Messages of ``codex app-server`` that the supervisor reads: JSON-RPC without the ``jsonrpc`` member; threads, turns,
items.

Only the fields that the supervisor uses are declared, as in the schema that the program prints (``codex app-server
generate-json-schema``, 0.169.0). This module stores no state.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from msgspec import Meta, Raw

from supervisor.agents.protocols.json_rpc import JsonRpcMessage, RpcId, Writer
from supervisor.policies.budgets import COUNT_MAX

JSON_RPC: Final = Writer({})

_Count: TypeAlias = Annotated[int, Meta(ge=0, le=COUNT_MAX)]


# ------------------------------------------------------------------------------------------------ its answers
class Initialized(JsonRpcMessage):
    user_agent: str = ""


class Thread(JsonRpcMessage):
    id: str
    cli_version: str = ""


class Sandbox(JsonRpcMessage):
    """Sandbox of a thread's commands. ``network_access`` is a flag, or a word in some types of sandbox."""

    type: str
    network_access: Any = False


class ThreadOpened(JsonRpcMessage):
    """Result of the requests ``thread/start`` and ``thread/resume``. ``approval_policy`` is a word, or an object."""

    thread: Thread
    approval_policy: Any = None
    approvals_reviewer: str | None = None
    sandbox: Sandbox | None = None


class TurnError(JsonRpcMessage):
    """Error of a turn. ``codex_error_info`` is a word, or an object with one key, which is a word."""

    message: str
    codex_error_info: Any = None
    additional_details: str | None = None


class Turn(JsonRpcMessage):
    """Turn of a thread. ``status`` is completed, interrupted, failed or inProgress."""

    id: str
    status: str
    error: TurnError | None = None


class TurnOpened(JsonRpcMessage):
    """Result of the request ``turn/start``."""

    turn: Turn


class BackgroundTerminal(JsonRpcMessage):
    """Command that the agent runs; ``item_id`` is the id of the tool call that started the command."""

    item_id: str
    process_id: str


class BackgroundTerminals(JsonRpcMessage):
    """Result of the request ``thread/backgroundTerminals/list``."""

    data: tuple[BackgroundTerminal, ...]


class TerminateResult(JsonRpcMessage):
    """Result of the request ``thread/backgroundTerminals/terminate``."""

    terminated: bool


# ------------------------------------------------------------------------------------------------ its notifications
class TurnNotification(JsonRpcMessage):
    """Parameters of the notifications ``turn/started`` and ``turn/completed``."""

    thread_id: str
    turn: Turn


class FileChange(JsonRpcMessage):
    path: str
    diff: str = ""


class Item(JsonRpcMessage):
    """Item: one part of a turn, such as a message or a tool call. The item's type decides which fields are set."""

    id: str
    type: str
    status: str | None = None
    text: str = ""
    command: str = ""
    cwd: str = ""
    exit_code: int | None = None
    aggregated_output: str | None = None
    changes: tuple[FileChange, ...] = ()
    server: str = ""
    tool: str = ""
    arguments: Raw = Raw(b"")
    result: Raw = Raw(b"")
    query: str = ""
    prompt: str | None = None
    receiver_thread_ids: tuple[str, ...] = ()


class ItemHead(JsonRpcMessage):
    id: str
    type: str


class ItemNotification(JsonRpcMessage):
    """Parameters of the notifications ``item/started`` and ``item/completed``. The item is decoded later, if its type
    is known."""

    thread_id: str
    turn_id: str
    item: Raw


class Delta(JsonRpcMessage):
    """Notification with more text of a message or of a thought."""

    thread_id: str
    item_id: str
    delta: str


class Tokens(JsonRpcMessage):
    total_tokens: _Count = 0
    input_tokens: _Count = 0
    cached_input_tokens: _Count = 0
    output_tokens: _Count = 0
    reasoning_output_tokens: _Count = 0


class Usage(JsonRpcMessage):
    """Token counts of a thread: ``total`` for the whole thread, ``last`` for the thread's last request to the model."""

    total: Tokens
    last: Tokens
    model_context_window: _Count | None = None


class TokenUsageUpdated(JsonRpcMessage):
    """Parameters of the notification ``thread/tokenUsage/updated``."""

    thread_id: str
    turn_id: str
    token_usage: Usage


class ErrorNotification(JsonRpcMessage):
    """Parameters of the notification ``error``: a request to the model failed."""

    thread_id: str
    error: TurnError
    will_retry: bool = False


class WarningNotification(JsonRpcMessage):
    """Parameters of the notification ``warning``."""

    message: str


class RequestResolved(JsonRpcMessage):
    """Parameters of the notification ``serverRequest/resolved``: a request of the agent needs no response any more."""

    request_id: RpcId


# ------------------------------------------------------------------------------------------------ its requests
class Approval(JsonRpcMessage):
    """Parameters of an approval request (``item/*/requestApproval``); the method decides which fields are set."""

    item_id: str
    thread_id: str = ""
    command: str | None = None
    cwd: str | None = None
    reason: str | None = None
    grant_root: str | None = None
    permissions: Raw = Raw(b"{}")
