"""The actor system: ends in order in every case, shares the event loop fairly, and is idle only if no actor has
work."""

from __future__ import annotations

import itertools
from contextvars import ContextVar
from typing import Any

import anyio
import pytest
import trio
from anyio.lowlevel import checkpoint
from kernel_kit import DEADLINE_S, Echo, Script, blocked, both, note, running, virtual

from actors import DEFERRED, ActorStopped, ActorSystem, Context, InvalidOption, Lane, Ref, open_system
from actors.dispatch import BATCH, BATCH_S, FRONT_RUN_MAX, QUANTUM


class Boom(Exception):
    """Error that only these tests raise."""


def populate(system: ActorSystem, log: list[str]) -> None:
    """Start three nested actors, each with a task that logs its end, after an await under a shield."""

    async def job(name: str) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await checkpoint()
                await checkpoint()
            log.append(f"task {name}")

    for name, parent in [("a", "."), ("b", "a"), ("c", "b")]:
        system.spawn(Echo(), name, parent=parent)
        system.monitor(name, lambda down: log.append(f"actor {down.id}"))
        context = system.context(name)
        assert context is not None
        context.start_task(job, name)


IN_ORDER = ["task c", "actor c", "task b", "actor b", "task a", "actor a"]


# ---------------------------------------------------------------------- leaving
@both
async def test_leaving_stops_everything_in_order() -> None:
    """When the block is left, every task and actor has ended, the youngest first."""
    log: list[str] = []
    async with running() as system:
        populate(system, log)
        await anyio.wait_all_tasks_blocked()
    assert log == IN_ORDER


@both
async def test_leaving_by_an_exception_stops_everything_in_order() -> None:
    """An error of the block ends the system in order and is raised as it is, not in a group."""
    log: list[str] = []
    boom = Boom("in the block")

    async def leave() -> None:
        async with running() as system:
            populate(system, log)
            await anyio.wait_all_tasks_blocked()
            raise boom

    with pytest.raises(Boom) as caught:
        await leave()
    assert caught.value is boom
    assert log == IN_ORDER


@both
async def test_leaving_by_an_exception_group_keeps_that_group() -> None:
    """An exception group that the block raised is raised as it is, not inside another group."""
    group = ExceptionGroup("two", [Boom("one"), Boom("two")])
    with pytest.raises(ExceptionGroup) as caught:
        async with running():
            raise group
    assert caught.value is group


@both
async def test_leaving_by_cancellation_stops_everything_in_order() -> None:
    """The caller's cancellation does not interrupt the end: finally blocks run, to their end."""
    log: list[str] = []
    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as group:
            ready = anyio.Event()

            async def host() -> None:
                async with open_system() as system:
                    populate(system, log)
                    await anyio.wait_all_tasks_blocked()
                    ready.set()
                    await anyio.sleep_forever()

            group.start_soon(host)
            await ready.wait()
            group.cancel_scope.cancel()
    assert log == IN_ORDER


@both
async def test_opening_under_cancellation_still_ends() -> None:
    """A system opened in a scope that is cancelled already opens, sees its block cancelled, and ends in order."""
    log: list[str] = []
    with anyio.fail_after(DEADLINE_S), anyio.CancelScope() as scope:
        scope.cancel()
        async with open_system() as system:
            populate(system, log)
            await checkpoint()
            log.append("not reached")
    assert log == IN_ORDER


@both
async def test_messages_told_before_leaving_become_dead_letters_or_are_read() -> None:
    """At the end of the system no message is lost: each was handled or is a dead letter."""
    heard: list[int] = []
    async with running() as system:
        ref = system.spawn(note(heard), "a", capacity=1000)
        for n in range(1000):
            ref.tell(n)
    assert len(heard) + system.dead_letters == 1000


