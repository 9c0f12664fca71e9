"""Worktrees: each session has a branch of its own, its work is merged into the target, and no commit is ever lost."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from supervisor.ports import Merge, Released, WorkspaceSpec
from supervisor.ports.workspace import WorkspaceHeld
from supervisor.processes.host import ShimHost
from supervisor.workspaces.git import GitWorkspaces
from supervisor.workspaces.git_command import Git, WorkspaceError
from supervisor.workspaces.worktree_files import branch_of

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]


def git(where: Path, *words: str) -> str:
    identity = ("-c", "user.name=someone", "-c", "user.email=someone@localhost", "-c", "commit.gpgSign=false")
    return subprocess.run(
        ["git", *identity, *words], cwd=where, check=True, capture_output=True, text=True
    ).stdout.strip()


def commit_all(where: Path, message: str) -> None:
    git(where, "add", "--all")
    git(where, "commit", "--quiet", "--message", message)


def committed_inside(where: Path) -> Path:
    """A repository inside another one, with a commit of its own."""
    where.mkdir()
    git(where, "init", "--quiet")
    git(where, "commit", "--quiet", "--allow-empty", "--message", "inside")
    return where


@pytest.fixture(scope="module")
def repository_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the repository that ``repository`` copies: one commit, its branch ``main`` checked out."""
    where = tmp_path_factory.mktemp("template")
    (where / "part").mkdir()
    (where / "a.txt").write_text("one\n")
    (where / "part" / "b.txt").write_text("two\n")
    git(where, "init", "--quiet", "--initial-branch=main")
    commit_all(where, "first")
    return where


@asynccontextmanager
async def workspaces(repository: Path, target: str = "") -> AsyncIterator[GitWorkspaces]:
    async with ShimHost() as host:
        yield GitWorkspaces(host, repository.parent / "worktrees", str(repository), target)


async def finished(spaces: GitWorkspaces, session_id: str) -> tuple[Merge, Released]:
    """Merge the work of a session and clean up its workspace."""
    return await spaces.merge(session_id, f"merge {session_id}"), await spaces.clean_up(session_id, "put away")


async def prepared(spaces: GitWorkspaces, session_id: str, directory: Path) -> Path:
    return Path(await spaces.prepare(session_id, str(directory), root_id=session_id))


async def test_each_session_works_on_a_branch_of_its_own(repository: Path) -> None:
    """A session works in the configured directory on a branch of its own; a second call returns the same directory."""
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository / "part")
        assert (place / "b.txt").read_text() == "two\n"
        assert git(place, "branch", "--show-current") == "supervisor/fix"
        (place / "b.txt").write_text("three\n")
        assert await prepared(spaces, "fix", repository / "part") == place
        assert (place / "b.txt").read_text() == "three\n"
        assert (repository / "part" / "b.txt").read_text() == "two\n"


async def test_a_new_worktree_has_not_changed_since_it_was_ready(repository: Path) -> None:
    """Changes that an agent makes at once can be told from the files of the new worktree, although files have the time
    of the kernel's last tick."""
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        ready_at = time.time()
        assert not await spaces.changed_since("fix", str(place), ready_at)
        (place / "a.txt").write_text("changed\n")
        assert await spaces.changed_since("fix", str(place), ready_at)


async def test_what_an_agent_left_uncommitted_reaches_the_target(repository: Path) -> None:
    """Changed, new and removed files are committed and merged; nothing of the worktree is left."""
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        (place / "a.txt").write_text("changed\n")
        (place / "new.txt").write_text("new\n")
        (place / "part" / "b.txt").unlink()
        merge, released = await finished(spaces, "fix")
    assert (merge.outcome, merge.commit) == ("merged", git(repository, "rev-parse", "main"))
    assert (repository / "a.txt").read_text() == "changed\n"
    assert (repository / "new.txt").exists()
    assert not (repository / "part").exists()
    assert released == Released()
    assert git(repository, "for-each-ref", "refs/heads/supervisor") == ""
    assert not place.exists()


@pytest.mark.parametrize("told", ["--assume-unchanged", "--skip-worktree", "core.ignoreStat"])
async def test_a_change_that_git_was_told_not_to_look_for_is_work(repository: Path, told: str) -> None:
    """A changed file that git was told to take for unchanged is committed: it would be lost with the worktree."""
    async with workspaces(repository) as spaces:
        if told == "core.ignoreStat":
            git(repository, "config", told, "true")
        place = await prepared(spaces, "fix", repository)
        if told.startswith("--"):
            git(place, "update-index", told, "a.txt", "part/b.txt")
        (place / "a.txt").write_text("changed\n")
        merge, _ = await finished(spaces, "fix")
    assert merge.outcome == "merged"
    assert git(repository, "show", "--format=", "--name-only", f"{merge.commit}^2") == "a.txt"


