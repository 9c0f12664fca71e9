"""Ends of actors: the order of a stop, its deadlines, the time after a kill, and tasks that do not end."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest
import trio
from kernel_kit import both, virtual
from supervision_kit import Family, House, supervised

from actors import (
    BRUTAL_KILL,
    Abandoned,
    CancelSwallowed,
    ChildSpec,
    Context,
    Down,
    InvalidOption,
    KernelEvent,
    Killed,
    Shutdown,
    StartChild,
    StopChild,
    Supervisor,
)

Work = Callable[[Context], Coroutine[Any, Any, None]]


class Worker:
    """Actor that starts one task when it starts."""

    def __init__(self, work: Work, log: list[str]) -> None:
        self.work, self.log = work, log

    def started(self, ctx: Context) -> None:
        ctx.start_task(self.work, ctx, name="work")

    def stopped(self, ctx: Context, reason: object) -> None:
        self.log.append(ctx.id.rpartition("/")[2])

    def receive(self, ctx: Context, message: Any) -> Any:
        if message == "crash":
            raise ValueError("told to")
        return ctx.incarnation


def cleaning(clean_s: float, budget_s: float = 100.0) -> Work:
    """Return a task whose clean-up takes *clean_s* seconds."""

    async def work(ctx: Context) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.move_on_after(budget_s, shield=True):
                await anyio.sleep(clean_s)

    return work


def swallowing(for_s: float) -> Work:
    """Return a task that ignores its cancellation for *for_s* seconds."""

    async def work(ctx: Context) -> None:
        until = anyio.current_time() + for_s
        while anyio.current_time() < until:
            with anyio.CancelScope(shield=True, deadline=until):
                await anyio.sleep_forever()

    return work


def worker(name: str, work: Work, log: list[str], **fields: Any) -> ChildSpec:
    return ChildSpec(name, lambda: Worker(work, log), **fields)


def hear(house: House) -> list[KernelEvent]:
    events: list[KernelEvent] = []
    house.system.on_event = events.append
    return events


async def stop(house: House, actor_id: str = "sup", **how: Any) -> float:
    """Stop an actor; return the time that the stop took, in virtual seconds."""
    await anyio.wait_all_tasks_blocked()
    began = anyio.current_time()
    house.system.stop(actor_id, **how)
    await house.system.join(actor_id)
    return anyio.current_time() - began


# ---------------------------------------------------------------------- the order
@both
async def test_children_stop_in_reverse() -> None:
    """Children stop in reverse order, the youngest first, and with a nested supervisor its own children."""
    family = Family()
    inner = family.nested("inner", *family.specs("x", "y"))
    async with supervised(family.spec("a"), inner, family.spec("c")) as house:
        family.news()
        house.system.stop("sup")
        await house.system.join("sup")
        assert family.log == ["-c", "-y", "-x", "-a"]
        assert len(house.system) == 0


@both
async def test_children_that_were_added_stop_first() -> None:
    """A child that was started on request is the youngest, and stops first."""
    family = Family()
    async with supervised(*family.specs("a", "b")) as house:
        await house.ask(StartChild(family.spec("late")))
        await house.end("a", "crash")
        family.news()
    assert family.log == ["-late", "-b", "-a"]


@both
async def test_a_stop_is_a_shutdown_for_all() -> None:
    """All actors below a stopped supervisor end with the same reason."""
    family = Family()
    downs: list[Down] = []
    async with supervised(family.spec("a"), family.nested("inner", family.spec("x"))) as house:
        for one in ("sup/a", "sup/inner/x"):
            house.system.monitor(one, downs.append)
        house.system.stop("sup", "enough")
        await house.system.join("sup")
    assert [down.reason for down in downs] == [Shutdown("enough")] * 2


@virtual
async def test_an_older_child_works_until_the_younger_has_ended(autojump_clock: trio.abc.Clock) -> None:
    """Children end one after the other, so that the times of their clean-ups add up."""
    log: list[str] = []
    specs = [worker(name, cleaning(2), log) for name in ("a", "b", "c")]
    async with supervised(*specs) as house:
        assert await stop(house) == pytest.approx(6)
    assert log == ["c", "b", "a"]


# ---------------------------------------------------------------------- deadlines
@virtual
@pytest.mark.parametrize(("clean_s", "took_s"), [(0.0, 0.0), (1.0, 1.0), (1.9, 1.9), (5.0, 2.0), (50.0, 2.0)])
async def test_shutdown_s_bounds_a_childs_end(autojump_clock: trio.abc.Clock, clean_s: float, took_s: float) -> None:
    """A child that ends in time is not abandoned; at the deadline a child is abandoned with its clean-up."""
    log: list[str] = []
    async with supervised(worker("a", cleaning(clean_s), log, shutdown_s=2.0)) as house:
        events = hear(house)
        assert await stop(house) == pytest.approx(took_s, abs=0.01)
        kinds = [CancelSwallowed] * (clean_s > 0.25) + [Abandoned] * (clean_s > 2)
        assert [type(event) for event in events] == kinds
    assert log == ["a"]


@virtual
async def test_nobody_else_pays_for_a_child_that_took_too_long(autojump_clock: trio.abc.Clock) -> None:
    """After a child that exceeded its time, the next child still has all of its own time."""
    log: list[str] = []
    specs = [worker("a", cleaning(1.5), log, shutdown_s=2.0), worker("b", cleaning(50), log, shutdown_s=1.0)]
    async with supervised(*specs) as house:
        events = hear(house)
        assert await stop(house) == pytest.approx(2.5)
        assert [one for one in events if isinstance(one, Abandoned)] == [Abandoned("sup/b", ("work",), 1.0)]


@virtual
async def test_a_nested_supervisors_shutdown_s_is_for_all_below_it(autojump_clock: trio.abc.Clock) -> None:
    """Actors below a stopped actor share its absolute deadline: each child's time is the smaller of its own and the
    time left."""
    log: list[str] = []

    def inner() -> Supervisor:
        return Supervisor([worker(name, cleaning(2), log, shutdown_s=10.0) for name in ("x", "y", "z")])

    async with supervised(ChildSpec("inner", inner, shutdown_s=3.0)) as house:
        events = hear(house)
        took_s = await stop(house)
        assert 3.0 <= took_s <= 3.0 + 2 * 0.25 + 0.01
        assert [event.actor_id for event in events if isinstance(event, Abandoned)] == [
            "sup/inner/y",
            "sup/inner/x",
        ]
    assert log == ["z", "y", "x"]


@virtual
@pytest.mark.parametrize("depth", [1, 2, 5])
async def test_a_grace_reaches_the_bottom(autojump_clock: trio.abc.Clock, depth: int) -> None:
    """A stop with a grace bounds the end of the whole tree, however deep, and not of each level."""
    log: list[str] = []
    spec = worker("leaf", cleaning(50), log, shutdown_s=40.0)
    for level in range(depth):
        spec = ChildSpec(f"s{level}", lambda below=spec: Supervisor([below]), shutdown_s=40.0)
    async with supervised(spec) as house:
        assert await stop(house, grace_s=3.0) == pytest.approx(3.0, abs=0.01)


@virtual
async def test_a_second_stop_may_only_shorten(autojump_clock: trio.abc.Clock) -> None:
    """A second stop with less grace makes the end earlier; one with more grace changes nothing."""
    log: list[str] = []
    async with supervised(worker("a", cleaning(50), log, shutdown_s=40.0)) as house:
        await anyio.wait_all_tasks_blocked()
        began = anyio.current_time()
        house.system.stop("sup", grace_s=20)
        await trio.sleep(1)
        house.system.stop("sup", grace_s=4)
        await trio.sleep(1)
        house.system.stop("sup", grace_s=30)
        await house.system.join("sup")
        assert anyio.current_time() - began == pytest.approx(5, abs=0.01)


@virtual
async def test_a_kill_during_a_slow_stop_cuts_it(autojump_clock: trio.abc.Clock) -> None:
    """A kill during a slow stop ends the clean-up at once."""
    log: list[str] = []
    async with supervised(worker("a", cleaning(50), log, shutdown_s=40.0)) as house:
        await anyio.wait_all_tasks_blocked()
        house.system.stop("sup")
        await trio.sleep(1)
        began = anyio.current_time()
        house.system.kill("sup")
        await house.system.join("sup")
        assert anyio.current_time() - began <= 0.26


@virtual
@pytest.mark.parametrize("grace_s", [0.0, 0.1, 1.0])
async def test_a_task_that_is_done_at_once_is_never_abandoned(autojump_clock: trio.abc.Clock, grace_s: float) -> None:
    """However short the grace, a cancelled task has a moment to end, and is not abandoned."""
    log: list[str] = []
    async with supervised(*[worker(name, cleaning(0), log) for name in ("a", "b", "c")]) as house:
        events = hear(house)
        assert await stop(house, grace_s=grace_s) == pytest.approx(0)
        assert events == []


@both
@pytest.mark.parametrize("grace_s", [-1.0, float("nan")])
async def test_a_grace_that_is_no_time(grace_s: float) -> None:
    """A negative grace is refused, and nothing is stopped."""
    family = Family()
    async with supervised(family.spec("a")) as house:
        with pytest.raises(InvalidOption, match="grace_s"):
            house.system.stop("sup", grace_s=grace_s)
        assert await house.states() == {"a": "running"}


# ---------------------------------------------------------------------- brutal kill
@virtual
@pytest.mark.parametrize("by", ["stop", "StopChild"])
async def test_brutal_kill_grants_no_last_word(autojump_clock: trio.abc.Clock, by: str) -> None:
    """A child with BRUTAL_KILL is killed without a call of ``stopped``, by whatever it is ended."""
    log: list[str] = []
    specs = [worker("z", cleaning(0), []), worker("a", cleaning(0), log, shutdown_s=BRUTAL_KILL)]
    async with supervised(*specs) as house:
        downs: list[Down] = []
        house.system.monitor("sup/a", downs.append)
        await anyio.wait_all_tasks_blocked()
        began = anyio.current_time()
        await (stop(house) if by == "stop" else house.ask(StopChild("a")))
        assert anyio.current_time() - began == pytest.approx(0)
        assert log == []
        assert isinstance(downs[0].reason, Killed)


@virtual
async def test_a_kill_reaches_all_below(autojump_clock: trio.abc.Clock) -> None:
    """Actors below an actor that is killed are killed, too, without a call of ``stopped``."""
    log: list[str] = []
    inner = ChildSpec("inner", lambda: Supervisor([worker("x", cleaning(0), log)]))
    downs: list[Down] = []
    async with supervised(worker("a", cleaning(0), log), inner) as house:
        house.system.monitor("sup/inner/x", downs.append)
        await anyio.wait_all_tasks_blocked()
        began = anyio.current_time()
        house.system.kill("sup", "now")
        await house.system.join("sup")
        assert anyio.current_time() - began == pytest.approx(0)
        assert house.reason == Killed("now")
        assert downs == [Down("sup/inner/x", Killed("now"), 1)]
    assert log == []


@both
async def test_a_killed_child_has_no_last_word() -> None:
    """The ``stopped`` of a killed child is not called; the restart begins a new incarnation."""
    family = Family()
    async with supervised(family.spec("a")) as house:
        await house.end("a", "killed")
        assert family.log == ["+a", "+a"]


# ---------------------------------------------------------------------- whoever does not end
@virtual
async def test_a_swallowed_cancel_is_reported_with_its_stack(autojump_clock: trio.abc.Clock) -> None:
    """250 ms after a cancel that a task ignores, a report names the actor, the task, and the line where it hangs; the
    stop still waits."""
    async with supervised(worker("a", swallowing(3), [], shutdown_s=60.0)) as house:
        events = hear(house)
        await trio.sleep(1)
        assert await stop(house) == pytest.approx(2)
        (event,) = events
        assert isinstance(event, CancelSwallowed)
        assert (event.actor_id, event.task, event.after_s) == ("sup/a", "work", pytest.approx(0.25))
        assert any("test_stop.py" in line and "swallowing" in line for line in event.stack)


@virtual
async def test_who_does_not_end_is_abandoned_and_blocks_nobody(autojump_clock: trio.abc.Clock) -> None:
    """At the deadline an actor whose task does not end is gone, its siblings and its supervisor end, and the task runs
    on, abandoned."""
    log: list[str] = []
    specs = [worker("z", cleaning(1), log), worker("a", swallowing(100), log, shutdown_s=2.0)]
    async with supervised(*specs) as house:
        events = hear(house)
        assert await stop(house) == pytest.approx(3)
        kinds = [CancelSwallowed, Abandoned, CancelSwallowed]
        assert [type(event) for event in events] == kinds  # the last one is of z, which cleans up for a second
        assert events[1] == Abandoned("sup/a", ("work",), 2.0)
        assert (log, len(house.system)) == (["a", "z"], 0)
        left = house.system.group
        assert left is not None
        assert anyio.current_time() < 10
    assert anyio.current_time() == pytest.approx(100)


@virtual
async def test_a_parent_with_tasks_of_its_own_survives_an_abandoned_child(autojump_clock: trio.abc.Clock) -> None:
    """An actor waits for its own tasks, and then ends at once, although an abandoned task of a child still runs inside
    its scope."""
    log: list[str] = []

    class Parent(Worker):
        def started(self, ctx: Context) -> None:
            super().started(ctx)
            ctx.spawn(Worker(swallowing(100), log), "child", shutdown_s=1.0)

    async with supervised(ChildSpec("a", lambda: Parent(cleaning(0.5), log), shutdown_s=30.0)) as house:
        assert await stop(house) == pytest.approx(1.5)
    assert log == ["child", "a"]


@virtual
async def test_an_abandoned_child_is_started_again(autojump_clock: trio.abc.Clock) -> None:
    """An abandoned task neither prevents the next incarnation of its actor, nor affects it when the task ends."""
    works = [swallowing(100), cleaning(0)]
    spec = ChildSpec("a", lambda: Worker(works.pop(0), []), shutdown_s=1.0)
    async with supervised(spec) as house:
        await anyio.wait_all_tasks_blocked()
        house.child("a").tell("crash")
        await trio.sleep(1.5)
        assert await house.child("a").ask("who", timeout_s=5) == 2
        await trio.sleep(200)
        assert await house.child("a").ask("who", timeout_s=5) == 2


# ---------------------------------------------------------------------- who owns a scope
@both
async def test_a_context_manager_is_entered_and_left_by_one_task() -> None:
    """A resource that a task of an actor opens is closed by that task, however the actor ends, in every incarnation."""
    tasks: list[tuple[int, int]] = []

    class Connection:
        async def __aenter__(self) -> None:
            self.scope = anyio.CancelScope()
            self.scope.__enter__()
            self.task = anyio.get_current_task().id

        async def __aexit__(self, *error: Any) -> None:
            self.scope.__exit__(*error)
            tasks.append((self.task, anyio.get_current_task().id))

    async def work(ctx: Context) -> None:
        async with Connection():
            await anyio.sleep_forever()

    family = Family()
    family.on_start["a"] = lambda ctx: ctx.start_task(work, ctx)
    async with supervised(family.spec("a")) as house:
        for how in ("crash", "killed", "normal"):
            await anyio.wait_all_tasks_blocked()
            await house.end("a", how)
        await anyio.wait_all_tasks_blocked()
    assert len(tasks) == 4
    assert all(entered == left for entered, left in tasks)


@both
async def test_a_stop_during_the_stop_is_the_same_stop() -> None:
    """A supervisor that is stopped twice, and receives a request in between, ends once."""
    family = Family()
    async with supervised(*family.specs("a", "b")) as house:
        house.system.stop("sup", "first")
        house.system.stop("sup", "second")
        await house.system.join("sup")
        assert house.downs == [Down("sup", Shutdown("first"), 1)]
    assert family.log == ["+a", "+b", "-b", "-a"]


@both
async def test_a_child_that_crashes_while_its_supervisor_stops_is_not_started_again() -> None:
    """A child that crashes while its supervisor stops is not restarted."""
    family = Family()
    async with supervised(*family.specs("a", "b")) as house:
        house.child("a").tell("crash")
        house.system.stop("sup")
        await house.system.join("sup")
    assert family.log.count("+a") == 1
