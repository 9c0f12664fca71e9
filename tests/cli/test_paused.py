"""A supervisor process that is suspended (SIGSTOP) for longer than every deadline, and then continues.

Messages that the agents sent meanwhile must be handled before any deadline is judged. A test waits for facts only: a
process state in ``/proc``, a file that an agent wrote; and for the clock where the length of the pause itself is
tested.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from test_end_to_end_cli import BACKENDS, run, said

from supervisor.cli.commands import supervisor
from supervisor.cli.invocation import execute

TURN_S = 4.0
PAUSE_S = TURN_S + 2.0
PLAN = f"""
max_sessions: 3
limits: {{turn_timeout_s: {TURN_S}, spawn_deadline_s: {TURN_S}, grace_s: 1.0, max_total_errors: 1}}
policy: {{ladder: {{request_s: 0.5, cancel_s: 0.5, terminate_s: 0.5, kill_s: 0.5}}}}
agents:
  scripted: {{adapter: scripted}}
  sh: {{adapter: command, command: [sh, -eu]}}
tasks:
  - {{id: says, agent: sh, prompt: "echo up; while test ! -e go; do sleep 0.01; done; echo down; touch says"}}
  - {{id: runs, agent: scripted, prompt: "@run while test ! -e go; do sleep 0.01; done; touch runs\\n@say it ran"}}
  - {{id: hangs, agent: sh, prompt: "echo up; exec sleep 3600", max_retries: 0}}
"""


def stop(pid: int) -> None:
    """Suspend the process *pid*, and wait until it is suspended."""
    os.kill(pid, signal.SIGSTOP)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        os.sched_yield()


def written(*paths: Path) -> None:
    """Wait until all *paths* exist."""
    while not all(path.exists() for path in paths):
        os.sched_yield()


def began(event: dict[str, Any]) -> bool:
    """Return whether a record says that a turn is at work: TOOL_USE for the turn that runs a tool, RUNNING for the
    others."""
    what = "TOOL_USE" if event.get("entity_id", "").startswith("runs") else "RUNNING"
    return bool(event.get("entity_type") == "turn" and event["to_status"] == what)


def ended(event: dict[str, Any]) -> bool:
    """Return whether a record is the transition that decides a turn: to FAILED or COMPLETING."""
    moved = event.get("outcome") == "transition" and event["from_status"] != event["to_status"]
    return bool(moved and event["entity_type"] == "turn" and event["to_status"] in ("FAILED", "COMPLETING"))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="what state a process is in is read in /proc")
@BACKENDS
def test_a_pause_longer_than_every_deadline_costs_nobody_his_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], backend: str
) -> None:
    """After a pause longer than every deadline, a turn that completed during the pause is completed, a turn that can
    complete does, and a hanging turn times out once."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN)
    with run(plan, "--backend", backend) as one:
        while sum(began(event) for event in one.seen) < 3:
            one.until(entity_type="turn", outcome="transition")
        stop(one.process.pid)
        resumed_at = time.monotonic() + PAUSE_S
        (tmp_path / "go").touch()
        written(tmp_path / "says", tmp_path / "runs")
        time.sleep(max(0.0, resumed_at - time.monotonic()))
        one.signal(signal.SIGCONT)
        assert "the process was paused" in said(one)
        assert one.failed() == {"says": "completed", "runs": "completed", "hangs": "failed"}
    ends = [event["entity_id"] for event in one.seen if ended(event)]
    assert sorted(ends) == ["hangs:t1", "runs:t1", "says:t1"]
    assert execute(supervisor, ["validate", str(one.state_dir)]) == 0, capsys.readouterr()
