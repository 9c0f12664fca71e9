"""What the checker has seen of each entity: its own books, kept from records alone.

A book is where the table says the entity is, what is alive below it, and the few numbers that its laws compare. Books
of what has ended stay: something may still name them.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from supervisor.diagnostics.event_replay import EntityKind
from supervisor.lifecycles.types import LifecycleEvent

__all__ = ["RECOVERY", "EntityShadow", "SessionShadow", "TaskShadow", "TurnShadow", "new_shadow"]


RECOVERY: Final = "recovery"
"""Who writes the records that a supervisor which died still owed."""


class EntityShadow:
    """An entity: ``state`` and ``data`` are the table's, ``status`` is the state as records spell it.

    ``lost``: its data cannot be followed any more, since a record of it did not fold. ``parent`` and ``live`` are the
    tree, ``former_parent`` a parent that it has left and by whose end it was told to end.
    """

    def __init__(self, kind: EntityKind, record: LifecycleEvent) -> None:
        self.kind = kind
        self.name = record.entity_type
        self.id = record.entity_id
        self.born_seq = record.seq
        self.entity_seq = record.entity_seq
        self.at = record.monotonic_s
        self.status = record.to_status
        self.state: Enum = kind.states.get(record.to_status, kind.machine.initial[0])
        self.data: Any = None
        self.lost = False
        self.ended = False
        self.parent: SessionShadow | None = None
        self.former_parent: SessionShadow | None = None
        self.live: dict[str, EntityShadow] = {}


class SessionShadow(EntityShadow):
    """A session: its counters by our own count, what its prompt intends, and who works for it."""

    def __init__(self, kind: EntityKind, record: LifecycleEvent) -> None:
        super().__init__(kind, record)
        self.stopping = False
        self.started_by: str | None = None
        """The tool call that asked for it."""
        self.consecutive = self.total = 0
        self.charged = 0
        """The last incarnation whose failure was counted."""
        self.at_failure = 0.0
        """When it failed last (monotonic seconds)."""
        self.prompted = 0
        """The incarnation that was given its prompt last."""
        self.crashes: list[float] = []
        """When it failed after that, within the window that counts (monotonic seconds)."""
        self.launch_seq = 0
        """The record that wanted the launch under way."""
        self.opened: dict[str, int] = {}
        """Turns that are owed: by which record."""
        self.unanswered: dict[str, None] = {}
        self.messages: list[str] = []
        self.own: set[str] = set()
        """Messages from the supervisor itself."""
        self.offered = 0
        self.delivered: set[str] = set()


class TurnShadow(EntityShadow):
    """A turn: its open calls (the agent's names for them, and their numbers), and the agent's word."""

    def __init__(self, kind: EntityKind, record: LifecycleEvent) -> None:
        super().__init__(kind, record)
        self.open: dict[str, int] = {}
        self.numbers: set[int] = set()
        self.within: dict[int, int] = {}
        """Of each call that was made within another one that one's number."""
        self.begun: dict[int, int] = {}
        """The numbers of its calls by the records that began them."""
        self.aborted: dict[str, tuple[str, ...]] = {}
        """Open calls that aborts name: by which ones."""
        self.verified = 0
        """The record of the agent's word that the work is done."""
        self.completed = False


class TaskShadow(EntityShadow):
    """A task, and who holds it."""

    def __init__(self, kind: EntityKind, record: LifecycleEvent) -> None:
        super().__init__(kind, record)
        self.holder: str | None = None


_SHADOWS = {"session": SessionShadow, "turn": TurnShadow, "task": TaskShadow}


def new_shadow(kind: EntityKind, record: LifecycleEvent) -> EntityShadow:
    """A new book for the entity that *record* is the first one of."""
    return _SHADOWS.get(record.entity_type, EntityShadow)(kind, record)
