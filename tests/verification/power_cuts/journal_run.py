"""Writer of the production journal on a simulated disk, and the comparison of the remaining journal after a power cut.

The plan of a run has every batch beforehand, and the content of the journal's tables after each batch; the writer
follows the plan whatever the disk does. The journal's own code is not asked whether the journal is right: the rows
found are compared with the plan, row for row.
"""

from __future__ import annotations

from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, Final

import apsw

from supervisor.journal.database import Database, open_database
from supervisor.journal.schema import (
    EVENT_FIELDS,
    apply_batch,
    effect_rows,
    entity_values,
    event_values,
    translate_errors,
)
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Append, EntityRow, JournalError
from supervisor.simulation.keyed_random import KeyedRandom
from tests.verification.power_cuts.simulated_disk import SimulatedDisk

_JOURNAL: Final = Path("/disk/journal.db")
_ENTITIES: Final = 5
_BATCH_MAX: Final = 4
_OPENINGS_MAX: Final = 8
"""Number of times that the journal on a failing disk is opened before the disk is healed."""

Row = tuple[Any, ...]


# ---------------------------------------------------------------------------------------------------------- the plan
class Plan:
    """Plan of one run: its batches, and the rows of the journal after each batch."""

    def __init__(self, random: KeyedRandom, batches: int) -> None:
        self._seqs = dict.fromkeys((f"s{number}" for number in range(_ENTITIES)), 0)
        self.batches = [self._batch(random.below("batch", number)) for number in range(batches)]
        self.events: list[Row] = []
        self.counts = [0]
        self.entities: list[list[Row]] = [[]]
        self.effects: list[list[Row]] = [[]]
        self._fold()

    def _batch(self, random: KeyedRandom) -> list[Append]:
        return [self._entry(random.below(number)) for number in range(random.integer(1, _BATCH_MAX, "size"))]

    def _entry(self, random: KeyedRandom) -> Append:
        who = random.choice(list(self._seqs), "who")
        seq = sum(self._seqs.values()) + 1
        self._seqs[who] += 1
        record = LifecycleEvent(
            seq=seq,
            timestamp=1.7e9 + seq,
            monotonic_s=float(seq),
            entity_type="session",
            entity_id=who,
            entity_seq=self._seqs[who],
            event="TurnEnded",
            reason="x" * random.integer(0, 300, "reason"),
            metadata={"turn": seq},
        )
        said = b"%d" % seq * random.choice((5, 20, 50, 50, 100, 100, 2_000), "data")  # some over several pages
        data = b'{"said":"%b"}' % said
        owed = ((f"effect-{seq}", b"{}"),) if random.happens(0.3, "owes") else ()
        settled = (f"effect-{random.integer(1, seq, 'which')}",) if random.happens(0.3, "settles") else ()
        return Append(record=record, parent_id=None, state="Running", data=data, owed=owed, settled=settled)

    def _fold(self) -> None:
        entities: dict[str, EntityRow] = {}
        effects: dict[str, list[Any]] = {}
        for batch in self.batches:
            entities |= apply_batch(entities, len(self.events), batch)
            self.events += [event_values(one.record) for one in batch]
            effects |= {row[0]: [*row, 0] for row in effect_rows(batch)}
            for seq, name in ((one.record.seq, name) for one in batch for name in one.settled if name in effects):
                effects[name][-1] = effects[name][-1] or seq
            self.counts.append(len(self.events))
            self.entities.append([entity_values(row) for row in entities.values()])
            self.effects.append([tuple(row) for row in effects.values()])

    def batches_in(self, rows: int) -> int | None:
        """Return the number of whole batches in *rows* records; ``None`` if the last batch is not whole."""
        return self.counts.index(rows) if rows in self.counts else None


