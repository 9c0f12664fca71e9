"""Heirs: a supervisor is killed after a record, any of them, and the next one goes on as docs/recovery.md says.

One life is lived, and the journal as it was after each of its commits is kept. Of some of these, drawn, the next
supervisor takes over; what must become of each session, turn and agent is reckoned from that journal alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
import msgspec

from actors.machine import Event
from supervisor.embedding.runtime import Supervisor
from supervisor.journal.memory import MemoryStore
from supervisor.lifecycles.effects import decoded
from supervisor.lifecycles.session import SessionData
from supervisor.lifecycles.types import AbortPolicy, AbortScope, LifecycleEvent
from supervisor.plans import Settings
from supervisor.plans.settings import LimitsConfig, RecoveryConfig
from supervisor.ports import EntityRow, JournalUnavailable, Ready, Text, ToolClosed, ToolOpened, TurnEnded
from supervisor.runtime.journal_writer import Cause
from supervisor.runtime.live_session import AgentProfile
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.house import MOMENT_S, House
from supervisor.simulation.drills.whole.hosting import Crowd, obeys

__all__ = ["HEIRS"]

CUTS: Final = 20
"""Of how many instants of a life the next supervisor takes over, in one run."""
CALL: Final = "p/a:t1:c1"
"""The call that an agent is at."""
AT_WORK: Final = ("Running", "Interrupting")
OVER: Final = ("COMPLETING", "FAILED")
AGAIN: Final = frozenset(
    [
        "Answer",
        "BuildPrompt",
        "Bury",
        "CleanUp",
        "LogFatal",
        "OpenTurn",
        "PrepareWorktree",
        "StorePrompt",
        "Tell",
        "TellNow",
        "Verify",
    ]
)
"""Effects that are words, or have the same result each time."""
ON_THE_WAY: Final = frozenset({"OpenTurn", "PrepareWorktree", "BuildPrompt"})
"""Of these, what only who goes on begins again."""


class Left(NamedTuple):
    """A session as a journal has it, and what is around it."""

    row: EntityRow
    data: Mapping[str, Any]
    log: Sequence[LifecycleEvent]
    agent: EntityRow | None
    turns: Sequence[EntityRow]

    @property
    def resume_id(self) -> str | None:
        """The conversation that its next agent can load."""
        if self.agent is not None:
            told: str | None = _data(self.agent)["resume_id"]
            return told
        for one in reversed(self.log):
            if one.event == "SessionStarted" and one.outcome == "transition":
                return None
            if one.event == "Resumed":
                return str(one.metadata["resume_id"]) if one.metadata["resume_id"] is not None else None
        return None

    @property
    def is_done(self) -> bool:
        """Its agent had said that it was."""
        said = [_data(one)["verdict"] for one in self.turns if one.id == self.data["turn_id"]]
        return any(one is not None and one["exit"] == "Success" for one in said)

    @property
    def interrupted(self) -> bool:
        """It may have worked on its prompt, and not to the end."""
        if self.is_done:
            return False
        for one in reversed(self.log):
            if one.event == "SessionStarted" and one.outcome == "transition":
                break
            if one.event == "Resumed" and one.metadata["interrupted"]:
                return True
        return self.row.state in AT_WORK

    @property
    def ended_by(self) -> tuple[str, ...]:
        """Who may end it where nobody continues it. A child whose mode is not on record yet, which nobody had been told
        of, has the mode of all: its parent's end is its own."""
        above, placed = self.row.parent_id, any(one.event == "Placed" for one in self.log)
        return ("recovery",) if above is None or placed else ("recovery", above)

    @property
    def abort(self) -> LifecycleEvent | None:
        """One that is on record, and has not reached it."""
        for one in reversed(self.log):
            if one.event == "OperatorStop":
                return None
            if one.event == "AbortRecord" and one.metadata["scope"] == "session":
                return one
        return None

    def goes_on(self, how: str, known: bool, by_prompt: bool) -> bool:
        """By the table of recovery.sessions."""
        if how == "stop" or not known or self.row.state == "Stopped":
            return False
        if how == "restart" or self.agent is None or self.agent.state == "starting":
            return True
        return self.resume_id is not None or (by_prompt and (self.row.state not in AT_WORK or self.is_done))


def _data(row: EntityRow) -> Any:
    return msgspec.json.decode(row.data)


