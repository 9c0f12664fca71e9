"""Scratch directory for a probed agent: a working directory, and a home directory with files that connect the agent to
a model server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from pathlib import Path
from typing import Final

from supervisor.agent_catalogue import AgentVariant, KnownAgent, PermissionStart
from supervisor.agents.probe.discovery import search_path

KEY: Final = "stub-key"
"""Placeholder for an API key: agents do not start without a key."""


class Sandbox:
    """Command, environment and directories of one probed agent. The agent is configured for the given model server
    only."""

    def __init__(
        self,
        root: Path,
        command: tuple[str, ...],
        env: dict[str, str],
        variant: AgentVariant,
        without_login: Callable[[], Sandbox] | None = None,
        agent: str = "",
    ) -> None:
        self.directory = root / "work"
        """Working directory of every process of the agent: agents store their conversations by working directory."""
        self.command = command
        self.env = env
        self.variant = variant
        self.root = root
        """Directory of all files of the sandbox."""
        self.agent = agent
        """Name of the agent in the catalogue."""
        self._reports = 0
        self.without_login = without_login
        """Function that makes a sandbox in which the agent knows the model server, but has no key."""

    def command_of(self, asking: PermissionStart | None) -> tuple[str, ...]:
        """Return the agent's command line; with *asking*, the one with which it requests permissions."""
        usual = self.variant.command
        own = asking.command if asking is not None and asking.command else usual
        return (*own, *self.command[len(usual) :])

    @property
    def home(self) -> Path:
        """Home directory of the agent."""
        return self.root / "home"

    def elsewhere(self, name: str) -> Sandbox:
        """Return this sandbox with another working directory."""
        other = copy(self)
        other.directory = self.root / name
        other.directory.mkdir(exist_ok=True)
        return other

    def report(self) -> Path:
        """Return the path of a new file into which ``orphan_watch`` writes its report."""
        self._reports += 1
        return self.root / f"left-{self._reports}.json"


def make_sandbox(agent: KnownAgent, variant: AgentVariant, base_url: str, root: Path, key: str = KEY) -> Sandbox:
    """Create a home directory below *root*, with the files that connect *agent* to the model server at *base_url*.

    Variables that are empty without a *key* are left out.
    """
    root = root.resolve()
    home = root / "home"
    home.mkdir(parents=True)
    (root / "work").mkdir()
    values = {"{base_url}": base_url.rstrip("/"), "{key}": key}
    for one in agent.model.files:
        path = home / one.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_filled(one.text, values))
    command = (*variant.command, *(_filled(word, values) for word in agent.model.arguments))
    model = {name: _filled(value, values) for name, value in agent.model.env.items()}
    env = {
        "PATH": search_path(agent),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        **agent.env,
        **{name: value for name, value in model.items() if value},
    }
    without_login = partial(make_sandbox, agent, variant, base_url, root / "no-login", "")
    return Sandbox(root, command, env, variant, without_login, agent.name)


def _filled(text: str, values: Mapping[str, str]) -> str:
    for word, value in values.items():
        text = text.replace(word, value)
    return text
