"""Seeded runs of the real runtime on a virtual clock: the actions of host and agents are random, and time costs
nothing.

Four parts are replaced: the agents' functions, the workspace, the clock, and connections of agents that never get
ready. A seed is one run on one backend: random choices never depend on the order in which tasks are scheduled.
"""

from __future__ import annotations

import asyncio
import copy
import selectors
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

import anyio
import trio
from trio.testing import MockClock

from supervisor.agents.protocols.inprocess import AgentTurn, FunctionConnection, ToolAborted
from supervisor.embedding import runtime
from supervisor.embedding.runtime import Refused, Session, Supervisor
from supervisor.host import factories
from supervisor.journal.memory import MemoryJournal, MemoryStore
from supervisor.lifecycles.events import AgentExited
from supervisor.lifecycles.types import AbortPolicy, AbortReason, AbortScope, DeliveryPoint, Exit, StageBudgets, Verdict
from supervisor.plans import AgentConfig, LadderConfig, LimitsConfig, Plan, PolicyConfig, Settings, TaskConfig
from supervisor.ports import JournalError
from supervisor.runtime.live_session import AgentProfile, NoSuchEntity
from supervisor.work.plan_runner import run_plan
from supervisor.workspaces.directory import DirectoryWorkspace

__all__ = ["FinishedRun", "HostError", "VirtualLoop", "simulate"]

DEADLINE_S = 100_000.0
"""Virtual seconds after which a run counts as hung."""

LADDER = {"request_s": 1.0, "cancel_s": 0.5, "terminate_s": 0.1, "kill_s": 0.1}
KINDS = (*["worker"] * 8, "mute", "stillborn")
"""Names of agents: most work, ``mute`` never gets ready, ``stillborn`` cannot be started."""
GONE = (NoSuchEntity, Refused, LookupError, ValueError, JournalError)
"""Errors of a request to something that has ended."""


class HostError(Exception):
    """Error of the host, by which it leaves its block."""


# ---------------------------------------------------------------------------------------------------------- agents
class Agents:
    """Functions of agents; each turn's steps are random."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    async def work(self, turn: AgentTurn) -> str:
        """Do a few random steps, one after the other."""
        rng = Random(f"{self._seed} {turn.turn_id}")
        depth = turn.session_id.count("/")
        for _ in range(rng.randint(1, 3)):
            await self._step(rng, turn, depth)
        return "done"

    async def _step(self, rng: Random, turn: AgentTurn, depth: int) -> None:
        steps: list[Callable[[Random, AgentTurn], Coroutine[Any, Any, None]]] = [
            *[_call] * 4,
            *[_parallel, _parallel, _guarded, _guarded, _think, _stubborn, _stubborn, _fail, _hang],
            *[_delegate] * (2 if depth < 2 else 0),
            *[_delegate_in_parallel] * (4 if depth < 1 else 0),
        ]
        await rng.choice(steps)(rng, turn)


async def _tool(ending: str, delay_s: float) -> str:
    await anyio.sleep(delay_s)
    match ending:
        case "raises":
            raise RuntimeError("the tool broke")
        case "hangs":
            await anyio.sleep_forever()
        case "shields":
            with anyio.CancelScope(shield=True):
                await anyio.sleep(delay_s)
    return ending


def _ending(rng: Random) -> str:
    return rng.choice(("returns", "returns", "returns", "raises", "hangs", "shields"))


async def _call(rng: Random, turn: AgentTurn) -> None:
    await turn.call("tool", _tool, _ending(rng), rng.random())


async def _guarded(rng: Random, turn: AgentTurn) -> None:
    with suppress(RuntimeError, ToolAborted):
        await turn.call("tool", _tool, _ending(rng), rng.random())


async def _parallel(rng: Random, turn: AgentTurn) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(rng.randint(2, 3)):
            group.start_soon(_guarded, Random(rng.random()), turn)


async def _think(rng: Random, turn: AgentTurn) -> None:
    turn.say("hm")
    await anyio.sleep(2 * rng.random())


async def _stubborn(rng: Random, turn: AgentTurn) -> None:
    with anyio.CancelScope(shield=True):
        await anyio.sleep(4 * rng.random())


async def _fail(rng: Random, turn: AgentTurn) -> None:
    await anyio.sleep(rng.random())
    raise RuntimeError("the agent broke")


async def _hang(rng: Random, turn: AgentTurn) -> None:
    await anyio.sleep_forever()


async def _delegate(rng: Random, turn: AgentTurn) -> None:
    name = rng.choice(("a", "b", "c", "d", "lost"))
    with suppress(ToolAborted):
        await turn.delegate(name, "help", agent=rng.choice((None, None, *KINDS, "nobody")))


async def _delegate_in_parallel(rng: Random, turn: AgentTurn) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(_delegate, Random(rng.random()), turn)


class _Places(DirectoryWorkspace):
    """Workspace without a disk; it takes a while, and has no directory for sessions called ``lost``."""

    async def prepare(self, session_id: str, directory: str, *, root_id: str) -> str:
        await anyio.sleep(0.01)
        if session_id.rpartition("/")[2].startswith("lost"):
            raise NotADirectoryError(f"there is no place for {session_id}")
        return "/"


class _Link(FunctionConnection):
    """Connection to a function, with agents that do not get ready."""

    async def run(self) -> None:
        if self.session.profile.name != "stillborn":
            await super().run()
            return
        try:
            await anyio.sleep(0.1)
            self._report_not_started(Verdict(exit=Exit.ERROR, error="no such program"))
        finally:
            self._report_end(AgentExited(reason="no such program", ended_by="exit", abort_reason=AbortReason.UNKNOWN))

    def _report_ready(self, info: str) -> None:
        if self.session.profile.name != "mute":
            super()._report_ready(info)


# ------------------------------------------------------------------------------------------------------------ host
class FinishedRun:
    """Journal of a run, and, if the machine was lost on the way, the journal of the recovery."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.crashed: MemoryStore | None = None


