"""Agents and workers, as a plan writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, PrivateAttr, model_validator

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
from supervisor.plans.enforcement import Program, agent_started, enforcement_problems, needs_asking
from supervisor.plans.error_texts import FieldErrors, Problem
from supervisor.plans.fields import Count, Duration, Flag, Model, Name, Several, Text, plugin_name
from supervisor.plans.permissions import Permissions, PermissionsConfig
from supervisor.policies.argument_checks import check_agent_function, check_type
from supervisor.ports import SERVER_VARIABLE, AgentOptions, McpServer
from supervisor.ports.agent_profile import AgentFunction

ADAPTERS: Final = ("command", "acp", "claude", "codex", "jsonl", "scripted")
"""Adapters that are always available. Plug-ins add others: an adapter in a plan file is looked up when the plan is
read; the adapter of an agent that an embedding program builds is looked up when a supervisor is opened with that
agent."""

IN_PROCESS: Final = "inprocess"
"""Adapter of an agent that is an async function of the embedding program. A plan file cannot name it."""

OWN_COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {"claude": ("claude",), "codex": ("codex", "app-server")}
"""Programs of the adapters that can drive only one program, used if the plan names no other program."""


ToolKind = Literal[
    "read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "agent", "other"
]
"""Kinds of tool calls: those of ACP, and ``agent`` for a call that starts a sub-agent."""
_WISHES: Final = ("mode", "model", "auth", "options", "mcp_servers")
_UNSUPPORTED_SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "command": _WISHES,
    "scripted": _WISHES,
    "codex": _WISHES,
    "jsonl": _WISHES,
    "claude": ("auth", "options"),
}
"""Settings of an agent that an adapter cannot pass on."""


class McpServerConfig(Model):
    """MCP server for an agent: a program (*command* and *env*) or an address (*url* and *headers*)."""

    command: Several[Text] = Field(
        default=(),
        description="Program and arguments of a server that speaks over standard input and output; give this or url.",
    )
    env: Mapping[Text, Text] = Field(
        default={}, description="Environment variables of the server, in addition to those that the agent gives it."
    )
    url: Text = Field(default="", description="Address of a server; give this or command.")
    transport: Literal["http", "sse"] = Field(default="http", description="Protocol that is spoken at url.")
    headers: Mapping[Text, Text] = Field(default={}, description="HTTP headers that are sent to the server at url.")

    def problems(self) -> Iterator[Problem]:
        if bool(self.url) == bool(self.command and self.command[0]):
            wrong = "has both a command and a url; give one" if self.url else "missing; give the argv, or a url"
            yield ("command",), wrong

    def named(self, name: str) -> McpServer:
        """Return the MCP server as the value that the adapters use."""
        return McpServer(
            name=name,
            command=tuple(self.command),
            env={**self.env, SERVER_VARIABLE: name} if self.command else dict(self.env),
            url=self.url,
            transport=self.transport,
            headers=dict(self.headers),
        )


class AgentConfig(Model):
    """Agent of a plan: an agent of the catalogue (*known*), or an adapter and a program (a plug-in's adapter may know
    its program itself).

    The program gets the variables of *env*, and those of the supervisor that *inherit_env* names, and no others; both
    add to the catalogue's for a *known* agent. *mode*, *model*, *auth*, *options* and *mcp_servers* are settings in the
    agent's own words, for adapters that can pass them on.
    """

    known: Name | None = Field(
        default=None,
        description="Agent of the catalogue, such as claude, which supplies the keys that are left out.",
    )
    adapter: Annotated[Name, plugin_name("adapters", ADAPTERS)] = Field(
        default="",
        description=f"Protocol that the agent speaks: {', '.join(ADAPTERS)}, or a plug-in's; required without known.",
    )
    command: Several[Text] = Field(
        default=(),
        description="Program and its arguments, as a list. Required for command, acp and jsonl without known. With "
        "adapter: command the prompt replaces {prompt} in the words, or else goes to standard input.",
    )
    arguments: Several[Text] = Field(default=(), description="Arguments that follow the command.")
    mapping: Text | None = Field(
        default=None,
        description="Path of the file that maps lines of the program to events, for adapter: jsonl without known.",
    )
    env: Mapping[Text, Text] = Field(
        default={}, description="Environment variables of the agent, in addition to those of a known agent."
    )
    inherit_env: Several[Text] = Field(
        default=(),
        description="Variables that are copied from the supervisor's environment; those not set there are left out.",
    )
    cwd: Text | None = Field(
        default=None,
        description="Working directory, at or below the directory of the plan; by default that of the run.",
    )
    permissions: Permissions = Field(
        default=PermissionsConfig(),
        description="Answers to the agent's requests for permission: rules, or one word for all requests.",
    )
    operates: Several[Literal["abort", "answer", "compact", "send", "sessions", "stop", "tasks"]] = Field(
        default=(),
        description="Requests that the agent may make beyond its own session and the sessions below it.",
    )
    unguarded: Flag = Field(
        default=False,
        description="Whether a plan that denies or asks is accepted although the agent may act without asking.",
    )
    provider: Text = Field(
        default="",
        description="Name of the provider of the agent's model; agents with the same provider wait for it together.",
    )
    network: Flag = Field(
        default=False,
        description="Whether the agent needs the network for its work, in addition to its model's provider.",
    )
    explain_retries: Flag | None = Field(
        default=None,
        description="Whether a prompt sent again says why; by default yes, unless the command may execute prompts.",
    )
    mode: Text = Field(
        default="",
        description="Id of the mode in which the agent works, if the adapter can pass it on; by default the agent's.",
    )
    model: Text = Field(
        default="",
        description="Id of the model that the agent uses, if the adapter can pass it on; by default the agent's.",
    )
    auth: Text = Field(
        default="", description="Id of the login method that the agent may use by itself when it asks for a login."
    )
    options: Mapping[Text, Text] = Field(default={}, description="Other settings of the agent, by their ids.")
    mcp_servers: Mapping[Name, McpServerConfig] = Field(
        default={}, description="MCP servers by name, which the agent starts itself."
    )
    servers: Several[Name] = Field(
        default=(),
        description="Programs that the agent keeps from turn to turn, such as gopls, and that nothing waits for.",
    )
    quirks: Quirks = Field(
        default=NO_QUIRKS,
        description="Behaviour of the agent that differs from its protocol; by default that of the known agent.",
    )
    timeout_s: Duration | None = Field(
        default=None,
        description="Seconds that one attempt with the agent may take, unless the task has timeout_s or scope; by "
        "default task_lifecycle.default_timeout.",
    )
    tool_timeouts: Mapping[ToolKind, Duration] = Field(
        default={},
        description="Seconds that a tool call may take, by its kind, such as execute; then the call is aborted, and "
        "the agent goes on. Kinds that are not named have no limit of their own.",
    )
    max_sessions: Count | None = Field(
        default=None,
        description="Largest number of tasks at work with the agent at once, in all plans of the supervisor together.",
    )
    _function: AgentFunction | None = PrivateAttr(None)

    @classmethod
    def of_function(cls, field: str, function: AgentFunction) -> AgentConfig:
        """Return the configuration of an agent that is an async function of the embedding program.

        Raises:
            TypeError: *function* cannot be an agent; the error names *field*.
        """
        check_agent_function(field, function)
        made = cls.model_construct(adapter=IN_PROCESS)
        made._function = function
        return made

    @property
    def function(self) -> AgentFunction | None:
        """The async function of an in-process agent; ``None`` for an agent that is a program."""
        return self._function

    @property
    def is_command(self) -> bool:
        """Whether the agent is a program of the adapter ``command`` that is no agent of the catalogue."""
        return self.adapter == "command" and self.known is None

    @property
    def agent_options(self) -> AgentOptions:
        """Settings of the agent beyond its command."""
        servers = tuple(server.named(name) for name, server in self.mcp_servers.items())
        guarded = needs_asking(self.permissions) and not self.unguarded
        return AgentOptions(
            guarded=guarded,
            started=agent_started(self.program) if guarded else "",
            mode=self.mode,
            model=self.model,
            auth=self.auth,
            options=dict(self.options),
            mcp_servers=servers,
        )

    @property
    def program(self) -> Program:
        """Program of the agent, as the plan starts it."""
        return Program(self.adapter, self.known, (*self.command, *self.arguments), self.env, self.mode)

    @property
    def line_mapping(self) -> LineMapping | None:
        """Meaning of the agent's lines, for an adapter that needs it.

        Raises:
            BadData: the mapping file cannot be read or is not valid.
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
    """Return the settings that the catalogue adds to *given*, a plan's entry for a known agent. Values of a wrong type
    are left to validation.

    Raises:
        Problems: the catalogue has no such agent, or the agent has no variant with that adapter.
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
        raise FieldErrors([(("known",), str(error))]) from None
    adapter = given.get("adapter")
    try:
        return agent.variant(adapter if isinstance(adapter, str) else None)
    except UnknownAgent as error:
        raise FieldErrors([(("adapter",), str(error))]) from None


def _agent_problems(agent: AgentConfig) -> Iterator[Problem]:
    if agent.adapter == IN_PROCESS and agent.function is None:
        yield ("adapter",), "is for functions of a program: agents={'helper': function}; name another adapter"
    if not agent.adapter:
        yield (
            ("adapter",),
            f"missing; give one of {', '.join(ADAPTERS)}, or an adapter of a plug-in; or known: an agent",
        )
    if agent.adapter == "scripted" and (agent.command or agent.arguments):
        field = "command" if agent.command else "arguments"
        yield (field,), "the scripted agent takes none; remove it, or use adapter: command or adapter: acp"
    if agent.adapter in ("command", "acp", "claude", "codex", "jsonl") and not (agent.command and agent.command[0]):
        yield ("command",), "missing; give the argv, for example [git, status]"
    for field in _UNSUPPORTED_SETTINGS.get(agent.adapter, ()):
        if getattr(agent, field):
            yield (field,), f"adapter: {agent.adapter} takes none; remove it, or use adapter: acp"
    yield from _mapping_problems(agent)
    if not agent.unguarded:
        yield from enforcement_problems(agent.program, agent.permissions)
    if agent.adapter == "command" and agent.quirks.exit_status_lies:
        yield ("adapter",), "'command' relies on the exit status, which this agent does not set; use another adapter"
    for name in (*agent.env, *agent.inherit_env):
        if not name or "=" in name:
            field = "env" if name in agent.env else "inherit_env"
            yield (field,), f"{name!r} cannot be the name of a variable; it must not be empty or contain '='"


def _mapping_problems(agent: AgentConfig) -> Iterator[Problem]:
    if agent.mapping is not None and agent.adapter != "jsonl":
        yield ("mapping",), f"adapter {agent.adapter!r} has none; remove it, or use adapter: jsonl"
    if agent.mapping is None and agent.adapter == "jsonl" and agent.known is None:
        yield ("mapping",), "missing; give the path of a mapping of its lines (docs/how-to/agents.md)"


def agent_of(field: str, given: AgentConfig | AgentFunction) -> AgentConfig:
    """Return *given*, an agent or an async function of the embedding program, as an agent.

    Raises:
        TypeError: *given* is neither, or the function cannot be an agent; the error names *field*.
    """
    if callable(given):
        return AgentConfig.of_function(field, given)
    check_type(field, given, AgentConfig, "an async function")
    return given


class WorkerConfig(Model):
    """Worker: the number of tasks it takes at once, its roles and capabilities, and the limits after which it counts as
    lost.

    Heartbeats must not be rarer than the checks: each check without a heartbeat since the last one counts as a missed
    one.
    """

    slots: Count = Field(default=1, description="Number of tasks that the worker takes at once.")
    roles: Several[Name] = Field(
        default=(), description="Roles of the worker; a task with a role needs a worker that has it."
    )
    capabilities: Several[Name] = Field(
        default=(), description="Capabilities of the worker; a task needs a worker that has all that the task names."
    )
    heartbeat_s: Duration = Field(
        default=10.0, description="Seconds between two heartbeats of the worker, at most check_s."
    )
    check_s: Duration = Field(default=30.0, description="Seconds between two checks of the heartbeats.")
    misses_max: Count = Field(
        default=3,
        description="Missing heartbeats after which the worker is unresponsive and its tasks go to other workers.",
    )
    shutdown_s: Duration = Field(default=180.0, description="Seconds of silence after which the worker is shut down.")

    def problems(self) -> Iterator[Problem]:
        # A heartbeat that is due with a check may come after it.
        if self.heartbeat_s > self.check_s or (self.heartbeat_s == self.check_s and self.misses_max == 1):
            words = (
                f"{self.heartbeat_s:g} is too rare for check_s, {self.check_s:g}: each check between two heartbeats"
                " counts as a missed heartbeat, so that one late heartbeat, as on a busy machine, can lose a healthy"
                " worker; lower heartbeat_s, or raise check_s"
            )
            yield ("heartbeat_s",), words

    @property
    def provides(self) -> frozenset[str]:
        """Capabilities of the worker, including one for each role."""
        return frozenset((*self.capabilities, *map(role_capability, self.roles)))


def role_capability(role: str) -> str:
    """Return the capability that stands for a role; a plan cannot name a capability in this form."""
    return f"role:{role}"
