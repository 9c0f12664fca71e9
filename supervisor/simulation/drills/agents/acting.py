"""Acting: what a supervisor makes of each word of an agent, and what it tells it, one word at a time.

A puppet says what agents say seldom, or never at such a moment: calls within calls, words after the end, files and
commands that it may not have, ends without a word. What is on record then, and what the puppet was told, is what
docs/agents.md, docs/security.md and the ports say.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from supervisor.agent_catalogue.quirks import Quirks
from supervisor.embedding.runtime import Session, Supervisor, TurnResult
from supervisor.lifecycles.turn import Turn
from supervisor.lifecycles.types import AbortScope, CancelMode, ModelProblem
from supervisor.plans import Settings
from supervisor.plans.monitoring import ModelTroubleConfig
from supervisor.plans.settings import LimitsConfig
from supervisor.policies.abort_plan import PlannedProcess, Receipt
from supervisor.policies.permissions import Decision, PermissionPolicy
from supervisor.ports import (
    CallKept,
    ChildAsked,
    Compaction,
    FileAsked,
    Heard,
    Launch,
    Malformed,
    ModelTrouble,
    Named,
    PermissionAsked,
    Ready,
    TerminalKilled,
    TerminalOpened,
    Text,
    ToolClosed,
    ToolOpened,
    TurnEnded,
    Usage,
)
from supervisor.runtime.entity import Refused
from supervisor.runtime.live_session import AgentProfile
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.house import MOMENT_S, House, Puppet, born

__all__ = ["ACTING", "Scene", "scene"]

DONE: Final = TurnEnded("end_turn")
ONCE: Final = Settings(limits=LimitsConfig(max_consecutive_errors=1))


class Scene:
    """A session whose puppet has been given a prompt."""

    def __init__(self, house: House, sup: Supervisor, session: Session, group: TaskGroup) -> None:
        self.house, self.sup, self.session, self.group = house, sup, session, group
        self.results: list[TurnResult] = []

    @property
    def puppet(self) -> Puppet:
        """The last one that was made."""
        return self.house.puppets[-1]

    @property
    def turn(self) -> str:
        return f"{self.session.id}:t1"

    @property
    def processes(self) -> tuple[PlannedProcess, ...]:
        """Those that its agent's link knows of."""
        link = self.sup.tree.works["s"].link
        return link.processes() if link is not None else ()

    async def says(self, *outs: Any) -> None:
        """It says that, and all that follows from it at once happens."""
        self.puppet.says(*outs)
        await anyio.sleep(MOMENT_S)

    async def ask(self, prompt: str) -> None:
        self.results.append(await self.session.run(prompt))

    async def ask_later(self, prompt: str) -> None:
        """The same, without waiting for the answer."""
        self.group.start_soon(self.ask, prompt)
        await anyio.sleep(MOMENT_S)

    async def told(self, *names: str, of: str = "") -> list[tuple[Any, ...]]:
        """What the records of these names say that matters: their name, their outcome, and their numbers and words."""
        return [(one.event, one.metadata) for one in await self.house.events(of or self.turn, *names)]


@asynccontextmanager
async def scene(desk: Desk, house: House | None = None, prompt: str = "work", **more: Any) -> AsyncIterator[Scene]:
    """*more*: what the house is opened with."""
    house = house or House(desk)
    async with house.open(**more) as sup, anyio.create_task_group() as group:
        one = Scene(house, sup, await sup.start_session("s", agent="puppet"), group)
        group.start_soon(one.ask, prompt)
        await anyio.sleep(MOMENT_S)
        yield one
        if "s" in sup.tree.works:
            await sup.abort("s", AbortScope.SESSION, now=True)
        group.cancel_scope.cancel()


async def _logged(house: House, *ids: str) -> list[str]:
    """The logs of these as ``event < the event of its cause``; what was no transition is said so."""
    records = {one.seq: one for one in await house.journal.events()}
    told = []
    for one in records.values():
        if one.entity_id in ids and one.outcome != "born":
            how = "" if one.outcome == "transition" else f" {one.outcome}"
            cause = records[one.cause_id] if one.cause_id is not None else None
            told.append(f"{one.event}{how} < {cause.event if cause is not None else one.actor}")
    return told