# -------------------------------------------------------------------------------------------------------- the writer
class Writer:
    """Writer of a plan to a disk. After an error the outcome is unknown, so the writer reads the disk before
    continuing.

    ``acknowledged`` has, for every acknowledgement, the number of steps that the disk had made, and the number of
    batches acknowledged.

    Args:
        there: number of batches that were on the disk before.
        hasty: whether the writer acknowledges a batch before its commit, a mistake that must be found.
    """

    def __init__(self, plan: Plan, disk: SimulatedDisk, random: KeyedRandom, *, there: int, hasty: bool) -> None:
        self._plan = plan
        self._disk = disk
        self._random = random
        self._hasty = hasty
        self._tries = 0
        self.acknowledged = [(0, there)]
        self.lost_alive = 0
        """Number of acknowledged batches that were missing without a power cut."""

    def write(self, batches: int) -> None:
        """Write until the disk has so many batches of the plan; then close the journal, or die as a killed process
        does."""
        while not self._written(batches):
            self._tries += 1
            if self._tries % _OPENINGS_MAX == 0:
                self._disk.heal()

    def _written(self, batches: int) -> bool:
        try:
            with translate_errors(_JOURNAL):
                self._live(batches)
        except JournalError:
            return False
        return True

    def _live(self, batches: int) -> None:
        database = open_database(_JOURNAL, None, self._disk)
        try:
            done = self._found(database)
            while done < batches:
                done = self._appended(database, done)
        except BaseException:
            self._die(database)
            raise
        if self._random.happens(0.5, "dies", self._tries):
            self._die(database)
        database.close()

    def _die(self, database: Database) -> None:
        """End as a killed process does, without another operation of the disk."""
        self._disk.killed = True
        with suppress(apsw.Error):
            database.close()
        self._disk.killed = False

    def _found(self, database: Database) -> int:
        done = self._plan.batches_in(database.last_seq) or 0
        self.lost_alive += max(0, self.acknowledged[-1][1] - done)
        self._acknowledge(done)  # whoever reads a record acts on it
        return done

    def _recovered(self, database: Database) -> int:
        """Recover the journal as a restarted supervisor does, and return the number of batches on the disk."""
        database.recover()
        return self._found(database)

    def _acknowledge(self, batches: int) -> None:
        self.acknowledged.append((len(self._disk.steps), batches))

    def _appended(self, database: Database, done: int) -> int:
        if self._hasty:
            self._acknowledge(done + 1)
        try:
            database.append(self._plan.batches[done])
        except apsw.Error:
            self._tries += 1
            if self._tries % 2:
                raise
            return self._recovered(database)
        self._acknowledge(done + 1)
        return done + 1


# ------------------------------------------------------------------------------------------------------- the judgement
class Comparison(Enum):
    """Result of comparing the journal after a power cut with the plan."""

    WHOLE = "all that was acknowledged, and at most one batch more"
    REFUSED = "the journal's opening names a damage"
    LOST = "the opening is content, but an acknowledged batch is missing"
    WRONG = "the opening is content, but it is not what was written"


def found(plan: Plan, disk: SimulatedDisk, jsonl: Path | None = None) -> int | Comparison:
    """Open the journal of *disk* as production does; return the number of batches of *plan* in the journal, exactly as
    written.

    Return ``Comparison.REFUSED`` if the opening reports damage, and ``Comparison.WRONG`` if there is unreported
    damage.
    """
    try:
        database = open_database(_JOURNAL, jsonl, disk)
    except JournalError:
        return Comparison.REFUSED
    database.db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # nobody reads this disk again
    try:
        return _compared(plan, database.db)
    finally:
        database.close()


_EVENTS: Final = f"SELECT {', '.join(EVENT_FIELDS)} FROM events ORDER BY seq"


def _compared(plan: Plan, db: apsw.Connection) -> int | Comparison:
    events = db.execute(_EVENTS).fetchall()
    done = plan.batches_in(len(events))
    if done is None or events != plan.events[: len(events)]:
        return Comparison.WRONG
    same = db.execute("SELECT * FROM entities ORDER BY born_seq").fetchall() == plan.entities[done]
    same = same and db.execute("SELECT * FROM effects ORDER BY seq").fetchall() == plan.effects[done]
    return done if same else Comparison.WRONG


def compare_with_plan(there: int | Comparison, acknowledged: int) -> Comparison:
    """Compare the number of batches found, *there*, with the number of *acknowledged* batches."""
    if isinstance(there, Comparison):
        return there
    if there < acknowledged:
        return Comparison.LOST
    return Comparison.WHOLE if there <= acknowledged + 1 else Comparison.WRONG
