"""Those who give a command and are gone before it is answered: it is carried out wholly, and once.

Held to docs/plans.md ("commands") and ``supervisor/plans/task_control.py``: who gives it again, with its id, has the
answer; the plan goes on to its end.
"""

from __future__ import annotations

import copy
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple

import anyio

from supervisor.embedding.runtime import Supervisor
from supervisor.plans import Plan
from supervisor.plans.task_control import Answer
from supervisor.ports import JournalError
from supervisor.runtime.entity import Refused
from supervisor.runtime.live_session import NoSuchEntity
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.work.kills import office_of
from supervisor.simulation.drills.work.office import Office, Try, plan_of, task
from supervisor.work.plan_runner import PlanRunner

__all__ = ["GONE"]

PATIENCE_S: Final = (0.2, 0.7, 1.2, 1.7, 2.2)
"""How long those who give a command wait: each of its records takes half a second."""
COMMIT_S: Final = 0.5
AGAIN_S: Final = 15.0
"""When the same is asked for again: by then it is carried out."""


class _Command(NamedTuple):
    """A command, of which task, what it is given, what it is answered, and what it becomes of the task on record."""

    verb: str
    task: str
    more: tuple[Any, ...]
    state: str
    event: str
    outcomes: dict[str, str]


DONE: Final = {"a": "completed", "b": "completed"}
COMMANDS: Final = (
    _Command("requeue", "a", (), "OPEN", "requeued", DONE),
    _Command("block", "a", (("b",),), "BLOCKED", "blocked", DONE),
    _Command("cancel", "a", (), "CANCELLED", "cancelled", {**DONE, "a": "aborted"}),
)
OF_AN_HEIR: Final = (*COMMANDS, _Command("cancel", "b", (), "CANCELLED", "cancelled", {**DONE, "b": "aborted"}))


async def _gone(desk: Desk, office: Office, plan: Plan, one: _Command, patience_s: float) -> None:
    what = f"{one.verb} {one.task}, waited for {patience_s:g} s"
    answers: list[Answer] = []

    async def gives(runner: PlanRunner) -> None:
        give = getattr(runner.operating, one.verb)
        answers.append(await give(one.task, *one.more, by="me", reason="so", command_id="it"))

    async def goes(sup: Supervisor, runner: PlanRunner) -> None:
        await anyio.sleep(3.0)
        office.commit_s = COMMIT_S
        with anyio.move_on_after(patience_s):
            await gives(runner)
        answers.clear()
        await anyio.sleep(AGAIN_S)
        office.commit_s = 0.0
        try:
            await gives(runner)
        except (Refused, NoSuchEntity) as error:
            desk.say("kernel", "gone", f"{what}: {error}")
        locked = [case.name for case in runner.load.cases.values() if case.lock.locked()]
        desk.same(f"{what}: whose locks are held", locked, [])

    result = None
    with anyio.move_on_after(1_000.0):
        result = await office.run(plan, beside=goes)
    desk.same(f"{what}: what becomes of them", office.outcomes(result), one.outcomes)
    desk.same(f"{what}: the answer", [(answer.state, answer.repeated) for answer in answers], [(one.state, True)])
    said = [record.event for record in office.records(office.last_seq) if record.entity_id == f"task:{one.task}"]
    desk.same(f"{what}: how often", (said.count("Commanded"), said.count(one.event)), (1, 1))


async def gone(desk: Desk) -> None:
    """Whoever gives a command is cancelled while it is carried out."""
    plan = plan_of(task("a"), task("b"), max_sessions=2)
    for one in COMMANDS:
        for patience_s in PATIENCE_S:
            await _gone(desk, office_of(desk, a=Try(60.0), b=Try(60.0)), plan, one, patience_s)


async def gone_after_a_kill(desk: Desk) -> None:
    """The same, of tasks whose sessions go on under another supervisor: one of them has a worker, and one has none."""
    tasks = [task(name).model_copy(update={"agent": "p"}) for name in "ab"]
    life = office_of(desk, a=Try(100.0), b=Try(100.0))
    await life.run(plan_of(*tasks, max_sessions=2), copy_after_s=3.0, give_up_after_s=4.0)
    for one in OF_AN_HEIR:
        for patience_s in PATIENCE_S:
            heir = office_of(desk, copy.deepcopy(life.copies[0]), a=Try(60.0), b=Try(60.0))
            await _gone(desk, heir, plan_of(*tasks, max_sessions=1), one, patience_s)


async def given_up_meanwhile(desk: Desk) -> None:
    """Whoever gives a command that is waited for hears of it if its plan is given up before it is carried out."""
    office, heard = office_of(desk, a=Try(60.0)), list[str]()
    plan = plan_of(task("a"))

    async def cancels(runner: PlanRunner) -> None:
        try:
            heard.append((await runner.operating.cancel("a", by="me")).state)
        except (Refused, NoSuchEntity, JournalError) as error:
            heard.append(type(error).__name__)

    async with office.staffed(plan.settings) as sup, anyio.create_task_group() as group:
        runner = PlanRunner(sup)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as running:
                running.start_soon(runner.run, plan)
                await anyio.sleep(3.0)
                office.commit_s = COMMIT_S
                group.start_soon(cancels, runner)
                await anyio.sleep(0.2)
                scope.cancel()
        await anyio.sleep(AGAIN_S)
        office.commit_s = 0.0
        desk.same("who waits, and hears nothing", len(heard), 1)
        group.cancel_scope.cancel()


async def given_up_before(desk: Desk) -> None:
    """Whoever asks something of a run that has not begun hears so when that is given up before it does."""
    office, refused = office_of(desk), list[str]()
    plan = plan_of(task("a", approval="before"))

    async def asks(asked: Coroutine[Any, Any, object]) -> None:
        try:
            await asked
        except Refused as error:
            refused.append(str(error))

    async with office.staffed(plan.settings) as sup, anyio.create_task_group() as group:
        runner = PlanRunner(sup)
        group.start_soon(asks, runner.operating.planned())
        group.start_soon(asks, runner.operating.approve("a", by="me"))
        await anyio.sleep(1.0)
        office.commit_s = COMMIT_S
        with anyio.move_on_after(COMMIT_S / 2):
            await runner.run(plan)
        await anyio.sleep(AGAIN_S)
        desk.same("what they hear", refused, ["the plan was given up before it began; run it again"] * 2)
        group.cancel_scope.cancel()


GONE = (gone, gone_after_a_kill, given_up_meanwhile, given_up_before)
