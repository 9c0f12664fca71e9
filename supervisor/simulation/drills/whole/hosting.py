"""Hosting: what a host may ask a supervisor for, and what it is told, by the docstrings of its methods.

Names and their numbers, whose agent and whose policy, what waits and what is refused, how everything ends: each of
these is reckoned beforehand here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import TaskGroup

from supervisor.agents.protocols.inprocess import AgentTurn
from supervisor.embedding.runtime import Session, Supervisor, TurnResult, reconfigure
from supervisor.lifecycles.events import OperatorStop
from supervisor.lifecycles.task import Task, TaskData
from supervisor.lifecycles.types import AbortPolicy, AbortScope, CancelMode, TimeLimit
from supervisor.plans import Settings
from supervisor.plans.settings import LimitsConfig
from supervisor.policies.abort_plan import UnknownTarget
from supervisor.ports import Compacted, JournalError, JournalUnavailable, Place, Retention
from supervisor.runtime.entity import Degraded, Refused
from supervisor.runtime.entity_types import TASK_KIND
from supervisor.runtime.journal_writer import Cause
from supervisor.runtime.live_session import AgentProfile, NoSuchEntity
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.house import MOMENT_S, House
from supervisor.simulation.misuse import misuse

__all__ = ["HOSTING"]

ID_MAX: Final = 200


async def obeys(turn: AgentTurn) -> str:
    """Sleeps for as long as it is told to, fails, delegates, or gives its prompt back."""
    word, _, rest = turn.prompt.partition("\n")[0].partition(" ")
    match word:
        case "sleep":
            await anyio.sleep(float(rest))
        case "hang":
            await turn.call("hang", anyio.sleep_forever)
        case "fail":
            raise RuntimeError(rest)
        case "delegate":
            outcome = await turn.delegate("kid", rest)
            return f"{outcome.outcome}: {outcome.text}{outcome.error}"
    return turn.prompt


class Crowd:
    """Several who want something of sessions at once, and what they are told."""

    def __init__(self, group: TaskGroup) -> None:
        self._group = group
        self.told: dict[str, Any] = {}

    async def ask(self, session: Session, prompt: str, name: str = "") -> None:
        """Ask without waiting for the answer, under that name."""
        self._group.start_soon(self._ask, session, prompt, name or session.id)
        await anyio.sleep(MOMENT_S)

    async def _ask(self, session: Session, prompt: str, name: str) -> None:
        try:
            self.told[name] = await session.run(prompt)
        except (Refused, NoSuchEntity, JournalError) as error:
            self.told[name] = type(error)

    async def wait(self, name: str, waits: Callable[..., Any], *args: Any) -> None:
        """Wait for that beside everything else."""

        async def waiting() -> None:
            self.told[name] = await waits(*args)

        self._group.start_soon(waiting)
        await anyio.sleep(MOMENT_S)

    def outcome(self, name: str) -> tuple[str, str]:
        result = self.told.get(name)
        return (result.outcome, result.error) if isinstance(result, TurnResult) else ("", str(result))


@asynccontextmanager
async def hosted(
    house: House, settings: Settings | None = None, **more: Any
) -> AsyncIterator[tuple[Supervisor, Crowd]]:
    """A supervisor with a function among its agents; what is still under way in the end is aborted."""
    agents = {"f": AgentProfile(name="f", adapter="inprocess", function=obeys, directory="/f")}
    async with house.open(settings, agents, **more) as sup, anyio.create_task_group() as group:
        yield sup, Crowd(group)
        for one in sup.sessions() if sup.failure is None else ():
            with suppress(UnknownTarget):
                await sup.abort(one.id, AbortScope.SESSION, now=True)
        group.cancel_scope.cancel()


async def names(desk: Desk) -> None:
    """A name that was used gets a number; a child's is its path, and a short one where that would be too long."""
    async with hosted(House(desk)) as (sup, _):
        given = [(await sup.start_session("a", agent="f")).id for _ in range(3)]
        desk.same("ids", given, ["a", "a-2", "a-3"])
        child = await sup.session("a").start_child("b")
        again = await sup.session("a").start_child("b")
        desk.same("ids of children", (child.id, again.id), ("a/b", "a/b-2"))
        one, long = child, "n" * 64
        path = child.id
        while len(path) + 65 <= ID_MAX:
            one, path = await one.start_child(long), f"{path}/{long}"
            desk.same("a long id", one.id, path)
        exact = "x" * (ID_MAX - len(path) - 1)
        desk.same("as long as may be", (await one.start_child(exact)).id, f"{path}/{exact}")
        first, second = await one.start_child(f"{exact}x"), await one.start_child(f"{exact}x")
        desk.same("longer", (first.id, second.id), (f"a/~/{exact}x", f"a/~/{exact}x-2"))
        below = await first.start_child("y")
        desk.same("below that", (below.id, sup.tree.works[below.id].parent_id), (f"{first.id}/y", first.id))
        desk.same("its root", sup.tree.works[below.id].root_id, "a")
        await sup.start_session("n" * 64, agent="f")
        desk.same("names of runs", [sup.new_run(), sup.new_run()], ["1.1", "1.2"])
        desk.same("other ids", [sup.new_id("w"), sup.new_id("w"), sup.new_id("a")], ["w", "w-2", "a-4"])
        desk.same("messages", [await one.send("x"), await one.send("y", urgent=True)], ["m1.1", "m1.2"])
        await misuse(desk.say, sup, "a")
        await misuse(desk.say, sup, None)
        desk.same("all of them", len(sup.sessions()), len(sup.tree.works))
        desk.same("oldest first", [one.id for one in sup.sessions()][:4], ["a", "a-2", "a-3", "a/b"])


