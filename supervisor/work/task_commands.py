"""What an operator, or an agent, does to the work that is under way: a ``WorkControl`` of a run of a plan.

Each command is on record before it does anything, and what it does follows from that record. Commands about one task
come one after the other. What the table of a task does not allow is refused in its words, and changes nothing. Whoever
is cancelled while a command is carried out does not hear of its answer, and it is carried out all the same: half of one
would leave a task that nobody moves on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, NoReturn

import anyio

from actors.machine import IllegalTransition
from supervisor.host.supervision import Supervisor
from supervisor.lifecycles import task, task_run
from supervisor.lifecycles.task import TASK, Task
from supervisor.lifecycles.task_run import SkipCause, TaskRun
from supervisor.lifecycles.types import Kind, LifecycleEvent
from supervisor.lifecycles.workstream import WORKSTREAM
from supervisor.plans.splitting import plain_subtasks, with_subtasks
from supervisor.plans.task_control import CommandResult, Verb
from supervisor.plans.tasks import TaskConfig
from supervisor.policies.redaction import encodable
from supervisor.runtime.entity import Refused
from supervisor.runtime.journal_writer import Cause
from supervisor.runtime.live_session import NoSuchEntity
from supervisor.runtime.one_shot_event import first_of
from supervisor.work.attempt_runner import AttemptRunner
from supervisor.work.blocking import PARENTS, BlockedTasks
from supervisor.work.commands import Command, CommandEffect, CommandLog, digest_of
from supervisor.work.completion_pipeline import CompletionPipeline
from supervisor.work.plan_run import PlanRun
from supervisor.work.task_execution import TaskExecution

__all__ = ["Scheduler", "TaskCommands"]


class Scheduler(NamedTuple):
    """What a command makes of the run: *consider* what can begin, *cancel* whoever works (who hears when that begins),
    *open_more* of a plan."""

    plan_run: PlanRun
    pipeline: CompletionPipeline
    attempt_runner: AttemptRunner
    blocked_tasks: BlockedTasks
    consider: Callable[[TaskExecution], Coroutine[Any, Any, None]]
    cancel: Callable[[TaskExecution, str, Callable[[], None]], Awaitable[None]]
    open_more: Callable[[], list[TaskExecution]]


class CommandRequest:
    """A command on its way: the task, who gives it, and why; *cause* is its record."""

    def __init__(self, execution: TaskExecution, by: str, reason: str, cause: Cause) -> None:
        self.execution, self.by, self.reason, self._cause = execution, by, reason, cause
        self._before: int | None = None

    def begin(self) -> None:
        """What is recorded of its task from now on follows from it: it has waited for everybody else."""
        self._before, self.execution.seq = self.execution.seq, self._cause.seq

    def refused(self) -> None:
        """Nothing follows from it."""
        if self.execution.seq == self._cause.seq:
            self.execution.seq = self._before

    def words(self, done: str) -> str:
        return f"{done} by {self.by}{f': {self.reason}' if self.reason else ''}"


CommandStep = Callable[[CommandRequest], Awaitable[CommandEffect]]
LET_GO = frozenset({Verb.REQUEUE, Verb.UNCLAIM, Verb.CANCEL, Verb.BLOCK, Verb.RESET, Verb.SPLIT})
"""Commands that wait for whoever carries the task out; the others move it on themselves."""


class TaskCommands:
    """Carries out commands about the work of *sup* (a ``WorkControl``)."""

    def __init__(self, sup: Supervisor) -> None:
        self._sup = sup
        self._commands = CommandLog(self._note)
        self._locks: dict[str, anyio.Lock] = {}
        self._begun = anyio.Event()
        self._at: Scheduler | None = None
        self._left: Mapping[str, str] = {}

    async def begin(self, at: Scheduler, left: Mapping[str, str]) -> None:
        """The run has begun. *left* are the tasks of an earlier supervisor, with their ids: the commands that they were
        given are remembered."""
        self._left = left
        runs: dict[str, list[str]] = {}
        for row in self._sup.inherited.rows.values():
            if row.kind == Kind.RUN:
                runs.setdefault(row.parent_id or "", []).append(row.id)
        for entity_id in left.values():  # a run that is over has heard of resets, too
            self._commands.fold(await self._records([entity_id, *runs.get(entity_id, [])]))
        self._at = at
        self._begun.set()

    def end(self) -> None:
        """The run is over: if it has never begun, who waits for that waits no longer."""
        self._begun.set()

    async def _wait_begun(self) -> None:
        """Raises:
        Refused: the run has ended before that.
        """
        await self._begun.wait()
        if self._at is None:
            raise Refused("the plan was given up before it began; run it again")

    async def _records(self, entity_ids: Sequence[str]) -> list[LifecycleEvent]:
        found = [one for entity_id in entity_ids for one in await self._sup.journal.events(entity_id=entity_id)]
        return sorted(found, key=lambda one: one.seq)

    def _note(self, entity_id: str, name: str, cause: Cause, told: dict[str, Any], reason: str) -> LifecycleEvent:
        return self._sup.registry.entity(entity_id).record_fact(name, cause, told, reason=reason)

    @property
    def at(self) -> Scheduler:
        assert self._at is not None, "it has begun"
        return self._at

    # ------------------------------------------------------------------ the way in
    async def planned(self) -> tuple[str, ...]:
        """The tasks that wait to be approved before anything is done for them, once the run has begun."""
        await self._wait_begun()
        executions = self.at.plan_run.executions.values()
        return tuple(
            execution.name for execution in executions if execution.is_opened and execution.state is Task.PLANNED
        )

    async def approve(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        return await self._give(Verb.APPROVE, self._approve, task, by, reason, command_id)

    async def reject(self, task: str, *, by: str, reason: str, command_id: str | None = None) -> CommandResult:
        return await self._give(Verb.REJECT, self._reject, task, by, reason, command_id)

    async def reset(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        return await self._give(Verb.RESET, self._reset, task, by, reason, command_id)

    async def requeue(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        return await self._give(Verb.REQUEUE, self._requeue, task, by, reason, command_id)

    async def unclaim(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        return await self._give(Verb.UNCLAIM, self._unclaim, task, by, reason, command_id)

    async def cancel(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        return await self._give(Verb.CANCEL, self._cancel, task, by, reason, command_id)

    async def split(
        self,
        task: str,
        subtasks: Sequence[TaskConfig],
        *,
        by: str,
        reason: str = "",
        command_id: str | None = None,
    ) -> CommandResult:
        async def do(request: CommandRequest) -> CommandEffect:
            return await self._split(request, subtasks)

        given = digest_of([one.model_dump(mode="json") for one in subtasks])
        return await self._give(Verb.SPLIT, do, task, by, reason, command_id, given)

    async def block(
        self, task: str, on: Sequence[str], *, by: str, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        async def do(request: CommandRequest) -> CommandEffect:
            return await self._block(request, on)

        return await self._give(Verb.BLOCK, do, task, by, reason, command_id, digest_of(sorted(set(on))))

    async def block_own(self, task: str, on: Sequence[str], *, by: str, reason: str = "") -> CommandResult:
        """For the agent of that task, whose turn is ended with it."""
        if not self.at.plan_run.running:
            raise Refused(f"the run of task {task!r} has ended")
        return await self.block(task, on, by=by, reason=reason)

    async def unblock(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        return await self._give(Verb.UNBLOCK, self._unblock, task, by, reason, command_id)

    async def _give(
        self, verb: Verb, do: CommandStep, name: str, by: str, reason: str, command_id: str | None, given: str = ""
    ) -> CommandResult:
        await self._wait_begun()
        entity_id, by = self._id_of(name), encodable(by)
        command = Command(verb=verb, entity_id=entity_id, by=by, reason=reason, id=command_id, given=given)

        async def take(cause: Cause) -> CommandEffect:
            execution = self._execution_of(entity_id)
            async with self._locks.setdefault(entity_id, anyio.Lock()):
                return await self._take(CommandRequest(execution, by, reason, cause), verb, do)

        return await self._sup.see_through(lambda: self._commands.once(command, take), f"{verb.value} {name}")

    async def _take(self, request: CommandRequest, verb: Verb, do: CommandStep) -> CommandEffect:
        execution = request.execution
        if not self.at.plan_run.running:
            raise Refused(f"the run of task {execution.name!r} has ended; run the plan again")
        try:
            if verb in LET_GO:
                return await do(request)
            async with self._decided(request):
                return await do(request)
        except BaseException:
            request.refused()
            raise

    def _id_of(self, name: str) -> str:
        """The entity of the task that is meant by its name in the plan, or by its id."""
        ids = {
            execution.name: execution.id for execution in self.at.plan_run.executions.values() if execution.is_opened
        }
        known = {**self._left, **ids}
        if name in known:
            return known[name]
        if name in known.values():
            return name
        raise NoSuchEntity(name)

    def _execution_of(self, entity_id: str) -> TaskExecution:
        for execution in self.at.plan_run.executions.values():
            if execution.is_opened and execution.id == entity_id:
                return execution
        raise Refused(f"{entity_id} has ended under an earlier supervisor")

    @staticmethod
    def _refuse(execution: TaskExecution, event: task.TaskEvent) -> NoReturn:
        """Refuse what its table does not allow, in its words; what it would allow comes at the wrong moment. Who
        gave the command is told so on record: the table need not refuse it there, too."""
        allowed = TASK.allowed(execution.state)
        if type(event) not in allowed:
            raise Refused(str(IllegalTransition(TASK.name, execution.state, event, allowed)))
        raise Refused(f"task {execution.name!r} is {execution.state.value}, and is about to go on by itself; ask again")

    # ------------------------------------------------------------------ approvals
    async def _approve(self, request: CommandRequest) -> CommandEffect:
        execution = request.execution
        if execution.state is Task.PENDING_APPROVAL:
            await self.at.pipeline.approve(execution, request.by)
            closed = execution.result is not None and execution.result.outcome == "completed"
            return CommandEffect((Task.CLOSED if closed else Task.FAILED).value)  # what cannot be merged is denied
        await execution.post(task.Approved(reason=request.words("approved")))
        self.at.plan_run.start(self.at.consider, execution)
        return CommandEffect(Task.OPEN.value)

    async def _reject(self, request: CommandRequest) -> CommandEffect:
        execution = request.execution
        if execution.state is Task.PENDING_APPROVAL:
            await self.at.pipeline.deny(execution, request.by, request.reason)
            return CommandEffect(Task.FAILED.value)
        await execution.post(task.Rejected(reason=request.words("rejected")))
        await self.at.pipeline.cancelled(execution, request.words("rejected"))
        return CommandEffect(Task.CANCELLED.value)

    # ------------------------------------------------------------------ another try
    async def _reset(self, request: CommandRequest) -> CommandEffect:
        async with self._decided(request):
            return await self._reset_now(request)

    @asynccontextmanager
    async def _decided(self, request: CommandRequest) -> AsyncIterator[None]:
        """With the lock of its task, once it is known what follows the attempt that is just over.

        Raises:
            Refused: its work is being checked, and that may take long; or its plan was given up meanwhile.
        """
        execution = request.execution
        while True:
            async with execution.lock:
                self._check_not_given_up(execution)
                if not execution.deciding:
                    request.begin()
                    yield
                    return
                self._check_unjudged(execution)
            await first_of(execution.let_go, execution.kept)

    async def _reset_now(self, request: CommandRequest) -> CommandEffect:
        execution = request.execution
        if execution.state is Task.FAILED:
            return await self._reopen(request)
        if execution.ending:  # it is said to be cancelled, which may not be on record yet
            raise Refused(
                f"task {execution.name!r} is {execution.state.value}, and about to end; it is not tried again"
            )
        if not execution.knows_run:
            raise Refused(
                f"task {execution.name!r} is {execution.state.value}, and its run is over; there is nothing to reset"
            )
        await execution.post_run(task_run.ManualReset(by=request.by))
        if execution.scope is None:  # else its worker waits for the end of the cool-down, and tries it then
            await self.at.attempt_runner.try_now(execution)
        return CommandEffect(TaskRun.PENDING.value)

    async def _reopen(self, request: CommandRequest) -> CommandEffect:
        """A task that was given up is to be done after all. What depended on it has been given up for good."""
        execution, before = request.execution, request.execution.result
        if before is None or self.at.plan_run.workstream.state in WORKSTREAM.terminal:
            raise Refused(f"task {execution.name!r} has failed with its workstream, or is about to be tried again")
        self.at.plan_run.unsettle(execution)  # the run does not end meanwhile
        try:
            await execution.post(task.Reopened(by=request.by, reason=request.words("reset")))
        except BaseException:
            self.at.plan_run.resettle(execution, before)
            for (
                other
            ) in self.at.plan_run.executions.values():  # whoever it dooms has been told, and may have looked just now
                if execution.name in other.task.depends_on:
                    self.at.plan_run.start(self.at.consider, other)
            raise
        self._check_not_given_up(execution)
        self.at.plan_run.backlog.reopen(execution.name)
        await self._anew(execution, request)
        self._check_not_given_up(execution)
        return CommandEffect(Task.OPEN.value)

    async def _anew(self, execution: TaskExecution, request: CommandRequest) -> None:
        if not (execution.has_run and execution.run is TaskRun.CIRCUIT_OPEN):  # an earlier supervisor may have ended it
            execution.bury_run()
            await self.at.plan_run.open_again(execution)
            return
        await execution.post_run(task_run.ManualReset(by=request.by))
        self._check_not_given_up(execution)
        await self.at.plan_run.queue_again(execution)

    def _check_not_given_up(self, execution: TaskExecution) -> None:
        plan_run = self.at.plan_run
        if not plan_run.running:
            how = "is over" if plan_run.concluded else "was given up meanwhile"
            raise Refused(f"nothing is done of task {execution.name!r} any more: its plan {how}")

    async def _requeue(self, request: CommandRequest) -> CommandEffect:
        await self._take_away(request, Task.IN_PROGRESS, task.Requeued())
        return CommandEffect(Task.OPEN.value)

    async def _unclaim(self, request: CommandRequest) -> CommandEffect:
        await self._take_away(request, Task.CLAIMED, task.Unclaimed())
        return CommandEffect(Task.OPEN.value)

    async def _take_away(self, request: CommandRequest, state: Task, refused: task.TaskEvent) -> None:
        execution = request.execution
        async with self._decided(request):
            if execution.state is not state:
                self._refuse(execution, refused)
            self._check_unjudged(execution)
            before = execution.taken
            carried_out = await self.at.attempt_runner.take(execution, request.words("taken away"))
        if carried_out:
            await first_of(execution.put_down, execution.let_go)
        if execution.taken is before:  # whoever is next may have it by now
            raise Refused(
                f"task {execution.name!r} came to its end before it could be taken away: {execution.state.value}"
            )

    @staticmethod
    def _check_unjudged(execution: TaskExecution) -> None:
        """From the agent's word on, what becomes of its work is being decided."""
        if execution.run is TaskRun.VALIDATING:
            raise Refused(
                f"task {execution.name!r} is done, and its work is being checked; wait for that, or cancel it"
            )

    # ------------------------------------------------------------------ blocked
    async def _block(self, request: CommandRequest, on: Sequence[str]) -> CommandEffect:
        execution = request.execution
        async with self._decided(request):
            waits_for = self.at.blocked_tasks.named(execution, on)
            if task.Blocked not in TASK.allowed(execution.state):
                self._refuse(execution, task.Blocked(on=waits_for))
            self._check_unjudged(execution)
            before = execution.taken
            carried_out = await self.at.attempt_runner.take(execution, request.words("blocked"), waits_for)
        if carried_out:
            await first_of(execution.put_down, execution.let_go)
        if execution.taken is before or not isinstance(execution.taken, task.Blocked):  # it may go on by now
            raise Refused(
                f"task {execution.name!r} came to its end before it could be blocked: {execution.state.value}"
            )
        self.at.blocked_tasks.look_at(execution)
        return CommandEffect(Task.BLOCKED.value)

    async def _unblock(self, request: CommandRequest) -> CommandEffect:
        execution = request.execution
        if (
            execution.state is not Task.BLOCKED
            or execution.result is not None
            or execution.ending
            or execution.considered
        ):
            self._refuse(execution, task.Unblocked())
        await self.at.blocked_tasks.unblock(execution, request.words("unblocked"))
        return CommandEffect(Task.OPEN.value)

    # ------------------------------------------------------------------ no more tries
    async def _cancel(self, request: CommandRequest) -> CommandEffect:
        execution = request.execution
        if execution.result is not None or task.Cancelled not in TASK.allowed(execution.state):
            self._refuse(execution, task.Cancelled())
        why = request.words("cancelled")
        settled = execution.settled
        await self.at.cancel(execution, why, request.begin)
        await first_of(settled, self.at.plan_run.over)
        if not settled.is_set():
            self._check_not_given_up(execution)
        if execution.state is not Task.CANCELLED:
            raise Refused(
                f"task {execution.name!r} came to its end before it could be cancelled: {execution.state.value}"
            )
        return CommandEffect(Task.CANCELLED.value)

    # ------------------------------------------------------------------ subtasks
    async def _split(self, request: CommandRequest, subtasks: Sequence[TaskConfig]) -> CommandEffect:
        async with self._decided(request):
            return await self._split_now(request, subtasks)

    async def _split_now(self, request: CommandRequest, subtasks: Sequence[TaskConfig]) -> CommandEffect:
        execution, plan_run = request.execution, self.at.plan_run
        about_to_claim = execution.state is Task.OPEN and execution.scope is not None
        if about_to_claim or task.Split not in TASK.allowed(execution.state):
            self._refuse(execution, task.Split(subtasks=()))
        self._check_begun_above(execution)
        subtasks = [self._after_the_same(execution, one) for one in subtasks]
        if used := [one.id for one in subtasks if one.id in plan_run.executions]:
            raise Refused(
                f"task {execution.name!r} is not split: {', '.join(used)} was in this run before; use other ids"
            )
        before, grown = plan_run.plan, with_subtasks(plan_run.plan, {execution.name: subtasks})
        plan_run.plan = grown
        plan_run.backlog.hold(execution.name)
        parts = self.at.open_more()
        with anyio.CancelScope(shield=True):  # who was born is waited for: the task is split into them, or they end
            await plan_run.workstream.added(len(parts))
            try:
                await self._record_split(request, subtasks)
            except Refused:
                plan_run.plan, execution.parts = before if plan_run.plan is grown else plan_run.plan, []
                await self._withdraw(execution, parts)
                raise
        self.at.blocked_tasks.watch(execution)
        for part in parts:
            plan_run.start(self.at.consider, part)
        return CommandEffect(Task.WAITING_FOR_SUBTASKS.value, tuple(part.id for part in execution.parts))

    def _check_begun_above(self, execution: TaskExecution) -> None:
        """Its subtasks would begin although nobody knows yet whether it is wanted itself."""
        above = execution.part_of
        if above is not None and above.result is not None:
            raise Refused(
                f"task {execution.name!r} is a part of {above.name!r}, which has ended; nobody wants it any more"
            )
        if above is not None and above.state not in PARENTS:
            raise Refused(
                f"task {execution.name!r} is a part of {above.name!r}, which is not begun; split it after that"
            )
        if execution.task.when is not None and execution.job is None:
            raise Refused(
                f"task {execution.name!r} has a condition, and its moment is not there yet; split it after that"
            )
        if execution.task.subtasks and (waits := self._waits_for(execution)):
            raise Refused(f"task {execution.name!r} has subtasks, and waits for {waits[0]!r}; split it after that")

    def _waits_for(self, execution: TaskExecution) -> list[str]:
        return [one for one in execution.task.depends_on if self.at.plan_run.executions[one].result is None]

    def _after_the_same(self, execution: TaskExecution, subtask: TaskConfig) -> TaskConfig:
        """What the task still waits for, its subtasks wait for."""
        own = subtask.depends_on
        more = [one for one in self._waits_for(execution) if one not in own]
        return subtask.model_copy(update={"depends_on": (*own, *more)}) if more else subtask

    @staticmethod
    async def _record_split(request: CommandRequest, subtasks: Sequence[TaskConfig]) -> None:
        ids = tuple(part.id for part in request.execution.parts)
        await request.execution.post(
            task.Split(subtasks=ids, parts=plain_subtasks(subtasks), reason=request.words("split"))
        )

    async def _withdraw(self, execution: TaskExecution, parts: Sequence[TaskExecution]) -> None:
        """It came to its end before it was split: nothing is to be done for its subtasks."""
        for part in parts:
            await self.at.pipeline.skip(part, SkipCause.CONDITION_NOT_MET, f"{execution.name} was not split")
