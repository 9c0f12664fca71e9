"""Abort plans by examples: reach, order, deadline and digest. Every small tree is in ``test_abort_exhaustive.py``."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from supervisor.lifecycles.types import AbortPolicy, AbortScope, CancelMode, NoSuchEntity, StageBudgets
from supervisor.policies.abort_plan import AbortPlan, TreeNode, plan_abort

TOOL, SIBLING, SESSION = AbortScope.TOOL, AbortScope.SIBLING, AbortScope.SESSION
NONE = AbortPolicy()
ALL = AbortPolicy(tool_to_sibling=True, sibling_to_session=True)


#   top ─┬─ a ── a1
#        ├─ b ── b1   (b has two calls; b1 was started by the first)
#        └─ c
def family(**policies: AbortPolicy) -> dict[str, TreeNode]:
    def session(id: str, parent: str | None, *children: str, started_by: str | None = None) -> TreeNode:
        policy = policies.get(id, NONE)
        return TreeNode(id=id, kind="session", parent=parent, children=children, started_by=started_by, policy=policy)

    nodes = [
        session("top", None, "a", "b", "c"),
        session("a", "top", "a1"),
        session("a1", "a"),
        session("b", "top", "b1", "k1", "k2"),
        session("b1", "b", started_by="k1"),
        session("c", "top"),
        TreeNode(id="k1", kind="tool", parent="b"),
        TreeNode(id="k2", kind="tool", parent="b"),
    ]
    return {node.id: node for node in nodes}


def ids(plan: AbortPlan) -> list[str]:
    return [one.id for one in plan.nodes]


def test_a_tool_abort_of_a_session_is_one_of_all_its_calls() -> None:
    """A TOOL abort of a session ends all its calls and the child sessions that they started; a TOOL abort of a call
    ends only that call's."""
    assert ids(plan_abort(family(), "b", TOOL)) == ["b1", "k1", "k2"]
    assert ids(plan_abort(family(), "k1", TOOL)) == ["b1", "k1"]
    assert ids(plan_abort(family(), "k2", TOOL)) == ["k2"]


def test_a_level_is_crossed_by_the_policy_of_the_one_who_rules() -> None:
    """A policy edge from a call is decided by its session's policy, from a sibling by the parent's; other policies do
    not matter."""
    up, over = AbortPolicy(sibling_to_session=True), AbortPolicy(tool_to_sibling=True)
    assert ids(plan_abort(family(b=over, top=up), "k2", TOOL)) == ["k2", "a1", "a", "c", "b1", "b", "top"]
    assert ids(plan_abort(family(b=over), "k2", TOOL)) == ["k2", "a1", "a", "c"]
    assert ids(plan_abort(family(b=up, top=over, a=over, c=up), "k2", TOOL)) == ["k2"]
    assert ids(plan_abort(family(b=up, a=up), "b", SIBLING)) == ["a1", "a", "c"]


def test_an_escalation_rises_one_level() -> None:
    """A SIBLING abort that ends the parent does not continue to the grandparent, whatever the grandparent's policy."""
    policies = dict.fromkeys(["top", "a", "a1", "b", "b1", "c"], ALL)
    assert ids(plan_abort(family(**policies), "a1", SIBLING)) == ["a1", "a"]
    assert ids(plan_abort(family(**policies), "a1", SESSION)) == ["a1"]


def test_nothing_crosses_where_no_call_is_aborted() -> None:
    """A TOOL abort of a session without open calls, or of an ended call, does not end siblings, despite
    tool_to_sibling."""
    over = AbortPolicy(tool_to_sibling=True)
    assert ids(plan_abort(family(a=over), "a", TOOL)) == []
    tree = family(b=over)
    tree["k2"] = replace(tree["k2"], ended=True)
    plan = plan_abort(tree, "k2", TOOL)
    assert (ids(plan), plan.already_ended) == ([], True)


