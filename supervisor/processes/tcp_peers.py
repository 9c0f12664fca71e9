"""Find the process at the other end of a TCP connection from this machine, and decide whether it is one of ours.

The kernel does not say who has connected over TCP, but lists every socket with its inode in ``/proc/net/tcp``, and
every open file of a process in ``/proc/PID/fd``. The client's socket has our addresses the other way round; whoever
holds its inode may write to it, so all holders count: one of our programs among them makes the client an agent.

Only the sockets of our own user are looked for: another user's program is none of ours. A connection from another
machine has no line in the list. What cannot be proved is ``UNIDENTIFIED``, and may only read; but while no program of
a session runs, there is nobody whom it could be mistaken for.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from supervisor.ports import Caller, Origin
from supervisor.ports.shortages import shortage_of

_LISTS: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LOCAL, _REMOTE, _UID, _INODE = 1, 2, 7, 9
"""Indices of the fields of a line (proc_net_tcp.rst of the kernel)."""
_UNPROVED: Final = "the process at the other end of the TCP connection cannot be found; use the Unix socket"


class TcpPeer(NamedTuple):
    """The other end of a connection: whether it is on this machine, the user and the inode of its socket (``None``: the
    kernel does not list it), and the processes of this user that hold the socket."""

    is_here: bool
    found: _Socket | None
    pids: tuple[int, ...]


class _Socket(NamedTuple):
    uid: int
    inode: int


def find_peer(connection: socket.socket) -> TcpPeer:
    """Find the other end of *connection*. Reads ``/proc``, and may be called in a thread.

    Raises:
        OSError: the client has left, or no file descriptor is left.
    """
    remote, local = connection.getpeername(), connection.getsockname()
    found = _find(remote, local)
    is_ours = found is not None and found.uid == os.geteuid()
    pids = tuple(_holders(found.inode)) if found is not None and is_ours else ()
    return TcpPeer(found is not None or _is_here(remote, local), found, pids)


def is_same_peer(connection: socket.socket, peer: TcpPeer) -> bool:
    """Return whether the other end of *connection* still has the socket that *peer* had. Checked after the holders were
    identified: a client that has left meanwhile may have been another program.

    Raises:
        OSError: as for :func:`find_peer`.
    """
    return _find(connection.getpeername(), connection.getsockname()) == peer.found


def judge_peer(peer: TcpPeer, holders: Sequence[Caller], *, has_agents: bool) -> Caller:
    """Return who has connected, given the origins of the *holders* of the socket; *has_agents*: sessions run."""
    if not peer.is_here or (peer.found is not None and peer.found.uid != os.geteuid()):
        return Caller(Origin.OPERATOR, 0)
    for origin in (Origin.AGENT, Origin.UNIDENTIFIED, Origin.OPERATOR):
        if (worst := next((one for one in holders if one.origin is origin), None)) is not None:
            return worst
    return Caller(Origin.UNIDENTIFIED, 0, why=_UNPROVED) if has_agents else Caller(Origin.OPERATOR, 0)


def _is_here(remote: tuple[str, int], local: tuple[str, int]) -> bool:
    """Return whether the addresses show that the client runs on this machine."""
    host = remote[0].removeprefix("::ffff:")
    return host == local[0].removeprefix("::ffff:") or host.startswith("127.") or host == "::1"


def _find(client: tuple[str, int], server: tuple[str, int]) -> _Socket | None:
    """Return the socket in the kernel's list that is bound to the address *client* and connected to *server*."""
    wanted = [(one, other) for one in _spellings(client) for other in _spellings(server)]
    for path in _LISTS:
        with suppress(FileNotFoundError):  # a kernel without IPv6
            for line in path.read_text().splitlines()[1:]:
                fields = line.split()
                if (fields[_LOCAL], fields[_REMOTE]) in wanted:
                    return _Socket(int(fields[_UID]), int(fields[_INODE]))
    return None


def _spellings(address: tuple[str, int]) -> Iterator[str]:
    """Yield an address as the kernel writes it: words of four bytes in the machine's order, in hexadecimal; for an
    address of IPv4 also as one of IPv6."""
    host, port = address[0].removeprefix("::ffff:").partition("%")[0], address[1]
    packed = [socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)]
    if len(packed[0]) == 4:
        packed.append(bytes(10) + b"\xff\xff" + packed[0])
    for one in packed:
        words = [int.from_bytes(one[start : start + 4], "little") for start in range(0, len(one), 4)]
        yield f"{''.join(f'{word:08X}' for word in words)}:{port:04X}"


def _holders(inode: int) -> list[int]:
    """Return the pids of the processes of this user that have the socket with that inode open."""
    wanted, found = f"socket:[{inode}]", []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                links = os.listdir(f"/proc/{name}/fd")
                if any(_target(f"/proc/{name}/fd/{link}") == wanted for link in links):
                    found.append(int(name))
            except OSError as error:  # it has ended, or is another user's
                if shortage_of(error):
                    raise
    return found


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
