"""Helpers for tests of the HTTP API: a supervisor with function agents, and a client of its app."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from httpx2 import ASGITransport, AsyncClient, AsyncHTTPTransport, Response

from supervisor import AgentTurn, Supervisor, open_supervisor
from supervisor.control.http.app import create_app
from tests.support import DEADLINE_S, quick_settings

BASE = "http://supervisor.test"


async def helpful(turn: AgentTurn) -> str:
    """Agent that makes one call, and hangs in a call if the prompt says so."""
    await turn.call("make test", anyio.lowlevel.checkpoint)
    if "hang" in turn.prompt:
        await turn.call("a test that hangs", anyio.sleep_forever)
    return f"{turn.prompt.splitlines()[-1]}: done"


@asynccontextmanager
async def supervised(state_dir: Path | None = None, **given: Any) -> AsyncIterator[Supervisor]:
    """Run a supervisor with the agent ``helpful``; end it at once when the block is left."""
    with anyio.fail_after(DEADLINE_S):
        async with open_supervisor(
            state_dir, agents={"helpful": helpful}, settings=quick_settings(), control=False, **given
        ) as sup:
            try:
                yield sup
            finally:
                await sup.stop(now=True)


@asynccontextmanager
async def client_of(app: Any) -> AsyncIterator[AsyncClient]:
    """Return a client of an ASGI app, without a server."""
    async with AsyncClient(transport=ASGITransport(app=app), base_url=BASE, timeout=DEADLINE_S) as client:
        yield client


@asynccontextmanager
async def api(state_dir: Path | None = None) -> AsyncIterator[tuple[Supervisor, AsyncClient]]:
    """Run a supervisor, with a client of its mounted app."""
    async with supervised(state_dir) as sup, client_of(create_app(sup)) as client:
        yield sup, client


def error(response: Response, status: int, code: str) -> dict[str, Any]:
    """Assert that a response is the error *code*, and return the error."""
    assert response.status_code == status, response.text
    found = response.json()["error"]
    assert set(found) == {"code", "message", "field", "fix"}
    assert found["code"] == code, found
    return dict(found)


def tokens_of(path: Path) -> dict[str, str]:
    """Return the tokens of a token file, by role."""
    return dict(line.split() for line in path.read_text().splitlines())


@asynccontextmanager
async def over_unix(sd: Path, **given: Any) -> AsyncIterator[tuple[Supervisor, AsyncClient]]:
    async with supervised(sd, http=True, **given) as sup, unix_client(sd) as client:
        yield sup, client


def unix_client(sd: Path) -> AsyncClient:
    transport = AsyncHTTPTransport(uds=str(sd / "runtime" / "http.sock"))
    return AsyncClient(transport=transport, base_url="http://localhost", timeout=DEADLINE_S)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])
