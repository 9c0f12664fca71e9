"""What befalls a whole plan while its tasks are in every state: a critical failure, a stop, its end, a lost worker."""

from __future__ import annotations

from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.work.office import Try, task
from supervisor.simulation.drills.work.stage import (
    AT_S,
    BASE,
    BROKEN,
    KINDS,
    LATE,
    RACED,
    SECOND_BASE,
    STAGE,
    first,
    second,
    staged,
)
from supervisor.work.workers import Pool

__all__ = ["BEFALLEN"]


async def critical(desk: Desk) -> None:
    """A critical task fails: nobody wants the others any more; what is checked and merged is not interrupted."""
    office = staged(desk)
    office.tries["crit"] = [Try(AT_S, BROKEN)]
    plan = first(task("crit", critical=True, max_retries=0, capabilities=["o"]))
    await office.run(plan, *STAGE, *LATE)
    office.tells(
        BASE,
        but="""
        workstream:plan 0: Born tasks=18 > all_tasks_created count=18 > first_task_started / 10: critical_task_failed
            task_id=task:crit
        task:gate 0: Born max_retries=3 > claimed by=gate > started / 10: cancelled
        run:gate 0: Born max_attempts=5 > executor_started / 10: cancelled
        job:gate 0: Born max_retries=4 capabilities=x > scheduler_assigned > worker_started worker_id=worker:v / 10:
            user_cancelled
        task:queued 0: Born max_retries=0 / 10: cancelled
        run:queued 0: Born max_attempts=5 / 10: cancelled
        job:queued 0: Born max_retries=4 capabilities=x / 2: scheduler_assigned depends_on=job:early / 10:
            user_cancelled
        task:planned 0: Born max_retries=0 / 10: rejected
        run:planned 0: Born max_attempts=5 / 10: cancelled
        job:planned 0: Born max_retries=4 capabilities=o / 10: user_cancelled
        task:waiting 0: Born max_retries=0 / 10: cancelled
        run:waiting 0: Born max_attempts=5 / 10: cancelled
        job:waiting 0: Born max_retries=4 capabilities=o / 10: user_cancelled
        task:working 0: Born max_retries=1 > claimed by=working > started / 10: cancelled
        run:working 0: Born max_attempts=5 > executor_started / 10: cancelled
        job:working 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w /
            10: user_cancelled
        task:delayed 0: Born max_retries=0 > claimed by=delayed > started / 10: cancelled
        run:delayed 0: Born max_attempts=5 > executor_started / 8: execution_failed error=RuntimeError: it broke
            category=unknown charged=True > retry_decided / 10: cancelled
        job:delayed 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 8:
            execution_failed error=RuntimeError: it broke / 10: user_cancelled
        task:pending 0: Born max_retries=0 > claimed by=pending > started / 5: completed > approval_requested / 10:
            cancelled
        task:blocked 0: Born max_retries=0 > claimed by=blocked > started / 5: blocked on=a person / 10: cancelled
        run:blocked 0: Born max_attempts=5 > executor_started / 5: execution_failed error=blocked by me: so
            category=unknown > retry_decided / 10: cancelled
        job:blocked 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 5:
            worker_lost / 10: user_cancelled
        task:behind 0: Born max_retries=0 > claimed by=behind > started / 5: blocked on=task:working / 10: cancelled
        run:behind 0: Born max_attempts=5 > executor_started / 5: execution_failed error=blocked by me: so
            category=unknown > retry_decided / 10: cancelled
        job:behind 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 5:
            worker_lost / 10: user_cancelled
        task:parent 0: Born max_retries=0 > split subtasks=task:part / 10: cancelled
        run:parent 0: Born max_attempts=5 / 10: cancelled
        job:parent 0: Born max_retries=4 capabilities=o / 10: user_cancelled
        task:part 0: Born max_retries=0 > claimed by=part > started / 10: cancelled
        run:part 0: Born max_attempts=5 > executor_started / 10: cancelled
        job:part 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 10:
            user_cancelled
        task:crit 0: Born max_retries=0 > claimed by=crit > started / 10: failed > DeadLettered attempts=1 claims=1
        run:crit 0: Born max_attempts=5 > executor_started / 10: execution_failed error=RuntimeError: sh: x: command
            not found category=permanent charged=True > retry_decided
        job:crit 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 10:
            execution_failed error=RuntimeError: sh: x: command not found final=True
        """,
        whose=KINDS,
        facts=False,
        without=RACED,
    )


