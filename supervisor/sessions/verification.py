"""Verification of a session's work: acceptance tests, commits, merges, checkpoints.

A task is done when its acceptance tests pass, and closed when its work is merged (spec 000: "Janitor verification
passed + branch merged"). Acceptance tests run in the session's own cancel scope, so that the end of the session ends
the tests; other requests run in the asynchronous task of their caller. If a request fails by a bug, the bug is logged
and the request refused: the bug ends neither the plan run nor another request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import anyio

from actors import ActorStopped, failpoint
from actors.one_shot_event import OneShotEvent
from supervisor.lifecycles.workstream import WorkBranch
from supervisor.plans.acceptance import AcceptanceResult, AcceptanceTest, Rejection, Verify, run_acceptance_tests
from supervisor.policies.stage_deadlines import program_end_s
from supervisor.ports import (
    NO_WORKSPACE,
    Changes,
    JournalLost,
    Merge,
    MergePlan,
    ProcessHost,
    Workspace,
    WorkspaceHeld,
    WorkspaceSpec,
)
from supervisor.ports.logs import get_logger
from supervisor.ports.shortages import outlast_shortage
from supervisor.runtime.entity import Refused
from supervisor.sessions.live_session import LiveSession, SessionPhase
from supervisor.sessions.registry import SessionRegistry
from supervisor.sessions.workspace_cleanup import REMOVE_S, WorkspaceCleanup

_log = get_logger()

OUTPUT_MAX = 2_000
"""Number of characters of a failed test's output that are logged if the output is in no transcript."""

_T = TypeVar("_T")


