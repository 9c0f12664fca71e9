"""Recovery of the sessions of a dead supervisor: each entity is restored, and continues by its own state machine.

The processes are dead already: fork server and shims end with their supervisor. So each agent receives ``AgentExited``
before any other event. Running turns fail, without a charge to any agent, and their sessions try again. A pending
effect is performed once, under its own id. An effect that cannot be repeated, or that may have been performed already,
is acknowledged without being performed, and the session's ``Resumed`` record names the effect. Timers count from their
original start. A session that is not continued is stopped, and terminates like any other session.

Entities that belong to no session (``Recovery.others``, the work of plans) are restored as they are: the caller decides
about them, between :meth:`Recovery.restore` and :meth:`Recovery.finish`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

import anyio
from msgspec.structs import replace

from actors.machine import Effect, Event
from supervisor.lifecycles.agent import Agent
from supervisor.lifecycles.effects import (
    BuildPrompt,
    CleanUp,
    FinalizeEntity,
    LogFatal,
    OpenTurn,
    PrepareWorktree,
    ReplyToRequest,
    SendEvent,
    StartTimer,
    StorePrompt,
    Verify,
)
from supervisor.lifecycles.events import (
    AgentExited,
    AgentReaped,
    AgentSpawned,
    BackoffElapsed,
    CompactNeeded,
    FatalError,
    OperatorStop,
    SessionExited,
    TaskClaimed,
    TaskCompleted,
    TaskFailed,
    ToolCompleted,
    VerifyRequested,
)
from supervisor.lifecycles.session import Session, backoff_ms
from supervisor.lifecycles.turn import Turn
from supervisor.lifecycles.types import (
    BEGINNING,
    SUPERVISOR_ENDED,
    AbortReason,
    AbortScope,
    Exit,
    Kind,
    LifecycleEvent,
    RecordId,
    TerminationStage,
    ToolOutcome,
    TransitionReason,
    Verdict,
)
from supervisor.policies.abort_request import AbortRequest
from supervisor.ports import EntityRow, Journal
from supervisor.ports.agent_profile import AgentProfile
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Entity
from supervisor.runtime.journal_writer import Cause, PendingEffect
from supervisor.sessions.journal_state import (
    RESUMED,
    RecordedOutcome,
    RecoveredEffect,
    SessionHistory,
    crossed_from,
    due_of,
    entity_of,
    is_own,
    past_of,
    used_meanwhile,
)
from supervisor.sessions.live_session import LiveSession, SessionPhase
from supervisor.sessions.registry import SessionRegistry
from supervisor.sessions.services import SessionServices
from supervisor.sessions.session import SessionEntity
from supervisor.sessions.turn import TurnEntity

_log = get_logger()

CAUSE: Final = Cause(actor="recovery")
LOSS: Final = Verdict(
    exit=Exit.ERROR,
    error=SUPERVISOR_ENDED,
    transition_reason=TransitionReason.ORPHAN_RECOVERED,
    abort_reason=AbortReason.UNKNOWN,
)
REPEATED: Final = (
    ReplyToRequest,
    BuildPrompt,
    FinalizeEntity,
    CleanUp,
    LogFatal,
    OpenTurn,
    PrepareWorktree,
    StorePrompt,
    SendEvent,
    Verify,
)
"""Effects that may be performed again: sent messages, and effects that have the same result each time."""
BY_PROMPT: Final = frozenset({"command", "inprocess"})
"""Adapters whose agents handle each prompt on its own, without a conversation."""
WORKING: Final = frozenset({Session.RUNNING, Session.INTERRUPTING})
SETTLED: Final = frozenset({Turn.COMPLETING, Turn.FAILED})

Admit = Callable[[EntityRow, Entity, SessionHistory], SessionEntity]
"""Function that makes the live session of a row, given the entity that was read from the row, and adds the live
session to the registry."""
GoesOn = Callable[[Entity, SessionHistory, Entity | None], bool]
"""Function that decides whether a session is continued, given its entity, its history, and its agent (``None``: no
agent was alive)."""


class Recovered(NamedTuple):
    """Result of a recovery: ids of the sessions that are continued and of the sessions that were stopped, and the last
    recorded outcome of each session."""

    resumed: tuple[str, ...]
    stopped: tuple[str, ...]
    answers: Mapping[str, RecordedOutcome]


class Recovery:
    """Restores the live entities that one dead supervisor left, and continues or stops the sessions among them.

    Args:
        registry, journal, services: parts of the supervisor that takes over.
        goes_on: function that decides whether a session is continued.
        ended: function that waits for a session's last record.
    """

    def __init__(
        self,
        registry: SessionRegistry,
        journal: Journal,
        services: SessionServices,
        *,
        admit: Admit,
        goes_on: GoesOn,
        ended: Callable[[LiveSession], Awaitable[None]],
    ) -> None:
        self._registry, self._journal, self._services = registry, journal, services
        self._admit, self._decides, self._ended = admit, goes_on, ended
        self._pasts: dict[str, SessionHistory] = {}
        self._states: dict[str, Session] = {}
        """State of each session at the time when its supervisor died."""
        self._turns: list[tuple[Entity, Turn]] = []
        self._crossed: dict[str, list[LifecycleEvent]] = {}
        """For each session, the records of policy edges that aborts of its turns' tool calls crossed."""
        self._agents: list[Entity] = []
        self.others: list[Entity] = []
        """Restored entities that belong to no session: workstreams, tasks, runs, jobs and workers."""
        self._live: list[SessionEntity] = []
        self._going: set[str] = set()
        self._given_up: set[str] = set()
        self._opening: set[str] = set()
        """Ids of the turns that are about to be opened."""
        self._causes: dict[str, Cause] = {}
        """For each session, the cause of the later steps of its recovery: its ``Resumed`` record, or the record of its
        stop."""

    async def restore(self, rows: Sequence[EntityRow], sessions: Sequence[EntityRow]) -> None:
        """Restore *rows*, all live entities of the journal; continue or stop each session. *sessions* are all sessions
        of the journal, ended ones included.

        Raises:
            JournalError: the journal failed meanwhile.
        """
        found, owed = await self._read(sorted(rows, key=lambda row: row.born_seq), sessions)
        for row, entity in found:
            self._revive(row, entity)
        live = [self._registry.sessions[session_id] for session_id in self._pasts]
        again = [one for one in owed if self._happens_again(one)]
        self._opening = {one.effect.turn_id for one in again if isinstance(one.effect, OpenTurn)}
        for one in owed:
            if one not in again:
                self._registry.journal_writer.acknowledge(one.effect_id)
        for session in live:
            self._note(session, owed, again)
        for turn, state in self._turns:
            if state is Turn.IDLE:  # only a turn that is claimed can fail
                self._send(turn.id, TaskClaimed(request_id=self._request_of(turn.parent_id or "")))
        verdicts = [one for one in again if _is_verdict(one)]
        for one in verdicts:
            self._perform(one.entity_id, one.effect, one.seq, one.effect_id)  # before the end of its session
        await self._stop(live)
        self._go_on(live, [one for one in again if not _is_verdict(one)])
        self._live = live

    async def finish(self) -> Recovered:
        """Wait for the last records of the sessions that were stopped, and return the result.

        Raises:
            JournalError: the journal failed meanwhile.
        """
        stopped = [session for session in self._live if session.is_stopping]
        for session in stopped:
            await self._ended(session)
        await self._registry.journal_writer.flush()
        await self._registry.journal_writer.acknowledge_all()
        left = {session.session_id: None for session in stopped}
        return Recovered(
            resumed=tuple(one for one in self._pasts if one not in left),
            stopped=tuple(left),
            answers={one: past.answer for one, past in self._pasts.items() if past.answer is not None},
        )

    # ------------------------------------------------------------------ reading
    async def _read(
        self, rows: Sequence[EntityRow], sessions: Sequence[EntityRow]
    ) -> tuple[list[tuple[EntityRow, Entity]], list[RecoveredEffect]]:
        """Read everything that is needed from the journal, so that damage is found before any entity is restored."""
        found = [(row, entity_of(row, self._registry.journal_writer)) for row in rows]
        roots = {row.id for row in rows if row.parent_id is None}
        for row, entity in found:
            if entity.kind is Kind.SESSION:
                past = self._pasts[row.id] = await past_of(self._journal, row.id)
                if entity.data.verifying:  # its request was replied to, though the turn is not over
                    past.answer = RecordedOutcome("completed", "", past.entered_seq)
            elif entity.kind is Kind.TURN:
                if entity.data.session_id not in roots:  # a root session has no siblings and no parent
                    self._crossed.setdefault(entity.data.session_id, []).extend(
                        await crossed_from(self._journal, row.id)
                    )
                if entity.data.due_s is None:
                    entity.data = replace(entity.data, due_s=await due_of(self._journal, entity))
        used = await used_meanwhile(self._journal, self._pasts, sessions)
        for past in self._pasts.values():
            past.budget = past.budget.counting(used)
        return found, [RecoveredEffect.of(row) for row in await self._journal.owed()]

    def _revive(self, row: EntityRow, entity: Entity) -> None:
        match entity.kind:
            case Kind.SESSION:
                self._states[row.id] = Session(entity.state)
                session = self._admit(row, entity, self._pasts[row.id])
                self._registry.restore_entity(session, home=session.root_id, contained=session.root_id != session.id)
                return
            case Kind.TURN:
                above = self._registry.sessions.get(row.parent_id or "")
                entity = TurnEntity(self._services, above, entity.data, state=Turn(entity.state))
                entity.continue_log(row)
                self._turns.append((entity, Turn(entity.state)))
            case Kind.AGENT:
                self._agents.append(entity)
            case Kind.TASK | Kind.RUN | Kind.JOB | Kind.WORKSTREAM | Kind.WORKER:
                self.others.append(entity)
            case Kind.TRIGGER:  # only a daemon goes on with it (``triggers.service``)
                return
        self._registry.restore_entity(entity)

    def _had(self, session_id: str) -> Entity | None:
        """Return the agent of the session that was alive, or ``None``; a session has at most one."""
        return next((one for one in self._agents if one.parent_id == session_id), None)

    def _turn_of(self, session: LiveSession) -> Entity | None:
        """Return the turn of the session's last prompt, if that turn is alive."""
        return self._registry.entities.get(session.data.turn_id)

    # ------------------------------------------------------------------ pending effects
    def _happens_again(self, one: RecoveredEffect) -> bool:
        entity = self._registry.entities.get(one.entity_id)
        if isinstance(one.effect, SendEvent):
            compacts = isinstance(one.effect.event, CompactNeeded | VerifyRequested)
            return one.effect.to in self._registry.entities and not compacts
        if entity is None or not isinstance(one.effect, REPEATED):
            return False
        if isinstance(one.effect, OpenTurn | PrepareWorktree | BuildPrompt) and not self._goes_on(entity.id):
            return False
        return not (isinstance(one.effect, OpenTurn) and one.effect.turn_id in self._registry.entities)

    def _goes_on(self, session_id: str) -> bool:
        if session_id not in self._causes:  # decided once
            past, entity = self._pasts[session_id], self._registry.entity(session_id)
            stopped = self._states[session_id] is Session.STOPPED
            if not stopped and not past.lost and self._decides(entity, past, self._had(session_id)):
                self._going.add(session_id)
            self._causes[session_id] = Cause(past.entered_seq, None, CAUSE.actor) if stopped else CAUSE
        return session_id in self._going

    def _perform(self, entity_id: str, effect: Effect, seq: RecordId, effect_id: str | None = None) -> None:
        entity = self._registry.entities.get(entity_id)  # None if it has ended meanwhile
        if entity is not None:
            self._registry.perform(PendingEffect(entity_id, effect_id, effect, seq, entity.epoch))
            return
        if not (isinstance(effect, SendEvent) and self._registry.forward(effect, Cause(seq, effect_id, entity_id))):
            self._registry.journal_writer.acknowledge(effect_id)

    # ------------------------------------------------------------------ the Resumed record
    def _note(self, session: LiveSession, owed: Sequence[RecoveredEffect], again: Sequence[RecoveredEffect]) -> None:
        """Record, for a session that is continued, which effects are repeated, and for which effects it is unknown
        whether they were performed."""
        session_id, past = session.session_id, self._pasts[session.session_id]
        if not self._goes_on(session_id):
            return
        agent = self._had(session_id)
        session.resume_id = past.resume_id if agent is None else agent.data.resume_id
        was_at_work = self._states[session_id] in WORKING
        # If the agent had finished its turn, the next prompt was not begun.
        session.interrupted = (past.interrupted or was_at_work) and not is_done(self._turn_of(session))
        turn = self._turn_of(session)
        open_calls = tuple(call.title for call in turn.data.open) if turn is not None else ()
        session.open_calls = (open_calls or past.open_calls) if session.interrupted else ()
        mine = [one for one in owed if one.entity_id.partition(":")[0] == session_id]
        fact = {
            "state": self._states[session_id].value,
            "resume_id": session.resume_id,
            "interrupted": session.interrupted,
            "open_calls": list(session.open_calls),
            "again": [_named(one) for one in mine if one in again],
            "unknown": [_named(one) for one in mine if one not in again and not isinstance(one.effect, StartTimer)],
        }
        record = self._registry.entity(session_id).record_fact(
            RESUMED, CAUSE, fact, reason="its supervisor ended; it goes on"
        )
        self._causes[session_id] = Cause(record.seq, None, CAUSE.actor)

    def _send(self, entity_id: str, event: Event) -> None:
        entity = self._registry.entities.get(entity_id)
        if entity is not None:
            above = entity.id if entity.kind is Kind.SESSION else entity.parent_id or ""
            self._registry.send(entity_id, event, cause=self._causes.get(above, CAUSE))

    # ------------------------------------------------------------------ ends
    async def _stop(self, live: Sequence[SessionEntity]) -> None:
        """Continue terminations that were under way, and stop sessions that are not continued, parents first. When this
        returns, all of these sessions, and the sessions that end with them, are terminating."""
        for session in live:
            if self._states[session.session_id] is Session.STOPPED:
                self._end(session)
        for session in live:
            self._finish_aborts(session)
        for session in [one for one in live if one.is_stopping]:
            # Before a session above it ends, and it gets another parent.
            await session.reached(SessionPhase.TERMINATING).wait()
        for session in live:
            if not (session.is_stopping or self._goes_on(session.session_id)):
                session.kill_at_once = True  # its processes were killed with its supervisor
                self._registry.send(session.session_id, FatalError(message=SUPERVISOR_ENDED), cause=CAUSE)
                # The sessions that end with it have processed that as well. The disk is waited for after all have.
                await session.reached(SessionPhase.TERMINATING).wait()
                self._causes[session.session_id] = Cause(session.stopped_by_seq, None, CAUSE.actor)
                self._given_up.add(session.session_id)
        for session in [one for one in live if one.is_stopping]:
            await session.reached(SessionPhase.TERMINATING).wait()
            if self._states[session.session_id] is not Session.STOPPED and session.session_id not in self._given_up:
                self._causes[session.session_id] = Cause(session.stopped_by_seq, None, CAUSE.actor)

    def _end(self, session: SessionEntity) -> None:
        """Continue a termination that was under way; the time that has passed since its begin counts."""
        data, past = session.data, self._pasts[session.session_id]
        elapsed_s = max(0.0, self._registry.journal_writer.clock.now() - past.entered_s)
        deadline = anyio.current_time() - elapsed_s + session.policy.ladder.total_s
        session.stop_request = AbortRequest(
            abort_id=data.abort_id,
            reason=data.last_error,
            severity=TerminationStage.KILL,
            deadline=deadline,
            later=past.later,
        )
        session.kill_at_once = True
        cause = self._causes[session.session_id]
        session.terminate(cause, data.abort_id, now=False, elapsed_s=elapsed_s)

    def _finish_aborts(self, session: LiveSession) -> None:
        """Stop the remaining targets of recorded aborts, and the targets of the policy edges that these aborts
        crossed."""
        for record in (*self._pasts[session.session_id].aborts, *self._crossed.get(session.session_id, ())):
            siblings = record.metadata["scope"] == AbortScope.SIBLING
            stop = OperatorStop(
                reason=record.reason,
                abort_id=record.abort_id,
                abort_reason=record.abort_reason,
                transition_reason=TransitionReason.SIBLING_ABORTED if siblings else TransitionReason.ABORTED,
            )
            for one in self._reach(session, record):
                one.kill_at_once = True
                one.request_stop(stop, cause=Cause(record.seq, None, CAUSE.actor))

    def _reach(self, session: LiveSession, record: LifecycleEvent) -> list[LiveSession]:
        """Return the targets of an abort record of *session*, or of a tool call of *session*: sessions that had their
        present parent when the record was made. Sessions below a target end with the target."""
        if is_own(record):
            return [session] if self._states[session.session_id] is not Session.STOPPED else []
        family = [session, *session.parent.children.values()] if session.parent is not None else []
        there = [one for one in family if self._pasts[one.session_id].joined_seq < record.seq]
        if session.parent is None or session not in there:
            return []  # its parent and siblings of then are not its present ones
        if record.metadata["policy_edge"] == "sibling_to_session":
            return [session.parent]
        return [one for one in there if one is not session]

    # ------------------------------------------------------------------ sessions that go on
    def _go_on(self, live: Sequence[LiveSession], again: Sequence[RecoveredEffect]) -> None:
        """Continue the sessions: first send the events that are already known, so that nothing begins on outdated
        state. Awaits nothing."""
        for agent in self._agents:
            self._send(
                agent.id, AgentExited(reason=SUPERVISOR_ENDED, ended_by="kill", abort_reason=AbortReason.UNKNOWN)
            )
        for session in live:
            self._watch_again(session)
        for one in again:
            if self._is_late(one):
                self._registry.journal_writer.acknowledge(one.effect_id)
            else:
                self._perform(one.entity_id, one.effect, one.seq, one.effect_id)
        begun = {(one.entity_id, type(one.effect)) for one in again}
        for session in live:
            self._step(session, begun)
        for turn, state in self._turns:
            self._continue_turn(turn, state, begun)

    def _is_late(self, one: RecoveredEffect) -> bool:
        """Return whether the effect is an ``AgentSpawned`` (progress of an agent) for a turn whose session is
        ending."""
        session = self._registry.sessions.get(one.entity_id)
        return (
            isinstance(one.effect, SendEvent)
            and isinstance(one.effect.event, AgentSpawned)
            and (not session or session.is_stopping)
        )

    def _watch_again(self, session: LiveSession) -> None:
        """Monitor and bound a turn that no agent has begun, before its prompt is built, since the prompt may state the
        bounds. A turn that is opened now is monitored from its first event on, and not here."""
        if session.monitor is None or session.is_stopping or not self._goes_on(session.session_id):
            return
        turn_id = session.data.turn_id
        if self._unbegun(session) is not None and turn_id in self._registry.entities and turn_id not in self._opening:
            session.monitor.turn_opened(turn_id)

    def _unbegun(self, session: LiveSession) -> PrepareWorktree | BuildPrompt | None:
        """Return the preparing step of the session's turn that was under way; ``None`` once an agent has begun the
        turn."""
        match self._states[session.session_id]:
            case Session.INITIALIZING | Session.SESSION_COMPLETE:
                turn_id = session.data.turn_id
                return PrepareWorktree() if self._waits_for_worktree(turn_id) else None
            case Session.BUILDING_PROMPT:
                return BuildPrompt()
            case _:
                return None

    def _step(self, session: LiveSession, begun: set[tuple[str, type]]) -> None:
        """Begin the step that was under way again, unless that step is a pending effect and has been performed."""
        session_id = session.session_id
        if session.is_stopping or not self._goes_on(session_id):
            return
        if (step := self._unbegun(session)) is not None:
            self._begin(session_id, step, begun)
        data = self._registry.entity(session_id).data
        match self._states[session_id]:
            case Session.SPAWNING:
                self._send(session_id, SessionExited(incarnation=data.incarnation, verdict=LOSS))
            case Session.COOLING_DOWN if not data.cooled:  # else the end of its turn starts the next try
                # The backoff began before the supervisor died, and counts from then.
                past, backoff_s = self._pasts[session_id], backoff_ms(data.consecutive_errors, data.limits) / 1000
                left_s = past.entered_s + backoff_s - self._registry.journal_writer.clock.now()
                timer = StartTimer(name="backoff", delay_s=max(0.0, left_s), event=BackoffElapsed())
                self._perform(session_id, timer, past.entered_seq)

    def _waits_for_worktree(self, turn_id: str) -> bool:
        """Return whether the turn is live, or about to be opened, and has no agent yet."""
        turn = next((state for one, state in self._turns if one.id == turn_id), None)
        return turn_id in self._opening or turn in (Turn.IDLE, Turn.CLAIMING)

    def _begin(self, entity_id: str, effect: Effect, begun: set[tuple[str, type]]) -> None:
        if (entity_id, type(effect)) not in begun:
            seq = self._causes.get(entity_id.partition(":")[0], CAUSE).seq
            self._perform(entity_id, effect, seq or BEGINNING)

    # ------------------------------------------------------------------ turns
    def _continue_turn(self, turn: Entity, state: Turn, begun: set[tuple[str, type]]) -> None:
        """Fail a turn that had begun, since its agent is dead; continue the verification or clean-up of a turn that is
        over."""
        session = self._registry.sessions.get(turn.parent_id or "")
        if turn.id not in self._registry.entities:
            return
        if session is None:
            self._end_alone(turn, state)
        elif turn.data.phase == "settled" and state not in SETTLED:
            return  # the turn has ended with its session meanwhile
        elif state in SETTLED:
            self._recall_failure(session, turn)
            self._begin(turn.id, CleanUp(), begun)
        elif state is Turn.VERIFYING:
            self._begin(turn.id, Verify(), begun)
        elif turn.data.verdict is not None:  # its agent was to compact the context first, and is dead
            self._send(turn.id, VerifyRequested(verdict=turn.data.verdict))
        elif not self._waits(session, turn):
            self._send(turn.id, TaskFailed(verdict=LOSS))

    def _recall_failure(self, session: SessionEntity, turn: Entity) -> None:
        """Count a turn that failed on its own, and that its session has not processed yet, as a failure of the
        session's agent."""
        data, verdict = session.data, turn.data.verdict
        mine = data.turn_id == turn.id and self._states[session.session_id] is Session.RUNNING
        if mine and verdict is not None and verdict.transition_reason != TransitionReason.ORPHAN_RECOVERED:
            session.failures.prompted = data.incarnation

    def _waits(self, session: LiveSession, turn: Entity) -> bool:
        """Return whether the turn has no agent yet, and its session will start an agent, or report that the start has
        failed."""
        data = session.data
        if data.turn_id != turn.id or data.current is None:
            return False
        state = self._states[session.session_id]
        return session.session_id in self._given_up or (state not in WORKING and state is not Session.STOPPED)

    def _request_of(self, session_id: str) -> str:
        session = self._registry.entities.get(session_id)
        return session.data.current.id if session is not None and session.data.current is not None else ""

    def _end_alone(self, turn: Entity, state: Turn) -> None:
        """End a turn whose session was given up before the turn had ended, since no session ends the turn."""
        if state not in SETTLED:
            self._send(turn.id, TaskFailed(verdict=LOSS))
        for call in turn.data.open:
            unknown = ToolCompleted(
                call_id=call.call_id, outcome=ToolOutcome.UNKNOWN, reason=SUPERVISOR_ENDED, over=True
            )
            self._send(turn.id, unknown)
        self._send(turn.id, AgentReaped(degraded=True, note=SUPERVISOR_ENDED))


