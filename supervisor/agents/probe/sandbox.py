"""Scratch directory for a probed agent: a working directory, and a home directory with files that connect the agent to
a model server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from supervisor.agent_catalogue import AgentVariant, KnownAgent
from supervisor.agents.probe.discovery import search_path

KEY: Final = "stub-key"
"""Placeholder for an API key: agents do not start without a key."""


class Sandbox:
    """Command, environment and directories of one probed agent. The agent is configured for the given model server
    only."""

    def __init__(self, root: Path, command: tuple[str, ...], env: dict[str, str], variant: AgentVariant) -> None:
        self.directory = root / "work"
        """Working directory of every process of the agent: agents store their conversations by working directory."""
        self.command = command
        self.env = env
        self.variant = variant
        self._root = root
        self._reports = 0

    def report(self) -> Path:
        """Return the path of a new file into which ``orphan_watch`` writes its report."""
        self._reports += 1
        return self._root / f"left-{self._reports}.json"


def make_sandbox(agent: KnownAgent, variant: AgentVariant, base_url: str, root: Path) -> Sandbox:
    """Create a home directory below *root*, with the files that connect *agent* to the model server at *base_url*."""
    root = root.resolve()
    home = root / "home"
    home.mkdir()
    (root / "work").mkdir()
    said = {"{base_url}": base_url.rstrip("/"), "{key}": KEY}
    for one in agent.model.files:
        path = home / one.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_filled(one.text, said))
    command = (*variant.command, *(_filled(word, said) for word in agent.model.arguments))
    env = {
        "PATH": search_path(agent),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        **agent.env,
        **{name: _filled(value, said) for name, value in agent.model.env.items()},
    }
    return Sandbox(root, command, env, variant)


def _filled(text: str, said: Mapping[str, str]) -> str:
    for word, value in said.items():
        text = text.replace(word, value)
    return text