def left_in(store: MemoryStore) -> dict[str, Left]:
    """The sessions that live in it."""
    live = [row for row in store.entities.values() if not row.ended]
    found = {}
    for row in live:
        if row.kind == "session":
            below = [one for one in live if one.parent_id == row.id]
            agents = [one for one in below if one.kind == "agent"]
            turns = [one for one in below if one.kind == "turn"]
            log = store.logs[row.id].after(0, 10_000)
            found[row.id] = Left(row, _data(row), log, agents[0] if agents else None, turns)
    return found


# ------------------------------------------------------------------------------------------------------ a life
async def _life(desk: Desk, house: House, named: bool) -> None:
    """A session that fails once, is told something, works with calls, is asked again, and is closed by an abort; beside
    it a child, and one whose agent is a function."""
    house.ready = lambda puppet: [Ready("its-name" if named else None)]
    house.rooms.takes_s["prepare"] = 0.5
    agents = {"f": AgentProfile(name="f", adapter="inprocess", function=obeys, directory="/f")}
    async with house.open(_settings("resume"), agents) as sup, anyio.create_task_group() as group:
        crowd = Crowd(group)
        session = await sup.start_session("s", agent="puppet")
        other = await sup.start_session("o", agent="f")
        await crowd.ask(other, "sleep 4")
        await crowd.ask(session, "first", "1")
        await anyio.sleep(1.0)
        kid = await session.start_child("kid", cancel_mode="abandon")
        house.puppets[-1].says(ToolOpened("a", "x"), TurnEnded("error", "no"))
        await session.send("a word")
        await anyio.sleep(4.0)
        house.puppets[-1].says(ToolOpened("b", "x"), Text("message", "well"), ToolClosed("b", "completed"))
        await crowd.ask(session, "second", "2")
        house.puppets[-1].says(TurnEnded("end_turn"))
        await anyio.sleep(2.0)
        house.stops = lambda puppet: ()
        await session.send("urgent", urgent=True)
        await anyio.sleep(2.0)
        house.puppets[-1].says(TurnEnded("cancelled"))
        await anyio.sleep(4.0)
        await crowd.ask(kid, "for a child")
        await crowd.wait("abort", lambda: sup.abort("s", AbortScope.SESSION, reason="enough"))
        await anyio.sleep(3.0)
        house.puppets[-2].says(TurnEnded("cancelled"))
        await anyio.sleep(1.0)
        for one in sup.sessions():
            await sup.abort(one.id, AbortScope.SESSION, now=True)
        group.cancel_scope.cancel()


def _settings(how: str) -> Settings:
    limits = LimitsConfig(max_total_errors=50, turn_timeout_s=86_400.0)
    return Settings(limits=limits, recovery=RecoveryConfig(sessions=how))  # type: ignore[arg-type]  # one of three words


async def _successions(desk: Desk, named: bool) -> None:
    life = House(desk)
    life.cuts = []
    await _life(desk, life, named)
    for place in range(CUTS):
        chance = desk.chance.below(place)
        left = House(desk, chance.choice(life.cuts, "cut"))
        how = chance.choice(("resume", "resume", "restart", "stop"), "how")
        known, late_s = chance.happens(0.8, "known"), chance.choice((0.0, 0.7, 5.0), "late")
        await _take_over(desk, left.left(), how, known, late_s)


async def loaded(desk: Desk) -> None:
    """After some of the commits of a life whose conversations can be loaded, by each of the three words."""
    await _successions(desk, named=True)


async def begun_anew(desk: Desk) -> None:
    """The same of one whose conversations cannot be."""
    await _successions(desk, named=False)