@both
@pytest.mark.parametrize("hook", ["on a crash", "on a dead letter", "monitor"])
async def test_a_hook_that_raises_ends_the_system_loudly(hook: str) -> None:
    """If a hook raises, the error is raised, the block is cancelled, tasks end, and an ask from outside does not wait
    for ever."""
    log: list[str] = []

    def fail(*args: Any) -> None:
        raise Boom(hook)

    def receive(ctx: Context, message: Any) -> Any:
        if hook == "on a crash":
            raise ValueError
        ctx.stop()

    async def ask(deaf: Ref) -> None:
        with pytest.raises(ActorStopped):
            await deaf.ask("anything", timeout_s=1000)
        log.append("answered")

    async def host() -> None:
        async with open_system() as system:
            fatal = system.spawn(Script(receive), "fatal")
            if hook == "monitor":
                system.monitor("fatal", fail)
            else:
                system.on_event = fail
            populate(system, log)
            outside.start_soon(ask, system.spawn(Script(lambda ctx, message: DEFERRED), "deaf"))
            await blocked(system)
            fatal.tell("go")
            fatal.tell("unread")
            try:
                await anyio.sleep_forever()
            finally:
                log.append("broken" if system.broken else "whole")

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as outside:
            with pytest.raises(ExceptionGroup) as caught:
                await host()
    assert caught.group_contains(Boom, match=hook)
    told = sorted(line for line in log if not line.startswith("actor"))
    assert told == ["answered", "broken", "task a", "task b", "task c"]


@both
@pytest.mark.parametrize("where", ["task", "timer"])
async def test_a_hook_that_raises_outside_of_the_dispatcher_leaves_nobody_waiting(where: str) -> None:
    """If a task of the system raises, the dispatcher ends, too, and asks from outside still fail instead of waiting."""
    log: list[str] = []

    def fail(*args: Any) -> None:
        raise Boom(where)

    async def broken() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError

    async def ask(deaf: Ref) -> None:
        with pytest.raises(ActorStopped):
            await deaf.ask("anything", timeout_s=1000)
        log.append("answered")

    async def host() -> None:
        async with open_system() as system:
            system.spawn(Echo(), "a")
            context = system.context("a")
            assert context is not None
            for n in range(3):
                outside.start_soon(ask, system.spawn(Script(lambda ctx, message: DEFERRED), str(n)))
                system.monitor(str(n), fail)
            await blocked(system)
            system.on_event = fail
            if where == "task":
                context.start_task(broken)
                await blocked(system)
                system.stop("a")
            else:
                system.timers.set("a", None, 0, fail)
            await anyio.sleep_forever()

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as outside:
            with pytest.raises(ExceptionGroup) as caught:
                await host()
    assert caught.group_contains(Boom, match=where)
    assert log == ["answered"] * 3


# ---------------------------------------------------------------------- fairness
def flood(ctx: Context, message: Any) -> None:
    """Send each message to oneself again, until the message ``end``."""
    if message != "end":
        ctx.tell_self(message)
    else:
        ctx.stop()


@both
async def test_a_flooding_actor_does_not_starve_another() -> None:
    """Between two turns of an actor, each other actor handles at most one quantum of messages."""
    async with running() as system:
        order: list[str] = []

        def receive(ctx: Context, message: Any) -> None:
            order.append(ctx.id)
            if len(order) < 2000:
                ctx.tell_self(message)

        for actor_id in ("noisy", "also noisy"):
            ref = system.spawn(Script(receive), actor_id)
            for _ in range(200):
                ref.tell("x")
        system.spawn(Script(receive), "quiet").tell("x")
        await system.idle()
    turns = [n for n, actor_id in enumerate(order[:2000]) if actor_id == "quiet"]
    gaps = [later - earlier for earlier, later in itertools.pairwise(turns)]
    assert turns[0] <= 2 * QUANTUM
    assert max(gaps) <= 2 * QUANTUM + 1


@both
async def test_a_control_message_overtakes_a_flood_of_others() -> None:
    """With a hundred busy actors queued, an actor with a CONTROL message is next; two such actors keep their order."""
    async with running() as system:
        order: list[str] = []
        script = Script(lambda ctx, message: order.append(f"{ctx.id} {message}"))
        refs = [system.spawn(script, str(n)) for n in range(100)]
        for ref in refs:
            ref.tell("work")
        refs[50].tell("control", lane=Lane.CONTROL)
        refs[70].tell("control", lane=Lane.CONTROL)
        await system.idle()
    assert order[:4] == ["50 control", "50 work", "70 control", "70 work"]
    assert len(order) == 102


@both
async def test_a_flood_of_control_leaves_the_others_one_turn_in_a_run() -> None:
    """Two actors flooded with CONTROL messages have a run of turns, then a third actor has one turn, and so on."""
    async with running() as system:
        order: list[str] = []

        def receive(ctx: Context, message: Any) -> None:
            order.append("quiet" if ctx.id == "quiet" else "busy")
            if len(order) < 5000:
                ctx.tell_self(message, lane=Lane.NORMAL if ctx.id == "quiet" else Lane.CONTROL)

        for actor_id in ("one", "two"):
            system.spawn(Script(receive), actor_id).tell("x", lane=Lane.CONTROL)
        system.spawn(Script(receive), "quiet").tell("x")
        await system.idle()
    runs = [(who, len(list(run))) for who, run in itertools.groupby(order[:4000])][:-1]
    assert runs[:4] == [("busy", FRONT_RUN_MAX * QUANTUM), ("quiet", QUANTUM)] * 2
    assert set(runs) == set(runs[:2])


