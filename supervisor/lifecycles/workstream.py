"""Lifecycle of a workstream: the run of a plan, a graph of tasks that ends in one merge (spec 004).

A workstream keeps executing until all its tasks have ended, unless a critical task fails. Events carry the counts of
ended tasks, which guards compare with the plan. Terminal states are never left.

A workstream with a branch collects the work of its tasks there (``branch_made``, before a task exists). The branch is
merged once: when the final validation has passed, its commit is on record (``merge_planned``), so that a supervisor
that is killed leaves only the merge to the next one; ``validation_passed`` follows the merge.
"""

from __future__ import annotations

from enum import Enum

import msgspec
from msgspec.structs import replace

from actors.machine import Effect, Event, Machine, rule
from supervisor.lifecycles.types import HeldBy, Severity


class Workstream(Enum):
    """The seven states, spelled as in the specification."""

    PLANNED = "planned"
    READY = "ready"
    EXECUTING = "executing"
    VALIDATING = "validating"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class WorkBranch(msgspec.Struct, frozen=True, kw_only=True):
    """Branch of a workstream: its name, the commit at which it began (``base``), and a directory in its repository."""

    name: str
    base: str
    directory: str


class WorkstreamData(msgspec.Struct, frozen=True, kw_only=True):
    """Data of a workstream: the name of its plan, the number of its tasks, the start of the first one, the last error,
    and the workstream whose cancelled and failed tasks it repeats, each from its checkpoint. ``key`` is the idempotency
    key of the request for this run, and ``request`` a digest of the request.

    ``branch`` collects the work of the tasks until the one merge; ``None``: each task is merged by itself, or nothing
    is. ``to_merge`` is the commit that has passed the final validation and is to be merged. ``held_by`` is the obstacle
    that holds the next step of the workstream."""

    name: str = ""
    tasks: int
    started_at: float | None = None
    last_error: str = ""
    resumes: str = ""
    key: str = ""
    request: str = ""
    branch: WorkBranch | None = None
    to_merge: str = ""
    held_by: HeldBy | None = None

    @property
    def waits_for_person(self) -> bool:
        """Whether only a person can bring the workstream to its end: its merge is refused, and nobody tries it
        again."""
        return bool(self.to_merge) and self.held_by is not None and not self.held_by.pause_s


class BranchMade(Event, frozen=True, kw_only=True):
    """Event: the branch that collects the work of the tasks is made."""

    spelled = "branch_made"
    branch: WorkBranch


class AllTasksCreated(Event, frozen=True, kw_only=True):
    """Event: *count* tasks were created; *count* must be the number that the plan specifies, and at least one."""

    spelled = "all_tasks_created"
    count: int


class TasksAdded(Event, frozen=True, kw_only=True):
    """Event: *count* tasks were added to the plan; *tasks* are the ids of those that a command has added."""

    spelled = "tasks_added"
    count: int
    tasks: tuple[str, ...] = ()


class FirstTaskStarted(Event, frozen=True, kw_only=True):
    """Event: *task_id* is the first task to run."""

    spelled = "first_task_started"
    task_id: str = ""


class AllTasksCompleted(Event, frozen=True, kw_only=True):
    """Event: the number of completed tasks is *completed*, which must be all tasks."""

    spelled = "all_tasks_completed"
    completed: int


class CriticalTaskFailed(Event, frozen=True, kw_only=True):
    """Event: the task *task_id*, which is critical or belongs to a plan with ``fail_fast``, has failed, and with it the
    workstream."""

    spelled = "critical_task_failed"
    task_id: str
    error: str = ""


class SettledWithFailures(Event, frozen=True, kw_only=True):
    """Event: every task has ended, and at least one has failed."""

    spelled = "settled_with_failures"
    completed: int
    failed: int
    cancelled: int = 0


class SettledWithCancellations(Event, frozen=True, kw_only=True):
    """Event: every task has ended, none has failed, and at least one was cancelled."""

    spelled = "settled_with_cancellations"
    completed: int
    cancelled: int


class MergePlanned(Event, frozen=True, kw_only=True):
    """Event: the final validation passed on *commit* of the workstream's branch, which is to be merged."""

    spelled = "merge_planned"
    commit: str


class StepHeld(Event, frozen=True, kw_only=True):
    """Event: the next step of the workstream cannot be made now, because of *held_by*; *task*: it is the late merge of
    that task."""

    spelled = "held"
    held_by: HeldBy
    task: str = ""
    reason: str = ""


class StepFreed(Event, frozen=True, kw_only=True):
    """Event: the obstacle that held the step of the workstream is gone."""

    spelled = "freed"
    task: str = ""
    reason: str = ""


class ValidationPassed(Event, frozen=True, kw_only=True):
    """Event: the final validation passed, and the branch of the workstream, if it has one, is merged; *reason* is a
    sentence about the merge."""

    spelled = "validation_passed"
    reason: str = ""


