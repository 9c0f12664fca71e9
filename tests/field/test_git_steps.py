"""Steps of the supervisor in the user's git repository: after a kill or a full disk no step is half done, and no work
of the user is lost."""

from __future__ import annotations

import errno
import math
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import anyio
import pytest
from field_kit import Scratch, until

from supervisor.ports import Launch, OnExiting, Process, ProcessHost, WorkspaceHeld
from supervisor.processes.host import ShimHost
from supervisor.workspaces.fast_forward import FastForward
from supervisor.workspaces.git import GitWorkspaces
from supervisor.workspaces.git_command import Git, GitKilled, WorkspaceError
from supervisor.workspaces.stale_locks import remove_stale_locks
from supervisor.workspaces.steps import Advance, MakeWorktree, RemoveWorktree, RollBack, Step, StepFile
from tests.crash.git_steps import killed_at

pytestmark = pytest.mark.one_backend


# ------------------------------------------------------------------------------------------ real kills
def test_a_kill_at_a_git_command_leaves_nothing(tmp_path: Path) -> None:
    """After a kill at the git command that writes the files of a merge, the next run merges each task once, no agent
    works again, and no branch, reference, lock or folder is left over.

    ``make crash`` kills at other git commands, too.
    """
    killed, wrong = killed_at(tmp_path, "read-tree -m", "within")
    assert killed.startswith("read-tree -m")
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


def written_merge(repository: Path) -> Path:
    """Set up an interrupted merge whose files are written and whose index is replaced, and whose branch has not moved.
    Return the lock of the index."""
    after, before = git(repository, "rev-parse", "work"), git(repository, "rev-parse", "main")
    git(repository, "symbolic-ref", "HEAD", "refs/heads/main")
    git_dir = repository / ".git"
    (git_dir / "index.lock").write_text("supervisor 1234\n")
    record(repository, Advance(str(repository), str(git_dir), "main", before, after, "supervisor 1234\n", begun=True))
    return git_dir / "index.lock"


def assert_nothing_left(repository: Path) -> None:
    """Check that the checkout is clean, and that no file of a step is left in the repository."""
    assert git(repository, "status", "--porcelain", "--untracked-files=all") == ""
    assert not [*(repository / ".git").glob("*.lock"), *(repository / ".git").glob("supervisor-*")]
    assert not (repository.parent / "worktrees" / ".step.json").exists()


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
@pytest.mark.parametrize("branch", ["main", "work"])
async def test_a_merge_whose_files_are_all_written_is_finished(repository: Path, branch: str) -> None:
    """The recovery from a merge whose index was replaced moves the branch, unless it has moved already, and does not
    change the index."""
    written_merge(repository)
    git(repository, "update-ref", "refs/heads/main", branch)
    entries = git(repository, "ls-files", "--stage", "--debug")
    async with workspaces(repository) as spaces:
        await spaces.check()
    assert git(repository, "rev-parse", "main") == git(repository, "rev-parse", "work")
    assert git(repository, "ls-files", "--stage", "--debug") == entries
    assert_nothing_left(repository)


@pytest.mark.anyio
async def test_a_user_who_removes_the_lock_keeps_the_merge(repository: Path) -> None:
    """When the user has removed the lock of a merge whose index was replaced, and has staged a file and edited another,
    the recovery finishes the merge, and the user's changes stay."""
    written_merge(repository).unlink()
    (repository / "kept").write_text("by the user\n")
    git(repository, "add", "kept")
    (repository / "new" / "one").write_text("by the user\n")
    async with workspaces(repository) as spaces:
        await spaces.check()
    assert git(repository, "rev-parse", "main") == git(repository, "rev-parse", "work")
    assert git(repository, "status", "--porcelain").splitlines() == ["M  kept", " M new/one"]


