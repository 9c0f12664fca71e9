"""Runs of plans in a line each: how far they are, how they ended, what they cost. Pure.

Rows come in, values for a renderer come out; *now* is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from supervisor.diagnostics.outcomes import Outcomes, data_of
from supervisor.lifecycles.run_ids import run_of
from supervisor.lifecycles.task import ENDS_WELL
from supervisor.lifecycles.types import Kind
from supervisor.lifecycles.workstream import WorkstreamData
from supervisor.policies.budgets import Amounts
from supervisor.ports import EntityRow

_UNUSED = Amounts()


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a plan. ``plan`` is the name of its workstream; ``outcome`` is the word for its end, ``""`` before the
    end. ``supervised`` is false for a run that had not ended when its supervisor died. ``tasks`` counts the tasks, and
    ``done`` those that are completed, skipped or rejected. ``started_at`` is Unix time; ``took_s`` are the seconds to
    the end, to the last record of an interrupted run and its tasks, or to *now*. ``tokens`` and ``cost_usd`` are what
    the agents of its tasks have reported. ``held_by`` is the obstacle that holds the run, with the command that
    helps; ``""`` for none."""

    id: str
    plan: str
    state: str
    outcome: str
    supervised: bool
    tasks: int
    done: int
    tokens: int
    cost_usd: float
    started_at: float
    took_s: float
    held_by: str = ""

    @property
    def words(self) -> str:
        """The outcome, or before the end the state, as text for people."""
        if self.held_by:
            return f"{self.state}, held"
        return self.outcome or (self.state if self.supervised else f"interrupted ({self.state})")


def summarize_runs(
    rows: Sequence[EntityRow], used: Mapping[str, Amounts], *, now: float, supervised: bool
) -> tuple[RunSummary, ...]:
    """Return the runs among *rows*, the newest first. *used* is usage by entity id, *supervised*: a supervisor runs."""
    outcomes, last_at = Outcomes(rows), dict[str, float]()
    for row in rows:
        run = run_of(row.id)
        last_at[run] = max(last_at.get(run, 0.0), row.changed_at)
    runs = sorted((row for row in rows if row.kind == Kind.WORKSTREAM), key=lambda row: row.born_seq, reverse=True)
    return tuple(
        RunSummary(
            id=row.id,
            plan=str(data.get("name", "")),
            state=row.state,
            outcome=outcomes.of(row),
            supervised=supervised or row.ended,
            tasks=int(data.get("tasks") or 0),
            done=sum(end in ENDS_WELL for end in outcomes.of_tasks(row.id)),
            tokens=used.get(row.id, _UNUSED).tokens,
            cost_usd=round(used.get(row.id, _UNUSED).cost_usd, 6),
            started_at=row.born_at,
            held_by=_obstacle(data),
            took_s=row.lasted_s if row.ended else round((now if supervised else last_at[row.id]) - row.born_at, 6),
        )
        for row in runs
        for data in [data_of(row)]
    )


def merge_obstacle(row: EntityRow) -> str:
    """Return what refuses the merge of a run, the row of whose workstream is given, with the command that helps: the
    run is over until a person has merged it. ``""`` if nothing does."""
    data = msgspec.json.decode(row.data, type=WorkstreamData)
    return _obstacle(data_of(row)) if not row.ended and data.waits_for_person else ""


def _obstacle(data: Mapping[str, Any]) -> str:
    """Return the obstacle in the data of a workstream as text, with the command that helps; ``""`` for none."""
    held_by = data.get("held_by")
    return f"{held_by['what']}; {held_by['fix']}" if held_by else ""
