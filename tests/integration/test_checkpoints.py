"""Checkpoints of task runs: saved when an attempt ends, and used or discarded by the next attempt, in a git
repository and in a plain directory."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from pydantic import ValidationError

from supervisor.cli.run_execution import check_resumable
from supervisor.control.error_messages import BadInput
from supervisor.embedding.runtime import open_supervisor
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.run_ids import name_of_task
from supervisor.lifecycles.task_run import TaskRunData
from supervisor.lifecycles.types import AbortScope, LifecycleEvent
from supervisor.plans import Plan
from supervisor.plans.lifecycle import CheckpointConfig
from supervisor.work.completion_pipeline import CompletionPipeline
from supervisor.work.plan_handle import run_plan
from supervisor.work.plan_runner import PlanRunner
from supervisor.work.results import PlanResult
from supervisor.work.workstream import WorkstreamEntity
from tests.integration.test_verification import BOUNDS
from tests.support import FIRST_LINE, git, quick_settings, start_call

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]

SEEN = "ls > seen.txt; git status --porcelain --untracked-files=no >> seen.txt"
CANCELLED = {"checkpoint": {"save_on_states": ["CANCELLED"]}}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Fixture: a directory that is no git repository, with a folder ``work`` and a file outside of that folder."""
    where = tmp_path / "plain"
    (where / "work").mkdir(parents=True)
    (where / "work" / "a.txt").write_text("first\n")
    (where / "other.txt").write_text("not its own\n")
    return where


def twice(first: str, then: str, flag: str = '"$(git rev-parse --git-common-dir)/tried"') -> str:
    """Return a shell script that does *first* when it is first run, and *then* in later runs."""
    return f"if mkdir {flag} 2>/dev/null; then {first}; else {then}; fi"


def plan_of(
    prompt: str,
    *,
    bounds: Any = BOUNDS,
    lifecycle: dict[str, Any] | None = None,
    workspace: str = "worktree",
    merge: str = "once",
    **more: Any,
) -> Plan:
    """Return a plan with the one task ``t``."""
    task = {"id": "t", "agent": "sh", "max_retries": 1, "prompt": prompt, **more}
    how = {"base_retry_delay": 0, "circuit_breaker": {"enabled": False}, **(lifecycle or {})}
    settings = {"limits": bounds.limits, "policy": bounds.policy, "workspace": workspace, "merge": merge}
    return Plan.model_validate(
        {"agents": {"sh": FIRST_LINE, "other": FIRST_LINE}, "tasks": [task], "task_lifecycle": how, **settings}
    )


def in_place(prompt: str, **more: Any) -> Plan:
    """Return a plan whose one task owns the folder ``work`` of a plain directory, with rollback switched on."""
    return plan_of(prompt, workspace="directory", files=["work"], rollback=True, **more)


async def carried_out(plan: Plan, where: Path, stop_at: Path | None = None, *, resume: bool = False) -> PlanResult:
    """Run the plan with a journal on disk, and return its result; abort the session when the agent opens the pipe
    *stop_at*."""
    async with open_supervisor(where / ".sdd", agents=plan.agents, settings=plan.settings, workdir=where) as sup:
        async with anyio.create_task_group() as group:
            results = start_call(group, run_plan, sup, plan, resume=resume)
            if stop_at is not None:
                async with await anyio.open_file(stop_at, "rb"):  # opens when the agent has opened the other end
                    await sup.abort("t", AbortScope.SESSION, reason="enough")
    return results[0]


async def given_up(plan: Plan, where: Path, when: Path) -> None:
    """Run the plan with a journal on disk; cancel the run when the agent opens the pipe *when*."""
    async with open_supervisor(where / ".sdd", agents=plan.agents, settings=plan.settings, workdir=where) as sup:
        async with anyio.create_task_group() as group:
            group.start_soon(run_plan(sup, plan).wait)
            async with await anyio.open_file(when, "rb"):  # opens when the agent has opened the other end
                group.cancel_scope.cancel()


def facts(where: Path, name: str) -> list[LifecycleEvent]:
    with JournalReader(StateDir(where / ".sdd").journal) as reader:
        return [one for one in reader.events() if one.event == name]


def saved(where: Path) -> list[LifecycleEvent]:
    """Return all records of saved checkpoints, oldest first."""
    return facts(where, "checkpoint_saved")


