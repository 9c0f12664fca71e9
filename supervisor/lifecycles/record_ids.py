"""Ids of records and of effects: the only module outside of the journals that computes with them.

Everyone else carries a ``RecordId``, compares two of them, and asks here for the next one. The id of an effect has the
id of the record that owes the effect, and the effect's number among those of the record: ``17.0``.
"""

from __future__ import annotations

from supervisor.lifecycles.types import RecordId


def id_after(record_id: RecordId) -> RecordId:
    """Return the id of the record that is written right after the record *record_id*."""
    return RecordId(record_id + 1)


def id_before(record_id: RecordId) -> RecordId:
    """Return the id right before *record_id*: the first record after the returned id is the record *record_id*."""
    return RecordId(record_id - 1)


def effect_id_of(record_id: RecordId, number: int) -> str:
    return f"{record_id}.{number}"


def record_of_effect(effect_id: str) -> RecordId:
    """Return the id of the record that owes an effect.

    Raises:
        ValueError: *effect_id* is no id of an effect.
    """
    return RecordId(int(effect_id.partition(".")[0]))