@pytest.mark.anyio
@pytest.mark.parametrize("words", [["commit", "--all"], ["commit"]])
async def test_a_user_who_removes_the_lock_and_commits_reverts_nothing(repository: Path, words: list[str]) -> None:
    """A commit that the user makes after a kill, having removed the lock, has the files of the merge: the index has
    them before the branch is moved. The recovery leaves that commit."""
    written_merge(repository).unlink()
    (repository / "kept").write_text("by the user\n")
    git(repository, "add", "kept")
    git(repository, *words, "--quiet", "--message", "by the user")
    head = git(repository, "rev-parse", "main")
    async with workspaces(repository) as spaces:
        await spaces.check()
    assert git(repository, "rev-parse", "main") == head
    assert git(repository, "diff", "--name-only", "work", "main") == "kept"
    assert_nothing_left(repository)


@pytest.mark.anyio
@pytest.mark.parametrize("half", [False, True], ids=["all-files", "half-of-the-files"])
@pytest.mark.parametrize("locked_again", [False, True])
async def test_a_user_who_commits_one_file_finds_no_staged_change(
    repository: Path, half: bool, locked_again: bool
) -> None:
    """When the user has removed the lock and committed a file of their own only, the recovery takes the files of the
    merge out of index and checkout, also after a second kill, and the merge can be made anew."""
    if half:
        interrupted_merge(repository)
        (lock := repository / ".git" / "index.lock").unlink()
    else:
        (lock := written_merge(repository)).unlink()
    (repository / "kept").write_text("by the user\n")
    git(repository, "commit", "--quiet", "--message", "by the user", "--", "kept")
    if locked_again:
        lock.write_text("supervisor 1234\n")
    async with workspaces(repository) as spaces:
        await spaces.check()
        assert git(repository, "show", "--format=", "--name-only", "main") == "kept"
        assert_nothing_left(repository)
        place = Path(await spaces.prepare("t", str(repository), root_id="t"))
        git(place, "merge", "--quiet", "-m", "again", "work")
        assert (await spaces.merge("t", "merge")).outcome == "merged"
    assert (repository / "new" / "one").exists()
    assert (repository / "kept").read_text() == "by the user\n"
    assert_nothing_left(repository)


class Killed(BaseException):
    """Exception that stands for a kill: the supervisor ends at once, without any clean-up."""


@pytest.mark.anyio
@pytest.mark.parametrize("copied", [40, None], ids=["40-bytes", "all-bytes"])
async def test_a_second_kill_while_the_index_is_copied(
    repository: Path, monkeypatch: pytest.MonkeyPatch, copied: int | None
) -> None:
    """After a second kill while the recovery copies the index, the next recovery completes the first one, and does not
    use the copy, which is cut off or has the merge."""

    def cut_off(source: Path, copy: Path) -> None:
        copy.write_bytes(source.read_bytes()[:copied])
        raise Killed

    written_merge(repository).unlink()
    (repository / "kept").write_text("by the user\n")
    git(repository, "commit", "--quiet", "--message", "by the user", "--", "kept")
    async with workspaces(repository) as spaces:
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr("supervisor.workspaces.fast_forward.shutil.copy2", cut_off)
            await spaces.check()
        assert (repository / ".git" / "index.lock").exists()
        await spaces.check()
    assert_nothing_left(repository)


