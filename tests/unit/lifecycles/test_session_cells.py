"""The session's table, cell by cell, against specification 003.

Every expectation here is typed from the text of the specification and of the decisions that complete it; none is read
from the code. A cell is a state and an event; an event that a state does not take must change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.machine import Effect, Event, IllegalTransition
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
from supervisor.lifecycles.session import SESSION, Session, backoff_ms, stale
from supervisor.lifecycles.session_data import Message, Request, SessionData
from supervisor.lifecycles.types import (
    AbortReason,
    DeliveryPoint,
    Ending,
    Exit,
    SessionLimits,
    TerminationStage,
    TransitionReason,
    Verdict,
)

S = Session
LIVE = [one for one in S if one is not S.STOPPED]
ACTIVE = [S.RUNNING, S.INTERRUPTING]
RESTING = [one for one in LIVE if one not in ACTIVE]

OK = Verdict(exit=Exit.SUCCESS)
ERROR = Verdict(exit=Exit.ERROR, error="bad")
TIMEOUT = Verdict(exit=Exit.TIMEOUT, error="slow")
OLD = Message(id="m1", sender="ann", text="old", urgent=False)
NEW = Message(id="m2", sender="bob", text="new", urgent=True)
FIRST = Request(id="r1", prompt="do it")
SECOND = Request(id="r2", prompt="then this")

ASKED = Ending(stage=TerminationStage.REQUEST)

# One event of each kind, as it comes in incarnation 3.
EVENTS: dict[str, Event] = {
    "TurnRequested": TurnRequested(request_id="r9", prompt="more"),
    "WorktreeReady": WorktreeReady(path="/w"),
    "PromptReady": PromptReady(prompt="P"),
    "AgentLaunched": AgentLaunched(incarnation=3, agent_id="s:a1"),
    "SessionStarted": SessionStarted(seq=2, incarnation=3, agent_id="s:a1"),
    "SessionExited": SessionExited(incarnation=3, verdict=ERROR),
    "SessionStable": SessionStable(incarnation=3),
    "UrgentMessage": UrgentMessage(message_id="m3", sender="cat", text="now"),
    "MessageReceived": MessageReceived(message_id="m3", sender="cat", text="now"),
    "BoundaryReached": BoundaryReached(incarnation=3),
    "MessageHeard": MessageTakenUp(incarnation=3, message_id="m2"),
    "SteerElapsed": SteerElapsed(incarnation=3, message_id="m2"),
    "GraceExceeded": GraceExceeded(incarnation=3),
    "BackoffElapsed": BackoffElapsed(),
    "OperatorStop": OperatorStop(reason="enough"),
    "FatalError": FatalError(message="boom"),
    "TurnReaped": TurnReaped(turn_id="s:t4", completed=True),
    "StageBegan": StageBegan(stage=TerminationStage.EXITING, until=9.0),
    "Ended": Ended(rung="request", took_s=1.0),
}

# Which events each state takes: those of the specification, then the extensions.
TAKEN = {
    S.INITIALIZING: "WorktreeReady OperatorStop FatalError TurnRequested UrgentMessage MessageReceived",
    S.BUILDING_PROMPT: "PromptReady OperatorStop FatalError TurnRequested UrgentMessage MessageReceived TurnReaped",
    S.SPAWNING: (
        "SessionStarted SessionExited OperatorStop FatalError "
        "TurnRequested AgentLaunched UrgentMessage MessageReceived TurnReaped"
    ),
    S.RUNNING: (
        "SessionExited UrgentMessage OperatorStop FatalError "
        "TurnRequested SessionStable MessageReceived TurnReaped BoundaryReached MessageHeard SteerElapsed"
    ),
    S.INTERRUPTING: (
        "SessionExited GraceExceeded OperatorStop FatalError "
        "TurnRequested UrgentMessage MessageReceived TurnReaped BoundaryReached MessageHeard SteerElapsed"
    ),
    S.SESSION_COMPLETE: "WorktreeReady OperatorStop FatalError TurnRequested UrgentMessage MessageReceived TurnReaped",
    S.COOLING_DOWN: "BackoffElapsed OperatorStop FatalError TurnRequested UrgentMessage MessageReceived TurnReaped",
    S.STOPPED: "OperatorStop FatalError SessionExited TurnReaped StageBegan Ended BoundaryReached MessageHeard",
}


def session(**changes: Any) -> SessionData:
    """Return the data of a session in its third launch, with a request, a waiting request, and two messages, one of
    them in the prompt."""
    data = SessionData(
        id="s",
        agent="a",
        incarnation=3,
        concluded=2,
        session_seq=2,
        turn_seq=4,
        turn_id="s:t4",
        consecutive_errors=1,
        total_errors=7,
        current=FIRST,
        queue=(SECOND,),
        inbox=(OLD, NEW),
        offered=1,
        prompt="P",
    )
    return replace(data, **changes)


BETWEEN = session(concluded=3)
"""Data of a session between two launches."""
DATA = {
    S.INITIALIZING: SessionData(id="s", agent="a", turn_seq=1, turn_id="s:t1", current=FIRST, queue=(SECOND,)),
    S.BUILDING_PROMPT: BETWEEN,
    S.SPAWNING: session(),
    S.RUNNING: session(),
    S.INTERRUPTING: session(),
    S.SESSION_COMPLETE: BETWEEN,
    S.COOLING_DOWN: BETWEEN,
    S.STOPPED: session(outcome="aborted", abort_id="x1", last_error="enough", ending=ASKED),
}


class Case(NamedTuple):
    """Case of the table: in *state*, with *data*, *event* leads to *target*, *changes* of the data, and *effects* in
    order."""

    name: str
    state: S
    event: Event
    target: S
    changes: dict[str, Any]
    effects: tuple[Effect, ...]
    data: SessionData


def case(
    name: str, state: S, event: Event, target: S, *effects: Effect, data: SessionData | None = None, **changes: Any
) -> Case:
    label = f"{state.value}+{type(event).name()}{f'-{name}' if name else ''}"
    return Case(label, state, event, target, changes, effects, data or DATA[state])


def exited(verdict: Verdict) -> SessionExited:
    return SessionExited(incarnation=3, verdict=verdict)


def failed(turn_id: str, **verdict: Any) -> SendEvent:
    return SendEvent(to=turn_id, event=TaskFailed(verdict=Verdict(exit=Exit.ERROR, **verdict)))


def backoff(delay_s: float) -> StartTimer:
    return StartTimer(name="backoff", delay_s=delay_s, event=BackoffElapsed())


def seed_cases() -> Iterator[Case]:
    """Yield the cases of the specification's transition table, row by row."""
    yield case("", S.INITIALIZING, WorktreeReady(), S.BUILDING_PROMPT, BuildPrompt())
    late = SessionExited(
        incarnation=4,
        verdict=Verdict(exit=Exit.TIMEOUT, error="the agent was not ready in time", abort_reason=AbortReason.TIMEOUT),
    )
    launch = (
        StorePrompt(prompt="Q"),
        LaunchAgent(incarnation=4, prompt="Q"),
        StartTimer(name="spawn", delay_s=60.0, event=late),
    )
    rows = [("", None, 2), ("one message", 1, 1), ("no message", 0, 0), ("more than there are", 9, 2)]
    for name, messages, offered in rows:
        ready = PromptReady(prompt="Q", messages=messages)
        # The second message is urgent: where it came too late for this prompt, it will interrupt it.
        changes: dict[str, Any] = {"incarnation": 4, "prompt": "Q", "offered": offered, "urgent_latched": offered < 2}
        yield case(name, S.BUILDING_PROMPT, ready, S.SPAWNING, *launch, **changes)
    yield from starts()
    yield from exits_in_spawning()
    yield from exits_in_running()
    interrupt = CancelSession(reason="urgent message from cat", abort_reason=AbortReason.USER_INTERRUPT)
    grace = StartTimer(name="grace", delay_s=10.0, event=GraceExceeded(incarnation=3))
    kept = (OLD, NEW, Message(id="m3", sender="cat", text="now", urgent=True))
    yield case("", S.RUNNING, EVENTS["UrgentMessage"], S.INTERRUPTING, interrupt, grace, inbox=kept)
    again = (OpenTurn(turn_id="s:t5", request_id="r1"), BuildPrompt())
    fresh: dict[str, Any] = {"concluded": 3, "turn_seq": 5, "turn_id": "s:t5"}
    for verdict in (OK, ERROR, TIMEOUT):
        name = verdict.exit.value
        # A turn that succeeded just as it was interrupted is not asked for again: only what came since is.
        done = {"current": replace(FIRST, prompt=""), "inbox": (NEW,), "offered": 0} if verdict is OK else {}
        changes = {**fresh, **done}
        yield case(name, S.INTERRUPTING, exited(verdict), S.BUILDING_PROMPT, *again, **changes)
        # Unless it is a task's, and may have ended for the interruption only.
        task, urgent = replace(FIRST, once=True), replace(NEW, urgent=True)
        begun = session(current=task, inbox=(OLD, urgent))
        of_task = {"current": replace(task, goes_on=True), "inbox": (urgent,), "offered": 0} if verdict is OK else {}
        task_changes = {**fresh, **of_task}
        yield case(
            f"{name}-task", S.INTERRUPTING, exited(verdict), S.BUILDING_PROMPT, *again, data=begun, **task_changes
        )
        brink = session(consecutive_errors=4, total_errors=19)
        yield case(f"{name}-brink", S.INTERRUPTING, exited(verdict), S.BUILDING_PROMPT, *again, data=brink, **changes)
    # A task's next turn continues the attempt, with its time.
    task, kept = replace(FIRST, once=True), {"due_s": 90.0, "most_s": 95.0}
    opened = (OpenTurn(turn_id="s:t5", request_id="r1", **kept), BuildPrompt())
    for verdict in (OK, replace(ERROR, abort_reason=AbortReason.TIMEOUT)):
        event = replace(exited(verdict), **kept)
        name, begun, at = f"{verdict.exit.value}-same time", session(current=task), S.INTERRUPTING
        done = {"current": replace(task, goes_on=True), "inbox": (NEW,), "offered": 0} if verdict is OK else {}
        yield case(name, at, event, S.BUILDING_PROMPT, *opened, data=begun, **fresh, **done, **kept)
    # The agent took up the message while it was interrupted: nothing waits, and a prompt is never empty.
    for name, request in (("task", task), ("host", FIRST)):
        begun, on = session(current=request, offered=2), replace(request, goes_on=True)
        changes = {**fresh, "current": on, "inbox": (), "offered": 0}
        yield case(f"{name}, taken up", S.INTERRUPTING, exited(OK), S.BUILDING_PROMPT, *again, data=begun, **changes)
    force = ForceStopSession(reason="it did not stop in its grace period")
    yield case("", S.INTERRUPTING, GraceExceeded(incarnation=3), S.BUILDING_PROMPT, force, *again, **fresh)
    yield case("", S.SESSION_COMPLETE, WorktreeReady(), S.BUILDING_PROMPT, BuildPrompt(), session_seq=3)
    fresh.pop("concluded")
    yield case("", S.COOLING_DOWN, BackoffElapsed(), S.BUILDING_PROMPT, *again, **fresh)


