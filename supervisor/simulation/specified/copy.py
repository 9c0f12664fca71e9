"""A copy of one entity, and how effects are compared: by what they do, never by their words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar

import msgspec

__all__ = ["Copy", "Effects", "Meta", "shown", "verdict_in"]

Meta = Mapping[str, Any]
Effects = list[tuple[Any, ...]]

WORDS = frozenset({"error", "reason", "message", "info", "note", "at", "title", "sender", "text"})
"""Fields that people read, and the time."""
_PLAIN = frozenset({str, int, float, bool, type(None), tuple})
"""Types whose values are shown as they are: no enum is among them."""
_MODEL = (("status", None), ("attempts", 0), ("final", False))
"""What a record says of a model that failed, and what it means where it does not."""


def shown(value: msgspec.Struct) -> tuple[Any, ...]:
    """An effect, or an event in it, as its name and the fields that are no words."""
    kind = type(value)
    told = _telling(kind)(value)
    if not _PLAIN.issuperset(map(type, told)):
        told = tuple([one if type(one) in _PLAIN else _spelled(one) for one in told])
    return (kind.__name__, *told)


@cache
def _telling(kind: type[msgspec.Struct]) -> Callable[[Any], tuple[Any, ...]]:
    """What reads the fields of that kind that are no words."""
    names = tuple(name for name in kind.__struct_fields__ if name not in WORDS)
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _spelled(value: Any) -> Any:
    """What is not plain: a struct within, or an enum's value."""
    return shown(value) if isinstance(value, msgspec.Struct) else getattr(value, "value", value)


def verdict_in(told: Meta) -> tuple[Any, ...]:
    """A verdict of a record, as it is shown in an effect."""
    model = told.get("model")
    blamed = model and ("ModelFailure", model["problem"], *(model.get(name, unsaid) for name, unsaid in _MODEL))
    return ("Verdict", told["exit"], told["transition_reason"], told["abort_reason"], told["status"], blamed)


class Copy:
    """One entity: its state as records spell it, and the fields of its data that are compared.

    ``cells`` says in which states an event means something; ``take`` moves the copy, and returns the effects.
    """

    cells: ClassVar[Mapping[str, frozenset[str]]]

    def __init__(self, state: str, data: Meta) -> None:
        self.state = state
        self.over = False
        """It has written its last record."""
        self.now_s = 0.0
        """When the event came that it takes (the journal's seconds)."""

    def stale(self, event: str, meta: Meta) -> bool:
        """Whether that comes too late."""
        return False

    def knows(self, event: str, meta: Meta) -> bool:
        """Whether that means something now."""
        return self.state in self.cells.get(event, ())

    def take(self, event: str, meta: Meta) -> Effects:
        """One event that means something here."""
        effects: Effects = getattr(self, _name_of(event))(meta)
        return effects

    def differs(self, data: Any) -> str:
        """What of *data* is not as it is here, in words."""
        raise NotImplementedError


@cache
def _name_of(event: str) -> str:
    return f"on_{event.lower()}"
