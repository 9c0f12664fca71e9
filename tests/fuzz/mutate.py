"""Mutation of good inputs for the fuzz targets: pieces are cut, repeated, swapped, or replaced by words that do not
belong there.

All choices come from one seeded random stream, so the same seed always gives the same inputs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

WORDS: tuple[bytes, ...] = (
    b"",
    b"\n",
    b"\r\n",
    b"\0",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b'""',
    b"0",
    b"-1",
    b"1e999",
    b"-0.0",
    b"NaN",
    b"9223372036854775808",
    b"18446744073709551616",
    b"1" * 400,
    b"[" * 2000,
    b'{"a":' * 2000,
    b'"\\ud800"',
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    "é漢𝄞".encode(),
    b"../../etc/passwd",
    b"%s%n",
    b"x" * 5000,
    b"!!python/object:os.system",
    b"&a [*a]",
    b"<<: *a",
)
BYTES_MAX = 100_000


class Mutator:
    """Maker of malformed inputs out of the good inputs *seeds*; *words* are pieces of text with a meaning to the
    target."""

    def __init__(self, seeds: Sequence[bytes], words: Sequence[bytes], chance: random.Random) -> None:
        self._seeds, self._words, self._chance = list(seeds), [*WORDS, *words], chance
        self._ways: tuple[Callable[[bytearray], None], ...] = (
            self._flip,
            self._insert,
            self._replace,
            self._delete,
            self._repeat,
            self._swap_lines,
            self._splice,
            self._cut,
        )

    def next(self) -> bytes:
        """Return the next input: one of the seeds after one or more random mutations."""
        data = bytearray(self._chance.choice(self._seeds))
        for _ in range(self._chance.choice((1, 1, 1, 2, 2, 4, 8))):
            self._chance.choice(self._ways)(data)
        return bytes(data[:BYTES_MAX])

    def _span(self, data: bytearray) -> tuple[int, int]:
        start = self._chance.randint(0, len(data))
        return start, min(len(data), start + self._chance.choice((0, 1, 2, 4, 8, 32, 128)))

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self._chance.randrange(len(data))] ^= 1 << self._chance.randrange(8)

    def _insert(self, data: bytearray) -> None:
        start, _ = self._span(data)
        data[start:start] = self._chance.choice(self._words)

    def _replace(self, data: bytearray) -> None:
        """Replace a value of a line of JSON or YAML by a random word."""
        ends = [at for at, byte in enumerate(data) if byte in b':,"{}[]\n ']
        if len(ends) < 2:
            return
        first = self._chance.randrange(len(ends) - 1)
        data[ends[first] + 1 : ends[min(len(ends) - 1, first + self._chance.choice((1, 1, 2, 3)))]] = (
            self._chance.choice(self._words)
        )

    def _delete(self, data: bytearray) -> None:
        start, end = self._span(data)
        del data[start:end]

    def _repeat(self, data: bytearray) -> None:
        start, end = self._span(data)
        data[start:start] = bytes(data[start:end]) * self._chance.choice((1, 2, 50))

    def _swap_lines(self, data: bytearray) -> None:
        lines = bytes(data).split(b"\n")
        one, other = (self._chance.randrange(len(lines)) for _ in range(2))
        lines[one], lines[other] = lines[other], lines[one]
        data[:] = b"\n".join(lines)

    def _splice(self, data: bytearray) -> None:
        other = self._chance.choice(self._seeds)
        start, _ = self._span(data)
        data[start:] = other[self._chance.randint(0, len(other)) :]

    def _cut(self, data: bytearray) -> None:
        del data[self._chance.randint(0, len(data)) :]
