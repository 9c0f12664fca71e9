"""Composition root: ``open_supervisor`` assembles a supervisor and runs it for the length of a block.

The supervisor installs no signal handlers, no logging configuration and no event-loop policy. Leaving the block
normally drains: open requests are finished within the drain deadline. Leaving the block by an exception, or by a
cancellation, aborts every session with that cause, within the stage budgets. In either case nothing is left running.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from actors import ActorStopped, Restart, open_system
from actors.waiting import to_the_end
from supervisor.agents.codecs import adapters, codec_for
from supervisor.control.http.options import BadHttpOptions, HttpOptions, listening
from supervisor.control.server import serve_control
from supervisor.host.api import Supervisor
from supervisor.host.dependencies import Dependencies
from supervisor.host.factories import WALL, contained, profile_of, real_parts, workspace_of
from supervisor.host.journal_services import compact_periodically, watch_journal
from supervisor.host.notice_targets import NoticeTargets
from supervisor.host.notifications import Notifications
from supervisor.host.supervision import SupervisorCore
from supervisor.journal.memory import MemoryJournal
from supervisor.journal.sqlite import SqliteJournal
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.record_ids import id_before
from supervisor.plans import AgentConfig, Settings
from supervisor.plans.settings import WorktreeConfig
from supervisor.plugins import Plugins
from supervisor.plugins.loading import installed
from supervisor.policies.argument_checks import check_items, check_type, check_types
from supervisor.ports import EntityRow, Journal
from supervisor.ports.agent_profile import AgentFunction, AgentProfile
from supervisor.ports.logs import get_logger, load_logger
from supervisor.processes.host import ShimHost
from supervisor.runtime.availability import RetryingProcessHost
from supervisor.sessions.approval_queue import OnPermission
from supervisor.sessions.shutdown import LAST_RECORDS_S
from supervisor.work.one_merge import merge_run
from supervisor.work.takeover import Choose, end_recovered_work, take_over
from supervisor.workspaces.git import GitWorkspaces
from supervisor.workspaces.git_command import CommitStyle

_log = get_logger()

Prepare = Callable[[SupervisorCore, Sequence[EntityRow]], Awaitable[None]]
"""Function that is given a supervisor before the takeover of an earlier one's work, and all entities of the journal."""


@asynccontextmanager
async def open_supervisor(
    state_dir: Path | str | None = None,
    *,
    agents: Mapping[str, AgentConfig | AgentFunction] | None = None,
    settings: Settings | None = None,
    workdir: Path | str | None = None,
    choose: Choose | None = None,
    plugins: Sequence[object] = (),
    on_permission: OnPermission | None = None,
    journal: Journal | None = None,
    control: bool = True,
    http: bool | HttpOptions = False,
    stop_cancels_host: bool = False,
) -> AsyncIterator[Supervisor]:
    """Run a supervisor for as long as the block lasts.

    Args:
        state_dir: directory of the journal, the transcripts and the lock; ``None``: in memory only.
        agents: agents by name, for :meth:`Supervisor.start_session`: programs, or async functions that are called
            with an :class:`AgentTurn` for each prompt.
        settings: limits, the abort policy, the drain deadline.
        workdir: working directory of agents without a ``cwd`` of their own; by default the current directory.
        choose: function that returns the ids of the sessions and tasks of a dead supervisor that may be continued,
            given every entity of the journal. By default all may be, as ``settings.recovery`` says.
        plugins: modules or objects with hook implementations (docs/how-to/plugins.md), beside the installed plug-ins.
        on_permission: function that is called for permission requests for which the agent's policy says ``ask``
            (docs/how-to/permissions.md); an operator may answer first.
        journal: journal to use instead of one in memory, closed when the block is left. A state directory has its own.
        control: serve the control socket of the state directory, so that ``supervisor tree``, ``abort``, ``send`` and
            the other commands work on this supervisor from a terminal. Only this user, and root, may connect.
        http: serve the HTTP API on ``runtime/http.sock`` of the state directory, for this user and root, and with
            :class:`HttpOptions` over TCP, too. It needs the extra ``http`` (docs/how-to/http.md).
        stop_cancels_host: cancel the code of the block after a stop (:meth:`Supervisor.stop`, ``supervisor stop``), as
            soon as the drain is over; the block is then left normally. By default a stop never cancels the code of the
            block: the code waits for ``sup.stopping``.

    An error of the block's code, and a cancellation or Ctrl-C that reaches the code, are raised as they are, after
    every session was aborted (docs/how-to/embed.md).

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: both *state_dir* and *journal* are given; *settings* ask for worktrees without a state directory,
            for graduated access without worktrees, or for telemetry whose library, or state directory, is missing; an
            agent's adapter is unknown; ``settings.plugins`` names a plug-in that is not installed; the HTTP API cannot
            be served as *http* says.
        WorkspaceError: git cannot make worktrees of *workdir*.
        StateDirBusy, StateDirError: the state directory is in use, or cannot be used.
        JournalError: the journal cannot be read, or was written by a newer version. At the end of the block: the
            journal failed for good, or its disk was still down.
        JournalLost: at the end of the block: the journal or its lock was deleted or replaced meanwhile, or another
            program has written into the journal. Every session was ended then, and open requests have failed.
        ServiceFailed: at the end of the block: a service of the supervisor crashed too often; every session was ended.
    """
    check_types(str, Path, state_dir=state_dir, workdir=workdir)
    check_types(Mapping, agents=agents)
    check_types(Settings, settings=settings)
    check_types(Journal, journal=journal)
    check_items("plugins", plugins, object)
    check_type("control", control, bool)
    if not isinstance(http, bool):
        check_type("http", http, HttpOptions)
    check_type("stop_cancels_host", stop_cancels_host, bool)
    for name, function in (("choose", choose), ("on_permission", on_permission)):
        if function is not None and not callable(function):
            check_type(name, function, "a function")
    if state_dir is not None and journal is not None:
        raise ValueError("journal: a state directory has its own; give state_dir or journal, not both")
    if http and state_dir is None:
        raise ValueError("http: its socket lies in the state directory; give state_dir, or mount create_app(sup)")
    async with open_in(
        None if state_dir is None else partial(StateDir.open, Path(state_dir)),
        agents=agents,
        settings=settings,
        workdir=workdir,
        choose=choose,
        plugins=plugins,
        on_permission=on_permission,
        journal=journal,
        control=control,
        http=http,
        stop_cancels_host=stop_cancels_host,
    ) as sup:
        yield sup


