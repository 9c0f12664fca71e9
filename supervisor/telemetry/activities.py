"""Activities: what began and ended, from the records. Pure.

The metrics, the spans and the files are all made from activities, so that they agree, and so that each record is read
once. An activity is a run of a plan, a session, a turn, a tool call, a task or an abort::

    record   Born of session lead              Began(lead)
    record   tool_started of lead:t1, number 1 Began(lead:t1:c1)
    record   AbortRecord, scope tool           Began(abort-9)
    record   tool_completed, abort-9           Caught(abort-9, lead:t1:c1), Ended(lead:t1:c1)
    receipt  of abort-9                        Ended(abort-9)

Invariants
----------
* An activity begins and ends at most once, and only by a transition, a first record or a fact: what was refused, or
  came too late, is no activity.
* Only what lives is kept, and of aborts at most ``ABORTS_MAX``: an abort whose end is not on record is given up.
* An abort of sessions ends with the last record of its target. The processes of a call may end after its result, and
  siblings have no record in common: so another abort ends with its receipt.
* An abort is no failure: the word for what it ends is ``aborted``, whatever exception the event loop has used.
* The words of an activity (outcome, error, stage) come from fixed sets. No text of an error, a prompt or a title is in
  an activity, except the ``reason`` of an abort, which only the files have.

An activity that an earlier supervisor began is given by :meth:`ActivityTracker.add_found`; it is marked, since nobody
knows how much of it was told before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from supervisor.lifecycles.session import Session
from supervisor.lifecycles.task import SESSION_ENDS, Task, task_end
from supervisor.lifecycles.turn import Turn
from supervisor.lifecycles.types import (
    ABORT_RECORD,
    ACTOR_LOST,
    AbortReason,
    AbortScope,
    Kind,
    LifecycleEvent,
    TerminationStage,
    ToolOutcome,
    TransitionReason,
)
from supervisor.lifecycles.workstream import WORKSTREAM, Workstream
from supervisor.policies.abort_plan import Receipt
from supervisor.policies.budgets import Amounts
from supervisor.policies.usage import USAGE

ABORTS_MAX: Final = 1_000
PARTS_MAX: Final = 1_000
"""Number of parts that an activity keeps; of further ones only the number is kept."""


class ActivityKind(StrEnum):
    RUN = "run"
    SESSION = "session"
    TURN = "turn"
    CALL = "tool_call"
    TASK = "task"
    ABORT = "abort"


_NOTHING: Final = Amounts()


@dataclass(kw_only=True, slots=True)
class Activity:
    """Something that has begun. Times are Unix times.

    ``above`` is the id of the activity that contains this one, and ``started_by`` that of the tool call that asked for
    a session. ``name`` is the name of a plan or of its task, the kind of a tool, or the scope of an abort. ``outcome``
    is ``completed``, ``failed``, ``aborted`` or another word of ``TaskEnd``; ``error`` names the class of a failure.
    ``stage`` is the last termination stage that an end needed. ``parts`` are what the files list of an activity;
    ``parts_left_out`` counts those above ``PARTS_MAX``. ``is_found``: an earlier supervisor has begun the activity.
    ``turn`` is the last turn of a session. ``has_failed``: the agent of a session is launched again after a failure.
    """

    kind: ActivityKind
    id: str
    began_at: float
    above: str = ""
    started_by: str = ""
    agent: str = ""
    agent_id: str = ""
    plan: str = ""
    name: str = ""
    is_found: bool = False
    has_failed: bool = False
    ended_at: float | None = None
    outcome: str = ""
    error: str = ""
    abort_id: str = ""
    reason: str = ""
    target: str = ""
    stage: str = ""
    survivors: int | str = 0
    used: Amounts = _NOTHING
    turn: str = ""
    turns: int = 0
    calls: int = 0
    parts: list[dict[str, Any]] = field(default_factory=list)
    parts_left_out: int = 0

    @property
    def took_s(self) -> float:
        return max(0.0, (self.began_at if self.ended_at is None else self.ended_at) - self.began_at)

    def add_part(self, part: dict[str, Any]) -> None:
        if len(self.parts) < PARTS_MAX:
            self.parts.append(part)
        else:
            self.parts_left_out += 1


class Began(NamedTuple):
    """An activity has begun."""

    activity: Activity


class Caught(NamedTuple):
    """An abort ends an activity, which has not ended yet."""

    abort: Activity
    activity: Activity


class Ended(NamedTuple):
    """An activity has ended."""

    activity: Activity


class Used(NamedTuple):
    """The agents of a session have used *more* since the last record about their usage."""

    session: Activity
    more: Amounts


class Launched(NamedTuple):
    """An agent of a session was launched; *again*: after a failure."""

    session: Activity
    again: bool


Change = Began | Caught | Ended | Used | Launched
NOTHING: Final[Sequence[Change]] = ()


class Placement(NamedTuple):
    """Place of a session: its parent session, the tool call that asked for it, and the run of a plan that it belongs
    to, each ``""`` for none."""

    parent: str = ""
    started_by: str = ""
    run: str = ""


Place = Callable[[str], Placement]
"""Function that returns the place of a session that has just begun, given its id."""

_ABORTED: Final = frozenset({TransitionReason.ABORTED.value, TransitionReason.SIBLING_ABORTED.value})
_ABORT_REASONS: Final = frozenset(
    one.value
    for one in (
        AbortReason.USER_INTERRUPT,
        AbortReason.SHUTDOWN_SIGNAL,
        AbortReason.PARENT_ABORTED,
        AbortReason.SIBLING_ABORTED,
    )
)
"""Abort reasons of ends on purpose. The others, such as ``timeout``, name a failure."""
_ENDS_OF_TASKS: Final = {reason: end.value for end, reason in SESSION_ENDS.items()}
"""Word for the end of a session that is closed for the end of its task, by the reason of that (as in the views)."""
_STAGES: Final = ("", *(one.value for one in TerminationStage))
_RUN_ENDS: Final = frozenset(one.value for one in WORKSTREAM.terminal)


def outcome_of_failure(record: LifecycleEvent) -> tuple[str, str]:
    """Return the outcome of a turn that has not succeeded, ``failed`` or ``aborted``, and the word for its error."""
    by_abort = record.abort_id is not None or record.transition_reason in _ABORTED
    if by_abort or record.abort_reason in _ABORT_REASONS:
        return "aborted", ""
    verdict = record.metadata.get("verdict")
    model = verdict.get("model") if isinstance(verdict, dict) else None
    problem = f"model_{model['problem']}" if model else ""
    return "failed", record.abort_reason or record.transition_reason or problem or "error"


class ActivityTracker:
    """Maker of activities; records must come in their order.

    Args:
        place: function that returns the place of a session.
        keeps_parts: whether activities keep what the files list of them.
    """

    def __init__(self, place: Place, *, keeps_parts: bool = False) -> None:
        self._place, self._keeps_parts = place, keeps_parts
        self.live: dict[str, Activity] = {}
        """Activities that have not ended, by id; runs, sessions, turns, calls and tasks never share an id."""
        self._aborts: dict[str, Activity] = {}
        self._open_calls: dict[str, dict[str, Activity]] = {}
        """Open calls by the id of the turn, and then by the agent's name for the call."""
        self._stopping: dict[str, set[str]] = {}
        """Sessions that each abort has requested to stop, and that have not ended."""
        self._takers = {
            Kind.SESSION.value: self._of_session,
            Kind.TURN.value: self._of_turn,
            Kind.TASK.value: self._of_task,
            Kind.WORKSTREAM.value: self._of_run,
        }

    def add_found(self, activity: Activity) -> None:
        """Add a run, a session or a task that an earlier supervisor has left alive."""
        activity.is_found = True
        self.live[activity.id] = activity

    def take(self, record: LifecycleEvent) -> Sequence[Change]:
        """Process the next record, and return what has begun or ended with it."""
        taker = self._takers.get(record.entity_type)
        if taker is None or record.outcome in ("refused", "stale"):
            return NOTHING
        if record.event == ABORT_RECORD and record.outcome == "fact":
            return list(self._abort(record))
        return taker(record)

    def close(self, at: float) -> list[Activity]:
        """Return what has not ended, the innermost first, each with the end *at*: the supervisor ends, or leaves it to
        the next one."""
        left = [*self._aborts.values(), *reversed(self.live.values())]
        for one in left:
            one.ended_at, one.outcome = at, one.outcome or "left"
        self.live.clear()
        self._aborts.clear()
        return left

    # ------------------------------------------------------------------ sessions
    def _of_session(self, record: LifecycleEvent) -> Sequence[Change]:
        if record.outcome == "born":
            return self._session_begins(record)
        session, fact = self.live.get(record.entity_id), record.metadata
        if session is None:
            return NOTHING
        match record.event:
            case "AgentLaunched":
                session.agent_id = str(fact.get("agent_id", ""))
                if (turn := self.live.get(session.turn)) is not None:
                    turn.agent_id = session.agent_id
                again, session.has_failed = session.has_failed, False
                return [Launched(session, again)]
            case "Ended":
                session.stage, session.survivors = str(fact.get("rung", "")), fact.get("survivors", 0)
                return list(self._session_ends(session, record))
            case _ if record.event == ACTOR_LOST:  # its last record
                session.outcome, session.error = "failed", "actor_lost"
                return list(self._session_ends(session, record))
            case _ if record.event == USAGE and record.outcome == "fact":
                used = msgspec.convert(fact["used"], Amounts)
                more, session.used = used - session.used, used
                turn = self.live.get(str(fact.get("turn", "")))
                if turn is not None:
                    turn.used += more
                return [Used(session, more)]
            case _ if record.to_status == Session.STOPPED.value != record.from_status:
                stops = record.event == "OperatorStop"
                own = str(fact.get("outcome", "aborted")) if stops else "failed"
                session.outcome = _ENDS_OF_TASKS.get(record.reason, own)
                session.error = "" if stops else record.transition_reason or "session_failed"
                return self._catch(session, record.abort_id)
            case _ if record.to_status == Session.COOLING_DOWN.value != record.from_status:
                session.has_failed = True
        return NOTHING

    def _session_begins(self, record: LifecycleEvent) -> Sequence[Change]:
        place = self._place(record.entity_id)
        run = self.live.get(place.run)
        session = Activity(
            kind=ActivityKind.SESSION,
            id=record.entity_id,
            began_at=record.timestamp,
            above=place.parent or place.run,
            started_by=place.started_by,
            agent=str(record.metadata.get("agent", "")),
            plan=run.name if run is not None else "",
        )
        self.live[session.id] = session
        return [Began(session)]

    def _session_ends(self, session: Activity, record: LifecycleEvent) -> Iterator[Change]:
        if (turn := self.live.get(session.turn)) is not None:  # lost with the session: it has no last record
            turn.outcome, turn.error = session.outcome, session.error
            yield from self._turn_ends(turn, record)
        del self.live[session.id]
        yield self._end(session, record)
        abort = self._aborts.get(session.abort_id)
        if abort is not None:
            self._stopping[abort.id].discard(session.id)
            yield from self._note_end(abort, session, record)

    # ------------------------------------------------------------------ turns and calls
    def _of_turn(self, record: LifecycleEvent) -> Sequence[Change]:
        turn, fact = self.live.get(record.entity_id), record.metadata
        if record.outcome == "born":
            return [self._turn_begins(record)]
        if turn is None:  # begun under an earlier supervisor
            return NOTHING
        match record.event:
            case "tool_started":
                return [self._call_begins(turn, record)]
            case "tool_completed":
                call = self._open_calls.get(turn.id, {}).pop(str(fact.get("call_id")), None)
                return list(self._call_ends(call, record)) if call is not None else NOTHING
            case "task_completed":
                turn.outcome = "completed"
            case "task_failed":
                turn.outcome, turn.error = outcome_of_failure(record)
                return self._catch(turn, record.abort_id)
            case _ if record.to_status == Turn.REAPED.value:
                return list(self._turn_ends(turn, record))
        return NOTHING

    def _turn_ends(self, turn: Activity, record: LifecycleEvent) -> Iterator[Change]:
        for left in self._open_calls.pop(turn.id, {}).values():  # lost with the turn: it has no result
            left.outcome = ToolOutcome.UNKNOWN.value
            del self.live[left.id]
            yield self._end(left, record)
        del self.live[turn.id]
        yield self._end(turn, record)

    def _turn_begins(self, record: LifecycleEvent) -> Change:
        above = str(record.metadata.get("session_id", ""))
        turn = self._below(ActivityKind.TURN, record.entity_id, above, record.timestamp)
        session = self.live.get(above)
        if session is not None:
            session.turns, session.turn, turn.agent_id = session.turns + 1, turn.id, session.agent_id
        return Began(turn)

    def _call_begins(self, turn: Activity, record: LifecycleEvent) -> Change:
        fact = record.metadata
        within = f"{turn.id}:c{fact['within']}" if fact.get("within") else turn.id
        call = self._below(ActivityKind.CALL, f"{turn.id}:c{fact.get('number')}", within, record.timestamp)
        call.name = str(fact.get("tool_kind") or "other")
        self._open_calls.setdefault(turn.id, {})[str(fact.get("call_id"))] = call
        turn.calls += 1
        if (session := self.live.get(turn.above)) is not None:
            session.calls += 1
        return Began(call)

    def _call_ends(self, call: Activity, record: LifecycleEvent) -> Iterator[Change]:
        call.outcome = str(record.metadata.get("outcome", ""))
        call.error = (record.abort_reason or "error") if call.outcome == "failed" else ""
        yield from self._catch(call, record.abort_id)
        del self.live[call.id]
        yield self._end(call, record)

    def _below(self, kind: ActivityKind, activity_id: str, above: str, at: float) -> Activity:
        """Begin an activity within *above*, whose agent and plan it has."""
        outer = self.live.get(above)
        agent, plan = (outer.agent, outer.plan) if outer is not None else ("", "")
        found = Activity(kind=kind, id=activity_id, began_at=at, above=above, agent=agent, plan=plan)
        self.live[activity_id] = found
        return found

    # ------------------------------------------------------------------ plans
    def _of_run(self, record: LifecycleEvent) -> Sequence[Change]:
        if record.outcome == "born":
            name = str(record.metadata.get("name", ""))
            run = Activity(kind=ActivityKind.RUN, id=record.entity_id, began_at=record.timestamp, plan=name, name=name)
            self.live[run.id] = run
            return [Began(run)]
        if record.to_status not in _RUN_ENDS or (run_left := self.live.pop(record.entity_id, None)) is None:
            return NOTHING
        run_left.outcome = record.to_status
        run_left.error = "run_failed" if record.to_status == Workstream.FAILED.value else ""
        return [self._end(run_left, record)]

    def _of_task(self, record: LifecycleEvent) -> Sequence[Change]:
        fact, task = record.metadata, self.live.get(record.entity_id)
        if record.outcome == "born" or (task is None and record.event == "reopened"):
            run = self.live.get(str(fact.get("workstream", "")) or record.entity_id.partition("#")[0])
            task = Activity(
                kind=ActivityKind.TASK,
                id=record.entity_id,
                began_at=record.timestamp,
                above=run.id if run is not None else "",
                plan=run.name if run is not None else "",
                name=str(fact.get("name", "")),
            )
            self.live[task.id] = task
            return [Began(task)]
        if task is None:
            return NOTHING
        if record.event == "claimed" and record.outcome == "transition":
            task.turns += 1
            session = self.live.get(str(fact.get("by", "")))
            task.agent = session.agent if session is not None else task.agent
        if self._keeps_parts and record.to_status != record.from_status and record.outcome == "transition":
            task.add_part({"state": record.to_status, "at": record.timestamp, "event": record.event})
        is_over = record.to_status in (Task.CLOSED.value, Task.CANCELLED.value) or record.event == "DeadLettered"
        if not is_over:
            return NOTHING
        del self.live[task.id]
        task.outcome = task_end(record.to_status, str(fact.get("outcome", "")))
        return [self._end(task, record)]

    # ------------------------------------------------------------------ aborts
    def _abort(self, record: LifecycleEvent) -> Iterator[Change]:
        fact, abort_id = record.metadata, record.abort_id or ""
        abort = self._aborts.get(abort_id)
        if abort is not None:  # a policy edge that the abort crosses
            abort.add_part({"edge": fact.get("policy_edge"), "ruled_by": fact.get("ruled_by"), "at": record.timestamp})
            return
        if len(self._aborts) >= ABORTS_MAX:
            oldest = next(iter(self._aborts.values()))
            yield self._end_abort(oldest, record.timestamp, "unknown")
        target = str(fact.get("target", ""))
        above = self.live.get(target) or self.live.get(record.entity_id)
        abort = self._aborts[abort_id] = Activity(
            kind=ActivityKind.ABORT,
            id=abort_id,
            began_at=record.timestamp,
            above=above.id if above is not None else "",
            agent=above.agent if above is not None else "",
            plan=above.plan if above is not None else "",
            name=str(fact.get("scope", "")),
            error=record.abort_reason or "",
            reason=record.reason,
            target=target,
        )
        self._stopping[abort_id] = set()
        yield Began(abort)

    def _catch(self, activity: Activity, abort_id: str | None) -> Sequence[Change]:
        """Note that the abort with that id, if it is one, ends *activity*."""
        abort = self._aborts.get(abort_id or "")
        if abort is None or activity.abort_id:
            return NOTHING
        activity.abort_id = abort.id
        if activity.kind is ActivityKind.SESSION:
            self._stopping[abort.id].add(activity.id)
        return [Caught(abort, activity)]

    def _note_end(self, abort: Activity, ended: Activity, record: LifecycleEvent) -> Iterator[Change]:
        """Note the end of a session that *abort* ends."""
        took_s = max(0.0, record.timestamp - abort.began_at)
        abort.stage = max(abort.stage, ended.stage, key=_STAGES.index)
        abort.survivors = ended.survivors or abort.survivors
        if self._keeps_parts and abort.name == AbortScope.SESSION.value:
            part = {"id": ended.id, "kind": ended.kind.value, "stage": ended.stage, "took_s": round(took_s, 6)}
            abort.add_part({**part, "survivors": ended.survivors})
        is_over = abort.target not in self.live and not self._stopping[abort.id]
        if abort.name == AbortScope.SESSION.value and is_over:
            yield self._end_abort(abort, record.timestamp, "completed")

    def settle(self, receipt: Receipt, at: float) -> Sequence[Change]:
        """Take the receipt of an abort, given at the Unix time *at*, and end the abort unless its records do."""
        abort = self._aborts.get(receipt.abort_id)
        if abort is None or abort.name == AbortScope.SESSION.value:
            return NOTHING
        stages = [one.rung for one in receipt.nodes if one.rung]
        abort.stage = max(stages, key=_STAGES.index, default="")
        abort.survivors = receipt.survivors
        for node in receipt.nodes if self._keeps_parts else ():
            part = {"id": node.id, "kind": node.kind, "stage": node.rung, "took_s": node.took_s}
            abort.add_part(part)
        took_s = max([one.took_s for one in receipt.nodes], default=0.0)
        return [self._end_abort(abort, min(at, abort.began_at + took_s), "completed")]

    def _end_abort(self, abort: Activity, at: float, outcome: str) -> Change:
        del self._aborts[abort.id]
        del self._stopping[abort.id]
        abort.ended_at, abort.outcome = at, outcome
        return Ended(abort)

    # ------------------------------------------------------------------ ends
    def _end(self, activity: Activity, record: LifecycleEvent) -> Change:
        activity.ended_at = record.timestamp
        outer = self.live.get(activity.above)
        if self._keeps_parts and outer is not None and activity.kind in (ActivityKind.TURN, ActivityKind.CALL):
            while outer.kind is ActivityKind.CALL and outer.above in self.live:  # a call within a call: one list
                outer = self.live[outer.above]
            outer.add_part(_part_of(activity))
        return Ended(activity)


def _part_of(activity: Activity) -> dict[str, Any]:
    """Return a turn with its calls, or a call, as the line of its session has it."""
    part: dict[str, Any] = {
        "id": activity.id,
        "began_at": activity.began_at,
        "ended_at": activity.ended_at,
        "outcome": activity.outcome,
    }
    if activity.kind is ActivityKind.CALL:
        return {**part, "tool": activity.name}
    return {**part, "tool_calls": activity.parts, "left_out": activity.parts_left_out}
