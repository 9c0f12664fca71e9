"""Fork server: the process above all shims of one supervisor.

Run as ``python -I -S fork_server.py CONTROL SUPERVISOR_PID GROUP ENCLOSE``.

Theory of operation
-------------------
The fork server forks shims, which takes a tenth of the time of a Python start, and it is the subreaper above the shims.

* A shim is lost (killed): the processes that the shim had adopted become children of the fork server. The fork server
  kills every child that is not a shim until none is left, and then sends ``ended`` by ``lost`` on the lost shim's
  socket.
* The supervisor is lost, or closes the control socket: the shims notice this too and end their programs. The fork
  server waits until ``waitpid`` reports that it has no child, and exits. A supervisor that is killed together with all
  of its shims therefore leaves no process behind.

In:  messages of ``MESSAGE_BYTES``, padded with spaces: ``fork`` with four descriptors (the far end of the shim's
     control socket, and the program's 0, 1 and 2), and ``rouse PID`` (send SIGCONT to the shim with this pid).
Out: nothing on its own socket. For a lost shim: ``ended``, by ``lost``, on the shim's control socket.
"""

from __future__ import annotations

import array
import errno
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING or __name__ != "__main__":
    from supervisor.processes import pid_namespace, shim
else:  # isolated, without the project on its path: its neighbour is found beside it
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import pid_namespace
    import shim

if TYPE_CHECKING:  # typing is slow to import
    from typing import NoReturn

MESSAGE_BYTES = 32
DESCRIPTORS = 4
CLEAR_ROUNDS = 5
"""Number of consecutive rounds, ``ROUND_MS`` apart, in which all children must be shims until the tree of a lost shim
counts as gone: a single read of the list of children may miss a child that is started meanwhile."""
ROUND_MS = 1
SHIM_EXIT_S = 10.0
"""Seconds that shims have to end their programs once the supervisor is lost; then the shims are killed, and the fork
server kills the processes that they had adopted."""


