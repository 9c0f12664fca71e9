"""Page of the documentation with the results of the conformance probe, made from the catalogue's files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from supervisor.agent_catalogue import catalogue
from supervisor.agent_catalogue.measured import Measurement, measured_agents

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "agents-measured.md"
HEAD = """# Measured agents

This page is written by `make agents` from the results of [`supervisor agents probe`](../how-to/probe-agents.md) in the
catalogue; do not change it by hand. The agents ran without an account, against the [scripted
model](../how-to/stub-model.md) on one machine. Times are upper bounds: the machine was shared.

`yes`: the agent behaves as a supervisor needs; **no**: it does not, and the supervisor copes with it, or the text below
says what is lost; `-`: the case could not be tried, or allows no verdict.
"""
GROUPS: dict[str, dict[str, str]] = {
    "Work": {
        "turn with a tool": "tool",
        "writes a file": "edit",
        "two calls in one answer": "parallel",
        "reports its use": "use",
        "use over three processes": "use, 3 processes",
        "urgent message before the first words": "urgent, early",
        "urgent message after the first words": "urgent, late",
    },
    "Permissions": {
        "permission allowed": "allowed",
        "permission denied": "denied",
        "permission not answered": "not answered",
    },
    "Ends": {
        "cancel": "cancel",
        "cancel kills the tool": "tool dead",
        "second prompt after a cancel": "next prompt",
        "cancel of a silent model": "silent model",
        "ends one call": "one call",
        "EOF, a tool running": "EOF",
        "TERM, a tool running": "TERM",
        "INT, a tool running": "INT",
        "KILL, a tool running": "KILL",
        "daemon of a tool, after its end": "daemon",
    },
    "Conversations": {
        "resumes a conversation": "resume, twice",
        "resumes after a cut": "after a cut line",
        "resumes in another directory": "other directory",
        "resumes after kill -9 in a tool": "after kill -9",
    },
    "Failures of the model, and starts": {
        "model: 401": "401",
        "model: 404": "404",
        "model: 429": "429",
        "model: 429 with Retry-After": "429, wait 600 s",
        "model: 500": "500",
        "model: quota": "quota",
        "model: context too long": "context",
        "model: cut stream": "cut",
        "start with a bad option": "bad option",
        "start without a login": "no login",
    },
}
"""Tables of the page: the cases of each, with the titles of their columns."""


def page() -> str:
    """Return the text of the page."""
    rows = [(name, one) for name, agent in measured_agents().items() for one in agent.results]
    return "\n".join([HEAD, *_tables(rows), *_details(rows)]).rstrip() + "\n"


def write_page() -> None:
    """Write the page again, from the files as they are now."""
    measured_agents.cache_clear()
    PAGE.write_text(page())


def _tables(rows: Sequence[tuple[str, Measurement]]) -> Iterator[str]:
    for title, cases in GROUPS.items():
        yield f"## {title}\n"
        yield f"| agent | {' | '.join(cases.values())} |"
        yield f"|---|{'---|' * len(cases)}"
        for name, result in rows:
            cells = " | ".join(_cell(result, case) for case in cases)
            yield f"| {name} {result.version}, `{result.adapter}` | {cells} |"
        yield ""
    missing = [name for name in catalogue() if name not in measured_agents()]
    if missing:
        yield f"Not measured: {', '.join(missing)}.\n"


def _cell(result: Measurement, case: str) -> str:
    found = result.cases.get(case)
    return {True: "yes", False: "**no**", None: "-"}[found.good if found is not None else None]


def _details(rows: Sequence[tuple[str, Measurement]]) -> Iterator[str]:
    yield "## What was seen\n"
    for name, result in rows:
        yield f"### {name} {result.version}, {result.adapter}\n"
        yield f"Measured {result.date}.\n"
        yield "| case | | seen |"
        yield "|---|---|---|"
        for case, found in result.cases.items():
            text = found.found.replace("|", "\\|").replace("<", "\\<").replace("`", "'")
            yield f"| {case} | {_cell(result, case)} | {text} |"
        yield ""
