"""Results of a plan: of each task, and of the whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

WELL: Final = frozenset({"completed", "skipped"})
"""Outcomes that count as success."""


class TaskResult(NamedTuple):
    """The end of a task: ``completed``, ``failed``, ``aborted``, ``skipped`` since its condition was not met, or
    ``blocked`` by a task that it depends on.

    ``unmerged`` is the branch with what was written after the work was judged, which was not merged; ``remarks`` say
    that in words, and which processes of the task had to be ended.
    """

    id: str
    session_id: str
    outcome: str
    error: str
    took_s: float
    unmerged: str = ""
    remarks: tuple[str, ...] = ()


def remark_of_rest(branch: str, directory: str = "") -> str:
    """Return the sentence about what was written after the work had been judged, and is on *branch* alone."""
    where = f"in {directory} and " if directory else ""
    return f"what was written after it was judged is not merged: it is {where}on the branch {branch}"


def unmerged_of(branch: str) -> tuple[str, tuple[str, ...]]:
    """Return the last two fields of the result of a task whose rest is on *branch* (``""``: it has none)."""
    return branch, (remark_of_rest(branch),) if branch else ()


class PlanResult(NamedTuple):
    """The ends of all tasks, and why the whole is not accepted, if it is not (``error``).

    ``earlier`` names the workstream of an earlier run of the plan, if this is its result: its supervisor was killed
    before the result was reported, and nothing was started now.
    """

    tasks: Mapping[str, TaskResult]
    error: str = ""
    earlier: str = ""

    @property
    def ok(self) -> bool:
        return not self.error and all(task.outcome in WELL for task in self.tasks.values())


def not_accepted(problem: str) -> str:
    """Return the ``error`` of a plan whose validation found *problem*; ``""`` if it found none."""
    return f"the whole is not accepted: {problem}" if problem else ""
