"""Wait for the turn that a message leads to, and read its result, from the journal and the transcript.

A session keeps a message until a turn whose prompt has the message, or that has taken the message up, has succeeded. So
the message leads to that turn, also if turns before it fail and are tried again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from supervisor.cli.lookup import pause
from supervisor.cli.transcript_times import TRANSCRIPT_LINE
from supervisor.control.error_messages import WorkFailed
from supervisor.diagnostics.outcomes import Outcomes
from supervisor.journal.statedir import StateDir
from supervisor.journal.transcript import follow_from
from supervisor.lifecycles.session import Session
from supervisor.lifecycles.session_data import SessionData
from supervisor.lifecycles.task import TaskEnd
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import EntityRow, Reader

_SENT: Final = ("MessageReceived", "UrgentMessage")


class MessageResult(NamedTuple):
    """Result of the turn that a message has led to. If the session has ended before, ``turn`` is ``""``, and the
    outcome is the session's. If the turn has failed and is not tried again, the outcome is ``failed``. ``text`` is what
    the agent wrote in a turn that was completed."""

    message_id: str
    turn: str
    outcome: str
    error: str
    text: str


def is_at_rest(reader: Reader, session_id: str) -> bool:
    """Return whether a session has no prompt, so that no turn follows unless somebody asks for one."""
    row = reader.entity(session_id)
    assert row is not None, "rows stay"
    data = msgspec.json.decode(row.data, type=SessionData)
    return row.state == Session.SESSION_COMPLETE.value and data.current is None and not data.queue


def await_message(state: StateDir, reader: Reader, session_id: str, message_id: str, offset: int) -> MessageResult:
    """Wait for the turn that a message leads to, or for the end of the session.

    Args:
        state: the state directory of the running supervisor.
        reader: its journal.
        session_id: the session that has the message.
        message_id: the id of the message, which is in the journal.
        offset: the offset in the session's transcript at which the message was sent.

    Raises:
        WorkFailed: the supervisor has ended, and the session has not.
    """
    seen_turn = ""
    while True:
        running = state.lock_holder() is not None  # asked first: what a supervisor records last is still seen
        row = reader.entity(session_id)
        assert row is not None, "rows stay"
        data = msgspec.json.decode(row.data, type=SessionData)
        place = next((place for place, one in enumerate(data.inbox) if one.id == message_id), None)
        if place is None:
            turn = _answering_turn(reader, session_id, message_id, seen_turn)
            if turn or row.ended:
                return _result(state, row, message_id, turn, offset)
        elif row.ended:
            return _result(state, row, message_id, "", offset)
        elif data.spent and data.cooled:  # no turn follows by itself: the message waits for the next prompt
            return MessageResult(message_id, data.turn_id, TaskEnd.FAILED, data.last_error, "")
        elif place < data.offered:
            seen_turn = data.turn_id
        if not running:
            words = f"{message_id} was not answered, and no supervisor runs on {state.root}"
            raise WorkFailed(f"{words}; `supervisor run PLAN.yaml` continues an interrupted plan")
        pause()


def _answering_turn(reader: Reader, session_id: str, message_id: str, seen_turn: str) -> str:
    """Return the first turn that has succeeded with the message; ``""`` if none has, or none is recorded yet. The turn
    *seen_turn* has had the message, and may have failed; where none was seen, turns that began with messages count."""
    is_sent = has_message = False
    for event in reader.events(session_id):
        if seen_turn and event.metadata.get("turn_id") == seen_turn:
            has_message = True
        if event.event in _SENT and event.metadata.get("message_id") == message_id:
            is_sent = True
        elif is_sent and not seen_turn and _brings_messages(event):
            has_message = True
        elif has_message and event.event == "TurnReaped" and event.metadata.get("completed"):
            return str(event.metadata["turn_id"])
    return ""


def _brings_messages(event: LifecycleEvent) -> bool:
    return event.event == "MessageTakenUp" or (event.event == "PromptReady" and event.metadata.get("messages") != 0)


def _result(state: StateDir, row: EntityRow, message_id: str, turn: str, offset: int) -> MessageResult:
    text, _ = follow_from(state.transcript(row.id), offset)
    said = _said_in_turn(text.splitlines())
    if turn:
        return MessageResult(message_id, turn, TaskEnd.COMPLETED, "", said)
    outcomes = Outcomes([row])
    error = outcomes.reason(row) or "the session has ended before a turn could answer"
    return MessageResult(message_id, "", outcomes.of(row) or TaskEnd.CANCELLED, error, said)


def _said_in_turn(lines: Sequence[str]) -> str:
    """Return what the agent wrote in the first turn whose prompt is among *lines*, or, without a prompt, in all of
    them."""
    said: list[str] = []
    has_prompt = False
    for line in lines:
        found = TRANSCRIPT_LINE.fullmatch(line)
        if found is None:
            continue
        if found["source"] == "prompt":
            if has_prompt and said:
                break
            has_prompt, said = True, []
        elif found["source"] == "message":
            said.append(found["text"])
    return "\n".join(said)
