"""Kit for the field tests: a scratch directory, the real ``supervisor`` command in it, and an ACP agent to script.

Each test in this folder is a situation that a user has met: a plan, a real supervisor process, an agent that behaves
badly, and what must be true for the user afterwards. A test waits for facts (a file, a line of output, the end of a
process), never for time to pass::

    def test_a_program_that_prints_is_completed(scratch: Scratch) -> None:
        \"\"\"A command that exits with 0 completes its task.\"\"\"
        scratch.plan('''
            agents: {a: {adapter: command, command: [echo, hello]}}
            tasks: [{id: t, agent: a, prompt: ""}]
        ''')
        done = scratch.run("run", "plan.yaml")
        assert done.status == 0, done.text
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from tests.support import run_command

ROOT = Path(__file__).parents[2]

DEADLINE_S = 120.0
"""Seconds that a test waits for a fact to become true. Generous, since a test that passes never waits for so long."""

POLL_S = 0.01

T = TypeVar("T")


def until(fact: Callable[[], T], within_s: float = DEADLINE_S) -> T:
    """Call *fact* again and again, and return its first true value; fail the test after *within_s* seconds."""
    end = time.monotonic() + within_s
    while not (value := fact()):
        assert time.monotonic() < end, f"it has not come about within {within_s:.0f} s"
        time.sleep(POLL_S)
    return value


def alive(pid: int) -> bool:
    """Return whether process *pid* exists and is no zombie; a process whose main thread has ended is alive while it has
    other threads."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0] not in "ZX" or int(fields[17]) > 1
    except OSError:
        return False


@dataclass(frozen=True)
class Finished:
    """Exit status of a command that has ended, and the text that the command printed."""

    status: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err

    def json(self) -> Any:
        """Return the last line of standard output as JSON."""
        return json.loads(self.out.splitlines()[-1])


class Running:
    """Handle of a ``supervisor`` command that runs in the background; the command's output goes to files."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self.process, self._out, self._err = process, out, err

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def out(self) -> str:
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace")

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        """Kill the command with SIGKILL, as the kernel does when memory runs out, and wait for the end of the
        process."""
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def wait(self, within_s: float = DEADLINE_S) -> Finished:
        """Wait for the end of the command; return its exit status and its output."""
        status = self.process.wait(within_s)
        return Finished(status, self.out, self.err)


class Scratch:
    """Directory of one test, with helpers to write files, run commands in the directory, and read the records of its
    supervisor."""

    def __init__(self, path: Path) -> None:
        self.path = path / "work"
        self.path.mkdir()
        self.logs = path / "logs"
        self.logs.mkdir()
        home = path / "home"
        home.mkdir()
        (home / ".gitconfig").write_text("[user]\n name = Field\n email = field@example.invalid\n")
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "XDG_", "SUPERVISOR_"))
        }
        kept |= {"HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1", "PYTHONPATH": str(ROOT)}
        self.env: dict[str, str] = {**kept, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        self.started: list[Running] = []

    # ------------------------------------------------------------------------------------------------ files
    def write(self, name: str, text: str) -> Path:
        """Write a file into the scratch directory, after removing the common indentation of *text*."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"))
        return path

    def plan(self, text: str) -> Path:
        """Write *text* to ``plan.yaml``."""
        return self.write("plan.yaml", text)

    def acp_agent(self, body: str, name: str = "agent.py") -> Path:
        """Write an ACP agent: *body* is the body of ``def prompted(agent, text)``, which returns the text of the reply.

        ``agent.call(method, **params)`` sends a request to the supervisor and returns the whole reply,
        ``agent.update(**update)`` sends a session update; see ``acp_agent.py``.
        """
        (self.path / "acp_agent.py").write_text(Path(__file__).with_name("acp_agent.py").read_text())
        lines = ["from acp_agent import *", "", "def prompted(agent, text):"]
        return self.write(
            name, "\n".join(lines) + "\n" + textwrap.indent(textwrap.dedent(body), "    ") + "\nserve(prompted)\n"
        )

    def repository(self) -> None:
        """Make the scratch directory a git repository with a first commit; git ignores ``.sdd``, the plan and the
        agents."""
        self.write(".gitignore", "/.sdd/\n/plan.yaml\n/*agent*.py\n__pycache__/\n")
        self.git("init", "-q", "-b", "main")
        self.git("add", ".")
        self.git("commit", "-qm", "base")

    def git(self, *args: str) -> str:
        """Run ``git ARGS`` and return the output; fail the test if git fails."""
        done = subprocess.run(["git", *args], cwd=self.path, env=self.env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"git {' '.join(args)}: {done.stderr}"
        return done.stdout.strip()

    # --------------------------------------------------------------------------------------------- commands
    def start(self, *args: str, env: Mapping[str, str] | None = None, **options: Any) -> Running:
        """Start ``supervisor ARGS`` in the background."""
        number = len(self.started)
        out, err = self.logs / f"{number}.out", self.logs / f"{number}.err"
        with out.open("wb") as to_out, err.open("wb") as to_err:
            streams = {"stdin": subprocess.DEVNULL, "stdout": to_out, "stderr": to_err}
            options = {**streams, "start_new_session": True, **options}
            process = subprocess.Popen(
                [sys.executable, "-m", "supervisor", *args],
                cwd=self.path,
                env={**self.env, **(env or {})},
                **options,
            )
        self.started.append(Running(process, out, err))
        return self.started[-1]

    def run(self, *args: str, within_s: float = DEADLINE_S, **options: Any) -> Finished:
        """Run ``supervisor ARGS`` to its end, and return exit status and output.

        Commands that start no supervisor run inside the test's own process, unless *options* for a process are given: a
        start of Python takes half a second of CPU time.
        """
        if args[0] == "run" or options:
            return self.start(*args, **options).wait(within_s)
        with patch.dict(os.environ, self.env, clear=True):
            return Finished(*run_command(*args, cwd=self.path))

    def records(self, entity_id: str = "") -> list[dict[str, Any]]:
        """Return the records of the journal in order; only those of one entity if *entity_id* is given."""
        shown = self.run("events", "--json")
        assert shown.status == 0, shown.text
        records = [json.loads(line) for line in shown.out.splitlines()]
        return [one for one in records if not entity_id or one["entity_id"] == entity_id]

    def close(self) -> None:
        """End every command that still runs: by SIGTERM (drain), then SIGINT (abort), then SIGKILL."""
        for one in self.started:
            for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGINT):
                if not one.ended:
                    with suppress(ProcessLookupError):
                        one.process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                one.process.wait(20)
            if not one.ended:
                one.kill()
