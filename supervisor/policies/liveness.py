"""One policy judges whether an agent is alive: snapshots without progress, and what is done after how many of them.

Every ``snapshot_s`` it is looked at whether anything came from the agent since: its start, a heartbeat, a message of
its protocol, output, a tool call's begin or end. After ``wake`` snapshots without any it is sent an urgent message,
after ``stop`` it is interrupted, after ``kill`` its session is aborted. Once a step was taken, what may be no more than
the answer to that step (a turn that ends and begins anew, a message without words or calls) is no sign any more. Pure.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

__all__ = ["ACTOR", "Liveness", "Stall", "StallAction", "StallProfile", "StallProfileName"]

ACTOR: Final = "liveness"
"""Who ends a session whose agent is not heard of any more."""


class StallProfileName(Enum):
    """Whose stall profile holds."""

    DEFAULT = "default"
    LARGE = "large"
    TESTS = "tests"


class StallProfile(msgspec.Struct, frozen=True, kw_only=True):
    """After how many snapshots in a row without progress an agent is woken up, asked to stop, and killed."""

    wake: int
    stop: int
    kill: int


class Liveness(msgspec.Struct, frozen=True, kw_only=True):
    """How often it is looked (seconds; 0: never), and how patient the profiles are: large tasks, and phases in which
    tests run or work is merged, are given longer. The figures are those of the specification."""

    snapshot_s: float = 30.0
    default: StallProfile = StallProfile(wake=3, stop=5, kill=7)
    large: StallProfile = StallProfile(wake=5, stop=8, kill=12)
    tests: StallProfile = StallProfile(wake=8, stop=12, kill=16)

    def profile(self, patience: StallProfileName) -> StallProfile:
        found: StallProfile = getattr(self, patience.value)
        return found


class StallAction(Enum):
    """What is to be done about an agent that does not move."""

    WAKE = "wake"
    STOP = "stop"
    KILL = "kill"


class Stall:
    """How long one agent has not moved, in snapshots, and what was done about it.

    Each step is taken once. As many snapshots with progress as it takes until the first step make good again: an agent
    that says a word each time it is woken does not go on like that for ever.
    """

    __slots__ = ("_lively", "_taken", "silent")

    def __init__(self) -> None:
        self.silent = 0
        self._lively = 0
        self._taken = 0

    @property
    def stepped(self) -> bool:
        """Whether something was done about it that has not been made good."""
        return self._taken > 0

    def snapshot(self, moved: bool, profile: StallProfile) -> StallAction | None:
        """What the next snapshot asks for."""
        if moved:
            self.silent = 0
            self._lively += 1
            if self._lively >= profile.wake:
                self._taken = 0
            return None
        self._lively = 0
        self.silent += 1
        bounds = (profile.wake, profile.stop, profile.kill)
        due = sum(self.silent >= bound for bound in bounds)
        if due <= self._taken:
            return None
        self._taken = due
        return STEPS[due - 1]


STEPS: Final = (StallAction.WAKE, StallAction.STOP, StallAction.KILL)
"""Gentlest first."""