def loses_nothing(profile: AgentProfile, session: Entity, agent: Entity | None, turn: Entity | None = None) -> bool:
    """Return whether a session can be continued without a loss: its agent's conversation can be loaded, or there is
    none. *turn* is the turn of the session's last prompt, if that turn is alive."""
    if agent is None or agent.state is Agent.STARTING:
        return True
    if agent.data.resume_id is not None and profile.adapter == agent.data.adapter:
        return True
    return profile.adapter in BY_PROMPT and (session.state not in WORKING or is_done(turn))


def is_done(turn: Entity | None) -> bool:
    """Return whether the agent of the turn had reported success."""
    return turn is not None and turn.data.verdict is not None and turn.data.verdict.exit is Exit.SUCCESS


def _is_verdict(recovered: RecoveredEffect) -> bool:
    """Return whether the effect tells a turn that its task has judged its work: that the work was accepted, or, where
    the effect is one of the task's run, that it was rejected."""
    if not isinstance(recovered.effect, SendEvent):
        return False
    event = recovered.effect.event
    return isinstance(event, TaskCompleted) or (isinstance(event, TaskFailed) and "#" in recovered.entity_id)


def _named(one: RecoveredEffect) -> str:
    return f"{one.effect_id} {type(one.effect).__struct_config__.tag}"
