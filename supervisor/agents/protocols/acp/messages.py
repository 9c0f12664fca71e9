"""Messages of ACP version 1 that the supervisor reads, and functions that write its own: JSON-RPC 2.0, one compact
object per line.

Only the fields that the supervisor uses are declared; all other fields of a message are ignored, because agents add
fields. A declared field of the wrong type is an error that names its path. This module stores no state.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from supervisor.agents.protocols import json_rpc
from supervisor.agents.protocols.json_rpc import JsonRpcMessage, RpcId, Writer
from supervisor.lifecycles.types import CancelMode, ModelProblem
from supervisor.policies.budgets import COUNT_MAX
from supervisor.policies.loop_detection import EDITS
from supervisor.ports import ModelErrorReported

PROTOCOL_VERSION: Final = 1
AUTHENTICATION_NEEDED: Final = -32000
CANCELLED: Final = -32800
"""JSON-RPC error codes, as ACP assigns them."""

_Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Word: TypeAlias = Annotated[str, Meta(pattern=r"\A[^\0]*\Z")]
_Program: TypeAlias = Annotated[str, Meta(pattern=r"\A[^\0]+\Z")]
_Path: TypeAlias = Annotated[str, Meta(pattern=r"\A/[^\0]*\Z")]
_Variable: TypeAlias = Annotated[str, Meta(pattern=r"\A[^\0=]+\Z")]
"""Types of texts that go to the operating system: no NUL character; ``_Path`` is an absolute path, ``_Variable`` a
variable's name without ``=``."""


class Message(json_rpc.Message, kw_only=True):
    """Any message: of version 2.0 of JSON-RPC."""

    jsonrpc: Literal["2.0"]


# ------------------------------------------------------------------------------------------------ their responses
class PromptResponse(JsonRpcMessage):
    """Response to a prompt. ``usage`` is a draft of the protocol whose shape may change, so a field of another type in
    it is no error."""

    stop_reason: str
    usage: Any = None
    meta: Any = msgspec.field(default=None, name="_meta")

    @property
    def used(self) -> TurnUsage | None:
        """Tokens and model requests of the turn; ``None`` if the agent does not report them."""
        return (
            turn_usage_of(self.usage)
            or turn_usage_of(_inner(self.meta))
            or turn_usage_of(self._quota.get("token_count"))
        )

    @property
    def unanswered(self) -> bool:
        """True if the agent reports that no model answered: gemini ends a turn like this if every answer was cut
        off."""
        return self._quota.get("model_usage") == [] and not any(self.used or ())

    @property
    def _quota(self) -> dict[str, Any]:
        quota = self.meta.get("quota") if isinstance(self.meta, dict) else None
        return quota if isinstance(quota, dict) else {}


# -------------------------------------------------------------------------------------------------- their updates
class UpdateName(JsonRpcMessage):
    session_update: str


class SessionUpdate(JsonRpcMessage):
    session_id: str
    update: Raw


class ContentBlock(JsonRpcMessage):
    type: str
    text: str = ""


class Chunk(JsonRpcMessage):
    content: ContentBlock


class PlanEntry(JsonRpcMessage):
    content: str
    status: str | None = None


class PlanUpdate(JsonRpcMessage):
    entries: tuple[PlanEntry, ...]


class ModeUpdate(JsonRpcMessage):
    current_mode_id: str


class Location(JsonRpcMessage):
    path: str


class ToolUpdate(JsonRpcMessage):
    tool_call_id: str
    title: str | None = None
    kind: str | None = None
    status: str | None = None
    raw_input: Raw | UnsetType = UNSET
    raw_output: Raw | UnsetType = UNSET
    content: Raw | UnsetType = UNSET
    locations: tuple[Location, ...] | None = None
    meta: Any = msgspec.field(default=None, name="_meta")

    @property
    def arguments_and_result(self) -> tuple[bytes, bytes]:
        """Arguments and result of the call, as far as this update holds them; ``b""`` for a missing part.

        The content of an edit counts as its arguments. The id of a terminal does not count as a result: the terminal's
        output does.
        """
        asked, content = _filled(self.raw_input), _filled(self.content)
        if b'"terminalId"' in content:
            content = b""
        if self.kind in EDITS and not asked:
            asked, content = content, b""
        return asked, _filled(self.raw_output) + content

    @property
    def has_empty_result(self) -> bool:
        """Whether the update reports a result, which is empty."""
        told = [bytes(one) for one in (self.raw_output, self.content) if isinstance(one, Raw)]
        return any(one != b"null" for one in told) and not any(map(_filled, (self.raw_output, self.content)))

    @property
    def detail(self) -> str:
        """Part of the call that a person needs in order to decide about it: the arguments, or else the content."""
        return (_filled(self.raw_input) or _filled(self.content)).decode(errors="replace")

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the files that the call names."""
        return tuple(one.path for one in self.locations or ())

    @property
    def tool(self) -> str:
        """Name of the tool in the agent's own words, or ``""`` if not reported."""
        return self._claude("toolName")

    @property
    def parent(self) -> str:
        """Id of the sub-agent's call within which this call is made, or ``""`` if not reported."""
        return self._claude("parentToolUseId")

    def _claude(self, name: str) -> str:
        own = self.meta.get("claudeCode") if isinstance(self.meta, dict) else None
        found = own.get(name) if isinstance(own, dict) else None
        return found if isinstance(found, str) else ""


class Cost(JsonRpcMessage):
    amount: float
    currency: str


class UsageUpdate(JsonRpcMessage):
    """Update about the size of the context and the cost of the conversation so far; ``_meta.usage`` may hold the turn's
    usage."""

    used: _Count
    size: _Count
    cost: Cost | None = None
    meta: Any = msgspec.field(default=None, name="_meta")

    @property
    def turn_used(self) -> TurnUsage | None:
        """Tokens and requests of the turn so far; ``None`` if the agent does not report them."""
        return turn_usage_of(_inner(self.meta))


