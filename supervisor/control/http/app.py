"""The ASGI app of the HTTP API.

A host mounts the app next to its own routes, or serves it alone; a supervisor serves it on its own sockets
(``serving``). The app holds no state that matters: it can be made again at any time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from supervisor.control.http.admission import Admission, Asgi, RateLimit
from supervisor.control.http.callers import HOST, Identify
from supervisor.control.http.commands import add_commands
from supervisor.control.http.errors import add_error_handlers
from supervisor.control.http.events import router as events_router
from supervisor.control.http.hooks import hooks_of
from supervisor.control.http.hooks import router as hooks_router
from supervisor.control.http.page_access import PageAccess, add_page
from supervisor.control.http.queries import add_queries
from supervisor.control.http.views import Views
from supervisor.host.api import Supervisor
from supervisor.journal.statedir import StateDir
from supervisor.policies.argument_checks import check_type
from supervisor.ports.version import installed_version

_DESCRIPTION: Final = (
    "The HTTP API of a running supervisor of AI agent sessions. Ids look like `lead` (a session), `lead/docs` (its "
    "child session), `lead:t1` (a turn), `lead:t1:c2` (a tool call), `r1` (a run of a plan), `r1#fix` (a task of it; "
    '`#` is `%23` in a path). Every error has the body `{"error": {"code", "message", "field", "fix"}}`.'
)


def create_app(
    sup: Supervisor, *, closing: Callable[[], Awaitable[Any]] | None = None, origins: Sequence[str] = ()
) -> Any:
    """Return the HTTP API of *sup* as an ASGI app, to be mounted in a host's app, or served alone.

    The app lets in whoever reaches it, with all rights: the host decides who does. Requests that a page of another site
    has sent are refused.

    Args:
        closing: async function that returns when your server begins to stop: then the event streams end, since servers
            wait for open responses. By default they end when the supervisor's sessions have ended.
        origins: sites of other hosts, such as ``https://board.example``, whose pages may use the API (CORS).

    Raises:
        TypeError: *sup* is no supervisor.
    """
    check_type("sup", sup, Supervisor)
    return build_app(sup, lambda scope: HOST, closing=closing or sup.core.services.closing.wait, origins=origins)


def build_app(
    sup: Supervisor,
    identify: Identify,
    *,
    closing: Callable[[], Awaitable[Any]],
    origins: Sequence[str] = (),
    rate: RateLimit | None = None,
    page: PageAccess | None = None,
) -> Asgi:
    """Return the HTTP API of *sup*, with senders as *identify* knows them; *closing* ends the event streams; with
    *page* also the page for people."""
    app = make_routes()
    if page is not None:
        add_page(app, page)
    state = StateDir(Path(sup.core.state_dir)) if sup.core.state_dir else None
    app.state.supervisor, app.state.views = sup, Views(sup.reader, state)
    app.state.closing, app.state.streams, app.state.abort_plans = closing, set(), OrderedDict()
    has_page = page is not None
    admission = Admission(app, identify, origins=origins, rate=rate, has_page=has_page, hooks=lambda: hooks_of(sup))
    if not origins:
        return admission
    headers = ["authorization", "content-type", "idempotency-key", "last-event-id"]
    methods = ["GET", "POST", "DELETE"]
    return CORSMiddleware(admission, allow_origins=list(origins), allow_methods=methods, allow_headers=headers)


def make_routes() -> FastAPI:
    """Return the routes, without the state that they work on."""
    app = FastAPI(
        title="supervisor",
        version=installed_version(),
        description=_DESCRIPTION,
        redirect_slashes=False,
        openapi_url=None,  # ``queries`` has this route: the document is made in a thread
    )
    add_error_handlers(app)
    add_queries(app)
    add_commands(app)
    app.include_router(events_router)
    app.include_router(hooks_router)
    return app
