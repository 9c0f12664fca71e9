"""Tests of the exit checker: an abort receipt that differs from the simulated world's processes and times is
reported."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.lifecycles.types import AbortScope
from supervisor.policies.abort_plan import NodeReceipt, ProcessFate, Receipt
from supervisor.simulation.checkers import AbortRequested, AbortReturned
from supervisor.simulation.machine.processes import ProcessEvent
from tests.verification.checkers.exits import ExitChecker

OWNER = "/sim/s$ agent#1"
NODE = NodeReceipt(id="s", kind="session", outcome="ended", rung="terminate", took_s=1.0, ended_at=104.0)
FATE = ProcessFate(owner="s:a1", pid=7, status=-15, ended_by="terminate", killed=0, survivors=0)


TERMINATED = (("spawned", OWNER), ("signalled", "SIGTERM"), ("exited", "-15"))


def _found(
    node: dict[str, Any] | None = None,
    fate: dict[str, Any] | None = None,
    saw: tuple[tuple[str, str], ...] = TERMINATED,
    **receipt: Any,
) -> list[str]:
    """Return the invariants that are reported for this receipt; by default, its process was sent SIGTERM and ended by
    that."""
    broken: list[str] = []
    checker = ExitChecker(lambda law, *words: broken.append(law))
    for what, detail in saw:
        checker.process(ProcessEvent(3.5, what, 7, OWNER, detail))
    given: dict[str, Any] = {
        "abort_id": "abort-1",
        "target": "s",
        "scope": AbortScope.SESSION,
        "reason": "enough",
        "already_ended": False,
        "nodes": (_changed(NODE, node),),
        "processes": (_changed(FATE, fate),),
        "killed_at": 104.0,
        "recorded_at": 104.5,
        **receipt,
    }
    asked = AbortRequested("s", AbortScope.SESSION, "enough", 3.0, 103.0)
    checker.check(AbortReturned(asked, None, Receipt(**given), 5.0, 105.0))
    return broken


def _changed(value: Any, fields: dict[str, Any] | None) -> Any:
    return type(value)(**{**{name: getattr(value, name) for name in value.__struct_fields__}, **(fields or {})})


def test_a_receipt_that_is_true() -> None:
    """A receipt that agrees with the simulated world is not reported."""
    assert _found() == []


@pytest.mark.parametrize(
    ("told", "law"),
    [
        ({"fate": {"pid": 8}}, "honest_ends"),
        ({"fate": {"status": 0}}, "honest_ends"),
        ({"fate": {"ended_by": "kill"}}, "honest_ends"),
        ({"fate": {"ended_by": "lost"}}, "honest_ends"),
        ({"fate": {"killed": -1}}, "honest_ends"),
        ({"node": {"rung": "cancel"}}, "honest_ends"),
        ({"node": {"rung": "abandon"}}, "honest_ends"),
        ({"node": {"rung": ""}}, "honest_ends"),
        ({"node": {"outcome": "abandoned"}}, "honest_ends"),
        ({"node": {"outcome": "requested"}}, "honest_ends"),
        ({"node": {"ended_at": 102.0}}, "punctual"),
        ({"killed_at": 103.5}, "punctual"),
        ({"recorded_at": 106.0}, "punctual"),
        ({"reason": "no"}, "one_answer"),
    ],
)
def test_a_receipt_that_is_false_is_noticed(told: dict[str, Any], law: str) -> None:
    """A receipt with a false process, status, means of the end, termination stage, time or reason is reported."""
    assert law in _found(**told)
