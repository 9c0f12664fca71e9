"""Every state that a task can be in, at once: what becomes of each when something befalls the whole.

Ten seconds after it began the plan has a task in each state that lasts. What is given, stopped, killed or lost then is
held to docs/work.md, docs/plans.md and the tables of seeds 000, 002 and 004.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from supervisor.plans import Plan, TaskConfig
from supervisor.scheduling.workers import Pool
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.work.office import FLAT, Hand, Office, Try, plan_of, task

__all__ = ["AT_S", "FIRST", "SECOND", "STATES", "first", "second", "staged"]

AT_S: Final = 10.0
"""When something befalls the tasks."""
BROKEN: Final = "sh: x: command not found"
FIRST: Final = (
    *("gate", "early", "queued", "planned", "waiting", "working", "delayed", "checked", "pending", "blocked"),
    *("behind", "parent", "part", "closed", "dead", "below", "cancelled"),
)
"""Its tasks, each named by where it is then."""
SECOND: Final = ("cooling", "here", "second")
WORKERS: Final = {
    "w": {"slots": 50, "capabilities": ["o"], "heartbeat_s": 1, "check_s": 5, "misses_max": 1, "shutdown_s": 20},
    "v": {"capabilities": ["x"], "heartbeat_s": 1, "check_s": 5, "misses_max": 1, "shutdown_s": 20},
}


def first(*more: Any, **keys: Any) -> Plan:
    """A plan with a task in every state but those of an open circuit."""
    ours = {"capabilities": ["o"], "max_retries": 0}
    tasks = (
        task("gate", capabilities=["x"]),
        task("early", **ours),
        task("queued", capabilities=["x"], depends_on=["early"], max_retries=0),
        task("planned", approval="before", **ours),
        task("waiting", depends_on=["working"], **ours),
        task("working", **{**ours, "max_retries": 1}),
        task("delayed", **ours),
        task("checked", acceptance=[{"command": ["x"]}], **ours),
        task("pending", approval="after", **ours),
        task("blocked", **ours),
        task("behind", **ours),
        task("parent", subtasks=[{"id": "part", "agent": "f", "prompt": "part", **ours}], **ours),
        task("closed", **ours),
        task("dead", **ours),
        task("below", depends_on=["dead"], **ours),
        task("cancelled", **ours),
    )
    lifecycle = {**FLAT, "base_retry_delay": 30}
    given = {"workers": WORKERS, "task_lifecycle": lifecycle, "retry_budget": {"least": 100}}
    return plan_of(*tasks, *more, **{**given, **keys})


def second(**keys: Any) -> Plan:
    """A plan with two tasks whose circuits are open: one waits in the queue, one in its slot."""
    circuit = {"max_error_repeats": 0, "cooldown_period": 4}
    lifecycle = {**FLAT, "max_attempts": 2, "circuit_breaker": circuit}
    tasks = (task("cooling", max_retries=0), task("here", max_retries=0), task("second"))
    return plan_of(*tasks, **{"task_lifecycle": lifecycle, "retry_budget": {"least": 100}, **keys})


def staged(desk: Desk, **more: Any) -> Office:
    """An office where each task takes what it has to for being there then."""
    fails, takes = Try(8.0, "it broke"), {"gate": 40.0, "early": 2.0, "working": 30.0, "checked": 8.0, "part": 20.0}
    tries = {
        **{name: [Try(found)] for name, found in takes.items()},
        "delayed": [fails, Try(5.0)],
        "blocked": [Try(60.0), Try(5.0)],
        "behind": [Try(60.0), Try(5.0)],
        "cancelled": [Try(60.0)],
        "dead": [Try(5.0, BROKEN)],
        "cooling": [fails, Try(5.0)],
        "here": [Try(1.0, "one"), Try(3.0, "two"), Try(5.0)],
        "second": [Try(30.0)],
    }
    office = Office(desk, tries, **more)
    office.check_s = 10.0
    return office


STAGE: Final = (
    Hand(5.0, "block", "blocked", (("a person",),)),
    Hand(5.0, "block", "behind", (("working",),)),
    Hand(5.0, "cancel", "cancelled"),
)
LATE: Final = (
    Hand(60.0, "approve", "planned"),
    Hand(61.0, "approve", "pending"),
    Hand(62.0, "unblock", "blocked"),
)
"""What lets everybody go on who still waits for a person."""

KINDS: Final = "task run job workstream"
BASE: Final = """
workstream:plan 0: Born tasks=17 > all_tasks_created count=17 > first_task_started / 67: settled_with_failures
    completed=14 failed=1 cancelled=2
task:gate 0: Born max_retries=3 > claimed by=gate > started / 40: completed > closed
run:gate 0: Born max_attempts=5 > executor_started / 40: execution_completed > tests_passed
job:gate 0: Born max_retries=4 capabilities=x > scheduler_assigned > worker_started worker_id=worker:v / 40:
    execution_completed > validation_passed
