"""Ping of a running supervisor over the control socket, without an event loop.

Commands that only read send no other request. An event loop, and the models of requests, would each take them as long
to import as everything else that such a command needs.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Any, Final

import msgspec

from supervisor.control.error_messages import BadInput, ControlError, NotRunning
from supervisor.journal.statedir import LockHolder, StateDir, StateDirError, socket_address, unreadable_error
from supervisor.ports import UnidentifiedProcess
from supervisor.ports.outages import Outage, Shortage

PING_S: Final = 2.5
"""Seconds that a supervisor has for its reply to a ping."""

UNIDENTIFIED_SHOWN: Final = 10
"""Largest number of processes of unknown origin that a command names."""

PING: Final = {"do": "ping"}
"""Content of a ``Ping``."""

_PIECE_BYTES: Final = 64 * 1024


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


class Unreachable(ControlError):
    """A supervisor holds the state directory, and has no control socket: nothing was sent to it."""


class ReplyLost(ControlError):
    """The supervisor ended, or closed the connection, before its reply was complete."""

    def __init__(self) -> None:
        words = "the connection was closed before the reply was complete; the journal has the result"
        super().__init__("failed", words)


def ping_now(path: Path) -> dict[str, Any]:
    """Return the reply of the supervisor whose control socket is at *path* to a ping: its pid, the outage or shortage
    that it waits for, and the processes of unknown origin. Block until then.

    Raises:
        NoReply: no reply came within ``PING_S`` seconds.
        NotRunning: no supervisor runs on the state directory.
        StateDirError, BadInput: this user may not send requests, or there can be no such path.
        ControlError: the supervisor cannot be reached, has refused, or ended before its reply.
    """
    until = monotonic() + PING_S
    line = b""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PING_S)
            with socket_address(path) as address:
                connection.connect(address)
            connection.sendall(msgspec.json.encode(PING) + b"\n")
            while b"\n" not in line:
                connection.settimeout(max(0.001, until - monotonic()))
                piece = connection.recv(_PIECE_BYTES)
                if not piece:
                    raise ReplyLost
                line += piece
    except TimeoutError:
        raise NoReply(path) from None
    except (BrokenPipeError, ConnectionResetError):
        raise ReplyLost from None
    except OSError as error:
        raise connection_error(path, error) from None
    reply: dict[str, Any] = msgspec.json.decode(line.partition(b"\n")[0])
    if "error" in reply:
        raise ControlError(reply["error"]["kind"], reply["error"]["message"])
    return reply


def connection_error(path: Path, error: OSError) -> Exception:
    """Return the error to raise where the control socket at *path* cannot be connected to because of *error*."""
    if isinstance(error, FileNotFoundError | NotADirectoryError | ConnectionRefusedError):
        return _unreachable(path)
    if isinstance(error, PermissionError):
        return unreadable_error(path.parent.parent)
    if error.errno == errno.ENAMETOOLONG:
        return BadInput(f"{path.parent.parent} cannot be a state directory: {error.strerror}")
    return ControlError("failed", f"{path}: {error.strerror or error}")


def problems_of(path: Path) -> list[str]:
    """Return a sentence for each outage or shortage that the supervisor waits for now, such as a disk or descriptors,
    one for the processes of unknown origin, or one for the reason why the supervisor cannot be asked."""
    try:
        answer = ping_now(path)
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


def _unreachable(path: Path) -> NotRunning | Unreachable:
    """Return the error to raise for a socket that is missing, or on which no process listens."""
    root = path.parent.parent
    holder = StateDir(root).lock_holder()
    if holder is None:
        return NotRunning(path)
    return Unreachable(
        "failed",
        f"{holder.words} runs on {root} but cannot be reached: it has no control socket at {path} (it is starting or "
        "ending, its control server is being restarted, it was opened with control=False, or the file was removed)",
    )
