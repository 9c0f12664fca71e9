"""Service of the page: it listens on loopback from the first link on, and again when pages are open after a restart."""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from supervisor.control.http.page_access import FIX, PageAccess, bind
from supervisor.control.http.serving import serve_page
from supervisor.control.roles import Role
from supervisor.host.api import Supervisor
from supervisor.host.supervision import SupervisorCore
from supervisor.ports.logs import get_logger

_log = get_logger()


class PageService:
    """The page of one running supervisor: it listens from the first link on."""

    def __init__(self, core: SupervisorCore) -> None:
        path = Path(core.state_dir) / "runtime" / "page" if core.state_dir else None
        self._core, self._access = core, PageAccess(path, Role.OPERATE)
        self._socket: socket.socket | None = None
        self._lock = anyio.Lock()

    async def make_link(self, sup: Supervisor) -> str:
        """Return a new link; listen if nobody does.

        Raises:
            OSError: no port can be bound.
        """
        async with self._lock:
            if self._socket is None:
                await self._listen(sup, 0)
        return self._access.make_link()

    async def resume(self, sup: Supervisor) -> None:
        """Listen on the port of an earlier supervisor, if a browser has a valid cookie for it."""
        async with self._lock:
            if not await anyio.to_thread.run_sync(self._access.restore):
                return
            try:
                await self._listen(sup, self._access.port)
            except OSError as error:
                _log.warning("open pages are lost", port=self._access.port, why=str(error), fix=FIX)

    async def _listen(self, sup: Supervisor, port: int) -> None:
        bound = bind(port)
        self._access.port = bound.getsockname()[1]
        try:
            await self._core.services.start("page", partial(self._serve, sup, bound))
        except BaseException:
            bound.close()
            raise
        self._socket = bound

    async def _serve(
        self, sup: Supervisor, bound: socket.socket, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        try:
            await serve_page(sup, bound, self._access, closing=self._core.services.closing, task_status=task_status)
        except Exception:
            raise  # a new incarnation serves the same socket
        except BaseException:
            bound.close()
            raise
        bound.close()
