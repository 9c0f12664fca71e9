"""Tests of the simulation in which many workers claim many tasks, and of the claim checker's reports."""

from __future__ import annotations

import json
from typing import Any

import pytest

from supervisor.cli.invocation import execute
from tests.verification.__main__ import group as verification
from tests.verification.claims import ClaimChecker, simulate_claims
from tests.verification.records import append_of, record_of


def test_no_task_is_lost_and_none_is_held_twice() -> None:
    """Twenty workers close three hundred tasks, though workers are lost and two supervisors are killed."""
    found = simulate_claims(1, workers=20, tasks=300)

    assert found.report.problems == ()
    assert found.closed == 300
    assert found.killed == 2
    assert found.silences > 0
    assert found.lost > found.recovered > 0
    assert found.claims > found.closed


def test_one_seed_is_one_run() -> None:
    """Two runs with the same seed have the same digest; a run with another seed has another digest."""
    digests = [simulate_claims(seed, workers=4, tasks=12, kills=1).report.digest for seed in (1, 1, 2)]

    assert digests[0] == digests[1] != digests[2]


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The command ``claims`` prints the result, and exits with 0 if no invariant was violated."""
    status = execute(verification, ["claims", "--workers", "4", "--tasks", "12", "--kills", "0", "--json"])
    told = json.loads(capsys.readouterr().out)

    assert status == 0
    assert (told["closed"], told["killed"], told["report"]["problems"]) == (12, 0, [])
    assert execute(verification, ["claims", "--workers", "4", "--tasks", "12", "--kills", "0"]) == 0
    assert "12 of 12 tasks closed by 4 workers" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------ the checker notices
class Log:
    """Claim checker with a worker of two slots and three jobs, and a list of the reports."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str, str]] = []
        self.account = ClaimChecker(lambda *words: self.said.append(words))
        self.receive("worker", "w", "registration_complete", "initializing", "idle", max_concurrent_tasks=2)
        for job in ("j1", "j2", "j3"):
            self.receive("job", job, "Born", "", "pending", outcome="born", parent=f"task:{job}")

    def receive(
        self,
        kind: str,
        who: str,
        event: str,
        before: str,
        after: str,
        *,
        outcome: str = "transition",
        parent: str | None = None,
        **metadata: Any,
    ) -> None:
        record = record_of(kind, who, event, from_status=before, to_status=after, outcome=outcome, metadata=metadata)
        one = append_of(record, after, parent)
        self.account.wrote([one])

    def take(self, job: str, token: int) -> None:
        self.receive("job", job, "worker_started", "queued", "running", worker_id="w", token=token)

    def leave(self, job: str) -> None:
        self.receive("job", job, "worker_lost", "running", "retrying")

    @property
    def broken(self) -> list[str]:
        return [law for law, _, _ in self.said]


def test_a_task_that_is_held_twice_is_noticed() -> None:
    """A second claim of a task that is held is reported."""
    log = Log()
    log.take("j1", 1)
    assert log.broken == []
    log.take("j1", 2)
    assert log.broken == ["one_holder"]


def test_a_fencing_token_that_does_not_grow_is_noticed() -> None:
    """A claim of a task with a fencing token that is not larger than the last one is reported, also after the first
    claim was released."""
    log = Log()
    log.take("j1", 5)
    log.leave("j1")
    log.take("j1", 5)
    assert log.broken == ["one_holder"]


def test_a_worker_with_more_jobs_than_slots_is_noticed() -> None:
    """A third job of a worker with two slots is reported."""
    log = Log()
    for number, job in enumerate(("j1", "j2", "j3"), 1):
        log.take(job, number)
    assert log.broken == ["capacity_limit"]


@pytest.mark.parametrize("state", ["idle", "shutdown"])
def test_a_worker_that_leaves_with_a_job_is_noticed(state: str) -> None:
    """A worker that becomes idle, or shuts down, while a job is running on the worker is reported."""
    log = Log()
    log.take("j1", 1)
    log.receive("worker", "w", "whatever", "busy", state)
    assert log.broken == ["resource_cleanup"]
    log.leave("j1")
    log.receive("worker", "w", "whatever", "busy", state)
    assert log.broken == ["resource_cleanup"]
