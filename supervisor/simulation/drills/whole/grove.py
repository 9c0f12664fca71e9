"""A grove: drawn trees of sessions whose work ends gently, late or never, and aborts of them, reckoned a second time.

The sessions are real, and so are the tree, the ladder and the receipts. Their agents are a task each, which ends when
it is asked, when it is cancelled, when it is killed, or not at all. When each rung is due, what it takes and what is
told of that follows from docs/design.md: a child has no longer than the parent that waits for it, and the gentlest
rungs give way first.
"""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import anyio
import msgspec

from supervisor.aborts.service import Aborts
from supervisor.aborts.termination import Endings
from supervisor.lifecycles.effects import Bury, EndScope
from supervisor.lifecycles.events import OperatorStop
from supervisor.lifecycles.session import Session, SessionData
from supervisor.lifecycles.turn import Call, Turn, TurnData
from supervisor.lifecycles.types import (
    AbortPolicy,
    AbortReason,
    AbortScope,
    CancelMode,
    Ladder,
    LifecycleEvent,
    UnknownWord,
)
from supervisor.policies.abort_plan import NoSiblings, PlannedProcess, Receipt, UnknownTarget
from supervisor.runtime.entity import Refused
from supervisor.runtime.entity_registry import Tree
from supervisor.runtime.entity_types import SESSION_KIND, TURN_KIND
from supervisor.runtime.id_allocator import Names
from supervisor.runtime.journal_writer import Cause, Clock, Draft, Ledger, Owed
from supervisor.runtime.live_session import AgentProfile, Work
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.whole.recording import Paper, thing
from supervisor.simulation.keyed_random import Chance

__all__ = ["GROVE"]

SLACK_S: Final = 5.0
RECORDS_S: Final = 60.0
GROVES: Final = 6
WALL_S: Final = 1_700_000_000.0
WAITED: Final = CancelMode.WAIT_COMPLETED
CLOSE_S: Final = 1.0
CALLS: Final = (
    Call(number=3, call_id="x", title="", tool_kind=""),
    Call(number=4, call_id="y", title="", tool_kind="", within=3),
)
"""Of a turn that has some."""
COMMIT_S: Final = 2.0
BUSY_S: Final = 2.0
"""For how long somebody hears nothing."""
AGAIN_S: Final = 1.3
"""When the second one asks, if there is one."""


class Agent:
    """What is there of an agent: somebody who can be asked to end, or ended."""

    def __init__(self, name: str) -> None:
        self.asked, self.killed, self.released = anyio.Event(), anyio.Event(), anyio.Event()
        self.pids = (PlannedProcess(owner=f"{name}:a1", pid=7),)

    def processes(self) -> tuple[PlannedProcess, ...]:
        return self.pids

    def has_returned(self, turn_id: str, call_id: str) -> bool:
        return call_id == "y"

    def finish(self) -> None:
        self.asked.set()

    def kill(self, intent: object) -> None:
        self.killed.set()


class Plant(NamedTuple):
    """A session of a drawn tree: how its work ends, and after how many seconds of its own."""

    name: str
    parent: str | None
    mode: CancelMode
    ladder: Ladder
    way: str
    takes_s: float
    silent: bool
    """There is a turn of it that never has a last record."""


class Fate(NamedTuple):
    """When a session is over, from the first abort on, on which rung (one of them, where two come at once), and when
    its last record is written: it waits for those of all that is below it, a minute at most."""

    over_s: float
    rungs: tuple[str, ...]
    recorded_s: float