async def stopped(desk: Desk) -> None:
    """A supervisor that ends begins nothing more, and waits for nobody who would."""
    office = staged(desk)
    await office.run(first(), *STAGE, *LATE, stop_after_s=AT_S)
    office.tells(
        BASE,
        but="""
        workstream:plan 0: Born tasks=17 > all_tasks_created count=17 > first_task_started / 40: settled_with_failures
            completed=7 failed=2 cancelled=8
        task:queued 0: Born max_retries=0 / 10: cancelled
        run:queued 0: Born max_attempts=5 / 10: cancelled
        job:queued 0: Born max_retries=4 capabilities=x / 2: scheduler_assigned depends_on=job:early / 10:
            user_cancelled
        task:planned 0: Born max_retries=0 / 10: rejected
        run:planned 0: Born max_attempts=5 / 10: cancelled
        job:planned 0: Born max_retries=4 capabilities=o / 10: user_cancelled
        task:waiting 0: Born max_retries=0 / 30: cancelled
        run:waiting 0: Born max_attempts=5 / 30: cancelled
        job:waiting 0: Born max_retries=4 capabilities=o / 30: user_cancelled
        task:delayed 0: Born max_retries=0 > claimed by=delayed > started / 10: failed > DeadLettered attempts=1
            claims=1
        run:delayed 0: Born max_attempts=5 > executor_started / 8: execution_failed error=RuntimeError: it broke
            category=unknown charged=True > retry_decided / 10: circuit_opened
        job:delayed 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 8:
            execution_failed error=RuntimeError: it broke / 10: user_cancelled
        task:pending 0: Born max_retries=0 > claimed by=pending > started / 5: completed > approval_requested / 10:
            cancelled
        task:blocked 0: Born max_retries=0 > claimed by=blocked > started / 5: blocked on=a person / 10: cancelled
        run:blocked 0: Born max_attempts=5 > executor_started / 5: execution_failed error=blocked by me: so
            category=unknown > retry_decided / 10: cancelled
        job:blocked 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 5:
            worker_lost / 10: user_cancelled
        task:behind 0: Born max_retries=0 > claimed by=behind > started / 5: blocked on=task:working / 10: cancelled
        run:behind 0: Born max_attempts=5 > executor_started / 5: execution_failed error=blocked by me: so
            category=unknown > retry_decided / 10: cancelled
        job:behind 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 5:
            worker_lost / 10: user_cancelled
        """,
        whose=KINDS,
        facts=False,
    )
    office = staged(desk)
    await office.run(second(), stop_after_s=AT_S)
    office.tells(
        SECOND_BASE,
        but="""
        workstream:plan 0: Born tasks=3 > all_tasks_created count=3 > first_task_started / 30: settled_with_failures
            completed=1 failed=2 cancelled=0
        task:cooling 0: Born max_retries=0 > claimed by=cooling > started / 10: failed > DeadLettered attempts=1
            claims=1
        run:cooling 0: Born max_attempts=2 > executor_started / 8: execution_failed error=RuntimeError: it broke
            category=unknown charged=True > retry_decided
        job:cooling 0: Born max_retries=1 > scheduler_assigned > worker_started worker_id=worker:local / 8:
            execution_failed error=RuntimeError: it broke / 10: user_cancelled
        task:here 0: Born max_retries=0 > claimed by=here > started / 10: failed > DeadLettered attempts=2 claims=1
        run:here 0: Born max_attempts=2 > executor_started / 1: execution_failed error=RuntimeError: one
            category=unknown charged=True > retry_decided / 5: cooldown_expired > probe_started / 8: execution_failed
            error=RuntimeError: two category=unknown charged=True > retry_decided
        job:here 0: Born max_retries=1 > scheduler_assigned > worker_started worker_id=worker:local / 1:
            execution_failed error=RuntimeError: one / 5: retry_delay_elapsed > worker_started worker_id=worker:local
            / 10: execution_failed error=RuntimeError: two final=True
        """,
        whose=KINDS,
        facts=False,
    )


