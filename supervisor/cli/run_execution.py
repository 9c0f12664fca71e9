"""Execution of ``supervisor run``: run a plan with the control socket, signal handlers and live output.

Only the command line installs signal handlers and configures logging: an embedding program has its own. A plan is
checked before the journal is opened. ``cli/run.py`` has the command itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread

from supervisor.cli.live_view import TICK_S, Reporter, RunView, draws_table, view_for
from supervisor.cli.log_output import configure_logging, leave_exporters
from supervisor.cli.options import warn
from supervisor.cli.patient_output import unhindered_errors
from supervisor.cli.plan_input import STANDARD_INPUT, read_plan
from supervisor.cli.record_log import RecordLog
from supervisor.cli.run_controller import RunController
from supervisor.control.error_messages import DONE, WORK_FAILED, BadInput, WorkFailed, cause_of
from supervisor.control.http.options import HttpOptions
from supervisor.embedding.journals import read_state
from supervisor.embedding.runtime import close_sessions, open_in, reconfigure
from supervisor.host.api import Supervisor
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import BEGINNING, RecordId
from supervisor.plans import BadPlan, Plan
from supervisor.plans.earlier_runs import continued, resumed_ids
from supervisor.ports import EntityRow, JournalError
from supervisor.runtime.entity import Refused
from supervisor.work.plan_handle import PlanHandle
from supervisor.work.plan_runner import PlanRunner
from supervisor.work.previous_run import find_previous_run
from supervisor.work.results import PlanResult


class RunRequest(NamedTuple):
    """Options of ``supervisor run``."""

    plan: Path
    state_dir: Path
    workdir: Path
    backend: str
    as_json: bool
    verbose: int
    log_json: bool
    fresh: bool
    resume: bool
    no_plugins: bool
    fail_fast: bool
    instead: Mapping[str, str]
    """Agents of the catalogue that replace agents of the plan, by the agent's name in the plan."""
    http: HttpOptions | None
    """Options of the HTTP API; ``None``: it is not served."""

    def load(self) -> Plan:
        """Read and check the plan."""
        plan = read_plan(self.plan, installed=not self.no_plugins, instead=self.instead)
        return plan.model_copy(update={"fail_fast": True}) if self.fail_fast else plan

    def reload(self) -> Plan:
        """Read and check the plan again.

        Raises:
            BadPlan: the plan is invalid, or came from standard input.
        """
        if self.plan == STANDARD_INPUT:
            raise BadPlan("the plan came from standard input, and cannot be read again; run it from a file")
        return self.load()


def execute_run(request: RunRequest, state: StateDir) -> int:
    """Run the plan that *request* names, and return the exit status. The caller holds the lock of *state*.

    Raises:
        BadInput: the plan is invalid, or there is nothing to resume; nothing was started.
        WorkFailed: the journal was lost.
    """
    try:
        plan = request.load()
    except BadPlan as error:
        raise BadInput(str(error)) from None
    has_table = not request.as_json and draws_table(sys.stdout) and sys.stderr.isatty()
    configure_logging(verbose=request.verbose, as_json=request.log_json, has_table=has_table)
    # A Path raises an error where the name cannot be; opening the directory says why.
    if not request.resume and os.path.isdir(state.agents) and not os.path.exists(state.journal):
        warn(f"starting over: {state.journal} is missing, so no earlier run in {state.root} can be continued")
    with unhindered_errors():
        status: int = anyio.run(_run, request, plan, state, backend=request.backend)
    if plan.settings.telemetry.traces:
        leave_exporters(status)
    return status


async def _run(request: RunRequest, plan: Plan, state: StateDir) -> int:
    if request.resume:
        check_resumable(plan, state)
    last_seq, before = _earlier_runs(state)
    reporter = Reporter(after=last_seq, log=RecordLog().take if request.verbose else None)
    is_over = reporter.over.is_set
    make_view = partial(view_for, as_json=request.as_json, state=state, before=before, is_over=is_over)
    try:
        result = await _supervised(request, plan, state, reporter, make_view)
    except Exception as error:
        match cause_of(error):
            case JournalError() as lost if reporter.started:
                check = f" (`supervisor journal check {state.journal}`)" if state.journal.exists() else ""
                raise WorkFailed(f"the journal is lost, the run was given up: {lost}{check}") from error
            case Refused() as refusal:
                raise BadInput(str(refusal)) from error
        raise
    finally:
        reporter.close()
    return DONE if result.ok else WORK_FAILED


