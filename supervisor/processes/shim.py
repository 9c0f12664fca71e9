"""Shim: the process between the supervisor and one program, forked by the fork server (``fork_server.py``).

Theory of operation
-------------------
The shim starts the program, adopts every process that is orphaned below it (the shim is a subreaper), and exits only
after ``waitpid`` has failed with ECHILD. A scan of /proc can miss a process that forks meanwhile; ECHILD is the
kernel's own statement that no descendant is left.

The shim waits for three things: the program's exit, an order on the control socket, and the end of the supervisor. The
program's exit and the end of the supervisor both lead to ``sweep``, which kills every descendant. End of file on the
control socket means *kill everything*, whether the supervisor closed the socket on purpose or died: so an order to kill
can neither be lost nor fail because of a full buffer.

The exit of a program that was asked to end (``signal``, ``term``) is no reason to kill what it has started: a shell
dies of SIGTERM at once, and the tool below it has the time that the supervisor gives to the whole tree. The shim then
waits until only processes are left that ignore the signal, or until it is ordered to kill.

Example: the program starts a daemon in a session of its own, and exits.

    program exits         -> waitpid reports the program; the shim sends ``exited``
    daemon was orphaned   -> the kernel makes the daemon a child of the shim
    sweep                 -> SIGKILL to the daemon; waitpid reports the daemon, then fails with ECHILD
    shim sends ``ended``  and exits

In:  ``ARGC LENGTH\\n`` and LENGTH bytes: cwd, argv and ``NAME=value``, joined by NUL; then the lines
     ``signal N`` (the program's process group, as a terminal does at Ctrl-C), ``term`` (SIGTERM, then SIGCONT, to the
     whole tree), ``look`` (report the whole tree) and ``strike N PID:BORN ...`` (signal N to those descendants whose
     pid and start time both match).
Out: one JSON object per line: ``here``, ``spawned``, ``failed``, ``seen``, ``exited``, ``ended``.

With a pid namespace (``pid_namespace.py``) the program is started inside the namespace, and the namespace's init adopts
orphans in place of the shim. The init dies with the shim, and the kernel kills the whole namespace with its init.

Only the standard library is used, and little of it, because every launch waits for the shim's start. JSON is therefore
written by hand, and the launch arrives as NUL-separated bytes, the form in which the kernel keeps argv and environ.

The guarantee is complete on Linux. Elsewhere there is no subreaper, and only the program's process group is killed.
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

LINUX = sys.platform == "linux"
HAS_CHILDREN_FILE = os.path.exists("/proc/thread-self/children")  # CONFIG_PROC_CHILDREN
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PF_EXITING = 0x4
SIGKILL_BIT = 1 << (signal.SIGKILL - 1)
CATCHABLE = tuple(int(one) for one in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
OOM_MARGIN = 200
POLL_MAX_MS = 50
SERVER_MARK = b"SUPERVISOR_SERVER"
COMMAND_BYTES = 200
OUTLIVED_MAX = 100
CHUNK_BYTES = 65536


# ------------------------------------------------------------------------------------------- the tree of processes
def children(pid: int) -> list[int]:
    """Return the pids of the direct children of *pid*, zombies included."""
    found: list[int] = []
    with suppress(OSError):  # *pid* has just ended
        for task in os.listdir(f"/proc/{pid}/task") if HAS_CHILDREN_FILE else ():
            with open(f"/proc/{pid}/task/{task}/children", "rb") as listing:
                found += map(int, listing.read().split())
    if HAS_CHILDREN_FILE or not LINUX:
        return found
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(_stat(name)[1]) == pid]


def _stat(pid: int | str) -> list[bytes]:
    """Return the fields of ``/proc/PID/stat`` from the third on (proc(5)); if *pid* is gone, return the fields of a
    dead process."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as stat:
        return stat.read().rpartition(b")")[2].split()
    return [b"X", *[b"-1"] * 19]


