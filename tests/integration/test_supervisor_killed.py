"""Check that a supervisor killed with SIGKILL leaves no process behind, however far the launches of its agents had
come.

The supervisor is a process of its own. Every agent, tool and daemon below the supervisor holds a pipe of the test open;
end of file on that pipe proves that all have ended. Lines in the pipe say which processes have started, so the kill
never comes too early.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from supervisor.diagnostics.validate import validate_lines
from supervisor.embedding.runtime import open_supervisor
from supervisor.journal.reader import JournalReader
from supervisor.processes import shim
from supervisor.processes.containment import group_for
from tests.support import DEADLINE_S, HeldPipe, agent_pids, check_records, reap_all, running_program, wait_for_exit

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_backend,
    pytest.mark.skipif(sys.platform != "linux", reason="the whole promise is Linux's"),
]

ROOT = Path(__file__).parents[2]
GONE_S = 120.0

SUPERVISOR = """
import sys
import anyio
from supervisor.agents.codecs import scripted_command
from supervisor.plans import AgentConfig
from supervisor.embedding.runtime import open_supervisor

async def main():
    line = f"exec 8>{roll}; echo agent $$ >&8; exec \\"$@\\""
    agents = {"a": AgentConfig(adapter="acp", command=("sh", "-c", line, "sh", *scripted_command()))}
    async with open_supervisor(state, agents=agents, workdir=workdir) as sup, anyio.create_task_group() as group:
        for number in range(int(count)):
            session = await sup.start_session(f"s{number}", agent="a")
            group.start_soon(session.run, script)

backend, workdir, state, roll, count, script = sys.argv[1:]
anyio.run(main, backend=backend)
"""

TOOL = "exec 9>roll; (setsid sh -c 'trap \"\" TERM HUP INT; echo daemon $$ >&9; sleep 1000' &); echo tool $$ >&9"


@pytest.fixture
def roll(tmp_path: Path, nothing_left: None) -> Iterator[HeldPipe]:
    roll = HeldPipe(tmp_path)
    yield roll
    roll.close()


@contextmanager
def supervisor_of(
    workdir: Path, roll: HeldPipe, backend: str, count: int, script: str
) -> Iterator[subprocess.Popen[bytes]]:
    argv = [backend, str(workdir), str(workdir / "sd"), roll.path, str(count), script]
    command = [sys.executable, "-c", SUPERVISOR, *argv]
    with running_program(command, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}) as supervisor:
        try:
            yield supervisor
        finally:
            supervisor.kill()


async def test_ten_agents_with_daemons(tmp_path: Path, roll: HeldPipe, anyio_backend: str) -> None:
    """After the kill of a supervisor with ten agents, each of which runs a tool and a daemon that ignores signals, all
    these processes end, and the next supervisor records their ends."""
    with supervisor_of(tmp_path, roll, anyio_backend, 10, f"@run {TOOL}; sleep 1000") as supervisor:
        pids = await roll.here(30)
        assert sorted(name for name, _ in roll.seen) == ["agent"] * 10 + ["daemon"] * 10 + ["tool"] * 10
        supervisor.send_signal(signal.SIGKILL)
        await roll.all_gone(GONE_S)
        await wait_for_exit(*pids)
    await reap_all()
    await check_recovery(tmp_path, {f"s{number}" for number in range(10)})


async def check_recovery(workdir: Path, sessions: set[str]) -> None:
    """Assert that the records of the killed supervisor are in the journal, and that the next supervisor ends all live
    entities legally."""
    with JournalReader(workdir / "sd" / "runtime" / "journal.db") as journal:
        assert {row.id for row in journal.entities(live_only=True) if row.kind == "session"} == sessions
        assert all(agent_pids(journal.events(), name) for name in sessions)
    async with open_supervisor(workdir / "sd") as sup:
        assert not [row for row in sup.core.registry.rows() if not row.ended]
        assert await sup.core.journal.owed() == []
        assert sup.core.journal.generation == 2
    with JournalReader(workdir / "sd" / "runtime" / "journal.db") as journal:
        check_records(list(journal.events()), journal.entities(), [])
    assert validate_lines((workdir / "sd" / "transitions.jsonl").read_bytes().splitlines(keepends=True)).problems == []


async def test_agents_that_run_their_own_tools(tmp_path: Path, roll: HeldPipe, anyio_backend: str) -> None:
    """After the kill of a supervisor, agents that ignore every signal, and their own tools in other process sessions,
    end as well."""
    script = f"@deaf\n@daemon\n@local {TOOL}; trap '' TERM HUP INT; sleep 1000"
    with supervisor_of(tmp_path, roll, anyio_backend, 3, script) as supervisor:
        await roll.here(9)
        supervisor.send_signal(signal.SIGKILL)
        await roll.all_gone(GONE_S)
    await reap_all()


@pytest.mark.parametrize("seen", [1, 2, 4])
async def test_a_kill_during_the_launches(tmp_path: Path, roll: HeldPipe, anyio_backend: str, seen: int) -> None:
    """After the kill of a supervisor during the launch of six agents, no agent is left, whether already started or just
    starting."""
    with supervisor_of(tmp_path, roll, anyio_backend, 6, f"@run {TOOL}; sleep 1000") as supervisor:
        await roll.here(seen)
        supervisor.send_signal(signal.SIGKILL)
        await roll.all_gone(GONE_S)
        with anyio.fail_after(DEADLINE_S):
            await anyio.to_thread.run_sync(supervisor.wait)
        await wait_for_exit(*[pid for _, pid in roll.seen])
    await reap_all()


async def test_a_supervisor_that_is_terminated(tmp_path: Path, roll: HeldPipe, anyio_backend: str) -> None:
    """SIGTERM ends the program of an embedded supervisor, which has no signal handlers of its own, and no process is
    left."""
    with supervisor_of(tmp_path, roll, anyio_backend, 2, f"@run {TOOL}; sleep 1000") as supervisor:
        await roll.here(6)
        supervisor.send_signal(signal.SIGTERM)
        await roll.all_gone(GONE_S)
        assert supervisor.wait(DEADLINE_S) == -signal.SIGTERM
    await reap_all()


def keeper_of(workdir: Path) -> int:
    return int((workdir / "sd" / "runtime" / "keeper").read_text().split()[1])


def kill_at_once(*pids: int) -> None:
    """Suspend all of these processes, then kill them, so that none of them notices the end of another."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        shim.send(pids, number)


