"""Admission of the HTTP API: what a request must pass before a route sees it, on every server and in every host.

In this order: who sends it (``Identify``), whether it comes from another site, how often this sender asks, how large
and how slow the body is. A request that does not pass is answered with an error, and nothing has begun: the whole body
is here before a route is called. A HEAD request is answered with the headers of the GET, at once, also for a stream. An
exception that no handler has answered is answered here.

Requests to the webhooks of triggers (``/hooks/NAME``) need no token: their senders sign them. How often an address
sends them, and how large they are, is checked before anybody looks at a signature; what is refused is on record. A
program that the supervisor has started is refused whatever it has signed.

A response that is not read is cut off: each piece of it has ``STALL_S`` seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import anyio
import anyio.lowlevel
from starlette.datastructures import Headers

from supervisor.control.http.callers import CLIENT, HttpClient, Identify, Scope
from supervisor.control.http.errors import Problem, problem_of
from supervisor.control.roles import Role
from supervisor.control.server import LINE_BYTES_MAX
from supervisor.plans.daemon_control import Hooks
from supervisor.ports import Origin
from supervisor.ports.logs import get_logger

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Any, Receive, Send], Awaitable[None]]

BODY_BYTES_MAX: Final = LINE_BYTES_MAX
BODY_S: Final = 30.0
"""Seconds within which the whole body of a request must arrive."""
STALL_S: Final = 10.0
HOOKS: Final = "/hooks/"
"""Prefix of the paths of webhooks."""
OPEN_PATHS: Final = frozenset({"/livez", "/readyz", "/docs", "/openapi.json"})
"""Paths that need no token: they say nothing about what the supervisor does."""
PAGE_PATHS: Final = frozenset({"/", "/session"})
_TOKEN_NAMES: Final = frozenset({"token", "access_token", "api_key", "key"})
SENDERS_MAX: Final = 1_024
"""Number of senders whose rates are remembered; the sender that was silent for longest is forgotten first."""

_log = get_logger()


def path_of(scope: Scope) -> str:
    """Return the path of a request below the place at which the app is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def is_hook(scope: Scope) -> bool:
    """Return whether a request is a delivery to a webhook."""
    return scope["method"] == "POST" and path_of(scope).startswith(HOOKS)


class RateLimit:
    """Limit of the requests of each sender: *per_s* on average, and *burst* at once."""

    def __init__(self, per_s: float = 200.0, burst: int = 400) -> None:
        self._per_s, self._burst = per_s, float(burst)
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, key: str, now: float) -> None:
        """Count a request of the sender *key* at *now*, in seconds.

        Raises:
            Problem: the sender has sent too many.
        """
        left, at = self._left.pop(key, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_s)
        self._left[key] = (max(left - 1.0, 0.0), now)
        while len(self._left) > SENDERS_MAX:
            self._left.popitem(last=False)
        if left < 1.0:
            raise Problem(429, "too many requests; wait a second, then send fewer", headers={"Retry-After": "1"})