def runs(where: Path, task: str = "t") -> list[tuple[str, TaskRunData]]:
    """Return id and data of each task run of a task over all runs of its plan, oldest first."""
    with JournalReader(StateDir(where / ".sdd").journal) as reader:
        rows = sorted((row for row in reader.entities() if row.kind == "run"), key=lambda row: row.born_seq)
    of = [(row.id, msgspec.json.decode(row.data, type=TaskRunData)) for row in rows]
    return [(name, data) for name, data in of if name_of_task(data.task) == task]


def pipe_at(path: Path) -> Path:
    os.mkfifo(path)
    return path


# ------------------------------------------------------------------------------------------------------- saved
async def test_a_completed_run_names_its_last_commit(repository: Path) -> None:
    """The checkpoint of a completed task names the commit that was merged, and git has no extra reference to that
    commit."""
    assert (await carried_out(plan_of("echo 1 > new.txt"), repository)).ok
    (one,) = saved(repository)
    assert (one.entity_id, one.metadata["state"], one.metadata["attempt"]) == ("r1#t:run", "COMPLETED", 1)
    assert one.metadata["saved_as"] == git(repository, "rev-parse", "main^2^2")
    assert git(repository, "for-each-ref", "refs/supervisor") == ""


async def test_a_failed_run_keeps_files_and_output(repository: Path) -> None:
    """The checkpoints saved at FAILED and at CIRCUIT_OPEN name the same commit, which holds the uncommitted files; the
    agent's output is recorded."""
    plan = plan_of("echo half > half.txt; echo nearly there; exit 3", max_retries=0, lifecycle={"max_attempts": 1})
    assert not (await carried_out(plan, repository)).ok
    failed, opened = saved(repository)
    assert [one.metadata["state"] for one in (failed, opened)] == ["FAILED", "CIRCUIT_OPEN"]
    assert failed.metadata["saved_as"] == opened.metadata["saved_as"]
    (said,) = facts(repository, "PartialOutput")
    assert (said.entity_id, said.metadata["output"].strip()) == ("r1#t:run", "nearly there")
    assert git(repository, "show", f"{failed.metadata['saved_as']}:half.txt") == "half"


async def test_a_checkpoint_outlives_its_branch(repository: Path) -> None:
    """The commit of a checkpoint can still be read after its branch is deleted and git has collected garbage."""
    plan = plan_of("echo half > half.txt; exit 3", max_retries=0, lifecycle={"max_attempts": 1})
    await carried_out(plan, repository)
    git(repository, "branch", "-D", "supervisor/t")
    git(repository, "gc", "--quiet", "--prune=now")
    assert git(repository, "show", f"{saved(repository)[0].metadata['saved_as']}:half.txt") == "half"


async def test_nothing_is_saved_where_the_plan_says_so(repository: Path) -> None:
    """With checkpoints and partial output switched off nothing is saved, and the next session starts from the target
    branch."""
    off = {"max_attempts": 1, "checkpoint": {"enabled": False}, "save_partial_output": False}
    tries = twice("echo half > half.txt; echo so far; exit 3", SEEN)
    plan = plan_of(tries, lifecycle=off, fallback_agents=["other"])
    assert (await carried_out(plan, repository)).ok
    assert saved(repository) + facts(repository, "PartialOutput") == []
    assert "half.txt" not in (repository / "seen.txt").read_text()


async def test_output_before_a_timeout_is_kept(repository: Path) -> None:
    """A time-out saves no checkpoint by default, but the partial output is recorded."""
    plan = plan_of("echo so far; exec sleep 1000", timeout_s=0.5, max_retries=0, bounds=quick_settings())
    assert not (await carried_out(plan, repository)).ok
    kept, *_ = facts(repository, "PartialOutput")
    assert (kept.metadata["state"], kept.metadata["output"].strip()) == ("TIMEOUT", "so far")


async def test_partial_output_is_redacted(repository: Path) -> None:
    """An API key in an agent's partial output is redacted in the record."""
    key = f"sk-ant-api03-{'Qx7' * 20}"
    plan = plan_of(f"echo the key is {key}; exit 3", max_retries=0, lifecycle={"max_attempts": 1})
    assert not (await carried_out(plan, repository)).ok
    (said,) = facts(repository, "PartialOutput")
    assert said.metadata["output"].strip() == "the key is [redacted]"


