"""Cut short: a kill, or the end of a plan, in the middle of what takes more than one record.

Held to docs/recovery.md ("what a later supervisor finds") and docs/work.md: nobody is begun twice, nothing stays alive
that nobody goes on with, and what is counted is what there is.
"""

from __future__ import annotations

import copy
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any, Final

import anyio

from supervisor.embedding.runtime import Supervisor
from supervisor.lifecycles.types import AbortScope
from supervisor.plans import BadPlan, TaskConfig
from supervisor.plans.settings import RecoveryConfig
from supervisor.ports import JournalUnavailable, Place
from supervisor.runtime.entity import Refused
from supervisor.runtime.journal_writer import Cause
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.work.kills import left_by, office_of, right_after
from supervisor.simulation.drills.work.office import FLAT, Hand, Office, Try, plan_of, task
from supervisor.work.plan_runner import PlanRunner

__all__ = ["CUT"]

ORPHANED: Final = "the supervisor of its session ended"


def _puppets(*names: str) -> list[TaskConfig]:
    return [task(name).model_copy(update={"agent": "p"}) for name in names]


async def unclaimed(desk: Desk) -> None:
    """A session that was begun for a task, and is not on record to hold it, is ended by the next supervisor, which
    begins another one, or gives the plan up at once; who was begun by a person goes on."""
    life = office_of(desk)
    plan = plan_of(task("a", approval="before").model_copy(update={"agent": "p"}))
    right_after(life, "a", "Born")

    async def begins(sup: Supervisor, runner: PlanRunner) -> None:
        await sup.start_session("own", agent="p")

    await life.run(plan, Hand(2.0, "approve", "a"), beside=begins, give_up_after_s=3.0)
    heir, alive = office_of(desk, copy.deepcopy(left_by(life))), list[str]()

    async def looks(sup: Supervisor, runner: PlanRunner) -> None:
        await anyio.sleep(1.0)
        alive.extend(sup.tree.works)

    result = await heir.run(plan, beside=looks)
    desk.same("outcomes", heir.outcomes(result), {"a": "completed"})
    desk.same("who is alive", sorted(alive), ["a-2", "own"])
    ends = [(one.reason, one.actor) for one in await heir.events("a", "OperatorStop")]
    desk.same("why the first one ends", ends, [(ORPHANED, "plan")])
    left = [one[1] for one in heir.rooms.noted if one[0] == "put_away"]
    desk.same("whose place is put away", left, ["a", "a-2"])
    unwilling = office_of(desk, left_by(life))
    async with unwilling.staffed(plan.settings) as sup:
        async with anyio.create_task_group() as group:
            unwilling.commit_s = 1.0
            group.start_soon(PlanRunner(sup).run, plan)
            await anyio.sleep(0.5)
            group.cancel_scope.cancel()
        desk.same("who is left by who gives it up", [*sup.tree.works], ["own"])


async def counted(desk: Desk) -> None:
    """A split that is cut short: the counts of the workstream add up to as many tasks as it was said to have, and
    nobody whose task is not split into them works on subtasks."""
    parts = tuple(TaskConfig.model_validate({"id": one, "prompt": one, "agent": "f", "max_retries": 0}) for one in "xy")
    moments = (("task:x", "Born"), ("job:y", "Born"), ("workstream:plan", "tasks_added"), ("task:a", "split"))
    for entity_id, event in moments:
        life = office_of(desk, a=Try(20.0))
        plan = plan_of(task("a"), task("b", approval="before"))
        right_after(life, entity_id, event)
        await life.run(plan, Hand(4.0, "split", "a", (parts,)), give_up_after_s=6.0)
        heir = office_of(desk, left_by(life), a=Try(20.0))
        result = await heir.run(plan, Hand(8.0, "approve", "b"))
        split, what = event == "split", f"after {event} of {entity_id}"
        names = "abxy" if split else "ab"
        desk.same(f"{what}: outcomes", heir.outcomes(result), dict.fromkeys(names, "completed"))
        streams = [one for one in heir.records(heir.last_seq) if one.entity_type == "workstream"]
        said = [(one.event, one.metadata.get("completed")) for one in streams]
        count = len(names) + 2 * (event == "tasks_added")
        desk.same(
            f"{what}: what is said of the whole", said, [("all_tasks_completed", count), ("validation_passed", None)]
        )


async def grown(desk: Desk) -> None:
    """A plan that is read again, and killed before it was said to have more tasks: its heir says so, of these and of
    those that are new with it."""
    tasks = [task(one) for one in "abcde"]
    life = office_of(desk, a=Try(20.0))

    async def reads(sup: Supervisor, runner: PlanRunner) -> None:
        await anyio.sleep(4.0)
        runner.add(plan_of(*tasks[:3]))

    right_after(life, "job:c", "Born")
    await life.run(plan_of(*tasks[:1]), beside=reads, give_up_after_s=6.0)
    for names in ("abc", "abcd", "abcde"):
        heir = office_of(desk, copy.deepcopy(left_by(life)))
        result = await heir.run(plan_of(*tasks[: len(names)]))
        desk.same("outcomes", heir.outcomes(result), dict.fromkeys(names, "completed"))
        streams = [one for one in heir.records(heir.last_seq) if one.entity_type == "workstream"]
        said = [(one.event, *one.metadata.values()) for one in streams]
        desk.same(
            "what is said of the whole",
            said,
            [("tasks_added", len(names) - 1), ("all_tasks_completed", len(names)), ("validation_passed",)],
        )


