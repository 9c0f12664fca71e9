"""A supervisor that is killed while its tasks are in every state: what the next one makes of each, by its policy."""

from __future__ import annotations

from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.work.stage import (
    KINDS,
    RACED,
    inherited,
)

__all__ = ["KILLED"]


async def taken_over(desk: Desk) -> None:
    """The supervisor is killed: what is settled stays so, and everything else goes on with the next one."""
    heir = await inherited(desk)
    heir.tells(
        """
        task:gate 0: orphaned > requeued > claimed by=gate-2 > started / 40: completed > closed
        task:working 0: orphaned > requeued > claimed by=working-2 > started / 30: completed > closed
        run:gate 0: execution_failed error=the supervisor of its session ended category=unknown > retry_decided >
            backoff_completed / 40: execution_completed > tests_passed
        run:working 0: execution_failed error=the supervisor of its session ended category=unknown > retry_decided >
            backoff_completed / 30: execution_completed > tests_passed
        job:gate 0: worker_lost > retry_delay_elapsed > worker_started worker_id=worker:v-2 / 40: execution_completed
            > validation_passed
        job:working 0: worker_lost > retry_delay_elapsed > worker_started worker_id=worker:w-2 / 30:
            execution_completed > validation_passed
        task:dead 0: DeadLettered attempts=1 claims=1
        task:part 0: orphaned > recovery_failed > DeadLettered attempts=0 claims=1
        run:part 0: cancelled
        job:part 0: user_cancelled
        task:parent 0: subtask_failed subtask=task:part > cancelled
        run:parent 0: cancelled
        job:parent 0: user_cancelled
        run:checked 10: tests_passed
        job:checked 10: validation_passed
        task:checked 10: completed > closed
        job:delayed 20: retry_delay_elapsed > worker_started worker_id=worker:w-2 / 25: execution_completed >
            validation_passed
        run:delayed 20: backoff_completed / 25: execution_completed > tests_passed
        task:delayed 25: completed > closed
        task:behind 30: unblocked > claimed by=behind-2 > started / 35: completed > closed
        job:behind 30: retry_delay_elapsed > worker_started worker_id=worker:w-2 / 35: execution_completed >
            validation_passed
        run:behind 30: backoff_completed / 35: execution_completed > tests_passed
        job:waiting 30: scheduler_assigned depends_on=job:working > worker_started worker_id=worker:w-2 / 35:
            execution_completed > validation_passed
        task:waiting 30: claimed by=waiting > started / 35: completed > closed
        run:waiting 30: executor_started / 35: execution_completed > tests_passed
        job:queued 40: worker_started worker_id=worker:v-2 / 45: execution_completed > validation_passed
        task:queued 40: claimed by=queued > started / 45: completed > closed
        run:queued 40: executor_started / 45: execution_completed > tests_passed
        task:planned 60: approved > claimed by=planned > started / 65: completed > closed
        job:planned 60: scheduler_assigned > worker_started worker_id=worker:w-2 / 65: execution_completed >
            validation_passed
        run:planned 60: executor_started / 65: execution_completed > tests_passed
        task:pending 61: approval_granted by=me
        task:blocked 62: unblocked > claimed by=blocked-2 > started / 67: completed > closed
        job:blocked 62: retry_delay_elapsed > worker_started worker_id=worker:w-2 / 67: execution_completed >
            validation_passed
        run:blocked 62: backoff_completed / 67: execution_completed > tests_passed
        workstream:plan 67: settled_with_failures completed=12 failed=2 cancelled=3
        """,
        after=heir.last_seq,
        whose=KINDS,
        facts=False,
        without=RACED,
    )


