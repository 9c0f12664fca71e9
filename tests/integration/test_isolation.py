"""Isolation of aborts: the same seeded run with and without an abort, compared actor by actor.

Two families of sessions handle, in virtual time, prompts, waits and calls that are drawn from a random stream of each
session; in one of two runs a node is aborted at a moment that the seed decides. Every actor outside the reach of the
abort must have the same records in the same order, apart from times, numbers and causes. The sessions share the
supervisor and nothing else: no slot, no directory, no budget.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
import trio
import trio.testing

from supervisor.host import factories
from supervisor.host.handle import Session
from supervisor.lifecycles.types import AbortPolicy, AbortScope, LifecycleEvent
from supervisor.policies.abort_plan import Receipt
from supervisor.runtime.entity import Refused
from supervisor.sessions.inprocess import AgentTurn, ToolAborted
from supervisor.workspaces.directory import DirectoryWorkspace
from tests.support import quick_settings, supervising

SEEDS = 40
FAMILIES, CHILDREN, GRANDCHILDREN = 2, 2, 1
HORIZON_S = 40.0
"""Virtual seconds after which every session has completed its prompts."""


# --------------------------------------------------------------------------------------------------- a seeded life
async def act(turn: AgentTurn, rng: random.Random) -> str:
    """Handle a prompt as an agent: wait, make calls or fail, as the random stream *rng* of the session decides."""
    for _ in range(rng.randint(1, 3)):
        match rng.choice(["wait", "call", "two", "fail"]):
            case "wait":
                await anyio.sleep(rng.uniform(0.1, 2.0))
            case "call":
                await call(turn, rng.uniform(0.1, 2.0))
            case "two":
                async with anyio.create_task_group() as group:
                    for wait_s in (rng.uniform(0.1, 2.0), rng.uniform(0.1, 2.0)):
                        group.start_soon(call, turn, wait_s)
                        await anyio.sleep(0.01)  # trio starts what is ready in any order
            case _ if rng.random() < 0.3:
                raise RuntimeError("as the seed wants")
    return "done"


async def call(turn: AgentTurn, wait_s: float) -> None:
    try:
        await turn.call(f"wait {wait_s:.3f}", anyio.sleep, wait_s)
    except ToolAborted:
        turn.say("aborted")


async def live(session: Session, rng: random.Random) -> None:
    """Send a session one or two prompts, one after the other; return early when the session has ended."""
    for number in range(rng.randint(1, 2)):
        await anyio.sleep(rng.uniform(0.0, 2.0))
        try:
            await session.run(f"prompt {number}")
        except LookupError:
            return
        except Refused:  # it has ended meanwhile
            return


class Finished(NamedTuple):
    """Records of a run, and the receipt of its abort, if the run had an abort."""

    events: list[LifecycleEvent]
    receipt: Receipt | None


async def play(tmp_path: Path, seed: int, aborted: bool) -> Finished:
    """Run the two families once, with an abort if *aborted*; every random choice comes from *seed* and the session's
    name."""
    chooser = random.Random(f"{seed} abort")
    receipt: Receipt | None = None
    policy = quick_settings().policy.model_copy(
        update={one: chooser.random() < 0.5 for one in ("tool_to_sibling", "sibling_to_session")}
    )
    async with (
        supervising(tmp_path, settings=quick_settings(restarts_max=100)) as run,
        anyio.create_task_group() as group,
    ):
        await people(run.sup.start_session, policy.value(), seed, group.start_soon)
        await anyio.sleep(chooser.uniform(0.5, 8.0))
        scope = chooser.choice(list(AbortScope))
        names = [f"f{one}/c{two}" for one in range(FAMILIES) for two in range(CHILDREN)]
        target = chooser.choice([*names, *(f"{name}/g{one}" for name in names for one in range(GRANDCHILDREN))])
        if aborted:
            receipt = await run.sup.abort(target, scope, reason="the experiment")
        await anyio.sleep_until(HORIZON_S)
    return Finished(run.events(), receipt)


async def people(
    start: Callable[..., Awaitable[Session]], policy: AbortPolicy, seed: int, begin: Callable[..., Any]
) -> None:
    """Start two families of sessions with three generations each, and for each session a task that sends it prompts."""

    async def one(name: str, parent: str | None) -> str:
        path = f"{parent}/{name}" if parent is not None else name
        rng, owner = random.Random(f"{seed} agent {path}"), random.Random(f"{seed} owner {path}")

        async def agent(turn: AgentTurn) -> str:
            return await act(turn, rng)

        session = await start(name, agent=agent, parent=parent, policy=policy)
        begin(live, session, owner)
        return session.id

    for family in range(FAMILIES):
        lead = await one(f"f{family}", None)
        for number in range(CHILDREN):
            child = await one(f"c{number}", lead)
            for grandchild in range(GRANDCHILDREN):
                await one(f"g{grandchild}", child)


# ------------------------------------------------------------------------------------------------- actor by actor
def session_of(entity_id: str) -> str:
    return entity_id.partition(":")[0]


def projection(events: list[LifecycleEvent]) -> dict[str, list[tuple[Any, ...]]]:
    """Return the records of every actor in order, without times, numbers and causes."""
    logs: dict[str, list[tuple[Any, ...]]] = {}
    for one in events:
        fields = {name: value for name, value in one.metadata.items() if name not in ("due_s", "most_s", "until")}
        told = (one.event, one.outcome, one.from_status, one.to_status, one.actor, one.reason, fields)
        logs.setdefault(one.entity_id, []).append(told)
    return logs


def reach_of(receipt: Receipt) -> tuple[set[str], set[str]]:
    """Return the ids of the sessions that the abort ended, and of the turns with calls that the abort ended."""
    sessions = {one.id for one in receipt.nodes if one.kind == "session"}
    turns = {one.id.rpartition(":c")[0] for one in receipt.nodes if one.kind == "tool"}
    return sessions, turns


def differing(with_it: Finished, without: Finished) -> set[str]:
    one, other = projection(with_it.events), projection(without.events)
    return {actor for actor in one.keys() | other.keys() if one.get(actor) != other.get(actor)}


class _Nowhere(DirectoryWorkspace):
    """Workspace that creates no directory, since virtual time does not wait for the threads of disk operations."""

    async def prepare(self, session_id: str, directory: str, *, root_id: str) -> str:
        return directory


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factories, "DirectoryWorkspace", _Nowhere)


def run_in_virtual_time(tmp_path: Path, seed: int, aborted: bool) -> Finished:
    clock = trio.testing.MockClock(autojump_threshold=0)
    told: Finished = trio.run(play, tmp_path, seed, aborted, clock=clock)
    return told


@pytest.mark.parametrize("tens", range(SEEDS // 10))
def test_an_abort_changes_nothing_outside_its_reach(tmp_path: Path, tens: int) -> None:
    """For each of ten seeds, every actor whose records differ between a run with an abort and one without is in a
    session that the abort ended, is in a session with an aborted call, or differs by the record of the abort only."""
    for seed in range(10 * tens, 10 * tens + 10):
        with_it, without = (run_in_virtual_time(tmp_path, seed, aborted) for aborted in (True, False))
        assert with_it.receipt is not None
        sessions, turns = reach_of(with_it.receipt)
        touched = {session_of(turn) for turn in turns}
        for actor in differing(with_it, without):
            within = session_of(actor) in sessions | touched
            assert within or only_notes(actor, with_it, without), (seed, actor, with_it.receipt)


def only_notes(actor: str, with_it: Finished, without: Finished) -> bool:
    """Return whether the log of an actor differs between the two runs by no more than records of the abort."""
    logs = [
        [one for one in projection(told.events).get(actor, []) if one[0] != "AbortRecord"]
        for told in (with_it, without)
    ]
    return logs[0] == logs[1]


def test_the_same_seed_is_the_same_run(tmp_path: Path) -> None:
    """Two runs with the same seed and no abort have the same records, so each difference found by the other test is due
    to the abort."""
    for seed in range(5):
        first, second = (run_in_virtual_time(tmp_path, seed, False) for _ in range(2))
        assert differing(first, second) == set()
        assert len(first.events) > 100


def test_the_seeds_are_not_all_alike(tmp_path: Path) -> None:
    """The aborts of the first ten seeds have all three scopes and at least three different numbers of ended nodes."""
    receipts = [run_in_virtual_time(tmp_path, seed, True).receipt for seed in range(10)]
    found = [one for one in receipts if one is not None]
    assert {one.scope for one in found} == set(AbortScope)
    assert len({len(one.nodes) for one in found}) >= 3
