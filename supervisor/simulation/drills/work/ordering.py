"""Order: who is claimed next, by whom, and what is never begun (docs/work.md, docs/plans.md).

Where two could have the same slot at the same moment chance decides; so here nobody is ready in the moment in which a
slot is free, but for those of whom the order is known.
"""

from __future__ import annotations

from typing import Any, Final

import anyio

from supervisor.agents.protocols.inprocess import AgentTurn
from supervisor.embedding.runtime import Supervisor
from supervisor.plans.source import BadPlan
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.work.office import FLAT, Hand, Office, Try, plan_of, task
from supervisor.work.plan_runner import PlanRunner
from supervisor.work.workers import Pool

__all__ = ["ORDERING"]

BROKEN: Final = "sh: x: command not found"
ONCE: Final = {"max_retries": 0}


async def priorities(desk: Desk) -> None:
    """The highest priority first, then the first of the plan; a worker has what it is able to do alone."""
    office = Office(desk, {"gate": [Try(10.0)], "soon": [Try(1.0)]})
    after = {"capabilities": ["x"], "depends_on": ["soon"]}
    plan = plan_of(
        task("gate", capabilities=["x"]),
        task("soon", role="y"),
        task("low", priority=-1, **after),
        task("plain", **after),
        task("high", priority=5, **after),
        task("other", priority=5, **after),
        task("able", role="y", depends_on=["soon"], priority=-9),
        workers={"w": {"capabilities": ["x"]}, "v": {"roles": ["y"], "slots": 2}},
    )
    await office.run(plan)
    began = [prompt for _, _, prompt in office.asked if prompt not in ("gate", "soon", "able")]
    desk.same("who came next", began, ["high", "other", "plain", "low"])
    office.tells(
        """
        workstream:plan 0: Born tasks=7 > all_tasks_created count=7 > first_task_started / 30: all_tasks_completed
            completed=7 > validation_passed
        worker:w 0: Born max_concurrent_tasks=1 > registration_complete capabilities=x max_concurrent_tasks=1 >
            task_assigned task_id=gate active_tasks=1 / 10: task_assigned task_id=high active_tasks=1 > task_completed
            task_id=gate active_tasks=0 / 15: task_assigned task_id=other active_tasks=1 > task_completed task_id=high
            active_tasks=0 / 20: task_assigned task_id=plain active_tasks=1 > task_completed task_id=other
            active_tasks=0 / 25: task_assigned task_id=low active_tasks=1 > task_completed task_id=plain
            active_tasks=0 / 30: shutdown_requested > task_completed task_id=low active_tasks=0
        job:gate 0: Born max_retries=4 capabilities=x > scheduler_assigned > worker_started worker_id=worker:w / 10:
            execution_completed > validation_passed
        job:soon 0: Born max_retries=4 capabilities=role:y > scheduler_assigned > worker_started worker_id=worker:v /
            1: execution_completed > validation_passed
        job:low 0: Born max_retries=4 capabilities=x / 1: scheduler_assigned depends_on=job:soon / 25: worker_started
            worker_id=worker:w / 30: execution_completed > validation_passed
        job:plain 0: Born max_retries=4 capabilities=x / 1: scheduler_assigned depends_on=job:soon / 20:
            worker_started worker_id=worker:w / 25: execution_completed > validation_passed
        job:high 0: Born max_retries=4 capabilities=x / 1: scheduler_assigned depends_on=job:soon / 10: worker_started
            worker_id=worker:w / 15: execution_completed > validation_passed
        job:other 0: Born max_retries=4 capabilities=x / 1: scheduler_assigned depends_on=job:soon / 15:
            worker_started worker_id=worker:w / 20: execution_completed > validation_passed
        job:able 0: Born max_retries=4 capabilities=role:y / 1: scheduler_assigned depends_on=job:soon >
            worker_started worker_id=worker:v / 6: execution_completed > validation_passed
        """,
        whose="job worker:w workstream",
    )


async def turns(desk: Desk) -> None:
    """Who was given something last comes last, and nobody has more than his slots."""
    office = Office(desk, {"e": [Try(30.0)]} | {name: [Try(20.0)] for name in "abcd"})
    plan = plan_of(
        *(task(name, approval="before") for name in "abcde"),
        workers={"w": {"slots": 2}, "v": {"slots": 1}},
    )
    await office.run(plan, *(Hand(float(number + 1), "approve", name) for number, name in enumerate("abcde")))
    office.tells(
        """
        worker:w 0: Born max_concurrent_tasks=2 > registration_complete max_concurrent_tasks=2 / 1: task_assigned
            task_id=a active_tasks=1 / 3: task_assigned task_id=c active_tasks=2 / 21: task_assigned task_id=d
            active_tasks=2 > task_completed task_id=a active_tasks=1 / 23: task_completed task_id=c active_tasks=1 /
            41: task_completed task_id=d active_tasks=0 / 52: shutdown_requested
        worker:v 0: Born max_concurrent_tasks=1 > registration_complete max_concurrent_tasks=1 / 2: task_assigned
            task_id=b active_tasks=1 / 22: task_assigned task_id=e active_tasks=1 > task_completed task_id=b
            active_tasks=0 / 52: shutdown_requested > task_completed task_id=e active_tasks=0
        job:a 0: Born max_retries=4 / 1: scheduler_assigned > worker_started worker_id=worker:w / 21:
            execution_completed > validation_passed
        job:b 0: Born max_retries=4 / 2: scheduler_assigned > worker_started worker_id=worker:v / 22:
            execution_completed > validation_passed
        job:c 0: Born max_retries=4 / 3: scheduler_assigned > worker_started worker_id=worker:w / 23:
            execution_completed > validation_passed
        job:d 0: Born max_retries=4 / 4: scheduler_assigned / 21: worker_started worker_id=worker:w / 41:
            execution_completed > validation_passed
        job:e 0: Born max_retries=4 / 5: scheduler_assigned / 22: worker_started worker_id=worker:v / 52:
            execution_completed > validation_passed
        """,
        whose="job worker",
    )