async def _take_over(desk: Desk, house: House, how: str, known: bool, late_s: float) -> None:
    found, last_seq = left_in(house.store), house.store.last_seq
    owed = _owed(house.store)
    house.answers = lambda puppet, text: [Text("message", "again"), TurnEnded("end_turn")]
    agents = {"f": AgentProfile(name="f", adapter="inprocess", function=obeys, directory="/f")} if known else {}
    await anyio.sleep(late_s)
    now_s = anyio.current_time()
    async with house.open(_settings(how), agents) as sup, anyio.create_task_group() as group:
        await anyio.sleep(MOMENT_S)
        for one in found.values():
            profile = "puppet" if one.data["agent"] == "puppet" else "f"
            goes_on = one.goes_on(how, profile == "puppet" or known, profile == "f")
            await _check(desk, house, sup, one, goes_on, last_seq, owed)
        desk.same("how long that took", anyio.current_time() - now_s < 60.0, True)
        crowd = Crowd(group)
        for one in found.values():
            await crowd.wait(one.row.id, sup.session(one.row.id).result)
        await anyio.sleep(15.0)
        for one in found.values():
            await _check_answers(desk, house, crowd, one, last_seq)
        for session in sup.sessions():
            await sup.abort(session.id, AbortScope.SESSION, now=True)
        group.cancel_scope.cancel()
    new = house.store.log.after(last_seq, 10_000)
    denied = [(one.entity_id, one.event) for one in new if one.outcome == "refused"]
    late = [one.entity_id for one in new if (one.event, one.outcome) == ("verify_requested", "stale")]
    desk.same(f"what nobody could hear after {last_seq}", (denied, late), ([], []))


def _owed(store: MemoryStore) -> list[tuple[str, str, str]]:
    """Whose it is, its id, and what: all that is owed."""
    found = []
    for effect_id, entity_id, payload in store.owed.values():
        found.append((entity_id, effect_id, type(decoded(payload, lambda name, fields: Event())).__name__))
    return found


async def _check(
    desk: Desk, house: House, sup: Supervisor, one: Left, goes_on: bool, last_seq: int, owed: Sequence[Any]
) -> None:
    """Right after it has been taken over."""
    session_id, what = one.row.id, f"{one.row.id}, left {one.row.state} after {last_seq}"
    new = [record for record in await house.log(session_id) if record.seq > last_seq]
    resumed = [record for record in new if record.event == "Resumed"]
    desk.same(f"{what}: goes on", len(resumed), int(goes_on))
    if goes_on:
        told = resumed[0].metadata
        wanted = (one.row.state, one.resume_id, one.interrupted, "recovery", None)
        given = (told["state"], told["resume_id"], told["interrupted"], resumed[0].actor, resumed[0].cause_id)
        desk.same(f"{what}: is said to", given, wanted)
        mine = [(effect_id, name) for entity_id, effect_id, name in owed if entity_id.partition(":")[0] == session_id]
        told_of = {*told["again"], *told["unknown"]}
        named = {f"{effect_id} {name}" for effect_id, name in mine if name != "StartTimer"}
        desk.same(f"{what}: all that is owed", told_of, named)
        cannot = {f"{effect_id} {name}" for effect_id, name in mine if name not in AGAIN and name != "StartTimer"}
        desk.same(f"{what}: what cannot be repeated", cannot <= {*told["unknown"]}, True)
        begun = AGAIN - {"Tell", "TellNow", "Bury"}  # where there is somebody to hear it, or to bury
        tells = {f"{effect_id} {name}" for effect_id, name in mine if name in begun}
        opened = {
            entry for entry in tells if entry.endswith("OpenTurn") and one.data["turn_id"] in {t.id for t in one.turns}
        }
        desk.same(f"{what}: what happens again", sorted(tells - opened - {*told["again"]}), [])
        desk.same(f"{what}: is first", new[0].event, "Resumed")
        if one.abort is None:
            _check_root(desk, house, one, last_seq, resumed[0].seq, what)
    elif one.row.state != "Stopped":
        stops = [record for record in new if record.event in ("FatalError", "OperatorStop")]
        desk.same(f"{what}: is stopped", [record.outcome for record in stops][:1], ["transition"])
        desk.same(f"{what}: by whom", stops[0].actor in one.ended_by, True)
        desk.same(f"{what}: has ended", session_id in sup.tree.works, False)
        if one.abort is None:
            _check_root(desk, house, one, last_seq, stops[0].seq, what, None, stops[0].cause_id)
    else:
        ends = [record for record in new if record.event == "Ended"]
        desk.same(f"{what}: its end goes on", [record.outcome for record in ends], ["transition"])
        entered = next(record for record in reversed(one.log) if record.to_status == "Stopped" != record.from_status)
        desk.same(f"{what}: what it follows from", ends[0].cause_id, entered.seq)
        _check_root(desk, house, one, last_seq, entered.seq, what, None)
        past_s = ends[0].monotonic_s - entered.monotonic_s
        desk.same(f"{what}: as old as it is", abs(float(ends[0].metadata["took_s"]) - past_s) < 1.0, True)
    if one.agent is not None:
        news = [record for record in await house.log(one.agent.id) if record.seq > last_seq]
        ended = [(record.event, record.actor, record.metadata["ended_by"]) for record in news[:1]]
        desk.same(f"{what}: its agent", ended, [("agent_exited", "recovery", "kill")])
    for turn in one.turns:
        await _check_turn(desk, house, one, turn, goes_on, last_seq)


