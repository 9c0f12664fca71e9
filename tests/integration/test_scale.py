"""Very many sessions, and very many levels of delegation: they start, run, and end completely, with receipts.

By default 1,000 sessions and 1,200 levels, deeper than Python's stack; ``make scale`` runs 10,000 and 2,000 (see
``--sessions`` and ``--levels`` in ``conftest.py``). The tests check completeness; the benchmark measures times. No step
may recurse over levels or look at all siblings of each sibling, and no tasks or entities may be left. ``supervising``
checks every record of each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from anyio.abc import TaskGroup

from supervisor import AbortScope, AgentTurn, Session, Supervisor
from supervisor.policies.abort_plan import Receipt
from tests.support import DEADLINE_S, Run, quick_settings, supervising

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]

CALM = quick_settings(ladder={"request_s": 600.0}, grace_s=600.0, spawn_deadline_s=600.0, turn_timeout_s=6_000.0)
"""Settings with deadlines that no session reaches even on a loaded machine, so that every session ends in order."""
SCALE_S = 10 * DEADLINE_S


@pytest.fixture
def many(request: pytest.FixtureRequest) -> int:
    """Fixture: the number of sessions, a multiple of a hundred."""
    return int(request.config.getoption("--sessions"))


@pytest.fixture
def levels(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--levels"))


class Crowd:
    """Agents that hang in a tool call; the event ``there`` is set when the expected number of agents hangs."""

    def __init__(self, expected: int) -> None:
        self._missing = expected
        self.there = anyio.Event()

    async def hang(self) -> None:
        self._missing -= 1
        if self._missing == 0:
            self.there.set()
        await anyio.sleep_forever()

    async def agent(self, turn: AgentTurn) -> None:
        await turn.call("hang", self.hang)

    async def delegating(self, turn: AgentTurn) -> None:
        """Delegate as many levels deep as the prompt says, and wait for the child session; the deepest session hangs in
        a call."""
        left = int(turn.prompt)
        if left:
            await turn.delegate("d", str(left - 1))
        else:
            await self.agent(turn)

    async def all_hang(self) -> None:
        with anyio.fail_after(SCALE_S):
            await self.there.wait()


async def tree_of(sup: Supervisor, crowd: Crowd, branches: int, leaves: int) -> list[Session]:
    """Start a root session, *branches* sessions below the root, and *leaves* sessions below each branch; return parents
    before children."""
    root = await sup.start_session("root", agent=crowd.agent)
    above = [await root.start_child(f"b{number}") for number in range(branches)]
    below = [await one.start_child(f"l{number}") for one in above for number in range(leaves)]
    return [root, *above, *below]


async def chain_of(sup: Supervisor, crowd: Crowd, depth: int) -> list[Session]:
    """Start *depth* sessions, each a child of the session before."""
    chain = [await sup.start_session("root", agent=crowd.agent)]
    while len(chain) < depth:
        chain.append(await chain[-1].start_child("c"))
    return chain


async def abort_root(run: Run) -> Receipt:
    with anyio.fail_after(SCALE_S):
        return await run.sup.abort("root", AbortScope.SESSION, reason="the test says so")


def check_receipt(receipt: Receipt, ids: Sequence[str], parents: dict[str, str | None]) -> None:
    """Assert that every session is in the abort receipt once, after its descendants, and has ended durably at the
    request stage."""
    told = {node.id: number for number, node in enumerate(receipt.nodes)}
    assert sorted(node.id for node in receipt.nodes if node.kind == "session") == sorted(ids)
    assert {(node.outcome, node.rung) for node in receipt.nodes} == {("ended", "request")}
    assert all(parent is None or told[one] < told[parent] for one, parent in parents.items())
    assert receipt.survivors == 0
    assert receipt.killed_at is not None
    assert receipt.recorded_at is not None


def check_ends(run: Run, ids: Sequence[str], parents: dict[str, str | None]) -> None:
    """Assert that the last record of every session precedes that of its parent, and that the registry is empty."""
    ends = {one.entity_id: one.seq for one in run.transitions("Ended")}
    assert sorted(ends) == sorted(ids)
    assert all(run.row(one).ended for one in ids)
    assert all(parent is None or ends[one] < ends[parent] for one, parent in parents.items())
    assert (run.sup.core.registry.sessions, run.sup.core.registry.entities) == ({}, {})


async def no_more_than(tasks: int, actors: int, run: Run) -> None:
    """Wait until no more than *tasks* event-loop tasks and *actors* actors are left."""
    with anyio.fail_after(SCALE_S):
        while len(anyio.get_running_tasks()) > tasks or len(run.sup.core.registry.system) > actors:
            for _ in range(100):  # to count ten thousand tasks at every step would be what takes longest here
                await anyio.lowlevel.checkpoint()


class Count:
    """Allowed numbers of event-loop tasks and actors after a test, taken before the test. Three tasks are added, since
    the janitor, the services and the service of processes get a host task each at their first task."""

    def __init__(self, run: Run) -> None:
        self.tasks = len(anyio.get_running_tasks()) + 3
        self.actors = len(run.sup.core.registry.system)


async def check_abort(run: Run, before: Count) -> None:
    """Abort the root session, and check the receipt, the records, and the numbers of tasks and actors that are left."""
    parents = {work.session_id: work.parent_id for work in run.sup.core.registry.sessions.values()}
    receipt = await abort_root(run)
    check_receipt(receipt, list(parents), parents)
    check_ends(run, list(parents), parents)
    await no_more_than(before.tasks, before.actors, run)


def prompt(group: TaskGroup, sessions: Sequence[Session]) -> None:
    for one in sessions:
        group.start_soon(one.run, "hang")


@pytest.mark.parametrize("leaves", [99, 0], ids=["a tree of trees", "wide"])
async def test_many_sessions_at_rest(tmp_path: Path, many: int, leaves: int) -> None:
    """The abort of the root ends all sessions at rest, in a wide tree and in a tree of trees; the receipt lists
    children before parents."""
    async with supervising(tmp_path, settings=CALM, within_s=SCALE_S) as run:
        before = Count(run)
        sessions = await tree_of(run.sup, Crowd(0), many // (leaves + 1), leaves)
        assert len(sessions) == many + 1
        await check_abort(run, before)


async def test_many_sessions_of_which_a_tenth_work(tmp_path: Path, many: int) -> None:
    """An abort ends all sessions of a tree in which every tenth session is in a turn with a call."""
    async with supervising(tmp_path, settings=CALM, within_s=SCALE_S) as run, anyio.create_task_group() as group:
        before = Count(run)
        working = many // 10 + 1
        crowd = Crowd(working)
        sessions = await tree_of(run.sup, crowd, many // 100, 99)
        prompt(group, sessions[::10])
        await crowd.all_hang()
        await check_abort(run, before)
        assert len(run.transitions("agent_exited")) == working


async def test_a_long_chain_of_sessions_at_rest(tmp_path: Path, levels: int) -> None:
    """The abort of a very long chain of sessions ends all of them; no step recurses over the levels."""
    async with supervising(tmp_path, settings=CALM, within_s=SCALE_S) as run:
        before = Count(run)
        await chain_of(run.sup, Crowd(0), levels)
        await check_abort(run, before)


async def test_a_chain_of_sessions_that_all_work(tmp_path: Path) -> None:
    """An abort ends a chain of 600 sessions, each in a turn with a call: twice as deep as asyncio task groups
    may nest."""
    depth = 600
    async with supervising(tmp_path, settings=CALM, within_s=SCALE_S) as run, anyio.create_task_group() as group:
        before = Count(run)
        crowd = Crowd(depth)
        prompt(group, await chain_of(run.sup, crowd, depth))
        await crowd.all_hang()
        await check_abort(run, before)


async def test_a_delegation_of_many_levels(tmp_path: Path, levels: int) -> None:
    """When each agent waits in a call for the session that it started, over many levels, the abort of the root ends all
    sessions."""
    async with supervising(tmp_path, settings=CALM, within_s=SCALE_S) as run, anyio.create_task_group() as group:
        before = Count(run)
        crowd = Crowd(1)
        root = await run.sup.start_session("root", agent=crowd.delegating)
        group.start_soon(root.run, str(levels - 1))
        await crowd.all_hang()
        assert len(run.sup.core.registry.sessions) == levels
        await check_abort(run, before)


async def test_ids_do_not_grow_with_the_depth(tmp_path: Path) -> None:
    """The id of a session deep in a chain leaves out the middle of its path, stays short, and is unique."""
    async with supervising(tmp_path, settings=CALM) as run:
        chain = await chain_of(run.sup, Crowd(0), 300)
        assert max(len(one.id) for one in chain) <= 200
        assert len({one.id for one in chain}) == 300
        assert chain[50].id == f"root{'/c' * 50}"
        assert chain[-1].id.startswith("root/~/c")