def _read(pid: int, name: str) -> bytes:
    """Return the content of the file *name* in ``/proc/PID``; empty if *pid* is gone or belongs to another user."""
    with suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read()
    return b""


def describe_processes(pids: Collection[int]) -> bytes:
    """Return a JSON array with a row for each of *pids* that exists.

    Each row holds pid, parent, session, start time, state, number of threads, the start of the command line (in
    hexadecimal, since it may hold any bytes), whether the process is marked as a server, and whether the kernel is
    ending the process.
    """
    return b"[%s]" % b",".join(row for pid in pids if (row := _describe_process(pid)))


def _describe_process(pid: int) -> bytes:
    fields = _stat(pid)
    if fields[19] == b"-1":
        return b""
    exiting = is_exiting(pid)
    command, server = b"", b"false"
    if not exiting:  # the memory of an exiting process is gone, or locked, so that a read could wait for its end
        command = _read(pid, "cmdline").rstrip(b"\0").replace(b"\0", b" ")[:COMMAND_BYTES].hex().encode()
        server = b"true" if b"\0%s=" % SERVER_MARK in b"\0" + _read(pid, "environ") else b"false"
    row = (
        pid,
        fields[1],
        fields[3],
        fields[19],
        fields[0],
        fields[17],
        command,
        server,
        b"true" if exiting else b"false",
    )
    return b'[%d,%s,%s,%s,"%s",%s,"%s",%s,%s]' % row


def descendants(pid: int) -> list[int]:
    """Return the pids of all processes below *pid*, parents first. The result is a snapshot: a process that forks
    meanwhile can be missing."""
    found = children(pid)
    for child in found:  # the loop extends the list that it iterates over
        found += children(child)
    return found


def birth_of(pid: int) -> int:
    """Return the start time of *pid*, in clock ticks since the boot; -1 if *pid* is gone."""
    return int(_stat(pid)[19])


def is_alive(pid: int) -> bool:
    """Return whether the process *pid* runs. If it has several threads, a zombie state means only that the main thread
    has exited."""
    fields = _stat(pid)
    return fields[0] not in b"ZX" or int(fields[17]) > 1


def is_exiting(pid: int) -> bool:
    """Return whether the kernel is ending the process *pid*, which then runs no code of its program any more: each of
    its threads has exited, is exiting (``PF_EXITING``), or has SIGKILL pending, which comes before any other
    instruction of the program. ``True`` also if *pid* is gone; ``False`` where /proc does not show it."""
    tasks: list[str] = []
    with suppress(OSError):
        tasks = os.listdir(f"/proc/{pid}/task")
    return LINUX and all(_is_exiting_thread(pid, task) for task in tasks)


def _is_exiting_thread(pid: int, task: str) -> bool:
    fields = _stat(f"{pid}/task/{task}")
    if fields[0] in b"ZX" or int(fields[6]) & PF_EXITING:
        return True
    pending = [line.split()[1] for line in _read(pid, f"task/{task}/status").splitlines() if line[3:5] == b"Pn"]
    return any(int(mask, 16) & SIGKILL_BIT for mask in pending)


def ignores(pid: int, number: int) -> bool:
    """Return whether the process *pid* ignores the signal *number*."""
    ignored = [line.split()[1] for line in _read(pid, "status").splitlines() if line.startswith(b"SigIgn:")]
    return any(int(mask, 16) & 1 << (number - 1) for mask in ignored)


def exiting_processes(roots: Collection[int], others: Collection[int] = ()) -> tuple[int, ...]:
    """Return the processes that are left below *roots*, without *others* and what is below them, if the kernel is
    ending all of these processes; nothing if one of them may run."""
    left = [child for root in roots for child in children(root) if child not in others]
    for pid in left:  # the loop extends the list that it iterates over
        left += children(pid)
    found = tuple(pid for pid in left if is_alive(pid))
    return found if all(map(is_exiting, found)) else ()


