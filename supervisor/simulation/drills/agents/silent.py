"""Silent: a session whose agent does not move, step by step, and what counts as a sign of life.

Held to docs/budgets.md and to the key ``liveness`` of docs/plans.md: what is on record, what the agent is told, when,
and what ends its session.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import msgspec

from supervisor.lifecycles.types import AbortScope
from supervisor.plans import Settings
from supervisor.plans.monitoring import LivenessConfig
from supervisor.policies.liveness import Patience
from supervisor.policies.permissions import Decision, PermissionPolicy
from supervisor.ports import JournalUnavailable, PermissionAsked, Ready, Text, ToolOpened
from supervisor.runtime.live_session import AgentProfile
from supervisor.simulation.drills.agents.acting import Scene, scene
from supervisor.simulation.drills.agents.spenders import aborted
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.house import MOMENT_S, House

__all__ = ["SILENT"]

SNAPSHOT_S = 10.0
LOOKED_AT = Settings(liveness=LivenessConfig(snapshot_s=SNAPSHOT_S))
PUPPET = AgentProfile(name="puppet", adapter="puppet", directory="/house")


async def stalls(desk: Desk) -> None:
    """Woken after 3 snapshots, asked to stop after 5, aborted after 7; while a call is open after 8 and 12: who
    was asked to stop, and has not, has no call any more once its grace is over."""
    for open_call, patience, steps in (
        (False, Patience.DEFAULT, (3, 5, 7)),
        (True, Patience.DEFAULT, (8, 12, 14)),
        (False, Patience.LARGE, (5, 8, 12)),
    ):
        house = House(desk)
        house.stops = lambda puppet: ()
        async with house.open(LOOKED_AT) as sup, anyio.create_task_group() as group:
            act = Scene(house, sup, await sup.start_session("s", agent="puppet", patience=patience), group)
            await act.ask_later("work")
            if open_call:
                await act.says(ToolOpened("a", "x"))
            await anyio.sleep(SNAPSHOT_S * (steps[2] + 2) + 5.0)  # its end takes 10 s
            facts = [(one["step"], one["silent_s"]) for _, one in await act.told("Stalled", of="s")]
            wanted = [(name, SNAPSHOT_S * n) for name, n in zip(("wake", "stop", "kill"), steps, strict=True)]
            desk.same(f"steps {steps}", facts, wanted)
            began_s = (await house.events("s:t1", "agent_spawned"))[-1].monotonic_s
            for one, n in zip(await house.events("s", "Stalled"), steps, strict=False):
                moved = SNAPSHOT_S  # it began within the first of them
                desk.at(f"step {n}", moved + SNAPSHOT_S * n, n + 1, one.monotonic_s - began_s)
            told = [(one["sender"], one["point"]) for _, one in await act.told("UrgentMessage", of="s")]
            desk.same("what it is told", told, [("supervisor", "tool_boundary"), ("supervisor", "now")])
            await aborted(desk, act, "who does not move", "liveness", "Stalled")
            stop = (await house.events("s", "OperatorStop"))[0]
            desk.same("why", stop.abort_reason, "timeout")
            group.cancel_scope.cancel()


async def silent_functions(desk: Desk) -> None:
    """A function that says nothing from its first instant on does not move either: looked at as any other agent."""
    house = House(desk)

    async def sleeps(turn: Any) -> str:
        await anyio.sleep(1000.0)
        return ""

    async with house.open(LOOKED_AT) as sup, anyio.create_task_group() as group:
        session = await sup.start_session("s", agent=sleeps)
        group.start_soon(session.run, "work")
        began_s = sup.ledger.clock.now()
        await anyio.sleep(SNAPSHOT_S * 5)
        stalled = await house.events("s", "Stalled")
        desk.same("it does not move", [one.metadata["step"] for one in stalled], ["wake"])
        for one in stalled:
            desk.at("it is woken", SNAPSHOT_S * 4, 5, one.monotonic_s - began_s)
        await sup.abort("s", AbortScope.SESSION, now=True)
        group.cancel_scope.cancel()


async def lively_functions(desk: Desk) -> None:
    """A function that says that work goes on, whatever it says that by, moves, and is left alone; silence is not."""

    async def nothing() -> None:
        return None

    signs: dict[str, Any] = {
        "heartbeat": lambda turn: turn.heartbeat(),
        "words": lambda turn: turn.say("x"),
        "use": lambda turn: turn.used(input_tokens=1),
        "call": lambda turn: turn.call("x", nothing),
        "silence": lambda turn: None,
    }

    async def lives(name: str, turn: Any) -> str:
        while True:
            await anyio.sleep(SNAPSHOT_S / 2)
            if (given := signs[name](turn)) is not None:
                await given

    house = House(desk)
    async with house.open(LOOKED_AT) as sup, anyio.create_task_group() as group:
        for name in signs:
            session = await sup.start_session(name, agent=partial(lives, name))
            group.start_soon(session.run, "work")
        await anyio.sleep(SNAPSHOT_S * 7)
        for name in signs:
            steps = [one.metadata["step"] for one in await house.events(name, "Stalled")]
            desk.same(f"{name}: what is done about it", steps, ["wake", "stop"] if name == "silence" else [])
            await sup.abort(name, AbortScope.SESSION, now=True)
        group.cancel_scope.cancel()


async def signs(desk: Desk) -> None:
    """What is a sign of life: words, calls, a child's, the launch of one, an answer that a human owes, a disk that is
    down; a log is one until it was woken."""
    asks = PermissionPolicy(default=Decision.ASK, answer_within_s=3600.0)
    agents = {"puppet": msgspec.structs.replace(PUPPET, permissions=asks)}
    for name, lives in (
        ("words", True),
        ("logs", True),
        ("child", True),
        ("launch", True),
        ("human", True),
        ("disk", True),
        ("nothing", False),
    ):
        house = House(desk)
        async with scene(desk, house, settings=LOOKED_AT, agents=agents) as act:
            first = act.puppet
            if name == "launch":
                house.ready = lambda puppet: []
            if name in ("child", "launch"):
                kid = await act.session.start_child("kid")
                act.group.start_soon(kid.run, "go on")
                await anyio.sleep(MOMENT_S)
            if name == "human":
                first.says(PermissionAsked("r", "x", (("y", "allow_once"),)))
            if name == "disk":
                house.disk_fails = JournalUnavailable("full")
                act.group.start_soon(act.session.send, "x")
            for _ in range(5):
                await anyio.sleep(SNAPSHOT_S)
                if name in ("words", "logs", "child"):
                    speaker = act.puppet if name == "child" else first
                    speaker.says(Text("log" if name == "logs" else "thought", "x"))
            house.disk_fails = None
            await anyio.sleep(3.0)
            stalled = [one["step"] for _, one in await act.told("Stalled", of="s")]
            desk.same(f"{name}: is it stuck", stalled[:1], [] if lives else ["wake"])


async def other_clocks(desk: Desk) -> None:
    """A session of newer settings, which is looked at more often and is lively, changes nothing for an older one: who
    moves between two looks at it has moved, whoever else was looked at meanwhile, and who does not is woken in time."""
    for every_s, steps in ((SNAPSHOT_S * 1.5, []), (1000.0, ["wake"])):
        house = House(desk)
        async with scene(desk, house, settings=LOOKED_AT) as act:
            first = act.puppet
            act.sup.configure({"puppet": PUPPET}, Settings(liveness=LivenessConfig(snapshot_s=2.0)))
            other = await act.sup.start_session("other", agent="puppet")
            act.group.start_soon(other.run, "go on")
            await anyio.sleep(MOMENT_S)
            for second in range(1, int(SNAPSHOT_S * 4.5)):
                await anyio.sleep(1.0)
                act.puppet.says(Text("message", "x"))
                if second % every_s == 0:
                    first.says(Text("message", "x"))
            stalled = await house.events("s", "Stalled")
            desk.same(f"heard every {every_s:g} s", [one.metadata["step"] for one in stalled], steps)
            desk.same("the other", await house.events("other", "Stalled"), [])


async def only_logs(desk: Desk) -> None:
    """Who was woken and only writes its log since does not move: it is asked to stop, and ended, as who is silent."""
    house = House(desk)
    house.stops = lambda puppet: ()
    house.steers = True
    house.ready = lambda puppet: [Ready("its-name", steers=True)]
    async with scene(desk, house, settings=LOOKED_AT) as act:
        for place in range(12):
            await anyio.sleep(SNAPSHOT_S)
            if place > 3 and "s" in act.sup.tree.works:
                act.puppet.says(Text("log", "tick"))
        steps = [one["step"] for _, one in await act.told("Stalled", of="s")]
        desk.same("who only logs", steps, ["wake", "stop", "kill"])


SILENT = (stalls, silent_functions, lively_functions, signs, other_clocks, only_logs)