async def homes(desk: Desk) -> None:
    """Whose agent, policy and directory a session has, where nobody says otherwise; what differs is on record."""
    house = House(desk)
    async with hosted(house) as (sup, crowd):
        standard = sup.settings.policy.value()
        own = AbortPolicy(tool_to_sibling=True, sibling_to_session=True, ladder=standard.ladder)
        root = await sup.start_session("r", agent="f", policy=own, directory="/other")
        child = await root.start_child("c")
        puppet = await root.start_child("p", agent="puppet", cancel_mode="abandon")
        function = await sup.start_session("g", agent=obeys)
        placed = await sup.start_session("q", agent="f", place=Place(owner="t", rollback=True))
        same = await sup.start_session("s", agent="f", policy=standard)
        for one, agent, directory in ((root, "f", "/other"), (child, "f", "/other"), (puppet, "puppet", "/house")):
            work = sup.tree.works[one.id]
            desk.same(f"{one.id} has", (work.profile.name, work.directory), (agent, directory))
            desk.same(f"the policy of {one.id}", work.policy, own)
        desk.same("a function", sup.tree.works[function.id].profile.name, "obeys")
        desk.same("how it ends", sup.tree.works[puppet.id].mode, CancelMode.ABANDON)
        facts = {one.id: await house.events(one.id, "Placed") for one in (root, child, puppet, function, placed, same)}
        desk.same("who has that on record", [one for one, found in facts.items() if found], ["r", "r/p", "q"])
        told = msgspec.convert(facts["r"][0].metadata["policy"], AbortPolicy)
        desk.same("a policy on record", (told, facts["r"][0].metadata["mode"]), (own, "wait_completed"))
        desk.same(
            "a mode on record",
            (facts["r/p"][0].metadata["mode"], facts["r/p"][0].metadata["policy"]),
            ("abandon", None),
        )
        where = msgspec.convert(facts["q"][0].metadata["place"], Place)
        desk.same("a place on record", where, Place(owner="t", rollback=True))
        for one in (root, placed):
            await crowd.ask(one, "hello")
        begun = [one for one in house.rooms.noted if one[0] == "begin"]
        desk.same("places that were made", begun, [("begin", "q", where)])
        prepared = [one for one in house.rooms.noted if one[0] == "prepare"]
        desk.same("prepared", prepared, [("prepare", "r", "/other", "r"), ("prepare", "q", "/f", "q")])
        desk.same(
            "where it works", (sup.tree.works["r"].directory, sup.tree.works["r/c"].directory), ("/other/r", "/other")
        )
        desk.same("used", (root.used.turns, root.budget.limits, sup.used_by("g").told), (1, {}, {}))
        await root.close()
        desk.same("who lives on", [one.id for one in sup.sessions()], ["r/p", "g", "q", "s"])
        adopted = (await house.events("r/p", "Adopted"))[0].metadata
        desk.same("as whose", (adopted["left"], adopted["parent"]), ("r", None))
        await root.close()
        desk.same("a handle on what has ended", await root.result(), None)
        await desk.raises("its state", _state(root), NoSuchEntity)
        house.rooms.fails["prepare"] = "no room"
        other = await sup.start_session("t", agent="f")
        await crowd.ask(other, "hello")
        desk.same("who has no room", ["no room" in crowd.outcome("t")[1], "t" in sup.tree.works], [True, False])
        refused = await desk.raises("a child of who has ended", root.start_child("x"), NoSuchEntity)
        desk.same("of whom", getattr(refused, "entity_id", ""), "r")


