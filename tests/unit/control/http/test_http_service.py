"""The HTTP service on real sockets: the same API on a Unix socket, over TCP and in a host; bad clients; its end."""

from __future__ import annotations

import json
import socket
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import hypercorn.asyncio
import hypercorn.trio
import pytest
from fastapi import FastAPI
from httpx2 import AsyncClient, AsyncHTTPTransport, TransportError

from actors import failpoint
from supervisor import AgentConfig, HttpOptions, Supervisor, create_app, open_supervisor
from supervisor.control.http import admission, serving
from supervisor.control.http.options import BadHttpOptions, TokenFile
from supervisor.control.roles import Role
from tests.support import DEADLINE_S, quick_settings
from tests.unit.control.http.http_kit import error, free_port, over_unix, supervised, tokens_of, unix_client

pytestmark = [
    pytest.mark.anyio,
    # Generators within the client library, which it leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]

V1 = "/api/v1"


@asynccontextmanager
async def over_tcp(sd: Path, role: str = "admin") -> AsyncIterator[tuple[Supervisor, AsyncClient]]:
    port, file = free_port(), sd.parent / "tokens"
    options = HttpOptions(listen=f"127.0.0.1:{port}", token_file=str(file))
    async with supervised(sd, http=options) as sup:
        headers = {"Authorization": f"Bearer {tokens_of(file)[role]}"}
        async with AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=DEADLINE_S) as client:
            yield sup, client


@asynccontextmanager
async def in_host(sd: Path) -> AsyncIterator[tuple[Supervisor, AsyncClient]]:
    """Mount the app in the FastAPI app of a host, which hypercorn serves as it is."""
    path, ended = sd.parent / "host.sock", anyio.Event()
    async with supervised(sd) as sup, anyio.create_task_group() as group:
        host = FastAPI()
        host.mount("/sup", create_app(sup, closing=ended.wait))
        config = hypercorn.Config()
        config.bind, config.graceful_timeout = [f"unix:{path}"], 1.0
        config.errorlog = None
        is_trio = "trio" in str(anyio.get_cancelled_exc_class())
        serve: Any = hypercorn.trio.serve if is_trio else hypercorn.asyncio.serve

        async def serve_host() -> None:
            await serve(host, config, shutdown_trigger=ended.wait)

        group.start_soon(serve_host)
        while not path.exists():
            await anyio.lowlevel.checkpoint()
        transport = AsyncHTTPTransport(uds=str(path), retries=20)
        async with AsyncClient(transport=transport, base_url="http://localhost/sup", timeout=DEADLINE_S) as client:
            yield sup, client
        ended.set()


# ------------------------------------------------------------------------------------------------------- the API
@pytest.mark.parametrize("reached", [over_unix, over_tcp, in_host])
async def test_the_api_is_the_same_wherever_it_is_reached(tmp_path: Path, reached: Any) -> None:
    """The same requests have the same results over the Unix socket, over TCP, and in the app of a host."""
    async with reached(tmp_path / "sd") as (sup, client):
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        started = await client.post(f"{V1}/sessions", json={"name": "lead", "agent": "helpful"})
        assert (started.status_code, started.json()) == (201, {"session": "lead"})
        done = await client.post(f"{V1}/sessions/lead/prompts", json={"text": "one", "wait": True})
        assert done.json()["result"]["text"] == "one: done"
        assert [one["id"] for one in (await client.get(f"{V1}/tree")).json()["nodes"]] == ["lead"]
        assert "one" in (await client.get(f"{V1}/transcripts/lead")).json()["text"]
        async with client.stream("GET", f"{V1}/events", params={"after": 0}) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            with sup.reader() as reader:
                wanted = [one.seq for one in reader.events()]
            seen: list[int] = []
            async with aclosing(stream.aiter_lines()) as lines:
                async for line in lines:
                    if line.startswith("id: "):
                        seen.append(int(line[4:]))
                    if len(seen) == len(wanted):
                        break
            assert seen == wanted
        plan = (await client.post(f"{V1}/aborts", json={"id": "lead", "scope": "session"})).json()["plan"]
        assert (await client.post(f"{V1}/aborts/{plan['id']}")).json()["receipt"]["survivors"] == 0
        error(await client.get(f"{V1}/sessions/nobody"), 404, "unknown")
        assert (await client.head(f"{V1}/events")).status_code == 200
        assert (await client.get("/openapi.json")).json()["info"]["title"] == "supervisor"
        assert (await client.post(f"{V1}/stop", json={})).status_code == 202
        assert sup.stopping.is_set()


