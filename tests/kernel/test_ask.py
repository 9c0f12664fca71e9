"""Ask: a deadline that is never longer than that of the asker, one answer, and nobody works for who has gone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest
import trio
from anyio.lowlevel import checkpoint
from kernel_kit import Echo, Script, blocked, both, note, running, virtual

from actors import (
    DEFERRED,
    ActorCrashed,
    ActorStopped,
    AskTimeout,
    Context,
    DeadLetter,
    Down,
    InvalidOption,
    Lane,
    Ref,
    Shutdown,
    WrongMessage,
)


class Async:
    """An actor whose ``receive`` is the given coroutine function."""

    def __init__(self, receive: Callable[[Context, Any], Any]) -> None:
        self._receive = receive

    async def receive(self, ctx: Context, message: Any) -> Any:
        return await self._receive(ctx, message)


async def never(ctx: Context, message: Any) -> None:
    await anyio.sleep_forever()


def keeping(replies: list[Any]) -> Script:
    """Defers each answer, and keeps its port."""

    def receive(ctx: Context, message: Any) -> Any:
        assert ctx.envelope is not None
        replies.append(ctx.envelope.reply)
        return DEFERRED

    return Script(receive)


# ---------------------------------------------------------------------- the deadline
@both
async def test_an_ask_without_a_deadline_names_it() -> None:
    """It is mandatory, and cannot be given by position."""
    async with running() as system:
        ref = system.spawn(Echo(), "a")
        with pytest.raises(TypeError, match="timeout_s"):
            await ref.ask(1)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="timeout_s"):
            await ref.send(1)  # type: ignore[call-arg]


@both
async def test_asks_arrive_in_the_order_in_which_they_were_made() -> None:
    """However many there are at once: who has asked often enough to give way first does not come after the next one."""
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
@pytest.mark.parametrize("way", ["ask", "send"])
async def test_a_deadline_that_is_none_is_named(way: str, timeout_s: Any) -> None:
    """For ever is no deadline; nothing was sent."""
    async with running() as system:
        echo = Echo()
        ref = system.spawn(echo, "a")
        with pytest.raises(InvalidOption, match=r"'a': timeout_s is .*; give a finite number of seconds"):
            await getattr(ref, way)(1, timeout_s=timeout_s)
        await system.idle()
        assert echo.heard == []


@virtual
@pytest.mark.parametrize(("own", "asked", "expected"), [(10, 2, 2), (2, 10, 2), (5, 5, 5)])
async def test_an_async_handler_inherits_the_smaller_deadline(
    autojump_clock: trio.abc.Clock, own: float, asked: float, expected: float
) -> None:
    """What a handler asks on behalf of an asker takes no longer than that one waits."""
    took: list[float] = []

    async def pass_on(ctx: Context, message: Any) -> None:
        start = trio.current_time()
        try:
            await deaf.ask(message, timeout_s=own)
        except AskTimeout:
            took.append(trio.current_time() - start)
        except trio.Cancelled:
            took.append(trio.current_time() - start)
            raise

    async with running() as system:
        deaf = system.spawn(keeping([]), "deaf")
        with pytest.raises(AskTimeout) if asked <= own else anyio.CancelScope():
            await system.spawn(Async(pass_on), "a").ask("x", timeout_s=asked)
    assert took == pytest.approx([expected])


@virtual
async def test_a_task_inherits_the_deadline_of_the_ask_it_serves(autojump_clock: trio.abc.Clock) -> None:
    """Also over several hops; a task that serves no ask has only its own."""
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


@virtual
async def test_a_handler_of_a_tell_after_an_ask_has_its_own_deadline_only(autojump_clock: trio.abc.Clock) -> None:
    """The deadline of one message is not that of the next."""
    took: list[float] = []

    async def receive(ctx: Context, message: Any) -> Any:
        if message == "quick":
            return "done"
        with pytest.raises(AskTimeout) as caught:
            await deaf.ask(message, timeout_s=7)
        took.append(caught.value.timeout_s)
        return None

    async with running() as system:
        deaf = system.spawn(keeping([]), "deaf")
        ref = system.spawn(Async(receive), "a")
        assert await ref.ask("quick", timeout_s=1) == "done"
        ref.tell("slow")
        await trio.sleep(10)
    assert took == [7]


# ---------------------------------------------------------------------- one answer
@both
async def test_a_reply_is_one_shot() -> None:
    """The first answer counts; what comes then changes nothing, not even the count of late ones."""
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
    """An ask is a monitor: its asker hears of the end with the reason, however long it may wait."""

    async def serve(ctx: Context, message: Any) -> None:
        ctx.stop("enough")
        await anyio.sleep_forever()

    async with running() as system:
        for kind in (Async(serve), Async(never), keeping([])):
            ref = system.spawn(kind, "a")
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
    """It is still queued then, and passed over; it is no late reply and no dead letter."""
    async with running() as system:
        heard: list[Any] = []
        ref = system.spawn(note(heard), "a")
        await system.suspend("a", timeout_s=1)
        await give_up(partial(ref.ask, "x"), how)
        ref.tell("y")
        system.resume("a")
        await system.idle()
        assert (heard, ref.late_replies, system.dead_letters) == (["y"], 0, 0)
        assert (await system.stats("a", timeout_s=1)).handled == 1


@virtual
@pytest.mark.parametrize("how", ["cancelled", "timed out"])
async def test_an_async_handler_is_cancelled_with_its_asker(autojump_clock: trio.abc.Clock, how: str) -> None:
    """And with it whoever it asked in turn; the actors go on with their next message."""
    log: list[str] = []

    async def receive(ctx: Context, message: Any) -> Any:
        if message == "next":
            return "here"
        try:
            return await (ctx_next.ask(message, timeout_s=1000) if ctx.id == "a" else anyio.sleep_forever())
        finally:
            log.append(f"{ctx.id} ends")

    async with running() as system:
        ctx_next = system.spawn(Async(receive), "b")
        ref = system.spawn(Async(receive), "a")
        await give_up(partial(ref.ask, "x"), how)
        assert await ref.ask("next", timeout_s=1) == "here"
        assert await ctx_next.ask("next", timeout_s=1) == "here"
        assert sorted(log) == ["a ends", "b ends"]
        assert (system.crashes, system.dead_letters) == (0, 0)
        assert [system.waits.waits_of(one) for one in "ab"] == [(), ()]


@virtual
@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("how", ["cancelled", "timed out"])
async def test_the_tasks_of_a_deferred_answer_are_cancelled_with_its_asker(
    autojump_clock: trio.abc.Clock, how: str, kind: str
) -> None:
    """Those that were started while the ask was handled, and no others."""
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

    async def receive_async(ctx: Context, message: Any) -> Any:
        return receive(ctx, message)

    async with running() as system:
        ref = system.spawn(Script(receive) if kind == "plain" else Async(receive_async), "a")
        ref.tell("told")
        await blocked(system)
        await give_up(partial(ref.ask, "asked"), how)
        await anyio.wait_all_tasks_blocked()
        assert log == ["asked", "asked"]
        assert "a" in system
        assert ref.late_replies == 0


@virtual
@pytest.mark.parametrize("where", ["queued", "async handler", "task"])
@pytest.mark.parametrize("how", ["cancelled", "timed out"])
async def test_a_detached_ask_goes_on_without_its_asker(autojump_clock: trio.abc.Clock, how: str, where: str) -> None:
    """With detach=True the message is handled to its end, and its answer is a late reply."""
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

    async def handle(ctx: Context, message: Any) -> int:
        await go.wait()
        done.append("worked")
        return 1

    behaviour = {"queued": Script(lambda c, m: done.append("worked")), "async handler": Async(handle)}
    async with running() as system:
        ref = system.spawn(behaviour.get(where, Script(start)), "a")
        if where == "queued":
            await system.suspend("a", timeout_s=1)
        await give_up(partial(ref.ask, "x", detach=True), how)
        go.set()
        system.resume("a")
        await blocked(system)
        assert (done, ref.late_replies) == (["worked"], 1)


async def give_up(ask: Callable[..., Any], how: str) -> None:
    """Ask, and go without an answer."""
    if how == "timed out":
        with pytest.raises(AskTimeout):
            await ask(timeout_s=2)
        return
    async with anyio.create_task_group() as group:
        group.start_soon(partial(ask, timeout_s=1000))
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()


@both
async def test_a_stashed_ask_whose_asker_has_gone_is_not_handled() -> None:
    """Neither is its place in the stash kept for ever: it goes when the stash is opened."""
    heard: list[Any] = []

    def receive(ctx: Context, message: Any) -> Any:
        if message == "open":
            ctx.unstash_all()
            return "opened"
        if not heard:
            heard.append("stashed")
            ctx.stash()
            return None
        heard.append(message)
        return None

    async with running() as system:
        ref = system.spawn(Script(receive), "a")
        await give_up(partial(ref.ask, "x"), "cancelled")
        assert await ref.ask("open", timeout_s=1) == "opened"
        await system.idle()
        assert heard == ["stashed"]


# ---------------------------------------------------------------------- answered in place
@both
async def test_an_ask_never_overtakes_what_was_sent_before_it() -> None:
    """An idle actor answers at once; one that has work queued answers behind it, whatever the lane of that."""
    for lane in Lane:
        async with running() as system:
            echo = Echo()
            ref = system.spawn(echo, "a")
            ref.tell(1, lane=lane)
            assert await ref.ask(2, timeout_s=30) == 2
            assert await ref.ask(3, timeout_s=30) == 3
            assert echo.heard == [1, 2, 3]


@both
async def test_an_ask_never_overtakes_a_sender_that_waits_for_room() -> None:
    """There is room for it and nothing queued, but somebody was first."""
    async with running() as system:
        heard: list[Any] = []
        ref = system.spawn(note(heard), "a", capacity=1)
        await system.suspend("a", timeout_s=1)
        ref.tell(0)
        async with anyio.create_task_group() as group:
            group.start_soon(partial(ref.send, "first", timeout_s=1000))
            await anyio.wait_all_tasks_blocked()
            context = system.context("a")
            assert context is not None
            context.mailbox.take()  # type: ignore[attr-defined]
            system.resume("a")
            await ref.ask("second", timeout_s=1000)
        assert heard == ["first", "second"]


@both
@pytest.mark.parametrize("idle", [True, False], ids=["in place", "queued"])
async def test_a_crash_is_the_same_in_place(idle: bool) -> None:
    """The asker gets the error, the actor ends as crashed, and is reported once."""
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
    """DEFERRED, the stash, the envelope with its cause and port, the context: no behaviour can tell the difference."""
    seen: list[Any] = []

    def receive(ctx: Context, message: Any) -> Any:
        if message == "before":
            return None
        envelope = ctx.envelope
        assert envelope is not None
        assert envelope is ctx.envelope
        seen.append((message, envelope.message, envelope.cause, envelope.reply is not None))
        if message == "stash me" and seen.count(seen[-1]) == 1:
            ctx.stash()
            ctx.tell_self("unstash")
            return "ignored"
        if message == "unstash":
            ctx.unstash_all()
        if message == "defer":
            ctx.tell_self(envelope.reply)
            return DEFERRED
        if hasattr(message, "resolve"):
            message.resolve("later")
        return f"did {message}"

    async with running() as system:
        ref = system.spawn(Script(receive), "a")
        answers = []
        for message in ("plain", "defer", "stash me"):
            if not idle:
                ref.tell("before")
            answers.append(await ref.ask(message, timeout_s=30, cause="why"))
            await system.idle()
        assert answers == ["did plain", "later", "did stash me"]
        assert [one for one in seen if isinstance(one[0], str) and one[0] != "unstash"] == [
            ("plain", "plain", "why", True),
            ("defer", "defer", "why", True),
            ("stash me", "stash me", "why", True),
            ("stash me", "stash me", "why", True),
        ]
        assert (await system.stats("a", timeout_s=1)).stashed == 0


@both
@pytest.mark.parametrize("then", ["raises", "stops"])
async def test_an_ask_that_was_stashed_in_place_outlives_what_follows(then: str) -> None:
    """Its asker hears of the end, and does not wait for its deadline."""

    def receive(ctx: Context, message: Any) -> Any:
        ctx.stash()
        if then == "raises":
            raise ValueError("after the stash")
        ctx.stop("after the stash")

    async with running() as system:
        with pytest.raises(ActorStopped, match="after the stash"):
            await system.spawn(Script(receive), "a").ask("x", timeout_s=1000)


@both
async def test_a_loop_of_asks_does_not_starve_other_tasks() -> None:
    """Answers in place are charged: within a hundred of them everybody else has had the loop."""
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
    assert len(turns) >= 8


@both
async def test_a_refused_message_is_no_crash() -> None:
    """What an actor does not accept is the sender's error, however it is sent; a timer's is its setter's."""

    class Picky:
        accepts = (int, Down)

        def __init__(self) -> None:
            self.error = ""

        def receive(self, ctx: Context, message: Any) -> Any:
            if message == 1:
                try:
                    ctx.set_timer("t", 0, "a word")
                except WrongMessage as error:
                    return str(error)
            return message

    async with running() as system:
        ref = system.spawn(Picky(), "a")
        says = "actor 'a' does not take a str; it accepts: int, Down"
        with pytest.raises(WrongMessage, match=says):
            ref.tell("x")
        with pytest.raises(WrongMessage, match=says):
            await ref.send("x", timeout_s=1)
        with pytest.raises(WrongMessage, match=says):
            await ref.ask("x", timeout_s=1)
        assert await ref.ask(1, timeout_s=1) == says
        assert await ref.ask(2, timeout_s=1) == 2
        assert system.crashes == 0


@both
async def test_a_message_that_a_stop_interrupts_is_a_dead_letter() -> None:
    """What an async handler had in hand was not handled to its end; an ask says so to its asker instead."""
    async with running() as system:
        events: list[Any] = []
        system.on_event = events.append
        system.spawn(Async(never), "a").tell("x")
        await blocked(system)
        system.stop("a")
        await system.join("a")
        assert events == [DeadLetter("a", "x", "stopped")]
