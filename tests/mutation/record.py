"""Record of a sample of mutants, one line for each: its verdict, the test that killed it, and the duration in
seconds."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from .changes import Key, changes, path_of, product, units

COLUMNS = ("module", "unit", "digest", "kind", "ordinal", "verdict", "killer", "seconds")


class Verdict(NamedTuple):
    """Verdict on a mutant: ``killed``, ``survived``, ``changed`` or ``deleted`` (its unit was), or ``""`` if it was not
    tried."""

    word: str = ""
    killer: str = ""
    seconds: float = 0.0


def draw(package: str, count: int, seed: int) -> dict[Key, Verdict]:
    """Draw a sample of mutants by lines: of all lines that can be changed, the *count* lines with the smallest hashes,
    with one change each. Code of one module does not affect the hashes of another."""
    lines: list[tuple[bytes, list[Key]]] = []
    for module in product(package):
        by_line: dict[int, list[Key]] = defaultdict(list)
        for unit in units(ast.parse(path_of(module).read_text()).body):
            for one in changes(unit):
                by_line[one.line].append(Key(module, unit.name, unit.digest, one.kind, one.ordinal))
        lines += [(_hash(seed, module, line), keys) for line, keys in by_line.items()]
    drawn = [min(keys, key=lambda key: _hash(seed, *key)) for _, keys in sorted(lines)[:count]]
    return dict.fromkeys(sorted(drawn), Verdict())


def _hash(*words: object) -> bytes:
    return blake2b(repr(words).encode(), digest_size=16).digest()


def read(path: Path) -> dict[Key, Verdict]:
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return {Key(*row[:4], int(row[4])): Verdict(row[5], row[6], float(row[7])) for row in rows}


def write(path: Path, verdicts: Mapping[Key, Verdict]) -> None:
    """Write the record by replacing its file in one step, so that a reader sees the old record or the new one."""
    rows = [COLUMNS, *((*key, one.word, one.killer, f"{one.seconds:.1f}") for key, one in verdicts.items())]
    text = "".join("\t".join(str(cell).replace("\t", " ").replace("\n", " ") for cell in row) + "\n" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".new").write_text(text, encoding="utf-8")
    path.with_suffix(".new").replace(path)


def package_of(key: Key) -> str:
    """Return the package of a mutant: ``supervisor.policies`` for a mutant of ``supervisor.policies.access``."""
    return ".".join(key.module.split(".")[: 1 if key.module.startswith("actors") else 2])


def rates(verdicts: Mapping[Key, Verdict]) -> str:
    """Return a text with the share of killed mutants, and the number for each verdict, by package and in all."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for key, one in verdicts.items():
        counts[package_of(key)][one.word or "not tried"] += 1
        counts["~"][one.word or "not tried"] += 1
    lines = []
    for name, count in sorted(counts.items()):
        share = count["killed"] / max(1, count["killed"] + count["survived"])
        lines.append(
            f"{name.replace('~', 'all'):28} {share:7.1%}  "
            + ", ".join(f"{number} {word}" for word, number in count.items())
        )
    return "\n".join(lines)