async def done_before(desk: Desk) -> None:
    """What waited for a task follows from the job that completed it, whichever supervisor saw that; a job that was
    given up, since its task counts as done without it, is none."""
    tasks = [task("gate", approval="before"), task("b", depends_on=["gate", "a", "x"]), task("c")]
    plan = plan_of(*_puppets("x", "a"), *tasks, max_sessions=3)
    life = office_of(desk, None, None, a=Try(100.0), x=Try(100.0), c=Try(3.0))
    await life.run(plan, copy_after_s=5.0, give_up_after_s=6.0)
    second = office_of(desk, life.copies[0], None, a=Try(100.0), x=Try(100.0))
    narrow = plan.model_copy(update={"max_sessions": 1, "recovery": RecoveryConfig(sessions="restart")})
    await second.run(narrow, copy_after_s=5.0, give_up_after_s=6.0)
    jobs = {one.id: one.state for one in second.copies[0].entities.values() if one.kind == "job"}
    has, waits = sorted("ax", key=lambda one: jobs[f"job:{one}"], reverse=True)  # whoever came first
    desk.same("their jobs", [jobs[f"job:{one}"] for one in (has, waits, "c")], ["running", "queued", "completed"])
    third = office_of(desk, second.copies[0])
    done = plan.model_copy(update={"recovery": RecoveryConfig(orphans="done")})
    await third.run(done, copy_after_s=1.0, give_up_after_s=2.0)
    states = {one.id: one.state for one in third.copies[0].entities.values() if one.kind in ("job", "task")}
    desk.same("who is done", [states[f"task:{one}"] for one in "xac"], ["CLOSED"] * 3)
    over = [states[f"job:{one}"] for one in (has, waits, "c")]
    desk.same("by which job", over, ["completed", "cancelled", "completed"])
    last = office_of(desk, third.copies[0])
    result = await last.run(plan, Hand(1.0, "approve", "gate"))
    desk.same("outcomes", last.outcomes(result), dict.fromkeys(["x", "a", "c", "gate", "b"], "completed"))
    said = [one for one in last.records(last.last_seq) if (one.entity_id, one.event) == ("job:b", "scheduler_assigned")]
    desk.same("what it follows from", [one.metadata["depends_on"] for one in said], [["job:gate", f"job:{has}"]])


async def put_in_order(desk: Desk) -> None:
    """A kill right after the last word on a task, and before its place was put in order: the next one does that. What
    was cancelled is taken back; what is closed is there to stay."""
    for entity_id, event, wanted in (
        ("task:a", "closed", ["forget"]),
        ("job:a", "user_cancelled", ["roll_back"]),
    ):
        life = office_of(desk)
        life.tries["a"] = [Try(8.0)]
        plan = plan_of(task("a", rollback=True, files=["a"]), task("b", depends_on=["c"]), task("c"))
        life.tries["c"] = [Try(30.0)]
        right_after(life, entity_id, event)
        await life.run(plan, *([Hand(5.0, "cancel", "a")] if event != "closed" else []), give_up_after_s=20.0)
        heir = office_of(desk, left_by(life))
        ends = {"a": "completed" if event == "closed" else "aborted", "b": "completed", "c": "completed"}
        desk.same(f"{event}: outcomes", heir.outcomes(await heir.run(plan)), ends)
        asked = _of(heir, "begin", "save", "roll_back", "forget")
        desk.same(f"{event}: what is done of it", asked.get("task:a"), wanted)


def _of(office: Office, *whats: str) -> dict[str, list[str]]:
    """What was asked of the places that tasks own, by the task."""
    found: dict[str, list[str]] = {}
    for what, *more in office.rooms.noted:
        if what in whats:
            found.setdefault(next(one.owner for one in more if isinstance(one, Place)), []).append(what)
    return found


async def given_up_in_place(desk: Desk) -> None:
    """A plan is given up: what is at work is saved where the plan wants that, and is taken back then; what nobody wants
    back is left; and what is verified is there to stay, also where an heir only was to bring it home."""
    office = Office(desk, {"working": [Try(60.0)], "left": [Try(60.0)]})
    tasks = [task("working", rollback=True, files=["w"]), task("left")]
    lifecycle = {**FLAT, "checkpoint": {"save_on_states": ["CANCELLED"]}}
    desk.same("its result", await office.run(plan_of(*tasks, task_lifecycle=lifecycle), give_up_after_s=7.0), None)
    wanted = {"task:working": ["begin", "save", "roll_back"], "task:left": ["save"]}
    desk.same("what was asked", _of(office, "begin", "save", "roll_back", "forget"), wanted)
    saved = [
        (one.entity_id, one.metadata["state"], one.metadata["session"], one.metadata["saved_as"])
        for one in office.records()
        if one.event == "checkpoint_saved"
    ]
    kept = [(f"run:{one}", "CANCELLED", one, "saved") for one in ("left", "working")]
    desk.same("checkpoints", sorted(saved), kept)
    life, plan = Office(desk), plan_of(task("done", rollback=True, files=["d"]))
    life.rooms.takes_s["merge"] = 10.0
    await life.run(plan, copy_after_s=7.0, give_up_after_s=8.0)
    heir = office_of(desk, life.copies[0])
    heir.rooms.takes_s["merge"] = 10.0
    desk.same("its heir's result", await heir.run(plan, give_up_after_s=3.0), None)
    desk.same("what is verified stays", _of(heir, "begin", "save", "roll_back", "forget"), {"task:done": ["forget"]})
    said = [(one.event, one.reason) for one in heir.records(heir.last_seq) if one.entity_id == "task:done"]
    verified = "verified; nobody goes on with its plan: what a worktree held is on its branch"
    desk.same("what is said of it", said, [("closed", verified)])


async def given_up_untouched(desk: Desk) -> None:
    """An heir that is given up before it has come to what it took over leaves nobody at work, and nothing that looks
    alive: what it had not touched ends as where no plan goes on with it."""
    life = office_of(desk, a=Try(60.0), b=Try(5.0))
    tasks = (task("c", depends_on=["a"]), task("d", approval="before"), task("e", approval="after"))
    plan = plan_of(*_puppets("a", "b"), *tasks, workers={"v": {"slots": 2}, "w": {"slots": 2}})
    await life.run(plan, copy_after_s=8.0, give_up_after_s=9.0)
    heir = office_of(desk, life.copies[0], a=Try(60.0))
    heir.commit_s = 1.0
    desk.same("its result", await heir.run(plan, give_up_after_s=0.5), None)
    alive = {row.id: row.state for row in heir.store.entities.values() if not row.ended}
    desk.same("what is not over, but rests", alive, {"task:a": "FAILED"})
    states = {row.id: row.state for row in heir.store.entities.values() if row.kind in ("task", "workstream", "worker")}
    wanted = {
        "workstream:plan": "cancelled",
        "task:a": "FAILED",
        "task:b": "CLOSED",
        **dict.fromkeys(("task:c", "task:d", "task:e"), "CANCELLED"),
        **dict.fromkeys(("worker:v", "worker:w"), "shutdown"),
    }
    desk.same("how they end", states, wanted)
    told = sorted(one.entity_id for one in heir.records(heir.last_seq) if one.event == "shutdown_requested")
    desk.same("who is shut down, and how often", told, ["worker:v", "worker:w"])
    ends = [one.reason for one in await heir.events("a", "OperatorStop")]
    desk.same("why its session ends", ends, ["the plan was given up"])


