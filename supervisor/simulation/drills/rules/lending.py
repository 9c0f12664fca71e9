"""Lending: what a turn needs to begin, and limits that change while parts of them are lent out (docs/budgets.md)."""

from __future__ import annotations

from typing import Any, Final

from supervisor.policies.budgets import Amounts, Budget, Lease, Scope
from supervisor.simulation.drills.desk import Desk

__all__ = ["LENDING"]

LIMITS: Final = {"tokens": 640, "cost_usd": 6.4, "turns": 3, "tool_calls": 3, "wall_s": 640.0}
PART: Final = {"tokens": 10.0, "cost_usd": 0.1, "turns": 1.0, "tool_calls": 1.0, "wall_s": 10.0}
"""The first part that is lent of each: one, or a 64th."""


async def beginnings(desk: Desk) -> None:
    """A turn begins where there is some of everything, but for calls: what is lacking is named, and whose it is."""
    for measure, limit in LIMITS.items():
        spent: Any = {measure: 0}
        lease = Lease(Scope("s", "it", Budget(**spent)))
        lacks = lease.lacking()
        named = None if lacks is None else (lacks.whose, lacks.measure, lacks.limit, lacks.used, lacks.leased)
        desk.same(f"no {measure}", named, None if measure == "tool_calls" else ("it", measure, 0, 0, 0.0))
        desk.same(f"no {measure} to take", lease.lack(measure) is not None, True)
        some: Any = {measure: limit}
        top = Scope("t", "all", Budget(**some))
        first, second = Lease(Scope("a", "a", Budget(), top)), Lease(Scope("b", "b", Budget(), top))
        desk.same(f"some {measure}", (first.lacking(), first.lack(measure)), (None, None))
        desk.same("a part of it", round(first.held(measure), 9), PART[measure])
        desk.same("what is not bounded", (first.held("none"), first.lack("none")), (float("inf"), None))
        left = round(float(top.left(measure) or 0.0), 9)
        desk.same("what is left", left, round(limit - PART[measure], 9))
        second.lack(measure)
        second.give_back()
        desk.same("given back", round(float(top.left(measure) or 0.0), 9), left)
        desk.same("nobody's", second.held(measure), 0.0)
    whole = Lease(Scope("s", "it", Budget(tokens=5, turns=1)))
    desk.same("all that it takes", (whole.lacking(), whole.held("tokens"), whole.held("turns")), (None, 1.0, 1.0))


async def changes(desk: Desk) -> None:
    """Other limits hold from then on, and what was used and lent stays so."""
    scope = Scope("s", "it", Budget(tokens=640))
    lease = Lease(scope)
    lease.lack("tokens")
    desk.same("used within the part", lease.use(Amounts(input_tokens=4)), None)
    desk.same("what is held", (lease.held("tokens"), scope.left("tokens")), (6.0, 630.0))
    scope.bound(Budget(tokens=20, wall_s=5.0))
    left = (scope.left("tokens"), scope.left("wall_s"), scope.left("turns"))
    desk.same("other limits", left, (10.0, 5.0, None))
    over = lease.use(Amounts(output_tokens=17))
    told = over and (over.measure, over.limit, over.used)
    desk.same("more than there is", (told, scope.left("tokens")), (("tokens", 20, 21), 0.0))
    scope.bound(Budget())
    desk.same("no limits", (lease.lack("tokens"), lease.use(Amounts(input_tokens=9))), (None, None))
    scope.bound(Budget(tokens=31))
    desk.same("a limit again", (lease.lack("tokens"), lease.held("tokens")), (None, 1.0))
    lease.give_back()
    desk.same("what is left of it", (scope.left("tokens"), scope.used.tokens), (1.0, 30))
    two = Lease(Scope("s", "it", Budget(tokens=1, cost_usd=0.5)))
    both = two.use(Amounts(input_tokens=3, cost_usd=0.9))
    desk.same("the first that is spent", both and both.measure, "tokens")


LENDING = (beginnings, changes)
