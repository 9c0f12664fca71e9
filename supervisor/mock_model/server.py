"""Model server on loopback: ``async with open_stub_model() as stub``, on asyncio and on trio.

Each connection is a task; leaving the block ends all connections, also connections that hang. The server listens only
on this machine. Invalid input of a client never ends the server; the client receives an error in the provider's own
form. The server needs the extra ``stub-model`` (h11).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final

import anyio
import anyio.abc
import h11

from supervisor.mock_model.answers import Answer, Fail, Spent
from supervisor.mock_model.connection import Connection, Disconnected, Request
from supervisor.mock_model.dialects import Dialect, Event
from supervisor.mock_model.environment import environment
from supervisor.mock_model.log import LoggedRequest, RequestLog
from supervisor.mock_model.request import BadRequest, Ending, ModelAnswer, ModelRequest
from supervisor.mock_model.routes import Endpoint, route

COUNTED: Final = {"input_tokens": 10, "totalTokens": 10}
"""Body of the answer to a request for a token count, in the form of both APIs that have such requests."""
CONNECTIONS_MAX: Final = 512

ACCEPT_AGAIN_S: Final = 0.1
"""Seconds to wait for free file descriptors before the server tries again to accept connections."""


class StubModel:
    """Running model server. The server's log may be read, and its script set, from any thread."""

    def __init__(self, port: int, log: RequestLog) -> None:
        self.port = port
        self._log = log

    @property
    def base_url(self) -> str:
        """Address of the server, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def env(self) -> dict[str, str]:
        """Environment variables that point an agent at the server, whatever API the agent uses."""
        return environment(self.base_url)

    @property
    def requests(self) -> list[LoggedRequest]:
        """Logged requests so far, the oldest first; only the newest ten thousand are kept."""
        return self._log.requests

    @property
    def unused(self) -> int:
        """Number of answers of :meth:`script` that no request has used yet."""
        return self._log.unused

    def script(
        self,
        answers: Iterable[Answer],
        *,
        where: Callable[[ModelRequest], bool] | None = None,
        spent: Spent | None = None,
    ) -> None:
        """Answer the next requests with *answers*; see :meth:`.log.RequestLog.script`."""
        self._log.script(answers, where=where, spent=spent)


@asynccontextmanager
async def open_stub_model(
    port: int = 0, *, report: Callable[[LoggedRequest], None] | None = None
) -> AsyncIterator[StubModel]:
    """Run a model server on 127.0.0.1 for the duration of the block.

    Args:
        port: the port; 0 takes a free one.
        report: function that is called with every request, once the answer to the request is decided.

    Raises:
        OSError: the port is taken.
    """
    log = RequestLog()
    async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port) as listener:
        stub = StubModel(listener.extra(anyio.abc.SocketAttribute.local_port), log)
        clients = _Clients(log, report)
        async with anyio.create_task_group() as group:
            for one in listener.listeners:
                group.start_soon(_serve, one, clients, group)
            yield stub
            group.cancel_scope.cancel()


async def _serve(
    listener: anyio.abc.Listener[anyio.abc.SocketStream], clients: _Clients, group: anyio.abc.TaskGroup
) -> None:
    """Accept connections. Without free file descriptors anyio raises ``OSError`` on asyncio and ``BrokenResourceError``
    on trio; a waiting connection is accepted as soon as descriptors are free."""
    while True:
        try:
            await listener.serve(clients.serve, group)
        except (OSError, anyio.BrokenResourceError):
            await anyio.sleep(ACCEPT_AGAIN_S)


class _Clients:
    """Handler of the connections of all clients of one model server."""

    def __init__(self, log: RequestLog, report: Callable[[LoggedRequest], None] | None) -> None:
        self._log = log
        self._report = report
        self._numbers = count(1)
        self._slots = anyio.Semaphore(CONNECTIONS_MAX)
        self._salt = secrets.token_hex(4)
        """Part of the ids in answers that differs in each server, because conversations may outlive a server."""

    async def serve(self, stream: anyio.abc.ByteStream) -> None:
        async with self._slots, stream:
            connection = Connection(stream)
            try:
                while (request := await connection.request()) is not None:
                    await self._answer(connection, request)
                    if not connection.ready_for_next():
                        return
            except Disconnected:
                return
            except h11.RemoteProtocolError as error:
                await _bad_protocol(connection, error)

    async def _answer(self, connection: Connection, request: Request) -> None:
        dialect, endpoint = route(request.method, request.target, request.headers)
        match endpoint:
            case Endpoint.ALIVE:
                await connection.json(200, {})
            case Endpoint.MODELS:
                await connection.json(200, dialect.models())
            case Endpoint.COUNT:
                await connection.json(200, COUNTED)
            case Endpoint.ANSWER:
                await self._model(connection, request, dialect)
            case Endpoint.UNKNOWN:
                await self._refuse(connection, request, dialect, 404, f"stub: no {request.method} here")

    async def _refuse(
        self, connection: Connection, request: Request, dialect: Dialect, status: int, problem: str, field: str = ""
    ) -> None:
        self._log.refused(dialect.name, request.target, status, f"{field}: {problem}" if field else problem)
        self._log_newest()
        await connection.json(status, dialect.failed(Fail(status), problem, field))

    async def _model(self, connection: Connection, request: Request, dialect: Dialect) -> None:
        if request.body is None:
            await self._refuse(connection, request, dialect, 413, "Request exceeds the maximum size")
            return
        try:
            model_request = dialect.read_request(request.target.partition("?")[0], _object(request.body))
        except BadRequest as error:
            await self._refuse(connection, request, dialect, 400, error.problem, error.field)
            return
        reply = self._log.reply(model_request, request.target)
        self._log_newest()
        if isinstance(reply, Fail):
            await connection.json(reply.status, dialect.failed(reply, "", ""), _headers(reply))
        else:
            serial = f"{self._salt}{next(self._numbers):06x}"
            speak = _stream if model_request.stream else _whole
            await speak(connection, dialect, model_request, reply, serial)

    def _log_newest(self) -> None:
        if self._report is not None:
            self._report(self._log.requests[-1])


def _object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in the body of a request.

    Raises:
        BadRequest: the body is not a JSON object.
    """
    try:
        value = json.loads(body)
        if rb"\u" in body or b"\xed" in body:  # half a surrogate pair can be neither logged nor printed
            whole = json.dumps(value, ensure_ascii=False).encode("utf-16-le", "surrogatepass")
            value = json.loads(whole.decode("utf-16-le", "replace"))
    except (ValueError, RecursionError):
        raise BadRequest("", "The request body is not valid JSON") from None
    if not isinstance(value, dict):
        raise BadRequest("", "The request body is not a JSON object")
    return value


