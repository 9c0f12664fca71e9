"""Leases: who holds what, until when, under which fencing token.

Pure: times are arguments, in seconds of one clock. A thing has at most one holder. Tokens only grow, over all things
and for ever: whoever held a thing before has a smaller one than whoever holds it now, so that what comes late is known
by its number, whatever happened in between. A lease that has run out stands until somebody takes it away (``expired``),
so that a thing is never free without having been told of.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import isfinite
from typing import NamedTuple

__all__ = ["Claim", "Leases", "StaleClaim"]


class Claim(NamedTuple):
    """*worker_id* holds *item_id* until *expires_s*; *token* is larger than every one that was granted before."""

    item_id: str
    worker_id: str
    token: int
    expires_s: float


class StaleClaim(LookupError):
    """Somebody acted on a claim that is not his any more; nothing was changed.

    ``token`` is the one he showed, ``holder`` the claim that stands now, if there is one.
    """

    def __init__(self, item_id: str, token: int, holder: Claim | None, last: int) -> None:
        self.item_id = item_id
        self.token = token
        self.holder = holder
        now = f"{holder.worker_id!r} holds it with token {holder.token}" if holder else f"its last token was {last}"
        super().__init__(f"{item_id!r}: the claim with token {token} is stale, {now}; claim it anew")


class Leases:
    """Grants, renews and takes away leases. Every operation is O(log n) or better, amortised.

    Args:
        last_token: the largest token that was granted before, by whoever had these things to grant: 0 if nobody.
    """

    def __init__(self, last_token: int) -> None:
        self._last = last_token
        self._held: dict[str, Claim] = {}
        self._lease_s: dict[str, float] = {}
        self._tokens: dict[str, int] = {}
        self._workers: dict[str, dict[str, None]] = {}
        self._ends: list[tuple[float, int, str]] = []

    def grant(self, item_id: str, worker_id: str, now_s: float, lease_s: float) -> Claim:
        """A new lease on what nobody holds; without an end if *lease_s* is infinite.

        Raises:
            ValueError: somebody holds it, or *lease_s* is not above 0.
        """
        if not lease_s > 0:
            raise ValueError(f"lease_s: {lease_s!r} is not above 0")
        if item_id in self._held:
            raise ValueError(f"{item_id!r} is held by {self._held[item_id].worker_id!r}")
        self._last += 1
        claim = Claim(item_id, worker_id, self._last, now_s + lease_s)
        self._tokens[item_id] = self._last
        self._lease_s[item_id] = lease_s
        self._workers.setdefault(worker_id, {})[item_id] = None
        self._held[item_id] = claim
        self._watch(claim)
        return claim

    def check(self, item_id: str, token: int) -> Claim:
        """The claim that *token* is for.

        Raises:
            StaleClaim: it does not stand any more.
        """
        claim = self._held.get(item_id)
        if claim is None or claim.token != token:
            raise StaleClaim(item_id, token, claim, self._tokens.get(item_id, 0))
        return claim

    def renew(self, item_id: str, token: int, now_s: float) -> Claim:
        """The same claim, for as long again from *now_s*; never for less than it had. O(1).

        Raises:
            StaleClaim: it does not stand any more.
        """
        claim = self.check(item_id, token)
        claim = claim._replace(expires_s=max(claim.expires_s, now_s + self._lease_s[item_id]))
        self._held[item_id] = claim
        return claim

    def drop(self, item_id: str) -> Claim | None:
        """Take it from whoever holds it; the claim that stood."""
        claim = self._held.pop(item_id, None)
        if claim is not None:
            del self._lease_s[item_id]
            of_worker = self._workers[claim.worker_id]
            del of_worker[item_id]
            if not of_worker:
                del self._workers[claim.worker_id]
        return claim

    def holder(self, item_id: str) -> Claim | None:
        """The claim that stands on it."""
        return self._held.get(item_id)

    def of(self, worker_id: str) -> list[Claim]:
        """What that worker holds, oldest claim first."""
        return [self._held[item_id] for item_id in self._workers.get(worker_id, ())]

    def all(self) -> list[Claim]:
        """Every claim that stands, oldest first."""
        return sorted(self._held.values(), key=lambda claim: claim.token)

    def expired(self, now_s: float) -> list[Claim]:
        """Take away every lease that has run out at *now_s* (``>=``): those claims, by their ends."""
        found = []
        while self._ends and self._ends[0][0] <= now_s:
            _, token, item_id = heappop(self._ends)
            claim = self._held.get(item_id)
            if claim is None or claim.token != token:
                continue
            if claim.expires_s > now_s:
                self._watch(claim)
            else:
                self.drop(item_id)
                found.append(claim)
        return sorted(found, key=lambda one: (one.expires_s, one.token))  # a renewed one was looked at too early

    def _watch(self, claim: Claim) -> None:
        """A renewed claim is looked at again when its earlier end has come, so that renewing costs nothing."""
        if isfinite(claim.expires_s):
            heappush(self._ends, (claim.expires_s, claim.token, claim.item_id))
