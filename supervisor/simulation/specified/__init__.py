"""What the lifecycles mean, written down a second time: the judge's own copy, next to the tables under test.

The checker of records takes the tables from the code under test, so a table that is wrong agrees with itself. Here
every step is worked out again, from the specification and in another form, and compared with what the table made of it:
the state, the data, and the effects in their order. Words for people are not compared. No table is imported here.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from actors.machine import Step
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.simulation.specified.agent import AgentCopy
from supervisor.simulation.specified.copy import Copy, shown
from supervisor.simulation.specified.job import JobCopy
from supervisor.simulation.specified.run import RunCopy
from supervisor.simulation.specified.session import SessionCopy
from supervisor.simulation.specified.task import TaskCopy
from supervisor.simulation.specified.turn import TurnCopy
from supervisor.simulation.specified.words import words_of
from supervisor.simulation.specified.worker import WorkerCopy
from supervisor.simulation.specified.workstream import WorkstreamCopy

__all__ = ["Specified"]

Say = Callable[[str, str, str], None]
COPIES: dict[str, type[Copy]] = {
    "session": SessionCopy,
    "turn": TurnCopy,
    "agent": AgentCopy,
    "task": TaskCopy,
    "run": RunCopy,
    "job": JobCopy,
    "worker": WorkerCopy,
    "workstream": WorkstreamCopy,
}
_said = attrgetter("reason", "transition_reason", "abort_reason", "abort_id", "severity")
"""What a record says of itself."""
WARNINGS = frozenset({"AbortRecord", "BudgetSpent", "ModelAskedInVain", "ModelTrouble", "Repeats", "Stalled"})
"""The facts that somebody should hear of."""


class Specified:
    """A copy of every entity that has not ended. *say* reports a law that was broken: its name, whose, the words."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._copies: dict[str, Copy | None] = {}
        """``None``: it went another way once, and is not followed any more."""

    def born(self, record: LifecycleEvent) -> None:
        """The first record of an entity: its metadata is what it begins with."""
        kind = COPIES.get(record.entity_type)
        if kind is not None:
            self._copies[record.entity_id] = kind(record.to_status, record.metadata)

    def denied(self, record: LifecycleEvent) -> None:
        """It was refused, or came too late: so it would have been here."""
        copy = self._copies.get(record.entity_id)
        if copy is None:
            return
        copy.now_s = record.monotonic_s
        stale, known = copy.stale(record.event, record.metadata), copy.knows(record.event, record.metadata)
        if stale != (record.outcome == "stale") or (not stale and known):
            self._part(record, f"is recorded as {record.outcome} in {copy.state}")
        self._weigh(record, warns=not stale)

    def noted(self, record: LifecycleEvent) -> None:
        """A fact, which changes nothing."""
        self._weigh(record, warns=record.event in WARNINGS)

    def _weigh(self, record: LifecycleEvent, *, warns: bool) -> None:
        severity = "warning" if warns else "info"
        if record.severity != severity:
            words = f"{record.event} ({record.outcome}) is of severity {record.severity}, not {severity}"
            self._say("legal", record.entity_id, words)

    def stepped(self, record: LifecycleEvent, step: Step[Any, Any]) -> None:
        """An event took effect: what the table made of it, and what it had to."""
        copy = self._copies.get(record.entity_id)
        if copy is None:
            return
        before, copy.now_s = copy.state, record.monotonic_s
        if copy.stale(record.event, record.metadata) or not copy.knows(record.event, record.metadata):
            self._part(record, f"takes effect in {copy.state}")
            return
        wanted = copy.take(record.event, record.metadata)
        given = [shown(one) for one in step.effects]
        if copy.state != step.state._value_:
            self._part(record, f"takes it from {before} to {step.state.value}, not to {copy.state}")
        elif wanted != given:
            self._part(record, f"in {before} wants {given}, not {wanted}")
        elif found := copy.differs(step.data):
            self._part(record, f"in {before} makes {found}")
        elif (said := _said(record)) != (told := words_of(record, wanted)):
            self._part(record, f"says {said} of itself, not {told}")
        elif copy.over:
            del self._copies[record.entity_id]

    def _part(self, record: LifecycleEvent, words: str) -> None:
        self._copies[record.entity_id] = None
        self._say("legal", record.entity_id, f"{record.event} {words}; so the specification")
