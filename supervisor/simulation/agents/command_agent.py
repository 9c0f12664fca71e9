"""Simulated programs without a protocol: the one-shot agent of a plain command, and commands of terminals.

The output of these programs is for people; the exit status is the result. The prompt is an argument or comes on
standard input; either way the program works once and ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import anyio

from supervisor.simulation.agents.output import write
from supervisor.simulation.agents.profile import AgentShape
from supervisor.simulation.agents.trouble import Trouble, side_by_side
from supervisor.simulation.agents.turn_plan import Spend, StepPlan, ToolPlan, TurnPlan, plan_turn, said
from supervisor.simulation.faults import FaultPlan
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.machine.kernel import OsProcess, Program

_REFUSED: Final = 3
_TERMINAL_CHARS: Final = (0, 2_000)
_TERMINAL_START_S: Final = 0.05
_TERMINAL_SLOW_S: Final = (1.0, 60.0)


def command_agent(shape: AgentShape, random: KeyedRandom, faults: FaultPlan, spend: Spend) -> Program:
    """Return the program of a one-shot agent. The prompt is the only argument; without an argument, the prompt comes on
    standard input."""
    return lambda inside: OneShot(inside, shape, random, faults, spend).run()


def terminal_program(random: KeyedRandom, faults: FaultPlan) -> Program:
    """Return the program of a command that the supervisor runs for an agent: ``sim-tool PLACE SECONDS``. ``PLACE`` is
    the name of the tool call."""

    return lambda inside: _Tool(inside, random, faults, inside.argv[1]).run(float(inside.argv[2]))


class _Plain:
    """Base class of one-shot agents and terminal commands: writes lines on standard output, slowed down by faults."""

    def __init__(self, inside: OsProcess, faults: FaultPlan, place: str) -> None:
        self.inside = inside
        self.place = place
        self.trouble = Trouble(inside, faults, place)
        self.dribbles = self.trouble.strikes("process.dribble", place)

    async def write(self, data: bytes) -> None:
        await write(self.inside, data, dribbles=self.dribbles)

    async def say(self, text: str) -> None:
        await self.write(f"{text}\n".encode())

    async def erupt(self, place: str) -> None:
        """Write the faulty output that strikes at *place*."""
        for data in self.trouble.outbursts(place, said(place, 8 * 1024).encode()):
            await self.write(data)


class _Tool(_Plain):
    """Simulated command in a terminal, which does the work of one tool call."""

    def __init__(self, inside: OsProcess, random: KeyedRandom, faults: FaultPlan, place: str) -> None:
        super().__init__(inside, faults, place)
        self._chars = random.integer(*_TERMINAL_CHARS, "terminal", place)

    async def run(self, seconds: float) -> int:
        status = await self.trouble.at_start(_TERMINAL_START_S, _TERMINAL_SLOW_S)
        if status is None:
            status = await self._work(seconds)
        return self.trouble.at_exit(status)

    async def _work(self, seconds: float) -> int:
        fate = self.trouble.fate(self.place)
        if fate is not None:
            await anyio.sleep(seconds / 2)
            return await fate()
        await self.say(said(self.place, self._chars))
        await self.erupt(self.place)
        return await self.trouble.work(self.place, seconds)


class OneShot(_Plain):
    """Simulated one-shot agent: reads its prompt, carries out its turn plan, and ends. The output is for people;
    subclasses have other formats."""

    def __init__(
        self, inside: OsProcess, shape: AgentShape, random: KeyedRandom, faults: FaultPlan, spend: Spend
    ) -> None:
        super().__init__(inside, faults, inside.name)
        self._spend = spend
        self._shape = shape
        self._random = random.below("agent", inside.name)

    async def run(self) -> int:
        usual_s = self._random.between(*self._shape.start_s, "start")
        status = await self.trouble.at_start(usual_s, self._shape.slow_start_s)
        if status is None:
            await self.read_prompt()
            status = await self.play(plan_turn(self._shape, self._random, f"{self.place}:t1", 0))
        return self.trouble.at_exit(status)

    async def read_prompt(self) -> None:
        if len(self.inside.argv) == 1:
            while await self.inside.read():
                pass

    async def play(self, plan: TurnPlan) -> int:
        for at, step in enumerate(plan.steps):
            await anyio.sleep(step.think_s)
            self._spend(plan.tokens_of(at))
            end = await self._ends(plan.place) if at == plan.strike_at else None
            if end is not None:
                return await end()
            await self._step(step)
        for _ in range(1 + self.trouble.strikes("agent.duplicate", plan.place)):
            await self.finish(plan)
        return 0

    async def finish(self, plan: TurnPlan) -> None:
        """Write the last line of output, with the number of tokens used."""
        await self.say(f"tokens used: {plan.tokens}")

    async def _ends(self, place: str) -> Callable[[], Awaitable[int]] | None:
        """Return the fate that ends the program at *place*; ``None`` if the program goes on."""
        fate = self.trouble.fate(place)
        if fate is not None:
            return fate
        await self.erupt(place)
        if self.trouble.strikes("agent.provider_hangs", place):
            await anyio.sleep_forever()
        if self.trouble.strikes("agent.provider_error", place):
            return partial(self.complain, "the model's provider answered 529: overloaded", 1)
        if self.trouble.strikes("agent.refuses", place):
            return partial(self.complain, "refused", _REFUSED)
        return None

    async def complain(self, why: str, status: int) -> int:
        """Report a failure on standard error; return *status*."""
        await self.inside.write_err(f"error: {why}\n".encode())
        return status

    async def _step(self, step: StepPlan) -> None:
        await self.say(said(self.place, step.chars))
        for batch in step.batches:
            await side_by_side(self.call, batch)

    async def call(self, tool: ToolPlan) -> None:
        """Make one tool call of the plan, and write its status."""
        await self.say(f"{tool.place}: status {await self.work(tool)}")

    async def work(self, tool: ToolPlan) -> int:
        """Do the work of a tool call, in this process or a child process; return the exit status."""
        run = self.trouble.in_process if tool.way == "process" else self.trouble.work
        return await run(tool.place, tool.seconds)
