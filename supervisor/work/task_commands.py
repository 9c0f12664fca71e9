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
from supervisor.lifecycles.task_run import Run, SkipCause
from supervisor.lifecycles.types import Kind, LifecycleEvent
from supervisor.lifecycles.workstream import WORKSTREAM
from supervisor.plans.splitting import plain_subtasks, with_subtasks
from supervisor.plans.task_control import CommandResult, Verb
from supervisor.plans.tasks import TaskConfig
from supervisor.policies.redaction import sound
from supervisor.runtime.entity import Refused
from supervisor.runtime.journal_writer import Cause
from supervisor.runtime.live_session import NoSuchEntity
from supervisor.runtime.one_shot_event import first_of
from supervisor.work.attempt_runner import Execution
from supervisor.work.blocking import PARENTS, Blocking
from supervisor.work.commands import Command, Commands, Effect, digest_of
from supervisor.work.completion_pipeline import CompletionPipeline
from supervisor.work.plan_run import PlanRun
from supervisor.work.task_execution import TaskExecution

__all__ = ["Scheduler", "TaskCommands"]


class Scheduler(NamedTuple):
    """What a command makes of the run: *consider* what can begin, *cancel* whoever works (who hears when that begins),
    *open_more* of a plan."""

    load: PlanRun
    closing: CompletionPipeline
    execution: Execution
    blocking: Blocking
    consider: Callable[[TaskExecution], Coroutine[Any, Any, None]]
    cancel: Callable[[TaskExecution, str, Callable[[], None]], Awaitable[None]]
    open_more: Callable[[], list[TaskExecution]]


class CommandRequest:
    """A command on its way: the task, who gives it, and why; *cause* is its record."""

    def __init__(self, case: TaskExecution, by: str, reason: str, cause: Cause) -> None:
        self.case, self.by, self.reason, self._cause = case, by, reason, cause
        self._before: int | None = None

    def begin(self) -> None:
        """What is recorded of its task from now on follows from it: it has waited for everybody else."""
        self._before, self.case.seq = self.case.seq, self._cause.seq

    def refused(self) -> None:
        """Nothing follows from it."""
        if self.case.seq == self._cause.seq:
            self.case.seq = self._before

    def words(self, done: str) -> str:
        return f"{done} by {self.by}{f': {self.reason}' if self.reason else ''}"


Do = Callable[[CommandRequest], Awaitable[Effect]]
LET_GO = frozenset({Verb.REQUEUE, Verb.UNCLAIM, Verb.CANCEL, Verb.BLOCK, Verb.RESET, Verb.SPLIT})
"""Commands that wait for whoever carries the task out; the others move it on themselves."""


