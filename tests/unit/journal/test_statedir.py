"""State directory: the files that are made, the paths that are refused, the lock, and the names of session folders."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor import open_supervisor
from supervisor.journal.statedir import (
    StateDir,
    StateDirBusy,
    StateDirError,
    folder_name,
    session_id,
    socket_address,
)
from supervisor.plans import AgentConfig, Settings
from tests.support import running_program


def tree(folder: Path) -> list[str]:
    return sorted(str(one.relative_to(folder)) for one in folder.rglob("*"))


def test_a_new_state_directory_has_its_private_room_and_is_ignored_by_git(tmp_path: Path) -> None:
    """Opening a new state directory makes only runtime/ (mode 0700) and .gitignore."""
    state = StateDir.open(tmp_path / "a" / ".sdd")
    assert tree(tmp_path) == ["a", "a/.sdd", "a/.sdd/.gitignore", "a/.sdd/runtime"]
    assert (tmp_path / "a/.sdd/.gitignore").read_text() == "*\n"
    assert stat.S_IMODE(state.runtime.stat().st_mode) == 0o700


def test_only_its_owner_can_read_a_new_state_directory(tmp_path: Path) -> None:
    """A new state directory has mode 0700 whatever the umask; missing parents are made with the usual mode."""
    before = os.umask(0o022)
    try:
        StateDir.open(tmp_path / "a" / ".sdd")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / one).stat().st_mode) for one in ("a", "a/.sdd", "a/.sdd/runtime")]
    assert modes == [0o755, 0o700, 0o700]


@pytest.mark.anyio
async def test_whatever_the_umask_all_that_a_run_leaves_is_its_owners_alone(tmp_path: Path) -> None:
    """Journal, transcripts, fork server file, tag and worktrees are readable by the owner only, even with a umask of
    0."""
    repository = tmp_path / "repository"
    repository.mkdir()
    git = ("git", "-c", "user.email=a@b", "-c", "user.name=a", "-C", str(repository))
    for words in (("init", "-q"), ("commit", "-q", "--allow-empty", "-m", "first")):
        await anyio.run_process([*git, *words])
    agents = {"a": AgentConfig(adapter="command", command=("echo", "hello"))}
    before = os.umask(0)
    try:
        async with open_supervisor(
            tmp_path / "s", agents=agents, settings=Settings(workspace="worktree"), workdir=repository
        ) as sup:
            await (await sup.start_session("one", agent="a")).run("go")
            open_to_all = await anyio.to_thread.run_sync(_open_to_others, tmp_path / "s")
    finally:
        os.umask(before)
    assert open_to_all == []


def _open_to_others(root: Path) -> list[str]:
    found = [root, *(one for one in root.rglob("*") if root / "worktrees" not in one.parents)]
    return [str(one) for one in found if stat.S_IMODE(one.lstat().st_mode) & 0o077]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk is full while a state directory is made, everything made so far is removed."""

    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StateDirError, match="No space left on device"):
        StateDir.open(tmp_path / "s")
    assert tree(tmp_path) == []


@pytest.mark.parametrize("left", ["", "0123"])
def test_half_a_tag_is_drawn_anew(tmp_path: Path, left: str) -> None:
    """An incomplete tag file, as a full disk may leave it, is replaced by a new tag: an empty tag would match the
    processes of other directories."""
    state = StateDir.open(tmp_path / "s")
    state.tag_file.write_text(left)
    assert len(state.tag()) == 16
    assert StateDir(state.root).tag() == state.tag()


def test_an_existing_directory_keeps_its_mode(tmp_path: Path) -> None:
    """An existing directory keeps its mode when it is opened as a state directory; runtime/ is made with mode 0700."""
    (tmp_path / "s").mkdir()
    (tmp_path / "s").chmod(0o755)
    state = StateDir.open(tmp_path / "s")
    assert [stat.S_IMODE(one.stat().st_mode) for one in (state.root, state.runtime)] == [0o755, 0o700]


