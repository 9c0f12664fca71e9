"""An agent that dies in a turn is continued: the next process loads its conversation, and is given the open call."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import anyio
import pytest

from supervisor.plans import AgentConfig
from tests.support import Run, supervising, taking_over, wait_for_record

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]

DIES_ONCE = "@local test -e died || { touch died; kill -9 $PPID; }\n@say over"
NOTE = "you were ended while this was running: `test -e died"


def agents(memory: Path) -> dict[str, AgentConfig]:
    """Return an agent that stores its conversations, and an agent that forgets them."""
    memory.mkdir()
    keeps = AgentConfig(adapter="scripted", env={"SCRIPTED_MEMORY": str(memory)})
    return {"keeps": keeps, "forgets": AgentConfig(adapter="scripted")}


def conversations(run: Run) -> list[str | None]:
    return [one.metadata["resume_id"] for one in run.transitions("agent_ready")]


def prompts_on_record(run: Run) -> list[str]:
    return [one.metadata["prompt"] for one in run.transitions("PromptReady")]


async def test_the_conversation_goes_on_and_names_the_open_call(tmp_path: Path) -> None:
    """The next process loads the conversation of the one that died, and its prompt names the command that was running;
    when a turn has succeeded, the next prompt has no such note."""
    async with supervising(tmp_path, agents=agents(tmp_path / "memory")) as run:
        session = await run.sup.start_session("s", agent="keeps")
        assert (await session.run(DIES_ONCE)).text.endswith("over\n")
        assert (await session.run("@say next")).text == "next\n"
        first, second = conversations(run)
        assert first == second
        original, again, after = prompts_on_record(run)
        assert NOTE not in original
        assert NOTE in again
        assert "Note:" not in after
        (crashed,) = [one for one in run.events() if one.event == "AgentCrashed"]
        assert crashed.metadata["resume_id"] == first


async def test_a_new_conversation_is_given_the_note_too(tmp_path: Path) -> None:
    """An agent that cannot load conversations begins anew, and its prompt names the command that was running."""
    async with supervising(tmp_path, agents=agents(tmp_path / "memory")) as run:
        session = await run.sup.start_session("s", agent="forgets")
        assert (await session.run(DIES_ONCE)).text.endswith("over\n")
        first, again = prompts_on_record(run)
        assert "Note:" not in first
        assert NOTE in again


async def test_a_conversation_of_which_agents_die_is_given_up(tmp_path: Path) -> None:
    """An agent that dies, without having done anything, after it has loaded its conversation, is followed by one with a
    new conversation."""
    async with supervising(tmp_path, agents=agents(tmp_path / "memory")) as run:
        session = await run.sup.start_session("s", agent="keeps")
        assert (await session.run("@crash-once a 3\n@crash-once b 3\n@say over")).text == "over\n"
        first, second, third = conversations(run)
        assert (first == second, second == third) == (True, False)


async def test_the_next_supervisor_names_the_open_call(tmp_path: Path) -> None:
    """After a crash of the supervisor, the note names the call that was open by its own record."""
    both = agents(tmp_path / "memory")
    waits = "@local until test -e go; do sleep 0.05; done\n@say over"
    async with supervising(tmp_path, agents=both) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="keeps")
        group.start_soon(session.run, waits)
        await wait_for_record(run.sup, "tool_started", "s:t1")
        left = deepcopy(run.store)
        (tmp_path / "go").touch()
    async with taking_over(left, tmp_path, agents=both) as sup:
        result = await sup.session("s").result()
        assert result is not None
        assert result.text.endswith("over\n")
        records = left.log.after(0)
    (resumed,) = [one.metadata["open_calls"] for one in records if one.event == "Resumed"]
    assert resumed == ["until test -e go; do sleep 0.05; done"]
    *_, again = [one.metadata["prompt"] for one in records if one.event == "PromptReady"]
    assert "running: `until test -e go" in again
