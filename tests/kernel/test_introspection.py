"""Looking at actors: between two messages where that can be, from outside where one is stuck, never in the way."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
import trio
from kernel_kit import Echo, Script, blocked, both, note, running, virtual

from actors import ActorSystem, AskTimeout, Context, InvalidOption, Lane, NoSuchActor, Ref


class Stuck:
    """Waits in its handler for whatever it is told to."""

    def __init__(self) -> None:
        self.handled = 0
        self.secret = "s3cret"

    def get_state(self) -> object:
        return {"handled": self.handled}

    async def receive(self, ctx: Context, message: Any) -> None:
        await self.wait_for(message)
        self.handled += 1

    async def wait_for(self, event: anyio.Event) -> None:
        await event.wait()


def looks(system: ActorSystem, actor_id: str, timeout_s: float) -> list[Any]:
    return [
        system.get_state(actor_id, timeout_s=timeout_s),
        system.stats(actor_id, timeout_s=timeout_s),
        system.peek(actor_id, timeout_s=timeout_s),
        system.suspend(actor_id, timeout_s=timeout_s),
    ]


# ---------------------------------------------------------------------- in-band
@both
async def test_a_state_is_what_get_state_says_or_the_attributes() -> None:
    """Whoever keeps a secret has a get_state that omits it; the copy is no way to change the actor."""
    async with running() as system:
        echo = Echo()
        system.spawn(echo, "a")
        system.spawn(Stuck(), "b")
        state = await system.get_state("a", timeout_s=1)
        assert state == {"heard": []}
        assert isinstance(state, dict)
        state.clear()
        assert echo.heard == []
        assert await system.get_state("b", timeout_s=1) == {"handled": 0}


@both
async def test_a_look_waits_for_the_handler_that_is_suspended() -> None:
    """It sees the actor between two messages, and before the next one is taken."""
    async with running() as system:
        ref, first, second = system.spawn(Stuck(), "a"), anyio.Event(), anyio.Event()
        ref.tell(first)
        ref.tell(second)
        await blocked(system)
        seen: list[Any] = []

        async def look() -> None:
            seen.append(await system.get_state("a", timeout_s=1000))

        async def peek() -> None:
            seen.append(len(await system.peek("a", timeout_s=1000)))

        async with anyio.create_task_group() as group:
            group.start_soon(look)
            await blocked(system)
            group.start_soon(peek)
            await blocked(system)
            assert seen == []
            first.set()
            await anyio.wait_all_tasks_blocked()
            assert sorted(seen, key=str) == [1, {"handled": 1}]
            second.set()


@virtual
async def test_a_look_at_a_stuck_actor_has_an_end(autojump_clock: trio.abc.Clock) -> None:
    """Each of them times out by itself and leaves nothing behind; one at the end of the actor sees that."""
    async with running() as system:
        ref, go = system.spawn(Stuck(), "a"), anyio.Event()
        ref.tell(go)
        await blocked(system)
        for n, look in enumerate(looks(system, "a", 2)):
            start = trio.current_time()
            with pytest.raises(AskTimeout, match="'a' did not answer within 2 s"):
                await look
            assert trio.current_time() - start == pytest.approx(2), n
        cell = system.cell("a")
        assert cell is not None
        assert cell.rare.between == []
        go.set()
        await blocked(system)
        assert not system.inspect("a").suspended
        assert await system.get_state("a", timeout_s=0) == {"handled": 1}


@both
async def test_a_look_at_the_end_of_an_actor_is_answered() -> None:
    """Whoever waits for a moment between two messages gets the last one."""
    async with running() as system:
        ref = system.spawn(Stuck(), "a")
        ref.tell(anyio.Event())
        await blocked(system)
        seen: list[Any] = []

        async def look() -> None:
            seen.append(await system.get_state("a", timeout_s=1000))

        async with anyio.create_task_group() as group:
            group.start_soon(look)
            await blocked(system)
            system.stop("a")
        assert seen == [{"handled": 0}]


@both
@pytest.mark.parametrize("busy", [True, False])
async def test_a_look_that_raises_is_the_lookers_error(busy: bool) -> None:
    """A get_state that fails harms nobody but whoever called for it."""

    class Shy(Stuck):
        def get_state(self) -> object:
            raise ValueError("shy")

    async with running() as system:
        ref, go = system.spawn(Shy(), "a"), anyio.Event()
        if busy:
            ref.tell(go)
            await blocked(system)

        async def look() -> None:
            with pytest.raises(ValueError, match="shy"):
                await system.get_state("a", timeout_s=1000)

        async with anyio.create_task_group() as group:
            group.start_soon(look)
            await blocked(system)
            go.set()
        await blocked(system)
        ref.tell(go)
        await blocked(system)
        assert (await system.stats("a", timeout_s=1)).handled == 1 + busy
        assert system.crashes == 0


@both
async def test_stats_count_what_there_is() -> None:
    """Messages by lane and in bytes, children, tasks, timers, the stash."""

    def receive(ctx: Context, message: Any) -> None:
        if message == "go":
            ctx.spawn(Echo(), "child")
            ctx.start_task(anyio.sleep_forever)
            ctx.set_timer("far", 1000, "tick")
        else:
            ctx.stash()

    async with running() as system:
        ref = system.spawn(Script(receive), "a")
        assert (await system.stats("a", timeout_s=1)).queued == {"control": 0, "urgent": 0, "normal": 0}
        ref.tell("go")
        ref.tell("stash")
        await blocked(system)
        await system.suspend("a", timeout_s=1)
        for n, lane in enumerate(Lane):
            for _ in range(n + 1):
                ref.tell("12345", lane=lane)
        stats = await system.stats("a", timeout_s=1)
        assert stats.queued == {"control": 1, "urgent": 2, "normal": 3}
        assert (stats.handled, stats.queued_bytes, stats.incarnation) == (2, 25, 1)
        assert (stats.children, stats.tasks, stats.timers, stats.stashed) == (1, 1, 1, 1)


@both
async def test_peek_takes_nothing() -> None:
    """The head of the mailbox, in the order of the lanes, as far as it is wanted."""
    async with running() as system:
        heard: list[Any] = []
        ref = system.spawn(note(heard), "a")
        await system.suspend("a", timeout_s=1)
        for n in range(20):
            ref.tell(n)
        ref.tell("control", lane=Lane.CONTROL)
        for _ in range(2):
            assert await system.peek("a", most=3, timeout_s=1) == ["control", 0, 1]
        assert await system.peek("a", most=0, timeout_s=1) == []
        assert len(await system.peek("a", timeout_s=1)) == 10
        system.resume("a")
        await system.idle()
        assert heard == ["control", *range(20)]


@both
async def test_a_trace_remembers_the_last_messages() -> None:
    """Asks in place included, with their time; turning it on twice keeps it, turning it off forgets it."""
    async with running() as system:
        ref = system.spawn(Echo(), "a")
        assert system.trace("a") == ()
        await ref.ask("x", timeout_s=1)
        for n in range(100):
            ref.tell(n)
        await system.idle()
        seen = system.trace("a")
        assert len(seen) == 64
        assert {kind for _, _, kind in seen} == {"int"}
        assert sorted(at for at, _, _ in seen) == [at for at, _, _ in seen]
        assert system.trace("a", on=False) == seen
        assert system.trace("a") == ()
        await ref.ask("x", timeout_s=1)
        assert [what for _, what, _ in system.trace("a")] == ["answered"]


@both
async def test_a_suspended_actor_answers_nothing_and_goes_on_where_it_was() -> None:
    """Suspending twice is once; resuming who is not suspended is nothing; asks wait until then."""
    async with running() as system:
        ref = system.spawn(Echo(), "a")
        system.resume("a")
        await system.suspend("a", timeout_s=1)
        await system.suspend("a", timeout_s=1)
        got: list[Any] = []

        async def ask() -> None:
            got.append(await ref.ask("x", timeout_s=1000))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await blocked(system)
            assert got == []
            system.resume("a")
        assert got == ["x"]


# ---------------------------------------------------------------------- out of band
@virtual
async def test_inspect_shows_where_a_stuck_actor_is(autojump_clock: trio.abc.Clock) -> None:
    """The message in hand and since when, the stack down to the await, the waits that follow from it."""

    class Asking:
        async def receive(self, ctx: Context, message: tuple[Ref | None, anyio.Event]) -> None:
            target, event = message
            await (self.ask_on(target, event) if target is not None else event.wait())

        async def ask_on(self, target: Ref, event: anyio.Event) -> None:
            following = {"a": system.ref("c"), "b": None}[target.id]
            await target.ask((following, event), timeout_s=20)

    async with running() as system:
        for actor_id in ("b", "a", "c"):
            system.spawn(Asking(), actor_id)
        a, b, event = system.ref("a"), system.ref("b"), anyio.Event()
        assert a is not None
        a.tell((b, event))
        await trio.sleep(3)
        seen = system.inspect("a")
        assert (seen.phase, seen.behaviour, seen.handling, seen.handling_s) == ("live", "Asking", "tuple", 3)
        assert (seen.waits_for, seen.waited_chain) == (("b",), ["a", "b"])
        (task,) = seen.tasks
        calls = [line.rsplit(" in ", 1)[1].rsplit(".", 1)[1] for line in task.stack if " in " in line]
        order = [calls.index(one) for one in ("run", "receive", "ask_on", "ask", "wait")]
        assert order == sorted(order)
        assert all("test_introspection.py:" in line for line in task.stack if "ask_on" in line)
        assert system.inspect("b").waits_for == ()
        event.set()
        await blocked(system)
        idle = system.inspect("a")
        assert (idle.handling, idle.handling_s, idle.waits_for, idle.waited_chain) == ("", 0, (), [])


@both
async def test_inspect_shows_why_an_actor_does_not_end() -> None:
    """While it stops: its reason, its scope's causes, and the task that cleans up."""
    go = anyio.Event()

    async def slow(ctx: Context) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with ctx.cleanup(20):
                await go.wait()

    async with running() as system:
        system.spawn(Script(lambda ctx, message: ctx.start_task(slow, ctx)), "a").tell("go")
        await blocked(system)
        system.stop("a", "enough")
        await blocked(system)
        seen = system.inspect("a")
        assert (seen.phase, seen.reason) == ("stopping", "shut down (enough)")
        assert seen.scope_causes == ["shut down (enough)"]
        assert [(task.cleaning, "slow" in task.stack[0]) for task in seen.tasks] == [(True, True)]
        go.set()
        await system.join("a")