class Grove:
    """The sessions, on a ledger whose journal is sound."""

    def __init__(self, desk: Desk, commit_s: float = 0.0) -> None:
        self.desk = desk
        self.records: list[LifecycleEvent] = []
        self.agents: list[Agent] = []
        self.closed: list[str] = []
        now = desk.system.timers.now
        self.paper = Paper(desk, commit_s=commit_s)
        self.ledger = Ledger(
            self.paper,  # type: ignore[arg-type]
            Clock(SimpleNamespace(time=lambda: WALL_S + now())),
            perform=self._perform,
            publish=self.records.append,
            failed=lambda error: None,
        )
        self.tree = Tree(desk.system, self.ledger, Names())
        self.endings = Endings(self.tree, "endings")
        desk.system.spawn(self.endings, "endings")
        self.aborts = Aborts(self.tree, Past(self), self._over)  # type: ignore[arg-type]

    async def _over(self, work: Work) -> bool:
        await work.ended.wait()
        return True

    def _perform(self, owed: Owed) -> None:
        if isinstance(owed.effect, EndScope):
            work, effect = self.tree.works[owed.entity_id], owed.effect
            self.endings.begin(work, Cause(owed.seq), effect.abort_id, now=effect.now)
        elif isinstance(owed.effect, Bury):
            self.tree.bury(owed.entity_id)

    def sow(self, one: Plant) -> None:
        """A session that works."""
        above = self.tree.works.get(one.parent) if one.parent is not None else None
        work = Work(
            self.tree,
            session_id=one.name,
            parent=above,
            profile=AgentProfile(name="a", adapter="drill"),
            policy=AbortPolicy(ladder=one.ladder),
            started_by=None,
            transcript=SimpleNamespace(close=lambda: self.closed.append(one.name)),
            mode=one.mode,
        )
        self.tree.admit(work)
        self.tree.birth(
            SESSION_KIND,
            one.name,
            parent_id=one.parent,
            state=Session.SESSION_COMPLETE,
            data=SessionData(id=one.name, agent="a", turn_id=f"{one.name}:t1" if one.silent else ""),
            cause=Cause(),
            contained=one.mode is WAITED,
        )
        if one.silent:
            data = TurnData(id=f"{one.name}:t1", session_id=one.name, open=CALLS)
            state = Turn.COMPLETING if one.way == "gentle" else Turn.RUNNING
            self.tree.birth(TURN_KIND, data.id, parent_id=one.name, state=state, data=data, cause=Cause())
        agent = Agent(one.name)
        self.agents.append(agent)
        work.link = agent  # type: ignore[assignment]
        context = self.desk.system.context(one.name)
        assert context is not None
        work.start(context, self._work, one, agent)

    async def _work(self, one: Plant, agent: Agent) -> None:
        try:
            await agent.asked.wait()
            if one.way != "gentle":
                await anyio.sleep_forever()
            await anyio.sleep(one.takes_s)
        finally:
            with anyio.CancelScope(shield=True):
                if one.way == "cancelled":
                    with anyio.move_on_after(one.takes_s):
                        await agent.killed.wait()
                elif one.way == "killed":
                    await agent.killed.wait()
                    await anyio.sleep(one.takes_s)
                elif one.way == "never":
                    await agent.released.wait()

    def release(self) -> None:
        """Whoever does not end by himself does now."""
        for agent in self.agents:
            agent.released.set()

    def of(self, session_id: str, event: str) -> list[LifecycleEvent]:
        return [one for one in self.records if one.entity_id == session_id and one.event == event]


class Past:
    """The journal, for who asks what there was."""

    def __init__(self, grove: Grove) -> None:
        self._grove = grove

    async def entities(self, *, ids: list[str]) -> list[Any]:
        born = {one.entity_id: one for one in self._grove.records if one.outcome == "born"}
        return [SimpleNamespace(kind=born[one].entity_type) for one in ids if one in born]

    async def events(self, *, entity_id: str) -> list[LifecycleEvent]:
        return [one for one in self._grove.records if one.entity_id == entity_id]


