"""Checker of leaks: a supervisor that has closed holds no entities, timers, actors or waiting requests.

The checker reads private attributes, since the objects that a closed supervisor must not hold are no part of its
interface.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

from supervisor.host.api import Supervisor

TIMERS_MAX: Final = 64
"""Number of timers that a closed supervisor may leave in the kernel."""


def counted(sup: Supervisor, entities: Container[str]) -> list[str]:
    """Return the entities that monitors, budget scopes or model error counters still hold. A budget scope that the host
    opened does not count: the host closes it."""
    monitors = sup.core.monitors
    hearers = [f"{len(monitors.on_model_failed)} that hear of models"] if monitors.on_model_failed else []
    return [*sorted(one for one in {*monitors._scopes, *monitors._running} if one in entities), *hearers]


def check_closed(say: Callable[[str, str, str], None], sup: Supervisor, entities: Container[str]) -> None:
    """Check that a closed supervisor holds nothing any more. *say* reports a violation: the invariant, the entity, and
    the message."""
    if sup.core.registry.sessions or sup.core.registry.entities:
        left = sorted({*sup.core.registry.sessions, *sup.core.registry.entities})
        say("bounded", left[0], f"is still in memory after the supervisor has closed: {left[:5]}")
    if waiting := sup.core.requests.waiting:
        say("bounded", "run", f"answers are still waited for: {sorted(waiting)[:5]}")
    if left := counted(sup, entities):
        say("bounded", left[0], f"is still counted after the supervisor has closed: {left[:5]}")
    actors, timers = len(sup.core.registry.system), sup.core.registry.system.timers.pending
    if actors or timers > TIMERS_MAX:
        say("bounded", "run", f"{actors} actors and {timers} timers are left in the kernel")
