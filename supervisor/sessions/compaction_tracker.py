"""The compactions of an agent's context: a turn at work waits for its own, and one that had ended is verified anew.

However many begin, a turn's compaction is over when one of them is. An agent may also say that it compacts after the
last word of a turn that is being verified: it must compact first, says the specification. The work of that turn is
done, so whatever comes of it is no failure.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from actors.machine import Event
from supervisor.lifecycles.events import CompactionCompleted, CompactNeeded, VerifyRequested
from supervisor.lifecycles.turn import Turn
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.runtime.live_session import LiveSession

__all__ = ["CompactionTracker"]

_BEING_VERIFIED = (Turn.RUNNING, Turn.VERIFYING)
"""Where a turn is whose agent has said that it is done: on its way to be verified, or there."""
COMPACTS_S = 60.0
"""For how long a compaction that begins after its turn had ended holds up the verification of that."""
LOOK_AGAIN_S = 0.05
"""Until it is looked again whether such a turn has heard of its compaction, whose agent is gone by now."""


class CompactionTracker:
    """What one agent compacts."""

    def __init__(self, registry: EntityRegistry, session: LiveSession) -> None:
        self._registry = registry
        self._session = session
        self._at_work: str | None = None
        """The turn whose compaction is under way."""
        self._late: str | None = None
        """A turn that had ended, and is verified anew when its compaction is over."""

    async def update(self, turn_id: str, *, active: bool) -> None:
        """The turn at work is compacting, or is not any more."""
        if active:
            if self._at_work != turn_id and await self._report(turn_id, CompactNeeded()) is not None:
                self._at_work = turn_id
        elif self._at_work == turn_id:
            self._at_work = None
            await self._report(turn_id, CompactionCompleted())

    def _report(self, turn_id: str, event: Event) -> Coroutine[Any, Any, int | None]:
        return self._registry.report(turn_id, event, cause=self._session.cause)

    async def update_after_turn(self, done: str | None, *, active: bool) -> None:
        """The same, while it works on no turn: *done* is the last one, if that ended well."""
        if not active:
            self.finish()
            return
        turn = self._registry.entities.get(done or "")
        if turn is None or turn.state not in _BEING_VERIFIED or self._late is not None:
            return
        self._late = turn.id  # from now on: the agent may be gone before that is on record
        if await self._report(turn.id, CompactNeeded()) is None:
            self._late = None
            return
        self._verify_after(turn.id, COMPACTS_S)

    def finish(self) -> None:
        """Nothing is compacted any more: the compaction is over, or the agent is no more."""
        if self._late is not None:
            self._verify(self._late)

    def _verify(self, turn_id: str) -> None:
        turn = self._registry.entities.get(turn_id)
        if turn is None or turn_id != self._late:
            return
        if turn.state in _BEING_VERIFIED:  # it is about to compact: that is on its way to the disk
            self._verify_after(turn_id, LOOK_AGAIN_S)
            return
        self._late = None
        self._registry.send(turn_id, VerifyRequested(verdict=turn.data.verdict), cause=self._session.cause)

    def _verify_after(self, turn_id: str, delay_s: float) -> None:
        self._registry.system.timers.set(None, None, delay_s, lambda _: self._verify(turn_id))
