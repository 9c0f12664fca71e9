"""Run of the example workstream: six tasks on a real repository, with real processes, and a person who approves.

One task is not accepted and retried, one opens its circuit and recovers, one is split, one waits for an approval, one
has a merge conflict. The command is killed at several points and run again. Every wait is for a line of output.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from supervisor.diagnostics.validate import validate_lines
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import LifecycleEvent
from tests.support import check_records, run_command, running_program, states_of

ROOT = Path(__file__).parents[2]
PLAN = ROOT / "examples" / "workstream.yaml"
DEADLINE_S = 120

WHOLE = {"add", "subtract", "scale", "multiply", "divide", "news", "manual", "release"}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    subprocess.run(["sh", ROOT / "examples" / "workstream.sh", "calculator"], cwd=tmp_path, check=True)
    return tmp_path / "calculator"


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "supervisor", *words]


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """Override the fixture of the same name: the processes of a killed run end by themselves, a little after
    the test."""


@contextmanager
def started(repository: Path) -> Iterator[subprocess.Popen[str]]:
    """Start ``supervisor run`` on the example plan; kill the process at the end of the block."""
    run = command("run", str(PLAN), "--json")
    with running_program(run, cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def approved(repository: Path) -> bool:
    """Approve the task ``manual``; return whether the approval was accepted."""
    return run_command("approve", "manual", cwd=repository).status == 0


def seen_through(process: subprocess.Popen[str], repository: Path) -> dict[str, str]:
    """Read the output of the run to its end, approve the waiting task, and return the outcome of each task."""
    assert process.stdout is not None
    last: dict[str, object] = {}
    asked = False
    for line in process.stdout:
        last = json.loads(line)
        waits = last.get("to_status") == "PENDING_APPROVAL" and last.get("event") == "approval_requested"
        if waits and not asked:
            asked = approved(repository)
    assert process.wait(DEADLINE_S) == 0, process.stderr.read() if process.stderr else ""
    tasks = last["tasks"]
    assert isinstance(tasks, list)
    return {task["id"]: task["outcome"] for task in tasks}


def read_records(repository: Path) -> list[LifecycleEvent]:
    """Check journal and log, and return the records of the journal."""
    state = StateDir(repository / ".sdd")
    with JournalReader(state.journal) as journal:
        events = list(journal.events())
        check_records(events, journal.entities(), [], refused=True)
    problems = validate_lines(state.transitions.read_bytes().splitlines(keepends=True)).problems
    assert not problems, problems[:3]
    return events


def check_result(repository: Path) -> None:
    """Assert that the merged work passes the tests of the repository, and that the repository has no uncommitted
    changes."""
    tests = [sys.executable, "-m", "unittest", "discover", "-q"]
    assert subprocess.run(tests, cwd=repository, capture_output=True, check=False).returncode == 0
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=repository, capture_output=True, text=True, check=True
    )
    assert status.stdout == ""


def test_the_example(repository: Path) -> None:
    """In a run of the example each task takes the path that the example announces, and the tests of the repository pass
    in the end.

    Takes 8 s of CPU: eight tasks, each with processes of its own, their unit tests, and a hundred git commands.
    """
    with started(repository) as process:
        assert seen_through(process, repository) == dict.fromkeys(WHOLE, "completed")
    events = read_records(repository)
    check_result(repository)
    again = ["FAILED", "OPEN", "CLAIMED", "IN_PROGRESS", "DONE", "CLOSED"]
    assert states_of(events, "r1#add") == ["OPEN", "CLAIMED", "IN_PROGRESS", *again]
    run = states_of(events, "r1#subtract:run")
    assert run.count("RETRYING") == 2
    assert run[-3:] == ["IN_PROGRESS", "VALIDATING", "COMPLETED"]
    assert states_of(events, "r1#scale") == ["OPEN", "WAITING_FOR_SUBTASKS", "DONE", "CLOSED"]
    assert states_of(events, "r1#manual")[-3:] == ["DONE", "PENDING_APPROVAL", "CLOSED"]
    rejected = next(one for one in events if one.entity_id == "r1#news" and one.event == "verification_rejected")
    assert "calculator/multiply.py" in rejected.reason
    assert states_of(events, "r1") == ["planned", "ready", "executing", "validating", "completed"]
    dossier = repository / ".sdd" / "archive" / "r1.jsonl"
    kept = [json.loads(line) for line in dossier.read_text().splitlines()]
    assert {one["entity_id"] for one in kept if one["entity_type"] == "task"} == {f"r1#{name}" for name in WHOLE}
    assert {one["entity_id"] for one in kept} >= {one.entity_id for one in events if one.entity_type == "run"}
    assert all(earlier["seq"] < later["seq"] for earlier, later in pairwise(kept))


def test_the_example_survives_kills(repository: Path) -> None:
    """When the example is killed twice while a task waits for its approval, the third command completes the run with
    the same result.

    Takes 6 s of CPU, for the whole example; ``tests.crash.workstream`` kills at other moments, drawn at random.
    """
    for _ in range(2):
        waits = waited_for(repository)
        with started(repository) as process:
            if not waits:
                seen_until(process, "approval_requested", "r1#manual")
            process.send_signal(signal.SIGKILL)
    assert waited_for(repository)
    with started(repository) as process:
        approved_by_and_by(process, repository)
        assert set(seen_through(process, repository).values()) == {"completed"}
    read_records(repository)
    check_result(repository)


def seen_until(process: subprocess.Popen[str], event: str, who: str) -> None:
    """Read the output of the run up to the record with this event and entity."""
    assert process.stdout is not None
    for line in process.stdout:
        told = json.loads(line)
        if (told.get("event"), told.get("entity_id")) == (event, who):
            return


def waited_for(repository: Path) -> bool:
    """Return whether a task waited for its approval when the run was killed; the next run does not report that wait
    again."""
    return "PENDING_APPROVAL" in run_command("tree", "--json", cwd=repository).out


def approved_by_and_by(process: subprocess.Popen[str], repository: Path) -> None:
    """Approve the task ``manual`` again and again until the run accepts the approval."""
    until = time.monotonic() + DEADLINE_S
    while not approved(repository):
        assert time.monotonic() < until, "it does not take the approval"
        assert process.poll() is None, "it has ended without the approval"
        time.sleep(0.01)