def _check_root(
    desk: Desk, house: House, one: Left, last_seq: int, root_seq: int, what: str, *known: int | None
) -> None:
    """What is said for it, and for its turn and its agent, follows from the record that says that it goes on, or from
    what has stopped it; what is said before that (*known*: ``None``) from nothing."""
    mine = [one.row.id, *(turn.id for turn in one.turns), *([one.agent.id] if one.agent is not None else [])]
    said = [each for each in house.store.log.after(last_seq, 10_000) if each.entity_id in mine]
    said = [each for each in said if each.event != "Adopted"]  # that follows from the end of its parent
    aborts = {each.seq for each in house.store.log.after(0, last_seq) if each.event == "AbortRecord"}
    causes = {each.cause_id for each in said if each.actor == "recovery" and each.seq != root_seq} - aborts
    desk.same(f"{what}: the root of all that", causes - {root_seq, *known}, set())


async def _check_turn(desk: Desk, house: House, one: Left, turn: EntityRow, goes_on: bool, last_seq: int) -> None:
    """Lost with its supervisor, or judged and cleaned up after."""
    new = [record for record in await house.log(turn.id) if record.seq > last_seq]
    failed = [
        record.transition_reason for record in new if record.event == "task_failed" and record.outcome == "transition"
    ]
    what = f"{turn.id}, left {turn.state} with its session {one.row.state} after {last_seq}"
    if turn.state in OVER or (turn.state == "VERIFYING" and goes_on):
        desk.same(f"{what}: is not lost", failed, [])
    elif goes_on and one.row.state in AT_WORK and turn.state != "VERIFYING":
        desk.same(f"{what}: is lost", failed, ["orphan_recovered"])
    unknown = [record.metadata for record in new if record.event == "tool_completed"]
    still = [call["call_id"] for call in _data(turn)["open"]]
    desk.same(
        f"{what}: its calls", [(told["call_id"], told["outcome"]) for told in unknown], [(c, "unknown") for c in still]
    )


async def _check_answers(desk: Desk, house: House, crowd: Crowd, one: Left, last_seq: int) -> None:
    """Whoever goes on does what it was asked, in order, and its errors are nobody's."""
    session_id, what = one.row.id, f"{one.row.id}, left {one.row.state} after {last_seq}"
    log = await house.log(session_id)
    if not any(record.event == "Resumed" and record.seq > last_seq for record in log):
        return
    if (abort := one.abort) is not None:
        stops = [record for record in log if record.event == "OperatorStop" and record.seq > last_seq]
        told_to = [(record.actor, record.abort_id, record.cause_id) for record in stops[:1]]
        desk.same(f"{what}: an abort reaches it", told_to, [("recovery", abort.abort_id, abort.seq)])
        return
    asked = [each["id"] for each in (one.data["current"], *one.data["queue"]) if each is not None]
    reaped = [record for record in log if record.event == "TurnReaped" and record.seq > last_seq]
    completed = [record for record in reaped if record.metadata["completed"]]
    result = crowd.told.get(session_id)
    desk.same(f"{what}: answers", len(completed) >= len(asked), True)
    if asked:
        desk.same(f"{what}: its last answer", getattr(result, "outcome", None), "completed")
    errors = msgspec.json.decode(house.store.entities[session_id].data)["total_errors"]
    turn_log = await house.log(one.data["turn_id"]) if one.row.state == "Running" else []
    own = any(r.event == "task_failed" and r.outcome == "transition" and r.seq <= last_seq for r in turn_log)
    desk.same(f"{what}: errors", errors in (one.data["total_errors"], one.data["total_errors"] + own), True)
    known = {message["id"] for message in one.data["inbox"]}
    after = msgspec.json.decode(house.store.entities[session_id].data)["inbox"]
    if asked:
        desk.same(f"{what}: messages that wait", known & {message["id"] for message in after}, set())
    cooled = [r for r in log if r.event == "BackoffElapsed" and r.outcome == "transition" and r.seq > last_seq][:1]
    if one.row.state == "CoolingDown" and cooled:
        entered = next(r for r in reversed(one.log) if r.to_status == "CoolingDown" != r.from_status)
        taken = next(r for r in log if r.event == "Resumed" and r.seq > last_seq)
        due_s = max(entered.monotonic_s + 2.0, taken.monotonic_s)
        desk.at(f"{what}: its backoff", due_s, 2, cooled[0].monotonic_s)


