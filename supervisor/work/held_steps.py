"""Steps of a task in the user's repository: while something outside of the work holds a step, the task says what.

``sessions.obstacles`` waits; here the obstacle becomes ``TaskData.held_by``, by the events ``StepHeld`` and
``StepFreed``, which leave the state of the task as it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles.task import StepFreed, StepHeld
from supervisor.lifecycles.types import HeldBy
from supervisor.ports import WallClock
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Refused
from supervisor.sessions.obstacles import outlast_obstacles
from supervisor.work.task_execution import TaskExecution

_log = get_logger()
_T = TypeVar("_T")


async def make_step(sup: SupervisorCore, execution: TaskExecution, do: Callable[[], Awaitable[_T]]) -> _T:
    """Call *do*, a step of a task, until nothing outside of the work holds it. Meanwhile ``TaskData.held_by`` is the
    obstacle.

    Raises:
        WorkspaceHeld: the supervisor is ending, and the step is held.
    """
    clock = sup.journal_writer.clock.wall
    note = partial(note_obstacle, execution, clock)
    return await outlast_obstacles(do, note, clock, sup.stopping, execution.data.held_by)


def note_obstacle(execution: TaskExecution, clock: WallClock, held_by: HeldBy | None) -> None:
    """Record that *held_by* holds the next step of a task, or, with ``None``, that nothing holds it any more."""
    known = execution.data.held_by
    with suppress(Refused):  # it was cancelled just now
        if held_by is not None:
            execution.apply([StepHeld(held_by=held_by, reason=f"held by {held_by.what}; {held_by.fix}")])
            _log.displayed("a task is held", task=execution.name, by=held_by.what, fix=held_by.fix)
        elif known is not None:
            held_s = max(0.0, clock.time() - known.since)
            execution.remarks.append(f"was held for {held_s:.0f} s by {known.what}")
            execution.apply([StepFreed(reason="the obstacle is gone")])
