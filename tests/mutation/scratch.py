"""Scratch copies of the working tree, each with an interpreter of its own, in which tests run against changed modules.

Many tests start programs with ``sys.executable``, which must import the scratch copy as well; so each copy has its own
interpreter. That interpreter uses the installed packages of the interpreter that runs this module.
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
import venv
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple, TypeVar

from .changes import BUILD, ROOT, path_of

T = TypeVar("T")
R = TypeVar("R")

OPTIONS = ("-q", "-p", "mutation_probe", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
MEMORY_MAX = 6 * 1024**3
SOAK = ("-m", "tests.verification", "soak", "--seeds", "30", "--jobs", "1", "--json")
SOAK_WALL_S = 240.0


class Outcome(NamedTuple):
    """Outcome of a run of tests. *killer*: the test that failed, or ``""``. *results*: the lines that the probe
    wrote."""

    killer: str
    results: Sequence[Sequence[str]]


class Scratch:
    """Scratch copy of the working tree. :meth:`close` ends every process that still runs in the copy, and removes the
    copy."""

    def __init__(self) -> None:
        BUILD.mkdir(parents=True, exist_ok=True)
        self.place = Path(
            tempfile.mkdtemp(prefix="copy-", dir=BUILD)
        )  # not below /tmp, of which sandboxes have their own
        self.temporary = Path(tempfile.mkdtemp(prefix="mutants-"))  # sockets need a short path
        self.root = self.place / "tree"
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)
        self.python = self.place / "venv" / "bin" / "python"
        venv.create(self.place / "venv", symlinks=True)
        packages = sysconfig.get_path("purelib", vars={"base": str(self.place / "venv")})
        lines = [str(self.root), sysconfig.get_path("purelib"), str(self.place), "import mutation_probe"]
        Path(packages, "scratch.pth").write_text("\n".join(lines) + "\n")
        command = self.python.with_name("supervisor")
        command.write_text(f"#!{self.python}\nfrom supervisor.__main__ import main\n\nmain()\n")
        command.chmod(0o755)
        shutil.copy(Path(__file__).with_name("probe.py"), self.place / "mutation_probe.py")

    def close(self) -> None:
        self._end_processes()
        for place in (self.place, self.temporary):
            shutil.rmtree(place, ignore_errors=True)

    def change(self, module: str, change: Callable[[ast.Module], object]) -> None:
        """Write that module into the copy with *change* applied; :meth:`restore` undoes the change."""
        tree = ast.parse(path_of(module).read_text())
        change(tree)
        self._write(module, ast.unparse(ast.fix_missing_locations(tree)))

    def restore(self, module: str) -> None:
        self._write(module, path_of(module).read_text())

    def _write(self, module: str, text: str) -> None:
        path = path_of(module, self.root)
        path.write_text(text)
        for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            stale.unlink()

    def test(self, files: Iterable[str], chosen: Sequence[str] | None, wall_s: float, *options: str) -> Outcome:
        """Run the tests of these files in the copy, or only the *chosen* ones, in their order."""
        notes = self.place / "results"
        notes.write_text("")
        (self.place / "chosen").unlink(missing_ok=True)
        if chosen is not None:
            (self.place / "chosen").write_text(json.dumps(chosen))
        command = ("-m", "pytest", *OPTIONS, "--basetemp", str(self.temporary / "t"), *options, *files)
        status, _ = self._run(command, wall_s)
        results = [line.split("\t") for line in notes.read_text().splitlines()]
        failed = next((one[1] for one in results if one[0] == "failed"), "")
        if status in (0, 5) or failed:
            return Outcome(failed, results)
        last = next((one[1] for one in reversed(results) if one[0] == "begins"), "collection")
        return Outcome(f"{last} ({_how(status)})", results)

    def simulate(self) -> str:
        """Run a short soak of the simulator in the copy; return ``simulation`` with the kind of the failure, or ``""``.
        No digest is compared."""
        status, printed = self._run(SOAK, SOAK_WALL_S)
        try:
            return "simulation (violation)" if json.loads(printed)["violations"] else ""
        except ValueError:
            return f"simulation ({_how(status)})"

    def _run(self, arguments: Sequence[str], wall_s: float) -> tuple[int | None, str]:
        """Run Python in the copy; return the exit status (``None`` if it was killed after *wall_s* seconds) and the
        output."""
        command = ["prlimit", f"--as={MEMORY_MAX}", str(self.python), *arguments]
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": ""}
        with open(self.place / "printed", "w+b") as printed, open(os.devnull, "r+b") as nothing:
            started = subprocess.Popen(
                command,
                cwd=self.root,
                env=environment,
                stdin=nothing,
                stdout=printed,
                stderr=nothing,
                start_new_session=True,  # a mutant may signal its own group
            )
            try:
                status: int | None = started.wait(wall_s)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                self._end_processes()
                started.wait()
            printed.seek(0)
            return status, printed.read().decode(errors="replace")

    def _end_processes(self) -> None:
        """Kill the processes of this copy: programs of its interpreter, and processes whose working directory is in its
        folders."""
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                named = (entry / "cmdline").read_bytes().decode(errors="replace") + os.readlink(entry / "cwd")
                if str(self.place) in named or str(self.temporary) in named:
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue  # the process has ended, or belongs to somebody else


def _how(status: int | None) -> str:
    return "endless" if status is None else f"exit status {status}"


def share(scratches: Sequence[Scratch], work: Iterable[T], do: Callable[[Scratch, T], R]) -> Iterator[R]:
    """Do each piece of work in a scratch copy that is free; yield the results as they come."""
    free: queue.SimpleQueue[Scratch] = queue.SimpleQueue()
    for scratch in scratches:
        free.put(scratch)

    def one(piece: T) -> R:
        scratch = free.get()
        try:
            return do(scratch, piece)
        finally:
            free.put(scratch)

    pool = ThreadPoolExecutor(len(scratches))
    try:
        for done in as_completed([pool.submit(one, piece) for piece in work]):
            yield done.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