class Admission:
    """ASGI middleware. *origins* are the sites of other hosts whose pages may send requests; *rate* limits senders;
    *has_page*: the files of the page, and the exchange of a link for a cookie, need neither token nor cookie; *hooks*
    returns the webhooks that there are now."""

    def __init__(
        self,
        app: Asgi,
        identify: Identify,
        *,
        origins: Collection[str] = (),
        rate: RateLimit | None = None,
        has_page: bool = False,
        hooks: Callable[[], Hooks | None] = lambda: None,
    ) -> None:
        self._app, self._identify = app, identify
        self._origins, self._rate, self._has_page = frozenset(origins), rate, has_page
        self._hooks, self._hook_rates = hooks, dict[int, RateLimit]()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._serve(scope, receive, _Sender(send, is_head=scope["method"] == "HEAD"))
            case "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1008})
            case _:
                await self._app(scope, receive, send)

    async def _serve(self, scope: Any, receive: Receive, sender: _Sender) -> None:
        try:
            client = self._admitted(scope)
            body = (
                await self._read_hook(scope, receive, client)
                if client is not None and is_hook(scope)
                else await _read_body(scope, receive)
            )
            if body is None:
                return
            method = "GET" if sender.is_head else scope["method"]
            with sender.scope:
                await self._app({**scope, "method": method, CLIENT: client}, _replay(body, receive), sender.send)
        except Exception as error:
            problem = problem_of(error) if not sender.has_started else None
            if problem is not None:
                await problem.response()(scope, receive, sender.send)

    def _admitted(self, scope: Any) -> HttpClient | None:
        headers = Headers(scope=scope)
        if any(name.lower() in _TOKEN_NAMES for name, _ in parse_qsl(scope["query_string"].decode("latin-1"))):
            raise Problem(400, "Authorization: a token in a URL ends in logs; send it in this header, as Bearer TOKEN")
        self._check_origin(headers)
        path = path_of(scope)
        if path in OPEN_PATHS or (self._has_page and (path in PAGE_PATHS or path.startswith("/page/"))):
            if self._rate is not None:
                self._rate.check(f"open {(scope.get('client') or ('',))[0]}", anyio.current_time())
            return None
        client = self._identify(scope)
        if self._rate is not None:
            self._rate.check(client.key, anyio.current_time())
        client.check(Role.READ, "this path")
        return client

    async def _read_hook(self, scope: Any, receive: Receive, client: HttpClient) -> bytes | None:
        """Return the body of a request to a webhook, within its own limits; ``None`` if the client has left.

        Raises:
            Problem: there is no such webhook, an agent sends the request, or it is too much.
        """
        name, hooks = path_of(scope).removeprefix(HOOKS), self._hooks()
        limits = hooks.limits(name) if hooks is not None else None
        if hooks is None or limits is None:
            if hooks is not None:
                hooks.note_unknown(name)
            raise Problem(404, "there is no webhook of that name; its trigger is in config/triggers.yaml")
        per_minute = limits.requests_per_minute
        rate = self._hook_rates.setdefault(per_minute, RateLimit(per_s=per_minute / 60, burst=per_minute))
        try:
            if client.caller.origin is Origin.AGENT:
                raise Problem(
                    403, "webhooks are for senders outside; an agent of this supervisor starts no plan by them"
                )
            rate.check(f"{name} {(scope.get('client') or ('',))[0]}", anyio.current_time())
            return await _read_body(scope, receive, limits.bytes_max)
        except Problem as problem:
            hooks.note_refused(name, f"refused unread with status {problem.status}: {problem}")
            raise

    def _check_origin(self, headers: Headers) -> None:
        """Raise a Problem for a request of a page of another site: a browser adds its credentials to such requests."""
        origin = headers.get("origin")
        if origin is None:
            if headers.get("sec-fetch-site") == "cross-site":
                raise Problem(403, "Origin: the request comes from another site; only configured origins are allowed")
            return
        if origin not in self._origins and urlsplit(origin).netloc != headers.get("host", ""):
            raise Problem(403, f"Origin: {origin!r:.100} is another site; only configured origins are allowed")


class _Sender:
    """The side of a request on which the response is sent. Cancelling ``scope`` ends the request without another word:
    the server closes the connection, since the response is not complete."""

    def __init__(self, send: Send, *, is_head: bool) -> None:
        self._send, self.is_head = send, is_head
        self.has_started = False
        self.scope = anyio.CancelScope()

    async def send(self, message: Message) -> None:
        if self.is_head and self.has_started:
            return
        self.has_started = True
        with anyio.move_on_after(STALL_S) as waited:
            await self._send(message)
            if self.is_head:
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        if waited.cancelled_caught:
            _log.warning("a client of the HTTP API does not read, and is disconnected")
        if waited.cancelled_caught or self.is_head:
            self.scope.cancel()
            await anyio.lowlevel.checkpoint()  # the route goes on nowhere


async def _read_body(scope: Any, receive: Receive, bytes_max: int = BODY_BYTES_MAX) -> bytes | None:
    """Return the body of a request; ``None`` if the client has left.

    Raises:
        Problem: the body is too large, or too slow.
    """
    announced = Headers(scope=scope).get("content-length", "0")
    too_large = Problem(413, f"body: is larger than {bytes_max} bytes; send less", headers={"Connection": "close"})
    if not announced.isdigit() or int(announced[:20]) > bytes_max:
        raise too_large
    body = bytearray()
    with anyio.move_on_after(BODY_S):
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > bytes_max:
                raise too_large
            if not message.get("more_body", False):
                return bytes(body)
    raise Problem(408, f"body: did not arrive within {BODY_S:g} s; send it at once", headers={"Connection": "close"})


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that gives the body that was read, and then what comes."""
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
