"""Ask: a deadline never later than that of the asker, one reply, and no work for an asker that has gone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest
import trio
from anyio.lowlevel import checkpoint
from kernel_kit import Echo, Script, blocked, both, held, note, running, virtual

from actors import (
    DEFERRED,
    ActorCrashed,
    ActorStopped,
    AskTimeout,
    Context,
    InvalidOption,
    Lane,
    Ref,
    Shutdown,
)


def keeping(replies: list[Any]) -> Script:
    """Return an actor that defers each reply, and appends the reply port to *replies*."""

    def receive(ctx: Context, message: Any) -> Any:
        assert ctx.envelope is not None
        replies.append(ctx.envelope.reply)
        return DEFERRED

    return Script(receive)


# ---------------------------------------------------------------------- the deadline
@both
async def test_an_ask_without_a_deadline_names_it() -> None:
    """An ask without ``timeout_s``, or with a positional one, raises an error that names the argument."""
    async with running() as system:
        ref = system.spawn(Echo(), "a")
        with pytest.raises(TypeError, match="timeout_s"):
            await ref.ask(1)  # type: ignore[call-arg]


@both
async def test_asks_arrive_in_the_order_in_which_they_were_made() -> None:
    """However many asks are made at once, they are handled in the order in which they were made."""
    heard: list[Any] = []
    async with running() as system, anyio.create_task_group() as group:
        ref, made = system.spawn(note(heard), "a"), itertools.count()

        async def ask() -> None:
            await ref.ask(next(made), timeout_s=5)

        for _ in range(200):
            group.start_soon(ask)
    assert heard == list(range(200))


@both
@pytest.mark.parametrize("timeout_s", [None, float("nan"), float("inf"), "2"])
async def test_a_deadline_that_is_none_is_named(timeout_s: Any) -> None:
    """A timeout that is not finite is refused, and no message is sent."""
    async with running() as system:
        echo = Echo()
        ref = system.spawn(echo, "a")
        with pytest.raises(InvalidOption, match=r"'a': timeout_s is .*; give a finite number of seconds"):
            await ref.ask(1, timeout_s=timeout_s)
        await system.idle()
        assert echo.heard == []


@virtual
async def test_a_task_inherits_the_deadline_of_the_ask_it_serves(autojump_clock: trio.abc.Clock) -> None:
    """A task that works for an ask, also over several hops, has the ask's deadline; other tasks have only their own."""
    ends: dict[str, float] = {}

    async def work(ctx: Context, next_one: Ref, reply: Any) -> None:
        start = trio.current_time()
        try:
            await next_one.ask("x", timeout_s=20)
        except AskTimeout as error:
            ends[ctx.id] = error.timeout_s
        finally:
            ends.setdefault(ctx.id, trio.current_time() - start)

    def serve(next_one: Callable[[], Ref]) -> Script:
        def receive(ctx: Context, message: Any) -> Any:
            assert ctx.envelope is not None
            ctx.start_task(work, ctx, next_one(), ctx.envelope.reply)
            return DEFERRED

        return Script(receive)

    async with running() as system:
        deaf = system.spawn(keeping([]), "deaf")
        second = system.spawn(serve(lambda: deaf), "second")
        first = system.spawn(serve(lambda: second), "first")
        with pytest.raises(AskTimeout):
            await first.ask("x", timeout_s=3)
        await anyio.wait_all_tasks_blocked()
        assert ends == pytest.approx({"second": 3, "first": 3})
        ends.clear()
        second.tell("x")
        await trio.sleep(22)
        assert ends == pytest.approx({"second": 20})


# ---------------------------------------------------------------------- one answer
@both
async def test_a_reply_is_one_shot() -> None:
    """The first reply counts; a later one changes nothing, not even the count of late replies."""
    async with running() as system:
        replies: list[Any] = []
        ref, got = system.spawn(keeping(replies), "a"), []

        async def ask() -> None:
            got.append(await ref.ask("x", timeout_s=1000))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await blocked(system)
            replies[0].resolve("first")
            replies[0].resolve("second")
            replies[0].fail(ValueError("third"))
        assert (got, ref.late_replies) == (["first"], 0)


