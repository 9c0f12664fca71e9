"""Completion checks of a task: an attempt whose checks fail is repeated, with a list of the failed checks in the next
prompt."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from supervisor.plans import AgentConfig, CompletionConfig, Plan, TaskConfig
from supervisor.plans.completion_checks import CompletionCheck, missing
from supervisor.work.plan_handle import run_plan
from tests.support import quick_settings, states_of, supervising

pytestmark = pytest.mark.anyio

BOUNDS = quick_settings()


def glob(path: str) -> CompletionCheck:
    return CompletionCheck(kind="glob_exists", path=path)


def holds(path: str, text: str) -> CompletionCheck:
    return CompletionCheck(kind="file_contains", path=path, text=text)


async def test_checks_that_hold_find_nothing_missing(tmp_path: Path) -> None:
    """With a glob that matches, a file that contains the text and an agent's reply that contains the text, no check
    fails."""
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "a.whl").write_text("version 2\n")
    said = CompletionCheck(kind="answer_contains", text="done")
    wanted = [glob("dist/*.whl"), glob("**/a.*"), holds("dist/a.whl", "version 2"), said]
    assert await missing(wanted, str(tmp_path), "it is done.") == ""
    assert await missing([], str(tmp_path), "") == ""


async def test_every_failed_check_is_named(tmp_path: Path) -> None:
    """The result names each check that failed, not only the first."""
    (tmp_path / "a").write_text("one")
    said = CompletionCheck(kind="answer_contains", text="done")
    words = await missing([glob("*.whl"), holds("a", "two"), holds("b", "x"), said], str(tmp_path), "not yet")
    told = words.split("; ")
    assert told[:3] == ["its answer does not say 'done'", "nothing is at *.whl", "a does not contain 'two'"]
    assert told[3].startswith("b cannot be read: ")


async def test_files_outside_do_not_count(tmp_path: Path) -> None:
    """A symbolic link to a file outside of the workspace does not satisfy a check."""
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "outside.txt").write_text("secret")
    (work / "link.txt").symlink_to(tmp_path / "outside.txt")
    (work / "loop").symlink_to("loop")
    assert await missing([glob("*.txt")], str(work), "") == "nothing is at *.txt"
    assert await missing([holds("link.txt", "secret")], str(work), "") == f"link.txt is not inside {work}"
    assert await missing([holds("loop", "x")], str(work), "") != ""


async def test_an_agent_that_stops_too_early_tries_again(tmp_path: Path) -> None:
    """A failed completion check lets the task run retry in the same session and complete; no validation fails."""
    script = "cat >> asked; [ -e half ] && touch whole; touch half"
    shell = AgentConfig(adapter="command", command=("sh", "-c", script), explain_retries=True)
    task = TaskConfig.model_validate(
        {"id": "t", "agent": "sh", "prompt": "go", "completion": [{"glob_exists": "whole"}, {"glob_exists": "half"}]}
    )
    lifecycle = {"base_retry_delay": 0.01, "max_retry_delay": 0.01}
    plan = Plan.model_validate(
        {"agents": {"sh": shell}, "tasks": [task], "task_lifecycle": lifecycle, "limits": BOUNDS.limits}
    )
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        result = await run_plan(run.sup, plan)
    assert result.tasks["t"].outcome == "completed"
    assert states_of(run.events(), "r1#t:run")[:4] == ["PENDING", "IN_PROGRESS", "FAILED", "RETRYING"]
    failed = run.transitions("execution_failed", "r1#t:run")
    assert [one.metadata["error"] for one in failed] == ["not complete: nothing is at whole"]
    assert "> not complete: nothing is at whole" in (tmp_path / "asked").read_text()
    assert states_of(run.events(), "r1#t") == ["OPEN", "CLAIMED", "IN_PROGRESS", "DONE", "CLOSED"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({}, "says nothing; give exactly one of glob_exists, file_contains, answer_contains"),
        ({"glob_exists": "a", "answer_contains": "b"}, "says glob_exists and answer_contains; give exactly one"),
        ({"file_contains": "a"}, "missing; give what the file must contain"),
        ({"glob_exists": "a", "text": "b"}, "is for file_contains; remove it"),
        ({"answer_contains": ""}, "is empty; give what the agent must say"),
        ({"glob_exists": "../a"}, "give a path relative to where the task works"),
    ],
)
def test_an_invalid_check_is_refused(said: dict[str, str], words: str) -> None:
    """An invalid completion check of a plan is refused, and the error says how to correct it."""
    with pytest.raises(ValidationError, match=words):
        CompletionConfig.model_validate(said)
