"""The turn's table, cell by cell, against specification 000.

The expectations are typed from the text of the specification and of the decisions that complete it; none is read from
the code. An event is first asked whether it comes too late: then it is dropped. What is left either has a rule or is
refused, and neither a dropped nor a refused event changes anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.machine import Effect, Event, IllegalTransition, Step
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
from supervisor.lifecycles.turn import TURN, Call, Permission, Turn, TurnData, call_of, stale
from supervisor.lifecycles.types import AbortReason, Exit, ToolOutcome, TransitionReason, Verdict

T = Turn
OK = Verdict(exit=Exit.SUCCESS)
BAD = Verdict(exit=Exit.ERROR, error="bad")
SLOW = Verdict(
    exit=Exit.TIMEOUT,
    error="the turn took longer than 300 s (limits.turn_timeout_s)",
    abort_reason=AbortReason.TIMEOUT,
)
ABORTED = Verdict(
    exit=Exit.ERROR,
    error="enough",
    transition_reason=TransitionReason.ABORTED,
    abort_reason=AbortReason.USER_INTERRUPT,
)
ONE = Call(number=1, call_id="c1", title="ls", tool_kind="execute")
WISH = Permission(
    number=1, request_id="q1", title="may I?", tool_kind="other", tool="", detail="", paths=(), options=(), asked=True
)
TWO = Call(number=2, call_id="c2", title="cat", tool_kind="read")

EVENTS: dict[str, Event] = {
    "task_claimed": TaskClaimed(request_id="r1"),
    "launched": AgentSpawned(incarnation=2, phase="launched"),
    "ready": AgentSpawned(incarnation=2, phase="ready"),
    "tool_started": ToolStarted(number=2, call_id="c2", title="cat", tool_kind="read"),
    "tool_completed": ToolCompleted(call_id="c1", outcome=ToolOutcome.COMPLETED),
    "compact_needed": CompactNeeded(),
    "compaction_completed": CompactionCompleted(),
    "compaction_failed": CompactionFailed(),
    "verify_requested": VerifyRequested(verdict=OK),
    "task_completed": TaskCompleted(),
    "task_failed": TaskFailed(verdict=BAD),
    "agent_reaped": AgentReaped(),
    "boundary": BoundaryAwaited(),
    "asked": PermissionRequested(number=1, request_id="q1", title="may I?", asked=True, within_s=60.0),
    "answered": PermissionAnswered(number=1, decision="allow", option="yes", kind="allow_once", by="bob"),
    "moves": ProgressSeen(left_s=20.0),
}


def asking(data: TurnData) -> TurnData:
    """Return the data with an open permission, without which an answer would be stale."""
    return replace(data, permissions=1, asking=(WISH,))


def extendable(data: TurnData) -> TurnData:
    """Return the data with a time limit that can be extended, without which progress changes nothing."""
    return replace(data, hard_cap_s=5400.0, due_s=20.0, most_s=5120.0)


def same(data: TurnData) -> TurnData:
    return data


def done(data: TurnData) -> TurnData:
    """Return the data of a turn whose agent is done, without which nothing can be verified."""
    return replace(data, verdict=OK)


HEARD = {"answered": asking, "moves": extendable, "task_completed": done}
"""Functions that change the data so that an event is not stale, or is not refused because of its data."""

NEWBORN = TurnData(id="s:t1", session_id="s")
READY = TurnData(id="s:t1", session_id="s", request_id="r1", incarnation=2, phase="ready")
DATA = {
    T.IDLE: NEWBORN,
    T.CLAIMING: replace(NEWBORN, request_id="r1"),
    T.SPAWNING: replace(READY, phase="launched"),
    T.RUNNING: READY,
    T.TOOL_USE: replace(READY, calls=1, open=(ONE,)),
    T.COMPACTING: READY,
    T.VERIFYING: replace(READY, verdict=OK),
    T.COMPLETING: replace(READY, verdict=OK, phase="settled"),
    T.FAILED: replace(READY, calls=1, open=(ONE,), verdict=BAD, phase="settled"),
    T.REAPED: replace(READY, verdict=BAD, phase="settled"),
}

# What each event means in each state: - refused, ~ too late, =: no other state; else the next one. As in EVENTS.
GRID = """
state      claim    launch   ready   tool     result  compact    room    unfit   verify    done       fail   reap   bd as an mv
IDLE       CLAIMING -        -       -        ~       -          -       -       -         -          -      -      -  -  -  -
CLAIMING   -        SPAWNING -       -        ~       -          -       -       -         -          FAILED -      -  -  -  -
SPAWNING   -        ~        RUNNING -        ~       -          -       -       -         -          FAILED -      -  -  -  -
RUNNING    -        ~        ~       TOOL_USE ~       COMPACTING -       -       VERIFYING =          FAILED -      =  =  =  =
TOOL_USE   -        ~        ~       =        RUNNING -          -       -       -         -          FAILED -      =  =  =  =
COMPACTING -        ~        ~       -        ~       -          RUNNING RUNNING RUNNING   =          FAILED -      =  =  =  =
VERIFYING  -        ~        ~       -        ~       RUNNING    -       -       -         COMPLETING FAILED -      =  -  -  ~
COMPLETING -        ~        ~       -        ~       -          -       -       ~         ~          ~      REAPED ~  -  -  ~
FAILED     -        ~        ~       -        =       -          -       -       ~         ~          ~      REAPED ~  -  =  ~
REAPED     -        ~        ~       -        ~       -          -       -       ~         ~          ~      -      ~  -  -  ~
"""  # noqa: E501 - a column for each event
CELLS = [
    (Turn[state], name, state if word == "=" else word)
    for state, *words in (line.split() for line in GRID.strip().splitlines()[1:])
    for name, word in zip(EVENTS, words, strict=True)
]


@pytest.mark.parametrize(("state", "name", "word"), CELLS, ids=[f"{state.value}+{name}" for state, name, _ in CELLS])
def test_cell(state: T, name: str, word: str) -> None:
    """In the given state the event is stale, is refused, or leads to exactly the listed state."""
    data, event = HEARD.get(name, same)(DATA[state]), EVENTS[name]
    before = data
    assert stale(data, event) is (word == "~")
    if word == "-":
        with pytest.raises(IllegalTransition) as caught:
            TURN.step(state, data, event)
        assert type(event) not in caught.value.allowed or isinstance(event, AgentSpawned)
    elif word != "~":
        assert TURN.step(state, data, event).state is Turn[word]
    assert data == before


def test_every_cell_is_tested() -> None:
    """Of the 150 cells (10 states x 16 events, agent_spawned twice) 83 are refused, 39 are stale, and 38 are rules."""
    assert {type(one) for one in EVENTS.values()} == set(TURN.events.values())
    words = [word for _, _, word in CELLS]
    late, refused = words.count("~"), words.count("-")
    assert (len(CELLS), refused, late, len(CELLS) - refused - late) == (160, 83, 39, 38)


# ---------------------------------------------------------------------------------------- what each rule does
class Case(NamedTuple):
    """Case of the table: in *state*, *event* leads to *target*, *changes* of the data, and *effects* in order."""

    name: str
    state: T
    event: Event
    target: T
    changes: dict[str, Any]
    effects: tuple[Effect, ...]
    data: TurnData


def case(
    name: str, state: T, event: Event, target: T, *effects: Effect, data: TurnData | None = None, **changes: Any
) -> Case:
    label = f"{state.value}+{type(event).name()}{f'-{name}' if name else ''}"
    return Case(label, state, event, target, changes, effects, data or DATA[state])


def exited(verdict: Verdict) -> SendEvent:
    return SendEvent(to="s", event=SessionExited(incarnation=2, verdict=verdict))


def reaped(completed: bool, error: str = "") -> tuple[Effect, ...]:
    how = Verdict(exit=Exit.SUCCESS if completed else Exit.ERROR, error=error)
    return (
        SendEvent(to="s", event=TurnReaped(turn_id="s:t1", completed=completed, error=error, how=how)),
        FinalizeEntity(),
    )


def cancel(call: Call, abort_id: str | None, reason: str) -> CancelTool:
    return CancelTool(number=call.number, call_id=call.call_id, abort_id=abort_id, reason=reason)


def abandoned(call: Call, abort_id: str | None, outcome: ToolOutcome, reason: str) -> tuple[Effect, ...]:
    """Return the effects that end an open call and send the turn the call's one result."""
    result = ToolCompleted(call_id=call.call_id, outcome=outcome, reason=reason, abort_id=abort_id, over=True)
    return (cancel(call, abort_id, reason), SendEvent(to="s:t1", event=result))


