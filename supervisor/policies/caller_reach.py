"""Reach of an agent that calls its supervisor: its session and those below, its own task, and what its plan adds."""

from __future__ import annotations

from typing import Final, NamedTuple


class CallerReach(NamedTuple):
    """Reach of the agent of a session: its session and those below it, the task that it may split (by its
    name, and its entity's), and the verbs that its plan lets it use."""

    sessions: frozenset[str] = frozenset()
    splits: frozenset[str] = frozenset()
    operates: frozenset[str] = frozenset()


NOWHERE: Final = CallerReach()
"""The reach of a program that works for no session: a git of the supervisor, or an acceptance test."""
