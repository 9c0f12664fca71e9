"""Invariants of containment: the tree computed from ids, births and adoptions, and the entities that may be left below
an ended entity.

A session's parent is in its id (``lead/docs``). An id whose middle is left out (``lead/~/docs``) has as parent the
session whose turn caused the birth, or else the session that the id begins with. Turns and agents name their session.
"""

from __future__ import annotations

from typing import Any

from supervisor.diagnostics.invariants.catalogue import ReportViolation
from supervisor.diagnostics.invariants.shadow_state import RECOVERY, EntityShadow, SessionShadow, TurnShadow
from supervisor.lifecycles.types import LifecycleEvent, TerminationStage

Shadows = dict[str, EntityShadow]


class ContainmentInvariants:
    """Checker of the invariants of the entity tree."""

    def __init__(self, shadows: Shadows, entity_by_seq: list[str], report: ReportViolation) -> None:
        self._shadows, self._entity_by_seq, self._report = shadows, entity_by_seq, report

    # ------------------------------------------------------------------ births
    def session_born(self, record: LifecycleEvent, shadow: SessionShadow) -> None:
        shadow.started_by = self._call_of(record)
        parent_id = self._parent_of(record)
        if parent_id:
            self._join(shadow, parent_id)

    def turn_or_agent_born(self, record: LifecycleEvent, shadow: EntityShadow) -> None:
        """Add a turn or an agent to its session in the tree."""
        self._join(shadow, str(record.metadata.get("session_id", "")))

    def _cause_of(self, record: LifecycleEvent) -> str:
        """Return the id of the entity whose record caused *record*; ``""`` if there is none."""
        cause = record.cause_id
        return self._entity_by_seq[cause] if cause is not None and 0 < cause < record.seq else ""

    def _call_of(self, record: LifecycleEvent) -> str | None:
        turn = self._shadows.get(self._cause_of(record))
        number = turn.begun.get(record.cause_id or 0) if isinstance(turn, TurnShadow) else None
        return f"{turn.id}:c{number}" if turn is not None and number is not None else None

    def _parent_of(self, record: LifecycleEvent) -> str:
        above, shortened, _ = record.entity_id.rpartition("/~/")
        if not shortened:
            return record.entity_id.rpartition("/")[0]
        asked_by = self._cause_of(record).partition(":")[0]
        return asked_by if isinstance(self._shadows.get(asked_by), SessionShadow) else above

    def _join(self, shadow: EntityShadow, parent_id: str) -> None:
        parent = self._shadows.get(parent_id)
        if not isinstance(parent, SessionShadow):
            self._report("containment", shadow.id, f"born below {parent_id or 'nobody'}, of whom there is no record")
            return
        if parent.stopping or parent.ended:
            how = "has ended" if parent.ended else "is ending"
            self._report("containment", shadow.id, f"born below {parent_id}, which {how}")
        shadow.parent = parent
        parent.live[shadow.id] = shadow

    # ------------------------------------------------------------------ changes
    def adopted(self, record: LifecycleEvent, shadow: EntityShadow, _: Any) -> None:
        """Move a session whose parent ends to its new parent. A session that is to end all the same stays in the reach
        of the former parent's abort."""
        new_parent_id, mode = record.metadata.get("parent"), record.metadata.get("mode")
        new_parent = self._shadows.get(str(new_parent_id)) if new_parent_id is not None else None
        former_parent, shadow.parent = shadow.parent, new_parent if isinstance(new_parent, SessionShadow) else None
        if former_parent is not None:
            former_parent.live.pop(shadow.id, None)
            shadow.former_parent = None if mode == "abandon" else former_parent
        if shadow.parent is not None and not shadow.ended:
            shadow.parent.live[shadow.id] = shadow
        if new_parent_id is not None and (shadow.parent is None or shadow.parent.stopping):
            self._report("containment", shadow.id, f"adopted by {new_parent_id}, which does not live")

    def ended(self, record: LifecycleEvent, shadow: EntityShadow) -> None:
        """Check that no entity is left below an ended entity.

        A session that a termination abandoned (stage ``abandon``) may be left, but must have been requested to end.
        """
        if shadow.parent is not None:
            shadow.parent.live.pop(shadow.id, None)
        if not shadow.live:
            return
        given_up = record.metadata.get("rung") == TerminationStage.ABANDON and record.actor != RECOVERY
        for one in shadow.live.values():
            if not given_up or (isinstance(one, SessionShadow) and not one.stopping):
                self._report("containment", shadow.id, f"ended before {one.id}, which is below it and in {one.status}")
