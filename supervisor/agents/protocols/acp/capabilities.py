"""What an ACP agent says of itself when a conversation is begun: its version, what it can, and what can be set in it.

Read as tolerantly as :mod:`supervisor.agents.protocols.acp.messages` reads: only what we use is declared.
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
        """How a conversation is opened again; ``""``: it cannot be. ``session/resume`` does not tell it again."""
        if self._sessions.resume is not None:
            return "session/resume"
        return "session/load" if self._agent.load_session else ""

    @property
    def queues(self) -> bool:
        """True if another prompt may be given while one is worked on: no word of the protocol, but of a bridge."""
        meta = self._agent.meta
        told = [meta, *meta.values()] if isinstance(meta, dict) else []
        return any(one.get("promptQueueing") is True for one in told if isinstance(one, dict))

    @property
    def ends_calls(self) -> bool:
        """True if it ends one call of its own at our request: an extension of ours, ``_supervisor/tool_call/end``."""
        return self._extends("endCalls")

    @property
    def steers(self) -> bool:
        """True if it takes words within a turn: an extension of ours, ``_supervisor/session/steer``."""
        return self._extends("steer")

    @property
    def takes_up(self) -> bool:
        """True if there is a way to tell it something within a turn."""
        return self.steers or self.queues

    def _extends(self, what: str) -> bool:
        ours = self._agent.meta.get("supervisor") if isinstance(self._agent.meta, dict) else None
        return isinstance(ours, dict) and ours.get(what) is True

    def connects(self, transport: str) -> bool:
        """True if it can use a server of tools over *transport*: stdio always, http and sse if it says so."""
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
        """Its name and version, as far as it gives them."""
        return f"{self.agent_info.name} {self.agent_info.version or ''}".strip() if self.agent_info else ""


class Mode(JsonRpcMessage):
    id: str


class Modes(JsonRpcMessage):
    current_mode_id: str
    available_modes: tuple[Mode, ...]


class Model(JsonRpcMessage):
    model_id: str


class Models(JsonRpcMessage):
    """The models to choose from. A draft of the protocol that agents had before ``configOptions``."""

    current_model_id: str
    available_models: tuple[Model, ...]


class ConfigChoice(JsonRpcMessage):
    """A value, or a group of them."""

    value: str = ""
    options: tuple[ConfigChoice, ...] = ()


class ConfigOption(JsonRpcMessage):
    id: str
    category: str | None = None
    current_value: Any = None
    options: tuple[ConfigChoice, ...] | None = None

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that it may have; none, where that is not told."""
        return tuple(one.value for each in self.options or () for one in each.options or (each,))


class Settings(JsonRpcMessage):
    """What can be set in a session, and how it stands: part of the answers that open one, or change it."""

    modes: Modes | None = None
    models: Models | None = None
    config_options: tuple[ConfigOption, ...] | None = None


class SessionOpened(Settings, kw_only=True):
    session_id: str
