"""Rooms: merged aborts, names, moments, effects on paper, paths, and who listens; small, pure, and easy to get wrong.

Each is drawn densely and held to a plain account of what its page or its docstring says.
"""

from __future__ import annotations

import posixpath
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec

from supervisor.lifecycles.effects import (
    EFFECTS,
    Bury,
    LaunchAgent,
    OpenTurn,
    StartTimer,
    SupervisorEffect,
    Tell,
    TellNow,
    decoded,
    encoded,
)
from supervisor.lifecycles.events import BackoffElapsed, FatalError, SessionExited
from supervisor.lifecycles.types import AbortReason, Exit, LifecycleEvent, Rung, Verdict
from supervisor.policies.abort_request import AbortState, Joined, LaterCause, merged, same_abort
from supervisor.ports.path_safety import absent, climbs, outside
from supervisor.runtime.id_allocator import Names
from supervisor.runtime.one_shot_event import Moment, first_of
from supervisor.runtime.subscriptions import SubscriptionLagged, Subscriptions
from supervisor.simulation.drills.desk import Desk

__all__ = ["ROOMS"]

HERE: Final = Path(__file__).resolve()
STEPS: Final = 120
LATER_MAX: Final = 16
BUFFER: Final = 4096
NOT_WAITING: Final = frozenset({"TellNow", "CancelSession", "CancelStep", "ForceStopSession", "EndScope", "CancelTool"})
"""The effects that end or interrupt something: they wait for no disk."""


# ------------------------------------------------------------------------------------------------------------- aborts
async def merging(desk: Desk) -> None:
    """The first reason wins, later ones are appended, the hardest rung and the soonest deadline count."""
    hardness = {rung: place for place, rung in enumerate(("request", "cancel", "terminate", "kill", "abandon"))}
    for number in range(12):
        state: AbortState | None = None
        asked: list[AbortState] = []
        for step in range(24):
            chance = desk.chance.below(number, step)
            rung = chance.choice((Rung.REQUEST, Rung.REQUEST, Rung.KILL, Rung.CANCEL, Rung.TERMINATE), "rung")
            name = chance.choice((None, *(f"abort-{one}" for one in range(22))), "abort")
            wish = AbortState(
                abort_id=name, reason=f"r{step}", severity=rung, deadline=chance.integer(0, 40, "by") + 0.5
            )
            heard = [one.abort_id for one in asked]
            if state is not None:
                first = [asked[0].abort_id, *_later(asked)]
                desk.same("heard of before", same_abort(state, name), name is None or name in first)
            before, (state, joined) = state, merged(state, wish)
            asked.append(wish)
            hardest = max(asked, key=lambda one: hardness[one.severity.value]).severity
            soonest = min(one.deadline for one in asked)
            shown = (state.abort_id, state.reason, state.severity, state.deadline)
            desk.same("what is asked", shown, (asked[0].abort_id, "r0", hardest, soonest))
            desk.same("who else asked", [one.abort_id for one in state.later], _later(asked))
            reasons = [next(one.reason for one in asked if one.abort_id == later.abort_id) for later in state.later]
            if len(heard) <= LATER_MAX:
                desk.same("why else", [one.reason for one in state.later], reasons)
            wanted = Joined.BEGAN
            if before is not None:
                more = (before.severity, before.deadline) != (state.severity, state.deadline)
                wanted = Joined.RAISED if more else Joined.JOINED
            desk.same("what it did", joined, wanted)
    state = AbortState(abort_id="a", reason="r", severity=Rung.KILL, deadline=1.0, later=(_cause("b"),))
    for rungs in permutations((Rung.REQUEST, Rung.CANCEL, Rung.TERMINATE, Rung.KILL), 2):
        low, high = (msgspec.structs.replace(state, severity=one) for one in rungs)
        raised = hardness[rungs[1].value] > hardness[rungs[0].value]
        desk.same(f"{rungs}", merged(low, high).joined, Joined.RAISED if raised else Joined.JOINED)


def _cause(name: str) -> LaterCause:
    return LaterCause(abort_id=name, reason="r")