class _Host:
    """Host with sessions and a plan, and with operators that disturb them."""

    def __init__(self, seed: int, sup: Supervisor, ran: FinishedRun) -> None:
        self._seed, self._sup, self._ran = seed, sup, ran
        self._rng = Random(f"{seed} host")
        self._failed = False

    async def play(self) -> None:
        """Start everything at once. A random choice decides whether the host itself breaks."""
        async with anyio.create_task_group() as group:
            async with anyio.create_task_group() as work:
                for number in range(self._rng.randint(1, 2)):
                    work.start_soon(self._session, number, self._draw())
                if self._rng.random() < 0.3:
                    work.start_soon(self._plan, self._draw())
                for _ in range(self._rng.randint(1, 7)):
                    group.start_soon(self._disturb, self._draw())
                if self._rng.random() < 0.1:
                    group.start_soon(self._break, self._draw())
                if self._rng.random() < 0.2:
                    group.start_soon(self._crash, self._draw())
            group.cancel_scope.cancel()

    def _draw(self) -> Random:
        return Random(self._rng.random())

    async def _session(self, number: int, rng: Random) -> None:
        policy = AbortPolicy(
            tool_to_sibling=rng.random() < 0.5,
            sibling_to_session=rng.random() < 0.5,
            ladder=StageBudgets(**LADDER),
        )
        with suppress(*GONE):
            session = await self._sup.start_session(f"s{number}", agent=rng.choice(KINDS), policy=policy)
            for _ in range(rng.randint(0, 2)):
                await session.run("work")
            if rng.random() < 0.5:
                await session.close()

    async def _plan(self, rng: Random) -> None:
        tasks = [
            TaskConfig(
                id=f"t{number}",
                agent=rng.choice(KINDS),
                prompt="work",
                depends_on=tuple(f"t{one}" for one in range(number) if rng.random() < 0.3),
            )
            for number in range(rng.randint(1, 3))
        ]
        plan = Plan(agents=_configs(), tasks=tuple(tasks), max_sessions=rng.randint(1, 3))
        with suppress(*GONE):
            await run_plan(self._sup, plan)

    # ------------------------------------------------------------------ disturbances
    async def _disturb(self, rng: Random) -> None:
        await anyio.sleep(4 * rng.random() ** 2)
        wishes = [*[self._abort] * 8, *[self._tell] * 8, self._close, self._stop, *[self._delegate] * 2]
        with suppress(*GONE):
            await rng.choice(wishes)(rng)

    def _target(self, rng: Random, scope: AbortScope = AbortScope.SESSION) -> str:
        """Return a random living entity that an abort of that scope can name."""
        nodes = sorted((one.id, one.kind, one.parent) for one in self._sup.registry.abort_tree().values())
        match scope:
            case AbortScope.TOOL:
                found = [one for one, kind, _ in nodes if kind == "tool"]
            case AbortScope.SIBLING:
                found = [one for one, _, parent in nodes if parent is not None]
            case AbortScope.SESSION:
                found = [one for one, kind, _ in nodes if kind == "session"]
        if not found:
            raise NoSuchEntity("anything")
        return rng.choice(found)

    async def _abort(self, rng: Random) -> None:
        scope = rng.choice((AbortScope.TOOL, *AbortScope))
        target = self._target(rng, scope)
        await self._sup.abort(target, scope, reason="a whim", actor="ann", now=rng.random() < 0.2)

    async def _tell(self, rng: Random) -> None:
        session = Session(self._sup, self._target(rng))
        urgent = rng.random() < 0.8
        at = rng.choice((None, *DeliveryPoint)) if urgent else None
        await session.send("listen", urgent=urgent, at=at, sender="ben")

    async def _close(self, rng: Random) -> None:
        await self._sup.close_session(self._target(rng), reason="enough of it")

    async def _delegate(self, rng: Random) -> None:
        child = await Session(self._sup, self._target(rng)).start_child("guest")
        await child.run("work")

    async def _stop(self, rng: Random) -> None:
        await self._sup.stop(now=rng.random() < 0.3, actor="cat")
        if rng.random() < 0.5:
            await anyio.sleep(rng.random())
            await self._sup.stop(actor="cat")

    async def _break(self, rng: Random) -> None:
        await anyio.sleep(5 * rng.random())
        raise HostError("the host broke")

    async def _crash(self, rng: Random) -> None:
        """Copy the journal, as if the machine was lost at this moment."""
        await anyio.sleep(2 * rng.random())
        self._ran.crashed = copy.deepcopy(self._ran.store)


