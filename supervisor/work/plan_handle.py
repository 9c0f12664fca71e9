"""``run_plan``: run a plan on a supervisor, and steer it while it runs.

Theory of operation
-------------------
``run_plan`` starts the run as a task of the supervisor and returns a :class:`PlanHandle`::

    run = run_plan(sup, load_plan("plan.yaml"))
    await run.approve("deploy", by="ops")
    result = await run

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
from typing import Any

import anyio

from actors.waiting import any_of
from supervisor.diagnostics import causal_trace
from supervisor.diagnostics.causal_trace import Explanation
from supervisor.diagnostics.tree_view import Node, tree
from supervisor.host.api import Supervisor
from supervisor.plans.plan import Plan
from supervisor.plans.task_control import CommandResult
from supervisor.plans.tasks import TaskConfig
from supervisor.policies.argument_checks import check_type
from supervisor.policies.budgets import Amounts
from supervisor.policies.usage import UsageTotals
from supervisor.ports import JournalError
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import NoSuchEntity, Refused
from supervisor.sessions.journal_state import records_of
from supervisor.work.plan_runner import PlanRunner
from supervisor.work.results import PlanResult, TaskResult

HOST = "host"
"""Name under which a command of the embedding program is recorded, unless the program gives another name."""

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
    return PlanHandle(sup, plan, resume=resume, fresh=fresh)


class PlanHandle:
    """Handle of a running plan. ``await handle`` returns the :class:`PlanResult` of the plan.

    Awaiting raises:
        Refused: the last run of the plan has left nothing to resume, or the run was cancelled.
        JournalError: the journal was lost.
        ValueError: the supervisor has no agent of a name in the plan.

    An error of a run that is never awaited is only logged.

    The commands name a task of the run by its name in the plan, or by its id (``r1#fix``). They raise as
    :class:`~supervisor.plans.task_control.WorkControl` says: ``NoSuchEntity`` for a task that the plan does not have,
    ``Refused`` for a command that the state of the task does not allow now. *by* names the giver of a command in the
    records. A command with a *command_id* takes effect once, however often it is given.
    """

    def __init__(self, sup: Supervisor, plan: Plan, *, resume: bool, fresh: bool) -> None:
        self._sup, self._plan, self._resume, self._fresh = sup, plan, resume, fresh
        self._runner = PlanRunner(sup.core)
        self._scope = anyio.CancelScope()
        self.ended = anyio.Event()
        """Set when the run has ended, with success or without."""
        self._result: PlanResult | None = None
        self._error: Exception | None = None
        self._is_awaited = False
        sup.core.begin_plan(self, self._run)

    def __repr__(self) -> str:
        return f"<PlanHandle {self._plan.workstream!r}, {'ended' if self.ended.is_set() else 'running'}>"

    async def _run(self) -> None:
        try:
            with self._scope:
                self._result = await self._runner.run(self._plan, resume=self._resume, fresh=self._fresh)
        except Exception as error:
            self._error = _cause_of(error)
            if not self._is_awaited:
                _log.error("a plan failed", plan=self._plan.workstream, error=repr(self._error), exc_info=error)
        finally:
            self.ended.set()

    # ------------------------------------------------------------------ the end
    def __await__(self) -> Generator[Any, Any, PlanResult]:
        return self.wait().__await__()

    async def wait(self) -> PlanResult:
        """Wait for the end of the run, as ``await handle`` does: ``group.start_soon(handle.wait)``."""
        self._is_awaited = True
        try:
            await self.ended.wait()
        except anyio.get_cancelled_exc_class():
            self._is_awaited = False  # an error of the run reaches no caller from here on: it is logged
            self.cancel()
            with anyio.CancelScope(shield=True):
                await self.ended.wait()
            raise
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise Refused(f"the run of plan {self._plan.workstream!r} was cancelled")
        # Nothing is awaited from here on: the record becomes durable when this task waits next, and the host has the
        # result then.
        self._runner.note_reported("returned to the host")
        return self._result

    def cancel(self) -> None:
        """Give the run up: its sessions are aborted, and every task that has not ended is recorded as cancelled."""
        self._scope.cancel()

    # ------------------------------------------------------------------ what there is
    @property
    def run_id(self) -> str:
        """The id of the run, for the command line and for records (``r1``): ``""`` before the run has begun. A run that
        goes on with one that an earlier supervisor left has the id of that run."""
        return self._runner.run_id

    @property
    def results(self) -> Mapping[str, TaskResult]:
        """Results of the tasks that have ended so far, by the task's id."""
        return self._runner.results

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
        records = await records_of(self._sup.core.journal)
        for known in (self._runner.task_ids.get(entity_id, entity_id), entity_id):
            try:
                return causal_trace.why(records, known)
            except LookupError:
                continue
        raise NoSuchEntity(entity_id)

    async def usage(self) -> Mapping[str, Amounts]:
        """Return the amounts used (tokens, money, turns), by the id of each task, session and turn; an amount includes
        everything below the entity."""
        return UsageTotals(await records_of(self._sup.core.journal)).sums()

    # ------------------------------------------------------------------ commands
    async def approve(
        self, task: str, *, by: str = HOST, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        """Approve a planned task, or the result of a task; an approved result is merged."""
        return await self._runner.commands.approve(task, by=by, reason=reason, command_id=command_id)

    async def reject(self, task: str, *, reason: str, by: str = HOST, command_id: str | None = None) -> CommandResult:
        """Cancel a planned task, or reject the result of a task."""
        return await self._runner.commands.reject(task, by=by, reason=reason, command_id=command_id)

    async def cancel_task(
        self, task: str, *, by: str = HOST, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        """Cancel one task for good."""
        return await self._runner.commands.cancel(task, by=by, reason=reason, command_id=command_id)

    async def requeue(
        self, task: str, *, by: str = HOST, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        """Take a task in progress from its session, and let another session take the task."""
        return await self._runner.commands.requeue(task, by=by, reason=reason, command_id=command_id)

    async def unclaim(
        self, task: str, *, by: str = HOST, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        """Take a task that was claimed but not begun from its session."""
        return await self._runner.commands.unclaim(task, by=by, reason=reason, command_id=command_id)

    async def reset(
        self, task: str, *, by: str = HOST, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        """Close the circuit of a task's run and set its attempts to 0, so that the task is tried again."""
        return await self._runner.commands.reset(task, by=by, reason=reason, command_id=command_id)

    async def split(
        self,
        task: str,
        subtasks: Sequence[TaskConfig],
        *,
        by: str = HOST,
        reason: str = "",
        command_id: str | None = None,
    ) -> CommandResult:
        """Split a task into *subtasks*; the task is completed when the subtasks are."""
        return await self._runner.commands.split(task, subtasks, by=by, reason=reason, command_id=command_id)

    async def block(
        self, task: str, on: Sequence[str], *, by: str = HOST, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        """Take a task from its session until everything in *on* is available: other tasks of the plan, or conditions
        that a person knows."""
        return await self._runner.commands.block(task, on, by=by, reason=reason, command_id=command_id)

    async def unblock(
        self, task: str, *, by: str = HOST, reason: str = "", command_id: str | None = None
    ) -> CommandResult:
        """Release a blocked task: the condition that the task waited for is met."""
        return await self._runner.commands.unblock(task, by=by, reason=reason, command_id=command_id)

    async def add(self, plan: Plan) -> list[str]:
        """Run the tasks of *plan* that are new, beside the running tasks. Return the ids of the new tasks.

        Raises:
            BadPlan: *plan* changes settings or tasks that are fixed while the run goes on, or every task has ended.
            Refused: the run ended before it had begun.
        """
        check_type("plan", plan, Plan, "a file by load_plan(path)")
        await any_of(self._runner.begun, self.ended)
        if not self._runner.begun.is_set():
            raise Refused(f"the run of plan {self._plan.workstream!r} ended before it had begun")
        added = self._runner.check(plan)
        self._runner.add(plan)
        return added


def _cause_of(error: Exception) -> Exception:
    """Return the error of a run that a caller of the handle gets: of an exception group (the tasks of the run fail
    together) the first error of the journal, else the first member."""
    while isinstance(error, ExceptionGroup):
        lost = error.subgroup(JournalError)
        error = (lost or error).exceptions[0]
    return error
