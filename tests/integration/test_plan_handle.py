"""Handle of a plan that a host runs: commands to the plan, queries, and the end of a run that the host does not
await."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from supervisor import AgentConfig, NoSuchEntity, Plan, PlanHandle, Refused, Supervisor, TaskConfig, open_supervisor
from supervisor.journal.memory import MemoryJournal
from supervisor.lifecycles.types import Kind
from supervisor.ports import Append, JournalError
from supervisor.work.plan_handle import run_plan
from tests.support import quick_settings, wait_for_record

pytestmark = pytest.mark.anyio

AGENTS = {"sh": AgentConfig(adapter="command", command=("sh", "-c", "{prompt}"))}
ONCE: dict[str, Any] = {"max_attempts": 1, "circuit_breaker": {"enabled": False}}
DEADLINE_S = 120.0


def task(name: str, prompt: str = "true", *depends_on: str, **more: Any) -> TaskConfig:
    return TaskConfig(id=name, agent="sh", prompt=prompt, depends_on=depends_on, **{"max_retries": 0, **more})


def plan_of(*tasks: TaskConfig) -> Plan:
    bounds = quick_settings(max_total_errors=1, max_consecutive_errors=1)
    settings = {"limits": bounds.limits, "policy": bounds.policy, "drain_s": bounds.drain_s}
    return Plan.model_validate({"agents": AGENTS, "tasks": tasks, "task_lifecycle": ONCE, **settings})


def supervisor_of(where: Path, plan: Plan) -> Any:
    return open_supervisor(where / "sd", agents=plan.agents, settings=plan.settings, workdir=where)


def outcomes(handle_or_result: Any) -> dict[str, str]:
    tasks = handle_or_result.results if isinstance(handle_or_result, PlanHandle) else handle_or_result.tasks
    return {name: one.outcome for name, one in tasks.items()}


async def begun(sup: Supervisor, name: str) -> None:
    await wait_for_record(sup, "started", f"r1#{name}")


async def release(gate: Path) -> None:
    """Write to the FIFO at *gate*, so that the program which reads from it goes on."""
    await anyio.to_thread.run_sync(gate.write_text, "go\n")


async def test_a_host_steers_its_plan(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    plan = plan_of(
        task("held", "read _ < gate"),
        task("asks", approval="before"),
        task("unwanted", approval="before"),
        task("late", "true", "held"),
    )
    with anyio.fail_after(DEADLINE_S):
        async with supervisor_of(tmp_path, plan) as sup:
            run = run_plan(sup, plan)
            await begun(sup, "held")
            approved = await run.approve("asks", by="ops")
            rejected = await run.reject("unwanted", reason="not today")
            cancelled = await run.cancel_task("late")
            assert [one.state for one in (approved, rejected, cancelled)] == ["OPEN", "CANCELLED", "CANCELLED"]
            with pytest.raises(NoSuchEntity):
                await run.approve("no such task")
            with pytest.raises(Refused):
                await run.approve("held")
            added = await run.add(plan_of(*plan.tasks, task("more")))
            assert (added.entity_id, added.subtasks) == ("r1", ("r1#more",))
            await release(tmp_path / "gate")
            result = await run
    assert outcomes(result) == {
        "held": "completed",
        "asks": "completed",
        "unwanted": "rejected",
        "late": "aborted",
        "more": "completed",
    }


async def test_a_task_is_split_and_requeued_by_the_handle(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    again = task("again", "echo x >> tries; test $(wc -l < tries) -gt 1 || read _ < gate", max_retries=1)
    whole = task("whole", "true", "again")
    with anyio.fail_after(DEADLINE_S):
        async with supervisor_of(tmp_path, plan := plan_of(again, whole)) as sup:
            run = run_plan(sup, plan)
            await begun(sup, "again")
            writer = await anyio.to_thread.run_sync(os.open, tmp_path / "gate", os.O_WRONLY)  # the first try reads now
            split = await run.split("whole", [task("part")])
            assert (split.state, split.subtasks) == ("WAITING_FOR_SUBTASKS", ("r1#part",))
            assert (await run.requeue("again", reason="another session")).state == "OPEN"
            os.close(writer)
            result = await run
    assert outcomes(result) == {"again": "completed", "whole": "completed", "part": "completed"}


async def test_the_handle_answers_questions(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    with anyio.fail_after(DEADLINE_S):
        async with supervisor_of(tmp_path, plan := plan_of(task("a", "read _ < gate"))) as sup:
            run = run_plan(sup, plan)
            await begun(sup, "a")
            assert repr(run) == "<PlanHandle r1, running>"
            assert [one.kind for one in run.tree()][:1] == [Kind.WORKSTREAM]
            await release(tmp_path / "gate")
            await run
            why = await run.why("a")
            assert (why.entity_id, why.steps[-1].record.event) == ("r1#a", "closed")
            with pytest.raises(NoSuchEntity):
                await run.why("no such task")
            assert await run.usage() == {}
            assert outcomes(run) == {"a": "completed"}
            assert repr(run) == "<PlanHandle r1, ended>"


async def test_the_handle_reads_a_long_journal_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal is read in pages; the answers are about all of them."""
    with anyio.fail_after(DEADLINE_S):
        async with supervisor_of(tmp_path, plan := plan_of(task("a"))) as sup:
            await (run := run_plan(sup, plan))
            journal = sup.core.journal
            assert len(await journal.events()) > 10
            monkeypatch.setattr(journal, "events", partial(journal.events, limit=10))
            assert (await run.why("a")).steps[-1].record.event == "closed"


