"""Who an abort reaches, against every tree of up to five sessions.

The model beside the code is written from the decisions on reach and escalation: it works on sets of numbers and knows
nothing of ``TreeNode.children``, of walks or of order. Every tree shape, with a tool call on any session or on none and
any of that session's children started by the call, is asked for every target, scope and policy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from supervisor.lifecycles.types import AbortPolicy, AbortScope, CancelMode, Ladder
from supervisor.policies.abort_plan import AbortPlan, TreeNode, UnknownTarget, plan_abort

TOOL, SIBLING, SESSION = AbortScope.TOOL, AbortScope.SIBLING, AbortScope.SESSION
NONE = AbortPolicy()
POLICIES = [
    AbortPolicy(tool_to_sibling=first, sibling_to_session=second)
    for first, second in itertools.product([False, True], repeat=2)
]
CALL = "call"
SIZES = range(1, 6)


# ---------------------------------------------------------------------------------------------------- every tree
class World(NamedTuple):
    """``parents[n]`` is the parent of session n; session *holder* has a call, which *started* some of its children."""

    parents: tuple[int | None, ...]
    holder: int | None = None
    started: frozenset[int] = frozenset()

    def below(self, session: int) -> frozenset[int]:
        """The session and all its descendants."""
        return frozenset(one for one in range(len(self.parents)) if session in self.line(one))

    def line(self, session: int) -> list[int]:
        """The session, its parent, and so on to the root."""
        found = [session]
        while (parent := self.parents[found[-1]]) is not None:
            found.append(parent)
        return found

    def children(self, session: int | None) -> list[int]:
        return [one for one, parent in enumerate(self.parents) if parent == session and parent is not None]


@cache
def shapes(size: int) -> tuple[tuple[int | None, ...], ...]:
    """One tree for each rooted shape of that many nodes, as the parents of its nodes."""
    found: dict[str, tuple[int | None, ...]] = {}
    for later in itertools.product(*(range(number) for number in range(1, size))):
        world = World((None, *later))
        found.setdefault(code(world, 0), world.parents)
    return tuple(found.values())


def code(world: World, session: int) -> str:
    """The same word for the same shape, whatever the order of the children."""
    return f"({''.join(sorted(code(world, one) for one in world.children(session)))})"


@cache
def worlds(size: int) -> tuple[World, ...]:
    """Every shape without a call, and with a call on each session and each set of its children started by it."""
    found: list[World] = []
    for parents in shapes(size):
        bare = World(parents)
        found.append(bare)
        for holder in range(size):
            children = bare.children(holder)
            found += [World(parents, holder, frozenset(some)) for some in subsets(children)]
    return tuple(found)


def subsets(numbers: list[int]) -> Iterator[tuple[int, ...]]:
    return itertools.chain.from_iterable(itertools.combinations(numbers, count) for count in range(len(numbers) + 1))


def name(session: int) -> str:
    return f"s{session}"


def tree_of(
    world: World, policies: Mapping[int, AbortPolicy], ended: frozenset[str] = frozenset()
) -> dict[str, TreeNode]:
    nodes: dict[str, TreeNode] = {}
    for session, parent in enumerate(world.parents):
        calls = (CALL,) if session == world.holder else ()
        nodes[name(session)] = TreeNode(
            id=name(session),
            kind="session",
            parent=None if parent is None else name(parent),
            children=(*(name(one) for one in world.children(session)), *calls),
            started_by=CALL if session in world.started else None,
            policy=policies.get(session, NONE),
            ended=name(session) in ended,
        )
    if world.holder is not None:
        nodes[CALL] = TreeNode(id=CALL, kind="tool", parent=name(world.holder), ended=CALL in ended)
    return nodes


def targets(world: World) -> list[str]:
    return [*(name(one) for one in range(len(world.parents))), *([CALL] if world.holder is not None else [])]


def session_of(world: World, target: str) -> int:
    """The session that a target is, or whose call it is."""
    if target == CALL:
        assert world.holder is not None
        return world.holder
    return int(target[1:])


# ------------------------------------------------------------------------------------------------------ the model
Reach = dict[str, tuple[AbortScope, str | None]]
"""Each node with the scope and the policy edge that it was first reached by."""


def model(
    world: World,
    target: str,
    scope: AbortScope,
    policies: Mapping[int, AbortPolicy],
    ended: frozenset[str] = frozenset(),
) -> Reach | None:
    """What the abort ends; ``None`` where the question is an error: SIBLING of a living root.

    TOOL is the call and the sessions that it started, with all below them. SIBLING is the full subtrees of the
    siblings, not the session, not the parent. SESSION is the session and all below it. The session's own policy takes
    a TOOL abort to its siblings, the parent's takes a SIBLING abort to the parent; there it stops. A root has neither
    siblings nor a parent. Only an abort triggers: where no call is ended by it, nothing crosses.
    """
    session = session_of(world, target)
    parent = world.parents[session]
    reached: Reach = {}

    def end(sessions: set[int], scope: AbortScope, edge: str | None) -> None:
        for one in sessions:
            for below in world.below(one):
                if name(below) not in ended:
                    reached.setdefault(name(below), (scope, edge))

    fires, edge = scope is SIBLING, None
    if scope is SESSION:
        end({session}, SESSION, None)
    if scope is TOOL and session == world.holder:
        end(set(world.started), TOOL, None)
        if CALL not in ended:
            reached[CALL] = (TOOL, None)
            fires, edge = policies.get(session, NONE).tool_to_sibling, "tool_to_sibling"
    if not fires:
        return reached
    if parent is None:
        return None if scope is SIBLING and name(session) not in ended else reached
    end(set(world.children(parent)) - {session}, SIBLING, edge)
    if policies.get(parent, NONE).sibling_to_session:
        end({parent}, SESSION, "sibling_to_session")
    return reached


def check(world: World, plan: AbortPlan, expected: Reach) -> None:
    """The plan's nodes are those of the model, each once, each after everything of the plan that is below it."""
    assert {one.id: (one.scope, one.edge) for one in plan.nodes} == expected
    assert len(plan.nodes) == len(expected)
    assert all(one.kind == ("tool" if one.id == CALL else "session") for one in plan.nodes)
    done: set[str] = set()
    for one in plan.nodes:
        assert done.isdisjoint(above(world, one.id)), [node.id for node in plan.nodes]
        done.add(one.id)