async def together(desk: Desk) -> None:
    """So many at once, and no more, where no worker has a name."""
    office = Office(desk)
    plan = plan_of(*(task(name, approval="before") for name in "abcd"), max_sessions=2)
    await office.run(plan, *(Hand(float(number + 1), "approve", name) for number, name in enumerate("abcd")))
    office.tells(
        """
        worker:local 0: Born max_concurrent_tasks=2 > registration_complete capabilities=* max_concurrent_tasks=2 / 1:
            task_assigned task_id=a active_tasks=1 / 2: task_assigned task_id=b active_tasks=2 / 6: task_assigned
            task_id=c active_tasks=2 > task_completed task_id=a active_tasks=1 / 7: task_assigned task_id=d
            active_tasks=2 > task_completed task_id=b active_tasks=1 / 11: task_completed task_id=c active_tasks=1 /
            12: shutdown_requested > task_completed task_id=d active_tasks=0
        job:a 0: Born max_retries=4 / 1: scheduler_assigned > worker_started worker_id=worker:local / 6:
            execution_completed > validation_passed
        job:b 0: Born max_retries=4 / 2: scheduler_assigned > worker_started worker_id=worker:local / 7:
            execution_completed > validation_passed
        job:c 0: Born max_retries=4 / 3: scheduler_assigned / 6: worker_started worker_id=worker:local / 11:
            execution_completed > validation_passed
        job:d 0: Born max_retries=4 / 4: scheduler_assigned / 7: worker_started worker_id=worker:local / 12:
            execution_completed > validation_passed
        """,
        whose="job worker",
    )


async def files(desk: Desk) -> None:
    """No two work on the same files at once: who comes later waits for them, and others go before it."""
    office = Office(desk)
    plan = plan_of(
        task("a", approval="before", files=["src"]),
        task("b", approval="before", files=["src/x"]),
        task("c", approval="before", files=["docs"]),
        task("d", approval="before"),
    )
    await office.run(plan, *(Hand(float(number + 1), "approve", name) for number, name in enumerate("abcd")))
    office.tells(
        """
        job:a 0: Born max_retries=4 / 1: scheduler_assigned > worker_started worker_id=worker:local / 6:
            execution_completed > validation_passed
        job:b 0: Born max_retries=4 / 2: scheduler_assigned / 6: worker_started worker_id=worker:local / 11:
            execution_completed > validation_passed
        job:c 0: Born max_retries=4 / 3: scheduler_assigned > worker_started worker_id=worker:local / 8:
            execution_completed > validation_passed
        job:d 0: Born max_retries=4 / 4: scheduler_assigned > worker_started worker_id=worker:local / 9:
            execution_completed > validation_passed
        """,
        whose="job",
    )


async def providers(desk: Desk) -> None:
    """A provider that fails everybody is asked by nobody for a minute, then by one; whoever has another one goes on."""
    fails = {f"t{number}": [Try(number + 1.0, "Overloaded"), Try(3.0)] for number in range(5)}
    office = Office(desk, {**fails, "z": [Try(20.0)], "y": [Try(3.0)]})
    plan = plan_of(
        *(task(name) for name in fails),
        task("z", agent="g"),
        task("same", approval="before"),
        task("y", agent="g", depends_on=["z"]),
        task_lifecycle={**FLAT, "base_retry_delay": 10},
        max_sessions=20,
    )
    await office.run(plan, Hand(8.0, "approve", "same"))
    breakers = [tuple(one.metadata.values()) for one in office.records() if one.event == "ProviderBreaker"]
    told = [(provider, circuit) for provider, circuit, _ in breakers]
    wanted = [("command:f", circuit) for circuit in ("open", "half_open", "closed")]
    desk.same("how the breaker turned", told, wanted)
    began = sorted(
        (round(at_s), name.partition(":")[2])
        for name, tale in office.tales().items()
        for at_s, what in tale
        if what.startswith("worker_started") and at_s > 5.5
    )
    desk.same("who is asked first after that", (began[0][1], began[1][0]), ("y", 65))
    desk.same("all others", [at_s for at_s, _ in began[2:]], [68] * 5)


async def probes_in_its_slot(desk: Desk) -> None:
    """Whoever waits in its slot for another attempt is the provider's probe like who is claimed: it is the first after
    a minute, others wait for its answer, and go on after that."""
    fails = {f"t{number}": [Try(number + 1.0, "Overloaded"), Try(10.0)] for number in range(5)}
    office = Office(desk, fails)
    waits = {**FLAT, "max_attempts": 1, "circuit_breaker": {"probes_max": 1, "cooldown_period": 100}}
    plan = plan_of(*map(task, fails), task("z", approval="before"), task_lifecycle=waits, max_sessions=20)
    await office.run(plan, Hand(104.0, "approve", "z"))
    told = [
        (one.entity_id, one.metadata["circuit"], round(one.monotonic_s - office.began_s))
        for one in office.records()
        if one.event == "ProviderBreaker"
    ]
    desk.same(
        "how the breaker turned",
        told,
        [("task:t4", "open", 5), ("task:t0", "half_open", 101), ("task:t0", "closed", 111)],
    )
    began = [round(at_s) for at_s, what in office.tales()["job:z"] if what.startswith("worker_started")]
    desk.same("who comes meanwhile", began, [111])


