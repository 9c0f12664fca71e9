"""Reaction to crashed actors: a crashed actor ends the session or entity that it represents, and nothing else.

Each such crash is a bug of the supervisor. The session ends together with the child sessions that must not outlive it,
and the open requests to the session receive a failure as their reply.
"""

from __future__ import annotations

from contextlib import suppress
from typing import assert_never

from actors import Abandoned, ActorCrashed, CancelSwallowed, DeadLetter, KernelEvent, Paused
from supervisor.lifecycles.events import FatalError, OperatorStop
from supervisor.lifecycles.types import ACTOR_LOST, CancelMode
from supervisor.ports import Outcome
from supervisor.ports.logs import get_logger
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.live_session import LiveSession, SessionPhase
from supervisor.sessions.pending_requests import PendingRequests
from supervisor.sessions.registry import SessionRegistry

_log = get_logger()

KERNEL = Cause(actor="kernel")


class ActorFailures:
    """Handles the events of the actor system of one supervisor, such as the crash of an actor."""

    def __init__(self, registry: SessionRegistry, requests: PendingRequests) -> None:
        self._registry = registry
        self._requests = requests

    def handle(self, event: KernelEvent) -> None:
        match event:
            case ActorCrashed(actor_id, error):
                self._crashed(actor_id, error)
            case CancelSwallowed() | Abandoned():
                _log.warning("a cancelled task goes on", what=type(event).__name__, **event._asdict())
            case Paused(late_s):
                _log.warning("the process was paused: no timer has counted that time", seconds=round(late_s, 3))
            case DeadLetter():
                _log.debug("a message was not handled", actor=event.actor_id, message=type(event.message).__name__)
            case _:
                assert_never(event)

    def _crashed(self, actor_id: str, error: BaseException) -> None:
        _log.error("an actor crashed", actor=actor_id, error=repr(error), exc_info=error)
        session, entity = self._registry.sessions.get(actor_id), self._registry.entities.get(actor_id)
        if session is not None:
            cause = KERNEL
            with suppress(TypeError):  # the entity's data may be the reason of the crash
                if entity is not None:
                    cause = KERNEL._replace(seq=entity.record_fact(ACTOR_LOST, KERNEL, {"error": repr(error)}).seq)
            self._end(session, f"the session's actor crashed: {error!r}", cause)
        elif entity is not None:
            self._registry.remove_crashed(entity)
            if entity.parent_id is not None:
                words = f"the actor of {actor_id} crashed: {error!r}"
                self._registry.send(entity.parent_id, FatalError(message=words), cause=KERNEL)

    def _end(self, session: LiveSession, why: str, cause: Cause) -> None:
        """End a session whose actor has crashed, with the children that must not outlive the session: their actors
        cannot handle events any more. In the journal these sessions are still open; the next supervisor stops them
        there."""
        lost = [session]
        for one in lost:  # the list grows while it is read: parents first
            one.advance(SessionPhase.TERMINATING)
            lost += [child for child in one.children.values() if child.mode is CancelMode.WAIT_COMPLETED]
        for one in reversed(lost):
            self._detach_survivors(one, cause)
            for actor_id in self._registry.system.children(one.session_id):
                below = self._registry.entities.get(actor_id)
                if below is not None and below.id not in self._registry.sessions:
                    self._registry.remove_crashed(below)
            self._registry.remove(one.session_id)
            words = why if one is session else f"its parent was lost: {why}"
            self._requests.fail_session(one.session_id, Outcome("failed", words, ""))

    def _detach_survivors(self, lost: LiveSession, cause: Cause) -> None:
        """Move the children that may outlive *lost* to the root; stop these children, except those with cancel mode
        ABANDON."""
        for child in [child for child in lost.children.values() if child.mode is not CancelMode.WAIT_COMPLETED]:
            child.reparent(cause, None)
            if child.mode is not CancelMode.ABANDON:
                stop = OperatorStop(reason=f"its parent {lost.session_id} was lost")
                child.request_stop(stop, cause=cause)
