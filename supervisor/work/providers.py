"""Keep one breaker per provider: while one provider fails everybody, nothing is launched against it, and all others go
on.

A provider is the adapter that drives its agents and a name. Only errors that are the provider's count
(``Failure.provider``), so that one bad task stops nobody else. An attempt that fails for any other reason says nothing
about the provider; one that succeeds says that the provider answers. Failures that an agent meets and retries by itself
count when it meets them. A transition of a breaker is returned, for the record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from actors.breaker import Answered, Breaker, BreakerLimits, Circuit, Failed, Launched, Withdrawn
from supervisor.policies.error_classification import Failure


def provider_key(adapter: str, provider: str) -> str:
    """Return the key of a provider: agents with the same *adapter* and *provider* share its breaker."""
    return f"{adapter}:{provider}"


class BreakerTransition(NamedTuple):
    """A change of the breaker of *key* to *state*, because of *why*; ``free_at_s`` is when the next probe may go."""

    key: str
    state: Circuit
    why: str
    free_at_s: float


class ProviderBreakers:
    """The breakers of all providers that anything was launched against. An unknown one is closed; ``""`` is no
    provider."""

    def __init__(self, limits: BreakerLimits | None = None) -> None:
        self._limits = limits or BreakerLimits()
        self._breakers: dict[str, Breaker] = {}

    def allows(self, key: str, now_s: float) -> bool:
        """Return whether something may be launched against the provider now."""
        breaker = self._breakers.get(key)
        return breaker is None or breaker.allows(now_s)

    def gate(self, now_s: float) -> Callable[[str], bool]:
        """Return ``allows`` for the time *now_s*."""
        return lambda key: self.allows(key, now_s)

    def launched(self, key: str, who: str, now_s: float) -> BreakerTransition | None:
        """Note that *who* is launched. An attempt that an open breaker lets through is its probe.

        Raises:
            IllegalTransition: the breaker does not allow that now.
        """
        if not key:
            return None
        breaker = self._breakers.setdefault(key, Breaker(self._limits))
        turned = breaker.apply(Launched(who=who, at=now_s))
        return BreakerTransition(key, breaker.state, f"{who} probes it", breaker.data.free_at_s) if turned else None

    def ended(self, key: str, who: str, now_s: float, failure: Failure | None) -> BreakerTransition | None:
        """Note that *who* has ended, with *failure* or well. Nothing changes if *who* was not launched against the
        provider, or if the failure was counted when the agent met it."""
        if failure is not None and failure.provider and failure.met:
            return None
        breaker = self._breakers.get(key)
        if breaker is None or not breaker.apply(_event(who, now_s, failure)):
            return None
        why = failure.why if failure is not None else f"{who} had an answer"
        return BreakerTransition(key, breaker.state, why, breaker.data.free_at_s)

    def troubled(self, key: str, who: str, now_s: float, why: str) -> BreakerTransition | None:
        """Note that *who* met a failure of the provider and goes on: others that would be launched may have to wait."""
        breaker = self._breakers.get(key)
        if breaker is None or not breaker.apply(Failed(who=who, at=now_s)):
            return None
        return BreakerTransition(key, breaker.state, why, breaker.data.free_at_s)

    def withdrawn(self, key: str, who: str, now_s: float) -> None:
        """Note that *who* ended without finding out anything: it was stopped, or its worker was lost."""
        if key in self._breakers:
            self._breakers[key].apply(Withdrawn(who=who, at=now_s))

    def free_at_s(self, now_s: float) -> float | None:
        """Return when the first open breaker allows a probe, if that is after *now_s*."""
        waiting = (one for one in self._breakers.values() if one.state is Circuit.OPEN)
        return min((at for one in waiting if (at := one.data.free_at_s) > now_s), default=None)


def _event(who: str, now_s: float, failure: Failure | None) -> Answered | Failed | Withdrawn:
    if failure is None:
        return Answered(who=who, at=now_s)
    return Failed(who=who, at=now_s) if failure.provider else Withdrawn(who=who, at=now_s)
