"""Installation of the catalogue's agents, in their pinned versions, each into a folder of its own, by npm or pip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from supervisor.agent_catalogue.catalogue import Install, KnownAgent

INSTALL_S = 300.0


class NotInstalled(Exception):
    """Exception: an agent cannot be installed; the message is that of npm or pip."""


def program_of(agent: KnownAgent, cache: Path) -> Path:
    """Return the path of the agent's program; install it below *cache* unless that version is there already.

    Raises:
        NotInstalled: the agent cannot be installed.
    """
    if agent.install is None:
        raise NotInstalled(f"the catalogue does not say how to install {agent.name}")
    folder = (cache / f"{agent.name}-{agent.install.version}").absolute()
    done = folder / "installed"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for command in _commands(agent.install, folder):
            _run(command)
        done.touch()
    program = folder / ("node_modules/.bin" if agent.install.client == "npm" else "bin") / agent.program
    if not program.exists():
        raise NotInstalled(f"{agent.install.package} has no program {agent.program!r}")
    return program


def _python() -> str:
    """Return the Python interpreter for agents from PyPI, which may need a newer one than the tests: the one that
    ``AGENTS_PYTHON`` names, else 3.12 or 3.13 (newer ones lack wheels of some packages) from PATH or from the versions
    that pyenv has installed but not activated, else the newest on PATH that starts."""
    kept = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    kept_too = [str(one) for minor in (12, 13) for one in sorted(kept.glob(f"3.{minor}.*/bin/python3"))]
    names = ["python3.12", "python3.13", *kept_too, *(f"python3.{minor}" for minor in range(20, 10, -1))]
    for name in [os.environ.get("AGENTS_PYTHON", ""), *names]:
        found = shutil.which(name) if name else None
        if found and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0:
            return found
    return sys.executable


def _commands(install: Install, folder: Path) -> list[list[str]]:
    if install.client == "npm":
        quiet = ["--no-audit", "--no-fund", "--no-save", "--loglevel=error"]
        return [["npm", "install", "--prefix", str(folder), *quiet, *install.wanted]]
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return [[_python(), "-m", "venv", str(folder)], [*pip, *install.wanted]]


def _run(command: list[str]) -> None:
    env = {**os.environ, "PYTHONWARNINGS": ""}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(str(error)) from None
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()][-3:]
        raise NotInstalled(f"{' '.join(command[:3])} ...: {' / '.join(last)[:500]}")