class CommandsUpdate(JsonRpcMessage):
    """Update with the commands that a prompt may begin with. Only their names are read, so that no other field can be
    wrong."""

    available_commands: Any = None

    @property
    def compacts(self) -> str:
        """Prompt that makes the agent compact its context; ``""`` if it has no such command."""
        listed = self.available_commands if isinstance(self.available_commands, list) else []
        names = [one.get("name") for one in listed if isinstance(one, dict)]
        return next((f"/{name}" for name in _COMPACTING if name in names), "")


_COMPACTING: Final = ("compact", "compress")
"""Names of the command by which agents compact their context."""


def _filled(raw: Raw | UnsetType) -> bytes:
    """Return *raw* as bytes; ``b""`` for an empty value."""
    data = bytes(raw) if isinstance(raw, Raw) else b""
    return b"" if data in (b"null", b"{}", b"[]", b'""') else data


def _inner(meta: Any) -> Any:
    return meta.get("usage") if isinstance(meta, dict) else None


class TurnUsage(NamedTuple):
    """Totals of one turn: tokens and requests to the model."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    requests: int = 0


def turn_usage_of(usage: Any) -> TurnUsage | None:
    """Read an agent's usage object; return ``None`` if it holds no counts. A total includes input tokens that have no
    field of their own: tokens read from or written to a cache."""
    if not isinstance(usage, dict):
        return None
    tokens = [
        _count(usage.get(f"{what}Tokens", usage.get(f"{what}_tokens")))
        for what in ("input", "output", "total", "cachedRead")
    ]
    amounts = [*tokens, _count(usage.get("requests"))]
    if all(one is None for one in amounts):
        return None
    into, out, total, cached, requests = (one or 0 for one in amounts)
    return TurnUsage(max(into, total - out), out, cached, requests)


def _count(reported: Any) -> int | None:
    """Return *reported* if it is a count within the range of a budget, else ``None``."""
    is_count = isinstance(reported, int) and not isinstance(reported, bool) and 0 <= reported <= COUNT_MAX
    return reported if is_count else None


_ERROR_KINDS: Final = {
    **{one.value: one for one in ModelProblem},
    "authentication_failed": ModelProblem.AUTH,
    "billing_error": ModelProblem.QUOTA,
    "server_error": ModelProblem.SERVER,
}
"""Model problem for each error kind: our own words, and the ``errorKind`` words of claude-agent-acp 0.49."""


class InfoUpdate(JsonRpcMessage):
    """Update with information about the conversation; only ``_meta`` is read."""

    meta: Any = msgspec.field(default=None, name="_meta")

    @property
    def model_error(self) -> ModelErrorReported | None:
        """Report of a model request that failed and that the agent repeats, or ``None``. The protocol has no message
        for such a failure: agents that report it use ``_meta.modelTrouble``."""
        reported = self.meta.get("modelTrouble") if isinstance(self.meta, dict) else None
        if not isinstance(reported, dict):
            return None
        status, retry_ms, words = (
            _count(reported.get("status")),
            _count(reported.get("retryMs")),
            reported.get("message"),
        )
        return ModelErrorReported(
            _ERROR_KINDS.get(str(reported.get("errorKind")), ModelProblem.UNKNOWN),
            status=status if status is not None and 400 <= status < 600 else None,
            attempt=_count(reported.get("attempt")) or 0,
            retry_s=retry_ms / 1000 if retry_ms is not None else None,
            words=words if isinstance(words, str) else "",
        )


class CompactionUpdate(JsonRpcMessage):
    compaction_id: str
    status: str


# ------------------------------------------------------------------------------------------------- their requests
class PermissionOption(JsonRpcMessage):
    option_id: str
    kind: str


class PermissionRequest(JsonRpcMessage):
    tool_call: ToolUpdate
    options: tuple[PermissionOption, ...]


class FileRead(JsonRpcMessage):
    """Request to read a file: *limit* lines from line *line*, counted from 1."""

    path: _Path
    line: _Count | None = None
    limit: _Count | None = None


class FileWrite(JsonRpcMessage):
    path: _Path
    content: str


class RequestCancelled(JsonRpcMessage):
    """Notification ``$/cancel_request``: the agent no longer waits for the response to the request with this id."""

    request_id: RpcId


class CallReference(JsonRpcMessage, kw_only=True):
    """Request of the agent that may name, in ``_meta.toolCallId``, the tool call that the request serves."""

    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")

    @property
    def tool_call_id(self) -> str | None:
        found = (self.meta or {}).get("toolCallId")
        return found if isinstance(found, str) else None


class EnvVariable(JsonRpcMessage):
    name: _Variable
    value: _Word


class TerminalCreate(CallReference):
    command: _Program
    args: tuple[_Word, ...] | None = None
    env: tuple[EnvVariable, ...] | None = None
    cwd: _Path | None = None
    output_byte_limit: _Count | None = None


class TerminalReference(JsonRpcMessage):
    """Parameters of the requests ``terminal/output``, ``wait_for_exit``, ``kill`` and ``release`` about one
    terminal."""

    terminal_id: str


class ChildRun(CallReference):
    name: str
    prompt: str
    agent: str | None = None
    cancel_mode: CancelMode = CancelMode.WAIT_COMPLETED


# -------------------------------------------------------------------------------------------------- in and out
JSON_RPC: Final = Writer({"jsonrpc": "2.0"})
request, notification, result, error = JSON_RPC.request, JSON_RPC.notification, JSON_RPC.result, JSON_RPC.error
