"""Simulated processes behind ``supervisor.ports.ProcessHost``: the real host's contract, on a simulated kernel.

The tests of the contract run on ``supervisor.processes.ShimHost`` and on this host. Processes and their shims run in
the outside world's task group, so they go on whatever becomes of the supervisor's tasks.

A launch is named by its variable ``SIMULATED_NAME``, or else by its directory and argv, and numbered: the draws of its
third incarnation are those of ``name#3``, in every run of a seed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio
import msgspec
from anyio.abc import TaskGroup

from actors.waiter import current_backend
from supervisor.ports import Launch
from supervisor.processes.spawn_errors import check_launch
from supervisor.simulation.faults import FaultPlan
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.machine.kernel import Kernel, OsProcess, Program
from supervisor.simulation.machine.launching import PIECES, LaunchDraws
from supervisor.simulation.machine.process import SimulatedProcess

NAME_VARIABLE: Final = "SIMULATED_NAME"
NAME_MAX: Final = 120


class ProcessEvent(msgspec.Struct, frozen=True):
    """Event of a process at virtual time *at*, in seconds.

    ``what`` is ``spawned``, ``signalled``, ``killed`` (by its shim or with it), ``exited`` (detail: the status),
    ``reaped``, or ``abandoned`` (its context was left, and its shim is not done). ``owner`` is the launch's name.
    """

    at: float
    what: str
    pid: int
    owner: str
    detail: str


class SimulatedProcesses:
    """Starts simulated programs, each under its own shim: ``supervisor.ports.ProcessHost``.

    Args:
        group: the outside world's task group, in which processes live.
        program_for: the program of a launch; an ``OSError`` of it means that there is none that can be started, and
            one whose ``filename`` is the launch's working directory is about that.
        faults: of which only ``process.spawn_error`` and ``process.warden_lost`` are asked for, by the launch's name.
        random: for delays, and for the pieces in which output arrives.
        observe: told of everything that happens to a process.
        pieces: the share of the output streams that are cut into pieces, 0 to 1.
    """

    def __init__(
        self,
        group: TaskGroup,
        program_for: Callable[[Launch], Program],
        *,
        faults: FaultPlan,
        random: KeyedRandom,
        observe: Callable[[ProcessEvent], None],
        pieces: float = PIECES,
    ) -> None:
        self.kernel = Kernel(group, self._note)
        self.checkpoint = current_backend().checkpoint
        self._group = group
        self._program_for = program_for
        self._faults = faults
        self._random = random
        self._observe = observe
        self._pieces = pieces
        self._launches: dict[str, int] = {}
        self._running: dict[SimulatedProcess, None] = {}

    # ------------------------------------------------------------------------------------------ for the supervisor
    @asynccontextmanager
    async def spawn(
        self, launch: Launch, *, terminate_s: float = 2.0, kill_s: float = 1.0
    ) -> AsyncIterator[SimulatedProcess]:
        """Start *launch*. Leaving the context ends the whole tree within ``terminate_s + kill_s + KILL_EXTRA_S``.

        Raises:
            SpawnError: the program cannot be started.
        """
        check_launch(launch)
        process = self.begin(launch)
        try:
            await process.launched()
            yield process
        finally:
            try:
                if process.report is None:  # else there is nothing to wait for
                    with anyio.CancelScope(shield=True):
                        await process.leave(terminate_s, kill_s)
            finally:
                process.close()

    # ------------------------------------------------------------------------------------------ for the world
    def crash(self) -> None:
        """Close all pipes, and let every shim kill its tree within some moments, as when the supervisor dies."""
        for process in list(self._running):
            process.close_ends()
            process.shim.supervisor_died()

    # ------------------------------------------------------------------------------------------ for its processes
    def begin(self, launch: Launch) -> SimulatedProcess:
        """Start a shim for *launch*.

        Raises:
            SpawnError: there cannot be one.
        """
        name = launch.env.get(NAME_VARIABLE) or f"{launch.cwd}$ {' '.join(launch.argv)[:NAME_MAX]}"
        self._launches[name] = number = self._launches.get(name, 0) + 1
        start = LaunchDraws(launch, f"{name}#{number}", self._program_for, self._faults, self._random, self._pieces)
        start.need_descriptors()
        process = SimulatedProcess(self, start)
        self._running[process] = None
        self._group.start_soon(process.shim.run, process)
        return process

    def forget(self, process: SimulatedProcess) -> None:
        """Forget a process whose shim is gone."""
        del self._running[process]

    def abandon(self, pid: int, owner: str) -> None:
        """Note that the context of a process was left before its shim was done."""
        self._observe(ProcessEvent(self.kernel.now(), "abandoned", pid, owner, ""))

    def _note(self, what: str, process: OsProcess, detail: str) -> None:
        self._observe(ProcessEvent(self.kernel.now(), what, process.pid, process.owner, detail))
