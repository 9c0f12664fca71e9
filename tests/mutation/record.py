"""The record of a sample: each mutant, its verdict, what killed it and the seconds that took; a line for each."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from .changes import Key, changes, path_of, product, units

__all__ = ["GUARD", "Verdict", "draw", "package_of", "rates", "read", "write"]

GUARD = Path(__file__).with_name("guard.tsv")
COLUMNS = ("module", "unit", "digest", "kind", "ordinal", "verdict", "killer", "seconds")


class Verdict(NamedTuple):
    """What became of a mutant: ``killed``, ``survived``, ``gone`` (its unit has changed), ``""`` (not tried)."""

    word: str = ""
    killer: str = ""
    seconds: float = 0.0


def draw(package: str, count: int, seed: int) -> dict[Key, Verdict]:
    """A sample drawn by lines: of all lines that a change could be made to, those of the smallest hashes; one change
    each. What is drawn in one module does not depend on the others."""
    lines: list[tuple[bytes, list[Key]]] = []
    for module in product(package):
        by_line: dict[int, list[Key]] = defaultdict(list)
        for unit in units(ast.parse(path_of(module).read_text())):
            for one in changes(unit):
                by_line[one.line].append(Key(module, unit.name, unit.digest, one.kind, one.ordinal))
        lines += [(_hash(seed, module, line), keys) for line, keys in by_line.items()]
    lines.sort()
    drawn = (min(keys, key=lambda key: _hash(seed, *key)) for _, keys in lines)
    return {key: Verdict() for key in sorted({key: None for key, _ in zip(drawn, range(count), strict=False)})}


def _hash(*words: object) -> bytes:
    return blake2b(repr(words).encode(), digest_size=16).digest()


def read(path: Path) -> dict[Key, Verdict]:
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return {
        Key(module, unit, digest, kind, int(ordinal)): Verdict(word, killer, float(seconds))
        for module, unit, digest, kind, ordinal, word, killer, seconds in rows
    }


def write(path: Path, verdicts: Mapping[Key, Verdict]) -> None:
    """Write all of it, so that whoever reads it in between reads the one or the other."""
    rows = [COLUMNS, *((*key, one.word, one.killer, f"{one.seconds:.1f}") for key, one in verdicts.items())]
    text = "".join("\t".join(str(cell).replace("\t", " ").replace("\n", " ") for cell in row) + "\n" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".new").write_text(text, encoding="utf-8")
    path.with_suffix(".new").replace(path)


def package_of(module: str) -> str:
    """``supervisor.policies`` of ``supervisor.policies.access``."""
    return ".".join(module.split(".")[: 1 if module.startswith("actors") else 2])


def rates(verdicts: Iterable[tuple[Key, Verdict]]) -> str:
    """How many were killed of how many, by package and in all."""
    told: dict[str, Counter[str]] = defaultdict(Counter)
    for key, one in verdicts:
        for name in (package_of(key.module), "all"):
            told[name][one.word] += 1
    lines = []
    for name in sorted(told, key=lambda name: (name == "all", name)):
        count = told[name]
        tried = count["killed"] + count["survived"]
        share = f"{count['killed'] / tried:7.1%}" if tried else "      -"
        rest = "".join(f", {count[word]} {what}" for word, what in (("gone", "gone"), ("", "not tried")) if count[word])
        lines.append(f"{name:28} {share}  {count['killed']} killed, {count['survived']} survived{rest}")
    return "\n".join(lines)
