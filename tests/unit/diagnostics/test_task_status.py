"""Status texts of workstreams, tasks, task runs, jobs and workers, and the list of tasks that were given up."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from supervisor.diagnostics.state_times import StateTimes, time_of_day
from supervisor.diagnostics.task_status import DeadLetter, TaskStatus, dead_letters
from supervisor.diagnostics.tree_view import ps, tree
from supervisor.ports import EntityRow
from tests.cli.live_kit import record

STREAM = "r1"
RETRY = "at once: supervisor retry r1#a"


def row(number: int, kind: str, entity: str, parent: str | None = None, **more: Any) -> EntityRow:
    fields: dict[str, Any] = {"state": "OPEN", "ended": False, "born_at": float(number), "changed_at": number + 0.5}
    fields |= more
    data = msgspec.json.encode(fields.pop("data", {}))
    return EntityRow(kind=kind, id=entity, parent_id=parent, data=data, entity_seq=1, born_seq=number, **fields)


def task(number: int, name: str, state: str, *, ended: bool = False, **data: Any) -> EntityRow:
    told = {"workstream": STREAM, "name": name, "max_retries": 3, **data}
    return row(number, "task", f"r1#{name}", STREAM, state=state, ended=ended, data=told)


def run(number: int, name: str, state: str, *, ended: bool = False, **data: Any) -> EntityRow:
    told = {"max_attempts": 5, "probes_max": 3, **data}
    return row(number, "run", f"r1#{name}:run", f"r1#{name.partition('-')[0]}", state=state, ended=ended, data=told)


def said(*rows: EntityRow) -> dict[str, str]:
    standing = TaskStatus(rows)
    return {one.id: standing.note(one) for one in rows}


# ------------------------------------------------------------------------------------------------------------ tasks
def test_a_held_task_says_by_whom_and_at_which_attempt() -> None:
    """The text of a claimed task names its session, and the attempt of its newest task run."""
    rows = (
        task(1, "build", "IN_PROGRESS", claimed_by="build-2", retries=1),
        run(2, "build", "CIRCUIT_OPEN", attempts=5),
        run(3, "build-2", "IN_PROGRESS", attempts=2, failures=1),
    )
    assert said(*rows)["r1#build"] == "session build-2, attempt 2 of 5, retry 1 of 3"
    claimed = task(1, "build", "CLAIMED", claimed_by="build")
    assert said(claimed)["r1#build"] == "session build"
    assert said(claimed, run(2, "build", "PENDING", attempts=0))["r1#build"] == "session build"


def test_a_task_says_whom_it_waits_for() -> None:
    """The text of an open task names the dependencies in its own workstream that are not closed."""
    rows = (
        task(1, "a", "CLOSED", ended=True),
        task(2, "b", "IN_PROGRESS"),
        row(
            3,
            "task",
            "r2#c",
            "r2",
            state="CLOSED",
            data={"workstream": "r2", "name": "c"},
        ),
        task(4, "c", "OPEN"),
        task(5, "d", "OPEN", waiting_for=["a", "b", "c"]),
    )
    assert said(*rows)["r1#d"] == "waits for b, c"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("OPEN", "waits for b"),
        ("WAITING_FOR_SUBTASKS", "waits for b"),
        ("BLOCKED", "waits for b, a key: supervisor task unblock r1#whole"),
    ],
)
def test_a_task_that_waits_says_for_what(state: str, words: str) -> None:
    """The text of a task that waits for subtasks or is blocked names them, without those that are closed or missing."""
    rows = (
        task(1, "a", "CLOSED", ended=True),
        task(2, "b", "OPEN"),
        task(3, "whole", state, waiting_for=["r1#a", "r1#b", "a key"]),
    )
    assert said(*rows)["r1#whole"] == words


def test_a_task_that_waits_for_a_person_says_so() -> None:
    """The text of a planned task, and of a task whose result waits for approval, says so."""
    rows = (
        task(1, "a", "PLANNED", waiting_for=["b"]),
        task(2, "b", "PENDING_APPROVAL"),
        task(3, "c", "PENDING_APPROVAL", ended=True),
    )
    assert said(*rows) == {
        "r1#a": "waits to be approved: supervisor approve r1#a",
        "r1#b": "its result waits to be approved: supervisor approve r1#b",
        "r1#c": "its result waits to be approved: supervisor approve r1#c",
    }


def test_a_command_in_a_text_can_be_typed_as_it_stands() -> None:
    """A command names the task by its id, which says of which run it is, and has the options that the reader needs."""
    again = row(1, "task", "r2#a", STREAM, state="PLANNED", data={"workstream": STREAM, "name": "a"})
    note = TaskStatus([again], options=" --state-dir sd").note(again)
    assert note == "waits to be approved: supervisor approve r2#a --state-dir sd"


def test_a_task_between_two_tries_says_what_is_waited_for() -> None:
    """The text of a task between two attempts shows the time of the next attempt or probe, and the command that makes
    it now."""
    words = {
        "RETRYING": f"attempt 2 of 5 ended, the next one comes not before {time_of_day(6.5)} ({RETRY}); it broke",
        "CIRCUIT_OPEN": (
            f"2 attempts, circuit open, the next probe comes not before {time_of_day(62.5)} ({RETRY}); it broke"
        ),
        "HALF_OPEN": "2 attempts, circuit half open, probe 1 of 3; it broke",
        "PENDING": "waits for a worker",
    }
    for state, expected in words.items():
        rows = (
            task(1, "a", "OPEN"),
            run(2, "a", state, attempts=2, failures=2, delay_s=4.0, probes=1, timed_out=True, last_error="it broke"),
        )
        assert said(*rows)["r1#a"] == expected


def test_a_task_says_that_its_work_is_checked_or_merged() -> None:
    """The text of a task whose agent is done says since when its work is checked, or that its work is being merged."""
    checked = (task(1, "a", "IN_PROGRESS", claimed_by="a"), run(2, "a", "VALIDATING", attempts=1))
    assert said(*checked)["r1#a"] == f"session a, its work is checked since {time_of_day(2.5)}"
    assert said(task(1, "a", "DONE"))["r1#a"] == "its work is being merged"


def test_a_task_that_is_to_be_claimed_again_says_when() -> None:
    """The text of an open task with a delay shows the time before which nobody claims the task."""
    rows = (task(1, "a", "OPEN", delay_s=4.0), run(2, "a-2", "PENDING"))
    assert said(*rows)["r1#a"] == f"is tried again not before {time_of_day(5.5)} ({RETRY})"
    assert said(task(1, "a", "CLAIMED", delay_s=4.0, claimed_by="a"))["r1#a"] == "session a"


def test_a_delay_counts_from_the_entry_into_the_state() -> None:
    """The time of the next attempt is computed from the record with which the run began to wait, not from later
    records."""
    times = StateTimes()
    for at, before, after in ((100.0, "FAILED", "RETRYING"), (110.0, "RETRYING", "RETRYING")):
        times.take(record("run", "r1#a:run", "any", after, before=before, at=at))
    waits = run(2, "a", "RETRYING", attempts=1, delay_s=4.0)
    assert time_of_day(104.0) in TaskStatus([waits], times).note(waits)


def test_a_workstream_names_the_providers_that_fail() -> None:
    """While the breaker of a provider is open, the text of a living workstream says why, and until when no agent is
    launched."""
    stream, times = row(1, "workstream", STREAM, state="executing", data={"tasks": 0}), StateTimes()
    assert TaskStatus([stream], times).note(stream) == "0 of 0 tasks completed"
    for circuit, words in (("open", True), ("half_open", False), ("open", True), ("closed", False)):
        told = {"provider": "claude:x", "circuit": circuit, "free_at_s": 1060.0}
        times.take(record("task", "r1#a", "ProviderBreaker", "OPEN", at=1000.0, outcome="fact", reason="busy", **told))
        expected = f"the provider claude:x fails (busy): no agent is launched before {time_of_day(1060.0)}"
        assert (expected in TaskStatus([stream], times).note(stream)) is words


def test_a_task_that_has_ended_says_how_and_why() -> None:
    """The text of a task that has ended is the word for its end, and for a failed task the reason and the retries."""
    rows = (
        task(1, "a", "FAILED", last_failure="no compiler", retries=3, waiting_for=["b"]),
        task(2, "b", "CLOSED", ended=True, retries=1, waiting_for=["x"]),
        task(3, "c", "CANCELLED", ended=True, waiting_for=["x"], last_failure="an old one"),
    )
    assert said(*rows) == {
        "r1#a": "failed, no compiler, retry 3 of 3",
        "r1#b": "completed",
        "r1#c": "cancelled",
    }


def test_a_task_says_where_its_work_is_kept() -> None:
    """The text of a failed or cancelled task names the checkpoint of its task run; a closed task's text does not."""
    kept = {"saved_in": "FAILED", "saved_as": "copy-1"}
    for state, words in (("FAILED", "failed"), ("CANCELLED", "cancelled")):
        rows = (task(1, "a", state, ended=True), run(2, "a", "FAILED", ended=True, **kept))
        assert said(*rows)["r1#a"] == f"{words}, checkpoint copy-1 (FAILED)"
    rows = (task(1, "a", "CLOSED", ended=True), run(2, "a", "COMPLETED", ended=True, **kept))
    assert said(*rows)["r1#a"] == "completed"


