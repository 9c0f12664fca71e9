"""Text files that the supervisor reads and writes for an agent: bounded, regular, below the agent's workspace, and
neither the supervisor's own nor git's.

Theory of operation
-------------------
An agent may run in a sandbox that hides the state directory and ``.git``; the supervisor does not run in the sandbox,
so it must not open such files for the agent. Checking a path is not enough: between the check and the open an agent can
put a symbolic link in the place of a directory. So a path is resolved once, and opened from the workspace downwards,
each directory by the descriptor of the directory above, without following links. Each descriptor is checked before the
next step: is the directory the state directory, or git's? Nothing is made, truncated or written before all checks have
passed, and new files are made below the last descriptor.

- *The state directory* is recognised by its device and inode, whatever its path. A worktree in the state
  directory is an agent's workspace: the walk begins there, and so does not pass the state directory.
- *Git's own* is everything called ``.git``, in any case, as a file too; a file that is the same as the ``.git`` beside
  it, however a file system spells the name; and each directory that git would take for a repository (``HEAD`` with
  ``objects`` and ``refs``, or with ``commondir``): a bare one, one apart from its work tree, and a worktree's part of
  one.
- A hard link to such a file is not recognised: a process that can make a hard link can open the file already. Writing
  never changes a file through a hard link, since a file is replaced as a whole; a concurrent reader sees the old text
  or the new one.

Every step blocks, so each request runs in a thread.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import anyio

from supervisor.ports import FileRefused
from supervisor.ports.input_limits import FILE_BYTES_MAX
from supervisor.ports.path_safety import outside

THREADS: Final = 4
"""Number of requests that are handled at once, as for directories: each new thread has a heap of its own."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REPLACED: Final = (errno.ELOOP, errno.ENOTDIR)
"""Errors of an open without following links, if there is a link at the path now."""
_STATE: Final = "it is in the state directory, which is the supervisor's own"
_GIT: Final = "it is git's own; use git"