async def _state(session: Session) -> str:
    return session.state


async def waits(desk: Desk) -> None:
    """As many prompts, and messages, may wait as the limits say; each answer is its own prompt's."""
    limits = LimitsConfig(waiting_max=3)
    async with hosted(House(desk), Settings(limits=limits)) as (sup, crowd):
        session = await sup.start_session("s", agent="f")
        desk.same("nothing is asked", (await session.result(), sup.under_way()), (None, 0))
        for number in range(4):
            await crowd.ask(session, "sleep 10" if not number else f"say {number}", str(number))
        desk.same("under way", sup.under_way(), 4)
        await crowd.wait("last", session.result)
        await crowd.wait("answer", sup.answer_or_stop)
        await crowd.ask(session, "too many", "no")
        desk.same("one prompt too many", crowd.told, {"no": Refused})
        for number in range(3):
            await session.send(f"message {number}")
        await desk.raises("one message too many", session.send("no"), Refused)
        await desk.raises("urgent or not", session.send("no", urgent=True), Refused)
        await anyio.sleep(11.0)
        desk.same("who answers first", ["answer" in crowd.told, sup.under_way()], [True, 0])
        texts = [crowd.told[str(number)].text.partition("\n")[0] for number in range(4)]
        desk.same("answers", texts, ["sleep 10", "say 1", "say 2", "say 3"])
        desk.same("the last one", crowd.told["last"], crowd.told["3"])
        desk.same("messages went with", [f"message {n}" in crowd.told["1"].text for n in range(3)], [True] * 3)
        seqs = [crowd.told[str(number)].seq for number in range(4)]
        reaped = [one.seq for one in await _of(sup, "s", "TurnReaped")]
        desk.same("the records that settled them", seqs, reaped)
        asked = [one.metadata["request_id"] for one in await _of(sup, "s", "TurnRequested")]
        desk.same("their ids", asked, [f"s:r{number}" for number in range(1, 5)])
        outcome = await sup.outcome_of("s", "fail this", Cause(actor="host"), once=True)
        desk.same("a try that is the only one", (outcome.outcome, "this" in outcome.error), ("failed", True))
        desk.same("its turns", len(await _of(sup, "s", "TurnRequested")), 5)
        await anyio.sleep(5.0)
        desk.again()
        short = await sup.outcome_of("s", "hang", Cause(actor="host"), once=True, limit=TimeLimit(7.0))
        desk.same("a time of its own", short.outcome, "failed")
        desk.at("a time of its own", 7.0, 4)
        for name in ("no one", "s:t1"):
            await desk.raises(f"the state of {name}", _state(sup.session(name)), NoSuchEntity)
        await sup.heartbeat(timeout_s=1.0)


async def _of(sup: Supervisor, entity_id: str, *names: str) -> list[Any]:
    return [one for one in await sup.journal.events(entity_id=entity_id) if one.event in names]