async def test_the_socket_is_ours_alone_and_gone_at_the_end(tmp_path: Path) -> None:
    """The Unix socket has mode 0600; it is removed at the end, and a dead one is replaced."""
    sd = tmp_path / "sd"
    path = sd / "runtime" / "http.sock"
    for _ in range(2):
        async with over_unix(sd) as (_sup, client):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert (await client.get("/livez")).status_code == 200
        assert not path.exists()
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))  # as a killed supervisor leaves it


async def test_a_living_socket_is_never_replaced(tmp_path: Path) -> None:
    """If another process serves the path, or the port is in use, the supervisor does not open, and nothing changes."""
    sd = tmp_path / "sd"
    (sd / "runtime").mkdir(parents=True)
    path = sd / "runtime" / "http.sock"
    with socket.socket(socket.AF_UNIX) as living, socket.create_server(("127.0.0.1", 0)) as taken:
        living.bind(str(path))
        living.listen()
        inode = path.stat().st_ino
        with pytest.raises(BadHttpOptions, match="another process serves it"):
            async with supervised(sd, http=True):
                raise AssertionError("it must not open")
        assert path.stat().st_ino == inode
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(BadHttpOptions, match=f"listen: {address} is in use"):
            async with supervised(sd, http=HttpOptions(listen=address, token_file=str(tmp_path / "t"))):
                raise AssertionError("it must not open")


async def test_a_crash_of_the_service_is_not_noticed_by_sessions(tmp_path: Path) -> None:
    """When the accept loop crashes it is started again on the same sockets, and the session goes on."""
    async with over_unix(tmp_path / "sd") as (sup, client):
        session = await sup.start_session("lead", agent="helpful")
        assert (await client.get("/livez")).status_code == 200

        crashed: list[str] = []

        def decide(name: str, subject: str) -> bool:
            if (name, subject) != ("service", "http") or crashed:
                return False
            crashed.append(subject)
            return True

        with failpoint.controlled_by(decide):  # the loop passes the point once it has accepted a client
            with suppress(TransportError):
                async with unix_client(tmp_path / "sd") as cut:
                    await cut.get("/livez")
            assert crashed
        assert (await session.run("two")).ok
        async with unix_client(tmp_path / "sd") as other:
            assert (await other.get("/readyz")).status_code == 200


# ------------------------------------------------------------------------------------------------------- callers
async def test_over_tcp_a_token_decides(tmp_path: Path) -> None:
    """Without a valid token only health and the document are open; the role of the token bounds what it may do."""
    async with over_tcp(tmp_path / "sd", "operate") as (sup, client):
        for path in ("/livez", "/readyz", "/openapi.json", "/docs"):
            assert (await client.get(path, headers={"Authorization": ""})).status_code == 200
        error(await client.get("/metrics", headers={"Authorization": ""}), 401, "unauthenticated")
        for given in ("", "Bearer wrong", "Basic abc", "Bearer"):
            refused = await client.get(f"{V1}/tree", headers={"Authorization": given})
            assert error(refused, 401, "unauthenticated")["field"] == "Authorization"
            assert refused.headers["www-authenticate"] == "Bearer"
        error(await client.get(f"{V1}/tree", headers={"Host": "evil.example"}), 403, "forbidden")
        error(await client.get(f"{V1}/tree", headers={"Origin": "https://evil.example"}), 403, "forbidden")
        assert (await client.post(f"{V1}/sessions", json={"name": "lead", "agent": "helpful"})).status_code == 201
        error(await client.post(f"{V1}/stop"), 403, "forbidden")
        assert not sup.stopping.is_set()
        statuses = [
            (await client.get(f"{V1}/tree", headers={"Authorization": "Bearer guess"})).status_code for _ in range(30)
        ]
        assert statuses[-1] == 429  # a guesser is slowed down


