"""Who an abort reaches, in what order, and under which policy edge. Pure: a tree and a wish in, a plan out.

Reach: TOOL is one call and the child sessions that it started. SIBLING, triggered by X, is the full subtrees of X's
siblings; neither X nor the parent. SESSION is the target and all its descendants. The parent's policy rules its
children, a session's own policy its calls; an abort crosses a level only over a policy edge, one level, once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import msgspec

from supervisor.vocabulary import AbortPolicy, AbortScope

__all__ = [
    "AbortPlan",
    "AbortRecord",
    "NodeReceipt",
    "PlannedNode",
    "ProcessFate",
    "Receipt",
    "TreeNode",
    "UnknownTarget",
    "plan_abort",
]


class TreeNode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One node of the tree that aborts reason about.

    ``kind`` is ``session`` or ``tool``; ``parent`` a session's parent session or a tool's session; ``started_by`` the
    tool that asked for a child session.
    """

    id: str
    kind: str
    parent: str | None = None
    children: tuple[str, ...] = ()
    started_by: str | None = None
    policy: AbortPolicy = AbortPolicy()
    ended: bool = False


class AbortRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What precedes every cancellation: which abort, of what, why, and over which policy edge it came."""

    id: str
    scope: AbortScope
    target: str
    reason: str
    actor: str
    parent_record: str | None = None
    policy_edge: str | None = None
    deadline_s: float = 0.0


class PlannedNode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One node that the abort ends; ``edge`` names the policy edge it was reached over (``None``: asked for)."""

    id: str
    kind: str
    scope: AbortScope
    edge: str | None


class AbortPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What an abort would do: leaves before their parents. ``tree`` is a digest of the nodes it was planned on.

    ``already_ended``: the target has ended, and with it everything below. ``deadline_s`` bounds the ladders that are
    climbed, each node its own, all at once.
    """

    target: str
    scope: AbortScope
    nodes: tuple[PlannedNode, ...]
    already_ended: bool
    deadline_s: float
    tree: str


class NodeReceipt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one node ended: on which rung of the ladder, and how long after the abort (seconds)."""

    id: str
    kind: str
    outcome: str
    rung: str = ""
    took_s: float = 0.0
    how: str = ""


class ProcessFate(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one process tree."""

    owner: str
    pid: int
    status: int | None
    ended_by: str
    killed: int
    survivors: int


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an abort. ``killed_at`` and ``recorded_at`` are Unix times; the second may be ``None``: the
    disk had not answered by the deadline. ``survivors`` is 0 unless a process could not be accounted for."""

    abort_id: str
    target: str
    scope: AbortScope
    reason: str
    already_ended: bool
    nodes: tuple[NodeReceipt, ...] = ()
    processes: tuple[ProcessFate, ...] = ()
    survivors: int = 0
    killed_at: float | None = None
    recorded_at: float | None = None


class UnknownTarget(LookupError):
    """There is no such session or tool call."""

    def __init__(self, target: str) -> None:
        self.target = target
        super().__init__(f"no session or tool call has the id {target!r}; `supervisor tree` shows the ids")


Tree = Mapping[str, TreeNode]


def plan_abort(tree: Tree, target: str, scope: AbortScope, policy: AbortPolicy | None = None) -> AbortPlan:
    """Say what an abort of *target* at *scope* ends.

    A TOOL abort of a session means all its open calls. A SESSION or SIBLING abort of a call is one of its session.
    *policy* stands in for the policy in force where it is given.

    Raises:
        UnknownTarget: no node has that id.
        ValueError: SIBLING of a living root session, which has no siblings.
    """
    node = tree.get(target)
    if node is None:
        raise UnknownTarget(target)
    if scope is not AbortScope.TOOL and node.kind == "tool":
        assert node.parent is not None, "a tool call has a session"
        node = tree[node.parent]
    if scope is AbortScope.SIBLING and node.parent is None and not node.ended:
        raise ValueError(f"{node.id} is a root session and has no siblings: abort it with --scope session")
    reached: dict[str, PlannedNode] = {}
    for one in _reach(tree, node, scope, None, policy):
        reached.setdefault(one.id, one)
    return AbortPlan(
        target=target,
        scope=scope,
        nodes=tuple(reached.values()),
        already_ended=node.ended and not reached,
        deadline_s=max((_policy_of(tree, tree[one], policy).ladder.total_s for one in reached), default=0.0),
        tree=_digest(tree, reached),
    )


def _policy_of(tree: Tree, node: TreeNode, policy: AbortPolicy | None) -> AbortPolicy:
    """A session's own policy rules its calls."""
    if policy is not None:
        return policy
    return tree[node.parent].policy if node.kind == "tool" and node.parent is not None else node.policy


def _reach(
    tree: Tree, node: TreeNode, scope: AbortScope, edge: str | None, policy: AbortPolicy | None
) -> Iterator[PlannedNode]:
    match scope:
        case AbortScope.TOOL:
            calls = _calls(tree, node)
            yield from _tools(tree, calls, edge)
            session = tree[node.parent] if node.kind == "tool" and node.parent else node
            crosses = _policy_of(tree, session, policy).tool_to_sibling and session.parent is not None
            if crosses and not all(call.ended for call in calls):  # where no call is aborted, nothing triggers
                yield from _siblings(tree, session, "tool_to_sibling", policy)
        case AbortScope.SIBLING:
            if node.parent is not None:
                yield from _siblings(tree, node, edge, policy)
        case AbortScope.SESSION:
            yield from _subtree(tree, node, scope, edge)


def _calls(tree: Tree, node: TreeNode) -> list[TreeNode]:
    return [node] if node.kind == "tool" else [tree[one] for one in node.children if tree[one].kind == "tool"]


def _tools(tree: Tree, calls: list[TreeNode], edge: str | None) -> Iterator[PlannedNode]:
    started = {call.id for call in calls}
    for parent in {call.parent: None for call in calls if call.parent is not None}:
        for other in (tree[child] for child in tree[parent].children):
            if other.started_by in started:
                yield from _subtree(tree, other, AbortScope.TOOL, edge)
    for call in calls:
        if not call.ended:
            yield PlannedNode(id=call.id, kind=call.kind, scope=AbortScope.TOOL, edge=edge)


def _siblings(tree: Tree, node: TreeNode, edge: str | None, policy: AbortPolicy | None) -> Iterator[PlannedNode]:
    assert node.parent is not None, "a root session has no siblings"
    parent = tree[node.parent]
    for one in parent.children:
        if one != node.id and tree[one].kind == "session":
            yield from _subtree(tree, tree[one], AbortScope.SIBLING, edge)
    if _policy_of(tree, parent, policy).sibling_to_session:
        yield from _subtree(tree, parent, AbortScope.SESSION, "sibling_to_session")


def _subtree(tree: Tree, node: TreeNode, scope: AbortScope, edge: str | None) -> Iterator[PlannedNode]:
    """Leaves first. Iterative: a chain of delegations may be thousands deep."""
    order: list[TreeNode] = []
    pending = [node]
    while pending:
        one = pending.pop()
        order.append(one)
        pending += [child for child in map(tree.__getitem__, one.children) if child.kind == "session"]
    for one in reversed(order):
        if not one.ended:
            yield PlannedNode(id=one.id, kind=one.kind, scope=scope, edge=edge)


def _digest(tree: Tree, reached: Mapping[str, PlannedNode]) -> str:
    """A digest of what the plan depends on: a tree that grew or shrank below it gives another one."""
    lines = [f"{one.id} {tree[one.id].parent} {one.scope} {one.edge}" for one in reached.values()]
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()
