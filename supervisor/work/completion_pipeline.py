"""Bring a task to its end: checked, reviewed, approved, merged and closed; or failed; or cancelled; or skipped.

Theory of operation
-------------------
Work that an agent states to be done takes these steps. Each of them is an effect, which follows from the states of the
task (``task_cascade.pending_effect``), also after a takeover, and ends with one event::

    check       commit the work; run the acceptance tests on that commit; have it reviewed
                    passed: run COMPLETED, job COMPLETED, task DONE, and PENDING_APPROVAL if a person must approve
                    failed: run CIRCUIT_OPEN, job FAILED, task FAILED
    merge       merge exactly the commit that was checked, into the branch of the workstream if it has one: task
                CLOSED; if the merge is refused: task FAILED
    put_away    end the session, clear the workspace, free the slot; then claim a failed task again, or settle it

Each line that names several states is one append of the journal (``PlanRun.record``). A task that moves meanwhile stops
the effect under way, so no lock is needed. A merge that is stopped has happened at its next safe point, and the task is
closed, or has not, and the task is cancelled.

The commit comes first, since exactly that commit is tested, reviewed and merged: changes written afterwards stay on the
branch, and the result lists them as ``unmerged``. The session is ended before the task is closed: a late message might
open another turn.

``put_away`` follows whatever leaves a session or a slot behind: an attempt that has failed, a task that was taken away
or blocked, or has ended. A task that was rejected or failed is claimed again if the next claim has something new,
within its own retries and the retry budget, or is settled as failed. ``merge_late`` is no effect: its task was closed
before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar

import anyio
from msgspec.structs import replace

from actors.machine import Event
from actors.one_shot_event import OneShotEvent
from supervisor.lifecycles import task, task_run
from supervisor.lifecycles.task import SESSION_ENDS, TASK, Task, TaskEnd, retries_left, task_end
from supervisor.lifecycles.task_cascade import (
    CANCELLABLE,
    USUAL,
    Circumstances,
    Ended,
    Merged,
    MergeRefused,
    PlanGivenUp,
    RetriesEnded,
    outcome_of,
    with_end,
)
from supervisor.lifecycles.task_run import RUN, CheckpointSaved, SkipCause, TaskRun
from supervisor.lifecycles.types import AbortScope, NoSuchEntity
from supervisor.plans.acceptance import AcceptanceTest
from supervisor.policies.retry_reason import findings_differ, make_findings
from supervisor.ports import Changes, JournalError, WorkspaceHeld, WorkspaceSpec
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Refused
from supervisor.sessions.obstacles import outlast_obstacles
from supervisor.work import authorization, plugin_policies
from supervisor.work.checkpoints import left_at, save, take_back, workspace_of
from supervisor.work.held_steps import make_step
from supervisor.work.plan_run import STOPPING, PlanRun
from supervisor.work.results import remark_of_rest
from supervisor.work.review import review_work
from supervisor.work.task_entity import RunningEffect
from supervisor.work.task_execution import CancelReason, TaskExecution

_log = get_logger()
_T = TypeVar("_T")
EffectEnd = Callable[[], Awaitable[None]]
"""Step that records what an effect has done. Nothing stops the step but the end of the plan."""

ORPHANED: Final = "the supervisor of its session ended"
"""Reason on record of a task that was lost with its supervisor."""

ENDED_BY: Final = "{} has ended the work on it"
"""Reason why there is no other attempt at a task whose work was kept."""

MERGED: Final = "Merged"
MERGE_REFUSED: Final = "MergeRefused"
"""Facts of a workstream about the late merge of a task that was closed in an earlier workstream before its work was
merged."""


RESOLVE: Final = "the workspace has this work, with the target merged in: resolve the conflict there"
"""Text about a merge conflict in the next prompt."""


class MergeResult(NamedTuple):
    """Result of a merge: a sentence, and whether the merge was refused; *conflicts*: because the work is in conflict
    with the target."""

    text: str
    is_refused: bool = False
    conflicts: bool = False


class CompletionPipeline:
    """Brings the tasks of a plan run to their ends."""

    def __init__(self, plan_run: PlanRun) -> None:
        self._plan_run = plan_run
        self._sup = plan_run.sup

    # ------------------------------------------------------------------ checked
    async def check(self, execution: TaskExecution) -> None:
        """Perform the effect ``RunChecks``: check the work of the task's session, or the joint work of its subtasks.
        Then the task is done or has failed; if its session was ended meanwhile, the task is cancelled."""
        session = self._sup.registry.sessions.get(execution.session_id)
        find = self._find_problem_of_whole if execution.state is Task.WAITING_FOR_SUBTASKS else self._find_problem
        try:
            judged, reason, given = await find(execution)
        except (NoSuchEntity, Refused, WorkspaceHeld) as refusal:
            stopped = session.stop_request if session is not None else None
            words = f"{STOPPING}: {refusal}" if isinstance(refusal, WorkspaceHeld) else str(refusal)
            why = CancelReason(stopped.reason if stopped else words)
            await self.cancel(execution, why, effect=execution.entity.running)
            return
        passed = task_run.TestsPassed(judged=judged)
        await self._plan_run.report(execution, task_run.TestsFailed(error=reason) if reason else passed, given=given)

    async def _find_problem_of_whole(self, execution: TaskExecution) -> tuple[str, str, Circumstances]:
        """Test the joint work of the subtasks, which are all closed. Return the same as ``_find_problem``, with the
        commit of the task's own part."""
        tests, directory = self._acceptance(execution), self._plan_run.directory_of(execution)
        inspected = f"{execution.id}.whole"
        place = WorkspaceSpec(workstream=execution.merges_into, directory=str(directory))
        inspect = partial(self._sup.verification.inspect, inspected, tests, directory, self._sup.stop_now, place)
        rejection = await make_step(self._sup, execution, inspect)
        if rejection is None:
            return "", "", USUAL
        why = f"not accepted: {rejection.problem}"
        return "", why, Circumstances(rules=(rejection.problem,), findings=self._findings(why, rejection.output))

    async def _find_problem(self, execution: TaskExecution) -> tuple[str, str, Circumstances]:
        """Check the work of the task's session. Return the commit that was checked, the reason why the work is not
        accepted (``""`` if it is), and the rules and findings.

        Raises:
            Refused, NoSuchEntity: the session was ended meanwhile.
            WorkspaceHeld: the supervisor is ending, and something outside of the work holds the commit.
        """
        session_id = execution.session_id
        # First the commit: it is what is tested, reviewed and merged. Whatever is written from here on is not.
        commit = partial(self._sup.verification.commit, session_id, _message(execution))
        try:
            judged = await make_step(self._sup, execution, commit)
        except WorkspaceHeld:
            raise
        except OSError as error:
            return "", f"not committed: {error}", USUAL
        rejection = await self._sup.verification.check(session_id, self._acceptance(execution))
        if rejection is not None:
            reason = f"not accepted: {rejection.problem}"
            return judged, reason, Circumstances(findings=self._findings(reason, rejection.output))
        review = self._plan_run.plan.review_of(execution.task)
        if review is None:
            return judged, "", USUAL

        async def changes(message: str, commit: str) -> Changes | None:
            into = execution.merges_into
            do = partial(self._sup.verification.changes, session_id, message, commit, workstream=into)
            return await make_step(self._sup, execution, do)

        verdict = await review_work(self._sup, session_id, review, execution.task, execution.cause, judged, changes)
        return judged, verdict.words, Circumstances(rules=verdict.findings, findings=self._findings(verdict.report))

    def _acceptance(self, execution: TaskExecution) -> list[AcceptanceTest]:
        timeout_s = self._plan_run.plan.task_lifecycle.validation_timeout
        return [test.value(timeout_s) for test in execution.task.acceptance]

    def _findings(self, summary: str, details: str = "") -> str:
        """Return the findings that the next claim is given, without secrets."""
        return make_findings(summary, details, self._sup.journal_writer.redactor.text)

    # ------------------------------------------------------------------ merged
    async def merge(self, execution: TaskExecution) -> EffectEnd | None:
        """Perform the effect ``Merge``: merge the work. Return the step that closes the task, or fails it. If the merge
        is stopped before the work is merged, or is held as the supervisor ends, there is no such step: whoever stops
        the merge ends the task, or the task is closed unmerged."""
        try:
            merge = await self._merged(execution, execution.data.judged)
        except WorkspaceHeld as held:
            await self._leave_unmerged(execution, str(held))
            return None
        return partial(self._end_merge, execution, merge)

    async def _end_merge(self, execution: TaskExecution, merge: MergeResult) -> None:
        """Record the outcome of a merge, even if the plan is given up meanwhile. A plan that is given up while the disk
        is down does not wait for that: the records are made when the disk is up."""
        over = OneShotEvent()

        async def record() -> None:
            try:
                await self._record_merge(execution, merge)
            finally:
                over.set()

        try:
            await self._sup.background.run_to_completion(record, f"record the merge of {execution.name}")
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self._sup.journal_writer.disk.wait_unless_down(over)
            raise

    async def _record_merge(self, execution: TaskExecution, merge: MergeResult) -> None:
        if merge.is_refused:
            # A merge that is refused since the conflict was not resolved leaves the commit of the conflict in place.
            conflict = execution.data.judged if merge.conflicts else execution.data.conflict
            more = f"; {RESOLVE}" if conflict and not execution.task.rollback else ""
            given = Circumstances(findings=self._findings(f"{merge.text}{more}"), conflict=conflict)
            self._plan_run.record(execution, MergeRefused(reason=merge.text), given=given)
            return
        authorization.count_success(self._plan_run, execution)
        await self._end_session(execution)  # else a late message might open another turn of it
        reason, rest = await self._with_rest(execution, merge.text)
        self._plan_run.record(execution, Merged(reason=reason, rest=rest))

    async def _leave_unmerged(self, execution: TaskExecution, held: str) -> None:
        """Close a task whose merge is held as the supervisor ends; a run that resumes this run merges the work."""
        await self._end_session(execution)
        if not execution.is_stopped:
            execution.ending = CancelReason(f"not merged yet: {held}; --resume merges it", TaskEnd.CANCELLED)
            self._plan_run.record(execution, PlanGivenUp(reason=held))

    async def merge_late(self, execution: TaskExecution, judged: str) -> tuple[bool, str]:
        """Merge the commit *judged* of a task that was closed in an earlier run before its merge. Return whether the
        work was merged, and a sentence about the merge. The log of the task has ended, so the facts are recorded of
        the workstream.

        Raises:
            WorkspaceHeld: the supervisor is ending, and something outside of the work holds the merge.
        """
        workstream = self._plan_run.workstream
        execution.seq, execution.merges_into = workstream.born_seq, self._plan_run.merges_into
        merge = await self._merged(execution, judged, on=workstream.id)
        text = merge.text
        if not merge.is_refused:
            authorization.count_success(self._plan_run, execution, on=workstream.id)
            await self._sup.verification.forget(workspace_of(self._sup, execution))
            text, _ = await self._with_rest(execution, text)
        await self.leave_workspace(execution)
        fact = MERGE_REFUSED if merge.is_refused else MERGED
        metadata = {"task": execution.id, "session": execution.session_id}
        self._sup.registry.record_fact(workstream.id, fact, execution.cause, metadata, reason=text)
        return not merge.is_refused, text

    def denial(self, by: str, reason: str) -> task.ApprovalDenied:
        """Return the event that a person rejected the result of a task."""
        why = f"denied by {by}: {reason}" if reason else f"denied by {by}"
        return task.ApprovalDenied(by=by, reason=reason, findings=self._findings(why))

    async def _with_rest(self, execution: TaskExecution, merge: str) -> tuple[str, str]:
        """Return the sentence *merge*, extended by a remark on changes that were written after the work was checked,
        and the branch with these changes, ``""`` if there are none: they were not tested, and stay there. The session
        has ended, so nobody writes there any more."""
        if not execution.holds_work or self._sup.verification.in_place:
            return merge, ""
        left = await self._sup.cleanup.clean_up(execution.session_id, left_at(execution))
        if left.branch:
            rest = remark_of_rest(left.branch, left.directory)
        elif left.problem:
            rest = f"unknown whether something was written after it was judged: {left.problem}"
        else:
            return merge, ""
        execution.remarks.append(rest)
        _log.displayed("work is left that is not merged", task=execution.name, branch=left.branch, why=rest)
        return f"{merge}; {rest}", left.branch or ""

    async def _merged(self, execution: TaskExecution, judged: str, *, on: str = "") -> MergeResult:
        """Merge the commit *judged*. *on* is the entity that facts are recorded of, if the task was closed before.

        Raises:
            WorkspaceHeld: the supervisor is ending, and something outside of the work holds the merge.
        """
        if not execution.holds_work:
            return MergeResult("nothing to merge: its subtasks did the work")

        async def do() -> MergeResult:
            if why := await authorization.refused_changes(self._plan_run, execution, judged, on=on):
                return MergeResult(f"not merged: {why}", is_refused=True)
            into = execution.merges_into
            merge = await self._sup.verification.merge(
                execution.session_id, _message(execution), judged, workstream=into
            )
            match merge.outcome:
                case "refused":
                    return MergeResult(f"not merged: {merge.why}", is_refused=True, conflicts=merge.conflicts)
                case "merged":
                    return MergeResult(f"merged into {merge.target} as {merge.commit[:12]}")
                case _:
                    return MergeResult(f"nothing to merge: {merge.why}")

        return await (self._make_late_step(execution, do) if on else make_step(self._sup, execution, do))

    async def _make_late_step(self, execution: TaskExecution, do: Callable[[], Awaitable[_T]]) -> _T:
        """Call *do*, a step of a task that was closed before, until nothing outside of the work holds it."""
        note = partial(self._plan_run.workstream.note_obstacle, task=execution.name)
        return await outlast_obstacles(do, note, self._sup.journal_writer.clock.wall, self._sup.stopping)

    # ------------------------------------------------------------------ put away
    async def put_away(self, execution: TaskExecution) -> None:
        """Perform the effect ``PutAway``: end the session of a task that nobody carries out any more, clear its
        workspace, and free the slot of its worker; then settle the task if it has ended."""
        match execution.state:
            case Task.CLOSED if (ending := execution.ending) is not None:  # its work is not merged yet
                await self.leave_workspace(execution)
                await self._plan_run.give_back(execution)
                self._plan_run.settle(execution, ending.outcome, ending.text)
            case Task.CLOSED:
                await self._sup.verification.forget(workspace_of(self._sup, execution))
                await self.leave_workspace(execution)
                await self._plan_run.give_back(execution)
                self._plan_run.settle(execution, "completed", "")
            case Task.CANCELLED:
                await self._put_away_cancelled(execution)
            case Task.FAILED:
                await self._put_away_failed(execution)
            case Task.PENDING_APPROVAL:
                await self._end_session(execution)
                await self._sup.verification.accept(workspace_of(self._sup, execution))
                await self._plan_run.give_back(execution)
                if self._sup.stopping.is_set() and not (execution.is_stopped or execution.data.approved_by):
                    self.end(execution, CancelReason(STOPPING))
                elif not execution.data.approved_by:
                    _log.displayed("a task waits for approval", task=execution.name)
            case state:
                if state in (Task.OPEN, Task.BLOCKED):
                    await self._end_session(execution)
                with anyio.CancelScope(shield=True):  # the slot is free after that: else it is not for others
                    await self._save_late(execution)
                    if not execution.is_rolled_back and execution.run in (TaskRun.CIRCUIT_OPEN, TaskRun.RETRYING):
                        await take_back(self._sup, execution)
                    await self._plan_run.give_back(execution)

    async def _save_late(self, execution: TaskExecution) -> None:
        """Save the checkpoint of an attempt that was taken away before its work could be saved."""
        lifecycle, data = self._plan_run.plan.task_lifecycle, execution.run_data
        is_open = execution.run in (TaskRun.CIRCUIT_OPEN, TaskRun.RETRYING)
        wanted = lifecycle.checkpoint.save_on_states if lifecycle.checkpoint.enabled else ()
        if is_open and data.saved_attempt != data.attempts and TaskRun.FAILED in wanted:
            saved = CheckpointSaved(
                state=TaskRun.FAILED, attempt=data.attempts, session=execution.session_id, saved_as=""
            )
            found = await save(self._sup, lifecycle, execution, [saved])
            if found is not None and CheckpointSaved in RUN.allowed(execution.run):
                self._plan_run.record(execution, replace(saved, saved_as=found.saved_as))

    async def _put_away_failed(self, execution: TaskExecution) -> None:
        """Clear the workspace of a failed task. Then let the task be claimed again if the next claim has something new
        (``_is_claim_due``) and retries are left; else settle the task as failed."""
        plan_run, error = self._plan_run, execution.data.last_failure
        await self._end_session(execution)
        if execution.has_run:
            await self._save_late(execution)
        left = await self.leave_workspace(execution)
        if letter := execution.data.dead_letter:  # recorded before a takeover
            await self._plan_run.give_back(execution)
            self._plan_run.settle(execution, "failed", letter)
            return
        # A task that was lost with its supervisor is tried again only by a person.
        if retries_left(execution.data, task.Retried()) and error != ORPHANED:
            retries = execution.data.retries + 1
            agent = await plugin_policies.next_agent(plan_run, execution, plan_run.agent_of(execution, retries))
            is_due, why = self._is_claim_due(execution, agent)
            if is_due and not (why := plan_run.spend_retry()):
                await plan_run.give_back(execution)
                execution.agent = agent
                plan_run.delay_claim(execution, f"try {retries + 1}")
                return
            error = with_end(error, why)
        error = _with_branch(error, left)
        _log.displayed("a task has failed", is_error=True, task=execution.name, reason=error)
        if is_critical := plan_run.is_critical(execution):
            self._give_up(execution, error)
            await plan_run.workstream.record_failed(execution, error, plan_run.results)
        # The slot is free just before the result: no other task that ends because of this failure is given the slot.
        await plan_run.give_back(execution)
        if not is_critical:  # with the result: who sees that the task has failed for good can retry it
            self._give_up(execution, error)
        plan_run.settle(execution, "failed", error)

    def _give_up(self, execution: TaskExecution, error: str) -> None:
        attempts = execution.run_data.attempts if execution.has_run else 0  # the run may have ended before a takeover
        given_up = task.DeadLettered(reason=error, attempts=attempts, claims=execution.data.claims)
        self._plan_run.record(execution, given_up)

    def _is_claim_due(self, execution: TaskExecution, agent: str) -> tuple[bool, str]:
        """Return whether a new claim by *agent* has something new, and if its findings are not, the reason."""
        data, profile = execution.data, self._sup.setups.profile(agent, execution.id)
        if data.kept_by:
            return False, ENDED_BY.format(data.kept_by)
        if agent != execution.agent or not data.has_findings:
            return agent != execution.agent, ""
        # An agent whose prompt may not hold findings, since it may execute them, is claimed again without them.
        is_off = profile is not None and profile.explain_retries is False
        explains = self._sup.setups.of(execution.id).settings.explain_retries
        if is_off or not explains:
            key = f"agents.{agent}.explain_retries" if explains else "explain_retries"
            return False, f"the next prompt may not tell the findings: {key} is false"
        if not findings_differ(data.failure, data.findings_before):
            return False, "the findings are those of the claim before"
        return True, ""

    def give_up(self, execution: TaskExecution, why: str) -> None:
        """End a task that waited for a probe which will not be made."""
        if task.Failed in TASK.allowed(execution.state):
            self._plan_run.record(execution, RetriesEnded(reason=why))
        else:  # it was taken from its worker: nobody failed
            self.end(execution, CancelReason(with_end(execution.run_data.last_error, why), TaskEnd.CANCELLED))

    # ------------------------------------------------------------------ cancelled, skipped
    async def cancel(
        self, execution: TaskExecution, why: CancelReason, *first: Event, effect: RunningEffect | None = None
    ) -> None:
        """Cancel the task, unless it has ended, or the *effect* that cannot go on was stopped. The events *first* are
        recorded together with the cancellation, before it. If the plan wants a checkpoint of a cancelled task, save it
        before."""
        lead = Ended(reason=why.text, outcome=why.outcome)
        self._keep_output(execution)
        given = await self._plan_run.with_checkpoint(execution, *first, lead)
        if effect is None or not effect.is_stopped:
            self.end(execution, why, *first, given=given)

    def end(self, execution: TaskExecution, why: CancelReason, *first: Event, given: Circumstances = USUAL) -> None:
        """Record that the task is cancelled, unless it has ended; ``put_away`` follows. Without an await: from here on
        nothing else becomes of the task."""
        if execution.state not in (*CANCELLABLE, Task.PLANNED):
            return
        if why.because is not None:
            execution.seq = why.because
        self._keep_output(execution)
        lead = Ended(reason=why.text, outcome=why.outcome)
        execution.ending = why
        self._plan_run.record(execution, *first, lead, given=given)

    def _keep_output(self, execution: TaskExecution) -> None:
        """Keep what the agent has said so far, if an attempt is under way."""
        session = self._sup.registry.sessions.get(execution.session_id)
        if execution.works and session is not None:
            execution.output = session.answer.text

    async def _put_away_cancelled(self, execution: TaskExecution) -> None:
        why = execution.ending
        assert why is not None, "it was ended in this process"
        if self._plan_run.lives(execution.session_id):  # the rest of its work is not waited for
            with suppress(NoSuchEntity, Refused, JournalError):
                await self._sup.aborts.abort(
                    execution.session_id, AbortScope.SESSION, reason=why.text, actor=why.actor, because=execution.seq
                )
        branch = ""
        if self._plan_run.plan.task_lifecycle.cleanup_on_cancel or not execution.session_id:
            branch = await self.leave_workspace(execution)
        else:
            await self._end_session(execution)
            await take_back(self._sup, execution)
            execution.note("PlaceKept", {"session": execution.session_id}, "cleanup_on_cancel is false")
        await self._plan_run.give_back(execution)
        end = task_end(execution.state.value, execution.data.ended_as)
        self._plan_run.settle(execution, end, _with_branch(why.text, branch))

    async def record_given_up(self, execution: TaskExecution, reason: str) -> None:
        """Record that the task, its run and its job are cancelled, or that a task that is done is closed. Do not wait
        for the journal: the records are written when the disk allows."""
        lead, given = PlanGivenUp(reason=reason), USUAL
        with anyio.CancelScope(shield=True):  # a checkpoint that was begun is made, or gives up by itself
            try:
                given = await self._plan_run.with_checkpoint(execution, lead)
            finally:
                with suppress(NoSuchEntity, Refused):
                    self._plan_run.record(execution, lead, given=given)

    def skip(
        self, execution: TaskExecution, cause: SkipCause, reason: str, *, dependency: TaskExecution | None = None
    ) -> None:
        """Skip a task that was never begun, also if it was split meanwhile: *cause* is the kind of the reason,
        *dependency* the task that did not complete."""
        if execution.state not in (Task.PLANNED, Task.OPEN, Task.WAITING_FOR_SUBTASKS):
            return
        if dependency is not None:
            execution.seq = dependency.seq
        skipped = task_run.Skipped(cause=cause, dependency=dependency.name if dependency is not None else "")
        execution.ending = CancelReason(reason, outcome_of(skipped))
        self._plan_run.record(execution, skipped, given=Circumstances(reason=reason))

    # ------------------------------------------------------------------ afterwards
    async def leave_workspace(self, execution: TaskExecution) -> str:
        """End the session, and clear the workspace. Return the branch that holds left-over work, or ``""``."""
        if not execution.session_id:
            return ""
        await self._end_session(execution)
        await take_back(self._sup, execution)
        left = await self._sup.cleanup.clean_up(execution.session_id, left_at(execution))
        return left.branch or ""

    async def _end_session(self, execution: TaskExecution) -> None:
        if execution.session_id:
            with suppress(NoSuchEntity, Refused, JournalError):
                reason = "its work is merged"
                if execution.is_opened:  # else only the merge was left to do
                    reason = _reason_of_close(execution)
                await self._sup.aborts.close_session(execution.session_id, reason=reason, cause=execution.cause)


def _with_branch(reason: str, branch: str) -> str:
    """Return *reason*, extended by the *branch* with the work that is not merged, if there is one."""
    return f"{reason}; its work is on the branch {branch}" if branch else reason


def _message(execution: TaskExecution) -> str:
    """Return the message for the commits of the task's work."""
    return f"{execution.name}: the work of session {execution.session_id}"


def _reason_of_close(execution: TaskExecution) -> str:
    """Return the reason with which the session of a task is closed."""
    match execution.state:
        case Task.DONE:
            return SESSION_ENDS[TaskEnd.COMPLETED]
        case Task.PENDING_APPROVAL:
            return "its result waits to be approved"
    end = task_end(execution.state.value, execution.data.ended_as)
    return SESSION_ENDS[TaskEnd(end)] if end in SESSION_ENDS else "its task goes on without it"
