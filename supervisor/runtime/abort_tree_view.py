"""The tree as aborts see it: a view of the living sessions and their open tool calls, made as it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from supervisor.policies.abort_plan import TreeNode
from supervisor.runtime.entity import Entity
from supervisor.runtime.live_session import LiveSession

__all__ = ["AbortTreeView"]


class AbortTreeView(Mapping[str, TreeNode]):
    """The nodes by their ids. What is not asked for is not made. Who is ending has ended, but for one to *hurry* it, as
    long as anything of it is left to hurry."""

    def __init__(self, works: Mapping[str, LiveSession], entities: Mapping[str, Entity], *, hurry: bool) -> None:
        self._works = works
        self._entities = entities
        self._hurry = hurry
        self._made: dict[str, TreeNode] = {}

    def __getitem__(self, node_id: str) -> TreeNode:
        node = self._made.get(node_id)
        if node is None:
            work = self._works.get(node_id)
            node = self._made[node_id] = self._session(work) if work is not None else self._call(node_id)
        return node

    def __iter__(self) -> Iterator[str]:
        yield from self._works
        for work in self._works.values():
            if work.turns:
                yield from _calls(work)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _session(self, work: LiveSession) -> TreeNode:
        entity = self._entities.get(work.session_id)
        over = entity is None or entity.ended
        parent_id = work.parent_id
        return TreeNode(
            id=work.session_id,
            kind="session",
            parent=parent_id if parent_id in self._works else None,
            children=(*work.children, *_calls(work)) if work.turns else tuple(work.children),
            started_by=work.started_by,
            policy=work.policy,
            mode=work.mode,
            ended=over or self._ending(work),
            processes=work.connection.processes() if work.connection is not None else (),
        )

    def _ending(self, work: LiveSession) -> bool:
        return (work.told or work.ending) and (work.over.is_set() or not self._hurry)

    def _call(self, node_id: str) -> TreeNode:
        """An open call. One whose work is over has ended, though its record may still be on its way; one whose session
        is ending ends with it."""
        turn_id, _, number = node_id.rpartition(":c")
        turn = self._entities.get(turn_id)
        work = self._works.get(turn.parent_id or "") if turn is not None else None
        call = next((one for one in turn.data.open if str(one.number) == number), None) if turn is not None else None
        if turn is None or work is None or call is None or turn_id not in work.turns:
            raise KeyError(node_id)
        connection = work.connection
        return TreeNode(
            id=node_id,
            kind="tool",
            parent=work.session_id,
            children=tuple(f"{turn_id}:c{one.number}" for one in turn.data.open if one.within == call.number),
            ended=self._ending(work) or connection is None or connection.has_returned(turn_id, call.call_id),
            processes=tuple(one for one in connection.processes() if one.owner == node_id)
            if connection is not None
            else (),
        )


def _calls(work: LiveSession) -> list[str]:
    """The ids of a session's open calls."""
    return [f"{turn.id}:c{call.number}" for turn in work.turns.values() for call in turn.data.open]
