"""A program run to its end for its answer: with a deadline, under a warden, and the last of what it said.

For the programs that the runtime itself needs (git, acceptance tests), not for agents: nobody talks with them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import msgspec

from actors.waiting import within
from supervisor.ports import Launch, Process, ProcessHost, SpawnError

__all__ = ["OUTPUT_MAX", "CompletedCommand", "run_command"]

OUTPUT_MAX = 64 * 1024
"""Bytes of each output that are kept, the last ones: errors stand at the end."""

DRAIN_S = 1.0
"""How long output is still read once the program itself has ended: a descendant may hold it open for ever."""


class CompletedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended. ``status`` is its exit status in Python's form (negative: signal), ``None`` where there is
    none: it could not be started, was still running at its deadline, or its warden was lost. ``problem`` says which.
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
    def output(self) -> str:
        """What it said, errors last, as text."""
        return b"\n".join(part.rstrip() for part in (self.stdout, self.stderr) if part.strip()).decode(errors="replace")


async def run_command(
    host: ProcessHost, launch: Launch, *, timeout_s: float, output_max: int = OUTPUT_MAX
) -> CompletedCommand:
    """Run *launch* to its end; whatever it started has ended too. Never raises for what the program does. Of each
    output the last *output_max* bytes are kept."""
    began = anyio.current_time()
    out, err = _Tail(output_max), _Tail(output_max)
    status, problem = None, ""
    try:
        async with host.spawn(launch) as process:
            process.close_input()
            if await _heard(process, out, err, timeout_s):
                status = await process.wait_exit()
                problem = "how it ended is not known: its warden was lost" if status is None else ""
            else:
                problem = f"it was still running after {timeout_s:g} s"
    except SpawnError as error:
        problem = str(error)
    took_s = round(anyio.current_time() - began, 6)
    return CompletedCommand(
        status=status, stdout=bytes(out.kept), stderr=bytes(err.kept), problem=problem, took_s=took_s
    )


async def _heard(process: Process, out: _Tail, err: _Tail, timeout_s: float) -> bool:
    """Read both outputs until the program has ended, and a little longer; false if it has not in time."""
    async with anyio.create_task_group() as group:
        group.start_soon(out.fill, process.receive)
        group.start_soon(err.fill, process.receive_err)
        in_time = await within(timeout_s, process.wait_exit)
        if in_time:
            group.cancel_scope.deadline = anyio.current_time() + DRAIN_S
        else:
            group.cancel_scope.cancel()
    return in_time


class _Tail:
    """The last bytes of an output."""

    def __init__(self, bytes_max: int) -> None:
        self.kept = bytearray()
        self._bytes_max = bytes_max

    async def fill(self, receive: Callable[[], Awaitable[bytes]]) -> None:
        while piece := await receive():
            self.kept += piece
            del self.kept[: -self._bytes_max]
