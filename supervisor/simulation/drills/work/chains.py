"""Chains: what each record of work follows from, who says it, and why, in the words that a user reads.

Held to docs/design.md ("Every record names the one that caused it, or who said so"): a task's log is a chain from its
plan to its end, whatever befalls it. Here stands of every kind of record what it may follow from, and nothing else.
"""

from __future__ import annotations

from typing import Final

from supervisor.lifecycles.types import LifecycleEvent, Severity
from supervisor.plans import TaskConfig
from supervisor.ports import Merge
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.work.office import FLAT, OF_WORK, RESULT_FACTS, Hand, Office, Try, plan_of, task
from supervisor.simulation.drills.work.stage import (
    AFTER_ALL,
    AT_S,
    BROKEN,
    LATE,
    STAGE,
    first,
    inherited,
    second,
    staged,
)

__all__ = ["CHAINS"]

OF_TASKS: Final = ("task", "run", "job")

NOTHING: Final = """
job Born < task Born
job execution_completed < run execution_completed
job execution_failed < run retry_decided
job retry_delay_elapsed < job execution_failed, task unblocked
job scheduler_assigned < task Born, task approved, task split
job user_cancelled < run cancelled: cancelled by me: so
job user_cancelled < run skipped: it depends on dead, which did not complete
job validation_passed < run tests_passed
job worker_lost < run retry_decided
job worker_started < job retry_delay_elapsed, job scheduler_assigned
run Born < task Born
run backoff_completed < job worker_started, task claimed
run cancelled < task cancelled: cancelled by me: so
run execution_completed < run executor_started, session TurnReaped
run execution_failed < session TurnReaped, task blocked
run executor_started < job worker_started, task claimed
run retry_decided < run execution_failed
run skipped < another task failed
run tests_passed < job execution_completed
session Born < job worker_started
session OperatorStop < task Commanded: blocked by me: so
session OperatorStop < task approval_requested, task completed, task failed: its task is settled
session TurnRequested < run backoff_completed, run executor_started
task Born < workstream Born
task Commanded < nothing (me): so
task DeadLettered < task failed: RuntimeError: sh: x: command not found
task approval_granted < task Commanded: nothing to merge:
task approval_requested < task completed: the plan wants it approved
task approved < task Commanded: approved by me: so
task blocked < task Commanded: blocked by me: so
task cancelled < job user_cancelled: it depends on dead, which did not complete
task cancelled < session Ended: cancelled by me: so
task claimed < job worker_started: agent f
task closed < task completed: nothing to merge:
task closed < task subtasks_completed: nothing to merge: its subtasks did the work
task completed < job validation_passed: the turn was verified
task failed < job execution_failed: RuntimeError: sh: x: command not found
task split < task Born: as the plan says
task started < session SessionStarted: its agent is ready
task subtasks_completed < job validation_passed: its subtasks are closed
task unblocked < job worker_lost: working: closed
task unblocked < task Commanded: unblocked by me: so
worker Born < workstream Born
worker registration_complete < worker Born
worker shutdown_requested < worker task_completed: nothing is left to do
worker task_assigned < job retry_delay_elapsed, job scheduler_assigned
worker task_completed < job execution_failed, job user_cancelled, job worker_lost, task approval_requested, task
    closed, task failed
workstream Born < nothing
workstream all_tasks_created < workstream Born
workstream first_task_started < job worker_started
workstream settled_with_failures < workstream first_task_started
"""
"""What records follow from where each task goes its way: so they may wherever a plan is at work. Below, what else."""
CIRCUITS: Final = """
job retry_delay_elapsed < run cooldown_expired
run cooldown_expired < job execution_failed, run retry_decided
run probe_started < job worker_started, run cooldown_expired
session TurnRequested < run probe_started
workstream all_tasks_completed < workstream first_task_started
workstream validation_passed < workstream all_tasks_completed
"""
GIVEN_UP: Final = """
job user_cancelled < job execution_failed, job scheduler_assigned, job worker_lost, run executor_started, task
    Born, task split: the plan was given up
run cancelled < job execution_failed, job scheduler_assigned, job worker_lost, run executor_started, task Born,
    task split: the plan was given up
task cancelled < job execution_failed, job scheduler_assigned, job worker_lost, run executor_started, task Born,
    task approval_requested, task split: the plan was given up
task rejected < task Born: the plan was given up
worker shutdown_requested < worker task_assigned: nothing is left to do
worker task_completed < worker task_assigned, worker task_completed
workstream user_cancelled < workstream first_task_started: the plan was given up
"""
STOPPED: Final = """
job user_cancelled < run cancelled, run circuit_opened: the supervisor is ending
run cancelled < task cancelled, task rejected: the supervisor is ending
run circuit_opened < job execution_failed: the supervisor is ending
task DeadLettered < task failed: RuntimeError: it broke (no further try: the supervisor is ending)
task cancelled < job scheduler_assigned, job worker_lost, task Born, task approval_requested: the supervisor is ending
task failed < job user_cancelled: RuntimeError: it broke (no further try: the supervisor is ending)
task rejected < task Born: the supervisor is ending
"""
CRITICAL: Final = """
job user_cancelled < run cancelled: the critical task crit failed
run cancelled < task cancelled, task rejected: the critical task crit failed
task cancelled < job execution_failed, job scheduler_assigned, job worker_lost, session Ended, task Born, task
    approval_requested, task split: the critical task crit failed
task rejected < task Born: the critical task crit failed
workstream critical_task_failed < task failed
"""
COMMANDED: Final = """
job Born < run manual_reset
job retry_delay_elapsed < job worker_lost
job scheduler_assigned < run manual_reset
job user_cancelled < run cancelled: parent is aborted
job user_cancelled < run cancelled: rejected by me: so
job worker_started < task split
run cancelled < task cancelled: parent is aborted
run cancelled < task rejected: rejected by me: so
run execution_failed < task requeued
run manual_reset < task reopened
session OperatorStop < task Commanded: taken away by me: so
task Born < workstream first_task_started
task CommandRefused < task Commanded (me): task 'checked' is done, and its work is being checked; wait for that, or
    cancel it
task CommandRefused < task Commanded (me): task: approved in IN_PROGRESS; allowed here: completed, failed, blocked,
    split, requeued, cancelled, orphaned
task DeadLettered < task approval_denied: denied by me: so
task approval_denied < task Commanded: so
task refused:approved < task Commanded [warning]: task: approved in IN_PROGRESS; allowed here: completed, failed,
    blocked, split, requeued, cancelled, orphaned
task cancelled < session Ended: parent is aborted
task cancelled < task Commanded: cancelled by me: so
task rejected < task Commanded: rejected by me: so
task reopened < task Commanded: reset by me: so
task requeued < task Commanded: taken away by me: so
task split < task Commanded: split by me: so
worker task_assigned < task split
workstream settled_with_failures < workstream tasks_added
workstream tasks_added < workstream first_task_started
"""
TRIED: Final = """
job Born < task retried
job scheduler_assigned < task retried
job validation_failed < run retry_decided
run Born < task retried
run PartialOutput < run tests_failed: what was said until FAILED
run checkpoint_saved < job execution_completed, run execution_failed, run execution_timed_out, run tests_failed
run execution_timed_out < session TurnReaped
run retry_decided < run checkpoint_saved
run skipped < task Born
run tests_failed < job execution_completed
run tests_passed < run checkpoint_saved
session OperatorStop < task verification_rejected: its task is settled
task cancelled < run skipped: its condition is not met: odd is completed, not failed
task claimed < job worker_started: agent g
task closed < task completed: merged into main as 0123456789ab
task failed < job validation_failed: not accepted: command x: exited with 1
task retried < task failed, task verification_rejected: try 2
task retried < task failed: try 3
task retried < task failed: try 4
task verification_rejected < task completed: not merged: a conflict
worker task_completed < task verification_rejected
workstream all_tasks_completed < workstream first_task_started
workstream validation_passed < workstream all_tasks_completed
"""
HEIR: Final = """
job retry_delay_elapsed < job worker_lost, nothing
job scheduler_assigned < nothing
job user_cancelled < run cancelled: its subtask part did not complete
job user_cancelled < run cancelled: the supervisor of its session ended
job worker_started < nothing
run cancelled < task cancelled: its subtask part did not complete
run cancelled < task recovery_failed: the supervisor of its session ended
run execution_failed < task requeued
run tests_passed < nothing
task DeadLettered < job user_cancelled: the supervisor of its session ended
task DeadLettered < nothing: RuntimeError: sh: x: command not found
task cancelled < task subtask_failed: its subtask part did not complete
task orphaned < nothing: the supervisor of its session ended
task recovery_failed < task orphaned: the supervisor of its session ended
task requeued < task orphaned: the supervisor of its session ended
task subtask_failed < nothing: the supervisor of its session ended
task unblocked < nothing: working: closed
worker Born < nothing
worker health_check_timeout < worker Born
worker shutdown_requested < worker Born: its supervisor ended without closing it
worker task_assigned < nothing
workstream settled_with_failures < nothing
"""
ORPHANS_FAIL: Final = """
job retry_delay_elapsed < nothing
job user_cancelled < run cancelled: it was blocked on working, which did not complete
job user_cancelled < run cancelled: its subtask part did not complete
job user_cancelled < run cancelled: the supervisor of its session ended
job user_cancelled < run skipped: it depends on working, which did not complete
job worker_started < nothing
run cancelled < task cancelled: it was blocked on working, which did not complete
run cancelled < task cancelled: its subtask part did not complete
run cancelled < task recovery_failed: the supervisor of its session ended
run skipped < another job user_cancelled
run tests_passed < nothing
task DeadLettered < job user_cancelled: the supervisor of its session ended
task DeadLettered < nothing: RuntimeError: sh: x: command not found
task cancelled < job user_cancelled: it depends on working, which did not complete
task cancelled < nothing: it was blocked on working, which did not complete
task cancelled < task subtask_failed: its subtask part did not complete
task orphaned < nothing: the supervisor of its session ended
task recovery_failed < task orphaned: the supervisor of its session ended
task subtask_failed < nothing: the supervisor of its session ended
worker Born < nothing
worker health_check_timeout < worker Born
worker shutdown_requested < worker Born: its supervisor ended without closing it
worker task_assigned < nothing
workstream settled_with_failures < nothing
"""
ORPHANS_DONE: Final = """
job retry_delay_elapsed < nothing
job scheduler_assigned < nothing
job worker_started < nothing
run execution_completed < task orphaned
run tests_passed < nothing
task DeadLettered < nothing: RuntimeError: sh: x: command not found
task closed < task recovered: nothing to merge:
task orphaned < nothing: the supervisor of its session ended
task recovered < job validation_passed: recovery.orphans is done
task unblocked < nothing: working: closed
worker Born < nothing
worker health_check_timeout < worker Born
worker shutdown_requested < worker Born: its supervisor ended without closing it
worker task_assigned < nothing
workstream settled_with_failures < nothing
"""
BEGUN_ANEW: Final = """
job user_cancelled < nothing (recovery): its supervisor ended without closing it
run cancelled < nothing (recovery): its supervisor ended without closing it
task CommandRefused < task Commanded (me): task: unblocked in CLOSED; allowed here: nothing
task cancelled < nothing (recovery): its supervisor ended without closing it
task orphaned < nothing (recovery): its supervisor ended without closing it
task recovery_failed < task orphaned (recovery): its supervisor ended without closing it
task rejected < nothing (recovery): its supervisor ended without closing it
worker health_check_timeout < nothing (recovery)
worker shutdown_requested < worker health_check_timeout (recovery): its supervisor ended without closing it
workstream user_cancelled < nothing (recovery): its supervisor ended without closing it
"""


