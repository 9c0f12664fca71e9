"""Catalogue of known agents: one data file for each agent, read on first use.

An agent may have several variants: a program that uses a protocol on standard input and output, or a program that is
run once for each prompt. The first variant is the default. A file names packages and versions, never the location of a
registry.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from supervisor.agent_catalogue.data import BadData, Data, Word, Words, read_data
from supervisor.agent_catalogue.line_rules import LineMapping
from supervisor.agent_catalogue.quirks import NO_QUIRKS, Quirks

HERE = Path(__file__).parent
KNOWN_SERVERS: Final = frozenset(
    {
        "basedpyright-langserver",
        "bash-language-server",
        "clangd",
        "csharp-ls",
        "elixir-ls",
        "gopls",
        "jdtls",
        "lua-language-server",
        "pylsp",
        "pyright-langserver",
        "ruby-lsp",
        "rust-analyzer",
        "solargraph",
        "sourcekit-lsp",
        "tsserver",
        "typescript-language-server",
        "vscode-eslint-language-server",
        "yaml-language-server",
        "zls",
    }
)
"""Names of language servers that agents start when they are first needed, and keep from turn to turn."""
Name = Annotated[Word, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")]


class UnknownAgent(ValueError):
    """Exception: no agent of the catalogue has the given name or adapter; the message lists the possible values."""


class Install(Data):
    """Package from which an agent is installed, by the usual client of a package registry. ``least`` is the oldest
    version that was tried; ``beside`` lists packages that must be pinned too, where the package's own requirements are
    too wide."""

    client: Literal["npm", "pip"]
    package: Word
    version: Word
    least: Word = ""
    beside: tuple[Word, ...] = ()

    @property
    def wanted(self) -> tuple[str, ...]:
        """Requirements that are passed to the client of the registry: the package with its version, and the pinned
        packages."""
        at = "@" if self.client == "npm" else "=="
        return (f"{self.package}{at}{self.version}", *self.beside)

    @property
    def command(self) -> str:
        """Command line that installs the package in that version."""
        return shlex.join([self.client, "install", *(["--global"] if self.client == "npm" else []), *self.wanted])


class ModelFile(Data):
    """File below the agent's home directory that connects the agent to a model server; ``{base_url}`` and ``{key}`` are
    placeholders for the server's address and an API key."""

    path: Word
    text: str


class ModelServerSettings(Data):
    """Variables, arguments and files that connect the agent to another model server; ``{base_url}`` and ``{key}`` are
    placeholders."""

    env: Mapping[Word, Word] = {}
    arguments: Words = ()
    files: tuple[ModelFile, ...] = ()


class PermissionStart(Data):
    """Changes to the start of an agent that requests permissions only if configured to do so: another command line,
    additional variables, or a mode of the agent."""

    command: tuple[Word, ...] = ()
    env: Mapping[Word, Word] = {}
    mode: Word = ""