async def siblings(desk: Desk) -> None:
    """An abort that is on record, and has reached nobody: the next supervisor ends just those whom it is for."""
    for target, scope, gone, why in (
        ("p/a", AbortScope.SIBLING, ("p/b", "p/c"), "sibling_aborted"),
        ("p/a", AbortScope.SESSION, ("p/a",), "aborted"),
        (CALL, AbortScope.SIBLING, ("p/b", "p/c"), "sibling_aborted"),
        (CALL, AbortScope.SESSION, ("p/a",), "aborted"),
    ):
        store = await _aborted(desk, scope, target=target)
        if store is None:
            desk.same("an abort on record", None, "there")
            continue
        last = store.log.after(store.last_seq - 1, 1)[0]
        house = House(desk, store).left()
        house.answers = lambda puppet, text: [TurnEnded("end_turn")]
        async with house.open(_settings("restart")) as sup:
            lives = sorted(one.id for one in sup.sessions())
            desk.same(f"who goes on after {scope} of {target}", lives, sorted({"p", "p/a", "p/b", "p/c"} - {*gone}))
            for name in gone:
                stops = [one for one in await house.events(name, "OperatorStop") if one.seq > last.seq]
                told = [(one.actor, one.abort_id, one.cause_id, one.transition_reason, one.reason) for one in stops]
                desk.same(f"the end of {name}", told, [("recovery", last.abort_id, last.seq, why, "enough")])
            for name in reversed(lives):
                await sup.abort(name, AbortScope.SESSION, now=True)


async def above(desk: Desk) -> None:
    """The same, and nobody goes on: who is aborted ends by that, as whose child he was when it was asked for."""
    store = await _aborted(desk, AbortScope.SIBLING, mode="abandon")
    if store is None:
        desk.same("an abort on record", None, "there")
        return
    house, last_seq = House(desk, store).left(), store.last_seq
    async with house.open(_settings("stop")) as sup:
        desk.same("who goes on", sup.sessions(), [])
        for name in ("p/b", "p/c"):
            new = [one.event for one in await house.log(name) if one.seq > last_seq]
            desk.same(f"what {name} hears first", new[:1], ["OperatorStop"])


async def across(desk: Desk) -> None:
    """An abort that is on record, with the edges that it crosses, and has reached nobody: the next supervisor ends whom
    it crossed to as well."""
    raises, spreads = AbortPolicy(sibling_to_session=True), AbortPolicy(tool_to_sibling=True)
    both = AbortPolicy(sibling_to_session=True, tool_to_sibling=True)
    for scope, policy, lives in (
        (AbortScope.SIBLING, raises, ()),
        (AbortScope.TOOL, raises, ("p", "p/a", "p/b", "p/c")),
        (AbortScope.TOOL, spreads, ("p", "p/a")),
        (AbortScope.TOOL, both, ()),
    ):
        store = await _aborted(desk, scope, policy=policy, target=CALL if scope is AbortScope.TOOL else "p/a")
        if store is None:
            desk.same(f"an abort across {policy} on record", None, "there")
            continue
        asked = {one.metadata["policy_edge"]: one for one in store.log.after(0, store.last_seq) if _is_abort(one)}
        house, last_seq = House(desk, store).left(), store.last_seq
        house.answers = lambda puppet, text: [TurnEnded("end_turn")]
        async with house.open(_settings("restart")) as sup:
            desk.same(f"who goes on after {scope}, {policy}", sorted(one.id for one in sup.sessions()), [*lives])
            for name in {"p", "p/b", "p/c"} - {*lives}:
                by = asked["sibling_to_session" if name == "p" else "tool_to_sibling" if scope == "tool" else None]
                stops = [one for one in await house.events(name, "OperatorStop") if one.seq > last_seq]
                told = [
                    (one.actor, one.abort_id, one.cause_id, one.transition_reason, one.abort_reason) for one in stops
                ]
                over = "aborted" if name == "p" else "sibling_aborted"
                desk.same(f"the end of {name}", told[:1], [("recovery", by.abort_id, by.seq, over, "sibling_aborted")])
                for whose in (f"{name}:a1", f"{name}:t1"):
                    heard = [one.cause_id for one in await house.log(whose) if one.seq > last_seq]
                    desk.same(f"by what {whose} has ended", heard[:1], [by.seq] if name != "p" else [])
            for name in reversed(lives):
                await sup.abort(name, AbortScope.SESSION, now=True)


