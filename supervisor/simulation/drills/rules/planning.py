"""Plans of aborts over drawn trees: delegation, cancel modes, policies and ladders as no customer would combine them.

Each plan is held to the same reckoning as those of operators (:mod:`supervisor.simulation.foreseen`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from math import inf
from typing import Final

from msgspec.structs import replace

from supervisor.lifecycles.types import AbortPolicy, AbortScope, CancelMode, Ladder, UnknownWord
from supervisor.policies.abort_plan import NoSiblings, PlannedProcess, TreeNode, UnknownTarget, plan_abort, rungs_due
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.foreseen import check_plan
from supervisor.simulation.keyed_random import Chance

__all__ = ["PLANNING"]

TREES: Final = 12
NODES: Final = (2, 9)


def _ladder(*rungs_s: float) -> Ladder:
    return Ladder(**dict(zip(("request_s", "cancel_s", "terminate_s", "kill_s"), rungs_s, strict=True)))


def _policy(chance: Chance) -> AbortPolicy:
    rungs_s = (chance.choice((0.0, 0.5, 2.0, 10.0), "rung", number) for number in range(4))
    sibling, session = chance.happens(0.4, "tool_to_sibling"), chance.happens(0.4, "sibling_to_session")
    return AbortPolicy(tool_to_sibling=sibling, sibling_to_session=session, ladder=_ladder(*rungs_s))


def _tree(chance: Chance) -> dict[str, TreeNode]:
    """Sessions, each with some calls, some of which have started the sessions below."""
    nodes: dict[str, TreeNode] = {}
    for number in range(chance.integer(*NODES, "sessions")):
        one = chance.below(number)
        above = chance.choice(sorted(name for name in nodes if ":" not in name), "above", number) if nodes else None
        if number > 1 and one.happens(0.1, "root"):
            above = None
        own = f"s{number}"
        ended = one.happens(0.15, "ended")
        started = [name for name in nodes if above is not None and name.startswith(f"{above}:")]
        mode = one.choice((*CancelMode, CancelMode.WAIT_COMPLETED), "mode")
        by = one.choice((None, *started), "by")
        processes = (PlannedProcess(pid=number, owner=f"{own}:a1"),) * one.integer(0, 1, "process")
        nodes[own] = TreeNode(
            id=own,
            kind="session",
            parent=above,
            started_by=by,
            policy=_policy(one),
            mode=mode,
            ended=ended,
            processes=processes,
        )
        _adopt(nodes, above, own)
        for call in range(one.integer(0, 3, "calls")):
            name = f"{own}:t1:c{call}"
            nodes[name] = TreeNode(id=name, kind="tool", parent=own, ended=ended or one.happens(0.1, "over", call))
            _adopt(nodes, own, name)
            if call and one.happens(0.3, "within", call):
                _adopt(nodes, f"{own}:t1:c{one.integer(0, call - 1, 'which', call)}", name)
    return nodes


def _adopt(nodes: dict[str, TreeNode], above: str | None, name: str) -> None:
    if above is not None:
        nodes[above] = replace(nodes[above], children=(*nodes[above].children, name))


async def plans(desk: Desk) -> None:
    """Whatever is aimed at, at whatever scope, gently or at once: whom it reaches, in which order, over which edge."""
    for number in range(TREES):
        nodes = _tree(desk.chance.below(number))
        for target in nodes:
            for scope in AbortScope:
                for now in (False, True):
                    _check(desk, nodes, target, scope, now)
        _check_digest(desk, nodes)


def _check(desk: Desk, nodes: Mapping[str, TreeNode], target: str, scope: AbortScope, now: bool) -> None:
    whose = nodes[nodes[target].parent or target] if nodes[target].kind == "tool" else nodes[target]
    try:
        plan = plan_abort(nodes, target, scope, now=now)
    except NoSiblings:
        alone = scope is AbortScope.SIBLING and whose.parent is None and not whose.ended
        desk.same(f"no siblings of {target} at {scope}", alone, True)
        return
    lonely = scope is AbortScope.SIBLING and whose.parent is None and not whose.ended
    desk.same(f"siblings of a root, {target}", lonely, False)
    check_plan(desk.say, nodes, plan)
    for one in plan.nodes:
        node = nodes[one.id]
        desk.same(f"what is known of {one.id}", (one.kind, one.processes), (node.kind, node.processes))
    for crossing in plan.crossings:
        ruler = nodes[crossing.ruled_by].policy
        desk.same(f"{crossing.edge} by {crossing.ruled_by}", getattr(ruler, crossing.edge), True)
        became = AbortScope.SIBLING if crossing.edge == "tool_to_sibling" else AbortScope.SESSION
        desk.same(f"what crosses {crossing.edge}", crossing.scope, became)
    used = {one.edge for one in plan.nodes} | {one.edge for one in plan.ending}
    for crossing in plan.crossings:
        later = any(one.after == crossing.edge for one in plan.crossings)
        desk.same(f"the use of {crossing.edge}", crossing.edge in used or later, True)


def _check_digest(desk: Desk, nodes: dict[str, TreeNode]) -> None:
    """A plan is another one when anything has changed that it depends on; else it is the same."""
    target = next(iter(nodes))
    before = plan_abort(nodes, target, AbortScope.SESSION)
    if before.already_ended:
        return
    desk.same("the same plan", plan_abort(dict(nodes), target, AbortScope.SESSION).id, before.id)
    grown = dict(nodes)
    grown["new"] = TreeNode(id="new", kind="session", parent=target)
    _adopt(grown, target, "new")
    ids = {before.id, plan_abort(grown, target, AbortScope.SESSION).id, plan_abort(nodes, target, AbortScope.TOOL).id}
    ruled = {**nodes, target: replace(nodes[target], policy=AbortPolicy(ladder=_ladder(77.0, 1.0, 1.0, 1.0)))}
    ids.add(plan_abort(ruled, target, AbortScope.SESSION).id)
    desk.same("plans of other trees", len(ids), 4)


async def ladders(desk: Desk) -> None:
    """Rungs one after the other; within less time the gentlest give way first; at once there is but the last."""
    ladder = _ladder(10.0, 5.0, 2.0, 1.0)
    for within_s, now, wanted in (
        (None, False, (10.0, 15.0, 17.0, 18.0)),
        (None, True, (0.0, 0.0, 0.0, 1.0)),
        (20.0, False, (10.0, 15.0, 17.0, 18.0)),
        (18.0, False, (10.0, 15.0, 17.0, 18.0)),
        (12.0, False, (4.0, 9.0, 11.0, 12.0)),
        (5.0, False, (0.0, 2.0, 4.0, 5.0)),
        (1.5, False, (0.0, 0.0, 0.5, 1.5)),
        (0.5, False, (0.0, 0.0, 0.0, 0.5)),
        (-1.0, False, (0.0, 0.0, 0.0, 0.0)),
        (0.5, True, (0.0, 0.0, 0.0, 0.5)),
    ):
        due = rungs_due(ladder, within_s, now=now)
        desk.same(f"within {within_s}, now={now}", (due.request_s, due.cancel_s, due.terminate_s, due.kill_s), wanted)
    desk.same("all of it", ladder.total_s, 18.0)
    for number in range(30):
        drawn = _ladder(*(desk.chance.integer(0, 40, "tenths", number, rung) / 10 for rung in range(4)))
        for now in (False, True):
            due = rungs_due(drawn, now=now)
            for more_s in (0.0, 0.1, inf):  # no less than it takes: nothing gives way, not by a rounding either
                desk.same(f"{drawn} within that and {more_s}", rungs_due(drawn, due.kill_s + more_s, now=now), due)
    tree = {"a": TreeNode(id="a", kind="session", parent=None)}
    for target, scope, error in (
        ("b", "session", UnknownTarget),
        ("a", "all", UnknownWord),
        ("a", "sibling", NoSiblings),
    ):
        with suppress(error):
            desk.same(f"an abort of {target} at {scope}", plan_abort(tree, target, scope), "refused")
    gentle = AbortPolicy(ladder=_ladder(1.0, 1.0, 1.0, 1.0))
    desk.same("another policy", plan_abort(tree, "a", "session", gentle).deadline_s, 4.0)


PLANNING = (plans, ladders)
