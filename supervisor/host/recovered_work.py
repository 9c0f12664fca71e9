"""Work of an earlier supervisor's plans, as a takeover found it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from supervisor.plans.earlier_runs import EarlierRuns
from supervisor.ports import EntityRow
from supervisor.sessions.journal_state import RecordedOutcome


class RecoveredWork(NamedTuple):
    """Recovered work of an earlier supervisor's plans."""

    work: set[str]
    """Ids of tasks, runs, jobs, workers and workstreams that no plan has taken over yet."""
    answers: Mapping[str, RecordedOutcome]
    """Last recorded outcome of each session."""
    rows: Mapping[str, EntityRow]
    """All work and all sessions of the journal as found at the takeover, by id."""
    earlier: EarlierRuns
    """The newest run of each plan, as found at the takeover; results of runs that have ended may not be reported."""
