"""Every abort in every tree of up to five nodes, planned and carried out, and compared with an independent model.

A node is a session or a call; a call hangs from its session, a session from the session that started it or from the
call that asked for it. Every shape is asked for every target, every scope, every policy of the target's session and of
its parent, in every phase of the target's session. The model beside the code is written from the decisions on reach,
policy and answers; it is recursive and naive, and shares nothing with ``supervisor/policies/abort_plan.py`` but the
words.

All of it is planned. Carried out, by a real supervisor with in-process agents and a journal in memory, are all shapes
of up to four nodes, targets and scopes with the policies that can decide anything there; the flags that must not
matter take turns, and in trees of more than two nodes the phases do.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest

from supervisor.lifecycles.types import AbortPolicy, AbortScope, LifecycleEvent
from supervisor.policies.abort_plan import AbortPlan, NoSiblings, Receipt, TreeNode, plan_abort
from supervisor.ports.agent_profile import AgentProfile
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.agent_connection import AgentConnection
from supervisor.sessions.inprocess import AgentTurn, ToolAborted
from tests.support import Run, quick_settings, supervising

TOOL, SIBLING, SESSION = AbortScope.TOOL, AbortScope.SIBLING, AbortScope.SESSION
SIZES = range(1, 6)


# ------------------------------------------------------------------------------------------------------ every shape
Shape = tuple[str, tuple["Shape", ...]]
"""A node (``s`` or ``c``) and its children in sorted order."""


@cache
def shapes(kind: str, size: int) -> tuple[Shape, ...]:
    """Return every tree of *size* nodes with a root of *kind*; calls hang from sessions only."""
    below = ("s", "c") if kind == "s" else ("s",)
    return tuple((kind, forest) for forest in forests(below, size - 1))


def forests(kinds: tuple[str, ...], size: int, at_least: Shape | None = None) -> Iterator[tuple[Shape, ...]]:
    """Yield every multiset of trees with *size* nodes in all, as a sorted tuple."""
    if size == 0:
        yield ()
    for first in sorted(one for kind in kinds for count in range(1, size + 1) for one in shapes(kind, count)):
        if at_least is None or first >= at_least:
            for rest in forests(kinds, size - nodes_of(first), first):
                yield (first, *rest)


def nodes_of(shape: Shape) -> int:
    return 1 + sum(nodes_of(one) for one in shape[1])


class Node(NamedTuple):
    """Node of a tree: ``n0`` is the root, ``up`` is the node that it hangs from."""

    name: str
    kind: str
    up: str | None


class World(dict[str, Node]):
    """Nodes of one shape by their names, parents first."""

    @classmethod
    def of(cls, shape: Shape) -> World:
        world = cls()

        def grow(one: Shape, up: str | None) -> None:
            node = Node(f"n{len(world)}", one[0], up)
            world[node.name] = node
            for below in one[1]:
                grow(below, node.name)

        grow(shape, None)
        return world

    def session_of(self, name: str) -> str:
        """Return the session of a call, or the name itself if it is a session."""
        node = self[name]
        return name if node.kind == "s" else node.up or ""

    def parent_of(self, session: str) -> str | None:
        up = self[session].up
        return None if up is None else self.session_of(up)

    def hanging(self, name: str) -> list[str]:
        return [one.name for one in self.values() if one.up == name]

    def below(self, name: str) -> set[str]:
        """Return the names of a node and of everything that hangs from the node."""
        return {name}.union(*(self.below(one) for one in self.hanging(name)))

    def children(self, session: str) -> list[str]:
        """Return the sessions whose parent is *session*, whether the session or one of its calls started them."""
        return [one for one in self if self[one].kind == "s" and self.parent_of(one) == session]


@cache
def worlds(size: int) -> tuple[World, ...]:
    return tuple(World.of(shape) for shape in shapes("s", size))


# -------------------------------------------------------------------------------------------------------- the model
class Hit(NamedTuple):
    """Way by which the model's abort reached a node: scope, policy edge and reason."""

    scope: AbortScope
    edge: str | None
    reason: str