CLEAN = "exec 9>roll; (env -i setsid sh -c 'trap \"\" TERM HUP INT; echo clean $$ >&9; sleep 1000' &); echo tool $$ >&9"


async def test_a_kill_together_with_the_shims(tmp_path: Path, roll: HeldPipe, anyio_backend: str) -> None:
    """When supervisor and shims are killed at the same time, the fork server ends the processes of the shims."""
    with supervisor_of(tmp_path, roll, anyio_backend, 4, f"@run {TOOL}; sleep 1000") as supervisor:
        await roll.here(12)
        fork_server = keeper_of(tmp_path)
        kill_at_once(supervisor.pid, *shim.children(fork_server))
        await roll.all_gone(GONE_S)
        await wait_for_exit(fork_server)
    await reap_all()
    await check_recovery(tmp_path, {f"s{number}" for number in range(4)})


async def test_a_kill_together_with_shims_and_fork_server(tmp_path: Path, roll: HeldPipe, anyio_backend: str) -> None:
    """When supervisor, shims and fork server are killed at the same time, the next supervisor of the state directory
    ends the remaining processes; where control groups are available, also a process whose environment was cleared."""
    grouped = bool(group_for("probe"))
    script = f"@run {CLEAN if grouped else TOOL}; sleep 1000"
    with supervisor_of(tmp_path, roll, anyio_backend, 4, script) as supervisor:
        await roll.here(12)
        fork_server = keeper_of(tmp_path)
        kill_at_once(supervisor.pid, fork_server, *shim.children(fork_server))
        await wait_for_exit(fork_server, supervisor.pid)
        assert any(Path(f"/proc/{pid}").exists() for name, pid in roll.seen if name in ("daemon", "clean"))
        await check_recovery(tmp_path, {f"s{number}" for number in range(4)})
        await roll.all_gone(GONE_S)
    await reap_all()


async def test_a_start_sweeps_only_its_own_directory(tmp_path: Path, anyio_backend: str) -> None:
    """The start of a supervisor does not end a process that belongs to the supervisor of another state directory."""
    stranger = {"SUPERVISOR_STATE": "another", "PATH": "/usr/bin:/bin"}
    with running_program(["sleep", "1000"], env=stranger) as other:
        async with open_supervisor(tmp_path / "sd"):
            pass
        async with open_supervisor(tmp_path / "sd"):
            assert other.poll() is None
        other.kill()
