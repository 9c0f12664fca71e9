"""Measured behaviour of the catalogue's agents: what the conformance probe found, with the versions that it tried.

``measured/NAME.json`` has a result for each variant of an agent that was tried, made by ``make agents``. Whether an
installed version is one that was tried follows from these results, and from the versions that the entry itself names
(``install.version`` and ``install.least``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from supervisor.agent_catalogue.catalogue import HERE, KnownAgent, agent_called
from supervisor.agent_catalogue.data import BadData

MEASURED: Final = HERE / "measured"
_VERSION: Final = re.compile(r"(?<!\d)\d{1,9}(?:\.\d{1,9})+")


class MeasuredBehaviour(msgspec.Struct, frozen=True):
    """Result of one case: ``found`` is what was seen; ``good`` is true if the agent behaves as a supervisor needs, and
    ``None`` if the case could not be tried, or allows no verdict."""

    found: str
    good: bool | None = None


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one variant of an agent, in one version; ``cases`` are in the order in which they were tried."""

    adapter: str
    version: str
    date: str
    cases: Mapping[str, MeasuredBehaviour]


class MeasuredAgent(msgspec.Struct, frozen=True):
    """Measurements of an agent: one for each variant that was tried."""

    agent: str
    results: tuple[Measurement, ...]


class TriedVersions(NamedTuple):
    """Oldest and newest version of an agent that was tried; ``""`` if none was."""

    oldest: str = ""
    newest: str = ""


@cache
def measured_agents() -> Mapping[str, MeasuredAgent]:
    """Return the measurements of all agents, by name.

    Raises:
        BadData: a file is damaged.
    """
    return MappingProxyType({path.stem: _read(path) for path in sorted(MEASURED.glob("*.json"))})


def _read(path: Path) -> MeasuredAgent:
    try:
        return msgspec.json.decode(path.read_bytes(), type=MeasuredAgent)
    except (OSError, msgspec.MsgspecError) as error:
        raise BadData(f"{path}: is not the result of a probe: {error}; write it again with `make agents`") from None


def tried_versions(agent: KnownAgent) -> TriedVersions:
    """Return the versions between which *agent* was tried."""
    measured = measured_agents().get(agent.name)
    found = {one.version for one in measured.results if one.version} if measured is not None else set()
    if agent.install is not None and agent.install.least:
        found |= {agent.install.least, agent.install.version}
    ordered = sorted(found, key=version_numbers)
    return TriedVersions(ordered[0], ordered[-1]) if ordered else TriedVersions()


def version_note(agent: KnownAgent, version: str) -> str:
    """Return how *version* differs from the versions of *agent* that were tried; ``""`` if it is one of them, or lies
    between them, or is not known."""
    oldest, newest = tried_versions(agent)
    if not version or not newest:
        return ""
    if not at_least(version, oldest):
        return f"{version} is older than {oldest}, the oldest that was tried"
    if not at_least(newest, version):
        return f"{version} is newer than {newest}, the newest that was tried"
    return ""


def untried_version(introduction: str) -> str:
    """Return how the version in an agent's own introduction, for example ``codex 0.171.0``, differs from those that
    were tried; ``""`` if it does not, or if the catalogue does not know the agent."""
    name, _, version = introduction.rpartition(" ")
    agent = agent_called(name) if name else None
    note = version_note(agent, version) if agent is not None and _VERSION.search(version) else ""
    return f"{agent.name} {note}" if note and agent is not None else ""


def at_least(version: str, least: str) -> bool:
    """Return whether *version* is equal to *least* or newer. Versions are compared number by number; a missing number
    counts as 0."""
    pairs = zip_longest(version_numbers(version), version_numbers(least), fillvalue=0)
    return next((ours > theirs for ours, theirs in pairs if ours != theirs), True)


def version_numbers(text: str) -> list[int]:
    """Return the numbers of the first version in *text*; none without a version."""
    found = find_version(text)
    return [int(one) for one in found.split(".")] if found else []


def find_version(text: str) -> str:
    """Return the first version in *text*, or ``""``."""
    found = _VERSION.search(text)
    return found[0] if found else ""