async def spared(desk: Desk) -> None:
    """An abort of siblings spared what is left to itself below one of them, which its aborter has beside it since: so
    does the next supervisor, however often."""
    life = House(desk)
    async with life.open(_settings("restart")) as sup:
        parent = await sup.start_session("p", agent="puppet")
        between, _ = await parent.start_child("m"), await parent.start_child("a")
        await between.start_child("free", cancel_mode="abandon")
        await sup.abort("p/a", AbortScope.SIBLING, now=True)
        left = await _left_with(desk, life, sup, ["p", "p/a", "p/m/free"])
    async with left.open(_settings("restart")) as sup:
        await _left_with(desk, left, sup, ["p", "p/a", "p/m/free"])


async def joined_before(desk: Desk) -> None:
    """Who has joined an end that is under way is known to the next supervisor as well, and not told again."""
    life = House(desk)
    life.stops = lambda puppet: ()
    async with life.open(_settings("restart")) as sup, anyio.create_task_group() as group:
        await sup.start_session("p", agent="puppet")
        for name in ("x", "y"):
            await Crowd(group).ask(await sup.start_session(name, agent="puppet", parent="p"), "work")
        for target, scope in (("p/x", AbortScope.SESSION), ("p/y", AbortScope.SIBLING)):
            group.start_soon(partial(sup.abort, target, scope))
            await anyio.sleep(MOMENT_S)
        left = life.left()
        await sup.abort("p", AbortScope.SESSION, now=True)
        group.cancel_scope.cancel()
    async with left.open(_settings("restart")) as sup:
        await anyio.sleep(1.0)
        desk.same(
            "who is told to end, and by how many", len(await left.events("p/x", "OperatorStop", "AbortJoined")), 2
        )
        await sup.abort("p", AbortScope.SESSION, now=True)


async def moved(desk: Desk) -> None:
    """An abort of siblings crossed to their parent, and spared who asked for it, which has another parent since: that
    one, and who is beside it there, were not meant."""
    life = House(desk)
    async with life.open(_settings("restart")) as sup:
        above = await sup.start_session("g", agent="puppet")
        await above.start_child("old")
        await sup.start_session("p", agent="puppet", parent="g", policy=AbortPolicy(sibling_to_session=True))
        for name in ("x", "y"):
            await sup.start_session(name, agent="puppet", parent="g/p", cancel_mode="abandon")
        await sup.abort("g/p/x", AbortScope.SIBLING, now=True)
        left = await _left_with(desk, life, sup, ["g", "g/old", "g/p/x"])
    async with left.open(_settings("restart")) as sup:
        await _left_with(desk, left, sup, ["g", "g/old", "g/p/x"])


async def _left_with(desk: Desk, house: House, sup: Supervisor, names: Sequence[str]) -> House:
    """Just these sessions live; they are ended. The house as a kill before that would have left it."""
    desk.same("who lives", sorted(one.id for one in sup.sessions()), [*names])
    left = house.left()
    for name in reversed(names):
        await sup.abort(name, AbortScope.SESSION, now=True)
    return left


def _is_abort(one: LifecycleEvent) -> bool:
    return one.event == "AbortRecord"


