"""Refs: ``tell`` never waits, ``ask`` waits for room and for the reply, and a ref to an ended actor raises at once."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import anyio
import pytest
import trio
from kernel_kit import Echo, Script, blocked, both, note, running, virtual

from actors import (
    DEFERRED,
    ActorStopped,
    ActorSystem,
    AskTimeout,
    Context,
    Lane,
    MailboxFull,
    Ref,
    Shutdown,
)
from actors.mailbox import Envelope, ReplyPort


class Keeper:
    """Actor that defers every reply and records the reply ports; the message ``stop`` stops it."""

    def __init__(self) -> None:
        self.replies: list[ReplyPort] = []

    def receive(self, ctx: Context, message: Any) -> Any:
        if message == "stop":
            ctx.stop("asked to")
        if ctx.envelope is not None and ctx.envelope.reply is not None:
            self.replies.append(ctx.envelope.reply)
        return DEFERRED


class Holder:
    """Actor that keeps its mailbox of one full by sending each message to itself again, until it is released."""

    def __init__(self) -> None:
        self.held = True
        self.heard: list[Any] = []

    def receive(self, ctx: Context, message: Any) -> Any:
        if message == "hold" and self.held:
            ctx.tell_self("hold")
        elif message != "hold":
            self.heard.append(message)
        return message


class Plug:
    """Task whose shielded clean-up lasts until the test releases it: its actor is stopping until then."""

    def __init__(self) -> None:
        self.running, self.let_go = anyio.Event(), anyio.Event()

    async def run(self) -> None:
        try:
            self.running.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await self.let_go.wait()


async def plugged(system: ActorSystem, actor_id: str) -> tuple[Ref, Plug]:
    """Start an actor that was requested to stop and cannot end before its plug is released."""
    plug, ref = Plug(), system.spawn(Keeper(), actor_id)
    context = system.context(actor_id)
    assert context is not None
    context.start_task(plug.run)
    await plug.running.wait()
    return ref, plug


# ---------------------------------------------------------------------- tell
@both
async def test_tell_is_handled_in_order() -> None:
    """An actor handles the messages of one sender in the order in which they were sent."""
    heard: list[int] = []
    async with running() as system:
        ref = system.spawn(note(heard), "a")
        for n in range(100):
            ref.tell(n)
        await system.idle()
    assert heard == list(range(100))


@both
async def test_tell_to_a_full_mailbox_raises_at_once() -> None:
    """``tell`` never waits: at capacity it raises an error, except on the CONTROL lane."""
    heard: list[int] = []
    async with running() as system:
        ref = system.spawn(note(heard), "a", capacity=2)
        ref.tell(1)
        ref.tell(2)
        with pytest.raises(MailboxFull, match="'a' is full"):
            ref.tell(3)
        ref.tell(0, lane=Lane.CONTROL)
        await system.idle()
    assert heard == [0, 1, 2]


@both
async def test_tell_to_the_dead_says_why() -> None:
    """A ref to an ended actor raises ``ActorStopped``, with the reason of the end."""
    async with running() as system:
        ref = system.spawn(Echo(), "a")
        system.stop("a", "not needed")
        with pytest.raises(ActorStopped, match=r"'a' has stopped: shut down \(not needed\)"):
            ref.tell(1)
        await system.join("a")
        with pytest.raises(ActorStopped) as caught:
            ref.tell(1, lane=Lane.CONTROL)
    assert (caught.value.actor_id, caught.value.reason) == ("a", Shutdown("not needed"))


@both
async def test_cause_travels_with_the_message() -> None:
    """``tell`` and ``ask`` put the cause on the envelope, where the actor reads it while it handles the message."""
    causes: list[Any] = []
    async with running() as system:
        ref = system.spawn(Script(lambda ctx, message: causes.append(ctx.envelope and ctx.envelope.cause)), "a")
        ref.tell(1, cause="told")
        await ref.ask(3, timeout_s=30, cause="asked")
        context = system.context("a")
        assert context is not None
        assert context.envelope is None
    assert causes == ["told", "asked"]


# ---------------------------------------------------------------------- room
@both
async def test_an_ask_waits_for_room() -> None:
    """With a full mailbox, askers continue as soon as there is room; no message is lost or overtaken."""
    heard: list[int] = []
    async with running() as system:
        ref = system.spawn(note(heard), "a", capacity=1)
        async with anyio.create_task_group() as group:
            ref.tell(-1)
            for n in range(50):
                group.start_soon(partial(ref.ask, n, timeout_s=30))
    assert heard[0] == -1
    assert sorted(heard) == [-1, *range(50)]


@virtual
async def test_an_ask_gives_up_in_time(autojump_clock: trio.abc.Clock) -> None:
    """An ask that finds no room within its timeout raises an error, and its message is never handled."""
    holder = Holder()
    async with running() as system:
        ref = system.spawn(holder, "a", capacity=1)
        context = system.context("a")
        assert context is not None
        start = trio.current_time()
        async with anyio.create_task_group() as group:
            ref.tell("hold")
            group.start_soon(_let_go_later, holder, 3.0, autojump_clock)
            with pytest.raises((MailboxFull, AskTimeout)):
                await ref.ask("x", timeout_s=2)
            assert trio.current_time() - start == pytest.approx(2, abs=0.05)
    assert holder.heard == []


async def _let_go_later(holder: Holder, after_s: float, clock: Any) -> None:
    """Release the holder after *after_s* seconds, and advance the clock by hand, since time does not pass by itself
    meanwhile."""
    until = trio.current_time() + after_s
    while trio.current_time() < until:
        clock.jump(0.01)
        await trio.lowlevel.checkpoint()
    holder.held = False


@both
async def test_an_asker_wakes_when_the_actor_stops() -> None:
    """An asker that waits for room fails as soon as the actor stops, not at its timeout."""
    async with running() as system:
        ref, errors = system.spawn(Holder(), "a", capacity=1), []

        async def send() -> None:
            with pytest.raises(ActorStopped) as caught:
                await ref.ask("x", timeout_s=1000)
            errors.append(caught.value.reason)

        async with anyio.create_task_group() as group:
            ref.tell("hold")
            group.start_soon(send)
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            system.stop("a", "enough")
    assert errors == [Shutdown("enough")]


# ---------------------------------------------------------------------- ask
@both
async def test_ask_returns_what_receive_returns() -> None:
    """The answer to an ask is the value that receive returned, None included."""
    async with running() as system:
        assert await system.spawn(Echo(), "a").ask({"k": 1}, timeout_s=30) == {"k": 1}
        assert await system.spawn(note([]), "b").ask(1, timeout_s=30) is None


@both
async def test_many_asks_get_each_their_own_answer() -> None:
    """Each of many concurrent asks receives its own reply."""
    answers: dict[int, int] = {}
    async with running() as system:
        ref = system.spawn(Echo(), "a", capacity=10)

        async def ask(n: int) -> None:
            answers[n] = await ref.ask(n, timeout_s=30)

        async with anyio.create_task_group() as group:
            for n in range(100):
                group.start_soon(ask, n)
    assert answers == {n: n for n in range(100)}


@virtual
async def test_ask_times_out(autojump_clock: trio.abc.Clock) -> None:
    """Without a reply the ask ends exactly at its deadline, and the error names the actor and the time."""
    async with running() as system:
        ref = system.spawn(Keeper(), "a")
        start = trio.current_time()
        with pytest.raises(AskTimeout, match=r"'a' did not answer within 2\.5 s"):
            await ref.ask("x", timeout_s=2.5)
        assert trio.current_time() - start == pytest.approx(2.5)


@virtual
@pytest.mark.parametrize("timeout_s", [0, -1])
async def test_ask_without_time_left_ends_at_once(autojump_clock: trio.abc.Clock, timeout_s: float) -> None:
    """An ask with no time left raises ``AskTimeout`` at once."""
    async with running() as system:
        start = trio.current_time()
        with pytest.raises(AskTimeout):
            await system.spawn(Keeper(), "a").ask("x", timeout_s=timeout_s)
        assert trio.current_time() == start


@virtual
async def test_deadlines_of_asks_are_independent(autojump_clock: trio.abc.Clock) -> None:
    """A shorter deadline that is set later fires first, and a reply cancels the deadline of its ask."""
    order: list[float] = []
    async with running() as system:
        keeper = Keeper()
        ref = system.spawn(keeper, "a")

        async def ask(timeout_s: float) -> None:
            with pytest.raises(AskTimeout):
                await ref.ask("x", timeout_s=timeout_s)
            order.append(timeout_s)

        async with anyio.create_task_group() as group:
            for timeout_s in (3.0, 1.0, 2.0):
                group.start_soon(ask, timeout_s)
                await anyio.wait_all_tasks_blocked()
        assert order == [1.0, 2.0, 3.0]


@virtual
async def test_a_late_reply_is_counted_and_dropped(autojump_clock: trio.abc.Clock) -> None:
    """A reply after the deadline changes only the count of late replies."""
    async with running() as system:
        keeper = Keeper()
        ref = system.spawn(keeper, "a")
        with pytest.raises(AskTimeout):
            await ref.ask("x", timeout_s=1)
        assert ref.late_replies == 0
        keeper.replies[0].resolve("too late")
        keeper.replies[0].resolve("and again")
        assert ref.late_replies == 1


@both
async def test_an_asker_that_was_cancelled_leaves_a_late_reply() -> None:
    """The caller's cancellation ends its ask at once; the reply that comes later is counted and dropped."""
    async with running() as system:
        keeper = Keeper()
        ref = system.spawn(keeper, "a")
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: ref.ask("x", timeout_s=30))
            await blocked(system)
            group.cancel_scope.cancel()
        keeper.replies[0].resolve(1)
        assert ref.late_replies == 1


