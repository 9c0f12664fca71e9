"""Lifecycle of an agent (spec 000): the process, or the function, that a session has alive now.

Four states, six edges, exactly as printed. Every agent ends in ``dead``, with its raw exit status kept.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from actors.machine import Effect, Event, Machine, rule
from supervisor.lifecycles.effects import FinalizeEntity
from supervisor.lifecycles.events import AgentExited, AgentNamed, AgentReady, AgentStarted, TaskAssigned, TaskFinished


class Agent(Enum):
    STARTING = "starting"
    WORKING = "working"
    IDLE = "idle"
    DEAD = "dead"


class AgentData(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    session_id: str
    adapter: str
    pid: int | None = None
    resume_id: str | None = None
    info: str = ""
    status: int | None = None
    ended_by: str = ""


Answered = tuple[AgentData, tuple[Effect, ...]]


def stale(data: AgentData, event: Event) -> bool:
    """Return ``False``: an agent is one process, so none of its events comes too late."""
    return False


def note_pid(data: AgentData, event: AgentStarted) -> Answered:
    return msgspec.structs.replace(data, pid=event.pid), ()


def note_ready(data: AgentData, event: AgentReady) -> Answered:
    return msgspec.structs.replace(data, resume_id=event.resume_id, info=event.info), ()


def note_name(data: AgentData, event: AgentNamed) -> Answered:
    return msgspec.structs.replace(data, resume_id=event.resume_id), ()


def note_exit(data: AgentData, event: AgentExited) -> Answered:
    return msgspec.structs.replace(data, status=event.status, ended_by=event.ended_by), (FinalizeEntity(),)


A = Agent
AGENT: Machine[Agent, AgentData] = Machine(
    "agent",
    source="000",
    initial=[A.STARTING],
    terminal=[A.DEAD],
    rules=[
        rule(
            AgentReady,
            A.STARTING,
            A.WORKING,
            do=[note_ready],
            trigger="Process started successfully, heartbeat received",
        ),
        rule(
            AgentExited,
            A.STARTING,
            A.DEAD,
            do=[note_exit],
            trigger="SpawnError, RateLimitError, or fast exit detection",
        ),
        rule(TaskFinished, A.WORKING, A.IDLE, trigger="Agent finished current task, session still alive"),
        rule(
            AgentExited,
            A.WORKING,
            A.DEAD,
            do=[note_exit],
            trigger="Process crash (SIGKILL/OOM), manual kill, timeout watchdog, or circuit breaker",
        ),
        rule(TaskAssigned, A.IDLE, A.WORKING, trigger="Orchestrator assigns a new task to the existing session"),
        rule(
            AgentExited,
            A.IDLE,
            A.DEAD,
            do=[note_exit],
            trigger="Idle recycling (orchestrator reclaims resources from idle agents)",
        ),
        rule(AgentStarted, A.STARTING, None, do=[note_pid], extension="the pid is known before the agent answers"),
        rule(
            AgentNamed,
            A.WORKING,
            None,
            do=[note_name],
            extension="a program that names its conversations by itself does so once one is under way",
        ),
    ],
)