# ------------------------------------------------------------------------------------------------------ the reckoning
class Reckoning:
    """Who ends when, on which rung. *again_s*: until when it is to be over by whoever asks a second time, if sooner."""

    def __init__(self, plants: list[Plant], now: bool, within_s: float | None, again: tuple[str, float]) -> None:
        self.plants = {one.name: one for one in plants}
        self._now, self._within_s, self._again = now, within_s, again
        self.spared = [one.name for one in plants if self._is_spared(one)]
        self.fates: dict[str, Fate] = {}
        for one in reversed(plants):
            if one.name not in self.spared:
                self.fates[one.name] = self._fate(one)

    def _is_spared(self, one: Plant) -> bool:
        above = self.plants.get(one.parent or "")
        return one.mode is CancelMode.ABANDON or (above is not None and self._is_spared(above))

    def looseness(self, one: Plant) -> CancelMode:
        above = self.plants.get(one.parent or "")
        modes = [one.mode, *([self.looseness(above)] if above is not None else [])]
        return max(modes, key=[*CancelMode].index)

    def bound_s(self, one: Plant) -> float:
        """What its ladder may take."""
        ladder = one.ladder
        own_s = ladder.kill_s if self._now else sum(_rungs(ladder))
        above = self.plants.get(one.parent or "")
        return min(own_s, self.bound_s(above)) if above is not None and one.mode is WAITED else own_s

    def _instants(self, one: Plant) -> tuple[float, float, float]:
        """When it is cancelled, killed and given up."""
        kill_s = one.ladder.kill_s
        bound_s = self.bound_s(one)
        bound_s = bound_s if self._within_s is None else min(bound_s, self._within_s)
        if self._now:
            return 0.0, 0.0, kill_s + SLACK_S
        what, again_s = self._again if self.looseness(one) is WAITED else ("", 0.0)
        cancelled_s, killed_s = _due(one.ladder, bound_s)
        if what == "within" and AGAIN_S + again_s < bound_s:
            sooner = _due(one.ladder, AGAIN_S + again_s)
            if cancelled_s > AGAIN_S:
                cancelled_s = max(AGAIN_S, sooner[0])
            if killed_s > AGAIN_S:
                killed_s = max(cancelled_s, AGAIN_S, sooner[1])
        if what == "now" and killed_s > AGAIN_S:
            cancelled_s, killed_s = min(cancelled_s, AGAIN_S), AGAIN_S
        return cancelled_s, killed_s, killed_s + kill_s + SLACK_S

    def _fate(self, one: Plant) -> Fate:
        cancel_s, kill_s, give_up_s = self._instants(one)
        ends_s = _ends(one, self._now, min([cancel_s, *self._above(one)]), kill_s)
        waits = [self.fates[name].over_s for name, child in self.plants.items() if self._waits(one, child)]
        over_s = max([ends_s, *waits])
        close = abs(over_s - give_up_s) < CLOSE_S
        over_s = min(over_s, give_up_s)
        below = [self.fates[name].recorded_s for name, child in self.plants.items() if self._waits(one, child)]
        recorded_s = min(over_s + RECORDS_S, max([over_s, *below, *([inf] if one.silent else [])]))
        rungs: tuple[str, ...] = ("cancel",) if over_s >= cancel_s else ("request",)
        if any(abs(above_s - cancel_s) < CLOSE_S for above_s in self._above(one)) and over_s - cancel_s < CLOSE_S:
            rungs = ("request", "cancel")  # the scope that it is in was cancelled just then
        if self._now or over_s >= kill_s:
            photo = not self._now and one.way != "killed" and over_s - kill_s < CLOSE_S
            rungs = ("cancel", "kill") if photo else ("kill",)
        if over_s >= give_up_s or close:
            rungs = (*rungs, "abandon") if close else ("abandon",)
        return Fate(over_s, rungs, recorded_s)

    def _waits(self, one: Plant, child: Plant) -> bool:
        return child.parent == one.name and child.mode is WAITED and child.name in self.fates

    def _above(self, one: Plant) -> list[float]:
        """When the scopes that it is in are cancelled."""
        above = self.plants.get(one.parent or "") if one.mode is WAITED else None
        return [] if above is None else [self._instants(above)[0], *self._above(above)]


def _rungs(ladder: Ladder) -> tuple[float, float, float, float]:
    return ladder.request_s, ladder.cancel_s, ladder.terminate_s, ladder.kill_s


def _due(ladder: Ladder, bound_s: float) -> tuple[float, float]:
    """When it is cancelled and killed, if all must be over by then: the gentlest rungs give way first."""
    request_s, cancel_s, terminate_s, kill_s = _rungs(ladder)
    total_s = request_s + cancel_s + terminate_s + kill_s
    if bound_s >= total_s:
        return request_s, total_s + SLACK_S
    terminated_s = max(0.0, bound_s - kill_s)
    return max(0.0, bound_s - kill_s - terminate_s - cancel_s), terminated_s


def _ends(one: Plant, now: bool, cancel_s: float, kill_s: float) -> float:
    """When its own work is over."""
    match one.way:
        case "gentle":
            return 0.0 if now else min(one.takes_s, cancel_s)
        case "cancelled":
            return min(cancel_s + one.takes_s, max(kill_s, cancel_s))
        case "killed":
            return max(kill_s, cancel_s) + one.takes_s
        case _:
            return 1e9


# ------------------------------------------------------------------------------------------------------------- drawn
def _drawn(chance: Chance, prefix: str) -> list[Plant]:
    plants: list[Plant] = []
    for number in range(chance.integer(1, 6, "many")):
        one = chance.below(number)
        parent = one.choice([each.name for each in plants], "parent") if plants else None
        mode = one.choice((WAITED, WAITED, WAITED, *CancelMode), "mode") if parent else WAITED
        rungs = dict(zip(("request_s", "cancel_s", "terminate_s", "kill_s"), RUNGS_S, strict=True))
        ladder = Ladder(**{name: one.choice(sizes, name) for name, sizes in rungs.items()})
        way = one.choice(("gentle", "gentle", "cancelled", "cancelled", "killed", "never"), "way")
        takes_s = one.choice((0.7, 2.7, 5.7, 8.7), "takes")
        plants.append(
            Plant(
                f"{prefix}{number}", parent, mode, ladder, way, takes_s, parent is None and one.happens(0.25, "silent")
            )
        )
    return plants


RUNGS_S: Final = ((10.0, 4.0), (5.0, 3.0), (2.0, 3.0), (1.0, 2.0))


