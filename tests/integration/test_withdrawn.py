"""Hosts that are cancelled during a request, and a request to resume a plan that is completed."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from supervisor.journal.memory import MemoryStore
from supervisor.runtime.entity import Refused
from supervisor.sessions.inprocess import AgentTurn
from supervisor.work.plan_runner import PlanRunner
from tests.integration.test_task_commands import plan_of, task
from tests.support import FrozenJournal, supervising, wait_for_record

pytestmark = pytest.mark.anyio


async def answers(turn: AgentTurn) -> str:
    return "here"


async def test_a_session_whose_start_is_cancelled_is_ended(tmp_path: Path) -> None:
    """When the caller of ``start_session`` is cancelled before the session's first record is durable, the session is
    ended."""
    disks: list[FrozenJournal] = []

    def frozen(store: MemoryStore) -> FrozenJournal:
        disks.append(FrozenJournal(store, freeze_at="Born"))
        return disks[0]

    async with supervising(tmp_path, journal=frozen) as run:

        async def start() -> None:
            await run.sup.start_session("s", agent=answers)

        async with anyio.create_task_group() as group:
            group.start_soon(start)
            await disks[0].frozen.wait()
            group.cancel_scope.cancel()
        disks[0].thaw.set()
        await wait_for_record(run.sup, "Ended", "s")
        assert run.sup.sessions() == []
    stopped = next(one for one in run.events("s") if one.to_status == "Stopped")
    assert stopped.reason == "the caller that started it was cancelled"


async def test_a_plan_that_is_done_has_nothing_to_resume(tmp_path: Path) -> None:
    """A resume of a completed plan is refused with an error that says why, and records nothing."""
    plan = plan_of(task("a", "true"))
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        assert (await PlanRunner(run.sup.core).run(plan)).ok
        records = len(run.events())
        with pytest.raises(Refused, match="plan 'plan' is not resumed: nothing of it was cancelled"):
            await PlanRunner(run.sup.core).run(plan, resume=True)
        assert len(run.events()) == records
