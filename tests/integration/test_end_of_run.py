"""The end of a run says why the run did not succeed, and what each task has used; ``fail_fast`` ends a run early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.plans import AgentConfig, Plan
from supervisor.work.plan_handle import run_plan
from supervisor.work.results import PlanResult
from tests.support import Run, quick_settings, supervising

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]

AGENTS = {
    "sh": AgentConfig(adapter="command", command=("sh", "-c", "{prompt}")),
    "scripted": AgentConfig(adapter="scripted"),
}
SETTINGS = quick_settings(max_total_errors=9, max_consecutive_errors=9)
QUICK = {"base_retry_delay": 0, "max_attempts": 2, "circuit_breaker": {"enabled": False}}


async def carry_out(run: Run, *tasks: dict[str, Any], **more: Any) -> PlanResult:
    """Run a plan with these tasks, each with one claim of at most two attempts."""
    configs = [{"agent": "sh", "prompt": "true", "max_retries": 0, **one} for one in tasks]
    bounds = {"limits": SETTINGS.limits, "policy": SETTINGS.policy}
    plan = {"agents": AGENTS, "tasks": configs, "task_lifecycle": QUICK, **bounds, **more}
    return await run_plan(run.sup, Plan.model_validate(plan))


async def test_each_task_that_failed_says_why(tmp_path: Path) -> None:
    """A failed task has its error, the bound that ended its attempts, and the number of its launches; the reason of the
    run names the tasks that did not complete."""
    refused = {
        "id": "tested",
        "acceptance": [{"command": ["sh", "-c", "echo first line; echo expected 1, got 2; exit 1"]}],
    }
    async with supervising(tmp_path, agents=AGENTS, settings=SETTINGS) as run:
        bad = {"id": "bad", "prompt": "echo $$ >&2; exit 3"}
        result = await carry_out(run, bad, refused, {"id": "after", "depends_on": ["bad"]}, {"id": "fine"})
    assert not result.ok
    assert result.why == "of 4 tasks 2 failed (bad, tested), 1 blocked (after)"
    assert result.tasks["bad"].error.startswith("exit status 3")
    assert result.tasks["bad"].remarks == ("its circuit is open after 2 attempts: max_attempts is 2",)
    assert result.tasks["tested"].findings.endswith(": expected 1, got 2\nfirst line\nexpected 1, got 2")
    assert [one.launches for one in result.tasks.values()] == [2, 1, 0, 1]


async def test_a_failed_validation_is_the_reason_of_the_run(tmp_path: Path) -> None:
    """When every task is completed and the validation of the plan fails, the result says so, with the test's output."""
    validation = [{"command": ["sh", "-c", "echo one; echo two of 5 failed; exit 3"]}]
    async with supervising(tmp_path, agents=AGENTS, settings=SETTINGS) as run:
        result = await carry_out(run, {"id": "fine"}, validation=validation)
    assert [one.outcome for one in result.tasks.values()] == ["completed"]
    assert not result.ok
    assert result.why.startswith("its validation failed: ")
    assert result.output == "one\ntwo of 5 failed"


async def test_fail_fast_ends_the_run_at_the_first_failure(tmp_path: Path) -> None:
    """With ``fail_fast`` a failed task ends the other tasks, as a critical task does; their error names the task."""
    async with supervising(tmp_path, agents=AGENTS, settings=SETTINGS) as run:
        slow = {"id": "slow", "prompt": "exec sleep 1000"}
        tasks = {"id": "bad", "prompt": "exit 3"}, slow, {"id": "late", "depends_on": ["slow"]}
        result = await carry_out(run, *tasks, fail_fast=True)
    assert [one.outcome for one in result.tasks.values()] == ["failed", "aborted", "aborted"]
    assert result.tasks["late"].error == "the task bad failed, which ends the run"


async def test_a_task_has_what_its_agents_used(tmp_path: Path) -> None:
    async with supervising(tmp_path, agents=AGENTS, settings=SETTINGS) as run:
        result = await carry_out(run, {"id": "dear", "agent": "scripted", "prompt": "@use 300 50 0.25"}, {"id": "free"})
    used = [(one.launches, one.tokens, one.cost_usd) for one in result.tasks.values()]
    assert used == [(1, 350, 0.25), (1, 0, 0.0)]
