"""Views of the journal for the HTTP API: lists, one entity, usage, causes, transcripts. Each is read at one moment.

Every function here waits for the disk, and is called in a thread. A list is ordered by creation and has pages: the
cursor of the next page is the number of the first record of the last entity.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import msgspec

from supervisor.diagnostics.causal_trace import Explanation, explain
from supervisor.diagnostics.outcomes import data_of
from supervisor.diagnostics.quality import QUALITY_EVENTS, QualityTotals, TaskQuality, read_quality
from supervisor.diagnostics.run_graph import RunGraph, read_run
from supervisor.diagnostics.run_summary import RunSummary, summarize_runs
from supervisor.diagnostics.state_times import read_state_times
from supervisor.diagnostics.task_status import WORK, DeadLetter, dead_letters
from supervisor.diagnostics.tool_calls import ToolCall, calls_of
from supervisor.diagnostics.tree_view import EntityLine, Node, ps, tree
from supervisor.journal.statedir import StateDir
from supervisor.journal.transcript import follow_from
from supervisor.lifecycles.task import Task
from supervisor.lifecycles.types import Kind, LifecycleEvent, RecordId
from supervisor.policies.budgets import Amounts, Budget
from supervisor.policies.usage import USAGE, USAGE_EVENTS, UsageTotals
from supervisor.ports import EntityRow, Reader, UnidentifiedProcess
from supervisor.ports.outages import Outage, Shortage

APPROVED_BY_PERSONS: Final = (Task.PLANNED.value, Task.PENDING_APPROVAL.value)
"""States of tasks that wait for a person."""


class Line(EntityLine, frozen=True, kw_only=True):
    """An entity in a list. Times are Unix times."""

    born_at: float
    changed_at: float
    seq: RecordId


class Detail(Line, frozen=True, kw_only=True):
    """An entity with its data, and what it has used."""

    entity_seq: int
    data: dict[str, Any]
    budget: Budget | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of an entity, with everything below it."""

    id: str
    used: Amounts


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """State of the supervisor itself."""

    pid: int
    version: str
    state: str
    seq: RecordId
    sessions: int
    streams: int
    outage: Outage | None
    shortage: Shortage | None
    unidentified: tuple[UnidentifiedProcess, ...]
    failure: str | None


