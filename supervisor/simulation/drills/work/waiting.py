"""Waiting: who waits in vain, what costs nobody a try, agents that are silent, and budgets that many share.

Held to docs/work.md, docs/plans.md ("Budgets, circles, signs of life") and `supervisor.work.blocking`.
"""

from __future__ import annotations

from typing import Any, Final

import anyio

from supervisor.agents.protocols.inprocess import AgentTurn
from supervisor.embedding.runtime import Supervisor
from supervisor.lifecycles.types import AbortScope, ModelProblem
from supervisor.plans.agents import AgentConfig
from supervisor.ports import JournalUnavailable, ModelTrouble, Ready, TurnEnded, Usage
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.work.kills import office_of
from supervisor.simulation.drills.work.office import FLAT, Hand, Office, Try, plan_of, task
from supervisor.work.plan_runner import PlanRunner
from supervisor.work.workers import Pool

__all__ = ["WAITING"]

BROKEN: Final = "sh: x: command not found"
ONCE: Final = {"max_retries": 0}
KINDS: Final = "task run job workstream"


async def dead_ends(desk: Desk) -> None:
    """Who waits for what will never be is cancelled, when nothing else can go on; who waits for a person is kept."""
    office = Office(
        desk, {name: [Try(50.0), Try(2.0)] for name in "abce"} | {"bad": [Try(20.0, BROKEN)], "long": [Try(30.0)]}
    )
    plan = plan_of(
        task("a", **ONCE),
        task("b", **ONCE),
        task("c", **ONCE),
        task("e", **ONCE),
        task("bad", **ONCE),
        task("long", **ONCE),
        task("below", depends_on=["c"]),
        task("whole", subtasks=[{"id": "part", "agent": "f", "prompt": "part", "depends_on": ["c"]}]),
    )
    hands = (
        Hand(2.0, "block", "a", (("b",),)),
        Hand(3.0, "block", "b", (("a",),)),
        Hand(4.0, "block", "c", (("a person", "long"),)),
        Hand(5.0, "block", "e", (("bad",),)),
        Hand(6.0, "unblock", "long"),
        Hand(60.0, "unblock", "c"),
    )
    await office.run(plan, *hands)
    desk.same("who is not blocked", [name for _, name, _ in office.refused], ["long"])
    office.tells(
        """
        workstream:plan 0: Born tasks=9 > all_tasks_created count=9 > first_task_started / 67: settled_with_failures
            completed=5 failed=1 cancelled=3
        task:a 0: Born max_retries=0 > claimed by=a > started / 2: Commanded command=block > blocked on=task:b / 67:
            cancelled
        run:a 0: Born max_attempts=5 > executor_started / 2: execution_failed error=blocked by me: so category=unknown
            > retry_decided / 67: cancelled
        job:a 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 2: worker_lost /
            67: user_cancelled
        task:b 0: Born max_retries=0 > claimed by=b > started / 3: Commanded command=block > blocked on=task:a / 67:
            cancelled
        run:b 0: Born max_attempts=5 > executor_started / 3: execution_failed error=blocked by me: so category=unknown
            > retry_decided / 67: cancelled
        job:b 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 3: worker_lost /
            67: user_cancelled
        task:c 0: Born max_retries=0 > claimed by=c > started / 4: Commanded command=block > blocked on=a
            person,task:long / 30: WaitsForPerson on=a person,task:long / 60: Commanded command=unblock > unblocked >
            claimed by=c-2 > started / 62: completed > closed
        run:c 0: Born max_attempts=5 > executor_started / 4: execution_failed error=blocked by me: so category=unknown
            > retry_decided / 60: backoff_completed / 62: execution_completed > tests_passed
        job:c 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 4: worker_lost /
            60: retry_delay_elapsed > worker_started worker_id=worker:local / 62: execution_completed >
            validation_passed
        task:e 0: Born max_retries=0 > claimed by=e > started / 5: Commanded command=block > blocked on=task:bad / 30:
            cancelled
        run:e 0: Born max_attempts=5 > executor_started / 5: execution_failed error=blocked by me: so category=unknown
            > retry_decided / 30: cancelled
        job:e 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 5: worker_lost /
            30: user_cancelled
        task:bad 0: Born max_retries=0 > claimed by=bad > started / 20: failed > DeadLettered attempts=1 claims=1
        run:bad 0: Born max_attempts=5 > executor_started / 20: execution_failed error=RuntimeError: sh: x: command
            not found category=permanent charged=True > retry_decided
        job:bad 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 20:
            execution_failed error=RuntimeError: sh: x: command not found final=True
        task:long 0: Born max_retries=0 > claimed by=long > started / 6: Commanded command=unblock > CommandRefused
            command=unblock / 30: completed > closed
        run:long 0: Born max_attempts=5 > executor_started / 30: execution_completed > tests_passed
        job:long 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 30:
            execution_completed > validation_passed
        task:below 0: Born max_retries=3 / 62: claimed by=below > started / 67: completed > closed
        run:below 0: Born max_attempts=5 / 62: executor_started / 67: execution_completed > tests_passed
        job:below 0: Born max_retries=4 / 62: scheduler_assigned depends_on=job:c > worker_started
            worker_id=worker:local / 67: execution_completed > validation_passed
        task:whole 0: Born max_retries=3 > split subtasks=task:part / 67: subtasks_completed > closed
        run:whole 0: Born max_attempts=5 / 67: executor_started > execution_completed > tests_passed
        job:whole 0: Born max_retries=4 / 67: scheduler_assigned depends_on=job:part > worker_started
            worker_id=worker:local > execution_completed > validation_passed
        task:part 0: Born max_retries=3 / 62: claimed by=part > started / 67: completed > closed
        run:part 0: Born max_attempts=5 / 62: executor_started / 67: execution_completed > tests_passed
        job:part 0: Born max_retries=4 / 62: scheduler_assigned depends_on=job:c > worker_started
            worker_id=worker:local / 67: execution_completed > validation_passed
        """,
        whose=KINDS,
    )


