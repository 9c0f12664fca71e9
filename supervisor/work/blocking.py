"""Blocked tasks: begun, and waiting for other tasks, for a person, or for subtasks that do not end in time.

A blocked task has no session and no slot. Its run and its job wait, and no failure is charged. A task that is blocked
only on tasks of the plan goes on by itself when those tasks are closed; a task that is blocked on anything else goes on
when a person unblocks it. When nothing else of the plan can go on, tasks that wait for a task that did not complete are
cancelled, and tasks that wait for a person, or for each other, keep the plan running. A parent whose subtask does not
end in time is blocked on that subtask.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

from supervisor.lifecycles import task
from supervisor.lifecycles.job import Job
from supervisor.lifecycles.task import Task, TaskEnd
from supervisor.policies.redaction import encodable
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Refused
from supervisor.work.attempt_limits import kind_of
from supervisor.work.completion_pipeline import CompletionPipeline
from supervisor.work.plan_run import STOPPING, PlanRun, SubtasksAwaited
from supervisor.work.task_execution import CancelReason, TaskExecution
from supervisor.work.timeouts import TIMEOUTS

_log = get_logger()

PARENTS = (Task.WAITING_FOR_SUBTASKS, Task.BLOCKED)
"""States of a task while its subtasks are worked on."""


class BlockedTasks:
    """Keeps the blocked tasks of one plan run, and unblocks, blocks or cancels them."""

    def __init__(self, plan_run: PlanRun, pipeline: CompletionPipeline, considered: Collection[str]) -> None:
        self._plan_run, self._pipeline, self._considered = plan_run, pipeline, considered
        self._blocked: dict[str, TaskExecution] = {}
        self._reported: set[str] = set()
        """Names of the tasks for which the fact that they wait for a person was recorded."""
        self._overdue: set[str] = set()
        """Names of the tasks whose subtasks did not end in time, and whose own turn, begun under an earlier supervisor,
        has no worker yet: each of these tasks is blocked after a worker has taken and released it."""

    def named(self, execution: TaskExecution, on: Sequence[str]) -> tuple[str, ...]:
        """Return the names in *on* in the form that is recorded: tasks of the plan as their ids, anything else as
        given.

        Raises:
            Refused: *on* is empty, or names the task itself, a task that waits for this task (``check_wait``), or one
                of its own subtasks, all of which were settled before the work on the task itself began.
        """
        if not on or not all(one.strip() for one in on):
            raise Refused(f"task {execution.name!r} cannot be blocked on nothing; name what it waits for")
        found = {one: self._task(one) for one in dict.fromkeys(map(encodable, on))}
        for one in found.values():
            if one is not None:
                self.check_wait(execution, one)
        return tuple(name if one is None else one.id for name, one in found.items())

    def check_wait(self, execution: TaskExecution, other: TaskExecution) -> None:
        """Check that *execution* may wait for *other*.

        Raises:
            Refused: *other* waits for *execution*, directly or through other tasks; the error names the path.
        """
        if other in execution.subtasks:
            raise Refused(
                f"task {execution.name!r} cannot wait for {other.name!r}, its own subtask: that is settled; "
                "name something else"
            )
        path = self._path(other, execution)
        if path:
            steps = ", ".join(f"{one.name} waits for {after.name}" for one, after in pairwise(path))
            why = f"which waits for it ({steps})" if steps else "itself"
            raise Refused(f"task {execution.name!r} cannot wait for {other.name!r}, {why}; name something else")

    def _path(self, start: TaskExecution, goal: TaskExecution) -> list[TaskExecution]:
        """Return the tasks of a shortest path from *start* to *goal* along which each task waits for the next one;
        an empty list if there is none."""
        before: dict[TaskExecution, TaskExecution | None] = {start: None}
        queue = [start]
        for one in queue:
            if one is goal:
                path = [one]
                while (previous := before[path[0]]) is not None:
                    path.insert(0, previous)
                return path
            new = [after for after in self._waits_for(one) if after not in before]
            before.update(dict.fromkeys(new, one))
            queue += new
        return []

    def _waits_for(self, execution: TaskExecution) -> list[TaskExecution]:
        """Return the tasks that have to be settled before *execution* can be: those that it depends on, by
        ``depends_on`` or ``when``; its subtasks; those that it is blocked on; and, for a subtask,
        those that the tasks above it depend on, since no subtask begins before them."""
        if execution.result is not None:
            return []
        executions = self._plan_run.executions
        names, above = list(execution.needed), execution.parent
        while above is not None:
            names += above.needed
            above = above.parent
        ids = list(execution.data.waiting_for) if execution.state is Task.BLOCKED else []
        blocked_on = [one for one in map(self._by_id, ids) if one is not None]
        return list(dict.fromkeys([*(executions[name] for name in names), *execution.subtasks, *blocked_on]))

    def _task(self, name: str) -> TaskExecution | None:
        """Return the task of the plan with that name or id, or ``None``."""
        return self._plan_run.executions.get(name) or self._by_id(name)

    def _by_id(self, entity_id: str) -> TaskExecution | None:
        return next((one for one in self._plan_run.executions.values() if one.id == entity_id), None)

    # ------------------------------------------------------------------ it is blocked
    def look_at(self, execution: TaskExecution) -> None:
        """Unblock a blocked task if everything that it waits for is available; block a parent task whose own turn has
        just ended, if its subtasks are overdue."""
        if execution.name in self._overdue:
            self._overdue.discard(execution.name)
            self.watch(execution)
        if execution.state is not Task.BLOCKED or execution.result is not None:
            return
        self._blocked[execution.name] = execution
        if self._is_there(execution):
            self._plan_run.start(self._go_on, execution)
        self._plan_run.wake()

    def settled(self, execution: TaskExecution) -> None:
        """Check every task that is blocked on *execution*, which was settled."""
        self._blocked.pop(execution.name, None)
        for one in list(self._blocked.values()):
            if execution.id in one.data.waiting_for:
                self.look_at(one)

    def _is_free(self, execution: TaskExecution) -> bool:
        """Return whether nothing is under way for the task."""
        return execution.entity.running is None and execution.name not in self._considered

    def _awaited(self, execution: TaskExecution) -> list[TaskExecution | None]:
        """Return the tasks that *execution* waits for, with ``None`` for each thing that is no task of the plan."""
        return [self._by_id(one) for one in execution.data.waiting_for]

    def _is_there(self, execution: TaskExecution) -> bool:
        """Return whether *execution* waits for tasks of the plan only, and all of them are closed or were skipped."""
        return all(one is not None and one.is_met for one in self._awaited(execution))

    # ------------------------------------------------------------------ it goes on
    async def _go_on(self, execution: TaskExecution) -> None:
        while (running := execution.entity.running) is not None:
            await running.over.wait()
        if execution.state is Task.BLOCKED and self._is_there(execution):
            self.unblock(execution, f"{self._names(execution)}: closed")

    def _names(self, execution: TaskExecution) -> str:
        awaited = zip(execution.data.waiting_for, self._awaited(execution), strict=True)
        return ", ".join(name if one is None else one.name for name, one in awaited)

    def unblock(self, execution: TaskExecution, why: str) -> None:
        """Unblock the task: it waits for its subtasks again if it was blocked on them, or else may be claimed."""
        ours = {subtask.id for subtask in execution.subtasks}
        for_subtasks = bool(ours) and ours.issuperset(execution.data.waiting_for)
        split = (task.Split(subtasks=execution.subtask_ids, reason=why),) if for_subtasks else ()
        holder = execution.data.claimed_by if for_subtasks else ""  # else its own part would not be merged
        self._plan_run.record(execution, task.Unblocked(reason=why, holder=holder), *split)
        self._plan_run.wake()
        self._blocked.pop(execution.name, None)
        self._reported.discard(execution.name)
        if for_subtasks:
            self.watch(execution)
            self._plan_run.publish(SubtasksAwaited(execution))

    # ------------------------------------------------------------------ subtasks that do not answer
    def watch(self, execution: TaskExecution) -> None:
        """Limit the time that the task waits for its subtasks, counted from the begin of the wait, also if that was
        under an earlier supervisor."""
        self._plan_run.start(self._watch, execution)

    async def _watch(self, execution: TaskExecution) -> None:
        limit_s = execution.task.timeout_s or TIMEOUTS.cap_s(kind_of(execution.task))
        waited_s = self._plan_run.sup.journal_writer.clock.wall.time() - execution.changed_at
        with self._plan_run.sup.timers.limit(limit_s - max(0.0, waited_s)):
            while (unsettled := _unsettled(execution)) is not None:  # one that was settled may be tried again meanwhile
                await unsettled.settled.wait()
            return
        while (running := execution.entity.running) is not None:  # its own turn goes on beside them
            await running.over.wait()
        self._end_wait(execution, limit_s)

    def _end_wait(self, execution: TaskExecution, limit_s: float) -> None:
        """Block the task, for which nothing is under way, on a subtask that did not end in time."""
        late = _unsettled(execution)
        if late is None or execution.state is not Task.WAITING_FOR_SUBTASKS:
            return
        if execution.works:  # its session is at work, and is to have a worker soon
            self._overdue.add(execution.name)
            return
        why = f"its subtask {late.name} did not come to an end in {limit_s:g} s"
        self._plan_run.record(execution, task.SubtaskTimedOut(subtask=late.id, reason=why))
        _log.warning("a subtask does not answer", task=execution.name, subtask=late.name, after_s=limit_s)
        self.look_at(execution)

    # ------------------------------------------------------------------ dead ends
    def end_dead_ends(self) -> None:
        """If nothing else in the plan can go on: cancel the blocked tasks that wait for a task that did not complete,
        and record which blocked tasks wait for a person."""
        plan_run = self._plan_run
        if plan_run.sup.stopping.is_set():
            self._cancel(self._blocked.values(), CancelReason(STOPPING))
            return
        if not self._blocked or plan_run.backlog.held(plan_run.workstream.id):
            return
        unsettled = [execution for execution in plan_run.executions.values() if execution.result is None]
        if any(self._moves(execution) for execution in unsettled):
            return
        vain = [execution for execution in self._blocked.values() if self._ended(execution)]
        persons = [execution for execution in self._blocked.values() if None in self._awaited(execution)]
        for execution in vain:
            ended = self._ended(execution)
            words = f"it was blocked on {', '.join(one.name for one in ended)}, which did not complete"
            self._cancel([execution], CancelReason(words, TaskEnd.BLOCKED, ended[0].seq))
        for execution in persons:
            self._report(execution, "and for a person who unblocks it")
        if not vain and not persons:  # they wait for each other: no work is lost for that, a person can unblock one
            for execution in self._blocked.values():
                self._report(execution, "which waits for it; a person who unblocks one of them ends that")

    def _cancel(self, executions: Iterable[TaskExecution], why: CancelReason) -> None:
        for execution in list(executions):
            if self._is_free(execution):
                self._pipeline.end(execution, why)

    def _ended(self, execution: TaskExecution) -> list[TaskExecution]:
        """Return the tasks that *execution* waits for although they ended without being completed."""
        return [
            one for one in self._awaited(execution) if one is not None and one.result is not None and not one.is_met
        ]

    def _report(self, execution: TaskExecution, why: str) -> None:
        if execution.name not in self._reported:
            self._reported.add(execution.name)
            words = f"nothing else can go on; it waits for {self._names(execution)}, {why}"
            execution.note("WaitsForPerson", {"on": execution.data.waiting_for}, words)
            _log.warning(
                "a task is blocked, and nothing else can go on", task=execution.name, on=self._names(execution)
            )

    def _moves(self, execution: TaskExecution) -> bool:
        """Return whether the task may go on although no blocked task does."""
        if not self._is_free(execution):
            return True
        if execution.state is Task.BLOCKED:
            return self._is_there(execution)
        if execution.state is Task.WAITING_FOR_SUBTASKS:
            return all(subtask.result is not None for subtask in execution.subtasks)
        unbegun = execution.state in (Task.PLANNED, Task.OPEN) and execution.job in (None, Job.PENDING)
        if not unbegun:
            return True
        parent = execution.parent
        if parent is not None and (parent.result is not None or parent.state not in PARENTS):
            return False  # it goes as its parent goes
        return all(self._plan_run.executions[name].result is not None for name in execution.needed)


def _unsettled(execution: TaskExecution) -> TaskExecution | None:
    """Return the first subtask that is not settled, or ``None``."""
    return next((subtask for subtask in execution.subtasks if subtask.result is None), None)
