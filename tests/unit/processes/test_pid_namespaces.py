"""Tests of programs in pid namespaces of their own: if supervisor, fork server or shim die, the kernel ends the tree,
and the init stays hidden.

Where this machine allows no pid namespace, the same tests check that programs behave as without one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import anyio
import pytest

from supervisor.lifecycles.types import AbortScope
from supervisor.plans import Settings
from supervisor.ports import Launch
from supervisor.processes import fork_server, pid_namespace, shim
from supervisor.processes.containment import Containment
from supervisor.processes.host import ShimHost, ShimProcess
from tests.support import (
    DEADLINE_S,
    OLDER_CHILDREN,
    HeldPipe,
    no_leaks,
    quick_settings,
    reap,
    running_program,
    supervising,
    wait_for_exit,
)

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")]

PATH = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
ROOT = Path(__file__).parents[3]
VICTIMS = str(Path(__file__).with_name("victims.py"))
KINDS = ("child", "session", "daemon", "scrubbed", "stubborn", "hopper")
PROGRAM = pid_namespace.__file__
ALLOWED = subprocess.run([sys.executable, "-I", "-S", PROGRAM], check=False).returncode == 0
ENCLOSED = Containment(pid_namespaces=True)
PLAIN = Containment()


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with no_leaks():
        yield


@pytest.fixture
def roll(tmp_path: Path, _nothing_left: None) -> Iterator[HeldPipe]:
    roll = HeldPipe(tmp_path)
    yield roll
    roll.close()


def zoo(roll: HeldPipe, mode: str, *kinds: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", VICTIMS, roll.path, mode, *kinds)


def python(code: str) -> Launch:
    return Launch(argv=(sys.executable, "-I", "-S", "-c", code), cwd="/", env=PATH)


@asynccontextmanager
async def running(
    roll: HeldPipe, mode: str, *kinds: str, containment: Containment = ENCLOSED
) -> AsyncIterator[ShimProcess]:
    """Run the victims' program in a host, and wait until all victims have started."""
    launch = Launch(argv=zoo(roll, mode, *kinds), cwd="/", env=PATH)
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost(containment) as host, host.spawn(launch, terminate_s=0.05) as process:
            await roll.here(len(kinds) + 1)
            yield process


def inits_of(shim_pid: int) -> list[int]:
    """Return the pids of the inits of those namespaces in which a shim's children are started."""
    return [pid for pid in shim.children(shim_pid) if pid_namespace.is_init(pid)]


