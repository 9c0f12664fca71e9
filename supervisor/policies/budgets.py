"""Budget scopes: limits on tokens, money, turns, tool calls and time, leased before they are used.

A scope (a workstream, a task, a session, a turn) counts all use of its entity and the entities below, against its own
limits and the limits of every scope above it; so a child's budget only narrows its parent's budget. A session that
works holds a lease: a part of the amount that is left in every scope of its chain. The session leases the next part
when the first is used up, and returns the unused rest. Sessions that share a scope can therefore exceed its limit only
by usage that is reported late. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any, Final, NamedTuple

import msgspec

MEASURES: Final = ("tokens", "cost_usd", "turns", "tool_calls", "wall_s")
"""Measures of a budget: tokens (in and out together), US dollars, turns, tool calls, seconds of turns (summed)."""

PARTS: Final = 64
"""Divisor of a lease: one part is the amount left divided by this, so that each session that shares a budget holds
little unused."""
PARTS_MAX: Final = 4_096
"""Divisor of the limit for the smallest part: no part is smaller than limit / PARTS_MAX, if that much is left."""

SMALLEST: Final[Mapping[str, float]] = {"tokens": 1, "cost_usd": 0.0, "wall_s": 1.0}
"""Smallest amount of a lease, for the measures that are not leased in single units, if that much is left."""

BY_ONE: Final = frozenset({"turns", "tool_calls"})
"""Measures that are leased in single units, since the amount is known before it is used."""

COUNT_MAX: Final = 2**53
"""Largest amount that is counted: an agent may report any number, and a record holds 64 bits."""

WHOLE: Final = frozenset({"tokens", "turns", "tool_calls"})
"""Measures that are counted in whole numbers."""

NEAR: Final = 0.8
"""Share of a limit from which a budget counts as nearly spent."""

_LEAST: Final = 1e-9
"""Amounts below this count as 0 when the rest of a budget is computed, since sums of money and of seconds are not
exact."""


class Amounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Amounts that were used. ``cached_tokens`` are a part of ``input_tokens``; ``requests`` counts requests to a
    model."""

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
        """Return the difference of each amount, never below 0."""
        names = self.__struct_fields__
        return Amounts(**{name: max(getattr(self, name) - getattr(less, name), 0) for name in names})

    def at_least(self, other: Amounts) -> Amounts:
        """Return, for each amount, the larger of the two."""
        names = self.__struct_fields__
        return Amounts(**{name: max(getattr(self, name), getattr(other, name)) for name in names})

    @property
    def words(self) -> str:
        """The amounts that are not 0, as text for people."""
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
    def as_record(self) -> dict[str, Any]:
        """The amounts that are not 0, in the form of a record's fields, money and time rounded to millionths."""
        found = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: round(one, 6) if isinstance(one, float) else one for name, one in found.items() if one}


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a budget; ``None`` means unlimited. ``wall_s`` counts seconds of turns: two turns at once use two
    seconds per second."""

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
        """The measures that are bounded, with their limits."""
        return {name: limit for name in MEASURES if (limit := getattr(self, name)) is not None}


def narrow_budget(own: Budget, above: Budget) -> tuple[Budget, tuple[str, ...]]:
    """Return *own* bounded by *above*, and the measures in which *own* exceeds *above*."""
    wide = tuple(name for name, limit in own.limits.items() if limit > above.limits.get(name, limit))
    least = {name: min(own.limits.get(name, limit), limit) for name, limit in above.limits.items()}
    return Budget(**{**own.limits, **least}), wide  # type: ignore[arg-type]  # measures are its fields


class SpentBudget(NamedTuple):
    """A budget that is used up: its owner, measure, limit, the amount used, and the amount leased to other sessions."""

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
    """Limits of one entity and everything below it, with the amounts used and leased. *title* is the entity's name for
    people."""

    __slots__ = ("id", "leased", "limits", "nearly_spent", "parent", "title", "used")

    def __init__(self, scope_id: str, title: str, budget: Budget, parent: BudgetScope | None = None) -> None:
        self.id = scope_id
        self.title = title
        self.parent = parent
        self.used = Amounts()
        self.nearly_spent: dict[str, None] = {}
        """The measures of which ``NEAR`` of the limit is used, as far as ``check_near`` has returned them."""
        self.limits: dict[str, float] = {}
        self.leased: dict[str, float] = {}
        self.bound(budget)

    def bound(self, budget: Budget) -> None:
        """Replace the limits; the amounts used and leased stay."""
        self.limits = budget.limits
        self.leased = {measure: self.leased.get(measure, 0.0) for measure in self.limits}

    @property
    def chain(self) -> Iterator[BudgetScope]:
        """This scope, and every scope above it."""
        scope: BudgetScope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    @property
    def measures(self) -> dict[str, None]:
        """The measures that are bounded here or above."""
        return {name: None for scope in self.chain for name in scope.limits}

    def own_left(self, measure: str) -> float:
        """Return the amount of *measure* that this scope's own limit leaves unused and unleased."""
        return self.limits[measure] - float(getattr(self.used, measure)) - self.leased[measure]

    def narrowest(self, measure: str) -> BudgetScope:
        """Return the scope of the chain that has the least left of *measure*."""
        return min((one for one in self.chain if measure in one.limits), key=lambda one: one.own_left(measure))

    def left(self, measure: str) -> float | None:
        """Return the amount of *measure* that may still be leased; ``None`` if no scope of the chain bounds
        *measure*."""
        if measure not in self.measures:
            return None
        left = self.narrowest(measure).own_left(measure)
        return left if left > _LEAST else 0.0

    def spent(self, measure: str) -> SpentBudget:
        """Return the budget of the chain that has nothing of *measure* left."""
        scope = self.narrowest(measure)
        used = getattr(scope.used, measure)
        return SpentBudget(scope.title, measure, scope.limits[measure], used, scope.leased[measure])

    def count(self, amounts: Amounts) -> None:
        """Add *amounts* to the use of this scope and of every scope above it."""
        for scope in self.chain:
            scope.used = scope.used + amounts

    def check_near(self) -> list[SpentBudget]:
        """Return the budgets of the chain of which ``NEAR`` is used by now, each once."""
        found: list[SpentBudget] = []
        for scope in self.chain:
            for measure, limit in scope.limits.items():
                used = float(getattr(scope.used, measure))
                if limit and used >= NEAR * limit and measure not in scope.nearly_spent:
                    scope.nearly_spent[measure] = None
                    found.append(SpentBudget(scope.title, measure, limit, used, scope.leased[measure]))
        return found

    def recall(self, used: Amounts) -> None:
        """Raise the use of this scope to at least *used*, the amounts of an earlier record."""
        self.used = self.used.at_least(used)
        self.check_near()  # the earlier supervisor has returned those

    @property
    def as_record(self) -> list[dict[str, Any]]:
        """The chain of scopes in the form of a record's fields."""
        return [
            {"id": one.id, "title": one.title, "limits": one.limits, "used": one.used.as_record} for one in self.chain
        ]


