"""Leaving: hosts that are cancelled while they wait, beside others who wait for the same, and go on waiting.

Held to the docstrings of :class:`Session` and :class:`Supervisor`: an answer is given to all who wait for it, and what
is on record has all of its effects, whoever has gone by then.
"""

from __future__ import annotations

from typing import Final

import anyio

from actors import fault
from supervisor.embedding.runtime import TurnResult
from supervisor.host.supervision import Supervisor
from supervisor.plans import Settings
from supervisor.policies.permissions import Decision, PermissionPolicy
from supervisor.ports import PermissionAsked, Released, TurnEnded
from supervisor.runtime.live_session import AgentProfile
from supervisor.simulation.drills.agents.acting import scene
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.house import MOMENT_S, House, Rooms

__all__ = ["LEAVING"]

DONE: Final = TurnEnded("end_turn")
COMMIT_S: Final = 1.0
IMPATIENT: Final = 2_000
"""So many who do not wait for an answer are more than calls may be within each other."""


async def asked_by_two(desk: Desk) -> None:
    """Who asks a prompt is cancelled when its session has it, and it is not on record yet: who waits for its end
    beside that hears of it, and it is all the same on record."""
    house, heard = House(desk), list[TurnResult | None]()
    async with house.open() as sup, anyio.create_task_group() as group:
        session = await sup.start_session("s", agent="puppet")
        house.commit_s = COMMIT_S

        async def hears() -> None:
            heard.append(await session.result())

        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as asking:
                asking.start_soon(session.run, "work")
                await anyio.sleep(COMMIT_S / 4)
                group.start_soon(hears)
                await anyio.sleep(COMMIT_S / 4)
                scope.cancel()
        house.commit_s = 0.0
        await anyio.sleep(4 * COMMIT_S)
        house.puppets[-1].says(DONE)
        await anyio.sleep(4 * COMMIT_S)
        desk.same("who waits beside it", [one.outcome for one in heard if one is not None], ["completed"])
        desk.same("who is waited for", sup.under_way(), 0)
        desk.same(
            "its answer on record",
            [one.to_status for one in await house.log("s:t1") if one.outcome == "transition"][-2:],
            ["COMPLETING", "REAPED"],
        )
        group.cancel_scope.cancel()


async def withdrawn(desk: Desk) -> None:
    """Who asks a prompt is cancelled as he asks it. If its session has not heard of it (that is chance), nothing is
    left of it, and how the prompt of an earlier supervisor has ended is still known."""
    async with scene(desk) as act:
        left = act.house.left()
    async with left.open() as sup:
        session = sup.session("s")
        await anyio.sleep(10.0)
        left.puppets[-1].says(DONE)
        await anyio.sleep(1.0)
        with fault.deciding(lambda name, who: (name, who) == ("ask.queued", "s")), anyio.CancelScope() as scope:
            scope.cancel()
            await session.run("more")
        await anyio.sleep(1.0)
        desk.same("what is on its way", (len(sup.tree.work("s").asking), sup.under_way()), (0, 0))
        if len(await left.events("s", "TurnRequested")) == 1:
            result = await session.result()
            desk.same("how the first one has ended", result.outcome if result is not None else "", "completed")


async def not_sent(desk: Desk) -> None:
    """Who leaves a message, and is cancelled before its session could hear of that, has left none."""
    async with scene(desk) as act:
        for urgent in (False, True):
            await act.sup.tree.system.suspend("s", timeout_s=1.0)
            with anyio.move_on_after(1.0):
                await act.session.send("a word", urgent=urgent)
            act.sup.tree.system.resume("s")
            await anyio.sleep(1.0)
        heard = [one.event for one in await act.house.events("s", "MessageReceived", "UrgentMessage")]
        desk.same("what it has heard", heard, [])
        desk.same("what is on its way", len(act.sup.tree.work("s").sending), 0)
        await act.says(DONE)


async def asked_again_and_again(desk: Desk) -> None:
    """Many wait for the end of a prompt, one after the other, and none of them long enough: nothing is left of them,
    and who waits to the end hears of it."""
    async with scene(desk) as act:
        for _ in range(IMPATIENT):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as asking:
                    asking.start_soon(act.session.result)
                    await anyio.lowlevel.checkpoint()
                    scope.cancel()
        heard: list[TurnResult | None] = []

        async def hears() -> None:
            heard.append(await act.session.result())

        act.group.start_soon(hears)
        await anyio.sleep(MOMENT_S)
        await act.says(DONE)
        await anyio.sleep(1.0)
        desk.same("who waited to the end", [one.outcome for one in heard if one is not None], ["completed"])
        desk.same("who asked for it", [one.outcome for one in act.results], ["completed"])


async def answered_for_good(desk: Desk) -> None:
    """Who answers a permission for good is cancelled before that is on record: it is for good all the same, and who
    answers it otherwise is told whose word it was."""
    may = PermissionPolicy(default=Decision.ASK, answer_within_s=60.0)
    asks = {"puppet": AgentProfile(name="puppet", adapter="puppet", directory="/house", permissions=may)}
    offered = (("y", "allow_once"), ("n", "reject_once"))
    async with scene(desk, agents=asks) as act:
        await act.says(PermissionAsked("r1", "push", offered, "edit", "tool", "detail", ("f",)))
        act.house.commit_s = COMMIT_S
        with anyio.move_on_after(COMMIT_S / 2):
            await act.sup.answer(f"{act.turn}:p1", allow=True, always=True, by="ann")
        refused = await desk.raises("another answer", act.sup.answer(f"{act.turn}:p1", allow=False), Exception)
        desk.same("why that is refused", str(refused), f"{act.turn}:p1 is answered already: allow by ann")
        act.house.commit_s = 0.0
        await anyio.sleep(2 * COMMIT_S)
        await act.says(PermissionAsked("r2", "push", offered, "edit", "tool", "detail", ("f",)))
        told = act.puppet.heard("permission")
        desk.same("what it is told", told, [("permission", name, "y") for name in ("r1", "r2")])


class _Slow(Rooms):
    """Places that it takes a while to put away."""

    async def put_away(self, session_id: str, message: str) -> Released:
        await anyio.sleep(5.0)
        return await super().put_away(session_id, message)


async def ended_by_many(desk: Desk) -> None:
    """Several end every session, one after the other: all wait until its place is put away, and no longer."""
    house, over = House(desk), list[float]()
    house.rooms = _Slow()
    house.rooms.temporary = True

    async def ends(sup: Supervisor) -> None:
        await sup.close_all()
        over.append(desk.since())

    async with house.open(Settings()) as sup, anyio.create_task_group() as group:
        await sup.start_session("s", agent="puppet")
        desk.again()
        for _ in range(3):
            group.start_soon(ends, sup)
            await anyio.sleep(1.0)
        await anyio.sleep(60.0)
        desk.same("how many hear of the end", len(over), 3)
        group.cancel_scope.cancel()


LEAVING = (asked_by_two, withdrawn, not_sent, asked_again_and_again, answered_for_good, ended_by_many)
