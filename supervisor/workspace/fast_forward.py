"""The fast-forward of the target branch: a reference alone, or the checkout of whoever has the target checked out."""

from __future__ import annotations

from pathlib import Path

import anyio

from supervisor.ports import Merge
from supervisor.workspace.git_command import Git, error_of, text_of
from supervisor.workspace.worktree_files import branches_rebased_in

__all__ = ["FastForward"]

FORWARD_S = 300.0
"""How long a fast-forward may take where the target is checked out: one that is ended leaves half of it there, and a
large repository with filters (LFS) on a slow disk takes minutes."""

LOCK_TRIES = 20
"""How often the index of whoever has the target checked out is tried: who commits there, or has an editor that asks for
the status, locks it for a moment."""

LOCK_WAIT_S = 0.5
"""The pause between two such tries."""


class FastForward:
    """Moves the target on."""

    def __init__(self, git: Git) -> None:
        self._git = git

    async def advance(self, target: str, head: str, commit: str) -> Merge | None:
        """Move the target on; ``None`` if it moved meanwhile. Who has it checked out has all of it then, or nothing."""
        holder = await self._git.holder(target)
        if holder is None:
            if await self._is_rebased(target):
                return Merge(outcome="refused", why="a rebase of it is under way, which could not be ended then")
            moved = await self._git.run(self._git.repository, "update-ref", f"refs/heads/{target}", commit, head)
            return Merge(outcome="merged", commit=commit) if moved.ok else None
        how = (
            "--ff-only",
            "--no-squash",
            "--no-verify-signatures",
            "--no-overwrite-ignore",
            "--no-autostash",
            "--quiet",
        )
        for _ in range(LOCK_TRIES):
            with anyio.CancelScope(shield=True):
                moved = await self._git.run(holder, "merge", *how, commit, timeout_s=FORWARD_S)
            if moved.ok:
                return Merge(outcome="merged", commit=commit)
            if await self._git.commit_of(self._git.repository, f"refs/heads/{target}") != head:
                return None
            if moved.problem:
                why = f"{moved.problem}; half of it may be there (git -C {holder} status)"
                return Merge(outcome="refused", why=f"git merge --ff-only {commit[:12]} in {holder}: {why}")
            if "index.lock" not in error_of(moved):
                break
            await anyio.sleep(LOCK_WAIT_S)
        else:
            return Merge(outcome="refused", why=f"another git is at work in {holder}, or was killed: {error_of(moved)}")
        return Merge(outcome="refused", why=f"{holder} has changes of its own in the way: {error_of(moved)}")

    async def _is_rebased(self, target: str) -> bool:
        """True while somebody rebases *target*: no worktree has it checked out then, and one will move it."""
        common = await self._git.must(self._git.repository, "rev-parse", "--path-format=absolute", "--git-common-dir")
        heads = await anyio.to_thread.run_sync(branches_rebased_in, Path(text_of(common)))
        return f"refs/heads/{target}" in heads
