"""``supervisor run``: run a plan with the control socket, signal handlers and live output.

This is the only module that installs signal handlers or configures logging, and only the command line uses it: an
embedding program has its own. A plan is checked before anything is opened; for an invalid plan nothing is written.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import anyio
import anyio.to_thread
import click

from supervisor.cli.live_view import TICK_S, Reporter, view_for
from supervisor.cli.options import PATH, check_workdir, examples, json_option, state_dir_option, verbose_option, warn
from supervisor.cli.plan_input import STANDARD_INPUT, read_plan
from supervisor.cli.record_log import LEVELS, RecordLog
from supervisor.cli.run_controller import RunController
from supervisor.control.error_messages import DONE, WORK_FAILED, BadInput, WorkFailed, cause_of
from supervisor.embedding.runtime import close_sessions, open_supervisor, reconfigure
from supervisor.host.api import Supervisor
from supervisor.journal.reader import JournalReader, last_seq_of
from supervisor.journal.statedir import StateDir
from supervisor.plans import BadPlan, Plan
from supervisor.ports import EntityRow, JournalError
from supervisor.recovery.resumable import continued, resumed_ids
from supervisor.runtime.entity import Refused
from supervisor.work.plan_runner import PlanRunner
from supervisor.work.previous_run import find_previous_run
from supervisor.work.results import PlanResult


class _Request(NamedTuple):
    """Options of ``supervisor run``."""

    plan: Path
    state_dir: Path
    workdir: Path
    backend: str
    as_json: bool
    verbose: int
    fresh: bool
    resume: bool
    no_plugins: bool
    fail_fast: bool
    instead: Mapping[str, str]
    """Agents of the catalogue that replace agents of the plan, by the agent's name in the plan."""

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


@click.command(
    "run",
    epilog=examples(
        "supervisor run plan.yaml",
        "supervisor run plan.yaml --agent worker=codex --workdir project",
        "supervisor run - < plan.yaml",
    ),
)
@click.argument("plan", type=PATH, metavar="PLAN")
@state_dir_option
@json_option
@click.option("--backend", type=click.Choice(["asyncio", "trio"]), default="asyncio", show_default=True)
@click.option("--workdir", type=PATH, default=Path(), show_default=True, help="Directory in which the agents work.")
@click.option("--fresh", is_flag=True, help="Start over: end what an interrupted run left, and continue none of it.")
@click.option(
    "--resume",
    is_flag=True,
    help="Run the tasks that the last run did not close; cancelled and given-up tasks start from their checkpoints.",
)
@click.option("--fail-fast", is_flag=True, help="End the run at the first task that has failed for good.")
@click.option("--no-plugins", is_flag=True, help="Use no installed plug-in.")
@click.option(
    "--agent",
    "instead",
    multiple=True,
    metavar="NAME=KNOWN",
    help="Replace an agent of the plan by a known one: worker=codex, or worker=gemini:jsonl to choose the adapter.",
)
@verbose_option
def run_command(workdir: Path, instead: tuple[str, ...], **given: Any) -> int:
    """PLAN is a YAML file, or - for standard input. Tasks run in the order of their dependencies. The first Ctrl-C
    drains: no task starts, tasks in progress may finish. The second stops everything. If an earlier run of this plan
    was interrupted, this run continues it."""
    check_workdir(workdir)
    if given["fresh"] and given["resume"]:
        raise BadInput("--fresh, --resume: one starts over, the other continues; give one of them")
    request = _Request(workdir=workdir.resolve(), instead=_replacements(instead), **given)
    try:
        plan = request.load()
    except BadPlan as error:
        raise BadInput(str(error)) from None
    configure_logging(verbose=request.verbose)
    state = StateDir(request.state_dir)
    # A Path raises an error where the name cannot be; opening the directory says why.
    if not request.resume and os.path.isdir(state.agents) and not os.path.exists(state.journal):
        warn(f"starting over: {state.journal} is missing, so no earlier run in {state.root} can be continued")
    return anyio.run(_run, request, plan, backend=request.backend)


