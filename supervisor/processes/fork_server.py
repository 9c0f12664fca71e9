"""Fork server, the process above all shims of a supervisor.

Run as ``python -I -S fork_server.py CONTROL SUPERVISOR_PID GROUP ENCLOSE``.

It forks the wardens, which takes a tenth of what a start of Python takes, and it is the next to adopt: when a warden is
lost, what that one had adopted comes here, is killed until nothing of it is left, and the supervisor is told on the
lost one's lifeline. When the supervisor is lost, it stays until the kernel says that it has no child any more: so even
a supervisor that is killed together with all of its wardens leaves nothing behind.

In:  messages of ``MESSAGE_BYTES``, filled up with spaces: ``fork`` with four descriptors (the lifeline's far end, and
     the program's 0, 1 and 2), and ``rouse PID`` (SIGCONT to that warden).
Out: nothing of its own. Of a warden that was lost: ``ended``, by ``lost``.
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

__all__ = ["MESSAGE_BYTES", "ForkServer", "main"]

MESSAGE_BYTES = 32
DESCRIPTORS = 4
STEADY = 5
"""So often in a row nobody but wardens must be our child, a millisecond apart, before what a lost one left counts as
gone: one look at a list of children may miss one that is born meanwhile."""
LOOK_MS = 1
OVERTIME_S = 10.0
"""How long wardens may take when the supervisor is lost, before they are killed, and what they had is killed here."""


class ForkServer:
    """Serves until the supervisor is lost, or lets go of it; then sees everything out.

    Args:
        enclose: whether programs get pid namespaces, where that is allowed.
    """

    def __init__(self, control: int, supervisor: int, group: str, *, enclose: bool) -> None:
        self.control = socket.socket(fileno=control)
        self.group = group
        self.enclose = enclose
        self.shims: dict[int, int] = {}
        """Each warden's pid, and the far end of its lifeline."""
        self.lost: list[int] = []
        """The lifelines of wardens that were lost and are not yet told of."""
        self.lost_at_s = 0.0
        self.killed = 0
        self.clear = 0
        self.over = False
        self.spare = spare_descriptor()
        self.bell, self.clapper = shim.hang_bell()
        self.supervisor = shim.watch_supervisor(supervisor)
        self.poll = select.poll()
        for fd in (control, self.bell, self.supervisor):
            if fd >= 0:
                self.poll.register(fd, select.POLLIN)

    def run(self) -> None:
        while not self.over:
            self.turn()
        self.see_out()

    def turn(self) -> None:
        """Handle what is there, waiting for it if need be."""
        ready = [fd for fd, _ in self.poll.poll(LOOK_MS if self.lost else None)]
        self.reap()
        if self.lost:
            self.clean_up()
        if self.control.fileno() in ready:
            self.listen()
        self.over = self.over or self.supervisor in ready

    # ------------------------------------------------------------------------------------------ orders
    def listen(self) -> None:
        if self.spare >= 0:  # descriptors for which there is no room are lost: the first, the lifeline, finds room
            os.close(self.spare)
        try:
            message, extra, _, _ = self.control.recvmsg(
                MESSAGE_BYTES, socket.CMSG_SPACE(DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            message, extra = b"", []
        word, _, number = message.strip().partition(b" ")
        if not message:
            self.over = True
        elif word == b"fork":
            given = array.array("i")
            for _, _, data in extra:
                given.frombytes(data)
            if given:  # else the end of the lifeline tells
                self.fork(list(given))
        elif word == b"rouse" and int(number) in self.shims:
            os.kill(int(number), signal.SIGCONT)
        self.spare = spare_descriptor()

    def fork(self, given: list[int]) -> None:
        """A warden on *given*; where there can be none, its lifeline says why."""
        lifeline, *pipes = given
        try:
            if len(given) < DESCRIPTORS:
                raise OSError(errno.EMFILE, "the others have found no room here")
            pid = os.fork()
        except OSError as error:
            _say(lifeline, b'{"event":"failed","step":"fork","errno":%d}' % (error.errno or 0))
            pid = -1
        if pid == 0:
            self.become(lifeline, pipes)
        for fd in pipes:
            os.close(fd)
        if pid > 0:
            self.shims[pid] = lifeline
        else:
            os.close(lifeline)

    def become(self, lifeline: int, pipes: list[int]) -> NoReturn:
        """In the child: a warden, in a session of its own, that holds nothing of ours or of its siblings'."""
        status = 1
        try:
            os.setsid()
            for number, fd in enumerate(pipes):
                os.dup2(fd, number)
            self.control.close()
            for fd in (self.bell, self.clapper, *pipes, *self.shims.values(), *self.lost):
                os.close(fd)
            shim.adopt_orphans()
            enclosure = pid_namespace.enclose() if self.enclose else None
            shim.Shim(lifeline, self.supervisor, self.group, enclosure).run()
            status = 0
        finally:
            if status:
                sys.excepthook(*sys.exc_info())  # on the program's standard error, where a refusal looks for it
            os._exit(status)

    # ------------------------------------------------------------------------------------------ the dead
    def reap(self) -> bool:
        """Take in the dead; true while there are children left."""
        return shim.take_in(self.bell, self.bury, self.tell_apart if self.enclose else os.waitpid)

    def tell_apart(self, _who: int, _options: int) -> tuple[int, int]:
        """waitpid for any child, which looks first whether that was a lost warden's init: those do not count."""
        dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if dead is None:
            return 0, 0
        self.killed -= pid_namespace.is_init(dead.si_pid)
        return os.waitpid(dead.si_pid, 0)

    def bury(self, pid: int, wait_status: int) -> None:
        lifeline = self.shims.pop(pid, None)
        if lifeline is None:
            self.killed += 1
        elif wait_status == 0:  # it had no child left
            os.close(lifeline)
        else:
            if not self.lost:
                self.lost_at_s, self.killed = time.monotonic(), 0
            self.lost.append(lifeline)
            self.clear = 0

    def clean_up(self) -> None:
        """What lost wardens had is ours now. Several that are lost at once are told of together."""
        self.clear = 0 if self.strike() else self.clear + 1
        if self.clear < STEADY and self.shims:
            return
        if not self.shims and self.reap():
            return  # the kernel knows of somebody
        took_s = time.monotonic() - self.lost_at_s
        for lifeline in self.lost:
            ended = b'{"event":"ended","status":null,"ended_by":"lost","killed":%d,"took_s":%.6f}'
            _say(lifeline, ended % (self.killed, took_s))
            os.close(lifeline)
        self.lost = []

    def strike(self) -> bool:
        """SIGKILL our children that are no wardens; whether there were any. Their pids are theirs until we reap."""
        strangers = [pid for pid in shim.children(os.getpid()) if pid not in self.shims]
        shim.send(strangers, signal.SIGKILL)
        return bool(strangers)

    # ------------------------------------------------------------------------------------------ the end
    def see_out(self) -> None:
        """Until ``waitpid`` says that we have no child. The wardens know by themselves that it is over."""
        dead = select.poll()
        dead.register(self.bell, select.POLLIN)
        until_s = time.monotonic() + OVERTIME_S
        shim.send(self.shims, signal.SIGCONT)
        nap_ms = 1
        while self.reap():
            if time.monotonic() > until_s:
                shim.send(self.shims, signal.SIGKILL)
            self.strike()
            nap_ms = 1 if dead.poll(nap_ms) else min(2 * nap_ms, shim.NAP_MAX_MS)
        for lifeline in self.lost:
            os.close(lifeline)
        with suppress(OSError):
            os.rmdir(self.group)


def spare_descriptor() -> int:
    """A descriptor that is held open for nothing, so that there is one when it is closed; -1: there is none."""
    with suppress(OSError):
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    return -1


def _say(lifeline: int, line: bytes) -> None:
    with suppress(OSError):  # nobody listens any more
        os.write(lifeline, line + b"\n")


def main(argv: list[str]) -> NoReturn:
    """Become a keeper, be one, vanish without ceremony."""
    control, supervisor = int(argv[1]), int(argv[2])
    os.set_inheritable(control, False)
    shim.let_go_of_pipes()
    shim.adopt_orphans()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.mkdir(argv[3])
    ForkServer(control, supervisor, argv[3], enclose=bool(argv[4])).run()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv)
