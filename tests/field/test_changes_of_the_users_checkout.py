"""An agent in a worktree that strays into the user's own checkout: nothing of that happens without a word."""

from __future__ import annotations

import pytest
from field_kit import Scratch


@pytest.fixture
def repository(scratch: Scratch) -> Scratch:
    """Fixture: a repository with two commits on main, a branch `other` at the first, and an uncommitted edit."""
    scratch.write("base.txt", "base\n")
    scratch.write("draft.txt", "draft\n")
    scratch.repository()
    scratch.git("branch", "other")
    scratch.write("more.txt", "more\n")
    scratch.git("add", ".")
    scratch.git("commit", "-qm", "second")
    return scratch


def after(scratch: Scratch, commands: str) -> tuple[int, list[str]]:
    """Run a plan whose agent works in its worktree, and executes *commands* in the user's checkout; return the exit
    status and the remarks of its task."""
    scratch.write("agent.sh", f"cd {scratch.path}\n{commands}\ncd - > /dev/null\necho new > new.txt\n")
    scratch.git("config", "core.excludesFile", str(scratch.write("../ignored", "agent.sh\n")))
    scratch.plan(f"""
        workspace: worktree
        agents: {{a: {{adapter: command, command: [sh, {scratch.path / "agent.sh"}]}}}}
        tasks: [{{id: t, agent: a, prompt: "", max_retries: 0}}]
    """)
    run = scratch.run("run", "plan.yaml", "--json")
    [task] = run.json()["tasks"]
    changed = [one for one in scratch.records("r1#t") if one["event"] == "ChangedOutside"]
    remarks = [one for one in task["remarks"] if one.startswith("while it worked, ")]
    assert bool(changed) == bool(remarks)
    return run.status, remarks


def test_an_agent_that_stays_in_its_worktree_leaves_no_word(repository: Scratch) -> None:
    """Work in the worktree, its merge, and edits of the user from before the run are no change."""
    repository.write("draft.txt", "edited before\n")
    assert after(repository, "git status > /dev/null") == (0, [])


def test_a_branch_that_was_reset_is_told(repository: Scratch) -> None:
    """`git reset --hard HEAD~1` in the user's checkout is told. The commit is not lost: the task's branch has it."""
    before = repository.git("rev-parse", "main")
    _, [moved] = after(repository, "git reset -q --hard HEAD~1")
    assert f"the branch main, which was at {before[:12]}, was moved to" in moved
    assert before in repository.git("rev-list", "main").split()


def test_the_only_commit_of_a_branch_that_was_reset_is_kept(repository: Scratch) -> None:
    """A branch that had a commit of its own, and was reset, is told with the reference that has the commit now."""
    repository.git("checkout", "-q", "other")
    repository.git("commit", "-q", "--allow-empty", "-m", "alone")
    alone = repository.git("rev-parse", "other")
    repository.git("checkout", "-q", "main")
    _, [moved] = after(repository, "git branch -qf other main")
    assert f"kept as refs/supervisor/rescue/{alone[:12]}" in moved
    assert repository.git("rev-parse", f"refs/supervisor/rescue/{alone[:12]}") == alone


def test_a_removed_branch_is_told(repository: Scratch) -> None:
    """A branch of the user's that the agent deletes is told; its commit is on main too, and needs no reference."""
    _, [removed] = after(repository, "git branch -qD other")
    assert "the branch other, which was at" in removed
    assert removed.endswith("was removed")


@pytest.mark.parametrize(
    ("commands", "words"),
    [
        ("echo stray >> base.txt", "files were changed: base.txt"),
        ("echo new > stray.txt", "files were changed: stray.txt"),
        ("git checkout -q -- draft.txt", "changes that were not committed are gone: draft.txt"),
        ("sleep 0.01; echo again > draft.txt", "files were changed: draft.txt"),
    ],
    ids=["edited", "new", "discarded", "edited again"],
)
def test_files_that_were_changed_are_told(repository: Scratch, commands: str, words: str) -> None:
    """Edited, new and discarded files of the user's checkout are named, also a draft that was edited before."""
    repository.write("draft.txt", "edited before the run\n")
    _, remarks = after(repository, commands)
    assert any(words in one for one in remarks), remarks


def test_commits_on_a_detached_head_are_kept(repository: Scratch) -> None:
    """An agent that detaches HEAD in the user's checkout and commits there: both are told, and the commit is kept."""
    _, [detached] = after(repository, "git checkout -q --detach; git commit -q --allow-empty -m lost")
    assert "is checked out in" in detached
    assert "where main was" in detached
    lost = detached.rpartition("refs/supervisor/rescue/")[2]
    assert repository.git("log", "-1", "--format=%s", f"refs/supervisor/rescue/{lost}") == "lost"


def test_settings_that_break_the_users_git_are_told(repository: Scratch) -> None:
    """`core.bare` makes the user's own git refuse its work: the setting is named, with where it is."""
    _, remarks = after(repository, "git config core.bare true")
    assert any("the setting core.bare = true is new" in one for one in remarks), remarks
