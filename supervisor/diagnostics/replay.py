"""Replay a journal: run every recorded event through the tables again and compare the results. Pure.

Records, rows and effects come in; differences, violated invariants and the tree at any record come out. Data that an
earlier version wrote may lack fields that were added later. The rows may be newer or older than the records, since a
supervisor may be writing: each row is compared at the record with which it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from actors.machine import Effect, Event, Step
from supervisor.diagnostics.invariants import RecordChecker, Violation
from supervisor.diagnostics.invariants.shadow_state import EntityShadow
from supervisor.lifecycles.effects import SendEvent, StartTimer, SupervisorEffect, decode_effect, encode_effect
from supervisor.lifecycles.record_ids import effect_id_of, record_of_effect
from supervisor.lifecycles.types import BEGINNING, Kind, LifecycleEvent, RecordId
from supervisor.ports import EntityRow


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Difference between the journal and its replayed records.

    ``field`` is ``state``, ``data``, ``parent``, ``ended``, ``effect`` or ``records``; ``seq`` is the record after
    which the value should hold, if there is one.
    """

    seq: RecordId | None
    entity_id: str
    field: str
    recorded: str
    replayed: str


class Replay:
    """Replay of a journal; pass the records in order to :meth:`replay`.

    Args:
        rows: the entities as stored in the journal, read before the records.
        effects: the effects that the journal holds, by id, as JSON, read before the records; ``None``: they are not
            compared.
        last_seq: the last record that existed when the effects were read.
    """

    def __init__(
        self,
        rows: Iterable[EntityRow] = (),
        effects: Mapping[str, bytes] | None = None,
        *,
        last_seq: RecordId = BEGINNING,
    ) -> None:
        self.checker = RecordChecker(on_step=self._compare_effects)
        self.shadows: Mapping[str, EntityShadow] = self.checker.shadows
        self.records = 0
        self.differences: list[Difference] = []
        self.violations: list[Violation] = []
        self._rows = {row.id: row for row in rows}
        self._effects = None if effects is None else dict(effects)
        self._last_seq = last_seq
        self._times: dict[str, tuple[float, float]] = {}

    def replay(self, record: LifecycleEvent) -> None:
        """Replay the next record, and compare the entity's stored row if it was written with this record."""
        self.records += 1
        self.violations += self.checker.check(record)
        born_at, _ = self._times.get(record.entity_id, (record.timestamp, 0.0))
        self._times[record.entity_id] = (born_at, record.timestamp)
        row = self._rows.get(record.entity_id)
        if row is not None and row.entity_seq == record.entity_seq:
            del self._rows[row.id]
            self._compare(row, record)

    def finish(self) -> None:
        """Report the rows and effects of the journal for which there are no records."""
        self.violations += self.checker.finish(quiescent=self.checker.all_ended)
        for row in self._rows.values():
            shadow = self.shadows.get(row.id)
            read = str(shadow.entity_seq) if shadow is not None else "none"
            self._differs(None, row.id, "records", f"{row.entity_seq} of its log", read)
        for effect_id in self._effects or ():
            seq = _seq_of(effect_id)
            if seq is None or seq <= self._last_seq:
                self._differs(seq, "", "effect", f"{effect_id} is owed", "nothing")

    # ------------------------------------------------------------------ comparing
    def _differs(self, seq: RecordId | None, entity_id: str, field: str, recorded: str, replayed: str) -> None:
        self.differences.append(
            Difference(seq=seq, entity_id=entity_id, field=field, recorded=recorded, replayed=replayed)
        )

    def _compare(self, row: EntityRow, record: LifecycleEvent) -> None:
        shadow = self.shadows.get(row.id)
        if shadow is None:
            return
        pairs: list[tuple[str, Any, Any]] = [
            ("state", row.state, shadow.status),
            ("parent", row.parent_id, _parent_of(shadow)),
            ("ended", row.ended, shadow.ended),
        ]
        replayed = msgspec.json.encode(shadow.data)
        if not (
            shadow.lost or _agree(row.data, replayed, partial(msgspec.json.decode, row.data, type=type(shadow.data)))
        ):
            pairs.append(("data", row.data.decode(errors="replace"), replayed.decode()))
        for field, recorded, replayed in pairs:
            if recorded != replayed:
                self._differs(record.seq, row.id, field, str(recorded), str(replayed))

    def _compare_effects(self, record: LifecycleEvent, step: Step[Any, Any]) -> None:
        """Compare the effects of a step with the effects stored in the journal."""
        if self._effects is None or record.seq > self._last_seq:
            return
        for number, effect in enumerate(step.effects):
            if isinstance(effect, SupervisorEffect) and effect.exempt:
                continue
            owed, kept = encode_effect(effect), self._effects.pop(effect_id_of(record.seq, number), None)
            if kept is None or not _agree(kept, owed, partial(_read, kept, effect)):
                recorded = kept.decode(errors="replace") if kept is not None else "nothing"
                self._differs(record.seq, record.entity_id, "effect", recorded, owed.decode())

    # ------------------------------------------------------------------ the tree as it stood
    def rows(self) -> list[EntityRow]:
        """Return every entity after the last replayed record, in the order of birth."""
        return [self._row(shadow) for shadow in self.shadows.values()]

    def _row(self, shadow: EntityShadow) -> EntityRow:
        born_at, changed_at = self._times[shadow.id]
        return EntityRow(
            kind=shadow.name,
            id=shadow.id,
            parent_id=_parent_of(shadow),
            state=shadow.status,
            data=msgspec.json.encode(shadow.data) if shadow.data is not None else b"",
            entity_seq=shadow.entity_seq,
            ended=shadow.ended,
            born_seq=shadow.born_seq,
            born_at=born_at,
            changed_at=changed_at,
        )


def _agree(kept: bytes, replayed: bytes, read: Callable[[], object]) -> bool:
    """Return whether both values are equal, except for fields that the version which wrote *kept* did not have: a
    version that has a field always writes it. The result is false if *read* fails on the stored value."""
    if kept == replayed:
        return True
    with suppress(ValueError, KeyError, TypeError):
        read()
        return _holds(msgspec.json.decode(kept), msgspec.json.decode(replayed))
    return False


def _read(kept: bytes, effect: Effect) -> SupervisorEffect:
    event = type(effect.event) if isinstance(effect, SendEvent | StartTimer) else Event
    return decode_effect(kept, lambda name, fields: msgspec.convert(fields, event))


def _holds(kept: Any, now: Any) -> bool:
    """Return whether everything in *kept* is also in *now*, which may have more fields."""
    match kept, now:
        case dict(), dict():
            return all(name in now and _holds(value, now[name]) for name, value in kept.items())
        case list(), list():
            return len(kept) == len(now) and all(map(_holds, kept, now))
        case _:
            return bool(kept == now)


def _seq_of(effect_id: str) -> RecordId | None:
    try:
        return record_of_effect(effect_id)
    except ValueError:
        return None


def _parent_of(shadow: EntityShadow) -> str | None:
    """Return the id of the entity's parent; for a task, run, job or worker the parent is named in its data."""
    if shadow.parent is not None or shadow.data is None:
        return shadow.parent.id if shadow.parent is not None else None
    match shadow.name:
        case Kind.TASK | Kind.WORKER:
            return shadow.data.workstream or None
        case Kind.RUN | Kind.JOB:
            return shadow.data.task or None
        case _:
            return None