DEADLINE = StartTimer(name="turn", delay_s=300.0, event=TaskFailed(verdict=SLOW), lasting=True)
BOTH = replace(READY, calls=2, open=(ONE, TWO))
SEALED: dict[str, Any] = {"phase": "settled"}
ABORT = TaskFailed(verdict=ABORTED, abort_id="x1", stopped=("c1",))


ANSWERED = EVENTS["answered"]


def permission_cases() -> Iterator[Case]:
    """Yield the cases of permissions: answered once by the policy or a person, or withdrawn when the turn fails."""
    asked = EVENTS["asked"]
    for state in (T.RUNNING, T.TOOL_USE, T.COMPACTING):
        yield case("human", state, asked, state, AskPermission(number=1, within_s=60.0), permissions=1, asking=(WISH,))
        waiting = asking(DATA[state])
        yield case("", state, ANSWERED, state, TOLD, data=waiting, asking=())
    decided = replace(asked, asked=False, decision="deny", option="no", kind="reject_once", why="default: deny")
    ruled = PermissionAnswered(
        number=1, decision="deny", option="no", kind="reject_once", by="policy", why="default: deny"
    )
    own = SendEvent(to="s:t1", event=ruled)
    yield case("policy", T.RUNNING, decided, T.RUNNING, own, permissions=1, asking=(replace(WISH, asked=False),))
    failed = asking(DATA[T.FAILED])
    yield case("", T.FAILED, ANSWERED, T.FAILED, TOLD, data=failed, asking=())
    withdrawn = PermissionAnswered(number=1, decision="withdrawn", by="supervisor", why="its turn failed: bad")
    back = SendEvent(to="s:t1", event=withdrawn)
    for state in (T.RUNNING, T.COMPACTING):
        waiting = asking(READY)
        effects = (back, exited(BAD), CleanUp())
        yield case("asking", state, EVENTS["task_failed"], T.FAILED, *effects, data=waiting, verdict=BAD, **SEALED)
    waiting = asking(DATA[T.TOOL_USE])
    ended = abandoned(ONE, None, ToolOutcome.UNKNOWN, "its turn failed: bad")
    effects = (back, *ended, exited(BAD), CleanUp())
    yield case("asking", T.TOOL_USE, EVENTS["task_failed"], T.FAILED, *effects, data=waiting, verdict=BAD, **SEALED)