async def test_cancelling_the_await_cancels_the_plan(tmp_path: Path) -> None:
    """When the host's await of a plan is cancelled, the await returns only after the run has ended and no session is
    left."""
    with anyio.fail_after(DEADLINE_S):
        async with supervisor_of(
            tmp_path, plan := plan_of(task("a", "exec sleep 1000"), task("b", "true", "a"))
        ) as sup:
            run = run_plan(sup, plan)
            async with anyio.create_task_group() as group:
                group.start_soon(run.wait)
                await begun(sup, "a")
                group.cancel_scope.cancel()
            assert run.ended.is_set()
            assert sup.sessions() == []
            with pytest.raises(Refused, match="the run r1 was cancelled"):
                await run


async def test_a_run_that_is_not_awaited_ends_with_its_supervisor(tmp_path: Path) -> None:
    """When the host leaves the supervisor's block without awaiting a plan, the task in progress is completed, and no
    other task begins."""
    os.mkfifo(tmp_path / "gate")
    with anyio.fail_after(DEADLINE_S):
        async with supervisor_of(tmp_path, plan := plan_of(task("a", "read _ < gate"), task("b", "true", "a"))) as sup:
            run = run_plan(sup, plan)
            await begun(sup, "a")
            await release(tmp_path / "gate")
    assert run.ended.is_set()
    assert outcomes(run) == {"a": "completed", "b": "aborted"}


async def test_an_error_in_the_block_cancels_a_run_that_is_not_awaited(tmp_path: Path) -> None:
    class HostError(Exception):
        pass

    plan = plan_of(task("a", "exec sleep 1000"))
    with anyio.fail_after(DEADLINE_S), pytest.raises(HostError):
        async with supervisor_of(tmp_path, plan) as sup:
            run = run_plan(sup, plan)
            await begun(sup, "a")
            raise HostError
    assert run.ended.is_set()


async def test_why_explains_the_task_of_this_run(tmp_path: Path) -> None:
    """A second run of a plan on the same supervisor has tasks of the same names: its handle explains its own."""
    with anyio.fail_after(DEADLINE_S):
        async with supervisor_of(tmp_path, plan := plan_of(task("a"))) as sup:
            for entity_id in ("r1#a", "r2#a"):
                await (run := run_plan(sup, plan))
                assert (await run.why("a")).entity_id == entity_id


class BrokenJournal(MemoryJournal):
    """Journal that fails for good with the next record after ``breaks`` was set."""

    breaks = False

    async def append(self, batch: Sequence[Append]) -> None:
        if self.breaks:
            raise JournalError("the disk is gone")
        await super().append(batch)


async def test_a_run_that_loses_its_journal_raises_the_error_of_the_journal(tmp_path: Path) -> None:
    """A caller of the handle gets the error itself, and no exception group of the run's own tasks."""
    journal, plan = BrokenJournal(), plan_of(task("a", "exec sleep 1000"))
    with anyio.fail_after(DEADLINE_S), pytest.raises(JournalError):
        async with open_supervisor(agents=AGENTS, settings=plan.settings, workdir=tmp_path, journal=journal) as sup:
            run = run_plan(sup, plan)
            await begun(sup, "a")
            journal.breaks = True
            with pytest.raises(Refused):
                await run.approve("a")
            with pytest.raises(JournalError, match="the disk is gone"):
                await run


class HeldPlan:
    """Plan run that ends some time after it was cancelled: when every one of *plans* was cancelled."""

    def __init__(self, plans: list[HeldPlan]) -> None:
        self.plans, self.is_cancelled, self.ended = plans, anyio.Event(), anyio.Event()
        plans.append(self)

    def cancel(self) -> None:
        self.is_cancelled.set()

    async def run(self) -> None:
        for plan in self.plans:
            await plan.is_cancelled.wait()
        self.ended.set()


async def test_plans_that_a_host_leaves_behind_are_cancelled_together(tmp_path: Path) -> None:
    """When an exception leaves the block, every run is cancelled before the end of any run is waited for."""

    class HostError(Exception):
        pass

    plans = list[HeldPlan]()
    with anyio.fail_after(DEADLINE_S), pytest.raises(HostError):
        async with open_supervisor(workdir=tmp_path) as sup:
            for plan in (HeldPlan(plans), HeldPlan(plans)):
                sup.core.shutdown.begin_plan(plan, plan.run)
            raise HostError
    assert all(plan.ended.is_set() for plan in plans)
