"""Costs that a user feels: a task, a task with a worktree, a question about a long journal, an import; each beside the
same work without the supervisor, in the same run.

- *task*: ``supervisor run`` with tasks of ``true``, beside ``make -j4`` with as many targets of ``true``, and beside
  DBOS (if it is installed) with as many workflows of one step, on a SQLite file.
- *worktree*: tasks one after another, each of which changes a file in a worktree of its own and is merged, beside the
  git commands that a person would use for that; and the number of git processes for a task.
- *git*: a git command that only reads, as the supervisor starts it, beside ``anyio.run_process``.
- *question*: ``why``, ``ps`` and ``tree --json`` at a journal of 424,000 records, of which most belong to
  what has ended, beside a journal that has only the living sessions.
- *import*: ``from supervisor import open_supervisor`` beside the import of the libraries that it needs.

Times are processor time, of the children too, but for ``task`` and ``worktree``, whose wall time counts as well.

Two checkouts are compared with ``python -m benchmarks.felt --against CHECKOUT``: the other side is then CHECKOUT, the
directory of another, older one. Run: ``python -m benchmarks.felt [--against CHECKOUT] [--only TEXT] [--rounds N]
[--folder DIR] [--short]``.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Aim, Case, Figures, Line, Measure, Missing, at_most, at_most_times
from benchmarks.recovery import fill
from benchmarks.table import show_beside_checkout
from supervisor.journal.statedir import StateDir

ROOT = Path(__file__).parents[1]


class Effort(NamedTuple):
    """Numbers of tasks, of tasks with a worktree, of git commands, of records and of living sessions of the journals,
    and of rounds."""

    tasks: int
    worktrees: int
    commands: int
    records: int
    live: int
    rounds: int


FULL = Effort(tasks=200, worktrees=20, commands=100, records=424_000, live=2_000, rounds=5)
SHORT = Effort(tasks=2, worktrees=1, commands=1, records=400, live=10, rounds=1)
RECORDS_OF_A_SESSION = 10
"""Records of each living session that ``recovery.fill`` writes."""

IMPORT = "from supervisor import open_supervisor"
LIBRARIES = "import anyio, asyncio, apsw, msgspec; from pydantic import BaseModel"
PLAN = "agents: {{a: {{adapter: command, command: {command}}}}}\n{more}tasks:\n{tasks}"
WORK = 'echo "$SUPERVISOR_SESSION" > file'
WORK_BY_HAND = (
    'git worktree add -q -b t{n} "$W" main && cd "$W" && echo t{n} > file && git add -A && git commit -qm t{n} '
    '&& cd "$R" && git merge -q --no-edit t{n} && git worktree remove "$W" && git branch -qd t{n}\n'
)
READ = """
import anyio, os, sys
from supervisor.processes.host import ShimHost
from supervisor.workspaces.git_command import Git
async def main(where, count):
    async with ShimHost() as host:
        git = Git(host, where)
        for _ in range(count):
            await git.commit_of(where, "main")
anyio.run(main, sys.argv[1], int(sys.argv[2]))
"""
BARE_READ = """
import anyio, sys
async def main(where, count):
    for _ in range(count):
        await anyio.run_process(["git", "rev-parse", "--verify", "main^{commit}"], cwd=where)
anyio.run(main, sys.argv[1], int(sys.argv[2]))
"""
DBOS = """
import logging, sys
from dbos import DBOS
DBOS(config={"name": "felt", "system_database_url": "sqlite:///felt.sqlite", "log_level": "CRITICAL"})
@DBOS.step()
def step():
    pass
@DBOS.workflow()
def workflow():
    step()
DBOS.launch()
for handle in [DBOS.start_workflow(workflow) for _ in range(int(sys.argv[1]))]:
    handle.get_result()
