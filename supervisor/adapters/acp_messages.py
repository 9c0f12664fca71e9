"""The messages of ACP version 1 that we read, and how ours are written: JSON-RPC 2.0, one compact object per line.

Only the fields that we use are declared; whatever else a message carries is skipped, since agents add to it. A
declared field of the wrong type is an error that names its path. Nothing here knows what was said before.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from supervisor.budgets import COUNT_MAX
from supervisor.ports import Send
from supervisor.vocabulary import CancelMode

__all__ = [
    "AUTHENTICATION_NEEDED",
    "CANCELLED",
    "INVALID_PARAMS",
    "METHOD_NOT_FOUND",
    "PROTOCOL_VERSION",
    "AgentCapabilities",
    "ChildRun",
    "Chunk",
    "CompactionUpdate",
    "ContentBlock",
    "Cost",
    "EnvVariable",
    "Implementation",
    "Initialized",
    "Message",
    "PermissionOption",
    "PermissionRequest",
    "Prompted",
    "RpcError",
    "RpcId",
    "SessionCapabilities",
    "SessionOpened",
    "SessionUpdate",
    "Tagged",
    "TerminalCreate",
    "TerminalNamed",
    "ToolUpdate",
    "UpdateName",
    "UsageUpdate",
    "Wire",
    "WireError",
    "error",
    "notification",
    "read",
    "request",
    "result",
    "tokens_of",
]

PROTOCOL_VERSION: Final = 1
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
AUTHENTICATION_NEEDED: Final = -32000
CANCELLED: Final = -32800
"""JSON-RPC codes, the last two as ACP assigns them."""

_INT64 = Meta(ge=-(2**63), le=2**63 - 1)
RpcId: TypeAlias = Annotated[int, _INT64] | Annotated[str, Meta(max_length=256)] | None
"""What names a request. Larger integers are refused: they could not be written back; longer words need not be kept."""

_Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Word: TypeAlias = Annotated[str, Meta(pattern=r"\A[^\0]*\Z")]
_Program: TypeAlias = Annotated[str, Meta(pattern=r"\A[^\0]+\Z")]
_Directory: TypeAlias = Annotated[str, Meta(pattern=r"\A/[^\0]*\Z")]
_Variable: TypeAlias = Annotated[str, Meta(pattern=r"\A[^\0=]+\Z")]
"""Text that the operating system will be given: no NUL, a directory absolute, a variable's name without ``=``."""

_DATA_CHARS: Final = 300
_LINE_CHARS: Final = 80
"""How much of an error's data, and of a line that is no message, is shown."""

_T = TypeVar("_T")


class WireError(Exception):
    """A message is not what its place in the protocol calls for; the text names the field."""


class Wire(msgspec.Struct, rename="camel"):
    """A message, or a part of one."""


class RpcError(Wire):
    code: Annotated[int, _INT64]
    message: str
    data: Raw = Raw(b"null")

    @property
    def text(self) -> str:
        """The message, and its data where there is any: agents put the real reason there."""
        data = bytes(self.data).decode()
        return self.message if data == "null" else f"{self.message} ({_short(data, _DATA_CHARS)})"


class Message(Wire):
    """Any JSON-RPC message: a request (method and id), a notification (method), or a response (id)."""

    jsonrpc: Literal["2.0"]
    id: RpcId | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: Raw = Raw(b"{}")
    result: Raw | UnsetType = UNSET
    error: RpcError | None = None


# ------------------------------------------------------------------------------------------------ their responses
class Implementation(Wire):
    name: str
    version: str | None = None


class SessionCapabilities(Wire):
    close: dict[str, Any] | None = None


class AgentCapabilities(Wire):
    load_session: bool | None = None
    session_capabilities: SessionCapabilities | None = None


class Initialized(Wire):
    protocol_version: int
    agent_capabilities: AgentCapabilities | None = None
    agent_info: Implementation | None = None

    @property
    def closable(self) -> bool:
        """True if the agent offers ``session/close``."""
        agent = self.agent_capabilities or AgentCapabilities()
        return agent.session_capabilities is not None and agent.session_capabilities.close is not None

    @property
    def loads(self) -> bool:
        """True if the agent offers ``session/load``."""
        return bool(self.agent_capabilities is not None and self.agent_capabilities.load_session)

    @property
    def info(self) -> str:
        """Its name and version, as far as it gives them."""
        return f"{self.agent_info.name} {self.agent_info.version or ''}".strip() if self.agent_info else ""


class SessionOpened(Wire):
    session_id: str


