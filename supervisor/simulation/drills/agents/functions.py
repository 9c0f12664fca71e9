"""Functions: what an agent that is a function is promised of its turn, its calls and its children (docs/agents.md).

Agents of a run do not look at what they are given. These do: they run on the supervisor of the run when its faults have
stopped, so that everything that they see is known beforehand.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Any, Final

import anyio

from supervisor.agents.protocols.inprocess import AgentTurn, ToolAborted
from supervisor.embedding.runtime import Session, Supervisor
from supervisor.lifecycles.types import AbortScope, CancelMode, UnknownWord
from supervisor.policies.budgets import COUNT_MAX
from supervisor.runtime.entity import Refused

__all__ = ["SCENES", "drill_functions"]

Say = Callable[[str, str, str], None]
Agent = Callable[[AgentTurn], Awaitable[Any]]
Meanwhile = Callable[[], Awaitable[Any]]
SLOW_S: Final = 60.0
"""On top of what something takes by itself: the slowest disk's commits."""
CANCEL_S: Final = 5.0
"""How long a call has to clean up that was aborted."""


class ToolBroke(Exception):
    """What a tool raises here."""


async def drill_functions(
    say: Say, sup: Supervisor, now: Callable[[], float], only: Collection[str] | None = None
) -> None:
    """All of it, or *only* what has one of these names, one session after the other."""
    for number, scene in enumerate(SCENES):
        if only is not None and scene.__name__ not in only:
            continue
        stage = Stage(say, sup, now, f"drill{number}", scene.__name__)
        with anyio.move_on_after(3_600.0) as limit:
            await scene(stage)
        if limit.cancelled_caught:
            say("kernel", scene.__name__, "is not over after an hour")


class Stage:
    """A session, its function, and what that has seen."""

    def __init__(self, say: Say, sup: Supervisor, now: Callable[[], float], name: str, scene: str) -> None:
        self._say, self.sup, self.now, self._name, self._scene = say, sup, now, name, scene
        self.seen: list[Any] = []
        self.begun = 0
        """How much has begun that is waited for."""
        self.session: Session

    def same(self, what: str, given: Any, wanted: Any) -> None:
        if given != wanted:
            self._say("kernel", self._scene, f"{what}: {given!r}, not {wanted!r}")

    def took(self, what: str, since_s: float, least_s: float) -> None:
        """It took that long, but for the disk."""
        took_s = self.now() - since_s
        if not least_s - 1e-6 <= took_s <= least_s + SLOW_S:
            self._say("kernel", self._scene, f"{what} took {took_s:.6f} s, not {least_s:g} s")

    async def play(
        self, agent: Agent, prompt: str = "go", meanwhile: Callable[[], Awaitable[Any]] | None = None
    ) -> Any:
        """A turn of such an agent, and what is done while it works; how it ended."""
        self.session = await self.sup.start_session(self._name, agent=agent)
        results: list[Any] = []

        async def ask() -> None:
            results.append(await self.session.run(prompt))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            if meanwhile is not None:
                await meanwhile()
        return results[0]

    async def until(self, begun: int) -> None:
        """So much has begun. What begins is a function's, and has no event of ours."""
        while self.begun < begun:  # noqa: ASYNC110
            await anyio.sleep(0.1)

    async def results_of_calls(self) -> list[str]:
        """How the calls of its first turn ended, by the journal, in the order of their ends."""
        records = await self.sup.journal.events(entity_id=f"{self.session.id}:t1")
        return [
            one.metadata["outcome"] for one in records if (one.event, one.outcome) == ("tool_completed", "transition")
        ]

    async def close(self) -> None:
        await self.session.close()


# ---------------------------------------------------------------------------------------------------- turns and calls
async def answers(stage: Stage) -> None:
    """What it says and returns is the answer; a call gives what its tool gives; calls run at the same time."""

    async def double(number: int) -> int:
        await anyio.sleep(5.0)
        return 2 * number

    async def agent(turn: AgentTurn) -> str:
        turn.say(f"{turn.session_id} {turn.turn_id} {turn.prompt}: ")
        turn.heartbeat()
        began_s, found = stage.now(), []

        async def one(number: int) -> None:
            found.append(await turn.call("double", double, number))

        async with anyio.create_task_group() as group:
            for number in (1, 2, 3):
                group.start_soon(one, number)
        stage.took("three calls at once", began_s, 5.0)
        return f"{sorted(found)}"

    ended = await stage.play(agent, "twice")
    name = stage.session.id
    stage.same("the answer", tuple(ended[:3]), ("completed", "", f"{name} {name}:t1 twice: [2, 4, 6]"))
    again = await stage.session.run("again")
    stage.same("another answer", again.text.startswith(f"{name} {name}:t2 again: "), True)
    await stage.close()