class BudgetLease:
    """A lease on a chain of scopes: a part of the amount left, which a session can use without leasing again."""

    def __init__(self, scope: BudgetScope) -> None:
        self.scope = scope
        self._measures = tuple(scope.measures)
        self._held: dict[str, float] = dict.fromkeys(self._measures, 0.0)

    def held(self, measure: str) -> float:
        """Return the amount of *measure* that the lease still holds; infinite for an unbounded measure."""
        return self._held.get(measure, float("inf"))

    def lacking(self) -> SpentBudget | None:
        """Lease a part of every measure that a turn needs to begin and of which nothing is held; return the first
        budget that is spent, or ``None``."""
        lacks = (self.lack(measure) for measure in self._measures if measure != "tool_calls")
        return next((spent for spent in lacks if spent is not None), None)

    def lack(self, measure: str) -> SpentBudget | None:
        """Lease a part of *measure* unless some is held; return the spent budget if nothing is left to lease, else
        ``None``."""
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
        """Record that *amounts* were used; return a budget that this has used up, or ``None``. With a spent budget,
        nothing more may be used."""
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
        """Return the unused rest of the lease to the scopes."""
        for measure in self._measures:
            self._lease(measure, -self._held[measure])


def hand_back_budget(given: Budget, spent: BudgetScope) -> Budget:
    """Return the budget of a turn that hands back unfinished work: *given*, and a tenth of the narrowest limit for
    tokens or money where *given* has no limit."""
    tenths: dict[str, float] = {}
    for measure in ("tokens", "cost_usd"):
        if measure in spent.measures:
            limit = min(one.limits[measure] for one in spent.chain if measure in one.limits)
            tenths[measure] = max(limit / 10, SMALLEST[measure])
    return Budget(**{**tenths, **given.limits})  # type: ignore[arg-type]  # measures are its fields
