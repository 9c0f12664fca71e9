"""The seven visual states of an agent, derived from facts and never stored (spec 000), and the inspection of a living
entity.

Pure: *now* is an argument. A duration equal to a threshold counts as exceeding it (``>=``). An agent that never sent a
heartbeat is judged from its start, and a heartbeat older than the start belongs to an earlier process. A combination
that fits no row of the specification is ``UNKNOWN``.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from supervisor.lifecycles.types import Ending, HeldBy


class VisualState(Enum):
    """The seven visual states, each with its symbol and its colour on a terminal."""

    indicator: str
    colour: str

    def __new__(cls, spelling: str, indicator: str, colour: str) -> VisualState:
        one = object.__new__(cls)
        one._value_ = spelling
        one.indicator = indicator
        one.colour = colour
        return one

    SPAWNING = ("SPAWNING", "◔", "yellow")
    RUNNING = ("RUNNING", "●", "green")
    STALLED = ("STALLED", "◐", "dark orange")
    MERGING = ("MERGING", "⇄", "blue")
    DEAD = ("DEAD", "○", "red")
    IDLE = ("IDLE", "□", "gray")
    UNKNOWN = ("UNKNOWN", "◌", "dim")


class AgentStateThresholds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds after which an agent counts as stalled, as dead on arrival, or as stuck in a merge."""

    stall_threshold_s: float = 300
    spawn_timeout_s: float = 60
    merging_stall_s: float = 600


_ENDED: Final = frozenset({"done", "failed", "cancelled", "killed"})
_WAITING: Final = frozenset({"idle", "waiting", "paused"})
_MERGING: Final = frozenset({"merging", "committing", "pushing"})
_ACTIVE: Final = frozenset({"", "starting", "spawning", "working", "running", "in_progress"})


def visual_state(
    agent_state: str,
    *,
    spawned_at: float,
    now: float,
    last_heartbeat_at: float | None,
    pid: int | None,
    status: str = "",
    woken: bool = False,
    thresholds: AgentStateThresholds = AgentStateThresholds(),  # noqa: B008 - a frozen value
) -> VisualState:
    """Classify an agent by the state of its machine and the facts around it; times are seconds of one clock.

    An empty *status* adds nothing to the state: an in-process agent, which has no pid, has no status. *woken*: the
    liveness policy has sent the agent a message that no turn has answered yet.
    """
    status = status.casefold()
    if agent_state == "dead" or (agent_state in _CLASSIFIED and _has_ended(status, pid)):
        return VisualState.DEAD
    silent_s = now - max(spawned_at, spawned_at if last_heartbeat_at is None else last_heartbeat_at)
    match agent_state:
        case "starting" if status in _ACTIVE:
            return VisualState.DEAD if now - spawned_at >= thresholds.spawn_timeout_s else VisualState.SPAWNING
        case "working" if status in _ACTIVE:
            is_stalled = woken or silent_s >= thresholds.stall_threshold_s
            return VisualState.STALLED if is_stalled else VisualState.RUNNING
        case "working" if status in _MERGING:
            return VisualState.STALLED if silent_s >= thresholds.merging_stall_s else VisualState.MERGING
        case "idle" if status in _WAITING or not status:
            return VisualState.IDLE
        case _:
            return VisualState.UNKNOWN


_CLASSIFIED: Final = frozenset({"starting", "working", "idle"})


def _has_ended(status: str, pid: int | None) -> bool:
    """Return whether the session has ended, or is said to wait although there is no process that could wait."""
    return status in _ENDED or (pid is None and status in _WAITING)


class TaskStack(msgspec.Struct, frozen=True, kw_only=True):
    """An asyncio task that runs, and its stack: ``file:line in function``, the outermost call first."""

    name: str
    stack: tuple[str, ...]


class Inspected(msgspec.Struct, frozen=True, kw_only=True):
    """Inspection of one living entity or tool call.

    ``state`` is the state of its lifecycle table (``open`` for a call); ``phase`` is the kernel's, ``live`` or
    ``stopping``, and ``reason`` is the reason of a stop. ``queued`` counts the messages in the mailbox by lane,
    ``open_calls`` are the turn's open calls, ``permissions`` the requests that wait for a person; ``agent`` is the id
    of the current agent. ``checkpoint`` is the checkpoint of a run, or the checkpoint with which a session begins.
    ``held_by`` is the obstacle outside of the work that holds the next step of a task; ``ending`` is the stage in which
    the termination of a session is, and its deadline. A task that an earlier
    supervisor left, and that no plan has continued yet, has neither mailbox nor tasks.
    """

    id: str
    kind: str
    state: str
    phase: str = "live"
    reason: str = ""
    cancelled_for: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    tasks: tuple[TaskStack, ...] = ()
    queued: dict[str, int] = {}
    handled: int = 0
    late_replies: int = 0
    timers: int = 0
    agent: str | None = None
    pid: int | None = None
    turn: str | None = None
    open_calls: tuple[str, ...] = ()
    permissions: tuple[str, ...] = ()
    checkpoint: str = ""
    held_by: HeldBy | None = None
    ending: Ending | None = None