def within(pid: int) -> int:
    """Return the pid that the process *pid* has inside its own namespace."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1])


@contextmanager
def held(pids: list[int]) -> Iterator[list[int]]:
    """Open a pidfd for each of *pids* that exists; close the pidfds at the end."""
    fds: list[int] = []
    for pid in pids:
        with suppress(ProcessLookupError):
            fds.append(os.pidfd_open(pid))
    try:
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


async def all_dead(fds: list[int]) -> None:
    with anyio.fail_after(DEADLINE_S):
        for fd in fds:
            await anyio.wait_readable(fd)


# ------------------------------------------------------------------------------------------------- an ordinary life
async def test_what_a_program_sees() -> None:
    """The pid that a program gets from ``getpid`` is the pid in its /proc, the host reports the outer pid, and only the
    init is older inside the namespace."""
    code = "import os; print(os.getpid(), os.readlink('/proc/self'), os.getppid(), flush=True); input()"
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost(ENCLOSED) as host, host.spawn(python(code)) as process:
            mine, shown, parent = (int(word) for word in (await process.receive()).split())
            assert mine == shown == within(process.pid)
            assert (mine != process.pid, parent == 0, len(inits_of(process.shim_client.pid))) == (ALLOWED,) * 3
            await process.send(b"\n")
            assert await process.wait_exit() == 0


async def test_nothing_of_ours_is_in_the_init() -> None:
    """An init holds no descriptor, so that it keeps no pipe open, and it ends together with its program."""
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost(ENCLOSED) as host, host.spawn(python("print('up', flush=True); input()")) as process:
            assert await process.receive() == b"up\n"
            inits = inits_of(process.shim_client.pid)
            assert [os.listdir(f"/proc/{init}/fd") for init in inits] == [[]] * ALLOWED
            with held(inits) as fds:
                await process.send(b"\n")
                assert await process.receive() == b""
                await process.wait_ended()
                await all_dead(fds)


async def test_a_program_that_does_not_start_leaves_no_init() -> None:
    """A program cannot be started in a namespace: the error is the same as without a namespace, and the init is
    gone."""
    launch = Launch(argv=("/no/such/program",), cwd="/", env={})
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost(ENCLOSED) as host:
            with pytest.raises(Exception, match="there is no such file"):
                async with host.spawn(launch):
                    pass


@pytest.mark.parametrize("containment", [PLAIN, ENCLOSED], ids=["plain", "enclosed"])
async def test_the_count_is_the_same(roll: HeldPipe, containment: Containment) -> None:
    """A kill counts every descendant except the main process, with or without a namespace, and never counts the
    init."""
    async with running(roll, "stay", "child", "session", "daemon", "stubborn", containment=containment) as process:
        process.kill()
        report = await process.wait_ended()
        assert (report.status, report.ended_by, report.killed, report.survivors) == (-9, "kill", 4, 0)


@pytest.mark.parametrize("containment", [PLAIN, ENCLOSED], ids=["plain", "enclosed"])
async def test_terminate_reaches_orphans(roll: HeldPipe, containment: Containment) -> None:
    """SIGTERM reaches processes that the init has adopted, too: processes that do not ignore SIGTERM need no kill."""
    async with running(roll, "defy", "child", "session", "daemon", containment=containment) as process:
        victims = [pid for pid in shim.descendants(process.shim_client.pid) if pid != process.pid]
        with held([pid for pid in victims if not pid_namespace.is_init(pid)]) as fds:
            process.terminate()
            await all_dead(fds)
        process.signal(signal.SIGKILL)
        report = await process.wait_ended()
        assert (report.ended_by, report.killed, report.survivors) == ("terminate", 0, 0)


async def test_list_and_signal_processes_spare_the_init(roll: HeldPipe) -> None:
    """Listed processes have outer pids, and a listed daemon can be killed; the program and its init are not
    affected."""
    async with running(roll, "stay", "daemon") as process:
        inits = inits_of(process.shim_client.pid)
        main, daemon = await process.list_processes() or ()
        assert (main.pid, main.session) == (process.pid, process.pid)
        assert daemon.session not in (process.pid, *inits)
        process.signal_processes([daemon], signal.SIGKILL)
        await wait_for_exit(daemon.pid)
        assert inits_of(process.shim_client.pid) == inits
        process.signal(signal.SIGUSR1)
        assert await process.wait_exit() == -signal.SIGUSR1
        assert (await process.wait_ended()).killed == 0


# ------------------------------------------------------------------------------------------------- violence
async def test_a_killed_shim(roll: HeldPipe) -> None:
    """The shim alone is killed by SIGKILL: daemons that ignore SIGTERM are gone, and the host gets a report."""
    async with running(roll, "defy", *KINDS) as process:
        with held(shim.descendants(process.shim_client.pid)) as fds:
            os.kill(process.shim_client.pid, signal.SIGKILL)
            report = await process.wait_ended()
            assert (report.status, report.ended_by, report.survivors) == (None, "exit", 0)
            await all_dead(fds)
        await roll.all_gone()


SUPERVISOR = """
import sys, anyio
from supervisor.ports import Launch
from supervisor.processes.host import ShimHost
from supervisor.processes.containment import Containment

async def main():
    async with ShimHost(Containment(pid_namespaces=True)) as host:
        async with host.spawn(Launch(argv=tuple(argv), cwd="/", env={})) as process:
            print(host.fork_server.pid, process.shim_client.pid, process.pid, flush=True)
            await anyio.sleep_forever()

backend, *argv = sys.argv[1:]
anyio.run(main, backend=backend)
"""


@contextmanager
def supervisor_of(roll: HeldPipe, backend: str, *before: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [*before, sys.executable, "-c", SUPERVISOR, backend, *zoo(roll, "defy", *KINDS)]
    with running_program(command, stdout=subprocess.PIPE, env={"PYTHONPATH": str(ROOT)}) as supervisor:
        try:
            yield supervisor
        finally:
            supervisor.kill()


async def pids_of(supervisor: subprocess.Popen[bytes]) -> list[int]:
    """Return the pids of a supervisor's fork server, shim and program, as the supervisor prints them."""
    assert supervisor.stdout is not None
    with anyio.fail_after(DEADLINE_S):
        await anyio.wait_readable(supervisor.stdout)
    return [int(word) for word in supervisor.stdout.readline().split()]


def end_our_own() -> None:
    """Kill and reap the processes that this test process has inherited, until none is left."""
    while left := set(shim.children(os.getpid())) - OLDER_CHILDREN:
        shim.send(left, signal.SIGKILL)
        for pid in left:
            reap(pid)


