"""Simulation in which many workers claim many more tasks, while workers fall silent or are lost and supervisors are
killed: no task may be lost, and none may ever be held twice.

The production engine runs; agents are functions that take their time. The checker derives the holder of each task from
durable records and from the agents' own observations, and never asks the scheduler's backlog. The oracle checks
everything else, including the fourteen invariants of spec 004, at every commit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Final

import anyio
import msgspec

from supervisor.host.api import Supervisor
from supervisor.plans import AgentConfig, Plan, TaskConfig, WorkerConfig
from supervisor.ports import Append
from supervisor.sessions.inprocess import AgentTurn
from supervisor.simulation.cost import OutcomeCounts
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.running import Report
from supervisor.simulation.scenario import DrawnScenario, FaultsConfig, Scenario, WorldConfig
from supervisor.simulation.world import World
from supervisor.work.plan_runner import PlanRunner
from supervisor.work.workers import WorkerPool
from tests.verification.checkers import simulate

ROLES: Final = ("backend", "frontend", "docs", "qa")
AGENT: Final = "worker"
WORK_S: Final = (5.0, 120.0)
"""Least and most seconds of an attempt, during which the agent sends nothing: after 90 s of silence the supervisor
wakes the agent, and then asks the agent to stop."""
KILLED_S: Final = (60.0, 600.0)
"""Least and most seconds until a supervisor that is to be killed is killed."""
SILENT: Final = 1 / 400
"""Probability that a worker, after a heartbeat, sends none for so long that the worker is lost."""
SILENT_S: Final = (95.0, 175.0)
GONE: Final = 1 / 1_200
"""Probability that a worker, after a heartbeat, never sends another one."""
HORIZON_S: Final = 1e6
Say = Callable[[str, str, str], None]


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a simulated run: the numbers of closed tasks and of claims, and how often workers fell silent, were
    lost, came back and were replaced."""

    workers: int
    tasks: int
    closed: int
    claims: int
    silences: int
    lost: int
    recovered: int
    replaced: int
    killed: int
    report: Report