def _ways(office: Office) -> set[str]:
    """``KIND WHAT < KIND WHAT (WHO): WHY`` of each record of work, and of what sessions do by one."""
    records = office.store.log.after(0, 1_000_000)
    by_seq = {one.seq: one for one in records}
    owners = {row.id: row.parent_id if row.kind in ("run", "job") else row.id for row in office.store.entities.values()}
    found = set[str]()
    for one in records:
        cause = by_seq.get(one.cause_id or 0)
        if (
            one.event in RESULT_FACTS
            or one.seq <= office.last_seq
            or not {one.entity_type, cause.entity_type if cause else ""} & {*OF_WORK}
        ):
            continue
        who = f" ({one.actor})" if one.actor not in ("plan", "pool") else ""
        who += f" [{one.severity}]" if one.severity != Severity.INFO else ""
        why = f": {one.reason.strip()}" if one.reason else ""
        what = one.event if one.outcome in ("born", "fact", "transition") else f"{one.outcome}:{one.event}"
        found.add(f"{one.entity_type} {what} < {_whence(one, cause, owners)}{who}{why}")
    return found


def _whence(one: LifecycleEvent, cause: LifecycleEvent | None, owners: dict[str, str | None]) -> str:
    if cause is None:
        return "nothing"
    both = one.entity_type in OF_TASKS and cause.entity_type in OF_TASKS
    other = "another " if both and owners[one.entity_id] != owners[cause.entity_id] else ""
    return f"{other}{cause.entity_type} {cause.event}"


