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
from supervisor.work.attempt_runner import Execution
from supervisor.work.completion_pipeline import CompletionPipeline
from supervisor.work.plan_run import PlanRun
from supervisor.work.results import WELL
from supervisor.work.task_execution import TaskExecution
from supervisor.work.timeouts import Timeouts

__all__ = ["PARENTS", "Blocking"]

_log = get_logger()

PARENTS = (Task.WAITING_FOR_SUBTASKS, Task.BLOCKED)
"""Where a task is while its subtasks are worked on."""


class Blocking:
    """The blocked tasks of one run. *consider* looks at a task that may go on."""

    def __init__(
        self,
        load: PlanRun,
        closing: CompletionPipeline,
        execution: Execution,
        consider: Callable[[TaskExecution], Coroutine[Any, Any, None]],
    ) -> None:
        self._load, self._closing, self._execution, self._consider = load, closing, execution, consider
        self._blocked: dict[str, TaskExecution] = {}
        self._said: set[str] = set()
        """Those of which it was said that they wait for a person."""
        self._overdue: set[str] = set()
        """Those whose subtasks do not answer, and whose own turn, which an earlier supervisor began, has no worker yet:
        they are blocked when that has let go of them."""

    def named(self, case: TaskExecution, on: Sequence[str]) -> tuple[str, ...]:
        """What *case* is to wait for: tasks of the plan by their ids, anything else by its name.

        Raises:
            Refused: it is nothing, or the task itself, or what waits for it; or a subtask of its own, all of which were
                settled before it was worked on itself.
        """
        if not on or not all(one.strip() for one in on):
            raise Refused(f"task {case.name!r} cannot be blocked on nothing; name what it waits for")
        found = {one: self._task(one) for one in dict.fromkeys(map(encodable, on))}
        for one in found.values():
            if one is not None and case in self._needs(one):
                raise Refused(
                    f"task {case.name!r} cannot wait for {one.name!r}, which waits for it; name something else"
                )
            if one is not None and one in case.parts:
                raise Refused(
                    f"task {case.name!r} cannot wait for {one.name!r}, its own subtask: that is settled; "
                    "name something else"
                )
        return tuple(name if one is None else one.id for name, one in found.items())

    def _task(self, name: str) -> TaskExecution | None:
        """The task of that name, or of that id."""
        cases = self._load.cases
        return cases.get(name) or cases.get(name.removeprefix("task:")) or self._by_id(name)

    def _by_id(self, entity_id: str) -> TaskExecution | None:
        return next((one for one in self._load.cases.values() if one.id == entity_id), None)

    def _needs(self, case: TaskExecution) -> set[TaskExecution]:
        """Everything that has to be settled before it can be: itself too."""
        needed, new = set[TaskExecution](), [case]
        while new:
            one = new.pop()
            if one not in needed:
                needed.add(one)
                new += [self._load.cases[name] for name in one.task.depends_on]
                new += one.parts
        return needed

    # ------------------------------------------------------------------ it is blocked
    def look_at(self, case: TaskExecution) -> None:
        """It is blocked, or what it is blocked on was settled: see whether it goes on. Or its own turn is over."""
        if case.name in self._overdue:
            self._overdue.discard(case.name)
            self.watch(case)
        if case.state is not Task.BLOCKED or case.result is not None:
            return
        self._blocked[case.name] = case
        if self._is_there(case):
            self._load.start(self._go_on, case)
        self._load.wake()

    def settled(self, case: TaskExecution) -> None:
        """A task is settled: others may be blocked on it."""
        self._blocked.pop(case.name, None)
        for one in list(self._blocked.values()):
            if case.id in one.data.waiting_for:
                self.look_at(one)

    def _is_free(self, case: TaskExecution) -> bool:
        """Nobody is about to do something with it."""
        return case.scope is None and not (case.considered or case.ending)

    def _awaited(self, case: TaskExecution) -> list[TaskExecution | None]:
        """The tasks that it waits for; ``None`` for each of something else."""
        return [self._by_id(one) for one in case.data.waiting_for]

    def _is_there(self, case: TaskExecution) -> bool:
        """Every task that it waits for is closed or was not wanted, and it waits for nothing else."""
        return all(one is not None and _outcome(one) in WELL for one in self._awaited(case))

    # ------------------------------------------------------------------ it goes on
    async def _go_on(self, case: TaskExecution) -> None:
        if case.scope is not None:
            await case.let_go.wait()
        async with case.lock:
            if case.state is Task.BLOCKED and not case.is_over and self._is_there(case):
                await self.unblock(case, f"{self._names(case)}: closed")

    def _names(self, case: TaskExecution) -> str:
        awaited = zip(case.data.waiting_for, self._awaited(case), strict=True)
        return ", ".join(name if one is None else one.name for name, one in awaited)

    async def unblock(self, case: TaskExecution, why: str) -> None:
        """What it waited for is there: its subtasks are waited for again, or it is offered to a worker. The caller
        holds its lock."""
        ours = {part.id for part in case.parts}
        for_parts = bool(ours) and ours.issuperset(case.data.waiting_for)
        case.considered = True
        try:
            await case.post(task.Unblocked(reason=why))
            if for_parts:
                await case.post(task.Split(subtasks=tuple(part.id for part in case.parts), reason=why))
        finally:
            case.considered = False
            self._load.wake()
        self._blocked.pop(case.name, None)
        self._said.discard(case.name)
        if for_parts:
            self.watch(case)
            for one in (*case.parts, case):  # who was looked at while it was open was not due
                self._load.start(self._consider, one)
            self._execution.wait_again(case)
        else:
            self._execution.try_again(case)

    # ------------------------------------------------------------------ subtasks that do not answer
    def watch(self, case: TaskExecution) -> None:
        """It waits for its subtasks: for so long since it began to, whoever was there meanwhile."""
        self._load.start(self._watch, case)

    async def _watch(self, case: TaskExecution) -> None:
        limit_s = case.task.timeout_s or Timeouts().hard_cap_s
        waited_s = self._load.sup.journal_writer.clock.wall.time() - case.changed_at
        with self._load.sup.registry.system.timers.limit(limit_s - max(0.0, waited_s)):
            while (open_part := _unsettled(case)) is not None:  # one that was settled may be reset meanwhile
                await open_part.settled.wait()
            return
        while True:
            if case.scope is not None:  # its own turn goes on beside them
                await case.let_go.wait()
            async with case.lock:
                if case.scope is None:  # else somebody has it again: it was taken from a worker that was lost
                    await self._end_wait(case, limit_s)
                    return

    async def _end_wait(self, case: TaskExecution, limit_s: float) -> None:
        """Nobody carries it out, and its time is over. The caller holds its lock."""
        late = _unsettled(case)
        if late is None or case.state is not Task.WAITING_FOR_SUBTASKS or case.is_over:
            return
        if case.followed:  # its session is at work, and is to have a worker soon
            self._overdue.add(case.name)
            return
        why = f"its subtask {late.name} did not come to an end in {limit_s:g} s"
        await case.post(task.SubtaskTimedOut(subtask=late.id, reason=why))
        _log.warning("a subtask does not answer", task=case.name, subtask=late.name, after_s=limit_s)
        self.look_at(case)

    # ------------------------------------------------------------------ dead ends
    def end_dead_ends(self) -> None:
        """Cancel who waits for what will never be; say who waits for a person."""
        load = self._load
        if load.sup.stopping.is_set():
            self._cancel(self._blocked.values(), "the supervisor is ending")
            return
        if not self._blocked or load.backlog.claims():
            return
        if any(case.result is None and self._moves(case) for case in load.cases.values()):
            return
        vain = [case for case in self._blocked.values() if self._ended(case)]
        persons = [case for case in self._blocked.values() if None in self._awaited(case)]
        for case in vain:
            self._cancel([case], f"it was blocked on {', '.join(self._ended(case))}, which did not complete")
        for case in persons:
            self._say(case)
        if not vain and not persons:
            self._cancel(self._blocked.values(), "it was blocked on tasks that wait for it")

    def _cancel(self, cases: Iterable[TaskExecution], why: str) -> None:
        for case in list(cases):
            if self._is_free(case):
                self._load.start(self._closing.cancelled, case, why)

    def _ended(self, case: TaskExecution) -> list[str]:
        """The tasks that it waits for in vain."""
        return [one.name for one in self._awaited(case) if one is not None and _outcome(one) not in ("", *WELL)]

    def _say(self, case: TaskExecution) -> None:
        if case.name not in self._said:
            self._said.add(case.name)
            words = f"nothing else can go on; it waits for {self._names(case)}, and for `supervisor task unblock`"
            case.note("WaitsForPerson", {"on": case.data.waiting_for}, words)
            _log.warning("a task is blocked, and nothing else can go on", task=case.name, on=self._names(case))

    def _moves(self, case: TaskExecution) -> bool:
        """Whether something may become of it without any of the blocked tasks."""
        if not self._is_free(case):
            return True
        if case.state is Task.BLOCKED:
            return self._is_there(case)
        if case.state is Task.WAITING_FOR_SUBTASKS:
            return all(part.result is not None for part in case.parts)
        unbegun = case.state in (Task.PLANNED, Task.OPEN) and case.job in (None, Job.PENDING)
        return not unbegun or self._may_begin(case)

    def _may_begin(self, case: TaskExecution) -> bool:
        above, when = case.part_of, case.task.when
        if above is not None and (above.result is not None or above.state not in PARENTS):
            return False  # it goes as its parent goes
        needed = [*case.task.depends_on, *([when.task] if when is not None and when.task is not None else [])]
        return all(self._load.cases[name].result is not None for name in needed)


def _unsettled(case: TaskExecution) -> TaskExecution | None:
    """The first of its subtasks that is not settled."""
    return next((part for part in case.parts if part.result is None), None)


def _outcome(case: TaskExecution) -> str:
    """``""`` while it is not settled."""
    return case.result.outcome if case.result is not None else ""
