"""Tests of the launch checker: a program that is started before the record of its intent is durable, or beside another
agent, is reported."""

from __future__ import annotations

from supervisor.simulation.machine.processes import ProcessEvent
from tests.verification.checkers.launches import LaunchChecker
from tests.verification.records import record_of


class Log:
    """Launch checker with a session that has two agent launches on record, and a list of the reports."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._checker = LaunchChecker(lambda law, *words: self.found.append(law))
        for event in ("PromptReady", "PromptReady", "tool_started"):
            self._checker.wrote(record_of("turn", "s:t1", event))

    def spawned(self, pid: int, what: str, event: str = "spawned") -> None:
        self._checker.process(ProcessEvent(0.0, event, pid, f"/sim/s$ {what}", f"/sim/s$ {what}"))


def test_agents_one_after_the_other_are_fine() -> None:
    log = Log()
    log.spawned(7, "agent")
    log.spawned(7, "agent", "reaped")
    log.spawned(8, "agent")
    assert log.found == []


def test_an_agent_beside_another_one_is_noticed() -> None:
    log = Log()
    log.spawned(7, "agent")
    log.spawned(8, "agent")
    assert log.found == ["one_holder"]


def test_a_launch_without_an_intent_is_noticed() -> None:
    log = Log()
    for pid in (7, 8, 9):
        log.spawned(pid, "agent")
        log.spawned(pid, "agent", "reaped")
    assert log.found == ["intent_before_effect"]
