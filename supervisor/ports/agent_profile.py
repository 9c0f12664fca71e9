"""Configured agents, as sessions use them: a program with the adapter for its protocol, or a function.

The package does not export this module, so that a client which needs only a port does not load the catalogue of agents.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from supervisor.agent_catalogue import NO_QUIRKS, LineMapping, Quirks, is_one_shot
from supervisor.policies.call_processes import AgentPrograms
from supervisor.policies.permissions import PermissionPolicy
from supervisor.policies.retry_reason import may_execute_prompt
from supervisor.policies.text_patterns import COMMON, ReportPattern
from supervisor.ports.agent import AgentOptions

AgentFunction = Callable[[Any], Awaitable[Any]]
"""In-process agent: an async function that is called with its turn (``supervisor.AgentTurn``) and
returns the agent's text, or ``None``."""


class AgentProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Configured agent: a program and the adapter for the program's protocol, or a function."""

    name: str
    adapter: str
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    directory: str = "."
    permissions: PermissionPolicy = PermissionPolicy()
    operates: tuple[str, ...] = ()
    """Operations that the agent may request of the supervisor, beyond those on its own session and the sessions
    below."""
    agent_options: AgentOptions = AgentOptions()
    function: AgentFunction | None = None
    mapping: LineMapping | None = None
    """Meaning of the lines that the program writes, for adapters that need a line mapping."""
    quirks: Quirks = NO_QUIRKS
    known: bool = False
    """Whether the program is an agent of the catalogue."""
    servers: frozenset[str] = frozenset()
    """Names, from the plan, of the programs that the agent keeps running from turn to turn."""
    known_servers: frozenset[str] = frozenset()
    """Names of the language servers of the catalogue, which agents keep, too, and may also run as tools."""
    own_programs: frozenset[str] = frozenset()
    """Names of programs in which the agent itself may run, below its main process."""
    explain_retries: bool | None = None
    """Whether the agent's prompts may tell why a request is tried again; ``None``: unless the adapter is ``command``
    and the command may execute its prompt."""

    tool_timeouts: dict[str, float] = {}
    """Seconds that a tool call of a kind may take, by the kind."""
    max_sessions: int | None = None
    """Largest number of tasks that may be at work with the agent at once; ``None``: no limit."""

    def programs_of(self, pid: int) -> AgentPrograms:
        """Return the names of the programs below the agent's main process *pid* that work on no single call."""
        return AgentPrograms(pid, self.servers, self.own_programs, self.known_servers)

    @property
    def has_model(self) -> bool:
        """Whether the agent is one that works by a model: not a script or a function, nor a command of the user, whose
        exit status is the user's own word."""
        speaks = self.adapter not in ("command", "scripted", "inprocess")
        return self.known or (speaks and self.function is None)

    @property
    def reports(self) -> tuple[ReportPattern, ...]:
        """Patterns of the last words by which the agent reports that its model has failed."""
        return (*self.quirks.reports, COMMON) if self.has_model else self.quirks.reports

    @property
    def one_shot(self) -> bool:
        """Whether the agent is neither woken nor asked, since any message would begin its work anew."""
        return is_one_shot(self.adapter, self.mapping)

    @property
    def explains_retries(self) -> bool:
        """Whether the reason of a retry may be added to the agent's prompts."""
        if self.explain_retries is not None:
            return self.explain_retries
        return self.adapter != "command" or not may_execute_prompt(self.command)
