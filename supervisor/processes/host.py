"""Process host: starts programs under shims, and ends a program's whole process tree when its context is left.

Each program costs one task (the only reader of the shim's statuses) and a handful of descriptors; both are released
when the context is left. Leaving the context is shielded and bounded: terminate, kill, and finally give up and report
that. A killed process that the kernel is still ending runs no code any more (a process with 48 GiB of pinned memory
takes 8 s to end): the kernel is waited for, with a bound of its own. The end of the main process is learned from the
shim, never from end of file on the program's output, because any descendant can hold the output open.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack, asynccontextmanager, suppress
from math import inf
from typing import Self, assert_never

import anyio
import msgspec
from anyio.abc import TaskGroup

from actors.waiting import to_the_end, within
from supervisor.policies.call_processes import ProcessSeen
from supervisor.ports import Caller, Launch, OnExiting, ProcessReport, SpawnError, UnidentifiedProcess
from supervisor.ports.shortages import shortage_of
from supervisor.processes.containment import TAG_VARIABLE, UNCONTAINED, Containment, reap_adopted
from supervisor.processes.descent import caller_at, lineage_of, read_stat
from supervisor.processes.descriptors import free_descriptors
from supervisor.processes.exit_wait import ExitWait
from supervisor.processes.losses import is_running
from supervisor.processes.pipes import Input, Output, ticks_now
from supervisor.processes.shim_client import (
    Ended,
    Exited,
    Failed,
    ForkServerClient,
    ProcessesListed,
    ShimClient,
    Spawned,
    Status,
)
from supervisor.processes.spawn_errors import check_launch, resource_missing, shim_ended_early, step_failed

LAUNCH_DESCRIPTORS = 8
"""Number of descriptors that a launch needs: both ends of three pipes and of the control socket. Half of them are
closed again once the shim has received its copies."""
LAUNCH_SHIELD_S = 1.0
"""Seconds for which a launch ignores cancellation. A shim reports within 30 ms whether its program runs, on a loaded
machine later."""
PROCESSES_PER_ORDER = 100
"""Number of processes that one ``strike`` order names, so that the line fits into the buffer of the control socket."""
FOLLOW_S = 1.0
"""Seconds from one look for the processes below unidentified processes to the next, and between two starts of a fork
server that is killed again and again."""
POLL_S = 0.05
"""Seconds between two checks of a process whose end cannot be waited for, because of an old kernel or because no
descriptor is left."""


class _ListRequest:
    """Request for a list of processes (``look``) that was sent to the shim, and the shim's reply."""

    def __init__(self) -> None:
        self.there = anyio.Event()
        self.processes: tuple[ProcessSeen, ...] | None = ()

    def end(self, processes: tuple[ProcessSeen, ...] | None) -> None:
        self.processes = processes
        self.there.set()


