"""Comparison of the specification's pages with the code: states, transitions, severities, words and defaults, and the
numbers of rules."""

from __future__ import annotations

import inspect
import re
from enum import Enum
from pathlib import Path

import pytest

from actors.backoff import Backoff
from actors.machine_views import as_json
from actors.mailbox import Limits
from actors.supervision import Supervisor
from supervisor.diagnostics.visual_state import AgentStateThresholds, VisualState
from supervisor.lifecycles import MACHINES
from supervisor.lifecycles.task import TaskData
from supervisor.lifecycles.turn import EXTENSION_S
from supervisor.lifecycles.types import (
    AbortReason,
    Exit,
    LifecycleEvent,
    SessionLimits,
    StageBudgets,
    TransitionReason,
)
from supervisor.lifecycles.worker import WorkerData
from supervisor.plans import Plan
from supervisor.plans.agents import WorkerConfig
from supervisor.plans.lifecycle import TaskLifecycle
from supervisor.policies.liveness import Liveness
from supervisor.policies.retry_budget import RetryBudget
from supervisor.sessions.mcp_stdio import RESTARTS
from supervisor.sessions.services import CLEANUP_S
from supervisor.work.plan_run import LOSSES_MAX
from supervisor.work.timeouts import Timeouts

SPEC = Path(__file__).parents[3] / "docs" / "spec"

PAGES = {
    "task": ("000-task-agent-turn.md", " of a task"),
    "agent": ("000-task-agent-turn.md", " of an agent"),
    "turn": ("000-task-agent-turn.md", " of a turn"),
    "session": ("003-session.md", ""),
    "run": ("002-task-run.md", ""),
    "job": ("004-workstream-job-worker.md", " of a job"),
    "workstream": ("004-workstream-job-worker.md", " of a workstream"),
    "worker": ("004-workstream-job-worker.md", " of a worker"),
    "trigger": ("005-trigger.md", ""),
}
"""The page of each machine, and the ends of its headings after "States" and "Transitions"."""

machines = pytest.mark.parametrize("name", MACHINES)


def first_table(page: str, heading: str) -> list[dict[str, str]]:
    """Return the rows of the first table below *heading* of a page, as {title of the column: cell}."""
    text = (SPEC / page).read_text(encoding="utf-8")
    section = re.split(rf"^##+ {re.escape(heading)}$", text, flags=re.MULTILINE)[1].split("\n## ")[0]
    lines = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert lines is not None, f"{page}: no table under {heading}"
    titles, _, *rows = (re.split(r" *(?<!\\)\| *", line.strip("|\n").strip()) for line in lines[0].splitlines())
    assert all(len(row) == len(titles) for row in rows), f"{page}: a row under {heading} lacks a cell"
    return [dict(zip(titles, row, strict=True)) for row in rows]


def table(name: str, heading: str) -> list[dict[str, str]]:
    """Return the rows of the first table under *heading* of the machine's page."""
    page, of_what = PAGES[name]
    return first_table(page, f"{heading}{of_what}")


def names(cell: str) -> list[str]:
    """Return the names of states or events in a cell, without their arguments: `CoolingDown` or `Stopped`;
    `SessionExited(*)`."""
    return re.findall(r"`(\w+)", cell)


def specified_states(name: str) -> list[dict[str, str]]:
    return table(name, "States")


def specified_edges(name: str) -> set[tuple[str, str, str]]:
    """Return (from, event or trigger, to) of every transition on the machine's page; (any) stands for each state."""
    every = [names(row["State"])[0] for row in specified_states(name)]
    return {
        (source, names(row["Event"])[0] if "Event" in row else row["Trigger"], target)
        for row in table(name, "Transitions")
        for source in (every if row["From"] == "(any)" else names(row["From"]))
        for target in names(row["To"])
    }


def built_edges(name: str) -> set[tuple[str, str, str]]:
    """Return (from, event or trigger, to) of every transition in the code's table that is no extension."""
    label = "event" if "Event" in table(name, "Transitions")[0] else "trigger"
    edges = as_json(MACHINES[name])["transitions"]
    return {(edge["from"], edge[label], edge["to"]) for edge in edges if edge["extension"] is None}


