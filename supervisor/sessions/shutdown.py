"""End of a supervisor: finish the open requests, or stop every session, and wait for the sessions' last records.

Each wait is bounded: a drain by ``drain_s``, an abort by the stage budgets, a disk that does not respond by
``LAST_RECORDS_S``. A lost journal ends every session at once, and then no record is waited for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import anyio

from actors import ActorStopped, ActorSystem, RestartLimitExceeded
from actors.one_shot_event import OneShotEvent, first_of
from actors.waiting import any_of
from supervisor.lifecycles.events import OperatorStop
from supervisor.lifecycles.session import Session
from supervisor.policies.argument_checks import check_type
from supervisor.policies.stage_deadlines import SLACK_S
from supervisor.ports import JournalError, JournalLost, Outcome
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Refused
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.live_session import LiveSession, SessionPhase
from supervisor.sessions.pending_requests import PendingRequests
from supervisor.sessions.registry import SessionRegistry
from supervisor.sessions.services import SessionServices
from supervisor.sessions.workspace_cleanup import WorkspaceCleanup

_log = get_logger()

STOPPED_AT_ONCE = "stopped at once"
"""Reason of every end that a stop at once leads to."""

LAST_RECORDS_S = 10.0
"""Seconds that the end of a supervisor waits for the disk, after everything else has ended."""


class ServiceFailed(Exception):
    """Raised when a service crashed more often than services may be restarted; every session was ended."""

    def __init__(self, error: RestartLimitExceeded) -> None:
        most = error.intensity
        super().__init__(
            f"the supervisor's service {error.child!r} crashed again after {most.restarts_max} restarts of services "
            f"within {most.period_s:g} s; every session is ended. The last reason: {error.reason}"
        )


class HostedPlan(Protocol):
    """Protocol of a plan run that a host has started."""

    ended: anyio.Event

    def cancel(self) -> None: ...


class Shutdown:
    """Ends one supervisor: drain, stop, and the wait for the last records.

    Args:
        services: parts that the sessions use, with the settings.
    """

    def __init__(
        self,
        registry: SessionRegistry,
        requests: PendingRequests,
        services: SessionServices,
        cleanup: WorkspaceCleanup,
    ) -> None:
        self._registry = registry
        self._system: ActorSystem = registry.system
        self._requests = requests
        self._services = services
        self._cleanup = cleanup
        self._background = services.background
        registry.journal_writer.failed = self.journal_lost
        self._drains = False
        self.plans_over = False
        """No plan begins any more."""
        self.plans: list[HostedPlan] = []
        """Plan runs that the host has started and that have not ended."""
        self.begun = requests.stopping
        """Set when a drain or a stop has begun: no new work, such as a root session, may begin."""
        self.now = anyio.Event()
        """Set when running work must stop, too."""
        self.failure: JournalError | None = None
        self.failed = OneShotEvent()
        """Set when the journal is lost."""
        self._service_failure: ServiceFailed | None = None

    @property
    def error(self) -> JournalError | ServiceFailed | None:
        """The error that ended every session, ``None`` if there was none. Either the journal is lost, or a service
        crashed too often."""
        return self.failure or self._service_failure

    # ------------------------------------------------------------------ one session
    async def wait_recorded(self, session: LiveSession) -> None:
        """Wait for a session's last record.

        Raises:
            JournalError: the journal has failed, so that the record will never be made.
        """
        recorded = session.reached(SessionPhase.RECORDED)
        await first_of(recorded, self.failed)
        if self.failure is not None and not recorded.is_set():
            raise self.failure

    async def wait_finished(self, session: LiveSession) -> bool:
        """Wait for a session's last record; while the disk is down, wait only until the session has finished. Return
        whether the last record is durable.

        Raises:
            JournalError: the journal has failed.
        """
        disk = self._registry.journal_writer.disk
        finished, recorded = session.reached(SessionPhase.FINISHED), session.reached(SessionPhase.RECORDED)
        while not recorded.is_set() and self.failure is None:
            if disk.outage is None:
                await first_of(recorded, self.failed, disk.down)
            elif not finished.is_set():
                await first_of(finished, recorded, self.failed, disk.up)
            else:
                return False
        if self.failure is not None and not recorded.is_set():
            raise self.failure
        return True

    # ------------------------------------------------------------------ beginning
    def stop(self, actor: str, *, now: bool) -> None:
        """Begin a drain; with *now*, or at the second call, stop every session instead. A supervisor that has ended, or
        whose last actors are ending, gets such commands, too; they have no effect."""
        if not self._background.has_ended:
            with suppress(ActorStopped):
                self._stop(actor, now=now)

    def _stop(self, actor: str, *, now: bool) -> None:
        self.begun.set()
        if now or self._drains:
            self.now.set()
            self.stop_all(STOPPED_AT_ONCE, actor, now=True)
            self._background.context.start_task(self.wait_all_recorded, name="last records")
        else:
            self._drains = True
            self._begin_drain(actor)
            self._background.context.start_task(self._limit_drain, actor, name="drain deadline")

    def _begin_drain(self, actor: str) -> None:
        """Make the requests in progress the last ones: stop every session that waits for its next try, and prevent
        later tries, and turns for the prompts that wait in a root session."""
        sessions = list(self._registry.sessions.values())
        current = [session.data.current for session in sessions]
        self._services.last_requests = frozenset(one.id for one in current if one is not None)
        for session in sessions:
            if session.state is Session.COOLING_DOWN:
                session.check_retry(Cause(actor=actor))

    async def _limit_drain(self, actor: str) -> None:
        """Wait until the drain deadline, and then stop every session that still runs."""
        drain_s = self._services.setups.settings.drain_s
        with self._system.timers.limit(drain_s):
            await self.now.wait()
            return
        self.stop_all(f"the drain took longer than drain_s ({drain_s:g} s)", actor, now=False)
        await self.wait_all_recorded()

    def stop_all(self, reason: str, actor: str, *, now: bool) -> None:
        """Stop every session, leaves first: with *now*, the cancel scope of a parent ends before the parent could stop
        its children."""
        for session in reversed(list(self._registry.sessions.values())):
            stop = OperatorStop(reason=reason, abort_reason="shutdown_signal", now=now)
            session.request_stop(stop, cause=Cause(actor=actor))

    def _close_roots(self) -> None:
        """End every root session in an orderly way, as completed."""
        for session in list(self._registry.sessions.values()):
            if session.root_id == session.session_id:
                stop = OperatorStop(reason="the supervisor is closing", outcome="completed")
                session.request_stop(stop, cause=Cause(actor="host"))

    def journal_lost(self, error: JournalError) -> None:
        """End every session without waiting for the disk, since no promise of a record can be kept any more."""
        if isinstance(error, JournalLost):
            _log.critical(str(error))
        else:
            _log.critical("the journal is lost; every session is ended", error=str(error))
        self.failure = error
        self.failed.set()
        self.begun.set()
        self.now.set()
        words = str(error) if isinstance(error, JournalLost) else f"the journal cannot be written: {error}"
        self.stop_all(words, "supervisor", now=True)
        self._requests.fail_all(Outcome("failed", words, ""))

    def service_failed(self, error: ServiceFailed) -> None:
        """End every session in an orderly way, since the supervisor cannot go on without the service that has failed
        with *error*."""
        _log.critical(str(error))
        self._cleanup.give_up()
        self._service_failure = error
        self.begun.set()
        self.now.set()
        self.stop_all(str(error), "supervisor", now=False)
        with suppress(ActorStopped):  # the supervisor has ended all sessions already
            self._background.context.start_task(self.wait_all_recorded, name="last records")

    # ------------------------------------------------------------------ waiting
    async def wait_writable(self) -> None:
        """Wait until the journal can be written again, or this supervisor is ending."""
        disk = self._registry.journal_writer.disk
        while disk.outage is not None and not self.begun.is_set():
            await any_of(disk.up, self.begun)

    async def wait_journal_lost(self) -> JournalError:
        """Wait until the journal has failed for good, and return the error."""
        await self.failed.wait()
        assert self.failure is not None, "set before the event"
        return self.failure

    async def answer_or_stop(self) -> None:
        """Wait until a request receives its reply, or until every session is to stop now."""
        await any_of(self._requests.answer_given, self.now)

    async def finish(self) -> None:
        """Wait until the open requests and plan runs are finished, at most ``drain_s``; no new work begins
        meanwhile."""
        self.begun.set()
        with self._system.timers.limit(self._services.setups.settings.drain_s):
            while self._requests.unanswered and not self.now.is_set() and self.failure is None:
                await any_of(self._requests.answer_given, self.now)
            while self.plans and not self.now.is_set() and self.failure is None:
                await any_of(self.plans[0].ended, self.now)

    def begin_plan(self, plan: HostedPlan, run: Callable[[], Awaitable[None]]) -> None:
        """Start *run* as an asynchronous task of this supervisor; the task ends with the supervisor at the latest.

        Raises:
            Refused: the supervisor ends, or has ended.
        """
        if self.plans_over:
            raise Refused("no plan begins: the supervisor has ended")

        async def run_to_the_end() -> None:
            try:
                await run()
            finally:
                self.plans.remove(plan)

        self.plans.append(plan)
        self._system.group.start_soon(run_to_the_end)

    async def end_plans(self) -> None:
        """Cancel the plan runs that the host has started and that have not ended, and wait for their end."""
        self.plans_over = True
        plans = list(self.plans)
        for plan in plans:  # all at once: their agents end side by side
            plan.cancel()
        for plan in plans:
            await plan.ended.wait()

    async def close_all(self, end_work: Callable[[], Awaitable[None]] | None = None) -> None:
        """End every session as completed, within the stage budgets. Meanwhile await *end_work*, which ends the work
        that an earlier supervisor left; ``None`` if there is no such work."""
        self.begun.set()
        self._close_roots()
        await self._ended(end_work)

    async def abort_all(self, reason: str, end_work: Callable[[], Awaitable[None]] | None = None) -> None:
        """Abort every session with the given reason, within the stage budgets; *end_work* as for :meth:`close_all`."""
        check_type("reason", reason, str)
        self.begun.set()
        self.stop_all(reason, "host", now=False)
        await self._ended(end_work)

    async def _ended(self, end_work: Callable[[], Awaitable[None]] | None) -> None:
        """Wait for the end of every session, and of the work that *end_work* ends, and for the removal of
        workspaces."""
        if end_work is not None:
            async with anyio.create_task_group() as group:
                group.start_soon(self.wait_all_recorded)
                await end_work()
                group.cancel_scope.cancel()
        await self._last_records()
        await self._cleanup.wait_until_done()
        for session in self._registry.sessions.values():  # sessions whose last record was lost
            session.transcript.close()

    async def wait_all_recorded(self) -> None:
        """Wait for the last records of all sessions. Then, until cancelled, give up each record that the disk does not
        take within ``LAST_RECORDS_S``, so that no wait for a record outlasts the end."""
        await self._last_records()
        while self.failure is None:
            await first_of(self._registry.journal_writer.disk.down, self.failed)
            if not await self._recovers_soon():
                self._registry.journal_writer.abandon()

    async def _last_records(self) -> None:
        """Wait for every session's last record; a journal that cannot be written does not delay the end."""
        sessions, disk = self._registry.sessions, self._registry.journal_writer.disk
        bound_s = max((session.policy.ladder.total_s for session in sessions.values()), default=0.0)
        while sessions and self.failure is None:
            outages = disk.outages
            with self._system.timers.limit(bound_s + 3 * SLACK_S) as waited:
                await self._next_end()
            if waited.cancelled_caught and any(session.exiting for session in sessions.values()):
                continue  # the wait for the kernel has a bound of its own
            if waited.cancelled_caught and disk.outage is None and disk.outages == outages:
                break  # the disk was not the reason: no more records will come
            if waited.cancelled_caught and disk.outage is not None and not await self._recovers_soon():
                self._registry.journal_writer.abandon()
        if self.failure is not None and not self._system.broken:
            with self._system.timers.limit(bound_s + 3 * SLACK_S):
                for session in list(sessions.values()):
                    await session.wait_idle()

    async def _next_end(self) -> None:
        """Wait for the last record of a session; while the disk is down, wait for the end of a session instead, or, if
        all have finished, for the disk for a bounded time."""
        disk, sessions = self._registry.journal_writer.disk, list(self._registry.sessions.values())
        alive = next((session for session in sessions if session.phase < SessionPhase.FINISHED), None)
        if disk.outage is None:
            await first_of(sessions[0].reached(SessionPhase.RECORDED), self.failed, disk.down)
        elif alive is not None:
            await first_of(alive.reached(SessionPhase.FINISHED), self.failed, disk.up)
        elif not await self._recovers_soon():
            self._registry.journal_writer.abandon()

    async def _recovers_soon(self) -> bool:
        """Wait at most ``LAST_RECORDS_S`` until the journal can be written; return whether it can."""
        disk = self._registry.journal_writer.disk
        with anyio.move_on_after(LAST_RECORDS_S):
            await first_of(disk.up, self.failed)
        return disk.outage is None
