"""Registry of everything that is alive: entities, and the live session of each session entity.

The journal records what happened; the registry holds the entities that can receive messages. Callers can rely on these
rules:

* ``create_entity`` and ``request_stop`` never await. An abort that has planned the tree can terminate the tree before
  an entity is created or ends.
* A session that is stopping accepts only the events that its table allows in the state Stopped. Nothing is created
  below it, and ``reparent`` gives children that may outlive it to the nearest ancestor that is not stopping.
* A session's last record comes after the last records of its turns and agents, and after those of its child sessions.
  ``unrecorded`` counts them; ``on_recorded`` is called when the count is 0 and the session has finished.
* While the journal cannot be written, deadlines of entities are paused: a turn that waits for the disk does not time
  out meanwhile.

Example: an abort of session ``s`` with the turn ``s:t1``::

    request_stop("s", stop, cause=...)   ->  phase STOP_REQUESTED, OperatorStop in the mailbox of "s"
    "s" processes it: effect TerminateSession -> aborts.termination
    "s:t1" appends its last record       ->  remove("s:t1"), unrecorded == 0, on_recorded(s)
    "s" appends Ended                    ->  remove("s"), phase RECORDED
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any

import msgspec

from actors import ActorStopped, ActorSystem, Context, IllegalTransition, Lane, Limits
from actors.machine import Event, Step
from supervisor.lifecycles.entity_types import Lifecycle
from supervisor.lifecycles.events import OperatorStop
from supervisor.lifecycles.session import SESSION, Session
from supervisor.lifecycles.types import Kind, LifecycleEvent, TerminationStage
from supervisor.policies.abort_plan import TreeNode
from supervisor.policies.abort_request import EXITING_S, AbortRequest, MergeOutcome, merge_request, same_abort
from supervisor.ports import EntityRow
from supervisor.runtime.entity import (
    Entity,
    NoSuchEntity,
    Refused,
    weight,
)
from supervisor.runtime.journal_writer import Cause, JournalWriter
from supervisor.runtime.live_session import LiveSession, SessionPhase

_encode = msgspec.json.Encoder().encode


POST_S = 30 * 86_400.0
"""Seconds that a caller waits for a durable record. A journal that cannot be written recovers, or is given up; the
month given here only bounds the effect of a bug that prevents both."""


END_S = 60.0 + EXITING_S
"""Seconds that the actor kernel gives an entity's tasks to end: longer than the stage budgets of any policy, and the
wait for the kernel after that."""


_NOTHING = object()
"""Message without an event: an entity replies to it as soon as the entity has processed every message before."""


MAILBOX = Limits(size_of=weight)
"""Limits of an entity's mailbox."""


ALLOWED_WHILE_STOPPING = frozenset(SESSION.allowed(Session.STOPPED))
"""Types of events that a stopping session still accepts."""


class IdAllocator:
    """Allocator of ids that are unique in one journal: a name that was used before gets a number. *taken*: ids that the
    journal already contains.

    No two entities of a journal share an id. Names of root sessions are stored while the supervisor runs; of a name
    that was numbered only the last number is stored. Names below a session are stored while the session lives: nothing
    is created below a session that has ended, and the id of that session is not given again.
    """

    def __init__(self, taken: Collection[str] = ()) -> None:
        self._taken = set(taken)
        self._numbers: dict[str, int] = {}
        """Last number given to each name that was used more than once. All lower numbers are used too."""
        self._below: dict[str, IdAllocator] = {}

    def __len__(self) -> int:
        """Return the number of names that are stored."""
        return len(self._taken) + len(self._numbers) + sum(map(len, self._below.values()))

    def __contains__(self, name: str) -> bool:
        """Return whether the id *name* was used. Ids of entities below a session of this supervisor are not
        considered."""
        base, dash, number = name.rpartition("-")
        counted = dash and number.isdecimal() and number == str(int(number))
        return name in self._taken or (bool(counted) and 2 <= int(number) <= self._numbers.get(base, 1))

    def new(self, wanted: str, *, below: str | None = None) -> str:
        """Return *wanted*, or *wanted* with the first free number if *wanted* was used. *below* is the session above
        the new entity."""
        if below is None:
            return self._new(wanted, self)
        return self._below.setdefault(below, IdAllocator())._new(wanted, self)

    def drop_below(self, session_id: str) -> None:
        """Drop the stored names below a session that has ended."""
        self._below.pop(session_id, None)

    def _new(self, wanted: str, earlier: IdAllocator) -> str:
        number, found = self._numbers.get(wanted, 1), wanted
        while found in self or found in earlier._taken:
            number += 1
            found = f"{wanted}-{number}"
        if number > 1:
            self._numbers[wanted] = number
        else:
            self._taken.add(found)
        return found


