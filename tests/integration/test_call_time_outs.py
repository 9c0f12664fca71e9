"""Time limits of tool calls: a call that takes too long is aborted, and its agent goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.plans import AgentConfig
from tests.support import supervising, wait_for_record

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]


async def test_a_call_that_takes_too_long_is_aborted_and_its_agent_goes_on(tmp_path: Path) -> None:
    """Only the call is aborted, with the reason on record; the agent is told so, and its turn succeeds."""
    agents = {"a": AgentConfig(adapter="scripted", tool_timeouts={"execute": 0.2, "fetch": 60.0})}
    async with supervising(tmp_path, agents=agents) as run:
        session = await run.sup.start_session("s", agent="a")
        result = await session.run("@run sleep 600\n@say after")
        assert (result.outcome, result.text.splitlines()[-1]) == ("completed", "after")
        late = await wait_for_record(run.sup, "CallTimedOut", "s", outcome="fact")
        assert late.metadata == {"call": "s:t1:c1", "kind": "execute", "limit_s": 0.2}
        assert late.reason == "a call of the kind execute may take 0.2 s (agents.*.tool_timeouts)"
        (end,) = run.transitions("tool_completed", "s:t1")
        assert end.metadata["outcome"] == "aborted"
        (abort,) = [one for one in run.events() if one.event == "AbortRecord"]
        assert (abort.cause_id, abort.metadata["scope"], abort.abort_reason) == (late.seq, "tool", "timeout")
