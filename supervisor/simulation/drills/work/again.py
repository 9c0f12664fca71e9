"""Again: a plan that was carried out before, and workers that were never heard of."""

from __future__ import annotations

from typing import Final

from supervisor.entity import Refused
from supervisor.scheduling.runner import PlanRunner
from supervisor.scheduling.workers import Pool
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.work.kills import office_of
from supervisor.simulation.drills.work.office import Office, Try, plan_of, task

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
        await office.run(plan, copy_after_s=killed_after_s, give_up_after_s=killed_after_s)
        if office.copies:
            office = office_of(desk, office.copies[0])
            await office.run(plan)
        done = next(one for one in office.records(office.last_seq) if one.event == "execution_completed")
        by = next(iter(office.store.log.after((done.cause_id or 1) - 1, 1)))
        desk.same(f"by which word, killed after {killed_after_s} s", (by.entity_id, by.event), ("a", "TurnReaped"))


AGAIN = (run_again, never_heard, by_its_word)
