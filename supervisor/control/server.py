"""Server of the control socket, for commands from another terminal. One request per connection, in JSON lines.

A request is ``{"do": "abort", ...}``; the reply is any number of lines and a last line, ``{"done": true}`` or
``{"error": {"kind": ..., "message": ...}}``. No client can disturb the supervisor or other clients: the reply to a bad
request is an error line, and a client that stops reading is disconnected.

At most ``clients_max`` clients are served at once: a broken monitor must not take the descriptors that agents need.
When all slots are in use, a new client receives the slot of the oldest client that has not sent its request; if there
is none, the slot of the oldest agent; else the new client receives an error line and may try again. If no file
descriptor is left (EMFILE, which anyio raises as ``BrokenResourceError``), a client is accepted with a descriptor held
in reserve, receives an error line, and is disconnected.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec
from anyio.abc import ByteStream, SocketAttribute, SocketListener, SocketStream, TaskGroup, TaskStatus
from anyio.streams.buffered import BufferedByteReceiveStream

from actors import failpoint
from supervisor.control.operations import OPERATIONS, Lines, admit, error_reply, read_request
from supervisor.control.requests import BadRequest, Request
from supervisor.journal.statedir import socket_address
from supervisor.ports import Caller, Origin
from supervisor.ports.json_text import decodable
from supervisor.ports.logs import get_logger
from supervisor.ports.shortages import shortage_of
from supervisor.processes.descriptors import Reserve, clients_max

if TYPE_CHECKING:
    from supervisor.host.api import Supervisor

LINE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Maximal number of bytes of a request: a plan has at most 1 MiB, and twice that as JSON."""

UNSENT_S: Final = 30.0
"""Seconds after which a client that has not sent its request is disconnected."""

CRASH_GRACE_S: Final = 1.0
"""Seconds that requests under way have for their replies after the accept loop has failed."""

REFUSE_S: Final = 1.0
"""Seconds that the refusal of a client may take; an error line fits into the buffer of a socket."""

_ACCEPT_AGAIN_S: Final = 0.1
_TOO_MANY: Final = "too many clients ({}) are connected to the supervisor; close some of them, or ask again later"
_RESTARTING: Final = "the control server failed and is started again; ask again"
_NO_DESCRIPTOR: Final = (
    "the supervisor has no file descriptor left; ask again later, or start it with a higher limit (`ulimit -n`)"
)
_UCRED: Final = struct.Struct("3i")
"""Format of ``struct ucred``: pid, uid, gid (unix(7))."""
_log = get_logger()


# -------------------------------------------------------------------------------------------------------- server
class Disconnected(Exception):
    """Raised when the client closed the connection, or does not read."""


class _Restarting(Exception):
    """Raised when the accept loop has failed: a client that follows events must connect again."""


