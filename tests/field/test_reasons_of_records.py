"""Reasons in the journal: a record never says what did not happen, and names the reason of the specification where that
holds."""

from __future__ import annotations

from typing import Any

import pytest
from field_kit import Scratch

from supervisor.lifecycles.types import AbortReason, ModelProblem, TransitionReason
from supervisor.policies.error_classification import classify
from supervisor.policies.turn_outcome import decide_verdict

ONCE = "task_lifecycle: {max_attempts: 1, circuit_breaker: {enabled: false}}"
COMPACTS = """
    if "Urgent" not in text:
        agent.update(sessionUpdate="compaction_update", compactionId="k", status="in_progress")
        {then}
    return "done"
"""


def run_agent(scratch: Scratch, body: str, *, task: str = "", status: int | None = None) -> list[dict[str, Any]]:
    """Run a plan with one task, whose ACP agent has the *body*, and return all transitions."""
    scratch.acp_agent(body)
    scratch.plan(f"""
        agents: {{a: {{adapter: acp, command: [python3, agent.py]}}}}
        {ONCE}
        tasks: [{{id: t, agent: a, prompt: work, max_retries: 0{task}}}]
    """)
    done = scratch.run("run", "plan.yaml")
    assert status is None or done.status == status, done.text
    return [one for one in scratch.records() if one.get("outcome", "transition") == "transition"]


def reasons(records: list[dict[str, Any]], event: str) -> list[tuple[str | None, str | None]]:
    """Return transition reason and abort reason of the records of an event."""
    return [(one.get("transition_reason"), one.get("abort_reason")) for one in records if one["event"] == event]


# ---------------------------------------------------------------------------------------------------- compaction
@pytest.mark.parametrize("ends", ["failed", "cancelled"])
def test_a_compaction_that_failed_is_not_completed(scratch: Scratch, ends: str) -> None:
    """A turn whose agent could not compact its context fails for that reason, although the agent then reports success;
    no record says that the compaction was completed."""
    then = f'agent.update(sessionUpdate="compaction_update", compactionId="k", status="{ends}")'
    records = run_agent(scratch, COMPACTS.format(then=then), status=1)
    assert not reasons(records, "compaction_completed")
    assert reasons(records, "task_failed") == [("compaction_failed", "compact_failure")]
    assert reasons(records, "failed") == [("compaction_failed", "compact_failure")]


def test_a_compaction_without_an_end_is_not_completed(scratch: Scratch) -> None:
    """A turn that ends while its agent compacts is verified by the agent's word, not by an end that nobody reported."""
    records = run_agent(scratch, COMPACTS.format(then="pass"), status=0)
    assert not reasons(records, "compaction_completed")
    path = [(one["from_status"], one["to_status"]) for one in records if one["event"] == "verify_requested"]
    assert path == [("COMPACTING", "RUNNING"), ("RUNNING", "VERIFYING")]


def test_a_compaction_that_ends_is_completed(scratch: Scratch) -> None:
    """A compaction whose end the agent reports is recorded as completed."""
    then = 'agent.update(sessionUpdate="compaction_update", compactionId="k", status="completed")'
    assert len(reasons(run_agent(scratch, COMPACTS.format(then=then), status=0), "compaction_completed")) == 1


# ------------------------------------------------------------------------------------------------ tasks and tools
def test_tools_and_tasks_have_their_reasons(scratch: Scratch) -> None:
    """A completed call, a failed command and a completed task name the specification's reasons."""
    body = """
        for number, status in (("1", "completed"), ("2", "failed")):
            agent.tool_call(number, title=f"make {number}")
            agent.tool_ended(number, status)
        agent.update(sessionUpdate="tool_call", toolCallId="3", title="look", kind="read", status="in_progress")
        agent.tool_ended("3", "failed")
        return "done"
    """
    records = run_agent(scratch, body, status=0)
    assert reasons(records, "tool_completed") == [("completed", None), (None, "bash_error"), (None, None)]
    for event in ("task_completed", "completed", "closed", "tests_passed", "validation_passed"):
        assert ("completed", None) in reasons(records, event), event


