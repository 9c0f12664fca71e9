"""Tests of the state of a plan run: events, and tasks that are settled, reset and settled again."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from supervisor.work.plan_run import PlanEvent, PlanRun, SubtasksAwaited, TaskSettled
from supervisor.work.task_commands import TaskCommands
from supervisor.work.task_execution import TaskExecution
from tests.integration.test_task_commands import plan_of, task
from tests.support import Run, supervising

pytestmark = pytest.mark.anyio


def plan_run_of(run: Run, *names: str) -> PlanRun:
    """Return the state of a plan run with tasks of these names, none of which has an entity."""
    plan_run = PlanRun(
        run.sup.core, plan_of(*(task(name) for name in names)), TaskCommands(run.sup.core, lambda plan, cause: ())
    )
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
    """The first result of a task counts, and is published after the task's result, event and count show it as
    settled."""
    async with supervising(tmp_path) as run:
        plan_run, settled = plan_run_of(run, "a", "b"), list[tuple[bool, int, bool]]()

        def on_event(event: PlanEvent) -> None:
            assert isinstance(event, TaskSettled)
            one = event.execution
            settled.append((one.result is not None, plan_run.unsettled, one.settled.is_set()))

        plan_run.subscribe(on_event)
        plan_run.settle(plan_run.executions["a"], "failed", "it cannot be done")
        plan_run.settle(plan_run.executions["a"], "aborted", "too late")

        [result] = plan_run.results
        assert (result.outcome, result.error) == ("failed", "it cannot be done")
        assert settled == [(True, 1, True)]


async def test_a_task_that_is_reset_is_settled_again(tmp_path: Path) -> None:
    """A task whose result was removed counts as unsettled, and gets another result."""
    async with supervising(tmp_path) as run:
        plan_run = plan_run_of(run, "a")
        one = plan_run.executions["a"]
        plan_run.settle(one, "failed", "it cannot be done")
        plan_run.unsettle(one)
        assert (plan_run.unsettled, plan_run.results) == (1, [])

        plan_run.settle(one, "completed", "")
        assert [result.outcome for result in plan_run.results] == ["completed"]


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
