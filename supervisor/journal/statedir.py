"""The state directory: where everything of one supervisor lies, and the lock that keeps a second one out.

The paths are named here and nowhere else. Nothing is written before it is clear that the directory can be used, and a
failed attempt takes back what it made. The kernel releases the lock when its holder dies, so a lock is never stale.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import Final
from urllib.parse import quote, unquote

from supervisor.journal.ownership import foreign
from supervisor.journal.possession import Possession
from supervisor.ports.secure_files import PRIVATE_FOLDER, write_private

__all__ = ["StateDir", "StateDirBusy", "StateDirError", "folder_name", "not_ours", "session_id"]

_NAME_MAX: Final = 200
"""Characters of one folder's name; file systems allow 255 bytes."""

_TAG: Final = re.compile(r"[0-9a-f]{16}")

_USUAL: Final = 0o777
"""The mode of the folders above it, narrowed by the umask."""


_HANDED_OVER_S: Final = 2.0
"""A holder that has been killed while it started a program holds on until that program has its own image: so long its
lock is waited for. Found by killing it at random, once in some fifty times on a busy machine."""


class StateDirError(Exception):
    """The state directory cannot be used; the message says which, why, and what to do."""


class StateDirBusy(StateDirError):
    """Another supervisor has the lock. ``pid`` is its process, ``None`` if it has not said yet."""

    def __init__(self, path: Path, pid: int | None) -> None:
        self.path, self.pid = path, pid
        who = f" (pid {pid})" if pid else ""
        super().__init__(
            f"another supervisor{who} already runs on {path}; use another --state-dir or stop it with `supervisor stop`"
        )


class StateDir:
    """The paths below *root*. The constructor only names them; :meth:`open` makes sure that they can be used."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runtime = root / "runtime"
        self.journal = self.runtime / "journal.db"
        self.control_socket = self.runtime / "control.sock"
        self.lock_file = self.runtime / "lock"
        self.fork_server_file = self.runtime / "keeper"
        self.tag_file = self.runtime / "tag"
        self.transitions = root / "transitions.jsonl"
        self.agents = root / "agents"
        self.archive = root / "archive"
        self.metrics = root / "metrics"
        self.traces = root / "traces"
        self.worktrees = root / "worktrees"
        self.checkpoints = root / "checkpoints"
        self.possession = Possession()
        """Of who has the lock: its files are still there."""

    @classmethod
    def open(cls, path: Path, *, create: bool = True) -> StateDir:
        """The state directory at *path*; with *create*, made if it is missing.

        Raises:
            StateDirError: something is in the way, it is not writable, or it is missing and *create* is false; or its
                path is not UTF-8.
        """
        state = cls(path)
        _check_spelling(path)
        if create:
            _check_usable(path)
            _check_ours(state)
            _make(state)
        else:
            _check_readable(state)
        return state

    def transcript(self, session_id: str) -> Path:
        """Where the transcript of a session is written."""
        return self.agents / folder_name(session_id) / "transcript.log"

    def tag(self) -> str:
        """What the programs of this directory are known by, drawn when it is first asked for: for who has the lock.

        Raises:
            StateDirError: it cannot be read or written.
        """
        try:
            found = self.tag_file.read_text() if self.tag_file.exists() else ""
            if not _TAG.fullmatch(found):  # a part of one, or none: a full disk may have left that
                found = secrets.token_hex(8)
                write_private(self.tag_file, found)
            return found
        except (OSError, UnicodeDecodeError) as error:
            raise StateDirError(
                f"{self.tag_file} cannot be used ({error}); remove it, or use another --state-dir"
            ) from error

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Own the directory for as long as the context is open, or this process lives.

        Raises:
            StateDirBusy: another supervisor owns it; nothing was changed.
            StateDirError: the lock cannot be opened.
        """
        try:
            fd = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise _unusable(self.root, error) from error
        try:
            self._take(fd)
            self._hold(fd)
            yield
        finally:
            os.close(fd)

    def _hold(self, fd: int) -> None:
        """The file that was locked must be the one that the next supervisor will try to lock."""
        try:
            self.possession.hold("lock", self.lock_file)
            same = os.path.samestat(os.fstat(fd), os.stat(self.lock_file))
        except OSError as error:
            raise _unusable(self.root, error) from error
        if not same:
            raise StateDirBusy(self.root, None)

    def _take(self, fd: int) -> None:
        until_s = time.monotonic() + _HANDED_OVER_S
        try:
            while not _locked(fd):
                holder = _pid(os.pread(fd, 64, 0))
                if holder is None or _runs(holder) or time.monotonic() > until_s:
                    raise StateDirBusy(self.root, holder)
                time.sleep(0.01)
            os.ftruncate(fd, 0)
            os.write(fd, f"{os.getpid()} {time.time():.3f}\n".encode())
        except OSError as error:
            raise _unusable(self.root, error) from error


