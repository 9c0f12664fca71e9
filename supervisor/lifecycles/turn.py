"""Lifecycle of a turn (spec 000): one prompt handled by an agent, from the claim to the clean-up.

Ten states, nine events, eighteen edges, exactly as printed. A turn is never reset: the next one is a new entity. Tool
calls are counted in the data: TOOL_USE is entered at the first open call and left at the last; each call has one
result.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any, Final

import msgspec

from actors.machine import Effect, Event, Machine, rule
from supervisor.lifecycles.effects import (
    AnswerPermission,
    AskPermission,
    CancelTool,
    CleanUp,
    FinalizeEntity,
    SendEvent,
    SendEventNow,
    StartTimer,
    Verify,
)
from supervisor.lifecycles.events import (
    AgentReaped,
    AgentSpawned,
    BoundaryAwaited,
    BoundaryReached,
    CompactionCompleted,
    CompactionFailed,
    CompactNeeded,
    PermissionAnswered,
    PermissionRequested,
    ProgressSeen,
    SessionExited,
    TaskClaimed,
    TaskCompleted,
    TaskFailed,
    ToolCompleted,
    ToolStarted,
    TurnReaped,
    VerifyRequested,
)
from supervisor.lifecycles.types import OWN_ABORTS, AbortReason, Exit, ToolOutcome, TransitionReason, Verdict

EXTENSION_S = 600.0
"""Seconds by which the time of a turn is extended each time progress is seen (spec, defaults)."""
EXTENSION_LEAST_S = 1.0
"""Shortest extension in seconds: a shorter time before the cap is not worth a record."""
DEADLINE = "turn"
"""Name of the timer for the turn's deadline."""
_CALL: Final = re.compile(r"\A(?P<turn>.+:t\d+):c(?P<number>[1-9][0-9]{0,8})")


class Turn(Enum):
    IDLE = "IDLE"
    CLAIMING = "CLAIMING"
    SPAWNING = "SPAWNING"
    RUNNING = "RUNNING"
    TOOL_USE = "TOOL_USE"
    COMPACTING = "COMPACTING"
    VERIFYING = "VERIFYING"
    COMPLETING = "COMPLETING"
    FAILED = "FAILED"
    REAPED = "REAPED"


# ------------------------------------------------------------------------------------------------------- data
class Call(msgspec.Struct, frozen=True, kw_only=True):
    """An open tool call: its number within the turn, the agent's name for it, and the number of the call that contains
    it (0: none)."""

    number: int
    call_id: str
    title: str
    tool_kind: str
    within: int = 0


class Permission(msgspec.Struct, frozen=True, kw_only=True):
    """An open permission request: its number within the turn, the agent's name for the request, and its subject."""

    number: int
    request_id: str
    title: str
    tool_kind: str
    tool: str
    detail: str
    paths: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    asked: bool
    """Whether the request is put to a human."""


