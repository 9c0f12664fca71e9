"""Hosts that are interrupted by Ctrl-C, from which no shield protects: on asyncio Ctrl-C cancels the task of the host.

Whenever Ctrl-C comes, leaving the block of a supervisor waits until everything has ended: no process runs on, no file
stays open, and the next supervisor has nothing to recover.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import pytest
from trio.lowlevel import enable_ki_protection

from actors import ActorSystem, open_system
from actors import system as nursery
from supervisor.__main__ import main
from supervisor.cli import run_execution as app
from supervisor.control.error_messages import DONE, INTERRUPTED
from supervisor.embedding import runtime
from supervisor.embedding.runtime import open_supervisor
from supervisor.journal import sqlite
from supervisor.journal.database import Database
from supervisor.journal.sqlite import SqliteJournal
from supervisor.plans import AgentConfig
from supervisor.processes.shim_client import ForkServerClient
from supervisor.sessions.shutdown import Shutdown
from tests.support import DEADLINE_S, quick_settings

AGENTS = {"sh": AgentConfig(adapter="command", command=("sh", "-c", "{prompt}"))}


@enable_ki_protection
def interrupt() -> None:
    """Raise SIGINT while the event loop runs code; the interrupt reaches the host's task at its next wait."""
    signal.raise_signal(signal.SIGINT)


async def interrupted() -> None:
    """Interrupt the host, and return when every task waits again or has ended."""
    interrupt()
    await anyio.wait_all_tasks_blocked()


def run_interrupted(host: Callable[[], Awaitable[None]], backend: str) -> None:
    """Run *host*, and check that it ends by exactly one KeyboardInterrupt."""
    with pytest.raises(BaseException) as caught:
        anyio.run(host, backend=backend)
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, KeyboardInterrupt), repr(error)


