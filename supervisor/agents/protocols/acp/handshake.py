"""How a conversation with an ACP agent is begun: who we are, its login, the session, and what the plan wishes of it.

A script of requests: each is made when the one before has been answered, and its last word is the session. What cannot
be had ends it with an error that names what there is. A wish is looked up among what the agent offers before it is
sent, since agents answer unknown names in many ways, some of them with a success.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from msgspec import Raw

import supervisor.agents.protocols.acp.capabilities as offers
import supervisor.agents.protocols.acp.messages as wire
from supervisor.agents.protocols.acp.messages import RpcError, WireError
from supervisor.ports import AgentOptions, McpServer

__all__ = ["Opening", "Request", "Script"]

_CLIENT: Final = {"name": "supervisor-runtime", "version": "0.1.0"}
_CAPABILITIES: Final = {
    "fs": {"readTextFile": True, "writeTextFile": True},
    "terminal": True,
    "session": {"compaction": {}},
    "_meta": {"supervisor": {"sessions": True}},
}


class Request(NamedTuple):
    """What is asked for next; the answer is sent back into the script."""

    method: str
    params: dict[str, Any]


_T = TypeVar("_T")
Script: TypeAlias = Generator[Request, Raw | RpcError, _T]


class Opening:
    """One opening. ``agent`` and ``session`` are known as soon as they are told."""

    def __init__(self, cwd: str, resume_id: str | None, wishes: AgentOptions) -> None:
        self.agent = offers.Initialized(protocol_version=wire.PROTOCOL_VERSION)
        self.loading = resume_id
        """The conversation that is to be opened again: what the agent tells of it meanwhile has been heard before."""
        self.lost = ""
        """Why the conversation that was to be opened again could not be."""
        self._cwd = cwd
        self._wishes = wishes
        self._offered = offers.Settings()

    def script(self) -> Script[str]:
        """All of it; its result is the session's id.

        Raises:
            WireError: (into whoever runs it) the agent refuses, or has not what is wished for.
        """
        hello = {"protocolVersion": wire.PROTOCOL_VERSION, "clientCapabilities": _CAPABILITIES, "clientInfo": _CLIENT}
        answer = yield from self._let_in(Request("initialize", hello))
        self.agent = _spoken(
            wire.read(_granted(answer, "open a session"), offers.Initialized, "the answer to initialize")
        )
        place = {"cwd": self._cwd, "mcpServers": [*map(self._server, self._wishes.mcp_servers)]}
        session = (yield from self._reopen(place)) or (yield from self._new(place))
        yield from self._settle(session)
        self.loading = None
        return session

    # ------------------------------------------------------------------------------------------ the session
    def _reopen(self, place: dict[str, Any]) -> Script[str]:
        """Go on in the conversation of that name; ``""`` where it is lost, then the work goes on in a new one."""
        if self.loading is None:
            return ""
        session, why = self.loading, "the agent cannot load conversations any more"
        if self.agent.reopens:
            answer = yield from self._let_in(Request(self.agent.reopens, {"sessionId": session, **place}))
            if isinstance(answer, Raw):
                self._hear(answer, self.agent.reopens)
                return session
            why = f"{answer.text} (code {answer.code})"
        self.lost, self.loading = why, None
        return ""

    def _new(self, place: dict[str, Any]) -> Script[str]:
        answer = _granted((yield from self._let_in(Request("session/new", place))), "open a session")
        self._hear(answer, "session/new")
        return wire.read(answer, offers.SessionOpened, "the answer to session/new").session_id

    def _let_in(self, request: Request) -> Script[Raw | RpcError]:
        """The answer to *request*: who is not let in logs in, where the plan says how, and asks again."""
        answer = yield request
        if isinstance(answer, Raw) or answer.code != wire.AUTHENTICATION_NEEDED:
            return answer
        login = yield Request("authenticate", {"methodId": self._way_in(answer)})
        if isinstance(login, RpcError):
            raise WireError(f"the agent refused to log in by {self._wishes.auth!r}: {login.text} (code {login.code})")
        answer = yield request
        if isinstance(answer, RpcError) and answer.code == wire.AUTHENTICATION_NEEDED:
            raise WireError(
                f"the agent needs authentication, also after a login by {self._wishes.auth!r}: {answer.text}"
            )
        return answer

    def _way_in(self, why: RpcError) -> str:
        methods = {one.id: one.name or one.id for one in self.agent.auth_methods or ()}
        if self._wishes.auth in methods:
            return self._wishes.auth
        said = f"the agent needs authentication: {why.text}: log in with the agent's own program, then start it again"
        if not methods:
            raise WireError(said)
        ways = ", ".join(f"{method!r} ({name})" for method, name in methods.items())
        unknown = f"it knows no {self._wishes.auth!r}; " if self._wishes.auth else ""
        raise WireError(f"{said}, or have it log in by itself ({unknown}`auth:` of the plan's agent may be {ways})")

    def _server(self, server: McpServer) -> dict[str, Any]:
        """A server of tools as the protocol has it."""
        transport = server.transport if server.url else "stdio"
        if not self.agent.connects(transport):
            why = f"the agent {self.agent.info or 'in use'} takes none over {transport}"
            raise WireError(f"mcp_servers: {server.name}: {why}; give a command, or another transport")
        if server.url:
            return {"type": transport, "name": server.name, "url": server.url, "headers": _pairs(server.headers)}
        program, *args = server.command
        return {"name": server.name, "command": program, "args": args, "env": _pairs(server.env)}

    # ------------------------------------------------------------------------------------------ what is wished for
    def _hear(self, answer: Raw, method: str) -> None:
        """What can be set, as far as the answer says it."""
        if bytes(answer) != b"null":
            self._offered = wire.read(answer, offers.Settings, f"the answer to {method}")

    def _settle(self, session: str) -> Script[None]:
        if self._wishes.mode:
            yield from self._set_mode(session, self._wishes.mode)
        if self._wishes.model:
            yield from self._set_model(session, self._wishes.model)
        for option_id, value in self._wishes.options.items():
            known = {one.id: one for one in self._offered.config_options or ()}
            _check("options", option_id, known)
            yield from self._set(session, known[option_id], value, f"options: {option_id}")

    def _set_mode(self, session: str, mode: str) -> Script[None]:
        modes = self._offered.modes
        if modes is None:
            yield from self._set(session, self._of_category("mode"), mode, "mode")
            return
        _check("mode", mode, [one.id for one in modes.available_modes])
        if mode != modes.current_mode_id:
            answer = yield Request("session/set_mode", {"sessionId": session, "modeId": mode})
            _granted(answer, f"go into the mode {mode!r}")

    def _set_model(self, session: str, model: str) -> Script[None]:
        """An agent may offer its models in two ways: the options came later, and are preferred."""
        models = self._offered.models
        if models is None or any(one.category == "model" for one in self._offered.config_options or ()):
            yield from self._set(session, self._of_category("model"), model, "model")
            return
        _check("model", model, [one.model_id for one in models.available_models])
        if model != models.current_model_id:
            answer = yield Request("session/set_model", {"sessionId": session, "modelId": model})
            _granted(answer, f"use the model {model!r}")

    def _of_category(self, category: str) -> offers.ConfigOption:
        for one in self._offered.config_options or ():
            if one.category == category:
                return one
        raise WireError(
            f"{category}: the agent {self.agent.info} offers no choice of it; leave it out".replace("  ", " ")
        )

    def _set(self, session: str, option: offers.ConfigOption, value: str, field: str) -> Script[None]:
        if option.choices:
            _check(field, value, option.choices)
        if value != option.current_value:
            answer = yield Request(
                "session/set_config_option", {"sessionId": session, "configId": option.id, "value": value}
            )
            self._hear(_granted(answer, f"set {option.id} to {value!r}"), "session/set_config_option")


def _granted(answer: Raw | RpcError, what: str) -> Raw:
    if isinstance(answer, RpcError):
        raise WireError(f"the agent refused to {what}: {answer.text} (code {answer.code})")
    return answer


def _spoken(agent: offers.Initialized) -> offers.Initialized:
    """*agent*, if it speaks our version."""
    theirs, ours = agent.protocol_version, wire.PROTOCOL_VERSION
    if theirs != ours:
        what = f"the agent speaks ACP version {theirs}; this supervisor speaks version {ours}"
        raise WireError(f"{what}: install a version of the agent that speaks ACP {ours}")
    return agent


def _check(field: str, wished: str, offered: Iterable[str]) -> None:
    names = list(offered)
    if wished not in names:
        raise WireError(f"{field}: the agent knows no {wished!r}; choose of: {', '.join(names) or 'none'}")


def _pairs(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]
