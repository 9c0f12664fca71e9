"""Lifecycle of an agent session (spec 003): eight states, two counters, and two events that stop it from any state.

The table has the specified edges unchanged; every other rule is marked as an extension with its reason. Guards and
actions are pure. An event is stale if its incarnation has ended; the incarnation rises at every ``PromptReady``.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import msgspec

from actors.machine import Effect, Event, Machine, rule
from supervisor.lifecycles.effects import (
    BuildPrompt,
    CancelSession,
    CancelStep,
    FinalizeEntity,
    ForceStopSession,
    LaunchAgent,
    LogFatal,
    OpenTurn,
    PrepareWorktree,
    ReplyToRequest,
    SendEvent,
    SendPrompt,
    StartTimer,
    SteerAgent,
    StorePrompt,
    TerminateSession,
)
from supervisor.lifecycles.events import (
    AgentLaunched,
    AgentSpawned,
    BackoffElapsed,
    BoundaryAwaited,
    BoundaryReached,
    Ended,
    FatalError,
    GraceExceeded,
    MessageReceived,
    MessageTakenUp,
    OperatorStop,
    PromptReady,
    SessionExited,
    SessionStable,
    SessionStarted,
    StageBegan,
    SteerElapsed,
    TaskFailed,
    TurnReaped,
    TurnRequested,
    UrgentMessage,
    WorktreeReady,
)
from supervisor.lifecycles.session_data import Message, Request, SessionData
from supervisor.lifecycles.types import (
    OWN_ABORTS,
    AbortReason,
    DeliveryPoint,
    Ending,
    Exit,
    SessionLimits,
    TerminationStage,
    TransitionReason,
    Verdict,
)


class Session(Enum):
    INITIALIZING = "Initializing"
    BUILDING_PROMPT = "BuildingPrompt"
    SPAWNING = "Spawning"
    RUNNING = "Running"
    INTERRUPTING = "Interrupting"
    SESSION_COMPLETE = "SessionComplete"
    COOLING_DOWN = "CoolingDown"
    STOPPED = "Stopped"


Effects = tuple[Effect, ...]
Answered = tuple[SessionData, Effects]


# ------------------------------------------------------------------------------------------------------- guards
def stale(data: SessionData, event: Event) -> bool:
    """Return whether *event* comes from an incarnation that has ended, or requests the end of a session that has
    ended."""
    if data.ended and isinstance(event, OperatorStop | FatalError):
        return True
    incarnation = getattr(event, "incarnation", None)
    if incarnation is None:
        return False
    return bool(incarnation < data.incarnation or incarnation <= data.concluded)


def at_rest(data: SessionData, event: Event) -> bool:
    return data.current is None


def nobody_asks(data: SessionData, event: BackoffElapsed) -> bool:
    """Whether the failure is left to the requester, so that the session launches no agent until the next request."""
    return data.spent


def was_spent(data: SessionData, event: TurnReaped) -> bool:
    return data.spent and data.current is not None and event.turn_id == data.turn_id


def has_cooled(data: SessionData, event: TurnRequested) -> bool:
    return data.cooled and data.current is None


def exited_clean(data: SessionData, event: SessionExited) -> bool:
    return event.verdict.exit is Exit.SUCCESS


def threshold_reached(data: SessionData, event: SessionExited) -> bool:
    limits = data.limits
    return (
        data.consecutive_errors + 1 >= limits.max_consecutive_errors or data.total_errors + 1 >= limits.max_total_errors
    )


def supervisor_lost(data: SessionData, event: SessionExited) -> bool:
    """Whether the turn ended because its supervisor ended, which is no failure of the session."""
    return event.verdict.transition_reason is TransitionReason.ORPHAN_RECOVERED


def not_charged(data: SessionData, event: SessionExited) -> bool:
    """Whether the turn ended because its supervisor ended or because the machine lacked descriptors: no failure of the
    session."""
    return event.verdict.transition_reason is TransitionReason.SHORTAGE or supervisor_lost(data, event)


def provider_failed(data: SessionData, event: SessionExited) -> bool:
    """Whether the model's provider is to blame for the end of a turn that was requested once: the requester waits for
    the provider, and bounds that wait. A request that the session repeats by itself is bounded by the session's counts,
    so those failures are charged."""
    return not event.charged and data.current is not None and data.current.once


def clean_and_threshold_reached(data: SessionData, event: SessionExited) -> bool:
    return exited_clean(data, event) and threshold_reached(data, event)


def for_turn_end(data: SessionData, event: UrgentMessage) -> bool:
    return event.point is DeliveryPoint.TURN_END


def for_turn_end_and_at_rest(data: SessionData, event: UrgentMessage) -> bool:
    return for_turn_end(data, event) and at_rest(data, event)


def can_be_told(data: SessionData, event: UrgentMessage) -> bool:
    """Whether the agent can be sent the message within its turn. A message that arrives a second time is not sent
    again; a message that can wait has a rule of its own."""
    known = any(message.id == event.message_id for message in data.inbox)
    return event.steer and not known


def waits_to_be_told(data: SessionData, event: BoundaryReached) -> bool:
    """Whether every message that waited for the tool boundary can be sent to the agent within the turn."""
    waiting = _not_sent(data)
    return bool(waiting) and all(message.steer and not message.told for message in waiting)


def not_taken_up(data: SessionData, event: SteerElapsed) -> bool:
    return any(message.id == event.message_id for message in data.inbox[data.offered :])


def for_tool_boundary(data: SessionData, event: UrgentMessage) -> bool:
    return event.point is DeliveryPoint.TOOL_BOUNDARY


def message_interrupts(data: SessionData, event: Event) -> bool:
    return bool(_not_sent(data))


def _not_sent(data: SessionData) -> list[Message]:
    """Return the interrupting messages that are neither in the prompt nor taken up by the agent."""
    return [message for message in data.inbox[data.offered :] if message.interrupts]


def urgent_latched(data: SessionData, event: Event) -> bool:
    return data.urgent_latched


# ------------------------------------------------------------------------------------------------------- actions
def _change(data: SessionData, **changes: Any) -> SessionData:
    return msgspec.structs.replace(data, **changes)


def backoff_ms(consecutive_errors: int, limits: SessionLimits) -> int:
    """Return ``min(2000 * 2^(n-1), 60000)`` for n consecutive errors (spec 003); for 0 errors the same as for 1."""
    exponent = min(max(consecutive_errors - 1, 0), 32)
    return int(min(limits.backoff_base_ms * 2**exponent, limits.backoff_cap_ms))


def open_turn(data: SessionData, event: Event) -> Answered:
    """Open a turn for the current request; do nothing if there is no request."""
    if data.current is None:
        return data, ()
    number = data.turn_seq + 1
    turn_id = f"{data.id}:t{number}"
    changed = _change(data, turn_seq=number, turn_id=turn_id)
    return changed, (OpenTurn(turn_id=turn_id, request_id=data.current.id, due_s=data.due_s, most_s=data.most_s),)


def _asked(event: TurnRequested) -> Request:
    return Request(
        id=event.request_id,
        prompt=event.prompt,
        reason=event.reason,
        once=event.once,
        timeout_s=event.timeout_s,
        hard_cap_s=event.hard_cap_s,
        timeout_source=event.timeout_source,
    )


def take_request(data: SessionData, event: TurnRequested) -> Answered:
    return _change(data, current=_asked(event), spent=False), ()


def queue_request(data: SessionData, event: TurnRequested) -> Answered:
    return _change(data, queue=(*data.queue, _asked(event))), ()


def note_cooled(data: SessionData, event: BackoffElapsed) -> Answered:
    return _change(data, cooled=True), ()


def warm_up(data: SessionData, event: Event) -> Answered:
    """Send ``BackoffElapsed`` once more, since the backoff was over before the request came."""
    return _change(data, cooled=False), (SendEvent(to=data.id, event=BackoffElapsed()),)


def prepare_worktree(data: SessionData, event: Event) -> Answered:
    return data, (PrepareWorktree(),)


def build_prompt(data: SessionData, event: Event) -> Answered:
    return data, (BuildPrompt(),)


def increment_session(data: SessionData, event: Event) -> Answered:
    return _change(data, session_seq=data.session_seq + 1), ()


def new_incarnation(data: SessionData, event: PromptReady) -> Answered:
    """Begin the next incarnation. An urgent message that came too late for this prompt interrupts the turn once the
    agent is ready."""
    # A message may have come since the prompt was built: it is not in the prompt. Were it counted as offered, the
    # success of this turn would remove it unread.
    offered = len(data.inbox) if event.messages is None else min(event.messages, len(data.inbox))
    latched = any(message.interrupts for message in data.inbox[offered:])
    changed = _change(
        data, incarnation=data.incarnation + 1, prompt=event.prompt, offered=offered, urgent_latched=latched
    )
    return changed, ()


def store_prompt(data: SessionData, event: PromptReady) -> Answered:
    return data, (StorePrompt(prompt=event.prompt),)


def launch_agent(data: SessionData, event: PromptReady) -> Answered:
    late = SessionExited(
        incarnation=data.incarnation,
        verdict=Verdict(exit=Exit.TIMEOUT, error="the agent was not ready in time", abort_reason=AbortReason.TIMEOUT),
    )
    launch = LaunchAgent(incarnation=data.incarnation, prompt=event.prompt)
    return data, (launch, StartTimer(name="spawn", delay_s=data.limits.spawn_deadline_s, event=late))


def turn_launched(data: SessionData, event: AgentLaunched) -> Answered:
    return data, (SendEvent(to=data.turn_id, event=AgentSpawned(incarnation=event.incarnation, phase="launched")),)


def turn_ready(data: SessionData, event: SessionStarted) -> Answered:
    return data, (SendEvent(to=data.turn_id, event=AgentSpawned(incarnation=event.incarnation, phase="ready")),)


def use_up_deadline(data: SessionData, event: SessionStarted) -> Answered:
    """Drop the kept deadline: the turn has taken it over, and a later attempt has its own time-out."""
    return _change(data, due_s=None, most_s=None), ()


def reset_errors(data: SessionData, event: Event) -> Answered:
    return _change(data, consecutive_errors=0), ()


def reset_errors_when_stable(data: SessionData, event: SessionStarted) -> Answered:
    if data.limits.stable_after_s <= 0:
        return reset_errors(data, event)
    later = SessionStable(incarnation=data.incarnation)
    return data, (StartTimer(name="stable", delay_s=data.limits.stable_after_s, event=later),)


def send_prompt(data: SessionData, event: SessionStarted) -> Answered:
    return data, (SendPrompt(incarnation=data.incarnation, turn_id=data.turn_id, prompt=data.prompt),)


def raise_latched(data: SessionData, event: Event) -> Answered:
    last = [message for message in data.inbox if message.interrupts][-1]
    again = UrgentMessage(message_id=last.id, sender=last.sender, text=last.text, blamed=last.blamed)
    return _change(data, urgent_latched=False), (SendEvent(to=data.id, event=again),)


def keep_message(data: SessionData, event: UrgentMessage | MessageReceived) -> Answered:
    """Add a message to the inbox once, however often it arrives; it is urgent if any copy was, and has the earliest
    delivery point of all copies."""
    urgent = isinstance(event, UrgentMessage)
    message = Message(
        id=event.message_id,
        sender=event.sender,
        text=event.text,
        urgent=urgent,
        point=event.point if isinstance(event, UrgentMessage) else DeliveryPoint.NOW,
        blamed=event.blamed if isinstance(event, UrgentMessage) else AbortReason.USER_INTERRUPT,
        steer=isinstance(event, UrgentMessage) and event.steer,
    )
    if all(one.id != message.id for one in data.inbox):
        return _change(data, inbox=(*data.inbox, message)), ()
    again = [_sooner(one, message) if one.id == message.id else one for one in data.inbox]
    return (_change(data, inbox=tuple(again)) if urgent else data), ()


def _sooner(kept: Message, again: Message) -> Message:
    point = min(kept.point, again.point, key=POINTS.index) if kept.urgent else again.point
    return msgspec.structs.replace(kept, urgent=True, point=point)


def latch_urgent(data: SessionData, event: UrgentMessage) -> Answered:
    return _change(data, urgent_latched=True), ()


def steer(data: SessionData, event: UrgentMessage) -> Answered:
    return _tell_agent(data, [data.inbox[-1]])


def steer_at_boundary(data: SessionData, event: BoundaryReached) -> Answered:
    return _tell_agent(data, _not_sent(data))


def _tell_agent(data: SessionData, messages: Sequence[Message]) -> Answered:
    """Send each message once within the running turn; if the last message is not taken up in time, the turn is
    interrupted."""
    ids = {message.id for message in messages}
    inbox = tuple(msgspec.structs.replace(one, told=True) if one.id in ids else one for one in data.inbox)
    offers = tuple(
        SteerAgent(incarnation=data.incarnation, message_id=one.id, sender=one.sender, text=one.text)
        for one in messages
    )
    late = SteerElapsed(incarnation=data.incarnation, message_id=messages[-1].id)
    grace = StartTimer(name=f"steer {messages[-1].id}", delay_s=data.limits.steer_grace_s, event=late)
    return _change(data, inbox=inbox), (*offers, grace)


def note_taken_up(data: SessionData, event: MessageTakenUp) -> Answered:
    """Move the message to the messages of the prompt, which are removed when the turn has succeeded."""
    known, waiting = data.inbox[: data.offered], data.inbox[data.offered :]
    taken_up = tuple(one for one in waiting if one.id == event.message_id)
    others = tuple(one for one in waiting if one.id != event.message_id)
    return _change(data, inbox=(*known, *taken_up, *others), offered=data.offered + len(taken_up)), ()


def interrupt_not_taken_up(data: SessionData, event: SteerElapsed) -> Answered:
    return _interrupt_for(data, next(one for one in data.inbox if one.id == event.message_id))


def ask_for_boundary(data: SessionData, event: UrgentMessage) -> Answered:
    return data, (SendEvent(to=data.turn_id, event=BoundaryAwaited()),)


def interrupt(data: SessionData, event: UrgentMessage) -> Answered:
    return _interrupt_for(data, event, event.grace_s)


def interrupt_at_boundary(data: SessionData, event: BoundaryReached) -> Answered:
    return _interrupt_for(data, _not_sent(data)[-1])


def _interrupt_for(data: SessionData, message: Message | UrgentMessage, grace_s: float | None = None) -> Answered:
    cancel = CancelSession(reason=f"urgent message from {message.sender}", abort_reason=message.blamed)
    grace = GraceExceeded(incarnation=data.incarnation)
    delay_s = data.limits.grace_s if grace_s is None else min(grace_s, data.limits.grace_s)
    return data, (cancel, StartTimer(name="grace", delay_s=delay_s, event=grace))


def conclude(data: SessionData, event: Event) -> Answered:
    return _change(data, concluded=data.incarnation, urgent_latched=False), ()


def keep_what_was_done(data: SessionData, event: SessionExited) -> Answered:
    """Keep the result of a turn that succeeded while it was being interrupted: the next prompt contains only the
    messages that came since. If the agent may have ended the turn for a message only, or if it has taken up every
    message, the next prompt asks it to go on."""
    data = _keep_deadline(data, event)
    if event.verdict.exit is not Exit.SUCCESS:
        return data, ()
    done, waiting = data.current, data.inbox[data.offered :]
    if done is not None:
        goes_on = not waiting or _goes_on(data, done, data.inbox)  # a prompt is never empty
        prompt, reason = (done.prompt, done.reason) if goes_on else ("", "")
        done = msgspec.structs.replace(done, prompt=prompt, reason=reason, goes_on=goes_on)
    return _change(data, current=done, inbox=waiting, offered=0), ()


def _keep_deadline(data: SessionData, event: SessionExited) -> SessionData:
    """Keep the deadline of a task's turn for the next turn of the same attempt: a turn that answers a message gives the
    attempt no further time. (A turn that a person interrupted has no deadline to keep: the person may have changed what
    is to be done.)"""
    if data.current is None or not data.current.once:
        return data
    return _change(data, due_s=event.due_s, most_s=event.most_s)


def count_success(data: SessionData, event: SessionExited) -> Answered:
    current = data.current
    if current is not None:
        goes_on = _goes_on(data, current, data.inbox[: data.offered])
        current = msgspec.structs.replace(current, goes_on=goes_on)
        data = _keep_deadline(data, event) if goes_on else data
    inbox = data.inbox[data.offered :]
    return _change(data, consecutive_errors=0, current=current, inbox=inbox, offered=0, last_error=""), ()


def _goes_on(data: SessionData, current: Request, messages: Sequence[Message]) -> bool:
    """Return whether the agent is asked to go on with the request after a turn that answered *messages*: with a task's
    request after any message, with another after the runtime's own messages, of which its requester does not know."""
    if data.one_shot or not current.prompt:
        return False
    return any(current.once or message.blamed in OWN_ABORTS for message in messages)


