"""Adopter of orphans: the process that the kernel makes the parent of a process whose parent has ended.

The adopter is the nearest ancestor that is a subreaper, such as ``systemd --user`` or the shim of another supervisor,
and otherwise the init of the pid namespace. The kernel does not show which processes are subreapers, so the adopter is
found by a trial: this module, run as a program, makes an orphan, which writes the pid of its new parent. Only the
standard library is used, and little of it, because the supervisor waits for the result.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress

INIT = 1
TRIAL_S = 5.0
"""Seconds that a trial may take; without load it takes 20 ms."""


def find_adopter() -> int | None:
    """Return the pid of the adopter of orphans of this process's children; ``None`` if the trial fails, because no
    process or descriptor is left, or because the machine is too slow."""
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        # Without a `with` block of its own, since a process that is asked for its output is waited for.
        made = subprocess.run(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TRIAL_S,
        )
        orphan, adopter = map(int, made.stdout.split())
        if adopter == os.getpid():  # this process is init, or a subreaper: nobody else reaps the orphan
            with suppress(ChildProcessError):  # the embedding program was faster
                os.waitpid(orphan, 0)
        return adopter
    return None


def main() -> None:
    """Make an orphan that writes its own pid and the pid of its new parent."""
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent:
            os.sched_yield()
        os.write(1, b"%d %d" % (os.getpid(), os.getppid()))
    os._exit(0)


if __name__ == "__main__":
    main()
