"""The tree of actors: unique ids, ends in order, crashes that stay local, and ends that are reported exactly once."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_kit import Echo, Script, both, note, running

from actors import (
    ActorCrashed,
    ActorStopped,
    ActorSystem,
    Context,
    Crashed,
    DeadLetter,
    Down,
    KernelEvent,
    Lane,
    NameTaken,
    Shutdown,
    open_system,
)


def grow(system: ActorSystem, *paths: str) -> list[str]:
    """Spawn each path under its prefix ('a.b.c' under 'a.b'), and monitor all; return the list that records the order
    of their ends."""
    ended: list[str] = []
    for path in paths:
        parent = path.rpartition(".")[0] or "."
        system.spawn(Echo(), path, parent=parent)
        system.monitor(path, lambda down: ended.append(down.id))
    return ended


# ---------------------------------------------------------------------- birth
@both
async def test_ids_are_unique_while_their_actor_lives() -> None:
    """A second actor with the same id is refused, also elsewhere in the tree; after the first one's end the id is free
    again."""
    async with running() as system:
        grow(system, "a", "b")
        for parent in (".", "b"):
            with pytest.raises(NameTaken, match="id 'a' already exists"):
                system.spawn(Echo(), "a", parent=parent)
        system.stop("a")
        await system.join("a")
        system.spawn(Echo(), "a", parent="b")
        assert system.children("b") == ("a",)


@both
async def test_the_root_is_nobody_elses_name() -> None:
    """An actor with the root's id is refused, and the root does not count as an actor."""
    async with running() as system:
        with pytest.raises(NameTaken):
            system.spawn(Echo(), ".")
        assert len(system) == 0


@both
async def test_nothing_is_born_under_a_parent_that_stops_or_is_gone() -> None:
    """A parent that is stopping, has ended or never existed is refused for a new child."""
    async with running() as system:
        grow(system, "a")
        system.stop("a", "enough")
        with pytest.raises(ActorStopped, match=r"'a' has stopped: shut down \(enough\)"):
            system.spawn(Echo(), "a.b", parent="a")
        await system.join("a")
        for parent in ("a", "never was"):
            with pytest.raises(ActorStopped, match=f"'{parent}' has stopped"):
                system.spawn(Echo(), "x", parent=parent)
        assert "x" not in system


@both
@pytest.mark.parametrize("home", ["sibling", "child of sibling", "gone"])
async def test_a_home_is_an_ancestor(home: str) -> None:
    """A home that is no ancestor, and could end before the actor, is refused."""
    async with running() as system:
        system.spawn(Echo(), "parent")
        system.spawn(Echo(), "sibling")
        system.spawn(Echo(), "child of sibling", parent="sibling")
        with pytest.raises((ValueError, ActorStopped), match=f"'{home}'"):
            system.spawn(Echo(), "x", parent="parent", home=home)
        assert "x" not in system
        assert system.children("parent") == ()


@both
async def test_an_actor_spawns_under_itself() -> None:
    """A spawn through the context makes a child of the actor, which the actor's ``children`` lists, oldest first."""
    async with running() as system:

        def receive(ctx: Context, message: str) -> Any:
            ctx.spawn(Echo(), message)
            return ctx.children

        ref = system.spawn(Script(receive), "a")
        assert await ref.ask("z", timeout_s=30) == ("z",)
        assert await ref.ask("b", timeout_s=30) == ("z", "b")
        assert system.children("a") == ("z", "b")
        assert (len(system), "z" in system, "y" in system) == (3, True, False)


# ---------------------------------------------------------------------- the end
@both
async def test_children_stop_in_reverse_order_and_before_their_parent() -> None:
    """The youngest child ends first, with all actors below it; the parent ends last."""
    async with running() as system:
        ended = grow(system, "a", "a.1", "a.2", "a.2.1", "a.2.2", "a.3")
        system.stop("a")
        await system.join("a")
    assert ended == ["a.3", "a.2.2", "a.2.1", "a.2", "a.1", "a"]


@both
async def test_a_parent_waits_for_a_child_that_takes_its_time() -> None:
    """An older child is not stopped before the younger one has ended, and handles messages until then."""
    async with running() as system:
        ended = grow(system, "a", "a.old", "a.young")
        cleaning, let_go = anyio.Event(), anyio.Event()

        async def clean_up() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    cleaning.set()
                    await let_go.wait()

        context = system.context("a.young")
        assert context is not None
        context.start_task(clean_up)
        await anyio.wait_all_tasks_blocked()
        system.stop("a")
        await cleaning.wait()
        old = system.ref("a.old")
        assert old is not None
        assert await old.ask("still there", timeout_s=30) == "still there"
        assert ended == []
        let_go.set()
        await system.join("a")
    assert ended == ["a.young", "a.old", "a"]


