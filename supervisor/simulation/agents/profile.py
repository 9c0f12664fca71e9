"""Shapes: the behaviour of a simulated agent when no fault strikes, such as pace, tokens and permission requests.

A shape describes only usual behaviour. Errors, and their moments, are decided by the fault plan, so the same shape
serves a run without faults and a run in which everything fails.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_type_hints

import msgspec

from supervisor.lifecycles.types import CancelMode

Adapter: TypeAlias = Literal["acp", "command", "inprocess", "jsonl"]
MOST: Final = 1_000_000
"""The largest number of seconds, steps, calls and characters in a shape: a run with more would run out of memory or
time."""
TOKENS_MAX: Final = 1_000_000_000
ADAPTERS: Final = "acp, command, inprocess or jsonl"
WANTED: Final = {
    "adapter": ADAPTERS,
    "depth_max": "a whole number, 0 for no child sessions, or more",
    "delegates_to": "a list of names of agents",
    "cancel_modes": f"a list of some of {', '.join(CancelMode)}",
}
"""Descriptions of the valid values of fields that are neither pairs nor probabilities, for error messages."""


class AgentShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Usual behaviour of one kind of simulated agent. Pairs are bounds, both included, of up to a million (for tokens,
    a thousand million); probabilities go from 0 to 1.

    The defaults are estimates, at the pace of coding agents: seconds per thought and per tool call, minutes per turn.

    Args:
        adapter: adapter that runs the agent.
        steps: thoughts per turn, at least 1.
        tools: tool calls per turn, spread over the turn's steps.
        parallel: probability that a tool call runs beside the tool call before.
        nested: probability that parallel calls are made by a sub-agent of the agent itself, within a call (ACP only).
        think_s: seconds per thought.
        tool_s: seconds per tool call.
        terminals: probability that the supervisor runs a tool as a command (ACP only); else the agent runs the tool.
        child_processes: probability that a tool which the agent runs is a separate process.
        delegation: probability that a step requests a child session.
        beside: probability that a child session works beside the last tool calls of the step, not after these calls.
        depth_max: largest depth of child sessions; 0 for no child sessions.
        delegates_to: names of the agents of child sessions; empty if the supervisor chooses.
        cancel_modes: cancel modes of child sessions, one of which is drawn.
        permission: probability that a tool call requests permission first (ACP only).
        loads: probability that the agent can load its conversations again (ACP only).
        steers: probability that the agent takes messages within a turn, between two steps (ACP only).
        text_chars: characters of text per step.
        tokens: tokens used per turn.
        start_s: seconds until the agent is ready.
        slow_start_s: the same if the fault ``process.slow_start`` strikes; the usual spawn deadline is 60 s.
        cancel_s: seconds until the agent reacts to a cancel.

    Raises:
        ValueError: a bound or a probability is not valid; the message names the field, the value, and valid values.
    """

    adapter: Adapter = "acp"
    steps: tuple[int, int] = (2, 5)
    tools: tuple[int, int] = (0, 6)
    parallel: float = 0.3
    nested: float = 0.0
    think_s: tuple[float, float] = (2.0, 15.0)
    tool_s: tuple[float, float] = (0.2, 20.0)
    terminals: float = 0.5
    child_processes: float = 0.2
    delegation: float = 0.05
    beside: float = 0.0
    depth_max: int = 2
    delegates_to: tuple[str, ...] = ()
    cancel_modes: tuple[CancelMode, ...] = tuple(CancelMode)
    permission: float = 0.1
    loads: float = 0.5
    steers: float = 0.0
    text_chars: tuple[int, int] = (20, 400)
    tokens: tuple[int, int] = (1_000, 20_000)
    start_s: tuple[float, float] = (0.5, 4.0)
    slow_start_s: tuple[float, float] = (55.0, 180.0)
    cancel_s: tuple[float, float] = (0.0, 2.0)

    def __post_init__(self) -> None:
        for name in (*SECONDS, *COUNTS):
            least, most = int(name == "steps"), TOKENS_MAX if name == "tokens" else MOST
            bounds = getattr(self, name)
            if not all(math.isfinite(one) for one in bounds):
                raise ValueError(f"{name}: {bounds} has an end that is not finite; give two numbers")
            if not least <= bounds[0] <= bounds[1] <= most:
                raise ValueError(
                    f"{name}: {bounds} is not a range; give (low, high) with {least} <= low <= high <= {most}"
                )
        for name in PROBABILITIES:
            if not 0.0 <= (probability := getattr(self, name)) <= 1.0:
                raise ValueError(f"{name}: {probability} is not a probability; give a number from 0 to 1")
        if self.adapter not in ("acp", "command", "inprocess", "jsonl"):
            raise ValueError(f"adapter: {self.adapter!r} is not simulated; use {ADAPTERS}")
        if self.depth_max < 0:
            raise ValueError(f"depth_max: {self.depth_max} is negative; use 0 for no child sessions, or more")
        if not self.cancel_modes:
            raise ValueError(f"cancel_modes: is empty; name at least one of {', '.join(CancelMode)}")

    def speaking(self, adapter: Adapter) -> AgentShape:
        """Return the same shape with this adapter; the shape itself, without another validation, if it has the adapter
        already."""
        return self if self.adapter == adapter else msgspec.structs.replace(self, adapter=adapter)


_TYPES: Final = get_type_hints(AgentShape)
SECONDS, COUNTS, PROBABILITIES = (
    tuple(name for name, of in _TYPES.items() if of == wanted)
    for wanted in (tuple[float, float], tuple[int, int], float)
)
"""Names of the fields that are bounds of seconds, bounds of whole numbers, and probabilities."""


def shape_of(fields: Mapping[str, Any]) -> AgentShape:
    """Make a shape from fields of a file.

    Raises:
        ValueError: a field has the wrong type, or a value that is not valid; the message names the field, the value,
            and valid values.
    """
    try:
        return msgspec.convert(fields, AgentShape)
    except msgspec.ValidationError as error:
        if error.__cause__ is not None:
            raise ValueError(str(error.__cause__)) from None
        name, value = next(one for one in fields.items() if not _fits(*one))
        raise ValueError(f"{name}: {value!r} does not fit; give {_wanted(name)}") from None


def _fits(name: str, value: Any) -> bool:
    """Whether the value of one field has the field's type. Fields are checked one by one, since the error over all
    fields does not name the wrong field."""
    try:
        msgspec.convert({name: value}, AgentShape)
    except msgspec.ValidationError as error:
        return error.__cause__ is not None
    return True


def _wanted(name: str) -> str:
    if name in (*SECONDS, *COUNTS):
        return f"[low, high], two {'' if name in SECONDS else 'whole '}numbers"
    if name in PROBABILITIES:
        return "a number from 0 to 1"
    return WANTED[name]