async def given_up(desk: Desk) -> None:
    """A plan that is given up leaves nobody at work, and nothing looking alive."""
    office = staged(desk)
    desk.same("its result", await office.run(first(), *STAGE, give_up_after_s=AT_S), None)
    office.tells(
        BASE,
        but="""
        workstream:plan 0: Born tasks=17 > all_tasks_created count=17 > first_task_started / 18: user_cancelled
        task:gate 0: Born max_retries=3 > claimed by=gate > started / 18: cancelled
        run:gate 0: Born max_attempts=5 > executor_started / 18: cancelled
        job:gate 0: Born max_retries=4 capabilities=x > scheduler_assigned > worker_started worker_id=worker:v / 18:
            user_cancelled
        task:queued 0: Born max_retries=0 / 18: cancelled
        run:queued 0: Born max_attempts=5 / 18: cancelled
        job:queued 0: Born max_retries=4 capabilities=x / 2: scheduler_assigned depends_on=job:early / 18:
            user_cancelled
        task:planned 0: Born max_retries=0 / 18: rejected
        run:planned 0: Born max_attempts=5 / 18: cancelled
        job:planned 0: Born max_retries=4 capabilities=o / 18: user_cancelled
        task:waiting 0: Born max_retries=0 / 18: cancelled
        run:waiting 0: Born max_attempts=5 / 18: cancelled
        job:waiting 0: Born max_retries=4 capabilities=o / 18: user_cancelled
        task:working 0: Born max_retries=1 > claimed by=working > started / 18: cancelled
        run:working 0: Born max_attempts=5 > executor_started / 18: cancelled
        job:working 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w /
            18: user_cancelled
        task:delayed 0: Born max_retries=0 > claimed by=delayed > started / 18: cancelled
        run:delayed 0: Born max_attempts=5 > executor_started / 8: execution_failed error=RuntimeError: it broke
            category=unknown charged=True > retry_decided / 18: cancelled
        job:delayed 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 8:
            execution_failed error=RuntimeError: it broke / 18: user_cancelled
        task:pending 0: Born max_retries=0 > claimed by=pending > started / 5: completed > approval_requested / 18:
            cancelled
        task:blocked 0: Born max_retries=0 > claimed by=blocked > started / 5: blocked on=a person / 18: cancelled
        run:blocked 0: Born max_attempts=5 > executor_started / 5: execution_failed error=blocked by me: so
            category=unknown > retry_decided / 18: cancelled
        job:blocked 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 5:
            worker_lost / 18: user_cancelled
        task:behind 0: Born max_retries=0 > claimed by=behind > started / 5: blocked on=task:working / 18: cancelled
        run:behind 0: Born max_attempts=5 > executor_started / 5: execution_failed error=blocked by me: so
            category=unknown > retry_decided / 18: cancelled
        job:behind 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 5:
            worker_lost / 18: user_cancelled
        task:parent 0: Born max_retries=0 > split subtasks=task:part / 18: cancelled
        run:parent 0: Born max_attempts=5 / 18: cancelled
        job:parent 0: Born max_retries=4 capabilities=o / 18: user_cancelled
        task:part 0: Born max_retries=0 > claimed by=part > started / 18: cancelled
        run:part 0: Born max_attempts=5 > executor_started / 18: cancelled
        job:part 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 18:
            user_cancelled
        """,
        whose=KINDS,
        facts=False,
    )
    office = staged(desk)
    desk.same("its result", await office.run(second(), give_up_after_s=AT_S), None)
    office.tells(
        SECOND_BASE,
        but="""
        workstream:plan 0: Born tasks=3 > all_tasks_created count=3 > first_task_started / 10: user_cancelled
        task:cooling 0: Born max_retries=0 > claimed by=cooling > started / 10: cancelled
        run:cooling 0: Born max_attempts=2 > executor_started / 8: execution_failed error=RuntimeError: it broke
            category=unknown charged=True > retry_decided / 10: cancelled
        job:cooling 0: Born max_retries=1 > scheduler_assigned > worker_started worker_id=worker:local / 8:
            execution_failed error=RuntimeError: it broke / 10: user_cancelled
        task:here 0: Born max_retries=0 > claimed by=here > started / 10: cancelled
        run:here 0: Born max_attempts=2 > executor_started / 1: execution_failed error=RuntimeError: one
            category=unknown charged=True > retry_decided / 5: cooldown_expired > probe_started / 8: execution_failed
            error=RuntimeError: two category=unknown charged=True > retry_decided / 10: cancelled
        job:here 0: Born max_retries=1 > scheduler_assigned > worker_started worker_id=worker:local / 1:
            execution_failed error=RuntimeError: one / 5: retry_delay_elapsed > worker_started worker_id=worker:local
            / 10: user_cancelled
        task:second 0: Born max_retries=3 > claimed by=second > started / 10: cancelled
        run:second 0: Born max_attempts=2 > executor_started / 10: cancelled
        job:second 0: Born max_retries=1 > scheduler_assigned > worker_started worker_id=worker:local / 10:
            user_cancelled
        """,
        whose=KINDS,
        facts=False,
    )


