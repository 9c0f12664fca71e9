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


def causes_of(run: Run, entity_id: str) -> list[str]:
    """Return the causes of the last record of an entity, each as entity and event, the nearest first."""
    events = {event.seq: event for event in run.events()}
    event, causes = [one for one in events.values() if one.entity_id == entity_id][-1], list[str]()
    while event.cause_id is not None:
        event = events[event.cause_id]
        causes.append(f"{event.entity_id} {event.event}")
    return causes


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
    assert [one.outcome for one in result.tasks.values()] == ["failed", "cancelled", "cancelled"]
    assert result.tasks["late"].error == "the task bad failed, which ends the run"
    for end in ("r1#slow", "r1#late"):  # whether its agent works, or it waits
        assert "r1#bad failed" in causes_of(run, end)


async def test_a_subtask_that_fails_is_the_cause_of_the_end_of_its_task(tmp_path: Path) -> None:
    parts = [{"id": "bad", "prompt": "exit 3"}, {"id": "fine", "prompt": "exit 0"}]
    async with supervising(tmp_path, agents=AGENTS, settings=SETTINGS) as run:
        await carry_out(run, {"id": "whole", "subtasks": parts})
    assert "r1#bad failed" in causes_of(run, "r1#whole")


async def test_a_task_has_what_its_agents_used(tmp_path: Path) -> None:
    async with supervising(tmp_path, agents=AGENTS, settings=SETTINGS) as run:
        result = await carry_out(run, {"id": "dear", "agent": "scripted", "prompt": "@use 300 50 0.25"}, {"id": "free"})
    used = [(one.launches, one.tokens, one.cost_usd) for one in result.tasks.values()]
    assert used == [(1, 350, 0.25), (1, 0, 0.0)]


async def test_a_provider_that_fails_for_too_long_fails_the_task(tmp_path: Path) -> None:
    """Errors of the provider are charged neither to the run nor to the session. When the patience is over, the result
    says so, and only another agent gives a new claim."""
    lifecycle = {**QUICK, "base_retry_delay": 0.2, "max_retry_delay": 0.2, "provider_patience_s": 0.3}
    words = "@model-fails rate_limit 429"
    agents = {**AGENTS, "s": AgentConfig(adapter="scripted")}
    settings = quick_settings(max_total_errors=2, max_consecutive_errors=2, restarts_max=1)
    bounds = {"limits": settings.limits, "agents": agents, "task_lifecycle": lifecycle}
    async with supervising(tmp_path, agents=agents, settings=settings) as run:
        alone, other = (
            {"id": "alone", "agent": "scripted", "prompt": words},
            {"id": "other", "agent": "s", "prompt": words},
        )
        other |= {"fallback_agents": ["sh"], "max_retries": 2}
        result = await carry_out(run, alone, other, **bounds)
    assert "provider_patience_s is over)" in result.tasks["alone"].error
    assert "too many errors" not in result.tasks["alone"].error
    assert result.tasks["alone"].remarks == ()
    assert len(run.transitions("claimed", "r1#alone")) == 1
    assert len(run.transitions("claimed", "r1#other")) == 2


async def test_a_spent_retry_budget_is_named_once(tmp_path: Path) -> None:
    """A task that has a fallback agent left names the spent budget once."""
    bad = {"id": "bad", "prompt": "exit 3", "fallback_agents": ["sh2"], "max_retries": 1}
    agents = {**AGENTS, "sh2": AGENTS["sh"]}
    async with supervising(tmp_path, agents=agents, settings=SETTINGS) as run:
        result = await carry_out(run, bad, agents=agents, retry_budget={"share": 0, "least": 0})
    assert result.tasks["bad"].error.count("no further try") == 1
    assert result.tasks["bad"].remarks == ("its circuit is open after 1 attempt: no retry was left",)


async def test_a_budget_that_is_spent_during_a_cool_down_is_named(tmp_path: Path) -> None:
    """Of two tasks that wait for a probe, the one that finds the retry budget spent says so."""
    lifecycle = {**QUICK, "max_attempts": 1, "circuit_breaker": {"cooldown_period": 0.2}}
    hang = {"prompt": "exec sleep 1000", "timeout_s": 0.2}
    async with supervising(tmp_path, agents=AGENTS, settings=SETTINGS) as run:
        tasks = {"id": "a", **hang}, {"id": "b", **hang}
        result = await carry_out(run, *tasks, task_lifecycle=lifecycle, retry_budget={"share": 0, "least": 1})
    assert sorted(one.error.count("no further try") for one in result.tasks.values()) == [0, 1]
    assert sorted(one.launches for one in result.tasks.values()) == [1, 2]


async def test_the_last_output_of_a_failed_command_is_charged(tmp_path: Path) -> None:
    """A command that prints the texts of a provider uses up its attempts, as any other command does."""
    bad = {"id": "bad", "prompt": "echo 'Error: 429 rate limit, retry after 900 seconds' >&2; exit 1"}
    async with supervising(tmp_path, agents=AGENTS, settings=SETTINGS) as run:
        result = await carry_out(run, bad)
    assert (result.tasks["bad"].launches, result.tasks["bad"].outcome) == (2, "failed")
