"""File descriptors run out: by idle clients of the control socket, or by more agents than the limit allows.

Expected: the supervisor goes on, refuses with a clear message a client that it cannot serve, and waits for descriptors
when it needs some to start an agent. No task fails for lack of descriptors.
"""

from __future__ import annotations

import json
import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from field_kit import DEADLINE_S, Running, Scratch, until

from supervisor.journal.statedir import socket_address
from supervisor.ports import Launch, SpawnShortage
from supervisor.ports.shortages import shortage_of
from supervisor.processes import descriptors
from supervisor.processes.host import ShimHost

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])
pytestmark = pytest.mark.one_backend
WAITS = """
    max_sessions: 40
    agents: {a: {adapter: command, command: [sh, -c, "while ! test -e go; do sleep 0.1; done"]}}
    tasks:
"""


def limited(descriptors: int) -> dict[str, Any]:
    """Return options for a process that may open no more than *descriptors* file descriptors."""
    return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))}


def plan_of(scratch: Scratch, tasks: int) -> None:
    """Write a plan with *tasks* tasks, each of which works until a file named ``go`` exists."""
    scratch.plan(WAITS + "".join(f'      - {{id: t{number}, agent: a, prompt: ""}}\n' for number in range(tasks)))


def started(scratch: Scratch, *, tasks: int, limit: int, backend: str) -> Running:
    """Start a run of such a plan under a limit of descriptors; return when its first session has started."""
    plan_of(scratch, tasks)
    run = scratch.start("run", "plan.yaml", "--json", "--backend", backend, **limited(limit))
    until(lambda: "SessionStarted" in run.out)
    return run


@contextmanager
def connected(scratch: Scratch, clients: int) -> Iterator[list[socket.socket]]:
    """Connect *clients* idle clients to the control socket during the block."""
    with ExitStack() as stack:
        yield [stack.enter_context(_client(scratch.path / ".sdd" / "runtime" / "control.sock")) for _ in range(clients)]


