"""Tests of processes under shims: bytes, statuses, and above all that no process is ever left.

The end of all processes is proved as follows: every victim holds the write end of a FIFO, and the test waits for the
end of file. The test process is a subreaper meanwhile, so that it inherits every process that escapes a shim, and every
test ends with a check that it has no more children and descriptors than before.
"""

from __future__ import annotations

import ctypes
import errno
import os
import runpy
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

from supervisor.ports import SERVER_VARIABLE, Launch, Process, SpawnError
from supervisor.processes import descent, exit_wait, host, shim, shim_client
from supervisor.processes.containment import Containment, group_for
from supervisor.processes.host import ShimHost, ShimProcess
from supervisor.processes.pipes import Descriptor, Output
from supervisor.processes.spawn_errors import step_failed
from tests.support import running_program, wait_for_exit

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="the whole promise is Linux's")]

PATH = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
VICTIMS = str(Path(__file__).with_name("victims.py"))
ZOO = tuple(runpy.run_path(VICTIMS)["KINDS"])
ROOT = Path(__file__).parents[3]
DEADLINE_S = 120.0


def descriptors() -> set[str]:
    """Return the open descriptors, without the descriptor that the listing itself needs."""
    return {fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}


FAMILY: set[int] = set()
"""Children of this process that no test has started, such as helper processes of ``multiprocessing``."""


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Check after each test that every process that the test started is gone and reaped, and every descriptor
    closed."""
    ctypes.CDLL(None).prctl(shim.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before, family = descriptors(), set(shim.children(os.getpid()))
    FAMILY.update(family)
    yield
    escaped = first = set(shim.children(os.getpid())) - family
    while escaped:
        shim.send(escaped, signal.SIGKILL)
        for pid in escaped:
            collect(pid)
        escaped = set(shim.children(os.getpid())) - family
    ctypes.CDLL(None).prctl(shim.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    assert not first
    assert descriptors() == before


class Roll:
    """Reader of the victims' FIFO: reports which victims have started, and when all of them are gone."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "roll")
        os.mkfifo(self.path)
        self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        self._heard = b""
        self.seen: dict[str, int] = {}

    async def _hear(self) -> bool:
        await anyio.wait_readable(self._fd)
        with suppress(BlockingIOError):
            data = os.read(self._fd, 65536)
            *lines, self._heard = (self._heard + data).split(b"\n")
            for line in lines:
                kind, pid = line.decode().split()
                self.seen[kind] = int(pid)
            return bool(data)
        return True

    async def all_here(self, *kinds: str) -> None:
        while not self.seen.keys() >= {*kinds, "main"}:
            await self._hear()

    async def somebody_here(self) -> None:
        while not self.seen:
            await self._hear()

    async def all_gone(self) -> None:
        """Wait for end of file, which means that no process holds the FIFO open any more."""
        while await self._hear():
            pass

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def roll(tmp_path: Path, nothing_left: None) -> Iterator[Roll]:
    roll = Roll(tmp_path)
    yield roll
    roll.close()


def launch(*argv: str, cwd: str = "/", env: dict[str, str] | None = None) -> Launch:
    return Launch(argv=argv, cwd=cwd, env=PATH if env is None else env)


def python(code: str, *argv: str) -> Launch:
    return launch(sys.executable, "-I", "-S", "-c", code, *argv)


def zoo(roll: Roll, mode: str, *kinds: str) -> Launch:
    return launch(sys.executable, "-I", "-S", VICTIMS, roll.path, mode, *kinds)


async def all_output(process: Process) -> bytes:
    chunks = []
    while chunk := await process.receive():
        chunks.append(chunk)
    return b"".join(chunks)


async def output_of(wanted: Launch) -> bytes:
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as shims, shims.spawn(wanted) as process:
            return await all_output(process)


def collect(pid: int) -> None:
    os.waitpid(pid, 0)


@asynccontextmanager
async def running(roll: Roll, mode: str, *kinds: str, terminate_s: float = 2.0) -> AsyncIterator[ShimProcess]:
    """Run the victims' program in a host, and wait until all victims have started."""
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as shims, shims.spawn(zoo(roll, mode, *kinds), terminate_s=terminate_s) as process:
            await roll.all_here(*kinds)
            yield process


# ------------------------------------------------------------------------------------------------- bytes
async def test_input_comes_back_as_output() -> None:
    """Input that is sent to ``cat`` comes back as output, and ``cat`` exits when its input is closed."""
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as shims, shims.spawn(launch("cat")) as process:
            await process.send(b"one\n")
            assert await process.receive() == b"one\n"
            process.close_input()
            assert await process.receive() == b""
            assert await process.wait_exit() == 0