async def test_what_is_outside_of_a_sparse_checkout_is_work(repository: Path) -> None:
    """New or changed files outside of a sparse checkout are committed; files that it leaves out stay unchanged."""
    for name in ("other", "third"):
        (repository / name).mkdir()
        (repository / name / "c.txt").write_text("three\n")
    commit_all(repository, "more parts")
    git(repository, "sparse-checkout", "set", "part")
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        (place / "other").mkdir(exist_ok=True)
        (place / "other" / "c.txt").write_text("changed\n")
        (place / "other" / "new.txt").write_text("new\n")
        merge, _ = await finished(spaces, "fix")
    assert merge.outcome == "merged"
    changed = git(repository, "show", "--format=", "--name-only", f"{merge.commit}^2")
    assert changed.splitlines() == ["other/c.txt", "other/new.txt"]


async def test_a_session_that_changed_nothing_has_nothing_to_merge(repository: Path) -> None:
    """The target branch does not move if a session has changed nothing."""
    before = git(repository, "rev-parse", "main")
    async with workspaces(repository) as spaces:
        await prepared(spaces, "look", repository)
        merge, released = await finished(spaces, "look")
    assert (merge.outcome, released) == ("nothing", Released())
    assert git(repository, "rev-parse", "main") == before


async def test_a_conflict_is_refused_and_the_work_is_kept(repository: Path) -> None:
    """A conflict is refused with the files, the target is unchanged, and the branch holds the work."""
    async with workspaces(repository) as spaces:
        for name in ("one", "other"):
            place = await prepared(spaces, name, repository)
            (place / "a.txt").write_text(f"by {name}\n")
        assert (await finished(spaces, "one"))[0].outcome == "merged"
        merge, released = await finished(spaces, "other")
    assert (merge.outcome, merge.files) == ("refused", ("a.txt",))
    assert merge.why == "in conflict with main: a.txt"
    assert (repository / "a.txt").read_text() == "by one\n"
    assert git(repository, "status", "--porcelain") == ""
    assert released == Released(branch="supervisor/other")
    assert git(repository, "show", "supervisor/other:a.txt") == "by other"


async def test_files_in_conflict_are_called_what_they_are_called(repository: Path) -> None:
    """Files in conflict are named as text, not in git's octal numbers."""
    async with workspaces(repository) as spaces:
        for name in ("one", "other"):
            place = await prepared(spaces, name, repository)
            (place / "über").write_text(f"by {name}\n")
        assert (await finished(spaces, "one"))[0].outcome == "merged"
        assert (await spaces.merge("other", "merge")).files == ("über",)


async def test_local_changes_are_never_overwritten(repository: Path) -> None:
    """A merge that would change a locally changed file is refused; it succeeds once the change is gone."""
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        (place / "a.txt").write_text("fixed\n")
        (repository / "a.txt").write_text("being edited\n")
        with pytest.raises(WorkspaceHeld) as held:
            await spaces.merge("fix", "merge")
        assert "has changes of its own in the way" in str(held.value)
        assert held.value.held_by.files == ("a.txt",)
        assert (repository / "a.txt").read_text() == "being edited\n"
        git(repository, "checkout", "--quiet", "a.txt")
        assert (await spaces.merge("fix", "merge")).outcome == "merged"


@pytest.mark.parametrize("unlocks", [True, False])
async def test_an_index_that_the_user_has_locked_is_waited_for(
    repository: Path, monkeypatch: pytest.MonkeyPatch, unlocks: bool
) -> None:
    """A short lock of the user's index is waited for; a longer one holds the merge, and not as a local change."""
    monkeypatch.setattr("supervisor.workspaces.fast_forward.LOCK_TRIES", 500 if unlocks else 2)
    monkeypatch.setattr("supervisor.workspaces.fast_forward.LOCK_WAIT_S", 0.02)
    lock, waiting = repository / ".git" / "index.lock", repository.parent / "worktrees" / ".step.json"

    async def unlock() -> None:
        while not (waiting.exists() and b"Advance" in waiting.read_bytes()):  # noqa: ASYNC110
            await anyio.sleep(0.01)
        lock.unlink()

    async with workspaces(repository) as spaces, anyio.create_task_group() as group:
        place = await prepared(spaces, "fix", repository)
        (place / "a.txt").write_text("fixed\n")
        lock.touch()
        if unlocks:
            group.start_soon(unlock)
            assert (await spaces.merge("fix", "merge")).outcome == "merged"
        else:
            with pytest.raises(WorkspaceHeld) as held:
                await spaces.merge("fix", "merge")
            assert held.value.held_by.what.startswith(str(lock))


