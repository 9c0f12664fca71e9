"""Budgets as scopes: what may be used of tokens, money, turns, tool calls and time, leased before it is used.

A scope (a workstream, a task, a session, a turn) counts what is used in it and below it, against the limits of its own
and of every scope above: so a child's budget only narrows its parent's. Whoever works holds a lease, which is a part of
what every scope of its chain has left, and takes the next part when that is used; what is not used goes back. So those
who share a scope can exceed it only by what nobody knows before it is reported. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any, Final, NamedTuple

import msgspec

__all__ = [
    "COUNT_MAX",
    "MEASURES",
    "PARTS",
    "PARTS_MAX",
    "WHOLE",
    "Amounts",
    "Budget",
    "BudgetLease",
    "BudgetScope",
    "SpentBudget",
    "hand_back_budget",
    "narrow_budget",
]

MEASURES: Final = ("tokens", "cost_usd", "turns", "tool_calls", "wall_s")
"""What a budget may bound: tokens (in and out together), US dollars, turns, tool calls, seconds of turns (summed)."""

PARTS: Final = 64
"""A lease is taken in parts, each this fraction of what is left: of a budget that others share, each leaves at most so
much lying by."""
PARTS_MAX: Final = 4_096
"""No part is a smaller fraction of the limit than this one, where there is so much left."""

SMALLEST: Final[Mapping[str, float]] = {"tokens": 1, "cost_usd": 0.0, "wall_s": 1.0}
"""The least that is leased at once of what is not leased one by one, where there is so much left."""

BY_ONE: Final = frozenset({"turns", "tool_calls"})
"""What is leased one by one: it is known before it is used."""

COUNT_MAX: Final = 2**53
"""No amount is counted beyond this: what an agent claims may be any number, and a record holds 64 bits."""

WHOLE: Final = frozenset({"tokens", "turns", "tool_calls"})
"""What is counted in whole numbers."""

_LEAST: Final = 1e-9
"""Below this, nothing is left: sums of money and of seconds are not exact."""


class Amounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was used. ``cached_tokens`` are a part of ``input_tokens``; ``requests`` are those to a model."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    turns: int = 0
    tool_calls: int = 0
    wall_s: float = 0.0
    cached_tokens: int = 0
    requests: int = 0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, more: Amounts) -> Amounts:
        return Amounts(
            input_tokens=min(self.input_tokens + more.input_tokens, COUNT_MAX),
            output_tokens=min(self.output_tokens + more.output_tokens, COUNT_MAX),
            cost_usd=min(self.cost_usd + more.cost_usd, float(COUNT_MAX)),
            turns=self.turns + more.turns,
            tool_calls=self.tool_calls + more.tool_calls,
            wall_s=self.wall_s + more.wall_s,
            cached_tokens=min(self.cached_tokens + more.cached_tokens, COUNT_MAX),
            requests=min(self.requests + more.requests, COUNT_MAX),
        )

    def __sub__(self, less: Amounts) -> Amounts:
        """What is more; of what is less, nothing."""
        names = self.__struct_fields__
        return Amounts(**{name: max(getattr(self, name) - getattr(less, name), 0) for name in names})

    def at_least(self, other: Amounts) -> Amounts:
        """The larger of each."""
        names = self.__struct_fields__
        return Amounts(**{name: max(getattr(self, name), getattr(other, name)) for name in names})

    @property
    def words(self) -> str:
        """As people read it: only what is not nothing."""
        named = (
            ("tokens", f"{self.tokens} tokens{f' ({self.cached_tokens} cached)' if self.cached_tokens else ''}"),
            ("cost_usd", f"{self.cost_usd:.4g} USD"),
            ("turns", f"{self.turns} turn{'' if self.turns == 1 else 's'}"),
            ("tool_calls", f"{self.tool_calls} tool call{'' if self.tool_calls == 1 else 's'}"),
            ("requests", f"{self.requests} model request{'' if self.requests == 1 else 's'}"),
            ("wall_s", f"{self.wall_s:.4g} s of turns"),
        )
        return ", ".join(words for measure, words in named if getattr(self, measure))

    @property
    def told(self) -> dict[str, Any]:
        """As it stands in a record: only what is not nothing; money and time in millionths."""
        found = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: round(one, 6) if isinstance(one, float) else one for name, one in found.items() if one}


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits; ``None`` is none. ``wall_s`` counts seconds of turns: two turns at once use two a second."""

    tokens: int | None = None
    cost_usd: float | None = None
    turns: int | None = None
    tool_calls: int | None = None
    wall_s: float | None = None

    def __post_init__(self) -> None:
        for name, limit in self.limits.items():
            if not limit >= 0:
                raise ValueError(f"budget: {name}: {limit!r} is no limit; give a number, 0 or more")

    @property
    def limits(self) -> dict[str, float]:
        """The measures that are bounded."""
        return {name: limit for name in MEASURES if (limit := getattr(self, name)) is not None}


def narrow_budget(own: Budget, above: Budget) -> tuple[Budget, tuple[str, ...]]:
    """What *own* comes to below *above*, and the measures in which it asked for more than that."""
    wide = tuple(name for name, limit in own.limits.items() if limit > above.limits.get(name, limit))
    least = {name: min(own.limits.get(name, limit), limit) for name, limit in above.limits.items()}
    return Budget(**{**own.limits, **least}), wide  # type: ignore[arg-type]  # measures are its fields


class SpentBudget(NamedTuple):
    """Which budget is spent: whose, in which measure, its limit, what was used, and what is leased to others."""

    whose: str
    measure: str
    limit: float
    used: float
    leased: float = 0.0

    @property
    def words(self) -> str:
        held = f", {_number(self.leased)} held by others" if self.leased > _LEAST else ""
        counted = f"limit {_number(self.limit)}, used {_number(self.used)}{held}"
        return f"the budget of {self.whose} is spent: {self.measure}: {counted}"