async def circles(desk: Desk) -> None:
    """Where tasks are blocked on each other alone nobody can go on: they are cancelled; nor can one wait for itself."""
    office = Office(desk, {name: [Try(50.0), Try(2.0)] for name in "abc"})
    plan = plan_of(task("a"), task("b"), task("c", depends_on=["a"]))
    hands = (
        Hand(2.0, "block", "a", (("a",),)),
        Hand(2.5, "block", "a", (("c",),)),
        Hand(3.0, "block", "a", (("task:b", "b"),)),
        Hand(4.0, "block", "b", (("a",),)),
    )
    await office.run(plan, *hands)
    desk.same("who is not blocked", [name for _, name, _ in office.refused], ["a", "a"])
    office.tells(
        """
        workstream:plan 0: Born tasks=3 > all_tasks_created count=3 > first_task_started / 4:
            settled_with_cancellations completed=0 cancelled=3
        task:a 0: Born max_retries=3 > claimed by=a > started / 2: Commanded command=block > CommandRefused
            command=block / 2.5: Commanded command=block > CommandRefused command=block / 3: Commanded command=block >
            blocked on=task:b,task:b / 4: cancelled
        run:a 0: Born max_attempts=5 > executor_started / 3: execution_failed error=blocked by me: so category=unknown
            > retry_decided / 4: cancelled
        job:a 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 3: worker_lost / 4:
            user_cancelled
        task:b 0: Born max_retries=3 > claimed by=b > started / 4: Commanded command=block > blocked on=task:a >
            cancelled
        run:b 0: Born max_attempts=5 > executor_started / 4: execution_failed error=blocked by me: so category=unknown
            > retry_decided > cancelled
        job:b 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 4: worker_lost >
            user_cancelled
        task:c 0: Born max_retries=3 / 4: cancelled
        run:c 0: Born max_attempts=5 / 4: skipped cause=dependency_failed dependency=a
        job:c 0: Born max_retries=4 / 4: user_cancelled
        """,
        whose=KINDS,
    )


