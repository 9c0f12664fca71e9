"""Test that the input of a program arrives in whole pieces, even if a sender is cancelled."""

from __future__ import annotations

import os

import anyio
import pytest

from supervisor.processes.pipes import Input

pytestmark = pytest.mark.anyio

BIG = b"b" * 1_000_000 + b"\n"
"""Data that is larger than a pipe can hold."""


async def test_a_sender_that_is_cancelled_leaves_no_half_of_a_piece() -> None:
    """Two senders are cancelled: a piece that was begun is completed before the next piece, and a piece that was not
    begun is not sent."""
    ours, theirs = os.pipe()
    sent = Input(theirs)
    for data in (BIG, b"never begun\n"):  # the second one waits behind what the first one has left
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(sent.send, data)
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
    heard: list[bytes] = []

    def hear() -> None:
        with os.fdopen(ours, "rb") as end:
            heard.extend(end.readlines())

    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, hear)
        await sent.send(b"whole\n")
        sent.close()
    assert [(len(line), line[-6:]) for line in heard] == [(len(BIG), BIG[-6:]), (6, b"whole\n")]
