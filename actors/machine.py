"""One engine for every lifecycle.

A lifecycle is a table of rules. The engine reads the table and never does anything: ``Machine.step`` answers one
question, *in this state, with this data, what does this event mean?*, with the next state, the next data and the
effects that somebody else must perform.

Law 1: whatever decides a transition is in the table, guards included; diagrams, pages and checks are drawn from it.
Law 2: nothing here reads a clock, a file, a socket or a random number; time reaches a machine only as ``event.at``.
Law 3: an event without a rule changes nothing, and the error names what was allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

import msgspec

__all__ = ["ANY", "Action", "Effect", "Event", "Guard", "IllegalTransition", "Machine", "Rule", "Step", "rule"]

S = TypeVar("S", bound=Enum)
D = TypeVar("D")


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something that happened, at a time that somebody else read off a clock (seconds).

    Values like this one hold no cycles, so the garbage collector need not look at them.
    """

    spelled: ClassVar[str | None] = None
    """The event's name in records. An event that a journal keeps has its own, so that its class can be renamed while
    journals stay readable; an event without one is named like its class."""

    at: float = 0.0

    @classmethod
    def name(cls) -> str:
        """The name that tables, pages and journals show."""
        return cls.spelled or cls.__name__


class Effect(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something that must be done: a value, so that a test compares it with ``==``."""


Guard = Callable[[Any, Any], bool]
Action = Callable[[Any, Any], "tuple[Any, tuple[Effect, ...]]"]


class _Any(Enum):
    ANY = "any state"


ANY: Final = _Any.ANY
"""As the sources of a rule: every state of the machine."""


class Rule(NamedTuple, Generic[S]):
    """``source`` --``on`` [``when``] / ``do``--> ``target``.

    ``extension`` says why a rule stands here that the specification does not have; ``trigger`` quotes the
    specification where it describes the edge in prose.
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
    """One line of a table: *on* takes any of *sources* to *target* (``None``: it stays where it is).

    Raises:
        TypeError: *sources* is :data:`ANY` and *target* is ``None``: the states cannot be known.
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
    """What an event meant: where the machine is now, what it knows, what must be done, and by which rule."""

    state: S
    data: D
    effects: tuple[Effect, ...]
    rule: Rule[S]


_made: Any = tuple.__new__
"""Makes a named tuple without the detour over its own ``__new__``, which takes longer than a lookup in the table."""

_Line = tuple[Guard | None, tuple[Action, ...], Any, "Rule[Any]"]
"""A rule as ``step`` reads it. Lines are found by the state's name: hashing a member of an enum is a call into Python,
hashing its name is not."""


class IllegalTransition(Exception):
    """This state has no rule for this event. Nothing was changed."""

    def __init__(self, machine: str, state: Enum, event: Event, allowed: Iterable[type[Event]]) -> None:
        self.machine, self.state, self.event = machine, state, event
        self.allowed = tuple(allowed)
        names = ", ".join(kind.name() for kind in self.allowed) or "nothing"
        super().__init__(f"{machine}: {type(event).name()} in {state.value}; allowed here: {names}")


class Machine(Generic[S, D]):
    """A named table of rules over one enum of states.

    Args:
        name: what records and pages call it.
        initial: the states an entity may be born in.
        rules: the lines of the table, each made by :func:`rule`. The first rule of a cell whose guard holds wins.
        terminal: the states that the specification lets nothing leave; marked extensions may.
        reserved: states that the specification names and gives no rule.
        source: which specification the table comes from.
    """

    def __init__(
        self,
        name: str,
        *,
        initial: Iterable[S],
        terminal: Iterable[S],
        rules: Iterable[tuple[Rule[S], ...]],
        reserved: Iterable[S] = (),
        source: str = "",
    ) -> None:
        self.name = name
        self.source = source
        self.initial = tuple(initial)
        self.terminal = frozenset(terminal)
        self.reserved = frozenset(reserved)
        self.rules: tuple[Rule[S], ...] = tuple(one for line in rules for one in line)
        self.final = self.terminal - {one.source for one in self.rules if one.target is not one.source}
        """The terminal states that no extension leaves either: what is in one has ended."""
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
        """Say what *event* means here.

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
        """The events that this state has a rule for, in table order."""
        return tuple(self._lines[state._name_])

    def replay(self, state: S, data: D, events: Iterable[Event]) -> tuple[S, D]:
        """Fold events back into a state. Whoever kept the journal knows which effects are still owed."""
        for event in events:
            state, data, _, _ = self.step(state, data, event)
        return state, data
