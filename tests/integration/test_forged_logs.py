"""Logs of real runs that were forged afterwards: `supervisor validate` refuses each with the line that is wrong.

Five forgeries for each of the invariants of spec 004 that a log can show. A forgery changes, adds, removes or moves a
line of the log of a run with two tasks at once, a retry and a dependency, or of a run whose critical task fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.diagnostics.validate import Report, validate_lines
from tests.support import run_command

Line = dict[str, Any]
Log = list[Line]
Forgery = Callable[[Log], int]
"""Function that forges a log, and returns the index of the line that is to be refused."""

GOOD = """
max_sessions: 2
workspace: directory
agents: {sh: {adapter: command, command: [sh, -eu]}}
task_lifecycle: {base_retry_delay: 0.01}
tasks:
  - {id: one, agent: sh, prompt: echo done}
  - {id: flaky, agent: sh, prompt: "test -e tried || { touch tried; exit 1; }"}
  - {id: after, agent: sh, prompt: echo done, depends_on: [one]}
"""
BAD = """
max_sessions: 2
workspace: directory
agents: {sh: {adapter: command, command: [sh, -eu]}}
task_lifecycle: {max_attempts: 1}
tasks:
  - {id: bad, agent: sh, prompt: exit 1, critical: true, max_retries: 0}
