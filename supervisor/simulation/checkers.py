"""Checkers that are passed to a run, beside the oracle: ``simulate(drawn, checkers=make)``.

The oracle checks a run by the run's records (:mod:`supervisor.diagnostics.invariants`) and by the promises of the
runtime. A checker keeps a separate account of a narrower subject, and reports contradictions. A checker receives the
same input as the oracle: durable records, transitions, process events, and facts (requests and replies of the host, and
events of the simulated world). A checker only observes: the run, and so its digest, is the same without checkers.

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
from supervisor.host.api import Supervisor
from supervisor.lifecycles.types import AbortScope, LifecycleEvent, SessionLimits
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
    """Base class of facts, which are passed to checkers: a request or reply of the host, or an event of the simulated
    world."""


# ------------------------------------------------------------------------------------------ the world and its clocks
class WorldMade(Fact, frozen=True):
    """Fact: the world of the run was made, with task scripts, workspaces, a disk, and perhaps an archive."""

    task_scripts: TaskScripts
    workspaces: WorkspaceContents
    disk: SimulatedDisk
    archive: bool


class SupervisorStarted(Fact, frozen=True):
    """Fact: a supervisor of the run starts, the first one or a later one."""


class ClockRead(Fact, frozen=True):
    """Fact: a supervisor read the wall clock for the first time. *offset_s*: seconds by which the clock of the
    supervisor's records is ahead of the run's clock."""

    offset_s: float


class SupervisorEnded(Fact, frozen=True):
    """Fact: a supervisor ended. *how*: killed, gave up because the disk could not be written, or closed in order."""

    how: Literal["killed", "gave up", "closed"]


class SupervisorLeft(Fact, frozen=True):
    """Fact: the context manager of this supervisor was left, without a kill of the supervisor."""

    sup: Supervisor


class DiskWasDown(Fact, frozen=True):
    """Fact: the journal could not be written for *seconds* seconds, until now."""

    seconds: float


class MachineSlept(Fact, frozen=True):
    """Fact: the machine sleeps: nothing in the simulated world runs for *seconds* seconds, from now on."""

    seconds: float


class OnlyTaskFaultsStruck(Fact, frozen=True):
    """Fact: the run is over, and all faults that struck were faults of tasks (``work.*``), under these limits."""

    session: SessionLimits
    liveness: Liveness


# ------------------------------------------------------------------------------------------ operators and their answers
class SupervisorInspected(Fact, frozen=True):
    """Fact: an operator inspects a supervisor; *number* is the number of this inspection."""

    sup: Supervisor
    number: int


class PermissionAnswered(Fact, frozen=True):
    """Fact: the supervisor accepted an operator's answer to a permission request."""

    permission_id: str
    option: str | None


class AbortRequested(Fact, frozen=True):
    """Fact: an abort is requested. *at_s*: time by the run's clock; *wall_s*: Unix time."""

    target: str
    scope: AbortScope
    reason: str
    at_s: float
    wall_s: float


class AbortReturned(Fact, frozen=True):
    """Fact: an abort returned its receipt. *plan*: the abort plan made before; ``None`` if the target did not exist."""

    asked: AbortRequested
    plan: AbortPlan | None
    receipt: Receipt
    at_s: float
    wall_s: float


# ------------------------------------------------------------------------------------------ plans and their tasks
class PlanGiven(Fact, frozen=True):
    """Fact: the host runs this plan from now on: a new plan, or a reloaded plan."""

    plan: Plan


class PlanResumed(Fact, frozen=True):
    """Fact: the host resumes a plan with these tasks."""

    tasks: Sequence[str]


class PlanEnded(Fact, frozen=True):
    """Fact: the host received the results of a plan."""

    results: Sequence[TaskResult]


class PlannedTasksListed(Fact, frozen=True):
    """Fact: an operator received the list of tasks that wait for approval. *known*: tasks that wait by the durable
    records."""

    planned: Collection[str]
    known: Collection[str]


class TaskAnswered(Fact, frozen=True):
    """Fact: the reply to an operator's command came: the task is in this state."""

    name: str
    state: str


class AttemptBegan(Fact, frozen=True):
    """Fact: an agent begins to work on a task; the attempt is not in the task's script yet."""

    task_script: TaskScript
    attempt: Attempt


class WorkRolledBack(Fact, frozen=True):
    """Fact: the work of a task in a shared workspace is about to be rolled back. *owner*: the task's entity id."""

    owner: str


class Heartbeat(Fact, frozen=True):
    """Fact: a worker sent a heartbeat."""

    worker_id: str
    at_s: float


class Preserved(Fact, frozen=True):
    """Fact: a file of the archive was written, with these records."""

    name: str
    records: Sequence[LifecycleEvent]


class Checker(Protocol):
    """Checker of one part of a run. A subclass overrides the methods that the subclass needs; the other methods do
    nothing."""

    def record(self, one: Append, at_s: float) -> None:
        """Take in a durable record. *at_s*: time at which the record was made, by the run's clock."""

    def transition(self, record: LifecycleEvent, step: Step[Any, Any]) -> None:
        """Take in a durable transition, and the step that the entity's table computes for the transition. The call of
        :meth:`record` for the same record came just before."""

    def process(self, event: ProcessEvent) -> None:
        """Take in an event of a simulated process."""

    def observe(self, fact: Fact) -> None:
        """Take in a fact."""

    def finish(self) -> None:
        """Check, at the end of the run, that everything that this checker tracks has ended."""