def check_resumable(plan: Plan, state: StateDir) -> None:
    """Check that the last run of the plan left work to resume.

    Raises:
        BadInput: no task of the plan was cancelled, given up or interrupted.
    """
    rows: list[EntityRow] = []
    if state.journal.exists():
        with read_state(state) as reader:
            rows = reader.entities()
    left = find_previous_run(plan, plan.settings, rows)
    if left is None or not (left.has_rest or continued(plan, plan.settings, rows)):
        words = f"nothing of this plan was cancelled, given up or interrupted in {state.root}"
        merge = f", or `supervisor merge {left.workstream}`" if left is not None and left.branch_of else ""
        raise BadInput(f"--resume: {words}; run it without --resume{merge}")


def _earlier_runs(state: StateDir) -> tuple[RecordId, list[EntityRow]]:
    """Return the number of the last record of earlier runs, and the entities of these runs; none if there is no
    journal."""
    # Path.exists() raises an error where the name cannot be; opening the journal says why.
    if not os.path.exists(state.journal):
        return BEGINNING, []
    with read_state(state) as reader:
        return reader.last_seq, reader.entities()


async def _supervised(
    request: RunRequest, plan: Plan, state: StateDir, reporter: Reporter, make_view: Callable[[], RunView]
) -> PlanResult:
    """Run the plan and print its result. Signal handlers and output stay active until the supervisor has ended.

    The result is printed after all sessions have ended, because it is the last line, and before the journal is closed,
    because the last record states that the result was printed.
    """
    async with anyio.create_task_group() as around:
        async with open_in(
            lambda: state,
            agents=plan.agents,
            settings=plan.settings,
            workdir=request.workdir,
            choose=(lambda rows: ()) if request.fresh else partial(resumed_ids, plan),
            http=request.http or False,
        ) as sup:
            reporter.start(sup.reader(), make_view)
            handle = PlanHandle(sup, plan)
            runner = handle.runner
            controller = RunController(sup.core, runner, load=request.reload, apply=partial(_apply, sup, request))
            controlling = await around.start(controller.run_until_cancelled)
            around.start_soon(_update_view, reporter, sup, runner)
            around.start_soon(_report_begin, runner, state)
            drains = False
            try:
                handle.start(resume=request.resume, fresh=request.fresh)
                result = await handle.outcome()
                drains = True
            finally:
                controller.closing(drains=drains)
                controlling.cancel()  # leaving the block stops it too, and that is no news
            await close_sessions(sup.core)  # what the sessions say as they end stands above the result
            reporter.over.set()
            if result.earlier:
                warn(
                    f"run {result.earlier} ended before its result could be shown: here it is, and nothing was started"
                )
            await anyio.to_thread.run_sync(reporter.begin, runner.run_id)  # the run may have been short
            if await anyio.to_thread.run_sync(partial(reporter.end, result)):
                runner.note_reported("printed")
        around.cancel_scope.cancel()
    return result


async def _report_begin(runner: PlanRunner, state: StateDir) -> None:
    """Print what this run continues, has merged or resumes, or why it starts anew, once the run has begun; then let
    ``supervisor wait`` answer about the run."""
    await runner.begun.wait()
    if runner.anew:
        rest = f"; --resume does only what it left: {runner.rest}" if runner.rest else ""
        warn(f"{runner.anew}{rest}")
    for how, words in (
        ("continuing the interrupted run", runner.taken_over),
        ("merged finished work", ", ".join(runner.merged)),
        ("resumed", runner.resumed),
    ):
        if words:
            warn(f"{how}: {words}")
    if runner.unshown:
        warn(f"starting over; not shown is the result of {runner.unshown}")
    # Not before its tasks are in the journal, where `supervisor wait` looks for them.
    await runner.plan_run.sup.journal_writer.durable()
    state.note_begun()


def _apply(sup: Supervisor, request: RunRequest, plan: Plan) -> None:
    sup.reload_tokens()  # first, since it may refuse
    reconfigure(sup, agents=plan.agents, settings=plan.settings, workdir=request.workdir)


async def _update_view(reporter: Reporter, sup: Supervisor, runner: PlanRunner) -> None:
    """Update the output again and again, in a thread, since the reader of the output may be slow. The pause is
    four times as long as the update, at least ``TICK_S`` and at most 2 s: a table of 10,000 tasks takes 0.2 to 0.5 s,
    and the sessions need the processor. The id of the run comes first; until it is known, only an outage of the
    journal is shown."""
    while True:
        began_s = anyio.current_time()
        show = reporter.show_outage
        if runner.begun.is_set():
            show = reporter.update
            await anyio.to_thread.run_sync(reporter.begin, runner.run_id, abandon_on_cancel=True)
        await anyio.to_thread.run_sync(show, sup.outage, abandon_on_cancel=True)
        await anyio.sleep(max(TICK_S, min(2.0, 4 * (anyio.current_time() - began_s))))
