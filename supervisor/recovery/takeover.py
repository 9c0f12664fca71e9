"""Takeover of a dead supervisor's sessions and work; settings and the embedding program decide which are continued."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import msgspec

from supervisor.lifecycles.session import SessionData
from supervisor.lifecycles.task import Task
from supervisor.lifecycles.types import AbortPolicy, CancelMode, Kind
from supervisor.plans import Settings
from supervisor.ports import EntityRow, Journal, JournalError
from supervisor.ports.agent_profile import AgentProfile
from supervisor.recovery.restore import Recovered, Recovery, end_work, loses_nothing
from supervisor.recovery.resumable import EarlierRuns, find_earlier_runs
from supervisor.runtime.entity import Entity
from supervisor.sessions.effect_executor import EffectExecutor
from supervisor.sessions.journal_state import RecordedOutcome, SessionHistory, at_rest, left_over
from supervisor.sessions.live_session import LiveSession
from supervisor.sessions.registry import SessionRegistry
from supervisor.sessions.termination import TerminationService

Choose = Callable[[Sequence[EntityRow]], Collection[str]]
"""Function that returns, given all entities of the journal, the ids of the sessions and tasks that may be continued."""
Admit = Callable[[str, LiveSession | None, AgentProfile, AbortPolicy, str | None, CancelMode], LiveSession]
"""Function that makes a live session, given its id, parent, agent, policy, the tool call that requested it, and its
cancel mode."""

_WORK: Final = (Kind.WORKSTREAM, Kind.TASK, Kind.RUN, Kind.JOB, Kind.WORKER, Kind.SESSION)
"""Kinds of entities that a plan reads to find out which work it continues."""

HELD = frozenset({Task.CLAIMED, Task.IN_PROGRESS, Task.DONE})
"""States in which a session works, or has worked, on the task."""


class RecoveredWork(NamedTuple):
    """Recovered work of an earlier supervisor's plans."""

    work: set[str]
    """Ids of tasks, runs, jobs, workers and workstreams that no plan has taken over yet."""
    answers: Mapping[str, RecordedOutcome]
    """Last recorded outcome of each session."""
    rows: Mapping[str, EntityRow]
    """All work and all sessions of the journal as found at the takeover, by id."""
    earlier: EarlierRuns
    """The newest run of each plan, as found at the takeover; results of runs that have ended may not be reported."""


class Takeover:
    """Takes over from one dead supervisor, and holds the recovered work that no plan has taken over yet.

    Args:
        registry, journal, effect_executor, endings: parts of the supervisor that takes over.
        ended: function that waits for a session's last record.
        revived: called for each restored session, with its history.
        inherit: called with all sessions of the earlier supervisor, before any of these sessions is continued.
    """

    def __init__(
        self,
        registry: SessionRegistry,
        journal: Journal,
        effect_executor: EffectExecutor,
        endings: TerminationService,
        *,
        admit: Admit,
        ended: Callable[[LiveSession], Awaitable[None]],
        revived: Callable[[LiveSession, SessionHistory], None],
        inherit: Callable[[Iterable[SessionData]], None],
    ) -> None:
        self._registry, self._journal, self._effect_executor, self._endings = (
            registry,
            journal,
            effect_executor,
            endings,
        )
        self._admit, self._ended, self._revived, self._inherit = admit, ended, revived, inherit
        self.left = RecoveredWork(work=set(), answers={}, rows={}, earlier=find_earlier_runs(()))

    async def take_over(
        self,
        rows: Sequence[EntityRow],
        agents: Mapping[str, AgentProfile],
        settings: Settings,
        choose: Choose | None,
    ) -> Recovered:
        """Take over the sessions and the work in *rows*, which are all entities of the journal.

        Raises:
            JournalError: the journal failed meanwhile.
        """
        takeover_policy = _TakeoverPolicy(
            self._registry, agents, settings, None if choose is None else choose(rows), left_over(rows)
        )
        recovery = Recovery(
            self._registry,
            self._journal,
            self._effect_executor,
            self._endings,
            admit=partial(self._revive, takeover_policy, _launches(rows)),
            goes_on=takeover_policy.goes_on,
            stays=takeover_policy.stays,
            ended=self._ended,
        )
        rests = at_rest(rows)
        live = [row for row in rows if not row.ended and row.id not in rests]
        self._inherit(_sessions(live))
        recovered = await recovery.run(live, [row for row in rows if row.kind == Kind.SESSION])
        kept = {row.id: row for row in rows if row.kind in _WORK} if recovered.work else {}
        self.left = RecoveredWork(set(recovered.work), recovered.answers, kept, find_earlier_runs(rows))
        return recovered

    async def end_work(self) -> None:
        """End the recovered work that no plan has taken over."""
        with suppress(JournalError):
            left = [self._registry.entity(one) for one in sorted(self.left.work)]
            await end_work(self._registry, left)
        self.left.work.clear()

    def _revive(
        self, takeover_policy: _TakeoverPolicy, launches: Mapping[str, int], row: EntityRow, past: SessionHistory
    ) -> LiveSession:
        data = msgspec.json.decode(row.data, type=SessionData)
        above = self._registry.sessions.get(row.parent_id or "")
        profile = takeover_policy.agents.get(data.agent) or AgentProfile(name=data.agent, adapter="")
        policy = past.policy or (above.policy if above is not None else takeover_policy.settings.abort_policy)
        session = self._admit(row.id, above, profile, policy, past.started_by, past.mode)
        session.requests, session.crashes, session.errors_charged = past.requests, past.crashes, data.total_errors
        session.directory, session.workspace_spec = past.directory or session.directory, past.workspace_spec
        self._revived(session, past)
        session.launches = max(data.incarnation, launches.get(row.id, 0))  # those of old incarnations may be archived
        return session


