"""Agents that stay when their work is done and their input has ended: nobody waits for them for long."""

from __future__ import annotations

import pytest
from field_kit import Scratch, alive

STAYS = """
import atexit, signal
Path("pid").write_text(str(os.getpid()))
def stay():
    {stay}
    while True:
        time.sleep(100)
atexit.register(stay)
return "done"
"""
PLAN = """
    agents: {a: {adapter: acp, command: [python3, agent.py]}}
    policy: {ladder: {request_s: 1000, terminate_s: TERMINATE}}
    tasks: [{id: t, agent: a, prompt: go}]
"""


@pytest.mark.parametrize(
    ("stay", "terminate_s", "ended_by"),
    [("pass", "1000", "terminate"), ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", "0.1", "kill")],
    ids=["stays", "ignores SIGTERM"],
)
def test_a_done_task_does_not_wait_for_its_agent(scratch: Scratch, stay: str, terminate_s: str, ended_by: str) -> None:
    """An agent has done its task, and does not exit at the end of its input: it is sent SIGTERM, and killed if it
    ignores that, long before the time that an aborted agent has. The task is completed, and the record says why the
    agent was ended."""
    scratch.acp_agent(STAYS.replace("{stay}", stay))
    scratch.plan(PLAN.replace("TERMINATE", terminate_s))
    done = scratch.run("run", "plan.yaml", "--json")
    assert (done.status, done.json()["tasks"][0]["outcome"]) == (0, "completed")
    [exited] = [one for one in scratch.records("t:a1") if one.get("event") == "agent_exited"]
    assert exited["metadata"]["ended_by"] == ended_by
    assert exited["reason"] == "it did not exit at the end of its input"
    assert not alive(int((scratch.path / "pid").read_text()))


def test_an_agent_that_exits_at_the_end_of_its_input_has_ended_by_itself(scratch: Scratch) -> None:
    """An agent takes half a second to exit at the end of its input: it is not ended by the supervisor."""
    scratch.acp_agent("import atexit\natexit.register(time.sleep, 0.5)\nreturn 'done'")
    scratch.plan(PLAN.replace("TERMINATE", "1"))
    assert scratch.run("run", "plan.yaml").status == 0
    [exited] = [one for one in scratch.records("t:a1") if one.get("event") == "agent_exited"]
    assert (exited["metadata"]["ended_by"], exited["metadata"]["status"]) == ("exit", 0)