def test_a_task_from_before_workstreams_is_told_too() -> None:
    """A task of an older journal, without a workstream, shows the session that claimed it."""
    assert said(row(1, "task", "r1#a", state="CLAIMED", data={"claimed_by": "a"})) == {"r1#a": "session a"}
    assert said(row(1, "task", "r1#a", data={})) == {"r1#a": ""}


# ----------------------------------------------------------------------------------------- workstreams, runs, the rest
def test_a_workstream_counts_its_tasks() -> None:
    """The text of a workstream counts its closed tasks and, if there are any, its failed, cancelled, waiting and
    archived ones."""
    stream = row(1, "workstream", STREAM, state="executing", data={"tasks": 6})
    closed = task(2, "a", "CLOSED", ended=True)
    assert said(stream, closed)[STREAM] == "1 of 6 tasks completed, 5 not in the journal"
    others = (
        task(3, "b", "FAILED"),
        task(4, "c", "CANCELLED", ended=True),
        task(5, "d", "PLANNED"),
        task(6, "e", "PENDING_APPROVAL"),
        row(7, "task", "r2#x", data={"workstream": "r2", "name": "x"}, state="FAILED"),
    )
    again = task(8, "f", "OPEN")
    assert said(stream, closed, *others, again)[STREAM] == (
        "1 of 6 tasks completed, 1 failed, 1 cancelled, 2 to be approved"
    )
    failed = row(1, "workstream", STREAM, state="failed", data={"tasks": 1, "last_error": "1 of 1 tasks failed"})
    assert said(failed, task(2, "a", "FAILED"))[STREAM] == "0 of 1 tasks completed, 1 failed"
    assert said(failed)[STREAM] == "0 of 1 tasks completed, 1 not in the journal, 1 of 1 tasks failed"


