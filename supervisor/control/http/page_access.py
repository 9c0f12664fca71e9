"""The page for people: its files, its one-time links, its cookies, and its listening socket on loopback.

Theory of operation
-------------------
A supervisor listens on no TCP port of its own accord. ``supervisor ui`` asks for a link over the control socket, where
the kernel names the caller and an agent is refused. Then the supervisor listens on 127.0.0.1, on a free port::

    http://127.0.0.1:PORT/#SECRET      a browser sends nothing that follows "#": the secret is in no log, no Referer
    POST /session {"secret": ...}      sets the cookie; the secret is void then, and after LINK_S seconds
    GET  /api/v1/...                   the cookie, and Sec-Fetch-Site: same-origin
    POST /api/v1/...                   the same, and an Origin of this host

All ports of 127.0.0.1 are one *site*, and share their cookies: ``SameSite=Strict`` alone would let the page of another
port send requests, and two supervisors would overwrite each other's cookie. So the headers of the browser must say that
the request comes from this origin, and the name of the cookie has the port.

A client is identified as on every TCP socket of a supervisor (``serving``): a program of a session is an agent,
whatever cookie it has read. A supervisor keeps its port and the hashes of its cookies in ``runtime/page``. When it was
killed and is started again, it listens on the same port, and open pages go on. Cookies end after ``COOKIE_S`` seconds.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import socket
import time
from contextlib import suppress
from functools import cache
from mimetypes import guess_type
from pathlib import Path
from typing import Final

from fastapi import APIRouter, FastAPI, Request
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import Response

from supervisor.control.http.callers import CALLER, HttpClient, Scope, client_of
from supervisor.control.http.errors import Problem
from supervisor.control.http.queries import reply
from supervisor.control.http.views import Views
from supervisor.control.roles import Role
from supervisor.ports import Caller, Origin
from supervisor.ports.logs import get_logger
from supervisor.ports.secure_files import write_private
from supervisor.ports.version import installed_version

LINK_S: Final = 600.0
"""Seconds for which a link may be opened."""
COOKIE_S: Final = 7 * 86_400.0
LINKS_MAX: Final = 16
"""Number of links that may wait to be opened; one more voids the oldest."""
COOKIES_MAX: Final = 64
"""Number of browsers that may be let in; one more puts the oldest out."""
HOST: Final = "127.0.0.1"
FOLDER: Final = Path(__file__).parent / "page"
_BUILD: Final = "{build}"
"""Text in ``index.html`` that stands for the build; in front of every address of a file."""
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
FIX: Final = "run `supervisor ui` and open the link that it prints"
_log = get_logger()


class PageAccess:
    """Links and cookies of one page. *path* is the file in which port and cookies are kept (``None``: they are not
    kept); *role* is what a browser that was let in may do."""

    def __init__(self, path: Path | None, role: Role) -> None:
        self._path, self._role = path, role
        self.port = 0
        self._links: dict[str, float] = {}
        """Hashes of the links that were not opened, with the monotonic times of their ends."""
        self._cookies: dict[str, float] = {}
        """Hashes of the cookies, with the Unix times of their ends."""

    @property
    def cookie_name(self) -> str:
        return f"supervisor-{self.port}"

    def restore(self) -> bool:
        """Read port and cookies of an earlier supervisor; return whether one of the cookies is valid."""
        if self._path is None:
            return False
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):  # damaged: as if it did not exist
            kept = json.loads(self._path.read_text())
            valid = {str(one): float(until) for one, until in kept["cookies"].items() if until > time.time()}
            port = int(kept["port"])
            if not 0 < port < 2**16:
                raise ValueError(port)
            self.port, self._cookies = port, valid
        return bool(self._cookies)

    def make_link(self) -> str:
        """Return the address of the page with a secret that lets one browser in."""
        secret = secrets.token_urlsafe(32)
        self._links[_hash(secret)] = time.monotonic() + LINK_S
        while len(self._links) > LINKS_MAX:
            del self._links[next(iter(self._links))]
        return f"http://{HOST}:{self.port}/#{secret}"

    def redeem(self, secret: str) -> str:
        """Return a cookie for the secret of a link, which is void from now on.

        Raises:
            Problem: the link was opened before, or is too old.
        """
        if self._links.pop(_hash(secret), 0.0) < time.monotonic():
            raise Problem(401, f"secret: the link was opened before, or is older than {LINK_S / 60:g} min; {FIX}")
        cookie = secrets.token_urlsafe(32)
        self._cookies[_hash(cookie)] = time.time() + COOKIE_S
        while len(self._cookies) > COOKIES_MAX:
            del self._cookies[next(iter(self._cookies))]
        if self._path is not None:
            try:
                write_private(self._path, json.dumps({"port": self.port, "cookies": self._cookies}))
            except OSError as error:
                _log.warning("the page will need a new link after a restart", why=str(error))
        return cookie

    def identify(self, scope: Scope, caller: Caller) -> HttpClient:
        """Return the sender of a request with a cookie.

        Raises:
            Problem: the request does not come from the page, or the cookie is not valid.
        """
        headers = Headers(scope=scope)  # type: ignore[arg-type]
        check_host(headers)
        if headers.get("sec-fetch-site") != "same-origin":
            raise Problem(403, f"Sec-Fetch-Site: the request is not of the page; {FIX}")
        if scope["method"] not in ("GET", "HEAD") and "origin" not in headers:
            raise Problem(403, "Origin: missing; the page of this supervisor sends it, and nobody else may command")
        known = _hash(_cookie(headers, self.cookie_name))
        if self._cookies.get(known, 0.0) < time.time():
            raise Problem(401, f"Cookie: this browser was not let in, or too long ago; {FIX}")
        return HttpClient(caller, self._role, "page", f"page {known}")


def check_host(headers: Headers) -> None:
    """Raise a Problem for a request to another name than those of loopback: a foreign name may lead here, too."""
    host = headers.get("host", "")
    if host.rpartition(":")[0] not in (HOST, "localhost"):
        raise Problem(403, f"Host: {host!r:.100} is no name of this page; use http://{HOST}")


def _cookie(headers: Headers, name: str) -> str:
    # Not by http.cookies, which gives up the whole header at the first cookie that it cannot read: those of every port
    # of this host come along.
    return cookie_parser(headers.get("cookie", "")).get(name, "")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


# ---------------------------------------------------------------------------------------------------------- routes
@cache
def _files() -> tuple[str, dict[str, bytes]]:
    """Return the build, which changes with every file of the page, and the files."""
    files = {str(one.relative_to(FOLDER)): one.read_bytes() for one in sorted(FOLDER.rglob("*")) if one.is_file()}
    digest = hashlib.sha256(b"".join(name.encode() + body for name, body in files.items())).hexdigest()
    return digest[:12], files


router = APIRouter(include_in_schema=False)


@router.get("/")
def index() -> Response:
    """Return the page, whose files have addresses with the build: none of another build is mixed in."""
    build, files = _files()
    body = files["index.html"].replace(_BUILD.encode(), build.encode())
    return Response(body, headers={**_HEADERS, "Cache-Control": "no-store"}, media_type="text/html")


@router.get("/page/{build}/{name:path}")
def file(build: str, name: str) -> Response:
    """Return a file of the page."""
    current, files = _files()
    if build != current or name not in files:
        raise Problem(404, f"{name!r:.100}: no file of this version of the page; reload the page")
    kind = "text/javascript" if name.endswith(".js") else guess_type(name)[0] or "text/plain"
    cached = "max-age=604800, immutable"
    return Response(files[name], headers={**_HEADERS, "Cache-Control": cached}, media_type=kind)


@router.post("/session")
async def let_in(request: Request) -> Response:
    """Exchange the secret of a link for the cookie."""
    check_host(request.headers)
    if "origin" not in request.headers:
        raise Problem(403, f"Origin: missing; {FIX}")
    caller: Caller = request.scope[CALLER]
    if caller.origin is Origin.AGENT:
        raise Problem(403, f"process {caller.pid} is a program of this supervisor's; the page is for people")
    access: PageAccess = request.app.state.page
    try:
        given = await request.json()
    except ValueError:
        raise Problem(422, "body: is no JSON; send an object with the key secret") from None
    cookie = access.redeem(str(given.get("secret", "")) if isinstance(given, dict) else "")
    attributes = f"Path=/; Max-Age={COOKIE_S:.0f}; HttpOnly; SameSite=Strict"
    return Response(status_code=204, headers={"Set-Cookie": f"{access.cookie_name}={cookie}; {attributes}"})


@router.get("/api/v1/page")
def state(request: Request) -> Response:
    """Return what the page must know before it reads anything else."""
    views: Views = request.app.state.views
    return reply(
        {
            "build": _files()[0],
            "version": installed_version(),
            "live": request.app.state.supervisor is not None,
            "seq": views.last_seq(),
            "now": time.time(),
            "directory": views.directory,
            "identified": client_of(request).caller.origin is Origin.OPERATOR,
        }
    )


def add_page(app: FastAPI, access: PageAccess) -> None:
    """Add the routes of the page to *app*."""
    app.state.page = access
    app.include_router(router)


def bind(port: int) -> socket.socket:
    """Return a socket that listens on loopback; with *port* 0 on a free port.

    Raises:
        OSError: the port is in use, or no file descriptor is left.
    """
    bound = socket.create_server((HOST, port), backlog=128)
    bound.setblocking(False)
    return bound
