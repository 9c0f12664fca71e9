"""View of the living sessions and their open tool calls, for the planner of aborts (``policies.abort_plan``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from supervisor.policies.abort_plan import TreeNode
from supervisor.runtime.entity import Entity
from supervisor.sessions.live_session import LiveSession, SessionPhase


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