def kill_below(pid: int) -> None:
    """Send SIGKILL to the descendants of *pid*, which the kernel is ending.

    Until *pid* is gone, its children have no other parent, and run on. *pid* reaps none of them any more, but the
    kernel may: a pidfd makes sure that the process which is killed is the one whose parent was checked.
    """
    found = [(pid, child) for child in children(pid)]
    for parent, child in found:  # the loop extends the list that it iterates over
        found += [(child, below) for below in children(child)]
        with suppress(OSError):  # the child is gone, or the kernel has no pidfd
            handle = os.pidfd_open(child)
            try:
                if int(_stat(child)[1]) == parent:
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)


def send(pids: Collection[int], *numbers: int) -> None:
    """Send the signals *numbers* to each of *pids*; a process that is gone or may not be signalled is skipped."""
    for pid in pids:
        for number in numbers:
            with suppress(OSError):
                os.kill(pid, number)


# ------------------------------------------------------------------------------------------------- the program
LIBC = ctypes.CDLL(None) if LINUX else None


def prctl(option: int, value: int) -> None:
    """Call prctl(2) on Linux; do nothing elsewhere."""
    if LIBC is not None:
        LIBC.prctl(option, value, 0, 0, 0)


def adopt_orphans() -> None:
    """Make this process the parent of every process that is orphaned below it."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def exec_program(
    cwd: bytes, argv: list[bytes], env: dict[bytes, bytes], errors: int, prepare: Callable[[], None]
) -> NoReturn:
    """Exec the program, in the forked child; if a step fails, write the step and its errno to *errors* and exit."""
    step = b"start"
    try:
        prepare()
        step = b"cwd"
        os.chdir(cwd)
        step = b"exec"
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(errors, b"%s %d" % (step, error.errno or 0))
    finally:
        os._exit(127)


def detach_from_shim(shim: int) -> None:
    """Start a session, arrange that this process is killed when *shim* dies, and reset the signal handling to its
    defaults."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The shim may have died before prctl took effect. Inside a namespace its init covers that case.
    if os.getppid() != shim:
        os._exit(127)
    raise_oom_score()
    for number in CATCHABLE:
        if signal.getsignal(number) != signal.SIG_DFL:  # a handler of the shim, or ignored by whoever started us
            with suppress(OSError):  # libc reserves some signals
                signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def raise_oom_score() -> None:
    """Make the out-of-memory killer kill the program rather than its shim. No privilege is needed to raise the score of
    the own process."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "r+") as score:
        wanted = min(1000, int(score.read()) + OOM_MARGIN)
        score.seek(0)
        score.write(str(wanted))


def join_control_group(group: str) -> None:
    """Enter the control group, if there is one. Descendants inherit the group and can be found by it."""
    with suppress(OSError), open(f"{group}/cgroup.procs", "wb", buffering=0) as members:
        members.write(b"0")


def release_standard_streams() -> None:
    """Redirect descriptors 0, 1 and 2 to /dev/null: a copy of the program's pipes in this process would delay the end
    of file for the readers."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd, inheritable=False)
    os.close(null)


# ------------------------------------------------------------------------------------------------- ended children
def open_wakeup_pipe() -> tuple[int, int]:
    """Open a pipe (read end, write end) whose read end becomes readable when a child ends."""
    reading, writing = os.pipe()
    for fd in (reading, writing):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    return reading, writing


def reap_children(
    wakeup: int, on_exit: Callable[[int, int], None], wait: Callable[[int, int], tuple[int, int]] = os.waitpid
) -> bool:
    """Empty the *wakeup* pipe and reap every ended child, calling ``on_exit(pid, wait_status)`` for each child.

    Return ``False`` if no child is left: ``wait`` has failed with ECHILD.
    """
    with suppress(BlockingIOError):
        os.read(wakeup, CHUNK_BYTES)
    try:
        while (ended := wait(-1, os.WNOHANG))[0]:
            on_exit(*ended)
    except ChildProcessError:
        return False
    return True


