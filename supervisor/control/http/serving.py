"""Service that serves the HTTP API on the supervisor's own sockets. Hypercorn speaks HTTP; the connections are ours.

Theory of operation
-------------------
The supervisor accepts the connections itself, and hands each to hypercorn's class for one connection. Three things need
that, and no server offers them: who has connected is asked of the kernel before the first request; a client that does
not read is cut off on both event loops, by closing its socket; and the end is bounded, whatever the clients do.

    accept -> identify (SO_PEERCRED, or /proc/net/tcp) -> hypercorn -> Admission -> FastAPI

At the end: nobody is accepted; event streams send their last event; idle connections are closed; requests under way
have ``GRACE_S`` seconds for their replies; then every socket is closed, and every task is cancelled.

If the accept loop fails, the service is started again (``host.services``) on the same listening sockets.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread
import hypercorn.asyncio.tcp_server
import hypercorn.asyncio.worker_context
import hypercorn.trio.tcp_server
import hypercorn.trio.worker_context
import msgspec
import trio
from anyio.abc import TaskGroup, TaskStatus
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from starlette.datastructures import Headers

from actors import failpoint
from supervisor.control.http.admission import STALL_S, Asgi, Message, RateLimit, Receive, Send, is_hook
from supervisor.control.http.app import build_app
from supervisor.control.http.callers import CALLER, HttpClient, Scope
from supervisor.control.http.errors import Problem
from supervisor.control.http.options import BadHttpOptions, HttpOptions, Listening, TokenFile
from supervisor.control.http.page_access import PageAccess
from supervisor.control.roles import Role
from supervisor.control.server import peer
from supervisor.host.api import Supervisor
from supervisor.ports import Caller, Origin
from supervisor.ports.logs import get_logger
from supervisor.ports.shortages import shortage_of
from supervisor.processes.descriptors import limit
from supervisor.processes.tcp_peers import find_peer, is_same_peer, judge_peer

CONNECTIONS_MAX: Final = 512
CONNECTIONS_SHARE: Final = 4
"""Divisor for the descriptors that connections may use; the rest is for agents."""
IDLE_S: Final = 30.0
"""Seconds after which a connection without a request is closed: one that is kept, and one whose request is slow."""
GRACE_S: Final = 3.0
"""Seconds that requests under way have for their replies at the end of the service."""
CRASH_GRACE_S: Final = 1.0
ABORT_S: Final = 1.0
"""Seconds that connections have to end once their sockets are closed, before their tasks are cancelled."""
_WATCH_S: Final = 0.5
_CONNECTION: Final = "supervisor.connection"
_FULL: Final = b"HTTP/1.1 503 \r\nContent-Type: application/json\r\nConnection: close\r\nRetry-After: 1\r\n\r\n" + (
    msgspec.json.encode({"error": Problem(503, "too many connections; close some of them, or ask again later").body})
)
_log = get_logger()


def tls_context(options: HttpOptions) -> ssl.SSLContext | None:
    """Return the TLS settings for connections over TCP; ``None`` if they are not encrypted here.

    Raises:
        BadHttpOptions: certificate or key cannot be read, or do not fit.
    """
    if options.certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(options.certificate, options.key)
    except (OSError, ssl.SSLError) as error:
        raise BadHttpOptions(f"certificate: {options.certificate} cannot be used: {error}; give another one") from None
    return context


class _Connection:
    """Client: its socket, the program at the other end, and since when a piece of a response waits for it."""

    def __init__(self, accepted: socket.socket, *, is_tcp: bool) -> None:
        self.socket, self.is_tcp = accepted, is_tcp
        self.caller = Caller(Origin.UNIDENTIFIED, 0)
        self.waits_since: float | None = None
        self.token = ""
        """Token of the last request."""
        self.close: Callable[[], None] = accepted.close
        """Function that closes the socket at once, unsent data included, whatever waits for it."""


class _Server:
    """The connections of one incarnation of the service."""

    def __init__(self, sup: Supervisor, app: Asgi, tokens: TokenFile | None, tls: ssl.SSLContext | None) -> None:
        self._sup, self._app, self._tokens, self._tls = sup, app, tokens, tls
        self._connections: set[_Connection] = set()
        self._left = anyio.Event()
        self._is_trio = anyio.get_cancelled_exc_class() is trio.Cancelled
        self._context: Any = (
            hypercorn.trio.worker_context.WorkerContext(None)
            if self._is_trio
            else hypercorn.asyncio.worker_context.WorkerContext(None)
        )
        self._config = Config()
        self._config.errorlog = self._config.accesslog = None  # the admission logs what is ours
        self._config.keep_alive_timeout = IDLE_S
        self._config.include_server_header = False
        self._config.ssl_handshake_timeout = IDLE_S
        self._is_full = False
        self.stall_s = STALL_S

    def take(self, accepted: socket.socket, group: TaskGroup, *, is_tcp: bool) -> None:
        """Serve a client in an asynchronous task of its own, or refuse it if there are too many."""
        most = limit()
        most = CONNECTIONS_MAX if most is None else min(CONNECTIONS_MAX, most // CONNECTIONS_SHARE)
        if len(self._connections) >= most:
            if not self._is_full:  # logged once, until a quarter is free again
                _log.warning("too many clients of the HTTP API: the next ones are refused", clients=most)
            self._is_full = True
            with suppress(OSError), accepted:
                accepted.send(_FULL)
            return
        self._is_full = self._is_full and len(self._connections) > most * 3 // 4
        connection = _Connection(accepted, is_tcp=is_tcp)
        self._connections.add(connection)
        group.start_soon(self._serve, connection)

    async def _serve(self, connection: _Connection) -> None:
        try:
            if await self._identify(connection):
                await (self._serve_trio if self._is_trio else self._serve_asyncio)(connection)
        except Exception as error:  # of one connection: the others go on
            if not shortage_of(error):
                _log.debug("http_connection_failed", error=repr(error))
        finally:
            connection.close()
            self._connections.discard(connection)
            self._left.set()

    async def _identify(self, connection: _Connection) -> bool:
        """Find out who has connected, before the program can end; return whether it may go on."""
        if connection.is_tcp:
            found = await anyio.to_thread.run_sync(find_peer, connection.socket)
            holders = [self._sup.core.caller_at(connection.socket, pid) for pid in found.pids]
            if not await anyio.to_thread.run_sync(is_same_peer, connection.socket, found):
                return False
            has_agents = bool(self._sup.core.registry.sessions)
            connection.caller = judge_peer(found, holders, has_agents=has_agents)
            return True
        credentials = peer(connection.socket)
        if credentials is not None and credentials[1] not in (0, os.geteuid()):
            _log.warning("http_client_refused", uid=credentials[1])
            return False
        connection.caller = self._sup.core.caller_at(connection.socket, credentials[0] if credentials else 0)
        return True

    # ------------------------------------------------------------------ hypercorn
    async def _serve_asyncio(self, connection: _Connection) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        tls: dict[str, Any] = {}
        if connection.is_tcp and self._tls is not None:
            tls = {"ssl": self._tls, "ssl_handshake_timeout": IDLE_S}
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection.socket, **tls)

        def abort() -> None:
            with suppress(AttributeError):  # asyncio's own: the transport is closed already
                transport.abort()

        connection.close = abort
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        app = self._wrapped(connection)
        serve = hypercorn.asyncio.tcp_server.TCPServer
        await serve(app, loop, self._config, self._context, {}, reader, writer).run()

    async def _serve_trio(self, connection: _Connection) -> None:
        plain = trio.SocketStream(trio.socket.from_stdlib_socket(connection.socket))
        connection.close = plain.socket.close
        stream: Any = plain
        if connection.is_tcp and self._tls is not None:
            stream = trio.SSLStream(plain, self._tls, server_side=True, https_compatible=True)
        app = self._wrapped(connection)
        await hypercorn.trio.tcp_server.TCPServer(app, self._config, self._context, {}, stream).run()

    def _wrapped(self, connection: _Connection) -> ASGIWrapper:
        """Return the app for one connection: requests carry the connection, and the time of each send is watched."""

        async def call(scope: Any, receive: Receive, send: Send) -> None:
            async def watched(message: Message) -> None:
                connection.waits_since = anyio.current_time()
                try:
                    await send(message)
                except BaseException:
                    connection.close()  # nothing can follow a piece that was sent in part: nobody waits for the client
                    raise
                finally:
                    connection.waits_since = None

            await self._app({**scope, _CONNECTION: connection, CALLER: connection.caller}, receive, watched)

        return ASGIWrapper(call)  # type: ignore[arg-type]  # its types of messages, and Starlette's

    # ------------------------------------------------------------------ ends
    async def watch(self) -> None:
        """Cut off clients that do not read, and clients whose token is no longer valid, until cancelled."""
        seen = 0
        while True:
            await anyio.sleep(_WATCH_S)
            now, has_changed = anyio.current_time(), self._tokens is not None and self._tokens.generation != seen
            seen = self._tokens.generation if self._tokens is not None else 0
            for one in list(self._connections):
                is_stalled = one.waits_since is not None and now - one.waits_since > self.stall_s
                if is_stalled or (has_changed and self._is_revoked(one)):
                    one.close()

    def _is_revoked(self, connection: _Connection) -> bool:
        """Return whether the token of a request, which may be an event stream, was removed from the file meanwhile."""
        assert self._tokens is not None
        return bool(connection.token) and self._tokens.role_of(connection.token) is None

    async def end(self, grace_s: float) -> None:
        """End the connections: within *grace_s* seconds by themselves, then by force."""
        self.stall_s = min(self.stall_s, CRASH_GRACE_S)
        await self._context.terminated.set()
        with anyio.move_on_after(grace_s):
            await self._all_left()
        for one in list(self._connections):
            one.close()
        with anyio.move_on_after(ABORT_S):
            await self._all_left()

    async def _all_left(self) -> None:
        while self._connections:
            self._left = anyio.Event()
            await self._left.wait()


class _Senders:
    """Identifies the senders of requests: by their connection, and over TCP by their tokens."""

    def __init__(self, options: HttpOptions, tokens: TokenFile | None) -> None:
        self._hosts = options.known_hosts if options.listen is not None else frozenset()
        self._tokens = tokens
        self._failures = RateLimit(per_s=1.0, burst=20)

    def identify(self, scope: Scope) -> HttpClient:
        connection: _Connection = scope[_CONNECTION]
        caller = connection.caller
        if not connection.is_tcp:
            return HttpClient(caller, Role.ADMIN, "http", f"pid {caller.pid}")
        if is_hook(scope):  # it has a signature, and no token; it may come through a proxy, under any name
            address = str(scope["client"][0]) if scope.get("client") else ""
            return HttpClient(caller, Role.READ, "hook", f"hook {address}")
        headers = Headers(scope=scope)  # type: ignore[arg-type]
        host = headers.get("host", "")
        if _name_of(host) not in self._hosts:
            known = ", ".join(sorted(self._hosts))
            raise Problem(403, f"Host: {host!r:.100} is no name of this service; use one of {known}")
        address = str(scope["client"][0]) if scope.get("client") else ""
        return self._of_token(headers.get("authorization", ""), connection, address)

    def _of_token(self, given: str, connection: _Connection, address: str) -> HttpClient:
        scheme, _, token = given.partition(" ")
        role = self._tokens.role_of(token.strip()) if self._tokens is not None and scheme.lower() == "bearer" else None
        if role is None:
            self._failures.check(address, anyio.current_time())
            what = "is not valid" if given else "is missing"
            message = f"Authorization: the token {what}; give Bearer TOKEN of the token file"
            raise Problem(401, message, headers={"WWW-Authenticate": "Bearer"})
        connection.token = token.strip()
        return HttpClient(connection.caller, role, f"http:{role}", f"{role} {address}")


def _name_of(host: str) -> str:
    """Return the name in a ``Host`` header, without the port and the brackets of IPv6."""
    name, _, port = host.rpartition(":")
    return (name if port.isdigit() and name else host).strip("[]").lower()


async def serve_http(
    sup: Supervisor,
    listening: Listening,
    options: HttpOptions,
    *,
    tls: ssl.SSLContext | None = None,
    closing: anyio.Event,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve clients on the sockets until *closing* is set. This is the loop of a service.

    Raises:
        OSError: the sockets failed.
    """
    senders = _Senders(options, listening.tokens)
    ending = anyio.Event()
    make = partial(build_app, sup, senders.identify, closing=ending.wait, origins=options.origins, rate=RateLimit())
    app = await anyio.to_thread.run_sync(make)  # it takes a tenth of a second
    server = _Server(sup, app, listening.tokens, tls)
    await _serve(server, listening.unix, listening.tcp, closing, ending, task_status)