def starts() -> Iterator[Case]:
    started = EVENTS["SessionStarted"]
    ready = SendEvent(to="s:t4", event=AgentSpawned(incarnation=3, phase="ready"))
    send = SendPrompt(incarnation=3, turn_id="s:t4", prompt="P")
    yield case("", S.SPAWNING, started, S.RUNNING, ready, send, consecutive_errors=0)
    urgent = SendEvent(to="s", event=UrgentMessage(message_id="m2", sender="bob", text="new"))
    latched = session(urgent_latched=True)
    changes: dict[str, Any] = {"consecutive_errors": 0, "urgent_latched": False}
    yield case("latched", S.SPAWNING, started, S.RUNNING, ready, urgent, data=latched, **changes)
    stable = StartTimer(name="stable", delay_s=5.0, event=SessionStable(incarnation=3))
    patient = session(limits=SessionLimits(stable_after_s=5.0))
    yield case("stable later", S.SPAWNING, started, S.RUNNING, stable, ready, send, data=patient)
    soon = StartTimer(name="stable", delay_s=0.5, event=SessionStable(incarnation=3))
    hasty = session(limits=SessionLimits(stable_after_s=0.5))
    yield case("stable soon", S.SPAWNING, started, S.RUNNING, soon, ready, send, data=hasty)


def exits_in_spawning() -> Iterator[Case]:
    """Yield the cases of an exit before the agent was ready: each counts as an error, an exit with success too."""
    clean = {"exit": Exit.ERROR, "error": "the agent exited before it was ready"}
    rows = [
        (ERROR, ERROR, "bad"),
        (TIMEOUT, TIMEOUT, "slow"),
        (OK, replace(OK, **clean), "exited before it was ready"),
    ]
    for verdict, told, words in rows:
        after = (SendEvent(to="s:t4", event=TaskFailed(verdict=told)), CancelStep())
        name = verdict.exit.value
        changes: dict[str, Any] = {"concluded": 3, "consecutive_errors": 2, "total_errors": 8, "last_error": words}
        yield case(name, S.SPAWNING, exited(verdict), S.COOLING_DOWN, backoff(4.0), *after, **changes)
        fatal = f"too many errors (5 in a row, 8 in all): {words}"
        changes |= {"consecutive_errors": 5, "last_error": fatal, "outcome": "failed", "urgent_latched": False}
        changes["ending"] = ASKED
        brink = session(consecutive_errors=4, urgent_latched=True)
        end = (LogFatal(message=fatal), *after, TerminateSession())
        yield case(f"{name}-fatal", S.SPAWNING, exited(verdict), S.STOPPED, *end, data=brink, **changes)