async def at_once(desk: Desk) -> None:
    """Who is blocked on what is there already goes on at once; on two, when both are."""
    office = Office(desk, {"a": [Try(50.0), Try(2.0)], "b": [Try(2.0)], "c": [Try(9.0)], "d": [Try(50.0), Try(2.0)]})
    plan = plan_of(task("a"), task("b"), task("c"), task("d"))
    await office.run(plan, Hand(4.0, "block", "a", (("b",),)), Hand(5.0, "block", "d", (("b", "c"),)))
    desk.same("what was said", office.answers_to, [("block", "a", "BLOCKED", False), ("block", "d", "BLOCKED", False)])
    office.tells(
        """
        workstream:plan 0: Born tasks=4 > all_tasks_created count=4 > first_task_started / 11: all_tasks_completed
            completed=4 > validation_passed
        task:a 0: Born max_retries=3 > claimed by=a > started / 4: Commanded command=block > blocked on=task:b >
            unblocked > claimed by=a-2 > started / 6: completed > closed
        run:a 0: Born max_attempts=5 > executor_started / 4: execution_failed error=blocked by me: so category=unknown
            > retry_decided > backoff_completed / 6: execution_completed > tests_passed
        job:a 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 4: worker_lost >
            retry_delay_elapsed > worker_started worker_id=worker:local / 6: execution_completed > validation_passed
        task:b 0: Born max_retries=3 > claimed by=b > started / 2: completed > closed
        run:b 0: Born max_attempts=5 > executor_started / 2: execution_completed > tests_passed
        job:b 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 2:
            execution_completed > validation_passed
        task:c 0: Born max_retries=3 > claimed by=c > started / 9: completed > closed
        run:c 0: Born max_attempts=5 > executor_started / 9: execution_completed > tests_passed
        job:c 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 9:
            execution_completed > validation_passed
        task:d 0: Born max_retries=3 > claimed by=d > started / 5: Commanded command=block > blocked on=task:b,task:c
            / 9: unblocked > claimed by=d-2 > started / 11: completed > closed
        run:d 0: Born max_attempts=5 > executor_started / 5: execution_failed error=blocked by me: so category=unknown
            > retry_decided / 9: backoff_completed / 11: execution_completed > tests_passed
        job:d 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 5: worker_lost / 9:
            retry_delay_elapsed > worker_started worker_id=worker:local / 11: execution_completed > validation_passed
        """,
        whose=KINDS,
    )


async def uncharged(desk: Desk) -> None:
    """What is taken away costs no try: not of the whole, nor of the task; a lost worker is nobody's fault."""
    office = Office(desk, {"a": [Try(9.0)], "b": [Try(9.0), Try(2.0)], "c": [Try(30.0), Try(3.0)]})

    async def heart(pool: Pool, worker_id: str, heartbeat_s: float) -> None:
        beats = 0
        while pool.beat(worker_id):
            beats += 1
            await pool.pause(9.5 if beats == 6 and worker_id == "worker:v" else heartbeat_s)

    quick = {"heartbeat_s": 1, "check_s": 5, "misses_max": 1}
    plan = plan_of(
        task("a", capabilities=["x"], **ONCE),
        task("b", capabilities=["x"], **ONCE),
        task("c", capabilities=["y"], **ONCE),
        retry_budget={"share": 0, "least": 0},
        task_lifecycle={**FLAT, "max_attempts": 1},
        workers={"w": {"slots": 2, "capabilities": ["x"], **quick}, "v": {"capabilities": ["y"], **quick}},
    )
    result = await office.run(
        plan, Hand(3.0, "requeue", "a"), Hand(4.0, "block", "b", (("x",),)), Hand(6.0, "unblock", "b"), heart=heart
    )
    desk.same("outcomes", office.outcomes(result), dict.fromkeys("abc", "completed"))
    office.tells(
        """
        task:a 0: Born max_retries=0 > claimed by=a > started / 3: Commanded command=requeue > requeued > claimed
            by=a-2 > started / 12: completed > closed
        run:a 0: Born max_attempts=1 > executor_started / 3: execution_failed error=taken away by me: so
            category=unknown > retry_decided > backoff_completed / 12: execution_completed > tests_passed
        job:a 0: Born max_retries=0 capabilities=x > scheduler_assigned > worker_started worker_id=worker:w / 3:
            worker_lost > retry_delay_elapsed > worker_started worker_id=worker:w / 12: execution_completed >
            validation_passed
        task:b 0: Born max_retries=0 > claimed by=b > started / 4: Commanded command=block > blocked on=x / 6:
            Commanded command=unblock > unblocked > claimed by=b-2 > started / 8: completed > closed
        run:b 0: Born max_attempts=1 > executor_started / 4: execution_failed error=blocked by me: so category=unknown
            > retry_decided / 6: backoff_completed / 8: execution_completed > tests_passed
        job:b 0: Born max_retries=0 capabilities=x > scheduler_assigned > worker_started worker_id=worker:w / 4:
            worker_lost / 6: retry_delay_elapsed > worker_started worker_id=worker:w / 8: execution_completed >
            validation_passed
        task:c 0: Born max_retries=0 > claimed by=c > started / 10: orphaned > requeued / 14.5: claimed by=c-2 >
            started / 17.5: completed > closed
        run:c 0: Born max_attempts=1 > executor_started / 10: execution_failed error=its worker was lost
            category=unknown > retry_decided / 14.5: backoff_completed / 17.5: execution_completed > tests_passed
        job:c 0: Born max_retries=0 capabilities=y > scheduler_assigned > worker_started worker_id=worker:v / 10:
            worker_lost > retry_delay_elapsed / 14.5: worker_started worker_id=worker:v / 17.5: execution_completed >
            validation_passed
        """,
        whose="task run job",
    )


