"""Failpoints: places where a simulation can make the code take a rarer path."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from actors import failpoint


def test_a_point_is_false_where_nobody_decides() -> None:
    """Without a decision function no failpoint is active."""
    assert failpoint.active("ask.queued") is False
    assert failpoint.active("ask.queued", "a") is False


def test_who_decides_hears_the_point_and_who_passes() -> None:
    """The decision function is called with the failpoint's name and subject, and its result is that of the
    failpoint."""
    heard: list[tuple[str, str]] = []

    def decide(name: str, who: str) -> bool:
        heard.append((name, who))
        return who == "a"

    with failpoint.controlled_by(decide):
        assert failpoint.active("here", "a") is True
        assert failpoint.active("here", "b") is False
        assert failpoint.active("there") is False
    assert heard == [("here", "a"), ("here", "b"), ("there", "")]


def test_the_inner_one_decides_and_gives_it_back() -> None:
    """Of two nested blocks the inner one decides; when it ends, also by an error, the outer one decides again."""
    with failpoint.controlled_by(lambda name, who: True):
        with pytest.raises(RuntimeError), failpoint.controlled_by(lambda name, who: False):
            assert failpoint.active("here") is False
            raise RuntimeError
        assert failpoint.active("here") is True
    assert failpoint.active("here") is False


def test_another_thread_is_left_alone() -> None:
    """A decision function counts only for its own thread."""
    with failpoint.controlled_by(lambda name, who: True), ThreadPoolExecutor(1) as other:
        assert other.submit(failpoint.active, "here").result() is False
        assert failpoint.active("here") is True
