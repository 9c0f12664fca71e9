"""Open a conversation with an ACP agent: introduction, login, session, and the settings that the plan asks for.

The handshake is a generator: it yields one request at a time, is resumed with the response, and returns the session's
id. A request that cannot be fulfilled ends the handshake with an error that lists the possible values. A setting is
looked up among the values that the agent offers before it is sent, because agents answer unknown values in many ways,
some of them with a success. The module begins with the messages in which an agent describes itself and its settings.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Raw

from supervisor.agent_catalogue import agent_called, catalogue
from supervisor.agents.protocols.acp import messages
from supervisor.agents.protocols.json_rpc import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    UNGUARDED,
    ConfigurationRefused,
    JsonRpcMessage,
    ProtocolError,
    RpcError,
    check_not_held,
    read,
)
from supervisor.ports import AgentOptions, McpServer


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
    def reopens(self) -> tuple[str, ...]:
        """Names of the methods that open an earlier conversation again, the best first. ``session/resume`` does not
        repeat the earlier messages, ``session/load`` does."""
        resumes = ("session/resume",) if self._sessions.resume is not None else ()
        return (*resumes, "session/load") if self._agent.load_session else resumes

    @property
    def queues(self) -> bool:
        """True if the agent accepts another prompt during a turn: an extension of Claude's ACP bridge
        (``promptQueueing``)."""
        meta = self._agent.meta
        places = [meta, *meta.values()] if isinstance(meta, dict) else []
        return any(one.get("promptQueueing") is True for one in places if isinstance(one, dict))

    @property
    def ends_calls(self) -> bool:
        """True if the agent can end one of its own calls on request: our extension ``_supervisor/tool_call/end``."""
        return self._extends("endCalls")

    @property
    def steers(self) -> bool:
        """True if the agent accepts messages within a turn: our extension ``_supervisor/session/steer``."""
        return self._extends("steer")

    @property
    def takes_up(self) -> bool:
        """True if a message can reach the agent within a turn, by steering or by a queued prompt."""
        return self.steers or self.queues

    def _extends(self, what: str) -> bool:
        ours = self._agent.meta.get("supervisor") if isinstance(self._agent.meta, dict) else None
        return isinstance(ours, dict) and ours.get(what) is True

    def connects(self, transport: str) -> bool:
        """Return whether the agent can use a tool server over *transport*: stdio always, http and sse if the agent
        reports this capability."""
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
        """Name and version of the agent, as far as the agent reports them."""
        return f"{self.agent_info.name} {self.agent_info.version or ''}".strip() if self.agent_info else ""


class Mode(JsonRpcMessage):
    id: str


class Modes(JsonRpcMessage):
    current_mode_id: str
    available_modes: tuple[Mode, ...]


class Model(JsonRpcMessage):
    model_id: str


class Models(JsonRpcMessage):
    """Models that the session may use: a draft of the protocol from before ``configOptions``, which some agents still
    use."""

    current_model_id: str
    available_models: tuple[Model, ...]


class ConfigChoice(JsonRpcMessage):
    """Value that a config option may have, or a group of such values."""

    value: str = ""
    options: tuple[ConfigChoice, ...] = ()


class ConfigOption(JsonRpcMessage):
    id: str
    category: str | None = None
    current_value: Any = None
    options: tuple[ConfigChoice, ...] | None = None

    @property
    def choices(self) -> tuple[str, ...]:
        """Values that the option may have; empty if the agent does not list the values."""
        return tuple(one.value for each in self.options or () for one in each.options or (each,))


class Settings(JsonRpcMessage):
    """Settings of a session and their current values: part of the responses that open a session or change a setting."""

    modes: Modes | None = None
    models: Models | None = None
    config_options: tuple[ConfigOption, ...] | None = None


class SessionOpened(Settings, kw_only=True):
    session_id: str


_CLIENT: Final = {"name": "supervisor-runtime", "version": "0.1.0"}
_CAPABILITIES: Final = {
    "fs": {"readTextFile": True, "writeTextFile": True},
    "terminal": True,
    "session": {"compaction": {}},
    "_meta": {"supervisor": {"sessions": True}},
}


class HandshakeRequest(NamedTuple):
    """Next request of the handshake; the handshake's generator is resumed with the response to this request."""

    method: str
    params: dict[str, Any]


_T = TypeVar("_T")
HandshakeSteps: TypeAlias = Generator[HandshakeRequest, Raw | RpcError, _T]


