"""Mutants that are the same program in other words, each with the reason: a list that anybody can review.

An entry of ``equivalents.toml`` names the module, the lines that are taken away and those that come instead, without
their indentation, and why no behaviour can differ. It is compared word for word; a line that is written otherwise one
day has no entry any more.
"""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

from specimens import Mutant, change

__all__ = ["Change", "known", "reason"]

Change = tuple[str, tuple[str, ...], tuple[str, ...]]
"""The module, the lines before, the lines after."""
LISTED = Path(__file__).parent / "equivalents.toml"


@functools.cache
def known() -> dict[Change, str]:
    """Every entry, with its reason."""
    entries = tomllib.loads(LISTED.read_text())["equivalent"]
    return {(one["module"], _lines(one["before"]), _lines(one["after"])): one["why"] for one in entries}


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


def reason(mutant: Mutant) -> str | None:
    """Why it cannot be told from the original; ``None``: it can."""
    lines = [line.strip() for line in change(mutant).splitlines()]
    before = tuple(line[1:].strip() for line in lines if line[:1] == "-")
    after = tuple(line[1:].strip() for line in lines if line[:1] == "+")
    return known().get((mutant.module, before, after))
