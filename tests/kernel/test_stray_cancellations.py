"""Stray cancellations, meant for other code: they end only the actor that raised them; and senders that wait for
room."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
from kernel_kit import DEADLINE_S, Script, both, running

from actors import (
    ActorCrashed,
    Backoff,
    ChildSpec,
    Context,
    KernelEvent,
    MailboxFull,
    Restart,
    StartFailed,
    StrayCancellation,
    Supervisor,
    TaskFailed,
)


class Rude:
    """Actor that raises a ``CancelledError`` that nobody has sent, at a chosen place."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.heard: list[Any] = []

    def started(self, ctx: Context) -> None:
        if self._where == "started":
            raise asyncio.CancelledError

    def stopped(self, ctx: Context, reason: object) -> None:
        if self._where == "stopped":
            raise asyncio.CancelledError

    def receive(self, ctx: Context, message: Any) -> Any:
        self.heard.append(message)
        if message == "task":
            ctx.start_task(self._task, name="stray")
        return message

    async def _task(self) -> None:
        raise asyncio.CancelledError


@both
async def test_one_out_of_stopped_is_that_actors_crash() -> None:
    """A stray cancellation out of ``stopped`` counts as a crash of that actor, is reported, and other actors
    continue."""
    async with running() as system:
        events: list[KernelEvent] = []
        system.on_event = events.append
        system.spawn(Rude("stopped"), "rude")
        other = system.spawn(Rude("nowhere"), "other")
        system.stop("rude")
        await system.join("rude")
        assert await other.ask("still there", timeout_s=DEADLINE_S) == "still there"
    assert [type(event.error) for event in events if isinstance(event, ActorCrashed)] == [StrayCancellation]


@both
async def test_one_out_of_started_is_a_failed_start() -> None:
    """A stray cancellation out of ``started`` is a failed start: ``spawn`` raises ``StartFailed``."""
    async with running() as system:
        with pytest.raises(StartFailed, match="cancelled elsewhere"):
            system.spawn(Rude("started"), "rude")
        assert "rude" not in system


@both
async def test_one_out_of_a_task_is_a_failed_task() -> None:
    """A stray cancellation out of a task is reported to the actor as a failed task; its other tasks and its scope
    continue."""
    async with running() as system:
        rude = Rude("nowhere")
        ref = system.spawn(rude, "rude")
        ref.tell("task")
        await anyio.wait_all_tasks_blocked()
        await system.idle()
        assert await ref.ask("again", timeout_s=DEADLINE_S) == "again"
        (failed,) = [one for one in rude.heard if isinstance(one, TaskFailed)]
        assert (failed.name, type(failed.error)) == ("stray", StrayCancellation)
        context = system.context("rude")
        assert context is not None
        assert not context.scope.cancelled


@both
async def test_who_waits_for_room_is_not_overtaken_by_who_does_not() -> None:
    """While a sender waits for room, tells are refused; the sender's deadline and cancellation still take effect."""
    async with running() as system, anyio.create_task_group() as group:
        handled: list[Any] = []
        ref = system.spawn(Script(lambda ctx, message: handled.append(message)), "busy", capacity=1)

        async def tell_for_ever() -> None:
            while True:
                try:
                    ref.tell("told")
                except MailboxFull:
                    await anyio.lowlevel.checkpoint()

        group.start_soon(tell_for_ever)
        await anyio.lowlevel.checkpoint()
        await ref.ask("sent", timeout_s=DEADLINE_S)
        group.cancel_scope.cancel()
    assert "sent" in handled


class Leaving:
    """Actor that ends itself and then raises an error."""

    def receive(self, ctx: Context, message: Any) -> Any:
        ctx.exit()
        raise ValueError("late")


@both
async def test_who_is_done_and_then_raises_does_not_come_back() -> None:
    """If an actor ends itself and then raises, the asker gets the error, not ``ActorRestarting``, since the end was
    decided before."""
    async with running() as system:
        spec = ChildSpec("a", Leaving, restart=Restart.TRANSIENT)
        system.spawn(Supervisor([spec], backoff=Backoff(base_s=0)), "s")
        ref = system.ref("s/a")
        assert ref is not None
        with pytest.raises(ValueError, match="late"):
            await ref.ask("go", timeout_s=DEADLINE_S)