async def calls(desk: Desk) -> None:
    """Each call is a record with its number, its title and the call that it is made within; its end is one more."""
    async with scene(desk) as act:
        await act.says(ToolOpened("a", "t" * 250, "read"), ToolOpened("b", "in", "edit", "a"), ToolOpened("a", "twice"))
        await act.says(ToolOpened("c", "of nobody", "other", "zzz"))
        opened = [(1, "a", "t" * 200, "read", 0), (2, "b", "in", "edit", 1), (3, "c", "of nobody", "other", 0)]
        started = [one.metadata for one in await act.house.events(act.turn, "tool_started")]
        desk.same("what was opened", [tuple(one.values()) for one in started], opened)
        turn, session = act.sup.inspect(act.turn), act.sup.inspect("s")
        desk.same("its calls, seen", turn.open_calls, ("s:t1:c1", "s:t1:c2", "s:t1:c3"))
        desk.same("its scopes, seen", turn.children, ("s:t1:c1", "s:t1:c3"))
        desk.same("its turn, seen", (turn.kind, turn.state, turn.agent, turn.turn), ("turn", "TOOL_USE", None, None))
        seen = (session.kind, session.state, session.agent, session.pid, session.turn)
        desk.same("its session, seen", seen, ("session", "Running", "s:a1", 101, "s:t1"))
        desk.same("its agent, seen", act.sup.inspect("s:a1").pid, 101)
        call = act.sup.inspect("s:t1:c2")
        desk.same("its call, seen", (call.kind, call.state), ("tool", "open"))
        link = act.sup.tree.works["s"].link
        asked = ((act.turn, "a"), (act.turn, "b"), (act.turn, "zzz"), ("s:t2", "a"), ("s:t2", "zzz"))
        returned = [link is None or link.has_returned(*one) for one in asked]
        desk.same("which calls have returned", returned, [False, False, True, True, True])
        await act.says(ToolClosed("b", "failed"), ToolClosed("zzz", "completed"), ToolClosed("a", "completed"))
        await act.says(ToolClosed("c", "unknown"), Text("thought", "hm"), Text("message", "so"), Text("log", "tick"))
        await act.says(Text("message", " it is"), DONE)
        desk.same("the answer", act.results, [TurnResult("completed", "", "so it is", act.results[0].seq)])
        desk.same("after its turn", (act.sup.inspect("s").turn, act.sup.inspect("s").agent), (None, "s:a1"))
        desk.same("what was counted", (act.session.used.tool_calls, act.session.used.turns), (3, 1))
        told = [("argv", (), "work", None), ("start", "/house/s", None), ("prompt", "work")]
        desk.same("what it was told", (act.puppet.told, act.puppet.orders), (told, [b"prompt work"]))
        await act.says(ToolOpened("d", "late"), Text("message", "late"), Compaction(active=True), Malformed("late"))
        desk.same("how it ends that breaks its protocol", act.puppet.orders[1:2], ["kill"])
        wanted = [
            "task_claimed < TurnRequested",
            "agent_spawned < AgentLaunched",
            "agent_spawned < SessionStarted",
            "tool_started < SessionStarted",
            "tool_started < SessionStarted",
            "tool_started < SessionStarted",
            "tool_completed < tool_started",
            "tool_completed stale < SessionStarted",
            "tool_completed < tool_started",
            "tool_completed < tool_started",
            "verify_requested < SessionStarted",
            "task_completed < verify_requested",
            "agent_reaped < task_completed",
        ]
        desk.same("its turn on record", await _logged(act.house, act.turn), wanted)
        causes = [
            one.cause_id for one in await act.house.events(act.turn, "tool_completed") if one.outcome == "transition"
        ]
        begun = {one.metadata["number"]: one.seq for one in await act.house.events(act.turn, "tool_started")}
        desk.same("whose ends they are", causes, [begun[2], begun[1], begun[3]])
        await act.session.close()
        desk.same("its end", (await _logged(act.house, "s"))[-2:], ["OperatorStop < host", "Ended < OperatorStop"])
        began = ["process_started < PromptReady", "agent_ready < PromptReady"]
        ended = ["task_finished < SessionStarted", "agent_exited < SessionStarted"]
        desk.same("its agent on record", await _logged(act.house, "s:a1"), [*began, *ended])
        heard = [("prompt", "work\n"), ("thought", "hm"), ("message", "so"), ("log", "tick")]
        desk.same("the transcript", act.house.transcripts["s"][:4], heard)
        said = "".join(text for source, text in act.house.transcripts["s"] if source == "message")
        desk.same("all that it said", said, "so it islate")


async def files(desk: Desk) -> None:
    """Files below its directory are its own; any other is refused, and that is on record."""
    async with scene(desk) as act:
        act.house.files.texts["/house/s/a"] = "text"
        await act.says(FileAsked("1", "/house/s/a"), FileAsked("2", "/house/s/b"), FileAsked("3", "/house/s/c", "new"))
        await act.says(
            FileAsked("4", "/etc/passwd"), FileAsked("5", "/house/s/../t", "x"), FileAsked("6", "/house/s/c")
        )
        await act.says(FileAsked("7", "/house/s/c", ""), FileAsked("8", "/house/s/c"))
        answers = {one[1]: one[2:] for one in act.puppet.heard("file")}
        granted = {number: answer for number, answer in answers.items() if number in "1368"}
        desk.same("files", granted, {"1": ("text", ""), "3": ("", ""), "6": ("new", ""), "8": ("", "")})
        desk.same("what is not there", answers["2"], ("", "/house/s/b"))
        desk.same("what it may not have", [answers[one][0] for one in "45"], ["", ""])
        refused = [(one["path"], one["why"]) for _, one in await act.told("FileRefused")]
        desk.same("on record", refused, [("/etc/passwd", answers["4"][1]), ("/house/s/../t", answers["5"][1])])
        desk.same("why", [bool(why) for _, why in refused], [True, True])
        desk.same("what was written", act.house.files.texts, {"/house/s/a": "text", "/house/s/c": ""})


