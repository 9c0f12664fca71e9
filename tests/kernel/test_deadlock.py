"""Deadlock: a wait that could never end is refused as it begins, with its cycle; every other wait is let be."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

import anyio
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_kit import Echo, Script, blocked, both, running, virtual

from actors import DEFERRED, ActorSystem, AskTimeout, Context, DeadlockError, MailboxFull, Ref
from actors.waits import WaitGraph

Act = Callable[[Context], Awaitable[Any]]


class Acting:
    """Awaits what it is told to do."""

    async def receive(self, ctx: Context, act: Act) -> Any:
        return await act(ctx)


def asking(*path: Ref, timeout_s: float = 1000) -> Act:
    """Ask the first to ask the second to ask the third, and so on."""

    async def act(ctx: Context) -> Any:
        return await path[0].ask(asking(*path[1:], timeout_s=timeout_s), timeout_s=timeout_s) if path else ctx.id

    return act


def spawn(system: ActorSystem, *names: str, capacity: int = 256) -> list[Ref]:
    return [system.spawn(Acting(), name, capacity=capacity) for name in names]


async def refused(ask: Awaitable[Any]) -> tuple[str, ...]:
    """The cycle for which it was refused."""
    with pytest.raises(DeadlockError) as caught:
        await ask
    return caught.value.cycle


# ---------------------------------------------------------------------- asks
@both
async def test_asking_oneself_is_refused() -> None:
    """The shortest cycle: whoever handles a message cannot handle another one for it."""
    async with running() as system:
        (a,) = spawn(system, "a")
        assert await refused(a.ask(asking(a), timeout_s=1000)) == ("a", "a")


@both
@pytest.mark.parametrize("length", [2, 3, 10, 50])
async def test_a_cycle_of_asks_is_named(length: int) -> None:
    """At send time, from whoever would close it, all around; the message says what to do instead."""
    async with running() as system:
        refs = spawn(system, *map(str, range(length)))
        with pytest.raises(DeadlockError, match=r"would never end: .* tell instead of ask, or answer later") as caught:
            await refs[0].ask(asking(*refs[1:], refs[0]), timeout_s=1000)
        assert caught.value.cycle == (str(length - 1), *map(str, range(length)))


@both
async def test_two_that_ask_each_other_at_once_are_not_both_refused() -> None:
    """The one whose wait comes second is refused; when it has failed, nothing of it is left."""
    async with running() as system:
        a, b = spawn(system, "a", "b")
        errors: list[tuple[str, ...]] = []

        async def act(ctx: Context) -> str:
            await anyio.lowlevel.checkpoint()
            try:
                return await (b if ctx.id == "a" else a).ask(asking(), timeout_s=1000)
            except DeadlockError as error:
                errors.append(error.cycle)
                return "refused"

        async with anyio.create_task_group() as group:
            for ref in (a, b):
                group.start_soon(lambda ref: ref.ask(act, timeout_s=1000), ref)
        assert errors in ([("a", "b", "a")], [("b", "a", "b")])
        assert system.waits.waits_of("a") == system.waits.waits_of("b") == ()


@both
async def test_an_uncaught_deadlock_crashes_whoever_would_have_closed_it() -> None:
    """And its own asker gets the error, so that the cycle is undone from there."""
    async with running() as system:
        a, b, c = spawn(system, "a", "b", "c")
        assert await refused(a.ask(asking(b, c, a), timeout_s=1000)) == ("c", "a", "b", "c")
        assert system.crashes >= 1


# ---------------------------------------------------------------------- full mailboxes
@both
async def test_sending_to_ones_own_full_mailbox_is_refused() -> None:
    """Room could only come from the handler that waits for it. With room there is nothing to wait for."""
    async with running() as system:
        (a,) = spawn(system, "a", capacity=1)

        async def act(ctx: Context) -> Any:
            await ctx.ref.send(asking(), timeout_s=1000)
            return await refused(ctx.ref.send(asking(), timeout_s=1000))

        assert await a.ask(act, timeout_s=1000) == ("a", "a")


@both
@pytest.mark.parametrize("kinds", [("ask", "send"), ("send", "ask"), ("send", "send")])
async def test_a_cycle_may_be_of_asks_and_of_full_mailboxes(kinds: tuple[str, str]) -> None:
    """Who waits for room waits for the actor that would make it."""
    async with running() as system:
        a, b = spawn(system, "a", "b", capacity=1)

        def waiting(kind: str, target: Ref) -> Act:
            async def act(ctx: Context) -> Any:
                if kind == "send":
                    target.tell(asking())
                return await getattr(target, kind)(asking(), timeout_s=1000)

            return act

        cycles: list[tuple[str, ...]] = []

        async def first(ctx: Context) -> Any:
            return await waiting(kinds[0], b)(ctx)

        async def second(ctx: Context) -> Any:
            await let_go.wait()
            cycles.append(await refused(waiting(kinds[1], a)(ctx)))

        let_go = anyio.Event()
        b.tell(second)
        await blocked(system)
        a.tell(first)
        await blocked(system)
        let_go.set()
        await blocked(system)
        assert cycles == [("b", "a", "b")]
        assert system.crashes == 0


# ---------------------------------------------------------------------- no false alarms
@both
async def test_a_task_may_wait_for_whatever_it_likes() -> None:
    """Its actor reads on meanwhile: a task that asks its own actor is answered."""
    got: list[Any] = []

    async def ask_home(ctx: Context) -> None:
        got.append(await ctx.ref.ask(asking(), timeout_s=1000))

    async def act(ctx: Context) -> None:
        ctx.start_task(ask_home, ctx)

    async with running() as system:
        (a,) = spawn(system, "a")
        a.tell(act)
        await blocked(system)
        assert got == ["a"]


@both
async def test_a_plain_actor_breaks_a_chain_of_waits() -> None:
    """It waits for nobody: whoever it will answer later may be asked by its task meanwhile."""
    async with running() as system:
        (a,) = spawn(system, "a")

        async def ask_back(reply: Any) -> None:
            reply.resolve(await echo.ask("back", timeout_s=1000))

        def receive(ctx: Context, message: Any) -> Any:
            assert ctx.envelope is not None
            ctx.start_task(ask_back, ctx.envelope.reply)
            return DEFERRED

        async def act(ctx: Context) -> Any:
            return await plain.ask("x", timeout_s=1000)

        echo = system.spawn(Echo(), "echo")
        plain = system.spawn(Script(receive), "plain")
        assert await a.ask(act, timeout_s=1000) == "back"


@both
async def test_a_diamond_is_no_cycle() -> None:
    """Two ways to the same actor end there; it is asked twice and answers twice."""
    async with running() as system:
        a, b, c, d = spawn(system, "a", "b", "c", "d")
        got: list[str] = []

        async def act(ctx: Context) -> None:
            async def one(way: Ref) -> None:
                got.append(await way.ask(asking(d), timeout_s=1000))

            async with anyio.create_task_group() as group:
                group.start_soon(one, b)
                group.start_soon(one, c)

        await a.ask(act, timeout_s=1000)
        assert got == ["d", "d"]
        assert not system.waits._edges


# ---------------------------------------------------------------------- edges go
@virtual
@pytest.mark.parametrize("how", ["answer", "timeout", "cancel", "crash", "stop", "no room"])
async def test_an_edge_is_gone_with_its_wait(autojump_clock: trio.abc.Clock, how: str) -> None:
    """However a wait ends, the way back is free at once."""
    async with running() as system:
        a, b = spawn(system, "a", "b", capacity=1)
        let_go = anyio.Event()

        async def hold(ctx: Context) -> str:
            await let_go.wait()
            if how == "crash":
                raise ValueError
            return "held"

        async def wait(ctx: Context) -> None:
            if how == "no room":
                b.tell(asking())
                with pytest.raises(MailboxFull):
                    await b.send(asking(), timeout_s=2)
                return
            with anyio.CancelScope() as scope:
                if how == "cancel":
                    cancels.append(scope)
                try:
                    await b.ask(hold, timeout_s=2 if how == "timeout" else 1000)
                except Exception as error:
                    errors.append(type(error).__name__)

        cancels: list[anyio.CancelScope] = []
        errors: list[str] = []
        if how == "no room":
            b.tell(hold)
        await blocked(system)
        a.tell(wait)
        await blocked(system)
        assert system.waits.waits_of("a") == ("b",)
        assert system.inspect("a").waited_chain == ["a", "b"]
        match how:
            case "answer" | "crash":
                let_go.set()
            case "timeout" | "no room":
                await trio.sleep(3)
            case "cancel":
                cancels[0].cancel()
            case "stop":
                system.stop("b")
        await blocked(system)
        let_go.set()
        await blocked(system)
        assert not system.waits._edges
        expected = {"timeout": "AskTimeout", "crash": "ValueError", "stop": "ActorStopped"}
        assert errors == [name for one, name in expected.items() if one == how]
        if how not in ("crash", "stop"):
            assert await b.ask(asking(a), timeout_s=2) == "a"


@virtual
async def test_a_cycle_through_a_deferred_answer_is_bounded_by_its_deadline(autojump_clock: trio.abc.Clock) -> None:
    """Nobody can know who will settle a port that was kept: that is no alarm, and ends with the deadline."""
    async with running() as system:
        (a,) = spawn(system, "a")

        async def ask_back() -> None:
            await a.ask(asking(), timeout_s=1000)

        def receive(ctx: Context, message: Any) -> Any:
            ctx.start_task(ask_back)
            return DEFERRED

        plain = system.spawn(Script(receive), "plain")

        async def act(ctx: Context) -> Any:
            with pytest.raises(AskTimeout):
                await plain.ask("x", timeout_s=2)
            return "went on"

        assert await a.ask(act, timeout_s=1000) == "went on"


# ---------------------------------------------------------------------- against a model
def reachable(edges: list[tuple[int, int]], start: int, goal: int) -> bool:
    """By walking until nothing new is found."""
    seen = {start}
    while True:
        new = {there for here, there in edges if here in seen} - seen
        if not new:
            return goal in seen
        seen |= new


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.booleans()), max_size=40))
def test_any_history_of_waits_is_refused_exactly_where_a_cycle_would_close(
    history: list[tuple[int, int, bool]],
) -> None:
    """Waits come and go in any order; a cycle that is named is one: each step a wait, none of it twice."""
    graph = WaitGraph()
    drawn: list[tuple[int, int]] = []
    stacks: list[ExitStack] = []
    for waiter, target, ends in history:
        if ends and drawn:
            drawn.pop(waiter % len(drawn))
            stacks.pop(waiter % len(stacks)).close()
            continue
        stack = ExitStack()
        if not reachable(drawn, target, waiter):
            stack.enter_context(graph.waiting(str(waiter), str(target)))
            drawn.append((waiter, target))
            stacks.append(stack)
        else:
            with pytest.raises(DeadlockError) as caught:
                stack.enter_context(graph.waiting(str(waiter), str(target)))
            cycle = caught.value.cycle
            assert cycle[:2] == (str(waiter), str(target))
            assert cycle[-1] == str(waiter)
            assert len(set(cycle)) == len(cycle) - 1
            steps = {(str(here), str(there)) for here, there in [*drawn, (waiter, target)]}
            assert steps >= set(itertools.pairwise(cycle))
        for one in range(8):
            assert sorted(graph.waits_of(str(one))) == sorted(str(there) for here, there in drawn if here == one)
    while stacks:
        stacks.pop().close()
    assert graph._edges == {}
