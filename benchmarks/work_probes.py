"""Measurements of the work of a plan, each made in a process of its own: the program that ``benchmarks.work`` starts.

The process has the checkout that is measured first on its import path, which may be another one than that of this
file. So this module imports no other module of ``benchmarks``, and uses only what stays as it is: the names of the
package ``supervisor``, the command ``supervisor run``, and SQLite itself, whose commits are counted.

Each measurement is given a folder of its own, and writes its figures as JSON into the file ``figures`` there.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import runpy
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import apsw

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
ROW = b"x" * 300
"""Row of a bare commit: as long as a usual record of the journal."""


class Spent:
    """Figures of a block of *count* tasks: milliseconds by the wall clock and of processor time, ended children
    included, and commits; for each task."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._commits = 0
        apsw.connection_hooks.append(self._watch)

    def _watch(self, database: apsw.Connection) -> None:
        database.set_commit_hook(self._committed, id="benchmark")

    def _committed(self) -> bool:
        self._commits += 1
        return False  # the transaction goes on

    def begin(self) -> None:
        self._commits_before, self._wall_s, self._cpu_s = self._commits, time.perf_counter(), _cpu_s()

    def end(self) -> dict[str, float]:
        wall_s, cpu_s = time.perf_counter() - self._wall_s, _cpu_s() - self._cpu_s
        commits = self._commits - self._commits_before
        return {
            "wall_ms": wall_s * 1e3 / self._count,
            "cpu_ms": cpu_s * 1e3 / self._count,
            "commits": commits / self._count,
        }


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


# ------------------------------------------------------------------------------------------------ to compare with
def bare(folder: Path, tasks: int, commits: int, processes: bool) -> dict[str, float]:
    """Make *commits* durable commits of one row each for each task, and with *processes* start ``true``, too."""
    spent = Spent(tasks)
    database = apsw.Connection(str(folder / "bare.db"))
    database.pragma("journal_mode", "wal")
    database.pragma("synchronous", "full")
    database.execute("create table rows (number integer primary key, row blob)")
    spent.begin()
    for _ in range(tasks):
        for _ in range(commits):
            database.execute("insert into rows (row) values (?)", (ROW,))
        if processes:
            os.waitpid(os.posix_spawnp("true", ["true"], os.environ), 0)
    figures = spent.end()
    database.close()
    return figures


def data(folder: Path, tasks: int) -> dict[str, float]:
    """Measure the allocated memory of a plan's tasks as plain data: dicts, as a parser gives them."""
    text = json.dumps([{"id": f"t{number}", "agent": "a", "prompt": f"t{number}"} for number in range(tasks)])
    memory = Memory(traced=True)
    kept = json.loads(text)
    return memory.end(len(kept))


# ------------------------------------------------------------------------------------------------------------ work
def plan_of(names: list[str], agent: Any, **fields: Any) -> Any:
    """Return a plan of trivial tasks; the prompt of each is its name."""
    from supervisor import Plan, TaskConfig

    tasks = [TaskConfig(id=name, agent="a", prompt=name) for name in names]
    return Plan(agents={"a": agent}, tasks=tasks, **fields)


def claims(folder: Path, tasks: int, sessions: int) -> dict[str, float]:
    """Run a plan whose agent is an async function that returns at once: its claim, its attempt and its end are records
    in a journal on the disk, and no process is started."""
    from supervisor import AgentTurn, open_supervisor, run_plan

    spent = Spent(tasks)

    async def agent(turn: AgentTurn) -> str:
        return "done"

    async def main() -> dict[str, float]:
        plan = plan_of([f"t{number}" for number in range(tasks)], agent, max_sessions=sessions)
        async with open_supervisor(folder / "sd", agents=plan.agents, settings=plan.settings, control=False) as sup:
            await run_plan(sup, plan_of(["warm-up"], agent))
            spent.begin()
            result = await run_plan(sup, plan)
            figures = spent.end()
        assert result.ok, result.why
        return figures

    return anyio.run(main)


def command(folder: Path, tasks: int, sessions: int) -> dict[str, float]:
    """Run ``supervisor run`` in this process, with a plan whose agent is the program ``true``: from the beginning of
    the command to its end."""
    spent = Spent(tasks)
    head = [f"max_sessions: {sessions}", "agents: {a: {adapter: command, command: ['true']}}", "tasks:"]
    each = [f"- {{id: t{number}, agent: a, prompt: t{number}}}" for number in range(tasks)]
    (folder / "plan.yaml").write_text("\n".join([*head, *each, ""]))
    sys.argv = ["supervisor", "run", str(folder / "plan.yaml"), "--state-dir", str(folder / "sd"), "--json"]
    status: object = None
    spent.begin()
    try:
        runpy.run_module("supervisor", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code
    figures = spent.end()
    assert not status, f"supervisor run: exit status {status}"
    return figures


class Memory:
    """Growth of this process's memory, from the making of this object: the resident bytes of the process, or with
    *traced* the bytes that Python allocated and that are still in use. (Tracing takes memory itself.)"""

    def __init__(self, traced: bool) -> None:
        self._traced = traced
        gc.collect()
        if traced:
            tracemalloc.start()
        self._before = _resident_bytes()

    def end(self, tasks: int) -> dict[str, float]:
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] if self._traced else _resident_bytes() - self._before
        return {"bytes": held / tasks}


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def queued(folder: Path, tasks: int, traced: bool) -> dict[str, float]:
    """Measure the memory of tasks that are on record and wait for the only worker, whose task does not end. The plan
    itself, which the supervisor needs, counts, too."""
    from supervisor import AgentTurn, open_supervisor, run_plan

    has_begun = anyio.Event()

    async def agent(turn: AgentTurn) -> str:
        if "warm-up" not in turn.prompt:
            has_begun.set()
            await anyio.sleep_forever()
        return "done"

    async def main() -> None:
        warm_up = plan_of(["warm-up"], agent, max_sessions=1)
        async with open_supervisor(folder / "sd", agents={"a": agent}, settings=warm_up.settings, control=False) as sup:
            await run_plan(sup, warm_up)
            memory = Memory(traced)
            run_plan(sup, plan_of([f"t{number}" for number in range(tasks)], agent, max_sessions=1))
            await has_begun.wait()
            await born(sup, 1 + tasks)
            await anyio.wait_all_tasks_blocked()
            _write(folder, memory.end(tasks))
            os._exit(0)  # to record the end of all of them takes minutes

    anyio.run(main)
    raise AssertionError("the first task did not wait")


async def born(sup: Any, tasks: int) -> None:
    """Wait until so many tasks are on record."""
    async with sup.subscribe(after_seq=0) as records:
        async for record in records:
            tasks -= (record.entity_type, record.outcome) == ("task", "born")
            if not tasks:
                return


PROBES: dict[str, Callable[..., dict[str, float]]] = {
    "claims": claims,
    "run": command,
    "queued, resident": partial(queued, traced=False),
    "queued, allocated": partial(queued, traced=True),
    "commits": partial(bare, processes=False),
    "commits and processes": partial(bare, processes=True),
    "data, allocated": data,
}


def _write(folder: Path, figures: dict[str, float]) -> None:
    (folder / "figures").write_text(json.dumps(figures))


def main(name: str, folder: str, *numbers: str) -> None:
    """Make the measurement *name*."""
    _write(Path(folder), PROBES[name](Path(folder), *map(int, numbers)))