@pytest.fixture
def in_place_of_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Fixture: a function that puts a shell script before the supervisor's git commands; ``$*`` has the command's
    words, ``$git`` is the real git, and ``$once`` does not exist until the script makes it."""

    def put(script: str) -> None:
        real, folder = shutil.which("git"), tmp_path / "bin"
        folder.mkdir()
        (folder / "git").write_text(f'#!/bin/sh\ngit={real}; once={folder}/once\n{script}\nexec $git "$@"\n')
        (folder / "git").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    return put


@pytest.mark.anyio
@pytest.mark.parametrize("question", ["merge-base", "rev-parse --verify"])
@pytest.mark.parametrize("instead", ["exec sleep 1000", "kill -KILL $$", "exit 128"])
async def test_a_git_that_does_not_answer_decides_nothing(
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    in_place_of_git: Callable[[str], None],
    question: str,
    instead: str,
) -> None:
    """When a git command of the recovery times out, is killed or fails, the recovery raises an error and changes
    nothing; the next recovery, with a working git, completes the merge."""
    lock = written_merge(repository)
    step = StepFile(repository.parent / "worktrees" / ".step.json").read()
    assert step is not None
    assert isinstance(step.step, Advance)
    async with ShimHost() as host:
        forward = FastForward(Git(host, str(repository)), StepFile(tmp_path / "step"))
        with monkeypatch.context() as patch, pytest.raises(OSError, match=r"git (merge-base|rev-parse) (failed|was)"):
            in_place_of_git(f'case " $* " in *" {question} "*) {instead} ;; esac')
            patch.setattr("supervisor.workspaces.git_command.GIT_S", 0.5)
            await forward.recover(step.step)
        assert lock.exists()
        (tmp_path / "bin" / "git").unlink()
        await forward.recover(step.step)
    assert git(repository, "rev-parse", "main") == git(repository, "rev-parse", "work")
    assert git(repository, "status", "--porcelain") == ""


@pytest.mark.anyio
async def test_an_index_of_another_branch_does_not_get_the_merge(repository: Path) -> None:
    """When the user has removed the lock and has switched to another branch, the recovery neither puts the merge into
    the index nor moves the target."""
    written_merge(repository).unlink()
    git(repository, "reset", "--quiet", "--hard")
    git(repository, "switch", "--quiet", "-c", "other", "main")
    before = git(repository, "rev-parse", "main")
    async with workspaces(repository) as spaces:
        await spaces.check()
    assert git(repository, "rev-parse", "main") == before
    assert_nothing_left(repository)


# ------------------------------------------------------------------------------------------ a user beside a merge
@pytest.mark.anyio
async def test_the_index_is_locked_for_the_replacement_only(
    repository: Path, tmp_path: Path, in_place_of_git: Callable[[str], None]
) -> None:
    """While a merge is compared with the user's checkout the index is not locked, so that the user can commit; it is
    locked while git writes the files and moves the branch."""
    git(repository, "checkout", "--quiet", "main")
    in_place_of_git(f'[ ! -e {repository}/.git/index.lock ] || echo "$*" >> {tmp_path}/locked')
    async with workspaces(repository) as spaces:
        place = Path(await spaces.prepare("t", str(repository), root_id="t"))
        (place / "kept").write_text("changed\n")
        (place / "added").write_text("new\n")
        assert (await spaces.merge("t", "merge")).outcome == "merged"
    locked = (tmp_path / "locked").read_text().splitlines()
    assert [line.partition("gc.auto=0 ")[2].split()[0] for line in locked] == ["read-tree", "update-ref"]
    assert git(repository, "log", "-1", "--format=%gs", "--walk-reflogs", "main").endswith(": Fast-forward")
    assert_nothing_left(repository)


@pytest.mark.anyio
@pytest.mark.parametrize("at", ["hash-object", "update-index -q"], ids=["compared", "copied"])
async def test_a_commit_while_the_merge_is_compared_is_kept(
    repository: Path, in_place_of_git: Callable[[str], None], at: str
) -> None:
    """A commit that the user makes while a merge is compared with the checkout succeeds, and the merge is made on top
    of the commit."""
    git(repository, "checkout", "--quiet", "main")
    in_place_of_git(f"""
        case " $* " in *" {at} "*)
            if mkdir $once 2>/dev/null; then
                cd {repository} && echo by the user > own && $git add own &&
                $git -c user.name=u -c user.email=u@localhost commit --quiet --message own || exit 1
            fi ;;
        esac
    """)
    async with workspaces(repository) as spaces:
        place = Path(await spaces.prepare("t", str(repository), root_id="t"))
        (place / "kept").write_text("changed\n")
        merged = await spaces.merge("t", "merge")
    assert merged.outcome == "merged", merged.why
    assert (repository / "own").read_text() == "by the user\n"
    assert (repository / "kept").read_text() == "changed\n"
    assert git(repository, "log", "--first-parent", "--format=%s", "-2").splitlines() == ["merge", "own"]
    assert_nothing_left(repository)


@pytest.mark.anyio
async def test_a_user_who_commits_all_the_time_does_not_prevent_a_merge(
    repository: Path, in_place_of_git: Callable[[str], None]
) -> None:
    """When the user commits during each comparison, the branch moves each time; after some tries the index is locked
    before, and the work is merged on top of the user's commits."""
    git(repository, "checkout", "--quiet", "main")
    in_place_of_git(f"""
        case " $* " in *" hash-object "*)
            cd {repository}
            $git -c user.name=u -c user.email=u@localhost commit --quiet --allow-empty --message own 2>/dev/null
            cd "$OLDPWD" ;;
        esac
    """)
    async with workspaces(repository) as spaces:
        place = Path(await spaces.prepare("t", str(repository), root_id="t"))
        (place / "kept").write_text("changed\n")
        merged = await spaces.merge("t", "merge")
    assert merged.outcome == "merged", merged.why
    assert git(repository, "log", "--first-parent", "--format=%s", "-6").splitlines() == ["merge", *["own"] * 5]
    assert_nothing_left(repository)