class Expected(NamedTuple):
    """Result that the model expects: the nodes that end, the crossed edges (each with the edge before), and whether the
    target had ended."""

    reached: dict[str, Hit]
    crossings: list[tuple[str, str, str | None]]
    already_ended: bool


class Model:
    """Model of an abort by rules 9 to 12 of the specification."""

    def __init__(
        self, world: World, policies: dict[str, AbortPolicy], gone: Iterable[str] = (), *, ending: bool = True
    ) -> None:
        self.world, self.policies, self.gone = world, policies, set(gone)
        self.ending = ending
        """Whether nodes in ``gone`` are still ending: the abort joins their end, by the edge stored in ``joined``."""
        self.joined: dict[str, str | None] = {}
        self.reached: dict[str, Hit] = {}
        self.crossings: list[tuple[str, str, str | None]] = []

    def ask(self, target: str, scope: AbortScope) -> Expected | None:
        """Return the result that the model expects; ``None`` for SIBLING of a root session."""
        subject = target if scope is TOOL else self.world.session_of(target)
        if scope is TOOL:
            self.tool(subject)
        elif scope is SESSION:
            self.end(subject, SESSION, None, "user_interrupt")
        elif self.world.parent_of(subject) is not None:
            self.siblings(subject, None)
        elif subject not in self.gone:
            return None
        useful = {*(hit.edge for hit in self.reached.values()), *self.joined.values()}
        useful |= {before for edge, _, before in self.crossings if edge in useful}
        kept = [one for one in self.crossings if one[0] in useful]
        return Expected(self.reached, kept, subject in self.gone and not self.reached)

    def tool(self, subject: str) -> None:
        """End the call *subject*, or each call of the session *subject*, and the child sessions that these calls
        started."""
        world = self.world
        calls = (
            [subject]
            if world[subject].kind == "c"
            else [one for one in world.hanging(subject) if world[one].kind == "c"]
        )
        for call in calls:
            for child in world.hanging(call):
                self.end(child, TOOL, None, "parent_aborted")
        aborted = [call for call in calls if call not in self.gone]
        for call in aborted:
            self.reached[call] = Hit(TOOL, None, "user_interrupt")
        session = world.session_of(subject)
        if aborted and self.policies[session].tool_to_sibling and world.parent_of(session) is not None:
            self.crossings.append(("tool_to_sibling", session, None))
            self.siblings(session, "tool_to_sibling")

    def siblings(self, trigger: str, edge: str | None) -> None:
        """End the siblings of *trigger* with their descendants; with ``sibling_to_session`` also the parent and
        *trigger*."""
        parent = self.world.parent_of(trigger)
        assert parent is not None
        for one in self.world.children(parent):
            if one != trigger:
                self.end(one, SIBLING, edge, "sibling_aborted")
        if self.policies[parent].sibling_to_session:
            self.crossings.append(("sibling_to_session", parent, edge))
            self.end(parent, SESSION, "sibling_to_session", "sibling_aborted")

    def end(self, session: str, scope: AbortScope, edge: str | None, reason: str) -> None:
        """End a session and all its descendants; a node that was reached before keeps its first reason."""
        for child in self.world.children(session):
            self.end(child, scope, edge, "parent_aborted")
        if session not in self.gone:
            self.reached.setdefault(session, Hit(scope, edge, reason))
        elif self.ending:
            self.joined.setdefault(session, edge)


POLICIES = [AbortPolicy(tool_to_sibling=a, sibling_to_session=b) for a, b in itertools.product([False, True], repeat=2)]


def cells(size: int) -> Iterator[tuple[World, str, AbortScope]]:
    for world in worlds(size):
        for target, scope in itertools.product(world, AbortScope):
            yield world, target, scope


# --------------------------------------------------------------------------------------------------------- planned
def gone_in(world: World, target: str) -> Iterator[set[str]]:
    """The sets of nodes that may have ended or be ending: none; the target; its session with all below; its parent with
    all below."""
    session = world.session_of(target)
    parent = world.parent_of(session)
    yield set()
    yield {target} if world[target].kind == "c" else set(world.below(target))
    yield world.below(session)
    yield world.below(parent) if parent is not None else world.below(session) - {session}


