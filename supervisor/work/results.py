"""Results of a plan run: of each task, and of the plan as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

WELL: Final = frozenset({"completed", "skipped"})
"""Outcomes that count as success."""


class TaskResult(NamedTuple):
    """The result of a task; its outcome is ``completed``, ``failed``, ``aborted``, ``skipped`` (its condition was not
    met), or ``blocked`` (by a task that it depends on).

    ``unmerged`` is the branch with changes that were written after the work was checked, and that were not merged;
    ``remarks`` are sentences about such changes, and about processes of the task that had to be ended.
    """

    id: str
    session_id: str
    outcome: str
    error: str
    took_s: float
    unmerged: str = ""
    remarks: tuple[str, ...] = ()


def remark_of_rest(branch: str, directory: str = "") -> str:
    """Return the sentence about changes that were written after the work was checked, and exist only on *branch*."""
    where = f"in {directory} and " if directory else ""
    return f"what was written after it was judged is not merged: it is {where}on the branch {branch}"


def unmerged_of(branch: str) -> tuple[str, tuple[str, ...]]:
    """Return the values of ``unmerged`` and ``remarks`` for the result of a task with unmerged changes on *branch*
    (``""``: no such changes)."""
    return branch, (remark_of_rest(branch),) if branch else ()


class PlanResult(NamedTuple):
    """The result of a plan run: the results of all tasks, and the reason why the plan's validation failed (``error``;
    ``""`` if it did not).

    ``earlier`` is the id of the workstream of an earlier run, if this is the result of that run: its supervisor was
    killed before the result was reported, and nothing was started now.
    """

    tasks: Mapping[str, TaskResult]
    error: str = ""
    earlier: str = ""

    @property
    def ok(self) -> bool:
        return not self.error and all(task.outcome in WELL for task in self.tasks.values())


def not_accepted(problem: str) -> str:
    """Return the ``error`` of a plan result for the *problem* that the validation found; ``""`` if it found none."""
    return f"the whole is not accepted: {problem}" if problem else ""
