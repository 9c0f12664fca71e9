"""Leases: for each held item, its holder, the end of the lease, and the fencing token.

Pure: times are arguments, in seconds of one clock. An item has at most one holder. Tokens only grow, over all items and
for ever: a former holder has a smaller token than the present holder, so that a late action is recognised by its token,
whatever happened in between. A lease that has run out stays in force until ``expired`` takes it away and returns its
claim: no item becomes free without the caller knowing.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import isfinite
from typing import NamedTuple


class Claim(NamedTuple):
    """The right of a worker to an item: *worker_id* holds *item_id* until *expires_s*; *token* is larger than every
    token that was granted before."""

    item_id: str
    worker_id: str
    token: int
    expires_s: float


class StaleClaim(LookupError):
    """Raised when a worker uses the token of a claim that is not current any more; nothing was changed."""

    def __init__(self, item_id: str, token: int, holder: Claim | None, last: int) -> None:
        now = f"{holder.worker_id!r} holds it with token {holder.token}" if holder else f"its last token was {last}"
        super().__init__(f"{item_id!r}: the claim with token {token} is stale, {now}; claim it anew")


class Leases:
    """Grants, renews and takes away leases. Every operation is O(log n) or better, amortised.

    Args:
        last_token: the largest token that was granted before for the same items; 0 if none was.
    """

    def __init__(self, last_token: int) -> None:
        self._last = last_token
        self._held: dict[str, Claim] = {}
        self._lease_s: dict[str, float] = {}
        self._tokens: dict[str, int] = {}
        self._workers: dict[str, dict[str, None]] = {}
        self._ends: list[tuple[float, int, str]] = []

    def grant(self, item_id: str, worker_id: str, now_s: float, lease_s: float) -> Claim:
        """Grant a lease on an item that nobody holds; the lease has no end if *lease_s* is infinite.

        Raises:
            ValueError: the item is held, or *lease_s* is not above 0.
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
        """Return the current claim of the item, if *token* is its token.

        Raises:
            StaleClaim: *token* is not the token of the current claim.
        """
        claim = self._held.get(item_id)
        if claim is None or claim.token != token:
            raise StaleClaim(item_id, token, claim, self._tokens.get(item_id, 0))
        return claim

    def renew(self, item_id: str, token: int, now_s: float) -> Claim:
        """Extend the claim by the duration of its lease, counted from *now_s*; the end never becomes earlier. O(1).

        Raises:
            StaleClaim: *token* is not the token of the current claim.
        """
        claim = self.check(item_id, token)
        claim = claim._replace(expires_s=max(claim.expires_s, now_s + self._lease_s[item_id]))
        self._held[item_id] = claim
        return claim

    def drop(self, item_id: str) -> Claim | None:
        """Take the item from its holder, and return the claim that was ended; ``None`` if nobody held the item."""
        claim = self._held.pop(item_id, None)
        if claim is not None:
            del self._lease_s[item_id]
            of_worker = self._workers[claim.worker_id]
            del of_worker[item_id]
            if not of_worker:
                del self._workers[claim.worker_id]
        return claim

    def forget(self, item_id: str) -> None:
        """Remove an item that nobody holds and that is never claimed again."""
        self._tokens.pop(item_id, None)

    def holder(self, item_id: str) -> Claim | None:
        """Return the current claim of the item; ``None`` if nobody holds the item."""
        return self._held.get(item_id)

    def of(self, worker_id: str) -> list[Claim]:
        """Return the current claims of the worker, oldest first."""
        return [self._held[item_id] for item_id in self._workers.get(worker_id, ())]

    def all(self) -> list[Claim]:
        """Return every current claim, oldest first."""
        return sorted(self._held.values(), key=lambda claim: claim.token)

    def expired(self, now_s: float) -> list[Claim]:
        """Take away every lease that has run out at *now_s* (``>=``); return the claims that were ended, ordered by the
        ends of their leases."""
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
        return sorted(found, key=lambda one: (one.expires_s, one.token))  # renewed claims come out of order

    def _watch(self, claim: Claim) -> None:
        """Enter the claim into the heap of lease ends. A renewed claim is entered anew only when its earlier end has
        come, so that renewing costs nothing."""
        if isfinite(claim.expires_s):
            heappush(self._ends, (claim.expires_s, claim.token, claim.item_id))
