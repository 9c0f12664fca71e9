"""Urgent messages to agents that can accept a message within a turn: accepted in time, too late, or not at all."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from supervisor.plans import AgentConfig
from supervisor.plans.permissions import PermissionsConfig
from supervisor.policies.permissions import Decision
from tests.support import DEADLINE_S, Run, data_of, quick_settings, send_prompt, supervising, wait_for_record

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]

STEERED = {"a": AgentConfig(adapter="scripted", env={"SCRIPTED_STEERS": "came"})}
PATIENT = quick_settings(steer_grace_s=20.0)
HASTY = quick_settings(steer_grace_s=0.05)


def script(gate: Path) -> str:
    """Return a prompt whose turn creates a file, waits in a step until the file *gate* exists, and goes on."""
    return f"@local touch {gate}.begun; while [ ! -e {gate} ]; do sleep 0.01; done\n@say worked"


async def has_come(folder: Path) -> None:
    """Wait until the agent has received the message, whether the agent accepts it or not."""
    with anyio.fail_after(DEADLINE_S):
        while not (folder / "came").exists():
            await anyio.lowlevel.checkpoint()


def delivered(run: Run) -> tuple[int, int]:
    """Return the number of prompts that were made, and the number of messages that were accepted within a turn."""
    return len(run.transitions("PromptReady", "s")), len(run.transitions("MessageHeard", "s"))


async def test_a_message_is_accepted_within_the_turn(tmp_path: Path) -> None:
    """When an agent accepts an urgent message between two steps of its turn, nothing is interrupted, and no prompt
    repeats the message."""
    async with supervising(tmp_path, agents=STEERED, settings=PATIENT) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="a")
        asked = send_prompt(group, session, script(tmp_path / "go"))
        await wait_for_record(run.sup, "tool_started", "s:t1")
        await session.send("come", urgent=True, sender="ann")
        await has_come(tmp_path)
        (tmp_path / "go").touch()
        result = await asked.result()
        assert result.text == "(no output)\nunderstood within the turn: from ann: come\nworked\n"
        assert data_of(run.row("s")).inbox == ()
        assert (await session.run("@say again")).text == "again\n"
    assert delivered(run) == (2, 1)
    assert [one.metadata["outcome"] for one in run.transitions("tool_completed", "s:t1")] == ["completed"]


async def test_a_message_that_is_not_accepted_interrupts(tmp_path: Path) -> None:
    """An agent that does not accept an urgent message within ``steer_grace_s``, since a tool call runs, is interrupted,
    and the next prompt contains the message."""
    async with supervising(tmp_path, agents=STEERED, settings=HASTY) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="a")
        asked = send_prompt(group, session, script(tmp_path / "go"))
        await wait_for_record(run.sup, "tool_started", "s:t1")
        await session.send("come", urgent=True, sender="ann")
        assert (await asked.result()).text.endswith("understood: from ann: come\n")
        assert data_of(run.row("s")).inbox == ()
    assert delivered(run) == (2, 0)
    assert "Urgent message from ann:\ncome" in run.transitions("PromptReady", "s")[1].metadata["prompt"]
    assert [one.to_status for one in run.transitions("SteerElapsed", "s")] == ["Interrupting"]


async def test_a_message_for_the_boundary_is_accepted_there(tmp_path: Path) -> None:
    """A message for the tool boundary is sent to the agent when the last call has returned; when the agent accepts it,
    nothing is interrupted."""
    async with supervising(tmp_path, agents=STEERED, settings=PATIENT) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="a")
        prompt = f"{script(tmp_path / 'go')}\n@local while [ ! -e {tmp_path / 'on'} ]; do sleep 0.01; done\n@say done"
        asked = send_prompt(group, session, prompt)
        await wait_for_record(run.sup, "tool_started", "s:t1")
        await session.send("come", urgent=True, at="tool_boundary", sender="ann")
        await wait_for_record(run.sup, "BoundaryAwaited", "s:t1")
        assert run.transitions("BoundaryReached", "s") == []
        (tmp_path / "go").touch()
        await wait_for_record(run.sup, "BoundaryReached", "s")
        await has_come(tmp_path)
        (tmp_path / "on").touch()
        await asked.result()
        assert data_of(run.row("s")).inbox == ()
    assert delivered(run) == (1, 1)


async def test_a_message_that_missed_its_turn_gets_another(tmp_path: Path) -> None:
    """An urgent message that the agent does not accept before its turn ends gets a turn of its own before the request
    gets its result."""
    asks = {"a": STEERED["a"].model_copy(update={"permissions": PermissionsConfig(default=Decision.ASK)})}
    async with supervising(tmp_path, agents=asks, settings=PATIENT) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="a")
        asked = send_prompt(group, session, "@ask may I?")
        await wait_for_record(run.sup, "PermissionRequested", "s:t1")
        await session.send("come", urgent=True, sender="ann")
        await run.sup.answer("s:t1:p1", allow=False)
        assert (await asked.result()).text == "refused: may I?\nunderstood: from ann: come\n"
        assert data_of(run.row("s")).inbox == ()
    assert delivered(run) == (2, 0)


async def test_an_agent_without_steering_is_interrupted(tmp_path: Path) -> None:
    """An agent that cannot accept messages within a turn is interrupted at once by an urgent message, and prompted
    again."""
    async with supervising(tmp_path, settings=PATIENT) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="scripted")
        asked = send_prompt(group, session, script(tmp_path / "go"))
        await wait_for_record(run.sup, "tool_started", "s:t1")
        await session.send("come", urgent=True, sender="ann")
        assert (await asked.result()).text.endswith("understood: from ann: come\n")
    assert delivered(run) == (2, 0)
    assert [one.to_status for one in run.transitions("UrgentMessage", "s")] == ["Interrupting"]
