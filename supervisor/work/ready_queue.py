"""What could be claimed next, best first, without looking at what cannot be: the queues behind the backlog.

Pure. Items that need the same capabilities, provider and files stand in one **lane**; lanes that differ in their files
only stand in one **bucket**, by their best item. A lane whose files are held is parked as a whole, and stands in its
bucket again when it is woken. So who looks for work looks at one item of each bucket, and a hundred items that want the
same file cost as much as one.

Queues are cleaned when they are looked at: an item that stopped being claimable stays where it is until it comes to the
front, and is never there twice.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

__all__ = ["Bucket", "Partition", "Rank", "Waiting"]

Rank = float
"""What comes first: the smaller one. No two items share one. A whole number: heaps compare it more than anything."""


class Waiting(Protocol):
    """An item as its lane sees it."""

    rank: Rank
    queued: bool
    """It stands in its lane. Only the lane sets it."""

    @property
    def claimable(self) -> bool:
        """True if nothing but files, capabilities or a provider can keep it from being claimed."""
        ...


class Partition:
    """Items that need the same, best first."""

    __slots__ = ("_queue", "bucket", "files", "parked", "shown")

    def __init__(self, bucket: Bucket, files: tuple[str, ...]) -> None:
        self.bucket = bucket
        self.files = files
        self.parked = False
        self.shown: Rank | None = None
        """The rank that it stands in its bucket with."""
        self._queue: list[tuple[Rank, Waiting]] = []

    def push(self, item: Waiting) -> None:
        """It has become claimable."""
        if not item.queued:
            item.queued = True
            heappush(self._queue, (item.rank, item))
        self.show()

    def front(self) -> Waiting | None:
        """Its best claimable item."""
        queue = self._queue
        while queue and not queue[0][1].claimable:
            heappop(queue)[1].queued = False
        return queue[0][1] if queue else None

    def show(self) -> None:
        """Stand in the bucket with what is best now, unless it is parked."""
        front = None if self.parked else self.front()
        rank = front.rank if front is not None else None
        if rank is not None and rank != self.shown:
            self.bucket.push(rank, self)
        self.shown = rank

    def park(self) -> None:
        """Its files are held: nothing of it can be claimed."""
        self.parked = True
        self.shown = None

    def wake(self) -> None:
        """Its files may be free."""
        self.parked = False
        self.show()


class Bucket:
    """The lanes of items that need the same capabilities and the same provider."""

    __slots__ = ("_lanes", "needs", "provider")

    def __init__(self, needs: frozenset[str], provider: str) -> None:
        self.needs = needs
        self.provider = provider
        self._lanes: list[tuple[Rank, Partition]] = []

    def push(self, rank: Rank, lane: Partition) -> None:
        """That lane stands here with that rank."""
        heappush(self._lanes, (rank, lane))

    def best(self, blocked: Callable[[Partition], bool], before: Rank) -> Waiting | None:
        """Its best claimable item whose files are free, if it comes *before* that rank; *blocked* parks a lane whose
        files are not free, and says so."""
        lanes = self._lanes
        while lanes and lanes[0][0] < before:
            rank, lane = lanes[0]
            if self._stands(lane, rank) and not blocked(lane):
                return lane.front()
            heappop(lanes)
        return None

    @staticmethod
    def _stands(lane: Partition, rank: Rank) -> bool:
        """Whether that lane stands here with that rank, still."""
        if lane.shown == rank:
            lane.show()
        return lane.shown == rank
