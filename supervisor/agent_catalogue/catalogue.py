"""The agents that are known: one file of data each, read when one is asked for.

An agent may be had in several ways (a protocol over its standard streams, or one program for each prompt); the first
is the usual one. A file names packages and versions, and never where a package comes from.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from supervisor.agent_catalogue.data import BadData, Data, Word, Words, read_data
from supervisor.agent_catalogue.line_rules import LineMapping
from supervisor.agent_catalogue.quirks import NO_QUIRKS, Quirks

__all__ = [
    "AgentVariant",
    "Install",
    "KnownAgent",
    "ModelFile",
    "ModelServerSettings",
    "PermissionStart",
    "UnknownAgent",
    "catalogue",
    "known_agent",
    "mapping_named",
]

HERE = Path(__file__).parent
Name = Annotated[Word, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")]


class UnknownAgent(ValueError):
    """No agent of the catalogue has that name, or it cannot be had by that adapter; the message says what there is."""


class Install(Data):
    """How to install it: by the ordinary client of a package registry. ``least``: the oldest version that was tried;
    ``beside``: what must be installed with it, where its own word on that is too wide."""

    client: Literal["npm", "pip"]
    package: Word
    version: Word
    least: Word = ""
    beside: tuple[Word, ...] = ()

    @property
    def wanted(self) -> tuple[str, ...]:
        """What its client is asked for."""
        at = "@" if self.client == "npm" else "=="
        return (f"{self.package}{at}{self.version}", *self.beside)

    @property
    def command(self) -> str:
        """The command line that installs that version."""
        return shlex.join([self.client, "install", *(["--global"] if self.client == "npm" else []), *self.wanted])


class ModelFile(Data):
    """A file below its home that says which model server it asks; ``{base_url}`` and ``{key}`` stand for ours."""

    path: Word
    text: str


class ModelServerSettings(Data):
    """How it is pointed at another model server: variables, arguments and files, with ``{base_url}`` and ``{key}``."""

    env: Mapping[Word, Word] = {}
    arguments: Words = ()
    files: tuple[ModelFile, ...] = ()


class PermissionStart(Data):
    """How an agent is started that is to ask leave for what it does, where it otherwise would not: by another command
    line, with more variables, or in one of its own modes."""

    command: tuple[Word, ...] = ()
    env: Mapping[Word, Word] = {}
    mode: Word = ""


class AgentVariant(Data):
    """One way to have it: the adapter that speaks to it, and the command line.

    ``mapping``: what its lines mean, for the adapter ``jsonl``: the name of a file of ours. ``urgent``: what a message
    does that is for it now: ``steer`` (it is said within the turn), ``queue`` (the agent takes it at once, and answers
    it after the turn), or ``interrupt``. ``asks``: whether it asks leave for what it does, so that a plan's permissions
    hold it; ``with flags``: only as ``asking`` starts it, which a plan that denies or asks has.
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
            raise ValueError("asks: 'with flags' and asking belong together; give both, or none")
        return self

    @field_validator("mapping", mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        return mapping_named(given) if isinstance(given, str) else given


class KnownAgent(Data):
    """What is known of one agent. ``passes`` are the variables of ours that it may have; ``env`` is what it always
    gets; ``version_arguments`` make it print its version. With one of ``never_ask_flags`` on its command line, or in
    one of ``never_ask_modes``, it asks leave for nothing, or not for everything."""

    name: Name
    title: Word
    also: tuple[Name, ...] = ()
    about: Word = ""
    ways: tuple[AgentVariant, ...] = Field(min_length=1)
    install: Install | None = None
    version_arguments: Words = ("--version",)
    passes: Words = ()
    env: Mapping[Word, Word] = {}
    model: ModelServerSettings = ModelServerSettings()
    never_ask_flags: Words = ()
    never_ask_modes: Words = ()

    @property
    def program(self) -> str:
        """The program that it is, by the name that PATH has it under."""
        return self.ways[0].command[0]

    def variant(self, adapter: str | None = None) -> AgentVariant:
        """How it is had by *adapter*; the usual way, where none is named.

        Raises:
            UnknownAgent: it cannot be had by that adapter.
        """
        found = next((one for one in self.ways if adapter in (None, one.adapter)), None)
        if found is None:
            there = ", ".join(one.adapter for one in self.ways)
            raise UnknownAgent(f"{self.name} is not known to speak to {adapter!r}; it does to: {there}")
        return found


@cache
def catalogue() -> Mapping[str, KnownAgent]:
    """All known agents by name, in the order of their names.

    Raises:
        BadData: a file of the catalogue is damaged.
    """
    found = [read_data(path, KnownAgent) for path in sorted((HERE / "known").glob("*.toml"))]
    return MappingProxyType({one.name: one for one in found})


def known_agent(name: str) -> KnownAgent:
    """The agent of that name, or of another name that it has.

    Raises:
        UnknownAgent: there is none.
    """
    there = catalogue()
    found = there.get(name) or next((one for one in there.values() if name in one.also), None)
    if found is None:
        raise UnknownAgent(_unknown(name, there))
    return found


def _unknown(name: str, there: Iterable[str]) -> str:
    near = get_close_matches(name, list(there), n=1)
    words = f"did you mean {near[0]!r}?" if near else f"it knows {', '.join(there)}"
    return f"{name!r} is not in the catalogue of agents; {words}"


@cache
def mapping_named(name: str) -> LineMapping:
    """The mapping of ours with that name.

    Raises:
        BadData: there is none, or it is damaged.
    """
    path = HERE / "mappings" / f"{name}.toml"
    if not path.is_file():
        raise BadData(f"mapping: there is no {path.name} beside the catalogue")
    return read_data(path, LineMapping)