def test_an_unknown_target_is_named() -> None:
    """An abort of an unknown id raises NoSuchEntity; the text names the id."""
    with pytest.raises(NoSuchEntity) as caught:
        plan_abort(family(), "d", SESSION)
    assert caught.value.entity_id == "d"
    assert str(caught.value) == "nothing alive has the id 'd'"


@pytest.mark.parametrize("target", ["top", "k9"])
def test_a_root_has_no_siblings(target: str) -> None:
    """A SIBLING abort of a root session, or of its call, is an error that names the root session and a possible
    scope."""
    tree = family() | {"k9": TreeNode(id="k9", kind="tool", parent="top")}
    with pytest.raises(ValueError) as caught:
        plan_abort(tree, target, SIBLING)
    assert str(caught.value) == "top is a root session and has no siblings: abort it with the scope session"


def test_an_ended_root_is_no_error() -> None:
    """An abort of an ended target is planned with no nodes and ``already_ended``, whatever the scope."""
    gone = {"old": TreeNode(id="old", kind="session", ended=True)}
    for scope in AbortScope:
        plan = plan_abort(gone, "old", scope)
        assert (plan.nodes, plan.already_ended, plan.deadline_s) == ((), True, 0.0)


# ----------------------------------------------------------------------------------------------------- the deadline
def ladder(kill_s: float) -> AbortPolicy:
    return AbortPolicy(ladder=StageBudgets(request_s=0.0, cancel_s=0.0, terminate_s=0.0, kill_s=kill_s))


@pytest.mark.parametrize(
    ("target", "scope", "bound_s"),
    [("k1", TOOL, 3.0), ("k2", TOOL, 2.0), ("b", SESSION, 2.0), ("b", SIBLING, 8.0), ("top", SESSION, 7.0)],
)
def test_the_deadline_bounds_every_ladder_that_is_climbed(target: str, scope: AbortScope, bound_s: float) -> None:
    """The deadline is the longest of all ended nodes; a child has no later one than its parent, a call that of its
    session."""
    tree = family(top=ladder(7.0), a=ladder(8.0), a1=ladder(9.0), b=ladder(2.0), b1=ladder(3.0), c=ladder(1.0))
    assert plan_abort(tree, target, scope).deadline_s == bound_s
    assert plan_abort(tree, target, scope, ladder(5.0)).deadline_s == 5.0


@pytest.mark.parametrize(
    ("mode", "bounded"),
    [(CancelMode.WAIT_COMPLETED, True), (CancelMode.WAIT_REQUESTED, False), (CancelMode.TRY, False)],
)
def test_a_child_that_nobody_waits_for_has_its_own_ladder(mode: CancelMode, bounded: bool) -> None:
    """The deadline of a parent bounds its child's only if the cancel mode makes the parent wait for the child's end."""
    tree = family(a=ladder(2.0), a1=ladder(9.0))
    tree["a1"] = replace(tree["a1"], mode=mode)
    due = {one.id: one.due.kill_s for one in plan_abort(tree, "a", SESSION).nodes if one.due is not None}
    assert due == {"a": 2.0, "a1": 2.0 if bounded else 9.0}


def test_the_default_ladder_is_18_seconds() -> None:
    """The default budgets of request, cancel, terminate and kill are 10, 5, 2 and 1 s."""
    assert plan_abort(family(), "c", SESSION).deadline_s == 18.0


# ------------------------------------------------------------------------------------------------------- the digest
def grown(tree: dict[str, TreeNode], parent: str) -> dict[str, TreeNode]:
    """Return the tree with one more session below *parent*."""
    new = TreeNode(id="new", kind="session", parent=parent)
    return tree | {"new": new, parent: replace(tree[parent], children=(*tree[parent].children, "new"))}