async def test_removed_tokens_are_not_valid_after_a_reload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload reads the token file again: a removed token is refused, and its event stream is cut off; a file that
    cannot be used changes nothing."""
    monkeypatch.setattr(serving, "_WATCH_S", 0.01)
    file = tmp_path / "tokens"
    async with over_tcp(tmp_path / "sd", "read") as (sup, client):
        file.write_text("admin short\n")
        with pytest.raises(BadHttpOptions, match="is no token"):
            sup.reload_tokens()
        async with client.stream("GET", f"{V1}/events") as stream:
            async with aclosing(stream.aiter_lines()) as lines:
                while "snapshot" not in await anext(lines):
                    pass
                file.write_text(f"admin {'x' * 32}\n")
                assert sup.reload_tokens()
                with pytest.raises((TransportError, StopAsyncIteration)):
                    while True:
                        await anext(lines)
        error(await client.get(f"{V1}/tree"), 401, "unauthenticated")
        assert (await client.get(f"{V1}/tree", headers={"Authorization": f"Bearer {'x' * 32}"})).status_code == 200


AGENT = """\
import json, pathlib, sys, urllib.request
port, token = sys.argv[1:]
def ask(method, path, body=None):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/v1/{path}", body, method=method)
    request.add_header("Authorization", "Bearer " + token)
    request.add_header("Content-Type", "application/json")
    try:
        return urllib.request.urlopen(request, timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code
found = [ask("GET", "tree"), ask("POST", "stop", b"{}"), ask("POST", "sessions", b'{"name": "x", "agent": "sh"}')]
pathlib.Path("found.json").write_text(json.dumps(found))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the process is looked up in /proc")
async def test_an_agent_with_the_token_of_an_admin_is_an_agent(tmp_path: Path) -> None:
    """A program of an agent that has read the token file may read over TCP, and nothing else; the host may do all."""
    port, file = free_port(), tmp_path / "tokens"
    options = HttpOptions(listen=f"127.0.0.1:{port}", token_file=str(file))
    agents = {"sh": AgentConfig(adapter="command", command=["sh"])}
    (tmp_path / "agent.py").write_text(AGENT)
    with anyio.fail_after(DEADLINE_S):
        async with open_programs(tmp_path, agents, options) as sup:
            token = tokens_of(file)["admin"]
            session = await sup.start_session("lead", agent="sh")
            result = await session.run(f"{sys.executable} {tmp_path}/agent.py {port} {token}")
            assert result.ok, result
            assert json.loads((tmp_path / "found.json").read_text()) == [200, 403, 403]
            assert not sup.stopping.is_set()
            headers = {"Authorization": f"Bearer {token}"}
            async with AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:
                assert (await client.post(f"{V1}/stop", json={"now": True})).status_code == 202


@asynccontextmanager
async def open_programs(directory: Path, agents: Any, options: HttpOptions) -> AsyncIterator[Supervisor]:
    """Run a supervisor with agents that are programs."""
    given: dict[str, Any] = {"agents": agents, "settings": quick_settings(), "workdir": directory, "control": False}
    async with open_supervisor(directory / "sd", http=options, **given) as sup:
        try:
            yield sup
        finally:
            await sup.stop(now=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"listen": "127.0.0.1"}, "listen: '127.0.0.1' is no address; give HOST:PORT"),
        ({"listen": "127.0.0.1:80"}, "token_file: missing"),
        ({"listen": "0.0.0.0:80", "token_file": "t"}, "listen: '0.0.0.0:80' is no loopback address"),
        ({"listen": "127.0.0.1:80", "token_file": "t", "certificate": "c"}, "certificate, key: one is given"),
        ({"token_file": "t"}, "listen: missing"),
    ],
)
def test_options_that_would_be_unsafe_are_refused(given: dict[str, str], message: str) -> None:
    """Options that contradict each other, or would send tokens in the clear, are refused with field and fix."""
    with pytest.raises(BadHttpOptions) as refused:
        HttpOptions(**given)  # type: ignore[arg-type]
    assert str(refused.value).startswith(message)
    HttpOptions(listen="0.0.0.0:80", token_file="t", behind_proxy=True)


