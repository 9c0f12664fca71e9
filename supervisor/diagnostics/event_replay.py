"""Rebuild events from records and step them through the lifecycle tables again. Pure.

Theory of operation
-------------------
A record holds the event that occurred (name and metadata) and the state that followed. The tables are pure, so that the
rebuilt event, applied to the rebuilt data of the entity, must give the recorded state, data and effects again. The
invariants, ``supervisor replay`` and recovery use this:

    data = data_of(kind, first_record)            # the entity's data at birth
    event = event_of(kind, record)                # the event, from name and metadata
    step = step_of(kind, state, data, event)      # new state, new data, effects

A record that cannot be rebuilt or stepped is reported as a :class:`Mismatch` with its reason, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import msgspec

from actors.machine import Event, IllegalTransition, Step
from supervisor.lifecycles import MACHINES
from supervisor.lifecycles.agent import AgentData
from supervisor.lifecycles.effects import FinalizeEntity
from supervisor.lifecycles.entity_types import LIFECYCLES, Lifecycle
from supervisor.lifecycles.job import JobData
from supervisor.lifecycles.session_data import SessionData
from supervisor.lifecycles.task import TaskData
from supervisor.lifecycles.task_run import TaskRunData
from supervisor.lifecycles.trigger import TriggerData
from supervisor.lifecycles.turn import TurnData
from supervisor.lifecycles.types import Kind, LifecycleEvent
from supervisor.lifecycles.worker import WorkerData
from supervisor.lifecycles.workstream import WorkstreamData

_DATA: Final[Mapping[str, type[msgspec.Struct]]] = {
    Kind.SESSION: SessionData,
    Kind.AGENT: AgentData,
    Kind.TURN: TurnData,
    Kind.TASK: TaskData,
    Kind.RUN: TaskRunData,
    Kind.JOB: JobData,
    Kind.WORKSTREAM: WorkstreamData,
    Kind.WORKER: WorkerData,
    Kind.TRIGGER: TriggerData,
}

_convert = msgspec.convert


class Mismatch(ValueError):
    """Error: the record does not follow from the records before it; the message gives the reason."""


class EntityKind:
    """Kind of entity under the names that records use: its machine, its data type, and its states and edges as text."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.machine = machine = lifecycle.machine
        self.data = _DATA[machine.name]
        self.ends_at_terminal = lifecycle.ends_at_terminal
        self.events = machine.events
        self.stale = lifecycle.stale
        self.states: dict[str, Enum] = {str(state.value): state for state in machine.states}
        self.initial = tuple(str(state.value) for state in machine.initial)
        self.severities = {str(state.value): str(severity) for state, severity in machine.severities.items()}
        self.terminal = frozenset(str(state.value) for state in machine.terminal)
        self.edges = frozenset((str(one.source.value), one.on.name(), str(one.target.value)) for one in machine.rules)

    def allowed(self, state: str) -> str:
        """Return the events allowed in *state* as text, each with the state that follows."""
        edges = ((str(one.source.value), one.on.name(), str(one.target.value)) for one in self.machine.rules)
        return ", ".join(dict.fromkeys(f"{on} to {to}" for source, on, to in edges if source == state)) or "nothing"

    def ends_with(self, step: Step[Any, Any]) -> bool:
        """Return whether *step* ends the entity's log."""
        if self.ends_at_terminal:
            return step.state in self.machine.final
        return FinalizeEntity in map(type, step.effects)


KINDS: Final[Mapping[str, EntityKind]] = {name: EntityKind(LIFECYCLES[name]) for name in MACHINES}
"""Kinds of entities by the name that records use."""


def data_of(kind: EntityKind, record: LifecycleEvent) -> Any:
    """Return an entity's data at birth.

    Raises:
        Mismatch: the record does not hold the data.
    """
    try:
        return _convert(record.metadata, kind.data)
    except msgspec.ValidationError as error:
        raise Mismatch(f"{record.entity_id} was not born with that: {error}") from None


def event_of(kind: EntityKind, record: LifecycleEvent) -> Event:
    """Return the event of a record.

    Raises:
        Mismatch: the kind has no such event, or the metadata does not fit the event.
    """
    name = record.event
    found = kind.events.get(name)
    if found is None:
        raise Mismatch(f"{kind.machine.name}: no event is named {name!r}")
    try:
        return _convert({**record.metadata, "at": record.monotonic_s}, found)
    except msgspec.ValidationError as error:
        raise Mismatch(f"{kind.machine.name}: {name} cannot be rebuilt from its metadata: {error}") from None


def step_of(kind: EntityKind, state: Enum, data: Any, event: Event) -> Step[Any, Any]:
    """Return the result of *event* by the kind's table: new state, new data and effects.

    Raises:
        Mismatch: the table refuses the event, or an action fails because a forged record breaks its assumptions.
    """
    try:
        return kind.machine.step(state, data, event)
    except IllegalTransition as refusal:
        raise Mismatch(str(refusal)) from None
    except Exception as error:
        words = f"{kind.machine.name}: {type(event).name()} in {state.value} makes no sense: {error!r}"
        raise Mismatch(words) from error
