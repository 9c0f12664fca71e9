"""Conformance table of the specification: what ``docs/spec/conformance.toml`` says, and the page that is made from it.

``python -m tests.conformance`` writes ``docs/spec/conformance.md``. The tests that a statement names are found in the
source of the test files; no test is imported.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT = Path(__file__).parents[1]
SPEC = ROOT / "docs" / "spec"
PAGE = SPEC / "conformance.md"
PAGES: Final = {
    "spec": "README.md",
    "000": "000-task-agent-turn.md",
    "001": "001-principles.md",
    "002": "002-task-run.md",
    "003": "003-session.md",
    "004": "004-workstream-job-worker.md",
    "005": "005-trigger.md",
    "rule": "rules.md",
}
"""The page of each document that has statements, in the order of the table."""
ANSWERS: Final = {"shown_by": "shown by tests", "decided": "decided otherwise", "not_yet": "not yet"}
"""Keys of the answers that a statement may have, and the words of the page for each."""


class Statement(NamedTuple):
    """Statement of the specification, and what became of it.

    ``id`` is ``000-12``, ``spec-3`` (of the page README.md), ``rule 47`` or ``rule 47.2`` (of several about one rule).
    ``section`` is a heading of the page of the statement's document. ``answer`` is a key of ``ANSWERS``; ``tests`` has
    the named tests, or ``text`` the reason or what is missing.
    """

    id: str
    section: str
    says: str
    answer: str
    tests: tuple[str, ...] = ()
    text: str = ""

    @property
    def document(self) -> str:
        return re.split(r"[- ]", self.id)[0]

    @property
    def rule(self) -> str:
        """The number of the rule, or ``""``: ``14a`` of ``rule 14a.2``."""
        return self.id.partition(" ")[2].partition(".")[0]


def read_statements(text: str) -> list[Statement]:
    """Return the statements of the file's *text*, in order.

    Raises:
        ValueError: an id is malformed, a document is unknown, or a statement has not exactly one answer.
    """
    return [_statement(one, entry) for one, entry in tomllib.loads(text).items()]


def _statement(statement_id: str, entry: dict[str, Any]) -> Statement:
    if not re.fullmatch(r"(spec|00[0-5])-[1-9]\d*|rule [1-9]\d*a?(\.[1-9]\d*)?", statement_id):
        raise ValueError(
            f"{statement_id!r} is no id of a statement; use, for example, 000-12, spec-3, rule 47 or rule 47.2"
        )
    is_rule = statement_id.startswith("rule")
    wanted = {"says"} if is_rule else {"says", "section"}
    answers = [key for key in ANSWERS if key in entry]
    if len(answers) != 1 or entry.keys() != {*wanted, *answers} or not entry[answers[0]]:
        raise ValueError(
            f"{statement_id}: has {', '.join(entry)}; give {', '.join(sorted(wanted))}, and one of {[*ANSWERS]}"
        )
    number = statement_id.partition(" ")[2].partition(".")[0]
    section = f"Rule {number}" if is_rule else entry["section"]
    [answer] = answers
    if answer == "shown_by":
        return Statement(statement_id, section, entry["says"], answer, tests=tuple(entry[answer]))
    return Statement(statement_id, section, entry["says"], answer, text=entry[answer])


def statements() -> list[Statement]:
    return read_statements((SPEC / "conformance.toml").read_text(encoding="utf-8"))


@cache
def names_in(path: str) -> frozenset[str]:
    """Return the names of the test functions in the file at *path* (relative to the root); none if there is no file."""
    if not (ROOT / path).is_file():
        return frozenset()
    source = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = [one for one in ast.walk(source) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    return frozenset(one.name for one in functions if one.name.startswith("test_"))


def headings(document: str) -> list[str]:
    """Return the headings of the document's page from the second level on, in order."""
    text = (SPEC / PAGES[document]).read_text(encoding="utf-8")
    return re.findall(r"^##+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)


_INTRODUCTION: Final = """\
# Conformance

<!-- Generated from docs/spec/conformance.toml. Do not edit; run: make conformance -->

The statements of the specification, each with the tests that show it, the reason why the product decides otherwise, or
what is *not yet* there. Cite a statement by its id, which is given once. Tables of states and transitions are one
statement each: the tests compare every row.
"""


def page() -> str:
    """Return the text of the page."""
    every = statements()
    count = {answer: sum(one.answer == answer for one in every) for answer in ANSWERS}
    sums = ", ".join(f"{count[answer]} {words}" for answer, words in ANSWERS.items())
    parts = [_INTRODUCTION, f"{len(every)} statements: {sums}.\n"]
    for document, found in groupby(every, key=lambda one: one.document):
        parts.append("\n".join(_table(document, list(found))) + "\n")
    return "\n".join(parts)


def _table(document: str, found: list[Statement]) -> Iterator[str]:
    link = PAGES[document]
    title = (SPEC / link).read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
    yield f"## {title}"
    for section, here in groupby(found, key=lambda one: one.section):
        if document != "rule":
            yield f"\n[{section}]({link}#{_anchor(section)})"
            yield "\n| id | statement | shown by, or why not |\n|---|---|---|"
        elif section == found[0].section:
            yield "\n| id | statement | shown by, or why not |\n|---|---|---|"
        for one in here:
            name = one.id if document != "rule" else f"[{one.id}]({link}#{_anchor(section)})"
            yield f"| {name} | {one.says} | {_answer(one)} |"


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def _answer(statement: Statement) -> str:
    if statement.answer == "shown_by":
        return "<br>".join(f"`{test}`" for test in statement.tests)
    return f"*{ANSWERS[statement.answer]}*: {statement.text}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
