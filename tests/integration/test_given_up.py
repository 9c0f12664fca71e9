"""Plans whose run is cancelled by the host while their tasks are in progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from actors.machine import Event
from supervisor.embedding.runtime import open_supervisor
from supervisor.lifecycles.task import ApprovalDenied, Approved, Task
from supervisor.plans import Plan
from supervisor.ports import Merge
from supervisor.runtime.entity import Refused
from supervisor.work.completion_pipeline import CompletionPipeline
from supervisor.work.plan_run import PlanRun
from supervisor.work.plan_runner import PlanRunner
from supervisor.work.task_execution import TaskExecution
from tests.integration.test_task_commands import ME, plan_of, task
from tests.support import quick_settings, states_of, supervising, wait_for_record

pytestmark = pytest.mark.anyio


async def carried_out(runner: PlanRunner, plan: Plan, scope: anyio.CancelScope) -> None:
    """Run the plan until *scope* is cancelled."""
    with scope:
        await runner.run(plan)


async def given_up(runner: PlanRunner, scope: anyio.CancelScope) -> None:
    """Cancel the run, and wait until every event that was already posted has reached its task."""
    scope.cancel()
    while runner.plan_run.running:
        await checkpoint()
    for _ in range(20):
        await checkpoint()


async def test_a_cancelled_plan_ends_its_sessions(tmp_path: Path) -> None:
    """A cancelled run records its tasks as CANCELLED and ends their sessions; nothing is by an operator."""
    policy = quick_settings(ladder={"request_s": 0.1, "cancel_s": 0.1}).policy
    plan = plan_of(task("a", "sleep 60"), task("b", "true", "a"), policy=policy)
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        runner = PlanRunner(run.sup.core)
        async with anyio.create_task_group() as group:
            group.start_soon(runner.run, plan)
            await wait_for_record(run.sup, "started", "r1#a")
            group.cancel_scope.cancel()
        assert run.sup.sessions() == []
        assert {name: states_of(run.events(), f"r1#{name}")[-1] for name in "ab"} == {
            "a": "CANCELLED",
            "b": "CANCELLED",
        }
        assert not [one for one in run.events() if one.actor.startswith("operator")]


async def test_a_lost_task_run_does_not_keep_its_task_from_its_end(tmp_path: Path) -> None:
    """If the actor of a task run is lost before its plan is cancelled, task and job are recorded as cancelled all the
    same."""
    policy = quick_settings(ladder={"request_s": 0.1, "cancel_s": 0.1}).policy
    plan = plan_of(task("a", "sleep 60"), policy=policy)
    async with open_supervisor(settings=plan.settings, agents=plan.agents, workdir=tmp_path) as sup:
        runner = PlanRunner(sup.core)
        async with anyio.create_task_group() as group:
            group.start_soon(runner.run, plan)
            await wait_for_record(sup, "started", "r1#a")
            sup.core.registry.remove("r1#a:run")
            group.cancel_scope.cancel()
        last = {one.entity_id: one.to_status for one in await sup.core.journal.events()}
    assert (last["r1#a"], last["r1#a:job"]) == ("CANCELLED", "cancelled")


async def test_a_task_reset_as_its_plan_is_cancelled_is_cancelled_with_its_new_job(tmp_path: Path) -> None:
    """When a plan is cancelled while the record of a task's retry is written, the retry is refused; task, task run and
    new job are cancelled."""
    plan = plan_of(task("a", "false"), task("b", "sleep 60"), policy=quick_settings(ladder={"request_s": 0.1}).policy)
    settings = plan.settings
    async with supervising(tmp_path, settings=settings, agents=plan.agents, freeze_at="reopened") as run:
        runner, scope = PlanRunner(run.sup.core), anyio.CancelScope()

        async def give_up() -> None:
            await run.disk.frozen.wait()
            await given_up(runner, scope)
            run.disk.thaw.set()

        async with anyio.create_task_group() as group:
            group.start_soon(carried_out, runner, plan, scope)
            await wait_for_record(run.sup, "DeadLettered", "r1#a")
            group.start_soon(give_up)
            with pytest.raises(Refused, match="its plan was given up meanwhile"):
                await runner.commands.retry("a", by=ME)
    assert states_of(run.events(), "r1#a")[-2:] == ["OPEN", "CANCELLED"]
    assert states_of(run.events(), "r1#a:run")[-2:] == ["PENDING", "CANCELLED"]
    assert states_of(run.events(), "r1#a:job-2")[-2:] == ["queued", "cancelled"]


async def test_no_prompt_is_sent_while_a_directory_is_cleared(tmp_path: Path) -> None:
    """A task in a plain directory is prompted only after the rollback of an earlier task in that directory has
    ended."""
    plan = plan_of(task("a", "true"))
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        async with anyio.create_task_group() as group:
            with run.sup.core.cleanup.clearing.one():
                group.start_soon(PlanRunner(run.sup.core).run, plan)
                await wait_for_record(run.sup, "worker_started", "r1#a:job")
                for _ in range(20):
                    await checkpoint()
                assert not [one for one in run.events() if one.event == "TurnRequested"]
        assert states_of(run.events(), "r1#a")[-1] == "CLOSED"


def given_up_at(kind: type[Event], monkeypatch: pytest.MonkeyPatch) -> anyio.CancelScope:
    """Return a scope that is cancelled as soon as a task has handled an event of *kind*."""
    record, scope = PlanRun.record, anyio.CancelScope()

    def given_up_then(plan_run: PlanRun, execution: TaskExecution, *leads: Event, **given: Any) -> None:
        record(plan_run, execution, *leads, **given)
        if any(isinstance(lead, kind) for lead in leads):
            scope.cancel()

    monkeypatch.setattr(PlanRun, "record", given_up_then)
    return scope


async def test_an_approval_during_the_cancellation_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An approval that was recorded before the plan is cancelled returns its result, and the approved task is not
    begun."""
    scope = given_up_at(Approved, monkeypatch)
    plan = plan_of(task("a", "true", approval="before"))
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        runner, states = PlanRunner(run.sup.core), list[str]()

        async def approve() -> None:
            states.append((await runner.commands.approve("a", by=ME)).state)

        async with anyio.create_task_group() as group:
            group.start_soon(approve)
            with scope:
                await runner.run(plan)
        assert states == ["OPEN"]
        assert states_of(run.events(), "r1#a") == ["PLANNED", "OPEN", "CANCELLED"]


