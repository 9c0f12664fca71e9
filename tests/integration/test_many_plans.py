"""Tests of several plans that run side by side in one supervisor: what they share, and what never reaches another."""

from __future__ import annotations

import copy
import gc
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from actors.breaker import BreakerLimits
from supervisor import (
    AgentConfig,
    AgentTurn,
    NoSuchEntity,
    Plan,
    PlanHandle,
    RecoveryConfig,
    Refused,
    Settings,
    Supervisor,
    TaskConfig,
    open_supervisor,
    reconfigure,
    submit,
)
from supervisor.journal.memory import MemoryJournal, MemoryStore
from supervisor.ports import Append, Compacted
from supervisor.work.leases import Claim
from supervisor.work.plan_run import PlanRun
from supervisor.work.shared_scheduler import SharedScheduler
from supervisor.work.task_execution import TaskExecution
from tests.support import wait_for_record

pytestmark = pytest.mark.anyio

SOON_S = 30.0
GOES_ON = Settings(recovery=RecoveryConfig(sessions="restart"))
"""Settings with which the sessions of a dead supervisor go on."""


class Workshop:
    """Agents ``a`` and ``b``, which work until the test lets them finish, and an account of who was at work."""

    def __init__(self) -> None:
        self.at_work: dict[str, str] = {}
        """The agents of the tasks at work, by the prompts."""
        self.most: dict[str, int] = {}
        """The largest number of tasks that were at work at once, by agent, and ``""`` for all."""
        self.began: list[str] = []
        self.free = False
        self.slow: set[str] = set()
        """Prompts whose agents, when they have finished or are cancelled, do not end before ``end``."""
        self._changed = anyio.Event()
        self._let: set[str] = set()

    def agent(self, name: str) -> Callable[[AgentTurn], Any]:
        async def work(turn: AgentTurn) -> str:
            prompt = turn.prompt.partition("\n")[0]  # without the reason of a retry
            self.at_work[prompt] = name
            self.began.append(prompt)
            for key, count in (("", len(self.at_work)), (name, list(self.at_work.values()).count(name))):
                self.most[key] = max(self.most.get(key, 0), count)
            self._change()
            try:
                while not (self.free or prompt in self._let):
                    await self._changed.wait()
            finally:
                with anyio.move_on_after(SOON_S, shield=True):
                    while prompt in self.slow:
                        await self._changed.wait()
                del self.at_work[prompt]
                self._change()
            if prompt.endswith("fails"):
                raise RuntimeError("it cannot be done")
            return "done"

        return work

    @property
    def agents(self) -> Mapping[str, Any]:
        return {"a": self.agent("a"), "b": self.agent("b")}

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def finish(self, *prompts: str) -> None:
        """Let the agents of these prompts finish; without any, the agents of all prompts from now on."""
        self._let.update(prompts)
        self.free = self.free or not prompts
        self._change()

    def end(self, *prompts: str) -> None:
        """Let the ``slow`` agents of these prompts end."""
        self.slow.difference_update(prompts)
        self._change()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until *holds* is true; it is looked at whenever an agent begins or ends."""
        with anyio.fail_after(SOON_S):
            while not holds():
                await self._changed.wait()


def plan_of(name: str, *tasks: TaskConfig, agents: Mapping[str, Any], **more: Any) -> Plan:
    return Plan(workstream=name, agents=agents, tasks=tasks, **more)


def tasks_of(plan: str, count: int, agent: str = "a", **more: Any) -> list[TaskConfig]:
    return [TaskConfig(id=f"{plan}{n}", agent=agent, prompt=f"{plan}{n}", **more) for n in range(count)]


async def idle(sup: Supervisor) -> None:
    """Wait until nothing can be claimed any more."""
    await anyio.wait_all_tasks_blocked()


async def result_of(handle: PlanHandle) -> Mapping[str, str]:
    with anyio.fail_after(SOON_S):
        return {name: one.outcome for name, one in (await handle).tasks.items()}


# ------------------------------------------------------------------------------------------------ apart from each other
async def test_two_runs_of_one_plan_are_two_runs() -> None:
    """A plan that is submitted twice runs twice, side by side, with ids of its own for each run."""
    shop = Workshop()
    plan = plan_of("p", *tasks_of("p", 3), agents=shop.agents)
    shop.finish()
    async with open_supervisor(agents=shop.agents) as sup:
        first, second = await submit(sup, plan), await submit(sup, plan)

        assert first.run_id != second.run_id
        for handle in (first, second):
            assert set((await result_of(handle)).values()) == {"completed"}
    assert sorted(shop.began) == sorted(2 * ["p0", "p1", "p2"])


async def test_a_plan_that_is_given_up_leaves_the_others_alone() -> None:
    """A cancelled run ends with its tasks, while another run goes on, and a third one can begin."""
    shop = Workshop()
    async with open_supervisor(agents=shop.agents) as sup:
        one = await submit(sup, plan_of("x", *tasks_of("x", 4), agents=shop.agents, max_sessions=2))
        other = await submit(sup, plan_of("y", *tasks_of("y", 2), agents=shop.agents))
        await shop.until(lambda: len(shop.at_work) == 4)
        one.cancel()
        with pytest.raises(Refused, match="was cancelled"):
            await one
        assert sorted(shop.at_work) == ["y0", "y1"]

        shop.finish()
        assert await result_of(other) == {"y0": "completed", "y1": "completed"}
        third = await submit(sup, plan_of("z", *tasks_of("z", 1), agents=shop.agents))
        assert await result_of(third) == {"z0": "completed"}


async def test_a_plan_that_fails_ends_neither_the_supervisor_nor_another_plan() -> None:
    """A run whose critical task fails ends, and the other run goes on."""
    shop = Workshop()
    failing = TaskConfig(id="f", agent="a", prompt="x fails", critical=True, max_retries=0)
    quick = {"task_lifecycle": {"max_attempts": 1}}
    async with open_supervisor(agents=shop.agents) as sup:
        one = await submit(sup, plan_of("x", failing, *tasks_of("x", 2), agents=shop.agents, **quick))
        other = await submit(sup, plan_of("y", *tasks_of("y", 1), agents=shop.agents))
        await shop.until(lambda: len(shop.at_work) == 4)
        shop.finish("x fails")
        assert (await result_of(one))["f"] == "failed"
        assert list(shop.at_work) == ["y0"]

        shop.finish()
        assert await result_of(other) == {"y0": "completed"}


async def test_a_claim_that_fails_ends_its_own_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error while a claim is recorded ends the plan of the task, and the other plans go on to be served."""
    shop, begin_claim = Workshop(), PlanRun.begin_claim

    def fail_for_x(plan_run: PlanRun, execution: TaskExecution, claim: Claim) -> None:
        if execution.name.startswith("x"):
            raise RuntimeError("it cannot be recorded")
        begin_claim(plan_run, execution, claim)

    monkeypatch.setattr(PlanRun, "begin_claim", fail_for_x)
    shop.finish()
    async with open_supervisor(agents=shop.agents) as sup:
        one = await submit(sup, plan_of("x", *tasks_of("x", 2), agents=shop.agents))
        with anyio.fail_after(SOON_S), pytest.raises(RuntimeError, match="it cannot be recorded"):
            await one
        other = await submit(sup, plan_of("y", *tasks_of("y", 2), agents=shop.agents))
        assert await result_of(other) == {"y0": "completed", "y1": "completed"}