@pytest.mark.parametrize(
    ("state", "data", "words"),
    [
        ("PENDING", {}, ""),
        ("IN_PROGRESS", {"attempts": 1}, "attempt 1 of 5"),
        ("IN_PROGRESS", {"attempts": 6, "probe": True, "probes": 1}, "probe 1 of 3"),
        (
            "RETRYING",
            {"attempts": 1, "delay_s": 2.5, "last_error": "x"},
            f"attempt 1 of 5 ended, the next one comes not before {time_of_day(4.0)} ({RETRY}), x",
        ),
        (
            "CIRCUIT_OPEN",
            {"attempts": 5, "probes": 2, "timed_out": True},
            f"5 attempts, circuit open, the next probe comes not before {time_of_day(61.5)} ({RETRY})",
        ),
        ("CIRCUIT_OPEN", {"attempts": 5, "probes": 3}, "5 attempts, circuit open for good"),
        ("CIRCUIT_OPEN", {"attempts": 1, "permanent": True}, "1 attempt, circuit open for good"),
        ("HALF_OPEN", {"attempts": 5, "probes": 2}, "5 attempts, circuit half open, probe 2 of 3"),
        ("COMPLETED", {"attempts": 2, "failures": 1, "last_error": "x"}, "attempt 2 of 5"),
        ("IN_PROGRESS", {"attempts": 3, "max_attempts": 1}, "attempt 1 of 1"),  # two failed uncharged
    ],
)
def test_a_run_says_its_attempts_and_its_circuit(state: str, data: dict[str, Any], words: str) -> None:
    """The text of a task run shows its attempts, its circuit, and the last error unless the task run is completed."""
    assert said(run(1, "a", state, **data))["r1#a:run"] == words