TOLD = AnswerPermission(number=1, request_id="q1", option="yes")


def boundary_cases() -> Iterator[Case]:
    """Yield the cases of the tool boundary: reported at once if no call is open, else with the last result."""
    awaited, reached = EVENTS["boundary"], SendEventNow(to="s", event=BoundaryReached(incarnation=2))
    yield case("", T.TOOL_USE, awaited, T.TOOL_USE, boundary_awaited=True)
    for state in (T.RUNNING, T.COMPACTING):
        yield case("", state, awaited, state, reached)
    yield case("", T.VERIFYING, awaited, T.VERIFYING)
    waiting, both = replace(DATA[T.TOOL_USE], boundary_awaited=True), replace(BOTH, boundary_awaited=True)
    changes: dict[str, Any] = {"open": (), "boundary_awaited": False}
    yield case("awaited", T.TOOL_USE, EVENTS["tool_completed"], T.RUNNING, reached, data=waiting, **changes)
    yield case("awaited, one of two", T.TOOL_USE, EVENTS["tool_completed"], T.TOOL_USE, data=both, open=(TWO,))
    aborted = ToolCompleted(call_id="c1", outcome="aborted", reason="enough", abort_id="x1")
    cancelled = cancel(ONE, "x1", "enough")
    yield case("awaited, aborted", T.TOOL_USE, aborted, T.RUNNING, cancelled, reached, data=waiting, **changes)