async def test_a_fast_forward_that_does_not_end_is_undone(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast-forward that does not end is undone, though git had written some files and held the lock."""
    git(repository, "config", "filter.slow.smudge", "sleep 1000")
    monkeypatch.setattr("supervisor.workspaces.fast_forward.FORWARD_S", 0.5)
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        (place / ".gitattributes").write_text("*.slow filter=slow\n")
        (place / "a.slow").write_text("new\n")
        with pytest.raises(WorkspaceHeld, match=r"it was still running after 0\.5 s"):
            await finished(spaces, "fix")
    assert git(repository, "status", "--porcelain", "--untracked-files=all") == ""
    assert not list((repository / ".git").glob("*.lock"))


async def test_a_target_that_nobody_has_checked_out(repository: Path) -> None:
    """A target that is not checked out moves, and the branch that is checked out does not."""
    git(repository, "branch", "release")
    before = git(repository, "rev-parse", "main")
    async with workspaces(repository, "release") as spaces:
        place = await prepared(spaces, "fix", repository)
        (place / "a.txt").write_text("fixed\n")
        merge, _ = await finished(spaces, "fix")
    assert merge.commit == git(repository, "rev-parse", "release")
    assert git(repository, "rev-parse", "main") == before


async def test_sessions_that_end_together_are_all_merged(repository: Path) -> None:
    """Sessions that end together are merged one at a time, each on top of the one before."""
    names = [f"session-{number}" for number in range(4)]
    merges: list[Merge] = []

    async def work(spaces: GitWorkspaces, name: str) -> None:
        place = await prepared(spaces, name, repository)
        (place / f"{name}.txt").write_text(name)
        merges.append((await finished(spaces, name))[0])

    async with workspaces(repository) as spaces, anyio.create_task_group() as group:
        for name in names:
            group.start_soon(work, spaces, name)
    assert [merge.outcome for merge in merges] == ["merged"] * len(names)
    assert all((repository / f"{name}.txt").exists() for name in names)


@pytest.mark.parametrize("target", ["main", "release"])
async def test_a_merge_that_is_cancelled_has_happened_or_has_not(
    repository: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """A merge that is cancelled while git works, into a target that is checked out or is not, either returns that it
    has merged, or has left the target and the checkout as they were."""
    git(repository, "branch", "release")
    run, cancelled_at, scope = Git.run_bounded, "", anyio.CancelScope()

    async def run_and_cancel(self: Git, where: str, *words: str, **given: Any) -> Any:
        if words[0] == cancelled_at:
            scope.cancel()
        return await run(self, where, *words, **given)

    monkeypatch.setattr(Git, "run_bounded", run_and_cancel)
    is_merged = dict[str, bool]()
    async with workspaces(repository, target) as spaces:
        place = await prepared(spaces, "fix", repository)
        for command in ("merge-tree", "commit-tree", "read-tree", "update-ref", "none"):
            (place / command).write_text("1")
            commit = await spaces.commit("fix", "work")
            cancelled_at, scope, outcome = command, anyio.CancelScope(), ""
            with scope:
                outcome = (await spaces.merge("fix", "merge", commit)).outcome
            cancelled_at = ""
            assert (outcome == "merged") is (command in git(repository, "ls-tree", "--name-only", target).split())
            assert git(repository, "status", "--porcelain") == ""
            is_merged[command] = outcome == "merged"
    assert list(is_merged.values()) == [False, False, True, True, True]


async def test_what_is_committed_elsewhere_than_on_the_branch_is_kept(repository: Path) -> None:
    """An agent that detached its HEAD or left its branch behind loses no commit of either line."""
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        (place / "on-branch.txt").write_text("1")
        commit_all(place, "on the branch")
        git(place, "checkout", "--quiet", "--detach", "main")
        (place / "detached.txt").write_text("2")
        merge, released = await finished(spaces, "fix")
    assert merge.outcome == "merged"
    assert (repository / "detached.txt").exists()
    assert git(repository, "show", "supervisor/fix:on-branch.txt") == "1"
    assert released == Released(branch="supervisor/fix")


async def test_a_repository_inside_the_worktree_is_not_removed(repository: Path) -> None:
    """A worktree with a repository inside is not removed, and is named: its commits are nowhere else."""
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        inner = committed_inside(place / "inner")
        released = await spaces.clean_up("fix", "with a repository inside")
    assert released == Released(branch="supervisor/fix", directory=str(place))
    assert git(inner, "log", "--format=%s") == "inside"


async def test_work_that_nobody_merged_is_kept_on_its_branch(repository: Path) -> None:
    """An aborted session's worktree is removed and its work committed; its name can be used again."""
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        (place / "new.txt").write_text("new")
        assert await spaces.list_sessions() == ["fix"]
        assert await spaces.clean_up("fix", "partial work") == Released(branch="supervisor/fix")
        assert await spaces.list_sessions() == []
        kept = git(repository, "rev-parse", "supervisor/fix")
        again = await prepared(spaces, "fix", repository)
    assert not (again / "new.txt").exists()
    assert git(repository, "rev-parse", f"supervisor/fix.{kept[:12]}") == kept
    assert git(repository, "log", "-1", "--format=%s", kept) == "partial work"


async def test_what_was_set_aside_before_is_so_still(repository: Path) -> None:
    """A session that begins with the same checkpoint again and again, and adds nothing, does not block itself."""
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        (place / "new.txt").write_text("new")
        commit = await spaces.save("fix", WorkspaceSpec(owner="task:fix", directory=str(repository)), "saved")
        at_it = WorkspaceSpec(owner="task:fix", directory=str(repository), starts_at=commit)
        for _ in range(3):
            await spaces.clean_up("fix", "put away")
            await spaces.begin("fix", at_it)
            assert (place / "new.txt").exists()
    assert git(repository, "branch", "--list", "--format=%(refname:short)", "supervisor/fix.*").splitlines() == [
        f"supervisor/fix.{commit[:12]}"
    ]


async def test_a_child_works_where_its_root_does(repository: Path) -> None:
    """A child works in the worktree of its root, in the directory that its own agent is configured for."""
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        child = await spaces.prepare("fix/help", str(repository / "part"), root_id="fix")
    assert Path(child) == place / "part"


async def test_an_agent_of_another_repository_is_refused(repository: Path, tmp_path: Path) -> None:
    """An agent configured for another repository is refused, since its work could not be merged."""
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "--quiet")
    async with workspaces(repository) as spaces:
        with pytest.raises(WorkspaceError, match=r"is in another repository than .*/repository; use"):
            await prepared(spaces, "fix", other)