class ShimProcess:
    """Running program under its shim; implements ``supervisor.ports.Process``."""

    def __init__(
        self,
        launch: Launch,
        fork_server: ForkServerClient,
        group: TaskGroup,
        kill_s: float,
        on_exiting: OnExiting | None,
    ) -> None:
        self.report: ProcessReport | None = None
        self._launch = launch
        self._group = group
        self._fork_server = fork_server
        self._pid = 0
        self._failed: Failed | None = None
        self._end_status: Ended | None = None
        self._status: int | None = None
        self._order = "exit"
        self._ordered_at_s: float | None = None
        self._start_known, self._exited, self._ended = anyio.Event(), anyio.Event(), anyio.Event()
        self._list_requests: deque[_ListRequest] = deque()
        self._reading = anyio.CancelScope(shield=True)
        # A cancelled child would cancel the group that is left shielded.
        self._watching = anyio.CancelScope(shield=True)
        self._open()
        self._exit_wait = ExitWait(
            self.shim_client.exiting,
            self._ended.wait,
            kill_s=kill_s,
            on_exiting=on_exiting,
            now=anyio.current_time,
        )

    def _open(self) -> None:
        """Open the pipes and let the fork server fork a shim; on failure close everything that was opened."""
        with ExitStack() as theirs, ExitStack() as ours:
            try:
                _check_free_descriptors(self._launch.spare)
                stdin, self._stdin = _input(theirs, ours)
                stdout, self._stdout = _output(theirs, ours)
                stderr, self._stderr = _output(theirs, ours)
                self.shim_client = ShimClient(self._fork_server, stdin, stdout, stderr, self._launch.session)
            except ConnectionError as error:  # two fork servers in a row were gone before they took the message
                raise shim_ended_early(self._launch, self._stderr.peek()) from error
            except OSError as error:
                if what := shortage_of(error):
                    raise resource_missing(self._launch, what, error) from error
                raise SpawnError(f"cannot start {self._launch.argv[0]!r}: no shim for it ({error})") from error
            ours.pop_all()

    # ------------------------------------------------------------------------------------------ the port
    @property
    def pid(self) -> int:
        """Process id of the main process; 0 until the program runs."""
        return self._pid

    async def receive(self) -> bytes:
        """Return the next bytes of standard output, at most 64 KiB; ``b""`` at the end."""
        return await self._stdout.receive()

    async def receive_err(self) -> bytes:
        """Return the next bytes of standard error, at most 64 KiB; ``b""`` at the end."""
        return await self._stderr.receive()

    async def send(self, data: bytes) -> None:
        """Write all of *data* to the program's standard input; if the input is closed, *data* is dropped silently."""
        await self._stdin.send(data)

    def close_input(self) -> None:
        """Close the program's standard input."""
        self._stdin.close()

    def signal(self, number: int) -> None:
        """Send a signal to the main process only; ignore a *number* that is no signal."""
        if 0 < number < signal.NSIG:
            self.shim_client.order(b"signal %d" % number)

    def terminate(self) -> None:
        """Send SIGTERM, then SIGCONT, to every process of the tree."""
        self._note_order("terminate")
        self.shim_client.terminate()

    def kill(self) -> None:
        """Send SIGKILL to every process of the tree until no process is left."""
        self._note_order("kill")
        self.shim_client.kill()
        if self.report is None and self._exit_wait.begin():
            self._group.start_soon(self._watch_end)

    def clock(self) -> int:
        """Return the current time, in clock ticks since the boot."""
        return ticks_now()

    @property
    def written_between(self) -> tuple[int, int]:
        """Clock ticks between which the output that was received last was written."""
        return self._stdout.written_between

    async def list_processes(self) -> tuple[ProcessSeen, ...] | None:
        """Return the main process and its descendants, parents first; ``None`` if they cannot be listed."""
        if self._is_unknown:
            return None
        if not self._pid or self._exited.is_set():
            return ()
        request = _ListRequest()
        # Replies carry no id and are matched in order, so a request that was not sent must not be queued.
        if not self.shim_client.order(b"look"):
            return None
        self._list_requests.append(request)
        await request.there.wait()
        return request.processes

    def signal_processes(self, found: Iterable[ProcessSeen], number: int) -> None:
        """Send the signal *number* to those processes of *found* that still run."""
        names = [b"%d:%d" % (process.pid, process.born) for process in found]
        for start in range(0, len(names), PROCESSES_PER_ORDER):
            self.shim_client.order(b"strike %d " % number + b" ".join(names[start : start + PROCESSES_PER_ORDER]))

    async def wait_gone(self, pid: int) -> None:
        """Wait until the kernel reports the end of the process *pid*; where this is not possible, wait for ``POLL_S``
        seconds.

        *pid* may belong to an unrelated process by now, so the caller must list the processes again.
        """
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        except (OSError, AttributeError):
            await anyio.sleep(POLL_S)
            return
        try:
            await anyio.wait_readable(pidfd)
        finally:
            os.close(pidfd)

    async def wait_exit(self) -> int | None:
        """Wait for the end of the main process, and return its exit status; ``None`` if the status is not known."""
        await self._exited.wait()
        return self._status

    async def wait_ended(self) -> ProcessReport:
        """Wait until the whole tree and the shim are gone and reaped, and return the report.

        The method can also be called after the context was left.
        """
        await self._ended.wait()
        assert self.report is not None, "ended is set with the report"
        return self.report

    # ------------------------------------------------------------------------------------------ start
    async def wait_started(self) -> None:
        """Send the launch to the shim and wait until the program runs.

        Raises:
            SpawnError: the program could not be started.
        """
        # Shielded: a cancellation in between would leave open whether the program has started.
        with anyio.move_on_after(LAUNCH_SHIELD_S, shield=True):
            await self.shim_client.send_launch(self._launch)
            await self._start_known.wait()
        if not self._start_known.is_set():
            # The shield may end in the middle of a large launch, of which the shim must get the rest.
            await self.shim_client.send_launch(self._launch)
            await self._start_known.wait()
        if self._failed is not None:
            raise step_failed(self._launch, self._failed.step, self._failed.errno)
        if not self._pid:
            raise shim_ended_early(self._launch, self._stderr.peek())

    async def read_statuses(self) -> None:
        """Apply the shim's statuses until the shim is gone. This task is shielded from cancellation from outside."""
        with self._reading:
            async with anyio.create_task_group() as group:
                group.start_soon(self._resume_fork_server)
                async for status in self.shim_client.statuses():
                    self._apply_status(status)
                group.cancel_scope.cancel()
            end = self._end_status
            if end is None:
                self._finish(await self._report_after_loss())
            else:
                report = ProcessReport(
                    pid=self._pid,
                    status=self._status if end.status is None else end.status,
                    ended_by=self._order if end.ended_by == "lost" else end.ended_by,
                    killed=end.killed,
                    survivors=0,
                    took_s=end.took_s,
                    outlived=end.outlived,
                    exiting_s=self._exit_wait.exiting_s,
                )
                self._finish(report)

    def _apply_status(self, status: Status) -> None:
        match status:
            case Spawned(pid=pid):
                self._pid = pid
                self._start_known.set()
            case Failed():
                self._failed = status
                self._start_known.set()
            case Exited(status=number):
                self._status = number
                self._exited.set()
                self._end_list_requests()
            case ProcessesListed(processes=processes):
                if self._list_requests:
                    self._list_requests.popleft().end(processes)
            case Ended():
                self._end_status = self._end_status or status
            case _:
                assert_never(status)

    # ------------------------------------------------------------------------------------------ end
    def _note_order(self, order: str) -> None:
        if self._order != "kill":
            self._order = order
        if self._ordered_at_s is None:
            self._ordered_at_s = anyio.current_time()

    async def _resume_fork_server(self) -> None:
        """Send the fork server SIGCONT when the shim has ended: a fork server that was stopped does not notice that."""
        await self._start_known.wait()
        await self.shim_client.wait_end()
        self._fork_server.resume()

    async def _report_after_loss(self) -> ProcessReport:
        """Kill what was lost with shim and fork server, as far as it is proven to be ours, and return the report.

        The kernel kills the main process together with its shim; this method also kills the main process's process
        group. The number of survivors is unknown if a process is left that may have escaped.
        """
        if self._pid:
            with suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
        with suppress(OSError):  # without descriptors it is noticed later
            self._fork_server.notice_losses()
        escaped = self.shim_client.escaped
        if escaped is None:
            return self._unknown(self._order)
        swept = await self._fork_server.losses.sweep(self._fork_server.ours())
        reap_adopted((self._pid, self.shim_client.pid))
        report = msgspec.structs.replace(self._unknown(self._order), killed=swept.killed)
        if swept.left or any(is_running(process) for process in escaped):
            return report
        return msgspec.structs.replace(report, survivors=0)

    def _unknown(self, ended_by: str) -> ProcessReport:
        now_s = anyio.current_time()
        took_s = now_s - (now_s if self._ordered_at_s is None else self._ordered_at_s)
        return ProcessReport(
            pid=self._pid,
            status=self._status,
            ended_by=ended_by,
            killed=0,
            survivors=-1,
            took_s=took_s,
            exiting_s=self._exit_wait.exiting_s,
        )

    def _end_list_requests(self) -> None:
        """End the open list requests with an empty list (``None`` after the loss of the shim), because the shim obeys
        no order once the main process has ended."""
        while self._list_requests:
            self._list_requests.popleft().end(None if self._is_unknown else ())

    @property
    def _is_unknown(self) -> bool:
        """True if the shim was lost, so that it is not known which processes are left."""
        return self.report is not None and self.report.survivors < 0

    def _finish(self, report: ProcessReport) -> None:
        self.report = report
        for output in (self._stdout, self._stderr):
            output.finish()
        self._end_list_requests()
        self._start_known.set()
        self._exited.set()
        self._ended.set()

    async def leave(self, terminate_s: float) -> None:
        """End the tree: SIGTERM, a wait of at most *terminate_s* seconds, SIGKILL, and a wait of at most ``kill_s`` +
        ``KILL_EXTRA_S`` seconds. A tree that was terminated before gets no second SIGTERM; for a tree that was killed
        before, SIGTERM and its wait are left out. Processes that the kernel is ending are then waited for."""
        self._stdin.close()
        try:
            if self.report is None and self._pid and self._order != "kill":
                if self._order == "exit":
                    self.terminate()
                await within(terminate_s, self._ended.wait)
            if self.report is None:
                self.kill()
                await self._exit_wait.run()
        finally:
            self._reading.cancel()
            self._watching.cancel()

    async def _watch_end(self) -> None:
        """Report, once, that the kernel takes long to end the killed processes; also where nobody leaves the context
        yet, because the program is waited for."""
        with self._watching:
            await self._exit_wait.run()

    def close(self) -> None:
        """Release the descriptors. A shim that has not finished then kills its tree and ends without this process."""
        if self.report is None:
            self._finish(self._unknown("kill"))
        for end in (self._stdin, self._stdout, self._stderr, self.shim_client):
            end.close()


