"""Tests of the review: the verdict is parsed strictly, and work that is not approved is not closed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import ValidationError

from supervisor.embedding.runtime import open_supervisor
from supervisor.lifecycles.task_run import TaskRun as RunState
from supervisor.lifecycles.types import AbortScope
from supervisor.plans import AgentConfig, Plan
from supervisor.plans.verification import ReviewConfig
from supervisor.runtime.journal_writer import Cause
from supervisor.work.plan_handle import run_plan
from supervisor.work.results import PlanResult
from supervisor.work.review import FINDINGS_MAX, REVIEW, read_verdict, review_work
from tests.support import Run, data_of, no_leaks, quick_settings, states_of, supervising, wait_for_record

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]

BOUNDS = quick_settings(max_total_errors=1, max_consecutive_errors=1)
APPROVE = '{"verdict": "approve", "findings": []}'
REJECT = '{"verdict": "reject", "findings": ["no test", "wrong name"]}'


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with no_leaks():
        yield


def plan_of(reviewer: str, workspace: str = "directory", **more: Any) -> Plan:
    """Return a plan with one task, whose work is reviewed by a shell script."""
    agents = {
        "sh": AgentConfig(adapter="command", command=("sh", "-c", "{prompt}")),
        "critic": AgentConfig(adapter="command", command=("sh", "-c", reviewer)),
    }
    task = {"id": "t", "agent": "sh", "prompt": "echo made > made.txt", "max_retries": 0, "review": {"agent": "critic"}}
    return Plan.model_validate(
        {
            "agents": agents,
            "tasks": [{**task, **more}],
            "limits": BOUNDS.limits,
            "policy": BOUNDS.policy,
            "workspace": workspace,
        }
    )


async def carried_out(workdir: Path, plan: Plan) -> tuple[PlanResult, Run]:
    async with supervising(workdir, settings=plan.settings, agents=plan.agents) as run:
        result = await run_plan(run.sup, plan)
    return result, run


def facts(run: Run) -> list[dict[str, Any]]:
    return [one.metadata for one in run.events() if one.event == "Reviewed"]


# -------------------------------------------------------------------------------------------------- in a plan
async def test_approved_work_is_closed(tmp_path: Path) -> None:
    """Approved work is closed; the review runs in a child session in the same directory, and its verdict is
    recorded."""
    result, run = await carried_out(tmp_path, plan_of(f"cat > asked; ls > there; echo fine; echo '{APPROVE}'"))
    assert result.ok
    assert states_of(run.events(), "r1#t") == ["OPEN", "CLAIMED", "IN_PROGRESS", "DONE", "CLOSED"]
    assert states_of(run.events(), "t/review")[-1] == "Stopped"
    (fact,) = facts(run)
    assert (fact["agent"], fact["approved"], fact["session_id"]) == ("critic", True, "t/review")
    assert "echo made > made.txt" in (tmp_path / "asked").read_text()
    assert "made.txt" in (tmp_path / "there").read_text().split()


async def test_rejected_work_fails_for_good(tmp_path: Path) -> None:
    """Rejected work fails like a failed test: no other attempt follows, and the findings are the reason."""
    result, run = await carried_out(tmp_path, plan_of(f"echo '{REJECT}'"))
    assert result.tasks["t"].error == "rejected by review: no test; wrong name"
    assert states_of(run.events(), "r1#t") == ["OPEN", "CLAIMED", "IN_PROGRESS", "FAILED"]
    assert states_of(run.events(), "r1#t:run")[-1] == RunState.CIRCUIT_OPEN.value
    assert data_of(run.row("r1#t")).last_failure == "rejected by review: no test; wrong name"
    assert facts(run)[0]["findings"] == ["no test", "wrong name"]
    assert run.transitions("validation_failed", "r1#t:job")[0].metadata["failed_rules"] == ["no test", "wrong name"]


async def test_a_verdict_that_cannot_be_read_is_asked_for_once_more(tmp_path: Path) -> None:
    """After an unreadable verdict the reviewer is asked once more, and the second prompt says why."""
    script = f"cat > asked; if [ -e first ]; then echo '{APPROVE}'; else touch first; echo looks good to me; fi"
    result, run = await carried_out(tmp_path, plan_of(script))
    assert result.ok
    assert "An earlier review could not be read: the last line is no verdict" in (tmp_path / "asked").read_text()
    assert facts(run)[0]["session_id"] == "t/review-2"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo looks good to me", r"^not reviewed: the last line is no verdict: .* \(try 2 of 2\)$"),
        ("exit 3", r"^not reviewed: .*exit status 3.* \(try 2 of 2\)$"),
        ("""echo '{"verdict": "reject"}'""", r"^not reviewed: it rejects without a finding \(try 2 of 2\)$"),
    ],
)
async def test_without_a_verdict_nothing_is_approved(tmp_path: Path, script: str, words: str) -> None:
    """Without a readable verdict the work is not approved, whatever the reason."""
    result, run = await carried_out(tmp_path, plan_of(script))
    assert result.tasks["t"].outcome == "failed"
    assert re.search(words, result.tasks["t"].error), result.tasks["t"].error
    assert facts(run)[0]["approved"] is False


async def test_it_is_not_asked_about_work_that_fails_its_tests(tmp_path: Path) -> None:
    """No review is requested for work that fails its tests, since tests are cheaper."""
    plan = plan_of(f"touch asked; echo '{APPROVE}'", acceptance=[{"file_exists": "other"}])
    result, _ = await carried_out(tmp_path, plan)
    assert result.tasks["t"].outcome == "failed"
    assert not (tmp_path / "asked").exists()


async def test_a_review_that_is_begun_anew_ends_the_former_and_no_child_session_of_the_agent(tmp_path: Path) -> None:
    """A review that was interrupted is ended by the next; a child session that the agent named "review-docs" lives."""
    plan = plan_of(f"echo '{APPROVE}'")
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        work = await run.sup.start_session("t", agent="sh")
        await work.start_child("review-docs", agent="sh")
        await run.sup.core.session_factory.start("review", agent="critic", parent="t", cause=Cause(actor=REVIEW))
        changes, cause = partial(run.sup.core.verification.changes, "t"), Cause(actor="plan")
        verdict = await review_work(run.sup.core, "t", ReviewConfig(agent="critic"), plan.tasks[0], cause, "", changes)
        assert verdict.approved
        assert {
            one for one in ("t/review-docs", "t/review", "t/review-2") if one in run.sup.core.registry.sessions
        } == {"t/review-docs"}


async def test_an_abort_ends_the_review_too(tmp_path: Path) -> None:
    """The review is a child session of the task's session: an abort ends both, and the task is cancelled."""
    results: list[PlanResult] = []
    settings = quick_settings(ladder={"request_s": 0.1})
    plan = plan_of("sleep 1000")
    async with supervising(tmp_path, settings=settings, agents=plan.agents) as run:
        async with anyio.create_task_group() as group:

            async def carry_out() -> None:
                results.append(await run_plan(run.sup, plan))

            group.start_soon(carry_out)
            await wait_for_record(run.sup, "SessionStarted", "t/review")
            receipt = await run.sup.abort("t", AbortScope.SESSION, reason="enough")
            assert receipt.survivors == 0
    assert results[0].tasks["t"].outcome == "aborted"
    assert states_of(run.events(), "r1#t")[-1] == "CANCELLED"


