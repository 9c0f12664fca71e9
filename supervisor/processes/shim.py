"""The one process between the supervisor and a program: a fork of the keeper (``fork_server.py``).

It starts the program, adopts whatever the program's descendants orphan, and does not exit before ``waitpid`` says
that there is no descendant left: no scan is a proof, ECHILD is. The control socket is its lifeline: end of file means
*kill everything*, whether the supervisor closed it on purpose or died. It uses the standard library only, and as
little of that as it can, because every supervisor waits for it once; so JSON is written by hand, and the launch comes
as NUL-separated bytes, the way the kernel itself keeps argv and environ.

In:  ``ARGC LENGTH\\n`` and LENGTH bytes: cwd, argv and ``NAME=value``, joined by NUL; then the lines
     ``signal N`` (main process only), ``term`` (SIGTERM, then SIGCONT, to the whole tree), ``look`` (tell of the
     whole tree) and ``strike N PID:BORN ...`` (signal N to those descendants, where they still are who was seen).
Out: one JSON object per line: ``here``, ``spawned``, ``failed``, ``seen``, ``exited``, ``ended``.

Where it is given a pid namespace (``pid_namespace.py``), the program is born in that, and the end of the namespace's
init is the end of all: then what the warden would have adopted is the init's, and dies even if the warden does.

Linux gives the whole promise. Elsewhere there is no subreaper, and only the program's process group is ended.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from contextlib import suppress
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from collections.abc import Callable, Collection
    from typing import NoReturn

    from supervisor.processes.pid_namespace import PidNamespace

__all__ = ["Shim", "adopt_orphans", "children", "descendants", "hang_bell", "send", "take_in", "watch_supervisor"]

LINUX = sys.platform == "linux"
LISTED = os.path.exists("/proc/thread-self/children")  # CONFIG_PROC_CHILDREN
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
OOM_MARGIN = 200
NAP_MAX_MS = 50
SERVER_MARK = b"SUPERVISOR_SERVER"
COMMAND_BYTES = 200
OUTLIVED_MAX = 100
CHUNK_BYTES = 65536


# ------------------------------------------------------------------------------------------------- the family
def children(pid: int) -> list[int]:
    """The direct children of *pid*, dead or alive."""
    found: list[int] = []
    with suppress(OSError):  # it has just gone
        for task in os.listdir(f"/proc/{pid}/task") if LISTED else ():
            with open(f"/proc/{pid}/task/{task}/children", "rb") as listing:
                found += map(int, listing.read().split())
    return found if LISTED or not LINUX else _children_scanned(pid)


def _children_scanned(pid: int) -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _parent(name) == pid]


def _parent(pid: str) -> int:
    return int(_stat(pid)[1])


def _stat(pid: int | str) -> list[bytes]:
    """The fields of its ``/proc/PID/stat`` from the third on (proc(5)); of one that is gone, those of one long dead."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as stat:
        return stat.read().rpartition(b")")[2].split()
    return [b"X", *[b"-1"] * 19]


def _read(pid: int, name: str) -> bytes:
    """The file *name* of ``/proc/PID``; nothing where *pid* is gone, or another user's."""
    with suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read()
    return b""


def listed(pids: Collection[int]) -> bytes:
    """Those of *pids* that are there, in JSON: pid, parent, session, start, state, number of threads, command line (the
    begin of it, in hexadecimal, since it may hold any bytes), and whether it is marked as a server."""
    return b"[%s]" % b",".join(told for pid in pids if (told := _told(pid)))


def _told(pid: int) -> bytes:
    fields = _stat(pid)
    if fields[19] == b"-1":
        return b""
    command = _read(pid, "cmdline").rstrip(b"\0").replace(b"\0", b" ")[:COMMAND_BYTES].hex().encode()
    server = b"true" if b"\0%s=" % SERVER_MARK in b"\0" + _read(pid, "environ") else b"false"
    row = (pid, fields[1], fields[3], fields[19], fields[0], fields[17], command, server)
    return b'[%d,%s,%s,%s,"%s",%s,"%s",%s]' % row