async def silent_agents(desk: Desk) -> None:
    """An agent that is not heard of is ended: that is too long, and is tried again; a session that somebody ends is
    what nobody wants any more."""
    office = Office(
        desk, {"a": [Try(100.0), Try(5.0)], "b": [Try(100.0)], "c": [Try(1e3), Try(1e3), Try(1e3), Try(5.0)]}
    )

    async def ends(sup: Supervisor, runner: PlanRunner) -> None:
        await anyio.sleep(3.0)
        await sup.abort("b", AbortScope.SESSION, reason="enough")

    plan = plan_of(task("a", **ONCE), task("b"), task("c", scope="large"), liveness={"snapshot_s": 4})
    result = await office.run(plan, beside=ends)
    wanted = {"a": "completed", "b": "aborted", "c": "completed"}
    desk.same("outcomes", office.outcomes(result), wanted)
    office.tells(
        """
        task:a 0: Born max_retries=0 > claimed by=a > started / 21: completed > closed
        run:a 0: Born max_attempts=5 > executor_started / 21: execution_completed > tests_passed
        job:a 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 21:
            execution_completed > validation_passed
        task:b 0: Born max_retries=3 > claimed by=b > started / 3: cancelled
        run:b 0: Born max_attempts=5 > executor_started / 3: cancelled
        job:b 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 3: user_cancelled
        task:c 0: Born max_retries=3 > claimed by=c > started / 54: requeued > claimed by=c-2 > started / 59:
            completed > closed
        run:c 0: Born max_attempts=5 > executor_started / 52: execution_timed_out > retry_decided / 54:
            backoff_completed / 59: execution_completed > tests_passed
        job:c 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 52:
            execution_failed error=nothing was heard from it for 48 s, after it was woken up and asked to stop / 54:
            retry_delay_elapsed > worker_started worker_id=worker:local / 59: execution_completed > validation_passed
        """,
        whose="task run job",
    )


async def silent_and_unwanted(desk: Desk) -> None:
    """An agent that is not heard of is being ended, and takes its time: where somebody ends its session meanwhile,
    nobody wants its task any more, and it is not tried again as one that took too long."""
    office, ready = Office(desk), Ready("its-name", "a puppet")
    office.ready, office.answers, office.stops = lambda puppet: [ready], lambda puppet, text: (), lambda puppet: ()

    async def ends(sup: Supervisor, runner: PlanRunner) -> None:
        await anyio.sleep(36.0)
        await sup.abort("a", AbortScope.SESSION, reason="enough")

    agents = {"puppet": AgentConfig(adapter="command", command=("p",))}
    plan = plan_of(task("a", agent="puppet"), agents=agents, liveness={"snapshot_s": 4})
    desk.same("outcomes", office.outcomes(await office.run(plan, beside=ends)), {"a": "aborted"})
    office.tells(
        """
        task:a 0: Born max_retries=3 > claimed by=a > started / 42: cancelled
        run:a 0: Born max_attempts=5 > executor_started / 42: cancelled
        job:a 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 42: user_cancelled
        """,
        whose="task run job",
    )


async def shared_budgets(desk: Desk) -> None:
    """What the whole may use its tasks share, and what a task may, its subtasks; over a kill, too."""

    async def uses(turn: AgentTurn) -> None:
        turn.used(input_tokens=400)

    def busy(**more: Any) -> Office:
        office = Office(desk, {"d": [Try(60.0)]}, **more)
        office.acts = dict.fromkeys(("a", "b", "c", "e", "g", "d"), uses)
        return office

    parts = [{"id": name, "agent": "f", "prompt": name} for name in "eg"]
    plan = plan_of(
        task("a", **ONCE),
        task("b", depends_on=["a"]),
        task("w", budget={"tokens": 700}, subtasks=[{**parts[0]}, {**parts[1], "depends_on": ["e"]}], **ONCE),
        task("c", depends_on=["b"], **ONCE),
        task("d"),
        budget={"tokens": 2_100},
    )
    office = busy()
    result = await office.run(plan)
    ends = {**dict.fromkeys("abde", "completed"), "w": "aborted", "g": "aborted", "c": "aborted"}
    desk.same("outcomes", office.outcomes(result), ends)
    records = office.store.log.after(0, 1_000_000)
    spent = {one.entity_id: one.metadata["measure"] for one in records if one.event == "BudgetSpent"}
    desk.same("who has spent what", spent, {"g": "tokens", "c": "tokens"})
    used = [one.metadata["used"]["input_tokens"] for one in office.records() if one.event == "Used"]
    desk.same("what was used in all", used, [6 * 400])
    office = busy()
    await office.run(plan, copy_after_s=7.0, give_up_after_s=8.0)
    heir = busy(store=office.copies[0])
    result = await heir.run(plan)
    desk.same("outcomes after a kill", heir.outcomes(result), {**ends, "b": "aborted", "d": "aborted", "c": "blocked"})