async def test_a_worktree_that_was_not_made_to_the_end_is_made_anew(repository: Path) -> None:
    """An incomplete worktree is made anew: its missing files would otherwise be committed as removed."""
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        lock = Path(git(place, "rev-parse", "--absolute-git-dir")) / "locked"
        lock.write_text("initializing")
        (place / "a.txt").unlink()
        assert await prepared(spaces, "fix", repository) == place
        assert (place / "a.txt").exists()
        assert not lock.exists()


async def test_hooks_of_the_repository_are_not_run(repository: Path) -> None:
    """Hooks of the repository, which an agent can write, are not run."""
    for name in ("pre-commit", "post-checkout", "post-commit", "post-merge"):
        hook = repository / ".git" / "hooks" / name
        hook.write_text("#!/bin/sh\ntouch ran\nexit 1\n")
        hook.chmod(0o755)
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        (place / "a.txt").write_text("fixed\n")
        merge, _ = await finished(spaces, "fix")
    assert merge.outcome == "merged"
    assert not (repository / "ran").exists()


async def test_ignored_files_of_the_user_are_never_overwritten(repository: Path) -> None:
    """Ignored files of the user are never overwritten, although git itself would."""
    (repository / ".gitignore").write_text("secret.txt\n")
    commit_all(repository, "ignore")
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        (place / ".gitignore").unlink()
        (place / "secret.txt").write_text("of the agent\n")
        (repository / "secret.txt").write_text("of the user\n")
        with pytest.raises(WorkspaceHeld, match="has changes of its own"):
            await finished(spaces, "fix")
    assert (repository / "secret.txt").read_text() == "of the user\n"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("merge.verifySignatures", "true"),
        ("merge.ff", "false"),
        ("branch.main.mergeOptions", "--squash"),
        ("branch.main.mergeOptions", "--no-ff --no-commit --verify-signatures"),
    ],
)
async def test_what_the_user_wants_of_his_own_merges_is_not_asked_of_ours(
    repository: Path, key: str, value: str
) -> None:
    """The user's own merge settings do not apply: a fast-forward is made all the same."""
    git(repository, "config", key, value)
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        (place / "a.txt").write_text("fixed\n")
        merge, _ = await finished(spaces, "fix")
    assert merge.outcome == "merged"
    assert git(repository, "rev-parse", "HEAD") == merge.commit
    assert git(repository, "status", "--porcelain") == ""


async def test_a_history_of_its_own_is_not_merged(repository: Path) -> None:
    """Work without a common commit with the target is kept, and the error says where."""
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        git(place, "checkout", "--quiet", "--orphan", "anew")
        git(place, "commit", "--quiet", "--all", "--message", "anew")
        tip = git(place, "rev-parse", "HEAD")
        words = (
            f"the commit {tip[:12]} that it has come to has no history in common with the branch that it is for; take"
        )
        for ask in (spaces.merge, spaces.changes):
            with pytest.raises(WorkspaceError, match=words):
                await ask("fix", "merge")
        released = await spaces.clean_up("fix", "put away")
    assert released == Released(branch=f"supervisor/fix.{tip[:12]}")
    assert git(repository, "rev-parse", released.branch) == tip


async def test_an_empty_branch_without_a_commit_is_told(repository: Path) -> None:
    """A branch without a commit is reported; what was committed before stays on the session's branch."""
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        (place / "new.txt").write_text("new\n")
        commit_all(place, "new")
        git(place, "checkout", "--quiet", "--orphan", "anew")
        git(place, "rm", "-r", "--quiet", "--force", ".")
        for ask in (spaces.merge, spaces.clean_up):
            with pytest.raises(WorkspaceError, match=f"nothing is left in {place}, .*; check out supervisor/fix,"):
                await ask("fix", "merge")
    assert git(repository, "show", "supervisor/fix:new.txt") == "new"


