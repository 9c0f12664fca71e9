"""The backlog: the items of all plans of a supervisor, their order, and the worker that holds each. Every claim is
decided here.

Pure: no clock, no I/O, nothing random; times are arguments. Each worker works for one plan, and receives items of that
plan only. Where several workers are free, the best item of all is claimed first: by priority (the highest first), then
by turns between the plans (the plan whose last claim is longest ago), then by the order of adding. So a plan with a
thousand items and a plan with ten have every second claim each, until the smaller plan has no item left. An item can be
claimed if

- the item is neither settled nor held, and not on hold (``ready``, ``hold``);
- every item in its ``depends_on`` was completed, and every item in its ``after`` is settled;
- no held item, of whatever plan, owns a path that overlaps a path of this item;
- the worker has the capabilities that the item needs, and the gate of the item's provider is open;
- fewer items are at work, in all and with the agent of this item, than ``Limits`` allow.

An item is **at work** while a worker holds it. An item that is at work although no worker holds it (``note_at_work``:
its session was begun under an earlier supervisor, and goes on) comes before every other item of its plan, and counts
for the limits from the beginning, which do not delay it.

So each item is settled, held, claimable, or waiting for something that ``refusal`` names. A claim has a fencing token
that is larger than all earlier tokens, also after release, fence and reopen; a claim with an older token is refused.

When an item was not completed, its direct dependants are named once (``dependency_failed``). Nothing is decided about
these dependants: the next level of dependants is named when they are settled.

An item that owns files is passed over while other items hold those files; no file is reserved for the item, whatever
its priority.

Every operation costs O(log n), amortised, and a step for each combination of capabilities and provider in the backlog;
settling costs also a step for each dependant; releasing files, a step for each set of files that waits for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from math import inf
from typing import NamedTuple

import msgspec

from supervisor.work.leases import Claim, Leases
from supervisor.work.owned_paths import OwnedPaths, spelled
from supervisor.work.ready_queue import Bucket, Partition, Rank

Gate = Callable[[str], bool]
"""Return whether work for the named provider may be begun now. The function must change nothing."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Largest numbers of items that may be at work at once: *total* in all, ``None`` for no limit, and *agents* by the
    name of the agent."""

    total: int | None = None
    agents: Mapping[str, int] = {}

    @property
    def are_set(self) -> bool:
        """Whether there is any limit."""
        return self.total is not None or bool(self.agents)


class Seeker(NamedTuple):
    """A worker with a free slot, which works for the plan *plan*. ``capabilities`` ``None`` stands for all of them. A
    worker with *spare* false can claim only what is at work already: the other slots of its plan are needed for that.
    """

    worker_id: str
    capabilities: frozenset[str] | None
    plan: str = ""
    spare: bool = True


class BacklogItem(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of work in the backlog, such as a task of a plan.

    ``plan`` is the id of the plan's run, and ``agent`` the name of the agent that does the work. ``needs`` are the
    capabilities that a worker must have, roles among them (``role:backend``); ``files`` are the paths that the item
    owns, a directory with everything below it; ``provider`` is the provider of models whose gate must be open, ``""``
    for none. The item waits until the items in ``depends_on`` are completed, and until the items in ``after`` are
    settled in whatever way.
    """

    id: str
    plan: str = ""
    priority: int = 0
    needs: frozenset[str] = frozenset()
    files: tuple[str, ...] = ()
    agent: str = ""
    provider: str = ""
    depends_on: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class DependantChanges(NamedTuple):
    """Items for which the settling of another item changed something.

    Items in ``ready`` wait for no other item any more. Items in ``dependency_failed`` depend on an item that was
    settled without being completed, and depended on no such item before.
    """

    ready: tuple[str, ...] = ()
    dependency_failed: tuple[str, ...] = ()


class RefusalReason(StrEnum):
    """Reason why an item cannot be claimed. Where several hold, the first in this order is reported."""

    SETTLED = "settled"
    HELD = "held"
    DEPENDENCY_FAILED = "dependency_failed"
    WAITING = "waiting"
    ON_HOLD = "on_hold"
    CAPABILITIES = "capabilities"
    FILES = "files"
    PROVIDER = "provider"
    AGENT = "agent"
    TOTAL = "total"