def _foretold(table: str) -> set[str]:
    """``WHAT < WHENCE, WHENCE: WHY``, over more than one line where the next ones are indented."""
    found = set[str]()
    for line in table.strip().replace("\n   ", "").splitlines():
        what, _, rest = line.partition(" < ")
        whences, _, why = rest.partition(": ")
        found |= {f"{what} < {one}: {why}" if why else f"{what} < {one}" for one in whences.split(", ")}
    return found


def _holds(desk: Desk, office: Office, table: str, *, ordinary: str = NOTHING, perhaps: str = "") -> None:
    """Nothing is found but what stands there, or is ordinary, and all of the former. *perhaps*: what need not be."""
    found, wanted = _ways(office), _foretold(table)
    desk.same("what should not follow", sorted(found - wanted - _foretold(ordinary)), [])
    desk.same("what should follow", sorted(wanted - found - _foretold(perhaps)), [])


# ------------------------------------------------------------------------------------------------- what befalls them
async def _nothing(desk: Desk) -> Office:
    office = staged(desk)
    await office.run(first(), *STAGE, *LATE)
    return office


async def _circuits(desk: Desk) -> Office:
    office = staged(desk)
    await office.run(second())
    return office


async def _given_up(desk: Desk) -> Office:
    office = staged(desk)
    await office.run(first(), *STAGE, give_up_after_s=AT_S)
    return office


