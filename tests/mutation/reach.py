"""Search for the tests that reach each mutant: one run of the test suite on copies in which each place of a mutant
records the test that reaches it.

A place is the statement that a mutant changes. A statement that runs at import (tables, defaults, classes) is reached
by every test; instead the places of such a mutant are the functions of its module, then those of the modules that
import it.
"""

from __future__ import annotations

import ast
import functools
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from . import probe
from .changes import BUILD, FUNCTIONS, ROOT, Change, Key, find, is_prose, path_of, product
from .scratch import Scratch, share

CHUNKS = 16
CHUNK_WALL_S = 2400
IMPORT = """
import sys as _mutation_sys
_mutation_sys.path.append({place!r})
from mutation_probe import hit as _mutation_hit
_mutation_sys.path.pop()
"""
"""Code that imports the probe by its path, for programs that start without ``site``."""
EXCLUDED = (
    "tests/cli/test_machines.py",
    "tests/integration/test_scale.py",
    "tests/simulation/test_commands.py",
    "tests/test_benchmarks.py",
    "tests/test_layers.py",
    "tests/test_readme.py",
    "tests/unit/journal/test_journal_mistakes.py",
)
"""Files of tests that are left out: tests that compare texts or digests, so that any change fails them, and tests that
only repeat others at scale."""


class Test(NamedTuple):
    """Name of a test that passes without a mutant, and its duration."""

    name: str
    seconds: float

    @property
    def file(self) -> str:
        return self.name.partition("::")[0]

    @property
    def is_simulated(self) -> bool:
        """Whether the test is one of the simulator."""
        return self.file.startswith(("tests/simulation/", "tests/verification/"))


def files_of(asked: Sequence[str]) -> list[str]:
    """Return the test files in the given files or folders (without any: of all tests), relative to the root, without
    those that are left out."""
    paths = [ROOT / one for one in asked] or [ROOT / "tests"]
    files = [file for path in paths for file in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])]
    names = [str(file.relative_to(ROOT)) for file in files]
    return [one for one in names if one not in EXCLUDED and not one.startswith(("tests/mutation/", "tests/typing/"))]


def reached(located: Mapping[Key, str], scratches: Sequence[Scratch], files: Sequence[str]) -> dict[Key, list[Test]]:
    """Return the tests that reach each mutant, in the order in which they are tried. The result is cached until a
    source file changes.

    *located*: the module of each mutant.
    """
    kept = BUILD / f"reach-{_digest(located, files)}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(list(_reached(located, scratches, files).items())))
    return {Key(*key): [Test(*one) for one in tests] for key, tests in json.loads(kept.read_text())}


def _digest(located: Mapping[Key, str], files: Sequence[str]) -> str:
    digest = blake2b(repr((sorted(located.items()), files)).encode(), digest_size=8)
    for path in sorted(path for top in ("actors", "supervisor", "tests") for path in (ROOT / top).rglob("*.py")):
        if path.parent != Path(__file__).parent:
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _reached(located: Mapping[Key, str], scratches: Sequence[Scratch], files: Sequence[str]) -> dict[Key, list[Test]]:
    places = _Places(located)
    for scratch in scratches:
        for module in places.modules():
            scratch.change(module, functools.partial(places.note_in, module, scratch.place))
    chunks = [part for part in (files[number::CHUNKS] for number in range(CHUNKS)) if part]
    passed: dict[str, float] = {}
    by_place: dict[int, set[str]] = defaultdict(set)
    for done, (tests, rows, failed) in enumerate(share(scratches, chunks, _run_chunk), 1):
        passed.update(tests)
        for place, names in rows.items():
            by_place[place] |= names
        print(f"part {done} of {len(chunks)} of the suite; left out: {', '.join(failed) or 'none'}", flush=True)
    for scratch in scratches:
        for module in places.modules():
            scratch.restore(module)
    width = Counter(name for names in by_place.values() for name in names)
    return {key: _ranked([by_place[one] for one in mine], passed, width) for key, mine in places.of.items()}


