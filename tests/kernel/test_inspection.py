"""Inspection of an actor from outside: its phase, its tasks and where they wait, its counters."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from kernel_kit import Echo, Script, blocked, both, running

from actors import Context, Lane, NoSuchActor


@both
async def test_an_inspection_counts_what_there_is() -> None:
    """An inspection counts the messages that were handled and that wait, by lane, and the children, tasks and
    timers."""
    async with running() as system:

        def receive(ctx: Context, message: Any) -> Any:
            if message == "work":
                ctx.start_task(anyio.sleep_forever)
                ctx.set_timer("later", 1000.0, "later")
            return message

        ref = system.spawn(Script(receive), "a")
        system.spawn(Echo(), "a.b", parent="a")
        await ref.ask("work", timeout_s=1)
        await blocked(system)
        ref.tell("one")
        ref.tell("two", lane=Lane.URGENT)
        stats = system.inspect("a").stats
        assert (stats.handled, stats.queued) == (1, {"control": 0, "urgent": 1, "normal": 1})
        assert (stats.children, stats.tasks, stats.timers, stats.incarnation) == (1, 1, 1, 1)
        assert system.inspect("a").children == ("a.b",)


@both
async def test_an_inspection_shows_why_an_actor_does_not_end() -> None:
    """For an actor that is ending, an inspection shows the reason of the stop, the cause of the cancellation, and the
    line where a task waits."""
    go = anyio.Event()

    async def slow() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await go.wait()

    async with running() as system:
        system.spawn(Script(lambda ctx, message: ctx.start_task(slow)), "a").tell("go")
        await blocked(system)
        system.stop("a", "enough")
        await blocked(system)
        seen = system.inspect("a")
        assert (seen.phase, seen.reason) == ("stopping", "shut down (enough)")
        assert seen.scope_causes == ["shut down (enough)"]
        assert ["slow" in task.stack[0] for task in seen.tasks] == [True]
        go.set()
        await system.join("a")


@both
async def test_inspecting_a_thousand_changes_nothing() -> None:
    """Inspecting a thousand idle actors creates none of the objects that an idle actor does not need."""
    async with running() as system:
        for n in range(1000):
            system.spawn(Echo(), str(n))
        for n in range(1000):
            assert system.inspect(str(n)).stats.handled == 0
        cells = [system.cell(str(n)) for n in range(1000)]
        assert all(cell is not None and cell.box is None and cell.lazy_or_none is None for cell in cells)


@both
async def test_an_actor_that_is_not_there_is_named() -> None:
    """Inspecting an id without a living actor raises ``NoSuchActor``, which names the id."""
    async with running() as system:
        with pytest.raises(NoSuchActor, match="no living actor has the id 'nobody'"):
            system.inspect("nobody")
