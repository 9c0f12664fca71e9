"""A plan that is given up by whoever has it run, while its tasks are worked on."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from supervisor.scheduling.runner import PlanRunner
from tests.support import path_of, quick, supervising, until
from tests.test_operating import plan_of, task

pytestmark = pytest.mark.anyio


async def test_it_leaves_nobody_at_work(tmp_path: Path) -> None:
    """Its tasks are cancelled on record, and so is whoever works on one: its agent does not go on for nobody."""
    policy = quick(ladder={"request_s": 0.1, "cancel_s": 0.1}).policy
    plan = plan_of(task("a", "sleep 60"), task("b", "true", "a"), policy=policy)
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        runner = PlanRunner(run.sup)
        async with anyio.create_task_group() as group:
            group.start_soon(runner.run, plan)
            await until(run.sup, "started", "task:a")
            group.cancel_scope.cancel()
        assert run.sup.sessions() == []
        assert {name: path_of(run.events(), f"task:{name}")[-1] for name in "ab"} == {
            "a": "CANCELLED",
            "b": "CANCELLED",
        }