@asynccontextmanager
async def open_in(
    open_directory: Callable[[], StateDir] | None,
    *,
    agents: Mapping[str, AgentConfig | AgentFunction] | None = None,
    settings: Settings | None = None,
    workdir: Path | str | None = None,
    choose: Choose | None = None,
    plugins: Sequence[object] = (),
    on_permission: OnPermission | None = None,
    journal: Journal | None = None,
    control: bool = True,
    http: bool | HttpOptions = False,
    stop_cancels_host: bool = False,
    prepare: Prepare | None = None,
) -> AsyncIterator[Supervisor]:
    """Run a supervisor, as :func:`open_supervisor` does, in the state directory that *open_directory* returns. The
    directory is opened after the other arguments are checked; the caller may hold its lock already. *prepare* is
    awaited before an earlier supervisor's sessions are taken over; whoever gives it takes plans of other directories,
    whose repositories have worktrees too."""
    load_logger()
    settings = settings or Settings()
    where = _absolute(workdir)
    profiles = {name: profile_of(name, config, where) for name, config in (agents or {}).items()}
    async with AsyncExitStack() as stack:
        _check_access(settings)
        _check_worktree(settings)
        _check_telemetry(settings)
        if settings.telemetry.files and open_directory is None:
            raise ValueError(
                "settings.telemetry.files: they lie in the state directory; give state_dir, or set it to false"
            )
        plugged = await _plugged(settings.plugins, plugins)
        stack.push_async_callback(plugged.close)
        _check_adapters(profiles, plugged)
        opened = open_directory() if open_directory is not None else None
        if opened is not None:
            stack.enter_context(opened.lock())
        serve_http = stack.enter_context(_http_service(opened, http)) if opened is not None and http else None
        if opened is not None:
            journal = await SqliteJournal.open(opened.journal, jsonl=opened.transitions, possession=opened.possession)
        elif journal is None:
            journal = MemoryJournal()
        stack.push_async_callback(journal.close)
        containment = await contained(opened, pid_namespaces=settings.pid_namespaces)
        host = await stack.enter_async_context(ShimHost(containment))
        processes = RetryingProcessHost(host, WALL)
        workspace = await workspace_of(settings, opened, where, processes, several=prepare is not None)
        parts = real_parts(journal, opened, host, processes, workspace, where)
        told = opened.runtime / "told.json" if opened is not None else None
        parts = parts._replace(notices=NoticeTargets(processes, str(where), told))
        prepared = partial(_prepare_telemetry, opened, prepare) if settings.telemetry.is_on else prepare
        sup = await stack.enter_async_context(
            supervise(parts, profiles, settings, choose, plugged, on_permission, prepared)
        )
        if opened is not None and control:
            serve = partial(serve_control, opened.control_socket, sup, closing=sup.core.services.closing)
            try:
                await sup.core.services.start("control", serve)
            except ActorStopped:
                pass  # the journal was lost meanwhile: leaving the block says so
            except OSError as error:  # sessions that were just taken over must not be ended for that
                _log.warning("no control socket: no command can reach this supervisor", why=str(error))
        if serve_http is not None:
            with suppress(ActorStopped):  # as above
                await sup.core.services.start("http", partial(serve_http, sup, closing=sup.core.services.closing))
        if opened is not None and control:
            await _prepare_page(sup)
        with anyio.CancelScope() as block:
            if stop_cancels_host:
                sup.core.registry.system.group.start_soon(_cancel_after_drain, sup.core, block)
            yield sup


