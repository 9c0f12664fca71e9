"""Pid namespace for one program: the kernel kills every process in the namespace when the namespace's init dies.

The init (the first process of the namespace) is a fork of the shim. It reaps its children and dies together with the
shim, whatever the cause. The init is not a user's program: it is never counted or reported, and receives signals only
to end the namespace. Processes in the namespace have two pids: one outside, which the supervisor uses, and one inside,
which their own /proc shows.

Run as a program, this module reports by its exit status whether this machine allows such a namespace. Only the standard
library is used, and little of it, because every launch waits for the start of the shim.
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

PR_SET_PDEATHSIG = 1
CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_REC = 0x4000
MS_SLAVE = 1 << 19


class PidNamespace:
    """Pid namespace in which the next children of this process are started; ``init`` is the pid of the namespace's
    init, as seen from this process."""

    def __init__(self, init: int) -> None:
        self.init = init

    def enter(self) -> None:
        """Mount, in a forked child, a /proc that shows only the processes of the namespace, with the pids that
        ``getpid`` returns there.

        Raises:
            OSError: the mount is not allowed. Since the init tries the mount first, ``enclose`` would have returned
                ``None``.
        """
        _call("unshare", CLONE_NEWNS)
        # MS_SLAVE: mounts made here stay here, and a file system unmounted outside is unmounted here, too.
        _call("mount", b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_SLAVE), None)
        _call("mount", b"proc", b"/proc", b"proc", ctypes.c_ulong(MS_NOSUID | MS_NODEV | MS_NOEXEC), None)


def enclose() -> PidNamespace | None:
    """Make a new pid namespace, in which the next children of this process will be started.

    Return ``None``, with nothing changed, if that is not allowed.
    """
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
    """Return whether the process *pid*, running or not yet reaped, is the init of a namespace below ours."""
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
    """Fork the init, wait until it is ready, and return its pid; return 0 if the init could not prepare itself."""
    ready, ready_write = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(ready)
        os.close(ready_write)
        return 0
    if pid == 0:
        _be_init(ready, ready_write)
    os.close(ready_write)
    is_ready = os.read(ready, 1)
    os.close(ready)
    if not is_ready:
        os.waitpid(pid, 0)
        return 0
    return pid


def _be_init(ready: int, ready_write: int) -> NoReturn:
    """Run the init, in the forked child: die together with the shim, reap children, and hold no descriptor open.

    The kernel drops signals that are sent from inside a namespace to its init, unless the init has a handler for them.
    """
    try:
        _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.close(ready)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
        PidNamespace(1).enter()  # the programs will need the same, so it must be allowed
        os.write(ready_write, b"!")  # EPIPE if the shim died before prctl took effect: then the init ends here
        for fd in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # the descriptor of the listing itself
                os.close(int(fd))
        while True:
            signal.pause()
    finally:
        os._exit(1)


def main() -> NoReturn:
    """Try to make a namespace, remove it again, and exit with status 0 if that was allowed."""
    namespace = enclose()
    if namespace is not None:
        os.kill(namespace.init, signal.SIGKILL)
        os.waitpid(namespace.init, 0)
    sys.exit(namespace is None)


if __name__ == "__main__":
    main()
