"""Tasks: they run in their actor's scope and report by message, and none is left when the actor has ended."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from kernel_kit import DEADLINE_S, Echo, Script, both, running

from actors import (
    DEFERRED,
    ActorCrashed,
    ActorStopped,
    ActorSystem,
    Context,
    Crashed,
    KernelEvent,
    Lane,
    Shutdown,
    TaskFailed,
    open_system,
)
from actors.mailbox import Envelope
from actors.timers import DEAD_MAX


class Job:
    """Task that runs until it is cancelled, and logs its start and end."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log
        self.started = anyio.Event()

    async def run(self) -> None:
        try:
            self.log.append(f"{self.name} starts")
            self.started.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await checkpoint()
            self.log.append(f"{self.name} ends")


class Listener:
    """Actor that records the messages it receives."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.news = anyio.Event()

    def receive(self, ctx: Context, message: Any) -> None:
        self.heard.append(message)
        self.news.set()


def context_of(system: ActorSystem, actor_id: str) -> Context:
    context = system.context(actor_id)
    assert context is not None
    return context


async def fail(error: Exception) -> None:
    await checkpoint()
    raise error


# ---------------------------------------------------------------------- reports
@both
async def test_a_task_reports_by_message() -> None:
    """A task of an actor can await, and sends its result to the actor as a message."""
    async with running() as system:
        done = anyio.Event()

        def receive(ctx: Context, message: Any) -> None:
            if message == "go":
                ctx.start_task(work, ctx, 20)
            else:
                results.append(message)
                done.set()

        async def work(ctx: Context, n: int) -> None:
            await checkpoint()
            ctx.tell_self(n + 1)

        results: list[int] = []
        system.spawn(Script(receive), "a").tell("go")
        await done.wait()
    assert results == [21]


@both
async def test_an_error_of_a_task_is_a_message() -> None:
    """A task that fails ends neither its actor nor other tasks: the actor receives ``TaskFailed`` ahead of its other
    messages."""
    async with running() as system:
        listener, log = Listener(), []
        system.spawn(listener, "a")
        job, error = Job("other", log), ValueError("boom")
        context_of(system, "a").start_task(job.run)
        context_of(system, "a").start_task(fail, error, name="build")
        await listener.news.wait()
        assert listener.heard == [TaskFailed("build", error)]
        assert (log, "a" in system, system.crashes) == (["other starts"], True, 0)


@both
@pytest.mark.parametrize(
    ("fn", "name"), [(fail, "fail"), (partial(fail), "partial")], ids=["function", "callable without a name"]
)
async def test_a_task_without_a_name_is_named_after_what_it_runs(fn: Any, name: str) -> None:
    """A task without a name has the name of its function; a failing callable without a name is reported as a message,
    too."""
    async with running() as system:
        listener = Listener()
        system.spawn(listener, "a")
        error = ValueError("boom")
        context_of(system, "a").start_task(fn, error)
        await listener.news.wait()
    assert listener.heard == [TaskFailed(name, error)]


@both
async def test_one_error_in_groups_is_that_error() -> None:
    """A task that failed through nested task groups is reported with the one real error."""
    async with running() as system:
        listener = Listener()
        system.spawn(listener, "a")
        error = ValueError("boom")

        async def nested() -> None:
            async with anyio.create_task_group() as outer:
                outer.start_soon(anyio.sleep_forever)
                async with anyio.create_task_group() as inner:
                    inner.start_soon(fail, error)

        context_of(system, "a").start_task(nested, name="nested")
        await listener.news.wait()
    assert listener.heard == [TaskFailed("nested", error)]


@both
async def test_of_two_errors_one_is_reported_and_holds_the_other() -> None:
    """If two tasks of a group failed, one error is reported, which holds the other."""
    async with running() as system:
        listener = Listener()
        system.spawn(listener, "a")

        async def fail_at_the_end(word: str) -> None:
            try:
                await anyio.sleep_forever()
            finally:
                raise ValueError(word)

        async def both_fail() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(fail_at_the_end, "one")
                group.start_soon(fail_at_the_end, "two")
                await anyio.wait_all_tasks_blocked()
                group.cancel_scope.cancel()

        context_of(system, "a").start_task(both_fail)
        await listener.news.wait()
    (failed,) = listener.heard
    assert sorted(str(one) for one in (failed.error, *failed.error.suppressed)) == ["one", "two"]


@both
async def test_cancellation_is_not_a_failure() -> None:
    """Neither a cancel by the actor nor a task that cancels itself is reported as an error."""
    async with running() as system:
        listener, log = Listener(), []
        system.spawn(listener, "a")
        context, job = context_of(system, "a"), Job("job", log)

        async def cancel_itself() -> None:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await anyio.sleep_forever()

        context.start_task(cancel_itself)
        context.start_task(job.run)
        await job.started.wait()
        context.scope.cancel("not needed")
        await anyio.wait_all_tasks_blocked()
        assert (listener.heard, log, "a" in system) == ([], ["job starts", "job ends"], True)
        assert (system.crashes, context.scope.cause) == (0, "not needed")


# ---------------------------------------------------------------------- the end
@both
async def test_a_stop_cancels_the_tasks_and_waits_for_them() -> None:
    """When an actor has ended, its tasks have ended with their clean-up, and the cause of their cancel is the reason of
    the stop."""
    async with running() as system:
        log: list[str] = []
        system.spawn(Echo(), "a")
        context, jobs = context_of(system, "a"), [Job(str(n), log) for n in range(3)]
        for job in jobs:
            context.start_task(job.run)
            await job.started.wait()
        system.stop("a", "enough")
        await system.join("a")
        assert sorted(log[3:]) == ["0 ends", "1 ends", "2 ends"]
        assert context.scope.causes == [Shutdown("enough")]


@both
async def test_a_stop_waits_for_shielded_cleanup() -> None:
    """An actor has not ended while one of its tasks still cleans up, and refuses messages and tasks meanwhile."""
    async with running() as system:
        ref = system.spawn(Echo(), "a")
        context = context_of(system, "a")
        started, cleaning, let_go = anyio.Event(), anyio.Event(), anyio.Event()

        async def job() -> None:
            try:
                started.set()
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    cleaning.set()
                    await let_go.wait()

        context.start_task(job)
        await started.wait()
        system.stop("a")
        await cleaning.wait()
        await system.idle()
        assert "a" in system
        with pytest.raises(ActorStopped):
            ref.tell(1, lane=Lane.CONTROL)
        with pytest.raises(ActorStopped):
            context.start_task(job)
        let_go.set()
        await system.join("a")
        assert "a" not in system


@both
async def test_a_stop_before_the_task_ran_still_runs_it_to_its_end() -> None:
    """A task whose actor is stopped before the task runs starts in a cancelled scope, so that its finally blocks
    run."""
    async with running() as system:
        log: list[str] = []
        system.spawn(Echo(), "a")
        context_of(system, "a").start_task(Job("job", log).run)
        system.stop("a")
        await system.join("a")
        assert log == ["job starts", "job ends"]


@both
async def test_an_error_in_cleanup_is_a_crash_record_and_ends_nobody_else() -> None:
    """A task that fails while its actor stops is reported as a crash; the system continues."""
    async with running() as system:
        events: list[KernelEvent] = []
        system.on_event = events.append
        system.spawn(Echo(), "a")
        other = system.spawn(Echo(), "b")
        started, error = anyio.Event(), ValueError("in cleanup")

        async def bad_cleanup() -> None:
            try:
                started.set()
                await anyio.sleep_forever()
            finally:
                raise error

        async def job() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep_forever)
                group.start_soon(bad_cleanup)

        context_of(system, "a").start_task(job)
        await started.wait()
        system.stop("a")
        await system.join("a")
        assert events == [ActorCrashed("a", error)]
        assert await other.ask(1, timeout_s=DEADLINE_S) == 1


@both
async def test_a_crash_cancels_the_tasks_with_the_error_as_cause() -> None:
    """If ``receive`` raises, the actor's tasks are cancelled, with the error as the cause in their scope."""
    async with running() as system:
        log: list[str] = []
        error, job = ValueError("boom"), Job("job", log)

        def receive(ctx: Context, message: Any) -> None:
            raise error

        ref = system.spawn(Script(receive), "a")
        context = context_of(system, "a")
        context.start_task(job.run)
        await job.started.wait()
        ref.tell("go")
        await system.join("a")
        assert log == ["job starts", "job ends"]
        assert context.scope.causes == [Crashed(error)]


