"""Test adapters for the two implementations of the process port, the simulated and the real one, with the operations on
each world that a test needs."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

import anyio
import anyio.lowlevel
from trio.testing import MockClock

from supervisor.ports import Launch, Process, ProcessHost
from supervisor.processes import shim
from supervisor.processes.host import ShimHost, ShimProcess
from supervisor.simulation.faults import FaultPlan
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.machine.kernel import Program
from supervisor.simulation.machine.process import SimulatedProcess
from supervisor.simulation.machine.processes import ProcessEvent, SimulatedProcesses
from tests.simulated import VirtualLoop
from tests.support import wait_for_exit
from tests.unit.processes.contract.scripts import script_of, simulated

DEADLINE_S = 120.0
VIRTUAL_DEADLINE_S = 1e6
SEEDS = range(5)

Case = Callable[[], Awaitable[None]]


class Port(Protocol):
    """Process host under test, and operations on the world in which its processes run."""

    host: ProcessHost

    def run(self, case: Case) -> None:
        """Run *case*, then check that no process is left after it."""
        ...

    def lose_shim(self, process: Process) -> None:
        """Kill the shim of *process*."""
        ...

    async def orphans_dead(self, process: Process) -> None:
        """Wait until every process that the shim of *process* has adopted so far is dead, whether reaped or not."""
        ...


# -------------------------------------------------------------------------------------------------------- simulated
def run_virtually(backend: str, case: Case) -> None:
    """Run *case* in virtual time, with a virtual deadline."""

    async def bounded() -> None:
        with anyio.fail_after(VIRTUAL_DEADLINE_S):
            await case()

    options: dict[str, Any] = {"loop_factory": VirtualLoop}
    if backend == "trio":
        options = {"clock": MockClock(autojump_threshold=0)}
    anyio.run(bounded, backend=backend, backend_options=options)


class SimulatedPort:
    """Test adapter for simulated processes in virtual time; a case runs with several seeds and without faults."""

    host: SimulatedProcesses

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self.events: list[ProcessEvent] = []

    def run(self, case: Case) -> None:
        for seed in SEEDS:
            run_virtually(self._backend, partial(self._world, KeyedRandom(seed), case))

    async def _world(self, random: KeyedRandom, case: Case) -> None:
        async with anyio.create_task_group() as group:
            faults = FaultPlan(random, intensity=0.0)
            self.host = SimulatedProcesses(group, program_for, faults=faults, random=random, observe=self.events.append)
            await case()
            assert self.host.kernel.table == {}

    def lose_shim(self, process: Process) -> None:
        assert isinstance(process, SimulatedProcess)
        process.shim.lose()

    async def orphans_dead(self, process: Process) -> None:
        while any(one.status is None for one in self.host.kernel.table.values() if one.pid != process.pid):
            await anyio.lowlevel.checkpoint()


def program_for(launch: Launch) -> Program:
    """Return the simulated program for *launch*, or raise the error with which a real kernel would refuse the launch;
    files are looked up on the real disk."""
    if not os.path.isdir(launch.cwd):
        os.listdir(launch.cwd)
    steps = script_of(launch.argv)
    if steps is None:
        path = shutil.which(launch.argv[0], os.F_OK, launch.env.get("PATH"))
        raise PermissionError(13, "not executable") if path else FileNotFoundError(2, "missing")
    return simulated(steps)


# ------------------------------------------------------------------------------------------------------------- real
class RealPort:
    """Test adapter for real processes. During a case this test process adopts every process that escapes a shim, and
    checks afterwards that there was no such process."""

    host: ShimHost

    def __init__(self, backend: str) -> None:
        self._backend = backend

    def run(self, case: Case) -> None:
        adopt(True)
        before, family = descriptors(), children()
        try:
            anyio.run(self._bounded, case, backend=self._backend)
        finally:
            escaped = children() - family
            collect(escaped)
            adopt(False)
        assert not escaped
        assert descriptors() == before

    async def _bounded(self, case: Case) -> None:
        with anyio.fail_after(DEADLINE_S):
            async with ShimHost() as self.host:
                await case()

    def lose_shim(self, process: Process) -> None:
        assert isinstance(process, ShimProcess)
        os.kill(process.shim_client.pid, signal.SIGKILL)

    async def orphans_dead(self, process: Process) -> None:
        assert isinstance(process, ShimProcess)
        await wait_for_exit(*set(shim.children(process.shim_client.pid)) - {process.pid})


def adopt(orphans: bool) -> None:
    ctypes.CDLL(None).prctl(shim.PR_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0)


def children() -> set[int]:
    return set(shim.children(os.getpid()))


def collect(pids: set[int]) -> None:
    shim.send(pids, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)


def descriptors() -> set[str]:
    return {fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}