async def commands(desk: Desk) -> None:
    """A command runs in the scope of its call, in a directory below its agent's; what becomes of it is told."""
    agents = {"puppet": AgentProfile(name="puppet", adapter="puppet", directory="/house", env={"A": "1", "C": "3"})}
    async with scene(desk, agents=agents) as act:
        await act.says(ToolOpened("a", "run", "execute"), TerminalOpened("t1", "a", ("ls", "-l"), None, {"A": "b"}))
        await act.says(TerminalOpened("t2", "a", ("ls",), "/etc", {}), TerminalOpened("t3", "zzz", ("ls",), None, {}))
        await act.says(TerminalOpened("t4", "a", ("rm", "x"), "/house/s/sub", {}))
        first = Launch(argv=("ls", "-l"), cwd="/house/s", env={"A": "b", "C": "3"}, session="s")
        second = Launch(argv=("rm", "x"), cwd="/house/s/sub", env={"A": "1", "C": "3"}, session="s")
        desk.same("what was started", [one.launch for one in act.house.props], [first, second])
        desk.same("its rungs", {one.rungs_s for one in (act.puppet, *act.house.props)}, {(2.0, 1.0)})
        begun = [("ProcessStarted", {"tool": "s:t1:c1", "pid": pid}) for pid in (102, 103)]
        desk.same("pids on record", await act.told("ProcessStarted"), begun)
        refused = [(one["argv"], bool(one["why"])) for _, one in await act.told("TerminalRefused")]
        desk.same("what was refused", refused, [(["ls"], True)])
        planned = [(one.owner, one.pid) for one in act.processes]
        desk.same("processes of a plan", planned, [("s:a1", 101), ("s:t1:c1", 102), ("s:t1:c1", 103)])
        one, other = act.house.props
        for pipe, data in ((one.out, b"out"), (one.err, b"err"), (other.out, b"more")):
            pipe.put(data)
            await anyio.sleep(MOMENT_S)
        one.exit(3, killed=2)
        await act.says(TerminalKilled("t4"), TerminalKilled("zzz"))
        desk.same("what was done to them", (one.orders, other.orders), ([], ["kill"]))
        act.house.cannot_start.add("no")
        await act.says(TerminalOpened("t5", "a", ("no",), None, {}))
        heard = [
            one for one in act.puppet.heard("output", "terminal") if one[1] != "t2" and one[:2] != ("output", "t5")
        ]
        outputs = [("output", "t1", b"out"), ("output", "t1", b"err"), ("output", "t4", b"more")]
        ends = [("terminal", "t1", 3), ("terminal", "t4", -9), ("terminal", "t5", 127)]
        desk.same("what it heard", sorted(heard), sorted([("terminal", "t3", 125), *outputs, *ends]))
        why = [one for one in act.puppet.heard("output", "terminal") if one[1] in ("t2", "t5")]
        desk.same("what was not run", [one[0] for one in why], ["output", "terminal"] * 2)
        desk.same("how", [one[2] for one in why if one[0] == "terminal"], [126, 127])
        desk.same("the transcript", act.house.transcripts["s"][1:3], [("c1", "out"), ("c1", "err")])
        fates = [(one.owner, one.pid, one.status, one.ended_by, one.killed) for one in act.sup.tree.works["s"].fates]
        ended = [("s:t1:c1", 102, 3, "exit", 2), ("s:t1:c1", 103, -9, "kill", 0)]
        desk.same("their fates", sorted(fates), ended)
        await act.says(ToolOpened("b", "more"), TerminalOpened("t6", "b", ("sh",), None, {}))
        await act.says(ToolClosed("b", "failed"))
        desk.same(
            "a command whose call is over", (act.house.props[-1].orders, act.house.props[-1].alive), (["left"], False)
        )
        desk.same("is told", act.puppet.heard("terminal")[-1], ("terminal", "t6", -15))
        await act.says(ToolOpened("d", "more"))
        act.sup.tree.system.stop("s:t1:c3")
        await act.says(TerminalOpened("t8", "d", ("sh",), None, {}))
        desk.same("one whose call has no scope any more", act.puppet.heard("terminal")[-1], ("terminal", "t8", 125))
        desk.same("is not run, and no harm", (len(act.house.props), act.puppet.alive), (3, True))
        await act.says(ToolClosed("d", "failed"))
        await act.says(ToolOpened("c", "more"), TerminalOpened("t7", "c", ("sh",), None, {}))
        await act.says(DONE)
        failed = [one.metadata for one in await act.house.events(act.turn, "task_failed")]
        desk.same("calls of ours that its end stopped", [one["stopped"] for one in failed], [["c"]])
        await anyio.sleep(1.0)
        desk.same("and their command", act.house.props[-1].alive, False)


async def reports(desk: Desk) -> None:
    """Use, compaction, the model's trouble, names: each is counted or recorded once, as it was said."""
    async with scene(desk) as act:
        await act.says(Usage({"x": 1}, 10, 20, 0.5, 4, 2), Compaction(active=True), Compaction(active=True))
        await act.says(Compaction(active=False), Compaction(active=False), Compaction(active=True))
        await act.says(ModelTrouble(ModelProblem.RATE_LIMIT, 429, 1, 0.5, "slow down"))
        await act.says(Named("its-name"), Named("other"), Named("other"))
        used = {"input_tokens": 10, "output_tokens": 20, "cost_usd": 0.5, "cached_tokens": 4, "requests": 2, "turns": 1}
        desk.same("what was used", act.session.used.told, used)
        await act.says(Compaction(active=False, failed=True))
        desk.same("it is asked to stop", act.puppet.heard("interrupt"), [("interrupt",)])
        wanted = [
            "compact_needed < SessionStarted",
            "compaction_completed < SessionStarted",
            "compact_needed < SessionStarted",
            "compaction_completed < SessionStarted",
            "task_failed < SessionStarted",
            "agent_reaped < task_failed",
        ]
        desk.same("its turn on record", (await _logged(act.house, act.turn))[3:], wanted)
        verdict = (await act.house.events(act.turn, "task_failed"))[0].metadata["verdict"]
        why = (verdict["exit"], verdict["transition_reason"], verdict["abort_reason"])
        desk.same("why it failed", why, ("Error", "compaction_failed", "compact_failure"))
        usage, trouble = [one.metadata for one in await act.house.events("s", "Usage", "ModelTrouble")]
        desk.same("its use on record", usage, {"turn": act.turn, "used": used, "said": {"x": 1}})
        desk.same("its model on record", (trouble["problem"], trouble["status"]), ("rate_limit", 429))
        desk.same("its names", await act.told("agent_named", of="s:a1"), [("agent_named", {"resume_id": "other"})])
        logged = [text for source, text in act.house.transcripts["s"] if source == "log"]
        desk.same("what its log says of that", ["rate_limit" in one and "slow down" in one for one in logged], [True])