# ------------------------------------------------------------------------------------------------- gone on with
@pytest.mark.parametrize("rollback", [False, True])
async def test_a_task_that_was_not_accepted(repository: Path, rollback: bool) -> None:
    """The session after a failed acceptance test starts from the checkpoint, on record; with rollback the session
    starts from the target branch."""
    prompt = twice("echo half > half.txt", f"{SEEN}; touch whole.txt")
    plan = plan_of(prompt, rollback=rollback, acceptance=[{"file_exists": "whole.txt"}])
    assert (await carried_out(plan, repository)).ok
    assert ("half.txt" in (repository / "seen.txt").read_text()) is not rollback
    (first, before), (_, second) = runs(repository)
    commit = saved(repository)[0].metadata["saved_as"]
    assert (before.resumed_from, before.resumed_at) == ("", "")
    assert (second.resumed_from, second.resumed_at) == (("", "") if rollback else (first, commit))
    assert git(repository, "show", f"{commit}:half.txt") == "half"


async def test_work_in_conflict_is_not_resumed(repository: Path) -> None:
    """After a merge conflict the next session starts from its own work with the conflict in it, not from the
    checkpoint, and what it makes of both is merged."""
    meanwhile = f"(cd {repository}; echo theirs > a.txt; git -c user.name=x -c user.email=x@y commit -qam theirs)"
    resolve = "grep -E 'mine|theirs' a.txt | sort > both.txt; mv both.txt a.txt"
    plan = plan_of(twice(f"echo mine > a.txt; {meanwhile}", resolve), merge="each")
    assert (await carried_out(plan, repository)).ok
    assert (repository / "a.txt").read_text() == "mine\ntheirs\n"
    assert [data.resumed_from for _, data in runs(repository)] == ["", ""]


@pytest.mark.parametrize("resume", [False, True])
async def test_a_cancelled_task_is_resumed_on_request(repository: Path, resume: bool) -> None:
    """With ``resume`` the new task run of a cancelled task names the earlier task run and starts from that run's
    checkpoint; without ``resume`` it starts from the target branch."""
    pipe = pipe_at(repository / ".git" / "pipe")
    prompt = twice(f"echo half > half.txt; echo so far; exec 3> {pipe}; exec sleep 1000", SEEN)
    plan = plan_of(prompt, lifecycle=CANCELLED)
    assert (await carried_out(plan, repository, stop_at=pipe)).tasks["t"].outcome == "aborted"
    (checkpoint,) = saved(repository)
    assert (await carried_out(plan, repository, resume=resume)).ok
    assert ("half.txt" in (repository / "seen.txt").read_text()) is resume
    (first, _), (_, second) = runs(repository)
    wanted = (first, checkpoint.metadata["saved_as"]) if resume else ("", "")
    assert (second.resumed_from, second.resumed_at) == wanted


async def test_a_resumed_run_skips_closed_tasks(repository: Path) -> None:
    """A resumed run does not run closed tasks again, and runs the tasks that depend on them."""
    pipe = pipe_at(repository / ".git" / "pipe")
    prompt = twice(f"exec 3> {pipe}; exec sleep 1000", SEEN)
    alone = plan_of(prompt, lifecycle=CANCELLED)
    before = {"id": "before", "agent": "sh", "prompt": "echo x >> before.txt"}
    after = alone.tasks[0].model_copy(update={"depends_on": ("before",)})
    plan = Plan.model_validate({**dict(alone), "tasks": [before, after]})
    assert not (await carried_out(plan, repository, stop_at=pipe)).ok
    result = await carried_out(plan, repository, resume=True)
    assert {name: one.outcome for name, one in result.tasks.items()} == {"before": "completed", "t": "completed"}
    assert (repository / "before.txt").read_text() == "x\n"
    with JournalReader(StateDir(repository / ".sdd").journal) as reader:
        streams = [json.loads(row.data) for row in reader.entities() if row.kind == "workstream"]
    assert [(one["tasks"], one["resumes"]) for one in streams] == [(2, ""), (1, "r1")]


# ------------------------------------------------------------------------------------------------ done, not merged
def of_two(*, then: str = "ls > seen.txt", merge: str = "once", **more: Any) -> Plan:
    """Return a plan with a task ``first``, and a task ``t`` that depends on it."""
    alone = plan_of(then, lifecycle=CANCELLED, merge=merge)
    first = {"id": "first", "agent": "sh", "prompt": "echo x >> mine.txt; echo tried >> ../../tries", **more}
    after = alone.tasks[0].model_copy(update={"depends_on": ("first",)})
    return Plan.model_validate({**dict(alone), "tasks": [first, after]})