def time_cases() -> Iterator[Case]:
    """Yield the cases of the turn's time-out: whole from the start on, and only the rest for a turn that repeats a lost
    one."""
    at_s, words = 1000.0, f"{SLOW.error}, with the time of the turns before it"
    ready, spawning = replace(EVENTS["ready"], at=at_s), DATA[T.SPAWNING]
    yield case("later", T.SPAWNING, ready, T.RUNNING, DEADLINE, phase="ready", due_s=at_s + 300.0)
    late = TaskFailed(verdict=replace(SLOW, error=words))
    for name, left_s in (("some left", 40.0), ("nothing left", 0.0), ("long over", -50.0)):
        due_s, given_s = at_s + left_s, max(left_s, 0.0)
        timer = StartTimer(name="turn", delay_s=given_s, event=late, lasting=True)
        data = replace(spawning, due_s=due_s)
        yield case(name, T.SPAWNING, ready, T.RUNNING, timer, data=data, phase="ready")
    lost = Verdict(exit=Exit.ERROR, error="bad", transition_reason=TransitionReason.ORPHAN_RECOVERED)
    told = SessionExited(incarnation=2, verdict=lost, due_s=1040.0)
    running, change = replace(READY, due_s=1040.0), {"verdict": lost, **SEALED}
    gone = TaskFailed(verdict=lost)
    yield case("lost", T.RUNNING, gone, T.FAILED, SendEvent(to="s", event=told), CleanUp(), data=running, **change)
    # The next turn may continue the attempt of a turn that succeeded, or that the runtime aborted.
    kept = SendEvent(to="s", event=SessionExited(incarnation=2, verdict=OK, due_s=1040.0))
    yield case("its time", T.RUNNING, EVENTS["verify_requested"], T.VERIFYING, kept, Verify(), data=running, verdict=OK)
    own = replace(BAD, abort_reason=AbortReason.LOOP)
    kept = SendEvent(to="s", event=SessionExited(incarnation=2, verdict=own, due_s=1040.0))
    failed, change = TaskFailed(verdict=own), {"verdict": own, **SEALED}
    yield case("its time", T.RUNNING, failed, T.FAILED, kept, CleanUp(), data=running, **change)
    change = {"verdict": BAD, **SEALED}
    failed = EVENTS["task_failed"]
    yield case("by itself", T.RUNNING, failed, T.FAILED, exited(BAD), CleanUp(), data=running, **change)


def extension_cases() -> Iterator[Case]:
    """Yield the cases in which progress extends the time of a turn, by ten minutes at most, up to its cap."""
    ready, spawning = replace(EVENTS["ready"], at=1000.0), replace(DATA[T.SPAWNING], hard_cap_s=5400.0)
    capped = {"phase": "ready", "due_s": 1300.0, "most_s": 6400.0}
    yield case("with a cap", T.SPAWNING, ready, T.RUNNING, DEADLINE, data=spawning, **capped)
    inherited = replace(spawning, due_s=1040.0, most_s=2000.0)
    words = f"{SLOW.error}, with the time of the turns before it"
    left = StartTimer(name="turn", delay_s=40.0, event=TaskFailed(verdict=replace(SLOW, error=words)), lasting=True)
    yield case("with an old cap", T.SPAWNING, ready, T.RUNNING, left, data=inherited, phase="ready")
    words = f"{SLOW.error}, and what that was extended by while progress was seen"
    late = TaskFailed(verdict=replace(SLOW, error=words))
    for state in (T.RUNNING, T.TOOL_USE, T.COMPACTING):
        for name, at_s, more_s in (("far from its cap", 1280.0, 600.0), ("near its cap", 6000.0, 380.0)):
            timer = StartTimer(name="turn", delay_s=20.0 + more_s, event=late, lasting=True)
            data = replace(DATA[state], hard_cap_s=5400.0, due_s=at_s + 20.0, most_s=6400.0)
            moves = ProgressSeen(left_s=20.0, at=at_s)
            yield case(name, state, moves, state, timer, data=data, due_s=at_s + 20.0 + more_s)
    lost = Verdict(exit=Exit.ERROR, error="bad", transition_reason=TransitionReason.ORPHAN_RECOVERED)
    told = SendEvent(to="s", event=SessionExited(incarnation=2, verdict=lost, due_s=1040.0, most_s=6400.0))
    running = replace(READY, due_s=1040.0, most_s=6400.0)
    gone = TaskFailed(verdict=lost)
    change = {"verdict": lost, **SEALED}
    yield case("lost with its cap", T.RUNNING, gone, T.FAILED, told, CleanUp(), data=running, **change)


@pytest.mark.parametrize("most_s", [None, 1300.9, 1300.0, 900.0])
def test_time_at_its_cap_is_not_extended(most_s: float | None) -> None:
    """Progress is stale if the turn has no cap, or if its time already reaches the cap."""
    assert stale(replace(READY, due_s=1300.0, most_s=most_s), ProgressSeen(left_s=20.0, at=1280.0))


