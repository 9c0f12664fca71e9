"""Budgets: the arithmetic of budget scopes and leases."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from supervisor.policies.budgets import (
    COUNT_MAX,
    PARTS,
    WHOLE,
    Amounts,
    Budget,
    BudgetLease,
    BudgetScope,
    hand_back_budget,
    narrow_budget,
)


def scopes() -> tuple[BudgetScope, BudgetScope]:
    """Return the budget scope of a workstream with 1,000 tokens, and of a session in it with 600 tokens and three
    turns."""
    above = BudgetScope("ws", "workstream plan", Budget(tokens=1000))
    return above, BudgetScope("s", "session s", Budget(tokens=600, turns=3), above)


# ---------------------------------------------------------------------------------------------------- scopes
def test_use_counts_in_every_scope_of_the_chain() -> None:
    """Usage of a session counts in its workstream too, input and output together."""
    above, below = scopes()
    BudgetLease(below).use(Amounts(input_tokens=10, output_tokens=5, turns=1))
    assert (above.used.tokens, below.used.tokens, above.used.turns, below.used.turns) == (15, 15, 1, 1)


def test_the_narrowest_scope_decides_what_is_left() -> None:
    """The amount left in a budget scope is bounded by what the scope above has left."""
    above, below = scopes()
    assert below.left("tokens") == 600
    above.count(Amounts(input_tokens=700))
    assert below.left("tokens") == 300
    assert below.left("turns") == 3
    assert below.left("cost_usd") is None


def test_a_lease_is_taken_before_use_and_goes_back() -> None:
    """A leased amount is no longer left for others, and the unused part is given back."""
    above, below = scopes()
    lease = BudgetLease(below)
    assert lease.lacking() is None
    assert above.left("tokens") == 1000 - ceil(600 / PARTS)
    lease.use(Amounts(input_tokens=2, turns=1))
    lease.give_back()
    assert (above.left("tokens"), below.left("turns")) == (998, 2)
    assert above.leased == {"tokens": 0}


def test_two_leases_cannot_take_the_same_part() -> None:
    """Leases of one budget scope together never exceed its limit, however they take turns."""
    above = BudgetScope("ws", "workstream plan", Budget(tokens=100))
    one, other = BudgetLease(above), BudgetLease(above)
    spent = None
    while spent is None:
        for lease in (one, other):
            spent = lease.lack("tokens") or lease.use(Amounts(output_tokens=1)) or spent
            assert above.used.tokens + above.leased["tokens"] <= 100
    assert above.used.tokens == 100
    assert (spent.whose, spent.measure, spent.limit, spent.used) == ("workstream plan", "tokens", 100, 100)
    assert spent.words == "the budget of workstream plan is spent: tokens: limit 100, used 100"


def test_only_the_report_that_crosses_the_limit_is_too_much() -> None:
    """A usage report that crosses the limit counts in full; then no lease in the scope gets more."""
    above, below = scopes()
    one, other = BudgetLease(below), BudgetLease(above)
    one.lacking()
    spent = one.use(Amounts(output_tokens=1200))
    assert spent is not None
    assert "session s" in spent.words
    assert other.lacking() is not None
    assert above.used.tokens == 1200
    assert above.left("tokens") == 0


def test_turns_and_calls_are_leased_one_by_one() -> None:
    """Tool calls are leased one by one: the last one within the limit is allowed, the next one is refused."""
    scope = BudgetScope("s", "session s", Budget(tool_calls=2))
    lease = BudgetLease(scope)
    for _ in range(2):
        assert lease.lack("tool_calls") is None
        assert lease.use(Amounts(tool_calls=1)) is None
        assert lease.held("tool_calls") == 0
    spent = lease.lack("tool_calls")
    assert spent is not None
    assert scope.used.tool_calls == 2


def test_a_turn_may_begin_without_a_call_being_left() -> None:
    """A turn may begin with no tool call left, but not with no turn left."""
    assert BudgetLease(BudgetScope("s", "session s", Budget(tool_calls=0))).lacking() is None
    assert BudgetLease(BudgetScope("s", "session s", Budget(turns=0))).lacking() is not None


def test_money_and_time_come_to_an_end() -> None:
    """A budget of money or time is used up in a bounded number of leases, although the leases get smaller."""
    scope = BudgetScope("s", "session s", Budget(cost_usd=0.3, wall_s=7.0))
    for measure in ("cost_usd", "wall_s"):
        lease, steps = BudgetLease(scope), 0
        while lease.lack(measure) is None:
            lease.use(Amounts(**{measure: lease.held(measure)}))
            steps += 1
            assert steps < 5000
    assert (scope.used.cost_usd, scope.used.wall_s) == (pytest.approx(0.3), pytest.approx(7.0))


def test_amounts_have_a_bound() -> None:
    """The sums of reported usage are bounded, so that they can be written to a record."""
    scope = BudgetScope("s", "session s", Budget(tokens=1))
    for _ in range(3):
        scope.count(Amounts(input_tokens=COUNT_MAX, cost_usd=1e300))
    assert scope.used.input_tokens == COUNT_MAX


def test_amounts_read_well() -> None:
    """The text of an amount lists the values that are not 0, with their units."""
    used = Amounts(input_tokens=1200, output_tokens=300, cost_usd=0.125, turns=1, tool_calls=2, wall_s=12.3456)
    assert used.words == "1500 tokens, 0.125 USD, 1 turn, 2 tool calls, 12.35 s of turns"
    assert Amounts(turns=2).words == "2 turns"
    assert used.as_record == {
        "input_tokens": 1200,
        "output_tokens": 300,
        "cost_usd": 0.125,
        "turns": 1,
        "tool_calls": 2,
        "wall_s": 12.3456,
    }


def test_an_earlier_record_is_never_taken_back() -> None:
    """Recalling recorded usage, in any order, restores the largest recorded amount."""
    scope = BudgetScope("s", "session s", Budget(tokens=10))
    for tokens in (3, 7, 5):
        scope.recall(Amounts(output_tokens=tokens))
    assert scope.used.tokens == 7


class Sharing(RuleBasedStateMachine):
    """State machine that leases, uses and gives back in any order, in a tree of four budget scopes."""

    def __init__(self) -> None:
        super().__init__()
        root = BudgetScope("ws", "workstream", Budget(tokens=200, turns=9, wall_s=50.0))
        task = BudgetScope("t", "task", Budget(tokens=120, cost_usd=1.0), root)
        self.scopes = [
            root,
            task,
            BudgetScope("a", "a", Budget(turns=4), task),
            BudgetScope("b", "b", Budget(tokens=90), root),
        ]
        self.leases: list[BudgetLease] = []

    @rule(number=st.integers(0, 3))
    def lease(self, number: int) -> None:
        self.leases.append(BudgetLease(self.scopes[number]))
        self.leases[-1].lacking()

    @rule(number=st.integers(0, 9), measure=st.sampled_from(["tokens", "cost_usd", "wall_s", "turns"]))
    def use_what_is_held(self, number: int, measure: str) -> None:
        if self.leases:
            lease = self.leases[number % len(self.leases)]
            if lease.lack(measure) is None:
                held = lease.held(measure)
                amount = min(held, 3.0)
                name = "input_tokens" if measure == "tokens" else measure
                whole = int(amount) if measure in WHOLE else amount
                lease.use(Amounts(**{name: whole}))

    @rule(number=st.integers(0, 9))
    def give_back(self, number: int) -> None:
        if self.leases:
            self.leases.pop(number % len(self.leases)).give_back()

    @invariant()
    def nobody_is_granted_more_than_there_is(self) -> None:
        """Usage and leases of each scope together never exceed its limits."""
        for scope in self.scopes:
            for measure, limit in scope.limits.items():
                assert scope.leased[measure] >= 0
                assert getattr(scope.used, measure) + scope.leased[measure] <= limit + 1e-6

    @invariant()
    def what_is_used_below_is_used_above(self) -> None:
        for scope in self.scopes:
            if scope.parent is not None:
                assert scope.used.tokens <= scope.parent.used.tokens
                assert scope.used.turns <= scope.parent.used.turns

    def teardown(self) -> None:
        for lease in self.leases:
            lease.give_back()
        assert all(held == pytest.approx(0.0) for scope in self.scopes for held in scope.leased.values())


TestSharing = Sharing.TestCase


# ---------------------------------------------------------------------------------------------------- limits
@pytest.mark.parametrize(
    ("own", "above", "comes_to", "wide"),
    [
        (Budget(tokens=5), Budget(tokens=3, turns=2), Budget(tokens=3, turns=2), ("tokens",)),
        (Budget(tokens=2), Budget(tokens=3), Budget(tokens=2), ()),
        (Budget(cost_usd=1.0), Budget(), Budget(cost_usd=1.0), ()),
        (Budget(), Budget(wall_s=9.0), Budget(wall_s=9.0), ()),
    ],
)
def test_a_child_only_narrows(own: Budget, above: Budget, comes_to: Budget, wide: tuple[str, ...]) -> None:
    """The budget of a child is the smaller one of its own and its parent's for each measure; ``wide`` lists the
    measures where the child's was larger."""
    assert narrow_budget(own, above) == (comes_to, wide)


@pytest.mark.parametrize("limit", [-1, float("nan")])
def test_a_limit_is_a_number(limit: float) -> None:
    """A budget limit below 0, or one that is no number, is an error that names the field."""
    with pytest.raises(ValueError, match=r"budget: wall_s: .* give a number, 0 or more"):
        Budget(wall_s=limit)


def test_handing_back_has_a_budget_of_its_own() -> None:
    """The budget for handing back is the given one, or a tenth of the narrowest limit of tokens and money."""
    _, below = scopes()
    assert hand_back_budget(Budget(wall_s=60.0), below) == Budget(wall_s=60.0, tokens=60)
    assert hand_back_budget(Budget(tokens=5), below) == Budget(tokens=5)
