"""Run a helper program until it exits or its deadline passes, and return the end of its output.

Helper programs are programs that the runtime itself needs (git, acceptance tests, notices). Agents are not run by this
module. A helper program runs under a shim, which ends whatever the program has started, also after a kill -9 of the
supervisor. A program that only reads, and starts no other, needs no shim: with its output closed it ends by itself.
Started as a child of the supervisor, it costs a quarter (``git rev-parse``: 4 ms instead of 17 on a busy machine).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from subprocess import DEVNULL
from typing import Final

import anyio
import anyio.abc
import msgspec

from actors.waiting import within
from supervisor.ports import Launch, Process, ProcessHost, SpawnError

OUTPUT_MAX = 64 * 1024
"""Number of bytes of each output that are kept: the last ones, because errors are usually at the end."""

DRAIN_S = 1.0
"""Seconds for which output is still read after the exit of the program: a descendant may hold the pipe open for
ever."""


_SHIM_LOST: Final = "how it ended is not known: its shim was lost"
_STATUS_TAKEN: Final = 255
"""Status that asyncio reports for a child that somebody else has waited for."""


class CompletedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a helper program's run.

    ``status`` is the exit status in Python's form (negative: signal). ``None`` means that the program could not be
    started, was still running at its deadline, or that its shim was lost; ``problem`` says which of these happened.
    """

    status: int | None
    stdout: bytes = b""
    stderr: bytes = b""
    problem: str = ""
    took_s: float = 0.0

    @property
    def ok(self) -> bool:
        return self.status == 0

    @property
    def was_killed(self) -> bool:
        """Whether a signal has ended the program, or its shim was killed, and the program with it."""
        return self.problem == _SHIM_LOST or (self.status is not None and self.status < 0)

    @property
    def output(self) -> str:
        """Standard output and standard error as text, in this order."""
        return b"\n".join(part.rstrip() for part in (self.stdout, self.stderr) if part.strip()).decode(errors="replace")


async def run_command(
    host: ProcessHost, launch: Launch, *, timeout_s: float, output_max: int = OUTPUT_MAX, given: bytes = b""
) -> CompletedCommand:
    """Run *launch* to its end with *given* as its input, and end every process that the program has started.

    The last *output_max* bytes of each output are kept. A failure of the program is part of the result and never
    raised.
    """
    began = anyio.current_time()
    out, err = _OutputTail(output_max), _OutputTail(output_max)
    status, problem = None, ""
    try:
        async with host.spawn(launch) as process:
            if await _read_until_exit(process, out, err, timeout_s, given):
                status = await process.wait_exit()
                problem = _SHIM_LOST if status is None else ""
            else:
                problem = f"it was still running after {timeout_s:g} s"
    except SpawnError as error:
        problem = str(error)
    took_s = round(anyio.current_time() - began, 6)
    return CompletedCommand(
        status=status, stdout=bytes(out.kept), stderr=bytes(err.kept), problem=problem, took_s=took_s
    )


async def _read_until_exit(
    process: Process, out: _OutputTail, err: _OutputTail, timeout_s: float, given: bytes
) -> bool:
    """Write the input *given*, and read both outputs until ``DRAIN_S`` seconds after the program's exit; return whether
    the program exited within *timeout_s*."""

    async def write_input() -> None:
        if given:
            await process.send(given)
        process.close_input()

    async with anyio.create_task_group() as group:
        group.start_soon(write_input)
        group.start_soon(out.fill, process.receive)
        group.start_soon(err.fill, process.receive_err)
        in_time = await within(timeout_s, process.wait_exit)
        if in_time:
            group.cancel_scope.deadline = anyio.current_time() + DRAIN_S
        else:
            group.cancel_scope.cancel()
    return in_time


async def run_reader(launch: Launch, *, timeout_s: float, output_max: int = OUTPUT_MAX) -> CompletedCommand | None:
    """Run *launch*, a program that changes nothing and starts no program, as a child of this process, without input.

    The result is that of ``run_command``. ``None``: the program could not be started, or another part of the embedding
    program has taken its exit status; ``run_command`` then starts it, or gives the reason.
    """
    began = anyio.current_time()
    out, err = _OutputTail(output_max), _OutputTail(output_max)
    try:
        process = await anyio.open_process(
            launch.argv, stdin=DEVNULL, cwd=launch.cwd, env=launch.env, start_new_session=True
        )
    except OSError:
        return None
    assert process.stdout is not None
    assert process.stderr is not None
    status, problem = None, f"it was still running after {timeout_s:g} s"
    try:
        with anyio.move_on_after(timeout_s):
            async with anyio.create_task_group() as group:
                group.start_soon(out.fill, _chunks_of(process.stdout))
                group.start_soon(err.fill, _chunks_of(process.stderr))
            status, problem = await process.wait(), ""
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                with suppress(ProcessLookupError):  # the group, because a filter of git may have been started after all
                    os.killpg(process.pid, signal.SIGKILL)
            await process.aclose()
    if status == _STATUS_TAKEN:
        return None
    took_s = round(anyio.current_time() - began, 6)
    return CompletedCommand(
        status=status, stdout=bytes(out.kept), stderr=bytes(err.kept), problem=problem, took_s=took_s
    )


def _chunks_of(stream: anyio.abc.ByteReceiveStream) -> Callable[[], Awaitable[bytes]]:
    async def receive() -> bytes:
        try:
            return await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return b""

    return receive


class _OutputTail:
    """Last bytes of an output stream."""

    def __init__(self, bytes_max: int) -> None:
        self.kept = bytearray()
        self._bytes_max = bytes_max

    async def fill(self, receive: Callable[[], Awaitable[bytes]]) -> None:
        while piece := await receive():
            self.kept += piece
            del self.kept[: -self._bytes_max]
