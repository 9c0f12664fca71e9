"""Tries: what is tried again, when, where and by whom, and when it is given up (spec 002, docs/work.md).

Delays are 2 s, 4 s and so on, without chance; a circuit cools down for a minute and has three probes, unless a plan
says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from supervisor.ports import Merge
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.work.office import FLAT, Hand, Office, Try, plan_of, task

__all__ = ["TRYING"]

ONCE: Final = {**FLAT, "max_attempts": 1, "circuit_breaker": {"enabled": False}}
"""Who fails is given up."""
UNKNOWN, BROKEN = "it broke", "sh: x: command not found"


def errors(*found: str, takes_s: float = 5.0) -> Sequence[Try]:
    """Attempts that end so; without an error, well."""
    return [Try(takes_s, one) for one in found]


async def same_errors(desk: Desk) -> None:
    """The third of a kind in a row opens the circuit; each probe has the run's job; then the next agent has it anew."""
    office = Office(desk, {"a": errors(UNKNOWN)})
    plan = plan_of(task("a", max_retries=1, fallback_agents=("g",)), retry_budget={"least": 100})
    result = await office.run(plan)
    desk.same("outcomes", office.outcomes(result), {"a": "failed"})
    desk.same("who tried", [agent for agent, _, _ in office.asked], ["f"] * 6 + ["g"] * 6)
    office.tells(
        """
        workstream:plan 0: Born tasks=1 > all_tasks_created count=1 > first_task_started / 432: settled_with_failures
            completed=0 failed=1 cancelled=0
        task:a 0: Born max_retries=1 > claimed by=a > started / 216: failed > retried > claimed by=a-2 > started /
            432: failed > DeadLettered attempts=6 claims=2
        run:a 0: Born max_attempts=5 > executor_started / 5: execution_failed error=RuntimeError: it broke
            category=unknown charged=True > retry_decided / 7: backoff_completed / 12: execution_failed
            error=RuntimeError: it broke category=unknown charged=True > retry_decided / 16: backoff_completed / 21:
            execution_failed error=RuntimeError: it broke category=unknown charged=True > retry_decided / 81:
            cooldown_expired > probe_started / 86: execution_failed error=RuntimeError: it broke category=unknown
            charged=True > retry_decided / 146: cooldown_expired > probe_started / 151: execution_failed
            error=RuntimeError: it broke category=unknown charged=True > retry_decided / 211: cooldown_expired >
            probe_started / 216: execution_failed error=RuntimeError: it broke category=unknown charged=True >
            retry_decided
        job:a 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 5: execution_failed
            error=RuntimeError: it broke / 7: retry_delay_elapsed > worker_started worker_id=worker:local / 12:
            execution_failed error=RuntimeError: it broke / 16: retry_delay_elapsed > worker_started
            worker_id=worker:local / 21: execution_failed error=RuntimeError: it broke / 81: retry_delay_elapsed >
            worker_started worker_id=worker:local / 86: execution_failed error=RuntimeError: it broke / 146:
            retry_delay_elapsed > worker_started worker_id=worker:local / 216: execution_failed error=RuntimeError: it
            broke final=True
        run:a-2 216: Born max_attempts=5 > executor_started / 221: execution_failed error=RuntimeError: it broke
            category=unknown charged=True > retry_decided / 223: backoff_completed / 228: execution_failed
            error=RuntimeError: it broke category=unknown charged=True > retry_decided / 232: backoff_completed / 237:
            execution_failed error=RuntimeError: it broke category=unknown charged=True > retry_decided / 297:
            cooldown_expired > probe_started / 302: execution_failed error=RuntimeError: it broke category=unknown
            charged=True > retry_decided / 362: cooldown_expired > probe_started / 367: execution_failed
            error=RuntimeError: it broke category=unknown charged=True > retry_decided / 427: cooldown_expired >
            probe_started / 432: execution_failed error=RuntimeError: it broke category=unknown charged=True >
            retry_decided
        job:a-2 216: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 221:
            execution_failed error=RuntimeError: it broke / 223: retry_delay_elapsed > worker_started
            worker_id=worker:local / 228: execution_failed error=RuntimeError: it broke / 232: retry_delay_elapsed >
            worker_started worker_id=worker:local / 237: execution_failed error=RuntimeError: it broke / 297:
            retry_delay_elapsed > worker_started worker_id=worker:local / 302: execution_failed error=RuntimeError: it
            broke / 362: retry_delay_elapsed > worker_started worker_id=worker:local / 432: execution_failed
            error=RuntimeError: it broke final=True
        """,
        whose="task run job workstream",
    )