CASES = [
    case("", T.IDLE, EVENTS["task_claimed"], T.CLAIMING, request_id="r1"),
    case("", T.CLAIMING, EVENTS["launched"], T.SPAWNING, incarnation=2, phase="launched"),
    case("", T.SPAWNING, EVENTS["ready"], T.RUNNING, DEADLINE, phase="ready", due_s=300.0),
    *time_cases(),
    *extension_cases(),
    case("", T.RUNNING, EVENTS["tool_started"], T.TOOL_USE, calls=1, open=(TWO,)),
    case("", T.RUNNING, EVENTS["compact_needed"], T.COMPACTING),
    case("", T.RUNNING, EVENTS["verify_requested"], T.VERIFYING, exited(OK), Verify(), verdict=OK),
    case("parallel", T.TOOL_USE, EVENTS["tool_started"], T.TOOL_USE, calls=2, open=(ONE, TWO)),
    case("last", T.TOOL_USE, EVENTS["tool_completed"], T.RUNNING, open=()),
    case("first of two", T.TOOL_USE, EVENTS["tool_completed"], T.TOOL_USE, data=BOTH, open=(TWO,)),
    case(
        "second of two",
        T.TOOL_USE,
        ToolCompleted(call_id="c2", outcome=ToolOutcome.FAILED),
        T.TOOL_USE,
        data=BOTH,
        open=(ONE,),
    ),
    case(
        "aborted",
        T.TOOL_USE,
        ToolCompleted(call_id="c1", outcome=ToolOutcome.ABORTED, reason="enough", abort_id="x1"),
        T.RUNNING,
        cancel(ONE, "x1", "enough"),
        open=(),
    ),
    case(
        "aborted one of two",
        T.TOOL_USE,
        ToolCompleted(call_id="c2", outcome=ToolOutcome.ABORTED, reason="enough", abort_id="x1"),
        T.TOOL_USE,
        cancel(TWO, "x1", "enough"),
        data=BOTH,
        open=(ONE,),
    ),
    case(
        "aborted and over",
        T.TOOL_USE,
        ToolCompleted(call_id="c1", outcome=ToolOutcome.ABORTED, reason="enough", abort_id="x1", over=True),
        T.RUNNING,
        open=(),
    ),
    case("unknown", T.TOOL_USE, ToolCompleted(call_id="c1", outcome=ToolOutcome.UNKNOWN), T.RUNNING, open=()),
    case(
        "",
        T.COMPACTING,
        EVENTS["verify_requested"],
        T.RUNNING,
        SendEvent(to="s:t1", event=VerifyRequested(verdict=OK)),
    ),
    case("", T.COMPACTING, EVENTS["compaction_completed"], T.RUNNING),
    case("", T.COMPACTING, EVENTS["compaction_failed"], T.RUNNING),
    *(
        case(
            "verification restarts",
            T.COMPACTING,
            EVENTS[name],
            T.RUNNING,
            SendEvent(to="s:t1", event=VerifyRequested(verdict=OK)),
            data=replace(READY, verdict=OK),
        )
        for name in ("verify_requested", "compaction_completed", "compaction_failed")
    ),
    case("", T.VERIFYING, EVENTS["task_completed"], T.COMPLETING, CleanUp(), **SEALED),
    case("", T.VERIFYING, EVENTS["compact_needed"], T.RUNNING, SendEvent(to="s:t1", event=CompactNeeded())),
    *(
        case("compacts first", at, EVENTS["task_completed"], at, data=replace(READY, verdict=OK), is_verified=True)
        for at in (T.RUNNING, T.COMPACTING)
    ),
    case(
        "verified before",
        T.RUNNING,
        EVENTS["verify_requested"],
        T.VERIFYING,
        exited(OK),
        SendEvent(to="s:t1", event=TaskCompleted()),
        data=replace(READY, verdict=OK, is_verified=True),
    ),
    case("", T.COMPLETING, EVENTS["agent_reaped"], T.REAPED, *reaped(True)),
    case("degraded", T.COMPLETING, AgentReaped(degraded=True, note="slow"), T.REAPED, *reaped(True)),
    case("", T.FAILED, EVENTS["agent_reaped"], T.REAPED, *reaped(False, "bad")),
    # task_failed: the session hears of it where the agent was running, and has not heard yet
    case("", T.CLAIMING, EVENTS["task_failed"], T.FAILED, CleanUp(), verdict=BAD, **SEALED),
    case("", T.SPAWNING, EVENTS["task_failed"], T.FAILED, CleanUp(), verdict=BAD, **SEALED),
    case("", T.RUNNING, EVENTS["task_failed"], T.FAILED, exited(BAD), CleanUp(), verdict=BAD, **SEALED),
    case("", T.COMPACTING, EVENTS["task_failed"], T.FAILED, exited(BAD), CleanUp(), verdict=BAD, **SEALED),
    case("", T.VERIFYING, EVENTS["task_failed"], T.FAILED, CleanUp(), verdict=BAD, **SEALED),
    case(
        "",
        T.TOOL_USE,
        EVENTS["task_failed"],
        T.FAILED,
        *abandoned(ONE, None, ToolOutcome.UNKNOWN, "its turn failed: bad"),
        *abandoned(TWO, None, ToolOutcome.UNKNOWN, "its turn failed: bad"),
        exited(BAD),
        CleanUp(),
        data=BOTH,
        verdict=BAD,
        **SEALED,
    ),
    case(
        "stopped",
        T.TOOL_USE,
        TaskFailed(verdict=BAD, stopped=("c2",)),
        T.FAILED,
        *abandoned(ONE, None, ToolOutcome.UNKNOWN, "its turn failed: bad"),
        *abandoned(TWO, None, ToolOutcome.ABORTED, "its turn failed: bad"),
        exited(BAD),
        CleanUp(),
        data=BOTH,
        verdict=BAD,
        **SEALED,
    ),
    case("abandoned", T.FAILED, EVENTS["tool_completed"], T.FAILED, open=()),
    case(
        "abort",
        T.TOOL_USE,
        ABORT,
        T.FAILED,
        *abandoned(ONE, "x1", ToolOutcome.ABORTED, f"its turn failed: {ABORTED.error}"),
        exited(ABORTED),
        CleanUp(),
        verdict=ABORTED,
        abort_id="x1",
        **SEALED,
    ),
    case("abort", T.RUNNING, ABORT, T.FAILED, exited(ABORTED), CleanUp(), verdict=ABORTED, abort_id="x1", **SEALED),
    *boundary_cases(),
    *permission_cases(),
    case("deadline", T.RUNNING, DEADLINE.event, T.FAILED, exited(SLOW), CleanUp(), verdict=SLOW, **SEALED),
]


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_rule(one: Case) -> None:
    """In the given state and data the event leads to exactly the listed state, data and effects."""
    assert not stale(one.data, one.event)
    step = TURN.step(one.state, one.data, one.event)
    assert step.state is one.target
    assert step.data == replace(one.data, **one.changes)
    assert step.effects == one.effects


