"""Queues of claimable items, best first; items that cannot be claimed are skipped without looking at each of them.

Pure. Items of one plan that need the same capabilities, agent, provider and files are in one **partition**; partitions
that differ only in their files are in one **bucket**, each ranked by its best item. A partition whose files are held
waits as a whole outside of its bucket, and returns to the bucket when it is woken. So a search for work looks at one
item per bucket, and a hundred items that need the same file cost as much as a single item.

Queues are cleaned when they are read: an item that stopped being claimable stays in its queue until it comes to the
front, and is never in the queue twice.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

Rank = float
"""Order of items: the item with the smaller rank comes first. No two items have the same rank. Ranks are whole numbers,
since heaps spend most of their time on comparing ranks."""


class Waiting(Protocol):
    """Protocol of a queued item: the attributes that its partition needs."""

    rank: Rank
    queued: bool
    """Whether the item is in the queue of its partition. Only the partition sets this attribute."""

    @property
    def claimable(self) -> bool:
        """Whether nothing but files, capabilities or a provider can prevent a claim of the item."""
        ...


class Partition:
    """Queue of the items of a plan that need the same capabilities, agent, provider and files, best first."""

    __slots__ = ("_queue", "bucket", "files", "shown", "waits_for_files")

    def __init__(self, bucket: Bucket, files: tuple[str, ...]) -> None:
        self.bucket = bucket
        self.files = files
        self.waits_for_files = False
        self.shown: Rank | None = None
        """The rank under which the partition is in its bucket; ``None`` while it is not there."""
        self._queue: list[tuple[Rank, Waiting]] = []

    def push(self, item: Waiting) -> None:
        """Queue an item that has become claimable."""
        if not item.queued:
            item.queued = True
            heappush(self._queue, (item.rank, item))
        self.show()

    def front(self) -> Waiting | None:
        """Return the best claimable item of the partition, or ``None``."""
        queue = self._queue
        while queue and not queue[0][1].claimable:
            heappop(queue)[1].queued = False
        return queue[0][1] if queue else None

    def show(self) -> None:
        """Enter the partition into its bucket with the rank of its best item, unless the partition waits for
        its files."""
        front = None if self.waits_for_files else self.front()
        rank = front.rank if front is not None else None
        if rank is not None and rank != self.shown:
            self.bucket.push(rank, self)
        self.shown = rank

    def wait_for_files(self) -> None:
        """Mark the partition as waiting, outside of its bucket: the files are held, so that no item of the partition
        can be claimed."""
        self.waits_for_files = True
        self.shown = None

    def wake(self) -> None:
        """Enter the partition into its bucket again: the files may be free."""
        self.waits_for_files = False
        self.show()


class Bucket:
    """Queue of the partitions whose items need the same capabilities, the same provider and the same agent."""

    __slots__ = ("_partitions", "agent", "needs", "provider")

    def __init__(self, needs: frozenset[str], provider: str, agent: str) -> None:
        self.needs = needs
        self.provider = provider
        self.agent = agent
        self._partitions: list[tuple[Rank, Partition]] = []

    def push(self, rank: Rank, partition: Partition) -> None:
        """Enter the partition into the bucket with that rank."""
        heappush(self._partitions, (rank, partition))

    def best(self, blocked: Callable[[Partition], bool], before: Rank) -> Waiting | None:
        """Return the best claimable item whose files are free, if its rank is smaller than *before*. *blocked* returns
        whether a partition's files are held, and if so makes the partition wait for them."""
        partitions = self._partitions
        while partitions and partitions[0][0] < before:
            rank, partition = partitions[0]
            if self._stands(partition, rank) and not blocked(partition):
                return partition.front()
            heappop(partitions)
        return None

    @staticmethod
    def _stands(partition: Partition, rank: Rank) -> bool:
        """Return whether the partition is still in the bucket with that rank."""
        if partition.shown == rank:
            partition.show()
        return partition.shown == rank