async def test_a_task_that_is_merging_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An approved task that is being merged when the plan is cancelled is closed if the work is merged by then."""
    policy = quick_settings(ladder={"request_s": 0.1, "cancel_s": 0.1}).policy
    plan = plan_of(task("a", "true", approval="after"), task("b", "sleep 60"), policy=policy)
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        runner, scope = PlanRunner(run.sup.core), anyio.CancelScope()
        merge, states = run.sup.core.verification.merge, list[str]()

        async def merge_meanwhile(*given: str, workstream: str) -> Merge:
            merged = await merge(*given, workstream=workstream)
            scope.cancel()
            return merged

        monkeypatch.setattr(run.sup.core.verification, "merge", merge_meanwhile)
        async with anyio.create_task_group() as group:
            group.start_soon(carried_out, runner, plan, scope)
            await wait_for_record(run.sup, "approval_requested", "r1#a")
            states.append((await runner.commands.approve("a", by=ME)).state)
        assert states == ["CLOSED"]
        assert states_of(run.events(), "r1#a")[-2:] == ["PENDING_APPROVAL", "CLOSED"]
        assert states_of(run.events(), "r1#b")[-1] == "CANCELLED"


@pytest.mark.parametrize("approval", ["none", "after"])
async def test_a_merge_is_stopped_before_the_plan_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approval: str
) -> None:
    """A plan that is given up waits for no merge. A task whose work has passed its checks, and was approved if the plan
    wants that, is closed unmerged; the approval is answered."""
    plan = plan_of(task("a", "true", approval=approval))
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        runner, scope, refused = PlanRunner(run.sup.core), anyio.CancelScope(), list[str]()

        async def merge_for_ever(*given: str, workstream: str) -> Merge:
            scope.cancel()
            await anyio.sleep_forever()
            raise AssertionError

        monkeypatch.setattr(run.sup.core.verification, "merge", merge_for_ever)
        async with anyio.create_task_group() as group:
            group.start_soon(carried_out, runner, plan, scope)
            if approval == "after":
                await wait_for_record(run.sup, "approval_requested", "r1#a")
                with pytest.raises(Refused) as refusal:
                    await runner.commands.approve("a", by=ME)
                refused.append(str(refusal.value))
        closed = [one for one in run.events() if one.entity_id == "r1#a"][-1]
        assert (closed.to_status, closed.metadata["unmerged"]) == ("CLOSED", True)
        assert len(refused) == (approval == "after")


async def test_a_denied_task_of_a_cancelled_plan_is_not_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rejection that was recorded before the plan is cancelled returns its result, and the task fails without another
    task run."""
    scope = given_up_at(ApprovalDenied, monkeypatch)
    plan = plan_of(task("a", "true", approval="after", max_retries=2))
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        runner, states = PlanRunner(run.sup.core), list[str]()

        async def deny() -> None:
            await wait_for_record(run.sup, "approval_requested", "r1#a")
            states.append((await runner.commands.reject("a", by=ME, reason="no")).state)

        async with anyio.create_task_group() as group:
            group.start_soon(deny)
            with scope:
                await runner.run(plan)
        assert states == ["FAILED"]
        assert states_of(run.events(), "r1#a")[-2:] == ["PENDING_APPROVAL", "FAILED"]
        assert "r1#a:run-2" not in run.store.entities


