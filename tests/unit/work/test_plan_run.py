"""Tests of the state of a plan run: events, locks, and tasks that are settled, reset and settled again."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from supervisor.work.plan_run import PlanEvent, PlanRun, SubtasksAwaited, TaskSettled
from supervisor.work.task_commands import TaskCommands
from supervisor.work.task_execution import Phase, TaskExecution
from tests.integration.test_task_commands import plan_of, task
from tests.support import Run, supervising

pytestmark = pytest.mark.anyio


def plan_run_of(run: Run, *names: str) -> PlanRun:
    """Return the state of a plan run with tasks of these names, none of which has an entity."""
    plan_run = PlanRun(run.sup.core, plan_of(*(task(name) for name in names)), TaskCommands(run.sup.core))
    for config in plan_run.plan.tasks:
        plan_run.executions[config.id] = TaskExecution(run.sup.core, config)
    plan_run.unsettled = len(names)
    return plan_run


async def test_an_event_reaches_every_listener_before_publish_returns(tmp_path: Path) -> None:
    """Listeners are called before ``publish`` returns, in the order in which they subscribed."""
    async with supervising(tmp_path) as run:
        plan_run, heard = plan_run_of(run, "a"), list[tuple[str, PlanEvent]]()
        plan_run.subscribe(lambda event: heard.append(("first", event)))
        plan_run.subscribe(lambda event: heard.append(("second", event)))
        event = SubtasksAwaited(plan_run.executions["a"])
        plan_run.publish(event)

        assert heard == [("first", event), ("second", event)]


async def test_a_task_is_settled_once(tmp_path: Path) -> None:
    """The first result of a task counts, and is published after the task's phase, event and count show it as
    settled."""
    async with supervising(tmp_path) as run:
        plan_run, settled = plan_run_of(run, "a", "b"), list[tuple[str, int, bool]]()

        def on_event(event: PlanEvent) -> None:
            assert isinstance(event, TaskSettled)
            one = event.execution
            settled.append((one.phase.value, plan_run.unsettled, one.settled.is_set()))

        plan_run.subscribe(on_event)
        plan_run.settle(plan_run.executions["a"], "failed", "it cannot be done")
        plan_run.settle(plan_run.executions["a"], "aborted", "too late")

        [result] = plan_run.results
        assert (result.outcome, result.error) == ("failed", "it cannot be done")
        assert settled == [("settled", 1, True)]


async def test_a_reset_that_fails_leaves_the_former_result(tmp_path: Path) -> None:
    """While a reset is being recorded, the task counts as unsettled; if the reset fails, the former result is
    restored."""
    async with supervising(tmp_path) as run:
        plan_run = plan_run_of(run, "a")
        one = plan_run.executions["a"]
        plan_run.settle(one, "failed", "it cannot be done")
        former = one.result
        assert former is not None

        plan_run.unsettle(one)
        assert (one.phase, plan_run.unsettled, plan_run.results) == (Phase.IDLE, 1, [])

        plan_run.resettle(one, former)
        assert (one.phase, plan_run.unsettled, plan_run.results) == (Phase.SETTLED, 0, [former])


async def test_the_scheduler_looks_again_when_a_task_was_moved(tmp_path: Path) -> None:
    """If a check for dead ends met a locked task, the scheduler is woken when the lock is released."""
    async with supervising(tmp_path) as run:
        plan_run = plan_run_of(run, "a")
        async with plan_run.moving(plan_run.executions["a"]):
            plan_run.look_again = True
        with anyio.fail_after(1.0):
            await plan_run.woken()

        assert not plan_run.look_again


async def test_the_scheduler_is_not_woken_for_nothing(tmp_path: Path) -> None:
    """The release of a task's lock alone does not wake the scheduler."""
    async with supervising(tmp_path) as run:
        plan_run = plan_run_of(run, "a")
        async with plan_run.moving(plan_run.executions["a"]):
            pass
        with anyio.move_on_after(0.0) as limit:
            await plan_run.woken()

        assert limit.cancelled_caught


async def test_nothing_is_started_when_the_run_has_ended(tmp_path: Path) -> None:
    """After the end of the run, ``start`` does nothing, and the run is reported as over."""
    async with supervising(tmp_path) as run:
        plan_run, started = plan_run_of(run, "a"), list[str]()

        async def start(name: str) -> None:
            started.append(name)

        async with anyio.create_task_group() as group:
            plan_run.begin(group)
            assert plan_run.running
            plan_run.start(start, "in time")
        plan_run.end()
        plan_run.start(start, "too late")

        assert started == ["in time"]
        assert plan_run.over.is_set()
        assert not plan_run.running


async def test_a_task_that_is_to_be_cancelled_is_not_offered(tmp_path: Path) -> None:
    """A task with a pending cancellation is not offered: no worker can claim it."""
    async with supervising(tmp_path) as run:
        plan_run = plan_run_of(run, "a", "b")
        for one in plan_run.executions.values():
            one.earlier_id = f"task:{one.name}"
            plan_run.backlog.add(one.backlog_item("workstream:p", "", plan_run.executions), on_hold=True)
        plan_run.executions["a"].cancel_reason = "nobody needs it"
        for one in plan_run.executions.values():
            plan_run.offer(one)

        assert plan_run.backlog.refusal("task:a") is not None
        assert plan_run.backlog.refusal("task:b") is None
