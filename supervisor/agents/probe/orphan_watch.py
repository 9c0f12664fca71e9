"""Program that reports which processes another program leaves running: ``orphan_watch.py REPORT SETTLE_S ARGV...``.

This program runs alone, isolated from its package, and passes its own input and output on to the watched program. It is
a subreaper: every process that the watched program started and left running becomes its child. After the end of the
watched program, this program waits up to *SETTLE_S* seconds for those children and writes the commands of the remaining
children to the file REPORT. It ends no process: the shim above it does.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
LOOK_S = 0.05


def children(pid: int) -> list[int]:
    """Return the ids of all living descendants of the process *pid*."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += [int(one) for one in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    except OSError:
        return found
    return [one for child in found for one in (child, *children(child))]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def reap() -> None:
    """Reap the child processes that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def left_after(settle_s: float) -> list[str]:
    ends = time.monotonic() + settle_s
    while True:
        reap()
        alive = children(os.getpid())
        if not alive or time.monotonic() > ends:
            return [command for pid in alive if (command := command_of(pid))]
        time.sleep(LOOK_S)


def main(report: Path, settle_s: float, argv: list[str]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    pid = os.posix_spawnp(argv[0], argv, os.environ)
    report.with_suffix(".pid").write_text(str(pid))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):  # they are the program's
        os.dup2(nowhere, number)
    while True:
        ended, status = os.wait()
        if ended == pid:
            break
    report_of_exit = {"status": os.waitstatus_to_exitcode(status), "left": left_after(settle_s)}
    report.with_suffix(".part").write_text(json.dumps(report_of_exit))
    report.with_suffix(".part").rename(report)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
