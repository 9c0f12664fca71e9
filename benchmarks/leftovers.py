"""Measure what process managers leave alive: after their normal stop, and after kill -9 of themselves.

One job: a shell **S** that waits for **a**, a child in its process group; **b**, a grandchild that called setsid, whose
parent waits for it; **c**, a double-forked daemon in a session of its own; **d**, a child in the group that ignores
SIGTERM. Each runner starts the job, and stops it as its documents say, or is killed; then the processes of the job are
counted that are still alive. A runner that is not installed is left out: ``pip install supervisor circus honcho
distributed`` into the environment of ``--tools`` brings them.

Run it with ``python -m benchmarks.leftovers [--tools DIR] [--short] [--write]``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

JOB = """\
sleep 3{token} {out} &
sh -c 'setsid sleep 4{token} {out} & wait' &
(setsid sh -c 'sleep 5{token} {out} &')
sh -c 'trap "" TERM; exec sleep 6{token} {out}' &
{last}
"""
"""Script of the job; the duration of each sleep says which of the processes it is."""
SHAPES = {
    "job": (">/dev/null 2>&1 </dev/null", "wait"),
    "strays hold its pipes": ("", "wait"),
    "its leader ends first": (">/dev/null 2>&1 </dev/null", "sleep 2"),
}
"""Shapes of the job: what its processes do with their output, and the last line of S."""
PARTS = {"3": "a", "4": "b", "5": "c", "6": "d"}
STARTED_S = 60.0
STOP_S = 40.0
LOOK_S = 0.1
MARK_BEGIN, MARK_END = "<!-- leftovers: begin -->", "<!-- leftovers: end -->"
PAGES = [Path(__file__).parents[1] / one for one in ("README.md", "docs/explanation/benchmarks.md")]

KILLPG = """
import os, signal, subprocess, sys
job = subprocess.Popen(["sh", sys.argv[1]], start_new_session=True)
def stop(*_):
    os.killpg(job.pid, signal.SIGTERM)
    try:
        job.wait(5)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
job.wait()
"""
DASK = """
import pathlib, signal, subprocess, sys
from distributed import Client, LocalCluster
def run(script):
    subprocess.run(["sh", script])
if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    with LocalCluster(n_workers=1, processes=True, dashboard_address=None) as cluster, Client(cluster) as client:
        future = client.submit(run, sys.argv[1])
        signal.sigwait({signal.SIGTERM})
        future.cancel()
        pathlib.Path("said").write_text(future.status)
        signal.sigwait({signal.SIGTERM})
"""


class Left(NamedTuple):
    """Processes of the job that are alive, one letter each, after *seconds*; ``said`` is the last output of the
    stop."""

    alive: str
    seconds: float
    said: str = ""

    def __str__(self) -> str:
        return self.alive or f"none ({self.seconds:.1f} s)"


class Job:
    """Job in a scratch directory; its processes are found by a number that no other process has."""

    def __init__(self, folder: Path, shape: str = "job") -> None:
        self.folder = folder
        self.token = f"{secrets.randbelow(10**8):08d}"
        self.script = folder / f"job-{self.token}.sh"
        out, last = SHAPES[shape]
        self.script.write_text(JOB.format(token=self.token, out=out, last=last))

    def processes(self) -> dict[int, str]:
        """Return the living processes of the job, each pid with its letter."""
        found: dict[int, str] = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if words[:1] == ["sleep"] and len(words) > 1 and words[1][1:] == self.token:
                found[int(name)] = PARTS[words[1][0]]
            elif words[1:2] == [str(self.script)] and words[0].rpartition("/")[2] == "sh":
                found[int(name)] = "S"
        return found

    def alive(self) -> str:
        """Return the letters of the processes that are alive."""
        return "".join(sorted(set(self.processes().values()), key="Sabcd".index))

    def until(self, wanted: str, limit_s: float) -> float:
        """Wait until exactly the processes *wanted* are alive; return the seconds that it took, at most *limit_s*."""
        began = time.monotonic()
        while self.alive() != wanted and time.monotonic() - began < limit_s:
            time.sleep(LOOK_S)
        return time.monotonic() - began

    def clean_up(self) -> None:
        """Kill the processes of the job that are left."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Runner(ABC):
    """Process manager that runs the job. ``title`` is the row's name, ``package`` where its version is found."""

    title = ""
    how = ""
    package = ""

    def __init__(self, tools: Path) -> None:
        self.tools = tools

    def program(self, name: str) -> str | None:
        """Return the path of a program of the tool, or ``None``."""
        return shutil.which(name, path=f"{self.tools / 'bin'}:{os.environ['PATH']}")

    @property
    def version(self) -> str:
        """Version of the package among the tools, or ``""`` if there is none."""
        folders = [str(one) for one in self.tools.glob("lib/python*/site-packages")]
        found = next(iter(importlib.metadata.distributions(name=self.package, path=folders)), None)
        return found.version if found is not None else ""

    @property
    def is_there(self) -> bool:
        """Whether the tool is installed."""
        return bool(self.version)

    @abstractmethod
    def command(self, job: Job) -> list[str]:
        """Return the command line that starts the runner with the job."""

    @abstractmethod
    def stop(self, job: Job, runner: subprocess.Popen[bytes]) -> str:
        """Stop the job in the usual way; return what is said."""


