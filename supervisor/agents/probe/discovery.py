"""Find the agents of the catalogue that are installed on this machine: path and version.

The version is taken from the package's own ``package.json``, which is quick to read and trusted. Without this file the
program is run to print its version, with a limit of a few seconds, no input and a clean environment.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from supervisor.agent_catalogue import AgentVariant, KnownAgent
from supervisor.agent_catalogue.measured import find_version, version_note

ANSWER_S: Final = 20.0
"""Seconds that a program may take to print its version: the slowest of the known programs took 3 s."""


class InstalledAgent(NamedTuple):
    """Agent of the catalogue as found on this machine. ``path`` is empty if the agent is not installed, ``version`` if
    the version is unknown; ``ways`` are the adapters whose programs are installed."""

    agent: KnownAgent
    path: str = ""
    version: str = ""
    ways: tuple[str, ...] = ()

    @property
    def untried(self) -> str:
        """Difference between the installed version and those that were tried with the supervisor; ``""`` if none."""
        return version_note(self.agent, self.version)


def search_path(agent: KnownAgent) -> str:
    """Return the PATH on which the agent's programs are searched: the PATH that the agent's process will have."""
    return agent.env.get("PATH", os.environ.get("PATH", os.defpath))


def find(agent: KnownAgent) -> InstalledAgent:
    """Search for the program of one agent and determine the program's version."""
    return find_program(agent, None)


def find_program(agent: KnownAgent, searched: str | None) -> InstalledAgent:
    """Search for the program of one agent on the PATH *searched*, ``None`` for the usual one, and determine the
    program's version."""
    path = shutil.which(agent.program, path=searched or search_path(agent))
    ways = tuple(one.adapter for one in agent.ways if _is_there(agent, one))
    version = (_packaged(path, agent) or _version(path, agent)) if path else ""
    return InstalledAgent(agent, path or "", version, ways)


def find_all(agents: Iterable[KnownAgent]) -> Iterator[InstalledAgent]:
    """Search for the programs of all *agents*, four at a time; yield the results in the order of *agents*."""
    with ThreadPoolExecutor(4) as pool:
        yield from pool.map(find, agents)


def _is_there(agent: KnownAgent, variant: AgentVariant) -> bool:
    return shutil.which(variant.command[0], path=search_path(agent)) is not None


def _packaged(path: str, agent: KnownAgent) -> str:
    """Return the version in the ``package.json`` of the package that the program belongs to, or ``""``."""
    for folder in Path(path).resolve().parents:
        try:
            package = json.loads((folder / "package.json").read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(package, dict) and agent.install and package.get("name") == agent.install.package:
            return str(package.get("version", ""))
    return ""


def _version(path: str, agent: KnownAgent) -> str:
    env = {"PATH": search_path(agent), "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8", **agent.env}
    try:
        said = subprocess.run(
            [path, *agent.version_arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ANSWER_S,
            env=env,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return find_version((said.stdout + said.stderr).decode(errors="replace"))
