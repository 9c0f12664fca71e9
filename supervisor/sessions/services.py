"""Parts of a supervisor that the entities of all its sessions use."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.ports import Outcome, Workspace
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.sessions.approval_queue import ApprovalQueue
from supervisor.sessions.connection import Connection
from supervisor.sessions.live_session import LiveSession
from supervisor.sessions.setup import Setups
from supervisor.sessions.termination import Background

CLEANUP_S = 5.0
"""Default of ``SessionServices.cleanup_s``, in seconds."""

MakeConnection = Callable[[LiveSession, str, int, str], Connection]
"""Function that makes the connection to a session's next agent: (session, agent id, incarnation, prompt)."""


class SessionServices:
    """Parts of one supervisor that its sessions and turns use when they perform their effects.

    Args:
        workspace: prepares the directories of sessions.
        approvals: queue of permission requests for a human.
        reply: called with (request id, outcome) when a request is complete.
        setups: agents and settings of the supervisor, which are replaced when they are loaded again, and those of runs.
    """

    make_connection: MakeConnection
    """Function that makes the connection to an agent. Set before the first session begins; no argument, since an agent
    may start child sessions, which use this object."""

    def __init__(
        self,
        registry: EntityRegistry,
        background: Background,
        workspace: Workspace,
        approvals: ApprovalQueue,
        reply: Callable[[str, Outcome], None],
        setups: Setups,
    ) -> None:
        self.registry = registry
        self.background = background
        self.workspace = workspace
        self.approvals = approvals
        self.reply = reply
        self.setups = setups
        self.last_requests: frozenset[str] | None = None
        """Ids of the requests that were in progress when a drain began; ``None`` before."""
        self.cleanup_s = CLEANUP_S
        """Time budget, in seconds, for the clean-up of a turn."""
