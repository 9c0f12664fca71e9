"""Edging: whose call an abort is about, what is too late to be asked for, and what cannot be read.

Held to docs/design.md: an abort of one call ends that call and what is within it, and nothing beside it; deadlines only
shrink.
"""

from __future__ import annotations

from itertools import product
from typing import Any, Final

import anyio
import msgspec
from msgspec.structs import replace

from supervisor.agents.protocols.acp.errors import problem_of
from supervisor.agents.protocols.json_rpc import RpcError, WireError, read
from supervisor.lifecycles.session import SessionLimits
from supervisor.lifecycles.task_run import RunData
from supervisor.lifecycles.types import AbortPolicy, AbortScope, ModelProblem
from supervisor.plans import Settings
from supervisor.plans.lifecycle import TaskLifecycle
from supervisor.plans.monitoring import BudgetConfig
from supervisor.plans.permissions import PermissionsConfig
from supervisor.plans.settings import LimitsConfig
from supervisor.policies.abort_plan import Receipt
from supervisor.policies.permissions import Decision, PermissionPolicy
from supervisor.ports import JournalError, PermissionAsked, Retention, ToolClosed, ToolOpened, TurnEnded, Usage
from supervisor.ports.path_safety import outside
from supervisor.runtime.live_session import AgentProfile, NoSuchEntity
from supervisor.sessions.session_monitor import Oversight
from supervisor.simulation.drills.agents.acting import Scene, scene
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.house import MOMENT_S, House, Puppet

__all__ = ["EDGING"]

DONE: Final = TurnEnded("end_turn")
ONCE: Final = Settings(limits=LimitsConfig(max_consecutive_errors=1))
DEEP: Final = 200_000
"""So many brackets are more than any reader follows."""


async def _abort(act: Scene, target: str, receipts: list[Receipt]) -> None:
    receipts.append(await act.sup.abort(target, AbortScope.TOOL, reason="enough"))


async def beside(desk: Desk) -> None:
    """An abort of one call asks the agent for that one, not for what is beside or around it: a session that was not
    started by it lives on, and a call around it goes on. So too where their numbers have not as many digits."""
    for before, (place, asked, ended) in product(
        (0, 8), ((2, ["inner"], {"inner"}), (1, ["outer"], {"outer", "inner"}))
    ):
        target = f"c{before + place}"
        house, what = House(desk), f"an abort of {target}"
        house.ends_calls = True
        async with scene(desk, house) as act:
            kid = await act.sup.start_session("kid", parent="s", agent="puppet")
            agent, receipts = house.puppets[0], list[Receipt]()
            await act.says()
            for number in range(before):
                agent.says(ToolOpened(f"before {number}", "x"), ToolClosed(f"before {number}", "completed"))
            agent.says(ToolOpened("outer", "x"), ToolOpened("inner", "x", parent="outer"), ToolOpened("other", "x"))
            await anyio.sleep(MOMENT_S)
            act.group.start_soon(_abort, act, f"{act.turn}:{target}", receipts)
            await anyio.sleep(0.5)
            desk.same(f"{what}: what its agent is asked", [one[1] for one in agent.heard("end_call")], asked)
            results = await house.events(act.turn, "tool_completed")
            desk.same(f"{what}: nobody has said that it is over", len(results), before)
            for one in sorted(ended):
                agent.says(ToolClosed(one, "failed"))
            await anyio.sleep(1.0)
            agent.says(*(ToolClosed(one, "completed") for one in ("outer", "other") if one not in ended), DONE)
            await anyio.sleep(1.0)
            names = {before + 1: "outer", before + 2: "inner", before + 3: "other"}
            results = (await _calls(house, act))[before:]
            told = {names[one.metadata["number"]]: one.metadata["outcome"] for one in results}
            wanted = {one: "aborted" if one in ended else "completed" for one in names.values()}
            desk.same(f"{what}: what became of each", told, wanted)
            desk.same(f"{what}: the session beside it", kid.id in act.sup.tree.works, True)
            desk.same(f"{what}: its turn", [one.outcome for one in act.results], ["completed"])


async def _calls(house: House, act: Scene) -> list[Any]:
    """The results, each with the number of its call."""
    numbers = {one.metadata["call_id"]: one.metadata["number"] for one in await house.events(act.turn, "tool_started")}
    ends = [one for one in await house.events(act.turn, "tool_completed") if one.outcome == "transition"]
    return [
        msgspec.structs.replace(one, metadata={**one.metadata, "number": numbers[one.metadata["call_id"]]})
        for one in ends
    ]