@pytest.mark.parametrize("create", [True, False])
def test_a_name_that_is_too_long_is_refused(tmp_path: Path, create: bool) -> None:
    """A path that no file system accepts is an error with the reason and the fix."""
    path = tmp_path / ("x" * 300)
    with pytest.raises(StateDirError) as refused:
        StateDir.open(path, create=create)
    assert str(refused.value) == f"{path} cannot be a state directory: File name too long; use another state directory"


@pytest.mark.parametrize("create", [True, False])
def test_a_name_that_is_not_utf_8_is_refused(tmp_path: Path, create: bool) -> None:
    """A path that is not UTF-8 is an error and nothing is made; a relative path below such a directory is accepted."""
    above = tmp_path / os.fsdecode(b"\xff")
    with pytest.raises(StateDirError, match=r"its name is not UTF-8; use another state directory$"):
        StateDir.open(above / "s", create=create)
    assert not above.exists()
    above.mkdir()
    with chdir(above):
        assert StateDir.open(Path("s")).lock_file.parent.is_dir()


@pytest.mark.parametrize("closed", [".", "runtime"])
def test_the_directory_of_another_user_is_refused(tmp_path: Path, closed: str) -> None:
    """A directory that this user may not read is an error with its path and the fix. As root, the test acts as another
    user."""
    state = StateDir.open(tmp_path / "s")
    (state.root / closed).chmod(0)
    uid = os.geteuid()
    try:
        if uid == 0:
            os.seteuid(65534)
        with pytest.raises(StateDirError, match=f"{state.root} may not be read by this user: run the command as its"):
            StateDir.open(state.root, create=False)
    finally:
        os.seteuid(uid)
        (state.root / closed).chmod(0o700)


def test_the_layout_is_what_the_documents_say(tmp_path: Path) -> None:
    """Each path of a StateDir is where the documentation says."""
    state = StateDir(tmp_path)
    paths = [state.journal, state.control_socket, state.lock_file, state.transitions, state.agents]
    paths += [state.archive, state.metrics, state.traces, state.worktrees, state.transcript("main/sub")]
    assert [str(path.relative_to(tmp_path)) for path in paths] == [
        "runtime/journal.db",
        "runtime/control.sock",
        "runtime/lock",
        "transitions.jsonl",
        "agents",
        "archive",
        "metrics",
        "traces",
        "worktrees",
        "agents/main%2Fsub/transcript.log",
    ]
    assert tree(tmp_path) == []


def test_opening_again_changes_nothing_but_closes_a_room_that_was_open(tmp_path: Path) -> None:
    """A second opening changes no file, and gives runtime/ the mode 0700 again."""
    state = StateDir.open(tmp_path / "s")
    state.transitions.write_text("lines\n")
    (state.root / ".gitignore").unlink()
    state.runtime.chmod(0o755)
    StateDir.open(tmp_path / "s")
    assert tree(state.root) == ["runtime", "transitions.jsonl"]
    assert stat.S_IMODE(state.runtime.stat().st_mode) == 0o700


def test_files_of_somebody_else_are_not_hidden_from_git(tmp_path: Path) -> None:
    """A directory that already has files gets no .gitignore, which would hide them from git."""
    (tmp_path / "main.py").write_text("print()\n")
    StateDir.open(tmp_path)
    assert tree(tmp_path) == ["main.py", "runtime"]


def test_a_missing_directory_is_not_made_for_a_reader(tmp_path: Path) -> None:
    """Opening a missing directory with ``create=False`` is an error with the command to run, and nothing is made."""
    with pytest.raises(
        StateDirError, match=f"no state directory at {tmp_path / 's'}: run `supervisor run` there first"
    ):
        StateDir.open(tmp_path / "s", create=False)
    assert tree(tmp_path) == []
    StateDir.open(tmp_path / "s")
    assert StateDir.open(tmp_path / "s", create=False).root == tmp_path / "s"