async def test_a_stop_of_the_supervisor_ends_all_plans() -> None:
    """A stop lets the turns of all plans finish, and begins no other task."""
    shop = Workshop()
    async with open_supervisor(agents=shop.agents) as sup:
        handles = [
            await submit(sup, plan_of(name, *tasks_of(name, 2), agents=shop.agents, max_sessions=1)) for name in "xy"
        ]
        await shop.until(lambda: len(shop.at_work) == 2)
        await sup.stop()
        shop.finish()
        ends = [sorted((await result_of(one)).values()) for one in handles]
        assert ends == [["aborted", "completed"]] * 2


async def test_nothing_of_an_ended_plan_is_kept() -> None:
    """When a run has ended, the scheduler has none of its tasks, also if the run was given up."""
    shop = Workshop()
    async with open_supervisor(agents=shop.agents) as sup:
        kept = await submit(sup, plan_of("x", *tasks_of("x", 3), agents=shop.agents))
        given_up = await submit(sup, plan_of("y", *tasks_of("y", 3), agents=shop.agents))
        await shop.until(lambda: len(shop.at_work) == 6)
        given_up.cancel()
        await given_up.ended.wait()
        shop.finish()
        await kept
        scheduler = sup.core.part(SharedScheduler)

        assert (len(scheduler.backlog), scheduler.backlog.claims()) == (0, [])


