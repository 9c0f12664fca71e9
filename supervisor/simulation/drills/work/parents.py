"""Parents: what a later supervisor, or nobody, makes of tasks that were split, wherever their supervisor was killed.

Held to docs/plans.md ("Subtasks") and docs/recovery.md: what was turned down is not merged, what its subtasks do is not
done again, and nobody but them works on it meanwhile.
"""

from __future__ import annotations

from textwrap import dedent
from typing import Final

from supervisor.plans import TaskConfig
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.work.kills import left_by, office_of, right_after
from supervisor.simulation.drills.work.office import FLAT, Hand, Try, plan_of, task

__all__ = ["PARENTS"]

PART: Final = {"id": "b", "prompt": "b", "agent": "f"}


async def rejected_whole(desk: Desk) -> None:
    """A kill while a whole is turned down: it fails under the heir, too, and is looked at anew only where its task has
    a try left, or where its tests had said nothing yet. Its parts are not done again."""
    rejected = (
        ("run:a", "tests_failed"),
        ("run:a", "retry_decided"),
        ("job:a", "validation_failed"),
        ("task:a", "subtasks_completed"),
        ("task:a", "verification_rejected"),
    )
    tried = (("task:a", "retried"), ("run:a-2", "Born"), ("job:a-2", "Born"), ("job:a-2", "scheduler_assigned"))
    for entity_id, event in (("job:a", "execution_completed"), *rejected, *tried):
        for max_retries, max_attempts in ((0, 1), (0, 5), (1, 1), (1, 5)):
            if not max_retries and (entity_id, event) in tried:
                continue
            life = office_of(desk)
            life.checks = [1] * 9
            lifecycle = {**FLAT, "max_attempts": max_attempts}
            whole = task("a", subtasks=[PART], acceptance=[{"command": ["x"]}], max_retries=max_retries)
            plan = plan_of(whole, task_lifecycle=lifecycle)
            right_after(life, entity_id, event)
            await life.run(plan)
            heir = office_of(desk, left_by(life))
            result = await heir.run(plan)
            again = max_retries > 0 or event == "execution_completed"
            what = f"after {event} of {entity_id}, with {max_retries} more tries of {max_attempts} attempts"
            desk.same(what, heir.outcomes(result), {"a": "completed" if again else "failed", "b": "completed"})
            said = [one.event for one in heir.records() if one.entity_id == "task:a" and one.from_status]
            first = [] if event == "execution_completed" else ["verification_rejected", "retried"][: 1 + max_retries]
            last = ["claimed", "started", "completed"] if first and again else ["subtasks_completed"] * again
            last = [*last, "closed"] if again else []
            desk.same(f"{what}: what is said of it", said[-len([*first, *last]) :], [*first, *last])
            desk.same(f"{what}: who has done parts", [one[1] for one in heir.asked if one[1].startswith("b")], [])


async def cooling_parent(desk: Desk) -> None:
    """A task that was split while its circuit was open is its parts' under the next supervisor, and its cooldown goes
    on; where its last probe was taken away, another run takes that one's place then."""
    part = TaskConfig.model_validate(PART)
    anew = """
        run:a-2 10: Born max_attempts=1 > executor_started > execution_completed > tests_passed
        job:a 10: user_cancelled
        job:a-2 10: Born max_retries=0 > scheduler_assigned > worker_started worker_id=worker:local-2 >
            execution_completed > validation_passed
    """
    probed = """
        run:a 10: cooldown_expired > probe_started > execution_completed > tests_passed
        job:a 10: retry_delay_elapsed > worker_started worker_id=worker:local-2 > execution_completed >
            validation_passed
    """
    for probes, its_own in ((1, anew), (2, probed)):
        life = office_of(desk)
        life.tries["a"] = [Try(2.0, "it broke"), Try(50.0)]
        lifecycle = {**FLAT, "max_attempts": 1, "circuit_breaker": {"probes_max": probes, "cooldown_period": 20}}
        plan = plan_of(task("a", max_retries=3), task_lifecycle=lifecycle)
        right_after(life, "task:a", "split")
        await life.run(plan, Hand(30.0, "requeue", "a"), Hand(32.0, "split", "a", ((part,),)), give_up_after_s=40.0)
        heir = office_of(desk, left_by(life))
        result = await heir.run(plan)
        desk.same("outcomes", heir.outcomes(result), {"a": "completed", "b": "completed"})
        wanted = "task:a 10: subtasks_completed > closed\n" + dedent(its_own).strip()
        heir.tells(wanted, after=heir.last_seq, whose="task:a run:a job:a")