async def crowds(desk: Desk) -> None:
    """A turn has at most 256 calls open at once; one more breaks the protocol."""
    async with scene(desk, settings=ONCE) as act:
        await act.says(*(ToolOpened(f"{number}", "x") for number in range(256)))
        desk.same("open calls", (len(act.sup.inspect(act.turn).open_calls), act.puppet.orders[1:]), (256, []))
        await act.says(ToolClosed("7", "completed"), ToolOpened("more", "x"))
        desk.same("as many again", act.puppet.orders[1:], [])
        await act.says(ToolOpened("too many", "x"))
        desk.same("one too many", "kill" in act.puppet.orders, True)
        await anyio.sleep(1.0)
        desk.same("its end", ["256" in one.error for one in act.results], [True])


async def leavers(desk: Desk) -> None:
    """However a process ends in a turn, that fails with its last words; who is mute and stays is killed after 2 s."""
    chance, long = desk.chance, "x" * 400
    longer = "".join(f"{number:05d}" for number in range(1000))
    for number, (status, said, wanted) in enumerate(
        (
            (3, "a\nb\n\n", "b"),
            (-11, "", ""),
            (0, long, long[:300]),
            (1, f"{long}\n  ", long[:300]),
            (None, "w", "w"),
            (2, longer, longer[-4096:][:300]),
        )
    ):
        house = House(desk)
        house.last_word = True
        async with scene(desk, house, settings=ONCE) as act:
            cut = chance.integer(0, len(said), "cut", number)
            for piece in (said[:cut], said[cut:]):
                act.puppet.err.put(piece.encode()) if piece else None
            await anyio.sleep(MOMENT_S)
            act.puppet.exit(status)
            await anyio.sleep(MOMENT_S)
            exited = (await act.house.events("s:a1", "agent_exited"))[0].metadata
            desk.same("how it ended", (exited["status"], exited["ended_by"]), (status, "exit"))
            verdict = (await act.house.events(act.turn, "task_failed"))[0].metadata["verdict"]
            words = verdict["error"].rpartition("its last words: ")
            desk.same(f"the last words of {said[:9]!r}", words[2] if words[1] else "", wanted)
            desk.same("its codec was told", act.puppet.heard("exited"), [("exited", status)])
            desk.same(
                "what is on its transcript",
                bool([1 for who, _ in act.house.transcripts["s"] if who == "stderr"]),
                bool(said),
            )
    async with scene(desk, settings=ONCE) as act:
        desk.again()
        act.puppet.out.end()
        await anyio.sleep(1.9)
        desk.same("who has closed its output", (act.puppet.alive, act.results), (True, []))
        await anyio.sleep(1.1)
        desk.same("and has not exited", (act.puppet.orders[1:2], act.puppet.alive), (["kill"], False))
        verdict = (await act.house.events(act.turn, "task_failed"))[0].metadata["verdict"]
        desk.same("why", verdict["error"], "the agent closed its output and did not exit")
    async with scene(desk, settings=ONCE) as act:
        act.puppet.out.end()
        await anyio.sleep(0.5)
        act.puppet.exit(5)
        await anyio.sleep(1.0)
        verdict = (await act.house.events(act.turn, "task_failed"))[0].metadata["verdict"]
        desk.same("who exits in time", (act.puppet.orders[1:], verdict["status"]), ([], 5))


async def messages(desk: Desk) -> None:
    """Who can be told within a turn is; it has the message once it says so. Who cannot is interrupted."""
    house = House(desk)
    house.steers = True
    house.ready = lambda puppet: [Ready("its-name", steers=True)]
    async with scene(desk, house) as act:
        first = await act.session.send("first-word", urgent=True)
        second = await act.session.send("second-word", urgent=True, sender="me")
        await act.session.send("third-word")
        await anyio.sleep(MOMENT_S)
        desk.same("told within the turn", ["-word" in one[1] for one in act.puppet.heard("steer")], [True] * 2)
        await act.says(Heard(), Text("message", "ok"))
        desk.same(
            "taken up",
            await act.told("MessageHeard", of="s"),
            [("MessageHeard", {"incarnation": 1, "message_id": first})],
        )
        await anyio.sleep(2.1)
        desk.same("the one that it has not", act.puppet.heard("interrupt"), [("interrupt",)])
        waited = [one for one in await act.house.events("s", "SteerElapsed") if one.metadata["message_id"] == second]
        desk.same("its time is over", [one.outcome for one in waited], ["transition"])
        await anyio.sleep(5.0)
        again = act.puppet.heard("prompt")[1][1]
        desk.same(
            "what the next prompt tells",
            [one in again for one in ("first-word", "second-word", "third-word", "work")],
            [True] * 4,
        )
        await act.says(Heard(), DONE, Heard())
        desk.same("a word too many", len(await act.told("MessageHeard", of="s")), 1)
        desk.same("an answer", [one.outcome for one in act.results], ["completed"])
    house = House(desk)
    house.stops = lambda puppet: ()
    async with scene(desk, house) as act:
        await act.says(ToolOpened("a", "x"), ToolOpened("b", "x"))
        await act.session.send("now", urgent=True)
        await anyio.sleep(MOMENT_S)
        desk.same("who cannot be told", act.puppet.heard("steer", "interrupt"), [("interrupt",)])
        await act.says(ToolClosed("a", "failed"), ToolClosed("b", "completed"), TurnEnded("cancelled"))
        ends = [(one["call_id"], one["outcome"]) for _, one in await act.told("tool_completed")]
        desk.same("calls that it stopped", ends, [("b", "completed"), ("a", "aborted")])