async def lost(desk: Desk) -> None:
    """A worker that is silent loses what it holds, charged with nothing, and has slots again when it is back."""
    office = staged(desk)

    async def heart(pool: Pool, worker_id: str, heartbeat_s: float) -> None:
        beats = 0
        while pool.beat(worker_id):
            beats += 1
            silent = worker_id == "worker:w" and beats == 6
            await pool.pause(16.5 if silent else heartbeat_s)

    await office.run(first(), *STAGE, *LATE, heart=heart)
    office.tells(
        BASE,
        but="""
        task:waiting 0: Born max_retries=0 / 51.5: claimed by=waiting > started / 56.5: completed > closed
        run:waiting 0: Born max_attempts=5 / 51.5: executor_started / 56.5: execution_completed > tests_passed
        job:waiting 0: Born max_retries=4 capabilities=o / 51.5: scheduler_assigned depends_on=job:working >
            worker_started worker_id=worker:w / 56.5: execution_completed > validation_passed
        task:working 0: Born max_retries=1 > claimed by=working > started / 10: orphaned > requeued / 21.5: claimed
            by=working-2 > started / 51.5: completed > closed
        run:working 0: Born max_attempts=5 > executor_started / 10: execution_failed error=its worker was lost
            category=unknown > retry_decided / 21.5: backoff_completed / 51.5: execution_completed > tests_passed
        job:working 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w /
            10: worker_lost > retry_delay_elapsed / 21.5: worker_started worker_id=worker:w / 51.5:
            execution_completed > validation_passed
        task:behind 0: Born max_retries=0 > claimed by=behind > started / 5: blocked on=task:working / 51.5: unblocked
            > claimed by=behind-2 > started / 56.5: completed > closed
        run:behind 0: Born max_attempts=5 > executor_started / 5: execution_failed error=blocked by me: so
            category=unknown > retry_decided / 51.5: backoff_completed / 56.5: execution_completed > tests_passed
        job:behind 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 5:
            worker_lost / 51.5: retry_delay_elapsed > worker_started worker_id=worker:w / 56.5: execution_completed >
            validation_passed
        task:parent 0: Born max_retries=0 > split subtasks=task:part / 41.5: subtasks_completed > closed
        run:parent 0: Born max_attempts=5 / 41.5: executor_started > execution_completed > tests_passed
        job:parent 0: Born max_retries=4 capabilities=o / 41.5: scheduler_assigned depends_on=job:part >
            worker_started worker_id=worker:w > execution_completed > validation_passed
        task:part 0: Born max_retries=0 > claimed by=part > started / 10: orphaned > requeued / 21.5: claimed
            by=part-2 > started / 41.5: completed > closed
        run:part 0: Born max_attempts=5 > executor_started / 10: execution_failed error=its worker was lost
            category=unknown > retry_decided / 21.5: backoff_completed / 41.5: execution_completed > tests_passed
        job:part 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 10:
            worker_lost > retry_delay_elapsed / 21.5: worker_started worker_id=worker:w / 41.5: execution_completed >
            validation_passed
        """,
        whose=KINDS,
        facts=False,
    )


BEFALLEN = (critical, stopped, given_up, lost)