def _terminated(runner: subprocess.Popen[bytes], limit_s: float = STOP_S) -> str:
    """Send SIGTERM to the runner and wait for its end."""
    runner.terminate()
    try:
        return f"exit {runner.wait(limit_s)}"
    except subprocess.TimeoutExpired:
        return f"does not end in {limit_s:.0f} s"


def _said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=STOP_S, check=False)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return f"{lines[-1].strip() if lines else 'nothing'}, exit {done.returncode}"


class Ours(Runner):
    title = "supervisor-runtime"
    how = "supervisor stop --now"
    package = "supervisor-runtime"

    @property
    def version(self) -> str:
        return importlib.metadata.version(self.package)

    def command(self, job: Job) -> list[str]:
        (job.folder / "plan.yaml").write_text(
            f"agents: {{w: {{adapter: command, command: [sh, '{job.script}']}}}}\n"
            "tasks: [{id: t, agent: w, prompt: go, max_retries: 0}]\n"
        )
        return [sys.executable, "-m", "supervisor", "run", "plan.yaml", "--state-dir", "state"]

    def stop(self, job: Job, runner: subprocess.Popen[bytes]) -> str:
        ours = [sys.executable, "-m", "supervisor", "stop", "--now", "--wait", "--state-dir", str(job.folder / "state")]
        return _said(*ours)


class KillPg(Runner):
    title = "Popen, start_new_session, killpg"
    how = "SIGTERM, wait 5 s, SIGKILL to the group if the leader lives"

    @property
    def version(self) -> str:
        return f"Python {sys.version.split()[0]}"

    def command(self, job: Job) -> list[str]:
        (job.folder / "runner.py").write_text(KILLPG)
        return [sys.executable, str(job.folder / "runner.py"), str(job.script)]

    def stop(self, job: Job, runner: subprocess.Popen[bytes]) -> str:
        return _terminated(runner)


class Supervisord(Runner):
    title = "supervisord"
    how = "supervisorctl stop"
    package = "supervisor"
    more = ""

    def command(self, job: Job) -> list[str]:
        folder = job.folder
        (folder / "supervisord.conf").write_text(
            f"[supervisord]\nnodaemon=true\nlogfile={folder}/log\npidfile={folder}/pid\nchildlogdir={folder}\n"
            f"[unix_http_server]\nfile={folder}/s.sock\n[supervisorctl]\nserverurl=unix://{folder}/s.sock\n"
            "[rpcinterface:supervisor]\n"
            "supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface\n"
            f"[program:job]\ncommand=sh {job.script}\nautorestart=false\n{self.more}"
        )
        return [self.program("supervisord") or "", "-c", str(folder / "supervisord.conf")]

    def stop(self, job: Job, runner: subprocess.Popen[bytes]) -> str:
        return _said(self.program("supervisorctl") or "", "-c", str(job.folder / "supervisord.conf"), "stop", "job")


class SupervisordGroup(Supervisord):
    title = "supervisord, stopasgroup and killasgroup"
    more = "stopasgroup=true\nkillasgroup=true\n"


class Circus(Runner):
    title = "circus"
    how = "circusctl stop"
    package = "circus"
    more = ""

    def command(self, job: Job) -> list[str]:
        folder = job.folder
        places = [f"{name} = ipc://{folder}/{name}" for name in ("endpoint", "pubsub_endpoint")]
        watcher = f"[watcher:job]\ncmd = sh {job.script}\ngraceful_timeout = 3\n{self.more}"
        (folder / "circus.ini").write_text("\n".join(["[circus]", *places, watcher]))
        return [self.program("circusd") or "", str(folder / "circus.ini")]

    def stop(self, job: Job, runner: subprocess.Popen[bytes]) -> str:
        where = ["--endpoint", f"ipc://{job.folder}/endpoint"]
        return _said(self.program("circusctl") or "", *where, "stop", "job", "--waiting")


class CircusChildren(Circus):
    title = "circus, stop_children"
    more = "stop_children = true\n"


class Honcho(Runner):
    title = "honcho"
    how = "SIGTERM"
    package = "honcho"

    def command(self, job: Job) -> list[str]:
        (job.folder / "Procfile").write_text(f"job: sh {job.script}\n")
        return [self.program("honcho") or "", "-f", str(job.folder / "Procfile"), "start"]

    def stop(self, job: Job, runner: subprocess.Popen[bytes]) -> str:
        return _terminated(runner)


