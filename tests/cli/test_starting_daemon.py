"""Commands for a daemon that is starting: it holds the state directory, and has no control socket yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.cli import submit
from supervisor.cli.follow import has_daemon
from supervisor.control.error_messages import BadInput, NotRunning
from supervisor.control.ping import Unreachable
from supervisor.control.requests import Submit
from supervisor.journal.statedir import StateDir

REQUEST = Submit(plan="tasks: []", directory="/")


def test_a_daemon_that_is_starting_is_a_daemon(tmp_path: Path) -> None:
    """``supervisor run`` submits its plan to a daemon that is starting, and starts no supervisor of its own. The run of
    a plan, and a directory that nobody holds, are no daemon."""
    state = StateDir.open(tmp_path / "s")
    assert not has_daemon(state.root)
    with state.lock(starting=True):
        assert not has_daemon(state.root)
    with state.lock(daemon=True):
        assert has_daemon(state.root)
    assert not has_daemon(tmp_path / "nothing")


def test_a_submission_waits_for_a_daemon_that_is_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While the daemon has no socket, a submission is sent again, and the wait is said once. If the daemon is gone
    then, the message says how to start one; what is no daemon is not waited for."""
    state = StateDir.open(tmp_path / "s")
    monkeypatch.setattr(submit, "LOOK_AGAIN_S", 0.0)
    errors: list[Exception] = [Unreachable("failed", "no socket"), Unreachable("failed", "no socket")]

    def send(*arguments: Any) -> dict[str, Any]:
        if errors:
            raise errors.pop(0)
        return {"run": "r1"}

    monkeypatch.setattr(submit, "send_request", send)
    with state.lock(daemon=True):
        assert submit.send_to_daemon(state.root, REQUEST) == {"run": "r1"}
        assert capsys.readouterr().err.count("is starting or ending: waiting for it") == 1
        errors += [Unreachable("failed", "no socket"), NotRunning(state.control_socket)]
        with pytest.raises(BadInput, match="no daemon runs on"):
            submit.send_to_daemon(state.root, REQUEST)
    with state.lock():
        errors.append(Unreachable("failed", "no socket"))
        with pytest.raises(Unreachable, match="no socket"):
            submit.send_to_daemon(state.root, REQUEST)