def hand_over(data: SessionData, event: SessionExited) -> Answered:
    """Reply to the request of a task as soon as its agent is done, since the task verifies the work: only with the
    verdict of the task is the turn over. A turn that has only answered a message, or is followed by the turn of a
    message, is not verified: the last turn of the attempt is."""
    current = data.current
    if current is None or not current.once or current.goes_on or _owed_turn(data) is not None:
        return data, ()
    answer = ReplyToRequest(request_id=current.id, outcome="completed", how=event.verdict)
    return _answer(_change(data, verifying=data.turn_id), answer, event)


def note_verified(data: SessionData, event: TurnReaped) -> Answered:
    return (_change(data, verifying=""), ()) if event.turn_id == data.verifying else (data, ())


def count_failure(data: SessionData, event: SessionExited) -> Answered:
    error = event.verdict.error or "exited before it was ready"
    changed = _change(
        data,
        consecutive_errors=data.consecutive_errors + 1,
        total_errors=data.total_errors + 1,
        last_error=error,
    )
    return changed, ()


def spend(data: SessionData, event: SessionExited) -> Answered:
    """Mark the request as spent if its requester wanted one attempt only, or if the error is permanent."""
    return _change(data, spent=data.current is not None and (data.current.once or event.verdict.permanent)), ()