def descendants(pid: int) -> list[int]:
    """Everything below *pid*, parents first: a snapshot, which a process that forks can outrun."""
    found = children(pid)
    for child in found:  # the list grows as we walk along it
        found += children(child)
    return found


def born(pid: int) -> int:
    """The start of *pid*, in clock ticks since the boot; -1 if it is gone."""
    return int(_stat(pid)[19])


def lives(pid: int) -> bool:
    """Tell whether *pid* is there, and no zombie. The main thread alone may have exited: then the others work on."""
    fields = _stat(pid)
    return fields[0] not in b"ZX" or int(fields[17]) > 1


def send(pids: Collection[int], *numbers: int) -> None:
    """Signal each of *pids*; one that is gone, or may not be signalled, does not stop the others."""
    for pid in pids:
        for number in numbers:
            with suppress(OSError):
                os.kill(pid, number)


# ------------------------------------------------------------------------------------------------- the program
def prctl(option: int, value: int) -> None:
    """Linux's prctl; elsewhere nothing."""
    if LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of whatever is orphaned below this process."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def become(
    cwd: bytes, argv: list[bytes], env: dict[bytes, bytes], trouble: int, prepare: Callable[[], None]
) -> NoReturn:
    """In the forked child: turn into the program, or say on *trouble* which step failed and with which errno."""
    step = b"start"
    try:
        prepare()
        step = b"cwd"
        os.chdir(cwd)
        step = b"exec"
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(trouble, b"%s %d" % (step, error.errno or 0))
    finally:
        os._exit(127)


def leave_warden(shim: int) -> None:
    """A session of its own, death with its warden, and signals as a fresh program expects them."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != shim:  # it died before the line above took effect; within a namespace init sees to that
        os._exit(127)
    go_first()
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError):  # those that libc keeps for itself
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def go_first() -> None:
    """Short of memory, the kernel should choose the program, not its warden. Raising one's own score needs no right."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "r+") as score:
        wanted = min(1000, int(score.read()) + OOM_MARGIN)
        score.seek(0)
        score.write(str(wanted))


def join(group: str) -> None:
    """Enter the control group, if there is one: what is born later is in it too, and can be killed by its name."""
    with suppress(OSError), open(f"{group}/cgroup.procs", "wb", buffering=0) as members:
        members.write(b"0")


