"""Client of the control socket: sends a request to a running supervisor, and reads the answer line by line."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteReceiveStream

from supervisor.control.error_messages import BadInput, ControlError, NotRunning
from supervisor.control.server import reach
from supervisor.journal.statedir import StateDirError, unreadable_error
from supervisor.runtime.availability import Outage, Shortage

__all__ = ["answers_to", "is_running", "problems_of", "request"]

ANSWER_S: Final = 5.0
"""Seconds that the answer to a ping may take."""


async def request(path: Path, message: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
    """Send a request to the supervisor on the socket at *path*; yield the lines of the answer without the last one.

    Close the generator if it is not read to its end (``contextlib.aclosing``).

    Raises:
        NotRunning: no supervisor listens there.
        StateDirError, BadInput: this user has no access, or the path is invalid.
        ControlError: the supervisor refused, or ended before it had answered.
    """
    async with await _connect(path) as stream:
        with suppress(anyio.BrokenResourceError):  # a request that is too long is answered before it is read
            await stream.send(msgspec.json.encode(message) + b"\n")
        lines = BufferedByteReceiveStream(stream)
        with suppress(anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                answer = msgspec.json.decode(await lines.receive_until(b"\n", sys.maxsize))
                if "error" in answer:
                    raise ControlError(answer["error"]["kind"], answer["error"]["message"])
                if "done" in answer:
                    return
                yield answer
    raise ControlError("failed", "the supervisor ended before it had answered; the journal says what came of it")


async def answers_to(path: Path, message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all lines of the answer; raise as :func:`request` does."""
    async with aclosing(request(path, message)) as answers:
        return [answer async for answer in answers]


def is_running(path: Path) -> bool:
    """Whether a supervisor answers on the socket at *path*."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            with reach(path) as address:
                probe.connect(address)
        except OSError:
            return False
    return True


def problems_of(path: Path) -> list[str]:
    """Return a sentence for each resource (disk, descriptors) that the supervisor on the socket at *path* waits for
    now; none if it does not answer."""
    try:
        answer = anyio.run(_ping, path)
    except (NotRunning, StateDirError, BadInput, ControlError, TimeoutError):
        return []
    found = (msgspec.convert(answer["outage"], Outage | None), msgspec.convert(answer["shortage"], Shortage | None))
    return [one.words for one in found if one is not None]


async def _ping(path: Path) -> dict[str, Any]:
    with anyio.fail_after(ANSWER_S):
        return (await answers_to(path, {"do": "ping"}))[0]


async def _connect(path: Path) -> ByteStream:
    try:
        with reach(path) as address:
            return await anyio.connect_unix(address)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        raise NotRunning(path) from None
    except PermissionError:
        raise unreadable_error(path.parent.parent) from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise BadInput(f"{path.parent.parent} cannot be a state directory: {error.strerror}") from None
        raise ControlError("failed", f"{path}: {error.strerror or error}") from None
