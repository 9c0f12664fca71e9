"""Queues of claimable items, best first, that skip whatever cannot be claimed without looking at each item.

Pure. Items that need the same capabilities, provider and files stand in one **partition**; partitions that differ in
their files only stand in one **bucket**, each by its best item. A partition whose files are held waits as a whole, and
stands in its bucket again when it is woken. So a search for work looks at one item per bucket, and a hundred items that
want the same file cost as much as one.

Queues are cleaned when they are looked at: an item that stopped being claimable stays where it is until it comes to the
front, and is never there twice.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

Rank = float
"""Order of items: the smaller one comes first. No two items share a rank. A whole number, since heaps compare ranks
more than anything else."""


class Waiting(Protocol):
    """An item as its partition sees it."""

    rank: Rank
    queued: bool
    """Whether the item stands in its partition. Only the partition sets it."""

    @property
    def claimable(self) -> bool:
        """Whether nothing but files, capabilities or a provider can keep the item from being claimed."""
        ...


class Partition:
    """Items that need the same capabilities, provider and files, best first."""

    __slots__ = ("_queue", "bucket", "files", "shown", "waits_for_files")

    def __init__(self, bucket: Bucket, files: tuple[str, ...]) -> None:
        self.bucket = bucket
        self.files = files
        self.waits_for_files = False
        self.shown: Rank | None = None
        """The rank that the partition stands in its bucket with."""
        self._queue: list[tuple[Rank, Waiting]] = []

    def push(self, item: Waiting) -> None:
        """Queue an item that has become claimable."""
        if not item.queued:
            item.queued = True
            heappush(self._queue, (item.rank, item))
        self.show()

    def front(self) -> Waiting | None:
        """Return the best claimable item."""
        queue = self._queue
        while queue and not queue[0][1].claimable:
            heappop(queue)[1].queued = False
        return queue[0][1] if queue else None

    def show(self) -> None:
        """Stand in the bucket with the best item, unless the partition waits for its files."""
        front = None if self.waits_for_files else self.front()
        rank = front.rank if front is not None else None
        if rank is not None and rank != self.shown:
            self.bucket.push(rank, self)
        self.shown = rank

    def wait_for_files(self) -> None:
        """Leave the bucket: the files are held, so that nothing here can be claimed."""
        self.waits_for_files = True
        self.shown = None

    def wake(self) -> None:
        """Stand in the bucket again: the files may be free."""
        self.waits_for_files = False
        self.show()


class Bucket:
    """The partitions of items that need the same capabilities and the same provider."""

    __slots__ = ("_partitions", "needs", "provider")

    def __init__(self, needs: frozenset[str], provider: str) -> None:
        self.needs = needs
        self.provider = provider
        self._partitions: list[tuple[Rank, Partition]] = []

    def push(self, rank: Rank, partition: Partition) -> None:
        """Have the partition stand here with that rank."""
        heappush(self._partitions, (rank, partition))

    def best(self, blocked: Callable[[Partition], bool], before: Rank) -> Waiting | None:
        """Return the best claimable item whose files are free, if it comes *before* that rank. *blocked* tells whether
        a partition's files are held, and then has it wait for them."""
        partitions = self._partitions
        while partitions and partitions[0][0] < before:
            rank, partition = partitions[0]
            if self._stands(partition, rank) and not blocked(partition):
                return partition.front()
            heappop(partitions)
        return None

    @staticmethod
    def _stands(partition: Partition, rank: Rank) -> bool:
        """Return whether the partition still stands here with that rank."""
        if partition.shown == rank:
            partition.show()
        return partition.shown == rank
