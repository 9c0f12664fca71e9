"""The oracle's copies of the work side agree with their tables along every edge, and notice one that says otherwise."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from actors.machine import Event, IllegalTransition, Machine
from supervisor.lifecycles import MACHINES, job, task, worker, workstream
from supervisor.lifecycles import task_run as run
from supervisor.lifecycles.task_run import ErrorCategory
from supervisor.simulation.specified import COPIES

BORN: Mapping[str, Callable[[random.Random], Any]] = {
    "task": lambda dice: task.TaskData(max_retries=dice.randint(0, 2), needs_approval=dice.random() < 0.5),
    "run": lambda dice: run.RunData(max_attempts=dice.randint(1, 5), max_error_repeats=dice.randint(0, 3)),
    "job": lambda dice: job.JobData(max_retries=dice.randint(0, 3), capabilities=("a",) * dice.randint(0, 1)),
    "worker": lambda dice: worker.WorkerData(max_concurrent_tasks=dice.randint(1, 3)),
    "workstream": lambda dice: workstream.WorkstreamData(tasks=dice.randint(0, 2)),
}
WORDS: Mapping[str, Callable[[random.Random], Any]] = {
    "charged": lambda dice: dice.random() < 0.8,
    "final": lambda dice: dice.random() < 0.7,
    "category": lambda dice: dice.choice([*ErrorCategory, ErrorCategory.UNKNOWN]),
    "jitter": lambda dice: dice.uniform(0.5, 1.5),
    "signature": lambda dice: dice.choice(["", "a", "b"]),
    "waiting_for": lambda dice: ("x",) * (dice.random() < 0.2),
    "failed_rules": lambda dice: ("r",) * (dice.random() < 0.5),
    "exit_code": lambda dice: dice.choice([0, 0, 1]),
    "capabilities": lambda dice: ("a",) * (dice.random() < 0.8),
    "missed": lambda dice: dice.randint(0, 5),
    "silent_s": lambda dice: dice.choice([10.0, 180.0]),
    "count": lambda dice: dice.randint(0, 2),
    "completed": lambda dice: dice.randint(0, 2),
    "failed": lambda dice: dice.randint(0, 2),
    "cancelled": lambda dice: dice.randint(0, 2),
    "worker_id": lambda dice: dice.choice(["worker:a", "worker:b"]),
    "subtasks": lambda dice: ("s1", "s2"),
    "on": lambda dice: ("o",),
}
"""What an event of a walk says, by the names of its fields; other words are the same for all."""
TEXT = "word"


def an_event(kind: type[Event], dice: random.Random) -> Event:
    """One of that kind, with its words drawn."""
    said: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.name in WORDS:
            said[field.name] = WORDS[field.name](dice)
        elif field.required:
            said[field.name] = TEXT
    return kind(**said)


def walk(name: str, seed: int, steps: int = 60) -> set[tuple[str, str, str]]:
    """A random walk of the table and the copy side by side; the edges that were taken."""
    dice, machine = random.Random(seed), MACHINES[name]
    state, data = dice.choice(machine.initial), BORN[name](dice)
    copy, taken = COPIES[name](state.value, msgspec.to_builtins(data)), set()
    final = machine.terminal - {one.source for one in machine.rules}
    kinds = list(machine.events.values())
    for _ in range(steps):
        possible = [one for one in machine.allowed(state) if dice.random() < 0.9] or kinds
        event = an_event(dice.choice(possible), dice)
        meta = msgspec.to_builtins(event)
        try:
            step = machine.step(state, data, event)
        except IllegalTransition:
            assert not copy.knows(event.name(), meta), f"{name}: {event} in {state} is refused by the table alone"
            continue
        assert copy.knows(event.name(), meta), f"{name}: {event} in {state} is refused by the copy alone"
        copy.take(event.name(), meta)
        taken.add((state.value, event.name(), step.state.value))
        state, data = step.state, step.data
        assert copy.state == state.value
        assert copy.differs(data) == ""
        assert copy.over == (state in final), f"{name} in {state}"
        if copy.over:
            break
    return taken


@pytest.mark.parametrize("name", BORN)
def test_every_edge_is_specified(name: str) -> None:
    """Random walks over the table agree with the copy in every step, and take every edge that there is."""
    taken = set().union(*(walk(name, seed) for seed in range(1500)))
    machine: Machine[Any, Any] = MACHINES[name]
    assert {(one.source.value, one.on.name(), one.target.value) for one in machine.rules} == taken


LIES: list[tuple[str, str, Any, str, Any]] = [
    ("run", "IN_PROGRESS", run.RunData(), "attempts", 7),
    ("run", "RETRYING", run.RunData(), "delay_s", 3.0),
    ("job", "retrying", job.JobData(), "retry_count", 2),
    ("job", "running", job.JobData(), "worker_id", "worker:x"),
    ("job", "queued", job.JobData(), "created_at", 2.5),
    ("job", "running", job.JobData(), "started_at", 2.5),
    ("job", "running", job.JobData(), "attempt_started_at", 2.5),
    ("job", "completed", job.JobData(), "completed_at", 2.5),
    ("worker", "busy", worker.WorkerData(), "active_tasks", 2),
    ("worker", "busy", worker.WorkerData(), "draining", True),
    ("workstream", "executing", workstream.WorkstreamData(tasks=2), "tasks", 3),
    ("task", "CLAIMED", task.TaskData(), "claims", 2),
    ("task", "OPEN", task.TaskData(), "retries", 1),
]


@pytest.mark.parametrize(("name", "state", "data", "field", "value"), LIES)
def test_another_datum_is_noticed(name: str, state: str, data: Any, field: str, value: Any) -> None:
    """What is counted otherwise than the specification counts it is found, by name of the value."""
    copy = COPIES[name](state, msgspec.to_builtins(data))
    assert copy.differs(data) == ""
    assert str(value) in copy.differs(msgspec.structs.replace(data, **{field: value}))
