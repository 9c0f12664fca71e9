"""The doors that one supervisor goes through to its world, put into one value.

The composition root fills it with the real ones, the simulator with simulated ones; everything behind the doors is the
same code.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import NamedTuple

from supervisor.ports import AgentFiles, Caller, Journal, Origin, TranscriptSink, Upkeep, WallClock, Workspace
from supervisor.runtime.availability import RetryingProcessHost

__all__ = ["Dependencies"]


def _operator(_connection: socket.socket, pid: int) -> Caller:
    return Caller(Origin.OPERATOR, pid)


class Dependencies(NamedTuple):
    """What a supervisor is made of. ``seed`` is what its random delays are drawn from (``None``: a new one)."""

    journal: Journal
    processes: RetryingProcessHost
    workspace: Workspace
    files: AgentFiles
    wall: WallClock
    transcript_of: Callable[[str], TranscriptSink]
    """The transcript of a session, by its id."""
    seed: int | None = None
    workdir: str = "."
    """Where agents work that are not configured to work elsewhere."""
    state_dir: str = ""
    """Where another process can reach the supervisor; nowhere without one."""
    caller_at: Callable[[socket.socket, int], Caller] = _operator
    """Who is at the other end of a connection, given the pid that the kernel names; where no program is started,
    nobody is a program of ours."""
    upkeep: Upkeep | None = None
    """What keeps the journal small; ``None``: it grows."""