def _configs() -> dict[str, AgentConfig]:
    return {name: AgentConfig(adapter="command", command=("true",)) for name in dict.fromkeys(KINDS)}


def _settings(rng: Random) -> Settings:
    limits = LimitsConfig(
        max_total_errors=rng.randint(1, 4),
        max_consecutive_errors=rng.randint(1, 3),
        backoff_base_ms=rng.choice((1, 500)),
        backoff_cap_ms=1000,
        grace_s=rng.choice((0.1, 1.0)),
        spawn_deadline_s=1.0,
        turn_timeout_s=rng.choice((1.0, 3.0, 8.0)),
        stable_after_s=rng.choice((0.0, 0.5)),
        restarts_max=rng.randint(1, 3),
    )
    crosses = PolicyConfig(
        tool_to_sibling=rng.random() < 0.3, sibling_to_session=rng.random() < 0.3, ladder=LadderConfig(**LADDER)
    )
    return Settings(drain_s=rng.choice((0.5, 5.0, 50.0)), policy=crosses, limits=limits)


# --------------------------------------------------------------------------------------------------------- running
async def _run(seed: int) -> FinishedRun:
    ran, rng = FinishedRun(), Random(f"{seed} settings")
    profile = partial(_profile, Agents(seed).work)
    settings = _settings(rng)
    with ExitStack() as edge, anyio.fail_after(DEADLINE_S):
        edge.enter_context(patch.object(runtime, "profile_of", profile))
        edge.enter_context(patch.object(factories, "DirectoryWorkspace", _Places))
        edge.enter_context(patch.object(factories, "FunctionConnection", _Link))
        await _supervise(ran.store, settings, lambda sup: _Host(seed, sup, ran).play())
        if ran.crashed is not None:
            await _supervise(ran.crashed, settings, _nothing)
    return ran


async def _supervise(
    store: MemoryStore, settings: Settings, play: Callable[[Supervisor], Coroutine[Any, Any, None]]
) -> None:
    with patch.object(runtime, "MemoryJournal", lambda: MemoryJournal(store)):
        try:
            async with runtime.open_supervisor(agents=_configs(), settings=settings) as sup:
                await play(sup)
        except* HostError:
            pass


async def _nothing(sup: Supervisor) -> None:
    return None


def _profile(function: Any, name: str, config: AgentConfig, where: object) -> AgentProfile:
    return AgentProfile(name=name, adapter="inprocess", function=function)


class _Jumping(selectors.DefaultSelector):
    """Selector that does not wait: its clock moves on by the time that it was to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise AssertionError("nothing can ever happen any more")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop whose clock jumps to the next timer."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def simulate(seed: int, backend: str) -> FinishedRun:
    """Run one seed from beginning to end."""
    options: dict[str, Any] = {"loop_factory": VirtualLoop}
    if backend == "trio":
        trio._core._run._r.seed(seed)  # type: ignore[attr-defined]
        options = {"clock": MockClock(autojump_threshold=0)}
    ran: FinishedRun = anyio.run(_run, seed, backend=backend, backend_options=options)
    return ran
