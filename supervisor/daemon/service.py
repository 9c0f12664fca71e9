"""Service: run a daemon until it is told to end, with signal handlers and reports to systemd.

SIGTERM and SIGINT drain, the second one ends at once; SIGHUP reads the configuration again. The end leaves every run to
the next daemon: sockets are closed, the last records are on the disk, and the process exits without ending anything.
The shims of the agents end with it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

import anyio

from actors import ActorStopped
from supervisor.control.http.options import HttpOptions
from supervisor.control.process_setup import signals_to_handle
from supervisor.daemon.backlog_directory import BacklogDirectory
from supervisor.daemon.config import DaemonConfig
from supervisor.daemon.daemon import Daemon
from supervisor.daemon.reports import send_heartbeats, watch_disk
from supervisor.daemon.submissions import SubmissionStore
from supervisor.embedding.runtime import open_in
from supervisor.fleet.options import BadFleetOptions, FleetOptions
from supervisor.fleet.service import FleetService
from supervisor.host.api import Supervisor
from supervisor.journal.statedir import StateDir
from supervisor.plans.source import BadPlan
from supervisor.ports.logs import load_logger
from supervisor.ports.systemd import Notifier
from supervisor.runtime.entity import Refused
from supervisor.sessions.shutdown import LAST_RECORDS_S

if TYPE_CHECKING:
    from supervisor.triggers.service import TriggerService

CLOSE_S: Final = 30.0
"""Seconds for the last replies, the last records and the end of the process on a busy machine."""


class ServiceOptions(NamedTuple):
    """Options of a daemon: its configuration and the file of that (``None``: none), the working directory, the HTTP API
    (``None``: it is not served), and the fleet (``None``: there is none)."""

    config_path: Path | None
    config: DaemonConfig
    workdir: Path
    http: HttpOptions | None
    fleet: FleetOptions | None = None


async def serve(options: ServiceOptions, state: StateDir, say: Callable[[str], None]) -> NoReturn:
    """Run a daemon; the caller holds the lock of *state*. *say* prints a message for the operator. The process exits
    with status 0 when the daemon has been told to end.

    Raises:
        ValueError, WorkspaceError, StateDirError, JournalError: the daemon cannot start, or goes on no more
            (``open_supervisor``).
    """
    daemon = Daemon(options.config_path, options.config, options.workdir, SubmissionStore(state.submissions))
    if options.config.triggers:
        daemon.triggers = open_triggers(state, options.workdir, daemon)
    elif state.triggers.exists():
        say(f"{state.triggers} is not read: the daemon's configuration does not say triggers: true")
    systemd = Notifier()
    with anyio.open_signal_receiver(*signals_to_handle()) as signals:
        async with (
            _fleet_of(options, state) as fleet,
            open_in(
                lambda: state,
                agents=options.config.agents,
                settings=options.config.settings,
                workdir=options.workdir,
                http=options.http or False,
                prepare=daemon.prepare,
            ) as sup,
            anyio.create_task_group() as group,
        ):
            if fleet is not None:
                run = partial(fleet.run, sup.core.journal, sup.core.subscriptions.follow, sup.core.services.closing)
                with suppress(ActorStopped):  # the journal was lost meanwhile: leaving the block says so
                    await sup.core.services.start("fleet", run)
            await daemon.begin(sup, group)
            group.start_soon(send_heartbeats, sup.core, systemd)
            group.start_soon(watch_disk, sup.core, systemd)
            group.start_soon(_handle_signals, signals, daemon, systemd, say)
            if options.config.backlog:
                group.start_soon(BacklogDirectory(state.backlog, options.workdir, daemon).run)
            group.start_soon(_end_when_told, daemon, sup, systemd, say)
            systemd.ready()
            place = f", host {options.fleet.host_name} of fleet {options.fleet.name}" if options.fleet else ""
            say(f"serving on {state.root}, pid {os.getpid()}{place}")
            await sup.stopping.wait()  # the journal is lost, or a service has failed for good
            group.cancel_scope.cancel()
    raise AssertionError("the end of the block raises what has failed")


def open_triggers(state: StateDir, workdir: Path, daemon: Daemon) -> TriggerService:
    """Return the triggers of a daemon.

    Raises:
        ValueError: their file has an error, or their libraries are not installed.
    """
    try:
        from supervisor.triggers.service import TriggerService
    except ModuleNotFoundError as error:
        fix = "pip install 'supervisor-runtime[triggers]'"
        raise ValueError(f"triggers: the library {error.name} is not installed; {fix}") from None
    try:
        return TriggerService(state.triggers, workdir, state.root, daemon)
    except BadPlan as error:
        raise ValueError(str(error)) from None


@asynccontextmanager
async def _fleet_of(options: ServiceOptions, state: StateDir) -> AsyncIterator[FleetService | None]:
    """Join the fleet of *options*, if there is one, before anything is opened; close the connection at the end.

    Raises:
        BadFleetOptions: this host cannot join.
    """
    if options.fleet is None:
        yield None
        return
    service = await join_fleet(options.fleet, state)
    try:
        yield service
    finally:
        with anyio.CancelScope(shield=True):
            await service.close()


async def join_fleet(options: FleetOptions, state: StateDir) -> FleetService:
    """Join a fleet, and return the service of this host, which is to be run.

    Raises:
        BadFleetOptions: this host cannot join, or the library is not installed.
    """
    load_logger()
    try:
        from supervisor.fleet.nats_engine import NatsEngine  # here, since it needs an extra
    except ModuleNotFoundError as error:
        fix = "pip install 'supervisor-runtime[fleet]'"
        raise BadFleetOptions(f"fleet: the library {error.name} is not installed; {fix}") from None
    engine = NatsEngine(options)
    service = FleetService(options, engine, state.fleet, version("supervisor-runtime"))
    try:
        await service.join()
    except BaseException:
        with anyio.CancelScope(shield=True):
            await service.close()
        raise
    return service


async def _handle_signals(signals: object, daemon: Daemon, systemd: Notifier, say: Callable[[str], None]) -> None:
    async for number in signals:  # type: ignore[attr-defined]
        if number == signal.SIGHUP:
            await _reload(daemon, systemd, say)
        else:
            daemon.stop(by=f"signal:{signal.Signals(number).name}", now=False)


async def _reload(daemon: Daemon, systemd: Notifier, say: Callable[[str], None]) -> None:
    if daemon.ending.is_set():
        say("not reloaded: the daemon is ending")
        return
    systemd.reloading()
    try:
        say(f"reloaded: {await daemon.reload(by='signal:SIGHUP')}")
    except (BadPlan, Refused) as error:
        say(f"not reloaded, the last good configuration stays in force: {error}")
    finally:
        systemd.ready()


async def _end_when_told(daemon: Daemon, sup: Supervisor, systemd: Notifier, say: Callable[[str], None]) -> None:
    """Wait until the daemon is told to end; then drain, write the last records, and exit."""
    await daemon.ending.wait()
    drain_s = sup.settings.drain_s
    systemd.stopping("draining", drain_s + CLOSE_S)
    if daemon.at_work and not daemon.ending_now.is_set():
        say(f"draining: no task starts, turns in progress have {drain_s:g} s; signal again to end now")
    await daemon.drained()
    systemd.stopping("closing", CLOSE_S)
    await sup.core.services.close()
    with anyio.move_on_after(LAST_RECORDS_S):
        await daemon.finish_ended()
    with anyio.move_on_after(LAST_RECORDS_S):
        if await sup.core.journal_writer.durable():
            daemon.remove_ended()
    left = daemon.open_runs
    say(f"ended; the next daemon goes on with {', '.join(left)}" if left else "ended; no run is open")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)