@virtual
async def test_ask_of_a_full_mailbox_is_full_and_not_late(autojump_clock: trio.abc.Clock) -> None:
    """If there is no room within the timeout, the ask raises ``MailboxFull`` exactly after that time."""
    holder = Holder()
    async with running() as system:
        ref = system.spawn(holder, "a", capacity=1)
        start = trio.current_time()
        async with anyio.create_task_group() as group:
            ref.tell("hold")
            group.start_soon(_let_go_later, holder, 3.0, autojump_clock)
            with pytest.raises((MailboxFull, AskTimeout)):
                await ref.ask("x", timeout_s=2)
            assert trio.current_time() - start == pytest.approx(2, abs=0.05)
    assert holder.heard == []


@virtual
async def test_room_and_answer_share_one_deadline(autojump_clock: trio.abc.Clock) -> None:
    """Room and reply share one deadline: the time that an ask waited for room is not granted again."""
    async with running() as system:
        holder = Holder()
        ref = system.spawn(Script(lambda ctx, m: holder.receive(ctx, m) if m == "hold" else DEFERRED), "a", capacity=1)
        start = trio.current_time()
        async with anyio.create_task_group() as group:
            ref.tell("hold")
            group.start_soon(_let_go_later, holder, 1.5, autojump_clock)
            with pytest.raises(AskTimeout):
                await ref.ask("x", timeout_s=2)
        assert trio.current_time() - start == pytest.approx(2, abs=0.05)