@cache
def above(world: World, node: str) -> frozenset[str]:
    """What may end only after this node: the sessions above it, and the call that started it or one above it."""
    session = session_of(world, node)
    line = world.line(session)
    if node == CALL:
        return frozenset(name(one) for one in line)
    calls = [CALL] if world.started.intersection(line) else []
    return frozenset([*(name(one) for one in line[1:]), *calls])


# ------------------------------------------------------------------------------------------------- all there is
def placements(world: World, target: str, policy: AbortPolicy) -> Iterator[dict[int, AbortPolicy]]:
    """The policy everywhere; on the parent of the target's session only; on that session only."""
    session = session_of(world, target)
    parent = world.parents[session]
    yield dict.fromkeys(range(len(world.parents)), policy)
    yield {} if parent is None else {parent: policy}
    yield {session: policy}


@pytest.mark.parametrize(
    ("size", "shape_count", "world_count", "case_count"),
    [(1, 1, 2, 108), (2, 1, 4, 396), (3, 2, 13, 1_800), (4, 4, 38, 6_696), (5, 9, 115, 24_516)],
)
def test_every_tree(size: int, shape_count: int, world_count: int, case_count: int) -> None:
    """Whatever the tree, the target, the scope and the policies: the plan is the model's reach, leaves first.

    The counts: a session with n children makes 2^n worlds; targets x 3 scopes x 4 policies x 3 placements are asked.
    """
    cases = 0
    for world in worlds(size):
        for target, scope, policy in itertools.product(targets(world), AbortScope, POLICIES):
            for policies in placements(world, target, policy):
                cases += 1
                ask(world, target, scope, policies)
    assert (len(shapes(size)), len(worlds(size)), cases) == (shape_count, world_count, case_count)