def keep_reason(data: SessionData, event: SessionExited) -> Answered:
    """Keep the error of a turn whose prompt was sent, for the next prompt of the same request. The loss of a supervisor
    does not replace the error of an earlier turn."""
    if data.current is None or (data.current.reason and supervisor_lost(data, event)):
        return data, ()
    return _change(data, current=msgspec.structs.replace(data.current, reason=event.verdict.error)), ()


def note_loss(data: SessionData, event: SessionExited) -> Answered:
    """Store the deadline of the lost turn; if that turn had no deadline yet, the deadline of the turn before it."""
    due_s, most_s = (data.due_s, data.most_s) if event.due_s is None else (event.due_s, event.most_s)
    return _change(data, last_error=event.verdict.error, due_s=due_s, most_s=most_s), ()


def back_off(data: SessionData, event: SessionExited) -> Answered:
    delay_s = backoff_ms(data.consecutive_errors, data.limits) / 1000
    return data, (StartTimer(name="backoff", delay_s=delay_s, event=BackoffElapsed()),)


def fail_launched_turn(data: SessionData, event: SessionExited) -> Answered:
    verdict = event.verdict
    if verdict.exit is Exit.SUCCESS:
        verdict = msgspec.structs.replace(verdict, exit=Exit.ERROR, error="the agent exited before it was ready")
    return data, (SendEvent(to=data.turn_id, event=TaskFailed(verdict=verdict)), CancelStep())