@both
async def test_ask_of_the_dead_fails_at_once() -> None:
    """An ask to an actor that has stopped does not wait for its time-out."""
    async with running() as system:
        ref = system.spawn(Echo(), "a")
        system.stop("a")
        await system.join("a")
        with pytest.raises(ActorStopped):
            await ref.ask(1, timeout_s=1000)


@both
@pytest.mark.parametrize("stopper", ["itself", "another"])
async def test_the_death_of_the_target_answers_deferred_asks(stopper: str) -> None:
    """Deferred asks fail with the reason as soon as the target ends."""
    async with running() as system:
        ref = system.spawn(Keeper(), "a")
        reasons: list[object] = []

        async def ask() -> None:
            with pytest.raises(ActorStopped) as caught:
                await ref.ask("x", timeout_s=1000)
            reasons.append(caught.value.reason)

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            group.start_soon(ask)
            await blocked(system)
            if stopper == "itself":
                ref.tell("stop")
            else:
                system.stop("a", "asked to")
    assert reasons == [Shutdown("asked to")] * 2


@both
async def test_a_stop_answers_queued_asks_before_the_end() -> None:
    """An ask that is queued when the stop begins is not handled, and fails at once, not after the clean-up."""
    async with running() as system:
        ref, plug = await plugged(system, "a")

        async def ask() -> None:
            with pytest.raises(ActorStopped):
                await ref.ask("x", timeout_s=1000)
            assert "a" in system
            plug.let_go.set()

        async with anyio.create_task_group() as group:
            ref.tell("stop")
            group.start_soon(ask)
        await system.join("a")
        assert system.dead_letters == 0


