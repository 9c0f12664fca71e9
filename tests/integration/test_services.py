"""Services of a supervisor, such as the control server: a crash is logged, the service is restarted, and no session is
affected."""

from __future__ import annotations

import logging
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from actors import failpoint
from supervisor import AgentTurn, open_supervisor
from supervisor.control.client import answers_to, request
from supervisor.control.error_messages import ControlError
from supervisor.control.requests import Abort, Follow, Ping
from supervisor.control.server import serve_control
from supervisor.host.api import Supervisor
from supervisor.host.services import INTENSITY, ServiceFailed
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import AbortScope, LifecycleEvent
from supervisor.plans import AgentConfig, Plan, Settings, TaskConfig
from supervisor.plugins import hookimpl
from supervisor.work.plan_handle import run_plan
from tests.support import DEADLINE_S, quick_settings

pytestmark = pytest.mark.anyio

RESTARTED = "a service was started again"


async def echo(turn: AgentTurn) -> str:
    return turn.prompt


class Crashes:
    """Failpoint function that crashes the loop of a service at its next passes, as often as ``left`` says."""

    def __init__(self) -> None:
        self.left = Counter[str]()

    def __call__(self, name: str, subject: str) -> bool:
        if name != "service" or not self.left[subject]:
            return False
        self.left[subject] -= 1
        return True


@pytest.fixture
def crashes() -> Iterator[Crashes]:
    decide = Crashes()
    with failpoint.controlled_by(decide):
        yield decide


class Log(logging.Handler):
    """Log handler that collects the lines of the runtime's log, for tests that wait for a line."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._grown = anyio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self._grown.set()
        self._grown = anyio.Event()

    async def line(self, *words: str) -> str:
        """Return the first log line that contains all *words*; wait until there is such a line."""
        with anyio.fail_after(DEADLINE_S):
            while True:
                for line in self.lines:
                    if all(word in line for word in words):
                        return line
                await self._grown.wait()


@asynccontextmanager
async def log_of_the_runtime() -> AsyncIterator[Log]:
    log, logger = Log(), logging.getLogger("supervisor")
    logger.addHandler(log)
    try:
        yield log
    finally:
        logger.removeHandler(log)


@asynccontextmanager
async def running(
    where: Path, plugins: Any = (), agents: Mapping[str, AgentConfig] | None = None, **changed: Any
) -> AsyncIterator[tuple[Supervisor, Log]]:
    """Run a supervisor with a journal on disk and a control socket, under a deadline; *changed* are its changed
    settings."""
    settings = Settings.model_validate({**quick_settings().model_dump(), "retention": {"every_s": 1.0}, **changed})
    with anyio.fail_after(2 * DEADLINE_S):
        async with log_of_the_runtime() as log:
            async with open_supervisor(
                where / "state", agents=agents, settings=settings, workdir=where, plugins=plugins
            ) as sup:
                yield sup, log


def socket_of(where: Path) -> Path:
    return StateDir(where / "state").control_socket


def records_of(where: Path) -> list[LifecycleEvent]:
    with JournalReader(StateDir(where / "state").journal) as reader:
        return list(reader.events())


class Listener:
    """Plug-in that collects the names of the session events that it receives."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @hookimpl
    def supervisor_session_event(self, event: LifecycleEvent) -> None:
        self.names.append(event.event)


# ------------------------------------------------------------------------------------------------------ one crash
@pytest.mark.parametrize("service", ["compaction", "journal", "plug-ins"])
async def test_a_service_that_crashes_is_started_again(tmp_path: Path, crashes: Crashes, service: str) -> None:
    """When a service crashes, the log has the crash, then the restart; a session that runs meanwhile goes on."""
    async with running(tmp_path, [Listener()]) as (sup, log):
        session = await sup.start_session("s", agent=echo)
        crashes.left[service] = 1
        crash = await log.line("an actor crashed", f":services/{service}", "InjectedCrash")
        restart = await log.line(RESTARTED, service, "restarts=1")
        assert log.lines.index(crash) < log.lines.index(restart)
        assert (await session.run("still here")).text == "still here"
        assert sup.failure is None


async def test_the_control_server_is_back_after_a_crash(tmp_path: Path, crashes: Crashes) -> None:
    """When the control server crashes at a connection, that client gets its reply, and the next client gets one from
    the new server."""
    async with running(tmp_path) as (sup, log):
        session = await sup.start_session("s", agent=echo)
        crashes.left["control"] = 1
        assert await answers_to(socket_of(tmp_path), Ping())
        await log.line(RESTARTED, "control")
        assert await answers_to(socket_of(tmp_path), Ping())
        assert (await session.run("still here")).text == "still here"


async def test_an_abort_that_is_under_way_is_answered_over_a_crash(tmp_path: Path, crashes: Crashes) -> None:
    """An abort request that the crashed control server had begun still gets its whole reply, and the session ends."""
    async with running(tmp_path) as (sup, log):
        await sup.start_session("s", agent=echo)
        crashes.left["control"] = 1
        answers = await answers_to(socket_of(tmp_path), Abort(id="s", scope=AbortScope.SESSION))
        assert answers[0]["receipt"]["target"] == "s"
        await log.line(RESTARTED, "control")
    assert [one.event for one in records_of(tmp_path) if one.entity_id == "s"][-1] == "Ended"


