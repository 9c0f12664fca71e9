"""Abort plan: the nodes that an abort ends, their order, and the policy edges over which it spreads.

Pure: a tree and a request go in, a plan comes out; nothing is changed, so a plan also serves as a dry run.

Theory of operation
-------------------
An abort has a target and a scope.

* TOOL: one tool call (with the calls made within it), and the child sessions that it started.
* SIBLING, for a session X: the siblings of X with everything below them; neither X nor X's parent.
* SESSION: the target and everything below it.

An abort spreads to another level only where a policy says so: with ``tool_to_sibling`` of the session's own policy a
TOOL abort becomes a SIBLING abort of the call's session, and with ``sibling_to_session`` of the parent's policy a
SIBLING abort becomes a SESSION abort of the parent. Each step is one ``Crossing``, and each happens once.

Example: parent P with sessions A and B, A's policy with ``tool_to_sibling``; TOOL abort of A's call c:

    nodes      c (scope TOOL), B with everything below it (scope SIBLING, edge ``tool_to_sibling``)
    crossings  tool_to_sibling, ruled by A

Invariants: leaves come before their parents; each node is planned once, and the first way to it counts; a child session
with cancel mode ``abandon`` is spared with everything below it, unless another way reaches it; a child that is waited
for has no later deadline than its parent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from supervisor.lifecycles.types import (
    AbortPolicy,
    AbortReason,
    AbortScope,
    CancelMode,
    InvalidArgument,
    NoSuchEntity,
    Survivors,
    TerminationStage,
    choice_of,
)
from supervisor.policies.stage_deadlines import StageDeadlines, call_deadlines, session_deadlines


class PlannedProcess(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A live process, and the id of the agent or tool call that it belongs to."""

    owner: str
    pid: int