def watch_supervisor(supervisor: int) -> int:
    """Return a pidfd that becomes readable when the process *supervisor* dies; -1 if no pidfd can be opened.

    Watching the control socket alone does not suffice: a child of the supervisor may still hold a copy of its other
    end.
    """
    with suppress(OSError):  # a kernel before 5.3, or the supervisor is gone: end of file on the socket reports that
        if hasattr(os, "pidfd_open"):
            return os.pidfd_open(supervisor)
    return -1


# ------------------------------------------------------------------------------------------------- the shim
class Shim:
    """Shim: runs one program, obeys orders, and kills every descendant at the end of the program or of the supervisor.

    Args:
        control: the control socket.
        lost: descriptor that becomes readable when the supervisor dies; -1 for none.
        group: the folder of the control group that the program enters; empty for none.
        namespace: the pid namespace in which the shim's children are started; ``None`` for the shim's own.
    """

    def __init__(self, control: int, lost: int, group: str, namespace: PidNamespace | None) -> None:
        self.control = control
        self.lost = lost
        self.group = group
        self.namespace = namespace
        self.init = namespace.init if namespace is not None else 0
        self.received = b""
        self.pid = 0
        self.status: int | None = None
        self.exec_errors = -1
        self.finished = False
        self.terminating = False
        self.asked = 0
        """Signal by which the program, or its tree, was asked to end last; 0 before."""
        self.sweeping = False
        self.cut_short = False
        self.killed = 0
        self.outlived = b"[]"
        self.since_s: float | None = None
        self.poll = select.poll()
        self.poll.register(control, select.POLLIN)
        self.wakeup, _ = open_wakeup_pipe()
        self.poll.register(self.wakeup, select.POLLIN)
        if lost >= 0:
            self.poll.register(lost, select.POLLIN)

    def run(self) -> None:
        """Serve orders until the program or the supervisor has ended, kill the remaining processes, and report
        ``ended``."""
        here = (os.getpid(), birth_of(os.getpid()), b"true" if self.init else b"false")
        self.send_status(b'{"event":"here","pid":%d,"born":%d,"enclosed":%s}' % here)
        while not self.finished:
            self.serve_once()
        self.sweep()
        self.send_status(
            b'{"event":"ended","status":%s,"ended_by":"%s","killed":%d,"took_s":%.6f,"outlived":%s}'
            % (
                b"null" if self.status is None else b"%d" % self.status,
                self.ended_by(),
                self.killed,
                self.took_s(),
                self.outlived,
            )
        )

    def serve_once(self) -> None:
        """Wait for events and handle them. Exits are handled first, so that an order that was sent after an exit finds
        the exit recorded."""
        ready = self.poll.poll(POLL_MAX_MS if self.init and self.outlived_by_tree else None)
        self.reap()
        for fd, _ in ready:
            if fd == self.control:
                self.read_control()
            elif fd == self.exec_errors:
                self.report_start()
            elif fd == self.lost:
                self.finished = True
        if self.outlived_by_tree and not any(map(self.may_obey, self.process_tree())):
            self.finished = True

    def send_status(self, line: bytes) -> None:
        with suppress(OSError):  # the supervisor is gone
            os.write(self.control, line + b"\n")

    # ------------------------------------------------------------------------------------------ orders
    def read_control(self) -> None:
        data = b""
        with suppress(OSError):
            data = os.read(self.control, CHUNK_BYTES)
        self.received += data
        if not data:
            self.finished = True
        elif self.pid:
            self.run_orders()
        else:
            self.launch()

    def run_orders(self) -> None:
        *orders, self.received = self.received.split(b"\n")
        for order in orders:
            word, _, number = order.partition(b" ")
            if word == b"term":
                self.terminate()
            elif word == b"signal":
                self.interrupt(int(number))
            elif word == b"look":
                self.report_processes()
            elif word == b"strike":
                self.signal_processes(*number.split())

    @property
    def outlived_by_tree(self) -> bool:
        """Whether the program has ended after it was asked to, and the processes below it have time to end, too. Inside
        a pid namespace their ends wake nobody: the shim looks from time to time."""
        return LINUX and self.status is not None and self.asked > 0

    def interrupt(self, number: int) -> None:
        """Send the signal *number* to the program and the other members of its process group."""
        if self.status is None:  # else the pid may have been given to another process, or group
            self.asked = number
            send((-self.pid,), number)

    def terminate(self) -> None:
        self.asked = signal.SIGTERM
        # An exit that has begun is not by the order.
        self.terminating = self.terminating or (self.status is None and not is_exiting(self.pid))
        self.since_s = self.since_s or time.monotonic()
        send(self.process_tree() if LINUX else [-self.pid], signal.SIGTERM, signal.SIGCONT)

    def process_tree(self) -> list[int]:
        """Return the pids of the program and its descendants, without the init of a pid namespace."""
        return [pid for pid in descendants(os.getpid()) if pid != self.init]

    def report_processes(self) -> None:
        """Send the status ``seen``: the program and its descendants, or ``null`` where /proc does not show
        processes."""
        seen = b"null"
        if birth_of(os.getpid()) >= 0:
            seen = describe_processes(self.process_tree())
        self.send_status(b'{"event":"seen","processes":%s}' % seen)

    def signal_processes(self, number: bytes, *found: bytes) -> None:
        """Send the signal *number*, then SIGCONT, to those processes of *found* that are descendants; the program
        continues.

        SIGCONT lets a stopped process handle the signal.
        """
        tree = set(self.process_tree())
        for pid, _, ticks in (process.partition(b":") for process in found):
            if int(pid) in tree and birth_of(int(pid)) == int(ticks):
                send((int(pid),), int(number), signal.SIGCONT)

    # ------------------------------------------------------------------------------------------ start
    def launch(self) -> None:
        """Start the program as soon as its description has arrived completely."""
        head, newline, rest = self.received.partition(b"\n")
        argc, length = map(int, head.split()) if newline else (0, 0)
        if not newline or len(rest) < length:
            return
        cwd, *words = rest[:length].split(b"\0")
        env = dict(pair.split(b"=", 1) for pair in words[argc:])
        self.received = rest[length:]
        self.start(cwd, words[:argc], env)

    def start(self, cwd: bytes, argv: list[bytes], env: dict[bytes, bytes]) -> None:
        self.exec_errors, errors = os.pipe()  # a successful exec closes the pipe, and nothing was written to it
        shim = 0 if self.init else os.getpid()  # inside a pid namespace getppid() is 0: the shim has no pid there
        try:
            self.pid = os.fork()
        except OSError as error:
            self.report_failure(b"fork", error.errno or 0)
            self.finished = True
            return
        if self.pid == 0:
            exec_program(cwd, argv, env, errors, lambda: self.prepare(shim))
        os.close(errors)
        self.poll.register(self.exec_errors, select.POLLIN)
        release_standard_streams()
        self.run_orders()

    def prepare(self, shim: int) -> None:
        """Prepare the start of the program, in the forked child: detach from the shim, and enter the control group and
        the pid namespace."""
        detach_from_shim(shim)
        join_control_group(self.group)
        if self.namespace is not None:
            self.namespace.enter()

    def report_start(self) -> None:
        """Report, once, whether the exec succeeded: send the status ``spawned`` or ``failed``."""
        if self.exec_errors < 0:
            return
        step, _, number = os.read(self.exec_errors, 64).partition(b" ")
        self.poll.unregister(self.exec_errors)
        os.close(self.exec_errors)
        self.exec_errors = -1
        if step:
            self.report_failure(step, int(number))
        else:
            self.send_status(b'{"event":"spawned","pid":%d}' % self.pid)

    def report_failure(self, step: bytes, errno: int) -> None:
        self.send_status(b'{"event":"failed","step":"%s","errno":%d}' % (step, errno))

    # ------------------------------------------------------------------------------------------ end
    def reap(self) -> bool:
        """Reap ended children; return whether any child is left."""
        return reap_children(self.wakeup, self.record_exit)

    def record_exit(self, pid: int, wait_status: int) -> None:
        status = os.waitstatus_to_exitcode(wait_status)
        if pid == self.pid:
            self.report_start()
            self.status, self.finished = status, not (LINUX and self.asked)
            self.send_status(b'{"event":"exited","status":%d}' % status)
            self.terminate_deaf()
        elif pid == self.init:
            self.init = 0
        elif self.sweeping and status == -signal.SIGKILL:
            self.killed += 1

    def terminate_deaf(self) -> None:
        """Send SIGTERM to the processes that take no notice of the signal by which the program was asked to end."""
        if self.asked not in {0, signal.SIGTERM}:
            deaf = [pid for pid in self.process_tree() if self.signal_for(pid) != self.asked]
            send(deaf, signal.SIGTERM, signal.SIGCONT)

    def signal_for(self, pid: int) -> int:
        """Return the signal by which the process *pid* is asked to end. A job in the background of a shell ignores
        SIGINT, and a process of another group does not get it: both are sent SIGTERM."""
        gets_it = self.asked == signal.SIGTERM or _stat(pid)[2] == b"%d" % self.pid
        return self.asked if gets_it and not ignores(pid, self.asked) else signal.SIGTERM

    def may_obey(self, pid: int) -> bool:
        """Return whether the process *pid* runs, and may end by the signal that it was sent."""
        return is_alive(pid) and not ignores(pid, self.signal_for(pid))

    def sweep(self) -> None:
        """Send SIGKILL to every process that is, or becomes, a child of the shim, until ``waitpid`` fails with ECHILD.

        The children of a killed process become children of the shim when the process is gone. While the kernel is
        ending a process, which may take seconds, the process's descendants are killed, too. A process that forks and
        exits all the time can escape a round, but not every round: a program that does nothing else was caught within
        milliseconds (measured). In a namespace no process escapes: the namespace's init is killed with the shim's other
        children, and ``waitpid`` reports the init only after the kernel has killed every process in the namespace.
        """
        self.killed = self.count_namespace_members()
        if self.status is not None and LINUX:  # the program exited by itself: list the processes that it leaves
            # The listed processes run on until they are killed, so the list is short.
            rows = (
                row
                for pid in self.process_tree()
                if is_alive(pid) and (row := _describe_process(pid)) and row.endswith(b",false,false]")
            )
            self.outlived = b"[%s]" % b",".join(islice(rows, OUTLIVED_MAX))
        self.sweeping, self.cut_short = True, self.status is None
        self.since_s = self.since_s or time.monotonic()
        exits = select.poll()
        exits.register(self.wakeup, select.POLLIN)
        poll_ms = 1
        while self.kill_children():
            poll_ms = 1 if exits.poll(poll_ms) else min(2 * poll_ms, POLL_MAX_MS)

    def count_namespace_members(self) -> int:
        """Return the number of processes that die with the namespace's init, because the shim's ``waitpid`` never
        reports these processes."""
        return sum(is_alive(pid) for pid in self.process_tree() if pid != self.pid) if self.init else 0

    def kill_children(self) -> bool:
        """Kill the shim's children once, reap them, and return whether any child is left.

        Children receive the signal by their pids: the kernel does not reuse the pid of a child before the shim has
        reaped the child.
        """
        send(children(os.getpid()) if LINUX else [-self.pid] if self.pid else [], signal.SIGKILL)
        is_any_left = self.reap()
        for pid in children(os.getpid()) if is_any_left else ():
            if is_alive(pid) and is_exiting(pid):
                kill_below(pid)
        return is_any_left

    def ended_by(self) -> bytes:
        """Return the cause of the main process's end; an order that arrived after the exit does not count."""
        if self.cut_short and self.status == -signal.SIGKILL:
            return b"kill"
        return b"terminate" if self.terminating else b"exit"

    def took_s(self) -> float:
        return time.monotonic() - (self.since_s or time.monotonic())
