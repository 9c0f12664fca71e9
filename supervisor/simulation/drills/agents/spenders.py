"""Spenders: a session that has used up its budget, or goes round in a circle, step by step.

Held to docs/budgets.md and to the keys ``loops`` and ``hand_back`` of docs/plans.md: what is on record,
what the agent is told, when, and what ends its session.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import anyio

from supervisor.lifecycles.types import AbortScope
from supervisor.plans import Settings
from supervisor.plans.monitoring import BudgetConfig, ModelTroubleConfig
from supervisor.policies.budgets import Amounts, Budget
from supervisor.policies.liveness import Patience
from supervisor.ports import Text, ToolClosed, ToolOpened, TurnEnded, Usage
from supervisor.simulation.drills.agents.acting import DONE, Scene, scene
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.house import House

__all__ = ["SPENDERS", "aborted"]


def _bounded(**limits: Any) -> Settings:
    return Settings(session_budget=BudgetConfig(**limits))


async def aborted(desk: Desk, act: Scene, what: str, actor: str, fact: str) -> None:
    """By whom, and for which fact: the abort's record says so."""
    aborts = await act.house.events(act.session.id, "AbortRecord")
    records = {one.seq: one.event for one in await act.house.log(act.session.id)}
    told = [(one.metadata["actor"], records.get(one.cause_id or 0)) for one in aborts[:1]]
    desk.same(f"{what}: is aborted", told, [(actor, fact)])
    desk.same(f"{what}: is over", act.session.id in act.sup.tree.works, False)


async def _spent(desk: Desk, act: Scene, what: str, measure: str, limit: float) -> None:
    told = [(one["measure"], one["limit"]) for _, one in await act.told("BudgetSpent", of=act.session.id)]
    desk.same(f"{what}: on record", told, [(measure, limit)])


