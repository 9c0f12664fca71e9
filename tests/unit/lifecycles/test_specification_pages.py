"""Comparison of the specification's pages with the tables of the code: states, transitions and numbers of rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from actors.machine_views import as_json
from supervisor.lifecycles import MACHINES

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
}
"""The page of each machine, and the ends of its headings after "States" and "Transitions"."""

machines = pytest.mark.parametrize("name", MACHINES)


def table(name: str, heading: str) -> list[dict[str, str]]:
    """Return the rows of the first table under *heading* of the machine's page, as {title of the column: cell}."""
    page, of_what = PAGES[name]
    text = (SPEC / page).read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}{of_what}\n")[1].split("\n## ")[0]
    lines = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert lines is not None, f"{page}: no table under {heading}{of_what}"
    titles, _, *rows = (re.split(r" *(?<!\\)\| *", line.strip("|\n").strip()) for line in lines[0].splitlines())
    assert all(len(row) == len(titles) for row in rows), f"{page}: a row under {heading}{of_what} lacks a cell"
    return [dict(zip(titles, row, strict=True)) for row in rows]


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
    """rules.md has rules 1 to 53, 8a, 14a and 51a, each once and in order."""
    found = re.findall(r"^### Rule (\w+)$", (SPEC / "rules.md").read_text(encoding="utf-8"), re.MULTILINE)
    expected = [str(number) for number in range(1, 54)]
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
