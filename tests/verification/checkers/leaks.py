"""Leaks: a supervisor that has closed holds no entities, timers, actors or waits any more."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

from supervisor.embedding.runtime import Supervisor

__all__ = ["check_closed", "counted"]

TIMERS_MAX: Final = 64
"""Timers that a supervisor which has closed may leave behind unrung."""


def counted(sup: Supervisor, entities: Container[str]) -> list[str]:
    """Of these *entities*, whom its overseer counts for, or watches; and who still hears how models fail. A scope of a
    host's own is the host's to close."""
    monitors = sup.monitors
    hearers = [f"{len(monitors.on_model_failed)} that hear of models"] if monitors.on_model_failed else []
    return [*sorted(one for one in {*monitors._scopes, *monitors._running} if one in entities), *hearers]


def check_closed(say: Callable[[str, str, str], None], sup: Supervisor, entities: Container[str]) -> None:
    """A supervisor has closed. *say* reports a violation: the invariant, whose it is, and the words."""
    if sup.registry.sessions or sup.registry.entities:
        left = sorted({*sup.registry.sessions, *sup.registry.entities})
        say("bounded", left[0], f"is still in memory after the supervisor has closed: {left[:5]}")
    if waiting := sup._pending_requests.waiting:
        say("bounded", "run", f"answers are still waited for: {sorted(waiting)[:5]}")
    if left := counted(sup, entities):
        say("bounded", left[0], f"is still counted after the supervisor has closed: {left[:5]}")
    actors, timers = len(sup.registry.system), sup.registry.system.timers.pending
    if actors or timers > TIMERS_MAX:
        say("bounded", "run", f"{actors} actors and {timers} timers are left in the kernel")
