"""Tests of the conformance table of the specification: the page is current, every test that the page names exists, and
no part of the specification is left out."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from tests.conformance import PAGE, PAGES, SPEC, Statement, headings, names_in, page, read_statements, statements

STATEMENTS = statements()
ABOUT_PAGES = {"How to cite", "Where it comes from"}
"""Sections of the specification that are about its pages, and state nothing about the product."""


def of_section(document: str, section: str) -> list[Statement]:
    return [one for one in STATEMENTS if (one.document, one.section) == (document, section)]


def rules() -> dict[str, str]:
    """Return the text of each rule by its number."""
    _, *parts = re.split(r"^### Rule (\w+)$", (SPEC / "rules.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_the_page_is_current() -> None:
    """docs/spec/conformance.md equals the page that is made from conformance.toml; `make conformance` writes it."""
    assert PAGE.read_text(encoding="utf-8") == page(), "stale: run `make conformance`"


def test_every_named_test_exists() -> None:
    """Each test that a statement names is a function of the file that it names."""
    named = {(one.id, test) for one in STATEMENTS for test in one.tests}
    gone = sorted(
        f"{where}: {test}"
        for where, test in named
        for path, _, name in [test.partition("::")]
        if name not in names_in(path)
    )
    assert gone == []
    assert len(named) > 400


def test_every_section_has_a_statement() -> None:
    """Every section of the documents has a statement; that of a section of states may stand with the transitions."""
    for document in PAGES:
        if document != "rule":
            missing = [one for one in headings(document) if one not in ABOUT_PAGES and not of_section(document, one)]
            assert missing == [], PAGES[document]


def test_every_statement_is_of_a_section() -> None:
    """The section of a statement is a heading of its page, and statements stand in the order of the headings."""
    for document in PAGES:
        found = headings(document)
        places = [found.index(one.section) for one in STATEMENTS if one.document == document]
        assert all(before <= after for before, after in pairwise(places)), PAGES[document]
    assert [*dict.fromkeys(one.document for one in STATEMENTS)] == [*PAGES]


def test_every_rule_has_a_statement() -> None:
    """Every rule has a statement with its number, and a rule of several statements numbers them."""
    found = {number: [one.id for one in STATEMENTS if one.rule == number] for number in rules()}
    assert [number for number, ids in found.items() if not ids] == []
    assert [ids for number, ids in found.items() if len(ids) > 1 and f"rule {number}" in ids] == []


def test_every_invariant_has_a_statement() -> None:
    """Each of the fourteen numbered invariants of spec 004 has a statement of its own."""
    text = (SPEC / PAGES["004"]).read_text(encoding="utf-8")
    counts = {}
    for heading in headings("004"):
        if heading.startswith("Invariants"):
            section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
            counts[heading] = len(re.findall(r"^\d+\. ", section, re.MULTILINE))
            assert len(of_section("004", heading)) == counts[heading], heading
    assert sum(counts.values()) == 14


def test_what_a_rule_lacks_is_not_yet() -> None:
    """Exactly the rules that are marked *not yet*, or *in part*, have a statement that is not yet there."""
    marked = {number for number, text in rules().items() if re.search(r"\*(not yet|in part)\*", text)}
    assert marked == {one.rule for one in STATEMENTS if one.rule and one.answer == "not_yet"}


def test_every_decision_names_its_place() -> None:
    """The reason of a decision links to the rule or the page that says so."""
    assert [one.id for one in STATEMENTS if one.answer == "decided" and "](" not in one.text] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[spec]\nsays = "x"', "'spec' is no id of a statement"),
        ('["006-1"]\nsays = "x"', "'006-1' is no id of a statement"),
        ('["rule 3-1"]\nsays = "x"', "'rule 3-1' is no id of a statement"),
        ('["000-1"]\nsays = "x"\nsection = "y"', "000-1: has says, section; give"),
        ('["000-1"]\nsays = "x"\nsection = "y"\nshown_by = []', "000-1: has says, section, shown_by; give"),
        ('["000-1"]\nsays = "x"\nnot_yet = "y"', "000-1: has says, not_yet; give says, section"),
        ('["rule 3"]\nsays = "x"\nnot_yet = "y"\ndecided = "z"', "rule 3: has says, not_yet, decided; give says"),
    ],
)
def test_a_malformed_statement_is_refused(text: str, words: str) -> None:
    """A statement with a wrong id, without a section, or without exactly one answer is an error that names it."""
    with pytest.raises(ValueError, match=re.escape(words)):
        read_statements(text)
