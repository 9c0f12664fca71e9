"""Lasting: for how long a turn may go on, and what is left of one that did not end in order.

Reckoned step by step from docs/spec (time-outs by scope, snapshots, the budget of a clean-up) and docs/plans.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import anyio

from supervisor.lifecycles.types import AbortScope, LifecycleEvent, TimeLimit
from supervisor.plans import Settings
from supervisor.plans.monitoring import LivenessConfig
from supervisor.policies.abort_plan import Receipt
from supervisor.ports import JournalUnavailable, TerminalOpened, Text, ToolClosed, ToolOpened, TurnEnded
from supervisor.runtime.journal_writer import Cause
from supervisor.simulation.drills.agents.acting import DONE, ONCE, Scene, scene
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.house import MOMENT_S, House, born
from supervisor.simulation.keyed_random import Chance

__all__ = ["LASTING"]

PROGRESS_S: Final = 120.0
CLOSE_S: Final = 0.6
MORE_S: Final = 600.0
LEAST_S: Final = 1.0
WAKE, STOP = 8, 12
"""After so many silent snapshots, while a call is open."""
CLEANUP_S: Final = 5.0
TURN_S: Final = 100.0
TRIED_S: Final = 5.0
"""A disk that is down is tried again at least that often."""
GRACE_S: Final = 20.0
"""In which a turn that is over has ended."""


# ---------------------------------------------------------------------------------------------------- a turn's time
async def extensions(desk: Desk) -> None:
    """The time of a turn that has a cap is extended by 600 s at a time before it is over, up to its cap, where
    something was heard within two minutes; that of any other one is over when it is over."""
    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(_extended, desk, desk.chance.below(number))


async def _extended(desk: Desk, chance: Chance) -> None:
    timeout_s, snapshot_s = (
        chance.choice((205.0, 311.0, 455.0), "timeout"),
        chance.choice((17.0, 20.0, 30.0), "snapshot"),
    )
    cap_s = chance.choice((None, timeout_s + 0.5, timeout_s + 100.0, timeout_s + 700.0, 1501.0), "cap")
    words = _words(chance, timeout_s)
    reckoned = _due(timeout_s, cap_s, words, snapshot_s)
    if reckoned is not None:
        await _last(desk, timeout_s, cap_s, words, reckoned, snapshot_s)


def _words(chance: Chance, timeout_s: float) -> list[float]:
    """When something is heard."""
    until_s = chance.choice((timeout_s - 200.0, timeout_s - 110.0, timeout_s, 1600.0), "until")
    every_s = chance.choice((25.3, 70.3, 115.3), "every")
    return [7.0 + place * every_s for place in range(64) if 7.0 + place * every_s < until_s]


def _due(timeout_s: float, cap_s: float | None, words: list[float], snapshot_s: float) -> tuple[float, int] | None:
    """When it is over, and how often it was extended; ``None``: it is asked to stop before that, or nobody can tell."""
    due_s, at_s, silent, times = timeout_s, snapshot_s, 0, 0
    if any(abs(one % snapshot_s - snapshot_s / 2) > snapshot_s / 2 - CLOSE_S for one in words):
        return None  # a word and a look are too near to each other
    while at_s < due_s:
        heard = at_s == snapshot_s or any(at_s - snapshot_s < one <= at_s for one in words)
        silent = 0 if heard else silent + 1
        if silent == STOP:
            return None
        near = due_s - at_s <= 2 * snapshot_s and silent * snapshot_s < PROGRESS_S
        if near and cap_s is not None and cap_s - due_s >= LEAST_S:
            due_s, times = min(due_s + MORE_S, cap_s), times + 1
        at_s += snapshot_s
    return due_s, times


async def _last(
    desk: Desk,
    timeout_s: float,
    cap_s: float | None,
    words: list[float],
    reckoned: tuple[float, int],
    snapshot_s: float,
) -> None:
    due_s, times = reckoned
    house, told = House(desk), list[tuple[str, float]]()
    house.stops = lambda puppet: [TurnEnded("cancelled")]
    settings = Settings(liveness=LivenessConfig(snapshot_s=snapshot_s))
    async with house.open(settings) as sup, anyio.create_task_group() as group:
        await sup.start_session("s", agent="puppet")

        async def ask() -> None:
            limit = TimeLimit(timeout_s, cap_s)
            outcome = await sup.outcome_of("s", "work", Cause(actor="me"), once=True, limit=limit)
            told.append((outcome.outcome, since()))

        began_s = anyio.current_time()

        def since() -> float:
            return anyio.current_time() - began_s

        group.start_soon(ask)
        await anyio.sleep(MOMENT_S)
        house.puppets[-1].says(ToolOpened("call", "long"))
        for at_s in words:
            await anyio.sleep(at_s - since())
            if at_s < due_s:
                house.puppets[-1].says(Text("thought", "x"))
        await anyio.sleep(max(due_s + 20.0 - since(), 0.0))
        what = f"{timeout_s:g} s, at most {cap_s}, last heard of at {max(words, default=0.0):g}"
        desk.same(f"{what}: ends", [one for one, _ in told], ["failed"])
        for _, at_s in told:
            desk.at(f"{what}: its end", due_s, 3, at_s)
        seen = [one.outcome for one in await house.events("s:t1", "ProgressSeen")]
        desk.same(f"{what}: was extended", seen, ["transition"] * times)
        group.cancel_scope.cancel()
        for one in sup.sessions():
            await sup.abort(one.id, AbortScope.SESSION, now=True)


# -------------------------------------------------------------------------------------------------- what is left of it
async def cleaned(desk: Desk) -> None:
    """After a turn its calls' commands are ended within 5 s; what has not ended by then is left, and that is said. A
    session that is closed meanwhile does not wait longer for that than its ladder."""
    for dies_s in (None, 3.0, 0.0):
        house = House(desk)
        async with scene(desk, house, settings=ONCE) as act:
            await act.says(ToolOpened("ours", "run"), TerminalOpened("term", "ours", ("ls",), None, {}))
            prop = house.props[0]
            prop.stubborn = dies_s != 0.0
            await act.says(DONE)
            if dies_s:
                await anyio.sleep(dies_s)
                prop.exit(-9, ended_by="kill")
            await anyio.sleep(8.0)
            log = {one.event: one for one in await house.log(act.turn)}
            took_s = log["agent_reaped"].monotonic_s - log["task_failed"].monotonic_s
            what = f"a command that dies after {dies_s}"
            desk.at(
                f"{what}: it is cleaned up after",
                CLEANUP_S if dies_s is None else dies_s and dies_s + MOMENT_S,
                3,
                took_s,
            )
            told = log["agent_reaped"].metadata
            desk.same(f"{what}: said", (told["degraded"], bool(told["note"])), (dies_s is None, dies_s is None))
            prop.exit(-9, ended_by="kill")
            await anyio.sleep(1.0)
            desk.same(f"{what}: its answer", [one.outcome for one in act.results], ["failed"])


async def kept_waiting(desk: Desk) -> None:
    """A turn that is interrupted and does not end has its grace, and then its agent is killed; the next turn waits for
    another agent, and has it."""
    for ends_s in (None, 4.0):
        house = House(desk)
        house.stops = lambda puppet: ()
        async with scene(desk, house) as act:
            first = act.puppet
            await act.session.send("listen", urgent=True)
            desk.again()
            if ends_s is not None:
                await anyio.sleep(ends_s)
                first.says(TurnEnded("cancelled"))
                await anyio.sleep(1.0)
            else:
                await anyio.sleep(9.0)
                desk.same("within its grace", first.orders[1:], [])
                await anyio.sleep(3.0)
            desk.same("it is killed", "kill" in first.orders, ends_s is None)
            ended = [one.reason for one in await house.events("s:a1", "agent_exited")]
            desk.same("why", ended, [] if ends_s is not None else [_why(await house.events("s:t1", "task_failed"))])
            desk.same("agents", len(house.puppets), 2 if ends_s is None else 1)
            desk.same("the prompt again", ["listen" in one[1] for one in act.puppet.heard("prompt")][-1:], [True])
            await act.says(Text("message", "yes"), DONE)
            desk.same("its answer", [(one.outcome, one.text) for one in act.results], [("completed", "yes")])


async def not_any_more(desk: Desk) -> None:
    """A session that is told to end while its next turn waits for its agent has no next turn: nobody is asked, and no
    agent is started, however that one ends."""
    for how in ("stops", "exits", "stays"):
        house = House(desk)
        house.stops = lambda puppet: ()
        async with scene(desk, house) as act:
            first = act.puppet
            await act.session.send("listen", urgent=True)
            await anyio.sleep(2.0)
            act.group.start_soon(act.session.close)
            await anyio.sleep(1.0)
            stopped = (await house.events("s", "OperatorStop"))[0].seq
            if how == "stops":
                first.says(TurnEnded("cancelled"))
            elif how == "exits":
                first.exit(0)
            await anyio.sleep(25.0)
            desk.same(
                f"{how}: agents", [one.id for one in house.store.entities.values() if one.kind == "agent"], ["s:a1"]
            )
            desk.same(f"{how}: prompts", len(first.heard("prompt")), 1)
            told = [one.event for one in await house.log("s:a1") if one.seq > stopped and one.outcome == "transition"]
            desk.same(f"{how}: what it is told", [one for one in told if one not in ENDS], [])
            desk.same(f"{how}: it has ended", ("s" in act.sup.tree.works, first.alive), (False, False))
            desk.same(f"{how}: its answer", len(act.results), 1)


ENDS: Final = ("task_finished", "agent_exited", "agent_reaped")


def _why(failed: Sequence[LifecycleEvent]) -> str:
    """What its turn failed by."""
    return next((str(one.metadata["verdict"]["error"]) for one in failed if one.outcome == "transition"), "")


async def own_ends(desk: Desk) -> None:
    """A call that is not ended alone ends with its turn: on the request rung where its agent stops, or exits by itself,
    on the kill rung where it must be killed. What other calls ran meanwhile is none of the receipt's."""
    for how, rung in (("stops", "request"), ("exits", "request"), ("stays", "kill")):
        house = House(desk)
        house.stops = lambda puppet: ()
        async with scene(desk, house) as act:
            receipts: list[Receipt] = []
            first = act.puppet
            await act.says(ToolOpened("own", "x"), ToolOpened("ours", "run"))
            await act.says(TerminalOpened("term", "ours", ("ls",), None, {}), ToolOpened("more", "y"))
            act.group.start_soon(_abort, act, f"{act.turn}:c1", receipts)
            await anyio.sleep(1.0)
            desk.same(f"{how}: before that", (receipts, len(first.heard("interrupt"))), ([], 1))
            if how == "stops":
                first.says(ToolClosed("own", "failed"), TurnEnded("cancelled"))
            elif how == "exits":
                first.exit(0)
            await anyio.sleep(25.0)
            told = [(one.outcome, one.rung) for receipt in receipts for one in receipt.nodes]
            desk.same(f"{how}: how it ended", told, [("ended", rung)])
            desk.same(f"{how}: why", [(one.reason, one.survivors) for one in receipts], [("enough", 0)])
    house = House(desk)
    async with scene(desk, house) as act:
        receipts = []
        for name in ("one", "two"):
            await act.says(ToolOpened(name, "run"), TerminalOpened(f"t-{name}", name, (name,), None, {}))
        act.group.start_soon(_abort, act, f"{act.turn}:c1", receipts)
        house.props[1].exit(7)
        await anyio.sleep(2.0)
        desk.same("whose fates", [one.pid for one in receipts[0].processes], [house.props[0].pid])
        desk.same("its rung", [(one.id, one.rung) for one in receipts[0].nodes], [("s:t1:c1", "terminate")])


