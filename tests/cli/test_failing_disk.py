"""``supervisor run`` on a disk that fails during the run, as a user sees it: a real process, a real journal, and
commands from a second terminal.

The full disk is a tmpfs if this machine allows a test to mount one, else a limit on the size of the supervisor's files.
Every wait is for a line of output, a pipe, or a pidfd.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import select
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.cli.test_end_to_end_cli import Run, run, write_plan
from tests.support import CommandOutput, run_command

TMPFS_BYTES = 4 * 2**20
"""Size of the tmpfs: room for many times the size of a new journal (some 300 KiB), but quick to fill."""

TASKS = """
  - id: lead
    agent: scripted
    prompt: |
      @agent sub
        @run echo $$ > roll; exec sleep 3600
      @say went on
  - {id: first, agent: scripted, prompt: "@wait go\\n@say done"}
  - {id: then, agent: sh, prompt: "echo and then", depends_on: [first]}
"""

LIMIT = "see to the disk"
"""Part of the error message when a limit on file sizes is exceeded."""

Trouble = Callable[[Run], Any]
"""Context manager that makes the disk of a run fail during its block."""


@contextmanager
def filled(one: Run) -> Iterator[None]:
    """Fill the disk of the state directory completely during the block."""
    hog = one.state_dir / "hog"
    with hog.open("wb", buffering=0) as file, pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        while True:
            file.write(bytes(65536))
    try:
        yield
    finally:
        hog.unlink()


@contextmanager
def limited(one: Run) -> Iterator[None]:
    """Prevent the files of the supervisor from growing beyond the present size of the journal's log during the
    block."""
    size_bytes = (one.state_dir / "runtime" / "journal.db-wal").stat().st_size
    soft, hard = resource.prlimit(one.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(one.process.pid, resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            resource.prlimit(one.process.pid, resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def locked(one: Run) -> Iterator[None]:
    """Lock the journal during the block, by a transaction of another connection."""
    with closing(apsw.Connection(str(one.state_dir / "runtime" / "journal.db"))) as db:
        db.set_busy_timeout(60_000)  # the supervisor may be in the middle of its own
        db.execute("BEGIN EXCLUSIVE")
        yield
        db.execute("ROLLBACK")


@contextmanager
def mounted(where: Path) -> Iterator[bool]:
    """Mount a small tmpfs at *where* during the block, if this machine allows it; yield whether it does."""
    where.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES},mode=0700", "none", str(where)]
    allowed = subprocess.run(argv, capture_output=True, check=False).returncode == 0
    try:
        yield allowed
    finally:
        if allowed:
            subprocess.run(["umount", "--lazy", str(where)], check=True)


@contextmanager
def running(folder: Path, trouble: Trouble, manager: socket.socket | None = None) -> Iterator[tuple[Run, Trouble, int]]:
    """Run the plan on a disk to which *trouble* can be applied; yield the run, the trouble, and a pidfd of the process
    that a test aborts."""
    os.mkfifo(folder / "roll")
    if manager is not None:
        manager.bind(str(folder / "notify"))
    with ExitStack() as stack:
        if trouble is filled and not stack.enter_context(mounted(folder / "state")):
            trouble = limited
        one = stack.enter_context(run(write_plan(folder, TASKS)))
        victim = os.pidfd_open(pid_on(folder / "roll"))
        stack.callback(os.close, victim)
        one.until(event="tool_started", entity_id="lead/sub:t1", outcome="transition")
        yield one, trouble, victim


def outage_of(one: Run) -> dict[str, Any] | None:
    """Read output up to the next line about the disk; return the outage, or ``None`` if the disk works again."""
    assert one.process.stdout is not None
    for line in one.process.stdout:
        one.seen.append(json.loads(line))
        if "outage" in one.seen[-1]:
            found: dict[str, Any] | None = one.seen[-1]["outage"]
            return found
    raise AssertionError(f"it ended before that: {one.seen[-1:]}")


def second_terminal(one: Run, *arguments: str) -> CommandOutput:
    return run_command(*arguments, "--state-dir", one.state_dir)


def statuses(manager: socket.socket) -> list[str]:
    """Return the status texts that the run has sent to systemd so far."""
    manager.setblocking(False)
    shown = []
    with suppress(BlockingIOError):
        while True:
            shown += [line for line in manager.recv(65536).decode().splitlines() if line.startswith("STATUS=")]
    return [line.removeprefix("STATUS=") for line in shown]


def pid_on(roll: Path) -> int:
    """Return the first process id written to the pipe *roll*."""
    with roll.open() as file:
        return int(file.readline())


@pytest.mark.parametrize(
    ("trouble", "why"),
    [(filled, "make room on its disk"), (locked, "another program holds a lock on it")],
    ids=["a full disk", "a lock"],
)
def test_a_run_outlasts_a_disk_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: Trouble, why: str
) -> None:
    """A run on a failing disk reports the outage to every command and to systemd, refuses messages, still aborts
    sessions and ends their processes, and completes when the disk works again."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        running(tmp_path, trouble, manager) as (one, trouble, victim),
    ):
        why = LIMIT if trouble is limited else why
        with trouble(one):
            (tmp_path / "go").touch()
            told = outage_of(one)
            assert told is not None
            assert why in told["why"]
            listed = second_terminal(one, "ps")
            assert listed.status == 0
            assert "degraded since" in listed.err
            refused = second_terminal(one, "send", "lead", "one more thing")
            assert refused.status == 1
            assert "a message for lead is not taken: degraded since" in refused.err
            looked_at = second_terminal(one, "inspect", "lead")
            assert "session lead: Running" in looked_at.out
            assert "degraded since" in looked_at.err
            aborted = second_terminal(one, "abort", "lead/sub", "--scope", "session", "--within", "1", "--json")
            receipt = aborted.json
            assert select.select([victim], [], [], 0) == ([victim], [], [])
            assert (receipt["survivors"], receipt["nodes"][0]["outcome"]) == (0, "ended")
            assert receipt["killed_at"] is not None
            assert receipt["recorded_at"] is None
            assert why in receipt["outage"]
        assert outage_of(one) is None
        assert one.result() == dict.fromkeys(("lead", "first", "then"), "completed")
        assert one.process.wait(120) == 0
        *_, degraded, recovered, stopping = statuses(manager)
        assert degraded.startswith("degraded since")
        assert why in degraded
        assert (recovered, stopping) == ("running", "closing")
        log = one.process.stderr.read() if one.process.stderr is not None else ""
        assert "the journal cannot be written" in log
        assert "the journal can be written again" in log
        checked = run_command("validate", one.state_dir)
        assert (checked.status, checked.err) == (0, "")


def test_a_run_that_is_ended_on_a_disk_that_fails_says_what_is_not_known(tmp_path: Path) -> None:
    """``stop --now`` of a run on a failing disk ends the run with status 1; all processes end, and the last line says
    that the journal is lost."""
    with running(tmp_path, limited) as (one, trouble, victim):
        with trouble(one):
            (tmp_path / "go").touch()
            told = outage_of(one)
            assert told is not None
            assert LIMIT in told["why"]
            assert second_terminal(one, "stop", "--now").status == 0
            assert select.select([victim], [], [], 60) == ([victim], [], [])
            assert one.process.wait(120) == 1
        assert one.process.stderr is not None
        last = one.process.stderr.read().splitlines()[-1]
        assert "the journal is lost, the run was given up" in last
        assert "the run ended before it could be written again" in last
        assert "it is not known" in last
