"""Engine of a fleet on NATS JetStream (``ports.Engine``).

Theory of operation
-------------------
A fleet has two streams: ``supervisor-NAME-log`` with a subject for each host, and ``supervisor-NAME-hosts`` with the
last message of each host's subject only. The server does what is difficult: replication, order, compare-and-set and
de-duplication. What it answers is not always what it means, so that an append decides as follows (tests/unit/fleet
shows each case on servers):

    10071  wrong last sequence   with one replica, a repeated append gets this too: the last message's id decides
    10158, 10164, a time-out     the append is stored, or may be stored later: it is repeated with the same id
    no answer in ``APPEND_S``    unknown; the caller repeats, or reads and judges again

Reads ask the stream's leader for one message. No consumer is used: a consumer of the client's library is deaf for up to
20 s after a server was started again. A read may be behind, and never decides anything.

A lease is a message with a time to live. The server replaces an expired one by a marker without a body, which counts as
free; the marker has a number, which the next holder has to expect.

Headers are constants, because the server ignores one that is spelled in another case. The client checks the size of a
body only, and a server closes the connection for good over a message whose headers exceed the rest: ``MARGIN_BYTES`` is
kept free, and a connection that was closed is opened again.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from typing import Any, Final, TypeVar

import msgspec
import nats
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import RawStreamMsg, StorageType, StoreCompression, StreamConfig
from nats.js.errors import APIError, NotFoundError

from supervisor.fleet.nats_thread import AsyncioThread
from supervisor.fleet.options import BadFleetOptions, FleetOptions, Login
from supervisor.fleet.ports import Conflict, EngineUnavailable, Entry, FleetError

_T = TypeVar("_T")

OLDEST: Final = (2, 15)
"""Oldest version of the server that can be used: older ones sync each message of a stream by itself."""
CONNECT_S: Final = 3.0
"""Seconds for one server to accept a connection and a login."""
CLOSE_S: Final = 1.0
"""Seconds for a connection to be closed."""
RECONNECT_S: Final = 1.0
"""Seconds that a call waits for a lost connection."""
ANSWER_S: Final = 2.0
"""Seconds for the answer to one request."""
APPEND_S: Final = 6.0
"""Seconds for an append with its repetitions."""
REFUSALS: Final = 20
"""Number of refusals for a wrong sequence after which an append gives up although no read shows another entry."""
AGAIN_S: Final = 0.05
"""Seconds between two tries of an append."""
PREPARE_S: Final = 15.0
"""Seconds for the streams to be made: a cluster that has just started has no leader yet."""
DUPLICATES_S: Final = 20.0
"""Seconds for which the servers remember ids of messages; the last message's id is compared in any case."""
MARKER_S: Final = 120.0
"""Seconds for which the servers remember that an entry of the directory has expired."""
MARGIN_BYTES: Final = 4096
"""Bytes of a message that are kept free for its subject and headers."""
HEADER_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
HEADER_ID: Final = "Nats-Msg-Id"
HEADER_TTL: Final = "Nats-TTL"
HEADER_MARKER: Final = "Nats-Marker-Reason"
WRONG_SEQUENCE: Final = 10071
PENDING: Final = (10158, 10164)
"""Answers of a stream that has not decided yet about an earlier append."""
NO_STREAM: Final = 10059
NOT_CLUSTERED: Final = 10074
NO_PEERS: Final = 10005


class EngineRefused(FleetError):
    """Error: the servers answer, and refuse: a wrong login, an old version, or no JetStream."""


