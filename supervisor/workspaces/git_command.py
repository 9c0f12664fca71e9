"""Git commands for the workspaces: with settings that an agent cannot change, with deadlines, and with complete output.
Hooks are not run, since an agent may have put them into the repository. Filters and merge drivers of the repository's
settings are run, since the user's own ones are needed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

import anyio
import msgspec

from supervisor.ports import Launch, Process, ProcessHost, SpawnError, WorkspaceHeld
from supervisor.ports.helper_programs import CompletedCommand, run_command, run_reader
from supervisor.workspaces.obstacles import obstacle_in

GIT_S = 60.0
"""Seconds that one git command may take; a checkout of a large repository takes longest."""

LISTED_MAX: Final = 16 * 1024 * 1024
"""Number of bytes of a listing that are read, some 100,000 files. A longer listing is an error, since decisions need
the whole listing."""

ARGUMENTS_MAX: Final = 64 * 1024
"""Largest number of bytes of paths in one command."""

NAMED_MAX: Final = 20
"""Largest number of files that a message names."""

_READERS: Final = frozenset({"for-each-ref", "merge-base", "rev-list", "rev-parse", "symbolic-ref", "version"})
"""Commands that read objects and references only, and start no filter, hook or helper program, whatever the settings
are; so does ``worktree list``. ``symbolic-ref`` is used for reading only."""

_IDENTITY: Final = {
    "GIT_AUTHOR_NAME": "supervisor",
    "GIT_AUTHOR_EMAIL": "supervisor@localhost",
    "GIT_COMMITTER_NAME": "supervisor",
    "GIT_COMMITTER_EMAIL": "supervisor@localhost",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
_QUIET: Final = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.quotePath=false",
    "commit.gpgSign=false",
    "gc.auto=0",
)
SHOW_INNER: Final = "--ignore-submodules=none"
"""Option that makes git examine nested repositories, whatever the repository's settings, which an agent can change."""
RAW: Final = ("--raw", "-z", "--no-renames", SHOW_INNER)
SUBMODULE: Final = "160000"
"""Mode by which git marks a nested repository."""


class WorkspaceError(OSError):
    """Error: a workspace does not exist, or its work is not available; the message gives the reason."""


class GitKilled(WorkspaceError):
    """Error: a git command was killed, by a user, or by a kernel that is out of memory. It gives no answer, and what it
    has changed is unknown: its step has to be finished or undone, and made again."""


