"""What becomes of work that an agent calls done, or that came to nothing: judged, approved, merged, closed; or failed,
and tried again within its retries; or cancelled. Every way to the end of a task goes through here.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import anyio

from supervisor.lifecycles import job, task, task_run
from supervisor.lifecycles.job import JOB, Job
from supervisor.lifecycles.task import TASK, Task, retries_left
from supervisor.lifecycles.task_run import RUN, SkipCause, TaskRun
from supervisor.lifecycles.types import AbortScope
from supervisor.ports import JournalError
from supervisor.ports.logs import get_logger
from supervisor.recovery.restore import VERIFIED
from supervisor.runtime.entity import Refused
from supervisor.runtime.journal_writer import Cause
from supervisor.runtime.live_session import NoSuchEntity
from supervisor.work import authorization, plugin_policies
from supervisor.work.checkpoints import left_at, owned, take_back
from supervisor.work.plan_run import PlanRun
from supervisor.work.results import remark_of_rest
from supervisor.work.review import review_work
from supervisor.work.task_execution import ACTOR, TaskExecution

__all__ = ["CompletionPipeline"]

_log = get_logger()

MERGED: Final = "Merged"
MERGE_REFUSED: Final = "MergeRefused"
"""Facts of a workstream, of a task that was closed in an earlier one before its work was merged."""


class CompletionPipeline:
    """Brings tasks to their ends."""

    def __init__(self, plan_run: PlanRun) -> None:
        self._plan_run = plan_run
        self._sup = plan_run.sup

    # ------------------------------------------------------------------ judged
    async def completed(self, execution: TaskExecution) -> None:
        """The agent says that it is done."""
        await execution.post_run(task_run.ExecutionCompleted())
        await execution.post_job(job.ExecutionCompleted())
        if execution.state is Task.WAITING_FOR_SUBTASKS:
            await self._plan_run.give_back(execution)
            return
        await self.judge(execution)

    async def judge(self, execution: TaskExecution) -> None:
        """Have the work of its session checked; what follows."""
        tests = [
            test.value(self._plan_run.plan.task_lifecycle.validation_timeout) for test in execution.task.acceptance
        ]
        try:
            # First the commit: it is what is tested, reviewed and merged. Whatever is written from here on is not.
            problem = await self._commit(execution) or await self._sup.janitor.check(execution.session_id, tests)
            findings = await self._review(execution) if not problem else (f"not accepted: {problem}",)
        except (NoSuchEntity, Refused) as refusal:
            await self.cancelled(execution, str(refusal))
            return
        if findings:
            await self._reject(execution, *findings)
        elif execution.state in (Task.CLAIMED, Task.IN_PROGRESS) and not execution.is_over:
            await self._accept(execution)

    async def _commit(self, execution: TaskExecution) -> str:
        """Have the commit that the work is judged at; why there is none, in words."""
        try:
            execution.judged = await self._sup.janitor.commit(execution.session_id, _message(execution))
        except OSError as error:
            return str(error)
        return ""

    async def _review(self, execution: TaskExecution) -> tuple[str, ...]:
        """Why a second agent does not want it, in a line and in its findings; nothing where it does.

        Raises:
            NoSuchEntity, Refused: the session ended before that could be said.
        """
        review = self._plan_run.plan.review_of(execution.task)
        if review is None:
            return ()
        verdict = await review_work(
            self._sup, execution.session_id, review, execution.task, execution.cause, execution.judged
        )
        return () if verdict.approved else (verdict.words, *verdict.findings)

    async def _accept(self, execution: TaskExecution) -> None:
        await self.pass_tests(execution)
        await self.accept(execution)

    async def accept(self, execution: TaskExecution) -> None:
        """Its run is completed: so is the task."""
        if execution.state is Task.WAITING_FOR_SUBTASKS:
            await execution.post(task.SubtasksCompleted(reason="its subtasks are closed"))
        else:
            await execution.post(task.Completed(reason="the turn was verified", judged=execution.judged))
        await self.deliver(execution)

    async def pass_tests(self, execution: TaskExecution) -> None:
        """Nothing is wrong with it."""
        await self._plan_run.keep(execution, TaskRun.COMPLETED)
        await execution.post_run(task_run.TestsPassed(judged=execution.judged))
        await execution.post_job(job.ValidationPassed())

    async def _reject(self, execution: TaskExecution, error: str, *findings: str) -> None:
        await self._fail_tests(execution, error, *findings)
        await self.failed(execution, error)

    async def _fail_tests(self, execution: TaskExecution, error: str, *findings: str) -> None:
        """Something is wrong with it: its run and its job are over."""
        await execution.post_run(task_run.TestsFailed(error=error))
        await self._plan_run.decide(execution)
        await execution.post_job(job.ValidationFailed(failed_rules=findings or (error,)))

    # ------------------------------------------------------------------ split
    async def integrate(self, execution: TaskExecution) -> None:
        """Every subtask is closed: what they made together is looked at."""
        await self._end_own_part(execution)
        tests = [
            test.value(self._plan_run.plan.task_lifecycle.validation_timeout) for test in execution.task.acceptance
        ]
        problem = await self._sup.janitor.inspect(
            f"{execution.name}.whole", tests, self._plan_run.directory_of(execution), self._sup.stop_now
        )
        if not problem:
            await self._accept(execution)
            return
        await self._fail_tests(execution, problem)
        await self.reject_whole(execution, problem)

    async def reject_whole(self, execution: TaskExecution, error: str) -> None:
        """Its subtasks are closed, and what they made together did not pass."""
        await execution.post(task.SubtasksCompleted(reason="its subtasks are closed"))
        await self.turn_down(execution, error)

    async def turn_down(self, execution: TaskExecution, error: str) -> None:
        """It was counted as done, and is not accepted."""
        await self._not_merged(execution, f"not accepted: {error}")

    async def leave_to_parts(self, execution: TaskExecution) -> None:
        """What was to be done of it is its subtasks': whoever worked on it is free, and it waits for them."""
        with anyio.CancelScope(shield=True):
            await self._end_own_part(execution)
            await self._plan_run.give_back(execution)

    async def _end_own_part(self, execution: TaskExecution) -> None:
        """Nobody works on it itself any more: what was to be done of it is theirs."""
        await execution.begin_run()
        if execution.run is TaskRun.IN_PROGRESS:
            await execution.post_run(task_run.ExecutionCompleted())
        if execution.job is Job.RUNNING:
            await execution.post_job(job.ExecutionCompleted())

    # ------------------------------------------------------------------ approved, merged, closed
    async def deliver(self, execution: TaskExecution) -> None:
        """It is done: a person looks at it, if the plan says so; then it is merged."""
        if execution.data.needs_approval:
            await execution.post(task.ApprovalRequested(reason="the plan wants it approved"))
            await self._end_session(execution)
            await self._sup.janitor.accept(owned(self._sup, execution))
            await self._plan_run.give_back(execution)
            if self._sup.stopping.is_set():
                await self.cancelled(execution, "the supervisor is ending")
                return
            _log.warning("a task waits for approval", task=execution.name)
            return
        await self.merge(execution)

    async def merge(self, execution: TaskExecution) -> None:
        """Bring the work to where it is for. Closed the task is when it is there, and nobody works on it any more."""
        merge = await self._merged(execution, execution.data.judged)
        if merge.startswith("not merged"):
            await self._not_merged(execution, merge)
            return
        authorization.count_success(self._plan_run, execution)
        await self._end_session(execution)  # else a late message might open another turn of it
        reason = await self._with_rest(execution, merge)
        await execution.post(task.Closed(reason=reason, unmerged=bool(execution.rest), rest=execution.rest))
        await self._end(execution, "completed", "")

    async def merge_late(self, execution: TaskExecution) -> tuple[bool, str]:
        """It was closed with its work on its branch: bring that to where it is for. Whether it is there, and in
        words what became of it. Its own log has ended: what is to be said is the workstream's."""
        workstream = self._plan_run.workstream
        execution.seq = workstream.born_seq
        unseen = execution.task.approval == "after"  # it had not come to that
        merge = (
            "not merged: nobody has approved it"
            if unseen
            else await self._merged(execution, execution.judged, on=workstream.id)
        )
        is_merged = not merge.startswith("not merged")
        if is_merged:
            authorization.count_success(self._plan_run, execution, on=workstream.id)
            await self._sup.janitor.forget(owned(self._sup, execution))
        merge = await self._with_rest(execution, merge) if is_merged else merge
        await self.leave(execution)
        told = {"task": execution.id, "session": execution.session_id}
        self._sup.registry.record_fact(
            workstream.id, MERGED if is_merged else MERGE_REFUSED, execution.cause, told, reason=merge
        )
        return is_merged, merge

    async def approve(self, execution: TaskExecution, by: str) -> None:
        """A person wants the result: it is merged, and closed; both or neither, whoever has stopped to wait for it."""
        with anyio.CancelScope(shield=True):
            await self._approve(execution, by)

    async def _approve(self, execution: TaskExecution, by: str) -> None:
        merge = await self._merged(execution, execution.data.judged)
        if merge.startswith("not merged"):
            await execution.post(task.ApprovalDenied(by=by, reason=f"approved, but {merge}"))
            await self._failed_for_now(execution, merge)
            return
        authorization.count_success(self._plan_run, execution)
        await self._end_session(execution)  # it goes on where its supervisor did not live to end it
        reason = await self._with_rest(execution, merge)
        await execution.post(
            task.ApprovalGranted(by=by, reason=reason, unmerged=bool(execution.rest), rest=execution.rest)
        )
        await self._end(execution, "completed", "")

    async def deny(self, execution: TaskExecution, by: str, reason: str) -> None:
        """A person does not want the result."""
        await execution.post(task.ApprovalDenied(by=by, reason=reason))
        await self._failed_for_now(execution, f"denied by {by}: {reason}")

    async def _with_rest(self, execution: TaskExecution, merge: str) -> str:
        """*merge*, and what was written where it was worked after that had been judged: nobody has tested it, so it
        stays on its branch. Its session has ended, so that nobody writes there any more."""
        if not execution.session_id or self._sup.janitor.in_place:
            return merge
        left = await self._sup.janitor.put_away(execution.session_id, left_at(execution))
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

    async def _merged(self, execution: TaskExecution, judged: str, *, on: str = "") -> str:
        """What became of the merge of the commit *judged*, in words. *on*: whose facts are made of it, where the task
        was closed before."""
        if not execution.session_id:
            return "nothing to merge: its subtasks did the work"
        if why := await authorization.refused_changes(self._plan_run, execution, judged, on=on):
            return f"not merged: {why}"
        merge = await self._sup.janitor.merge(execution.session_id, _message(execution), judged)
        match merge.outcome:
            case "refused":
                return f"not merged: {merge.why}"
            case "merged":
                return f"merged into {merge.target} as {merge.commit[:12]}"
            case _:
                return f"nothing to merge: {merge.why}"

    async def _not_merged(self, execution: TaskExecution, why: str) -> None:
        await execution.post(task.VerificationRejected(reason=why))
        await self._failed_for_now(execution, why)

    # ------------------------------------------------------------------ failed
    async def failed(self, execution: TaskExecution, error: str) -> None:
        """It did not work out, and its run is over."""
        await execution.post(task.Failed(reason=error))
        await self._failed_for_now(execution, error)

    async def failed_before(self, execution: TaskExecution) -> None:
        """It had failed already when its supervisor ended; perhaps its run and its job had not heard of that."""
        why = execution.data.last_failure
        await self.end_records(execution, why)
        await self._failed_for_now(execution, why)

    async def _failed_for_now(self, execution: TaskExecution, error: str) -> None:
        left = await self.leave(execution)
        if (
            not self._plan_run.running
        ):  # the plan was given up while an operator's word was recorded: nobody tries again
            await self._plan_run.give_back(execution)
            return
        if retries_left(execution.data, task.Retried()):
            if not (why := self._plan_run.spend_retry()):
                await self._plan_run.give_back(execution)
                await self._retry(execution)
                return
            error = f"{error} (no further try: {why})"
        await self._exhausted(execution, f"{error}; its work is on the branch {left}" if left else error)

    async def _retry(self, execution: TaskExecution) -> None:
        await execution.post(task.Retried(reason=f"try {execution.data.retries + 2}"))
        execution.bury_run()
        execution.agent = await plugin_policies.next_agent(
            self._plan_run, execution, self._plan_run.agent_of(execution)
        )
        await self._plan_run.open_again(execution)

    async def rest(self, execution: TaskExecution, error: str) -> None:
        """It has failed, and nobody tries it again by himself."""
        left = await self.leave(execution)
        await self._exhausted(execution, f"{error}; its work is on the branch {left}" if left else error)

    async def _exhausted(self, execution: TaskExecution, error: str) -> None:
        """No retry is left: a person may look at it. Its slot is free in the moment that it is settled: nobody has it
        whom its failure ends."""
        attempts = (
            execution.run_data.attempts if execution.has_run else 0
        )  # its run had ended under an earlier supervisor
        told = {"attempts": attempts, "claims": execution.data.claims, "error": error}
        execution.note("DeadLettered", told, error)
        await self._plan_run.workstream.failed(execution, error, self._plan_run.results)
        await self._plan_run.give_back(execution)
        self._plan_run.settle(execution, "failed", error)

    async def given_up(self, execution: TaskExecution, why: str) -> None:
        """It waited for another attempt that will not be made."""
        if execution.run is TaskRun.PENDING:  # it was left, or reset, before its first one: nobody failed
            await self.cancelled(execution, why)
            return
        error = f"{execution.run_data.last_error} (no further try: {why})"
        if task.Failed not in TASK.allowed(execution.state):  # it was taken from whoever had it: nobody failed
            await self.cancelled(execution, error)
            return
        await self.open_circuit(execution, why)
        if execution.run is not TaskRun.CIRCUIT_OPEN:  # it was to be a probe, which another supervisor had let through
            await self._cancel_run(execution, why)
        await execution.post_job(job.UserCancelled(reason=why))
        await execution.post(task.Failed(reason=error))
        await self.leave(execution)
        await self._exhausted(execution, error)

    async def open_circuit(self, execution: TaskExecution, why: str) -> None:
        """Its run, if it waits for another attempt, waits no longer: it rests."""
        if execution.run is TaskRun.RETRYING:
            await execution.post_run(task_run.CircuitOpened(reason=why))
            await self._plan_run.keep(execution, TaskRun.CIRCUIT_OPEN)

    # ------------------------------------------------------------------ cancelled, skipped
    async def cancelled(self, execution: TaskExecution, reason: str) -> None:
        """It was ended on purpose; whoever ends it first has ended it."""
        if execution.result is not None or execution.ending:
            return
        execution.ending = True
        await self.cancel_records(execution, reason)
        if execution.session_lives:  # nobody wants the rest of its work: it is not waited for
            with suppress(NoSuchEntity, Refused, JournalError):
                await self._sup.abort(execution.session_id, AbortScope.SESSION, reason=reason)
        await self._leave_cancelled(execution)
        await self._plan_run.give_back(execution)
        self._plan_run.settle(execution, "failed" if execution.state is Task.FAILED else "aborted", reason)

    async def _leave_cancelled(self, execution: TaskExecution) -> None:
        """Where it worked is cleared away, or left as it is if the plan says so."""
        if self._plan_run.plan.task_lifecycle.cleanup_on_cancel or not execution.session_id:
            await self.leave(execution)
            return
        await self._end_session(execution)
        await take_back(self._sup, execution)
        execution.note("PlaceKept", {"session": execution.session_id}, "cleanup_on_cancel is false")

    async def cancel_records(self, execution: TaskExecution, reason: str) -> None:
        """Say of the task, and of what it has of a run and a job, that nobody wants it any more."""
        if (last := _last_word(execution, reason)) is not None:
            await execution.post(last)
        await self._cancel_run(execution, reason)
        await self._cancel_job(execution, reason)

    async def end_records(self, execution: TaskExecution, reason: str) -> None:
        """It has failed: what it has of a run and a job is over; a run whose circuit is open rests."""
        if execution.has_run and execution.run is not TaskRun.CIRCUIT_OPEN:
            await self._cancel_run(execution, reason)
        await self._cancel_job(execution, reason)

    async def _cancel_run(self, execution: TaskExecution, reason: str) -> None:
        if execution.has_run and task_run.Cancelled in RUN.allowed(execution.run):
            await self._plan_run.keep(execution, TaskRun.CANCELLED)
            await execution.post_run(task_run.Cancelled(reason=reason))

    @staticmethod
    async def _cancel_job(execution: TaskExecution, reason: str) -> None:
        if execution.job is not None and job.UserCancelled in JOB.allowed(execution.job):
            await execution.post_job(job.UserCancelled(reason=reason))

    def tell_cancelled(self, execution: TaskExecution, reason: str) -> None:
        """The same of the task and its job without waiting: what is said once is recorded when it can be."""
        tell = self._sup.registry.send
        if execution.state is Task.DONE:
            tell(
                execution.id,
                VERIFIED if execution.is_done else task.VerificationRejected(reason=reason),
                cause=execution.cause,
            )
        elif (last := _last_word(execution, reason)) is not None:
            tell(execution.id, last, cause=execution.cause)
        if execution.job is not None and job.UserCancelled in JOB.allowed(execution.job):
            tell(execution.job_id, job.UserCancelled(reason=reason), cause=execution.cause)

    async def tell_run_cancelled(self, execution: TaskExecution, reason: str) -> None:
        """The same of its run: only a checkpoint is waited for, and no disk of records."""
        if not execution.has_run or task_run.Cancelled not in RUN.allowed(execution.run):
            return
        try:
            if (checkpoint := await self._plan_run.kept(execution, TaskRun.CANCELLED)) is not None:
                self._sup.registry.send(execution.run_id, checkpoint, cause=execution.cause)
        finally:
            self._sup.registry.send(execution.run_id, task_run.Cancelled(reason=reason), cause=execution.cause)

    async def skip(
        self, execution: TaskExecution, cause: SkipCause, reason: str, *, dependency: TaskExecution | None = None
    ) -> None:
        """It is never begun."""
        if execution.result is not None or execution.ending:
            return
        execution.ending = True
        if dependency is not None:
            execution.seq = dependency.seq
        if execution.has_run:  # else it was said under an earlier supervisor
            await execution.post_run(
                task_run.Skipped(cause=cause, dependency=dependency.name if dependency is not None else "")
            )
        await self._cancel_job(execution, reason)
        if (last := _last_word(execution, reason)) is not None:
            await execution.post(last)
        blocked = cause is SkipCause.DEPENDENCY_FAILED
        self._plan_run.settle(execution, "blocked" if blocked else "skipped", reason)

    # ------------------------------------------------------------------ afterwards
    async def _end(self, execution: TaskExecution, outcome: str, error: str) -> None:
        await self._sup.janitor.forget(owned(self._sup, execution))
        await self.leave(execution)
        await self._plan_run.give_back(execution)
        self._plan_run.settle(execution, outcome, error)

    async def leave(self, execution: TaskExecution) -> str:
        """Its session ends, and where it worked is cleared away; the branch that its work is left on, if it is."""
        if not execution.session_id:
            return ""
        await self._end_session(execution)
        await take_back(self._sup, execution)
        left = await self._sup.janitor.put_away(execution.session_id, left_at(execution))
        return left.branch or ""

    async def _end_session(self, execution: TaskExecution) -> None:
        if execution.session_id:
            cause = Cause(execution.seq, None, ACTOR)
            with suppress(NoSuchEntity, Refused, JournalError):
                await self._sup.close_session(execution.session_id, reason="its task is settled", cause=cause)


def _message(execution: TaskExecution) -> str:
    """The message of the commits that hold the work."""
    return f"{execution.name}: the work of session {execution.session_id}"


def _last_word(execution: TaskExecution, reason: str) -> task.TaskEvent | None:
    """What was never approved is rejected, the rest is cancelled; what has failed has failed."""
    allowed = TASK.allowed(execution.state)
    if task.Cancelled in allowed:
        return task.Cancelled(reason=reason)
    return task.Rejected(reason=reason) if task.Rejected in allowed else None