# ------------------------------------------------------------------------------------------------------------- limits
async def test_plans_take_turns() -> None:
    """Of two plans that share one slot, the smaller one is not kept waiting by the larger one: they take turns."""
    shop = Workshop()
    async with open_supervisor(agents=shop.agents, settings=Settings(max_sessions_total=1)) as sup:
        large = await submit(sup, plan_of("x", *tasks_of("x", 40), agents=shop.agents))
        await shop.until(lambda: len(shop.began) == 1)
        small = await submit(sup, plan_of("y", *tasks_of("y", 3), agents=shop.agents))
        await idle(sup)
        shop.finish()
        await result_of(small)
        await result_of(large)

    assert "".join(prompt[0] for prompt in shop.began[:8]) == "xyxyxyxx"
    assert shop.most[""] == 1


async def test_the_highest_priority_of_all_plans_is_first() -> None:
    """A task of a higher priority is claimed before the tasks of every plan, whatever plan's turn it is."""
    shop = Workshop()
    async with open_supervisor(agents=shop.agents, settings=Settings(max_sessions_total=1)) as sup:
        one = await submit(sup, plan_of("x", *tasks_of("x", 3), agents=shop.agents))
        await shop.until(lambda: len(shop.began) == 1)
        other = await submit(sup, plan_of("y", *tasks_of("y", 3, priority=5), agents=shop.agents))
        await idle(sup)
        shop.finish()
        await result_of(one)
        await result_of(other)

    assert "".join(prompt[0] for prompt in shop.began) == "xyyyxx"


async def test_an_agent_has_a_limit_of_its_own() -> None:
    """``max_sessions`` of an agent holds for all plans together, and delays no task of another agent. A task that waits
    for the agent says so."""
    shop = Workshop()
    agents: Mapping[str, Any] = {
        "a": AgentConfig.of_function("a", shop.agent("a")).model_copy(update={"max_sessions": 2}),
        "b": shop.agent("b"),
    }
    async with open_supervisor(agents=agents) as sup:
        handles = [
            await submit(sup, plan_of(name, *tasks_of(name, 3), *tasks_of(f"{name}b", 1, "b"), agents=agents))
            for name in "xy"
        ]
        await shop.until(lambda: len(shop.at_work) == 4)
        await idle(sup)
        assert sorted(shop.at_work.values()) == ["a", "a", "b", "b"]
        waits = handles[0].waiting()
        assert set(waits.values()) == {"as many tasks as max_sessions allows are at work with the agent a"}
        await sup.core.journal_writer.durable()
        [name, *_] = waits
        said = [
            one.reason
            for one in await sup.core.journal.events(entity_id=f"{handles[0].run_id}#{name}")
            if one.outcome == "fact"
        ]
        assert said == [waits[name]]
        shop.finish()
        for handle in handles:
            assert set((await result_of(handle)).values()) == {"completed"}

    assert (shop.most["a"], shop.most[""]) == (2, 4)


async def test_a_limit_that_is_raised_counts_at_once() -> None:
    """When ``max_sessions_total`` is raised, or removed, the tasks that waited for it begin."""
    shop = Workshop()
    async with open_supervisor(agents=shop.agents, settings=Settings(max_sessions_total=1)) as sup:
        handle = await submit(sup, plan_of("x", *tasks_of("x", 3), agents=shop.agents))
        await shop.until(lambda: len(shop.at_work) == 1)
        await idle(sup)
        assert len(shop.at_work) == 1
        reconfigure(sup, agents=shop.agents, settings=Settings())
        await shop.until(lambda: len(shop.at_work) == 3)
        shop.finish()
        assert set((await result_of(handle)).values()) == {"completed"}


async def test_each_plan_keeps_its_own_limit() -> None:
    """``max_sessions`` of a plan limits that plan alone."""
    shop = Workshop()
    async with open_supervisor(agents=shop.agents) as sup:
        one = await submit(sup, plan_of("x", *tasks_of("x", 4), agents=shop.agents, max_sessions=1))
        other = await submit(sup, plan_of("y", *tasks_of("y", 4), agents=shop.agents, max_sessions=3))
        await shop.until(lambda: len(shop.at_work) == 4)
        await idle(sup)
        assert "".join(sorted(prompt[0] for prompt in shop.at_work)) == "xyyy"
        shop.finish()
        await result_of(one)
        await result_of(other)

    assert shop.most[""] == 4


