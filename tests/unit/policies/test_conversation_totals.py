"""Totals of conversations: what a reported total adds to the usage of a session."""

from __future__ import annotations

import msgspec

from supervisor.policies.budgets import Amounts
from supervisor.policies.usage import CONVERSATIONS_MAX, ConversationTotals


def tokens(into: int, out: int, *, requests: int = 0) -> Amounts:
    return Amounts(input_tokens=into, output_tokens=out, requests=requests)


def test_of_a_total_only_the_increase_counts() -> None:
    """Each total adds what it exceeds the total before; the requests of a report are no total."""
    totals = ConversationTotals()
    added = [totals.increase("c", tokens(*one, requests=1)) for one in ((1000, 100), (2000, 200), (2000, 200))]
    assert added == [tokens(1000, 100, requests=1), tokens(1000, 100, requests=1), tokens(0, 0, requests=1)]


def test_each_conversation_has_a_total_of_its_own() -> None:
    """The first total of another conversation, also of a fork, counts from 0."""
    totals = ConversationTotals()
    totals.increase("c", tokens(1000, 100))
    assert totals.increase("fork", tokens(1500, 150)) == tokens(1500, 150)
    assert totals.increase("c", tokens(1200, 120)) == tokens(200, 20)


def test_a_smaller_total_counts_from_zero() -> None:
    """A total that is smaller than the last one in any measure begins anew: all of it counts, and none of it is
    negative."""
    totals = ConversationTotals()
    totals.increase("c", tokens(1000, 100))
    assert totals.increase("c", tokens(400, 300)) == tokens(400, 300)
    assert totals.increase("c", tokens(500, 300)) == tokens(100, 0)


def test_a_measure_that_is_not_reported_keeps_its_total() -> None:
    """Tokens and cost may be reported separately: a report of one says nothing about the other."""
    totals = ConversationTotals()
    totals.increase("c", tokens(1000, 100))
    assert totals.increase("c", Amounts(cost_usd=0.5)) == Amounts(cost_usd=0.5)
    assert totals.increase("c", tokens(1100, 100)) == tokens(100, 0)
    assert totals.increase("c", Amounts(cost_usd=0.75)) == Amounts(cost_usd=0.25)


def test_restored_totals_go_on() -> None:
    """The recorded totals, as JSON, restore the state; only totals that have changed since the last record are in the
    next one."""
    totals = ConversationTotals()
    totals.increase("a", tokens(10, 1))
    totals.increase("b", Amounts(cost_usd=0.1 + 0.2))
    recorded = msgspec.json.decode(msgspec.json.encode(totals.take_changed()), type=dict[str, Amounts])
    assert totals.take_changed() == {}
    restored = ConversationTotals(recorded)
    assert restored.increase("b", Amounts(cost_usd=0.1 + 0.2)) == Amounts()
    assert restored.increase("a", tokens(15, 1)) == tokens(5, 0)
    assert list(restored.take_changed()) == ["b", "a"]


def test_a_conversation_keeps_its_total_when_it_gets_its_name() -> None:
    """A total that was reported before the agent named the conversation counts for the conversation of that name,
    unless that one has a total already."""
    totals = ConversationTotals()
    totals.increase("agent", tokens(10, 1))
    totals.rename("agent", "c")
    assert totals.increase("c", tokens(12, 1)) == tokens(2, 0)
    totals.increase("other agent", tokens(5, 5))
    totals.rename("other agent", "c")
    assert totals.increase("c", tokens(13, 1)) == tokens(1, 0)


def test_the_number_of_conversations_is_bounded() -> None:
    """An agent that names a new conversation with each report cannot fill the memory: further ones count nothing."""
    totals = ConversationTotals()
    for number in range(CONVERSATIONS_MAX):
        totals.increase(str(number), tokens(1, 1))
    assert totals.increase("one more", tokens(1, 1)) == Amounts()
    assert totals.increase("0", tokens(3, 1)) == tokens(2, 0)
