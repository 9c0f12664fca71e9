"""Helpers of the supervisor tests: children that log their starts and ends, and end in a requested way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import trio
import trio.testing
from kernel_kit import DEADLINE_S, blocked

from actors import (
    Actor,
    ActorSystem,
    Backoff,
    ChildInfo,
    ChildSpec,
    Context,
    Down,
    Intensity,
    Ref,
    Restart,
    Shutdown,
    Supervisor,
    WhichChildren,
    open_system,
)

AT_ONCE = Backoff(0.0, 1.0, 0.0)
"""Backoff without a delay; a restart is still a timer message."""
OFTEN = Intensity(1000, 60.0)
EXITS = ("normal", "shutdown", "crash", "killed")


class Boom(Exception):
    """Error that only these tests raise."""


class Plain:
    """Child that ends as a message requests, and logs its starts and ends."""

    def __init__(self, family: Family, name: str) -> None:
        self.family, self.name = family, name

    def started(self, ctx: Context) -> None:
        family = self.family
        if family.fails.get(self.name, 0) > 0:
            family.fails[self.name] -= 1
            family.log.append(f"!{self.name}")
            raise Boom(f"{self.name} cannot start")
        family.log.append(f"+{self.name}")
        if self.name in family.on_start:
            family.on_start[self.name](ctx)

    def stopped(self, ctx: Context, reason: object) -> None:
        self.family.log.append(f"-{self.name}")

    def receive(self, ctx: Context, message: Any) -> Any:
        return self.act(ctx, message)

    def act(self, ctx: Context, message: Any) -> Any:
        if callable(message):
            return message(ctx)
        if message == "crash":
            raise Boom(self.name)
        if message == "normal":
            return ctx.exit()
        if message == "shutdown":
            return ctx.stop("enough")
        return (self.name, ctx.incarnation, message)


class Family:
    """Children with a common log of their starts and ends; also sets how often the next starts of a child fail."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.fails: dict[str, int] = {}
        self.on_start: dict[str, Callable[[Context], None]] = {}

    def actor(self, name: str) -> Actor:
        return Plain(self, name)

    def spec(self, name: str, restart: str = "permanent", /, **fields: Any) -> ChildSpec:
        return ChildSpec(name, lambda: self.actor(name), Restart(restart), **fields)

    def specs(self, *names: str, restart: str = "permanent") -> list[ChildSpec]:
        return [self.spec(name, restart) for name in names]

    def nested(self, name: str, *specs: ChildSpec, restart: str = "permanent", **options: Any) -> ChildSpec:
        """Return the spec of a supervisor below a supervisor."""
        options = {"backoff": AT_ONCE, **options}
        return ChildSpec(name, lambda: Supervisor(specs, **options), Restart(restart))

    def news(self) -> list[str]:
        """Return the lines that were logged since the last call."""
        log, self.log = self.log, []
        return log


class House:
    """A supervisor in an actor system of its own."""

    def __init__(self, system: ActorSystem, ref: Ref, downs: list[Down]) -> None:
        self.system, self.ref, self.downs = system, ref, downs

    def child(self, name: str) -> Ref:
        ref = self.system.ref(f"sup/{name}")
        assert ref is not None, f"no child {name!r}"
        return ref

    async def ask(self, message: Any) -> Any:
        return await self.ref.ask(message, timeout_s=20)

    async def end(self, name: str, how: str) -> None:
        """End the child *name* in the way *how*, and wait for the consequences."""
        if how == "killed":
            self.system.kill(f"sup/{name}")
        else:
            self.child(name).tell(how)
        await blocked(self.system)

    async def children(self) -> tuple[ChildInfo, ...]:
        infos: tuple[ChildInfo, ...] = await self.ask(WhichChildren())
        return infos

    async def states(self) -> dict[str, str]:
        return {info.id: info.state for info in await self.children()}

    @property
    def reason(self) -> object:
        """Return the reason for which the supervisor has ended."""
        assert len(self.downs) == 1
        return self.downs[0].reason

    @property
    def gave_up(self) -> bool:
        return bool(self.downs) and not isinstance(self.reason, Shutdown)


def virtual_time() -> bool:
    return trio.lowlevel.in_trio_run() and isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock)


@asynccontextmanager
async def supervised(*specs: ChildSpec, supervisor: Supervisor | None = None, **options: Any) -> AsyncIterator[House]:
    """Open a system with a supervisor of these children, which restarts without delay and often, unless *options*
    differ."""
    with anyio.fail_after(10**6 if virtual_time() else DEADLINE_S):
        async with open_system(seed=20261121) as system:  # a delay that is drawn is the same in every run
            options = {"backoff": AT_ONCE, "intensity": OFTEN, **options}
            ref = system.spawn(supervisor or Supervisor(specs, **options), "sup")
            downs: list[Down] = []
            system.monitor("sup", downs.append)
            yield House(system, ref, downs)
