"""Who an abort reaches, in what order, and under which policy edge. Pure: a tree and a wish in, a plan out.

Reach: TOOL is one call and the child sessions that it started. SIBLING, triggered by X, is the full subtrees of X's
siblings; neither X nor the parent. SESSION is the target and all its descendants. The parent's policy rules its
children, a session's own policy its calls; an abort crosses a level only over a policy edge, one level, once. A child
session that its parent's end is to spare (its cancel mode is ``abandon``) is spared with everything below it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from supervisor.lifecycles.types import AbortPolicy, AbortReason, AbortScope, CancelMode, Survivors, UnknownValue
from supervisor.policies.abort_deadline import StageDeadlines, stage_deadlines

__all__ = [
    "AbortPlan",
    "AbortRecord",
    "Crossing",
    "EndingNode",
    "NoSiblings",
    "NodeReceipt",
    "PlannedNode",
    "PlannedProcess",
    "ProcessFate",
    "Receipt",
    "SparedNode",
    "TreeNode",
    "UnknownTarget",
    "plan_abort",
    "scope_of",
    "total_survivors",
]


class PlannedProcess(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A process known to be alive, and the agent or the tool call that it is."""

    owner: str
    pid: int


class TreeNode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One node of the tree that aborts reason about.

    ``kind`` is ``session`` or ``tool``; ``parent`` a session's parent session or a tool's session; ``children`` a
    session's sessions and calls, or the calls that are made within a call; ``started_by`` the tool that asked for a
    child session; ``mode`` what the end of its parent means to it. ``ended``: it has ended, or is ending.
    """

    id: str
    kind: str
    parent: str | None = None
    children: tuple[str, ...] = ()
    started_by: str | None = None
    policy: AbortPolicy = AbortPolicy()
    mode: CancelMode = CancelMode.WAIT_COMPLETED
    ended: bool = False
    processes: tuple[PlannedProcess, ...] = ()


class AbortRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What precedes every cancellation: which abort, of what, why, and over which policy edge it came.

    ``ruled_by`` is the session whose policy let it cross; ``deadline_s`` is counted from the record.
    """

    id: str
    scope: AbortScope
    target: str
    reason: str
    actor: str
    parent_record: str | None = None
    policy_edge: str | None = None
    ruled_by: str | None = None
    deadline_s: float


class PlannedNode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One node that the abort ends; ``edge`` names the policy edge it was reached over (``None``: asked for).

    ``mode``: the loosest cancel mode on the way to it; only for ``wait_completed`` does the abort wait for its end.
    """

    id: str
    kind: str
    scope: AbortScope
    edge: str | None
    reason: AbortReason = AbortReason.USER_INTERRUPT
    mode: CancelMode = CancelMode.WAIT_COMPLETED
    due: StageDeadlines | None = None
    processes: tuple[PlannedProcess, ...] = ()


class Crossing(msgspec.Struct, frozen=True, kw_only=True):
    """A level that the abort crosses: the policy edge, whose policy has it, the scope it becomes, and the edge that
    it came over before (``None``: it is the first)."""

    edge: str
    ruled_by: str
    scope: AbortScope
    after: str | None = None


class SparedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A child session that lives on though its parent, or the call that started it, ends; and who is its parent then
    (``None``: it is a root)."""

    id: str
    parent: str | None


class EndingNode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A session in the reach that is ending already, and the policy edge it was reached over."""

    id: str
    edge: str | None = None


class AbortPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What an abort would do: leaves before their parents. ``id`` is a digest of all that the plan depends on.

    ``already_ended``: the target has ended, and with it everything below. ``ending`` names the sessions in its reach
    that are ending already: they are joined. ``deadline_s`` bounds the ladders that are climbed, each node its own,
    all at once. ``now``: they are climbed from the kill rung on.
    """

    target: str
    scope: AbortScope
    nodes: tuple[PlannedNode, ...]
    already_ended: bool
    deadline_s: float
    id: str
    now: bool = False
    crossings: tuple[Crossing, ...] = ()
    ending: tuple[EndingNode, ...] = ()
    spared: tuple[SparedNode, ...] = ()