task:early 0: Born max_retries=0 > claimed by=early > started / 2: completed > closed
run:early 0: Born max_attempts=5 > executor_started / 2: execution_completed > tests_passed
job:early 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 2:
    execution_completed > validation_passed
task:queued 0: Born max_retries=0 / 40: claimed by=queued > started / 45: completed > closed
run:queued 0: Born max_attempts=5 / 40: executor_started / 45: execution_completed > tests_passed
job:queued 0: Born max_retries=4 capabilities=x / 2: scheduler_assigned depends_on=job:early / 40:
    worker_started worker_id=worker:v / 45: execution_completed > validation_passed
task:planned 0: Born max_retries=0 / 60: approved > claimed by=planned > started / 65: completed > closed
run:planned 0: Born max_attempts=5 / 60: executor_started / 65: execution_completed > tests_passed
job:planned 0: Born max_retries=4 capabilities=o / 60: scheduler_assigned > worker_started worker_id=worker:w
    / 65: execution_completed > validation_passed
task:waiting 0: Born max_retries=0 / 30: claimed by=waiting > started / 35: completed > closed
run:waiting 0: Born max_attempts=5 / 30: executor_started / 35: execution_completed > tests_passed
job:waiting 0: Born max_retries=4 capabilities=o / 30: scheduler_assigned depends_on=job:working >
    worker_started worker_id=worker:w / 35: execution_completed > validation_passed
task:working 0: Born max_retries=1 > claimed by=working > started / 30: completed > closed
run:working 0: Born max_attempts=5 > executor_started / 30: execution_completed > tests_passed
job:working 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w /
    30: execution_completed > validation_passed
task:delayed 0: Born max_retries=0 > claimed by=delayed > started / 43: completed > closed
run:delayed 0: Born max_attempts=5 > executor_started / 8: execution_failed error=RuntimeError: it broke
    category=unknown charged=True > retry_decided / 38: backoff_completed / 43: execution_completed >
    tests_passed
job:delayed 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 8:
    execution_failed error=RuntimeError: it broke / 38: retry_delay_elapsed > worker_started
    worker_id=worker:w / 43: execution_completed > validation_passed
task:checked 0: Born max_retries=0 > claimed by=checked > started / 18: completed > closed
run:checked 0: Born max_attempts=5 > executor_started / 8: execution_completed / 18: tests_passed
job:checked 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 8:
    execution_completed / 18: validation_passed
task:pending 0: Born max_retries=0 > claimed by=pending > started / 5: completed > approval_requested / 61:
    approval_granted by=me
run:pending 0: Born max_attempts=5 > executor_started / 5: execution_completed > tests_passed
job:pending 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 5:
    execution_completed > validation_passed
task:blocked 0: Born max_retries=0 > claimed by=blocked > started / 5: blocked on=a person / 62: unblocked >
    claimed by=blocked-2 > started / 67: completed > closed
run:blocked 0: Born max_attempts=5 > executor_started / 5: execution_failed error=blocked by me: so
    category=unknown > retry_decided / 62: backoff_completed / 67: execution_completed > tests_passed
job:blocked 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 5:
    worker_lost / 62: retry_delay_elapsed > worker_started worker_id=worker:w / 67: execution_completed >
    validation_passed
task:behind 0: Born max_retries=0 > claimed by=behind > started / 5: blocked on=task:working / 30: unblocked >
    claimed by=behind-2 > started / 35: completed > closed
run:behind 0: Born max_attempts=5 > executor_started / 5: execution_failed error=blocked by me: so
    category=unknown > retry_decided / 30: backoff_completed / 35: execution_completed > tests_passed
job:behind 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 5:
    worker_lost / 30: retry_delay_elapsed > worker_started worker_id=worker:w / 35: execution_completed >
    validation_passed
task:parent 0: Born max_retries=0 > split subtasks=task:part / 20: subtasks_completed > closed
run:parent 0: Born max_attempts=5 / 20: executor_started > execution_completed > tests_passed
job:parent 0: Born max_retries=4 capabilities=o / 20: scheduler_assigned depends_on=job:part > worker_started
    worker_id=worker:w > execution_completed > validation_passed
task:part 0: Born max_retries=0 > claimed by=part > started / 20: completed > closed
run:part 0: Born max_attempts=5 > executor_started / 20: execution_completed > tests_passed
job:part 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 20:
    execution_completed > validation_passed
task:closed 0: Born max_retries=0 > claimed by=closed > started / 5: completed > closed
run:closed 0: Born max_attempts=5 > executor_started / 5: execution_completed > tests_passed
job:closed 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 5:
    execution_completed > validation_passed
task:dead 0: Born max_retries=0 > claimed by=dead > started / 5: failed > DeadLettered attempts=1 claims=1
run:dead 0: Born max_attempts=5 > executor_started / 5: execution_failed error=RuntimeError: sh: x: command
    not found category=permanent charged=True > retry_decided
job:dead 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w / 5:
    execution_failed error=RuntimeError: sh: x: command not found final=True
