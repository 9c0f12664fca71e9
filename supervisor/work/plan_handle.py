"""``submit`` and ``run_plan``: run plans on a supervisor, and steer them while they run.

Theory of operation
-------------------
``submit`` starts a run of a plan as a task of the supervisor and returns a :class:`PlanHandle`::

    run = await submit(sup, load_plan("plan.yaml"), key="order-17")
    await run.approve("deploy", by="ops")
    result = await run

Each call is a new run, with an id of its own (``run.run_id``), unless the call repeats an earlier one: its *key* says
so. Any number of plans run side by side. ``run_plan`` is the same for a program that has one plan, and runs that plan
each time it starts: the call goes on with the last run of the plan, if that was interrupted.

Awaiting the handle waits for the end of the run. The run belongs to the code that awaits it: if that code is cancelled,
the run is cancelled, and the await ends after the run has ended, so that no task of the plan goes on unnoticed.
``asyncio`` treats an awaited task in the same way. A run that is not awaited ends with its supervisor: leaving the
block of ``open_supervisor`` drains the run like sessions, within ``drain_s``, and then cancels the run; an exception
that leaves the block cancels the run at once.

Await the handle within that block. An await after the block returns the result too, but the journal is closed, so that
nothing records that the host has the result: the next run of the plan returns the result again.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import anyio

from actors.waiting import any_of
from supervisor.diagnostics.causal_trace import Explanation
from supervisor.diagnostics.tree_view import Node, tree
from supervisor.host.api import Supervisor
from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles.types import NoSuchEntity
from supervisor.plans.earlier_runs import SubmittedRun
from supervisor.plans.plan import Plan
from supervisor.plans.recorded import recalled_plan, request_digest
from supervisor.plans.task_control import CommandResult
from supervisor.plans.tasks import TaskConfig
from supervisor.policies.argument_checks import check_type, check_types
from supervisor.policies.budgets import Amounts
from supervisor.ports import JournalError
from supervisor.ports.agent_profile import AgentFunction
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Refused
from supervisor.work.plan_runner import PlanRunner, Submission
from supervisor.work.reporting import read_plan, read_result
from supervisor.work.results import PlanResult, TaskResult

HOST = "host"
"""Name under which a command of the embedding program is recorded, unless the program gives another name."""

_USUAL = Submission()
"""Submission to a supervisor that has the agents itself."""

_log = get_logger()


def run_plan(sup: Supervisor, plan: Plan, *, resume: bool = False, fresh: bool = False) -> PlanHandle:
    """Run every task of *plan* on *sup*, then run the plan's validation. Await the returned handle for the result.

    If an earlier supervisor was killed after the last run of *plan* had ended, and before its host received the result,
    that result is returned (``earlier`` names its workstream), and nothing is started.

    Args:
        sup: the supervisor to run on.
        plan: the plan.
        resume: do only the tasks that the last run of *plan* did not close, each from its checkpoint.
        fresh: run the plan although an earlier result was never reported.

    Raises:
        TypeError: an argument has a wrong type.
        Refused: the supervisor ends, or has ended.
    """
    check_type("sup", sup, Supervisor, "the supervisor that `async with open_supervisor(...) as sup` gives")
    check_type("plan", plan, Plan, "a file by load_plan(path)")
    check_type("resume", resume, bool)
    check_type("fresh", fresh, bool)
    handle = PlanHandle(sup, plan)
    handle.start(resume=resume, fresh=fresh)
    return handle


async def submit(
    sup: Supervisor, plan: Plan | None = None, *, key: str | None = None, resume: str | None = None
) -> PlanHandle:
    """Begin a new run of *plan* on *sup*, and return its handle when the run is on the disk: from then on, a supervisor
    that is killed leaves the run to the next one. The run does not end with the caller: if the caller is cancelled, it
    goes on, and a repeated call with the same *key* returns its handle.

    Args:
        sup: the supervisor to run on.
        plan: the plan. With *resume* it may be left out: then it is the plan that was recorded with that run.
        key: idempotency key. A call with the key of an earlier call starts nothing, and returns the handle of the run
            that the earlier call has begun, also if that has ended, or if another supervisor began it. A key is known
            as long as the journal keeps the run.
        resume: id of the run to continue, if its supervisor was killed; else of the run that the new run resumes: the
            new run does only the tasks that the earlier one did not close, each from its checkpoint.

    Raises:
        TypeError: an argument has a wrong type, or neither *plan* nor *resume* is given.
        NoSuchEntity: the journal has no run *resume*.
        BadPlan: the plan that was recorded with *resume* cannot be read, or needs a function that the supervisor does
            not have.
        Refused: the key was used for another request; the run *resume* goes on, or has left nothing to resume; the
            supervisor ends, or has ended. As :class:`Degraded`: the journal cannot be written now.
    """
    check_type("sup", sup, Supervisor, "the supervisor that `async with open_supervisor(...) as sup` gives")
    check_types(Plan, plan=plan)
    check_types(str, key=key, resume=resume)
    if plan is None and resume is None:
        raise TypeError("plan: missing; give a plan, or the id of the run to resume")
    if key == "" or resume == "":
        raise ValueError(f"{'key' if key == '' else 'resume'}: is empty; leave it out, or give a text")
    return await sup.core.part(Submissions).submit(sup, plan, key, resume)


class Submissions:
    """The runs of one supervisor that have begun and not ended, and the runs that were submitted with a key."""

    def __init__(self, core: SupervisorCore) -> None:
        self._core = core
        self.running: dict[PlanHandle, None] = {}
        """Handles of the runs that have not ended; no other handle is kept."""
        self._lock = anyio.Lock()
        """Held while it is decided whether a request is new: two requests with one key begin one run."""

    async def submit(
        self,
        sup: Supervisor,
        plan: Plan | None,
        key: str | None,
        resume: str | None,
        given: Submission = _USUAL,
    ) -> PlanHandle:
        """Begin a run, or return that of *key*, as :func:`submit` says; *given* has the setup and the origin of a run
        of a daemon, and says whether *plan* is the one that was recorded with *resume*."""
        async with self._lock:
            request = request_digest(plan, resume)
            handle = await self._first(sup, key, request) if key is not None else None
            if handle is None:
                handle = await self._begin(sup, plan, key or "", request, resume, given)
        await handle.begun()
        return handle

    def run_of(self, key: str) -> str:
        """Return the id of the run that was submitted with *key*; ``""`` if there is none."""
        handle = next((one for one in self.running if one.submission.key == key), None)
        first = self._core.recovered_work.earlier.by_key.get(key)
        return handle.run_id if handle is not None else first.workstream if first is not None else ""

    async def _first(self, sup: Supervisor, key: str, request: str) -> PlanHandle | None:
        """Return the handle of the run that was submitted with *key*, if one was.

        Raises:
            Refused: the key was used for another request.
        """
        handle = next((one for one in self.running if one.submission.key == key), None)
        first = self._core.recovered_work.earlier.by_key.get(key)
        if handle is None and first is None:
            return None
        if request not in (handle.submission.request if handle is not None else "", first.request if first else ""):
            raise Refused(f"key {key!r} was used for another request; use another key")
        if handle is None and first is not None:
            handle = self._running(first.workstream) or await self._ended(sup, first.workstream)
        return handle

    async def _begin(
        self,
        sup: Supervisor,
        plan: Plan | None,
        key: str,
        request: str,
        resume: str | None,
        given: Submission,
    ) -> PlanHandle:
        self._core.registry.check_disk("a plan")
        is_recorded = plan is None or given.is_recorded
        if resume is not None and self._running(resume) is not None:
            raise Refused(f"run {resume!r} goes on in this supervisor, and is not resumed")
        if resume is not None:
            recorded = await self._recorded(resume)
            plan = plan or recalled_plan(recorded, self._function_of)
        assert plan is not None, "one of the two is given"
        asked = given._replace(key=key, request=request, resumes=resume or "", is_recorded=is_recorded)
        handle = PlanHandle(sup, plan, asked)
        handle.start()
        return handle

    async def _recorded(self, run: str) -> Mapping[str, Any]:
        """Return the plan of a run, as plain data.

        Raises:
            NoSuchEntity: the journal has no such run.
        """
        await self._core.journal_writer.durable()  # the run may be one of this supervisor, and just cancelled
        recorded = await read_plan(self._core.journal, run)
        if recorded is None:
            raise NoSuchEntity(run)
        return recorded

    def _function_of(self, agent: str) -> AgentFunction | None:
        profile = self._core.setups.profile(agent)
        return None if profile is None else profile.function

    def _running(self, run: str) -> PlanHandle | None:
        return next((one for one in self.running if one.run_id == run), None)

    async def _ended(self, sup: Supervisor, run: str) -> PlanHandle:
        """Return the handle of a run that does not go on in this supervisor."""
        await self._core.journal_writer.durable()
        found = await read_result(self._core.journal, run)
        handle = PlanHandle(sup, None)
        handle.is_interrupted = run in self._core.recovered_work.work
        if handle.is_interrupted:
            how = f"was interrupted; submit(sup, resume={run!r}) continues it"
        elif await self._core.journal.entities(ids=[run]):
            how = "was cancelled"
        else:
            how = "has ended, and its result is in the archive of the journal"
        handle.close(run, found.result if found is not None else None, f"the run {run} {how}")
        return handle

    def note_ended(self, handle: PlanHandle) -> None:
        """Forget the handle of a run that has ended, and keep its key."""
        del self.running[handle]
        key, request = handle.submission.key, handle.submission.request
        if key and handle.run_id:
            self._core.recovered_work.earlier.by_key.setdefault(key, SubmittedRun(handle.run_id, request))


class PlanHandle:
    """Handle of the run of a plan. ``await handle`` returns the :class:`PlanResult` of the plan.

    Awaiting raises:

    * ``Refused``: the last run of the plan has left nothing to resume, or the run was cancelled.
    * ``JournalError``: the journal was lost.
    * ``ValueError``: the supervisor has no agent of a name in the plan.

    An error of a run that is never awaited is only logged.

    The commands name a task of the run by its name in the plan, or by its id (``r1#fix``). *by* names the giver of a
    command in the records. A command with a *command_id* takes effect once, however often it is given.

    Commands raise:

    * ``NoSuchEntity``: the plan has no such task.
    * ``Refused``: the state of the task does not allow the command now, or the run has ended; nothing was done. As
      ``Degraded``: the journal cannot be written now.
    * ``ValueError``: the *command_id* was used for another command, is empty, or is too long.
    * ``TypeError``: an argument has a wrong type.
    * ``JournalError``: the journal was lost meanwhile.
    """

    def __init__(self, sup: Supervisor, plan: Plan | None, submission: Submission | None = None) -> None:
        self._sup, self._plan = sup, plan
        self._is_submitted, self.submission = submission is not None, submission or Submission()
        self.runner = PlanRunner(sup.core)
        """Runner of the plan, for the packages of this project."""
        self._scope = anyio.CancelScope()
        self.ended = anyio.Event()
        """Set when the run has ended, with success or without."""
        self._result: PlanResult | None = None
        self._error: Exception | None = None
        self._is_awaited = False
        self._ended_run = ""
        self.is_interrupted = False
        """Whether the supervisor of the run was killed, and no other one continues the run: await raises Refused."""

    def __repr__(self) -> str:
        return f"<PlanHandle {self._name}, {'ended' if self.ended.is_set() else 'running'}>"

    @property
    def _name(self) -> str:
        """The id of the run, or the name of its plan before it has one."""
        return self.run_id or (repr(self._plan.workstream) if self._plan is not None else "")

    @property
    def run_id(self) -> str:
        """The id of the run, for the command line and for records (``r1``): ``""`` while it is not known yet which run
        ``run_plan`` continues. A run that goes on with one that an earlier supervisor left has the id of that run."""
        return self._ended_run or self.runner.run_id

    def start(self, *, resume: bool = False, fresh: bool = False) -> None:
        """Start the run as an asynchronous task of the supervisor. For the functions of this module.

        Raises:
            Refused: the supervisor ends, or has ended.
        """
        self._sup.core.shutdown.begin_plan(self, lambda: self._run(resume=resume, fresh=fresh))
        self._sup.core.part(Submissions).running[self] = None

    def close(self, run: str, result: PlanResult | None, error: str) -> None:
        """Make this the handle of *run*, which does not go on: with its result, or with the *error* that says why there
        is none. For the functions of this module."""
        self._ended_run, self._result = run, result
        self._error = Refused(error) if result is None else None
        self.runner.commands.end()
        self.ended.set()

    async def begun(self) -> None:
        """Wait until the run is on the disk.

        Raises:
            Exception: the error with which the run ended before that.
        """
        if not (self.ended.is_set() or self.runner.submitted.is_set()):
            await any_of(self.runner.submitted, self.ended)
        if self._error is not None and not self.runner.submitted.is_set() and not self._ended_run:
            self._is_awaited = True
            raise self._error

    async def _run(self, *, resume: bool, fresh: bool) -> None:
        submission = self.submission if self._is_submitted else None
        assert self._plan is not None, "only an ended run has none"
        try:
            with self._scope:
                self._result = await self.runner.run(self._plan, resume=resume, fresh=fresh, submission=submission)
        except Exception as error:
            self._error = _cause_of(error)
            # A run that was submitted, and never began, is refused: the submitter is told.
            if not (self._is_awaited or (self._is_submitted and not self.runner.submitted.is_set())):
                _log.error("a plan failed", run=self._name, error=repr(self._error), exc_info=error)
        finally:
            self._sup.core.part(Submissions).note_ended(self)
            self.ended.set()

    # ------------------------------------------------------------------ the end
    def __await__(self) -> Generator[Any, Any, PlanResult]:
        return self.wait().__await__()

    async def wait(self) -> PlanResult:
        """Wait for the end of the run, as ``await handle`` does: ``group.start_soon(handle.wait)``.

        Raises:
            Refused, JournalError, ValueError: as the class says of an await.
        """
        result = await self.outcome()
        # Nothing is awaited from here on: the record becomes durable when this task waits next, and the host has the
        # result then.
        if not self._ended_run:
            self.runner.note_reported("returned to the host")
        return result

    async def outcome(self) -> PlanResult:
        """Wait for the end of the run like ``wait``, for a caller that notes by itself that the result was reported
        (``PlanRunner.note_reported``)."""
        self._is_awaited = True
        try:
            await self.ended.wait()
        except anyio.get_cancelled_exc_class():
            self._is_awaited = False  # an error of the run reaches no caller from here on: it is logged
            self._scope.cancel()
            with anyio.CancelScope(shield=True):
                await self.ended.wait()
            raise
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise Refused(f"the run {self._name} was cancelled")
        return self._result

    def cancel(self, *, by: str = HOST, reason: str = "") -> None:
        """Give the run up: its sessions are aborted, and every task that has not ended is recorded as cancelled. The
        request is on record with its author *by* and *reason*, as the cause of these ends."""
        workstream = self.runner.plan_run.workstream
        if workstream.is_opened and workstream.cancel_seq is None and not self.ended.is_set():
            workstream.record_cancel_request(by, reason)
        self._scope.cancel()

    # ------------------------------------------------------------------ what there is
    @property
    def results(self) -> Mapping[str, TaskResult]:
        """Results of the tasks that have ended so far, by the task's id."""
        return self.runner.results

    def waiting(self) -> Mapping[str, str]:
        """Return the tasks that wait for a worker, each with the reason: a limit, files of another task, or its
        provider. The tasks that wait for other tasks are not among them."""
        return self.runner.waiting()

    def tree(self) -> tuple[Node, ...]:
        """Return the live entities of the supervisor, as ``supervisor tree`` shows them: root nodes with the nodes
        below them."""
        return tree(self._sup.core.registry.rows())

    async def why(self, entity_id: str) -> Explanation:
        """Return the causes of the last change of a task of this run, or of a session, turn, agent or tool call, as
        ``supervisor why`` does.

        Raises:
            NoSuchEntity: no record is about *entity_id*.
        """
        with suppress(NoSuchEntity):
            return await self._sup.why(self.runner.task_ids.get(entity_id, entity_id))
        return await self._sup.why(entity_id)

    async def usage(self) -> Mapping[str, Amounts]:
        """Return the amounts used (tokens, money, turns), by the id of each task, session and turn; an amount includes
        everything below the entity.

        Raises:
            JournalError: the journal cannot be read.
        """
        return await self._sup.usage()

    # ------------------------------------------------------------------ commands
    async def approve(
        self, task: str, *, by: str = HOST, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        """Approve a planned task, or the result of a task; an approved result is merged.

        Raises:
            NoSuchEntity, Refused, ValueError, Degraded, JournalError: as the class says.
        """
        return await self.runner.commands.approve(task, by=by, reason=reason, command_id=command_id)

    async def reject(self, task: str, *, reason: str, by: str = HOST, command_id: str | None = None) -> CommandResult:
        """Cancel a planned task, or reject the result of a task.

        Raises:
            NoSuchEntity, Refused, ValueError, Degraded, JournalError: as the class says.
        """
        return await self.runner.commands.reject(task, by=by, reason=reason, command_id=command_id)

    async def cancel_task(
        self, task: str, *, by: str = HOST, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        """Cancel one task for good.

        Raises:
            NoSuchEntity, Refused, ValueError, Degraded, JournalError: as the class says.
        """
        return await self.runner.commands.cancel(task, by=by, reason=reason, command_id=command_id)

    async def requeue(
        self, task: str, *, by: str = HOST, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        """Take a task in progress from its session, and let another session take the task.

        Raises:
            NoSuchEntity, Refused, ValueError, Degraded, JournalError: as the class says.
        """
        return await self.runner.commands.requeue(task, by=by, reason=reason, command_id=command_id)

    async def unclaim(
        self, task: str, *, by: str = HOST, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        """Take a task that was claimed but not begun from its session.

        Raises:
            NoSuchEntity, Refused, ValueError, Degraded, JournalError: as the class says.
        """
        return await self.runner.commands.unclaim(task, by=by, reason=reason, command_id=command_id)

    async def keep(
        self, task: str, *, by: str = HOST, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        """End the work of the agent on a task in progress, and check and merge what is done; no other attempt
        follows.

        Raises:
            NoSuchEntity, Refused, ValueError, Degraded, JournalError: as the class says.
        """
        return await self.runner.commands.keep(task, by=by, reason=reason, command_id=command_id)

    async def retry(
        self, task: str, *, by: str = HOST, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        """Try a task again that was given up, with all its attempts; or try a task at once that waits for its next
        attempt. A cancelled task stays cancelled.

        Raises:
            NoSuchEntity, Refused, ValueError, Degraded, JournalError: as the class says.
        """
        return await self.runner.commands.retry(task, by=by, reason=reason, command_id=command_id)

    async def split(
        self,
        task: str,
        subtasks: Sequence[TaskConfig],
        *,
        by: str = HOST,
        reason: str = "",
        command_id: str | None = None,
    ) -> CommandResult:
        """Split a task into *subtasks*; the task is completed when the subtasks are.

        Raises:
            BadPlan: the subtasks do not fit into the plan.
            NoSuchEntity, Refused, ValueError, Degraded, JournalError: as the class says.
        """
        return await self.runner.commands.split(task, subtasks, by=by, reason=reason, command_id=command_id)

    async def block(
        self, task: str, on: Sequence[str], *, by: str = HOST, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        """Take a task from its session until everything in *on* is available: other tasks of the plan, or conditions
        that a person knows.

        Raises:
            NoSuchEntity, Refused, ValueError, Degraded, JournalError: as the class says.
        """
        return await self.runner.commands.block(task, on, by=by, reason=reason, command_id=command_id)

    async def unblock(
        self, task: str, *, by: str = HOST, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        """Release a blocked task: the condition that the task waited for is met.

        Raises:
            NoSuchEntity, Refused, ValueError, Degraded, JournalError: as the class says.
        """
        return await self.runner.commands.unblock(task, by=by, reason=reason, command_id=command_id)

    async def add(
        self, plan: Plan, *, by: str = HOST, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        """Run the tasks of *plan* that are new, beside the tasks of the run; ``subtasks`` of the result are their ids.
        *plan* may have other agents and workers, which new tasks use; a task that *plan* leaves out goes on.

        Raises:
            BadPlan: *plan* changes settings or tasks that are fixed while the run goes on, or every task has ended.
            Refused: the run has ended, or takes no more tasks since a critical task has failed.
        """
        check_type("plan", plan, Plan, "a file by load_plan(path)")
        return await self.runner.commands.add_plan(plan, by=by, reason=reason, command_id=command_id)

    async def add_tasks(
        self, tasks: Sequence[TaskConfig], *, by: str = HOST, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        """Run *tasks* beside the tasks of the run, with agents of its plan; ``subtasks`` of the result are their ids.

        Raises:
            BadPlan: a task is invalid in this plan, or its id is or was used in the run.
            Refused: the run has ended, or takes no more tasks since a critical task has failed.
            ValueError, TypeError, Degraded, JournalError: as the class says.
        """
        return await self.runner.commands.add_tasks(tasks, by=by, reason=reason, command_id=command_id)


def _cause_of(error: Exception) -> Exception:
    """Return the error of a run that a caller of the handle gets: of an exception group (the tasks of the run fail
    together) the first error of the journal, else the first member."""
    while isinstance(error, ExceptionGroup):
        lost = error.subgroup(JournalError)
        error = (lost or error).exceptions[0]
    return error