@pytest.mark.anyio
async def test_a_user_who_removes_the_lock_within_a_merge_loses_nothing(
    repository: Path, in_place_of_git: Callable[[str], None]
) -> None:
    """When the user removes the lock while git writes the files of a merge, as git suggests, and stages a file, that
    file stays staged, and the work is merged all the same."""
    git(repository, "checkout", "--quiet", "main")
    in_place_of_git(f"""
        case " $* " in *" read-tree -m -u "*)
            if mkdir $once 2>/dev/null; then
                "$git" "$@"; unset GIT_INDEX_FILE
                cd {repository} && rm .git/index.lock && echo by the user > own && $git add own
                exit
            fi ;;
        esac
    """)
    async with workspaces(repository) as spaces:
        place = Path(await spaces.prepare("t", str(repository), root_id="t"))
        (place / "kept").write_text("changed\n")
        (place / "added").write_text("new\n")
        merged = await spaces.merge("t", "merge")
    assert merged.outcome == "merged", merged.why
    assert git(repository, "status", "--porcelain") == "A  own"


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["a/b", "folder"], ids=["file-for-a-folder", "folder-for-a-file"])
async def test_an_ignored_file_in_the_way_is_not_overwritten(repository: Path, path: str) -> None:
    """A merge is held, and names the file, while it would replace an ignored file of the user by a folder, or a folder
    with an ignored file by a file."""
    git(repository, "checkout", "--quiet", "main")
    (repository / ".git" / "info" / "exclude").write_text("/a\n/folder/own\n")
    own = repository / ("a" if path == "a/b" else "folder/own")
    own.write_text("by the user\n")
    async with workspaces(repository) as spaces:
        place = Path(await spaces.prepare("t", str(repository), root_id="t"))
        if path == "folder":
            shutil.rmtree(place / path)
        (place / path).parent.mkdir(exist_ok=True)
        (place / path).write_text("new\n")
        git(place, "add", "--force", path)
        with pytest.raises(WorkspaceHeld) as held:
            await spaces.merge("t", "merge")
    assert held.value.held_by.files == (path.partition("/")[0],)
    assert own.read_text() == "by the user\n"


@pytest.mark.anyio
async def test_a_merge_that_the_user_has_not_concluded_is_left(repository: Path) -> None:
    """While the user's own merge waits for its commit, the work of a session is not merged beneath it; afterwards it
    is."""
    git(repository, "checkout", "--quiet", "main")
    async with workspaces(repository) as spaces:
        place = Path(await spaces.prepare("t", str(repository), root_id="t"))
        (place / "added").write_text("new\n")
        git(repository, "merge", "--quiet", "--no-ff", "--no-commit", "work")
        with pytest.raises(WorkspaceHeld, match="a merge that was begun in") as held:
            await spaces.merge("t", "merge")
        assert held.value.held_by.since == (repository / ".git" / "MERGE_HEAD").stat().st_mtime
        git(repository, "commit", "--quiet", "--message", "by the user")
        assert (await spaces.merge("t", "merge")).outcome == "merged"
    assert_nothing_left(repository)


