"""Membership: this host's lease on its name, and the hosts that have one.

A lease is an entry of the directory with a time to live, put again every ``BEAT_S``. Each renewal expects the number of
the one before, so two processes of one name find each other at the next beat, also if one was frozen or is a copy of
the other. A host that ends in order leaves its entry, marked as left; one that is killed is absent when its lease is
over. An engine that does not answer says nothing about any host.
"""

from __future__ import annotations

import os
import secrets
import socket
from typing import Final

import msgspec

from supervisor.fleet.ports import Conflict, Directory, Entry, FleetError

BEAT_S: Final = 3.0
"""Seconds between two renewals of a lease."""
LEASE_S: Final = 15
"""Seconds for which a lease lasts. It outlasts the election of a leader among the servers (4 to 8 s)."""
FORMAT: Final = 1
_TRIES: Final = 5


class NameTaken(FleetError):
    """Error: another host of the fleet has this host's name."""


class HostRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Entry of a host: its state directory (*instance*, a random id), process, machine, version of the runtime, the
    Unix time of its start, and whether it has left in order."""

    format: int
    instance: str
    process: str
    pid: int
    machine: str
    version: str
    since: float
    has_left: bool = False


class Membership:
    """Lease of *host* in *directory*. *instance* is the id of the state directory; *now* is Unix time."""

    def __init__(self, directory: Directory, host: str, instance: str, version: str, now: float) -> None:
        self._directory, self._host = directory, host
        self._record = HostRecord(
            format=FORMAT,
            instance=instance,
            process=secrets.token_hex(8),
            pid=os.getpid(),
            machine=socket.gethostname(),
            version=version,
            since=now,
        )
        self._number = 0
        self._beats = 0

    async def join(self) -> None:
        """Take the lease; one that this state directory has had before is taken over.

        Raises:
            NameTaken: another state directory has it.
            EngineUnavailable: the engine does not answer.
        """
        for _ in range(_TRIES):
            entry = await self._directory.get(self._host)
            held = _decoded(entry)
            if held is not None and not held.has_left and held.instance != self._record.instance:
                raise NameTaken(
                    f"host: {self._host!r} is in the fleet already, on {held.machine} with pid {held.pid}; give this"
                    " host another name, or stop that one and wait until its lease is over"
                )
            try:
                await self._put(self._record, entry)
                return
            except Conflict:
                continue  # another process was first, or the lease has just expired: judge again
        raise NameTaken(f"host: {self._host!r} is taken by several processes at once; give each a name of its own")

    async def renew(self) -> None:
        """Renew the lease, also if it has expired meanwhile.

        Raises:
            NameTaken: another process has taken it.
            EngineUnavailable: the engine does not answer; the lease may expire.
        """
        entry: Entry | None = None
        for _ in range(_TRIES):
            try:
                await self._put(self._record, entry, self._number)
                return
            except Conflict:
                entry = await self._directory.get(self._host)
                held = _decoded(entry)
                if held is not None and held.process != self._record.process:
                    raise NameTaken(
                        f"host: {self._host!r} was taken by another process, on {held.machine} with pid {held.pid};"
                        " it has a copy of this state directory, or the lease was over; restart one of them under"
                        " another name"
                    ) from None
                self._number = entry.number if entry is not None else 0
        raise NameTaken(f"host: {self._host!r} is taken by several processes at once; give each a name of its own")

    async def leave(self) -> None:
        """Mark the entry as left: it stays, so that the others know."""
        record = msgspec.structs.replace(self._record, has_left=True)
        self._beats += 1
        await self._directory.put(
            self._host,
            msgspec.json.encode(record),
            expected=self._number,
            message_id=f"{record.process}:{self._beats}",
            ttl_s=None,
        )

    async def _put(self, record: HostRecord, entry: Entry | None, number: int = 0) -> None:
        self._beats += 1
        self._number = await self._directory.put(
            self._host,
            msgspec.json.encode(record),
            expected=entry.number if entry is not None else number,
            message_id=f"{record.process}:{self._beats}",
            ttl_s=LEASE_S,
        )

    async def others(self) -> dict[str, tuple[HostRecord, float]]:
        """Return the records of all hosts, this one included, each with the time at which it was put by the engine's
        clock; hosts whose lease is over are absent."""
        found: dict[str, tuple[HostRecord, float]] = {}
        for key in await self._directory.keys():
            entry = await self._directory.get(key)
            record = _decoded(entry)
            if entry is not None and record is not None:
                found[key] = (record, entry.stored_at)
        return found


def _decoded(entry: Entry | None) -> HostRecord | None:
    """Return the record in an entry; ``None`` if the entry is free. One that this version cannot read is taken."""
    if entry is None or entry.body is None:
        return None
    try:
        return msgspec.json.decode(entry.body, type=HostRecord)
    except msgspec.MsgspecError:
        return HostRecord(
            format=0, instance="", process="", pid=0, machine="an unknown machine", version="unknown", since=0.0
        )