async def conditions(desk: Desk) -> None:
    """What is wanted on a condition waits for it; what is not wanted counts as done; what is in vain is blocked."""
    office = Office(desk, {"a": [Try(5.0, BROKEN)]})
    plan = plan_of(
        task("a", **ONCE),
        task("z"),
        task("b", depends_on=["a"]),
        task("c", depends_on=["a"], optional=True),
        task("d", depends_on=["c"]),
        task("e", when={"task": "a", "is": "failed"}),
        task("f", when={"task": "a"}),
        task("g", when={"task": "f", "is": "skipped"}),
        task("h", when={"file_exists": "no/such/file"}, depends_on=["z"]),
        task("i", depends_on=["f", "z"]),
        task("j", optional=True),
        task("k", depends_on=["b", "z"]),
        task("l", when={"task": "z"}, subtasks=[{"id": "m", "agent": "f", "prompt": "m"}]),
        task("n", when={"task": "z", "is": "failed"}, subtasks=[{"id": "o", "agent": "f", "prompt": "o"}]),
        task("p", depends_on=["a"], subtasks=[{"id": "q", "agent": "f", "prompt": "q"}]),
    )
    result = await office.run(plan)
    found = {
        outcome: "".join(sorted(name for name, one in office.outcomes(result).items() if one == outcome))
        for outcome in ("completed", "failed", "blocked", "skipped", "aborted")
    }
    wanted = {"completed": "degijlmz", "failed": "a", "blocked": "bkp", "skipped": "cfhno", "aborted": "q"}
    desk.same("outcomes", found, wanted)
    office.tells(
        """
        workstream:plan 0: Born tasks=18 > all_tasks_created count=18 > first_task_started / 10: settled_with_failures
            completed=13 failed=1 cancelled=4
        task:a 0: Born max_retries=0 > claimed by=a > started / 5: failed > DeadLettered attempts=1 claims=1
        run:a 0: Born max_attempts=5 > executor_started / 5: execution_failed error=RuntimeError: sh: x: command not
            found category=permanent charged=True > retry_decided
        job:a 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 5: execution_failed
            error=RuntimeError: sh: x: command not found final=True
        task:z 0: Born max_retries=3 > claimed by=z > started / 5: completed > closed
        run:z 0: Born max_attempts=5 > executor_started / 5: execution_completed > tests_passed
        job:z 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 5:
            execution_completed > validation_passed
        task:b 0: Born max_retries=3 / 5: cancelled
        run:b 0: Born max_attempts=5 / 5: skipped cause=dependency_failed dependency=a
        job:b 0: Born max_retries=4 / 5: user_cancelled
        task:c 0: Born max_retries=3 / 5: cancelled
        run:c 0: Born max_attempts=5 / 5: skipped cause=optional dependency=a
        task:d 0: Born max_retries=3 / 5: claimed by=d > started / 10: completed > closed
        run:d 0: Born max_attempts=5 / 5: executor_started / 10: execution_completed > tests_passed
        job:d 0: Born max_retries=4 / 5: scheduler_assigned > worker_started worker_id=worker:local / 10:
            execution_completed > validation_passed
        task:e 0: Born max_retries=3 / 5: claimed by=e > started / 10: completed > closed
        run:e 0: Born max_attempts=5 / 5: executor_started / 10: execution_completed > tests_passed
        task:f 0: Born max_retries=3 / 5: cancelled
        run:f 0: Born max_attempts=5 / 5: skipped cause=condition_not_met
        task:g 0: Born max_retries=3 / 5: claimed by=g > started / 10: completed > closed
        run:g 0: Born max_attempts=5 / 5: executor_started / 10: execution_completed > tests_passed
        task:h 0: Born max_retries=3 / 5: cancelled
        run:h 0: Born max_attempts=5 / 5: skipped cause=condition_not_met
        task:i 0: Born max_retries=3 / 5: claimed by=i > started / 10: completed > closed
        run:i 0: Born max_attempts=5 / 5: executor_started / 10: execution_completed > tests_passed
        job:i 0: Born max_retries=4 / 5: scheduler_assigned depends_on=job:z > worker_started worker_id=worker:local /
            10: execution_completed > validation_passed
        task:j 0: Born max_retries=3 > claimed by=j > started / 5: completed > closed
        run:j 0: Born max_attempts=5 > executor_started / 5: execution_completed > tests_passed
        task:k 0: Born max_retries=3 / 5: cancelled
        run:k 0: Born max_attempts=5 / 5: skipped cause=dependency_failed dependency=b
        job:k 0: Born max_retries=4 / 5: user_cancelled
        task:l 0: Born max_retries=3 / 5: split subtasks=task:m / 10: subtasks_completed > closed
        run:l 0: Born max_attempts=5 / 10: executor_started > execution_completed > tests_passed
        task:m 0: Born max_retries=3 / 5: claimed by=m > started / 10: completed > closed
        run:m 0: Born max_attempts=5 / 5: executor_started / 10: execution_completed > tests_passed
        job:m 0: Born max_retries=4 / 5: scheduler_assigned > worker_started worker_id=worker:local / 10:
            execution_completed > validation_passed
        task:n 0: Born max_retries=3 / 5: cancelled
        run:n 0: Born max_attempts=5 / 5: skipped cause=condition_not_met
        task:o 0: Born max_retries=3 / 5: cancelled
        run:o 0: Born max_attempts=5 / 5: skipped cause=condition_not_met
        job:o 0: Born max_retries=4 / 5: user_cancelled
        task:p 0: Born max_retries=3 / 5: cancelled
        run:p 0: Born max_attempts=5 / 5: skipped cause=dependency_failed dependency=a
        job:p 0: Born max_retries=4 / 5: user_cancelled
        task:q 0: Born max_retries=3 / 5: cancelled
        run:q 0: Born max_attempts=5 / 5: cancelled
        job:q 0: Born max_retries=4 / 5: user_cancelled
        job:j 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 5:
            execution_completed > validation_passed
        job:l 5: Born max_retries=4 / 10: scheduler_assigned depends_on=job:m > worker_started worker_id=worker:local
            > execution_completed > validation_passed
        job:g 5: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 10:
            execution_completed > validation_passed
        job:e 5: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 10:
            execution_completed > validation_passed
        """,
        whose="task run job workstream",
    )