class CallBeside(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An open call of the turn of an aborted call: it ends with that turn, if the agent does not end the aborted call
    alone, so that the turn is interrupted. ``title`` is what the agent calls it."""

    id: str
    title: str


class TreeNode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node of the tree of sessions and tool calls.

    ``kind`` is ``session`` or ``tool``; ``parent`` a session's parent session or a tool's session; ``children`` a
    session's sessions and calls, or the calls that are made within a call; ``started_by`` the tool call that requested
    a child session; ``mode`` the effect of a parent's end on the node (``CancelMode``). ``ended``: the node has ended,
    or is ending. ``adopted``: the parent is not the one that the session was started by, which has ended: the session
    has no siblings any more, whatever other children the parent has. ``beside`` are the other open calls of the turn of
    a call that its agent runs by itself.
    """

    id: str
    kind: str
    parent: str | None = None
    children: tuple[str, ...] = ()
    started_by: str | None = None
    policy: AbortPolicy = AbortPolicy()
    mode: CancelMode = CancelMode.WAIT_COMPLETED
    ended: bool = False
    adopted: bool = False
    processes: tuple[PlannedProcess, ...] = ()
    beside: tuple[CallBeside, ...] = ()


class AbortRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record that precedes every cancellation: abort, target, reason, and the policy edge that led to the target.

    ``ruled_by`` is the session whose policy has that edge. ``deadline_s`` and the ``stages`` of the target are counted
    from the record; the record of an abort that ends siblings has no stages, since each sibling has its own.
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
    stages: StageDeadlines | None = None


class PlannedNode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node that the abort ends; ``edge`` names the policy edge by which the abort reached the node (``None``: the
    node was requested directly).

    ``mode`` is the loosest cancel mode on the way to the node; the abort waits for the node's end only if *mode* is
    ``wait_completed``.
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
    """A step of the abort to another level: the policy edge, the session whose policy has that edge, the new scope, and
    the edge of the step before (``None``: this is the first step)."""

    edge: str
    ruled_by: str
    scope: AbortScope
    after: str | None = None


class SparedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A child session that lives on although its parent, or the call that started it, ends, and the *reason*; *parent*
    is the nearest ancestor that lives on (``None``: the child becomes a root session)."""

    id: str
    parent: str | None
    reason: str = "its cancel mode is abandon"


class UncrossedEdge(msgspec.Struct, frozen=True, kw_only=True):
    """A policy edge over which the abort does not spread, since the policy of the session *ruled_by* does not have the
    edge; *scope* is the scope that the abort would have got there."""

    edge: str
    ruled_by: str
    scope: AbortScope


class EndingNode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A session in the reach of the abort that is terminating already, and the policy edge that led to the session."""

    id: str
    edge: str | None = None


class AbortPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Result of ``plan_abort``; leaves come before their parents. ``id`` is a digest of all that the plan depends on.

    ``already_ended``: the target has ended with everything below it. ``ending`` names the sessions in the reach that
    are terminating already: the abort waits for their end. ``deadline_s`` is the latest deadline of all nodes, whose
    stages run at the same time; for a call, that of all stages of its session, since the turn of a call that does not
    end is interrupted. ``now``: the termination begins at the kill stage.
    """

    target: str
    scope: AbortScope
    nodes: tuple[PlannedNode, ...]
    already_ended: bool
    deadline_s: float
    id: str
    now: bool = False
    crossings: tuple[Crossing, ...] = ()
    uncrossed: tuple[UncrossedEdge, ...] = ()
    ending: tuple[EndingNode, ...] = ()
    spared: tuple[SparedNode, ...] = ()
    beside: tuple[CallBeside, ...] = ()


class NodeReceipt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """End of one node of an abort: the last termination stage that was needed (``rung``), and the seconds since the
    abort.

    ``outcome`` is ``ended``, ``abandoned`` (every stage was tried in vain), or ``requested`` (the node's cancel mode
    does not let the abort wait for it). ``how`` holds further details. ``ended_at`` is Unix time.
    """

    id: str
    kind: str
    outcome: str
    rung: str = ""
    took_s: float = 0.0
    how: str = ""
    ended_at: float | None = None


class ProcessFate(msgspec.Struct, frozen=True, kw_only=True):
    """End of one process tree.

    ``ended_by`` is ``exit``, ``terminate`` or ``kill``; it is empty for a process that may belong to the call named as
    ``owner`` and was therefore not ended: then ``survivors`` is ``unknown`` until the process has ended. ``pid`` is 0
    if the processes of a call could not be listed. ``exiting_s`` is the number of seconds that the kernel took to end
    processes after they were killed, when they ran no code any more; 0 if that took no longer than usual.
    """

    owner: str
    pid: int
    status: int | None
    ended_by: str
    killed: int
    survivors: Survivors
    exiting_s: float = 0.0


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an abort.

    ``killed_at`` and ``recorded_at`` are Unix times. ``recorded_at`` is ``None`` if the journal had not confirmed the
    end by the deadline, or cannot be written: then ``outage`` gives the reason, and the end is recorded after the
    journal has recovered. ``survivors`` is 0 only if nothing can have survived: a number if processes are known to
    live, ``unknown`` if that is not known; ``processes`` lists every process.

    ``already_ended``: the target had ended or was terminating; ``joined`` is the id of the abort by which the target
    was terminating already. ``cancelled_task``: name of the task that the abort cancels, since the session that had
    ended was the last one to work for the task. ``spared`` sessions live on. ``beside`` are the calls that have ended
    with the target, since its turn was interrupted.
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
    cancelled_task: str | None = None
    spared: tuple[SparedNode, ...] = ()
    outage: str | None = None
    beside: tuple[CallBeside, ...] = ()


def total_survivors(counts: Iterable[Survivors]) -> Survivors:
    """Return the sum of the counts of survivors; ``"unknown"`` if one of the counts is unknown."""
    total = 0
    for count in counts:
        if count == "unknown":
            return "unknown"
        total += count
    return total


def stage_of_fates(fates: Sequence[ProcessFate]) -> TerminationStage:
    """Return the most forceful stage that was needed to end the processes with these *fates*, after their scope was
    cancelled."""
    ended_by = {fate.ended_by for fate in fates}
    if any(fate.exiting_s for fate in fates):
        return TerminationStage.EXITING
    if "kill" in ended_by:
        return TerminationStage.KILL
    return TerminationStage.TERMINATE if "terminate" in ended_by else TerminationStage.CANCEL


class NoSiblings(InvalidArgument):
    """Error: a SIBLING abort of a root session, which has no siblings."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"{session_id} is a root session and has no siblings: abort it with the scope session")


# ------------------------------------------------------------------------------------------------------ the plan
Tree = Mapping[str, TreeNode]


def plan_abort(
    tree: Tree,
    target: str,
    scope: AbortScope | str,
    policy: AbortPolicy | None = None,
    *,
    now: bool = False,
    within_s: float | None = None,
) -> AbortPlan:
    """Plan an abort of *target* at *scope*.

    A TOOL abort of a call includes the calls made within it; a TOOL abort of a session means all its open calls. A
    SESSION or SIBLING abort of a call means an abort of the call's session. *policy*, if given, replaces the policies
    in force; *now* plans an abort that starts at the kill stage; *within_s* bounds the seconds that the
    termination of every node may take. Neither the plan's id nor its ``deadline_s`` depends on *within_s*.

    Raises:
        NoSuchEntity: no node has that id.
        UnknownValue: no scope has that name.
        NoSiblings: SIBLING of a living root session.
    """
    scope = choice_of(AbortScope, "scope", scope)
    node = tree.get(target)
    if node is None:
        raise NoSuchEntity(target)
    if scope is not AbortScope.TOOL and node.kind == "tool":
        assert node.parent is not None, "a tool call has a session"
        node = tree[node.parent]
    left_alone = scope is AbortScope.SIBLING and node.adopted
    if scope is AbortScope.SIBLING and node.parent is None and not (node.ended or left_alone):
        raise NoSiblings(node.id)
    walk = _TreeWalk(tree, policy, now, within_s)
    walk.run(node, scope)
    return AbortPlan(
        target=target,
        scope=scope,
        nodes=tuple(walk.reached.values()),
        already_ended=(node.ended or left_alone) and not walk.reached,
        deadline_s=walk.deadline_s,
        id=_digest(walk, target, scope),
        now=now,
        crossings=tuple(walk.crossings_used()),
        uncrossed=tuple(walk.uncrossed),
        ending=tuple([EndingNode(id=one, edge=edge) for one, edge in walk.ending.items()]),
        spared=tuple(walk.spared_nodes()),
        beside=walk.calls_beside(),
    )


_LOOSER = {mode: rank for rank, mode in enumerate(CancelMode)}


class _PlannedSession(NamedTuple):
    """A session of the walk down the tree: the loosest cancel mode above the session, the reason of its end, and its
    deadlines (seconds from the abort)."""

    node: TreeNode
    mode: CancelMode
    reason: AbortReason
    due: StageDeadlines


class _TreeWalk:
    """A walk over the tree that collects the nodes to end. Each node is planned once: the first way to it counts."""

    def __init__(self, tree: Tree, policy: AbortPolicy | None, now: bool, within_s: float | None) -> None:
        self.tree = tree
        self.reached: dict[str, PlannedNode] = {}
        self.ending: dict[str, str | None] = {}
        self.policy_sources: dict[str, None] = {}
        self.uncrossed: list[UncrossedEdge] = []
        self.deadline_s = 0.0
        self._policy, self._now, self._within_s = policy, now, within_s
        self._crossings: list[Crossing] = []
        self._spared: dict[str, None] = {}

    # -------------------------------------------------------------------------------------------- the three scopes
    def run(self, node: TreeNode, scope: AbortScope) -> None:
        match scope:
            case AbortScope.TOOL:
                self._plan_calls(node)
            case AbortScope.SIBLING:
                if node.parent is not None and not node.adopted:
                    self._plan_siblings(node, AbortReason.SIBLING_ABORTED, None)
            case AbortScope.SESSION:
                self._plan_subtree(node, AbortScope.SESSION, AbortReason.USER_INTERRUPT, None)

    def _plan_calls(self, node: TreeNode) -> None:
        session = self.tree[node.parent] if node.kind == "tool" and node.parent is not None else node
        calls = [one for one in self._calls(node) if not one.ended]
        started = {call.id for call in self._calls(node)}
        for child in self._sessions_of(session):
            if child.started_by in started:
                self._plan_child(child, AbortScope.TOOL, None)
        policy = self._policy_of(session)
        for call in calls:
            self._plan_call(call, policy)
        if session.parent is None or session.adopted or not calls:  # where no call is aborted, nothing triggers
            return
        if policy.tool_to_sibling:
            self._record_crossing("tool_to_sibling", session, AbortScope.SIBLING, None)
            self._plan_siblings(session, AbortReason.SIBLING_ABORTED, "tool_to_sibling")
        else:
            uncrossed = UncrossedEdge(edge="tool_to_sibling", ruled_by=session.id, scope=AbortScope.SIBLING)
            self.uncrossed.append(uncrossed)

    def _plan_siblings(self, node: TreeNode, reason: AbortReason, edge: str | None) -> None:
        assert node.parent is not None, "a root session has no siblings"
        parent = self.tree[node.parent]
        for one in self._sessions_of(parent):
            if one.id != node.id:
                self._plan_subtree(one, AbortScope.SIBLING, reason, edge)
        if self._policy_of(parent).sibling_to_session:
            self._record_crossing("sibling_to_session", parent, AbortScope.SESSION, edge)
            self._plan_subtree(parent, AbortScope.SESSION, reason, "sibling_to_session")
        else:
            uncrossed = UncrossedEdge(edge="sibling_to_session", ruled_by=parent.id, scope=AbortScope.SESSION)
            self.uncrossed.append(uncrossed)

    # -------------------------------------------------------------------------------------------------- one by one
    def _plan_call(self, call: TreeNode, policy: AbortPolicy) -> None:
        # A call that does not end has its turn interrupted, which may take the agent of its session with it.
        self.deadline_s = max(self.deadline_s, session_deadlines(policy.ladder, now=self._now).kill_s)
        self.reached[call.id] = PlannedNode(
            id=call.id,
            kind=call.kind,
            scope=AbortScope.TOOL,
            edge=None,
            due=call_deadlines(policy.ladder, self._within_s, now=self._now),
            processes=call.processes,
        )

    def _plan_child(self, child: TreeNode, scope: AbortScope, edge: str | None) -> None:
        """Plan the end of a child session whose starting call is aborted."""
        if child.mode is CancelMode.ABANDON:
            self._spared.setdefault(child.id)
        else:
            self._plan_subtree(child, scope, AbortReason.PARENT_ABORTED, edge, child.mode)

    def _plan_subtree(
        self,
        head: TreeNode,
        scope: AbortScope,
        reason: AbortReason,
        edge: str | None,
        mode: CancelMode = CancelMode.WAIT_COMPLETED,
    ) -> None:
        """Plan the end of *head* and everything below it, leaves first. Iterative, not recursive: child sessions may be
        nested thousands deep."""
        order: list[_PlannedSession] = []
        pending = [_PlannedSession(head, mode, reason, self._deadlines_of(head, None))]
        while pending:
            step = pending.pop()
            order.append(step)
            for child in self._sessions_of(step.node):
                if child.mode is CancelMode.ABANDON:
                    self._spared.setdefault(child.id)
                    continue
                looser = max(step.mode, child.mode, key=_LOOSER.__getitem__)
                bound_s = step.due.kill_s if child.mode is CancelMode.WAIT_COMPLETED else None
                pending.append(
                    _PlannedSession(child, looser, AbortReason.PARENT_ABORTED, self._deadlines_of(child, bound_s))
                )
        for step in reversed(order):
            self._add_session(step, scope, edge)

    def _add_session(self, step: _PlannedSession, scope: AbortScope, edge: str | None) -> None:
        node = step.node
        if node.ended:
            self.ending.setdefault(node.id, edge)
        elif node.id not in self.reached:
            self.deadline_s = max(self.deadline_s, step.due.kill_s)
            is_cut = self._within_s is not None and self._within_s < step.due.kill_s
            due = self._deadlines_of(node, self._within_s) if is_cut else step.due
            self.reached[node.id] = PlannedNode(
                id=node.id,
                kind=node.kind,
                scope=scope,
                edge=edge,
                reason=step.reason,
                mode=step.mode,
                due=due,
                processes=node.processes,
            )

    # ---------------------------------------------------------------------------------------------- reading the tree
    def _calls(self, node: TreeNode) -> list[TreeNode]:
        """Return the open calls of a session; for a call, the call itself and the calls within it, inner ones first."""
        if node.kind == "tool":
            found = [node]
            for one in found:
                found += [self.tree[inner] for inner in one.children]
            return found[::-1]
        return [self.tree[one] for one in node.children if self.tree[one].kind == "tool"]

    def _sessions_of(self, node: TreeNode) -> Iterator[TreeNode]:
        return (child for one in node.children if (child := self.tree[one]).kind == "session")

    def _policy_of(self, session: TreeNode) -> AbortPolicy:
        self.policy_sources.setdefault(session.id)
        return session.policy if self._policy is None else self._policy

    def _deadlines_of(self, node: TreeNode, within_s: float | None) -> StageDeadlines:
        policy = node.policy if self._policy is None else self._policy
        return session_deadlines(policy.ladder, within_s, now=self._now)

    # ------------------------------------------------------------------------------------------------- results
    def _record_crossing(self, edge: str, ruled_by: TreeNode, scope: AbortScope, after: str | None) -> None:
        self._crossings.append(Crossing(edge=edge, ruled_by=ruled_by.id, scope=scope, after=after))

    def crossings_used(self) -> list[Crossing]:
        """Return the crossings that led to a node of the plan, or that precede such a crossing."""
        used = {*(one.edge for one in self.reached.values()), *self.ending.values()}
        used |= {one.after for one in self._crossings if one.edge in used}
        return [one for one in self._crossings if one.edge in used]

    def spared_nodes(self) -> Iterator[SparedNode]:
        """Yield the spared sessions that the abort reaches in no other way, each with the nearest ancestor that lives
        on."""
        for one in self._spared:
            if one not in self.reached and not self.tree[one].ended:
                yield SparedNode(id=one, parent=self._surviving(self.tree[one].parent))

    def calls_beside(self) -> tuple[CallBeside, ...]:
        """Return the calls that are not planned, and that end if the turn of a planned call is interrupted."""
        planned = [self.tree[one.id] for one in self.reached.values() if one.kind == "tool"]
        found = {call.id: call for node in planned for call in node.beside}
        return tuple(call for one, call in found.items() if one not in self.reached)

    def _surviving(self, session: str | None) -> str | None:
        while session is not None and (session in self.reached or self.tree[session].ended):
            session = self.tree[session].parent
        return session


def _digest(walk: _TreeWalk, target: str, scope: AbortScope) -> str:
    """Return a digest of all that the plan depends on: the digest differs if nodes came, went, moved, or have another
    policy."""
    seen = [_digested_fields(walk.tree[one], walk.reached.get(one)) for one in (*walk.reached, *walk.ending)]
    ruled = [(one, walk.tree[one].policy) for one in walk.policy_sources]
    spared = [(one.id, one.parent) for one in walk.spared_nodes()]
    return hashlib.blake2b(msgspec.json.encode((target, scope, seen, ruled, spared)), digest_size=8).hexdigest()


def _digested_fields(node: TreeNode, planned: PlannedNode | None) -> Iterable[object]:
    how = (planned.scope, planned.edge, planned.mode) if planned is not None else ()
    return (node.id, node.parent, node.children, node.started_by, node.policy, node.mode, node.ended, how)
