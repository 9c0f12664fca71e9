"""Invariants of requests, messages and claims: each takes effect once, and each request has a reply."""

from __future__ import annotations

from typing import Any

from supervisor.diagnostics.invariants.catalogue import ReportViolation
from supervisor.diagnostics.invariants.shadow_state import EntityShadow, SessionShadow, TaskShadow
from supervisor.lifecycles.effects import ReplyToRequest
from supervisor.lifecycles.types import Exit, LifecycleEvent

_HELD = frozenset({"CLAIMED", "IN_PROGRESS"})
_WORKED = frozenset({"CLAIMED", "IN_PROGRESS", "DONE"})
"""States of a task that a session has claimed."""


class ExactlyOnceInvariants:
    """Checker of requests, messages and claims."""

    def __init__(self, shadows: dict[str, EntityShadow], report: ReportViolation) -> None:
        self._shadows, self._report = shadows, report
        self._requests: set[str] = set()

    # ------------------------------------------------------------------ requests
    def requested(self, record: LifecycleEvent, shadow: SessionShadow, step: Any) -> None:
        request_id = str(record.metadata.get("request_id"))
        if request_id in self._requests:
            self._report("once", shadow.id, f"the request {request_id} takes effect a second time")
        self._requests.add(request_id)
        shadow.unanswered[request_id] = None

    def check_replies(self, record: LifecycleEvent, shadow: SessionShadow, step: Any) -> None:
        """Check the replies in a step. A message that had a turn of its own has a reply as well, but no request."""
        for effect in step.effects:
            if type(effect) is not ReplyToRequest:
                continue
            known = effect.request_id in self._requests
            if known and effect.request_id not in shadow.unanswered:
                self._report("once", shadow.id, f"the request {effect.request_id} is answered a second time")
            shadow.unanswered.pop(effect.request_id, None)

    # ------------------------------------------------------------------ messages
    def message(self, record: LifecycleEvent, shadow: SessionShadow, step: Any) -> None:
        message_id = str(record.metadata.get("message_id"))
        if message_id in shadow.delivered:
            self._report("once", shadow.id, f"the message {message_id} comes again after it was delivered")
        if record.metadata.get("sender") == "supervisor":
            shadow.own.add(message_id)  # messages of the runtime about its aborts count in addition
        if message_id not in shadow.messages:
            shadow.messages.append(message_id)
            waiting = sum(one not in shadow.own for one in shadow.messages)
            if shadow.data is not None and waiting > (waiting_max := shadow.data.limits.waiting_max):
                self._report("bounded", shadow.id, f"has {waiting} messages waiting; {waiting_max} may be")

    def prompt_ready(self, record: LifecycleEvent, shadow: SessionShadow, step: Any) -> None:
        number = record.metadata.get("messages")
        waiting = len(shadow.messages)
        shadow.offered = waiting if number is None else min(number, waiting)

    def message_heard(self, record: LifecycleEvent, shadow: SessionShadow, step: Any) -> None:
        """Record that a message was taken up within the turn, which counts as a part of the prompt."""
        message_id = str(record.metadata.get("message_id"))
        if message_id in shadow.messages[shadow.offered :] and record.from_status != "Stopped":
            shadow.messages.remove(message_id)
            shadow.messages.insert(shadow.offered, message_id)
            shadow.offered += 1

    def session_exited(self, record: LifecycleEvent, shadow: SessionShadow, step: Any) -> None:
        """Mark the messages of a successful prompt as delivered, and compare the waiting messages with the session's
        data."""
        success = (record.metadata.get("verdict") or {}).get("exit") == Exit.SUCCESS.value
        if success and record.from_status in ("Running", "Interrupting"):
            shadow.delivered.update(shadow.messages[: shadow.offered])
            del shadow.messages[: shadow.offered]
            shadow.offered = 0
        if not shadow.lost and shadow.data is not None and [one.id for one in shadow.data.inbox] != shadow.messages:
            self._report(
                "once", shadow.id, f"keeps {len(shadow.data.inbox)} messages; {len(shadow.messages)} wait for it"
            )
            shadow.messages = [one.id for one in shadow.data.inbox]

    # ------------------------------------------------------------------ tasks
    def task_moved(self, record: LifecycleEvent, shadow: TaskShadow, step: Any) -> None:
        if record.to_status not in _WORKED:
            shadow.holder = None

    def claimed(self, record: LifecycleEvent, shadow: TaskShadow, step: Any) -> None:
        holder = str(record.metadata.get("by"))
        if shadow.holder is not None:
            self._report("one_holder", shadow.id, f"claimed by {holder} while {shadow.holder} holds it")
        session = self._shadows.get(holder)
        if not isinstance(session, SessionShadow):
            self._report("intent_before_effect", shadow.id, f"claimed by {holder}, of whom there is no record")
        shadow.holder = holder

    # ------------------------------------------------------------------ in the end
    def check_end(self) -> None:
        for shadow in self._shadows.values():
            if isinstance(shadow, SessionShadow):
                for request_id in shadow.unanswered:
                    self._report("nothing_lost", shadow.id, f"the request {request_id} was never answered")
            elif isinstance(shadow, TaskShadow) and shadow.status in _HELD:
                holder = self._shadows.get(shadow.holder or "")
                if holder is None or holder.ended:
                    self._report("nothing_lost", shadow.id, f"is {shadow.status}, and {shadow.holder} does not live")