async def test_a_target_that_is_being_rebased_is_not_moved(repository: Path) -> None:
    """A target that is being rebased is not moved, since git could not finish the rebase then."""
    for name in ("one", "two"):
        git(repository, "commit", "--quiet", "--allow-empty", "--message", name)
    async with workspaces(repository, target="main") as spaces:
        begin_rebase(repository)
        place = await prepared(spaces, "fix", repository)
        (place / "a.txt").write_text("fixed\n")
        with pytest.raises(WorkspaceHeld, match="rebase"):
            await finished(spaces, "fix")
        git(repository, "rebase", "--continue")
        assert (await spaces.merge("fix", "merge")).outcome == "merged"
    assert (repository / "a.txt").read_text() == "fixed\n"


async def test_the_branch_of_another_supervisor_is_not_ours(repository: Path, tmp_path: Path) -> None:
    """A second supervisor in the same repository gets no worktree of the first one's session."""
    async with workspaces(repository) as spaces, ShimHost() as host:
        second = GitWorkspaces(host, tmp_path / "others", str(repository))
        place = await prepared(spaces, "fix", repository)
        (place / "a.txt").write_text("fixed\n")
        with pytest.raises(
            WorkspaceError, match=f"the branch supervisor/fix is checked out in {place}; end what works"
        ):
            await prepared(second, "fix", repository)
        assert await second.clean_up("fix", "put away") == Released()
        assert (await finished(spaces, "fix"))[0].outcome == "merged"


async def test_changes_of_the_user_are_not_stashed_away(repository: Path) -> None:
    """Changes of the user are not stashed, whatever the user's merge settings say."""
    git(repository, "config", "merge.autoStash", "true")
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        (place / "a.txt").write_text("fixed\n")
        (repository / "a.txt").write_text("being edited\n")
        with pytest.raises(WorkspaceHeld, match="has changes of its own"):
            await spaces.merge("fix", "merge")
    assert (repository / "a.txt").read_text() == "being edited\n"
    assert git(repository, "stash", "list") == ""


@pytest.mark.parametrize("ignored", ["none", "all"])
async def test_a_repository_inside_is_not_merged(repository: Path, ignored: str) -> None:
    """A repository inside is refused, since only its name would be merged; no setting of an agent hides it."""
    git(repository, "config", "diff.ignoreSubmodules", ignored)
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        inner = committed_inside(place / "inner")
        merge, released = await finished(spaces, "fix")
    assert (merge.outcome, merge.files) == ("refused", ("inner",))
    assert released.directory == str(place)
    assert git(inner, "log", "--format=%s") == "inside"


async def test_a_repository_without_a_commit_is_told(repository: Path) -> None:
    """A repository without a commit, which git does not add, is left and reported with the fix."""
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        (place / "new.txt").write_text("new\n")
        (place / "inner").mkdir()
        git(place / "inner", "init", "--quiet")
        with pytest.raises(WorkspaceError) as told:
            await spaces.merge("fix", "merge")
        with pytest.raises(WorkspaceError):
            await spaces.clean_up("fix", "put away")
    assert str(told.value) == (
        f"nothing can be committed in {place}: {place}/inner/ is a repository without a commit;"
        f" remove {place}/inner/.git, or commit there"
    )
    assert (place / "new.txt").read_text() == "new\n"


async def test_what_is_changed_in_a_submodule_is_not_left_behind(repository: Path, tmp_path: Path) -> None:
    """A changed submodule refuses the merge and keeps the worktree; an unchanged one does not."""
    inner = committed_inside(tmp_path / "inner")
    git(repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "sub")
    git(repository, "commit", "--quiet", "--message", "a submodule")
    async with workspaces(repository) as spaces:
        for name, outcome in (("fix", "merged"), ("change", "refused")):
            place = await prepared(spaces, name, repository)
            git(place, "-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init")
            (place / f"{name}.txt").write_text("new\n")
            if outcome == "refused":
                (place / "sub" / "work.txt").write_text("work\n")
            merge, released = await finished(spaces, name)
            assert merge.outcome == outcome
        assert (merge.files, released.directory) == (("sub",), str(place))
        assert merge.why == "what is not committed in repositories inside it would be left behind: sub"
    assert (place / "sub" / "work.txt").read_text() == "work\n"


async def test_a_repository_inside_is_found_among_very_many_files(repository: Path) -> None:
    """A listing is read completely or refused: the name of a repository may be at its very beginning."""
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        committed_inside(place / "aa")
        for number in range(1_300):
            (place / f"one-of-very-many-files-{number:04}.txt").write_text("new\n")
        merge, released = await finished(spaces, "fix")
    assert (merge.outcome, merge.files) == ("refused", ("aa",))
    assert released == Released(branch="supervisor/fix", directory=str(place))


async def test_who_has_the_target_is_found_among_hundreds_of_worktrees(repository: Path) -> None:
    """A checkout of the target is found among hundreds of worktrees."""
    for number in range(320):
        name = f"{number:03}-{'x' * 60}"
        kept, other = repository / ".git" / "worktrees" / name, repository.parent / "others" / name
        kept.mkdir(parents=True)
        other.mkdir(parents=True)
        (other / ".git").write_text(f"gitdir: {kept}\n")
        for file, text in (("gitdir", f"{other}/.git"), ("commondir", "../.."), ("HEAD", f"ref: refs/heads/{name}")):
            (kept / file).write_text(f"{text}\n")
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        (place / "a.txt").write_text("changed\n")
        assert (await spaces.merge("fix", "merge")).outcome == "merged"
    assert (repository / "a.txt").read_text() == "changed\n"
    assert git(repository, "status", "--porcelain") == ""


