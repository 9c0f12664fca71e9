"""Narrow moments: states that are over before a wish that comes at any time meets them, and how to lie in wait.

Whoever waits reads the supervisor's records and looks at what is alive, as every host can, and knows no more: by the
time it strikes, the moment may be over.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import anyio

from supervisor.embedding.runtime import Supervisor
from supervisor.lifecycles.session import Session
from supervisor.lifecycles.turn import Turn
from supervisor.lifecycles.types import DeliveryPoint, LifecycleEvent

__all__ = ["INTERRUPTED", "Interrupted", "Moment", "session_of", "wait_for"]

CHANGES: Final = ("born", "transition")


class Moment(NamedTuple):
    """Somebody of that kind has come into that state: ``child``, below another session; ``littered``, while an earlier
    turn of the session is still cleaned up after."""

    kind: str
    state: str
    child: bool = False
    littered: bool = False

    def is_now(self, record: LifecycleEvent, sup: Supervisor) -> bool:
        """Whether *record*, which came just now, says so."""
        if (record.entity_type, record.to_status) != (self.kind, self.state) or record.outcome not in CHANGES:
            return False
        session_id = session_of(record.entity_id)
        if self.child and "/" not in session_id:
            return False
        return not self.littered or sum(one.startswith(f"{session_id}:t") for one in sup.tree.entities) > 1


class Interrupted(NamedTuple):
    """A moment for an urgent message, and when that one is to be heard."""

    moment: Moment
    at: DeliveryPoint


INTERRUPTED: Final = (
    Interrupted(Moment("turn", Turn.RUNNING.value), DeliveryPoint.TOOL_BOUNDARY),  # with its last call, a turn may end
    Interrupted(Moment("turn", Turn.COMPACTING.value), DeliveryPoint.TOOL_BOUNDARY),
    Interrupted(Moment("session", Session.RUNNING.value, littered=True), DeliveryPoint.NOW),
)


def session_of(entity_id: str) -> str:
    """The session that a turn or a call belongs to; a session itself."""
    return entity_id.partition(":")[0]


async def wait_for(sup: Supervisor, moment: Moment, patience_s: float) -> str | None:
    """The session for which the moment has come; ``None`` if it does not come in *patience_s* seconds, or before the
    supervisor ends."""
    with anyio.move_on_after(patience_s):
        async with sup.subscribe() as records:
            async for record in records:
                if moment.is_now(record, sup):
                    return session_of(record.entity_id)
    return None