def let_go_of_pipes() -> None:
    """The program's pipes belong to the program: ours would keep its readers waiting for an end."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd, inheritable=False)
    os.close(null)


# ------------------------------------------------------------------------------------------------- who has ended
def hang_bell() -> tuple[int, int]:
    """A pipe, for reading and for writing, that becomes readable when a child ends."""
    bell, clapper = os.pipe()
    for fd in (bell, clapper):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(clapper, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    return bell, clapper


def take_in(
    bell: int, bury: Callable[[int, int], None], waited: Callable[[int, int], tuple[int, int]] = os.waitpid
) -> bool:
    """Silence the bell and bury the dead (pid, wait status); true while there are children left."""
    with suppress(BlockingIOError):
        os.read(bell, CHUNK_BYTES)
    try:
        while (dead := waited(-1, os.WNOHANG))[0]:
            bury(*dead)
    except ChildProcessError:
        return False
    return True


def watch_supervisor(supervisor: int) -> int:
    """What becomes readable when it dies, also where somebody it forked still holds a copy of the lifeline; or -1."""
    with suppress(OSError):  # a kernel before 5.3, or already gone: then the lifeline says so
        if hasattr(os, "pidfd_open"):
            return os.pidfd_open(supervisor)
    return -1


# ------------------------------------------------------------------------------------------------- the warden
class Shim:
    """Waits for one of three things, the program's end, an order, the supervisor's end; then ends everything.

    Args:
        control: the lifeline.
        lost: what becomes readable when the supervisor dies; -1 where there is no such thing.
        group: the folder of the control group that the program enters; empty for none.
        namespace: that our children are born in, if it is one of their own.
    """

    def __init__(self, control: int, lost: int, group: str, namespace: PidNamespace | None) -> None:
        self.control = control
        self.lost = lost
        self.group = group
        self.namespace = namespace
        self.init = namespace.init if namespace is not None else 0
        self.heard = b""
        self.pid = 0
        self.status: int | None = None
        self.trouble = -1
        self.over = False
        self.terminating = False
        self.sweeping = False
        self.cut_short = False
        self.killed = 0
        self.outlived = b"[]"
        self.since_s: float | None = None
        self.poll = select.poll()
        self.poll.register(control, select.POLLIN)
        self.bell, _ = hang_bell()
        self.poll.register(self.bell, select.POLLIN)
        if lost >= 0:
            self.poll.register(lost, select.POLLIN)

    def run(self) -> None:
        """Serve until it is over, sweep, report."""
        self.say(b'{"event":"here","pid":%d,"born":%d}' % (os.getpid(), born(os.getpid())))
        while not self.over:
            self.turn()
        self.sweep()
        self.say(
            b'{"event":"ended","status":%s,"ended_by":"%s","killed":%d,"took_s":%.6f,"outlived":%s}'
            % (
                b"null" if self.status is None else b"%d" % self.status,
                self.ended_by(),
                self.killed,
                self.took_s(),
                self.outlived,
            )
        )

    def turn(self) -> None:
        """Handle what is there, waiting for it if need be: deaths first, so that an order that came after is late."""
        ready = self.poll.poll()
        self.reap()
        for fd, _ in ready:
            if fd == self.control:
                self.listen()
            elif fd == self.trouble:
                self.learn_start()
            elif fd == self.lost:
                self.over = True

    def say(self, line: bytes) -> None:
        with suppress(OSError):  # nobody listens any more
            os.write(self.control, line + b"\n")

    # ------------------------------------------------------------------------------------------ orders
    def listen(self) -> None:
        data = b""
        with suppress(OSError):
            data = os.read(self.control, CHUNK_BYTES)
        self.heard += data
        if not data:
            self.over = True
        elif self.pid:
            self.obey()
        else:
            self.launch()

    def obey(self) -> None:
        *orders, self.heard = self.heard.split(b"\n")
        for order in orders:
            word, _, number = order.partition(b" ")
            if self.status is not None:
                break  # its pid may be somebody else's by now
            if word == b"term":
                self.terminate()
            elif word == b"signal":
                send((self.pid,), int(number))
            elif word == b"look":
                self.look()
            elif word == b"strike":
                self.strike_seen(*number.split())

    def terminate(self) -> None:
        self.terminating = True
        self.since_s = self.since_s or time.monotonic()
        send(self.family() if LINUX else [-self.pid], signal.SIGTERM, signal.SIGCONT)

    def family(self) -> list[int]:
        """The program and all that it has started."""
        return [pid for pid in descendants(os.getpid()) if pid != self.init]

    def look(self) -> None:
        """Tell of the program and of all that it has started; ``null`` where that cannot be seen."""
        seen = b"null"
        if born(os.getpid()) >= 0:
            seen = listed(self.family())
        self.say(b'{"event":"seen","processes":%s}' % seen)

    def strike_seen(self, number: bytes, *found: bytes) -> None:
        """Signal those of our descendants; the program goes on. One that is stopped hears the signal all the same."""
        family = set(self.family())
        for pid, _, ticks in (one.partition(b":") for one in found):
            if int(pid) in family and born(int(pid)) == int(ticks):
                send((int(pid),), int(number), signal.SIGCONT)

    # ------------------------------------------------------------------------------------------ beginning
    def launch(self) -> None:
        """Start the program as soon as all of its description is here."""
        head, newline, rest = self.heard.partition(b"\n")
        argc, length = map(int, head.split()) if newline else (0, 0)
        if not newline or len(rest) < length:
            return
        cwd, *words = rest[:length].split(b"\0")
        env = dict(pair.split(b"=", 1) for pair in words[argc:])
        self.heard = rest[length:]
        self.start(cwd, words[:argc], env)

    def start(self, cwd: bytes, argv: list[bytes], env: dict[bytes, bytes]) -> None:
        self.trouble, told = os.pipe()  # a successful exec closes it without a word
        shim = 0 if self.init else os.getpid()  # whoever is outside of a namespace has no pid in it
        try:
            self.pid = os.fork()
        except OSError as error:
            self.fail(b"fork", error.errno or 0)
            self.over = True
            return
        if self.pid == 0:
            become(cwd, argv, env, told, lambda: self.prepare(shim))
        os.close(told)
        self.poll.register(self.trouble, select.POLLIN)
        let_go_of_pipes()
        self.obey()

    def prepare(self, shim: int) -> None:
        """In the forked child: all that makes it a program of its own."""
        leave_warden(shim)
        join(self.group)
        if self.namespace is not None:
            self.namespace.enter()

    def learn_start(self) -> None:
        """Say how the start went; once."""
        if self.trouble < 0:
            return
        step, _, number = os.read(self.trouble, 64).partition(b" ")
        self.poll.unregister(self.trouble)
        os.close(self.trouble)
        self.trouble = -1
        if step:
            self.fail(step, int(number))
        else:
            self.say(b'{"event":"spawned","pid":%d}' % self.pid)

    def fail(self, step: bytes, errno: int) -> None:
        self.say(b'{"event":"failed","step":"%s","errno":%d}' % (step, errno))

    # ------------------------------------------------------------------------------------------ end
    def reap(self) -> bool:
        """Take in the dead; true while there are children left."""
        return take_in(self.bell, self.bury)

    def bury(self, pid: int, wait_status: int) -> None:
        status = os.waitstatus_to_exitcode(wait_status)
        if pid == self.pid:
            self.learn_start()
            self.status, self.over = status, True
            self.say(b'{"event":"exited","status":%d}' % status)
        elif pid == self.init:
            self.init = 0
        elif self.sweeping and status == -signal.SIGKILL:
            self.killed += 1

    def sweep(self) -> None:
        """SIGKILL whatever is, or becomes, our child, until the kernel says that we have none.

        What a killed child leaves behind becomes ours. A process that forks and exits all the time can outrun a round,
        but not every round: measured, one that does nothing else is caught within milliseconds. In a namespace nobody
        can: its init is struck with our own, and ``waitpid`` has it only when nobody else is there.
        """
        self.killed = self.doomed()
        if self.status is not None and LINUX:  # it exited by itself, and what it leaves is told by name
            # Whatever is left works on while it is listed, so the list is short.
            told = (one for pid in self.family() if lives(pid) and (one := _told(pid)) and not one.endswith(b",true]"))
            self.outlived = b"[%s]" % b",".join(islice(told, OUTLIVED_MAX))
        self.sweeping, self.cut_short = True, self.status is None
        self.since_s = self.since_s or time.monotonic()
        dead = select.poll()
        dead.register(self.bell, select.POLLIN)
        nap_ms = 1
        while self.strike():
            nap_ms = 1 if dead.poll(nap_ms) else min(2 * nap_ms, NAP_MAX_MS)

    def doomed(self) -> int:
        """How many die with the init that would have become ours: of those ``waitpid`` does not tell us."""
        return sum(lives(pid) for pid in self.family() if pid != self.pid) if self.init else 0

    def strike(self) -> bool:
        """One round: our children only, whose pids stay theirs until we reap them, so no stranger can be hit."""
        send(children(os.getpid()) if LINUX else [-self.pid] if self.pid else [], signal.SIGKILL)
        return self.reap()

    def ended_by(self) -> bytes:
        """Who ended the main process; an order that came too late did not."""
        if self.cut_short and self.status == -signal.SIGKILL:
            return b"kill"
        return b"terminate" if self.terminating else b"exit"

    def took_s(self) -> float:
        return time.monotonic() - (self.since_s or time.monotonic())
