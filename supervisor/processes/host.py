"""The process host: starts programs under wardens, and sees to it that leaving a context leaves nothing behind.

Each program costs one task (it alone listens to the warden) and a handful of descriptors; both are gone when its
context is left. Leaving is shielded and bounded: terminate, kill, and at last give up and say so. What became of the
main process is learned from the warden, never from the end of output, which any descendant can hold open.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections import deque
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from types import TracebackType
from typing import Self, assert_never

import anyio
import msgspec
from anyio.abc import TaskGroup

from actors.waiting import to_the_end, within
from supervisor.policies.call_processes import ProcessSeen
from supervisor.ports import Caller, Launch, ProcessReport, SpawnError
from supervisor.ports.shortages import shortage_of
from supervisor.processes.containment import TAG_VARIABLE, UNCONTAINED, Containment
from supervisor.processes.descent import Process, caller_at
from supervisor.processes.descriptors import left
from supervisor.processes.fork_server_client import ForkServerClient
from supervisor.processes.pipes import Input, Output, ticks_now
from supervisor.processes.shim_client import Ended, Exited, Failed, Seen, ShimClient, Spawned, Status, encoded
from supervisor.processes.spawn_errors import check, refusal, shortage, silence

__all__ = ["ShimHost", "ShimProcess"]

LAUNCH_DESCRIPTORS = 8
"""Both ends of three pipes and of the lifeline; half of them are closed again once the warden has them."""
LAUNCH_SHIELD_S = 1.0
"""A warden says within some 30 ms whether its program runs; a loaded machine may take longer."""
KILL_EXTRA_S = 2.0
"""On top of ``kill_s``: for a loaded machine to run the warden at all."""
STRUCK_AT_ONCE = 100
"""Processes that one order names, so that the lifeline's buffer takes the line."""


LOOK_AGAIN_S = 0.05
"""Seconds between two looks at a process that cannot be waited for: an old kernel, or no descriptor is left."""


class _Look:
    """What a warden will have seen."""

    def __init__(self) -> None:
        self.there = anyio.Event()
        self.processes: tuple[ProcessSeen, ...] | None = ()

    def end(self, processes: tuple[ProcessSeen, ...] | None) -> None:
        self.processes = processes
        self.there.set()


