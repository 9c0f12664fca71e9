"""Steps of the supervisor in the user's git repository: after a kill or a full disk no step is half done, and no work
of the user is lost."""

from __future__ import annotations

import errno
import math
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import anyio
import pytest
from field_kit import Scratch, until

from supervisor.ports import Launch, OnExiting, Process, ProcessHost
from supervisor.processes.host import ShimHost
from supervisor.workspaces.fast_forward import FastForward
from supervisor.workspaces.git import GitWorkspaces
from supervisor.workspaces.git_command import Git
from supervisor.workspaces.stale_locks import remove_stale_locks
from supervisor.workspaces.steps import Advance, MakeWorktree, RemoveWorktree, RollBack, Step, StepFile
from tests.crash.git_steps import killed_at

pytestmark = pytest.mark.one_backend


# ------------------------------------------------------------------------------------------ real kills
def test_a_kill_at_a_git_command_leaves_nothing(tmp_path: Path) -> None:
    """After a kill at ``git merge --ff-only``, the next run merges each task once, no agent works again, and no branch,
    reference, lock or folder is left over.

    ``make crash`` kills at other git commands, too.
    """
    killed, wrong = killed_at(tmp_path, "merge --ff-only", "within")
    assert killed.startswith("merge --ff-only")
    assert wrong == []


def test_a_kill_while_files_are_written_to_the_checkout(scratch: Scratch) -> None:
    """After a kill while a merge writes files to the checkout, the next run removes git's lock and the partial files,
    and merges without another launch of the agent."""
    scratch.plan("""
        workspace: worktree
        agents:
          a:
            adapter: command
            command: [bash, -c, 'echo x >> ../../../launches; mkdir m; for i in $(seq 4000); do echo $i > m/f$i; done']
        tasks: [{id: t, agent: a, prompt: ""}]
    """)
    scratch.write(".gitignore", "/.sdd/\n/plan.yaml\n/launches\n")
    scratch.git("init", "-q", "-b", "main")
    scratch.git("add", ".")
    scratch.git("commit", "-qm", "base")
    run, folder = scratch.start("run", "plan.yaml"), scratch.path / "m"
    until(lambda: run.ended or (folder.is_dir() and len(os.listdir(folder)) >= 200))
    run.kill()
    assert scratch.run("run", "plan.yaml").status == 0
    assert len(scratch.git("ls-tree", "--name-only", "main", "m/").splitlines()) == 4000
    assert scratch.git("status", "--porcelain", "-uall") == ""
    assert not list((scratch.path / ".git").glob("*.lock"))
    assert (scratch.path / "launches").read_text() == "x\n"