class Verification:
    """Checks, commits, merges and rolls back the work of sessions.

    Args:
        verify: function that calls a plug-in's verifier.
    """

    def __init__(
        self,
        registry: SessionRegistry,
        processes: ProcessHost,
        workspace: Workspace,
        cleanup: WorkspaceCleanup,
        verify: Verify,
    ) -> None:
        self._registry = registry
        self._processes = processes
        self._workspace = workspace
        self._cleanup = cleanup
        self._verify = verify

    @property
    def in_place(self) -> bool:
        """Whether sessions work in the directory itself, so that nothing has to be merged."""
        return not self._workspace.temporary

    def _redact(self, text: str) -> str:
        return self._registry.journal_writer.redactor.text(text)  # the present one: a plan that begins may add secrets

    async def check(self, session_id: str, tests: Sequence[AcceptanceTest]) -> Rejection | None:
        """Run acceptance tests on a session's work; return their rejection, ``None`` if the work is accepted. Output
        goes to the transcript.

        Raises:
            Refused: the session ended before its tests had ended.
        """
        if not tests:
            return None
        found: list[AcceptanceResult] = []
        over = OneShotEvent()
        session, ctx = self._registry.sessions.get(session_id), self._registry.system.context(session_id)
        if session is not None and ctx is not None and not session.is_terminating:
            with suppress(ActorStopped):
                session.start(
                    ctx, self._check, session, tests, found, over, clean_up_s=program_end_s(session.policy.ladder)
                )
                await over.wait()
        if not found:
            raise Refused(f"session {session_id!r} was ended before its acceptance tests were")
        return found[-1].rejection

    async def _check(
        self, session: LiveSession, tests: Sequence[AcceptanceTest], found: list[AcceptanceResult], over: OneShotEvent
    ) -> None:
        scope = anyio.CancelScope()
        terminating = session.reached(SessionPhase.TERMINATING)
        terminating.then(scope.cancel)  # a check has no request to stop: it is cancelled at once
        try:
            with scope:
                done = await run_acceptance_tests(
                    self._processes, tests, session.directory, session.profile.env, self._verify, self._redact
                )
                for one in done:
                    output = f"{one.output}\n" if one.output else ""
                    text = f"{output}{one.test.title}: {one.problem or 'passed'}\n"
                    session.transcript.write("acceptance", text, at=self._registry.journal_writer.clock.now())
                found += done
        finally:
            terminating.forget(scope.cancel)
            over.set()

    async def inspect(
        self,
        workspace_id: str,
        tests: Sequence[AcceptanceTest],
        directory: str,
        until: anyio.Event,
        spec: WorkspaceSpec = NO_WORKSPACE,
    ) -> Rejection | None:
        """Run acceptance tests on the merged work so far, in a workspace of their own. Return their rejection, or
        ``None``.

        Args:
            workspace_id: id of the workspace of the tests.
            spec: where the workspace begins; by default at the target.
            directory: directory of the workspace in which the tests are run.
            until: set when the result is not needed any more.

        Raises:
            WorkspaceHeld: something outside of the work prevents that the workspace is made.
        """
        if not tests:
            return None
        try:
            if spec != NO_WORKSPACE:
                await self._request(partial(self._workspace.begin, workspace_id, spec))
            prepare = partial(self._workspace.prepare, workspace_id, directory, root_id=workspace_id)
            where = await self._request(prepare)
            done = await self._accepted(tests, where, until)
        except WorkspaceHeld:
            raise
        except (OSError, Refused) as error:
            return Rejection(f"the acceptance tests could not be run: {error}")
        if self._workspace.temporary:
            await self._cleanup.clean_up(workspace_id, f"Files written by the tests of {workspace_id}")
        if not done:
            return Rejection("the acceptance tests were stopped before their end")
        last = done[-1]
        if not last.passed:
            _log.displayed(
                "not accepted",
                workspace=workspace_id,
                test=last.test.title,
                output=self._redact(last.output)[-OUTPUT_MAX:],
            )
        return last.rejection

    async def _accepted(
        self, tests: Sequence[AcceptanceTest], where: str, until: anyio.Event
    ) -> Sequence[AcceptanceResult]:
        """Run the tests and return their results; an empty sequence if *until* is set first."""
        done: Sequence[AcceptanceResult] = ()
        async with anyio.create_task_group() as group:

            async def stop() -> None:
                await until.wait()
                group.cancel_scope.cancel()

            group.start_soon(stop)
            done = await run_acceptance_tests(self._processes, tests, where, {}, self._verify, self._redact)
            group.cancel_scope.cancel()
        return done

    async def commit(self, session_id: str, message: str) -> str:
        """Commit the work of a session and return the commit that is to be verified; ``""`` if the work is done in the
        directory itself, or cannot be merged in its present form (``merge`` returns the reason).

        Raises:
            WorkspaceHeld: something outside of the work prevents the commit.
            OSError: the work cannot be committed.
            Refused: the session is ending, or the journal is lost, so that its workspace may belong to another
                supervisor.
        """
        if self.in_place:
            return ""
        try:
            return await self._request(partial(self._workspace.commit, session_id, message))
        except OSError:
            session = self._registry.sessions.get(session_id)
            if session is None or session.is_terminating:  # its workspace is being removed
                raise Refused(f"session {session_id!r} was ended before its work was committed") from None
            raise

    async def changed_since(self, session_id: str, directory: str, since: float) -> bool:
        """Return whether something in the workspace of a session may have changed since *since* (Unix time in seconds);
        also if that cannot be found out."""
        try:
            return await self._request(partial(self._workspace.changed_since, session_id, directory, since))
        except (OSError, Refused):
            return True

    async def outside_changes(self, session_id: str) -> list[str]:
        """Return sentences about what has changed in the user's own checkout while the session worked; one says so if
        that cannot be found out."""
        try:
            return await self._request(partial(self._workspace.outside_changes, session_id))
        except Refused:
            return []
        except OSError as error:
            return [f"unknown whether it has changed something outside of its worktree: {error}"]

    async def open_branch(
        self, workstream_id: str, directory: str, *, resumes: str = "", holds: Sequence[str] = ()
    ) -> WorkBranch:
        """Make the branch of a workstream, as ``Workspace.open_branch`` does.

        Raises:
            Refused: the branch cannot be made.
            WorkspaceHeld: something outside of the work prevents it.
        """
        make = partial(self._workspace.open_branch, workstream_id, directory, resumes=resumes, holds=holds)
        try:
            return await self._request(make)
        except WorkspaceHeld:
            raise
        except OSError as error:
            raise Refused(f"the branch of run {workstream_id} cannot be made: {error}") from error

    async def plan_merge(self, workstream_id: str, commit: str = "") -> MergePlan:
        """Return the plan of the merge of a workstream's branch, or of its *commit*.

        Raises:
            Refused: the branch cannot be read.
        """
        try:
            return await self._request(partial(self._workspace.plan_merge, workstream_id, commit))
        except OSError as error:
            raise Refused(f"the merge of run {workstream_id} cannot be planned: {error}") from error

    async def merge(self, session_id: str, message: str, commit: str = "", *, workstream: str = "") -> Merge:
        """Merge *commit* of a session, or all of the session's work, into the target or the branch of the *workstream*.
        The outcome is ``refused`` unless the merge is certain.

        Raises:
            WorkspaceHeld: something outside of the work prevents the merge.
        """
        try:
            merge = partial(self._workspace.merge, session_id, message, commit, workstream=workstream)
            return await self._request(merge)
        except WorkspaceHeld:
            raise
        except (OSError, Refused) as error:
            return Merge(outcome="refused", why=str(error))

    async def changes(self, session_id: str, message: str, commit: str = "", *, workstream: str = "") -> Changes | None:
        """Return the changes of a session so far, or up to *commit*, counted from the target or the branch of the
        *workstream*; ``None`` if the workspace keeps no history.

        Raises:
            Refused: the changes cannot be read.
            WorkspaceHeld: something outside of the work prevents that they are committed.
        """
        try:
            changes = partial(self._workspace.changes, session_id, message, commit, workstream=workstream)
            return await self._request(changes)
        except WorkspaceHeld:
            raise
        except OSError as error:
            raise Refused(f"the changes of session {session_id!r} cannot be read: {error}") from error

    async def begin(self, workspace_spec: WorkspaceSpec) -> None:
        """Bring the files that a task owns to the state from which an attempt begins, and save that state.

        Raises:
            Refused: the state could not be saved or restored.
        """
        try:
            await self._request(partial(self._workspace.begin, "", workspace_spec))
        except OSError as error:
            raise Refused(f"the state before the attempt could not be saved: {error}") from error

    async def save(self, session_id: str, workspace_spec: WorkspaceSpec, message: str) -> str:
        """Save the work of a session so far, and return the checkpoint with that work.

        Raises:
            Refused: the checkpoint could not be made.
        """
        return await self._finish(self._workspace.save, session_id, workspace_spec, message)

    async def roll_back(self, session_id: str, workspace_spec: WorkspaceSpec, message: str) -> str:
        """Roll back the work of a session, and return the checkpoint with that work.

        Raises:
            Refused: the work could not be rolled back.
        """
        return await self._finish(self._workspace.roll_back, session_id, workspace_spec, message)

    async def _finish(
        self,
        do: Callable[[str, WorkspaceSpec, str], Awaitable[str]],
        session_id: str,
        workspace_spec: WorkspaceSpec,
        message: str,
    ) -> str:
        """Call *do* and complete it, even if the caller is cancelled, for at most ``REMOVE_S`` seconds."""
        with anyio.move_on_after(REMOVE_S, shield=True):
            try:
                return await self._request(partial(do, session_id, workspace_spec, message))
            except OSError as error:
                raise Refused(str(error)) from error
        raise Refused(f"the workspace took longer than {REMOVE_S:g} s")

    async def accept(self, workspace_spec: WorkspaceSpec) -> None:
        """Accept the work in that workspace: the saved state is dropped, so that the work cannot be rolled back any
        more."""
        await self._drop(self._workspace.accept, workspace_spec)

    async def forget(self, workspace_spec: WorkspaceSpec) -> None:
        """Delete the checkpoints of a task that is over, except those that another task needs."""
        await self._drop(self._workspace.forget, workspace_spec)

    async def _request(self, do: Callable[[], Awaitable[_T]]) -> _T:
        """Call *do*, a request to the workspace; during a shortage of file descriptors, wait and try again.

        Raises:
            OSError: the workspace could not carry out the request.
            Refused: the call failed by a bug; or the journal is lost: the state directory may by now belong to another
                supervisor, with sessions of the same names.
        """
        if isinstance(lost := self._registry.journal_writer.error, JournalLost):
            raise Refused(str(lost))
        try:
            failpoint.crash("service", "verification")
            return await outlast_shortage(do)
        except (OSError, Refused):
            raise
        except Exception as error:
            _log.error("verification failed", error=repr(error), exc_info=error)
            raise Refused(f"verification failed: {error!r}") from error

    async def _drop(self, drop: Callable[[WorkspaceSpec], Awaitable[None]], workspace_spec: WorkspaceSpec) -> None:
        if isinstance(self._registry.journal_writer.error, JournalLost):
            return
        with anyio.move_on_after(REMOVE_S, shield=True):
            try:
                await drop(workspace_spec)
            except OSError as error:
                _log.warning("what was saved of a task could not be dropped", task=workspace_spec.owner, why=str(error))