def tree_of(world: World, policies: dict[str, AbortPolicy], gone: set[str]) -> dict[str, TreeNode]:
    tree = {}
    for name, node in world.items():
        calls = [one for one in world.hanging(name) if world[one].kind == "c"]
        by_call = node.kind == "s" and node.up is not None and world[node.up].kind == "c"
        tree[name] = TreeNode(
            id=name,
            kind="session" if node.kind == "s" else "tool",
            parent=world.parent_of(name) if node.kind == "s" else node.up,
            children=(*world.children(name), *calls) if node.kind == "s" else (),
            started_by=node.up if by_call else None,
            policy=policies[name],
            ended=name in gone,
        )
    return tree


def before(world: World, nodes: list[str]) -> bool:
    """Return whether in *nodes* every descendant of a node comes before the node."""
    places = {name: place for place, name in enumerate(nodes)}
    return all(places[one] <= places[name] for name in nodes for one in world.below(name) if one in places)


def agree(world: World, plan: AbortPlan, expected: Expected) -> None:
    assert {one.id: Hit(one.scope, one.edge, one.reason.value) for one in plan.nodes} == expected.reached
    assert [(one.edge, one.ruled_by, one.after) for one in plan.crossings] == expected.crossings
    assert (plan.already_ended, len(plan.nodes)) == (expected.already_ended, len(expected.reached))
    assert before(world, [one.id for one in plan.nodes])


SHAPE_COUNTS = {1: 1, 2: 2, 3: 6, 4: 19, 5: 66}
"""Computed by hand: with s and c the trees rooted in a session and in a call, s(n+1) is the number of forests of n
nodes of both kinds, c(n+1) of those of sessions; s = 1, 2, 6, 19, 66 and c = 1, 1, 3, 10, 36."""


@pytest.mark.parametrize("size", SIZES)
def test_every_plan(size: int) -> None:
    """The plan of every shape x target x 3 scopes x 16 policies of session and parent x 4 sets of ended nodes is the
    model's."""
    count = 0
    for world, target, scope in cells(size):
        session = world.session_of(target)
        for own, above, gone in itertools.product(POLICIES, POLICIES, gone_in(world, target)):
            policies = dict.fromkeys(world, AbortPolicy())
            policies[world.parent_of(session) or ""] = above
            policies[session] = own
            expected = Model(world, policies, gone).ask(target, scope)
            count += 1
            if expected is None:
                with pytest.raises(NoSiblings):
                    plan_abort(tree_of(world, policies, gone), target, scope)
            else:
                agree(world, plan_abort(tree_of(world, policies, gone), target, scope), expected)
    assert (len(worlds(size)), count) == (SHAPE_COUNTS[size], SHAPE_COUNTS[size] * size * 3 * 16 * 4)


# ----------------------------------------------------------------------------------------------------- carried out
DECIDING = list(itertools.product([False, True], repeat=2))
"""tool_to_sibling of the target's session, sibling_to_session of its parent."""


def deciding_at(scope: AbortScope, other: bool) -> list[tuple[bool, bool]]:
    """Return the policies that can make a difference at that scope; a flag that cannot is set to *other*."""
    match scope:
        case AbortScope.TOOL:
            return DECIDING
        case AbortScope.SIBLING:
            return [(other, False), (other, True)]
        case AbortScope.SESSION:
            return [(other, not other)]


WITH_CALLS = ("calling", "ending", "ended")
WITHOUT = ("fresh", "running", "cooling", "ending", "ended")


class Case(NamedTuple):
    """Abort to carry out; *noise* is the value of the policy flags that must not matter."""

    world: World
    target: str
    scope: AbortScope
    deciding: tuple[bool, bool]
    phase: str
    noise: bool

    @property
    def session(self) -> str:
        return self.world.session_of(self.target)

    def policies(self) -> dict[str, AbortPolicy]:
        own, above = self.deciding
        policies = dict.fromkeys(self.world, AbortPolicy(tool_to_sibling=self.noise, sibling_to_session=self.noise))
        parent = self.world.parent_of(self.session)
        if parent is not None:
            policies[parent] = AbortPolicy(tool_to_sibling=self.noise, sibling_to_session=above)
        policies[self.session] = AbortPolicy(tool_to_sibling=own, sibling_to_session=self.noise)
        return policies

    def gone(self) -> set[str]:
        return self.world.below(self.session) if self.phase in ("ending", "ended") else set()

    def expected(self) -> Expected | None:
        """Return the result that the model expects; ``None`` for SIBLING of a root session."""
        if self.phase == "ended":
            return Expected({}, [], True)
        model = Model(self.world, self.policies(), self.gone(), ending=self.phase == "ending")
        return model.ask(self.target, self.scope)


