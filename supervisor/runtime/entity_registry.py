"""What is alive now: the entities, and the work that goes on for each session.

The journal says what happened; the tree says what there is to talk to. It decides nothing: it finds, tells, asks and
counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any

import msgspec

from actors import ActorStopped, ActorSystem, Lane, Limits
from actors.machine import Event
from supervisor.lifecycles.events import OperatorStop
from supervisor.lifecycles.session import SESSION, Session
from supervisor.lifecycles.types import Kind, LifecycleEvent, TerminationStage
from supervisor.policies.abort_plan import TreeNode
from supervisor.policies.abort_request import AbortState, MergeOutcome, merge_request, same_abort
from supervisor.ports import EntityRow
from supervisor.runtime.abort_tree_view import AbortTreeView
from supervisor.runtime.entity import Entity, Lifecycle, Refused, weight
from supervisor.runtime.id_allocator import IdAllocator
from supervisor.runtime.journal_writer import Cause, JournalWriter
from supervisor.runtime.live_session import LiveSession, NoSuchEntity, SessionPhase

__all__ = ["END_S", "EntityRegistry"]

_encode = msgspec.json.Encoder().encode

POST_S = 30 * 86_400.0
"""How long anything may wait for a record to become durable. A disk that is down is waited for, and answers when it has
recovered or is given up; a month is for the bug that lets it do neither."""

END_S = 60.0
"""What the kernel gives an entity's tasks to end before it counts them no more: longer than any ladder."""

_NOTHING = object()
"""What no table is asked about: an entity answers it when it comes to it."""

MAILBOX = Limits(size_of=weight)
"""The bounds of an entity's mailbox."""

HEARD_LAST = frozenset(SESSION.allowed(Session.STOPPED))
"""What still means something to a session that is ending."""