@contextmanager
def _http_service(opened: StateDir, http: bool | HttpOptions) -> Iterator[Callable[..., Coroutine[Any, Any, None]]]:
    """Bind the sockets of the HTTP API, before anything of an earlier supervisor is taken over; yield the loop of the
    service."""
    options = http if isinstance(http, HttpOptions) else HttpOptions()
    try:
        from supervisor.control.http.serving import serve_http, tls_context  # here, since it needs an extra
    except ImportError as error:
        missing = f"http: {error.name} is not installed; `pip install 'supervisor-runtime[http]'` brings it"
        raise BadHttpOptions(missing) from None
    tls = tls_context(options)
    with listening(opened.http_socket, options) as sockets:

        def serve(sup: Supervisor, **given: Any) -> Coroutine[Any, Any, None]:
            sup.core.read_tokens_again = sockets.tokens.read_again if sockets.tokens is not None else None
            return serve_http(sup, sockets, options, tls=tls, **given)

        yield serve


async def _prepare_page(sup: Supervisor) -> None:
    """Let *sup* serve the page for people once somebody asks for a link, or at once if pages of an earlier supervisor
    are open."""

    async def make_link() -> str:
        return str(await (await service()).make_link(sup))

    async def service() -> Any:
        return sup.core.part(await anyio.to_thread.run_sync(_page_service))

    if find_spec("fastapi") is None or find_spec("hypercorn") is None:
        return
    sup.core.make_page_link = make_link
    if (Path(sup.core.state_dir or "") / "runtime" / "page").exists():
        with suppress(ActorStopped):  # the journal was lost meanwhile
            await (await service()).resume(sup)


def _page_service() -> Callable[[SupervisorCore], Any]:
    """Import the page, which needs an extra, and takes a second: not in the event loop, where everything would wait."""
    from supervisor.control.http.page_service import PageService

    return PageService


async def _cancel_after_drain(sup: SupervisorCore, block: anyio.CancelScope) -> None:
    await sup.stopping.wait()
    await sup.shutdown.finish()
    block.cancel()


async def check_environment(
    agents: Mapping[str, AgentConfig | AgentFunction], settings: Settings, workdir: Path | str | None = None
) -> list[str]:
    """Check what :func:`open_supervisor` needs before it begins, and change nothing; return sentences about settings of
    the repository that have no effect.

    Raises:
        ValueError, WorkspaceError: as for :func:`open_supervisor`.
    """
    where = _absolute(workdir)
    profiles = {name: profile_of(name, config, where) for name, config in agents.items()}
    _check_access(settings)
    _check_worktree(settings)
    _check_telemetry(settings)
    plugged = await _plugged(settings.plugins, ())
    try:
        _check_adapters(profiles, plugged)
    finally:
        await plugged.close()
    if settings.workspace == "worktree":
        async with ShimHost(await contained(None, pid_namespaces=settings.pid_namespaces)) as host:
            unused = where / ".sdd" / "worktrees"
            setup, commits = settings.worktree.value({}), CommitStyle(settings.commits.author, settings.commits.sign)
            processes = RetryingProcessHost(host, WALL)
            worktrees = GitWorkspaces(processes, unused, str(where), settings.merge_into, setup, commits)
            await worktrees.check_usable()
            return await worktrees.remarks()
    return []