def _later(asked: list[AbortState]) -> list[str | None]:
    """Every other abort that is known by its id, once, as many as are kept."""
    found: list[str | None] = []
    for one in asked[1:]:
        if one.abort_id not in (None, asked[0].abort_id, *found):
            found.append(one.abort_id)
    return found[:LATER_MAX]


# -------------------------------------------------------------------------------------------------------------- names
async def naming(desk: Desk) -> None:
    """No id is given twice: a name that was used gets the first number that makes it new."""
    for number in range(6):
        chance = desk.chance.below(number)
        taken = [one for one in ("a", "b-2", "a-3", "c-1", "a-2-2", "s0/a", "t0/b-2") if chance.happens(0.5, one)]
        ours, used, lives = Names(taken), set(taken), {"s": 0, "t": 0}
        desk.same("what is remembered of a journal", len(ours), len(taken))
        for step in range(STEPS):
            one = chance.below(step)
            wanted = one.choice(("a", "b", "a-2", "a-3", "b-02", "c-1", "a-2-2", "d", "-2", "a-x"), "wanted")
            where = one.choice((None, None, "s", "t"), "below")
            below = None if where is None else f"{where}{lives[where]}"
            if where is not None and one.happens(0.1, "ends"):
                kept = len(ours)
                ours.forget(f"{where}{lives[where]}")
                desk.same("less is remembered", len(ours) <= kept, True)
                lives[where] += 1
                continue
            wanted = wanted if below is None else f"{below}/{wanted}"
            given = ours.new(wanted, below=below)
            desk.same(f"an id for {wanted}", given, _first_free(wanted, used))
            used.add(given)
        ours.new("a")
        ours.new("a")
        kept = len(ours)
        for _ in range(50):
            ours.new("a")
        desk.same("what is remembered of fifty more", len(ours) - kept, 0)
    several = Names(["x"])
    counts = []
    for wanted, below in (
        ("x", None),
        ("x", None),
        ("y", None),
        ("s/a", "s"),
        ("s/a", "s"),
        ("t/a", "t"),
        ("t/b", "t"),
    ):
        several.new(wanted, below=below)
        counts.append(len(several))
    for gone in ("s", "t", "t"):
        several.forget(gone)
        counts.append(len(several))
    desk.same("what is remembered", counts, [2, 2, 3, 4, 5, 6, 7, 5, 3, 3])


def _first_free(wanted: str, used: set[str]) -> str:
    number, found = 1, wanted
    while found in used:
        number += 1
        found = f"{wanted}-{number}"
    return found


# ------------------------------------------------------------------------------------------------------------ moments
async def moments(desk: Desk) -> None:
    """A moment comes once: who waits is called then, oldest first, who comes late at once, who left not at all."""
    moment, noted = Moment(), list[str]()
    calls = [partial(noted.append, one) for one in "abcd"]
    for one in (*calls, calls[0]):
        moment.then(one)
    moment.forget(calls[1])
    moment.forget(calls[1])
    Moment().forget(calls[1])
    desk.same("before it", (moment.is_set(), noted), (False, []))
    moment.then(lambda: moment.then(partial(noted.append, "within")))
    moment.set()
    moment.set()
    desk.same("when it comes", (moment.is_set(), noted), (True, ["a", "c", "d", "within"]))
    moment.then(calls[1])
    desk.same("who comes late", noted[4:], ["b"])
    desk.again()
    await moment.wait()
    desk.at("a wait for what has come", 0.0)
    for first in range(3):
        several = [Moment() for _ in range(3)]
        woken: list[float] = []

        async def wait(several: list[Moment] = several, woken: list[float] = woken) -> None:
            await first_of(*several)
            woken.append(desk.since())

        desk.again()
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.sleep(2.0)
            desk.same("nobody is woken before", woken, [])
            several[first].set()
        desk.at("the first of three", 2.0, 1)
        desk.same("who is left waiting", [one._calls or {} for one in several], [{}] * 3)
    with anyio.move_on_after(1.0) as scope:
        await Moment().wait()
    desk.same("a moment that never comes", scope.cancelled_caught, True)