def exits_in_running() -> Iterator[Case]:
    done: dict[str, Any] = {"concluded": 3, "consecutive_errors": 0, "inbox": (NEW,), "offered": 0}
    yield case("Success", S.RUNNING, exited(OK), S.SESSION_COMPLETE, **done)
    brink = session(consecutive_errors=4, total_errors=19, last_error="earlier")
    yield case("Success-brink", S.RUNNING, exited(OK), S.SESSION_COMPLETE, data=brink, last_error="", **done)
    for verdict in (ERROR, TIMEOUT):
        name, words = verdict.exit.value, verdict.error
        changes: dict[str, Any] = {"concluded": 3, "consecutive_errors": 2, "total_errors": 8, "last_error": words}
        again = {"current": replace(FIRST, reason=words)}
        yield case(name, S.RUNNING, exited(verdict), S.COOLING_DOWN, backoff(4.0), **changes, **again)
        fatal = f"too many errors (2 in a row, 20 in all): {words}"
        changes |= {"total_errors": 20, "last_error": fatal, "outcome": "failed", "ending": ASKED}
        brink = session(total_errors=19)
        end = (LogFatal(message=fatal), TerminateSession())
        yield case(f"{name}-fatal", S.RUNNING, exited(verdict), S.STOPPED, *end, data=brink, **changes)


def global_cases() -> Iterator[Case]:
    """Yield the cases of OperatorStop and FatalError in every state."""
    aborted: dict[str, Any] = {"transition_reason": TransitionReason.ABORTED}
    stop = OperatorStop(reason="sibling", abort_id="x1", abort_reason="sibling_aborted", now=True, until=8.0)
    killed = Ending(stage=TerminationStage.KILL, deadline=8.0)
    ended: dict[str, Any] = {"outcome": "aborted", "abort_id": "x1", "last_error": "sibling", "ending": killed}
    told = Verdict(exit=Exit.ERROR, error="sibling", abort_reason=AbortReason.SIBLING_ABORTED, **aborted)
    for state in LIVE:
        turn_id = DATA[state].turn_id
        plain: dict[str, Any] = {"outcome": "aborted", "last_error": "enough", "ending": ASKED}
        boom: dict[str, Any] = {"outcome": "failed", "last_error": "boom", "ending": ASKED}
        if state in ACTIVE:
            first: tuple[Effect, ...] = (CancelSession(reason="enough"),)
            second: tuple[Effect, ...] = (
                CancelSession(reason="sibling", abort_id="x1", abort_reason="sibling_aborted"),
            )
        else:
            first = (CancelStep(), failed(turn_id, error="enough", **aborted))
            second = (CancelStep(), SendEvent(to=turn_id, event=TaskFailed(verdict=told, abort_id="x1")))
        yield case("", state, EVENTS["OperatorStop"], S.STOPPED, *first, TerminateSession(), **plain)
        yield case("abort", state, stop, S.STOPPED, *second, TerminateSession(abort_id="x1", now=True), **ended)
        fatal = (LogFatal(message="boom"), CancelStep(), failed(turn_id, error="boom"), TerminateSession())
        yield case("", state, EVENTS["FatalError"], S.STOPPED, *fatal, **boom)
    idle = replace(DATA[S.INITIALIZING], current=None, queue=(), turn_seq=0, turn_id="")
    quiet: dict[str, Any] = {"outcome": "completed", "last_error": "no more work", "ending": ASKED}
    close = OperatorStop(reason="no more work", outcome="completed")
    yield case("idle", S.INITIALIZING, close, S.STOPPED, CancelStep(), TerminateSession(), data=idle, **quiet)
    hurried = TerminateSession(abort_id="x1", now=True)
    yield case("second", S.STOPPED, EVENTS["OperatorStop"], S.STOPPED, hurried)
    yield case("", S.STOPPED, EVENTS["FatalError"], S.STOPPED)
    exiting = Ending(stage=TerminationStage.EXITING, deadline=9.0)
    yield case("", S.STOPPED, EVENTS["StageBegan"], S.STOPPED, ending=exiting)


def extension_cases() -> Iterator[Case]:
    """Yield the cases of requests, messages and later events that do not change the state."""
    asked = Request(id="r9", prompt="more")
    for state in LIVE:
        data = DATA[state]
        yield case("busy", state, EVENTS["TurnRequested"], state, queue=(SECOND, asked))
        told = Message(id="m3", sender="cat", text="now", urgent=False)
        yield case("", state, EVENTS["MessageReceived"], state, inbox=(*data.inbox, told))
        if data.inbox:
            known = MessageReceived(message_id="m2", sender="bob", text="new")
            yield case("repeated", state, known, state)
    for state in (S.INITIALIZING, S.BUILDING_PROMPT, S.INTERRUPTING, S.SESSION_COMPLETE, S.COOLING_DOWN):
        told = Message(id="m3", sender="cat", text="now", urgent=True)
        yield case("", state, EVENTS["UrgentMessage"], state, inbox=(*DATA[state].inbox, told))
    kept = (OLD, NEW, Message(id="m3", sender="cat", text="now", urgent=True))
    yield case("", S.SPAWNING, EVENTS["UrgentMessage"], S.SPAWNING, inbox=kept, urgent_latched=True)
    upgraded = (replace(OLD, urgent=True), NEW)
    again = UrgentMessage(message_id="m1", sender="ann", text="old")
    yield case("repeated", S.SPAWNING, again, S.SPAWNING, inbox=upgraded, urgent_latched=True)
    for state in (S.INITIALIZING, S.SESSION_COMPLETE):
        rest = replace(DATA[state], current=None, queue=())
        number = rest.turn_seq + 1
        opened = (OpenTurn(turn_id=f"s:t{number}", request_id="r9"), PrepareWorktree())
        changes: dict[str, Any] = {"current": asked, "turn_seq": number, "turn_id": f"s:t{number}"}
        yield case("rest", state, EVENTS["TurnRequested"], state, *opened, data=rest, **changes)
    launched = SendEvent(to="s:t4", event=AgentSpawned(incarnation=3, phase="launched"))
    yield case("", S.SPAWNING, EVENTS["AgentLaunched"], S.SPAWNING, launched)
    yield case("", S.RUNNING, EVENTS["SessionStable"], S.RUNNING, consecutive_errors=0)
    yield from reaped_cases()
    yield from once_cases()
    yield from verified_cases()
    yield from point_cases()
    yield case("", S.STOPPED, EVENTS["SessionExited"], S.STOPPED, concluded=3)
    yield from ended_cases()


