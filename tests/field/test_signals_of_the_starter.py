"""Signals as a starter leaves them: ignored in the background of a script, blocked by a server, too early."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from field_kit import Scratch, until

PLAN = """
    agents: {a: {adapter: command, command: [sh, -c, "touch up; until test -e go; do sleep 0.05; done"]}}
    tasks:
      - {id: first, agent: a, prompt: ""}
      - {id: second, agent: a, prompt: "", depends_on: [first]}
"""


def ignoring(number: signal.Signals) -> Callable[[], object]:
    """Return a function for a new process that has a signal ignored, as a shell does for its background."""
    return lambda: signal.signal(number, signal.SIG_IGN)


def blocking(*numbers: signal.Signals) -> Callable[[], object]:
    """Return a function for a new process that blocks signals."""
    return lambda: signal.pthread_sigmask(signal.SIG_BLOCK, numbers)


def test_a_run_in_the_background_of_a_script_goes_on_at_ctrl_c(scratch: Scratch) -> None:
    """A run that was started with SIGINT ignored completes its tasks when the terminal sends a SIGINT to all; SIGTERM
    still drains it."""
    scratch.plan(PLAN)
    run = scratch.start("run", "plan.yaml", preexec_fn=ignoring(signal.SIGINT))
    until((scratch.path / "up").exists)
    run.process.send_signal(signal.SIGINT)
    scratch.write("go", "")
    done = run.wait()
    assert done.status == 0, done.text
    assert "draining" not in done.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_that_the_starter_blocks_are_heard(scratch: Scratch, number: signal.Signals) -> None:
    """A run whose starter has blocked the signals of its end, and that of the end of children, works and can be
    stopped."""
    scratch.plan(PLAN)
    mask = blocking(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
    run = scratch.start("run", "plan.yaml", preexec_fn=mask)
    until((scratch.path / "up").exists)
    run.process.send_signal(number)
    until(lambda: "draining" in run.err)
    scratch.write("go", "")
    assert run.wait().status == 1


def test_a_run_with_blocked_signals_completes(scratch: Scratch) -> None:
    """Without any stop, such a run ends by itself: the ends of its programs are seen."""
    scratch.plan(PLAN)
    scratch.write("go", "")
    mask = blocking(signal.SIGCHLD, signal.SIGTERM)
    done = scratch.run("run", "plan.yaml", preexec_fn=mask)
    assert done.status == 0, done.text


def test_a_reload_that_comes_too_early_does_not_end_the_run(scratch: Scratch) -> None:
    """A SIGHUP before the plan is read is none that ends the process; the run goes on."""
    scratch.plan(PLAN)
    scratch.write("go", "")
    # The plan comes by a pipe: the run waits for it, and has no handler for the signal yet.
    run = scratch.start("run", "-", stdin=-1)
    until(lambda: b"S" in state_of(run.pid) and (scratch.path / ".sdd" / "runtime" / "lock").exists())
    run.process.send_signal(signal.SIGHUP)
    assert run.process.stdin is not None
    run.process.stdin.write((scratch.path / "plan.yaml").read_bytes())
    run.process.stdin.close()
    done = run.wait()
    assert done.status == 0, done.text


def state_of(pid: int) -> bytes:
    """Return the fields behind the name in ``/proc/PID/stat``."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0]
