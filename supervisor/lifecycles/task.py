"""Lifecycle of a task: owner, approval, merge and end of a piece of work (spec 000 and 001).

The thirty edges of the specification are rules here, with the specification's text as ``trigger``; the approval gate
and the failed subtask are marked extensions. Pure: counters in the data decide about a retry, and events carry the
facts, such as the session that claimed the task.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from actors.machine import Effect, Event, Machine, rule
from supervisor.lifecycles.types import AbortReason, HeldBy, Severity, TransitionReason


class Task(Enum):
    """The twelve states, spelled as in the specification."""

    PLANNED = "PLANNED"
    OPEN = "OPEN"
    CLAIMED = "CLAIMED"
    IN_PROGRESS = "IN_PROGRESS"
    DONE = "DONE"
    CLOSED = "CLOSED"
    FAILED = "FAILED"
    BLOCKED = "BLOCKED"
    WAITING_FOR_SUBTASKS = "WAITING_FOR_SUBTASKS"
    CANCELLED = "CANCELLED"
    ORPHANED = "ORPHANED"
    PENDING_APPROVAL = "PENDING_APPROVAL"


class TaskEnd(StrEnum):
    """The word for the end of a task, the same in every view.

    ``aborted``: somebody decided it (an abort, ``task cancel``, a stop). ``cancelled``: the plan decided it (a critical
    task failed, the task that it is a part of was ended), or its run was given up. ``rejected``: somebody did not
    approve the planned task. ``blocked``: something that the task depends on did not complete. ``skipped``: the task's
    condition was not met, or the task is optional and something that it depends on did not complete.
    """

    COMPLETED = "completed"
    FAILED = "failed"
    REJECTED = "rejected"
    ABORTED = "aborted"
    CANCELLED = "cancelled"
    BLOCKED = "blocked"
    SKIPPED = "skipped"


ENDS_WELL: Final = frozenset({TaskEnd.COMPLETED, TaskEnd.SKIPPED, TaskEnd.REJECTED})
"""Ends after which the run of a plan counts as done, with exit status 0."""


def task_end(state: str, ended_as: str) -> str:
    """Return the word for the end of a task in *state*, or ``""`` if the task has not ended. *ended_as* is
    ``TaskData.ended_as``, or the field ``outcome`` of the event that cancelled or rejected the task. Every view of a
    task takes the word from here."""
    match state:
        case Task.CLOSED.value:
            return TaskEnd.COMPLETED.value
        case Task.FAILED.value:
            return TaskEnd.FAILED.value
        case Task.CANCELLED.value:
            return ended_as or TaskEnd.CANCELLED.value
    return ""


SESSION_ENDS: Final = {
    TaskEnd.COMPLETED: "its task is completed",
    TaskEnd.FAILED: "its task has failed",
    TaskEnd.ABORTED: "its task was aborted",
    TaskEnd.CANCELLED: "its task was cancelled",
    TaskEnd.BLOCKED: "its task was blocked for good",
}
"""Reason with which a session is closed for the end of its task. A session is closed as completed even if its task has
failed."""


class TaskData(msgspec.Struct, frozen=True, kw_only=True):
    """Data of a task: its holder, its retry budget, its dependencies, and its last results.

    ``workstream`` is the id of its workstream, ``name`` its name in the plan, and ``digest`` a hash of its definition
    in the plan, by which another supervisor recognises the task. ``depends_on`` are the names of the tasks that the
    plan says must end before the task begins, from its birth to its end; ``waiting_for`` are those that it waits for
    now. ``part_of`` names the task that was split into it and others; ``parts`` is the definition of the subtasks that
    it was split into while it ran, as plain data, since no plan file has it. ``judged`` is the commit that was tested
    and reviewed: that commit is merged, and nothing later. ``approved_by`` is the person who approved the result, which
    is to be merged then. ``unmerged``: the task was closed while not all of its work was merged, because no supervisor
    ran the plan any more, or, if ``rest`` names a branch, because something was written after the work was judged,
    which is only on that branch. ``delay_s`` is the wait before the next claim, from the time of the record that opened
    the task again. ``claimed_by`` is the session that has the task, or whose work is its result; the work of a claim
    that is over (failed, rejected, taken away) is never merged. ``last_claimed_by`` is the session that claimed the
    task last, also if that claim is over. ``ended_as`` is the word for the end of a cancelled task (``task_end``), and
    ``ended_for`` the reason. ``dead_letter`` is the error with which the failed task was given up; ``""`` while it may
    be claimed again. ``failure`` is the reason why the last claim failed, for the next prompt: the findings against its
    result (``has_findings``), or the error that left no result to check. ``findings_before`` are the findings of the
    failed claim before that. ``conflict`` is the commit of the last claim that is in conflict with the target: the next
    claim begins with that commit, and the target merged in. ``held_by`` is the obstacle that holds the next step of the
    task, such as its merge, and that is charged to nobody (rule 48).
    """

    max_retries: int = 3
    needs_approval: bool = False
    claimed_by: str = ""
    last_claimed_by: str = ""
    claims: int = 0
    retries: int = 0
    waiting_for: tuple[str, ...] = ()
    summary: str = ""
    last_failure: str = ""
    failure: str = ""
    has_findings: bool = False
    findings_before: str = ""
    workstream: str = ""
    name: str = ""
    digest: str = ""
    depends_on: tuple[str, ...] = ()
    part_of: str = ""
    parts: tuple[dict[str, Any], ...] = ()
    judged: str = ""
    approved_by: str = ""
    unmerged: bool = False
    rest: str = ""
    delay_s: float = 0.0
    ended_as: str = ""
    ended_for: str = ""
    dead_letter: str = ""
    conflict: str = ""
    held_by: HeldBy | None = None


class TaskEvent(Event, frozen=True, kw_only=True):
    """Base class of the task events; ``reason`` is a text for people."""

    reason: str = ""


class Approved(TaskEvent, frozen=True, kw_only=True):
    """Event: a person approved the planned task."""

    spelled = "approved"


class Rejected(TaskEvent, frozen=True, kw_only=True):
    """Event: the planned task was not approved: a person rejected it, or, with another *outcome*, it ended before
    anybody approved it."""

    spelled = "rejected"
    outcome: TaskEnd = TaskEnd.REJECTED


class Claimed(TaskEvent, frozen=True, kw_only=True):
    """Event: an agent took the task; *by* names the agent's session."""

    spelled = "claimed"
    by: str