def reaped_cases() -> Iterator[Case]:
    done = EVENTS["TurnReaped"]
    for state in S:
        if state not in (S.INITIALIZING, S.SESSION_COMPLETE, S.STOPPED):
            yield case("", state, done, state)
    late = ReplyToRequest(request_id="r1", outcome="completed")
    yield case("succeeded", S.STOPPED, done, S.STOPPED, late, current=None)
    yield case("failed", S.STOPPED, TurnReaped(turn_id="s:t4", completed=False), S.STOPPED)
    at = S.SESSION_COMPLETE
    answer = ReplyToRequest(request_id="r1", outcome="completed")
    opened = (OpenTurn(turn_id="s:t5", request_id="r2"), PrepareWorktree())
    changes: dict[str, Any] = {"current": SECOND, "queue": (), "turn_seq": 5, "turn_id": "s:t5"}
    yield case("next", at, done, at, answer, *opened, **changes)
    yield case("last", at, done, at, answer, data=replace(BETWEEN, queue=()), current=None)
    yield from answered_cases()
    bad = TurnReaped(turn_id="s:t4", completed=False, error="rejected")
    no = ReplyToRequest(request_id="r1", outcome="failed", error="rejected")
    yield case("rejected", at, bad, at, no, data=replace(BETWEEN, queue=()), current=None)
    yield case("another turn", at, TurnReaped(turn_id="s:t3", completed=True), at)
    yield case("twice", at, done, at, data=replace(BETWEEN, current=None, queue=()))


def verified_cases() -> Iterator[Case]:
    """Yield the cases of a turn that its task verifies: its request is answered when the agent is done, and the turn
    has failed if the session ends before the verdict."""
    at, task = S.SESSION_COMPLETE, replace(FIRST, once=True)
    answer = ReplyToRequest(request_id="r1", outcome="completed", how=OK)
    done: dict[str, Any] = {"concluded": 3, "consecutive_errors": 0, "inbox": (), "offered": 0, "verifying": "s:t4"}
    alone = session(current=task, queue=(), inbox=(), offered=0)
    yield case("verified", S.RUNNING, exited(OK), at, answer, data=alone, current=None, **done)
    opened = (OpenTurn(turn_id="s:t5", request_id="r2"), PrepareWorktree())
    fresh: dict[str, Any] = {"current": SECOND, "queue": (), "turn_seq": 5, "turn_id": "s:t5"}
    both = replace(alone, queue=(SECOND,))
    yield case("verified, next", S.RUNNING, exited(OK), at, answer, *opened, data=both, **fresh, **done)
    # A message that waited for the end of the turn comes before the verification.
    owed, kept = (
        replace(alone, inbox=(AT_END_KEPT,)),
        {"current": task, **done, "inbox": (AT_END_KEPT,), "verifying": ""},
    )
    yield case("verified, owed", S.RUNNING, exited(OK), at, data=owed, **kept)
    waits = replace(alone, concluded=3, current=None, verifying="s:t4")
    for completed in (True, False):
        reaped = TurnReaped(turn_id="s:t4", completed=completed)
        yield case(f"verified, {completed}", at, reaped, at, data=waits, verifying="")
    yield case("verified, another", at, TurnReaped(turn_id="s:t3", completed=True), at, data=waits)
    ends = (CancelStep(), TerminateSession(abort_id="x1"))
    aborted = {"error": "enough", "transition_reason": TransitionReason.ABORTED, "abort_reason": None}
    told = SendEvent(to="s:t4", event=TaskFailed(verdict=Verdict(exit=Exit.ERROR, **aborted), abort_id="x1"))
    stop = OperatorStop(reason="enough", abort_id="x1")
    ended = {"outcome": "aborted", "abort_id": "x1", "last_error": "enough", "ending": ASKED}
    yield case("verified, aborted", at, stop, S.STOPPED, *ends, told, data=waits, **ended)


def once_cases() -> Iterator[Case]:
    """Yield the cases of a request with one attempt: after a failure it is answered when its turn is reaped, and the
    next request waits for the backoff."""
    at, once = S.COOLING_DOWN, session(current=replace(FIRST, once=True))
    failure: dict[str, Any] = {"concluded": 3, "consecutive_errors": 2, "total_errors": 8, "last_error": "bad"}
    kept = replace(FIRST, once=True, reason="bad")
    yield case("once", S.RUNNING, exited(ERROR), at, backoff(4.0), data=once, spent=True, current=kept, **failure)
    lost = Verdict(exit=Exit.ERROR, error="lost", transition_reason=TransitionReason.ORPHAN_RECOVERED)
    told = session(current=replace(FIRST, reason="bad"))
    changed: dict[str, Any] = {"concluded": 3, "last_error": "lost"}
    yield case("lost", S.RUNNING, exited(lost), at, backoff(2.0), current=replace(FIRST, reason="lost"), **changed)
    yield case("lost, told why", S.RUNNING, exited(lost), at, backoff(2.0), data=told, **changed)
    spent = replace(BETWEEN, spent=True)
    yield case("spent", at, BackoffElapsed(), at, data=spent, cooled=True)
    reaped = TurnReaped(turn_id="s:t4", completed=False, error="bad")
    no = ReplyToRequest(request_id="r1", outcome="failed", error="bad")
    following: dict[str, Any] = {"current": SECOND, "queue": (), "spent": False}
    yield case("spent, next", at, reaped, at, no, data=spent, **following)
    elapsed = SendEvent(to="s", event=BackoffElapsed())
    cooled = replace(spent, cooled=True)
    yield case("spent, cooled, next", at, reaped, at, no, elapsed, data=cooled, cooled=False, **following)
    yield case("spent, last", at, reaped, at, no, data=replace(spent, queue=()), current=None)
    launched = SendEvent(to="s:t4", event=TaskFailed(verdict=ERROR))
    for left, is_spent in ((0, True), (2, False)):
        bounded, name = session(current=replace(FIRST, retries=left)), f"{left} retries left"
        used = replace(FIRST, retries=max(left - 1, 0))
        changed = {**failure, "spent": is_spent, "current": replace(used, reason="bad")}
        yield case(name, S.RUNNING, exited(ERROR), at, backoff(4.0), data=bounded, **changed)
        changed = {**failure, "spent": is_spent, "current": used}
        effects = (backoff(4.0), launched, CancelStep())
        yield case(name, S.SPAWNING, exited(ERROR), at, *effects, data=bounded, **changed)


def urgent(point: DeliveryPoint, message_id: str = "m3") -> tuple[UrgentMessage, Message]:
    """Return an urgent message with that delivery point, as an event and as the inbox stores it."""
    fields: dict[str, Any] = {"sender": "cat", "text": "now", "point": point}
    return UrgentMessage(message_id=message_id, **fields), Message(id=message_id, urgent=True, **fields)


BOUNDARY, BOUNDARY_KEPT = urgent(DeliveryPoint.TOOL_BOUNDARY)
AT_END, AT_END_KEPT = urgent(DeliveryPoint.TURN_END)


def point_cases() -> Iterator[Case]:
    """Yield the cases of every state and delivery point except ``now``, which is in the specification's own table."""
    for state in LIVE:
        inbox = DATA[state].inbox
        awaits: tuple[Effect, ...] = (SendEvent(to="s:t4", event=BoundaryAwaited()),) if state is S.RUNNING else ()
        latch: dict[str, Any] = {"urgent_latched": True} if state is S.SPAWNING else {}
        yield case("boundary", state, BOUNDARY, state, *awaits, inbox=(*inbox, BOUNDARY_KEPT), **latch)
        yield case("turn end", state, AT_END, state, inbox=(*inbox, AT_END_KEPT))
    yield from boundary_cases()
    yield from turn_end_cases()
    yield from steered_cases()


