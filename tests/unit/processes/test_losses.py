"""Tests of losses: a shim is killed together with its fork server, and its processes escape to the adopter of orphans.

The test process is a subreaper, and so the adopter: what escapes becomes its child, as in a host that is the init of a
container.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest

from supervisor.ports import Caller, Launch, Origin
from supervisor.processes import descent, losses, shim, shim_client
from supervisor.processes.adopter import INIT, find_adopter
from supervisor.processes.containment import TAG_VARIABLE, UNCONTAINED, Containment, kill_all, reap_adopted
from supervisor.processes.descent import ProcessStat, orphans_since
from supervisor.processes.host import ShimHost, ShimProcess
from supervisor.processes.losses import Losses, Watch, is_running
from supervisor.processes.pipes import Output
from supervisor.processes.shim_client import Exited, ShimClient
from tests.support import wait_for_exit

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="only Linux has pidfds and /proc")]

ROOT = Path(__file__).parents[3]
DEADLINE_S = 60.0
PATH = {"PATH": os.environ["PATH"]}
DAEMON = "setsid sh -c 'echo $$; exec sleep 1000' & wait"
"""Program that starts a process in a session of its own, and prints the pid."""


@pytest.fixture(autouse=True)
def adopter() -> Iterator[None]:
    """Fixture: the test process adopts orphans; after the test those that are left are killed and reaped."""
    libc, before = ctypes.CDLL(None), set(shim.children(os.getpid()))
    libc.prctl(shim.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    while left := set(shim.children(os.getpid())) - before:
        shim.send(left, signal.SIGKILL)
        for pid in left:
            os.waitpid(pid, os.WNOHANG)  # the init of a namespace ends after its members have been reaped
    libc.prctl(shim.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@asynccontextmanager
async def started(host: ShimHost, script: str = DAEMON, session: str = "t") -> AsyncIterator[tuple[ShimProcess, int]]:
    """Run a script that prints a pid; yield the script's process, and that pid."""
    launch = Launch(argv=("sh", "-c", script), cwd="/", env=PATH, session=session)
    async with host.spawn(launch, terminate_s=0.1) as process:
        yield process, int(await process.receive())


def child_of_host(**env: str) -> int:
    """Start a program as a host may do, in the session of the host; return its pid."""
    pid = os.posix_spawnp("sleep", ["sleep", "1000"], {**PATH, **env})
    within = time.monotonic() + DEADLINE_S
    while not Path(f"/proc/{pid}/environ").read_bytes():  # the kernel sets the environment within the exec
        assert time.monotonic() < within, "the program has no environment"
    return pid


def orphan_of(command: str) -> int:
    """Start a command as a shell's background job, let the shell end, and return the pid of the job."""
    return int(subprocess.check_output(["sh", "-c", f"{command} >&- & echo $!"]))


async def kill_fork_server(host: ShimHost) -> None:
    os.kill(host.fork_server.pid, signal.SIGKILL)
    await wait_for_exit(host.fork_server.pid)


def lose(host: ShimHost, process: ShimProcess) -> None:
    """Kill the fork server and a shim, and wait for their end without the event loop: the supervisor has not noticed
    anything when this function returns. The fork server would otherwise end what the shim has left."""
    for pid in (host.fork_server.pid, process.shim_client.pid):
        end = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        while not descent.is_ended(end):
            os.sched_yield()
        os.close(end)


def origin(host: ShimHost, pid: int) -> Caller:
    """Return the caller as which *host* takes the process *pid* when it connects."""
    ours, theirs = socket.socketpair()  # the end of *pid* cannot be seen on it: the test process holds both ends
    with ours, theirs:
        return host.caller_at(ours, pid)


# ------------------------------------------------------------------------------------------------ after a loss
async def test_a_process_that_escaped_is_unidentified_at_once() -> None:
    """Shim and fork server are killed: already the first request of an escaped process, before the supervisor has
    handled the loss, is not the operator's; the process is listed, and not killed."""
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as host, started(host) as (process, daemon):
            assert origin(host, daemon) == Caller(Origin.AGENT, daemon, "t")
            lose(host, process)
            caller = origin(host, daemon)
            assert (caller.origin, caller.pid) == (Origin.UNIDENTIFIED, daemon)
            assert f"process {daemon}" in caller.why
            report = await process.wait_ended()
            assert (report.status, report.survivors) == (None, -1)
            assert [(one.pid, one.name, one.sessions) for one in host.unidentified()] == [(daemon, "sleep", ("t",))]
            assert shim.is_alive(daemon)
        assert origin(host, daemon).origin is Origin.UNIDENTIFIED


