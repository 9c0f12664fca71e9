"""Plans and receipts against the rules: what is planned is what must be, and another plan is noticed."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from supervisor.lifecycles.types import AbortPolicy, AbortScope, CancelMode, Ladder
from supervisor.policies.abort_plan import AbortPlan, NodeReceipt, Receipt, TreeNode, plan_abort
from supervisor.simulation.foreseen import check_plan, check_receipt

CROSSES = AbortPolicy(tool_to_sibling=True, sibling_to_session=True)
BRISK = AbortPolicy(ladder=Ladder(request_s=1.0, cancel_s=1.0, terminate_s=1.0, kill_s=1.0))


def _node(name: str, parent: str | None, *children: str, **fields: Any) -> TreeNode:
    return TreeNode(id=name, kind=fields.pop("kind", "session"), parent=parent, children=children, **fields)


TREE = {
    one.id: one
    for one in (
        _node("r", None, "r/a", "r/b", policy=CROSSES),
        _node("r/a", "r", "r/a/x", "r/a/y", "r/a:t1:c1", policy=CROSSES),
        _node("r/a/x", "r/a", mode=CancelMode.ABANDON),
        _node("r/a/y", "r/a", policy=BRISK, mode=CancelMode.TRY, started_by="r/a:t1:c1"),
        _node("r/a:t1:c1", "r/a", kind="tool"),
        _node("r/b", "r", "r/b/z", policy=BRISK),
        _node("r/b/z", "r/b", ended=True),
        _node("q", None),
    )
}


def _found(plan: AbortPlan) -> set[str]:
    broken: list[str] = []
    check_plan(lambda law, *words: broken.append(law), TREE, plan)
    return set(broken)


@pytest.mark.parametrize("now", [False, True])
@pytest.mark.parametrize(
    ("target", "scope"),
    [
        (target, scope)
        for target in sorted(TREE)
        for scope in AbortScope
        if scope is not AbortScope.SIBLING or TREE[target].parent is not None  # a root has no siblings
    ],
)
def test_every_plan_is_foreseen(target: str, scope: AbortScope, now: bool) -> None:
    """The planner and the rules agree on every node of a tree with all modes, edges and calls."""
    assert _found(plan_abort(TREE, target, scope, now=now)) == set()


def test_another_plan_is_noticed() -> None:
    """A node too few, another edge, another mode, another order, another bound, another heir: each breaks a law."""
    plan = plan_abort(TREE, "r/a:t1:c1", AbortScope.TOOL)
    first, *others = plan.nodes
    assert _found(replace(plan, nodes=tuple(others))) == {"no_level_crossed"}
    assert _found(replace(plan, nodes=(replace(first, edge="nobody's"), *others))) == {"no_level_crossed"}
    assert _found(replace(plan, nodes=(replace(first, mode=CancelMode.ABANDON), *others))) == {"no_level_crossed"}
    assert _found(replace(plan, nodes=plan.nodes[::-1])) == {"containment"}
    assert _found(replace(plan, deadline_s=0.5)) == {"bounded_kill"}
    assert _found(replace(plan, spared=tuple(replace(one, parent="q") for one in plan.spared))) == {"isolation"}
    assert _found(replace(plan, ending=())) == {"no_level_crossed"}
    assert _found(replace(plan, crossings=())) == {"no_level_crossed"}


def test_a_receipt_is_what_was_planned() -> None:
    """Who was planned and is not told of, or the reverse, and a survivor that nobody has counted are noticed."""
    plan = plan_abort(TREE, "q", AbortScope.SESSION)
    ended = NodeReceipt(id="q", kind="session", outcome="ended")
    receipt = Receipt(
        abort_id="a", target="q", scope=AbortScope.SESSION, reason="", already_ended=False, nodes=(ended,)
    )
    broken: list[str] = []

    def say(law: str, *words: str) -> None:
        broken.append(law)

    check_receipt(say, plan, receipt)
    assert broken == []
    check_receipt(say, plan, replace(receipt, nodes=()))
    check_receipt(say, plan, replace(receipt, already_ended=True))
    check_receipt(say, plan, replace(receipt, survivors=1))
    assert broken == ["one_answer", "one_answer", "no_survivor"]
    check_receipt(say, plan, receipt, {"q"})
    assert broken[3:] == ["tool_stays_tool"]