async def test_standard_error_is_a_stream_of_its_own() -> None:
    """Standard error is returned by ``receive_err`` only, standard output by ``receive`` only."""
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as shims, shims.spawn(launch("sh", "-c", "echo out; echo err >&2")) as process:
            assert (await process.receive_err(), await process.receive_err()) == (b"err\n", b"")
            assert await all_output(process) == b"out\n"


async def test_ten_megabytes_pass_through_whole() -> None:
    """A program echoes more bytes than a pipe can hold: every byte comes back, in order."""
    data = bytes(range(256)) * 40_000
    with anyio.fail_after(DEADLINE_S):
        async with (
            ShimHost() as shims,
            shims.spawn(launch("cat")) as process,
            anyio.create_task_group() as nursery,
        ):

            async def feed() -> None:
                await process.send(data)
                process.close_input()

            nursery.start_soon(feed)
            assert await all_output(process) == data


async def test_a_sender_waits_for_a_program_that_does_not_read() -> None:
    """``send`` to a program that does not read returns only when the program has made room in the pipe."""
    code = (
        "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); print('up', flush=True);"
        "signal.sigwait([signal.SIGUSR1]); print(len(sys.stdin.buffer.read()))"
    )
    sent = anyio.Event()
    with anyio.fail_after(DEADLINE_S):
        async with (
            ShimHost() as shims,
            shims.spawn(python(code)) as process,
            anyio.create_task_group() as nursery,
        ):

            async def feed() -> None:
                await process.send(bytes(10_000_000))
                sent.set()
                process.close_input()

            nursery.start_soon(feed)
            assert await process.receive() == b"up\n"
            assert not sent.is_set()
            process.signal(signal.SIGUSR1)
            assert await all_output(process) == b"10000000\n"
            assert sent.is_set()


async def test_two_senders_do_not_mix() -> None:
    """Two tasks send large pieces at the same time: each piece arrives whole."""
    with anyio.fail_after(DEADLINE_S):
        async with (
            ShimHost() as shims,
            shims.spawn(launch("cat")) as process,
            anyio.create_task_group() as nursery,
        ):

            async def feed() -> None:
                async with anyio.create_task_group() as senders:
                    senders.start_soon(process.send, b"a" * 300_000)
                    senders.start_soon(process.send, b"b" * 300_000)
                process.close_input()

            nursery.start_soon(feed)
            output = await all_output(process)
    assert output in (b"a" * 300_000 + b"b" * 300_000, b"b" * 300_000 + b"a" * 300_000)


async def test_sending_to_the_deaf_is_nothing() -> None:
    """A ``send`` to a program that has exited, or to an input that was closed, is dropped without an error."""
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as shims, shims.spawn(launch("true")) as process:
            await process.wait_exit()
            await process.send(bytes(1_000_000))
            process.close_input()
            await process.send(b"more")


async def test_the_shim_holds_no_pipe() -> None:
    """A program closes its standard output and runs on: the reader gets the end of output, because the shim holds no
    copy of the pipe."""
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as shims, shims.spawn(launch("sh", "-c", "exec >&- 2>&-; read word")) as process:
            assert (await process.receive(), await process.receive_err()) == (b"", b"")
            process.terminate()
            assert await process.wait_exit() == -15


async def test_output_is_still_there_after_the_exit() -> None:
    """A program writes and exits: its output can still be read after its status is known."""
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as shims, shims.spawn(launch("sh", "-c", "echo last words; exit 4")) as process:
            assert (await process.wait_ended()).status == 4
            assert await all_output(process) == b"last words\n"


async def test_leaving_ends_a_receive_that_waits() -> None:
    """The context is left while another task waits in ``receive``: that task receives ``b""``."""
    received: list[bytes] = []
    with anyio.fail_after(DEADLINE_S):
        async with (
            ShimHost() as shims,
            anyio.create_task_group() as nursery,
            shims.spawn(launch("sleep", "60")) as process,
        ):

            async def listen() -> None:
                received.append(await process.receive())

            nursery.start_soon(listen)
            await anyio.wait_all_tasks_blocked()
            assert not received
    assert received == [b""]