async def _aborted(
    desk: Desk,
    scope: AbortScope,
    *,
    mode: str = "wait_completed",
    policy: AbortPolicy | None = None,
    target: str = "p/a",
) -> MemoryStore | None:
    """What a supervisor leaves that is killed when that abort is on record."""
    life = House(desk)
    life.cuts = []
    async with life.open(_settings("restart")) as sup, anyio.create_task_group() as group:
        await sup.start_session("p", agent="puppet", policy=policy)
        for name in "abc":
            child = await sup.start_session(name, agent="puppet", parent="p", cancel_mode=mode, policy=policy)
            await Crowd(group).ask(child, "work")
        if target == CALL:
            life.puppets[0].says(ToolOpened("call", "x"))
            await anyio.sleep(MOMENT_S)
        group.start_soon(partial(sup.abort, target, scope, reason="enough", actor="me"))
        await anyio.sleep(MOMENT_S)
        group.cancel_scope.cancel()
    found = [one for one in life.cuts if _is_abort(one.log.after(one.last_seq - 1, 1)[0])]
    return found[-1] if found else None


async def judged_late(desk: Desk) -> None:
    """A turn is over, and its session is aborted before it is judged, for the disk is full: there are commits that hold
    both and no more. The next supervisor fails the turn, by that abort."""
    life = House(desk)
    life.cuts = []
    async with life.open(_settings("resume")) as sup, anyio.create_task_group() as group:
        session = await sup.start_session("s", agent="puppet")
        await Crowd(group).ask(session, "work")
        life.disk_fails = JournalUnavailable("full")
        life.puppets[-1].says(TurnEnded("end_turn"))
        await anyio.sleep(MOMENT_S)
        group.start_soon(partial(sup.abort, "s", AbortScope.SESSION, reason="enough"))
        await anyio.sleep(MOMENT_S)
        life.disk_fails = None
        await anyio.sleep(60.0)
        group.cancel_scope.cancel()
    both = [store for store in life.cuts if _is_judged(store) and store.entities["s"].state == "Stopped"]
    desk.same("both are on record", len(both) > 0, True)
    for store in both:
        house, last_seq = House(desk, store).left(), store.last_seq
        stop = next(one for one in reversed(store.logs["s"].after(0, 1_000)) if one.event == "OperatorStop")
        async with house.open(_settings("resume")):
            failed = [one for one in await house.events("s:t1", "task_failed") if one.seq > last_seq]
        told = [(one.to_status, one.abort_id, one.cause_id) for one in failed]
        desk.same("what it fails by", told, [("FAILED", stop.abort_id, stop.seq)])


async def failed_late(desk: Desk) -> None:
    """A turn has failed by itself, and its session was about to hear of that: it is a failure of its agent, whichever
    supervisor sees it, and as many of these as are too many are the session's end. Another one was lost by the kill:
    that is nobody's failure."""
    limits = LimitsConfig(restarts_max=1, restarts_within_s=10_000.0)
    settings = _settings("restart").model_copy(update={"limits": limits})
    life = House(desk)
    life.cuts = []
    life.answers = lambda puppet, text: [TurnEnded("error", "no")]
    async with life.open(settings) as sup, anyio.create_task_group() as group:
        await Crowd(group).ask(await sup.start_session("s", agent="puppet"), "work")
        await anyio.sleep(100.0)
        group.cancel_scope.cancel()
    turn_id = "s:t2"
    for state in ("RUNNING", "FAILED"):
        cuts = [one for one in life.cuts if _stands(one, "s", "Running") and _stands(one, turn_id, state)]
        desk.same(f"{state}: it is on record", len(cuts) > 0, True)
        for store in cuts[:2]:
            house, last_seq = House(desk, store).left(), store.last_seq
            house.answers = lambda puppet, text: [TurnEnded("end_turn")]
            async with house.open(settings) as sup:
                await anyio.sleep(100.0)
                lives = [one.id for one in sup.sessions()]
            desk.same(f"{state}: who goes on", lives, ["s"] if state == "RUNNING" else [])
            ends = [one for one in await house.events("s", "FatalError") if one.seq > last_seq]
            desk.same(f"{state}: given up", ["restart limit" in one.reason for one in ends], [True] * (not lives))


def _stands(store: MemoryStore, entity_id: str, state: str) -> bool:
    return entity_id in store.entities and store.entities[entity_id].state == state