async def beside(desk: Desk) -> None:
    """Calls that were open at the same time are not told apart, also when one of them is over; one that was opened when
    none was is."""
    for rest, single in ((["open a", "open b", "close a"], False), (["open a", "close a", "open b"], True)):
        house = House(desk)
        house.stops = lambda puppet: ()
        async with scene(desk, house) as act:
            for one in rest:
                word, _, name = one.partition(" ")
                await act.says(ToolOpened(name, "x") if word == "open" else ToolClosed(name, "completed"))
            act.puppet.children = [born(7), ()]
            receipts: list[Receipt] = []
            act.group.start_soon(_abort, act, f"{act.turn}:c2", receipts)
            await anyio.sleep(0.5)
            what = ", ".join(rest)
            struck, interrupted = bool(act.puppet.struck), bool(act.puppet.heard("interrupt"))
            desk.same(f"{what}: struck, interrupted", (struck, interrupted), (single, not single))


async def _abort(act: Scene, target: str, receipts: list[Any]) -> None:
    receipts.append(await act.sup.abort(target, AbortScope.TOOL, reason="enough"))


async def held(desk: Desk) -> None:
    """While the journal's disk is down a turn does not run out of time; when it is up again the turn has what it had
    left, and no more."""
    house, told = House(desk), list[str]()
    patient = Settings(liveness=LivenessConfig(snapshot_s=3600.0))
    async with house.open(patient) as sup, anyio.create_task_group() as group:
        await sup.start_session("s", agent="puppet")

        async def ask() -> None:
            limit = TimeLimit(TURN_S, None)
            told.append((await sup.outcome_of("s", "work", Cause(actor="me"), once=True, limit=limit)).outcome)

        group.start_soon(ask)
        await anyio.sleep(TURN_S / 4)
        house.disk_fails = JournalUnavailable("full")
        house.puppets[-1].says(ToolOpened("call", "long"))
        await anyio.sleep(TURN_S * 2)
        desk.same("that its disk is down", sup.outage is not None, True)
        house.disk_fails = None
        await anyio.sleep(TURN_S * 3 / 4 - CLOSE_S)
        desk.same("while it has time left", (sup.outage, told), (None, []))
        await anyio.sleep(TRIED_S + GRACE_S)
        desk.same("when that is over", told, ["failed"])
        errors = [one.metadata["verdict"]["error"] for one in await house.events("s:t1", "task_failed")]
        desk.same("by what", [f"turn_timeout_s ({TURN_S:g} s)" in one for one in errors[:1]], [True])
        await sup.abort("s", AbortScope.SESSION, now=True)
        group.cancel_scope.cancel()


LASTING = (held, extensions, cleaned, kept_waiting, not_any_more, own_ends, beside)
