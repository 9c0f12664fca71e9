"""The drills of what records follow from, and of kills amid more than one record: they notice who is otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.runtime.journal_writer import Cause
from supervisor.simulation import running
from supervisor.simulation.drills.work.chains import CHAINS
from supervisor.simulation.drills.work.cut import CUT
from supervisor.simulation.engine import Schedule
from supervisor.simulation.running import simulate
from supervisor.simulation.scenario import named
from supervisor.work import attempt_runner as execution
from supervisor.work import commands
from supervisor.work.attempt_runner import Execution
from supervisor.work.blocking import Blocking
from supervisor.work.completion_pipeline import Closing
from supervisor.work.plan_recovery import Continuing
from supervisor.work.task_execution import Case
from supervisor.work.workers import Pool
from supervisor.work.workstream import Stream


def _problems(monkeypatch: pytest.MonkeyPatch, schedule: Schedule = Schedule.FIFO) -> str:
    """What these drills find, and no other one."""
    monkeypatch.setattr(running, "OFFICES", (*CHAINS, *CUT))
    drawn = next(one for one in map(named("offices").draw, range(100)) if one.schedule is schedule)
    return "; ".join(simulate(drawn).problems)


@pytest.mark.parametrize("schedule", list(Schedule))
def test_all_is_well(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is found, in whatever order steps are taken."""
    assert not _problems(monkeypatch, schedule)


async def _nothing(*given: Any, **more: Any) -> None:
    """Nobody does anything."""


async def _none(*given: Any) -> list[str]:
    return []


async def _zero(*given: Any) -> int:
    return 0


async def _uncounted(stream: Stream, known: int, fresh: int) -> None:
    if fresh:
        await stream.added(fresh)


def _all_named(held: Continuing, task_id: str) -> str:
    row = held._last.get(("job", task_id))  # type: ignore[call-overload]
    return row.id if row is not None else ""


@pytest.mark.parametrize(
    ("whose", "name", "other", "drill"),
    [
        (Case, "cause", property(lambda case: Cause(actor="plan")), "chains"),
        (Continuing, "unclaimed", _none, "unclaimed"),
        (Stream, "go_on", _uncounted, "quiescence"),
        (Continuing, "_last_job", _all_named, "dependency_satisfaction"),
        (Continuing, "_end_place", _nothing, "put_in_order"),
        (Closing, "tell_run_cancelled", _nothing, "given_up_in_place"),
        (Continuing, "untouched", lambda held, cases: [], "given_up_untouched"),
        (Pool, "stop_waiting", lambda pool: None, "given_up_unregistered"),
        (Execution, "_began_seq", _zero, "asked_again"),
        (Blocking, "_may_begin", lambda blocking, case: True, "through_conditions"),
        (commands, "ID_MAX", 199, "named_commands"),
        (execution, "_is_late", lambda outcome: False, "hopeless"),
        (Pool, "_shut_down", lambda pool, worker: None, "told_to_drain"),
    ],
)
def test_what_is_otherwise_is_noticed(
    whose: Any, name: str, other: Any, drill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them is found by the drill that is for it."""
    monkeypatch.setattr(whose, name, other)
    assert f"{drill}:" in _problems(monkeypatch)