@pytest.mark.anyio
async def test_a_sparse_checkout_gets_a_merge_and_its_recovery(repository: Path) -> None:
    """In a sparse checkout the files that it leaves out are neither written by a merge, nor by the recovery from one,
    nor taken for removed."""
    git(repository, "checkout", "--quiet", "main")
    git(repository, "sparse-checkout", "set", "--no-cone", "/*", "!/folder/", "!/new/")
    async with workspaces(repository) as spaces:
        place = Path(await spaces.prepare("t", str(repository), root_id="t"))
        git(place, "sparse-checkout", "disable")
        (place / "folder" / "inside").write_text("changed\n")
        (place / "new").mkdir()
        (place / "new" / "one").write_text("new\n")
        (place / "kept").write_text("changed\n")
        merged = await spaces.merge("t", "merge")
        assert merged.outcome == "merged", merged.why
        before, after = git(repository, "rev-parse", "main^1"), git(repository, "rev-parse", "main")
        git(repository, "update-ref", "refs/heads/main", before)  # as if killed before the branch was moved
        git(repository, "commit", "--quiet", "--allow-empty", "--only", "--message", "by the user")
        record(repository, Advance(str(repository), str(repository / ".git"), "main", before, after, "s 1\n", True))
        await spaces.check()
        assert_nothing_left(repository)
        assert (await spaces.merge("t", "merge")).outcome == "merged"
    assert (repository / "kept").read_text() == "changed\n"
    assert not (repository / "new").exists()
    assert not (repository / "folder").exists()
    assert_nothing_left(repository)


# ------------------------------------------------------------------------------------------ a git that is killed
STEPS = ["worktree add", "add --all", "commit --allow-empty", "diff --cached", "merge-tree", "commit-tree",
         "hash-object", "update-index -q --refresh", "read-tree", "update-ref -m", "worktree remove"]  # fmt: skip


@pytest.mark.anyio
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("command", STEPS)
async def test_a_step_whose_git_was_killed_is_made_again(
    repository: Path, monkeypatch: pytest.MonkeyPatch, in_place_of_git: Callable[[str], None], command: str, when: str
) -> None:
    """When a git command of the supervisor is killed, before it has begun or when it has done its work, its step is
    made again, and the work is merged once."""
    monkeypatch.setattr("supervisor.workspaces.git.PAUSES_S", (0.0,))
    monkeypatch.setattr("supervisor.workspaces.stale_locks.SETTLED_S", 0.0)
    git(repository, "checkout", "--quiet", "main")
    in_place_of_git(f"""
        case " $* " in *" {command} "*)
            if mkdir $once 2>/dev/null; then
                {'"$git" "$@"; ' if when == "after" else ""}kill -KILL $$
            fi ;;
        esac
    """)
    async with workspaces(repository) as spaces:
        place = Path(await spaces.prepare("t", str(repository), root_id="t"))
        (place / "kept").write_text("changed\n")
        (place / "added").write_text("new\n")
        merged = await spaces.merge("t", "merge")
        assert merged.outcome == "merged", merged.why
        assert (await spaces.clean_up("t", "clean up")).branch == ""
    assert (repository.parent / "bin" / "once").exists()
    assert (repository / "kept").read_text() == "changed\n"
    assert git(repository, "log", "--format=%s", "--first-parent", "main").splitlines() == ["merge", "base"]
    assert_nothing_left(repository)


