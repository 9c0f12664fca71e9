"""``supervisor run --resume``, and checkpoints after a kill -9: the real program, in a git repository and in a plain
directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.diagnostics.validate import validate_lines
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import LifecycleEvent
from tests.support import DEADLINE_S, check_records, git, run_command, running_program

pytestmark = pytest.mark.one_backend

PLAN = """
agents:
  sh: {{adapter: command, command: [sh, -c, "{{prompt}}"]}}
workspace: {workspace}
policy: {{ladder: {{request_s: 0.1, cancel_s: 1}}}}
task_lifecycle: {{base_retry_delay: 0, checkpoint: {{save_on_states: [FAILED, CANCELLED]}}}}
tasks:
  - {{id: first, agent: sh, prompt: "echo x >> {log}", files: [first]}}
  - {{id: t, agent: sh, depends_on: [first], max_retries: 1, files: [work], rollback: {rollback}, prompt: "{prompt}"}}
"""
WAITS = "mkdir -p work; ls work >> {log}; echo half >> work/half; exec 3> {pipe}; exec sleep 1000"
ONCE = "if mkdir {flag} 2>/dev/null; then {waits}; else ls work > {seen}; fi"


def written(where: Path, workspace: str, *, rollback: bool = False, again: bool = False) -> Path:
    """Write a plan whose second task waits in its first attempt (with *again*, also in its second); return the pipe
    that the task opens when it waits."""
    pipe = where.parent / "pipe"
    os.mkfifo(pipe)
    waits = WAITS.format(log=where.parent / "log", pipe=pipe)
    flag, seen = where.parent / "flag", where.parent / "seen"
    then = ONCE.format(flag=f"{flag}-2", waits=waits, seen=seen) if again else f"ls work > {seen}"
    prompt = f"if mkdir {flag} 2>/dev/null; then {waits}; else {then}; fi"
    text = PLAN.format(workspace=workspace, log=where.parent / "log", prompt=prompt, rollback=str(rollback).lower())
    (where.parent / "plan.yaml").write_text(text)
    return pipe


@contextmanager
def running(where: Path, backend: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable,
        "-m",
        "supervisor",
        "run",
        "../plan.yaml",
        "--json",
        "--workdir",
        ".",
        "--backend",
        backend,
    ]
    with running_program(
        [*command, *options], cwd=where, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def killed_when(pipe: Path, process: subprocess.Popen[str]) -> None:
    """Kill the run with SIGKILL when an agent has opened *pipe*, and the start of the agent's task is recorded."""
    assert process.stdout is not None
    with pipe.open("rb"):
        assert any('#t"' in line and '"event":"started"' in line for line in process.stdout)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=DEADLINE_S)


def called(where: Path, *words: str, status: int = 0) -> str:
    done = run_command(*words, cwd=where)
    assert done.status == status, done.err
    return done.text


def run_to_its_end(where: Path, backend: str, *options: str) -> str:
    """Run the plan until the run ends by itself; return its standard error."""
    with running(where, backend, *options) as process:
        _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said
    return said


def books(where: Path) -> list[LifecycleEvent]:
    """Check journal and log, and return the journal's records."""
    state = StateDir(where / ".sdd")
    with JournalReader(state.journal) as journal:
        events = list(journal.events())
        check_records(events, journal.entities(), [], refused=True)
    assert not validate_lines(state.transitions.read_bytes().splitlines(keepends=True)).problems
    return events


def checkpoints(events: list[LifecycleEvent]) -> list[str]:
    return [one.metadata["saved_as"] for one in events if one.event == "checkpoint_saved"]


@pytest.fixture(params=["asyncio", "trio"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    where = tmp_path / "plain"
    (where / "work").mkdir(parents=True)
    (where / "work" / "a").touch()
    return where


def cancelled(where: Path, pipe: Path, backend: str) -> None:
    """Run the plan, and cancel its second task from another terminal when that task waits."""
    with running(where, backend) as process:
        with pipe.open("rb"):
            called(where, "task", "cancel", "t", "--reason", "not now")
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1


def test_a_cancelled_task_is_resumed(repository: Path, backend: str) -> None:
    """``--resume`` continues a cancelled task from its checkpoint, and does not repeat a closed task."""
    cancelled(repository, written(repository, "worktree"), backend)
    (commit,) = checkpoints(books(repository))
    assert f"checkpoint {commit[:12]} (CANCELLED)" in called(repository, "ps", "--all")
    assert commit in called(repository, "why", "r1#t:run", "--json")
    said = run_to_its_end(repository, backend, "--resume")
    assert f"resumed: 1 completed and not done again; done again: t (from {commit[:12]} of r1#t:run)" in said
    assert (repository.parent / "seen").read_text() == "half\n"
    assert (repository.parent / "log").read_text() == "x\n"
    born = [one for one in books(repository) if one.event == "Born" and one.entity_type == "run"]
    assert [one.entity_id for one in born] == ["r1#first:run", "r1#t:run", "r2#t:run"]
    assert (born[-1].metadata["resumed_from"], born[-1].metadata["resumed_at"]) == ("r1#t:run", commit)


def test_a_resumed_run_survives_a_kill(repository: Path, backend: str) -> None:
    """After a kill -9 of a resumed run, the next run continues from the same checkpoint."""
    pipe = written(repository, "worktree", again=True)
    cancelled(repository, pipe, backend)
    with running(repository, backend, "--resume") as process:
        killed_when(pipe, process)
    run_to_its_end(repository, backend)
    assert (repository.parent / "seen").read_text() == "half\n"
    assert (repository.parent / "log").read_text() == "x\nhalf\n"  # its second try has found what the first had done
    (commit, *_) = checkpoints(books(repository))
    assert git(repository, "merge-base", "--is-ancestor", commit, "main") == ""


@pytest.mark.parametrize("rollback", [True, False])
def test_a_directory_after_a_kill(directory: Path, backend: str, rollback: bool) -> None:
    """After a kill -9 of a run in a plain directory, the next attempt finds the work of the killed one; with rollback
    the work is undone, and a copy is saved."""
    pipe = written(directory, "directory", rollback=rollback)
    with running(directory, backend) as process:
        killed_when(pipe, process)
    run_to_its_end(directory, backend)
    assert (directory.parent / "seen").read_text() == ("a\n" if rollback else "a\nhalf\n")
    assert (directory.parent / "log").read_text() == "x\na\n"
    events = books(directory)
    taken = [one.metadata["saved_as"] for one in events if one.event == "RolledBack"]
    assert taken == (checkpoints(events) if rollback else [])


def test_nothing_to_resume_is_told(repository: Path) -> None:
    """``--resume`` without a cancelled task, or together with ``--fresh``, is refused, and nothing is started or
    written."""
    written(repository, "worktree")
    words = "--resume: nothing of this plan was cancelled, given up or interrupted"
    assert words in called(repository, "run", "../plan.yaml", "--resume", status=2)
    assert not (repository / ".sdd").exists()
    assert "--fresh, --resume" in called(repository, "run", "../plan.yaml", "--resume", "--fresh", status=2)