async def ended_in_part(desk: Desk) -> None:
    """A supervisor ends a plan that nobody runs any more, and is killed when it has said so of the whole alone: nobody
    goes on with what is left of that. It is over before anything else begins, no agent is asked for it again, nor is
    who works below one, and whoever runs the plan begins it anew."""
    life = office_of(desk, a=Try(60.0))
    plan = plan_of(*_puppets("a", "b"), task("c", depends_on=["a"]), task("d", approval="before"), max_sessions=2)

    async def helps(sup: Supervisor, runner: PlanRunner) -> None:
        await anyio.sleep(7.0)
        await sup.start_session("kid", parent="a", agent="p")

    await life.run(plan, beside=helps, copy_after_s=8.0, give_up_after_s=9.0)
    other = office_of(desk, life.copies[0], a=Try(60.0))
    right_after(other, "workstream:plan", "user_cancelled")
    await other.run(plan_of(task("z")))
    heir, alive = office_of(desk, left_by(other)), list[str]()

    async def looks(sup: Supervisor, runner: PlanRunner) -> None:
        await anyio.sleep(1.0)
        alive.extend(sup.tree.works)

    result = await heir.run(plan, Hand(20.0, "approve", "d"), beside=looks)
    desk.same("outcomes", heir.outcomes(result), dict.fromkeys("abcd", "completed"))
    asked = sorted((prompt, agent) for agent, _, prompt in heir.asked)
    desk.same("what is asked, and whom", asked, [*zip("abcd", "ppff", strict=True)])
    desk.same("who is alive", sorted(alive), ["a-2", "b-2"])
    left = {name: tale for name, tale in heir.tales(heir.last_seq).items() if name in LEFT}
    desk.same("what becomes of the rest", left, {name: [(0.0, what) for what in ends] for name, ends in LEFT.items()})


LEFT: Final = {
    **{f"job:{name}": ["user_cancelled"] for name in "acd"},
    **{f"run:{name}": ["cancelled"] for name in "acd"},
    "worker:local": ["health_check_timeout missed=3", "shutdown_requested"],
    "task:a": ["orphaned", "recovery_failed"],
    "task:c": ["cancelled"],
    "task:d": ["rejected"],
}
"""How each ends that belonged to a plan which nobody goes on with."""


async def unheard(desk: Desk) -> None:
    """What a session had come to when its supervisor was killed, and its task had not heard of: it counts."""
    for how in ("failed", "aborted"):
        life = office_of(desk, a=Try(60.0))
        life.cannot_start = {"puppet"} if how == "failed" else set()
        right_after(life, "a", "Ended")
        plan = plan_of(*_puppets("a"))
        await life.run(plan, beside=_ends_it if how == "aborted" else None, give_up_after_s=100.0)
        heir = office_of(desk, left_by(life))
        result = await heir.run(plan)
        desk.same(how, heir.outcomes(result), {"a": "completed" if how == "failed" else "aborted"})
        heir.tells(FAILED if how == "failed" else ABORTED, after=heir.last_seq, whose="task job workstream")
        first = next(one for one in heir.records(heir.last_seq) if one.entity_id == "task:a")
        words = "too many errors (5 in a row, 5 in all): puppet cannot be started"
        desk.same(f"why it is {how}", first.reason, words if how == "failed" else "no more of that")


async def _ends_it(sup: Supervisor, runner: PlanRunner) -> None:
    await anyio.sleep(2.0)
    await sup.abort("a", AbortScope.SESSION, reason="no more of that")


async def tests_unheard_of(desk: Desk) -> None:
    """A supervisor is killed when the work of a task was to be tested, and its job had not heard that it was done; and
    the next one when it has stopped the session: what was to be tested is lost, and another session does it anew."""
    life, plan = office_of(desk), plan_of(task("a"))
    right_after(life, "run:a", "execution_completed")
    await life.run(plan)
    other = office_of(desk, left_by(life))
    right_after(other, "a", "FatalError")
    await other.run(plan_of(task("b"), recovery={"sessions": "stop"}))
    heir = office_of(desk, left_by(other))
    desk.same("outcomes", heir.outcomes(await heir.run(plan)), {"a": "completed"})
    heir.tells(
        """
        task:a 0: orphaned > requeued > claimed by=a-2 > started / 5: completed > closed
        run:a 0: tests_failed > retry_decided
        job:a 0: execution_completed > validation_failed failed_rules=the supervisor of its session ended
        run:a-2 0: Born max_attempts=5 > executor_started / 5: execution_completed > tests_passed
        job:a-2 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local-2 / 5:
            execution_completed > validation_passed
        """,
        after=heir.last_seq,
        whose="task run job",
    )


async def asked_anew(desk: Desk) -> None:
    """A supervisor is killed when the second attempt at a task has begun, and its agent is not asked yet: the next one
    asks it, and how the first attempt ended is not said of the second."""
    life = office_of(desk, a=Try(3.0, "it broke"))
    right_after(life, "run:a", "backoff_completed")
    plan = plan_of(*_puppets("a"))
    await life.run(plan, give_up_after_s=8.0)
    heir = office_of(desk, left_by(life))
    desk.same("outcomes", heir.outcomes(await heir.run(plan)), {"a": "completed"})
    desk.same("how often it is asked", len(heir.asked), 1)
    heir.tells(
        """
        task:a 5: completed > closed
        run:a 5: execution_completed > tests_passed
        job:a 0: worker_lost > retry_delay_elapsed > worker_started worker_id=worker:local-2 / 5: execution_completed >
            validation_passed
        """,
        after=heir.last_seq,
        whose="task run job",
    )


