"""Tests of additional checkers of a run: they are given the same data as the oracle, report violations like the oracle,
and change nothing in the run."""

from __future__ import annotations

from typing import Any

from actors.machine import Step
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Append
from supervisor.simulation.checkers import Checker, Fact
from supervisor.simulation.machine.processes import ProcessEvent
from supervisor.simulation.oracle import Oracle
from supervisor.simulation.running import simulate
from supervisor.simulation.scenario import named
from supervisor.simulation.search.shrink import fails_again, shrink
from tests.verification.checkers import every_checker


class Listener(Checker):
    """Checker that counts the calls of its methods."""

    def __init__(self) -> None:
        self.records = self.transitions = self.processes = self.finished = 0
        self.facts: set[str] = set()

    def record(self, one: Append, at_s: float) -> None:
        self.records += 1

    def transition(self, record: LifecycleEvent, step: Step[Any, Any]) -> None:
        self.transitions += 1

    def process(self, event: ProcessEvent) -> None:
        self.processes += 1

    def observe(self, fact: Fact) -> None:
        self.facts.add(type(fact).__name__)

    def finish(self) -> None:
        self.finished += 1


class NoStop(Checker):
    """Checker that reports a violation for every session that is stopped, which happens in every run."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def record(self, one: Append, at_s: float) -> None:
        if one.record.to_status == "Stopped" and one.record.from_status != "Stopped":
            self._oracle.violated("bounded", one.record.entity_id, "was stopped")


def forbid_stops(oracle: Oracle) -> list[Checker]:
    return [NoStop(oracle)]


def test_a_checker_hears_the_whole_run() -> None:
    """A checker is given every durable record, transitions, process events, and the facts of a run of plans."""
    listener = Listener()
    report = simulate(named("killed-works").draw(1), checkers=lambda oracle: [listener])
    assert (listener.records, listener.finished) == (report.records, 1)
    assert 0 < listener.transitions < listener.records
    assert listener.processes > 0
    assert {"WorldMade", "SupervisorStarted", "ClockRead", "PlanGiven", "AttemptBegan"} <= listener.facts


def test_checkers_change_nothing() -> None:
    """The digest of a run is the same with all checkers of the verification as without."""
    drawn = named("swarm").draw(3)
    assert simulate(drawn, checkers=every_checker).digest == simulate(drawn).digest


def test_what_a_checker_finds_is_made_small() -> None:
    """A run in which only a checker reports a violation is shrunk with that checker, and fails again only with that
    checker."""
    assert simulate(named("restart-storm").draw(3)).problems == ()
    shrunk = shrink(named("restart-storm"), 3, lambda: True, lambda runs: None, checkers=forbid_stops)
    assert (shrunk.invariant, shrunk.faults) == ("bounded", ())
    assert fails_again(shrunk, forbid_stops)
    assert not fails_again(shrunk)
