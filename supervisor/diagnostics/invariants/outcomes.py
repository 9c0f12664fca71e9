"""Invariants of outcomes: a success has the agent's own report, each call has one result, and each end has one root.

The record of the intention comes before the turn, agent or start that it announces (intent before effect); this is
checked here too.
"""

from __future__ import annotations

from typing import Any

from supervisor.diagnostics.invariants.catalogue import ReportViolation
from supervisor.diagnostics.invariants.shadow_state import EntityShadow, SessionShadow, TurnShadow
from supervisor.lifecycles.effects import OpenTurn
from supervisor.lifecycles.types import AbortReason, Exit, LifecycleEvent

_CANCELLED = "it was cancelled"
"""Beginning of the reason of an agent that ended because its cancel scope was cancelled."""

_WORDED = frozenset({"acp", "claude", "codex", "scripted", "inprocess"})
"""Adapters whose agents report the end of a turn."""


class OutcomeInvariants:
    """Checker of turns and their calls, and of launches and their intents."""

    def __init__(self, shadows: dict[str, EntityShadow], entity_by_seq: list[str], report: ReportViolation) -> None:
        self._shadows, self._entity_by_seq, self._report = shadows, entity_by_seq, report

    # ------------------------------------------------------------------ intents
    def record_opened_turns(self, record: LifecycleEvent, shadow: SessionShadow, step: Any) -> None:
        """Record the turns that a session's step opens."""
        for effect in step.effects:
            if type(effect) is OpenTurn:
                shadow.opened[effect.turn_id] = record.seq

    def turn_born(self, record: LifecycleEvent, shadow: EntityShadow) -> None:
        session = shadow.parent
        if session is not None and (session.lost or session.opened.pop(shadow.id, None) == record.cause_id):
            return
        self._report("intent_before_effect", shadow.id, "born without a record that opens it")

    def agent_born(self, record: LifecycleEvent, shadow: EntityShadow) -> None:
        session = shadow.parent
        if session is None:
            return
        if record.cause_id != session.launch_seq or session.status != "Spawning":
            self._report(
                "intent_before_effect", shadow.id, f"born in {session.status}, for no launch that is under way"
            )

    def prompt_ready(self, record: LifecycleEvent, shadow: SessionShadow, step: Any) -> None:
        shadow.launch_seq = record.seq

    def started(self, record: LifecycleEvent, shadow: EntityShadow, step: Any) -> None:
        """Check that an agent which was launched or is ready was born and belongs to this session."""
        agent_id = record.metadata.get("agent_id")
        if agent_id:
            agent = self._shadows.get(agent_id)
            if agent is None or agent.parent is not shadow:
                self._report("intent_before_effect", shadow.id, f"{record.event} of {agent_id}, which it never had")

    def agent_ready(self, record: LifecycleEvent, shadow: EntityShadow, step: Any) -> None:
        """Check that the agent's id of the conversation is recorded before the agent's first prompt, so that the
        conversation can be resumed after a crash at any time."""
        session = shadow.parent
        if record.metadata.get("resume_id") is not None and session is not None and session.status == "Running":
            words = f"was given a prompt before {shadow.id}'s name for the conversation was on record"
            self._report("intent_before_effect", session.id, words)

    # ------------------------------------------------------------------ calls
    def call_started(self, record: LifecycleEvent, shadow: TurnShadow, step: Any) -> None:
        number, call_id = int(record.metadata.get("number", 0)), str(record.metadata.get("call_id"))
        if number < 1 or number in shadow.numbers:
            self._report("once", shadow.id, f"its call {call_id} has the number {number}, which another one had")
        shadow.numbers.add(number)
        if call_id in shadow.open:
            self._report("honest_ends", shadow.id, f"its call {call_id} was begun twice")
        if within := int(record.metadata.get("within") or 0):
            if within not in shadow.open.values():
                self._report(
                    "tool_stays_tool", shadow.id, f"its call {call_id} is made within {within}, which is not open"
                )
            elif within < number:
                shadow.within[number] = within
        shadow.open[call_id] = shadow.begun[record.seq] = number

    def call_completed(self, record: LifecycleEvent, shadow: TurnShadow, step: Any) -> None:
        call_id = str(record.metadata.get("call_id"))
        if shadow.open.pop(call_id, None) is None:
            self._report("tool_stays_tool", shadow.id, f"a second result of its call {call_id}")

    # ------------------------------------------------------------------ the agent's report
    def verify_requested(self, record: LifecycleEvent, shadow: TurnShadow, step: Any) -> None:
        if record.to_status == "VERIFYING":
            shadow.verified = record.seq
            if (record.metadata.get("verdict") or {}).get("exit") != Exit.SUCCESS.value:
                self._report("honest_ends", shadow.id, "asks to be verified without a success")
            self._check_closed(shadow, "asks to be verified")

    def success_refused(self, record: LifecycleEvent, shadow: TurnShadow, step: Any) -> None:
        """Check a success that the table refuses because calls are open: the turn must not have counted as a
        success."""
        self._check_closed(shadow, "was recorded as a success")

    def task_completed(self, record: LifecycleEvent, shadow: TurnShadow, step: Any) -> None:
        session, cause = shadow.parent, record.cause_id or 0
        judge = self._shadows.get(self._entity_by_seq[cause]) if 0 < cause < record.seq else None
        is_handed_over = session is not None and session.data is not None and session.data.verifying == shadow.id
        if is_handed_over and not shadow.completed and (judge is None or judge.name != "run"):
            self._report("honest_ends", shadow.id, "completed without the verdict of its task")
        shadow.completed = True
        if not shadow.verified:
            self._report("honest_ends", shadow.id, "completed without the agent's report")
        self._check_closed(shadow, "completed")

    def turn_reaped(self, record: LifecycleEvent, shadow: TurnShadow, step: Any) -> None:
        self._check_closed(shadow, "was reaped")

    def _check_closed(self, shadow: TurnShadow, what: str) -> None:
        if shadow.open:
            self._report("honest_ends", shadow.id, f"{what} with open calls: {', '.join(shadow.open)}")

    # ------------------------------------------------------------------ what the session makes of it
    def session_exited(self, record: LifecycleEvent, shadow: EntityShadow, step: Any) -> None:
        """Check that the exit of a working session follows from its turn."""
        if record.from_status != "Running":
            return
        cause = record.cause_id if record.cause_id is not None and 0 < record.cause_id < record.seq else 0
        turn = self._shadows.get(self._entity_by_seq[cause])
        if not (isinstance(turn, TurnShadow) and turn.parent is shadow):
            self._report("honest_ends", shadow.id, "stops to work without a report of its turn")
        elif record.to_status == "SessionComplete" and turn.verified != record.cause_id:
            self._report("honest_ends", shadow.id, "succeeds without the report of its turn")

    def agent_exited(self, record: LifecycleEvent, shadow: EntityShadow, step: Any) -> None:
        """Check the record of an agent's exit: a kill by the supervisor while the session continues has a reason, and
        is not blamed on another cause."""
        ended_by, why = record.metadata.get("ended_by"), str(record.metadata.get("reason", ""))
        session = shadow.parent
        if ended_by not in ("terminate", "kill"):
            if record.from_status == "working" and session is not None and not why:  # its end is its only report then
                self._check_silent(shadow, session)
            return
        if session is not None and not session.stopping and (not why or why.startswith(_CANCELLED)):
            self._report("isolation", shadow.id, f"was ended by our {ended_by}, and its session was never stopped")
        if record.abort_reason == AbortReason.OOM:
            self._report(
                "honest_ends", shadow.id, f"was ended by our {ended_by}, and lays it to the out-of-memory killer"
            )

    def _check_silent(self, shadow: EntityShadow, session: SessionShadow) -> None:
        """Check that the exit of an agent that was still working did not count as a success.

        Such an agent was never idle again, so it reported no end of its turn. For a plain program the exit is the
        report; for an agent of a plug-in it may be. An agent that is being ended sends nothing between its report and
        its exit.
        """
        if session.stopping:
            return
        turns = [one for one in session.live.values() if isinstance(one, TurnShadow)]
        last = max(turns, key=lambda one: one.born_seq, default=None)
        if last is not None and last.verified and getattr(shadow.data, "adapter", "") in _WORDED:
            self._report("honest_ends", last.id, f"succeeds by the exit of {shadow.id}, which did not report that")

    def turn_over(self, record: LifecycleEvent, shadow: EntityShadow, step: Any) -> None:
        turn = self._shadows.get(str(record.metadata.get("turn_id")))
        if record.metadata.get("completed") and not (isinstance(turn, TurnShadow) and turn.completed):
            self._report(
                "honest_ends", shadow.id, f"counts {record.metadata.get('turn_id')} as completed, which is not"
            )
