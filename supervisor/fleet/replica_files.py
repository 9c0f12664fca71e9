"""Files of replicas in the folder of the fleet: where the copy of a host's journal lies. Importing this module needs
neither an extra nor an event loop."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from supervisor.fleet.options import NAME
from supervisor.lifecycles.types import BEGINNING, RecordId

EPOCH: Final = re.compile(r"[0-9a-f]{16}")
"""Pattern of the name of an epoch, which is part of a path."""


class ReplicaState(msgspec.Struct, kw_only=True):
    """State of a host's replica: the epoch that is shown (``""``: none yet), the one that is written, the number and
    the position of its last batch, the position at which it is shown, and the time at which the engine stored the
    batch."""

    shown: str = ""
    epoch: str = ""
    number: int = 0
    position: RecordId = BEGINNING
    until: RecordId = BEGINNING
    stored_at: float = 0.0
    problem: str = ""


def replica_path(folder: Path, host: str) -> Path | None:
    """Return the path of the journal that is shown of *host*; ``None`` if there is none yet. *folder* is that of the
    fleet in a state directory."""
    state = read_replica_state(folder, host)
    return journal_of(folder, host, state.shown) if state.shown else None


def read_replica_state(folder: Path, host: str) -> ReplicaState:
    """Return the state of the replica of *host*; an empty one if there is none."""
    try:
        found = msgspec.json.decode((home_of(folder, host) / "replica.json").read_bytes(), type=ReplicaState)
    except (OSError, msgspec.MsgspecError):
        return ReplicaState()
    is_sound = all(not one or EPOCH.fullmatch(one) for one in (found.shown, found.epoch))
    return found if is_sound else ReplicaState()


def replicated_hosts(folder: Path) -> list[str]:
    """Return the names of the hosts of which there is a replica, in order."""
    try:
        return sorted(one.name for one in (folder / "hosts").iterdir() if NAME.fullmatch(one.name))
    except OSError:
        return []


def home_of(folder: Path, host: str) -> Path:
    return folder / "hosts" / host


def journal_of(folder: Path, host: str, epoch: str) -> Path:
    return home_of(folder, host) / epoch / "journal.db"
