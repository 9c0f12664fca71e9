"""Bring a task to its end: checked, reviewed, approved, merged and closed; or failed; or cancelled; or skipped.

Theory of operation
-------------------
Every end of a task is reached through this module. Work that an agent states to be done takes these steps::

    complete    run VALIDATING, job VALIDATING
    check       commit the work; run the acceptance tests on that commit; have it reviewed
                    passed: run COMPLETED, job COMPLETED, task DONE, and PENDING_APPROVAL if a person must approve
                    failed: run CIRCUIT_OPEN, job FAILED, task FAILED
    merge       merge exactly the commit that was checked; if the merge is refused: task FAILED
    close       end the session, then task CLOSED; delete the checkpoint; clear the workspace

Each line that names several states is one append of the journal (``PlanRun.advance``). ``check`` and ``merge`` are
effects: the entity of the task begins ``check`` when the run is VALIDATING, and ``merge`` when the task is DONE or its
approval is on record, also after a takeover (``task_cascade.pending_effect``). No lock is held meanwhile, so that an
end on purpose can stop them. A merge that is stopped has happened at its next safe point, and the task is closed, or
has not, and the task is cancelled.

The commit comes first, since exactly that commit is tested, reviewed and merged: changes written afterwards stay on the
branch, and the result lists them as ``unmerged``. The session is ended before the task is closed: a late message might
open another turn.

A task that was rejected or failed is claimed again if the next claim has something new, within its own retries and the
retry budget (``_fail_for_now``), or is settled as failed. A task that is cancelled is in phase ENDING while the
cancellation is recorded: the first end counts. The caller of a step holds the task's lock, or is the task's attempt
runner. ``cancel`` and ``skip`` may be called without the lock: phase ENDING prevents a second end; a merge that is
under way is over before that (``TaskScheduler.cancel``). ``merge_late`` needs no lock: no other part of the run works
on its task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar

import anyio

from actors.machine import Event
from actors.one_shot_event import OneShotEvent
from supervisor.lifecycles import task, task_run
from supervisor.lifecycles.task import SESSION_ENDS, TASK, Task, TaskEnd, retries_left, task_end
from supervisor.lifecycles.task_cascade import (
    SAVE_CANCELLED,
    USUAL,
    Circumstances,
    Ended,
    Merged,
    MergeRefused,
    OwnPartEnded,
    PlanGivenUp,
    RetriesEnded,
    outcome_of,
    step,
    with_end,
)
from supervisor.lifecycles.task_run import SkipCause
from supervisor.lifecycles.types import AbortScope
from supervisor.plans.acceptance import AcceptanceTest
from supervisor.policies.retry_reason import findings_differ, make_findings
from supervisor.ports import Changes, JournalError, WorkspaceHeld
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import NoSuchEntity, Refused
from supervisor.sessions.obstacles import outlast_obstacles
from supervisor.work import authorization, plugin_policies
from supervisor.work.checkpoints import left_at, take_back, workspace_of
from supervisor.work.held_steps import make_step
from supervisor.work.plan_run import STOPPING, PlanRun
from supervisor.work.results import remark_of_rest
from supervisor.work.review import review_work
from supervisor.work.task_execution import CancelReason, Phase, TaskExecution

_log = get_logger()
_T = TypeVar("_T")

DEAD_LETTERED: Final = "DeadLettered"
"""Fact of a task: its failure is final, so that only a person can have the task tried again."""

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
    async def complete(self, execution: TaskExecution) -> None:
        """Record that the agent states the work to be done, which is checked next. A task that was split meanwhile
        waits for its subtasks instead."""
        await self._plan_run.advance(execution, task_run.ExecutionCompleted())
        if execution.state is Task.WAITING_FOR_SUBTASKS:
            await self._plan_run.give_back(execution)

    async def check(self, execution: TaskExecution) -> None:
        """Perform the effect ``RunChecks``: check the work of the task's session. Then the task is done or has failed;
        if its session was ended meanwhile, the task is cancelled."""
        session = self._sup.registry.sessions.get(execution.session_id)
        reason, given, end = "", USUAL, execution.cancel_reason
        try:
            reason, given = await self._find_problem(execution)
        except (NoSuchEntity, Refused, WorkspaceHeld) as refusal:
            stopped = session.stop_request if session is not None else None
            end = CancelReason(stopped.reason if stopped else str(refusal))
        with anyio.CancelScope(shield=True):
            async with self._plan_run.moving(execution):
                if (end := execution.cancel_reason or end) is not None:
                    await self.cancel(execution, end)
                elif reason and not execution.is_over:
                    await self.fail(execution, task_run.TestsFailed(error=reason), given)
                elif not execution.is_over:
                    await self._pass_checks(execution)

    async def _find_problem(self, execution: TaskExecution) -> tuple[str, Circumstances]:
        """Return the reason why the work of the task's session is not accepted, with rules and findings; ``""`` if the
        work is accepted.

        Raises:
            Refused, NoSuchEntity: the session was ended meanwhile.
            WorkspaceHeld: the supervisor is ending, and something outside of the work holds the commit.
        """
        session_id = execution.session_id
        # First the commit: it is what is tested, reviewed and merged. Whatever is written from here on is not.
        commit = partial(self._sup.verification.commit, session_id, _message(execution))
        try:
            execution.judged = await make_step(self._sup, execution, commit)
        except WorkspaceHeld:
            raise
        except OSError as error:
            return f"not committed: {error}", USUAL
        rejection = await self._sup.verification.check(session_id, self._acceptance(execution))
        if rejection is not None:
            reason = f"not accepted: {rejection.problem}"
            return reason, Circumstances(findings=self._findings(reason, rejection.output))
        review = self._plan_run.plan.review_of(execution.task)
        if review is None:
            return "", USUAL

        async def changes(message: str, commit: str) -> Changes | None:
            do = partial(self._sup.verification.changes, session_id, message, commit)
            return await make_step(self._sup, execution, do)

        verdict = await review_work(
            self._sup, session_id, review, execution.task, execution.cause, execution.judged, changes
        )
        return verdict.words, Circumstances(rules=verdict.findings, findings=self._findings(verdict.report))

    def _acceptance(self, execution: TaskExecution) -> list[AcceptanceTest]:
        timeout_s = self._plan_run.plan.task_lifecycle.validation_timeout
        return [test.value(timeout_s) for test in execution.task.acceptance]

    def _findings(self, summary: str, details: str = "") -> str:
        """Return the findings that the next claim is given, without secrets."""
        return make_findings(summary, details, self._sup.journal_writer.redactor.text)

    async def _pass_checks(self, execution: TaskExecution) -> None:
        """Record that run and job have passed their checks and that the task is done: it is merged, or waits to be
        approved."""
        await self._plan_run.advance(execution, task_run.TestsPassed(judged=execution.judged))
        await self.leave_to_person(execution)

    # ------------------------------------------------------------------ split
    async def integrate(self, execution: TaskExecution) -> None:
        """Check the joint work of the subtasks, which are all closed."""
        await self._plan_run.advance(execution, OwnPartEnded())
        tests, directory = self._acceptance(execution), self._plan_run.directory_of(execution)
        inspected = f"{execution.name}.whole"
        inspect = partial(self._sup.verification.inspect, inspected, tests, directory, self._sup.stop_now)
        try:
            rejection = await make_step(self._sup, execution, inspect)
        except WorkspaceHeld as held:  # the supervisor is ending
            await self.cancel(execution, CancelReason(f"{STOPPING}: {held}"))
            return
        if rejection is None:
            await self._pass_checks(execution)
            return
        why = f"not accepted: {rejection.problem}"
        given = Circumstances(rules=(rejection.problem,), findings=self._findings(why, rejection.output))
        await self.fail(execution, task_run.TestsFailed(error=why), given)

    async def leave_to_subtasks(self, execution: TaskExecution) -> None:
        """Release the worker of a task that was split: the rest of the work is done in the subtasks."""
        with anyio.CancelScope(shield=True):
            await self._plan_run.advance(execution, OwnPartEnded())
            await self._plan_run.give_back(execution)

    # ------------------------------------------------------------------ approved, merged, closed
    async def leave_to_person(self, execution: TaskExecution) -> None:
        """Release session and worker of a task if its result waits for the approval of a person."""
        if execution.state is not Task.PENDING_APPROVAL:
            return
        await self._end_session(execution)
        await self._sup.verification.accept(workspace_of(self._sup, execution))
        await self._plan_run.give_back(execution)
        if self._sup.stopping.is_set():
            await self.cancel(execution, CancelReason(STOPPING))
            return
        _log.warning("a task waits for approval", task=execution.name)

    async def merge(self, execution: TaskExecution) -> None:
        """Perform the effect ``Merge``: merge the work, and close the task, or fail it. If the merge is stopped before
        the work is merged, record nothing: whoever stops it ends the task."""
        merging = execution.merging
        assert merging is not None
        try:
            with merging.scope:
                merge = await self._merged(execution, execution.data.judged)
            if not merging.scope.cancelled_caught:
                await self._end_merge(execution, merge)
        except WorkspaceHeld as held:
            with anyio.CancelScope(shield=True):
                async with self._plan_run.moving(execution):
                    await self._leave_unmerged(execution, str(held))
        finally:
            execution.merging = None
            merging.over.set()

    async def _end_merge(self, execution: TaskExecution, merge: MergeResult) -> None:
        """Record the outcome of a merge, even if the plan is given up meanwhile. A plan that is given up while the disk
        is down does not wait for that: the records are made when the disk is up."""
        over = OneShotEvent()

        async def record() -> None:
            try:
                async with self._plan_run.moving(execution):
                    await self._record_merge(execution, merge)
            finally:
                over.set()

        try:
            await self._sup.run_to_completion(record, f"record the merge of {execution.name}")
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
            await self.fail(execution, MergeRefused(reason=merge.text), given)
            return
        authorization.count_success(self._plan_run, execution)
        await self._end_session(execution)  # else a late message might open another turn of it
        reason, rest = await self._with_rest(execution, merge.text), execution.rest
        await self._plan_run.advance(execution, Merged(reason=reason, rest=rest))
        await self._end_completed(execution)

    async def _leave_unmerged(self, execution: TaskExecution, held: str) -> None:
        """Close a task whose merge is held as the supervisor ends; a run that resumes this run merges the work."""
        if execution.is_over or execution.cancel_reason:
            return
        await self._end_session(execution)
        await self._plan_run.advance(execution, PlanGivenUp(reason=held))
        await self.leave_workspace(execution)
        await self._plan_run.give_back(execution)
        self._plan_run.settle(execution, TaskEnd.CANCELLED, f"not merged yet: {held}; --resume merges it")

    async def merge_late(self, execution: TaskExecution) -> tuple[bool, str]:
        """Merge the work of a task that was closed in an earlier run before its merge. Return whether the work was
        merged, and a sentence about the merge. The log of the task has ended, so the facts are recorded of the
        workstream."""
        workstream = self._plan_run.workstream
        execution.seq = workstream.born_seq
        merge = await self._merged(execution, execution.judged, on=workstream.id)
        text = merge.text
        if not merge.is_refused:
            authorization.count_success(self._plan_run, execution, on=workstream.id)
            await self._sup.verification.forget(workspace_of(self._sup, execution))
            text = await self._with_rest(execution, text)
        await self.leave_workspace(execution)
        fact = MERGE_REFUSED if merge.is_refused else MERGED
        metadata = {"task": execution.id, "session": execution.session_id}
        self._sup.registry.record_fact(workstream.id, fact, execution.cause, metadata, reason=text)
        return not merge.is_refused, text

    async def deny(self, execution: TaskExecution, by: str, reason: str) -> None:
        """Record that a person rejected the result of a task; then try the task again or settle it."""
        why = f"denied by {by}: {reason}" if reason else f"denied by {by}"
        denied = task.ApprovalDenied(by=by, reason=reason, findings=self._findings(why))
        await self._plan_run.advance(execution, denied)
        await self._fail_for_now(execution, why)

    async def _with_rest(self, execution: TaskExecution, merge: str) -> str:
        """Return the sentence *merge*, extended by a remark on changes that were written after the work was checked:
        they were not tested, and stay on their branch. The session has ended, so nobody writes there any more."""
        if not execution.holds_work or self._sup.verification.in_place:
            return merge
        left = await self._sup.cleanup.clean_up(execution.session_id, left_at(execution))
        if left.branch:
            execution.rest = left.branch
            rest = remark_of_rest(left.branch, left.directory)
        elif left.problem:
            rest = f"unknown whether something was written after it was judged: {left.problem}"
        else:
            return merge
        execution.remarks.append(rest)
        _log.warning("work is left that is not merged", task=execution.name, branch=left.branch, why=rest)
        return f"{merge}; {rest}"

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
            merge = await self._sup.verification.merge(execution.session_id, _message(execution), judged)
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

    # ------------------------------------------------------------------ failed
    async def fail(self, execution: TaskExecution, lead: Event, given: Circumstances = USUAL) -> None:
        """Record *lead*, with which the task has failed; then try the task again or settle it."""
        await self._plan_run.advance(execution, lead, given=given)
        await self.continue_failed(execution)

    async def continue_failed(self, execution: TaskExecution) -> None:
        """Continue a task that is recorded as failed: try it again, or settle it."""
        await self._fail_for_now(execution, execution.data.last_failure)

    async def _fail_for_now(self, execution: TaskExecution, error: str) -> None:
        """Clear the workspace of a failed task. Then let the task be claimed again if the next claim has something new
        (``_is_claim_due``) and retries are left; else settle the task as failed."""
        plan_run, left = self._plan_run, await self.leave_workspace(execution)
        if not plan_run.running:  # the plan was given up while a command was recorded: nobody tries again
            await plan_run.give_back(execution)
            return
        if retries_left(execution.data, task.Retried()):
            retries = execution.data.retries + 1
            agent = await plugin_policies.next_agent(plan_run, execution, plan_run.agent_of(execution, retries))
            is_due, why = self._is_claim_due(execution, agent)
            if is_due and not (why := plan_run.spend_retry()):
                await plan_run.give_back(execution)
                execution.agent = agent
                await plan_run.delay_claim(execution, f"try {retries + 1}")
                return
            error = with_end(error, why)
        await self._settle(execution, error, left)

    def _is_claim_due(self, execution: TaskExecution, agent: str) -> tuple[bool, str]:
        """Return whether a new claim by *agent* has something new, and if its findings are not, the reason."""
        data, profile = execution.data, self._sup.profile(agent, execution.id)
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

    async def settle_failed(self, execution: TaskExecution, error: str) -> None:
        """Settle a failed task that only a person can have tried again."""
        await self._settle(execution, error, await self.leave_workspace(execution))

    async def resettle_failed(self, execution: TaskExecution, error: str) -> None:
        """Settle a failed task whose failure, with the text *error*, was recorded and reported before a takeover."""
        await self.leave_workspace(execution)
        await self._end_failed(execution, error)

    async def _settle(self, execution: TaskExecution, error: str, branch: str = "") -> None:
        """Settle the task as failed. The slot is released just before, so that no other task that ends because of this
        failure is given the slot. *branch* is the branch with the task's work, if the work is left."""
        error = _with_branch(error, branch)
        attempts = execution.run_data.attempts if execution.has_run else 0  # the run may have ended before a takeover
        told = {"attempts": attempts, "claims": execution.data.claims, "error": error}
        execution.note(DEAD_LETTERED, told, error)
        _log.error("a task has failed", task=execution.name, reason=error)
        await self._end_failed(execution, error)

    async def _end_failed(self, execution: TaskExecution, error: str) -> None:
        if self._plan_run.is_critical(execution):
            await self._plan_run.workstream.record_failed(execution, error, self._plan_run.results)
        await self._plan_run.give_back(execution)
        self._plan_run.settle(execution, "failed", error)

    async def give_up(self, execution: TaskExecution, why: str) -> None:
        """End a task that waited for a probe which will not be made."""
        error = with_end(execution.run_data.last_error, why)
        if task.Failed not in TASK.allowed(execution.state):  # it was taken from its worker: nobody failed
            await self.cancel(execution, CancelReason(error, TaskEnd.CANCELLED))
            return
        await self._plan_run.advance(execution, RetriesEnded(reason=why))
        await self.leave_workspace(execution)
        await self._settle(execution, error)

    # ------------------------------------------------------------------ cancelled, skipped
    async def cancel(self, execution: TaskExecution, why: CancelReason, *first: task.TaskEvent) -> None:
        """Cancel the task, unless it is over or already being ended: the first end counts. The events *first* are
        recorded together with the cancellation, before it."""
        if execution.is_over:
            return
        execution.phase = Phase.ENDING
        reason = why.text
        if why.because is not None and not execution.session_lives:  # else its session's end is the nearer cause
            execution.seq = why.because
        await self._plan_run.advance(execution, *first, Ended(reason=reason, outcome=why.outcome))
        if execution.session_lives:  # the rest of its work is not waited for
            with suppress(NoSuchEntity, Refused, JournalError):
                await self._sup.aborts.abort(
                    execution.session_id, AbortScope.SESSION, reason=reason, actor=why.actor, because=why.because
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
        self._plan_run.settle(execution, end or why.outcome, _with_branch(reason, branch))

    async def record_given_up(self, execution: TaskExecution, reason: str) -> None:
        """Record that the task, its run and its job are cancelled, or that a task that is done is closed. Do not wait
        for the journal: the records are written when the disk allows."""
        lead = PlanGivenUp(reason=reason)
        events = step(execution.states, lead, answers={SAVE_CANCELLED: None}).events
        with anyio.CancelScope(shield=True):  # a checkpoint that was begun is made, or gives up by itself
            try:
                events = await self._plan_run.decide(execution, lead)
            finally:
                with suppress(NoSuchEntity, Refused):
                    execution.apply(events)

    async def skip(
        self, execution: TaskExecution, cause: SkipCause, reason: str, *, dependency: TaskExecution | None = None
    ) -> None:
        """Skip a task that was never begun: *cause* is the kind of the reason, *dependency* the task that did not
        complete."""
        if execution.is_over:
            return
        execution.phase = Phase.ENDING
        if dependency is not None:
            execution.seq = dependency.seq
        skipped = task_run.Skipped(cause=cause, dependency=dependency.name if dependency is not None else "")
        await self._plan_run.advance(execution, skipped, given=Circumstances(reason=reason))
        self._plan_run.settle(execution, outcome_of(skipped), reason)

    # ------------------------------------------------------------------ afterwards
    async def _end_completed(self, execution: TaskExecution) -> None:
        await self._sup.verification.forget(workspace_of(self._sup, execution))
        await self.leave_workspace(execution)
        await self._plan_run.give_back(execution)
        self._plan_run.settle(execution, "completed", "")

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
                await self._sup.close_session(execution.session_id, reason=reason, cause=execution.cause)


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
