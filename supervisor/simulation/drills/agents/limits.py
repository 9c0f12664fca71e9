"""Limits of one agent: what it may touch by its standing and its parent's, and when it takes what it is told in a turn.

Held to docs/plans.md (``access``), docs/security.md and the ports.
"""

from __future__ import annotations

from typing import Any, Final

import anyio

from supervisor.embedding.runtime import Supervisor
from supervisor.lifecycles.types import AbortScope
from supervisor.plans import Settings
from supervisor.plans.access import AccessConfig
from supervisor.policies.access import Level
from supervisor.ports import FileAsked, Heard, Ready, TerminalOpened, Text, ToolClosed, ToolOpened, TurnEnded
from supervisor.runtime.live_session import AgentProfile
from supervisor.simulation.drills.agents.acting import DONE, scene
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.house import MOMENT_S, House, Puppet
from supervisor.simulation.drills.whole.hosting import Crowd

__all__ = ["LIMITS"]

REFUSED: Final = 126
LEVELS: Final = tuple(Level)


# --------------------------------------------------------------------------------------------------------- standings
async def standings(desk: Desk) -> None:
    """Who is untrusted reads, and neither writes nor runs anything; who is not may. A child may no more than its
    parent, and where nobody is judged everybody may all of it."""
    for number in range(4):
        chance = desk.chance.below(number)
        judged = chance.happens(0.8, "judged")
        above, below = chance.choice(LEVELS, "above"), chance.choice(LEVELS, "below")
        access = AccessConfig(initial={"puppet": above, "other": below}) if judged else None
        house = House(desk)
        house.files.texts["/house/p/a"] = house.files.texts["/house/p/kid/a"] = "text"
        agents = {"other": AgentProfile(name="other", adapter="puppet", directory="/house")}
        async with house.open(Settings(access=access), agents) as sup, anyio.create_task_group() as group:
            crowd = Crowd(group)
            parent = await sup.start_session("p", agent="puppet")
            await crowd.ask(parent, "work")
            await crowd.ask(await parent.start_child("kid", agent="other"), "work", "kid")
            one, other = house.puppets
            may = [not judged or level is not Level.UNTRUSTED for level in (above, below)]
            what = f"{above} above {below}{'' if judged else ', not judged'}"
            await _touch(desk, sup, house, one, "p", f"{what}: the parent", may[0])
            await _touch(desk, sup, house, other, "p/kid", f"{what}: the child", may[0] and may[1])
            await sup.abort("p", AbortScope.SESSION, now=True)
            group.cancel_scope.cancel()


async def _touch(desk: Desk, sup: Supervisor, house: House, puppet: Puppet, name: str, what: str, may: bool) -> None:
    """It reads, writes and runs something in its own directory."""
    place, begun = f"/house/{name}", len(house.props)
    puppet.says(FileAsked("read", f"{place}/a"), FileAsked("write", f"{place}/b", "new"))
    puppet.says(ToolOpened("call", "x", "execute"), TerminalOpened("term", "call", ("ls",), None, {}))
    await anyio.sleep(MOMENT_S)
    answers = {one[1]: (one[2], one[3] == "") for one in puppet.heard("file")}
    desk.same(f"{what} reads", answers["read"], ("text" if f"{place}/a" in house.files.texts else "", True))
    desk.same(
        f"{what} writes", (answers["write"][1], house.files.texts.get(f"{place}/b")), (may, "new" if may else None)
    )
    desk.same(f"{what} runs", len(house.props) - begun, int(may))
    refused = [one[2] for one in puppet.heard("terminal")]
    desk.same(f"{what} is refused to run", refused, [] if may else [REFUSED])
    noted = [one.event for one in await house.events(f"{name}:t1", "FileRefused", "TerminalRefused")]
    desk.same(f"{what} on record", noted, [] if may else ["FileRefused", "TerminalRefused"])


# ------------------------------------------------------------------------------------------------ told within a turn
async def told(desk: Desk) -> None:
    """An agent that can be told something in its turn is told what comes while it works, once it is not stopping, and
    where it takes it; else it is interrupted, at once, and has it with its next prompt."""
    for takes, stopping in ((True, False), (False, False), (True, True)):
        house = House(desk)
        house.steers = takes
        house.stops = lambda puppet: ()
        house.ready = lambda puppet: [Ready("its-name", steers=True)]
        what = f"{'takes' if takes else 'does not take'} it{', but stops' if stopping else ''}"
        async with scene(desk, house) as act:
            first = act.puppet
            if stopping:
                await act.session.send("first-word", urgent=True)
                await anyio.sleep(3.0)  # it does not say that it has it: it is interrupted
                desk.same(f"{what}: is interrupted", len(first.heard("interrupt")), 1)
            await act.session.send("second-word", urgent=True)
            await anyio.sleep(1.0)
            words = ["second-word" in one[1] for one in first.heard("steer")]
            desk.same(f"{what}: is told", words.count(True), int(not stopping))
            desk.same(f"{what}: is interrupted", len(first.heard("interrupt")), int(stopping or not takes))
            if takes and not stopping:
                await act.says(Heard(), Text("message", "well"), DONE)
            else:
                await act.says(TurnEnded("cancelled"))
                await anyio.sleep(3.0)
                prompt = first.heard("prompt")[-1][1]
                given = [one in prompt for one in ("first-word", "second-word")]
                desk.same(f"{what}: its next prompt", given, [stopping, True])
                await act.says(Text("message", "well"), DONE)
            desk.same(f"{what}: its answer", [(one.outcome, one.text) for one in act.results], [("completed", "well")])


async def late_words(desk: Desk) -> None:
    """What an agent says when nothing is asked of it means nothing to any turn: calls, ends, commands and answers to
    nobody; the next turn is as any."""
    async with scene(desk) as act:
        await act.says(Text("message", "one"), DONE)
        late: list[Any] = [ToolOpened("late", "x"), ToolClosed("late", "failed"), TurnEnded("error", "late"), DONE]
        await act.says(*late, Heard(), TerminalOpened("term", "late", ("ls",), None, {}), FileAsked("f", "/etc/passwd"))
        await act.ask_later("again")
        await act.says(ToolOpened("call", "x"), ToolClosed("call", "completed"), Text("message", "two"), DONE)
        told = [(one.outcome, one.text) for one in act.results]
        desk.same("its answers", told, [("completed", "one"), ("completed", "two")])
        begun = [one.metadata["number"] for one in await act.house.events("s:t2", "tool_started")]
        desk.same("calls of the next turn", begun, [1])
        first = [one.event for one in await act.house.log("s:t1") if one.outcome == "transition"]
        desk.same("the turn that was over", [one for one in first if one.startswith("tool")], [])
        desk.same(
            "a command of no call", (act.house.props, act.puppet.heard("terminal")), ([], [("terminal", "term", 125)])
        )
        desk.same("a file that it may not have", [one[2] for one in act.puppet.heard("file")], [""])
        desk.same("one agent", len(act.house.puppets), 1)


LIMITS = (standings, told, late_words)
