"""State directory: the paths of one supervisor's files, and the lock that keeps a second supervisor out.

The paths are defined only here. Nothing is written before it is clear that the directory can be used, and a failed
attempt removes the files that it made. The kernel releases the lock when its holder dies, so a lock is never stale.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from supervisor.journal.ownership import why_untrusted
from supervisor.journal.possession import Possession
from supervisor.journal.transcript import last_written_at
from supervisor.ports.secure_files import PRIVATE_FOLDER, write_private

TRANSCRIPT: Final = "transcript.log"
_NAME_MAX: Final = 200
"""Largest number of characters in the name of one folder; file systems allow 255 bytes."""

_TAG: Final = re.compile(r"[0-9a-f]{16}")

_FOLDER_MODE: Final = 0o777
"""Mode of the folders above the state directory, from which the umask removes rights."""


_STARTING: Final = b" starting\n"
"""End of the text in the lock while its holder is starting the run of a plan."""
_DAEMON: Final = b" daemon\n"
"""End of the text in the lock while its holder is a daemon, also while that starts."""
_LOCK_BYTES_MAX: Final = 64
"""Number of bytes of the lock that are read; its text is shorter."""

_LOCK_RELEASE_S: Final = 2.0
"""Seconds to wait for a lock whose holder is dead. A holder that was killed while it started a program keeps the lock
until that program has been executed; tests that kill at random find this once in some fifty times on a busy machine."""

_LOOK_S: Final = 0.1
"""Seconds that a start waits for a lock that a live process seems to hold: a call of :meth:`StateDir.lock_holder` in
another process takes the lock for a moment."""


_ADDRESS_BYTES_MAX: Final = 100
"""Maximal number of bytes of a path in a socket address: 107 on Linux (unix(7)) and 103 on macOS, less a margin."""

_DESCRIPTORS: Final = Path("/proc/self/fd")
"""Directory with a link for each open file of this process, on Linux."""


class StateDirError(Exception):
    """Error: the state directory cannot be used; the message names the directory, the reason and the fix."""


class StateDirBusy(StateDirError):
    """Error: another supervisor has the lock. ``pid`` is its process, ``None`` if the process has not written its pid
    yet."""

    def __init__(self, path: Path, pid: int | None) -> None:
        self.path, self.pid = path, pid
        who = f" (pid {pid})" if pid else ""
        super().__init__(f"another supervisor{who} already runs on {path}; stop it, or use another state directory")


class LockHolder(NamedTuple):
    """Process that holds the lock of a state directory. ``pid`` and ``since`` (wall clock, in seconds) are ``None``
    until the process has written them. ``starting``: the run of a plan has locked the directory, and the journal does
    not have its tasks yet. ``is_daemon``: a daemon has locked the directory; while it starts it has no control
    socket."""

    pid: int | None
    since: float | None
    starting: bool = False
    is_daemon: bool = False

    @property
    def words(self) -> str:
        return f"a supervisor (pid {self.pid})" if self.pid else "a supervisor"


class StateDir:
    """The paths of one state directory, below *root*. The constructor only names the paths; :meth:`open` checks that
    they can be used."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runtime = root / "runtime"
        self.journal = self.runtime / "journal.db"
        self.control_socket = self.runtime / "control.sock"
        self.http_socket = self.runtime / "http.sock"
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
        self.submissions = root / "submissions"
        self.backlog = root / "backlog"
        self.config = root / "config"
        self.triggers = self.config / "triggers.yaml"
        self.fleet = root / "fleet"
        self.possession = Possession()
        """Check that the files of the lock's holder are still in place."""
        self._made: tuple[Path, ...] = ()
        self._lock_fd: int | None = None

    @classmethod
    def open(cls, path: Path, *, create: bool = True) -> StateDir:
        """Return the state directory at *path*; with *create* make it if it does not exist.

        Raises:
            StateDirError: the path is something else, the directory is not writable, its path is not UTF-8, or it
                does not exist and *create* is false.
        """
        state = cls(path)
        _check_spelling(path)
        if create:
            _check_usable(path)
            _check_ours(state)
            state._made = tuple(_make(state))
        else:
            _check_readable(state)
        return state

    def transcript(self, session_id: str) -> Path:
        """Return the path of a session's transcript."""
        return self.agents / folder_name(session_id) / TRANSCRIPT

    def last_outputs(self, sessions: Iterable[str]) -> dict[str, float]:
        """Return the Unix time of the last output of each of these *sessions* that has a transcript."""
        written = ((one, last_written_at(f"{self.agents}/{_folder(one)}", TRANSCRIPT)) for one in sessions)
        return {one: at for one, at in written if at is not None}

    def tag(self) -> str:
        """Return the tag by which the programs started for this directory are recognised; a random tag is made at the
        first call.

        The caller must hold the lock.

        Raises:
            StateDirError: the tag cannot be read or written.
        """
        try:
            found = self.tag_file.read_text() if self.tag_file.exists() else ""
            if not _TAG.fullmatch(found):  # a part of one, or none: a full disk may have left that
                found = secrets.token_hex(8)
                write_private(self.tag_file, found)
            return found
        except (OSError, UnicodeDecodeError) as error:
            raise StateDirError(
                f"{self.tag_file} cannot be used ({error}); remove it, or use another state directory"
            ) from error

    @contextmanager
    def lock(self, *, starting: bool = False, daemon: bool = False) -> Iterator[None]:
        """Hold the lock of the directory while the context is open, or until this process dies. Within the context of a
        lock, ``lock`` of the same object does nothing: a caller may take the lock before it has what a supervisor
        needs.

        Args:
            starting: the holder has a plan to run, and calls :meth:`note_begun` when the journal has its tasks.
            daemon: the holder takes plans from others.

        Raises:
            StateDirBusy: another supervisor has the lock; nothing was changed.
            StateDirError: the lock cannot be opened.
        """
        if self._lock_fd is not None:
            yield
            return
        try:
            fd = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise _unusable(self.root, error) from error
        try:
            self._take(fd, _STARTING if starting else _DAEMON if daemon else b"\n")
            self._hold(fd)
            self._lock_fd = fd
            yield
        finally:
            self._lock_fd = None
            os.close(fd)

    def note_begun(self) -> None:
        """Write into the lock that the run has begun (``LockHolder.starting`` is false from now on). The caller holds
        the lock.

        Raises:
            StateDirError: the lock cannot be written.
        """
        assert self._lock_fd is not None, "the caller holds the lock"
        try:
            text = os.pread(self._lock_fd, _LOCK_BYTES_MAX, 0)
            begun = text.removesuffix(_STARTING) + b"\n" if text.endswith(_STARTING) else text
            os.pwrite(self._lock_fd, begun, 0)
            os.ftruncate(self._lock_fd, len(begun))
        except OSError as error:
            raise _unusable(self.root, error) from error

    def discard(self) -> None:
        """Remove the files and folders that :meth:`open` has made, if the directory has no journal: a start that was
        refused leaves nothing. The caller holds the lock, so that nobody else uses the directory. A directory that was
        deleted or replaced meanwhile is left as it is: it may be another supervisor's."""
        if self._made and not os.path.lexists(self.journal) and self.possession.holds():
            _undo([*self._made, self.lock_file])

    def lock_holder(self) -> LockHolder | None:
        """Return the holder of the lock, or ``None`` if no supervisor runs on the directory.

        The lock decides this, not the control socket: a supervisor may have no socket, and the file of a socket may
        have been removed.

        Raises:
            StateDirError: the lock cannot be opened.
        """
        try:
            fd = os.open(self.lock_file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _unusable(self.root, error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(fd, _LOCK_BYTES_MAX, 0)
            written = re.fullmatch(rb"\d+ (\d+\.\d+)(?: starting| daemon)?\n", text)
            since = float(written[1]) if written else None
            return LockHolder(_parse_pid(text), since, text.endswith(_STARTING), text.endswith(_DAEMON))
        finally:
            os.close(fd)
        return None

    def _hold(self, fd: int) -> None:
        """Register the lock file for later checks; raise an error if it is not the file that the next supervisor will
        try to lock."""
        try:
            self.possession.hold("lock", self.lock_file)
            same = os.path.samestat(os.fstat(fd), os.stat(self.lock_file))
        except OSError as error:
            raise _unusable(self.root, error) from error
        if not same:
            raise StateDirBusy(self.root, None)

    def _take(self, fd: int, end: bytes) -> None:
        began_s = time.monotonic()
        try:
            while not _try_lock(fd):
                holder = _parse_pid(os.pread(fd, 64, 0))
                is_live = holder is None or _is_running(holder)
                if time.monotonic() > began_s + (_LOOK_S if is_live else _LOCK_RELEASE_S):
                    raise StateDirBusy(self.root, holder)
                time.sleep(0.01)
            os.ftruncate(fd, 0)
            os.write(fd, f"{os.getpid()} {time.time():.3f}".encode() + end)
        except OSError as error:
            raise _unusable(self.root, error) from error


def _try_lock(fd: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def _parse_pid(text: bytes) -> int | None:
    first = text.split(b" ")[0]
    return int(first) if first.isdigit() else None


# -------------------------------------------------------------------------------------------------------- making
def _check_spelling(path: Path) -> None:
    """Raise an error for a path that is not UTF-8, which SQLite does not accept. Only the given path counts, not the
    directories above a relative one."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise _not_usable(path, "its name is not UTF-8") from None


def _check_usable(path: Path) -> None:
    try:
        there = next(one for one in (path, *path.absolute().parents) if os.path.lexists(one))
        writable = os.access(there, os.W_OK | os.X_OK)
    except OSError as error:
        raise _unusable(path, error) from error
    if not there.is_dir():
        raise _not_usable(path, f"{there} is not a directory")
    if not writable:
        raise _not_usable(path, f"{there} is not writable")


def _check_ours(state: StateDir) -> None:
    inside = (state.runtime, state.agents, state.transitions, state.journal, state.lock_file, state.control_socket)
    try:
        why = why_untrusted(
            state.root,
            (
                *(*inside, state.submissions, state.backlog, state.config, state.triggers),
                *(state.http_socket, state.fork_server_file, state.tag_file, state.fleet),
            ),
        )
    except OSError as error:
        raise _unusable(state.root, error) from error
    if why is not None:
        raise StateDirError(f"{state.root} cannot be a state directory: {why}")


def _check_readable(state: StateDir) -> None:
    missing = StateDirError(
        f"no state directory at {state.root}: run `supervisor run` there first, or name another directory"
    )
    try:
        if not stat.S_ISDIR(os.stat(state.runtime).st_mode):
            raise missing
        with suppress(FileNotFoundError):
            os.stat(state.journal)
    except (FileNotFoundError, NotADirectoryError):
        raise missing from None
    except PermissionError as error:
        raise unreadable_error(state.root) from error
    except OSError as error:  # the name is too long
        raise _unusable(state.root, error) from error


def unreadable_error(path: Path) -> StateDirError:
    """Return the error for a state directory that this user may not read."""
    return StateDirError(
        f"{path} may not be read by this user: run the command as its owner, or give another --state-dir"
    )


def _make(state: StateDir) -> list[Path]:
    """Make the folders of the state directory that are missing, and return what was made, the oldest first."""
    made: list[Path] = []
    try:
        _make_folders(state.root, made, PRIVATE_FOLDER)
        if not any(state.root.iterdir()):  # never hide the files of a user who names a directory that exists
            made.append(state.root / ".gitignore")
            write_private(made[-1], "*\n")
        _make_folders(state.runtime, made, PRIVATE_FOLDER)
        state.runtime.chmod(PRIVATE_FOLDER)
    except OSError as error:
        _undo(made)
        raise _unusable(state.root, error) from error
    return made


def _make_folders(path: Path, made: list[Path], mode: int) -> None:
    """Make the folder *path* with *mode*, and missing folders above it with the usual mode; append the new folders to
    *made*."""
    if not path.parent.exists():
        _make_folders(path.parent, made, _FOLDER_MODE)
    if not path.is_dir():
        path.mkdir(mode, exist_ok=True)
        made.append(path)


def _undo(made: list[Path]) -> None:
    for path in reversed(made):
        with suppress(OSError):  # the first error is the one to report; a folder that is in use by now stays
            path.rmdir() if path.is_dir() else path.unlink()


def _unusable(path: Path, error: OSError) -> StateDirError:
    names_path = error.filename in (None, str(path)) or error.errno == errno.ENAMETOOLONG
    where = "" if names_path else f"{error.filename}: "
    return _not_usable(path, f"{where}{error.strerror}")


def _not_usable(path: Path, why: str) -> StateDirError:
    return StateDirError(f"{path} cannot be a state directory: {why}; use another state directory")


# --------------------------------------------------------------------------------------------------------- names
def folder_name(session_id: str) -> PurePath:
    """Return *session_id* as a relative path below ``agents/``: one folder, or several if the name is too long for one.

    No two ids share a folder, no folder is outside ``agents/``, and :func:`session_id` is the inverse function.
    """
    return PurePath(_folder(session_id))


def _folder(session_id: str) -> str:
    if not session_id:
        raise ValueError("session_id: '' names no session; give the id of one")
    name = quote(session_id, safe="", errors="surrogateescape")
    if name in (".", ".."):
        name = name.replace(".", "%2E")
    parts = [name[start : start + _NAME_MAX] for start in range(0, len(name), _NAME_MAX)]
    return "+/".join(parts)  # a quoted name has no "+" of its own


def session_id(folder: PurePath) -> str:
    """Return the id of the session for which :func:`folder_name` returns *folder*."""
    return unquote("".join(part.removesuffix("+") for part in folder.parts), errors="surrogateescape")


@contextmanager
def socket_address(path: Path, descriptors: Path = _DESCRIPTORS) -> Iterator[str]:
    """Yield *path*, or, if *path* is too long for a socket address, a short path through *descriptors* to the same file
    that is valid within the context.

    Raises:
        OSError: the path is too long, and there is no such directory; or the directory of *path* cannot be opened.
    """
    size = len(os.fsencode(path))
    if size <= _ADDRESS_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not descriptors.is_dir():
            why = (
                f"the path of the control socket has {size} bytes, and a socket address of this system takes at most "
                f"{_ADDRESS_BYTES_MAX}; use a state directory with a shorter path"
            )
            raise OSError(errno.ENAMETOOLONG, why, str(path))
        yield f"{descriptors}/{folder}/{path.name}"
    finally:
        os.close(folder)