async def test_a_cancelled_task_is_not_retried(tmp_path: Path) -> None:
    """A retry of a cancelled task is refused, and nothing more is recorded for its task run."""
    plan = plan_of(task("a"), task("b", "sleep 60"), limits=quick_settings().limits)
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        runner = PlanRunner(run.sup.core)
        async with anyio.create_task_group() as group:
            group.start_soon(runner.run, plan)
            await wait_for_record(run.sup, "executor_started", "r1#b:run")
            await runner.commands.cancel("b", by=ME)
            before = len(run.events("r1#b:run"))
            with pytest.raises(
                Refused, match=r"ended on purpose \(aborted\), and stays so in this run; .* \(--resume\)"
            ):
                await runner.commands.retry("b", by=ME)
            assert len(run.events("r1#b:run")) == before
            group.cancel_scope.cancel()


@pytest.mark.parametrize("command", ["retry", "cancel"])
async def test_a_command_that_waits_for_the_end_of_a_failed_task_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """A command that waits until a task which has just failed is put away is refused when the plan is cancelled
    meanwhile, and nothing follows from it."""
    put_away, waits = CompletionPipeline.put_away, anyio.Event()

    async def wait_first(pipeline: CompletionPipeline, execution: TaskExecution) -> None:
        if execution.state is Task.FAILED:
            waits.set()
            await anyio.sleep_forever()
        await put_away(pipeline, execution)

    monkeypatch.setattr(CompletionPipeline, "put_away", wait_first)
    plan = plan_of(task("a", "false"), policy=quick_settings(ladder={"request_s": 0.1}).policy)
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        runner, scope = PlanRunner(run.sup.core), anyio.CancelScope()

        async def give_up() -> None:
            await wait_for_record(run.sup, "Commanded", "r1#a", outcome="fact")
            await given_up(runner, scope)

        async with anyio.create_task_group() as group:
            group.start_soon(carried_out, runner, plan, scope)
            await waits.wait()
            group.start_soon(give_up)
            with pytest.raises(Refused):
                await getattr(runner.commands, command)("a", by=ME)
        commanded = next(one for one in run.events("r1#a") if one.event == "Commanded")
        assert not [one for one in run.events() if one.cause_id == commanded.seq and one.event != "CommandRefused"]
    assert states_of(run.events(), "r1#a")[-1] == "FAILED"