async def _stopped(desk: Desk) -> Office:
    office = staged(desk)
    await office.run(first(), *STAGE, stop_after_s=AT_S)
    return office


async def _critical(desk: Desk) -> Office:
    office = staged(desk)
    office.tries["crit"] = [Try(AT_S, BROKEN)]
    await office.run(first(task("crit", critical=True, max_retries=0, capabilities=["o"])), *STAGE, *LATE)
    return office


async def _commanded(desk: Desk) -> Office:
    office = staged(desk)
    part = TaskConfig.model_validate({"id": "s", **AFTER_ALL})
    hands = (
        Hand(AT_S, "requeue", "working"),
        Hand(AT_S, "split", "queued", ((part,),)),
        Hand(AT_S, "reject", "planned"),
        Hand(AT_S, "reject", "pending"),
        Hand(AT_S, "reset", "dead"),
        Hand(AT_S, "cancel", "parent"),
        Hand(AT_S - 1.0, "approve", "gate"),
        Hand(AT_S, "cancel", "delayed"),
        Hand(AT_S, "requeue", "checked"),
        Hand(AT_S, "unblock", "blocked"),
    )
    await office.run(first(), *STAGE, *hands)
    return office


async def _tried(desk: Desk) -> Office:
    tries = {
        "timed": [Try(100.0), Try(3.0)],
        "tested": [Try(3.0, said="so far"), Try(3.0)],
        "late": [Try(2.0)],
        "asked": [Try(20.0)],
        "odd": [Try(1.0, "one"), Try(1.0)],
        "bad": [*[Try(0.5, BROKEN)] * 3, Try(0.5)],
    }
    office = Office(desk, tries)
    office.checks = [1]
    office.rooms.merges = [Merge(outcome="nothing")] * 3 + [
        Merge(outcome="refused", why="a conflict"),
        Merge(outcome="merged", commit="0123456789abcdef", target="main"),
    ]
    tasks = (
        task("timed", timeout_s=10, max_retries=0),
        task("tested", acceptance=[{"command": ["x"]}], max_retries=1, fallback_agents=("g",)),
        task("late", depends_on=["timed"], max_retries=1),
        task("odd", max_retries=0),
        task("bad"),
        task("asked", approval="after", depends_on=["late"], max_retries=0),
        task("not", when={"task": "odd", "is": "failed"}),
        task("may", optional=True, depends_on=["odd"]),
    )
    lifecycle = {**FLAT, "checkpoint": {"save_on_states": ["FAILED", "TIMEOUT", "COMPLETED"]}}
    await office.run(plan_of(*tasks, task_lifecycle=lifecycle), Hand(60.0, "approve", "asked"))
    return office


