"""Commands of operators and agents about the tasks of a plan run (a ``WorkControl``).

Each command is recorded before it has an effect, and that record is the cause of its effects. A command moves the task
at once, whatever is under way for the task, and is answered when that is on record. A command that the state of the
task does not allow is refused, and changes nothing; the refusal names the possible commands. A caller that is cancelled
meanwhile does not receive the reply, but the command is carried out to its end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio

from actors.machine import Event
from actors.one_shot_event import first_of
from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles import task, task_run
from supervisor.lifecycles.command_checks import refusal
from supervisor.lifecycles.job import Job
from supervisor.lifecycles.task import Task, TaskEnd, task_end
from supervisor.lifecycles.task_run import TaskRun
from supervisor.lifecycles.types import Kind, LifecycleEvent, NoSuchEntity, RecordId, Verb
from supervisor.lifecycles.workstream import WORKSTREAM, TasksAdded
from supervisor.plans.plan import Plan
from supervisor.plans.recorded import request_digest
from supervisor.plans.source import BadPlan
from supervisor.plans.splitting import plain_subtasks, with_subtasks, with_tasks
from supervisor.plans.task_control import CommandResult
from supervisor.plans.tasks import TaskConfig, every_task
from supervisor.policies.argument_checks import check_items, check_type, check_types
from supervisor.policies.redaction import encodable
from supervisor.runtime.entity import Refused
from supervisor.runtime.journal_writer import Cause
from supervisor.work.blocking import PARENTS
from supervisor.work.commands import Command, CommandEffect, CommandLog, digest_of
from supervisor.work.scheduler import TaskScheduler
from supervisor.work.task_execution import CancelReason, TaskExecution


class CommandRequest:
    """A command that is being carried out: its task, its giver (*by*), its reason, and its record as the *cause* of the
    effects."""

    def __init__(self, execution: TaskExecution, by: str, reason: str, cause: Cause) -> None:
        self.execution, self.by, self.reason, self._cause = execution, by, reason, cause
        self._before: RecordId | None = None

    def begin(self) -> None:
        """Make the command the cause of the next records of the task; every earlier step of the task is over."""
        self._before, self.execution.seq = self.execution.seq, self._cause.seq

    def refused(self) -> None:
        """Restore the earlier cause of the task's records: nothing follows from the command."""
        if self.execution.seq == self._cause.seq:
            self.execution.seq = self._before

    def words(self, done: str) -> str:
        return f"{done} by {self.by}{f': {self.reason}' if self.reason else ''}"


CommandStep = Callable[[CommandRequest], Awaitable[CommandEffect]]