async def test_what_is_proven_to_be_ours_is_killed_after_a_loss() -> None:
    """Shim and fork server are killed: the escaped processes that carry the tag of the state directory are killed
    before the end of the program is reported, and nothing survives; a program with this tag below another shim goes
    on."""
    contained = Containment(tag=uuid.uuid4().hex)
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost(contained) as host, started(host, "echo $$; exec cat") as (other, _):
            await kill_fork_server(host)
            async with started(host) as (process, daemon):
                lose(host, process)
                report = await process.wait_ended()
                assert (report.survivors, report.killed) == (0, 1)
                assert not shim.is_alive(daemon)
                assert host.unidentified() == ()
            await other.send(b"still here")
            assert await other.receive() == b"still here"


def test_a_marked_process_is_ours_whatever_its_lineage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has the tag and is below no shim, such as a job that an agent gave to ``at``, is no operator's; if
    the supervisor itself was started with that tag, then its children have the tag, too, and it proves nothing."""
    tag = uuid.uuid4().hex
    job = child_of_host(**{TAG_VARIABLE: tag})
    seen = [descent.identity(job), (INIT, 1)]  # as for a job of `at`, which is not below this process
    assert Losses(Containment(tag=tag)).judge(seen, {}) == Caller(Origin.AGENT, job)
    monkeypatch.setenv(TAG_VARIABLE, tag)
    assert Losses(Containment(tag=tag)).judge(seen, {}) == Caller(Origin.OPERATOR, job)


async def test_what_unidentified_processes_start_is_unidentified() -> None:
    """An escaped process starts another one and ends: the other one, an orphan too, stays unidentified, since it is in
    the same session."""
    script = (
        "setsid sh -c 'exec 3<>$0; echo $$; read go <&3; sleep 1000 & echo $! > $1; kill -9 $$' {0}/go {0}/pid & wait"
    )
    with anyio.fail_after(DEADLINE_S):
        async with anyio.TemporaryDirectory() as folder, ShimHost() as host:
            os.mkfifo(f"{folder}/go")
            async with started(host, script.format(folder)) as (process, daemon):
                lose(host, process)
                assert origin(host, daemon).origin is Origin.UNIDENTIFIED
                Path(folder, "go").write_text("go\n")
                await wait_for_exit(daemon)
                orphan = int(Path(folder, "pid").read_text())
                assert origin(host, orphan).origin is Origin.UNIDENTIFIED


async def test_others_stay_operators_after_a_loss() -> None:
    """Shim and fork server are killed: a child of the host that was started before, an orphan of the host's session,
    and a daemon that is started afterwards in a session of its own, are operators."""
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as host, started(host) as (process, _):
            child = child_of_host()
            orphan = orphan_of("sleep 1000")
            lose(host, process)
            assert origin(host, child).origin is Origin.OPERATOR
            assert origin(host, orphan).origin is Origin.OPERATOR
            late = orphan_of("setsid sleep 1000")
            assert origin(host, late).origin is Origin.OPERATOR
            assert origin(host, os.getppid()).origin is Origin.OPERATOR


async def test_without_a_loss_every_orphan_is_an_operator() -> None:
    """A tmux server is an orphan in a session of its own, started after the shims: as long as no shim is lost, it is an
    operator, also after a shim or the fork server alone was killed."""
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as host, started(host) as (first, _), started(host) as (second, _):
            tmux = orphan_of("setsid sleep 1000")
            assert origin(host, tmux).origin is Origin.OPERATOR
            os.kill(first.shim_client.pid, signal.SIGKILL)
            assert (await first.wait_ended()).survivors == 0
            await kill_fork_server(host)
            assert origin(host, tmux).origin is Origin.OPERATOR
            assert origin(host, second.pid) == Caller(Origin.AGENT, second.pid, "t")
            assert host.unidentified() == ()


async def test_a_shim_lost_after_its_fork_server_is_a_loss() -> None:
    """The fork server is killed, another one is started, and then a shim of the first one is killed: its processes are
    unidentified, and those of the new fork server are not."""
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as host, started(host) as (process, daemon):
            await kill_fork_server(host)
            async with started(host, session="u") as (_, other):
                os.kill(process.shim_client.pid, signal.SIGKILL)
                assert (await process.wait_ended()).survivors == -1
                assert origin(host, daemon).origin is Origin.UNIDENTIFIED
                assert origin(host, other) == Caller(Origin.AGENT, other, "u")


async def test_a_program_in_a_namespace_cannot_escape() -> None:
    """In a pid namespace nothing outlives a shim: a loss makes no process unidentified."""
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost(UNCONTAINED._replace(pid_namespaces=True)) as host, started(host) as (process, _):
            if not process.shim_client.enclosed:
                pytest.skip("this machine allows no pid namespaces")
            bystander = orphan_of("setsid sleep 1000")
            lose(host, process)
            assert origin(host, bystander).origin is Origin.OPERATOR


async def test_a_stopped_fork_server_notices_a_killed_shim() -> None:
    """The fork server is stopped and a shim is killed: the fork server is resumed, and ends what the shim has left."""
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as host, started(host) as (process, daemon):
            os.kill(host.fork_server.pid, signal.SIGSTOP)
            os.kill(process.shim_client.pid, signal.SIGKILL)
            assert (await process.wait_ended()).survivors == 0
            assert not shim.is_alive(daemon)


async def test_a_lost_fork_server_is_replaced_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """The fork server is killed: without any request or launch the loss is logged, and another fork server runs."""
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as host, anyio.create_task_group() as group:
            group.start_soon(host.watch)
            async with started(host):
                lost = host.fork_server.pid
                os.kill(lost, signal.SIGKILL)
                while host.fork_server.pid == lost:  # noqa: ASYNC110
                    await anyio.sleep(0.001)
                assert shim.is_alive(host.fork_server.pid)
            group.cancel_scope.cancel()
    assert f"pid={lost}" in caplog.text


HOST_AS_INIT = """
import os, signal, subprocess, sys, anyio
from supervisor.ports import Launch
from supervisor.processes.host import ShimHost