async def serve_page(
    sup: Supervisor, listener: socket.socket, access: PageAccess, *, closing: anyio.Event, task_status: TaskStatus[None]
) -> None:
    """Serve browsers on *listener*, a socket of loopback, until *closing* is set. This is the loop of a service.

    Raises:
        OSError: the socket failed.
    """

    def identify(scope: Scope) -> HttpClient:
        return access.identify(scope, scope[CALLER])

    ending = anyio.Event()
    make = partial(build_app, sup, identify, closing=ending.wait, rate=RateLimit(), page=access)
    server = _Server(sup, await anyio.to_thread.run_sync(make), None, None)
    await _serve(server, None, listener, closing, ending, task_status)


async def _serve(
    server: _Server,
    unix: socket.socket | None,
    tcp: socket.socket | None,
    closing: anyio.Event,
    ending: anyio.Event,
    task_status: TaskStatus[None],
) -> None:
    """Serve clients until *closing* is set; then set *ending*, and end the connections."""
    failure: Exception | None = None
    async with anyio.create_task_group() as group:
        async with anyio.create_task_group() as accepting:
            accepting.start_soon(_then_cancel, closing, accepting.cancel_scope)
            group.start_soon(server.watch)
            task_status.started()
            try:
                async with anyio.create_task_group() as loops:
                    for one in (unix, tcp):
                        if one is not None:
                            loops.start_soon(_accept, one, server, group, one is tcp)
            except* Exception as errors:
                failure = errors.exceptions[0]
            accepting.cancel_scope.cancel()
        ending.set()
        await server.end(GRACE_S if failure is None else CRASH_GRACE_S)
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _then_cancel(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


async def _accept(listener: socket.socket, server: _Server, group: TaskGroup, is_tcp: bool) -> None:
    """Accept clients until cancelled."""
    is_short = False
    while True:
        failpoint.crash("service", "http")
        await anyio.wait_readable(listener)
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            continue
        except OSError as error:
            if not shortage_of(error):
                raise
            if not is_short:
                _log.warning("no file descriptor is left for a client of the HTTP API: clients wait")
            is_short = True
            await anyio.sleep(_WATCH_S)
            continue
        is_short = False
        accepted.setblocking(False)
        server.take(accepted, group, is_tcp=is_tcp)
