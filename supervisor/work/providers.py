"""A breaker for each provider of models: while a provider fails for all agents, no agent is launched against that
provider, and the agents of other providers go on.

A provider is identified by a name (``PlanRun.provider_of``). Only errors of the provider count
(``Failure.provider``), so that one bad task stops no other task. An attempt that fails for any other reason shows
nothing about the provider; an attempt that succeeds shows that the provider works. A failure that an agent meets and
retries by itself counts when the agent meets it. A transition of a breaker is returned, so that the caller can record
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from actors.breaker import Answered, Breaker, BreakerLimits, Circuit, Failed, Launched, Withdrawn
from supervisor.policies.error_classification import Failure


class BreakerTransition(NamedTuple):
    """A transition of the breaker of provider *key* to *state*, for the reason *why*; ``free_at_s`` is the time from
    which the next probe is allowed."""

    key: str
    state: Circuit
    why: str
    free_at_s: float


class ProviderBreakers:
    """The breakers of all providers against which an agent was launched. The breaker of an unknown provider is closed;
    the key ``""`` stands for no provider."""

    def __init__(self, limits: BreakerLimits | None = None) -> None:
        self._limits = limits or BreakerLimits()
        self._breakers: dict[str, Breaker] = {}

    def allows(self, key: str, now_s: float) -> bool:
        """Return whether an agent may be launched against the provider now."""
        breaker = self._breakers.get(key)
        return breaker is None or breaker.allows(now_s)

    def gate(self, now_s: float) -> Callable[[str], bool]:
        """Return a function that tells for a provider whether ``allows`` holds at the time *now_s*."""
        return lambda key: self.allows(key, now_s)

    def launched(self, key: str, who: str, now_s: float) -> BreakerTransition | None:
        """Register the launch of the task *who*. An attempt that an open breaker lets through is the probe of the
        breaker.

        Raises:
            IllegalTransition: the breaker allows no launch now.
        """
        if not key:
            return None
        breaker = self._breakers.setdefault(key, Breaker(self._limits))
        turned = breaker.apply(Launched(who=who, at=now_s))
        return BreakerTransition(key, breaker.state, f"{who} probes it", breaker.data.free_at_s) if turned else None

    def ended(self, key: str, who: str, now_s: float, failure: Failure | None) -> BreakerTransition | None:
        """Register that the attempt of *who* has ended, with *failure* or with success. Nothing changes if *who* was
        not launched against the provider, or if the failure was counted when the agent met it."""
        if failure is not None and failure.provider and failure.met:
            return None
        breaker = self._breakers.get(key)
        if breaker is None or not breaker.apply(_event(who, now_s, failure)):
            return None
        why = failure.why if failure is not None else f"{who} had an answer"
        return BreakerTransition(key, breaker.state, why, breaker.data.free_at_s)

    def troubled(self, key: str, who: str, now_s: float, why: str) -> BreakerTransition | None:
        """Register that *who* met a failure of the provider and goes on: other launches may have to wait."""
        breaker = self._breakers.get(key)
        if breaker is None or not breaker.apply(Failed(who=who, at=now_s)):
            return None
        return BreakerTransition(key, breaker.state, why, breaker.data.free_at_s)

    def withdrawn(self, key: str, who: str, now_s: float) -> None:
        """Register that *who* ended without showing anything about the provider: it was stopped, or its worker was
        lost."""
        if key in self._breakers:
            self._breakers[key].apply(Withdrawn(who=who, at=now_s))

    def free_at_s(self, now_s: float) -> float | None:
        """Return the time at which the first open breaker allows a probe, if that is after *now_s*; else ``None``."""
        waiting = (one for one in self._breakers.values() if one.state is Circuit.OPEN)
        return min((at for one in waiting if (at := one.data.free_at_s) > now_s), default=None)


def _event(who: str, now_s: float, failure: Failure | None) -> Answered | Failed | Withdrawn:
    if failure is None:
        return Answered(who=who, at=now_s)
    return Failed(who=who, at=now_s) if failure.provider else Withdrawn(who=who, at=now_s)
