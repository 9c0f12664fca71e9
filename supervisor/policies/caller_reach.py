"""Caller reach: the sessions, tasks and verbs for which an agent may send requests to its supervisor."""

from __future__ import annotations

from typing import Final, NamedTuple


class CallerReach(NamedTuple):
    """Reach of an agent's requests: the agent's session and the sessions below it, the task that the agent may split
    (by the task's name and by its entity id), and the verbs that the plan lets the agent use."""

    sessions: frozenset[str] = frozenset()
    splits: frozenset[str] = frozenset()
    operates: frozenset[str] = frozenset()


NOWHERE: Final = CallerReach()
"""Reach of a program that works for no session (a git of the supervisor, an acceptance test): nothing."""
