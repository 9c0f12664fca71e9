"""A run of a plan with the graph of its tasks, from the journal's rows. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import msgspec

from supervisor.diagnostics.outcomes import data_of
from supervisor.diagnostics.run_summary import RunSummary, summarize_runs
from supervisor.diagnostics.state_times import StateTimes
from supervisor.diagnostics.tree_view import NOTHING, Notes
from supervisor.lifecycles.types import Kind
from supervisor.policies.budgets import Amounts
from supervisor.ports import EntityRow


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


class RunGraph(RunSummary, frozen=True, kw_only=True):
    """Run of a plan with its tasks, in the order of their births. ``counts`` has the number of tasks by the word for
    their end, and by their state where they have not ended. ``resumes`` is the run whose tasks this run repeats, and
    ``key`` the idempotency key of the request for the run; ``used`` is the usage that its agents have reported."""

    note: str
    resumes: str
    key: str
    counts: dict[str, int]
    used: Amounts | None
    graph: tuple[TaskNode, ...]


def read_run(
    rows: Collection[EntityRow],
    run: str,
    *,
    now: float,
    used: Mapping[str, Amounts] = NOTHING,
    times: StateTimes | None = None,
    supervised: bool = True,
) -> RunGraph | None:
    """Return a run with the graph of its tasks, ``None`` if *rows* do not have it. *used* is usage by entity id; *now*
    is the Unix time at which the run is read; *times* are the times of tasks that wait for a time; *supervised*: a
    supervisor runs."""
    row = next((one for one in rows if one.kind == Kind.WORKSTREAM and one.id == run), None)
    if row is None:
        return None
    of_run = [one for one in rows if one.kind == Kind.TASK and data_of(one).get("workstream") == run]
    tasks = sorted(of_run, key=lambda one: one.born_seq)
    (summary,) = summarize_runs([row, *tasks], used, now=now, supervised=supervised)
    notes, data = Notes(list(rows), times or StateTimes(), now=now), data_of(row)
    ids = {str(data_of(one).get("name", "")): one.id for one in tasks}
    return RunGraph(
        **{name: getattr(summary, name) for name in RunSummary.__struct_fields__},
        note=notes.of(row, data),
        resumes=str(data.get("resumes", "")),
        key=str(data.get("key", "")),
        counts=dict(Counter(notes.outcomes.of(one) or one.state for one in tasks)),
        used=used.get(row.id),
        graph=tuple(_node(one, ids, notes, used) for one in tasks),
    )


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
