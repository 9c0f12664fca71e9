"""Removal of workspaces after their sessions, by a service.

A workspace is queued when the last record of its session is made. The loop removes each workspace in an asynchronous
task of its own. Removals that are queued or under way survive a crash of the loop: the next loop begins them again,
which is harmless. A removal that fails by a bug is logged and not repeated, since it would crash each next loop too;
the workspace then stays until the next start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import anyio

from actors import failpoint
from actors.one_shot_event import WaitGroup
from actors.waiter import ResettableEvent
from supervisor.ports import JournalLost, Released, Workspace
from supervisor.ports.logs import get_logger
from supervisor.ports.shortages import outlast_shortage
from supervisor.sessions.live_session import LiveSession, SessionPhase
from supervisor.sessions.registry import SessionRegistry

_log = get_logger()

REMOVE_S = 60.0
"""Seconds that the removal of a workspace may take, including a commit of all changes that an agent left. A workspace
that is not removed in that time is removed at the next start."""


class WorkspaceCleanup:
    """Queue of workspaces that are to be removed, and the loop that removes them."""

    def __init__(self, registry: SessionRegistry, workspace: Workspace) -> None:
        self._registry = registry
        self._workspace = workspace
        self._open: dict[str, Callable[[], Awaitable[object]]] = {}
        """Removals that are queued or under way, by session; the key ``""`` stands for workspaces that an earlier
        supervisor left."""
        self._queued: list[str] = []
        self._given_up = False
        self._changed, self._removed = ResettableEvent(), ResettableEvent()
        self.clearing = WaitGroup()
        """Counter of the shared workspaces in which the work of a given-up task is being rolled back, or will be: no
        attempt begins there meanwhile. The end of a supervisor does not wait for that: it may take until a disk is
        back."""

    @property
    def needed(self) -> bool:
        """False if sessions work in the directory itself, so that no workspace is removed."""
        return self._workspace.temporary

    async def clean_up(self, session_id: str, message: str) -> Released:
        """Remove the workspace of a session, and return the result. Anything that cannot be removed is left, and
        logged."""
        if isinstance(self._registry.journal_writer.error, JournalLost):
            return Released()
        released = Released(problem=f"the workspace was not removed within {REMOVE_S:g} s")
        with anyio.move_on_after(REMOVE_S, shield=True):
            try:
                released = await outlast_shortage(partial(self._workspace.clean_up, session_id, message))
            except OSError as error:
                released = Released(problem=str(error))
                _log.warning("the workspace of a session could not be removed", session=session_id, why=str(error))
        if released.branch or released.directory:
            left = {"branch": released.branch, "directory": released.directory}
            _log.info("work is left that is not merged", session=session_id, **left)
        return released

    def remove_after(self, session: LiveSession) -> None:
        """Queue the removal of a root session's workspace for the time after the session's last record, unless the
        specification of the workspace says that it is kept."""
        if self.needed and session.root_id == session.session_id:
            session.reached(SessionPhase.RECORDED).then(lambda: self._remove_recorded(session))

    def _remove_recorded(self, session: LiveSession) -> None:
        if not session.workspace_spec.kept:
            session_id = session.session_id
            self._queue(session_id, partial(self.clean_up, session_id, f"Uncommitted changes of session {session_id}"))

    def remove_left(self) -> None:
        """Queue the removal of workspaces that an earlier supervisor left, and whose sessions are not alive any
        more."""
        if self.needed:
            self._queue("", self._remove_left)

    async def _remove_left(self) -> None:
        for session_id in await self._workspace.list_sessions():
            if session_id not in self._registry.sessions:
                await self.clean_up(session_id, f"Uncommitted changes of session {session_id}")

    def _queue(self, session_id: str, remove: Callable[[], Awaitable[object]]) -> None:
        if self._given_up:  # the sessions that the failure of the services ends come here after it
            _log.error("a workspace is left: the next start removes it", session=session_id)
            return
        self._open[session_id] = remove
        self._queued.append(session_id)
        self._changed.set()

    # ------------------------------------------------------------------ the service
    async def run(self) -> None:
        """Remove queued workspaces until cancelled. This is the loop of a service."""
        self._queued = list(self._open)  # with those that the crash of an earlier loop has interrupted
        self._changed.set()
        async with anyio.create_task_group() as group:
            while True:
                await self._changed.wait()
                self._changed.clear()
                failpoint.crash("service", "cleanup")
                queued, self._queued = self._queued, []
                for session_id in queued:
                    group.start_soon(self._remove, session_id)

    async def _remove(self, session_id: str) -> None:
        try:
            await self._open[session_id]()
        except Exception as error:
            _log.error("the removal of a workspace failed", session=session_id, error=repr(error), exc_info=error)
        self._open.pop(session_id, None)  # the loop before, or give_up, may have dropped it
        self._removed.set()

    async def wait_until_done(self) -> None:
        """Wait until every queued workspace is removed, or until :meth:`give_up` is called."""
        while self._open:
            self._removed.clear()
            await self._removed.wait()

    def give_up(self) -> None:
        """Drop all removals, queued and later ones, since the service does not run any more. The next start removes the
        workspaces."""
        self._given_up = True
        if self._open:
            _log.error("workspaces are left: the next start removes them", sessions=[*self._open])
        self._open.clear()
        self._removed.set()
