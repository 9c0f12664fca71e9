"""Who lies in wait for the tasks of a plan: for a circuit to open, or to be half open, and strikes right then.

It reads the supervisor's records, as every host can. What it does then is a command like any other, or an end that
somebody wants at a bad moment: that of the task's session, or of the whole supervisor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import anyio

from supervisor.runtime import Supervisor
from supervisor.scheduling.control import WorkControl
from supervisor.simulation.asking import Desk
from supervisor.simulation.chance import Chance
from supervisor.simulation.world import World

__all__ = ["Lurker"]

PAUSE_S: Final = (0.5, 20.0)
LURK_S: Final = 60.0
"""How long it lies in wait at most."""
ONE: Final = "lurker"
ACTS: Final[Mapping[str, tuple[str, ...]]] = {"CIRCUIT_OPEN": ("reset", "close"), "HALF_OPEN": ("cancel", "stop")}
"""What it waits for a run to come to, and what it may do then."""


class Lurker:
    """Of one plan, under one supervisor. *name* is that of its workstream, by which its tasks are called."""

    def __init__(
        self, sup: Supervisor, control: WorkControl, name: str, world: World, chance: Chance, desk: Desk
    ) -> None:
        self._sup, self._control, self._name = sup, control, name
        self._world, self._books, self._desk = world, world.oracle.works, desk
        self._chance = chance.below("lurker", world.lives)

    async def lurk(self) -> None:
        """Again and again, until the plan is over: whoever runs it ends this."""
        number = 0
        while True:
            number += 1
            await anyio.sleep(self._chance.between(*PAUSE_S, "pause", number))
            place, faults = f"{self._name}.{self._world.lives}.{number}", self._world.faults
            if not faults.healed and faults.strikes("host.lurks", place):
                await self._once(self._chance.below(number))

    async def _once(self, chance: Chance) -> None:
        state = chance.choice(sorted(ACTS), "state")
        found = await self._come_to(state)
        if found is not None and not self._world.faults.healed:
            await self._strike(chance.choice(ACTS[state], "act"), *found)

    async def _come_to(self, state: str) -> tuple[str, str] | None:
        """The task whose run has come into that state just now, and who holds it."""
        with anyio.move_on_after(LURK_S):
            async with self._sup.subscribe() as records:
                async for record in records:
                    if (record.entity_type, record.outcome, record.to_status) == ("run", "transition", state):
                        whose = self._books.whose(record.entity_id)
                        if whose is not None and whose[0].startswith(f"{self._name}t"):
                            return whose
        return None

    async def _strike(self, act: str, task: str, holder: str) -> None:
        with self._desk.asking(f"{act} {task} right then") as said:
            match act:
                case "reset":
                    said.append((await self._control.reset(task, by=ONE)).state)
                case "cancel":
                    said.append((await self._control.cancel(task, by=ONE)).state)
                case "close":
                    await self._sup.close_session(holder, reason="enough of it")
                    said.append("closed")
                    self._world.oracle.hearing.close_answered(holder)
                case _:
                    self._world.stop_asked = True
                    await self._sup.stop(actor="operator")
                    said.append("stopping")
