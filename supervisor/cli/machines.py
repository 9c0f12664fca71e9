"""``supervisor machines``: the lifecycle tables as columns, diagrams, Markdown or JSON, and the reference pages.

Every text is generated from the tables on request, so no text can be older than the code. ``python -m
supervisor.cli.machines DIRECTORY`` writes the pages of ``docs/reference/machines/``; a test fails when they are stale.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from actors import machine_views as views
from actors.machine import Machine
from supervisor.lifecycles import MACHINES

AnyMachine = Machine[Any, Any]

FORMATS: Final = ("table", "mermaid", "markdown", "json")
"""Values of ``--format``."""

_REGENERATE: Final = "make machines"


def render(names: Iterable[str], format: str) -> str:
    """Render the machines *names* (all machines if it is empty) as text that ends in a newline.

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


def reference_pages() -> dict[str, str]:
    """Return the Markdown pages by file name: ``index.md`` with a row for each machine, and a page for each machine."""
    contents = "\n".join(["```{toctree}", ":hidden:", "", *MACHINES, "```"]) + "\n"
    pages = {f"{one.name}.md": _page(one) for one in MACHINES.values()}
    return {"index.md": "\n".join([_INTRODUCTION, _overview(), contents]), **pages}


def _machine(name: str) -> AnyMachine:
    if name not in MACHINES:
        raise ValueError(f"machine {name!r} is unknown; use one of: {', '.join(MACHINES)}")
    return MACHINES[name]


def _texts(machines: Iterable[AnyMachine], view: Callable[[AnyMachine], str]) -> str:
    return "\n".join(view(one) for one in machines)


_GENERATED: Final = f"<!-- Generated from the tables in supervisor/lifecycles/. Do not edit; run: {_REGENERATE} -->"

_INTRODUCTION: Final = f"""\
# State machines

{_GENERATED}

Every lifecycle is one table of rules. These pages are drawn from the tables; `supervisor machines` prints the same.
Where several rules have the same state and event, the first rule whose guard holds decides. An event without a rule is
refused and changes nothing; the error names the events that are allowed. An *extension* is a rule that the
specification does not have. Each extension gives its reason, and no extension changes what a specified rule does. Only
an extension leaves a terminal state.
"""


def _overview() -> str:
    rows = ["| machine | states | edges | extensions | starts in | ends in |", "|---|---|---|---|---|---|"]
    return "\n".join([*rows, *(_overview_row(one) for one in MACHINES.values())]) + "\n"


def _overview_row(machine: AnyMachine) -> str:
    facts = views.as_json(machine)
    extensions = sum(edge["extension"] is not None for edge in facts["transitions"])
    edges = len(facts["transitions"]) - extensions
    starts, ends = ", ".join(facts["initial"]), ", ".join(facts["terminal"])
    link = f"[{machine.name}]({machine.name}.md)"
    return f"| {link} | {len(facts['states'])} | {edges} | {extensions} | {starts} | {ends} |"


def _page(machine: AnyMachine) -> str:
    heading = f"# {machine.name}\n\n{_GENERATED}\n\nSpecification: spec {machine.source}.\n"
    return f"{heading}\n```mermaid\n{views.mermaid(machine)}```\n\n{views.markdown(machine)}"


if __name__ == "__main__":
    for _name, _text in reference_pages().items():
        Path(sys.argv[1], _name).write_text(_text, encoding="utf-8")
