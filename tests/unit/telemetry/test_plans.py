"""Tests of telemetry of the run of a plan: its span, its labels, and the lines of its tasks."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from supervisor import AgentConfig, Plan, TaskConfig, run_plan
from tests.unit.telemetry.telemetry_kit import Exported, observed, value

pytestmark = pytest.mark.anyio


async def test_a_run_is_one_trace_with_its_sessions(exported: Exported, tmp_path: Path) -> None:
    """The sessions of a plan lie below the span of the run; the plan is a label of the figures; each task has a line
    with its states."""
    agents = {
        "sh": AgentConfig(adapter="command", command=("sh", "-c", "{prompt}")),
    }
    plan = Plan(
        workstream="demo",
        agents=agents,
        tasks=[TaskConfig(id="a", agent="sh", prompt="true"), TaskConfig(id="b", agent="sh", prompt="true")],
    )
    on = {"metrics": True, "traces": True, "files": True}
    async with observed(tmp_path / "sd", telemetry=on, agents=agents, workdir=tmp_path) as sup:
        result = await run_plan(sup, plan)
        assert result.ok
        assert value(sup, "supervisor_tasks_ended_total", plan="demo", outcome="completed") == 2
        assert value(sup, "supervisor_runs_ended_total", plan="demo", outcome="completed") == 1
        assert value(sup, "supervisor_tasks") == 0
    run = exported.of("r1")
    assert (run.name, (run.attributes or {})["gen_ai.agent.name"]) == ("invoke_workflow demo", "demo")
    assert {exported.parent("a"), exported.parent("b")} == {"r1"}
    assert len({one.context.trace_id for one in exported.all}) == 1
    lines = [json.loads(line) for line in (tmp_path / "sd/traces/traces.jsonl").read_text().splitlines()]
    tasks = {one["id"]: [state["state"] for state in one["states"]] for one in lines if one["kind"] == "task"}
    assert tasks == {f"r1#{name}": ["CLAIMED", "IN_PROGRESS", "DONE", "CLOSED"] for name in "ab"}
    assert {one["trace_id"] for one in lines if one["kind"] == "session"} == {f"{run.context.trace_id:032x}"}


async def test_a_log_line_has_the_id_of_the_trace(exported: Exported, caplog: pytest.LogCaptureFixture) -> None:
    """A log line about a session that is traced has the id of the trace as a field."""
    with caplog.at_level(logging.ERROR, "supervisor"):
        async with observed(telemetry={"traces": True}) as sup:
            await (await sup.start_session("lead", agent="helpful")).run("fail")
    [line] = [one for one in caplog.records if "session gave up" in one.message]
    assert line.fields["trace_id"] == f"{exported.of('lead').context.trace_id:032x}"  # type: ignore[attr-defined]
