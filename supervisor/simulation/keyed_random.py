"""Random draws without state: every draw is a hash of the seed and of the name of the draw.

A draw that is added somewhere changes no other draw, so two runs differ only where their faults differ: this property
makes shrinking possible. The name of a draw consists of the entity that draws and the purpose (``"s3:a2"``,
``"hang"``). The same name gives the same value, so the names of repeated draws contain a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from random import Random
from typing import TypeVar

_T = TypeVar("_T")
_TOP = 1 << 53


class KeyedRandom:
    """Source of the random draws of one seed. ``below`` adds a prefix to the names of draws, so that each part of the
    world can name draws independently."""

    __slots__ = ("_key", "seed")

    def __init__(self, seed: int, *names: object) -> None:
        self.seed = seed
        self._key = "\x1f".join(map(str, (seed, *names))).encode()

    def below(self, *names: object) -> KeyedRandom:
        """Return the source of draws for a part of the world: *names* are the prefix of the draws' names."""
        part = KeyedRandom.__new__(KeyedRandom)
        part.seed, part._key = self.seed, self._named(names)
        return part

    def _named(self, names: tuple[object, ...]) -> bytes:
        return self._key + "\x1f".join(["", *map(str, names)]).encode()

    def unit(self, *names: object) -> float:
        """Draw a number from 0 up to, not including, 1; the number is the same on every machine."""
        key = self._key + "\x1f".join(["", *map(str, names)]).encode()
        return (int.from_bytes(blake2b(key, digest_size=8).digest(), "big") >> 11) / _TOP

    def between(self, low: float, high: float, *names: object) -> float:
        """Draw a number from *low* up to *high*."""
        return low + (high - low) * self.unit(*names)

    def integer(self, low: int, high: int, *names: object) -> int:
        """Draw an integer from *low* to *high*, both included."""
        return low + int((high - low + 1) * self.unit(*names))

    def choice(self, options: Sequence[_T], *names: object) -> _T:
        """Draw one of *options*, which must not be empty."""
        return options[self.integer(0, len(options) - 1, *names)]

    def happens(self, probability: float, *names: object) -> bool:
        """Draw whether an event with this probability (0 to 1) happens."""
        return probability > 0.0 and self.unit(*names) < probability

    def stream(self, *names: object) -> Random:
        """Return a random generator for many draws in a row; making the generator takes some 10 us."""
        return Random(int.from_bytes(blake2b(self._named(names), digest_size=16).digest(), "big"))
