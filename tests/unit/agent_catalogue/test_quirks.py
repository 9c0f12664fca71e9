"""What is known of an agent beside its protocol is gone by: where a cancel leaves its tool running, it ends too."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from supervisor.agent_catalogue import Quirks
from supervisor.plans import AgentConfig
from tests.support import agent_pids, data_of, send_prompt, supervising, wait_for_exit, wait_for_record

pytestmark = pytest.mark.anyio


async def interrupted(folder: Path, script: str, quirks: Quirks) -> tuple[list[int], list[str | None], int]:
    """The processes, names of the conversation, and errors of a session that is interrupted by a message."""
    memory = folder / "memory"
    memory.mkdir()
    agents = {"a": AgentConfig(adapter="scripted", env={"SCRIPTED_MEMORY": str(memory)}, quirks=quirks)}
    async with supervising(folder, agents=agents) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="a")
        asked = send_prompt(group, session, script)
        await wait_for_record(
            run.sup, "tool_completed" if "@run" in script else "SessionStarted", "s:t1" if "@run" in script else "s"
        )
        await session.send("stop that", urgent=True)
        assert (await asked.result()).outcome == "completed"
        errors = data_of(run.row("s")).total_errors
    pids = agent_pids(run.events(), "s")
    for pid in pids:
        await wait_for_exit(pid)
    return pids, [one.metadata["resume_id"] for one in run.transitions("agent_ready")], errors


async def test_a_cancel_that_leaves_tools_ends_the_agent(tmp_path: Path) -> None:
    """The turn had a call: another process goes on with the same conversation, and nobody is charged for it."""
    pids, names, errors = await interrupted(tmp_path, "@run true\n@hang", Quirks(cancel_leaves_tool=True))
    assert len(set(pids)) == 2
    assert (len(names), len(set(names)), None in names) == (2, 1, False)
    assert errors == 0


@pytest.mark.parametrize(
    ("script", "quirks"), [("@run true\n@hang", Quirks()), ("@hang", Quirks(cancel_leaves_tool=True))]
)
async def test_another_cancel_leaves_the_agent_alone(tmp_path: Path, script: str, quirks: Quirks) -> None:
    """One whose tools end with a cancel, or that had none, goes on as the same process."""
    pids, _, errors = await interrupted(tmp_path, script, quirks)
    assert (len(set(pids)), errors) == (1, 0)
