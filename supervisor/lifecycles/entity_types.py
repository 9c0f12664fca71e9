"""Types of entities: the state machine of each type, its test for stale events, and the event that reports an internal
error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from actors.machine import Event, Machine
from supervisor.lifecycles import agent, job, line_fields, session, task_run, trigger, turn, worker, workstream
from supervisor.lifecycles.agent import AGENT
from supervisor.lifecycles.events import AgentExited, FatalError, TaskFailed
from supervisor.lifecycles.session import SESSION
from supervisor.lifecycles.task import TASK
from supervisor.lifecycles.turn import TURN
from supervisor.lifecycles.types import Exit, Kind, Verdict


class Lifecycle(NamedTuple):
    """Entity type: its kind, its state machine, the test for events that come too late (``stale``), and the function
    that makes the event which reports a failed task of the entity's actor (``broken``; ``None`` if entities of this
    type have no actor). ``line_fields`` returns the fields of the data that stand in the record of a transition;
    ``None`` if entities of this type have none.

    The log of an entity ends with the event that finalizes the entity, or, with ``ends_at_terminal``, when the entity
    enters a final state.
    """

    kind: Kind
    machine: Machine[Any, Any]
    stale: Callable[[Any, Event], bool]
    broken: Callable[[str], Event] | None
    ends_at_terminal: bool = False
    line_fields: Callable[[Any, Any, bool], dict[str, Any]] | None = None

    @property
    def has_actor(self) -> bool:
        """Whether each entity of the type has a mailbox and timers of its own, and so tasks that may fail."""
        return self.broken is not None


SESSION_KIND = Lifecycle(Kind.SESSION, SESSION, session.stale, lambda why: FatalError(message=why))
TURN_KIND = Lifecycle(Kind.TURN, TURN, turn.stale, lambda why: TaskFailed(verdict=Verdict(exit=Exit.ERROR, error=why)))
AGENT_KIND = Lifecycle(Kind.AGENT, AGENT, agent.stale, lambda why: AgentExited(reason=why))


def _never(data: object, event: Event) -> bool:
    return False


TASK_KIND = Lifecycle(Kind.TASK, TASK, _never, None, ends_at_terminal=True, line_fields=line_fields.task_fields)
RUN_KIND = Lifecycle(Kind.RUN, task_run.RUN, _never, None, ends_at_terminal=True, line_fields=line_fields.run_fields)
JOB_KIND = Lifecycle(Kind.JOB, job.JOB, _never, None, ends_at_terminal=True, line_fields=line_fields.job_fields)
WORKSTREAM_KIND = Lifecycle(
    Kind.WORKSTREAM,
    workstream.WORKSTREAM,
    _never,
    lambda why: workstream.UserCancelled(reason=why),
    ends_at_terminal=True,
    line_fields=line_fields.no_fields,
)
WORKER_KIND = Lifecycle(
    Kind.WORKER,
    worker.WORKER,
    _never,
    lambda why: worker.ShutdownRequested(reason=why),
    ends_at_terminal=True,
    line_fields=line_fields.no_fields,
)
TRIGGER_KIND = Lifecycle(
    Kind.TRIGGER, trigger.TRIGGER, _never, None, ends_at_terminal=True, line_fields=line_fields.no_fields
)

LIFECYCLES: Final[Mapping[str, Lifecycle]] = MappingProxyType(
    {
        one.kind: one
        for one in (
            SESSION_KIND,
            TURN_KIND,
            AGENT_KIND,
            TASK_KIND,
            RUN_KIND,
            JOB_KIND,
            WORKSTREAM_KIND,
            WORKER_KIND,
            TRIGGER_KIND,
        )
    }
)
"""Types of entities by the name of their kind in records."""