@both
async def test_tasks_of_children_end_before_those_of_their_parent() -> None:
    """Tasks end in the order of the tree: those of the youngest child first, those of the parent last."""
    async with running() as system:
        log: list[str] = []
        for actor_id, parent in [("p", "."), ("old", "p"), ("young", "p"), ("below young", "young")]:
            system.spawn(Echo(), actor_id, parent=parent)
            job = Job(actor_id, log)
            context_of(system, actor_id).start_task(job.run)
            await job.started.wait()
        system.stop("p")
        await system.join("p")
        assert log[4:] == ["below young ends", "young ends", "old ends", "p ends"]


# ---------------------------------------------------------------------- scopes
@both
async def test_no_task_starts_in_a_cancelled_scope() -> None:
    """Once an actor's scope was cancelled, a new task is refused with the cause, also if the actor never had a task."""
    async with running() as system:
        for actor_id, has_task in [("with", True), ("without", False)]:
            system.spawn(Echo(), actor_id)
            context, log = context_of(system, actor_id), []
            if has_task:
                job = Job("job", log)
                context.start_task(job.run)
                await job.started.wait()
            context.scope.cancel("too late")
            with pytest.raises(ActorStopped, match=f"'{actor_id}' has stopped: too late"):
                context.start_task(Job("x", log).run)
            await anyio.wait_all_tasks_blocked()
            assert "x starts" not in log


