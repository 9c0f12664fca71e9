"""Words for the ends of tasks, sessions and runs, and the notes beside them."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.diagnostics.outcomes import Outcomes
from supervisor.diagnostics.state_times import StateTimes, time_of_day
from supervisor.diagnostics.tree_view import ps
from supervisor.lifecycles.task import SESSION_ENDS, TaskEnd
from supervisor.ports import EntityRow
from tests.unit.diagnostics.test_task_status import row, run, task

STREAM = "r1"


def session(name: str, state: str = "Stopped", **data: Any) -> EntityRow:
    return row(9, "session", name, state=state, ended=state == "Stopped", data=data)


@pytest.mark.parametrize("end", TaskEnd)
def test_a_session_has_the_end_of_the_task_that_it_holds(end: TaskEnd) -> None:
    """The word of a session is that of its task, whatever the session itself says; a session of another task keeps its
    own."""
    state = {"completed": "CLOSED", "failed": "FAILED"}.get(end, "CANCELLED")
    held = task(1, "a", state, claimed_by="a-2", ended_as=end.value if state == "CANCELLED" else "")
    own, other = session("a-2", outcome="aborted", last_error="too slow"), session("b", outcome="aborted")
    outcomes = Outcomes([held, own, other])
    assert [outcomes.of(one) for one in (held, own, other)] == [end, end, "aborted"]


@pytest.mark.parametrize("end", SESSION_ENDS)
def test_a_session_without_its_task_has_the_reason_of_its_close(end: TaskEnd) -> None:
    """If the task is in an archive, or another session has claimed it since, the reason of the close decides."""
    closed = session("a", outcome="completed", last_error=SESSION_ENDS[end])
    assert (Outcomes([closed]).of(closed), Outcomes([closed]).reason(closed)) == (end, "")


def test_what_has_not_ended_has_no_word() -> None:
    """Open tasks, living sessions, running plans, and entities of other kinds have no outcome."""
    rows = [task(1, "a", "OPEN"), session("a", "Running"), run(2, "a", "COMPLETED")]
    rows.append(row(3, "workstream", STREAM, state="executing", data={"tasks": 1}))
    assert [Outcomes(rows).of(one) for one in rows] == ["", "", "", ""]


@pytest.mark.parametrize(
    ("state", "ends", "word"),
    [
        ("completed", ["completed", "skipped"], "completed"),
        ("cancelled", ["rejected", "skipped"], "completed"),
        ("cancelled", ["rejected", "aborted"], "cancelled"),
        ("cancelled", ["rejected"], "cancelled"),
        ("failed", ["rejected", "skipped"], "failed"),
    ],
)
def test_a_run_is_completed_if_all_of_its_tasks_ended_well(state: str, ends: list[str], word: str) -> None:
    """A rejected task is no failure of a run; a task that is not in the journal may be one."""
    stream = row(1, "workstream", STREAM, state=state, ended=True, data={"tasks": 2})
    tasks = [task(2 + number, end, "CANCELLED", ended=True, ended_as=end) for number, end in enumerate(ends)]
    assert Outcomes([stream, *tasks]).of(stream) == word


@pytest.mark.parametrize(
    ("state", "more", "note"),
    [
        ("Running", {}, ""),
        ("Running", {"consecutive_errors": 1}, "its supervisor ended"),
        ("CoolingDown", {}, "its supervisor ended"),
        ("Stopped", {"outcome": "failed"}, "failed, its supervisor ended"),
    ],
)
def test_an_error_is_shown_as_long_as_it_matters(state: str, more: dict[str, Any], note: str) -> None:
    """A healthy session does not show the error before its agent started again."""
    (line,) = ps([session("a", state, last_error="its supervisor ended", **more)], now=20.0)
    assert line.note.rpartition(":")[2].partition(", ")[2] == note if state == "CoolingDown" else line.note == note


def test_one_wait_has_one_time() -> None:
    """A task whose run and session both wait before the next launch shows the later time, and its session none."""
    for run_delay_s, later in ((1.0, 9.5 + 4.0), (60.0, 2.5 + 60.0)):
        rows = [
            task(1, "a", "IN_PROGRESS", claimed_by="a"),
            run(2, "a", "RETRYING", attempts=1, failures=1, delay_s=run_delay_s),
            session("a", "CoolingDown", consecutive_errors=2, last_error="exit status 3"),
        ]
        notes = {one.id: one.note for one in ps(rows, now=20.0, times=StateTimes())}
        assert f"the next one comes not before {time_of_day(later)}" in notes["r1#a"]
        assert notes["a"] == "exit status 3"