def _locked(fd: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def _pid(text: bytes) -> int | None:
    first = text.split(b" ")[0]
    return int(first) if first.isdigit() else None


# -------------------------------------------------------------------------------------------------------- making
def _check_spelling(path: Path) -> None:
    """SQLite takes no other paths; what is above a relative one may be spelled in any way."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise StateDirError(
            f"{path} cannot be a state directory: its name is not UTF-8; use another --state-dir"
        ) from None


def _check_usable(path: Path) -> None:
    try:
        there = next(one for one in (path, *path.absolute().parents) if os.path.lexists(one))
        writable = os.access(there, os.W_OK | os.X_OK)
    except OSError as error:
        raise _unusable(path, error) from error
    if not there.is_dir():
        raise StateDirError(f"{path} cannot be a state directory: {there} is not a directory; use another --state-dir")
    if not writable:
        raise StateDirError(f"{path} cannot be a state directory: {there} is not writable; use another --state-dir")


def _check_ours(state: StateDir) -> None:
    inside = (state.runtime, state.agents, state.transitions, state.journal, state.lock_file, state.control_socket)
    try:
        why = foreign(state.root, (*inside, state.fork_server_file, state.tag_file))
    except OSError as error:
        raise _unusable(state.root, error) from error
    if why is not None:
        raise StateDirError(f"{state.root} cannot be a state directory: {why}")


def _check_readable(state: StateDir) -> None:
    missing = StateDirError(
        f"no state directory at {state.root}: run `supervisor run` there first, or give --state-dir"
    )
    try:
        if not stat.S_ISDIR(os.stat(state.runtime).st_mode):
            raise missing
        with suppress(FileNotFoundError):
            os.stat(state.journal)
    except (FileNotFoundError, NotADirectoryError):
        raise missing from None
    except PermissionError as error:
        raise not_ours(state.root) from error
    except OSError as error:  # the name is too long
        raise _unusable(state.root, error) from error


def not_ours(path: Path) -> StateDirError:
    """What to say of a state directory that this user may not read."""
    return StateDirError(
        f"{path} may not be read by this user: run the command as its owner, or give another --state-dir"
    )


def _make(state: StateDir) -> None:
    made: list[Path] = []
    try:
        _make_folders(state.root, made, PRIVATE_FOLDER)
        if not any(state.root.iterdir()):  # never hide the files of somebody who names a directory of his own
            made.append(state.root / ".gitignore")
            write_private(made[-1], "*\n")
        _make_folders(state.runtime, made, PRIVATE_FOLDER)
        state.runtime.chmod(PRIVATE_FOLDER)
    except OSError as error:
        _take_back(made)
        raise _unusable(state.root, error) from error


def _make_folders(path: Path, made: list[Path], mode: int) -> None:
    """Make *path* with *mode*, and what is missing above it as any folder is made."""
    if not path.parent.exists():
        _make_folders(path.parent, made, _USUAL)
    if not path.is_dir():
        path.mkdir(mode, exist_ok=True)
        made.append(path)


def _take_back(made: list[Path]) -> None:
    for path in reversed(made):
        with suppress(OSError):  # the first error is the one to tell; a folder that is in use by now stays
            path.rmdir() if path.is_dir() else path.unlink()


def _unusable(path: Path, error: OSError) -> StateDirError:
    told = error.filename in (None, str(path)) or error.errno == errno.ENAMETOOLONG
    where = "" if told else f"{error.filename}: "
    return StateDirError(f"{path} cannot be a state directory: {where}{error.strerror}; use another --state-dir")


# --------------------------------------------------------------------------------------------------------- names
def folder_name(session_id: str) -> PurePath:
    """*session_id* as a relative path below ``agents/``: one folder, or several where the name is too long for one.

    No two ids share a folder, none leaves ``agents/``, and :func:`session_id` is the way back.
    """
    if not session_id:
        raise ValueError("session_id: '' names no session; give the id of one")
    name = quote(session_id, safe="", errors="surrogateescape")
    if name in (".", ".."):
        name = name.replace(".", "%2E")
    parts = [name[start : start + _NAME_MAX] for start in range(0, len(name), _NAME_MAX)]
    return PurePath(*(f"{part}+" for part in parts[:-1]), parts[-1])  # a quoted name has no "+" of its own


def session_id(folder: PurePath) -> str:
    """The session whose :func:`folder_name` is *folder*."""
    return unquote("".join(part.removesuffix("+") for part in folder.parts), errors="surrogateescape")