async def groves(desk: Desk) -> None:
    """Whatever stands where, and whoever wants its end: each is over at its time, on its rung, children first."""
    async with anyio.create_task_group() as group:
        grove = Grove(desk)
        group.start_soon(grove.ledger.run)
        try:
            for number in range(GROVES):
                chance = desk.chance.below(number)
                plants = _drawn(chance, f"g{number}-")
                for one in plants:
                    grove.sow(one)
                await anyio.sleep(1.0)
                await _fell(desk, chance, grove, plants)
            await anyio.sleep(1.0)
        finally:
            grove.release()
        desk.same("who is left", (len(grove.endings), len(grove.tree.works), [*grove.tree.entities]), (0, 0, []))
        group.cancel_scope.cancel()


async def _fell(desk: Desk, chance: Chance, grove: Grove, plants: list[Plant]) -> None:
    root = plants[0].name
    now = chance.happens(0.2, "now")
    within_s = chance.choice((None, None, 6.2, 1.2, 15.2), "within")
    again = (chance.choice(("", "join", "within", "now"), "again"), chance.choice((0.4, 3.2, 60.2), "again_s"))
    again = again if not now else ("", 0.0)
    entry = chance.choice(("abort", "as planned", "execute"), "entry")
    if chance.happens(0.3, "close"):  # nobody plans it: each session tells those below it
        entry, now, within_s, again = "close", False, None, ("", 0.0)
    reckoned = Reckoning(plants, now, within_s, again)
    _check_rows(desk, grove, plants)
    await _refuse(desk, grove, root)
    desk.again()
    receipts_at = [grove.ledger.clock.now()]
    receipts: list[Receipt] = []
    second: list[Receipt] = []

    answered_s: list[float] = []

    async def first() -> None:
        await ask()
        answered_s.append(desk.since())

    async def ask() -> None:
        wish: dict[str, Any] = {"reason": "felled", "actor": "ann", "within_s": within_s}
        plan = grove.aborts.plan(root, AbortScope.SESSION, now=now)
        match entry:
            case "close":
                stop = OperatorStop(reason="felled", outcome="completed")
                grove.tree.end(root, stop, cause=Cause(actor="ann"))
            case "abort":
                receipts.append(await grove.aborts.abort(root, AbortScope.SESSION, now=now, **wish))
            case "as planned":
                gently = now and chance.happens(0.5, "gently")  # who hurries it may have planned it without that
                known = grove.aborts.plan(root, "session") if gently else plan
                receipts.append(await grove.aborts.abort(root, "session", now=now, plan_id=known.id, **wish))
            case _:
                receipts.append(await grove.aborts.execute(plan, now=now and chance.happens(0.5, "so"), **wish))

    async def other() -> None:
        await anyio.sleep(AGAIN_S)
        what, again_s = again
        bound_s = again_s if what == "within" else None
        known = await _planned(desk, grove, root) if what == "now" else None
        wish: dict[str, Any] = {"reason": "again", "actor": "bob", "within_s": bound_s, "plan_id": known}
        second.append(await grove.aborts.abort(root, "session", now=what == "now", **wish))

    async with anyio.create_task_group() as group:
        group.start_soon(first)
        if again[0]:
            group.start_soon(other)
        last_s = max(fate.over_s for fate in reckoned.fates.values())
        await anyio.sleep(last_s + SLACK_S)
        grove.release()
    await anyio.sleep(max(1.0, max(fate.recorded_s for fate in reckoned.fates.values()) - desk.since() + 2.0))
    began_s = receipts_at.pop()
    for name, fate in reckoned.fates.items():
        _check_end(desk, grove, reckoned.plants[name], fate, began_s)
    if entry == "close":
        _check_closed(desk, grove, reckoned)
    else:
        _check_receipt(desk, receipts[0], reckoned)
        _check_answer(desk, answered_s[0], reckoned)
        first_record = grove.of(root, "AbortRecord")[0].seq
        desk.same("its name", receipts[0].abort_id, f"abort-{first_record}")
    if again[0]:
        _check_second(desk, grove, receipts[0], second[0], reckoned, again[0])
    await _clear(desk, grove, reckoned)


async def _planned(desk: Desk, grove: Grove, root: str) -> str | None:
    """Who hurries what is ending may have planned it without that; who does not hurry it may not carry out the plan of
    who does."""
    if root not in grove.tree.works:
        return None
    gently, hurried = (grove.aborts.plan(root, "session", now=now).id for now in (False, True))
    if gently != hurried:
        wrong = grove.aborts.abort(root, "session", reason="no", actor="ann", plan_id=hurried)
        await desk.raises("a plan of who hurries it, for who does not", wrong, Refused)
    return gently


