"""A simulated program as the supervisor sees it: ``supervisor.ports.Process``, whose real implementation is in
``supervisor.processes.host``.

Theory of operation: the process object knows only the statuses that its shim reports
(:meth:`SimulatedProcess.receive_status`), in the order started or failed, exited, ended. Orders go to the shim, which
carries out each order some moments later. Leaving the context is bounded: terminate, wait, kill, wait, and wait for
processes that the kernel is ending; then the report says that the fate is unknown, and the shim goes on alone.
``report`` is set once: with the last status, or as unknown.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable
from typing import assert_never

import anyio

from actors.one_shot_event import OneShotEvent
from actors.waiter import ResettableEvent
from actors.waiting import within
from supervisor.policies.call_processes import ProcessSeen
from supervisor.ports import OnExiting, ProcessReport
from supervisor.processes.exit_wait import ExitWait
from supervisor.processes.host import LAUNCH_SHIELD_S
from supervisor.processes.pipes import unsent
from supervisor.processes.shim_client import Ended, Exited, Failed, ProcessesListed, Spawned, Status
from supervisor.processes.spawn_errors import shim_ended_early
from supervisor.simulation.machine.kernel import Kernel
from supervisor.simulation.machine.launching import LaunchDraws
from supervisor.simulation.machine.pipe import Pipe
from supervisor.simulation.machine.shim import SimulatedShim


class _Inspection:
    """Request to the shim for the list of processes, and the reply."""

    def __init__(self) -> None:
        self.answered = OneShotEvent()
        self.found: tuple[ProcessSeen, ...] | None = ()

    def end(self, found: tuple[ProcessSeen, ...] | None) -> None:
        self.found = found
        self.answered.set()


class SimulatedProcess:
    """Simulated program under its shim, as the supervisor uses it: implements ``supervisor.ports.Process``, which
    describes the methods."""

    def __init__(
        self, kernel: Kernel, start: LaunchDraws, terminate_s: float, kill_s: float, on_exiting: OnExiting | None
    ) -> None:
        self.report: ProcessReport | None = None
        self.pid = 0
        """Pid of the main process; 0 while it is not started."""
        self._kernel = kernel
        self._terminate_s = terminate_s
        self._start, self.name = start, start.name
        self._failed: Failed | None = None
        self._fate: Ended | None = None
        self._status: int | None = None
        self._order = "exit"
        self._interrupted = False
        self._ordered_at_s: float | None = None
        self._settled, self._exited, self._ended = OneShotEvent(), OneShotEvent(), OneShotEvent()
        self._looks: deque[_Inspection] = deque()
        self._emptied = kernel.ticks()
        self.written_between = (self._emptied, self._emptied)
        """First and last tick (of the machine's clock) between which the most recently received output was written."""
        self._sending = False
        self._sent = ResettableEvent()
        self._stdin, self._stdout, self._stderr = Pipe(), Pipe(start.pieces("out")), Pipe(start.pieces("err"))
        self._unsent = b""
        self._open_input = True
        if not start.launch.has_input:
            self.close_input()
        pipes = (self._stdin, self._stdout, self._stderr)
        self.shim = SimulatedShim(kernel, start, pipes, start.random, start.lost_after_s)
        self._exit_wait = ExitWait(
            self.shim.exiting,
            self._ended.wait,
            kill_s=kill_s,
            on_exiting=on_exiting,
            now=kernel.now,
        )

    # ------------------------------------------------------------------------------------------ the port
    async def receive(self) -> bytes:
        if self._stdout.waits:
            self._emptied = self.clock()
        data = await self._receive(self._stdout)
        self.written_between = (self._emptied, self.clock())
        if self._stdout.waits:  # it arrives in pieces: only then was this all that had been written
            self._emptied = self.clock()
        return data

    async def receive_err(self) -> bytes:
        return await self._receive(self._stderr)

    async def _receive(self, pipe: Pipe) -> bytes:
        """Read from *pipe*; if the read does not have to wait, let other tasks run first."""
        if not pipe.waits:
            await self._kernel.checkpoint()
        return await pipe.read()

    async def send(self, data: bytes) -> None:
        while self._sending:
            self._sent.clear()
            await self._sent.wait()
        self._sending = True
        left = memoryview(self._unsent + data)
        try:
            while left and self._open_input and self._stdin.has_reader:
                left = left[self._stdin.put(left) :]
                if left:
                    await self._stdin.change()
        finally:
            self._unsent = unsent(left, data)
            self._sending = False
            self._sent.set()

    def close_input(self) -> None:
        if self._open_input:
            self._open_input = False
            self._stdin.close_writing()

    def signal(self, number: int) -> None:
        if 0 < number < signal.NSIG:  # another number has no effect
            self._interrupted = True
            self.shim.signal(number)

    def terminate(self) -> None:
        self._note_order("terminate")
        self.shim.terminate()

    def kill(self) -> None:
        self._note_order("kill")
        self.shim.kill()
        slow = any(process.exit_s for process in self._kernel.below(self.shim))
        if self.report is None and self._exit_wait.begin() and slow:  # else nothing is to be seen
            self._kernel.start_soon(self._exit_wait.run)

    def clock(self) -> int:
        return self._kernel.ticks()

    async def list_processes(self) -> tuple[ProcessSeen, ...] | None:
        if self._is_unknown:
            return None
        if not self.pid or self._exited.is_set():
            return ()
        look = _Inspection()
        self._looks.append(look)
        self.shim.list_processes()
        await look.answered.wait()
        return look.found

    def signal_processes(self, found: Iterable[ProcessSeen], number: int) -> None:
        self.shim.signal_processes(found, number)

    async def wait_gone(self, pid: int) -> None:
        process = self._kernel.table.get(pid)
        if process is not None:
            await process.dead.wait()

    async def wait_exit(self) -> int | None:
        await self._exited.wait()
        return self._status

    async def wait_ended(self) -> ProcessReport:
        """Wait for the report and return it. The report comes when the whole process tree is gone and reaped, also
        after the context was left."""
        await self._ended.wait()
        assert self.report is not None, "ended is set with the report"
        return self.report

    # ------------------------------------------------------------------------------------------ beginning
    async def launched(self) -> None:
        """Wait until the program runs; a cancellation takes effect only then.

        Raises:
            SpawnError: the program could not be started.
        """
        with anyio.move_on_after(LAUNCH_SHIELD_S, shield=True):
            await self._settled.wait()
        if not self._settled.is_set():
            await self._settled.wait()
        if self._failed is not None:
            raise self._start.refusal(self._failed.step, self._failed.errno)
        if not self.pid:
            raise shim_ended_early(self._start.launch, b"")

    # ------------------------------------------------------------------------------------------ what its warden says
    def receive_status(self, status: Status) -> None:
        """Take in a status that the shim reports."""
        match status:
            case Spawned(pid=pid):
                self.pid = pid
                self._settled.set()
            case Failed():
                self._failed = status
                self._settled.set()
            case Exited(status=number):
                self._status = number
                self._exited.set()
                self._end_looks()
                if self._interrupted:
                    self._kernel.start_soon(self._kill_remaining)
            case ProcessesListed(processes=processes):
                if self._looks:
                    self._looks.popleft().end(processes)
            case Ended():
                self._fate = status
            case _:
                assert_never(status)

    def shim_gone(self) -> None:
        """Conclude with the fate that the shim, or the fork server for it, reported."""
        if self.report is None:
            assert self._fate is not None, "its warden says so, or the keeper for it"
            self._conclude(self._reported(self._fate))

    # ------------------------------------------------------------------------------------------ end
    def _note_order(self, order: str) -> None:
        if self._order != "kill":
            self._order = order
        if self._ordered_at_s is None:
            self._ordered_at_s = self._kernel.now()

    def _reported(self, fate: Ended) -> ProcessReport:
        return ProcessReport(
            pid=self.pid,
            status=self._status if fate.status is None else fate.status,
            ended_by=self._order if fate.ended_by == "lost" else fate.ended_by,
            killed=fate.killed,
            survivors=0,
            took_s=fate.took_s,
            outlived=fate.outlived,
            exiting_s=self._exit_wait.exiting_s,
        )

    def _unknown(self) -> ProcessReport:
        now_s = self._kernel.now()
        took_s = now_s - (now_s if self._ordered_at_s is None else self._ordered_at_s)
        return ProcessReport(
            pid=self.pid,
            status=self._status,
            ended_by="kill",
            killed=0,
            survivors=-1,
            took_s=took_s,
            exiting_s=self._exit_wait.exiting_s,
        )

    def _conclude(self, report: ProcessReport) -> None:
        self.report = report
        self._settled.set()
        self._exited.set()
        self._end_looks()
        self._ended.set()

    def _end_looks(self) -> None:
        while self._looks:
            self._looks.popleft().end(None if self._is_unknown else ())

    @property
    def _is_unknown(self) -> bool:
        return self.report is not None and self.report.survivors < 0

    async def _kill_remaining(self) -> None:
        """Kill what is left below a main process that has exited after an interrupt, if it does not end in time."""
        await within(self._terminate_s, self._ended.wait)
        if self.report is None:
            self.kill()

    async def leave(self) -> None:
        """End the process tree: terminate, wait, kill, wait, and wait for processes that the kernel is ending. Orders
        that were given before are not repeated."""
        self.close_input()
        if self.report is None and self.pid and self._order != "kill":
            if self._order == "exit":
                self.terminate()
            await within(self._terminate_s, self._ended.wait)
        if self.report is None:
            self.kill()
            await self._exit_wait.run()

    def close(self) -> None:
        """Conclude with an unknown fate if there is no report yet, and close the pipes; a shim that is not done goes on
        alone."""
        if self.report is None:
            self._conclude(self._unknown())
        self.close_ends()

    def close_ends(self) -> None:
        """Close the supervisor's ends of the pipes."""
        self.close_input()
        self._stdout.close_reading()
        self._stderr.close_reading()