@both
async def test_a_home_cancelled_before_its_first_task_takes_none_from_below() -> None:
    """After the cancel of a home's scope, tasks of all actors homed there are refused, also if nobody had a task
    before."""
    async with running() as system:
        log: list[str] = []
        system.spawn(Echo(), "home")
        system.spawn(Echo(), "guest", parent="home")
        context_of(system, "home").scope.cancel("closed")
        with pytest.raises(ActorStopped, match="'home' has stopped: closed"):
            context_of(system, "guest").start_task(Job("guest", log).run)
        await anyio.wait_all_tasks_blocked()
        assert log == []


@both
async def test_a_stop_is_one_cause_however_often_it_comes_by() -> None:
    """A parent that begins to stop while its last child is ending cancels its tasks once, with one cause."""
    async with running() as system:
        log: list[str] = []
        system.spawn(Echo(), "p")
        system.spawn(Echo(), "child", parent="p")
        context, job = context_of(system, "p"), Job("p", log)
        context.start_task(job.run)
        await job.started.wait()
        system.stop("child")
        system.stop("p", "enough")
        await system.join("p")
        assert context.scope.causes == [Shutdown("enough")]


@both
async def test_cancelling_a_home_cancels_the_tasks_of_those_homed_there() -> None:
    """The cancel of a home's scope cancels the tasks of all actors homed there, ends no actor, and later tasks there
    are refused."""
    async with running() as system:
        log: list[str] = []
        plan = [("session", ".", None), ("turn", "session", None), ("tool", "turn", "session"), ("other", ".", None)]
        jobs = {actor_id: Job(actor_id, log) for actor_id, _, _ in plan}
        for actor_id, parent, home in plan:
            system.spawn(Echo(), actor_id, parent=parent, home=home)
            context_of(system, actor_id).start_task(jobs[actor_id].run)
            await jobs[actor_id].started.wait()
        system.spawn(Echo(), "newcomer", parent="tool", home="session")
        context_of(system, "session").scope.cancel("abort 1")
        await anyio.wait_all_tasks_blocked()
        assert sorted(log[4:]) == ["session ends", "tool ends", "turn ends"]
        assert len(system) == 5
        for actor_id in ("session", "turn", "tool", "newcomer"):
            with pytest.raises(ActorStopped):
                context_of(system, actor_id).start_task(Job("late", log).run)
        system.stop("session")
        await system.join("session")
        assert log[7:] == []


@both
async def test_cancelling_a_child_leaves_its_home_alone() -> None:
    """The cancel of an actor's scope reaches neither its home, nor other actors homed there."""
    async with running() as system:
        log: list[str] = []
        jobs = {actor_id: Job(actor_id, log) for actor_id in ("home", "one", "two")}
        for actor_id, job in jobs.items():
            system.spawn(Echo(), actor_id, parent="." if actor_id == "home" else "home")
            context_of(system, actor_id).start_task(job.run)
            await job.started.wait()
        context_of(system, "one").scope.cancel("only one")
        await anyio.wait_all_tasks_blocked()
        assert log[3:] == ["one ends"]


