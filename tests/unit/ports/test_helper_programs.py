"""Helper programs that only read run without a shim, with the same result, and are ended with their group."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from supervisor.ports import Launch, Process, ProcessHost
from supervisor.ports.helper_programs import CompletedCommand, run_command, run_reader
from supervisor.processes.host import ShimHost
from supervisor.workspaces.git_command import Git
from tests.support import git, wait_for_exit

pytestmark = pytest.mark.anyio
DEADLINE_S = 60.0


def python(program: str, folder: Path) -> Launch:
    return Launch(argv=(sys.executable, "-Sc", program), cwd=str(folder), env={"PATH": os.defpath})


async def test_a_reader_has_the_result_of_a_command_under_a_shim(tmp_path: Path) -> None:
    """Status, the last bytes of both outputs, and the working directory are equal; input is at its end."""
    launch = python(
        "import os, sys; print('x' * 100 + os.getcwd()[-3:], end=''); sys.stderr.write(sys.stdin.read() + 'no');"
        "sys.exit(3)",
        tmp_path,
    )
    direct = await run_reader(launch, timeout_s=DEADLINE_S, output_max=5)
    async with ShimHost() as host:
        shimmed = await run_command(host, launch, timeout_s=DEADLINE_S, output_max=5)
    assert direct is not None
    assert (direct.status, direct.stdout, direct.stderr, direct.problem) == (3, shimmed.stdout, b"no", "")
    assert (shimmed.status, shimmed.stderr) == (3, b"no")


async def test_a_cancelled_reader_is_ended_with_what_it_started(tmp_path: Path) -> None:
    """A reader and its child, which holds the output open, are gone when the cancelled call has returned."""
    fifo = tmp_path / "pids"
    os.mkfifo(fifo)
    opened = f"os.open({str(fifo)!r}, os.O_WRONLY)"
    program = f"import os, time; os.fork(); os.write({opened}, b'%d\\n' % os.getpid()); time.sleep(600)"
    pids = []
    async with anyio.create_task_group() as group:
        group.start_soon(partial(run_reader, python(program, tmp_path), timeout_s=DEADLINE_S))
        async with await anyio.open_file(fifo) as lines:
            while len(pids) < 2:
                pids.append(int(await lines.readline()))
        group.cancel_scope.cancel()
    await wait_for_exit(*pids)


async def test_a_reader_at_its_deadline_has_no_status(tmp_path: Path) -> None:
    """The problem names the deadline; the program is gone, or the test would wait for it at its end."""
    ran = await run_reader(python("import time; time.sleep(600)", tmp_path), timeout_s=0.1, output_max=10)
    assert ran is not None
    assert (ran.status, ran.problem) == (None, "it was still running after 0.1 s")


async def test_a_program_that_cannot_be_started_is_left_to_the_host(tmp_path: Path) -> None:
    """No result: the process host, which knows shortages and has the reason, starts the program or refuses it."""
    assert await run_reader(python("", tmp_path / "missing"), timeout_s=DEADLINE_S) is None


class RefusingHost:
    """Process host that starts nothing."""

    def spawn(self, launch: Launch, **_: Any) -> AbstractAsyncContextManager[Process]:
        raise AssertionError(f"a shim was asked for: {launch.argv}")


async def test_git_commands_that_read_need_no_shim(repository: Path) -> None:
    """Names, ancestors and worktrees are looked up without a shim; a commit is made under one."""
    host: ProcessHost = RefusingHost()
    reader = Git(host, str(repository))
    tip = git(repository, "rev-parse", "main")
    assert await reader.commit_of(str(repository), "main") == tip
    assert await reader.commit_of(str(repository), "no-such-branch") == ""
    assert await reader.base("main", "HEAD") == tip
    assert await reader.holders("main") == [str(repository)]
    with pytest.raises(AssertionError, match="commit-tree"):
        await reader.must(str(repository), "commit-tree", "-m", "x", f"{tip}^{{tree}}")


async def test_a_lost_exit_status_is_asked_for_again(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another part of the embedding program has taken the status of git: the command runs again under a shim."""

    async def lost(*_: Any, **__: Any) -> CompletedCommand | None:
        return None

    monkeypatch.setattr("supervisor.workspaces.git_command.run_reader", lost)
    async with ShimHost() as host:
        found = await Git(host, str(repository)).commit_of(str(repository), "main")
    assert found == git(repository, "rev-parse", "main")