async def test_files_are_owned_across_plans() -> None:
    """A task waits while a task of another plan owns a file that it needs."""
    shop = Workshop()
    async with open_supervisor(agents=shop.agents) as sup:
        one = await submit(sup, plan_of("x", *tasks_of("x", 1, files=("src",)), agents=shop.agents))
        await shop.until(lambda: shop.began == ["x0"])
        other = await submit(sup, plan_of("y", *tasks_of("y", 1, files=("src/a.py",)), agents=shop.agents))
        await idle(sup)
        assert shop.began == ["x0"]
        assert other.waiting() == {"y0": "its files overlap those of r1#x0"}

        shop.finish()
        assert await result_of(one) == {"x0": "completed"}
        assert await result_of(other) == {"y0": "completed"}


async def test_the_files_of_a_plan_that_was_given_up_are_free() -> None:
    """When a run is given up, a task of another run that needs its files begins."""
    shop = Workshop()
    async with open_supervisor(agents=shop.agents) as sup:
        one = await submit(sup, plan_of("x", *tasks_of("x", 1, files=("src",)), agents=shop.agents))
        await shop.until(lambda: shop.began == ["x0"])
        other = await submit(sup, plan_of("y", *tasks_of("y", 1, files=("src",)), agents=shop.agents))
        one.cancel()
        await shop.until(lambda: shop.began == ["x0", "y0"])
        shop.finish()
        assert await result_of(other) == {"y0": "completed"}


async def test_a_provider_is_probed_for_all_plans() -> None:
    """While a provider is probed by a task of one plan, the tasks of every plan wait for the reply, and say so. A plan
    that is given up leaves the probe to another."""
    shop = Workshop()
    agents = {"a": AgentConfig.of_function("a", shop.agent("a")).model_copy(update={"provider": "cloud"})}
    async with open_supervisor(agents=agents) as sup:
        providers, limits = sup.core.part(SharedScheduler).providers, BreakerLimits()
        at_s = sup.core.journal_writer.clock.now() - limits.cooldown_s - 1.0
        for number in range(limits.failures_max):
            providers.launched("cloud", f"earlier{number}", at_s)
            providers.troubled("cloud", f"earlier{number}", at_s, "it is overloaded")
        one = await submit(sup, plan_of("x", *tasks_of("x", 1), agents=agents))
        await shop.until(lambda: shop.began == ["x0"])
        other = await submit(sup, plan_of("y", *tasks_of("y", 2), agents=agents))
        await idle(sup)
        assert shop.began == ["x0"]
        assert set(other.waiting().values()) == {"no work is begun now for the provider cloud"}

        one.cancel()
        await shop.until(lambda: len(shop.began) == 2)
        await idle(sup)
        assert len(shop.began) == 2
        shop.finish()
        assert set((await result_of(other)).values()) == {"completed"}


# ------------------------------------------------------------------------------------------------ requests with a key
async def test_a_repeated_request_starts_nothing() -> None:
    """A request with a key that was used before returns the run of the first request: while the run goes on, after its
    end, and also where both requests come at once."""
    shop = Workshop()
    plan = plan_of("p", *tasks_of("p", 1), agents=shop.agents)
    async with open_supervisor(agents=shop.agents) as sup:
        handles: list[PlanHandle] = []

        async def ask() -> None:
            handles.append(await submit(sup, plan, key="k"))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            group.start_soon(ask)
        assert handles[0] is handles[1]
        assert await submit(sup, plan, key="k") is handles[0]
        shop.finish()
        assert await result_of(handles[0]) == {"p0": "completed"}
        again = await submit(sup, plan, key="k")
        assert (again.run_id, await result_of(again)) == (handles[0].run_id, {"p0": "completed"})
        another = await submit(sup, plan, key="other")
        assert await result_of(another) == {"p0": "completed"}
        assert another.run_id != again.run_id

    assert shop.began == ["p0", "p0"]