async def drains(desk: Desk) -> None:
    """A drain finishes what runs, gives up what waits to try again, takes nothing new, and ends in its time."""
    settings = Settings(drain_s=20.0)
    for case in ("finished", "late", "twice", "now"):
        house = House(desk)
        async with hosted(house, settings) as (sup, crowd):
            long = {"finished": "sleep 5", "late": "hang", "twice": "hang", "now": "hang"}[case]
            works, cools, _ = [await sup.start_session(name, agent="f") for name in "wci"]
            await crowd.ask(cools, "fail it")
            await crowd.ask(works, long)
            desk.same(f"{case}: before", (works.state, cools.state), ("Running", "CoolingDown"))
            desk.again()
            await sup.stop(now=case == "now", actor="me")
            await anyio.sleep(MOMENT_S)
            desk.same(f"{case}: it stops", (sup.stopping.is_set(), sup.stop_now.is_set()), (True, case == "now"))
            await desk.raises(f"{case}: something new", sup.start_session("n", agent="f"), Refused)
            gave_up = crowd.outcome("c")
            desk.same(
                f"{case}: what waited",
                (gave_up[0], "c" in sup.tree.works),
                ("aborted" if case == "now" else "failed", False),
            )
            if case == "twice":
                await anyio.sleep(3.0)
                await sup.stop(actor="me")
            if case == "finished":
                await works.start_child("kid")
            if case == "late":  # else its deadline and that of the drain may be rounded up to one moment
                await anyio.sleep(1.0)
            await crowd.wait("drained", sup.drain)
            await anyio.sleep(30.0 if case == "late" else 8.0)
            desk.same(f"{case}: is over", ("drained" in crowd.told, sup.tree.works), (True, {}))
            wanted = {"finished": "completed"}.get(case, "aborted")
            desk.same(f"{case}: what ran", crowd.outcome("w")[0], wanted)
            stops = await _of(sup, "w", "OperatorStop")
            desk.same(
                f"{case}: its stop",
                [(one.actor, one.metadata["now"]) for one in stops],
                [("host" if case == "finished" else "me", case in ("twice", "now"))],
            )
            if case == "late":
                desk.same("why", "drain_s" in stops[0].reason, True)
                late_s = stops[0].monotonic_s - (await _of(sup, "c", "OperatorStop"))[0].monotonic_s
                desk.at("the deadline", 20.0, 4, late_s)


async def lefts(desk: Desk) -> None:
    """A block that is left by an error aborts everything, with that reason; one that is left in order drains."""
    house = House(desk)
    try:
        async with anyio.create_task_group() as group, house.open(Settings(drain_s=20.0)) as sup:
            for name in "ab":
                session = await sup.start_session(name, agent="puppet")
                await Crowd(group).ask(session, "work", name)
            await session.start_child("kid")
            raise ZeroDivisionError("by host")
    except* ZeroDivisionError:
        pass
    for name in ("a", "b", "b/kid"):
        stop = [one for one in house.store.logs[name].after(0, 1000) if one.event == "OperatorStop"]
        wanted = [("host", True)]
        desk.same(
            f"the end of {name}", [(one.actor, "ZeroDivisionError: by host" in one.reason) for one in stop][:1], wanted
        )
    desk.same("who is left", [row.id for row in house.store.entities.values() if not row.ended], [])


async def losses(desk: Desk) -> None:
    """An actor that crashes is its session's end, with all that lives and dies with it; who may outlive it does."""
    house = House(desk)
    async with hosted(house) as (sup, crowd):
        parent = await sup.start_session("p", agent="f")
        child = await parent.start_child("c")
        below = await child.start_child("b")
        free = await parent.start_child("free", cancel_mode="abandon")
        asked = await child.start_child("asked", cancel_mode="wait_requested")
        other = await sup.start_session("o", agent="f")
        for one in (parent, child, below, free, asked, other):
            await crowd.ask(one, "hang")
        _break(sup, "p")
        await desk.raises("who speaks to it", parent.send("x"), TypeError)
        await anyio.sleep(1.0)
        outcomes = {one: crowd.outcome(one)[0] for one in crowd.told}
        wanted = {"p": "failed", "p/c": "failed", "p/c/b": "failed", "p/c/asked": "aborted"}
        desk.same("who is answered", outcomes, wanted)
        told = ["its parent was lost" in crowd.outcome(one)[1] for one in ("p", "p/c", "p/c/b")]
        desk.same("why", (told, "TypeError" in crowd.outcome("p")[1]), ([False, True, True], True))
        desk.same("who lives", sorted(sup.tree.works), ["o", "p/free"])
        desk.same("the fact", [one.event for one in await house.events("p", "ActorLost")], ["ActorLost"])
        adopted = [one.metadata["parent"] for one in await house.events("p/free", "Adopted")]
        desk.same("whose it is now", adopted, [None])
        desk.same("entities", sorted(one for one in sup.tree.entities if one.startswith(("p:", "p/c"))), [])
    house = House(desk)
    house.judged = False  # its turn has no last record: the next supervisor sees to that
    async with hosted(house) as (sup, crowd):
        await crowd.ask(await sup.start_session("o", agent="f"), "hang")
        _break(sup, "o:t1")
        await sup.abort("o:t1:c1", AbortScope.TOOL)
        await anyio.sleep(1.0)
        gone = ("the actor of o:t1 crashed" in crowd.outcome("o")[1], "o" in sup.tree.works)
        desk.same("a turn that crashes", gone, (True, False))
        desk.same("who says so", [one.actor for one in await house.events("o", "FatalError")], ["kernel"])