async def main():
    launch = Launch(argv=("sh", "-c", sys.argv[1]), cwd="/", env={"PATH": os.environ["PATH"]})
    async with ShimHost() as host, host.spawn(launch, terminate_s=0.1) as process:
        daemon = int(await process.receive())
        child = subprocess.Popen(["sleep", "1000"])
        for pid in (host.fork_server.pid, process.shim_client.pid):
            os.kill(pid, signal.SIGKILL)
        await process.wait_ended()
        print(os.getpid(), *(host._origin_of(pid).origin.value for pid in (daemon, child.pid)))

anyio.run(main)
"""


def test_a_host_that_is_process_1_knows_its_children() -> None:
    """The host is the init of its pid namespace, as in a container, and adopts what escapes: the escaped daemon is
    unidentified, and a child that the host itself has started is an operator."""
    apart = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    with suppress(FileNotFoundError):
        if subprocess.run([*apart, "true"], capture_output=True).returncode == 0:
            command = [*apart, sys.executable, "-c", HOST_AS_INIT, DAEMON]
            env = {**PATH, "PYTHONPATH": str(ROOT)}
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
            assert done.stdout.split() == ["1", "unidentified", "operator"], done.stderr
            return
    pytest.skip("this machine allows no pid namespaces")


# ------------------------------------------------------------------------------------------------ end of output
async def test_the_end_of_a_program_ends_its_output() -> None:
    """A process that escaped holds the output of its program open: the output ends all the same, with the end of the
    program."""
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as host, started(host) as (process, daemon):
            lose(host, process)
            assert await process.receive() == b""
            assert await process.receive_err() == b""
            assert shim.is_alive(daemon)


async def test_finished_output_ends_with_what_the_pipe_held() -> None:
    """A pipe is finished while its writer goes on writing: exactly the bytes that were written before are received; a
    reader that waits at that moment is woken."""
    reading, writing = os.pipe()
    output, received = Output(reading), []

    async def read() -> None:
        while data := await output.receive():
            received.append(data)

    os.write(writing, b"before")
    output.finish()
    os.write(writing, b"after")
    await read()
    output.close()
    assert received == [b"before"]

    reading, unused = os.pipe()
    output = Output(reading)
    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            output.finish()
    output.close()
    assert received == [b"before"]
    for fd in (writing, unused):
        os.close(fd)


# ------------------------------------------------------------------------------------------------ the decision
SHIM_BORN = 1000
TABLE = {
    1: ProcessStat(0, 1, 1),
    2: ProcessStat(1, 10, 2),  # sshd, which is older than the supervisor
    3: ProcessStat(2, 1500, 3),  # the login of a user, later than the shim
    4: ProcessStat(3, 1510, 4),  # its shell
    5: ProcessStat(1, 1520, 4),  # a background job of that shell, whose parent has ended
    10: ProcessStat(1, 20, 10),  # cron
    11: ProcessStat(10, 1400, 11),  # a job of cron
    20: ProcessStat(1, 900, 20),  # a tmux server, started after the supervisor and before the shim
    21: ProcessStat(20, 1600, 21),  # a shell in it
    22: ProcessStat(21, 1601, 22),  # sudo in that shell, with a terminal of its own
    30: ProcessStat(0, 1300, 30),  # `docker exec`: its parent is outside of the pid namespace
    40: ProcessStat(1, 500, 40),  # the supervisor
    41: ProcessStat(40, 1200, 40),  # a child of the host
    42: ProcessStat(1, 1210, 40),  # an orphan in the session of the host
    50: ProcessStat(1, 1050, 50),  # another shim, whose fork server was lost
    51: ProcessStat(50, 1060, 51),  # its program
    60: ProcessStat(1, 1100, 60),  # a daemon of the agent, or a tmux server
    61: ProcessStat(60, 1110, 60),
    62: ProcessStat(1, 1120, 59),  # a process in the session of a leader that has ended
    63: ProcessStat(1, 1130, 60),  # an orphan in the session of 60
}
"""Processes at the time of a loss, after the shim that was born at 1000 and its fork server were killed."""


def test_the_orphans_that_may_have_been_below_a_shim() -> None:
    """Of the orphans that are younger than a lost shim, those whose session proves another origin have not escaped, and
    no login, cron job, sudo, child of the host, or process of another namespace has."""
    assert orphans_since(TABLE, 1, SHIM_BORN, {(50, 1050)}) == {60, 62, 63}


def test_an_older_shim_leaves_more_unproven() -> None:
    """The tmux server that was started after the lost shim may have escaped from it; the supervisor and what is older
    than the shim may not."""
    assert orphans_since(TABLE, 1, 800, {(50, 1050)}) == {20, 60, 62, 63}


def test_children_of_a_host_that_is_init_stay_proven() -> None:
    """Escaped processes become children of a host that is init: of its children, those in its own session have not
    escaped."""
    table = {
        1: ProcessStat(0, 100, 1),
        2: ProcessStat(1, 1200, 1),
        3: ProcessStat(0, 1210, 0),
        4: ProcessStat(1, 1300, 9),
    }
    assert orphans_since(table, 1, SHIM_BORN, ()) == {4}


def test_a_subreaper_is_the_adopter() -> None:
    """The trial finds the process that adopts the orphans of this one, and leaves no process behind."""
    before = shim.children(os.getpid())
    assert find_adopter() == os.getpid()
    assert shim.children(os.getpid()) == before


async def test_without_a_trial_every_ancestor_may_be_the_adopter(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process can be started for the trial: what has escaped is unidentified, whichever ancestor has adopted it."""
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as host, started(host) as (process, daemon):
            monkeypatch.setattr(sys, "executable", "/no/such/python")
            assert find_adopter() is None
            lose(host, process)
            assert origin(host, daemon).origin is Origin.UNIDENTIFIED