def _headers(fail: Fail) -> dict[str, str]:
    wait_s = 1.0 if fail.retry_after_s is None and fail.status == 429 and not fail.why else fail.retry_after_s
    return {} if wait_s is None or wait_s < 0 else {"retry-after": f"{wait_s:g}"}


async def _stream(
    connection: Connection, dialect: Dialect, model_request: ModelRequest, answer: ModelAnswer, serial: str
) -> None:
    if answer.ending is Ending.MUTE:
        await connection.silence()
    stream = dialect.streamed(model_request, answer, serial)
    await connection.begin_events()
    if answer.cut_bytes is not None:
        body = _together(stream.opening) + b"".join(map(_together, stream.pieces)) + _together(stream.closing)
        await connection.piece(body[: answer.cut_bytes])
        raise Disconnected
    if stream.opening:
        await connection.piece(_together(stream.opening))
    if answer.ending is Ending.HANG:
        await connection.silence()
    for piece in stream.pieces:
        await connection.piece(_together(piece))
        await anyio.sleep(answer.pause_s)
    if answer.ending is Ending.TORN:
        raise Disconnected
    await connection.end(_together(stream.closing) if answer.ending is Ending.WHOLE else b"")


async def _whole(
    connection: Connection, dialect: Dialect, model_request: ModelRequest, answer: ModelAnswer, serial: str
) -> None:
    """Send an answer that is not a stream of events. The head counts as the answer's beginning, half of the body as the
    middle at which the answer may be cut."""
    if answer.ending is Ending.MUTE:
        await connection.silence()
    data = json.dumps(dialect.whole(model_request, answer, serial)).encode()
    await anyio.sleep(answer.pause_s * len(answer.pieces))
    half = data[: len(data) // 2]
    await connection.begin_json(200, half if answer.ending is Ending.UNFINISHED else data)
    match answer.ending:
        case Ending.HANG:
            await connection.silence()
        case Ending.TORN:
            await connection.piece(half if answer.cut_bytes is None else data[: answer.cut_bytes])
            raise Disconnected
        case Ending.UNFINISHED:
            await connection.end(half)
        case _:
            await connection.end(data)


def _together(events: Iterable[Event]) -> bytes:
    return b"".join(event.encoded() for event in events)


async def _bad_protocol(connection: Connection, error: h11.RemoteProtocolError) -> None:
    """Send an error to a client that broke the HTTP protocol, if an answer can still be sent."""
    try:
        await connection.json(error.error_status_hint, {"error": {"message": str(error), "type": "bad_request"}})
    except (Disconnected, h11.LocalProtocolError):
        return
