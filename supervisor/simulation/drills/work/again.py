"""Again: a plan that was carried out before, and workers that were never heard of."""

from __future__ import annotations

from typing import Final

from supervisor.runtime.entity import Refused
from supervisor.simulation.drills.desk import Desk, hearing
from supervisor.simulation.drills.work.kills import office_of
from supervisor.simulation.drills.work.office import FLAT, Office, Try, plan_of, task
from supervisor.work import attempt_runner as execution
from supervisor.work.plan_runner import PlanRunner
from supervisor.work.workers import Pool

__all__ = ["AGAIN"]

DEAF: Final = {"heartbeat_s": 1, "check_s": 5, "misses_max": 2, "shutdown_s": 100}


async def run_again(desk: Desk) -> None:
    """A plan that was carried out is begun anew where nobody says otherwise; it is not resumed, for there is nothing
    that was cancelled or given up."""
    plan = plan_of(task("a"), task("b", depends_on=["a"]))
    first = office_of(desk)
    await first.run(plan)
    other = office_of(desk, first.store)
    async with other.staffed(plan.settings) as sup:
        runner = PlanRunner(sup)
        desk.same("begun anew", other.outcomes(await runner.run(plan)), dict.fromkeys("ab", "completed"))
    desk.same("who is asked", [prompt for _, _, prompt in other.asked], ["a", "b"])
    last = office_of(desk, other.store)
    async with last.staffed(plan.settings) as sup:
        await desk.raises("resumed", PlanRunner(sup).run(plan, resume=True), Refused)
    desk.same("who is asked then", last.asked, [])


async def never_heard(desk: Desk) -> None:
    """A worker that gives no sign from the beginning is missed at the first look, and lost after so many."""

    async def deaf(pool: Pool, worker_id: str, heartbeat_s: float) -> None:
        await pool.pause(1_000.0)

    office = Office(desk, {"a": [Try(12.0), Try(1.0)]})
    await office.run(plan_of(task("a"), workers={"w": DEAF}), heart=deaf, give_up_after_s=40.0)
    lost = [(at_s, what) for at_s, what in office.tales()["worker:w"] if what.startswith("health_check_timeout")]
    desk.same("how it is lost", [what for _, what in lost], ["health_check_timeout missed=2"])
    desk.at("how it is lost", 10.0, 4, lost[0][0] if lost else 0.0)


async def by_its_word(desk: Desk) -> None:
    """What an attempt came to follows from the word of its session, also where another supervisor hears it than the
    one that asked."""
    plan = plan_of(task("a").model_copy(update={"agent": "p"}))
    for killed_after_s in (5.0, None):
        office = office_of(desk, a=Try(20.0))
        await office.run(plan, copy_after_s=killed_after_s, give_up_after_s=killed_after_s and killed_after_s + 1.0)
        if office.copies:
            office = office_of(desk, office.copies[0])
            await office.run(plan)
        done = next(one for one in office.records(office.last_seq) if one.event == "execution_completed")
        by = next(iter(office.store.log.after((done.cause_id or 1) - 1, 1)))
        desk.same(f"by which word, killed after {killed_after_s} s", (by.entity_id, by.event), ("a", "TurnReaped"))


async def in_vain(desk: Desk) -> None:
    """Who cannot be begun is told which of those that it depends on did not complete, and no other one; what was
    settled under an earlier supervisor took no time under this one."""
    plan = plan_of(task("a"), task("b", max_retries=0), task("c", depends_on=["a", "b"]), task("d"))
    life = office_of(desk, a=Try(3.0), b=Try(9.0, "sh: x: command not found"), d=Try(60.0))
    await life.run(plan, copy_after_s=6.0, give_up_after_s=7.0)
    office = office_of(desk, life.copies[0], b=Try(9.0, "sh: x: command not found"))
    result = await office.run(plan)
    ends = {"a": "completed", "b": "failed", "c": "blocked", "d": "completed"}
    desk.same("outcomes", office.outcomes(result), ends)
    assert result is not None
    desk.same("why it is blocked", result.tasks["c"].error, "it depends on b, which did not complete")
    desk.same("what it took", result.tasks["a"].took_s, 0.0)


async def warned_of(desk: Desk) -> None:
    """Whoever watches the log hears of each circuit that opens, and whether that is the end of it; of an attempt that
    is followed by another one he does not."""
    circuit = {"max_error_repeats": 1, "cooldown_period": 4, "probes_max": 1}
    tries = [Try(1.0, "one"), Try(1.0, "two"), Try(1.0, "two"), Try(1.0, "two")]
    office = Office(desk, {"a": [*tries, Try(1.0)]})
    with hearing(execution) as heard:
        await office.run(plan_of(task("a", max_retries=0), task_lifecycle={**FLAT, "circuit_breaker": circuit}))
    told = [(what, more["task"], more["settled"]) for what, more in heard if "circuit" in what]
    desk.same("what is told", told, [("a task's circuit is open", "a", one) for one in (False, True)])


AGAIN = (run_again, never_heard, by_its_word, in_vain, warned_of)