@pytest.mark.parametrize(("target", "scope"), [("b", SESSION), ("k1", TOOL), ("top", SESSION)])
def test_the_digest_tells_of_every_change_in_reach(target: str, scope: AbortScope) -> None:
    """A birth or an end within the reach of an abort changes the id of the abort plan; outside of the reach it does
    not."""
    tree = family()
    plan = plan_abort(tree, target, scope)
    assert plan_abort(dict(tree), target, scope).id == plan.id
    for one in tree:
        changed = [tree | {one: replace(tree[one], ended=True)}]
        changed += [grown(tree, one)] if tree[one].kind == "session" else []
        for other in changed:
            assert (plan_abort(other, target, scope).id == plan.id) is (one not in ids(plan)), one


def test_who_is_spared_goes_to_the_nearest_that_lives_on() -> None:
    """A child session that an abort spares gets the nearest ancestor that lives on as its parent."""
    tree = family()
    tree["a1"] = replace(tree["a1"], mode=CancelMode.ABANDON)
    assert [(one.id, one.parent) for one in plan_abort(tree, "a", SESSION).spared] == [("a1", "top")]
    assert [(one.id, one.parent) for one in plan_abort(tree, "top", SESSION).spared] == [("a1", None)]
    tree["a"] = replace(tree["a"], ended=True)
    assert [(one.id, one.parent) for one in plan_abort(tree, "a", SESSION).spared] == [("a1", "top")]


def test_a_digest_is_short() -> None:
    """The id of an abort plan has sixteen characters, so that a person can compare two ids."""
    assert len(plan_abort(family(), "top", SESSION).id) == 16


def test_the_digest_tells_of_policies_and_scopes() -> None:
    """Another policy edge, scope, target or parent gives another plan id."""
    plain, over = family(), family(b=AbortPolicy(tool_to_sibling=True))
    moved = family() | {"b1": replace(family()["b1"], parent="c")}
    digests = [
        plan_abort(plain, "k1", TOOL).id,
        plan_abort(over, "k1", TOOL).id,
        plan_abort(moved, "k1", TOOL).id,
        plan_abort(plain, "b1", SESSION).id,
        plan_abort(plain, "b", SIBLING).id,
    ]
    assert len(set(digests)) == len(digests)


# --------------------------------------------------------------------------------------------------------- the depth
def test_a_chain_of_5000_is_planned() -> None:
    """An abort in a chain of 5,000 sessions, beyond Python's recursion limit, is planned for every scope, leaf
    first."""
    deep = 5_000
    names = [f"s{one}" for one in range(deep)]
    tree = {
        name: TreeNode(
            id=name,
            kind="session",
            parent=names[one - 1] if one else None,
            children=(names[one + 1],) if one < deep - 1 else (),
        )
        for one, name in enumerate(names)
    }
    assert ids(plan_abort(tree, "s0", SESSION)) == names[::-1]
    tree["s0"] = replace(tree["s0"], children=("s1", "other"))
    tree["other"] = TreeNode(id="other", kind="session", parent="s0")
    siblings = plan_abort(tree, "other", SIBLING)
    assert ids(siblings) == names[:0:-1]
    assert len(plan_abort(tree, "other", SIBLING, ALL).nodes) == deep + 1
    tree["s1"] = replace(tree["s1"], started_by="k")
    tree["k"] = TreeNode(id="k", kind="tool", parent="s0")
    assert ids(plan_abort(tree, "k", TOOL)) == [*ids(siblings), "k"]


# ------------------------------------------------------------------------------------------------ calls within calls
def test_an_abort_of_a_call_reaches_the_calls_that_are_made_within_it() -> None:
    """A TOOL abort of a call ends its nested calls and their child sessions first; other calls are spared."""
    nodes = [
        TreeNode(id="s", kind="session", children=("outer", "inner", "beside", "child")),
        TreeNode(id="outer", kind="tool", parent="s", children=("inner",)),
        TreeNode(id="inner", kind="tool", parent="s"),
        TreeNode(id="beside", kind="tool", parent="s"),
        TreeNode(id="child", kind="session", parent="s", started_by="inner"),
    ]
    plan = plan_abort({one.id: one for one in nodes}, "outer", TOOL)
    assert [one.id for one in plan.nodes] == ["child", "inner", "outer"]
