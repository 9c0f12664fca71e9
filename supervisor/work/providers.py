"""One breaker for each provider: while one fails everybody, nobody is launched against it, and all others go on.

A provider is known by the adapter that drives its agents and a name. Only errors that are the provider's count
(``Failure.provider``), so that one bad task stops nobody else; an attempt that fails for any other reason says nothing
about the provider, one that succeeds says that it answers. Failures that an agent meets, and tries again after, count
when it meets them. What opens and closes is returned, for the record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from actors.breaker import Answered, Breaker, BreakerLimits, Circuit, Failed, Launched, Withdrawn
from supervisor.policies.error_classification import Failure

__all__ = ["BreakerTransition", "ProviderBreakers", "provider_key"]


def provider_key(adapter: str, provider: str) -> str:
    """What a provider is known by: who has the adapter *adapter* and names *provider* shares its breaker."""
    return f"{adapter}:{provider}"


class BreakerTransition(NamedTuple):
    """The breaker of *key* has changed to *state*, because of *why*; ``free_at_s`` is when the next probe may go."""

    key: str
    state: Circuit
    why: str
    free_at_s: float


class ProviderBreakers:
    """The breakers of all providers that anything was launched against. An unknown one is closed; "" is none."""

    def __init__(self, limits: BreakerLimits | None = None) -> None:
        self._limits = limits or BreakerLimits()
        self._breakers: dict[str, Breaker] = {}

    def allows(self, key: str, now_s: float) -> bool:
        """May something be launched against that provider now?"""
        breaker = self._breakers.get(key)
        return breaker is None or breaker.allows(now_s)

    def gate(self, now_s: float) -> Callable[[str], bool]:
        """The same question, for whoever claims at *now_s*."""
        return lambda key: self.allows(key, now_s)

    def launched(self, key: str, who: str, now_s: float) -> BreakerTransition | None:
        """*who* is launched against it. An attempt that gets through an open breaker is its probe.

        Raises:
            IllegalTransition: it does not allow that now.
        """
        if not key:
            return None
        breaker = self._breakers.setdefault(key, Breaker(self._limits))
        turned = breaker.hear(Launched(who=who, at=now_s))
        return BreakerTransition(key, breaker.state, f"{who} probes it", breaker.data.free_at_s) if turned else None

    def ended(self, key: str, who: str, now_s: float, failure: Failure | None) -> BreakerTransition | None:
        """*who* has ended, with *failure*, or well. Who was not launched against it changes nothing; nor does a failure
        that was met while *who* was at it."""
        if failure is not None and failure.provider and failure.met:
            return None
        breaker = self._breakers.get(key)
        if breaker is None or not breaker.hear(_event(who, now_s, failure)):
            return None
        why = failure.why if failure is not None else f"{who} had an answer"
        return BreakerTransition(key, breaker.state, why, breaker.data.free_at_s)

    def troubled(self, key: str, who: str, now_s: float, why: str) -> BreakerTransition | None:
        """*who* goes on, and met a failure of the provider: whoever else would be launched against it may wait."""
        breaker = self._breakers.get(key)
        if breaker is None or not breaker.hear(Failed(who=who, at=now_s)):
            return None
        return BreakerTransition(key, breaker.state, why, breaker.data.free_at_s)

    def withdrawn(self, key: str, who: str, now_s: float) -> None:
        """*who* ended without having found out anything: it was stopped, or its worker was lost."""
        if key in self._breakers:
            self._breakers[key].hear(Withdrawn(who=who, at=now_s))

    def free_at_s(self, now_s: float) -> float | None:
        """When the first of those that allow nothing now, and wait for a time, allow a probe; ``None``: no such."""
        waiting = (one for one in self._breakers.values() if one.state is Circuit.OPEN)
        return min((at for one in waiting if (at := one.data.free_at_s) > now_s), default=None)


def _event(who: str, now_s: float, failure: Failure | None) -> Answered | Failed | Withdrawn:
    if failure is None:
        return Answered(who=who, at=now_s)
    return Failed(who=who, at=now_s) if failure.provider else Withdrawn(who=who, at=now_s)
