"""JSON-RPC as agents speak it over their standard streams: one compact object per line, in and out.

What serves every dialect is here: how a message is read and written, and who waits for the answer to a request. A
field of the wrong type is an error that names its path. What the methods mean, each adapter knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from supervisor.ports import Out, Send

__all__ = [
    "INT64",
    "INVALID_PARAMS",
    "METHOD_NOT_FOUND",
    "JsonRpcMessage",
    "OnError",
    "OnResult",
    "OutgoingRequests",
    "ProtocolError",
    "RpcError",
    "RpcId",
    "Writer",
    "read",
]

METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602

INT64: Final = Meta(ge=-(2**63), le=2**63 - 1)
RpcId: TypeAlias = Annotated[int, INT64] | Annotated[str, Meta(max_length=256)] | None
"""What names a request. Larger integers are refused: they could not be written back; longer words need not be kept."""

_DATA_CHARS: Final = 300
_LINE_CHARS: Final = 80
"""How much of an error's data, and of a line that is no message, is shown."""

_T = TypeVar("_T")


class ProtocolError(Exception):
    """A message is not what its place in the protocol calls for; the text names the field."""


class JsonRpcMessage(msgspec.Struct, rename="camel"):
    """A message, or a part of one. Whatever else it carries is skipped, since agents add to it."""


class RpcError(JsonRpcMessage):
    code: Annotated[int, INT64]
    message: str
    data: Raw = Raw(b"null")

    @property
    def text(self) -> str:
        """The message, and its data where there is any: agents put the real reason there."""
        data = bytes(self.data).decode()
        return self.message if data == "null" else f"{self.message} ({_short(data, _DATA_CHARS)})"


def read(text: str | Raw, kind: type[_T], where: str) -> _T:
    """The message in *text*; *where* says what it is, for the error.

    Raises:
        WireError: it is not JSON, or a field is missing or of the wrong type.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as wrong:
        raise ProtocolError(f"{where}: {wrong}") from None
    except msgspec.DecodeError as wrong:
        seen = f"{_short(text, _LINE_CHARS)!r}, " if isinstance(text, str) else ""
        raise ProtocolError(f"{where} that is not JSON: {seen}{wrong}") from None
    except RecursionError:
        raise ProtocolError(f"{where}: it is nested too deeply") from None


def _short(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[:chars] + "..."


class Writer:
    """How one dialect writes its messages: *envelope* is what each of them carries."""

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


class OutgoingRequests:
    """Our requests that are not answered yet. Each is answered once; an answer to none is ignored."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._waiting: dict[int, tuple[OnResult, OnError]] = {}
        self._count = 0

    def ask(self, method: str, params: dict[str, Any], on_result: OnResult, on_error: OnError) -> Send:
        """The request, numbered from 1; one of the two hears what came of it."""
        self._count += 1
        self._waiting[self._count] = (on_result, on_error)
        return self._writer.request(self._count, method, params)

    def answered(self, rpc_id: RpcId | UnsetType, result: Raw | UnsetType, error: RpcError | None) -> list[Out]:
        """An answer came.

        Raises:
            WireError: it is none: it says nothing, or not what it answers.
        """
        if rpc_id is UNSET or (error is None and result is UNSET):
            raise ProtocolError("the agent wrote a line that is neither a request, a notification nor a response")
        if not isinstance(rpc_id, int) or rpc_id not in self._waiting:
            return []
        on_result, on_error = self._waiting.pop(rpc_id)
        if error is not None:
            return on_error(error)
        return on_result(result if isinstance(result, Raw) else Raw(b"null"))
