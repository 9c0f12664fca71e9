"""What an abort must reach, reckoned a second time: from the tree as it is, and by the rules of docs/design.md alone.

A plan is a promise, so it is held to this before it is carried out, and the receipt is held to the plan after it. The
rules are written as sets and paths here, not as a walk: who is below whom, over which edge, and who is spared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from supervisor.lifecycles.types import AbortScope, Ladder
from supervisor.policies.abort_plan import AbortPlan, Receipt, TreeNode, total_survivors

__all__ = ["check_plan", "check_receipt"]

Say = Callable[[str, str, str], None]
Nodes = Mapping[str, TreeNode]
Edges = dict[str, str | None]
LOOSENESS = {"wait_completed": 0, "wait_requested": 1, "try": 2, "abandon": 3}
ROUNDING_S = 1e-6


class Foreseen(NamedTuple):
    """One that ends: over which edge, why, the loosest mode on the way to it, and by when (seconds)."""

    edge: str | None
    reason: str
    mode: str
    kill_s: float


class _Branch(NamedTuple):
    """A subtree that the abort reaches: its head, over which edge, why that ends, and how loose the way is there."""

    head: str
    edge: str | None
    reason: str
    mode: str


def _total_s(ladder: Ladder, now: bool) -> float:
    gentle_s = ladder.request_s + ladder.cancel_s + ladder.terminate_s
    return ladder.kill_s if now else gentle_s + ladder.kill_s


def _sessions_below(nodes: Nodes, node_id: str) -> list[str]:
    return [one for one in nodes[node_id].children if nodes[one].kind == "session"]


def _open_calls(nodes: Nodes, node_id: str) -> list[str]:
    """Those of a session; or a call, and those within it."""
    if nodes[node_id].kind == "tool":
        return [node_id, *(inner for one in nodes[node_id].children for inner in _open_calls(nodes, one))]
    return [one for one in nodes[node_id].children if nodes[one].kind == "tool"]


# ------------------------------------------------------------------------------------------------------ the branches
def _branches(nodes: Nodes, target: str, scope: AbortScope) -> Iterator[_Branch]:
    node = nodes[target]
    whose = node.parent if node.kind == "tool" and node.parent is not None else target
    if scope is AbortScope.SESSION:
        yield _Branch(whose, None, "user_interrupt", "wait_completed")
    elif scope is AbortScope.SIBLING:
        yield from _beside(nodes, whose, None)
    else:
        calls = _open_calls(nodes, target)
        for one in _sessions_below(nodes, whose):
            if nodes[one].started_by in calls and nodes[one].mode != "abandon":
                yield _Branch(one, None, "parent_aborted", nodes[one].mode)
        if nodes[whose].policy.tool_to_sibling and any(not nodes[one].ended for one in calls):
            yield from _beside(nodes, whose, "tool_to_sibling")


def _beside(nodes: Nodes, session_id: str, edge: str | None) -> Iterator[_Branch]:
    parent = nodes[session_id].parent
    if parent is None:
        return
    for one in _sessions_below(nodes, parent):
        if one != session_id:
            yield _Branch(one, edge, "sibling_aborted", "wait_completed")
    if nodes[parent].policy.sibling_to_session:
        yield _Branch(parent, "sibling_to_session", "sibling_aborted", "wait_completed")


def _below(nodes: Nodes, branch: _Branch, now: bool) -> Iterator[tuple[str, Foreseen]]:
    """Everybody in a branch: a child has no longer than the parent that waits for it."""
    head = nodes[branch.head]
    yield branch.head, Foreseen(branch.edge, branch.reason, branch.mode, _total_s(head.policy.ladder, now))
    above = [(branch.head, branch.mode, _total_s(head.policy.ladder, now))]
    for node_id, mode, kill_s in above:  # it grows as it is read
        for one in _sessions_below(nodes, node_id):
            child = nodes[one]
            if child.mode == "abandon":
                continue
            looser = child.mode if LOOSENESS[child.mode] > LOOSENESS[mode] else mode
            own_s = _total_s(child.policy.ladder, now)
            bound_s = min(own_s, kill_s) if child.mode == "wait_completed" else own_s
            yield one, Foreseen(branch.edge, "parent_aborted", looser, bound_s)
            above.append((one, looser, bound_s))


def _reach(
    nodes: Nodes, target: str, scope: AbortScope, now: bool
) -> tuple[dict[str, Foreseen], dict[str, str | None]]:
    """Who ends, and who is ending already; of several ways to one the first counts."""
    reached: dict[str, Foreseen] = {}
    ending: Edges = {}
    if scope is AbortScope.TOOL:
        whose = nodes[target].parent if nodes[target].kind == "tool" else target
        for one in _open_calls(nodes, target):
            if not nodes[one].ended:
                kill_s = _total_s(nodes[whose or target].policy.ladder, now)
                reached[one] = Foreseen(None, "user_interrupt", "wait_completed", kill_s)
    for branch in _branches(nodes, target, scope):
        for one, how in _below(nodes, branch, now):
            if nodes[one].ended:
                ending.setdefault(one, how.edge)
            else:
                reached.setdefault(one, how)
    return reached, ending


# ------------------------------------------------------------------------------------------------------ the promise
def check_plan(say: Say, nodes: Nodes, plan: AbortPlan) -> None:
    """The plan names exactly whom the rules reach, children before their parents, each with its edge and its time."""
    reached, ending = _reach(nodes, plan.target, plan.scope, plan.now)
    given = {one.id: one for one in plan.nodes}
    if given.keys() != reached.keys() or len(given) != len(plan.nodes):
        say("no_level_crossed", plan.target, f"a plan of it at {plan.scope} ends {[*given]}, not {[*reached]}")
        return
    if {one.id: one.edge for one in plan.ending} != ending:
        say("no_level_crossed", plan.target, f"a plan of it joins {[one.id for one in plan.ending]}, not {[*ending]}")
    for one_id, wanted in reached.items():
        _check_node(say, plan, nodes, one_id, wanted)
    _check_order(say, plan, nodes)
    _check_spared(say, plan, nodes)
    longest_s = max((one.kill_s for one in reached.values()), default=0.0)
    if abs(plan.deadline_s - longest_s) > ROUNDING_S:
        say("bounded_kill", plan.target, f"a plan of it takes {plan.deadline_s:g} s, not {longest_s:g}")
    if plan.already_ended != (not reached and _is_over(nodes, plan)):
        say("one_answer", plan.target, f"a plan of it says already_ended={plan.already_ended}")
    edges = {one.edge for one in reached.values()} | {*ending.values()}
    used = {edge for edge in edges if edge is not None}
    if not used <= {one.edge for one in plan.crossings}:
        say("no_level_crossed", plan.target, f"a plan of it crosses {sorted(used)} without saying so")


def _is_over(nodes: Nodes, plan: AbortPlan) -> bool:
    node = nodes[plan.target]
    if plan.scope is not AbortScope.TOOL and node.kind == "tool" and node.parent is not None:
        node = nodes[node.parent]
    return node.ended


def _check_node(say: Say, plan: AbortPlan, nodes: Nodes, one_id: str, wanted: Foreseen) -> None:
    planned = next(one for one in plan.nodes if one.id == one_id)
    kill_s = planned.due.kill_s if planned.due is not None else 0.0
    given = Foreseen(planned.edge, planned.reason.value, planned.mode.value, kill_s)
    if given[:3] != wanted[:3] or abs(kill_s - wanted.kill_s) > ROUNDING_S:
        say("no_level_crossed", one_id, f"the plan for {plan.target} has {tuple(given)} for it, not {tuple(wanted)}")
    due = planned.due
    if due is None or not 0 <= due.request_s <= due.cancel_s <= due.terminate_s <= due.kill_s:
        say("bounded_kill", one_id, f"the plan for {plan.target} has its rungs in disorder: {due}")
        return
    node = nodes[one_id]
    owner = node if node.kind == "session" else nodes[node.parent or one_id]
    ladder = owner.policy.ladder
    steps = (ladder.kill_s, ladder.terminate_s, ladder.cancel_s, ladder.request_s)
    at_s = kill_s
    for step_s, over_s in zip(steps, (due.terminate_s, due.cancel_s, due.request_s, 0.0), strict=True):
        at_s = max(0.0, at_s - step_s)  # the gentlest rungs give way first
        if not plan.now and abs(over_s - at_s) > ROUNDING_S and step_s is not ladder.request_s:
            say("bounded_kill", one_id, f"the plan for {plan.target} has a rung over at {over_s:g} s, not {at_s:g}")


def _check_order(say: Say, plan: AbortPlan, nodes: Nodes) -> None:
    seen: set[str] = set()
    for one in plan.nodes:
        parent = nodes[one.id].parent
        if one.kind == "session" and parent in seen:
            say("containment", one.id, f"the plan for {plan.target} ends it after its parent {parent}")
        seen.add(one.id)


def _check_spared(say: Say, plan: AbortPlan, nodes: Nodes) -> None:
    ends = {one.id for one in plan.nodes} | {one.id for one in plan.ending}
    for one in plan.spared:
        node = nodes[one.id]
        above = node.parent
        while above is not None and (above in ends or nodes[above].ended):
            above = nodes[above].parent
        if one.id in ends or node.ended or node.mode != "abandon" or one.parent != above:
            say("isolation", one.id, f"the plan for {plan.target} spares it for {one.parent}, not for {above}")
    spared = {one.id for one in plan.spared}
    for one_id in ends:
        for child in _sessions_below(nodes, one_id):
            lives = nodes[child].mode == "abandon" and not nodes[child].ended and child not in ends
            if lives and one_id in {one.id for one in plan.nodes} and child not in spared:
                say("isolation", child, f"the plan for {plan.target} does not say that it spares it")


def check_receipt(say: Say, plan: AbortPlan, receipt: Receipt, delegating: Collection[str | None] = ()) -> None:
    """What a plan promised is what its receipt tells of. *delegating*: calls that child sessions were started by; their
    work is ours, so they end alone (of one that had not ended in time, a receipt cannot say how)."""
    for one in receipt.nodes:
        if one.id in delegating and one.outcome == "ended" and one.how != "scope":
            say("tool_stays_tool", one.id, f"had started a session, and its end was {one.how!r}")
    planned = {(one.id, one.kind) for one in plan.nodes}
    told = {(one.id, one.kind) for one in receipt.nodes}
    if receipt.already_ended != plan.already_ended or (receipt.target, receipt.scope) != (plan.target, plan.scope):
        say("one_answer", plan.target, f"the receipt is of another abort: {receipt.scope} of {receipt.target}")
    elif told != planned and not receipt.already_ended:
        say("one_answer", plan.target, f"{receipt.abort_id} tells of {sorted(told)}, of the planned {sorted(planned)}")
    elif receipt.spared != plan.spared and not receipt.already_ended:
        say("isolation", plan.target, f"{receipt.abort_id} spares {receipt.spared}, not {plan.spared}")
    if receipt.survivors != total_survivors(one.survivors for one in receipt.processes) and not receipt.already_ended:
        say("no_survivor", plan.target, f"{receipt.abort_id} counts {receipt.survivors} survivors")