async def other_errors(desk: Desk) -> None:
    """Errors that differ use up the attempts; a job without a retry keeps its worker while its circuit cools down."""
    office = Office(desk, {"a": errors("one", "two", "three", "four", ""), "b": [Try(1.0)]})
    lifecycle = {**FLAT, "max_attempts": 3, "circuit_breaker": {"probes_max": 2, "cooldown_period": 20}}
    plan = plan_of(
        task("a", max_retries=0),
        task("b", approval="before"),
        task("c", depends_on=("b",)),
        max_sessions=1,
        task_lifecycle=lifecycle,
    )
    result = await office.run(plan, Hand(1.0, "approve", "b"))
    desk.same("outcomes", office.outcomes(result), {"a": "completed", "b": "completed", "c": "completed"})
    office.tells(
        """
        workstream:plan 0: Born tasks=3 > all_tasks_created count=3 > first_task_started / 75: all_tasks_completed
            completed=3 > validation_passed
        worker:local 0: Born max_concurrent_tasks=1 > registration_complete capabilities=* max_concurrent_tasks=1 >
            task_assigned task_id=a active_tasks=1 / 5: task_assigned task_id=b active_tasks=1 > task_completed
            task_id=a active_tasks=0 / 6: task_assigned task_id=c active_tasks=1 > task_completed task_id=b
            active_tasks=0 / 11: task_assigned task_id=a active_tasks=1 > task_completed task_id=c active_tasks=0 /
            16: task_completed task_id=a active_tasks=0 / 20: task_assigned task_id=a active_tasks=1 / 75:
            shutdown_requested > task_completed task_id=a active_tasks=0
        task:a 0: Born max_retries=0 > claimed by=a > started / 75: completed > closed
        run:a 0: Born max_attempts=3 > executor_started / 5: execution_failed error=RuntimeError: one category=unknown
            charged=True > retry_decided / 11: backoff_completed / 16: execution_failed error=RuntimeError: two
            category=unknown charged=True > retry_decided / 20: backoff_completed / 25: execution_failed
            error=RuntimeError: three category=unknown charged=True > retry_decided / 45: cooldown_expired >
            probe_started / 50: execution_failed error=RuntimeError: four category=unknown charged=True >
            retry_decided / 70: cooldown_expired > probe_started / 75: execution_completed > tests_passed
        job:a 0: Born max_retries=2 > scheduler_assigned > worker_started worker_id=worker:local / 5: execution_failed
            error=RuntimeError: one / 7: retry_delay_elapsed / 11: worker_started worker_id=worker:local / 16:
            execution_failed error=RuntimeError: two / 20: retry_delay_elapsed > worker_started worker_id=worker:local
            / 75: execution_completed > validation_passed
        task:b 0: Born max_retries=3 / 1: Commanded command=approve > approved / 5: claimed by=b > started / 6:
            completed > closed
        run:b 0: Born max_attempts=3 / 5: executor_started / 6: execution_completed > tests_passed
        job:b 0: Born max_retries=2 / 1: scheduler_assigned / 5: worker_started worker_id=worker:local / 6:
            execution_completed > validation_passed
        task:c 0: Born max_retries=3 / 6: claimed by=c > started / 11: completed > closed
        run:c 0: Born max_attempts=3 / 6: executor_started / 11: execution_completed > tests_passed
        job:c 0: Born max_retries=2 / 6: scheduler_assigned depends_on=job:b > worker_started worker_id=worker:local /
            11: execution_completed > validation_passed
        """
    )


