"""AgentIO, the connection to an agent's process: writes and reports are handled in order, and a close leaves nobody
waiting."""

from __future__ import annotations

from typing import cast

import anyio
import pytest
from anyio.lowlevel import checkpoint

from supervisor.ports import CloseInput, ConversationNamed, MessageAccepted, Out, Process, Ready, Send, Signal
from supervisor.sessions.agent_io import AgentIO

pytestmark = pytest.mark.anyio


class Program:
    """Stand-in for a process that records what is written to it; with *full*, a write to it never returns."""

    def __init__(self, *, full: bool = False) -> None:
        self.told: list[object] = []
        self.full = full

    async def send(self, data: bytes) -> None:
        self.told.append(data)
        if self.full:
            await anyio.sleep_forever()

    def close_input(self) -> None:
        self.told.append("closed")

    def signal(self, number: int) -> None:
        self.told.append(number)

    def port(self) -> Process:
        return cast(Process, self)


async def settle() -> None:
    for _ in range(8):
        await checkpoint()


async def test_what_is_put_before_and_after_it_is_open_is_written_in_order() -> None:
    wire, program = AgentIO(), Program()
    wire.put([Send(b"a"), Signal(2)])

    async def hear(out: Out) -> None:
        raise AssertionError(out)

    async with anyio.create_task_group() as group:
        wire.open(group, program.port(), hear)
        await settle()
        assert program.told == [b"a", 2]
        wire.put([Send(b"b")])
        wire.put([CloseInput()])
        await settle()
        wire.close()
    assert program.told == [b"a", 2, b"b", "closed"]


async def test_words_are_heard_one_at_a_time_by_whoever_is_at_it() -> None:
    """A report that arrives while another is handled waits, and ``process_received`` returns after both are handled."""
    wire, heard, busy = AgentIO(), list[str](), anyio.Event()

    async def hear(out: Out) -> None:
        heard.append(f"{type(out).__name__} begins")
        await busy.wait()
        heard.append(f"{type(out).__name__} ends")

    async with anyio.create_task_group() as group:
        wire.open(group, Program().port(), hear)
        wire.put([Ready()])
        await settle()
        wire.put([MessageAccepted()])
        await settle()
        assert heard == ["Ready begins"]
        busy.set()
        await wire.process_received()
        wire.close()
    assert heard == ["Ready begins", "Ready ends", "MessageAccepted begins", "MessageAccepted ends"]


async def test_who_is_mid_write_when_it_is_closed_is_cut_off() -> None:
    """``close`` during a write to a process that reads nothing cancels the write, and the next write is not begun."""
    wire, program = AgentIO(), Program(full=True)

    async def hear(out: Out) -> None:
        raise AssertionError(out)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            wire.open(group, program.port(), hear)
            wire.put([Send(b"a"), Send(b"b")])
            await settle()
            wire.close()
    assert program.told == [b"a"]


async def test_a_closed_wire_begins_nothing() -> None:
    wire, program = AgentIO(), Program()

    async def hear(out: Out) -> None:
        raise AssertionError(out)

    async with anyio.create_task_group() as group:
        wire.open(group, program.port(), hear)
        await settle()
        wire.close()
        wire.put([Send(b"late"), ConversationNamed("late")])
    assert program.told == []
