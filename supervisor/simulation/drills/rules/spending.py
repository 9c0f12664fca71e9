"""Budgets, and what agents offer: shares of what is left against a plain sum, and words of a protocol that mean little.

The model of a budget adds up what was used and what is lent out, for each scope by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import ceil, inf
from typing import Any, Final

import msgspec

from supervisor.agents.protocols.acp.capabilities import Initialized
from supervisor.policies.budgets import Amounts, Budget, Lease, Scope, hand_back_budget, narrowed
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.keyed_random import Chance

__all__ = ["SPENDING"]

STEPS: Final = 120
ROUNDING: Final = 6
ONE_BY_ONE: Final = ("turns", "tool_calls")
LEAST: Final[Mapping[str, float]] = {"tokens": 1, "cost_usd": 0.0, "turns": 1, "tool_calls": 1, "wall_s": 1.0}


class Place:
    """A scope: its limits, what was used in and below it, and what is lent out."""

    def __init__(self, limits: Mapping[str, float], above: Place | None) -> None:
        self.limits, self.above = limits, above
        self.used = dict.fromkeys(LEAST, 0.0)
        self.lent = dict.fromkeys(LEAST, 0.0)

    def chain(self) -> Sequence[Place]:
        return (self, *(self.above.chain() if self.above is not None else ()))

    def left(self, measure: str) -> tuple[float, float]:
        """What is left where there is least, and the limit there."""
        bounded = [one for one in self.chain() if measure in one.limits]
        rooms = [(one.limits[measure] - one.used[measure] - one.lent[measure], one.limits[measure]) for one in bounded]
        return min(rooms, key=lambda room: room[0], default=(inf, inf))


def _draw(chance: Chance, all_of: bool) -> dict[str, float]:
    """Some limits."""
    found: dict[str, float] = {}
    for measure, sizes in (
        ("tokens", (0, 5, 300, 5000)),
        ("cost_usd", (0.0, 0.5, 4.0)),
        ("turns", (0, 2, 9)),
        ("tool_calls", (1, 4, 20)),
        ("wall_s", (2.0, 90.0)),
    ):
        if all_of or chance.happens(0.5, measure):
            found[measure] = chance.choice(sizes, "size", measure)
    return found


async def budgets(desk: Desk) -> None:
    """A lease takes parts of what is least left above it, uses them, and gives back what it did not use."""
    for number in range(10):
        chance = desk.chance.below(number)
        outer, inner = _draw(chance.below("outer"), False), _draw(chance.below("inner"), False)
        top = Scope("t", "all", Budget(**outer))  # type: ignore[arg-type]
        low = Scope("l", "one", Budget(**inner), top)  # type: ignore[arg-type]
        above = Place(outer, None)
        place = Place(inner, above)
        lease, held = Lease(low), dict.fromkeys({**inner, **outer}, 0.0)
        desk.same("what is bounded", set(low.measures), set(held))
        for step in range(STEPS):
            if not _step(desk, chance.below(step), lease, low, place, held):
                break
        lease.give_back()
        for measure in held:
            left_s = round(float(low.left(measure) or 0.0), ROUNDING)
            room = _room(place, held, measure)
            desk.same(f"{measure} when all was given back", left_s, round(max(room, 0.0), ROUNDING))


def _room(place: Place, held: Mapping[str, float], measure: str) -> float:
    """What is left once nothing is lent."""
    for one in place.chain():
        one.lent[measure] = 0.0
    return place.left(measure)[0]


def _step(desk: Desk, chance: Chance, lease: Lease, low: Scope, place: Place, held: dict[str, float]) -> bool:
    """Something is asked for, or used; false where the two have gone apart."""
    if chance.happens(0.4, "ask"):
        measure = chance.choice(("tokens", "cost_usd", "turns", "tool_calls", "wall_s"), "what")
        spent = lease.lack(measure)
        given, wanted = spent is None, _lent(place, held, measure)
    else:
        amounts: dict[str, Any] = {
            "input_tokens": chance.integer(0, 40, "in"),
            "output_tokens": chance.integer(0, 9, "out"),
            "cost_usd": chance.choice((0.0, 0.01, 0.2), "cost"),
            "turns": chance.integer(0, 1, "turns"),
            "tool_calls": chance.integer(0, 1, "calls"),
            "wall_s": chance.choice((0.0, 1.5), "wall"),
        }
        spent = lease.use(Amounts(**amounts))
        given, wanted = spent is None, _used(place, held, amounts)
    desk.same("whether it may go on", given, wanted)
    if spent is not None:
        desk.same("why not", spent.measure in low.measures, True)
    for measure in held:
        desk.same(f"{measure} held", round(lease.held(measure), ROUNDING), round(held[measure], ROUNDING))
        room = round(max(place.left(measure)[0], 0.0), ROUNDING)
        desk.same(f"{measure} left", round(float(low.left(measure) or 0.0), ROUNDING), room)
    return given == wanted


def _lent(place: Place, held: dict[str, float], measure: str) -> bool:
    """Whether some of it is held, after a part of it was taken where none was."""
    if measure not in held or held[measure] > 1e-9:
        return True
    left, limit = place.left(measure)
    part = 1.0 if measure in ONE_BY_ONE else max(left / 64, limit / 4096, LEAST[measure])
    part = min(ceil(part) if measure in ("tokens", *ONE_BY_ONE) else part, left)
    if part <= 1e-9 or (measure in ONE_BY_ONE and part < 1):
        return False
    held[measure] += part
    for one in place.chain():
        if measure in one.limits:
            one.lent[measure] += part
    return True


def _used(place: Place, held: dict[str, float], amounts: Mapping[str, Any]) -> bool:
    """Count it everywhere; whether there is a next part of all that was used up."""
    told = {"tokens": amounts["input_tokens"] + amounts["output_tokens"], **amounts}
    for one in place.chain():
        for measure in LEAST:
            one.used[measure] += told[measure]
    enough = True
    for measure in held:
        if told[measure] <= 0:
            continue
        less = min(told[measure], held[measure])
        held[measure] -= less
        for one in place.chain():
            if measure in one.limits:
                one.lent[measure] = max(one.lent[measure] - less, 0.0)
        if measure not in ONE_BY_ONE and enough:
            enough = _lent(place, held, measure)
    return enough


async def amounts(desk: Desk) -> None:
    """Sums, differences, words; limits within limits; and a tenth for handing back."""
    one = Amounts(
        input_tokens=5, output_tokens=2, cost_usd=0.5, turns=1, tool_calls=3, wall_s=2.0, cached_tokens=4, requests=6
    )
    two = one + one
    fields = [getattr(one, name) for name in one.__struct_fields__]
    desk.same("a sum", [getattr(two, name) for name in one.__struct_fields__], [2 * value for value in fields])
    desk.same("a difference", (two - one, one - two), (one, Amounts()))
    desk.same("the larger of each", (one.at_least(two), two.at_least(Amounts(requests=99)).requests), (two, 99))
    desk.same("nothing", (Amounts().tokens, Amounts().words, Amounts().told, tuple(fields) > ()), (0, "", {}, True))
    words = "7 tokens (4 cached), 0.5 USD, 1 turn, 3 tool calls, 6 model requests, 2 s of turns"
    desk.same("in words", one.words, words)
    desk.same("on record", Amounts(cost_usd=0.12345678, turns=2).told, {"cost_usd": 0.123457, "turns": 2})
    most = Amounts(input_tokens=2**53, requests=2**53, cached_tokens=2**53, output_tokens=2**53, cost_usd=2.0**53)
    desk.same("more than can be counted", most + one + one, most + msgspec.structs.replace(two, cost_usd=0.0))
    own, above = Budget(tokens=10, turns=5), Budget(tokens=7, wall_s=3.0, turns=9)
    desk.same("limits within limits", narrowed(own, above), (Budget(tokens=7, turns=5, wall_s=3.0), ("tokens",)))
    for wrong in ({"tokens": -1}, {"cost_usd": -0.1}, {"wall_s": float("nan")}):
        with suppress(ValueError):
            desk.same(f"a budget of {wrong}", Budget(**wrong), "refused")
    desk.same("just possible", Budget(tokens=0, wall_s=0.0).limits, {"tokens": 0, "wall_s": 0.0})
    top = Scope("t", "all", Budget(tokens=500, cost_usd=9.0))
    low = Scope("l", "one", Budget(tokens=80), top)
    wanted = Budget(tokens=8, cost_usd=0.9, wall_s=60.0)
    desk.same("to hand back", hand_back_budget(Budget(wall_s=60.0), low), wanted)
    desk.same("to hand back as it says", hand_back_budget(Budget(tokens=3), low), Budget(tokens=3, cost_usd=0.9))
    top.recall(Amounts(input_tokens=490))
    spent = low.spent("tokens")
    desk.same("who is to blame", (spent.whose, spent.measure, spent.limit, spent.used), ("all", "tokens", 500, 490))
    none = Scope("x", "x", Budget(turns=0)).left("turns")
    desk.same("what is left", (low.left("tokens"), low.left("turns"), none), (10, None, 0))
    low.count(Amounts(input_tokens=4, cost_usd=0.5))
    desk.same("used", (low.used.tokens, top.used.tokens, top.used.cost_usd), (4, 494, 0.5))


async def offers(desk: Desk) -> None:
    """What an agent says that it can: only true is true, what is missing cannot be."""

    def said(capabilities: Any) -> Initialized:
        told = {"protocolVersion": 1, **({} if capabilities is None else {"agentCapabilities": capabilities})}
        return msgspec.convert(told, Initialized)

    def meta(value: Any) -> Any:
        return {"_meta": value}

    for capabilities, shown in (
        (None, (False, "", False, False, False)),
        ({}, (False, "", False, False, False)),
        ({"loadSession": True}, (False, "session/load", False, False, False)),
        ({"loadSession": True, "sessionCapabilities": {"resume": {}}}, (False, "session/resume", False, False, False)),
        ({"sessionCapabilities": {"close": {}}}, (True, "", False, False, False)),
        (meta({"supervisor": {"steer": True}}), (False, "", False, True, False)),
        (meta({"supervisor": {"steer": 1, "endCalls": True}}), (False, "", False, False, True)),
        (meta({"supervisor": True}), (False, "", False, False, False)),
        (meta({"claudeCode": {"promptQueueing": True}}), (False, "", True, False, False)),
        (meta({"promptQueueing": True}), (False, "", True, False, False)),
        (meta({"promptQueueing": 1, "x": {"promptQueueing": "yes"}}), (False, "", False, False, False)),
        (meta("no"), (False, "", False, False, False)),
    ):
        one = said(capabilities)
        desk.same(f"{capabilities}", (one.closable, one.reopens, one.queues, one.steers, one.ends_calls), shown)
        desk.same(f"within a turn: {capabilities}", one.takes_up, shown[2] or shown[3])
    for offered, reached in (
        ({}, (False, False, True)),
        ({"http": True}, (True, False, True)),
        ({"sse": True}, (False, True, True)),
    ):
        one = said({"mcpCapabilities": offered})
        desk.same(f"tools over {offered}", tuple(one.connects(way) for way in ("http", "sse", "stdio")), reached)
    named = msgspec.convert({"protocolVersion": 1, "agentInfo": {"name": "a", "version": "2"}}, Initialized)
    desk.same("its name", (named.info, said(None).info), ("a 2", ""))


SPENDING = (budgets, amounts, offers)