class Unclaimed(TaskEvent, frozen=True, kw_only=True):
    """Event: the task was given back before work began; ``orphan_recovered`` if its agent crashed before the start."""

    spelled = "unclaimed"
    transition_reason: TransitionReason | None = None


class Started(TaskEvent, frozen=True, kw_only=True):
    """Event: the agent began to work on the task."""

    spelled = "started"


class Completed(TaskEvent, frozen=True, kw_only=True):
    """Event: the work is done and is to be merged; *judged* is the commit that was tested, if there is one."""

    spelled = "completed"
    summary: str = ""
    judged: str = ""

    @property
    def transition_reason(self) -> TransitionReason:
        return TransitionReason.COMPLETED


class Failed(TaskEvent, frozen=True, kw_only=True):
    """Event: the task failed; *reason* is the error text of the agent or of the runtime, *findings* is the text of a
    failed test or of a review for the next claim."""

    spelled = "failed"
    findings: str = ""
    transition_reason: TransitionReason | None = None
    abort_reason: AbortReason | None = None


class Blocked(TaskEvent, frozen=True, kw_only=True):
    """Event: the task cannot go on without *on*: tasks, resources or approvals from outside."""

    spelled = "blocked"
    on: tuple[str, ...] = ()


class Unblocked(TaskEvent, frozen=True, kw_only=True):
    """Event: the task is no longer blocked; *holder* is the session whose work is a part of it, if the task was split
    and waits for its subtasks again."""

    spelled = "unblocked"
    holder: str = ""