async def wholes(desk: Desk) -> None:
    """A task that was split is looked at as a whole, when its parts are closed; one part that fails ends it."""
    office = Office(desk, {"b": [Try(3.0)], "d": [Try(2.0, BROKEN)], "e": [Try(50.0)], "h": [Try(4.0)]})
    office.check_s = 2.0
    part = {"agent": "f", **ONCE}

    def parts(*found: tuple[str, Any]) -> list[Any]:
        return [{"id": name, "prompt": name, **part, **more} for name, more in found]

    plan = plan_of(
        task("a", subtasks=parts(("b", {}), ("c", {"depends_on": ["b"]})), acceptance=[{"command": ["x"]}], **ONCE),
        task("k", subtasks=parts(("d", {}), ("e", {})), **ONCE),
        task("g", subtasks=parts(("i", {"subtasks": parts(("h", {}))})), approval="after", **ONCE),
    )
    result = await office.run(plan, Hand(30.0, "approve", "g"))
    wanted = dict.fromkeys("abcgih", "completed") | {"k": "aborted", "d": "failed", "e": "completed"}
    desk.same("outcomes", office.outcomes(result), wanted)
    office.tells(
        """
        workstream:plan 0: Born tasks=9 > all_tasks_created count=9 > first_task_started / 50: settled_with_failures
            completed=7 failed=1 cancelled=1
        task:a 0: Born max_retries=0 > split subtasks=task:b,task:c / 10: subtasks_completed > closed
        run:a 0: Born max_attempts=5 / 8: executor_started > execution_completed / 10: tests_passed
        job:a 0: Born max_retries=4 / 8: scheduler_assigned depends_on=job:b,job:c > worker_started
            worker_id=worker:local > execution_completed / 10: validation_passed
        task:b 0: Born max_retries=0 > claimed by=b > started / 3: completed > closed
        run:b 0: Born max_attempts=5 > executor_started / 3: execution_completed > tests_passed
        job:b 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 3:
            execution_completed > validation_passed
        task:c 0: Born max_retries=0 / 3: claimed by=c > started / 8: completed > closed
        run:c 0: Born max_attempts=5 / 3: executor_started / 8: execution_completed > tests_passed
        job:c 0: Born max_retries=4 / 3: scheduler_assigned depends_on=job:b > worker_started worker_id=worker:local /
            8: execution_completed > validation_passed
        task:k 0: Born max_retries=0 > split subtasks=task:d,task:e / 50: subtask_failed subtask=task:d > cancelled
        run:k 0: Born max_attempts=5 / 50: cancelled
        job:k 0: Born max_retries=4 / 50: user_cancelled
        task:d 0: Born max_retries=0 > claimed by=d > started / 2: failed > DeadLettered attempts=1 claims=1
        run:d 0: Born max_attempts=5 > executor_started / 2: execution_failed error=RuntimeError: sh: x: command not
            found category=permanent charged=True > retry_decided
        job:d 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 2: execution_failed
            error=RuntimeError: sh: x: command not found final=True
        task:e 0: Born max_retries=0 > claimed by=e > started / 50: completed > closed
        run:e 0: Born max_attempts=5 > executor_started / 50: execution_completed > tests_passed
        job:e 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 50:
            execution_completed > validation_passed
        task:g 0: Born max_retries=0 > split subtasks=task:i / 4: subtasks_completed > approval_requested / 30:
            Commanded command=approve > approval_granted by=me
        run:g 0: Born max_attempts=5 / 4: executor_started > execution_completed > tests_passed
        job:g 0: Born max_retries=4 / 4: scheduler_assigned depends_on=job:i > worker_started worker_id=worker:local >
            execution_completed > validation_passed
        task:i 0: Born max_retries=0 > split subtasks=task:h / 4: subtasks_completed > closed
        run:i 0: Born max_attempts=5 / 4: executor_started > execution_completed > tests_passed
        job:i 0: Born max_retries=4 / 4: scheduler_assigned depends_on=job:h > worker_started worker_id=worker:local >
            execution_completed > validation_passed
        task:h 0: Born max_retries=0 > claimed by=h > started / 4: completed > closed
        run:h 0: Born max_attempts=5 > executor_started / 4: execution_completed > tests_passed
        job:h 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 4:
            execution_completed > validation_passed
        """,
        whose="task run job workstream",
    )