@both
async def test_tasks_get_the_loop_within_a_batch() -> None:
    """Under a flood a task runs again after a batch of messages, or two where the backend shuffles its tasks."""
    async with running() as system:
        handled, seen = [0], [0]

        def receive(ctx: Context, message: Any) -> None:
            handled[0] += 1
            flood(ctx, message)

        ref = system.spawn(Script(receive), "a")
        for _ in range(100):
            ref.tell("x")
        for _ in range(20):
            await checkpoint()
            seen.append(handled[0])
        ref.tell("end", lane=Lane.CONTROL)
        await system.join("a")
    assert max(later - earlier for earlier, later in itertools.pairwise(seen)) <= 2 * (BATCH + QUANTUM)
    assert seen[-1] > 5 * BATCH


@virtual
async def test_tasks_get_the_loop_when_messages_are_slow(autojump_clock: trio.testing.MockClock) -> None:
    """If handling takes time, the dispatcher yields to the event loop by the clock, long before the batch is full."""
    async with running() as system:
        handled, seen = [0], [0]

        def receive(ctx: Context, message: Any) -> None:
            handled[0] += 1
            autojump_clock.jump(BATCH_S / 2)
            flood(ctx, message)

        ref = system.spawn(Script(receive), "a")
        for _ in range(100):
            ref.tell("x")
        for _ in range(20):
            await checkpoint()
            seen.append(handled[0])
        ref.tell("end", lane=Lane.CONTROL)
        await system.join("a")
    assert max(later - earlier for earlier, later in itertools.pairwise(seen)) <= 2 * QUANTUM
    assert seen[-1] > 5 * QUANTUM


@both
async def test_tasks_get_the_loop_while_thousands_stop() -> None:
    """While a large tree ends, a task runs again after a batch of ends, or two."""
    async with running() as system:
        for n in range(3000):
            system.spawn(Echo(), str(n))
        system.stop(".")
        seen = [len(system)]
        while len(system):
            await checkpoint()
            seen.append(len(system))
    assert max(earlier - later for earlier, later in itertools.pairwise(seen)) <= 2 * (BATCH + QUANTUM)


@both
async def test_messages_are_handled_while_thousands_stop() -> None:
    """An ask has its reply while a large tree is still ending."""
    async with running() as system:
        system.spawn(Echo(), "big")
        for n in range(3000):
            system.spawn(Echo(), str(n), parent="big")
        ref = system.spawn(Echo(), "alive")
        system.stop("big")
        assert await ref.ask("there?", timeout_s=DEADLINE_S) == "there?"
        assert "big" in system
        await system.join("big")


@both
async def test_all_control_messages_of_an_actor_go_ahead_of_others() -> None:
    """All CONTROL messages of an actor go ahead of other actors, also those beyond the quantum of one turn."""
    async with running() as system:
        order: list[str] = []
        n_messages = 5 * QUANTUM
        script = Script(lambda ctx, message: order.append(ctx.id))
        refs = [system.spawn(script, str(n)) for n in range(50)]
        for ref in refs:
            ref.tell("work")
        for _ in range(n_messages):
            refs[40].tell("control", lane=Lane.CONTROL)
        await system.idle()
    assert order[:n_messages] == ["40"] * n_messages
    assert len(order) == n_messages + 50


# ---------------------------------------------------------------------- one handler is nobody else's
VAR: ContextVar[str] = ContextVar("var", default="nothing")