async def ended_before_that(desk: Desk) -> None:
    """A child whose last record is on its way when its parent's actor crashes: nothing follows on that record, whatever
    the parent's end means to it."""
    for mode in ("wait_completed", "wait_requested", "try", "abandon"):
        house = House(desk)
        async with hosted(house) as (sup, _):
            parent = await sup.start_session("p", agent="f")
            child = await parent.start_child("c", cancel_mode=mode)
            house.commit_s = 2.0
            sup.tree.end(child.id, OperatorStop(reason="enough"), cause=Cause(actor="ann"))
            await anyio.sleep(0.5)
            on_its_way = sup.tree.entities[child.id].ended, child.id in sup.tree.works
            desk.same(f"{mode}: its last record is on its way", on_its_way, (True, True))
            _break(sup, "p")
            await desk.raises("who speaks to it", parent.send("x"), TypeError)
            await anyio.sleep(10.0)
            house.commit_s = 0.0
            said = [one.event for one in await house.log(child.id)]
            desk.same(f"{mode}: its last records", said[-2:], ["OperatorStop", "Ended"])
            desk.same(f"{mode}: who lives", ([*sup.tree.works], [*sup.tree.entities]), ([], []))


def _break(sup: Supervisor, entity_id: str) -> None:
    """The next event that it hears crashes its actor."""

    def bug(data: Any, event: Any) -> bool:
        raise TypeError("a bug")

    entity = sup.tree.entity(entity_id)
    entity.lifecycle = entity.lifecycle._replace(stale=bug)


async def disks(desk: Desk) -> None:
    """While its disk is down a supervisor takes nothing new and says so; one that is lost ends everything at once."""
    house = House(desk)
    async with hosted(house) as (sup, crowd):
        session = await sup.start_session("s", agent="f")
        await crowd.wait("degraded", sup.degraded)
        desk.same("who waits for an outage", "degraded" in crowd.told, False)
        house.disk_fails = JournalUnavailable("full")
        await crowd.ask(session, "hang")
        await anyio.sleep(1.0)
        desk.same("its outage", (sup.outage is not None, "degraded" in crowd.told), (True, True))
        await desk.raises("a session", sup.start_session("n", agent="f"), Degraded)
        await desk.raises("a child", session.start_child("n"), Degraded)
        await desk.raises("a prompt", session.run("x"), Degraded)
        await desk.raises("a message", session.send("x"), Degraded)
        await desk.raises("an answer", sup.answer("s:t1:p1", allow=True), Degraded)
        await crowd.wait("recovered", sup.recovered)
        desk.same("it is waited for", "recovered" in crowd.told, False)
        await crowd.wait("abort", lambda: sup.abort("s", AbortScope.SESSION, now=True))
        await anyio.sleep(20.0)
        receipt = crowd.told.get("abort")
        desk.same(
            "an abort meanwhile", (receipt is not None, getattr(receipt, "outage", None) is not None), (True, True)
        )
        house.disk_fails = None
        await anyio.sleep(10.0)
        desk.same("after it", (sup.outage, "recovered" in crowd.told, "s" in sup.tree.works), (None, True, False))
        desk.same("who is answered", crowd.outcome("s")[0], "aborted")
    house = House(desk)
    try:
        async with hosted(house) as (sup, crowd):
            sessions = [await sup.start_session(name, agent="f") for name in "ab"]
            for one in sessions:
                await crowd.ask(one, "hang")
            await crowd.wait("closed", _raised, sup.close_session, "a")
            house.disk_fails = JournalError("gone")
            await crowd.wait("sent", _raised, sessions[1].send, "x")
            await anyio.sleep(1.0)
            desk.same(
                "a journal that is lost", (isinstance(sup.failure, JournalError), sup.stop_now.is_set()), (True, True)
            )
            told = [(crowd.outcome(name)[0], "gone" in crowd.outcome(name)[1]) for name in "b"]
            desk.same("who is answered", told, [("failed", True)])
            desk.same("what ended", [work.told for work in sup.tree.works.values()], [True] * len(sup.tree.works))
    except* JournalError:
        pass


