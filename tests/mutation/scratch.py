"""Scratch copies of the working tree, each with an interpreter of its own, in which tests run against changed modules.

An interpreter of its own is needed because many tests start programs with ``sys.executable``: these must import the
copy as well. It uses the packages of the interpreter that runs this.
"""

from __future__ import annotations

import ast
import json
import os
import queue
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import threading
import venv
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from .changes import ROOT, path_of

__all__ = ["Outcome", "Scratch", "share"]

T = TypeVar("T")
R = TypeVar("R")

WARNED = "ignore::pytest.PytestAssertRewriteWarning"
MEMORY_MAX = 6 * 1024**3
SOAK = ("-m", "supervisor", "simulate", "soak", "--seeds", "30", "--jobs", "1", "--json")
SOAK_WALL_S = 240.0


class Outcome(NamedTuple):
    """Tests that were run, or a simulation. *killer*: what failed, or ``""``. *results*: the lines of the probe."""

    killer: str
    results: Sequence[Sequence[str]]


class Scratch:
    """A copy of the working tree. :meth:`close` ends whatever still runs in it, and removes it."""

    def __init__(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="mutants-"))
        self.root = self.place / "tree"
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)
        venv.create(self.place / "venv", symlinks=True)
        packages = sysconfig.get_path("purelib", vars={"base": str(self.place / "venv")})
        lines = [str(self.root), sysconfig.get_path("purelib"), str(self.place), "import mutation_probe"]
        Path(packages, "scratch.pth").write_text("\n".join(lines) + "\n")
        shutil.copy(Path(__file__).with_name("probe.py"), self.place / "mutation_probe.py")

    def close(self) -> None:
        self.end_processes()
        shutil.rmtree(self.place, ignore_errors=True)

    def change(self, module: str, change: Callable[[ast.Module], None]) -> None:
        """Write that module anew, changed; :meth:`restore` undoes it."""
        path = path_of(module, self.root)
        tree = ast.parse(path_of(module).read_text())
        change(tree)
        self._write(path, ast.unparse(ast.fix_missing_locations(tree)))

    def restore(self, module: str) -> None:
        self._write(path_of(module, self.root), path_of(module).read_text())

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text)
        for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            stale.unlink()

    def test(self, files: Iterable[str], chosen: Sequence[str] | None, wall_s: float, *options: str) -> Outcome:
        """Run the tests of these files, or those of them that are chosen, in the order in which they are given."""
        for stale in ("chosen", "results"):
            (self.place / stale).unlink(missing_ok=True)
        if chosen is not None:
            (self.place / "chosen").write_text(json.dumps(chosen))
        flags = (
            "-q",
            "-W",
            WARNED,
            "-p",
            "mutation_probe",
            "-p",
            "no:cacheprovider",
            "--basetemp",
            str(self.place / "tmp"),
            *options,
        )
        status, _ = self._run(("-m", "pytest", *flags, *files), wall_s)
        results = self._results()
        failed = next((one[1] for one in results if one[0] == "failed"), "")
        if status in (0, 5) or failed:
            return Outcome(failed, results)
        last = next((one[1] for one in reversed(results) if one[0] == "begins"), "collection")
        return Outcome(f"{last} ({'endless' if status is None else f'exit status {status}'})", results)

    def _results(self) -> list[list[str]]:
        path = self.place / "results"
        return [line.split("\t") for line in path.read_text().splitlines()] if path.exists() else []

    def simulate(self) -> str:
        """A short soak; what is violated in it, or how it breaks, or ``""``. No digest is compared."""
        status, out = self._run(SOAK, SOAK_WALL_S)
        try:
            told = json.loads(out)
        except ValueError:
            return f"simulation ({'endless' if status is None else f'exit status {status}'})"
        return "simulation (violation)" if told["violations"] else ""

    def _run(self, arguments: Sequence[str], wall_s: float) -> tuple[int | None, str]:
        """The exit status, ``None`` if it came to no end; and what it printed."""
        command = ["prlimit", f"--as={MEMORY_MAX}", str(self.place / "venv" / "bin" / "python"), *arguments]
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": ""}
        with open(self.place / "printed", "w+b") as printed:
            started = subprocess.Popen(
                command,
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                status = started.wait(wall_s)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                self.end_processes()
                started.wait()
            printed.seek(0)
            return status, printed.read().decode(errors="replace")

    def end_processes(self) -> None:
        """Kill what still runs in this copy: programs of its interpreter, and what stands in its folder."""
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                own = str(self.place).encode() in (entry / "cmdline").read_bytes()
                if (own or str(self.place) in os.readlink(entry / "cwd")) and int(entry.name) != os.getpid():
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue  # it has ended, or is not ours


def share(scratches: Sequence[Scratch], work: Iterable[T], do: Callable[[Scratch, T], R]) -> Iterator[R]:
    """Do each piece of work in whichever copy is free; the results as they come.

    Raises:
        BaseException: what *do* raised.
    """
    wanted = queue.SimpleQueue[T]()
    for one in work:
        wanted.put(one)
    told = queue.SimpleQueue[R | BaseException]()
    count = wanted.qsize()

    def serve(scratch: Scratch) -> None:
        try:
            while True:
                told.put(do(scratch, wanted.get_nowait()))
        except queue.Empty:
            return
        except BaseException as error:
            told.put(error)

    for scratch in scratches:
        threading.Thread(target=serve, args=(scratch,), daemon=True).start()
    for _ in range(count):
        result = told.get()
        if isinstance(result, BaseException):
            raise result
        yield result
