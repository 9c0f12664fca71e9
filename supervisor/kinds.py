"""The kinds of entity that live here: each a table, what comes too late for it, and what a bug does to it."""

from __future__ import annotations

from supervisor.entity import Lifecycle
from supervisor.lifecycles import agent, session, turn
from supervisor.lifecycles.agent import AGENT
from supervisor.lifecycles.events import AgentExited, FatalError, TaskFailed
from supervisor.lifecycles.session import SESSION
from supervisor.lifecycles.task import TASK, Failed
from supervisor.lifecycles.turn import TURN
from supervisor.vocabulary import Exit, Kind, Verdict

__all__ = ["AGENT_KIND", "SESSION_KIND", "TASK_KIND", "TURN_KIND"]

SESSION_KIND = Lifecycle(Kind.SESSION, SESSION, session.stale, lambda why: FatalError(message=why))
TURN_KIND = Lifecycle(Kind.TURN, TURN, turn.stale, lambda why: TaskFailed(verdict=Verdict(exit=Exit.ERROR, error=why)))
AGENT_KIND = Lifecycle(Kind.AGENT, AGENT, agent.stale, lambda why: AgentExited(reason=why))
TASK_KIND = Lifecycle(Kind.TASK, TASK, lambda data, event: False, lambda why: Failed(reason=why), ends_at_terminal=True)
