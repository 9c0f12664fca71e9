"""Messages in which an ACP agent describes itself at the start: version, capabilities, and settings that can be
changed.

Only the fields that we use are declared; all other fields are ignored
(:mod:`supervisor.agents.protocols.acp.messages`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from supervisor.agents.protocols.json_rpc import JsonRpcMessage

__all__ = [
    "AgentCapabilities",
    "AuthMethod",
    "ConfigChoice",
    "ConfigOption",
    "Implementation",
    "Initialized",
    "McpCapabilities",
    "Mode",
    "Model",
    "Models",
    "Modes",
    "SessionCapabilities",
    "SessionOpened",
    "Settings",
]


class Implementation(JsonRpcMessage):
    name: str
    version: str | None = None


class SessionCapabilities(JsonRpcMessage):
    close: dict[str, Any] | None = None
    resume: dict[str, Any] | None = None


class McpCapabilities(JsonRpcMessage):
    http: bool | None = None
    sse: bool | None = None


class AgentCapabilities(JsonRpcMessage):
    load_session: bool | None = None
    session_capabilities: SessionCapabilities | None = None
    mcp_capabilities: McpCapabilities | None = None
    meta: Any = msgspec.field(default=None, name="_meta")


class AuthMethod(JsonRpcMessage):
    id: str
    name: str | None = None


class Initialized(JsonRpcMessage):
    protocol_version: int
    agent_capabilities: AgentCapabilities | None = None
    agent_info: Implementation | None = None
    auth_methods: tuple[AuthMethod, ...] | None = None

    @property
    def closable(self) -> bool:
        """True if the agent offers ``session/close``."""
        return self._sessions.close is not None

    @property
    def reopens(self) -> str:
        """Method that opens an earlier conversation again, or ``""``. ``session/resume`` does not repeat the
        conversation."""
        if self._sessions.resume is not None:
            return "session/resume"
        return "session/load" if self._agent.load_session else ""

    @property
    def queues(self) -> bool:
        """True if the agent takes another prompt during a turn: an extension of the Claude bridge
        (``promptQueueing``)."""
        meta = self._agent.meta
        told = [meta, *meta.values()] if isinstance(meta, dict) else []
        return any(one.get("promptQueueing") is True for one in told if isinstance(one, dict))

    @property
    def ends_calls(self) -> bool:
        """True if the agent can end one of its own calls: our extension ``_supervisor/tool_call/end``."""
        return self._extends("endCalls")

    @property
    def steers(self) -> bool:
        """True if the agent takes messages within a turn: our extension ``_supervisor/session/steer``."""
        return self._extends("steer")

    @property
    def takes_up(self) -> bool:
        """True if a message can reach the agent within a turn, by steering or by a queued prompt."""
        return self.steers or self.queues

    def _extends(self, what: str) -> bool:
        ours = self._agent.meta.get("supervisor") if isinstance(self._agent.meta, dict) else None
        return isinstance(ours, dict) and ours.get(what) is True

    def connects(self, transport: str) -> bool:
        """Return whether the agent can use a tool server over *transport*: stdio always, http and sse if the agent says
        so."""
        offered = self._agent.mcp_capabilities or McpCapabilities()
        return {"http": bool(offered.http), "sse": bool(offered.sse)}.get(transport, True)

    @property
    def _agent(self) -> AgentCapabilities:
        return self.agent_capabilities or AgentCapabilities()

    @property
    def _sessions(self) -> SessionCapabilities:
        return self._agent.session_capabilities or SessionCapabilities()

    @property
    def info(self) -> str:
        """Name and version of the agent, as far as given."""
        return f"{self.agent_info.name} {self.agent_info.version or ''}".strip() if self.agent_info else ""


class Mode(JsonRpcMessage):
    id: str


class Modes(JsonRpcMessage):
    current_mode_id: str
    available_modes: tuple[Mode, ...]


class Model(JsonRpcMessage):
    model_id: str


class Models(JsonRpcMessage):
    """Models to choose from: a draft of the protocol from before ``configOptions``, which agents still use."""

    current_model_id: str
    available_models: tuple[Model, ...]


class ConfigChoice(JsonRpcMessage):
    """A value, or a group of values."""

    value: str = ""
    options: tuple[ConfigChoice, ...] = ()


class ConfigOption(JsonRpcMessage):
    id: str
    category: str | None = None
    current_value: Any = None
    options: tuple[ConfigChoice, ...] | None = None

    @property
    def choices(self) -> tuple[str, ...]:
        """Values that the option may have; empty if the agent does not list them."""
        return tuple(one.value for each in self.options or () for one in each.options or (each,))


class Settings(JsonRpcMessage):
    """Settings of a session and their current values: part of the responses that open a session or change a setting."""

    modes: Modes | None = None
    models: Models | None = None
    config_options: tuple[ConfigOption, ...] | None = None


class SessionOpened(Settings, kw_only=True):
    session_id: str
