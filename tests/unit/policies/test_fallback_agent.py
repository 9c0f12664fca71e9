"""The agent of the attempt after a failure."""

from __future__ import annotations

import pytest

from supervisor.policies.fallback_agent import next_agent


@pytest.mark.parametrize(("failures", "agent"), [(0, "a"), (1, "b"), (2, "c"), (3, "c"), (50, "c")])
def test_fallbacks_in_their_order(failures: int, agent: str) -> None:
    """Each failure passes the task to the next fallback agent; the last fallback agent keeps the task."""
    assert next_agent("a", ["b", "c"], failures) == agent


@pytest.mark.parametrize("failures", [0, 1, 9])
def test_without_fallbacks_it_stays_where_it_is(failures: int) -> None:
    """A task without fallbacks is tried again by its own agent."""
    assert next_agent("a", (), failures) == "a"
