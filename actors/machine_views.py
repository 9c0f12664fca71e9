"""Views of a machine's table: diagram, reference table, plain columns, JSON; and a check of the table.

All that is shown of a state machine is generated from its :class:`~actors.machine.Machine`, so that no second table can
drift from the first. The same table gives the same text in every process: no set is iterated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any

from actors.machine import Machine, Rule

AnyMachine = Machine[Any, Any]
AnyRule = Rule[Any]


def mermaid(machine: AnyMachine) -> str:
    """Return a ``stateDiagram-v2`` of the table; each arrow is labelled with event, guard and actions, and whether the
    rule is an extension."""
    lines = ["stateDiagram-v2"]
    lines += [f"    [*] --> {state.value}" for state in machine.initial]
    lines += [f"    {one.source.value} --> {one.target.value} : {_label(one)}" for one in machine.rules]
    lines += [f"    {state.value} --> [*]" for state in _terminal(machine)]
    return "\n".join(lines) + "\n"


def markdown(machine: AnyMachine) -> str:
    """Return the reference table: one row per rule, in the order in which the engine tries them; below it the
    severities of the states that are not entered with ``info``."""
    header = ["from", "event", "guard", "actions", "to", "extension / trigger"]
    rows = [header, ["---"] * len(header)] + [_markdown_row(one) for one in machine.rules]
    text = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    severities = as_json(machine)["severities"]
    if severities:
        entered = ", ".join(f"`{state}` {severity}" for state, severity in severities.items())
        text += f"\nSeverity of a transition into a state: {entered}; into any other `info`.\n"
    return text


def table(machine: AnyMachine) -> str:
    """Return the same rows for a terminal: aligned columns below a summary line."""
    header = ["from", "event", "guard", "to", "note"]
    rows = [header] + [
        [
            one.source.value,
            one.on.name(),
            _name(one.when) or "-",
            one.target.value,
            f"extension: {one.extension}" if one.extension else one.trigger or "",
        ]
        for one in machine.rules
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    edges = as_json(machine)["transitions"]
    extensions = sum(edge["extension"] is not None for edge in edges)
    summary = (
        f"{machine.name} (seed {machine.source}): {len(machine.states)} states, {len(edges) - extensions} edges, "
        f"{extensions} extensions; starts in {_values(machine.initial)}, ends in {_values(_terminal(machine))}"
    )
    return "".join(f"{line.rstrip()}\n" for line in (summary, *lines))


def as_json(machine: AnyMachine) -> dict[str, Any]:
    """Return the table as plain data: each edge once, and once more if an extension repeats an edge of the spec.

    If several rules make one edge, ``guard`` joins their guards with `` | `` and is ``None`` if one of these rules has
    no guard.
    """
    edges: dict[tuple[Enum, str, Enum, bool], list[AnyRule]] = {}
    for one in machine.rules:
        edges.setdefault((one.source, one.on.name(), one.target, one.extension is None), []).append(one)
    return {
        "specification": machine.source,
        "states": [state.value for state in machine.states],
        "initial": [state.value for state in machine.initial],
        "terminal": [state.value for state in _terminal(machine)],
        "severities": {
            state.value: machine.severities[state] for state in machine.states if state in machine.severities
        },
        "transitions": [_edge(rules) for rules in edges.values()],
    }


def faults(machine: AnyMachine) -> list[str]:
    """Return the faults of the table; an empty list if there is none."""
    return [*_cell_faults(machine), *_exit_faults(machine), *_path_faults(machine)]


def _cell_faults(machine: AnyMachine) -> Iterator[str]:
    for (state, on), rules in machine.cells.items():
        where = f"{machine.name}: {state.value} / {on.name()}"
        *earlier, last = rules
        if any(one.when is None for one in earlier):
            yield f"{where}: an unguarded rule hides the ones after it; put it last"
        if earlier and last.when is not None:
            yield f"{where}: the last of several rules is guarded by {_name(last.when)}; drop its guard"


def _exit_faults(machine: AnyMachine) -> Iterator[str]:
    for one in machine.rules:
        if one.source in machine.terminal and one.target is not one.source and one.extension is None:
            yield (
                f"{machine.name}: {one.source.value} is terminal but {one.on.name()} leaves it to "
                f"{one.target.value}; mark the rule as an extension"
            )


def _path_faults(machine: AnyMachine) -> Iterator[str]:
    reached = _closure(machine, machine.initial, forward=True)
    ending = _closure(machine, _terminal(machine), forward=False)
    for state in machine.states:
        if state in machine.reserved:
            continue
        if state not in reached:
            yield f"{machine.name}: {state.value} cannot be reached from {_values(machine.initial)}"
        if state not in ending:
            yield f"{machine.name}: {state.value} can never end; no path leads to {_values(_terminal(machine))}"


def _closure(machine: AnyMachine, start: Iterable[Enum], *, forward: bool) -> set[Enum]:
    """Return every state on a path from the states *start* (with *forward* false: on a path to one of them)."""
    frontier = list(start)
    seen = set(frontier)
    while frontier:
        state = frontier.pop()
        for one in machine.rules:
            here, there = (one.source, one.target) if forward else (one.target, one.source)
            if here is state and there not in seen:
                seen.add(there)
                frontier.append(there)
    return seen


def _edge(rules: Sequence[AnyRule]) -> dict[str, Any]:
    first = rules[0]
    unguarded = any(one.when is None for one in rules)
    return {
        "from": first.source.value,
        "event": first.on.name(),
        "to": first.target.value,
        "extension": first.extension,
        "guard": None if unguarded else " | ".join(dict.fromkeys(_name(one.when) for one in rules)),
        "trigger": next((one.trigger for one in rules if one.trigger), None),
    }


def _markdown_row(one: AnyRule) -> list[str]:
    actions = ", ".join(_name(action) for action in one.do)
    note = f"*extension*: {one.extension}" if one.extension else one.trigger or ""
    cells = [one.source.value, f"`{one.on.name()}`", _name(one.when), actions, one.target.value, note]
    return [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]


def _label(one: AnyRule) -> str:
    """Return the label of an arrow in a diagram."""
    guard = f" [{_name(one.when)}]" if one.when else ""
    actions = f" / {', '.join(_name(action) for action in one.do)}" if one.do else ""
    return f"{one.on.name()}{guard}{actions}{' (extension)' if one.extension else ''}"


def _terminal(machine: AnyMachine) -> list[Enum]:
    """Return the terminal states in the order of the enum; the order of a frozenset differs between processes."""
    return [state for state in machine.states if state in machine.terminal]


def _values(states: Iterable[Enum]) -> str:
    return ", ".join(str(state.value) for state in states)


def _name(function: Callable[..., Any] | None) -> str:
    return "" if function is None else str(getattr(function, "__name__", type(function).__name__))