def phases(world: World, session: str) -> tuple[str, ...]:
    """Return the phases in which the target's session is tested, for a session with calls or without."""
    return WITH_CALLS if any(world[one].kind == "c" for one in world.hanging(session)) else WITHOUT


ALL_PHASES_UP_TO = 2
"""Nodes. In larger worlds the phases take turns over the cells: each comes as often, and all of it ten times sooner."""


def cases(size: int) -> Iterator[Case]:
    number = 0
    for world, target, scope in cells(size):
        turns = phases(world, world.session_of(target))
        for deciding in deciding_at(scope, number % 2 == 0):
            for phase in turns if size <= ALL_PHASES_UP_TO else (turns[number % len(turns)],):
                number += 1
                yield Case(world, target, scope, deciding, phase, number // 2 % 2 == 0)


class Stage:
    """Case that is set up in a supervisor, which it shares with other, unrelated cases."""

    def __init__(self, run: Run, root: str, case: Case) -> None:
        self.run, self.sup, self.root, self.case = run, run.sup, root, case
        self.ids: dict[str, str] = {}
        self.linger = anyio.Event()
        self.begun: dict[str, anyio.Event] = {name: anyio.Event() for name in case.world}
        self.receipt: Receipt | None = None
        self.refused = False
        self.seen = 0

    # ------------------------------------------------------------------ coming to life
    async def build(self, group: anyio.abc.TaskGroup) -> None:
        policies = self.case.policies()
        for name, node in self.case.world.items():
            if node.kind == "c":
                await self.begun[name].wait()
                continue
            self.ids[name] = self._start(name, policies[name])
            if self._works(name):
                group.start_soon(self.sup.core.requests.outcome_of, self.ids[name], name, Cause(actor="host"))
                await self.begun[name].wait()
        if self.case.phase == "cooling":
            while self.sup.core.registry.state_of(self.ids[self.case.session]) != "CoolingDown":
                await anyio.lowlevel.checkpoint()

    def _start(self, name: str, policy: AbortPolicy) -> str:
        world = self.case.world
        parent, up = world.parent_of(name), world[name].up
        started_by = self.ids[up] if up is not None and world[up].kind == "c" else None
        profile = AgentProfile(name="agent", adapter="inprocess", function=self._agent)
        ladder = quick_settings().abort_policy.ladder
        # No method of the supervisor gives a policy to the child session of a call.
        return self.sup.core.session_factory._create(
            f"{self.root}{name}" if parent is None else name,
            profile,
            self.ids[parent] if parent is not None else None,
            AbortPolicy(
                tool_to_sibling=policy.tool_to_sibling, sibling_to_session=policy.sibling_to_session, ladder=ladder
            ),
            started_by,
            Cause(actor="host") if started_by is None else self._asked_by(started_by),
        )

    def _asked_by(self, call: str) -> Cause:
        """Return the record of the call as the cause of the child session that the call starts."""
        session_id = call.partition(":")[0]
        connection = self.sup.core.registry.sessions[session_id].connection
        assert isinstance(connection, AgentConnection)
        return Cause(connection._causes[call], None, session_id)  # as the connection asks for a child

    def _works(self, name: str) -> bool:
        """Return whether a session is given a prompt: always with calls, as the phase says for the target, else every
        second one."""
        if name == self.case.session:
            return self.case.phase != "fresh"
        calls = any(self.case.world[one].kind == "c" for one in self.case.world.hanging(name))
        return calls or int(name[1:]) % 2 == 0

    async def _agent(self, turn: AgentTurn) -> None:
        name = turn.prompt
        if name == self.case.session and self.case.phase == "cooling":
            self.begun[name].set()
            raise RuntimeError("it failed")
        try:
            async with anyio.create_task_group() as group:
                for call in [one for one in self.case.world.hanging(name) if self.case.world[one].kind == "c"]:
                    group.start_soon(self._call, turn, call)
                    await self.begun[call].wait()
                self.begun[name].set()
                await anyio.sleep_forever()
        finally:
            if self.case.phase == "ending" and name == self.case.session:
                with anyio.CancelScope(shield=True):
                    await self.linger.wait()

    async def _call(self, turn: AgentTurn, name: str) -> None:
        async def work() -> None:
            calls = [one for one in self.ids if self.case.world[one].kind == "c"]
            number = 1 + len([one for one in calls if self.case.world[one].up == turn.prompt])
            self.ids[name] = f"{turn.turn_id}:c{number}"
            self.begun[name].set()
            await anyio.sleep_forever()

        try:
            await turn.call(name, work)
        except ToolAborted:
            await anyio.sleep_forever()

    # ------------------------------------------------------------------ the abort
    async def prepare(self, group: anyio.abc.TaskGroup) -> None:
        session = self.ids[self.case.session]
        if self.case.phase == "ended":
            await self.sup.core.aborts.close_session(session, reason="no more work")
        if self.case.phase == "ending":
            group.start_soon(self._first, session)
            while not self.sup.core.registry.sessions[session].is_stopping:
                await anyio.lowlevel.checkpoint()

    async def _first(self, session: str) -> None:
        await self.sup.abort(session, SESSION, reason="the first")

    async def abort(self) -> None:
        self.seen = self.sup.core.journal_writer.last_seq
        async with anyio.create_task_group() as group:
            group.start_soon(self._second)
            await anyio.lowlevel.checkpoint()
            self.linger.set()

    async def _second(self) -> None:
        try:
            self.receipt = await self.sup.abort(
                self.ids[self.case.target], self.case.scope, reason="as planned", actor="ann"
            )
        except NoSiblings:
            self.refused = True

    # ------------------------------------------------------------------ what came of it
    def check(self, records: list[LifecycleEvent]) -> str:
        """Compare receipt, order, records and isolation with the model; return "refused", "already ended" or
        "accepted"."""
        expected = self.case.expected()
        if expected is None:
            assert self.refused
            return "refused"
        assert self.receipt is not None
        assert self.receipt.already_ended is expected.already_ended
        mine = [one for one in records if one.entity_id.startswith(self.root + "n0")]
        names = {entity_id: name for name, entity_id in self.ids.items()}
        assert {names[one.id] for one in self.receipt.nodes} == set(expected.reached)
        assert before(self.case.world, [names[one.id] for one in self.receipt.nodes])
        assert all(one.outcome == "ended" for one in self.receipt.nodes)
        if expected.already_ended:
            return "already ended"
        self._check_records([one for one in mine if one.event == "AbortRecord"], expected)
        self._check_ends(mine, expected)
        self._check_isolation([one for one in mine if one.seq > self.seen], expected)
        return "accepted"

    def _check_records(self, found: list[LifecycleEvent], expected: Expected) -> None:
        """Check that the request and each crossed edge have a record, each with the record before it as parent."""
        assert self.receipt is not None
        records = [one for one in found if one.abort_id == self.receipt.abort_id]
        edges = [one.metadata["policy_edge"] for one in records]
        assert edges == [None, *(edge for edge, _, _ in expected.crossings)]
        ids = dict(zip(edges, (one.metadata["id"] for one in records), strict=True))
        for record, (_, ruler, after) in zip(records[1:], expected.crossings, strict=True):
            assert (record.metadata["ruled_by"], record.metadata["parent_record"]) == (self.ids[ruler], ids[after])
        self.records = {one.seq: one.metadata["policy_edge"] for one in records}

    def _check_ends(self, mine: list[LifecycleEvent], expected: Expected) -> None:
        assert self.receipt is not None
        ended: dict[str, int] = {}
        for name, hit in expected.reached.items():
            entity_id = self.ids[name]
            if self.case.world[name].kind == "c":
                self._check_call(mine, entity_id, self.receipt.abort_id)
                continue
            [stop] = [one for one in mine if (one.event, one.entity_id) == ("OperatorStop", entity_id)]
            over = "sibling_aborted" if hit.scope is SIBLING else "aborted"
            assert (stop.abort_id, stop.abort_reason) == (self.receipt.abort_id, hit.reason)
            assert (stop.transition_reason, self.records[stop.cause_id or 0]) == (over, hit.edge)
            assert stop.seq > max(self.records)
            [end] = [one for one in mine if (one.event, one.entity_id) == ("Ended", entity_id)]
            ended[name] = end.seq
            for call in self.case.world.hanging(name):
                if self.case.world[call].kind == "c" and call not in self.case.gone():
                    self._check_call(mine, self.ids[call], self.receipt.abort_id)
        assert before(self.case.world, sorted(ended, key=ended.__getitem__))

    def _check_call(self, mine: list[LifecycleEvent], tool_id: str, abort_id: str) -> None:
        """Check that the call has exactly one result: aborted, by this abort."""
        turn_id, _, number = tool_id.rpartition(":c")
        log = [one for one in mine if one.entity_id == turn_id and one.outcome == "transition"]
        [call_id] = [one.metadata["call_id"] for one in log if one.metadata.get("number") == int(number)]
        results = [one for one in log if one.event == "tool_completed" and one.metadata["call_id"] == call_id]
        assert [(one.metadata["outcome"], one.abort_id) for one in results] == [("aborted", abort_id)]

    def _check_isolation(self, after: list[LifecycleEvent], expected: Expected) -> None:
        """Check that a node that was not reached has no later record, except results of its reached calls, and facts of
        this abort."""
        over = set(expected.reached) | self.case.gone()
        for name, node in self.case.world.items():
            if node.kind == "s" and name not in over:
                entity_id = self.ids[name]
                own = [one for one in after if one.entity_id == entity_id or one.entity_id.startswith(entity_id + ":")]
                said = {(one.event, one.abort_id) for one in own}
                assert self.receipt is not None
                assert said <= {(event, self.receipt.abort_id) for event in ("AbortRecord", "tool_completed")}, said
                results = [one for one in own if one.event == "tool_completed" and one.outcome == "transition"]
                calls = [one for one in expected.reached if self.case.world[one].up == name]
                assert len(results) == len([one for one in calls if self.case.world[one].kind == "c"])
                assert entity_id in self.sup.core.registry.sessions


BATCH = 24
"""Number of cases that share a supervisor, because opening one costs as much as a case does."""

CARRIED_OUT = {1: 35, 2: 112, 3: 126, 4: 532}


async def carry_out(tmp_path: Path, batch: list[Case]) -> Counter[str]:
    found: Counter[str] = Counter()
    settings = quick_settings(backoff_base_ms=600_000, backoff_cap_ms=600_000)
    async with supervising(tmp_path, settings=settings) as run, anyio.create_task_group() as group:
        stages = [Stage(run, f"k{number}", case) for number, case in enumerate(batch)]
        async with anyio.create_task_group() as building:
            for stage in stages:
                building.start_soon(stage.build, group)
        await run.sup.core.journal_writer.flush()
        await run.sup.core.registry.system.idle()
        for stage in stages:
            await stage.prepare(group)
            await stage.abort()
        await run.sup.core.journal_writer.flush()
        await run.sup.core.registry.system.idle()
        records = run.events()
        for stage in stages:
            found[stage.check(records)] += 1
        await run.sup.stop(now=True)
    return found


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("size", CARRIED_OUT)
async def test_every_abort(tmp_path: Path, size: int) -> None:
    """Every shape x target x scope is carried out as the model says, with 4 policies for TOOL, 2 for SIBLING, 1 for
    SESSION."""
    found: Counter[str] = Counter()
    waiting = cases(size)
    while batch := list(itertools.islice(waiting, BATCH)):
        found += await carry_out(tmp_path, batch)
    assert found.total() == CARRIED_OUT[size]