# ------------------------------------------------------------------------------------------ one step, interrupted
def git(where: Path, *words: str) -> str:
    identity = ("-c", "user.name=someone", "-c", "user.email=someone@localhost")
    done = subprocess.run(["git", *identity, *words], cwd=where, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Fixture: a repository whose branch ``work`` is checked out; compared with ``main``, that branch changes files in
    every way."""
    where = tmp_path / "repository"
    where.mkdir()
    git(where, "init", "--quiet", "--initial-branch=main")
    (where / "folder").mkdir()
    for name in ("changed", "gone", "mode", "folder/inside", "file", "kept"):
        (where / name).write_text(f"{name} as it was\n")
    (where / "link").symlink_to("kept")
    (where / ".gitattributes").write_text("*.crlf text eol=crlf\n")
    git(where, "add", "--all")
    git(where, "commit", "--quiet", "--message", "base")
    git(where, "checkout", "--quiet", "-b", "work")
    (where / "new" / "deep").mkdir(parents=True)
    for name in ("changed", "new/one", "new/deep/two", "big"):
        (where / name).write_text(f"{name} by the agent\n" * 5000)
    (where / "lines.crlf").write_bytes(b"a line\r\n" * 1000)
    (where / "gone").unlink()
    (where / "mode").chmod(0o755)
    (where / "link").unlink()
    (where / "link").symlink_to("changed")
    shutil.rmtree(where / "folder")
    (where / "folder").write_text("a file\n")
    (where / "file").unlink()
    (where / "file").mkdir()
    (where / "file" / "inside").write_text("a folder\n")
    git(where, "add", "--all")
    git(where, "commit", "--quiet", "--message", "work")
    return where


@asynccontextmanager
async def workspaces(repository: Path) -> AsyncIterator[GitWorkspaces]:
    async with ShimHost() as host:
        yield GitWorkspaces(host, repository.parent / "worktrees", str(repository), "main")


def record(repository: Path, step: Step) -> None:
    """Write *step* to the record of the step in progress, as a killed supervisor leaves it."""
    StepFile(repository.parent / "worktrees" / ".step.json").begin(step)


def interrupted_merge(repository: Path) -> None:
    """Set up an interrupted merge: all files are written, two of them by half; the index and the branch have
    not moved."""
    after = git(repository, "rev-parse", "work")
    git(repository, "symbolic-ref", "HEAD", "refs/heads/main")
    git(repository, "read-tree", "main")
    for name in ("big", "lines.crlf"):
        (repository / name).write_bytes((repository / name).read_bytes()[:3001])
    (repository / ".git" / "index.lock").write_text("supervisor 1234\n")
    before = git(repository, "rev-parse", "main")
    git_dir = str(repository / ".git")
    step = Advance(str(repository), git_dir, "main", before, after, "supervisor 1234\n", begun=True)
    record(repository, step)


def merged_with_old_index(repository: Path) -> Path:
    """Set up an interrupted merge whose branch has moved, but not its index, and whose lock the user has removed.
    Return the git directory."""
    after, before = git(repository, "rev-parse", "work"), git(repository, "rev-parse", "main")
    git(repository, "read-tree", "main")
    git(repository, "update-ref", "refs/heads/main", after)
    git(repository, "symbolic-ref", "HEAD", "refs/heads/main")
    git_dir = repository / ".git"
    record(repository, Advance(str(repository), str(git_dir), "main", before, after, "supervisor 1234\n", begun=True))
    return git_dir


@pytest.mark.anyio
async def test_half_of_a_merge_is_put_back(repository: Path) -> None:
    """The recovery from an interrupted merge restores added, changed, removed and replaced files, links and modes, and
    removes the lock."""
    interrupted_merge(repository)
    assert git(repository, "status", "--porcelain") != ""
    async with workspaces(repository) as spaces:
        await spaces.check()
    assert git(repository, "status", "--porcelain", "--untracked-files=all", "--ignored") == ""
    assert not (repository / "new").exists()
    assert not (repository / ".git" / "index.lock").exists()
    assert not (repository.parent / "worktrees" / ".step.json").exists()


@pytest.mark.anyio
async def test_what_the_user_wrote_meanwhile_is_left(repository: Path) -> None:
    """The recovery from an interrupted merge restores only files with content of one side of the merge; a file with
    other content is the user's and stays."""
    interrupted_merge(repository)
    (repository / "changed").write_text("by the user\n")
    (repository / "new" / "one").write_text("by the user\n")
    async with workspaces(repository) as spaces:
        await spaces.check()
    assert (repository / "changed").read_text() == (repository / "new" / "one").read_text() == "by the user\n"
    status = git(repository, "status", "--porcelain", "--untracked-files=all").split()
    assert status == ["M", "changed", "??", "new/one"]


@pytest.mark.anyio
async def test_a_merge_whose_branch_has_moved_is_finished(repository: Path) -> None:
    """The recovery from a merge whose branch has moved, and whose files are all written, completes the merge: the copy
    of the index becomes the index."""
    after, git_dir = git(repository, "rev-parse", "work"), repository / ".git"
    shutil.copy(git_dir / "index", git_dir / "supervisor-index-1234")
    before = git(repository, "rev-parse", "main")
    git(repository, "read-tree", "main")
    git(repository, "update-ref", "refs/heads/main", after)
    git(repository, "symbolic-ref", "HEAD", "refs/heads/main")
    (git_dir / "index.lock").write_text("supervisor 1234\n")
    record(repository, Advance(str(repository), str(git_dir), "main", before, after, "supervisor 1234\n", begun=True))
    async with workspaces(repository) as spaces:
        await spaces.check()
    assert git(repository, "status", "--porcelain") == ""
    assert not (git_dir / "index.lock").exists()


@pytest.mark.anyio
async def test_a_user_who_removes_the_lock_keeps_the_merge(repository: Path) -> None:
    """After the user has removed the lock of a merge whose branch has moved, the recovery updates the index, and a file
    that the user has staged stays staged."""
    merged_with_old_index(repository)
    (repository / "kept").write_text("by the user\n")
    git(repository, "add", "kept")
    async with workspaces(repository) as spaces:
        await spaces.check()
    assert git(repository, "status", "--porcelain") == "M  kept"


class Killed(BaseException):
    """Exception that stands for a kill: the supervisor ends at once, without any clean-up."""


@pytest.mark.anyio
@pytest.mark.parametrize("copied", [40, None], ids=["40-bytes", "all-bytes"])
async def test_a_second_kill_while_the_index_is_copied(
    repository: Path, monkeypatch: pytest.MonkeyPatch, copied: int | None
) -> None:
    """After a second kill while the index is copied, the next recovery completes the merge, and does not use the copy,
    which is cut off or lacks the merge."""

    def cut_off(source: Path, copy: Path) -> None:
        copy.write_bytes(source.read_bytes()[:copied])
        raise Killed

    git_dir = merged_with_old_index(repository)
    async with workspaces(repository) as spaces:
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr("supervisor.workspaces.fast_forward.shutil.copy2", cut_off)
            await spaces.check()
        assert (git_dir / "index.lock").exists()
        await spaces.check()
    assert git(repository, "status", "--porcelain") == ""
    assert not [*git_dir.glob("*.lock"), *git_dir.glob("supervisor-*")]


@pytest.mark.anyio
async def test_a_second_kill_before_the_index_is_copied(repository: Path) -> None:
    """After a second kill between the lock and the copy of the index, the next recovery updates the index to the
    branch."""
    git_dir = merged_with_old_index(repository)
    (git_dir / "index.lock").write_text("supervisor 1234\n")
    async with workspaces(repository) as spaces:
        await spaces.check()
    assert git(repository, "status", "--porcelain") == ""


@pytest.mark.anyio
async def test_a_kill_after_the_index_was_replaced(repository: Path) -> None:
    """An index that already contains the merge is not changed by the recovery."""
    git_dir = merged_with_old_index(repository)
    git(repository, "read-tree", "work")
    git(repository, "update-index", "-q", "--refresh")
    (git_dir / "index.lock").write_text("supervisor 1234\n")
    entries = git(repository, "ls-files", "--stage", "--debug")
    async with workspaces(repository) as spaces:
        await spaces.check()
    assert git(repository, "ls-files", "--stage", "--debug") == entries
    assert not [*git_dir.glob("*.lock"), *git_dir.glob("supervisor-*")]


@pytest.mark.anyio
@pytest.mark.parametrize("question", ["merge-base", "rev-parse --verify"])
@pytest.mark.parametrize("instead", ["exec sleep 1000", "kill -KILL $$", "exit 128"])
async def test_a_git_that_does_not_answer_decides_nothing(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str, instead: str
) -> None:
    """When a git command of the recovery times out, is killed or fails, the recovery raises an error and changes
    nothing; the next recovery, with a working git, completes the merge."""
    real, folder = shutil.which("git"), tmp_path / "bin"
    folder.mkdir()
    (folder / "git").write_text(f"""#!/bin/sh
        case " $* " in *" {question} "*) {instead} ;; esac
        exec {real} "$@"
    """)
    (folder / "git").chmod(0o755)
    git_dir = merged_with_old_index(repository)
    step = StepFile(repository.parent / "worktrees" / ".step.json").read()
    assert step is not None
    assert isinstance(step.step, Advance)
    async with ShimHost() as host:
        forward = FastForward(Git(host, str(repository)), StepFile(tmp_path / "step"))
        with monkeypatch.context() as patch, pytest.raises(OSError, match=r"git (merge-base|rev-parse) failed in"):
            patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
            patch.setattr("supervisor.workspaces.git_command.GIT_S", 0.5)
            await forward.recover(step.step)
        assert (git_dir / "index.lock").exists()
        await forward.recover(step.step)
    assert git(repository, "status", "--porcelain") == ""


@pytest.mark.anyio
async def test_an_index_of_another_branch_does_not_get_the_merge(repository: Path) -> None:
    """When the user has removed the lock and has switched to another branch, the recovery does not put the merge into
    the index."""
    merged_with_old_index(repository)
    git(repository, "reset", "--quiet", "--hard")
    git(repository, "switch", "--quiet", "-c", "other", "main~")
    async with workspaces(repository) as spaces:
        await spaces.check()
    assert git(repository, "status", "--porcelain") == ""


class DeadlineHost:
    """Process host that starts programs by another host, and collects the deadlines under which its callers start
    programs."""

    def __init__(self, host: ProcessHost) -> None:
        self._host = host
        self.deadlines: list[float] = []

    @asynccontextmanager
    async def spawn(
        self, launch: Launch, *, terminate_s: float = 2.0, kill_s: float = 1.0, on_exiting: OnExiting | None = None
    ) -> AsyncIterator[Process]:
        self.deadlines.append(anyio.current_effective_deadline())
        async with self._host.spawn(launch, terminate_s=terminate_s, kill_s=kill_s, on_exiting=on_exiting) as process:
            yield process


@pytest.mark.anyio
async def test_a_wait_for_file_descriptors_is_no_part_of_the_time_for_reading(repository: Path) -> None:
    """The start of git, which may wait for file descriptors, is under no deadline when a file is compared with
    a blob."""
    async with ShimHost() as host:
        recorded = DeadlineHost(host)
        blob = git(repository, "rev-parse", "work:changed")
        assert await Git(recorded, str(repository)).begins_like(str(repository), "changed", blob)
    assert recorded.deadlines == [math.inf]


@pytest.mark.anyio
async def test_a_checkout_that_the_user_removed_is_no_hindrance(repository: Path, tmp_path: Path) -> None:
    """After a merge was interrupted in a checkout that the user has removed since, the next start drops the step and
    goes on."""
    second = tmp_path / "second"
    before, after = git(repository, "rev-parse", "main"), git(repository, "rev-parse", "work")
    git(repository, "worktree", "add", "--quiet", str(second), "main")
    git_dir = git(second, "rev-parse", "--absolute-git-dir")
    record(repository, Advance(str(second), git_dir, "main", before, after, "supervisor 1234\n", begun=True))
    shutil.rmtree(second)
    async with workspaces(repository) as spaces:
        await spaces.check()
    assert not (repository.parent / "worktrees" / ".step.json").exists()


@pytest.mark.anyio
async def test_a_link_that_becomes_a_folder_is_merged(repository: Path) -> None:
    """A merge that replaces a link to a folder by a folder is carried out; the files seen through the link do not count
    as changes of the user."""
    git(repository, "checkout", "--quiet", "main")
    (repository / "way").symlink_to("folder")
    git(repository, "add", "way")
    git(repository, "commit", "--quiet", "--message", "a link")
    async with workspaces(repository) as spaces:
        place = Path(await spaces.prepare("t", str(repository), root_id="t"))
        (place / "way").unlink()
        (place / "way").mkdir()
        (place / "way" / "inside").write_text("a folder\n")
        merged = await spaces.merge("t", "merge")
    assert merged.outcome == "merged", merged.why
    assert (repository / "way" / "inside").read_text() == "a folder\n"
    assert git(repository, "status", "--porcelain") == ""


@pytest.mark.anyio
async def test_a_file_committed_with_other_line_ends_is_merged(repository: Path) -> None:
    """A merge of a file that was committed with the line ends of Windows, which git would now convert, is carried out;
    the difference does not count as a change of the user."""
    git(repository, "checkout", "--quiet", "main")
    (repository / "old.txt").write_bytes(b"a line\r\n")
    git(repository, "add", "old.txt")
    (repository / ".gitattributes").write_text("* text=auto\n")
    git(repository, "add", ".gitattributes")
    git(repository, "commit", "--quiet", "--message", "old line ends")
    async with workspaces(repository) as spaces:
        place = Path(await spaces.prepare("t", str(repository), root_id="t"))
        (place / "old.txt").write_bytes(b"another line\r\n")
        merged = await spaces.merge("t", "merge")
    assert merged.outcome == "merged", merged.why
    assert (repository / "old.txt").read_bytes() == b"another line\r\n"


@pytest.mark.anyio
async def test_a_lock_of_another_git_is_left(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the index is locked by another git, the recovery leaves the lock and raises an error that says so; it
    succeeds once the lock is gone."""
    monkeypatch.setattr("supervisor.workspaces.fast_forward.LOCK_TRIES", 1)
    interrupted_merge(repository)
    lock = repository / ".git" / "index.lock"
    lock.write_text("")
    async with workspaces(repository) as spaces:
        with pytest.raises(OSError, match="another git is at work there"):
            await spaces.check()
        assert lock.exists()
        lock.unlink()
        await spaces.check()
    assert git(repository, "status", "--porcelain") == ""


@pytest.mark.anyio
async def test_a_disk_that_fills_up_within_a_merge_leaves_nothing(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the disk fills up during a merge, the files already written are removed, the merge is refused, and the next
    merge succeeds."""
    real, folder = shutil.which("git"), tmp_path / "bin"
    folder.mkdir()
    (folder / "git").write_text(f"""#!/bin/sh
        case " $* " in *" merge --ff-only "*) trap '' XFSZ; ulimit -f 8 ;; esac
        exec {real} "$@"
    """)
    (folder / "git").chmod(0o755)
    git(repository, "checkout", "--quiet", "main")
    async with workspaces(repository) as spaces:
        place = Path(await spaces.prepare("t", str(repository), root_id="t"))
        for name in ("a", "b", "kept"):
            (place / name).write_text("small\n")
        (place / "large").write_text("x" * 100_000)
        with monkeypatch.context() as patch:
            patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
            refused = await spaces.merge("t", "merge")
        assert refused.outcome == "refused"
        assert "which is as it was before" in refused.why
        assert git(repository, "status", "--porcelain", "--untracked-files=all") == ""
        assert not list((repository / ".git").glob("*.lock"))
        assert (await spaces.merge("t", "merge")).outcome == "merged"
    assert git(repository, "status", "--porcelain") == ""


@pytest.mark.anyio
async def test_a_copy_of_the_index_that_lacks_a_file_descriptor_is_no_refusal(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the copy of the index fails for lack of file descriptors, the merge raises that error instead of a refusal,
    nothing is left of the merge, and the next merge succeeds."""

    def lack(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    git(repository, "checkout", "--quiet", "main")
    async with workspaces(repository) as spaces:
        place = Path(await spaces.prepare("t", str(repository), root_id="t"))
        (place / "kept").write_text("changed\n")
        with monkeypatch.context() as patch, pytest.raises(OSError, match="Too many open files") as raised:
            patch.setattr("supervisor.workspaces.fast_forward.shutil.copy2", lack)
            await spaces.merge("t", "merge")
        assert raised.value.errno == errno.EMFILE
        assert git(repository, "status", "--porcelain") == ""
        assert not [*(repository / ".git").glob("*.lock"), *(repository / ".git").glob("supervisor-*")]
        assert (await spaces.merge("t", "merge")).outcome == "merged"


@pytest.mark.anyio
async def test_a_disk_that_is_full_when_the_index_is_locked_leaves_no_lock(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the disk is full as the index is locked, no lock is left, and the next merge succeeds; on a file system
    without hard links, where the lock is created before its content is written."""

    class FullDisk(StringIO):
        def write(self, *_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    def no_link(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    def opened(path: Path, *words: Any, **names: Any) -> Any:
        if path.name != "index.lock" or "x" not in words:
            return open(path, *words, **names)
        path.touch(exist_ok=False)
        return FullDisk()

    git(repository, "checkout", "--quiet", "main")
    async with workspaces(repository) as spaces:
        place = Path(await spaces.prepare("t", str(repository), root_id="t"))
        (place / "kept").write_text("changed\n")
        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
            patch.setattr(os, "link", no_link)
            patch.setattr(Path, "open", opened)
            await spaces.merge("t", "merge")
        assert not list((repository / ".git").glob("*.lock"))
        assert (await spaces.merge("t", "merge")).outcome == "merged"


@pytest.mark.anyio
async def test_files_of_another_supervisor_beside_the_index_are_left(repository: Path) -> None:
    """Files that another supervisor has made beside the index of the same checkout are not touched by a merge or a
    recovery."""
    others = [repository / ".git" / f"supervisor-{name}-5678" for name in ("lock", "index", "new-index")]
    for other in others:
        other.write_text("of another supervisor\n")
    interrupted_merge(repository)
    async with workspaces(repository) as spaces:
        await spaces.check()
        place = Path(await spaces.prepare("t", str(repository), root_id="t"))
        (place / "kept").write_text("changed\n")
        assert (await spaces.merge("t", "merge")).outcome == "merged"
    assert sorted((repository / ".git").glob("supervisor-*")) == sorted(others)


@pytest.mark.anyio
async def test_a_target_in_two_checkouts_is_not_moved(repository: Path, tmp_path: Path) -> None:
    """A merge into a branch that is checked out in two places is refused, since only one checkout could be updated and
    the other would show the merged work as reverted."""
    git(repository, "checkout", "--quiet", "main")
    git(repository, "worktree", "add", "--quiet", "--force", str(tmp_path / "second"), "main")
    async with workspaces(repository) as spaces:
        place = Path(await spaces.prepare("t", str(repository), root_id="t"))
        (place / "kept").write_text("changed\n")
        refused = await spaces.merge("t", "merge")
    assert refused.outcome == "refused"
    assert f"main is checked out in {repository}, {tmp_path / 'second'}" in refused.why
    assert git(tmp_path / "second", "status", "--porcelain") == ""


@pytest.mark.anyio
async def test_a_worktree_made_or_removed_by_half_leaves_no_trace(repository: Path) -> None:
    """When the creation or the removal of a worktree was interrupted, the next start removes its branch, git's entry
    for it, and its folder."""
    git(repository, "checkout", "--quiet", "main")
    root, entries = repository.parent / "worktrees", repository / ".git" / "worktrees"
    steps: list[Step] = [MakeWorktree("t", git(repository, "rev-parse", "main")), RemoveWorktree("t")]
    for step in steps:
        record(repository, step)
        git(repository, "worktree", "add", "--quiet", "-b", "supervisor/t", str(root / "t"), "main")
        if isinstance(step, RemoveWorktree):
            (root / ".gone-1").mkdir()
            (root / "t").rename(root / ".gone-1" / "gone")
        (entries / "t" / "gitdir").unlink()
        async with workspaces(repository) as spaces:
            await spaces.check()
        assert list(root.iterdir()) == []
        assert not entries.exists()
        assert git(repository, "branch", "--list", "supervisor/*") == ""


@pytest.mark.anyio
async def test_a_worktree_made_by_half_that_cannot_be_removed_is_told(repository: Path) -> None:
    """When a worktree that was created by half cannot be removed, the error says so, and the step stays on record; the
    next start undoes it once the obstacle is gone."""
    git(repository, "checkout", "--quiet", "main")
    record(repository, MakeWorktree("t", git(repository, "rev-parse", "main")))
    place = repository.parent / "worktrees" / "t"
    place.write_text("no directory\n")
    async with workspaces(repository) as spaces:
        with pytest.raises(OSError, match=r"worktrees/t, a worktree .* cannot be removed: .*; remove it"):
            await spaces.check()
        place.unlink()
        await spaces.check()
    assert not (place.parent / ".step.json").exists()


@pytest.mark.anyio
async def test_a_worktree_rolled_back_by_half_is_rolled_back(repository: Path) -> None:
    """When the rollback of a worktree was interrupted, the next start resets the worktree to the commit on record."""
    git(repository, "checkout", "--quiet", "main")
    base = git(repository, "rev-parse", "main")
    async with workspaces(repository) as spaces:
        place = Path(await spaces.prepare("t", str(repository), root_id="t"))
        git(place, "merge", "--quiet", "work")
        (place / "changed").write_text("half\n")
        record(repository, RollBack("t", base))
        await spaces.check()
    assert git(place, "rev-parse", "HEAD") == base
    assert git(place, "status", "--porcelain", "--untracked-files=all") == ""


@pytest.mark.anyio
async def test_a_lock_that_git_left_is_removed_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock file that git has left is removed; an older lock, and one that a process has open, are left alone."""
    monkeypatch.setattr("supervisor.workspaces.stale_locks.SETTLED_S", 0.0)
    old, opened, left = (tmp_path / f"{name}.lock" for name in ("old", "opened", "left"))
    for lock in (old, opened, left):
        lock.touch()
    since_ns = left.stat().st_mtime_ns
    os.utime(old, ns=(since_ns, since_ns - 1))
    with opened.open():
        assert await remove_stale_locks([old, opened, left, tmp_path / "none.lock"], since_ns) == [left]
    assert old.exists()
    assert opened.exists()


@pytest.mark.anyio
async def test_a_record_that_cannot_be_read_is_told(repository: Path) -> None:
    """When the record of the step in progress cannot be read, the error names the file and says what to check before
    removing it."""
    path = repository.parent / "worktrees" / ".step.json"
    path.parent.mkdir()
    path.write_text("{")
    async with workspaces(repository) as spaces:
        with pytest.raises(OSError, match=r"\.step\.json .* see that git status is clean there, and remove the file"):
            await spaces.check()
