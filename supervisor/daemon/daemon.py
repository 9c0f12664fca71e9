"""Daemon: takes plans for the supervisor that it holds, and goes on with those that an earlier daemon left.

Theory of operation
-------------------
Each run has a setup of its own (``sessions.setup``): the agents and limits of its plan, in the directory of its
submitter. With worktrees, they are of the repository of that directory, and so are branches, merges and owned files.
What all runs share is the configuration's: the limit of all sessions, the agents' limits by name, retention and
notices. A plan that needs another kind of workspace than the daemon has is refused.

    submit     plan and variables into a private file (``submissions``), the run on the disk, then the reply
    end        the run's own records; then the file is removed
    stop       nothing is claimed any more, turns under way may finish within ``drain_s``; then the process ends without
               ending any run: to the journal this end is a kill, and the next daemon goes on with everything
    start      the setups of all open runs are there before their sessions are taken over; then each run is continued

Example: the daemon is killed while r7 works in /home/me/a with ``--env API_KEY``. The next daemon finds the token of r7
in the journal, the plan and the key in the file, resumes the session of r7's task, and continues the run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from supervisor.daemon.config import DaemonConfig, load_config
from supervisor.daemon.submissions import StoredPlan, SubmissionStore
from supervisor.embedding.runtime import reconfigure
from supervisor.host.api import Supervisor
from supervisor.host.factories import profile_of
from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles.types import Kind, RecordId
from supervisor.plans import Plan, Settings
from supervisor.plans.daemon_control import Hooks, PlanRequest, SubmittedPlan
from supervisor.plans.recorded import plain_plan, recalled_plan
from supervisor.plans.source import BadPlan
from supervisor.plugins.reading import load_plan
from supervisor.policies.argument_checks import check_name
from supervisor.ports import EntityRow, JournalError
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import NoSuchEntity, Refused
from supervisor.sessions.journal_state import records_of
from supervisor.sessions.setup import Setup
from supervisor.work.plan_handle import PlanHandle, Submissions
from supervisor.work.plan_runner import Submission
from supervisor.work.reporting import SUBMITTED, read_plan

if TYPE_CHECKING:
    from supervisor.triggers.service import TriggerService  # its libraries are an extra

_SHARED: Final = (
    "max_sessions_total", "drain_s", "retention", "recovery", "notify", "plugins", "pid_namespaces", "access",
    "telemetry",
)  # fmt: skip
"""Keys of a plan that have no effect in a daemon, which has its own."""
_PLACE: Final = ("workspace", "merge_into")
"""Keys in which plan and daemon must agree."""
_LOOK_S: Final = 0.1
"""Seconds between two looks for turns in progress, during a drain."""

_log = get_logger()


class Daemon:
    """The daemon of one supervisor.

    Args:
        config_path: the file of the configuration; ``None``: there is none.
        config: the configuration as it was read at the start.
        workdir: the working directory of agents that are no plan's.
        store: the private files of submitted plans.
    """

    def __init__(self, config_path: Path | None, config: DaemonConfig, workdir: Path, store: SubmissionStore) -> None:
        self._config_path, self._config, self._workdir, self._store = config_path, config, workdir, store
        self._left: dict[str, StoredPlan | None] = {}
        """Runs that an earlier supervisor left, with their stored plans."""
        self._tokens: dict[str, str] = {}
        """Tokens of the stored plans, by run."""
        self._followed: dict[PlanHandle, None] = {}
        """Runs of which something is kept for their continuation."""
        self._begun = anyio.Event()
        """Set when the runs that were left go on: requests wait for that."""
        self.triggers: TriggerService | None = None
        """The triggers, which are set before the daemon begins; ``None`` if it has none."""
        self.ending = anyio.Event()
        """Set when a drain has begun."""
        self.ending_now = anyio.Event()
        """Set when turns in progress are not waited for any more."""

    # ------------------------------------------------------------------ the beginning
    async def prepare(self, core: SupervisorCore, rows: Sequence[EntityRow]) -> None:
        """Find the runs that an earlier supervisor left, and configure their agents, before their sessions are taken
        over. From now on *core* has a daemon, whose requests wait for :meth:`begin`."""
        self._core, core.daemon = core, self
        if self.triggers is not None:
            self.triggers.restore(core, rows)
        for row in rows:
            if row.kind != Kind.WORKSTREAM or row.ended:
                continue
            token = ""
            for record in await records_of(core.journal, row.id):
                if record.event == SUBMITTED:
                    token = str(record.metadata["token"])
            self._left[row.id] = stored = self._store.read(token) if token else None
            if stored is not None:
                self._tokens[row.id] = token
                try:
                    core.setups.configure_run(row.id, self._setup_of(recalled_plan(stored.plan, _no_function), stored))
                except (BadPlan, ValueError) as error:
                    _log.error("the agents of a run cannot be configured", run=row.id, why=str(error))
        self._store.keep_only(self._tokens.values())

    async def begin(self, sup: Supervisor, group: TaskGroup) -> None:
        """Take plans from now on, and go on with those that were left. *group* lasts as long as the supervisor."""
        self._sup, self._group = sup, group
        for run, stored in self._left.items():
            try:
                await self._go_on(run, stored)
            except (BadPlan, Refused, NoSuchEntity, ValueError, OSError) as error:
                advice = f"`supervisor submit PLAN --resume {run}` goes on with it"
                _log.error("a run that was interrupted is not continued", run=run, why=str(error), fix=advice)
        self._left = {}
        self._begun.set()
        if self.triggers is not None:
            await self.triggers.begin(group)

    @property
    def hooks(self) -> Hooks | None:
        """Implement ``DaemonControl.hooks``."""
        return self.triggers

    async def _go_on(self, run: str, stored: StoredPlan | None) -> None:
        is_recorded = stored is None
        if stored is None:  # of a supervisor that was no daemon, or its file is lost
            stored = await self._recorded(run, {}, str(self._workdir))
        plan, token = recalled_plan(stored.plan, _no_function), self._tokens.get(run, "")
        if not is_recorded:
            plan = await self._with_added(run, plan, stored)
        await self._begin(plan, stored, None, run, is_recorded=is_recorded, token=token)
        _log.warning("an interrupted run goes on", run=run)

    async def _with_added(self, run: str, plan: Plan, stored: StoredPlan) -> Plan:
        """Return *plan* with the tasks that were added to *run* after its submission: only the journal has them."""
        recorded = await read_plan(self._core.journal, run)
        known = {one.id for one in plan.tasks}
        added = [one for one in recorded["tasks"] if one["id"] not in known] if recorded is not None else []
        if not added:
            return plan
        return recalled_plan({**stored.plan, "tasks": [*stored.plan["tasks"], *added]}, _no_function)

    # ------------------------------------------------------------------ plans
    async def submit(self, request: PlanRequest, cause: RecordId | None = None) -> SubmittedPlan:
        """Implement ``DaemonControl.submit``; *cause* is the record from which a new run follows."""
        await self._begun.wait()
        if self.ending.is_set():
            raise Refused("no plan is taken: the daemon is ending; submit it again when it has been started again")
        self._core.registry.check_disk("a plan")
        is_recorded = not request.text
        if request.text:
            plan = await anyio.to_thread.run_sync(self.read_request, request)
            stored = _stored(plan, request)
        else:
            assert request.resume is not None, "the request has been checked"
            stored = await self._recorded(request.resume, request.environment, request.directory, request.by)
            plan = recalled_plan(stored.plan, _no_function)
        handle = await self._begin(plan, stored, request.key, request.resume, is_recorded=is_recorded, cause=cause)
        return SubmittedPlan(run=handle.run_id, notes=tuple(_notes(plan, self._config)))

    def read_request(self, request: PlanRequest) -> Plan:
        """Read the plan of a request, as its submitter would.

        Raises:
            BadPlan: the plan is invalid, or does not fit to this daemon.
        """
        if not os.path.isdir(request.directory):
            raise BadPlan(f"directory: no directory {request.directory!r} here; the daemon must see it, too")
        path = Path(request.path or request.source)
        plan = load_plan(
            path,
            installed=request.installed,
            instead=request.instead,
            content=request.text.encode(errors="surrogateescape"),
            base=path.parent if request.path else Path(request.directory),
            environment=request.environment,
            agents=self._config.agents,
        )
        changes: dict[str, Any] = {"fail_fast": True} if request.fail_fast else {}
        if request.name:
            try:
                check_name(request.name)
            except ValueError as error:
                raise BadPlan(str(error)) from None
            changes["workstream"] = request.name
        self._check_fits(path, plan, request.directory)
        return plan.model_copy(update=changes)

    def _check_fits(self, path: Path, plan: Plan, directory: str) -> None:
        """Check what a plan and its daemon must agree in.

        Raises:
            BadPlan: they do not.
        """
        wrong = []
        for key in _PLACE:
            had, wanted = getattr(self._config, key), getattr(plan, key)
            if had != wanted:
                wrong.append(f"{key}: is {wanted!r}, and {had!r} in this daemon; set it in the daemon's configuration")
        if (plan.access is None) is not (self._config.access is None):
            wrong.append("access: is set in plan or daemon only; set it in the daemon's configuration too, or in none")
        if not wrong and plan.workspace == "worktree" and not _is_in_repository(Path(directory)):
            fix = "submit it from one, or make one there (git init, and a first commit)"
            wrong.append(f"workspace: worktree needs a git repository, and {directory} is in none; {fix}")
        if wrong:
            raise BadPlan("\n".join(f"{path}: {one}" for one in wrong))

    async def _recorded(self, run: str, environment: Mapping[str, str], directory: str, by: str = "") -> StoredPlan:
        """Return the plan that the journal has of *run*, with the values of secret variables from *environment* or
        from the daemon's own environment, since the journal has only their names.

        Raises:
            NoSuchEntity: the journal has no such run.
            BadPlan: a value is missing.
        """
        await self._core.journal_writer.durable()
        plain = await read_plan(self._core.journal, run)
        if plain is None:
            raise NoSuchEntity(run)
        known, agents = {**os.environ, **environment}, dict[str, Any]()
        missing: dict[str, None] = {}
        for name, agent in plain["agents"].items():
            env = dict(agent.get("env", {}))
            for variable in [one for one, value in env.items() if value == f"${one}"]:
                if variable in known:
                    env[variable] = known[variable]
                else:
                    missing[variable] = None
            agents[name] = {**agent, **({"env": env} if env else {})}
        if missing:
            fix = " ".join(f"--env {one}" for one in missing)
            raise BadPlan(f"environment: run {run} had {', '.join(missing)}, whose values are not recorded; add {fix}")
        origin = [one.metadata for one in await records_of(self._core.journal, run) if one.event == SUBMITTED]
        directory = str(origin[-1]["directory"]) if origin else directory
        variables = tuple(origin[-1]["variables"]) if origin else tuple(environment)
        return StoredPlan(plan={**plain, "agents": agents}, directory=directory, variables=variables, by=by)

    def _setup_of(self, plan: Plan, stored: StoredPlan) -> Setup:
        """Return the setup of a run of *plan*.

        Raises:
            ValueError: an agent cannot be used as the plan describes it.
        """
        workdir = Path(stored.directory)
        common = {name: profile_of(name, agent, workdir) for name, agent in self._config.agents.items()}
        own = {name: profile_of(name, agent, workdir) for name, agent in plan.agent_configs.items()}
        return Setup({**common, **own}, plan.settings, stored.directory)

    async def _begin(
        self,
        plan: Plan,
        stored: StoredPlan,
        key: str | None,
        resume: str | None,
        *,
        is_recorded: bool,
        token: str = "",
        cause: RecordId | None = None,
    ) -> PlanHandle:
        """Begin a run, or continue the run *resume*, and return its handle when it is on the disk. *token* is that of
        *stored*, if it was stored before."""
        setup, is_new = self._setup_of(plan, stored), not token
        token = token or await anyio.to_thread.run_sync(self._store.add, stored)
        origin, hidden = stored.origin(token) if is_new else None, frozenset(stored.variables)
        given = Submission(setup=setup, origin=origin, hidden=hidden, is_recorded=is_recorded, cause=cause)
        submissions = self._core.part(Submissions)
        try:
            handle = await submissions.submit(self._sup, plan, key, resume, given)
        except BaseException:
            if is_new:
                self._store.remove(token)
            raise
        if handle.submission.setup is not setup:  # the key is known: this is the run of an earlier request
            self._store.remove(token)
            return handle
        self._tokens[handle.run_id] = token
        self._followed[handle] = None
        self._group.start_soon(self._follow, handle)
        return handle

    async def _follow(self, handle: PlanHandle) -> None:
        """Wait for the end of a run, and then remove what was kept for its continuation."""
        run = handle.run_id
        try:
            await handle.outcome()
        except (Refused, JournalError, ValueError) as error:
            _log.warning("a run has ended without a result", run=run, why=str(error))
        else:
            handle.runner.note_reported("kept in the journal")
        if await self._core.journal_writer.durable():
            self._store.remove(self._tokens.pop(run, ""))
            self._followed.pop(handle, None)

    async def finish_ended(self) -> None:
        """Wait for the last steps of the runs whose end is recorded, such as the copy in the archive: no daemon goes on
        with them."""
        for handle in [one for one in self._followed if self._is_over(one)]:
            await handle.ended.wait()

    def remove_ended(self) -> None:
        """Remove what is kept of the runs that have ended; all records are on the disk. So no secret of a plan stays
        where the daemon ends at the same moment."""
        for handle in [one for one in self._followed if self._is_over(one)]:
            self._store.remove(self._tokens.pop(handle.run_id, ""))
            del self._followed[handle]

    def _is_over(self, handle: PlanHandle) -> bool:
        return handle.ended.is_set() or (bool(handle.run_id) and handle.run_id not in self.open_runs)

    def run_of(self, key: str) -> str:
        """Return the id of the run that was submitted with *key*, also to an earlier daemon; ``""`` if none."""
        return self._core.part(Submissions).run_of(key)

    async def wait_ended(self, run: str) -> None:
        """Wait until a run has ended, with its last steps; a run that is not continued here counts as ended."""
        handle = next((one for one in self._core.part(Submissions).running if one.run_id == run), None)
        if handle is not None:
            await handle.ended.wait()

    async def has_ended(self, run: str) -> bool:
        """Return whether a run has ended, so that no daemon goes on with it."""
        if run in self.open_runs:
            return False
        await self._core.journal_writer.durable()
        rows = await self._core.journal.entities(ids=[run])
        return all(row.ended for row in rows)  # no row: it is in the archive

    async def cancel_run(self, run: str, *, by: str, reason: str) -> bool:
        """Implement ``DaemonControl.cancel_run``."""
        await self._begun.wait()
        core = self._core
        handle = next((one for one in core.part(Submissions).running if one.run_id == run), None)
        if handle is not None:
            handle.cancel(by=by, reason=reason)
            await handle.ended.wait()
            return True
        await core.journal_writer.durable()
        rows = [row for row in await core.journal.entities(ids=[run]) if row.kind == Kind.WORKSTREAM]
        if not rows:
            raise NoSuchEntity(run)
        if not rows[0].ended:
            raise Refused(f"run {run} was interrupted, and is not continued here; resume it, and cancel it then")
        return False

    # ------------------------------------------------------------------ the configuration
    async def reload(self, *, by: str) -> str:
        """Implement ``DaemonControl.reload``."""
        await self._begun.wait()
        path, read_tokens = self._config_path, self._core.read_tokens_again
        if path is None and read_tokens is None and self.triggers is None:
            raise Refused("the daemon was started without a configuration file, so there is nothing to read again")
        config = self._config
        if path is not None:
            config = await anyio.to_thread.run_sync(load_config, path)
            config.check_reload(path, self._config)
        definitions = await anyio.to_thread.run_sync(self.triggers.load) if self.triggers is not None else None
        try:
            if read_tokens is not None:
                await anyio.to_thread.run_sync(read_tokens)
            reconfigure(self._sup, agents=config.agents, settings=config.settings, workdir=self._workdir)
        except ValueError as error:
            raise BadPlan(str(error)) from None
        had, self._config = self._config, config
        new = [name for name in config.agents if config.agents[name] != had.agents.get(name)]
        gone = [name for name in had.agents if name not in config.agents]
        parts = [f"agents {', '.join(new)} are new or changed"] if new else []
        parts += [f"agents {', '.join(gone)} are gone"] if gone else []
        parts += ["settings are changed"] if config.settings != had.settings else []
        if self.triggers is not None and definitions is not None and (changes := await self.triggers.use(definitions)):
            parts.append(changes)
        _log.info("the configuration was read again", by=by)
        return "; ".join(parts) or "nothing has changed"

    # ------------------------------------------------------------------ the end
    def stop(self, *, by: str, now: bool) -> None:
        """Implement ``DaemonControl.stop``."""
        if now or self.ending.is_set():
            self.ending_now.set()
        self.ending.set()
        self._core.suspended.set()
        _log.info("the daemon ends", by=by)

    @property
    def at_work(self) -> int:
        """Number of tasks and prompts that a drain waits for."""
        core = self._core
        backlogs = [(one.runner.plan_run.backlog, one.run_id) for one in core.part(Submissions).running if one.run_id]
        tasks = sum(backlog.held(run) + backlog.unheld(run) for backlog, run in backlogs)
        return max(tasks, len(core.requests.waiting))

    async def drained(self) -> None:
        """Wait until nothing is at work, at most ``drain_s``, or until the daemon is to end at once."""
        with anyio.move_on_after(self._sup.settings.drain_s):
            while self.at_work and not self.ending_now.is_set():
                with anyio.move_on_after(_LOOK_S):
                    await self.ending_now.wait()

    @property
    def open_runs(self) -> list[str]:
        """Ids of the runs that have not ended. A run whose end is recorded counts as ended, although its last steps,
        such as the copy in the archive, may be under way: the next daemon has nothing to do for it."""
        entities = self._core.registry.entities
        runs = [one.run_id for one in self._core.part(Submissions).running if one.run_id]
        return [run for run in runs if (entity := entities.get(run)) is not None and not entity.ended]


def _is_in_repository(directory: Path) -> bool:
    """Return whether git would find a repository: an empty folder ``.git`` is none, and does not end the search."""
    names = (one / ".git" for one in (directory, *directory.parents))
    return any(one.is_file() or (one / "HEAD").is_symlink() or (one / "HEAD").is_file() for one in names)


def _no_function(agent: str) -> None:
    """Return the function of an agent: a daemon has none."""


def _stored(plan: Plan, request: PlanRequest) -> StoredPlan:
    names = tuple(request.environment)
    return StoredPlan(
        plan=plain_plan(plan), directory=request.directory, path=request.path, variables=names, by=request.by
    )


def _notes(plan: Plan, config: DaemonConfig) -> list[str]:
    """Return a sentence about what of *plan* has no effect."""
    given = [key for key in _SHARED if key in plan.model_fields_set and getattr(plan, key) != getattr(config, key)]
    given = [key for key in given if getattr(plan, key) != Settings.model_fields[key].get_default()]
    return [f"{', '.join(given)}: the daemon has its own; what the plan says has no effect"] if given else []