class EntityRegistry:
    """The living entities of one supervisor."""

    def __init__(self, system: ActorSystem, journal_writer: JournalWriter, names: IdAllocator) -> None:
        self.system = system
        self.journal_writer = journal_writer
        self.names = names
        self.entities: dict[str, Entity] = {}
        self.sessions: dict[str, LiveSession] = {}
        self.on_idle: Callable[[LiveSession], None] = lambda session: None
        """Called when nothing works for a session any more."""
        self.on_recorded: Callable[[LiveSession], None] = lambda session: None
        """Called when everything below a session has its last record."""
        self.on_deadline_shortened: Callable[[LiveSession], None] = lambda session: None
        """Called when the end of a session has become more urgent."""
        journal_writer.disk.down.then(self._pause_deadlines)

    # ------------------------------------------------------------------ birth and end
    def create_entity(
        self,
        lifecycle: Lifecycle,
        entity_id: str,
        *,
        parent_id: str | None,
        state: Enum,
        data: Any,
        cause: Cause,
        home: str | None = None,
        contained: bool = True,
    ) -> Entity:
        """Bring an entity to life under *parent_id*, with the first record of its log. One that is not *contained*
        belongs to its parent, but its scope does not: it may outlive it.

        Raises:
            ActorStopped: the parent is ending; nothing is born under it.
        """
        entity = Entity(lifecycle, entity_id, parent_id, state, data, self.journal_writer)
        self._spawn(entity, home, contained)
        entity.record_birth(cause)
        return entity

    def _spawn(self, entity: Entity, home: str | None, contained: bool) -> None:
        parent_id = entity.parent_id
        if parent_id is None or not contained:
            self.system.spawn(entity, entity.id, limits=MAILBOX, shutdown_s=END_S)
        else:
            self.system.spawn(entity, entity.id, parent=parent_id, home=home, limits=MAILBOX, shutdown_s=END_S)
        self.entities[entity.id] = entity
        above = self.sessions.get(parent_id) if parent_id is not None else None
        if above is not None:
            self._count_in(above, entity)

    def _count_in(self, above: LiveSession, entity: Entity) -> None:
        """A session's last record comes after those of what is below it; a child session's need not be durable."""
        above.unrecorded += 1
        if entity.kind is Kind.TURN:
            above.turns[entity.id] = entity
        if entity.kind is Kind.SESSION:
            entity.on_ended = lambda: self._count_out(above)
        else:
            entity.on_buried = lambda: self._count_out(above)

    def _count_out(self, above: LiveSession) -> None:
        above.unrecorded -= 1
        if above.unrecorded == 0 and above.phase >= SessionPhase.FINISHED:
            self.on_recorded(above)

    def add_session(self, session: LiveSession) -> None:
        """A session is about to be born."""
        self.sessions[session.session_id] = session
        session.attach()

    def remove_session(self, session: LiveSession) -> None:
        """It has ended, or was not born."""
        del self.sessions[session.session_id]
        self.names.drop_below(session.session_id)
        session.advance(SessionPhase.FINISHED)
        if session.parent is not None:
            del session.parent.children[session.session_id]

    def restore_entity(self, entity: Entity, *, home: str | None = None, contained: bool = True) -> None:
        """Take in an entity that an earlier supervisor left in the journal: as if born now, but for its record."""
        self._spawn(entity, home, contained and entity.parent_id in self.sessions)

    def remove(self, entity_id: str) -> None:
        """Its last record is durable: it leaves memory."""
        entity = self.entities.pop(entity_id, None)
        self.system.stop(entity_id, "ended")
        session = self.sessions.get(entity_id)
        if session is not None:
            self.remove_session(session)
            session.transcript.close()
            session.advance(SessionPhase.RECORDED)
        if entity is not None:
            self._detach(entity)

    def remove_crashed(self, entity: Entity) -> None:
        """Its actor is gone, and it has no last record."""
        self.entities.pop(entity.id, None)
        self._detach(entity)

    def _detach(self, entity: Entity) -> None:
        """Nothing more will be heard of it: its session does not wait for its last record."""
        above = self.sessions.get(entity.parent_id) if entity.parent_id is not None else None
        if above is not None:
            above.turns.pop(entity.id, None)
        entity.release()

    # ------------------------------------------------------------------ deadlines
    def _pause_deadlines(self) -> None:
        """The disk is down: a turn that waits for it does not run out of time meanwhile."""
        for entity in self.entities.values():
            if (ctx := self.system.context(entity.id)) is not None:
                entity.pause_deadline(ctx)
        self.journal_writer.disk.up.then(self._resume_deadlines)

    def _resume_deadlines(self) -> None:
        for entity in self.entities.values():
            if (ctx := self.system.context(entity.id)) is not None:
                entity.resume_deadline(ctx)
        self.journal_writer.disk.down.then(self._pause_deadlines)

    # ------------------------------------------------------------------ talking
    def send(self, entity_id: str, event: Event, *, cause: Cause, lane: Lane = Lane.CONTROL) -> bool:
        """Put *event* into the entity's mailbox; ``False`` if it is no more."""
        ref = self.system.ref(entity_id)
        if ref is None or entity_id not in self.entities or not self.accepts(entity_id, event):
            return False
        try:
            ref.tell(event, lane=lane, cause=cause)
        except ActorStopped:
            return False
        return True

    def accepts(self, entity_id: str, event: Event) -> bool:
        """``False`` if it is a session that is about to end, and *event* comes too late to mean anything to it."""
        session = self.sessions.get(entity_id)
        return session is None or not session.is_stopping or type(event) in HEARD_LAST

    def request_stop(
        self, session_id: str, stop: OperatorStop, *, cause: Cause, within_s: float | None = None
    ) -> MergeOutcome:
        """Tell a session to end, *within_s* if that is sooner than its ladder. Await-free: from here on it is ending.

        The first one who says so is heard; after that only who wants it at once, while anything of it is left to end.
        Every further abort is recorded.
        """
        session, entity = self.sessions.get(session_id), self.entities.get(session_id)
        if session is None or entity is None or entity.ended:
            return MergeOutcome.JOINED  # its last record is written
        wish, before = self._wish(session, stop, within_s), session.stop_request
        session.stop_request, joined = merge_request(before, wish)
        if joined is MergeOutcome.BEGAN and not session.is_stopping:
            session.stopped_by_seq = cause.seq
            session.advance(SessionPhase.STOP_REQUESTED)
            self.send(session_id, stop, cause=cause)
            return joined
        if stop.now and not session.kill_at_once and session.phase < SessionPhase.FINISHED:
            self.send(session_id, stop, cause=cause)
        elif before is not None and not same_abort(before, stop.abort_id):
            self._note_joined(session, before, stop, cause)
        if joined is MergeOutcome.RAISED:
            self.on_deadline_shortened(session)
        return joined

    def _wish(self, session: LiveSession, stop: OperatorStop, within_s: float | None) -> AbortState:
        ladder = session.policy.ladder
        bound_s = ladder.kill_s if stop.now else ladder.total_s
        return AbortState(
            abort_id=stop.abort_id,
            reason=stop.reason,
            abort_reason=stop.abort_reason,
            severity=TerminationStage.KILL if stop.now else TerminationStage.REQUEST,
            deadline=self.system.timers.now() + (bound_s if within_s is None else min(bound_s, within_s)),
        )

    def _note_joined(self, session: LiveSession, first: AbortState, stop: OperatorStop, cause: Cause) -> None:
        entity = self.entities.get(session.session_id)
        if entity is None or entity.ended:
            return
        told = {"joined": first.abort_id, "first_reason": first.reason}
        entity.record_fact("AbortJoined", cause, told, abort_id=stop.abort_id, reason=stop.reason)

    def reparent(self, child: LiveSession, cause: Cause, abort_id: str | None) -> None:
        """Its parent ends and it may live on: it belongs to the nearest ancestor that does not end, or to nobody."""
        left, heir = child.parent_id, self._surviving(child.parent)
        entity = self.entities.get(child.session_id)
        if entity is not None:
            entity.reparent(heir.session_id if heir is not None else None)
            if heir is not None:
                self._count_in(heir, entity)
        child.reparent(heir)
        if entity is not None and not entity.ended:
            ruled = msgspec.to_builtins(child.policy)  # not by its heir: it has been had from who is left
            told = {"left": left, "parent": child.parent_id, "mode": child.mode.value, "policy": ruled}
            entity.record_fact("Adopted", cause, told, abort_id=abort_id, reason=f"its parent {left} ended")

    def _surviving(self, session: LiveSession | None) -> LiveSession | None:
        while session is not None and session.is_stopping:
            session = session.parent
        return session

    async def post(
        self, entity_id: str, event: Event, *, cause: Cause, lane: Lane = Lane.NORMAL, withdraws: bool = False
    ) -> LifecycleEvent:
        """Send *event*, wait until its record is durable, and return that. Where the caller is cancelled, the entity
        hears of it all the same; with *withdraws* only if it has done so already.

        Raises:
            NoSuchEntity: nothing alive has that id.
            Refused: the entity's table does not allow it now.
            JournalError: the journal could not be written.
        """
        ref = self.system.ref(entity_id)
        if ref is None or entity_id not in self.entities:
            raise NoSuchEntity(entity_id)
        try:
            record: LifecycleEvent = await ref.ask(
                event, timeout_s=POST_S, lane=lane, cause=cause, detach=not withdraws
            )
        except ActorStopped as error:
            raise NoSuchEntity(entity_id) from error
        return record

    async def report(self, entity_id: str, event: Event, *, cause: Cause) -> int | None:
        """Tell and wait until it is durable; its number, or ``None`` if it was refused, or there is nobody to hear."""
        if not self.accepts(entity_id, event):
            return None
        try:
            record = await self.post(entity_id, event, cause=cause, lane=Lane.CONTROL)
        except (NoSuchEntity, Refused):
            return None
        return record.seq

    async def wait_processed(self, entity_id: str) -> None:
        """Wait until it has heard all that it was told up to now, or is no more."""
        ref = self.system.ref(entity_id)
        if ref is not None:
            with suppress(ActorStopped):
                await ref.ask(_NOTHING, timeout_s=POST_S, lane=Lane.CONTROL, detach=True)

    def record_fact(self, entity_id: str, name: str, cause: Cause, metadata: dict[str, Any], **described: Any) -> None:
        """Record a fact about an entity."""
        entity = self.entities.get(entity_id)
        if entity is not None:
            entity.record_fact(name, cause, metadata, **described)

    def record_turn_fact(self, session: LiveSession, name: str, metadata: dict[str, Any]) -> None:
        """Record a fact about the turn that a session's agent works on, if it works on one."""
        turn_id = session.connection.turn_id if session.connection is not None else None
        if turn_id is not None:
            self.record_fact(turn_id, name, session.cause, metadata)

    def write_transcript(self, session: LiveSession, source: str, text: str) -> None:
        """Into the transcript of a session: who says it, and what."""
        session.transcript.write(source, text, at=self.journal_writer.clock.wall.time())

    def cancel_scope(self, actor_id: str, cause: object) -> None:
        """Cancel everything that runs in an actor's scope."""
        ctx = self.system.context(actor_id)
        if ctx is not None:
            ctx.scope.cancel(cause)

    # ------------------------------------------------------------------ looking
    def is_open(self, tool_id: str) -> bool:
        """True if that tool call has no result yet."""
        turn_id, _, number = tool_id.rpartition(":c")
        turn = self.entities.get(turn_id)
        return turn is not None and any(str(call.number) == number for call in turn.data.open)

    def session(self, session_id: str) -> LiveSession:
        """The living session of that id.

        Raises:
            NoSuchEntity: there is none.
        """
        session = self.sessions.get(session_id)
        if session is None:
            raise NoSuchEntity(session_id)
        return session

    def entity(self, entity_id: str) -> Entity:
        """The living entity of that id.

        Raises:
            NoSuchEntity: there is none.
        """
        entity = self.entities.get(entity_id)
        if entity is None:
            raise NoSuchEntity(entity_id)
        return entity

    def children_of(self, session_id: str) -> list[LiveSession]:
        """The child sessions that are alive, oldest first."""
        session = self.sessions.get(session_id)
        return list(session.children.values()) if session is not None else []

    def abort_tree(self, *, hurry: bool = False) -> Mapping[str, TreeNode]:
        """The tree as aborts see it: sessions, open tool calls. Who is ending has ended, but for one to *hurry* it.

        A view, made as it is read: it is good until something is awaited.
        """
        return AbortTreeView(self.sessions, self.entities, hurry=hurry)

    def rows(self, *, data: bool = True) -> list[EntityRow]:
        """The living entities in the journal's form; their *data* costs the most, and can be left out."""
        return [_row(one, data=data) for one in self.entities.values()]

    def row(self, entity_id: str) -> EntityRow:
        """The living entity of that id in the journal's form.

        Raises:
            NoSuchEntity: there is none.
        """
        return _row(self.entity(entity_id), data=True)


def _row(entity: Entity, *, data: bool) -> EntityRow:
    return EntityRow(
        kind=entity.kind_name,
        id=entity.id,
        parent_id=entity.parent_id,
        state=entity.state._value_,
        data=_encode(entity.data) if data else b"",
        entity_seq=entity.entity_seq,
        ended=entity.ended,
        born_seq=entity.born_seq,
        born_at=entity.born_at,
        changed_at=entity.changed_at,
    )