task:below 0: Born max_retries=0 / 5: cancelled
run:below 0: Born max_attempts=5 / 5: skipped cause=dependency_failed dependency=dead
job:below 0: Born max_retries=4 capabilities=o / 5: user_cancelled
task:cancelled 0: Born max_retries=0 > claimed by=cancelled > started / 5: cancelled
run:cancelled 0: Born max_attempts=5 > executor_started / 5: cancelled
job:cancelled 0: Born max_retries=4 capabilities=o > scheduler_assigned > worker_started worker_id=worker:w /
    5: user_cancelled
"""
SECOND_BASE: Final = """
workstream:plan 0: Born tasks=3 > all_tasks_created count=3 > first_task_started / 30: all_tasks_completed
    completed=3 > validation_passed
task:cooling 0: Born max_retries=0 > claimed by=cooling > started / 17: completed > closed
run:cooling 0: Born max_attempts=2 > executor_started / 8: execution_failed error=RuntimeError: it broke
    category=unknown charged=True > retry_decided / 12: cooldown_expired > probe_started / 17:
    execution_completed > tests_passed
job:cooling 0: Born max_retries=1 > scheduler_assigned > worker_started worker_id=worker:local / 8:
    execution_failed error=RuntimeError: it broke / 12: retry_delay_elapsed > worker_started
    worker_id=worker:local / 17: execution_completed > validation_passed
task:here 0: Born max_retries=0 > claimed by=here > started / 17: completed > closed
run:here 0: Born max_attempts=2 > executor_started / 1: execution_failed error=RuntimeError: one
    category=unknown charged=True > retry_decided / 5: cooldown_expired > probe_started / 8: execution_failed
    error=RuntimeError: two category=unknown charged=True > retry_decided / 12: cooldown_expired >
    probe_started / 17: execution_completed > tests_passed
job:here 0: Born max_retries=1 > scheduler_assigned > worker_started worker_id=worker:local / 1:
    execution_failed error=RuntimeError: one / 5: retry_delay_elapsed > worker_started worker_id=worker:local
    / 17: execution_completed > validation_passed
task:second 0: Born max_retries=3 > claimed by=second > started / 30: completed > closed
run:second 0: Born max_attempts=2 > executor_started / 30: execution_completed > tests_passed
job:second 0: Born max_retries=1 > scheduler_assigned > worker_started worker_id=worker:local / 30:
    execution_completed > validation_passed
"""
WHOM: Final = [name for name in FIRST if name not in ("gate", "early", "part")]
"""Who is given commands."""
ENDABLE: Final = ("behind", "blocked", "delayed", "parent", "pending", "queued", "working")
"""Who can be cancelled, beside `waiting`, which goes with `working`."""
RACED: Final = ("gate", "queued", "gate-2", "queued-2")
"""Both want one slot: who has it first where both come at once is nobody's business."""
AFTER_ALL: Final = {"prompt": "x", "agent": "f", "capabilities": ["o"], "max_retries": 0}


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


# ---------------------------------------------------------------------------------------- what befalls the whole
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
        task:queued 0: Born max_retries=0 / 40: cancelled
        run:queued 0: Born max_attempts=5 / 40: cancelled
        job:queued 0: Born max_retries=4 capabilities=x / 2: scheduler_assigned depends_on=job:early / 40:
            worker_started worker_id=worker:v > user_cancelled
        task:planned 0: Born max_retries=0 / 10: rejected
        run:planned 0: Born max_attempts=5 / 10: cancelled
        job:planned 0: Born max_retries=4 capabilities=o / 10: user_cancelled
        task:waiting 0: Born max_retries=0 / 30: cancelled
        run:waiting 0: Born max_attempts=5 / 30: cancelled
        job:waiting 0: Born max_retries=4 capabilities=o / 30: scheduler_assigned depends_on=job:working >
            worker_started worker_id=worker:w > user_cancelled
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


async def _inherited(desk: Desk, **recovery: str) -> Office:
    """The first supervisor is killed; the next one has that policy."""
    office = staged(desk)
    await office.run(first(), *STAGE, copy_after_s=AT_S, give_up_after_s=AT_S + 1.0)
    heir = staged(desk, store=office.copies[0])
    heir.last_seq = office.copies[0].last_seq
    for name in ("delayed", "blocked", "behind"):
        heir.tries[name] = [Try(5.0)]
    await heir.run(first(recovery=recovery), *LATE)
    return heir


async def taken_over(desk: Desk) -> None:
    """The supervisor is killed: what is settled stays so, and everything else goes on with the next one."""
    heir = await _inherited(desk)
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
    heir = await _inherited(desk, orphans="failed")
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
    heir = await _inherited(desk, orphans="done")
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
    heir = await _inherited(desk, sessions="stop")
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


STATES = (
    nothing,
    approved,
    rejected,
    reset,
    requeued,
    unclaimed,
    cancelled,
    divided,
    stuck,
    unstuck,
    circuits,
    critical,
    stopped,
    given_up,
    lost,
    taken_over,
    orphans_fail,
    orphans_are_done,
    begun_anew,
)