_WORDS = {
    RefusalReason.SETTLED: "it is settled",
    RefusalReason.HELD: "it is held by",
    RefusalReason.DEPENDENCY_FAILED: "it depends on what was not completed:",
    RefusalReason.WAITING: "it waits for",
    RefusalReason.ON_HOLD: "its own conditions do not allow it yet",
    RefusalReason.CAPABILITIES: "the worker lacks",
    RefusalReason.FILES: "its files overlap those of",
    RefusalReason.PROVIDER: "no work is begun now for the provider",
    RefusalReason.AGENT: "as many tasks as max_sessions allows are at work with the agent",
    RefusalReason.TOTAL: "all plans together have as many tasks at work as max_sessions_total allows:",
}


class Refusal(NamedTuple):
    """Refusal of a claim: *item_id* cannot be claimed for the reason ``why``; ``named`` are the workers, items,
    capabilities, providers or agents that stand in the way."""

    item_id: str
    why: RefusalReason
    named: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        return " ".join((_WORDS[self.why], ", ".join(self.named))).strip()

    @property
    def words(self) -> str:
        return f"{self.item_id!r}: {self.reason}"


class UnknownItem(LookupError):
    """Raised when no item with the given id was added."""

    def __init__(self, item_id: str) -> None:
        self.item_id = item_id
        super().__init__(f"no item {item_id!r} is in the backlog; add it first")


_ORDER_BITS = 48
"""Number of bits for the order of adding: 2 to this power items can be added."""


class _Entry:
    """An item of the backlog with its state."""

    __slots__ = (
        "claimed",
        "completed",
        "failed_dependencies",
        "item",
        "on_hold",
        "partition",
        "queued",
        "rank",
        "waits_for",
    )

    def __init__(self, item: BacklogItem, rank: Rank, partition: Partition, on_hold: bool) -> None:
        self.item = item
        self.rank = rank
        self.partition = partition
        self.on_hold = on_hold
        self.queued = False
        self.claimed = False
        self.completed: bool | None = None
        """``None`` until the item is settled; then whether it was completed."""
        self.waits_for = 0
        """Number of items that this item waits for, failed dependencies among them."""
        self.failed_dependencies = 0

    @property
    def claimable(self) -> bool:
        return not (self.claimed or self.on_hold or self.waits_for) and self.completed is None

    def __lt__(self, other: _Entry) -> bool:
        """Equal ranks are those of an item and of a former place of the same item: their order is of no interest."""
        return False


class _Plan:
    """The queues of one plan's items, and what of them is at work although nobody holds it."""

    __slots__ = ("at_work", "buckets", "fitting", "held", "ids", "last_token", "partitions")

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.held = 0
        self.partitions: dict[tuple[frozenset[str], str, str, tuple[str, ...]], Partition] = {}
        self.buckets: dict[tuple[frozenset[str], str, str], Bucket] = {}
        self.fitting: dict[frozenset[str] | None, list[Bucket]] = {}
        self.at_work: dict[str, None] = {}
        """Ids of the items that are at work although nobody holds them."""
        self.last_token = 0
        """Token of the plan's last claim: of two plans the one with the smaller token has its turn first."""

    def buckets_for(self, capabilities: frozenset[str] | None) -> list[Bucket]:
        fitting = self.fitting.get(capabilities)
        if fitting is None:
            every = self.buckets.values()
            fitting = [bucket for bucket in every if capabilities is None or bucket.needs <= capabilities]
            self.fitting[capabilities] = fitting
        return fitting

    def bucket(self, needs: frozenset[str], provider: str, agent: str) -> Bucket:
        bucket = self.buckets.get((needs, provider, agent))
        if bucket is None:
            bucket = self.buckets[needs, provider, agent] = Bucket(needs, provider, agent)
            for capabilities, fitting in self.fitting.items():
                if capabilities is None or needs <= capabilities:
                    fitting.append(bucket)
        return bucket

    def partition(self, item: BacklogItem) -> Partition:
        files = spelled(item.files)
        key = (item.needs, item.provider, item.agent, files)
        partition = self.partitions.get(key)
        if partition is None:
            partition = self.partitions[key] = Partition(self.bucket(*key[:3]), files)
        return partition


