"""Who waits for whom: the edges of actors whose handler cannot go on before another one has answered, or has room.

A cycle of such waits never ends, so it is refused when its last edge would be drawn. Only a handler that is suspended
counts: a task of an actor may wait for whatever it likes, its actor goes on reading meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from actors.errors import DeadlockError

__all__ = ["WaitGraph"]


class WaitGraph:
    """The wait-for edges of one system, by actor id."""

    def __init__(self) -> None:
        self._edges: dict[str, list[str]] = {}

    def waits_of(self, actor_id: str) -> tuple[str, ...]:
        """Those that the handler of this actor waits for now."""
        return tuple(self._edges.get(actor_id, ()))

    @contextmanager
    def waiting(self, waiter: str, target: str) -> Iterator[None]:
        """Draw the edge for as long as the block lasts.

        Raises:
            DeadlockError: the edge would close a cycle.
        """
        cycle = self.path(target, waiter)
        if cycle:
            raise DeadlockError((waiter, *cycle))
        self._edges.setdefault(waiter, []).append(target)
        try:
            yield
        finally:
            edges = self._edges[waiter]
            edges.remove(target)
            if not edges:
                del self._edges[waiter]

    def path(self, start: str, goal: str) -> tuple[str, ...]:
        """The waits that lead from *start* to *goal*, both included; empty if none do."""
        came_from: dict[str, str | None] = {start: None}
        pending = [start]
        while pending:
            here = pending.pop()
            if here == goal:
                return self._walk(came_from, goal)
            for following in self._edges.get(here, ()):
                if following not in came_from:
                    came_from[following] = here
                    pending.append(following)
        return ()

    def _walk(self, came_from: dict[str, str | None], goal: str) -> tuple[str, ...]:
        walked = [goal]
        while (before := came_from[walked[-1]]) is not None:
            walked.append(before)
        return tuple(reversed(walked))