async def wanted_no_more(desk: Desk) -> None:
    """When a critical task has failed nobody begins what is left: not in its slot, nor while an agent takes its time to
    end. Whichever of two that wait for one more had its slot, the other one waits for the next."""
    office = office_of(desk, a=Try(3.0, "sh: x: command not found"), b=Try(60.0), c=Try(1.0), d=Try(60.0), e=Try(60.0))
    office.stops = lambda puppet: ()
    waiting = [task(one, depends_on=["c"]) for one in "de"]
    plan = plan_of(task("a", critical=True, max_retries=0), *_puppets("b"), task("c"), *waiting, max_sessions=3)
    result = await office.run(plan)
    ended = {"a": "failed", "c": "completed", **dict.fromkeys("bde", "aborted")}
    desk.same("outcomes", office.outcomes(result), ended)
    begun = [one.entity_id for one in office.records() if one.event == "claimed" and one.outcome == "transition"]
    desk.same("who has begun", sorted(begun[:3]), ["task:a", "task:b", "task:c"])
    desk.same("how many have begun", len(begun), 4)


async def ended_side_by_side(desk: Desk) -> None:
    """Whom nobody wants any more is ended at once, and not one after the other: each agent takes all of its ladder.
    Nobody wants the others when a critical task has failed, and no subtasks of a task that is cancelled."""
    whole = task("whole").model_copy(update={"agent": "p", "subtasks": tuple(_puppets("b", "c"))})

    async def cancels(sup: Supervisor, runner: PlanRunner) -> None:
        await anyio.sleep(3.0)
        await runner.operating.cancel("whole", by="me")

    for plan, beside in (
        (plan_of(task("a", critical=True, max_retries=0), *_puppets("b", "c"), max_sessions=3), None),
        (plan_of(whole, max_sessions=2), cancels),
    ):
        office = office_of(desk, a=Try(3.0, "sh: x: command not found"), b=Try(60.0), c=Try(60.0))
        office.stops = lambda puppet: ()
        await office.run(plan, beside=beside)
        ended = [at_s for one in "bc" for at_s, what in office.tales()[f"task:{one}"] if what == "cancelled"]
        desk.same("when they are ended", ended, [13, 13])


async def come_too_late(desk: Desk) -> None:
    """A critical task has failed, and another one's agent is still being ended: what is added to the plan then, or
    split off, is opened and cancelled, and the plan ends as it would have."""
    office, refused = office_of(desk, a=Try(3.0, "sh: x: command not found"), b=Try(60.0)), list[str]()
    office.stops = lambda puppet: ()
    once = {"max_retries": 0}
    plan = plan_of(task("a", critical=True, **once), *_puppets("b"), max_sessions=2)

    async def comes(sup: Supervisor, runner: PlanRunner) -> None:
        await anyio.sleep(4.0)
        grown = plan.model_copy(update={"tasks": (*plan.tasks, task("c"))})
        desk.same("what is new", runner.check(grown), ["c"])
        runner.add(grown)
        try:
            await runner.operating.split("b", (task("s"),), by="me")
        except Refused as refusal:
            refused.append(str(refusal))

    result = await office.run(plan, beside=comes)
    desk.same("outcomes", office.outcomes(result), {"a": "failed", **dict.fromkeys("bcs", "aborted")})
    desk.same("why it is not split", refused, ["workstream: tasks_added in failed; allowed here: nothing"])
    office.tells(
        """
        workstream:plan 0: Born tasks=2 > all_tasks_created count=2 > first_task_started / 3: critical_task_failed
            task_id=task:a / 4: refused:tasks_added count=1 > refused:tasks_added count=1
        task:b 0: Born max_retries=3 > claimed by=b > started / 4: Commanded command=split > CommandRefused
            command=split / 13: cancelled
        task:c 4: Born max_retries=3 > cancelled
        run:c 4: Born max_attempts=5 > cancelled
        job:c 4: Born max_retries=4 > user_cancelled
        task:s 4: Born max_retries=3 / 13: cancelled
        run:s 4: Born max_attempts=5 / 13: cancelled
        job:s 4: Born max_retries=4 / 13: user_cancelled
        """,
        whose="task:b task:c run:c job:c task:s run:s job:s workstream",
    )
    why = {one.entity_id: one.reason for one in office.records() if one.event == "cancelled"}
    late = "it came too late: workstream: tasks_added in failed; allowed here: nothing"
    desk.same("why it is not done", (why["task:c"], why["task:s"]), (late, "b is aborted"))


async def not_split_after_all(desk: Desk) -> None:
    """A task comes to its end while its split is on its way to a slow disk: its subtasks are not wanted then, and the
    plan is what it was before."""
    office, refused, plans = Office(desk, {"a": [Try(3.0, "one"), Try(5.0)]}), list[str](), list[list[str]]()

    async def splits(sup: Supervisor, runner: PlanRunner) -> None:
        await anyio.sleep(4.0)
        office.rooms.takes_s, office.rooms.fails = {"begin": 2.0}, {"begin": "the disk is read-only"}
        await anyio.sleep(2.5)
        office.commit_s = 1.0
        try:
            await runner.operating.split("a", (task("s"),), by="me")
        except Refused as refusal:
            refused.append(str(refusal))
        plans.append([one.id for one in runner.load.plan.tasks[0].subtasks])
        office.commit_s = 0.0

    plan = plan_of(task("a", files=["a"], rollback=True), task("z", approval="before"))
    result = await office.run(plan, Hand(20.0, "approve", "z"), beside=splits)
    desk.same("outcomes", office.outcomes(result), {"a": "aborted", "s": "skipped", "z": "completed"})
    words = "task: split in CANCELLED; allowed here: nothing"
    desk.same("what is said of the split, and of the plan", (refused, plans), ([words], [[]]))
    tales = {name: [what for _, what in tale] for name, tale in office.tales().items()}
    asked = ["Commanded command=split", "cancelled", "refused:split subtasks=task:s", "CommandRefused command=split"]
    desk.same("what becomes of it", tales["task:a"][3:], asked)
    desk.same("of its subtask", tales["task:s"], ["Born max_retries=3", "cancelled"])
    desk.same("of the run of that", tales["run:s"], ["Born max_attempts=5", "skipped cause=condition_not_met"])
    whole = ["tasks_added count=1", "settled_with_cancellations completed=2 cancelled=1"]
    desk.same("of the whole", tales["workstream:plan"][3:], whole)