class Split(TaskEvent, frozen=True, kw_only=True):
    """Event: the task was split into *subtasks* and waits for them; *parts* is the definition of subtasks that no plan
    file has."""

    spelled = "split"
    subtasks: tuple[str, ...]
    parts: tuple[dict[str, Any], ...] = ()


class SubtasksCompleted(TaskEvent, frozen=True, kw_only=True):
    """Event: every subtask is completed."""

    spelled = "subtasks_completed"

    @property
    def transition_reason(self) -> TransitionReason:
        return TransitionReason.COMPLETED


class SubtaskTimedOut(TaskEvent, frozen=True, kw_only=True):
    """Event: *subtask* did not finish in time."""

    spelled = "subtask_timed_out"
    subtask: str


class SubtaskFailed(TaskEvent, frozen=True, kw_only=True):
    """Event: *subtask* failed for good."""

    spelled = "subtask_failed"
    subtask: str


class Orphaned(TaskEvent, frozen=True, kw_only=True):
    """Event: the agent of the task died."""

    spelled = "orphaned"
    abort_reason: AbortReason | None = None


class Recovered(TaskEvent, frozen=True, kw_only=True):
    """Event: the partial work of a dead agent was saved, and counts as done; it is merged next."""

    spelled = "recovered"
    summary: str = ""


class RecoveryFailed(TaskEvent, frozen=True, kw_only=True):
    """Event: no part of a dead agent's work could be saved."""

    spelled = "recovery_failed"


class Requeued(TaskEvent, frozen=True, kw_only=True):
    """Event: the task was taken from its agent, alive or dead, to be given to another one."""

    spelled = "requeued"
    transition_reason: TransitionReason | None = None


class DeadLettered(TaskEvent, frozen=True, kw_only=True):
    """Event: the failed task is given up, after so many *claims*, and *attempts* at the last one; only a person lets it
    be tried again. *reason* is the error that its result has."""

    spelled = "DeadLettered"
    attempts: int
    claims: int


class Retried(TaskEvent, frozen=True, kw_only=True):
    """Event: the task is to be claimed again, *delay_s* seconds from now; refused when no retry of the task is left, or
    the task was given up."""

    spelled = "retried"
    delay_s: float = 0.0

    @property
    def transition_reason(self) -> TransitionReason:
        return TransitionReason.RETRY


class Reopened(TaskEvent, frozen=True, kw_only=True):
    """Event: the person *by* reviewed a failed task and lets it be tried again: its retries count from 0."""

    spelled = "reopened"
    by: str

    @property
    def transition_reason(self) -> TransitionReason:
        return TransitionReason.RETRY


class Cancelled(TaskEvent, frozen=True, kw_only=True):
    """Event: the task was cancelled; *outcome* is the word for its end."""

    spelled = "cancelled"
    outcome: TaskEnd = TaskEnd.CANCELLED


class Closed(TaskEvent, frozen=True, kw_only=True):
    """Event: the result was verified and merged; *unmerged*: a part of the result was not merged. A branch named by
    *rest* holds the changes that were written after the result was judged; without *rest* nothing was merged, since the
    plan was given up."""

    spelled = "closed"
    unmerged: bool = False
    rest: str = ""

    @property
    def transition_reason(self) -> TransitionReason:
        return TransitionReason.COMPLETED


class VerificationRejected(TaskEvent, frozen=True, kw_only=True):
    """Event: verification rejected the result, or the result could not be merged; *reason* names the finding or the
    conflict, *findings* is the text for the next claim, *conflict* the commit that is in conflict with the target."""

    spelled = "verification_rejected"
    findings: str = ""
    conflict: str = ""


class StepHeld(TaskEvent, frozen=True, kw_only=True):
    """Event: the next step of the task cannot be made now, because of *held_by*, which is outside of the work. The step
    is made again; the task keeps its state, and nothing is charged."""

    spelled = "held"
    held_by: HeldBy


class StepFreed(TaskEvent, frozen=True, kw_only=True):
    """Event: the obstacle that held the step of the task is gone."""

    spelled = "freed"


class ApprovalRequested(TaskEvent, frozen=True, kw_only=True):
    """Event: the result waits for a person's approval; refused for a task whose plan demands no approval."""

    spelled = "approval_requested"