"""


def log_of(directory: Path, plan: str) -> Log:
    (directory / "plan.yaml").write_text(plan)
    run_command("run", "plan.yaml", cwd=directory)
    return [json.loads(line) for line in (directory / ".sdd" / "transitions.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Log]:
    return {name: log_of(tmp_path_factory.mktemp(name), plan) for name, plan in (("good", GOOD), ("bad", BAD))}


def validated(log: Log) -> Report:
    return validate_lines(json.dumps(line).encode() + b"\n" for line in log)


# ------------------------------------------------------------------------------------------------- what is forged
def at(log: Log, machine: str, to_state: str, name: str = "", nth: int = 0) -> int:
    """Return the index of the *nth* line of *machine* into *to_state*, of an entity with *name* in its id."""
    kind = f"{machine}_state_transition"
    found = [
        index
        for index, line in enumerate(log)
        if line["event_type"] == kind and line["to_state"] == to_state and name in line["entity_id"]
    ]
    return found[nth]


def changed(machine: str, to_state: str, name: str = "", nth: int = 0, **metadata: Any) -> Forgery:
    """Return the forgery that changes the metadata of a line; ``...`` stands for a key that is removed."""

    def forge(log: Log) -> int:
        index = at(log, machine, to_state, name, nth)
        facts = {**log[index]["metadata"], **metadata}
        log[index] = log[index] | {"metadata": {key: value for key, value in facts.items() if value is not ...}}
        return index

    return forge


def added(after: Callable[[Log], int], trigger: str, to_state: str, severity: str = "info", **metadata: Any) -> Forgery:
    """Return the forgery that adds a line of the same entity below the line that *after* finds."""

    def forge(log: Log) -> int:
        index = after(log)
        before = log[index]
        log.insert(
            index + 1,
            before
            | {
                "from_state": before["to_state"],
                "to_state": to_state,
                "trigger": trigger,
                "severity": severity,
                "metadata": metadata,
            },
        )
        for number, line in enumerate(log, 1):
            line["seq"] = number
            line.pop("cause_id", None)
        return index + 1

    return forge


def moved(machine: str, to_state: str, name: str, before: Callable[[Log], int]) -> Forgery:
    """Return the forgery that moves a line up, before the line that *before* finds; its number and time follow."""

    def forge(log: Log) -> int:
        source, target = at(log, machine, to_state, name), before(log)
        line = log.pop(source)
        log.insert(target, line | {"timestamp": log[target]["timestamp"]})
        for number, one in enumerate(log, 1):
            one["seq"] = number
            one.pop("cause_id", None)
        return target

    return forge


def removed(machine: str, to_state: str, name: str, refused: Callable[[Log], int]) -> Forgery:
    """Return the forgery that removes a line; *refused* finds the line that is then refused."""

    def forge(log: Log) -> int:
        del log[at(log, machine, to_state, name)]
        return refused(log)

    return forge


def told(machine: str, to_state: str, name: str = "", nth: int = 0) -> Callable[[Log], int]:
    return lambda log: at(log, machine, to_state, name, nth)


def failing(log: Log) -> int:
    """Let the job of `after` fail for good, and leave the rest of the log as it is."""
    index = at(log, "job", "validating", "after")
    log[index] = log[index] | {"to_state": "failed", "trigger": "execution_failed", "severity": "error"}
    del log[at(log, "job", "completed", "after")]
    return at(log, "workstream", "validating")


def failed_without_a_failure(log: Log) -> int:
    index = at(log, "workstream", "validating")
    log[index] = log[index] | {"to_state": "failed", "trigger": "settled_with_failures", "severity": "critical"}
    return index


def renamed(machine: str, to_state: str, field: str, value: str, name: str = "") -> Forgery:
    def forge(log: Log) -> int:
        index = at(log, machine, to_state, name)
        log[index] = log[index] | {field: value}
        return index

    return forge


def doubled(log: Log) -> int:
    index = at(log, "job", "running", "one")
    log.insert(index + 1, log[index] | {"seq": log[index]["seq"]})
    return index + 1


def critical(end: str) -> Forgery:
    """Return the forgery that lets the workstream of a critical job that failed go to *end*."""
    triggers = {"validating": "all_tasks_completed", "executing": "tasks_added", "completed": "validation_passed"}

    def forge(log: Log) -> int:
        index = at(log, "workstream", "failed")
        source = "validating" if end == "completed" else "executing"
        log[index] = log[index] | {
            "from_state": source,
            "to_state": end,
            "trigger": triggers[end],
            "severity": "info",
        }
        return index

    return forge


BUSY = told("worker", "busy")
BY_LOCAL = {"worker_id": "worker:local"}
EARLY, LATE = 1.0, 4e9
"""Times before and after those of the run."""

FORGERIES: dict[str, list[tuple[str, Forgery]]] = {
    "single_active_state": [
        ("good", renamed("job", "running", "from_state", "retrying", "one")),
        ("good", removed("job", "running", "one", told("job", "validating", "one"))),
        ("good", removed("job", "validating", "one", told("job", "completed", "one"))),
        ("good", doubled),
        ("good", removed("job", "queued", "after", told("job", "running", "after"))),
    ],
    "monotonic_progress": [
        ("good", added(told("job", "completed", "one"), "retry_delay_elapsed", "queued")),
        ("good", added(told("job", "completed", "after"), "worker_started", "running", **BY_LOCAL)),
        ("good", added(told("workstream", "completed"), "first_task_started", "executing")),
        ("good", added(told("worker", "shutdown"), "health_check_recovered", "idle")),
        ("bad", added(told("job", "failed"), "retry_delay_elapsed", "queued")),
    ],
    "worker_assignment": [
        ("good", changed("job", "running", "one", worker_id=...)),
        ("good", changed("job", "running", "one", worker_id=None)),
        ("good", changed("job", "validating", "one", **BY_LOCAL)),
        ("good", changed("job", "queued", "after", **BY_LOCAL)),
        ("good", changed("job", "completed", "after", **BY_LOCAL)),
    ],
    "retry_limit": [
        ("good", changed("job", "retrying", "flaky", retry_count=20)),
        ("good", changed("job", "running", "one", retry_count=1)),
        ("good", changed("job", "completed", "flaky", retry_count=0)),
        ("good", changed("job", "retrying", "flaky", retry_count=2)),
        ("good", changed("job", "retrying", "flaky", max_retries=0)),
    ],
    "timestamp_ordering": [
        ("good", changed("job", "completed", "one", completed_at=EARLY)),
        ("good", changed("job", "running", "one", started_at=EARLY)),
        ("good", changed("job", "completed", "one", completed_at="2024-01-15T10:30:00Z")),
        ("good", changed("job", "completed", "one", completed_at="soon")),
        ("good", changed("job", "completed", "one", started_at=LATE)),
    ],
    "dependency_satisfaction": [
        ("good", changed("job", "queued", "after", depends_on=["r1#none:job"])),
        ("good", changed("job", "queued", "one", depends_on=["r1#after:job"])),
        ("good", changed("job", "queued", "flaky", depends_on=["r1#one:job"])),
        ("good", changed("job", "queued", "after", depends_on="r1#one:job")),
        ("good", moved("job", "queued", "after", told("job", "completed", "one"))),
    ],
    "task_state_consistency": [
        ("good", changed("job", "running", "one", workstream_id="r2")),
        ("good", added(told("workstream", "completed"), "tasks_added", "ready")),
        ("good", moved("workstream", "executing", "r1", told("job", "running", "one"))),
        ("good", failed_without_a_failure),
        ("good", added(told("job", "running", "after"), "worker_lost", "running", **BY_LOCAL)),
    ],
    "completion_requirement": [
        ("good", failing),
        ("good", moved("workstream", "validating", "r1", told("job", "completed", "after"))),
        ("good", removed("job", "completed", "after", told("workstream", "validating"))),
        ("good", added(told("workstream", "executing"), "all_tasks_completed", "validating")),
        ("bad", critical("validating")),
    ],
    "failure_propagation": [
        ("bad", critical("validating")),
        ("bad", critical("completed")),
        ("bad", critical("executing")),
        ("bad", moved("workstream", "executing", "r1", told("workstream", "failed"))),
        ("bad", added(told("job", "failed"), "execution_failed", "running", **BY_LOCAL)),
    ],
    "capacity_limit": [
        ("good", changed("worker", "busy", active_tasks=3)),
        ("good", changed("worker", "busy", max_concurrent_tasks=1, active_tasks=2)),
        ("good", changed("worker", "busy", nth=1, active_tasks=7)),
        ("good", changed("worker", "idle", max_concurrent_tasks=0)),
        ("good", changed("worker", "busy", active_tasks=-1)),
    ],
    "health_monitoring": [
        ("good", changed("worker", "idle", last_heartbeat_at=EARLY)),
        ("good", changed("worker", "shutdown", last_heartbeat_at=EARLY)),
        ("good", changed("worker", "shutdown", last_heartbeat_at=...)),
        ("good", changed("worker", "busy", nth=1, last_heartbeat_at="now")),
        ("good", changed("worker", "shutdown", last_heartbeat_at=None)),
    ],
    "graceful_shutdown": [
        ("good", changed("worker", "shutdown", active_tasks=1)),
        ("good", moved("worker", "shutdown", "local", told("job", "validating", "after"))),
        ("good", moved("worker", "shutdown", "local", told("job", "validating", "one"))),
        ("good", added(BUSY, "shutdown_requested", "shutdown", active_tasks=1)),
        ("good", added(told("worker", "busy", nth=1), "shutdown_requested", "shutdown", active_tasks=2)),
    ],
    "resource_cleanup": [
        ("good", changed("worker", "idle", nth=-1, active_tasks=1)),
        ("good", changed("worker", "idle", active_tasks=2)),
        ("good", added(told("worker", "busy", nth=1), "task_completed", "idle", active_tasks=0)),
        (
            "good",
            added(told("job", "running", "after"), "worker_lost", "retrying", "warning", **BY_LOCAL),
        ),
        ("bad", changed("worker", "idle", nth=-1, active_tasks=1)),
    ],
}

CASES = [
    pytest.param(log, forge, id=f"{name}-{number}")
    for name, forgeries in FORGERIES.items()
    for number, (log, forge) in enumerate(forgeries, 1)
]


def test_the_logs_are_good(logs: dict[str, Log]) -> None:
    """Before they are forged, the logs have no problem."""
    for name, log in logs.items():
        assert validated(log).problems == [], name


@pytest.mark.parametrize(("name", "forge"), CASES)
def test_a_forged_log_is_refused(logs: dict[str, Log], name: str, forge: Forgery) -> None:
    """The line that was forged, or that contradicts it first, is reported."""
    log = [{**line, "metadata": dict(line["metadata"])} for line in logs[name]]
    index = forge(log)
    found = [one.line for one in validated(log).problems]
    assert index + 1 in found, f"line {index + 1} is not refused, but {found}: {log[index]}"


@pytest.mark.parametrize("state", ["retrying", "failed", "validating", "completed"])
def test_a_forged_severity_is_refused(logs: dict[str, Log], state: str) -> None:
    """A severity other than that of the state entered is reported, in the machines whose table has severities."""
    log = [*logs["bad" if state == "failed" else "good"]]
    index = at(log, "job", state)
    log[index] = log[index] | {"severity": "critical"}
    (problem,) = validated(log).problems
    assert (problem.line, problem.field) == (index + 1, "severity")
