"""Shadow state of entities: the knowledge of the checker about each entity, from the records alone.

A shadow holds the entity's state in its table, the entities that live below it, and the few numbers that the invariants
compare. Shadows of ended entities stay, because later records may name them.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from supervisor.diagnostics.event_replay import EntityKind
from supervisor.lifecycles.types import LifecycleEvent

RECOVERY: Final = "recovery"
"""Actor of the records that recovery writes for a supervisor that died."""


class EntityShadow:
    """Shadow of an entity: ``state`` and ``data`` are those of the table, ``status`` is the state as records spell it.

    ``lost``: the data is unknown because a record could not be stepped. ``parent`` and ``live`` are the tree;
    ``former_parent`` is a parent that the entity left and whose end stopped the entity.
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
    """Shadow of a session: its error counts, its intents, and its requests and messages."""

    def __init__(self, kind: EntityKind, record: LifecycleEvent) -> None:
        super().__init__(kind, record)
        self.stopping = False
        self.started_by: str | None = None
        """Tool call that requested the session."""
        self.consecutive = self.total = 0
        self.charged = 0
        """Last incarnation whose failure was counted."""
        self.at_failure = 0.0
        """Time of the last failure (monotonic seconds)."""
        self.prompted = 0
        """Last incarnation that got its prompt."""
        self.crashes: list[float] = []
        """Times of failures after a prompt, within the window that counts (monotonic seconds)."""
        self.launch_seq = 0
        """Record that intends the current launch."""
        self.opened: dict[str, int] = {}
        """Turns that are intended but not born, and the records that intend them."""
        self.unanswered: dict[str, None] = {}
        self.messages: list[str] = []
        self.own: set[str] = set()
        """Messages from the supervisor itself."""
        self.offered = 0
        self.delivered: set[str] = set()


class TurnShadow(EntityShadow):
    """Shadow of a turn: its open calls (by the agent's ids, with the supervisor's numbers), and the agent's report of
    success."""

    def __init__(self, kind: EntityKind, record: LifecycleEvent) -> None:
        super().__init__(kind, record)
        self.open: dict[str, int] = {}
        self.numbers: set[int] = set()
        self.within: dict[int, int] = {}
        """Number of the enclosing call of each nested call."""
        self.begun: dict[int, int] = {}
        """Numbers of the calls by the records that began them."""
        self.aborted: dict[str, tuple[str, ...]] = {}
        """Open calls that aborts name, with those aborts."""
        self.verified = 0
        """Record of the agent's report that the work is done."""
        self.completed = False


class TaskShadow(EntityShadow):
    """Shadow of a task, with its holder."""

    def __init__(self, kind: EntityKind, record: LifecycleEvent) -> None:
        super().__init__(kind, record)
        self.holder: str | None = None


_SHADOWS = {"session": SessionShadow, "turn": TurnShadow, "task": TaskShadow}


def new_shadow(kind: EntityKind, record: LifecycleEvent) -> EntityShadow:
    """Return a new shadow for the entity whose first record is *record*."""
    return _SHADOWS.get(record.entity_type, EntityShadow)(kind, record)