async def budgets(desk: Desk) -> None:
    """Spent in the middle of a turn: the agent is asked to hand back, has one more turn for that, and is aborted."""
    async with scene(desk, settings=_bounded(tokens=1000, cost_usd=5.0)) as act:
        bounds = [one for _, one in await act.told("Budgeted", of="s")]
        scopes = [{"id": "s", "title": "session s", "limits": {"tokens": 1000, "cost_usd": 5.0}, "used": {}}]
        desk.same("what bounds it", bounds, [{"scopes": scopes, "patience": "default", "common": True}])
        await act.says(Usage({"a": 1}, 600, 300, 1.5))
        left = (act.session.budget.tokens or 0, act.session.budget.cost_usd or 0.0)
        desk.same("what is left", (100 * 63 // 64 <= left[0] < 100, 3.5 * 63 / 64 <= left[1] < 3.5), (True, True))
        desk.same(
            "what was used", act.session.used, Amounts(input_tokens=600, output_tokens=300, cost_usd=1.5, turns=1)
        )
        desk.same("goes on", (act.puppet.heard("interrupt"), await act.told("BudgetSpent", of="s")), ([], []))
        await act.says(Usage({"a": 2}, 100, 20, 0.5))
        await _spent(desk, act, "spent", "tokens", 1000)
        desk.same("is asked to stop", act.puppet.heard("interrupt"), [("interrupt",)])
        desk.same("nothing is left", act.session.budget, Budget(tokens=0, cost_usd=3.0))
        await anyio.sleep(1.0)
        prompts = [one[1] for one in act.puppet.heard("prompt")]
        desk.same("is asked to hand back", ["tokens" in one for one in prompts], [False, True])
        asks = (await act.house.events("s", "UrgentMessage"))[0]
        spent = (await act.house.events("s", "BudgetSpent"))[0]
        desk.same("by whom", (asks.actor, asks.cause_id, asks.metadata["point"]), ("supervisor", spent.seq, "now"))
        desk.same("that once", prompts[1].count("tokens"), 1)
        await act.says(ToolOpened("a", "x"), Usage({"b": 1}, 50, 49, 0.1), ToolClosed("a", "completed"))
        desk.same("goes on again", [one.event for one in await act.house.events("s", "OperatorStop")], [])
        await act.says(DONE)
        await anyio.sleep(1.0)
        await aborted(desk, act, "handed back", "budget", "BudgetSpent")
        used = (await act.house.events("s", "Usage"))[-1].metadata
        desk.same("all that was used", used["used"]["input_tokens"], 750)
        desk.same("in its scope", used["scopes"][0]["used"]["output_tokens"], 369)
    for extra, what in ((Usage({}, 60, 41), "tokens"), (Usage({}, cost_usd=0.6), "money")):
        async with scene(desk, settings=_bounded(tokens=1000, cost_usd=5.0)) as act:
            await act.says(Usage({}, 1001, 0))
            await anyio.sleep(1.0)
            await act.says(extra)
            await anyio.sleep(1.0)
            await aborted(desk, act, f"handing back takes too much {what}", "budget", "BudgetSpent")
            why = (await act.house.events("s", "OperatorStop"))[0].reason
            desk.same("says so", "handing back took too much" in why, True)


async def counted(desk: Desk) -> None:
    """Calls are refused when they are spent, turns when one is to begin, time when it has passed."""
    for settings in (_bounded(tool_calls=3), Settings(turn_budget=BudgetConfig(tool_calls=3))):  # either is enough
        async with scene(desk, settings=settings) as act:
            for number in range(5):
                await act.says(ToolOpened(f"{number}", "x"), ToolClosed(f"{number}", "completed"))
            begun = [one["number"] for _, one in await act.told("tool_started")]
            desk.same("calls that were made", begun, [1, 2, 3])
            await _spent(desk, act, "calls", "tool_calls", 3)
            await anyio.sleep(1.0)
            for number in range(12):
                await act.says(ToolOpened(f"h{number}", "x"), ToolClosed(f"h{number}", "completed"))
            begun = [one["number"] for _, one in await act.told("tool_started", of="s:t2")]
            desk.same("calls to hand back", begun, [*range(1, 11)])
            await anyio.sleep(1.0)
            await aborted(desk, act, "too many calls to hand back", "budget", "BudgetSpent")
    async with scene(desk, settings=_bounded(turns=2)) as act:
        await act.says(DONE)
        await act.ask_later("second")
        await act.says(DONE)
        desk.same("two turns", [one.outcome for one in act.results], ["completed"] * 2)
        await act.ask_later("third")
        await _spent(desk, act, "turns", "turns", 2)
        prompt = act.puppet.heard("prompt")[-1][1]
        desk.same("the third hands back", (prompt.startswith("third"), "turns" in prompt), (True, True))
        await act.says(DONE)
        await anyio.sleep(1.0)
        await aborted(desk, act, "after that", "budget", "BudgetSpent")
    async with scene(desk) as act:
        act.session = await act.sup.start_session("z", agent="puppet", budget=Budget(turns=0))
        await act.ask_later("nothing")
        await anyio.sleep(1.0)
        await _spent(desk, act, "no turn at all", "turns", 0)
        await aborted(desk, act, "no turn at all", "budget", "BudgetSpent")
        desk.same("nobody was started for it", len(act.house.puppets), 1)
    async with scene(desk, settings=_bounded(wall_s=8.0)) as act:
        await anyio.sleep(7.0)
        desk.same("time that is left", await act.told("BudgetSpent", of="s"), [])
        await anyio.sleep(2.0)
        await _spent(desk, act, "time", "wall_s", 8.0)
        await anyio.sleep(50.0)
        desk.same("time to hand back", "s" in act.sup.tree.works, True)
        await anyio.sleep(15.0)
        await aborted(desk, act, "no time to hand back", "budget", "BudgetSpent")
    async with scene(desk, settings=_bounded(wall_s=20.0)) as act:
        await anyio.sleep(6.0)
        await act.says(DONE)
        await anyio.sleep(50.0)
        left = act.session.budget.wall_s or 0.0
        desk.same("time between turns", 13.0 < left < 14.1, True)
    looked: dict[str, int] = {}
    for what, bounds in (("nothing", {}), ("tokens", {"tokens": 100}), ("time", {"wall_s": 50.0})):
        async with scene(desk, settings=_bounded(**bounds)) as act:
            looked[what] = act.sup.tree.system.timers.pending
    more = {what: many - looked["nothing"] for what, many in looked.items()}
    desk.same("for whose time a timer is set", more, {"nothing": 0, "tokens": 0, "time": 1})
    async with scene(desk, settings=Settings(turn_budget=BudgetConfig(tokens=100))) as act:
        for _ in range(3):
            await act.says(Usage({}, 90), DONE)
            await act.ask_later("more")
        desk.same("each turn has its own", await act.told("BudgetSpent", of="s"), [])
        await act.says(Usage({}, 101))
        await _spent(desk, act, "a turn", "tokens", 100)


async def shared(desk: Desk) -> None:
    """A child's budget lies in its parent's; a restart forgets nothing, and has the limits of every session that the
    settings have now."""
    house = House(desk)
    async with scene(desk, house, settings=_bounded(tokens=1000)) as act:
        child = await act.session.start_child("kid", budget=Budget(tokens=300))
        desk.same("a child's", child.budget, Budget(tokens=300))
        await act.says(Usage({}, 900))
        desk.same("when its parent has less", 98 <= (child.budget.tokens or 0) <= 100, True)
        scope = act.sup.scope("w", "the work", Budget(tool_calls=7))
        free = await act.sup.start_session("free", agent="puppet", within=scope, budget=Budget(turns=4))
        desk.same("within another", free.budget, Budget(turns=4, tool_calls=7))
        again = act.sup.scope("w", "the work", Budget(tool_calls=9))
        desk.same("the same, with other limits", (again is scope, free.budget.tool_calls), (True, 9))
        first, free_in = act.sup.scope("v", "a week", Budget(turns=2)), free.budget
        act.sup.close_scope("v")
        anew = act.sup.scope("v", "the next week", Budget(turns=3))
        desk.same("one that was closed", (anew is first, getattr(anew, "limits", None)), (False, {"turns": 3}))
        act.sup.close_scope("w")
        desk.same("who is in one that is closed", free.budget, free_in)
        desk.same("what bounds nothing", act.sup.scope("x", "x", Budget(), scope), scope)
        await act.sup.start_session("large", agent="puppet", budget=Budget(), patience=Patience.LARGE)
        facts = {one: await house.events(one, "Budgeted") for one in ("free", "large", "s/kid")}
        told = {one: [scope["id"] for scope in found[0].metadata["scopes"]] for one, found in facts.items()}
        desk.same("scopes on record", told, {"free": ["free", "host:w"], "large": [], "s/kid": ["s/kid", "s"]})
        desk.same("patience on record", facts["large"][0].metadata["patience"], "large")
        await act.says(DONE)
        await act.says(Usage({"late": 1}, 10))
        left, unbounded = house.left(), house.left()
    async with unbounded.open(Settings()) as sup:
        bounds = {one.id: one.budget.limits for one in sup.sessions()}
        desk.same("with no limits any more", (bounds["s"], bounds["s/kid"]), ({}, {"tokens": 300}))
        for one in sup.sessions():
            if one.id in sup.tree.works:
                await sup.abort(one.id, AbortScope.SESSION, now=True)
    async with left.open(_bounded(tokens=2000)) as sup:
        bounds = {one.id: one.budget.limits for one in sup.sessions()}
        desk.same(
            "with other settings",
            bounds,
            {"s": {"tokens": 1090}, "s/kid": {"tokens": 300}, "free": {"turns": 4, "tool_calls": 7}, "large": {}},
        )
        desk.same("what was used", sup.session("s").used.tokens, 910)
        watch: Any = sup.tree.works["large"].watch
        desk.same("whose patience", watch.patience, Patience.LARGE)
        for one in sup.sessions():
            if one.id in sup.tree.works:
                await sup.abort(one.id, AbortScope.SESSION, now=True)


async def many(desk: Desk) -> None:
    """Of very many reports those have a record that add a part to what is on record, and the last one."""
    async with scene(desk, settings=Settings(model_trouble=ModelTroubleConfig(fruitless_max=0))) as act:
        for _ in range(200):
            act.puppet.says(Usage({"n": 1}, 100))
        await act.says(Text("message", "x"))
        told = [one["used"]["input_tokens"] for _, one in await act.told("Usage", of="s")]
        desk.same("the first ones", told[:32], [100 * n for n in range(1, 33)])
        desk.same("then those that matter", all(b > a * 33 / 32 for a, b in pairwise(told[31:])), True)
        desk.same("none is left out", all(b <= a * 33 / 32 + 100 for a, b in pairwise(told[31:])), True)
        await act.says(DONE)
        last = (await act.told("Usage", of="s"))[-1][1]
        desk.same("the last", last["used"]["input_tokens"], 20_000)
    async with scene(desk, settings=Settings(model_trouble=ModelTroubleConfig(fruitless_max=0))) as act:
        for _ in range(100):
            act.puppet.says(Usage({"n": 1}, cost_usd=0.25))
        await act.says(Text("message", "x"))
        cents = [one["used"]["cost_usd"] for _, one in await act.told("Usage", of="s")][31:]
        desk.same("money that matters", all(a * 33 / 32 < b <= a * 33 / 32 + 0.25 for a, b in pairwise(cents)), True)
        desk.same("not all of it", 5 < len(cents) < 60, True)
    async with scene(desk, settings=Settings(model_trouble=ModelTroubleConfig(fruitless_max=0))) as act:
        for number in range(40):
            act.puppet.says(Usage({"n": number}), Usage({}))
        await act.says(Text("message", "x"))
        told = [one["said"]["n"] for _, one in await act.told("Usage", of="s")]
        desk.same("what adds nothing, and says something", told, [*range(32)])


async def circles(desk: Desk) -> None:
    """The same call 5 times, the same edit 3 times: told once for each prompt, then aborted."""
    for kind, most in (("read", 5), ("edit", 3)):
        async with scene(desk) as act:
            for number in range(most - 1):
                await act.says(ToolOpened(f"a{number}", "same", kind), ToolClosed(f"a{number}", "completed", "x", "y"))
            desk.same(f"{kind}: not yet", await act.told("Repeats", of="s"), [])
            await act.says(ToolOpened("b", "same", kind), ToolClosed("b", "completed", "x", "y"))
            told = [(one["title"], one["times"], one["again"]) for _, one in await act.told("Repeats", of="s")]
            desk.same(f"{kind}: once", told, [("same", most, False)])
            asks = await act.house.events("s", "UrgentMessage")
            desk.same("it is told", [(one.actor, one.metadata["point"]) for one in asks], [("supervisor", "now")])
            await anyio.sleep(1.0)
            for number in range(most):
                await act.says(ToolOpened(f"c{number}", "same", kind), ToolClosed(f"c{number}", "completed", "x", "y"))
            await anyio.sleep(1.0)
            await aborted(desk, act, f"{kind}: again", "loops", "Repeats")
    async with scene(desk) as act:
        for turn in range(3):
            for number in range(3):
                await act.says(ToolOpened(f"{number}", "same"), ToolClosed(f"{number}", "completed", "x", "y"))
            await act.says(TurnEnded("end_turn"))
            await act.ask_later(f"prompt {turn}")
        desk.same("each prompt is another one", await act.told("Repeats", of="s"), [])
        for number in range(7):
            await act.says(ToolOpened(f"{number}", "same"), ToolClosed(f"{number}", "completed", "x", f"{number}"))
        desk.same("with another answer", await act.told("Repeats", of="s"), [])


SPENDERS = (budgets, counted, shared, many, circles)
