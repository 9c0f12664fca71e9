"""Patience: with agents that do not move, and with models that fail, counted a second time.

The rules are those of docs/model-trouble.md and of the keys ``liveness`` and ``model_trouble`` of docs/plans.md.
"""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakSet

from supervisor.lifecycles.types import Exit, ModelFailure, ModelProblem, Verdict
from supervisor.policies.liveness import Liveness, Patience, Stall, StallProfile
from supervisor.policies.model_errors import ModelLimits, ModelRecord
from supervisor.simulation.drills.desk import Desk

__all__ = ["PATIENCE"]

STEPS: Final = 200
NO_USE: Final = ("auth", "quota", "not_found", "context_length")
"""Problems that no retry mends."""


async def stalls(desk: Desk) -> None:
    """Woken, stopped, killed, each once, by snapshots in a row; made good by as many signs as the first step takes."""
    limits = Liveness(large=StallProfile(wake=1, stop=2, kill=3))
    for patience in Patience:
        profile = limits.profile(patience)
        bounds = {"wake": profile.wake, "stop": profile.stop, "kill": profile.kill}
        stall, silent, lively, taken = Stall(), 0, 0, set[str]()
        for step in range(STEPS):
            moved = desk.chance.happens(0.25 if step % 60 < 40 else 0.9, patience.value, step)
            given = stall.snapshot(moved, profile)
            if moved:
                silent, lively = 0, lively + 1
                taken = set() if lively >= profile.wake else taken
                wanted = None
            else:
                silent, lively = silent + 1, 0
                due = [name for name, bound in bounds.items() if silent >= bound and name not in taken]
                wanted = due[-1] if due and not any(name in taken for name in _above(due[-1])) else None
                taken |= {name for name, bound in bounds.items() if silent >= bound} if wanted else set()
            desk.same(f"snapshot {step} of {patience}", given.value if given else None, wanted)
            desk.same("how long it is silent", (stall.silent, stall.stepped), (silent, bool(taken)))


async def other_steps(desk: Desk) -> None:
    """A step is made good by as many signs in a row as the first step takes by then: by another one, maybe."""
    for before, after, at_once in ((5, 3, True), (3, 5, False)):
        stall = Stall()
        first, then = (StallProfile(wake=one, stop=10, kill=11) for one in (before, after))
        for _ in range(before):
            stall.snapshot(False, first)
        for _ in range(before - 1):
            stall.snapshot(True, first)
        desk.same(f"{before} signs are not there", stall.stepped, True)
        stall.snapshot(True, then)
        desk.same(f"then {after} are enough", stall.stepped, not at_once)


def _above(name: str) -> tuple[str, ...]:
    """That step, and the harsher ones."""
    steps = ("wake", "stop", "kill")
    return steps[steps.index(name) :]


class Tries:
    """What a model's failures amount to."""

    def __init__(self, retries: int, fruitless: int, most: int, within_s: float) -> None:
        self.retries, self.fruitless_max, self.most, self.within_s = retries, fruitless, most, within_s
        self.in_a_row = self.attempts = self.fruitless = 0
        self.asked: list[float] = []
        self.known: list[str] = []

    def opened(self) -> None:
        self.attempts = self.fruitless = 0
        self.asked, self.known = [], []

    def said(self, words: str) -> None:
        words = words.strip()
        if words and words not in self.known:
            self.known = [*self.known, words][-64:]
            self.in_a_row = self.fruitless = 0

    def asks(self, requests: int, now_s: float) -> bool:
        """Whether the turn ends by that."""
        self.asked = [one for one in [*self.asked, *[now_s] * requests] if now_s - one <= self.within_s]
        if self.most and len(self.asked) > self.most:
            return True
        self.fruitless += requests
        return bool(self.fruitless_max and self.fruitless > self.fruitless_max)

    def fails(self, problem: str, now_s: float) -> bool:
        self.in_a_row, self.attempts = self.in_a_row + 1, self.attempts + 1
        over = problem in NO_USE or bool(self.retries and self.in_a_row > self.retries)
        return over or self.asks(1, now_s)