class ApprovalGiven(TaskEvent, frozen=True, kw_only=True):
    """Event: the person *by* approved the result, which is merged next; refused if somebody has approved it before."""

    spelled = "approval_given"
    by: str


class ApprovalGranted(TaskEvent, frozen=True, kw_only=True):
    """Event: the person *by* approved the result, which has been merged, except for the *rest*, as for
    :class:`Closed`."""

    spelled = "approval_granted"
    by: str
    unmerged: bool = False
    rest: str = ""

    @property
    def transition_reason(self) -> TransitionReason:
        return TransitionReason.COMPLETED


class ApprovalDenied(TaskEvent, frozen=True, kw_only=True):
    """Event: the person *by* denied the result, or approved what could not be merged; *findings* is the text for the
    next claim, *conflict* the commit that is in conflict with the target."""

    spelled = "approval_denied"
    by: str
    findings: str = ""
    conflict: str = ""


Out = tuple[TaskData, tuple[Effect, ...]]


def retries_left(data: TaskData, event: Event) -> bool:
    return data.retries < data.max_retries and not data.dead_letter


def given_up(data: TaskData, event: Event) -> bool:
    return bool(data.dead_letter)


def still_tried(data: TaskData, event: Event) -> bool:
    return not data.dead_letter


def approval_needed(data: TaskData, event: Event) -> bool:
    return data.needs_approval


def unapproved(data: TaskData, event: Event) -> bool:
    return not data.approved_by


def hold(data: TaskData, event: Claimed) -> Out:
    by = event.by
    return replace(data, claimed_by=by, last_claimed_by=by, claims=data.claims + 1, judged="", delay_s=0.0), ()


def release(data: TaskData, event: Event) -> Out:
    return replace(data, claimed_by="", waiting_for=(), approved_by="", dead_letter="", held_by=None), ()


def keep_holder(data: TaskData, event: Unblocked) -> Out:
    return replace(data, claimed_by=event.holder, waiting_for=()), ()


def count_retry(data: TaskData, event: Retried) -> Out:
    return replace(data, retries=data.retries + 1, delay_s=event.delay_s), ()


def forget_retries(data: TaskData, event: Event) -> Out:
    return replace(data, retries=0), ()


def keep_result(data: TaskData, event: Completed) -> Out:
    return replace(data, summary=event.summary, judged=event.judged), ()


def keep_approval(data: TaskData, event: ApprovalGiven) -> Out:
    return replace(data, approved_by=event.by), ()


def keep_summary(data: TaskData, event: Recovered) -> Out:
    return replace(data, summary=event.summary), ()


def keep_failure(data: TaskData, event: TaskEvent) -> Out:
    return replace(data, last_failure=event.reason), ()


def keep_findings(data: TaskData, event: Failed | VerificationRejected | ApprovalDenied) -> Out:
    return replace(
        data,
        failure=event.findings or event.reason,
        has_findings=bool(event.findings),
        findings_before=data.failure if data.has_findings else "",
        # An agent that fails before there is a result has not resolved the conflict.
        conflict=data.conflict if isinstance(event, Failed) and not event.findings else getattr(event, "conflict", ""),
    ), ()


def keep_dead_letter(data: TaskData, event: DeadLettered) -> Out:
    return replace(data, dead_letter=event.reason or "it failed"), ()


def keep_loss(data: TaskData, event: Orphaned) -> Out:
    """Keep the loss of the agent as the failure that the next prompt quotes, unless that prompt quotes findings."""
    return replace(data, failure=data.failure if data.has_findings else event.reason), ()


def keep_unmerged(data: TaskData, event: Closed | ApprovalGranted) -> Out:
    return replace(data, unmerged=event.unmerged, rest=event.rest, held_by=None), ()


def keep_end(data: TaskData, event: Cancelled | Rejected) -> Out:
    return replace(data, ended_as=event.outcome.value, ended_for=event.reason, held_by=None), ()


def keep_obstacle(data: TaskData, event: StepHeld) -> Out:
    return replace(data, held_by=event.held_by), ()


