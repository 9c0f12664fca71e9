"""Resuming: what the agents of a session that goes on are told, and who is answered for what was asked before.

Held to docs/recovery.md: a conversation is loaded once, and only where it can be; who was interrupted is told so; a
message that was acknowledged is in the next prompt; a child that was delegated is closed when it has answered.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import anyio

from supervisor.lifecycles.types import AbortScope, CancelMode
from supervisor.plans import Settings
from supervisor.plans.monitoring import BudgetConfig
from supervisor.plans.settings import LimitsConfig, RecoveryConfig
from supervisor.ports import ChildAsked, Out, Ready, Text, ToolOpened, TurnEnded, Usage
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.house import MOMENT_S, House, Puppet
from supervisor.simulation.drills.whole.hosting import Crowd

__all__ = ["RESUMING"]

DONE: Final = TurnEnded("end_turn")
RESTART: Final = Settings(limits=LimitsConfig(max_total_errors=50), recovery=RecoveryConfig(sessions="restart"))
COOLS_S: Final = 2.0
HAND_BACKS: Final = 6
"""Kills that are tried on the way to one."""


async def _left(desk: Desk, phase: str, named: bool) -> House:
    """A house whose supervisor was killed in that phase of a turn, with a message that nobody has heard yet."""
    life = House(desk)
    life.ready = lambda puppet: [Ready("its-name" if named else None)] if phase != "before it was ready" else ()
    async with life.open(RESTART) as sup, anyio.create_task_group() as group:
        session = await sup.start_session("s", agent="puppet")
        if phase == "between prompts":
            life.answers = lambda puppet, text: [DONE]
        await Crowd(group).ask(session, "the prompt")
        if phase == "in a call":
            life.puppets[-1].says(ToolOpened("call", "x"))
        if phase == "failed":
            life.puppets[-1].says(TurnEnded("error", "no"))
        await anyio.sleep(MOMENT_S)
        await session.send("a word that was acknowledged")
        left = life.left()
        await sup.abort("s", AbortScope.SESSION, now=True)
        group.cancel_scope.cancel()
    return left


async def told(desk: Desk) -> None:
    """In each phase of a turn: the next agent loads the conversation where there is one, is told to look where it may
    have begun, and has every message once. A second failure loads nothing."""
    for phase in ("before it was ready", "at work", "in a call", "failed", "between prompts"):
        for named in (True, False):
            await _tell(desk, phase, named)


async def _tell(desk: Desk, phase: str, named: bool) -> None:
    what, house = f"killed {phase}, {'' if named else 'not '}named", await _left(desk, phase, named)
    loads = named and phase != "before it was ready"
    cut = phase in ("at work", "in a call")
    async with house.open(RESTART) as sup, anyio.create_task_group() as group:
        crowd = Crowd(group)
        if phase == "between prompts":
            await crowd.ask(sup.session("s"), "the prompt")
        await anyio.sleep(COOLS_S + 1.0)
        desk.same(f"{what}: agents", len(house.puppets), 1)
        first = house.puppets[0]
        desk.same(f"{what}: loads", [one[2] for one in first.heard("start")], ["its-name" if loads else None])
        desk.same(f"{what}: is started with", [one[3] for one in first.heard("argv")], ["its-name" if loads else None])
        prompt = next(one[1] for one in first.heard("prompt"))
        desk.same(f"{what}: is asked", ("the prompt" in prompt, prompt.count("acknowledged")), (True, 1))
        desk.same(f"{what}: is told to look", "interrupted" in prompt, cut and loads)
        first.exit(1)
        await anyio.sleep(2 * COOLS_S + 1.0)
        again = house.puppets[-1]
        desk.same(f"{what}: a second one", (len(house.puppets), again.heard("start")[0][2]), (2, None))
        prompt = next(one[1] for one in again.heard("prompt"))
        desk.same(f"{what}: is asked again", ("the prompt" in prompt, prompt.count("acknowledged")), (True, 1))
        desk.same(f"{what}: is not told to look", "interrupted" in prompt, False)
        await crowd.wait("answer", sup.result_of, "s")
        again.says(Text("message", "all of it"), DONE)
        await anyio.sleep(1.0)
        desk.same(f"{what}: the answer", crowd.outcome("answer"), ("completed", ""))
        errors = [one.metadata for one in await house.events("s", "Resumed")]
        desk.same(
            f"{what}: on record", [(one["interrupted"], one["resume_id"]) for one in errors], [_noted(cut, loads)]
        )
        await sup.abort("s", AbortScope.SESSION, now=True)
        group.cancel_scope.cancel()


def _noted(cut: bool, loads: bool) -> tuple[bool, str | None]:
    return cut, "its-name" if loads else None


async def delegated(desk: Desk) -> None:
    """A child whose call had delegated it, and whose parent's agent is gone: its call has the result unknown, and the
    child ends with it; one that was abandoned to itself goes on, answers, and is closed for that."""
    for mode, lives in ((CancelMode.WAIT_COMPLETED, False), (CancelMode.ABANDON, True)):
        life = House(desk)
        async with life.open(RESTART) as sup, anyio.create_task_group() as group:
            await Crowd(group).ask(await sup.start_session("s", agent="puppet"), "work")
            life.puppets[-1].says(ToolOpened("call", "x"), ChildAsked("r", "kid", "do it", None, "call", mode))
            await anyio.sleep(MOMENT_S)
            left, last_seq = life.left(), life.store.last_seq
            await sup.abort("s", AbortScope.SESSION, now=True)
            await sup.abort("s/kid", AbortScope.SESSION, now=True)
            group.cancel_scope.cancel()
        async with left.open(RESTART) as sup:
            await anyio.sleep(COOLS_S + 1.0)
            desk.same(f"{mode}: the child", "s/kid" in sup.tree.works, lives)
            parts = {one.launch.cwd: one for one in left.puppets if one.launch is not None}
            if lives:
                parts["/house/s/kid"].says(Text("message", "did it"), DONE)
                await anyio.sleep(1.0)
                desk.same("it is closed", "s/kid" in sup.tree.works, False)
                stops = await left.events("s/kid", "OperatorStop")
                answered = (await left.events("s/kid", "TurnReaped"))[-1]
                told = [(one.cause_id, one.actor, one.metadata["outcome"]) for one in stops]
                desk.same("by whom, and for what", told, [(answered.seq, "recovery", "completed")])
            calls = [one for one in await left.events("s:t1", "tool_completed") if one.seq > last_seq]
            desk.same(f"{mode}: its call", [one.metadata["outcome"] for one in calls], ["unknown"])
            desk.same(f"{mode}: its parent goes on", "s" in sup.tree.works, True)
            await sup.abort("s", AbortScope.SESSION, now=True)


async def unheard(desk: Desk) -> None:
    """Who asks for an answer that is not on record yet waits until it is; who asks later has it, until something new is
    asked; who asked for nothing has none."""
    life = House(desk)
    async with life.open(RESTART) as sup, anyio.create_task_group() as group:
        for name in ("s", "idle"):
            await sup.start_session(name, agent="puppet")
        await Crowd(group).ask(sup.session("s"), "work")
        left = life.left()
        for name in ("s", "idle"):
            await sup.abort(name, AbortScope.SESSION, now=True)
        group.cancel_scope.cancel()
    async with left.open(RESTART) as sup, anyio.create_task_group() as group:
        crowd = Crowd(group)
        desk.same(
            "who was asked for nothing", (await sup.result_of("idle"), await sup.result_of("nobody")), (None,) * 2
        )
        await anyio.sleep(COOLS_S + 1.0)
        left.commit_s = 3.0
        left.puppets[-1].says(Text("message", "so"), DONE)
        while sup.tree.entity("s").data.current is not None:  # noqa: ASYNC110  nobody rings when that is decided
            await anyio.sleep(0.1)
        await crowd.wait("early", sup.result_of, "s")
        left.commit_s = 0.0
        await anyio.sleep(15.0)
        desk.same("an answer on its way to the disk", crowd.outcome("early"), ("completed", ""))
        later = await sup.result_of("s")
        reaped = (await left.events("s", "TurnReaped"))[-1]
        desk.same(
            "one that is there", later and (later.outcome, later.text, later.seq), ("completed", "so", reaped.seq)
        )
        left.answers = lambda puppet, text: [TurnEnded("error", "no")] if text == "fail" else [DONE]
        await crowd.ask(sup.session("s"), "more", "more")
        desk.same("something new", crowd.outcome("more")[0], "completed")
        desk.same("is not what was asked before", await sup.result_of("s"), None)
        await sup.abort("idle", AbortScope.SESSION, now=True)
        await sup.abort("s", AbortScope.SESSION, now=True)
        group.cancel_scope.cancel()


async def kin_spent(desk: Desk) -> None:
    """What a child used that has ended counts in its parent's scope, also under the next supervisor."""
    house, settings = House(desk), Settings(session_budget=BudgetConfig(tokens=1000))
    async with house.open(settings) as sup, anyio.create_task_group() as group:
        crowd = Crowd(group)
        session = await sup.start_session("s", agent="puppet")
        await crowd.ask(session, "the prompt")
        kid = await session.start_child("kid")
        await crowd.ask(kid, "a part of it")
        house.puppets[-1].says(Usage({"a": 1}, 500, 400), DONE)
        await anyio.sleep(MOMENT_S)
        await kid.close()
        left = house.left()
        group.cancel_scope.cancel()
    async with left.open(settings) as sup:
        await anyio.sleep(MOMENT_S)
        tokens = sup.session("s").budget.tokens or 0
        desk.same(f"what is left, {tokens}", 100 * 63 // 64 <= tokens <= 100, True)


async def spent_before(desk: Desk) -> None:
    """Whose budget was spent when its supervisor was killed hands back, however that is bounded; where larger limits
    hold by then, it goes on."""
    for of_turn in (False, True):
        for now in (1000, 3000):
            await _spend(desk, of_turn, now)


async def _spend(desk: Desk, of_turn: bool, now: int) -> None:
    house, what = House(desk), f"{'a turn' if of_turn else 'a session'} of 1000, now {now}"
    house.stops = lambda puppet: ()
    async with house.open(_of_tokens(1000, of_turn=of_turn)) as sup, anyio.create_task_group() as group:
        session = await sup.start_session("s", agent="puppet")
        await Crowd(group).ask(session, "the prompt")
        house.puppets[-1].says(Usage({"a": 1}, 600, 500))
        await anyio.sleep(MOMENT_S)
        left = house.left()
        await sup.abort("s", AbortScope.SESSION, now=True)
        group.cancel_scope.cancel()
    async with left.open(_of_tokens(now, of_turn=of_turn)) as sup:
        await anyio.sleep(MOMENT_S)
        spent = [one.metadata["measure"] for one in await left.events("s", "BudgetSpent")]
        desk.same(f"{what}: what was spent", spent, ["tokens"])
        asked = [("tokens" in one[1]) for one in left.puppets[-1].heard("prompt")]
        desk.same(f"{what}: is asked to hand back", asked, [now == 1000])
        left.puppets[-1].says(DONE)
        await anyio.sleep(MOMENT_S)
        desk.same(f"{what}: is over", "s" in sup.tree.works, now != 1000)
        if now != 1000:
            await sup.abort("s", AbortScope.SESSION, now=True)


async def asked_to_hand_back(desk: Desk) -> None:
    """Whenever its supervisor is killed on the way to the turn that hands back: its prompt says so where the same
    limits hold, and does not where larger ones do. Who was done when he was asked has nothing else in it."""
    for done in (False, True):
        life = House(desk)
        life.cuts = []
        life.stops = partial(_stops, DONE if done else TurnEnded("cancelled"))
        async with life.open(_of_tokens(1000)) as sup, anyio.create_task_group() as group:
            session = await sup.start_session("s", agent="puppet")
            await Crowd(group).ask(session, "the prompt")
            life.puppets[-1].says(Usage({"a": 1}, 600, 500))
            await anyio.sleep(1.0)
            spent = (await life.events("s", "BudgetSpent"))[0].seq
            cuts = [one for one in life.cuts if one.last_seq >= spent]
            await sup.abort("s", AbortScope.SESSION, now=True)
            group.cancel_scope.cancel()
        for number in range(HAND_BACKS):
            left = desk.chance.choice(cuts, "cut", done, number)
            for tokens in (1000, 3000):
                await _hands_back(desk, House(desk, left).left(), tokens, done)


def _stops(out: Out, puppet: Puppet) -> list[Out]:
    """It says so when it is interrupted."""
    return [out]


async def _hands_back(desk: Desk, house: House, tokens: int, done: bool) -> None:
    what = f"after record {house.store.last_seq}, {'' if done else 'not '}done, of now {tokens}"
    async with house.open(_of_tokens(tokens)) as sup:
        await anyio.sleep(COOLS_S + 1.0)
        prompts = [one[1] for puppet in house.puppets for one in puppet.heard("prompt")]
        desk.same(f"{what}: is asked for something", (len(prompts), all(prompts)), (1, True))
        asked, has_more = "is used up" in prompts[-1], "the prompt" in prompts[-1]
        desk.same(f"{what}: is asked to hand back", asked, tokens == 1000 or not has_more)
        await sup.abort("s", AbortScope.SESSION, now=True)


def _of_tokens(tokens: int, *, of_turn: bool = False) -> Settings:
    """So many tokens for a session, or for each of its turns."""
    return RESTART.model_copy(update={"turn_budget" if of_turn else "session_budget": BudgetConfig(tokens=tokens)})


async def finished(desk: Desk) -> None:
    """A supervisor that is left in order finishes what an earlier one was asked for, and nobody waits for."""
    life = House(desk)
    async with life.open(RESTART) as sup, anyio.create_task_group() as group:
        await Crowd(group).ask(await sup.start_session("s", agent="puppet"), "work")
        left = life.left()
        await sup.abort("s", AbortScope.SESSION, now=True)
        group.cancel_scope.cancel()
    async with anyio.create_task_group() as group:

        async def end() -> None:
            while not (left.puppets and left.puppets[-1].heard("prompt")):  # noqa: ASYNC110  nobody rings when it is asked
                await anyio.sleep(1.0)
            await anyio.sleep(15.0)
            left.puppets[-1].says(Text("message", "all of it"), DONE)

        group.start_soon(end)
        async with left.open(RESTART):
            desk.again()
    answered = [one.metadata["completed"] for one in left.store.logs["s"].after(0, 1000) if one.event == "TurnReaped"]
    desk.same("its answer", answered[-1:], [True])
    desk.same("when", 15.0 < desk.since() < 25.0, True)


RESUMING = (told, delegated, unheard, kin_spent, spent_before, asked_to_hand_back, finished)