def test_a_task_that_is_tried_again_says_retry(scratch: Scratch) -> None:
    """A task whose work was not accepted is claimed again with the reason ``retry``; its failure has another one."""
    body = """
        with open("tries", "a") as file:
            file.write("x")
        return "done"
    """
    test = ", acceptance: [{command: [grep, -q, xx, tries]}]"
    scratch.acp_agent(body)
    scratch.plan(f"""
        agents: {{a: {{adapter: acp, command: [python3, agent.py]}}}}
        {ONCE}
        tasks: [{{id: t, agent: a, prompt: work{test}}}]
    """)
    done = scratch.run("run", "plan.yaml")
    assert done.status == 0, done.text
    records = scratch.records("r1#t")
    assert reasons(records, "retried") == [("retry", None)]
    assert reasons(records, "failed") == [(None, None)]


def test_a_denied_permission_says_so(scratch: Scratch) -> None:
    """The answer to a permission request that the plan denies names the reason ``permission_denied``."""
    body = """
        agent.call("session/request_permission", toolCall={"toolCallId": "1", "title": "rm", "kind": "execute"},
                   options=[{"optionId": "no", "name": "no", "kind": "reject_once"}])
        return "done"
    """
    scratch.acp_agent(body)
    scratch.plan(f"""
        agents: {{a: {{adapter: acp, command: [python3, agent.py], permissions: deny, unguarded: true}}}}
        {ONCE}
        tasks: [{{id: t, agent: a, prompt: work}}]
    """)
    scratch.run("run", "plan.yaml")
    assert reasons(scratch.records(), "PermissionAnswered") == [("permission_denied", None)]


def test_a_failed_task_has_the_reason_of_its_attempt(scratch: Scratch) -> None:
    """The task whose program cannot be executed (exit status 126) fails with the reason of that status."""
    scratch.plan(f"""
        agents: {{a: {{adapter: command, command: [sh, -c, "exit 126"]}}}}
        {ONCE}
        tasks: [{{id: t, agent: a, prompt: "", max_retries: 0}}]
    """)
    assert scratch.run("run", "plan.yaml").status == 1
    assert reasons(scratch.records("r1#t"), "failed") == [("permanent_error", "permission_denied")]


# ------------------------------------------------------------------------------------------------------- verdicts
@pytest.mark.parametrize("words", ["API Error: 413 {}", "HTTP 413", '{"error": {"type": "request_too_large"}}'])
def test_413_in_words_is_413(words: str) -> None:
    """An error text that names the status 413 has the reason ``provider_413``, as the status itself has."""
    verdict = decide_verdict("error", words)
    assert (verdict.transition_reason, verdict.abort_reason) == (
        TransitionReason.PROVIDER_413,
        AbortReason.PROVIDER_ERROR,
    )


@pytest.mark.parametrize(("stop", "problem"), [("refusal", None), ("error", ModelProblem.REFUSED)])
def test_a_refusal_is_no_stop_hook(stop: str, problem: ModelProblem | None) -> None:
    """A model that refuses is not said to be blocked by a hook, nor to be an error of its provider."""
    verdict = decide_verdict(stop, "", problem=problem)
    assert (verdict.transition_reason, verdict.abort_reason) == (None, None)


def test_a_cancel_that_nobody_requested_is_nobody_s() -> None:
    """A turn that the agent cancelled by itself is not recorded as interrupted by a person."""
    verdict = decide_verdict("cancelled", "")
    assert (verdict.transition_reason, verdict.abort_reason) == (None, AbortReason.UNKNOWN)


def test_the_words_of_a_limit_are_no_evidence() -> None:
    """An end by a limit of the runtime is classified by the limit, whatever its text quotes."""
    quoting = "it goes round in a circle: the same call, 'cat: permission denied', was made 5 times"
    assert classify(quoting, abort_reason=AbortReason.LOOP).category.value == "unknown"
    spent = "the budget of task t is spent: tokens: limit 429, used 500"
    assert classify(spent, abort_reason=AbortReason.BUDGET_SPENT).category.value == "permanent"