DBOS.destroy()
"""


class Spent(NamedTuple):
    """Milliseconds that a program took: by the wall clock, and of processor time with that of its children."""

    wall_ms: float
    cpu_ms: float


def run(argv: Sequence[str], where: Path, **variables: str) -> Spent:
    """Run a program in a directory to its end.

    Raises:
        RuntimeError: the program failed; the message ends with its output.
    """
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    ran = subprocess.run(argv, cwd=where, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    took_s, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    if ran.returncode:
        raise RuntimeError(f"{argv[:4]}: exit status {ran.returncode}\n{ran.stdout}{ran.stderr}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Spent(took_s * 1e3, cpu_s * 1e3)


def python(checkout: Path, where: Path, *arguments: str, **variables: str) -> Spent:
    """Run Python with the packages of a checkout."""
    return run([sys.executable, *arguments], where, PYTHONPATH=str(checkout), **variables)


@contextmanager
def folder(disk: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=disk, ignore_cleanup_errors=True) as name:
        yield Path(name)


# ------------------------------------------------------------------------------------------------------ tasks
def plan(tasks: int, command: str, more: str = "", *, chained: bool = False) -> str:
    lines = (
        f"- {{id: t{n}, agent: a, prompt: x{f', depends_on: [t{n - 1}]' if n and chained else ''}}}\n"
        for n in range(tasks)
    )
    return PLAN.format(command=command, more=more, tasks="".join(lines))


def tasks_of(checkout: Path, disk: Path | None, count: int) -> Figures:
    with folder(disk) as where:
        (where / "plan.yaml").write_text(plan(count, "['true']"))
        took = python(checkout, where, "-m", "supervisor", "run", "plan.yaml")
        return took.wall_ms / count, took.cpu_ms / count


def tasks_of_make(disk: Path | None, count: int) -> Figures:
    with folder(disk) as where:
        names = " ".join(f"t{n}" for n in range(count))
        (where / "Makefile").write_text(f".PHONY: all {names}\nall: {names}\n{names}:\n\t@true\n")
        took = run(["make", "-j4", "--silent"], where)
        return took.wall_ms / count, took.cpu_ms / count


def workflows_of_dbos(disk: Path | None, count: int) -> Figures:
    if find_spec("dbos") is None:
        raise Missing("DBOS: pip install dbos")
    with folder(disk) as where:
        took = run([sys.executable, "-c", DBOS, str(count)], where)
        return took.wall_ms / count, took.cpu_ms / count


# -------------------------------------------------------------------------------------------------- worktrees
def make_repository(where: Path) -> None:
    script = (
        "git init -q -b main . && git config user.name bench && git config user.email bench@localhost && "
        "echo x > file && echo .sdd > .gitignore && git add -A && git commit -qm first"
    )
    run(["sh", "-ec", script], where)


def worktrees_of(checkout: Path, disk: Path | None, count: int) -> Figures:
    """Return wall and processor time for each task, and the number of git processes, counted in a run of their own."""
    found = []
    for counted in (False, True):
        with folder(disk) as where:
            repository, log = where / "repository", where / "log"
            repository.mkdir()
            make_repository(repository)
            (repository / "plan.yaml").write_text(
                plan(count, f"[sh, -c, '{WORK}']", "workspace: worktree\n", chained=True)
            )
            path = {"PATH": f"{_counting_git(where, log)}:{os.environ['PATH']}"} if counted else {}
            took = python(checkout, repository, "-m", "supervisor", "run", "plan.yaml", **path)
            found.append(took)
            processes = len(log.read_bytes()) if counted else 0
    return found[0].wall_ms / count, found[0].cpu_ms / count, processes / count


def _counting_git(where: Path, log: Path) -> Path:
    """Make a program ``git`` that adds a byte to *log* and then runs git; return its directory."""
    real = subprocess.run(["sh", "-c", "command -v git"], capture_output=True, text=True, check=True).stdout.strip()
    place = where / "bin"
    place.mkdir()
    (place / "git").write_text(f'#!/bin/sh\nprintf x >> {log}\nexec {real} "$@"\n')
    (place / "git").chmod(0o755)
    return place


def worktrees_by_hand(disk: Path | None, count: int) -> Figures:
    with folder(disk) as where:
        repository = where / "repository"
        repository.mkdir()
        make_repository(repository)
        script = "".join(WORK_BY_HAND.format(n=n) for n in range(count))
        took = run(["sh", "-ec", script], repository, W=str(where / "worktree"), R=str(repository))
        return took.wall_ms / count, took.cpu_ms / count, float(WORK_BY_HAND.count("git "))


# ------------------------------------------------------------------------------------------ commands, questions
def reads_of(checkout: Path, disk: Path | None, count: int, program: str = READ) -> Figures:
    """Return the processor time of a git command that reads, without that of a run with none."""
    with folder(disk) as where:
        make_repository(where)
        some, none = (python(checkout, where, "-c", program, str(where), str(n)).cpu_ms for n in (count, 0))
        return (max(some - none, 0.0) / count,)


@cache
def journal(disk: Path | None, records: int, live: int) -> tempfile.TemporaryDirectory[str]:
    """Make a state directory with a journal of so many records, which is removed with this process."""
    made = tempfile.TemporaryDirectory(dir=disk)
    state = StateDir(Path(made.name) / ".sdd")
    state.journal.parent.mkdir(parents=True)
    fill(state.journal, records, live)
    return made


def question_of(checkout: Path, disk: Path | None, records: int, live: int, command: Sequence[str]) -> Figures:
    made = journal(disk, records, live)
    return (python(checkout, Path(made.name), "-m", "supervisor", *command).cpu_ms,)


def import_of(checkout: Path, program: str) -> Figures:
    return (python(checkout, checkout, "-c", program).cpu_ms,)


# ---------------------------------------------------------------------------------------------------- the table
def cases(effort: Effort, disk: Path | None = None, against: Path | None = None) -> list[Case]:
    """Return the measurements, beside their bare counterparts, or beside those of the checkout *against*."""

    def fixed(measure: Callable[[], Figures]) -> Measure:
        return lambda backend, sizes: measure()

    def case(
        names: Sequence[str],
        measure: Callable[[Path], Figures],
        *others: tuple[str, Callable[[], Figures], Sequence[Aim]],
    ) -> list[Case]:
        lines = [Line(name, "" if "processes" in name else "ms") for name in names]
        ours = fixed(partial(measure, ROOT))
        if against is not None:
            return [Case(tuple(lines), ours, against.name, fixed(partial(measure, against)), backends=("asyncio",))]
        return [
            Case(
                tuple(line._replace(aim=aim) for line, aim in zip(lines, aims, strict=True)),
                ours, beside, fixed(theirs), backends=("asyncio",),
            )
            for beside, theirs, aims in others
        ]  # fmt: skip

    both = ("wall time", "processor time")
    sizes = (effort.records, effort.live * RECORDS_OF_A_SESSION)
    found = case(
        [f"task of true: {one}" for one in both],
        lambda checkout: tasks_of(checkout, disk, effort.tasks),
        ("make -j4", lambda: tasks_of_make(disk, effort.tasks), [at_most_times(18)] * 2),
        ("DBOS, SQLite", lambda: workflows_of_dbos(disk, effort.tasks), [at_most_times(0.9)] * 2),
    )
    found += case(
        [f"task with a worktree: {one}" for one in (*both, "git processes")],
        lambda checkout: worktrees_of(checkout, disk, effort.worktrees),
        ("git by hand", lambda: worktrees_by_hand(disk, effort.worktrees), [at_most_times(4)] * 2 + [at_most(14)]),
    )
    found += case(
        ["git command that reads"],
        lambda checkout: reads_of(checkout, disk, effort.commands),
        ("anyio.run_process", lambda: reads_of(ROOT, disk, effort.commands, BARE_READ), [at_most_times(2)]),
    )
    for command in (("why", "s0"), ("ps",), ("tree", "--json")):
        long, short = (partial(question_of, disk=disk, records=one, live=effort.live, command=command) for one in sizes)
        found += case(
            [f"{' '.join(command)}, {sizes[0]} records"],
            long,
            (f"{sizes[1]} records", partial(short, ROOT), [at_most_times(1.2)]),
        )
    return found + case(
        [IMPORT],
        lambda checkout: import_of(checkout, IMPORT),
        ("its libraries", lambda: import_of(ROOT, LIBRARIES), [at_most_times(1.5)]),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    show_beside_checkout(__doc__, cases, FULL, SHORT, arguments)


if __name__ == "__main__":
    main()