async def leftovers(desk: Desk) -> None:
    """The model of an agent that is still at a turn which is over fails again: that is no failure of the next turn,
    which waits for the agent. That one fails by what is said once it has the prompt."""
    house = House(desk)
    house.stops = lambda puppet: ()
    async with scene(desk, house, settings=Settings(model_trouble=ModelTroubleConfig(retries_max=1))) as act:
        await act.session.send("now", urgent=True)
        await act.says(*[ModelTrouble(ModelProblem.SERVER, 500)] * 2)
        await anyio.sleep(1.0)
        phases = [act.sup.tree.entity(f"s:t{number}").state.value for number in (1, 2)]
        desk.same("the turns, before the last words of the first", phases, ["FAILED", "CLAIMING"])
        await act.says(ModelTrouble(ModelProblem.SERVER, 500))
        await act.says(TurnEnded("cancelled"))
        await anyio.sleep(1.0)
        desk.same("who has the prompt", len(act.puppet.heard("prompt")), 2)
        await act.says(Text("message", "done"), DONE)
        desk.same("its answer", [one.outcome for one in act.results], ["completed"])
        troubles = [one.metadata["turn"] for one in await house.events("s", "ModelTrouble")]
        desk.same("whose troubles these are", troubles, ["s:t1"] * 2)


async def permits(desk: Desk) -> None:
    """What an agent asks for is ruled on record; a human's answer is what it is told, once."""
    may = PermissionPolicy(default=Decision.ASK, answer_within_s=30.0)
    asks = {"puppet": AgentProfile(name="puppet", adapter="puppet", directory="/house", permissions=may)}
    options = (("y", "allow_once"), ("n", "reject_once"), ("a", "allow_always"))
    async with scene(desk, agents=asks) as act:
        for number in "123456":
            await act.says(PermissionAsked(f"r{number}", f"title {number}", options, "edit", "tool", "detail", ("f",)))
        waiting = [(one.id, one.session, one.agent, one.title, one.kind, one.tool) for one in act.sup.permissions()]
        wanted = [(f"s:t1:p{n}", "s", "puppet", f"title {n}", "edit", "tool") for n in range(1, 7)]
        desk.same("what waits", waiting, wanted)
        desk.same("seen", act.sup.inspect(act.turn).permissions, tuple(f"s:t1:p{n}" for n in range(1, 7)))
        await act.sup.answer("s:t1:p1", allow=True)
        await act.sup.answer("s:t1:p2", allow=False, by="me", because="no")
        await act.sup.answer("s:t1:p3", allow=True, always=True)
        for wrong in ("s:t1:p1", "s:t1:p9", "s", "s:t1:px"):
            await desk.raises(f"an answer to {wrong}", act.sup.answer(wrong, allow=True), Refused)
        await anyio.sleep(MOMENT_S)
        told = [("permission", "r1", "y"), ("permission", "r2", "n"), ("permission", "r3", "a")]
        desk.same("what it was told", act.puppet.heard("permission"), told)
        await anyio.sleep(30.0)
        desk.same(
            "who is not answered is refused",
            sorted(act.puppet.heard("permission")[3:]),
            [("permission", f"r{n}", "n") for n in "456"],
        )
        for number in "78":
            await act.says(PermissionAsked(f"r{number}", f"title {number}", options))
        await act.says(DONE)
        desk.same(
            "when its turn is over", act.puppet.heard("permission")[6:], [("permission", f"r{n}", None) for n in "78"]
        )
        await act.says(PermissionAsked("r9", "late", options))
        desk.same("between turns", act.puppet.heard("permission")[8:], [("permission", "r9", "n")])
        noted = (await act.house.events("s", "PermissionAnswered"))[-1].metadata
        desk.same("is on its session's record", (noted["title"], noted["option"], noted["by"]), ("late", "n", "policy"))
        asked = [(one["number"], one["asked"], one["within_s"]) for _, one in await act.told("PermissionRequested")]
        desk.same("what was asked", asked, [(n, True, 30.0) for n in range(1, 9)])
        answered = [(one["number"], one["decision"], one["by"]) for _, one in await act.told("PermissionAnswered")]
        desk.same("what was answered", answered[:3], [(1, "allow", "host"), (2, "deny", "me"), (3, "allow", "host")])
        desk.same("and by whom not", [one[1] for one in answered[3:]], ["deny"] * 3 + ["withdrawn"] * 2)
    async with scene(desk, settings=ONCE, agents=asks) as act:
        await act.says(*(PermissionAsked(f"{n}", "x", options) for n in range(64)))
        desk.same("as many as may wait", (len(act.sup.permissions()), act.puppet.orders[1:]), (64, []))
        await act.says(PermissionAsked("more", "x", options))
        desk.same("one more breaks its protocol", "kill" in act.puppet.orders, True)
    async with scene(desk) as act:
        await act.says(PermissionAsked("r", "x", options), PermissionAsked("q", "x", (("n", "reject_once"),)))
        desk.same(
            "where nobody is to be asked",
            act.puppet.heard("permission"),
            [("permission", "r", "y"), ("permission", "q", None)],
        )
        ruled = [
            (one["asked"], one["decision"], one["option"], one["kind"])
            for _, one in await act.told("PermissionRequested")
        ]
        desk.same("on record", ruled, [(False, "allow", "y", "allow_once"), (False, "allow", None, None)])


