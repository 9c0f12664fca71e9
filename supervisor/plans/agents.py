"""Who does the work, as a person may write it: agents, and the workers that have slots for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import model_validator

from supervisor.agent_catalogue import (
    NO_QUIRKS,
    AgentVariant,
    LineMapping,
    PermissionStart,
    Quirks,
    UnknownAgent,
    known_agent,
    read_data,
)
from supervisor.plans.enforcement import Program, enforcement_problems, needs_asking
from supervisor.plans.error_texts import Problem, Problems
from supervisor.plans.fields import Count, Duration, Flag, Model, Name, Text, plugin_name
from supervisor.plans.permissions import Permissions, PermissionsConfig
from supervisor.ports import SERVER_VARIABLE, AgentOptions, McpServer

__all__ = ["ADAPTERS", "AgentConfig", "McpServerConfig", "WorkerConfig", "role_capability"]

ADAPTERS: Final = ("command", "acp", "claude", "codex", "jsonl", "scripted")
"""The adapters that are always there. Plug-ins add others: what a plan of a file names is looked up when it is read,
what a host builds, when a supervisor is opened with it."""

OWN_COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {"claude": ("claude",), "codex": ("codex", "app-server")}
"""The programs of the adapters that drive one program only, where the plan names no other."""


_WISHES: Final = ("mode", "model", "auth", "options", "mcp_servers")
_UNSUPPORTED_SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "command": _WISHES,
    "scripted": _WISHES,
    "codex": _WISHES,
    "jsonl": _WISHES,
    "claude": ("auth", "options"),
}
"""The wishes that an adapter has no way to say."""


class McpServerConfig(Model):
    """A server of tools for an agent: a program (*command* and *env*), or an address (*url* and *headers*)."""

    command: tuple[Text, ...] = ()
    env: Mapping[Text, Text] = {}
    url: Text = ""
    transport: Literal["http", "sse"] = "http"
    headers: Mapping[Text, Text] = {}

    def problems(self) -> Iterator[Problem]:
        if bool(self.url) == bool(self.command and self.command[0]):
            wrong = "it has both a command and a url; give one" if self.url else "missing; give the argv, or a url"
            yield ("command",), wrong

    def named(self, name: str) -> McpServer:
        """The same, as the adapters have it."""
        return McpServer(
            name=name,
            command=self.command,
            env={**self.env, SERVER_VARIABLE: name} if self.command else dict(self.env),
            url=self.url,
            transport=self.transport,
            headers=dict(self.headers),
        )


class AgentConfig(Model):
    """A way to have an agent: one that the catalogue knows, or which adapter speaks to it, and which program it is (a
    plug-in's may know that itself).

    What the catalogue says of a *known* one is what is not given here; *env* and *inherit_env* add to it. *arguments*
    follow the command. ``cwd`` is the session's directory unless it is given. The program gets *env*, the variables
    named in ``inherit_env``, and nothing else of ours. *mode*, *model*, *auth*,
    *options* and *mcp_servers* are wishes, in its own words, where its adapter has a way to say them. *servers* names
    the programs that it keeps from turn to turn, such as language servers: they are not waited for. *unguarded* says
    that whoever wrote it knows that *permissions* do not hold this agent: it may act without asking.
    """

    known: Name | None = None
    adapter: Annotated[Name, plugin_name("adapters", ADAPTERS)] = ""
    command: tuple[Text, ...] = ()
    arguments: tuple[Text, ...] = ()
    mapping: Text | None = None
    env: Mapping[Text, Text] = {}
    inherit_env: tuple[Text, ...] = ()
    cwd: Text | None = None
    permissions: Permissions = PermissionsConfig()
    operates: tuple[Literal["abort", "answer", "compact", "send", "stop", "tasks"], ...] = ()
    unguarded: Flag = False
    network: Flag = False
    mode: Text = ""
    model: Text = ""
    auth: Text = ""
    options: Mapping[Text, Text] = {}
    mcp_servers: Mapping[Name, McpServerConfig] = {}
    servers: tuple[Name, ...] = ()
    quirks: Quirks = NO_QUIRKS

    @property
    def wishes(self) -> AgentOptions:
        """What is wished of it beyond its command."""
        servers = tuple(server.named(name) for name, server in self.mcp_servers.items())
        return AgentOptions(
            mode=self.mode, model=self.model, auth=self.auth, options=dict(self.options), mcp_servers=servers
        )

    @property
    def line_mapping(self) -> LineMapping | None:
        """What its lines mean, where its adapter needs to be told.

        Raises:
            BadData: the file that says so cannot be read, or says what it may not.
        """
        if self.mapping is not None:
            return read_data(Path(self.mapping), LineMapping)
        return known_agent(self.known).variant(self.adapter).mapping if self.known is not None else None

    @model_validator(mode="before")
    @classmethod
    def _as_known(cls, given: Any) -> Any:
        if isinstance(given, dict) and isinstance(given.get("known"), str):
            return {**given, **_known_parts(given)}
        return given

    @model_validator(mode="before")
    @classmethod
    def _command_of_adapter(cls, given: Any) -> Any:
        match given:
            case {"adapter": str(adapter)} if adapter in OWN_COMMANDS and not {"command", "known"} & given.keys():
                return {**given, "command": OWN_COMMANDS[adapter]}
        return given

    def problems(self) -> Iterator[Problem]:
        yield from _agent_problems(self)


def _known_parts(given: Mapping[str, Any]) -> dict[str, Any]:
    """What the catalogue adds to what was *given* of one of its agents; what is given as no such thing is left alone.

    Raises:
        Problems: the catalogue has no such agent, or cannot have it by that adapter.
    """
    variant = _variant(given)
    agent = known_agent(given["known"])
    permission_start = (
        variant.asking if variant.asking is not None and needs_asking(given.get("permissions")) else PermissionStart()
    )
    parts: dict[str, Any] = {"adapter": variant.adapter}
    if "command" not in given:
        parts["command"] = permission_start.command or variant.command
    if permission_start.mode and "mode" not in given:
        parts["mode"] = permission_start.mode
    if "quirks" not in given:
        parts["quirks"] = variant.quirks
    if isinstance(env := given.get("env", {}), Mapping):
        parts["env"] = {**agent.env, **permission_start.env, **env}
    if isinstance(inherited := given.get("inherit_env", ()), list | tuple):
        parts["inherit_env"] = [*(one for one in agent.passes if one not in inherited), *inherited]
    return parts


def _variant(given: Mapping[str, Any]) -> AgentVariant:
    try:
        agent = known_agent(given["known"])
    except UnknownAgent as error:
        raise Problems([(("known",), str(error))]) from None
    adapter = given.get("adapter")
    try:
        return agent.variant(adapter if isinstance(adapter, str) else None)
    except UnknownAgent as error:
        raise Problems([(("adapter",), str(error))]) from None


def _agent_problems(agent: AgentConfig) -> Iterator[Problem]:
    if not agent.adapter:
        yield (
            ("adapter",),
            f"missing; give one of {', '.join(ADAPTERS)}, or an adapter of a plug-in; or known: an agent",
        )
    if agent.adapter == "scripted" and (agent.command or agent.arguments):
        field = "command" if agent.command else "arguments"
        yield (field,), "the scripted agent has none; remove it, or use adapter: command or adapter: acp"
    if agent.adapter in ("command", "acp", "claude", "codex", "jsonl") and not (agent.command and agent.command[0]):
        yield ("command",), "missing; give the argv, for example [git, status]"
    for field in _UNSUPPORTED_SETTINGS.get(agent.adapter, ()):
        if getattr(agent, field):
            yield (field,), f"adapter: {agent.adapter} takes none; remove it, or use adapter: acp"
    yield from _mapping_problems(agent)
    if not agent.unguarded:
        program = Program(agent.adapter, agent.known, (*agent.command, *agent.arguments), agent.env, agent.mode)
        yield from enforcement_problems(program, agent.permissions)
    if agent.adapter == "command" and agent.quirks.exit_status_lies:
        yield ("adapter",), "'command' goes by the exit status, and this agent's lies; use an adapter that hears it"
    for name in (*agent.env, *agent.inherit_env):
        if not name or "=" in name:
            field = "env" if name in agent.env else "inherit_env"
            yield (field,), f"{name!r} cannot be the name of a variable; it must not be empty or hold '='"


def _mapping_problems(agent: AgentConfig) -> Iterator[Problem]:
    if agent.mapping is not None and agent.adapter != "jsonl":
        yield ("mapping",), f"adapter {agent.adapter!r} has none; remove it, or use adapter: jsonl"
    if agent.mapping is None and agent.adapter == "jsonl" and agent.known is None:
        yield ("mapping",), "missing; give the path of a file that says what its lines mean (docs/agents.md)"


class WorkerConfig(Model):
    """A worker: how many tasks it takes at once, which roles and capabilities it has, and when it counts as lost.

    It beats every *heartbeat_s* and is looked at every *check_s*; *misses_max* beats missed make it unresponsive, and
    *shutdown_s* of silence end it.
    """

    slots: Count = 1
    roles: tuple[Name, ...] = ()
    capabilities: tuple[Name, ...] = ()
    heartbeat_s: Duration = 10.0
    check_s: Duration = 30.0
    misses_max: Count = 3
    shutdown_s: Duration = 180.0

    @property
    def provides(self) -> frozenset[str]:
        """Its capabilities; a role is one."""
        return frozenset((*self.capabilities, *map(role_capability, self.roles)))


def role_capability(role: str) -> str:
    """The capability that a role is; no capability that a plan names can be spelled so."""
    return f"role:{role}"
