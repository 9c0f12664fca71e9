"""Compaction of an agent's context: a running turn waits for it, and a turn that had ended is verified again after it.

However many compactions begin, the turn's is over when one of them is. An agent may also report a compaction after the
last message of a turn that is being verified: the specification has it compact first. The work of that turn is done, so
a compaction that fails then is no failure of the turn.
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
"""States of a turn whose agent has reported its end: about to be verified, or being verified."""
COMPACTS_S = 60.0
"""Seconds that a compaction which begins after its turn had ended delays the turn's verification."""
LOOK_AGAIN_S = 0.05
"""Seconds between two looks whether such a turn has processed the compaction, when its agent is gone."""


class CompactionTracker:
    """Compactions of one agent."""

    def __init__(self, registry: EntityRegistry, session: LiveSession) -> None:
        self._registry = registry
        self._session = session
        self._at_work: str | None = None
        """Turn whose compaction is under way."""
        self._late: str | None = None
        """Turn that had ended, and is verified again when its compaction is over."""

    async def update(self, turn_id: str, *, active: bool) -> None:
        """Report that the running turn compacts, or has finished that."""
        if active:
            if self._at_work != turn_id and await self._report(turn_id, CompactNeeded()) is not None:
                self._at_work = turn_id
        elif self._at_work == turn_id:
            self._at_work = None
            await self._report(turn_id, CompactionCompleted())

    def _report(self, turn_id: str, event: Event) -> Coroutine[Any, Any, int | None]:
        return self._registry.report(turn_id, event, cause=self._session.cause)

    async def update_after_turn(self, done: str | None, *, active: bool) -> None:
        """Report a compaction between turns. *done*: the last turn, if it succeeded."""
        if not active:
            self.finish()
            return
        turn = self._registry.entities.get(done or "")
        if turn is None or turn.state not in _BEING_VERIFIED or self._late is not None:
            return
        self._late = turn.id  # before the record: the agent may be gone by then
        if await self._report(turn.id, CompactNeeded()) is None:
            self._late = None
            return
        self._verify_after(turn.id, COMPACTS_S)

    def finish(self) -> None:
        """Verify the turn that waits: the compaction is over, or the agent is gone."""
        if self._late is not None:
            self._verify(self._late)

    def _verify(self, turn_id: str) -> None:
        turn = self._registry.entities.get(turn_id)
        if turn is None or turn_id != self._late:
            return
        if turn.state in _BEING_VERIFIED:  # the record of its compaction is still on its way to the disk
            self._verify_after(turn_id, LOOK_AGAIN_S)
            return
        self._late = None
        self._registry.send(turn_id, VerifyRequested(verdict=turn.data.verdict), cause=self._session.cause)

    def _verify_after(self, turn_id: str, delay_s: float) -> None:
        self._registry.system.timers.set(None, None, delay_s, lambda _: self._verify(turn_id))
