"""Who lies in wait for the tasks of a plan: for one to come into some state, and strikes right then.

It reads the supervisor's records, as every host can. What it does then is any command that there is, whether the state
allows it or not, or an end that somebody wants at a bad moment: that of the task's session, or of the supervisor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import anyio

from supervisor.embedding.runtime import Supervisor
from supervisor.lifecycles.task import Task
from supervisor.lifecycles.task_run import Run
from supervisor.lifecycles.types import AbortScope
from supervisor.plans.task_control import Verb
from supervisor.simulation.asking import Desk
from supervisor.simulation.keyed_random import Chance
from supervisor.simulation.works.operator_bot import Foreman
from supervisor.simulation.world import World

__all__ = ["Lurker"]

PAUSE_S: Final = (0.5, 20.0)
LURK_S: Final = 90.0
"""How long it lies in wait at most."""
INSIST: Final = 0.6
"""How many insist on one trap."""
ACTS: Final = (*Verb, *Verb, "close", "close", "abort", "stop", "stop now")
"""Everything that can be done to a task, or to who works on it."""


class _Trap(NamedTuple):
    """Once a task, or its run, has come into *state*, one of *acts*; ``sprung``: then the next trap, for that task."""

    kind: str
    state: str
    acts: Sequence[str] = ACTS
    sprung: _Trap | None = None


PROBED: Final = _Trap("run", Run.HALF_OPEN.value, ("cancel", "cancel", "stop"))
"""It is about to be probed, when there is a worker."""
UNHELD: Final = _Trap("run", Run.CIRCUIT_OPEN.value, ("close",), _Trap("run", Run.HALF_OPEN.value, ("stop",)))
"""It is about to be probed, and nothing is begun any more that could do that."""
RARE: Final = (
    _Trap("run", Run.CIRCUIT_OPEN.value, ("reset", "close", "cancel")),
    UNHELD,
    UNHELD,
    UNHELD,
    PROBED,
    _Trap("run", Run.VALIDATING.value),
    _Trap("task", Task.PENDING_APPROVAL.value, ("cancel", "cancel", "approve", "reject")),
    _Trap("task", Task.CLAIMED.value, ("split", "block", "unclaim")),
    _Trap("task", Task.IN_PROGRESS.value, ("split", "block", "requeue")),
)
"""Where few wishes that come at any time meet a task."""
NEXT: Final = _Trap("run", Run.HALF_OPEN.value, ("cancel",))
"""It is to be probed by a session that is not there yet: that takes as long as it takes to begin one."""


def _cancelling(moment: str) -> _Trap:
    """Once a task, or its run, has come to that moment, it is cancelled."""
    kind, state = moment.split(" ")
    if state == Run.HALF_OPEN.value:
        return _Trap("run", Run.CIRCUIT_OPEN.value, ("close",), NEXT)
    return _Trap(kind, state, ("cancel",))


ANY: Final = (*(_Trap("run", one.value) for one in Run), *(_Trap("task", one.value) for one in Task))


class Lurker:
    """Of one plan, under one supervisor. *name* is that of its workstream, by which its tasks are called. Many insist
    on one trap, and leave the plan alone otherwise."""

    def __init__(self, sup: Supervisor, foreman: Foreman, name: str, world: World, chance: Chance, desk: Desk) -> None:
        self._sup, self._foreman, self._name = sup, foreman, name
        self._world, self._desk = world, desk
        self._chance = chance.below("lurker", world.lives)
        cancels_at = world.drawn.cancels_at or ()
        traps = [_cancelling(one) for one in cancels_at] or RARE
        insists = bool(cancels_at) or chance.happens(INSIST, "insists")
        self._insists_on = chance.choice(traps, "insists on") if insists else None

    async def lurk(self) -> None:
        """Again and again, until the plan is over: whoever runs it ends this."""
        number = 0
        while True:
            number += 1
            await anyio.sleep(self._chance.between(*PAUSE_S, "pause", number))
            place, faults = f"{self._name}.{self._world.lives}.{number}", self._world.faults
            if not faults.healed and faults.strikes("host.lurks", place):
                await self._once(self._chance.below(number), place)

    async def _once(self, chance: Chance, place: str) -> None:
        traps = RARE if chance.happens(0.5, "rare") else ANY
        trap: _Trap | None = self._insists_on or chance.choice(traps, "trap")
        task = f"{self._name}t"
        while trap is not None:
            found = await self._come_to(trap, task)
            if found is None or self._world.faults.healed:
                return
            task, holder = found
            await self._strike(chance.choice(trap.acts, "act", trap.state), task, holder, chance, place)
            trap = trap.sprung

    async def _come_to(self, trap: _Trap, called: str) -> tuple[str, str] | None:
        """The task of such a name that has come into that state just now, or its run has, and who holds it."""
        with anyio.move_on_after(LURK_S):
            async with self._sup.subscribe() as records:
                async for record in records:
                    if (record.entity_type, record.outcome, record.to_status) == (trap.kind, "transition", trap.state):
                        whose = self._world.board.whose(record.entity_id)
                        if whose is not None and whose[0].startswith(called):
                            return whose
        return None

    async def _strike(self, act: str, task: str, holder: str, chance: Chance, place: str) -> None:
        if act in list(Verb):
            await self._foreman.command(Verb(act), task, chance, f"lurker.{place}")
            return
        with self._desk.asking(f"{act} {task} right then") as said:
            match act:
                case "close":
                    await self._sup.close_session(holder, reason="enough of it")
                    said.append("closed")
                    self._world.oracle.replies.close_answered(holder)
                case "abort":
                    receipt = await self._sup.abort(holder, AbortScope.SESSION, reason="enough of it", actor="operator")
                    said.append(receipt.abort_id)
                case _:
                    self._world.told_to_end(now=act == "stop now")
                    await self._sup.stop(now=act == "stop now", actor="operator")
                    said.append("stopping")
