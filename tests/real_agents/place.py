"""Place of one cell: a scratch directory, a home directory, and a tag in the environment of every process of the cell.

Every agent was observed to pass its environment with the tag on to its tools and their daemons; in addition the tools
of a cell sleep for a number of seconds that no other process uses. So a process that the cell leaves behind is found by
the tag or by that number.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

import anyio
import msgspec

from supervisor.agent_catalogue import known_agent
from supervisor.mock_model.environment import KEY
from supervisor.plans import AgentConfig

TAG = "AGENTS_CELL"
LOOK_S = 0.05
WAIT_S = 60.0


class Broken(Exception):
    """Exception: a requirement of a cell is not met; the message says what was observed."""


class Place(msgspec.Struct, frozen=True):
    """Scratch place of a cell, which can be passed to another process as JSON."""

    agent: str
    program: str
    folder: str
    tag: str
    base_url: str

    @property
    def state(self) -> Path:
        return Path(self.folder) / "state"

    @property
    def work(self) -> Path:
        return Path(self.folder) / "work"

    @property
    def home(self) -> Path:
        return Path(self.folder) / "home"

    @property
    def once(self) -> str:
        """Shell command that hangs when it is first run, and ends when it is run again, since a prompt that was
        interrupted may be sent again as a whole."""
        return f"test -e once || {{ touch once; echo begun; sleep {self.seconds}; }}; echo again >> again"

    @property
    def seconds(self) -> str:
        """Number of seconds, unique to this cell, for which its tools sleep."""
        return f"3600.{int(self.tag, 16)}"

    def config(self) -> AgentConfig:
        """Return the configuration of the cell's agent, set up to use the model server."""
        agent = known_agent(self.agent)
        variant, model = agent.variant(), agent.model
        arguments = tuple(self._filled(one) for one in model.arguments)
        env = {name: self._filled(value) for name, value in model.env.items()}
        return AgentConfig(
            known=self.agent,
            command=(self.program, *variant.command[1:]),
            arguments=arguments,
            env={**self._base_env(), **env},
        )

    def write_files(self) -> None:
        """Create the directories of the place, and the agent's configuration files that name the model server."""
        for folder in (self.work, self.home):
            folder.mkdir(parents=True)
        for file in known_agent(self.agent).model.files:
            path = self.home / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._filled(file.text))

    def _filled(self, text: str) -> str:
        return text.replace("{base_url}", self.base_url).replace("{key}", KEY)

    def _base_env(self) -> dict[str, str]:
        node = shutil.which("node")
        folders = ["/usr/local/bin", "/usr/bin", "/bin", *([str(Path(node).parent)] if node else [])]
        return {
            "PATH": ":".join(folders),
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "NO_PROXY": "127.0.0.1,localhost",
            TAG: self.tag,
        }

    # ------------------------------------------------------------------ processes
    def processes(self) -> dict[int, str]:
        """Return all living processes of this cell, each pid with its command line."""
        return {pid: words for pid in _pids() if (words := self._mine(pid)) is not None}

    def sleepers(self) -> dict[int, str]:
        """Return the processes of this cell that are sleeping tools."""
        return {pid: words for pid, words in self.processes().items() if words == f"sleep {self.seconds}"}

    def _mine(self, pid: int) -> str | None:
        words = _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
        tagged = f"{TAG}={self.tag}".encode() in _read(pid, "environ").split(b"\0")
        return words if words and pid != os.getpid() and (tagged or f"sleep {self.seconds}" in words) else None

    async def until(self, holds: Callable[[], bool], what: str, within_s: float = WAIT_S) -> None:
        """Call *holds* repeatedly until it returns true.

        Raises:
            Broken: the condition does not hold in time.
        """
        with anyio.move_on_after(within_s):
            while not holds():  # noqa: ASYNC110 - other people's processes ring no bell
                await anyio.sleep(LOOK_S)
            return
        raise Broken(f"{what}: not within {within_s:g} s; there are {self.told()}")

    def told(self) -> str:
        """Return the living processes of this cell as text."""
        there = self.processes()
        return "; ".join(f"{pid} {words[:80]}" for pid, words in there.items()) or "no processes"


@contextmanager
def scratch(agent: str, program: Path, base_url: str, *, keep: bool = False) -> Iterator[Place]:
    """Create a place for the block. Afterwards its processes are killed and its files removed, unless *keep* is set."""
    folder = mkdtemp(prefix=f"agents-{agent}-")
    place = Place(agent, str(program), folder, secrets.token_hex(4), base_url)
    place.write_files()
    try:
        yield place
    finally:
        for pid in place.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it has gone, or is another's
        return b""
