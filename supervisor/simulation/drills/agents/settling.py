"""Settling: how turns and calls come to their one end where an agent goes on after its last word, or says another one.

A compaction may begin after a turn's last word; a call that was aborted may have been done; a turn may have hundreds
of calls. Held to docs/agents.md, docs/plans.md and the table of a turn (spec 000).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import anyio

from supervisor.lifecycles.events import OperatorStop
from supervisor.lifecycles.types import AbortScope, ModelProblem
from supervisor.plans import Settings
from supervisor.plans.monitoring import ModelTroubleConfig
from supervisor.policies.abort_plan import Receipt, UnknownTarget
from supervisor.ports import (
    ChildAsked,
    Compaction,
    ModelTrouble,
    TerminalOpened,
    Text,
    ToolClosed,
    ToolOpened,
    TurnEnded,
)
from supervisor.runtime.journal_writer import Cause
from supervisor.simulation.drills.agents.acting import DONE, ONCE, Scene, scene
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.house import MOMENT_S, House

__all__ = ["SETTLING"]

COMMIT_S: Final = 2.0
"""A disk that takes its time: what is decided meanwhile is decided before it is on record."""
COMPACTS_S: Final = 60.0
"""How long a compaction that begins after the last word may take before the turn is verified all the same."""
BEGUN, OVER, FAILED = Compaction(active=True), Compaction(active=False), Compaction(active=False, failed=True)
NEEDS: Final = ["verify_requested", "compact_needed", "compact_needed"]
"""It is being verified, must compact first, and does."""
VERIFIED: Final = ["verify_requested", "verify_requested", "task_completed", "agent_reaped"]
"""Its compaction is over: it is verified anew, and well."""
ABORTED: Final = ["verify_requested", "verify_requested", "task_failed", "agent_reaped"]
"""The same for one that was told to end meanwhile: it has lost its turn."""


async def _done_slowly(act: Scene, *last: Any) -> None:
    """Its last words, on a disk that takes its time: they are not on record yet when this returns."""
    act.house.commit_s = COMMIT_S
    act.puppet.says(*last)
    await anyio.sleep(COMMIT_S / 2)


async def _steps(act: Scene, after: int = 0) -> list[str]:
    log = await act.house.log(act.turn)
    return [one.event for one in log if one.outcome == "transition"][after:]


async def late_compactions(desk: Desk) -> None:
    """One that begins after the last word of a turn holds up its verification until it is over, well or not; for 60 s
    at most, and no longer than the agent lives. Then the turn has succeeded."""
    for how, begins in (
        ("over", 1),
        ("over", 3),
        ("failed", 1),
        ("exit", 1),
        ("never", 1),
    ):
        what = f"{how} after {begins}"
        async with scene(desk) as act:
            await act.says(Text("message", "all of it"))
            known = len(await _steps(act))
            await _done_slowly(act, DONE)
            act.puppet.says(*[BEGUN] * begins)
            act.house.commit_s = 0.0
            desk.again()
            await anyio.sleep(COMPACTS_S / 2)
            desk.same(f"{what}: while it compacts", (await _steps(act, known), act.results), (NEEDS, []))
            match how:
                case "over":
                    act.puppet.says(OVER)
                case "failed":
                    act.puppet.says(FAILED)
                case "exit":
                    act.puppet.exit(0)
            await anyio.sleep(1.0)
            if how == "never":  # it begins when that is on record, with the next commit
                await anyio.sleep(COMPACTS_S + COMMIT_S / 2 - 0.3 - desk.since())
                desk.same(f"{what}: not before its time", act.results, [])
                await anyio.sleep(1.0)
            desk.same(f"{what}: after it", await _steps(act, known), [*NEEDS, *VERIFIED])
            told = [(one.outcome, one.text) for one in act.results]
            desk.same(f"{what}: its answer", told, [("completed", "all of it")])
            await act.ask_later("again")
            await act.says(DONE) if how != "exit" else None
            await anyio.sleep(COMPACTS_S + 2.0)
            desk.same(f"{what}: nothing of it comes later", await _steps(act, known), [*NEEDS, *VERIFIED])
            if how != "exit":
                desk.same(f"{what}: the next one", [one.outcome for one in act.results], ["completed"] * 2)
    async with scene(desk) as act:
        known = len(await _steps(act))
        await _done_slowly(act, DONE)
        act.puppet.says(BEGUN)
        await anyio.sleep(MOMENT_S)
        await act.sup.stop(now=True)
        await anyio.sleep(COMMIT_S * 8)
        desk.same("killed before that is on record", await _steps(act, known), [*NEEDS, *ABORTED])
        desk.same("killed: its answer", [one.outcome for one in act.results], ["aborted"])


async def idle_compactions(desk: Desk) -> None:
    """One that begins when its turn has failed, or is over, holds up nothing; nor does the end of one that nobody
    knows."""
    async with scene(desk, settings=ONCE) as act:
        known = len(await _steps(act))
        await _done_slowly(act, TurnEnded("error", "no"))
        act.puppet.says(BEGUN, BEGUN)
        await anyio.sleep(COMMIT_S * 5)
        desk.same("of a turn that has failed", await _steps(act, known), ["task_failed", "agent_reaped"])
    async with scene(desk) as act:
        known = len(await _steps(act))
        await _done_slowly(act, DONE, OVER)
        act.house.commit_s = 0.0
        await anyio.sleep(COMMIT_S * 5)
        wanted = ["verify_requested", "task_completed", "agent_reaped"]
        desk.same("the end of none", await _steps(act, known), wanted)
        await act.says(BEGUN)
        desk.same("after its turn", await _steps(act, known), wanted)
        await act.ask_later("more")
        await act.says(OVER, DONE)
        desk.same("the next turn", [one.outcome for one in act.results], ["completed"] * 2)


# --------------------------------------------------------------------------------------------------------- calls
async def _abort(act: Scene, target: str, receipts: list[Receipt]) -> None:
    receipts.append(await act.sup.abort(target, AbortScope.TOOL, reason="enough"))


async def aborted_calls(desk: Desk) -> None:
    """What an agent says of a call of its own that it was asked to end: one that failed was aborted, of any other one
    nobody can tell whether its effect happened. Who says nothing of it until its turn is over has said nothing."""
    for said, wanted in (
        ("failed", "aborted"),
        ("completed", "unknown"),
        ("aborted", "unknown"),
        ("unknown", "unknown"),
        ("", "unknown"),
    ):
        house, what = House(desk), f"it says {said or 'nothing'!r}"
        house.ends_calls = True
        async with scene(desk, house) as act:
            receipts: list[Receipt] = []
            await act.says(ToolOpened("first", "x"), ToolClosed("first", "completed"), ToolOpened("call", "x"))
            act.group.start_soon(_abort, act, f"{act.turn}:c2", receipts)
            await anyio.sleep(0.5)
            await act.says(*([ToolClosed("call", said)] if said else [DONE]))
            await anyio.sleep(1.0)
            ends = [one for one in await house.events(act.turn, "tool_completed") if one.outcome == "transition"]
            told = [(one.metadata["outcome"], one.metadata["abort_id"], one.metadata["reason"]) for one in ends[1:]]
            desk.same(f"{what}: its result", told, [(wanted, receipts[0].abort_id if receipts else "", "enough")])
            desk.same(f"{what}: the other one", [one.metadata["outcome"] for one in ends[:1]], ["completed"])
            if said:
                await act.says(DONE)
            outcomes = [one.outcome for one in act.results]
            desk.same(f"{what}: its turn", outcomes, ["completed"] if said else [])


async def hundreds(desk: Desk) -> None:
    """Calls have numbers beyond any that is kept somewhere: whichever of hundreds is aborted ends, with those that were
    made within it, and no other one does."""
    many = desk.chance.integer(260, 320, "many")
    house = House(desk)
    house.ends_calls = True
    async with scene(desk, house) as act:
        for number in range(many):
            act.puppet.says(ToolOpened(f"call-{number}", "x"), ToolClosed(f"call-{number}", "completed"))
        await anyio.sleep(MOMENT_S)
        first, outer, inner, other = range(many + 1, many + 5)
        await act.says(ToolOpened("first", "w"), ToolOpened("outer", "x"))
        await act.says(ToolOpened("inner", "y", "read", "outer"), ToolOpened("other", "z"))
        begun = [one for _, one in await act.told("tool_started")][-4:]
        within = [(one["number"], one["within"]) for one in begun]
        desk.same("which are within which", within, [(first, 0), (outer, 0), (inner, outer), (other, 0)])
        planned = act.sup.plan_abort(f"{act.turn}:c{outer}", AbortScope.TOOL)
        desk.same("what would end", sorted(one.id for one in planned.nodes), [f"s:t1:c{outer}", f"s:t1:c{inner}"])
        planned = act.sup.plan_abort(f"{act.turn}:c{first}", AbortScope.TOOL)
        desk.same("what would end with the first", [one.id for one in planned.nodes], [f"s:t1:c{first}"])
        receipts: list[Receipt] = []
        act.group.start_soon(_abort, act, f"{act.turn}:c{outer}", receipts)
        await anyio.sleep(0.5)
        desk.same("what the agent is asked", act.puppet.heard("end_call"), [("end_call", "outer")])
        await act.says(ToolClosed("inner", "failed"), ToolClosed("outer", "failed"))
        await anyio.sleep(1.0)
        ended = [(one.id, one.outcome) for one in receipts[0].nodes] if receipts else []
        desk.same("what has ended", sorted(ended), [(f"s:t1:c{outer}", "ended"), (f"s:t1:c{inner}", "ended")])
        how = {one.id: one.how for one in receipts[0].nodes} if receipts else {}
        desk.same("how the inner one has", how.get(f"s:t1:c{inner}"), "it ended with the call that it was made within")
        goes_on = (f"s:t1:c{first}", f"s:t1:c{other}")
        desk.same("what goes on", act.sup.inspect(act.turn).open_calls, goes_on)
        known = await act.sup.abort(f"{act.turn}:c{many - 1}", AbortScope.TOOL)
        desk.same("one that had ended", (known.already_ended, known.nodes), (True, ()))
        await act.says(ToolOpened("ours", "run", "execute"), TerminalOpened("t", "ours", ("ls",), None, {}))
        act.group.start_soon(_abort, act, f"{act.turn}:c{many + 5}", receipts)
        await anyio.sleep(1.0)
        desk.same("a command of ours", [(one.alive, one.orders) for one in house.props], [(False, ["left"])])
        desk.same("its process", [one.pid for one in receipts[-1].processes], [house.props[0].pid])
        await act.says(ToolClosed("first", "completed"), ToolClosed("other", "completed"), DONE)
        desk.same("its turn", [one.outcome for one in act.results], ["completed"])
        for number in (1, 2, many + 5):
            over = await act.sup.abort(f"{act.turn}:c{number}", AbortScope.TOOL)
            desk.same("a call of a turn that is over", over.already_ended, True)
        for never in (f"{act.turn}:c{many + 6}", f"{act.turn}:c0", "s:t2:c1", f"{act.turn}:x1"):
            wish = act.sup.abort(never, AbortScope.TOOL)
            await desk.raises(f"a call that never was, {never}", wish, UnknownTarget)


async def cut_short(desk: Desk) -> None:
    """A child that is ended in the instant in which it is born, before it could be asked anything: who asked for it has
    one answer all the same."""
    async with scene(desk) as act:
        parent = act.puppet
        parent.says(ToolOpened("call", "x"), ChildAsked("r", "kid", "do it", None, "call"))
        while "s/kid" not in act.sup.tree.works:
            await anyio.lowlevel.checkpoint()
        act.sup.tree.end("s/kid", OperatorStop(reason="enough"), cause=Cause(actor="me"))
        await anyio.sleep(1.0)
        desk.same("its answer", [one[1:3] for one in parent.heard("child")], [("r", "aborted")])
        desk.same("it is gone", "s/kid" in act.sup.tree.works, False)
        parent.says(ToolClosed("call", "failed"), DONE)
        await anyio.sleep(MOMENT_S)
        desk.same("its parent goes on", [one.outcome for one in act.results], ["completed"])


async def troubles(desk: Desk) -> None:
    """Each trouble of a model has a record that tells what was told of it, up to 32 of a turn."""
    patient = ModelTroubleConfig(retries_max=0, fruitless_max=0, requests_max=0)
    async with scene(desk, settings=Settings(model_trouble=patient)) as act:
        kinds = (ModelProblem.RATE_LIMIT, ModelProblem.SERVER)
        said = [
            ModelTrouble(kinds[n % len(kinds)], (None, 500, 429)[n % 3], n % 4, (None, 0.5)[n % 2], ("", "w")[n % 2])
            for n in range(40)
        ]
        for one in said:
            await act.says(one)
        given = [one for _, one in await act.told("ModelTrouble", of="s")]
        desk.same("how many are on record", len(given), 32)
        for one, record in zip(said, given, strict=False):
            told = {name: record.get(name) for name in ("turn", "problem", "status", "attempt", "retry_s", "words")}
            wanted = (act.turn, one.problem.value, one.status, one.attempt or None, one.retry_s, one.words or None)
            desk.same("what is told of one", tuple(told.values()), wanted)


SETTLING: Sequence[Any] = (late_compactions, idle_compactions, aborted_calls, hundreds, cut_short, troubles)
