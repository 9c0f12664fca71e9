"""Framing of an agent's output: the lines depend on the bytes alone, not on their chunks; no line beyond the limit is
stored."""

from __future__ import annotations

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.agents.protocols.codec_base import LINE_BYTES_MAX, LineBuffer
from supervisor.ports import Malformed

MIB = 1024 * 1024


def lines_of(chunks: list[bytes], limit_bytes: int = LINE_BYTES_MAX) -> list[str | Malformed]:
    """Return the lines and errors that a LineBuffer yields for a stream of *chunks* and for its end."""
    lines = LineBuffer(limit_bytes)
    return [line for chunk in chunks for line in lines.feed(chunk)] + list(lines.end())


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([], []),
        ([b"one\n"], ["one"]),
        ([b"one\ntwo\n"], ["one", "two"]),
        ([b"o", b"ne", b"\nt", b"wo\n"], ["one", "two"]),
        ([b"\n\n"], ["", ""]),
        ([b"\xc3", b"\xa4\n"], ["ä"]),
    ],
)
def test_complete_lines_come_out_whole(chunks: list[bytes], expected: list[str]) -> None:
    """Each line is yielded once and without its newline, however the bytes were divided into chunks."""
    assert lines_of(chunks) == expected


def test_invalid_utf8_is_named_with_its_byte_and_position() -> None:
    """A line that is not UTF-8 is an error that names the byte and its position, and the line after it is read."""
    first, second = lines_of([b"ab\xff\nnext\n"])
    assert first == Malformed("the agent wrote a line that is not UTF-8: byte 0xff at position 2 (invalid start byte)")
    assert second == "next"


def test_half_a_line_at_the_end_is_named() -> None:
    """A stream that ends within a line yields an error for the incomplete line."""
    assert lines_of([b"done\nhal"]) == ["done", Malformed("the agent's output ended in the middle of a message")]


@pytest.mark.parametrize("chunks", [[b"12345\n"], [b"123", b"45", b"\n"]])
def test_a_line_of_exactly_the_limit_is_kept(chunks: list[bytes]) -> None:
    """A line of exactly the maximum length, not counting its newline, is yielded."""
    assert lines_of(chunks, 5) == ["12345"]


@pytest.mark.parametrize("chunks", [[b"123456\nnext\n"], [b"123", b"456", b"789", b"\nnext\n"]])
def test_a_longer_line_is_named_once_and_dropped_up_to_its_newline(chunks: list[bytes]) -> None:
    """A line longer than the limit yields one error and is dropped, and the line after it is read."""
    broken, following = lines_of(chunks, 5)
    assert broken == Malformed("the agent wrote a line longer than 5 bytes, the most a message may have")
    assert following == "next"


def test_a_line_of_100_mib_is_not_held_in_memory() -> None:
    """A line of 100 MiB takes at most three times the limit in memory while it is read, and less than 1 MiB
    afterwards."""
    lines, chunk, found = LineBuffer(), b"x" * MIB, list[str | Malformed]()
    tracemalloc.start()
    try:
        for _ in range(100):
            found += lines.feed(chunk)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found) == 1
    assert isinstance(found[0], Malformed)
    assert held < MIB
    assert peak < 3 * LINE_BYTES_MAX
    assert lines.feed(b"x\nnext\n") == ["next"]


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=6), st.integers(1, 20))
def test_chunking_changes_nothing(data: bytes, cuts: list[int], limit_bytes: int) -> None:
    """Any bytes, divided anywhere, give the same lines and errors in the same order."""
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [data[start:end] for start, end in itertools.pairwise(edges)]
    assert lines_of(chunks, limit_bytes) == lines_of([data], limit_bytes)
