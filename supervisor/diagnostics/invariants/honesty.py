"""Honest ends: a success has the agent's own word, each call has one result, and each end one root where somebody is.

What wanted a turn, an agent or a start is on record before it (intent before effect); the same books tell.
"""

from __future__ import annotations

from typing import Any

from supervisor.diagnostics.invariants.catalogue import Say
from supervisor.diagnostics.invariants.shadow_state import Book, SessionBook, TurnBook
from supervisor.lifecycles.effects import OpenTurn
from supervisor.lifecycles.types import AbortReason, Exit, LifecycleEvent

__all__ = ["Honesty"]

_CANCELLED = "it was cancelled"
"""The reason of an agent that ends with its scope."""

_WORDED = frozenset({"acp", "claude", "codex", "scripted", "inprocess"})
"""Adapters of agents that say when a turn is over."""


class Honesty:
    """Turns and their calls, launches and their intents."""

    def __init__(self, books: dict[str, Book], whose: list[str], say: Say) -> None:
        self._books, self._whose, self._say = books, whose, say

    # ------------------------------------------------------------------ intents
    def opens(self, record: LifecycleEvent, book: SessionBook, step: Any) -> None:
        """What a session's step wants: a turn to be born."""
        for effect in step.effects:
            if type(effect) is OpenTurn:
                book.opened[effect.turn_id] = record.seq

    def turn_born(self, record: LifecycleEvent, book: Book) -> None:
        session = book.parent
        if session is not None and (session.lost or session.opened.pop(book.id, None) == record.cause_id):
            return
        self._say("intent_before_effect", book.id, "born without a record that opens it")

    def agent_born(self, record: LifecycleEvent, book: Book) -> None:
        session = book.parent
        if session is None:
            return
        if record.cause_id != session.launch_seq or session.status != "Spawning":
            self._say("intent_before_effect", book.id, f"born in {session.status}, for no launch that is under way")

    def prompt_ready(self, record: LifecycleEvent, book: SessionBook, step: Any) -> None:
        book.launch_seq = record.seq

    def started(self, record: LifecycleEvent, book: Book, step: Any) -> None:
        """An agent was launched, or is ready: it was born, and of this session."""
        agent_id = record.metadata.get("agent_id")
        if agent_id:
            agent = self._books.get(agent_id)
            if agent is None or agent.parent is not book:
                self._say("intent_before_effect", book.id, f"{record.event} of {agent_id}, which it never had")

    def agent_ready(self, record: LifecycleEvent, book: Book, step: Any) -> None:
        """Its name for the conversation is on record before its first prompt: so it can be loaded, whatever comes."""
        session = book.parent
        if record.metadata.get("resume_id") is not None and session is not None and session.status == "Running":
            words = f"was given a prompt before {book.id}'s name for the conversation was on record"
            self._say("intent_before_effect", session.id, words)

    # ------------------------------------------------------------------ calls
    def call_started(self, record: LifecycleEvent, book: TurnBook, step: Any) -> None:
        number, call_id = int(record.metadata.get("number", 0)), str(record.metadata.get("call_id"))
        if number < 1 or number in book.numbers:
            self._say("once", book.id, f"its call {call_id} has the number {number}, which another one had")
        book.numbers.add(number)
        if call_id in book.open:
            self._say("honest_ends", book.id, f"its call {call_id} was begun twice")
        if within := int(record.metadata.get("within") or 0):
            if within not in book.open.values():
                self._say("tool_stays_tool", book.id, f"its call {call_id} is made within {within}, which is not open")
            elif within < number:
                book.within[number] = within
        book.open[call_id] = book.begun[record.seq] = number

    def call_completed(self, record: LifecycleEvent, book: TurnBook, step: Any) -> None:
        call_id = str(record.metadata.get("call_id"))
        if book.open.pop(call_id, None) is None:
            self._say("tool_stays_tool", book.id, f"a second result of its call {call_id}")

    # ------------------------------------------------------------------ the agent's word
    def verify_requested(self, record: LifecycleEvent, book: TurnBook, step: Any) -> None:
        if record.to_status == "VERIFYING":
            book.verified = record.seq
            if (record.metadata.get("verdict") or {}).get("exit") != Exit.SUCCESS.value:
                self._say("honest_ends", book.id, "asks to be verified without a success")
            self._check_closed(book, "asks to be verified")

    def word_refused(self, record: LifecycleEvent, book: TurnBook, step: Any) -> None:
        """The table refuses a success while calls are open: it should not have been judged one."""
        self._check_closed(book, "is said to have succeeded")

    def task_completed(self, record: LifecycleEvent, book: TurnBook, step: Any) -> None:
        book.completed = True
        if not book.verified:
            self._say("honest_ends", book.id, "completed without the agent's word")
        self._check_closed(book, "completed")

    def turn_reaped(self, record: LifecycleEvent, book: TurnBook, step: Any) -> None:
        self._check_closed(book, "was reaped")

    def _check_closed(self, book: TurnBook, what: str) -> None:
        if book.open:
            self._say("honest_ends", book.id, f"{what} with open calls: {', '.join(book.open)}")

    # ------------------------------------------------------------------ what the session makes of it
    def session_exited(self, record: LifecycleEvent, book: Book, step: Any) -> None:
        """What becomes of a session that works is the word of its turn."""
        if record.from_status != "Running":
            return
        cause = record.cause_id if record.cause_id is not None and 0 < record.cause_id < record.seq else 0
        turn = self._books.get(self._whose[cause])
        if not (isinstance(turn, TurnBook) and turn.parent is book):
            self._say("honest_ends", book.id, "stops to work without a word of its turn")
        elif record.to_status == "SessionComplete" and turn.verified != record.cause_id:
            self._say("honest_ends", book.id, "succeeds without the word of its turn")

    def agent_exited(self, record: LifecycleEvent, book: Book, step: Any) -> None:
        """Whom we have ended, nobody else has; and we end nobody without a reason while its session goes on."""
        ended_by, why = record.metadata.get("ended_by"), str(record.metadata.get("reason", ""))
        session = book.parent
        if ended_by not in ("terminate", "kill"):
            if record.from_status == "working" and session is not None and not why:  # its end is its only word then
                self._check_silent(book, session)
            return
        if session is not None and not session.stopping and (not why or why.startswith(_CANCELLED)):
            self._say("isolation", book.id, f"was ended by our {ended_by}, and its session was never told to end")
        if record.abort_reason == AbortReason.OOM:
            self._say("honest_ends", book.id, f"was ended by our {ended_by}, and lays it to the out-of-memory killer")

    def _check_silent(self, book: Book, session: SessionBook) -> None:
        """It was never idle again, so it gave no word; of a plain program its exit is one, of a plug-in's it may be.
        One that is being ended says nothing between its word and its exit."""
        if session.stopping:
            return
        turns = [one for one in session.live.values() if isinstance(one, TurnBook)]
        last = max(turns, key=lambda one: one.born_seq, default=None)
        if last is not None and last.verified and getattr(book.data, "adapter", "") in _WORDED:
            self._say("honest_ends", last.id, f"succeeds by the exit of {book.id}, which never said so")

    def turn_over(self, record: LifecycleEvent, book: Book, step: Any) -> None:
        turn = self._books.get(str(record.metadata.get("turn_id")))
        if record.metadata.get("completed") and not (isinstance(turn, TurnBook) and turn.completed):
            self._say("honest_ends", book.id, f"counts {record.metadata.get('turn_id')} as completed, which is not")
