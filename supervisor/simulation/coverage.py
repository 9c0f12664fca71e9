"""Coverage of a run: transitions that were taken, and aborts by scope and by the state of the session.

A search that never reaches a state proves nothing about that state. The list of what must be reached is read from the
state tables.
"""

from __future__ import annotations

from supervisor.lifecycles import MACHINES
from supervisor.lifecycles.session import Session
from supervisor.lifecycles.types import AbortScope, Kind, LifecycleEvent
from supervisor.simulation.faults import FAULTS


class Coverage:
    """Counter of the transitions and aborts of a run, by name."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, ...], int] = {}
        """Counts by the parts of a name; the parts are joined to a text only once, not for each record."""
        self._states: dict[str, str] = {}

    @property
    def counts(self) -> dict[str, int]:
        """Counts by name, in the order in which the names were first reached."""
        return {" ".join(parts): count for parts, count in self._counts.items()}

    def record(self, record: LifecycleEvent) -> None:
        """Take in a durable record."""
        if record.outcome == "transition":
            parts = (f"{record.entity_type}:", record.from_status, record.event, record.to_status)
            self._counts[parts] = self._counts.get(parts, 0) + 1
            if record.entity_type == "session":
                self._states[record.entity_id] = record.to_status
        elif record.outcome == "born" and record.entity_type == "session":
            self._states[record.entity_id] = record.to_status
        elif record.event == "AbortRecord" and not record.metadata.get("policy_edge"):
            self._abort(record)

    def _abort(self, record: LifecycleEvent) -> None:
        """Count an abort, by its scope and the state of the target's session. Nodes that an abort reached over a policy
        edge are not passed to this method."""
        session_id = record.entity_id.partition(":")[0]
        state = self._states.get(session_id)
        if state is not None:
            parts = ("abort:", str(record.metadata.get("scope")), "in", state)
            self._counts[parts] = self._counts.get(parts, 0) + 1


def to_reach() -> list[str]:
    """Return the names of all faults, transitions and aborts that a soak must reach, in a fixed order. Rules of a table
    that differ only in their guards share a name, since records do not distinguish such rules."""
    names = [f"fault: {kind}" for kind in FAULTS]
    for name, machine in MACHINES.items():
        if name == Kind.TRIGGER:  # of a daemon, which is not simulated
            continue
        names += [f"{name}: {rule.source.value} {rule.on.name()} {rule.target.value}" for rule in machine.rules]
    names += [f"abort: {scope.value} in {state.value}" for scope in AbortScope for state in Session]
    return list(dict.fromkeys(names))
