"""``supervisor run``: a plan, the runtime, the control socket, signals and progress put together.

This is the only place that installs signal handlers or configures logging, and only the command line comes here: a
host that embeds the runtime keeps its own. A plan is checked before anything is opened; nothing is written for a bad
one.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from contextlib import suppress

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from supervisor.config import BadPlan, Plan, load_plan
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.plan_runner import PlanResult, run_plan
from supervisor.ports import JournalError
from supervisor.runtime import Supervisor, open_supervisor
from supervisor.surfaces.cli import RunRequest
from supervisor.surfaces.control import serve_control
from supervisor.surfaces.failure import DONE, WORK_FAILED, BadInput, WorkFailed, cause_of
from supervisor.surfaces.live import TICK_S, Reporter, teller_for

__all__ = ["configure_logging", "run"]


def run(request: RunRequest) -> int:
    """Run a plan to its end; the exit status.

    Raises:
        BadInput, StateDirError, JournalError: nothing was started.
        WorkFailed: the run could not be finished.
    """
    try:
        plan = load_plan(request.plan)
    except BadPlan as error:
        raise BadInput(str(error)) from None
    configure_logging(verbose=request.verbose)
    return anyio.run(_run, request, plan, backend=request.backend)


def configure_logging(*, verbose: bool) -> None:
    """Logs of the runtime go to standard error; a library would not decide that."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("supervisor")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    logger.propagate = False


async def _run(request: RunRequest, plan: Plan) -> int:
    state = StateDir(request.state_dir)
    reporter = Reporter(state.journal, after=_last_seq(state))
    try:
        result = await _supervised(request, plan, state, reporter)
    except Exception as error:
        if reporter.started and isinstance(cause_of(error), JournalError):
            raise WorkFailed(f"the journal failed, the run was given up: {cause_of(error)}") from error
        raise
    finally:
        reporter.close()
    return DONE if result.ok else WORK_FAILED


def _last_seq(state: StateDir) -> int:
    """The number of the last record of the runs before this one."""
    if not os.path.exists(state.journal):  # Path.exists() raises where the name cannot be; opening it says why
        return 0
    with JournalReader(state.journal) as reader:
        return reader.last_seq


async def _supervised(request: RunRequest, plan: Plan, state: StateDir, reporter: Reporter) -> PlanResult:
    """Run the plan. The socket, the signals and the progress stay until the supervisor has closed."""
    closing, closed = anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as around:
        async with open_supervisor(
            request.state_dir, agents=plan.agents, settings=plan.settings, workdir=request.workdir
        ) as sup:
            reporter.start(teller_for(as_json=request.as_json, state=state))
            await around.start(_serve, state, sup, closing, closed)
            notices = _Notices(plan.drain_s)
            await around.start(_watch_signals, sup, notices)
            watching = await around.start(_watch_stops, sup, notices)
            around.start_soon(_report, reporter)
            try:
                result = await run_plan(sup, plan)
            finally:
                watching.cancel()  # leaving the block stops it too, and that is no news
        closing.set()
        await closed.wait()
        around.cancel_scope.cancel()
    reporter.end(list(result.tasks.values()), ok=result.ok)
    return result


async def _serve(
    state: StateDir,
    sup: Supervisor,
    closing: anyio.Event,
    closed: anyio.Event,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    path = state.control_socket
    await serve_control(path, sup, closing=closing, task_status=task_status)
    closed.set()


class _Notices:
    """What the terminal of the run is told of its stop, each thing once, whoever asked for it."""

    def __init__(self, drain_s: float) -> None:
        self._drain_s = drain_s
        self._said: set[str] = set()

    def draining(self) -> None:
        self._once(
            f"draining: no task starts any more, those under way have {self._drain_s:g} s;"
            " signal again to stop everything now"
        )

    def stopping(self) -> None:
        self._once("stopping everything now")

    def _once(self, words: str) -> None:
        if words not in self._said:
            self._said.add(words)
            _say(words)


async def _watch_signals(
    sup: Supervisor, notices: _Notices, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """The first signal drains, every other one stops everything now."""
    with anyio.open_signal_receiver(*_signals()) as signals:
        task_status.started()
        now = False
        async for number in signals:
            notices.stopping() if now else notices.draining()
            await sup.stop(now=now, actor=f"signal:{signal.Signals(number).name}")
            now = True


def _signals() -> list[signal.Signals]:
    """SIGHUP comes when the terminal is closed; under ``nohup`` it is ignored, and that stays so."""
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


async def _watch_stops(
    sup: Supervisor, notices: _Notices, *, task_status: TaskStatus[anyio.CancelScope] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Tell of a stop that was asked for from another terminal, until the scope handed out is cancelled."""
    with anyio.CancelScope() as scope:
        task_status.started(scope)
        await sup.stopping.wait()
        if sup.failure is None and not sup.stop_now.is_set():
            notices.draining()
        await sup.stop_now.wait()
        if sup.failure is None:
            notices.stopping()


def _say(words: str) -> None:
    with suppress(OSError):
        print(f"supervisor: {words}", file=sys.stderr, flush=True)


async def _report(reporter: Reporter) -> None:
    """Have the progress told, in a thread: whoever reads it may be slow."""
    while True:
        await anyio.to_thread.run_sync(reporter.look, abandon_on_cancel=True)
        await anyio.sleep(TICK_S)
