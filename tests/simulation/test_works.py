"""Plans of work in simulation: what tasks meet is drawn."""

from __future__ import annotations

import pytest

from supervisor.simulation.faults import FaultPlan
from supervisor.simulation.keyed_random import Chance
from supervisor.simulation.works.plans import draw_plan
from supervisor.simulation.works.task_scripts import Errand, Errands, Way, draw_errand


# ------------------------------------------------------------------------------------------------------- errands
def test_without_faults_nothing_is_in_the_way() -> None:
    """A task that nothing strikes is done at once, accepted, merged and approved."""
    errand = draw_errand("w0t0", FaultPlan(Chance(1), only=()))
    assert (errand.ways, errand.checks, errand.merges, errand.approvals) == ((Way.DONE,), (True,), (True,), (True,))
    assert errand.wanted


@pytest.mark.parametrize("kind", ["work.busy", "work.permanent", "work.hangs", "work.crashes", "work.unknown"])
def test_what_strikes_comes_first(kind: str) -> None:
    """Tries that go wrong come before the one that does not, if there is one."""
    for seed in range(30):
        errand = draw_errand("w0t0", FaultPlan(Chance(seed), only=(f"{kind}@w0t0",)))
        assert errand.ways[0] is not Way.DONE
        assert Way.DONE not in errand.ways[:-1]


def test_the_last_way_goes_on() -> None:
    """Every further try meets what the last one of the list met."""
    errand = Errand("w0t0", (Way.BUSY, Way.DONE), checks=(False, True))
    assert [errand.begin("w0t0", 0.0).way for _ in range(3)] == [Way.BUSY, Way.DONE, Way.DONE]
    assert [errand.check() for _ in range(3)] == [False, True, True]


def test_sessions_know_their_task() -> None:
    """A second session of a task, and one of a subtask, are told apart; a child session works on no task."""
    errands = Errands()
    for name in ("w0t1", "w0t1s0"):
        errands.add(Errand(name))
    found = [errands.of(one) for one in ("w0t1", "w0t1-2", "w0t1s0-3", "w0t1/guest", "c1", "w0t2")]
    assert [one.name if one else None for one in found] == ["w0t1", "w0t1", "w0t1s0", None, None, None]


def test_drawn_plans_hang_together() -> None:
    """Whatever the seed: the plan is one, each of its tasks has an errand, and the same seed draws the same."""
    for seed in range(40):
        errands, faults = Errands(), FaultPlan(Chance(seed))
        plan = draw_plan(3, 6, Chance(seed).below("plan"), faults, errands)
        assert all(errands.of(task.id) is not None for task in plan.tasks)
        assert plan == draw_plan(3, 6, Chance(seed).below("plan"), faults, Errands())
