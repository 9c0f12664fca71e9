"""Monitors, links, names, labels: who hears of whose end, who shares it, and what nobody finds any more by then."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_kit import Echo, Script, blocked, both, note, running

from actors import (
    ActorStopped,
    ActorSystem,
    Context,
    Crashed,
    Down,
    Linked,
    NameTaken,
    Normal,
    NoSuchActor,
    Shutdown,
    open_system,
)


def context_of(system: ActorSystem, actor_id: str) -> Context:
    context = system.context(actor_id)
    assert context is not None
    return context


def watchers_of(system: ActorSystem, actor_id: str) -> int:
    cell = system.cell(actor_id)
    assert cell is not None
    return len(cell.rare.watchers) + len(cell.rare.hears_restarts)


# ---------------------------------------------------------------------- monitors
@both
async def test_each_monitor_hears_exactly_one_down() -> None:
    """Two of one watcher are two messages; a stop that is repeated is none more."""
    heard: list[Any] = []
    async with running() as system:
        system.spawn(note(heard), "watcher")
        system.spawn(Echo(), "a")
        watcher = context_of(system, "watcher")
        watcher.monitor("a")
        watcher.monitor("a", watch_restarts=True)
        for _ in range(3):
            system.stop("a", "enough")
        await system.join("a")
        system.stop("a")
        await system.idle()
        assert heard == [Down("a", Shutdown("enough"))] * 2
        watcher.monitor("a")
        await system.idle()
        assert heard[2:] == [Down("a", None, 0)]


@both
@pytest.mark.parametrize("when", ["before the end", "while the Down is queued"])
async def test_a_monitor_that_was_taken_back_is_not_heard(when: str) -> None:
    """Not even where its Down is in the mailbox already; the others are."""
    heard: list[Any] = []
    async with running() as system:
        system.spawn(note(heard), "watcher")
        system.spawn(Echo(), "a")
        watcher = context_of(system, "watcher")
        taken_back, kept = watcher.monitor("a"), watcher.monitor("a")
        assert kept.live
        await system.suspend("watcher", timeout_s=1)
        if when == "before the end":
            watcher.demonitor(taken_back)
        system.stop("a")
        await system.join("a")
        watcher.demonitor(taken_back)
        watcher.demonitor(taken_back)
        system.resume("watcher")
        await system.idle()
        assert len(heard) == 1
        assert (await system.stats("watcher", timeout_s=1)).handled == 1


@both
async def test_nothing_is_left_at_the_target_of_a_monitor_that_is_over() -> None:
    """Whether it was taken back, its owner has ended, or a join was cancelled: who lives long is not burdened."""
    async with running() as system:
        system.spawn(Echo(), "long")
        system.spawn(Echo(), "watcher")
        watcher = context_of(system, "watcher")
        for restarts in (True, False):
            for _ in range(10):
                watcher.demonitor(watcher.monitor("long", watch_restarts=restarts))
        assert watchers_of(system, "long") == 0
        watcher.monitor("long", watch_restarts=True)
        watcher.monitor("long")
        assert watchers_of(system, "long") == 3
        system.stop("watcher")
        await system.join("watcher")
        assert watchers_of(system, "long") == 0
        async with anyio.create_task_group() as group:
            group.start_soon(system.join, "long")
            await anyio.wait_all_tasks_blocked()
            assert watchers_of(system, "long") == 1
            group.cancel_scope.cancel()
        assert watchers_of(system, "long") == 0


@both
async def test_one_watcher_may_be_told_twice() -> None:
    """The same function, given twice, is two monitors."""
    heard: list[Down] = []
    async with running() as system:
        system.spawn(Echo(), "a")
        system.monitor("a", heard.append)
        system.monitor("a", heard.append)
        system.stop("a")
        await system.join("a")
        assert len(heard) == 2


@both
async def test_actors_that_monitor_each_other_end_in_peace() -> None:
    """Whoever ends first is heard; the other way round there is nobody left to hear."""
    heard: list[Any] = []
    async with running() as system:
        for one, other in (("a", "b"), ("b", "a")):
            if other not in system:
                system.spawn(note(heard), other)
            if one not in system:
                system.spawn(note(heard), one)
            context_of(system, one).monitor(other)
        system.stop("a")
        await system.join("a")
        await system.idle()
        system.stop("b")
        await system.join("b")
        assert heard == [Down("a", Shutdown())]


# ---------------------------------------------------------------------- links
@both
@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.parametrize("how", ["stop", "crash", "exit"])
async def test_a_link_is_one_fate_both_ways(first: str, how: str) -> None:
    """Whichever of the two ends first, unless it is done, ends the other with the reason."""

    def receive(ctx: Context, message: Any) -> None:
        match message:
            case "stop":
                ctx.stop("enough")
            case "crash":
                raise ValueError
            case "exit":
                ctx.exit()

    async with running() as system:
        downs: dict[str, object] = {}
        for actor_id in "ab":
            system.spawn(Script(receive), actor_id)
            system.monitor(actor_id, lambda down: downs.update({down.id: down.reason}))
        context_of(system, "a").link("b")
        ref, other = system.ref(first), "ab".replace(first, "")
        assert ref is not None
        ref.tell(how)
        await blocked(system)
        reasons = {"stop": Shutdown, "crash": Crashed, "exit": Normal}
        assert isinstance(downs[first], reasons[how])
        if how == "exit":
            assert other in system
            assert system.inspect(other).links == []
        else:
            assert downs[other] == Linked(first, downs[first])


@both
async def test_a_chain_of_links_ends_as_one() -> None:
    """Linked to linked: the reason says how far it is and who was first; a thousand of them are no recursion."""
    async with running() as system:
        reasons: list[str] = []
        for n in range(1000):
            system.spawn(Echo(), str(n))
            system.monitor(str(n), lambda down: reasons.append(str(down.reason)))
            if n:
                context_of(system, str(n)).link(str(n - 1))
        system.stop("0", "x")
        await blocked(system)
        assert len(system) == 0
        assert reasons[1] == "linked to '0', which shut down (x)"
        assert reasons[2] == "linked to '1', and by 1 more to '0', which shut down (x)"


@both
async def test_a_link_can_be_taken_back_and_is_one_however_often_it_is_made() -> None:
    """From either side; oneself is no partner."""
    async with running() as system:
        system.spawn(Echo(), "a")
        system.spawn(Echo(), "b")
        a, b = context_of(system, "a"), context_of(system, "b")
        a.link("a")
        a.link("b")
        b.link("a")
        assert (system.inspect("a").links, system.inspect("b").links) == (["b"], ["a"])
        b.unlink("a")
        b.unlink("a")
        assert (system.inspect("a").links, system.inspect("b").links) == ([], [])
        system.stop("a")
        await system.join("a")
        assert "b" in system
        with pytest.raises(NoSuchActor, match="no living actor has the id 'a'"):
            b.link("a")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans()), max_size=12),
    st.integers(0, 5),
    st.booleans(),
)
def test_any_graph_of_links_ends_by_its_components(links: list[tuple[int, int, bool]], first: int, done: bool) -> None:
    """Exactly those end that are linked, over however many steps, to one that ended other than by being done."""
    graph: set[frozenset[int]] = set()
    for one, other, linked in links:
        pair = frozenset((one, other))
        graph = graph | {pair} if linked and one != other else graph - {pair}
    ended = {first}
    while not done and (more := {n for pair in graph if pair & ended for n in pair} - ended):
        ended |= more

    async def run() -> None:
        async with open_system() as system:
            for n in range(6):
                system.spawn(Echo(), str(n))
            for one, other, linked in links:
                context = context_of(system, str(one))
                (context.link if linked else context.unlink)(str(other))
            if done:
                context_of(system, str(first)).exit()
            else:
                system.stop(str(first))
            await system.idle()
            assert {n for n in range(6) if str(n) not in system} == ended

    anyio.run(run)


# ---------------------------------------------------------------------- names and labels
@both
async def test_a_name_belongs_to_one_actor_until_it_is_given_up() -> None:
    """Taken again by its owner it is no error; by another it is, until it is free."""
    async with running() as system:
        refs = {one: system.spawn(Echo(), one) for one in "ab"}
        a, b = context_of(system, "a"), context_of(system, "b")
        a.register("x")
        a.register("x")
        a.register("y")
        assert system.inspect("a").names == ("x", "y")
        with pytest.raises(NameTaken, match="an actor with the name 'x' already exists"):
            b.register("x")
        b.unregister("x")
        assert system.whereis("x") is refs["a"]
        a.unregister("x")
        a.unregister("x")
        assert system.whereis("x") is None
        b.register("x")
        assert system.whereis("x") is refs["b"]
        assert system.whereis("nobody") is None


@both
async def test_a_name_is_gone_before_the_down_is_seen() -> None:
    """Whoever hears of the end may take the name at once; a hook, a monitor and a linked actor alike."""
    taken: list[str] = []

    def receive(ctx: Context, message: Any) -> None:
        if isinstance(message, Down):
            ctx.register("name")
            taken.append("by its watcher")
            ctx.unregister("name")

    async with running() as system:
        system.spawn(Script(receive), "watcher")
        system.spawn(Echo(), "a")
        context_of(system, "a").register("name")
        context_of(system, "watcher").monitor("a")
        system.monitor("a", lambda down: taken.append(f"found: {system.whereis('name')}"))
        system.stop("a")
        assert system.whereis("name") is not None
        await system.join("a")
        await system.idle()
        assert taken == ["found: None", "by its watcher"]


@both
async def test_the_dead_take_no_name() -> None:
    """It would never be given up again."""
    async with running() as system:
        system.spawn(Echo(), "a")
        context = context_of(system, "a")
        system.stop("a", "enough")
        await system.join("a")
        with pytest.raises(ActorStopped, match="enough"):
            context.register("name")
        system.spawn(Echo(), "b")
        context_of(system, "b").register("name")


@both
async def test_a_label_is_for_people() -> None:
    """It need not be unique, finds nobody, and is shown."""
    async with running() as system:
        for one in "ab":
            system.spawn(Echo(), one)
            assert context_of(system, one).label == ""
            context_of(system, one).label = "worker"
        assert [system.inspect(one).label for one in "ab"] == ["worker", "worker"]
        assert system.whereis("worker") is None


# ---------------------------------------------------------------------- the stash
@both
async def test_a_stash_holds_as_many_as_the_mailbox() -> None:
    """One more is an error in the handler; what comes back gets in, however full the mailbox is by then."""
    heard: list[Any] = []

    def receive(ctx: Context, message: Any) -> None:
        if message == "open":
            ctx.unstash_all()
            heard.append("open")
        elif "open" in heard:
            heard.append(message)
        else:
            ctx.stash()
            ctx.stash()  # it is aside already

    async with running() as system:
        ref = system.spawn(Script(receive), "a", capacity=3)
        for n in range(3):
            ref.tell(n)
        await system.idle()
        assert (await system.stats("a", timeout_s=1)).stashed == 3
        await system.suspend("a", timeout_s=1)
        ref.tell("open")
        ref.tell(3)
        ref.tell(4)
        system.resume("a")
        await system.idle()
        assert heard == ["open", 0, 1, 2, 3, 4]


@both
async def test_an_overfull_stash_is_that_handlers_error() -> None:
    """Uncaught, it crashes the actor; what was aside are dead letters then."""
    async with running() as system:
        ref = system.spawn(Script(lambda ctx, message: ctx.stash()), "a", capacity=2)
        downs: list[Down] = []
        system.monitor("a", downs.append)
        for n in range(2):
            ref.tell(n)
        await system.idle()
        ref.tell("too many")
        await system.join("a")
        assert "MailboxFull" in str(downs[0].reason)
        assert system.dead_letters == 3


@both
async def test_stashing_nothing_is_nothing() -> None:
    """Between messages there is none to put aside, and opening an empty stash is no work."""
    async with running() as system:
        system.spawn(Echo(), "a")
        context = context_of(system, "a")
        context.stash()
        context.unstash_all()
        assert (await system.stats("a", timeout_s=1)).stashed == 0
