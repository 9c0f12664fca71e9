"""Conformance: an actor with a plain ``receive`` and one with an ``async def receive`` mean the same.

Each behaviour is written once, as a plain function, and run as both kinds on both backends. The async kind gives up
the loop before and after each message, as real ones do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest
import trio
from anyio.lowlevel import checkpoint
from kernel_kit import Script, blocked, both, running, virtual

from actors import (
    DEFERRED,
    Actor,
    ActorCrashed,
    ActorStopped,
    AskTimeout,
    Coalesce,
    Context,
    Crashed,
    DeadLetter,
    Down,
    KernelEvent,
    Lane,
    Limits,
    MailboxFull,
    NameTaken,
    Normal,
    Shutdown,
    TaskFailed,
    WrongMessage,
)

Behaviour = Callable[[Context, Any], Any]
Make = Callable[[Behaviour], Actor]


class Owning:
    """The same behaviour in a task of its own."""

    def __init__(self, receive: Behaviour) -> None:
        self._receive = receive

    async def receive(self, ctx: Context, message: Any) -> Any:
        await checkpoint()
        answer = self._receive(ctx, message)
        if ctx.envelope is None or not isinstance(answer, Shutdown):
            await checkpoint()
        return answer


@pytest.fixture(params=[Script, Owning], ids=["plain", "async"])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


def hearing(log: list[Any]) -> Behaviour:
    return lambda ctx, message: log.append(message)


# ---------------------------------------------------------------------- order and lanes
@both
async def test_tells_of_one_sender_are_handled_in_order(make: Make) -> None:
    """A hundred messages, one after the other."""
    heard: list[Any] = []
    async with running() as system:
        ref = system.spawn(make(hearing(heard)), "a")
        for n in range(100):
            ref.tell(n)
        await blocked(system)
    assert heard == list(range(100))


@both
async def test_lanes_are_kept(make: Make) -> None:
    """CONTROL, then URGENT, then NORMAL; one NORMAL after 32 URGENT."""
    heard: list[Any] = []
    async with running() as system:
        ref = system.spawn(make(hearing(heard)), "a")
        await system.suspend("a", timeout_s=1)
        ref.tell("n")
        for n in range(40):
            ref.tell(n, lane=Lane.URGENT)
        ref.tell("c", lane=Lane.CONTROL)
        system.resume("a")
        await blocked(system)
    assert heard == ["c", *range(32), "n", *range(32, 40)]


@both
async def test_one_message_is_handled_at_a_time(make: Make) -> None:
    """Whoever tells and asks meanwhile, the next handler begins when the one before it has returned."""
    inside = most = 0

    def receive(ctx: Context, message: Any) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        inside -= 1

    async with running() as system:
        ref = system.spawn(make(receive), "a", capacity=5)
        async with anyio.create_task_group() as group:
            for n in range(30):
                group.start_soon(partial(ref.ask if n % 2 else ref.send, n, timeout_s=30))
        await blocked(system)
    assert (inside, most) == (0, 1)


# ---------------------------------------------------------------------- asks
@both
async def test_an_ask_is_answered(make: Make) -> None:
    """With what the handler returned, each asker with its own."""
    answers: dict[int, int] = {}
    async with running() as system:
        ref = system.spawn(make(lambda ctx, message: message * 2), "a")

        async def ask(n: int) -> None:
            answers[n] = await ref.ask(n, timeout_s=30)

        async with anyio.create_task_group() as group:
            for n in range(50):
                group.start_soon(ask, n)
    assert answers == {n: 2 * n for n in range(50)}


@virtual
async def test_an_answer_may_be_deferred_and_late(make: Make, autojump_clock: trio.abc.Clock) -> None:
    """It is settled by a later message; after the deadline it is counted and dropped."""
    replies: list[Any] = []

    def receive(ctx: Context, message: Any) -> Any:
        if message == "settle":
            replies.pop().resolve("settled")
            return None
        assert ctx.envelope is not None
        replies.append(ctx.envelope.reply)
        return DEFERRED

    async with running() as system:
        ref, got = system.spawn(make(receive), "a"), []

        async def ask() -> None:
            got.append(await ref.ask("x", timeout_s=5))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await blocked(system)
            ref.tell("settle")
        with pytest.raises(AskTimeout):
            await ref.ask("x", timeout_s=2)
        ref.tell("settle")
        await blocked(system)
        assert (got, ref.late_replies) == (["settled"], 1)


@both
async def test_an_ask_whose_asker_has_gone_is_not_handled(make: Make) -> None:
    """It is passed over, and counts neither as handled nor as late."""
    heard: list[Any] = []
    async with running() as system:
        ref = system.spawn(make(hearing(heard)), "a")
        await system.suspend("a", timeout_s=1)
        async with anyio.create_task_group() as group:
            group.start_soon(partial(ref.ask, "gone", timeout_s=1000))
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        ref.tell("here")
        system.resume("a")
        await blocked(system)
        assert heard == ["here"]
        assert (await system.stats("a", timeout_s=1)).handled == 1
        assert ref.late_replies == 0


@both
async def test_a_handler_sees_its_envelope(make: Make) -> None:
    """The message as it came, with its cause; between messages there is none."""
    causes: list[Any] = []

    def receive(ctx: Context, message: Any) -> None:
        assert ctx.envelope is not None
        causes.append((ctx.envelope.message, ctx.envelope.cause))

    async with running() as system:
        ref = system.spawn(make(receive), "a")
        ref.tell(1, cause="told")
        await ref.send(2, timeout_s=1)
        await ref.ask(3, timeout_s=30, cause="asked")
        context = system.context("a")
        assert context is not None
        assert context.envelope is None
    assert causes == [(1, "told"), (2, None), (3, "asked")]


# ---------------------------------------------------------------------- ends
@both
async def test_a_crash_is_that_actors_alone(make: Make) -> None:
    """Its ask gets the error, those behind it the end, its children are shut down, its neighbour lives."""
    boom = ValueError("boom")

    def receive(ctx: Context, message: Any) -> Any:
        if message == "spawn":
            ctx.spawn(make(receive), "child")
        if message == "boom":
            raise boom
        return message

    async with running() as system:
        events: list[KernelEvent] = []
        system.on_event = events.append
        downs: list[Down] = []
        ref, other = system.spawn(make(receive), "a"), system.spawn(make(receive), "other")
        await ref.ask("spawn", timeout_s=30)
        for actor_id in ("a", "child"):
            system.monitor(actor_id, downs.append)
        await system.suspend("a", timeout_s=1)
        got: list[Any] = []

        async def ask(message: Any) -> None:
            try:
                await ref.ask(message, timeout_s=1000)
            except Exception as error:
                got.append(error)

        async with anyio.create_task_group() as group:
            for message in ("boom", "behind"):
                group.start_soon(ask, message)
                await anyio.wait_all_tasks_blocked()
            ref.tell("unread")
            system.resume("a")
        await system.join("a")
        assert boom in got
        assert {type(one) for one in got} == {ValueError, ActorStopped}
        assert [(down.id, type(down.reason)) for down in downs] == [("child", Shutdown), ("a", Crashed)]
        assert events == [ActorCrashed("a", boom), DeadLetter("a", "unread")]
        assert await other.ask("there?", timeout_s=30) == "there?"


@both
async def test_a_tell_in_hand_at_a_crash_is_a_dead_letter(make: Make) -> None:
    """With its reason; whoever told it was not waiting to hear."""

    def receive(ctx: Context, message: Any) -> None:
        raise ValueError(message)

    async with running() as system:
        events: list[KernelEvent] = []
        system.on_event = events.append
        system.spawn(make(receive), "a").tell("x")
        await system.join("a")
        assert [one for one in events if isinstance(one, DeadLetter)] == [DeadLetter("a", "x", "crashed", 1)]


@both
@pytest.mark.parametrize(("how", "reason"), [("stop", Shutdown("said so")), ("exit", Normal())])
async def test_an_actor_ends_itself_and_still_answers(make: Make, how: str, reason: object) -> None:
    """The message during which it ends is answered; what is behind it is not handled."""
    heard: list[Any] = []

    def receive(ctx: Context, message: Any) -> Any:
        heard.append(message)
        if how == "stop":
            ctx.stop("said so")
        else:
            ctx.exit()
        return "bye"

    class Answering:
        async def receive(self, ctx: Context, message: Any) -> Any:
            return receive(ctx, message)

    async with running() as system:
        downs: list[Down] = []
        ref = system.spawn(Answering() if make is Owning else make(receive), "a")
        system.monitor("a", downs.append)
        await system.suspend("a", timeout_s=1)
        got: list[Any] = []

        async def ask() -> None:
            got.append(await ref.ask("x", timeout_s=30))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            ref.tell("behind")
            system.resume("a")
        await system.join("a")
        assert (got, heard, [down.reason for down in downs]) == (["bye"], ["x"], [reason])
        with pytest.raises(ActorStopped):
            ref.tell("more")


@both
async def test_hooks_of_a_life_run_once_and_in_order(make: Make) -> None:
    """started before the first message, stopped after the last, when the children have ended."""
    log: list[Any] = []

    def receive(ctx: Context, message: Any) -> None:
        log.append(message)

    actor: Any = make(receive)
    actor.started = lambda ctx: log.append("started")
    actor.stopped = lambda ctx, reason: log.append(f"stopped: {reason}")
    async with running() as system:
        system.spawn(actor, "a").tell("x")
        child: Any = make(receive)
        child.stopped = lambda ctx, reason: log.append("child stopped")
        system.spawn(child, "child", parent="a")
        await blocked(system)
        system.stop("a", "enough")
        await system.join("a")
    assert log == ["started", "x", "child stopped", "stopped: shut down (enough)"]


@both
async def test_unread_messages_of_a_stopped_actor_are_dead_letters(make: Make) -> None:
    """Each of them, and each once."""
    async with running() as system:
        ref = system.spawn(make(hearing([])), "a")
        await system.suspend("a", timeout_s=1)
        for n in range(5):
            ref.tell(n, lane=Lane(n % 3))
        system.stop("a")
        await system.join("a")
        assert system.dead_letters == 5


# ---------------------------------------------------------------------- bounds
@both
async def test_bounds_hold(make: Make) -> None:
    """Full is full; senders wait in order; a coalesced message replaces the queued one."""
    heard: list[Any] = []
    async with running() as system:
        ref = system.spawn(make(hearing(heard)), "a", limits=Limits(2, overflow=Coalesce(lambda m: m % 10 or None)))
        await system.suspend("a", timeout_s=1)
        for n in (1, 2, 11):
            ref.tell(n)
        with pytest.raises(MailboxFull):
            ref.tell(3)
        async with anyio.create_task_group() as group:
            for n in (10, 20, 30):
                group.start_soon(partial(ref.send, n, timeout_s=1000))
                await anyio.wait_all_tasks_blocked()
            system.resume("a")
        await blocked(system)
        assert heard == [11, 2, 10, 20, 30]
        assert system.dead_letters == 1


@both
async def test_accepts_is_checked_at_the_sender(make: Make) -> None:
    """And costs the actor nothing, not even a message."""
    actor: Any = make(hearing([]))
    actor.accepts = (int,)
    async with running() as system:
        ref = system.spawn(actor, "a")
        with pytest.raises(WrongMessage):
            ref.tell("x")
        with pytest.raises(WrongMessage):
            await ref.ask("x", timeout_s=1)
        await ref.ask(1, timeout_s=30)
        assert (await system.stats("a", timeout_s=1)).handled == 1


# ---------------------------------------------------------------------- timers and tasks
@virtual
async def test_timers(make: Make, autojump_clock: trio.abc.Clock) -> None:
    """They fire in order, a voided one is not heard, and they die with their actor."""
    heard: list[Any] = []

    def receive(ctx: Context, message: Any) -> None:
        heard.append((message, trio.current_time()))
        if message == "go":
            ctx.set_timer("a", 3, "late")
            ctx.set_timer("a", 2, "a")
            ctx.set_timer("b", 1, "b")
            ctx.set_timer("c", 1, "never")
            ctx.cancel_timer("c")
            ctx.set_timer("far", 100, "never")

    async with running() as system:
        system.spawn(make(receive), "a").tell("go")
        start = trio.current_time()
        await trio.sleep(5)
        system.stop("a")
        await system.join("a")
        assert [(word, at - start) for word, at in heard] == [("go", 0), ("b", 1), ("a", 2)]


@both
async def test_a_task_reports_and_its_failure_is_a_message(make: Make) -> None:
    """An error of a task is no crash: its actor decides."""
    heard: list[Any] = []

    async def good(ctx: Context) -> None:
        ctx.tell_self("done")

    async def bad() -> None:
        raise ValueError("bad")

    async def wrong(argument: int) -> None: ...

    def receive(ctx: Context, message: Any) -> None:
        heard.append(message)
        if message == "go":
            ctx.start_task(good, ctx)
            ctx.start_task(bad, name="bad")
            ctx.start_task(wrong, name="wrong")  # without its argument

    async with running() as system:
        system.spawn(make(receive), "a").tell("go")
        await blocked(system)
        failed = {one.name: type(one.error) for one in heard if isinstance(one, TaskFailed)}
        assert failed == {"bad": ValueError, "wrong": TypeError}
        assert "done" in heard
        assert "a" in system


@both
async def test_a_stop_cancels_the_tasks_and_waits_for_them(make: Make) -> None:
    """Nothing of an actor is left when it is gone."""
    log: list[str] = []

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await checkpoint()
            log.append("ended")

    async with running() as system:
        system.spawn(make(lambda ctx, message: ctx.start_task(work)), "a").tell("go")
        await blocked(system)
        system.monitor("a", lambda down: log.append("down"))
        system.stop("a")
        await system.join("a")
    assert log == ["ended", "down"]


# ---------------------------------------------------------------------- monitors, links, names, the stash
@both
async def test_monitors_and_links(make: Make) -> None:
    """One Down for each monitor; whoever is linked ends too, for that reason."""
    heard: list[Any] = []

    def receive(ctx: Context, message: Any) -> None:
        if message == "watch":
            ctx.monitor("b")
            ctx.demonitor(ctx.monitor("b"))
        elif message == "link":
            ctx.link("b")
        else:
            heard.append(message)

    async with running() as system:
        downs: list[Down] = []
        watcher, linked = system.spawn(make(receive), "watcher"), system.spawn(make(receive), "linked")
        system.spawn(make(receive), "b")
        system.monitor("linked", downs.append)
        watcher.tell("watch")
        linked.tell("link")
        await blocked(system)
        system.stop("b", "enough")
        await blocked(system)
        assert heard == [Down("b", Shutdown("enough"))]
        assert [str(down.reason) for down in downs] == ["linked to 'b', which shut down (enough)"]
        assert "watcher" in system


@both
async def test_names(make: Make) -> None:
    """Found while it lives, and free when it is gone."""

    def receive(ctx: Context, message: Any) -> Any:
        try:
            ctx.register("name")
        except NameTaken as error:
            return str(error)
        return "has it"

    async with running() as system:
        a, b = system.spawn(make(receive), "a"), system.spawn(make(receive), "b")
        assert await a.ask("x", timeout_s=30) == "has it"
        assert await b.ask("x", timeout_s=30) == "an actor with the name 'name' already exists"
        assert system.whereis("name") is a
        system.stop("a")
        await system.join("a")
        assert system.whereis("name") is None
        assert await b.ask("x", timeout_s=30) == "has it"


@both
async def test_the_stash(make: Make) -> None:
    """What is put aside is handled next, in its order, asks included; beyond the capacity it is an error."""
    heard: list[Any] = []
    open_now = False

    def receive(ctx: Context, message: Any) -> Any:
        nonlocal open_now
        if message == "open":
            open_now = True
            ctx.unstash_all()
        elif not open_now:
            try:
                ctx.stash()
            except MailboxFull as full:
                heard.append(str(full))
        else:
            heard.append(message)
            return f"did {message}"
        return None

    async with running() as system:
        ref, got = system.spawn(make(receive), "a", capacity=3), []

        async def ask() -> None:
            got.append(await ref.ask("ask", timeout_s=1000))

        async with anyio.create_task_group() as group:
            for n in (1, 2):
                await ref.send(n, timeout_s=30)
            await blocked(system)
            group.start_soon(ask)
            await blocked(system)
            ref.tell("too many")
            await blocked(system)
            ref.tell("open")
            ref.tell("last")
        await blocked(system)
        assert got == ["did ask"]
        assert heard[0].startswith("the mailbox of 'a' is full (3 stashed messages); unstash some")
        assert heard[1:] == [1, 2, "ask", "last"]


@virtual
async def test_a_timer_that_was_put_aside_is_handled_when_it_comes_back(
    make: Make, autojump_clock: trio.abc.Clock
) -> None:
    """It is done with its timer, and is a message like any other; a Down in the stash can still be taken back."""
    heard: list[Any] = []
    monitors: list[Any] = []

    def receive(ctx: Context, message: Any) -> None:
        if message == "go":
            ctx.set_timer("t", 1, "tick")
            monitors.extend([ctx.monitor("gone"), ctx.monitor("gone too")])
        elif message == "open":
            ctx.demonitor(monitors[0])
            heard.append("open")
            ctx.unstash_all()
        elif not heard:
            ctx.stash()
        else:
            heard.append(message)

    async with running() as system:
        ref = system.spawn(make(receive), "a")
        ref.tell("go")
        await trio.sleep(2)
        ref.tell("open")
        await blocked(system)
        assert heard == ["open", Down("gone too", None, 0), "tick"]


# ---------------------------------------------------------------------- looking, and taking turns
@both
async def test_suspend_and_resume(make: Make) -> None:
    """Nothing is handled meanwhile, everything after; a stop is heard all the same."""
    heard: list[Any] = []
    async with running() as system:
        ref = system.spawn(make(hearing(heard)), "a")
        ref.tell(0)
        await blocked(system)
        await system.suspend("a", timeout_s=1)
        ref.tell(1)
        ref.tell(2, lane=Lane.CONTROL)
        await blocked(system)
        assert heard == [0]
        assert await system.peek("a", timeout_s=1) == [2, 1]
        assert system.inspect("a").suspended
        system.resume("a")
        await blocked(system)
        assert heard == [0, 2, 1]
        await system.suspend("a", timeout_s=1)
        system.stop("a")
        await system.join("a")


@both
async def test_stats_and_trace(make: Make) -> None:
    """What was handled is counted and, where wanted, remembered."""
    async with running() as system:
        ref = system.spawn(make(lambda ctx, message: None), "a")
        system.trace("a")
        for message in (1, "two", 3.0):
            ref.tell(message)
        await blocked(system)
        assert [(what, kind) for _, what, kind in system.trace("a", on=False)] == [
            ("handled", "int"),
            ("handled", "str"),
            ("handled", "float"),
        ]
        ref.tell(4)
        await blocked(system)
        assert system.trace("a", on=False) == ()
        assert (await system.stats("a", timeout_s=1)).handled == 4


@both
async def test_a_flood_starves_nobody(make: Make) -> None:
    """An actor that never runs dry leaves the loop to tasks, and turns to others."""

    def flood(ctx: Context, message: Any) -> None:
        ctx.tell_self(message)

    async with running() as system:
        flooded = system.spawn(make(flood), "flooded")
        for n in range(100):
            flooded.tell(n)
        quiet = system.spawn(make(lambda ctx, message: message), "quiet")
        for n in range(50):
            assert await quiet.ask(n, timeout_s=30) == n
            await checkpoint()
        system.stop("flooded")
        await system.join("flooded")


@both
async def test_leaving_ends_all_in_order(make: Make) -> None:
    """The youngest first, with what it has in hand."""
    log: list[str] = []
    async with running() as system:
        for n in range(5):
            actor: Any = make(lambda ctx, message: None)
            actor.stopped = lambda ctx, reason: log.append(ctx.id)
            system.spawn(actor, str(n), parent=str(n - 1) if n else ".").tell("x")
    assert log == ["4", "3", "2", "1", "0"]
