"""A stage for drills: a plan that has a task in every state at once, and what becomes of each if nothing befalls them.

Ten seconds after it began the plan has a task in each state that lasts. What is given, stopped, killed or lost then is
held to docs/work.md, docs/plans.md and the tables of spec 000, 002 and 004.
"""

from __future__ import annotations

from typing import Any, Final

from supervisor.plans import Plan
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.work.office import FLAT, Hand, Office, Try, plan_of, task

__all__ = [
    "AFTER_ALL",
    "AT_S",
    "BASE",
    "BROKEN",
    "ENDABLE",
    "FIRST",
    "KINDS",
    "LATE",
    "RACED",
    "SECOND",
    "SECOND_BASE",
    "STAGE",
    "WHOM",
    "first",
    "inherited",
    "second",
    "staged",
]

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


async def inherited(desk: Desk, **recovery: str) -> Office:
    """The first supervisor is killed; the next one has that policy."""
    office = staged(desk)
    await office.run(first(), *STAGE, copy_after_s=AT_S, give_up_after_s=AT_S + 1.0)
    heir = staged(desk, store=office.copies[0])
    heir.last_seq = office.copies[0].last_seq
    for name in ("delayed", "blocked", "behind"):
        heir.tries[name] = [Try(5.0)]
    await heir.run(first(recovery=recovery), *LATE)
    return heir