async def other_limits(desk: Desk) -> None:
    """After a kill the limit that the plan has now is the one that holds, also for a session that goes on: it is
    stopped sooner than it would have been, or not as soon."""
    for before, now, spent in ((1_000, 500, [("workstream plan", 500)]), (500, 1_000, [])):
        heir = await _lives_on(desk, {"tokens": before}, {"tokens": now}, 600, budget={"tokens": 5_000})
        told = [(one.metadata["whose"], one.metadata["limit"]) for one in await heir.events("a", "BudgetSpent")]
        desk.same(f"of {before}, now {now}: what is spent", told, spent)


async def _lives_on(desk: Desk, before: dict[str, int], now: dict[str, int], used: int, **own: Any) -> Office:
    """The heir of a plan that had one budget before a kill, and has another one now, when its session uses so much."""
    one = task("a", **ONCE, **own).model_copy(update={"agent": "p"})
    life = office_of(desk, a=Try(60.0))
    await life.run(plan_of(one, budget=before), copy_after_s=3.0, give_up_after_s=4.0)
    heir = office_of(desk, life.copies[0], a=Try(30.0))

    async def uses(sup: Supervisor, runner: PlanRunner) -> None:
        await anyio.sleep(5.0)
        heir.puppets[-1].says(Usage({}, used))

    await heir.run(plan_of(one, budget=now), beside=uses)
    return heir


async def ends_without_a_disk(desk: Desk) -> None:
    """A plan that is given up while its disk is down leaves nobody looking alive, once that is back."""
    office = Office(desk, {"a": [Try(100.0)]})

    async def fails(sup: Supervisor, runner: PlanRunner) -> None:
        await anyio.sleep(4.0)
        office.disk_fails = JournalUnavailable("full")
        with anyio.CancelScope(shield=True):
            await anyio.sleep(30.0)
            office.disk_fails = None
            await anyio.sleep(30.0)

    plan = plan_of(task("a"), task("b", approval="before"), workers={"w": {}, "v": {}})
    result = await office.run(plan, beside=fails, give_up_after_s=6.0)
    desk.same("its result", result, None)
    states = {
        row.id: row.state for row in office.store.entities.values() if row.kind in KINDS.split() or row.kind == "worker"
    }
    gone = {"task:a": "CANCELLED", "task:b": "CANCELLED", "workstream:plan": "cancelled"}
    over = {**gone, **dict.fromkeys(("worker:w", "worker:v"), "shutdown")}
    jobs = {f"{kind}:{name}": over for name in "ab" for kind, over in (("run", "CANCELLED"), ("job", "cancelled"))}
    desk.same("how everything ends", states, {**over, **jobs})


async def two_plans(desk: Desk) -> None:
    """What an agent's model meets counts in its own plan, whichever plan was begun or has ended on its supervisor."""
    office = Office(desk, {"x": [Try(2.0)], "y": [Try(20.0)]})
    office.answers = lambda puppet, text: ()
    met = [ModelTrouble(ModelProblem.OVERLOADED, attempt=number) for number in range(1, 6)]

    async def others(sup: Supervisor, runner: PlanRunner) -> None:
        await anyio.sleep(1.0)
        async with anyio.create_task_group() as group:
            for name in "xy":
                group.start_soon(PlanRunner(sup).run, plan_of(task(name), workstream=name))
            await anyio.sleep(5.0)
            office.puppets[0].says(*met, TurnEnded("end_turn"))

    await office.run(plan_of(task("a", agent="p")), beside=others)
    told = [(one.entity_id, one.metadata["circuit"]) for one in office.records() if one.event == "ProviderBreaker"]
    desk.same("the breaker", told, [("task:a", "open")])


WAITING = (
    dead_ends,
    circles,
    at_once,
    uncharged,
    silent_agents,
    silent_and_unwanted,
    shared_budgets,
    other_limits,
    ends_without_a_disk,
    two_plans,
)