async def errors(stage: Stage) -> None:
    """A tool's error is the agent's, which may go on; its own ends its turn."""

    async def broken() -> None:
        await anyio.sleep(0.5)
        raise ToolBroke("no such thing")

    async def agent(turn: AgentTurn) -> int:
        if stage.seen:
            return 3
        try:
            await turn.call("broken", broken)
        except ToolBroke as error:
            stage.seen.append(str(error))
        raise ToolBroke("not today")

    ended = await stage.play(agent)
    stage.same("what it saw", stage.seen, ["no such thing"])
    stage.same("tried again, with nothing to say", tuple(ended[:3]), ("completed", "", ""))
    await stage.close()


async def amounts(stage: Stage) -> None:
    """What it has used is counted; what is no amount is refused, whole."""
    wrong: tuple[dict[str, Any], ...] = (
        {"input_tokens": -1},
        {"output_tokens": -1, "input_tokens": 5},
        {"cost_usd": -0.1},
        {"cost_usd": float("nan")},
        {"cost_usd": float("inf")},
        {"input_tokens": COUNT_MAX},
    )

    async def agent(turn: AgentTurn) -> None:
        for said in wrong:
            try:
                turn.used(**said)
            except ValueError as error:
                stage.seen.append(any(f"used: {name}: " in str(error) for name in said))
        turn.used(input_tokens=5, output_tokens=2)
        turn.used(cost_usd=0.5)
        turn.used()
        await anyio.sleep(1.0)

    await stage.play(agent)
    stage.same("what is refused", stage.seen, [True] * len(wrong))
    used = stage.sup.used_by(stage.session.id)
    counted = (used.input_tokens, used.output_tokens, used.cost_usd)
    stage.same("what is counted", counted, (5, 2, 0.5))
    await stage.close()


# -------------------------------------------------------------------------------------------------------------- aborts
async def aborted(stage: Stage) -> None:
    """An aborted call is told so, its agent goes on: at once where its tool is over, in its time where it is not."""

    async def stubborn(seconds: float) -> str:
        with anyio.CancelScope(shield=True):
            stage.begun += 1
            await anyio.sleep(seconds)
        return "after all"

    async def agent(turn: AgentTurn) -> str:
        for number, seconds in enumerate((3.0, 500.0), 1):
            began_s = stage.now()
            try:
                stage.seen.append(await turn.call(f"wait {number}", stubborn, seconds))
            except ToolAborted as error:
                stage.seen.append((str(error), error.title))
            stage.took(f"call {number}", began_s, min(seconds, CANCEL_S))
        return "so be it"

    async def abort() -> None:
        name = f"{stage.session.id}:t1"
        for number in (1, 2):
            await stage.until(number)
            await stage.sup.abort(f"{name}:c{number}", AbortScope.TOOL, reason="enough")

    ended = await stage.play(agent, meanwhile=abort)
    told = [(f"the call 'wait {number}' was aborted", f"wait {number}") for number in (1, 2)]
    stage.same("what it saw", stage.seen, told)
    stage.same("it went on", (ended.outcome, ended.text), ("completed", "so be it"))
    await stage.close()


async def given_up(stage: Stage) -> None:
    """A call that its agent waits for no more is ended; the next one is as any."""

    async def forever() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            stage.seen.append("over")

    async def quick() -> str:
        return "here"

    async def agent(turn: AgentTurn) -> str:
        with anyio.move_on_after(2.0):
            await turn.call("forever", forever)
        await anyio.sleep(1.0)
        stage.seen.append(await turn.call("quick", quick))
        return "done"

    ended = await stage.play(agent)
    stage.same("what it saw", (stage.seen, ended.text), (["over", "here"], "done"))
    await stage.close()


