"""Checkers of the verification: each keeps an account of one part of the runtime, beside the simulator's oracle.

``simulate(drawn, checkers=every_checker)`` checks a run with all of them; :func:`simulate` here does just that. Each
account is made of durable records, process events and facts, and reports a violation by ``say(invariant, entity,
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
    """Make all checkers of one run."""
    timers, replies = _Timers(oracle), _Replies(oracle)
    others = _Exits(oracle), _Launches(oracle), _ModelRetries(oracle), _Work(oracle)
    return timers, replies, *others, _Consistency(oracle, timers, replies)


simulate = partial(running.simulate, checkers=every_checker)
"""``supervisor.simulation.running.simulate`` with all checkers."""


class _Timers(Checker):
    def __init__(self, oracle: Oracle) -> None:
        self.books = TimerChecker(oracle.violated, oracle.now, oracle.slept_since, oracle.ladder, oracle.grain_s)

    def record(self, one: Append, at_s: float) -> None:
        self.books.heard(one.record, at_s)
        if one.record.entity_type == "session" or one.record.outcome == "fact":
            self.books.ending(one.record, at_s)

    def transition(self, record: LifecycleEvent, step: Step[Any, Any]) -> None:
        self.books.stepped(record, step)

    def observe(self, fact: Fact) -> None:
        match fact:
            case checkers.ClockRead(offset_s):
                self.books.forget(offset_s)
            case checkers.DiskWasDown(seconds):
                self.books.disk_was_down(seconds)
            case checkers.MachineSlept(seconds):
                self.books.slept(seconds)


class _Replies(Checker):
    def __init__(self, oracle: Oracle) -> None:
        self.books = ReplyChecker(oracle.violated, oracle.now, oracle.slept_since, oracle.grain_s)
        self._wanted: dict[checkers.AbortRequested, AbortTarget] = {}

    def record(self, one: Append, at_s: float) -> None:
        self.books.wrote(one, at_s)

    def observe(self, fact: Fact) -> None:
        match fact:
            case checkers.DiskWasDown(seconds):
                self.books.disk_was_down(seconds)
            case checkers.PermissionAnswered(permission_id, option):
                self.books.permission_answered(permission_id, option)
            case checkers.AbortRequested():
                self._wanted[fact] = self.books.want_abort(fact.target, fact.scope)
            case checkers.AbortReturned(asked, plan, receipt):
                nodes = plan.nodes if plan is not None else ()
                waited = [one.id for one in nodes if one.mode is CancelMode.WAIT_COMPLETED]
                self.books.abort_answered(self._wanted[asked], receipt, waited)


class _Exits(Checker):
    def __init__(self, oracle: Oracle) -> None:
        self.books = ExitChecker(oracle.violated)

    def process(self, event: ProcessEvent) -> None:
        self.books.process(event)

    def observe(self, fact: Fact) -> None:
        if isinstance(fact, checkers.AbortReturned):
            self.books.check(fact)


class _Launches(Checker):
    def __init__(self, oracle: Oracle) -> None:
        self.books = LaunchChecker(oracle.violated)

    def record(self, one: Append, at_s: float) -> None:
        self.books.wrote(one.record)

    def process(self, event: ProcessEvent) -> None:
        self.books.process(event)


class _ModelRetries(Checker):
    def __init__(self, oracle: Oracle) -> None:
        self.books = ModelRetryChecker(oracle.violated, oracle.model)

    def record(self, one: Append, at_s: float) -> None:
        self.books.wrote(one.record)


class _Work(Checker):
    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self.books: TaskChecker

    def record(self, one: Append, at_s: float) -> None:
        self.books.wrote(one, at_s)

    def process(self, event: ProcessEvent) -> None:
        session_id = event.owner.partition("$ ")[0].removeprefix(f"{HOME}/")
        if event.what == "spawned" and self.books.has_closed(session_id):
            self._oracle.violated("one_holder", session_id, f"{event.detail} was started, and its task is closed")
        if (event.what, event.detail) == ("killed", "with its warden"):
            self.books.lost_processes = True

    def observe(self, fact: Fact) -> None:
        match fact:
            case checkers.WorldMade(task_scripts, workspaces, _, archive):
                say, bound_s, now = self._oracle.violated, self._oracle.recorded_within_s, self._oracle.now
                self.books = TaskChecker(say, task_scripts, workspaces, bound_s, now, archive=archive)
            case checkers.SupervisorStarted():
                self.books.started()
            case checkers.SupervisorEnded(how):
                self.books.ended(how)
            case checkers.DiskWasDown(seconds):
                self.books.disk_was_down(seconds)
            case checkers.MachineSlept(seconds):
                self.books.slept(seconds + GRACE_S + self._oracle.grain_s)
            case checkers.OnlyTaskFaultsStruck(session, liveness):
                self.books.check_expected(session, liveness)
            case checkers.PlanGiven(plan):
                self.books.planned(plan)
            case checkers.PlanResumed(tasks):
                self.books.checkpoints.resumed(tasks)
            case checkers.PlanEnded(results, at_s):
                self.books.plan_ended(results, at_s)
            case checkers.PlannedTasksListed(planned, known):
                self.books.shown(planned, known)
            case checkers.TaskAnswered(name, state):
                self.books.answered(name, state)
            case checkers.AttemptBegan(task_script, attempt):
                self.books.attempt_began(task_script, attempt)
            case checkers.WorkRolledBack(owner):
                self.books.checkpoints.check_rollback(owner)
            case checkers.Heartbeat(worker_id, at_s):
                self.books.heartbeats.beat(worker_id, at_s)
            case checkers.Preserved(name, records):
                self.books.preserved(name, records)

    def finish(self) -> None:
        self.books.settled()


class _Consistency(Checker):
    def __init__(self, oracle: Oracle, timers: _Timers, replies: _Replies) -> None:
        self._oracle, self._timers, self._replies = oracle, timers.books, replies.books
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