FAILED: Final = """
    job:a 0: execution_failed error=too many errors (5 in a row, 5 in all): puppet cannot be started final=True
    task:a 0: failed > retried > claimed by=a-2 > started / 5: completed > closed
    job:a-2 0: Born max_retries=4 > scheduler_assigned > worker_started worker_id=worker:local-2 / 5:
        execution_completed > validation_passed
    workstream:plan 5: all_tasks_completed completed=1 > validation_passed
    """
ABORTED: Final = """
    task:a 0: cancelled
    job:a 0: user_cancelled
    workstream:plan 0: settled_with_cancellations completed=0 cancelled=1
    """


async def through_conditions(desk: Desk) -> None:
    """Who is blocked on what waits for it by a condition, or by what that is a part of, is in a dead end as others are:
    a plan does not wait for ever."""
    office = Office(desk, {"a": [Try(9.0), Try(5.0)]})
    tasks = (
        task("a"),
        task("b", when={"task": "a", "is": "completed"}),
        task("c", when={"task": "d", "is": "completed"}),
        task("d"),
    )
    result = await office.run(plan_of(*tasks), Hand(3.0, "block", "a", (("b",),)))
    desk.same("outcomes", office.outcomes(result), {"a": "aborted", "b": "skipped", "c": "completed", "d": "completed"})
    why = [one.reason for one in office.records() if one.entity_id == "task:a" and one.event == "cancelled"]
    desk.same("why", why, ["it was blocked on tasks that wait for it"])


async def given_up_unregistered(desk: Desk) -> None:
    """A plan that is given up while no record of it could be made, not even that its workers are there: when the disk
    is back, they are not."""
    office = Office(desk)

    async def recovers(sup: Supervisor, runner: PlanRunner) -> None:
        office.disk_fails = JournalUnavailable("full")
        with anyio.CancelScope(shield=True):
            await anyio.sleep(30.0)
            office.disk_fails = None
            await anyio.sleep(10.0)
            states = {row.id: row.state for row in office.store.entities.values()}
            desk.same("what looks alive", [one for one, state in states.items() if state in ("idle", "busy")], [])
            desk.same("its workers", [states.get(f"worker:{one}") for one in "wv"], ["shutdown"] * 2)

    plan = plan_of(task("a"), workers={"w": {}, "v": {}})
    desk.same("its result", await office.run(plan, beside=recovers, give_up_after_s=2.0), None)


async def asked_again(desk: Desk) -> None:
    """A kill between the record that another attempt begins and its prompt: how the last one ended is known, and
    charged once; the prompt is asked by the heir."""
    life = office_of(desk)
    life.tries["a"] = [Try(3.0, "it broke"), Try(60.0)]
    plan = plan_of(*_puppets("a"))
    right_after(life, "run:a", "backoff_completed")
    await life.run(plan, give_up_after_s=10.0)
    heir = office_of(desk, left_by(life), a=Try(4.0))
    desk.same("outcomes", heir.outcomes(await heir.run(plan)), {"a": "completed"})
    desk.same("who is asked", [one[0] for one in heir.asked], ["p"])
    failed = [
        one.entity_id for one in heir.records() if one.event == "execution_failed" and one.metadata.get("charged")
    ]
    desk.same("what is charged", failed, ["run:a"])


async def heard_out(desk: Desk) -> None:
    """What a task's session was asked before the kill is waited for by the heir: how that ends is how the attempt does,
    and no attempt is begun beside it: nobody asks it the same again."""
    one = task("a", max_retries=0).model_copy(update={"agent": "p"})
    plan = plan_of(one, task_lifecycle={**FLAT, "max_attempts": 1, "circuit_breaker": {"enabled": False}})
    for error, end in (("", "completed"), ("it broke", "failed")):
        life = office_of(desk, a=Try(60.0))
        await life.run(plan, copy_after_s=3.0, give_up_after_s=4.0)
        heir = office_of(desk, life.copies[0], a=Try(30.0, error))
        desk.same(f"{end}: outcomes", heir.outcomes(await heir.run(plan)), {"a": end})
        desk.same(f"{end}: how often it is asked", len(heir.asked), 1)
        attempts = [one.event for one in heir.records() if one.entity_id == "run:a" and one.event.startswith("exec")]
        word = "execution_completed" if end == "completed" else "execution_failed"
        desk.same(f"{end}: its attempts", attempts, ["executor_started", word])


async def begun_and_unwanted(desk: Desk) -> None:
    """Nobody wants a task any more, or its plan is given up, while the first record of its session is on its way to a
    slow disk: that session is the task's by then, and is ended for that."""
    for given_up, why in ((False, "nobody wants it"), (True, "the plan was given up")):
        office, plan = office_of(desk), plan_of(task("a"))
        async with office.staffed(plan.settings) as sup:
            runner, office.commit_s = PlanRunner(sup), 1.0
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as running:
                    running.start_soon(runner.run, plan)
                    while "a" not in sup.tree.works:  # noqa: ASYNC110  nobody hears of it before it is on record
                        await anyio.sleep(0.1)
                    desk.same(f"{why}: what is on record of its session", await office.events("a", "Born"), [])
                    if given_up:
                        scope.cancel()
                    await runner.cancel(runner.load.cases["a"], why)
            ends = [one.reason for one in await office.events("a", "OperatorStop")]
            desk.same(f"{why}: why it ends", ends, [why])
            desk.same(f"{why}: who is left", [*sup.tree.works], [])


