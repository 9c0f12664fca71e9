"""The shim of a simulated program: the behaviour of ``supervisor.processes.shim``, in virtual time.

Theory of operation: the shim starts the program, adopts its orphans, and carries out orders as long as the main process
lives. When the main process has ended, or the supervisor has died, the shim kills its remaining children, and the
orphans that it adopts meanwhile, until no child is left; then the shim reports the end. If the main process was asked
to end, the others have the time until the shim is ordered to kill them, unless they ignore the signal. Deaths are
handled before orders, so an order that comes too late finds the process gone. Each round of the shim takes a drawn
moment, as on a busy machine. When a shim is lost (killed), the main process dies with the shim, as on a real kernel;
the fork server adopts and kills the other processes.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import anyio
import msgspec

from actors.waiter import ResettableEvent
from supervisor.policies.call_processes import ProcessSeen
from supervisor.processes.shim import OUTLIVED_MAX
from supervisor.processes.shim_client import Ended, Exited, Failed, ProcessesListed, Spawned, Status
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.machine.kernel import Kernel, OsProcess, Parent
from supervisor.simulation.machine.launching import LaunchDraws, NotStarted
from supervisor.simulation.machine.pipe import Pipe

START_MIN_S: Final = 0.001
START_MAX_S: Final = 0.05
TURN_MAX_S: Final = 0.02

OnStatus = Callable[[Status], None]
"""Function of the supervisor's end that takes in a status of the shim."""