class NodeReceipt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one node ended: on which rung of the ladder, and how long after the abort (seconds).

    ``outcome`` is ``ended``, ``abandoned`` (the ladder was climbed in vain), or ``requested`` (its cancel mode does not
    let the abort wait for it). ``how`` says what else there is to know. ``ended_at`` is Unix time.
    """

    id: str
    kind: str
    outcome: str
    rung: str = ""
    took_s: float = 0.0
    how: str = ""
    ended_at: float | None = None


class ProcessFate(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one process tree.

    ``ended_by``: ``exit``, ``terminate``, ``kill``, or nothing: nobody has ended that process, which may belong to the
    call that is its owner; ``survivors`` is ``unknown`` then, until that process has ended. ``pid`` is 0 where the
    processes of a call could not be looked for at all.
    """

    owner: str
    pid: int
    status: int | None
    ended_by: str
    killed: int
    survivors: Survivors


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an abort. ``killed_at`` and ``recorded_at`` are Unix times; the second may be ``None``: the
    disk had not answered by the deadline, or is down, and then ``outage`` says why: what was ended is recorded once it
    has recovered. ``survivors`` is 0 only where nothing can have survived: a number where processes are known to live,
    ``unknown`` where that cannot be told; ``processes`` names them.

    ``already_ended``: it came too late, the target had ended or was ending; ``joined`` is the id of the abort that it
    was ending by. ``spared`` lives on.
    """

    abort_id: str
    target: str
    scope: AbortScope
    reason: str
    already_ended: bool
    nodes: tuple[NodeReceipt, ...] = ()
    processes: tuple[ProcessFate, ...] = ()
    survivors: Survivors = 0
    killed_at: float | None = None
    recorded_at: float | None = None
    joined: str | None = None
    spared: tuple[SparedNode, ...] = ()
    outage: str | None = None


def total_survivors(counts: Iterable[Survivors]) -> Survivors:
    """Add up; what contains an unknown count is unknown."""
    total = 0
    for count in counts:
        if count == "unknown":
            return "unknown"
        total += count
    return total


class UnknownTarget(LookupError):
    """There is no such session or tool call."""

    def __init__(self, target: str) -> None:
        self.target = target
        super().__init__(f"no session or tool call has the id {target!r}; `supervisor tree` shows the ids")


class NoSiblings(ValueError):
    """A root session has no siblings that an abort could reach."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"{session_id} is a root session and has no siblings: abort it with --scope session")


def scope_of(word: AbortScope | str) -> AbortScope:
    """The scope of that name.

    Raises:
        UnknownWord: there is none.
    """
    try:
        return AbortScope(word)
    except ValueError:
        raise UnknownValue("scope", word, AbortScope) from None


# ------------------------------------------------------------------------------------------------------ the plan
Tree = Mapping[str, TreeNode]


def plan_abort(
    tree: Tree, target: str, scope: AbortScope | str, policy: AbortPolicy | None = None, *, now: bool = False
) -> AbortPlan:
    """Say what an abort of *target* at *scope* ends.

    A TOOL abort of a call means those that are made within it too, one of a session all its open calls. A SESSION or
    SIBLING abort of a call is one of its session.
    *policy* stands in for the policy in force where it is given; *now* plans an abort that starts at the kill rung.

    Raises:
        UnknownTarget: no node has that id.
        UnknownWord: no scope has that name.
        NoSiblings: SIBLING of a living root session.
    """
    scope = scope_of(scope)
    node = tree.get(target)
    if node is None:
        raise UnknownTarget(target)
    if scope is not AbortScope.TOOL and node.kind == "tool":
        assert node.parent is not None, "a tool call has a session"
        node = tree[node.parent]
    if scope is AbortScope.SIBLING and node.parent is None and not node.ended:
        raise NoSiblings(node.id)
    walk = _Walk(tree, policy, now)
    walk.go(node, scope)
    return AbortPlan(
        target=target,
        scope=scope,
        nodes=tuple(walk.reached.values()),
        already_ended=node.ended and not walk.reached,
        deadline_s=max((one.due.kill_s for one in walk.reached.values() if one.due is not None), default=0.0),
        id=_digest(walk, target, scope),
        now=now,
        crossings=tuple(walk.crossings_used()),
        ending=tuple([EndingNode(id=one, edge=edge) for one, edge in walk.ending.items()]),
        spared=tuple(walk.spared_nodes()),
    )


