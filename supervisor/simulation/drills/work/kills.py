"""How a drill of work has its supervisor killed right after a record, and what of it the next one finds."""

from __future__ import annotations

from supervisor.journal.memory import MemoryStore
from supervisor.ports import Ready
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.work.office import Office, Try

__all__ = ["left_by", "office_of", "right_after"]


def office_of(desk: Desk, store: MemoryStore | None = None, named: str | None = "its-name", **tries: Try) -> Office:
    """One whose puppets' conversations have that name: it can be loaded, or not."""
    office = Office(desk, {name: [one] for name, one in tries.items()}, store)
    office.ready = lambda puppet: [Ready(named, "a puppet")]
    office.last_seq = store.last_seq if store is not None else 0
    return office


def right_after(office: Office, entity_id: str, event: str) -> None:
    """Have the journal copied when that is on record, and nothing that came later."""

    def is_it(seq: int) -> bool:
        last = next(iter(office.store.log.after(seq - 1, 1)), None)
        return last is not None and (last.entity_id, last.event) == (entity_id, event)

    office.cuts, office.cut_at = [], is_it


def left_by(office: Office) -> MemoryStore:
    """What the kill has left."""
    assert office.cuts, "it came to that"
    return office.cuts[0]
