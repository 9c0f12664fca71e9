"""Requests to sessions (prompts and messages), and the callers that wait for the replies.

Every caller gets one reply: from the session when the request is complete, or when the session or the journal
is lost. A plan waits for a disk that is down (``outcome_of``); everyone else is refused (``check_prompt``, ``send``).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import anyio

from actors import Lane, failpoint
from actors.one_shot_event import OneShotEvent
from supervisor.lifecycles.events import MessageReceived, TurnRequested, UrgentMessage
from supervisor.lifecycles.session import Session
from supervisor.lifecycles.session_data import Request, SessionData
from supervisor.lifecycles.types import USUAL_TIME, DeliveryPoint, TimeLimit
from supervisor.policies.argument_checks import check_text, check_type, delivery_point
from supervisor.ports import JournalError, Outcome
from supervisor.runtime.entity import Entity, Refused
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.live_session import LiveSession
from supervisor.sessions.registry import SessionRegistry
from supervisor.sessions.setup import Setups


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
    """Prompts and messages of one supervisor, from the call to the reply.

    Args:
        generation: generation of the journal, part of the messages' ids.
        setups: the settings limit the number of prompts, and of messages, that may wait for one session.
    """

    def __init__(self, registry: SessionRegistry, generation: int, setups: Setups) -> None:
        self._registry = registry
        self._generation = generation
        self._setups = setups
        self.stopping = anyio.Event()
        """Set when a drain or a stop has begun: no new work, such as a root session, or a turn of one, may begin."""
        self._waiting: dict[str, list[_Waiter]] = {}
        """Callers that wait for each request, by request id, in the order in which they came."""
        self._messages = 0
        self._earlier: dict[str, bool] = {}
        """Open requests to an earlier supervisor, by request id; the value is True if a plan made the request."""
        self._last_outcomes: dict[tuple[str, bool], Outcome | None] = {}
        """Outcome of the last request to an earlier supervisor, by session and by a flag that is True if only requests
        of plans count; ``None`` until the request is complete. Removed when the session gets a later request."""
        self._end: Outcome | None = None
        """Outcome of every request as soon as nothing can be recorded any more; ``None`` before."""
        self.answer_given = OneShotEvent()
        """Event that the next reply sets; replaced by a new event afterwards."""

    @property
    def waiting(self) -> list[str]:
        """Ids of the requests that have no reply yet, oldest first."""
        return list(self._waiting)

    @property
    def unanswered(self) -> bool:
        """True while a caller waits for a reply, or a session works on a request that no caller waits for, such as a
        message."""
        return bool(self._waiting) or any(one.data.current is not None for one in self._registry.sessions.values())

    # ------------------------------------------------------------------ prompts
    def check_prompt(self, session_id: str, prompt: str) -> None:
        """Check whether a session takes *prompt* now.

        Raises:
            NoSuchEntity: no living session has that id.
            Refused: the session is a root session, and the supervisor is ending. As :class:`Degraded`: the journal
                cannot be written now.
        """
        session = self._registry.session(session_id)
        check_text("prompt", prompt)
        if self.stopping.is_set() and session.parent is None:  # the turn of a parent waits for its children
            raise Refused(f"the prompt is not taken: the supervisor is ending, and begins no turn of {session_id}")
        self._registry.check_disk(f"a prompt for {session_id}")

    async def outcome_of(
        self,
        session_id: str,
        prompt: str,
        cause: Cause,
        *,
        once: bool = False,
        retries: int | None = None,
        limit: TimeLimit = USUAL_TIME,
        reason: str = "",
    ) -> Outcome:
        """Send *prompt* to a session, and return the outcome of its turn with the number of the record of that outcome.
        Wait while the journal cannot be written.

        Args:
            once: the caller, a task, verifies the work of the turn and decides about another attempt: the reply comes
                when the agent is done, and if a turn fails after its agent was ready, it is not tried again.
            retries: number of failures, of launches too, after which the session tries again; ``None``: as its limits
                say.
            limit: time limit of a turn.
            reason: why the prompt is sent again; it becomes part of the prompt where ``explains_retries`` allows that.

        Raises:
            NoSuchEntity: no living session has that id.
            Refused: the session has ended, or the maximum number of prompts already waits for it.
        """
        check_text("prompt", prompt)
        waiter = _Waiter()
        session = self._registry.session(session_id)
        data = session.data
        has = {one.id for one in (*data.queue, data.current) if one is not None}
        await self._check_waiting(session_id, "prompts", len(data.queue) + len(session.incoming_requests.keys() - has))
        session.requests += 1
        request_id = f"{session_id}:r{session.requests}"
        self._waiting[request_id] = [waiter]
        session.incoming_requests[request_id] = None
        try:
            requested = TurnRequested(
                request_id=request_id, prompt=prompt, reason=reason, once=once, retries=retries, **limit._asdict()
            )
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
        """Record that the session has a newer prompt: the stored outcomes of earlier prompts are removed."""
        self._last_outcomes.pop((session_id, False), None)
        if once:
            self._last_outcomes.pop((session_id, True), None)

    def _forget(self, request_id: str, waiter: _Waiter) -> None:
        """Remove one caller from a request; other callers may still wait for the same request."""
        waiters = self._waiting.get(request_id, [])
        if waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiting[request_id]

    async def _check_waiting(self, session_id: str, what: str, waiting: int) -> None:
        """Raise ``Refused`` if *waiting* has reached the maximum. The checkpoint before prevents a caller that retries
        in a loop from blocking the event loop."""
        if waiting >= self._setups.settings.limits.waiting_max or failpoint.active("session.full", session_id):
            await anyio.lowlevel.checkpoint()
            words = f"{session_id} has {waiting} {what} waiting already (limits.waiting_max); wait until it takes some"
            raise Refused(words)

    # ------------------------------------------------------------------ replies
    def complete_request(self, request_id: str, outcome: Outcome) -> None:
        """Send *outcome* as the reply to every caller of a request."""
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
        """Send *outcome* as the reply to every request to a session that is lost."""
        for request_id in [one for one in self._waiting if one.rpartition(":r")[0] == session_id]:
            self.complete_request(request_id, outcome)

    def fail_all(self, outcome: Outcome) -> None:
        """Send *outcome* as the reply to every request, later requests included, because nothing can be recorded any
        more."""
        self._end = outcome
        waiting, self._waiting = self._waiting, {}
        for waiter in [one for waiters in waiting.values() for one in waiters]:
            waiter.reply(outcome)

    def track_recovered(self, sessions: Iterable[SessionData]) -> None:
        """Register the open prompts that were sent to an earlier supervisor, so that their outcomes are stored for
        later callers."""
        for data in sessions:
            self._last_outcomes |= {(data.id, False): None, (data.id, True): None}
            self._earlier |= {one.id: one.once for one in (*data.queue, data.current) if one is not None}

    async def last_outcome(self, session_id: str, *, once: bool = False) -> Outcome | None:
        """Wait for the last prompt of a session, from any caller, and return the outcome; ``None`` if there is no
        prompt.

        With *once* only prompts of plans count, which may be tried only once. The outcome of a prompt that was sent to
        an earlier supervisor is returned even after that prompt is complete, and after the session has ended.
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
    async def send(
        self, session_id: str, text: str, *, urgent: bool, sender: str, at: DeliveryPoint | str | None = None
    ) -> str:
        """Send a message, which becomes part of the session's next prompt; return the message's id once the message is
        durable. An *urgent* message interrupts the running turn, at the delivery point *at*.

        Raises:
            ValueError: *at* is no delivery point, or is given for a message that is not urgent.
            NoSuchEntity: no living session has that id.
            Refused: the session has ended, or the maximum number of messages already waits for it; or the message is
                not urgent, and the session may get no further prompt, or interrupts a turn whose work is being
                checked. As :class:`Degraded`: the journal cannot be
                written now.
        """
        point = delivery_point(urgent, at)
        session = self._registry.session(session_id)
        check_text("text", text)
        check_type("sender", sender, str)
        self._registry.check_disk(f"a message for {session_id}")
        if not urgent:
            self._check_next_prompt(session)
        elif (
            session.data.verifying and session.state is Session.SESSION_COMPLETE and point is not DeliveryPoint.TURN_END
        ):
            # No turn runs that could be interrupted, and no prompt follows unless the check fails.
            checked = f"the work of {session_id} is being checked, and it may get no further prompt"
            raise Refused(f"{checked}; urgent at turn_end gives the message a turn of its own")
        has = {one.id for one in session.data.inbox}
        await self._check_waiting(session_id, "messages", len(has | session.incoming_messages.keys()))
        self._messages += 1
        message_id = f"m{self._generation}.{self._messages}"
        event: MessageReceived | UrgentMessage = MessageReceived(message_id=message_id, sender=sender, text=text)
        lane = Lane.NORMAL
        if urgent:
            steer, lane = session.connection is not None and session.connection.steers, Lane.URGENT
            event = UrgentMessage(message_id=message_id, sender=sender, text=text, point=point, steer=steer)
        session.incoming_messages[message_id] = None
        try:
            await self._registry.post(session_id, event, cause=Cause(actor=sender), lane=lane, withdraws=True)
        except Refused:  # its text is that of the table
            state = self._registry.entity(session_id).state.value
            raise Refused(f"session {session_id!r} is ending ({state}), and takes no message any more") from None
        finally:
            del session.incoming_messages[message_id]
        return message_id

    def _check_next_prompt(self, session: LiveSession) -> None:
        """Raise ``Refused`` if the session may get no further prompt. A plan, and a call that delegates, prompt a
        session once, and again only after a failure."""
        if session.state in _PROMPT_COMES:
            return
        current = session.data.current
        is_once = session.assigned_task is not None or session.started_by is not None
        if is_once or (current is not None and current.once):
            work = "for a task" if session.started_by is None else "for the call that started it"
            fix = "make the message urgent, or urgent at turn_end"
            raise Refused(f"{session.session_id} works {work} and may get no further prompt; {fix}")


_PROMPT_COMES = (Session.INITIALIZING, Session.COOLING_DOWN)
"""States of a session whose next prompt is not built yet."""


def _requests_of(session: Entity | None) -> list[Request]:
    """Return the prompts that a session works on or has in its queue."""
    asked = (session.data.current, *session.data.queue) if session is not None else ()
    return [one for one in asked if one is not None]
