"""Git commands for the workspaces: with settings that an agent cannot change, with deadlines, and with complete output.
No command waits for a person, who cannot be asked: git, its credential helpers and ssh are told so, a server that says
nothing is given up, and so is a helper that waits all the same (``PROMPT_S``).
Hooks are not run, since an agent may have put them into the repository. Filters and merge drivers of the repository's
settings are run, since the user's own ones are needed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import msgspec

from supervisor.ports import Changes, Launch, MergePlan, Process, ProcessHost, SpawnError, WorkspaceHeld
from supervisor.ports.helper_programs import OUTPUT_MAX, CompletedCommand, run_command, run_reader
from supervisor.workspaces.git_environment import git_environment
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
are; so do ``worktree list`` and a question for a setting. ``symbolic-ref`` is used for reading only."""

_IDENTITY: Final = {
    "GIT_AUTHOR_NAME": "supervisor",
    "GIT_AUTHOR_EMAIL": "supervisor@localhost",
    "GIT_COMMITTER_NAME": "supervisor",
    "GIT_COMMITTER_EMAIL": "supervisor@localhost",
}
SILENCE_S: Final = 15
"""Seconds for which a server of git may be silent: one that accepts a connection and says nothing, or stops in the
middle."""
PROMPT_S: Final = 10.0
"""Seconds that a credential helper may take. A helper that asks nobody takes a second; one that waits for a person
would wait for ever."""
LOOK_S: Final = 2.0
"""Seconds between two looks for such a helper."""
NEVER_ASK: Final = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "",
    "SSH_ASKPASS_REQUIRE": "never",
    "GCM_INTERACTIVE": "never",
    "GIT_HTTP_LOW_SPEED_LIMIT": "1",
    "GIT_HTTP_LOW_SPEED_TIME": str(SILENCE_S),
}
"""Variables with which git, and what it starts, ask nobody, and give up a silent server."""
_SSH_OPTIONS: Final = (
    f"-o BatchMode=yes -o ConnectTimeout={SILENCE_S} -o ServerAliveInterval={SILENCE_S} -o ServerAliveCountMax=1"
)
_REMOTE: Final = ("git-remote-http", "git remote-http")
"""Beginnings of the command line of git's program that talks HTTP. Its children are credential helpers."""
_NO_REMOTE: Final = "Could not read from remote repository"
_COMMAND_CHARS: Final = 160
"""Number of characters of a command line in a message."""
_QUIET: Final = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.quotePath=false",
    "commit.gpgSign=false",
    "gc.auto=0",
)
_MAY_FETCH: Final = ("worktree", "reset", "checkout", "diff", "merge", "merge-tree", "submodule", "cat-file")
"""Commands that fetch what a partial clone lacks."""
USER: Final = "user"
"""Author that stands for the name and address that git is configured with."""
SHOW_INNER: Final = "--ignore-submodules=none"
"""Option that makes git examine nested repositories, whatever the repository's settings, which an agent can change."""
RAW: Final = ("--raw", "-z", "--no-renames", SHOW_INNER)
_DIFF: Final = ("diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", SHOW_INNER)
SUBMODULE: Final = "160000"
"""Mode by which git marks a nested repository."""


class CommitStyle(NamedTuple):
    """Author and signature of the supervisor's commits: *author* is ``NAME <EMAIL>``, ``user`` for the name that git is
    configured with, or ``""`` for the supervisor's own; *sign*: sign them, as git is configured to."""

    author: str = ""
    sign: bool = False

    @property
    def variables(self) -> dict[str, str]:
        """Variables that name the author and the committer to git."""
        if self.author == USER:
            return {}
        if not self.author:
            return _IDENTITY
        name, _, email = self.author.rstrip(">").partition(" <")
        who = {"NAME": name, "EMAIL": email}
        return {f"GIT_{role}_{part}": value for role in ("AUTHOR", "COMMITTER") for part, value in who.items()}


OWN_STYLE: Final = CommitStyle()


class WorkspaceError(OSError):
    """Error: a workspace does not exist, or its work is not available; the message gives the reason."""