async def single(desk: Desk) -> None:
    """One call is ended alone where that can be: the agent is asked to, then what it has started is killed."""
    for asked, rounds, closes, looks, ended in (
        (True, [], True, 2, True),
        (True, [(7, 8), (8,), ()], True, 4, True),
        (True, [(7,), ()], True, 3, True),
        (True, [], False, 2, False),
        (False, [(7,), ()], True, 3, True),
        (False, [], False, 2, False),
    ):
        house, what = House(desk), f"a call of who can{'' if asked else 'not'} be asked, {rounds}"
        house.ends_calls = asked
        async with scene(desk, house) as act, anyio.create_task_group() as group:
            receipts: list[Receipt] = []
            await act.says(ToolOpened("a", "x"), ToolOpened("o", "x"))
            quiet_s = anyio.current_time()
            await act.says(ToolClosed("o", "completed"), ToolClosed("a", "completed"))
            await anyio.sleep(1.0)
            await act.says(ToolOpened("b", "x"))
            early, mine = int(quiet_s * 100) - 1, int(quiet_s * 100)
            act.puppet.children = [(*born(99, ticks=early), *born(*one, ticks=mine)) for one in rounds]
            group.start_soon(_abort_call, act, "s:t1:c3", receipts)
            await anyio.sleep(0.5)  # it is struck after 1 s: more than a grain of the timers later
            desk.same(f"{what}: the agent", act.puppet.heard("end_call"), [("end_call", "b")])
            desk.same(f"{what}: looked for at once", bool(act.puppet.looks), not asked)
            await anyio.sleep(1.0)
            if closes:
                await act.says(ToolClosed("b", "failed"))
            await anyio.sleep(8.0)
            desk.same(f"{what}: a receipt", bool(receipts), ended or not asked)
            await anyio.sleep(12.0)
            desk.same(f"{what}: looks", act.puppet.looks, looks)
            node, fates = receipts[0].nodes[0], receipts[0].processes
            desk.same(f"{what}: how", "its turn went on" in node.how, ended)
            pids = sorted({pid for one in rounds for pid in one})
            killed = [(one.owner, one.pid, one.ended_by, one.survivors) for one in fates]
            desk.same(f"{what}: killed", killed, [("s:t1:c3", pid, "kill", 0) for pid in pids])
            noted = [one for _, one in await act.told("CallProcessesKilled")]
            desk.same(f"{what}: noted", noted, [{"call": "s:t1:c3", "pids": pids, "left": []}] if pids else [])
            completed = [one for _, one in await act.told("tool_completed")][-1]
            told = (completed["outcome"], completed["reason"], completed["abort_id"])
            desk.same(f"{what}: its end", told, ("aborted" if ended else "unknown", "enough", receipts[0].abort_id))
            desk.same(f"{what}: interrupted", bool(act.puppet.heard("interrupt")), not ended)
    await _kept(desk)
    await _beside(desk)


async def _abort_call(act: Scene, target: str, receipts: list[Receipt]) -> None:
    receipts.append(await act.sup.abort(target, AbortScope.TOOL, reason="enough"))


async def _kept(desk: Desk) -> None:
    """The agent says that it does not end it: so the turn is interrupted at once, and what is still found is told."""
    house = House(desk)
    house.ends_calls = True
    async with scene(desk, house) as act, anyio.create_task_group() as group:
        receipts: list[Receipt] = []
        await act.says(ToolOpened("a", "x"))
        group.start_soon(_abort_call, act, "s:t1:c1", receipts)
        await anyio.sleep(0.1)
        await act.says(CallKept("zzz", "no"), CallKept("a", "I will not"))
        await anyio.sleep(0.5)
        desk.same("asked once", act.puppet.heard("end_call"), [("end_call", "a")])
        desk.same(
            "who is told",
            ["I will not" in one.nodes[0].how for one in receipts if one.nodes],
            [True] * len([one for one in receipts if one.nodes]),
        )
        desk.same("who is answered", len(receipts), 1)
        desk.same("the turn", act.puppet.heard("interrupt"), [("interrupt",)])


async def _beside(desk: Desk) -> None:
    """What was started by one of several calls cannot be told: it is only asked for, and nothing is killed."""
    for asked in (True, False):
        house = House(desk)
        house.ends_calls = asked
        async with scene(desk, house) as act, anyio.create_task_group() as group:
            receipts: list[Receipt] = []
            await act.says(ToolOpened("a", "x"), ToolOpened("b", "x"))
            act.puppet.children = [born(7), ()]
            group.start_soon(_abort_call, act, "s:t1:c1", receipts)
            await anyio.sleep(2.0)
            desk.same("beside another: struck", act.puppet.struck, [] if asked else [(7,)])
            await act.says(ToolClosed("a", "failed"))
            await anyio.sleep(15.0)
            desk.same("beside another: interrupted", bool(act.puppet.heard("interrupt")), not asked)
            told = ["cannot be told" in one.nodes[0].how for one in receipts]
            desk.same("beside another: told", told, [asked])
    await _unknown(desk)


