"""Tables and views of the journal, schema 4, as SQL text.

``entities``, ``events`` and ``effects`` hold the content of the appends. With ``gaps`` and ``strays`` the hash chain
can be checked where records were moved to an archive; ``archives`` and ``ids`` list the archives and the ids that were
used; ``snapshot`` names the record up to which the journal is verified. The views are spec 002's tables; they are
always current, because nothing is stored twice.
"""

from __future__ import annotations

from typing import Final

from supervisor.lifecycles.types import ABORT_RECORD

VERSION: Final = 4
"""Version of the schema that this code writes, and the only version that it reads: journals of other versions are
refused."""

_WRITTEN: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
CREATE TABLE entities (
    kind TEXT NOT NULL, id TEXT NOT NULL PRIMARY KEY, parent_id TEXT, state TEXT NOT NULL, data BLOB NOT NULL,
    entity_seq INTEGER NOT NULL, ended INTEGER NOT NULL, born_seq INTEGER NOT NULL,
    born_at REAL NOT NULL, changed_at REAL NOT NULL
) STRICT;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, timestamp REAL NOT NULL, monotonic_s REAL NOT NULL,
    entity_type TEXT NOT NULL, entity_id TEXT NOT NULL REFERENCES entities (id), entity_seq INTEGER NOT NULL,
    event TEXT NOT NULL, from_status TEXT NOT NULL, to_status TEXT NOT NULL, outcome TEXT NOT NULL,
    actor TEXT NOT NULL, reason TEXT NOT NULL, transition_reason TEXT, abort_reason TEXT, abort_id TEXT,
    cause_id INTEGER, severity TEXT NOT NULL, metadata TEXT NOT NULL,
    entity_hash BLOB NOT NULL, chain BLOB NOT NULL,
    UNIQUE (entity_id, entity_seq)
) STRICT;
CREATE TABLE effects (
    effect_id TEXT NOT NULL PRIMARY KEY, entity_id TEXT NOT NULL REFERENCES entities (id), seq INTEGER NOT NULL,
    payload BLOB NOT NULL, settled INTEGER NOT NULL DEFAULT 0
) STRICT;
"""
# effects.settled is the seq of the record that settled it, -1 if that was none, 0 while it is owed.
# UNIQUE (entity_id, entity_seq) is also the index that reads one entity's log in order.

_VIEWS: Final = """
CREATE VIEW workstreams AS
SELECT id, state, strftime('%Y-%m-%d %H:%M:%f', born_at, 'unixepoch') AS created_at
FROM entities WHERE kind = 'workstream';

CREATE VIEW state_transitions AS
SELECT seq AS id, entity_id AS task_id, from_status AS from_state, to_status AS to_state,
    strftime('%Y-%m-%d %H:%M:%f', timestamp, 'unixepoch') AS timestamp,
    nullif(reason, '') AS reason, metadata
FROM events WHERE entity_type IN ('task', 'run') AND outcome = 'transition';

