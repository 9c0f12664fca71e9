"""Service of a host in a fleet: four loops beside the sessions, none of which a session waits for.

    lease     renews the lease every ``BEAT_S``, and sees which hosts have one
    mirror    mirrors new records, ``MIRROR_S`` after they are written at the latest
    replicas  takes new records of the other hosts every ``LOOK_S``
    status    writes the status for the commands every ``BEAT_S``, also while the engine does not answer

An engine that is away is logged once, and tried again: records wait in the journal. A host whose name another process
has taken mirrors nothing more, until it is started again; its sessions go on.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import TaskStatus

from supervisor.fleet.membership import BEAT_S, HostRecord, Membership, NameTaken
from supervisor.fleet.mirror import Mirror, SecondWriter
from supervisor.fleet.options import BadFleetOptions, FleetOptions
from supervisor.fleet.ports import Engine, EngineUnavailable, FleetError
from supervisor.fleet.replica_files import ReplicaState
from supervisor.fleet.replicas import Replicas
from supervisor.fleet.status import (
    ALIVE,
    HERE,
    LEFT,
    SILENT,
    UNKNOWN,
    FleetStatus,
    HostStatus,
    read_status,
    write_status,
)
from supervisor.ports import FollowRecords, Journal, JournalError
from supervisor.ports.logs import get_logger
from supervisor.ports.secure_files import make_private, write_private

MIRROR_S: Final = 0.2
"""Seconds between two looks at the journal."""
LOOK_S: Final = 0.5
"""Seconds between two looks at the log of the fleet."""
AGAIN_S: Final = 1.0
"""Seconds until a loop tries again after an error."""
LEAVE_S: Final = 3.0
"""Seconds for the last entry of a host that ends."""
AHEAD_MAX_S: Final = 60.0
"""Largest difference, in seconds, of this host's clock and the servers' with which a host may join."""

_log = get_logger()


class FleetService:
    """Service of this host in a fleet.

    Args:
        options: the options of the host.
        engine: what the hosts share.
        folder: the folder of the fleet in the state directory.
        version: version of the runtime.
    """

    def __init__(self, options: FleetOptions, engine: Engine, folder: Path, version: str) -> None:
        self._options, self._engine, self._folder = options, engine, folder
        self._instance = _read_instance(folder / "instance")
        self._membership = Membership(engine.directory, options.host_name, self._instance, version, time.time())
        self._records: dict[str, tuple[HostRecord, float]] = {}
        """Records of the hosts that have ever been seen by this process, and when each was put."""
        self._present: frozenset[str] = frozenset()
        self._is_member = False
        self._problems: dict[str, str] = {}
        """Present problem of each loop that has one."""
        self._taken = ""
        """Message of the error by which this host has lost its name; ``""``: it has it."""
        self._ahead_s: float | None = None

    async def join(self) -> None:
        """Join the fleet, before anything else of the daemon begins. A state directory that has been in this fleet
        before joins it later if the servers do not answer: its sessions are not to wait for them.

        Raises:
            BadFleetOptions: this host cannot join; the message has the fix.
        """
        try:
            now = time.time()
            self._ahead_s = now - await self._engine.now()
            if abs(self._ahead_s) > AHEAD_MAX_S:
                where = "ahead of" if self._ahead_s > 0 else "behind"
                raise BadFleetOptions(
                    f"fleet: the clock of this host is {abs(self._ahead_s):.0f} s {where} the servers' clock;"
                    " set it, for example by NTP"
                )
            await self._membership.join()
            self._is_member = True
            make_private(self._folder)  # only now: a start that is refused leaves nothing
            write_private(self._folder / "instance", self._instance)
        except OSError as error:
            raise BadFleetOptions(f"fleet: {self._folder} cannot be written: {error.strerror}") from None
        except EngineUnavailable as error:
            former = read_status(self._folder)
            if former is None or former.fleet != self._options.name:
                raise BadFleetOptions(f"fleet: {error}") from None
            self._note("lease", str(error))
        except FleetError as error:
            raise BadFleetOptions(f"fleet: {error}") from None

    async def close(self) -> None:
        await self._engine.close()

    async def run(
        self, journal: Journal, follow: FollowRecords, closing: anyio.Event, *, task_status: TaskStatus[None]
    ) -> None:
        """Run the loops until *closing* is set; then leave the fleet in order."""
        mirror = Mirror(self._engine.log, journal, follow, self._options.host_name, self._folder)
        replicas = Replicas(self._engine.log, self._folder, self._options.host_name)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._keep_lease)
                group.start_soon(self._keep_status, mirror, replicas)
                group.start_soon(self._repeat, "mirror", mirror.step, MIRROR_S)
                group.start_soon(self._repeat, "replicas", replicas.step, LOOK_S)
                task_status.started()
                await closing.wait()
                group.cancel_scope.cancel()
            if not self._taken:
                with anyio.move_on_after(LEAVE_S):
                    await self._leave()
        finally:
            with anyio.CancelScope(shield=True):
                await replicas.close()

    async def _leave(self) -> None:
        try:
            await self._membership.leave()
        except FleetError as error:
            _log.warning("the fleet does not know that this host ends; its lease will be over", why=str(error))

    async def _repeat(self, loop: str, step: Callable[[], Awaitable[bool]], pause_s: float) -> None:
        """Call *step* again and again: at once while it has more to do, else after *pause_s*."""
        while True:
            wait_s = pause_s
            try:
                if not self._taken and await step():
                    wait_s = 0.0
                self._note(loop, "")
            except SecondWriter as error:
                self._lose(error)
            except (FleetError, JournalError, OSError) as error:
                self._note(loop, str(error))
                wait_s = AGAIN_S
            await anyio.sleep(wait_s)

    async def _keep_lease(self) -> None:
        while True:
            try:
                if not self._taken:
                    await (self._membership.renew() if self._is_member else self._membership.join())
                    self._is_member = True
                found = await self._membership.others()
                self._records |= found
                self._present = frozenset(found)
                self._note("lease", "")
            except NameTaken as error:
                self._lose(error)
            except FleetError as error:
                self._note("lease", str(error))
            await anyio.sleep(BEAT_S)

    async def _keep_status(self, mirror: Mirror, replicas: Replicas) -> None:
        while True:
            try:
                write_status(self._folder, self._status(mirror, replicas))
            except OSError as error:
                _log.warning("the status of the fleet cannot be written", why=str(error))
            await anyio.sleep(BEAT_S)

    def _note(self, loop: str, problem: str) -> None:
        """Note the problem of a loop, or that it has none; log when one begins and ends."""
        if problem and loop not in self._problems:
            _log.warning("a part of the fleet's service cannot go on; it is tried again", part=loop, why=problem)
        elif not problem and loop in self._problems:
            _log.warning("a part of the fleet's service goes on", part=loop)
        if problem:
            self._problems[loop] = problem
        else:
            self._problems.pop(loop, None)

    def _lose(self, error: FleetError) -> None:
        if not self._taken:
            _log.error("this host mirrors nothing more", why=str(error))
        self._taken = str(error)

    def _status(self, mirror: Mirror, replicas: Replicas) -> FleetStatus:
        own = self._options.host_name
        names = sorted({own, *self._records, *replicas.states})
        return FleetStatus(
            fleet=self._options.name,
            host=own,
            servers=self._options.servers,
            written_at=time.time(),
            problem=self._taken or next(iter(self._problems.values()), ""),
            replicas=self._engine.replicas,
            is_behind=mirror.is_behind,
            ahead_s=self._ahead_s,
            hosts=tuple(self._host_status(name, replicas.states.get(name, ReplicaState())) for name in names),
        )

    def _host_status(self, name: str, replica: ReplicaState) -> HostStatus:
        record, heard_at = self._records.get(name, (None, None))
        return HostStatus(
            name=name,
            state=self._state_of(name, record),
            machine=record.machine if record is not None else "",
            pid=record.pid if record is not None else None,
            version=record.version if record is not None else "",
            since=record.since if record is not None else None,
            heard_at=heard_at,
            mirrored_at=replica.stored_at or None,
            problem=replica.problem,
        )

    def _state_of(self, name: str, record: HostRecord | None) -> str:
        if name == self._options.host_name:
            return HERE
        if "lease" in self._problems:
            return UNKNOWN
        if record is None or name not in self._present:
            return SILENT
        return LEFT if record.has_left else ALIVE


def _read_instance(path: Path) -> str:
    """Return the id of the state directory, or a new one."""
    try:
        return path.read_text().strip() or secrets.token_hex(8)
    except (OSError, UnicodeDecodeError):
        return secrets.token_hex(8)
