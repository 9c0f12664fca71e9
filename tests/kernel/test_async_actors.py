"""Actors with an ``async def receive``: one handler at a time in a task of the actor's own, which ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import pytest
import trio
from anyio.lowlevel import checkpoint
from kernel_kit import DEADLINE_S, Echo, blocked, both, running, virtual

from actors import (
    ActorCrashed,
    ActorStopped,
    Context,
    Crashed,
    Down,
    Killed,
    Lane,
    MailboxFull,
    Shutdown,
    StrayCancellation,
)


class Async:
    """An actor whose ``receive`` is the given coroutine function."""

    def __init__(self, receive: Callable[[Context, Any], Any]) -> None:
        self._receive = receive

    async def receive(self, ctx: Context, message: Any) -> Any:
        return await self._receive(ctx, message)


@both
async def test_an_idle_actor_has_no_task_until_its_first_message() -> None:
    """It is data until it has something to await, and keeps its worker from then on."""

    async def receive(ctx: Context, message: Any) -> None:
        await checkpoint()

    async with running() as system:
        ref = system.spawn(Async(receive), "a")
        assert system.inspect("a").tasks == []
        for _ in range(3):
            ref.tell("x")
            await blocked(system)
            assert [task.name for task in system.inspect("a").tasks] == ["receive"]


@both
async def test_messages_queue_while_the_handler_waits() -> None:
    """The next one is taken when the handler has returned, the most important first; a full mailbox is full."""
    go, log = anyio.Event(), []

    async def receive(ctx: Context, message: Any) -> None:
        log.append(f"{message} begins")
        await go.wait()
        log.append(f"{message} ends")

    async with running() as system:
        ref = system.spawn(Async(receive), "a", capacity=2)
        ref.tell(1)
        await blocked(system)
        ref.tell(2)
        ref.tell(3)
        with pytest.raises(MailboxFull):
            ref.tell(4)
        ref.tell(0, lane=Lane.CONTROL)
        await blocked(system)
        assert log == ["1 begins"]
        go.set()
        await blocked(system)
        assert log == [f"{n} {what}" for n in (1, 0, 2, 3) for what in ("begins", "ends")]


@both
async def test_a_stop_cancels_the_handler_and_waits_for_its_cleanup() -> None:
    """What it had in hand and what was queued are dead letters; its cleanup runs to its end."""
    log: list[str] = []

    async def receive(ctx: Context, message: Any) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with ctx.cleanup(1):
                await checkpoint()
                log.append("cleaned")

    async with running() as system:
        ref = system.spawn(Async(receive), "a")
        system.monitor("a", lambda down: log.append(str(down.reason)))
        ref.tell("in hand")
        ref.tell("queued")
        await blocked(system)
        system.stop("a", "enough")
        await system.join("a")
        assert log == ["cleaned", "shut down (enough)"]
        assert system.dead_letters == 2


@both
async def test_an_ask_in_hand_at_a_stop_fails_with_its_end() -> None:
    """Its asker hears of it when the actor has ended, with the reason."""

    async def receive(ctx: Context, message: Any) -> None:
        await anyio.sleep_forever()

    async with running() as system:
        ref = system.spawn(Async(receive), "a")
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                with pytest.raises(ActorStopped) as caught:
                    await ref.ask("x", timeout_s=1000)
                assert caught.value.reason == Shutdown("enough")

            group.start_soon(ask)
            await blocked(system)
            system.stop("a", "enough")
        assert system.dead_letters == 0


@both
async def test_one_error_out_of_a_group_is_that_error() -> None:
    """A handler with a task group of its own crashes as the error inside."""
    boom = ValueError("boom")

    async def receive(ctx: Context, message: Any) -> None:
        async def fail() -> None:
            await checkpoint()
            raise boom

        async with anyio.create_task_group() as group:
            group.start_soon(fail)
            group.start_soon(anyio.sleep_forever)

    async with running() as system:
        downs: list[Down] = []
        ref = system.spawn(Async(receive), "a")
        system.monitor("a", downs.append)
        with pytest.raises(ValueError, match="boom") as caught:
            await ref.ask("x", timeout_s=30)
        assert caught.value is boom
        await system.join("a")
        assert [down.reason for down in downs] == [Crashed(boom)]


@both
async def test_a_cancelled_scope_ends_it() -> None:
    """Without its worker nothing would read its mailbox: it does not live on as a deaf one."""

    async def receive(ctx: Context, message: Any) -> None:
        await anyio.sleep_forever()

    async with running() as system:
        downs: list[Down] = []
        system.spawn(Async(receive), "a").tell("x")
        system.monitor("a", downs.append)
        await blocked(system)
        context = system.context("a")
        assert context is not None
        context.scope.cancel("no more")
        await system.join("a")
        assert [down.reason for down in downs] == [Killed("no more")]


@both
async def test_a_scope_that_was_cancelled_before_its_first_message_ends_it_too() -> None:
    """Also where it is that of the home in which its worker would have lived."""
    async with running() as system:
        downs: list[Down] = []
        system.spawn(Echo(), "home")
        ref = system.spawn(Async(lambda ctx, message: checkpoint()), "a", parent="home")
        system.monitor("a", downs.append)
        context = system.context("home")
        assert context is not None
        context.scope.cancel("no more")
        ref.tell("x")
        await system.join("a")
        assert isinstance(downs[0].reason, Killed)
        assert "home" in system


@both
async def test_handlers_that_never_wait_leave_the_loop_to_others() -> None:
    """A worker gives up the loop every few messages, whatever its handler does."""

    async def receive(ctx: Context, message: int) -> None:
        if message:
            ctx.tell_self(message - 1)

    async with running() as system:
        echo = system.spawn(Echo(), "echo")
        system.spawn(Async(receive), "a").tell(2000)
        asked = 0
        while (await system.stats("a", timeout_s=DEADLINE_S)).handled < 2000:
            await echo.ask("there?", timeout_s=DEADLINE_S)
            await checkpoint()
            asked += 1
        assert asked >= 2000 / 64


@both
async def test_looking_does_not_see_between_where_a_message_was_stashed_in_the_middle() -> None:
    """A handler that has put its message aside still runs: it is no moment between two messages."""
    go, seen = anyio.Event(), []

    async def receive(ctx: Context, message: Any) -> None:
        ctx.stash()
        assert ctx.envelope is None
        await go.wait()
        seen.append("handler ends")

    async with running() as system:
        system.spawn(Async(receive), "a").tell("x")
        await blocked(system)

        async def look() -> None:
            stats = await system.stats("a", timeout_s=30)
            seen.append(f"{stats.stashed} stashed")

        async with anyio.create_task_group() as group:
            group.start_soon(look)
            await blocked(system)
            assert seen == []
            go.set()
        assert seen == ["handler ends", "1 stashed"]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=False)
async def test_a_cancelled_future_is_no_end_of_the_system(anyio_backend: str) -> None:
    """A handler that reads a cancelled future, or awaits one, crashes its actor, and nobody else."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    future.cancel()

    class Plain:
        def receive(self, ctx: Context, message: Any) -> int:
            return future.result()

    async def receive(ctx: Context, message: Any) -> int:
        return await future

    async with running() as system:
        downs: list[Down] = []
        events: list[Any] = []
        system.on_event = events.append
        for actor_id, actor in (("told", Plain()), ("asked", Plain()), ("async", Async(receive))):
            system.spawn(actor, actor_id)
            system.monitor(actor_id, downs.append)
        told, asked, owning = (system.ref(one) for one in ("told", "asked", "async"))
        assert told is not None
        assert asked is not None
        assert owning is not None
        told.tell("x")
        with pytest.raises(StrayCancellation, match="cancelled by somebody else"):
            await asked.ask("x", timeout_s=30)
        with pytest.raises(StrayCancellation):
            await owning.ask("x", timeout_s=30)
        await blocked(system)
        assert {down.id: type(down.reason) for down in downs} == {"told": Crashed, "asked": Crashed, "async": Crashed}
        assert sum(isinstance(event, ActorCrashed) for event in events) == 3
        assert await system.spawn(Echo(), "echo").ask(1, timeout_s=30) == 1


@virtual
async def test_a_handler_has_all_the_time_it_wants(autojump_clock: trio.abc.Clock) -> None:
    """A tell has no deadline: the handler may wait for as long as its actor lives."""

    async def receive(ctx: Context, message: Any) -> None:
        await trio.sleep(20)
        done.append(trio.current_time())

    done: list[float] = []
    async with running() as system:
        start = trio.current_time()
        system.spawn(Async(receive), "a").tell("x")
        await trio.sleep(25)
        assert [at - start for at in done] == [20]