class Prompted(Wire):
    """The end of a prompt. ``usage`` is a draft of the protocol, its shape may change: it is read as far as it goes."""

    stop_reason: str
    usage: Any = None
    meta: Any = msgspec.field(default=None, name="_meta")

    @property
    def tokens(self) -> tuple[int, int] | None:
        """The tokens that the turn has used, in and out, where it is told."""
        return tokens_of(self.usage) or tokens_of(_inner(self.meta))


# -------------------------------------------------------------------------------------------------- their updates
class UpdateName(Wire):
    session_update: str


class SessionUpdate(Wire):
    session_id: str
    update: Raw


class ContentBlock(Wire):
    type: str
    text: str = ""


class Chunk(Wire):
    content: ContentBlock


class ToolUpdate(Wire):
    tool_call_id: str
    title: str | None = None
    kind: str | None = None
    status: str | None = None
    raw_input: Raw | UnsetType = UNSET
    raw_output: Raw | UnsetType = UNSET
    content: Raw | UnsetType = UNSET


class Cost(Wire):
    amount: float
    currency: str


class UsageUpdate(Wire):
    """How full the context is, and the cost of the conversation so far; ``_meta.usage`` may say what the turn used."""

    used: _Count
    size: _Count
    cost: Cost | None = None
    meta: Any = msgspec.field(default=None, name="_meta")

    @property
    def tokens(self) -> tuple[int, int] | None:
        """The tokens that the turn has used so far, in and out, where it is told."""
        return tokens_of(_inner(self.meta))


def _inner(meta: Any) -> Any:
    return meta.get("usage") if isinstance(meta, dict) else None


def tokens_of(usage: Any) -> tuple[int, int] | None:
    """The tokens in and out that *usage* tells of. A total counts also what it does not name, as tokens in: those that
    a cache was read or written with."""
    if not isinstance(usage, dict):
        return None
    into, out, total = (_amount(usage.get(name)) for name in ("inputTokens", "outputTokens", "totalTokens"))
    if into is None and out is None and total is None:
        return None
    return max(into or 0, (total or 0) - (out or 0)), out or 0


def _amount(told: Any) -> int | None:
    return told if isinstance(told, int) and not isinstance(told, bool) and 0 <= told <= COUNT_MAX else None


class CompactionUpdate(Wire):
    compaction_id: str
    status: str


# ------------------------------------------------------------------------------------------------- their requests
class PermissionOption(Wire):
    option_id: str
    kind: str


class PermissionRequest(Wire):
    tool_call: ToolUpdate
    options: tuple[PermissionOption, ...]


class Tagged(Wire, kw_only=True):
    """A request that may say which tool call it serves, in ``_meta.toolCallId``."""

    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")

    @property
    def tool_call_id(self) -> str | None:
        found = (self.meta or {}).get("toolCallId")
        return found if isinstance(found, str) else None


class EnvVariable(Wire):
    name: _Variable
    value: _Word


class TerminalCreate(Tagged):
    command: _Program
    args: tuple[_Word, ...] | None = None
    env: tuple[EnvVariable, ...] | None = None
    cwd: _Directory | None = None
    output_byte_limit: _Count | None = None


class TerminalNamed(Wire):
    """What ``terminal/output``, ``wait_for_exit``, ``kill`` and ``release`` ask about."""

    terminal_id: str


class ChildRun(Tagged):
    name: str
    prompt: str
    agent: str | None = None
    cancel_mode: CancelMode = CancelMode.WAIT_COMPLETED


# -------------------------------------------------------------------------------------------------- in and out
def read(text: str | Raw, kind: type[_T], where: str) -> _T:
    """The message in *text*; *where* says what it is, for the error.

    Raises:
        WireError: it is not JSON, or a field is missing or of the wrong type.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as wrong:
        raise WireError(f"{where}: {wrong}") from None
    except msgspec.DecodeError as wrong:
        seen = f"{_short(text, _LINE_CHARS)!r}, " if isinstance(text, str) else ""
        raise WireError(f"{where} that is not JSON: {seen}{wrong}") from None
    except RecursionError:
        raise WireError(f"{where}: it is nested too deeply") from None


def _short(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[:chars] + "..."


def request(rpc_id: RpcId, method: str, params: dict[str, Any]) -> Send:
    return _line({"id": rpc_id, "method": method, "params": params})


def notification(method: str, params: dict[str, Any]) -> Send:
    return _line({"method": method, "params": params})


def result(rpc_id: RpcId, value: dict[str, Any]) -> Send:
    return _line({"id": rpc_id, "result": value})


def error(rpc_id: RpcId, code: int, message: str) -> Send:
    return _line({"id": rpc_id, "error": {"code": code, "message": message}})


def _line(message: dict[str, Any]) -> Send:
    return Send(msgspec.json.encode({"jsonrpc": "2.0", **message}) + b"\n")
