"""What keeps a task that was begun: what it is blocked on, when that is there, and when it never will be.

A task that is blocked has no session and no slot; its run and its job wait, charged with nothing. Blocked on tasks of
the plan alone, it goes on by itself when they are closed; on anything else, when somebody says so. When nothing else of
the plan can go on, who waits for what has ended otherwise is cancelled, and who waits for a person keeps the run. A
parent whose subtask does not answer in time is blocked on that one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from supervisor.lifecycles import task
from supervisor.lifecycles.job import Job
from supervisor.lifecycles.task import Task
from supervisor.policies.redaction import encodable
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Refused
from supervisor.work.attempt_runner import AttemptRunner
from supervisor.work.completion_pipeline import CompletionPipeline
from supervisor.work.plan_run import PlanRun
from supervisor.work.results import WELL
from supervisor.work.task_execution import TaskExecution
from supervisor.work.timeouts import Timeouts

__all__ = ["PARENTS", "BlockedTasks"]

_log = get_logger()

PARENTS = (Task.WAITING_FOR_SUBTASKS, Task.BLOCKED)
"""Where a task is while its subtasks are worked on."""


class BlockedTasks:
    """The blocked tasks of one run. *consider* looks at a task that may go on."""

    def __init__(
        self,
        plan_run: PlanRun,
        pipeline: CompletionPipeline,
        attempt_runner: AttemptRunner,
        consider: Callable[[TaskExecution], Coroutine[Any, Any, None]],
    ) -> None:
        self._plan_run, self._pipeline, self._attempt_runner, self._consider = (
            plan_run,
            pipeline,
            attempt_runner,
            consider,
        )
        self._blocked: dict[str, TaskExecution] = {}
        self._said: set[str] = set()
        """Those of which it was said that they wait for a person."""
        self._overdue: set[str] = set()
        """Those whose subtasks do not answer, and whose own turn, which an earlier supervisor began, has no worker yet:
        they are blocked when that has let go of them."""

    def named(self, execution: TaskExecution, on: Sequence[str]) -> tuple[str, ...]:
        """What *execution* is to wait for: tasks of the plan by their ids, anything else by its name.

        Raises:
            Refused: it is nothing, or the task itself, or what waits for it; or a subtask of its own, all of which were
                settled before it was worked on itself.
        """
        if not on or not all(one.strip() for one in on):
            raise Refused(f"task {execution.name!r} cannot be blocked on nothing; name what it waits for")
        found = {one: self._task(one) for one in dict.fromkeys(map(encodable, on))}
        for one in found.values():
            if one is not None and execution in self._needs(one):
                raise Refused(
                    f"task {execution.name!r} cannot wait for {one.name!r}, which waits for it; name something else"
                )
            if one is not None and one in execution.parts:
                raise Refused(
                    f"task {execution.name!r} cannot wait for {one.name!r}, its own subtask: that is settled; "
                    "name something else"
                )
        return tuple(name if one is None else one.id for name, one in found.items())

    def _task(self, name: str) -> TaskExecution | None:
        """The task of that name, or of that id."""
        executions = self._plan_run.executions
        return executions.get(name) or executions.get(name.removeprefix("task:")) or self._by_id(name)

    def _by_id(self, entity_id: str) -> TaskExecution | None:
        return next((one for one in self._plan_run.executions.values() if one.id == entity_id), None)

    def _needs(self, execution: TaskExecution) -> set[TaskExecution]:
        """Everything that has to be settled before it can be: itself too."""
        needed, new = set[TaskExecution](), [execution]
        while new:
            one = new.pop()
            if one not in needed:
                needed.add(one)
                new += [self._plan_run.executions[name] for name in one.task.depends_on]
                new += one.parts
        return needed

    # ------------------------------------------------------------------ it is blocked
    def look_at(self, execution: TaskExecution) -> None:
        """It is blocked, or what it is blocked on was settled: see whether it goes on. Or its own turn is over."""
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
        """A task is settled: others may be blocked on it."""
        self._blocked.pop(execution.name, None)
        for one in list(self._blocked.values()):
            if execution.id in one.data.waiting_for:
                self.look_at(one)

    def _is_free(self, execution: TaskExecution) -> bool:
        """Nobody is about to do something with it."""
        return execution.scope is None and not (execution.considered or execution.ending)

    def _awaited(self, execution: TaskExecution) -> list[TaskExecution | None]:
        """The tasks that it waits for; ``None`` for each of something else."""
        return [self._by_id(one) for one in execution.data.waiting_for]

    def _is_there(self, execution: TaskExecution) -> bool:
        """Every task that it waits for is closed or was not wanted, and it waits for nothing else."""
        return all(one is not None and _outcome(one) in WELL for one in self._awaited(execution))

    # ------------------------------------------------------------------ it goes on
    async def _go_on(self, execution: TaskExecution) -> None:
        if execution.scope is not None:
            await execution.let_go.wait()
        async with execution.lock:
            if execution.state is Task.BLOCKED and not execution.is_over and self._is_there(execution):
                await self.unblock(execution, f"{self._names(execution)}: closed")

    def _names(self, execution: TaskExecution) -> str:
        awaited = zip(execution.data.waiting_for, self._awaited(execution), strict=True)
        return ", ".join(name if one is None else one.name for name, one in awaited)

    async def unblock(self, execution: TaskExecution, why: str) -> None:
        """What it waited for is there: its subtasks are waited for again, or it is offered to a worker. The caller
        holds its lock."""
        ours = {part.id for part in execution.parts}
        for_parts = bool(ours) and ours.issuperset(execution.data.waiting_for)
        execution.considered = True
        try:
            await execution.post(task.Unblocked(reason=why))
            if for_parts:
                await execution.post(task.Split(subtasks=tuple(part.id for part in execution.parts), reason=why))
        finally:
            execution.considered = False
            self._plan_run.wake()
        self._blocked.pop(execution.name, None)
        self._said.discard(execution.name)
        if for_parts:
            self.watch(execution)
            for one in (*execution.parts, execution):  # who was looked at while it was open was not due
                self._plan_run.start(self._consider, one)
            self._attempt_runner.wait_again(execution)
        else:
            self._attempt_runner.try_again(execution)

    # ------------------------------------------------------------------ subtasks that do not answer
    def watch(self, execution: TaskExecution) -> None:
        """It waits for its subtasks: for so long since it began to, whoever was there meanwhile."""
        self._plan_run.start(self._watch, execution)

    async def _watch(self, execution: TaskExecution) -> None:
        limit_s = execution.task.timeout_s or Timeouts().hard_cap_s
        waited_s = self._plan_run.sup.journal_writer.clock.wall.time() - execution.changed_at
        with self._plan_run.sup.registry.system.timers.limit(limit_s - max(0.0, waited_s)):
            while (open_part := _unsettled(execution)) is not None:  # one that was settled may be reset meanwhile
                await open_part.settled.wait()
            return
        while True:
            if execution.scope is not None:  # its own turn goes on beside them
                await execution.let_go.wait()
            async with execution.lock:
                if execution.scope is None:  # else somebody has it again: it was taken from a worker that was lost
                    await self._end_wait(execution, limit_s)
                    return

    async def _end_wait(self, execution: TaskExecution, limit_s: float) -> None:
        """Nobody carries it out, and its time is over. The caller holds its lock."""
        late = _unsettled(execution)
        if late is None or execution.state is not Task.WAITING_FOR_SUBTASKS or execution.is_over:
            return
        if execution.followed:  # its session is at work, and is to have a worker soon
            self._overdue.add(execution.name)
            return
        why = f"its subtask {late.name} did not come to an end in {limit_s:g} s"
        await execution.post(task.SubtaskTimedOut(subtask=late.id, reason=why))
        _log.warning("a subtask does not answer", task=execution.name, subtask=late.name, after_s=limit_s)
        self.look_at(execution)

    # ------------------------------------------------------------------ dead ends
    def end_dead_ends(self) -> None:
        """Cancel who waits for what will never be; say who waits for a person."""
        plan_run = self._plan_run
        if plan_run.sup.stopping.is_set():
            self._cancel(self._blocked.values(), "the supervisor is ending")
            return
        if not self._blocked or plan_run.backlog.claims():
            return
        if any(execution.result is None and self._moves(execution) for execution in plan_run.executions.values()):
            return
        vain = [execution for execution in self._blocked.values() if self._ended(execution)]
        persons = [execution for execution in self._blocked.values() if None in self._awaited(execution)]
        for execution in vain:
            self._cancel([execution], f"it was blocked on {', '.join(self._ended(execution))}, which did not complete")
        for execution in persons:
            self._say(execution)
        if not vain and not persons:
            self._cancel(self._blocked.values(), "it was blocked on tasks that wait for it")

    def _cancel(self, executions: Iterable[TaskExecution], why: str) -> None:
        for execution in list(executions):
            if self._is_free(execution):
                self._plan_run.start(self._pipeline.cancelled, execution, why)

    def _ended(self, execution: TaskExecution) -> list[str]:
        """The tasks that it waits for in vain."""
        return [one.name for one in self._awaited(execution) if one is not None and _outcome(one) not in ("", *WELL)]

    def _say(self, execution: TaskExecution) -> None:
        if execution.name not in self._said:
            self._said.add(execution.name)
            words = f"nothing else can go on; it waits for {self._names(execution)}, and for `supervisor task unblock`"
            execution.note("WaitsForPerson", {"on": execution.data.waiting_for}, words)
            _log.warning(
                "a task is blocked, and nothing else can go on", task=execution.name, on=self._names(execution)
            )

    def _moves(self, execution: TaskExecution) -> bool:
        """Whether something may become of it without any of the blocked tasks."""
        if not self._is_free(execution):
            return True
        if execution.state is Task.BLOCKED:
            return self._is_there(execution)
        if execution.state is Task.WAITING_FOR_SUBTASKS:
            return all(part.result is not None for part in execution.parts)
        unbegun = execution.state in (Task.PLANNED, Task.OPEN) and execution.job in (None, Job.PENDING)
        return not unbegun or self._may_begin(execution)

    def _may_begin(self, execution: TaskExecution) -> bool:
        above, when = execution.part_of, execution.task.when
        if above is not None and (above.result is not None or above.state not in PARENTS):
            return False  # it goes as its parent goes
        needed = [*execution.task.depends_on, *([when.task] if when is not None and when.task is not None else [])]
        return all(self._plan_run.executions[name].result is not None for name in needed)


def _unsettled(execution: TaskExecution) -> TaskExecution | None:
    """The first of its subtasks that is not settled."""
    return next((part for part in execution.parts if part.result is None), None)


def _outcome(execution: TaskExecution) -> str:
    """``""`` while it is not settled."""
    return execution.result.outcome if execution.result is not None else ""