async def _refuse(desk: Desk, grove: Grove, root: str) -> None:
    """A plan of a tree that was another one is not carried out; nor is what cannot be; what never was is not known."""
    aborts = grove.aborts
    wish: dict[str, Any] = {"reason": "no", "actor": "ann"}
    plan = aborts.plan(root, "session")
    stale = msgspec.structs.replace(plan, id="0" * 16)
    for wrong in (aborts.execute(stale, **wish), aborts.abort(root, "session", plan_id=stale.id, **wish)):
        await desk.raises("a plan of another tree", wrong, Refused)
    await desk.raises("less than no time", aborts.abort(root, "session", within_s=-0.1, **wish), ValueError)
    for unknown in ("nobody", f"{root}:t1", f"{root}:t1:c9", ":c1", f"{root}:t9:cx"):
        await desk.raises("an abort of nobody", aborts.abort(unknown, "session", **wish), UnknownTarget)
    await desk.raises("an abort at no scope", aborts.abort(root, "all", **wish), UnknownWord)
    await desk.raises("the siblings of a root", aborts.abort(root, "sibling", **wish), NoSiblings)
    desk.same("nothing has ended", [one.told for one in grove.tree.works.values()], [False] * len(grove.tree.works))


def _check_rows(desk: Desk, grove: Grove, plants: list[Plant]) -> None:
    """The tree as it is shown, and as aborts see it."""
    nodes = grove.tree.nodes()
    mine = {one.id: one for one in grove.tree.rows()}
    for one in plants:
        row, node = mine[one.name], nodes[one.name]
        shown = (row.kind, row.parent_id, row.state, row.entity_seq, row.ended)
        desk.same(f"the row of {one.name}", shown, ("session", one.parent, "SessionComplete", 1, False))
        below = [each.name for each in plants if each.parent == one.name]
        calls = [f"{one.name}:t1:c{call.number}" for call in CALLS] if one.silent else []
        kept = (node.kind, node.parent, [*node.children], node.mode, node.ended, [each.pid for each in node.processes])
        desk.same(f"the node of {one.name}", kept, ("session", one.parent, [*below, *calls], one.mode, False, [7]))
        desk.same(f"below {one.name}", [work.session_id for work in grove.tree.children_of(one.name)], below)
        _check_calls(desk, grove, one)
    many = len(plants) + sum(len(CALLS) for one in plants if one.silent)
    desk.same("how many nodes", (len(nodes), len({*nodes})), (many, many))


def _check_calls(desk: Desk, grove: Grove, one: Plant) -> None:
    """Its open calls are nodes of the tree, and nothing else is one."""
    nodes, turn_id = grove.tree.nodes(), f"{one.name}:t1"
    for wrong in (turn_id, *(f"{turn_id}:c{n}" for n in ("1", "9", "33", "")), f"{one.name}:t9:c3"):
        desk.same(f"a node that is none, {wrong}", wrong in nodes, False)
        desk.same(f"a call that is none, {wrong}", grove.tree.is_open(wrong), False)
    if one.silent:
        shown = [
            (node.kind, node.parent, [*node.children], node.ended, node.processes)
            for node in (nodes[f"{turn_id}:c3"], nodes[f"{turn_id}:c4"])
        ]
        wanted = [("tool", one.name, [f"{turn_id}:c4"], False, ()), ("tool", one.name, [], True, ())]
        desk.same(f"the calls of {one.name}", shown, wanted)
        desk.same("that it is open", grove.tree.is_open(f"{turn_id}:c4"), True)
        desk.same("whom its turn belongs to", [*desk.system.inspect(one.name).children][:1], [turn_id])


def _check_end(desk: Desk, grove: Grove, one: Plant, fate: Fate, began_s: float) -> None:
    ended = grove.of(one.name, "Ended")
    if len(ended) != 1:
        desk.same(f"the last record of {one.name}", len(ended), 1)
        return
    told = ended[0].metadata
    given = (told["rung"], told["survivors"])
    if told["rung"] not in fate.rungs or told["survivors"]:
        desk.same(f"the end of {one}", given, (fate.rungs, 0))
    desk.at(f"the last record of {one}", fate.recorded_s, 8, ended[0].monotonic_s - began_s)
    desk.at(f"the end of {one}", fate.over_s, 8, told["took_s"])
    stops = [(each.abort_id, each.severity) for each in grove.of(one.name, "OperatorStop")]
    desk.same(f"who stopped {one.name}", bool(stops), True)
    desk.same(f"its transcript, {one.name}", grove.closed.count(one.name), 1)


