"""Configuration of a daemon: agents that every plan may use, settings, limits, the HTTP API, and the fleet.

The file is YAML, with the settings that a plan has at its top level; ``agents``, which submitted plans may name without
defining them; ``backlog``; ``triggers``; ``http``; and ``fleet``. Whatever is wrong is reported as in a plan, with
line, field, value and fix. The file is read again at a reload: what cannot change while the daemon runs is refused
then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pydantic import Field

from supervisor.control.http.options import BadHttpOptions, HttpOptions
from supervisor.fleet.options import BadFleetOptions, FleetOptions
from supervisor.plans.agents import AgentConfig
from supervisor.plans.error_texts import Problem
from supervisor.plans.fields import Flag, Model, Name, Several, Text
from supervisor.plans.loading import read_document
from supervisor.plans.settings import Settings
from supervisor.plans.source import BadPlan

_FIXED: Final = (
    "workspace",
    "merge_into",
    "worktree",
    "plugins",
    "pid_namespaces",
    "telemetry",
    "http",
    "backlog",
    "triggers",
    "fleet",
)
"""Keys that take effect when the daemon starts."""


class HttpConfig(Model):
    """HTTP API of the daemon: its socket ``runtime/http.sock``, and TCP if there is an address."""

    listen: Text | None = Field(default=None, description="Address HOST:PORT to serve over TCP; needs token_file.")
    token_file: Text | None = Field(
        default=None, description="File with the tokens for TCP, each with its role; made if it does not exist."
    )
    hosts: Several[Text] = Field(default=(), description="Other names under which clients reach the service.")
    origins: Several[Text] = Field(default=(), description="Sites of other hosts whose pages may use the API.")
    certificate: Text | None = Field(default=None, description="File with the certificate, for TLS.")
    key: Text | None = Field(default=None, description="File with the key of the certificate.")
    behind_proxy: Flag = Field(default=False, description="Whether a proxy encrypts what comes over the network.")

    def problems(self) -> Iterator[Problem]:
        try:
            self.value()
        except BadHttpOptions as error:
            field, _, words = str(error).partition(": ")
            yield (field.partition(",")[0],), words

    def value(self) -> HttpOptions:
        """Return the options of the HTTP service.

        Raises:
            BadHttpOptions: the options contradict each other.
        """
        return HttpOptions(**self.model_dump())


class FleetConfig(Model):
    """Fleet that the daemon's host joins: its servers, its name, and the name of this host."""

    servers: Several[Text] = Field(description="Addresses of the servers, such as nats://10.0.0.1:4222.")
    name: Text = Field(default="default", description="Name of the fleet: several fleets may share servers.")
    host: Text | None = Field(default=None, description="Name of this host in the fleet; by default the machine's.")
    credentials: Text | None = Field(
        default=None, description="File with the login: NATS credentials, USER:PASSWORD, or a token."
    )
    ca: Text | None = Field(default=None, description="File with the authorities of the servers' certificates.")
    certificate: Text | None = Field(default=None, description="File with this host's certificate, for TLS.")
    key: Text | None = Field(default=None, description="File with the key of the certificate.")
    replicas: int | None = Field(
        default=None, description="Number of servers that store each record: 1, 3 or 5; by default 3 in a cluster."
    )

    def problems(self) -> Iterator[Problem]:
        try:
            self.value()
        except BadFleetOptions as error:
            field, _, words = str(error).partition(": ")
            yield (field.partition(",")[0],), words

    def value(self) -> FleetOptions:
        """Return the options of the host.

        Raises:
            BadFleetOptions: an option is wrong.
        """
        given = {name: value for name, value in self.model_dump().items() if value is not None}
        return FleetOptions(**{**given, "servers": tuple(self.servers)})


class DaemonConfig(Settings):
    """Configuration of a daemon: settings, agents, the backlog, triggers, the HTTP API and the fleet."""

    agents: Mapping[Name, AgentConfig] = Field(
        default={}, description="Agents by name, which submitted plans may use without defining them."
    )
    triggers: Flag = Field(
        default=False,
        description="Whether config/triggers.yaml of the state directory is read: triggers that start plans.",
    )
    backlog: Flag = Field(
        default=False,
        description="Whether files in the directory backlog/open of the state directory are taken as plans and tasks.",
    )
    http: HttpConfig | None = Field(default=None, description="HTTP API; by default it is not served.")
    fleet: FleetConfig | None = Field(default=None, description="Fleet to join; by default there is none.")

    @property
    def settings(self) -> Settings:
        """The settings, as a supervisor takes them."""
        return Settings(**{name: getattr(self, name) for name in Settings.model_fields})

    def check_reload(self, path: Path, former: DaemonConfig) -> None:
        """Check that this configuration can take the place of *former* while the daemon runs.

        Raises:
            BadPlan: a key has changed that takes effect at the start.
        """
        changed = [key for key in _FIXED if getattr(self, key) != getattr(former, key)]
        if (self.access is None) is not (former.access is None):
            changed.append("access")
        if changed:
            lines = (f"{path}: {key}: takes effect at the start; restart the daemon, or set it back" for key in changed)
            raise BadPlan("\n".join(lines))


def load_config(path: Path) -> DaemonConfig:
    """Read and check the configuration at *path*; relative paths are relative to its directory.

    Raises:
        BadPlan: one line for every problem.
    """
    config = read_document(path, DaemonConfig)
    if config.http is not None and config.http.token_file is not None:
        token_file = str(path.resolve().parent / config.http.token_file)
        http = config.http.model_copy(update={"token_file": token_file})
        config = config.model_copy(update={"http": http})
    if config.fleet is not None:
        files = {name: getattr(config.fleet, name) for name in ("credentials", "ca", "certificate", "key")}
        base = path.resolve().parent
        found = {name: str(base / file) for name, file in files.items() if file is not None}
        config = config.model_copy(update={"fleet": config.fleet.model_copy(update=found)})
    return config