class _Client:
    """Connection to a client: reads its request, and sends the lines of the reply."""

    def __init__(self, stream: ByteStream, stall_s: float) -> None:
        self._stream, self._stall_s = stream, stall_s

    async def request(self) -> Request:
        lines = BufferedByteReceiveStream(self._stream)
        try:
            with anyio.fail_after(UNSENT_S):
                line = await lines.receive_until(b"\n", LINE_BYTES_MAX)
        except anyio.DelimiterNotFound:
            raise BadRequest(f"the request is longer than {LINE_BYTES_MAX} bytes") from None
        except (anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError, TimeoutError):
            raise Disconnected from None
        try:
            data = msgspec.json.decode(decodable(line.decode(errors="replace")))
        except RecursionError:
            raise BadRequest("the request is nested too deeply") from None
        except msgspec.DecodeError as error:
            raise BadRequest(f"the request is not JSON: {error}") from None
        return read_request(data)

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send one line to the client; wait at most ``stall_s`` seconds if the client does not read."""
        try:
            with anyio.fail_after(self._stall_s):
                await self._stream.send(msgspec.json.encode(message) + b"\n")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, TimeoutError):
            raise Disconnected from None

    async def hung_up(self) -> None:
        """Return when the client closes its side of the connection; ignore further input."""
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                await self._stream.receive()


class _Handler:
    """Handles requests by calls to the supervisor and to the plans that it runs."""

    def __init__(self, sup: Supervisor, stall_s: float) -> None:
        self._sup, self._stall_s = sup, stall_s
        self._ending = anyio.Event()
        self._failed = False
        self.reserve = Reserve()
        """File descriptor for the identification or refusal of a client when no other descriptor is left."""

    def end(self, *, failed: bool) -> None:
        """End the replies to ``follow`` requests, which do not end on their own."""
        self._failed = failed
        self._ending.set()

    async def serve(self, stream: SocketStream, slot: _ClientSlot) -> None:
        async with stream:
            try:
                # Before the request is read: the process may end any time.
                with self.reserve.lent():
                    connection = stream.extra(SocketAttribute.raw_socket)
                    credentials = peer(connection)
                    pid = credentials[0] if credentials is not None else 0
                    slot.caller = self._sup.core.caller_at(connection, pid)
            except OSError:
                await self.refuse(stream, _NO_DESCRIPTOR)
                return
            with suppress(Disconnected):
                await self._answer(_Client(stream, self._stall_s), slot.caller, slot)

    async def refuse(self, stream: ByteStream, why: str) -> None:
        """Send a client the error reply ``busy``, and disconnect the client."""
        async with stream:
            with suppress(Disconnected):
                await _Client(stream, REFUSE_S).send({"error": {"kind": "busy", "message": why}})

    async def _answer(self, client: _Client, caller: Caller, slot: _ClientSlot) -> None:
        try:
            asked = await client.request()
            slot.idle = False
            await self._reply(admit(self._sup, asked, caller), client)
            last: dict[str, Any] = {"done": True}
        except Disconnected:
            raise
        except _Restarting:
            last = {"error": {"kind": "busy", "message": _RESTARTING}}
        except Exception as error:
            last = {"error": error_reply(error)}
        await client.send(last)

    async def _reply(self, asked: Request, client: _Client) -> None:
        operation = OPERATIONS[asked.do]
        async with aclosing(operation.handle(self._sup, asked)) as lines:
            if operation.lines is not Lines.ENDLESS:
                async for line in lines:
                    await client.send(line)
                return
            async with anyio.create_task_group() as group:
                group.start_soon(_then_cancel, client.hung_up, group)
                group.start_soon(_then_cancel, self._ending.wait, group)
                with suppress(Disconnected):
                    async for line in lines:
                        await client.send(line)
                group.cancel_scope.cancel()
        if self._failed:
            raise _Restarting


class _ClientSlot:
    """Slot for a client. A client that is idle, i.e. has not sent its request, may lose its slot."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.idle = True
        self.caller: Caller | None = None

    @property
    def can_be_taken(self) -> bool:
        """Whether the slot may be given to another client. True also for agents, whose requests may be cut short, so
        that agents cannot shut an operator out."""
        return self.idle or (self.caller is not None and self.caller.origin is not Origin.OPERATOR)


class _ClientSlots:
    """The slots in use, oldest first, at most ``clients_max``."""

    def __init__(self, handler: _Handler, group: TaskGroup) -> None:
        self._handler, self._group = handler, group
        self._slots: dict[int, _ClientSlot] = {}
        self._number = 0
        self._left = anyio.Event()
        self._full = False

    async def take(self, stream: SocketStream) -> None:
        """Serve a client in an asynchronous task of its own; if all slots are in use, in the slot of another client."""
        most = clients_max()
        while len(self._slots) >= most:
            takeable = [one for one in self._slots.values() if one.can_be_taken]
            idle = next((one for one in takeable if one.idle), next(iter(takeable), None))
            if not self._full:  # logged once, until a quarter of the slots is free again
                self._full = True
                which = "the one that has been idle for longest is" if idle else "the next ones are"
                _log.warning(f"too many clients of the control socket: {which} disconnected", clients=most)
            if idle is None:
                await self._handler.refuse(stream, _TOO_MANY.format(most))
                return
            self._left = anyio.Event()
            idle.scope.cancel()
            await self._left.wait()
        self._number += 1
        slot = self._slots[self._number] = _ClientSlot()
        self._group.start_soon(self._serve, self._number, slot, stream)

    async def _serve(self, number: int, slot: _ClientSlot, stream: SocketStream) -> None:
        try:
            with slot.scope:
                await self._handler.serve(stream, slot)
        finally:
            del self._slots[number]
            self._full = self._full and len(self._slots) > clients_max() * 3 // 4
            self._left.set()