@both
async def test_a_scope_keeps_every_cause_in_order() -> None:
    """The first cause of a cancel counts; later causes are recorded behind it."""
    async with running() as system:
        system.spawn(Echo(), "a")
        context, log = context_of(system, "a"), []
        job = Job("job", log)
        context.start_task(job.run)
        await job.started.wait()
        assert (context.scope.cancelled, context.scope.cause) == (False, None)
        context.scope.cancel("first")
        context.scope.cancel("second")
        await anyio.wait_all_tasks_blocked()
        assert (context.scope.cancelled, context.scope.cause) == (True, "first")
        assert context.scope.causes == ["first", "second"]
        system.stop("a", "third")
        await system.join("a")
        assert context.scope.causes == ["first", "second"]


@both
@pytest.mark.parametrize("how", ["stop", "cancel the home, then stop"])
async def test_a_delegation_chain_2000_deep_ends_completely(how: str) -> None:
    """A chain of 2000 actors with one home, and a task in every tenth, ends bottom up, and no task is left."""
    depth, log = 2000, []
    async with running() as system:
        system.spawn(Echo(), "0")
        jobs = []
        for n in range(1, depth):
            system.spawn(Echo(), str(n), parent=str(n - 1), home="0")
            if n % 10 == 0:
                jobs.append(Job(str(n), log))
                context_of(system, str(n)).start_task(jobs[-1].run)
        for job in jobs:
            await job.started.wait()
        ended: list[str] = []
        for n in range(depth):
            system.monitor(str(n), lambda down: ended.append(down.id))
        if how != "stop":
            context_of(system, "0").scope.cancel("all of it")
        system.stop("0")
        await system.join("0")
    assert ended == [str(n) for n in reversed(range(depth))]
    assert len(log) == 2 * len(jobs) == 2 * 199


@both
@pytest.mark.parametrize("how", ["stop", "cancel the top, then stop"])
async def test_scopes_nest_a_hundred_deep(how: str) -> None:
    """A hundred nested scopes, where each actor's home is its parent, end completely."""
    log: list[str] = []
    async with running() as system:
        for n in range(100):
            system.spawn(Echo(), str(n), parent=str(n - 1) if n else ".")
            job = Job(str(n), log)
            context_of(system, str(n)).start_task(job.run)
            await job.started.wait()
        if how != "stop":
            context_of(system, "0").scope.cancel("all of it")
        system.stop("0")
        await system.join("0")
    ends = [line for line in log if line.endswith("ends")]
    assert sorted(ends) == sorted(f"{n} ends" for n in range(100))
    if how == "stop":
        assert ends == [f"{n} ends" for n in reversed(range(100))]


@both
async def test_a_task_may_ask_and_stop_its_own_actor() -> None:
    """A task may ask its own actor, and stop it, which cancels that very task; then everything ends in order."""
    with anyio.fail_after(DEADLINE_S):
        async with open_system() as system:
            ref, log = system.spawn(Echo(), "a"), []

            async def job() -> None:
                log.append(await ref.ask("hello", timeout_s=DEADLINE_S))
                system.stop("a")
                await anyio.sleep_forever()

            context_of(system, "a").start_task(job)
            await system.join("a")
            assert log == ["hello"]


@both
async def test_an_actor_that_has_ended_is_freed_without_the_collector() -> None:
    """An actor that has ended is freed without the garbage collector, also if it had tasks or late replies."""

    async def answer(asked: Envelope) -> None:
        assert asked.reply is not None
        asked.reply.resolve("late")

    def receive(ctx: Context, message: Any) -> Any:
        assert ctx.envelope is not None
        ctx.start_task(checkpoint)
        ctx.start_task(answer, ctx.envelope)
        return DEFERRED

    freed = list[weakref.ref[Script]]()
    gc.disable()
    try:
        async with running() as system:
            for number in range(4 * DEAD_MAX):
                actor = Script(receive)
                freed.append(weakref.ref(actor))
                assert await system.spawn(actor, f"a{number}").ask("hello", timeout_s=DEADLINE_S) == "late"
                system.stop(f"a{number}")
                await system.join(f"a{number}")
            assert sum(one() is not None for one in freed) <= DEAD_MAX  # by timers that were not swept yet
    finally:
        gc.enable()
