"""Retention: select the entities that may leave the journal.

Theory of operation
-------------------
An entity leaves with all its records or stays. It stays while one of these holds:

* it lives, or an entity below it stays;
* it owes an effect;
* its last record is younger than the retention allows, or than ``SETTLED_S``;
* it has the newest record, by which the journal knows its end;
* it FAILED (a task or workstream): then the session that worked on it, everything below both and everything above stay;
* it is below a workstream that runs, or whose result was not reported: another supervisor continues that one.

The module is SQL and the questions that it answers; nothing is changed. The recursive query walks from the entities
that must stay up to their parents, and everything it does not reach may leave.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

import apsw
import msgspec

from supervisor.ports import Retention

SETTLED_S: Final = 60.0
"""Seconds that every ended entity stays, since late facts about the entity may still be recorded."""

_KEPT: Final = """
WITH RECURSIVE
failed (id) AS (SELECT id FROM main.entities WHERE kind IN ('task', 'workstream') AND lower(state) = 'failed'),
held (id) AS (
    SELECT id FROM failed
    UNION SELECT json_extract(one.metadata, '$.by') FROM failed JOIN main.events AS one ON one.entity_id = failed.id
        WHERE one.event = 'claimed'
    UNION SELECT below.id FROM held JOIN main.entities AS below ON below.parent_id = held.id
),
going (id) AS (
    SELECT id FROM main.entities AS one WHERE kind = 'workstream' AND (ended = 0 OR (
        EXISTS (SELECT 1 FROM main.events WHERE entity_id = one.id AND event = 'Result')
        AND NOT EXISTS (SELECT 1 FROM main.events WHERE entity_id = one.id AND event = 'ResultReported')
    ))
    UNION SELECT below.id FROM going JOIN main.entities AS below ON below.parent_id = going.id
),
kept (id) AS (
    SELECT id FROM held
    UNION SELECT id FROM going
    UNION SELECT value FROM json_each(:living)
    UNION SELECT id FROM main.entities WHERE ended = 0 OR changed_at > :until
    UNION SELECT entity_id FROM main.effects WHERE settled = 0
    UNION SELECT entity_id FROM main.events WHERE seq = (SELECT max(seq) FROM main.events)
    UNION SELECT one.parent_id FROM kept JOIN main.entities AS one USING (id) WHERE one.parent_id IS NOT NULL
)
"""
_LEAVING: Final = f"""{_KEPT}
SELECT id, entity_seq, changed_at FROM main.entities WHERE id NOT IN (SELECT id FROM kept WHERE id IS NOT NULL)
ORDER BY changed_at, born_seq
"""
_UNTIL: Final = """
SELECT changed_at FROM (
    SELECT changed_at, sum(entity_seq) OVER (ORDER BY changed_at, born_seq) AS records FROM main.entities WHERE ended
) WHERE records >= ? LIMIT 1
"""


_encode = msgspec.json.Encoder().encode


class RetentionSelection(NamedTuple):
    """An entity that may be archived, the number of its records, and the Unix time of its last record."""

    id: str
    records: int
    changed_at: float


def select_entities(
    db: apsw.Connection, retention: Retention, now: float, most: int, living: Collection[str] = ()
) -> list[RetentionSelection]:
    """Select the entities that are archived next, oldest first.

    Together they have about *most* records, and more only if fewer would separate a child from its parent. *now* is
    Unix time; *living* entities (by id) stay.
    """
    until = _cutoff(db, retention, now)
    if until is None:
        return []
    stays = _encode(list(living)).decode()
    found = _select(db, until, stays)
    records = 0
    for one in found:
        records += one.records
        if records >= most:
            return _select(db, one.changed_at, stays) or found
    return found


def _cutoff(db: apsw.Connection, retention: Retention, now: float) -> float | None:
    """Return the latest time of a last record at which the retention lets an entity be archived; ``None`` if no entity
    may be."""
    ages = [] if retention.keep_s is None else [now - max(retention.keep_s, SETTLED_S)]
    if retention.records_max is not None:
        over = db.execute("SELECT count(*) FROM main.events").get - retention.records_max
        if over > 0:
            found = db.execute(_UNTIL, (over,)).get
            ages.append(now - SETTLED_S if found is None else min(found, now - SETTLED_S))
    return max(ages, default=None)


def _select(db: apsw.Connection, until: float, living: str) -> list[RetentionSelection]:
    return [RetentionSelection(*row) for row in db.execute(_LEAVING, {"until": until, "living": living})]
