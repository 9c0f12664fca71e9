"""Benchmark of the claim that a hostile session delays no other: the cost of controlling other sessions with and
without a hostile session, in the same run.

The hostile session swallows every cancellation of its function, has its mailbox flooded, and has a child whose process
ignores SIGINT and SIGTERM and is being aborted, all while the others are measured. The loop of the hostile session is
bounded, so the benchmark ends. Latencies are from the moment at which the asker may run until it has the reply, by the
wall clock; the journal is in memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.abc import TaskGroup

from benchmarks.harness import Case, Figures, Line, Sizes, asynchronous, at_most_times, percentile
from supervisor import (
    AbortScope,
    AgentConfig,
    AgentTurn,
    NoSuchEntity,
    Refused,
    Session,
    Settings,
    Supervisor,
    ToolAborted,
    open_supervisor,
)
from supervisor.plans import LimitsConfig, PolicyConfig, StageBudgetsConfig

SWALLOWS_MAX = 2_000_000
"""Number of swallowed cancellations after which the hostile session ends."""
FLOODERS = 16
"""Number of tasks that send messages to the hostile session, each the next message when the last is durable."""
HELD_S = 300.0
"""Seconds of the termination stages that the hostile session delays: longer than the measurement."""
DEAF = "trap '' INT TERM; echo up > {fifo}; while :; do sleep 1; done"
"""Shell script that only SIGKILL ends; it reports when it ignores the other signals."""
UP_S = 30.0
"""Seconds within which the hostile session must be running."""
SETTINGS = Settings(
    policy=PolicyConfig(ladder=StageBudgetsConfig(request_s=0.01, cancel_s=HELD_S, terminate_s=HELD_S)),
    limits=LimitsConfig(grace_s=HELD_S),
)


class Victim:
    """Ordinary session in the middle of a turn: it calls a tool that hangs, again and again."""

    def __init__(self, sup: Supervisor, name: str) -> None:
        self.sup, self.name = sup, name
        self.calls = 0
        self.hanging = anyio.Event()
        self.over = False

    async def agent(self, turn: AgentTurn) -> None:
        while not self.over:
            with suppress(ToolAborted):
                await turn.call("hang", self._hang)

    async def _hang(self) -> None:
        self.calls += 1
        self.hanging.set()
        await anyio.sleep_forever()

    async def look(self) -> None:
        """Plan an abort of the session, and read its state."""
        await anyio.lowlevel.checkpoint()
        self.sup.plan_abort(self.name, AbortScope.SESSION)
        self.sup.core.registry.state_of(self.name)

    async def message(self) -> None:
        """Send a message to the session, and wait until the message is durable."""
        await self.sup.session(self.name).send("how is it going")

    async def abort_call(self) -> None:
        """Abort the session's call at scope TOOL, and wait for the receipt."""
        self.hanging = anyio.Event()
        call = f"{self.name}:t1:c{self.calls}"
        receipt = await self.sup.abort(call, AbortScope.TOOL, reason="benchmark")
        assert not receipt.already_ended, call

    async def ready(self) -> None:
        await self.hanging.wait()

    async def let_go(self) -> None:
        self.over = True
        await self.sup.abort(self.name, AbortScope.SESSION, reason="benchmark")


