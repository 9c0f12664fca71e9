"""Points at which a simulation may have the code take its rarer way."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from actors import failpoint


def test_a_point_is_false_where_nobody_decides() -> None:
    """Outside of a simulation no point is ever taken."""
    assert failpoint.active("ask.queued") is False
    assert failpoint.active("ask.queued", "a") is False


def test_who_decides_hears_the_point_and_who_passes() -> None:
    """The name of the point and of whom passes it reach whoever decides, and the answer is the point's."""
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
    """Nested blocks: the inner one decides for as long as it lasts, also where it is left by an error."""
    with failpoint.controlled_by(lambda name, who: True):
        with pytest.raises(RuntimeError), failpoint.controlled_by(lambda name, who: False):
            assert failpoint.active("here") is False
            raise RuntimeError
        assert failpoint.active("here") is True
    assert failpoint.active("here") is False


def test_another_thread_is_left_alone() -> None:
    """A decision function counts for its own thread only."""
    with failpoint.controlled_by(lambda name, who: True), ThreadPoolExecutor(1) as other:
        assert other.submit(failpoint.active, "here").result() is False
        assert failpoint.active("here") is True
