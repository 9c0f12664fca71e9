"""Crash test of plans side by side: kill a host with two plans at random moments, start it again, and check the result.

``python -m tests.crash.plans --kills N --tasks N``. The host submits both plans with a key, so that a host that was
killed just afterwards begins nothing twice, and continues the runs that were interrupted by their ids. Whenever a task
is at work, the limits of plan, agent and supervisor must hold. In the end both runs must be completed: each task has
one entity, and was completed by one job.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import msgspec

from supervisor import AgentConfig, AgentTurn, Plan, RecoveryConfig, Settings, TaskConfig, open_supervisor, submit
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.task import TaskData
from tests.support import check_records

ROOT = Path(__file__).parent.parent.parent
LONGEST_S = 300.0
"""Seconds after which a host counts as hung."""
UNTIL_KILLED_S = (0.0, 1.2)
"""Bounds of the time from the begin of the work to the kill."""
PLAN_MAX, AGENT_MAX, TOTAL_MAX = 4, 5, 6
PLANS = ("x", "y")
AGENTS = ("a", "b")


# ------------------------------------------------------------------------------------------------------------ the host
class Account:
    """Tasks at work, by plan and agent."""

    def __init__(self) -> None:
        self.at_work: Counter[str] = Counter()
        self.broken: set[str] = set()

    def agent(self, name: str) -> AgentConfig:
        async def work(turn: AgentTurn) -> str:
            plan = turn.prompt[0]
            self.at_work.update((plan, name, ""))
            limits = {**dict.fromkeys(PLANS, PLAN_MAX), **dict.fromkeys(AGENTS, AGENT_MAX), "": TOTAL_MAX}
            self.broken |= {f"{key or 'all'}: {self.at_work[key]}" for key in limits if self.at_work[key] > limits[key]}
            try:
                await anyio.sleep(random.uniform(0.0, 0.05))
            finally:
                self.at_work.subtract((plan, name, ""))
            return "done"

        return AgentConfig.of_function(name, work).model_copy(update={"max_sessions": AGENT_MAX})


def plan_of(name: str, count: int, agents: dict[str, AgentConfig]) -> Plan:
    tasks = [
        TaskConfig(
            id=f"{name}{number}",
            agent=AGENTS[number % 2],
            prompt=f"{name}{number}",
            depends_on=(f"{name}{number - 3}",) if number % 3 == 2 and number > 3 else (),
            files=(f"src/{number % 40}",) if number % 4 == 0 else (),
        )
        for number in range(count)
    ]
    return Plan(workstream=name, agents=agents, tasks=tasks, max_sessions=PLAN_MAX)


async def host(state_dir: str, count: int) -> None:
    """Run both plans to their ends; print what was begun, what ended, and the growth of the memory."""
    account = Account()
    agents = {name: account.agent(name) for name in AGENTS}
    settings = Settings(max_sessions_total=TOTAL_MAX, recovery=RecoveryConfig(sessions="restart"))
    async with open_supervisor(state_dir, agents=agents, settings=settings, control=False) as sup:
        handles = []
        for name in PLANS:
            handle = await submit(sup, plan_of(name, count, agents), key=name)
            handles.append(await submit(sup, resume=handle.run_id) if handle.is_interrupted else handle)
        say(begun=[handle.run_id for handle in handles])
        before = resident_bytes()
        ends = [Counter(one.outcome for one in (await handle).tasks.values()) for handle in handles]
        say(ends=ends, broken=sorted(account.broken), grown_mib=round((resident_bytes() - before) / 2**20, 1))


def say(**told: Any) -> None:
    print(json.dumps(told), flush=True)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ----------------------------------------------------------------------------------------------------------- the killer
def run(folder: Path, count: int, kill_after_s: float | None) -> list[dict[str, Any]]:
    """Run the host until its end, or until it is killed *kill_after_s* seconds after its work began; return what it
    has printed."""
    command = [sys.executable, "-m", "tests.crash.plans", "--host", str(folder / "sd"), "--tasks", str(count)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            said = [json.loads(process.stdout.readline() or "{}")]
            if kill_after_s is not None:
                time.sleep(kill_after_s)
                process.send_signal(signal.SIGKILL)
            rest, _ = process.communicate(timeout=LONGEST_S)
        finally:
            process.kill()
    return [*said, *(json.loads(line) for line in rest.splitlines())]


def cycle(folder: Path, count: int, kills: int, chance: random.Random) -> dict[str, Any]:
    """Kill the host *kills* times while it works, then run it to the end; return its last words, with the faults."""
    first: list[str] = []
    faults: list[str] = []
    killed = 0
    for _ in range(kills):
        said = run(folder, count, chance.uniform(*UNTIL_KILLED_S))
        killed += len(said) == 1
        first = first or said[0].get("begun", [])
    begun, *rest = run(folder, count, None)
    last = rest[-1] if rest else {}
    if begun.get("begun") != first:
        faults.append(f"the runs were {first}, and are {begun.get('begun')}")
    if last.get("broken"):
        faults.append(f"limits were broken: {last['broken']}")
    if last.get("ends") != [{"completed": count}] * len(PLANS):
        faults.append(f"not completed: {last}")
    return {**last, "kills": killed, "faults": faults + check(folder, count)}


def check(folder: Path, count: int) -> list[str]:
    """Check the journal: every task has one entity, which is closed, and one completed job."""
    wrong = []
    with JournalReader(StateDir(folder / "sd").journal) as journal:
        rows = journal.entities()
        try:
            check_records(list(journal.events()), rows, [], refused=True)
        except AssertionError as error:
            wrong.append(f"the journal: {str(error)[:500]}")
    tasks = [row for row in rows if row.kind == "task"]
    names = Counter(msgspec.json.decode(row.data, type=TaskData).name for row in tasks)
    jobs = Counter(row.parent_id for row in rows if row.kind == "job" and row.state == "completed")
    if len(names) != len(PLANS) * count or set(names.values()) != {1}:
        wrong.append(f"tasks with other than one entity: {[name for name in names if names[name] != 1]}")
    if set(jobs) != {row.id for row in tasks} or set(jobs.values()) != {1}:
        wrong.append(f"tasks with other than one completed job: {[one for one in jobs if jobs[one] != 1]}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="plans", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--host", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.host:
        anyio.run(host, arguments.host, arguments.tasks)
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="plans-") as folder:
        found = cycle(Path(folder), arguments.tasks, arguments.kills, random.Random(arguments.seed))
    print(json.dumps({**found, "seconds": round(time.monotonic() - began, 1)}))
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