async def hastened(desk: Desk) -> None:
    """A session that fails ends whom it waits for as gently as its ladder says. Who aborts it meanwhile, with less
    time, has all of them end in that time; nobody hears of one abort twice."""
    for within_s in (None, 3.0):
        house = House(desk)
        async with scene(desk, house, settings=ONCE) as act:
            kid = await act.sup.start_session("kid", parent="s", agent="puppet")
            act.group.start_soon(kid.run, "work")
            await anyio.sleep(MOMENT_S)
            parent, child = house.puppets
            house.stops = lambda puppet: ()
            child.stubborn = True
            desk.again()
            parent.exit(1)
            await anyio.sleep(0.5)
            stops = [one.abort_reason for one in await house.events(kid.id, "OperatorStop")]
            desk.same("who is waited for is told", stops, ["parent_aborted"])
            if within_s is not None:
                for _ in range(2):
                    act.group.start_soon(_end, act, within_s)
                    await anyio.sleep(MOMENT_S)
            await anyio.sleep(within_s or 3.0)
            await anyio.sleep(1.0)
            desk.same(f"killed within {within_s} s", "kill" in child.orders, within_s is not None)
            joined = [one.abort_id for one in await house.events(kid.id, "AbortJoined")]
            desk.same("what it is told of each abort", len(joined), len({*joined}))
            child.exit(-9)
            await anyio.sleep(1.0)


async def _end(act: Scene, within_s: float) -> None:
    await act.sup.abort("s", AbortScope.SESSION, reason="soon", within_s=within_s)


async def at_rest(desk: Desk) -> None:
    """A session that rests is ended: its agent, which has nothing to do, is asked to end, by the end of its input, and
    not killed; one that has not said yet that it is ready is no agent to ask, and is killed at once."""
    for ready, told in ((True, "close"), (False, "kill")):
        house, what = House(desk), f"its agent is {'at rest' if ready else 'not ready yet'}"
        if not ready:
            house.ready = lambda puppet: ()
        async with scene(desk, house) as act:
            if ready:
                await act.says(DONE)
            desk.same(f"{what}: before", _done_to(act.puppet), [])
            desk.again()
            await act.sup.abort("s", AbortScope.SESSION, reason="enough")
            desk.at(f"{what}: its end", 0.0)
            desk.same(f"{what}: what is done to it first", _done_to(act.puppet)[:1], [told])


def _done_to(agent: Puppet) -> list[Any]:
    """What is done to its process, but for what it is told."""
    return [one for one in agent.orders if not isinstance(one, bytes)]


async def unreadable(desk: Desk) -> None:
    """What is nested too deeply for any reader is no message, and no detail of an error; a journal whose entity is
    damaged is told to whoever opens it, by that entity's name."""
    nested = "[" * DEEP
    try:
        desk.same("a message without an end", read(nested, dict[str, Any], "a message"), "refused")
    except WireError as error:
        desk.same("it is named", str(error).startswith("a message"), True)
    broke = RpcError(code=-32603, message="overloaded", data=msgspec.Raw(nested.encode()))
    desk.same("an error with such details", problem_of(broke), (ModelProblem.OVERLOADED, None))
    house = House(desk)
    async with scene(desk, house) as act:
        for wish in (lambda: act.sup.inspect("nobody"), lambda: act.sup.inspect("s:t9")):
            desk.refused("a look at nobody", wish, NoSuchEntity)
        left = house.left()
    sound = left.store.entities["s"]
    for damaged in (replace(sound, data=b"{"), replace(sound, state="asleep"), replace(sound, kind="ghost")):
        left.store.entities["s"] = damaged
        error_of = await desk.raises("a damaged journal", _opened(left), JournalError)
        desk.same("who is damaged", "'s' is damaged" in str(error_of), True)


async def _opened(house: House) -> str:
    async with house.open():
        return "opened"


async def paths(desk: Desk) -> None:
    """A path that leads out of its workspace is named as it was given, and where it leads where that is another one."""
    for path, leads in (
        ("/nowhere/in", ""),
        ("/nowhere", ""),
        ("/nowhere/in/../../else", "/else"),
        ("/nowhere/in/../../zzz", "/zzz"),
        ("/nowhere/../..", "/"),
        ("/nowhereelse", "/nowhereelse"),
        ("/a", "/a"),
    ):
        words = outside("path", path, "/nowhere")
        told = (words.startswith(f"path: {path!r}"), f" leads to {leads!r}, which" in words) if words else ()
        desk.same(f"{path}: what is told", told, (True, leads != path) if leads else ())


async def twice(desk: Desk) -> None:
    """Who aborts a call that is being ended already waits for the same end: the agent is asked once, and told why."""
    house = House(desk)
    house.ends_calls = True
    async with scene(desk, house) as act:
        receipts: list[Receipt] = []
        await act.says(ToolOpened("a", "x"))
        for _ in range(2):
            act.group.start_soon(_abort, act, f"{act.turn}:c1", receipts)
            await anyio.sleep(MOMENT_S)
        desk.same("what its agent is asked", act.puppet.heard("end_call"), [("end_call", "a")])
        desk.same("nobody is answered yet", receipts, [])
        await act.says(ToolClosed("a", "failed"))
        await anyio.sleep(1.0)
        told = [[(one.id, one.outcome, one.how) for one in each.nodes] for each in receipts]
        desk.same("both are answered the same", (len(told), told[:1]), (2, told[1:]))
        ends = [one.outcome for one in await house.events(act.turn, "tool_completed")]
        desk.same("its one result", ends, ["transition"])
        await act.says(DONE)
        desk.same("its turn", [one.outcome for one in act.results], ["completed"])


