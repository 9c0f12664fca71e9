"""Ports of one supervisor, in one value.

The composition root fills it with real ports, the simulator with simulated ones; the code behind them is the same.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import NamedTuple

from supervisor.ports import AgentFiles, Archiver, Caller, Journal, Origin, TranscriptSink, WallClock, Workspace
from supervisor.runtime.availability import RetryingProcessHost


def _operator(_connection: socket.socket, pid: int) -> Caller:
    return Caller(Origin.OPERATOR, pid)


class Dependencies(NamedTuple):
    """Ports of a supervisor. ``seed`` is the seed of its random delays (``None``: a new one)."""

    journal: Journal
    processes: RetryingProcessHost
    workspace: Workspace
    files: AgentFiles
    wall: WallClock
    transcript_of: Callable[[str], TranscriptSink]
    """Opens the transcript of a session, by the session's id."""
    seed: int | None = None
    workdir: str = "."
    """Default directory of agents."""
    state_dir: str = ""
    """Directory of the control socket; ``""``: no other process can reach the supervisor."""
    caller_at: Callable[[socket.socket, int], Caller] = _operator
    """Identifies the caller at the other end of a control connection, given the pid that the kernel names. By default
    every caller is the operator: a supervisor that starts no program has no agent that could call."""
    upkeep: Archiver | None = None
    """Compaction of the journal; ``None``: the journal grows."""
