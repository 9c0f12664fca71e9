"""Who does the work, as a person may write it: agents, and the workers that have slots for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, ValidationInfo, model_validator

from supervisor.plans.complaints import Problem, Problems
from supervisor.plans.fields import Count, Duration, Flag, Model, Name, Text, plugged

__all__ = ["ADAPTERS", "AgentConfig", "WorkerConfig", "role_capability"]

ADAPTERS: Final = ("command", "acp", "scripted")
"""The adapters that are always there. Plug-ins add others: what a plan of a file names is looked up when it is read,
what a host builds, when a supervisor is opened with it."""


def _there(name: str, info: ValidationInfo) -> str:
    return plugged(name, info, "adapters", ADAPTERS)


class AgentConfig(Model):
    """A way to have an agent: which adapter speaks to it, and which program it is (a plug-in's may know that itself).

    ``cwd`` is the session's directory unless it is given. The program gets *env*, the variables named in
    ``inherit_env``, and nothing else of ours.
    """

    adapter: Annotated[Name, AfterValidator(_there)]
    command: tuple[Text, ...] = ()
    env: Mapping[Text, Text] = {}
    inherit_env: tuple[Text, ...] = ()
    cwd: Text | None = None
    permissions: Literal["allow", "deny"] = "allow"
    network: Flag = False

    @model_validator(mode="after")
    def _command_fits_adapter(self) -> AgentConfig:
        if found := list(_agent_problems(self)):
            raise Problems(found)
        return self


def _agent_problems(agent: AgentConfig) -> Iterator[Problem]:
    if agent.adapter == "scripted" and agent.command:
        yield ("command",), "the scripted agent has none; remove it, or use adapter: command or adapter: acp"
    if agent.adapter in ("command", "acp") and not (agent.command and agent.command[0]):
        yield ("command",), "missing; give the argv, for example [git, status]"
    for name in (*agent.env, *agent.inherit_env):
        if not name or "=" in name:
            field = "env" if name in agent.env else "inherit_env"
            yield (field,), f"{name!r} cannot be the name of a variable; it must not be empty or hold '='"


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