async def _then_cancel(wait: Any, group: TaskGroup) -> None:
    await wait()
    group.cancel_scope.cancel()


async def serve_control(
    path: Path,
    sup: Supervisor,
    *,
    closing: anyio.Event,
    stall_s: float = 10.0,
    grace_s: float = 5.0,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve clients on the socket at *path* until *closing* is set. This is the loop of a service.

    Requests under way then have *grace_s* seconds for their replies. If the loop fails, they have ``CRASH_GRACE_S``
    seconds: the service's next incarnation can listen only when this incarnation has ended.

    The socket's file is not deleted, since another supervisor may have made its own file there by then. A client that
    connects to the old file is refused, and the next supervisor replaces the file. Only the holder of the directory's
    lock may call this function.

    Args:
        stall_s: seconds after which a client that reads nothing is disconnected.

    Raises:
        OSError: the socket cannot be made.
    """
    handler = _Handler(sup, stall_s)
    failure: Exception | None = None
    try:
        listener = await _listen(path)
        async with anyio.create_task_group() as clients:
            async with listener, anyio.create_task_group() as accepting:  # closed before the grace: clients are refused
                accepting.start_soon(_then_cancel, closing.wait, accepting)
                task_status.started()
                try:
                    await _accept(listener, handler, _ClientSlots(handler, clients))
                except Exception as error:
                    failure = error
                accepting.cancel_scope.cancel()
            handler.end(failed=failure is not None)
            clients.cancel_scope.deadline = anyio.current_time() + (grace_s if failure is None else CRASH_GRACE_S)
    finally:
        handler.reserve.close()
    if failure is not None:
        raise failure


async def _accept(listener: SocketListener, handler: _Handler, clients: _ClientSlots) -> None:
    """Accept clients until cancelled. anyio raises a ``BrokenResourceError`` for a system error of a Unix socket, on
    both backends; the listener is not closed meanwhile."""
    short = False
    while True:
        failpoint.crash("service", "control")
        try:
            stream = await listener.accept()
        except (OSError, anyio.BrokenResourceError) as error:
            if not shortage_of(error):
                _log.warning("control_accept_failed", error=str(error.__cause__ or error))  # the client has left
            elif not short:
                _log.warning("no file descriptor is left for a client of the control socket: clients are refused")
            short = bool(shortage_of(error))
            if short:
                await _refuse_next(listener, handler)
            await anyio.sleep(_ACCEPT_AGAIN_S)
        else:
            short = False
            try:
                if await _is_ours(stream):
                    await clients.take(stream)
            except BaseException:  # cancelled before a client's own task owns the stream
                await anyio.aclose_forcefully(stream)
                raise


async def _refuse_next(listener: SocketListener, handler: _Handler) -> None:
    """Accept the waiting client with the descriptor held in reserve, and refuse the client."""
    with handler.reserve.lent(), suppress(OSError, anyio.BrokenResourceError):
        with anyio.move_on_after(REFUSE_S):
            stream = await listener.accept()
            await handler.refuse(stream, _NO_DESCRIPTOR)


async def _is_ours(stream: SocketStream) -> bool:
    """Return whether the client is a process of this user or of root; close the connection of any other user without a
    reply. The mode of the socket's file should exclude other users already."""
    credentials = peer(stream.extra(SocketAttribute.raw_socket))
    if credentials is None or credentials[1] in (0, os.geteuid()):
        return True
    _log.warning("control_client_refused", uid=credentials[1])
    await stream.aclose()
    return False


def peer(connection: socket.socket) -> tuple[int, int] | None:
    """Return pid and uid of the process at the other end, as the operating system reports them; ``None`` on systems
    other than Linux."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(credentials)
    return pid, uid


async def _listen(path: Path) -> SocketListener:
    with socket_address(path) as address:
        return await anyio.create_unix_listener(address, mode=0o600)
