"""A plan is given up while its tasks are worked on: in which order that is on record, whoever takes his step first."""

from __future__ import annotations

import pytest

from supervisor.simulation.running import simulate
from supervisor.simulation.scenario import parsed

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