# ------------------------------------------------------------------------------------------------------------ effects
async def papers(desk: Desk) -> None:
    """An effect reads from paper just as it was; only those that end something do not wait for the paper."""
    events = {one.name(): one for one in (FatalError, BackoffElapsed, SessionExited)}

    def event_of(name: str, fields: Any) -> Any:
        return msgspec.convert(fields, events[name])

    exited = SessionExited(incarnation=4, verdict=Verdict(exit=Exit.ERROR, error="no", abort_reason=AbortReason.OOM))
    for one in (
        Tell(to="s1", event=FatalError(message="m", at=3.5)),
        TellNow(to="s1", event=exited),
        StartTimer(name="t", delay_s=4.5, event=BackoffElapsed(), lasting=True),
        StartTimer(name="t", delay_s=0.0, event=exited),
        OpenTurn(turn_id="t", request_id="r", due_s=4.0),
        LaunchAgent(incarnation=2, prompt="p"),
        Bury(),
    ):
        back = decoded(encoded(one), event_of)
        desk.same("an effect from paper", (type(back), back), (type(one), one))
        told = msgspec.json.decode(encoded(one))
        desk.same("its name on paper", told["effect"], type(one).__name__)
        if isinstance(one, Tell | StartTimer):
            desk.same("its event on paper", (told["event"]["name"], [*told["event"]]), (type(one.event).name(), EVENT))
    kinds = _kinds(SupervisorEffect)
    desk.same("those with a name on paper", {*EFFECTS.values()}, kinds)
    desk.same("their names", [*EFFECTS], [one.__name__ for one in EFFECTS.values()])
    desk.same("those that do not wait", {one.__name__ for one in kinds if one.exempt}, {*NOT_WAITING})
    desk.same("a timer of nobody's wish", StartTimer(name="t", delay_s=1.0, event=BackoffElapsed()).lasting, False)


EVENT: Final = ["name", "fields"]


def _kinds(kind: type[SupervisorEffect]) -> set[type[SupervisorEffect]]:
    """All below it that the product has."""
    below = {one for one in kind.__subclasses__() if one.__module__ == kind.__module__}
    return below.union(*map(_kinds, below)) if below else set()


# -------------------------------------------------------------------------------------------------------------- paths
async def paths(desk: Desk) -> None:
    """What is named relative to a workspace stays in it, wherever its dots lead; a neighbour of like name does not."""
    parts = ("a", "b", "..", ".", "")
    for number in range(STEPS):
        chance = desk.chance.below(number)
        told = [chance.choice(parts, "part", place) for place in range(chance.integer(1, 6, "parts"))]
        path, depth, below = "/".join(told), 0, False
        for part in told:
            depth += {"..": -1, ".": 0, "": 0}.get(part, 1)
            below = below or depth < 0
        walked = list[str]()
        for part in told:
            if part == ".." and walked and walked[-1] != "..":
                walked.pop()
            elif part not in ("", "."):
                walked.append(part)
        wanted = "is absolute" if path.startswith("/") else ""
        if not wanted and walked[:1] == [".."]:
            wanted = "leads out of the workspace"
        desk.same(f"{path!r}", climbs(path), wanted)
        workspace = chance.choice(("/sim-no/w", "/", "/sim-no/w/"), "workspace")
        whole = f"{workspace.rstrip('/')}/{path.lstrip('/')}"
        inside = workspace == "/" or walked[:1] != [".."]
        found = outside("cwd", whole, workspace)
        if walked[:2] != ["..", "w"]:
            desk.same(f"{whole!r} is within {workspace!r}", found == "", inside)
        if found:
            desk.same(
                "what is told of it", ("cwd: " in found, repr(whole) in found, "/sim-no/w'" in found), (True,) * 3
            )
    for path, told_of in (("/sim-no/wide", False), ("/sim-no/w/../x", True), ("/sim-no", False), ("/sim-no/v", False)):
        words = outside("cwd", path, "/sim-no/w")
        desk.same(f"{path} is told to lead elsewhere", (words != "", " leads to " in words), (True, told_of))
        leads = f" leads to {posixpath.normpath(path)!r}, which"
        desk.same(f"where {path} leads", leads in words, told_of)
    for path in ("/sim-no/w", "/sim-no/w/", "/sim-no/w/x", "/sim-no/w/x/.."):
        desk.same(path, outside("cwd", path, "/sim-no/w"), "")
    here, name = str(HERE.parent), HERE.name
    for wanted, given in (
        ("", absent(here, name)),
        ("", absent(here, f"../{HERE.parent.name}/{name}")),
        (f"no.py does not exist in {here}", absent(here, "no.py")),
        (f"../desk.py is not inside {here}", absent(here, "../desk.py")),
        (f"../__init__.py is not inside {here}", absent(here, "../__init__.py")),
    ):
        desk.same("a file that is to be there", given, wanted)
    desk.same("a name that no file can have", "cannot be looked for" in absent(here, "a\0b"), True)