class _Stream:
    """Stream of a fleet: append, and reads of one message."""

    def __init__(self, engine: NatsEngine, name: str, prefix: str) -> None:
        self._engine, self.name, self._prefix = engine, name, prefix

    async def append(self, key: str, body: bytes, expected: int, message_id: str, ttl_s: int | None) -> int:
        headers = {HEADER_EXPECTED: str(expected), HEADER_ID: message_id}
        if ttl_s is not None:
            headers[HEADER_TTL] = f"{ttl_s}s"
        return await self._engine.call(lambda js: self._append(js, key, body, expected, headers))

    async def _append(self, js: JetStreamContext, key: str, body: bytes, expected: int, headers: dict[str, str]) -> int:
        deadline = asyncio.get_running_loop().time() + APPEND_S
        refusals = 0
        while True:
            try:
                # A copy, since the library adds to the headers that it is given.
                answer = await js.publish(self.subject(key), body, headers=dict(headers), timeout=ANSWER_S)
                return answer.seq
            except APIError as error:
                problem: Exception = error
                if error.err_code == WRONG_SEQUENCE:
                    last, refusals = await self._last(js, key), refusals + 1
                    if last is not None and last.message_id == headers[HEADER_ID]:
                        return last.number
                    # Else the read may be behind the refusal, and not show the caller's own entry yet: look again.
                    if refusals >= REFUSALS or (last is not None and last.number > expected):
                        raise Conflict(f"{key}: its last entry is not {expected}") from None
                elif error.err_code not in PENDING and (error.code or 0) < 500:
                    raise FleetError(f"{key}: the servers refuse the entry: {error.description}") from None
            except (nats.errors.Error, OSError) as error:
                problem = error
            if asyncio.get_running_loop().time() > deadline:
                raise EngineUnavailable(f"the servers have not stored an entry within {APPEND_S:g} s: {problem}")
            await asyncio.sleep(AGAIN_S)

    async def last(self, key: str) -> Entry | None:
        return await self._engine.call(partial(self._last, key=key))

    async def _last(self, js: JetStreamContext, key: str) -> Entry | None:
        try:
            return self._entry(await js.get_last_msg(self.name, self.subject(key)))
        except NotFoundError as error:
            _check_absent(error)
            return None

    async def following(self, number: int, key: str | None) -> Entry | None:
        async def read(js: JetStreamContext) -> Entry | None:
            try:
                subject = self.subject(key or "*")
                return self._entry(await js.get_msg(self.name, seq=number + 1, subject=subject, next=True))
            except NotFoundError as error:
                _check_absent(error)
                return None

        return await self._engine.call(read)

    async def remove_before(self, key: str, number: int) -> None:
        await self._engine.call(lambda js: js.purge_stream(self.name, seq=number, subject=self.subject(key)))

    async def end(self) -> int:
        info = await self._engine.call(lambda js: js.stream_info(self.name))
        return info.state.last_seq

    async def keys(self) -> list[str]:
        info = await self._engine.call(lambda js: js.stream_info(self.name, subjects_filter=self.subject("*")))
        return sorted(one.removeprefix(self._prefix) for one in info.state.subjects or {})

    def subject(self, key: str) -> str:
        return f"{self._prefix}{key}"

    def _entry(self, message: RawStreamMsg) -> Entry:
        headers = message.headers or {}
        assert message.subject is not None
        assert message.seq is not None
        return Entry(
            key=message.subject.removeprefix(self._prefix),
            number=message.seq,
            body=None if HEADER_MARKER in headers else message.data or b"",
            message_id=headers.get(HEADER_ID, ""),
            stored_at=message.time.timestamp() if message.time is not None else 0.0,
        )


def _check_absent(error: NotFoundError) -> None:
    """Raise an error if not only a message is absent, but its stream."""
    if error.err_code == NO_STREAM:
        raise EngineUnavailable("the streams of the fleet are gone; the next connection makes them again") from None


class _NatsLog:
    """Log of the fleet (``ports.EventLog``)."""

    def __init__(self, engine: NatsEngine, stream: _Stream) -> None:
        self._engine, self._stream = engine, stream
        self.last, self.end, self.remove_before = stream.last, stream.end, stream.remove_before

    @property
    def body_bytes_max(self) -> int:
        return self._engine.body_bytes_max

    async def append(self, key: str, body: bytes, *, expected: int, message_id: str) -> int:
        return await self._stream.append(key, body, expected, message_id, None)

    async def following(self, number: int, key: str | None = None) -> Entry | None:
        return await self._stream.following(number, key)


