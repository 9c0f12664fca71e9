"""The signs of life of workers, as the world has them: who beats, and who is silent for a while."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from supervisor.work.workers import Pool

__all__ = ["Hearts"]


class Hearts:
    """Beats for the workers of a plan (``supervisor.work.workers.Heart``), for as long as anybody expects it.
    *heard* is told of each; once their supervisor was *killed*, nobody hears what its tasks still do."""

    def __init__(self, heard: Callable[[str], None], now: Callable[[], float], killed: anyio.Event) -> None:
        self._heard, self._now, self._killed = heard, now, killed
        self._silent_until_s: dict[str, float] = {}

    def silence(self, worker_id: str, seconds: float) -> None:
        """For so long its signs of life do not come through."""
        self._silent_until_s[worker_id] = self._now() + seconds

    async def beat(self, pool: Pool, worker_id: str, heartbeat_s: float) -> None:
        """Of one worker, every so many seconds."""
        while self._comes_through(pool, worker_id):
            await pool.pause(heartbeat_s)

    def _comes_through(self, pool: Pool, worker_id: str) -> bool:
        if self._now() < self._silent_until_s.get(worker_id, 0.0):
            return True
        if not self._killed.is_set():
            self._heard(worker_id)
        return pool.beat(worker_id)