def _ranked(reaching: Sequence[set[str]], passed: Mapping[str, float], width: Mapping[str, int]) -> list[Test]:
    """Order the tests: those that reach the nearest places first; among these, one of each file by turns, beginning
    with tests that reach the fewest places.

    *width*: the number of places that a test reaches. Durations depend on the load of the machine, so they do not
    count.
    """
    ranked: dict[Test, tuple[bool, int, int]] = {}
    for far, names in enumerate(reaching):
        turns: Counter[str] = Counter()
        for test in sorted((Test(one, passed[one]) for one in names), key=lambda one: (width[one.name], one.name)):
            turns[test.file] += 1
            ranked.setdefault(test, (far > 0, turns[test.file], width[test.name]))
    return sorted(ranked, key=lambda test: (ranked[test], test.name))


def _run_chunk(scratch: Scratch, files: Sequence[str]) -> tuple[dict[str, float], dict[int, set[str]], list[str]]:
    """Run these test files; return the passed tests with durations, the tests that reach each place, and the failed
    tests."""
    memory = scratch.place / "reached"
    with open(memory, "wb") as file:
        file.truncate(probe.ROW * probe.TESTS_MAX)
    _, results = scratch.test(files, None, CHUNK_WALL_S)
    data = memory.read_bytes()
    memory.unlink()
    reports = [one for one in results if one[0] != "begins"]
    failed = sorted({name for what, name, *_ in reports if what == "failed"})
    seconds: dict[str, float] = defaultdict(float)
    rows: dict[int, set[str]] = defaultdict(set)
    for _, name, number, took in reports:
        if name not in failed:
            seconds[name] += float(took)
            row = data[int(number) * probe.ROW + 4 : (int(number) + 1) * probe.ROW]
            for place in itertools.compress(range(len(row)), row):
                rows[place].add(name)
    return dict(seconds), rows, failed


class _Places:
    """Numbered places of the mutants: one statement for each, or the functions of modules for a statement that runs at
    import."""

    def __init__(self, located: Mapping[Key, str]) -> None:
        self.of: dict[Key, list[int]] = {}
        self._statements: dict[str, dict[Key, int]] = defaultdict(dict)
        self._entries: dict[str, int] = {}
        count = itertools.count()
        importers = _importers()
        for key, module in located.items():
            if _spot(find(ast.parse(path_of(module).read_text()), key)) is not None:
                self._statements[module][key] = next(count)
                self.of[key] = [self._statements[module][key]]
            else:
                near = [module, *sorted(importers[module])]
                self._entries.update((one, next(count)) for one in near if one not in self._entries)
                self.of[key] = [self._entries[one] for one in near]
        assert next(count) <= probe.ROW - 4, "too many places for one run"

    def modules(self) -> list[str]:
        return sorted({*self._statements, *self._entries})

    def note_in(self, module: str, place: Path, tree: ast.Module) -> None:
        """Insert the calls of the probe into the syntax tree of that module."""
        spots = [(_spot(find(tree, key)), number) for key, number in self._statements[module].items()]
        if module in self._entries:
            functions = [node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
            spots += [((node.body, node.body[0]), self._entries[module]) for node in functions]
        for spot, number in spots:
            assert spot is not None, "only a statement in a function has a place of its own"
            body, statement = spot
            body.insert(body.index(statement) + is_prose(statement), ast.parse(f"_mutation_hit({number})").body[0])
        first = next(one for one in tree.body if not is_prose(one) and getattr(one, "module", "") != "__future__")
        head = tree.body.index(first)
        tree.body[head:head] = ast.parse(IMPORT.format(place=str(place))).body


def _spot(change: Change) -> tuple[list[ast.stmt], ast.stmt] | None:
    """Return the innermost statement around the change, with the list that contains it; ``None`` if it runs at
    import."""
    spot, inside = None, False
    for node, inner in itertools.pairwise(change.path):
        inside = inside or isinstance(node, FUNCTIONS)
        for _, value in ast.iter_fields(node):
            if inside and isinstance(inner, ast.stmt) and isinstance(value, list) and inner in value:
                spot = value, inner
    return spot


def _importers() -> dict[str, set[str]]:
    """Return, for each module, the modules that import it."""
    found: dict[str, set[str]] = defaultdict(set)
    modules = set(product())
    for module in modules:
        for node in ast.walk(ast.parse(path_of(module).read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
            for name in modules.intersection(names) - {module}:
                found[name].add(module)
    return found
