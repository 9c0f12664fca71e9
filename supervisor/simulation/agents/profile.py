"""Shapes: the behaviour of a simulated agent when nothing strikes, such as its pace, its tokens and its permissions.

A shape says only what is usual. Errors and their moments are up to the fault plan, so the same shape serves a run
without faults and a run in which everything fails.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from supervisor.lifecycles.types import CancelMode

Adapter: TypeAlias = Literal["acp", "command", "inprocess", "jsonl"]
SECONDS: Final = ("think_s", "tool_s", "start_s", "slow_start_s", "cancel_s")
COUNTS: Final = ("steps", "tools", "text_chars", "tokens")
MOST: Final = 1_000_000
"""The largest number of seconds, steps, calls and characters: a run with more runs out of memory or time."""
TOKENS_MAX: Final = 1_000_000_000
ADAPTERS: Final = "acp, command, inprocess or jsonl"
WANTED: Final = {
    "adapter": ADAPTERS,
    "depth_max": "a whole number, 0 for no child sessions, or more",
    "delegates_to": "a list of names of agents",
    "cancel_modes": f"a list of some of {', '.join(CancelMode)}",
}
"""Values of fields that are neither pairs nor probabilities, for error messages."""
PROBABILITIES: Final = (
    "parallel",
    "nested",
    "terminals",
    "child_processes",
    "delegation",
    "beside",
    "permission",
    "loads",
    "steers",
)


class AgentShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The usual behaviour of one kind of agent. Pairs are bounds, both included, of up to a million (of tokens, a
    thousand million); probabilities go from 0 to 1.

    The defaults are ours, at the pace of coding agents: seconds per thought and per tool call, minutes per turn.

    Args:
        adapter: how it is spoken to.
        steps: thoughts per turn, at least 1.
        tools: tool calls per turn, spread over its steps.
        parallel: that a tool call runs beside the one before it.
        nested: that calls which run side by side are those of a sub-agent of its own, within a call (ACP only).
        think_s: seconds per thought.
        tool_s: seconds per tool call.
        terminals: that a tool is a command which the supervisor runs (ACP only); else the agent runs it by itself.
        child_processes: that a tool which a program runs by itself is a process of its own.
        delegation: that a step asks for a child session.
        beside: that a child session works beside the last tool calls of its step, not after them.
        depth_max: how deep child sessions may go; 0 for none.
        delegates_to: the agents that child sessions have; empty for the supervisor's choice.
        cancel_modes: what its end may mean to its child sessions.
        permission: that a tool call asks for permission first (ACP only).
        loads: that it can load its conversations again (ACP only).
        steers: that it takes messages within a turn, between two steps (ACP only).
        text_chars: characters said per step.
        tokens: tokens used per turn.
        start_s: seconds until it is ready.
        slow_start_s: the same where ``process.slow_start`` strikes; the usual spawn deadline is 60 s.
        cancel_s: seconds until it reacts to a cancel.

    Raises:
        ValueError: a bound or a probability makes no sense; the message names the field, its value, and what would.
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
        """The same agent behind that adapter; nothing is validated again if it has that already."""
        return self if self.adapter == adapter else msgspec.structs.replace(self, adapter=adapter)


def shape_of(fields: Mapping[str, Any]) -> AgentShape:
    """Make a shape from fields of a file.

    Raises:
        ValueError: one of them is of another type, or makes no sense; the message names the field, its value, and what
            would be right.
    """
    try:
        return msgspec.convert(fields, AgentShape)
    except msgspec.ValidationError as error:
        if error.__cause__ is not None:
            raise ValueError(str(error.__cause__)) from None
        name, value = next(one for one in fields.items() if not _fits(*one))
        raise ValueError(f"{name}: {value!r} does not fit; give {_wanted(name)}") from None


def _fits(name: str, value: Any) -> bool:
    """Whether one field alone has its type; an error over all fields does not say which one is wrong."""
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
