"""Git commands for the workspaces: settings that an agent cannot change, deadlines, and whole answers.

Hooks that an agent may have put into the repository are not run; filters and merge drivers of its settings are, as the
user's own are needed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import takewhile
from typing import Final

import msgspec

from supervisor.ports import Launch, ProcessHost
from supervisor.programs import Ran, run_program

__all__ = [
    "LISTED_MAX",
    "RAW",
    "SHOW_INNER",
    "Git",
    "WorkspaceError",
    "error_of",
    "names_in_list",
    "repositories_listed",
    "some_of",
    "text_of",
]

GIT_S = 60.0
"""How long one git command may take: a checkout of a large repository is the longest of them."""

LISTED_MAX: Final = 16 * 1024 * 1024
"""Bytes of what git lists that are read, some 100,000 files. A longer list is refused: all of it decides, or none."""

NAMED_MAX: Final = 20
"""Files that are named where somebody is told of them."""

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
"""Repositories inside are looked at, whatever the settings of this one say: an agent can change them."""
RAW: Final = ("--raw", "-z", "--no-renames", SHOW_INNER)
_SUBMODULE: Final = b"160000"


class WorkspaceError(OSError):
    """There is no place to work, or what was done there cannot be had; the message says why."""


class Git:
    """The git commands of one repository and its worktrees."""

    def __init__(self, host: ProcessHost, repository: str) -> None:
        """Args:
        host: where git is run.
        repository: a directory in the repository.
        """
        self._host = host
        self.repository = repository

    async def contains(self, one: str, other: str) -> bool:
        """True if *other* is *one*, or came before it."""
        return (await self.run(self.repository, "merge-base", "--is-ancestor", other, one)).ok

    async def base(self, one: str, other: str) -> str:
        """The last commit that both came from; ``""`` where there is none."""
        found = await self.run(self.repository, "merge-base", one, other)
        return text_of(found) if found.ok else ""

    async def commit_of(self, where: str, name: str) -> str:
        found = await self.run(where, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        return text_of(found) if found.ok else ""

    async def holder(self, target: str) -> str | None:
        """The worktree that has *target* checked out."""
        listed = await self.must(self.repository, "worktree", "list", "--porcelain", "-z")
        for entry in listed.stdout.decode(errors="surrogateescape").split("\0\0"):
            fields = dict(line.partition(" ")[::2] for line in entry.split("\0"))
            if fields.get("branch") == f"refs/heads/{target}" and "prunable" not in fields:
                return fields["worktree"]
        return None

    async def repositories_inside(self, base: str, work: str) -> tuple[str, ...]:
        """The repositories inside the worktree that the work has and *base* has not, or not at that commit."""
        return repositories_listed((await self.must(self.repository, "diff", *RAW, base, work)).stdout)

    async def must(self, where: str, *words: str) -> Ran:
        ran = await self.run(where, *words)
        if not ran.ok:
            raise WorkspaceError(f"git {words[0]} failed in {where}: {error_of(ran)}")
        return ran

    async def run(self, where: str, *words: str, timeout_s: float | None = None) -> Ran:
        """All that it says, or it has failed."""
        ran = await self.run_bounded(where, *words, timeout_s=timeout_s)
        if len(ran.stdout) < LISTED_MAX:
            return ran
        return msgspec.structs.replace(ran, status=None, problem=f"it lists more than {LISTED_MAX} bytes")

    async def run_bounded(
        self, where: str, *words: str, output_max: int = LISTED_MAX, timeout_s: float | None = None
    ) -> Ran:
        env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": os.environ.get("HOME", "/"), **_IDENTITY}
        config = [part for setting in _QUIET for part in ("-c", setting)]
        launch = Launch(argv=("git", *config, *words), cwd=where, env=env)
        return await run_program(self._host, launch, timeout_s=timeout_s or GIT_S, output_max=output_max)


def text_of(ran: Ran) -> str:
    return ran.stdout.decode(errors="surrogateescape").strip("\n")


def names_in_list(listed: bytes) -> tuple[str, ...]:
    """Files that git lists with ``-z``, as text that can be kept: of a name that is not UTF-8, bytes as ``\\xff``."""
    return tuple(name.decode(errors="backslashreplace") for name in listed.split(b"\0") if name)


def repositories_listed(listed: bytes) -> tuple[str, ...]:
    """The repositories among what git lists with ``--raw -z``: for each file what became of it, and its name."""
    fields = listed.split(b"\0")
    entries = zip(fields[::2], fields[1::2], strict=False)
    return names_in_list(b"\0".join(name for modes, name in entries if modes.split()[1] == _SUBMODULE))


def some_of(files: Sequence[str]) -> str:
    more = f" and {len(files) - NAMED_MAX} more" if len(files) > NAMED_MAX else ""
    return f"{', '.join(files[:NAMED_MAX])}{more}"


def error_of(ran: Ran) -> str:
    """What git has to say, in a line: its first error, with the files that it lists below, or its last word."""
    lines = ran.output.strip().splitlines()
    errors = [at for at, line in enumerate(lines) if line.startswith(("error:", "fatal:"))]
    if ran.problem or not errors:
        return ran.problem or (lines[-1:] or [f"exit status {ran.status}"])[0]
    files = [line.strip() for line in takewhile(lambda line: line.startswith("\t"), lines[errors[0] + 1 :])]
    return f"{lines[errors[0]]} {', '.join(files)}".strip()