# ------------------------------------------------------------------------------------------------------- the drills
async def chains(desk: Desk) -> None:
    """Each record of a plan follows from the one before, or from who said so, and says why."""
    _holds(desk, await _nothing(desk), NOTHING, ordinary="")
    _holds(desk, await _circuits(desk), CIRCUITS)
    _holds(desk, await _tried(desk), TRIED)


async def cut_chains(desk: Desk) -> None:
    """So does what comes to its end before its time."""
    _holds(desk, await _given_up(desk), GIVEN_UP)
    _holds(desk, await _stopped(desk), STOPPED)
    # whether `queued` has the slot of `gate` first, which is cancelled too, is nobody's business
    perhaps = "task cancelled < job scheduler_assigned: the critical task crit failed"
    _holds(desk, await _critical(desk), CRITICAL, perhaps=perhaps)


async def pulled_chains(desk: Desk) -> None:
    """What a command does follows from its record."""
    _holds(desk, await _commanded(desk), COMMANDED)


async def chains_of_heirs(desk: Desk) -> None:
    """What an heir says first of each of them follows from nothing that is there, and the rest from that."""
    _holds(desk, await inherited(desk), HEIR)
    _holds(desk, await inherited(desk, orphans="failed"), ORPHANS_FAIL)
    _holds(desk, await inherited(desk, orphans="done"), ORPHANS_DONE)
    _holds(desk, await inherited(desk, sessions="stop"), BEGUN_ANEW)


async def relations(desk: Desk) -> None:
    """Each record that begins a log says what it is of, and what for; and no two claims have the same token."""
    office = Office(desk, {"a": [Try(3.0, "one", said="so far"), Try(3.0, BROKEN), Try(3.0)]})
    tasks = (
        task("a", critical=True, rollback=True, files=["a"]),
        task("b", capabilities=["y", "x"], subtasks=[{"id": "c", "agent": "f", "prompt": "c", "depends_on": ["a"]}]),
    )
    result = await office.run(plan_of(*tasks, workers={"w": {"slots": 2, "capabilities": ["x", "y"]}}))
    desk.same("outcomes", office.outcomes(result), dict.fromkeys("abc", "completed"))
    born = {one.entity_id: one.metadata for one in office.records() if one.event == "Born"}
    parents = {row.id: row.parent_id for row in office.store.entities.values()}
    for name, part_of, waits, needs in (("a", "", [], []), ("b", "", [], ["x", "y"]), ("c", "task:b", ["a"], [])):
        told = born[f"task:{name}"]
        given = [told[one] for one in ("name", "workstream", "part_of", "waiting_for")]
        desk.same(f"the task {name}", given, [name, "workstream:plan", part_of, waits])
        for suffix in ("", "-2") if name == "a" else ("",):
            run, job = f"run:{name}{suffix}", f"job:{name}{suffix}"
            desk.same(f"whose run {run} is", (born[run]["task"], parents[run]), (f"task:{name}",) * 2)
            given = [born[job][one] for one in ("run", "task", "workstream_id", "critical", "capabilities")]
            desk.same(f"the job {job}", given, [run, f"task:{name}", "workstream:plan", name == "a", needs])
            desk.same(f"whose job {job} is", parents[job], f"task:{name}")
    facts = [one for one in office.records() if one.event in ("PartialOutput", "RolledBack")]
    desk.same("whose facts", {one.entity_id for one in facts}, {"run:a"})
    said = [one.metadata for one in facts]
    desk.same("what it had said", said[0], {"state": "FAILED", "output": "so far"})
    desk.same("what is taken back", [one for one in said[1:] if one != {"session": "a", "saved_as": "before"}], [])
    desk.same("its worker is for", born["worker:w"]["workstream"], "workstream:plan")
    tokens = [one.metadata["token"] for one in office.records() if one.event == "worker_started"]
    desk.same("tokens", sorted(tokens), list(range(1, 6)))


CHAINS = (relations, chains, cut_chains, pulled_chains, chains_of_heirs)
