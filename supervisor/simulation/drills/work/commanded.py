"""Commands for tasks in every state at once: who takes each, and what becomes of them; all others go their way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from supervisor.plans import TaskConfig
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.work.office import Hand, Office
from supervisor.simulation.drills.work.stage import (
    AFTER_ALL,
    AT_S,
    BASE,
    ENDABLE,
    KINDS,
    LATE,
    SECOND_BASE,
    STAGE,
    WHOM,
    first,
    second,
    staged,
)

__all__ = ["COMMANDED"]


async def nothing(desk: Desk) -> None:
    """Nothing befalls them: each goes its way."""
    office = staged(desk)
    await office.run(first(), *STAGE, *LATE)
    office.tells(BASE, whose=KINDS, facts=False)
    office = staged(desk)
    await office.run(second())
    office.tells(SECOND_BASE, whose=KINDS)


async def _commanded(
    desk: Desk,
    verb: str,
    accepted: str,
    parts: Callable[[str], tuple[Any, ...]] | None = None,
    *,
    whom: Sequence[str] = WHOM,
) -> Office:
    """Everybody is given that command; those of whom it says so take it, and all others are left as they were."""
    office = staged(desk)
    hands = [Hand(AT_S, verb, name, parts(name) if parts is not None else ()) for name in whom]
    late = [hand for hand in LATE if (hand.verb, hand.task) not in {(one.verb, one.task) for one in hands}]
    await office.run(first(), *STAGE, *hands, *late)
    _check_answers(desk, office, verb, accepted, whom)
    return office


def _check_answers(desk: Desk, office: Office, verb: str, accepted: str, whom: Sequence[str]) -> None:
    staged = {(hand.verb, hand.task) for hand in STAGE}
    took = [
        f"{name}:{state}" for said, name, state, _ in office.answers_to if said == verb and (said, name) not in staged
    ]
    desk.same(f"who takes {verb}", sorted(took), sorted(accepted.split()))
    refused = {name for said, name, _ in office.refused if said == verb}
    both = {one.partition(":")[0] for one in accepted.split()}
    desk.same(f"who does not take {verb}", sorted(refused), sorted(set(whom) - both))


async def approved(desk: Desk) -> None:
    """What waits for somebody's word goes on with it, and nothing else has any use for it."""
    office = await _commanded(desk, "approve", "planned:OPEN pending:CLOSED")
    office.tells(
        BASE,
        but="""
        task:planned 0: Born max_retries=0 / 10: approved > claimed by=planned > started / 15: completed > closed
        run:planned 0: Born max_attempts=5 / 10: executor_started / 15: execution_completed > tests_passed
        job:planned 0: Born max_retries=4 capabilities=o / 10: scheduler_assigned > worker_started worker_id=worker:w
            / 15: execution_completed > validation_passed
        task:pending 0: Born max_retries=0 > claimed by=pending > started / 5: completed > approval_requested / 10:
            approval_granted by=me
        task:blocked 0: Born max_retries=0 > claimed by=blocked > started / 5: blocked on=a person / 45:
            WaitsForPerson on=a person / 62: unblocked > claimed by=blocked-2 > started / 67: completed > closed
        """,
        whose=KINDS,
        facts=False,
    )


async def rejected(desk: Desk) -> None:
    """What waits for somebody's word comes to its end with a no."""
    office = await _commanded(desk, "reject", "planned:CANCELLED pending:FAILED")
    office.tells(
        BASE,
        but="""
        workstream:plan 0: Born tasks=17 > all_tasks_created count=17 > first_task_started / 67: settled_with_failures
            completed=12 failed=2 cancelled=3
        task:planned 0: Born max_retries=0 / 10: rejected
        run:planned 0: Born max_attempts=5 / 10: cancelled
        job:planned 0: Born max_retries=4 capabilities=o / 10: user_cancelled
        task:pending 0: Born max_retries=0 > claimed by=pending > started / 5: completed > approval_requested / 10:
            approval_denied by=me > DeadLettered attempts=0 claims=1
        task:blocked 0: Born max_retries=0 > claimed by=blocked > started / 5: blocked on=a person / 45:
            WaitsForPerson on=a person / 62: unblocked > claimed by=blocked-2 > started / 67: completed > closed
        """,
        whose=KINDS,
        facts=False,
    )