def _check_worktree(settings: Settings) -> None:
    if settings.worktree != WorktreeConfig() and settings.workspace != "worktree":
        raise ValueError("settings.worktree: there are no worktrees to set up; set workspace='worktree' too")


def _check_access(settings: Settings) -> None:
    if settings.access is not None and settings.workspace != "worktree":
        raise ValueError("settings.access: changes are checked in worktrees only; set workspace='worktree' too")


def _check_telemetry(settings: Settings) -> None:
    """Check that the libraries are installed that the settings ask for.

    Raises:
        ValueError: one is missing.
    """
    wanted = {"prometheus_client": settings.telemetry.metrics, "opentelemetry": settings.telemetry.traces}
    for package, is_wanted in wanted.items():
        if is_wanted and find_spec(package) is None:
            fix = "`pip install 'supervisor-runtime[telemetry]'` brings it"
            raise ValueError(f"settings.telemetry: {package} is not installed; {fix}")


async def _prepare_telemetry(
    opened: StateDir | None, then: Prepare | None, supervisor: SupervisorCore, rows: Sequence[EntityRow]
) -> None:
    """Begin the telemetry of *supervisor* before it takes over the work of an earlier one, whose end it shows too."""
    from supervisor.telemetry.service import start_telemetry  # here, since most supervisors have none

    await start_telemetry(supervisor, opened, rows)
    if then is not None:
        await then(supervisor, rows)


def reconfigure(
    supervisor: Supervisor,
    *,
    agents: Mapping[str, AgentConfig | AgentFunction],
    settings: Settings,
    workdir: Path | str | None = None,
) -> None:
    """Set agents, limits and policies for every session that starts from now on; live sessions are not changed.

    Args:
        agents, settings, workdir: as for :func:`open_supervisor`.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: an agent's adapter is unknown; nothing has changed.
    """
    check_type("supervisor", supervisor, Supervisor)
    check_type("agents", agents, Mapping)
    check_type("settings", settings, Settings)
    check_types(str, Path, workdir=workdir)
    where = _absolute(workdir)
    profiles = {name: profile_of(name, config, where) for name, config in agents.items()}
    _check_adapters(profiles, supervisor.core.plugins)
    supervisor.core.setups.configure(profiles, settings)


async def _plugged(names: Sequence[str] | None, given: Sequence[object]) -> Plugins:
    if not given and not (installed() if names is None else names):
        return Plugins()  # the usual case needs no thread
    return await anyio.to_thread.run_sync(partial(Plugins.load, names, given, reserved=adapters()))


def _check_adapters(profiles: Mapping[str, AgentProfile], plugins: Plugins) -> None:
    for profile in profiles.values():
        if profile.function is None:
            codec_for(profile.adapter, plugins.adapters, mapping=profile.mapping)


@asynccontextmanager
async def supervise(
    parts: Dependencies,
    agents: Mapping[str, AgentProfile],
    settings: Settings,
    choose: Choose | None = None,
    plugins: Plugins | None = None,
    on_permission: OnPermission | None = None,
    prepare: Prepare | None = None,
) -> AsyncIterator[Supervisor]:
    """Run a supervisor with the ports *parts*, which stay open when the block is left.

    Args:
        choose: as for :func:`open_supervisor`.
        plugins: the loaded plug-ins; leave out if runs must be repeatable.

    Raises:
        JournalError: the journal cannot be read, or was lost meanwhile, or its disk was still down at the end.
    """
    async with AsyncExitStack() as stack:
        rows, taken = await parts.journal.entities(), await parts.journal.ids()
        system = await stack.enter_async_context(open_system(seed=parts.seed))
        last = await parts.journal.events(after_seq=id_before(parts.journal.last_seq))
        supervisor = SupervisorCore(
            system=system,
            parts=parts,
            agents=agents,
            settings=settings,
            taken=taken,
            from_s=last[-1].monotonic_s if last else 0.0,
            plugins=plugins or Plugins(),
            on_permission=on_permission,
        )
        system.group.start_soon(supervisor.journal_writer.run)
        stack.push_async_callback(supervisor.services.close)
        await _start_services(supervisor, parts)
        if settings.access is not None:
            await supervisor.trust.recall(parts.journal, rows)
        if prepare is not None:
            await prepare(supervisor, rows)
        recovered = await take_over(supervisor, rows, choose)
        _end_with_block(
            supervisor, stack
        )  # after the takeover: if that fails, sessions are left for the next supervisor
        if recovered.stopped:
            _log.warning("an earlier supervisor ended; these of its sessions were stopped", sessions=recovered.stopped)
        supervisor.cleanup.remove_left()
        supervisor.merge_run = partial(merge_run, supervisor)
        yield Supervisor(supervisor)