@pytest.mark.anyio
async def test_a_git_that_is_always_killed_is_an_error(
    repository: Path, monkeypatch: pytest.MonkeyPatch, in_place_of_git: Callable[[str], None]
) -> None:
    """A step whose git is killed again and again raises an error that names the command and the signal, and the work is
    still there; the next step succeeds once git works."""
    monkeypatch.setattr("supervisor.workspaces.git.PAUSES_S", (0.0, 0.0))
    monkeypatch.setattr("supervisor.workspaces.stale_locks.SETTLED_S", 0.0)
    git(repository, "checkout", "--quiet", "main")
    async with workspaces(repository) as spaces:
        place = Path(await spaces.prepare("t", str(repository), root_id="t"))
        (place / "kept").write_text("changed\n")
        in_place_of_git('case " $* " in *" commit "*) kill -KILL $$ ;; esac')
        with pytest.raises(OSError, match=r"git commit was killed in .*: signal 9"):
            await spaces.commit("t", "work")
        (repository.parent / "bin" / "git").unlink()
        assert (await spaces.merge("t", "merge")).outcome == "merged"
    assert (repository / "kept").read_text() == "changed\n"


def test_a_killed_commit_does_not_fail_the_task(scratch: Scratch, tmp_path: Path) -> None:
    """When the git that commits a task's work is killed, the run completes the task, and its agent worked once."""
    scratch.repository()
    scratch.plan("""
        workspace: worktree
        agents:
          a: {adapter: command, command: [sh, -c, 'echo x >> ../../../../launches; echo done > file']}
        tasks: [{id: t, agent: a, prompt: ""}]
    """)
    real, folder = shutil.which("git"), tmp_path / "bin"
    folder.mkdir()
    (folder / "git").write_text(f"""#!/bin/sh
        case " $* " in *" commit "*) mkdir {folder}/once 2>/dev/null && kill -KILL $$ ;; esac
        exec {real} "$@"
    """)
    (folder / "git").chmod(0o755)
    done = scratch.start("run", "plan.yaml", env={"PATH": f"{folder}:{scratch.env['PATH']}"}).wait()
    assert done.status == 0, done.text
    assert (folder / "once").exists()
    assert (tmp_path / "launches").read_text() == "x\n"
    assert scratch.git("show", "main:file") == "done"


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
async def test_a_git_that_fails_was_not_killed(repository: Path) -> None:
    """A file is compared with a blob that the repository lacks: the error says that git failed, since making the merge
    anew would not help."""
    async with ShimHost() as host:
        with pytest.raises(WorkspaceError, match="exit status") as failed:
            await Git(host, str(repository)).begins_like(str(repository), "changed", "1" * 40)
    assert not isinstance(failed.value, GitKilled)


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
    """When the index is locked by another git, the recovery leaves the lock and raises an error that names the lock; it
    succeeds once the lock is gone."""
    monkeypatch.setattr("supervisor.workspaces.fast_forward.LOCK_TRIES", 1)
    interrupted_merge(repository)
    lock = repository / ".git" / "index.lock"
    lock.write_text("")
    async with workspaces(repository) as spaces:
        with pytest.raises(WorkspaceHeld) as held:
            await spaces.check()
        assert held.value.held_by.path == str(lock)
        assert lock.exists()
        lock.unlink()
        await spaces.check()
    assert git(repository, "status", "--porcelain") == ""


@pytest.mark.anyio
async def test_a_disk_that_fills_up_within_a_merge_leaves_nothing(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the disk fills up during a merge, the files already written are removed, the merge is held, and the next
    merge succeeds."""
    real, folder = shutil.which("git"), tmp_path / "bin"
    folder.mkdir()
    (folder / "git").write_text(f"""#!/bin/sh
        case " $* " in *" read-tree -m -u "*) trap '' XFSZ; ulimit -f 8 ;; esac
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
            with pytest.raises(WorkspaceHeld, match="it is as it was before"):
                await spaces.merge("t", "merge")
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
    """A merge into a branch that is checked out in two places is held, since only one checkout could be updated and the
    other would show the merged work as reverted."""
    git(repository, "checkout", "--quiet", "main")
    git(repository, "worktree", "add", "--quiet", "--force", str(tmp_path / "second"), "main")
    async with workspaces(repository) as spaces:
        place = Path(await spaces.prepare("t", str(repository), root_id="t"))
        (place / "kept").write_text("changed\n")
        with pytest.raises(WorkspaceHeld) as held:
            await spaces.merge("t", "merge")
    assert f"main, which is checked out in {repository}, {tmp_path / 'second'}" in held.value.held_by.what
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
