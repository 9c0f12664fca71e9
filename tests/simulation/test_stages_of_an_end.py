"""The stage in which the end of a session is, as views show it while the session is being ended."""

from __future__ import annotations

import anyio

from supervisor import AgentTurn, Supervisor
from supervisor.diagnostics.tree_view import ps
from supervisor.simulation.testing import Simulate

HELD_S = 40.0
"""Seconds that the agent goes on after its cancellation: longer than all stages together."""
SLACK_S = 5.0
"""Seconds that a slow machine may add to the stages of a session's scope."""


def test_views_show_the_stage_and_its_deadline(simulated_supervisor: Simulate) -> None:
    """An agent that ignores its cancellation passes through the stages of the default budgets: 10 s for the request,
    then the scope is cancelled, with the budgets of cancel, terminate and kill and the slack, then the kill. The tree,
    ``ps`` and ``inspect`` show the same stage, and each stage after the first has a record."""
    at_work = anyio.Event()

    async def holds_on(turn: AgentTurn) -> str:
        at_work.set()
        with anyio.CancelScope(shield=True):
            await anyio.sleep(HELD_S)
        return ""

    async def main(sup: Supervisor) -> None:
        nonlocal at_work
        seen, at_work = dict[str, float](), anyio.Event()
        clock = sup.core.journal_writer.clock.wall
        session = await sup.start_session("s", agent="stubborn")
        async with anyio.create_task_group() as group:
            group.start_soon(session.run, "work")
            await at_work.wait()
            assert (sup.tree()[0].ending, sup.inspect("s").ending) == (None, None)
            began = clock.time()
            group.start_soon(session.abort)
            await anyio.sleep(0.5)
            while (node := next((one for one in sup.tree() if one.id == "s"), None)) is not None and not node.ended:
                [line] = [one for one in ps(sup.core.registry.rows(), now=clock.time()) if one.id == "s"]
                if node.ending is None:  # its last record is on its way
                    break
                assert node.ending == line.ending == sup.inspect("s").ending
                assert node.ending.deadline is not None
                assert f"is ending, stage {node.ending.stage} until" in node.note
                seen[node.ending.stage] = round(node.ending.deadline - began, 1)
                await anyio.sleep(0.5)
        await sup.core.journal_writer.flush()
        events = await sup.core.journal.events(entity_id="s")
        stages = [one.metadata["stage"] for one in events if one.event == "StageBegan"]
        abort = next(one for one in events if one.event == "AbortRecord")
        ladder = sup.settings.policy.value().ladder
        assert seen["request"] == abort.metadata["stages"]["request_s"] == ladder.request_s
        assert seen["cancel"] == ladder.total_s + SLACK_S
        assert list(seen) == ["request", *stages]

    simulated_supervisor(main, agents={"stubborn": holds_on})
