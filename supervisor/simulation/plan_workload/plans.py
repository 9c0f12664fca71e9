"""Random plans: graphs of tasks that use everything a plan can say, and scripts of the outcomes of each task.

The plan is drawn by the customer's number; errors of the plan's tasks are faults like any other. Without faults every
task of every plan is completed, unless the plan itself says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from supervisor.plans import AgentConfig, Plan
from supervisor.simulation.faults import FaultPlan
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.plan_workload.task_scripts import TaskScripts, draw_task_script, prompt_of

WORKER: Final = "worker"
DEPUTY: Final = "deputy"
MISSING: Final = "missing"
"""Name of an agent whose program does not exist."""
ROLES: Final = ("backend", "docs")
FILES: Final = ("src", "src/parser", "docs", "tests")
CHECK: Final = "sim-check"
CHECK_S: Final = 30.0
"""Seconds between two liveness checks of a worker: the specification's default, which no plan here changes."""
SAVED: Final = ("COMPLETED", "FAILED", "TIMEOUT", "CIRCUIT_OPEN", "CANCELLED")


def draw_plan(
    number: int,
    count: int,
    random: KeyedRandom,
    faults: FaultPlan,
    task_scripts: TaskScripts,
    workspace: str = "directory",
    saves: bool = False,
) -> Plan:
    """Draw the plan of customer *number*: *count* tasks with their subtasks, and a script for each of them. With
    *saves* the plan has settings for checkpoints and rollbacks, too."""
    name = f"w{number}"
    task_scripts.add(draw_task_script(name, faults))  # of the whole, when all is done
    tasks = [_Task(f"{name}t{one}", random.below(one), faults, task_scripts).draw(name, one) for one in range(count)]
    plan: dict[str, Any] = {
        "agents": _agents(),
        "tasks": tasks,
        "workstream": name,
        "max_sessions": random.integer(1, 4, "at once"),
        "workers": draw_workers(random),
        "task_lifecycle": _lifecycle(random),
        "retry_budget": {"share": 0.2, "least": random.choice((10, 10, 10, 3, 0), "budget")},
        "approve_plan": random.happens(0.15, "approve plan"),
        "validation": [{"command": (CHECK, name)}] if random.happens(0.7, "validation") else [],
        "workspace": workspace,
    }
    if saves:
        plan["task_lifecycle"] |= _savings(random)
        for number, task in enumerate(tasks):
            _take_back(task, random.below("rollback", number), everywhere=workspace == "worktree")
    return Plan.model_validate(plan)


def _savings(random: KeyedRandom) -> dict[str, Any]:
    states = [one for one in SAVED if random.happens(0.6, "saved", one)]
    return {
        "checkpoint": {"enabled": random.happens(0.9, "checkpoint"), "save_on_states": states},
        "cleanup_on_cancel": random.happens(0.6, "cleanup"),
        "save_partial_output": random.happens(0.6, "partial output"),
    }


def _take_back(task: dict[str, Any], random: KeyedRandom, *, everywhere: bool) -> None:
    """Set ``rollback`` for the task and each of its subtasks, true at random: with *everywhere* for any of them, else
    only for those that own files."""
    for number, one in enumerate((task, *task.get("subtasks", ()))):
        one["rollback"] = (everywhere or "files" in one) and random.happens(0.4, number)


def _agents() -> Mapping[str, AgentConfig]:
    """Return configurations of the agents that plans may name. Only the names count: the programs that run are those of
    the world's profiles."""
    names = (WORKER, DEPUTY, MISSING, "acp", "command", "inprocess")
    return {name: AgentConfig(adapter="command", command=(f"sim-{name}",)) for name in names}


def draw_workers(random: KeyedRandom) -> dict[str, Any]:
    """Draw the workers of a plan: none (then one worker can do everything), one for both roles, or one per role."""
    if random.happens(0.4, "workers"):
        return {}
    slots = [random.integer(1, 3, "slots", role) for role in ROLES]
    if random.happens(0.5, "one worker"):
        return {"all": {"slots": sum(slots), "roles": ROLES}}
    return {f"for-{role}": {"slots": slots[one], "roles": (role,)} for one, role in enumerate(ROLES)}