async def permanent_errors(desk: Desk) -> None:
    """What nobody can do is tried by the next agent at once, and by the last one from then on."""
    office = Office(desk, {"a": errors(BROKEN)})
    result = await office.run(plan_of(task("a", max_retries=3, fallback_agents=("g", "h"))))
    desk.same("outcomes", office.outcomes(result), {"a": "failed"})
    desk.same("who tried", [agent for agent, _, _ in office.asked], ["f", "g", "h", "h"])
    office.tells(
        """
        task:a 0: Born max_retries=3 > claimed by=a > started / 5: failed > retried > claimed by=a-2 > started / 10:
            failed > retried > claimed by=a-3 > started / 15: failed > retried > claimed by=a-4 > started / 20: failed
            > DeadLettered attempts=1 claims=4
        run:a 0: Born max_attempts=5 > executor_started / 5: execution_failed error=RuntimeError: sh: x: command not
            found category=permanent charged=True > retry_decided
        job:a 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 5: execution_failed
            error=RuntimeError: sh: x: command not found final=True
        run:a-2 5: Born max_attempts=5 > executor_started / 10: execution_failed error=RuntimeError: sh: x: command
            not found category=permanent charged=True > retry_decided
        job:a-2 5: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 10:
            execution_failed error=RuntimeError: sh: x: command not found final=True
        run:a-3 10: Born max_attempts=5 > executor_started / 15: execution_failed error=RuntimeError: sh: x: command
            not found category=permanent charged=True > retry_decided
        job:a-3 10: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 15:
            execution_failed error=RuntimeError: sh: x: command not found final=True
        run:a-4 15: Born max_attempts=5 > executor_started / 20: execution_failed error=RuntimeError: sh: x: command
            not found category=permanent charged=True > retry_decided
        job:a-4 15: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 20:
            execution_failed error=RuntimeError: sh: x: command not found final=True
        """,
        whose="task run job",
    )


async def time_outs(desk: Desk) -> None:
    """Too long is a failure like another one, in words of its own; the last one is a failure that opens the circuit."""
    office = Office(desk, {"a": [Try(1000.0)], "b": [Try(1000.0), Try(9.0)]})
    lifecycle = {**FLAT, "max_attempts": 2, "circuit_breaker": {"enabled": False}, "default_timeout": 20}
    result = await office.run(plan_of(task("a", max_retries=0, timeout_s=10), task("b"), task_lifecycle=lifecycle))
    desk.same("outcomes", office.outcomes(result), {"a": "failed", "b": "completed"})
    office.tells(
        """
        task:a 0: Born max_retries=0 > claimed by=a > started / 22: failed > DeadLettered attempts=2 claims=1
        run:a 0: Born max_attempts=2 > executor_started / 10: execution_timed_out > retry_decided / 12:
            backoff_completed / 22: execution_timed_out > retry_decided > retry_decided
        job:a 0: Born max_retries=1 > scheduler_assigned > worker_started worker_id=worker:local / 10:
            execution_failed error=the turn took longer than turn_timeout_s (10 s) / 12: retry_delay_elapsed >
            worker_started worker_id=worker:local / 22: execution_failed error=the turn took longer than
            turn_timeout_s (10 s) final=True
        task:b 0: Born max_retries=3 > claimed by=b > started / 31: completed > closed
        run:b 0: Born max_attempts=2 > executor_started / 20: execution_timed_out > retry_decided / 22:
            backoff_completed / 31: execution_completed > tests_passed
        job:b 0: Born max_retries=1 > scheduler_assigned > worker_started worker_id=worker:local / 20:
            execution_failed error=the turn took longer than turn_timeout_s (20 s) / 22: retry_delay_elapsed >
            worker_started worker_id=worker:local / 31: execution_completed > validation_passed
        """,
        whose="task run job",
    )


async def scopes(desk: Desk) -> None:
    """An attempt has what its size says; after five of its kind, half as long again as they took; or its session's."""
    tries = {f"t{number}": [Try(200.0 + 100.0 * number)] for number in range(5)}
    office = Office(desk, {**tries, **{name: [Try(1e6)] for name in "uvwx"}, "y": [Try(599.0)]})
    kind = {"scope": "small", "complexity": "low", "max_retries": 0}
    done = {"max_retries": 0, "depends_on": (*tries,)}
    plan = plan_of(
        *(task(name, **kind) for name in tries),
        task("u", **{**kind, **done}),
        task("v", scope="small", role="r", complexity="low", **done),
        task("w", scope="medium", **done),
        task("x", **done),
        task("y", **{**kind, **done}),
        task_lifecycle=ONCE,
    )
    result = await office.run(plan)
    assert result is not None
    took = {name: round(one.took_s) for name, one in result.tasks.items()}
    desk.same(
        "how each ended",
        office.outcomes(result),
        {**dict.fromkeys((*tries, "y"), "completed"), "u": "failed", "v": "failed", "w": "failed", "x": "failed"},
    )
    for name, wanted_s in {
        **{one: tries[one][0].takes_s for one in tries},
        "u": 600 + 900,
        "v": 600 + 630,
        "w": 600 + 1800,
        "x": 600 + 300,
        "y": 600 + 599,
    }.items():
        desk.same(f"how long {name} took", abs(took[name] - wanted_s) <= 2, True)


