"""Requests to sessions (prompts and messages), and the callers that wait for the replies.

Every caller gets one reply: from the effect executor when the request is complete, or when the session or the journal
is lost. A journal outage is not checked here: callers that must not wait for the disk check it before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

import anyio

from actors import Lane, failpoint
from supervisor.lifecycles.events import MessageReceived, TurnRequested, UrgentMessage
from supervisor.lifecycles.session import Request, SessionData
from supervisor.lifecycles.types import DeliveryPoint, TimeLimit
from supervisor.ports import JournalError
from supervisor.runtime.entity import Entity, Refused
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.runtime.journal_writer import Cause
from supervisor.runtime.live_session import Outcome
from supervisor.runtime.one_shot_event import OneShotEvent


class _Waiter:
    """Caller that waits for the outcome of a request."""

    def __init__(self) -> None:
        self._outcome: Outcome | None = None
        self._replied = OneShotEvent()

    def reply(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._replied.set()

    async def wait(self) -> Outcome:
        await self._replied.wait()
        assert self._outcome is not None, "it is set before the event"
        return self._outcome


class PendingRequests:
    """Prompts and messages of one supervisor.

    Args:
        generation: generation of the journal, part of the messages' ids.
        waiting_max: returns the number of prompts, and of messages, that a session may have waiting now.
    """

    def __init__(self, registry: EntityRegistry, generation: int, waiting_max: Callable[[], int]) -> None:
        self._registry = registry
        self._generation = generation
        self._waiting_max = waiting_max
        self._waiting: dict[str, list[_Waiter]] = {}
        """Callers of each request, by request id, in their order."""
        self._messages = 0
        self._earlier: dict[str, bool] = {}
        """Open requests to an earlier supervisor, by id, and whether a plan made them."""
        self._last_outcomes: dict[tuple[str, bool], Outcome | None] = {}
        """Outcome of the last request to an earlier supervisor, by session, and by whether only requests of plans
        count; ``None`` until the request is complete. Removed when a later request comes."""
        self._end: Outcome | None = None
        """Outcome of every request once nothing can be recorded any more."""
        self.answer_given = OneShotEvent()
        """Set with the next reply, and then replaced."""

    @property
    def waiting(self) -> list[str]:
        """Ids of the requests without a reply, oldest first."""
        return list(self._waiting)

    @property
    def unanswered(self) -> bool:
        """True while a caller waits for a reply, or a session works on a request of its own, such as a message."""
        sessions = (self._registry.entities.get(session_id) for session_id in self._registry.sessions)
        return bool(self._waiting) or any(one is not None and one.data.current is not None for one in sessions)

    # ------------------------------------------------------------------ prompts
    async def outcome_of(self, session_id: str, prompt: str, cause: Cause, *, once: bool, limit: TimeLimit) -> Outcome:
        """Send *prompt* to a session, wait, and return its outcome.

        Raises:
            NoSuchEntity: no living session has that id.
            Refused: the session has ended, or the maximum of prompts waits for it already.
        """
        waiter = _Waiter()
        session = self._registry.session(session_id)
        data: SessionData = self._registry.entity(session_id).data
        has = {one.id for one in (*data.queue, data.current) if one is not None}
        await self._check_waiting(session_id, "prompts", len(data.queue) + len(session.incoming_requests.keys() - has))
        session.requests += 1
        request_id = f"{session_id}:r{session.requests}"
        self._waiting[request_id] = [waiter]
        session.incoming_requests[request_id] = None
        try:
            requested = TurnRequested(request_id=request_id, prompt=prompt, once=once, **limit._asdict())
            await self._registry.post(session_id, requested, cause=cause, withdraws=True)
        except BaseException:
            self._forget(request_id, waiter)
            if request_id in [one.id for one in _requests_of(self._registry.entities.get(session_id))]:
                self._note_prompt(session_id, once=once)  # otherwise the prompt never reached the session
            raise
        finally:
            del session.incoming_requests[request_id]
        self._note_prompt(session_id, once=once)
        return await waiter.wait()

    def _note_prompt(self, session_id: str, *, once: bool) -> None:
        """Note that the session has another prompt: earlier ones are no longer its last."""
        self._last_outcomes.pop((session_id, False), None)
        if once:
            self._last_outcomes.pop((session_id, True), None)

    def _forget(self, request_id: str, waiter: _Waiter) -> None:
        """Remove one caller of a request; other callers may wait for the same request."""
        waiters = self._waiting.get(request_id, [])
        if waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiting[request_id]

    async def _check_waiting(self, session_id: str, what: str, waiting: int) -> None:
        """Refuse if too many wait. The checkpoint keeps a caller that retries in a loop from blocking the event
        loop."""
        if waiting >= self._waiting_max() or failpoint.active("session.full", session_id):
            await anyio.lowlevel.checkpoint()
            words = f"{session_id} has {waiting} {what} waiting already (limits.waiting_max); wait until it takes some"
            raise Refused(words)

    # ------------------------------------------------------------------ replies
    def complete_request(self, request_id: str, outcome: Outcome) -> None:
        """Reply to every caller of a request."""
        for waiter in self._waiting.pop(request_id, ()):
            waiter.reply(outcome)
        if request_id in self._earlier:
            session_id = request_id.rpartition(":r")[0]
            for of_plans in dict.fromkeys((False, self._earlier.pop(request_id))):
                if (session_id, of_plans) in self._last_outcomes:
                    self._last_outcomes[session_id, of_plans] = outcome
        self.answer_given.set()
        self.answer_given = OneShotEvent()

    def fail_session(self, session_id: str, outcome: Outcome) -> None:
        """Complete every request to a session that is lost."""
        for request_id in [one for one in self._waiting if one.rpartition(":r")[0] == session_id]:
            self.complete_request(request_id, outcome)

    def fail_all(self, outcome: Outcome) -> None:
        """Complete every request, and later ones: nothing can be recorded any more."""
        self._end = outcome
        waiting, self._waiting = self._waiting, {}
        for waiter in [one for waiters in waiting.values() for one in waiters]:
            waiter.reply(outcome)

    def track_recovered(self, sessions: Iterable[SessionData]) -> None:
        """Keep the outcomes of prompts that were sent to an earlier supervisor, for callers that ask later."""
        for data in sessions:
            self._last_outcomes |= {(data.id, False): None, (data.id, True): None}
            self._earlier |= {one.id: one.once for one in (*data.queue, data.current) if one is not None}

    async def last_outcome(self, session_id: str, *, once: bool) -> Outcome | None:
        """Wait for the last prompt of a session, from any caller, and return its outcome; ``None`` if it has none.

        With *once* only prompts of plans count. The outcome of a prompt to an earlier supervisor is returned also after
        it is complete.
        """
        waiting = [one for one in _requests_of(self._registry.entities.get(session_id)) if one.once or not once]
        if not waiting:
            if (session_id, once) in self._last_outcomes:
                with suppress(JournalError):
                    await self._registry.journal_writer.flush()  # the record of its outcome may be on its way
            return self._last_outcomes.get((session_id, once))
        if self._end is not None:
            return self._end
        waiter, request_id = _Waiter(), waiting[-1].id
        self._waiting.setdefault(request_id, []).append(waiter)
        try:
            return await waiter.wait()
        finally:
            self._forget(request_id, waiter)

    # ------------------------------------------------------------------ messages
    async def send(self, session_id: str, text: str, *, sender: str, urgent: DeliveryPoint | None) -> str:
        """Leave a message for a session's next prompt; with *urgent*, interrupt its turn at that point.

        Returns:
            The message's id; the message is durable.

        Raises:
            NoSuchEntity: no living session has that id.
            Refused: the session has ended, or the maximum of messages waits for it already.
        """
        session = self._registry.session(session_id)
        has = {one.id for one in self._registry.entity(session_id).data.inbox}
        await self._check_waiting(session_id, "messages", len(has | session.incoming_messages.keys()))
        self._messages += 1
        message_id = f"m{self._generation}.{self._messages}"
        event: MessageReceived | UrgentMessage = MessageReceived(message_id=message_id, sender=sender, text=text)
        lane = Lane.NORMAL
        if urgent is not None:
            steer, lane = session.connection is not None and session.connection.steers, Lane.URGENT
            event = UrgentMessage(message_id=message_id, sender=sender, text=text, point=urgent, steer=steer)
        session.incoming_messages[message_id] = None
        try:
            await self._registry.post(session_id, event, cause=Cause(actor=sender), lane=lane, withdraws=True)
        finally:
            del session.incoming_messages[message_id]
        return message_id


def _requests_of(session: Entity | None) -> list[Request]:
    """Return the prompts that a session works on or has waiting."""
    asked = (session.data.current, *session.data.queue) if session is not None else ()
    return [one for one in asked if one is not None]
