"""The graph of waits on its own: edges come and go, and the one that would close a cycle is refused."""

from __future__ import annotations

import pytest

from actors import DeadlockError
from actors.waits import WaitGraph


def test_an_edge_lasts_as_long_as_its_block() -> None:
    """Whoever waits twice for the same one waits until both waits are over."""
    graph = WaitGraph()
    with graph.waiting("a", "b"):
        with graph.waiting("a", "b"), graph.waiting("a", "c"):
            assert graph.waits_of("a") == ("b", "b", "c")
        assert graph.waits_of("a") == ("b",)
    assert graph.waits_of("a") == ()
    assert graph.path("a", "b") == ()


def test_a_wait_that_fails_is_over() -> None:
    """The edge goes with the block however that ends, and the error is passed on."""
    graph = WaitGraph()
    with pytest.raises(KeyError), graph.waiting("a", "b"):
        raise KeyError
    assert graph.waits_of("a") == ()


def test_a_cycle_is_named_from_whoever_would_close_it() -> None:
    """In the order of the waits, without the detours that lead nowhere; and nothing is left of the refused one."""
    graph = WaitGraph()
    with graph.waiting("b", "x"), graph.waiting("b", "c"), graph.waiting("c", "d"), graph.waiting("b", "y"):
        with pytest.raises(DeadlockError) as caught, graph.waiting("d", "b"):
            pass
        assert caught.value.cycle == ("d", "b", "c", "d")
        assert graph.waits_of("d") == ()
        with graph.waiting("d", "e"):
            assert graph.path("b", "e") == ("b", "c", "d", "e")


def test_waiting_for_oneself_is_the_shortest_cycle() -> None:
    """It is refused like any other."""
    with pytest.raises(DeadlockError) as caught, WaitGraph().waiting("a", "a"):
        pass
    assert caught.value.cycle == ("a", "a")


def test_ways_that_meet_again_are_no_cycle() -> None:
    """A diamond is walked once, and all of its edges may be drawn."""
    graph = WaitGraph()
    with graph.waiting("a", "b"), graph.waiting("a", "c"), graph.waiting("b", "d"), graph.waiting("c", "d"):
        assert graph.path("a", "d") in (("a", "b", "d"), ("a", "c", "d"))
        assert graph.path("d", "a") == ()
