"""A simulated agent that serves one prompt and prints lines of JSON, and the mapping that gives the lines a meaning.

The agent works as the one-shot agent of a plain command does, with the same faults; only the output format differs. The
agent chooses the id of its conversation, and its last line is the result of the turn: the exit status means nothing.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from supervisor.agent_catalogue import LineMapping
from supervisor.simulation.agents.command_agent import OneShot
from supervisor.simulation.agents.profile import AgentShape
from supervisor.simulation.agents.turn_plan import Spend, ToolPlan, TurnPlan, said
from supervisor.simulation.faults import FaultPlan
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.machine.kernel import Program

MAPPING: Final = LineMapping.model_validate(
    {
        "prompt": "stdin",
        "resume_arguments": ["--resume", "{id}"],
        "kinds": {"own": "execute", "process": "execute"},
        "rules": [
            {"when": {"type": "session"}, "says": "session", "id": "id"},
            {"when": {"type": "said"}, "says": "text", "text": "text"},
            {"when": {"type": "call"}, "says": "tool_begin", "id": "id", "title": "kind", "kind": "kind"},
            {"when": {"type": "called"}, "says": "tool_end", "id": "id", "failed": {"status": "failed"}},
            {"when": {"type": "used"}, "says": "usage", "scope": "request", "input": "tokens"},
            {"when": {"type": "end", "status": "done"}, "says": "end", "stop": "end_turn"},
            {"when": {"type": "end"}, "says": "end", "stop": "error", "words": "error"},
        ],
    }
)
"""Meaning of the agent's lines for the ``jsonl`` adapter."""
_encode: Final = msgspec.json.Encoder().encode


def jsonl_agent(shape: AgentShape, random: KeyedRandom, faults: FaultPlan, spend: Spend) -> Program:
    """Return the program of a ``jsonl`` agent. The prompt comes on standard input; ``--resume NAME`` continues a
    conversation."""
    return lambda inside: _Jsonl(inside, shape, random, faults, spend).run()


class _Jsonl(OneShot):
    """One-shot agent whose output is lines of JSON."""

    async def say(self, text: str) -> None:
        await self._tell(type="said", text=f"{text}\n")

    async def _tell(self, **told: Any) -> None:
        await self.write(self._line(**told))

    @staticmethod
    def _line(**told: Any) -> bytes:
        return _encode(told) + b"\n"

    async def erupt(self, place: str) -> None:
        for data in self.trouble.outbursts(place, self._line(type="said", text=said(place, 8 * 1024))):
            await self.write(data)

    async def read_prompt(self) -> None:
        while await self.inside.read():
            pass

    async def play(self, plan: TurnPlan) -> int:
        resumed = self.inside.argv[2] if len(self.inside.argv) > 1 else self.place
        await self._tell(type="session", id=resumed)
        return await super().play(plan)

    async def finish(self, plan: TurnPlan) -> None:
        await self._tell(type="used", tokens=plan.tokens)
        if self.trouble.strikes("agent.open_call", plan.place):
            await self._tell(type="call", id=f"{plan.place}:open", kind="own")
        await self._tell(type="end", status="done")

    async def complain(self, why: str, status: int) -> int:
        await self._tell(type="end", status="failed", error=why)
        return status

    async def call(self, tool: ToolPlan) -> None:
        await self._tell(type="call", id=tool.place, kind=tool.way)
        status = await self.work(tool)
        await self._tell(type="called", id=tool.place, status="failed" if status else "done")
