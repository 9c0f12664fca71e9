"""JSON-RPC as agents use it on standard input and output: one compact JSON object per line in both directions.

This module holds the parts that all dialects share: reading and writing messages, and matching responses to our
requests. A field of the wrong type is an error that names its path. The codecs define the meaning of the methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from supervisor.policies.error_classification import is_held
from supervisor.ports import Out, RequestRefused, Send

INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602

INT64: Final = Meta(ge=-(2**63), le=2**63 - 1)
RpcId: TypeAlias = Annotated[int, INT64] | Annotated[str, Meta(max_length=256)] | None
"""Type of a request's id. An integer outside 64 bits is rejected, since the id could not be written back; a text longer
than 256 characters is rejected too."""

UNGUARDED: Final = (
    "but its permissions deny something or let a person decide",
    "or write `unguarded: true` in its entry of the plan, if it may act without asking",
)
"""Parts of the reason for which an agent that acts without asking is refused: the contradiction, and the way out."""

_DATA_CHARS: Final = 300
_LINE_CHARS: Final = 80
"""Number of characters that an error text shows: of an error's data, and of a line that is not a message."""

_T = TypeVar("_T")


class ProtocolError(Exception):
    """Exception: a message breaks the protocol; the text names the field."""


class NoMessage(ProtocolError):
    """Exception: a line is no message, or a notification that cannot be read. The conversation can go on without the
    line."""


class ConfigurationRefused(ProtocolError):
    """Exception: the agent cannot work with its present configuration: a setting that it does not offer, a login, a
    version of the protocol. Another launch fails in the same way."""


class ConversationInUse(ProtocolError):
    """Exception: the conversation that was to be loaded is in use by another process. It is not lost: another launch
    may load it."""


def check_not_held(error: RpcError) -> None:
    """Raise ``ConversationInUse`` if *error*, the answer to a request to load a conversation, says that another process
    uses the conversation."""
    if is_held(error.text):
        raise ConversationInUse(f"the conversation is in use by another process: {error.text} (code {error.code})")


class JsonRpcMessage(msgspec.Struct, rename="camel"):
    """Base of all messages and parts of messages. Undeclared fields are ignored, because agents add fields."""


class RpcError(JsonRpcMessage):
    code: Annotated[int, INT64]
    message: str
    data: Raw = Raw(b"null")

    @property
    def text(self) -> str:
        """Message of the error together with its ``data``, where agents often put the actual reason."""
        data = bytes(self.data).decode()
        return self.message if data == "null" else f"{self.message} ({shortened(data, _DATA_CHARS)})"


def read(text: str | Raw, kind: type[_T], where: str) -> _T:
    """Decode *text* as *kind*; *where* names the message in error texts.

    Raises:
        ProtocolError: the text is not JSON, or a field is missing or of the wrong type.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as wrong:
        raise ProtocolError(f"{where}: {wrong}") from None
    except msgspec.DecodeError as wrong:
        seen = f"{shortened(text, _LINE_CHARS)!r}, " if isinstance(text, str) else ""
        raise ProtocolError(f"{where} that is not JSON: {seen}{wrong}") from None
    except RecursionError:
        raise ProtocolError(f"{where}: it is nested too deeply") from None


def shortened(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[:chars] + "..."


def id_in_use(rpc_id: RpcId | str, what: str) -> RequestRefused:
    """Return the record of a request that was refused because an earlier request with its id has no response yet. Two
    requests with one id cannot be told apart by their responses: the answer to one would be taken for the other's."""
    return RequestRefused(
        what, f"its id {shortened(str(rpc_id), _LINE_CHARS)!r} is that of a request without a response"
    )