async def test_the_plan_has_a_reviewer_for_all(tmp_path: Path) -> None:
    """A task without a reviewer is reviewed by the plan's reviewer; an agent that may do the work itself is refused as
    reviewer."""
    plan = plan_of(f"echo '{REJECT}'", review=None)
    everybody = Plan.model_validate({**dict(plan), "review": {"agent": "critic", "prompt": "Be kind."}})
    result, _ = await carried_out(tmp_path, everybody)
    assert result.tasks["t"].outcome == "failed"
    for wrong, words in {"sh": "may have done the work itself", "critik": "did you mean 'critic'"}.items():
        with pytest.raises(ValidationError, match=words):
            Plan.model_validate({**dict(plan), "review": {"agent": wrong}})
        with pytest.raises(ValidationError, match=words):
            plan_of("true", review={"agent": wrong})


# -------------------------------------------------------------------------------------------------- in a worktree
async def on_disk(plan: Plan, where: Path) -> PlanResult:
    async with open_supervisor(where / ".sdd", agents=plan.agents, settings=plan.settings, workdir=where) as sup:
        return await run_plan(sup, plan)


async def test_the_reviewer_is_given_the_diff(repository: Path, tmp_path: Path) -> None:
    """The reviewer's prompt has the diff between the task's worktree and the target, and that diff is merged."""
    script = f"cat > {tmp_path}/asked; pwd > {tmp_path}/where; echo '{APPROVE}'"
    result = await on_disk(plan_of(script, workspace="worktree"), repository)
    assert result.ok
    asked = (tmp_path / "asked").read_text()
    assert "+++ b/made.txt" in asked
    assert "+made" in asked
    assert (tmp_path / "where").read_text().strip().endswith("/worktrees/t")
    assert (repository / "made.txt").read_text() == "made\n"


async def test_a_reviewer_changes_nothing(repository: Path) -> None:
    """Work that the reviewer has changed is not merged, since it is not the work that was reviewed."""
    script = f"echo mine >> made.txt; echo '{APPROVE}'"
    result = await on_disk(plan_of(script, workspace="worktree"), repository)
    words = "not reviewed: the reviewer changed what it reviewed"
    assert result.tasks["t"].error == f"{words}; its work is on the branch supervisor/t"
    assert not (repository / "made.txt").exists()


# -------------------------------------------------------------------------------------------------- the verdict
@pytest.mark.parametrize(
    "text",
    [
        "",
        "approve",
        APPROVE + "\nand that is it",
        f"```json\n{APPROVE}\n```",
        '{"verdict": "approved", "findings": []}',
        '{"verdict": "Approve"}',
        '{"verdict": "approve", "findings": "none"}',
        '{"verdict": "approve", "score": 10}',
        '{"findings": []}',
        '["approve"]',
        '{"verdict": "reject", "findings": []}',
        '{"verdict": "reject", "findings": ["  "]}',
        "\ud800",
    ],
)
def test_what_is_no_verdict(text: str) -> None:
    """Only the exact form on the last line is a verdict; any other text is never an approval."""
    found = read_verdict(text)
    assert not found.approved
    assert found.problem
    assert found.words.startswith("not reviewed: ")


def test_what_is_a_verdict() -> None:
    """A verdict may have text before it and blank lines after it; number and length of the recorded findings are
    bounded."""
    approved = read_verdict(f"I looked.\n\n  {APPROVE}  \n\n")
    assert (approved.approved, approved.words) == (True, "")
    many = ", ".join(f'"{"x" * 1000}"' for _ in range(FINDINGS_MAX + 9))
    rejected = read_verdict(f'{{"verdict": "reject", "findings": [{many}]}}')
    assert (rejected.approved, len(rejected.findings), len(rejected.findings[0])) == (False, FINDINGS_MAX, 500)