def test_a_trial_counts_also_if_the_orphan_is_reaped_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedding program reaps every child, and so the orphan of the trial: the adopter is found all the same."""

    def reap_first(pid: int, options: int) -> tuple[int, int]:
        waitpid(pid, options)
        return waitpid(pid, options)  # raises ChildProcessError

    waitpid = os.waitpid
    monkeypatch.setattr(os, "waitpid", reap_first)
    assert find_adopter() == os.getpid()


# ------------------------------------------------------------------------------------------------ without descriptors
def no_pidfd(pid: int) -> int:
    raise OSError(errno.EMFILE, f"no pidfd of {pid}")


async def test_a_fork_server_that_cannot_be_watched_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pidfds and /proc, as on macOS, a fork server that runs is not taken for lost: the second program runs
    below it, and the first one goes on."""
    monkeypatch.setattr(os, "pidfd_open", no_pidfd)
    monkeypatch.setattr(shim_client, "identity", lambda pid: (pid, -1))
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as host, started(host, "echo $$; exec cat") as (first, _):
            fork_server = host.fork_server.pid
            async with started(host):
                assert (host.fork_server.pid, host.fork_server.was_lost) == (fork_server, False)
            await first.send(b"still here")
            assert await first.receive() == b"still here"


async def test_unidentified_processes_are_kept_without_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """While no descriptor is left, no unidentified process is forgotten."""

    def no_descriptor(pid: int) -> ProcessStat:
        raise OSError(errno.EMFILE, f"no descriptor for {pid}")

    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as host, started(host) as (process, daemon):
            lose(host, process)
            assert origin(host, daemon).origin is Origin.UNIDENTIFIED
            with monkeypatch.context() as patched:
                patched.setattr(losses, "read_stat", no_descriptor)
                patched.setattr(descent, "read_stat", no_descriptor)
                assert [one.pid for one in host.unidentified()] == [daemon]
            assert [one.pid for one in host.unidentified()] == [daemon]