async def named_commands(desk: Desk) -> None:
    """The id of a command has 1 to 200 characters; another one is refused, and nothing is done for it."""
    office = Office(desk, {"a": [Try(20.0)], "b": [Try(20.0)]})
    hands = [Hand(5.0 + at, "cancel", "a", id="x" * count) for at, count in enumerate((0, 201, 200))]
    await office.run(plan_of(task("a"), task("b")), *hands)
    desk.same("who is refused", [words[:11] for _, _, words in office.refused], ["command id:"] * 2)
    desk.same("who is not", office.answers_to, [("cancel", "a", "CANCELLED", False)])
    office = Office(desk, {"a": [Try(20.0)], "b": [Try(20.0)]})
    await office.run(plan_of(task("a"), task("b")), Hand(5.0, "cancel", "a", id="x"))
    desk.same("one character is enough", office.answers_to, [("cancel", "a", "CANCELLED", False)])


async def named_resets(desk: Desk) -> None:
    """A reset that had its effect on a run that is over has its first answer after a kill, too: what is done of the
    task now is not touched, and nothing where it is closed."""
    cooling = {**FLAT, "max_attempts": 1, "circuit_breaker": {"probes_max": 1, "cooldown_period": 20}}
    reset = Hand(4.0, "reset", "a", id="x")
    for max_retries, told in ((1, ("run:a-2", "retry_decided")), (0, ("task:a", "closed"))):
        life = office_of(desk)
        life.tries["a"] = [Try(2.0, "it broke"), Try(2.0), *[Try(2.0, "it broke")] * 9]
        if max_retries:
            life.tries["a"][1] = Try(2.0, "it broke")
        plan = plan_of(task("a", max_retries=max_retries), task("b", approval="before"), task_lifecycle=cooling)
        right_after(life, *told)
        await life.run(plan, reset, give_up_after_s=100.0)
        desk.same("its first answer", life.answers_to, [("reset", "a", "PENDING", False)])
        heir = office_of(desk, left_by(life))
        result = await heir.run(plan, reset._replace(after_s=1.0), Hand(90.0, "approve", "b"))
        desk.same("outcomes", heir.outcomes(result), {"a": "completed", "b": "completed"})
        desk.same(f"the answer after {told[1]}", heir.answers_to[0], ("reset", "a", "PENDING", True))
        again = [one for one in heir.records(heir.last_seq) if one.event == "manual_reset"]
        desk.same("what is reset again", again, [])


async def reset_when_done(desk: Desk) -> None:
    """Who resets what is done, and whose run is over since before the kill, is refused in words."""
    life = office_of(desk)
    plan = plan_of(task("a", approval="after"))
    right_after(life, "task:a", "approval_requested")
    await life.run(plan, give_up_after_s=9.0)
    heir = office_of(desk, left_by(life))
    result = await heir.run(plan, Hand(1.0, "reset", "a"), Hand(2.0, "approve", "a"))
    desk.same("outcomes", heir.outcomes(result), {"a": "completed"})
    words = "task 'a' is PENDING_APPROVAL, and its run is over; there is nothing to reset"
    desk.same("who is refused", heir.refused, [("reset", "a", words)])


async def last_probe(desk: Desk) -> None:
    """A kill right after a run has failed for good, since its last probe had, and before its task heard of that: it has
    failed under the heir, too, and is tried anew only within its retries."""
    probed = {**FLAT, "max_attempts": 1, "circuit_breaker": {"probes_max": 1, "cooldown_period": 20}}
    for agent, event in (("f", "execution_failed"), ("f", "retry_decided"), ("p", "retry_decided")):
        for max_retries in (0, 1):
            whole = task("a", max_retries=max_retries).model_copy(update={"agent": agent})
            plan, what = plan_of(whole, task_lifecycle=probed), f"after {event} of {agent}, {max_retries} retries"
            life = office_of(desk, a=Try(2.0, "it broke"))
            _right_after_second(life, "run:a", event)
            await life.run(plan, give_up_after_s=30.0)
            heir = office_of(desk, left_by(life))
            result = await heir.run(plan)
            desk.same(f"{what}: outcome", heir.outcomes(result), {"a": "completed" if max_retries else "failed"})
            jobs = [one for one in heir.records(heir.last_seq) if one.entity_id == "job:a"]
            ends = [(one.event, one.metadata.get("final")) for one in jobs]
            desk.same(f"{what}: its job", ends, [("execution_failed", True)])
            states = {row.id: row.state for row in heir.store.entities.values() if row.kind == "run"}
            anew = {"run:a-2": "COMPLETED"} if max_retries else {}
            desk.same(f"{what}: its runs", states, {"run:a": "CIRCUIT_OPEN", **anew})


def _right_after_second(office: Office, entity_id: str, event: str) -> None:
    """Have the journal copied when that is on record for the second time."""
    found: list[int] = []

    def is_it(seq: int) -> bool:
        last = next(iter(office.store.log.after(seq - 1, 1)), None)
        if last is not None and (last.entity_id, last.event) == (entity_id, event):
            found.append(seq)
        return len(found) == 2 and found[-1] == seq

    office.cuts, office.cut_at = [], is_it


async def tried_condition(desk: Desk) -> None:
    """A task that was begun since its condition was met is tried again by the heir, too, whatever became of that."""
    probed = {**FLAT, "max_attempts": 1, "circuit_breaker": {"probes_max": 1, "cooldown_period": 2}}
    wanted = task("a", when={"task": "x", "is": "failed"}, max_retries=1)
    plan = plan_of(task("x", max_retries=0), wanted, task_lifecycle=probed)
    for entity_id in ("run:a-2", "job:a-2"):
        life = office_of(desk, x=Try(2.0, "it broke"), a=Try(20.0, "it broke"))
        life.tries["x"] *= 2
        life.tries["x"].append(Try(2.0))
        right_after(life, entity_id, "Born")
        await life.run(plan, Hand(12.0, "reset", "x"), give_up_after_s=90.0)
        heir = office_of(desk, left_by(life))
        result = await heir.run(plan)
        desk.same(f"{entity_id}: outcomes", heir.outcomes(result), {"x": "completed", "a": "completed"})
        desk.same(f"{entity_id}: who is asked", [one[2] for one in heir.asked], ["a"])


