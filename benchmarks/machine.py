"""Cost of one step of a state machine, with the making of its event: by the kernel's table, by hand-written code, and
by the ``transitions`` library.

A plain step has one rule and one action. A guarded step evaluates two guards before it finds its rule. The other
implementations do as much: one action each, and in the guarded case the same two guards.
"""

from __future__ import annotations

import logging
from enum import Enum
from types import SimpleNamespace
from typing import Any

from actors import Event, Machine, rule
from benchmarks.harness import Case, Line, Sizes, Stopwatch, at_most, faster_by, on_both, per_us
from benchmarks.peers import need


class State(Enum):
    OFF = "off"
    ON = "on"


class Toggle(Event, frozen=True, kw_only=True):
    """The only event of the measured machines."""


def enough(data: int, event: Event) -> bool:
    return data < 0


def count(data: int, event: Event) -> tuple[int, tuple[()]]:
    return data + 1, ()


PLAIN: Machine[State, int] = Machine(
    "plain lamp",
    initial=[State.OFF],
    terminal=[],
    rules=[rule(Toggle, State.OFF, State.ON, do=[count]), rule(Toggle, State.ON, State.OFF, do=[count])],
)
GUARDED: Machine[State, int] = Machine(
    "guarded lamp",
    initial=[State.OFF],
    terminal=[],
    rules=[
        rule(Toggle, State.OFF, State.OFF, when=enough),
        rule(Toggle, State.OFF, State.OFF, when=enough),
        rule(Toggle, State.OFF, State.ON, do=[count]),
        rule(Toggle, State.ON, State.ON, when=enough),
        rule(Toggle, State.ON, State.ON, when=enough),
        rule(Toggle, State.ON, State.OFF, do=[count]),
    ],
)


def steps_us(machine: Machine[State, int], sizes: Sizes) -> float:
    state, data = State.OFF, 0
    with Stopwatch() as watch:
        for n in range(sizes.steps):
            state, data, _, _ = machine.step(state, data, Toggle(at=n))
    return per_us(watch.spent_s, sizes.steps)


def plain_by_hand(sizes: Sizes) -> float:
    state, data = State.OFF, 0
    with Stopwatch() as watch:
        for n in range(sizes.steps):
            event = Toggle(at=n)
            state = State.ON if state is State.OFF else State.OFF
            data, _ = count(data, event)
    return per_us(watch.spent_s, sizes.steps)


def guarded_by_hand(sizes: Sizes) -> float:
    state, data = State.OFF, 0
    with Stopwatch() as watch:
        for n in range(sizes.steps):
            event = Toggle(at=n)
            if enough(data, event) or enough(data, event):
                continue
            state = State.ON if state is State.OFF else State.OFF
            data, _ = count(data, event)
    return per_us(watch.spent_s, sizes.steps)


def by_transitions(sizes: Sizes, guarded: bool) -> float:
    """Measure the ``transitions`` library: a machine with one ``after`` callback and, if *guarded*, two refused
    transitions before the one that is taken."""
    library: Any = need("transitions")
    logging.getLogger("transitions").setLevel(logging.ERROR)
    model = SimpleNamespace(data=0)

    def refuse(event: Any) -> bool:
        return enough(model.data, event)

    def counted(event: Any) -> None:
        model.data, _ = count(model.data, event)

    lines = []
    for source, target in (("off", "on"), ("on", "off")):
        refused = {"trigger": "toggle", "source": source, "dest": source, "conditions": [refuse]}
        lines += [refused, refused] if guarded else []
        lines.append({"trigger": "toggle", "source": source, "dest": target, "after": [counted]})
    library.Machine(model, states=["off", "on"], initial="off", auto_transitions=False, transitions=lines)
    with Stopwatch() as watch:
        for n in range(sizes.steps):
            model.toggle(Toggle(at=n))
    return per_us(watch.spent_s, sizes.steps)


ONCE = ("asyncio",)
"""Backends of these cases: a machine does not depend on the event loop, so it is measured once and shown in the first
column."""
PLAIN_STEP, GUARDED_STEP = (
    on_both(lambda sizes: steps_us(PLAIN, sizes)),
    on_both(lambda sizes: steps_us(GUARDED, sizes)),
)
CASES = (
    Case((Line("machine step, plain", "us", at_most(1.0)),), PLAIN_STEP, "by hand", on_both(plain_by_hand), ONCE),
    Case(
        (Line("machine step, two guards", "us", at_most(2.0)),), GUARDED_STEP, "by hand", on_both(guarded_by_hand), ONCE
    ),
    Case(
        (Line("machine step, plain", "us", faster_by(20)),),
        PLAIN_STEP,
        "the transitions library",
        on_both(lambda sizes: by_transitions(sizes, guarded=False)),
        ONCE,
    ),
    Case(
        (Line("machine step, two guards", "us", faster_by(20)),),
        GUARDED_STEP,
        "the transitions library",
        on_both(lambda sizes: by_transitions(sizes, guarded=True)),
        ONCE,
    ),
)
