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
from supervisor.work.review import reviewed
from supervisor.work.task_execution import ACTOR, TaskExecution

__all__ = ["CompletionPipeline"]

_log = get_logger()

MERGED: Final = "Merged"
MERGE_REFUSED: Final = "MergeRefused"
"""Facts of a workstream, of a task that was closed in an earlier one before its work was merged."""


class CompletionPipeline:
    """Brings tasks to their ends."""

    def __init__(self, load: PlanRun) -> None:
        self._load = load
        self._sup = load.sup

    # ------------------------------------------------------------------ judged
    async def completed(self, case: TaskExecution) -> None:
        """The agent says that it is done."""
        await case.post_run(task_run.ExecutionCompleted())
        await case.post_job(job.ExecutionCompleted())
        if case.state is Task.WAITING_FOR_SUBTASKS:
            await self._load.give_back(case)
            return
        await self.judge(case)

    async def judge(self, case: TaskExecution) -> None:
        """Have the work of its session checked; what follows."""
        tests = [test.value(self._load.plan.task_lifecycle.validation_timeout) for test in case.task.acceptance]
        try:
            # First the commit: it is what is tested, reviewed and merged. Whatever is written from here on is not.
            problem = await self._commit(case) or await self._sup.janitor.check(case.session_id, tests)
            findings = await self._review(case) if not problem else (f"not accepted: {problem}",)
        except (NoSuchEntity, Refused) as refusal:
            await self.cancelled(case, str(refusal))
            return
        if findings:
            await self._reject(case, *findings)
        elif case.state in (Task.CLAIMED, Task.IN_PROGRESS) and not case.is_over:
            await self._accept(case)

    async def _commit(self, case: TaskExecution) -> str:
        """Have the commit that the work is judged at; why there is none, in words."""
        try:
            case.judged = await self._sup.janitor.commit(case.session_id, _message(case))
        except OSError as error:
            return str(error)
        return ""

    async def _review(self, case: TaskExecution) -> tuple[str, ...]:
        """Why a second agent does not want it, in a line and in its findings; nothing where it does.

        Raises:
            NoSuchEntity, Refused: the session ended before that could be said.
        """
        review = self._load.plan.review_of(case.task)
        if review is None:
            return ()
        verdict = await reviewed(self._sup, case.session_id, review, case.task, case.cause, case.judged)
        return () if verdict.approved else (verdict.words, *verdict.findings)

    async def _accept(self, case: TaskExecution) -> None:
        await self.pass_tests(case)
        await self.accept(case)

    async def accept(self, case: TaskExecution) -> None:
        """Its run is completed: so is the task."""
        if case.state is Task.WAITING_FOR_SUBTASKS:
            await case.post(task.SubtasksCompleted(reason="its subtasks are closed"))
        else:
            await case.post(task.Completed(reason="the turn was verified", judged=case.judged))
        await self.deliver(case)

    async def pass_tests(self, case: TaskExecution) -> None:
        """Nothing is wrong with it."""
        await self._load.keep(case, TaskRun.COMPLETED)
        await case.post_run(task_run.TestsPassed(judged=case.judged))
        await case.post_job(job.ValidationPassed())

    async def _reject(self, case: TaskExecution, error: str, *findings: str) -> None:
        await self._fail_tests(case, error, *findings)
        await self.failed(case, error)

    async def _fail_tests(self, case: TaskExecution, error: str, *findings: str) -> None:
        """Something is wrong with it: its run and its job are over."""
        await case.post_run(task_run.TestsFailed(error=error))
        await self._load.decide(case)
        await case.post_job(job.ValidationFailed(failed_rules=findings or (error,)))

    # ------------------------------------------------------------------ split
    async def integrate(self, case: TaskExecution) -> None:
        """Every subtask is closed: what they made together is looked at."""
        await self._end_own_part(case)
        tests = [test.value(self._load.plan.task_lifecycle.validation_timeout) for test in case.task.acceptance]
        problem = await self._sup.janitor.inspect(
            f"{case.name}.whole", tests, self._load.directory_of(case), self._sup.stop_now
        )
        if not problem:
            await self._accept(case)
            return
        await self._fail_tests(case, problem)
        await self.reject_whole(case, problem)

    async def reject_whole(self, case: TaskExecution, error: str) -> None:
        """Its subtasks are closed, and what they made together did not pass."""
        await case.post(task.SubtasksCompleted(reason="its subtasks are closed"))
        await self.turn_down(case, error)

    async def turn_down(self, case: TaskExecution, error: str) -> None:
        """It was counted as done, and is not accepted."""
        await self._not_merged(case, f"not accepted: {error}")

    async def leave_to_parts(self, case: TaskExecution) -> None:
        """What was to be done of it is its subtasks': whoever worked on it is free, and it waits for them."""
        with anyio.CancelScope(shield=True):
            await self._end_own_part(case)
            await self._load.give_back(case)

    async def _end_own_part(self, case: TaskExecution) -> None:
        """Nobody works on it itself any more: what was to be done of it is theirs."""
        await case.begin_run()
        if case.run is TaskRun.IN_PROGRESS:
            await case.post_run(task_run.ExecutionCompleted())
        if case.job is Job.RUNNING:
            await case.post_job(job.ExecutionCompleted())

    # ------------------------------------------------------------------ approved, merged, closed
    async def deliver(self, case: TaskExecution) -> None:
        """It is done: a person looks at it, if the plan says so; then it is merged."""
        if case.data.needs_approval:
            await case.post(task.ApprovalRequested(reason="the plan wants it approved"))
            await self._end_session(case)
            await self._sup.janitor.accept(owned(self._sup, case))
            await self._load.give_back(case)
            if self._sup.stopping.is_set():
                await self.cancelled(case, "the supervisor is ending")
                return
            _log.warning("a task waits for approval", task=case.name)
            return
        await self.merge(case)

    async def merge(self, case: TaskExecution) -> None:
        """Bring the work to where it is for. Closed the task is when it is there, and nobody works on it any more."""
        merge = await self._merged(case, case.data.judged)
        if merge.startswith("not merged"):
            await self._not_merged(case, merge)
            return
        authorization.count_success(self._load, case)
        await self._end_session(case)  # else a late message might open another turn of it
        reason = await self._with_rest(case, merge)
        await case.post(task.Closed(reason=reason, unmerged=bool(case.rest), rest=case.rest))
        await self._end(case, "completed", "")

    async def merge_late(self, case: TaskExecution) -> tuple[bool, str]:
        """It was closed with its work on its branch: bring that to where it is for. Whether it is there, and in
        words what became of it. Its own log has ended: what is to be said is the workstream's."""
        stream = self._load.stream
        case.seq = stream.born_seq
        unseen = case.task.approval == "after"  # it had not come to that
        merge = "not merged: nobody has approved it" if unseen else await self._merged(case, case.judged, on=stream.id)
        is_merged = not merge.startswith("not merged")
        if is_merged:
            authorization.count_success(self._load, case, on=stream.id)
            await self._sup.janitor.forget(owned(self._sup, case))
        merge = await self._with_rest(case, merge) if is_merged else merge
        await self.leave(case)
        told = {"task": case.id, "session": case.session_id}
        self._sup.registry.note(stream.id, MERGED if is_merged else MERGE_REFUSED, case.cause, told, reason=merge)
        return is_merged, merge

    async def approve(self, case: TaskExecution, by: str) -> None:
        """A person wants the result: it is merged, and closed; both or neither, whoever has stopped to wait for it."""
        with anyio.CancelScope(shield=True):
            await self._approve(case, by)

    async def _approve(self, case: TaskExecution, by: str) -> None:
        merge = await self._merged(case, case.data.judged)
        if merge.startswith("not merged"):
            await case.post(task.ApprovalDenied(by=by, reason=f"approved, but {merge}"))
            await self._failed_for_now(case, merge)
            return
        authorization.count_success(self._load, case)
        await self._end_session(case)  # it goes on where its supervisor did not live to end it
        reason = await self._with_rest(case, merge)
        await case.post(task.ApprovalGranted(by=by, reason=reason, unmerged=bool(case.rest), rest=case.rest))
        await self._end(case, "completed", "")

    async def deny(self, case: TaskExecution, by: str, reason: str) -> None:
        """A person does not want the result."""
        await case.post(task.ApprovalDenied(by=by, reason=reason))
        await self._failed_for_now(case, f"denied by {by}: {reason}")

    async def _with_rest(self, case: TaskExecution, merge: str) -> str:
        """*merge*, and what was written where it was worked after that had been judged: nobody has tested it, so it
        stays on its branch. Its session has ended, so that nobody writes there any more."""
        if not case.session_id or self._sup.janitor.in_place:
            return merge
        left = await self._sup.janitor.clean_up(case.session_id, left_at(case))
        if left.branch:
            case.rest = left.branch
            rest = remark_of_rest(left.branch, left.directory)
        elif left.problem:
            rest = f"unknown whether something was written after it was judged: {left.problem}"
        else:
            return merge
        case.remarks.append(rest)
        _log.warning("work is left that is not merged", task=case.name, branch=left.branch, why=rest)
        return f"{merge}; {rest}"

    async def _merged(self, case: TaskExecution, judged: str, *, on: str = "") -> str:
        """What became of the merge of the commit *judged*, in words. *on*: whose facts are made of it, where the task
        was closed before."""
        if not case.session_id:
            return "nothing to merge: its subtasks did the work"
        if why := await authorization.refused_changes(self._load, case, judged, on=on):
            return f"not merged: {why}"
        merge = await self._sup.janitor.merge(case.session_id, _message(case), judged)
        match merge.outcome:
            case "refused":
                return f"not merged: {merge.why}"
            case "merged":
                return f"merged into {merge.target} as {merge.commit[:12]}"
            case _:
                return f"nothing to merge: {merge.why}"

    async def _not_merged(self, case: TaskExecution, why: str) -> None:
        await case.post(task.VerificationRejected(reason=why))
        await self._failed_for_now(case, why)

    # ------------------------------------------------------------------ failed
    async def failed(self, case: TaskExecution, error: str) -> None:
        """It did not work out, and its run is over."""
        await case.post(task.Failed(reason=error))
        await self._failed_for_now(case, error)

    async def failed_before(self, case: TaskExecution) -> None:
        """It had failed already when its supervisor ended; perhaps its run and its job had not heard of that."""
        why = case.data.last_failure
        await self.end_records(case, why)
        await self._failed_for_now(case, why)

    async def _failed_for_now(self, case: TaskExecution, error: str) -> None:
        left = await self.leave(case)
        if not self._load.running:  # the plan was given up while an operator's word was recorded: nobody tries again
            await self._load.give_back(case)
            return
        if retries_left(case.data, task.Retried()):
            if not (why := self._load.spend_retry()):
                await self._load.give_back(case)
                await self._retry(case)
                return
            error = f"{error} (no further try: {why})"
        await self._exhausted(case, f"{error}; its work is on the branch {left}" if left else error)

    async def _retry(self, case: TaskExecution) -> None:
        await case.post(task.Retried(reason=f"try {case.data.retries + 2}"))
        case.bury_run()
        case.agent = await plugin_policies.next_agent(self._load, case, self._load.agent_of(case))
        await self._load.open_again(case)

    async def rest(self, case: TaskExecution, error: str) -> None:
        """It has failed, and nobody tries it again by himself."""
        left = await self.leave(case)
        await self._exhausted(case, f"{error}; its work is on the branch {left}" if left else error)

    async def _exhausted(self, case: TaskExecution, error: str) -> None:
        """No retry is left: a person may look at it. Its slot is free in the moment that it is settled: nobody has it
        whom its failure ends."""
        attempts = case.run_data.attempts if case.has_run else 0  # its run had ended under an earlier supervisor
        told = {"attempts": attempts, "claims": case.data.claims, "error": error}
        case.note("DeadLettered", told, error)
        await self._load.stream.failed(case, error, self._load.results)
        await self._load.give_back(case)
        self._load.settle(case, "failed", error)

    async def given_up(self, case: TaskExecution, why: str) -> None:
        """It waited for another attempt that will not be made."""
        if case.run is TaskRun.PENDING:  # it was left, or reset, before its first one: nobody failed
            await self.cancelled(case, why)
            return
        error = f"{case.run_data.last_error} (no further try: {why})"
        if task.Failed not in TASK.allowed(case.state):  # it was taken from whoever had it: nobody failed
            await self.cancelled(case, error)
            return
        await self.open_circuit(case, why)
        if case.run is not TaskRun.CIRCUIT_OPEN:  # it was to be a probe, which another supervisor had let through
            await self._cancel_run(case, why)
        await case.post_job(job.UserCancelled(reason=why))
        await case.post(task.Failed(reason=error))
        await self.leave(case)
        await self._exhausted(case, error)

    async def open_circuit(self, case: TaskExecution, why: str) -> None:
        """Its run, if it waits for another attempt, waits no longer: it rests."""
        if case.run is TaskRun.RETRYING:
            await case.post_run(task_run.CircuitOpened(reason=why))
            await self._load.keep(case, TaskRun.CIRCUIT_OPEN)

    # ------------------------------------------------------------------ cancelled, skipped
    async def cancelled(self, case: TaskExecution, reason: str) -> None:
        """It was ended on purpose; whoever ends it first has ended it."""
        if case.result is not None or case.ending:
            return
        case.ending = True
        await self.cancel_records(case, reason)
        if case.session_lives:  # nobody wants the rest of its work: it is not waited for
            with suppress(NoSuchEntity, Refused, JournalError):
                await self._sup.abort(case.session_id, AbortScope.SESSION, reason=reason)
        await self._leave_cancelled(case)
        await self._load.give_back(case)
        self._load.settle(case, "failed" if case.state is Task.FAILED else "aborted", reason)

    async def _leave_cancelled(self, case: TaskExecution) -> None:
        """Where it worked is cleared away, or left as it is if the plan says so."""
        if self._load.plan.task_lifecycle.cleanup_on_cancel or not case.session_id:
            await self.leave(case)
            return
        await self._end_session(case)
        await take_back(self._sup, case)
        case.note("PlaceKept", {"session": case.session_id}, "cleanup_on_cancel is false")

    async def cancel_records(self, case: TaskExecution, reason: str) -> None:
        """Say of the task, and of what it has of a run and a job, that nobody wants it any more."""
        if (last := _last_word(case, reason)) is not None:
            await case.post(last)
        await self._cancel_run(case, reason)
        await self._cancel_job(case, reason)

    async def end_records(self, case: TaskExecution, reason: str) -> None:
        """It has failed: what it has of a run and a job is over; a run whose circuit is open rests."""
        if case.has_run and case.run is not TaskRun.CIRCUIT_OPEN:
            await self._cancel_run(case, reason)
        await self._cancel_job(case, reason)

    async def _cancel_run(self, case: TaskExecution, reason: str) -> None:
        if case.has_run and task_run.Cancelled in RUN.allowed(case.run):
            await self._load.keep(case, TaskRun.CANCELLED)
            await case.post_run(task_run.Cancelled(reason=reason))

    @staticmethod
    async def _cancel_job(case: TaskExecution, reason: str) -> None:
        if case.job is not None and job.UserCancelled in JOB.allowed(case.job):
            await case.post_job(job.UserCancelled(reason=reason))

    def tell_cancelled(self, case: TaskExecution, reason: str) -> None:
        """The same of the task and its job without waiting: what is said once is recorded when it can be."""
        tell = self._sup.registry.tell
        if case.state is Task.DONE:
            tell(case.id, VERIFIED if case.is_done else task.VerificationRejected(reason=reason), cause=case.cause)
        elif (last := _last_word(case, reason)) is not None:
            tell(case.id, last, cause=case.cause)
        if case.job is not None and job.UserCancelled in JOB.allowed(case.job):
            tell(case.job_id, job.UserCancelled(reason=reason), cause=case.cause)

    async def tell_run_cancelled(self, case: TaskExecution, reason: str) -> None:
        """The same of its run: only a checkpoint is waited for, and no disk of records."""
        if not case.has_run or task_run.Cancelled not in RUN.allowed(case.run):
            return
        try:
            if (checkpoint := await self._load.kept(case, TaskRun.CANCELLED)) is not None:
                self._sup.registry.tell(case.run_id, checkpoint, cause=case.cause)
        finally:
            self._sup.registry.tell(case.run_id, task_run.Cancelled(reason=reason), cause=case.cause)

    async def skip(
        self, case: TaskExecution, cause: SkipCause, reason: str, *, dependency: TaskExecution | None = None
    ) -> None:
        """It is never begun."""
        if case.result is not None or case.ending:
            return
        case.ending = True
        if dependency is not None:
            case.seq = dependency.seq
        if case.has_run:  # else it was said under an earlier supervisor
            await case.post_run(
                task_run.Skipped(cause=cause, dependency=dependency.name if dependency is not None else "")
            )
        await self._cancel_job(case, reason)
        if (last := _last_word(case, reason)) is not None:
            await case.post(last)
        blocked = cause is SkipCause.DEPENDENCY_FAILED
        self._load.settle(case, "blocked" if blocked else "skipped", reason)

    # ------------------------------------------------------------------ afterwards
    async def _end(self, case: TaskExecution, outcome: str, error: str) -> None:
        await self._sup.janitor.forget(owned(self._sup, case))
        await self.leave(case)
        await self._load.give_back(case)
        self._load.settle(case, outcome, error)

    async def leave(self, case: TaskExecution) -> str:
        """Its session ends, and where it worked is cleared away; the branch that its work is left on, if it is."""
        if not case.session_id:
            return ""
        await self._end_session(case)
        await take_back(self._sup, case)
        left = await self._sup.janitor.clean_up(case.session_id, left_at(case))
        return left.branch or ""

    async def _end_session(self, case: TaskExecution) -> None:
        if case.session_id:
            cause = Cause(case.seq, None, ACTOR)
            with suppress(NoSuchEntity, Refused, JournalError):
                await self._sup.close_session(case.session_id, reason="its task is settled", cause=cause)


def _message(case: TaskExecution) -> str:
    """The message of the commits that hold the work."""
    return f"{case.name}: the work of session {case.session_id}"


def _last_word(case: TaskExecution, reason: str) -> task.TaskEvent | None:
    """What was never approved is rejected, the rest is cancelled; what has failed has failed."""
    allowed = TASK.allowed(case.state)
    if task.Cancelled in allowed:
        return task.Cancelled(reason=reason)
    return task.Rejected(reason=reason) if task.Rejected in allowed else None