def ask(
    world: World,
    target: str,
    scope: AbortScope,
    policies: Mapping[int, AbortPolicy],
    ended: frozenset[str] = frozenset(),
) -> None:
    tree, expected = tree_of(world, policies, ended), model(world, target, scope, policies, ended)
    if expected is None:
        with pytest.raises(ValueError, match="is a root session and has no siblings"):
            plan_abort(tree, target, scope)
        return
    plan = plan_abort(tree, target, scope)
    assert (plan.target, plan.scope) == (target, scope)
    asked = target if scope is TOOL else name(session_of(world, target))
    assert plan.already_ended is (asked in ended and not expected)
    check(world, plan, expected)


@pytest.mark.parametrize(("size", "case_count"), [(1, 60), (2, 480), (3, 4_512), (4, 34_176)])
def test_what_has_ended_is_skipped(size: int, case_count: int) -> None:
    """Whatever set of nodes has ended: they are not in the plan, what lives below them is, and it is no error."""
    cases = 0
    for world in worlds(size):
        nodes = targets(world)
        for some in subsets(list(range(len(nodes)))):
            ended = frozenset(nodes[one] for one in some)
            for target, scope, policy in itertools.product(nodes, AbortScope, (POLICIES[0], POLICIES[-1])):
                cases += 1
                ask(world, target, scope, dict.fromkeys(range(size), policy), ended)
    assert cases == case_count


def test_a_policy_given_stands_in_for_all() -> None:
    """A policy that is given with the question counts everywhere, whatever the nodes' own say."""
    cases = 0
    for size in SIZES:
        for world in worlds(size):
            own = dict.fromkeys(range(size), POLICIES[-1])
            for target, scope, policy in itertools.product(targets(world), AbortScope, POLICIES):
                given = dict.fromkeys(range(size), policy)
                expected = model(world, target, scope, given)
                if expected is not None:
                    check(world, plan_abort(tree_of(world, own), target, scope, policy), expected)
                    cases += 1
    assert cases == 10_208


# ------------------------------------------------------------------------------------------------------- by hand
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
    """Both calls and the session that the first one started, and nothing else; of one call only what is its own."""
    assert ids(plan_abort(family(), "b", TOOL)) == ["b1", "k1", "k2"]
    assert ids(plan_abort(family(), "k1", TOOL)) == ["b1", "k1"]
    assert ids(plan_abort(family(), "k2", TOOL)) == ["k2"]


def test_a_level_is_crossed_by_the_policy_of_the_one_who_rules() -> None:
    """A session's policy rules its calls, the parent's its children; a policy elsewhere changes nothing."""
    up, over = AbortPolicy(sibling_to_session=True), AbortPolicy(tool_to_sibling=True)
    assert ids(plan_abort(family(b=over, top=up), "k2", TOOL)) == ["k2", "a1", "a", "c", "b1", "b", "top"]
    assert ids(plan_abort(family(b=over), "k2", TOOL)) == ["k2", "a1", "a", "c"]
    assert ids(plan_abort(family(b=up, top=over, a=over, c=up), "k2", TOOL)) == ["k2"]
    assert ids(plan_abort(family(b=up, a=up), "b", SIBLING)) == ["a1", "a", "c"]


def test_an_escalation_rises_one_level() -> None:
    """A SIBLING abort that became one of the parent does not go on to the grandparent, whatever its policy."""
    both = POLICIES[-1]
    policies = dict.fromkeys(["top", "a", "a1", "b", "b1", "c"], both)
    assert ids(plan_abort(family(**policies), "a1", SIBLING)) == ["a1", "a"]
    assert ids(plan_abort(family(**policies), "a1", SESSION)) == ["a1"]