class SimulatedShim:
    """Simulated shim: a subreaper with one program, whose standard streams are ``pipes``.

    Args:
        lost_after_s: seconds after which the shim is lost, if it still exists.
    """

    def __init__(
        self,
        kernel: Kernel,
        what: LaunchDraws,
        pipes: tuple[Pipe, Pipe, Pipe],
        random: KeyedRandom,
        lost_after_s: float,
    ) -> None:
        self.children: dict[int, OsProcess] = {}
        self._kernel = kernel
        self._what = what
        self._pipes = pipes
        self._random = random
        self._lost_after_s = lost_after_s
        self._fate = anyio.CancelScope()
        self._report: OnStatus | None = None
        self._orphaned = False
        self._orders: deque[Callable[[], None]] = deque()
        self._wakeup = ResettableEvent()
        self._turns = 0
        self._pid = 0
        self._status: int | None = None
        self._over = False
        self._terminating = False
        self._asked = 0
        """Signal by which the program, or its tree, was asked to end last; 0 before."""
        self._sweeping = False
        self._cut_short = False
        self._killed = 0
        self._since_s: float | None = None

    # ------------------------------------------------------------------------------------------ as a parent
    def child_ended(self, child: OsProcess) -> None:
        self._wakeup.set()

    def adopter(self) -> Parent:
        return self

    # ------------------------------------------------------------------------------------------ orders: never wait
    def signal(self, number: int) -> None:
        """Order a signal for the main process."""
        self._order(partial(self._signal, number))

    def terminate(self) -> None:
        """Order SIGTERM for the whole process tree."""
        self._order(self._terminate)

    def list_processes(self) -> None:
        """Order a report of the main process and its descendants."""
        self._order(self._report_processes)

    def signal_processes(self, found: Iterable[ProcessSeen], number: int) -> None:
        """Order a signal for these descendants of the shim."""
        self._order(partial(self._signal_seen, {one.pid: one.born for one in found}, number))

    def kill(self) -> None:
        """Order the kill of the whole process tree, as the end of the real shim's pipe does."""
        self._order(self._end)

    def supervisor_died(self) -> None:
        """Order the kill of the process tree, since the supervisor has died; a program that was not started yet is
        never started."""
        self._orphaned = True
        self.kill()

    def lose(self) -> None:
        """Kill the shim itself."""
        self._fate.cancel()

    def _order(self, order: Callable[[], None]) -> None:
        self._orders.append(order)
        self._wakeup.set()

    # ------------------------------------------------------------------------------------------ its life
    async def run(self, report: OnStatus) -> None:
        """Run the shim until the main process has ended, kill the process tree, and report the end. If the shim is lost
        before, report the end of a lost shim."""
        self._report = report
        self._fate.deadline = self._kernel.now() + self._lost_after_s
        with self._fate:
            await self._serve(report)
        if self._fate.cancelled_caught:
            await self._end_as_lost(report)
        self._report = None  # they would keep each other

    async def _serve(self, report: OnStatus) -> None:
        await anyio.sleep(self._random.between(START_MIN_S, START_MAX_S, "start"))
        self._start(report)
        while not self._over:
            await self._wakeup.wait()
            await self._delay()
            self._wakeup.clear()
            self._reap(report)
            while self._orders:
                self._orders.popleft()()
            if self._status is not None and not any(map(self._may_obey, self._kernel.below(self))):
                self._over = True
        outlived = await self._kill_tree(report)
        now_s = self._kernel.now()
        took_s = now_s - (now_s if self._since_s is None else self._since_s)
        ended = Ended(status=self._status, ended_by=self._ended_by(), killed=self._killed, took_s=took_s)
        report(msgspec.structs.replace(ended, outlived=outlived))

    async def _delay(self) -> None:
        """Let a drawn moment pass, until the busy machine runs this shim again."""
        self._turns += 1
        await anyio.sleep(self._random.between(0.0, TURN_MAX_S, "turn", self._turns))

    def _start(self, report: OnStatus) -> None:
        if self._orphaned:
            self._over = True
            return
        try:
            program = self._what.program()
        except NotStarted as error:
            self._over = True
            report(Failed(error.step, error.number))
        else:
            name = self._what.name
            main = OsProcess(self._kernel, self, self._what.launch, name, owner=name, reaper=self, session=None)
            main.hold(*self._pipes)
            self._pid = main.pid
            self._kernel.begin(main, program)
            report(Spawned(self._pid))

    def _signal(self, number: int) -> None:
        if self._status is None:
            self._asked = number
            for process in self._kernel.below(self):
                if process.session == self._pid:
                    process.deliver(number)

    def _terminate_deaf(self) -> None:
        """Terminate the processes that do not get the signal by which the main process was asked to end."""
        if self._asked not in (0, signal.SIGTERM):
            for process in self._kernel.below(self):
                if process.session != self._pid:
                    process.deliver(signal.SIGTERM)

    def _may_obey(self, process: OsProcess) -> bool:
        is_asked_so = self._asked != signal.SIGTERM and process.session == self._pid
        return process.status is None and (is_asked_so or not process.ignores_term)

    def _terminate(self) -> None:
        self._asked = int(signal.SIGTERM)
        main = self.children.get(self._pid)
        self._terminating = self._terminating or (main is not None and main.runs)
        self._since()
        for process in self._kernel.below(self):
            process.deliver(signal.SIGTERM)

    def _report_processes(self) -> None:
        assert self._report is not None, "it obeys no order before it runs"
        self._report(ProcessesListed(tuple([one.seen() for one in self._kernel.below(self)])))

    def _signal_seen(self, born: dict[int, int], number: int) -> None:
        for process in self._kernel.below(self):
            if born.get(process.pid) == process.seen().born:
                process.deliver(number)

    def _end(self) -> None:
        self._over = True

    def _since(self) -> None:
        if self._since_s is None:
            self._since_s = self._kernel.now()

    # ------------------------------------------------------------------------------------------ its end
    def _reap(self, report: OnStatus) -> None:
        for child in list(self.children.values()):
            if child.status is None:
                continue
            self._kernel.reap(child)
            if child.pid == self._pid:
                self._status = child.status
                self._over = self._over or not self._asked
                report(Exited(child.status))
                self._terminate_deaf()
            elif self._sweeping and child.status == -signal.SIGKILL:
                self._killed += 1

    async def _kill_tree(self, report: OnStatus) -> tuple[ProcessSeen, ...]:
        """Kill the shim's children until no child is left. Return the processes that outlived the main process."""
        self._sweeping, self._cut_short = True, self._status is None
        alive = [one.seen() for one in self._kernel.below(self) if one.runs]
        outlived = () if self._status is None else tuple([one for one in alive if not one.server][:OUTLIVED_MAX])
        self._since()
        while self.children:
            self._kill_children()
            await self._delay()
            self._reap(report)
        return outlived

    def _kill_children(self) -> None:
        """Kill the children, and the descendants of those that the kernel is ending: these have no other parent yet."""
        for child in self._kernel.below(self):
            if child.runs and (child.parent is self or self._is_hidden(child)):
                self._kernel.note("killed", child, "by its warden")
                child.end(-signal.SIGKILL)

    def _is_hidden(self, process: OsProcess) -> bool:
        above: Parent = process
        while isinstance(above, OsProcess) and above.parent is not self:
            above = above.parent
        return isinstance(above, OsProcess) and above.exiting

    def exiting(self) -> tuple[int, ...]:
        """Return the processes that are left below the shim, if the kernel is ending all of them; else nothing."""
        left = [process for process in self._kernel.below(self) if process.status is None]
        return tuple([process.pid for process in left]) if all(process.exiting for process in left) else ()

    def _ended_by(self) -> str:
        if self._cut_short and self._status == -signal.SIGKILL:
            return "kill"
        return "terminate" if self._terminating else "exit"

    async def _end_as_lost(self, report: OnStatus) -> None:
        """Report the end of a lost shim: the main process dies with the shim, the fork server kills the other
        processes."""
        now_s = self._kernel.now()
        main = self.children.get(self._pid)
        if main is not None and main.runs:
            self._kernel.note("killed", main, "with its warden")
            main.end(-signal.SIGKILL)
        killed = len(self._kernel.below(self))
        while self.children:
            self._kill_children()
            await self._delay()
            for child in list(self.children.values()):
                if child.status is not None:
                    self._kernel.reap(child)
        took_s = self._kernel.now() - now_s
        report(Ended(status=None, ended_by="lost", killed=killed, took_s=took_s))