async def test_a_follower_is_told_to_ask_again(tmp_path: Path, crashes: Crashes) -> None:
    """A client that follows records gets an error when the control server crashes, which says that it should ask again,
    and no end as if all records were sent."""
    async with running(tmp_path) as (sup, _):
        await sup.start_session("s", agent=echo)
        crashes.left["control"] = 1
        with pytest.raises(ControlError, match="is started again; ask again") as caught:
            async with aclosing(request(socket_of(tmp_path), Follow())) as lines:
                async for _line in lines:
                    pass
        assert caught.value.kind == "busy"


async def test_a_plug_in_is_told_over_a_crash(tmp_path: Path, crashes: Crashes) -> None:
    """Records made while the plug-in service is down wait in a queue, and the plug-in receives all of them after the
    restart."""
    listener = Listener()
    async with running(tmp_path, [listener]) as (sup, log):
        crashes.left["plug-ins"] = 1
        await log.line("an actor crashed", ":services/plug-ins")
        session = await sup.start_session("s", agent=echo)
        await session.run("work")
        await log.line(RESTARTED, "plug-ins")
    ours = [one.event for one in records_of(tmp_path) if one.entity_type == "session"]
    assert listener.names == ours


async def test_a_journal_that_is_deleted_after_a_crash_is_noticed(tmp_path: Path, crashes: Crashes) -> None:
    """After a restart of the journal service, the deletion of the journal's file is still noticed, though nothing is
    recorded."""
    with pytest.raises(Exception, match="journal"):
        async with running(tmp_path) as (sup, log):
            crashes.left["journal"] = 1
            await log.line(RESTARTED, "journal")
            StateDir(tmp_path / "state").journal.unlink()
            await sup.core.shutdown.wait_journal_lost()


# ----------------------------------------------------------------------------------------------- too many crashes
async def test_too_many_crashes_end_the_supervisor_in_order(tmp_path: Path, crashes: Crashes) -> None:
    """When a service crashes too often, every session ends with that reason, every prompt gets a result, and leaving
    the block raises ServiceFailed."""
    with pytest.raises(ServiceFailed) as caught:
        async with running(tmp_path) as (sup, log), anyio.create_task_group() as group:
            session = await sup.start_session("s", agent=hang)
            outcomes: list[str] = []

            async def prompt() -> None:
                outcomes.append((await session.run("wait")).outcome)

            group.start_soon(prompt)
            crashes.left["compaction"] = 10**6
            await sup.core.stop_now.wait()
            assert isinstance(sup.failure, ServiceFailed)
            await log.line("the supervisor's service 'compaction' crashed again", "every session is ended")
    assert sum(RESTARTED in line for line in log.lines) == INTENSITY.restarts_max
    assert outcomes == ["aborted"]
    error = str(caught.value)
    assert "InjectedCrash('service compaction')" in error
    assert error in {one.reason for one in records_of(tmp_path) if one.entity_id == "s"}


async def hang(turn: AgentTurn) -> None:
    await anyio.sleep_forever()


# ---------------------------------------------------------------------------------------------------------- starts
async def test_a_service_that_cannot_start_is_its_starters_error(tmp_path: Path) -> None:
    """A service that raises an error before it is ready is not restarted; the caller that starts it gets the error."""
    async with running(tmp_path) as (sup, log):
        missing = tmp_path / "missing" / "control.sock"
        serve = partial(serve_control, missing, sup, closing=sup.core.services.closing)
        with pytest.raises(FileNotFoundError):
            await sup.core.services.start("other control", serve)
        assert not any(RESTARTED in line for line in log.lines)


# --------------------------------------------------------------------------------- workspaces and verification
@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Fixture: a git repository with one commit."""
    where = tmp_path / "repository"
    where.mkdir()
    for words in (
        ("init", "--quiet", "--initial-branch=main"),
        ("-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "--quiet", "--allow-empty", "-m", "first"),
    ):
        subprocess.run(["git", *words], cwd=where, check=True)
    return where


@pytest.mark.one_backend
async def test_workspaces_are_removed_over_a_crash(repository: Path, crashes: Crashes) -> None:
    """The removal of a workspace that is queued when the cleanup service crashes is carried out after the restart."""
    async with running(repository, workspace="worktree") as (sup, log):
        session = await sup.start_session("s", agent=echo, directory=str(repository))
        await session.run("work")
        crashes.left["cleanup"] = 1
        await session.close()
        await log.line(RESTARTED, "cleanup")
    assert list((repository / "state" / "worktrees").iterdir()) == []


@pytest.mark.one_backend
async def test_a_bug_in_a_verification_fails_its_request_only(repository: Path, crashes: Crashes) -> None:
    """When the verification of one task crashes, that task fails with the crash as its error, and the next task is
    merged."""
    crashes.left["verification"] = 2  # the first request looks at the user's checkout, which decides nothing
    sh = AgentConfig(adapter="command", command=("sh", "-c", "{prompt}"))
    tasks = [
        TaskConfig(id=name, agent="sh", prompt=f"echo {name} > {name}", max_retries=0) for name in ("one", "another")
    ]
    plan = Plan(agents={"sh": sh}, tasks=tuple(tasks), workspace="worktree", merge="each", max_sessions=1)
    async with running(repository, workspace="worktree", agents={"sh": sh}) as (sup, log):
        result = await run_plan(sup, plan)
        await log.line("verification failed", "InjectedCrash")
    problems = [one.error for one in result.tasks.values() if one.outcome != "completed"]
    assert len(problems) == 1
    assert "verification failed: InjectedCrash('service verification')" in problems[0]
