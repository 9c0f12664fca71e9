"""Test of the kit for field tests: a plan with two agents runs in a scratch directory."""

from __future__ import annotations

from field_kit import Scratch


def test_a_plan_runs_in_a_scratch_directory(scratch: Scratch) -> None:
    """An agent of the adapter ``command`` and a scripted ACP agent complete their tasks, and their records can
    be read."""
    scratch.acp_agent('agent.tool_call("k1"); agent.tool_ended("k1")\nreturn "done"')
    scratch.plan("""
        agents:
          a: {adapter: command, command: [echo, hello]}
          b: {adapter: acp, command: [python3, agent.py]}
        tasks:
          - {id: t, agent: a, prompt: ""}
          - {id: u, agent: b, prompt: go}
    """)
    done = scratch.run("run", "plan.yaml", "--json")
    assert done.status == 0, done.text
    assert [task["outcome"] for task in done.json()["tasks"]] == ["completed", "completed"]
    assert scratch.records("r1#u")[-1]["to_status"] == "CLOSED"
