"""Ports of one supervisor, in one value.

The composition root supplies real ports, the simulator supplies simulated ports; the code that uses the ports is the
same.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from supervisor.ports import (
    AgentFiles,
    Archiver,
    Caller,
    Journal,
    Origin,
    TranscriptSink,
    UnidentifiedProcess,
    WallClock,
    Workspace,
)
from supervisor.ports.notices import NoticePort
from supervisor.runtime.availability import RetryingProcessHost


def _operator(_connection: socket.socket, pid: int) -> Caller:
    return Caller(Origin.OPERATOR, pid)


class Dependencies(NamedTuple):
    """Ports of a supervisor. ``seed`` is the seed of the supervisor's random delays (``None``: a new seed)."""

    journal: Journal
    processes: RetryingProcessHost
    workspace: Workspace
    files: AgentFiles
    wall: WallClock
    transcript_of: Callable[[str], TranscriptSink]
    """Function that opens the transcript of a session, given the session's id."""
    seed: int | None = None
    workdir: str = "."
    """Default directory of agents."""
    state_dir: str = ""
    """State directory with the control socket; ``""`` if no other process can reach the supervisor."""
    caller_at: Callable[[socket.socket, int], Caller] = _operator
    """Function that identifies the caller at the other end of a control connection, given the pid that the operating
    system reports. By default every caller is the operator: a supervisor that starts no program has no agent that could
    call."""
    unidentified: Callable[[], tuple[UnidentifiedProcess, ...]] = tuple
    """Function that lists the running processes of unknown origin, which may have escaped from an agent."""
    watch_processes: Callable[[], Coroutine[Any, Any, None]] | None = None
    """Loop that notices at once what happens to the processes that start programs; ``None``: there are none."""
    notices: NoticePort | None = None
    """Port by which notices are sent; ``None``: nobody is told."""
    upkeep: Archiver | None = None
    """Service that compacts the journal; ``None``: the journal grows without bound."""
