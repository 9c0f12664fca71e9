"""Checkers that are handed in to a run, beside the oracle: ``simulate(drawn, checkers=make)``.

The oracle judges a run by its records (:mod:`supervisor.diagnostics.invariants`) and by the promises of the runtime.
A checker keeps an account of its own of something narrower, and reports what does not fit. It gets what the oracle
gets: durable records, transitions, process events, and facts: what the host asked and was told, and what happened to
the simulated world. A checker only looks: the run, and so its digest, is the same without it.

Example::

    class OneSession(Checker):
        def __init__(self, oracle: Oracle) -> None:
            self._oracle, self._born = oracle, 0

        def record(self, one: Append, at_s: float) -> None:
            self._born += (one.record.entity_type, one.record.outcome) == ("session", "born")
            if self._born > 1:
                self._oracle.violated("bounded", one.record.entity_id, "is the second session of this run")

    simulate(drawn, checkers=lambda oracle: [OneSession(oracle)])
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal, Protocol

import msgspec

from actors.machine import Step
from supervisor.host.supervision import Supervisor
from supervisor.lifecycles.session import SessionLimits
from supervisor.lifecycles.types import AbortScope, LifecycleEvent
from supervisor.plans import Plan
from supervisor.policies.abort_plan import AbortPlan, Receipt
from supervisor.policies.liveness import Liveness
from supervisor.ports import Append
from supervisor.simulation.journal import SimulatedDisk
from supervisor.simulation.machine.processes import ProcessEvent
from supervisor.simulation.plan_workload.task_scripts import Attempt, TaskScript, TaskScripts
from supervisor.simulation.plan_workload.workspace_contents import WorkspaceContents
from supervisor.work.results import TaskResult


class Fact(msgspec.Struct, frozen=True):
    """Base of facts: requests and replies of the host, and events of the simulated world."""


# ------------------------------------------------------------------------------------------ the world and its clocks
class WorldMade(Fact, frozen=True):
    """The world of the run exists: task scripts, workspaces, a disk, and perhaps an archive."""

    task_scripts: TaskScripts
    workspaces: WorkspaceContents
    disk: SimulatedDisk
    archive: bool


class SupervisorStarted(Fact, frozen=True):
    """A supervisor starts, the first one or the next."""


class ClockRead(Fact, frozen=True):
    """A supervisor read the wall clock first. *offset_s*: seconds that the clock of its records is ahead of the
    run's."""

    offset_s: float


class SupervisorEnded(Fact, frozen=True):
    """A supervisor ended: it was killed, it gave up without its disk, or it closed in order."""

    how: Literal["killed", "gave up", "closed"]


class SupervisorLeft(Fact, frozen=True):
    """The block of this supervisor was left, without a kill."""

    sup: Supervisor


class DiskWasDown(Fact, frozen=True):
    """The journal could not be written for so many seconds, until now."""

    seconds: float


class MachineSlept(Fact, frozen=True):
    """Nothing in the world runs for so many seconds, from now on."""

    seconds: float


class OnlyTaskFaultsStruck(Fact, frozen=True):
    """The run is over, and only faults struck that tasks meet themselves, under these limits."""

    session: SessionLimits
    liveness: Liveness


# ------------------------------------------------------------------------------------------ operators and their answers
class SupervisorInspected(Fact, frozen=True):
    """An operator looks at a supervisor, for the *number*th time."""

    sup: Supervisor
    number: int


class PermissionAnswered(Fact, frozen=True):
    """An operator's answer to a permission request was accepted."""

    permission_id: str
    option: str | None


class AbortRequested(Fact, frozen=True):
    """An abort is requested. *at_s*: the run's clock; *wall_s*: Unix time."""

    target: str
    scope: AbortScope
    reason: str
    at_s: float
    wall_s: float


class AbortReturned(Fact, frozen=True):
    """An abort returned its receipt. *plan*: its dry run; ``None`` if the target did not exist."""

    asked: AbortRequested
    plan: AbortPlan | None
    receipt: Receipt
    at_s: float
    wall_s: float


# ------------------------------------------------------------------------------------------ plans and their tasks
class PlanGiven(Fact, frozen=True):
    """The host has this plan run from now on: a new plan, or a reloaded one."""

    plan: Plan


class PlanResumed(Fact, frozen=True):
    """The host resumes a plan of these tasks."""

    tasks: Sequence[str]


class PlanEnded(Fact, frozen=True):
    """The host got the results of a plan."""

    results: Sequence[TaskResult]
    at_s: float


class PlannedTasksListed(Fact, frozen=True):
    """An operator got the list of tasks that wait for approval; *known* are those on record."""

    planned: Collection[str]
    known: Collection[str]


class TaskAnswered(Fact, frozen=True):
    """An operator's command was answered: the task is in this state."""

    name: str
    state: str


class AttemptBegan(Fact, frozen=True):
    """An agent begins to work on a task; the attempt is not in the script yet."""

    task_script: TaskScript
    attempt: Attempt


class WorkRolledBack(Fact, frozen=True):
    """The work of a task in a shared place is about to be rolled back. *owner*: the task's entity."""

    owner: str


class Heartbeat(Fact, frozen=True):
    """A worker sent a heartbeat."""

    worker_id: str
    at_s: float


class Preserved(Fact, frozen=True):
    """A file of the archive holds these records."""

    name: str
    records: Sequence[LifecycleEvent]


class Checker(Protocol):
    """Account of one part of a run. A subclass overrides the methods that it needs; the others do nothing."""

    def record(self, one: Append, at_s: float) -> None:
        """Take in a durable record. *at_s*: when it was made, by the run's clock."""

    def transition(self, record: LifecycleEvent, step: Step[Any, Any]) -> None:
        """Take in a durable transition, and the step that its table computes; its record came just before."""

    def process(self, event: ProcessEvent) -> None:
        """Take in an event of a simulated process."""

    def observe(self, fact: Fact) -> None:
        """Take in a fact."""

    def finish(self) -> None:
        """Check at the end of the run that everything has come to its end."""