@both
async def test_inspecting_a_thousand_changes_nothing() -> None:
    """A look builds nothing that an idle actor does without."""
    async with running() as system:
        for n in range(1000):
            system.spawn(Echo(), str(n))
        for n in range(1000):
            assert system.inspect(str(n)).stats.handled == 0
        cells = [system.cell(str(n)) for n in range(1000)]
        assert all(cell is not None and cell.box is None and cell.rare_or_none is None for cell in cells)


# ---------------------------------------------------------------------- bad input
@both
async def test_nobody_is_looked_at_by_a_named_error() -> None:
    """Whatever is wanted of an actor that is not there, the error names it."""
    async with running() as system:
        for look in looks(system, "nobody", 1):
            with pytest.raises(NoSuchActor, match="no living actor has the id 'nobody'"):
                await look
        for call in (system.resume, system.trace, system.inspect):
            with pytest.raises(NoSuchActor):
                call("nobody")


@both
@pytest.mark.parametrize("timeout_s", [None, float("nan"), float("inf"), "1"])
async def test_a_look_has_a_time_out_that_is_one(timeout_s: Any) -> None:
    """As an ask does."""
    async with running() as system:
        system.spawn(Echo(), "a")
        for look in looks(system, "a", timeout_s):
            with pytest.raises(InvalidOption, match=r"look at 'a': timeout_s is .*; give a finite number of seconds"):
                await look
        with pytest.raises(InvalidOption, match="peek at 'a': most is -1; give 0 messages or more"):
            await system.peek("a", most=-1, timeout_s=1)