async def test_names_that_are_no_text_can_be_kept(repository: Path) -> None:
    """A file name that is no text is reported in a form that can be recorded, whatever git's settings are."""
    git(repository, "config", "core.quotePath", "false")
    named = (os.fsdecode(b"not-\xff-utf8"), "two\nlines", "two\u2028lines")
    async with workspaces(repository) as spaces:
        for session in ("one", "other"):
            place = await prepared(spaces, session, repository)
            for name in named:
                (place / name).write_text(f"by {session}\n")
        changes = await spaces.changes("one", "look")
        merged, refused = await spaces.merge("one", "merge"), await spaces.merge("other", "merge")
    assert changes is not None
    assert set(changes.files) == set(refused.files) == {"not-\\xff-utf8", "two\nlines", "two\u2028lines"}
    assert (merged.outcome, refused.outcome) == ("merged", "refused")
    assert msgspec.json.decode(msgspec.json.encode(refused), type=Merge) == refused


async def test_of_many_files_in_conflict_some_are_named(repository: Path) -> None:
    """A refusal names some of many files in conflict, so that it stays readable."""
    async with workspaces(repository) as spaces:
        for session in ("one", "other"):
            place = await prepared(spaces, session, repository)
            for number in range(25):
                (place / f"{number:02}").write_text(f"by {session}\n")
        assert (await spaces.merge("one", "merge")).outcome == "merged"
        refused = await spaces.merge("other", "merge")
    assert len(refused.files) == 25
    assert refused.why.endswith("18, 19 and 5 more")


