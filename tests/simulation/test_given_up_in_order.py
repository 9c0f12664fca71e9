"""A plan is given up while its tasks are worked on: in which order that is on record, whoever takes his step first; and
what its tasks did is not taken back before that."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.plans import Plan
from supervisor.simulation import host
from supervisor.simulation.scenario import parsed
from supervisor.simulation.works import plans
from tests.verification.checkers import simulate
from tests.verification.checkers.checkpoints import Savings

SCENARIO = """
name = "given-up"
[load]
customers = 1
works = 1.0
tasks = [3, 6]
[faults]
kinds = ["host.gives_up"]
rates = { "host.gives_up" = 1.0 }
[world]
operators = 0
schedules = ["shuffle", "window", "pct", "trio"]
"""


@pytest.mark.parametrize("seed", range(24))
def test_a_worker_lets_go_of_no_job_that_runs(seed: int) -> None:
    """Its word that it holds nothing comes after the end of every job that it held."""
    report = simulate(parsed("given-up", SCENARIO).draw(seed))
    assert report.problems == ()
    assert report.faults == {"host.gives_up": 1}


IN_PLACE = SCENARIO.replace('["host.gives_up"]', '["host.gives_up", "disk.locked"]').replace(
    '"host.gives_up" = 1.0', '"host.gives_up" = 1.0, "disk.locked" = 0.05'
)


def _owning(*args: Any, **options: Any) -> Plan:
    """Every task owns something, and is taken back there."""
    plan = plans.draw_plan(*args, **options)
    owned = [one.model_copy(update={"files": (one.id,), "rollback": True, "subtasks": ()}) for one in plan.tasks]
    return plan.model_copy(update={"tasks": tuple(owned), "approve_plan": False})


def test_nothing_is_taken_back_that_goes_on_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk is down: whoever starts on what that holds goes on with the attempt."""
    check, taken_back = Savings.check_over, list[str]()

    def looked_at(books: Savings, task: str) -> None:
        taken_back.append(task)
        check(books, task)

    monkeypatch.setattr(Savings, "check_over", looked_at)
    monkeypatch.setattr(host, "draw_plan", _owning)
    for seed in range(16):
        assert simulate(parsed("given-up", f'{IN_PLACE}[settings]\nworkspace = "directory"').draw(seed)).problems == ()
    assert taken_back
