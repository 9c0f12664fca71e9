"""Histories of plans, read from the results of their earlier runs.

Theory of operation
-------------------
The last fact about the results of a run (``reporting.RESULT``, in the log of its workstream) has the outcome, the
agent, the size, the time and the cost of every task. The history of a plan is what these facts of its newest
``RUNS_MAX`` runs say, in the journal or in an archive. So the history is as durable as the journal, is bounded, and is
written nowhere else.

A running supervisor reads the facts once for each plan (``PlanHistories``), and not before a plan runs whose tasks have
a size. Then it goes on in memory: each completed attempt counts at once, also for other runs of the plan at the same
time. A supervisor that continues a run adds the attempts of that run that the journal has.

What does not fit teaches nothing, and a warning names the file: an archive that is missing or damaged, a result that
another version has written. Nothing is changed or removed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles.task import TaskEnd
from supervisor.lifecycles.types import Kind
from supervisor.lifecycles.workstream import WorkstreamData
from supervisor.ports import JournalError, Reader
from supervisor.ports.logs import get_logger
from supervisor.work.attempt_limits import kind_of
from supervisor.work.plan_run import PlanRun
from supervisor.work.reporting import RESULT
from supervisor.work.task_history import RUNS_MAX, RecordedTask, TaskHistory
from supervisor.work.task_usage import TaskUsage
from supervisor.work.workstream_export import records_since

PLANS_MAX: Final = 256
"""Number of plans whose history a supervisor keeps in memory; the history of any other plan is read again."""
NAMED_MAX: Final = 5
"""Number of runs that a warning names."""
_log = get_logger()


def read_history(reader: Reader, plan: str, *, where: str) -> TaskHistory:
    """Return the history of the plan with that name. *where* is the state directory, for the warnings."""
    runs, warnings = read_runs(reader)
    return history_of(reader, runs.get(plan, ()), warnings, where=where)


def read_runs(reader: Reader) -> tuple[dict[str, list[str]], list[str]]:
    """Return the ids of the newest runs of each plan, oldest first, by the name of the plan, and a warning if archives
    could not be read."""
    warnings = list[str]()
    try:
        rows = reader.entities(ended_kinds=(Kind.WORKSTREAM,), archived=True)
    except JournalError as error:
        rows = reader.entities(ended_kinds=(Kind.WORKSTREAM,))
        warnings.append(f"runs in archives teach nothing: {error}")
    runs: dict[str, list[str]] = {}
    for row in sorted((one for one in rows if one.kind == Kind.WORKSTREAM), key=lambda one: one.born_seq):
        with suppress(msgspec.ValidationError):  # of another version; its result would not fit either
            runs.setdefault(msgspec.json.decode(row.data, type=WorkstreamData).name, []).append(row.id)
    return {name: ids[-RUNS_MAX:] for name, ids in runs.items()}, warnings


def history_of(reader: Reader, runs: Iterable[str], warnings: Sequence[str], *, where: str) -> TaskHistory:
    """Return the history that the results of these *runs*, oldest first, make. *warnings* are those about the runs."""
    past, found, unfit = list[RecordedTask](), list(warnings), dict[str, str]()
    archived = not warnings
    for run in runs:
        try:
            results = [one for one in reader.events(run, archived=archived) if one.event == RESULT]
            # A run without a result was given up, or goes on.
            tasks = msgspec.convert(results[-1].metadata, _Result).tasks if results else ()
        except JournalError as error:
            found.append(f"run {run} teaches nothing: {error}")
        except msgspec.ValidationError as error:
            unfit[run] = str(error)
        else:
            past += [one for one in tasks if one.launches]  # else it was not begun, or done in the run before
    if unfit:
        runs_named = ", ".join([*unfit][:NAMED_MAX]) + (" and others" if len(unfit) > NAMED_MAX else "")
        why = f"their results in the journal of {where} do not fit this version"
        found.append(f"runs {runs_named} teach nothing: {why} ({next(iter(unfit.values()))})")
    return TaskHistory(past, found)


class _Result(msgspec.Struct, frozen=True):
    """Fact about the results of a run, as far as the history needs it."""

    tasks: list[RecordedTask]


async def recall_history(plan_run: PlanRun, *, continues: bool = False) -> None:
    """Give the run the history of its plan, if a task has a size: time limits depend on it. *continues*: the run was
    begun under an earlier supervisor, and the attempts that it has completed count too.

    Raises:
        JournalError: the records of the run cannot be read.
    """
    executions = [one for one in plan_run.executions.values() if one.is_opened or one.earlier_id]
    sizes = {one: kind.words for one in executions if (kind := kind_of(one.task)) is not None}
    if not sizes:
        return
    plan, run = plan_run.plan.workstream, plan_run.workstream.id
    history = plan_run.history = await plan_run.sup.part(PlanHistories).of(plan, run)
    if continues:
        used = TaskUsage()
        async for record in records_since(plan_run.sup, plan_run.workstream.born_seq):
            used.take(record)
        for execution, size in sizes.items():
            agent, took_s = used.attempt(execution.id)
            if took_s and execution.result is not None and execution.result.outcome == TaskEnd.COMPLETED:
                history.note(execution.name, agent, size, took_s)


class PlanHistories:
    """Histories of the plans that run on *sup*, by the names of the plans."""

    def __init__(self, sup: SupervisorCore) -> None:
        self._sup = sup
        self._runs: dict[str, list[str]] | None = None
        """The newest runs of each plan; ``None`` before the first history is read."""
        self._warnings: Sequence[str] = ()
        self._known: OrderedDict[str, TaskHistory] = OrderedDict()

    async def of(self, plan: str, run: str) -> TaskHistory:
        """Return the history of the plan with that name, for its run *run*, which has begun."""
        if plan not in self._known:
            read = await self._read(plan, run)
            if self._known.setdefault(plan, read) is read:  # no other run of the plan was faster
                for words in read.warnings:
                    _log.warning("the history of a plan is read in part", plan=plan, why=words)
        self._known.move_to_end(plan)
        if len(self._known) > PLANS_MAX:
            self._known.popitem(last=False)
        if self._runs is not None and run not in (ids := self._runs.setdefault(plan, [])):
            ids.append(run)
            del ids[:-RUNS_MAX]
        return self._known[plan]

    async def _read(self, plan: str, run: str) -> TaskHistory:
        """Read what earlier runs of the plan have taught. The run itself may have a result that an earlier supervisor
        has recorded; its attempts are counted by ``recall_history``."""

        def read(reader: Reader) -> TaskHistory:
            if self._runs is None:  # once: there may be many archives
                self._runs, self._warnings = read_runs(reader)
            earlier = [one for one in self._runs.get(plan, ()) if one != run]
            return history_of(reader, earlier, self._warnings, where=self._sup.state_dir)

        try:
            return await self._sup.journal.read(self._sup.subscriptions.follow, read)
        except JournalError as error:
            return TaskHistory(warnings=[f"earlier runs teach nothing: {error}"])