def test_every_rule_is_tested() -> None:
    """Each cell of the grid that is a rule has a case with its effects."""
    led = {(state, type(EVENTS[name])) for state, name, word in CELLS if word not in "-~"}
    assert {(one.state, type(one.event)) for one in CASES} == led
    assert {(one.source, one.on) for one in TURN.rules} == led


# ------------------------------------------------------------------------------------------------- what is late
@pytest.mark.parametrize("outcome", ToolOutcome)
def test_a_call_has_one_result(outcome: ToolOutcome) -> None:
    """A second result of the same tool call is stale, while another call is still open."""
    first = TURN.step(T.TOOL_USE, BOTH, ToolCompleted(call_id="c1", outcome=outcome))
    assert stale(first.data, ToolCompleted(call_id="c1", outcome=ToolOutcome.COMPLETED))
    assert not stale(first.data, ToolCompleted(call_id="c2", outcome=ToolOutcome.COMPLETED))
    assert (call_of(first.data, "c1"), call_of(first.data, "c2")) == (None, TWO)


@pytest.mark.parametrize("state", T)
def test_a_permission_has_one_answer(state: T) -> None:
    """A second answer to a permission is stale in every state of the turn."""
    assert not stale(asking(DATA[state]), ANSWERED)
    assert stale(TURN.step(T.RUNNING, asking(READY), ANSWERED).data, ANSWERED)
    assert stale(DATA[state], ANSWERED)


