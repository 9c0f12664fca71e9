"""Tests that a simulated run leaves no supervisor in the memory of the process, however its supervisors ended."""

from __future__ import annotations

import gc

import pytest

from supervisor.host.api import Supervisor
from supervisor.simulation.engine import uncollected
from supervisor.simulation.scenario import named
from tests.verification.checkers import simulate


@pytest.mark.parametrize("scenario", ["failing-disk", "killed", "plans"])
def test_a_supervisor_is_freed(scenario: str) -> None:
    """After several runs all supervisors are freed, also killed ones and those whose journal failed, since a soak has
    ten thousand of them."""
    with uncollected():  # a look at the objects of these runs alone
        lives = sum(simulate(named(scenario).draw(seed)).lives for seed in range(1, 4))
        gc.collect()
        left = [one for one in gc.get_objects() if isinstance(one, Supervisor)]
    assert lives > 3
    assert left == []
