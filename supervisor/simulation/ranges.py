"""Open values of a scenario: ranges ``[low, high]`` and choices ``{ any = [...] }``. This module draws open values by
name, lists the values that may be drawn, and validates open values in fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, Final

from pydantic import AfterValidator

from supervisor.simulation.keyed_random import KeyedRandom

FEW: Final = 100
"""Largest number of combinations of a table that are all tried; with more, reading a scenario would be slow."""


def drawn(value: Any, random: KeyedRandom, *names: object) -> Any:
    """Return *value* with each range and choice in it replaced by a drawn value."""
    match value:
        case {"any": list(options), **rest} if not rest and options:
            return drawn(random.choice(options, *names), random, *names)
        case Mapping():
            return {key: drawn(one, random, *names, key) for key, one in value.items()}
        case [int(low), int(high)] if not isinstance(low, bool):
            return random.integer(low, high, *names)
        case [int() | float() as low, int() | float() as high]:
            return round(random.between(low, high, *names), 3)
        case _:
            return value


def outcomes(value: Any, *names: str) -> list[Any]:
    """Return values that may be drawn for *value*: each option of each choice, and both ends of each range, at least
    once; for a table with few combinations, all combinations.

    Raises:
        ValueError: the low end of a range is above the high end; the message begins with the name of the range, below
            *names*.
    """
    match value:
        case {"any": list(options), **rest} if not rest and options:
            return [one for option in options for one in outcomes(option, *names)]
        case Mapping():
            return _combined({key: outcomes(one, *names, key) for key, one in value.items()})
        case [int() | float() as low, int() | float() as high] if low > high:
            raise ValueError(f"{'.'.join(names)}: {_upside_down(low, high)}")
        case [int() | float() as low, int() | float() as high]:
            return [low, high]
        case _:
            return [value]


def _combined(each: Mapping[str, Sequence[Any]]) -> list[Any]:
    if prod(map(len, each.values())) <= FEW:
        return [dict(zip(each, one, strict=True)) for one in product(*each.values())]
    most = max(map(len, each.values()))
    return [{key: some[number % len(some)] for key, some in each.items()} for number in range(most)]


def _upside_down(low: float, high: float) -> str:
    return f"[{low!r}, {high!r}] is upside down; write [{high!r}, {low!r}]"


def within(low: float, high: float, *, whole: bool = False) -> Any:
    """Return a validator that rejects a number, a range or a choice outside of these bounds, both included."""

    def check(value: Any) -> Any:
        match value:
            case {"any": list(options), **rest} if not rest:
                _check_options(value, options, check)
            case [least, most]:
                _check_number(least, value)
                _check_number(most, value)
                if least > most:
                    raise ValueError(_upside_down(least, most))
            case _:
                _check_number(value, value)
        return value

    def _check_number(one: Any, value: Any) -> None:
        if isinstance(one, bool) or not isinstance(one, int | float) or not low <= one <= high:
            raise ValueError(f"{value!r} must be a number from {low:g} to {high:g}, or [low, high] of such numbers")
        if whole and isinstance(one, float):
            raise ValueError(f"{value!r} must be whole, or [low, high] of whole numbers")

    return AfterValidator(check)


def _check_options(value: Any, options: Sequence[Any], check: Callable[[Any], Any]) -> None:
    if not options:
        raise ValueError(f"{value!r} is a choice of nothing; give it values, or leave the field out")
    for one in options:
        check(one)