@both
async def test_join_returns_after_the_end_and_at_once_if_there_is_nobody() -> None:
    """``join`` waits for the actor and its children, and returns at once for an actor that is gone or never existed."""
    async with running() as system:
        ended = grow(system, "a", "a.1")
        joined: list[list[str]] = []

        async def join() -> None:
            await system.join("a")
            joined.append(list(ended))

        async with anyio.create_task_group() as group:
            group.start_soon(join)
            await anyio.wait_all_tasks_blocked()
            assert joined == []
            system.stop("a")
        assert joined == [["a.1", "a"]]
        await system.join("a")
        await system.join("never was")


@both
async def test_stopping_twice_keeps_the_first_reason() -> None:
    """A second stop changes nothing, and a stop of an unknown id is no error."""
    async with running() as system:
        grow(system, "a")
        downs: list[Down] = []
        system.monitor("a", downs.append)
        system.stop("a", "first")
        system.stop("a", "second")
        system.stop("never was")
        await system.join("a")
        system.stop("a", "third")
    assert downs == [Down("a", Shutdown("first"))]


@both
async def test_the_reason_of_a_stop_reaches_all_below() -> None:
    """Children of an actor that was stopped end for the same reason."""
    async with running() as system:
        grow(system, "a", "a.1", "a.1.1")
        downs: list[Down] = []
        system.monitor("a.1.1", downs.append)
        system.stop("a", "why")
        await system.join("a")
    assert downs == [Down("a.1.1", Shutdown("why"))]


@both
async def test_after_shut_down_the_system_is_empty_and_takes_nobody() -> None:
    """A system that was shut down has no actors, refuses new ones, and may be shut down again."""
    async with running() as system:
        ended = grow(system, "a", "b")
        await system.shut_down("enough")
        await system.shut_down("again")
        assert (len(system), ended) == (0, ["b", "a"])
        with pytest.raises(ActorStopped):
            system.spawn(Echo(), "c")


@settings(max_examples=40, deadline=None)
@given(parents=st.lists(st.integers(0, 10**6), min_size=1, max_size=60), stops=st.lists(st.integers(0, 10**6)))
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_any_tree_ends_bottom_up_and_right_to_left(backend: str, parents: list[int], stops: list[int]) -> None:
    """In any tree, whichever actors are stopped: no actor outlives its parent, and each end is reported exactly
    once."""
    family = {str(n): str(number % n) if n else "." for n, number in enumerate(parents)}
    ended: list[str] = []

    async def main() -> None:
        async with open_system() as system:
            for child, parent in family.items():
                system.spawn(Echo(), child, parent=parent)
                system.monitor(child, lambda down: ended.append(down.id))
            for number in stops:
                system.stop(str(number % len(parents)))

    anyio.run(main, backend=backend)
    assert sorted(ended) == sorted(family)
    for child, parent in family.items():
        assert parent == "." or ended.index(child) < ended.index(parent)
    if not stops:
        assert ended == list(post_order(family, "."))


def post_order(family: dict[str, str], root: str) -> list[str]:
    below = [one for child in reversed(list(family)) if family[child] == root for one in post_order(family, child)]
    return below if root == "." else [*below, root]


# ---------------------------------------------------------------------- monitors
@both
async def test_a_monitor_hears_exactly_once() -> None:
    """Two monitors receive one ``Down`` each, however the actor ended, when the id is free already."""
    async with running() as system:
        grow(system, "a")
        heard: list[tuple[str, Down, bool]] = []
        for who in ("one", "two"):
            system.monitor("a", lambda down, who=who: heard.append((who, down, "a" in system)))  # type: ignore[misc]
        system.stop("a", 1)
        system.stop("a", 2)
        await system.join("a")
    assert heard == [("one", Down("a", Shutdown(1)), False), ("two", Down("a", Shutdown(1)), False)]


@both
async def test_a_monitor_of_the_dead_hears_at_once() -> None:
    """Monitoring an actor that is gone sends ``Down`` at once, once, without a reason."""
    async with running() as system:
        grow(system, "a")
        system.stop("a")
        await system.join("a")
        downs: list[Down] = []
        system.monitor("a", downs.append)
        assert downs == [Down("a", None, 0)]
    assert downs == [Down("a", None, 0)]


