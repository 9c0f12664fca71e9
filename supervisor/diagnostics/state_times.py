"""Times that an entity's row does not hold, computed from records: when the entity entered its state, until when a
permission request waits, when a stalled agent is ended, and when the agents of a failing provider are launched again.
Pure.

``EntityRow.changed_at`` is the time of the last record, which can be later than the entry into the state: a session
that cools down receives requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from actors.breaker import Circuit
from supervisor.lifecycles.session import Session
from supervisor.lifecycles.task import Task
from supervisor.lifecycles.task_run import TaskRun
from supervisor.lifecycles.turn import Turn
from supervisor.lifecycles.types import Kind, LifecycleEvent
from supervisor.ports import EntityRow, Reader

PROVIDER_BREAKER: Final = "ProviderBreaker"
"""Name of the fact about a transition of a provider's breaker."""

STALLED: Final = "Stalled"
"""Name of the fact about a step of the liveness policy."""

_TIMED: Final = {
    Kind.SESSION.value: {Session.COOLING_DOWN.value, Session.SPAWNING.value, Session.INTERRUPTING.value},
    Kind.RUN.value: {TaskRun.RETRYING.value, TaskRun.CIRCUIT_OPEN.value, TaskRun.VALIDATING.value},
    Kind.TURN.value: {Turn.RUNNING.value, Turn.TOOL_USE.value, Turn.COMPACTING.value},
}
"""States that have an end, or a request in them has."""


WAITS_FOR_SLOT: Final = "WaitsForSlot"
"""Name of the fact that a limit on tasks at work keeps a task waiting."""


class FailingProvider(NamedTuple):
    """A provider whose breaker is open: the reason, and the Unix time until which no agent is launched against it."""

    key: str
    why: str
    until: float

    @property
    def words(self) -> str:
        return f"the provider {self.key} fails ({self.why}): no agent is launched before {time_of_day(self.until)}"


class StateTimes:
    """Times of the entities whose records were processed; ``take`` processes the records in order."""

    def __init__(self) -> None:
        self._entered: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._providers: dict[str, FailingProvider] = {}
        self._ends: dict[str, float] = {}
        self._slots: dict[str, str] = {}
        """Reasons why tasks wait for a slot."""
        self._zero: float | None = None
        """Unix time at which the journal's clock was 0, by the record processed last."""

    def take(self, event: LifecycleEvent) -> None:
        fact, self._zero = event.metadata, event.timestamp - event.monotonic_s
        if event.outcome in ("transition", "born") and event.from_status != event.to_status:
            self._entered[event.entity_id] = event.timestamp
            self._slots.pop(event.entity_id, None)
        if event.event == "PermissionRequested" and fact.get("asked"):
            self._due[f"{event.entity_id}:p{fact.get('number')}"] = event.timestamp + float(fact.get("within_s") or 0)
        elif event.event == STALLED:
            self._ends[event.entity_id] = event.timestamp + float(fact.get("ends_in_s") or 0)
        elif event.event == WAITS_FOR_SLOT:
            self._slots[event.entity_id] = event.reason
        elif event.event == PROVIDER_BREAKER:
            # The time is one of the journal's clock, which is no Unix time.
            until = self._zero + float(fact.get("free_at_s") or 0)
            key = str(fact.get("provider"))
            self._providers.pop(key, None)
            if fact.get("circuit") == Circuit.OPEN.value:
                self._providers[key] = FailingProvider(key, event.reason, until)

    def entered(self, row: EntityRow) -> float:
        """Return the Unix time at which the entity entered its state, or the time of its last record if its records
        were not processed."""
        return self._entered.get(row.id, row.changed_at)

    def due(self, permission_id: str) -> float | None:
        """Return the Unix time at which a permission request is denied unless somebody answers, if that is known."""
        return self._due.get(permission_id)

    def ends(self, session_id: str) -> float | None:
        """Return the Unix time at which the session of a stalled agent is aborted, unless the agent shows progress."""
        return self._ends.get(session_id)

    def waits_for_slot(self, task_id: str) -> str:
        """Return the limit that keeps a task waiting; ``""`` if none is known."""
        return self._slots.get(task_id, "")

    def unix(self, due_s: float | None) -> float | None:
        """Return the Unix time of *due_s*, a time of the journal's clock; ``None`` if no record was processed."""
        return None if due_s is None or self._zero is None else self._zero + due_s

    @property
    def failing_providers(self) -> tuple[FailingProvider, ...]:
        return tuple(self._providers.values())


def needs_times(row: EntityRow) -> bool:
    """Return whether the records of an entity are needed to say until when the entity waits."""
    return not row.ended and row.state in _TIMED.get(row.kind, ())


def read_state_times(reader: Reader, rows: Sequence[EntityRow]) -> StateTimes:
    """Return the times of the entities among *rows* that wait for a time, and of the failing providers of the last plan
    run."""
    times = StateTimes()
    if any(row.kind == Kind.SESSION and not row.ended for row in rows):
        for event in reader.events_named(STALLED):
            times.take(event)
    queued = {row.id for row in rows if row.kind == Kind.TASK and row.state == Task.OPEN.value}
    if queued:
        for event in reader.events_named(WAITS_FOR_SLOT):
            if event.entity_id in queued:
                times.take(event)
    for row in rows:
        if needs_times(row):
            for event in reader.events(row.id):
                times.take(event)
        elif row.kind == Kind.WORKSTREAM and not row.ended:
            for event in reader.events_named(PROVIDER_BREAKER):
                if event.seq > row.born_seq:
                    times.take(event)
    return times


def time_of_day(at: float) -> str:
    """Return the local time of day for a Unix time, as ``HH:MM:SS``."""
    return local_text(at, "%H:%M:%S")


def local_text(at: float, form: str) -> str:
    """Return the local time for a Unix time in a *form* of ``strftime``; a text of the number itself for a time that no
    clock shows, as a journal of others may hold."""
    try:
        return datetime.fromtimestamp(at).astimezone().strftime(form)
    except (OverflowError, ValueError, OSError):
        return f"(time {at})"
