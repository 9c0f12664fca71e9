"""Client of the control socket: sends a request to a running supervisor, and reads the reply line by line.

Each kind of failure has its own error message: no supervisor runs, a supervisor runs and cannot be reached or does not
reply, the supervisor refuses, or the supervisor ended before its reply. Whether a supervisor runs is decided by the
lock of the state directory, never by the socket.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteReceiveStream

from supervisor.control.error_messages import ControlError, NotRunning
from supervisor.control.ping import PING, PING_S, NoReply, ReplyLost, connection_error
from supervisor.journal.statedir import socket_address

if TYPE_CHECKING:
    from supervisor.control.requests import Request

QUIET_S: Final = 2.5
"""Seconds without the first line of the reply after which a client checks, on another connection, whether the
supervisor still responds. The reply itself has no time limit: an abort, for example, is answered when all has
ended."""

QUIET_MAX_S: Final = 60.0
"""Longest pause in seconds between two checks of one request; each pause is twice as long as the pause before."""


async def request(path: Path, asked: Request) -> AsyncGenerator[dict[str, Any], None]:
    """Send a request to the supervisor whose socket is at *path*, and yield the lines of the reply, all but the last.

    Close the generator if it is not read to its end (``contextlib.aclosing``).

    Raises:
        NotRunning: no supervisor runs on the state directory.
        StateDirError, BadInput: this user may not send requests, or there can be no such path.
        ControlError: the supervisor cannot be reached, does not reply, has refused, or ended before its reply.
    """
    async with aclosing(_exchange(path, asked.model_dump())) as answers:
        async for answer in answers:
            yield answer


async def _exchange(path: Path, message: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
    async with await _connect(path) as stream:
        with suppress(anyio.BrokenResourceError):  # it answers an endless request before it has read it
            await stream.send(msgspec.json.encode(message) + b"\n")
        lines = BufferedByteReceiveStream(stream)
        with suppress(anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
            line = await _first_line(path, lines)
            while True:
                answer = msgspec.json.decode(line)
                if "error" in answer:
                    raise ControlError(answer["error"]["kind"], answer["error"]["message"])
                if "done" in answer:
                    return
                yield answer
                line = await _next_line(lines)
    raise ReplyLost


async def _first_line(path: Path, lines: BufferedByteReceiveStream) -> bytes:
    quiet_s = QUIET_S
    while True:
        with anyio.move_on_after(quiet_s):
            return await _next_line(lines)
        try:
            await ping(path)
        except NoReply:
            raise
        except (NotRunning, ControlError):
            pass  # a supervisor that refuses the ping, or has closed its socket, lives: the reply may still come
        quiet_s = min(2 * quiet_s, QUIET_MAX_S)


async def _next_line(lines: BufferedByteReceiveStream) -> bytes:
    return await lines.receive_until(b"\n", sys.maxsize)


async def ping(path: Path) -> dict[str, Any]:
    """Return the supervisor's reply to a ping, as :func:`supervisor.control.ping.ping_now` does.

    Raises:
        NoReply: no reply came within ``PING_S`` seconds.
        NotRunning, StateDirError, BadInput, ControlError: as :func:`request`.
    """
    with anyio.move_on_after(PING_S):
        async with aclosing(_exchange(path, PING)) as answers:
            async for answer in answers:
                return answer
    raise NoReply(path)


async def answers_to(path: Path, asked: Request) -> list[dict[str, Any]]:
    """Send a request, and return every line of the reply, once the reply is complete. Raises the errors of
    :func:`request`."""
    async with aclosing(request(path, asked)) as answers:
        return [answer async for answer in answers]


async def _connect(path: Path) -> ByteStream:
    try:
        with socket_address(path) as address:
            return await anyio.connect_unix(address)
    except OSError as error:
        raise connection_error(path, error) from None
