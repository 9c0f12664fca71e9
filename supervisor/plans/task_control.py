"""What an operator, or an agent, can ask of the work that is under way, and the answers.

Whoever carries the work out implements it; the control socket and the agents within the process are its callers. Every
command names who gives it and may have an id: with one it takes effect once, however often it comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from supervisor.plans.tasks import TaskConfig

__all__ = ["CommandResult", "Verb", "WorkControl"]


class Verb(StrEnum):
    """The commands, as they are typed and recorded."""

    APPROVE = "approve"
    REJECT = "reject"
    RESET = "reset"
    REQUEUE = "requeue"
    UNCLAIM = "unclaim"
    CANCEL = "cancel"
    SPLIT = "split"
    BLOCK = "block"
    UNBLOCK = "unblock"


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a command did: the task that it was about, the state that this came to, and the record of the command.

    *subtasks* are what a task was split into. *repeated*: it was given before, with this id; nothing was done now.
    """

    verb: Verb
    entity_id: str
    state: str
    seq: int
    subtasks: tuple[str, ...] = ()
    repeated: bool = False


class WorkControl(Protocol):
    """The work of a supervisor. A task is named by its id in the plan, or by its entity's.

    A command that was given once the run has begun is carried out, also where its caller is cancelled meanwhile.

    Every command raises:
        NoSuchEntity: no such task is under way.
        Refused: its state does not allow that now, or the run has ended; nothing was done, and the id, if there is one,
            may be used again.
        ValueError: its id was used for another one.
        BadPlan: the subtasks cannot be.
        Degraded, JournalError: the journal cannot be written.
    """

    async def planned(self) -> tuple[str, ...]:
        """The tasks that wait to be approved before anything is done for them."""
        ...

    async def approve(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        """Let a planned task be worked on, or the result of a task be merged."""
        ...

    async def reject(self, task: str, *, by: str, reason: str, command_id: str | None = None) -> CommandResult:
        """Let a planned task never be worked on, or refuse the result of a task."""
        ...

    async def reset(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        """Close the circuit of a task's run and let it be tried afresh, its attempts zeroed."""
        ...

    async def requeue(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        """Take a task that is worked on from whoever works on it, for somebody else."""
        ...

    async def unclaim(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        """Take a task that nobody has begun to work on from whoever claimed it."""
        ...

    async def cancel(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        """Let a task be worked on no more, nor ever again."""
        ...

    async def split(
        self,
        task: str,
        subtasks: Sequence[TaskConfig],
        *,
        by: str,
        reason: str = "",
        command_id: str | None = None,
    ) -> CommandResult:
        """Have *subtasks* worked on, and the task be completed when they are."""
        ...

    async def block(
        self, task: str, on: Sequence[str], *, by: str, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        """Take a task from whoever works on it until *on* is there: other tasks of the plan, or what a person knows."""
        ...

    async def unblock(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        """Let a task be worked on that was blocked: what it waited for is there, whatever that was."""
        ...