def test_results_after_the_failure_are_late() -> None:
    """A failed turn gives every open call one result; later results from the agent are stale."""
    failed = TURN.step(T.TOOL_USE, BOTH, EVENTS["task_failed"])
    for told in [one.event for one in failed.effects if isinstance(one, SendEvent) and one.to == "s:t1"]:
        failed = TURN.step(failed.state, failed.data, told)
    assert all(stale(failed.data, ToolCompleted(call_id=one, outcome=ToolOutcome.COMPLETED)) for one in ("c1", "c2"))


@pytest.mark.parametrize(
    ("data", "phase", "late"),
    [
        (NEWBORN, "launched", False),
        (DATA[T.SPAWNING], "launched", True),
        (DATA[T.SPAWNING], "ready", False),
        (READY, "launched", True),
        (READY, "ready", True),
        (DATA[T.FAILED], "ready", True),
    ],
)
def test_agent_spawned_fires_once_per_phase(data: TurnData, phase: str, late: bool) -> None:
    """AgentSpawned of one incarnation and phase counts once; a repetition is stale."""
    assert stale(data, AgentSpawned(incarnation=2, phase=phase)) is late


def test_another_incarnation_is_no_duplicate() -> None:
    """AgentSpawned of another incarnation is not stale, but refused by the table."""
    other = AgentSpawned(incarnation=3, phase="launched")
    assert not stale(READY, other)
    with pytest.raises(IllegalTransition):
        TURN.step(T.RUNNING, READY, other)


def test_a_failure_while_verifying_is_in_time() -> None:
    """A turn can still fail while its success is verified; after that a failure is stale."""
    claimed = TURN.step(T.RUNNING, READY, EVENTS["verify_requested"])
    assert not stale(claimed.data, EVENTS["task_failed"])
    sealed = TURN.step(claimed.state, claimed.data, EVENTS["task_completed"])
    assert stale(sealed.data, EVENTS["task_failed"])


def test_a_time_out_while_verifying_is_too_late() -> None:
    """The time of a turn is its agent's: when the agent is done, the time-out is stale."""
    claimed = TURN.step(T.RUNNING, READY, EVENTS["verify_requested"])
    assert stale(claimed.data, TaskFailed(verdict=SLOW))
    assert not stale(READY, TaskFailed(verdict=SLOW))


@pytest.mark.parametrize("state", [T.RUNNING, T.COMPACTING])
def test_a_turn_at_work_cannot_be_verified(state: T) -> None:
    """A turn whose agent has not reported the end of its work cannot be verified."""
    with pytest.raises(IllegalTransition):
        TURN.step(state, READY, TaskCompleted())


def test_a_turn_without_a_verdict_failed() -> None:
    """A turn that is reaped without a verdict is reported as failed, with a text that says so."""
    step = TURN.step(T.FAILED, replace(READY, phase="settled"), AgentReaped())
    assert step.effects == reaped(False, "it ended without a verdict")


def test_the_compaction_that_interrupts_a_verification() -> None:
    """compact_needed during a verification compacts first; the verification then restarts with the same verdict."""
    step = TURN.step(T.VERIFYING, DATA[T.VERIFYING], CompactNeeded())
    seen = [step.state]
    for event in (CompactionCompleted(), TaskCompleted()):
        step = answer_itself(step)
        seen.append(step.state)
        step = TURN.step(step.state, step.data, event)
        seen.append(step.state)
    assert seen == [T.RUNNING, T.COMPACTING, T.RUNNING, T.VERIFYING, T.COMPLETING]
    assert step.data.verdict == OK


def answer_itself(step: Step[T, TurnData]) -> Step[T, TurnData]:
    """Apply the event that the turn sent to itself, and return the step."""
    (told,) = [one.event for one in step.effects if isinstance(one, SendEvent) and one.to == "s:t1"]
    return TURN.step(step.state, step.data, told)


# --------------------------------------------------------------------------------------------- any sequence at all
NEXT = {
    T.IDLE: "task_claimed",
    T.CLAIMING: "launched",
    T.SPAWNING: "ready",
    T.RUNNING: "tool_started",
    T.TOOL_USE: "tool_completed",
    T.COMPACTING: "compaction_completed",
    T.VERIFYING: "task_completed",
    T.COMPLETING: "agent_reaped",
    T.FAILED: "agent_reaped",
    T.REAPED: "agent_reaped",
}
KINDS = st.one_of(
    st.just("next"),
    st.sampled_from(["next", "tool_started", "tool_completed", "compact_needed"]),
    st.sampled_from(["next"] * 8 + sorted(EVENTS)),
)
OPS = st.tuples(KINDS, st.integers(1, 4), st.sampled_from(["completed", "failed", "aborted", "unknown"]))