async def test_a_closed_descriptor_takes_no_other_with_it() -> None:
    """A pipe is closed while a task waits on it, and a new pipe gets the same descriptor number: the new pipe works."""
    reading, writing = os.pipe()
    old, ended = Output(reading), anyio.Event()

    async def wait_on_old(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        task_status.started()
        assert await old.receive() == b""
        ended.set()

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as nursery:
            await nursery.start(wait_on_old)
            await anyio.wait_all_tasks_blocked()
            old.close()
            reused, into_reused = os.pipe()
            new = Descriptor(reused)
            nursery.start_soon(new.readable)
            await ended.wait()
            os.write(into_reused, b"x")
    new.close()
    for fd in (writing, into_reused):
        os.close(fd)


# ------------------------------------------------------------------------------------------------- beginnings and ends
@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", -9), ("kill -TERM $$", -15)]
)
async def test_exit_status(script: str, status: int) -> None:
    """The reported status is the main process's exit status, in Python's form, and ``ended_by`` is ``exit``."""
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as shims, shims.spawn(launch("sh", "-c", script)) as process:
            assert await process.wait_exit() == status
            report = await process.wait_ended()
    assert report == process.report
    assert (report.status, report.ended_by, report.killed, report.survivors) == (status, "exit", 0, 0)
    assert report.pid == process.pid


@pytest.mark.parametrize(
    ("argv", "cwd", "sentence"),
    [
        (("no-such-program",), "/", "no such program on PATH '/usr/local/bin:/usr/bin:/bin'; install it"),
        (("./no-such-program",), "/", "no such file; install it, or correct argv"),
        (("/etc/passwd",), "/", "not an executable file; chmod"),
        (("/",), "/", "not an executable file; chmod"),
        (("true",), "/no/such", "working directory '/no/such' does not exist; create it"),
        (("true",), "/etc/passwd", "working directory '/etc/passwd' is not a directory"),
        (("true", "x" * 5_000_000), "/", "argv and env are too large"),
        (("true", "a\0b"), "/", r"argv\[1\] contains a NUL byte"),
        ((), "/", "argv is empty"),
    ],
)
async def test_refusal(argv: tuple[str, ...], cwd: str, sentence: str) -> None:
    """A program cannot be started: the SpawnError names the program, the wrong value and the fix."""
    with anyio.fail_after(DEADLINE_S):
        with pytest.raises(SpawnError, match=sentence) as caught:
            async with ShimHost() as shims, shims.spawn(launch(*argv, cwd=cwd)):
                pytest.fail("it started")
        assert repr(argv[0]) in str(caught.value) if argv else True


async def test_a_large_launch_is_sent_whole_on_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that is larger than the buffers of the control socket, and takes longer than the time in which launches
    cannot be cancelled, reaches the shim whole: the program starts."""
    monkeypatch.setattr(host, "LAUNCH_SHIELD_S", 0.0)
    large = {f"V{number}": "x" * 100_000 for number in range(12)}
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as shims, shims.spawn(launch("sh", "-c", "exit ${#V11}", env=large)) as process:
            assert await process.wait_exit() == 100_000 % 256


@pytest.mark.parametrize(
    ("first_line", "sentence"), [("#!/no/such/interpreter\n", "the interpreter named in its #! line"), ("", "no #!")]
)
async def test_refusal_of_a_script(first_line: str, sentence: str, tmp_path: Path) -> None:
    """A script without a usable interpreter cannot be started: the error names the interpreter line, and does not call
    the script missing."""
    script = tmp_path / "script"
    script.write_text(first_line + "echo hello\n")
    script.chmod(0o755)
    with anyio.fail_after(DEADLINE_S), pytest.raises(SpawnError, match=sentence):
        async with ShimHost() as shims, shims.spawn(launch("./script", cwd=str(tmp_path))):
            pytest.fail("it started")


@pytest.mark.parametrize("name", ["", "A=B"])
async def test_refusal_of_a_variable_name(name: str) -> None:
    """A launch has a variable name that no operating system accepts: before any process starts, ``spawn`` raises a
    SpawnError that names the variable."""
    with pytest.raises(SpawnError, match="a variable named"):
        async with ShimHost() as shims, shims.spawn(launch("true", env={name: "x"})):
            pytest.fail("it started")


def test_refusal_where_no_process_can_be_made() -> None:
    """No process can be forked because the process table is full: the error says in a sentence to raise the limit."""
    assert "raise the limit" in str(step_failed(launch("true"), "fork", errno.EAGAIN))


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_shim_that_cannot_start_is_a_refusal(monkeypatch: pytest.MonkeyPatch, is_gone: bool) -> None:
    """Python cannot start the fork server: the SpawnError quotes its standard error, even if Python has exited before
    the first message to it."""
    monkeypatch.setattr(shim_client, "FORK_SERVER_PROGRAM", Path("/no/such/fork_server.py"))
    if is_gone:
        # No Python ends between its start and the first message but by chance.
        send = shim_client.ForkServerClient._send

        def send_late(ours: shim_client.ForkServerClient, message: bytes, descriptors: Sequence[int]) -> None:
            assert ours._fork_server is not None
            ours._fork_server.wait()
            send(ours, message, descriptors)

        monkeypatch.setattr(shim_client.ForkServerClient, "_send", send_late)
    with (
        anyio.fail_after(DEADLINE_S),
        pytest.raises(SpawnError, match=r"cannot start 'true'.*/no/such/fork_server\.py"),
    ):
        async with ShimHost() as shims, shims.spawn(launch("true")):
            pytest.fail("it started")


async def test_no_python_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python interpreter is missing, so that no fork server can be started: ``spawn`` raises a SpawnError, and no
    descriptor stays open."""
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(SpawnError, match="no shim for it"):
        async with ShimHost() as shims, shims.spawn(launch("true")):
            pytest.fail("it started")