def test_every_machine_has_a_page() -> None:
    """Each machine of the code has a page of the specification, and the reverse."""
    assert sorted(PAGES) == sorted(MACHINES)


@machines
def test_states_are_those_of_the_specification(name: str) -> None:
    """A machine of the code has the states of its page in the same order, and the same terminal states."""
    built = as_json(MACHINES[name])
    rows = specified_states(name)
    assert [names(row["State"])[0] for row in rows] == built["states"]
    assert {names(row["State"])[0] for row in rows if row["Terminal"] == "yes"} == set(built["terminal"])


@machines
def test_every_specified_transition_is_built(name: str) -> None:
    """Every transition on a page of the specification is in the code's table."""
    assert specified_edges(name) - built_edges(name) == set()


@machines
def test_every_other_transition_is_marked_as_an_extension(name: str) -> None:
    """Every transition of the code's table that is not on the machine's page is marked as an extension."""
    assert built_edges(name) - specified_edges(name) == set()


def test_each_rule_is_there_once() -> None:
    """rules.md has rules 1 to 54, 8a, 14a and 51a, each once and in order."""
    found = re.findall(r"^### Rule (\w+)$", (SPEC / "rules.md").read_text(encoding="utf-8"), re.MULTILINE)
    expected = [str(number) for number in range(1, 55)]
    for number in ("8", "14", "51"):
        expected.insert(expected.index(number) + 1, f"{number}a")
    assert found == expected


@pytest.mark.parametrize("name", ["job", "workstream", "worker"])
def test_severities_are_those_of_the_specification(name: str) -> None:
    """The severity that a transition of spec 004 names is that of the state entered; a transition without one enters
    a state with ``info``, except that each way into `failed` of a workstream is critical (rule 44)."""
    severities = as_json(MACHINES[name])["severities"]
    for row in table(name, "Transitions"):
        named = re.search(r"severity `(\w+)`", row["Actions"])
        for target in names(row["To"]):
            if named is not None:
                assert severities.get(target) == named[1], row
            elif (name, target) != ("workstream", "failed"):
                assert target not in severities, row


# ----------------------------------------------------------------------------------------------- words and defaults
def test_the_table_of_machines_has_their_states() -> None:
    """The overview of the machines has a row for each, with the number of its states, besides two things without a
    machine."""
    rows = first_table("README.md", "Which document governs what")
    found = {names(row["Machine"])[0]: int(row["States"]) for row in rows if row["Machine"].startswith("`")}
    assert found == {name: len(as_json(machine)["states"]) for name, machine in MACHINES.items()}


def test_the_fields_of_a_transition_are_in_its_record() -> None:
    """A record has every field that the specification lists; rule 21 adds two."""
    fields = [
        name for row in first_table("000-task-agent-turn.md", "Transition metadata") for name in names(row["Field"])
    ]
    assert len(fields) == 9
    assert {*fields, "entity_seq", "monotonic_s"} <= {*LifecycleEvent.__struct_fields__}


@pytest.mark.parametrize(
    ("heading", "built", "extensions"),
    [
        ("TransitionReason", TransitionReason, {"shortage", "permanent_error"}),
        ("AbortReason", AbortReason, {"budget_spent", "loop"}),
    ],
)
def test_reasons_are_those_of_the_specification(heading: str, built: type[Enum], extensions: set[str]) -> None:
    """The code has every reason of the specification, and two extensions."""
    specified = [names(row["Value"])[0] for row in first_table("000-task-agent-turn.md", heading)]
    assert {*specified, *extensions} == {one.value for one in built}


def test_visual_states_are_those_of_the_specification() -> None:
    """The seven visual states have the indicator and the colour of their row."""
    rows = first_table("000-task-agent-turn.md", "Visual states")
    specified = [(names(row["Visual state"])[0], row["Indicator"], row["Colour"]) for row in rows]
    assert specified == [(one.value, one.indicator, one.colour) for one in VisualState]