async def reset(desk: Desk) -> None:
    """A dead letter is done anew; what is not given up is not reset."""
    office = await _commanded(desk, "reset", "dead:OPEN")
    office.tells(
        BASE,
        but="""
        task:dead 0: Born max_retries=0 > claimed by=dead > started / 5: failed > DeadLettered attempts=1 claims=1 /
            10: reopened by=me > claimed by=dead-2 > started / 15: failed > DeadLettered attempts=1 claims=2
        run:dead 0: Born max_attempts=5 > executor_started / 5: execution_failed error=RuntimeError: sh: x: command
            not found category=permanent charged=True > retry_decided / 10: manual_reset by=me > executor_started /
            15: execution_failed error=RuntimeError: sh: x: command not found category=permanent charged=True >
            retry_decided
        job:dead-2 10: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w /
            15: execution_failed error=RuntimeError: sh: x: command not found final=True
        """,
        whose=KINDS,
        facts=False,
    )


async def requeued(desk: Desk) -> None:
    """Who works on it lets go of it, charged with nothing; in its delay it waits for the rest of that."""
    office = await _commanded(desk, "requeue", "working:OPEN delayed:OPEN")
    office.tells(
        BASE,
        but="""
        task:waiting 0: Born max_retries=0 / 40: claimed by=waiting > started / 45: completed > closed
        run:waiting 0: Born max_attempts=5 / 40: executor_started / 45: execution_completed > tests_passed
        job:waiting 0: Born max_retries=4 capabilities=o / 40: scheduler_assigned depends_on=job:working >
            worker_started worker_id=worker:w / 45: execution_completed > validation_passed
        task:working 0: Born max_retries=1 > claimed by=working > started / 10: requeued > claimed by=working-2 >
            started / 40: completed > closed
        run:working 0: Born max_attempts=5 > executor_started / 10: execution_failed error=taken away by me: so
            category=unknown > retry_decided > backoff_completed / 40: execution_completed > tests_passed
        job:working 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w /
            10: worker_lost > retry_delay_elapsed > worker_started worker_id=worker:w / 40: execution_completed >
            validation_passed
        task:delayed 0: Born max_retries=0 > claimed by=delayed > started / 10: requeued / 38: claimed by=delayed-2 >
            started / 43: completed > closed
        task:behind 0: Born max_retries=0 > claimed by=behind > started / 5: blocked on=task:working / 40: unblocked >
            claimed by=behind-2 > started / 45: completed > closed
        run:behind 0: Born max_attempts=5 > executor_started / 5: execution_failed error=blocked by me: so
            category=unknown > retry_decided / 40: backoff_completed / 45: execution_completed > tests_passed
        job:behind 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 5:
            worker_lost / 40: retry_delay_elapsed > worker_started worker_id=worker:w / 45: execution_completed >
            validation_passed
        """,
        whose=KINDS,
        facts=False,
    )


async def unclaimed(desk: Desk) -> None:
    """Nobody has claimed a task without having begun it: each is refused."""
    office = await _commanded(desk, "unclaim", "")
    office.tells(BASE, whose=KINDS, facts=False)


async def cancelled(desk: Desk) -> None:
    """What is not over comes to its end, with all that waits for it; what is checked is first."""
    office = await _commanded(
        desk,
        "cancel",
        " ".join(f"{name}:CANCELLED" for name in ENDABLE),
        whom=[name for name in WHOM if name != "waiting"],
    )
    office.tells(
        BASE,
        but="""
        workstream:plan 0: Born tasks=17 > all_tasks_created count=17 > first_task_started / 65: settled_with_failures
            completed=5 failed=1 cancelled=11
        task:queued 0: Born max_retries=0 / 10: cancelled
        run:queued 0: Born max_attempts=5 / 10: cancelled
        job:queued 0: Born max_retries=4 capabilities=x / 2: scheduler_assigned depends_on=job:early / 10:
            user_cancelled
        task:waiting 0: Born max_retries=0 / 10: cancelled
        run:waiting 0: Born max_attempts=5 / 10: skipped cause=dependency_failed dependency=working
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
        """,
        whose=KINDS,
        facts=False,
    )


