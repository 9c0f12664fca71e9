"""Program whose descendants resist being ended: ``python -I -S victims.py FIFO MODE [KIND ...]``.

Every descendant, and the main process, opens FIFO, writes ``KIND PID`` into it, and holds it open as long as it lives.
So the reader of FIFO sees which processes have started, and gets end of file when the very last of them is gone,
however it was hidden. MODE is the main process's behaviour afterwards: ``stay``, ``defy`` (stay, and ignore SIGTERM) or
``exit`` (with status 3, after a line on its standard input). No process lives longer than two minutes.
"""

import os
import signal
import sys
import time
from collections.abc import Callable

LIFE_S = 300
HOP_S = 0.005
POLITE = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def announce(fifo: str, kind: str) -> None:
    """Write the kind and the pid of this process into *fifo*, and hold *fifo* open, even over an exec, so that its
    reader gets no end of file while this process lives."""
    fd = os.open(fifo, os.O_WRONLY)
    os.set_inheritable(fd, True)
    os.write(fd, f"{kind} {os.getpid()}\n".encode())


def hold() -> None:
    signal.alarm(LIFE_S)
    while True:
        signal.pause()


def ignore(*numbers: int) -> None:
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def fork(life: Callable[[], None]) -> int:
    """Fork a child that runs *life* and then exits; return its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            life()
        finally:
            os._exit(0)
    return pid


def daemonise(life: Callable[[], None]) -> None:
    """Run *life* in a daemon: forked twice, in a session of its own, with the standard streams on /dev/null."""

    def detached() -> None:
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        life()

    def between() -> None:
        os.setsid()
        fork(detached)

    os.waitpid(fork(between), 0)


def hop(pause_s: float, leave: Callable[[], None]) -> None:
    """Change the process all the time: fork, let the parent exit, call *leave* in the child, pause, and repeat."""
    until_s = time.monotonic() + LIFE_S
    while time.monotonic() < until_s:
        if os.fork():
            os._exit(0)
        leave()
        time.sleep(pause_s)


def child(fifo: str) -> None:
    def life() -> None:
        announce(fifo, "child")
        hold()

    fork(life)


def session(fifo: str) -> None:
    def life() -> None:
        os.setsid()
        announce(fifo, "session")
        hold()

    fork(life)


def stopped(fifo: str) -> None:
    def life() -> None:
        os.setsid()
        announce(fifo, "stopped")
        os.kill(os.getpid(), signal.SIGSTOP)
        hold()

    fork(life)


def daemon(fifo: str) -> None:
    def life() -> None:
        announce(fifo, "daemon")
        hold()

    daemonise(life)


def scrubbed(fifo: str) -> None:
    """Start a daemon whose environment is empty, so that it cannot be recognised by a variable."""

    def life() -> None:
        os.execve(sys.executable, [sys.executable, "-I", "-S", __file__, fifo, "scrubbed"], {})

    daemonise(life)


def stubborn(fifo: str) -> None:
    def life() -> None:
        ignore(*POLITE)
        announce(fifo, "stubborn")
        hold()

    daemonise(life)


def hopper(fifo: str) -> None:
    def life() -> None:
        announce(fifo, "hopper")
        hop(HOP_S, lambda: None)

    daemonise(life)


def sprinter(fifo: str) -> None:
    def life() -> None:
        announce(fifo, "sprinter")
        hop(0.0, lambda: None)

    daemonise(life)


def wanderer(fifo: str) -> None:
    """Start a daemon that changes its process all the time, each time in another session, so that its process group
    cannot be known beforehand."""

    def life() -> None:
        announce(fifo, "wanderer")
        hop(HOP_S, os.setsid)

    daemonise(life)


KINDS: dict[str, Callable[[str], None]] = {
    victim.__name__: victim
    for victim in (child, session, stopped, daemon, scrubbed, stubborn, hopper, sprinter, wanderer)
}


def main(fifo: str, mode: str, kinds: list[str]) -> None:
    if mode == "scrubbed":
        announce(fifo, mode)
        hold()
    for kind in kinds:
        KINDS[kind](fifo)
    if mode == "defy":
        ignore(*POLITE)
    announce(fifo, "main")
    if mode == "exit":
        sys.stdin.readline()
        sys.exit(3)
    hold()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