def test_windows_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a system without process supervision, such as Windows, making a host raises a RuntimeError."""
    monkeypatch.setattr("supervisor.processes.host.os.name", "nt")
    with pytest.raises(RuntimeError, match="Linux"):
        ShimHost()


# ------------------------------------------------------------------------------------------------- what a program sees
async def test_environment_is_exact() -> None:
    """A program gets exactly the environment of its launch, and unusual values arrive unchanged."""
    env = {"GREETING": "grüß\ndich = 1", "EMPTY": "", "BYTES": "\udcff"}
    output = await output_of(launch("/usr/bin/env", "-0", env=env))
    assert output == b"".join(os.fsencode(f"{name}={value}\0") for name, value in env.items())


async def test_arguments_and_directory_are_exact(tmp_path: Path) -> None:
    """argv and the working directory arrive unchanged, and a program with a relative path is found in the working
    directory."""
    tmp_path = tmp_path.resolve()
    (tmp_path / "tool").write_text('#!/bin/sh\npwd -P\nprintf "<%s>" "$@"\n')
    (tmp_path / "tool").chmod(0o755)
    output = await output_of(launch("./tool", "", "a b", "\n", cwd=str(tmp_path)))
    assert output.decode() == f"{tmp_path}\n<><a b><\n>"


async def test_a_large_environment_arrives() -> None:
    """A launch whose environment is larger than any socket buffer arrives completely."""
    env = {f"V{index}": "x" * 100_000 for index in range(10)}
    assert await output_of(launch("/bin/sh", "-c", "echo ${#V0} ${#V9}", env=env)) == b"100000 100000\n"


async def test_no_descriptor_leaks_into_a_program() -> None:
    """A program has its three standard streams and no other descriptor, not even the pipes of other programs."""
    code = "import os; print([fd for fd in range(3, 300) if os.path.exists(f'/proc/self/fd/{fd}')])"
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as shims, shims.spawn(launch("cat")), shims.spawn(python(code)) as process:
            assert await all_output(process) == b"[]\n"


async def test_signals_and_session_are_a_fresh_programs() -> None:
    """Signals that the host ignores or blocks have their default action in the program, and the program leads its own
    session."""
    ignored = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        with anyio.fail_after(DEADLINE_S):
            async with (
                ShimHost() as shims,
                shims.spawn(launch("grep", "-E", "Sig(Blk|Ign)|NS[ps]", "/proc/self/status")) as process,
            ):
                told = dict(line.split(b":\t") for line in (await all_output(process)).splitlines())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGUSR1, ignored)
    reserved = 1 << 31 | 1 << 32  # signals 32 and 33 are the C library's own: no program can change them
    assert int(told[b"SigBlk"], 16) & ~reserved == 0
    assert int(told[b"SigIgn"], 16) & ~reserved == 0
    assert {int(told[name].split()[-1]) for name in (b"NSpid", b"NSpgid", b"NSsid")} == {process.pid}


async def test_the_control_group_holds_programs_and_is_removed_with_the_host() -> None:
    """A program runs in the control group of its state directory; the host removes the group when it ends."""
    group = group_for(f"test-{os.getpid()}")
    if not group:
        pytest.skip("no control group can be made here")
    with anyio.fail_after(DEADLINE_S):
        async with (
            ShimHost(Containment(group=group)) as shims,
            shims.spawn(launch("cat", "/proc/self/cgroup")) as process,
        ):
            assert f"/{Path(group).name}\n".encode() in await all_output(process)
    assert not Path(group).exists()


async def test_a_shim_hides_the_command_line_and_outlives_its_program() -> None:
    """A shim's command line does not show the program's command line, and the out-of-memory killer prefers the program
    to the shim."""
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as shims, shims.spawn(launch("cat", "-")) as process:
            home = Path(f"/proc/{process.shim_client.pid}")
            assert b"cat" not in (home / "cmdline").read_bytes()
            assert (home / "environ").read_bytes().count(b"\0") <= 2
            mine, its = (int((path / "oom_score_adj").read_text()) for path in (home, Path(f"/proc/{process.pid}")))
            assert mine < its


# ------------------------------------------------------------------------------------------------- nothing is left
async def test_leaving_leaves_nothing(roll: Roll) -> None:
    """Leaving the context of a program ends every kind of descendant."""
    async with running(roll, "stay", *ZOO) as process:
        pass
    with anyio.fail_after(DEADLINE_S):
        await roll.all_gone()
        report = await process.wait_ended()
    assert (report.status, report.ended_by, report.survivors) == (-15, "terminate", 0)
    assert report.killed >= 1, "the stubborn one at least"


async def test_kill_leaves_nothing(roll: Roll) -> None:
    """``kill`` ends every kind of descendant, and the report follows."""
    async with running(roll, "stay", *ZOO) as process:
        process.kill()
        report = await process.wait_ended()
        assert (report.status, report.ended_by, report.survivors) == (-9, "kill", 0)
        assert report.killed >= len(ZOO)
        await roll.all_gone()


async def test_exit_leaves_nothing(roll: Roll) -> None:
    """A main process exits by itself: every kind of descendant is ended, and the report has the main process's own
    status."""
    async with running(roll, "exit", *ZOO) as process:
        await process.send(b"go\n")
        assert await process.wait_exit() == 3
        report = await process.wait_ended()
        await roll.all_gone()
        assert (report.status, report.ended_by, report.survivors) == (3, "exit", 0)


async def test_defiance_is_killed(roll: Roll) -> None:
    """A main process ignores SIGTERM: it is killed after ``terminate_s``, together with every kind of descendant."""
    async with running(roll, "defy", *ZOO, terminate_s=0.05) as process:
        pass
    with anyio.fail_after(DEADLINE_S):
        await roll.all_gone()
    assert process.report is not None
    assert (process.report.status, process.report.ended_by, process.report.survivors) == (-9, "kill", 0)


@pytest.mark.parametrize("kind", ZOO)
async def test_each_kind_is_killed(kind: str, roll: Roll) -> None:
    """A kill finds and ends each kind of descendant when it is the only one."""
    async with running(roll, "stay", kind) as process:
        process.kill()
        assert (await process.wait_ended()).survivors == 0
        await roll.all_gone()


async def test_what_was_killed_is_counted(roll: Roll) -> None:
    """After a kill, ``killed`` is the exact number of descendants, without the main process."""
    async with running(roll, "stay", "child", "session", "daemon", "stubborn", "stopped") as process:
        process.kill()
        assert (await process.wait_ended()).killed == 5


async def test_terminate_reaches_the_whole_tree(roll: Roll) -> None:
    """``terminate`` sends SIGTERM and SIGCONT to every descendant: descendants that do not ignore SIGTERM, even a
    stopped one, end without a kill."""
    async with running(roll, "defy", "child", "session", "daemon", "stopped") as process:
        process.terminate()
        for kind in ("child", "session", "daemon", "stopped"):
            await wait_for_exit(roll.seen[kind])
        process.signal(signal.SIGKILL)
        report = await process.wait_ended()
        assert (report.status, report.ended_by, report.killed, report.survivors) == (-9, "terminate", 0, 0)


async def test_end_of_output_needs_no_descendants_leave(roll: Roll) -> None:
    """A child holds the standard output of an exited main process open: the reader gets the end of output all the
    same."""
    async with running(roll, "exit", "child") as process:
        process.close_input()
        assert await all_output(process) == b""
        assert await process.wait_exit() == 3


# ------------------------------------------------------------------------------------------------- leaving
async def test_an_exception_leaves_as_it_is(roll: Roll) -> None:
    """The body of the context raises: the exception leaves the context unwrapped, and no process is left."""
    with pytest.raises(ZeroDivisionError):
        async with running(roll, "stay", "daemon"):
            raise ZeroDivisionError
    with anyio.fail_after(DEADLINE_S):
        await roll.all_gone()


async def test_a_cancellation_leaves_nothing(roll: Roll) -> None:
    """The body of the context is cancelled: the whole process tree ends, and the report is available."""
    with anyio.CancelScope() as scope:
        async with running(roll, "stay", *ZOO) as process:
            scope.cancel()
            await process.wait_exit()
    assert scope.cancelled_caught
    assert process.report is not None
    assert process.report.survivors == 0
    with anyio.fail_after(DEADLINE_S):
        await roll.all_gone()


async def test_orders_after_the_end_are_nothing() -> None:
    """Late orders, and numbers that are no signal, neither raise nor have an effect."""
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as shims, shims.spawn(launch("cat")) as process:
            process.signal(2**32 + signal.SIGKILL)
            process.close_input()
            report = await process.wait_ended()
            process.terminate()
        for order in (process.terminate, process.kill, process.close_input, lambda: process.signal(15)):
            order()
        await process.send(b"late")
        assert await process.receive() == b""
        assert (report, await process.wait_exit()) == (await process.wait_ended(), 0)


async def test_a_signal_reaches_the_process_group(roll: Roll) -> None:
    """A signal goes to the main process and its process group; a number that is no signal is ignored."""
    async with running(roll, "stay", "child") as process:
        process.signal(2**32 + signal.SIGKILL)
        process.signal(signal.SIGUSR1)
        assert await process.wait_exit() == -signal.SIGUSR1
        assert (await process.wait_ended()).killed == 0


async def test_a_killed_tree_is_not_waited_for_politely(roll: Roll) -> None:
    """After a kill, leaving the context of the process does not wait for the terminate stage."""
    async with running(roll, "defy", terminate_s=10 * DEADLINE_S) as process:
        process.kill()
    assert process.report is not None
    assert process.report.ended_by == "kill"


@pytest.mark.parametrize("delay_ms", [0, 1, 3, 6, 10, 15, 20, 30])
async def test_a_cancelled_spawn_leaves_nothing(delay_ms: int, roll: Roll) -> None:
    """The scope is cancelled at different moments of a start: no process is left (see also the fixture
    ``nothing_left``)."""
    fork_server = os.open(roll.path, os.O_WRONLY)
    with anyio.fail_after(DEADLINE_S):
        with anyio.move_on_after(delay_ms / 1000):
            async with ShimHost() as shims, shims.spawn(zoo(roll, "defy", *ZOO), terminate_s=0):
                await anyio.sleep_forever()
        os.close(fork_server)
        await roll.all_gone()


async def test_twenty_at_once(tmp_path: Path) -> None:
    """Twenty programs start, write and end at the same time, each with its own status."""
    statuses: dict[int, int | None] = {}

    async def one(number: int) -> None:
        async with processes.spawn(launch("sh", "-c", f"echo {number}; read word; exit {number}")) as process:
            assert await process.receive() == b"%d\n" % number
            await process.send(b"go\n")
            statuses[number] = await process.wait_exit()
            assert (await process.wait_ended()).survivors == 0

    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as processes, anyio.create_task_group() as nursery:
            for number in range(20):
                nursery.start_soon(one, number)
    assert statuses == {number: number for number in range(20)}


# ------------------------------------------------------------------------------------------------- violence
async def test_a_killed_shim_takes_its_program_along(roll: Roll) -> None:
    """The shim is killed: its program dies, and the fork server ends and counts everything that the program had
    started."""
    async with running(roll, "defy", *ZOO) as process:
        os.kill(process.shim_client.pid, signal.SIGKILL)
        assert await process.wait_exit() is None
        report = await process.wait_ended()
        assert (report.status, report.ended_by, report.survivors) == (None, "exit", 0)
        assert report.killed >= len(ZOO)
        await roll.all_gone()


async def test_a_lost_shim_costs_no_other_its_program(roll: Roll) -> None:
    """A shim is killed: the fork server ends only the processes of this shim; running and later programs are
    unaffected."""
    async with ShimHost() as shims, shims.spawn(launch("cat")) as other:
        async with shims.spawn(zoo(roll, "defy", *ZOO)) as process:
            await roll.all_here(*ZOO)
            os.kill(process.shim_client.pid, signal.SIGKILL)
            assert (await process.wait_ended()).survivors == 0
            await roll.all_gone()
        async with shims.spawn(launch("sh", "-c", "exit 3")) as third:
            assert await third.wait_exit() == 3
        await other.send(b"still here")
        assert await other.receive() == b"still here"


async def test_a_killed_fork_server_is_replaced(roll: Roll) -> None:
    """The fork server is killed: its programs continue and end as usual, and the next program gets a new fork
    server."""
    async with ShimHost() as shims, shims.spawn(zoo(roll, "defy", *ZOO)) as process:
        await roll.all_here(*ZOO)
        lost = shims.fork_server.pid
        os.kill(lost, signal.SIGKILL)
        await wait_for_exit(lost)
        async with shims.spawn(launch("sh", "-c", "exit 3")) as other:
            assert await other.wait_exit() == 3
        assert shims.fork_server.pid != lost
        process.kill()
        assert (await process.wait_ended()).survivors == 0
        await roll.all_gone()
    await reap_all()


def wait_until_stopped(pid: int) -> None:
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        os.sched_yield()


async def test_a_stopped_shim_still_kills(roll: Roll) -> None:
    """The shim is stopped by SIGSTOP: a kill of its program works all the same."""
    async with running(roll, "defy", *ZOO) as process:
        os.kill(process.shim_client.pid, signal.SIGSTOP)
        wait_until_stopped(process.shim_client.pid)
        process.kill()
        assert (await process.wait_ended()).survivors == 0
        await roll.all_gone()


async def test_an_order_that_is_lost_shifts_no_reply() -> None:
    """An order does not fit into the control socket of a stopped shim: this request fails, and the next request gets
    its own reply."""
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as shims, shims.spawn(launch("cat")) as process:
            os.kill(process.shim_client.pid, signal.SIGSTOP)
            while process.shim_client.order(b"signal 0"):
                pass
            assert await process.list_processes() is None
            os.kill(process.shim_client.pid, signal.SIGCONT)
            while (seen := await process.list_processes()) is None:
                await anyio.lowlevel.checkpoint()
            assert [one.pid for one in seen] == [process.pid]


async def test_a_shim_tells_its_own_birth(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start time of a shim cannot be read from /proc: the supervisor still knows it, because the shim reports its
    own pid and start time."""
    monkeypatch.setattr(descent, "read_stat", lambda pid: None)
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as shims, shims.spawn(launch("cat")) as process:
            assert process.shim_client.shim == (process.shim_client.pid, shim.birth_of(process.shim_client.pid))