class DiskFiles:
    """Access to the files of this machine for agents (``supervisor.ports.AgentFiles``).

    Args:
        state_dir: the state directory, ``None`` if there is none; agents may work below it only in *worktrees*.
    """

    def __init__(self, state_dir: Path | None = None, worktrees: Path | None = None) -> None:
        self._limiter = anyio.CapacityLimiter(THREADS)
        self._state_dir, self._worktrees = state_dir, worktrees

    async def read(self, path: str, workspace: str) -> str:
        return await anyio.to_thread.run_sync(
            self._read, path, workspace, limiter=self._limiter, abandon_on_cancel=True
        )

    async def write(self, path: str, text: str, workspace: str) -> None:
        await anyio.to_thread.run_sync(self._write, path, text, workspace, limiter=self._limiter)

    def _read(self, path: str, workspace: str) -> str:
        with self._directory_of(path, workspace, make=False) as (directory, name):
            # Opening a pipe would wait for a writer: it is opened without waiting, and refused.
            with _unreplaced(path):
                handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            with open(handle, "rb") as file:
                _check_file(path, os.fstat(handle), directory)
                data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise OSError(f"{path!r} is longer than {FILE_BYTES_MAX} bytes, the most that is read for an agent")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise OSError(f"{path!r} is not UTF-8: {error}") from None

    def _write(self, path: str, text: str, workspace: str) -> None:
        with self._directory_of(path, workspace, make=True) as (directory, name):
            mode = 0o666 & ~_umask()
            with suppress(FileNotFoundError):
                there = os.stat(name, dir_fd=directory, follow_symlinks=False)
                _check_file(path, there, directory)
                mode = stat.S_IMODE(there.st_mode)
            new = f".{name[:64]}.{secrets.token_hex(4)}"
            made = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
            try:
                with open(made, "wb") as file:
                    file.write(text.encode(errors="replace"))
                    os.fchmod(made, mode)
                os.replace(new, name, src_dir_fd=directory, dst_dir_fd=directory)  # follows no link
            except BaseException:
                os.unlink(new, dir_fd=directory)
                raise

    # ------------------------------------------------------------------ the way there
    @contextmanager
    def _directory_of(self, path: str, workspace: str, *, make: bool) -> Iterator[tuple[int, str]]:
        """Open the directory of the file at *path*; yield its descriptor and the file's name. *make* makes missing
        directories.

        Raises:
            FileRefused: an agent may not use the file, or a part of the path was replaced meanwhile.
            OSError: a directory cannot be opened.
        """
        top = Path(os.path.realpath(workspace))
        *names, last = self._names(path, top)
        here = os.open(top, _DIRECTORY)
        try:
            self._check_directory(path, here, None)
            self._check_above(path, here)
            for name in names:
                above, here = here, self._below(path, here, name, make=make)
                try:
                    self._check_directory(path, here, above)
                finally:
                    os.close(above)
            yield here, last
        finally:
            os.close(here)

    def _names(self, path: str, top: Path) -> tuple[str, ...]:
        """Return the parts of the path from the workspace to the file, with links resolved as they are now."""
        found = Path(os.path.realpath(top / path))
        if self._is_state(top):
            raise _refusal(path, _STATE)
        if why := outside("path", str(top / path), str(top)):
            raise FileRefused(why)
        if found == top or not found.is_relative_to(top):  # the latter: a link has just been put there
            raise OSError(f"{path!r} is not a regular file")
        names = found.relative_to(top).parts
        if any(_is_git_name(name) for name in names):
            raise _refusal(path, _GIT)
        return names

    def _is_state(self, top: Path) -> bool:
        """Return whether the workspace lies in the state directory and is no worktree."""
        if self._state_dir is None or not top.is_relative_to(os.path.realpath(self._state_dir)):
            return False
        worktrees = Path(os.path.realpath(self._worktrees or self._state_dir))
        return top == worktrees or not top.is_relative_to(worktrees)

    def _below(self, path: str, above: int, name: str, *, make: bool) -> int:
        if make:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=above)
        with _unreplaced(path):
            return os.open(name, _DIRECTORY, dir_fd=above)

    def _check_above(self, path: str, directory: int) -> None:
        """Raise an error if the workspace lies in a ``.git``, since an agent has replaced its workspace by a link.

        The opened directory is examined, since its path may lead elsewhere by now. Worktrees may lie in a ``.git`` if
        the state directory does.
        """
        here = os.dup(directory)
        try:
            while not (
                self._worktrees is not None and _is_same(os.fstat(here), os.path.abspath(self._worktrees), None)
            ):
                below, here = here, os.open("..", _DIRECTORY, dir_fd=here)
                found, at_top = os.fstat(below), os.path.samestat(os.fstat(below), os.fstat(here))
                os.close(below)
                if at_top:
                    return
                if _is_same(found, ".git", here):
                    raise _refusal(path, _GIT)
        finally:
            os.close(here)

    def _check_directory(self, path: str, directory: int, above: int | None) -> None:
        found = os.fstat(directory)
        if self._state_dir is not None and _is_same(found, os.path.abspath(self._state_dir), None):
            raise _refusal(path, _STATE)
        if _is_repository(directory) or (above is not None and _is_same(found, ".git", above)):
            raise _refusal(path, _GIT)


def _check_file(path: str, found: os.stat_result, directory: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{path!r} is not a regular file")
    if _is_same(found, ".git", directory):
        raise _refusal(path, _GIT)


def _refusal(path: str, why: str) -> FileRefused:
    return FileRefused(f"{path!r} is not for agents: {why}")


@contextmanager
def _unreplaced(path: str) -> Iterator[None]:
    """Raise errors of the body with the whole path in them. An error that a link in the path causes is a refusal, since
    the link was made after the path was resolved."""
    try:
        yield
    except OSError as error:
        if error.errno in _REPLACED:
            raise _refusal(path, "a part of it is no directory, or was replaced while it was looked for") from None
        raise OSError(error.errno, error.strerror, path) from None


def _is_git_name(name: str) -> bool:
    """Return whether some file system treats *name* as ``.git``: in another case, or with invisible characters."""
    seen = (char for char in unicodedata.normalize("NFKC", name) if unicodedata.category(char) != "Cf")
    return "".join(seen).casefold() == ".git"


def _is_same(found: os.stat_result, name: str, directory: int | None) -> bool:
    """Return whether *found* is the file named *name* in *directory*."""
    try:
        return os.path.samestat(found, os.stat(name, dir_fd=directory, follow_symlinks=directory is None))
    except OSError:  # nothing has
        return False


def _is_repository(directory: int) -> bool:
    """Return whether git takes that directory for a repository, or for the part of a repository that belongs to a
    worktree."""
    return _has(directory, "HEAD") and (
        _has(directory, "commondir") or (_has(directory, "objects") and _has(directory, "refs"))
    )


def _has(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return True


def _umask() -> int:
    """Return the umask as the kernel's status file shows it (``022`` if there is none): reading the umask by a system
    call would change it."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0o022
    return next((int(line.split()[1], 8) for line in status.splitlines() if line.startswith("Umask:")), 0o022)