class TurnData(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    session_id: str
    request_id: str = ""
    timeout_s: float = 300.0
    timeout_source: str = ""
    """Setting or measurement that the time-out comes from; ``""``: ``limits.turn_timeout_s``."""
    hard_cap_s: float | None = None
    """Seconds that the turn may take at most while progress is seen; ``None``: no more than its time-out."""
    due_s: float | None = None
    """Time at which the turn times out (the journal's seconds): known from its start on, or earlier, if the turn
    continues the time of the turn before."""
    most_s: float | None = None
    """Time until which ``due_s`` may be extended (the journal's seconds)."""
    incarnation: int = 0
    phase: str = ""
    calls: int = 0
    open: tuple[Call, ...] = ()
    boundary_awaited: bool = False
    permissions: int = 0
    asking: tuple[Permission, ...] = ()
    verdict: Verdict | None = None
    is_verified: bool = False
    """Whether the work was verified while the turn had to compact its context."""
    abort_id: str | None = None


Answered = tuple[TurnData, tuple[Effect, ...]]


# ------------------------------------------------------------------------------------------------------- guards
def call_of(data: TurnData, call_id: str) -> Call | None:
    """Return the open call with the id *call_id*, or ``None``."""
    return next((call for call in data.open if call.call_id == call_id), None)


def split_call(entity_id: str) -> tuple[str, int | None]:
    """Split a call's id such as ``lead:t1:c2`` into the turn's id and the call's number; for any other id return the id
    and ``None``."""
    found = _CALL.fullmatch(entity_id)
    return (found["turn"], int(found["number"])) if found else (entity_id, None)


def permission_of(data: TurnData, number: int) -> Permission | None:
    """Return the open permission request with that number, or ``None``."""
    return next((one for one in data.asking if one.number == number), None)


def stale(data: TurnData, event: Event) -> bool:
    """Return whether *event* comes too late: a second result of a call, a second answer to a permission, a repeated
    phase, progress that extends nothing, a time-out when the agent is done, or, once the turn is settled, an outcome or
    a wait for its calls."""
    if type(event) not in _MAY_BE_STALE:
        return False
    if isinstance(event, PermissionAnswered):
        return permission_of(data, event.number) is None
    if isinstance(event, ToolCompleted):
        return call_of(data, event.call_id) is None
    if isinstance(event, ProgressSeen):
        return data.verdict is not None or _extension_s(data, event) < EXTENSION_LEAST_S
    if isinstance(event, AgentSpawned):
        seen = event.phase in (data.phase, "launched") or data.phase == "settled"
        return event.incarnation == data.incarnation and seen
    if isinstance(event, TaskFailed) and event.verdict.exit is Exit.TIMEOUT:  # verification is not the agent's time
        return data.verdict is not None
    return data.verdict is not None and data.phase == "settled"


_MAY_BE_STALE = frozenset(
    (
        PermissionAnswered,
        ToolCompleted,
        ProgressSeen,
        AgentSpawned,
        TaskCompleted,
        TaskFailed,
        VerifyRequested,
        BoundaryAwaited,
    )
)


def launched(data: TurnData, event: AgentSpawned) -> bool:
    return event.phase == "launched"


def ready(data: TurnData, event: AgentSpawned) -> bool:
    return event.phase == "ready"


def last_call(data: TurnData, event: ToolCompleted) -> bool:
    return len(data.open) == 1


def agent_is_done(data: TurnData, event: TaskCompleted) -> bool:
    """Whether the turn compacts its context after its agent has reported the end of its work."""
    return data.verdict is not None


# ------------------------------------------------------------------------------------------------------- actions
def _change(data: TurnData, **changes: Any) -> TurnData:
    return msgspec.structs.replace(data, **changes)


def note_request(data: TurnData, event: TaskClaimed) -> Answered:
    return _change(data, request_id=event.request_id), ()


def note_phase(data: TurnData, event: AgentSpawned) -> Answered:
    return _change(data, incarnation=event.incarnation, phase=event.phase), ()


def start_deadline(data: TurnData, event: AgentSpawned) -> Answered:
    """Start the time of the turn, or continue it; a deadline in the past fires at once."""
    if data.due_s is not None:
        left_s = max(0.0, data.due_s - event.at)
        return data, (_deadline(data, left_s, ", with the time of the turns before it"),)
    most_s = None if data.hard_cap_s is None else event.at + data.hard_cap_s
    changed = _change(data, due_s=event.at + data.timeout_s, most_s=most_s)
    return changed, (_deadline(data, data.timeout_s, ""),)


def extend_time(data: TurnData, event: ProgressSeen) -> Answered:
    """Extend the time of a turn that makes progress, up to the cap."""
    left_s = event.left_s + _extension_s(data, event)
    changed = _change(data, due_s=event.at + left_s)
    return changed, (_deadline(data, left_s, ", and what that was extended by while progress was seen"),)


def _extension_s(data: TurnData, event: ProgressSeen) -> float:
    if data.most_s is None:
        return 0.0
    return min(EXTENSION_S, data.most_s - event.at - event.left_s)


def _deadline(data: TurnData, left_s: float, words: str) -> StartTimer:
    source = data.timeout_source or "limits.turn_timeout_s"
    error = f"the turn took longer than {data.timeout_s:g} s ({source}){words}"
    verdict = Verdict(exit=Exit.TIMEOUT, error=error, abort_reason=AbortReason.TIMEOUT)
    return StartTimer(name=DEADLINE, delay_s=left_s, event=TaskFailed(verdict=verdict), lasting=True)


def open_call(data: TurnData, event: ToolStarted) -> Answered:
    call = Call(
        number=event.number,
        call_id=event.call_id,
        title=event.title,
        tool_kind=event.tool_kind,
        within=event.within,
    )
    return _change(data, calls=data.calls + 1, open=(*data.open, call)), ()


def close_call(data: TurnData, event: ToolCompleted) -> Answered:
    call = call_of(data, event.call_id)
    assert call is not None, "a call that is not open is stale"
    changed = _change(data, open=tuple(one for one in data.open if one is not call))
    if event.outcome != ToolOutcome.ABORTED or event.over:
        return changed, ()
    cancel = CancelTool(number=call.number, call_id=call.call_id, abort_id=event.abort_id, reason=event.reason)
    return changed, (cancel,)


def await_boundary(data: TurnData, event: BoundaryAwaited) -> Answered:
    return _change(data, boundary_awaited=True), ()


def reach_boundary(data: TurnData, event: Event) -> Answered:
    """Send ``BoundaryReached`` to the session if no call is open, before the agent can begin another call."""
    reached = SendEventNow(to=data.session_id, event=BoundaryReached(incarnation=data.incarnation))
    return _change(data, boundary_awaited=False), (reached,)


def reach_awaited_boundary(data: TurnData, event: ToolCompleted) -> Answered:
    return reach_boundary(data, event) if data.boundary_awaited else (data, ())


def open_permission(data: TurnData, event: PermissionRequested) -> Answered:
    """Open a permission request; a request that is not put to a human is answered with the next event."""
    permission = Permission(
        number=event.number,
        request_id=event.request_id,
        title=event.title,
        tool_kind=event.tool_kind,
        tool=event.tool,
        detail=event.detail,
        paths=event.paths,
        options=event.options,
        asked=event.asked,
    )
    changed = _change(data, permissions=data.permissions + 1, asking=(*data.asking, permission))
    if event.asked:
        return changed, (AskPermission(number=event.number, within_s=event.within_s),)
    answer = PermissionAnswered(
        number=event.number,
        decision=event.decision,
        option=event.option,
        kind=event.kind,
        by="policy",
        why=event.why,
    )
    return changed, (SendEvent(to=data.id, event=answer),)


def close_permission(data: TurnData, event: PermissionAnswered) -> Answered:
    permission = permission_of(data, event.number)
    assert permission is not None, "an answer to a permission that is not open is stale"
    changed = _change(data, asking=tuple(one for one in data.asking if one is not permission))
    return changed, (AnswerPermission(number=permission.number, request_id=permission.request_id, option=event.option),)


def withdraw_permissions(data: TurnData, event: TaskFailed) -> Answered:
    """Answer every open permission of a failed turn with its one answer, ``withdrawn``."""
    why = f"its turn failed: {event.verdict.error}"
    answers = [
        PermissionAnswered(number=one.number, decision="withdrawn", by="supervisor", why=why) for one in data.asking
    ]
    return data, tuple(SendEvent(to=data.id, event=answer) for answer in answers)


def settle(data: TurnData, event: VerifyRequested | TaskFailed) -> Answered:
    if not isinstance(event, TaskFailed):
        return _change(data, verdict=event.verdict, abort_id=None), ()
    verdict = event.verdict
    if verdict.exit is Exit.TIMEOUT and any(one.asked for one in data.asking):
        words = f"{verdict.error}; it waited for a person's answer (supervisor permissions, supervisor answer)"
        verdict = msgspec.structs.replace(verdict, error=words)
    return _change(data, verdict=verdict, abort_id=event.abort_id), ()


def seal(data: TurnData, event: Event) -> Answered:
    """Close the turn to failures: a failure that comes later is stale."""
    return _change(data, phase="settled"), ()


def report_exit(data: TurnData, event: Event) -> Answered:
    """Report the turn's end to the session, with the deadline of the turn if the next turn may continue the attempt:
    after a success, an abort by the runtime, or the end of the supervisor."""
    assert data.verdict is not None, "an exit is reported with its verdict"
    verdict = data.verdict
    lost = verdict.transition_reason is TransitionReason.ORPHAN_RECOVERED
    goes_on = lost or verdict.exit is Exit.SUCCESS or verdict.abort_reason in OWN_ABORTS
    due_s, most_s = (data.due_s, data.most_s) if goes_on else (None, None)
    exited = SessionExited(incarnation=data.incarnation, verdict=data.verdict, due_s=due_s, most_s=most_s)
    return data, (SendEvent(to=data.session_id, event=exited),)


def close_calls(data: TurnData, event: TaskFailed) -> Answered:
    """End every open call of a failed turn, and record for each call its one result."""
    return data, tuple(effect for call in data.open for effect in _close(data, call, event))


def _close(data: TurnData, call: Call, event: TaskFailed) -> tuple[Effect, Effect]:
    outcome = ToolOutcome.ABORTED if call.call_id in event.stopped else ToolOutcome.UNKNOWN
    reason = f"its turn failed: {event.verdict.error}"
    cancel = CancelTool(number=call.number, call_id=call.call_id, abort_id=data.abort_id, reason=reason)
    result = ToolCompleted(call_id=call.call_id, outcome=outcome, reason=reason, abort_id=data.abort_id, over=True)
    return cancel, SendEvent(to=data.id, event=result)


def verify(data: TurnData, event: Event) -> Answered:
    return data, (SendEvent(to=data.id, event=TaskCompleted()) if data.is_verified else Verify(),)


def keep_verified(data: TurnData, event: TaskCompleted) -> Answered:
    return _change(data, is_verified=True), ()


def clean_up(data: TurnData, event: Event) -> Answered:
    return data, (CleanUp(),)


def must_compact(data: TurnData, event: Event) -> Answered:
    """Send ``CompactNeeded`` once more, since the specification goes to RUNNING here and says "must compact first"."""
    return data, (SendEvent(to=data.id, event=CompactNeeded()),)


def verify_again(data: TurnData, event: Event) -> Answered:
    """Restart the verification that the compaction interrupted, or begin it, if the agent reports the end of its work
    without a word about the end of the compaction."""
    verdict = event.verdict if isinstance(event, VerifyRequested) else data.verdict
    if verdict is None:
        return data, ()
    return data, (SendEvent(to=data.id, event=VerifyRequested(verdict=verdict)),)


def report_reaped(data: TurnData, event: AgentReaped) -> Answered:
    verdict = data.verdict or Verdict(exit=Exit.ERROR, error="it ended without a verdict")
    completed = verdict.exit is Exit.SUCCESS
    reaped = TurnReaped(turn_id=data.id, completed=completed, error=verdict.error, how=verdict)
    return data, (SendEvent(to=data.session_id, event=reaped), FinalizeEntity())


# ------------------------------------------------------------------------------------------------------- the table
T = Turn
ASKING = [T.RUNNING, T.TOOL_USE, T.COMPACTING]
BOUNDARY = "an urgent message may wait until no tool call is open; the specification interrupts at once"
HUMAN = "an agent may have to wait for a human in the middle of its turn; the specification has no word for that"
MOVES = "the time of a task that has a scope is extended while progress is seen"
ONE_RESULT = "a call that its turn's failure abandoned gets its one result, too"
COMPACTS_FIRST = "the work was verified meanwhile; the turn completes when its compaction is over"
PARALLEL = "parallel tool calls: TOOL_USE is entered at the first and left at the last"

TURN: Machine[Turn, TurnData] = Machine(
    "turn",
    source="000",
    initial=[T.IDLE],
    terminal=[T.REAPED],
    rules=[
        rule(TaskClaimed, T.IDLE, T.CLAIMING, do=[note_request]),
        rule(AgentSpawned, T.CLAIMING, T.SPAWNING, when=launched, do=[note_phase]),
        rule(TaskFailed, T.CLAIMING, T.FAILED, do=[settle, seal, clean_up]),
        rule(AgentSpawned, T.SPAWNING, T.RUNNING, when=ready, do=[note_phase, start_deadline]),
        rule(TaskFailed, T.SPAWNING, T.FAILED, do=[settle, seal, clean_up]),
        rule(ToolStarted, T.RUNNING, T.TOOL_USE, do=[open_call]),
        rule(CompactNeeded, T.RUNNING, T.COMPACTING),
        rule(VerifyRequested, T.RUNNING, T.VERIFYING, do=[settle, report_exit, verify]),
        rule(TaskFailed, T.RUNNING, T.FAILED, do=[settle, seal, withdraw_permissions, report_exit, clean_up]),
        rule(ToolCompleted, T.TOOL_USE, T.RUNNING, when=last_call, do=[close_call, reach_awaited_boundary]),
        rule(ToolCompleted, T.TOOL_USE, None, do=[close_call], extension=PARALLEL),
        rule(ToolStarted, T.TOOL_USE, None, do=[open_call], extension=PARALLEL),
        rule(
            TaskFailed,
            T.TOOL_USE,
            T.FAILED,
            do=[settle, seal, withdraw_permissions, close_calls, report_exit, clean_up],
        ),
        rule(ToolCompleted, T.FAILED, None, do=[close_call], extension=ONE_RESULT),
        rule(VerifyRequested, T.COMPACTING, T.RUNNING, do=[verify_again]),
        rule(
            CompactionCompleted,
            T.COMPACTING,
            T.RUNNING,
            do=[verify_again],
            extension="the name says what happened; the specification spells it verify_requested",
        ),
        rule(
            CompactionFailed,
            T.COMPACTING,
            T.RUNNING,
            do=[verify_again],
            extension="an agent may work on without the compaction that failed; the specification ends the turn",
        ),
        rule(TaskFailed, T.COMPACTING, T.FAILED, do=[settle, seal, withdraw_permissions, report_exit, clean_up]),
        rule(TaskCompleted, T.VERIFYING, T.COMPLETING, do=[seal, clean_up]),
        rule(
            TaskCompleted,
            [T.RUNNING, T.COMPACTING],
            None,
            when=agent_is_done,
            do=[keep_verified],
            extension=COMPACTS_FIRST,
        ),
        rule(CompactNeeded, T.VERIFYING, T.RUNNING, do=[must_compact]),
        rule(TaskFailed, T.VERIFYING, T.FAILED, do=[settle, seal, clean_up]),
        rule(AgentReaped, T.COMPLETING, T.REAPED, do=[report_reaped]),
        rule(AgentReaped, T.FAILED, T.REAPED, do=[report_reaped]),
        # extensions that change no state
        rule(PermissionRequested, ASKING, None, do=[open_permission], extension=HUMAN),
        rule(PermissionAnswered, [*ASKING, T.FAILED], None, do=[close_permission], extension=HUMAN),
        rule(ProgressSeen, ASKING, None, do=[extend_time], extension=MOVES),
        rule(BoundaryAwaited, T.TOOL_USE, None, do=[await_boundary], extension=BOUNDARY),
        rule(BoundaryAwaited, [T.RUNNING, T.COMPACTING], None, do=[reach_boundary], extension=BOUNDARY),
        rule(
            BoundaryAwaited,
            T.VERIFYING,
            None,
            extension="its calls are over, and so is its work: the message goes with the next turn",
        ),
    ],
)
