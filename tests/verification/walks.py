"""Three walks through the production code with the scripted agent, and the modules that each walk passes.

The walks are those of docs/explanation/architecture.md: an abort from the command line to the killed process, a line of
an agent's output to its record, and a task from YAML to its merge. Nothing is simulated: processes, git and the journal
are real, so the counts of entries may differ from run to run; the modules do not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import apsw

from supervisor import AgentConfig, Settings, Supervisor, open_supervisor, run_plan
from supervisor.plans import load_plan
from tests.verification.module_trace import ModuleTrace

ROOT: Final = Path(__file__).parents[2]
TIMEOUT_S: Final = 60
"""Most seconds for one walk, so that a walk that hangs fails."""

POLL_S: Final = 0.01
IDLE_S: Final = 0.3
"""Seconds without a call after which a supervisor is idle: less than the second between two checks of its files."""

STAGE_BUDGETS: Final = {"request_s": 0.2, "cancel_s": 0.2, "terminate_s": 0.2, "kill_s": 5}
"""Seconds for each termination stage: short, since the agent of the abort uses up all of them but the last."""

IGNORES_EVERYTHING: Final = "@deaf\n@inside a call that never returns\n"
"""Prompt that makes an agent ignore SIGTERM and its protocol's cancel, so that an abort passes through every stage."""

WAITS: Final = "@wait go\n@inside the call whose first line is traced\n"

PLAN: Final = """\
workspace: worktree
agents: {writer: {adapter: scripted}}
tasks: [{id: build, agent: writer, prompt: "@write built.txt done", acceptance: [{file_exists: built.txt}]}]
"""


class Walk(NamedTuple):
    """Walk: its name and title, the target for the number of its modules, and the coroutine that performs the walk in a
    directory."""

    name: str
    title: str
    modules_max: int
    perform: Callable[[Path], Awaitable[dict[str, int]]]


async def _abort(directory: Path) -> dict[str, int]:
    """Walk: abort a session whose agent ignores every request; return the counts of the supervisor and of the
    command."""
    trace, counts = ModuleTrace(), directory / "command.json"
    arguments = ("abort", "s", "--scope", "session", "--state-dir", str(directory / "sdd"), "--reason", "walk")
    settings = Settings.model_validate({"policy": {"ladder": STAGE_BUDGETS}})
    with trace.installed():
        async with _session(directory, IGNORES_EVERYTHING, settings) as (_, state):
            await _recorded(state, "tool_started")
            await _idle(trace)
            with trace.recorded():
                await _command(counts, *arguments, cwd=directory)
    return _sum(json.loads(counts.read_text(encoding="utf-8")), trace.entries)


async def _line(directory: Path) -> dict[str, int]:
    """Walk: let the agent write the line that begins a tool call; return the counts until the record of that call is in
    the journal."""
    trace = ModuleTrace()
    with trace.installed():
        async with _session(directory, WAITS, Settings()) as (_, state):
            await _recorded(state, "SessionStarted")
            await _idle(trace)
            with trace.recorded():
                (directory / "go").touch()
                await _recorded(state, "tool_started")
                await _idle(trace)
    return trace.entries


async def _task(directory: Path) -> dict[str, int]:
    """Walk: run a plan with one task, in a git repository, under a supervisor that is already open; return the
    counts."""
    identity = ("-c", "user.name=walk", "-c", "user.email=walk@localhost")
    for arguments in (("init", "-q", "-b", "main", "."), (*identity, "commit", "-q", "--allow-empty", "-m", "begin")):
        await anyio.run_process(["git", *arguments], cwd=directory)
    file = directory.parent / "plan.yaml"
    file.write_text(PLAN, encoding="utf-8")
    plan = load_plan(file)
    trace = ModuleTrace()
    with trace.installed():
        state = directory.parent / "sdd"
        async with open_supervisor(state, agents=plan.agents, settings=plan.settings, workdir=directory) as sup:
            with trace.recorded():
                result = await run_plan(sup, load_plan(file))
    assert result.ok, result
    assert (directory / "built.txt").is_file(), "the task was not merged"
    return trace.entries


@asynccontextmanager
async def _session(directory: Path, prompt: str, settings: Settings) -> AsyncIterator[tuple[Supervisor, Path]]:
    """Run a supervisor with one session, ``s``, whose scripted agent is given *prompt*; abort it at the end."""
    state = directory / "sdd"
    agents = {"scripted": AgentConfig(adapter="scripted")}
    async with (
        open_supervisor(state, agents=agents, settings=settings, workdir=directory) as sup,
        anyio.create_task_group() as group,
    ):
        session = await sup.start_session("s", agent="scripted")
        group.start_soon(session.run, prompt)
        yield sup, state
        await sup.abort("s", "session", now=True)


async def _recorded(state: Path, event: str) -> None:
    """Wait until the journal has a record of *event*. The journal file is read directly, so that the supervisor does
    nothing, and by the SQLite library of the supervisor: another one in the same process would undo its locks."""
    with closing(apsw.Connection(str(state / "runtime" / "journal.db"), apsw.SQLITE_OPEN_READONLY)) as journal:
        while not journal.execute("SELECT 1 FROM events WHERE event = ?", (event,)).fetchone():  # noqa: ASYNC110
            await anyio.sleep(POLL_S)


async def _idle(trace: ModuleTrace) -> None:
    """Wait until no function of the project has run for ``IDLE_S``."""
    before = -1
    while before != trace.calls:
        before = trace.calls
        await anyio.sleep(IDLE_S)


async def _command(counts: Path, *arguments: str, cwd: Path) -> None:
    """Run ``supervisor ARGUMENTS`` in a process of its own under a trace, which writes the counts to the file
    *counts*."""
    command = [sys.executable, "-m", "tests.verification.module_trace", str(counts), *arguments]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    await anyio.run_process(command, cwd=cwd, env=os.environ | {"PYTHONPATH": path}, stderr=subprocess.PIPE)


def _sum(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in (first | second)}


WALKS: Final = (
    Walk("abort", "an abort from the command line to the killed process", 22, _abort),
    Walk("line", "a line of output to its record", 20, _line),
    Walk("task", "a task from YAML to its merge", 36, _task),
)


def measure(walk: Walk) -> dict[str, int]:
    """Perform *walk* in a scratch directory; return how often each module was entered from outside, in the order of
    first entry."""

    async def perform(directory: Path) -> dict[str, int]:
        with anyio.fail_after(TIMEOUT_S):
            return await walk.perform(directory)

    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch, "work")
        directory.mkdir()
        return anyio.run(perform, directory)
