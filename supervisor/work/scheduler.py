"""Decide which task of a plan is next, and how the end of one task affects the others.

A task that became ready is queued (its job waits for a worker), a queued task is claimed for a free worker, and a task
that was settled makes other tasks ready, skips them, or cancels them. Whether a task can begin is decided in
``consider`` alone, which may be called any number of times for the same task. What is done for a task that was begun
follows from its states (``work.task_entity``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final

import anyio
import msgspec

from actors.machine import Event
from actors.one_shot_event import first_of
from supervisor.diagnostics.state_times import WAITS_FOR_SLOT
from supervisor.lifecycles import task
from supervisor.lifecycles.job import Job
from supervisor.lifecycles.task import Task, TaskEnd
from supervisor.lifecycles.task_cascade import (
    DelayEnded,
    JobOpened,
    MakeAttempt,
    Merge,
    PutAway,
    Ready,
    RunChecks,
    RunOpened,
    StartAttempt,
    TaskEffect,
)
from supervisor.lifecycles.task_run import SkipCause, TaskRun, probes_left
from supervisor.lifecycles.workstream import WORKSTREAM
from supervisor.plans.earlier_runs import digest_of
from supervisor.plans.plan import Plan
from supervisor.plans.tasks import ConditionConfig, PlacedTask, every_task
from supervisor.ports.path_safety import absent
from supervisor.runtime.entity import Refused
from supervisor.sessions.shutdown import STOPPED_AT_ONCE
from supervisor.work import plugin_policies
from supervisor.work.attempt import Attempts
from supervisor.work.backlog import RefusalReason, Seeker
from supervisor.work.blocking import PARENTS, BlockedTasks
from supervisor.work.completion_pipeline import CompletionPipeline, EffectEnd
from supervisor.work.leases import Claim
from supervisor.work.plan_recovery import PlanRecovery
from supervisor.work.plan_run import (
    STOPPING,
    PlanEvent,
    PlanRun,
    SessionAborted,
    SubtasksAwaited,
    TaskReleased,
    TaskSettled,
)
from supervisor.work.task_entity import RunningEffect
from supervisor.work.task_execution import CancelReason, TaskExecution

DELAY_ENDED: Final = DelayEnded()

NO_SLOT: Final = "no worker of its plan that may take it has a free slot (max_sessions, workers)"

WAITING = frozenset({Task.PLANNED, Task.BLOCKED, Task.PENDING_APPROVAL})
"""States that a task leaves only by the act of a person, or by the end of another task."""


class TaskScheduler:
    """Schedules the tasks of one plan run."""

    def __init__(
        self, plan_run: PlanRun, pipeline: CompletionPipeline, attempts: Attempts, recovery: PlanRecovery
    ) -> None:
        self.plan_run, self.pipeline = plan_run, pipeline
        self._considered: set[str] = set()
        """Names of the tasks for which a call of ``consider`` is under way: a second call does nothing."""
        self.blocked_tasks = BlockedTasks(plan_run, pipeline, self._considered)
        self._recovery = recovery
        self._sup = plan_run.sup
        self._performers: Mapping[type[TaskEffect], Callable[[TaskExecution], Awaitable[EffectEnd | None]]] = {
            StartAttempt: attempts.start,
            MakeAttempt: attempts.make,
            RunChecks: pipeline.check,
            Merge: pipeline.merge,
            PutAway: pipeline.put_away,
        }
        plan_run.subscribe(self._on_event)
        self._perform_effect, self._report_delay = self._perform, self._end_delay
        """Bound methods for all tasks: others for each would take as much memory as its place in the queue."""

    # ------------------------------------------------------------------ claims
    async def dispatch(self) -> None:
        """Return when every task of the plan is settled. Meanwhile tasks are claimed by the scheduler of the
        supervisor, through ``seekers`` and ``take``."""
        while self.plan_run.unsettled:
            self.blocked_tasks.end_dead_ends()
            await self.plan_run.woken()

    def seekers(self) -> list[Seeker]:
        """Return the workers of the plan that can take one more task."""
        plan_run = self.plan_run
        if not (plan_run.begins_work and (free := plan_run.worker_pool.free())):
            return []
        # A workstream that has failed with a critical task ends its other tasks: none begins in the slot that is free.
        if plan_run.workstream.state in WORKSTREAM.terminal:
            return []
        plan_id = plan_run.workstream.id
        at_work = plan_run.backlog.unheld(plan_id)
        spare = not at_work or plan_run.worker_pool.free_slots > at_work
        return [Seeker(worker.id, worker.capabilities, plan_id, spare) for worker in free]

    def take(self, claim: Claim) -> None:
        """Record that the worker of *claim* has its task, without waiting for anything; what is to be done then follows
        in the plan's own task group. A failure ends this plan, and not the scheduler of all plans."""
        plan_run = self.plan_run
        try:
            plan_run.begin_claim(plan_run.by_id[claim.item_id], claim)
        except Exception as error:
            plan_run.start(_raise, error)

    def note_limited(self) -> None:
        """Record of the tasks that were offered, and that a limit on tasks at work keeps waiting, that they wait."""
        offered, self.plan_run.offered = self.plan_run.offered, []
        for execution in [one for one in offered if one.is_claimable]:
            refusal = self.plan_run.backlog.refusal(execution.id)
            if refusal is not None and refusal.why in (RefusalReason.AGENT, RefusalReason.TOTAL):
                execution.note(WAITS_FOR_SLOT, {"why": refusal.why.value, "named": refusal.named}, refusal.reason)

    def waiting(self) -> dict[str, str]:
        """Return the tasks that wait for a worker, by name, each with the reason."""
        plan_run, found = self.plan_run, dict[str, str]()
        plan_run.scheduler.set_limits()
        gate = plan_run.providers.gate(plan_run.now())
        for execution in plan_run.executions.values():
            is_queued = execution.is_opened and execution.state is Task.OPEN and execution.is_claimable
            if execution.result is None and is_queued:
                refusal = plan_run.backlog.refusal(execution.id, gate=gate)
                found[execution.name] = refusal.reason if refusal is not None else NO_SLOT
        return found

    # ------------------------------------------------------------------ effects
    def _perform(self, execution: TaskExecution, running: RunningEffect) -> bool:
        """Start the performance of an effect; return false if the run has ended."""
        return self.plan_run.start(self._carry_out, execution, running)

    async def _carry_out(self, execution: TaskExecution, running: RunningEffect) -> None:
        try:
            await execution.recorded()  # nothing is performed before its record is durable
            end: EffectEnd | None = None
            with running.stoppable():
                await anyio.lowlevel.checkpoint_if_cancelled()  # it was stopped, or the plan given up, meanwhile
                end = await self._performers[type(running.effect)](execution)
            if end is not None:  # what has happened is recorded, also if the effect was stopped just now
                await end()
        except Refused:  # its outcome came too late
            if not running.is_stopped:
                raise
        finally:  # also where the plan is given up
            execution.entity.end(running)
            self.plan_run.look(execution)
            self.plan_run.wake()
            if execution.entity.running is None and execution.state in PARENTS:
                self.plan_run.publish(TaskReleased(execution))

    def _end_delay(self, execution: TaskExecution) -> None:
        """Offer the task to the workers, since its delay is over; or end the task, if the supervisor is ending, or if
        the probe that the task waited for cannot be paid."""
        if self._sup.stopping.is_set():
            self._cancel_all([execution], CancelReason(STOPPING))
            return
        is_probe = execution.run is TaskRun.CIRCUIT_OPEN and probes_left(execution.run_data, DELAY_ENDED)
        if is_probe and (why := self.plan_run.spend_retry()):
            self.pipeline.give_up(execution, why)
        else:
            self.try_now(execution)

    def try_now(self, execution: TaskExecution, lead: Event = DELAY_ENDED) -> None:
        """Record *lead*, with which the task need not wait any more. A task that was split meanwhile goes on waiting
        for its subtasks."""
        self.plan_run.record(execution, lead)
        if execution.state is Task.WAITING_FOR_SUBTASKS:
            self.plan_run.publish(TaskReleased(execution))

    # ------------------------------------------------------------------ the end of the supervisor

    async def watch_stop(self) -> None:
        """When the supervisor stops, cancel the tasks that wait for a worker, a person or the end of a delay: they must
        not delay the stop; when it stops at once, cancel also the tasks whose work is being merged. The tasks of a long
        queue are cancelled concurrently; through a few slots this would take as long as there are tasks."""
        await self._sup.stopping.wait()
        self.plan_run.wake()
        executions = [execution for execution in self.plan_run.executions.values() if execution.result is None]
        waiting = [one for one in executions if self._is_waiting(one)]
        self._cancel_all(waiting, CancelReason(STOPPING))
        for execution in executions:
            if execution.is_delayed:
                self.plan_run.look(execution, now=True)
        await self._sup.stop_now.wait()
        merged = [one for one in self.plan_run.executions.values() if one.result is None and _is_merged(one)]
        self._cancel_all(merged, CancelReason(STOPPED_AT_ONCE))

    @staticmethod
    def _is_waiting(execution: TaskExecution) -> bool:
        """Return whether the task waits for a person, for another task, or for any worker."""
        is_queued = execution.state is Task.OPEN and execution.job is Job.QUEUED and not execution.is_delayed
        return is_queued or (execution.state in WAITING and not execution.data.approved_by)

    # ------------------------------------------------------------------ new tasks
    def open_tasks(self, plan: Plan) -> list[TaskExecution]:
        """Open the tasks of *plan* that are new, and return them. A task that an earlier supervisor left, or that was
        closed by the run that this run resumes, is taken over instead."""
        plan_run = self.plan_run
        placed = [one for one in every_task(plan.tasks) if one.task.id not in plan_run.executions]
        plan_run.budget = plan_run.budget.grown(len(placed))
        plan_run.unsettled += len(placed)
        new = [self._open_task(one, plan) for one in placed]
        files_root = plan_run.files_root
        for execution in new:
            provider = plan_run.provider_of(execution.agent)
            if not execution.is_imported:
                plan_run.by_id[execution.id] = execution
                item = execution.backlog_item(plan_run.workstream.id, files_root, provider, plan_run.executions)
                plan_run.backlog.add(item, on_hold=True)
        return new

    def _open_task(self, placed: PlacedTask, plan: Plan) -> TaskExecution:
        plan_run = self.plan_run
        parent = plan_run.executions[placed.parent.task.id] if placed.parent is not None else None
        execution = plan_run.executions[placed.task.id] = TaskExecution(self._sup, placed.task, parent)
        execution.merges_into = plan_run.merges_into
        execution.perform = partial(self._perform_effect, execution)
        execution.end_delay = partial(self._report_delay, execution)
        if parent is not None:
            parent.subtasks.append(execution)
        if self._recovery.take_up(execution) or self._import_closed(execution):
            return execution
        planned = plan.approve_plan or placed.task.approval == "before"
        digest = digest_of(placed.task, self._sup.settings)
        before, cause = None, plan_run.workstream.seq
        if plan_run.previous is not None:
            before = plan_run.previous.before.get(execution.name)
            execution.checkpoint = plan_run.previous.again.get(execution.name)
        with plan_run.together():
            execution.open(plan_run.workstream.id, digest, planned=planned, cause=cause, before=before)
            has_job = placed.task.when is None and not placed.task.optional
            execution.apply([RunOpened(limits=plan.task_lifecycle.value()), *([JobOpened()] if has_job else [])])
        return execution

    def _import_closed(self, execution: TaskExecution) -> bool:
        """Count the task as done, if the run that this run resumes has closed it; return whether it has."""
        previous = self.plan_run.previous
        if previous is None or (row := previous.closed.get(execution.name)) is None:
            return False
        data = msgspec.json.decode(row.data, type=task.TaskData)
        outcome = task.task_end(row.state, data.ended_as) or TaskEnd.CANCELLED
        job_id = previous.jobs.get(execution.name, "")
        execution.import_closed(row.id, data.claimed_by, job_id, outcome, data.rest)
        self.plan_run.unsettled -= 1
        return True

    # ------------------------------------------------------------------ what can begin
    def consider_all(self, executions: Iterable[TaskExecution]) -> None:
        """Start to consider the given tasks, in their order."""
        self.plan_run.start(self._consider_each, list(executions))

    async def _consider_each(self, executions: Iterable[TaskExecution]) -> None:
        # In one coroutine, which without plug-ins never waits: tasks that become ready together are offered together,
        # and the order of the plan decides which is claimed. One coroutine a task would run in any order (on trio).
        for execution in executions:
            await self.consider(execution)

    async def consider(self, execution: TaskExecution) -> None:
        """Begin the task if it can begin, or skip it if it can never begin."""
        if execution.name in self._considered:
            return
        self._considered.add(execution.name)
        try:
            if self._is_due(execution):
                await self._begin_or_skip(execution)
        finally:
            self._considered.discard(execution.name)
            self.plan_run.wake()

    async def _begin_or_skip(self, execution: TaskExecution) -> None:
        needed = [self.plan_run.executions[name] for name in execution.task.depends_on]
        failed = [one for one in needed if one.result is not None and not one.is_met]
        if failed:
            words = f"it depends on {', '.join(one.name for one in failed)}, which did not complete"
            cause = SkipCause.OPTIONAL if execution.task.optional else SkipCause.DEPENDENCY_FAILED
            self.pipeline.skip(execution, cause, words, dependency=failed[0])
        elif execution.state is Task.PLANNED:
            if self._sup.stopping.is_set():  # it came after `watch_stop` had cancelled the others
                self.pipeline.end(execution, CancelReason(STOPPING))
        elif all(self.plan_run.executions[name].result is not None for name in execution.needed):
            # Else a task that it waits for was settled, and is being done again.
            is_split = execution.state is Task.WAITING_FOR_SUBTASKS
            await (self._join if is_split else self._queue)(execution)

    def _is_due(self, execution: TaskExecution) -> bool:
        """Return whether the task is not begun, and waits for nothing any more or depends on a task that failed; or
        whether the task waits for its subtasks, and all of them are settled."""
        if execution.result is not None:
            return False
        if execution.state is Task.WAITING_FOR_SUBTASKS:
            is_free = execution.entity.running is None
            return is_free and all(subtask.result is not None for subtask in execution.subtasks)
        parent = execution.parent
        if execution.is_delayed:
            return False
        if parent is not None and (parent.result is not None or parent.state not in PARENTS):
            return False  # what its parent waits for, it waits for too, and goes with it
        refusal = self.plan_run.backlog.refusal(execution.id)
        unbegun = execution.state in (Task.PLANNED, Task.OPEN) and execution.job in (None, Job.PENDING)
        expected = (RefusalReason.ON_HOLD, RefusalReason.DEPENDENCY_FAILED)
        return unbegun and (refusal is None or refusal.why in expected)

    async def _queue(self, execution: TaskExecution) -> None:
        """Split the task as the plan says, or make its job wait for a worker; skip the task if its condition is not
        met."""
        plan_run = self.plan_run
        if execution.task.when is not None and (why := self._unmet(execution, execution.task.when)):
            self.pipeline.skip(execution, SkipCause.CONDITION_NOT_MET, why)
        elif execution.subtasks:
            split = task.Split(subtasks=execution.subtask_ids, reason="as the plan says")
            plan_run.record(execution, *([JobOpened()] if execution.job is None else []), split)
            self.blocked_tasks.watch(execution)
            self.consider_all((*execution.subtasks, execution))  # all subtasks may have been cancelled before
        elif self._sup.stopping.is_set():  # it came after `watch_stop` had cancelled the others
            self.pipeline.end(execution, CancelReason(STOPPING))
        else:
            await self._assign(execution)

    async def _assign(self, execution: TaskExecution) -> None:
        await plugin_policies.rank(self.plan_run, execution)
        if self._is_due(execution):  # it was not cancelled meanwhile
            self.plan_run.record(execution, Ready())

    async def _join(self, execution: TaskExecution) -> None:
        """Continue a task whose subtasks are all settled: do its own part, check the whole, or cancel the task."""
        for subtask in execution.subtasks:
            if subtask.result is not None and not subtask.is_met:
                failed = task.SubtaskFailed(subtask=subtask.id, reason=subtask.result.error)
                why = CancelReason(f"its subtask {subtask.name} did not complete", TaskEnd.BLOCKED, subtask.seq)
                self.pipeline.end(execution, why, failed)
                return
        if execution.job in (None, Job.PENDING):  # no job: it was split before it was known whether it is wanted
            await self._assign(execution)
        else:  # the check of the whole, or the claim of a worker, waited for its subtasks
            self.plan_run.look(execution)

    def _unmet(self, execution: TaskExecution, when: ConditionConfig) -> str:
        """Return the reason why the condition of a task is not met, or ``""`` if it is met."""
        if when.task is not None:
            result = self.plan_run.executions[when.task].result
            outcome = result.outcome if result is not None else "open"
            met = outcome == when.outcome
            return "" if met else f"its condition is not met: {when.task} is {outcome}, not {when.outcome}"
        # The sentence names the file as the plan does: a whole path would name a directory of this machine.
        missing = absent(self.plan_run.directory_of(execution), str(when.file_exists))
        return f"its condition is not met: there is no {when.file_exists}" if missing else ""

    # ------------------------------------------------------------------ what follows
    def _on_event(self, event: PlanEvent) -> None:
        match event:
            case TaskSettled(execution):
                self._on_settled(execution)
            case TaskReleased(execution):
                self.blocked_tasks.look_at(execution)
                self.consider_all([execution])
            case SessionAborted(execution, reason, cause):
                self._cancel_all([execution], CancelReason(reason, because=cause.seq))
            case SubtasksAwaited(execution):  # a subtask that was considered while its parent was open was not due
                self.consider_all((*execution.subtasks, execution))

    def _on_settled(self, execution: TaskExecution) -> None:
        plan_run = self.plan_run
        changed = plan_run.backlog.settle(execution.id, completed=execution.is_met)
        plan_run.wake()
        if not plan_run.running:
            return
        self.blocked_tasks.settled(execution)
        ids = dict.fromkeys((*changed.ready, *changed.dependency_failed))
        self.consider_all(plan_run.by_id[entity_id] for entity_id in ids)
        if execution.parent is not None:
            self.consider_all([execution.parent])
        if execution.subtasks:
            self.drop_subtasks(execution)
        if (
            plan_run.is_critical(execution)
            and execution.result is not None
            and execution.result.outcome == TaskEnd.FAILED
        ):
            rest = [one for one in plan_run.executions.values() if one.result is None]
            kind = "critical task" if execution.task.critical else "task"
            words = f"the {kind} {execution.name} failed, which ends the run"
            why = CancelReason(words, TaskEnd.CANCELLED, execution.seq)
            self._cancel_all(rest, why)

    def drop_subtasks(self, execution: TaskExecution) -> None:
        """End the unsettled subtasks of a task that is settled: skip them if the task was skipped, otherwise cancel
        them."""
        outcome = execution.result.outcome if execution.result is not None else ""
        left = [subtask for subtask in execution.subtasks if subtask.result is None]
        if outcome != TaskEnd.SKIPPED:
            ends = TaskEnd.REJECTED if outcome == TaskEnd.REJECTED else TaskEnd.CANCELLED
            self._cancel_all(left, CancelReason(f"{execution.name} is {outcome}", ends, execution.seq))
            return
        for subtask in left:
            self.pipeline.skip(subtask, SkipCause.CONDITION_NOT_MET, f"{execution.name} was skipped")

    # ------------------------------------------------------------------ cancel
    def _cancel_all(self, executions: Collection[TaskExecution], why: CancelReason) -> None:
        """Cancel the given tasks. Their sessions are ended concurrently, since each agent may take its time."""
        saves = TaskRun.CANCELLED in self.plan_run.plan.task_lifecycle.checkpoint.save_on_states
        for execution in executions:
            if saves or _is_merged(execution) or execution.state is Task.FAILED:
                self.plan_run.start(self.cancel, execution, why)
            else:
                self.pipeline.end(execution, why)

    async def cancel(
        self, execution: TaskExecution, why: CancelReason, begins: Callable[[], None] = lambda: None
    ) -> None:
        """Cancel a task at once; the recorded reason is the reason of the first cancellation.

        An end on purpose stops a merge at its next safe point; any other end lets the merge go on. A task that this
        does not settle is cancelled afterwards, and so is a task that has failed and is about to be claimed again.
        *begins* is called just before something is ended.
        """
        while _is_merged(execution) or execution.state is Task.FAILED:
            running = execution.entity.running
            if running is None or execution.result is not None:
                break
            if why.outcome is TaskEnd.ABORTED and _is_merged(execution):
                running.stop()
            await first_of(running.over, self.plan_run.over)
            if self.plan_run.over.is_set():
                return
        if execution.result is None:
            begins()
            await self.pipeline.cancel(execution, why)


async def _raise(error: Exception) -> None:
    """Raise *error* in the task group of the plan."""
    raise error


def _is_merged(execution: TaskExecution) -> bool:
    """Return whether the work of the task is being merged."""
    running = execution.entity.running if execution.is_opened else None
    return running is not None and isinstance(running.effect, Merge)