class Writer:
    """Writer of messages in one dialect of JSON-RPC; *envelope* holds the fields that every message carries."""

    def __init__(self, envelope: Mapping[str, str]) -> None:
        self._envelope = dict(envelope)

    def request(self, rpc_id: RpcId, method: str, params: dict[str, Any]) -> Send:
        return self._line({"id": rpc_id, "method": method, "params": params})

    def notification(self, method: str, params: dict[str, Any]) -> Send:
        return self._line({"method": method, "params": params})

    def result(self, rpc_id: RpcId, value: dict[str, Any]) -> Send:
        return self._line({"id": rpc_id, "result": value})

    def error(self, rpc_id: RpcId, code: int, message: str) -> Send:
        return self._line({"id": rpc_id, "error": {"code": code, "message": message}})

    def _line(self, message: dict[str, Any]) -> Send:
        return Send(msgspec.json.encode({**self._envelope, **message}) + b"\n")


OnResult = Callable[[Raw], list[Out]]
OnError = Callable[[RpcError], list[Out]]
OnNotification = Callable[[str, Raw], list[Out]]
OnRequest = Callable[[RpcId, str, Raw], list[Out]]
"""Functions that handle a response, an error, a notification and a request; the last two get method and parameters."""


class _Head(JsonRpcMessage):
    """The parts of a line that tell whether the line is a response to a request of ours, whatever their types."""

    id: Any = None
    method: Any = None


class Message(JsonRpcMessage, kw_only=True):
    """Any JSON-RPC message: a request (method and id), a notification (method), or a response (id)."""

    id: RpcId | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: Raw = Raw(b"{}")
    result: Raw | UnsetType = UNSET
    error: RpcError | None = None


class OutgoingRequests:
    """Requests of the supervisor that have no response yet. Each request gets one response; a response to an unknown id
    is ignored."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._waiting: dict[int, tuple[OnResult, OnError]] = {}
        self._count = 0

    def send(self, method: str, params: dict[str, Any], on_result: OnResult, on_error: OnError) -> Send:
        """Store a request under the next number, from 1, and return the message to send. When the response arrives, one
        of the two callbacks is called with it."""
        self._count += 1
        self._waiting[self._count] = (on_result, on_error)
        return self._writer.request(self._count, method, params)

    def receive(
        self, line: str, kind: type[Message], on_notification: OnNotification, on_request: OnRequest
    ) -> list[Out]:
        """Decode one line of the agent and pass it on: a response to the request that it belongs to, any other message
        to *on_notification* or *on_request*. A request whose parameters cannot be read is answered with an error.

        Raises:
            NoMessage: the line is no message, or a notification that cannot be read.
            ProtocolError: a response to a request of ours cannot be read: the request would wait for ever.
        """
        try:
            message = read(line, kind, "the agent wrote a line")
        except ProtocolError as error:
            if self._is_response(line):
                raise
            raise NoMessage(str(error)) from None
        rpc_id = message.id
        if not isinstance(message.method, str):
            return self._on_response(rpc_id, message.result, message.error)
        try:
            if rpc_id is UNSET:
                return on_notification(message.method, message.params)
            return on_request(rpc_id, message.method, message.params)
        except ProtocolError as error:
            if rpc_id is UNSET:
                raise NoMessage(str(error)) from None
            return [self._writer.error(rpc_id, INVALID_PARAMS, str(error))]

    def _is_response(self, line: str) -> bool:
        """Return whether a line that cannot be read as a message is a response to a request of ours."""
        try:
            head = msgspec.json.decode(line, type=_Head)
        except (msgspec.DecodeError, RecursionError):
            return False
        return head.method is None and type(head.id) is int and head.id in self._waiting

    def _on_response(self, rpc_id: RpcId | UnsetType, result: Raw | UnsetType, error: RpcError | None) -> list[Out]:
        """Call the callback that belongs to the request of a response; return the callback's result."""
        is_empty = rpc_id is UNSET or (error is None and result is UNSET)
        why = "the agent wrote a line that is neither a request, a notification nor a response"
        if not isinstance(rpc_id, int) or rpc_id not in self._waiting:
            if is_empty:
                raise NoMessage(why)
            return []
        if is_empty:
            raise ProtocolError(why)
        on_result, on_error = self._waiting.pop(rpc_id)
        if error is not None:
            return on_error(error)
        return on_result(result if isinstance(result, Raw) else Raw(b"null"))