def steered_cases() -> Iterator[Case]:
    """Yield the cases of a message to an agent that accepts messages within a turn: sent once, it interrupts only if
    the agent does not take it up in time; a message not taken up gets a turn of its own."""
    told = UrgentMessage(message_id="m3", sender="cat", text="now", steer=True)
    kept = Message(id="m3", sender="cat", text="now", urgent=True, steer=True, told=True)
    say = SteerAgent(incarnation=3, message_id="m3", sender="cat", text="now")
    late = SteerElapsed(incarnation=3, message_id="m3")
    timer = StartTimer(name="steer m3", delay_s=2.0, event=late)
    yield case("steered", S.RUNNING, told, S.RUNNING, say, timer, inbox=(OLD, NEW, kept))
    interrupt = CancelSession(reason="urgent message from cat", abort_reason=AbortReason.USER_INTERRUPT)
    grace = StartTimer(name="grace", delay_s=10.0, event=GraceExceeded(incarnation=3))
    waiting = session(inbox=(OLD, kept))
    yield case("told before", S.RUNNING, told, S.INTERRUPTING, interrupt, grace, data=waiting)
    yield case("", S.RUNNING, late, S.INTERRUPTING, interrupt, grace, data=waiting)
    yield case("heard", S.RUNNING, late, S.RUNNING, data=session(inbox=(OLD, kept), offered=2))
    yield case("", S.INTERRUPTING, late, S.INTERRUPTING)
    heard = MessageTakenUp(incarnation=3, message_id="m3")
    for state in ACTIVE:
        mixed = session(inbox=(OLD, NEW, kept))
        yield case("", state, heard, state, data=mixed, inbox=(OLD, kept, NEW), offered=2)
        yield case("unknown", state, heard, state)
    yield case("", S.STOPPED, heard, S.STOPPED)
    reached, at_boundary = EVENTS["BoundaryReached"], replace(kept, point=DeliveryPoint.TOOL_BOUNDARY)
    untold = session(inbox=(OLD, replace(at_boundary, told=False)))
    yield case("steered", S.RUNNING, reached, S.RUNNING, say, timer, data=untold, inbox=(OLD, at_boundary))
    unheard = session(inbox=(OLD, at_boundary))
    yield case("told before", S.RUNNING, reached, S.INTERRUPTING, interrupt, grace, data=unheard)
    reaped = TurnReaped(turn_id="s:t4", completed=True)
    again = (OpenTurn(turn_id="s:t5", request_id="r1"), PrepareWorktree())
    changes: dict[str, Any] = {"turn_seq": 5, "turn_id": "s:t5", "current": replace(FIRST, prompt="")}
    left = session(concluded=3, inbox=(kept,), offered=0)
    yield case("not taken up", S.SESSION_COMPLETE, reaped, S.SESSION_COMPLETE, *again, data=left, **changes)


def boundary_cases() -> Iterator[Case]:
    """Yield the cases of the tool boundary: a message that waits for the boundary interrupts the turn there."""
    reached = EVENTS["BoundaryReached"]
    waiting = session(inbox=(OLD, replace(BOUNDARY_KEPT, sender="dan")))
    interrupt = CancelSession(reason="urgent message from dan", abort_reason=AbortReason.USER_INTERRUPT)
    grace = StartTimer(name="grace", delay_s=10.0, event=GraceExceeded(incarnation=3))
    yield case("", S.RUNNING, reached, S.INTERRUPTING, interrupt, grace, data=waiting)
    for name, inbox in (("nothing waits", (OLD,)), ("for the end", (OLD, AT_END_KEPT))):
        yield case(name, S.RUNNING, reached, S.RUNNING, data=session(inbox=inbox))
    for state in (S.INTERRUPTING, S.STOPPED):
        yield case("", state, reached, state)


def answered_cases() -> Iterator[Case]:
    """Yield the cases of a turn that answered a message: it ends no request, and the agent is asked to go on."""
    urgent = replace(OLD, urgent=True)
    wake, settled = (
        replace(urgent, blamed=AbortReason.TIMEOUT),
        {"concluded": 3, "consecutive_errors": 0, "inbox": (), "offered": 0},
    )
    on = replace(FIRST, goes_on=True)
    for name, data, current in (
        ("wake-up", session(inbox=(wake,)), on),
        ("of a task", session(inbox=(OLD,), current=replace(FIRST, once=True)), replace(on, once=True)),
        ("of a host", session(inbox=(urgent,)), FIRST),
        ("one-shot", session(inbox=(wake,), one_shot=True), FIRST),
        ("its own turn", session(inbox=(wake,), current=replace(FIRST, prompt="")), replace(FIRST, prompt="")),
        ("went on", session(inbox=(), offered=0, current=on), FIRST),
    ):
        settled["current"] = current
        yield case(f"answered, {name}", S.RUNNING, exited(OK), S.SESSION_COMPLETE, data=data, **settled)
    task, kept = replace(FIRST, once=True), {"due_s": 90.0, "most_s": 95.0}
    settled["current"], event = replace(on, once=True), replace(exited(OK), **kept)
    data = session(inbox=(OLD,), current=task)
    yield case("answered, same time", S.RUNNING, event, S.SESSION_COMPLETE, data=data, **settled, **kept)
    again = (OpenTurn(turn_id="s:t5", request_id="r1"), PrepareWorktree())
    fresh: dict[str, Any] = {"turn_seq": 5, "turn_id": "s:t5"}
    at, goes_on = S.SESSION_COMPLETE, replace(BETWEEN, current=on)
    yield case("answered, asked to go on", at, EVENTS["TurnReaped"], at, *again, data=goes_on, **fresh)
    yield case("answered, then stopped", S.STOPPED, EVENTS["TurnReaped"], S.STOPPED, data=goes_on)


