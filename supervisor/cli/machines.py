"""``supervisor machines``: the lifecycle tables as columns, diagrams, Markdown or JSON, and the reference page.

Everything here is drawn from the tables at the moment of asking, so it cannot be older than the code. The page in
``docs/`` is the output of ``python -m supervisor.cli.machines``; a test fails when it is stale.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from actors import machine_views as views
from actors.machine import Machine
from supervisor.lifecycles import MACHINES

__all__ = ["FORMATS", "reference_page", "render"]

AnyMachine = Machine[Any, Any]

FORMATS: Final = ("table", "mermaid", "markdown", "json")
"""What ``--format`` takes."""

_REGENERATE: Final = "python -m supervisor.cli.machines > docs/machines.md"


def render(names: Iterable[str], format: str) -> str:
    """The machines called *names* (all of them if there is none) as text that ends in a newline.

    Raises:
        ValueError: a name or the format is unknown; the message lists the known ones.
    """
    machines = [_machine(name) for name in names] or list(MACHINES.values())
    match format:
        case "json":
            return json.dumps({one.name: views.as_json(one) for one in machines}, indent=2, ensure_ascii=False) + "\n"
        case "table":
            return _texts(machines, views.table)
        case "mermaid":
            return _texts(machines, lambda one: f"%% {one.name}\n{views.mermaid(one)}")
        case "markdown":
            return _texts(machines, lambda one: f"## {one.name}\n\n{views.markdown(one)}")
        case _:
            raise ValueError(f"format {format!r} is unknown; use one of: {', '.join(FORMATS)}")


def reference_page() -> str:
    """The whole Markdown page: what the tables are, one line for each, then each with its diagram and its rules."""
    return "\n".join([_INTRODUCTION, _overview(), *(_section(one) for one in MACHINES.values())])


def _machine(name: str) -> AnyMachine:
    if name not in MACHINES:
        raise ValueError(f"machine {name!r} is unknown; use one of: {', '.join(MACHINES)}")
    return MACHINES[name]


def _texts(machines: Iterable[AnyMachine], view: Callable[[AnyMachine], str]) -> str:
    return "\n".join(view(one) for one in machines)


_INTRODUCTION: Final = f"""\
# State machines

<!-- Generated from the tables in supervisor/lifecycles/. Do not edit; run: {_REGENERATE} -->

Every lifecycle is one table of rules. This page is drawn from the tables; `supervisor machines` prints the same.
Of several rules for one state and event the first whose guard holds decides; an event without a rule is refused,
changes nothing, and the error names what was allowed. An *extension* is a rule that the specification does not have:
it says why it is there and never changes what a specified edge does. A terminal state is left by extensions only.
"""


def _overview() -> str:
    rows = ["| machine | states | edges | extensions | starts in | ends in |", "|---|---|---|---|---|---|"]
    return "\n".join([*rows, *(_overview_row(one) for one in MACHINES.values())]) + "\n"


def _overview_row(machine: AnyMachine) -> str:
    facts = views.as_json(machine)
    extensions = sum(edge["extension"] is not None for edge in facts["transitions"])
    edges = len(facts["transitions"]) - extensions
    starts, ends = ", ".join(facts["initial"]), ", ".join(facts["terminal"])
    connection = f"[{machine.name}](#{machine.name})"
    return f"| {connection} | {len(facts['states'])} | {edges} | {extensions} | {starts} | {ends} |"


def _section(machine: AnyMachine) -> str:
    diagram = f"```mermaid\n{views.mermaid(machine)}```\n"
    return f"## {machine.name}\n\nSpecification: spec {machine.source}.\n\n{diagram}\n{views.markdown(machine)}"


if __name__ == "__main__":
    sys.stdout.write(reference_page())