def _check_receipt(desk: Desk, receipt: Receipt, reckoned: Reckoning) -> None:
    """It tells of each what is on record, and of those that had not ended in time that they had not."""
    told = {one.id: one for one in receipt.nodes}
    desk.same("whom it tells of", sorted(told), sorted(reckoned.fates))
    spared = [name for name in reckoned.spared if reckoned.plants[name].parent not in reckoned.spared]
    desk.same("whom it spares", sorted(one.id for one in receipt.spared), sorted(spared))
    desk.same("their new parent", {one.parent for one in receipt.spared} <= {None}, True)
    limit_s = _limit_s(reckoned)
    awaited = {name: one for name, one in reckoned.fates.items() if reckoned.looseness(reckoned.plants[name]) is WAITED}
    if any(abs(one - limit_s) < CLOSE_S for fate in awaited.values() for one in (fate.over_s, fate.recorded_s)):
        return  # a photo finish
    for name, fate in awaited.items():
        node = told[name]
        if fate.over_s > limit_s:
            desk.same(f"{name} is not over in time", (node.outcome, node.rung), ("abandoned", ""))
            continue
        outcome = "abandoned" if node.rung == "abandon" else "ended"
        desk.same(f"what is told of {name}", (node.outcome, node.rung in fate.rungs), (outcome, True))
        desk.at(f"when {name} was over", fate.over_s, 8, node.took_s)
        plant = reckoned.plants[name]
        how = f"its turn {name}:t1 had succeeded" if plant.silent and plant.way == "gentle" else ""
        desk.same(f"how {name} was over", node.how, how)
    _check_requested(desk, receipt, reckoned, {name: fate.over_s for name, fate in awaited.items()})
    late = max(fate.over_s for fate in awaited.values()) > limit_s
    unrecorded = late or max(fate.recorded_s for fate in awaited.values()) > limit_s
    shown = (receipt.killed_at is None, receipt.recorded_at is None, receipt.survivors, receipt.already_ended)
    desk.same("what is not known yet", shown, (late, unrecorded, 0, False))
    root = next(iter(reckoned.plants))
    desk.same("whose it is", (receipt.reason, receipt.target, receipt.outage), ("felled", root, None))


def _check_closed(desk: Desk, grove: Grove, reckoned: Reckoning) -> None:
    """Of a session that ends by itself each one below it is told why, once, by its parent."""
    for name in reckoned.fates:
        above = reckoned.plants[name].parent
        told = [(one.reason, one.abort_reason, one.abort_id) for one in grove.of(name, "OperatorStop")]
        wanted = (f"its parent {above} ended", "parent_aborted", None) if above is not None else ("felled", None, None)
        desk.same(f"why {name} ends", told, [wanted])
        stop, up = grove.of(name, "OperatorStop")[:1], grove.of(above or name, "OperatorStop")[:1]
        if above is not None and stop and up:
            desk.same(f"what {name} follows from", stop[0].cause_id, up[0].seq)


def _check_requested(desk: Desk, receipt: Receipt, reckoned: Reckoning, awaited: dict[str, float]) -> None:
    """Who may outlive it is waited for by nobody: it has ended if it is over when it is looked at, or was asked."""
    looked_s = 0.0
    for node in receipt.nodes:
        over_s = reckoned.fates[node.id].over_s
        if node.id in awaited:
            looked_s = max(looked_s, over_s)
        elif looked_s > _limit_s(reckoned) - CLOSE_S:
            return
        elif abs(over_s - looked_s) > CLOSE_S:
            mode = reckoned.looseness(reckoned.plants[node.id])
            asked = over_s > looked_s
            told = (node.outcome == "requested", node.rung == "", mode.value in node.how)
            desk.same(f"what is told of {node.id}, {mode}", told, (asked, asked, asked))


def _limit_s(reckoned: Reckoning) -> float:
    """How long a receipt is waited for."""
    return max(reckoned.bound_s(reckoned.plants[name]) for name in reckoned.fates) + 2 * SLACK_S


def _check_answer(desk: Desk, answered_s: float, reckoned: Reckoning) -> None:
    """Whoever asked is answered when all of it is on record, and no later than the ladder and some slack."""
    awaited = [one for name, one in reckoned.fates.items() if reckoned.looseness(reckoned.plants[name]) is WAITED]
    recorded_s = max(max(one.over_s, one.recorded_s) for one in awaited)
    desk.at("the receipt", min(recorded_s, _limit_s(reckoned)), 8, answered_s)


def _check_second(desk: Desk, grove: Grove, first: Receipt, second: Receipt, reckoned: Reckoning, what: str) -> None:
    """Who asks for what is ending already joins that, or makes it harder; what has ended is told so."""
    root = next(iter(reckoned.plants))
    over_s, recorded_s = reckoned.fates[root].over_s, reckoned.fates[root].recorded_s
    if abs(over_s - AGAIN_S) < CLOSE_S or abs(recorded_s - AGAIN_S) < CLOSE_S:
        return
    ended, gone = over_s < AGAIN_S, recorded_s < AGAIN_S
    if what == "now" and not ended:
        desk.same("an end that is hurried", (second.already_ended, second.reason), (False, "again"))
        told = [one.metadata["now"] for one in grove.of(root, "OperatorStop")]
        desk.same("that it is to be hurried", told, [False, True])
        return
    joined = None if gone else first.abort_id
    desk.same("an end that is joined", (second.already_ended, second.joined, second.nodes), (True, joined, ()))
    notes = [(one.metadata["joined"], one.metadata["first_reason"], one.actor) for one in grove.of(root, "AbortJoined")]
    desk.same("that it was", notes, [] if gone else [(first.abort_id, "felled", "bob")])