@both
async def test_context_variables_of_a_handler_are_its_own() -> None:
    """A context variable that a handler sets is not visible to other actors, askers or hooks, nor in the actor's own
    next turn."""
    async with running() as system:
        seen: list[str] = []

        class Setting:
            def receive(self, ctx: Context, message: Any) -> str:
                was = VAR.get()
                VAR.set(f"set by {ctx.id}")
                return was

            def stopped(self, ctx: Context, reason: object) -> None:
                seen.append(VAR.get())
                VAR.set("set at its end")

        a, b = system.spawn(Setting(), "a"), system.spawn(Setting(), "b")
        for way in ("in place", "queued"):
            for ref in (a, b, a, b):
                if way == "queued":
                    ref.tell("before")
                    await system.idle()
                    ref.tell("and its turn is over", lane=Lane.CONTROL)
                    await system.idle()
                assert await ref.ask("x", timeout_s=30) == "nothing"
                assert VAR.get() == "nothing"
        for actor_id in "ab":
            system.stop(actor_id)
            await system.join(actor_id)
        assert seen == ["nothing", "nothing"]


@both
@pytest.mark.parametrize("idle", [True, False], ids=["in place", "queued"])
async def test_a_handler_sees_what_the_opener_of_the_system_has_set(idle: bool) -> None:
    """A handler sees the context variables of the code that opened the system, not those of its asker, also if the ask
    is handled in place."""
    token = VAR.set("by the opener")
    try:
        async with running() as system:
            VAR.set("by the asker")
            seen: list[str] = []

            async def task() -> None:
                seen.append(VAR.get())

            def receive(ctx: Context, message: Any) -> str:
                ctx.start_task(task)
                return VAR.get()

            ref = system.spawn(Script(receive), "a")
            if not idle:
                ref.tell("before")
            assert await ref.ask("x", timeout_s=30) == "by the opener"
            await blocked(system)
            assert set(seen) == {"by the opener"}
    finally:
        VAR.reset(token)


@both
async def test_errors_of_handlers_in_one_batch_are_each_their_own() -> None:
    """In one batch every second of a hundred actors crashes with its own error; the others handle all of their
    messages."""
    async with running() as system:
        heard: list[str] = []

        def receive(ctx: Context, message: Any) -> None:
            if int(ctx.id) % 2:
                raise Boom(ctx.id)
            heard.append(ctx.id)

        for n in range(100):
            ref = system.spawn(Script(receive), str(n))
            for _ in range(3):
                ref.tell("x")
        await system.idle()
        assert (system.crashes, len(system), len(heard)) == (50, 50, 150)
        assert system.dead_letters == 50 * 3


# ---------------------------------------------------------------------- idle
@both
async def test_idle_is_true_idle() -> None:
    """``idle`` returns only after the last message that follows from the first, however far it was passed on."""
    async with running() as system:
        reached: list[int] = []

        def receive(ctx: Context, hops: int) -> None:
            reached.append(hops)
            if hops:
                following = system.ref(str((int(ctx.id) + 1) % 10))
                assert following is not None
                following.tell(hops - 1, lane=Lane(hops % 3))

        for n in range(10):
            system.spawn(Script(receive), str(n))
        first = system.ref("0")
        assert first is not None
        first.tell(3000)
        await system.idle()
        assert reached == list(range(3000, -1, -1))


@both
async def test_idle_waits_for_ends() -> None:
    """When ``idle`` returns, a stop that was begun, and needs no task to end, is complete."""
    async with running() as system:
        for n in range(1000):
            system.spawn(Echo(), str(n), parent=str(n - 1) if n else ".")
        system.stop("0")
        await system.idle()
        assert len(system) == 0


@both
async def test_idle_gives_up_the_loop_even_if_nothing_is_to_do() -> None:
    """A loop that polls ``idle`` lets the tasks run that it waits for."""
    async with running() as system:
        done: list[int] = []

        async def work() -> None:
            await checkpoint()
            done.append(1)

        async with anyio.create_task_group() as group:
            group.start_soon(work)
            for _ in range(1000):
                if done:
                    break
                await system.idle()
            assert done == [1]


@both
async def test_idle_ignores_whoever_only_waits() -> None:
    """A task that waits and a timer that is far off do not keep the system from being idle."""
    async with running() as system:
        system.spawn(Echo(), "a")
        context = system.context("a")
        assert context is not None
        context.start_task(anyio.sleep_forever)
        context.set_timer("far", 10_000, "tick")
        await system.idle()


@both
async def test_a_coroutine_function_is_no_receive() -> None:
    """An actor with an ``async def receive`` is refused, and nothing is started; code that awaits belongs in a task."""

    class Waiting:
        async def receive(self, ctx: Context, message: Any) -> None:
            await checkpoint()

    async with running() as system:
        with pytest.raises(InvalidOption, match="make it a plain function, and start a task for what awaits"):
            system.spawn(Waiting(), "waiting")
        assert len(system) == 0