@both
async def test_a_deferred_answer_may_come_from_a_task_that_is_being_cancelled() -> None:
    """While an actor stops, its task may still reply to a deferred ask: only the end of the actor fails the ask."""
    async with running() as system:
        keeper = Keeper()
        ref = system.spawn(keeper, "a")
        started = anyio.Event()

        async def settle() -> None:
            try:
                started.set()
                await anyio.sleep_forever()
            finally:
                keeper.replies[0].resolve("at the last moment")

        context = system.context("a")
        assert context is not None
        context.start_task(settle)
        await started.wait()
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await ref.ask("x", timeout_s=30))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await blocked(system)
            system.stop("a")
    assert answers == ["at the last moment"]


@both
async def test_an_actor_that_stops_in_receive_still_answers() -> None:
    """An ask during which the actor stops itself has its normal reply."""
    async with running() as system:
        ref = system.spawn(Script(lambda ctx, message: ctx.stop("done") or "bye"), "a")
        assert await ref.ask(1, timeout_s=30) == "bye"
        await system.join("a")


@both
async def test_a_deferred_answer_is_settled_by_a_later_message() -> None:
    """A deferred ask waits until its reply port receives a value or an error, for example in a later message."""
    async with running() as system:
        keeper = Keeper()
        ref = system.spawn(keeper, "a")
        answers: list[Any] = []

        async def ask(n: int) -> None:
            try:
                answers.append(await ref.ask(n, timeout_s=30))
            except ValueError as error:
                answers.append(str(error))

        async with anyio.create_task_group() as group:
            group.start_soon(ask, 1)
            await blocked(system)
            group.start_soon(ask, 2)
            await blocked(system)
            assert answers == []
            keeper.replies[1].resolve("two")
            await blocked(system)
            keeper.replies[0].fail(ValueError("one"))
        assert answers == ["two", "one"]


@both
async def test_an_answered_ask_is_no_late_reply_when_its_target_dies() -> None:
    """Deferred asks that have a reply, or were given up long ago, do not count as late at the end of the actor."""
    async with running() as system:
        keeper = Keeper()
        ref = system.spawn(keeper, "a")
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: ref.ask("x", timeout_s=30))
            group.start_soon(lambda: ref.ask("y", timeout_s=30))
            await blocked(system)
            keeper.replies[0].resolve(1)
            await blocked(system)
            group.cancel_scope.cancel()
        system.stop("a")
        await system.join("a")
        assert ref.late_replies == 0


@both
async def test_settled_asks_do_not_pile_up() -> None:
    """An actor that defers replies for ever stores only the asks whose askers still wait."""

    def defer(ctx: Context, message: Any) -> Any:
        assert ctx.envelope is not None
        assert ctx.envelope.reply is not None
        ctx.envelope.reply.resolve(message)
        return DEFERRED

    async with running() as system:
        ref = system.spawn(Script(defer), "a")
        for n in range(200):
            assert await ref.ask(n, timeout_s=30) == n
        kept = cast("list[Envelope]", cast(Any, system.context("a")).lazy.asks)
        assert len(kept) <= 2


@both
async def test_deadlines_of_answered_asks_do_not_pile_up() -> None:
    """After a thousand asks with replies, their deadlines are removed from the timers."""
    async with running() as system:
        ref = system.spawn(Echo(), "a")
        for n in range(1000):
            await ref.ask(n, timeout_s=1000)
        assert len(system.timers) <= 130


@both
async def test_a_control_ask_overtakes_a_full_mailbox() -> None:
    """An ask on the CONTROL lane is handled before the queued messages."""
    async with running() as system:
        echo = Echo()
        ref = system.spawn(echo, "a", capacity=100)
        for n in range(100):
            ref.tell(n)
        assert await ref.ask("now", timeout_s=30, lane=Lane.CONTROL) == "now"
        assert echo.heard[0] == "now"
