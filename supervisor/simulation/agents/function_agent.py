"""A simulated agent in the supervisor's own process: an async function that is called with each turn.

The function fails as functions do: it raises, hangs, returns too early, or shields itself from cancellation for a
while. Faults of pipes and processes do not apply, nor messages after the end of the turn, which a function with
structured concurrency cannot send.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import anyio

from supervisor.ports.agent_profile import AgentFunction
from supervisor.sessions.inprocess import AgentTurn, ToolAborted
from supervisor.simulation.agents.profile import AgentShape
from supervisor.simulation.agents.trouble import side_by_side
from supervisor.simulation.agents.turn_plan import (
    Delegation,
    Spend,
    StepPlan,
    ToolPlan,
    TurnPlan,
    free,
    plan_turn,
    said,
)
from supervisor.simulation.faults import FaultPlan
from supervisor.simulation.keyed_random import KeyedRandom

SHIELD_S: Final = (0.5, 30.0)
"""Bounds for the seconds for which a function may ignore its cancellation; the usual budget of a cancel is 5 s."""

_FLOOD_CHARS: Final = 64 * 1024


class AgentFailed(Exception):
    """Error that a simulated agent function raises when a fault strikes the agent."""


class ToolFailed(Exception):
    """Error that a tool of a simulated agent function raises when a fault strikes the tool."""


def function_agent(
    shape: AgentShape, random: KeyedRandom, faults: FaultPlan, spend: Callable[[str, int], None] | None = None
) -> AgentFunction:
    """Return the agent function; the names of its draws and faults contain the id of the turn and the number of the
    call (``s1:t2:c1``).

    *spend* is called with the session and the tokens that a turn uses.
    """

    called = shape.speaking("inprocess")

    async def work(turn: AgentTurn) -> str:
        plan = plan_turn(called, random.below("agent"), turn.turn_id, turn.session_id.count("/"))
        spends = free if spend is None else partial(spend, turn.session_id)
        return await _Work(turn, plan, faults, spends).play()

    return work


class _Work:
    """Work of the agent function on one turn."""

    def __init__(self, turn: AgentTurn, plan: TurnPlan, faults: FaultPlan, spend: Spend) -> None:
        self._turn = turn
        self._plan = plan
        self._faults = faults
        self._spend = spend

    async def play(self) -> str:
        """Carry out the turn plan; return the final text."""
        for at, step in enumerate(self._plan.steps):
            await anyio.sleep(step.think_s)
            self._spend(self._plan.tokens_of(at))
            if at == self._plan.strike_at:
                if self._faults.strikes("process.lies", self._plan.place):
                    break
                await self._meet_trouble(self._plan.place)
            await self._step(step)
        return "done"

    async def _meet_trouble(self, place: str) -> None:
        if self._faults.strikes("process.ignores_cancel", place):
            await self._shielded(place)
        for hang in ("process.hang", "agent.provider_hangs"):
            if self._faults.strikes(hang, place):
                await anyio.sleep_forever()
        for failure in ("process.crash", "agent.provider_error", "agent.refuses"):
            if self._faults.strikes(failure, place):
                raise AgentFailed(f"{failure} at {place}")
        if self._faults.strikes("process.flood", place):
            for _ in range(self._faults.draws("process.flood", place).integer(16, 64, "blocks")):
                self._turn.say(said(place, _FLOOD_CHARS))

    async def _shielded(self, place: str) -> None:
        """Ignore cancellations for a drawn time."""
        with anyio.CancelScope(shield=True):
            await anyio.sleep(self._faults.draws("process.ignores_cancel", place).between(*SHIELD_S, "seconds"))

    async def _step(self, step: StepPlan) -> None:
        self._turn.say(said(self._plan.place, step.chars))
        for part in step.parts():
            await side_by_side(self._do, part)

    async def _do(self, one: ToolPlan | Delegation) -> None:
        await (self._delegate(one) if isinstance(one, Delegation) else self._call(one))

    async def _call(self, tool: ToolPlan) -> None:
        """Make a tool call; a failure or an abort of the call does not end the agent."""
        again = self._faults.strikes("agent.duplicate", tool.place)
        for one in (tool, tool._replace(place=f"{tool.place}:again")) if again else (tool,):
            with suppress(ToolFailed, ToolAborted):
                await self._turn.call("tool", self._tool, one)

    async def _tool(self, tool: ToolPlan) -> str:
        if self._faults.strikes("agent.tool_hangs", tool.place):
            await anyio.sleep_forever()
        await anyio.sleep(tool.seconds)
        if self._faults.strikes("process.ignores_cancel", tool.place):
            await self._shielded(tool.place)
        if self._faults.strikes("agent.tool_fails", tool.place):
            raise ToolFailed(f"agent.tool_fails at {tool.place}")
        return "result"

    async def _delegate(self, child: Delegation) -> None:
        with suppress(ToolAborted):
            await self._turn.delegate(child.name, child.prompt, agent=child.agent, cancel_mode=child.mode)
