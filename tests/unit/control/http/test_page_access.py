"""Links, cookies and the socket of the page: who is let in, and what stays when the supervisor is started again."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from httpx2 import AsyncClient

from supervisor import Supervisor, open_supervisor
from supervisor.control.http import page_access
from supervisor.control.http.errors import Problem
from supervisor.control.http.page_access import LINKS_MAX, PageAccess
from supervisor.control.roles import Role
from supervisor.ports import Caller, Origin
from tests.support import DEADLINE_S, quick_settings
from tests.unit.control.http.http_kit import error, helpful

pytestmark = [
    pytest.mark.anyio,
    # Generators within the client library, which it leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]
V1 = "/api/v1"
OPERATOR = Caller(Origin.OPERATOR, 1)


@asynccontextmanager
async def with_page(sd: Path) -> AsyncIterator[tuple[Supervisor, str]]:
    """Run a supervisor; yield it with a link to its page."""
    with anyio.fail_after(DEADLINE_S):
        async with open_supervisor(sd, agents={"helpful": helpful}, settings=quick_settings()) as sup:
            assert sup.core.make_page_link is not None
            try:
                yield sup, await sup.core.make_page_link()
            finally:
                await sup.stop(now=True)


@asynccontextmanager
async def browser(link: str, cookie: str = "") -> AsyncIterator[AsyncClient]:
    """Return a client that sends what a browser sends for the page."""
    address = link.split("/#")[0]
    headers = {"Origin": address, "Sec-Fetch-Site": "same-origin", **({"Cookie": cookie} if cookie else {})}
    async with AsyncClient(base_url=address, headers=headers, timeout=DEADLINE_S) as client:
        yield client


async def let_in(client: AsyncClient, link: str) -> str:
    """Exchange the secret of a link, and return the cookie as a browser sends it."""
    answer = await client.post("/session", json={"secret": link.split("#")[1]})
    assert answer.status_code == 204, answer.text
    given = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {one.strip() for one in given.split(";")}
    client.cookies.clear()
    return str(given.split(";")[0])


async def test_a_browser_is_let_in_once(tmp_path: Path) -> None:
    """The secret of a link gives one cookie; used again it is refused with what to do; so is an unknown cookie."""
    async with with_page(tmp_path / "sd") as (_sup, link), browser(link) as client:
        assert "default-src 'none'" in (await client.get("/")).headers["content-security-policy"]
        error(await client.get(f"{V1}/tree"), 401, "unauthenticated")
        cookie = await let_in(client, link)
        again = await client.post("/session", json={"secret": link.split("#")[1]})
        assert "run `supervisor ui`" in error(again, 401, "unauthenticated")["fix"]
        client.headers["Cookie"] = f'theme={{"mode":"dark"}}; {cookie}'  # that of another program on this host
        assert (await client.get(f"{V1}/tree")).status_code == 200
        assert (await client.get(f"{V1}/page")).json()["live"] is True
        client.headers["Cookie"] = cookie[:-1]
        error(await client.get(f"{V1}/tree"), 401, "unauthenticated")


@pytest.mark.parametrize(
    ("changes", "method"),
    [
        ({"Sec-Fetch-Site": "same-site"}, "GET"),
        ({"Sec-Fetch-Site": "none"}, "GET"),
        ({"Sec-Fetch-Site": None}, "GET"),
        ({"Origin": "http://127.0.0.1:1"}, "POST"),
        ({"Origin": "https://elsewhere.example"}, "POST"),
        ({"Origin": None}, "POST"),
        ({"Host": "elsewhere.example:80", "Origin": "http://elsewhere.example:80"}, "GET"),
    ],
)
async def test_the_cookie_counts_only_for_the_page(tmp_path: Path, changes: dict[str, Any], method: str) -> None:
    """Requests of other ports of this host, of other sites, under other names, and commands without an origin are
    refused, with a valid cookie too."""
    async with with_page(tmp_path / "sd") as (_sup, link), browser(link) as client:
        client.headers["Cookie"] = await let_in(client, link)
        for name, value in changes.items():
            if value is None:
                del client.headers[name]
            else:
                client.headers[name] = value
        path = f"{V1}/tree" if method == "GET" else f"{V1}/aborts"
        body = {} if method == "GET" else {"json": {"id": "a", "scope": "session"}}
        error(await client.request(method, path, **body), 403, "forbidden")


async def test_the_page_steers_and_does_not_administer(tmp_path: Path) -> None:
    """The page may start what an operator may, in its own name; it may not stop the supervisor."""
    async with with_page(tmp_path / "sd") as (sup, link), browser(link) as client:
        client.headers["Cookie"] = await let_in(client, link)
        assert (await client.post(f"{V1}/sessions", json={"name": "lead", "agent": "helpful"})).status_code == 201
        with sup.reader() as reader:
            assert next(reader.events("lead")).actor == "page"
        error(await client.post(f"{V1}/stop", json={}), 403, "forbidden")


async def test_open_pages_go_on_after_a_restart(tmp_path: Path) -> None:
    """The next supervisor listens on the same port and knows the cookie, of which the directory has only a hash."""
    sd = tmp_path / "sd"
    async with with_page(sd) as (_sup, link), browser(link) as client:
        cookie = await let_in(client, link)
    kept = sd / "runtime" / "page"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert cookie.split("=")[1] not in kept.read_text()
    with anyio.fail_after(DEADLINE_S):
        async with open_supervisor(sd, settings=quick_settings()), browser(link, cookie) as client:
            assert (await client.get(f"{V1}/tree")).status_code == 200


async def test_nobody_listens_before_a_link_is_asked_for(tmp_path: Path) -> None:
    """A supervisor has no page until somebody asks for a link."""
    with anyio.fail_after(DEADLINE_S):
        async with open_supervisor(tmp_path / "sd", settings=quick_settings()) as sup:
            assert sup.core.make_page_link is not None
            assert not any(one.__name__ == "PageService" for one in sup.core._parts)


def test_links_and_cookies_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link ends after ten minutes, and when many newer ones were made; a cookie ends after seven days."""
    access = PageAccess(None, Role.READ)
    access.port = 1
    now = {"s": 1_000.0}
    monkeypatch.setattr(page_access.time, "monotonic", lambda: now["s"])
    monkeypatch.setattr(page_access.time, "time", lambda: now["s"])
    old = access.make_link().split("#")[1]
    for _ in range(LINKS_MAX):
        newest = access.make_link().split("#")[1]
    with pytest.raises(Problem, match="opened before, or is older"):
        access.redeem(old)
    scope = {
        "type": "http", "method": "GET",
        "headers": [
            (b"host", b"127.0.0.1:1"), (b"sec-fetch-site", b"same-origin"),
            (b"cookie", f"supervisor-1={access.redeem(newest)}".encode()),
        ],
    }  # fmt: skip
    assert access.identify(scope, OPERATOR).role is Role.READ
    now["s"] += page_access.COOKIE_S + 1
    with pytest.raises(Problem, match="too long ago"):
        access.identify(scope, OPERATOR)
    late = access.make_link().split("#")[1]
    now["s"] += page_access.LINK_S + 1
    with pytest.raises(Problem, match="10 min"):
        access.redeem(late)


def test_a_damaged_file_of_cookies_lets_nobody_in(tmp_path: Path) -> None:
    """Browsers need a new link if the file that is kept between supervisors is damaged."""
    kept = tmp_path / "page"
    cookies = ('"a"', '{"a": "x"}', '{"a": 1}', "[]")
    damaged = ("", "[]", "{", '{"port": "x", "cookies": {"a": 9e9}}', '{"port": 99999, "cookies": {"a": 9e9}}')
    for text in (*damaged, *(f'{{"port": 1, "cookies": {one}}}' for one in cookies)):
        kept.write_text(text)
        assert PageAccess(kept, Role.READ).restore() is False, text