def test_a_host_interrupted_as_its_system_opens(anyio_backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor system that is interrupted by Ctrl-C while it starts is shut down in order."""
    log: list[str] = []

    class Opening(ActorSystem):
        def __init__(self, group: Any, seed: int | None) -> None:
            super().__init__(group, seed)
            group.cancel_scope.deadline = anyio.current_time() + DEADLINE_S  # of the test
            interrupt()

        async def shut_down(self, cause: object = None) -> None:
            await super().shut_down(cause)
            log.append("shut down")

    async def host() -> None:
        async with open_system():
            await anyio.sleep_forever()

    monkeypatch.setattr(nursery, "ActorSystem", Opening)
    run_interrupted(host, anyio_backend)
    assert log == ["shut down"]


def on_thread(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, log: list[str]) -> None:
    """Patch a function that runs in a thread: its first call interrupts the host; when it returns, its name is added to
    *log*."""
    real, calls = getattr(owner, name), []

    def wrapped(*args: Any, **named: Any) -> Any:
        calls.append(name)
        if len(calls) == 1:
            anyio.from_thread.run(interrupted)
        given = real(*args, **named)
        log.append(name)
        return given

    monkeypatch.setattr(owner, name, wrapped)


def in_loop(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, log: list[str]) -> None:
    real, calls = getattr(owner, name), []

    async def wrapped(*args: Any) -> Any:
        calls.append(name)
        if len(calls) == 1:
            await interrupted()
        given = await real(*args)
        log.append(name)
        return given

    monkeypatch.setattr(owner, name, wrapped)


@pytest.mark.parametrize(
    ("how", "owner", "name", "done"),
    [
        (on_thread, sqlite, "open_database", ["open_database", "left"]),
        # The steps of an end are private: no public call marks the moment at which Ctrl-C is to come.
        (in_loop, runtime, "_end", ["_end", "left"]),
        (in_loop, Shutdown, "_ended", ["_ended", "left"]),
        (in_loop, ForkServerClient, "close", ["close", "left"]),
        (on_thread, Database, "close", ["close", "left"]),
    ],
    ids=[
        "opens its journal",
        "is to end",
        "has told its sessions to end",
        "waits for its keeper",
        "closes its journal",
    ],
)
def test_a_supervisor_that(
    how: Callable[..., None],
    owner: object,
    name: str,
    done: list[str],
    anyio_backend: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Ctrl-C during a step of start or end: the step is completed before the host leaves the block, and the next
    supervisor has no session to recover."""
    log: list[str] = []

    async def host() -> None:
        try:
            async with open_supervisor(
                tmp_path / "state", agents=AGENTS, settings=quick_settings(), workdir=tmp_path
            ) as sup:
                session = await sup.start_session("s", agent="sh")
                await session.run("echo done")
        finally:
            log.append("left")

    async def again() -> None:
        async with open_supervisor(tmp_path / "state", agents=AGENTS, settings=quick_settings(), workdir=tmp_path):
            pass

    with monkeypatch.context() as patched:
        how(patched, owner, name, log)
        run_interrupted(host, anyio_backend)
    assert log == done
    with caplog.at_level(logging.WARNING, logger="supervisor"):
        anyio.run(again, backend=anyio_backend)
    assert not caplog.messages


# ------------------------------------------------------------------------------------------------ the command line
PLAN = """
agents: {sh: {adapter: command, command: [sh, -c, "{prompt}"]}}
tasks: [{id: a, agent: sh, prompt: "true"}]
"""


def status_of_run(where: Path, backend: str, monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    """Run ``supervisor run``, and return its exit status; ``None`` if the command ended by an exception group."""
    (where / "plan.yaml").write_text(PLAN)
    there = ("--state-dir", str(where / "state"), "--workdir", str(where))
    monkeypatch.setattr("sys.argv", ["supervisor", "run", str(where / "plan.yaml"), *there, "--backend", backend])
    monkeypatch.setattr(app, "configure_logging", lambda **given: None)
    try:
        main()
    except SystemExit as left:
        return left.code
    except BaseExceptionGroup:
        pass
    return None


def test_a_run_interrupted_as_it_starts(
    anyio_backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``supervisor run`` that is interrupted while it starts prints one line that says so, and exits with the status
    for an interrupt."""
    on_thread(monkeypatch, sqlite, "open_database", [])
    assert status_of_run(tmp_path, anyio_backend, monkeypatch) == INTERRUPTED
    assert capsys.readouterr().err.strip() == "supervisor: interrupted"


def test_a_run_interrupted_as_it_closes(
    anyio_backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``supervisor run`` that is interrupted after its work is done exits with the status of the work, without an error
    message."""
    in_loop(monkeypatch, ForkServerClient, "close", [])
    assert status_of_run(tmp_path, anyio_backend, monkeypatch) == DONE
    assert not capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ the journal
def test_a_journal_is_not_closed_while_it_is_read(
    anyio_backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the caller of a read is cancelled, a journal waits for the reading thread before it closes the database
    (matters on asyncio)."""
    log: list[str] = []
    comes_next = threading.Event()

    class Turns:
        def __init__(self) -> None:
            self._lock = threading.Lock()

        def __enter__(self) -> None:
            if self._lock.locked():
                comes_next.set()
            self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    def read(*_: object) -> list[Any]:
        anyio.from_thread.run_sync(interrupt)
        if anyio_backend == "asyncio":
            assert comes_next.wait(DEADLINE_S)
        log.append("read")
        return []

    def close(database: Database) -> None:
        comes_next.set()
        log.append("closed")
        real(database)

    real = Database.close
    monkeypatch.setattr(sqlite, "Lock", Turns)
    monkeypatch.setattr(sqlite, "read_events", read)
    monkeypatch.setattr(Database, "close", close)

    async def host() -> None:
        journal = await SqliteJournal.open(tmp_path / "journal.db", jsonl=None)
        try:
            await journal.events()
            await anyio.sleep_forever()
        finally:
            await journal.close()

    run_interrupted(host, anyio_backend)
    assert log == ["read", "closed"]
