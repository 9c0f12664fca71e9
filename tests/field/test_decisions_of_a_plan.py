"""Decisions of a plan are recorded as the plan's, with the record that led to them; an operator is named only where an
operator gave a command."""

from __future__ import annotations

import pytest
from field_kit import Scratch, until

FAILS, SLEEPS = "[sh, -c, 'exit 3']", "[sleep, '1000']"

BAD, SLOW = "agent: bad, prompt: ''", "agent: slow, prompt: ''"

PLANS = {
    "fail_fast": ("fail_fast: true", f"[{{id: a, {BAD}}}, {{id: b, {SLOW}}}, {{id: c, {BAD}, depends_on: [b]}}]"),
    "critical": ("", f"[{{id: a, {BAD}, critical: true}}, {{id: b, {SLOW}}}]"),
    "dependency": ("", f"[{{id: a, {BAD}}}, {{id: b, {SLOW}, depends_on: [a]}}]"),
    "subtask": ("", f"[{{id: b, {SLOW}, subtasks: [{{id: a, {BAD}}}, {{id: c, {SLOW}, depends_on: [a]}}]}}]"),
    "retries": (
        "retry_budget: {share: 0.0, least: 1}",
        f"[{{id: a, {BAD}, max_retries: 3}}, {{id: b, {BAD}, depends_on: [a]}}]",
    ),
}
"""Settings, and tasks: ``b`` ends because ``a`` fails."""


@pytest.mark.parametrize("name", PLANS)
def test_the_end_of_a_task_leads_to_the_failure_of_the_other(scratch: Scratch, name: str) -> None:
    """A plan ends ``b`` because ``a`` has failed: `why b` leads to the failure of ``a``, and no record of the run is by
    an operator."""
    settings, tasks = PLANS[name]
    scratch.plan(f"""
        agents:
          bad: {{adapter: command, command: {FAILS}}}
          slow: {{adapter: command, command: {SLEEPS}}}
        task_lifecycle: {{max_attempts: 1, base_retry_delay: 0, circuit_breaker: {{enabled: false}}}}
        {settings}
        tasks: {tasks}
    """)
    done = scratch.run("run", "plan.yaml")
    assert done.status == 1, done.text
    why = scratch.run("why", "r1#b", "-v")
    assert why.status == 0
    sentence, first, *spine = why.out.splitlines()
    assert "task r1#a failed at " in sentence
    assert first.startswith("why r1#b: 1 root, ")
    assert any("r1#a" in line and "failed" in line and "FAILED" in line for line in spine), why.out
    assert not [one for one in scratch.records() if one.get("actor", "").startswith("operator")]
    if name in ("fail_fast", "critical"):  # an agent was at work for b: the end of its session has the same cause
        session = scratch.run("why", "b", "-v")
        assert any("r1#a" in line and "FAILED" in line for line in session.out.splitlines()), session.out
    assert scratch.run("validate", ".sdd").status == 0


def test_a_command_names_its_operator(scratch: Scratch) -> None:
    """A task that a person cancels has the person as the actor of the abort of its session."""
    scratch.plan(f"""
        agents: {{slow: {{adapter: command, command: {SLEEPS}}}}}
        tasks: [{{id: b, agent: slow, prompt: ''}}]
    """)
    run = scratch.start("run", "plan.yaml")
    until(lambda: (scratch.path / ".sdd/runtime/journal.db").exists() and " b: begins" in run.out)
    assert scratch.run("task", "cancel", "b").status == 0
    assert run.wait().status == 1
    (abort,) = [one for one in scratch.records() if one["event"] == "AbortRecord"]
    assert abort["actor"].startswith("operator:")
