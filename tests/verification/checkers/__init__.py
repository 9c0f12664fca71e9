"""Checkers of the verification: each follows one part of the runtime during a simulated run, in addition to the
simulator's oracle.

``simulate(drawn, checkers=every_checker)`` checks a run with all checkers; :func:`simulate` here does exactly that.
Each checker works from durable records, process events and facts, and reports a violation by ``say(invariant, entity,
message)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from actors.machine import Step
from actors.timers import GRACE_S
from supervisor.lifecycles.types import CancelMode, LifecycleEvent
from supervisor.ports import Append
from supervisor.simulation import checkers, running
from supervisor.simulation.checkers import Checker, Fact
from supervisor.simulation.machine.processes import ProcessEvent
from supervisor.simulation.oracle import HOME, Oracle
from tests.verification.checkers.consistency import check_memory
from tests.verification.checkers.exits import ExitChecker
from tests.verification.checkers.launches import LaunchChecker
from tests.verification.checkers.leaks import check_closed
from tests.verification.checkers.model_retries import ModelRetryChecker
from tests.verification.checkers.replies import AbortTarget, ReplyChecker
from tests.verification.checkers.tasks import TaskChecker
from tests.verification.checkers.timers import TimerChecker

__all__ = ["every_checker", "simulate"]


def every_checker(oracle: Oracle) -> Sequence[Checker]:
    """Make all checkers of the verification for one run."""
    timers, replies = _Timers(oracle), _Replies(oracle)
    others = _Exits(oracle), _Launches(oracle), _ModelRetries(oracle), _Work(oracle)
    return timers, replies, *others, _Consistency(oracle, timers, replies)


simulate = partial(running.simulate, checkers=every_checker)
"""``supervisor.simulation.running.simulate`` with all checkers."""


class _Timers(Checker):
    def __init__(self, oracle: Oracle) -> None:
        self.account = TimerChecker(oracle.violated, oracle.now, oracle.slept_since, oracle.ladder, oracle.grain_s)

    def record(self, one: Append, at_s: float) -> None:
        self.account.heard(one.record, at_s)
        if one.record.entity_type == "session" or one.record.outcome == "fact":
            self.account.ending(one.record, at_s)

    def transition(self, record: LifecycleEvent, step: Step[Any, Any]) -> None:
        self.account.stepped(record, step)

    def observe(self, fact: Fact) -> None:
        match fact:
            case checkers.ClockRead(offset_s):
                self.account.forget(offset_s)
            case checkers.DiskWasDown(seconds):
                self.account.disk_was_down(seconds)
            case checkers.MachineSlept(seconds):
                self.account.slept(seconds)


class _Replies(Checker):
    def __init__(self, oracle: Oracle) -> None:
        self.account = ReplyChecker(oracle.violated, oracle.now, oracle.slept_since, oracle.grain_s)
        self._wanted: dict[checkers.AbortRequested, AbortTarget] = {}

    def record(self, one: Append, at_s: float) -> None:
        self.account.wrote(one, at_s)

    def observe(self, fact: Fact) -> None:
        match fact:
            case checkers.DiskWasDown(seconds):
                self.account.disk_was_down(seconds)
            case checkers.PermissionAnswered(permission_id, option):
                self.account.permission_answered(permission_id, option)
            case checkers.AbortRequested():
                self._wanted[fact] = self.account.want_abort(fact.target, fact.scope)
            case checkers.AbortReturned(asked, plan, receipt):
                nodes = plan.nodes if plan is not None else ()
                waited = [one.id for one in nodes if one.mode is CancelMode.WAIT_COMPLETED]
                self.account.abort_answered(self._wanted[asked], receipt, waited)


class _Exits(Checker):
    def __init__(self, oracle: Oracle) -> None:
        self.account = ExitChecker(oracle.violated)

    def process(self, event: ProcessEvent) -> None:
        self.account.process(event)

    def observe(self, fact: Fact) -> None:
        if isinstance(fact, checkers.AbortReturned):
            self.account.check(fact)


class _Launches(Checker):
    def __init__(self, oracle: Oracle) -> None:
        self.account = LaunchChecker(oracle.violated)

    def record(self, one: Append, at_s: float) -> None:
        self.account.wrote(one.record)

    def process(self, event: ProcessEvent) -> None:
        self.account.process(event)


class _ModelRetries(Checker):
    def __init__(self, oracle: Oracle) -> None:
        self.account = ModelRetryChecker(oracle.violated, oracle.model)

    def record(self, one: Append, at_s: float) -> None:
        self.account.wrote(one.record)


class _Work(Checker):
    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self.account: TaskChecker

    def record(self, one: Append, at_s: float) -> None:
        self.account.wrote(one, at_s)

    def process(self, event: ProcessEvent) -> None:
        session_id = event.owner.partition("$ ")[0].removeprefix(f"{HOME}/")
        if event.what == "spawned" and self.account.has_closed(session_id):
            self._oracle.violated("one_holder", session_id, f"{event.detail} was started, and its task is closed")
        if (event.what, event.detail) == ("killed", "with its warden"):
            self.account.lost_processes = True

    def observe(self, fact: Fact) -> None:
        match fact:
            case checkers.WorldMade(task_scripts, workspaces, _, archive):
                say, bound_s, now = self._oracle.violated, self._oracle.recorded_within_s, self._oracle.now
                self.account = TaskChecker(say, task_scripts, workspaces, bound_s, now, archive=archive)
            case checkers.SupervisorStarted():
                self.account.started()
            case checkers.SupervisorEnded(how):
                self.account.ended(how)
            case checkers.DiskWasDown(seconds):
                self.account.disk_was_down(seconds)
            case checkers.MachineSlept(seconds):
                self.account.slept(seconds + GRACE_S + self._oracle.grain_s)
            case checkers.OnlyTaskFaultsStruck(session, liveness):
                self.account.check_expected(session, liveness)
            case checkers.PlanGiven(plan):
                self.account.planned(plan)
            case checkers.PlanResumed(tasks):
                self.account.checkpoints.resumed(tasks)
            case checkers.PlanEnded(results):
                self.account.plan_ended(results)
            case checkers.PlannedTasksListed(planned, known):
                self.account.shown(planned, known)
            case checkers.TaskAnswered(name, state):
                self.account.answered(name, state)
            case checkers.AttemptBegan(task_script, attempt):
                self.account.attempt_began(task_script, attempt)
            case checkers.WorkRolledBack(owner):
                self.account.checkpoints.check_rollback(owner)
            case checkers.Heartbeat(worker_id, at_s):
                self.account.heartbeats.beat(worker_id, at_s)
            case checkers.Preserved(name, records):
                self.account.preserved(name, records)

    def finish(self) -> None:
        self.account.settled()


class _Consistency(Checker):
    def __init__(self, oracle: Oracle, timers: _Timers, replies: _Replies) -> None:
        self._oracle, self._timers, self._replies = oracle, timers.account, replies.account
        self._world: checkers.WorldMade

    def observe(self, fact: Fact) -> None:
        match fact:
            case checkers.WorldMade():
                self._world = fact
            case checkers.SupervisorInspected(sup, number):
                disk, oracle = self._world.disk, self._oracle
                running, begun = self._timers.running, self._replies.has_begun
                check_memory(oracle.violated, sup, disk.entities, disk.living, running, oracle.policy_of, begun, number)
            case checkers.SupervisorLeft(sup):
                check_closed(self._oracle.violated, sup, self._world.disk.entities)