@both
async def test_the_death_of_the_callee_answers_at_once_and_names_are_free() -> None:
    """An ask fails with the reason as soon as its target ends, however long its timeout; then the id is free."""

    async with running() as system:
        for behaviour in (keeping([]), keeping([])):
            ref = system.spawn(behaviour, "a")
            with pytest.raises(ActorStopped) as caught:
                async with anyio.create_task_group() as group:
                    group.start_soon(stop_soon, system, "a")
                    try:
                        await ref.ask("x", timeout_s=1000)
                    except ActorStopped as stopped:
                        error = stopped
                        group.cancel_scope.cancel()
                raise error
            assert caught.value.reason == Shutdown("enough")
            await system.join("a")


async def stop_soon(system: Any, actor_id: str) -> None:
    await anyio.wait_all_tasks_blocked()
    system.stop(actor_id, "enough")


# ---------------------------------------------------------------------- the asker goes
@virtual
@pytest.mark.parametrize("how", ["cancelled", "timed out"])
async def test_an_ask_whose_asker_has_gone_is_not_handled(autojump_clock: trio.abc.Clock, how: str) -> None:
    """After its asker has gone, a queued ask is skipped, and counts neither as a late reply nor as a dead letter."""
    async with running() as system:
        heard: list[Any] = []
        ref = system.spawn(note(heard), "a")
        with held(system, "a"):
            await give_up(partial(ref.ask, "x"), how)
            ref.tell("y")
        await system.idle()
        assert (heard, ref.late_replies, system.dead_letters) == (["y"], 0, 0)
        assert system.inspect("a").stats.handled == 1


@virtual
@pytest.mark.parametrize("how", ["cancelled", "timed out"])
async def test_the_tasks_of_a_deferred_answer_are_cancelled_with_its_asker(
    autojump_clock: trio.abc.Clock, how: str
) -> None:
    """When the asker of a deferred reply goes, exactly the tasks that were started while the ask was handled are
    cancelled."""
    log: list[str] = []

    async def work(name: str) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            log.append(name)

    def receive(ctx: Context, message: Any) -> Any:
        ctx.start_task(work, message)
        ctx.start_task(work, message)
        return DEFERRED

    async with running() as system:
        ref = system.spawn(Script(receive), "a")
        ref.tell("told")
        await blocked(system)
        await give_up(partial(ref.ask, "asked"), how)
        await anyio.wait_all_tasks_blocked()
        assert log == ["asked", "asked"]
        assert "a" in system
        assert ref.late_replies == 0


@virtual
@pytest.mark.parametrize("how", ["cancelled", "timed out"])
async def test_a_detached_ask_goes_on_without_its_asker(autojump_clock: trio.abc.Clock, how: str) -> None:
    """With ``detach=True`` the message is handled to its end after the asker has gone; the reply counts as late."""
    done: list[str] = []
    go = anyio.Event()

    async def work(reply: Any) -> None:
        await go.wait()
        done.append("worked")
        reply.resolve(1)

    def start(ctx: Context, message: Any) -> Any:
        assert ctx.envelope is not None
        ctx.start_task(work, ctx.envelope.reply)
        return DEFERRED

    async with running() as system:
        ref = system.spawn(Script(start), "a")
        await give_up(partial(ref.ask, "x", detach=True), how)
        go.set()
        await blocked(system)
        assert (done, ref.late_replies) == (["worked"], 1)


async def give_up(ask: Callable[..., Any], how: str) -> None:
    """Make an ask, and stop waiting before the reply, in the way *how*."""
    if how == "timed out":
        with pytest.raises(AskTimeout):
            await ask(timeout_s=2)
        return
    async with anyio.create_task_group() as group:
        group.start_soon(partial(ask, timeout_s=1000))
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()