class ValidationFailed(Event, frozen=True, kw_only=True):
    """Event: the final validation failed."""

    spelled = "validation_failed"
    error: str = ""


class UserCancelled(Event, frozen=True, kw_only=True):
    """Event: a user cancelled the workstream."""

    spelled = "user_cancelled"
    reason: str = ""


Out = tuple[WorkstreamData, tuple[Effect, ...]]


def count_matches(data: WorkstreamData, event: AllTasksCreated) -> bool:
    return event.count == data.tasks > 0


def all_completed(data: WorkstreamData, event: AllTasksCompleted) -> bool:
    return event.completed == data.tasks


def settled_some_failed(data: WorkstreamData, event: SettledWithFailures) -> bool:
    return event.failed > 0 and event.completed + event.failed + event.cancelled == data.tasks


def settled_some_cancelled(data: WorkstreamData, event: SettledWithCancellations) -> bool:
    return event.cancelled > 0 and event.completed + event.cancelled == data.tasks


def note_start(data: WorkstreamData, event: Event) -> Out:
    return replace(data, started_at=event.at), ()


def add_tasks(data: WorkstreamData, event: TasksAdded) -> Out:
    return replace(data, tasks=data.tasks + event.count), ()


def keep_critical(data: WorkstreamData, event: CriticalTaskFailed) -> Out:
    return replace(data, last_error=f"the task {event.task_id} failed, which ends the run: {event.error}"), ()


def keep_count(data: WorkstreamData, event: SettledWithFailures) -> Out:
    return replace(data, last_error=f"{event.failed} of {data.tasks} tasks failed"), ()


def keep_error(data: WorkstreamData, event: ValidationFailed) -> Out:
    return replace(data, last_error=event.error), ()


def keep_branch(data: WorkstreamData, event: BranchMade) -> Out:
    return replace(data, branch=event.branch), ()


def keep_merge(data: WorkstreamData, event: MergePlanned) -> Out:
    return replace(data, to_merge=event.commit), ()


def keep_obstacle(data: WorkstreamData, event: StepHeld) -> Out:
    return replace(data, held_by=event.held_by), ()


def forget_obstacle(data: WorkstreamData, event: Event) -> Out:
    return replace(data, held_by=None), ()


FAILURES = (
    "a failure that is not critical lets the others finish, then the plan has failed; the specification would never end"
)
CANCELLATIONS = "when all tasks have ended and some were cancelled, none failed, there is nothing to validate"

MORE = "a plan may be read again while it runs, and a task may be split"
ONE_MERGE = "the work of the tasks is collected on a branch, which is merged once (rule 54)"
OBSTACLES = "what is outside of the work, such as a changed checkout, holds a step; nobody has failed (rule 48)"

W = Workstream
_LIVE = [W.PLANNED, W.READY, W.EXECUTING, W.VALIDATING]
WORKSTREAM: Machine[Workstream, WorkstreamData] = Machine(
    "workstream",
    source="004",
    initial=[W.PLANNED],
    terminal=[W.COMPLETED, W.FAILED, W.CANCELLED],
    severities={W.FAILED: Severity.CRITICAL},
    rules=[
        rule(AllTasksCreated, W.PLANNED, W.READY, when=count_matches),
        rule(FirstTaskStarted, W.READY, W.EXECUTING, do=[note_start]),
        rule(AllTasksCompleted, W.EXECUTING, W.VALIDATING, when=all_completed),
        rule(CriticalTaskFailed, W.EXECUTING, W.FAILED, do=[keep_critical]),
        rule(ValidationPassed, W.VALIDATING, W.COMPLETED, do=[forget_obstacle]),
        rule(ValidationFailed, W.VALIDATING, W.FAILED, do=[forget_obstacle, keep_error]),
        rule(UserCancelled, [W.PLANNED, W.READY, W.EXECUTING], W.CANCELLED),
        rule(BranchMade, W.PLANNED, None, do=[keep_branch], extension=ONE_MERGE),
        rule(MergePlanned, W.VALIDATING, None, do=[keep_merge], extension=ONE_MERGE),
        rule(StepHeld, _LIVE, None, do=[keep_obstacle], extension=OBSTACLES),
        rule(StepFreed, _LIVE, None, do=[forget_obstacle], extension=OBSTACLES),
        rule(TasksAdded, [W.READY, W.EXECUTING], None, do=[add_tasks], extension=MORE),
        rule(
            SettledWithFailures,
            W.EXECUTING,
            W.FAILED,
            when=settled_some_failed,
            do=[keep_count],
            extension=FAILURES,
        ),
        rule(
            SettledWithCancellations,
            W.EXECUTING,
            W.CANCELLED,
            when=settled_some_cancelled,
            extension=CANCELLATIONS,
        ),
    ],
)