def test_the_token_file_is_private(tmp_path: Path) -> None:
    """A missing token file is made with a token for each role, readable for the owner only; an open one is refused."""
    path = tmp_path / "tokens"
    tokens = TokenFile(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {tokens.role_of(token) for token in tokens_of(path).values()} == set(Role)
    assert (tokens.role_of("x"), tokens.role_of("")) == (None, None)
    path.chmod(0o644)
    with pytest.raises(BadHttpOptions, match="chmod 600"):
        TokenFile(path)
    path.chmod(0o600)
    path.write_text("admin short\n")
    with pytest.raises(BadHttpOptions, match=r"line 1 of .* is no token; give ROLE TOKEN"):
        TokenFile(path)


# --------------------------------------------------------------------------------------------------- bad clients
async def raw(sd: Path, data: bytes) -> bytes:
    """Send *data* to the Unix socket, and return everything that comes until the connection is closed."""
    found = b""
    async with await anyio.connect_unix(sd / "runtime" / "http.sock") as stream:
        with suppress(anyio.BrokenResourceError):
            await stream.send(data)
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                found += await stream.receive()
    return found


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /" + b"x" * 1_000_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"X: " + b"x" * 1_000_000 + b"\r\n\r\n", 431),
        (b"POST /api/v1/stop HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"POST /api/v1/stop HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET /api/v1/tree HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 200),
    ],
)
async def test_malformed_and_oversized_requests_are_refused(tmp_path: Path, data: bytes, status: int) -> None:
    """A request that is malformed or too large has the right status; nothing is started, and the service goes on."""
    async with over_unix(tmp_path / "sd") as (sup, client):
        found = await raw(tmp_path / "sd", data)
        assert found.startswith(f"HTTP/1.1 {status}".encode()), found[:200]
        assert not sup.stopping.is_set()
        assert (await client.get("/livez")).status_code == 200


async def test_a_slow_body_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request whose body does not arrive in time is answered with 408, and nothing is started."""
    monkeypatch.setattr(admission, "BODY_S", 0.1)
    begin = b"POST /api/v1/stop HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{"
    async with over_unix(tmp_path / "sd") as (sup, _client):
        assert (await raw(tmp_path / "sd", begin)).startswith(b"HTTP/1.1 408")
        assert not sup.stopping.is_set()


async def test_a_slow_head_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not finish its request in time is disconnected."""
    monkeypatch.setattr(serving, "IDLE_S", 0.1)
    async with over_unix(tmp_path / "sd"):
        assert await raw(tmp_path / "sd", b"GET /livez HT") == b""


async def test_too_many_clients_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When all connections are in use the next client is told so; when one is free again, a client is served."""
    monkeypatch.setattr(serving, "CONNECTIONS_MAX", 1)
    async with over_unix(tmp_path / "sd") as (_sup, client):
        assert (await client.get("/livez")).status_code == 200
        assert (await raw(tmp_path / "sd", b"")).startswith(b"HTTP/1.1 503")
        await client.aclose()
        with anyio.fail_after(DEADLINE_S):
            while b"HTTP/1.1 200" not in await raw(
                tmp_path / "sd", b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            ):
                await anyio.lowlevel.checkpoint()