async def _raised(waits: Callable[..., Any], *args: Any) -> type[BaseException] | None:
    try:
        await (waits(*args, reason="") if len(args) == 1 and args[0] == "a" else waits(*args))
    except Exception as error:
        return type(error)
    return None


async def farewells(desk: Desk) -> None:
    """An end waits 10 s for a disk that is down, once everything else has ended, and no longer; processes are not kept
    waiting. One that recovers in time holds every record."""
    for how, back_s in (("left", 5.0), ("left", None), ("stopped", 5.0), ("stopped", None), ("work", None)):
        house, gave_up = House(desk), False
        if how == "work":
            house = await _with_work(desk)
        try:
            async with (
                anyio.create_task_group() as world,
                house.open(Settings(drain_s=5.0)) as sup,
                anyio.create_task_group() as group,
            ):
                await sup.start_session("s", agent="puppet")
                if how != "work":
                    group.start_soon(_hear, sup.session("s"))
                await anyio.sleep(MOMENT_S)
                house.disk_fails = JournalUnavailable("full")
                group.start_soon(_hear, sup.session("s"), "x")
                await anyio.sleep(1.0)
                desk.again()
                if how == "stopped":
                    await sup.stop(now=True)
                if back_s is not None:
                    world.start_soon(_recover, house, back_s)
                if how == "stopped":
                    await anyio.sleep(3.0)
                    desk.same("its processes", [one.alive for one in house.puppets], [False])
                    await anyio.sleep(6.5)
                    desk.same("not before its time", sup.failure, None)
                    await anyio.sleep(3.0)
                    desk.same("in its time", sup.failure is None, back_s is not None)
                group.cancel_scope.cancel()
        except* JournalError:
            gave_up = True
        what = f"{how}, the disk {'recovers' if back_s is not None else 'does not recover'}"
        desk.same(f"{what}: it gave up", gave_up, back_s is None)
        desk.same(f"{what}: no process is left", [one.alive for one in house.puppets if one.alive], [])
        lives = [row.id for row in house.store.entities.values() if not row.ended]
        desk.same(f"{what}: the records", bool(lives), back_s is None)
        desk.same(f"{what}: in its time {desk.since():g}", desk.since() < 45.0, True)


async def _hear(session: Session, prompt: str = "work") -> None:
    with suppress(Refused, NoSuchEntity, JournalError):
        await session.run(prompt)


async def _recover(house: House, after_s: float) -> None:
    await anyio.sleep(after_s)
    house.disk_fails = None


async def _with_work(desk: Desk) -> House:
    """A house whose supervisor was killed while a task waited that nobody takes up."""
    house = House(desk)
    house.judged = False
    async with house.open() as sup:
        data = TaskData(workstream="w", name="t")
        sup.tree.birth(TASK_KIND, "t", parent_id=None, state=Task.OPEN, data=data, cause=Cause(actor="me"))
        await sup.ledger.flush()
        left = house.left()
        sup.tree.bury("t")
    left.judged = False
    return left


class _Upkeep:
    """Notes what it is asked to keep."""

    def __init__(self) -> None:
        self.asked: list[tuple[Retention, list[str]]] = []
        self.fails = False

    async def compact(self, retention: Retention, living: Callable[[], Collection[str]]) -> Compacted:
        self.asked.append((retention, sorted(living())))
        if self.fails:
            raise JournalError("not now")
        return Compacted(archives=("a",), records=3, entities=1)

    async def preserve(self, name: str, records: Any) -> None:
        return None