def test_only_a_certain_end_is_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose start time is not known runs until its pid is free; a closed watch keeps what it has seen."""
    child = child_of_host()
    closed = Watch(descent.identity(child))
    closed.close()
    monkeypatch.setattr(os, "pidfd_open", no_pidfd)
    watch = Watch((child, -1))
    assert is_running((child, -1))
    assert not is_running((child, 1))
    assert not watch.has_ended
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not is_running((child, -1))
    assert watch.has_ended
    assert not closed.has_ended


# ------------------------------------------------------------------------------------------------ kills and statuses
async def test_a_kill_asks_about_one_process_at_a_time() -> None:
    """Many processes are killed: the whole of /proc is not searched again for each, and each is checked
    before its kill."""
    children = [child_of_host() for _ in range(3)]
    spared, events = children[-1], list[object]()

    def find() -> list[int]:
        events.append("find")
        return [pid for pid in children if shim.is_alive(pid)] if len(events) < 3 else []

    def is_wanted(pid: int) -> bool:
        events.append(pid)
        return pid != spared

    with anyio.fail_after(DEADLINE_S):
        swept = await kill_all(find, is_wanted)
    assert (events[0], set(events[1:4])) == ("find", set(children))
    assert swept == (2, ())
    assert shim.is_alive(spared)


def test_what_was_not_started_is_not_reaped() -> None:
    """The pid 0 of a program that was lost before it ran reaps no child of the embedding program."""
    child = os.posix_spawnp("true", ["true"], PATH)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    reap_adopted((0, -1))
    assert os.waitpid(child, os.WNOHANG) == (child, 0)


class FarEnd:
    """Fork server of one shim, whose end of the control socket the test holds."""

    watch = None
    control: socket.socket

    def fork(self, control: int, *_: int) -> None:
        self.control = socket.socket(fileno=os.dup(control))

    def remove(self, _: ShimClient) -> None:
        """Do nothing."""


async def test_an_end_that_arrives_in_two_parts_is_no_loss() -> None:
    """The status ``ended`` is received in two parts, and the shim ends before the second part is read: the shim is not
    lost."""
    far_end = FarEnd()
    client = ShimClient(far_end, 0, 1, 2)  # type: ignore[arg-type]
    found = []

    async def read() -> None:
        found.extend([status async for status in client.statuses()])

    lines = b'{"event":"exited","status":0}\n{"event":"ended","status":0,"ended_by":"exit","killed":0,"took_s":0}\n'
    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            far_end.control.sendall(lines[:38])
            await anyio.wait_all_tasks_blocked()
            far_end.control.sendall(lines[38:])
            far_end.control.close()
            assert not client.is_lost
    assert isinstance(found[0], Exited)
    assert len(found) == 2
    assert not client.is_lost
    client.close()


async def test_a_fork_server_that_cannot_start_is_left_to_the_next_program(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fork server that was started for a lost one, and ends at once, is not started again and again, but for the next
    program."""
    monkeypatch.setattr(shim_client, "QUICK_END_S", 2 * DEADLINE_S)
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as host, anyio.create_task_group() as group:
            async with started(host):
                lost = host.fork_server.pid
                with monkeypatch.context() as patched:
                    patched.setattr(shim_client, "FORK_SERVER_PROGRAM", Path("/no/such/program"))
                    group.start_soon(host.watch)
                    await anyio.wait_all_tasks_blocked()
                    os.kill(lost, signal.SIGKILL)
                    while caplog.text.count("the fork server was lost") < 2:  # noqa: ASYNC110
                        await anyio.sleep(0.001)
                    second = host.fork_server.pid
                assert second != lost
                assert f"pid={second}" in caplog.text
                async with started(host):
                    assert host.fork_server.pid != second
            group.cancel_scope.cancel()