async def orphans_fail(desk: Desk) -> None:
    """Whoever lost its session has failed, where the policy says so: but it has its retries."""
    heir = await inherited(desk, orphans="failed")
    heir.tells(
        """
        task:gate 0: orphaned > recovery_failed > DeadLettered attempts=0 claims=1
        run:gate 0: cancelled
        job:gate 0: user_cancelled
        task:working 0: orphaned > recovery_failed > DeadLettered attempts=0 claims=1
        run:working 0: cancelled
        job:working 0: user_cancelled
        task:dead 0: DeadLettered attempts=1 claims=1
        run:waiting 0: skipped cause=dependency_failed dependency=working
        job:waiting 0: user_cancelled
        task:waiting 0: cancelled
        task:part 0: orphaned > recovery_failed > DeadLettered attempts=0 claims=1
        run:part 0: cancelled
        job:part 0: user_cancelled
        task:parent 0: subtask_failed subtask=task:part > cancelled
        run:parent 0: cancelled
        job:parent 0: user_cancelled
        job:queued 0: worker_started worker_id=worker:v-2 / 5: execution_completed > validation_passed
        task:queued 0: claimed by=queued > started / 5: completed > closed
        run:queued 0: executor_started / 5: execution_completed > tests_passed
        run:checked 10: tests_passed
        job:checked 10: validation_passed
        task:checked 10: completed > closed
        job:delayed 20: retry_delay_elapsed > worker_started worker_id=worker:w-2 / 25: execution_completed >
            validation_passed
        run:delayed 20: backoff_completed / 25: execution_completed > tests_passed
        task:delayed 25: completed > closed
        task:planned 60: approved > claimed by=planned > started / 65: completed > closed
        job:planned 60: scheduler_assigned > worker_started worker_id=worker:w-2 / 65: execution_completed >
            validation_passed
        run:planned 60: executor_started / 65: execution_completed > tests_passed
        task:pending 61: approval_granted by=me
        task:blocked 62: unblocked > claimed by=blocked-2 > started / 67: completed > closed
        job:blocked 62: retry_delay_elapsed > worker_started worker_id=worker:w-2 / 67: execution_completed >
            validation_passed
        run:blocked 62: backoff_completed / 67: execution_completed > tests_passed
        task:behind 67: cancelled
        run:behind 67: cancelled
        job:behind 67: user_cancelled
        workstream:plan 67: settled_with_failures completed=8 failed=4 cancelled=5
        """,
        after=heir.last_seq,
        whose=KINDS,
        facts=False,
        without=RACED,
    )


async def orphans_are_done(desk: Desk) -> None:
    """What an orphan has left counts as the whole, where the policy says so."""
    heir = await inherited(desk, orphans="done")
    heir.tells(
        """
        task:working 0: orphaned > recovered > closed
        run:working 0: execution_completed > tests_passed
        job:working 0: execution_completed > validation_passed
        task:part 0: orphaned > recovered > closed
        run:part 0: execution_completed > tests_passed
        job:part 0: execution_completed > validation_passed
        job:parent 0: scheduler_assigned depends_on=job:part > worker_started worker_id=worker:w-2 >
            execution_completed > validation_passed
        task:gate 0: orphaned > recovered > closed
        run:gate 0: execution_completed > tests_passed
        job:gate 0: execution_completed > validation_passed
        run:parent 0: executor_started > execution_completed > tests_passed
        task:parent 0: subtasks_completed > closed
        job:waiting 0: scheduler_assigned depends_on=job:working > worker_started worker_id=worker:w-2 / 5:
            execution_completed > validation_passed
        task:behind 0: unblocked > claimed by=behind-2 > started / 5: completed > closed
        job:behind 0: retry_delay_elapsed > worker_started worker_id=worker:w-2 / 5: execution_completed >
            validation_passed
        run:behind 0: backoff_completed / 5: execution_completed > tests_passed
        job:queued 0: worker_started worker_id=worker:v-2 / 5: execution_completed > validation_passed
        task:queued 0: claimed by=queued > started / 5: completed > closed
        run:queued 0: executor_started / 5: execution_completed > tests_passed
        task:waiting 0: claimed by=waiting > started / 5: completed > closed
        run:waiting 0: executor_started / 5: execution_completed > tests_passed
        task:dead 0: DeadLettered attempts=1 claims=1
        run:checked 10: tests_passed
        job:checked 10: validation_passed
        task:checked 10: completed > closed
        job:delayed 20: retry_delay_elapsed > worker_started worker_id=worker:w-2 / 25: execution_completed >
            validation_passed
        run:delayed 20: backoff_completed / 25: execution_completed > tests_passed
        task:delayed 25: completed > closed
        task:planned 60: approved > claimed by=planned > started / 65: completed > closed
        job:planned 60: scheduler_assigned > worker_started worker_id=worker:w-2 / 65: execution_completed >
            validation_passed
        run:planned 60: executor_started / 65: execution_completed > tests_passed
        task:pending 61: approval_granted by=me
        task:blocked 62: unblocked > claimed by=blocked-2 > started / 67: completed > closed
        job:blocked 62: retry_delay_elapsed > worker_started worker_id=worker:w-2 / 67: execution_completed >
            validation_passed
        run:blocked 62: backoff_completed / 67: execution_completed > tests_passed
        workstream:plan 67: settled_with_failures completed=14 failed=1 cancelled=2
        """,
        after=heir.last_seq,
        whose=KINDS,
        facts=False,
        without=RACED,
    )