async def broken_wholes(desk: Desk) -> None:
    """A whole that does not pass has failed, and its parts are not done again: it is tried as it is."""
    office = Office(desk)
    office.checks = [1, 0]
    parts = [{"id": "b", "prompt": "b", "agent": "f"}]
    result = await office.run(plan_of(task("a", subtasks=parts, acceptance=[{"command": ["x"]}], max_retries=1)))
    desk.same("outcomes", office.outcomes(result), {"a": "completed", "b": "completed"})
    office.tells(
        """
        workstream:plan 0: Born tasks=2 > all_tasks_created count=2 > first_task_started / 10: all_tasks_completed
            completed=2 > validation_passed
        task:a 0: Born max_retries=1 > split subtasks=task:b / 5: subtasks_completed > verification_rejected > retried
            > claimed by=a > started / 10: completed > closed
        run:a 0: Born max_attempts=5 / 5: executor_started > execution_completed > tests_failed > retry_decided
        job:a 0: Born max_retries=4 / 5: scheduler_assigned depends_on=job:b > worker_started worker_id=worker:local >
            execution_completed > validation_failed failed_rules=command x: exited with 1
        task:b 0: Born max_retries=3 > claimed by=b > started / 5: completed > closed
        run:b 0: Born max_attempts=5 > executor_started / 5: execution_completed > tests_passed
        job:b 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 5:
            execution_completed > validation_passed
        run:a-2 5: Born max_attempts=5 > executor_started / 10: execution_completed > tests_passed
        job:a-2 5: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 10:
            execution_completed > validation_passed
        """,
        whose="task run job workstream",
    )


async def late_parts(desk: Desk) -> None:
    """A part that does not answer in time blocks the whole on it, until it does."""
    office = Office(desk, {"b": [Try(50.0)], "c": [Try(20.0)], "e": [Try(60.0, BROKEN)]})
    part = {"agent": "f", **ONCE}
    plan = plan_of(
        task(
            "a",
            timeout_s=30,
            subtasks=[{"id": "b", "prompt": "b", **part, "timeout_s": 100}, {"id": "c", "prompt": "c", **part}],
            **ONCE,
        ),
        task("d", timeout_s=40, subtasks=[{"id": "e", "prompt": "e", **part, "timeout_s": 100}], **ONCE),
    )
    result = await office.run(plan)
    wanted = {"a": "completed", "b": "completed", "c": "completed", "d": "aborted", "e": "failed"}
    desk.same("outcomes", office.outcomes(result), wanted)
    office.tells(
        """
        workstream:plan 0: Born tasks=5 > all_tasks_created count=5 > first_task_started / 60: settled_with_failures
            completed=3 failed=1 cancelled=1
        task:a 0: Born max_retries=0 > split subtasks=task:b,task:c / 30: subtask_timed_out subtask=task:b / 50:
            unblocked > split subtasks=task:b,task:c > subtasks_completed > closed
        run:a 0: Born max_attempts=5 / 50: executor_started > execution_completed > tests_passed
        job:a 0: Born max_retries=4 / 50: scheduler_assigned depends_on=job:b,job:c > worker_started
            worker_id=worker:local > execution_completed > validation_passed
        task:b 0: Born max_retries=0 > claimed by=b > started / 50: completed > closed
        run:b 0: Born max_attempts=5 > executor_started / 50: execution_completed > tests_passed
        job:b 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 50:
            execution_completed > validation_passed
        task:c 0: Born max_retries=0 > claimed by=c > started / 20: completed > closed
        run:c 0: Born max_attempts=5 > executor_started / 20: execution_completed > tests_passed
        job:c 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 20:
            execution_completed > validation_passed
        task:d 0: Born max_retries=0 > split subtasks=task:e / 40: subtask_timed_out subtask=task:e / 60: cancelled
        run:d 0: Born max_attempts=5 / 60: cancelled
        job:d 0: Born max_retries=4 / 60: user_cancelled
        task:e 0: Born max_retries=0 > claimed by=e > started / 60: failed > DeadLettered attempts=1 claims=1
        run:e 0: Born max_attempts=5 > executor_started / 60: execution_failed error=RuntimeError: sh: x: command not
            found category=permanent charged=True > retry_decided
        job:e 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 60:
            execution_failed error=RuntimeError: sh: x: command not found final=True
        """,
        whose="task run job workstream",
    )


async def reset_part(desk: Desk) -> None:
    """A part that had failed, and is reset while the whole waits for another one, has no more time than that one."""
    office = Office(desk, {"b": [Try(5.0, BROKEN), Try(50.0)], "c": [Try(20.0)]})
    parts = [{"id": one, "prompt": one, "agent": "f", **ONCE, "timeout_s": 100} for one in "bc"]
    plan = plan_of(task("a", timeout_s=30, subtasks=parts, **ONCE))
    result = await office.run(plan, Hand(10.0, "reset", "b"))
    desk.same("outcomes", office.outcomes(result), dict.fromkeys("abc", "completed"))
    told = [what.split()[0] for _, what in office.tales()["task:a"]]
    wanted = ["Born", "split", "subtask_timed_out", "unblocked", "split", "subtasks_completed", "closed"]
    desk.same("what is said of the whole", told, wanted)