class GitKilled(WorkspaceError):
    """Error: a git command was killed, by a user, or by a kernel that is out of memory. It gives no answer, and what it
    has changed is unknown: its step has to be finished or undone, and made again."""


class Git:
    """Runner of git commands in one repository and its worktrees."""

    def __init__(self, host: ProcessHost, repository: str, commits: CommitStyle = OWN_STYLE) -> None:
        """Args: host: starts the git processes. repository: a directory in the repository. commits: author and
        signature of commits."""
        self._host, self._commits = host, commits
        self.repository = repository
        self._ssh: str | None = None
        """The user's ssh command with options that let it ask nobody; ``None`` while it is not known."""

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

    async def diff_names(self, base: str, commit: str) -> bytes:
        """Return the names of the files that differ between two commits, as git lists them, up to ``LISTED_MAX``
        bytes."""
        named = await self.run_bounded(self.repository, *_DIFF, "--name-only", "-z", base, commit)
        if not named.ok:
            raise WorkspaceError(f"git diff failed in {self.repository}: {error_of(named)}")
        return named.stdout

    async def merge_trees(self, head: str, work: str) -> tuple[str, tuple[str, ...] | None]:
        """Return the tree of a merge of two commits, and the files in conflict; ``None`` if there is no conflict.

        Raises:
            WorkspaceError: git fails.
        """
        how = ("--write-tree", "--name-only", "--no-messages", "-z")
        tried = await self.run(self.repository, "merge-tree", *how, head, work)
        tree, *files = names_in_list(tried.stdout) or ("",)
        if not tried.ok and not (tried.status == 1 and tree):
            raise await failure_of(tried, self.repository, f"git merge-tree failed: {error_of(tried)}")
        return tree, tuple(files) if not tried.ok else None

    async def diff_commits(self, base: str, commit: str) -> Changes:
        listed = await self.diff_names(base, commit)
        patch = await self.run_bounded(self.repository, *_DIFF, base, commit, output_max=OUTPUT_MAX)
        if not patch.ok:
            raise WorkspaceError(f"git diff failed in {self.repository}: {error_of(patch)}")
        shown = patch.stdout.decode(errors="replace") if len(patch.stdout) < OUTPUT_MAX else ""
        return Changes(
            base=base, commit=commit, files=names_in_list(listed), whole=len(listed) < LISTED_MAX, diff=shown
        )

    async def common_base(self, head: str, commit: str) -> str:
        """Return the last common commit of a session's work and *head* of the target.

        Raises:
            WorkspaceError: there is no common commit, since the agent began a history of its own.
        """
        if base := await self.base(head, commit):
            return base
        words = f"the commit {commit[:12]} that it has come to has no history in common with the branch that it is for"
        raise WorkspaceError(f"{words}; take what you need from there by hand (git cherry-pick)")

    async def path_inside(self, directory: str) -> str:
        """Return the path from the top of the repository to *directory*."""
        found = await self.run(directory, "rev-parse", "--show-toplevel", "--show-prefix")
        if not found.ok:
            raise WorkspaceError(
                f"{directory} is not in a git repository ({error_of(found)}); use workspace: directory"
            )
        top, _, inside = found.stdout.decode(errors="surrogateescape").partition("\n")
        ours = text_of(await self.must(self.repository, "rev-parse", "--show-toplevel"))
        if top != ours:
            raise WorkspaceError(f"{directory} is in another repository than {ours}; use workspace: directory")
        return inside.strip("\n")

    async def plan_merge(self, branch: str, target: str, commit: str = "") -> MergePlan:
        """Return the plan of the merge of *branch*, or of its *commit*, into *target*.

        Raises:
            WorkspaceError: git fails, or there is no common commit.
        """
        commit = commit or await self.commit_of(self.repository, f"refs/heads/{branch}")
        head = await self.commit_of(self.repository, f"refs/heads/{target}")
        base = await self.common_base(head, commit)
        listed = await self.diff_names(base, commit)
        behind = text_of(await self.must(self.repository, "rev-list", "--count", f"{base}..{head}"))
        _, conflicts = await self.merge_trees(head, commit)
        return MergePlan(
            branch=branch,
            commit=commit,
            target=target,
            target_commit=head,
            base=base,
            files=names_in_list(listed),
            whole=len(listed) < LISTED_MAX,
            behind=int(behind),
            conflicts=conflicts or (),
            is_merged=base == commit,
        )

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
        only_reads = _only_reads(words)
        if self._ssh is None and words[0] in _MAY_FETCH and not only_reads:
            self._ssh = await self._ssh_command()
        launch, timeout_s = self._launch(where, words, index), timeout_s or GIT_S
        ran = None
        if only_reads:
            ran = await run_reader(launch, timeout_s=timeout_s, output_max=output_max)
        if ran is None:
            ran = await run_command(
                self._host, launch, timeout_s=timeout_s, output_max=output_max, watch=find_waiting_helper
            )
        if ran.was_killed:
            why = ran.problem or f"signal {-(ran.status or 0)}"
            raise GitKilled(f"git {words[0]} was killed in {where}: {why}")
        if ran.status is None and ran.problem:
            return msgspec.structs.replace(
                ran, problem=f"`{' '.join(('git', *words))[:_COMMAND_CHARS]}`: {ran.problem}"
            )
        return ran

    async def _ssh_command(self) -> str:
        """Return the user's ssh command, with options that let it ask nobody. ``""`` if it is not ssh: its options are
        not known."""
        ssh = os.environ.get("GIT_SSH_COMMAND", "") or os.environ.get("GIT_SSH", "")
        if not ssh:
            ssh = text_of(await self.run(self.repository, "config", "core.sshCommand")) or "ssh"
        return f"{ssh} {_SSH_OPTIONS}" if os.path.basename(ssh.split()[0]) == "ssh" else ""

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
        env = {**git_environment(), **self._commits.variables, **NEVER_ASK}
        if self._ssh:
            env["GIT_SSH_COMMAND"] = self._ssh
        if index is not None:
            env["GIT_INDEX_FILE"] = str(index)
        settings = (*_QUIET, *(["commit.gpgSign=true"] if self._commits.sign else []))  # the last one counts
        config = [part for setting in settings for part in ("-c", setting)]
        if self._commits.sign and words[0] == "commit-tree":  # which takes no account of commit.gpgSign
            words = (words[0], "--gpg-sign", *words[1:])
        return Launch(argv=("git", *config, *words), cwd=where, env=env)


