"""What is asked of sessions, and who waits for the answers: prompts and messages go into their mailboxes from here.

Whoever asks is answered once: by the hands, when a turn is over, or because nothing can be written any more. Nobody
here looks whether the disk is down: who may not wait for it has looked before.
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
from supervisor.runtime.live_session import LiveSession, Outcome
from supervisor.runtime.one_shot_event import OneShotEvent

__all__ = ["Answer", "PendingRequests"]

Answer = Callable[[Outcome], None]


class PendingRequests:
    """The prompts and messages of one supervisor.

    Args:
        generation: of its journal: messages are named by it.
        waiting_max: how many prompts, and how many messages, a session may have waiting, now.
    """

    def __init__(self, registry: EntityRegistry, generation: int, waiting_max: Callable[[], int]) -> None:
        self._registry = registry
        self._generation = generation
        self._waiting_max = waiting_max
        self._waiting: dict[str, list[Answer]] = {}
        """By the id of a request: who is told how it ends, in the order in which they asked."""
        self._messages = 0
        self._inherited: dict[str, bool] = {}
        """By the id of a request that was asked of an earlier supervisor, and has not ended: whether a plan did."""
        self._unheard: dict[tuple[str, bool], Outcome | None] = {}
        """By session, of all that was asked of an earlier supervisor, and of what plans asked: how the last has ended,
        once it has. Nothing where something was asked since."""
        self._end: Outcome | None = None
        """How all that is asked ends, since nothing can be recorded any more."""
        self.answer_given = OneShotEvent()
        """Set with the next answer; another one then takes its place."""

    @property
    def waiting(self) -> list[str]:
        """The requests that are not answered yet, oldest first."""
        return list(self._waiting)

    @property
    def unanswered(self) -> bool:
        """True while somebody waits for an answer, or a message has a turn that nobody waits for."""
        sessions = (self._registry.entities.get(session_id) for session_id in self._registry.sessions)
        return bool(self._waiting) or any(one is not None and one.data.current is not None for one in sessions)

    # ------------------------------------------------------------------ prompts
    async def outcome_of(self, session_id: str, prompt: str, cause: Cause, *, once: bool, limit: TimeLimit) -> Outcome:
        """Have a session work on *prompt*; how that ended.

        Raises:
            NoSuchEntity: there is no such session.
            Refused: the session has ended, or as many prompts as may be wait for it already.
        """
        answered = OneShotEvent()
        outcomes: list[Outcome] = []

        def answer(outcome: Outcome) -> None:
            outcomes.append(outcome)
            answered.set()

        await self._request(session_id, prompt, answer, cause, once=once, limit=limit)
        await answered.wait()
        return outcomes[0]

    async def _request(
        self, session_id: str, prompt: str, answer: Answer, cause: Cause, *, once: bool, limit: TimeLimit
    ) -> None:
        session = self._registry.session(session_id)
        data: SessionData = self._registry.entity(session_id).data
        has = {one.id for one in (*data.queue, data.current) if one is not None}
        await self._check_waiting(session_id, "prompts", len(data.queue) + len(session.incoming_requests.keys() - has))
        session.requests += 1
        request_id = f"{session_id}:r{session.requests}"
        self._waiting[request_id] = [answer]
        session.incoming_requests[request_id] = None
        try:
            requested = TurnRequested(request_id=request_id, prompt=prompt, once=once, **limit._asdict())
            await self._registry.post(session_id, requested, cause=cause, withdraws=True)
        except BaseException:
            self._forget(request_id, answer)
            if request_id in [one.id for one in _asked_of(self._registry.entities.get(session_id))]:
                self._taken(session_id, once=once)  # else it is as if it had never been asked
            raise
        finally:
            del session.incoming_requests[request_id]
        self._taken(session_id, once=once)

    def _taken(self, session_id: str, *, once: bool) -> None:
        """The session has heard of another prompt: what was asked before is no longer its last."""
        self._unheard.pop((session_id, False), None)
        if once:
            self._unheard.pop((session_id, True), None)

    def _forget(self, request_id: str, answer: Answer) -> None:
        """Who was to be told by *answer* has gone; others may wait for the same request."""
        answers = self._waiting.get(request_id, [])
        if answer in answers:
            answers.remove(answer)
            if not answers:
                del self._waiting[request_id]

    async def _check_waiting(self, session_id: str, what: str, waiting: int) -> None:
        """Push back; whoever tries again and again does not keep the loop either."""
        if waiting >= self._waiting_max() or failpoint.active("session.full", session_id):
            await anyio.lowlevel.checkpoint()
            words = f"{session_id} has {waiting} {what} waiting already (limits.waiting_max); wait until it takes some"
            raise Refused(words)

    # ------------------------------------------------------------------ answers
    def complete_request(self, request_id: str, outcome: Outcome) -> None:
        """That request has ended so: tell who waits for it, if anybody does."""
        for answer in self._waiting.pop(request_id, ()):
            answer(outcome)
        if request_id in self._inherited:
            session_id = request_id.rpartition(":r")[0]
            for of_plans in dict.fromkeys((False, self._inherited.pop(request_id))):
                if (session_id, of_plans) in self._unheard:
                    self._unheard[session_id, of_plans] = outcome
        self.answer_given.set()
        self.answer_given = OneShotEvent()

    def fail_session(self, session_id: str, outcome: Outcome) -> None:
        """The session is no more: all that was asked of it has that outcome."""
        for request_id in [one for one in self._waiting if one.rpartition(":r")[0] == session_id]:
            self.complete_request(request_id, outcome)

    def fail_all(self, outcome: Outcome) -> None:
        """Nothing can be recorded any more: all that was asked has that outcome, for who asks later, too."""
        self._end = outcome
        waiting, self._waiting = self._waiting, {}
        for answer in [one for answers in waiting.values() for one in answers]:
            answer(outcome)

    def track_recovered(self, sessions: Iterable[SessionData]) -> None:
        """Those may have prompts that were asked of an earlier supervisor: how they end is kept for who asks later."""
        for data in sessions:
            self._unheard |= {(data.id, False): None, (data.id, True): None}
            self._inherited |= {one.id: one.once for one in (*data.queue, data.current) if one is not None}

    async def last_outcome(self, session_id: str, *, once: bool) -> Outcome | None:
        """How the last prompt ends that a session has, whoever asked for it (with *once*: of those that plans ask for);
        ``None`` if it has none. Of one that was asked of an earlier supervisor, also after it has ended."""
        waiting = [one for one in _asked_of(self._registry.entities.get(session_id)) if one.once or not once]
        if not waiting:
            if (session_id, once) in self._unheard:
                with suppress(JournalError):
                    await self._registry.journal_writer.flush()  # the record of its answer may be on its way
            return self._unheard.get((session_id, once))
        if self._end is not None:
            return self._end
        answered, outcomes, request_id = OneShotEvent(), list[Outcome](), waiting[-1].id

        def answer(outcome: Outcome) -> None:
            outcomes.append(outcome)
            answered.set()

        self._waiting.setdefault(request_id, []).append(answer)
        try:
            await answered.wait()
        finally:
            self._forget(request_id, answer)
        return outcomes[0]

    # ------------------------------------------------------------------ messages
    async def send(self, session_id: str, text: str, *, sender: str, urgent: DeliveryPoint | None) -> str:
        """Leave a message for a session's next prompt; an *urgent* one interrupts its turn, at that point of it.

        Returns:
            The message's id; the message is durable.

        Raises:
            NoSuchEntity: no living session has that id.
            Refused: the session has ended, or as many messages as may be wait for it already.
        """
        session = self._registry.session(session_id)
        has = {one.id for one in self._registry.entity(session_id).data.inbox}
        await self._check_waiting(session_id, "messages", len(has | session.incoming_messages.keys()))
        self._messages += 1
        message_id = f"m{self._generation}.{self._messages}"
        event = _message(session, message_id, sender, text, urgent)
        lane = Lane.NORMAL if urgent is None else Lane.URGENT
        session.incoming_messages[message_id] = None
        try:
            await self._registry.post(session_id, event, cause=Cause(actor=sender), lane=lane, withdraws=True)
        finally:
            del session.incoming_messages[message_id]
        return message_id


def _message(
    session: LiveSession, message_id: str, sender: str, text: str, urgent: DeliveryPoint | None
) -> UrgentMessage | MessageReceived:
    if urgent is None:
        return MessageReceived(message_id=message_id, sender=sender, text=text)
    steer = session.connection is not None and session.connection.steers
    return UrgentMessage(message_id=message_id, sender=sender, text=text, point=urgent, steer=steer)


def _asked_of(session: Entity | None) -> list[Request]:
    """The prompts that a session works on, or has waiting."""
    asked = (session.data.current, *session.data.queue) if session is not None else ()
    return [one for one in asked if one is not None]
