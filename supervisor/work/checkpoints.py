"""Checkpoints: save the work of a task run when it enters certain states, so that another run can continue that work.

A checkpoint is recorded together with the decision that it belongs to, before any effect of that decision. Only the
work of a run that failed or was cancelled is continued from its checkpoint. Work that was completed and is in conflict
with the target is continued from its commit, with the target merged in, since it would else be in conflict at every
merge. Work that is to be rolled back before the next attempt is continued only if a person requests that
(``--resume``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from actors.machine import Event
from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles import task_run
from supervisor.lifecycles.task_cascade import Saved
from supervisor.lifecycles.task_run import TaskRun, TaskRunData
from supervisor.plans.lifecycle import TaskLifecycle
from supervisor.ports import NO_WORKSPACE, WorkspaceSpec
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Refused
from supervisor.work.task_execution import TaskExecution

_log = get_logger()

PARTIAL_OUTPUT: Final = "PartialOutput"
ROLLED_BACK: Final = "RolledBack"
OUTPUT_MAX: Final = 4_000
"""Number of characters of the end of an agent's output that are recorded with the run: the transcript has the whole."""
ENDS_EARLY: Final[Mapping[type[Event], TaskRun]] = {
    task_run.ExecutionFailed: TaskRun.FAILED,
    task_run.TestsFailed: TaskRun.FAILED,
    task_run.ExecutionTimedOut: TaskRun.TIMEOUT,
    task_run.Cancelled: TaskRun.CANCELLED,
}
"""Events of a run that end an attempt maybe before its agent has written all of its output, and the states that they
lead to."""


def left_at(execution: TaskExecution) -> str:
    """Return the commit message for changes that the task left uncommitted."""
    return f"Uncommitted changes of task {execution.name}"


def workspace_of(sup: SupervisorCore, execution: TaskExecution, starts_at: str = "") -> WorkspaceSpec:
    """Return the specification of the task's workspace: owner, directory, files, the commit *starts_at* from which the
    work begins, and the workstream whose branch the work is for."""
    profile = sup.setups.profile(execution.agent, execution.id)
    directory = sup.setups.of(execution.id).workdir if profile is None else profile.directory
    task = execution.task
    return WorkspaceSpec(
        owner=execution.id,
        directory=str(directory),
        files=tuple(task.files),
        starts_at=starts_at,
        rollback=task.rollback,
        workstream=execution.merges_into,
    )


# -------------------------------------------------------------------------------------------------- saved
async def save(
    sup: SupervisorCore, lifecycle: TaskLifecycle, execution: TaskExecution, events: Sequence[Event]
) -> Saved | None:
    """Save the partial output and the checkpoint that go with the decision of these *events*, which are those of a
    trial. Return the checkpoint, if one was saved."""
    data = execution.run_data if execution.has_run else TaskRunData()
    if not (execution.session_id and data.attempts):
        return None
    note_output(sup, lifecycle, execution, events)
    wanted = [one.state for one in events if isinstance(one, task_run.CheckpointSaved)]
    if not wanted:
        return None
    try:
        if data.saved_in is not None and data.saved_attempt == data.attempts:  # no attempt was made since
            saved = data.saved_as
        elif execution.task.rollback and sup.verification.in_place and execution.is_rolled_back:  # nothing is left
            return None
        else:
            saved = await sup.verification.save(execution.session_id, workspace_of(sup, execution), left_at(execution))
    except Refused as refusal:
        _log.warning("no checkpoint could be saved", task=execution.name, state=wanted[0].value, why=str(refusal))
        return None
    return Saved(lifecycle.checkpoint.save_on_states, execution.session_id, saved)


def note_output(
    sup: SupervisorCore, lifecycle: TaskLifecycle, execution: TaskExecution, events: Sequence[Event]
) -> None:
    """Record the partial output of the attempt, if one of the *events* ends the attempt before its agent has written
    all."""
    ended = next((ENDS_EARLY[type(one)] for one in events if type(one) in ENDS_EARLY), None)
    if ended is None:
        return
    said, execution.output = execution.output, ""
    if lifecycle.save_partial_output and said:
        output = sup.journal_writer.redactor.text(said)[-OUTPUT_MAX:]  # cut after redaction: half a secret is not found
        told = {"state": ended.value, "output": output}
        execution.note_run(PARTIAL_OUTPUT, told, f"what was said until {ended.value}")


# -------------------------------------------------------------------------------------------------- taken back
async def prepare_workspace(sup: SupervisorCore, execution: TaskExecution) -> None:
    """Before an attempt: roll back the work of a failed attempt, if the plan says ``rollback``.

    Raises:
        Refused: the work cannot be rolled back; the attempt is not begun.
    """
    if sup.verification.in_place:
        await sup.cleanup.clearing.none()
    if not execution.task.rollback:
        return
    if sup.verification.in_place:
        if not execution.is_rolled_back:  # it could not be taken back after the attempt
            await _roll_back(sup, execution)
        await sup.verification.begin(workspace_of(sup, execution, execution.run_data.resumed_at))
        execution.is_rolled_back = False
    elif execution.session_lives:  # the session has made an attempt
        await _roll_back(sup, execution)


def must_take_back(sup: SupervisorCore, execution: TaskExecution) -> bool:
    """Return whether the work of a failed attempt must be rolled back in the directory itself (there is no
    worktree)."""
    return execution.task.rollback and sup.verification.in_place


async def take_back(sup: SupervisorCore, execution: TaskExecution) -> None:
    """After an attempt that failed or was cancelled: roll back its work, if the plan says so and the work was done in
    the directory itself. Work in a git worktree disappears with the worktree."""
    if not must_take_back(sup, execution):
        return
    try:
        await _roll_back(sup, execution)
    except Refused as refusal:
        _log.error("what a task did could not be taken back", task=execution.name, why=str(refusal))


async def _roll_back(sup: SupervisorCore, execution: TaskExecution) -> None:
    spec = workspace_of(sup, execution, execution.run_data.resumed_at if execution.has_run else "")
    saved = await sup.verification.roll_back(execution.session_id, spec, left_at(execution))
    execution.is_rolled_back = True
    if saved and execution.has_run:
        execution.note_run(ROLLED_BACK, {"session": execution.session_id, "saved_as": saved}, "the plan says rollback")


# -------------------------------------------------------------------------------------------------- gone on with
def next_workspace(sup: SupervisorCore, lifecycle: TaskLifecycle, execution: TaskExecution) -> WorkspaceSpec:
    """Return the specification of the workspace for the task's next session."""
    if sup.verification.in_place:
        return NO_WORKSPACE
    data = execution.run_data
    starts_at = data.saved_as if data.saved_as and not execution.task.rollback else data.resumed_at
    conflict = "" if starts_at or execution.task.rollback else execution.data.conflict
    kept = not lifecycle.cleanup_on_cancel
    if not (starts_at or conflict or kept or execution.merges_into):
        return NO_WORKSPACE
    return WorkspaceSpec(
        owner=execution.id,
        directory=workspace_of(sup, execution).directory,
        starts_at=starts_at or conflict,
        merges_target=bool(conflict),
        kept=kept,
        workstream=execution.merges_into,
    )
