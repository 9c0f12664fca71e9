"""Runs of plans, from the journal's rows: a list, and one run with the graph of its tasks. Pure.

A task that was moved to an archive has no row in the journal, and is missing in ``counts`` and in the graph; ``tasks``
counts it all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from supervisor.diagnostics.outcomes import data_of
from supervisor.diagnostics.state_times import StateTimes
from supervisor.diagnostics.tree_view import NOTHING, Notes
from supervisor.lifecycles.types import Kind
from supervisor.policies.budgets import Amounts
from supervisor.ports import EntityRow


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """Run of a plan. ``began_at`` and ``ended_at`` are Unix times, ``lasted_s`` are the seconds until the end or until
    now. ``outcome`` is the word for the end, ``""`` before the end. ``tasks`` is the number of tasks of the plan;
    ``counts`` has the number of tasks by the word for their end, and by their state where they have not ended.
    ``resumes`` is the run whose tasks this run repeats, and ``key`` the idempotency key of the request for the run.
    ``used`` is the usage that its agents have reported."""

    id: str
    plan: str
    state: str
    outcome: str
    ended: bool
    began_at: float
    ended_at: float | None
    lasted_s: float
    tasks: int
    counts: dict[str, int]
    note: str = ""
    resumes: str = ""
    key: str = ""
    used: Amounts | None = None
    seq: int = 0


class TaskNode(msgspec.Struct, frozen=True, kw_only=True):
    """Task in the graph of a run. ``depends_on`` are the ids of the tasks that must end before it begins, ``part_of``
    is the task that was split into it, ``session`` the session that works on it or did so last."""

    id: str
    name: str
    state: str
    outcome: str
    depends_on: tuple[str, ...]
    part_of: str = ""
    session: str = ""
    claims: int = 0
    note: str = ""
    used: Amounts | None = None


class RunGraph(RunLine, frozen=True, kw_only=True):
    """Run of a plan with its tasks, in the order of their births."""

    graph: tuple[TaskNode, ...] = ()


def list_runs(
    rows: Collection[EntityRow],
    *,
    now: float,
    used: Mapping[str, Amounts] = NOTHING,
    times: StateTimes | None = None,
    options: str = "",
) -> list[RunLine]:
    """Return the runs among *rows*, the newest first. *used* is usage by entity id; *now* is the Unix time at which the
    list is read; *times* and *options* are those of :class:`~supervisor.diagnostics.tree_view.Notes`."""
    rows = list(rows)
    notes, tasks = Notes(rows, times or StateTimes(), options, now=now), _tasks_by_run(rows)
    runs = [row for row in rows if row.kind == Kind.WORKSTREAM]
    runs.sort(key=lambda row: row.born_seq, reverse=True)
    return [RunLine(**_fields(row, tasks.get(row.id, ()), notes, used)) for row in runs]


def read_run(
    rows: Collection[EntityRow],
    run: str,
    *,
    now: float,
    used: Mapping[str, Amounts] = NOTHING,
    times: StateTimes | None = None,
    options: str = "",
) -> RunGraph | None:
    """Return a run with the graph of its tasks, ``None`` if *rows* do not have it; the arguments are those of
    :func:`list_runs`."""
    rows = list(rows)
    row = next((one for one in rows if one.kind == Kind.WORKSTREAM and one.id == run), None)
    if row is None:
        return None
    notes, tasks = Notes(rows, times or StateTimes(), options, now=now), _tasks_by_run(rows).get(run, [])
    ids = {str(data_of(one).get("name", "")): one.id for one in tasks}
    graph = tuple(_node(one, ids, notes, used) for one in tasks)
    return RunGraph(**_fields(row, tasks, notes, used), graph=graph)


def _tasks_by_run(rows: Iterable[EntityRow]) -> dict[str, list[EntityRow]]:
    found: dict[str, list[EntityRow]] = {}
    for row in sorted(rows, key=lambda row: row.born_seq):
        if row.kind == Kind.TASK:
            found.setdefault(str(data_of(row).get("workstream", "")), []).append(row)
    return found


def _fields(row: EntityRow, tasks: Collection[EntityRow], notes: Notes, used: Mapping[str, Amounts]) -> dict[str, Any]:
    data = data_of(row)
    return {
        "id": row.id,
        "plan": str(data.get("name", "")),
        "state": row.state,
        "outcome": notes.outcomes.of(row),
        "ended": row.ended,
        "began_at": row.born_at,
        "ended_at": row.changed_at if row.ended else None,
        "lasted_s": row.lasted_s if row.ended else round(max(0.0, notes.now - row.born_at), 6),
        "tasks": int(data.get("tasks", 0)),
        "counts": dict(Counter(notes.outcomes.of(one) or one.state for one in tasks)),
        "note": notes.of(row, data),
        "resumes": str(data.get("resumes", "")),
        "key": str(data.get("key", "")),
        "used": used.get(row.id),
        "seq": row.born_seq,
    }


def _node(row: EntityRow, ids: Mapping[str, str], notes: Notes, used: Mapping[str, Amounts]) -> TaskNode:
    data = data_of(row)
    return TaskNode(
        id=row.id,
        name=str(data.get("name", "")),
        state=row.state,
        outcome=notes.outcomes.of(row),
        # A task of the run that this run resumes has no row here: its name stands for it.
        depends_on=tuple(ids.get(one, one) for one in data.get("depends_on", ())),
        part_of=str(data.get("part_of", "")),
        session=str(data.get("claimed_by", "")),
        claims=int(data.get("claims", 0)),
        note=notes.of(row, data),
        used=used.get(row.id),
    )
