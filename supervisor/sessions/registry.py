"""Registry of everything that is alive: entities, and among them the live sessions.

The rules for stops, parents and last records are those of ``supervisor.sessions.live_session``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from actors import ActorSystem
from supervisor.lifecycles.types import NoSuchEntity
from supervisor.policies.abort_plan import CallBeside, TreeNode
from supervisor.policies.caller_reach import NOWHERE, CallerReach
from supervisor.ports import Caller
from supervisor.runtime.entity import Entity
from supervisor.runtime.entity_registry import EntityRegistry, IdAllocator
from supervisor.runtime.journal_writer import JournalWriter
from supervisor.sessions.live_session import LiveSession, SessionPhase
from supervisor.sessions.session import SessionEntity
from supervisor.sessions.turn import TurnEntity


class SessionRegistry(EntityRegistry):
    """Registry of the living entities and sessions of one supervisor."""

    def __init__(self, system: ActorSystem, journal_writer: JournalWriter, names: IdAllocator) -> None:
        super().__init__(system, journal_writer, names)
        self.sessions: dict[str, SessionEntity] = {}

    # ------------------------------------------------------------------ creation and removal
    def _spawn(self, entity: Entity, home: str | None, contained: bool) -> None:
        super()._spawn(entity, home, contained)
        above = self.sessions.get(entity.parent_id) if entity.parent_id is not None else None
        if above is not None:
            above.count_in(entity)

    def add_session(self, session: SessionEntity) -> None:
        """Add a session that is about to be created."""
        self.sessions[session.session_id] = session
        session.attach()

    def remove_session(self, session: SessionEntity) -> None:
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

    # ------------------------------------------------------------------ queries
    def is_open(self, tool_id: str) -> bool:
        """Return whether the tool call with the id *tool_id* has no result yet."""
        turn_id, _, number = tool_id.rpartition(":c")
        turn = self.entities.get(turn_id)
        return turn is not None and any(str(call.number) == number for call in turn.data.open)

    def turn_at_work(self, session_id: str) -> TurnEntity | None:
        """Return the turn on which the agent of a session works, or ``None``."""
        session = self.sessions.get(session_id)
        turn = self.entities.get(session.connection.turn_id or "") if session and session.connection else None
        return turn if isinstance(turn, TurnEntity) else None

    def session(self, session_id: str) -> SessionEntity:
        """Return the living session with the id *session_id*.

        Raises:
            NoSuchEntity: no living session has that id.
        """
        session = self.sessions.get(session_id)
        if session is None:
            raise NoSuchEntity(session_id)
        return session

    def turn_of(self, tool_id: str) -> TurnEntity:
        """Return the living turn of the open tool call with the id *tool_id*."""
        turn = self.entity(tool_id.rpartition(":c")[0])
        assert isinstance(turn, TurnEntity), "a tool call belongs to a turn"
        return turn

    def reach_of(self, caller: Caller) -> CallerReach:
        """Return the sessions and operations that *caller* may request. A child session may request no operation that a
        session above it may not."""
        session: LiveSession | None = self.sessions.get(caller.session)
        if session is None:
            return NOWHERE
        own = session.assigned_task
        splits = frozenset({own.name, own.id} if own is not None and own.split is not None else ())
        sessions, operates = [session], frozenset(session.profile.operates)
        for one in sessions:  # the list grows while it is read: children follow their parents
            sessions += one.children.values()
        while (session := session.parent) is not None:
            operates &= frozenset(session.profile.operates)
        return CallerReach(frozenset(one.session_id for one in sessions), splits, operates)

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

    def __init__(self, sessions: Mapping[str, SessionEntity], entities: Mapping[str, Entity], *, hurry: bool) -> None:
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
            adopted=session.is_adopted,
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
        ends_alone = connection is None or connection.runs_call(call.call_id)
        return TreeNode(
            id=node_id,
            kind="tool",
            parent=session.session_id,
            children=tuple(f"{turn_id}:c{one.number}" for one in turn.data.open if one.within == call.number),
            ended=self._ending(session) or connection is None or connection.has_returned(turn_id, call.call_id),
            processes=tuple(one for one in connection.processes() if one.owner == node_id)
            if connection is not None
            else (),
            beside=() if ends_alone else _calls_beside(turn, call.number),
        )


def _calls_beside(turn: Entity, number: int) -> tuple[CallBeside, ...]:
    """Return the open calls of *turn* but for the call with that number."""
    others = (call for call in turn.data.open if call.number != number)
    return tuple(CallBeside(id=f"{turn.id}:c{call.number}", title=call.title) for call in others)


def _calls(session: LiveSession) -> list[str]:
    """Return the ids of a session's open calls."""
    return [f"{turn.id}:c{call.number}" for turn in session.turns.values() for call in turn.data.open]