async def _unknown(desk: Desk) -> None:
    """What may be of that call, or of another one, lives on: nobody can tell, until its agent has ended with it."""
    house = House(desk)
    house.ends_calls = True
    async with scene(desk, house) as act, anyio.create_task_group() as group:
        receipts: list[Receipt] = []
        await act.says(ToolOpened("a", "x"), ToolOpened("b", "x"))
        act.puppet.children = [born(7)] * 1000
        group.start_soon(_abort_call, act, "s:t1:c1", receipts)
        await anyio.sleep(0.5)
        await act.says(ToolClosed("a", "failed"))
        await anyio.sleep(1.0)
        desk.same("what may live: struck", [one for one in act.puppet.struck if one], [])
        [receipt] = receipts
        shown = (receipt.survivors, [(one.owner, one.pid, one.survivors) for one in receipt.processes])
        desk.same("what may live: told", shown, ("unknown", [("s:t1:c1", 7, "unknown")]))
        ends = [(one["call_id"], one["outcome"]) for _, one in await act.told("tool_completed")]
        desk.same("what may live: the result", ends, [("a", "unknown")])
        act.puppet.children = []
        receipt = await act.sup.abort("s", AbortScope.SESSION, reason="enough")
        desk.same("when its agent has ended", receipt.survivors, 0)
        ended = [one.metadata for one in await act.house.events("s:a1", "CallProcessesEnded")]
        [last] = await act.house.events("s", "Ended")
        desk.same("in the last record", last.metadata["survivors"], 0)
        desk.same("that it has", ended, [{"call": "s:t1:c1", "pids": [7]}])


async def results(desk: Desk) -> None:
    """The turn of a call fails while that is being ended: the call has its one result from its turn, whatever its agent
    says after that, and who asked for its end is answered when the result is on record. The disk takes its time."""
    short = Settings(limits=LimitsConfig(turn_timeout_s=2.0, max_consecutive_errors=1))
    for asked in (True, False):
        house = House(desk)
        house.ends_calls, house.commit_s = True, 0.2
        house.stops = lambda puppet: ()
        async with scene(desk, house, settings=short) as act:
            await _fail_with_a_call(desk, act, asked)


async def _fail_with_a_call(desk: Desk, act: Scene, asked: bool) -> None:
    receipts: list[Receipt] = []
    await _until(lambda: _phase(act) == "ready")
    await act.says(ToolOpened("a", "x"))
    turn = act.sup.tree.entity(act.turn)
    await anyio.sleep(max(turn.data.due_s - act.sup.ledger.clock.now(), 0.0))  # its timer rings a commit later
    if asked:
        act.group.start_soon(_abort_call, act, f"{act.turn}:c1", receipts)
    await _until(lambda: turn.state is Turn.FAILED)
    act.puppet.says(ToolClosed("a", "failed"))
    if asked:
        await _until(lambda: bool(receipts))
        desk.same("its result, for who is answered", (await _results(act))[:1], [("transition", "unknown")])
    await anyio.sleep(2.0)
    late = ("stale", "aborted" if asked else "failed")
    desk.same("its one result", await _results(act), [("transition", "unknown"), late])


async def _results(act: Scene) -> list[tuple[str, str]]:
    """Those that its calls have, and the words that came too late."""
    return [(one.outcome, one.metadata["outcome"]) for one in await act.house.events(act.turn, "tool_completed")]


def _phase(act: Scene) -> str:
    """How far its turn has come."""
    turn = act.sup.tree.entities.get(act.turn)
    return "" if turn is None else str(turn.data.phase)


async def _until(come: Callable[[], bool]) -> None:
    while not come():  # noqa: ASYNC110  nobody rings when that comes, and virtual time costs nothing
        await anyio.sleep(MOMENT_S)


async def stopped(desk: Desk) -> None:
    """An abort interrupts; what a call had left is killed when the agent says that it has stopped."""
    house = House(desk)
    house.stops = lambda puppet: ()
    async with scene(desk, house) as act, anyio.create_task_group() as group:
        await act.says(ToolOpened("a", "x"))
        act.puppet.children = [born(9), ()]
        group.start_soon(act.sup.abort, "s", AbortScope.SESSION)
        await anyio.sleep(1.0)
        desk.same("not before", act.puppet.looks, 0)
        await act.says(TurnEnded("cancelled"))
        await anyio.sleep(1.0)
        desk.same("struck", act.puppet.struck, [(9,)])
        killed = await act.told("CallProcessesKilled")
        desk.same("noted", killed, [("CallProcessesKilled", {"call": "s:t1:c1", "pids": [9], "left": []})])
        ends = [one["outcome"] for _, one in await act.told("tool_completed")]
        desk.same("its call", ends, ["unknown"])
    for leaves, called in ((True, True), (True, False), (False, True)):
        quirks = Quirks(cancel_leaves_tool=leaves, needs_kill=leaves)
        agents = {"puppet": AgentProfile(name="puppet", adapter="puppet", directory="/house", quirks=quirks)}
        async with scene(desk, agents=agents) as act:
            desk.same("its rungs", act.puppet.rungs_s, (0.0 if leaves else 2.0, 1.0))
            if called:
                await act.says(ToolOpened("a", "x"), ToolClosed("a", "completed"))
            await act.session.send("listen", urgent=True)
            await anyio.sleep(5.0)
            ended, number = leaves and called, len(act.house.puppets)
            desk.same("ended with its tools", ("kill" in act.house.puppets[0].orders, number), (ended, 1 + ended))
            loaded = act.puppet.heard("start")[0][2]
            desk.same("its conversation", loaded, "its-name" if ended else None)