async def hopeless(desk: Desk) -> None:
    """What took too long, and is worth no other try by a plug-in's word, has failed for good: it is not said to have
    run out of time."""
    for again in (None, False):
        office = Office(desk, {"a": [Try(100.0), Try(2.0)]})
        office.advice.again = {"": again} if again is not None else {}  # its words have no kind of error before them
        result = await office.run(plan_of(task("a", timeout_s=10, max_retries=0)))
        desk.same("outcomes", office.outcomes(result), {"a": "failed" if again is False else "completed"})
        ends = [one for one in office.records() if one.event in ("execution_timed_out", "execution_failed")]
        of_run = [(one.event, one.metadata.get("category")) for one in ends if one.entity_type == "run"]
        failed = ("execution_failed", "permanent") if again is False else ("execution_timed_out", None)
        desk.same("what its run says", of_run, [failed])


async def not_read_again(desk: Desk) -> None:
    """A plan that is read again names what is new, and is refused where the run has begun otherwise, or is over."""
    open_to_all: dict[str, Any] = {"workspace": "worktree"}
    guarded = {**open_to_all, "access": {"decay_s": 60}}
    for began, other in (open_to_all, guarded), (guarded, open_to_all):
        said = await _read_again(desk, began, other)
        desk.same("what is read", said, [["b"], "access", "workspace, merge_into", "tasks", "tasks"])


async def _read_again(desk: Desk, began: dict[str, Any], other: dict[str, Any]) -> list[list[str] | str]:
    """What is said of more tasks, of them with *other* keys and another target, of a changed task, and at the end."""
    office, tasks, said = Office(desk, {"a": [Try(6.0)]}), [task(one) for one in "ab"], list[list[str] | str]()
    changed, last = tasks[0].model_copy(update={"prompt": "something else"}), list[PlanRunner]()

    def read(runner: PlanRunner, *given: TaskConfig, **more: Any) -> None:
        try:
            said.append(runner.check(plan_of(*given, **more)))
        except BadPlan as error:
            said.append(str(error).partition(":")[0])

    async def reads(sup: Supervisor, runner: PlanRunner) -> None:
        await anyio.sleep(3.0)
        read(runner, *tasks, **began)
        read(runner, *tasks, **other)
        read(runner, *tasks, **{**began, "merge_into": "other"})
        read(runner, changed, **began)
        last.append(runner)

    result = await office.run(plan_of(tasks[0], **began), beside=reads)
    read(last[0], *tasks, **began)
    desk.same("outcomes", office.outcomes(result), {"a": "completed"})
    return said


async def however_many(desk: Desk) -> None:
    """A plan that is read again in the moment in which the last task has ended is refused; one task that has not is
    enough for more. That is so of hundreds, too."""
    more = task("more")
    for many, left in product((1, 2, 300), (0, 1)):
        tasks = [task(f"t{number}") for number in range(many)]
        cases = {one.id: SimpleNamespace(task=one, name=one.id, parts=[], result=None) for one in tasks}
        results = dict.fromkeys([*cases][left:])
        plan = plan_of(*tasks, more)
        at: Any = SimpleNamespace(
            _sup=SimpleNamespace(settings=plan.settings),
            _load=SimpleNamespace(cases=cases, running=True),
            results=results,
        )
        at.load = at._load
        at._split_as_before = partial(PlanRunner._split_as_before, at)
        at._missed = partial(PlanRunner._missed, at)
        what = f"{many - left} of {many} have ended"
        if left:
            desk.same(what, PlanRunner.check(at, plan), ["more"])
        else:
            desk.refused(what, partial(PlanRunner.check, at, plan), BadPlan)


async def told_to_drain(desk: Desk) -> None:
    """A worker that is not wanted any more is told so once, and shut down when it holds nothing."""
    office = Office(desk, {"a": [Try(6.0)], "b": [Try(9.0)], "c": [Try(12.0)]})
    tasks = [task(one) for one in "abc"]

    async def reads(sup: Supervisor, runner: PlanRunner) -> None:
        await anyio.sleep(3.0)
        runner.add(plan_of(*tasks, workers={"v": {}}))

    result = await office.run(plan_of(*tasks, workers={"w": {"slots": 3}}), beside=reads)
    desk.same("outcomes", office.outcomes(result), dict.fromkeys("abc", "completed"))
    told = [one for one in office.records() if (one.entity_id, one.event) == ("worker:w", "shutdown_requested")]
    desk.same("what it is told", [one.reason for one in told], ["told to drain", "drained"])
    desk.at("when first", 3.0, given_s=told[0].monotonic_s - office.began_s)
    desk.at("when last", 12.0, timers=20, given_s=told[-1].monotonic_s - office.began_s)


async def gave_up(desk: Desk) -> None:
    """A session that gave up is the last try of its task, whenever its supervisor is killed: the run, whose circuit is
    open then, rests, and is not cancelled."""
    last = (
        ("a", "Ended"),
        ("run:a", "execution_failed"),
        ("run:a", "retry_decided"),
        ("job:a", "execution_failed"),
        ("task:a", "failed"),
    )
    plan = plan_of(task("a", max_retries=0).model_copy(update={"agent": "p"}))
    for entity_id, event in last:
        life = office_of(desk)
        life.ready = lambda puppet: []
        right_after(life, entity_id, event)
        await life.run(plan)
        heir = office_of(desk, left_by(life))
        result, what = await heir.run(plan), f"after {event} of {entity_id}"
        desk.same(f"{what}: outcomes", heir.outcomes(result), {"a": "failed"})
        ends = {one.entity_id: one.to_status for one in heir.records()}
        found = [ends[one] for one in ("task:a", "run:a", "job:a")]
        desk.same(f"{what}: its states", found, ["FAILED", "CIRCUIT_OPEN", "failed"])


