"""Verification of a task's work before the task is closed: acceptance tests, and the merge of its worktree."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from supervisor.embedding.runtime import open_supervisor
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import AbortScope
from supervisor.plans import AcceptanceConfig, AgentConfig, Plan, TaskConfig
from supervisor.work.plan_handle import run_plan
from supervisor.work.results import PlanResult
from supervisor.workspaces.git_command import WorkspaceError
from tests.support import git, quick_settings, start_call, states_of, supervising

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]

AGENTS = {"sh": AgentConfig(adapter="command", command=("sh", "-c", "{prompt}"))}
BOUNDS = quick_settings(max_total_errors=1, max_consecutive_errors=1)


def plan_of(*tasks: TaskConfig, workspace: str = "directory", merge_into: str = "") -> Plan:
    bounds = {"limits": BOUNDS.limits, "policy": BOUNDS.policy}
    return Plan.model_validate(
        {"agents": AGENTS, "tasks": tasks, "workspace": workspace, "merge_into": merge_into, **bounds}
    )


def task(name: str, prompt: str, *depends_on: str, **test: object) -> TaskConfig:
    acceptance = (AcceptanceConfig.model_validate(test),) if test else ()
    return TaskConfig(max_retries=0, id=name, agent="sh", prompt=prompt, depends_on=depends_on, acceptance=acceptance)


async def carried_out(plan: Plan, where: Path) -> PlanResult:
    """Run the plan with its state directory inside the repository, as ``supervisor run`` does."""
    async with open_supervisor(where / ".sdd", agents=plan.agents, settings=plan.settings, workdir=where) as sup:
        return await run_plan(sup, plan)


def states(where: Path, task_id: str) -> list[str]:
    with JournalReader(StateDir(where / ".sdd").journal) as reader:
        return states_of(list(reader.events()), f"r1#{task_id}")


# -------------------------------------------------------------------------------------------------- acceptance
async def test_work_that_passes_its_tests_is_closed(tmp_path: Path) -> None:
    """A task that passes its acceptance test is closed, and the session's transcript contains the result of the
    test."""
    plan = plan_of(task("write", "echo 1 > report.txt", command=["cat", "report.txt"]))
    result = await carried_out(plan, tmp_path)
    assert result.ok
    assert states(tmp_path, "write") == ["OPEN", "CLAIMED", "IN_PROGRESS", "DONE", "CLOSED"]
    heard = StateDir(tmp_path / ".sdd").transcript("write").read_text()
    assert "command cat report.txt: passed" in heard


async def test_work_that_fails_its_tests_is_not_done(tmp_path: Path) -> None:
    """A task that fails its acceptance test fails, though its agent succeeded; tasks that depend on it are not
    started."""
    plan = plan_of(task("write", "echo all is well", file_exists="report.txt"), task("next", "true", "write"))
    result = await carried_out(plan, tmp_path)
    assert {name: one.outcome for name, one in result.tasks.items()} == {"write": "failed", "next": "blocked"}
    why = f"not accepted: file_exists report.txt: report.txt does not exist in {tmp_path}"
    assert result.tasks["write"].error == why
    assert states(tmp_path, "write") == ["OPEN", "CLAIMED", "IN_PROGRESS", "FAILED"]


async def test_an_abort_ends_the_acceptance_tests_too(tmp_path: Path) -> None:
    """An abort of a session ends the acceptance tests of the session and cancels the task."""
    held = tmp_path / "held"
    os.mkfifo(held)
    plan = plan_of(task("write", "true", command=["sh", "-c", "exec 3>held; sleep 1000 & wait"], timeout_s=1000.0))
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        async with anyio.create_task_group() as group:
            results = start_call(group, run_plan, run.sup, plan)
            async with await anyio.open_file(held, "rb") as pipe:  # opens when the test has opened the other end
                await run.sup.abort("write", AbortScope.SESSION, reason="enough")
                assert await pipe.read() == b""  # ends when nobody holds that any more
    assert (results[0].tasks["write"].outcome, results[0].tasks["write"].error) == ("aborted", "enough")
    assert states_of(run.events(), "r1#write")[-1] == "CANCELLED"


# ------------------------------------------------------------------------------------------------------ merges
async def test_each_task_works_on_a_branch_and_is_merged(repository: Path) -> None:
    """In worktrees a task sees the work of its dependencies, and in the end the repository has the work of all tasks
    and nothing else. The validation of the whole plan runs in a workspace of its own, which is removed too."""
    plan = plan_of(
        task("one", "echo one > one.txt"),
        task("two", "echo two > two.txt"),
        task("both", "cat one.txt two.txt > both.txt", "one", "two", file_exists="both.txt"),
        workspace="worktree",
    )
    plan = Plan.model_validate({**dict(plan), "validation": [{"file_exists": "both.txt"}]})
    result = await carried_out(plan, repository)
    assert result.ok
    assert (repository / "both.txt").read_text() == "one\ntwo\n"
    assert git(repository, "status", "--porcelain") == ""
    assert git(repository, "for-each-ref", "refs/heads/supervisor") == ""
    assert list((repository / ".sdd" / "worktrees").iterdir()) == []


async def test_work_in_conflict_fails_its_task_and_is_kept(repository: Path) -> None:
    """A task whose work conflicts with that of another task goes from DONE to FAILED, on record; the error names the
    branch with the work."""
    go = f"while [ ! -e {repository}/go ]; do sleep 0.01; done"
    plan = plan_of(
        task("one", f"echo one > a.txt; touch {repository}/go"),
        task("other", f"{go}; echo other > a.txt"),
        workspace="worktree",
    )
    (repository / ".git" / "info" / "exclude").write_text("go\n")
    result = await carried_out(plan, repository)
    failed = [one for one in result.tasks.values() if one.outcome == "failed"]
    assert len(failed) == 1
    lost = failed[0].id
    why = f"not merged: in conflict with supervisor/r1: a.txt; its work is on the branch supervisor/{lost}"
    assert failed[0].error == why
    assert states(repository, lost) == ["OPEN", "CLAIMED", "IN_PROGRESS", "DONE", "FAILED"]
    assert git(repository, "show", f"supervisor/{lost}:a.txt") == lost
    assert git(repository, "status", "--porcelain") == ""


async def test_the_work_of_a_failed_task_is_kept(repository: Path) -> None:
    """The work of a failed task is committed to its branch before the worktree is removed, and is not merged."""
    plan = plan_of(task("half", "echo begun > half.txt; exit 3"), workspace="worktree")
    result = await carried_out(plan, repository)
    assert result.tasks["half"].error.endswith("; its work is on the branch supervisor/half")
    assert git(repository, "show", "supervisor/half:half.txt") == "begun"
    assert not (repository / "half.txt").exists()


async def test_the_work_of_an_embedded_session_is_kept(repository: Path) -> None:
    """The work of a session without a plan is on the session's branch when the supervisor has ended."""
    plan = plan_of(task("unused", "true"), workspace="worktree")
    async with open_supervisor(
        repository / ".sdd", agents=plan.agents, settings=plan.settings, workdir=repository
    ) as sup:
        session = await sup.start_session("fix", agent="sh")
        assert (await session.run("echo mine > mine.txt")).outcome == "completed"
    assert git(repository, "show", "supervisor/fix:mine.txt") == "mine"
    assert list((repository / ".sdd" / "worktrees").iterdir()) == []


async def test_worktrees_need_a_repository_and_a_state_directory(tmp_path: Path) -> None:
    """With ``workspace: worktree`` a start outside of a git repository, or without a state directory, is refused; the
    error says what to change."""
    plan = plan_of(task("unused", "true"), workspace="worktree")
    with pytest.raises(WorkspaceError, match=r"is not in a git repository .* use workspace: directory"):
        await carried_out(plan, tmp_path)
    with pytest.raises(ValueError, match=r"settings\.workspace: 'worktree' needs a state directory"):
        async with open_supervisor(agents=plan.agents, settings=plan.settings, workdir=tmp_path):
            pass
