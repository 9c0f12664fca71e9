"""Page of a journal whose supervisor has ended: the GET routes of the API, without a supervisor."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import anyio
import anyio.to_thread
import hypercorn.asyncio
from hypercorn import Config

from supervisor.control.http.admission import Admission, Receive, Send
from supervisor.control.http.app import make_routes
from supervisor.control.http.callers import CALLER, HttpClient, Scope
from supervisor.control.http.page_access import PageAccess, add_page, bind
from supervisor.control.http.views import Views
from supervisor.control.roles import Role
from supervisor.journal.statedir import StateDir
from supervisor.ports import Caller, Origin, Reader

_READER = Caller(Origin.OPERATOR, 0)
"""Caller of every request: whoever reads a journal could read its file."""


async def serve_journal(
    open_reader: Callable[[], AbstractContextManager[Reader]], state: StateDir, announce: Callable[[str], None]
) -> None:
    """Serve the page of the journal that *open_reader* opens, until the task is cancelled, and call *announce* with the
    link.

    Raises:
        OSError: no port can be bound.
    """
    access = PageAccess(None, Role.READ)

    def identify(scope: Scope) -> HttpClient:
        return access.identify(scope, _READER)

    app = make_routes()
    add_page(app, access)
    app.state.supervisor, app.state.views = None, Views(open_reader, state, supervised=False)
    app.state.streams, app.state.abort_plans = set(), OrderedDict()
    admission = Admission(app, identify, has_page=True)

    async def call(scope: Any, receive: Receive, send: Send) -> None:
        await admission({**scope, CALLER: _READER}, receive, send)

    listener = bind(0)
    access.port = listener.getsockname()[1]
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]  # hypercorn closes it
    config.errorlog = config.accesslog = None
    announce(access.make_link())
    await hypercorn.asyncio.serve(call, config, shutdown_trigger=anyio.sleep_forever)  # type: ignore[arg-type]
