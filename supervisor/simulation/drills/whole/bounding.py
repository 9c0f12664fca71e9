"""Bounding: how much may wait, how often is tried again, and how long an end waits, on disks that take their time.

Each bound is met from both sides, with drawn numbers, and reckoned from docs/plans.md (``limits``), docs/design.md and
docs/recovery.md alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, cast

import anyio

from supervisor.embedding.runtime import Supervisor
from supervisor.host.shutdown import Shutdown
from supervisor.lifecycles.task import Task, TaskData
from supervisor.lifecycles.types import AbortPolicy, AbortScope, Ladder
from supervisor.plans import Settings
from supervisor.plans.settings import LimitsConfig
from supervisor.ports import JournalError, JournalUnavailable, Malformed, Ready, TurnEnded
from supervisor.runtime.entity import Refused
from supervisor.runtime.entity_types import TASK_KIND
from supervisor.runtime.journal_writer import Cause
from supervisor.runtime.one_shot_event import Moment
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.house import MOMENT_S, House, Puppet
from supervisor.simulation.drills.whole.hosting import Crowd
from supervisor.simulation.keyed_random import Chance

__all__ = ["BOUNDING"]

READY: Final = Ready("its-name", "a puppet")
CLOSE_S: Final = 1.0
"""Two instants that are nearer to each other may come in either order: timers are rounded."""


# ------------------------------------------------------------------------------------------------------ what may wait
QUEUES: Final = tuple(
    (most, early, commit_s) for most, early in ((2, 1), (3, 1), (4, 1), (4, 2), (4, 3)) for commit_s in (0.0, 0.5)
)
"""How many may wait, how many do already, and how long a commit takes: what waits is what waited before, and what was
asked for just now, each of it once."""


async def queues(desk: Desk) -> None:
    """Of prompts as many may wait as the limits say beside the one that is worked on, also while the disk has not
    taken them yet; of messages as many, however they come. Who is refused changes nothing."""
    for most, early, commit_s in QUEUES:
        for busy in (False, True):
            more = most + 1
            await _queue(desk, most, early + 1, early, commit_s, asked=more, sent=more, urgent=1, busy=busy)
    for number in range(3):
        chance = desk.chance.below(number)
        most, commit_s = chance.integer(1, 4, "most"), chance.choice((0.0, 0.5), "commit")
        asked, sent = chance.integer(1, 7, "asked"), chance.integer(1, 7, "sent")
        first, urgent = chance.integer(1, most + 1, "first"), chance.integer(0, 3, "urgent")
        await _queue(desk, most, first, 0, commit_s, asked=asked, sent=sent, urgent=urgent)


async def _queue(
    desk: Desk,
    most: int,
    first: int,
    words: int,
    commit_s: float,
    *,
    asked: int,
    sent: int,
    urgent: int,
    busy: bool = False,
) -> None:
    """*first*, *words*: the prompts, and the messages, that are there when the others come; *busy*: their session hears
    of none of these yet."""
    house = House(desk)
    settings = Settings(limits=LimitsConfig(waiting_max=most))
    async with house.open(settings) as sup, anyio.create_task_group() as group:
        crowd, session = Crowd(group), await sup.start_session("s", agent="puppet")
        house.commit_s = commit_s
        for place in range(first):
            await crowd.ask(session, f"early {place}", f"e{place}")
        await anyio.sleep(3.0)
        for place in range(words):
            await session.send(f"early word {place}")
        if busy:
            await sup.tree.system.suspend("s", timeout_s=1.0)
        await _all_at_once(group, crowd, session, asked, sent, urgent)
        if busy:
            sup.tree.system.resume("s")
        await anyio.sleep(3.0)
        room = most - (first - 1)  # one of those is worked on
        refused = [name for name, told in crowd.told.items() if told is Refused]
        prompts = [name for name in refused if name.startswith("p")]
        desk.same(f"prompts of {asked} that are one too many for {room}", len(prompts), max(asked - room, 0))
        turned_down = [name for name in refused if name.startswith("m")]
        desk.same(f"messages of {sent} for {most - words}", len(turned_down), max(sent - (most - words), 0))
        taken = [one.metadata["prompt"] for one in await house.events("s", "TurnRequested")]
        desk.same("what is on record", len(taken), first + min(asked, room))
        desk.same("each once", len({*taken}), len(taken))
        kept = await house.events("s", "MessageReceived", "UrgentMessage")
        desk.same("messages on record", len(kept), min(words + sent, most))
        house.commit_s = 0.0
        await sup.abort("s", AbortScope.SESSION, now=True)
        group.cancel_scope.cancel()


async def lowered(desk: Desk) -> None:
    """A session for which more waits than the settings of a later supervisor allow takes no more; what waits stays."""
    house = House(desk)
    async with house.open(Settings(limits=LimitsConfig(waiting_max=4))) as sup, anyio.create_task_group() as group:
        crowd, session = Crowd(group), await sup.start_session("s", agent="puppet")
        for place in range(4):  # one of the prompts is worked on
            await crowd.ask(session, f"prompt {place}")
            await session.send(f"word {place}")
        left = house.left()
        await sup.abort("s", AbortScope.SESSION, now=True)
        group.cancel_scope.cancel()
    async with left.open(Settings(limits=LimitsConfig(waiting_max=2))) as sup:
        await desk.raises("one more prompt", sup.session("s").run("more"), Refused)
        await desk.raises("one more message", sup.session("s").send("more"), Refused)
        told = (await left.events("s", "TurnRequested"), await left.events("s", "MessageReceived"))
        desk.same("what is on record", [len(one) for one in told], [4, 4])
        await sup.abort("s", AbortScope.SESSION, now=True)


async def _all_at_once(group: Any, crowd: Crowd, session: Any, asked: int, sent: int, urgent: int) -> None:
    """Prompts and messages, before anything of it can be durable."""

    async def wish(name: str, waits: Callable[[], Any]) -> None:
        try:
            crowd.told[name] = await waits()
        except Refused as error:
            crowd.told[name] = type(error)

    for place in range(asked):
        group.start_soon(wish, f"p{place}", lambda place=place: session.run(f"prompt {place}"))
    for place in range(sent):
        late = {"urgent": True, "at": "turn_end"} if place < urgent else {}
        group.start_soon(wish, f"m{place}", lambda place=place, late=late: session.send(f"word {place}", **late))
    await anyio.sleep(MOMENT_S)


# --------------------------------------------------------------------------------------------------- how often again
async def retries(desk: Desk) -> None:
    """Who fails more than so many times within so many seconds is given up, at the failure that is one too many; a
    launch that fails is none of these, nor is the loss of a supervisor, whose next one counts on."""
    for number in range(5):
        await _fail_again(desk, desk.chance.below(number))


async def _fail_again(desk: Desk, chance: Chance) -> None:
    most, within_s = chance.integer(1, 3, "most"), chance.choice((9.0, 21.0, 45.0, 90.0), "within")
    cap_ms = chance.choice((2_000, 4_000, 16_000), "cap")
    takes_s = [chance.choice((0.3, 3.3, 11.3), "takes", place) for place in range(12)]
    launches = [not chance.happens(0.2, "no launch", place) for place in range(12)]
    launches[-most - 2 :] = [True] * (most + 2)
    fails, wanted, after = _given_up(most, within_s, cap_ms, takes_s, launches)
    if not after:
        return  # two of its instants are too near to each other
    house = House(desk)
    tries: list[Puppet] = []

    def begins(puppet: Puppet) -> Any:
        tries.append(puppet)
        return [READY] if launches[len(tries) - 1] else [Malformed("nonsense")]

    house.ready = begins
    limits = LimitsConfig(
        max_consecutive_errors=50,
        max_total_errors=50,
        backoff_cap_ms=cap_ms,
        restarts_max=most,
        restarts_within_s=within_s,
    )
    settings = Settings(limits=limits)
    async with house.open(settings) as sup, anyio.create_task_group() as group:
        session = await sup.start_session("s", agent="puppet")
        crowd = Crowd(group)

        async def answer(puppet: Puppet, seconds: float) -> None:
            await anyio.sleep(seconds)
            puppet.says(TurnEnded("error", "no"))
            await anyio.sleep(MOMENT_S)
            puppet.exit(0)  # the next try is another agent's

        def prompted(puppet: Puppet, text: str) -> Any:
            group.start_soon(answer, puppet, takes_s[len(tries) - 1])
            return ()

        house.answers = prompted
        desk.again()
        await crowd.ask(session, "work")
        await anyio.sleep(wanted + 2.0)
        stops = await house.events("s", "FatalError")
        what = f"{most} within {within_s:g} s, tried after {takes_s[: len(fails)]}"
        desk.same(f"{what}: tries", len(tries), len(fails))
        desk.same(f"{what}: given up", [("restart limit" in one.reason) for one in stops], [True])
        desk.same(f"{what}: is answered", crowd.outcome("s")[0], "failed")
        group.cancel_scope.cancel()
        for one in sup.sessions():
            await sup.abort(one.id, AbortScope.SESSION, now=True)


def _given_up(
    most: int, within_s: float, cap_ms: int, takes_s: list[float], launches: list[bool]
) -> tuple[list[float], float, bool]:
    """When each try fails, and when the last one does; false: that cannot be told, for two instants are too near."""
    now_s, fails, crashes = 0.0, list[float](), list[float]()
    for place, (seconds, launched) in enumerate(zip(takes_s, launches, strict=True)):
        now_s += seconds if launched else 0.0
        fails.append(now_s)
        if launched:
            if any(abs(now_s - one - within_s) < CLOSE_S for one in crashes):
                return fails, now_s, False
            crashes.append(now_s)
            if len([one for one in crashes if now_s - one <= within_s]) > most:
                return fails, now_s, True
        started = _errors_in_a_row(launches[: place + 1])
        now_s += min(2_000 * 2 ** (started - 1), cap_ms) / 1000
    return fails, now_s, False


def _errors_in_a_row(launches: list[bool]) -> int:
    """Since the last start: the one that fails after it is the first."""
    if launches[-1]:
        return 1
    return 1 + _errors_in_a_row(launches[:-1]) if launches[:-1] else 1


# ------------------------------------------------------------------------------------------------------- how long ends
async def drained(desk: Desk) -> None:
    """A block that is left in order finishes what was asked for, as long as the drain may take; one that is left by an
    error ends it by the ladder. What nobody takes up waits for a disk no longer than an end may."""
    for takes_s, drain_s, error, outcome in (
        (25.0, 60.0, False, "completed"),
        (25.0, 12.0, False, "aborted"),
        (25.0, 60.0, True, "aborted"),
    ):
        house, told = House(desk), dict[str, Any]()
        house.stops = lambda puppet: ()
        try:
            async with anyio.create_task_group() as group:
                async with house.open(Settings(drain_s=drain_s)) as sup:
                    session = await sup.start_session("s", agent="puppet")

                    async def ask(session: Any = session, told: dict[str, Any] = told) -> None:
                        told["s"] = await session.run("work")

                    async def end(house: House = house, takes_s: float = takes_s) -> None:
                        await anyio.sleep(takes_s)
                        house.puppets[-1].says(TurnEnded("end_turn"))

                    group.start_soon(ask)
                    group.start_soon(end)
                    await anyio.sleep(MOMENT_S)
                    desk.again()
                    if error:
                        raise ZeroDivisionError
                wanted_s = takes_s if outcome == "completed" else drain_s
                desk.same(f"{outcome}: how long that took", wanted_s - 1.0 < desk.since() < wanted_s + 20.0, True)
        except* ZeroDivisionError:
            desk.same("how long an abort took", 9.0 < desk.since() < 20.0, True)
        result = told.get("s")
        given = getattr(result, "outcome", None)
        desk.same(f"left by {'an error' if error else 'order'} within {drain_s:g} s", given, outcome)
    await _without_a_disk(desk)


async def _without_a_disk(desk: Desk) -> None:
    """Nothing is left but a task that nobody takes up, and the disk is down."""
    for back_s in (4.0, None):
        house = House(desk)
        house.judged = False
        async with house.open() as sup:
            data = TaskData(workstream="w", name="t")
            sup.tree.birth(TASK_KIND, "t", parent_id=None, state=Task.OPEN, data=data, cause=Cause(actor="me"))
            await sup.ledger.flush()
            left = house.left()
            sup.tree.bury("t")
        left.judged, gave_up = False, False
        try:
            async with anyio.create_task_group() as group:

                async def recover(left: House = left, back_s: float | None = back_s) -> None:
                    await anyio.sleep(back_s or 0.0)
                    left.disk_fails = None

                async with left.open():
                    left.disk_fails = JournalUnavailable("full")
                    desk.again()
                    if back_s is not None:
                        group.start_soon(recover)
        except* JournalError:
            gave_up = True
        what = f"a task that nobody takes up, the disk is back after {back_s}"
        desk.same(f"{what}: it gave up", gave_up, back_s is None)
        desk.same(f"{what}: not before its time", desk.since() > (back_s or 10.0) - CLOSE_S, True)
        desk.same(f"{what}: in its time", desk.since() < (back_s or 10.0) + 15.0, True)
        desk.same(f"{what}: its end", left.store.entities["t"].ended, back_s is not None)


async def lost(desk: Desk) -> None:
    """A journal that is lost while ends are waited for: whoever waits for a record is told so, and no longer kept than
    the processes; these are ended at once, and whoever waited for an answer has one."""
    house = House(desk)
    house.stops = lambda puppet: ()
    try:
        async with house.open() as sup, anyio.create_task_group() as group:
            crowd = Crowd(group)
            sessions = {name: await sup.start_session(name, agent="puppet") for name in ("one", "two", "three")}
            for name, session in sessions.items():
                await crowd.ask(session, "work", name)
            for puppet in house.puppets:
                puppet.stubborn = True
            await crowd.wait("abort", _failing, lambda: sup.abort("one", AbortScope.SESSION))
            await crowd.wait("joined", _failing, lambda: sup.abort("one", AbortScope.SESSION, reason="again"))
            await crowd.wait("closed", _failing, lambda: sup.close_session("two", reason="enough"))
            await crowd.wait("lost", sup.journal_lost)
            await anyio.sleep(1.0)
            told = sorted(name for name in crowd.told)
            desk.same("nobody is answered yet", told, [])
            house.disk_fails = JournalError("gone for good")
            await crowd.wait("sent", _failing, lambda: sessions["three"].send("x"))
            await anyio.sleep(1.0)
            _check_lost(desk, sup, crowd)
            desk.same("their processes", [("kill" in one.orders) for one in house.puppets], [True] * 3)
            for puppet in house.puppets:
                group.start_soon(_dies, puppet, 4.0)
            desk.again()
            await anyio.sleep(6.0)
            group.cancel_scope.cancel()
        desk.same("a supervisor without a journal", "left in order", "left by an error")
    except* JournalError:
        pass
    desk.same("who is left", [one.alive for one in house.puppets], [False] * 3)


async def left_without_a_journal(desk: Desk) -> None:
    """Whoever leaves a supervisor whose journal is lost waits for the ends of its agents, and for nothing that they are
    not in yet."""
    for what, prepare_s, wanted_s in (("at work", 0.0, 4.0), ("in no place yet", 1_000.0, 0.0)):
        house = House(desk)
        house.stops = lambda puppet: ()
        house.rooms.takes_s["prepare"] = prepare_s
        try:
            async with anyio.create_task_group() as world, house.open() as sup, anyio.create_task_group() as group:
                crowd = Crowd(group)
                session = await sup.start_session("s", agent="puppet")
                await crowd.ask(session, "work", "s")
                await anyio.sleep(1.0)
                for puppet in house.puppets:
                    puppet.stubborn = True
                    world.start_soon(_dies, puppet, 4.0)
                desk.again()
                house.disk_fails = JournalError("gone for good")
                await crowd.wait("sent", _failing, partial(session.send, "x"))
                group.cancel_scope.cancel()
        except* JournalError:
            pass
        desk.same(f"left, {what}, after {desk.since():g} s", wanted_s <= desk.since() < wanted_s + 2.0, True)


class Ending:
    """All that the end of a supervisor looks at: one session, and a disk that is down for so long."""

    def __init__(self, desk: Desk) -> None:
        self.system = desk.system
        self.disk = SimpleNamespace(outage=None, outages=0, up=Moment(), down=Moment())
        work = SimpleNamespace(over=Moment(), ended=Moment(), quiet=anyio.lowlevel.checkpoint)
        work.policy = AbortPolicy(ladder=Ladder(request_s=1.0, cancel_s=1.0, terminate_s=1.0, kill_s=1.0))
        self.works = {"s": work}
        self.ledger: Any = SimpleNamespace(disk=self.disk, abandon=self._abandon)
        self.shutdown = Shutdown(cast("Any", self), cast("Any", None), lambda: 0.0, cast("Any", None))

    def _abandon(self) -> None:
        self.shutdown.failure = JournalUnavailable("full")

    async def recover(self, back_s: float) -> None:
        await anyio.sleep(back_s)
        self.disk.outage, self.disk.outages = None, 1
        self.disk.up.set()

    async def end(self, ended_s: float) -> None:
        await anyio.sleep(ended_s)
        self.works["s"].over.set()
        self.works.pop("s").ended.set()


async def last_ends(desk: Desk) -> None:
    """An end that is never over is waited for no longer than any may take, unless it is a disk that holds it up: then
    until that is back, and has taken what there is, or for some seconds more."""
    longest_s = 4.0 + 15.0
    for back_s, ended_s, wanted_s, gives_up in (
        (0.0, 1_000.0, longest_s, False),
        (longest_s - 1.0, longest_s + 5.0, longest_s + 5.0, False),
        (longest_s + 9.0, longest_s + 15.0, longest_s + 15.0, False),
        (1_000.0, 1_000.0, longest_s + 10.0, True),
    ):
        ending, what = Ending(desk), f"a disk that is back after {back_s:g} s"
        async with anyio.create_task_group() as group:
            group.start_soon(ending.end, ended_s)
            if back_s:
                ending.disk.outage = "full"
                group.start_soon(ending.recover, back_s)
            desk.again()
            await ending.shutdown.all_ended(None)
            desk.at(what, wanted_s, 3)
            group.cancel_scope.cancel()
        desk.same(f"{what}: is given up", ending.shutdown.failure is not None, gives_up)


async def _dies(puppet: Puppet, after_s: float) -> None:
    await anyio.sleep(after_s)
    puppet.exit(-9, ended_by="kill")


async def _failing(waits: Callable[[], Any]) -> str:
    try:
        await waits()
    except JournalError as error:
        return f"failed: {error}"
    return "answered"


def _check_lost(desk: Desk, sup: Supervisor, crowd: Crowd) -> None:
    waits = {name: crowd.told.get(name) for name in ("joined", "closed", "sent")}
    told = {name: "gone for good" in str(one) for name, one in waits.items()}
    desk.same("who waits for a record is told", told, dict.fromkeys(waits, True))
    outcomes = {name: crowd.outcome(name)[0] for name in ("one", "two", "three")}
    desk.same("who waits for an answer has one", outcomes, dict.fromkeys(outcomes, "failed"))
    desk.same("how", "lost" in crowd.told and "gone for good" in str(crowd.told["lost"]), True)
    desk.same("it ends", (sup.stopping.is_set(), sup.stop_now.is_set(), sup.under_way()), (True, True, 0))


BOUNDING = (queues, lowered, retries, drained, lost, left_without_a_journal, last_ends)