async def begun_anew(desk: Desk) -> None:
    """Where no session goes on nothing else does: the whole is told its end, and the plan begins anew."""
    heir = await inherited(desk, sessions="stop")
    heir.tells(
        """
        task:gate 0: orphaned > recovery_failed
        task:queued 0: cancelled
        task:planned 0: rejected
        task:waiting 0: cancelled
        task:working 0: orphaned > recovery_failed
        task:delayed 0: orphaned > recovery_failed
        task:checked 0: orphaned > recovery_failed
        task:pending 0: cancelled
        task:blocked 0: cancelled
        task:behind 0: cancelled
        task:parent 0: cancelled
        task:part 0: orphaned > recovery_failed
        workstream:plan 0: user_cancelled
        workstream:plan-2 0: Born tasks=17 > all_tasks_created count=17 > first_task_started / 65:
            settled_with_failures completed=15 failed=1 cancelled=1
        task:gate-2 0: Born max_retries=3 > claimed by=gate-2 > started / 40: completed > closed
        task:early-2 0: Born max_retries=0 > claimed by=early-2 > started / 2: completed > closed
        task:queued-2 0: Born max_retries=0 / 40: claimed by=queued > started / 45: completed > closed
        task:planned-2 0: Born max_retries=0 / 60: approved > claimed by=planned > started / 65: completed > closed
        task:waiting-2 0: Born max_retries=0 / 30: claimed by=waiting > started / 35: completed > closed
        task:working-2 0: Born max_retries=1 > claimed by=working-2 > started / 30: completed > closed
        task:delayed-2 0: Born max_retries=0 > claimed by=delayed-2 > started / 5: completed > closed
        task:checked-2 0: Born max_retries=0 > claimed by=checked-2 > started / 18: completed > closed
        task:pending-2 0: Born max_retries=0 > claimed by=pending-2 > started / 5: completed > approval_requested /
            61: approval_granted by=me
        task:blocked-2 0: Born max_retries=0 > claimed by=blocked-2 > started / 5: completed > closed
        task:behind-2 0: Born max_retries=0 > claimed by=behind-2 > started / 5: completed > closed
        task:parent-2 0: Born max_retries=0 > split subtasks=task:part-2 / 20: subtasks_completed > closed
        task:part-2 0: Born max_retries=0 > claimed by=part-2 > started / 20: completed > closed
        task:closed-2 0: Born max_retries=0 > claimed by=closed-2 > started / 5: completed > closed
        task:dead-2 0: Born max_retries=0 > claimed by=dead-2 > started / 5: failed > DeadLettered attempts=1 claims=1
        task:below-2 0: Born max_retries=0 / 5: cancelled
        task:cancelled-2 0: Born max_retries=0 > claimed by=cancelled-2 > started / 60: completed > closed
        """,
        after=heir.last_seq,
        whose="task workstream",
        facts=False,
    )


KILLED = (taken_over, orphans_fail, orphans_are_done, begun_anew)
