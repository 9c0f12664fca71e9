"""Stepping: every lifecycle walks at random, side by side with the judge's own copy of it (``specified``).

What runs of sessions seldom meet is met here: late words, events that mean nothing, every guard from both sides. A walk
prefers what it has taken least. A copy works out the state, the data, the effects and how loud the record is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final

import msgspec

from actors.machine import Event, IllegalTransition
from supervisor.lifecycles.agent import AgentData
from supervisor.lifecycles.events import (
    AgentExited,
    AgentSpawned,
    BoundaryReached,
    SteerElapsed,
    TurnRequested,
    UrgentMessage,
    VerifyRequested,
)
from supervisor.lifecycles.job import JobData
from supervisor.lifecycles.session import SessionData, SessionLimits, backoff_ms
from supervisor.lifecycles.task import TaskData
from supervisor.lifecycles.task_run import ErrorCategory, Run, RunData
from supervisor.lifecycles.turn import TurnData
from supervisor.lifecycles.types import (
    AbortReason,
    DeliveryPoint,
    Exit,
    LifecycleEvent,
    ModelFailure,
    ModelProblem,
    ToolOutcome,
    TransitionReason,
    Verdict,
)
from supervisor.lifecycles.worker import WorkerData
from supervisor.lifecycles.workstream import WorkstreamData
from supervisor.policies.turn_outcome import severity_of
from supervisor.runtime.entity import Lifecycle
from supervisor.runtime.entity_types import (
    AGENT_KIND,
    JOB_KIND,
    RUN_KIND,
    SESSION_KIND,
    TASK_KIND,
    TURN_KIND,
    WORKER_KIND,
    WORKSTREAM_KIND,
)
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.specified import COPIES
from supervisor.simulation.specified.blank import BLANK
from supervisor.simulation.specified.copy import Copy, shown
from supervisor.simulation.specified.words import words_of

__all__ = ["STEPPING"]

STEPS: Final[Mapping[str, int]] = {
    "session": 24_000,
    "turn": 4_000,
    "run": 2_400,
    "task": 3_000,
    "job": 1_200,
    "worker": 1_500,
    "workstream": 1_200,
    "agent": 200,
}
"""How many events each of them hears."""
WALK: Final = 60
"""After so many, another one is born."""
ENDINGS: Final = frozenset({"OperatorStop", "FatalError", "cancelled", "user_cancelled", "agent_exited"})
SELDOM: Final = 0.1
"""How often what ends a walk is among what may come."""
NONSENSE: Final = 0.12
"""How often anything comes."""
MOVES: Final = 0.4
"""How often something comes that leads to another state."""
TRIES: Final = 4
"""So often an event is drawn again that would mean nothing."""


# ------------------------------------------------------------------------------------------------- what they begin as
def _session(dice: Random) -> SessionData:
    limits = SessionLimits(
        max_consecutive_errors=dice.randint(2, 7),
        max_total_errors=dice.randint(2, 9),
        backoff_cap_ms=dice.choice((9_000, 60_000)),
        stable_after_s=dice.choice((0.0, 0.0, 1.0)),
    )
    return SessionData(id="s", agent="a", limits=limits)


def _turn(dice: Random) -> TurnData:
    return TurnData(id="s:t1", session_id="s", due_s=dice.choice((None, None, 3.0, 1000.0)))


def _run(dice: Random) -> RunData:
    return RunData(
        max_attempts=dice.randint(1, 6),
        max_error_repeats=dice.randint(0, 3),
        probes_max=dice.randint(0, 3),
        probes=dice.choice((0, 0, 0, 4)),
        max_delay_s=dice.choice((5.0, 60.0)),
    )


def _job(dice: Random) -> JobData:
    retried = dice.choice((0, 0, 0, 2))  # the bound may be another one than that of its last supervisor
    return JobData(max_retries=dice.randint(0, 3), retry_count=retried, capabilities=_some(dice, "ab"))


BORN: Final[Mapping[str, tuple[Lifecycle, Callable[[Random], Any]]]] = {
    "session": (SESSION_KIND, _session),
    "turn": (TURN_KIND, _turn),
    "run": (RUN_KIND, _run),
    "task": (TASK_KIND, lambda dice: TaskData(max_retries=dice.randint(0, 2), needs_approval=dice.random() < 0.5)),
    "job": (JOB_KIND, lambda dice: _job(dice)),
    "worker": (WORKER_KIND, lambda dice: WorkerData(max_concurrent_tasks=dice.randint(1, 3))),
    "workstream": (WORKSTREAM_KIND, lambda dice: WorkstreamData(tasks=dice.choice((0, 1, 2, 1_000)))),
    "agent": (AGENT_KIND, lambda dice: AgentData(id="s:a1", session_id="s", adapter="acp")),
}


# ----------------------------------------------------------------------------------------------------- what they hear
def _some(dice: Random, words: Sequence[str]) -> tuple[str, ...]:
    return tuple(one for one in words if dice.random() < 0.5)


def _verdict(dice: Random) -> Verdict:
    if dice.random() < 0.5:
        return Verdict(exit=Exit.SUCCESS)
    model = ModelFailure(problem=dice.choice(list(ModelProblem)), final=dice.random() < 0.5)
    return Verdict(
        exit=dice.choice((Exit.ERROR, Exit.ERROR, Exit.TIMEOUT)),
        error=dice.choice(("", "it is Tuesday")),
        transition_reason=dice.choice((None, None, *TransitionReason, TransitionReason.ORPHAN_RECOVERED)),
        abort_reason=dice.choice((None, *AbortReason)),
        status=dice.choice((None, 1, -9)),
        model=dice.choice((None, model)),
    )


def _again(word: str) -> str:
    """The same word, as another one says it: not the same object."""
    return word.encode().decode()


def _near(dice: Random, copy: Copy) -> int:
    """This incarnation, seldom another one."""
    return int(getattr(copy, "incarnation", 0)) + dice.choice((0, 0, 0, 0, 0, 0, -1, 1))


def _many(dice: Random, copy: Copy) -> int:
    """So many tasks, or as many as there are."""
    return int(_again(str(dice.choice((0, 1, 2, getattr(copy, "tasks", 0))))))


def _its_turn(dice: Random, copy: Copy) -> str:
    return _again(dice.choice((getattr(copy, "turn_id", ""), getattr(copy, "turn_id", ""), "s:t99")))


def _a_call(dice: Random, copy: Copy) -> str:
    return _again(dice.choice((*getattr(copy, "open", ()), "c?")))


def _a_number(dice: Random, copy: Copy) -> int:
    return int(_again(str(dice.choice((*getattr(copy, "asking", ()), dice.randint(1, 3))))))


Draw = Callable[[Random, Copy], Any]
DRAWN: Final[Mapping[str, Draw]] = {
    "incarnation": _near,
    "verdict": lambda dice, copy: _verdict(dice),
    "how": lambda dice, copy: dice.choice((None, _verdict(dice))),
    "due_s": lambda dice, copy: dice.choice((None, 7.0, 900.0)),
    "turn_id": _its_turn,
    "request_id": lambda dice, copy: f"r{dice.getrandbits(40)}",
    "once": lambda dice, copy: dice.random() < 0.4,
    "messages": lambda dice, copy: dice.choice((None, 0, 1, 2, 9)),
    "message_id": lambda dice, copy: f"m{dice.randint(1, 6)}",
    "point": lambda dice, copy: dice.choice(list(DeliveryPoint)),
    "steer": lambda dice, copy: dice.random() < 0.5,
    "abort_id": lambda dice, copy: dice.choice((None, "x1")),
    "abort_reason": lambda dice, copy: dice.choice((None, *AbortReason)),
    "transition_reason": lambda dice, copy: dice.choice((None, *TransitionReason)),
    "now": lambda dice, copy: dice.random() < 0.5,
    "completed": lambda dice, copy: _many(dice, copy) if hasattr(copy, "tasks") else dice.random() < 0.6,
    "phase": lambda dice, copy: dice.choice(("launched", "ready")),
    "within": lambda dice, copy: dice.randint(0, 2),
    "call_id": _a_call,
    "outcome": lambda dice, copy: dice.choice(list(ToolOutcome)),
    "over": lambda dice, copy: dice.random() < 0.5,
    "stopped": lambda dice, copy: _some(dice, tuple(getattr(copy, "open", ()))),
    "number": _a_number,
    "asked": lambda dice, copy: dice.random() < 0.5,
    "within_s": lambda dice, copy: dice.choice((5.0, 300.0)),
    "always": lambda dice, copy: dice.random() < 0.5,
    "charged": lambda dice, copy: dice.random() < 0.8,
    "final": lambda dice, copy: dice.random() < 0.5,
    "category": lambda dice, copy: dice.choice((*ErrorCategory, ErrorCategory.UNKNOWN)),
    "jitter": lambda dice, copy: dice.uniform(0.5, 1.5),
    "signature": lambda dice, copy: dice.choice(("", "a", "a", "b")),
    "waiting_for": lambda dice, copy: _some(dice, "x"),
    "failed_rules": lambda dice, copy: _some(dice, "rs"),
    "exit_code": lambda dice, copy: dice.choice((0, 0, 1, -1)),
    "capabilities": lambda dice, copy: dice.choice((("*",), ("a",), ("a", "b"), ("b", "c"), ())),
    "max_concurrent_tasks": lambda dice, copy: dice.choice((None, 2, 3)),
    "missed": lambda dice, copy: dice.randint(1, 5),
    "silent_s": lambda dice, copy: dice.choice((10.0, 179.9, 180.0, 300.0)),
    "count": lambda dice, copy: _many(dice, copy),
    "failed": lambda dice, copy: dice.randint(-1, 2),
    "cancelled": lambda dice, copy: dice.randint(-1, 2),
    "token": lambda dice, copy: dice.randint(1, 9),
    "worker_id": lambda dice, copy: dice.choice(("worker:a", "worker:b")),
    "by": lambda dice, copy: dice.choice(("s1", "s2")),
    "subtasks": lambda dice, copy: _some(dice, ("t1", "t2", "t3")),
    "on": lambda dice, copy: _some(dice, ("o1", "o2")),
    "parts": lambda dice, copy: tuple({"id": one} for one in _some(dice, "pq")),
    "subtask": lambda dice, copy: dice.choice(("t1", "t2")),
    "error": lambda dice, copy: dice.choice(("it fell over", "a")),
    "reason": lambda dice, copy: dice.choice(("", "enough")),
    "pid": lambda dice, copy: dice.randint(2, 9),
    "resume_id": lambda dice, copy: dice.choice(("c1", "c2")),
    "status": lambda dice, copy: dice.choice((0, 3, -9)),
    "ended_by": lambda dice, copy: "kill",
    "state": lambda dice, copy: dice.choice(list(Run)),
    "attempt": lambda dice, copy: dice.randint(1, 4),
    "saved_as": lambda dice, copy: dice.choice(("", "f00")),
}
"""What an event says, by the names of its fields; whatever else it must say is a word."""
NUMBERED: Final = {"tool_started": "call_id", "PermissionRequested": "request_id"}
"""What is new with each of these, and has a number."""


@functools.cache
def _fields(kind: type[Event]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def _heard(kind: type[Event], dice: Random, copy: Copy, at: float) -> Event:
    """One event of that kind, with its words drawn."""
    said: dict[str, Any] = {"at": at}
    for field in _fields(kind):
        if field.name in DRAWN:
            said[field.name] = DRAWN[field.name](dice, copy)
        elif field.required:
            said[field.name] = 1.0 if field.type is float else 1 if field.type is int else "word"
    if (named := NUMBERED.get(kind.name())) is not None:
        said |= {named: f"n{at:g}", "number": int(at)}
    if kind is AgentSpawned and dice.random() < 0.8:
        launched = getattr(copy, "phase", "") == ""
        said |= {"phase": "launched" if launched else "ready", "incarnation": _near(dice, copy) + launched}
    if kind is AgentExited:  # whom we have ended has a reason that is not read off its status
        said["abort_reason"] = AbortReason.TIMEOUT
    if "sender" in said:
        said["sender"] = f"who sent {said['message_id']}"
    return kind(**said)


# ------------------------------------------------------------------------------------------------------------ the walk
class Walk:
    """One entity: what its table makes of it, and what the copy does."""

    def __init__(self, desk: Desk, name: str, dice: Random) -> None:
        self._desk, self.name, self._dice = desk, name, dice
        self.kind, born = BORN[name]
        self.table: Any = self.kind.machine
        self.state, self.data = dice.choice(self.table.initial), born(dice)
        self.copy = COPIES[name](self.state.value, msgspec.to_builtins(self.data))
        self.parted = False

    def choose(self, taken: dict[tuple[str, str], int], at: float) -> Event:
        """What comes next: mostly what means something, and of that what came least."""
        kinds: list[type[Event]] = list(self.table.events.values())
        if self._dice.random() < NONSENSE:
            return _heard(self._dice.choice([*filter(self._may, kinds)]), self._dice, self.copy, at)
        ends = self._dice.random() < SELDOM
        known = [one for one in kinds if self.state.value in self.copy.cells[one.name()]]
        known = [one for one in known if (ends or one.name() not in ENDINGS) and self._may(one)] or known or kinds
        if self._dice.random() < MOVES:
            known = [one for one in known if self._moves(one)] or known
        chosen = min(known, key=lambda one: (taken.get(self._cell(one), 0), self._dice.random()))
        taken[self._cell(chosen)] = taken.get(self._cell(chosen), 0) + 1
        for _ in range(TRIES):
            event = _heard(chosen, self._dice, self.copy, at)
            meta = msgspec.to_builtins(event)
            if self.copy.knows(event.name(), meta) and not self.copy.stale(event.name(), meta):
                break
        return event

    def _may(self, kind: type[Event]) -> bool:
        """An agent's word that it is done comes when all that it has asked for is answered (``Asking.withdraw``).
        Prompts are asked for one after the other, mostly: so nobody may wait."""
        if kind is TurnRequested:
            return getattr(self.copy, "current", None) is None or self._dice.random() < SELDOM
        return kind is not VerifyRequested or not getattr(self.copy, "asking", ())

    def _moves(self, kind: type[Event]) -> bool:
        return any(one.target is not one.source for one in self.table.cells.get((self.state, kind), ()))

    def _cell(self, kind: type[Event]) -> tuple[str, str]:
        return self.state.value, kind.name()

    def hear(self, event: Event) -> None:
        """Both hear it."""
        name, meta, copy = event.name(), msgspec.to_builtins(event), self.copy
        before, copy.now_s = f"{self.name}: {name} at {event.at:g} in {self.state.value}", event.at
        late = copy.stale(name, meta)
        self._same(f"{before} comes too late", bool(self.kind.stale(self.data, event)), bool(late))
        if late or self.parted:
            return
        try:
            step = self.table.step(self.state, self.data, event)
        except IllegalTransition:
            self._same(f"{before} is refused", copy.knows(name, meta), False)
            return
        self._same(f"{before} means something", copy.knows(name, meta), True)
        if self.parted:
            return
        was, self.state, self.data = self.data, step.state, step.data
        wanted = copy.take(name, meta)
        self._same(f"{before} leads to", self.state.value, copy.state)
        self._same(f"{before} wants", [shown(one) for one in step.effects], wanted)
        self._same(f"{before} makes", copy.differs(self.data), "")
        self._same(f"{before} is as loud as", str(severity_of(event, step.effects)), _loudness(event, meta, wanted))
        if isinstance(was, SessionData):
            self._same(f"{before} is cancelled for", _blamed(step.effects), _to_blame(was, event, wanted))

    def _same(self, what: str, given: Any, wanted: Any) -> None:
        if given != wanted and not self.parted:
            self._desk.same(what, given, wanted)
            self.parted = True


def _loudness(event: Event, meta: Mapping[str, Any], wanted: Sequence[tuple[Any, ...]]) -> Any:
    record = LifecycleEvent(
        seq=1,
        timestamp=0.0,
        monotonic_s=0.0,
        entity_type="",
        entity_id="",
        entity_seq=1,
        event=event.name(),
        metadata=dict(meta),
    )
    return words_of(record, wanted)[-1]


def _blamed(effects: Sequence[Any]) -> list[str]:
    return [one.reason for one in effects if type(one).__name__ == "CancelSession" and one.abort_reason]


def _to_blame(was: SessionData, event: Event, wanted: Sequence[tuple[Any, ...]]) -> list[str]:
    """For whom a turn is interrupted: who sent what came, what waited and came last, or what was not taken up."""
    cancels = [one for one in wanted if one[0] == "CancelSession" and one[2]]
    if not cancels:
        return []
    match event:
        case UrgentMessage() | SteerElapsed():
            return [f"urgent message from who sent {event.message_id}"]
        case BoundaryReached():
            last = [one for one in was.inbox[was.offered :] if one.urgent and one.point != "turn_end"][-1]
            return [f"urgent message from {last.sender}"]
    return [str(getattr(event, "reason", ""))]


async def walks(desk: Desk) -> None:
    """Whatever a lifecycle hears, and when: it is just where its copy is, and wants just that."""
    for name, steps in STEPS.items():
        dice = desk.chance.stream(name)
        taken: dict[tuple[str, str], int] = {}
        walk = Walk(desk, name, dice)
        for step in range(1, steps + 1):
            if (walk.copy.over and dice.random() < 0.7) or step % WALK == 0 or walk.parted:
                walk = Walk(desk, name, dice)
            walk.hear(walk.choose(taken, float(step)))


async def blanks(desk: Desk) -> None:
    """What nobody has said yet is what the specification begins with; and how long a session waits to try again."""
    made = {
        "session": SessionData(id="s", agent="a"),
        "turn": TurnData(id="t", session_id="s"),
        "run": RunData(),
        "task": TaskData(),
        "job": JobData(),
        "worker": WorkerData(),
        "workstream": WorkstreamData(tasks=1),
        "agent": AgentData(id="a", session_id="s", adapter="x"),
    }
    for name, data in made.items():
        told = msgspec.to_builtins(data)
        for field, wanted in BLANK[name].items():
            desk.same(f"{name}: {field}", told[field], wanted)
    for errors, wanted_ms in ((0, 2_000), (1, 2_000), (2, 4_000), (5, 32_000), (6, 60_000), (500, 60_000)):
        desk.same(f"after {errors} errors", backoff_ms(errors, SessionLimits()), wanted_ms)


STEPPING = (walks, blanks)