class Dask(Runner):
    title = "dask.distributed"
    how = "future.cancel()"
    package = "distributed"

    def command(self, job: Job) -> list[str]:
        (job.folder / "runner.py").write_text(DASK)
        return [self.program("python") or "", str(job.folder / "runner.py"), str(job.script)]

    def stop(self, job: Job, runner: subprocess.Popen[bytes]) -> str:
        runner.terminate()
        said, began = job.folder / "said", time.monotonic()
        while not said.exists() and time.monotonic() - began < STOP_S:
            time.sleep(LOOK_S)
        return said.read_text() if said.exists() else f"nothing in {STOP_S:.0f} s"


RUNNERS: tuple[type[Runner], ...] = (
    Ours,
    KillPg,
    Supervisord,
    SupervisordGroup,
    Circus,
    CircusChildren,
    Honcho,
    Dask,
)


@contextmanager
def running(runner: Runner, shape: str) -> Iterator[tuple[Job, subprocess.Popen[bytes]]]:
    """Run the job by *runner* for the block; then kill whatever is left of both."""
    with tempfile.TemporaryDirectory(prefix="left-", ignore_cleanup_errors=True) as folder:
        job = Job(Path(folder), shape)
        process = subprocess.Popen(
            runner.command(job),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            wanted = "abcd" if shape == "its leader ends first" else "Sabcd"
            if job.until("Sabcd", STARTED_S) >= STARTED_S and job.alive() != wanted:
                raise RuntimeError(f"{runner.title}: the job does not run: {job.alive() or 'nothing'}")
            yield job, process
        finally:
            job.clean_up()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(STARTED_S)
            job.clean_up()


def after_stop(runner: Runner, shape: str, wait_s: float) -> Left:
    """Return what is left *wait_s* after the normal stop."""
    with running(runner, shape) as (job, process):
        began = time.monotonic()
        said = runner.stop(job, process)
        stopped_s = time.monotonic() - began
        seconds = stopped_s + job.until("", wait_s)
        return Left(job.alive(), seconds, said)


def after_kill(runner: Runner, shape: str, wait_s: float) -> Left:
    """Return what is left *wait_s* after kill -9 of the runner."""
    with running(runner, shape) as (job, process):
        process.kill()
        seconds = job.until("", wait_s)
        return Left(job.alive(), seconds)


def table(tools: Path, runners: tuple[type[Runner], ...], wait_s: float) -> list[str]:
    """Measure all runners; print and return the lines of the table."""
    lines = ["| tool | its normal stop | it says | left alive | after kill -9 of itself |", "|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    for make in runners:
        runner = make(tools)
        if not runner.is_there:
            print(f"{runner.title}: not installed", file=sys.stderr)
            continue
        stop, kill = after_stop(runner, "job", wait_s), after_kill(runner, "job", wait_s)
        lines.append(f"| {runner.title} {runner.version} | `{runner.how}` | {stop.said} | {stop} | {kill} |")
        print(lines[-1], flush=True)
    return lines


def attacks(wait_s: float) -> list[str]:
    """Measure this runtime with the other shapes of the job; print and return a line for each that leaves something."""
    bad = []
    for shape in SHAPES:
        for what, measured in (("stop", after_stop), ("kill -9", after_kill)):
            left = measured(Ours(Path()), shape, wait_s)
            print(f"{shape}, {what}: {left}", flush=True)
            bad += [f"{shape}, {what}: {left}"] if left.alive else []
    return bad


def write(lines: list[str]) -> None:
    """Write the table into the pages, between its two marks."""
    for page in PAGES:
        before, found, rest = page.read_text().partition(MARK_BEGIN)
        if found:
            page.write_text(f"{before}{MARK_BEGIN}\n" + "\n".join(lines) + f"\n{MARK_END}{rest.partition(MARK_END)[2]}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the runners, and print the table; exit status 1 if this runtime leaves anything."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leftovers", description=__doc__.partition("\n")[0])
    parser.add_argument("--tools", type=Path, default=Path(".tools"), help="virtual environment with the other tools")
    parser.add_argument("--short", action="store_true", help="this runtime and Popen only")
    parser.add_argument("--write", action="store_true", help="write the table into README and docs")
    asked = parser.parse_args(arguments)
    lines = table(asked.tools, RUNNERS[:2] if asked.short else RUNNERS, 3.0 if asked.short else 15.0)
    bad = [] if asked.short else attacks(15.0)
    ours = lines[2].split("|")
    bad += [] if all("none" in cell for cell in ours[-3:-1]) else [f"this runtime leaves {ours[-3]}{ours[-2]}"]
    if asked.write:
        write(lines)
    for line in bad:
        print(f"LEFT: {line}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