class TaskCommands:
    """Carries out commands about the work of *sup* (a ``WorkControl``)."""

    def __init__(self, sup: Supervisor) -> None:
        self._sup = sup
        self._commands = Commands(self._note)
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
        return self._sup.registry.entity(entity_id).note(name, cause, told, reason=reason)

    @property
    def at(self) -> Scheduler:
        assert self._at is not None, "it has begun"
        return self._at

    # ------------------------------------------------------------------ the way in
    async def planned(self) -> tuple[str, ...]:
        """The tasks that wait to be approved before anything is done for them, once the run has begun."""
        await self._wait_begun()
        cases = self.at.load.cases.values()
        return tuple(case.name for case in cases if case.is_opened and case.state is Task.PLANNED)

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
        async def do(wish: CommandRequest) -> Effect:
            return await self._split(wish, subtasks)

        given = digest_of([one.model_dump(mode="json") for one in subtasks])
        return await self._give(Verb.SPLIT, do, task, by, reason, command_id, given)

    async def block(
        self, task: str, on: Sequence[str], *, by: str, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        async def do(wish: CommandRequest) -> Effect:
            return await self._block(wish, on)

        return await self._give(Verb.BLOCK, do, task, by, reason, command_id, digest_of(sorted(set(on))))

    async def block_own(self, task: str, on: Sequence[str], *, by: str, reason: str = "") -> CommandResult:
        """For the agent of that task, whose turn is ended with it."""
        if not self.at.load.running:
            raise Refused(f"the run of task {task!r} has ended")
        return await self.block(task, on, by=by, reason=reason)

    async def unblock(self, task: str, *, by: str, reason: str = "", command_id: str | None = None) -> CommandResult:
        return await self._give(Verb.UNBLOCK, self._unblock, task, by, reason, command_id)

    async def _give(
        self, verb: Verb, do: Do, name: str, by: str, reason: str, command_id: str | None, given: str = ""
    ) -> CommandResult:
        await self._wait_begun()
        entity_id, by = self._id_of(name), sound(by)
        command = Command(verb=verb, entity_id=entity_id, by=by, reason=reason, id=command_id, given=given)

        async def take(cause: Cause) -> Effect:
            case = self._case(entity_id)
            async with self._locks.setdefault(entity_id, anyio.Lock()):
                return await self._take(CommandRequest(case, by, reason, cause), verb, do)

        return await self._sup.see_through(lambda: self._commands.once(command, take), f"{verb.value} {name}")

    async def _take(self, wish: CommandRequest, verb: Verb, do: Do) -> Effect:
        case = wish.case
        if not self.at.load.running:
            raise Refused(f"the run of task {case.name!r} has ended; run the plan again")
        try:
            if verb in LET_GO:
                return await do(wish)
            async with self._decided(wish):
                return await do(wish)
        except BaseException:
            wish.refused()
            raise

    def _id_of(self, name: str) -> str:
        """The entity of the task that is meant by its name in the plan, or by its id."""
        ids = {case.name: case.id for case in self.at.load.cases.values() if case.is_opened}
        known = {**self._left, **ids}
        if name in known:
            return known[name]
        if name in known.values():
            return name
        raise NoSuchEntity(name)

    def _case(self, entity_id: str) -> TaskExecution:
        for case in self.at.load.cases.values():
            if case.is_opened and case.id == entity_id:
                return case
        raise Refused(f"{entity_id} has ended under an earlier supervisor")

    @staticmethod
    def _refuse(case: TaskExecution, event: task.TaskEvent) -> NoReturn:
        """Refuse what its table does not allow, in its words; what it would allow comes at the wrong moment. Who
        gave the command is told so on record: the table need not refuse it there, too."""
        allowed = TASK.allowed(case.state)
        if type(event) not in allowed:
            raise Refused(str(IllegalTransition(TASK.name, case.state, event, allowed)))
        raise Refused(f"task {case.name!r} is {case.state.value}, and is about to go on by itself; ask again")

    # ------------------------------------------------------------------ approvals
    async def _approve(self, wish: CommandRequest) -> Effect:
        case = wish.case
        if case.state is Task.PENDING_APPROVAL:
            await self.at.closing.approve(case, wish.by)
            closed = case.result is not None and case.result.outcome == "completed"
            return Effect((Task.CLOSED if closed else Task.FAILED).value)  # what cannot be merged is denied
        await case.post(task.Approved(reason=wish.words("approved")))
        self.at.load.start(self.at.consider, case)
        return Effect(Task.OPEN.value)

    async def _reject(self, wish: CommandRequest) -> Effect:
        case = wish.case
        if case.state is Task.PENDING_APPROVAL:
            await self.at.closing.deny(case, wish.by, wish.reason)
            return Effect(Task.FAILED.value)
        await case.post(task.Rejected(reason=wish.words("rejected")))
        await self.at.closing.cancelled(case, wish.words("rejected"))
        return Effect(Task.CANCELLED.value)

    # ------------------------------------------------------------------ another try
    async def _reset(self, wish: CommandRequest) -> Effect:
        async with self._decided(wish):
            return await self._reset_now(wish)

    @asynccontextmanager
    async def _decided(self, wish: CommandRequest) -> AsyncIterator[None]:
        """With the lock of its task, once it is known what follows the attempt that is just over.

        Raises:
            Refused: its work is being checked, and that may take long; or its plan was given up meanwhile.
        """
        case = wish.case
        while True:
            async with case.lock:
                self._check_not_given_up(case)
                if not case.deciding:
                    wish.begin()
                    yield
                    return
                self._check_unjudged(case)
            await first_of(case.let_go, case.kept)

    async def _reset_now(self, wish: CommandRequest) -> Effect:
        case = wish.case
        if case.state is Task.FAILED:
            return await self._reopen(wish)
        if case.ending:  # it is said to be cancelled, which may not be on record yet
            raise Refused(f"task {case.name!r} is {case.state.value}, and about to end; it is not tried again")
        if not case.knows_run:
            raise Refused(f"task {case.name!r} is {case.state.value}, and its run is over; there is nothing to reset")
        await case.post_run(task_run.ManualReset(by=wish.by))
        if case.scope is None:  # else its worker waits for the end of the cool-down, and tries it then
            await self.at.execution.try_now(case)
        return Effect(Run.PENDING.value)

    async def _reopen(self, wish: CommandRequest) -> Effect:
        """A task that was given up is to be done after all. What depended on it has been given up for good."""
        case, before = wish.case, wish.case.result
        if before is None or self.at.load.stream.state in WORKSTREAM.terminal:
            raise Refused(f"task {case.name!r} has failed with its workstream, or is about to be tried again")
        self.at.load.unsettle(case)  # the run does not end meanwhile
        try:
            await case.post(task.Reopened(by=wish.by, reason=wish.words("reset")))
        except BaseException:
            self.at.load.resettle(case, before)
            for other in self.at.load.cases.values():  # whoever it dooms has been told, and may have looked just now
                if case.name in other.task.depends_on:
                    self.at.load.start(self.at.consider, other)
            raise
        self._check_not_given_up(case)
        self.at.load.backlog.reopen(case.name)
        await self._anew(case, wish)
        self._check_not_given_up(case)
        return Effect(Task.OPEN.value)

    async def _anew(self, case: TaskExecution, wish: CommandRequest) -> None:
        if not (case.has_run and case.run is Run.CIRCUIT_OPEN):  # an earlier supervisor may have ended it
            case.bury_run()
            await self.at.load.open_again(case)
            return
        await case.post_run(task_run.ManualReset(by=wish.by))
        self._check_not_given_up(case)
        await self.at.load.queue_again(case)

    def _check_not_given_up(self, case: TaskExecution) -> None:
        load = self.at.load
        if not load.running:
            how = "is over" if load.concluded else "was given up meanwhile"
            raise Refused(f"nothing is done of task {case.name!r} any more: its plan {how}")

    async def _requeue(self, wish: CommandRequest) -> Effect:
        await self._take_away(wish, Task.IN_PROGRESS, task.Requeued())
        return Effect(Task.OPEN.value)

    async def _unclaim(self, wish: CommandRequest) -> Effect:
        await self._take_away(wish, Task.CLAIMED, task.Unclaimed())
        return Effect(Task.OPEN.value)

    async def _take_away(self, wish: CommandRequest, state: Task, refused: task.TaskEvent) -> None:
        case = wish.case
        async with self._decided(wish):
            if case.state is not state:
                self._refuse(case, refused)
            self._check_unjudged(case)
            before = case.taken
            carried_out = await self.at.execution.take(case, wish.words("taken away"))
        if carried_out:
            await first_of(case.put_down, case.let_go)
        if case.taken is before:  # whoever is next may have it by now
            raise Refused(f"task {case.name!r} came to its end before it could be taken away: {case.state.value}")

    @staticmethod
    def _check_unjudged(case: TaskExecution) -> None:
        """From the agent's word on, what becomes of its work is being decided."""
        if case.run is Run.VALIDATING:
            raise Refused(f"task {case.name!r} is done, and its work is being checked; wait for that, or cancel it")

    # ------------------------------------------------------------------ blocked
    async def _block(self, wish: CommandRequest, on: Sequence[str]) -> Effect:
        case = wish.case
        async with self._decided(wish):
            waits_for = self.at.blocking.named(case, on)
            if task.Blocked not in TASK.allowed(case.state):
                self._refuse(case, task.Blocked(on=waits_for))
            self._check_unjudged(case)
            before = case.taken
            carried_out = await self.at.execution.take(case, wish.words("blocked"), waits_for)
        if carried_out:
            await first_of(case.put_down, case.let_go)
        if case.taken is before or not isinstance(case.taken, task.Blocked):  # it may go on by now
            raise Refused(f"task {case.name!r} came to its end before it could be blocked: {case.state.value}")
        self.at.blocking.look_at(case)
        return Effect(Task.BLOCKED.value)

    async def _unblock(self, wish: CommandRequest) -> Effect:
        case = wish.case
        if case.state is not Task.BLOCKED or case.result is not None or case.ending or case.considered:
            self._refuse(case, task.Unblocked())
        await self.at.blocking.unblock(case, wish.words("unblocked"))
        return Effect(Task.OPEN.value)

    # ------------------------------------------------------------------ no more tries
    async def _cancel(self, wish: CommandRequest) -> Effect:
        case = wish.case
        if case.result is not None or task.Cancelled not in TASK.allowed(case.state):
            self._refuse(case, task.Cancelled())
        why = wish.words("cancelled")
        settled = case.settled
        await self.at.cancel(case, why, wish.begin)
        await first_of(settled, self.at.load.over)
        if not settled.is_set():
            self._check_not_given_up(case)
        if case.state is not Task.CANCELLED:
            raise Refused(f"task {case.name!r} came to its end before it could be cancelled: {case.state.value}")
        return Effect(Task.CANCELLED.value)

    # ------------------------------------------------------------------ subtasks
    async def _split(self, wish: CommandRequest, subtasks: Sequence[TaskConfig]) -> Effect:
        async with self._decided(wish):
            return await self._split_now(wish, subtasks)

    async def _split_now(self, wish: CommandRequest, subtasks: Sequence[TaskConfig]) -> Effect:
        case, load = wish.case, self.at.load
        about_to_claim = case.state is Task.OPEN and case.scope is not None
        if about_to_claim or task.Split not in TASK.allowed(case.state):
            self._refuse(case, task.Split(subtasks=()))
        self._check_begun_above(case)
        subtasks = [self._after_the_same(case, one) for one in subtasks]
        if used := [one.id for one in subtasks if one.id in load.cases]:
            raise Refused(f"task {case.name!r} is not split: {', '.join(used)} was in this run before; use other ids")
        before, grown = load.plan, with_subtasks(load.plan, {case.name: subtasks})
        load.plan = grown
        load.backlog.hold(case.name)
        parts = self.at.open_more()
        with anyio.CancelScope(shield=True):  # who was born is waited for: the task is split into them, or they end
            await load.stream.added(len(parts))
            try:
                await self._record_split(wish, subtasks)
            except Refused:
                load.plan, case.parts = before if load.plan is grown else load.plan, []
                await self._withdraw(case, parts)
                raise
        self.at.blocking.watch(case)
        for part in parts:
            load.start(self.at.consider, part)
        return Effect(Task.WAITING_FOR_SUBTASKS.value, tuple(part.id for part in case.parts))

    def _check_begun_above(self, case: TaskExecution) -> None:
        """Its subtasks would begin although nobody knows yet whether it is wanted itself."""
        above = case.part_of
        if above is not None and above.result is not None:
            raise Refused(f"task {case.name!r} is a part of {above.name!r}, which has ended; nobody wants it any more")
        if above is not None and above.state not in PARENTS:
            raise Refused(f"task {case.name!r} is a part of {above.name!r}, which is not begun; split it after that")
        if case.task.when is not None and case.job is None:
            raise Refused(f"task {case.name!r} has a condition, and its moment is not there yet; split it after that")
        if case.task.subtasks and (waits := self._waits_for(case)):
            raise Refused(f"task {case.name!r} has subtasks, and waits for {waits[0]!r}; split it after that")

    def _waits_for(self, case: TaskExecution) -> list[str]:
        return [one for one in case.task.depends_on if self.at.load.cases[one].result is None]

    def _after_the_same(self, case: TaskExecution, subtask: TaskConfig) -> TaskConfig:
        """What the task still waits for, its subtasks wait for."""
        own = subtask.depends_on
        more = [one for one in self._waits_for(case) if one not in own]
        return subtask.model_copy(update={"depends_on": (*own, *more)}) if more else subtask

    @staticmethod
    async def _record_split(wish: CommandRequest, subtasks: Sequence[TaskConfig]) -> None:
        ids = tuple(part.id for part in wish.case.parts)
        await wish.case.post(task.Split(subtasks=ids, parts=plain_subtasks(subtasks), reason=wish.words("split")))

    async def _withdraw(self, case: TaskExecution, parts: Sequence[TaskExecution]) -> None:
        """It came to its end before it was split: nothing is to be done for its subtasks."""
        for part in parts:
            await self.at.closing.skip(part, SkipCause.CONDITION_NOT_MET, f"{case.name} was not split")