_LOOSER = {mode: rank for rank, mode in enumerate(CancelMode)}


class _Step(NamedTuple):
    """A session on the way down: the loosest mode above it, why it is ended, and by when (seconds from the abort)."""

    node: TreeNode
    mode: CancelMode
    reason: AbortReason
    due: StageDeadlines


class _Walk:
    """One walk over the tree; what it has found so far. Each node is found once: the first way to it counts."""

    def __init__(self, tree: Tree, policy: AbortPolicy | None, now: bool) -> None:
        self.tree = tree
        self.reached: dict[str, PlannedNode] = {}
        self.ending: dict[str, str | None] = {}
        self.rulers: dict[str, None] = {}
        self._policy, self._now = policy, now
        self._crossings: list[Crossing] = []
        self._spared: dict[str, None] = {}

    # -------------------------------------------------------------------------------------------- the three scopes
    def go(self, node: TreeNode, scope: AbortScope) -> None:
        match scope:
            case AbortScope.TOOL:
                self._tools(node)
            case AbortScope.SIBLING:
                if node.parent is not None:
                    self._siblings(node, AbortReason.SIBLING_ABORTED, None)
            case AbortScope.SESSION:
                self._subtree(node, AbortScope.SESSION, AbortReason.USER_INTERRUPT, None)

    def _tools(self, node: TreeNode) -> None:
        session = self.tree[node.parent] if node.kind == "tool" and node.parent is not None else node
        calls = [one for one in self._calls(node) if not one.ended]
        started = {call.id for call in self._calls(node)}
        for child in self._sessions_of(session):
            if child.started_by in started:
                self._child(child, AbortScope.TOOL, None)
        policy = self._ruling(session)
        for call in calls:
            self._call(call, policy)
        if (
            policy.tool_to_sibling and session.parent is not None and calls
        ):  # where no call is aborted, nothing triggers
            self._cross("tool_to_sibling", session, AbortScope.SIBLING, None)
            self._siblings(session, AbortReason.SIBLING_ABORTED, "tool_to_sibling")

    def _siblings(self, node: TreeNode, reason: AbortReason, edge: str | None) -> None:
        assert node.parent is not None, "a root session has no siblings"
        parent = self.tree[node.parent]
        for one in self._sessions_of(parent):
            if one.id != node.id:
                self._subtree(one, AbortScope.SIBLING, reason, edge)
        if self._ruling(parent).sibling_to_session:
            self._cross("sibling_to_session", parent, AbortScope.SESSION, edge)
            self._subtree(parent, AbortScope.SESSION, reason, "sibling_to_session")

    # -------------------------------------------------------------------------------------------------- one by one
    def _call(self, call: TreeNode, policy: AbortPolicy) -> None:
        self.reached[call.id] = PlannedNode(
            id=call.id,
            kind=call.kind,
            scope=AbortScope.TOOL,
            edge=None,
            due=stage_deadlines(policy.ladder, now=self._now),
            processes=call.processes,
        )

    def _child(self, child: TreeNode, scope: AbortScope, edge: str | None) -> None:
        """A child session whose starting call is aborted."""
        if child.mode is CancelMode.ABANDON:
            self._spared.setdefault(child.id)
        else:
            self._subtree(child, scope, AbortReason.PARENT_ABORTED, edge, child.mode)

    def _subtree(
        self,
        head: TreeNode,
        scope: AbortScope,
        reason: AbortReason,
        edge: str | None,
        mode: CancelMode = CancelMode.WAIT_COMPLETED,
    ) -> None:
        """Leaves first. Iterative: a chain of delegations may be thousands deep."""
        order: list[_Step] = []
        pending = [_Step(head, mode, reason, self._due(head, None))]
        while pending:
            step = pending.pop()
            order.append(step)
            for child in self._sessions_of(step.node):
                if child.mode is CancelMode.ABANDON:
                    self._spared.setdefault(child.id)
                    continue
                looser = max(step.mode, child.mode, key=_LOOSER.__getitem__)
                bound_s = step.due.kill_s if child.mode is CancelMode.WAIT_COMPLETED else None
                pending.append(_Step(child, looser, AbortReason.PARENT_ABORTED, self._due(child, bound_s)))
        for step in reversed(order):
            self._reach(step, scope, edge)

    def _reach(self, step: _Step, scope: AbortScope, edge: str | None) -> None:
        node = step.node
        if node.ended:
            self.ending.setdefault(node.id, edge)
        elif node.id not in self.reached:
            self.reached[node.id] = PlannedNode(
                id=node.id,
                kind=node.kind,
                scope=scope,
                edge=edge,
                reason=step.reason,
                mode=step.mode,
                due=step.due,
                processes=node.processes,
            )

    # ----------------------------------------------------------------------------------------------------- looking
    def _calls(self, node: TreeNode) -> list[TreeNode]:
        """Of a session all its open calls; of a call those that are made within it, however deep, and then itself."""
        if node.kind == "tool":
            found = [node]
            for one in found:
                found += [self.tree[inner] for inner in one.children]
            return found[::-1]
        return [self.tree[one] for one in node.children if self.tree[one].kind == "tool"]

    def _sessions_of(self, node: TreeNode) -> Iterator[TreeNode]:
        return (child for one in node.children if (child := self.tree[one]).kind == "session")

    def _ruling(self, session: TreeNode) -> AbortPolicy:
        self.rulers.setdefault(session.id)
        return session.policy if self._policy is None else self._policy

    def _due(self, node: TreeNode, within_s: float | None) -> StageDeadlines:
        policy = node.policy if self._policy is None else self._policy
        return stage_deadlines(policy.ladder, within_s, now=self._now)

    # --------------------------------------------------------------------------------------------------- afterwards
    def _cross(self, edge: str, ruled_by: TreeNode, scope: AbortScope, after: str | None) -> None:
        self._crossings.append(Crossing(edge=edge, ruled_by=ruled_by.id, scope=scope, after=after))

    def crossings_used(self) -> list[Crossing]:
        """Those that reached somebody, or that another one came after."""
        used = {*(one.edge for one in self.reached.values()), *self.ending.values()}
        used |= {one.after for one in self._crossings if one.edge in used}
        return [one for one in self._crossings if one.edge in used]

    def spared_nodes(self) -> Iterator[SparedNode]:
        """Whom no way has reached, with the nearest ancestor that lives on."""
        for one in self._spared:
            if one not in self.reached and not self.tree[one].ended:
                yield SparedNode(id=one, parent=self._surviving(self.tree[one].parent))

    def _surviving(self, session: str | None) -> str | None:
        while session is not None and (session in self.reached or self.tree[session].ended):
            session = self.tree[session].parent
        return session


def _digest(walk: _Walk, target: str, scope: AbortScope) -> str:
    """A digest of all that the plan depends on: nodes that came, went, moved, or are ruled otherwise give another."""
    seen = [_essence(walk.tree[one], walk.reached.get(one)) for one in (*walk.reached, *walk.ending)]
    ruled = [(one, walk.tree[one].policy) for one in walk.rulers]
    spared = [(one.id, one.parent) for one in walk.spared_nodes()]
    return hashlib.blake2b(msgspec.json.encode((target, scope, seen, ruled, spared)), digest_size=8).hexdigest()


def _essence(node: TreeNode, planned: PlannedNode | None) -> Iterable[object]:
    how = (planned.scope, planned.edge, planned.mode) if planned is not None else ()
    return (node.id, node.parent, node.children, node.started_by, node.policy, node.mode, node.ended, how)
