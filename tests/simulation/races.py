"""Kit for tests of races: simulated runs in which the test acts before a step that it chooses.

:class:`Intruder` is called before every step of a run. The intruder reads states from the journal of the run, may kill
the supervisor, and may give commands as an operator would. :func:`race` runs one drawn scenario with an intruder, and
may fix the outcome of each try at a task, and edit the plan before the plan is run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from supervisor.lifecycles.types import Verb
from supervisor.plans import Plan, TaskConfig
from supervisor.plans.lifecycle import TaskLifecycle
from supervisor.ports import EntityRow
from supervisor.simulation.host import Host, LoadGenerator
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.plan_workload.task_scripts import TaskScript, Try
from supervisor.simulation.running import Report
from supervisor.simulation.scenario import DrawnScenario, Scenario, parsed
from supervisor.simulation.world import World
from tests.verification.checkers import simulate

SCENARIO = """
name = "race"
[load]
customers = {customers}
{load}
[faults]
kinds = [{kinds}]
[world]
operators = 0
{more}
"""
OPTIONS = ("role", "files", "fallback_agents", "critical", "optional", "scope", "complexity", "timeout_s")


def scenario(*more: str, load: str = "works = 1.0\ntasks = 1", kinds: str = "", customers: int = 1) -> Scenario:
    """Return a scenario with one plan of one task and without faults, for one customer by default. *more*: lines of the
    table ``[world]``, and further tables."""
    return parsed("race", SCENARIO.format(load=load, kinds=kinds, customers=customers, more="\n".join(more)))


def lifecycle(**fields: Any) -> Callable[[Plan], Plan]:
    """Return a function that edits a plan: its tasks get this lifecycle, with defaults for the other fields."""
    return lambda plan: plan.model_copy(update={"task_lifecycle": TaskLifecycle.model_validate(fields)})


def plain_tasks(**fields: Any) -> Callable[[Plan], Plan]:
    """Return a function that edits a plan: all options of its tasks are replaced by *fields*."""

    def plain(task: TaskConfig) -> TaskConfig:
        kept = {name: value for name, value in task if name not in (*OPTIONS, "subtasks")}
        return TaskConfig.model_validate({**kept, "subtasks": tuple(map(plain, task.subtasks)), **fields})

    return lambda plan: plan.model_copy(update={"tasks": tuple(map(plain, plan.tasks))})


class RaceHost(Host):
    """Host that edits the plan of its customer with *edits*, in order, before the plan is run, and sets the outcomes of
    the tries at each task to *ways*, by the name of the task; the key ``*`` is for all other tasks."""

    def __init__(
        self, world: World, ways: Mapping[str, tuple[Try, ...]], edits: tuple[Callable[[Plan], Plan], ...]
    ) -> None:
        super().__init__(world, KeyedRandom(world.drawn.seed).below("host"))
        self._ways, self._edits = ways, edits

    def make_plan(self, customer: LoadGenerator) -> Plan:
        plan = super().make_plan(customer)
        for edit in self._edits:
            plan = edit(plan)
        for task in plan.tasks:
            for name in (task.id, *(one.id for one in task.subtasks)):
                if self.world.task_scripts.of(name) is None:
                    self.world.task_scripts.add(TaskScript(name))
        for script in self.world.task_scripts:
            script.ways = self._ways.get(script.name, self._ways.get("*", script.ways))
        return plan


class Intruder:
    """Object that acts before steps of one run. A subclass implements :meth:`step`, which is called before each step
    while a supervisor is alive."""

    world: World
    host: Host

    def __init__(self) -> None:
        self.kills = 0

    def __call__(self, number: int, world: World, host: Host) -> None:
        self.world, self.host = world, host
        if not world.killed.is_set():
            self.step()

    def step(self) -> None:
        """Look at the state of the run, and act at the moment that the subclass defines."""

    @property
    def rows(self) -> dict[str, EntityRow]:
        """Return the durable entities by id."""
        return self.world.disk.entities

    def state(self, entity_id: str) -> str:
        """Return the state of an entity on record; ``""`` if there is no such entity."""
        return self.rows[entity_id].state if entity_id in self.rows else ""

    def states(self, name: str = "w0t0") -> tuple[str, str, str]:
        """Return the states of the first task run, the job and the task of that name."""
        return self.state(f"r1#{name}:run"), self.state(f"r1#{name}:job"), self.state(f"r1#{name}")

    def kill(self) -> None:
        """Kill the supervisor as SIGKILL does."""
        self.kills += 1
        self.world.kill()

    def command(self, verb: Verb, name: str = "w0t0") -> None:
        """Give a command about a task to the newest plan run, as the operator bot of that plan run would."""
        bot = self.host.operator_bots[-1]
        self.host.start(bot.command, verb, name, self.world.random.below(name), f"{verb}.{name}")

    def is_taken_over(self) -> bool:
        """Return whether the second plan run has begun."""
        bots = self.host.operator_bots
        return len(bots) == 2 and bots[1].runner.begun.is_set()


def race(
    drawn: DrawnScenario,
    intruder: Callable[[int, World, Host], None] | None,
    *edits: Callable[[Plan], Plan],
    ways: Mapping[str, tuple[Try, ...]] | None = None,
    host: type[RaceHost] = RaceHost,
    on_line: Callable[[str], None] | None = None,
) -> Report:
    """Run *drawn* with *intruder*, check that no invariant is violated, and return the report."""
    report = simulate(drawn, host=lambda world: host(world, ways or {}, edits), intrude=intruder, on_line=on_line)
    assert report.problems == (), f"seed {drawn.seed}"
    return report