async def verdicts(desk: Desk) -> None:
    """The whole is tested when all tasks are completed; what does not pass has failed, whatever its tasks did."""
    for status, ok in ((0, True), (1, False)):
        office = Office(desk)
        office.checks, office.check_s = [status], 3.0
        result = await office.run(plan_of(task("a"), validation=[{"command": ["x"]}]))
        assert result is not None
        desk.same(f"exit status {status}", (result.ok, bool(result.error)), (ok, not ok))
        desk.same("the result", (result.tasks["a"].session_id, round(result.tasks["a"].took_s)), ("a", 5))
        tale = [what for _, what in office.tales()["workstream:plan"]][3:]
        passed = "validation_passed" if ok else "validation_failed"
        desk.same("the workstream", tale, ["all_tasks_completed completed=1", passed])
        desk.at("the verdict", 8.0, 6, office.tales()["workstream:plan"][-1][0])


async def critical_ends(desk: Desk) -> None:
    """Where nothing was begun nothing has failed: the workstream is cancelled, and so it is where all are."""
    office = Office(desk)
    await office.run(plan_of(task("a", approval="before")), Hand(3.0, "reject", "a"))
    tale = [what for _, what in office.tales()["workstream:plan"]]
    desk.same("none begun", tale, ["Born tasks=1", "all_tasks_created count=1", "user_cancelled"])
    office = Office(desk)
    await office.run(plan_of(task("a"), task("b")), Hand(3.0, "cancel", "a"))
    tale = [what for _, what in office.tales()["workstream:plan"]][-1:]
    desk.same("one cancelled", tale, ["settled_with_cancellations completed=1 cancelled=1"])


# ------------------------------------------------------------------------------------------------------------ workers
QUICK: Final = {"heartbeat_s": 1, "check_s": 3, "misses_max": 2, "shutdown_s": 12}


def _silent(**gaps: tuple[int, float]) -> Any:
    """Hearts that are silent for so long after so many beats, by the worker's name."""

    async def heart(pool: Pool, worker_id: str, heartbeat_s: float) -> None:
        after, gap_s = gaps.get(worker_id.partition(":")[2].replace("-", "_"), (0, 0.0))
        beats = 0
        while pool.beat(worker_id):
            beats += 1
            await pool.pause(gap_s if beats == after else heartbeat_s)

    return heart


async def silences(desk: Desk) -> None:
    """So many looks without a beat and a worker is lost: not before, and not for one that comes in between."""
    office = Office(desk, {"a": [Try(30.0)], "b": [Try(40.0)]})
    plan = plan_of(
        task("a", capabilities=["x"]),
        task("b", capabilities=["y"]),
        workers={"w": {"capabilities": ["x"], **QUICK}, "v": {"capabilities": ["y"], **QUICK}},
    )
    # w: beats at 0 to 4, looked at (3, 6, 9, 12): lost at 12, back at 16.5. v: beats again at 8, missed one look
    await office.run(plan, heart=_silent(w=(5, 12.5), v=(3, 6.0)))
    office.tells(
        """
        workstream:plan 0: Born tasks=2 > all_tasks_created count=2 > first_task_started / 46.5: all_tasks_completed
            completed=2 > validation_passed
        worker:w 0: Born max_concurrent_tasks=1 > registration_complete capabilities=x max_concurrent_tasks=1 >
            task_assigned task_id=a active_tasks=1 / 12: health_check_timeout missed=2 / 16.5: health_check_recovered
            > task_assigned task_id=a active_tasks=1 / 46.5: shutdown_requested > task_completed task_id=a
            active_tasks=0
        worker:v 0: Born max_concurrent_tasks=1 > registration_complete capabilities=y max_concurrent_tasks=1 >
            task_assigned task_id=b active_tasks=1 / 40: task_completed task_id=b active_tasks=0 / 46.5:
            shutdown_requested
        task:a 0: Born max_retries=3 > claimed by=a > started / 12: orphaned > requeued / 16.5: claimed by=a-2 >
            started / 46.5: completed > closed
        run:a 0: Born max_attempts=5 > executor_started / 12: execution_failed error=its worker was lost
            category=unknown > retry_decided / 16.5: backoff_completed / 46.5: execution_completed > tests_passed
        job:a 0: Born max_retries=4 capabilities=x > scheduler_assigned > worker_started worker_id=worker:w / 12:
            worker_lost > retry_delay_elapsed / 16.5: worker_started worker_id=worker:w / 46.5: execution_completed >
            validation_passed
        task:b 0: Born max_retries=3 > claimed by=b > started / 40: completed > closed
        run:b 0: Born max_attempts=5 > executor_started / 40: execution_completed > tests_passed
        job:b 0: Born max_retries=4 capabilities=y > scheduler_assigned > worker_started worker_id=worker:v / 40:
            execution_completed > validation_passed
        """
    )


