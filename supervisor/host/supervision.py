"""Composition of a supervisor: all parts of one running supervisor, each given the parts that it uses.

Nothing here decides or acts. An embedding program uses :class:`supervisor.host.api.Supervisor`, whose methods call the
parts; the packages of this project that are above this one use the parts themselves.

The parts are made from below: a part is given those that it calls, and no function that leads back up. Two knots are
left. The writer of the journal hands effects to the registry of the entities, which needs the writer: the registry puts
itself there. A connection starts child sessions for its agent, and a session starts connections: the last statement of
``__init__`` ties that knot.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar, cast

import anyio

from actors import ActorSystem
from supervisor.host.dependencies import Dependencies
from supervisor.host.factories import ConnectionFactory
from supervisor.host.recovered_work import RecoveredWork
from supervisor.host.services import Services
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.plans import Settings
from supervisor.plans.daemon_control import DaemonControl
from supervisor.plans.earlier_runs import find_earlier_runs
from supervisor.plans.task_control import WorkControl
from supervisor.plugins import Plugins
from supervisor.ports import MergePlan
from supervisor.ports.agent_profile import AgentProfile
from supervisor.runtime.entity_registry import IdAllocator
from supervisor.runtime.journal_writer import Clock, JournalWriter
from supervisor.runtime.subscriptions import Subscriptions
from supervisor.sessions.abort_service import AbortService
from supervisor.sessions.actor_failures import ActorFailures
from supervisor.sessions.approval_queue import ApprovalQueue, OnPermission
from supervisor.sessions.monitor_registry import MonitorRegistry
from supervisor.sessions.pending_requests import PendingRequests
from supervisor.sessions.registry import SessionRegistry
from supervisor.sessions.services import SessionServices
from supervisor.sessions.session_factory import SessionFactory
from supervisor.sessions.setup import Setup, Setups
from supervisor.sessions.shutdown import Shutdown
from supervisor.sessions.takeover import Takeover
from supervisor.sessions.termination import Background
from supervisor.sessions.trust_scores import Trust
from supervisor.sessions.verification import Verification
from supervisor.sessions.workspace_cleanup import WorkspaceCleanup

_T = TypeVar("_T")
Listener = Callable[[LifecycleEvent], None]
"""Function that is called with each durable record, in the task that commits: it must not wait, handles its own errors,
and may remove itself."""
Variables = Callable[[str], Mapping[str, str]]
"""Function that returns variables for the environment of an agent that is launched, given the id of its session."""


MergeCommand = Callable[..., Awaitable[tuple[MergePlan, str]]]
"""Function that merges the branch of a run, and returns the merge plan and a sentence about the merge."""


class SupervisorCore:
    """The parts of one running supervisor. Not for use from other threads."""

    def __init__(
        self,
        *,
        system: ActorSystem,
        parts: Dependencies,
        agents: Mapping[str, AgentProfile],
        settings: Settings,
        taken: set[str],
        from_s: float,
        plugins: Plugins,
        on_permission: OnPermission | None = None,
    ) -> None:
        self.plugins = plugins
        self.journal = journal = parts.journal
        self.processes = parts.processes
        self.caller_at = parts.caller_at
        self.unidentified = parts.unidentified
        self.upkeep = parts.upkeep
        self.workdir = parts.workdir
        self.state_dir = parts.state_dir
        self.timers = system.timers

        # The loop of every event.
        self.subscriptions = Subscriptions(journal)
        self.listeners: Final[list[Listener]] = []
        publish = _published(self.subscriptions, plugins, self.listeners)
        self.journal_writer = JournalWriter(journal, Clock(parts.wall, from_s), publish)
        self.registry = SessionRegistry(system, self.journal_writer, IdAllocator(taken))
        self.background = Background(system)

        # Sessions: what they use, and their end.
        self.setups = Setups(Setup(agents, settings, parts.workdir), self.journal_writer)
        self.requests = PendingRequests(self.registry, journal.generation, self.setups)
        self.approvals = ApprovalQueue(self.registry, self.background, on_permission)
        self.session_services = SessionServices(
            self.registry,
            self.background,
            parts.workspace,
            self.approvals,
            self.requests.complete_request,
            self.setups,
        )
        self.cleanup = WorkspaceCleanup(self.registry, parts.workspace)
        self.shutdown = Shutdown(self.registry, self.requests, self.session_services, self.cleanup)
        self.stopping, self.stop_now = self.shutdown.begun, self.shutdown.now
        self.aborts = AbortService(self.registry, journal, self.shutdown)
        system.on_event = ActorFailures(self.registry, self.requests).handle
        self.services = Services(system, self.shutdown)

        # Sessions: their start.
        self.trust = Trust(self.registry, self.setups)
        self.monitors = MonitorRegistry(self.registry, self.aborts.abort_session, self.aborts.abort_call)
        self.session_factory = SessionFactory(
            self.registry,
            self.session_services,
            self.monitors,
            self.cleanup,
            self.trust,
            self.requests,
            self.shutdown,
            self.aborts,
            parts.transcript_of,
        )
        self.takeover = Takeover(
            self.registry,
            journal,
            self.session_services,
            self.session_factory,
            self.monitors,
            self.shutdown,
            self.requests,
            self.aborts,
        )

        # Work.
        self.verification = Verification(
            self.registry, parts.processes, parts.workspace, self.cleanup, plugins.verified
        )
        self.plan_commands: list[WorkControl] = []
        """Objects that carry out commands about the tasks of each running plan, oldest first."""
        self.recovered_work = RecoveredWork(work=set(), answers={}, rows={}, earlier=find_earlier_runs(()))
        """Work of an earlier supervisor's plans that was recovered."""
        self.daemon: DaemonControl | None = None
        """Control of the daemon that holds this supervisor, if one does."""
        self.suspended = anyio.Event()
        """Set when a daemon ends: no task is claimed any more, and what is open is left to the next daemon."""
        self.read_tokens_again: Callable[[], None] | None = None
        """Function that reads the token file of the HTTP API again, if tokens are served."""
        self.launch_variables: Final[list[Variables]] = []
        """Functions that add variables to the environment of each agent; the agent's own variables count first."""
        self.make_page_link: Callable[[], Awaitable[str]] | None = None
        """Function that returns a link to the page for people, if this supervisor can serve one."""
        self.merge_run: MergeCommand | None = None
        """Function that merges the branch of a run, given its id; a package above this one has it."""
        self._parts: dict[Callable[[SupervisorCore], object], object] = {}

        self.session_services.make_connection = ConnectionFactory(
            self.registry,
            self.session_factory.delegate,
            parts.processes,
            parts.files,
            plugins,
            self.launch_variables,
        )

    @property
    def settings(self) -> Settings:
        """Settings for every session that starts from now on; they may be replaced."""
        return self.setups.settings

    def part(self, make: Callable[[SupervisorCore], _T]) -> _T:
        """Return the part of this supervisor that *make* makes: the same object at every call. For parts whose classes
        are in packages above this one."""
        if make not in self._parts:
            self._parts[make] = make(self)
        return cast(_T, self._parts[make])


def _published(
    subscriptions: Subscriptions, plugins: Plugins, listeners: Sequence[Listener]
) -> Callable[[LifecycleEvent], None]:
    """Return the function that gives a durable record to all who read along."""

    def publish(record: LifecycleEvent) -> None:
        subscriptions.publish(record)
        if plugins.listens:
            plugins.publish(record)
        for listen in tuple(listeners):  # a copy: one may remove itself
            listen(record)

    return publish
