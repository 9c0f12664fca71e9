"""Chance without state: every draw is a hash of the seed and of the name of what is drawn.

A draw that is added somewhere moves no other, so two runs differ only where their faults differ: that is what makes a
failing run shrink. A name says who draws and for what (``"s3:a2"``, ``"hang"``); draw the same name twice and the
answer is the same, so whatever happens again carries a number in its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from random import Random
from typing import TypeVar

__all__ = ["KeyedRandom"]

_T = TypeVar("_T")
_TOP = 1 << 53


class KeyedRandom:
    """A seed's draws. ``below`` narrows the names, so that a part of the world may name its draws on its own."""

    __slots__ = ("_key", "seed")

    def __init__(self, seed: int, *names: object) -> None:
        self.seed = seed
        self._key = "\x1f".join(map(str, (seed, *names))).encode()

    def below(self, *names: object) -> KeyedRandom:
        """The draws of a part of the world."""
        part = KeyedRandom.__new__(KeyedRandom)
        part.seed, part._key = self.seed, self._named(names)
        return part

    def _named(self, names: tuple[object, ...]) -> bytes:
        return self._key + "\x1f".join(["", *map(str, names)]).encode()

    def unit(self, *names: object) -> float:
        """A number from 0 up to, not including, 1: the same on every machine."""
        key = self._key + "\x1f".join(["", *map(str, names)]).encode()
        return (int.from_bytes(blake2b(key, digest_size=8).digest(), "big") >> 11) / _TOP

    def between(self, low: float, high: float, *names: object) -> float:
        """A number from *low* up to *high*."""
        return low + (high - low) * self.unit(*names)

    def integer(self, low: int, high: int, *names: object) -> int:
        """An integer from *low* to *high*, both included."""
        return low + int((high - low + 1) * self.unit(*names))

    def choice(self, options: Sequence[_T], *names: object) -> _T:
        """One of *options*, which must not be empty."""
        return options[self.integer(0, len(options) - 1, *names)]

    def happens(self, probability: float, *names: object) -> bool:
        """Whether something with that probability (0 to 1) does."""
        return probability > 0.0 and self.unit(*names) < probability

    def stream(self, *names: object) -> Random:
        """A generator of its own, where many draws are made in a row (some 10 us to make)."""
        return Random(int.from_bytes(blake2b(self._named(names), digest_size=16).digest(), "big"))