async def let_go_late(desk: Desk) -> None:
    """A worker that answers again while an agent that worked for it is still being ended is not back before that is
    over: nobody has its slot meanwhile."""
    office = Office(desk)

    async def lingers(turn: AgentTurn) -> None:
        try:
            await anyio.sleep(30.0)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(2.0)

    office.acts["a"] = lingers
    plan = plan_of(task("a", max_retries=0), workers={"w": QUICK})
    await office.run(plan, heart=_silent(w=(5, 9.5)))  # lost at 12, heard again at 13.5; its agent has ended at 14
    office.tells(
        """
        worker:w 0: Born max_concurrent_tasks=1 > registration_complete max_concurrent_tasks=1 > task_assigned
            task_id=a active_tasks=1 / 12: health_check_timeout missed=2 / 14: health_check_recovered > task_assigned
            task_id=a active_tasks=1 / 51: shutdown_requested > task_completed task_id=a active_tasks=0
        task:a 0: Born max_retries=0 > claimed by=a > started / 14: orphaned > requeued > claimed by=a-2 > started /
            51: completed > closed
        """,
        whose="worker task",
    )


async def replacements(desk: Desk) -> None:
    """Who stays silent is shut down, and another one takes its place; who comes back later finds that it has."""
    office = Office(desk, {"a": [Try(15.0)]})
    plan = plan_of(task("a", max_retries=0), workers={"w": {**QUICK, "slots": 2}})
    await office.run(plan, heart=_silent(w=(5, 100.0)))
    office.tells(
        """
        workstream:plan 0: Born tasks=1 > all_tasks_created count=1 > first_task_started / 33: all_tasks_completed
            completed=1 > validation_passed
        worker:w 0: Born max_concurrent_tasks=2 > registration_complete max_concurrent_tasks=2 > task_assigned
            task_id=a active_tasks=1 / 12: health_check_timeout missed=2 / 18: max_timeout_exceeded
        task:a 0: Born max_retries=0 > claimed by=a > started / 12: orphaned > requeued / 18: claimed by=a-2 > started
            / 33: completed > closed
        run:a 0: Born max_attempts=5 > executor_started / 12: execution_failed error=its worker was lost
            category=unknown > retry_decided / 18: backoff_completed / 33: execution_completed > tests_passed
        job:a 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:w / 12: worker_lost >
            retry_delay_elapsed / 18: worker_started worker_id=worker:w-2 / 33: execution_completed >
            validation_passed
        worker:w-2 18: Born max_concurrent_tasks=2 > registration_complete max_concurrent_tasks=2 > task_assigned
            task_id=a active_tasks=1 / 33: shutdown_requested > task_completed task_id=a active_tasks=0
        """
    )


async def staffing(desk: Desk) -> None:
    """A plan that is read again has other workers: who is not wanted any more goes with its last task."""
    office = Office(desk, {"a": [Try(20.0)]})
    some = (task("a", capabilities=["x"]), task("b", approval="before", capabilities=["x"]))
    more = (task("c", capabilities=["x"]), task("d", capabilities=["y"], depends_on=["c"]))
    old = plan_of(*some, workers={"w": {"capabilities": ["x"]}, "u": {"capabilities": ["x"]}})
    new = plan_of(*some, *more, workers={"u": {"capabilities": ["x"]}, "v": {"capabilities": ["x", "y"], "slots": 2}})
    seen: list[Any] = []

    async def reads(sup: Supervisor, runner: PlanRunner) -> None:
        await anyio.sleep(6.0)
        changed = plan_of(task("a", prompt="other"), workers=old.workers)
        for wrong in (
            changed,
            plan_of(*some, workspace="worktree", workers=old.workers),
            plan_of(*some, merge_into="x", workspace="worktree", workers=old.workers),
        ):
            try:
                seen.append(runner.check(wrong))
            except BadPlan:
                seen.append("refused")
        seen.append(runner.check(new))
        runner.add(new)
        await runner.begun.wait()
        await anyio.sleep(100.0)

    result = await office.run(old, Hand(8.0, "approve", "b"), Hand(4.0, "cancel", "b"), beside=reads)
    desk.same("what is new", seen, ["refused", "refused", "refused", ["c", "d"]])
    desk.same("outcomes", office.outcomes(result), dict.fromkeys("abcd", "completed"))
    office.tells(
        """
        workstream:plan 0: Born tasks=2 > all_tasks_created count=2 > first_task_started / 6: tasks_added count=2 /
            20: all_tasks_completed completed=4 > validation_passed
        worker:w 0: Born max_concurrent_tasks=1 > registration_complete capabilities=x max_concurrent_tasks=1 >
            task_assigned task_id=a active_tasks=1 / 6: shutdown_requested / 20: shutdown_requested > task_completed
            task_id=a active_tasks=0
        worker:u 0: Born max_concurrent_tasks=1 > registration_complete capabilities=x max_concurrent_tasks=1 / 6:
            task_assigned task_id=c active_tasks=1 / 11: task_completed task_id=c active_tasks=0 / 20:
            shutdown_requested
        task:a 0: Born max_retries=3 > claimed by=a > started / 20: completed > closed
        run:a 0: Born max_attempts=5 > executor_started / 20: execution_completed > tests_passed
        job:a 0: Born max_retries=4 capabilities=x > scheduler_assigned > worker_started worker_id=worker:w / 20:
            execution_completed > validation_passed
        task:b 0: Born max_retries=3 / 4: Commanded command=cancel > CommandRefused command=cancel / 8: Commanded
            command=approve > approved > claimed by=b > started / 13: completed > closed
        run:b 0: Born max_attempts=5 / 8: executor_started / 13: execution_completed > tests_passed
        job:b 0: Born max_retries=4 capabilities=x / 8: scheduler_assigned > worker_started worker_id=worker:v / 13:
            execution_completed > validation_passed
        worker:v 6: Born max_concurrent_tasks=2 > registration_complete capabilities=x,y max_concurrent_tasks=2 / 8:
            task_assigned task_id=b active_tasks=1 / 11: task_assigned task_id=d active_tasks=2 / 13: task_completed
            task_id=b active_tasks=1 / 16: task_completed task_id=d active_tasks=0 / 20: shutdown_requested
        task:c 6: Born max_retries=3 > claimed by=c > started / 11: completed > closed
        run:c 6: Born max_attempts=5 > executor_started / 11: execution_completed > tests_passed
        job:c 6: Born max_retries=4 capabilities=x > scheduler_assigned > worker_started worker_id=worker:u / 11:
            execution_completed > validation_passed
        task:d 6: Born max_retries=3 / 11: claimed by=d > started / 16: completed > closed
        run:d 6: Born max_attempts=5 / 11: executor_started / 16: execution_completed > tests_passed
        job:d 6: Born max_retries=4 capabilities=y / 11: scheduler_assigned depends_on=job:c > worker_started
            worker_id=worker:v / 16: execution_completed > validation_passed
        """
    )