async def test_what_outlived_its_program_is_told_in_short() -> None:
    """A program is outlived by 120 processes and a marked server: the report lists 100 of the processes, and not the
    server."""
    code = f"""
        import os, subprocess
        start = lambda **env: subprocess.Popen(["sleep", "1000"], env={{**os.environ, **env}})
        start({SERVER_VARIABLE}="1")
        for _ in range(120): start()
    """
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as shims, shims.spawn(python(textwrap.dedent(code))) as process:
            report = await process.wait_ended()
    assert (report.killed, len(report.outlived)) == (121, 100)
    assert not any(one.server for one in report.outlived)


async def test_a_shim_ignores_signals_that_can_be_ignored(roll: Roll) -> None:
    """A shim receives SIGINT, SIGTERM and SIGHUP: it goes on, and still ends its tree."""
    async with running(roll, "exit", "daemon") as process:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(process.shim_client.pid, number)
        await process.send(b"go\n")
        assert (await process.wait_ended()).survivors == 0
        await roll.all_gone()


DEAF_WARDEN = """
import array, os, signal, socket, sys
_, extra, _, _ = socket.socket(fileno=int(sys.argv[1])).recvmsg(32, 64)
control = array.array("i", extra[0][2])[0]
os.write(control, b'{"event":"spawned","pid":%d}\\n' % os.getpid())
signal.alarm(60)
while True:
    signal.pause()
"""