def turn_end_cases() -> Iterator[Case]:
    """Yield the cases of a message for the end of the turn: it gets a turn of its own then, and never interrupts."""
    rest = replace(BETWEEN, current=None, queue=(), inbox=())
    own = Request(id="m3", prompt="")
    opened = (OpenTurn(turn_id="s:t5", request_id="m3"), PrepareWorktree())
    fresh: dict[str, Any] = {"turn_seq": 5, "turn_id": "s:t5"}
    at = S.SESSION_COMPLETE
    yield case("turn end, at rest", at, AT_END, at, *opened, data=rest, current=own, inbox=(AT_END_KEPT,), **fresh)
    yield case("boundary, at rest", at, BOUNDARY, at, data=rest, inbox=(BOUNDARY_KEPT,))
    newborn = replace(DATA[S.INITIALIZING], current=None, queue=())
    yield case("turn end, at rest", S.INITIALIZING, AT_END, S.INITIALIZING, data=newborn, inbox=(AT_END_KEPT,))
    done, owed = EVENTS["TurnReaped"], replace(BETWEEN, inbox=(NEW, AT_END_KEPT))
    further = (OpenTurn(turn_id="s:t5", request_id="r1"), PrepareWorktree())
    yield case("owed", at, done, at, *further, data=owed, current=replace(FIRST, prompt=""), **fresh)
    bad = TurnReaped(turn_id="s:t4", completed=False, error="rejected")
    no = ReplyToRequest(request_id="r1", outcome="failed", error="rejected")
    following = (OpenTurn(turn_id="s:t5", request_id="r2"), PrepareWorktree())
    yield case("rejected, owed, next", at, bad, at, no, *following, data=owed, current=SECOND, queue=(), **fresh)
    alone = replace(owed, queue=())
    yield case("rejected, owed", at, bad, at, no, *opened, data=alone, current=own, **fresh)
    ready = PromptReady(prompt="Q", messages=0)
    late = SessionExited(
        incarnation=4,
        verdict=Verdict(exit=Exit.TIMEOUT, error="the agent was not ready in time", abort_reason=AbortReason.TIMEOUT),
    )
    launch = (
        StorePrompt(prompt="Q"),
        LaunchAgent(incarnation=4, prompt="Q"),
        StartTimer(name="spawn", delay_s=60.0, event=late),
    )
    built: dict[str, Any] = {"incarnation": 4, "prompt": "Q", "offered": 0}
    too_late = replace(BETWEEN, inbox=(AT_END_KEPT,))
    yield case("turn end, too late", S.BUILDING_PROMPT, ready, S.SPAWNING, *launch, data=too_late, **built)


def ended_cases() -> Iterator[Case]:
    ended = EVENTS["Ended"]
    changes: dict[str, Any] = {"current": None, "queue": (), "ended": True, "ending": None}
    for outcome, told in (("aborted", "aborted"), ("failed", "failed"), ("completed", "aborted")):
        data = replace(DATA[S.STOPPED], outcome=outcome)
        answers = [ReplyToRequest(request_id=one, outcome=told, error="enough") for one in ("r1", "r2")]
        yield case(outcome, S.STOPPED, ended, S.STOPPED, *answers, FinalizeEntity(), data=data, **changes)
    idle = replace(DATA[S.STOPPED], current=None, queue=())
    yield case("idle", S.STOPPED, ended, S.STOPPED, FinalizeEntity(), data=idle, ended=True, ending=None)


CASES = [*seed_cases(), *global_cases(), *extension_cases()]
CELLS = [(state, name) for state in S for name in EVENTS]
REFUSED = [(state, name) for state, name in CELLS if name not in TAKEN[state].split()]


# ------------------------------------------------------------------------------------------------- every cell
@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_cell(one: Case) -> None:
    """In the given state and data, the event leads to exactly the listed state, data and effects, and is not stale."""
    assert not stale(one.data, one.event) or one.state is S.STOPPED
    step = SESSION.step(one.state, one.data, one.event)
    assert step.state is one.target
    assert step.data == replace(one.data, **one.changes)
    assert step.effects == one.effects


@pytest.mark.parametrize(("state", "name"), REFUSED, ids=[f"{state.value}+{name}" for state, name in REFUSED])
def test_refused_cell(state: S, name: str) -> None:
    """An event without a rule raises IllegalTransition, changes nothing, and the exception lists the allowed events."""
    before = replace(DATA[state])
    with pytest.raises(IllegalTransition) as caught:
        SESSION.step(state, DATA[state], EVENTS[name])
    assert sorted(one.name() for one in caught.value.allowed) == sorted(TAKEN[state].split())
    assert DATA[state] == before


def test_every_cell_is_tested() -> None:
    """Of the 152 pairs of 8 states and 19 events 86 are refused, and each of the other 66 has a case."""
    assert sorted(EVENTS) == sorted(SESSION.events)
    tested = {(one.state, type(one.event).name()) for one in CASES}
    assert (len(CELLS), len(REFUSED), len(tested)) == (152, 86, 66)
    assert tested.isdisjoint(REFUSED)
    assert len({one.name for one in CASES}) == len(CASES)


# ------------------------------------------------------------------------------------------- counters and backoff
@pytest.mark.parametrize("state", [S.SPAWNING, S.RUNNING], ids=lambda one: one.value)
@pytest.mark.parametrize("verdict", [ERROR, TIMEOUT], ids=lambda one: one.exit.value)
@pytest.mark.parametrize(
    ("before", "target"),
    [
        ((3, 3), S.COOLING_DOWN),
        ((4, 4), S.STOPPED),
        ((0, 18), S.COOLING_DOWN),
        ((0, 19), S.STOPPED),
        ((4, 19), S.STOPPED),
        ((3, 18), S.COOLING_DOWN),
    ],
    ids=["4th in a row", "5th in a row", "19th in all", "20th in all", "both", "neither"],
)
def test_thresholds(state: S, verdict: Verdict, before: tuple[int, int], target: S) -> None:
    """A session stops at its 5th error in a row and its 20th in all, but not at the 4th and the 19th."""
    data = session(consecutive_errors=before[0], total_errors=before[1])
    step = SESSION.step(state, data, exited(verdict))
    assert step.state is target
    assert (step.data.consecutive_errors, step.data.total_errors) == (before[0] + 1, before[1] + 1)
    assert any(isinstance(one, LogFatal) for one in step.effects) is (target is S.STOPPED)


@pytest.mark.parametrize(("row", "total"), [(1, 9), (9, 1)])
def test_thresholds_are_limits(row: int, total: int) -> None:
    """The thresholds of a session are its own limits: with a limit of 1 the first error stops the session."""
    limits = SessionLimits(max_consecutive_errors=row, max_total_errors=total)
    data = session(limits=limits, consecutive_errors=0, total_errors=0)
    assert SESSION.step(S.RUNNING, data, exited(ERROR)).state is S.STOPPED


BACKOFF_S = [(1, 2.0), (2, 4.0), (3, 8.0), (4, 16.0), (5, 32.0), (6, 60.0), (7, 60.0), (40, 60.0), (5000, 60.0)]


@pytest.mark.parametrize("state", [S.SPAWNING, S.RUNNING], ids=lambda one: one.value)
@pytest.mark.parametrize(("number", "delay_s"), BACKOFF_S)
def test_backoff_table(state: S, number: int, delay_s: float) -> None:
    """After n errors in a row the session waits 2, 4, 8, 16, 32, then always 60 s; n includes the newest error."""
    limits = SessionLimits(max_consecutive_errors=10_000, max_total_errors=10_000)
    step = SESSION.step(state, session(limits=limits, consecutive_errors=number - 1), exited(ERROR))
    assert step.state is S.COOLING_DOWN
    assert backoff(delay_s) in step.effects
    assert backoff_ms(number, SessionLimits()) == delay_s * 1000


