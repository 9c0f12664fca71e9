"""Tests of the metadata checker: a task must wait for its subtasks as long as one of these goes on, and no longer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.verification.checkers.metadata import SUBTASKS_S, MetadataChecker
from tests.verification.records import append_of, record_of

BOUND_S = 60.0


class Bench:
    """Metadata checker with a task that is split into one subtask, and a list of the reports."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.now_s = 0.0
        self.account = MetadataChecker(lambda law, who, words: self.found.append(words), BOUND_S, lambda: self.now_s)
        for name in ("w0t0", "w0t0s0"):
            self.born(name)
        self.split()

    def hear(self, entity_id: str, event: str, state: str, outcome: str = "transition", **told: Any) -> None:
        record = record_of(
            entity_id.partition(":")[0],
            entity_id,
            event,
            monotonic_s=self.now_s,
            to_status=state,
            outcome=outcome,
            reason="",
            metadata=told,
        )
        self.account.wrote(append_of(record, state), self.now_s, lambda name: None)

    def born(self, name: str) -> None:
        self.hear(f"task:{name}", "Born", "OPEN", "born", name=name, workstream="workstream:w0", waiting_for=[])

    def split(self) -> None:
        self.hear("task:w0t0", "split", "WAITING_FOR_SUBTASKS", subtasks=["task:w0t0s0"])

    def work_on(self, name: str) -> None:
        """Record a new task run and a new job of the task."""
        limits = {"max_attempts": 3, "max_delay_s": 30.0, "cooldown_s": 5.0}
        self.hear(f"run:{name}", "Born", "PENDING", "born", task=f"task:{name}", **limits)
        told = {"run": f"run:{name}", "workstream_id": "workstream:w0", "max_retries": 2, "retry_count": 0}
        self.hear(
            f"job:{name}", "Born", "pending", "born", task=f"task:{name}", critical=False, capabilities=[], **told
        )

    def give_up(self) -> None:
        """Record that the task's wait for its subtask times out."""
        self.now_s += SUBTASKS_S
        self.hear("task:w0t0", "subtask_timed_out", "BLOCKED", subtask="task:w0t0s0")


@pytest.mark.parametrize(
    ("events", "found"),
    [
        (["retrying"], ["waits for another try, 1.000 s too long"]),
        (["retrying", "BLOCKED"], []),
        (["retrying", "BLOCKED", "OPEN"], ["waits for another try, 1.000 s too long"]),
        (["BLOCKED", "retrying", "OPEN"], ["waits for another try, 1.000 s too long"]),
        (["retrying", "BLOCKED", "CANCELLED"], []),
    ],
)
def test_a_delay_is_waited_for_unless_its_task_is_blocked(events: list[str], found: list[str]) -> None:
    """A job that waits too long for its next try is reported; while its task is blocked, the delay does not run, and
    starts anew when the task goes on."""
    bench = Bench()
    bench.born("w0t1")
    bench.work_on("w0t1")
    for event in events:
        bench.hear("job:w0t1" if event == "retrying" else "task:w0t1", "so it is", event, on=["a key"])
    bench.now_s += 30.0 + BOUND_S + 1.0
    bench.born("w0t9")
    assert bench.found == found


def test_the_end_of_its_own_attempt_shortens_no_wait() -> None:
    """The end of a task's own attempt does not shorten its wait for subtasks: the wait is reported only after its full
    time."""
    bench = Bench()
    bench.work_on("w0t0")
    bench.hear("run:w0t0", "executor_started", "IN_PROGRESS")
    bench.hear("run:w0t0", "execution_completed", "VALIDATING")
    bench.now_s += SUBTASKS_S + BOUND_S
    bench.born("w0t8")
    assert bench.found == []
    bench.now_s += 1.0
    bench.born("w0t9")
    assert bench.found == ["waits for its subtasks, 1.000 s too long"]