@pytest.mark.parametrize("killed", [False, True], ids=["left", "killed"])
async def test_what_cannot_be_ended_is_given_up(killed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A shim never finishes: leaving the context does not wait for it, the number of survivors is unknown, and the fork
    server is reaped later.

    After a kill, leaving the context does not wait for ``terminate_s``.
    """
    (tmp_path / "deaf.py").write_text(DEAF_WARDEN)
    monkeypatch.setattr(shim_client, "FORK_SERVER_PROGRAM", tmp_path / "deaf.py")
    monkeypatch.setattr(exit_wait, "KILL_EXTRA_S", 0.0)
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as shims:
            async with shims.spawn(
                launch("true"), terminate_s=10 * DEADLINE_S if killed else 0.01, kill_s=0.01
            ) as process:
                if killed:
                    process.kill()
            report = await process.wait_ended()
            assert (report.status, report.ended_by, report.survivors) == (None, "kill", -1)
            os.kill(process.pid, signal.SIGKILL)
    assert process.pid not in shim.children(os.getpid())


SUPERVISOR = """
import os, signal, sys, anyio
from supervisor.ports import Launch
from supervisor.processes.host import ShimHost

def hold_copies():
    print(os.getpid(), flush=True)
    signal.alarm(60)
    signal.pause()

async def one(host, argv):
    async with host.spawn(Launch(argv=tuple(argv), cwd="/", env={})) as process:
        print(process.shim_client.pid, flush=True)
        if forked and not os.fork():
            hold_copies()
        await anyio.sleep_forever()

async def main():
    async with ShimHost() as host, anyio.create_task_group() as nursery:
        for _ in range(int(count)):
            nursery.start_soon(one, host, argv)

backend, count, forked, *argv = sys.argv[1:]
anyio.run(main, backend=backend)
"""


@contextmanager
def supervisor_of(wanted: Launch, backend: str, count: int, forked: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Run a supervisor in a process of its own; this test process inherits the processes that the supervisor leaves,
    and waits for its end."""
    command = [sys.executable, "-c", SUPERVISOR, backend, str(count), forked, *wanted.argv]
    with running_program(command, stdout=subprocess.PIPE, env={"PYTHONPATH": str(ROOT)}) as supervisor:
        try:
            yield supervisor
        finally:
            supervisor.kill()


async def reap_all() -> None:
    with anyio.fail_after(DEADLINE_S):
        for pid in set(shim.children(os.getpid())) - FAMILY:
            await wait_for_exit(pid)
            collect(pid)


async def test_a_killed_supervisor_leaves_nothing(roll: Roll, anyio_backend: str) -> None:
    """The supervisor is killed by SIGKILL: no process of any kind is left, shims included."""
    with supervisor_of(zoo(roll, "defy", *ZOO), anyio_backend, 1) as supervisor:
        with anyio.fail_after(DEADLINE_S):
            await roll.all_here(*ZOO)
        supervisor.kill()
        with anyio.fail_after(DEADLINE_S):
            await roll.all_gone()
    await reap_all()


async def test_a_supervisor_killed_while_it_starts_leaves_nothing(roll: Roll, anyio_backend: str) -> None:
    """The supervisor is killed by SIGKILL while the first of five process trees starts: no process of the other trees
    is left either."""
    with supervisor_of(zoo(roll, "defy", *ZOO), anyio_backend, 5) as supervisor:
        with anyio.fail_after(DEADLINE_S):
            await roll.somebody_here()
        supervisor.kill()
        with anyio.fail_after(DEADLINE_S):
            await roll.all_gone()
    await reap_all()


async def test_without_shim_and_supervisor_a_program_dies(roll: Roll, anyio_backend: str) -> None:
    """A shim is killed while its supervisor is stopped: the main process dies together with the shim."""
    with supervisor_of(zoo(roll, "defy"), anyio_backend, 1) as supervisor:
        assert supervisor.stdout is not None
        with anyio.fail_after(DEADLINE_S):
            await roll.all_here()
        its_shim = int(supervisor.stdout.readline())
        supervisor.send_signal(signal.SIGSTOP)
        os.kill(its_shim, signal.SIGKILL)
        with anyio.fail_after(DEADLINE_S):
            await roll.all_gone()
    await reap_all()


async def test_a_copied_control_socket_does_not_hide_the_death(roll: Roll, anyio_backend: str) -> None:
    """The supervisor is killed while a forked child holds a copy of the control socket: the shim still notices the
    supervisor's death and ends its tree."""
    with supervisor_of(zoo(roll, "defy", "daemon"), anyio_backend, 1, "forked") as supervisor:
        assert supervisor.stdout is not None
        with anyio.fail_after(DEADLINE_S):
            await roll.all_here("daemon")
        _, copy = (int(supervisor.stdout.readline()) for _ in range(2))
        supervisor.kill()
        with anyio.fail_after(DEADLINE_S):
            await roll.all_gone()
        os.kill(copy, signal.SIGKILL)
    await reap_all()


# ------------------------------------------------------------------------------------------------- the shim's own
def test_children_are_found_without_the_kernels_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a kernel without a file that lists children, the scan of /proc finds the same children."""
    with running_program(["sleep", "60"]) as process:
        listed = shim.children(os.getpid())
        monkeypatch.setattr(shim, "HAS_CHILDREN_FILE", False)
        assert process.pid in listed
        assert sorted(shim.children(os.getpid())) == sorted(listed)
        process.kill()


def test_the_shim_needs_little() -> None:
    """Loading the shim imports none of the slow modules json, re, typing, socket and subprocess, because every launch
    waits for a shim."""
    code = "import sys; sys.path.append(sys.argv[1]); import shim; print(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", code, str(Path(shim.__file__).parent)]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not {"json", "re", "typing", "socket", "subprocess"} & set(loaded)