class Broken(Exception):
    """Exception that a test raises inside the supervisor."""


async def given_up_as_it_merges(plan: Plan, where: Path, monkeypatch: pytest.MonkeyPatch, step: str = "merge") -> None:
    """Run the plan with a journal on disk until the completion of its first task fails at *step*, with the work done
    and not merged."""

    async def breaks(*_: object) -> None:
        raise Broken

    with monkeypatch.context() as patched:
        patched.setattr(CompletionPipeline, step, breaks)
        async with open_supervisor(where / ".sdd", agents=plan.agents, settings=plan.settings, workdir=where) as sup:
            with pytest.raises(Broken):
                await run_plan(sup, plan)
    assert not (where / "mine.txt").exists()
    assert git(where, "show", "supervisor/first:mine.txt") == "x"


def streams(where: Path) -> list[tuple[str, int]]:
    """Return state and number of tasks of each workstream, oldest first."""
    with JournalReader(StateDir(where / ".sdd").journal) as reader:
        rows = [row for row in reader.entities() if row.kind == "workstream"]
    return [(row.state, json.loads(row.data)["tasks"]) for row in rows]


async def test_resume_merges_finished_work(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run merges the work of a task that was done and not merged before the task's dependents begin, and does
    not do the work again."""
    plan = of_two()
    await given_up_as_it_merges(plan, repository, monkeypatch)
    result = await carried_out(plan, repository, resume=True)
    assert {name: one.outcome for name, one in result.tasks.items()} == {"first": "completed", "t": "completed"}
    assert "mine.txt" in (repository / "seen.txt").read_text()
    assert (repository / "mine.txt").read_text() == "x\n"
    assert (repository / ".sdd" / "tries").read_text() == "tried\n"
    assert git(repository, "branch", "--format=%(refname:short)") == "main"
    assert [one.metadata for one in facts(repository, "Merged")] == [{"task": "r1#first", "session": "first"}]
    assert streams(repository) == [("cancelled", 2), ("completed", 2)]
    with pytest.raises(BadInput, match="nothing of this plan was cancelled"):
        check_resumable(plan, StateDir(repository / ".sdd"))


async def test_finished_work_in_conflict_is_done_again(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished work that conflicts at the resume is not merged but stays on its branch; the task starts again from the
    target branch."""
    plan = of_two(then="cat mine.txt > seen.txt", merge="each")
    await given_up_as_it_merges(plan, repository, monkeypatch)
    (repository / "mine.txt").write_text("theirs\n")
    git(repository, "add", "mine.txt")
    git(repository, "commit", "-qm", "theirs")
    assert (await carried_out(plan, repository, resume=True)).ok
    assert (repository / "seen.txt").read_text() == "theirs\nx\n"
    assert git(repository, "show", "supervisor/first:mine.txt") == "x"
    (refused,) = facts(repository, "MergeRefused")
    assert "in conflict with main: mine.txt" in refused.reason
    assert [data.resumed_from for _, data in runs(repository, "first")] == ["", ""]


async def test_a_run_that_only_merges_is_validated(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run in which only a merge is left to do merges the work, and validates the whole plan."""
    both = of_two()
    plan = Plan.model_validate({**dict(both), "tasks": both.tasks[:1], "validation": [{"file_exists": "mine.txt"}]})
    await given_up_as_it_merges(plan, repository, monkeypatch)
    check_resumable(plan, StateDir(repository / ".sdd"))
    assert (await carried_out(plan, repository, resume=True)).ok
    assert (repository / "mine.txt").read_text() == "x\n"
    assert streams(repository) == [("cancelled", 1), ("completed", 1)]


async def test_recovery_merges_finished_work(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash the next supervisor merges finished work without ``resume``."""

    async def lost(*_: object) -> None:
        """Replacement for the cancel of a workstream that records nothing, as if the supervisor was killed."""

    plan = of_two(merge="each")
    with monkeypatch.context() as patched:
        patched.setattr(WorkstreamEntity, "cancel", lost)
        await given_up_as_it_merges(plan, repository, monkeypatch)
    result = await carried_out(plan, repository)
    assert {name: one.outcome for name, one in result.tasks.items()} == {"first": "completed", "t": "cancelled"}
    assert (repository / "mine.txt").read_text() == "x\n"
    assert (repository / ".sdd" / "tries").read_text() == "tried\n"


async def test_unapproved_work_is_not_merged(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that waited for its approval when its run was given up is not merged by a resumed run."""
    plan = of_two(approval="after")
    await given_up_as_it_merges(plan, repository, monkeypatch, "put_away")
    async with open_supervisor(
        repository / ".sdd", agents=plan.agents, settings=plan.settings, workdir=repository
    ) as sup:
        runner = PlanRunner(sup.core)
        async with anyio.create_task_group() as group:
            group.start_soon(partial(runner.run, plan, resume=True))
            await runner.begun.wait()
            assert not (repository / "mine.txt").exists()
            group.cancel_scope.cancel()
    assert facts(repository, "Merged") == facts(repository, "MergeRefused") == []


# ------------------------------------------------------------------------------------------------ another attempt
@pytest.mark.parametrize("rollback", [False, True])
async def test_a_second_attempt_in_the_same_session(repository: Path, rollback: bool) -> None:
    """A second attempt in the same session finds the work of the first attempt; with rollback the work is undone, and
    its commits are saved as a checkpoint."""
    commit = "git -c user.name=x -c user.email=x@y commit -qm mine"
    first = f"echo half > half.txt; git add half.txt; {commit}; echo changed > a.txt; exit 75"
    plan = plan_of(twice(first, SEEN), bounds=quick_settings(), rollback=rollback)
    assert (await carried_out(plan, repository)).ok
    assert len(runs(repository)) == 1
    assert ("half.txt" in (repository / "seen.txt").read_text()) is not rollback
    assert (repository / "a.txt").read_text() == ("first\n" if rollback else "changed\n")
    if rollback:
        (taken,) = facts(repository, "RolledBack")
        held = taken.metadata["saved_as"]
        kept = git(repository, "log", "--format=%s", f"main..{held}").splitlines()
        assert kept == ["Uncommitted changes of task t", "mine"]
        assert git(repository, "for-each-ref", "--format=%(objectname)", "refs/supervisor").splitlines() == [held]


# ------------------------------------------------------------------------------------------------ a plain directory
async def test_a_failed_attempt_is_rolled_back_in_a_directory(directory: Path) -> None:
    """In a plain directory the next attempt finds the owned files as before the failed attempt; a copy of the failed
    work is kept until the task is closed."""
    first = "echo changed > work/a.txt; echo x > work/new.txt; echo y > mine.txt; exit 75"
    plan = in_place(
        twice(first, "ls work > seen.txt; cat work/a.txt >> seen.txt; ls .sdd/checkpoints >> copies.txt", "tried"),
        fallback_agents=["other"],
    )
    assert (await carried_out(plan, directory)).ok
    assert (directory / "seen.txt").read_text() == "a.txt\nfirst\n"
    assert (directory / "mine.txt").read_text() == "y\n"
    (taken,) = facts(directory, "RolledBack")
    assert taken.metadata["saved_as"] in (directory / "copies.txt").read_text()
    assert list((directory / ".sdd" / "checkpoints").iterdir()) == []


async def test_a_failed_task_is_rolled_back_in_a_directory(directory: Path) -> None:
    """The rollback of a failed task restores its owned files and saves a copy of the work; changes to other
    files stay."""
    plan = in_place(
        "rm -r work; echo gone > work; echo z > other.txt; exit 3", max_retries=0, lifecycle={"max_attempts": 1}
    )
    assert not (await carried_out(plan, directory)).ok
    assert (directory / "work" / "a.txt").read_text() == "first\n"
    assert (directory / "other.txt").read_text() == "z\n"
    copy = directory / ".sdd" / "checkpoints" / saved(directory)[0].metadata["saved_as"]
    assert (copy / "files" / "work").read_text() == "gone\n"


async def test_a_cancelled_task_is_resumed_in_a_directory(directory: Path) -> None:
    """A cancelled task in a plain directory is rolled back, and the task run that resumes it starts from the
    checkpoint."""
    pipe = pipe_at(directory / "pipe")
    prompt = twice(f"echo half > work/half.txt; exec 3> {pipe}; exec sleep 1000", "ls work > seen.txt", "tried")
    plan = in_place(prompt, lifecycle=CANCELLED)
    await carried_out(plan, directory, stop_at=pipe)
    assert sorted(one.name for one in (directory / "work").iterdir()) == ["a.txt"]
    assert (await carried_out(plan, directory, resume=True)).ok
    assert (directory / "seen.txt").read_text() == "a.txt\nhalf.txt\n"
    (first, _), (_, second) = runs(directory)
    assert (second.resumed_from, second.resumed_at) == (first, saved(directory)[0].metadata["saved_as"])


async def test_a_cancelled_plan_is_rolled_back_in_a_directory(directory: Path) -> None:
    """A task of a cancelled plan in a plain directory is rolled back, and the task run that resumes it starts from the
    checkpoint."""
    pipe = pipe_at(directory / "pipe")
    prompt = twice(f"echo half > work/half.txt; exec 3> {pipe}; exec sleep 1000", "ls work > seen.txt", "tried")
    plan = in_place(prompt, lifecycle=CANCELLED)
    await given_up(plan, directory, pipe)
    assert sorted(one.name for one in (directory / "work").iterdir()) == ["a.txt"]
    assert (await carried_out(plan, directory, resume=True)).ok
    assert (directory / "seen.txt").read_text() == "a.txt\nhalf.txt\n"


async def test_a_cancelled_plan_has_a_checkpoint(repository: Path) -> None:
    """After a plan was cancelled, a resumed run starts from the work that was in the task's worktree."""
    pipe = pipe_at(repository / ".git" / "pipe")
    plan = plan_of(twice(f"echo half > half.txt; exec 3> {pipe}; exec sleep 1000", SEEN), lifecycle=CANCELLED)
    await given_up(plan, repository, pipe)
    assert (await carried_out(plan, repository, resume=True)).ok
    assert "half.txt" in (repository / "seen.txt").read_text()


async def test_a_repository_in_a_directory_keeps_its_commits(repository: Path) -> None:
    """The rollback of a task that owns a whole git checkout without a worktree restores the files; commits of the task
    stay."""
    commit = "git -c user.name=x -c user.email=x@y commit -qam mine"
    plan = plan_of(
        f"echo changed > a.txt; {commit}; exit 3",
        workspace="directory",
        files=["."],
        rollback=True,
        max_retries=0,
        lifecycle={"max_attempts": 1},
    )
    assert not (await carried_out(plan, repository)).ok
    assert (repository / "a.txt").read_text() == "first\n"
    assert git(repository, "log", "--format=%s").splitlines() == ["mine", "first"]


async def test_work_without_rollback_is_resumed_in_place(directory: Path) -> None:
    """A cancelled task without rollback is resumed on the files that the cancelled task run left in the directory; the
    new task run names the cancelled one."""
    pipe = pipe_at(directory / "pipe")
    prompt = twice(f"echo half > half.txt; exec 3> {pipe}; exec sleep 1000", "ls > seen.txt", "tried")
    plan = plan_of(prompt, lifecycle=CANCELLED, workspace="directory")
    await carried_out(plan, directory, stop_at=pipe)
    assert (await carried_out(plan, directory, resume=True)).ok
    assert "half.txt" in (directory / "seen.txt").read_text()
    (first, _), (_, second) = runs(directory)
    assert (second.resumed_from, second.resumed_at) == (first, "")


# ------------------------------------------------------------------------------------------------------ cancelled
@pytest.mark.parametrize("cleanup", [False, True])
async def test_the_worktree_of_a_cancelled_task(repository: Path, cleanup: bool) -> None:
    """The worktree of a cancelled task is removed with ``cleanup_on_cancel``; without it the worktree stays, also at
    the next start, and a record says so."""
    pipe = pipe_at(repository / ".git" / "pipe")
    prompt = twice(f"echo half > half.txt; exec 3> {pipe}; exec sleep 1000", "true")
    plan = plan_of(prompt, lifecycle={"cleanup_on_cancel": cleanup})
    await carried_out(plan, repository, stop_at=pipe)
    await carried_out(plan, repository)
    places = repository / ".sdd" / "worktrees"
    assert (places / "t").exists() is not cleanup
    assert not (places / "t-2").exists()
    assert len(facts(repository, "PlaceKept")) == (0 if cleanup else 1)
    assert "supervisor/t" in git(repository, "branch", "--format=%(refname:short)")
    if not cleanup:
        assert git(places / "t", "status", "--porcelain") == "?? half.txt"


def test_a_state_that_saves_nothing_is_refused() -> None:
    """``save_on_states`` with a state in which no attempt ends is refused; the error lists the allowed states."""
    with pytest.raises(ValidationError, match="no attempt ends in RETRYING; use COMPLETED, FAILED, TIMEOUT"):
        CheckpointConfig.model_validate({"save_on_states": ["RETRYING"]})