async def programs(desk: Desk) -> None:
    """A program that serves one prompt: it is heard once it has it, and taken up by the name that it gave."""
    house = House(desk)
    house.one_shot, house.last_word = True, True
    house.ready = lambda puppet: [Ready()]
    async with scene(desk, house) as act:
        await act.says(Named("mine"), Text("message", "yes"), DONE)
        act.puppet.exit(0)
        await anyio.sleep(MOMENT_S)
        desk.same("its answer", [(one.outcome, one.text) for one in act.results], [("completed", "yes")])
        house.last_word = False
        await act.ask_later("again")
        desk.same("the next one", (len(house.puppets), act.puppet.heard("argv")[0][3]), (2, "mine"))
        act.puppet.exit(1)
        await anyio.sleep(1.0)
        verdicts = [one.metadata["verdict"]["status"] for one in await house.events("s:t2", "task_failed")]
        desk.same("its status", verdicts, [1])
    house = House(desk)
    house.cannot_start.add("puppet")
    async with scene(desk, house, settings=ONCE) as act:
        await anyio.sleep(1.0)
        desk.same("who cannot be started", ["puppet cannot be started" in one.error for one in act.results], [True])
        exited = (await house.events("s:a1", "agent_exited"))[0].metadata
        desk.same(
            "its end",
            (exited["status"], exited["ended_by"], exited["reason"]),
            (None, "exit", "puppet cannot be started"),
        )
    house = House(desk)
    house.ready = lambda puppet: [Malformed("nonsense")]
    async with scene(desk, house, settings=ONCE) as act:
        await anyio.sleep(1.0)
        desk.same("who does not begin", [one.error.endswith("nonsense") for one in act.results], [True])
        desk.same("is killed", act.puppet.orders[:1], ["kill"])


async def children(desk: Desk) -> None:
    """A sub-agent is a child session of its call: the answer is its agent's, and its end is on record."""
    async with scene(desk) as act:
        await act.says(ToolOpened("a", "x"), ChildAsked("r1", "kid", "do it", None, "a"))
        await anyio.sleep(MOMENT_S)
        kid = act.puppet
        desk.same("the child", (len(act.house.puppets), kid.heard("prompt")), (2, [("prompt", "do it")]))
        parent = act.house.puppets[0]
        kid.says(Text("message", "did it"), DONE)
        await anyio.sleep(1.0)
        desk.same("its answer", parent.heard("child"), [("child", "r1", "completed", "did it")])
        desk.same("is closed", "s/kid" in act.sup.tree.works, False)
        born = (await act.house.log("s/kid"))[0]
        begun = (await act.house.events(act.turn, "tool_started"))[0]
        desk.same("what it was started for", (born.outcome, born.cause_id, born.actor), ("born", begun.seq, "s"))
        parent.says(ToolClosed("a", "completed"))
        await anyio.sleep(MOMENT_S)
        answered = (await act.house.events("s/kid", "TurnReaped"))[0]
        closed = (await act.house.events(act.turn, "tool_completed"))[0]
        desk.same("what its call's end follows from", closed.cause_id, answered.seq)
        parent.says(ChildAsked("r2", "kid", "x", "nobody", None), ChildAsked("r3", "a b", "x", None, "zzz"))
        await anyio.sleep(MOMENT_S)
        desk.same(
            "what cannot be", [one[1:3] for one in parent.heard("child")[1:]], [("r2", "failed"), ("r3", "failed")]
        )
        for number in range(65):
            parent.says(ChildAsked(f"n{number}", "many", "x", None, None))
        await anyio.sleep(0.1)
        desk.same(
            "children at once", (len(act.sup.tree.works), parent.heard("child")[3:][0][1:3]), (65, ("n64", "failed"))
        )


async def modes(desk: Desk) -> None:
    """A call that is aborted ends the session it had started, unless that is to be abandoned; who waits, waits for it
    only where its mode says so."""
    for mode, ends, answered in (
        (CancelMode.WAIT_COMPLETED, True, "aborted"),
        (CancelMode.WAIT_REQUESTED, True, "was told to end"),
        (CancelMode.TRY, True, "was told to end"),
        (CancelMode.ABANDON, False, "lives on"),
    ):
        house = House(desk)
        house.ends_calls = True
        async with scene(desk, house) as act:
            parent = act.puppet
            await act.says(ToolOpened("a", "x"), ChildAsked("r", "kid", "do it", None, "a", mode))
            await anyio.sleep(MOMENT_S)
            house.stops = lambda puppet: ()
            receipts: list[Receipt] = []
            act.group.start_soon(_abort_call, act, "s:t1:c1", receipts)
            await anyio.sleep(1.0)
            waits = mode is CancelMode.WAIT_COMPLETED
            desk.same(f"{mode}: who waits", not parent.heard("child"), waits)
            house.puppets[1].says(TurnEnded("cancelled"))
            await anyio.sleep(2.0)
            told = [(one[1], one[2], answered in " ".join(one[2:])) for one in parent.heard("child")]
            desk.same(f"{mode}: its answer", told, [("r", "aborted", True)])
            desk.same(f"{mode}: it lives", "s/kid" in act.sup.tree.works, not ends)
            stops = await house.events("s/kid", "OperatorStop")
            desk.same(f"{mode}: why", [one.abort_reason for one in stops[:1]], ["parent_aborted"] if ends else [])


ACTING = (
    calls,
    files,
    commands,
    reports,
    crowds,
    leavers,
    messages,
    leftovers,
    permits,
    single,
    results,
    stopped,
    programs,
    children,
    modes,
)