async def urgent(stage: Stage) -> None:
    """An urgent message ends the turn with its calls; the next turn has both, and none of it is a failure."""

    async def forever() -> None:
        try:
            stage.begun += 1
            await anyio.sleep_forever()
        finally:
            stage.seen.append("tool")

    async def agent(turn: AgentTurn) -> str:
        if "come" in turn.prompt:
            return turn.prompt
        try:
            await turn.call("forever", forever)
        finally:
            stage.seen.append("agent")
        return "never"

    async def send() -> None:
        await stage.until(1)
        await stage.session.send("come", urgent=True, sender="ann")

    ended = await stage.play(agent, "dig", send)
    stage.same("what is told", ended.text, "dig\n\nUrgent message from ann:\ncome")
    stage.same("what was ended", sorted(stage.seen), ["agent", "tool"])
    await stage.close()


async def late(stage: Stage) -> None:
    """A turn whose session is aborted ends there: its agent hears of it, and says nothing any more."""

    async def agent(turn: AgentTurn) -> str:
        try:
            stage.begun += 1
            await anyio.sleep_forever()
        finally:
            with suppress(Exception):
                turn.say("too late")
            stage.seen.append("over")
        return "never"

    async def abort() -> None:
        await stage.until(1)
        receipt = await stage.session.abort(reason="enough")
        stage.same("the receipt", [(one.id, one.outcome) for one in receipt.nodes], [(stage.session.id, "ended")])

    ended = await stage.play(agent, meanwhile=abort)
    stage.same("how it ended", (ended.outcome, ended.error, stage.seen), ("aborted", "enough", ["over"]))


# ------------------------------------------------------------------------------------------------------------ children
async def children(stage: Stage) -> None:
    """A child's end is told, well or badly; one that is not waited for is given up; modes are words."""

    async def agent(turn: AgentTurn) -> str:
        if "/" in turn.session_id:
            if turn.prompt == "wait":
                await anyio.sleep_forever()
            return f"{turn.session_id} did {turn.prompt}"
        done = await turn.delegate("kid", "it")
        stage.seen.append((done.outcome, done.text))
        with anyio.move_on_after(5.0):
            await turn.delegate("idle", "wait", cancel_mode=CancelMode.WAIT_COMPLETED)
        gone = await turn.delegate("last", "more", cancel_mode="try")
        stage.seen.append((gone.outcome, gone.text))
        for wrong in ("soon", ""):
            try:
                await turn.delegate("no", "it", cancel_mode=wrong)
            except UnknownWord as error:
                words = str(error)
                stage.seen.append(
                    [one in words for one in ("cancel_mode", "wait_completed, wait_requested", "or abandon")]
                )
        for what in (turn.split(()), turn.block(("x",))):
            try:
                await what
            except Refused:
                stage.seen.append("refused")
        return "done"

    ended = await stage.play(agent)
    name = stage.session.id
    stage.same("how it ended", (ended.outcome, ended.text), ("completed", "done"))
    said = [("completed", f"{name}/{kid} did {what}") for kid, what in (("kid", "it"), ("last", "more"))]
    stage.same("what it saw", stage.seen, [*said, [True] * 3, [True] * 3, "refused", "refused"])
    stage.same("its calls", await stage.results_of_calls(), ["completed", "aborted", "completed"])
    await stage.close()


async def failing_children(stage: Stage) -> None:
    """A child that is aborted is told to its parent, which goes on; so is the abort of the call that waits for it."""

    async def agent(turn: AgentTurn) -> str:
        if "/" in turn.session_id:
            stage.begun += 1
            await anyio.sleep_forever()
        for name in ("first", "second"):
            try:
                stage.seen.append((await turn.delegate(name, "it")).outcome)
            except ToolAborted:
                stage.seen.append("call aborted")
        return "done"

    async def abort() -> None:
        name = stage.session.id
        await stage.until(1)
        await stage.sup.abort(f"{name}/first", AbortScope.SESSION, reason="enough")
        await stage.until(2)
        await stage.sup.abort(f"{name}:t1:c2", AbortScope.TOOL, reason="enough")

    ended = await stage.play(agent, meanwhile=abort)
    stage.same("what it saw", (stage.seen, ended.text), (["aborted", "aborted"], "done"))
    stage.same("its calls", await stage.results_of_calls(), ["failed", "aborted"])
    await stage.close()


SCENES: Final = (
    answers,
    errors,
    amounts,
    aborted,
    given_up,
    urgent,
    late,
    children,
    failing_children,
)
