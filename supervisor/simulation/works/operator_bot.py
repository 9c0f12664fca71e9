"""Who attends to a plan that is carried out: approves or denies what waits for that, and interferes now and then.

What is waiting is read from the records, as an operator's screen would show it; what is decided was drawn with the
task. Interference is a fault like any other: it has a name, and a run without faults has none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import anyio

from supervisor.plans import Plan
from supervisor.plans.source import BadPlan
from supervisor.plans.task_control import Verb
from supervisor.plans.tasks import TaskConfig, every_task
from supervisor.simulation.asking import Desk
from supervisor.simulation.checkers import PlannedShown, TaskAnswered
from supervisor.simulation.keyed_random import Chance
from supervisor.simulation.works.hearts import Hearts
from supervisor.simulation.works.plans import WORKER, draw_workers
from supervisor.simulation.works.task_scripts import Errand, prompt_of
from supervisor.simulation.world import World
from supervisor.work.plan_runner import PlanRunner

__all__ = ["Foreman"]

ROUND_S: Final = (0.5, 20.0)
"""How long it is between two looks at a plan."""
SILENCE_S: Final = (60.0, 500.0)
"""How long a worker is not heard of: longer than it takes to be missed, now and then as long as to be given up."""
ONE: Final = "operator"
MORE: Final = 100
"""From this number on tasks are called that a plan did not have at first."""


class Foreman:
    """Of one plan, under one supervisor.

    Args:
        runner: whose plan it is; it takes the commands.
        reloaded: hears of the plan as it is from then on.
        hearts: those of the plan's workers.
    """

    def __init__(
        self,
        runner: PlanRunner,
        plan: Plan,
        world: World,
        chance: Chance,
        desk: Desk,
        reloaded: Callable[[Plan], None],
        hearts: Hearts,
    ) -> None:
        self._runner, self._control = runner, runner.operating
        self._reloaded, self._hearts = reloaded, hearts
        self._names = [one.task.id for one in every_task(plan.tasks)]
        self._plan, self._board, self._errands, self._oracle = plan, world.board, world.errands, world.oracle
        self._chance, self._faults, self._desk = chance.below("foreman", world.lives), world.faults, desk
        self._lives = world.lives

    async def attend(self) -> None:
        """Go round until the plan is over: whoever runs it ends this."""
        rounds = 0
        while True:
            rounds += 1
            await anyio.sleep(self._chance.between(*ROUND_S, "round", rounds))
            await self._look()
            for name in self._of("PLANNED"):
                await self._decide(name, self._errand(name).wanted)
            for name in self._of("PENDING_APPROVAL"):
                if self._chance.happens(0.5, "looks at it", name, rounds):
                    await self._decide(name, self._errand(name).judge())
            for name in self._of("BLOCKED"):
                if self._chance.happens(0.3, "knows what it waits for", name, rounds):
                    await self._unblock(name)
            if not self._faults.healed:
                place = f"{self._plan.workstream}.{self._lives}.{rounds}"
                await self._interfere(self._chance.below(rounds), place)
                if self._faults.strikes("work.silent", place):
                    self._silence(self._chance.below(rounds, "silence"))
                if self._faults.strikes("host.reloads", place):
                    self._reload(self._chance.below(rounds, "reload"), rounds)

    def _of(self, state: str) -> list[str]:
        """The tasks of this plan that are in that state on record, also those that somebody split from them since."""
        return self._board.waiting(state, self._names)

    async def _look(self) -> None:
        """What is told to wait for a word before it is begun does so on record, where nothing is on its way there, or
        was lost on it."""
        planned = await self._control.planned()
        ledger = self._runner.load.sup.ledger
        if self._runner.load.running and ledger.clean and ledger.error is None:
            self._oracle.told(PlannedShown(planned, self._of("PLANNED")))

    def _errand(self, name: str) -> Errand:
        return self._errands.of(name) or Errand(name)

    async def _decide(self, name: str, wanted: bool) -> None:
        with self._desk.asking(f"{'approve' if wanted else 'reject'} {name}") as said:
            if wanted:
                answer = await self._control.approve(name, by=ONE)
            else:
                answer = await self._control.reject(name, by=ONE, reason="not like this")
            said.append(answer.state)
            self._oracle.told(TaskAnswered(name, answer.state))

    async def _unblock(self, name: str) -> None:
        with self._desk.asking(f"unblock {name}") as said:
            said.append((await self._control.unblock(name, by=ONE, reason="it is there")).state)

    # ------------------------------------------------------------------ interference
    async def _interfere(self, chance: Chance, place: str) -> None:
        for kind, states, act in (
            (
                "host.cancels_task",
                ("OPEN", "CLAIMED", "IN_PROGRESS", "PENDING_APPROVAL", "WAITING_FOR_SUBTASKS"),
                Verb.CANCEL,
            ),
            ("host.requeues", ("IN_PROGRESS",), Verb.REQUEUE),
            ("host.unclaims", ("CLAIMED",), Verb.UNCLAIM),
            ("host.blocks", ("CLAIMED", "IN_PROGRESS"), Verb.BLOCK),
            ("host.splits", ("OPEN", "CLAIMED", "IN_PROGRESS"), Verb.SPLIT),
            ("host.resets", (), Verb.RESET),
        ):
            candidates = [name for state in states for name in self._of(state)]
            if act is Verb.RESET:
                candidates = self._board.cooling(self._names)
            if candidates and self._faults.strikes(kind, place):
                await self.command(act, chance.choice(sorted(candidates), "whom", kind), chance, place)

    def _reload(self, chance: Chance, number: int) -> None:
        """The plan as somebody has changed its file: other workers, and one more task."""
        name = f"{self._plan.workstream}t{MORE + number}"
        if not self._runner.begun.is_set() or name in self._names:  # an earlier supervisor's run was told so
            return
        more = self._part(name)
        told = {"tasks": (*self._plan.tasks, more), "workers": draw_workers(chance)}
        plan = Plan.model_validate({**dict(self._plan), **told})
        with suppress(BadPlan):  # it is over
            self._runner.check(plan)
            self._plan, self._names = plan, [one.task.id for one in every_task(plan.tasks)]
            self._reloaded(plan)
            self._runner.add(plan)

    def _silence(self, chance: Chance) -> None:
        """For a while the signs of life of one worker do not come through."""
        workers = sorted(self._runner.load.pool._workers) if self._runner.begun.is_set() else []
        if not workers:  # none yet, or none any more: what is left is judged, and needs none
            return
        worker_id = chance.choice(workers, "whose")
        self._hearts.silence(worker_id, chance.between(*SILENCE_S, "for how long"))

    async def command(self, verb: Verb, name: str, chance: Chance, place: str) -> None:
        """One command about a task; now and then the same once more, with its id."""
        given: dict[str, Any] = {"by": ONE, "reason": "on second thoughts", "command_id": f"{verb}.{place}"}
        args: list[Any] = [name]
        if verb is Verb.SPLIT:
            args.append([self._part(f"{name}s{number}") for number in (7, 8)])
        if verb is Verb.BLOCK:
            args.append([chance.choice(sorted(("a key", *self._names)), "on what", name)])
        for _ in range(1 + chance.happens(0.2, "twice", verb)):
            with self._desk.asking(f"{verb} {name}") as said:
                answer = await getattr(self._control, verb)(*args, **given)
                said.append(answer.state)
                if not answer.repeated:
                    self._oracle.told(TaskAnswered(name, answer.state))

    def _part(self, name: str) -> TaskConfig:
        if self._errands.of(name) is None:
            self._errands.add(Errand(name))
        return TaskConfig(id=name, agent=WORKER, prompt=prompt_of(name))
