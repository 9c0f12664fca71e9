"""What a supervisor takes over from the one before it, and who decides what goes on: its settings, and its host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import msgspec

from supervisor.aborts.termination import TerminationService
from supervisor.lifecycles.session import SessionData
from supervisor.lifecycles.task import Task
from supervisor.lifecycles.types import AbortPolicy, CancelMode, Kind
from supervisor.plans import Settings
from supervisor.ports import EntityRow, Journal, JournalError
from supervisor.recovery.journal_state import RecordedOutcome, SessionHistory, at_rest, left_over
from supervisor.recovery.restore import Recovered, Recovery, end_work, loses_nothing
from supervisor.recovery.resumable import FinishedRuns, finished
from supervisor.runtime.entity import Entity
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.runtime.live_session import AgentProfile, LiveSession
from supervisor.sessions.effect_executor import EffectExecutor

__all__ = ["Choose", "RecoveredWork", "Takeover"]

Choose = Callable[[Sequence[EntityRow]], Collection[str]]
"""Which of a journal's sessions and tasks go on: given all its entities, their ids."""
Admit = Callable[[str, LiveSession | None, AgentProfile, AbortPolicy, str | None, CancelMode], LiveSession]
"""Makes the work of a session: its id, its parent's, its agent, its policy, the call that asked for it, its mode."""

_WORK: Final = (Kind.WORKSTREAM, Kind.TASK, Kind.RUN, Kind.JOB, Kind.WORKER, Kind.SESSION)
"""What a run of a plan looks at to find out what it goes on with."""

HELD = frozenset({Task.CLAIMED, Task.IN_PROGRESS, Task.DONE})
"""A task in one of these has a session that works on it, or has."""


class RecoveredWork(NamedTuple):
    """What an earlier supervisor left of its plans: the work that nobody has taken up yet, how the last prompt of a
    session ended, and all work and every session of the journal as it was found, by id. *finished*: the runs that had
    ended, of which some may not have reported their results."""

    work: set[str]
    answers: Mapping[str, RecordedOutcome]
    rows: Mapping[str, EntityRow]
    finished: FinishedRuns


class Takeover:
    """What an earlier supervisor left, and what of it is still to be taken up.

    Args:
        registry, journal, effect_executor, endings: of the supervisor that takes over.
        admit: makes the work of a session.
        ended: waits for a session's last record.
        revived: hears of each session that is taken over, with what its log tells.
        inherit: hears of all sessions that the earlier one left, before any of them goes on.
    """

    def __init__(
        self,
        registry: EntityRegistry,
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
        self.left = RecoveredWork(work=set(), answers={}, rows={}, finished=finished(()))

    async def take_over(
        self,
        rows: Sequence[EntityRow],
        agents: Mapping[str, AgentProfile],
        settings: Settings,
        choose: Choose | None,
    ) -> Recovered:
        """Take over what *rows*, every entity of the journal, tell of.

        Raises:
            JournalError: the journal failed meanwhile.
        """
        heir = _TakeoverPolicy(
            self._registry, agents, settings, None if choose is None else choose(rows), left_over(rows)
        )
        recovery = Recovery(
            self._registry,
            self._journal,
            self._effect_executor,
            self._endings,
            admit=partial(self._revive, heir, _launches(rows)),
            goes_on=heir.goes_on,
            stays=heir.stays,
            ended=self._ended,
        )
        rests = at_rest(rows)
        live = [row for row in rows if not row.ended and row.id not in rests]
        self._inherit(_sessions(live))
        recovered = await recovery.run(live, [row for row in rows if row.kind == Kind.SESSION])
        kept = {row.id: row for row in rows if row.kind in _WORK} if recovered.work else {}
        self.left = RecoveredWork(set(recovered.work), recovered.answers, kept, finished(rows))
        return recovered

    async def end_work(self) -> None:
        """Nobody has taken this up."""
        with suppress(JournalError):
            left = [self._registry.entity(one) for one in sorted(self.left.work)]
            await end_work(self._registry, left)
        self.left.work.clear()

    def _revive(
        self, heir: _TakeoverPolicy, launches: Mapping[str, int], row: EntityRow, past: SessionHistory
    ) -> LiveSession:
        data = msgspec.json.decode(row.data, type=SessionData)
        above = self._registry.sessions.get(row.parent_id or "")
        profile = heir.agents.get(data.agent) or AgentProfile(name=data.agent, adapter="")
        policy = past.policy or (above.policy if above is not None else heir.settings.policy.value())
        session = self._admit(row.id, above, profile, policy, past.started_by, past.mode)
        session.requests, session.crashes = past.requests, past.crashes
        session.directory, session.workspace_spec = past.directory or session.directory, past.workspace_spec
        self._revived(session, past)
        session.launches = max(data.incarnation, launches.get(row.id, 0))  # those of old incarnations may be archived
        return session


def _sessions(rows: Iterable[EntityRow]) -> Iterator[SessionData]:
    """What is known of each session; of one that is damaged nothing, which the recovery says by its name."""
    for row in rows:
        if row.kind == Kind.SESSION:
            with suppress(msgspec.DecodeError):
                yield msgspec.json.decode(row.data, type=SessionData)


class _TakeoverPolicy(NamedTuple):
    """Who takes over: with which agents and settings, what of it all (``None``: everything), and what has nobody who
    could go on with it."""

    registry: EntityRegistry
    agents: Mapping[str, AgentProfile]
    settings: Settings
    among: Collection[str] | None
    left_over: Collection[str]

    def stays(self, work: Entity) -> bool:
        """Whether it waits for a run of its plan."""
        wanted = self.settings.recovery.sessions != "stop" and self._is_wanted(work.id)
        return wanted and (work.kind is not Kind.TASK or bool(work.data.workstream))

    def goes_on(self, session: Entity, past: SessionHistory, agent: Entity | None) -> bool:
        """Whether a session goes on; *agent* is the one that it had."""
        how, profile = self.settings.recovery.sessions, self.agents.get(session.data.agent)
        if how == "stop" or profile is None or not self._is_among(session.id):
            return False
        turn = self.registry.entities.get(session.data.turn_id)
        return how == "restart" or loses_nothing(profile, session, agent, turn) or self._has_answered(session, past)

    def _has_answered(self, session: Entity, past: SessionHistory) -> bool:
        """It was there for one task and has answered: what is left is to judge its work, and that needs no agent."""
        if past.answer is None or session.data.current is not None or session.data.queue:
            return False
        tasks = [one for one in self.registry.entities.values() if one.kind is Kind.TASK and one.data.workstream]
        return any(one.data.claimed_by == session.id and one.state in HELD for one in tasks)

    def _is_among(self, session_id: str) -> bool:
        """Whether it is wanted, or one above it is; nobody below what is left over goes on."""
        session, found = self.registry.sessions.get(session_id), self.among is None
        while session is not None and session.session_id not in self.left_over:
            found, session = found or self._is_wanted(session.session_id), session.parent
        return found and session is None

    def _is_wanted(self, entity_id: str) -> bool:
        return entity_id not in self.left_over and (self.among is None or entity_id in self.among)


def _launches(rows: Iterable[EntityRow]) -> dict[str, int]:
    """The number of each session's last agent that the journal has."""
    found: dict[str, int] = {}
    for row in rows:
        if row.kind == Kind.AGENT and row.parent_id is not None:
            number = int(row.id.rpartition(":a")[2])
            found[row.parent_id] = max(number, found.get(row.parent_id, 0))
    return found