async def budgets(desk: Desk) -> None:
    """Once the retries of the whole are spent nothing waits for another try: circuits open, and tasks are given up."""
    office = Office(desk, {"a": errors("one", "two"), "b": errors("three", takes_s=6.0)})
    result = await office.run(plan_of(task("a"), task("b", max_retries=0), retry_budget={"share": 0.5, "least": 0}))
    desk.same("outcomes", office.outcomes(result), {"a": "failed", "b": "failed"})
    office.tells(
        """
        task:a 0: Born max_retries=3 > claimed by=a > started / 207: failed > DeadLettered attempts=5 claims=1
        run:a 0: Born max_attempts=5 > executor_started / 5: execution_failed error=RuntimeError: one category=unknown
            charged=True > retry_decided / 7: backoff_completed / 12: execution_failed error=RuntimeError: two
            category=unknown charged=True > retry_decided > circuit_opened / 72: cooldown_expired > probe_started /
            77: execution_failed error=RuntimeError: two category=unknown charged=True > retry_decided / 137:
            cooldown_expired > probe_started / 142: execution_failed error=RuntimeError: two category=unknown
            charged=True > retry_decided / 202: cooldown_expired > probe_started / 207: execution_failed
            error=RuntimeError: two category=unknown charged=True > retry_decided
        job:a 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 5: execution_failed
            error=RuntimeError: one / 7: retry_delay_elapsed > worker_started worker_id=worker:local / 12:
            execution_failed error=RuntimeError: two / 72: retry_delay_elapsed > worker_started worker_id=worker:local
            / 77: execution_failed error=RuntimeError: two / 137: retry_delay_elapsed > worker_started
            worker_id=worker:local / 142: execution_failed error=RuntimeError: two / 202: retry_delay_elapsed >
            worker_started worker_id=worker:local / 207: execution_failed error=RuntimeError: two final=True
        task:b 0: Born max_retries=0 > claimed by=b > started / 204: failed > DeadLettered attempts=4 claims=1
        run:b 0: Born max_attempts=5 > executor_started / 6: execution_failed error=RuntimeError: three
            category=unknown charged=True > retry_decided > circuit_opened / 66: cooldown_expired > probe_started /
            72: execution_failed error=RuntimeError: three category=unknown charged=True > retry_decided / 132:
            cooldown_expired > probe_started / 138: execution_failed error=RuntimeError: three category=unknown
            charged=True > retry_decided / 198: cooldown_expired > probe_started / 204: execution_failed
            error=RuntimeError: three category=unknown charged=True > retry_decided
        job:b 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 6: execution_failed
            error=RuntimeError: three / 66: retry_delay_elapsed > worker_started worker_id=worker:local / 72:
            execution_failed error=RuntimeError: three / 132: retry_delay_elapsed > worker_started
            worker_id=worker:local / 138: execution_failed error=RuntimeError: three / 198: retry_delay_elapsed >
            worker_started worker_id=worker:local / 204: execution_failed error=RuntimeError: three final=True
        """,
        whose="task run job",
    )


async def signals(desk: Desk) -> None:
    """An agent's word counts with its signals alone; who tries again is told what was missing; then tests decide."""
    office = Office(desk, {"a": [Try(5.0, said="nothing"), Try(5.0, said="all green")]})
    office.checks, office.check_s = [0, 3, 0, 0], 4.0
    tests = [{"command": ["x"]}, {"lint": ["y"]}]
    result = await office.run(
        plan_of(
            task("a", completion=[{"answer_contains": "green"}], acceptance=tests),
            task_lifecycle={"jitter_percentage": 0},
        )
    )
    desk.same("outcomes", office.outcomes(result), {"a": "completed"})
    missing = "You said that this was done, but its answer does not say 'green'. Finish it."
    desk.same("what was asked", [prompt for _, _, prompt in office.asked], ["a", f"a\n\n{missing}", "a"])
    limits = [one.launch.argv for one in office.props if one.launch is not None]
    desk.same("what was run", limits, [("x",), ("y",), ("x",), ("y",)])
    office.tells(
        """
        workstream:plan 0: Born tasks=1 > all_tasks_created count=1 > first_task_started / 33: all_tasks_completed
            completed=1 > validation_passed
        worker:local 0: Born max_concurrent_tasks=6 > registration_complete capabilities=* max_concurrent_tasks=6 >
            task_assigned task_id=a active_tasks=1 / 5: task_completed task_id=a active_tasks=0 / 7: task_assigned
            task_id=a active_tasks=1 / 20: task_assigned task_id=a active_tasks=1 > task_completed task_id=a
            active_tasks=0 / 33: shutdown_requested > task_completed task_id=a active_tasks=0
        task:a 0: Born max_retries=3 > claimed by=a > started / 20: failed > retried > claimed by=a-2 > started / 33:
            completed > closed
        run:a 0: Born max_attempts=5 > executor_started / 5: execution_failed error=not complete: its answer does not
            say 'green' category=unknown charged=True > PartialOutput state=FAILED output=nothing > checkpoint_saved
            state=FAILED attempt=1 saved_as=saved > retry_decided / 7: backoff_completed / 12: execution_completed /
            20: tests_failed > PartialOutput state=FAILED output=all green > checkpoint_saved state=FAILED attempt=2
            saved_as=saved > retry_decided > checkpoint_saved state=CIRCUIT_OPEN attempt=2 saved_as=saved
        job:a 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 5: execution_failed
            error=not complete: its answer does not say 'green' / 7: retry_delay_elapsed > worker_started
            worker_id=worker:local / 12: execution_completed / 20: validation_failed failed_rules=not accepted: lint
            y: exited with 3
        run:a-2 20: Born max_attempts=5 resumed_from=run:a > executor_started / 25: execution_completed / 33:
            checkpoint_saved state=COMPLETED attempt=1 saved_as=saved > tests_passed
        job:a-2 20: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 25:
            execution_completed / 33: validation_passed
        """
    )


