"""Tests of the mutation tool: the changes that make mutants, and the identity of a mutant in later versions of the
code."""

from __future__ import annotations

import ast

import pytest

from .changes import Key, changes, find, units
from .record import Verdict, rates

SOURCE = '''
class Gate:
    """A gate."""

    limit: int = 3

    def passes(self, count: int) -> bool:
        """Say whether so many may pass."""
        _log.warning("asked", count=0)
        if count < self.limit and not self.closed:
            self.passed = count
            return self.opened(count)
        raise ValueError("0")
'''


def mutants(source: str) -> dict[tuple[str, str, int], str]:
    """Return the code of each mutant of *source* by unit, kind and number."""
    made = {}
    for unit in units(ast.parse(source).body):
        for one in changes(unit):
            tree = ast.parse(source)
            find(tree, Key("gates", unit.name, unit.digest, one.kind, one.ordinal)).make()
            made[unit.name, one.kind, one.ordinal] = ast.unparse(tree)
    return made


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        (("Gate.limit", "number", 0), "limit: int = 3", "limit: int = 4"),
        (("Gate.passes", "logic", 0), "self.limit and not", "self.limit or not"),
        (("Gate.passes", "compare", 0), "count < self", "count >= self"),
        (("Gate.passes", "boundary", 0), "count < self", "count <= self"),
        (("Gate.passes", "negate", 0), "not self.closed", "self.closed"),
        (("Gate.passes", "drop", 0), "self.passed = count", "pass"),
        (("Gate.passes", "return", 0), "return self.opened(count)", "return None"),
        (("Gate.passes", "drop", 1), "raise ValueError('0')", "pass"),
    ],
)
def test_a_mutant_is_one_change(name: tuple[str, str, int], before: str, after: str) -> None:
    """A mutant of each kind differs from the original code by exactly the expected change."""
    plain = ast.unparse(ast.parse(SOURCE)).replace("(not self.closed)", "not self.closed")
    assert ast.unparse(ast.parse(mutants(SOURCE)[name])) == ast.unparse(ast.parse(plain.replace(before, after)))


def test_texts_for_people_are_not_changed() -> None:
    """No mutant changes docstrings, annotations, log lines or the texts of errors."""
    assert len(mutants(SOURCE)) == 8


def test_a_digest_is_of_the_code_alone() -> None:
    """The digest of a unit does not change with comments, docstrings and line breaks, but does with another
    condition."""
    rewritten = SOURCE.replace("Say whether", "Tell if").replace("if count", "# Why?\n        if count")
    changed = SOURCE.replace("count < self", "count > self")

    digests = [[one.digest for one in units(ast.parse(source).body)] for source in (SOURCE, rewritten, changed)]

    assert digests[0] == digests[1]
    assert digests[0][0] == digests[2][0]
    assert digests[0][1] != digests[2][1]


def test_rates_are_listed_by_package_and_in_all() -> None:
    """The rates are listed by package and in all; a mutant whose code has changed counts neither as killed nor as
    survived."""
    words = {"actors.cell": "killed", "actors.timers": "survived", "supervisor.work.leases": "changed"}
    lines = rates({Key(module, "f", "", "drop", 0): Verdict(word) for module, word in words.items()}).splitlines()

    assert [line.split(maxsplit=1) for line in lines] == [
        ["actors", "50.0%  1 killed, 1 survived"],
        ["supervisor.work", "0.0%  1 changed"],
        ["all", "50.0%  1 killed, 1 survived, 1 changed"],
    ]