class _NatsDirectory:
    """Directory of the fleet (``ports.Directory``)."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self.get, self.keys = stream.last, stream.keys

    async def put(self, key: str, body: bytes, *, expected: int, message_id: str, ttl_s: int | None) -> int:
        return await self._stream.append(key, body, expected, message_id, ttl_s)


class NatsEngine:
    """Engine of one host in a fleet. It connects with the first call, and again after a connection was closed.

    Raises:
        BadFleetOptions: the login or the certificates cannot be read.
    """

    def __init__(self, options: FleetOptions) -> None:
        self._options = options
        self._login = _login_options(options.login())
        self._tls = tls_context(options)
        self._thread = AsyncioThread("fleet")
        self._connecting: asyncio.Lock | None = None
        self._client: Client | None = None
        self._js: JetStreamContext | None = None
        self.body_bytes_max = 1024 * 1024 - MARGIN_BYTES
        self.replicas = 0
        """Number of servers that store each record; 0 until the first connection."""
        log, hosts = (f"supervisor-{options.name}-{part}" for part in ("log", "hosts"))
        self._log = _Stream(self, log, f"supervisor.{options.name}.log.")
        self._hosts = _Stream(self, hosts, f"supervisor.{options.name}.host.")
        self.log = _NatsLog(self, self._log)
        self.directory = _NatsDirectory(self._hosts)

    async def call(self, work: Callable[[JetStreamContext], Coroutine[Any, Any, _T]]) -> _T:
        """Run *work* with a connection, in the thread of the client.

        Raises:
            EngineUnavailable: no server answers.
            EngineRefused: the servers refuse this host.
        """
        return await self._thread.call(partial(self._run, work))

    async def _run(self, work: Callable[[JetStreamContext], Coroutine[Any, Any, _T]]) -> _T:
        try:
            return await work(await self._connected())
        except FleetError:
            raise
        except NotFoundError as error:
            if error.err_code == NO_STREAM:  # deleted by a person: the next call makes it again
                await self._disconnect()
            raise EngineUnavailable(f"the servers do not have what was asked for: {error.description}") from None
        except (nats.errors.Error, OSError) as error:
            raise EngineUnavailable(f"the servers do not answer: {_reason(error)}") from None

    async def now(self) -> float:
        async def ask(js: JetStreamContext) -> float:
            assert self._client is not None
            answer = await self._client.request(f"$JS.API.STREAM.INFO.{self._log.name}", b"", timeout=ANSWER_S)
            return datetime.fromisoformat(msgspec.json.decode(answer.data)["ts"]).timestamp()

        return await self.call(ask)

    async def close(self) -> None:
        with suppress(Exception):  # whatever of the connection is left ends with the thread
            await self._thread.call(self._disconnect)
        self._thread.close()

    # ------------------------------------------------------------------ connection, all in the thread
    async def _connected(self) -> JetStreamContext:
        if self._connecting is None:
            self._connecting = asyncio.Lock()
        async with self._connecting:
            if self._client is None or self._client.is_closed:
                self._js = None
            if self._js is None:
                await self._connect()
            assert self._js is not None
            assert self._client is not None
            js, client = self._js, self._client
        deadline = asyncio.get_running_loop().time() + RECONNECT_S
        while not client.is_connected:  # the library connects again; what is sent meanwhile would only time out
            if asyncio.get_running_loop().time() > deadline:
                raise EngineUnavailable(f"the connection to the servers is lost: {_reason(client.last_error)}")
            await asyncio.sleep(AGAIN_S)
        return js

    async def _connect(self) -> None:
        """Find a server that takes this host; then connect to any of them, and make the streams."""
        await self._disconnect()
        problems: list[str] = []
        for server in self._options.servers:
            client, seen = Client(), list[Exception]()
            try:
                await asyncio.wait_for(self._open(client, [server], seen, allow_reconnect=False), CONNECT_S)
                await _check_server(client, server)
                break
            except EngineRefused:
                raise
            except (nats.errors.Error, OSError, ValueError) as raised:
                # The library says only that there is no server; why is told to its callback.
                error = seen[-1] if seen and isinstance(raised, nats.errors.NoServersError | TimeoutError) else raised
                if _is_refusal(error):
                    raise EngineRefused(f"{server}: {_reason(error)}; {self._login_fix()}") from None
                if isinstance(error, ssl.SSLError):
                    raise EngineRefused(
                        f"{server}: TLS failed: {_reason(error)}; name the file of its authority as ca, and its address"
                        " as in its certificate"
                    ) from None
                problems.append(f"{server}: {_reason(error)}")
            finally:
                await _close(client)
        else:
            raise EngineUnavailable(
                f"no server of the fleet can be reached ({'; '.join(problems)}); start them, or correct the addresses"
            )
        client = Client()
        # Bounded: the library would try for ever if the servers have just gone, and other calls wait for this one.
        opening = self._open(client, list(self._options.servers), [], allow_reconnect=True)
        try:
            await asyncio.wait_for(opening, CONNECT_S * len(self._options.servers))
        except BaseException:
            await _close(client)
            raise
        self._client, js = client, client.jetstream(timeout=ANSWER_S)
        self.body_bytes_max = client.max_payload - MARGIN_BYTES
        await self._prepare(js)
        self._js = js

    async def _open(self, client: Client, servers: list[str], seen: list[Exception], *, allow_reconnect: bool) -> None:
        async def note(error: Exception) -> None:
            seen[:] = [error]  # whoever waits for an answer gets it, too

        await client.connect(
            servers=servers,
            name=f"supervisor {self._options.host_name}",
            allow_reconnect=allow_reconnect,
            max_reconnect_attempts=-1 if allow_reconnect else 1,
            reconnect_time_wait=1,
            connect_timeout=int(CONNECT_S),
            ping_interval=5,
            max_outstanding_pings=2,
            error_cb=note,
            tls=self._tls,
            **self._login,
        )

    def _login_fix(self) -> str:
        if self._options.credentials is None:
            return "name a file with the login as credentials"
        return f"correct the login in {self._options.credentials}"

    async def _prepare(self, js: JetStreamContext) -> None:
        """Make the streams that are not there yet."""
        log = StreamConfig(
            name=self._log.name,
            subjects=[self._log.subject("*")],
            storage=StorageType.FILE,
            compression=StoreCompression.S2,
            duplicate_window=DUPLICATES_S,
            allow_direct=False,
        )
        # The marker of an expired lease is made only where a subject has one message.
        hosts = StreamConfig(
            name=self._hosts.name,
            subjects=[self._hosts.subject("*")],
            storage=StorageType.FILE,
            max_msgs_per_subject=1,
            duplicate_window=DUPLICATES_S,
            allow_direct=False,
            allow_msg_ttl=True,
            subject_delete_marker_ttl=MARKER_S,
        )
        deadline = asyncio.get_running_loop().time() + PREPARE_S
        for config in (log, hosts):
            while True:
                try:
                    self.replicas = await self._make(js, config)
                    break
                except APIError as error:
                    if error.err_code == NO_PEERS:
                        raise EngineRefused(
                            f"the cluster has fewer than {self._options.replicas or 3} servers with JetStream that"
                            " answer; start them, or set replicas: 1"
                        ) from None
                    if (error.code or 0) < 500:
                        raise EngineRefused(f"the stream {config.name} cannot be made: {error.description}") from None
                    problem: Exception = error
                except (nats.errors.Error, OSError) as error:
                    problem = error
                if asyncio.get_running_loop().time() > deadline:
                    raise EngineUnavailable(f"the servers have made no streams in {PREPARE_S:g} s: {_reason(problem)}")
                await asyncio.sleep(AGAIN_S)

    async def _make(self, js: JetStreamContext, config: StreamConfig) -> int:
        """Make a stream unless it is there; return the number of its replicas."""
        try:
            found = await js.stream_info(str(config.name))
            return found.config.num_replicas or 1
        except NotFoundError:
            config.num_replicas = self._options.replicas or 3
        try:
            await js.add_stream(config)
        except APIError as error:
            if error.err_code != NOT_CLUSTERED or self._options.replicas is not None:
                raise
            config.num_replicas = 1
            await js.add_stream(config)
        return config.num_replicas

    async def _disconnect(self) -> None:
        client, self._client, self._js = self._client, None, None
        if client is not None:
            await _close(client)


async def _close(client: Client) -> None:
    """Close a connection. Bounded, since the library waits for ever for the end of one whose TLS handshake failed."""
    with suppress(Exception):
        await asyncio.wait_for(client.close(), CLOSE_S)


async def _check_server(client: Client, server: str) -> None:
    """Check that a server is new enough, and has JetStream for this host.

    Raises:
        EngineRefused: it is not.
    """
    version = client.connected_server_version
    found = (version.major, version.minor)
    if found < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise EngineRefused(f"{server}: its version is {found[0]}.{found[1]}; a fleet needs {needed} or newer")
    try:
        await client.jetstream(timeout=ANSWER_S).account_info()
    except APIError as error:
        if error.code is None or error.code == 503:
            fix = "write `jetstream { store_dir: DIR, sync_interval: always }` into its configuration"
            raise EngineRefused(f"{server}: JetStream is off; {fix}, or enable it for this login's account") from None
        raise EngineRefused(f"{server}: JetStream refuses: {error.description}") from None


def _is_refusal(error: BaseException) -> bool:
    return isinstance(error, nats.errors.AuthorizationError) or bool(
        re.search(r"authoriz|authentic|credential|nkey", str(error), re.IGNORECASE)
    )


def _reason(error: BaseException | None) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return str(error or "closed").removeprefix("nats: ").strip("'") or type(error).__name__


def _login_options(login: Login) -> dict[str, Any]:
    """Return the login as options of the client.

    Raises:
        BadFleetOptions: the library for NATS credentials is not installed.
    """
    if login.credentials is not None:
        if find_spec("nkeys") is None:
            fix = "pip install 'supervisor-runtime[fleet]'"
            raise BadFleetOptions(f"credentials: the library nkeys is not installed; {fix}")
        return {"user_credentials": login.credentials}
    if login.token is not None:
        return {"token": login.token}
    return {"user": login.user, "password": login.password} if login.user is not None else {}


def tls_context(options: FleetOptions) -> ssl.SSLContext | None:
    """Return how servers are checked; ``None`` if no option is about that and no address begins with ``tls:``.

    Raises:
        BadFleetOptions: a file cannot be read, or is no certificate or key.
    """
    if (
        options.ca is None
        and options.certificate is None
        and not any(one.startswith("tls:") for one in options.servers)
    ):
        return None
    field = "ca"
    try:
        context = ssl.create_default_context(cafile=options.ca)
        if options.certificate is not None:
            field = "certificate, key"
            context.load_cert_chain(options.certificate, options.key)
    except OSError as error:  # ssl.SSLError is one
        raise BadFleetOptions(f"{field}: the file cannot be used: {error.strerror or error}") from None
    return context
