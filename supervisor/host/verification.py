"""The janitor: it checks the work of a session, brings it to where it is for, and clears the place away afterwards.

A task is done when its acceptance tests pass, and closed when its work is merged (spec 000: "Janitor verification
passed + branch merged"). The tests run in the session's own scope: whatever ends the session ends them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import anyio

from actors import ActorStopped
from supervisor.plans.acceptance import AcceptanceResult, AcceptanceTest, Verify, run_acceptance_tests
from supervisor.ports import Changes, JournalLost, Merge, ProcessHost, Released, Workspace, WorkspaceSpec
from supervisor.ports.logs import get_logger
from supervisor.runtime.availability import outlast_shortage
from supervisor.runtime.entity import Refused
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.runtime.live_session import LiveSession, SessionPhase
from supervisor.runtime.one_shot_event import OneShotEvent, WaitGroup

__all__ = ["Janitor"]

_log = get_logger()

OUTPUT_TOLD = 2_000
"""Characters of a failed test's output that go to the log, where there is no transcript to keep it."""
PUT_AWAY_S = 60.0
"""How long it may take to put a place away: a commit of all that an agent left. What is not done is done later."""


class Janitor:
    """Checks, merges and clears away. Its actor outlives every session.

    Args:
        actor_id: the actor in whose scope places are put away.
        verify: has a verifier of a plug-in look at a piece of work.
    """

    def __init__(
        self, registry: EntityRegistry, actor_id: str, processes: ProcessHost, workspace: Workspace, verify: Verify
    ) -> None:
        self._registry = registry
        self._actor_id = actor_id
        self._processes = processes
        self._workspace = workspace
        self._verify = verify
        self._putting_away = WaitGroup()
        self.clearing = WaitGroup()
        """The places that are being cleared of what was given up, or wait for that: nothing is begun meanwhile where
        sessions share one. (The end of a supervisor does not wait for that: it may take until a disk is back.)"""

    async def check(self, session_id: str, tests: Sequence[AcceptanceTest]) -> str:
        """Why the work of a session is not accepted, ``""`` if it is. What the tests say is in its transcript.

        Raises:
            Refused: the session ended before that could be said.
        """
        if not tests:
            return ""
        found: list[AcceptanceResult] = []
        over = OneShotEvent()
        session, ctx = self._registry.sessions.get(session_id), self._registry.system.context(session_id)
        if session is not None and ctx is not None and not session.is_terminating:
            with suppress(ActorStopped):
                session.start(ctx, self._check, session, tests, found, over)
                await over.wait()
        if not found:
            raise Refused(f"session {session_id!r} was ended before its acceptance tests were")
        last = found[-1]
        return "" if last.passed else f"{last.test.title}: {last.problem}"

    async def _check(
        self, session: LiveSession, tests: Sequence[AcceptanceTest], found: list[AcceptanceResult], over: OneShotEvent
    ) -> None:
        scope = anyio.CancelScope()
        terminating = session.reached(SessionPhase.TERMINATING)
        terminating.then(scope.cancel)  # a check has no request to stop: it is cancelled at once
        try:
            with scope:
                done = await run_acceptance_tests(
                    self._processes, tests, session.directory, session.profile.env, self._verify
                )
                for one in done:
                    session.transcript.write("acceptance", _told(one), at=self._registry.journal_writer.clock.now())
                found += done
        finally:
            terminating.forget(scope.cancel)
            over.set()

    async def inspect(self, place_id: str, tests: Sequence[AcceptanceTest], directory: str, until: anyio.Event) -> str:
        """Why what was merged so far is not accepted as a whole, ``""`` if it is: tests in a place of their own.

        Args:
            place_id: names that place; nobody else works there.
            directory: where in the workspace the tests are run.
            until: set when nobody waits for them any more.
        """
        if not tests:
            return ""
        try:
            self._check_ours()
            prepare = partial(self._workspace.prepare, place_id, directory, root_id=place_id)
            where = await outlast_shortage(prepare)
            done = await self._accepted(tests, where, until)
        except (OSError, Refused) as error:
            return f"it could not be looked at: {error}"
        if self._workspace.temporary:
            await self.put_away(place_id, f"what the tests of {place_id} left")
        if not done:
            return "it was stopped before its tests were over"
        last = done[-1]
        if not last.passed:
            _log.warning("not accepted", place=place_id, test=last.test.title, output=last.output[-OUTPUT_TOLD:])
        return "" if last.passed else f"{last.test.title}: {last.problem}"

    async def _accepted(
        self, tests: Sequence[AcceptanceTest], where: str, until: anyio.Event
    ) -> Sequence[AcceptanceResult]:
        """Nothing, if *until* comes first."""
        done: Sequence[AcceptanceResult] = ()
        async with anyio.create_task_group() as group:

            async def stop() -> None:
                await until.wait()
                group.cancel_scope.cancel()

            group.start_soon(stop)
            done = await run_acceptance_tests(self._processes, tests, where, {}, self._verify)
            group.cancel_scope.cancel()
        return done

    async def commit(self, session_id: str, message: str) -> str:
        """The commit that the work of a session is judged at; ``""`` where its work stays in place, or cannot be merged
        as it is (``merge`` says why).

        Raises:
            OSError: there is no such commit, since what was done there cannot be had; the message says why.
            Refused: the session is ending, or what lies there may be another supervisor's.
        """
        if self.in_place:
            return ""
        self._check_ours()
        try:
            return await outlast_shortage(partial(self._workspace.commit, session_id, message))
        except OSError:
            session = self._registry.sessions.get(session_id)
            if (
                session is None or session.is_terminating
            ):  # its workspace is being removed, with all that was done there
                raise Refused(f"session {session_id!r} was ended before its work was committed") from None
            raise

    async def merge(self, session_id: str, message: str, commit: str = "") -> Merge:
        """Bring *commit* of a session to where it is for, or all that it did; what cannot be said to be there is
        refused."""
        if isinstance(lost := self._registry.journal_writer.error, JournalLost):
            return Merge(outcome="refused", why=str(lost))
        try:
            return await outlast_shortage(partial(self._workspace.merge, session_id, message, commit))
        except OSError as error:
            return Merge(outcome="refused", why=str(error))

    async def changes(self, session_id: str, message: str, commit: str = "") -> Changes | None:
        """What a session changed so far, or up to *commit*; ``None`` where nobody can tell.

        Raises:
            Refused: it cannot be looked at; the message says why.
        """
        self._check_ours()
        try:
            return await outlast_shortage(partial(self._workspace.changes, session_id, message, commit))
        except OSError as error:
            raise Refused(f"what session {session_id!r} changed cannot be said: {error}") from error

    async def begin(self, place: WorkspaceSpec) -> None:
        """Have what a task owns as an attempt is to begin with it, and be able to take that back.

        Raises:
            Refused: it could not be; the message says why.
        """
        self._check_ours()
        try:
            await outlast_shortage(partial(self._workspace.begin, "", place))
        except OSError as error:
            raise Refused(f"what the attempt may have to be taken back to could not be saved: {error}") from error

    async def save(self, session_id: str, place: WorkspaceSpec, message: str) -> str:
        """The checkpoint that holds what a session did so far.

        Raises:
            Refused: it could not be made; the message says why.
        """
        return await self._within(self._workspace.save, session_id, place, message)

    async def roll_back(self, session_id: str, place: WorkspaceSpec, message: str) -> str:
        """Take back what a session did; the checkpoint that holds it.

        Raises:
            Refused: it could not be; the message says why.
        """
        return await self._within(self._workspace.roll_back, session_id, place, message)

    async def _within(
        self,
        do: Callable[[str, WorkspaceSpec, str], Awaitable[str]],
        session_id: str,
        place: WorkspaceSpec,
        message: str,
    ) -> str:
        """What was begun with a place is done to its end, but not for ever."""
        self._check_ours()
        with anyio.move_on_after(PUT_AWAY_S, shield=True):
            try:
                return await outlast_shortage(partial(do, session_id, place, message))
            except OSError as error:
                raise Refused(str(error)) from error
        raise Refused(f"it took longer than {PUT_AWAY_S:g} s")

    async def accept(self, place: WorkspaceSpec) -> None:
        """What was done there is not taken back any more."""
        await self._drop(self._workspace.accept, place)

    async def forget(self, place: WorkspaceSpec) -> None:
        """Drop what was saved on the way of a task that is over, as far as nobody needs it."""
        await self._drop(self._workspace.forget, place)

    def _check_ours(self) -> None:
        """What lies in the state directory by now may be another supervisor's, under the very names of our sessions.

        Raises:
            Refused: it may be.
        """
        if isinstance(self._registry.journal_writer.error, JournalLost):
            raise Refused(str(self._registry.journal_writer.error))

    async def _drop(self, drop: Callable[[WorkspaceSpec], Awaitable[None]], place: WorkspaceSpec) -> None:
        if isinstance(self._registry.journal_writer.error, JournalLost):
            return
        with anyio.move_on_after(PUT_AWAY_S, shield=True):
            try:
                await drop(place)
            except OSError as error:
                _log.warning("what was saved of a task could not be dropped", task=place.owner, why=str(error))

    @property
    def in_place(self) -> bool:
        """Sessions work where their work stays."""
        return not self._workspace.temporary

    async def put_away(self, session_id: str, message: str) -> Released:
        """Clear away where a session worked. What cannot be cleared away is left, and said so."""
        if isinstance(self._registry.journal_writer.error, JournalLost):
            return Released()
        released = Released(problem=f"it was not put away within {PUT_AWAY_S:g} s")
        with anyio.move_on_after(PUT_AWAY_S, shield=True):
            try:
                released = await outlast_shortage(partial(self._workspace.put_away, session_id, message))
            except OSError as error:
                released = Released(problem=str(error))
                _log.warning("the place of a session could not be put away", session=session_id, why=str(error))
        if released.branch or released.directory:
            _log.info("work is left that is not merged", session=session_id, **_left(released))
        return released

    def follow(self, session: LiveSession) -> None:
        """Clear away after that session, when its last record is made."""
        if self._workspace.temporary and session.root_id == session.session_id:
            session.reached(SessionPhase.RECORDED).then(lambda: self._put_away_later(session))

    def clear(self) -> None:
        """Clear away what an earlier supervisor left of sessions that do not live any more."""
        if self._workspace.temporary:
            self._start(self._clear)

    async def rest(self) -> None:
        """Wait until nothing is being cleared away."""
        await self._putting_away.none()

    def _put_away_later(self, session: LiveSession) -> None:
        if not session.place.kept:  # else it is said when it may go
            self._start(self.put_away, session.session_id, f"what {session.session_id} left")

    async def _clear(self) -> None:
        for session_id in await self._workspace.left():
            if session_id not in self._registry.sessions:
                await self.put_away(session_id, f"what {session_id} left")

    def _start(self, fn: Callable[..., Coroutine[Any, Any, object]], *args: str) -> None:
        ctx = self._registry.system.context(self._actor_id)
        if ctx is not None:
            ctx.start_task(self._counted, fn, args, name=fn.__name__)

    async def _counted(self, fn: Callable[..., Coroutine[Any, Any, object]], args: tuple[str, ...]) -> None:
        with self._putting_away.one():
            await fn(*args)


def _told(one: AcceptanceResult) -> str:
    said = f"{one.output}\n" if one.output else ""
    return f"{said}{one.test.title}: {one.problem or 'passed'}\n"


def _left(released: Released) -> dict[str, str]:
    return {"branch": released.branch, "directory": released.directory}