def force_stop(data: SessionData, event: GraceExceeded) -> Answered:
    return data, (ForceStopSession(reason="it did not stop in its grace period"),)


def log_fatal(data: SessionData, event: SessionExited | FatalError) -> Answered:
    if isinstance(event, FatalError):
        message = event.message
    else:
        counted = f"{data.consecutive_errors} in a row, {data.total_errors} in all"
        message = f"too many errors ({counted}): {data.last_error}"
    return _change(data, last_error=message, outcome="failed"), (LogFatal(message=message),)


def note_stop(data: SessionData, event: OperatorStop) -> Answered:
    outcome = event.outcome
    return _change(data, outcome=outcome, abort_id=event.abort_id, last_error=event.reason), ()


def cancel_session(data: SessionData, event: OperatorStop) -> Answered:
    cancel = CancelSession(reason=event.reason, abort_id=event.abort_id, abort_reason=event.abort_reason)
    return data, (cancel,)


def cancel_step(data: SessionData, event: OperatorStop | FatalError) -> Answered:
    if data.current is None or not data.turn_id:
        return data, (CancelStep(),)
    return data, (CancelStep(), SendEvent(to=data.turn_id, event=_failure_by(event, data)))


def _failure_by(event: Event, data: SessionData) -> TaskFailed:
    """Return the failure of a turn that is not over when *event* stops its session."""
    if not isinstance(event, OperatorStop):
        error = event.message if isinstance(event, FatalError) else data.last_error
        return TaskFailed(verdict=Verdict(exit=Exit.ERROR, error=error))
    verdict = Verdict(
        exit=Exit.ERROR,
        error=event.reason,
        transition_reason=TransitionReason.ABORTED,
        abort_reason=AbortReason(event.abort_reason) if event.abort_reason else None,
    )
    return TaskFailed(verdict=verdict, abort_id=event.abort_id)


