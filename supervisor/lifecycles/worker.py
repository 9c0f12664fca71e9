"""Lifecycle of a worker: slots on a host that take jobs (spec 004).

A worker never holds more tasks than it has slots. A busy worker that is to shut down drains: it takes no new task,
stays busy until its last task has ended, and stops at the second ``shutdown_requested``, which is sent then. A worker
that was lost and came back holds no task: its tasks were taken from it by a new fencing token when it was given up.
"""

from __future__ import annotations

from enum import Enum

import msgspec
from msgspec.structs import replace

from actors.machine import Effect, Event, Machine, rule
from supervisor.lifecycles.types import Severity

EVERY = "*"
"""Capability that stands for all capabilities."""


class Worker(Enum):
    """The five states, spelled as in the specification."""

    INITIALIZING = "initializing"
    IDLE = "idle"
    BUSY = "busy"
    UNRESPONSIVE = "unresponsive"
    SHUTDOWN = "shutdown"


class WorkerData(msgspec.Struct, frozen=True, kw_only=True):
    """Data of a worker: ``active_tasks`` of ``max_concurrent_tasks`` slots are taken. ``workstream`` is the workstream
    that the worker serves."""

    max_concurrent_tasks: int = 1
    misses_max: int = 3
    shutdown_s: float = 180.0
    capabilities: tuple[str, ...] = ()
    active_tasks: int = 0
    draining: bool = False
    workstream: str = ""


class WorkerEvent(Event, frozen=True, kw_only=True):
    """Base class of the worker events; ``last_heartbeat_at`` is the time of the worker's last heartbeat (seconds of the
    journal's clock; ``None``: it has sent none)."""

    last_heartbeat_at: float | None = None


class RegistrationComplete(WorkerEvent, frozen=True, kw_only=True):
    """Event: the worker registered with the supervisor: its *capabilities*, and the number of tasks it takes at
    once."""

    spelled = "registration_complete"
    capabilities: tuple[str, ...] = ()
    max_concurrent_tasks: int | None = None


class TaskAssigned(WorkerEvent, frozen=True, kw_only=True):
    """Event: the worker was given *task_id*, which needs *capabilities*; ``active_tasks`` is the number of its tasks
    then, as the pool counts."""

    spelled = "task_assigned"
    task_id: str = ""
    capabilities: tuple[str, ...] = ()
    active_tasks: int | None = None


class TaskCompleted(WorkerEvent, frozen=True, kw_only=True):
    """Event: *task_id* has ended, whatever its outcome; ``active_tasks`` is the number of tasks left, as the pool
    counts."""

    spelled = "task_completed"
    task_id: str = ""
    active_tasks: int | None = None


class HealthCheckTimeout(WorkerEvent, frozen=True, kw_only=True):
    """Event: the worker has missed *missed* health checks in a row."""

    spelled = "health_check_timeout"
    missed: int


class HealthCheckRecovered(WorkerEvent, frozen=True, kw_only=True):
    """Event: the worker replies to health checks again."""

    spelled = "health_check_recovered"


class MaxTimeoutExceeded(WorkerEvent, frozen=True, kw_only=True):
    """Event: the worker has been silent for *silent_s* seconds."""

    spelled = "max_timeout_exceeded"
    silent_s: float


class ShutdownRequested(WorkerEvent, frozen=True, kw_only=True):
    """Event: the worker is to shut down; sent once more when the last task of a draining worker has ended."""

    spelled = "shutdown_requested"
    reason: str = ""


class SupervisorLost(WorkerEvent, frozen=True, kw_only=True):
    """Event: the supervisor in whose process the worker lived is gone; nothing is known of the worker's health."""

    spelled = "supervisor_lost"
    reason: str = ""


Out = tuple[WorkerData, tuple[Effect, ...]]


def slot_free(data: WorkerData, event: TaskAssigned) -> bool:
    """Whether the worker is not draining, has a free slot, and provides the capabilities that the task needs."""
    provides = EVERY in data.capabilities or all(one in data.capabilities for one in event.capabilities)
    return provides and not data.draining and data.active_tasks < data.max_concurrent_tasks