def kill_at_once(*pids: int) -> None:
    """Kill processes at the same moment, so that none sees the end of another: all are stopped before the first is
    killed."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        shim.send(pids, number)


async def test_the_supervisor_with_its_shim(roll: HeldPipe, anyio_backend: str) -> None:
    """Supervisor and shim are killed by SIGKILL at the same moment: no process is left, and the fork server exits
    afterwards."""
    with supervisor_of(roll, anyio_backend) as supervisor:
        fork_server_pid, one, _ = await pids_of(supervisor)
        await roll.here(len(KINDS) + 1)
        with held(shim.descendants(one)) as fds:
            kill_at_once(supervisor.pid, one)
            await all_dead(fds)
        await roll.all_gone()
        await wait_for_exit(supervisor.pid, fork_server_pid)  # in this order: the test inherits the server
        reap(fork_server_pid)


async def test_everybody_who_would_notice(roll: HeldPipe, anyio_backend: str) -> None:
    """Supervisor, fork server and shim are killed by SIGKILL at the same moment: the kernel alone ends their programs,
    if the machine allows pid namespaces; otherwise some programs survive."""
    with supervisor_of(roll, anyio_backend) as supervisor:
        fork_server_pid, one, main = await pids_of(supervisor)
        await roll.here(len(KINDS) + 1)
        inits, everybody = inits_of(one), shim.descendants(one)
        kill_at_once(supervisor.pid, fork_server_pid, one)
        await wait_for_exit(supervisor.pid)
        for pid in (fork_server_pid, one, main):  # they have fallen to us; an init is dead when we have reaped its own
            await wait_for_exit(pid)
            reap(pid)
        if not ALLOWED:
            assert [pid for pid in everybody if shim.is_alive(pid)]
            end_our_own()
            return
        await wait_for_exit(*inits)
        await roll.all_gone()
        for init in inits:
            reap(init)


def test_the_fork_server_does_not_count_inits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children of a lost shim become children of the fork server: a process is counted when it is reaped, an init is
    not."""
    ours = fork_server.ForkServer.__new__(fork_server.ForkServer)
    ours.shims, ours.killed = {}, 0
    for is_init in (True, False):
        monkeypatch.setattr(pid_namespace, "is_init", lambda _, is_init=is_init: is_init)
        with running_program(["true"]) as child:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            ours.record_exit(*ours.wait_any(-1, os.WNOHANG))
            child.returncode = 0
    assert ours.killed == 1


# ------------------------------------------------------------------------------------------------- where it is denied
DENY = "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 21, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])"
"""Program that drops CAP_SYS_ADMIN (PR_CAPBSET_DROP) and then executes its arguments: the executed program lacks this
right, whoever runs it."""


async def test_without_the_right_to(roll: HeldPipe, anyio_backend: str) -> None:
    """A supervisor without CAP_SYS_ADMIN runs its programs without namespaces; after a SIGKILL of supervisor and shim,
    the fork server ends all programs."""
    with supervisor_of(roll, anyio_backend, sys.executable, "-c", DENY) as supervisor:
        fork_server_pid, one, main = await pids_of(supervisor)
        await roll.here(len(KINDS) + 1)
        assert (inits_of(one), within(main)) == ([], main)
        with held(shim.descendants(one)) as fds:
            kill_at_once(supervisor.pid, one)
            await all_dead(fds)
        await roll.all_gone()
        await wait_for_exit(supervisor.pid, fork_server_pid)  # in this order: the test inherits the server
        reap(fork_server_pid)


HALF = """
import os, sys
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import pid_namespace as namespace

def denied(self):
    raise PermissionError(1, "no mounts here")

namespace.PidNamespace.enter = denied
assert namespace.enclose() is None
child = os.fork()
if child == 0:
    os._exit(os.getpid() < 3)
assert os.waitpid(-1, 0) == (child, 0)
assert os.readlink("/proc/self/ns/pid_for_children") == os.readlink("/proc/self/ns/pid")
"""


def test_half_a_namespace_is_none() -> None:
    """A namespace can be made, but its /proc cannot be mounted: programs run without a namespace and without an
    init."""
    subprocess.run([sys.executable, "-I", "-S", "-c", HALF, PROGRAM], check=True)


# ------------------------------------------------------------------------------------------------- the setting
def enclosed(settings: Settings, *, really: bool) -> Settings:
    return settings.model_copy(update={"pid_namespaces": really})


async def test_it_is_off_unless_asked_for() -> None:
    """A plan that does not set ``pid_namespaces`` gets no pid namespaces."""
    assert not Settings().pid_namespaces


@pytest.mark.parametrize("really", [False, True], ids=["plain", "enclosed"])
async def test_a_turn_and_an_abort(tmp_path: Path, roll: HeldPipe, really: bool) -> None:
    """With pid namespaces a turn completes, its tool runs inside the namespace, and an abort's receipt is the same as
    without."""
    async with supervising(tmp_path, settings=enclosed(quick_settings(), really=really)) as run:
        session = await run.sup.start_session("s", agent="scripted")
        result = await session.run(f"@run readlink /proc/self/ns/pid > {tmp_path}/ns")
        assert result.outcome == "completed"
        ours = os.readlink("/proc/self/ns/pid")
        assert ((tmp_path / "ns").read_text().strip() != ours) == (really and ALLOWED)
        async with anyio.create_task_group() as group:
            group.start_soon(
                session.run, f"@run exec 9>{roll.path}; (setsid sleep 1000 &); echo tool $$ >&9; sleep 1000"
            )
            await roll.here(1)
            receipt = await session.abort(AbortScope.SESSION, reason="enough")
        assert receipt.survivors == 0
        assert sorted((fate.owner, fate.survivors) for fate in receipt.processes) == [("s:a1", 0), ("s:t2:c1", 0)]
        await roll.all_gone()