class AgentVariant(Data):
    """Variant of an agent: the adapter and the command line.

    ``mapping`` is the meaning of the agent's lines for the adapter ``jsonl``, given as the name of a file of the
    catalogue. ``urgent`` is the effect of an urgent message: ``steer`` (sent within the turn), ``queue`` (accepted at
    once and answered after the turn) or ``interrupt``. ``asks`` says whether the agent requests permissions, so that
    the permissions of a plan are effective; ``with flags`` means only if the agent is started with the changes in
    ``asking``. Plans that deny or ask start the agent with these changes.
    """

    adapter: Name
    command: tuple[Word, ...] = Field(min_length=1)
    mapping: LineMapping | None = None
    quirks: Quirks = NO_QUIRKS
    sub_agents: bool = False
    urgent: Literal["steer", "queue", "interrupt"] = "interrupt"
    asks: bool | Literal["with flags", "unknown"] = "unknown"
    asking: PermissionStart | None = None

    @model_validator(mode="after")
    def _asks_as_said(self) -> AgentVariant:
        if (self.asks == "with flags") is not (self.asking is not None):
            raise ValueError("asks: 'with flags' needs asking, and asking needs it; give both or neither")
        return self

    @field_validator("mapping", mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        return mapping_named(given) if isinstance(given, str) else given


class KnownAgent(Data):
    """Catalogue entry of one agent.

    ``passes`` names variables of the supervisor's environment that the agent may receive; ``env`` holds variables that
    the agent always receives; ``version_arguments`` make the program print its version; ``runs`` names further programs
    in which the agent itself runs, below the program that is started. With one of ``never_ask_flags`` on its command
    line the agent requests no permission, or not for every action. ``asking_modes`` are the modes in which the agent
    does nothing but read without permission; in any other mode it may act without asking. Empty: its modes do not
    decide about that.
    """

    name: Name
    title: Word
    also: tuple[Name, ...] = ()
    about: Word = ""
    ways: tuple[AgentVariant, ...] = Field(min_length=1)
    install: Install | None = None
    version_arguments: Words = ("--version",)
    runs: Words = ()
    passes: Words = ()
    env: Mapping[Word, Word] = {}
    model: ModelServerSettings = ModelServerSettings()
    never_ask_flags: Words = ()
    asking_modes: Words = ()

    @property
    def program(self) -> str:
        """Name of the default variant's program, as found on PATH."""
        return self.ways[0].command[0]

    def variant(self, adapter: str | None = None) -> AgentVariant:
        """Return the variant with the adapter *adapter*, or the default variant if *adapter* is ``None``.

        Raises:
            UnknownAgent: the agent has no variant with that adapter.
        """
        found = next((one for one in self.ways if adapter in (None, one.adapter)), None)
        if found is None:
            there = ", ".join(one.adapter for one in self.ways)
            raise UnknownAgent(f"{self.name} has no variant with the adapter {adapter!r}; use one of: {there}")
        return found


@cache
def catalogue() -> Mapping[str, KnownAgent]:
    """Return all known agents by name, sorted by name.

    Raises:
        BadData: a file of the catalogue is damaged.
    """
    found = [read_data(path, KnownAgent) for path in sorted((HERE / "known").glob("*.toml"))]
    return MappingProxyType({one.name: one for one in found})


@cache
def agent_programs() -> frozenset[str]:
    """Return the names of all programs in which agents of the catalogue themselves run.

    Raises:
        BadData: a file of the catalogue is damaged.
    """
    found: set[str] = set()
    for agent in catalogue().values():
        found.update((agent.name, *agent.also, *agent.runs), (way.command[0] for way in agent.ways))
    return frozenset(found)


def known_agent(name: str) -> KnownAgent:
    """Return the agent of the catalogue with that name or alias.

    Raises:
        UnknownAgent: the catalogue has no such agent.
    """
    there = catalogue()
    found = there.get(name) or next((one for one in there.values() if name in one.also), None)
    if found is None:
        near = get_close_matches(name, list(there), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the agents are {', '.join(there)}"
        raise UnknownAgent(f"{name!r} is not in the catalogue of agents; {hint}")
    return found


def agent_called(own_name: str) -> KnownAgent | None:
    """Return the agent of the catalogue that introduces itself as *own_name*: its name, alias or package, with or
    without the package's scope, in any case."""
    wanted = own_name.lower().rpartition("/")[2]
    for agent in catalogue().values():
        packages = [agent.install.package.rpartition("/")[2]] if agent.install is not None else []
        if wanted in (agent.name, *agent.also, *packages):
            return agent
    return None


@cache
def mapping_named(name: str) -> LineMapping:
    """Return the line mapping of the catalogue with that name.

    Raises:
        BadData: the file is missing or damaged.
    """
    path = HERE / "mappings" / f"{name}.toml"
    if not path.is_file():
        raise BadData(f"mapping: the catalogue has no {path.name}")
    return read_data(path, LineMapping)