def test_a_crash_after_the_start_never_backs_off_further() -> None:
    """Each crash after SessionStarted is followed by a backoff of 2 s, because SessionStarted resets
    consecutive_errors."""
    data = session(consecutive_errors=0, total_errors=0)
    for number in range(1, 4):
        step = SESSION.step(S.RUNNING, data, SessionExited(incarnation=data.incarnation, verdict=ERROR))
        assert backoff(2.0) in step.effects
        data = SESSION.step(S.COOLING_DOWN, step.data, BackoffElapsed()).data
        data = SESSION.step(S.BUILDING_PROMPT, data, PromptReady(prompt="P")).data
        data = SESSION.step(S.SPAWNING, data, SessionStarted(seq=2, incarnation=data.incarnation)).data
        assert (data.consecutive_errors, data.total_errors) == (0, number)


def test_limits_are_used_where_they_are_named() -> None:
    """The deadlines of spawn and grace, and the backoff's base and cap, are the session's own limits."""
    limits = SessionLimits(grace_s=1.5, spawn_deadline_s=7.0, backoff_base_ms=10, backoff_cap_ms=25)
    data = replace(BETWEEN, limits=limits)
    spawn = SESSION.step(S.BUILDING_PROMPT, data, PromptReady(prompt="P")).effects[-1]
    grace = SESSION.step(S.RUNNING, session(limits=limits), EVENTS["UrgentMessage"]).effects[-1]
    assert isinstance(spawn, StartTimer)
    assert isinstance(grace, StartTimer)
    assert (spawn.delay_s, grace.delay_s) == (7.0, 1.5)
    assert [backoff_ms(number, limits) for number in (1, 2, 3)] == [10, 20, 25]


@pytest.mark.parametrize(
    ("first", "again", "kept"),
    [
        ("turn_end", "now", "now"),
        ("now", "turn_end", "now"),
        ("tool_boundary", "turn_end", "tool_boundary"),
        (None, "turn_end", "turn_end"),
    ],
)
def test_a_message_that_comes_again_is_as_soon_as_it_ever_was(first: str | None, again: str, kept: str) -> None:
    """The sooner of two points counts; a message that was not urgent takes the point of the urgent one."""
    before = urgent(DeliveryPoint(first))[1] if first else replace(AT_END_KEPT, urgent=False, point=DeliveryPoint.NOW)
    step = SESSION.step(S.COOLING_DOWN, session(inbox=(before,)), urgent(DeliveryPoint(again))[0])
    assert step.data.inbox == (urgent(DeliveryPoint(kept))[1],)


@pytest.mark.parametrize("state", [S.SESSION_COMPLETE, S.STOPPED], ids=lambda one: one.value)
@pytest.mark.parametrize("turn_id", ["s:t3", "s:t5", "a:t4", ""])
def test_only_the_turn_of_the_request_answers_it(state: S, turn_id: str) -> None:
    """The end of another turn, whatever its number, changes nothing and answers no request."""
    step = SESSION.step(state, session(), TurnReaped(turn_id=turn_id, completed=True))
    assert (step.data, step.effects) == (session(), ())


def test_a_misspelt_limit_is_an_error() -> None:
    """A misspelt limit is an error, not a default."""
    with pytest.raises(msgspec.ValidationError, match="grace"):
        msgspec.convert({"grace": 1}, SessionLimits)


def test_backoff_stops_doubling() -> None:
    """From the 33rd error on the delay stays the same, whatever the cap."""
    limits = SessionLimits(backoff_base_ms=1, backoff_cap_ms=2**100)
    assert [backoff_ms(number, limits) for number in (32, 33, 34, 10**6)] == [2**31, 2**32, 2**32, 2**32]


@pytest.mark.parametrize("state", [S.SPAWNING, S.RUNNING], ids=lambda one: one.value)
@pytest.mark.parametrize("counted", [{"consecutive_errors": 9, "total_errors": 9}, {"total_errors": 30}])
def test_more_errors_than_the_limit_are_enough(state: S, counted: dict[str, int]) -> None:
    """A limit that was lowered under way counts."""
    assert SESSION.step(state, replace(session(), **counted), exited(ERROR)).state is S.STOPPED


# ---------------------------------------------------------------------------------------------------- staleness
@pytest.mark.parametrize(
    "name",
    [
        "AgentLaunched",
        "SessionStarted",
        "SessionExited",
        "SessionStable",
        "BoundaryReached",
        "GraceExceeded",
        "FatalError",
    ],
)
@pytest.mark.parametrize(
    ("incarnation", "concluded", "late"),
    [(3, 2, False), (2, 2, True), (2, 1, True), (1, 2, True), (3, 3, True), (0, 2, True), (4, 2, False)],
)
def test_stale(name: str, incarnation: int, concluded: int, late: bool) -> None:
    """An older or a concluded incarnation is stale; the one that is out, and one that is to come, never are."""
    event = replace(EVENTS[name], incarnation=incarnation)
    assert stale(session(concluded=concluded), event) is late


@pytest.mark.parametrize("name", [one for one in EVENTS if getattr(EVENTS[one], "incarnation", None) is None])
def test_never_stale(name: str) -> None:
    """An event that belongs to no incarnation never comes too late."""
    assert not any(stale(data, EVENTS[name]) for data in DATA.values())


@pytest.mark.parametrize("name", ["OperatorStop", "FatalError"])
def test_an_end_after_the_last_record_is_stale(name: str) -> None:
    """An OperatorStop after the last record is stale."""
    assert stale(replace(DATA[S.STOPPED], ended=True), EVENTS[name])


def test_a_request_after_the_last_record_is_refused() -> None:
    """A request after the last record is refused, not dropped as stale."""
    over = replace(DATA[S.STOPPED], ended=True)
    assert not stale(over, EVENTS["TurnRequested"])
    with pytest.raises(IllegalTransition):
        SESSION.step(S.STOPPED, over, EVENTS["TurnRequested"])


def test_late_exit_after_the_grace_is_stale() -> None:
    """GraceExceeded concludes the incarnation: its exit, whenever it comes at last, is dropped."""
    step = SESSION.step(S.INTERRUPTING, session(), GraceExceeded(incarnation=3))
    assert stale(step.data, exited(ERROR))
    again = SESSION.step(step.state, step.data, PromptReady(prompt="P"))
    assert stale(again.data, exited(ERROR))
    assert not stale(again.data, SessionExited(incarnation=4, verdict=ERROR))


# ----------------------------------------------------------------------------------------- nobody asked for anything
@pytest.mark.parametrize(
    ("state", "event"),
    [
        (S.INTERRUPTING, EVENTS["SessionExited"]),
        (S.INTERRUPTING, EVENTS["GraceExceeded"]),
        (S.COOLING_DOWN, EVENTS["BackoffElapsed"]),
    ],
    ids=["Interrupting+SessionExited", "Interrupting+GraceExceeded", "CoolingDown+BackoffElapsed"],
)
def test_rows_hold_without_a_request(state: S, event: Event) -> None:
    """The specification's rows do not need a request: without one the transition happens and no turn is opened."""
    step = SESSION.step(state, session(current=None, queue=()), event)
    assert step.state is S.BUILDING_PROMPT
    assert step.data.turn_seq == 4
    assert not any(isinstance(one, OpenTurn) for one in step.effects)