async def divided(desk: Desk) -> None:
    """What is open, or worked on, waits for its subtasks from then on."""

    def parts(name: str) -> tuple[Any, ...]:
        return ((TaskConfig.model_validate({"id": f"{name}.s", **AFTER_ALL}),),)

    office = await _commanded(
        desk,
        "split",
        " ".join(f"{name}:WAITING_FOR_SUBTASKS" for name in ("delayed", "queued", "waiting", "working")),
        parts,
    )
    office.tells(
        BASE,
        but="""
        workstream:plan 0: Born tasks=17 > all_tasks_created count=17 > first_task_started / 10: tasks_added count=1 >
            tasks_added count=1 > tasks_added count=1 > tasks_added count=1 / 67: settled_with_failures completed=18
            failed=1 cancelled=2
        task:queued 0: Born max_retries=0 / 10: split subtasks=task:queued.s / 40: subtasks_completed > closed
        run:queued 0: Born max_attempts=5 / 40: executor_started > execution_completed > tests_passed
        job:queued 0: Born max_retries=4 capabilities=x / 2: scheduler_assigned depends_on=job:early / 40:
            worker_started worker_id=worker:v > execution_completed > validation_passed
        task:waiting 0: Born max_retries=0 / 10: split subtasks=task:waiting.s / 35: subtasks_completed > closed
        run:waiting 0: Born max_attempts=5 / 35: executor_started > execution_completed > tests_passed
        job:waiting 0: Born max_retries=4 capabilities=o / 35: scheduler_assigned depends_on=job:waiting.s >
            worker_started worker_id=worker:w > execution_completed > validation_passed
        task:working 0: Born max_retries=1 > claimed by=working > started / 10: split subtasks=task:working.s / 30:
            subtasks_completed > closed
        task:delayed 0: Born max_retries=0 > claimed by=delayed > started / 10: split subtasks=task:delayed.s / 38:
            subtasks_completed > closed
        run:delayed 0: Born max_attempts=5 > executor_started / 8: execution_failed error=RuntimeError: it broke
            category=unknown charged=True > retry_decided / 38: backoff_completed > execution_completed > tests_passed
        job:delayed 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 8:
            execution_failed error=RuntimeError: it broke / 38: retry_delay_elapsed > worker_started
            worker_id=worker:w > execution_completed > validation_passed
        task:waiting.s 10: Born max_retries=0 / 30: claimed by=waiting.s > started / 35: completed > closed
        run:waiting.s 10: Born max_attempts=5 / 30: executor_started / 35: execution_completed > tests_passed
        job:waiting.s 10: Born max_retries=4 capabilities=o / 30: scheduler_assigned depends_on=job:working >
            worker_started worker_id=worker:w / 35: execution_completed > validation_passed
        task:working.s 10: Born max_retries=0 > claimed by=working.s > started / 15: completed > closed
        run:working.s 10: Born max_attempts=5 > executor_started / 15: execution_completed > tests_passed
        job:working.s 10: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w /
            15: execution_completed > validation_passed
        task:queued.s 10: Born max_retries=0 > claimed by=queued.s > started / 15: completed > closed
        run:queued.s 10: Born max_attempts=5 > executor_started / 15: execution_completed > tests_passed
        job:queued.s 10: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w /
            15: execution_completed > validation_passed
        task:delayed.s 10: Born max_retries=0 > claimed by=delayed.s > started / 15: completed > closed
        run:delayed.s 10: Born max_attempts=5 > executor_started / 15: execution_completed > tests_passed
        job:delayed.s 10: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w /
            15: execution_completed > validation_passed
        """,
        whose=KINDS,
        facts=False,
    )


