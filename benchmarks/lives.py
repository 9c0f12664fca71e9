"""Cost of an actor's life: start and stop, with and without a task, and the bytes of an idle actor."""

from __future__ import annotations

import anyio

from actors import ActorSystem, Context, open_system
from benchmarks.harness import Case, Line, Sizes, Stopwatch, asynchronous, at_most, at_most_times, per_us, traced_bytes
from benchmarks.messages import Sink
from benchmarks.peers import peer
from benchmarks.primitives import parked, settle


def context_of(system: ActorSystem, actor_id: str) -> Context:
    """Return the context of a living actor."""
    context = system.context(actor_id)
    assert context is not None, f"{actor_id} does not live"
    return context


async def actor_lives(backend: str, sizes: Sizes) -> float:
    """Measure the start of all actors, and the stop of each, until all have ended; per actor."""
    async with open_system() as system:
        with Stopwatch() as watch:
            for n in range(sizes.actors):
                system.spawn(Sink(), str(n))
            for n in range(sizes.actors):
                system.stop(str(n))
            await system.idle()
        assert len(system) == 0
    return per_us(watch.spent_s, sizes.actors)


async def task_lives(backend: str, sizes: Sizes) -> float:
    """Measure the start and end of a task in a cancel scope of its own; per task."""
    with Stopwatch() as watch:
        async with anyio.create_task_group() as group:
            for _ in range(sizes.actors):
                group.start_soon(parked)
            await settle()
            group.cancel_scope.cancel()
    return per_us(watch.spent_s, sizes.actors)


async def busy_lives(backend: str, sizes: Sizes) -> float:
    """Measure the start and stop of actors with a live task each, a tenth as many; per actor."""
    count = max(1, sizes.actors // 10)
    async with open_system() as system:
        with Stopwatch() as watch:
            for n in range(count):
                system.spawn(Sink(), str(n))
                context_of(system, str(n)).start_task(parked)
            await settle()
            await system.shut_down()
    return per_us(watch.spent_s, count)


async def few_task_lives(backend: str, sizes: Sizes) -> float:
    return await task_lives(backend, sizes._replace(actors=max(1, sizes.actors // 10)))


async def actor_bytes(backend: str, sizes: Sizes) -> float:
    """Measure the bytes of an idle actor, with its behaviour, its id and its place in the tree, but without its ref."""
    async with open_system() as system:
        with traced_bytes() as traced:
            for n in range(sizes.actors):
                system.spawn(Sink(), str(n))
    return traced.held / sizes.actors


async def task_bytes(backend: str, sizes: Sizes) -> float:
    """Measure the bytes of a waiting task with a cancel scope."""
    async with anyio.create_task_group() as group:
        with traced_bytes() as traced:
            for _ in range(sizes.actors):
                group.start_soon(parked)
            await settle()
        group.cancel_scope.cancel()
    return traced.held / sizes.actors


TASK = "anyio task with a CancelScope"
CASES = (
    Case(
        (Line("start + stop an actor", "us", at_most_times(1.0)),),
        asynchronous(actor_lives),
        "Erlang, under a supervisor",
        peer("erlang", "life"),
    ),
    Case((Line("start + stop an actor", "us"),), asynchronous(actor_lives), TASK, asynchronous(task_lives)),
    Case(
        (Line("start + stop an actor with a task", "us", at_most_times(0.6, "prototype")),),
        asynchronous(busy_lives),
        TASK,
        asynchronous(few_task_lives),
    ),
    Case(
        (Line("idle actor", "bytes", at_most(600)),),
        asynchronous(actor_bytes),
        TASK,
        asynchronous(task_bytes),
        rounds=1,
    ),
    Case(
        (Line("idle actor", "bytes"),), asynchronous(actor_bytes), "Erlang process", peer("erlang", "bytes"), rounds=1
    ),
)
