"""Liveness policy: decide from snapshots without progress which action is taken against an agent.

Every ``snapshot_s`` seconds the monitor checks whether anything came from the agent since the last snapshot: its start,
a heartbeat, a protocol message, output, the begin or end of a tool call. After ``wake`` snapshots without progress the
agent is sent an urgent message, after ``stop`` the agent is interrupted, after ``kill`` its session is aborted. Once an
action was taken, a mere reaction to it (a turn that ends and begins anew, a message without text or calls) no longer
counts as progress. A one-shot agent is left to its time-out. Pure.
"""

from __future__ import annotations

import sys
from enum import Enum, StrEnum
from typing import Final

import msgspec

ACTOR: Final = "liveness"
"""Actor in the records of a session that is ended because its agent makes no progress."""


class StallProfileName(StrEnum):
    """Names of the stall profiles; a plan's tasks use one of them."""

    DEFAULT = "default"
    LARGE = "large"
    TESTS = "tests"


class StallProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of snapshots in a row without progress after which an agent is woken by a message, interrupted, and
    killed."""

    wake: int
    stop: int
    kill: int


ONE_SHOT: Final = StallProfile(wake=sys.maxsize, stop=sys.maxsize, kill=sys.maxsize)
"""Stall profile of an agent that is never woken: a message would begin its work anew, and its time-out bounds its
silence."""


class Liveness(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds between snapshots (0: none are taken), and the stall profiles: large tasks, and phases in which tests run
    or work is merged, have profiles with more time. The figures are those of the specification.

    ``idle_s`` are the seconds without a prompt after which an agent is ended whose conversation the next agent can load
    (0: never)."""

    snapshot_s: float = 30.0
    idle_s: float = 1800.0
    default: StallProfile = StallProfile(wake=3, stop=5, kill=7)
    large: StallProfile = StallProfile(wake=5, stop=8, kill=12)
    tests: StallProfile = StallProfile(wake=8, stop=12, kill=16)

    def profile(self, patience: StallProfileName) -> StallProfile:
        found: StallProfile = getattr(self, patience.value)
        return found


class SilentAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that works on a turn and has made no progress for one snapshot or more, or against which an action was
    taken that is not forgotten yet.

    ``snapshots`` counts those without progress, one every ``snapshot_s`` seconds; ``silent_s`` is the time that they
    cover. ``profile`` is the stall profile that applies now. ``taken`` are the actions so far, ``next`` is the action
    that follows at most ``next_in_s`` seconds from now without progress, and ``ends_in_s`` the seconds after which the
    session is aborted; all three are ``None`` for a one-shot agent, which the time-out of its turn bounds."""

    session: str
    turn: str
    profile: str
    snapshots: int
    snapshot_s: float
    silent_s: float
    taken: tuple[str, ...] = ()
    next: str | None = None
    next_in_s: float | None = None
    ends_in_s: float | None = None


class StallAction(Enum):
    """Actions against an agent that makes no progress."""

    WAKE = "wake"
    STOP = "stop"
    KILL = "kill"


class Stall:
    """Snapshots without progress of one agent, and the actions that were taken.

    Each action is taken once. The actions are reset only after ``wake`` snapshots in a row with progress: an agent that
    only reacts each time it is woken up is killed in the end.
    """

    __slots__ = ("_lively", "silent", "taken")

    def __init__(self) -> None:
        self.silent = 0
        self._lively = 0
        self.taken = 0
        """Number of actions that were taken and not yet forgotten."""

    def snapshot(self, moved: bool, profile: StallProfile) -> StallAction | None:
        """Record the next snapshot (*moved*: with progress); return the action that is due, or ``None``."""
        if moved:
            self.silent = 0
            self._lively += 1
            if self._lively >= profile.wake:
                self.taken = 0
            return None
        self._lively = 0
        self.silent += 1
        bounds = (profile.wake, profile.stop, profile.kill)
        due = sum(self.silent >= bound for bound in bounds)
        if due <= self.taken:
            return None
        self.taken = due
        return STEPS[due - 1]

    def describe(
        self, session: str, turn: str, name: StallProfileName, rules: Liveness, *, one_shot: bool
    ) -> SilentAgent:
        """Return the snapshots and actions so far, and the actions to come under the stall profile *name*."""
        profile, every_s = rules.profile(name), rules.snapshot_s
        bounds = (profile.wake, profile.stop, profile.kill)
        to_come = None if one_shot or self.taken >= len(bounds) else self.taken
        return SilentAgent(
            session=session,
            turn=turn,
            profile=name.value,
            snapshots=self.silent,
            snapshot_s=every_s,
            silent_s=self.silent * every_s,
            taken=tuple(one.value for one in STEPS[: self.taken]),
            next=None if to_come is None else STEPS[to_come].value,
            next_in_s=None if to_come is None else max(0, bounds[to_come] - self.silent) * every_s,
            ends_in_s=None if one_shot else max(0, profile.kill - self.silent) * every_s,
        )


STEPS: Final = (StallAction.WAKE, StallAction.STOP, StallAction.KILL)
"""Actions, gentlest first."""
