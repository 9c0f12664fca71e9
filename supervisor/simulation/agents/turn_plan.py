"""Plan of one turn of a simulated agent when no fault strikes, drawn as a whole before the turn begins.

The plan depends only on the seed, the turn's place and the agent's shape, so that removing a fault changes no other
turn. Places are names: ``s1:a2:t3`` is a turn, ``s1:a2:t3:c1`` is the first tool call of that turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import Final, Literal, NamedTuple

from supervisor.lifecycles.types import CancelMode
from supervisor.simulation.agents.profile import AgentShape
from supervisor.simulation.keyed_random import KeyedRandom

ToolRunner = Literal["own", "process", "terminal"]
"""Runner of a tool: the agent itself, a process that the agent starts, or the supervisor, in a terminal."""

Spend = Callable[[int], None]
"""Function that is called after each thought, with the number of tokens that the thought used."""

_DEPTH: Final = re.compile(r"^depth (\d{1,3})$", re.MULTILINE)
_FILLER: Final = "and so it goes on, "


class ToolPlan(NamedTuple):
    """Plan of a tool call: place, runner, duration, and inner calls."""

    place: str
    way: ToolRunner
    seconds: float
    asks: bool
    """Whether the call requests permission first."""
    inner: tuple[ToolPlan, ...] = ()
    """Calls that a sub-agent makes within this call, side by side."""


class Delegation(NamedTuple):
    """Plan of a request for a child session."""

    place: str
    name: str
    prompt: str
    agent: str | None
    mode: CancelMode


class StepPlan(NamedTuple):
    """Plan of a step of a turn: a thought, the text after the thought, and then tool calls: batches one after the
    other, the calls of a batch side by side.

    The delegation comes after all batches; with ``beside`` the delegation runs beside the last batch.
    """

    think_s: float
    chars: int
    batches: list[list[ToolPlan]]
    delegation: Delegation | None
    beside: bool = False

    def parts(self) -> list[list[ToolPlan | Delegation]]:
        """Return the batches of calls together with the delegation, for agents that can delegate."""
        parts: list[list[ToolPlan | Delegation]] = [list(batch) for batch in self.batches]
        if self.delegation is not None and self.beside and parts:
            parts[-1].append(self.delegation)
        elif self.delegation is not None:
            parts.append([self.delegation])
        return parts


class TurnPlan(NamedTuple):
    """Plan of a turn. ``strike_at`` is the step before which a fault of the whole turn strikes, if any strikes."""

    place: str
    steps: list[StepPlan]
    strike_at: int
    tokens: int

    def tokens_of(self, at: int) -> int:
        """Return the tokens that step number *at* uses; all steps together use all tokens of the turn."""
        return self.tokens * (at + 1) // len(self.steps) - self.tokens * at // len(self.steps)


def free(tokens: int) -> None:
    """Ignore the used tokens: the default for *spend* parameters."""


def depth_of(prompt: str) -> int:
    """Return the depth of a session that received *prompt*: the prompt of a delegation has a line with the depth."""
    found = _DEPTH.search(prompt)
    return int(found[1]) if found else 0


def said(place: str, chars: int) -> str:
    """Return a text of at least *chars* characters that begins with *place*, the name of the turn or call."""
    return f"{place}: {_FILLER * (chars // len(_FILLER) + 1)}"


def plan_turn(shape: AgentShape, random: KeyedRandom, place: str, depth: int) -> TurnPlan:
    """Draw the plan of the turn at *place*, in a session that is *depth* delegations below a root session."""
    rng = random.stream("turn", place)
    batches: list[list[list[ToolPlan]]] = [[] for _ in range(rng.randint(*shape.steps))]
    for batch in _batches(shape, rng, place):
        rng.choice(batches).append(batch)
    if shape.adapter == "acp" and shape.nested > 0:  # who never does it draws as before
        batches = [[_nested(shape, rng, batch) for batch in done] for done in batches]
    steps = [_step(shape, rng, f"{place}:d{at}", done, depth) for at, done in enumerate(batches, 1)]
    return TurnPlan(place, steps, rng.randrange(len(steps)), rng.randint(*shape.tokens))


def _batches(shape: AgentShape, rng: Random, place: str) -> list[list[ToolPlan]]:
    batches: list[list[ToolPlan]] = []
    for number in range(1, rng.randint(*shape.tools) + 1):
        tool = _tool(shape, rng, f"{place}:c{number}")
        if batches and rng.random() < shape.parallel:
            batches[-1].append(tool)
        else:
            batches.append([tool])
    return batches


def _nested(shape: AgentShape, rng: Random, batch: list[ToolPlan]) -> list[ToolPlan]:
    """Return the batch, or a batch with one call of a sub-agent, which makes all calls of the given batch."""
    if rng.random() >= shape.nested:
        return batch
    return [ToolPlan(f"{batch[0].place}:within", "own", 0.0, False, tuple(batch))]


def _tool(shape: AgentShape, rng: Random, place: str) -> ToolPlan:
    in_terminal, in_process = rng.random() < shape.terminals, rng.random() < shape.child_processes
    way: ToolRunner = "own"
    if shape.adapter == "acp" and in_terminal:
        way = "terminal"
    elif shape.adapter != "inprocess" and in_process:
        way = "process"
    return ToolPlan(place, way, rng.uniform(*shape.tool_s), rng.random() < shape.permission)


def _step(shape: AgentShape, rng: Random, place: str, batches: list[list[ToolPlan]], depth: int) -> StepPlan:
    delegates = rng.random() < shape.delegation and depth < shape.depth_max
    delegation = _delegation(shape, rng, place, depth) if delegates else None
    think_s, chars = rng.uniform(*shape.think_s), rng.randint(*shape.text_chars)
    beside = shape.beside > 0 and rng.random() < shape.beside  # who never does it draws as before
    return StepPlan(think_s, chars, batches, delegation, beside)


def _delegation(shape: AgentShape, rng: Random, place: str, depth: int) -> Delegation:
    agent = rng.choice(shape.delegates_to) if shape.delegates_to else None
    name = "-".join(place.split(":")[-2:])
    return Delegation(place, name, f"depth {depth + 1}\nwork", agent, rng.choice(shape.cancel_modes))
