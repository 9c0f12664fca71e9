"""Names and prose of the code: how a docstring begins, words that no module or class is called any more, file length.

A sentence that begins with "what", "who" or "it" does not name the thing that it is about, and a reader who comes from
a search has nothing that stands before it. A word that was given up for a standard term must not come back as a name.
The three sets of what is not done yet may only shrink: an entry that is done has to be taken out.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PRODUCT = ("actors", "supervisor")


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


OPENINGS = words("what who whose whom whoever how it its one whatever where wherever")
"""Words that no docstring begins with. A hyphenated word, such as "one-shot", is another word."""

NOT_DONE = words(
    """
    """
)
"""Folders with docstrings that still begin with one of OPENINGS."""

GIVEN_UP = words(
    """
    abilities aborter abortstate asked asking attendant attending befallen before bell behind book books bounds boxes
    bugs bury callends calling case casualties causality census chance checking choosing climb closing commanding
    compacting continuing customer cut deciding desk diskwatch do doomed doors dossier draft drills driving endings
    equipment errand errands fates finding fold foreman foreseen foretold form gate gone grove guest hands heard hearing
    heart heir heirs held house hunt hurry idling inheritance inherited janitor journalling judge keeper
    keeping kinds ladder lane lanes law lean leaver ledger left lifeline lingering link linkbase lurking maker manners
    moment names nodes nursery offers office opening operating opinions orders outage overseer oversight overview owed
    owing papers parked parker parking parts past permitting place places planning planting platter press private
    probing problems projection promised prompting prop puppet ran rare recount refusals rehome removal
    replaying resuming revive rung said savings signals soundness standing stir strike succession surfaces
    surroundings telling told trouble turned unasked underway unknownword upkeep vocabulary ward warden wire wish within
    workplace
    """
)
"""Private words of earlier versions, each replaced by a standard term. Two words stand together: ``UnderWay``."""

KEPT = {
    "Lane": "a priority lane of a mailbox, in the public API of actors; the given-up word was that of a partition",
    **dict.fromkeys(
        ("HeldBy", "StepHeld", "WorkspaceHeld", "held_steps"),
        "rule 48: a step that something outside of the work holds; the given-up word was that of a lease",
    ),
    **dict.fromkeys(("worst_case", "WorstCase"), "the usual term; the given-up word was that of a run"),
}
"""Names with a word of GIVEN_UP that stay, with the reason."""

NOT_RENAMED = words(
    """
    Outage SupervisorLeft Trouble trouble TroubleRule
    """
)
"""Modules and classes that still have a word of GIVEN_UP in their name."""

MAX_LINES = 900
TOO_LONG: frozenset[str] = frozenset()
"""Files of the product that are still longer than MAX_LINES."""


def sources(*folders: str) -> Iterator[tuple[str, str]]:
    """Yield the path below the root, and the text, of every Python file in these folders."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string that stands as a statement: docstrings, those of attributes included."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def opening(docstring: str) -> str:
    """Return the first word in lower case: "it" for "It's", and "one-shot" for "One-shot"."""
    word = re.match(r"[\s`*:(]*([A-Za-z'-]*)", docstring)
    return word[1].lower().removesuffix("'s") if word else ""


def folder_of(path: str) -> str:
    """Return the package of a file: ``supervisor/work``, ``tests/unit/work``, ``actors``."""
    parents = path.split("/")[:-1]
    return "/".join(parents[: 3 if parents[:2] == ["tests", "unit"] else 2])


def names() -> Iterator[tuple[str, str]]:
    """Yield the path and the name of each module, package and class of the product."""
    for path, text in sources(*PRODUCT):
        yield path, path.removesuffix("/__init__.py").removesuffix(".py").rpartition("/")[2]
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                yield path, node.name


def words_of(name: str) -> set[str]:
    """Return the words of a name, and each two that follow each other as one word; in lower case."""
    found = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    return {*found, *(first + second for first, second in pairwise(found))}


def test_docstrings_name_their_thing() -> None:
    """No docstring begins with a word that leaves open what the sentence is about."""
    found = defaultdict(list)
    for path, text in sources(*PRODUCT, "tests", "benchmarks", "examples"):
        for line, docstring in docstrings(text):
            if opening(docstring) in OPENINGS:
                found[folder_of(path)].append(f"{path}:{line}: {docstring.strip().splitlines()[0]}")
    new = [complaint for folder in found.keys() - NOT_DONE for complaint in found[folder]]
    assert not new, "\n".join(new)
    assert found.keys() >= NOT_DONE, f"done; take out of NOT_DONE: {sorted(NOT_DONE - found.keys())}"


def test_words_given_up_are_no_names() -> None:
    """No module and no class of the product has a word in its name that a standard term has replaced."""
    found = {name: path for path, name in names() if words_of(name) & GIVEN_UP}
    new = [f"{path}: {name}" for name, path in found.items() if name not in NOT_RENAMED and name not in KEPT]
    assert not new, "\n".join(new)
    done = (NOT_RENAMED | KEPT.keys()) - found.keys()
    assert not done, f"renamed; take out of NOT_RENAMED or KEPT: {sorted(done)}"


def test_files_are_short() -> None:
    """No file of the product is longer than 900 lines."""
    found = {path for path, text in sources(*PRODUCT) if text.count("\n") > MAX_LINES}
    assert found == TOO_LONG, f"too long, or to be taken out of TOO_LONG: {sorted(found ^ TOO_LONG)}"


def test_each_rule_finds_an_offender() -> None:
    """The readers behind the rules see attribute docstrings, split names into words, and leave hyphens alone."""
    text = 'class A:\n    """One-shot event."""\n    x: int\n    """It\'s a number."""\n'
    assert [opening(docstring) for _, docstring in docstrings(text)] == ["one-shot", "it"]
    assert words_of("_UnderWayIO2") == {"under", "way", "io", "underway", "wayio"}
    assert words_of("model_trouble") == {"model", "trouble", "modeltrouble"}
    assert [folder_of(path) for path in ("actors/ref.py", "supervisor/work/x/y.py", "tests/unit/work/test_x.py")] == [
        "actors",
        "supervisor/work",
        "tests/unit/work",
    ]
