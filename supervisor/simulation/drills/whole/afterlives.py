"""Afterlives: what the next supervisor makes of journals that are seldom met, and how records stand in order for it.

A turn whose session has ended without it, a clock that was set back, a host that lets only some of them go on, a disk
that was down for longer than an end waits: reckoned from docs/recovery.md, docs/journal.md and docs/design.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Final

import anyio
import msgspec

from supervisor.lifecycles.task import Task, TaskData
from supervisor.lifecycles.turn import Call, Turn, TurnData
from supervisor.lifecycles.types import AbortScope, LifecycleEvent
from supervisor.lifecycles.workstream import Workstream, WorkstreamData
from supervisor.plans import Settings
from supervisor.plans.settings import LimitsConfig, RecoveryConfig
from supervisor.ports import EntityRow, JournalUnavailable, Ready, Text, ToolOpened, TurnEnded
from supervisor.runtime.entity_types import TASK_KIND, TURN_KIND, WORKSTREAM_KIND
from supervisor.runtime.journal_writer import Cause
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.house import MOMENT_S, House
from supervisor.simulation.drills.whole.hosting import Crowd
from supervisor.simulation.keyed_random import Chance

__all__ = ["AFTERLIVES"]

DONE: Final = TurnEnded("end_turn")
OVER: Final = (Turn.COMPLETING, Turn.FAILED)


def _settings(how: str = "resume") -> Settings:
    limits = LimitsConfig(max_total_errors=50)
    return Settings(limits=limits, recovery=RecoveryConfig(sessions=how))  # type: ignore[arg-type]  # one of three words


async def _new(house: House, entity_id: str, last_seq: int) -> list[LifecycleEvent]:
    return [one for one in await house.log(entity_id) if one.seq > last_seq]


# ------------------------------------------------------------------------------------------------------ nobody's turns
async def alone(desk: Desk) -> None:
    """A turn whose session has its last record, and that has none: it is lost, where it had not ended, its calls have
    their one result, which nobody knows, and it is over, though not clean."""
    house = House(desk)
    house.judged = False
    states = [one for one in Turn if one is not Turn.REAPED]
    calls = tuple(Call(number=n, call_id=f"call-{n}", title="", tool_kind="") for n in (1, 2))
    async with house.open() as sup:
        for state in states:
            data = TurnData(id=f"gone:{state.name}", session_id="gone", open=calls if state is Turn.TOOL_USE else ())
            sup.tree.birth(TURN_KIND, data.id, parent_id=None, state=state, data=data, cause=Cause(actor="me"))
        await sup.ledger.flush()
        left, last_seq = house.left(), house.store.last_seq
        for one in [*sup.tree.entities]:
            sup.tree.bury(one)
    left.judged = False
    async with left.open(_settings()) as sup:
        await anyio.sleep(1.0)
        for state in states:
            new = await _new(left, f"gone:{state.name}", last_seq)
            moved = [one.event for one in new if one.outcome == "transition"]
            wanted = [] if state in OVER else ["task_failed"]
            wanted = (["task_claimed"] if state is Turn.IDLE else []) + wanted
            results = ["tool_completed"] * (2 if state is Turn.TOOL_USE else 0)
            desk.same(f"{state.name}: its end", moved, [*wanted, *results, "agent_reaped"])
            told = [
                (one.metadata["degraded"], bool(one.metadata["note"])) for one in new if one.event == "agent_reaped"
            ]
            desk.same(f"{state.name}: is not clean", told, [(True, True)])
            ends = [one for one in new if one.event == "tool_completed" and one.outcome == "transition"]
            shown = [(one.metadata["call_id"], one.metadata["outcome"], bool(one.reason)) for one in ends]
            desk.same(f"{state.name}: its calls", shown, [(one.call_id, "unknown", True) for one in calls if ends])
            lost = [one.transition_reason for one in new if one.event == "task_failed"]
            desk.same(f"{state.name}: is lost", lost, ["orphan_recovered"] * (state not in OVER))
            desk.same(f"{state.name}: by whom", {one.actor for one in new[:1]}, {"recovery"})
            desk.same(f"{state.name}: is gone", f"gone:{state.name}" in sup.tree.entities, False)


# ------------------------------------------------------------------------------------------------------ who may go on
async def chosen(desk: Desk) -> None:
    """A host lets some sessions go on: those, and all below them, and nobody else. Agents and prompts are numbered on
    as if nothing had been, and who is told twice knows it by the number of the record."""
    for number in range(3):
        await _choose(desk, desk.chance.below(number))


async def _choose(desk: Desk, chance: Chance) -> None:
    life = House(desk)
    parents: dict[str, str | None] = {}
    may_outlive: set[str] = set()
    async with life.open(_settings()) as sup, anyio.create_task_group() as group:
        crowd, asked = Crowd(group), dict[str, int]()
        for place in range(chance.integer(3, 6, "many")):
            above = chance.choice([None, *parents], "above", place)
            if above is None:
                session = await sup.start_session(f"root{place}", agent="puppet")
            else:
                free = chance.happens(0.3, "free", place)
                mode = "abandon" if free else "wait_completed"
                session = await sup.session(above).start_child(f"kid{place}", cancel_mode=mode)
                may_outlive |= {session.id} if free else set()
            parents[session.id] = above
            asked[session.id] = chance.integer(0, 3, "prompts", place)
            for _ in range(asked[session.id]):
                await crowd.ask(session, "a prompt of before")
                for puppet in life.puppets:
                    puppet.says(Text("message", "so"), DONE)
                await anyio.sleep(MOMENT_S)
                if chance.happens(0.3, "dies", place, _):
                    life.puppets[-1].exit(0)
                    await anyio.sleep(1.0)
        left, last_seq = life.left(), life.store.last_seq
        last = {one: _last_agent(left, one) for one in parents}
        for one in sup.sessions():
            await sup.abort(one.id, AbortScope.SESSION, now=True)
        group.cancel_scope.cancel()
    among = [one for one in parents if chance.happens(0.4, "among", one)]

    def choose(rows: Sequence[EntityRow]) -> Collection[str]:
        desk.same("who may be chosen", {row.id for row in rows if row.kind == "session"}, {*parents})
        return among

    def is_chosen(one: str | None) -> bool:
        return one is not None and (one in among or is_chosen(parents[one]))

    def stays(one: str) -> bool:
        above = parents[one]
        return is_chosen(one) and (above is None or one in may_outlive or stays(above))

    def heir(one: str) -> str | None:
        above = parents[one]
        return above if above is None or stays(above) else heir(above)

    left.answers = lambda puppet, text: [Text("message", "again"), DONE]
    async with left.open(_settings(), choose=choose) as sup:
        goes_on = [one for one in parents if stays(one)]
        desk.same(f"of {parents}, {among} chosen, go on", sorted(one.id for one in sup.sessions()), sorted(goes_on))
        for name in parents:
            new = [each.event for each in await _new(left, name, last_seq)]
            desk.same(f"{name}: is resumed", new.count("Resumed"), int(is_chosen(name)))
            if name in goes_on:
                desk.same(f"{name}: its parent", left.store.entities[name].parent_id, heir(name))
        for name in goes_on:
            result = await sup.session(name).run("a prompt of now")
            desk.same(f"{name}: its answer", (result.outcome, result.text), ("completed", "again"))
            requests = [each.metadata["request_id"] for each in await left.events(name, "TurnRequested")]
            desk.same(f"{name}: prompts", requests, [f"{name}:r{n}" for n in range(1, asked[name] + 2)])
            desk.same(f"{name}: its next agent", f"{name}:a{last[name] + 1}" in left.store.entities, True)
        used = await sup.start_session("root0", agent="puppet")
        desk.same("a name that was used", used.id, "root0-2")
        desk.same("names of runs", sup.new_run(), "2.1")
        for session in sup.sessions():
            await sup.abort(session.id, AbortScope.SESSION, now=True)


def _last_agent(house: House, session_id: str) -> int:
    """The number of its last agent, or of its last launch, which may have had one that went to an archive."""
    rows = house.store.entities
    numbers = [int(one.rpartition(":a")[2]) for one in rows if one.rpartition(":a")[0] == session_id]
    launches: int = msgspec.json.decode(rows[session_id].data)["incarnation"]
    return max([launches, *numbers])


async def answered(desk: Desk) -> None:
    """A session whose conversation cannot be loaded goes on where it was there for one task and has answered: what is
    left is to judge its work. Where nobody waits for that, or it has more to do, it is stopped."""
    for state, whose, stream, more, goes_on in (
        (Task.CLAIMED, "s", "w", False, True),
        (Task.IN_PROGRESS, "s", "w", False, True),
        (Task.DONE, "s", "w", False, True),
        (Task.ORPHANED, "s", "w", False, False),
        (Task.OPEN, "s", "w", False, False),
        (Task.IN_PROGRESS, "other", "w", False, False),
        (Task.IN_PROGRESS, "s", "", False, False),
        (Task.IN_PROGRESS, "s", "w", True, False),
    ):
        life = House(desk)
        life.judged = False
        life.ready = lambda puppet: [Ready(None)]
        async with life.open(_settings()) as sup, anyio.create_task_group() as group:
            session = await sup.start_session("s", agent="puppet")
            group.start_soon(partial(sup.outcome_of, "s", "work", Cause(actor="plan"), once=True))
            await anyio.sleep(MOMENT_S)
            life.puppets[-1].says(Text("message", "done"), DONE)
            await anyio.sleep(1.0)
            if more:
                await Crowd(group).ask(session, "more")
            cause = Cause(actor="me")
            flow = WorkstreamData(tasks=1)
            sup.tree.birth(WORKSTREAM_KIND, "w", parent_id=None, state=Workstream.EXECUTING, data=flow, cause=cause)
            data = TaskData(workstream=stream, name="t", claimed_by=whose)
            sup.tree.birth(TASK_KIND, "t", parent_id=None, state=state, data=data, cause=cause)
            await sup.ledger.flush()
            left, last_seq = life.left(), life.store.last_seq
            for one in ("t", "w"):
                sup.tree.bury(one)
            await sup.abort("s", AbortScope.SESSION, now=True)
            group.cancel_scope.cancel()
        left.judged = False
        what = f"{state}, claimed by {whose}, of {stream or 'no run'}, {'with' if more else 'without'} a prompt"
        async with left.open(_settings()) as sup:
            new = [one.event for one in await _new(left, "s", last_seq)]
            desk.same(f"{what}: goes on", ("Resumed" in new, "s" in sup.tree.works), (goes_on, goes_on))
            told = sup.inherited.answers.get("s")
            desk.same(f"{what}: its answer", told is not None and told.outcome, "completed")
            desk.same(f"{what}: nothing is asked again", len(left.puppets), 0)
            for session in sup.sessions():
                await sup.abort(session.id, AbortScope.SESSION, now=True)


async def set_back(desk: Desk) -> None:
    """The wall's clock was set back while nobody was there: the journal's own time goes on, for whoever decides by it:
    a delay is over when it is over, and no record is older than the one before."""
    for back_s in (0.0, 500.0, 90_000.0):
        life = House(desk)
        life.answers = lambda puppet, text: [TurnEnded("error", "no")]
        async with life.open(_settings()) as sup, anyio.create_task_group() as group:
            await Crowd(group).ask(await sup.start_session("s", agent="puppet"), "work")
            desk.same("it waits to try again", sup.session("s").state, "CoolingDown")
            left, last_seq = life.left(), life.store.last_seq
            await sup.abort("s", AbortScope.SESSION, now=True)
            group.cancel_scope.cancel()
        left.answers = lambda puppet, text: [DONE]
        left.wall_off_s = -back_s
        async with left.open(_settings()) as sup:
            desk.again()
            result = await sup.result_of("s")
            desk.same(f"{back_s:g} s back: its answer", getattr(result, "outcome", None), "completed")
            desk.same(f"{back_s:g} s back: when", desk.since() < 3.0, True)
            records = left.store.log.after(0, 10_000)
            times = [one.monotonic_s for one in records]
            desk.same(f"{back_s:g} s back: the journal's time", times, sorted(times))
            new = [one.timestamp for one in records if one.seq > last_seq]
            old = [one.timestamp for one in records if one.seq <= last_seq]
            desk.same(f"{back_s:g} s back: the wall's", max(old) - min(new) > back_s - 10.0, True)
            await sup.abort("s", AbortScope.SESSION, now=True)


# -------------------------------------------------------------------------------------------------- a disk that is down
async def outlasted(desk: Desk) -> None:
    """An end is over while the disk is down, for longer than last records are waited for: its last record waits for
    that disk, and still comes after all that is below it."""
    for down_s in (30.0, 75.0, 200.0):
        house = House(desk)
        house.stops = lambda puppet: ()
        async with house.open() as sup, anyio.create_task_group() as group:
            crowd, parent = Crowd(group), await sup.start_session("s", agent="puppet")
            child = await parent.start_child("kid")
            await crowd.ask(parent, "work")
            await crowd.ask(child, "work")
            for puppet in house.puppets:
                puppet.says(ToolOpened("call", "x"))
            await anyio.sleep(MOMENT_S)
            house.disk_fails = JournalUnavailable("full")
            desk.again()
            await crowd.wait("abort", lambda: sup.abort("s", AbortScope.SESSION, now=True))
            await anyio.sleep(down_s)
            lives = {one.id for one in house.store.entities.values() if not one.ended}
            desk.same("nothing is on record", lives >= {"s", "s/kid", "s:t1", "s/kid:t1"}, True)
            desk.same("its processes", [one.alive for one in house.puppets], [False, False])
            house.disk_fails = None
            await anyio.sleep(20.0)
            desk.same(f"down for {down_s:g} s: they have ended", sorted(sup.tree.works), [])
            ends = {one.entity_id: one for one in house.store.log.after(0, 10_000) if one.event == "Ended"}
            last = {name: house.store.logs[name].seqs[-1] for name in ("s:t1", "s:a1", "s/kid:t1", "s/kid:a1")}
            for name, seq in last.items():
                desk.same(f"{name} before its session", seq < ends[name.partition(":")[0]].seq, True)
            desk.same("the child before its parent", ends["s/kid"].seq < ends["s"].seq, True)
            took_s = [float(one.metadata["took_s"]) for one in ends.values()]
            desk.same("how long their ends took", max(took_s) < 10.0, True)
            receipt = crowd.told.get("abort")
            desk.same("its receipt says so", getattr(receipt, "outage", None), "full" if receipt else None)
            group.cancel_scope.cancel()


AFTERLIVES: Sequence[Any] = (alone, chosen, answered, set_back, outlasted)