def _sessions(rows: Iterable[EntityRow]) -> Iterator[SessionData]:
    """Yield the data of each session; skip damaged data, which the recovery reports."""
    for row in rows:
        if row.kind == Kind.SESSION:
            with suppress(msgspec.DecodeError):
                yield msgspec.json.decode(row.data, type=SessionData)


class _TakeoverPolicy(NamedTuple):
    """Decides which sessions and tasks are continued: only ids in *among* (``None``: all ids) that are not *left_over*
    from ended workstreams, depending on *agents* and *settings*."""

    registry: SessionRegistry
    agents: Mapping[str, AgentProfile]
    settings: Settings
    among: Collection[str] | None
    left_over: Collection[str]

    def stays(self, work: Entity) -> bool:
        """Return whether *work* waits for a run of its plan. The setting ``recovery.sessions`` does not decide that:
        tasks keep their states when all sessions are stopped."""
        return self._is_wanted(work.id) and (work.kind is not Kind.TASK or bool(work.data.workstream))

    def goes_on(self, session: Entity, past: SessionHistory, agent: Entity | None) -> bool:
        """Return whether a session is continued; *agent* is the agent that was alive, if any."""
        how, profile = self.settings.recovery.sessions, self.agents.get(session.data.agent)
        if how == "stop" or profile is None or not self._is_among(session.id):
            return False
        turn = self.registry.entities.get(session.data.turn_id)
        return how == "restart" or loses_nothing(profile, session, agent, turn) or self._has_answered(session, past)

    def _has_answered(self, session: Entity, past: SessionHistory) -> bool:
        """Return whether the session has completed its only prompt, the prompt of a task: then the session is needed,
        but no agent, since only the verification is left."""
        if past.answer is None or session.data.current is not None or session.data.queue:
            return False
        tasks = [one for one in self.registry.entities.values() if one.kind is Kind.TASK and one.data.workstream]
        return any(one.data.claimed_by == session.id and one.state in HELD for one in tasks)

    def _is_among(self, session_id: str) -> bool:
        """Return whether the session, or a session above it, is chosen; false if the session, or one above it, is left
        over."""
        session, found = self.registry.sessions.get(session_id), self.among is None
        while session is not None and session.session_id not in self.left_over:
            found, session = found or self._is_wanted(session.session_id), session.parent
        return found and session is None

    def _is_wanted(self, entity_id: str) -> bool:
        return entity_id not in self.left_over and (self.among is None or entity_id in self.among)


def _launches(rows: Iterable[EntityRow]) -> dict[str, int]:
    """Return, for each session, the number of its last agent in the journal."""
    found: dict[str, int] = {}
    for row in rows:
        if row.kind == Kind.AGENT and row.parent_id is not None:
            number = int(row.id.rpartition(":a")[2])
            found[row.parent_id] = max(number, found.get(row.parent_id, 0))
    return found
