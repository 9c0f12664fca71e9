"""Results of a plan run: of each task, and of the plan as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from supervisor.diagnostics.worker_use import WorkerUse
from supervisor.lifecycles.task import ENDS_WELL, TaskEnd
from supervisor.lifecycles.task_run import TaskRunData

_NAMED_MAX: Final = 10
"""Maximal number of tasks that the reason of a failed run names."""


class TaskResult(NamedTuple):
    """The result of a task. Its outcome is ``completed``, ``failed``, ``rejected`` (somebody did not approve the
    planned task), ``aborted`` (somebody's decision), ``cancelled`` (the plan's: a critical task failed, the run was
    given up), ``blocked`` (something that it depends on did not complete) or ``skipped`` (its condition was not met, or
    it is optional).

    ``took_s`` is the time in seconds from the first claim of the task in this run to its end; 0 for a task that was not
    claimed in this run. For a task that ended under an earlier supervisor ``took_s`` is the lifetime of the task's
    entity. ``unmerged`` is the branch with changes that were written after the work was checked, and that were not
    merged; ``remarks`` are sentences about such changes, about processes of the task that had to be ended, and about a
    circuit that is open. ``launches`` counts the starts of agents for the task, ``tokens`` and ``cost_usd`` are what
    the agents have reported; all three include the work of earlier supervisors on the same run. ``findings`` are the
    findings against the work of a failed task: the output of the failed test, a review, a merge conflict; at most 4,000
    characters.

    ``agent`` is the agent that worked on the task last, ``size`` the size that the plan gives the task (``large``, or
    ``large high`` with another complexity than medium; ``""``: none), and ``attempt_s`` are the seconds from the start
    of the last completed attempt to the end of the agent's work, without tests and merge; 0 if none was completed. From
    these the next runs of the plan learn their time limits. ``worked_s`` is the part of the time in which the task was
    prepared, worked on, checked or merged; it waited the rest of ``took_s``.
    """

    id: str
    session_id: str
    outcome: str
    error: str
    took_s: float
    unmerged: str = ""
    remarks: tuple[str, ...] = ()
    launches: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    findings: str = ""
    agent: str = ""
    size: str = ""
    attempt_s: float = 0.0
    worked_s: float = 0.0

    @property
    def waited_s(self) -> float:
        """Seconds that the task has waited after its first claim: for its next attempt or claim, a person, an
        obstacle."""
        return max(self.took_s - self.worked_s, 0.0) if self.worked_s else 0.0


def remark_of_rest(branch: str, directory: str = "") -> str:
    """Return the sentence about changes that were written after the work was checked, and exist only on *branch*."""
    where = f"in {directory} and " if directory else ""
    return f"what was written after it was judged is not merged: it is {where}on the branch {branch}"


def unmerged_of(branch: str) -> tuple[str, tuple[str, ...]]:
    """Return the values of ``unmerged`` and ``remarks`` for the result of a task with unmerged changes on *branch*
    (``""``: no such changes)."""
    return branch, (remark_of_rest(branch),) if branch else ()


class PlanResult(NamedTuple):
    """The result of a plan run: the results of all tasks by their names in the plan, and the reason why the plan's
    validation failed (``error``; ``""`` if it did not), with the ``output`` of the failed test, at most 4,000
    characters.

    ``earlier`` is the id of the workstream of an earlier run, if this is the result of that run: its supervisor was
    killed before the result was reported, and nothing was started now. ``run`` is the id of the run. ``workers`` is the
    use of its workers; empty for the result of an earlier run. ``branch`` has the work of the completed tasks, if it is
    not merged.
    """

    tasks: Mapping[str, TaskResult]
    error: str = ""
    earlier: str = ""
    output: str = ""
    run: str = ""
    workers: tuple[WorkerUse, ...] = ()
    branch: str = ""

    @property
    def ok(self) -> bool:
        return not self.error and all(task.outcome in ENDS_WELL for task in self.tasks.values())

    @property
    def outcome(self) -> str:
        """The word for the end of the run, which is ``completed``, or ``failed`` if a task or the plan's validation
        failed, else ``cancelled``."""
        if self.ok:
            return TaskEnd.COMPLETED.value
        failed = self.error or any(task.outcome == TaskEnd.FAILED for task in self.tasks.values())
        return (TaskEnd.FAILED if failed else TaskEnd.CANCELLED).value

    @property
    def why(self) -> str:
        """Reason why the run did not succeed, which is the error of the validation, or the tasks that did not complete;
        ``""`` if the run succeeded."""
        names: dict[str, list[str]] = {}
        for task in self.tasks.values():
            if task.outcome not in ENDS_WELL:
                names.setdefault(task.outcome, []).append(task.id)
        parts = [f"{len(ids)} {outcome} ({named(ids)})" for outcome, ids in names.items()]
        tasks = "1 task" if len(self.tasks) == 1 else f"{len(self.tasks)} tasks"
        return self.error or (f"of {tasks} {', '.join(parts)}" if parts else "")


def named(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return f"{', '.join(names[:_NAMED_MAX])}{more}"


def describe_circuit(data: TaskRunData) -> list[str]:
    """Return a sentence about the bound that opened the circuit of a task run; none if the error of the run says
    enough, since no retry could have helped."""
    if data.permanent:
        return []
    probes = f", {data.probes} of them as {'a probe' if data.probes == 1 else 'probes'}" if data.probes else ""
    if data.same_error > data.max_error_repeats:
        why = f"the same error came {data.same_error} times in a row"
    elif data.failures >= data.max_attempts:
        why = f"max_attempts is {data.max_attempts}"
    else:
        why = "no retry was left"
    attempts = "1 attempt" if data.attempts == 1 else f"{data.attempts} attempts"
    return [f"its circuit is open after {attempts}{probes}: {why}"]


def not_accepted(problem: str) -> str:
    """Return the ``error`` of a plan result for the *problem* that the validation found; ``""`` if it found none."""
    return f"its validation failed: {problem}" if problem else ""