def end_scope(data: SessionData, event: Event) -> Answered:
    """Begin the termination of the session. A turn that its task still verifies has failed: its tests and its review
    end with the session."""
    now, until = (event.now, event.until) if isinstance(event, OperatorStop) else (False, None)
    ending = Ending(stage=TerminationStage.KILL if now else TerminationStage.REQUEST, deadline=until)
    data, terminate = _change(data, ending=ending), TerminateSession(abort_id=data.abort_id, now=now)
    if not data.verifying:
        return data, (terminate,)
    return data, (terminate, SendEvent(to=data.verifying, event=_failure_by(event, data)))


def hurry(data: SessionData, event: OperatorStop) -> Answered:
    return data, (TerminateSession(abort_id=data.abort_id, now=True),)


def note_stage(data: SessionData, event: StageBegan) -> Answered:
    return _change(data, ending=Ending(stage=event.stage, deadline=event.until)), ()


def settle_request(data: SessionData, event: TurnReaped) -> Answered:
    """Reply to the request whose turn was cleaned up, and begin the next request. If the turn answered a message, the
    agent is asked to go on first. A message that waited for the end of this turn comes before the reply, too, in a turn
    of its own."""
    if data.current is None or event.turn_id != data.turn_id:
        return data, ()
    # Both of these come before the reply: a requester that has its reply may close the session, and a message that
    # waited for the end of the turn would never be delivered.
    if event.completed and data.current.goes_on:
        return _go_on(data, data.current, event)
    if event.completed and _owed_turn(data) is not None:
        return _go_on(data, msgspec.structs.replace(data.current, prompt="", reason=""), event)
    outcome = "completed" if event.completed else "failed"
    answer = ReplyToRequest(request_id=data.current.id, outcome=outcome, error=event.error, how=event.how)
    return _answer(data, answer, event)