async def slow_tests(desk: Desk) -> None:
    """A test has the time that it says, or the plan; one that takes longer has failed."""
    office = Office(desk)
    office.check_s = 15.0
    tests = {"a": [{"command": ["x"]}], "b": [{"command": ["x"], "timeout_s": 20}]}
    plan = plan_of(
        *(task(name, acceptance=found, max_retries=0) for name, found in tests.items()),
        task_lifecycle={**FLAT, "validation_timeout": 10},
        validation=[{"command": ["z"], "timeout_s": 16}],
    )
    result = await office.run(plan)
    desk.same("outcomes", office.outcomes(result), {"a": "failed", "b": "completed"})
    office.tells(
        """
        task:a 0: Born max_retries=0 > claimed by=a > started / 15: failed > DeadLettered attempts=1 claims=1
        run:a 0: Born max_attempts=5 > executor_started / 5: execution_completed / 15: tests_failed > PartialOutput
            state=FAILED output=a > retry_decided
        job:a 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 5:
            execution_completed / 15: validation_failed failed_rules=not accepted: command x: it was still running
            after 10 s
        task:b 0: Born max_retries=0 > claimed by=b > started / 20: completed > closed
        run:b 0: Born max_attempts=5 > executor_started / 5: execution_completed / 20: tests_passed
        job:b 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 5:
            execution_completed / 20: validation_passed
        """,
        whose="run job task",
    )


async def merges(desk: Desk) -> None:
    """What cannot be merged has failed, and is done anew, with nothing of what was done; merged it is closed."""
    office = Office(desk)
    commit = "0123456789abcdef"
    office.rooms.merges = [
        Merge(outcome="refused", why="a conflict"),
        Merge(outcome="merged", commit=commit, target="main"),
        Merge(outcome="nothing", why="no change"),
    ]
    result = await office.run(plan_of(task("a", fallback_agents=("g",)), task("b", depends_on=("a",))))
    desk.same("outcomes", office.outcomes(result), {"a": "completed", "b": "completed"})
    words = [one.reason for one in office.records() if one.event in ("closed", "verification_rejected")]
    desk.same(
        "why", words, ["not merged: a conflict", "merged into main as 0123456789ab", "nothing to merge: no change"]
    )
    office.tells(
        """
        task:a 0: Born max_retries=3 > claimed by=a > started / 5: completed > verification_rejected > retried >
            claimed by=a-2 > started / 10: completed > closed
        run:a 0: Born max_attempts=5 > executor_started / 5: execution_completed > tests_passed
        job:a 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 5:
            execution_completed > validation_passed
        task:b 0: Born max_retries=3 / 10: claimed by=b > started / 15: completed > closed
        run:b 0: Born max_attempts=5 / 10: executor_started / 15: execution_completed > tests_passed
        job:b 0: Born max_retries=4 / 10: scheduler_assigned depends_on=job:a-2 > worker_started
            worker_id=worker:local / 15: execution_completed > validation_passed
        run:a-2 5: Born max_attempts=5 > executor_started / 10: execution_completed > tests_passed
        job:a-2 5: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 10:
            execution_completed > validation_passed
        """,
        whose="task run job",
    )