class Handshake:
    """State of one handshake. ``agent`` is the agent's description of itself; ``loading`` and ``lost`` are about a
    resumed session."""

    def __init__(self, cwd: str, resume_id: str | None, agent_options: AgentOptions) -> None:
        self.agent = Initialized(protocol_version=messages.PROTOCOL_VERSION)
        self.loading = resume_id
        """Id of the conversation that is being opened again; the agent's updates about this conversation repeat what
        was reported before."""
        self.lost = ""
        """Reason why the earlier conversation could not be opened again, or ``""``."""
        self._cwd = cwd
        self._agent_options = agent_options
        self._offered = Settings()

    def script(self) -> HandshakeSteps[str]:
        """Run the whole handshake as a generator of requests; return the session's id.

        Raises:
            ProtocolError: (in the caller that resumes the generator) the agent refuses, or lacks a requested setting.
        """
        hello = {
            "protocolVersion": messages.PROTOCOL_VERSION,
            "clientCapabilities": _CAPABILITIES,
            "clientInfo": _CLIENT,
        }
        answer = yield from self._with_login(HandshakeRequest("initialize", hello))
        self.agent = _check_version(
            read(_require_success(answer, "open a session"), Initialized, "the answer to initialize")
        )
        session_params = {"cwd": self._cwd, "mcpServers": [*map(self._server, self._agent_options.mcp_servers)]}
        session = (yield from self._reopen(session_params)) or (yield from self._new(session_params))
        yield from self._apply_settings(session)
        if self._agent_options.guarded:
            self._check_asking()
        self.loading = None
        return session

    # ------------------------------------------------------------------------------------------ the session
    def _reopen(self, session_params: dict[str, Any]) -> HandshakeSteps[str]:
        """Open the earlier conversation again, in every way that the agent offers, and return its id. Return ``""`` if
        there is none or if that fails, so that the caller opens a new conversation."""
        if self.loading is None:
            return ""
        session, reasons = self.loading, []
        for method in self.agent.reopens:
            answer = yield from self._with_login(HandshakeRequest(method, {"sessionId": session, **session_params}))
            if isinstance(answer, Raw):
                self._record_settings(answer, method)
                return session
            check_not_held(answer)
            reasons.append(f"{answer.text} (code {answer.code})")
        self.lost = "; ".join(dict.fromkeys(reasons)) or "the agent cannot load conversations any more"
        self.loading = None
        return ""

    def _new(self, session_params: dict[str, Any]) -> HandshakeSteps[str]:
        answer = _require_success(
            (yield from self._with_login(HandshakeRequest("session/new", session_params))), "open a session"
        )
        self._record_settings(answer, "session/new")
        return read(answer, SessionOpened, "the answer to session/new").session_id

    def _with_login(self, request: HandshakeRequest) -> HandshakeSteps[Raw | RpcError]:
        """Send *request* and return the response. If the agent demands a login and the plan names a login method, log
        in and send the request again."""
        answer = yield request
        if isinstance(answer, Raw) or answer.code != messages.AUTHENTICATION_NEEDED:
            return answer
        login = yield HandshakeRequest("authenticate", {"methodId": self._login_method(answer)})
        if isinstance(login, RpcError):
            raise ConfigurationRefused(
                f"the agent refused to log in by {self._agent_options.auth!r}: {login.text} (code {login.code})"
            )
        answer = yield request
        if isinstance(answer, RpcError) and answer.code == messages.AUTHENTICATION_NEEDED:
            raise ConfigurationRefused(
                f"the agent still needs authentication after a login by {self._agent_options.auth!r}: {answer.text}"
            )
        return answer

    def _login_method(self, why: RpcError) -> str:
        methods = {one.id: one.name or one.id for one in self.agent.auth_methods or ()}
        if self._agent_options.auth in methods:
            return self._agent_options.auth
        said = f"the agent needs authentication: {why.text}: log in with the agent's own program, then start it again"
        if not methods:
            raise ConfigurationRefused(said)
        ways = ", ".join(f"{method!r} ({name})" for method, name in methods.items())
        unknown = f"it does not offer {self._agent_options.auth!r}; " if self._agent_options.auth else ""
        raise ConfigurationRefused(
            f"{said}, or let the supervisor log in ({unknown}`auth:` of the plan's agent may be {ways})"
        )

    def _server(self, server: McpServer) -> dict[str, Any]:
        """Return the description of a tool server in the format of the protocol."""
        transport = server.transport if server.url else "stdio"
        if not self.agent.connects(transport):
            why = f"the agent {self.agent.info or 'in use'} does not support the transport {transport}"
            raise ConfigurationRefused(f"mcp_servers: {server.name}: {why}; give a command, or another transport")
        if server.url:
            return {"type": transport, "name": server.name, "url": server.url, "headers": _pairs(server.headers)}
        program, *args = server.command
        return {"name": server.name, "command": program, "args": args, "env": _pairs(server.env)}

    # ------------------------------------------------------------------------------------------ settings
    def _record_settings(self, answer: Raw, method: str) -> None:
        """Store the settings that a response lists, if the response lists any."""
        if bytes(answer) != b"null":
            self._offered = read(answer, Settings, f"the answer to {method}")

    def _apply_settings(self, session: str) -> HandshakeSteps[None]:
        if self._agent_options.mode:
            yield from self._set_mode(session, self._agent_options.mode)
        if self._agent_options.model:
            yield from self._set_model(session, self._agent_options.model)
        for option_id, value in self._agent_options.options.items():
            known = {one.id: one for one in self._offered.config_options or ()}
            _check_offered("options", option_id, known)
            yield from self._set(session, known[option_id], value, f"options: {option_id}")

    def _set_mode(self, session: str, mode: str) -> HandshakeSteps[None]:
        modes = self._offered.modes
        if modes is None or self._mode_option is not None:
            yield from self._set(session, self._of_category("mode"), mode, "mode")
            return
        _check_offered("mode", mode, [one.id for one in modes.available_modes])
        if mode != modes.current_mode_id:
            answer = yield HandshakeRequest("session/set_mode", {"sessionId": session, "modeId": mode})
            _require_success(answer, f"go into the mode {mode!r}")
            modes.current_mode_id = mode

    @property
    def _mode_option(self) -> ConfigOption | None:
        """The mode as a config option, if the agent offers it so: the answer to a change of an option reports the
        option's value, while the answer to ``session/set_mode`` is empty."""
        return next((one for one in self._offered.config_options or () if one.category == "mode"), None)

    def _check_asking(self) -> None:
        """Refuse an agent of the catalogue that reports a mode in which it acts without asking, or of which nobody can
        tell whether it asks. The agent is known by its own name, whatever program the plan starts."""
        info = self.agent.agent_info
        agent = (agent_called(info.name) if info is not None else None) or catalogue().get(self._agent_options.started)
        variant = next((one for one in agent.ways if one.adapter == "acp"), None) if agent is not None else None
        if agent is None or variant is None:
            return
        modes, needed = agent.asking_modes, ", ".join(variant.asking.env) if variant.asking is not None else ""
        option, offered = self._mode_option, self._offered.modes
        mode = option.current_value if option is not None else offered.current_mode_id if offered is not None else None
        why = fix = ""
        if modes and mode is None:
            why, fix = "it does not report its mode, so that nobody can check it", "install another version"
        elif modes and mode not in modes:
            why, fix = f"it is in the mode {mode!r}", f"say mode: {modes[0]}"
        elif needed and agent.name != self._agent_options.started:
            why = f"it asks only with the variable {needed}, and what the plan starts may not pass that on"
            fix = f"say known: {agent.name}"
        if why:
            who = f"the agent {self.agent.info or agent.title} may act without asking"
            raise ConfigurationRefused(f"{who}, {UNGUARDED[0]}: {why}; {fix}, {UNGUARDED[1]}")

    def _set_model(self, session: str, model: str) -> HandshakeSteps[None]:
        """Select the model. An agent may list models in two ways; if it uses the newer way, a config option, this way
        is used."""
        models = self._offered.models
        if models is None or any(one.category == "model" for one in self._offered.config_options or ()):
            yield from self._set(session, self._of_category("model"), model, "model")
            return
        _check_offered("model", model, [one.model_id for one in models.available_models])
        if model != models.current_model_id:
            answer = yield HandshakeRequest("session/set_model", {"sessionId": session, "modelId": model})
            _require_success(answer, f"use the model {model!r}")

    def _of_category(self, category: str) -> ConfigOption:
        for one in self._offered.config_options or ():
            if one.category == category:
                return one
        raise ConfigurationRefused(
            f"{category}: the agent {self.agent.info} does not let clients choose it; remove it".replace("  ", " ")
        )

    def _set(self, session: str, option: ConfigOption, value: str, field: str) -> HandshakeSteps[None]:
        if option.choices:
            _check_offered(field, value, option.choices)
        if value != option.current_value:
            answer = yield HandshakeRequest(
                "session/set_config_option", {"sessionId": session, "configId": option.id, "value": value}
            )
            self._record_settings(
                _require_success(answer, f"set {option.id} to {value!r}"), "session/set_config_option"
            )


def _require_success(answer: Raw | RpcError, what: str) -> Raw:
    if isinstance(answer, RpcError):
        refusal = ConfigurationRefused if answer.code in (METHOD_NOT_FOUND, INVALID_PARAMS) else ProtocolError
        raise refusal(f"the agent refused to {what}: {answer.text} (code {answer.code})")
    return answer


def _check_version(agent: Initialized) -> Initialized:
    """Return *agent* if the agent uses our version of the protocol; otherwise raise ``ConfigurationRefused``."""
    theirs, ours = agent.protocol_version, messages.PROTOCOL_VERSION
    if theirs != ours:
        what = f"the agent speaks ACP version {theirs}; this supervisor speaks version {ours}"
        raise ConfigurationRefused(f"{what}: install a version of the agent that speaks ACP {ours}")
    return agent


def _check_offered(field: str, wished: str, offered: Iterable[str]) -> None:
    names = list(offered)
    if wished not in names:
        raise ConfigurationRefused(
            f"{field}: the agent does not offer {wished!r}; use one of: {', '.join(names) or 'none'}"
        )


def _pairs(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]
