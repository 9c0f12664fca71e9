"""Registry of everything that is alive: entities, and the live session of each session entity.

Callers can rely on these rules, beyond those of ``supervisor.runtime.entity_registry``:

* ``request_stop`` never awaits. An abort that has planned the tree can terminate the tree before an entity is created
  or ends.
* A session that is stopping accepts only the events that its table allows in the state Stopped. Nothing is created
  below it, and ``reparent`` gives children that may outlive it to the nearest ancestor that is not stopping.
* A session's last record comes after the last records of its turns and agents, and after those of its child sessions.
  ``unrecorded`` counts them; ``on_recorded`` is called when the count is 0 and the session has finished.

Example: an abort of session ``s`` with the turn ``s:t1``::

    request_stop("s", stop, cause=...)   ->  phase STOP_REQUESTED, OperatorStop in the mailbox of "s"
    "s" processes it: effect TerminateSession -> sessions.termination
    "s:t1" appends its last record       ->  remove("s:t1"), unrecorded == 0, on_recorded(s)
    "s" appends Ended                    ->  remove("s"), phase RECORDED
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from actors import ActorSystem
from actors.machine import Event
from supervisor.lifecycles.events import OperatorStop
from supervisor.lifecycles.session import SESSION, Session
from supervisor.lifecycles.types import Kind, TerminationStage
from supervisor.policies.abort_plan import TreeNode
from supervisor.policies.abort_request import AbortRequest, MergeOutcome, merge_request, same_abort
from supervisor.runtime.entity import Entity, NoSuchEntity
from supervisor.runtime.entity_registry import EntityRegistry, IdAllocator
from supervisor.runtime.journal_writer import Cause, JournalWriter
from supervisor.sessions.live_session import LiveSession, SessionPhase

ALLOWED_WHILE_STOPPING = frozenset(SESSION.allowed(Session.STOPPED))
"""Types of events that a stopping session still accepts."""


class SessionRegistry(EntityRegistry):
    """Registry of the living entities and sessions of one supervisor."""

    def __init__(self, system: ActorSystem, journal_writer: JournalWriter, names: IdAllocator) -> None:
        super().__init__(system, journal_writer, names)
        self.sessions: dict[str, LiveSession] = {}
        self.on_idle: Callable[[LiveSession], None] = lambda session: None
        """Function that is called when no task and no child works for a session any more."""
        self.on_recorded: Callable[[LiveSession], None] = lambda session: None
        """Function that is called when every turn, agent and child of a finished session has its last record."""
        self.on_deadline_shortened: Callable[[LiveSession], None] = lambda session: None
        """Function that is called when a later request has shortened the deadline of a stopping session."""

    # ------------------------------------------------------------------ creation and removal
    def _spawn(self, entity: Entity, home: str | None, contained: bool) -> None:
        super()._spawn(entity, home, contained)
        above = self.sessions.get(entity.parent_id) if entity.parent_id is not None else None
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
        """Add an entity that an earlier supervisor left in the journal. Only a session that is alive contains another
        entity."""
        super().restore_entity(entity, home=home, contained=contained and entity.parent_id in self.sessions)

    def _detach(self, entity: Entity) -> None:
        """Detach *entity* from the session above it, which then stops waiting for the entity's last record; remove the
        session if the entity is a session."""
        session = self.sessions.get(entity.id)
        if session is not None:
            self.remove_session(session)
            session.transcript.close()
            session.advance(SessionPhase.RECORDED)
        above = self.sessions.get(entity.parent_id) if entity.parent_id is not None else None
        if above is not None:
            above.turns.pop(entity.id, None)
        super()._detach(entity)

    # ------------------------------------------------------------------ messages
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

    # ------------------------------------------------------------------ facts
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

    def children_of(self, session_id: str) -> list[LiveSession]:
        """Return the living child sessions of a session, oldest first."""
        session = self.sessions.get(session_id)
        return list(session.children.values()) if session is not None else []

    def abort_tree(self, *, hurry: bool = False) -> Mapping[str, TreeNode]:
        """Return a view of the tree for the abort planner (:class:`AbortTreeView`). The view is valid until the next
        await."""
        return AbortTreeView(self.sessions, self.entities, hurry=hurry)


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