# ---------------------------------------------------------------------- answered in place
@both
async def test_an_ask_never_overtakes_what_was_sent_before_it() -> None:
    """An idle actor replies at once; an actor with queued messages handles these first, whatever their lane."""
    for lane in Lane:
        async with running() as system:
            echo = Echo()
            ref = system.spawn(echo, "a")
            ref.tell(1, lane=lane)
            assert await ref.ask(2, timeout_s=30) == 2
            assert await ref.ask(3, timeout_s=30) == 3
            assert echo.heard == [1, 2, 3]


@both
async def test_an_ask_never_overtakes_another_that_waits_for_room() -> None:
    """An ask does not overtake an earlier ask that waits for room, even if there is room and nothing is queued."""
    async with running() as system:
        heard: list[Any] = []
        ref = system.spawn(note(heard), "a", capacity=1)
        async with anyio.create_task_group() as group:
            with held(system, "a"):
                ref.tell(0)
                group.start_soon(partial(ref.ask, "first", timeout_s=1000))
                await anyio.wait_all_tasks_blocked()
                context = system.context("a")
                assert context is not None
                context.mailbox.take()  # type: ignore[attr-defined]
            await ref.ask("second", timeout_s=1000)
        assert heard == ["first", "second"]


@both
@pytest.mark.parametrize("idle", [True, False], ids=["in place", "queued"])
async def test_a_crash_is_the_same_in_place(idle: bool) -> None:
    """Whether an ask is queued or handled in place: at a crash the asker gets the error, and the actor ends as crashed,
    reported once."""
    boom = ValueError("boom")

    def receive(ctx: Context, message: Any) -> None:
        if message == "x":
            raise boom

    async with running() as system:
        events: list[Any] = []
        system.on_event = events.append
        ref, downs = system.spawn(Script(receive), "a"), []
        system.monitor("a", downs.append)
        if not idle:
            ref.tell("before")
        with pytest.raises(ValueError, match="boom") as caught:
            await ref.ask("x", timeout_s=30)
        assert caught.value is boom
        await system.join("a")
        assert [str(down.reason) for down in downs] == ["crashed: ValueError('boom')"]
        assert events == [ActorCrashed("a", boom)]


@both
@pytest.mark.parametrize("idle", [True, False], ids=["in place", "queued"])
async def test_everything_about_an_ask_is_the_same_in_place(idle: bool) -> None:
    """DEFERRED, the envelope with its cause and port, and the context are the same for a queued ask and one handled in
    place."""
    seen: list[Any] = []

    def receive(ctx: Context, message: Any) -> Any:
        if message == "before":
            return None
        envelope = ctx.envelope
        assert envelope is not None
        assert envelope is ctx.envelope
        seen.append((message, envelope.message, envelope.cause, envelope.reply is not None))
        if message == "defer":
            ctx.tell_self(envelope.reply)
            return DEFERRED
        if hasattr(message, "resolve"):
            message.resolve("later")
        return f"did {message}"

    async with running() as system:
        ref = system.spawn(Script(receive), "a")
        answers = []
        for message in ("plain", "defer"):
            if not idle:
                ref.tell("before")
            answers.append(await ref.ask(message, timeout_s=30, cause="why"))
            await system.idle()
        assert answers == ["did plain", "later"]
        assert [one for one in seen if isinstance(one[0], str)] == [
            ("plain", "plain", "why", True),
            ("defer", "defer", "why", True),
        ]


@both
async def test_a_loop_of_asks_does_not_starve_other_tasks() -> None:
    """During a loop of asks handled in place, other tasks run once within a hundred asks, and not after each ask."""
    turns: list[int] = []
    async with running() as system:
        ref = system.spawn(Echo(), "a")
        asked = 0

        async def other() -> None:
            while asked < 1000:
                turns.append(asked)
                await checkpoint()

        async with anyio.create_task_group() as group:
            group.start_soon(other)
            await checkpoint()
            for _ in range(1000):
                await ref.ask(1, timeout_s=30)
                asked += 1
    gaps = [later - earlier for earlier, later in itertools.pairwise(turns)]
    assert max(gaps) <= 130
    assert 8 <= len(turns) <= 100