async def gave_up_and_tried_again(desk: Desk) -> None:
    """The same where a plug-in has it tried again: another session tries, after a kill, too, and one retry is spent."""
    plan = plan_of(task("a", max_retries=0).model_copy(update={"agent": "p"}), retry_budget={"share": 0, "least": 1})
    for entity_id, event in (("run:a", "execution_failed"), ("run:a", "retry_decided"), ("job:a", "execution_failed")):
        life = office_of(desk)
        life.ready = lambda puppet: []
        life.advice.again = {"the agent was not ready in time": True}
        right_after(life, entity_id, event)
        await life.run(plan, give_up_after_s=400.0)
        heir = office_of(desk, left_by(life))
        result, what = await heir.run(plan), f"after {event} of {entity_id}"
        desk.same(f"{what}: outcomes", heir.outcomes(result), {"a": "completed"})
        runs = [row.id for row in heir.store.entities.values() if row.kind == "run"]
        desk.same(f"{what}: its runs", runs, ["run:a"])


async def charged_once(desk: Desk) -> None:
    """A retry that was decided, and that its job had not heard of, is charged once: what is left of the budget of all
    is for others. Nor is anything given back of what was charged for an attempt whose job had heard of it, or for one
    whose circuit opened."""
    again = ["backoff_completed", "execution_failed", "retry_decided", "circuit_opened"]
    failed = ["execution_failed", "retry_delay_elapsed", "worker_started"]
    for entity_id, event, of_run, of_job in (
        ("run:a", "retry_decided", again, ["execution_failed", "retry_delay_elapsed", "worker_started", *failed]),
        ("job:a", "execution_failed", again, ["retry_delay_elapsed", "worker_started", *failed]),
        ("run:a", "circuit_opened", [], ["worker_lost", "retry_delay_elapsed", "worker_started"]),
    ):
        life, what = office_of(desk), f"after {event} of {entity_id}"
        life.tries["a"] = [Try(3.0, "one"), Try(3.0, "two"), Try(3.0)]
        plan = plan_of(*_puppets("a"), task("b", approval="before"), retry_budget={"share": 0, "least": 1})
        right_after(life, entity_id, event)
        await life.run(plan, give_up_after_s=100.0)
        heir = office_of(desk, left_by(life))
        heir.tries |= {"a": [Try(3.0, "two"), Try(3.0)] if of_run else [Try(3.0)], "b": [Try(1.0, "three"), Try(1.0)]}
        result = await heir.run(plan, Hand(20.0, "approve", "b"))
        desk.same(f"{what}: outcomes", heir.outcomes(result), {"a": "completed", "b": "completed"})
        said: dict[str, list[str]] = {}
        for one in heir.records(heir.last_seq):
            said.setdefault(one.entity_id, []).append(one.event)
        desk.same(f"{what}: its run", said["run:a"][:-4], [*of_run])
        desk.same(f"{what}: its job", said["job:a"][:-2], of_job)
        circuits = [whose for whose, events in said.items() if "circuit_opened" in events]
        desk.same(f"{what}: who finds nothing left", circuits, [*(["run:a"] if of_run else []), "run:b"])


async def not_recovered(desk: Desk) -> None:
    """A task that could not be recovered has failed for good, however often its supervisor is killed."""
    plan = plan_of(task("a"), task("c", approval="before"), recovery=RecoveryConfig(orphans="failed"))
    life = office_of(desk, a=Try(60.0))
    await life.run(plan, copy_after_s=5.0, give_up_after_s=6.0)
    heir = office_of(desk, life.copies[0])
    await heir.run(plan, copy_after_s=5.0, give_up_after_s=6.0)
    last = office_of(desk, heir.copies[0])
    result = await last.run(plan, Hand(3.0, "approve", "c"))
    desk.same("outcomes", last.outcomes(result), {"a": "failed", "c": "completed"})


async def given_up_before_it_begins(desk: Desk) -> None:
    """A plan that is given up while its resumption is still read is given up, and nothing of it is begun."""
    office = office_of(desk)
    plan = plan_of(task("a"))
    await office.run(plan, give_up_after_s=1.0)
    office.commit_s = 5.0
    async with office.staffed(plan.settings) as sup:
        await sup.start_session("own", agent="p")
        sup.tree.note("own", "Noted", Cause(None, None, "me"), {})
        with anyio.move_on_after(1.0):
            await PlanRunner(sup).run(plan, resume=True)
        streams = [row.id for row in office.store.entities.values() if row.kind == "workstream"]
    desk.same("its workstreams", streams, ["workstream:plan"])


async def given_up_with_remains(desk: Desk) -> None:
    """A plan that is given up while what is left of a settled task is being ended: nothing of it stays in memory."""
    life = office_of(desk, a=Try(60.0))
    plan = plan_of(task("a"), task("c", approval="before"))
    right_after(life, "run:a", "cancelled")
    await life.run(plan, Hand(5.0, "cancel", "a"), give_up_after_s=9.0)
    for after_s in (0.5, 1.5, 2.5, 3.5):
        heir = office_of(desk, copy.deepcopy(left_by(life)))
        heir.commit_s = 1.0
        async with heir.staffed(plan.settings) as sup:
            with anyio.move_on_after(after_s):
                await PlanRunner(sup).run(plan)
            await sup.ledger.durable()
            left = [one for one in sup.tree.entities if one.startswith(("task:", "run:", "job:"))]
            desk.same(f"what is left in memory, given up after {after_s} s", left, [])


CUT = (
    given_up_with_remains,
    unclaimed,
    gave_up,
    gave_up_and_tried_again,
    charged_once,
    not_recovered,
    given_up_before_it_begins,
    counted,
    grown,
    not_read_again,
    however_many,
    done_before,
    put_in_order,
    given_up_in_place,
    given_up_untouched,
    ended_in_part,
    given_up_unregistered,
    unheard,
    come_too_late,
    ended_side_by_side,
    wanted_no_more,
    not_split_after_all,
    tests_unheard_of,
    asked_anew,
    asked_again,
    heard_out,
    begun_and_unwanted,
    through_conditions,
    named_commands,
    named_resets,
    reset_when_done,
    last_probe,
    tried_condition,
    hopeless,
    told_to_drain,
)