def test_nothing_crosses_where_no_call_is_aborted() -> None:
    """A TOOL abort of a session without an open call, or of a call that has ended, ends nobody's siblings."""
    over = AbortPolicy(tool_to_sibling=True)
    assert ids(plan_abort(family(a=over), "a", TOOL)) == []
    tree = family(b=over)
    tree["k2"] = replace(tree["k2"], ended=True)
    plan = plan_abort(tree, "k2", TOOL)
    assert (ids(plan), plan.already_ended) == ([], True)


def test_an_unknown_target_is_named() -> None:
    """The error has the id that was asked for and says where to find the ids."""
    with pytest.raises(UnknownTarget) as caught:
        plan_abort(family(), "d", SESSION)
    assert caught.value.target == "d"
    assert str(caught.value) == "no session or tool call has the id 'd'; `supervisor tree` shows the ids"


@pytest.mark.parametrize("target", ["top", "k9"])
def test_a_root_has_no_siblings(target: str) -> None:
    """SIBLING of a root, or of a root's call, is an error that names the root and the scope that works."""
    tree = family() | {"k9": TreeNode(id="k9", kind="tool", parent="top")}
    with pytest.raises(ValueError) as caught:
        plan_abort(tree, target, SIBLING)
    assert str(caught.value) == "top is a root session and has no siblings: abort it with --scope session"


def test_an_ended_root_is_no_error() -> None:
    """What has ended is answered with already_ended, whatever the scope."""
    gone = {"old": TreeNode(id="old", kind="session", ended=True)}
    for scope in AbortScope:
        plan = plan_abort(gone, "old", scope)
        assert (plan.nodes, plan.already_ended, plan.deadline_s) == ((), True, 0.0)


# ----------------------------------------------------------------------------------------------------- the deadline
def ladder(kill_s: float) -> AbortPolicy:
    return AbortPolicy(ladder=Ladder(request_s=0.0, cancel_s=0.0, terminate_s=0.0, kill_s=kill_s))


@pytest.mark.parametrize(
    ("target", "scope", "bound_s"),
    [("k1", TOOL, 3.0), ("k2", TOOL, 2.0), ("b", SESSION, 2.0), ("b", SIBLING, 8.0), ("top", SESSION, 7.0)],
)
def test_the_deadline_bounds_every_ladder_that_is_climbed(target: str, scope: AbortScope, bound_s: float) -> None:
    """It is the longest ladder of what is ended; a child has no longer than its parent, a call what its session has."""
    tree = family(top=ladder(7.0), a=ladder(8.0), a1=ladder(9.0), b=ladder(2.0), b1=ladder(3.0), c=ladder(1.0))
    assert plan_abort(tree, target, scope).deadline_s == bound_s
    assert plan_abort(tree, target, scope, ladder(5.0)).deadline_s == 5.0


@pytest.mark.parametrize(
    ("mode", "bounded"),
    [(CancelMode.WAIT_COMPLETED, True), (CancelMode.WAIT_REQUESTED, False), (CancelMode.TRY, False)],
)
def test_a_child_that_nobody_waits_for_has_its_own_ladder(mode: CancelMode, bounded: bool) -> None:
    """Only where the parent's end waits for the child's does the parent's ladder bound it."""
    tree = family(a=ladder(2.0), a1=ladder(9.0))
    tree["a1"] = replace(tree["a1"], mode=mode)
    due = {one.id: one.due.kill_s for one in plan_abort(tree, "a", SESSION).nodes if one.due is not None}
    assert due == {"a": 2.0, "a1": 2.0 if bounded else 9.0}


def test_the_default_ladder_is_18_seconds() -> None:
    """Request, cancel, terminate and kill: 10, 5, 2 and 1 s."""
    assert plan_abort(family(), "c", SESSION).deadline_s == 18.0


# ------------------------------------------------------------------------------------------------------- the digest
def grown(tree: dict[str, TreeNode], parent: str) -> dict[str, TreeNode]:
    """The tree with one more session below *parent*."""
    new = TreeNode(id="new", kind="session", parent=parent)
    return tree | {"new": new, parent: replace(tree[parent], children=(*tree[parent].children, "new"))}