def test_a_job_says_where_it_is_worked_on() -> None:
    """The text of a job shows its worker and its retries."""
    held = row(1, "job", "r1#a:job", data={"worker_id": "worker:local", "retry_count": 2, "max_retries": 4})
    assert said(held) == {"r1#a:job": "on worker local, retry 2 of 4"}
    assert said(row(1, "job", "r1#a:job", data={"retry_count": 0})) == {"r1#a:job": ""}


def test_a_worker_says_how_full_it_is() -> None:
    """The text of a worker shows its slots taken, whether it drains, and its capabilities; an ended worker shows no
    slots."""
    data = {"active_tasks": 1, "max_concurrent_tasks": 2, "capabilities": ["go", "role:backend"], "draining": True}
    busy = row(1, "worker", "worker:one", state="busy", data=data)
    gone = row(2, "worker", "worker:two", state="shutdown", ended=True, data={"capabilities": ["go"]})
    assert said(busy, gone) == {"worker:one": "1 of 2 slots taken, draining, go role:backend", "worker:two": "go"}
    able = row(1, "worker", "worker:three", data={"max_concurrent_tasks": 6, "capabilities": ["*"]})
    assert said(able) == {"worker:three": "0 of 6 slots taken"}


def test_of_what_is_no_work_nothing_is_said() -> None:
    """A session has no status text of this kind."""
    assert said(row(1, "session", "lead", data={"last_error": "x"})) == {"lead": ""}


def test_the_tree_and_the_list_have_these_words() -> None:
    """The tree and ``ps`` show these texts, with tasks below their workstream, and task runs and jobs below their
    task."""
    rows = [
        row(1, "workstream", STREAM, state="executing", data={"tasks": 1}),
        task(2, "a", "IN_PROGRESS", claimed_by="a"),
        run(3, "a", "IN_PROGRESS", attempts=1),
        row(4, "job", "r1#a:job", "r1#a", state="running", data={"worker_id": "worker:local"}),
        row(5, "worker", "worker:local", state="busy", data={"active_tasks": 1, "max_concurrent_tasks": 1}),
        row(6, "session", "a"),
    ]
    nodes = tree(rows)
    assert [(one.id, one.note) for one in nodes] == [
        (STREAM, "0 of 1 tasks completed"),
        ("worker:local", "1 of 1 slots taken"),
        ("a", ""),
    ]
    (shown,) = nodes[0].children
    assert (shown.id, shown.note) == ("r1#a", "session a, attempt 1 of 5")
    assert [(one.id, one.note) for one in shown.children] == [
        ("r1#a:run", "attempt 1 of 5"),
        ("r1#a:job", "on worker local"),
    ]
    assert {one.id: one.note for one in ps(rows, now=9.0)}["r1#a"] == "session a, attempt 1 of 5"


# ------------------------------------------------------------------------------------------------------ dead letters
def test_the_exhausted_are_counted_over_all_their_runs() -> None:
    """The entry of a given-up task counts the attempts of all its task runs, and has the last error."""
    rows = (
        task(1, "a", "FAILED", last_failure="no compiler"),
        run(2, "a", "CIRCUIT_OPEN", attempts=5),
        run(3, "a-2", "CIRCUIT_OPEN", attempts=2),
        task(4, "b", "OPEN", last_failure="earlier"),
        task(5, "c", "FAILED"),
    )
    assert dead_letters(rows) == (
        DeadLetter(task="a", entity_id="r1#a", workstream=STREAM, attempts=7, runs=2, last_error="no compiler"),
        DeadLetter(task="c", entity_id="r1#c", workstream=STREAM, attempts=0, runs=0, last_error=""),
    )