class ShimProcess:
    """A running program under its warden: ``supervisor.ports.Process``."""

    def __init__(self, launch: Launch, keeping: ForkServerClient) -> None:
        self.report: ProcessReport | None = None
        self.session = launch.session
        self._launch = launch
        self._keeping = keeping
        self._pid = 0
        self._failed: Failed | None = None
        self._fate: Ended | None = None
        self._status: int | None = None
        self._order = "exit"
        self._ordered_at_s: float | None = None
        self._settled, self._exited, self._ended = anyio.Event(), anyio.Event(), anyio.Event()
        self._looks: deque[_Look] = deque()
        self._watching = anyio.CancelScope(shield=True)
        self._open()

    def _open(self) -> None:
        """Pipes and a warden, or nothing at all."""
        with ExitStack() as theirs, ExitStack() as ours:
            try:
                _check_left(self._launch.spare)
                stdin, self._stdin = _input(theirs, ours)
                stdout, self._stdout = _output(theirs, ours)
                stderr, self._stderr = _output(theirs, ours)
                self.shim_client = ShimClient(self._keeping, stdin, stdout, stderr)
            except ConnectionError as error:  # the keeper was gone before it could be asked, and so was the next one
                raise silence(self._launch, self._stderr.peek()) from error
            except OSError as error:
                if what := shortage_of(error):
                    raise shortage(self._launch, what, error) from error
                raise SpawnError(f"cannot start {self._launch.argv[0]!r}: no warden for it ({error})") from error
            ours.pop_all()

    # ------------------------------------------------------------------------------------------ the port
    @property
    def pid(self) -> int:
        """The main process."""
        return self._pid

    async def receive(self) -> bytes:
        """The next bytes of its standard output, at most 64 KiB; ``b""`` at the end."""
        return await self._stdout.receive()

    async def receive_err(self) -> bytes:
        """The next bytes of its standard error, at most 64 KiB; ``b""`` at the end."""
        return await self._stderr.receive()

    async def send(self, data: bytes) -> None:
        """Write all of *data* to its standard input; a closed input drops it silently."""
        await self._stdin.send(data)

    def close_input(self) -> None:
        """End of its standard input."""
        self._stdin.close()

    def signal(self, number: int) -> None:
        """Send a signal to the main process only; a number that is no signal is nothing."""
        if 0 < number < signal.NSIG:
            self.shim_client.order(b"signal %d" % number)

    def terminate(self) -> None:
        """SIGTERM, then SIGCONT, to the whole tree."""
        self._note_order("terminate")
        self.shim_client.terminate()

    def kill(self) -> None:
        """SIGKILL the whole tree until nothing is left."""
        self._note_order("kill")
        self.shim_client.kill()

    def clock(self) -> int:
        """Now, in clock ticks since the machine was started."""
        return ticks_now()

    @property
    def written_between(self) -> tuple[int, int]:
        """The ticks between which the output that was received last was written."""
        return self._stdout.written_between

    async def look(self) -> tuple[ProcessSeen, ...] | None:
        """The main process and its descendants, parents first; ``None``: they cannot be told."""
        if self._is_unknown:
            return None
        if not self._pid or self._exited.is_set():
            return ()
        look = _Look()
        if not self.shim_client.order(b"look"):  # no reply to it will come, and the next one is about another look
            return None
        self._looks.append(look)
        await look.there.wait()
        return look.processes

    def strike(self, found: Iterable[ProcessSeen], number: int) -> None:
        """Send a signal to these descendants, where they are still there."""
        words = [b"%d:%d" % (one.pid, one.born) for one in found]
        for start in range(0, len(words), STRUCK_AT_ONCE):
            self.shim_client.order(b"strike %d " % number + b" ".join(words[start : start + STRUCK_AT_ONCE]))

    async def wait_gone(self, pid: int) -> None:
        """Wait for the kernel to say that *pid* has ended; it may be a stranger's by then, so look again."""
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        except (OSError, AttributeError):
            await anyio.sleep(LOOK_AGAIN_S)
            return
        try:
            await anyio.wait_readable(pidfd)
        finally:
            os.close(pidfd)

    async def wait_exit(self) -> int | None:
        """The exit status of the main process, ``None`` when it is not known."""
        await self._exited.wait()
        return self._status

    async def wait_ended(self) -> ProcessReport:
        """Its fate, once the whole tree is gone and reaped, its warden too; also after the context was left."""
        await self._ended.wait()
        assert self.report is not None, "ended is set with the report"
        return self.report

    # ------------------------------------------------------------------------------------------ beginning
    async def launched(self) -> None:
        """Describe the program to the warden and wait until it runs.

        Raises:
            SpawnError: it does not.
        """
        # A cancellation waits for that moment: a program that has begun is always accounted for.
        with anyio.move_on_after(LAUNCH_SHIELD_S, shield=True):
            await self.shim_client.send(encoded(self._launch))
            await self._settled.wait()
        if not self._settled.is_set():
            await self._settled.wait()
        if self._failed is not None:
            raise refusal(self._launch, self._failed.step, self._failed.errno)
        if not self._pid:
            raise silence(self._launch, self._stderr.peek())

    async def watch(self) -> None:
        """Listen to the warden until it is gone. A cancellation from outside does not deafen it."""
        with self._watching:
            async for status in self.shim_client.statuses():
                self._learn(status)
            self._conclude(self._survived() if self._fate is None else self._reported(self._fate))

    def _learn(self, status: Status) -> None:
        match status:
            case Spawned(pid=pid):
                self._pid = pid
                self._settled.set()
            case Failed():
                self._failed = status
                self._settled.set()
            case Exited(status=number):
                self._status = number
                self._exited.set()
                self._end_looks()
            case Seen(processes=processes):
                if self._looks:
                    self._looks.popleft().end(processes)
            case Ended():
                self._fate = self._fate or status
            case _:
                assert_never(status)

    # ------------------------------------------------------------------------------------------ end
    def _note_order(self, order: str) -> None:
        if self._order != "kill":
            self._order = order
        if self._ordered_at_s is None:
            self._ordered_at_s = anyio.current_time()

    def _reported(self, fate: Ended) -> ProcessReport:
        return ProcessReport(
            pid=self._pid,
            status=self._status if fate.status is None else fate.status,
            ended_by=self._order if fate.ended_by == "lost" else fate.ended_by,
            killed=fate.killed,
            survivors=0,
            took_s=fate.took_s,
            outlived=fate.outlived,
        )

    def _survived(self) -> ProcessReport:
        """Warden and keeper were lost. The kernel kills the one's child with it; of the rest, we kill its group."""
        if self._pid:
            with suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
        return self._unknown(self._order)

    def _unknown(self, ended_by: str) -> ProcessReport:
        now_s = anyio.current_time()
        took_s = now_s - (now_s if self._ordered_at_s is None else self._ordered_at_s)
        return ProcessReport(
            pid=self._pid, status=self._status, ended_by=ended_by, killed=0, survivors=-1, took_s=took_s
        )

    def _end_looks(self) -> None:
        """The warden obeys no orders once the main process has ended."""
        while self._looks:
            self._looks.popleft().end(None if self._is_unknown else ())

    @property
    def _is_unknown(self) -> bool:
        """The warden was lost, and nobody can tell what is left."""
        return self.report is not None and self.report.survivors < 0

    def _conclude(self, report: ProcessReport) -> None:
        self.report = report
        self._end_looks()
        self._settled.set()
        self._exited.set()
        self._ended.set()

    async def leave(self, terminate_s: float, kill_s: float) -> None:
        """See the tree off: terminate, wait, kill, wait. What was ordered before is not said again."""
        self._stdin.close()
        try:
            if self.report is None and self._pid and self._order != "kill":
                if self._order == "exit":
                    self.terminate()
                await self._ended_within(terminate_s)
            if self.report is None:
                self.kill()
                await self._ended_within(kill_s + KILL_EXTRA_S)
        finally:
            self._watching.cancel()

    async def _ended_within(self, seconds: float) -> None:
        await within(seconds, self._ended.wait)

    def close(self) -> None:
        """Let go of everything, the warden included: it goes on alone if it is not done."""
        if self.report is None:
            self._conclude(self._unknown("kill"))
        for end in (self._stdin, self._stdout, self._stderr, self.shim_client):
            end.close()


