"""Set-up of a new worktree: its files, its submodules, copies of files that git ignores, and a command of the user.

Nothing here changes the repository, so that a set-up that takes minutes holds up no other worktree. Until it is done,
the worktree has git's lock "initializing": whoever finds that lock after a crash makes the worktree anew.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio

from supervisor.ports import Launch, ProcessHost, WorktreeSetup
from supervisor.ports.helper_programs import CompletedCommand, run_command
from supervisor.ports.logs import get_logger
from supervisor.workspaces.git_command import NEVER_ASK, Git, WorkspaceError, error_of, failure_of, text_of

_log = get_logger()

NO_SETUP: Final = WorktreeSetup()
"""Set-up of worktrees that have the files of their commit only."""
INITIALIZING: Final = "initializing"
"""Text in git's lock of a worktree that is being made, as git itself has it."""
_SUBMODULES: Final = ".gitmodules"


async def check_setup(git: Git, setup: WorktreeSetup) -> None:
    """Check that the files to be copied exist, and that git ignores them; warn of submodules that would be empty.

    Raises:
        WorkspaceError: a file is not there, or git does not ignore it, so that copies would be merged as work.
    """
    top = Path(text_of(await git.must(git.repository, "rev-parse", "--show-toplevel")))
    for path in setup.copied:
        if not await anyio.to_thread.run_sync(os.path.lexists, top / path):
            raise WorkspaceError(f"worktree.copies: {path!r} is not in {top}; make it there, or leave it out")
        if not (await git.run(str(top), "check-ignore", "--quiet", "--", path)).ok:
            words = f"worktree.copies: git does not ignore {path!r}, so that each copy would be merged as work"
            raise WorkspaceError(f"{words}; add it to {top / '.gitignore'}, or leave it out")
    if not setup.submodules and await anyio.to_thread.run_sync((top / _SUBMODULES).exists):
        _log.warning(
            "the submodules are empty in worktrees",
            repository=str(top),
            fix="set worktree.submodules: true (or false in the repository without submodules)",
        )


async def fill_worktree(git: Git, host: ProcessHost, worktree: Path, setup: WorktreeSetup) -> None:
    """Check out the files of a new worktree, and set it up.

    Raises:
        WorkspaceHeld: a lock of another git, or a full disk, prevented it.
        WorkspaceError: git or the set-up failed; the message names the command, and has its last words.
    """
    where = str(worktree)
    await _run_git(git, where, ("reset", "--quiet", "--hard"), setup)
    if setup.submodules and await anyio.to_thread.run_sync((worktree / _SUBMODULES).exists):
        await _run_git(git, where, ("submodule", "--quiet", "update", "--init", "--recursive"), setup)
    if setup.copied:
        top = Path(text_of(await git.must(git.repository, "rev-parse", "--show-toplevel")))
        for path in setup.copied:
            await _copy(host, top / path, worktree / path, setup)
    if setup.command:
        ran = await _run(host, ("sh", "-c", setup.command), where, {**NEVER_ASK, **setup.env}, setup)
        if not ran.ok:
            raise await failure_of(ran, where, f"worktree.setup: `{setup.command}` failed in {where}: {_why(ran)}")


async def _run_git(git: Git, where: str, words: Sequence[str], setup: WorktreeSetup) -> None:
    ran = await git.run(where, *words, timeout_s=setup.timeout_s)
    if not ran.ok:
        raise await failure_of(ran, where, f"git {words[0]} failed in {where}: {error_of(ran)}")


async def _copy(host: ProcessHost, source: Path, target: Path, setup: WorktreeSetup) -> None:
    """Copy a file or a directory. ``cp`` shares the blocks of the files where the file system can."""
    await anyio.to_thread.run_sync(lambda: target.parent.mkdir(parents=True, exist_ok=True))
    ran = await _run(host, ("cp", "-a", "--", str(source), str(target)), str(target.parent), {}, setup)
    if not ran.ok:
        raise await failure_of(ran, str(target.parent), f"worktree.copies: {source} could not be copied: {_why(ran)}")


async def _run(
    host: ProcessHost, argv: tuple[str, ...], where: str, env: dict[str, str], setup: WorktreeSetup
) -> CompletedCommand:
    base = {"PATH": os.environ.get("PATH", os.defpath), "HOME": os.environ.get("HOME", "/")}
    return await run_command(host, Launch(argv=argv, cwd=where, env=base | env), timeout_s=setup.timeout_s)


def _why(ran: CompletedCommand) -> str:
    lines = ran.output.strip().splitlines()
    how = ran.problem or f"exit status {ran.status}"
    return f"{how}; its last words: {lines[-1].strip()}" if lines else how