async def renewed(desk: Desk) -> None:
    """A kill while a run takes the place of another one, whose last probe was taken away: it does so under the heir."""
    lifecycle = {**FLAT, "max_attempts": 1, "circuit_breaker": {"probes_max": 1, "cooldown_period": 20}}
    plan = plan_of(task("a", max_retries=3), task_lifecycle=lifecycle)
    hands = (Hand(30.0, "requeue", "a"), Hand(32.0, "split", "a", ((TaskConfig.model_validate(PART),),)))
    for entity_id, event in (("job:a", "user_cancelled"), ("run:a-2", "Born"), ("job:a-2", "Born")):
        life = office_of(desk, b=Try(60.0))
        life.tries["a"] = [Try(2.0, "it broke"), Try(50.0)]
        right_after(life, entity_id, event)
        await life.run(plan, *hands, give_up_after_s=60.0)
        heir = office_of(desk, left_by(life))
        result, what = await heir.run(plan), f"after {event} of {entity_id}"
        desk.same(f"{what}: outcomes", heir.outcomes(result), {"a": "completed", "b": "completed"})
        desk.same(f"{what}: who is asked", [one[2] for one in heir.asked], ["b"])
        runs = {row.id: row.state for row in heir.store.entities.values() if row.id.startswith("run:a")}
        desk.same(f"{what}: its runs", runs, {"run:a": "CIRCUIT_OPEN", "run:a-2": "COMPLETED"})


async def turned_down(desk: Desk) -> None:
    """A whole that was turned down, and that nobody goes on with, has failed: who resumes its plan does not count it as
    done; whether nobody runs the plan again, or gives it up before he comes to it."""
    whole = task("a", subtasks=[PART], acceptance=[{"command": ["x"]}], max_retries=0)
    plan = plan_of(whole, task("c", depends_on=["a"]))
    for give_up_after_s in (None, 0.5, 1.5):
        life = office_of(desk)
        life.checks = [1]
        right_after(life, "task:a", "subtasks_completed")
        await life.run(plan)
        heir, what = office_of(desk, left_by(life)), f"given up after {give_up_after_s} s"
        heir.commit_s = 0.0 if give_up_after_s is None else 1.0
        if give_up_after_s is None:
            async with heir.staffed(plan.settings):
                pass
        else:
            await heir.run(plan, give_up_after_s=give_up_after_s)
        states = {row.id: row.state for row in heir.store.entities.values()}
        desk.same(f"{what}: its states", (states["task:a"], states["run:a"]), ("FAILED", "CIRCUIT_OPEN"))
        last = office_of(desk, heir.store)
        last.checks = [1]
        result = await last.run(plan, resume=True)
        desk.same(f"{what}: resumed", last.outcomes(result), {"a": "failed", "b": "completed", "c": "blocked"})


async def drained_in_its_slot(desk: Desk) -> None:
    """A task that is split while it cools down in its slot is cancelled when the supervisor is to end, as one is that
    waits elsewhere."""
    life = office_of(desk, b=Try(300.0))
    life.tries["a"] = [Try(2.0, "it broke"), Try(50.0)]
    lifecycle = {**FLAT, "max_attempts": 1, "circuit_breaker": {"probes_max": 2, "cooldown_period": 200}}
    plan = plan_of(task("a", max_retries=0), task_lifecycle=lifecycle)
    split = Hand(10.0, "split", "a", ((TaskConfig.model_validate(PART),),))
    result = await life.run(plan, split, stop_after_s=20.0)
    desk.same("outcomes", life.outcomes(result), {"a": "aborted", "b": "aborted"})
    desk.same("how it ends", life.tales()["task:a"][-1], (20.0, "cancelled"))


async def waits_again(desk: Desk) -> None:
    """A parent was blocked on a subtask that did not answer, and is not any more: it waits for that again, also where
    its supervisor was killed before it said so."""
    life = office_of(desk, a=Try(9.0), b=Try(200.0))
    plan = plan_of(task("a", timeout_s=30))
    split = Hand(3.0, "split", "a", ((TaskConfig.model_validate(PART),),))
    right_after(life, "task:a", "unblocked")
    await life.run(plan, split, Hand(50.0, "unblock", "a"), give_up_after_s=60.0)
    heir = office_of(desk, left_by(life), b=Try(20.0))
    desk.same("outcomes", heir.outcomes(await heir.run(plan)), {"a": "completed", "b": "completed"})
    desk.same("who is asked", [one[2] for one in heir.asked], ["b"])