class Git:
    """Runner of git commands in one repository and its worktrees."""

    def __init__(self, host: ProcessHost, repository: str) -> None:
        """Args: host: starts the git processes. repository: a directory in the repository."""
        self._host = host
        self.repository = repository

    async def contains(self, one: str, other: str) -> bool:
        """Return whether *other* is *one*, or an ancestor of it; ``False`` if either is no commit.

        Raises:
            WorkspaceError: git failed or timed out.
        """
        found = await self._merge_base("--is-ancestor", other, one)
        return found is not None and found.ok

    async def base(self, one: str, other: str) -> str:
        """Return the last common ancestor of two commits; ``""`` if there is none, or either is no commit.

        Raises:
            WorkspaceError: git failed or timed out.
        """
        found = await self._merge_base(one, other)
        return text_of(found) if found is not None and found.ok else ""

    async def _merge_base(self, *words: str) -> CompletedCommand | None:
        """Run ``git merge-base``; return ``None`` if one of the last two words is no commit.

        Git has the same exit status for that case as for other failures, so the names are examined after a failure.

        Raises:
            WorkspaceError: git failed or timed out.
        """
        ran = await self.run(self.repository, "merge-base", *words)
        if ran.status in (0, 1):
            return ran
        for name in words[-2:]:
            if not await self.commit_of(self.repository, name):
                return None
        raise WorkspaceError(f"git merge-base failed in {self.repository}: {error_of(ran)}")

    async def commit_of(self, where: str, name: str) -> str:
        """Return the commit to which *name* refers; ``""`` if there is none.

        Raises:
            WorkspaceError: git failed or timed out.
        """
        found = await self._answer(where, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        return text_of(found) if found.ok else ""

    async def holders(self, branch: str) -> list[str]:
        """Return the worktrees that have *branch* checked out: at most one, unless a user has forced git."""
        listed = await self.must(self.repository, "worktree", "list", "--porcelain", "-z")
        entries = listed.stdout.decode(errors="surrogateescape").split("\0\0")
        worktrees = [dict(line.partition(" ")[::2] for line in entry.split("\0")) for entry in entries]
        named = f"refs/heads/{branch}"
        return [one["worktree"] for one in worktrees if one.get("branch") == named and "prunable" not in one]

    async def common_dir(self) -> Path:
        """Return the directory in which git stores the files that all worktrees share."""
        return Path(
            text_of(await self.must(self.repository, "rev-parse", "--path-format=absolute", "--git-common-dir"))
        )

    async def repositories_inside(self, base: str, work: str) -> tuple[str, ...]:
        """Return the nested repositories in *work* that *base* does not have, or has at another commit."""
        return repositories_listed((await self.must(self.repository, "diff", *RAW, base, work)).stdout)

    async def must(self, where: str, *words: str, index: Path | None = None) -> CompletedCommand:
        """Run git, and return the result.

        Raises:
            WorkspaceHeld: a lock of another git, or a full disk, prevented it.
            WorkspaceError: git failed or timed out.
        """
        ran = await self.run(where, *words, index=index)
        if not ran.ok:
            raise await failure_of(ran, where, f"git {words[0]} failed in {where}: {error_of(ran)}")
        return ran

    async def _answer(self, where: str, *words: str) -> CompletedCommand:
        """Run a git command that replies with yes (exit status 0) or no (1).

        Any other end is no reply: a time-out, a git that was killed, or a failure. To take it for "no" would be a guess
        that decides about the user's files.

        Raises:
            WorkspaceError: git failed or timed out.
        """
        ran = await self.run(where, *words)
        if ran.status not in (0, 1):
            raise WorkspaceError(f"git {words[0]} failed in {where}: {error_of(ran)}")
        return ran

    async def run(
        self, where: str, *words: str, timeout_s: float | None = None, index: Path | None = None
    ) -> CompletedCommand:
        """Run git and return the result with the whole output; output longer than ``LISTED_MAX`` counts as a failure.
        *index*: the file that git uses as the index.

        Raises:
            GitKilled: git was killed.
        """
        ran = await self.run_bounded(where, *words, timeout_s=timeout_s, index=index)
        if len(ran.stdout) < LISTED_MAX:
            return ran
        return msgspec.structs.replace(ran, status=None, problem=f"it lists more than {LISTED_MAX} bytes")

    async def run_bounded(
        self,
        where: str,
        *words: str,
        output_max: int = LISTED_MAX,
        timeout_s: float | None = None,
        index: Path | None = None,
    ) -> CompletedCommand:
        launch, timeout_s = self._launch(where, words, index), timeout_s or GIT_S
        ran = None
        if _only_reads(words):
            ran = await run_reader(launch, timeout_s=timeout_s, output_max=output_max)
        if ran is None:
            ran = await run_command(self._host, launch, timeout_s=timeout_s, output_max=output_max)
        if ran.was_killed:
            why = ran.problem or f"signal {-(ran.status or 0)}"
            raise GitKilled(f"git {words[0]} was killed in {where}: {why}")
        return ran

    async def run_over(
        self, where: str, words: Sequence[str], paths: Sequence[str], *, index: Path | None = None
    ) -> bytes:
        """Run one command over many paths, in batches; return its whole output.

        Raises:
            WorkspaceError: the command failed.
        """
        said = b""
        for some in _in_batches(paths):
            said += (await self.must(where, *words, "--", *some, index=index)).stdout
        return said

    async def begins_like(self, where: str, path: str, blob: str) -> bool:
        """Return whether the file *path* is the beginning of the file that git would write there when it checks out
        *blob*, filters included.

        A git that was killed, or found the disk full, leaves such a file.

        Raises:
            GitKilled: git was killed.
            WorkspaceError: git failed, could not be started, or took longer than ``GIT_S``.
        """
        launch = self._launch(where, ("cat-file", "--filters", f"--path={path}", blob), None)
        try:
            # The time counts from the start of git on: before, the host may wait for file descriptors.
            async with self._host.spawn(launch) as process:
                with anyio.fail_after(GIT_S):
                    return await _is_beginning(Path(where, path), process)
        except (SpawnError, TimeoutError) as error:
            why = str(error) or f"it took longer than {GIT_S:g} s"
            raise WorkspaceError(f"{path} in {where} could not be compared with what git has of it: {why}") from error

    def _launch(self, where: str, words: Sequence[str], index: Path | None) -> Launch:
        env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": os.environ.get("HOME", "/"), **_IDENTITY}
        if index is not None:
            env["GIT_INDEX_FILE"] = str(index)
        config = [part for setting in _QUIET for part in ("-c", setting)]
        return Launch(argv=("git", *config, *words), cwd=where, env=env)


async def _is_beginning(path: Path, process: Process) -> bool:
    """Return whether the output of *process* begins with the content of the file *path*."""
    async with await anyio.open_file(path, "rb") as file:
        process.close_input()
        while piece := await process.receive():
            ours = await file.read(len(piece))
            if not piece.startswith(ours):
                return False
            if len(ours) < len(piece):
                return True
        status = await process.wait_exit()
        if status is None or status < 0:
            raise GitKilled(f"git cat-file was killed (status {status})")  # its output may be cut off
        if status:
            raise WorkspaceError(f"{path} could not be compared with what git has of it: exit status {status}")
        return not await file.read(1)


def _only_reads(words: Sequence[str]) -> bool:
    return words[0] in _READERS or tuple(words[:2]) == ("worktree", "list")


def _in_batches(paths: Sequence[str]) -> Iterator[list[str]]:
    batch, size = [], 0
    for path in paths:
        batch.append(path)
        size += len(os.fsencode(path)) + 1
        if size > ARGUMENTS_MAX:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def text_of(ran: CompletedCommand) -> str:
    return ran.stdout.decode(errors="surrogateescape").strip("\n")


def names_in_list(listed: bytes) -> tuple[str, ...]:
    """Decode a listing of git with ``-z``; bytes of a name that is not UTF-8 become ``\\xff``."""
    return tuple(name.decode(errors="backslashreplace") for name in listed.split(b"\0") if name)


def repositories_listed(listed: bytes) -> tuple[str, ...]:
    """Return the nested repositories in a listing of ``git diff --raw -z``, which has a change and a name for each
    file."""
    fields = listed.split(b"\0")
    entries = zip(fields[::2], fields[1::2], strict=False)
    return names_in_list(b"\0".join(name for modes, name in entries if modes.split()[1] == SUBMODULE.encode()))


def some_of(files: Sequence[str]) -> str:
    more = f" and {len(files) - NAMED_MAX} more" if len(files) > NAMED_MAX else ""
    return f"{', '.join(files[:NAMED_MAX])}{more}"


async def failure_of(ran: CompletedCommand, where: str, message: str) -> OSError:
    """Return the error for a git command that failed in *where*: ``WorkspaceHeld`` if its output names an obstacle that
    says nothing about the work, else a ``WorkspaceError`` with *message*."""
    held_by = await anyio.to_thread.run_sync(obstacle_in, ran.output, where)
    return WorkspaceError(message) if held_by is None else WorkspaceHeld(held_by)


def error_of(ran: CompletedCommand) -> str:
    """Describe the failure of a git command in a line: its first error with the files listed below it, or its last
    line."""
    lines = ran.output.strip().splitlines()
    errors = [at for at, line in enumerate(lines) if line.startswith(("error:", "fatal:"))]
    if ran.problem or not errors:
        return ran.problem or (lines[-1:] or [f"exit status {ran.status}"])[0]
    files = [line.strip() for line in takewhile(lambda line: line.startswith("\t"), lines[errors[0] + 1 :])]
    return f"{lines[errors[0]]} {', '.join(files)}".strip()