async def stuck(desk: Desk) -> None:
    """Who works on it lets go of it until what it waits for is there."""

    def on(name: str) -> tuple[Any, ...]:
        return (("gate",),)

    office = await _commanded(desk, "block", "delayed:BLOCKED working:BLOCKED", on)
    office.tells(
        BASE,
        but="""
        workstream:plan 0: Born tasks=17 > all_tasks_created count=17 > first_task_started / 75: settled_with_failures
            completed=14 failed=1 cancelled=2
        task:waiting 0: Born max_retries=0 / 70: claimed by=waiting > started / 75: completed > closed
        run:waiting 0: Born max_attempts=5 / 70: executor_started / 75: execution_completed > tests_passed
        job:waiting 0: Born max_retries=4 capabilities=o / 70: scheduler_assigned depends_on=job:working >
            worker_started worker_id=worker:w / 75: execution_completed > validation_passed
        task:working 0: Born max_retries=1 > claimed by=working > started / 10: blocked on=task:gate / 40: unblocked >
            claimed by=working-2 > started / 70: completed > closed
        run:working 0: Born max_attempts=5 > executor_started / 10: execution_failed error=blocked by me: so
            category=unknown > retry_decided / 40: backoff_completed / 70: execution_completed > tests_passed
        job:working 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w /
            10: worker_lost / 40: retry_delay_elapsed > worker_started worker_id=worker:w / 70: execution_completed >
            validation_passed
        task:delayed 0: Born max_retries=0 > claimed by=delayed > started / 10: blocked on=task:gate / 40: unblocked /
            70: claimed by=delayed-2 > started / 75: completed > closed
        run:delayed 0: Born max_attempts=5 > executor_started / 8: execution_failed error=RuntimeError: it broke
            category=unknown charged=True > retry_decided / 70: backoff_completed / 75: execution_completed >
            tests_passed
        job:delayed 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 8:
            execution_failed error=RuntimeError: it broke / 70: retry_delay_elapsed > worker_started
            worker_id=worker:w / 75: execution_completed > validation_passed
        task:behind 0: Born max_retries=0 > claimed by=behind > started / 5: blocked on=task:working / 70: unblocked >
            claimed by=behind-2 > started / 75: completed > closed
        run:behind 0: Born max_attempts=5 > executor_started / 5: execution_failed error=blocked by me: so
            category=unknown > retry_decided / 70: backoff_completed / 75: execution_completed > tests_passed
        job:behind 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 5:
            worker_lost / 70: retry_delay_elapsed > worker_started worker_id=worker:w / 75: execution_completed >
            validation_passed
        """,
        whose=KINDS,
        facts=False,
    )


async def unstuck(desk: Desk) -> None:
    """Who is blocked goes on, whatever it waited for."""
    office = await _commanded(desk, "unblock", "behind:OPEN blocked:OPEN")
    office.tells(
        BASE,
        but="""
        workstream:plan 0: Born tasks=17 > all_tasks_created count=17 > first_task_started / 65: settled_with_failures
            completed=14 failed=1 cancelled=2
        task:blocked 0: Born max_retries=0 > claimed by=blocked > started / 5: blocked on=a person / 10: unblocked >
            claimed by=blocked-2 > started / 15: completed > closed
        run:blocked 0: Born max_attempts=5 > executor_started / 5: execution_failed error=blocked by me: so
            category=unknown > retry_decided / 10: backoff_completed / 15: execution_completed > tests_passed
        job:blocked 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 5:
            worker_lost / 10: retry_delay_elapsed > worker_started worker_id=worker:w / 15: execution_completed >
            validation_passed
        task:behind 0: Born max_retries=0 > claimed by=behind > started / 5: blocked on=task:working / 10: unblocked >
            claimed by=behind-2 > started / 15: completed > closed
        run:behind 0: Born max_attempts=5 > executor_started / 5: execution_failed error=blocked by me: so
            category=unknown > retry_decided / 10: backoff_completed / 15: execution_completed > tests_passed
        job:behind 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 5:
            worker_lost / 10: retry_delay_elapsed > worker_started worker_id=worker:w / 15: execution_completed >
            validation_passed
        """,
        whose=KINDS,
        facts=False,
    )