async def find_waiting_helper(process: Process) -> str:
    """Wait until a credential helper below the git *process* has run for ``PROMPT_S`` seconds: it asks a person, who
    is not there. Return that as the reason to end git."""
    first = dict[tuple[int, int], float]()
    while True:
        await anyio.sleep(LOOK_S)
        seen = {one.pid: one for one in await process.list_processes() or () if one.alive}
        remotes = {one.pid for one in seen.values() if one.command.startswith(_REMOTE) or _is_remote(one.command)}
        for one in seen.values():
            if one.parent in remotes:
                since = first.setdefault((one.pid, one.born), anyio.current_time())
                if anyio.current_time() - since >= PROMPT_S:
                    what = f"its credential helper ({one.command[:_COMMAND_CHARS]}) has not answered"
                    return f"{what} for {PROMPT_S:g} s; nobody can be asked for a password here"


def _is_remote(command: str) -> bool:
    """Return whether *command* is git's program that talks HTTP, called by its path."""
    return os.path.basename(command.split(" ")[0]).startswith(_REMOTE)


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
    reads_setting = words[0] == "config" and (len(words) == 2 or "--get" in words)
    return words[0] in _READERS or reads_setting or tuple(words[:2]) == ("worktree", "list")


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
    if ran.problem:
        return f"{ran.problem}; its last words: {lines[-1].strip()}" if lines else ran.problem
    if not errors:
        return (lines[-1:] or [f"exit status {ran.status}"])[0]
    at = errors[0]
    if at and _NO_REMOTE in lines[at]:  # the line before, of ssh, says why
        return f"{lines[at - 1].strip()}; {lines[at]}"
    files = [line.strip() for line in takewhile(lambda line: line.startswith("\t"), lines[at + 1 :])]
    return f"{lines[at]} {', '.join(files)}".strip()