async def test_a_key_belongs_to_one_request() -> None:
    """A key that was used for another plan is refused, and nothing is started."""
    shop = Workshop()
    shop.finish()
    async with open_supervisor(agents=shop.agents) as sup:
        first = await submit(sup, plan_of("p", *tasks_of("p", 1), agents=shop.agents), key="k")
        for _ in range(2):
            with pytest.raises(Refused, match="key 'k' was used for another request; use another key"):
                await submit(sup, plan_of("q", *tasks_of("q", 1), agents=shop.agents), key="k")
            await first.ended.wait()

    assert shop.began == ["p0"]


async def test_a_key_is_forgotten_with_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a compaction has moved a run to the archive, its key is free, as it would be for the next supervisor; the
    keys of runs that the journal has stay known."""

    class Upkeep:
        async def compact(self, *arguments: object) -> Compacted:
            return Compacted(entities=1)

    shop = Workshop()
    shop.finish()
    plan = plan_of("p", *tasks_of("p", 1), agents=shop.agents)
    async with open_supervisor(agents=shop.agents) as sup:
        for key in ("kept", "gone"):
            await result_of(await submit(sup, plan, key=key))
        by_key = sup.core.recovered_work.earlier.by_key
        by_key["gone"] = by_key["gone"]._replace(workstream="r77")
        monkeypatch.setattr(sup.core, "upkeep", Upkeep())
        await sup.compact()
        assert list(by_key) == ["kept"]


async def test_a_key_is_known_after_a_restart(tmp_path: Path) -> None:
    """The next supervisor returns the run of the first request, with its result."""
    shop = Workshop()
    shop.finish()
    plan = plan_of("p", *tasks_of("p", 2), agents=shop.agents)
    async with open_supervisor(tmp_path / "sd", agents=shop.agents, control=False) as sup:
        first = await submit(sup, plan, key="k")
        await result_of(first)
    async with open_supervisor(tmp_path / "sd", agents=shop.agents, control=False) as sup:
        again = await submit(sup, plan, key="k")
        assert (again.run_id, again.ended.is_set()) == (first.run_id, True)
        assert await result_of(again) == {"p0": "completed", "p1": "completed"}
        with pytest.raises(Refused, match="another request"):
            await submit(sup, plan_of("q", *tasks_of("q", 1), agents=shop.agents), key="k")

    assert len(shop.began) == 2


# --------------------------------------------------------------------------------------------------- after a takeover
async def test_after_a_takeover_no_more_tasks_are_at_work_than_allowed() -> None:
    """The sessions that go on after a takeover count for ``max_sessions`` from the beginning, and the tasks that waited
    take no slot of theirs, whatever their priority."""
    shop, store = Workshop(), MemoryStore()
    tasks = [*tasks_of("x", 2, priority=1), *tasks_of("y", 4, priority=5, depends_on=("gate",))]
    gate = TaskConfig(id="gate", agent="b", prompt="gate", priority=9)
    plan = plan_of("p", gate, *tasks, agents=shop.agents, max_sessions=3)
    async with open_supervisor(agents=shop.agents, journal=MemoryJournal(store)) as sup:
        handle = await submit(sup, plan)
        await shop.until(lambda: len(shop.at_work) == 3)
        shop.finish("gate")
        await shop.until(lambda: len(shop.began) == 4)
        [third] = shop.at_work.keys() - {"x0", "x1"}
        left = copy.deepcopy(store)
        handle.cancel()
    later = Workshop()
    async with open_supervisor(agents=later.agents, settings=GOES_ON, journal=MemoryJournal(left)) as sup:
        handle = await submit(sup, resume=handle.run_id)
        await later.until(lambda: len(later.at_work) == 3)
        await idle(sup)
        assert sorted(later.at_work) == ["x0", "x1", third]
        later.finish()
        assert set((await result_of(handle)).values()) == {"completed"}

    assert later.most[""] == 3
    assert sorted(later.began) == ["x0", "x1", "y0", "y1", "y2", "y3"]


@pytest.mark.parametrize("command", ["block", "requeue"])
async def test_a_session_that_is_ended_before_it_has_a_worker_keeps_its_slot_until_then(command: str) -> None:
    """A session that goes on after a takeover, and whose task is taken away before a worker has a slot for the task,
    counts as one at work until the session has ended, and not afterwards."""
    shop, store = Workshop(), MemoryStore()
    tasks = tasks_of("x", 3)
    plan = plan_of("p", *tasks, agents=shop.agents, max_sessions=2)
    async with open_supervisor(agents=shop.agents, journal=MemoryJournal(store)) as sup:
        handle = await submit(sup, plan)
        await shop.until(lambda: len(shop.at_work) == 2)
        first, gone = sorted(shop.at_work)
        for name in (first, gone):
            await wait_for_record(sup, "started", f"{handle.run_id}#{name}")
        left = copy.deepcopy(store)
        handle.cancel()
    later = Workshop()
    later.slow = {gone}
    narrow = plan_of("p", *tasks, agents=later.agents, max_sessions=1)
    async with open_supervisor(agents=later.agents, settings=GOES_ON, journal=MemoryJournal(left)) as sup:
        handle = await submit(sup, narrow, resume=handle.run_id)
        await later.until(lambda: len(later.at_work) == 2)
        if command == "block":
            await handle.block(gone, ["a key"], by="me")
        else:
            await handle.requeue(gone, by="me")
        later.finish(first)
        await later.until(lambda: len(later.at_work) == 1)
        await idle(sup)
        assert (sorted(later.began), list(later.at_work)) == ([first, gone], [gone])  # the slot is free, and one waits
        later.end(gone)
        await later.until(lambda: len(later.began) == 3)
        later.finish()
        if command == "block":
            await handle.unblock(gone, by="me")
        assert set((await result_of(handle)).values()) == {"completed"}

    assert sorted(later.began) == sorted(["x0", "x1", "x2", gone])


async def test_after_a_takeover_the_limits_hold_for_all_plans() -> None:
    """The sessions that go on count for the limits of their agent and of the supervisor, too."""
    shop, store = Workshop(), MemoryStore()
    settings = GOES_ON.model_copy(update={"max_sessions_total": 2})
    plans = [plan_of(name, *tasks_of(name, 3), agents=shop.agents) for name in "xy"]
    async with open_supervisor(agents=shop.agents, settings=settings, journal=MemoryJournal(store)) as sup:
        handles = [await submit(sup, plan) for plan in plans]
        await shop.until(lambda: len(shop.at_work) == 2)
        left = copy.deepcopy(store)
        for handle in handles:
            handle.cancel()
    later = Workshop()
    async with open_supervisor(agents=later.agents, settings=settings, journal=MemoryJournal(left)) as sup:
        again = [await submit(sup, resume=handle.run_id) for handle in handles]
        await later.until(lambda: len(later.at_work) == 2)
        await idle(sup)
        assert sorted(later.at_work) == sorted(shop.began[:2])
        later.finish()
        assert [set((await result_of(one)).values()) for one in again] == [{"completed"}, {"completed"}]

    assert later.most[""] == 2


async def test_an_interrupted_run_is_continued_without_its_plan() -> None:
    """The plan is data of the run: the next supervisor continues the run by its id alone, with the tasks that were
    added. A request that is repeated with its key starts nothing, and says that the run was interrupted."""
    shop, store = Workshop(), MemoryStore()
    plan = plan_of("p", *tasks_of("x", 2), agents=shop.agents, max_sessions=1)
    async with open_supervisor(agents=shop.agents, journal=MemoryJournal(store)) as sup:
        handle = await submit(sup, plan, key="k")
        await shop.until(lambda: len(shop.began) == 1)
        added = await handle.add(plan_of("p", *tasks_of("y", 1), agents=shop.agents, max_sessions=1))
        assert added.subtasks == ("r1#y0",)
        await idle(sup)
        left = copy.deepcopy(store)
        handle.cancel()
    later = Workshop()
    later.finish()
    async with open_supervisor(agents=later.agents, journal=MemoryJournal(left)) as sup:
        found = await submit(sup, plan, key="k")
        assert (found.run_id, found.is_interrupted) == (handle.run_id, True)
        with pytest.raises(Refused, match="was interrupted; submit"):
            await found
        assert later.began == []
        again = await submit(sup, resume=found.run_id)
        assert await result_of(again) == {"x0": "completed", "x1": "completed", "y0": "completed"}
        assert again.run_id == handle.run_id


async def test_a_run_that_is_over_is_resumed_by_its_id() -> None:
    """A run that was given up is resumed by a new run, which does the rest; a run that goes on, one that has left
    nothing, and an unknown one are refused."""
    shop = Workshop()
    plan = plan_of("p", *tasks_of("x", 2), agents=shop.agents)
    async with open_supervisor(agents=shop.agents) as sup:
        first = await submit(sup, plan)
        await shop.until(lambda: len(shop.at_work) == 2)
        with pytest.raises(Refused, match="goes on in this supervisor"):
            await submit(sup, resume=first.run_id)
        shop.finish("x0")
        await shop.until(lambda: list(shop.at_work) == ["x1"])
        await idle(sup)
        first.cancel()
        await first.ended.wait()
        shop.finish()
        second = await submit(sup, resume=first.run_id)
        assert second.run_id != first.run_id
        assert await result_of(second) == {"x0": "completed", "x1": "completed"}
        with pytest.raises(Refused, match="every task is closed"):
            await submit(sup, resume=second.run_id)
        with pytest.raises(NoSuchEntity, match="r99"):
            await submit(sup, resume="r99")

    assert sorted(shop.began) == ["x0", "x1", "x1"]


class KilledJournal(MemoryJournal):
    """Journal whose supervisor is killed at its append number *at*: ``left`` is what the next supervisor finds."""

    def __init__(self, store: MemoryStore, at: int) -> None:
        super().__init__(store)
        self._store_now, self._at, self._appends = store, at, 0
        self.left: MemoryStore | None = None

    async def append(self, batch: Sequence[Append]) -> None:
        await super().append(batch)
        self._appends += 1
        if self._appends == self._at:
            self.left = copy.deepcopy(self._store_now)


@pytest.mark.one_backend
async def test_two_plans_are_completed_whenever_their_supervisors_are_killed() -> None:
    """Two plans run side by side, and their supervisors are killed at any time, before the runs are on record, too:
    each next supervisor repeats the requests and continues the runs. In the end both are completed; each task has one
    entity and one completed job, and the limits held all the time. ``tests/crash/plans.py`` is the long form."""
    chance, store, kills, runs = random.Random(7), MemoryStore(), 0, dict[str, str]()
    for life in range(9):
        shop, last = Workshop(), life == 8
        shop.finish()
        journal = KilledJournal(store, -1 if last else 1 if life == 0 else chance.randint(1, 80))
        agents = {"a": AgentConfig.of_function("a", shop.agent("a")).model_copy(update={"max_sessions": 2})}
        agents["b"] = AgentConfig.of_function("b", shop.agent("b"))
        settings = GOES_ON.model_copy(update={"max_sessions_total": 4})
        ends = []
        async with open_supervisor(agents=agents, settings=settings, journal=journal) as sup:
            handles = []
            for name in "xy":
                tasks = [*tasks_of(name, 8), *tasks_of(f"{name}b", 8, "b", depends_on=(f"{name}0",))]
                handle = await submit(sup, plan_of(name, *tasks, agents=agents, max_sessions=3), key=name)
                handles.append(await submit(sup, resume=handle.run_id) if handle.is_interrupted else handle)
                assert handles[-1].run_id == runs.setdefault(name, handle.run_id)
            while journal.left is None and not all(one.ended.is_set() for one in handles):
                await anyio.lowlevel.checkpoint()
            ends = [await result_of(one) for one in handles] if journal.left is None else []
            for handle in handles:
                handle.cancel()
        assert (shop.most.get("a", 0) <= 2, shop.most.get("", 0) <= 4) == (True, True)
        kills, store = kills + (journal.left is not None), journal.left or store

    assert kills >= 4
    assert [(len(one), set(one.values())) for one in ends] == [(16, {"completed"})] * 2
    rows = store.entities.values()
    opened = {row.id for row in rows if row.kind == "task"}
    jobs = Counter(row.parent_id for row in rows if row.kind == "job" and row.state == "completed")
    assert len(opened) == 32
    assert jobs == Counter(opened)


async def test_many_plans_one_after_the_other_leave_no_memory_behind() -> None:
    """A supervisor that has run many plans keeps nothing of them."""
    shop = Workshop()
    shop.finish()
    async with open_supervisor(agents=shop.agents) as sup:

        async def run(count: int) -> int:
            for _ in range(count):
                await result_of(await submit(sup, plan_of("p", *tasks_of("p", 3), agents=shop.agents)))
            shop.began.clear()
            await idle(sup)
            gc.collect()
            return sum(isinstance(one, TaskExecution | PlanRun | PlanHandle) for one in gc.get_objects())

        before = await run(2)  # the last run may still be held by a frame: less than one task for each run is none
        assert await run(20) < before + 20