class Hostile:
    """Session that does everything by which it could delay others."""

    def __init__(self, sup: Supervisor, fifo: Path) -> None:
        self.sup = sup
        self.fifo = fifo
        self.over = False
        self.swallowed = 0
        self.spinning, self.flooded = anyio.Event(), anyio.Event()

    async def agent(self, turn: AgentTurn) -> None:
        """Swallow every cancellation, so that the next one comes at once."""
        self.spinning.set()
        while not self.over and self.swallowed < SWALLOWS_MAX:
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                self.swallowed += 1

    async def _flood(self, session: Session) -> None:
        """Send messages again and again, even when as many wait as the session allows."""
        with suppress(NoSuchEntity):
            while not self.over:
                with suppress(Refused):
                    await session.send("x" * 100)
                self.flooded.set()

    async def begin(self, group: TaskGroup, flooders: int) -> None:
        """Start the hostile session; return when all parts of it run."""
        session = await self.sup.start_session("hostile", agent=self.agent)
        group.start_soon(session.run, "be bad")
        child = await self.sup.start_session("deaf", agent="deaf", parent="hostile")
        group.start_soon(child.run, "be deaf")
        with anyio.fail_after(UP_S):
            await anyio.to_thread.run_sync(self.fifo.read_text, abandon_on_cancel=True)
            await self._child_runs("hostile/deaf:t1")
        group.start_soon(child.abort)
        await self.spinning.wait()
        await session.send("come out", urgent=True)
        for _ in range(flooders):
            group.start_soon(self._flood, session)
        if flooders:
            await self.flooded.wait()

    async def _child_runs(self, turn_id: str) -> None:
        """Wait until the child process runs, since an earlier abort would only cancel its launch."""
        async with self.sup.subscribe(after_seq=0) as events:
            async for event in events:
                if (event.entity_id, event.to_status) == (turn_id, "RUNNING"):
                    return

    async def end(self) -> None:
        """End the hostile session, and check that it was hostile until now."""
        assert 0 < self.swallowed < SWALLOWS_MAX, self.swallowed
        self.sup.core.registry.state_of("hostile/deaf")
        self.over = True
        await self.sup.abort("hostile", AbortScope.SESSION, reason="benchmark", now=True)


@asynccontextmanager
async def victims(flooders: int | None, sizes: Sizes) -> AsyncIterator[list[Victim]]:
    """Start ordinary sessions, each hanging in a tool call and, unless *flooders* is ``None``, a hostile session beside
    them."""
    async with AsyncExitStack() as stack:
        fifo = Path(stack.enter_context(TemporaryDirectory())) / "fifo"
        os.mkfifo(fifo)
        agents = {"deaf": AgentConfig(adapter="command", command=("sh", "-c", DEAF.format(fifo=fifo)))}
        sup = await stack.enter_async_context(open_supervisor(agents=agents, settings=SETTINGS))
        group = await stack.enter_async_context(anyio.create_task_group())
        found = [Victim(sup, f"victim-{n}") for n in range(sizes.sessions)]
        for one in found:
            session = await sup.start_session(one.name, agent=one.agent)
            group.start_soon(session.run, "work")
        for one in found:
            await one.ready()
        foe = Hostile(sup, fifo)
        try:
            if flooders is not None:
                await foe.begin(group, flooders)
            yield found
            if flooders is not None:
                await foe.end()
        finally:
            foe.over = True
        for one in found:
            await one.let_go()


PROBES: dict[str, Callable[[Victim], Awaitable[None]]] = {
    "plan of an abort, and a state": Victim.look,
    "message to a session": Victim.message,
    "TOOL abort of a session's call": Victim.abort_call,
}


def latencies(flooders: int | None) -> Callable[[str, Sizes], Awaitable[Figures]]:
    """Make a measurement: p50 and p99 of each probe, in microseconds; the probes and the sessions take turns."""

    async def once(backend: str, sizes: Sizes) -> Figures:
        times: dict[str, list[float]] = {name: [] for name in PROBES}
        async with victims(flooders, sizes) as found:
            for n in range(sizes.session_probes):
                victim = found[n % len(found)]
                for name, probe in PROBES.items():
                    await victim.ready()
                    since = time.perf_counter()
                    await probe(victim)
                    times[name].append((time.perf_counter() - since) * 1e6)
        return tuple(percentile(times[name], percent) for name in PROBES for percent in (50, 99))

    return once


def _lines() -> tuple[Line, ...]:
    aims = {50: at_most_times(2.0, "ours"), 99: None}
    return tuple(Line(f"{name}, p{percent}", "us", aim) for name in PROBES for percent, aim in aims.items())


WITHOUT = asynchronous(latencies(None))
CASES = (
    Case(_lines(), asynchronous(latencies(0)), "without a session that is deaf to ends", WITHOUT),
    Case(_lines(), asynchronous(latencies(FLOODERS)), "without one that is deaf and flooded", WITHOUT, rounds=1),
)
