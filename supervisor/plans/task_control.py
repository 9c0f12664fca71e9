"""Commands that an operator or an agent may give about the tasks of a running plan, and their results.

The work package implements the commands; the control server and in-process agents call them. Every command names its
sender and may have an id: a command with an id takes effect once, however often it is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from supervisor.lifecycles.types import RecordId, Verb

if TYPE_CHECKING:
    from supervisor.plans.tasks import TaskConfig


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a command: the task, the task's state afterwards, and the record of the command. Of an addition of
    tasks, the entity is the run.

    *subtasks* are the ids of the parts of a split, or of the tasks that were added. *repeated*: a command with this id
    was given before, and this one did nothing.
    """

    verb: Verb
    entity_id: str
    state: str
    seq: RecordId
    subtasks: tuple[str, ...] = ()
    repeated: bool = False


class WorkControl(Protocol):
    """Commands about the tasks of a running plan. A task is named by its name in the plan or by its id (``r1#fix``).

    A command sent after the run has begun is carried out, even if its caller is cancelled meanwhile.

    Every command raises:
        NoSuchEntity: the run has no such task.
        Refused: the task's state does not allow the command now, or the run has ended; nothing was done, and the
            command's id may be used again.
        ValueError: the command's id was used for another command.
        BadPlan: the subtasks are not valid.
        Degraded, JournalError: the journal cannot be written.
    """

    @property
    def run_id(self) -> str:
        """The id of the run; ``""`` before it is known."""
        ...

    async def begun(self) -> str:
        """Wait until the run has begun, and its tasks are known. Return its id; ``""`` if it ended before."""
        ...

    def has(self, task: str) -> bool:
        """Return whether the run, which has begun, has the task."""
        ...

    async def planned(self) -> tuple[str, ...]:
        """Return the tasks that wait for approval before they begin."""
        ...

    async def approve(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        """Approve a planned task, or the result of a task, which is then merged."""
        ...

    async def reject(self, task: str, *, by: str, reason: str, command_id: str | None = None) -> CommandResult:
        """Cancel a planned task, or reject the result of a task."""
        ...

    async def retry(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        """Try a task again that was given up, with all its attempts; or try a task at once that waits for its next
        attempt. A cancelled task stays cancelled."""
        ...

    async def requeue(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        """Take a task in progress from its session, and let another session take it."""
        ...

    async def unclaim(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        """Take a task that was claimed but not begun from its session."""
        ...

    async def cancel(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        """Cancel a task for good."""
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
        """Split a task into *subtasks*; the task is completed when the subtasks are."""
        ...

    async def block(
        self, task: str, on: Sequence[str], *, by: str, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        """Take a task from its session until *on* is met: other tasks of the plan, or conditions that a person
        knows."""
        ...

    async def keep(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        """End the work of the agent on a task in progress, and check and merge what is done; no other attempt follows.
        The reply comes when the agent is told to stop; the end of the task is that of its checks."""
        ...

    async def add_tasks(
        self, tasks: Sequence[TaskConfig], *, by: str, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        """Add *tasks* to the run, beside those that it has; they name agents of its plan."""
        ...

    async def unblock(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        """Release a blocked task: the condition that it waited for is met."""
        ...