def _lifecycle(random: KeyedRandom) -> dict[str, Any]:
    circuit = {
        "enabled": random.happens(0.8, "circuit"),
        "max_error_repeats": random.integer(0, 3, "repeats"),
        "cooldown_period": random.choice((5.0, 30.0, 60.0), "cooldown"),
        "probes_max": random.integer(0, 3, "probes"),
    }
    return {
        "max_attempts": random.integer(1, 5, "attempts"),
        "base_retry_delay": random.choice((0.0, 2.0), "base"),
        "default_timeout": random.choice((60.0, 300.0), "timeout"),
        "circuit_breaker": circuit,
    }


class _Task:
    """Drawing of one task and its subtasks, with their scripts."""

    def __init__(self, name: str, random: KeyedRandom, faults: FaultPlan, task_scripts: TaskScripts) -> None:
        self._name, self._random, self._faults, self._task_scripts = name, random, faults, task_scripts

    def draw(self, plan: str, number: int, depth: int = 0) -> dict[str, Any]:
        random = self._random
        self._task_scripts.add(draw_task_script(self._name, self._faults))
        task: dict[str, Any] = {
            "id": self._name,
            "agent": self._agent(),
            "prompt": prompt_of(self._name),
            "acceptance": [{"command": (CHECK, self._name)}] if random.happens(0.7, "acceptance") else [],
            "priority": random.integer(-1, 2, "priority"),
            "max_retries": random.integer(0, 2, "retries"),
            "approval": random.choice(("none",) * 6 + ("before", "after"), "approval"),
            "may_split": random.happens(0.1, "may split"),
            **self._options(),
        }
        if depth:
            return task
        before = [f"{plan}t{one}" for one in range(number)]
        task["depends_on"] = [one for one in before if random.happens(0.3, "needs", one)]
        task |= self._condition([one for one in before if one not in task["depends_on"]])
        if random.happens(0.15, "subtasks"):
            parts = [f"{self._name}s{one}" for one in range(random.integer(1, 3, "parts"))]
            task["subtasks"] = [
                _Task(one, random.below(one), self._faults, self._task_scripts).draw(plan, 0, depth + 1)
                for one in parts
            ]
        return task

    def _agent(self) -> str:
        if self._faults.strikes("work.missing", self._name):
            return MISSING
        other = self._random.choice(("acp", "command", "inprocess"), "other agent")
        return other if self._random.happens(0.15, "other") else WORKER

    def _options(self) -> dict[str, Any]:
        random, options = self._random, dict[str, Any]()
        if random.happens(0.3, "role"):
            options["role"] = random.choice(ROLES, "which role")
        if random.happens(0.3, "files"):
            options["files"] = (random.choice(FILES, "which files"),)
        if random.happens(0.3, "fallback"):
            options["fallback_agents"] = (DEPUTY,)
        weight = random.unit("weight")
        options |= {"critical": True} if weight < 0.1 else {"optional": True} if weight > 0.9 else {}
        if random.happens(0.3, "scope"):
            scope, complexity = ("small", "medium", "large", "xl"), ("low", "medium", "high")
            options |= {"scope": random.choice(scope, "scope"), "complexity": random.choice(complexity, "complexity")}
        elif random.happens(0.5, "timeout"):
            options["timeout_s"] = random.choice((45.0, 90.0), "timeout")
        return options

    def _condition(self, others: list[str]) -> dict[str, Any]:
        if self._random.happens(0.05, "file"):
            return {"when": {"file_exists": "nowhere.txt"}}
        if others and self._random.happens(0.15, "when"):
            wanted = self._random.choice(("completed", "failed", "skipped"), "is")
            return {"when": {"task": self._random.choice(others, "of"), "is": wanted}}
        return {}