def _answer(data: SessionData, answer: ReplyToRequest, event: Event) -> Answered:
    """Reply to the request, and begin the next request, or the turn of a message that needs one."""
    # Reply and next turn are effects of one record: a kill in between leaves both in the outbox, so no request is
    # answered twice and none is lost.
    if data.queue:
        following, *rest = data.queue
        data, opened = _go_on(_change(data, queue=tuple(rest)), following, event)
        return data, (answer, *opened)
    data, opened = deliver(_change(data, current=None), event)
    return data, (answer, *opened)


def settle_spent(data: SessionData, event: TurnReaped) -> Answered:
    """Send the requester of the spent request the reply that its attempt has failed. The next request begins when the
    backoff is over."""
    assert data.current is not None, "what is spent is a request"
    answer = ReplyToRequest(request_id=data.current.id, outcome="failed", error=event.error, how=event.how)
    if not data.queue:
        return _change(data, current=None), (answer,)
    data = _change(data, current=data.queue[0], queue=data.queue[1:], spent=False)
    data, effects = warm_up(data, event) if data.cooled else (data, ())
    return data, (answer, *effects)


def deliver(data: SessionData, event: Event) -> Answered:
    """Open a turn for a message that needs one while there is no request; the agent's reply is written to the
    transcript only."""
    message = _owed_turn(data)
    return (data, ()) if message is None else _go_on(data, Request(id=message.id, prompt=""), event)


def _owed_turn(data: SessionData) -> Message | None:
    return next((message for message in data.inbox if message.opens_turn), None)


def _go_on(data: SessionData, request: Request, event: Event) -> Answered:
    data, opened = open_turn(_change(data, current=request), event)
    return data, (*opened, PrepareWorktree())


def settle_success(data: SessionData, event: TurnReaped) -> Answered:
    """Reply to the request if its turn succeeded although the turn was to be stopped; other requests are replied to at
    the session's end, and so is a request of which the turn has only answered a message."""
    current = data.current
    if current is None or current.goes_on or event.turn_id != data.turn_id or not event.completed:
        return data, ()
    answer = ReplyToRequest(request_id=current.id, outcome="completed", how=event.how)
    return _change(data, current=None), (answer,)


def answer_all(data: SessionData, event: Ended) -> Answered:
    waiting = (*((data.current,) if data.current else ()), *data.queue)
    outcome = "failed" if data.outcome == "failed" else "aborted"
    # The replies precede the end of the log: FinalizeEntity removes the session, and with it whoever could reply.
    answers = tuple(ReplyToRequest(request_id=one.id, outcome=outcome, error=data.last_error) for one in waiting)
    return _change(data, current=None, queue=(), ended=True, ending=None), (*answers, FinalizeEntity())


# ------------------------------------------------------------------------------------------------------- the table
S = Session
ACTIVE = [S.RUNNING, S.INTERRUPTING]
RESTING = [S.INITIALIZING, S.BUILDING_PROMPT, S.SPAWNING, S.SESSION_COMPLETE, S.COOLING_DOWN]
LIVE = [*RESTING, *ACTIVE]