@pytest.mark.parametrize("below", ["", "/s", "/deep/er/s"])
def test_a_file_in_the_way_is_named_and_nothing_is_made(tmp_path: Path, below: str) -> None:
    """A file in place of the state directory or of one of its parents is an error that names the file, and nothing is
    made."""
    (tmp_path / "file").write_text("mine")
    path = Path(f"{tmp_path}/file{below}")
    sentence = (
        f"{path} cannot be a state directory: {tmp_path / 'file'} is not a directory; use another state directory"
    )
    with pytest.raises(StateDirError, match=f"^{re.escape(sentence)}$"):
        StateDir.open(path)
    assert tree(tmp_path) == ["file"]


def test_a_file_in_place_of_the_private_room_is_named(tmp_path: Path) -> None:
    """A file in place of runtime/ is an error that names it, and the .gitignore of this opening is removed."""
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "runtime").write_text("mine")
    with pytest.raises(StateDirError, match="s/runtime: File exists; use another state directory"):
        StateDir.open(tmp_path / "s")
    assert tree(tmp_path) == ["s", "s/runtime"]


def test_a_failed_open_takes_back_every_folder_it_made(tmp_path: Path) -> None:
    """If the path is too long for the files of the state directory, the directories made so far are removed."""
    room = os.pathconf(tmp_path, "PC_PATH_MAX") - 6 - len(str(tmp_path))
    path = tmp_path.joinpath(*["d" * 99] * (room // 100))
    path = path.with_name("d" * (99 + room % 100))
    with pytest.raises(StateDirError, match=os.strerror(36)):
        StateDir.open(path)
    assert tree(tmp_path) == []


def test_a_second_supervisor_is_told_who_has_the_directory(tmp_path: Path) -> None:
    """A second lock of a state directory fails, even in the same process; the error names the pid of the holder and the
    fix."""
    state = StateDir.open(tmp_path / "s")
    sentence = (
        f"another supervisor (pid {os.getpid()}) already runs on {state.root}; stop it, or use another state directory"
    )
    with state.lock():
        written = state.lock_file.read_text()
        with pytest.raises(StateDirBusy, match=f"^{re.escape(sentence)}$") as caught, StateDir(state.root).lock():
            pass
        assert caught.value.pid == os.getpid()
        assert state.lock_file.read_text() == written
    with state.lock():
        assert state.lock_file.read_text().split()[0] == str(os.getpid())


def test_the_lock_says_that_its_holder_is_a_daemon(tmp_path: Path) -> None:
    """From the moment when a daemon has the lock, before it can be reached, others see that it is a daemon; of another
    supervisor they see that it is none."""
    state = StateDir.open(tmp_path / "s")
    seen = []
    for is_daemon in (True, False):
        with state.lock(daemon=is_daemon):
            holder = StateDir(state.root).lock_holder()
            assert holder is not None
            seen.append((holder.pid, holder.since is not None, holder.is_daemon, holder.starting))
    assert seen == [(os.getpid(), True, True, False), (os.getpid(), True, False, False)]


def test_last_outputs_are_those_of_the_sessions_with_a_transcript(tmp_path: Path) -> None:
    """The last output of a session is the last change of its transcript, or of a file that continues the transcript; a
    session without a transcript has none."""
    state = StateDir(tmp_path / "s")
    names = ["fix", "fix/child", "x" * 500]
    for number, name in enumerate(names):
        path = state.transcript(name)
        path.parent.mkdir(parents=True)
        path.write_text("text")
        os.utime(path, (number, number))
    state.transcript("silent").parent.mkdir()
    tail = state.transcript("fix").with_name("transcript.log.4")
    tail.write_text("more")
    os.utime(tail, (7, 7))
    assert state.last_outputs([*names, "silent", "unknown"]) == {"fix": 7.0, "fix/child": 1.0, "x" * 500: 2.0}


HOLDER = """
import sys
from contextlib import chdir
from pathlib import Path
from supervisor.journal.statedir import StateDir
with StateDir.open(Path(sys.argv[1])).lock():
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_the_lock_of_a_killed_supervisor_is_free(tmp_path: Path) -> None:
    """Another process holds the lock until it is SIGKILLed; then the lock is free at once."""
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "s")]
    with running_program(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "locked\n"
        state = StateDir.open(tmp_path / "s")
        with pytest.raises(StateDirBusy, match=rf"\(pid {child.pid}\)"), state.lock():
            pass
        child.kill()
        child.wait()
        with state.lock():
            assert state.lock_file.read_text().startswith(f"{os.getpid()} ")


def test_a_lock_that_cannot_be_opened_is_an_error_with_its_name(tmp_path: Path) -> None:
    """A folder in place of the lock file is an error that names it."""
    state = StateDir.open(tmp_path / "s")
    state.lock_file.mkdir()
    with pytest.raises(StateDirError, match="runtime/lock: Is a directory; use another state directory"), state.lock():
        pass


@given(st.text(min_size=1))
def test_a_folder_name_leads_back_to_its_session(name: str) -> None:
    """The folder name of any session id is a path below its folder with names of allowed length, and gives the id
    back."""
    folder = folder_name(name)
    assert session_id(folder) == name
    assert not folder.is_absolute()
    assert not {".", ".."} & set(folder.parts)
    assert all(len(part.encode()) <= 255 for part in folder.parts)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("main", "main"),
        ("a/b", "a%2Fb"),
        ("..", "%2E%2E"),
        (".", "%2E"),
        ("a%2Fb", "a%252Fb"),
        ("x" * 250, f"{'x' * 200}+/{'x' * 50}"),
        ("+", "%2B"),
    ],
)
def test_folder_names_are_readable(name: str, folder: str) -> None:
    """Folder names of plain ids are the ids; only characters that a path could misread are quoted."""
    assert str(folder_name(name)) == folder


def test_a_session_without_a_name_has_no_folder() -> None:
    """An empty session id is refused, because its folder would be the folder of all sessions."""
    with pytest.raises(ValueError, match="session_id: '' names no session"):
        folder_name("")


# ------------------------------------------------------------------------------------------------------ whose it is
@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_a_directory_that_others_may_write_into_is_refused(tmp_path: Path, mode: int) -> None:
    """A directory that others may write into is an error with the fix, and nothing is written."""
    path = tmp_path / "s"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(StateDirError) as refused:
        StateDir.open(path)
    assert str(refused.value) == (
        f"{path} cannot be a state directory: others may write into it (mode {mode:04o}); run `chmod go-w {path}`"
    )
    assert tree(path) == []


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that belongs to another user is an error."""
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(StateDirError, match=f"belongs to user {owner}, and you are {owner + 1}; use another"):
        StateDir.open(tmp_path)


@pytest.mark.parametrize("name", ["runtime", "agents", "transitions.jsonl", "runtime/journal.db", "runtime/lock"])
def test_a_link_where_a_file_of_ours_belongs_is_refused(tmp_path: Path, name: str) -> None:
    """A symbolic link in place of a file of the state directory is an error, and nothing is written through the
    link."""
    path, elsewhere = tmp_path / "s", tmp_path / "elsewhere"
    (path / name).parent.mkdir(parents=True)
    elsewhere.mkdir()
    (path / name).symlink_to(elsewhere)
    with pytest.raises(StateDirError, match=re.escape(f"{path / name} is a symbolic link; remove it")):
        StateDir.open(path)
    assert tree(elsewhere) == []


def test_the_directory_itself_may_be_reached_over_a_link(tmp_path: Path) -> None:
    """The state directory itself may be given as a symbolic link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "s").symlink_to("real")
    StateDir.open(tmp_path / "s")
    assert (tmp_path / "real" / "runtime").is_dir()


def test_a_path_that_is_too_long_for_a_socket_is_an_error_with_the_fix(tmp_path: Path) -> None:
    """On a system without /proc, a socket path longer than an address is an error that names its length and the fix."""
    folder = tmp_path / ("d" * 120)
    folder.mkdir()
    with pytest.raises(OSError, match=r"has \d+ bytes, .* takes at most 100; use a state directory"):
        with socket_address(folder / "control.sock", tmp_path / "no proc"):
            pass