async def _resized(desk: Desk, before: int, after: int, at_s: float) -> Office:
    """So many at once, where no worker has a name: another number from then on."""
    office = Office(desk, {name: [Try(6.0)] for name in "abcd"})
    tasks = [task(name, approval="before") for name in "abcd"]

    async def reads(sup: Supervisor, runner: PlanRunner) -> None:
        await anyio.sleep(at_s)
        runner.add(plan_of(*tasks, max_sessions=after))

    hands = (Hand(at_s, "approve", name) for name, at_s in zip("abcd", (1.0, 2.0, 3.0, 5.0), strict=True))
    await office.run(plan_of(*tasks, max_sessions=before), *hands, beside=reads)
    return office


async def fewer(desk: Desk) -> None:
    """Those that are worked on go on, and nothing new is begun until there are fewer than so many."""
    office = await _resized(desk, 3, 1, 4.0)
    office.tells(
        """
        worker:local 0: Born max_concurrent_tasks=3 > registration_complete capabilities=* max_concurrent_tasks=3 / 1:
            task_assigned task_id=a active_tasks=1 / 2: task_assigned task_id=b active_tasks=2 / 3: task_assigned
            task_id=c active_tasks=3 / 7: task_completed task_id=a active_tasks=2 / 8: task_completed task_id=b
            active_tasks=1 / 9: task_assigned task_id=d active_tasks=1 > task_completed task_id=c active_tasks=0 / 15:
            shutdown_requested > task_completed task_id=d active_tasks=0
        job:a 0: Born max_retries=4 / 1: scheduler_assigned > worker_started worker_id=worker:local / 7:
            execution_completed > validation_passed
        job:b 0: Born max_retries=4 / 2: scheduler_assigned > worker_started worker_id=worker:local / 8:
            execution_completed > validation_passed
        job:c 0: Born max_retries=4 / 3: scheduler_assigned > worker_started worker_id=worker:local / 9:
            execution_completed > validation_passed
        job:d 0: Born max_retries=4 / 5: scheduler_assigned / 9: worker_started worker_id=worker:local / 15:
            execution_completed > validation_passed
        """,
        whose="job worker",
    )


async def more(desk: Desk) -> None:
    """What waited for a slot has one at once."""
    office = await _resized(desk, 1, 2, 4.0)
    office.tells(
        """
        worker:local 0: Born max_concurrent_tasks=1 > registration_complete capabilities=* max_concurrent_tasks=1 / 1:
            task_assigned task_id=a active_tasks=1 / 7: task_assigned task_id=c active_tasks=1 > task_completed
            task_id=a active_tasks=0 / 13: task_completed task_id=c active_tasks=0 / 16: shutdown_requested
        job:a 0: Born max_retries=4 / 1: scheduler_assigned > worker_started worker_id=worker:local / 7:
            execution_completed > validation_passed
        job:b 0: Born max_retries=4 / 2: scheduler_assigned / 4: worker_started worker_id=worker:local-2 / 10:
            execution_completed > validation_passed
        job:c 0: Born max_retries=4 / 3: scheduler_assigned / 7: worker_started worker_id=worker:local / 13:
            execution_completed > validation_passed
        job:d 0: Born max_retries=4 / 5: scheduler_assigned / 10: worker_started worker_id=worker:local-2 / 16:
            execution_completed > validation_passed
        worker:local-2 4: Born max_concurrent_tasks=1 > registration_complete capabilities=* max_concurrent_tasks=1 >
            task_assigned task_id=b active_tasks=1 / 10: task_assigned task_id=d active_tasks=1 > task_completed
            task_id=b active_tasks=0 / 16: shutdown_requested > task_completed task_id=d active_tasks=0
        """,
        whose="job worker",
    )


ORDERING = (
    priorities,
    turns,
    together,
    files,
    providers,
    probes_in_its_slot,
    conditions,
    wholes,
    broken_wholes,
    late_parts,
    reset_part,
    verdicts,
    critical_ends,
    silences,
    let_go_late,
    replacements,
    staffing,
    fewer,
    more,
)