def _number(amount: float) -> str:
    return f"{round(amount, 6):g}" if isinstance(amount, float) else str(amount)


class BudgetScope:
    """What may be used in one place, and below it. *title* is what people call it."""

    __slots__ = ("id", "leased", "limits", "parent", "title", "used")

    def __init__(self, scope_id: str, title: str, budget: Budget, parent: BudgetScope | None = None) -> None:
        self.id = scope_id
        self.title = title
        self.parent = parent
        self.used = Amounts()
        self.limits: dict[str, float] = {}
        self.leased: dict[str, float] = {}
        self.bound(budget)

    def bound(self, budget: Budget) -> None:
        """Have other limits from now on: what was used and leased stays so."""
        self.limits = budget.limits
        self.leased = {measure: self.leased.get(measure, 0.0) for measure in self.limits}

    @property
    def chain(self) -> Iterator[BudgetScope]:
        """Itself, and every scope above it."""
        scope: BudgetScope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    @property
    def measures(self) -> dict[str, None]:
        """Every measure that is bounded here or above."""
        return {name: None for scope in self.chain for name in scope.limits}

    def own_left(self, measure: str) -> float:
        """What nobody has used or leased, by its own limit."""
        return self.limits[measure] - float(getattr(self.used, measure)) - self.leased[measure]

    def narrowest(self, measure: str) -> BudgetScope:
        """The scope of the chain that has the least left."""
        return min((one for one in self.chain if measure in one.limits), key=lambda one: one.own_left(measure))

    def left(self, measure: str) -> float | None:
        """What may still be leased; ``None`` where nothing bounds it."""
        if measure not in self.measures:
            return None
        left = self.narrowest(measure).own_left(measure)
        return left if left > _LEAST else 0.0

    def spent(self, measure: str) -> SpentBudget:
        """Who is to blame that nothing is left."""
        scope = self.narrowest(measure)
        used = getattr(scope.used, measure)
        return SpentBudget(scope.title, measure, scope.limits[measure], used, scope.leased[measure])

    def count(self, amounts: Amounts) -> None:
        """So much was used here."""
        for scope in self.chain:
            scope.used = scope.used + amounts

    def recall(self, used: Amounts) -> None:
        """At least so much has been used, by an earlier record."""
        self.used = self.used.at_least(used)

    @property
    def told(self) -> list[dict[str, Any]]:
        """The chain as it stands in a record."""
        return [{"id": one.id, "title": one.title, "limits": one.limits, "used": one.used.told} for one in self.chain]


class BudgetLease:
    """A part of what a chain of scopes has left, for whoever works: it can be used without asking again."""

    def __init__(self, scope: BudgetScope) -> None:
        self.scope = scope
        self._measures = tuple(scope.measures)
        self._held: dict[str, float] = dict.fromkeys(self._measures, 0.0)

    def held(self, measure: str) -> float:
        """What may be used without asking; unbounded measures have no bound."""
        return self._held.get(measure, float("inf"))

    def lacking(self) -> SpentBudget | None:
        """Take a part of all that a turn needs to begin and does not hold; what has nothing left of it."""
        lacks = (self.lack(measure) for measure in self._measures if measure != "tool_calls")
        return next((spent for spent in lacks if spent is not None), None)

    def lack(self, measure: str) -> SpentBudget | None:
        """Take a part of that measure, unless some is held; who is to blame if nothing is left."""
        lacks = measure in self._held and self._held[measure] <= _LEAST and self.scope.left(measure) is not None
        return self.scope.spent(measure) if lacks and not self._take(measure) else None

    def _take(self, measure: str) -> bool:
        narrow = self.scope.narrowest(measure)
        left, limit = narrow.own_left(measure), narrow.limits[measure]
        wanted = 1.0 if measure in BY_ONE else max(left / PARTS, limit / PARTS_MAX, SMALLEST[measure])
        got = min(ceil(wanted) if measure in WHOLE else wanted, left)
        if got <= _LEAST:  # limits of what is leased one by one are whole, and so is what is left of them
            return False
        self._lease(measure, got)
        return True

    def _lease(self, measure: str, amount: float) -> None:
        self._held[measure] += amount
        for scope in self.scope.chain:
            if measure in scope.leased:
                scope.leased[measure] = max(scope.leased[measure] + amount, 0.0)  # its limits may be new

    def use(self, amounts: Amounts) -> SpentBudget | None:
        """So much was used; which budget is spent by it, if one is: nothing more is to be used then."""
        self.scope.count(amounts)
        spent: SpentBudget | None = None
        for measure in self._measures:
            used = float(getattr(amounts, measure))
            if used <= 0:
                continue
            self._lease(measure, -min(used, self._held[measure]))
            if measure not in BY_ONE and spent is None:
                spent = self.lack(measure)  # more may have been used than was held: there must be a next part
        return spent

    def give_back(self) -> None:
        """What was not used goes back."""
        for measure in self._measures:
            self._lease(measure, -self._held[measure])


def hand_back_budget(given: Budget, spent: BudgetScope) -> Budget:
    """What a turn may use that hands back what it has: *given*, and of tokens and money, where *given* does not say, a
    tenth of the narrowest limit."""
    tenths: dict[str, float] = {}
    for measure in ("tokens", "cost_usd"):
        if measure in spent.measures:
            limit = min(one.limits[measure] for one in spent.chain if measure in one.limits)
            tenths[measure] = max(limit / 10, SMALLEST[measure])
    return Budget(**{**tenths, **given.limits})  # type: ignore[arg-type]  # measures are its fields