async def remembered(desk: Desk) -> None:
    """What was answered for good is not asked again in that session, where the agent offers nothing of that kind: the
    same wish is ruled at once, on record as settled; another one is asked."""
    may = PermissionPolicy(default=Decision.ASK, answer_within_s=60.0)
    asks = {"puppet": AgentProfile(name="puppet", adapter="puppet", directory="/house", permissions=may)}
    offered = (("y", "allow_once"), ("n", "reject_once"))
    for allow, option in ((True, "y"), (False, "n")):
        async with scene(desk, agents=asks) as act:
            await act.says(PermissionAsked("r1", "push", offered, "edit", "tool", "detail", ("f",)))
            await act.sup.answer(f"{act.turn}:p1", allow=allow, always=True)
            await anyio.sleep(MOMENT_S)
            await act.says(PermissionAsked("r2", "push", offered, "edit", "tool", "detail", ("f",)))
            await act.says(PermissionAsked("r3", "pull", offered, "edit", "tool", "detail", ("f",)))
            told = act.puppet.heard("permission")
            desk.same("what it is told", told, [("permission", name, option) for name in ("r1", "r2")])
            desk.same("what waits", [one.title for one in act.sup.permissions()], ["pull"])
            ruled = [(one["asked"], one["why"]) for _, one in await act.told("PermissionRequested")]
            desk.same("why", ruled[1:2], [(False, "settled before, for this session")])


async def unsteered(desk: Desk) -> None:
    """A function cannot be told anything within its turn: what is urgent interrupts it as soon as no call is open."""
    seen: list[str] = []

    async def agent(turn: Any) -> str:
        seen.append(turn.prompt)
        if "come" not in turn.prompt:
            await turn.call("a while", anyio.sleep, 5.0)
            seen.append("after its call")
            await anyio.sleep_forever()
        return "came"

    async with House(desk).open() as sup, anyio.create_task_group() as group:
        session = await sup.start_session("f", agent=agent)
        answers: list[Any] = []

        async def run() -> None:
            answers.append(await session.run("dig"))

        group.start_soon(run)
        await anyio.sleep(1.0)
        await session.send("come", urgent=True, at="tool_boundary")
        await anyio.sleep(1.0)
        desk.same("while its call is open", seen, ["dig"])
        await anyio.sleep(6.0)
        desk.same("then", [one.text for one in answers], ["came"])
        desk.same("what it is told", "come" in seen[-1] and "dig" in seen[-1], True)
        await session.close()


async def unsaid(desk: Desk) -> None:
    """Who says nothing of a bound has the one of its page, whether settings were read or a value was made."""
    settings = Settings()
    made = (Oversight(), SessionLimits(), AbortPolicy(), Retention(), PermissionPolicy(), RunData())
    read_from = (settings.oversight, settings.limits.value(), settings.policy.value(), settings.retention.value())
    for own, given in zip(made, (*read_from, PermissionsConfig().value(), TaskLifecycle().value()), strict=True):
        desk.same(type(own).__name__, given, own)


async def handed_back_once(desk: Desk) -> None:
    """Whose budget is spent has one turn to hand back what it has. If that one fails, even before its agent has begun,
    there is no other: its session is aborted, and nobody is asked for more."""
    for begun in (True, False):
        house, what = House(desk), f"its agent {'fails' if begun else 'cannot be started'}"
        async with scene(desk, house, settings=Settings(session_budget=BudgetConfig(tokens=1000))) as act:
            house.stops = lambda puppet, begun=begun: [TurnEnded("cancelled")] if begun else ()  # type: ignore[misc]
            await act.says(Usage({}, 1001))
            if not begun:
                house.cannot_start.add("puppet")
            house.puppets[-1].exit(1) if not begun else None
            await anyio.sleep(0.5)
            asked = [one for puppet in house.puppets for one in puppet.heard("prompt")]
            desk.same(f"{what}: how often it was asked", len(asked), 2 if begun else 1)
            house.puppets[-1].exit(1) if begun else None
            await anyio.sleep(5.0)
            house.cannot_start.clear()
            await anyio.sleep(60.0)
            again = [one for puppet in house.puppets for one in puppet.heard("prompt")]
            desk.same(f"{what}: nobody is asked again", again, asked)
            spent = (await house.events("s", "BudgetSpent"))[0]
            aborts = [(one.cause_id, one.reason) for one in await house.events("s", "AbortRecord")]
            desk.same(f"{what}: what it is aborted for", aborts, [(spent.seq, spent.reason)])
            desk.same(f"{what}: its prompt", [one.outcome for one in act.results], ["aborted"])


EDGING = (beside, hastened, at_rest, unreadable, paths, twice, remembered, unsteered, unsaid, handed_back_once)
