"""Agents that cost more than they give: idle ones are ended, and a context that is nearly full is compacted."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import anyio
import pytest

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.plans import AgentConfig, LivenessConfig, Settings
from tests.support import Run, quick_settings, states_of, supervising, taking_over, wait_for_record

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]

IDLE_S = 0.05


def settings() -> Settings:
    return quick_settings().model_copy(update={"liveness": LivenessConfig(idle_s=IDLE_S)})


def agents(memory: Path, **env: str) -> dict[str, AgentConfig]:
    """Return an agent that stores its conversations, and an agent that forgets them."""
    memory.mkdir(exist_ok=True)
    keeps = {"SCRIPTED_MEMORY": str(memory), **env}
    return {"keeps": AgentConfig(adapter="scripted", env=keeps), "forgets": AgentConfig(adapter="scripted", env=env)}


def conversations(run: Run) -> list[str]:
    ready = run.transitions("agent_ready")
    return [one.metadata["resume_id"] for one in ready if one.entity_id.startswith("s:")]


async def test_an_idle_agent_is_ended_and_its_conversation_goes_on(tmp_path: Path) -> None:
    """The agent goes from idle to dead, with the reason on record, and the next prompt is answered by another process
    that loads the conversation. An agent that cannot load conversations is left alone, however long it is idle."""
    async with supervising(tmp_path, agents=agents(tmp_path / "memory"), settings=settings()) as run:
        other = await run.sup.start_session("other", agent="forgets")
        assert (await other.run("@say first")).text == "first\n"
        session = await run.sup.start_session("s", agent="keeps")
        assert (await session.run("@say one")).text == "one\n"
        ended = await wait_for_record(run.sup, "agent_exited", "s:a1")
        assert ended.reason == f"it was idle for {IDLE_S:g} s (liveness.idle_s)"
        assert (await session.run("@say two")).text == "two\n"
        first, second = conversations(run)
        assert first == second
        assert states_of(run.events(), "s:a1") == ["starting", "working", "idle", "dead"]
        assert states_of(run.events(), "other:a1") == ["starting", "working", "idle"]  # it was idle before the other


async def test_the_next_supervisor_loads_the_conversation_of_an_agent_that_was_idle(tmp_path: Path) -> None:
    """A supervisor that dies after it has ended an idle agent loses no conversation."""
    both = agents(tmp_path / "memory")
    async with supervising(tmp_path, agents=both, settings=settings()) as run:
        session = await run.sup.start_session("s", agent="keeps")
        await session.run("@say one")
        await wait_for_record(run.sup, "agent_exited", "s:a1")
        left = deepcopy(run.store)
        (first,) = conversations(run)
    async with taking_over(left, tmp_path, agents=both) as sup:
        assert (await sup.session("s").run("@say two")).text == "two\n"
        ready = [one for one in left.log.after(0) if one.event == "agent_ready"]
        assert [one.metadata["resume_id"] for one in ready] == [first, first]


async def test_a_prompt_in_time_keeps_the_agent(tmp_path: Path) -> None:
    """With a longer limit, and with none, prompts one after another go to the same process."""
    for idle_s in (60.0, 0.0):
        usual = quick_settings().model_copy(update={"liveness": LivenessConfig(idle_s=idle_s)})
        folder = tmp_path / f"{idle_s:g}"
        folder.mkdir()
        async with supervising(folder, agents=agents(folder / "memory"), settings=usual) as run:
            session = await run.sup.start_session("s", agent="keeps")
            for _ in range(3):
                await session.run("@say more")
            assert len(conversations(run)) == 1


# ------------------------------------------------------------------------------------------------ a full context
def facts(run: Run, name: str) -> list[LifecycleEvent]:
    return [one for one in run.events() if one.event == name]


@pytest.mark.parametrize("env", [{"SCRIPTED_COMPACTS": "1"}, {}])
async def test_a_context_that_is_nearly_full_is_compacted_before_the_next_prompt(
    tmp_path: Path, env: dict[str, str]
) -> None:
    """The report of the agent is on record; its next turn is COMPACTING before the prompt, once, if the agent has a
    command for it, and is as any other turn if the agent has none."""
    async with supervising(tmp_path, agents=agents(tmp_path / "memory", **env)) as run:
        session = await run.sup.start_session("s", agent="forgets")
        await session.run("@usage 169999\n@say far")
        await session.run("@usage 170000\n@say near")
        for number in (3, 4):
            assert (await session.run(f"@say {number}")).text == f"{number}\n"
        with anyio.fail_after(10):
            await run.sup.core.journal_writer.durable()
        (near,) = facts(run, "ContextNear")
        assert near.entity_id == "s"
        assert near.reason == "85% of the context window is used (170000 of 200000 tokens)"
        compacted = [one for one in (1, 2, 3, 4) if "COMPACTING" in states_of(run.events(), f"s:t{one}")]
        assert compacted == ([3] if env else [])
        if env:
            third = states_of(run.events(), "s:t3")
            assert third[2:6] == ["SPAWNING", "RUNNING", "COMPACTING", "RUNNING"]
