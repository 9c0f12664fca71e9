"""Takeover of a dead supervisor's sessions; settings and the embedding program decide which are continued.

The work of plans, such as tasks, is taken over by ``supervisor.work.takeover``, which calls this module.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec

from supervisor.lifecycles.session import Session
from supervisor.lifecycles.session_data import SessionData
from supervisor.lifecycles.types import Kind
from supervisor.ports import EntityRow, Journal, JournalError
from supervisor.ports.agent_profile import AgentProfile
from supervisor.runtime.entity import Entity
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.abort_service import AbortService
from supervisor.sessions.journal_state import SessionHistory
from supervisor.sessions.live_session import LiveSession
from supervisor.sessions.monitor_registry import MonitorRegistry
from supervisor.sessions.pending_requests import PendingRequests
from supervisor.sessions.registry import SessionRegistry
from supervisor.sessions.restore import Recovered, Recovery, loses_nothing
from supervisor.sessions.services import SessionServices
from supervisor.sessions.session import SessionEntity
from supervisor.sessions.session_factory import SessionFactory
from supervisor.sessions.setup import Setups
from supervisor.sessions.shutdown import Shutdown


class Choice(NamedTuple):
    """Choice of the entities that may be continued: those of *among* (``None``: all) that are not *left_over*, since
    their work has ended, or goes on without them. *holders* are sessions that hold a task of a plan."""

    among: Collection[str] | None
    left_over: Collection[str]
    holders: Collection[str]

    def admits(self, entity_id: str) -> bool:
        return entity_id not in self.left_over and (self.among is None or entity_id in self.among)


class Takeover:
    """Takes over the sessions of one dead supervisor. The arguments are parts of the supervisor that takes over."""

    def __init__(
        self,
        registry: SessionRegistry,
        journal: Journal,
        services: SessionServices,
        factory: SessionFactory,
        monitors: MonitorRegistry,
        shutdown: Shutdown,
        requests: PendingRequests,
        aborts: AbortService,
    ) -> None:
        self._registry, self._journal, self._services = registry, journal, services
        self._factory, self._monitors, self._shutdown = factory, monitors, shutdown
        self._requests, self._aborts = requests, aborts

    async def restore(
        self,
        rows: Sequence[EntityRow],
        live: Sequence[EntityRow],
        runs: Mapping[str, str],
        choice: Choice,
    ) -> Recovery:
        """Restore the entities in *live*, and continue or stop the sessions among them, as *choice* and the setting
        ``recovery.sessions`` say; return the recovery, which is to be finished (:meth:`finish`). The work among the
        entities is restored as it is. *rows* are all entities of the journal, and *runs* the runs of plans by the ids
        of the sessions that work for them.

        Raises:
            JournalError: the journal failed meanwhile.
        """
        policy = _TakeoverPolicy(self._registry, self._services.setups, runs, choice)
        recovery = Recovery(
            self._registry,
            self._journal,
            self._services,
            admit=partial(self._revive, policy, _launches(rows)),
            goes_on=policy.goes_on,
            ended=self._shutdown.wait_recorded,
        )
        self._requests.track_recovered(_sessions(live))
        await recovery.restore(live, [row for row in rows if row.kind == Kind.SESSION])
        return recovery

    async def finish(self, recovery: Recovery) -> Recovered:
        """Wait for the ends of the sessions that *recovery* stopped, and return its result.

        Raises:
            JournalError: the journal failed meanwhile.
        """
        recovered = await recovery.finish()
        self._monitors.close_ended()
        for session_id in recovered.resumed:
            self._close_when_answered(session_id)
        return recovered

    def _close_when_answered(self, session_id: str) -> None:
        """Close a delegated child session once its prompts are answered: the tool call that would close the session
        does not exist any more."""
        session, background = self._registry.sessions.get(session_id), self._services.background
        if session is not None and session.started_by is not None and not background.has_ended:
            background.context.start_task(self._close_answered, session_id, name=f"child {session_id}")

    async def _close_answered(self, session_id: str) -> None:
        outcome = await self._requests.last_outcome(session_id)
        cause = Cause(outcome.seq if outcome is not None else None, None, "recovery")
        with suppress(JournalError):
            await self._aborts.close_session(session_id, reason="its work is done", cause=cause)

    def _revive(
        self,
        takeover_policy: _TakeoverPolicy,
        launches: Mapping[str, int],
        row: EntityRow,
        read: Entity,
        past: SessionHistory,
    ) -> SessionEntity:
        data: SessionData = read.data
        above = self._registry.sessions.get(row.parent_id or "")
        plan_run = above.plan_run if above is not None else takeover_policy.runs.get(data.id, "")
        setup = self._services.setups.of(plan_run)
        profile = setup.agents.get(data.agent) or AgentProfile(name=data.agent, adapter="")
        policy = past.policy or (above.policy if above is not None else setup.settings.abort_policy)
        session = self._factory.admit(data, Session(read.state), above, profile, policy, past.started_by, past.mode)
        session.plan_run, session.requests = plan_run, past.requests
        session.failures.crashes, session.failures.charged = past.crashes, data.total_errors
        session.directory, session.workspace_spec = past.directory or session.directory, past.workspace_spec
        session.continue_log(row)
        session.since_s = past.entered_s
        self._monitors.restore_monitor(session, setup.settings.monitor_settings, past.budget)
        session.launches = max(data.incarnation, launches.get(row.id, 0))  # those of old incarnations may be archived
        return session


def _sessions(rows: Iterable[EntityRow]) -> Iterator[SessionData]:
    """Yield the data of each session; skip damaged data, which the recovery reports."""
    for row in rows:
        if row.kind == Kind.SESSION:
            with suppress(msgspec.DecodeError):
                yield msgspec.json.decode(row.data, type=SessionData)


class _TakeoverPolicy(NamedTuple):
    """Decides which sessions are continued, depending on the *choice*, and on the setups of the supervisor and of the
    *runs*."""

    registry: SessionRegistry
    setups: Setups
    runs: Mapping[str, str]
    choice: Choice

    def goes_on(self, session: Entity, past: SessionHistory, agent: Entity | None) -> bool:
        """Return whether a session is continued; *agent* is the agent that was alive, if any."""
        how = self.setups.common.settings.recovery.sessions
        live: LiveSession | None = self.registry.sessions.get(session.id)
        profile = self.setups.of(live.plan_run if live is not None else "").agents.get(session.data.agent)
        if how == "stop" or profile is None or not self._is_among(session.id):
            return False
        turn = self.registry.entities.get(session.data.turn_id)
        return how == "restart" or loses_nothing(profile, session, agent, turn) or self._has_answered(session, past)

    def _has_answered(self, session: Entity, past: SessionHistory) -> bool:
        """Return whether the session has completed its only prompt, the prompt of a task: then the session is needed,
        but no agent, since only the verification is left."""
        if past.answer is None or session.data.current is not None or session.data.queue:
            return False
        return session.id in self.choice.holders

    def _is_among(self, session_id: str) -> bool:
        """Return whether the session, or a session above it, is chosen; false if the session, or one above it, is left
        over."""
        session: LiveSession | None = self.registry.sessions.get(session_id)
        found = self.choice.among is None
        while session is not None and session.session_id not in self.choice.left_over:
            found, session = found or self.choice.admits(session.session_id), session.parent
        return found and session is None


def _launches(rows: Iterable[EntityRow]) -> dict[str, int]:
    """Return, for each session, the number of its last agent in the journal."""
    found: dict[str, int] = {}
    for row in rows:
        if row.kind == Kind.AGENT and row.parent_id is not None:
            number = int(row.id.rpartition(":a")[2])
            found[row.parent_id] = max(number, found.get(row.parent_id, 0))
    return found
