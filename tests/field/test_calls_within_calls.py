"""An agent of an embedding program is a function whose tool calls make calls of their own, and delegate: what a call
has begun is named with it, and ends with it."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from field_kit import alive, until

from supervisor import AbortPolicy, AgentConfig, AgentTurn, StageBudgets, ToolAborted, open_supervisor

DEAF = "trap '' TERM INT; echo $$ > pid.new; mv pid.new pid; while :; do sleep 1; done"
POLICY = AbortPolicy(ladder=StageBudgets(request_s=0.2, cancel_s=0.2, terminate_s=0.2, kill_s=5.0))

pytestmark = pytest.mark.anyio


async def directly(turn: AgentTurn) -> None:
    await turn.delegate("child", "go", agent="deaf")


async def in_a_task(turn: AgentTurn) -> None:
    """Delegate in a task that the tool has started."""
    async with anyio.create_task_group() as group:
        group.start_soon(directly, turn)


async def in_an_inner_call(turn: AgentTurn) -> None:
    await turn.call("inner", directly, turn)


async def pid_in(path: Path) -> int:
    await anyio.to_thread.run_sync(until, path.exists)
    return int(path.read_text())


@pytest.mark.parametrize(
    ("tool", "within"),
    [
        (directly, ["lead/child", "lead:t1:c2"]),
        (in_a_task, ["lead/child", "lead:t1:c2"]),
        (in_an_inner_call, ["lead/child", "lead:t1:c3", "lead:t1:c2"]),
    ],
)
async def test_an_abort_of_a_call_ends_what_it_has_begun(tmp_path: Path, tool: object, within: list[str]) -> None:
    """A host aborts a call: plan and receipt name the calls made within it and the child session that these have
    started, and the child's program, which ignores requests, has ended when the receipt is there. The turn goes on."""

    async def agent(turn: AgentTurn) -> str:
        try:
            await turn.call("tool", tool, turn)  # type: ignore[arg-type]
        except ToolAborted:
            return "went on"
        return "was not aborted"

    deaf = AgentConfig(adapter="command", command=("sh", "-c", DEAF), cwd=str(tmp_path))
    async with open_supervisor(agents={"deaf": deaf}) as supervisor, anyio.create_task_group() as group:
        session = await supervisor.start_session("lead", agent=agent, policy=POLICY)
        answers, answer = anyio.create_memory_object_stream[str](1)

        async def run() -> None:
            await answers.send((await session.run("go")).text)

        group.start_soon(run)
        pid = await pid_in(tmp_path / "pid")
        plan = supervisor.plan_abort("lead:t1:c1", "tool")
        assert [node.id for node in plan.nodes] == [*within, "lead:t1:c1"]
        receipt = await supervisor.abort("lead:t1:c1", "tool")
        assert sorted(node.id for node in receipt.nodes) == sorted([*within, "lead:t1:c1"])
        assert receipt.survivors == 0
        assert not alive(pid)
        assert await answer.receive() == "went on"
        answers.close()
        answer.close()


async def test_a_call_after_a_call_is_not_within_it(tmp_path: Path) -> None:
    """A call is made when another one has returned, by a task that the first has left behind: it belongs to the turn,
    and an abort of it ends nothing else."""

    begun = anyio.Event()

    async def agent(turn: AgentTurn) -> str:
        again = anyio.Event()

        async def wait() -> None:
            begun.set()
            await anyio.sleep_forever()

        async def later() -> None:
            await again.wait()
            with pytest.raises(ToolAborted):
                await turn.call("second", wait)

        async with anyio.create_task_group() as group:

            async def first() -> None:
                group.start_soon(later)

            await turn.call("first", first)
            again.set()
        return "done"

    async with open_supervisor() as supervisor, anyio.create_task_group() as group:
        session = await supervisor.start_session("lead", agent=agent, policy=POLICY)
        group.start_soon(session.run, "go")
        await begun.wait()
        assert [node.id for node in (await supervisor.abort("lead:t1:c2", "tool")).nodes] == ["lead:t1:c2"]