async def circuits(desk: Desk) -> None:
    """A reset closes a circuit, and whoever cools down goes on; what a task in that may be told else."""

    def more(verb: str, name: str) -> tuple[Any, ...]:
        parts = (TaskConfig.model_validate({"id": f"{name}.s", "prompt": "x", "agent": "f", "max_retries": 0}),)
        return {"split": (parts,), "block": (("second",),)}.get(verb, ())

    async def told(verb: str, accepted: str) -> Office:
        office, whom = staged(desk), ("cooling", "here")
        await office.run(second(), *(Hand(AT_S, verb, name, more(verb, name)) for name in whom))
        _check_answers(desk, office, verb, accepted, whom)
        return office

    (await told("reset", "cooling:PENDING here:PENDING")).tells(
        SECOND_BASE,
        but="""
        task:cooling 0: Born max_retries=0 > claimed by=cooling > started / 15: completed > closed
        run:cooling 0: Born max_attempts=2 > executor_started / 8: execution_failed error=RuntimeError: it broke
            category=unknown charged=True > retry_decided / 10: manual_reset by=me > executor_started / 15:
            execution_completed > tests_passed
        job:cooling 0: Born max_retries=1 > scheduler_assigned > worker_started worker_id=worker:local / 8:
            execution_failed error=RuntimeError: it broke / 10: retry_delay_elapsed > worker_started
            worker_id=worker:local / 15: execution_completed > validation_passed
        run:here 0: Born max_attempts=2 > executor_started / 1: execution_failed error=RuntimeError: one
            category=unknown charged=True > retry_decided / 5: cooldown_expired > probe_started / 8: execution_failed
            error=RuntimeError: two category=unknown charged=True > retry_decided / 10: manual_reset by=me / 12:
            executor_started / 17: execution_completed > tests_passed
        """,
        whose=KINDS,
        facts=False,
    )
    (await told("requeue", "cooling:OPEN here:OPEN")).tells(
        SECOND_BASE,
        but="""
        task:cooling 0: Born max_retries=0 > claimed by=cooling > started / 10: requeued / 12: claimed by=cooling-2 >
            started / 17: completed > closed
        task:here 0: Born max_retries=0 > claimed by=here > started / 10: requeued / 14: claimed by=here-2 > started /
            19: completed > closed
        run:here 0: Born max_attempts=2 > executor_started / 1: execution_failed error=RuntimeError: one
            category=unknown charged=True > retry_decided / 5: cooldown_expired > probe_started / 8: execution_failed
            error=RuntimeError: two category=unknown charged=True > retry_decided / 14: cooldown_expired >
            probe_started / 19: execution_completed > tests_passed
        job:here 0: Born max_retries=1 > scheduler_assigned > worker_started worker_id=worker:local / 1:
            execution_failed error=RuntimeError: one / 5: retry_delay_elapsed > worker_started worker_id=worker:local
            / 10: worker_lost / 14: retry_delay_elapsed > worker_started worker_id=worker:local / 19:
            execution_completed > validation_passed
        """,
        whose=KINDS,
        facts=False,
    )
    (await told("cancel", "cooling:CANCELLED here:CANCELLED")).tells(
        SECOND_BASE,
        but="""
        workstream:plan 0: Born tasks=3 > all_tasks_created count=3 > first_task_started / 30:
            settled_with_cancellations completed=1 cancelled=2
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
        """,
        whose=KINDS,
        facts=False,
    )
    (await told("split", "cooling:WAITING_FOR_SUBTASKS here:WAITING_FOR_SUBTASKS")).tells(
        SECOND_BASE,
        but="""
        workstream:plan 0: Born tasks=3 > all_tasks_created count=3 > first_task_started / 10: tasks_added count=1 >
            tasks_added count=1 / 30: all_tasks_completed completed=5 > validation_passed
        task:cooling 0: Born max_retries=0 > claimed by=cooling > started / 10: split subtasks=task:cooling.s / 15:
            subtasks_completed > closed
        run:cooling 0: Born max_attempts=2 > executor_started / 8: execution_failed error=RuntimeError: it broke
            category=unknown charged=True > retry_decided / 12: cooldown_expired / 15: probe_started >
            execution_completed > tests_passed
        job:cooling 0: Born max_retries=1 > scheduler_assigned > worker_started worker_id=worker:local / 8:
            execution_failed error=RuntimeError: it broke / 12: retry_delay_elapsed / 15: worker_started
            worker_id=worker:local > execution_completed > validation_passed
        task:here 0: Born max_retries=0 > claimed by=here > started / 10: split subtasks=task:here.s / 15:
            subtasks_completed > closed
        run:here 0: Born max_attempts=2 > executor_started / 1: execution_failed error=RuntimeError: one
            category=unknown charged=True > retry_decided / 5: cooldown_expired > probe_started / 8: execution_failed
            error=RuntimeError: two category=unknown charged=True > retry_decided / 12: cooldown_expired >
            probe_started > execution_completed / 15: tests_passed
        job:here 0: Born max_retries=1 > scheduler_assigned > worker_started worker_id=worker:local / 1:
            execution_failed error=RuntimeError: one / 5: retry_delay_elapsed > worker_started worker_id=worker:local
            / 12: execution_completed / 15: validation_passed
        task:here.s 10: Born max_retries=0 > claimed by=here.s > started / 15: completed > closed
        run:here.s 10: Born max_attempts=2 > executor_started / 15: execution_completed > tests_passed
        job:here.s 10: Born max_retries=1 > scheduler_assigned > worker_started worker_id=worker:local / 15:
            execution_completed > validation_passed
        task:cooling.s 10: Born max_retries=0 > claimed by=cooling.s > started / 15: completed > closed
        run:cooling.s 10: Born max_attempts=2 > executor_started / 15: execution_completed > tests_passed
        job:cooling.s 10: Born max_retries=1 > scheduler_assigned > worker_started worker_id=worker:local / 15:
            execution_completed > validation_passed
        """,
        whose=KINDS,
        facts=False,
    )
    (await told("block", "cooling:BLOCKED here:BLOCKED")).tells(
        SECOND_BASE,
        but="""
        workstream:plan 0: Born tasks=3 > all_tasks_created count=3 > first_task_started / 39: all_tasks_completed
            completed=3 > validation_passed
        task:cooling 0: Born max_retries=0 > claimed by=cooling > started / 10: blocked on=task:second / 30: unblocked
            / 34: claimed by=cooling-2 > started / 39: completed > closed
        run:cooling 0: Born max_attempts=2 > executor_started / 8: execution_failed error=RuntimeError: it broke
            category=unknown charged=True > retry_decided / 34: cooldown_expired > probe_started / 39:
            execution_completed > tests_passed
        job:cooling 0: Born max_retries=1 > scheduler_assigned > worker_started worker_id=worker:local / 8:
            execution_failed error=RuntimeError: it broke / 34: retry_delay_elapsed > worker_started
            worker_id=worker:local / 39: execution_completed > validation_passed
        task:here 0: Born max_retries=0 > claimed by=here > started / 10: blocked on=task:second / 30: unblocked / 34:
            claimed by=here-2 > started / 39: completed > closed
        run:here 0: Born max_attempts=2 > executor_started / 1: execution_failed error=RuntimeError: one
            category=unknown charged=True > retry_decided / 5: cooldown_expired > probe_started / 8: execution_failed
            error=RuntimeError: two category=unknown charged=True > retry_decided / 34: cooldown_expired >
            probe_started / 39: execution_completed > tests_passed
        job:here 0: Born max_retries=1 > scheduler_assigned > worker_started worker_id=worker:local / 1:
            execution_failed error=RuntimeError: one / 5: retry_delay_elapsed > worker_started worker_id=worker:local
            / 10: worker_lost / 34: retry_delay_elapsed > worker_started worker_id=worker:local / 39:
            execution_completed > validation_passed
        """,
        whose=KINDS,
        facts=False,
    )
    for verb in ("approve", "reject", "unclaim", "unblock"):
        (await told(verb, "")).tells(SECOND_BASE, whose=KINDS, facts=False)


COMMANDED = (nothing, approved, rejected, reset, requeued, unclaimed, cancelled, divided, stuck, unstuck, circuits)
