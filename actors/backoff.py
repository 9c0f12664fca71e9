"""Delay before another try, from the number of failures and a seeded random stream. Pure."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from actors.errors import InvalidOption


class Uniform(Protocol):
    """Protocol of a random stream, such as ``random.Random(seed)``."""

    def uniform(self, a: float, b: float, /) -> float: ...


class Backoff(NamedTuple):
    """Exponential backoff with full jitter: ``U(0, min(cap_s, base_s * factor ** (failures - 1)))`` seconds.

    The failures are counted anew once the actor has run for ``stable_s`` seconds.
    """

    base_s: float = 0.5
    factor: float = 2.0
    cap_s: float = 60.0

    def ceiling_s(self, failures: int) -> float:
        """Return the longest delay after that many failures in a row (from 1)."""
        exponent = min(failures - 1, 64)  # a float would overflow at a larger one, long after any cap
        return float(min(self.cap_s, self.base_s * self.factor**exponent))

    def delay_s(self, failures: int, rng: Uniform) -> float:
        return rng.uniform(0.0, self.ceiling_s(failures))

    @property
    def stable_s(self) -> float:
        return max(2 * self.cap_s, 120.0)

    def checked(self, whose: str) -> Backoff:
        """Return this backoff if its values are valid.

        Raises:
            InvalidOption: a delay is negative, or the delays shrink.
        """
        if not self.base_s >= 0:
            raise InvalidOption(whose, "backoff.base_s", self.base_s, "give seconds >= 0")
        if not self.cap_s >= self.base_s:
            raise InvalidOption(whose, "backoff.cap_s", self.cap_s, f"give at least base_s ({self.base_s:g} s)")
        if not self.factor >= 1:
            raise InvalidOption(whose, "backoff.factor", self.factor, "give at least 1")
        return self