async def _clear(desk: Desk, grove: Grove, reckoned: Reckoning) -> None:
    """Who was spared lives, as a root or below the nearest that lives; then it is felled too."""
    for name in reckoned.spared:
        plant = reckoned.plants[name]
        work = grove.tree.works.get(name)
        above = plant.parent if plant.parent in reckoned.spared else None
        desk.same(f"{name} lives", work is not None and (work.parent_id, work.told) == (above, False), True)
    async with anyio.create_task_group() as group:
        for name in reckoned.spared:
            group.start_soon(_uproot, grove, name)
        await anyio.sleep(20.0 if reckoned.spared else 0.0)
        grove.release()
    for one in reckoned.plants.values():
        if one.silent:
            _forget_turn(desk, grove, one.name)
    receipt = await grove.aborts.abort(next(iter(reckoned.plants)), "session", reason="late", actor="a")
    desk.same("what has ended", (receipt.already_ended, receipt.nodes, receipt.joined), (True, (), None))
    desk.same("how that is told", (receipt.reason, receipt.abort_id, receipt.survivors), ("already_ended", "", 0))


async def _uproot(grove: Grove, name: str) -> None:
    await grove.aborts.abort(name, "session", reason="r", actor="a", now=True)


async def copses(desk: Desk) -> None:
    """The same once more, with other trees."""
    await groves(desk)


async def ordered(desk: Desk) -> None:
    """An end for a record's sake: whom it is about has its reason, who is below it that of its parent; all are over."""
    async with anyio.create_task_group() as group:
        grove = Grove(desk)
        group.start_soon(grove.ledger.run)
        plants = [
            Plant("o0", None, WAITED, Ladder(), "gentle", 0.7, False),
            Plant("o1", "o0", WAITED, Ladder(), "cancelled", 0.7, False),
            Plant("o2", "o1", CancelMode.TRY, Ladder(), "gentle", 0.7, False),
        ]
        for one in plants:
            grove.sow(one)
        await anyio.sleep(1.0)
        grove.aborts.order("nobody", "r", "a", 1, AbortReason.TIMEOUT)
        because = grove.tree.ledger.last_seq
        for _ in range(2):
            grove.aborts.order("o0", "too dear", "overseer", because, AbortReason.TIMEOUT)
        await anyio.sleep(60.0)
        records = [one for one in grove.records if one.event == "AbortRecord"]
        shown = [(one.cause_id, one.actor, one.reason, one.severity, one.metadata["deadline_s"]) for one in records]
        desk.same("what is wished", shown, [(because, "overseer", "too dear", "warning", 18.0)])
        stops = {one.entity_id: one for one in grove.records if one.event == "OperatorStop"}
        told = {name: (one.abort_reason, one.transition_reason, one.reason) for name, one in stops.items()}
        parent = ("parent_aborted", "aborted", "too dear")
        desk.same("why each ends", told, {"o0": ("timeout", "aborted", "too dear"), "o1": parent, "o2": parent})
        causes = {(one.cause_id, one.abort_id) for one in stops.values()}
        desk.same("by which record", causes, {(one.seq, one.abort_id) for one in records})
        desk.same("who is left", [*grove.tree.works], [])
        group.cancel_scope.cancel()


async def requested(desk: Desk) -> None:
    """A session that ends by itself is not over before a child that must have been asked to end has heard of it, busy
    as that may be; nobody waits for one that is only told so, or not at all."""
    async with anyio.create_task_group() as group:
        grove = Grove(desk)
        group.start_soon(grove.ledger.run)
        for number, mode in enumerate(one for one in CancelMode if one is not WAITED):
            above, below = f"r{number}", f"r{number}-kid"
            grove.sow(Plant(above, None, WAITED, Ladder(), "gentle", 0.0, False))
            grove.sow(Plant(below, above, mode, Ladder(), "gentle", 30.0, False))
            await anyio.sleep(1.0)
            await desk.system.suspend(below, timeout_s=1.0)
            grove.tree.end(above, OperatorStop(reason="done", outcome="completed"), cause=Cause(actor="ann"))
            await anyio.sleep(BUSY_S)
            desk.system.resume(below)
            await anyio.sleep(1.0)
            took_s = [one.metadata["took_s"] for one in grove.of(above, "Ended")]
            desk.same(f"{mode}: it has ended", len(took_s), 1)
            for one in took_s:
                desk.at(f"{mode}: when it was over", BUSY_S if mode is CancelMode.WAIT_REQUESTED else 0.0, 2, one)
            told = [one.abort_reason for one in grove.of(below, "OperatorStop")]
            desk.same(f"{mode}: what is below it was told", told, ["parent_aborted"] * (mode is not CancelMode.ABANDON))
            await grove.aborts.abort(below, "session", reason="enough", actor="ann", now=True)
        desk.same("who is left", [*grove.tree.works], [])
        group.cancel_scope.cancel()


