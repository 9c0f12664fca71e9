"""Compactions of an agent's context, as events of the turn that waits for them."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from actors.machine import Event
from actors.timers import Timer
from supervisor.lifecycles.events import CompactionCompleted, CompactionFailed, CompactNeeded, VerifyRequested
from supervisor.lifecycles.turn import Turn
from supervisor.sessions.live_session import LiveSession
from supervisor.sessions.registry import SessionRegistry

COMPACTS_S = 60.0
"""Seconds by which a compaction that begins after the end of its turn may delay the turn's verification."""
LOOK_AGAIN_S = 0.05
"""Seconds between two checks whether such a turn has processed the event of its compaction, after its agent has
ended."""
_BEING_VERIFIED = (Turn.RUNNING, Turn.VERIFYING)
"""States of a turn whose agent has reported the end of the turn: about to be verified, or being verified."""


class CompactionTracker:
    """Compactions of one agent's context. A running turn waits for its compaction; a turn that had ended is verified
    again after a compaction.

    However many compactions begin, the turn's compaction is over when one of them ends. An agent may also report a
    compaction after the last message of a turn that is being verified: by the specification the turn then compacts
    first. The work of that turn is done, so a failure of such a compaction is not a failure of the turn.
    """

    def __init__(self, registry: SessionRegistry, session: LiveSession) -> None:
        self._registry = registry
        self._session = session
        self._compacting: str | None = None
        """Id of the turn whose compaction is running, or ``None``."""
        self._late: str | None = None
        """Id of a turn that had ended and that is verified again when its compaction is over, or ``None``."""
        self._timer: Timer | None = None
        """Timer of the verification of that turn."""

    def _report(self, turn_id: str, event: Event) -> Coroutine[Any, Any, int | None]:
        return self._registry.report(turn_id, event, cause=self._session.cause)

    async def update(self, turn_id: str, *, active: bool, failed: bool = False) -> None:
        """Report that the running turn begins a compaction (*active*) or has finished it, or that it *failed*."""
        if active:
            if self._compacting != turn_id and await self._report(turn_id, CompactNeeded()) is not None:
                self._compacting = turn_id
        elif self._compacting == turn_id:
            self._compacting = None
            await self._report(turn_id, CompactionFailed() if failed else CompactionCompleted())

    async def update_after_turn(self, done: str | None, *, active: bool) -> None:
        """Report a compaction that happens between turns. *done* is the id of the last turn if that turn succeeded."""
        if not active:
            self.finish()
            return
        turn = self._registry.entities.get(done or "")
        if turn is None or turn.state not in _BEING_VERIFIED or self._late is not None:
            return
        self._late = turn.id  # before the record: the agent may be gone by then
        if await self._report(turn.id, CompactNeeded()) is None:
            self._late = None
            self._cancel_timer()
        elif self._late is not None and self._timer is None:  # the compaction may be over meanwhile
            self._verify_later(turn.id, COMPACTS_S)

    def finish(self) -> None:
        """Verify the turn that waits for its compaction, because the compaction is over or the agent has ended."""
        if self._late is not None:
            self._verify(self._late)

    def _verify(self, turn_id: str) -> None:
        turn = self._registry.entities.get(turn_id)
        if turn_id != self._late:
            return
        if turn is not None and turn.state in _BEING_VERIFIED:  # the record of its compaction is not durable yet
            self._verify_later(turn_id, LOOK_AGAIN_S)
            return
        self._late = None
        self._cancel_timer()
        if turn is not None:
            self._registry.send(turn_id, VerifyRequested(verdict=turn.data.verdict), cause=self._session.cause)

    def _verify_later(self, turn_id: str, delay_s: float) -> None:
        self._cancel_timer()
        self._timer = self._registry.system.timers.set(None, None, delay_s, lambda _: self._verify(turn_id))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._registry.system.timers.cancel(self._timer)
        self._timer = None