def _replacements(given: Sequence[str]) -> Mapping[str, str]:
    """Return the agents of the catalogue that replace agents of the plan.

    Raises:
        BadInput: one of *given* is not ``NAME=KNOWN``, or a name is given twice.
    """
    found: dict[str, str] = {}
    for one in given:
        name, _, known = one.partition("=")
        if not (name and known):
            raise BadInput(f"--agent {one}: give NAME=KNOWN, for example worker=codex")
        if name in found:
            raise BadInput(f"--agent {one}: {name} is {found[name]} already; give it once")
        found[name] = known
    return found


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Handler that writes to the standard error of the moment: while a table is drawn, the live view replaces it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def configure_logging(*, verbose: int) -> None:
    """Send logs of the runtime to standard error; an embedding program configures logging by itself. *verbose*: 0 for
    warnings, 1 for what happens, 2 for everything."""
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("supervisor")
    logger.handlers = [handler]
    logger.setLevel(LEVELS[min(verbose, 2)])
    logger.propagate = False


async def _run(request: _Request, plan: Plan) -> int:
    state = StateDir(request.state_dir)
    if request.resume:
        check_resumable(plan, state)
    reporter = Reporter(state.journal, after=_last_seq(state), log=RecordLog().take if request.verbose else None)
    try:
        result = await _supervised(request, plan, state, reporter)
    except Exception as error:
        match cause_of(error):
            case JournalError() as lost if reporter.started:
                raise WorkFailed(f"the journal is lost, the run was given up: {lost}") from error
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
        with JournalReader(state.journal) as reader:
            rows = reader.entities()
    left = find_previous_run(plan, plan.settings, rows)
    if left is None or not (left.has_rest or continued(plan, plan.settings, rows)):
        words = f"nothing of this plan was cancelled, given up or interrupted in {state.root}"
        raise BadInput(f"--resume: {words}; run it without --resume")


def _last_seq(state: StateDir) -> int:
    """Return the number of the last record of earlier runs; 0 if there is no journal."""
    # Path.exists() raises an error where the name cannot be; opening the journal says why.
    return last_seq_of(state.journal) if os.path.exists(state.journal) else 0


async def _supervised(request: _Request, plan: Plan, state: StateDir, reporter: Reporter) -> PlanResult:
    """Run the plan and print its result. Signal handlers and output stay active until the supervisor has ended.

    The result is printed after all sessions have ended, because it is the last line, and before the journal is closed,
    because the last record states that the result was printed.
    """
    async with anyio.create_task_group() as around:
        async with open_supervisor(
            request.state_dir,
            agents=plan.agents,
            settings=plan.settings,
            workdir=request.workdir,
            choose=(lambda rows: ()) if request.fresh else partial(resumed_ids, plan),
        ) as sup:
            reporter.start(partial(view_for, as_json=request.as_json, state=state))
            runner = PlanRunner(sup.core)
            controller = RunController(sup.core, runner, load=request.reload, apply=partial(_apply, sup, request))
            controlling = await around.start(controller.run_until_cancelled)
            around.start_soon(_update_view, reporter, sup)
            around.start_soon(_report_takeover, runner)
            drains = False
            try:
                result = await runner.run(plan, resume=request.resume, fresh=request.fresh)
                drains = True
            finally:
                controller.closing(drains=drains)
                controlling.cancel()  # leaving the block stops it too, and that is no news
            await close_sessions(sup.core)  # what the sessions say as they end stands above the result
            if result.earlier:
                warn(f"{result.earlier} ended before its result could be shown: here it is, and nothing was started")
            if await anyio.to_thread.run_sync(partial(reporter.end, result)):
                runner.note_reported("printed")
        around.cancel_scope.cancel()
    return result


async def _report_takeover(runner: PlanRunner) -> None:
    """Print what this run continues, has merged or resumes, or why it starts anew, once the run has begun."""
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


def _apply(sup: Supervisor, request: _Request, plan: Plan) -> None:
    reconfigure(sup, agents=plan.agents, settings=plan.settings, workdir=request.workdir)


async def _update_view(reporter: Reporter, sup: Supervisor) -> None:
    """Update the output again and again, in a thread, since the reader of the output may be slow. The pause is
    four times as long as the update, at least ``TICK_S`` and at most 2 s: a table of 10,000 tasks takes 0.2 to 0.5 s,
    and the sessions need the processor."""
    while True:
        began_s = anyio.current_time()
        await anyio.to_thread.run_sync(reporter.update, sup.outage, abandon_on_cancel=True)
        await anyio.sleep(max(TICK_S, min(2.0, 4 * (anyio.current_time() - began_s))))