async def too_late(desk: Desk) -> None:
    """Who wants an end when the last record is written is no reason for it, though that is not durable yet: what is
    told of why it ended is what it was, and whoever asked is told that it had ended."""
    async with anyio.create_task_group() as group:
        grove = Grove(desk, COMMIT_S)
        group.start_soon(grove.ledger.run)
        for now in (False, True):
            name = f"l-{now}"
            grove.sow(Plant(name, None, WAITED, Ladder(), "gentle", 0.0, False))
            await anyio.sleep(2 * COMMIT_S)
            work, entity = grove.tree.works[name], grove.tree.entities[name]
            grove.aborts.order(name, "took too long", "overseer", 1, AbortReason.TIMEOUT)
            await anyio.sleep(COMMIT_S / 2)
            desk.same("its last record is on its way", (entity.ended, name in grove.tree.works), (True, True))
            known = work.asked
            receipt = await grove.aborts.abort(name, "session", reason="enough", actor="ann", now=now, within_s=0.1)
            desk.same("what is answered", (receipt.already_ended, receipt.nodes, receipt.survivors), (True, (), 0))
            desk.same("why it ended", work.asked, known)
            records = [one.event for one in grove.records if one.entity_id == name][-2:]
            desk.same("what is on record", records, ["OperatorStop", "Ended"])
        desk.same("who is left", [*grove.tree.works], [])
        group.cancel_scope.cancel()


async def unrecorded(desk: Desk) -> None:
    """The last record of a session waits a minute for those of what is below it, and that minute begins anew as long
    as there was an outage in it: what waited for the disk has only just begun to be written. Once they are there it
    waits for nothing; an outage that was over before is nothing to it."""
    cases: tuple[tuple[tuple[tuple[float, int], ...], float | None, float], ...] = (
        ((), None, 60.0),
        (((20.0, 2),), None, 120.0),
        (((20.0, 2), (80.0, 2)), None, 180.0),
        (((55.0, 6),), None, 180.0),  # it lasts for 11 s: into the next minute
        ((), None, 60.0),
        ((), 30.0, 30.0),
        (((20.0, 2),), 90.0, 90.0),
    )
    async with anyio.create_task_group() as group:
        grove = Grove(desk)
        group.start_soon(grove.ledger.run)
        for number, (outages, heard_s, wanted_s) in enumerate(cases):
            name = f"u{number}"
            grove.sow(Plant(name, None, WAITED, Ladder(), "gentle", 0.0, True))
            await anyio.sleep(1.0)
            began_s = grove.ledger.clock.now()
            grove.tree.end(name, OperatorStop(reason="done", outcome="completed"), cause=Cause(actor="ann"))
            for at_s, fails in outages:
                await anyio.sleep(began_s + at_s - grove.ledger.clock.now())
                grove.paper.script.extend(["down"] * (1 + fails))
                grove.ledger.record(thing(), Draft(name="it", outcome="fact", cause=Cause()))
            if heard_s is not None:
                await anyio.sleep(began_s + heard_s - grove.ledger.clock.now())
                _forget_turn(desk, grove, name)
            await anyio.sleep(began_s + max(wanted_s, 200.0) - grove.ledger.clock.now())
            ended = grove.of(name, "Ended")
            desk.same(f"outages {outages}: it has ended", [one.metadata["rung"] for one in ended], ["request"])
            for one in ended:
                desk.at(f"outages {outages}: its last record", wanted_s, 8, one.monotonic_s - began_s)
            _forget_turn(desk, grove, name)
        desk.same("who is left", (len(grove.endings), [*grove.tree.works], [*grove.tree.entities]), (0, [], []))
        group.cancel_scope.cancel()


def _forget_turn(desk: Desk, grove: Grove, name: str) -> None:
    """Nothing more will be heard of it, if it is still there."""
    desk.system.stop(f"{name}:t1")
    if f"{name}:t1" in grove.tree.entities:
        grove.tree.forget(grove.tree.entity(f"{name}:t1"))


GROVE = (groves, copses, ordered, requested, too_late, unrecorded)
