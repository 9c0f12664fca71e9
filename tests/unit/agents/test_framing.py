"""Framing of an agent's output: the lines depend on the bytes alone, not on their chunks; no line beyond the limit is
stored."""

from __future__ import annotations

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.ports import StrayLine
from supervisor.ports.input_limits import LINE_BYTES_MAX, LineBuffer

MIB = 1024 * 1024


def lines_of(chunks: list[bytes], limit_bytes: int = LINE_BYTES_MAX) -> list[str | StrayLine]:
    """Return the lines that a LineBuffer yields for a stream of *chunks* and for its end."""
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


@pytest.mark.parametrize("chunks", [[b"ab\xff\nnext\n"], [b"ab", b"\xff", b"\nnext\n"]])
def test_bytes_that_are_no_utf8_are_replaced(chunks: list[bytes]) -> None:
    """A byte that is no UTF-8 becomes U+FFFD, and the rest of its line is kept."""
    assert lines_of(chunks) == ["ab\ufffd", "next"]


@pytest.mark.parametrize("chunks", [[b"done\nhal"], [b"done\nh", b"al"], [b"done\nhal\n"]])
def test_half_a_line_at_the_end_is_a_line(chunks: list[bytes]) -> None:
    """The last line of a stream needs no newline."""
    assert lines_of(chunks) == ["done", "hal"]


@pytest.mark.parametrize("chunks", [[b"12345\n"], [b"123", b"45", b"\n"]])
def test_a_line_of_exactly_the_limit_is_kept(chunks: list[bytes]) -> None:
    """A line of exactly the maximum length, not counting its newline, is yielded."""
    assert lines_of(chunks, 5) == ["12345"]


@pytest.mark.parametrize("chunks", [[b"123456\nnext\n"], [b"123", b"456", b"789", b"\nnext\n"]])
def test_a_longer_line_is_named_once_and_dropped_up_to_its_newline(chunks: list[bytes]) -> None:
    """Of a line longer than the limit the beginning is yielded, with the reason, and the line after it is read."""
    broken, following = lines_of(chunks, 5)
    why = "longer than 5 bytes, the most a message may have; the rest of it was dropped"
    assert (broken, following) == (StrayLine("12345", why), "next")


def test_a_line_of_100_mib_is_not_held_in_memory() -> None:
    """A line of 100 MiB takes at most three times the limit in memory while it is read, and less than 1 MiB
    afterwards."""
    lines, chunk, found = LineBuffer(), b"x" * MIB, list[str | StrayLine]()
    tracemalloc.start()
    try:
        for _ in range(100):
            found += lines.feed(chunk)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found) == 1
    assert isinstance(found[0], StrayLine)
    assert held < MIB
    assert peak < 3 * LINE_BYTES_MAX
    assert lines.feed(b"x\nnext\n") == ["next"]


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=6), st.integers(1, 20))
def test_chunking_changes_nothing(data: bytes, cuts: list[int], limit_bytes: int) -> None:
    """Any bytes, divided anywhere, give the same lines and errors in the same order."""
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [data[start:end] for start, end in itertools.pairwise(edges)]
    assert lines_of(chunks, limit_bytes) == lines_of([data], limit_bytes)
