"""The nine lifecycles of the supervisor, one table each.

``MACHINES`` is the only list of them: the reference page, the validator, the journal's replay and the tests read it.
A lifecycle that is not in it does not exist. ``task_cascade`` has the events of task, run and job that follow from one.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from actors.machine import Machine
from supervisor.lifecycles.agent import AGENT
from supervisor.lifecycles.job import JOB
from supervisor.lifecycles.session import SESSION
from supervisor.lifecycles.task import TASK
from supervisor.lifecycles.task_run import RUN
from supervisor.lifecycles.trigger import TRIGGER
from supervisor.lifecycles.turn import TURN
from supervisor.lifecycles.worker import WORKER
from supervisor.lifecycles.workstream import WORKSTREAM

__all__ = ["MACHINES"]

MACHINES: Final[Mapping[str, Machine[Any, Any]]] = MappingProxyType(
    {one.name: one for one in (TASK, AGENT, TURN, SESSION, RUN, JOB, WORKSTREAM, WORKER, TRIGGER)}
)
"""State machines of all kinds of entities by name, in the order in which pages show them."""
