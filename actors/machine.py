"""Engine of state machines that are tables of rules.

``Machine.step`` maps a state, data and an event to the next state, the next data, and effects, which the caller
performs. The engine itself performs nothing.

* The table, guards included, decides each transition; diagrams, pages and checks are generated from it.
* No machine reads a clock, a file, a socket or a random number; time is ``event.at``.
* An event without a rule changes nothing, and the error names the events that are allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

import msgspec

S = TypeVar("S", bound=Enum)
D = TypeVar("D")


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base class of events, with the time at which the event happened (seconds).

    Events hold no reference cycles, so the garbage collector skips them.
    """

    spelled: ClassVar[str | None] = None
    """Name of the event in records; by default the name of its class. An event that is written to a journal has a name
    of its own, so that its class can be renamed while journals stay readable."""

    at: float = 0.0

    @classmethod
    def name(cls) -> str:
        """Return the name of the event in tables, pages and journals."""
        return cls.spelled or cls.__name__


class Effect(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base class of effects, which the caller of a machine must perform: plain values, so that tests compare them with
    ``==``."""


Guard = Callable[[Any, Any], bool]
Action = Callable[[Any, Any], "tuple[Any, tuple[Effect, ...]]"]


class _Any(Enum):
    ANY = "any state"


ANY: Final = _Any.ANY
"""Stands for all states of the machine as the sources of a rule."""


class Rule(NamedTuple, Generic[S]):
    """Rule of a table: ``source`` --``on`` [``when``] / ``do``--> ``target``.

    ``extension`` is the reason for a rule that the specification does not have; ``trigger`` quotes the specification if
    it describes the edge in prose.
    """

    on: type[Event]
    source: S
    target: S
    when: Guard | None = None
    do: tuple[Action, ...] = ()
    extension: str | None = None
    trigger: str | None = None


def rule(
    on: type[Event],
    sources: Iterable[S] | S | _Any,
    target: S | None,
    *,
    when: Guard | None = None,
    do: Iterable[Action] = (),
    extension: str | None = None,
    trigger: str | None = None,
) -> tuple[Rule[S], ...]:
    """Make the rules of one line of a table: the event *on* leads from each of *sources* to *target* (``None``: the
    state does not change).

    Raises:
        TypeError: *sources* is :data:`ANY` and *target* is ``None``: the states of the machine are unknown then.
    """
    if isinstance(sources, _Any):
        if target is None:
            raise TypeError("rule(): ANY needs a target; name the sources of a rule that stays")
        states: Iterable[S] = type(target)
    elif isinstance(sources, Enum):
        states = (sources,)
    else:
        states = sources
    actions = tuple(do)
    return tuple(
        Rule(on, source, source if target is None else target, when, actions, extension, trigger) for source in states
    )


class Step(NamedTuple, Generic[S, D]):
    """Result of an event: next state, next data, effects, and the rule that was applied."""

    state: S
    data: D
    effects: tuple[Effect, ...]
    rule: Rule[S]


_made: Any = tuple.__new__
"""Constructor of named tuples that skips their own ``__new__``, which takes longer than a lookup in the table."""

_Line = tuple[Guard | None, tuple[Action, ...], Any, "Rule[Any]"]
"""A rule in the form that ``step`` reads. Rules are stored by the state's name: hashing a member of an enum calls
Python code, hashing its name does not."""


class IllegalTransition(Exception):
    """Error: the state has no rule for the event. Nothing was changed."""

    def __init__(self, machine: str, state: Enum, event: Event, allowed: Iterable[type[Event]]) -> None:
        self.machine, self.state, self.event = machine, state, event
        self.allowed = tuple(allowed)
        names = ", ".join(kind.name() for kind in self.allowed) or "nothing"
        super().__init__(f"{machine}: {type(event).name()} in {state.value}; allowed here: {names}")


class Machine(Generic[S, D]):
    """Named table of rules over one enum of states.

    Args:
        name: name of the machine in records and pages.
        initial: states in which an entity may be created.
        rules: lines of the table, made by :func:`rule`. The first rule of a cell whose guard holds applies.
        terminal: states that no rule of the specification leaves; marked extensions may.
        reserved: states that the specification names and gives no rule.
        severities: severity of the record of a transition into a state, for the states that are not entered with
            ``info``.
        source: specification from which the table comes.
    """

    def __init__(
        self,
        name: str,
        *,
        initial: Iterable[S],
        terminal: Iterable[S],
        rules: Iterable[tuple[Rule[S], ...]],
        reserved: Iterable[S] = (),
        severities: Mapping[S, str] | None = None,
        source: str = "",
    ) -> None:
        self.name = name
        self.source = source
        self.initial = tuple(initial)
        self.terminal = frozenset(terminal)
        self.reserved = frozenset(reserved)
        self.severities: Mapping[S, str] = dict(severities or {})
        self.rules: tuple[Rule[S], ...] = tuple(one for line in rules for one in line)
        self.final = self.terminal - {one.source for one in self.rules if one.target is not one.source}
        """Terminal states that no extension leaves either: an entity in one of them has ended."""
        self.states: tuple[S, ...] = tuple(type(self.initial[0]))
        cells: dict[tuple[S, type[Event]], list[Rule[S]]] = {}
        for one in self.rules:
            cells.setdefault((one.source, one.on), []).append(one)
        self.cells: Mapping[tuple[S, type[Event]], tuple[Rule[S], ...]] = {k: tuple(v) for k, v in cells.items()}
        self.events: Mapping[str, type[Event]] = {one.on.name(): one.on for one in self.rules}
        self._lines: dict[str, dict[type[Event], tuple[_Line, ...]]] = {one._name_: {} for one in self.states}
        for (state, on), found in self.cells.items():
            self._lines[state._name_][on] = tuple((one.when, one.do, one.target, one) for one in found)

    def step(self, state: S, data: D, event: Event) -> Step[S, D]:
        """Apply *event* to a state with its data.

        Raises:
            IllegalTransition: no rule of this state accepts the event; nothing was changed.
        """
        for when, do, target, one in self._lines[state._name_].get(type(event), ()):
            if when is None or when(data, event):
                effects: tuple[Effect, ...] = ()
                for action in do:
                    data, more = action(data, event)
                    if more:
                        effects = effects + more if effects else more
                step: Step[S, D] = _made(Step, (target, data, effects, one))
                return step
        raise IllegalTransition(self.name, state, event, self.allowed(state))

    def allowed(self, state: S) -> tuple[type[Event], ...]:
        """Return the events for which *state* has a rule, in table order."""
        return tuple(self._lines[state._name_])

    def replay(self, state: S, data: D, events: Iterable[Event]) -> tuple[S, D]:
        """Apply *events* in order; return the last state and data. The effects are dropped."""
        for event in events:
            state, data, _, _ = self.step(state, data, event)
        return state, data