class EntityRegistry:
    """Registry of the living entities and sessions of one supervisor."""

    def __init__(self, system: ActorSystem, journal_writer: JournalWriter, names: IdAllocator) -> None:
        self.system = system
        self.journal_writer = journal_writer
        self.names = names
        self.entities: dict[str, Entity] = {}
        self.sessions: dict[str, LiveSession] = {}
        self.on_idle: Callable[[LiveSession], None] = lambda session: None
        """Function that is called when no task and no child works for a session any more."""
        self.on_recorded: Callable[[LiveSession], None] = lambda session: None
        """Function that is called when every turn, agent and child of a finished session has its last record."""
        self.on_deadline_shortened: Callable[[LiveSession], None] = lambda session: None
        """Function that is called when a later request has shortened the deadline of a stopping session."""
        journal_writer.disk.down.then(self._pause_deadlines)

    # ------------------------------------------------------------------ creation and removal
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
        """Create an entity below the entity *parent_id*, and append the first record of the new entity's log.

        Args:
            home: actor whose dispatcher runs the entity.
            contained: the entity's scope lies in its parent's; otherwise the entity may outlive its parent.

        Raises:
            ActorStopped: the parent is stopping; nothing is created below it.
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
        """Make the session *above* wait for the last record of *entity*. The record must be durable; the last record of
        a child session need only be appended."""
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
        """Add a session that is about to be created."""
        self.sessions[session.session_id] = session
        session.attach()

    def remove_session(self, session: LiveSession) -> None:
        """Remove a session that has ended, or that could not be created."""
        del self.sessions[session.session_id]
        self.names.drop_below(session.session_id)
        session.advance(SessionPhase.FINISHED)
        if session.parent is not None:
            del session.parent.children[session.session_id]

    def restore_entity(self, entity: Entity, *, home: str | None = None, contained: bool = True) -> None:
        """Add an entity that an earlier supervisor left in the journal. This differs from a new entity in that no first
        record is appended."""
        self._spawn(entity, home, contained and entity.parent_id in self.sessions)

    def remove(self, entity_id: str) -> None:
        """Remove an entity from memory: no further event is sent to it, and no further record is made about it. Records
        that it has made already are written later if they are not durable yet."""
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
        """Remove an entity whose actor has crashed: it has no last record."""
        self.entities.pop(entity.id, None)
        self._detach(entity)

    def _detach(self, entity: Entity) -> None:
        """Remove *entity* from the session above it, which then stops waiting for the entity's last record."""
        above = self.sessions.get(entity.parent_id) if entity.parent_id is not None else None
        if above is not None:
            above.turns.pop(entity.id, None)
        entity.release()

    # ------------------------------------------------------------------ deadlines
    def _pause_deadlines(self) -> None:
        """Pause the deadlines of all entities, because the journal cannot be written."""
        for entity in self.entities.values():
            if (ctx := self.system.context(entity.id)) is not None:
                entity.pause_deadline(ctx)
        self.journal_writer.disk.up.then(self._resume_deadlines)

    def _resume_deadlines(self) -> None:
        for entity in self.entities.values():
            if (ctx := self.system.context(entity.id)) is not None:
                entity.resume_deadline(ctx)
        self.journal_writer.disk.down.then(self._pause_deadlines)

    # ------------------------------------------------------------------ messages
    def send(self, entity_id: str, event: Event, *, cause: Cause, lane: Lane = Lane.CONTROL) -> bool:
        """Put *event* into the entity's mailbox; return ``False`` if the entity is gone or does not accept the
        event."""
        ref = self.system.ref(entity_id)
        if ref is None or entity_id not in self.entities or not self.accepts(entity_id, event):
            return False
        try:
            ref.tell(event, lane=lane, cause=cause)
        except ActorStopped:
            return False
        return True

    def accepts(self, entity_id: str, event: Event) -> bool:
        """Return whether the entity accepts *event*. A stopping session does not accept an event that comes too late to
        have an effect."""
        session = self.sessions.get(entity_id)
        return session is None or not session.is_stopping or type(event) in ALLOWED_WHILE_STOPPING

    def request_stop(
        self, session_id: str, stop: OperatorStop, *, cause: Cause, within_s: float | None = None
    ) -> MergeOutcome:
        """Request a session to stop, within *within_s* seconds if that is sooner than its stage budgets. Never awaits.

        The first request is sent to the session. Later requests are merged into the first. The first request with
        ``now`` is sent too, as long as the session still runs; any other request is recorded, unless it belongs to an
        abort that was merged before.

        Returns:
            Effect of the request: it began the stop, made the stop harder or sooner, or only joined it.
        """
        session, entity = self.sessions.get(session_id), self.entities.get(session_id)
        if session is None or entity is None or entity.ended:
            return MergeOutcome.JOINED  # its last record is written
        ladder, before = session.policy.ladder, session.stop_request
        bound_s = ladder.kill_s if stop.now else ladder.total_s
        request = AbortRequest(
            abort_id=stop.abort_id,
            reason=stop.reason,
            abort_reason=stop.abort_reason,
            severity=TerminationStage.KILL if stop.now else TerminationStage.REQUEST,
            deadline=self.system.timers.now() + (bound_s if within_s is None else min(bound_s, within_s)),
        )
        session.stop_request, joined = merge_request(before, request)
        if joined is MergeOutcome.BEGAN and not session.is_stopping:
            session.stopped_by_seq = cause.seq
            session.advance(SessionPhase.STOP_REQUESTED)
            self.send(session_id, stop, cause=cause)
            if session.assigned_task is not None:
                session.assigned_task.note_stop(request, cause)
            return joined
        if stop.now and not session.kill_at_once and session.phase < SessionPhase.FINISHED:
            self.send(session_id, stop, cause=cause)
        elif before is not None and not same_abort(before, stop.abort_id):
            first = {"joined": before.abort_id, "first_reason": before.reason}
            entity.record_fact("AbortJoined", cause, first, abort_id=stop.abort_id, reason=stop.reason)
        if joined is MergeOutcome.RAISED:
            self.on_deadline_shortened(session)
        return joined

    def reparent(self, child: LiveSession, cause: Cause, abort_id: str | None) -> None:
        """Give a child session that outlives its parent to the nearest ancestor that is not stopping; without such an
        ancestor the child becomes a root session."""
        left, parent = child.parent_id, child.parent
        while parent is not None and parent.is_stopping:
            parent = parent.parent
        entity = self.entities.get(child.session_id)
        if entity is not None:
            entity.reparent(parent.session_id if parent is not None else None)
            if parent is not None:
                self._count_in(parent, entity)
        child.reparent(parent)
        if entity is not None and not entity.ended:
            ruled = msgspec.to_builtins(child.policy)  # the child keeps the policy that it had below its former parent
            told = {"left": left, "parent": child.parent_id, "mode": child.mode.value, "policy": ruled}
            entity.record_fact("Adopted", cause, told, abort_id=abort_id, reason=f"its parent {left} ended")

    def apply(self, *moves: tuple[str, Event], cause: Cause) -> LifecycleEvent:
        """Move the entities of one decision, each by its event, and return the last record. Never awaits.

        The records are written in one transaction (``JournalWriter.together``); each follows from the one before. The
        events do not pass through the mailboxes of the entities: they are processed before the messages that wait
        there.

        Example::

            registry.apply(("run:a", TestsPassed()), ("job:a", ValidationPassed()), cause=cause)
            await registry.journal_writer.flush()

        Raises:
            NoSuchEntity: an entity is gone; nothing is recorded.
            Refused: a table does not allow its event; only that is recorded.
        """
        steps: list[tuple[Entity, Context, Event, Step[Any, Any]]] = []
        after: dict[str, tuple[Enum, Any]] = {}
        for entity_id, event in moves:
            entity, ctx = self.entity(entity_id), self.system.context(entity_id)
            if ctx is None:
                raise NoSuchEntity(entity_id)
            event, (state, data) = entity.prepare(event), after.get(entity_id, (entity.state, entity.data))
            try:
                step = entity.step(state, data, event)
            except IllegalTransition as refusal:
                entity.refuse(event, cause, str(refusal))
                raise Refused(str(refusal)) from None
            after[entity_id] = step.state, step.data
            steps.append((entity, ctx, event, step))
        with self.journal_writer.together():
            for entity, ctx, event, step in steps:
                record = entity.enter(ctx, event, step, cause)
                cause = Cause(record.seq, None, cause.actor)
        return record

    async def post(
        self, entity_id: str, event: Event, *, cause: Cause, lane: Lane = Lane.NORMAL, withdraws: bool = False
    ) -> LifecycleEvent:
        """Send *event*, wait until the event's record is durable, and return the record.

        Args:
            withdraws: withdraw the event if the caller is cancelled before the entity has processed the event;
                otherwise the entity processes the event even then.

        Raises:
            NoSuchEntity: no living entity has that id.
            Refused: the entity's table does not allow the event now.
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
        """Send *event*, wait until its record is durable, and return the record's number; ``None`` if the event was
        refused, or if the entity is gone or does not accept the event."""
        if not self.accepts(entity_id, event):
            return None
        try:
            record = await self.post(entity_id, event, cause=cause, lane=Lane.CONTROL)
        except (NoSuchEntity, Refused):
            return None
        return record.seq

    async def wait_processed(self, entity_id: str) -> None:
        """Wait until the entity has processed every message that was sent to it before, or is gone."""
        ref = self.system.ref(entity_id)
        if ref is not None:
            with suppress(ActorStopped):
                await ref.ask(_NOTHING, timeout_s=POST_S, lane=Lane.CONTROL, detach=True)

    def record_fact(self, entity_id: str, name: str, cause: Cause, metadata: dict[str, Any], **described: Any) -> None:
        """Append a fact to an entity's log; do nothing if the entity is gone."""
        entity = self.entities.get(entity_id)
        if entity is not None:
            entity.record_fact(name, cause, metadata, **described)

    def record_turn_fact(self, session: LiveSession, name: str, metadata: dict[str, Any]) -> None:
        """Append a fact to the log of the turn that a session's agent works on; do nothing if there is no such turn."""
        turn_id = session.connection.turn_id if session.connection is not None else None
        if turn_id is not None:
            self.record_fact(turn_id, name, session.cause, metadata)

    def begin_exiting(self, session: LiveSession, owner: str, pids: tuple[int, ...]) -> None:
        """Record that the session waits for killed processes of *owner*, an agent or a tool call, which run no code any
        more, because the kernel is still ending them."""
        session.exiting[owner] = pids
        self.record_fact(session.session_id, "ProcessesExiting", session.cause, {"of": owner, "pids": [*pids]})

    def write_transcript(self, session: LiveSession, source: str, text: str) -> None:
        """Write *text*, which comes from *source*, into a session's transcript."""
        session.transcript.write(source, text, at=self.journal_writer.clock.wall.time())

    def cancel_scope(self, actor_id: str, cause: object) -> None:
        """Cancel everything that runs in the scope of the actor *actor_id*."""
        ctx = self.system.context(actor_id)
        if ctx is not None:
            ctx.scope.cancel(cause)

    # ------------------------------------------------------------------ queries
    def is_open(self, tool_id: str) -> bool:
        """Return whether the tool call with the id *tool_id* has no result yet."""
        turn_id, _, number = tool_id.rpartition(":c")
        turn = self.entities.get(turn_id)
        return turn is not None and any(str(call.number) == number for call in turn.data.open)

    def session(self, session_id: str) -> LiveSession:
        """Return the living session with the id *session_id*.

        Raises:
            NoSuchEntity: no living session has that id.
        """
        session = self.sessions.get(session_id)
        if session is None:
            raise NoSuchEntity(session_id)
        return session

    def entity(self, entity_id: str) -> Entity:
        """Return the living entity with the id *entity_id*.

        Raises:
            NoSuchEntity: no living entity has that id.
        """
        entity = self.entities.get(entity_id)
        if entity is None:
            raise NoSuchEntity(entity_id)
        return entity

    def children_of(self, session_id: str) -> list[LiveSession]:
        """Return the living child sessions of a session, oldest first."""
        session = self.sessions.get(session_id)
        return list(session.children.values()) if session is not None else []

    def abort_tree(self, *, hurry: bool = False) -> Mapping[str, TreeNode]:
        """Return a view of the tree for the abort planner (:class:`AbortTreeView`). The view is valid until the next
        await."""
        return AbortTreeView(self.sessions, self.entities, hurry=hurry)

    def rows(self, *, data: bool = True) -> list[EntityRow]:
        """Return the rows that the journal has for the living entities. *data* of the entities is the costly part, and
        can be left out."""
        return [_row(one, data=data) for one in self.entities.values()]

    def row(self, entity_id: str) -> EntityRow:
        """Return the row that the journal has for the living entity with the id *entity_id*.

        Raises:
            NoSuchEntity: no living entity has that id.
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


class AbortTreeView(Mapping[str, TreeNode]):
    """View of sessions and open tool calls as nodes for the abort planner, by id; a node is made when it is first read.

    Stopping sessions are reported as ended, unless *hurry* is set and part of the session still runs.
    """

    def __init__(self, sessions: Mapping[str, LiveSession], entities: Mapping[str, Entity], *, hurry: bool) -> None:
        self._sessions = sessions
        self._entities = entities
        self._hurry = hurry
        self._made: dict[str, TreeNode] = {}

    def __getitem__(self, node_id: str) -> TreeNode:
        node = self._made.get(node_id)
        if node is None:
            session = self._sessions.get(node_id)
            node = self._made[node_id] = self._session(session) if session is not None else self._call(node_id)
        return node

    def __iter__(self) -> Iterator[str]:
        yield from self._sessions
        for session in self._sessions.values():
            if session.turns:
                yield from _calls(session)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _session(self, session: LiveSession) -> TreeNode:
        entity = self._entities.get(session.session_id)
        over = entity is None or entity.ended
        parent_id = session.parent_id
        return TreeNode(
            id=session.session_id,
            kind="session",
            parent=parent_id if parent_id in self._sessions else None,
            children=(*session.children, *_calls(session)) if session.turns else tuple(session.children),
            started_by=session.started_by,
            policy=session.policy,
            mode=session.mode,
            ended=over or self._ending(session),
            processes=session.connection.processes() if session.connection is not None else (),
        )

    def _ending(self, session: LiveSession) -> bool:
        return session.is_stopping and (session.phase >= SessionPhase.FINISHED or not self._hurry)

    def _call(self, node_id: str) -> TreeNode:
        """Return the node of an open call. A call that has returned counts as ended, even if its record is not durable
        yet; a call of a session that is stopping counts as ended too."""
        turn_id, _, number = node_id.rpartition(":c")
        turn = self._entities.get(turn_id)
        session = self._sessions.get(turn.parent_id or "") if turn is not None else None
        call = next((one for one in turn.data.open if str(one.number) == number), None) if turn is not None else None
        if turn is None or session is None or call is None or turn_id not in session.turns:
            raise KeyError(node_id)
        connection = session.connection
        return TreeNode(
            id=node_id,
            kind="tool",
            parent=session.session_id,
            children=tuple(f"{turn_id}:c{one.number}" for one in turn.data.open if one.within == call.number),
            ended=self._ending(session) or connection is None or connection.has_returned(turn_id, call.call_id),
            processes=tuple(one for one in connection.processes() if one.owner == node_id)
            if connection is not None
            else (),
        )


def _calls(session: LiveSession) -> list[str]:
    """Return the ids of a session's open calls."""
    return [f"{turn.id}:c{call.number}" for turn in session.turns.values() for call in turn.data.open]
