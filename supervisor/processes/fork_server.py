"""Fork server: the process above all shims of one supervisor.

Run as ``python -I -S fork_server.py CONTROL SUPERVISOR_PID GROUP ENCLOSE``.

Theory of operation
-------------------
The fork server forks shims, which takes a tenth of the time of a Python start, and it is the subreaper above them.

* A shim is lost (killed): the processes that the shim had adopted become children of the fork server. The fork server
  kills every child that is no shim until none is left, and then sends ``ended`` by ``lost`` on the lost shim's socket.
* The supervisor is lost, or closes the control socket: the shims see the same and end their programs. The fork server
  waits until ``waitpid`` says that it has no child, and exits. A supervisor that is killed together with all of its
  shims leaves no process behind.

In:  messages of ``MESSAGE_BYTES``, padded with spaces: ``fork`` with four descriptors (the far end of the shim's
     control socket, and the program's 0, 1 and 2), and ``rouse PID`` (SIGCONT to that shim).
Out: nothing of its own. For a lost shim: ``ended``, by ``lost``, on the shim's control socket.
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
"""Consecutive rounds without a child that is no shim, ``ROUND_MS`` apart, until the tree of a lost shim counts as gone:
one read of the list of children may miss a child that is born meanwhile."""
ROUND_MS = 1
SHIM_EXIT_S = 10.0
"""Seconds that shims get to end their programs once the supervisor is lost; then the shims are killed, and the fork
server kills what they had adopted."""


class ForkServer:
    """Fork shims until the supervisor is lost or closes the control socket; then wait until no child is left.

    Args:
        control: the socket that the supervisor's orders come from.
        supervisor: the pid of the supervisor.
        group: the folder of the control group that programs enter; empty for none.
        enclose: whether programs get pid namespaces, where that is allowed.
    """

    def __init__(self, control: int, supervisor: int, group: str, *, enclose: bool) -> None:
        self.control = socket.socket(fileno=control)
        self.group = group
        self.enclose = enclose
        self.shims: dict[int, int] = {}
        """The pid of each shim, and the far end of its control socket."""
        self.lost: list[int] = []
        """The control sockets of lost shims whose end has not been reported yet."""
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
        """Wait for events and handle them; while the tree of a lost shim is being killed, for ``ROUND_MS`` at most."""
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
        """Fork a shim on the descriptors *given*; if that fails, report ``failed`` on the shim's control socket."""
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
        """In the forked child, run a shim in a new session that inherits no descriptor of the server or other shims."""
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
        """Call waitpid for any child, and keep the init of a lost shim's namespace out of ``killed``."""
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
        """Kill what lost shims had adopted. Several shims that are lost at once are reported together."""
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
        """SIGKILL the children that are no shims; return whether there were any.

        The kernel does not reuse the pid of a child before it is reaped, so no other process can be hit.
        """
        strangers = [pid for pid in shim.children(os.getpid()) if pid not in self.shims]
        shim.send(strangers, signal.SIGKILL)
        return bool(strangers)

    # ------------------------------------------------------------------------------------------ the end
    def drain(self) -> None:
        """Wait until ``waitpid`` says that no child is left. The shims notice the supervisor's end by themselves."""
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
    """Open a descriptor that can be closed later to make room for another one; -1 if there is no room."""
    with suppress(OSError):
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    return -1


def _send_status(control: int, line: bytes) -> None:
    with suppress(OSError):  # the supervisor is gone
        os.write(control, line + b"\n")


def main(argv: list[str]) -> NoReturn:
    """Run a fork server in this process, and exit without the interpreter's clean-up."""
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