async def troubles(desk: Desk) -> None:
    """Tries in a row, requests in vain, requests too fast: the turn ends with the first that is too many."""
    for number, bounds in enumerate(((3, 8, 12, 20.0), (0, 5, 0, 5.0), (10, 0, 6, 4.0), (2, 0, 0, 60.0))):
        retries, fruitless, most, within_s = bounds
        limits = ModelLimits(retries_max=retries, fruitless_max=fruitless, requests_max=most, within_s=within_s)
        ours, model, now_s = ModelRecord(limits), Tries(*bounds), 0.0
        for step in range(STEPS):
            chance = desk.chance.below(number, step)
            now_s += chance.choice((0.0, 0.5, 3.0), "pause")
            match chance.choice(("fails", "fails", "asks", "seems", "said", "new", "turn", "ended"), "what"):
                case "fails":
                    _fails(desk, ours, model, chance.choice(tuple(ModelProblem), "problem"), now_s)
                case "asks":
                    many = chance.integer(1, 4, "many")
                    desk.same("asked", ours.requested(many, now_s) is not None, model.asks(many, now_s))
                case "seems":
                    over = model.fruitless_max and model.fruitless + 1 > model.fruitless_max
                    model.fruitless += 1
                    desk.same("seems to have asked", ours.reported() is not None, bool(over))
                case "said":
                    words = chance.choice(("a", " a ", "b", "", "  "), "words")
                    ours.said(words)
                    model.said(words)
                case "new" if chance.happens(0.3, "at all"):
                    ours.progressed()
                    model.in_a_row = model.fruitless = 0
                case "turn" if chance.happens(0.3, "at all"):
                    ours.turn_opened()
                    model.opened()
                case "ended":
                    _ended(desk, ours, model, chance.choice((ModelProblem.SERVER, ModelProblem.AUTH), "problem"))
            desk.same("counts", (ours.in_a_row, ours.attempts), (model.in_a_row, model.attempts))


def _fails(desk: Desk, ours: ModelRecord, model: Tries, problem: ModelProblem, now_s: float) -> None:
    ruling, over = ours.troubled(problem, 500, "no", now_s), model.fails(problem.value, now_s)
    desk.same(f"after {problem}", (ruling.in_a_row, ruling.verdict is not None), (model.in_a_row, over))
    if ruling.verdict is not None:
        failure: Any = ruling.verdict.model
        shown = (failure.problem, failure.status, failure.attempts, failure.final)
        desk.same("why it ends", shown, (problem, 500, model.attempts, True))


def _ended(desk: Desk, ours: ModelRecord, model: Tries, problem: ModelProblem) -> None:
    """The agent has ended its turn for that."""
    model.in_a_row += 1
    final = problem.value in NO_USE or bool(model.retries and model.in_a_row > model.retries)
    given: Any = ours.failed(Verdict(exit=Exit.ERROR, model=ModelFailure(problem=problem, status=500))).model
    desk.same("an end by the agent", (given.attempts, given.final), (model.attempts, final))
    other = Verdict(exit=Exit.ERROR, error="it is Tuesday")
    desk.same("an end by nothing of the model's", ours.failed(other), other)


class Instant(float):
    """One that shows for how long it is remembered."""


async def forgets(desk: Desk) -> None:
    """Of the requests those are remembered that may still be too many with others: within the window, if any count."""
    for most, remembered in ((0, []), (9, [20.0, 22.5, 25.0])):
        limits = ModelLimits(retries_max=0, fruitless_max=0, requests_max=most, within_s=5.0)
        for what in ("asked", "failed"):
            record, kept = ModelRecord(limits), WeakSet[Instant]()
            for step in range(11):
                instant = Instant(2.5 * step)
                kept.add(instant)
                if what == "asked":
                    record.requested(2, instant)
                else:
                    record.troubled(ModelProblem.SERVER, 500, "no", instant)
            del instant
            desk.same(f"what is remembered of who {what}, of {most}", sorted(kept), remembered)
            record.turn_opened()
            desk.same(f"what is remembered of who {what} in the next turn", sorted(kept), [])


PATIENCE = (stalls, other_steps, troubles, forgets)