CREATE VIEW task_states AS
WITH spent AS (
    SELECT entity_id, timestamp, from_status, to_status, event, reason,
        lead(timestamp) OVER (PARTITION BY entity_id ORDER BY entity_seq) - timestamp AS stayed_s
    FROM events
    WHERE entity_type IN ('task', 'run') AND (outcome = 'born' OR outcome = 'transition' AND from_status <> to_status)
), summary AS (
    SELECT entity_id,
        min(timestamp) FILTER (WHERE to_status = 'IN_PROGRESS') AS started_s,
        max(timestamp) FILTER (WHERE to_status IN ('COMPLETED', 'CLOSED')) AS completed_s,
        max(timestamp) FILTER (WHERE to_status IN ('FAILED', 'TIMEOUT')) AS failed_s,
        count(*) FILTER (WHERE to_status = 'IN_PROGRESS') AS attempts,
        count(*) FILTER (WHERE to_status = 'FAILED') AS failures,
        sum(stayed_s) FILTER (WHERE to_status = 'IN_PROGRESS') AS executing_s,
        sum(stayed_s) FILTER (WHERE to_status = 'VALIDATING') AS validating_s
    FROM spent GROUP BY entity_id
)
SELECT one.id AS task_id,
    (
        WITH RECURSIVE above (id, kind, parent_id) AS (
            SELECT id, kind, parent_id FROM entities WHERE id = one.parent_id
            UNION SELECT up.id, up.kind, up.parent_id FROM entities AS up JOIN above ON up.id = above.parent_id
        ) SELECT id FROM above WHERE kind = 'workstream' LIMIT 1
    ) AS workstream_id,
    one.state,
    (
        SELECT from_status FROM events WHERE entity_id = one.id AND outcome = 'transition' AND from_status <> to_status
        ORDER BY entity_seq DESC LIMIT 1
    ) AS previous_state,
    summary.attempts AS attempt_count,
    strftime('%Y-%m-%d %H:%M:%f', one.born_at, 'unixepoch') AS created_at,
    strftime('%Y-%m-%d %H:%M:%f', summary.started_s, 'unixepoch') AS started_at,
    strftime('%Y-%m-%d %H:%M:%f', summary.completed_s, 'unixepoch') AS completed_at,
    strftime('%Y-%m-%d %H:%M:%f', summary.failed_s, 'unixepoch') AS failed_at,
    coalesce(
        nullif(coalesce(
            json_extract(CAST(one.data AS TEXT), '$.last_error'), json_extract(CAST(one.data AS TEXT), '$.last_failure')
        ), ''),
        (
            SELECT nullif(reason, '') FROM events WHERE entity_id = one.id AND to_status IN ('FAILED', 'TIMEOUT')
            AND outcome = 'transition' ORDER BY entity_seq DESC LIMIT 1
        )
    ) AS last_error,
    coalesce(json_extract(CAST(one.data AS TEXT), '$.failures'), summary.failures) AS error_count,
    CASE one.state WHEN 'CIRCUIT_OPEN' THEN 'OPEN' WHEN 'HALF_OPEN' THEN 'HALF_OPEN' ELSE 'CLOSED' END AS circuit_state,
    CAST(round(summary.executing_s * 1000) AS INTEGER) AS execution_duration_ms,
    CAST(round(summary.validating_s * 1000) AS INTEGER) AS validation_duration_ms,
    CASE WHEN one.ended OR one.state IN ('FAILED', 'CIRCUIT_OPEN')
        THEN CAST(round((one.changed_at - one.born_at) * 1000) AS INTEGER) END AS total_duration_ms,
    NULL AS output_size_bytes,
    NULL AS exit_code
FROM entities AS one LEFT JOIN summary ON summary.entity_id = one.id
WHERE one.kind IN ('task', 'run');
"""

_KEPT_SMALL: Final = f"""
CREATE INDEX entities_live ON entities (born_seq) WHERE ended = 0;
CREATE INDEX events_aborts ON events (seq) WHERE event = '{ABORT_RECORD}';
CREATE INDEX effects_seq ON effects (seq);
CREATE INDEX effects_settled ON effects (settled, seq);
CREATE TABLE gaps (
    first_seq INTEGER PRIMARY KEY, last_seq INTEGER NOT NULL, before BLOB NOT NULL, after BLOB NOT NULL
) STRICT;
CREATE TABLE strays (seq INTEGER NOT NULL, effect_id TEXT NOT NULL, PRIMARY KEY (seq, effect_id)) STRICT, WITHOUT ROWID;
CREATE TABLE archives (
    number INTEGER PRIMARY KEY, file TEXT NOT NULL, digest BLOB NOT NULL, records INTEGER NOT NULL,
    entities INTEGER NOT NULL, first_seq INTEGER NOT NULL, last_seq INTEGER NOT NULL, done INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE ids (id TEXT NOT NULL PRIMARY KEY) STRICT, WITHOUT ROWID;
CREATE TABLE snapshot (
    one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER NOT NULL, chain BLOB NOT NULL, records INTEGER NOT NULL,
    entities INTEGER NOT NULL, digest BLOB NOT NULL, boot TEXT NOT NULL
) STRICT;
{_VIEWS}"""
# A gap stands for the records first_seq to last_seq, which are elsewhere: the chain before and after them.
# A stray is an effect that the record settled, where the effect's own row is elsewhere.
# archives.done is 1 when everything in the archive has left this journal. ids are those of named entities that have.

TABLES: Final = _WRITTEN + _KEPT_SMALL