class ClaimChecker:
    """Checker that follows, by durable records alone, which worker holds which task. *say* reports a violation: the
    invariant, the entity, and the message."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._task_of: dict[str, str] = {}
        self._held: dict[str, str] = {}
        """Running job of each task."""
        self._tokens: dict[str, int] = {}
        self._of_worker: dict[str, set[str]] = {}
        self._slots: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self.closed: set[str] = set()
        """Names of closed tasks."""
        self.events: dict[str, int] = {}
        """Number of transitions of workers and jobs, by event."""

    def wrote(self, batch: Sequence[Append]) -> None:
        """Process a batch of durable records."""
        for one in batch:
            match one.record.entity_type:
                case "task":
                    self._task(one)
                case "job":
                    self._job(one)
                case "worker":
                    self._worker(one)

    def _count(self, one: Append) -> bool:
        moved = one.record.outcome == "transition"
        if moved:
            self.events[one.record.event] = self.events.get(one.record.event, 0) + 1
        return moved

    def _task(self, one: Append) -> None:
        if one.record.outcome == "born":
            self._names[one.record.entity_id] = str(one.record.metadata["name"])
        if one.state == "CLOSED":
            self.closed.add(self._names[one.record.entity_id])

    def _job(self, one: Append) -> None:
        record = one.record
        if record.outcome == "born":
            self._task_of[record.entity_id] = one.parent_id or ""
        elif self._count(one) and record.event == "worker_started":
            self._take(record.entity_id, str(record.metadata["worker_id"]), int(record.metadata["token"]))
        elif record.from_status == "running" and record.to_status != "running":
            self._let_go(record.entity_id)

    def _take(self, job: str, worker: str, token: int) -> None:
        task = self._task_of[job]
        if task in self._held:
            self._say("one_holder", task, f"{worker} takes it as {job}, but it is held as {self._held[task]}")
        if token <= self._tokens.get(task, 0):
            self._say("one_holder", task, f"{worker} has the token {token}, after {self._tokens[task]}")
        held = self._of_worker.setdefault(worker, set())
        held.add(job)
        if len(held) > self._slots.get(worker, 0):
            self._say("capacity_limit", worker, f"holds {sorted(held)}, of {self._slots.get(worker, 0)} slots")
        self._held[task], self._tokens[task] = job, token

    def _let_go(self, job: str) -> None:
        if self._held.get(self._task_of[job]) == job:
            del self._held[self._task_of[job]]
        for held in self._of_worker.values():
            held.discard(job)

    def _worker(self, one: Append) -> None:
        record = one.record
        if not self._count(one):
            return
        if record.event == "registration_complete":
            self._slots[record.entity_id] = int(record.metadata["max_concurrent_tasks"])
        elif record.to_status in ("idle", "shutdown") and (held := self._of_worker.get(record.entity_id)):
            self._say("resource_cleanup", record.entity_id, f"is {record.to_status} and holds {sorted(held)}")


class ClaimHost:
    """Host that runs the plan on one supervisor after the other, kills these supervisors, and lets workers fall
    silent."""

    last_arrival_s = inf

    def __init__(self, world: World, plan: Plan, kills: int, finished: set[str]) -> None:
        self._world = world
        self._finished = finished
        self._plan = plan
        self._kills = kills
        self._random = world.random.below("claims")
        self.tally = OutcomeCounts()
        self.done = False
        self.silences = 0
        self.holders = ClaimChecker(world.oracle.violated)
        world.on_durable = self.holders.wrote

    async def play(self, sup: Supervisor) -> None:
        async with anyio.create_task_group() as group:
            if self._world.crashes < self._kills:
                group.start_soon(self._kill)
            result = await PlanRunner(sup.core, heartbeat=self._heartbeat).run(self._plan)
            group.cancel_scope.cancel()
        self.done = self.done or not self._world.killed.is_set()
        if self.done and not result.ok:
            self._world.oracle.violated("nothing_lost", "plan", f"not every task is completed: {result.error}")
        if self.done:
            self._check_done()

    def _check_done(self) -> None:
        """Check that every task is closed, and that an agent worked on each task to the end."""
        say, closed = self._world.oracle.violated, self.holders.closed
        for task in self._plan.tasks:
            if task.id not in closed:
                say("nothing_lost", task.id, "is not closed when its plan is over")
            elif task.id not in self._finished:
                say("honest_ends", task.id, "is closed, and nobody has worked on it to the end")

    async def _kill(self) -> None:
        await anyio.sleep(self._random.between(*KILLED_S, "killed", self._world.lives))
        self._world.kill()

    async def _heartbeat(self, pool: WorkerPool, worker_id: str, heartbeat_s: float) -> None:
        """Send heartbeats of a worker; at random, pause for a while and then continue, or stop for good."""
        random, number = self._random.below(worker_id, self._world.lives), 0
        while pool.beat(worker_id):
            number += 1
            if random.happens(GONE, "gone", number):
                return
            silent = random.happens(SILENT, "silent", number)
            self.silences += silent
            await pool.pause(random.between(*SILENT_S, "silent for", number) if silent else heartbeat_s)


class Bench:
    """State shared by the agents of a run: the work function that all agents run, and the check that no two agents work
    on one task."""

    def __init__(self, random: KeyedRandom) -> None:
        self._random = random
        self._tries: dict[str, int] = {}
        self._working: dict[str, str] = {}
        self.finished: set[str] = set()
        self.say: Say = lambda invariant, who, words: None

    async def work(self, turn: AgentTurn) -> str:
        name = turn.session_id.partition("-")[0]
        with self._at(name, turn.session_id):
            number = self._tries[name] = self._tries.get(name, 0) + 1
            await anyio.sleep(self._random.between(*WORK_S, name, number))
            self.finished.add(name)
        return name

    @contextmanager
    def _at(self, name: str, session_id: str) -> Iterator[None]:
        if name in self._working:
            self.say("one_holder", name, f"{session_id} works on it beside {self._working[name]}")
        self._working[name] = session_id
        try:
            yield
        finally:
            del self._working[name]


def simulate_claims(
    seed: int,
    *,
    workers: int,
    tasks: int,
    kills: int = 2,
    on_line: Callable[[str], None] | None = None,
    watch: Callable[[int], None] | None = None,
    host_type: type[ClaimHost] = ClaimHost,
    work: Callable[[Bench, AgentTurn], Awaitable[str]] = Bench.work,
    changes: Mapping[str, object] | None = None,
) -> Claims:
    """Let *workers* workers claim *tasks* tasks, while *kills* supervisors are killed.

    Args:
        on_line: called with every line of the trace as it comes.
        watch: called now and then with the number of steps so far, and at the end.
        host_type: class of the host that runs the plan.
        work: the agent of all tasks.
        changes: values of the plan instead of those that are drawn.
    """
    plan = _plan(KeyedRandom(seed).below("plan"), workers, tasks).model_copy(update=changes)
    bench, hosts = Bench(KeyedRandom(seed).below("bench")), list[ClaimHost]()

    def make(world: World) -> ClaimHost:
        bench.say = world.oracle.violated
        hosts.append(host_type(world, plan, kills, bench.finished))
        return hosts[0]

    report = simulate(_drawn(seed), host=make, agents={AGENT: partial(work, bench)}, on_line=on_line, watch=watch)
    [host] = hosts
    events = host.holders.events
    return Claims(
        workers=workers,
        tasks=tasks,
        closed=len(host.holders.closed),
        claims=events.get("worker_started", 0),
        silences=host.silences,
        lost=events.get("health_check_timeout", 0),
        recovered=events.get("health_check_recovered", 0),
        replaced=events.get("max_timeout_exceeded", 0),
        killed=report.lives - 2,
        report=report,
    )


def _drawn(seed: int) -> DrawnScenario:
    world = WorldConfig(crashes_max=0, operators=0, horizon_s=HORIZON_S)
    return Scenario(name="claims", faults=FaultsConfig(kinds=()), world=world).draw(seed)


def _plan(random: KeyedRandom, workers: int, tasks: int) -> Plan:
    """Make the plan: every role has workers; one task in five depends on an earlier task, and one in ten names a file
    that other tasks may name, too."""
    return Plan(
        agents={AGENT: AgentConfig(adapter="command", command=("true",))},
        workers={f"w{number}": WorkerConfig(slots=1, roles=_roles(number)) for number in range(workers)},
        tasks=tuple(_task(random, number) for number in range(tasks)),
    )


def _roles(number: int) -> tuple[str, ...]:
    """Return the roles of a worker: all roles for every other worker, and two roles for the workers between."""
    return ROLES if number % 2 == 0 else (ROLES[number // 2 % 4], ROLES[(number // 2 + 1) % 4])


def _task(random: KeyedRandom, number: int) -> TaskConfig:
    name = f"t{number}"
    before = number - random.integer(1, 40, name, "before")
    return TaskConfig(
        id=name,
        agent=AGENT,
        prompt=name,
        priority=random.integer(0, 3, name, "priority"),
        role=random.choice(ROLES, name, "role") if random.happens(0.5, name, "has a role") else None,
        files=(f"src/shared{random.integer(0, 99, name, 'file')}.py",) if random.happens(0.1, name, "files") else (),
        depends_on=(f"t{before}",) if before >= 0 and random.happens(0.2, name, "depends") else (),
    )