def _check_free_descriptors(spare: int) -> None:
    """Check that a launch would leave at least *spare* descriptors free.

    Raises:
        OSError: fewer descriptors would be left.
    """
    free = free_descriptors() if spare else None
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


class ShimHost:
    """Process host that starts programs, each under a shim of its own; implements ``supervisor.ports.ProcessHost``.

    The host is a context manager and must be entered before use. Leaving it waits for the fork server, which exits when
    no process is left.
    """

    def __init__(self, containment: Containment = UNCONTAINED) -> None:
        if os.name != "posix":
            raise RuntimeError("processes can be supervised on Linux (fully) and macOS (weakly) only: run it there")
        self._tag = {TAG_VARIABLE: containment.tag} if containment.tag else {}
        self.fork_server = ForkServerClient(containment)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await to_the_end(self.fork_server.close)

    @asynccontextmanager
    async def spawn(
        self, launch: Launch, *, terminate_s: float = 2.0, kill_s: float = 1.0, on_exiting: OnExiting | None = None
    ) -> AsyncIterator[ShimProcess]:
        """Start *launch*, in a context that the same task must enter and leave. Leaving the context ends the whole tree
        within ``terminate_s + kill_s + KILL_EXTRA_S`` seconds; after that only processes that the kernel is ending are
        waited for, until ``EXITING_S`` seconds after the kill.

        Raises:
            SpawnError: the program is missing, not executable, or the working directory does not exist.
        """
        if self._tag:
            launch = msgspec.structs.replace(launch, env={**launch.env, **self._tag})
        check_launch(launch)
        group = anyio.create_task_group()
        process = ShimProcess(launch, self.fork_server, group, kill_s, on_exiting)
        await group.__aenter__()
        group.start_soon(process.read_statuses)
        try:
            await process.wait_started()
            yield process
        finally:
            group.cancel_scope.shield = True
            try:
                await process.leave(terminate_s)
            finally:
                try:
                    # Without the body's exception, which would otherwise leave wrapped in an exception group.
                    await group.__aexit__(None, None, None)
                finally:
                    process.close()  # after the last task that waits on a descriptor has ended

    def caller_at(self, connection: socket.socket, pid: int) -> Caller:
        """Return whether the process *pid* that has connected is one of our programs, an operator's process, or
        unknown. Over TCP, *pid* was found by ``tcp_peers``, and the caller checks that the client is still the same.

        A program whose context was left before the program ended counts as ours, but belongs to no session.

        Raises:
            OSError: no file descriptor is left.
        """
        if connection.family != socket.AF_UNIX:
            return self._origin_of(pid)
        return caller_at(connection, pid, self._origin_of)

    def _origin_of(self, pid: int) -> Caller:
        lineage = lineage_of(pid, read_stat)
        # Checked after the walk: while all shims and fork servers live, the walk meets one if there is one.
        while self.fork_server.notice_losses():
            lineage = lineage_of(pid, read_stat)
        return self.fork_server.losses.judge(lineage, self.fork_server.ours())

    def unidentified(self) -> tuple[UnidentifiedProcess, ...]:
        """Return the running processes that may have escaped from a shim that was killed with the fork server."""
        return self.fork_server.losses.unidentified()

    async def watch(self) -> None:
        """Notice the loss of a fork server at once and start another one, until cancelled. After a loss, look every
        ``FOLLOW_S`` seconds for the processes below unidentified processes."""
        while True:
            began_s = anyio.current_time()
            with anyio.move_on_after(FOLLOW_S if self.fork_server.was_lost else inf), suppress(OSError):
                await self.fork_server.replace_lost()
            if self.fork_server.was_lost:
                await anyio.sleep_until(began_s + FOLLOW_S)
            self.fork_server.losses.follow()