def test_the_digest_tells_of_every_change_in_reach() -> None:
    """A session that is born or a node that ends within the reach changes the digest; one outside it does not."""
    changes = spared = 0
    for world in itertools.chain.from_iterable(worlds(size) for size in SIZES):
        tree = tree_of(world, {})
        for target in targets(world):
            scope = TOOL if target == CALL else SESSION
            plan = plan_abort(tree, target, scope)
            assert plan_abort(dict(tree), target, scope).id == plan.id
            reached = set(ids(plan))
            for one in tree:
                gone = tree | {one: replace(tree[one], ended=True)}
                after = [gone] if one == CALL else [gone, grown(tree, one)]
                for other in after:
                    same = plan_abort(other, target, scope).id == plan.id
                    assert same is (one not in reached), (world, target, one)
                    changes, spared = changes + (not same), spared + same
    assert (changes, spared) == (3_957, 5_552)


def test_who_is_spared_goes_to_the_nearest_that_lives_on() -> None:
    """Past parents that the abort ends, and past those that have ended."""
    tree = family()
    tree["a1"] = replace(tree["a1"], mode=CancelMode.ABANDON)
    assert [(one.id, one.parent) for one in plan_abort(tree, "a", SESSION).spared] == [("a1", "top")]
    assert [(one.id, one.parent) for one in plan_abort(tree, "top", SESSION).spared] == [("a1", None)]
    tree["a"] = replace(tree["a"], ended=True)
    assert [(one.id, one.parent) for one in plan_abort(tree, "a", SESSION).spared] == [("a1", "top")]


def test_a_digest_is_short() -> None:
    """Sixteen characters: a person can compare two of them."""
    assert len(plan_abort(family(), "top", SESSION).id) == 16


def test_the_digest_tells_of_policies_and_scopes() -> None:
    """Another edge, another scope or another parent is another tree to plan on."""
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
    """A chain of delegations far deeper than Python's recursion limit is planned, leaf first, for every scope."""
    deep = 5_000
    tree = {
        name(one): TreeNode(
            id=name(one),
            kind="session",
            parent=name(one - 1) if one else None,
            children=(name(one + 1),) if one < deep - 1 else (),
        )
        for one in range(deep)
    }
    assert ids(plan_abort(tree, "s0", SESSION)) == [name(one) for one in reversed(range(deep))]
    tree["s0"] = replace(tree["s0"], children=("s1", "other"))
    tree["other"] = TreeNode(id="other", kind="session", parent="s0")
    siblings = plan_abort(tree, "other", SIBLING)
    assert ids(siblings) == [name(one) for one in reversed(range(1, deep))]
    assert len(plan_abort(tree, "other", SIBLING, POLICIES[-1]).nodes) == deep + 1
    tree["s1"] = replace(tree["s1"], started_by="k")
    tree["k"] = TreeNode(id="k", kind="tool", parent="s0")
    assert ids(plan_abort(tree, "k", TOOL)) == [*ids(siblings), "k"]


# ------------------------------------------------------------------------------------------------ calls within calls
def test_an_abort_of_a_call_reaches_the_calls_that_are_made_within_it() -> None:
    """Inner ones first, and the child sessions that they have asked for; a call beside it is spared."""
    nodes = [
        TreeNode(id="s", kind="session", children=("outer", "inner", "beside", "child")),
        TreeNode(id="outer", kind="tool", parent="s", children=("inner",)),
        TreeNode(id="inner", kind="tool", parent="s"),
        TreeNode(id="beside", kind="tool", parent="s"),
        TreeNode(id="child", kind="session", parent="s", started_by="inner"),
    ]
    plan = plan_abort({one.id: one for one in nodes}, "outer", TOOL)
    assert [one.id for one in plan.nodes] == ["child", "inner", "outer"]