def _check_left(spare: int) -> None:
    """So many descriptors must be left beside those that a launch takes.

    Raises:
        OSError: they are not.
    """
    free = left() if spare else None
    if free is not None and free < LAUNCH_DESCRIPTORS + spare:
        raise OSError(errno.EMFILE, f"{free} file descriptors are left, a launch takes {LAUNCH_DESCRIPTORS + spare}")


def _input(theirs: ExitStack, ours: ExitStack) -> tuple[int, Input]:
    reading, writing = os.pipe()
    theirs.callback(os.close, reading)
    end = Input(writing)
    ours.callback(end.close)
    return reading, end


def _output(theirs: ExitStack, ours: ExitStack) -> tuple[int, Output]:
    reading, writing = os.pipe()
    theirs.callback(os.close, writing)
    end = Output(reading)
    ours.callback(end.close)
    return writing, end


class _Spawned(AbstractAsyncContextManager[ShimProcess]):
    """One ``async with host.spawn(...)``: entered and left by one task."""

    def __init__(
        self,
        keeping: ForkServerClient,
        launch: Launch,
        terminate_s: float,
        kill_s: float,
        running: dict[ShimProcess, None],
    ) -> None:
        self._keeping = keeping
        self._running = running
        self._launch = launch
        self._terminate_s = terminate_s
        self._kill_s = kill_s
        self._nursery: TaskGroup = anyio.create_task_group()

    async def __aenter__(self) -> ShimProcess:
        check(self._launch)
        self._process = ShimProcess(self._launch, self._keeping)
        self._running[self._process] = None
        await self._nursery.__aenter__()
        self._nursery.start_soon(self._process.watch)
        try:
            await self._process.launched()
        except BaseException:
            await self._leave()
            raise
        return self._process

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave()

    async def _leave(self) -> None:
        """The nursery is never told of the body's exception, so that it leaves as it is, not in a group."""
        self._nursery.cancel_scope.shield = True
        try:
            await self._process.leave(self._terminate_s, self._kill_s)
        finally:
            await self._let_go()

    async def _let_go(self) -> None:
        try:
            await self._nursery.__aexit__(None, None, None)
        finally:
            del self._running[self._process]
            self._process.close()  # not before nobody waits on it


class ShimHost:
    """Starts programs, each under a warden of its own: ``supervisor.ports.ProcessHost``.

    Entered before it is used; leaving it waits for the keeper, which waits for everything.
    """

    def __init__(self, containment: Containment = UNCONTAINED) -> None:
        if os.name != "posix":
            raise RuntimeError("processes can be supervised on Linux (fully) and macOS (weakly) only: run it there")
        self._tag = {TAG_VARIABLE: containment.tag} if containment.tag else {}
        self.keeping = ForkServerClient(containment)
        self._running: dict[ShimProcess, None] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await to_the_end(self.keeping.close)

    def spawn(
        self, launch: Launch, *, terminate_s: float = 2.0, kill_s: float = 1.0
    ) -> AbstractAsyncContextManager[ShimProcess]:
        """Start *launch*. Leaving the context ends the whole tree within ``terminate_s + kill_s + KILL_EXTRA_S``.

        Raises:
            SpawnError: the program is missing, not executable, or the working directory does not exist.
        """
        if self._tag:
            launch = msgspec.structs.replace(launch, env={**launch.env, **self._tag})
        return _Spawned(self.keeping, launch, terminate_s, kill_s, self._running)

    def caller_at(self, connection: socket.socket, pid: int) -> Caller:
        """Tell who has connected, with that pid by the kernel's word: one of our programs, an operator's, or nobody can
        say. A warden that was let go of before its end is its keeper's: of no session, and ours all the same."""
        return caller_at(connection, pid, self._ours)

    def _ours(self) -> dict[Process, str]:
        shims = {one.shim_client.shim: one.session for one in self._running}
        return {**dict.fromkeys(self.keeping.fork_servers, ""), **shims}
