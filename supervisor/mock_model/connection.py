"""HTTP connection of one client to the model server: requests come in, answers go out, piece by piece under the
caller's control.

h11 implements the protocol, anyio the socket. A client that breaks the protocol receives an error and is disconnected;
a client that disconnects is not an error. The size of every request is bounded: the head by h11, the body by
``BODY_BYTES_MAX``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import anyio
import anyio.abc
import h11

BODY_BYTES_MAX: Final = 32 * 1024 * 1024
"""The most bytes of a request's body: the limit of Anthropic, which is the largest limit of the providers."""
HEAD_BYTES_MAX: Final = 64 * 1024
PIECE_BYTES: Final = 64 * 1024


class Disconnected(Exception):
    """Exception: the client closed the connection, or the server is to close the connection at once."""


class Request(NamedTuple):
    """HTTP request of a client; ``body`` is ``None`` if the body was too long to be read."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes | None


class Connection:
    """The model server's end of an HTTP connection."""

    def __init__(self, stream: anyio.abc.ByteStream) -> None:
        self._stream = stream
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._bodiless = False

    async def request(self) -> Request | None:
        """Wait for the next request and return the request, or ``None`` if the client sends no more requests.

        Raises:
            Disconnected: the client disconnected within a request.
            h11.RemoteProtocolError: the data is not a request.
        """
        head = await self._event()
        if not isinstance(head, h11.Request):
            return None
        self._bodiless = head.method == b"HEAD"
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        body = await self._body()
        return Request(head.method.decode("latin-1"), head.target.decode("latin-1"), headers, body)

    async def _body(self) -> bytes | None:
        if self._h11.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        body = bytearray()
        while isinstance(event := await self._event(), h11.Data):
            if len(body) + len(event.data) > BODY_BYTES_MAX:
                return None
            body += event.data
        return bytes(body)

    async def _event(self) -> h11.Event | None:
        """Wait for the next h11 event and return the event; ``None`` if the client waits for an answer first."""
        while not isinstance(event := self._h11.next_event(), h11.Event):
            if event is h11.PAUSED:
                return None
            try:
                data = await self._stream.receive(PIECE_BYTES)
            except anyio.EndOfStream:
                data = b""
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                raise Disconnected from None
            self._h11.receive_data(data)
        return event

    def ready_for_next(self) -> bool:
        """Return whether another request may come, and prepare the connection for it."""
        if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            return False
        self._h11.start_next_cycle()
        return True

    # ------------------------------------------------------------------------------------------------- answers
    async def json(self, status: int, body: dict[str, Any], headers: Mapping[str, str] | None = None) -> None:
        """Send a complete answer with a JSON body."""
        await self.begin_json(status, data := _encoded(body), headers)
        await self.end(data)

    async def begin_json(self, status: int, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send the head of an answer whose body will be *data*."""
        fields = {"content-type": "application/json", "content-length": str(len(data)), **(headers or {})}
        await self._send(h11.Response(status_code=status, headers=list(fields.items())))

    async def begin_events(self) -> None:
        """Send the head of an answer that is a stream of server-sent events."""
        fields = {"content-type": "text/event-stream", "cache-control": "no-cache"}
        await self._send(h11.Response(status_code=200, headers=list(fields.items())))

    async def piece(self, data: bytes) -> None:
        """Send a piece of an answer's body immediately."""
        await self._send(h11.Data(data=data))

    async def end(self, data: bytes = b"") -> None:
        """Send the last piece of an answer's body, and end the answer. The answer to a HEAD request has no body."""
        if data and not self._bodiless:
            await self.piece(data)
        await self._send(h11.EndOfMessage())

    async def silence(self) -> None:
        """Send nothing until the client disconnects."""
        try:
            while await self._stream.receive(PIECE_BYTES):
                pass
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise Disconnected from None

    async def _send(self, event: h11.Event) -> None:
        data = self._h11.send(event)
        try:
            if data:
                await self._stream.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise Disconnected from None


def _encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()
