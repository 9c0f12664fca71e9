"""Deadlines of the termination stages: a termination is executed by those that its plan and its record have."""

from __future__ import annotations

import itertools

import pytest

from supervisor.lifecycles.types import AbortScope, StageBudgets, TerminationStage
from supervisor.policies.abort_plan import TreeNode, plan_abort
from supervisor.policies.stage_deadlines import (
    CallSchedule,
    SessionSchedule,
    StageDeadlines,
    call_deadlines,
    session_deadlines,
)

BUDGETS = (StageBudgets(), StageBudgets(request_s=0.3, cancel_s=0.0))
BOUNDS = (None, 0, 0.4, 1.5, 5.0, 60.0)


@pytest.mark.parametrize(
    ("within_s", "now", "due"),
    [
        (None, False, (10.0, 15.0, 17.0, 18.0)),
        (60.0, False, (10.0, 15.0, 17.0, 18.0)),
        (12.0, False, (4.0, 9.0, 11.0, 12.0)),
        (5.0, False, (0.0, 2.0, 4.0, 5.0)),
        (0.5, False, (0.0, 0.0, 0.0, 0.5)),
        (-1.0, False, (0.0, 0.0, 0.0, 0.0)),
        (None, True, (0.0, 0.0, 0.0, 1.0)),
    ],
)
def test_rungs_give_way_gentlest_first(within_s: float | None, now: bool, due: tuple[float, ...]) -> None:
    """With less time than the stage budgets, the request stage is shortened first and the kill stage last."""
    request_s, cancel_s, terminate_s, kill_s = due
    expected = StageDeadlines(request_s=request_s, cancel_s=cancel_s, terminate_s=terminate_s, kill_s=kill_s)
    assert session_deadlines(StageBudgets(), within_s, now=now) == expected


@pytest.mark.parametrize(("budgets", "within_s"), [*itertools.product(BUDGETS, BOUNDS)])
def test_a_session_is_terminated_by_the_deadlines_of_its_plan(budgets: StageBudgets, within_s: float | None) -> None:
    """The gentle stages of a session end when the plan says so; a session whose time is cut is killed by then."""
    due = session_deadlines(budgets, within_s)
    schedule = SessionSchedule(budgets, began=100.0, deadline=100.0 + due.kill_s, slack_s=5.0)
    assert schedule.ends_at(TerminationStage.REQUEST, 100.0) == pytest.approx(100.0 + due.request_s)
    cancelled_at = schedule.ends_at(TerminationStage.CANCEL, 100.0)
    is_cut = due.kill_s < budgets.total_s
    assert cancelled_at == pytest.approx(100.0 + (due.terminate_s if is_cut else due.kill_s + 5.0))


@pytest.mark.parametrize(("budgets", "within_s"), [*itertools.product(BUDGETS, BOUNDS)])
def test_a_call_is_terminated_by_the_deadlines_of_its_plan(budgets: StageBudgets, within_s: float | None) -> None:
    """The stages request and kill of a call end when the plan says so, also if the time is so short that the request
    leaves its time to the kill."""
    due = call_deadlines(budgets, within_s)
    schedule = CallSchedule(budgets, deadline=due.kill_s)
    asked_until = max(0.0, schedule.ends_at(TerminationStage.REQUEST, 0.0) or 0.0)
    assert (asked_until, schedule.ends_at(TerminationStage.KILL, asked_until)) == (due.request_s, due.kill_s)


def test_a_bounded_plan_has_bounded_deadlines_everywhere() -> None:
    """With a bound of 1.5 s, the request to the agent of a call ends 1 s before the kill does, in the plan as in the
    execution; the plan's own deadline and id are those of the plan without a bound."""
    call = TreeNode(id="s:t1:c1", kind="tool", parent="s")
    tree = {"s": TreeNode(id="s", kind="session", children=(call.id,)), call.id: call}
    plan = plan_abort(tree, call.id, AbortScope.TOOL, within_s=1.5)
    assert plan.nodes[0].due == StageDeadlines(request_s=0.5, cancel_s=0.5, terminate_s=0.5, kill_s=1.5)
    unbounded = plan_abort(tree, call.id, AbortScope.TOOL)
    assert (plan.deadline_s, plan.id) == (unbounded.deadline_s, unbounded.id)
