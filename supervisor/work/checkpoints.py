"""Checkpoints: save the work of a task run when it enters certain states, so that another run can continue that work.

A checkpoint is recorded together with the decision that it belongs to, before any effect of that decision. Only the
work of a run that failed or was cancelled is continued from its checkpoint. Work that was completed and is in conflict
with the target is continued from its commit, with the target merged in, since it would else be in conflict at every
merge. Work that is to be rolled back before the next attempt is continued only if a person requests that
(``--resume``).
"""

from __future__ import annotations

from typing import Final

import msgspec

from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles import task_run
from supervisor.lifecycles.task_run import RUN, TaskRun, TaskRunData
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
PARTIAL: Final = frozenset({TaskRun.FAILED, TaskRun.TIMEOUT, TaskRun.CANCELLED})
"""States in which an attempt may end before its agent has written all of its output."""


def left_at(execution: TaskExecution) -> str:
    """Return the commit message for changes that the task left uncommitted."""
    return f"Uncommitted changes of task {execution.name}"


def workspace_of(sup: SupervisorCore, execution: TaskExecution, starts_at: str = "") -> WorkspaceSpec:
    """Return the specification of the task's workspace: owner, directory, files, and the commit *starts_at* from which
    the work begins."""
    profile = sup.profile(execution.agent, execution.id)
    directory = sup.setups.of(execution.id).workdir if profile is None else profile.directory
    task = execution.task
    return WorkspaceSpec(
        owner=execution.id,
        directory=str(directory),
        files=tuple(task.files),
        starts_at=starts_at,
        rollback=task.rollback,
    )


# -------------------------------------------------------------------------------------------------- saved
async def make_checkpoint(
    sup: SupervisorCore, lifecycle: TaskLifecycle, execution: TaskExecution, state: TaskRun, data: TaskRunData
) -> task_run.CheckpointSaved | None:
    """Save the partial output and the checkpoint that the plan requests when the run enters *state*, with *data*.
    Return the event for a saved checkpoint, if one was saved."""
    if not (execution.session_id and data.attempts):
        return None
    said, execution.output = execution.output, ""
    if lifecycle.save_partial_output and state in PARTIAL and said:
        output = sup.journal_writer.redactor.text(said)[-OUTPUT_MAX:]  # cut after redaction: half a secret is not found
        told = {"state": state.value, "output": output}
        execution.note_run(PARTIAL_OUTPUT, told, f"what was said until {state.value}")
    wanted = lifecycle.checkpoint
    is_kept = (data.saved_in, data.saved_attempt) == (state, data.attempts)
    if not wanted.enabled or state not in wanted.save_on_states or is_kept:
        return None
    try:
        if data.saved_in is not None and data.saved_attempt == data.attempts:  # no attempt was made since
            saved = data.saved_as
        elif execution.task.rollback and sup.verification.in_place and execution.is_rolled_back:  # nothing is left
            return None
        else:
            saved = await sup.verification.save(execution.session_id, workspace_of(sup, execution), left_at(execution))
    except Refused as refusal:
        _log.warning("no checkpoint could be saved", task=execution.name, state=state.value, why=str(refusal))
        return None
    if task_run.CheckpointSaved not in RUN.allowed(execution.run):
        return None
    return task_run.CheckpointSaved(state=state, attempt=data.attempts, session=execution.session_id, saved_as=saved)


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
    if not (starts_at or conflict or kept):
        return NO_WORKSPACE
    return WorkspaceSpec(owner=execution.id, starts_at=starts_at or conflict, merges_target=bool(conflict), kept=kept)


def with_checkpoint(execution: TaskExecution, limits: TaskRunData) -> TaskRunData:
    """Return *limits*, extended by the checkpoint from which the task's next run begins, if there is one."""
    found = execution.checkpoint
    execution.checkpoint = None
    return (
        limits if found is None else msgspec.structs.replace(limits, resumed_from=found.run, resumed_at=found.saved_as)
    )