# ---------------------------------------------------------------------------------------------------------- listeners
def _record(seq: int) -> LifecycleEvent:
    return LifecycleEvent(
        seq=seq, timestamp=0.0, monotonic_s=0.0, entity_type="t", entity_id="t", entity_seq=seq, event="e"
    )


class Past:
    """A journal that gives its records in pieces."""

    def __init__(self, piece: int) -> None:
        self.piece, self.records = piece, list[LifecycleEvent]()

    async def events(self, *, after_seq: int = 0) -> list[LifecycleEvent]:
        await anyio.sleep(0.01)
        return [one for one in self.records if one.seq > after_seq][: self.piece]


async def listeners(desk: Desk) -> None:
    """Each hears every record once, in order, from where he asked; who is 4,096 behind is let go, and told so."""
    past = Past(desk.chance.integer(2, 7, "piece"))
    talk = Subscriptions(past)  # type: ignore[arg-type]
    last = 0

    def say(many: int) -> None:
        nonlocal last
        for _ in range(many):
            last += 1
            past.records.append(_record(last))
            talk.publish(past.records[-1])

    say(20)
    heard: dict[str, list[int]] = {}

    async def listen(name: str, after_seq: int | None, most: int) -> None:
        heard[name] = []
        async with talk.open(after_seq) as told:
            try:
                async for record in told:
                    heard[name].append(record.seq)
                    if len(heard[name]) >= most:
                        break
            except SubscriptionLagged:
                heard[name].append(-1)

    async with anyio.create_task_group() as group:
        for name, after_seq, most in (("new", None, 99), ("all", 0, 99), ("late", 15, 99), ("brief", 18, 4)):
            group.start_soon(listen, name, after_seq, most)
        await anyio.sleep(0.02)
        say(5)
        await anyio.sleep(2.0)
        desk.same("how many listen", len(talk), 3)
        say(5)
        await anyio.sleep(1.0)
        talk.end()
    wanted = {"new": [*range(21, 31)], "all": [*range(1, 31)], "late": [*range(16, 31)], "brief": [19, 20, 21, 22]}
    desk.same("what was heard", heard, wanted)
    desk.same("nobody is left", (len(talk), len(talk._lagged)), (0, 0))
    async with talk.open(25) as told:
        desk.same("who comes after the end", [one.seq async for one in told], [*range(26, 31)])
    last, past.records[:] = 0, []
    for many, lags in ((BUFFER, False), (BUFFER + 1, True)):
        talk, found = Subscriptions(past), list[int]()  # type: ignore[arg-type]
        try:
            async with talk.open(None) as told:
                say(many)
                desk.same("who listens then", len(talk), int(not lags))
                if not lags:
                    talk.end()
                async for record in told:
                    found.append(record.seq)  # what came before it lags counts
            desk.same("it ends", lags, False)
        except SubscriptionLagged:
            desk.same("it lags", lags, True)
        desk.same("what it had", len(found), BUFFER)
        desk.same("who is left", (len(talk), len(talk._lagged)), (0, 0))


ROOMS = (merging, naming, moments, papers, paths, listeners)