class ForkServer:
    """Fork server: forks shims until the supervisor is lost or closes the control socket; then waits until no child is
    left.

    Args:
        control: the socket on which the supervisor sends orders.
        supervisor: the pid of the supervisor.
        group: the folder of the control group that programs enter; empty for none.
        enclose: whether programs get pid namespaces, where the machine allows this.
    """

    def __init__(self, control: int, supervisor: int, group: str, *, enclose: bool) -> None:
        self.control = socket.socket(fileno=control)
        self.group = group
        self.enclose = enclose
        self.shims: dict[int, int] = {}
        """Far end of the control socket of each shim, by the shim's pid."""
        self.lost: list[int] = []
        """Control sockets of lost shims whose end has not been reported yet."""
        self.lost_at_s = 0.0
        self.killed = 0
        self.clear_rounds = 0
        self.finished = False
        self.spare = spare_descriptor()
        self.wakeup, self.wakeup_write = shim.open_wakeup_pipe()
        self.supervisor = shim.watch_supervisor(supervisor)
        self.poll = select.poll()
        for fd in (control, self.wakeup, self.supervisor):
            if fd >= 0:
                self.poll.register(fd, select.POLLIN)

    def run(self) -> None:
        while not self.finished:
            self.serve_once()
        self.drain()

    def serve_once(self) -> None:
        """Wait for events and handle them; while the tree of a lost shim is being killed, wait at most ``ROUND_MS``."""
        ready = [fd for fd, _ in self.poll.poll(ROUND_MS if self.lost else None)]
        self.reap()
        if self.lost:
            self.kill_orphans()
        if self.control.fileno() in ready:
            self.read_control()
        self.finished = self.finished or self.supervisor in ready

    # ------------------------------------------------------------------------------------------ orders
    def read_control(self) -> None:
        # Received descriptors that find no room in the table are dropped. Closing the spare one makes room for the
        # first of the four, the shim's control socket, on which the failure can be reported.
        if self.spare >= 0:
            os.close(self.spare)
        try:
            message, extra, _, _ = self.control.recvmsg(
                MESSAGE_BYTES, socket.CMSG_SPACE(DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            message, extra = b"", []
        word, _, number = message.strip().partition(b" ")
        if not message:
            self.finished = True
        elif word == b"fork":
            given = array.array("i")
            for _, _, data in extra:
                given.frombytes(data)
            if given:  # else the kernel closed the shim's control socket, and the client reads end of file
                self.fork(list(given))
        elif word == b"rouse" and int(number) in self.shims:
            os.kill(int(number), signal.SIGCONT)
        self.spare = spare_descriptor()

    def fork(self, given: list[int]) -> None:
        """Fork a shim that uses the descriptors *given*; if that fails, report ``failed`` on the shim's control
        socket."""
        shim_control, *pipes = given
        try:
            if len(given) < DESCRIPTORS:
                raise OSError(errno.EMFILE, "the descriptor table of the fork server is full")
            pid = os.fork()
        except OSError as error:
            _send_status(shim_control, b'{"event":"failed","step":"fork","errno":%d}' % (error.errno or 0))
            pid = -1
        if pid == 0:
            self.run_shim(shim_control, pipes)
        for fd in pipes:
            os.close(fd)
        if pid > 0:
            self.shims[pid] = shim_control
        else:
            os.close(shim_control)

    def run_shim(self, shim_control: int, pipes: list[int]) -> NoReturn:
        """Run a shim, in the forked child: in a new session, without the descriptors of the fork server and of other
        shims."""
        status = 1
        try:
            os.setsid()
            for number, fd in enumerate(pipes):
                os.dup2(fd, number)
            self.control.close()
            for fd in (self.wakeup, self.wakeup_write, *pipes, *self.shims.values(), *self.lost):
                os.close(fd)
            shim.adopt_orphans()
            enclosure = pid_namespace.enclose() if self.enclose else None
            shim.Shim(shim_control, self.supervisor, self.group, enclosure).run()
            status = 0
        finally:
            if status:
                sys.excepthook(*sys.exc_info())  # to the program's standard error, which the SpawnError quotes
            os._exit(status)

    # ------------------------------------------------------------------------------------------ ended children
    def reap(self) -> bool:
        """Reap ended children; return whether any child is left."""
        return shim.reap_children(self.wakeup, self.record_exit, self.wait_any if self.enclose else os.waitpid)

    def wait_any(self, _pid: int, _options: int) -> tuple[int, int]:
        """Reap any ended child, as waitpid does. The init of a lost shim's pid namespace is not counted in
        ``killed``."""
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return 0, 0
        self.killed -= pid_namespace.is_init(ended.si_pid)
        return os.waitpid(ended.si_pid, 0)

    def record_exit(self, pid: int, wait_status: int) -> None:
        shim_control = self.shims.pop(pid, None)
        if shim_control is None:
            self.killed += 1
        elif wait_status == 0:  # the shim exits with 0 only after it had no child left
            os.close(shim_control)
        else:
            if not self.lost:
                self.lost_at_s, self.killed = time.monotonic(), 0
            self.lost.append(shim_control)
            self.clear_rounds = 0

    def kill_orphans(self) -> None:
        """Kill the processes that lost shims had adopted; report the end of a shim when none is left. The ends of
        several shims that are lost at the same time are reported together."""
        self.clear_rounds = 0 if self.kill_strangers() else self.clear_rounds + 1
        if self.clear_rounds < CLEAR_ROUNDS and self.shims:
            return
        if not self.shims and self.reap():
            return  # waitpid says that a child is left
        took_s = time.monotonic() - self.lost_at_s
        for shim_control in self.lost:
            ended = b'{"event":"ended","status":null,"ended_by":"lost","killed":%d,"took_s":%.6f}'
            _send_status(shim_control, ended % (self.killed, took_s))
            os.close(shim_control)
        self.lost = []

    def kill_strangers(self) -> bool:
        """Send SIGKILL to the children that are not shims; return whether there were any.

        The kernel does not reuse the pid of a child before the child is reaped, so no other process can be hit.
        """
        strangers = [pid for pid in shim.children(os.getpid()) if pid not in self.shims]
        shim.send(strangers, signal.SIGKILL)
        for pid in strangers:
            if shim.is_alive(pid) and shim.is_exiting(pid):
                shim.kill_below(pid)
        return bool(strangers)

    # ------------------------------------------------------------------------------------------ the end
    def drain(self) -> None:
        """Wait until ``waitpid`` reports that no child is left. The shims notice the end of the supervisor by
        themselves."""
        exits = select.poll()
        exits.register(self.wakeup, select.POLLIN)
        until_s = time.monotonic() + SHIM_EXIT_S
        shim.send(self.shims, signal.SIGCONT)
        poll_ms = 1
        while self.reap():
            if time.monotonic() > until_s:
                shim.send(self.shims, signal.SIGKILL)
            self.kill_strangers()
            poll_ms = 1 if exits.poll(poll_ms) else min(2 * poll_ms, shim.POLL_MAX_MS)
        for shim_control in self.lost:
            os.close(shim_control)
        with suppress(OSError):
            os.rmdir(self.group)


def spare_descriptor() -> int:
    """Open a descriptor that can be closed later to make room for another descriptor; return -1 if there is no room."""
    with suppress(OSError):
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    return -1


def _send_status(control: int, line: bytes) -> None:
    with suppress(OSError):  # the supervisor is gone
        os.write(control, line + b"\n")


def main(argv: list[str]) -> NoReturn:
    """Run a fork server in this process, and exit without the clean-up of the Python interpreter."""
    control, supervisor = int(argv[1]), int(argv[2])
    os.set_inheritable(control, False)
    shim.release_standard_streams()
    shim.adopt_orphans()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.mkdir(argv[3])
    ForkServer(control, supervisor, argv[3], enclose=bool(argv[4])).run()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv)
