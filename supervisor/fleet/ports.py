"""Ports of the fleet's engine: a log with one key for each host, and a directory of entries that expire.

Both are written by compare-and-set: an append names the number of the last entry of its key, and is refused if that is
no longer the last one. The number is what others call a fencing token: a host that was frozen, and whose place another
process has taken, is refused at its next append. An append with the same *message_id* and the same expectation may be
repeated until its outcome is known: it is stored once.

Each method may raise :class:`EngineUnavailable`. Then an append may have been stored, or may still be stored later.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class FleetError(Exception):
    """Error: the fleet cannot be used; the message has the fix."""


class EngineUnavailable(FleetError):
    """Error: the engine does not answer, or cannot store anything now. A later try may succeed."""


class Conflict(FleetError):
    """Error: the key's last entry is not the expected one, and is not the caller's. Nothing was stored."""


class Entry(NamedTuple):
    """Entry of a key. ``number`` counts the entries of all keys, ``stored_at`` is Unix time by the engine's clock, and
    ``body`` is ``None`` where an entry of the directory has expired."""

    key: str
    number: int
    body: bytes | None
    message_id: str
    stored_at: float


class EventLog(Protocol):
    """Log of each key, in one order for all keys."""

    @property
    def body_bytes_max(self) -> int:
        """Largest number of bytes of a body that can be appended."""
        ...

    async def append(self, key: str, body: bytes, *, expected: int, message_id: str) -> int:
        """Append an entry to *key*, whose last entry is the number *expected* (0: it has none); return its number.

        Raises:
            Conflict: another entry is the last one.
            EngineUnavailable: the outcome is unknown.
        """
        ...

    async def last(self, key: str) -> Entry | None:
        """Return the last entry of *key*, or an earlier one if the engine is behind; ``None`` if it shows none."""
        ...

    async def following(self, number: int, key: str | None = None) -> Entry | None:
        """Return the first entry after *number*, of *key* or of all keys; ``None`` if it is not there yet."""
        ...

    async def end(self) -> int:
        """Return the largest number that an entry of any key has had; 0 if there was none."""
        ...

    async def remove_before(self, key: str, number: int) -> None:
        """Remove the entries of *key* before *number*."""
        ...


class Directory(Protocol):
    """Last entry of each key, each with a time after which it expires unless it is put again."""

    async def put(self, key: str, body: bytes, *, expected: int, message_id: str, ttl_s: int | None) -> int:
        """Replace the entry of *key*, whose number is *expected* (0: there is none); return the new number. The entry
        expires after *ttl_s* seconds by the engine's clock; ``None``: never.

        Raises:
            Conflict: the entry has another number.
            EngineUnavailable: the outcome is unknown.
        """
        ...

    async def get(self, key: str) -> Entry | None:
        """Return the entry of *key*; an expired one without a body as long as the engine remembers it."""
        ...

    async def keys(self) -> list[str]:
        """Return the keys of all entries, expired ones that the engine remembers included, in order."""
        ...


class Engine(Protocol):
    """Log and directory that the hosts of a fleet share."""

    @property
    def log(self) -> EventLog: ...

    @property
    def directory(self) -> Directory: ...

    @property
    def replicas(self) -> int:
        """Number of servers that store each entry; 0 until it is known."""
        ...

    async def now(self) -> float:
        """Return the Unix time of the engine's clock."""
        ...

    async def close(self) -> None: ...