class TaskCommands:
    """Carries out commands about the tasks of a plan that runs on *sup*. *add* opens the tasks of a plan that are new,
    and returns their ids."""

    def __init__(self, sup: SupervisorCore, add: Callable[[Plan, Cause], tuple[str, ...]]) -> None:
        self._sup, self._add = sup, add
        self._commands = CommandLog(self._note)
        self._begun = anyio.Event()
        self._scheduler: TaskScheduler | None = None
        self._left: Mapping[str, str] = {}

    async def begin(self, scheduler: TaskScheduler, left: Mapping[str, str]) -> None:
        """Accept commands from now on. *left* are the names and ids of the tasks that an earlier supervisor left:
        earlier commands about them are read from the journal."""
        self._left = left
        runs: dict[str, list[str]] = {}
        for row in self._sup.recovered_work.rows.values():
            if row.kind == Kind.RUN:
                runs.setdefault(row.parent_id or "", []).append(row.id)
        for entity_id in left.values():  # retries are in the logs of runs, also of those that are over
            self._commands.fold(await self._records([entity_id, *runs.get(entity_id, [])]))
        if left:
            self._commands.fold(await self._records([scheduler.plan_run.workstream.id]))
        self._scheduler = scheduler
        self._begun.set()

    def end(self) -> None:
        """Refuse the commands that wait for the begin of a run that will never begin."""
        self._begun.set()

    async def _wait_begun(self) -> None:
        """Wait until the run has begun.

        Raises:
            Refused: the run ended before that.
        """
        await self._begun.wait()
        if self._scheduler is None:
            raise Refused("the plan was given up before it began; run it again")

    async def _records(self, entity_ids: Sequence[str]) -> list[LifecycleEvent]:
        found = [one for entity_id in entity_ids for one in await self._sup.journal.events(entity_id=entity_id)]
        return sorted(found, key=lambda one: one.seq)

    def _note(self, entity_id: str, name: str, cause: Cause, told: dict[str, Any], reason: str) -> LifecycleEvent:
        return self._sup.registry.entity(entity_id).record_fact(name, cause, told, reason=reason)

    @property
    def scheduler(self) -> TaskScheduler:
        assert self._scheduler is not None, "it has begun"
        return self._scheduler

    # ------------------------------------------------------------------ the way in
    @property
    def run_id(self) -> str:
        return "" if self._scheduler is None else self._scheduler.plan_run.workstream.id

    async def begun(self) -> str:
        await self._begun.wait()
        return self.run_id

    def has(self, task: str) -> bool:
        return any(task in one for one in self._ids().items())

    async def planned(self) -> tuple[str, ...]:
        """Wait until the run has begun; return the names of the tasks that must be approved before any work on them
        begins."""
        await self._wait_begun()
        executions = self.scheduler.plan_run.executions.values()
        return tuple(
            execution.name for execution in executions if execution.is_opened and execution.state is Task.PLANNED
        )

    async def approve(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        return await self._give(Verb.APPROVE, self._approve, task, by, reason, command_id)

    async def reject(self, task: str, *, by: str, reason: str, command_id: str | None = None) -> CommandResult:
        return await self._give(Verb.REJECT, self._reject, task, by, reason, command_id)

    async def retry(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        return await self._give(Verb.RETRY, self._retry, task, by, reason, command_id)

    async def keep(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        return await self._give(Verb.KEEP, self._keep, task, by, reason, command_id)

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

        check_items("subtasks", subtasks, TaskConfig)
        given = digest_of([one.model_dump(mode="json") for one in subtasks])
        return await self._give(Verb.SPLIT, do, task, by, reason, command_id, given)

    async def block(
        self, task: str, on: Sequence[str], *, by: str, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        check_items("on", on, str)

        async def do(request: CommandRequest) -> CommandEffect:
            return await self._block(request, on)

        return await self._give(Verb.BLOCK, do, task, by, reason, command_id, digest_of(sorted(set(on))))

    async def block_own(self, task: str, on: Sequence[str], *, by: str, reason: str = "") -> CommandResult:
        """Block a task at the request of its own agent; the block ends the agent's turn."""
        if not self.scheduler.plan_run.running:
            raise Refused(f"the run of task {task!r} has ended")
        return await self.block(task, on, by=by, reason=reason)

    async def unblock(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        return await self._give(Verb.UNBLOCK, self._unblock, task, by, reason, command_id)

    async def add_tasks(
        self, tasks: Sequence[TaskConfig], *, by: str, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        check_items("tasks", tasks, TaskConfig)
        given = digest_of([one.model_dump(mode="json") for one in tasks])

        def grown() -> Plan:
            plan, known = self.scheduler.plan_run.plan, self.scheduler.plan_run.executions
            for number, one in enumerate(tasks):
                if one.id in known:
                    raise BadPlan(f"tasks[{number}].id: {one.id!r} is or was a task of run {self.run_id}; use another")
            whole = with_tasks(plan, tasks)  # a new task may depend on what another one was split into
            tops = (one.task for one in known.values() if one.parent is None)
            return whole.model_copy(update={"tasks": (*tops, *tasks)})

        return await self._grow(grown, by, reason, command_id, given)

    async def add_plan(self, plan: Plan, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        """Add the tasks of *plan* that are new to the run, and use its agents and workers. Tasks that *plan* leaves out
        go on.

        Raises:
            BadPlan: *plan* changes settings or tasks that are fixed while the run goes on, or every task has ended.
        """
        return await self._grow(lambda: plan, by, reason, command_id, request_digest(plan, None))

    async def _grow(
        self, grown: Callable[[], Plan], by: str, reason: str, command_id: str | None, given: str
    ) -> CommandResult:
        """Add the tasks of the plan *grown* that are new; the command is recorded of the workstream."""
        check_type("by", by, str)
        check_type("reason", reason, str)
        check_types(str, command_id=command_id)
        await self._wait_begun()
        run, by = self.run_id, encodable(by)
        command = Command(verb=Verb.ADD, entity_id=run, by=by, reason=reason, id=command_id, given=given)

        async def take(cause: Cause) -> CommandEffect:
            plan_run = self.scheduler.plan_run
            if not plan_run.running:
                raise Refused(f"run {run} has ended; submit the tasks as a plan of their own")
            ids = self._add(grown(), cause)
            await self._sup.journal_writer.flush()
            return CommandEffect(plan_run.workstream.state.value, ids)

        return await self._sup.background.run_to_completion(lambda: self._commands.once(command, take), f"add to {run}")

    async def _give(
        self, verb: Verb, do: CommandStep, name: str, by: str, reason: str, command_id: str | None, given: str = ""
    ) -> CommandResult:
        check_type("task", name, str)
        check_type("by", by, str)
        check_type("reason", reason, str)
        check_types(str, command_id=command_id)
        await self._wait_begun()
        entity_id, by = self._id_of(name), encodable(by)
        command = Command(verb=verb, entity_id=entity_id, by=by, reason=reason, id=command_id, given=given)

        async def take(cause: Cause) -> CommandEffect:
            request = CommandRequest(self._execution_of(entity_id), by, reason, cause)
            if not self.scheduler.plan_run.running:
                raise Refused(f"the run of task {request.execution.name!r} has ended; run the plan again")
            try:
                effect = await do(request)
            except BaseException:
                request.refused()
                raise
            await request.execution.recorded()
            return effect

        background = self._sup.background
        return await background.run_to_completion(lambda: self._commands.once(command, take), f"{verb.value} {name}")

    def _id_of(self, name: str) -> str:
        """Return the entity id of a task that is given by its name in the plan or by its id."""
        known = self._ids()
        if name in known:
            return known[name]
        if name in known.values():
            return name
        raise NoSuchEntity(name)

    def _ids(self) -> Mapping[str, str]:
        """Return the entity ids of the tasks of the run, by their names in the plan."""
        executions = self.scheduler.plan_run.executions.values()
        return {**self._left, **{execution.name: execution.id for execution in executions if execution.is_opened}}

    def _execution_of(self, entity_id: str) -> TaskExecution:
        for execution in self.scheduler.plan_run.executions.values():
            if execution.is_opened and execution.id == entity_id:
                return execution
        raise Refused(f"{entity_id} has ended under an earlier supervisor")

    @staticmethod
    def _check(execution: TaskExecution, lead: Event) -> None:
        """Check that the states of the task allow *lead*. (The refusal is recorded for the command, so the table need
        not record one too.)

        Raises:
            Refused: they do not.
        """
        if why := refusal(execution.states, lead, execution.resources):
            raise Refused(f"task {execution.name!r} {why}")

    def _lead(self, request: CommandRequest, lead: Event) -> CommandEffect:
        """Record the event of a command, and what follows from it."""
        self._check(request.execution, lead)
        request.begin()
        self.scheduler.plan_run.record(request.execution, lead)
        return CommandEffect(request.execution.state.value)

    # ------------------------------------------------------------------ approvals
    async def _approve(self, request: CommandRequest) -> CommandEffect:
        execution, reason = request.execution, request.words("approved")
        if execution.state is Task.PENDING_APPROVAL:
            self._lead(request, task.ApprovalGiven(by=request.by, reason=reason))
            await execution.recorded()
            return await self._merged(execution)
        effect = self._lead(request, task.Approved(reason=reason))
        self.scheduler.consider_all([execution])
        return effect

    async def _merged(self, execution: TaskExecution) -> CommandEffect:
        """Wait until the work of an approved task is merged, or cannot be merged, which denies the approval.

        Raises:
            Refused: the task was ended on purpose, or the plan was given up, before the work was merged.
        """
        plan_run = self.scheduler.plan_run
        while execution.state is Task.PENDING_APPROVAL and (running := execution.entity.running) is not None:
            await first_of(running.over, plan_run.over)
            if plan_run.over.is_set():
                break
        if execution.state in (Task.PENDING_APPROVAL, Task.CANCELLED):
            raise Refused(f"task {execution.name!r} was ended before its work was merged")
        return CommandEffect((Task.CLOSED if execution.state is Task.CLOSED else Task.FAILED).value)

    async def _reject(self, request: CommandRequest) -> CommandEffect:
        execution = request.execution
        if execution.state is Task.PENDING_APPROVAL:
            return self._lead(request, self.scheduler.pipeline.denial(request.by, request.reason))
        self._check(execution, task.Rejected())
        request.begin()
        self.scheduler.pipeline.end(execution, CancelReason(request.words("rejected"), TaskEnd.REJECTED))
        return CommandEffect(Task.CANCELLED.value)

    # ------------------------------------------------------------------ another try
    async def _retry(self, request: CommandRequest) -> CommandEffect:
        execution = request.execution
        # A task that has just failed is claimed again by itself, or settled, when it is put away.
        while execution.state is Task.FAILED and (running := execution.entity.running) is not None:
            await first_of(running.over, self.scheduler.plan_run.over)
            self._check_not_given_up(execution)
        if execution.state is Task.FAILED:
            return await self._reopen(request)
        if execution.state is Task.CANCELLED:
            end = task_end(execution.state.value, execution.data.ended_as)
            fix = f"a run that resumes {self.run_id} does what was cancelled (--resume)"
            raise Refused(f"task {execution.name!r} has ended on purpose ({end}), and stays so in this run; {fix}")
        if not execution.knows_run:
            raise Refused(
                f"task {execution.name!r} is {execution.state.value}, and its run is over; there is nothing to retry"
            )
        waits = execution.is_delayed or execution.job is Job.RETRYING  # a blocked task waits for no delay
        if execution.run in (TaskRun.RETRYING, TaskRun.PENDING) and waits:
            request.begin()
            self.scheduler.try_now(execution)
            return CommandEffect(execution.run.value)
        again = task_run.ManualReset(by=request.by)
        self._check(execution, again)
        request.begin()
        self.scheduler.try_now(execution, again)
        return CommandEffect(TaskRun.PENDING.value)

    async def _reopen(self, request: CommandRequest) -> CommandEffect:
        """Open a failed task again. Tasks that were given up because they depended on it stay given up."""
        execution, plan_run = request.execution, self.scheduler.plan_run
        if execution.result is None or plan_run.workstream.state in WORKSTREAM.terminal:
            raise Refused(f"task {execution.name!r} has failed with its workstream, or is about to be tried again")
        reopened = task.Reopened(by=request.by, reason=request.words("retried"))
        self._check(execution, reopened)
        request.begin()
        plan_run.unsettle(execution)
        plan_run.backlog.reopen(execution.id)
        plan_run.record(execution, reopened)
        await execution.recorded()
        self._check_not_given_up(execution)
        return CommandEffect(Task.OPEN.value)

    def _check_not_given_up(self, execution: TaskExecution) -> None:
        plan_run = self.scheduler.plan_run
        if not plan_run.running:
            how = "is over" if plan_run.concluded else "was given up meanwhile"
            raise Refused(f"nothing is done of task {execution.name!r} any more: its plan {how}")

    async def _requeue(self, request: CommandRequest) -> CommandEffect:
        return self._lead(request, task.Requeued(reason=request.words("taken away")))

    async def _unclaim(self, request: CommandRequest) -> CommandEffect:
        return self._lead(request, task.Unclaimed(reason=request.words("taken away")))

    async def _keep(self, request: CommandRequest) -> CommandEffect:
        execution = request.execution
        kept = task.Kept(by=request.by, reason=request.words("ended, and kept as it is,"))
        self._check(execution, kept)
        turn = self._sup.registry.turn_at_work(execution.session_id)
        if execution.run is not TaskRun.IN_PROGRESS or turn is None or not turn.can_finish:
            why = "no agent works on it now, or its turn answers a message"
            raise Refused(f"task {execution.name!r} cannot be kept: {why}; ask again, or cancel it")
        request.begin()
        self.scheduler.plan_run.record(execution, kept)
        await execution.recorded()
        turn.finish(kept.reason)
        return CommandEffect(Task.IN_PROGRESS.value)

    # ------------------------------------------------------------------ blocked
    async def _block(self, request: CommandRequest, on: Sequence[str]) -> CommandEffect:
        execution = request.execution
        waits_for = self.scheduler.blocked_tasks.named(execution, on)
        effect = self._lead(request, task.Blocked(on=waits_for, reason=request.words("blocked")))
        self.scheduler.blocked_tasks.look_at(execution)
        return effect

    async def _unblock(self, request: CommandRequest) -> CommandEffect:
        execution = request.execution
        self._check(execution, task.Unblocked())
        request.begin()
        self.scheduler.blocked_tasks.unblock(execution, request.words("unblocked"))
        return CommandEffect(Task.OPEN.value)

    # ------------------------------------------------------------------ no more tries
    async def _cancel(self, request: CommandRequest) -> CommandEffect:
        execution = request.execution
        self._check(execution, task.Cancelled())
        why = CancelReason(request.words("aborted"), actor=request.by)
        await self.scheduler.cancel(execution, why, request.begin)
        self._check_not_given_up(execution)
        if execution.state is not Task.CANCELLED:
            raise Refused(
                f"task {execution.name!r} came to its end before it could be cancelled: {execution.state.value}"
            )
        return CommandEffect(Task.CANCELLED.value)

    # ------------------------------------------------------------------ subtasks
    async def _split(self, request: CommandRequest, subtasks: Sequence[TaskConfig]) -> CommandEffect:
        execution, plan_run = request.execution, self.scheduler.plan_run
        self._check(execution, task.Split(subtasks=()))
        if TasksAdded not in WORKSTREAM.allowed(plan_run.workstream.state):
            raise Refused(f"task {execution.name!r} is not split: its workstream is {plan_run.workstream.state.value}")
        self._check_begun_above(execution)
        subtasks = [self._after_the_same(execution, one) for one in subtasks]
        if used := [one.id for one in subtasks if one.id in plan_run.executions]:
            raise Refused(
                f"task {execution.name!r} is not split: {', '.join(used)} was in this run before; use other ids"
            )
        plan = with_subtasks(plan_run.plan, {execution.name: subtasks})
        for one in every_task(subtasks):  # what a subtask waits for may be blocked on the task that is split
            for needed in one.task.depends_on:
                if needed in plan_run.executions:
                    self.scheduler.blocked_tasks.check_wait(execution, plan_run.executions[needed])
        plan_run.plan = plan
        request.begin()
        with plan_run.together():
            parts = self.scheduler.open_tasks(plan_run.plan)
            plan_run.workstream.add_tasks(len(parts))
            ids, plain = execution.subtask_ids, plain_subtasks(subtasks)
            plan_run.record(execution, task.Split(subtasks=ids, parts=plain, reason=request.words("split")))
        self.scheduler.blocked_tasks.watch(execution)
        self.scheduler.consider_all(parts)
        return CommandEffect(Task.WAITING_FOR_SUBTASKS.value, ids)

    def _check_begun_above(self, execution: TaskExecution) -> None:
        """Check that the task is far enough for a split: its parent has begun, its condition was checked.

        Raises:
            Refused: subtasks would begin although it is not known yet whether the task itself will be done.
        """
        above = execution.parent
        if above is not None and above.result is not None:
            why = f"is a part of {above.name!r}, which has ended, so it is not worked on any more"
        elif above is not None and above.state not in PARENTS:
            why = f"is a part of {above.name!r}, which is not begun; split it after that"
        elif execution.task.when is not None and execution.job is None:
            why = "has a condition that is not checked yet; split it after that"
        elif execution.task.subtasks and (waits := self._waits_for(execution)):
            why = f"has subtasks, and waits for {waits[0]!r}; split it after that"
        else:
            return
        raise Refused(f"task {execution.name!r} {why}")

    def _waits_for(self, execution: TaskExecution) -> list[str]:
        return [one for one in execution.task.depends_on if self.scheduler.plan_run.executions[one].result is None]

    def _after_the_same(self, execution: TaskExecution, subtask: TaskConfig) -> TaskConfig:
        """Return *subtask*, which now also depends on every task that *execution* still waits for."""
        own = subtask.depends_on
        more = [one for one in self._waits_for(execution) if one not in own]
        return subtask.model_copy(update={"depends_on": (*own, *more)}) if more else subtask