POINTS = list(DeliveryPoint)
PROMPTS = "the specification does not say where prompts come from: they are queued, one request at a time"
KEPT = "the specification interrupts only in Running; elsewhere a message is kept for the next prompt"
STEERED = "the specification interrupts; an agent that takes messages within its turn gets the message first"
POINT = "the specification interrupts at once; a sender may ask for the tool boundary, or for the end of the turn"
BEFORE_READY = "a clean exit before it was ready is an error"
ONCE = "a failure after the start is charged to the run: it launches again when the run asks"
LOST = "what ended with its supervisor is tried again, and charged to no agent"
NOT_CHARGED = "what ended with its supervisor, or lacked descriptors to start, is tried again, and charged to no agent"
PROVIDER = "trouble of the model's provider is charged to no session; the requester of the turn waits for the provider"
JOINED = "Stopped is committed at once; what was below it is joined afterwards"
STAGES = "the specification has no stages of an end; whoever looks sees which stage it is in, and until when"

SESSION: Machine[Session, SessionData] = Machine(
    "session",
    source="003",
    initial=[S.INITIALIZING],
    terminal=[S.STOPPED],
    rules=[
        rule(WorktreeReady, S.INITIALIZING, S.BUILDING_PROMPT, do=[build_prompt]),
        rule(PromptReady, S.BUILDING_PROMPT, S.SPAWNING, do=[new_incarnation, store_prompt, launch_agent]),
        rule(
            SessionStarted,
            S.SPAWNING,
            S.RUNNING,
            when=urgent_latched,
            do=[use_up_deadline, reset_errors_when_stable, turn_ready, raise_latched],
        ),
        rule(
            SessionStarted,
            S.SPAWNING,
            S.RUNNING,
            do=[use_up_deadline, reset_errors_when_stable, turn_ready, send_prompt],
        ),
        # What is nobody's failure comes before everything that counts failures: a supervisor that is killed again and
        # again must not use up the errors that the session may have.
        rule(
            SessionExited,
            S.SPAWNING,
            S.COOLING_DOWN,
            when=not_charged,
            do=[conclude, note_loss, back_off, fail_launched_turn],
            extension=NOT_CHARGED,
        ),
        rule(
            SessionExited,
            S.SPAWNING,
            S.STOPPED,
            when=clean_and_threshold_reached,  # an exit before it was ready is an error, however clean
            do=[conclude, count_failure, log_fatal, fail_launched_turn, end_scope],
            extension=BEFORE_READY,
        ),
        rule(
            SessionExited,
            S.SPAWNING,
            S.COOLING_DOWN,
            when=exited_clean,
            do=[conclude, count_failure, back_off, fail_launched_turn],
            extension=BEFORE_READY,
        ),
        rule(
            SessionExited,
            S.SPAWNING,
            S.STOPPED,
            when=threshold_reached,
            do=[conclude, count_failure, log_fatal, fail_launched_turn, end_scope],
        ),
        rule(SessionExited, S.SPAWNING, S.COOLING_DOWN, do=[conclude, count_failure, back_off, fail_launched_turn]),
        rule(
            SessionExited,
            S.RUNNING,
            S.COOLING_DOWN,
            when=supervisor_lost,
            do=[conclude, note_loss, keep_reason, back_off],
            extension=LOST,
        ),
        rule(
            SessionExited,
            S.RUNNING,
            S.COOLING_DOWN,
            when=provider_failed,
            do=[conclude, note_loss, keep_reason, spend, back_off],
            extension=PROVIDER,
        ),
        rule(SessionExited, S.RUNNING, S.SESSION_COMPLETE, when=exited_clean, do=[conclude, count_success, hand_over]),
        rule(
            SessionExited,
            S.RUNNING,
            S.STOPPED,
            when=threshold_reached,
            do=[conclude, count_failure, log_fatal, end_scope],
        ),
        rule(SessionExited, S.RUNNING, S.COOLING_DOWN, do=[conclude, count_failure, keep_reason, spend, back_off]),
        rule(UrgentMessage, S.RUNNING, None, when=for_turn_end, do=[keep_message], extension=POINT),
        rule(
            UrgentMessage,
            S.RUNNING,
            None,
            when=for_tool_boundary,
            do=[keep_message, ask_for_boundary],
            extension=POINT,
        ),
        rule(UrgentMessage, S.RUNNING, None, when=can_be_told, do=[keep_message, steer], extension=STEERED),
        rule(UrgentMessage, S.RUNNING, S.INTERRUPTING, do=[keep_message, interrupt]),
        rule(BoundaryReached, S.RUNNING, None, when=waits_to_be_told, do=[steer_at_boundary], extension=STEERED),
        rule(
            BoundaryReached,
            S.RUNNING,
            S.INTERRUPTING,
            when=message_interrupts,
            do=[interrupt_at_boundary],
            extension=POINT,
        ),
        rule(
            SessionExited,
            S.INTERRUPTING,
            S.BUILDING_PROMPT,
            do=[conclude, keep_what_was_done, open_turn, build_prompt],
        ),
        rule(GraceExceeded, S.INTERRUPTING, S.BUILDING_PROMPT, do=[force_stop, conclude, open_turn, build_prompt]),
        rule(WorktreeReady, S.SESSION_COMPLETE, S.BUILDING_PROMPT, do=[increment_session, build_prompt]),
        rule(BackoffElapsed, S.COOLING_DOWN, None, when=nobody_asks, do=[note_cooled], extension=ONCE),
        rule(BackoffElapsed, S.COOLING_DOWN, S.BUILDING_PROMPT, do=[open_turn, build_prompt]),
        rule(OperatorStop, ACTIVE, S.STOPPED, do=[note_stop, cancel_session, end_scope]),
        rule(OperatorStop, RESTING, S.STOPPED, do=[note_stop, cancel_step, end_scope]),
        rule(OperatorStop, S.STOPPED, S.STOPPED, do=[hurry]),
        rule(FatalError, LIVE, S.STOPPED, do=[log_fatal, cancel_step, end_scope]),
        rule(FatalError, S.STOPPED, S.STOPPED),
        # extensions that change no state
        rule(
            TurnRequested,
            [S.INITIALIZING, S.SESSION_COMPLETE],
            None,
            when=at_rest,
            do=[take_request, open_turn, prepare_worktree],
            extension=PROMPTS,
        ),
        rule(TurnRequested, S.COOLING_DOWN, None, when=has_cooled, do=[take_request, warm_up], extension=ONCE),
        rule(TurnRequested, S.COOLING_DOWN, None, when=at_rest, do=[take_request], extension=ONCE),
        rule(TurnRequested, LIVE, None, do=[queue_request], extension=PROMPTS),
        rule(
            AgentLaunched,
            S.SPAWNING,
            None,
            do=[turn_launched],
            extension="the process runs before it is ready; the turn wants to know",
        ),
        rule(
            SessionStable,
            S.RUNNING,
            None,
            do=[reset_errors],
            extension="stable_after_s > 0 lets the reset of consecutive_errors wait",
        ),
        rule(UrgentMessage, S.SPAWNING, None, when=for_turn_end, do=[keep_message], extension=POINT),
        rule(UrgentMessage, S.SPAWNING, None, do=[keep_message, latch_urgent], extension=KEPT),
        rule(
            UrgentMessage,
            S.SESSION_COMPLETE,
            None,
            when=for_turn_end_and_at_rest,
            do=[keep_message, deliver],
            extension="its turn has ended already: it gets one of its own",
        ),
        rule(
            UrgentMessage,
            [S.INITIALIZING, S.BUILDING_PROMPT, S.INTERRUPTING, S.SESSION_COMPLETE, S.COOLING_DOWN],
            None,
            do=[keep_message],
            extension=KEPT,
        ),
        rule(
            BoundaryReached,
            [S.RUNNING, S.INTERRUPTING, S.STOPPED],
            None,
            extension="nothing waits for it any more, or the turn is being interrupted already",
        ),
        rule(MessageTakenUp, ACTIVE, None, do=[note_taken_up], extension=STEERED),
        rule(MessageTakenUp, S.STOPPED, None, extension=STEERED),
        rule(
            SteerElapsed,
            S.RUNNING,
            S.INTERRUPTING,
            when=not_taken_up,
            do=[interrupt_not_taken_up],
            extension=STEERED,
        ),
        rule(SteerElapsed, ACTIVE, None, extension=STEERED),
        rule(MessageReceived, LIVE, None, do=[keep_message], extension=KEPT),
        rule(TurnReaped, S.SESSION_COMPLETE, None, do=[note_verified, settle_request], extension=PROMPTS),
        rule(TurnReaped, S.COOLING_DOWN, None, when=was_spent, do=[note_verified, settle_spent], extension=ONCE),
        rule(
            TurnReaped,
            [one for one in S if one not in (S.INITIALIZING, S.SESSION_COMPLETE, S.STOPPED)],
            None,
            do=[note_verified],
            extension="a turn that failed is tried again by its session, or given up when it ends",
        ),
        rule(
            TurnReaped,
            S.STOPPED,
            None,
            do=[note_verified, settle_success],
            extension="a turn that had succeeded before its session was stopped has succeeded",
        ),
        rule(SessionExited, S.STOPPED, None, do=[conclude], extension=JOINED),
        rule(StageBegan, S.STOPPED, None, do=[note_stage], extension=STAGES),
        rule(Ended, S.STOPPED, None, do=[answer_all], extension=JOINED),
    ],
)
