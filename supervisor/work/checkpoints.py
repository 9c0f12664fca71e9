"""Checkpoints: what a run has so far is saved when it enters certain states, and another one goes on with that.

A checkpoint is on record before anything follows from it. Only a run that failed or was cancelled is gone on with: what
was completed and could not be merged would be in conflict for ever. What is to be taken back before the next attempt is
gone on with only where a person wants that (``--resume``).
"""

from __future__ import annotations

from typing import Final

import msgspec

from supervisor.host.supervision import Supervisor
from supervisor.lifecycles import task_run
from supervisor.lifecycles.task_run import RUN, TaskRun, TaskRunData
from supervisor.plans.lifecycle import TaskLifecycle
from supervisor.ports import NO_WORKSPACE, WorkspaceSpec
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Refused
from supervisor.work.task_execution import TaskExecution

__all__ = ["begin", "follow_up", "is_taken_back", "keep", "kept", "left_at", "owned", "place_of", "take_back"]

_log = get_logger()

PARTIAL_OUTPUT: Final = "PartialOutput"
ROLLED_BACK: Final = "RolledBack"
OUTPUT_MAX: Final = 4_000
"""Characters of the end of what an agent said that are kept with the run: the transcript has the whole."""
PARTIAL: Final = frozenset({TaskRun.FAILED, TaskRun.TIMEOUT, TaskRun.CANCELLED})
"""States in which an attempt may end before its agent has said everything."""


def left_at(execution: TaskExecution) -> str:
    """The message of a commit of what is not committed."""
    return f"what the task {execution.name} left"


def owned(sup: Supervisor, execution: TaskExecution, starts_at: str = "") -> WorkspaceSpec:
    """What can be told of where it is worked on."""
    profile = sup.profile(execution.agent)
    directory = sup.workdir if profile is None else profile.directory
    task = execution.task
    return WorkspaceSpec(
        owner=execution.id, directory=str(directory), files=task.files, starts_at=starts_at, rollback=task.rollback
    )


# -------------------------------------------------------------------------------------------------- saved
async def keep(sup: Supervisor, lifecycle: TaskLifecycle, execution: TaskExecution, state: TaskRun) -> None:
    """Its run has entered *state*, or is about to if that is its last: keep what the plan wants kept there."""
    if (checkpoint := await kept(sup, lifecycle, execution, state)) is not None:
        try:
            await execution.post_run(checkpoint)
        except Refused as refusal:
            _warn(execution, state, refusal)


async def kept(
    sup: Supervisor, lifecycle: TaskLifecycle, execution: TaskExecution, state: TaskRun
) -> task_run.CheckpointSaved | None:
    """The same, but for the record of it: ``None`` where there is nothing to be said."""
    if not (execution.session_id and execution.run_data.attempts):
        return None
    said, execution.said = execution.said, ""
    if lifecycle.save_partial_output and state in PARTIAL and said:
        output = sup.journal_writer.redactor.text(said)[
            -OUTPUT_MAX:
        ]  # cut when it is clean: half a secret is not known
        execution.note_run(
            PARTIAL_OUTPUT, {"state": state.value, "output": output}, f"what was said until {state.value}"
        )
    data, wanted = execution.run_data, lifecycle.checkpoint
    is_kept = (data.saved_in, data.saved_attempt) == (state, data.attempts)
    if not wanted.enabled or state not in wanted.save_on_states or is_kept:
        return None
    try:
        return await _saved(sup, execution, state)
    except Refused as refusal:
        _warn(execution, state, refusal)
        return None


async def _saved(sup: Supervisor, execution: TaskExecution, state: TaskRun) -> task_run.CheckpointSaved | None:
    """Raises:
    Refused: it could not be made; the message says why.
    """
    data = execution.run_data
    if data.saved_in is not None and data.saved_attempt == data.attempts:  # nobody has worked since
        saved = data.saved_as
    elif execution.task.rollback and sup.janitor.in_place and execution.taken_back:  # it is on record as taken back
        return None
    else:
        saved = await sup.janitor.save(execution.session_id, owned(sup, execution), left_at(execution))
    if task_run.CheckpointSaved not in RUN.allowed(execution.run):
        return None
    return task_run.CheckpointSaved(state=state, attempt=data.attempts, session=execution.session_id, saved_as=saved)


def _warn(execution: TaskExecution, state: TaskRun, why: Refused) -> None:
    _log.warning("no checkpoint could be saved", task=execution.name, state=state.value, why=str(why))


# -------------------------------------------------------------------------------------------------- taken back
async def begin(sup: Supervisor, execution: TaskExecution) -> None:
    """Before an attempt: it finds nothing of one that failed, if the plan says so.

    Raises:
        Refused: that cannot be had; nothing is begun.
    """
    if sup.janitor.in_place:
        await sup.janitor.clearing.none()
    if not execution.task.rollback:
        return
    if sup.janitor.in_place:
        await sup.janitor.begin(owned(sup, execution, execution.run_data.resumed_at))
        execution.taken_back = False
    elif execution.session_lives:  # it has worked on an attempt: each begins with a session, or in one
        await _roll_back(sup, execution)


def is_taken_back(sup: Supervisor, execution: TaskExecution) -> bool:
    """Whether nothing may stay of an attempt that comes to nothing, where its work stays else."""
    return execution.task.rollback and sup.janitor.in_place


async def take_back(sup: Supervisor, execution: TaskExecution) -> None:
    """After an attempt that failed or was cancelled: nothing of it stays, if the plan says so. What was done in a
    worktree goes with that."""
    if not is_taken_back(sup, execution):
        return
    try:
        await _roll_back(sup, execution)
    except Refused as refusal:
        _log.error("what a task did could not be taken back", task=execution.name, why=str(refusal))


async def _roll_back(sup: Supervisor, execution: TaskExecution) -> None:
    place = owned(sup, execution, execution.run_data.resumed_at if execution.has_run else "")
    saved = await sup.janitor.roll_back(execution.session_id, place, left_at(execution))
    execution.taken_back = True
    if saved and execution.has_run:
        execution.note_run(ROLLED_BACK, {"session": execution.session_id, "saved_as": saved}, "the plan says rollback")


# -------------------------------------------------------------------------------------------------- gone on with
def place_of(sup: Supervisor, lifecycle: TaskLifecycle, execution: TaskExecution) -> WorkspaceSpec:
    """What is asked of the place of its next session."""
    if sup.janitor.in_place:
        return NO_WORKSPACE
    data = execution.run_data
    starts_at = data.saved_as if data.saved_as and not execution.task.rollback else data.resumed_at
    kept = not lifecycle.cleanup_on_cancel
    return WorkspaceSpec(owner=execution.id, starts_at=starts_at, kept=kept) if starts_at or kept else NO_WORKSPACE


def follow_up(execution: TaskExecution, limits: TaskRunData) -> TaskRunData:
    """The bounds of its next run, and what that begins with."""
    found = execution.checkpoint
    execution.checkpoint = None
    return (
        limits if found is None else msgspec.structs.replace(limits, resumed_from=found.run, resumed_at=found.saved_as)
    )