async def keeping(desk: Desk) -> None:
    """The journal is compacted after a minute, then as often as the settings say, and when a host wants it."""
    async with hosted(House(desk)) as (sup, _):
        await desk.raises("a compaction of what is in memory", sup.compact(), Refused)
    for every_s, wanted in ((100.0, 1), (30.0, 4)):
        settings, upkeep = Settings(), _Upkeep()
        settings = settings.model_copy(update={"retention": settings.retention.model_copy(update={"every_s": every_s})})
        async with hosted(House(desk), settings, upkeep=upkeep) as (sup, _):
            await sup.start_session("s", agent="f")
            await anyio.sleep(30.0 * 4.5)
            desk.same(f"compactions, each {every_s:g} s", len(upkeep.asked), wanted)
            upkeep.fails = True
            await anyio.sleep(every_s)
            desk.same("one that fails", len(upkeep.asked), wanted + 1)
            upkeep.fails = False
            mine = Retention(keep_s=5.0, records_max=None)
            desk.same("what it says", (await sup.compact(mine)).records, 3)
            desk.same("what is kept", upkeep.asked[-1], (mine, ["s"]))
            desk.same("what is kept by itself", upkeep.asked[0], (settings.retention.value(), ["s"]))
            await anyio.sleep(every_s)
            desk.same("the next one", len(upkeep.asked), wanted + 3)


async def changes(desk: Desk) -> None:
    """Other agents and settings hold for who starts from now on; secrets of the former stay secrets."""
    house = House(desk)
    one = AgentProfile(name="one", adapter="puppet", directory="/one", env={"API_KEY": "first-secret-word"})
    async with house.open(agents={"one": one}) as sup, anyio.create_task_group() as group:
        crowd = Crowd(group)
        session = await sup.start_session("s", agent="one")
        await crowd.ask(session, "tell me first-secret-word")
        reconfigure(sup, agents={}, settings=Settings(limits=LimitsConfig(waiting_max=7)))
        error = await desk.raises("an agent that is not there", sup.start_session("t", agent="one"), ValueError)
        desk.same("who is there, in its words", str(error).endswith("known: none"), True)
        desk.same("profiles", (sup.profile("one"), sup.settings.limits.waiting_max), (None, 7))
        await session.send("and first-secret-word again")
        found = [b"first-secret-word" in record for record in house.store.log.records]
        desk.same("secrets on record", any(found), False)
        desk.same("who goes on", (session.state, sup.state_of("s:t1")), ("Running", "RUNNING"))
        rows = {row.id: (row.kind, row.parent_id, row.state) for row in sup.rows()}
        wanted = {
            "s": ("session", None, "Running"),
            "s:a1": ("agent", "s", "working"),
            "s:t1": ("turn", "s", "RUNNING"),
        }
        desk.same("rows", rows, wanted)
        async with sup.subscribe(after_seq=0) as events:
            seqs = [(await anext(events)).seq for _ in range(sup.ledger.last_seq)]
        desk.same("what a subscriber hears", seqs, [*range(1, sup.ledger.last_seq + 1)])
        await sup.abort("s", AbortScope.SESSION)
        group.cancel_scope.cancel()


async def aborted_twice(desk: Desk) -> None:
    """Two sibling aborts of one session, while its last record is on its way: who has ended is nobody else's
    child by then, and the second abort reaches nobody whom the first does not."""
    house = House(desk)
    policy = AbortPolicy(sibling_to_session=True)
    async with hosted(house) as (sup, _):
        root = await sup.start_session("r", agent="f", policy=policy)
        child = await root.start_child("c", cancel_mode="try")
        below = await child.start_child("b", cancel_mode="try")
        house.commit_s = 2.0
        await root.send("a message")  # the disk is busy with it
        async with anyio.create_task_group() as group:
            group.start_soon(partial(sup.abort, below.id, AbortScope.SIBLING, now=True))
            await anyio.sleep(0.5)
            await sup.abort(below.id, AbortScope.SIBLING)
        house.commit_s = 0.0
        desk.same("who lives on", [*sup.tree.works], [root.id])
        await sup.abort(root.id, AbortScope.SESSION)


HOSTING = (
    names,
    homes,
    waits,
    drains,
    lefts,
    losses,
    ended_before_that,
    disks,
    farewells,
    keeping,
    changes,
    aborted_twice,
)
