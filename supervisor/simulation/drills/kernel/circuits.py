"""Circuits and delays: a breaker under drawn answers against a model of its own, and what a backoff may draw."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import astuple

from actors import Backoff, InvalidOption
from actors.breaker import Answered, Breaker, BreakerLimits, Failed, Launched, Withdrawn
from actors.machine import IllegalTransition
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.keyed_random import Chance

__all__ = ["CIRCUITS"]

STEPS = 300


class Model:
    """A breaker as its page describes it. ``opened_s`` is ``None`` while it is closed."""

    def __init__(self, failures_max: int, window_s: float, cooldown_s: float) -> None:
        self.failures_max, self.window_s, self.cooldown_s = failures_max, window_s, cooldown_s
        self.failed_s: list[float] = []
        self.opened_s: float | None = None
        self.trying = False
        self.probe = ""

    @property
    def state(self) -> str:
        return "closed" if self.opened_s is None else "half_open" if self.trying else "open"

    def allows(self, now_s: float) -> bool:
        if self.opened_s is None:
            return True
        return not self.probe if self.trying else now_s - self.opened_s >= self.cooldown_s

    def launched(self, who: str, now_s: float) -> None:
        if self.opened_s is not None:
            self.trying, self.probe = True, who

    def answered(self, who: str, now_s: float) -> None:
        if self.opened_s is None:
            self.failed_s = []
        elif self.probe and who == self.probe:
            self.opened_s, self.trying, self.probe, self.failed_s = None, False, "", []

    def failed(self, who: str, now_s: float) -> None:
        if self.opened_s is None:
            self.failed_s = [*(one for one in self.failed_s if now_s - one <= self.window_s), now_s]
            if len(self.failed_s) >= self.failures_max:
                self.opened_s, self.failed_s = now_s, []
        elif self.probe and who == self.probe:
            self.opened_s, self.trying, self.probe = now_s, False, ""

    def withdrawn(self, who: str, now_s: float) -> None:
        if self.probe and who == self.probe:
            self.probe = ""


KINDS: dict[str, Any] = {"launched": Launched, "answered": Answered, "failed": Failed, "withdrawn": Withdrawn}


async def breakers(desk: Desk) -> None:
    """Whatever is asked and answered, and when: it is closed, open and half open just when its model is."""
    for number in range(3):
        chance = desk.chance.below(number)
        most, window_s, cooldown_s = chance.integer(1, 4, "most"), chance.integer(2, 20, "window"), 8.0
        breaker = Breaker(BreakerLimits(failures_max=most, window_s=float(window_s), cooldown_s=cooldown_s))
        # A clock counts from anywhere: what matters is what lies between two instants.
        model, now_s = Model(most, window_s, cooldown_s), float(chance.integer(-5000, 100, "began"))
        for place in range(STEPS):
            now_s += chance.choice((0.0, 0.0, 1.0, 1.0, 2.0, 5.0, 50.0), "pause", place)
            if not _step(desk, breaker, model, chance.below(place), now_s):
                return


def _step(desk: Desk, breaker: Breaker, model: Model, chance: Chance, now_s: float) -> bool:
    """One of them; false where the two are not the same any more."""
    allowed = model.allows(now_s)
    desk.same("it lets somebody ask", breaker.allows(now_s), allowed)
    kind, who = chance.choice(sorted(KINDS), "kind"), chance.choice("abc", "who")
    before = model.state
    try:
        changed = breaker.hear(KINDS[kind](who=who, at=now_s))
    except IllegalTransition:
        desk.same(f"a refusal of {kind}", (kind, allowed), ("launched", False))
        return True
    if kind == "launched" and not allowed:
        desk.same("somebody asks while nobody may", "taken", "refused")
    getattr(model, kind)(who, now_s)
    told, wanted = (breaker.state.value, changed), (model.state, model.state != before)
    desk.same(f"{kind} of {who}", told, wanted)
    return told == wanted


async def delays(desk: Desk) -> None:
    """A delay lies anywhere between nothing and a ceiling that grows by its factor, to the cap."""
    backoff = Backoff(base_s=0.5, factor=3.0, cap_s=20.0)
    rng: Any = desk.system.rng("delays")
    for failures, most_s in ((1, 0.5), (2, 1.5), (3, 4.5), (4, 13.5), (5, 20.0), (60, 20.0), (5000, 20.0)):
        drawn = sorted(backoff.delay_s(failures, rng) for _ in range(40))
        inside = 0.0 <= drawn[0] < most_s / 4 and most_s * 3 / 4 < drawn[-1] <= most_s
        desk.same(f"the {failures}. delay: 40 of them lie all over {most_s:g} s", (inside, drawn[0] >= 0), (True, True))
    desk.same("a backoff of nobody's wish", tuple(Backoff()), (0.5, 2.0, 60.0))
    desk.same("a breaker of nobody's wish", astuple(BreakerLimits()), (5, 60.0, 60.0))
    desk.same("what is long", (Backoff(cap_s=70.0).stable_s, Backoff(cap_s=1.0).stable_s), (140.0, 120.0))
    for wrong in ({"base_s": -0.1}, {"base_s": 2.0, "cap_s": 1.9}, {"factor": 0.9}):
        with suppress(InvalidOption):
            desk.same(f"a backoff with {wrong}", Backoff(**wrong).checked("x"), "refused")
    for right in ({"base_s": 0.0}, {"base_s": 2.0, "cap_s": 2.0}, {"factor": 1.0}):
        desk.same("a backoff that is just possible", Backoff(**right).checked("x"), Backoff(**right))
    for limits in (BreakerLimits(failures_max=0), BreakerLimits(window_s=0.0), BreakerLimits(cooldown_s=0.0)):
        with suppress(InvalidOption):
            desk.same("a breaker", limits.checked("x"), "refused")
    known: dict[str, Any] = {"failures_max": 3, "cooldown_s": 4.0}
    given = msgspec.convert(known, BreakerLimits)
    desk.same("a breaker that is read", given, BreakerLimits(failures_max=3, cooldown_s=4.0))
    with suppress(msgspec.ValidationError):
        desk.same("one of no such limit", msgspec.convert({**known, "cool_down_s": 1.0}, BreakerLimits), "refused")
    desk.same("a breaker", Breaker(BreakerLimits(failures_max=1).checked("x")).allows(0.0), True)


CIRCUITS = (breakers, delays)
