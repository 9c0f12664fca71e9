"""Simulated processes behind ``supervisor.ports.ProcessHost``: the real host's contract, on a simulated kernel.

The tests of the contract run on ``supervisor.processes.ShimHost`` and on this host. Processes and their shims run in
the outside world's task group, so they go on whatever happens to the supervisor's tasks.

The name of a launch is the environment variable ``SIMULATED_NAME``, or else the directory and argv, with a number: the
draws of the third launch with a name are those of ``name#3``, in every run of a seed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio
import msgspec
from anyio.abc import TaskGroup

from supervisor.ports import Launch, OnExiting
from supervisor.processes.spawn_errors import check_launch
from supervisor.simulation.faults import FaultPlan
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.machine.kernel import Kernel, OsProcess, Program
from supervisor.simulation.machine.launching import PIECES, LaunchDraws
from supervisor.simulation.machine.process import SimulatedProcess

NAME_VARIABLE: Final = "SIMULATED_NAME"
NAME_MAX: Final = 120


class ProcessEvent(msgspec.Struct, frozen=True):
    """Event of a simulated process at virtual time *at*, in seconds.

    ``what`` is ``spawned``, ``signalled``, ``killed`` (by the process's shim or with the shim), ``exiting`` (the kernel
    takes time to end the process; detail: the status), ``exited`` (detail: the status), ``reaped``, or ``abandoned``
    (the context of the process was left, and the shim is not done). ``owner`` is the launch's name.
    """

    at: float
    what: str
    pid: int
    owner: str
    detail: str


class SimulatedProcesses:
    """Process host that starts simulated programs, each under a separate shim: ``supervisor.ports.ProcessHost``.

    Args:
        group: the outside world's task group, in which processes run.
        program_for: function that returns the program of a launch. An ``OSError`` means that no program can be started;
            if the error's ``filename`` is the launch's working directory, the error is about that directory.
        faults: the fault plan; only ``process.spawn_error`` and ``process.warden_lost`` are queried, by the launch's
            name.
        random: random draws for delays, and for the pieces in which output arrives.
        observe: called with every event of a process.
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
        self, launch: Launch, *, terminate_s: float = 2.0, kill_s: float = 1.0, on_exiting: OnExiting | None = None
    ) -> AsyncIterator[SimulatedProcess]:
        """Start the program of *launch* under a shim, as the port describes. Leaving the context takes at most
        ``terminate_s + kill_s + KILL_EXTRA_S`` seconds, without processes that the kernel is ending."""
        check_launch(launch)
        process = self._begin(launch, terminate_s, kill_s, on_exiting)
        try:
            await process.launched()
            yield process
        finally:
            try:
                if process.report is None:  # else there is nothing to wait for
                    with anyio.CancelScope(shield=True):
                        await process.leave()
            finally:
                if process.report is None:  # the context is left before the shim is done
                    self._observe(ProcessEvent(self.kernel.now(), "abandoned", process.pid, process.name, ""))
                process.close()

    # ------------------------------------------------------------------------------------------ for the world
    def crash(self) -> None:
        """Close the supervisor's pipe ends, and make every shim kill its process tree within some moments, as when the
        supervisor dies."""
        for process in list(self._running):
            process.close_ends()
            process.shim.supervisor_died()

    # ------------------------------------------------------------------------------------------ for its processes
    def _begin(
        self, launch: Launch, terminate_s: float, kill_s: float, on_exiting: OnExiting | None
    ) -> SimulatedProcess:
        """Start a shim for *launch*, and return the process under the shim."""
        name = launch.env.get(NAME_VARIABLE) or f"{launch.cwd}$ {' '.join(launch.argv)[:NAME_MAX]}"
        self._launches[name] = number = self._launches.get(name, 0) + 1
        start = LaunchDraws(launch, f"{name}#{number}", self._program_for, self._faults, self._random, self._pieces)
        start.need_descriptors()
        process = SimulatedProcess(self.kernel, start, terminate_s, kill_s, on_exiting)
        self._running[process] = None
        self._group.start_soon(self._run, process)
        return process

    async def _run(self, process: SimulatedProcess) -> None:
        await process.shim.run(process.receive_status)
        del self._running[process]
        process.shim_gone()

    def _note(self, what: str, process: OsProcess, detail: str) -> None:
        self._observe(ProcessEvent(self.kernel.now(), what, process.pid, process.owner, detail))
