"""The user's own checkout and branches, compared before and after the work of an agent.

An agent in a worktree shares the repository with the user: by mistake it may reset a branch, edit or check out
something in the user's directory, or change settings that break it. Nothing can prevent that without a sandbox; what
has changed is told, and commits that no branch has any more get a reference of their own (``refs/supervisor/rescue``).
What the user has changed meanwhile is told as well: git does not know who did it. What the supervisor has merged is
not.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import anyio.to_thread

from supervisor.workspaces.git_command import CommitStyle, Git, names_in_list, some_of, text_of

RESCUE: Final = "refs/supervisor/rescue"
"""Prefix of the references to commits that would have been lost."""
_OURS: Final = "refs/heads/supervisor/"
_BREAKS: Final = r"^core\.(bare|worktree)$"
"""Pattern of settings without which the user's own git does not work."""

FileState = tuple[str, int, int]
"""State of a file that git lists as changed: its letters, the time of its last change (ns), and its size."""


class Checkout(NamedTuple):
    """State of a repository and its main checkout at one moment. ``files`` are the files that differ from the
    last commit; ``None``: git does not say."""

    head: str
    refs: dict[str, str]
    files: dict[str, FileState] | None
    settings: tuple[str, ...]


async def look(git: Git, root: Path) -> Checkout:
    """Return the present state of the repository's branches and of the main checkout, without what is below *root*,
    where the worktrees are.

    Raises:
        GitKilled: a git was killed.
    """
    where = git.repository
    named = await git.run(where, "symbolic-ref", "--quiet", "HEAD")
    head = text_of(named) if named.ok else await git.commit_of(where, "HEAD")
    listed = await git.run(where, "for-each-ref", "--format=%(refname) %(objectname)", "refs/heads")
    refs = dict(line.rpartition(" ")[::2] for line in text_of(listed).splitlines())
    refs = {name: commit for name, commit in refs.items() if not name.startswith(_OURS)}
    settings = await git.run(where, "config", "--local", "--get-regexp", _BREAKS)
    # Without a refresh of the index, which would lock it.
    status = await git.run(where, "--no-optional-locks", "status", "--porcelain", "-z", "--untracked-files=normal")
    top = Path(text_of(await git.run(where, "rev-parse", "--show-toplevel")) or where)
    files = await anyio.to_thread.run_sync(_files, status.stdout, top, root) if status.ok else None
    return Checkout(head, refs, files, tuple(text_of(settings).splitlines()))


def _files(listed: bytes, top: Path, root: Path) -> dict[str, FileState]:
    found: dict[str, FileState] = {}
    entries = iter(names_in_list(listed))
    for entry in entries:
        letters, name = entry[:2], entry[3:]
        if "R" in letters or "C" in letters:
            next(entries, "")  # the name before
        path = top / name
        if root.is_relative_to(path) or path.is_relative_to(root):
            continue
        try:
            seen = os.lstat(path)
            found[name] = (letters, seen.st_mtime_ns, seen.st_size)
        except (OSError, ValueError):
            found[name] = (letters, 0, 0)
    return found


async def describe_changes(git: Git, before: Checkout, after: Checkout, merged: Collection[str]) -> list[str]:
    """Return sentences about what has changed; first keep the commits that no branch has any more. *merged* are the
    commits to which the supervisor has moved a branch.

    Raises:
        WorkspaceError: git failed, or was killed.
    """
    where, found = git.repository, []
    for name, commit in before.refs.items():
        now = after.refs.get(name, "")
        if now == commit or (now in merged and await git.contains(now, commit)):
            continue
        if now and await git.contains(now, commit) and name != before.head:
            continue  # commits on a branch that nobody has checked out are work
        kept = await _kept(git, commit)
        moved = f"was moved to {now[:12]}" if now else "was removed"
        found.append(f"the branch {name.removeprefix('refs/heads/')}, which was at {commit[:12]}, {moved}{kept}")
    if after.head != before.head:
        kept = "" if after.head.startswith("refs/") else await _kept(git, after.head)
        shown = [one.removeprefix("refs/heads/")[:60] or "nothing" for one in (before.head, after.head)]
        found.append(f"{shown[1]} is checked out in {where}, where {shown[0]} was{kept}")
    found += [f"{words} in {where}" for words in _changed_files(before.files, after.files)]
    for setting in set(after.settings) - set(before.settings):
        found.append(f"the setting {setting.replace(' ', ' = ')} is new in {where}")
    return found


async def _kept(git: Git, commit: str) -> str:
    """Make a reference to *commit* if no branch or tag has it; return the words about that."""
    if not commit or text_of(await git.must(git.repository, "for-each-ref", "--contains", commit, "--count=1")):
        return ""
    name = f"{RESCUE}/{commit[:12]}"
    await git.must(git.repository, "update-ref", name, commit)
    return f"; the commit that no branch has any more is kept as {name}"


def _changed_files(before: dict[str, FileState] | None, after: dict[str, FileState] | None) -> Iterator[str]:
    if before is None or after is None:
        if before is not after:
            yield "git does not say any more which files differ"
        return
    if changed := [name for name, state in after.items() if before.get(name) != state]:
        yield f"files were changed: {some_of(changed)}"
    if gone := [name for name in before if name not in after]:
        yield f"changes that were not committed are gone: {some_of(gone)}"


async def setting_remarks(git: Git, commits: CommitStyle) -> list[str]:
    """Return sentences about settings of the repository that have no effect on the work in worktrees, or on the
    supervisor's commits.

    Raises:
        WorkspaceError: git timed out.
    """
    found = []
    signs, hooks = await _setting(git, "commit.gpgSign"), await _setting(git, "core.hooksPath")
    if signs.lower() in ("true", "yes", "on", "1") and not commits.sign:
        found.append(
            f"commit.gpgSign is set in {git.repository}, and the supervisor's commits are not signed; set "
            "`commits: {sign: true}`"
        )
    if hooks and not hooks.startswith(("/", "~")):
        listed = await git.run(git.repository, "ls-tree", "HEAD", "--", f"{hooks.rstrip('/')}/")
        if not listed.stdout.strip():
            found.append(
                f"core.hooksPath is {hooks!r} in {git.repository}, a directory that is not committed: hooks do "
                "not run for what agents commit in worktrees; give an absolute path, or commit it"
            )
    return found


async def _setting(git: Git, name: str) -> str:
    """Return the value of a setting of the user's, without what the supervisor's own commands are given; ``""`` if
    there is none."""
    listed = await git.run(git.repository, "config", "--get-all", "--null", name)
    *values, _ = [*listed.stdout.decode(errors="surrogateescape").split("\0")[:-1]] or [""]
    return values[-1] if values else ""