async def approvals(desk: Desk) -> None:
    """Who must approve is waited for, without a worker; what is denied, or cannot be merged, has failed."""
    office = Office(desk)
    office.rooms.merges = [Merge(outcome="nothing"), Merge(outcome="refused", why="a conflict")]
    tasks = (
        task("a", approval="after", max_retries=1),
        task("b", approval="before", max_retries=0),
        task("c", approval="before"),
        task("d", approval="after", max_retries=0),
    )
    result = await office.run(
        plan_of(*tasks),
        Hand(10.0, "approve", "b"),
        Hand(11.0, "reject", "c"),
        Hand(20.0, "approve", "a"),
        Hand(21.0, "reject", "d"),
        Hand(40.0, "approve", "a"),
    )
    wanted = {"a": "completed", "b": "completed", "c": "aborted", "d": "failed"}
    desk.same("outcomes", office.outcomes(result), wanted)
    answers = [
        ("approve", "OPEN"),
        ("reject", "CANCELLED"),
        ("approve", "FAILED"),
        ("reject", "FAILED"),
        ("approve", "CLOSED"),
    ]
    desk.same("answers", [(verb, state) for verb, _, state, _ in office.answers_to], answers)
    office.tells(
        """
        workstream:plan 0: Born tasks=4 > all_tasks_created count=4 > first_task_started / 40: settled_with_failures
            completed=2 failed=1 cancelled=1
        task:a 0: Born max_retries=1 > claimed by=a > started / 5: completed > approval_requested / 20: Commanded
            command=approve > approval_denied by=me > retried > claimed by=a-2 > started / 25: completed >
            approval_requested / 40: Commanded command=approve > approval_granted by=me
        run:a 0: Born max_attempts=5 > executor_started / 5: execution_completed > tests_passed
        job:a 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 5:
            execution_completed > validation_passed
        task:b 0: Born max_retries=0 / 10: Commanded command=approve > approved > claimed by=b > started / 15:
            completed > closed
        run:b 0: Born max_attempts=5 / 10: executor_started / 15: execution_completed > tests_passed
        job:b 0: Born max_retries=4 / 10: scheduler_assigned > worker_started worker_id=worker:local / 15:
            execution_completed > validation_passed
        task:c 0: Born max_retries=3 / 11: Commanded command=reject > rejected
        run:c 0: Born max_attempts=5 / 11: cancelled
        job:c 0: Born max_retries=4 / 11: user_cancelled
        task:d 0: Born max_retries=0 > claimed by=d > started / 5: completed > approval_requested / 21: Commanded
            command=reject > approval_denied by=me > DeadLettered attempts=0 claims=1
        run:d 0: Born max_attempts=5 > executor_started / 5: execution_completed > tests_passed
        job:d 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 5:
            execution_completed > validation_passed
        run:a-2 20: Born max_attempts=5 > executor_started / 25: execution_completed > tests_passed
        job:a-2 20: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 25:
            execution_completed > validation_passed
        """,
        whose="task run job workstream",
    )


async def reviews(desk: Desk) -> None:
    """A second agent's findings are a failed test; silence is none."""
    yes, no = '{"verdict": "approve"}', '{"verdict": "reject", "findings": ["it is red", "it is old"]}'
    office = Office(desk, {"h": [Try(3.0, said=no), Try(3.0, said=yes)]})
    result = await office.run(plan_of(task("a", acceptance=[{"command": ["x"]}]), review={"agent": "h"}))
    desk.same("outcomes", office.outcomes(result), {"a": "completed"})
    office.tells(
        """
        task:a 0: Born max_retries=3 > claimed by=a > started / 8: failed > retried > claimed by=a-2 > started / 16:
            completed > closed
        run:a 0: Born max_attempts=5 > executor_started / 5: execution_completed / 8: tests_failed > PartialOutput
            state=FAILED output=a > retry_decided
        job:a 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 5:
            execution_completed / 8: validation_failed failed_rules=it is red,it is old
        run:a-2 8: Born max_attempts=5 > executor_started / 13: execution_completed / 16: tests_passed
        job:a-2 8: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local / 13:
            execution_completed / 16: validation_passed
        """,
        whose="task run job",
    )


TRYING = (
    same_errors,
    other_errors,
    permanent_errors,
    time_outs,
    scopes,
    budgets,
    signals,
    slow_tests,
    merges,
    approvals,
    reviews,
)