# ------------------------------------------------------------------------------------------------ any sequence at all
NEXT = {
    S.INITIALIZING: "WorktreeReady",
    S.BUILDING_PROMPT: "PromptReady",
    S.SPAWNING: "SessionStarted",
    S.RUNNING: "SessionExited",
    S.INTERRUPTING: "SessionExited",
    S.SESSION_COMPLETE: "WorktreeReady",
    S.COOLING_DOWN: "BackoffElapsed",
    S.STOPPED: "TurnReaped",
}
COMMON = ["next"] * 8 + ["failure"] * 2 + ["TurnReaped"]
WORK = [
    "TurnRequested",
    "BoundaryReached",
    "UrgentMessage",
    "MessageReceived",
    "AgentLaunched",
    "GraceExceeded",
    "SessionStable",
]
RARE = ["next"] * 15 + ["OperatorStop", "FatalError", "WorktreeReady", "PromptReady", "BackoffElapsed"]
KINDS = st.one_of(*(st.sampled_from(kinds) for kinds in (COMMON, COMMON, WORK, RARE)))
OPS = st.tuples(KINDS, st.integers(0, 3), st.sampled_from([OK, ERROR, TIMEOUT]))


class Run:
    """A session that is fed event by event, with an independent account of what the specification requires."""

    def __init__(self, limits: SessionLimits) -> None:
        self.born = SessionData(id="s", agent="a", limits=limits)
        self.state, self.data = S.INITIALIZING, self.born
        self.accepted: list[Event] = []
        self.row = self.total = self.seq = 0
        self.incarnations = self.numbers = 0
        self.asked: list[str] = []
        self.answered: list[str] = []
        self.messages: list[str] = []
        self.offered: list[str] = []
        self.delivered: list[str] = []
        self.stopped = False

    def event(self, kind: str, number: int, verdict: Verdict) -> Event:
        if kind == "failure":
            kind, verdict = "SessionExited", ERROR
        elif kind == "next":
            kind = NEXT[self.state]
            verdict = OK if self.state is S.RUNNING else verdict
        self.numbers += 1
        event = EVENTS[kind]
        if hasattr(event, "incarnation"):
            event = replace(event, incarnation=max(0, self.data.incarnation - (number == 3)))
        match event:
            case SessionExited():
                return replace(event, verdict=verdict)
            case TurnRequested():
                return replace(event, request_id=f"r{self.numbers}")
            case UrgentMessage():
                return replace(event, message_id=f"m{self.numbers}", point=list(DeliveryPoint)[number % 3])
            case MessageReceived():
                return replace(event, message_id=f"m{self.numbers}")
            case TurnReaped():
                return replace(event, turn_id=self.data.turn_id if number else "s:t0", completed=number > 1)
            case PromptReady():
                return replace(event, messages=None if number == 3 else number)
            case _:
                return event

    def take(self, event: Event) -> None:
        """Handle an event as an entity does: drop a stale one, refuse an illegal one, and otherwise step."""
        if stale(self.data, event):
            return
        before, known = self.state, self.data
        try:
            step = SESSION.step(before, known, event)
        except IllegalTransition:
            assert type(event).name() not in TAKEN[before].split()
            return
        self.state, self.data = step.state, step.data
        self.accepted.append(event)
        self.count(before, event)
        self.deliver(before, event)
        self.check(step.effects)

    def count(self, before: S, event: Event) -> None:
        match before, event:
            case ((S.SPAWNING | S.RUNNING), SessionExited(verdict=verdict)):
                if before is S.RUNNING and verdict.exit is Exit.SUCCESS:
                    self.row = 0
                else:
                    self.row, self.total = self.row + 1, self.total + 1
                    limits = self.born.limits
                    fatal = self.row >= limits.max_consecutive_errors or self.total >= limits.max_total_errors
                    assert self.state is (S.STOPPED if fatal else S.COOLING_DOWN)
            case S.SPAWNING, SessionStarted():
                self.row = 0 if self.born.limits.stable_after_s == 0 else self.row
            case S.RUNNING, SessionStable():
                self.row = 0
            case S.SESSION_COMPLETE, WorktreeReady():
                self.seq += 1
            case S.BUILDING_PROMPT, PromptReady():
                self.incarnations += 1
            case _, TurnRequested():
                self.asked.append(event.request_id)

    def deliver(self, before: S, event: Event) -> None:
        """Account for messages: those of a prompt are delivered when its turn has succeeded."""
        match before, event:
            case _, UrgentMessage() | MessageReceived():
                if event.message_id not in self.messages:
                    self.messages.append(event.message_id)
            case S.BUILDING_PROMPT, PromptReady(messages=messages):
                waiting = [one for one in self.messages if one not in self.delivered]
                self.offered = waiting if messages is None else waiting[:messages]
            case ((S.RUNNING | S.INTERRUPTING), SessionExited(verdict=verdict)) if verdict.exit is Exit.SUCCESS:
                self.delivered += self.offered
                self.offered = []

    def check(self, effects: tuple[Effect, ...]) -> None:
        data = self.data
        assert (data.consecutive_errors, data.total_errors) == (self.row, self.total)
        assert (data.session_seq, data.incarnation) == (1 + self.seq, self.incarnations)
        assert data.concluded in (data.incarnation, data.incarnation - 1)
        assert [one.id for one in data.inbox] == [one for one in self.messages if one not in self.delivered]
        self.answered += [one.request_id for one in effects if isinstance(one, ReplyToRequest)]
        launched = [one.incarnation for one in effects if isinstance(one, LaunchAgent)]
        assert launched == ([data.incarnation] if self.state is S.SPAWNING and launched else [])
        assert not (self.stopped and (launched or self.state is not S.STOPPED))
        self.stopped = self.state is S.STOPPED
        for one in effects:  # what a session tells itself must be heard
            if isinstance(one, SendEvent) and one.to == "s":
                self.take(one.event)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    ops=st.lists(OPS, min_size=20, max_size=60),
    row=st.integers(1, 5),
    total=st.integers(1, 9),
    stable_after_s=st.sampled_from([0.0, 5.0]),
)
def test_any_sequence_keeps_the_account(
    ops: list[tuple[str, int, Verdict]], row: int, total: int, stable_after_s: float
) -> None:
    """In any sequence of events the counters, numbers and messages are those of an independent account, a threshold
    stops before another launch, each request is answered once by the end, and a fold gives the live state."""
    limits = SessionLimits(max_consecutive_errors=row, max_total_errors=total, stable_after_s=stable_after_s)
    run = Run(limits)
    for kind, number, verdict in ops:
        run.take(run.event(kind, number, verdict))
    run.take(OperatorStop(reason="the end"))
    run.take(Ended(rung="cancel", took_s=0.1))
    assert run.state is S.STOPPED
    # What nobody asked for is answered too, under the name of the message that had a turn of its own.
    assert sorted(one for one in run.answered if one not in run.messages) == sorted(run.asked)
    folds = [SESSION.replay(S.INITIALIZING, run.born, run.accepted) for _ in range(2)]
    assert folds == [(run.state, run.data)] * 2