async def said_done(desk: Desk) -> None:
    """An agent has said that it was done, and that is all that is on record of it: it was not interrupted at what it is
    asked next."""
    life = House(desk)
    life.cuts = []
    async with life.open(_settings("resume")) as sup, anyio.create_task_group() as group:
        session = await sup.start_session("s", agent="puppet")
        await Crowd(group).ask(session, "first")
        life.puppets[-1].says(TurnEnded("end_turn"))
        await anyio.sleep(MOMENT_S)
        group.cancel_scope.cancel()
    cuts = [store for store in life.cuts if _is_judged(store)]
    desk.same("it is on record", len(cuts) > 0, True)
    for store in cuts:
        house = House(desk, store).left()
        house.answers = lambda puppet, text: [TurnEnded("end_turn")]
        async with house.open(_settings("resume")) as sup:
            session = sup.session("s")
            desk.same("how that ended", getattr(await session.result(), "outcome", None), "completed")
            await session.run("second")
            desk.same("what it is told", house.puppets[-1].heard("prompt"), [("prompt", "second")])


async def said_last(desk: Desk) -> None:
    """The same of an agent that has each prompt for itself: nothing is lost, so its session goes on."""
    agents = {"f": AgentProfile(name="f", adapter="inprocess", function=obeys, directory="/f")}
    life = House(desk)
    life.cuts = []
    async with life.open(_settings("resume"), agents) as sup:
        await (await sup.start_session("s", agent="f")).run("first")
    cuts = [store for store in life.cuts if _is_judged(store)]
    desk.same("it is on record", len(cuts) > 0, True)
    for store in cuts:
        house = House(desk, store).left()
        async with house.open(_settings("resume"), agents) as sup:
            result = await sup.session("s").result()
            desk.same("how that ended", getattr(result, "outcome", None), "completed")
            desk.same("who goes on", [one.id for one in sup.sessions()], ["s"])
            desk.same("its prompts", len(await house.events("s", "PromptReady")), 1)


async def whose_answer(desk: Desk) -> None:
    """A session is left with a plan's prompt and somebody else's behind it: the heir knows of each how it has ended,
    also once both have; and no longer what is not the last, when another one is asked."""
    life = House(desk)
    life.cuts = []
    async with life.open(_settings("resume")) as sup, anyio.create_task_group() as group:
        session = await sup.start_session("s", agent="puppet")
        group.start_soon(partial(sup.outcome_of, "s", "a plan's", Cause(actor="plan"), once=True))
        await anyio.sleep(MOMENT_S)
        await Crowd(group).ask(session, "a host's")
        group.cancel_scope.cancel()
    waiting = [store for store in life.cuts if _prompts(store) == ["a plan's", "a host's"]]
    desk.same("both are on record", len(waiting) > 0, True)
    house = House(desk, waiting[0]).left()
    house.answers = lambda puppet, text: [TurnEnded("refusal" if "a plan's" in text else "end_turn")]
    async with house.open(_settings("resume")) as sup:
        await anyio.sleep(100.0)
        desk.same("the plan's", await _how(sup, once=True), "failed")
        desk.same("the last", await _how(sup, once=False), "completed")
        left = house.left()
        await sup.session("s").run("another one")
        desk.same("the plan's, still", await _how(sup, once=True), "failed")
        desk.same("the last, as it was asked here", await _how(sup, once=False), None)
        await sup.outcome_of("s", "a plan's again", Cause(actor="plan"), once=True)
        desk.same("the plan's, asked again here", await _how(sup, once=True), None)
    async with left.open(_settings("resume")) as sup:
        answer = sup.inherited.answers.get("s")
        desk.same("the plan's, for who comes next", answer.outcome if answer is not None else None, "failed")


async def _how(sup: Supervisor, *, once: bool) -> str | None:
    outcome = await sup.last_outcome("s", once=once)
    return None if outcome is None else outcome.outcome


def _prompts(store: MemoryStore) -> list[str]:
    """What is asked of the session and has not ended, in order."""
    row = store.entities.get("s")
    if row is None:
        return []
    data = msgspec.json.decode(row.data, type=SessionData)
    return [one.prompt for one in (data.current, *data.queue) if one is not None]


def _is_judged(store: MemoryStore) -> bool:
    return _stands(store, "s:t1", "VERIFYING")


HEIRS = (
    loaded,
    begun_anew,
    siblings,
    above,
    across,
    spared,
    joined_before,
    moved,
    judged_late,
    failed_late,
    said_done,
    said_last,
    whose_answer,
)
