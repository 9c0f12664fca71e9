"""Living: one entity from its birth to its last record, on a table of its own, and what is told to whom of a tree.

The table has three states and every kind of word that an event can carry; what each record must say, which timer must
ring, and who hears of the end, is known beforehand.
"""

from __future__ import annotations

from contextlib import suppress
from enum import Enum
from types import SimpleNamespace
from typing import Any, Final

import anyio

from actors import Limits, MailboxFull, TaskFailed
from actors.machine import ANY, Effect, Event, IllegalTransition, Machine, rule
from supervisor.lifecycles.effects import Bury, StartTimer
from supervisor.lifecycles.events import BackoffElapsed, Ended, OperatorStop, TurnRequested, UrgentMessage
from supervisor.lifecycles.session import Session, SessionData
from supervisor.lifecycles.task import Failed
from supervisor.lifecycles.types import (
    AbortPolicy,
    AbortReason,
    Exit,
    Kind,
    LifecycleEvent,
    TransitionReason,
    Verdict,
)
from supervisor.runtime.entity import Entity, Lifecycle, Refused, weight
from supervisor.runtime.entity_registry import Tree
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
from supervisor.runtime.id_allocator import Names
from supervisor.runtime.journal_writer import Cause, Clock, Ledger, Owed
from supervisor.runtime.live_session import AgentProfile, NoSuchEntity, Work
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.whole.recording import Paper

__all__ = ["LIVING"]

WALL_S: Final = 1_700_000_000.0
TEXT_MAX: Final = 64 * 1024
TIMEOUT_S: Final = 5.0


class Mood(Enum):
    CALM = "Calm"
    BUSY = "Busy"
    OVER = "Over"


class Woken(Event, frozen=True, kw_only=True):
    """It has something to do."""

    reason: str = ""
    message: str = ""
    abort_id: str | None = None


class Judged(Event, frozen=True, kw_only=True):
    """Somebody has judged it."""

    spelled = "it_was_judged"
    verdict: Verdict
    transition_reason: str | None = None
    abort_reason: str | None = None


class Rang(Event, frozen=True, kw_only=True):
    """One of its timers."""

    name_: str


class Slept(Event, frozen=True, kw_only=True):
    """It has nothing to do."""


class Buried(Event, frozen=True, kw_only=True):
    """There is an end of it."""


class Broke(Event, frozen=True, kw_only=True):
    """A task of it failed."""

    reason: str


def _start(data: Any, event: Event) -> tuple[Any, tuple[Effect, ...]]:
    timers = (("state", 4.0, False), ("life", 9.0, True), ("never", 60.0, False))
    started = [
        StartTimer(name=name, delay_s=delay_s, event=Rang(name_=name), lasting=lasting)
        for name, delay_s, lasting in timers
    ]
    return {**data, "woken": data["woken"] + 1}, tuple(started if data["woken"] == 0 else started[:1])


def _bury(data: Any, event: Event) -> tuple[Any, tuple[Effect, ...]]:
    return data, (Bury(),)


TABLE: Machine[Mood, Any] = Machine(
    "mood",
    initial=[Mood.CALM],
    terminal=[Mood.OVER],
    rules=[
        rule(Woken, Mood.CALM, Mood.BUSY, do=[_start]),
        rule(Judged, [Mood.CALM, Mood.BUSY], None),
        rule(Rang, [Mood.CALM, Mood.BUSY], None),
        rule(Slept, Mood.BUSY, Mood.CALM),
        rule(Broke, [Mood.CALM, Mood.BUSY], Mood.OVER),
        rule(Buried, [Mood.CALM, Mood.BUSY], Mood.OVER, do=[_bury]),
    ],
)


def _late(data: Any, event: Event) -> bool:
    return isinstance(event, Woken) and event.message == "late"