def forget_obstacle(data: TaskData, event: StepFreed) -> Out:
    return replace(data, held_by=None), ()


def wait_for_others(data: TaskData, event: Blocked) -> Out:
    return replace(data, waiting_for=event.on), ()


def wait_for_subtasks(data: TaskData, event: Split) -> Out:
    return replace(data, waiting_for=event.subtasks, parts=(*data.parts, *event.parts)), ()


def wait_for_subtask(data: TaskData, event: SubtaskTimedOut | SubtaskFailed) -> Out:
    return replace(data, waiting_for=(event.subtask,)), ()


def wait_for_nothing(data: TaskData, event: Event) -> Out:
    return replace(data, waiting_for=()), ()


HELD = (
    "a step that something outside of the work prevents is made again (rule 48); the specification knows no such wait"
)
IN_MERGE = "an end on purpose counts while the work is merged (rule 51); the specification only closes or rejects it"
DEAD_LETTER = (
    "a failed task is given up on record, and then only a person has it tried again; the specification has no mark"
)
RESET = "a person's reset starts afresh; the specification resets the run and has no way back for its task"
APPROVAL = (
    "approval gate: the specification sets this state past its table; here it is entered and left through the machine"
)
FAILED_SUBTASK = "a failed subtask blocks its parent as an unresponsive one does; the specification knows no such edge"

T = Task
HELD_IN: Final = (T.OPEN, T.CLAIMED, T.IN_PROGRESS, T.WAITING_FOR_SUBTASKS, T.DONE, T.PENDING_APPROVAL)
"""States with a step in the user's repository: a worktree is made, work is committed, or merged."""