async def unbegun_parent(desk: Desk) -> None:
    """A task whose subtask is rejected while it waits for another one is not begun under the heir before that is
    there: only then it is split, and fails with its subtask."""
    life = office_of(desk)
    whole = task("a", subtasks=[{**PART, "approval": "before"}], depends_on=["first"])
    plan = plan_of(task("first", approval="before"), whole)
    right_after(life, "job:b", "user_cancelled")
    await life.run(plan, Hand(1.0, "reject", "b"), give_up_after_s=2.0)
    heir = office_of(desk, left_by(life))
    result = await heir.run(plan, Hand(9.0, "approve", "first"))
    desk.same("outcomes", heir.outcomes(result), {"first": "completed", "a": "aborted", "b": "aborted"})
    said = [one.event for one in heir.records() if one.entity_id == "task:a" and one.from_status]
    desk.same("what is said of it", said, ["split", "subtask_failed", "cancelled"])
    desk.same(
        "of its job", [one.event for one in heir.records() if one.entity_id == "job:a"], ["Born", "user_cancelled"]
    )


async def unwanted_part(desk: Desk) -> None:
    """A task that was cancelled, and whose supervisor did not live to cancel its subtask: the heir does that, also
    where that has lost its session, and has no retry. It has not failed."""
    life = office_of(desk, b=Try(20.0))
    part = {**PART, "max_retries": 0}
    plan = plan_of(task("a", subtasks=[part]), task("c", approval="before"))
    right_after(life, "job:a", "user_cancelled")
    await life.run(plan, Hand(2.0, "cancel", "a"), give_up_after_s=3.0)
    heir = office_of(desk, left_by(life), b=Try(20.0))
    result = await heir.run(plan, Hand(9.0, "approve", "c"))
    desk.same("outcomes", heir.outcomes(result), {"a": "aborted", "b": "aborted", "c": "completed"})
    said = [one for one in heir.records(heir.last_seq) if one.entity_id == "task:b"]
    desk.same("what is said of it", [(one.event, one.reason) for one in said], [("cancelled", "a is aborted")])


async def part_of_settled(desk: Desk) -> None:
    """Who splits a subtask of what has ended under an earlier supervisor, before that one is cancelled, is refused."""
    life = office_of(desk)
    parts = [{**PART, "depends_on": ["c"]}, {**PART, "id": "d", "depends_on": ["c"]}]
    plan = plan_of(task("a", subtasks=parts), task("c", approval="before"))
    right_after(life, "job:a", "user_cancelled")
    await life.run(plan, Hand(2.0, "cancel", "a"), give_up_after_s=3.0)
    heir = office_of(desk, left_by(life))
    more = TaskConfig.model_validate({**PART, "id": "x"})
    result = await heir.run(plan, Hand(0.0, "split", "d", ((more,),)), Hand(9.0, "approve", "c"))
    desk.same("outcomes", heir.outcomes(result), {"a": "aborted", "b": "aborted", "d": "aborted", "c": "completed"})
    words = "task 'd' is a part of 'a', which has ended; nobody wants it any more"
    late = "task: split in CANCELLED; allowed here: nothing"  # where that came first
    said = late if [one[2] for one in heir.refused] == [late] else words
    desk.same("what is refused", heir.refused, [("split", "d", said)])


async def failed_part(desk: Desk) -> None:
    """A task whose subtask was rejected, and that its supervisor did not live to cancel, is cancelled by the heir at
    once: it does not wait for whatever else of its plan can go on."""
    life = office_of(desk)
    plan = plan_of(task("a", subtasks=[{**PART, "approval": "before"}]), task("c", approval="before"))
    right_after(life, "task:a", "subtask_failed")
    await life.run(plan, Hand(1.0, "reject", "b"), give_up_after_s=3.0)
    heir = office_of(desk, left_by(life))
    result = await heir.run(plan, Hand(90.0, "approve", "c"))
    desk.same("outcomes", heir.outcomes(result), {"a": "aborted", "b": "aborted", "c": "completed"})
    heir.tells(
        "task:a 0: cancelled\nrun:a 0: cancelled\njob:a 0: user_cancelled",
        after=heir.last_seq,
        whose="task:a run:a job:a",
    )
    reasons = [one.reason for one in heir.records(heir.last_seq) if one.entity_id == "task:a"]
    desk.same("why", reasons, ["its subtask b did not complete"])


PARENTS = (
    rejected_whole,
    cooling_parent,
    renewed,
    turned_down,
    drained_in_its_slot,
    waits_again,
    unbegun_parent,
    unwanted_part,
    part_of_settled,
    failed_part,
)
