"""Client of the control socket: sends a request to a running supervisor, and reads the reply line by line.

Each kind of failure has its own error message: no supervisor runs, a supervisor runs and cannot be reached or does not
reply, the supervisor refuses, or the supervisor ended before its reply. Whether a supervisor runs is decided by the
lock of the state directory, never by the socket.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteReceiveStream

from supervisor.control.error_messages import BadInput, ControlError, NotRunning
from supervisor.journal.statedir import LockHolder, StateDir, StateDirError, socket_address, unreadable_error
from supervisor.ports import UnidentifiedProcess
from supervisor.ports.outages import Outage, Shortage

if TYPE_CHECKING:
    from supervisor.control.requests import Request

QUIET_S: Final = 2.5
"""Seconds without the first line of the reply after which a client checks, on another connection, whether the
supervisor still responds. The reply itself has no time limit: an abort, for example, is answered when all has
ended."""

QUIET_MAX_S: Final = 60.0
"""Longest pause in seconds between two checks of one request; each pause is twice as long as the pause before."""

PING_S: Final = 2.5
"""Seconds that a supervisor has for its reply to a ping."""

UNIDENTIFIED_SHOWN: Final = 10
"""Largest number of processes of unknown origin that a command names."""


_PING: Final = {"do": "ping"}
"""Content of a ``Ping``. Commands that only read send no other request, and need not import the models of requests,
which takes as long as all their other imports together."""


class NoReply(ControlError):
    """The supervisor accepts connections and does not reply."""

    def __init__(self, path: Path) -> None:
        root = path.parent.parent
        holder = StateDir(root).lock_holder() or LockHolder(None, None)
        super().__init__(
            "failed",
            f"{holder.words} runs on {root} and does not answer: the process is suspended, or too busy; ask again, or "
            "end it with `kill -9`",
        )


class ReplyLost(ControlError):
    """The supervisor ended, or closed the connection, before its reply was complete."""

    def __init__(self) -> None:
        words = "the connection was closed before the reply was complete; the journal has the result"
        super().__init__("failed", words)


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
    """Return the supervisor's reply to a ping: its pid, the outage or shortage that it waits for, and the processes of
    unknown origin.

    Raises:
        NoReply: no reply came within ``PING_S`` seconds.
        NotRunning, StateDirError, BadInput, ControlError: as :func:`request`.
    """
    with anyio.move_on_after(PING_S):
        async with aclosing(_exchange(path, _PING)) as answers:
            async for answer in answers:
                return answer
    raise NoReply(path)


async def answers_to(path: Path, asked: Request) -> list[dict[str, Any]]:
    """Send a request, and return every line of the reply, once the reply is complete. Raises the errors of
    :func:`request`."""
    async with aclosing(request(path, asked)) as answers:
        return [answer async for answer in answers]


def problems_of(path: Path) -> list[str]:
    """Return a sentence for each outage or shortage that the supervisor waits for now, such as a disk or descriptors,
    one for the processes of unknown origin, or one for the reason why the supervisor cannot be asked."""
    try:
        answer = anyio.run(ping, path)
    except (NotRunning, StateDirError, BadInput):
        return []
    except ControlError as error:
        return [str(error)]
    found = (msgspec.convert(answer["outage"], Outage | None), msgspec.convert(answer["shortage"], Shortage | None))
    strangers = msgspec.convert(answer["unidentified"], tuple[UnidentifiedProcess, ...])
    return [*(one.words for one in found if one is not None), *unidentified_words(strangers)]


def unidentified_words(found: Sequence[UnidentifiedProcess]) -> list[str]:
    """Return the sentence that lists processes of unknown origin; no sentence if there is none."""
    if not found:
        return []
    sessions = ", ".join(sorted({session for one in found for session in one.sessions if session})) or "an agent"
    named = ", ".join(f"{one.pid} ({one.name})" for one in found[:UNIDENTIFIED_SHOWN])
    more = f" and {len(found) - UNIDENTIFIED_SHOWN} more" if len(found) > UNIDENTIFIED_SHOWN else ""
    at = datetime.fromtimestamp(min(one.since for one in found)).astimezone().strftime("%H:%M:%S")
    return [
        f"at {at} the shim of {sessions} and the fork server were killed; these processes may have escaped, so they "
        f"may only read: {named}{more}. Start those again that are yours, and kill the others"
    ]


async def _connect(path: Path) -> ByteStream:
    try:
        with socket_address(path) as address:
            return await anyio.connect_unix(address)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        raise _unreachable(path) from None
    except PermissionError:
        raise unreadable_error(path.parent.parent) from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise BadInput(f"{path.parent.parent} cannot be a state directory: {error.strerror}") from None
        raise ControlError("failed", f"{path}: {error.strerror or error}") from None


def _unreachable(path: Path) -> NotRunning | ControlError:
    """Return the error to raise for a socket that is missing, or on which no process listens."""
    root = path.parent.parent
    holder = StateDir(root).lock_holder()
    if holder is None:
        return NotRunning(path)
    return ControlError(
        "failed",
        f"{holder.words} runs on {root} but cannot be reached: it has no control socket at {path} (it is starting or "
        "ending, its control server is being restarted, it was opened with control=False, or the file was removed)",
    )