class Log:
    """A ledger on a sound journal, and all that came of it."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.records: list[LifecycleEvent] = []
        self.entity: Entity | None = None
        self.ledger = Ledger(
            Paper(desk, commit_s=0.0),  # type: ignore[arg-type]
            Clock(SimpleNamespace(time=lambda: WALL_S + desk.since())),
            perform=self._perform,
            publish=self.records.append,
            failed=lambda error: None,
        )

    def _perform(self, owed: Owed) -> None:
        context = self.desk.system.context(owed.entity_id)
        if isinstance(owed.effect, StartTimer) and context is not None and self.entity is not None:
            self.entity.start_timer(context, owed.effect, owed.epoch, Cause(owed.seq))

    def last(self) -> dict[str, Any]:
        """What the newest record says."""
        one = self.records[-1]
        names = ("event", "outcome", "from_status", "to_status", "reason", "transition_reason", "abort_reason")
        return {name: getattr(one, name) for name in (*names, "abort_id", "severity", "cause_id", "actor")}


def _said(event: str, outcome: str, states: str, **other: Any) -> dict[str, Any]:
    source, _, target = states.partition(" ")
    quiet = {"reason": "", "transition_reason": None, "abort_reason": None, "abort_id": None, "severity": "info"}
    whose = {"cause_id": None, "actor": "supervisor"}
    return {"event": event, "outcome": outcome, "from_status": source, "to_status": target, **quiet, **whose, **other}


async def entities(desk: Desk) -> None:
    """Each event is one record, that says what the event says; late ones and wrong ones change nothing."""
    async with anyio.create_task_group() as group:
        log = Log(desk)
        group.start_soon(log.ledger.run)
        lifecycle = Lifecycle(Kind.TASK, TABLE, _late, lambda why: Broke(reason=why), ends_at_terminal=True)
        one = Entity(lifecycle, "e", "p", Mood.CALM, {"woken": 0}, log.ledger)
        log.entity = one
        ref = desk.system.spawn(one, "e", limits=Limits(size_of=weight))
        desk.again()
        ends: list[str] = []
        one.on_ended, one.on_buried = lambda: ends.append("ended"), lambda: ends.append("buried")
        await anyio.sleep(1.0)
        born = one.born(Cause(None, None, "ann"))
        shown = (born.event, born.outcome, born.from_status, born.to_status, born.metadata, born.entity_seq, born.actor)
        desk.same("its birth", shown, ("Born", "born", "", "Calm", {"woken": 0}, 1, "ann"))
        desk.same("since when", (one.born_seq, one.born_at, one.changed_at), (born.seq, born.timestamp, born.timestamp))
        note = one.note("Fact", Cause(1), {"a": 1}, reason="why", severity="warning")
        fact = (note.event, note.outcome, note.metadata, note.reason, note.severity, note.entity_seq, one.state)
        desk.same("a fact", fact, ("Fact", "fact", {"a": 1}, "why", "warning", 2, Mood.CALM))
        await anyio.sleep(0.5)
        await _words(desk, log, one, ref)
        await _timers(desk, log, one, ref)
        desk.same("who heard of an end", ends, [])
        one.move("q")
        desk.same("who it belonged to", (ends, one.parent_id), (["ended"], "q"))
        await ref.ask(Buried(), timeout_s=TIMEOUT_S, detach=True)
        desk.same("it has ended", (one.ended, one.state, ends), (True, Mood.OVER, ["ended"]))
        one.leave()
        one.leave()
        desk.same("who heard of its burial", ends, ["ended", "buried"])
        await _broken(desk, log)
        group.cancel_scope.cancel()


async def _words(desk: Desk, log: Log, one: Entity, ref: Any) -> None:
    """What its records say."""
    verdict = Verdict(
        exit=Exit.ERROR,
        error="bad",
        transition_reason=TransitionReason.RETRY,
        abort_reason=AbortReason.OOM,
    )
    good = Verdict(exit=Exit.SUCCESS)
    named = {"transition_reason": "retry", "abort_reason": "oom"}
    for event, wanted in (
        (Slept(), None),
        (Woken(message="late"), _said("Woken", "stale", " Calm")),
        (
            Woken(reason="r", message="m", abort_id="a1"),
            _said("Woken", "transition", "Calm Busy", reason="r", abort_id="a1"),
        ),
        (Slept(), _said("Slept", "transition", "Busy Calm")),
        (Woken(message="m"), _said("Woken", "transition", "Calm Busy", reason="m")),
        (Slept(), _said("Slept", "transition", "Busy Calm")),
        (
            Judged(verdict=verdict),
            _said("it_was_judged", "transition", "Calm Calm", reason="bad", severity="warning", **named),
        ),
        (
            Judged(verdict=verdict, transition_reason="aborted", abort_reason="timeout"),
            _said(
                "it_was_judged",
                "transition",
                "Calm Calm",
                reason="bad",
                severity="warning",
                transition_reason="aborted",
                abort_reason="timeout",
            ),
        ),
        (Judged(verdict=good), _said("it_was_judged", "transition", "Calm Calm")),
    ):
        before = (one.state, one.data, one.epoch, one.since_s, one.entity_seq, len(log.records))
        await anyio.sleep(0.5)
        if wanted is None:
            error = await desk.raises("a wrong event", ref.ask(event, timeout_s=TIMEOUT_S, detach=True), Refused)
            await anyio.sleep(0.1)
            words = str(error)
            wanted = _said("Slept", "refused", " Calm", reason=words, severity="warning")
            desk.same("why it is wrong", "Slept in Calm" in words, True)
            desk.same("nothing has changed", (one.state, one.data, one.epoch, one.since_s), before[:4])
        else:
            record = await ref.ask(event, timeout_s=TIMEOUT_S, detach=True, cause=Cause(3, None, "bob"))
            wanted = {**wanted, "cause_id": 3, "actor": "bob"}
            desk.same("the record of it", record, log.records[-1])
            moved = wanted["from_status"] not in ("", wanted["to_status"])
            desk.same("its state has begun", one.since_s == record.monotonic_s, moved)
            desk.same("its epoch", one.epoch - before[2], int(moved))
            desk.same("its name", one.state_name, one.state.value)
            if wanted["outcome"] == "transition":
                desk.same("when it changed", one.changed_at, record.timestamp)
        desk.same("what is recorded", log.last(), wanted)
        desk.same("one by one", (one.entity_seq - before[4], len(log.records) - before[5]), (1, 1))
        desk.same("its number", log.records[-1].entity_seq, one.entity_seq)
    desk.same("what it has counted", one.data, {"woken": 2})


async def _timers(desk: Desk, log: Log, one: Entity, ref: Any) -> None:
    """A timer of a state rings while that lasts; one of a life goes on, and stands still while it is held."""
    context = desk.system.context("e")
    assert context is not None
    one.data = {"woken": 0}
    one._deadline = None
    for name in ("state", "life", "never"):
        context.cancel_timer(name)

    def rung() -> list[str]:
        return [str(each.metadata["name_"]) for each in log.records if each.event == "Rang"]

    known = len(rung())
    await ref.ask(Woken(), timeout_s=TIMEOUT_S, detach=True)
    await anyio.sleep(2.0)
    await ref.ask(Slept(), timeout_s=TIMEOUT_S, detach=True)
    await anyio.sleep(3.0)
    desk.same("a timer of a state that is over", rung()[known:], [])
    one.hold_deadline(context)
    await anyio.sleep(20.0)
    desk.same("while it is held", rung()[known:], [])
    one.resume_deadline(context)
    await anyio.sleep(3.0)
    desk.same("it has a second left", rung()[known:], [])
    one.hold_deadline(context)
    await anyio.sleep(5.0)
    one.resume_deadline(context)
    await anyio.sleep(2.0)
    desk.same("when it is over", rung()[known:], ["life"])
    late = StartTimer(name="late", delay_s=1.0, event=Rang(name_="late"))
    one.start_timer(context, late, one.epoch - 1, Cause())
    one.start_timer(context, late, one.epoch + 1, Cause())
    await anyio.sleep(2.0)
    desk.same("a timer that came too late", rung()[known:], ["life"])
    await ref.ask(Woken(), timeout_s=TIMEOUT_S, detach=True)
    woken = log.records[-1].seq
    await anyio.sleep(5.0)
    desk.same("a timer of a state", (rung()[known:], log.records[-1].cause_id), (["life", "state"], woken))


async def _broken(desk: Desk, log: Log) -> None:
    """A task that fails is an event; what is none is nothing. Nothing ends but by a last record."""
    for ends_at_terminal in (True, False):
        lifecycle = Lifecycle(Kind.TASK, TABLE, _late, lambda why: Broke(reason=why), ends_at_terminal)
        name = f"b{ends_at_terminal}"
        one = Entity(lifecycle, name, None, Mood.CALM, {"woken": 0}, log.ledger)
        ref = desk.system.spawn(one, name)
        one.born(Cause())
        known = one.entity_seq
        ref.tell("words")
        ref.tell(3)
        await desk.system.idle()
        desk.same("what is no event", one.entity_seq, known)
        ref.tell(TaskFailed("task", ValueError("no")))
        await anyio.sleep(0.5)
        shown = (log.records[-1].event, log.records[-1].reason, one.state, one.ended)
        desk.same("a task that failed", shown, ("Broke", "task: ValueError('no')", Mood.OVER, ends_at_terminal))
        desk.system.stop(name)


async def weights(desk: Desk) -> None:
    """A message is as large as what somebody wrote into it; a session keeps the end of what its agent says."""
    for event, wanted in (
        (TurnRequested(request_id="r", prompt="12345"), 5),
        (UrgentMessage(message_id="m", sender="s", text="123"), 3),
        (BackoffElapsed(), 0),
        ("words", 0),
    ):
        desk.same(f"the size of {event}", weight(event), wanted)
    log = Log(desk)
    work = _work(Tree(desk.system, log.ledger, Names()), "w")
    for text in ("a" * 10, "b" * TEXT_MAX, "c"):
        work.say(text)
    desk.same("what is kept", (len(work.text), work.text[0], work.text[-1]), (TEXT_MAX, "b", "c"))
    tight = desk.system.spawn(
        SimpleNamespace(receive=lambda ctx, message: None), "tight", limits=Limits(9, 8, size_of=weight)
    )
    await desk.system.suspend("tight", timeout_s=1.0)
    for _ in range(3):
        tight.tell(BackoffElapsed())
    tight.tell(TurnRequested(request_id="r", prompt="12345"))
    try:
        tight.tell(UrgentMessage(message_id="m", sender="s", text="1234"))
        desk.same("a message that is too large", "taken", "refused")
    except MailboxFull:
        pass


def _work(tree: Tree, name: str) -> Work:
    return Work(
        tree,
        session_id=name,
        parent=None,
        profile=AgentProfile(name="a", adapter="drill"),
        policy=AbortPolicy(),
        started_by=None,
        transcript=SimpleNamespace(close=lambda: None),
    )


async def telling(desk: Desk) -> None:
    """Who is not there hears nothing, and who is ending hears only what still means something to him."""
    async with anyio.create_task_group() as group:
        log = Log(desk)
        group.start_soon(log.ledger.run)
        tree = Tree(desk.system, log.ledger, Names())
        late = TurnRequested(request_id="r", prompt="p")
        stop, ended = OperatorStop(reason="enough"), Ended(rung="request", took_s=0.0)
        desk.same("a word to nobody", tree.tell("nobody", late, cause=Cause()), False)
        await desk.raises("a post to nobody", tree.post("nobody", late, cause=Cause()), NoSuchEntity)
        with suppress(NoSuchEntity):
            desk.same("nobody", tree.entity("nobody"), "not found")
        desk.system.spawn(SimpleNamespace(receive=lambda ctx, message: None), "stranger")
        desk.same("a word to no entity", tree.tell("stranger", late, cause=Cause()), False)
        await desk.raises("a post to no entity", tree.post("stranger", late, cause=Cause()), NoSuchEntity)
        for flag in ("", "told", "ending"):
            name = f"s{flag}"
            work = _work(tree, name)
            tree.admit(work)
            data = SessionData(id=name, agent="a")
            tree.birth(SESSION_KIND, name, parent_id=None, state=Session.COOLING_DOWN, data=data, cause=Cause())
            if flag:
                setattr(work, flag, True)
            heard = [tree.hears(name, one) for one in (late, stop, ended)]
            desk.same(f"what one hears that is {flag}", heard, [not flag, True, True])
            desk.same(f"what one is told that is {flag}", tree.tell(name, late, cause=Cause()), not flag)
            await anyio.sleep(0.5)
            told = [one.event for one in log.records if one.entity_id == name]
            desk.same("what is on record", told, ["Born", *(["TurnRequested"] if not flag else [])])
            if not flag:
                record = await tree.post(name, late, cause=Cause(7, None, "ann"))
                desk.same("a post", (record.event, record.cause_id, record.actor), ("TurnRequested", 7, "ann"))
                desk.same("it is durable", record in log.records, True)
            tree.note(name, "Fact", Cause(), {"a": 1})
            tree.note("nobody", "Fact", Cause(), {})
            await anyio.sleep(0.5)
            desk.same("a fact", (log.records[-1].event, log.records[-1].entity_id), ("Fact", name))
            tree.bury(name)
            desk.same(
                "what is buried", (name in tree.entities, name in tree.works, work.ended.is_set()), (False, False, True)
            )
            await desk.system.join(name)
        group.cancel_scope.cancel()


async def kinds(desk: Desk) -> None:
    """What a bug in a task means to each kind, and which logs end with a final state."""
    told = {
        one.kind.value: (one.broken("bug").name(), one.ends_at_terminal, "bug" in str(one.broken("bug")))
        for one in (
            SESSION_KIND,
            TURN_KIND,
            AGENT_KIND,
            TASK_KIND,
            RUN_KIND,
            JOB_KIND,
            WORKSTREAM_KIND,
            WORKER_KIND,
        )
    }
    wanted = {
        "session": ("FatalError", False, True),
        "turn": ("task_failed", False, True),
        "agent": ("agent_exited", False, True),
        "task": (Failed.name(), True, True),
        "run": ("execution_failed", True, True),
        "job": ("worker_lost", True, True),
        "workstream": ("user_cancelled", True, True),
        "worker": ("shutdown_requested", True, True),
    }
    desk.same("what a bug does", told, wanted)
    desk.same("that a bug is charged to nobody", RUN_KIND.broken("bug").charged, False)  # type: ignore[attr-defined]
    desk.same("nothing comes too late for work", TASK_KIND.stale(None, EVENT), False)


async def tables(desk: Desk) -> None:
    """A line of a table: its sources, its target, and which rule of several wins; what no rule takes is named."""
    states = [(one.source, one.target) for one in rule(Slept, ANY, Mood.CALM)]
    desk.same("from anywhere", states, [(one, Mood.CALM) for one in Mood])
    with suppress(TypeError):
        desk.same("from anywhere to nowhere", rule(Slept, ANY, None), "refused")
    desk.same(
        "where it is", [(one.source, one.target) for one in rule(Slept, Mood.BUSY, None)], [(Mood.BUSY, Mood.BUSY)]
    )
    table: Machine[Mood, int] = Machine(
        "t",
        initial=[Mood.CALM],
        terminal=[Mood.OVER, Mood.BUSY],
        rules=[
            rule(Slept, Mood.CALM, None, when=lambda data, event: data > 3, do=[lambda data, event: (0, ())]),
            rule(Slept, Mood.CALM, Mood.BUSY, do=[_count, _count]),
            rule(Buried, [Mood.CALM, Mood.BUSY], Mood.OVER),
        ],
    )
    desk.same("what nothing leaves", (table.final, [*table.states]), ({Mood.OVER}, [*Mood]))
    desk.same("what is allowed", [table.allowed(one) for one in Mood], [(Slept, Buried), (Buried,), ()])
    desk.same("its events", {*table.events}, {"Slept", "Buried"})
    for data, wanted in ((4, (Mood.CALM, 0, 0)), (3, (Mood.BUSY, 5, 2))):
        step = table.step(Mood.CALM, data, Slept())
        desk.same(f"a step from {data}", (step.state, step.data, len(step.effects)), wanted)
        desk.same("by which rule", (step.rule.source, step.rule.on, step.rule.target), (Mood.CALM, Slept, wanted[0]))
    desk.same("all at once", table.replay(Mood.CALM, 9, [Slept(), Slept(), Buried()]), (Mood.OVER, 2))
    for state, kinds_ in ((Mood.BUSY, (Buried,)), (Mood.OVER, ())):
        try:
            desk.same("a wrong event", table.step(state, 0, Slept()), "refused")
        except IllegalTransition as error:
            desk.same("what would be right", (error.machine, error.state, error.allowed), ("t", state, kinds_))


def _count(data: int, event: Event) -> tuple[int, tuple[Effect, ...]]:
    return data + 1, (Bury(),)


EVENT: Final = BackoffElapsed()


LIVING = (entities, weights, telling, kinds, tables)
