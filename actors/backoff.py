"""How long to wait before another try. Pure: the number of failures and a seeded random stream in, seconds out."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from actors.errors import InvalidOption

__all__ = ["Backoff", "Uniform"]


class Uniform(Protocol):
    """A seeded random stream, such as ``random.Random(seed)``."""

    def uniform(self, a: float, b: float, /) -> float: ...


class Backoff(NamedTuple):
    """Full jitter over an exponential: ``U(0, min(cap_s, base_s * factor ** (failures - 1)))`` seconds.

    A failure counter starts afresh once the actor has been up for ``stable_s`` seconds.
    """

    base_s: float = 0.5
    factor: float = 2.0
    cap_s: float = 60.0

    def ceiling_s(self, failures: int) -> float:
        """The longest delay after that many failures in a row (from 1)."""
        exponent = min(failures - 1, 64)  # beyond that a float overflows long after any cap
        return float(min(self.cap_s, self.base_s * self.factor**exponent))

    def delay_s(self, failures: int, rng: Uniform) -> float:
        return rng.uniform(0.0, self.ceiling_s(failures))

    @property
    def stable_s(self) -> float:
        return max(2 * self.cap_s, 120.0)

    def checked(self, whose: str) -> Backoff:
        """This backoff.

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
