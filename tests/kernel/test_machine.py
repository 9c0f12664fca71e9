"""Engine of state machines: the meaning of a table of rules, on the table of a small turnstile."""

from __future__ import annotations

from enum import Enum

import msgspec
import pytest

from actors.machine import ANY, Effect, Event, IllegalTransition, Machine, rule


class Gate(Enum):
    LOCKED = "locked"
    OPEN = "open"
    BROKEN = "broken"


class Coin(Event, frozen=True, kw_only=True):
    """Event of the turnstile: money was put in."""

    spelled = "coin"
    cents: int = 50


class Push(Event, frozen=True, kw_only=True):
    """Event of the turnstile: a person pushed."""


class Kick(Event, frozen=True, kw_only=True):
    """Event of the turnstile: a person kicked."""


class Ring(Effect, frozen=True, kw_only=True):
    """Effect of the turnstile: ring the bell."""

    times: int


class Till(msgspec.Struct, frozen=True, kw_only=True):
    cents: int = 0
    price: int = 50


def enough(data: Till, event: Coin) -> bool:
    return data.cents + event.cents >= data.price


def take(data: Till, event: Coin) -> tuple[Till, tuple[Effect, ...]]:
    return msgspec.structs.replace(data, cents=data.cents + event.cents), ()


def ring(data: Till, event: Coin) -> tuple[Till, tuple[Effect, ...]]:
    return data, (Ring(times=data.cents),)


TURNSTILE: Machine[Gate, Till] = Machine(
    "turnstile",
    source="none",
    initial=[Gate.LOCKED],
    terminal=[Gate.BROKEN],
    rules=[
        rule(Coin, Gate.LOCKED, Gate.OPEN, when=enough, do=[take, ring]),
        rule(Coin, Gate.LOCKED, None, do=[take], extension="it takes small change"),
        rule(Push, Gate.OPEN, Gate.LOCKED, trigger="somebody walks through"),
        rule(Kick, ANY, Gate.BROKEN),
    ],
)


def test_first_rule_whose_guard_holds_wins() -> None:
    """With the price paid the guarded rule applies, and its actions run in order, each on the data of the one
    before."""
    step = TURNSTILE.step(Gate.LOCKED, Till(cents=10), Coin(cents=40))
    assert (step.state, step.data, step.effects) == (Gate.OPEN, Till(cents=50), (Ring(times=50),))
    assert step.rule.when is enough


def test_unguarded_rule_is_the_fallback() -> None:
    """Without enough money the last rule of the cell applies; its target ``None`` leaves the state as it is."""
    step = TURNSTILE.step(Gate.LOCKED, Till(), Coin(cents=20))
    assert (step.state, step.data, step.effects) == (Gate.LOCKED, Till(cents=20), ())
    assert step.rule.extension == "it takes small change"


def test_step_changes_neither_its_data_nor_its_answer() -> None:
    """The same step twice has the same result, and does not change the data passed in."""
    data = Till(cents=10)
    first, second = (TURNSTILE.step(Gate.LOCKED, data, Coin()) for _ in range(2))
    assert first == second
    assert data == Till(cents=10)


def test_illegal_event_names_what_was_allowed() -> None:
    """The error of an illegal event names machine, event, state and the allowed events, in the specification's
    spelling."""
    with pytest.raises(IllegalTransition) as caught:
        TURNSTILE.step(Gate.LOCKED, Till(), Push())
    assert str(caught.value) == "turnstile: Push in locked; allowed here: coin, Kick"
    assert caught.value.allowed == (Coin, Kick)
    assert (caught.value.machine, caught.value.state, caught.value.event) == ("turnstile", Gate.LOCKED, Push())


def test_guards_that_all_refuse_are_an_illegal_transition() -> None:
    """If the guard of a cell's only rule fails, the event is refused, as for an empty cell."""
    strict: Machine[Gate, Till] = Machine(
        "strict", initial=[Gate.LOCKED], terminal=[], rules=[rule(Coin, Gate.LOCKED, Gate.OPEN, when=enough)]
    )
    with pytest.raises(IllegalTransition, match="strict: coin in locked; allowed here: coin"):
        strict.step(Gate.LOCKED, Till(), Coin(cents=1))


def test_state_without_rules_allows_nothing() -> None:
    """The error for a state without rules states that nothing is allowed there."""
    alone: Machine[Gate, Till] = Machine(
        "alone", initial=[Gate.LOCKED], terminal=[Gate.OPEN], rules=[rule(Push, Gate.LOCKED, Gate.OPEN)]
    )
    with pytest.raises(IllegalTransition, match="alone: Push in open; allowed here: nothing"):
        alone.step(Gate.OPEN, Till(), Push())


def test_subclass_of_an_event_is_another_event() -> None:
    """A rule does not apply to a subclass of its event: an event is looked up by its exact class."""

    class GoldCoin(Coin, frozen=True, kw_only=True):
        """Event that the table does not contain."""

    with pytest.raises(IllegalTransition):
        TURNSTILE.step(Gate.LOCKED, Till(), GoldCoin())


def test_any_stands_for_every_state() -> None:
    """A rule from ANY becomes a rule from each state of the target's enum, the target included."""
    sources = [one.source for one in TURNSTILE.rules if one.on is Kick]
    assert sources == list(Gate)


def test_any_without_a_target_is_an_error() -> None:
    """A rule from ANY without a target raises an error that names the remedy, since the states cannot be known."""
    with pytest.raises(TypeError, match="name the sources"):
        rule(Kick, ANY, None)


def test_sources_may_be_many() -> None:
    """A list of sources makes one rule for each source, in order, with everything else shared."""
    rules = rule(Kick, [Gate.OPEN, Gate.LOCKED], Gate.BROKEN, when=enough, trigger="a kick")
    assert [(one.source, one.target, one.when, one.trigger) for one in rules] == [
        (Gate.OPEN, Gate.BROKEN, enough, "a kick"),
        (Gate.LOCKED, Gate.BROKEN, enough, "a kick"),
    ]


def test_replay_folds_events() -> None:
    """Replaying a list of events gives the state and data of the single steps."""
    events = [Coin(cents=20), Coin(cents=30), Push(), Kick()]
    state, data = Gate.LOCKED, Till()
    for event in events:
        state, data, _, _ = TURNSTILE.step(state, data, event)
    assert TURNSTILE.replay(Gate.LOCKED, Till(), events) == (state, data) == (Gate.BROKEN, Till(cents=50))


def test_events_are_known_by_their_spelling() -> None:
    """The machine knows its events by the names in tables and journals."""
    assert TURNSTILE.events == {"coin": Coin, "Push": Push, "Kick": Kick}


def test_events_and_effects_are_values() -> None:
    """Events and effects with equal fields, time included, are equal; their fields cannot be changed."""
    assert Coin(at=1.0) == Coin(at=1.0) != Coin(at=2.0)
    assert Ring(times=1) == Ring(times=1) != Ring(times=2)
    with pytest.raises(AttributeError):
        Coin().cents = 1  # type: ignore[misc]


def test_effects_of_several_actions_follow_each_other() -> None:
    """The effects of the actions are kept in the order of the actions; an action without effects adds none."""
    rules = [rule(Coin, Gate.LOCKED, Gate.OPEN, do=[ring, take, ring, ring])]
    machine: Machine[Gate, Till] = Machine("bells", initial=[Gate.LOCKED], terminal=[], rules=rules)
    step = machine.step(Gate.LOCKED, Till(cents=1), Coin(cents=2))
    assert step.effects == (Ring(times=1), Ring(times=3), Ring(times=3))
