"""Types of entities: the state machine of each type, its test for stale events, and the event that reports an internal
error."""

from __future__ import annotations

from actors.machine import Event
from supervisor.lifecycles import agent, job, session, task_run, turn, worker, workstream
from supervisor.lifecycles.agent import AGENT
from supervisor.lifecycles.events import AgentExited, FatalError, TaskFailed
from supervisor.lifecycles.session import SESSION
from supervisor.lifecycles.task import TASK, Failed
from supervisor.lifecycles.turn import TURN
from supervisor.lifecycles.types import Exit, Kind, Verdict
from supervisor.runtime.entity import Lifecycle

SESSION_KIND = Lifecycle(Kind.SESSION, SESSION, session.stale, lambda why: FatalError(message=why))
TURN_KIND = Lifecycle(Kind.TURN, TURN, turn.stale, lambda why: TaskFailed(verdict=Verdict(exit=Exit.ERROR, error=why)))
AGENT_KIND = Lifecycle(Kind.AGENT, AGENT, agent.stale, lambda why: AgentExited(reason=why))


def _never(data: object, event: Event) -> bool:
    return False


TASK_KIND = Lifecycle(Kind.TASK, TASK, _never, lambda why: Failed(reason=why), ends_at_terminal=True)
RUN_KIND = Lifecycle(
    Kind.RUN,
    task_run.RUN,
    _never,
    lambda why: task_run.ExecutionFailed(error=why, charged=False),
    ends_at_terminal=True,
)
JOB_KIND = Lifecycle(Kind.JOB, job.JOB, _never, lambda why: job.WorkerLost(error=why), ends_at_terminal=True)
WORKSTREAM_KIND = Lifecycle(
    Kind.WORKSTREAM,
    workstream.WORKSTREAM,
    _never,
    lambda why: workstream.UserCancelled(reason=why),
    ends_at_terminal=True,
)
WORKER_KIND = Lifecycle(
    Kind.WORKER, worker.WORKER, _never, lambda why: worker.ShutdownRequested(reason=why), ends_at_terminal=True
)