class Backlog:
    """The items of the plans of one supervisor, and the worker that holds each.

    Args:
        last_token: the largest fencing token of an earlier backlog of the same work: the tokens of this backlog are
            larger.
        paths: the paths that are held when the backlog is created; by default none.
    """

    def __init__(self, last_token: int = 0, *, paths: OwnedPaths | None = None) -> None:
        self.limits = Limits()
        self._entries: dict[str, _Entry] = {}
        self._added = 0
        self._dependants: dict[str, list[str]] = {}
        self._plans: dict[str, _Plan] = {}
        self._at_work: Counter[str] = Counter()
        """Number of items at work, held or not, by their agents."""
        self._waiting_for_files: dict[str, list[Partition]] = {}
        self._paths = paths if paths is not None else OwnedPaths()
        self._leases = Leases(last_token)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item_id: object) -> bool:
        return item_id in self._entries

    # ------------------------------------------------------------------ what is to be done
    def add(self, item: BacklogItem, *, on_hold: bool = False) -> DependantChanges:
        """Add an item; the items that it depends on may be added later. Return whether the new item is ready at once,
        or has a failed dependency.

        Raises:
            ValueError: the item was added before, depends on itself, or owns a path outside of the workspace.
        """
        if item.id in self._entries:
            raise ValueError(f"{item.id!r} is in the backlog already; use another id, or reopen it")
        if item.id in (*item.depends_on, *item.after):
            raise ValueError(f"{item.id!r} cannot wait for itself")
        plan = self._plans.get(item.plan)
        if plan is None:
            plan = self._plans[item.plan] = _Plan()
        entry = _Entry(item, self._rank(item), plan.partition(item), on_hold)
        self._entries[item.id] = entry
        plan.ids.append(item.id)
        for needed in _waits_for(item):
            self._dependants.setdefault(needed, []).append(item.id)
            entry.waits_for += not self._is_met(item, needed)
            entry.failed_dependencies += self._is_failed_dependency(item, needed)
        self._offer(entry)
        return DependantChanges((item.id,) * (not entry.waits_for), (item.id,) * bool(entry.failed_dependencies))

    def settle(self, item_id: str, *, completed: bool, token: int | None = None) -> DependantChanges:
        """Settle an item; nobody holds the item any more. Return the dependants that became ready or whose dependency
        failed.

        With a *token* only the holder of that token can settle the item. Settling the item again in the same way
        changes nothing.

        Raises:
            UnknownItem: there is no such item.
            StaleClaim: *token* is not the token of the current claim.
            ValueError: the item was settled with the opposite *completed*; ``reopen`` the item first.
        """
        entry = self._entry(item_id)
        if token is not None:
            self._leases.check(item_id, token)
        if entry.completed is not None:
            if entry.completed is not completed:
                raise ValueError(f"{item_id!r} was settled as {_spelled(entry.completed)}; reopen it first")
            return DependantChanges()
        self.revoke(item_id)
        self._end_at_work(entry)
        entry.completed = completed
        dependants = [self._entries[one] for one in self._dependants.get(item_id, ())]
        ready = [one for one in dependants if self._meets(one, item_id)]
        dependency_failed = [one.item.id for one in dependants if self._note_failed_dependency(one, item_id)]
        for one in ready:
            self._offer(one)
        return DependantChanges(tuple(one.item.id for one in ready), tuple(dependency_failed))

    def reopen(self, item_id: str) -> tuple[str, ...]:
        """Open a settled item, so that it is done again. Return the unsettled dependants that wait for the item again.

        A worker that holds a dependant goes on holding the dependant. For an item that is not settled, nothing changes.

        Raises:
            UnknownItem: there is no such item.
        """
        entry = self._entry(item_id)
        if entry.completed is None:
            return ()
        waiting = []
        for one in (self._entries[name] for name in self._dependants.get(item_id, ())):
            if self._is_met(one.item, item_id):
                one.waits_for += 1
                waiting.append(one)
            elif self._is_failed_dependency(one.item, item_id):
                one.failed_dependencies -= 1
                waiting.append(one)
        entry.completed = None
        self._offer(entry)
        return tuple(one.item.id for one in waiting if one.completed is None)

    def ready(self, item_id: str) -> bool:
        """Take the item off hold, so that it can be claimed: a delay is over, or the item was approved. Return whether
        the item was on hold.

        Raises:
            UnknownItem: there is no such item.
        """
        entry = self._entry(item_id)
        was_on_hold, entry.on_hold = entry.on_hold, False
        self._offer(entry)
        return was_on_hold

    def hold(self, item_id: str) -> None:
        """Put the item on hold: nobody can claim it. What is at work stays at work.

        Raises:
            UnknownItem: there is no such item.
        """
        self._entry(item_id).on_hold = True

    def note_at_work(self, item_id: str) -> None:
        """Count an item that nobody holds as being at work: until it is claimed or settled, or ``end_at_work``.

        Raises:
            UnknownItem: there is no such item.
        """
        entry = self._entry(item_id)
        if entry.claimed or self._is_at_work(entry):
            return
        self._plans[entry.item.plan].at_work[item_id] = None
        self._at_work[entry.item.agent] += 1

    def end_at_work(self, item_id: str) -> None:
        """Count an item that nobody holds no longer as being at work; the claim of a holder goes on.

        Raises:
            UnknownItem: there is no such item.
        """
        self._end_at_work(self._entry(item_id))

    def assign(self, item_id: str, agent: str, provider: str) -> None:
        """Let another agent do the item, which uses that *provider*. A worker that holds the item goes on.

        Raises:
            UnknownItem: there is no such item.
        """
        old = self._entry(item_id)
        item = old.item
        if (agent, provider) == (item.agent, item.provider):
            return
        if old.claimed or self._is_at_work(old):
            self._at_work[item.agent] -= 1
            self._at_work[agent] += 1
        item = msgspec.structs.replace(item, agent=agent, provider=provider)
        # A new entry: the old one may still be in the queue of its partition, where it cannot be claimed any more.
        new = self._entries[item_id] = _Entry(item, old.rank, self._plans[item.plan].partition(item), old.on_hold)
        new.claimed, new.completed = old.claimed, old.completed
        new.waits_for, new.failed_dependencies = old.waits_for, old.failed_dependencies
        old.claimed = True
        self._offer(new)

    def remove_plan(self, plan: str) -> None:
        """Remove all items of a plan. Nobody holds them any more, and their files are free."""
        found = self._plans.get(plan)
        if found is None:
            return
        for item_id in found.ids:
            self.revoke(item_id)
            self._end_at_work(self._entries[item_id])
            del self._entries[item_id]
            self._dependants.pop(item_id, None)
            self._leases.forget(item_id)
        del self._plans[plan]

    def rank(self, item_id: str, priority: int) -> None:
        """Set the priority of the item; an item that is queued already stays in its position, and nothing changes.

        Raises:
            UnknownItem: there is no such item.
        """
        entry = self._entry(item_id)
        if not entry.queued:
            order = entry.rank + (entry.item.priority << _ORDER_BITS)
            entry.item = msgspec.structs.replace(entry.item, priority=priority)
            entry.rank = order - (priority << _ORDER_BITS)

    # ------------------------------------------------------------------ claims
    def claim(
        self,
        seekers: Sequence[Seeker],
        *,
        now_s: float,
        lease_s: float,
        gate: Gate = lambda provider: True,
    ) -> Claim | None:
        """Claim the best item that one of the *seekers* can claim, for *lease_s* seconds; return ``None`` if none of
        them can claim an item. The first of the seekers that can claim the best item holds it. An infinite lease has no
        end."""
        best: _Entry | None = None
        worker_id, key = "", (inf, inf, inf)
        several = len(seekers) > 1
        for seeker in seekers:
            if (plan := self._plans.get(seeker.plan)) is None:
                continue
            found = self._best_for(seeker, plan, gate)
            if found is None:
                continue
            if several:
                found_key = (
                    -inf if found.item.id in plan.at_work else -found.item.priority,
                    plan.last_token,
                    found.rank,
                )
                if not found_key < key:
                    continue
                key = found_key
            best, worker_id = found, seeker.worker_id
        return None if best is None else self._grant(best, worker_id, now_s, lease_s)

    def _best_for(self, seeker: Seeker, plan: _Plan, gate: Gate) -> _Entry | None:
        """Return the best item that the seeker can claim."""
        capabilities = seeker.capabilities
        for entry in map(self._entries.__getitem__, plan.at_work):
            fits = capabilities is None or entry.item.needs <= capabilities
            if (
                fits
                and entry.claimable
                and gate(entry.item.provider)
                and not self._paths.blocker(entry.partition.files)
            ):
                return entry
        if not seeker.spare or self._is_full():
            return None
        best: _Entry | None = None
        for bucket in plan.buckets_for(capabilities):
            found = bucket.best(self._is_blocked, before=best.rank if best is not None else inf)
            if found is not None and gate(bucket.provider) and not self._is_busy(bucket.agent):
                assert isinstance(found, _Entry)
                best = found
        return best

    def _is_full(self) -> bool:
        """Return whether as many items are at work as may be in all."""
        total = self.limits.total
        return total is not None and sum(self._at_work.values()) >= total

    def _is_busy(self, agent: str) -> bool:
        """Return whether as many items are at work with that agent as may be."""
        limit = self.limits.agents.get(agent)
        return limit is not None and self._at_work[agent] >= limit

    def unheld(self, plan: str) -> int:
        """Return the number of items of a plan that are at work although nobody holds them."""
        found = self._plans.get(plan)
        return 0 if found is None else len(found.at_work)

    def held(self, plan: str) -> int:
        """Return the number of items of a plan that workers hold."""
        found = self._plans.get(plan)
        return 0 if found is None else found.held

    def claim_by_id(
        self,
        item_id: str,
        worker_id: str,
        capabilities: frozenset[str] | None,
        *,
        now_s: float,
        lease_s: float,
        gate: Gate = lambda provider: True,
    ) -> Claim | Refusal:
        """Claim the named item, whatever other items come before it, or return the reason why it cannot be claimed.

        Raises:
            UnknownItem: there is no such item.
        """
        refusal = self.refusal(item_id, capabilities, gate=gate)
        return refusal or self._grant(self._entry(item_id), worker_id, now_s, lease_s)

    def refusal(
        self, item_id: str, capabilities: frozenset[str] | None = None, *, gate: Gate = lambda provider: True
    ) -> Refusal | None:
        """Return the reason why a worker with these *capabilities* (``None``: all) cannot claim the item; ``None`` if
        it can.

        Raises:
            UnknownItem: there is no such item.
        """
        return next(self._refusals(self._entry(item_id), capabilities, gate), None)

    def renew(self, item_id: str, token: int, now_s: float) -> Claim:
        """Extend the claim by the duration of its lease, counted from *now_s*.

        Raises:
            StaleClaim: *token* is not the token of the current claim.
        """
        return self._leases.renew(item_id, token, now_s)

    def check(self, item_id: str, token: int) -> Claim:
        """Return the current claim of the item, if *token* is its token.

        Raises:
            StaleClaim: *token* is not the token of the current claim.
        """
        return self._leases.check(item_id, token)

    def release(self, item_id: str, token: int) -> Claim:
        """Release the item on behalf of its holder, so that it can be claimed again. Return the claim that was
        released.

        Raises:
            StaleClaim: *token* is not the token of the current claim.
        """
        claim = self._leases.check(item_id, token)
        self.revoke(item_id)
        return claim

    def revoke(self, item_id: str) -> Claim | None:
        """Take the item from its holder, and return the claim that was ended, if any. The item can be claimed again,
        unless it is on hold."""
        claim = self._leases.drop(item_id)
        if claim is not None:
            self._let_go(claim)
        return claim

    def fence(self, worker_id: str) -> list[Claim]:
        """Take every item from that worker; return the claims that were ended, oldest first."""
        return [self._revoked(claim) for claim in self._leases.of(worker_id)]

    def expired(self, now_s: float) -> list[Claim]:
        """Take away every item whose lease has run out; return the claims that were ended, ordered by the ends of their
        leases."""
        claims = self._leases.expired(now_s)
        for claim in claims:
            self._let_go(claim)
        return claims

    def holder(self, item_id: str) -> Claim | None:
        """Return the current claim of the item; ``None`` if nobody holds the item."""
        return self._leases.holder(item_id)

    def claims(self, worker_id: str | None = None) -> list[Claim]:
        """Return every current claim, or every one of that worker, oldest first."""
        return self._leases.all() if worker_id is None else self._leases.of(worker_id)

    # ------------------------------------------------------------------ how items stand to each other
    def _entry(self, item_id: str) -> _Entry:
        try:
            return self._entries[item_id]
        except KeyError:
            raise UnknownItem(item_id) from None

    def _outcome(self, item_id: str) -> bool | None:
        entry = self._entries.get(item_id)
        return None if entry is None else entry.completed

    def _is_met(self, item: BacklogItem, needed: str) -> bool:
        """Return whether *item* does not wait for the item *needed* (any more)."""
        outcome = self._outcome(needed)
        return outcome is not None and (outcome or needed not in item.depends_on)

    def _is_failed_dependency(self, item: BacklogItem, needed: str) -> bool:
        return self._outcome(needed) is False and needed in item.depends_on

    def _meets(self, entry: _Entry, needed: str) -> bool:
        """Count that the item *needed* is settled; return whether the entry waits for no other item any more."""
        if not self._is_met(entry.item, needed):
            return False
        entry.waits_for -= 1
        return not entry.waits_for and entry.completed is None

    def _note_failed_dependency(self, entry: _Entry, needed: str) -> bool:
        """Count a failed dependency if *needed* was not completed; return whether it is the first failed dependency of
        the item."""
        if not self._is_failed_dependency(entry.item, needed):
            return False
        entry.failed_dependencies += 1
        return entry.failed_dependencies == 1 and entry.completed is None

    # ------------------------------------------------------------------ where items stand
    def _rank(self, item: BacklogItem) -> Rank:
        """Return the rank of a new item: a higher priority comes first, then the item that was added earlier."""
        self._added += 1
        return self._added - (item.priority << _ORDER_BITS)

    def _offer(self, entry: _Entry) -> None:
        if entry.claimable:
            entry.partition.push(entry)

    def _is_blocked(self, partition: Partition) -> bool:
        """Return whether the files of a partition are held; if so, wake the partition when the holder releases them."""
        blocker = self._paths.blocker(partition.files)
        if blocker is None:
            return False
        partition.wait_for_files()
        self._waiting_for_files.setdefault(blocker, []).append(partition)
        return True

    # ------------------------------------------------------------------ taking and letting go
    def _grant(self, entry: _Entry, worker_id: str, now_s: float, lease_s: float) -> Claim:
        self._end_at_work(entry)
        claim = self._leases.grant(entry.item.id, worker_id, now_s, lease_s)
        entry.claimed = True
        self._at_work[entry.item.agent] += 1
        plan = self._plans[entry.item.plan]
        plan.held, plan.last_token = plan.held + 1, claim.token
        self._paths.take(entry.item.id, entry.partition.files)
        return claim

    def _revoked(self, claim: Claim) -> Claim:
        self.revoke(claim.item_id)
        return claim

    def _let_go(self, claim: Claim) -> None:
        """Release the files of a claim whose lease has ended, and wake the partitions that waited for those files."""
        entry = self._entries[claim.item_id]
        entry.claimed = False
        self._at_work[entry.item.agent] -= 1
        self._plans[entry.item.plan].held -= 1
        self._paths.give_back(entry.partition.files)
        for partition in self._waiting_for_files.pop(claim.item_id, ()):
            partition.wake()
        self._offer(entry)

    def _is_at_work(self, entry: _Entry) -> bool:
        """Return whether the item is at work although nobody holds it."""
        return entry.item.id in self._plans[entry.item.plan].at_work

    def _end_at_work(self, entry: _Entry) -> None:
        """Count the item no longer as being at work without a holder."""
        if self._is_at_work(entry):
            del self._plans[entry.item.plan].at_work[entry.item.id]
            self._at_work[entry.item.agent] -= 1

    # ------------------------------------------------------------------ why not
    def _refusals(self, entry: _Entry, capabilities: frozenset[str] | None, gate: Gate) -> Iterator[Refusal]:
        item = entry.item
        claim = self._leases.holder(item.id)
        if entry.completed is not None:
            yield Refusal(item.id, RefusalReason.SETTLED)
        if claim is not None:
            yield Refusal(item.id, RefusalReason.HELD, (claim.worker_id,))
        if entry.failed_dependencies:
            yield Refusal(
                item.id,
                RefusalReason.DEPENDENCY_FAILED,
                tuple(one for one in item.depends_on if self._is_failed_dependency(item, one)),
            )
        if entry.waits_for:
            yield Refusal(
                item.id, RefusalReason.WAITING, tuple(one for one in _waits_for(item) if not self._is_met(item, one))
            )
        if entry.on_hold:
            yield Refusal(item.id, RefusalReason.ON_HOLD)
        if capabilities is not None and not item.needs <= capabilities:
            yield Refusal(item.id, RefusalReason.CAPABILITIES, tuple(sorted(item.needs - capabilities)))
        if blockers := self._paths.blockers(entry.partition.files):
            yield Refusal(item.id, RefusalReason.FILES, blockers)
        if not gate(item.provider):
            yield Refusal(item.id, RefusalReason.PROVIDER, (item.provider,))
        if not self._is_at_work(entry) and self._is_busy(item.agent):
            yield Refusal(item.id, RefusalReason.AGENT, (item.agent,))
        if not self._is_at_work(entry) and self._is_full():
            yield Refusal(item.id, RefusalReason.TOTAL, (str(self.limits.total),))


def _waits_for(item: BacklogItem) -> tuple[str, ...]:
    """Return the ids of the items that *item* waits for, each once."""
    return tuple(dict.fromkeys((*item.depends_on, *item.after)))


def _spelled(completed: bool) -> str:
    return "completed" if completed else "not completed"
