"""End of a supervisor: finish the open requests, or stop every session, and wait for the sessions' last records.

Each wait is bounded: a drain by ``drain_s``, an abort by the stage budgets, a disk that does not respond by
``LAST_RECORDS_S``. A lost journal ends every session at once, and then no record is waited for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import anyio

from actors import ActorStopped, ActorSystem
from actors.one_shot_event import OneShotEvent, first_of
from actors.waiting import any_of
from supervisor.lifecycles.events import OperatorStop
from supervisor.lifecycles.session import Session
from supervisor.policies.stage_deadlines import SLACK_S
from supervisor.ports import JournalError, JournalLost, Outcome
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.live_session import LiveSession, SessionPhase
from supervisor.sessions.pending_requests import PendingRequests
from supervisor.sessions.registry import SessionRegistry
from supervisor.sessions.services import SessionServices

STOPPED_AT_ONCE = "stopped at once"
"""Reason of every end that a stop at once leads to."""

LAST_RECORDS_S = 10.0
"""Seconds that the end of a supervisor waits for the disk, after everything else has ended."""


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
        pending_requests: PendingRequests,
        services: SessionServices,
    ) -> None:
        self._registry = registry
        self._system: ActorSystem = registry.system
        self._pending_requests = pending_requests
        self._services = services
        self._background = services.background
        self._drains = False
        self.plans_over = False
        """No plan begins any more."""
        self.plans: list[HostedPlan] = []
        """Plan runs that the host has started and that have not ended."""
        self.begun = anyio.Event()
        """Set when a drain or a stop has begun: no new work, such as a root session, may begin."""
        self.now = anyio.Event()
        """Set when running work must stop, too."""
        self.failure: JournalError | None = None
        self.failed = OneShotEvent()
        """Set when the journal is lost."""

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
        """Begin a drain; with *now*, or at the second call, stop every session instead."""
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
        drain_s = self._services.settings.drain_s
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

    def close_all(self) -> None:
        """End every root session in an orderly way, as completed."""
        for session in list(self._registry.sessions.values()):
            if session.root_id == session.session_id:
                stop = OperatorStop(reason="the supervisor is closing", outcome="completed")
                session.request_stop(stop, cause=Cause(actor="host"))

    def journal_lost(self, error: JournalError) -> None:
        """End every session without waiting for the disk, since no promise of a record can be kept any more."""
        self.failure = error
        self.failed.set()
        self.begun.set()
        self.now.set()
        words = str(error) if isinstance(error, JournalLost) else f"the journal cannot be written: {error}"
        self.stop_all(words, "supervisor", now=True)
        self._pending_requests.fail_all(Outcome("failed", words, ""))

    def end_sessions(self, reason: str) -> None:
        """End every session in an orderly way, since the supervisor cannot go on for the given *reason*."""
        self.begun.set()
        self.now.set()
        self.stop_all(reason, "supervisor", now=False)
        with suppress(ActorStopped):  # the supervisor has ended all sessions already
            self._background.context.start_task(self.wait_all_recorded, name="last records")

    # ------------------------------------------------------------------ waiting
    async def finish(self) -> None:
        """Wait until the open requests and plan runs are finished, at most ``drain_s``; no new work begins
        meanwhile."""
        self.begun.set()
        with self._system.timers.limit(self._services.settings.drain_s):
            while self._pending_requests.unanswered and not self.now.is_set() and self.failure is None:
                await any_of(self._pending_requests.answer_given, self.now)
            while self.plans and not self.now.is_set() and self.failure is None:
                await any_of(self.plans[0].ended, self.now)

    async def end_plans(self) -> None:
        """Cancel the plan runs that the host has started and that have not ended, and wait for their end."""
        self.plans_over = True
        plans = list(self.plans)
        for plan in plans:  # all at once: their agents end side by side
            plan.cancel()
        for plan in plans:
            await plan.ended.wait()

    async def all_ended(self, end_inherited: Callable[[], Awaitable[None]] | None) -> None:
        """Wait until all sessions have ended. Before that, await *end_inherited*, which ends the work that an earlier
        supervisor left; ``None`` if there is no such work."""
        if end_inherited is not None:
            async with anyio.create_task_group() as group:
                group.start_soon(self.wait_all_recorded)
                await end_inherited()
                group.cancel_scope.cancel()
        await self._last_records()

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
