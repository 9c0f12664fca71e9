"""Views of a table (diagram, page, columns, data), and the faults that are found in bad tables."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

import pytest

from actors.machine import Effect, Event, Machine, Rule, rule
from actors.machine_views import as_json, faults, markdown, mermaid, table


class Light(Enum):
    RED = "red"
    GREEN = "green"
    OFF = "off"
    SPARE = "spare"


class Switched(Event, frozen=True, kw_only=True):
    """Event of a test: a switch was pressed."""

    spelled = "switched"


class Cut(Event, frozen=True, kw_only=True):
    """Event of a test: the power was cut."""


def lit(data: Any, event: Event) -> bool:
    return bool(data)


def dim(data: Any, event: Event) -> bool:
    return not data


def hum(data: Any, event: Event) -> tuple[Any, tuple[Effect, ...]]:
    return data, ()


L = Light


def machine(rules: Iterable[tuple[Rule[Light], ...]], *, terminal: Iterable[Light] = (L.OFF,)) -> Machine[Light, Any]:
    """Return a machine over the states of a lamp, whose fourth state is reserved."""
    return Machine("light", source="007", initial=[L.RED], terminal=terminal, reserved=[L.SPARE], rules=rules)


SOUND = machine(
    [
        rule(Switched, L.RED, L.GREEN, when=lit, do=[hum], trigger="a | b"),
        rule(Switched, L.RED, L.GREEN, when=dim),
        rule(Switched, L.RED, None),
        rule(Cut, [L.RED, L.GREEN], L.OFF),
        rule(Switched, L.OFF, L.RED, extension="light again"),
        rule(Cut, L.OFF, L.OFF, when=lit),
        rule(Cut, L.OFF, L.OFF, extension="unheard"),
    ]
)


def test_mermaid_draws_every_rule() -> None:
    """The diagram has the machine's initial and terminal states, and one arrow for each rule, with guard and
    actions."""
    assert mermaid(SOUND) == (
        "stateDiagram-v2\n"
        "    [*] --> red\n"
        "    red --> green : switched [lit] / hum\n"
        "    red --> green : switched [dim]\n"
        "    red --> red : switched\n"
        "    red --> off : Cut\n"
        "    green --> off : Cut\n"
        "    off --> red : switched (extension)\n"
        "    off --> off : Cut [lit]\n"
        "    off --> off : Cut (extension)\n"
        "    off --> [*]\n"
    )


def test_markdown_has_a_row_for_every_rule() -> None:
    """The table shows all six columns, and a bar in a text does not end its cell."""
    lines = markdown(SOUND).splitlines()
    assert lines[0] == "| from | event | guard | actions | to | extension / trigger |"
    assert lines[2] == "| red | `switched` | lit | hum | green | a \\| b |"
    assert lines[6] == "| green | `Cut` |  |  | off |  |"
    assert lines[7] == "| off | `switched` |  |  | red | *extension*: light again |"
    assert len(lines) == 2 + len(SOUND.rules)


def test_table_aligns_its_columns() -> None:
    """Under the summary every row has its event in the same column, and no line ends in blanks."""
    summary, *rows = table(SOUND).splitlines()
    assert summary == "light (seed 007): 4 states, 5 edges, 2 extensions; starts in red, ends in off"
    assert len(rows) == 1 + len(SOUND.rules)
    assert rows[1] == "red    switched  lit    green  a | b"
    assert all(row == row.rstrip() and row[7:].startswith(("event", "switched", "Cut")) for row in rows)


def test_json_has_each_edge_once_and_once_more_as_an_extension() -> None:
    """Rules of one edge become one transition with their guards joined; an extension of a specified edge is listed
    separately."""
    facts = as_json(SOUND)
    assert list(facts) == ["specification", "states", "initial", "terminal", "severities", "transitions"]
    assert (facts["specification"], facts["initial"], facts["terminal"]) == ("007", ["red"], ["off"])
    assert facts["states"] == ["red", "green", "off", "spare"]
    assert [tuple(one.values()) for one in facts["transitions"]] == [
        ("red", "switched", "green", None, "lit | dim", "a | b"),
        ("red", "switched", "red", None, None, None),
        ("red", "Cut", "off", None, None, None),
        ("green", "Cut", "off", None, None, None),
        ("off", "switched", "red", "light again", None, None),
        ("off", "Cut", "off", None, "lit", None),
        ("off", "Cut", "off", "unheard", None, None),
    ]
    assert {tuple(one) for one in facts["transitions"]} == {("from", "event", "to", "extension", "guard", "trigger")}


def test_terminal_states_come_in_the_order_of_the_enum() -> None:
    """Views list terminal states in the order of the enum, although a frozenset has another order in every process."""
    every = machine([rule(Cut, L.RED, L.GREEN)], terminal=[L.SPARE, L.OFF, L.GREEN])
    assert as_json(every)["terminal"] == ["green", "off", "spare"]


def test_sound_table_has_no_faults() -> None:
    """Self loops of a terminal state, extensions out of it, and reserved states are no faults."""
    assert faults(SOUND) == []


GOOD = [rule(Switched, L.RED, L.GREEN), rule(Cut, [L.RED, L.GREEN], L.OFF)]


@pytest.mark.parametrize(
    ("rules", "fault"),
    [
        ([rule(Cut, L.RED, L.OFF), rule(Cut, L.GREEN, L.OFF)], "light: green cannot be reached from red"),
        ([rule(Switched, L.RED, L.GREEN), rule(Cut, L.RED, L.OFF)], "light: green can never end; no path leads to off"),
        (
            [rule(Switched, L.RED, L.RED), *GOOD],
            "light: red / switched: an unguarded rule hides the ones after it; put it last",
        ),
        (
            [rule(Cut, L.RED, L.GREEN, when=lit), rule(Cut, L.RED, L.OFF, when=dim), rule(Cut, L.GREEN, L.OFF)],
            "light: red / Cut: the last of several rules is guarded by dim; drop its guard",
        ),
        (
            [*GOOD, rule(Switched, L.OFF, L.RED)],
            "light: off is terminal but switched leaves it to red; mark the rule as an extension",
        ),
    ],
)
def test_each_fault_is_found_and_named(rules: list[tuple[Rule[Light], ...]], fault: str) -> None:
    """A table with one fault has exactly that fault, described with its place."""
    assert faults(machine(rules)) == [fault]


def test_single_guarded_rule_is_no_fault() -> None:
    """A cell with a single guarded rule is no fault; only the last of several rules must not be guarded."""
    assert faults(machine([*GOOD, rule(Switched, L.GREEN, L.RED, when=lit)])) == []


def test_the_first_of_several_reasons_is_shown() -> None:
    """If several extensions make one edge, the JSON view has the reason of the rule that is tried first."""
    rules = [
        rule(Switched, L.RED, L.OFF, when=lit, extension="first", trigger=None),
        rule(Switched, L.RED, L.OFF, when=dim, extension="second", trigger="when dim"),
        rule(Switched, L.RED, L.OFF, extension="third", trigger="always"),
    ]
    (edge,) = as_json(machine(rules))["transitions"]
    assert (edge["extension"], edge["guard"], edge["trigger"]) == ("first", None, "when dim")