TASK: Machine[Task, TaskData] = Machine(
    "task",
    source="000",
    initial=[T.PLANNED, T.OPEN],
    terminal=[T.CLOSED, T.CANCELLED, T.PENDING_APPROVAL],
    reserved=[T.PENDING_APPROVAL],
    severities={T.FAILED: Severity.ERROR, T.ORPHANED: Severity.WARNING},
    rules=[
        rule(Approved, T.PLANNED, T.OPEN, trigger="Human approves the planned task"),
        rule(Rejected, T.PLANNED, T.CANCELLED, do=[keep_end], trigger="Human rejects the planned task"),
        rule(Claimed, T.OPEN, T.CLAIMED, do=[hold], trigger="Agent calls claim_next() or claim_by_id()"),
        rule(
            Split,
            T.OPEN,
            T.WAITING_FOR_SUBTASKS,
            do=[wait_for_subtasks],
            trigger="Task decomposed before agent assignment",
        ),
        rule(Cancelled, T.OPEN, T.CANCELLED, do=[keep_end], trigger="Manual cancellation"),
        rule(Started, T.CLAIMED, T.IN_PROGRESS, trigger="Agent begins execution"),
        rule(Unclaimed, T.CLAIMED, T.OPEN, do=[release], trigger="Unclaim / force-reassign to different agent"),
        rule(Completed, T.CLAIMED, T.DONE, do=[keep_result], trigger="Fast completion (task was trivial)"),
        rule(
            Failed,
            T.CLAIMED,
            T.FAILED,
            do=[keep_failure, keep_findings],
            trigger="Immediate failure (e.g., scope violation)",
        ),
        rule(Cancelled, T.CLAIMED, T.CANCELLED, do=[keep_end], trigger="Manual cancellation"),
        rule(
            Split,
            T.CLAIMED,
            T.WAITING_FOR_SUBTASKS,
            do=[wait_for_subtasks],
            trigger="Agent splits task into subtasks",
        ),
        rule(Blocked, T.CLAIMED, T.BLOCKED, do=[wait_for_others], trigger="Dependency discovered after claim"),
        rule(Completed, T.IN_PROGRESS, T.DONE, do=[keep_result], trigger="Agent reports successful completion"),
        rule(Failed, T.IN_PROGRESS, T.FAILED, do=[keep_failure, keep_findings], trigger="Agent reports failure"),
        rule(Blocked, T.IN_PROGRESS, T.BLOCKED, do=[wait_for_others], trigger="External dependency blocks progress"),
        rule(
            Split,
            T.IN_PROGRESS,
            T.WAITING_FOR_SUBTASKS,
            do=[wait_for_subtasks],
            trigger="Agent decomposes task mid-execution",
        ),
        rule(Requeued, T.IN_PROGRESS, T.OPEN, do=[release], trigger="Force-requeue for different agent"),
        rule(Cancelled, T.IN_PROGRESS, T.CANCELLED, do=[keep_end], trigger="Manual cancellation"),
        rule(
            Orphaned,
            T.IN_PROGRESS,
            T.ORPHANED,
            do=[keep_failure, keep_loss],
            trigger="Heartbeat timeout / agent crash detected",
        ),
        rule(Recovered, T.ORPHANED, T.DONE, do=[keep_summary], trigger="Partial work saved and merged"),
        rule(RecoveryFailed, T.ORPHANED, T.FAILED, do=[keep_failure], trigger="Crash recovery failed"),
        rule(Requeued, T.ORPHANED, T.OPEN, do=[release], trigger="Requeued for retry by another agent"),
        rule(Unblocked, T.BLOCKED, T.OPEN, do=[keep_holder], trigger="Blocking dependency resolved"),
        rule(Cancelled, T.BLOCKED, T.CANCELLED, do=[keep_end], trigger="Manual cancellation"),
        rule(
            SubtasksCompleted,
            T.WAITING_FOR_SUBTASKS,
            T.DONE,
            do=[wait_for_nothing],
            trigger="All child subtasks completed",
        ),
        rule(
            SubtaskTimedOut,
            T.WAITING_FOR_SUBTASKS,
            T.BLOCKED,
            do=[wait_for_subtask],
            trigger="Subtask timeout escalation (parent blocked waiting on unresponsive subtask)",
        ),
        rule(Cancelled, T.WAITING_FOR_SUBTASKS, T.CANCELLED, do=[keep_end], trigger="Manual cancellation"),
        rule(
            Retried,
            T.FAILED,
            T.OPEN,
            when=retries_left,
            do=[count_retry, release],
            trigger="Retry (respects max_retries, default 3)",
        ),
        rule(Closed, T.DONE, T.CLOSED, do=[keep_unmerged], trigger="Janitor verification passed + branch merged"),
        rule(
            VerificationRejected,
            T.DONE,
            T.FAILED,
            do=[keep_failure, keep_findings],
            trigger="Janitor verification rejected the result",
        ),
        rule(Cancelled, T.DONE, T.CANCELLED, do=[keep_end], extension=IN_MERGE),
        rule(DeadLettered, T.FAILED, T.FAILED, when=still_tried, do=[keep_dead_letter], extension=DEAD_LETTER),
        rule(Reopened, T.FAILED, T.OPEN, when=given_up, do=[forget_retries, release], extension=RESET),
        rule(SubtaskFailed, T.WAITING_FOR_SUBTASKS, T.BLOCKED, do=[wait_for_subtask], extension=FAILED_SUBTASK),
        rule(ApprovalRequested, T.DONE, T.PENDING_APPROVAL, when=approval_needed, extension=APPROVAL),
        rule(
            ApprovalGiven,
            T.PENDING_APPROVAL,
            T.PENDING_APPROVAL,
            when=unapproved,
            do=[keep_approval],
            extension=APPROVAL,
        ),
        rule(ApprovalGranted, T.PENDING_APPROVAL, T.CLOSED, do=[keep_unmerged], extension=APPROVAL),
        rule(ApprovalDenied, T.PENDING_APPROVAL, T.FAILED, do=[keep_failure, keep_findings], extension=APPROVAL),
        rule(Cancelled, T.PENDING_APPROVAL, T.CANCELLED, do=[keep_end], extension=APPROVAL),
        *(rule(StepHeld, state, state, do=[keep_obstacle], extension=HELD) for state in HELD_IN),
        *(rule(StepFreed, state, state, do=[forget_obstacle], extension=HELD) for state in HELD_IN),
    ],
)
