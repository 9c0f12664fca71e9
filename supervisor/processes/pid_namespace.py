"""A pid namespace for one program: whoever is born in it dies with its init, all at once and by the kernel's own hand.

The init is a fork of the warden and dies with it, whatever the warden dies of; it does nothing but that, and reap. It
is nobody's program: it is never counted, told of, or signalled but to end everything. Our own children keep the pids
that everybody outside knows them by; inside they have others, and a /proc of their own that shows those.

Run as a program it says by its exit status whether this machine gives such a namespace. It uses the standard library
only, and as little of that as it can, because wardens wait for it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import NoReturn

__all__ = ["PidNamespace", "enclose", "is_init"]

PR_SET_PDEATHSIG = 1
CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_REC = 0x4000
MS_SLAVE = 1 << 19


class PidNamespace:
    """The one that our next children are born in; ``init`` is the pid of its init, as we see it."""

    def __init__(self, init: int) -> None:
        self.init = init

    def enter(self) -> None:
        """In a child: a /proc for it and its descendants alone, in which their pids are what ``getpid`` says.

        Raises:
            OSError: it may not be mounted; then there would have been no namespace.
        """
        _call("unshare", CLONE_NEWNS)
        # A slave's mounts stay its own, and what is unmounted outside is not kept busy by it.
        _call("mount", b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_SLAVE), None)
        _call("mount", b"proc", b"/proc", b"proc", ctypes.c_ulong(MS_NOSUID | MS_NODEV | MS_NOEXEC), None)


def enclose() -> PidNamespace | None:
    """Have our next children born in a namespace of their own; ``None``, and nothing has changed, where we may not."""
    with suppress(OSError):
        home = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _call("unshare", CLONE_NEWPID)
            init = _start()
            if init:
                return PidNamespace(init)
            _call("setns", home, CLONE_NEWPID)
        finally:
            os.close(home)
    return None


def is_init(pid: int) -> bool:
    """Whether *pid*, alive or not yet reaped, is the init of a namespace below ours."""
    with suppress(OSError), open(f"/proc/{pid}/status", "rb") as status:
        for line in status:
            if line.startswith(b"NSpid:"):
                return len(line.split()) > 2 and line.split()[-1] == b"1"
    return False


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def _start() -> int:
    """Fork the init, and wait until it stands; 0 if it cannot do its work here."""
    ready, telling = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(ready)
        os.close(telling)
        return 0
    if pid == 0:
        _be_init(ready, telling)
    os.close(telling)
    stands = os.read(ready, 1)
    os.close(ready)
    if not stands:
        os.waitpid(pid, 0)
        return 0
    return pid


def _be_init(ready: int, telling: int) -> NoReturn:
    """In the fork: die with the warden, reap, hold nothing. Signals from within reach an init only if it wants them."""
    try:
        _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.close(ready)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
        PidNamespace(1).enter()  # what our siblings will need must be allowed
        os.write(telling, b"!")  # fails if the warden died before the first line took effect: nobody listens
        for fd in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # the listing's own
                os.close(int(fd))
        while True:
            signal.pause()
    finally:
        os._exit(1)


def main() -> NoReturn:
    """Try it, leave nothing, exit with 0 if it is given."""
    namespace = enclose()
    if namespace is not None:
        os.kill(namespace.init, signal.SIGKILL)
        os.waitpid(namespace.init, 0)
    sys.exit(namespace is None)


if __name__ == "__main__":
    main()
