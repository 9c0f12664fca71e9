"""What the kernel says of a supervisor's own actors: one that has crashed takes down what it stood for, and no more.

A crash here is a bug of ours. Its session ends, with all that must not outlive it, and whoever waits is answered.
"""

from __future__ import annotations

from contextlib import suppress
from typing import assert_never

from actors import (
    Abandoned,
    ActorCrashed,
    CancelSwallowed,
    DeadLetter,
    KernelEvent,
    Paused,
)
from supervisor.lifecycles.events import FatalError, OperatorStop
from supervisor.lifecycles.types import CancelMode
from supervisor.ports.logs import get_logger
from supervisor.recovery.journal_state import LOST
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.runtime.journal_writer import Cause
from supervisor.runtime.live_session import LiveSession, Outcome, SessionPhase
from supervisor.sessions.pending_requests import PendingRequests

__all__ = ["ActorFailures"]

_log = get_logger()

KERNEL = Cause(actor="kernel")
"""Who says that an actor of ours has crashed."""


class ActorFailures:
    """The actors of one supervisor that are no more; *prompting* has whoever waits for their answers."""

    def __init__(self, registry: EntityRegistry, pending_requests: PendingRequests) -> None:
        self._registry = registry
        self._pending_requests = pending_requests

    def heard(self, event: KernelEvent) -> None:
        """What the kernel has to say."""
        match event:
            case ActorCrashed(actor_id, error):
                self._crashed(actor_id, error)
            case CancelSwallowed() | Abandoned():
                _log.warning("a cancelled task goes on", what=type(event).__name__, **event._asdict())
            case Paused(late_s):
                _log.warning("nobody ran for a while: no timer has counted that time", seconds=round(late_s, 3))
            case DeadLetter():
                _log.debug("a message was not handled", actor=event.actor_id, message=type(event.message).__name__)
            case _:
                assert_never(event)

    def _crashed(self, actor_id: str, error: BaseException) -> None:
        """An actor of ours has a bug. Its session ends, with all below it, and whoever waits for that is answered."""
        _log.error("an actor crashed", actor=actor_id, error=repr(error), exc_info=error)
        session, entity = self._registry.sessions.get(actor_id), self._registry.entities.get(actor_id)
        if session is not None:
            cause = KERNEL
            with suppress(TypeError):  # what it knew may be what is broken
                if entity is not None:
                    cause = KERNEL._replace(seq=entity.record_fact(LOST, KERNEL, {"error": repr(error)}).seq)
            self._lost(session, f"the session's actor crashed: {error!r}", cause)
        elif entity is not None:
            self._registry.remove_crashed(entity)
            if entity.parent_id is not None:
                words = f"the actor of {actor_id} crashed: {error!r}"
                self._registry.send(entity.parent_id, FatalError(message=words), cause=KERNEL)

    def _lost(self, session: LiveSession, why: str, cause: Cause) -> None:
        """The actor of a session has crashed, and those below it can hear nothing any more: the next start on this
        journal stops it: who waited for it was told so. Who may outlive the session does."""
        lost = [session]
        for one in lost:  # it grows as it is read: parents first
            one.advance(SessionPhase.TERMINATING)
            lost += [child for child in one.children.values() if child.mode is CancelMode.WAIT_COMPLETED]
        for one in reversed(lost):
            self._part_with_children(one, cause)
            for below in [
                self._registry.entities.get(below) for below in self._registry.system.children(one.session_id)
            ]:
                if below is not None and below.id not in self._registry.sessions:
                    self._registry.remove_crashed(below)
            self._registry.remove(one.session_id)
            words = why if one is session else f"its parent was lost: {why}"
            self._pending_requests.fail_session(one.session_id, Outcome("failed", words, ""))

    def _part_with_children(self, lost: LiveSession, cause: Cause) -> None:
        """Those that may outlive it go to the root; of them, those that are not abandoned are told to end."""
        for child in [child for child in lost.children.values() if child.mode is not CancelMode.WAIT_COMPLETED]:
            self._registry.reparent(child, cause, None)
            if child.mode is not CancelMode.ABANDON:
                stop = OperatorStop(reason=f"its parent {lost.session_id} was lost")
                self._registry.request_stop(child.session_id, stop, cause=cause)
