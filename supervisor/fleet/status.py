"""Status of a fleet as a host sees it: a file that the daemon writes, and commands read. Importing this module needs no
extra."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from supervisor.ports.secure_files import write_private

HERE: Final = "here"
ALIVE: Final = "alive"
LEFT: Final = "left"
SILENT: Final = "silent"
UNKNOWN: Final = "unknown"
STATES: Final[Mapping[str, str]] = {
    HERE: "this host",
    ALIVE: "its lease is renewed",
    LEFT: "it has ended in order",
    SILENT: "its lease is over: it was killed, is frozen, or cannot reach the servers",
    UNKNOWN: "the servers do not answer this host, so nothing is known",
}
"""States of a host, and what each means."""


class HostStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a host: ``heard_at`` is the Unix time of its last lease by the servers' clock, ``mirrored_at`` that of
    its last batch of records (``None``: none came), and ``problem`` says why its records are not shown."""

    name: str
    state: str
    machine: str = ""
    pid: int | None = None
    version: str = ""
    since: float | None = None
    heard_at: float | None = None
    mirrored_at: float | None = None
    problem: str = ""


class FleetStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a fleet at the Unix time ``written_at``. ``problem`` says why the servers cannot be used; records of
    this host then wait (``is_behind``) until they can. ``replicas`` is the number of servers that store each record;
    ``ahead_s`` is how far this host's clock is ahead of theirs."""

    fleet: str
    host: str
    servers: tuple[str, ...]
    written_at: float
    problem: str = ""
    replicas: int = 0
    is_behind: bool = False
    ahead_s: float | None = None
    hosts: tuple[HostStatus, ...] = ()


def write_status(folder: Path, status: FleetStatus) -> None:
    """Write the status into the folder of the fleet of a state directory.

    Raises:
        OSError: the system refuses.
    """
    write_private(folder / "status.json", msgspec.json.encode(status).decode())


def read_status(folder: Path) -> FleetStatus | None:
    """Return the last status that was written into *folder*; ``None`` if this state directory is in no fleet."""
    try:
        return msgspec.json.decode((folder / "status.json").read_bytes(), type=FleetStatus)
    except (OSError, msgspec.MsgspecError):
        return None