def test_the_outcomes_of_a_session_are_those_of_the_specification() -> None:
    """ExitOutcome has the variants of its table."""
    assert [names(row["Variant"])[0] for row in first_table("003-session.md", "ExitOutcome")] == [
        one.value for one in Exit
    ]


_SESSION, _RUN, _STAGES = SessionLimits(), TaskLifecycle().value(), StageBudgets()
_PLAN, _WORKER = Plan.model_fields, WorkerConfig()
_BUDGET, _TIMES, _RESTART = RetryBudget(), Timeouts(), Backoff()
DEFAULTS: dict[str, list[float]] = {
    "interrupt grace": [_SESSION.grace_s],
    "termination": [_STAGES.request_s, _STAGES.cancel_s, _STAGES.terminate_s, _STAGES.kill_s],
    "clean-up budget": [CLEANUP_S],
    "spawn deadline": [_SESSION.spawn_deadline_s],
    "backoff of a session": [_SESSION.backoff_base_ms, 2, 1, _SESSION.backoff_cap_ms],
    "`max_consecutive_errors`": [_SESSION.max_consecutive_errors, _SESSION.max_total_errors],
    "`stable_after_s`": [_SESSION.stable_after_s],
    "restart intensity of a session": [_SESSION.restarts_max, _SESSION.restarts_within_s],
    "restart intensity of a supervisor": [*inspect.signature(Supervisor).parameters["intensity"].default],
    "restart backoff": [_RESTART.base_s, _RESTART.cap_s],
    "stall threshold": [_SESSION.stall_threshold_s],
    "stall bound": [_SESSION.merging_stall_s],
    "progress snapshot": [Liveness().snapshot_s],
    "run: `max_attempts`": [_RUN.max_attempts],
    "run: delay": [_RUN.base_delay_s, _RUN.max_delay_s, 100 * _RUN.jitter],
    "circuit: cool-down": [_RUN.cooldown_s],
    "circuit: `max_error_repeats`": [_RUN.max_error_repeats],
    "circuit: `probes_max`": [_RUN.probes_max],
    "time-out of a task without a size": [_TIMES.default_s, _TIMES.command_s],
    "time-out of a task with a size": [],
    "time-out: extension": [EXTENSION_S, _TIMES.hard_cap_s],
    "acceptance test": [TaskLifecycle().validation_timeout],
    "task: `max_retries`": [TaskData().max_retries],
    "retry budget": [100 * _BUDGET.share, _BUDGET.retries_min],
    "worker: heartbeat": [_WORKER.heartbeat_s, _WORKER.check_s],
    "worker: misses": [WorkerData().misses_max, WorkerData().shutdown_s],
    "workers that may be lost": [LOSSES_MAX],
    "`max_sessions`": [_PLAN["max_sessions"].default],
    "drain deadline": [_PLAN["drain_s"].default],
    "mailbox": [Limits().capacity, Limits().capacity_bytes / 2**20],
    "`provider_wait_max_s`": [_RUN.provider_wait_max_s, _RUN.provider_wait_max_s / 3600],
    "`provider_patience_s`": [_RUN.provider_patience_s],
}
"""The figures of each default in the code, in the order of the page, by the beginning of the row."""


def test_defaults_are_those_of_the_code() -> None:
    """Each row of the defaults has the figures of the code, but for those that are not yet in the product."""
    rows = [row for row in first_table("README.md", "Defaults") if "*not yet*" not in row["Today, where it differs"]]
    assert len(rows) == len(DEFAULTS)
    for row, (beginning, figures) in zip(rows, DEFAULTS.items(), strict=True):
        assert row["What"].startswith(beginning)
        written = re.findall(r"\d[\d,.]*", re.sub(r"\(rule \d+\)", "", row["Default"]))
        assert [float(one.replace(",", "").rstrip(".")) for one in written] == pytest.approx(figures), row["What"]
    assert (_SESSION.restarts_max, _SESSION.restarts_within_s) == RESTARTS
    assert AgentStateThresholds() == AgentStateThresholds(
        stall_threshold_s=_SESSION.stall_threshold_s,
        spawn_timeout_s=_SESSION.spawn_deadline_s,
        merging_stall_s=_SESSION.merging_stall_s,
    )