def _client(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(20)
    with socket_address(path) as address:
        client.connect(address)
    return client


def ask(client: socket.socket, **message: Any) -> dict[str, Any]:
    """Send a request to the control socket, and return the first line of the reply."""
    client.sendall(json.dumps(message).encode() + b"\n")
    answer: dict[str, Any] = json.loads(client.makefile("rb").readline())
    return answer


@BACKENDS
def test_idle_clients_lose_their_places(scratch: Scratch, backend: str) -> None:
    """With 300 idle clients and 256 descriptors, idle clients are disconnected, a command gets its reply, and the run
    succeeds."""
    run = started(scratch, tasks=1, limit=256, backend=backend)
    with connected(scratch, 300):
        asked = scratch.run("inspect", "t0")
        assert asked.status == 0, asked.text
    (scratch.path / "go").touch()
    done = run.wait()
    assert done.status == 0, done.text
    assert "too many clients of the control socket" in done.err


@BACKENDS
def test_more_clients_than_places_are_refused_in_a_sentence(scratch: Scratch, backend: str) -> None:
    """While as many clients as are allowed follow the records, another command fails with status 1 and a message that
    says so."""
    run = started(scratch, tasks=1, limit=256, backend=backend)
    with connected(scratch, 256 // descriptors.CLIENTS_SHARE) as clients:
        for client in clients:
            assert "event" in ask(client, do="follow", after=0)
        asked = scratch.run("inspect", "t0")
        assert asked.status == 1
        assert "too many clients (32) are connected to the supervisor" in asked.err
    until(lambda: scratch.run("inspect", "t0").status == 0)
    (scratch.path / "go").touch()
    assert run.wait().status == 0


@BACKENDS
def test_a_client_is_refused_where_no_descriptor_is_left(scratch: Scratch, backend: str) -> None:
    """While no descriptor is left, since the limit was lowered, a command fails with a message that says so; with the
    old limit commands work again."""
    run = started(scratch, tasks=1, limit=256, backend=backend)
    resource.prlimit(run.pid, resource.RLIMIT_NOFILE, (3, 256))
    resource.prlimit(run.pid, resource.RLIMIT_NOFILE, (_open(run), 256))
    asked = scratch.run("inspect", "t0")
    assert asked.status == 1
    assert "no file descriptor left" in asked.err
    assert not run.ended
    resource.prlimit(run.pid, resource.RLIMIT_NOFILE, (256, 256))
    until(lambda: scratch.run("inspect", "t0").status == 0)
    (scratch.path / "go").touch()
    assert run.wait().status == 0


def _open(run: Running) -> int:
    """Return the lowest descriptor number that the process has not in use."""
    taken = {int(name) for name in os.listdir(f"/proc/{run.pid}/fd")}
    return next(number for number in range(1024) if number not in taken)


@BACKENDS
def test_launches_wait_for_descriptors(scratch: Scratch, backend: str) -> None:
    """When 40 descriptors are enough for only a few of 20 tasks at a time, the other launches wait, `ps` says so, and
    all tasks complete without a failure."""
    run = started(scratch, tasks=20, limit=40, backend=backend)
    until(lambda: "a program waits for file descriptors to start" in run.err)
    shown = scratch.run("ps")
    assert "wait for file descriptors to start" in shown.err, shown.text
    (scratch.path / "go").touch()
    done = run.wait()
    assert done.status == 0, done.text
    records = scratch.records()
    assert len([one for one in records if one["entity_type"] == "task" and one["to_status"] == "CLOSED"]) == 20
    assert not [one for one in records if one["entity_type"] in ("run", "task") and "fail" in one["event"].lower()]


def test_a_session_that_waits_for_descriptors_can_be_aborted(scratch: Scratch) -> None:
    """An abort ends a session whose agent waits for descriptors to start, and needs no descriptor itself."""
    run = started(scratch, tasks=12, limit=40, backend="asyncio")
    until(lambda: "a program waits for file descriptors to start" in run.err)
    waiting = next(
        record["entity_id"]
        for record in scratch.records()
        if record["event"] == "PromptReady" and not scratch.records(f"{record['entity_id']}:a1")[1:]
    )
    aborted = scratch.run("abort", waiting, "--scope", "session", within_s=15)
    assert aborted.status == 0, aborted.text
    (scratch.path / "go").touch()
    assert run.wait().status == 1


@pytest.mark.parametrize(
    ("wrap", "lacks"),
    [(lambda error: error, "file descriptors"), (lambda error: _from(RuntimeError(), error), "file descriptors")],
)
def test_a_shortage_is_known_by_its_error_number(wrap: Callable[[OSError], BaseException], lacks: str) -> None:
    """A shortage of descriptors is recognized by the error number, also when anyio has wrapped the error; another error
    is no shortage."""
    assert shortage_of(wrap(OSError(24, "Too many open files"))) == lacks
    assert shortage_of(wrap(OSError(2, "No such file"))) == ""
    assert shortage_of(RuntimeError()) == ""


def _from(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def test_figures_follow_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of clients and that of transcripts kept open are an eighth of the descriptor limit each, up to a fixed
    maximum."""
    for limit, clients, spare in ((40, 5, 5), (256, 32, 16), (1024, 64, 16), (None, 64, 16)):
        monkeypatch.setattr(descriptors, "limit", lambda limit=limit: limit)
        assert (descriptors.clients_max(), descriptors.agent_spare()) == (clients, spare)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_fork_server_without_descriptors_is_waited_for(anyio_backend: str) -> None:
    """When the fork server has no descriptor for a launch, the launch fails with SpawnShortage, and a later launch
    succeeds."""
    launch = Launch(argv=("true",), cwd="/", env={})
    with anyio.fail_after(DEADLINE_S):
        async with ShimHost() as host, host.spawn(launch) as first:
            await first.wait_exit()
            server = host.fork_server.pid
            before = resource.prlimit(server, resource.RLIMIT_NOFILE)
            resource.prlimit(server, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{server}/fd")), before[1]))
            with pytest.raises(SpawnShortage, match="Too many open files"):
                async with host.spawn(launch):
                    pytest.fail("it started")
            resource.prlimit(server, resource.RLIMIT_NOFILE, before)
            async with host.spawn(launch) as process:
                assert await process.wait_exit() == 0
