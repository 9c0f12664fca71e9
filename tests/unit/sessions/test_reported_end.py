"""Wait for late output after the reported end of a turn, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
import trio
import trio.testing

from actors.timers import TimerService
from actors.waiter import current_backend
from supervisor.ports.input_limits import QUIET_S
from supervisor.sessions.agent_io import ReportedEnd


@asynccontextmanager
async def waiting(over: list[float]) -> AsyncIterator[ReportedEnd]:
    """Yield a wait whose end appends the virtual seconds since the start to *over*."""
    timers = TimerService(current_backend())
    began = timers.now()
    async with anyio.create_task_group() as group:
        group.start_soon(timers.run)
        yield ReportedEnd(timers, lambda: over.append(round(timers.now() - began, 3)))
        assert timers.pending == 0
        group.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("outputs_s", "within_s", "over_s"),
    [
        ([], 10.0, QUIET_S),
        ([0.4, 0.4], 10.0, 0.8 + QUIET_S),
        ([0.4] * 20, 2.0, 2.0),
        ([], 0.1, 0.1),
        ([], 0.0, 0.0),
    ],
    ids=["silence", "late output", "endless output", "a short bound", "no time"],
)
@pytest.mark.trio
async def test_the_wait_ends_with_the_silence_or_the_bound(
    outputs_s: list[float], within_s: float, over_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    """The wait ends once after half a second without output, or at its bound, whichever is earlier; output after the
    end changes nothing."""
    over: list[float] = []
    async with waiting(over) as end:
        end.begin(quiet_s=QUIET_S, within_s=within_s)
        for pause_s in outputs_s:
            await trio.sleep(pause_s)
            end.note_output()
        await trio.sleep(100.0)
    assert over == [over_s]


@pytest.mark.trio
async def test_a_cancelled_wait_ends_without_a_word(autojump_clock: trio.testing.MockClock) -> None:
    """A wait that is cancelled calls nothing, and output does not start it again; another report does."""
    over: list[float] = []
    async with waiting(over) as end:
        end.begin(quiet_s=1.0, within_s=1.0)
        end.cancel()
        end.note_output()
        await trio.sleep(5.0)
        assert over == []
        end.begin(quiet_s=1.0, within_s=1.0)
        await trio.sleep(5.0)
    assert over == [6.0]


@pytest.mark.trio
async def test_a_second_report_keeps_the_bound(autojump_clock: trio.testing.MockClock) -> None:
    """An agent that reports the end again and again is not waited for without end."""
    over: list[float] = []
    async with waiting(over) as end:
        for _ in range(20):
            if not over:
                end.begin(quiet_s=0.5, within_s=2.0)
            await trio.sleep(0.4)
    assert over == [2.0]