def tasks_remain(data: WorkerData, event: TaskCompleted) -> bool:
    return data.active_tasks > 1


def drained(data: WorkerData, event: TaskCompleted) -> bool:
    return data.draining


def no_active_tasks(data: WorkerData, event: ShutdownRequested) -> bool:
    return data.active_tasks == 0


def missed_enough(data: WorkerData, event: HealthCheckTimeout) -> bool:
    return event.missed >= data.misses_max


def silent_too_long(data: WorkerData, event: MaxTimeoutExceeded) -> bool:
    return event.silent_s >= data.shutdown_s


def register(data: WorkerData, event: RegistrationComplete) -> Out:
    slots = data.max_concurrent_tasks if event.max_concurrent_tasks is None else event.max_concurrent_tasks
    return replace(data, capabilities=event.capabilities, max_concurrent_tasks=slots), ()


def take_slot(data: WorkerData, event: TaskAssigned) -> Out:
    return replace(data, active_tasks=data.active_tasks + 1), ()


def free_slot(data: WorkerData, event: TaskCompleted) -> Out:
    return replace(data, active_tasks=max(0, data.active_tasks - 1)), ()


def lose_tasks(data: WorkerData, event: HealthCheckTimeout | SupervisorLost) -> Out:
    return replace(data, active_tasks=0), ()


def drain(data: WorkerData, event: ShutdownRequested) -> Out:
    return replace(data, draining=True), ()


SLOTS = "a worker with several slots stays busy while one is taken; the specification's worker has one slot"
DRAIN = "a busy worker drains first: 'after_task_complete' in the specification, where nothing remembers the request"
IDLE_LOST = "an idle worker falls silent too"
DIED = "a worker in the process of a supervisor ends with that supervisor, whatever its health was"
NOT_AWAITED = "who has no more use for a silent worker does not wait for it: it holds nothing"

W = Worker
WORKER: Machine[Worker, WorkerData] = Machine(
    "worker",
    source="004",
    initial=[W.INITIALIZING],
    terminal=[W.SHUTDOWN],
    severities={W.UNRESPONSIVE: Severity.ERROR},
    rules=[
        rule(RegistrationComplete, W.INITIALIZING, W.IDLE, do=[register]),
        rule(TaskAssigned, W.IDLE, W.BUSY, when=slot_free, do=[take_slot]),
        rule(TaskAssigned, W.BUSY, None, when=slot_free, do=[take_slot], extension=SLOTS),
        rule(TaskCompleted, W.BUSY, None, when=tasks_remain, do=[free_slot], extension=SLOTS),
        rule(TaskCompleted, W.BUSY, None, when=drained, do=[free_slot], extension=DRAIN),
        rule(TaskCompleted, W.BUSY, W.IDLE, do=[free_slot]),
        rule(HealthCheckTimeout, W.BUSY, W.UNRESPONSIVE, when=missed_enough, do=[lose_tasks]),
        rule(HealthCheckTimeout, W.IDLE, W.UNRESPONSIVE, when=missed_enough, extension=IDLE_LOST),
        rule(HealthCheckRecovered, W.UNRESPONSIVE, W.IDLE),
        rule(MaxTimeoutExceeded, W.UNRESPONSIVE, W.SHUTDOWN, when=silent_too_long),
        rule(ShutdownRequested, W.IDLE, W.SHUTDOWN),
        rule(ShutdownRequested, W.BUSY, W.SHUTDOWN, when=no_active_tasks, trigger="after_task_complete"),
        rule(ShutdownRequested, W.BUSY, None, do=[drain], extension=DRAIN),
        rule(ShutdownRequested, W.UNRESPONSIVE, W.SHUTDOWN, extension=NOT_AWAITED),
        rule(
            SupervisorLost,
            [W.INITIALIZING, W.IDLE, W.BUSY, W.UNRESPONSIVE],
            W.SHUTDOWN,
            do=[lose_tasks],
            extension=DIED,
        ),
    ],
)