async def test_a_list_that_is_too_long_is_refused(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing that is too long refuses the operation, and everything stays where it is."""
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        (place / "new.txt").write_text("new\n")
        monkeypatch.setattr("supervisor.workspaces.git_command.LISTED_MAX", 80)
        with pytest.raises(WorkspaceError, match="it lists more than 80 bytes"):
            await spaces.clean_up("fix", "put away")
    assert (place / "new.txt").exists()


async def test_a_conflict_that_an_agent_left_is_not_merged(repository: Path) -> None:
    """Files with conflict markers are not merged."""
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        git(place, "checkout", "--quiet", "-b", "side")
        (place / "a.txt").write_text("side\n")
        git(place, "commit", "--quiet", "--all", "--message", "side")
        git(place, "checkout", "--quiet", "supervisor/fix")
        (place / "a.txt").write_text("here\n")
        git(place, "commit", "--quiet", "--all", "--message", "here")
        with pytest.raises(subprocess.CalledProcessError):
            git(place, "merge", "side")
        merge = await spaces.merge("fix", "merge")
    assert (merge.outcome, merge.files) == ("refused", ("a.txt",))
    assert (repository / "a.txt").read_text() == "one\n"


def begin_rebase(place: Path) -> None:
    git(place, "-c", "sequence.editor=sed -i 1s/pick/edit/", "rebase", "--interactive", "HEAD~2")


def begin_cherry_picks(place: Path) -> None:
    """Begin two cherry-picks: the conflict of the first is resolved, and the second never continued."""
    git(place, "checkout", "--quiet", "-b", "picked", "HEAD~3")
    (place / "1.txt").write_text("another\n")
    commit_all(place, "another")
    with pytest.raises(subprocess.CalledProcessError):
        git(place, "cherry-pick", "supervisor/fix~1", "supervisor/fix")
    git(place, "add", "--all")


def begin_bisection(place: Path) -> None:
    git(place, "bisect", "start", "HEAD", "HEAD~3")


begun = pytest.mark.parametrize(
    ("begin", "what"),
    [
        (begin_rebase, "rebase"),
        (begin_cherry_picks, r"cherry-pick (or revert)"),
        (begin_bisection, "bisection"),
    ],
)


async def three_commits(spaces: GitWorkspaces, repository: Path) -> Path:
    place = await prepared(spaces, "fix", repository)
    for number in range(3):
        (place / f"{number}.txt").write_text("new\n")
        commit_all(place, str(number))
    return place


@begun
async def test_half_of_what_an_agent_did_is_not_merged(
    repository: Path, begin: Callable[[Path], None], what: str
) -> None:
    """Work in the middle of a rebase, a cherry-pick or a bisection is not merged."""
    async with workspaces(repository) as spaces:
        place = await three_commits(spaces, repository)
        tip = git(place, "rev-parse", "HEAD")
        begin(place)
        assert await spaces.changes("fix", "saved") is None
        assert await spaces.save("fix", WorkspaceSpec(owner="task:fix", directory=str(repository)), "saved") == ""
        merge, released = await finished(spaces, "fix")
    assert (merge.outcome, merge.why) == ("refused", f"a {what} was begun there and not ended")
    assert released.branch == "supervisor/fix"
    assert git(repository, "rev-parse", "supervisor/fix") == tip


@begun
async def test_what_an_agent_began_and_did_not_end_is_taken_back(
    repository: Path, begin: Callable[[Path], None], what: str
) -> None:
    """An operation that an agent began and did not end is ended by a rollback, so that the next attempt cannot resume
    it."""
    place = WorkspaceSpec(owner="task:fix", directory=str(repository), rollback=True)
    async with workspaces(repository) as spaces:
        begin(await three_commits(spaces, repository))
        await spaces.roll_back("fix", place, "taken back")
        where = await prepared(spaces, "fix", repository)
        status = git(where, "status").splitlines()
        assert status == ["On branch supervisor/fix", "nothing to commit, working tree clean"]
        (where / "a.txt").write_text("of the next one\n")
        merge, _ = await finished(spaces, "fix")
    assert merge.outcome == "merged"
    assert git(repository, "show", "--format=", "--name-only", f"{merge.commit}^2") == "a.txt"


async def test_what_a_rebase_had_stashed_is_kept(repository: Path) -> None:
    """Changes that a rebase had stashed are kept as a stash when the worktree is removed."""
    git(repository, "config", "rebase.autoStash", "true")
    async with workspaces(repository) as spaces:
        place = await three_commits(spaces, repository)
        (place / "a.txt").write_text("stashed\n")
        begin_rebase(place)
        await spaces.clean_up("fix", "put away")
    assert not place.exists()
    assert git(repository, "show", "stash@{0}:a.txt") == "stashed"


async def test_what_an_agent_looked_at_again_is_not_all_of_its_work(repository: Path) -> None:
    """If an older commit is checked out, the merge is refused, since the branch has more work."""
    async with workspaces(repository) as spaces:
        place = await three_commits(spaces, repository)
        git(place, "checkout", "--quiet", "--detach", "HEAD~2")
        older = git(place, "rev-parse", "HEAD")
        merge, released = await finished(spaces, "fix")
    assert merge.outcome == "refused"
    assert merge.why == f"the commit {older[:12]} was left checked out there, and supervisor/fix has more"
    assert released == Released(branch="supervisor/fix")
    assert git(repository, "log", "--format=%s", "main..supervisor/fix").split() == ["2", "1", "0"]


async def test_a_worktree_that_somebody_locked_is_kept(repository: Path) -> None:
    """A worktree with a lock of a user is kept; only git's own lock of a worktree in the making marks an incomplete
    one."""
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        git(repository, "worktree", "lock", str(place))
        (place / "new.txt").write_text("new")
        assert await prepared(spaces, "fix", repository) == place
    assert (place / "new.txt").exists()


async def test_other_worktrees_of_the_repository_are_left_alone(repository: Path, tmp_path: Path) -> None:
    """Other worktrees are left alone, even with a directory that is away, or on a branch of ours."""
    git(repository, "worktree", "add", "--quiet", str(tmp_path / "away"), "-b", "theirs")
    (tmp_path / "away").rename(tmp_path / "elsewhere")
    git(repository, "worktree", "add", "--quiet", str(tmp_path / "other"), "-b", "supervisor/taken")
    async with workspaces(repository) as spaces:
        await prepared(spaces, "fix", repository)
        await finished(spaces, "fix")
        with pytest.raises(WorkspaceError, match=r"the branch supervisor/taken is checked out in .*/other; end"):
            await prepared(spaces, "taken", repository)
    (tmp_path / "elsewhere").rename(tmp_path / "away")
    assert git(tmp_path / "away", "branch", "--show-current") == "theirs"


@pytest.mark.parametrize("what", ["changes", "merge", "save", "roll_back", "clean_up"])
async def test_a_lock_that_a_killed_git_left_holds_nothing_up(repository: Path, what: str) -> None:
    """An index lock that a killed git left is removed, since nobody works in the worktree."""
    async with workspaces(repository) as spaces:
        place = await prepared(spaces, "fix", repository)
        (place / "new.txt").write_text("new")
        (Path(git(place, "rev-parse", "--absolute-git-dir")) / "index.lock").touch()
        where = [WorkspaceSpec(directory=str(place), owner="fix")] if what in ("save", "roll_back") else []
        await getattr(spaces, what)("fix", *where, "partial")
    assert "partial" in git(repository, "log", "--all", "--format=%s").splitlines()


def _nothing(link: Path) -> None:
    """Leave the link file removed."""


def _repository_of_its_own(link: Path) -> None:
    git(link.parent, "init", "--quiet")


def _the_main_one(link: Path) -> None:
    link.write_text(f"gitdir: {link.parents[2] / 'repository' / '.git'}\n")


@pytest.mark.parametrize("replace", [_nothing, Path.mkdir, os.mkfifo, _repository_of_its_own, _the_main_one])
async def test_what_an_agent_made_of_its_worktree_is_left(repository: Path, replace: Callable[[Path], None]) -> None:
    """A worktree whose link was removed or replaced is left, and the error says so: git would take the repository above
    it."""
    async with ShimHost() as host:
        spaces = GitWorkspaces(host, repository / "worktrees", str(repository))
        (repository / ".git" / "info" / "exclude").write_text("worktrees\n")
        place, where = await prepared(spaces, "fix", repository), WorkspaceSpec(owner="fix")
        (place / "new.txt").write_text("new")
        (place / ".git").unlink()
        replace(place / ".git")
        (repository / "a.txt").write_text("the user's\n")
        head = git(repository, "rev-parse", "HEAD")
        for ask in (
            lambda: spaces.merge("fix", "merge"),
            lambda: spaces.changes("fix", "review"),
            lambda: spaces.save("fix", where, "save"),
            lambda: spaces.roll_back("fix", where, "back"),
            lambda: spaces.clean_up("fix", "away"),
            lambda: prepared(spaces, "fix", repository),
        ):
            with pytest.raises(WorkspaceError, match=r"is no worktree any more: its \.git was removed or replaced"):
                await ask()
        assert await spaces.list_sessions() == ["fix"]
    assert (place / "new.txt").exists()
    assert (repository / "a.txt").read_text() == "the user's\n"
    assert git(repository, "rev-parse", "HEAD") == head


async def test_a_worktree_that_was_moved_is_told_and_can_be_repaired(repository: Path) -> None:
    """A moved worktree is reported and can be repaired."""
    project = repository.parent / "project"
    async with workspaces(repository) as spaces:
        (await prepared(spaces, "fix", repository) / "new.txt").write_text("new")
    (repository.parent / "worktrees").rename(repository / "worktrees")
    repository.rename(project)
    place = project / "worktrees" / "fix"
    async with ShimHost() as host:
        spaces = GitWorkspaces(host, project / "worktrees", str(project))
        with pytest.raises(WorkspaceError, match=f"repository was moved; .*: git worktree repair {place},"):
            await spaces.merge("fix", "merge")
        git(project, "worktree", "repair", str(place))
        assert (await finished(spaces, "fix"))[0].outcome == "merged"
    assert (project / "new.txt").exists()


async def test_what_was_set_aside_is_removed_later(repository: Path) -> None:
    """A removal that was cut short is finished by the next clean-up, and half of it is never taken for work."""
    async with workspaces(repository) as spaces:
        half = repository.parent / "worktrees" / ".gone-1" / "gone"
        half.mkdir(parents=True)
        assert await spaces.list_sessions() == []
    assert not half.parent.exists()


async def test_a_directory_that_is_no_repository_is_refused(tmp_path: Path, repository: Path) -> None:
    """A directory without a repository is an error that names it and the fix."""
    async with workspaces(repository) as spaces:
        with pytest.raises(WorkspaceError, match=r"is not in a git repository .* use workspace: directory"):
            await prepared(spaces, "fix", tmp_path)


async def test_a_repository_without_a_target_is_refused(repository: Path) -> None:
    """A repository without a target is an error with the fix: no branch checked out, or none of that name."""
    async with workspaces(repository, "nowhere") as spaces:
        with pytest.raises(WorkspaceError, match=r"the branch 'nowhere' of .* is not there, or has no commit; make it"):
            await prepared(spaces, "fix", repository)
    git(repository, "checkout", "--quiet", "--detach")
    async with workspaces(repository) as spaces:
        with pytest.raises(WorkspaceError, match=r"name one as merge_into"):
            await prepared(spaces, "fix", repository)


async def test_a_tag_may_be_called_as_the_target(repository: Path) -> None:
    """A tag with the name of the target does not count as the target."""
    git(repository, "tag", "main")
    async with workspaces(repository) as spaces:
        await spaces.check()
        assert await spaces.target() == "main"


async def test_a_branch_in_the_way_of_all_others_is_refused(repository: Path) -> None:
    """A branch with the name of the prefix is refused before any session begins, since git keeps no branch below
    another."""
    git(repository, "branch", "supervisor")
    async with workspaces(repository) as spaces:
        with pytest.raises(WorkspaceError, match=r"has a branch 'supervisor', .*; rename it"):
            await spaces.check()


@pytest.mark.parametrize(
    "session_id", ["fix", "a.b", "a..b", ".hidden", "-x", "end.", "x.lock", "a/b", "a b", "~^:?*[\\", "é", "@{"]
)
def test_every_id_has_a_branch(session_id: str) -> None:
    """Any id has a branch name that git accepts, and a directory of one name."""
    branch = branch_of(session_id)
    assert git(Path.cwd(), "check-ref-format", "--branch", branch) == branch
    assert branch.count("/") == 1


def test_no_two_ids_share_a_branch() -> None:
    """Different ids have different branches."""
    ids = ["a/b", "a%2Fb", "a..b", "a%2E%2Eb", "-x", "%2Dx", "x.lock", "x%2Elock"]
    assert len({branch_of(one) for one in ids}) == len(ids)