class Run:
    """Turn that is given one event after the other, with an independent count of its calls and reports."""

    def __init__(self) -> None:
        self.state, self.data = T.IDLE, NEWBORN
        self.accepted: list[Event] = []
        self.started: list[str] = []
        self.results: list[str] = []
        self.effects: list[Effect] = []

    def event(self, kind: str, number: int, outcome: str) -> Event:
        event = EVENTS[NEXT[self.state] if kind == "next" else kind]
        match event:
            case ToolStarted():
                name = len(self.started) + 1
                return replace(event, number=name, call_id=f"c{name}")
            case ToolCompleted():
                return replace(event, call_id=f"c{number}", outcome=outcome)
            case _:
                return event

    def take(self, event: Event) -> None:
        if stale(self.data, event):
            return
        try:
            step = TURN.step(self.state, self.data, event)
        except IllegalTransition:
            return
        if isinstance(event, ToolStarted):
            self.started.append(event.call_id)
        if isinstance(event, ToolCompleted):
            self.results.append(event.call_id)
        self.state, self.data = step.state, step.data
        self.accepted.append(event)
        self.effects += step.effects
        self.check()
        for one in step.effects:
            if isinstance(one, SendEvent) and one.to == "s:t1":
                self.take(one.event)

    def check(self) -> None:
        waiting = [one for one in self.started if one not in self.results]
        assert [one.call_id for one in self.data.open] == waiting
        assert (self.state is T.TOOL_USE) is bool(waiting) or self.state is T.FAILED
        assert self.data.calls == len(self.started)
        assert len(set(self.results)) == len(self.results)

    def told(self, kind: type[Event]) -> list[Any]:
        return [one.event for one in self.effects if isinstance(one, SendEvent) and isinstance(one.event, kind)]


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(st.lists(OPS, min_size=10, max_size=50))
def test_any_sequence_keeps_the_account(ops: list[tuple[str, int, str]]) -> None:
    """In any sequence of events TOOL_USE holds exactly while calls are open, each call has one result, the session
    learns of the end before the reaping, each once, and a fold gives the live state."""
    run = Run()
    for kind, number, outcome in ops:
        run.take(run.event(kind, number, outcome))
    ran = run.state not in (T.IDLE, T.CLAIMING, T.SPAWNING)
    for event in (EVENTS["task_claimed"], EVENTS["task_failed"], EVENTS["agent_reaped"], EVENTS["agent_reaped"]):
        run.take(event)
    assert run.state is T.REAPED
    assert sorted(run.results) == sorted(run.started)
    (last,) = run.told(TurnReaped)
    assert run.data.verdict is not None
    verdict = run.data.verdict
    assert last == TurnReaped(turn_id="s:t1", completed=verdict.exit is Exit.SUCCESS, error=verdict.error, how=verdict)
    assert [one for one in run.effects if isinstance(one, FinalizeEntity)] == [FinalizeEntity()]
    assert [one for one in run.effects if isinstance(one, CleanUp)] == [CleanUp()]
    reports = run.told(SessionExited)
    assert bool(reports) is (ran and DEADLINE in run.effects)
    told = [type(one.event) for one in run.effects if isinstance(one, SendEvent) and one.to == "s"]
    assert [one for one in told if one is not BoundaryReached] == [SessionExited] * len(reports) + [TurnReaped]
    asked = [one for one in run.accepted if isinstance(one, BoundaryAwaited)]
    assert told.count(BoundaryReached) <= len(asked)
    folds = [TURN.replay(T.IDLE, NEWBORN, run.accepted) for _ in range(2)]
    assert folds == [(run.state, run.data)] * 2


def test_a_time_out_says_that_a_person_was_waited_for() -> None:
    """The error of a turn that times out while a person is asked for a permission names the commands that answer."""
    data = asking(Run().data)
    late = TURN.step(T.RUNNING, data, TaskFailed(verdict=SLOW)).data.verdict
    assert late is not None
    assert late.error == f"{SLOW.error}; it waited for a person's answer (supervisor permissions, supervisor answer)"