# ---------------------------------------------------------------------- dead letters
@both
async def test_unread_messages_are_counted_and_reported() -> None:
    """Messages that are queued when an actor stops are reported in the order of the lanes, and counted."""
    async with running() as system:
        letters: list[tuple[str, Any]] = []

        def hear(event: KernelEvent) -> None:
            assert isinstance(event, DeadLetter)
            letters.append((event.actor_id, event.message))

        system.on_event = hear
        heard: list[Any] = []
        ref = system.spawn(note(heard), "a")
        ref.tell("n1")
        ref.tell("n2")
        ref.tell("c", lane=Lane.CONTROL)
        system.stop("a")
        await system.join("a")
        assert (heard, letters, system.dead_letters) == (
            [],
            [("a", "c"), ("a", "n1"), ("a", "n2")],
            3,
        )


@both
async def test_the_message_that_stops_is_read_and_those_behind_it_are_not() -> None:
    """After a stop inside ``receive``, the message being handled is completed, and the messages behind it are not
    handled."""
    async with running() as system:
        heard: list[int] = []

        def receive(ctx: Context, message: int) -> None:
            heard.append(message)
            if message == 2:
                ctx.stop()

        ref = system.spawn(Script(receive), "a")
        for n in range(5):
            ref.tell(n)
        await system.join("a")
        assert (heard, system.dead_letters) == ([0, 1, 2], 2)


# ---------------------------------------------------------------------- crashes
def fragile(ctx: Context, message: Any) -> Any:
    if isinstance(message, Exception):
        raise message
    return message


@both
async def test_an_exception_ends_that_actor_only() -> None:
    """Siblings and the parent of an actor that crashed continue; the reason of its end is ``Crashed`` with the
    error."""
    async with running() as system:
        grow(system, "p", "p.sibling")
        ref = system.spawn(Script(fragile), "p.a", parent="p")
        downs: list[Down] = []
        system.monitor("p.a", downs.append)
        events: list[KernelEvent] = []
        system.on_event = events.append
        error = ValueError("boom")
        ref.tell(error)
        await system.join("p.a")
        assert downs == [Down("p.a", Crashed(error), 1)]
        assert (system.crashes, events) == (1, [ActorCrashed("p.a", error), DeadLetter("p.a", error, "crashed")])
        for actor_id in ("p", "p.sibling"):
            other = system.ref(actor_id)
            assert other is not None
            assert await other.ask(1, timeout_s=30) == 1
        with pytest.raises(ActorStopped, match=r"crashed: ValueError\('boom'\)"):
            ref.tell(1)


@both
async def test_a_crash_fails_its_ask_with_the_error_and_the_others_with_the_end() -> None:
    """At a crash the asker of the message being handled gets the error itself; the askers of queued messages get
    ``ActorStopped``."""
    async with running() as system:
        ref = system.spawn(Script(fragile), "a")
        outcomes: list[BaseException] = []

        async def ask(message: Any) -> None:
            with pytest.raises((ValueError, ActorStopped)) as caught:
                await ref.ask(message, timeout_s=1000)
            outcomes.append(caught.value)

        error = ValueError("boom")
        ref.tell(1)
        async with anyio.create_task_group() as group:
            group.start_soon(ask, error)
            await anyio.lowlevel.checkpoint()
            group.start_soon(ask, 2)
    kinds = sorted(type(one).__name__ for one in outcomes)
    assert kinds == ["ActorStopped", "ValueError"]
    stopped = next(one for one in outcomes if isinstance(one, ActorStopped))
    assert stopped.reason == Crashed(error)


@both
async def test_children_of_a_crashed_actor_are_shut_down_in_order() -> None:
    """Children of a crashed actor end before it, with a shutdown as their reason and the crash as its cause."""
    async with running() as system:
        ref = system.spawn(Script(fragile), "a")
        downs: list[Down] = []
        for child in ("a.1", "a.2"):
            system.spawn(Echo(), child, parent="a")
        for actor_id in ("a", "a.1", "a.2"):
            system.monitor(actor_id, downs.append)
        error = ValueError("boom")
        ref.tell(error)
        await system.join("a")
    below = Shutdown(Crashed(error))
    assert downs == [Down("a.2", below), Down("a.1", below), Down("a", Crashed(error))]


def test_reasons_read_like_sentences() -> None:
    """Reasons of ends, converted to text, are short phrases for people."""
    assert str(Shutdown()) == "shut down"
    assert str(Shutdown("the plan ended")) == "shut down (the plan ended)"
    assert str(Shutdown(Crashed(ValueError("x")))) == "shut down (crashed: ValueError('x'))"