class Views:
    """The views of one supervisor's journal, which *open_reader* opens. *state* is its directory (``None``: there is
    none); *supervised*: the supervisor runs."""

    def __init__(
        self,
        open_reader: Callable[[], AbstractContextManager[Reader]],
        state: StateDir | None,
        *,
        supervised: bool = True,
    ) -> None:
        self._open_reader, self._state, self._supervised = open_reader, state, supervised

    @property
    def directory(self) -> str:
        """Path of the state directory; ``""`` if there is none."""
        return str(self._state.root.absolute()) if self._state is not None else ""

    def last_seq(self) -> RecordId:
        """Return the number of the last record."""
        with self._open_reader() as reader:
            return reader.last_seq

    # ------------------------------------------------------------------ entities
    def lines(
        self, kind: Kind, *, ended: bool, parent: str | None, states: Sequence[str], after: RecordId, limit: int
    ) -> list[Line]:
        """Return at most *limit* entities of a kind that were created after the record *after*; with *ended* also those
        that have ended, else only living ones."""
        with self._open_reader() as reader:
            rows = reader.entities(live_only=not ended)
            wanted = [
                row
                for row in sorted(rows, key=lambda row: row.born_seq)
                if row.kind == kind and row.born_seq > after and parent in (None, row.parent_id)
                if not states or row.state in states
            ][:limit]
            shown = self._shown(reader, rows)
        return [_line(row, shown[row.id]) for row in wanted]

    def detail(self, kind: Kind, entity_id: str) -> Detail:
        """Return one entity, also if it is in an archive.

        Raises:
            LookupError: there is no entity of that kind with that id.
        """
        with self._open_reader() as reader:
            row = reader.entity(entity_id)
            if row is None or row.kind != kind:
                raise _unknown(kind, entity_id)
            rows = reader.entities(live_only=True)
            shown = self._shown(reader, [*(one for one in rows if one.id != row.id), row])
            used = self._usage(reader).get(row.id)
        line = _line(row, shown[row.id])
        values = {name: getattr(line, name) for name in Line.__struct_fields__}
        return Detail(**{**values, "used": used}, entity_seq=row.entity_seq, data=dict(data_of(row)))

    def _shown(self, reader: Reader, rows: Sequence[EntityRow]) -> dict[str, EntityLine]:
        times, active_at = read_state_times(reader, rows), self._last_outputs(rows)
        return {
            one.id: one
            for one in ps(rows, now=time.time(), active_at=active_at, times=times, supervised=self._supervised)
        }

    def _last_outputs(self, rows: Sequence[EntityRow]) -> dict[str, float]:
        if self._state is None:
            return {}
        return self._state.last_outputs(row.id for row in rows if row.kind == Kind.SESSION and not row.ended)

    # ------------------------------------------------------------------ runs
    def runs(self, *, live_only: bool, before: RecordId, limit: int) -> tuple[Sequence[RunSummary], RecordId | None]:
        """Return at most *limit* runs of the journal, newest first, that began before the record *before* (0: all), and
        the number of the first record of the last one if there are more."""
        with self._open_reader() as reader:
            rows = reader.entities(live_only=live_only)
            used = self._usage(reader)
        runs = [row for row in rows if row.kind == Kind.WORKSTREAM and (not before or row.born_seq < before)]
        runs.sort(key=lambda row: row.born_seq, reverse=True)
        shown, tasks = runs[:limit], [row for row in rows if row.kind == Kind.TASK]
        found = summarize_runs([*shown, *tasks], used, now=time.time(), supervised=self._supervised)
        return found, shown[-1].born_seq if len(runs) > limit else None

    def run(self, run: str) -> RunGraph:
        """Return a run with the graph of its tasks, also if it is in an archive.

        Raises:
            LookupError: there is no such run.
        """
        with self._open_reader() as reader:
            rows = [row for row in reader.entities(archived=self._is_archived(reader, run)) if row.kind in WORK]
            used, times = self._usage(reader), read_state_times(reader, rows)
        found = read_run(rows, run, now=time.time(), used=used, times=times, supervised=self._supervised)
        if found is None:
            raise _unknown_run(run)
        return found

    def quality(self, run: str | None) -> tuple[QualityTotals, list[TaskQuality]]:
        """Return the checks, retries and rejections of the tasks of the journal, and their sums; with *run* only of
        that run, also if it is in an archive.

        Raises:
            LookupError: there is no such run.
        """
        with self._open_reader() as reader:
            archived = run is not None and self._is_archived(reader, run)
            rows = reader.entities(archived=archived)
            records = list(reader.events_named(*QUALITY_EVENTS, archived=archived))
        if run is not None and not any(one.id == run and one.kind == Kind.WORKSTREAM for one in rows):
            raise _unknown_run(run)
        return read_quality(rows, records, run=run)

    def _is_archived(self, reader: Reader, run: str) -> bool:
        return not reader.entities(ids=[run])

    # ------------------------------------------------------------------ the tree
    def tree(self, *, ended: bool) -> tuple[RecordId, tuple[Node, ...]]:
        """Return the number of the last record, and the tree at that record; with *ended* also what has ended."""
        with self._open_reader() as reader:
            seq, rows = reader.snapshot()
            rows = reader.entities() if ended else rows
            times, active_at = read_state_times(reader, rows), self._last_outputs(rows)
            return seq, tree(rows, times=times, now=time.time(), active_at=active_at, supervised=self._supervised)

    def snapshot(self) -> tuple[RecordId, list[EntityRow]]:
        """Return the number of the last record, and the entities that live at that record."""
        with self._open_reader() as reader:
            return reader.snapshot()

    # ------------------------------------------------------------------ records
    def records(
        self, entity_id: str | None, kind: str | None, event: str | None, after: RecordId, limit: int
    ) -> tuple[list[LifecycleEvent], RecordId | None]:
        """Return at most *limit* records after the record *after*, archives included, and the number of the last one if
        there may be more."""
        found: list[LifecycleEvent] = []
        with self._open_reader() as reader:
            for one in reader.events(entity_id, after, archived=True):
                if kind in (None, one.entity_type) and event in (None, one.event):
                    found.append(one)
                    if len(found) == limit:
                        return found, one.seq
        return found, None

    def causes(self, entity_id: str) -> Explanation:
        """Return the causes of an entity's last change.

        Raises:
            LookupError: no record is about that id.
        """
        with self._open_reader() as reader:
            if (found := explain(reader, entity_id)) is not None:
                return found
        raise LookupError(f"id: no record is about {entity_id!r}; GET /api/v1/tree shows the ids")

    # ------------------------------------------------------------------ turns
    def tool_calls(self, turn_id: str) -> list[ToolCall]:
        """Return the tool calls of a turn, in the order of their starts.

        Raises:
            LookupError: there is no such turn.
        """
        with self._open_reader() as reader:
            row = reader.entity(turn_id)
            if row is None or row.kind != Kind.TURN:
                raise _unknown(Kind.TURN, turn_id)
            return calls_of(reader.events(turn_id, archived=True))

    def transcript(self, session_id: str, offset: int) -> tuple[str, int, bool]:
        """Return the text of a session's transcript from *offset* on, the offset of its end, and whether the session
        has ended, so that no more will come.

        Raises:
            LookupError: there is no such session, or its supervisor keeps no transcripts.
        """
        with self._open_reader() as reader:
            row = reader.entity(session_id)
        if row is None or row.kind != Kind.SESSION:
            raise _unknown(Kind.SESSION, session_id)
        if self._state is None:
            raise LookupError("this supervisor has no state directory, and keeps no transcripts")
        return *follow_from(self._state.transcript(session_id), offset), row.ended

    # ------------------------------------------------------------------ amounts
    def usage(self, entity_id: str | None) -> tuple[Amounts, list[Usage]]:
        """Return the usage of all sessions together, and the usage of each entity, or of *entity_id*."""
        with self._open_reader() as reader:
            sums = self._usage(reader)
            facts = [one for one in reader.events_named(USAGE, archived=True) if one.outcome == "fact"]
        # Each record has the usage of its session so far: the last one counts.
        own = {one.entity_id: msgspec.convert(one.metadata["used"], Amounts) for one in facts}
        found = [Usage(id=one, used=used) for one, used in sums.items() if entity_id in (None, one)]
        return sum(own.values(), Amounts()), found

    def _usage(self, reader: Reader) -> Mapping[str, Amounts]:
        def parent_of(session_id: str) -> str | None:
            row = reader.entity(session_id)
            return row.parent_id if row is not None else None

        return UsageTotals(reader.events_named(*USAGE_EVENTS, archived=True), parent_of).sums()

    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """Return the tasks that were given up."""
        with self._open_reader() as reader:
            return dead_letters(reader.entities())


def _line(row: EntityRow, shown: EntityLine) -> Line:
    values = {name: getattr(shown, name) for name in EntityLine.__struct_fields__}
    return Line(**values, born_at=row.born_at, changed_at=row.changed_at, seq=row.born_seq)


def _unknown_run(run: str) -> LookupError:
    return LookupError(f"id: no run has the id {run!r}; GET /api/v1/runs lists the ids")


def _unknown(kind: Kind, entity_id: str) -> LookupError:
    return LookupError(f"id: no {kind} has the id {entity_id!r}; GET /api/v1/{kind}s?ended=true lists the ids")