async def _start_services(supervisor: SupervisorCore, parts: Dependencies) -> None:
    services = supervisor.services
    if supervisor.cleanup.needed:
        await services.add("cleanup", supervisor.cleanup.run)
    if supervisor.plugins.loaded:
        await services.add("plug-ins", supervisor.plugins.watch)
    if parts.watch_processes is not None:
        await services.add("processes", parts.watch_processes)
    if parts.upkeep is not None:
        await services.add("compaction", partial(compact_periodically, supervisor))
    if parts.notices is not None:
        await services.start("notices", Notifications(supervisor, parts.notices).run)
    if parts.state_dir:
        await services.add("journal", partial(watch_journal, supervisor), restart=Restart.TRANSIENT)


def _absolute(directory: Path | str | None) -> Path:
    return Path(directory or ".").absolute()


async def close_sessions(supervisor: SupervisorCore) -> None:
    """End every session as completed, as leaving the block does, and wait until the last records are durable. A caller
    that makes further records before it leaves the block calls this function first. No new session can begin
    afterwards.

    Raises:
        JournalError: the journal was lost, or its disk was still down at the end.
    """
    await supervisor.shutdown.finish()
    await supervisor.shutdown.close_all(_end_of_work(supervisor))
    with supervisor.registry.system.timers.limit(LAST_RECORDS_S) as waited:
        await supervisor.journal_writer.durable()
    if waited.cancelled_caught:
        supervisor.journal_writer.abandon()
    if supervisor.shutdown.error is not None:
        raise supervisor.shutdown.error


async def _end(supervisor: SupervisorCore, why: str | None) -> None:
    """End every session: as completed, or, if *why* gives a reason, by an abort. Wait at most ``LAST_RECORDS_S`` for
    the disk."""
    await supervisor.shutdown.end_plans()
    if why is None:
        await supervisor.shutdown.close_all(_end_of_work(supervisor))
    else:
        await supervisor.shutdown.abort_all(why, _end_of_work(supervisor))
    with supervisor.registry.system.timers.limit(LAST_RECORDS_S) as waited:
        await supervisor.journal_writer.close()
    if waited.cancelled_caught:
        _log.error("the disk did not answer: it is unknown whether the last records are in the journal")
        supervisor.journal_writer.abandon()
    supervisor.subscriptions.end()


def _end_of_work(supervisor: SupervisorCore) -> Callable[[], Awaitable[None]] | None:
    """Return the function that ends the recovered work which no plan has taken over, or ``None`` if there is none."""
    return partial(end_recovered_work, supervisor) if supervisor.recovered_work.work else None


def _reason(error: BaseException) -> str:
    """Return the reason of the abort, for records. For a cancellation only the fact that it was one: the messages of
    the event loops contain addresses and code."""
    if _is_cancellation(error):
        return "the host was cancelled"
    return f"the host left by {type(error).__name__}: {error}"


def _is_cancellation(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):  # Trio may pass on cancellations in a group
        return all(_is_cancellation(one) for one in error.exceptions)
    return isinstance(error, anyio.get_cancelled_exc_class())


def _end_with_block(supervisor: SupervisorCore, stack: AsyncExitStack) -> None:
    """Register the end of the supervisor: a drain if the block was left normally, else an abort of every session."""

    async def end(kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        try:
            if error is None:
                await supervisor.shutdown.finish()
        except BaseException as late:  # the host was cancelled while it drained
            error = late
            raise
        finally:
            why = None if error is None else _reason(error)
            try:
                with anyio.CancelScope(shield=True):
                    await _end(supervisor, why)
            except (anyio.get_cancelled_exc_class(), KeyboardInterrupt):
                # A shield does not keep out a Ctrl-C, nor a cancellation by asyncio itself. Ending again is harmless:
                # sessions that were stopped are not stopped twice.
                await to_the_end(partial(_end, supervisor, why))
                raise
        if supervisor.shutdown.error is not None and error is None:
            raise supervisor.shutdown.error
        return False

    stack.push_async_exit(end)
