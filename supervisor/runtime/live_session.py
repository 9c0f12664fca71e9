"""In-memory state of one live session: its agent's connection, its tasks, its children, and the phase that it is in.

``busy`` counts the tasks that work for a session and its children that have not finished. So the end of the last one is
an event (``IdleListener.on_idle``), and nothing has to poll. Decisions are made elsewhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import msgspec

from actors import ActorStopped, Context
from supervisor.agent_catalogue import NO_QUIRKS, LineMapping, Quirks
from supervisor.lifecycles.session import Message
from supervisor.lifecycles.types import AbortPolicy, CancelMode, Survivors, TerminationStage, Verdict
from supervisor.policies.abort_plan import PlannedProcess, ProcessFate
from supervisor.policies.abort_request import AbortRequest
from supervisor.policies.access import Rights
from supervisor.policies.budgets import Amounts, BudgetScope
from supervisor.policies.call_processes import ProcessSeen
from supervisor.policies.liveness import StallProfileName
from supervisor.policies.loop_detection import FinishedCall
from supervisor.policies.permissions import Decision, PermissionPolicy, PermissionRequest
from supervisor.ports import NO_WORKSPACE, AgentOptions, Out, ProcessReport, TranscriptSink
from supervisor.runtime.entity import Entity
from supervisor.runtime.journal_writer import Cause
from supervisor.runtime.one_shot_event import OneShotEvent

TEXT_MAX = 64 * 1024
"""Characters of an agent's last answer that are kept in memory for the caller of the request."""

AgentFunction = Callable[[Any], Awaitable[Any]]
"""In-process agent: an async function that is called with its turn (``agents.protocols.inprocess.AgentTurn``)."""


class NoSuchEntity(LookupError):
    """No living entity has that id."""

    def __init__(self, entity_id: str) -> None:
        self.entity_id = entity_id
        super().__init__(f"nothing alive has the id {entity_id!r}; `supervisor tree` shows the ids")


class AgentProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Configured agent: a program and the adapter for its protocol, or a function."""

    name: str
    adapter: str
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    directory: str = "."
    permissions: PermissionPolicy = PermissionPolicy()
    operates: tuple[str, ...] = ()
    """Operations that it may request of the supervisor, beyond its own session and those below."""
    agent_options: AgentOptions = AgentOptions()
    function: AgentFunction | None = None
    mapping: LineMapping | None = None
    """Meaning of its output lines, for adapters that need it."""
    quirks: Quirks = NO_QUIRKS
    servers: tuple[str, ...] = ()
    """Names of the programs that it keeps from turn to turn, such as language servers."""


class Outcome(NamedTuple):
    """End of a request: ``completed``, ``failed`` or ``aborted``. ``seq`` is the record that says so, ``how`` the
    verdict of the request's last turn."""

    outcome: str
    error: str
    text: str
    seq: int | None = None
    how: Verdict | None = None


class TerminationReport(NamedTuple):
    """End of a session: the highest stage, seconds taken, the Unix time, and what may have survived."""

    stage: TerminationStage
    took_s: float
    killed_at: float
    survivors: Survivors


class Connection(Protocol):
    """Live connection to one agent. The effect executor commands it; it reports events to the entities by itself."""

    agent_id: str
    turn_id: str | None
    ended: OneShotEvent
    is_ready: bool
    steers: bool
    """The agent can receive a message within a turn."""
    outlived: tuple[ProcessSeen, ...]
    """Processes of its turn that still ran when its program had exited by itself, and were killed then."""

    @property
    def reusable(self) -> bool:
        """True if the agent is ready and idle, and takes another turn."""
        ...

    async def run(self) -> None:
        """Run the agent from its start to its end."""
        ...

    async def wait_turn_over(self, turn_id: str | None = None) -> None:
        """Wait until the agent works on no turn; with *turn_id* only until that turn is over."""
        ...

    def start_turn(self, turn_id: str, incarnation: int, prompt: str) -> None:
        """Begin a turn. The end of the turn is reported exactly once, whatever happens."""
        ...

    def steer(self, message_id: str, incarnation: int, text: str) -> None:
        """Send *text* within the turn under way; the session receives an event that says whether the agent took it."""
        ...

    def interrupt(self, turn_id: str, intent: Verdict, abort_id: str | None) -> None:
        """Ask the agent, in its protocol, to stop that turn. *intent*: the verdict of the turn if the agent gives
        none."""
        ...

    def answer_permission(self, turn_id: str, request_id: str, option: str | None) -> None:
        """Answer a permission request of that turn; ``None``: no option was chosen. A repeat has no effect."""
        ...

    def runs_call(self, call_id: str) -> bool:
        """Return whether the supervisor runs that call's work, and can end it by its scope."""
        ...

    def has_returned(self, turn_id: str, call_id: str) -> bool:
        """Return whether that call's work is over, so that an abort comes too late."""
        ...

    def abandon_call(self, call_id: str) -> None:
        """Ignore a later result of that call."""
        ...

    def abort_own_call(self, call_id: str, reason: str, abort_id: str, cause_seq: int | None) -> None:
        """Have a call that the agent runs by itself end with the result of this abort, whose record is *cause_seq*."""
        ...

    def terminate_call(
        self, call_id: str, not_ended: Callable[[str], None], *, now: bool = False, within_s: float | None = None
    ) -> str:
        """Terminate one call that the agent runs by itself; its turn goes on.

        *not_ended* is called with the reason, once, if the call turns out not to end alone. *now* begins with the
        kill; *within_s* bounds the seconds until the call is given up. A second request can only hasten the end.

        Returns:
            How the call is terminated, for the receipt; ``""`` if it cannot be terminated alone.
        """
        ...

    def answer_delegation(self, call_id: str, outcome: Outcome) -> None:
        """Answer the delegation that this call is, without waiting for the child session."""
        ...

    def processes(self) -> tuple[PlannedProcess, ...]:
        """Return the processes that are known to be alive."""
        ...

    async def processes_of_turn(self) -> tuple[ProcessSeen, ...] | None:
        """Return the processes below the agent, without those from before its first prompt and without its servers;
        ``None`` if they cannot be seen."""
        ...

    def signal_processes(self, found: Iterable[ProcessSeen], number: int) -> None:
        """Send a signal to those processes."""
        ...

    async def wait_process_exit(self, pid: int) -> None:
        """Wait until that process of :meth:`processes_of_turn` has ended. May return early: look again."""
        ...

    def report_started(self, incarnation: int) -> None:
        """Report that an agent that was idle is ready for the prompt of this incarnation."""
        ...

    def close_when_idle(self) -> None:
        """Let the agent end by itself as soon as it is idle."""
        ...

    def kill(self, intent: Verdict) -> None:
        """Kill the agent and everything that it started, now."""
        ...


class ModelMonitor(Protocol):
    """Monitor of the errors of an agent's model."""

    def observe(self, out: Out) -> None:
        """Process a message of the agent within its turn."""
        ...

    def judge(self, verdict: Verdict) -> Verdict:
        """Return the verdict of a turn that the agent ended with *verdict*, given the model errors before."""
        ...


class Monitor(Protocol):
    """Monitor of a session: use against budgets, loops, and signs of life."""

    scope: BudgetScope | None
    patience: StallProfileName

    @property
    def model(self) -> ModelMonitor: ...

    @property
    def used(self) -> Amounts:
        """Amounts that the agent has used."""
        ...

    def start_request(self) -> None:
        """Begin with the counts of a new request."""
        ...

    def turn_opened(self, turn_id: str) -> None:
        """Note that another turn begins; its agent is not launched yet."""
        ...

    def select_messages(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages, of those that wait for the next prompt, that are to be in it."""
        ...

    def complete_prompt(self, prompt: str) -> str:
        """Return the prompt that the agent is given."""
        ...

    def turn_began(self) -> None:
        """Note that the agent has the prompt."""
        ...

    def turn_ended(self) -> None:
        """Note that the agent works on the turn no more."""
        ...

    def record_usage(self, amounts: Amounts, said: dict[str, Any]) -> None:
        """Count *amounts* that the agent has used; *said* is the agent's own report."""
        ...

    def admit_call(self) -> bool:
        """Return whether another tool call may begin, and count it."""
        ...

    def record_call(self, call: FinishedCall) -> None:
        """Note a tool call that is over."""
        ...

    def report_progress(self) -> None:
        """Note output of the agent that may mean nothing."""
        ...

    def take_progress(self) -> bool:
        """Return whether the agent has made progress since the last call of this method."""
        ...


class AssignedTask(NamedTuple):
    """Task that a session works on. ``split`` and ``block`` are the operations of ``WorkControl``; ``split`` is
    ``None`` unless the plan lets the agent split its task.

    ``state_dir`` is the directory by which the agent's own process reaches them; ``""`` if it cannot.
    """

    name: str
    split: Callable[..., Awaitable[Any]] | None
    block: Callable[..., Awaitable[Any]]
    state_dir: str


class IdleListener(Protocol):
    """Object that is told when nothing works for a session any more."""

    on_idle: Callable[[LiveSession], None]


class SessionPhase(IntEnum):
    """Phase of a live session. A session only moves forward; a session that is removed skips phases."""

    RUNNING = 0
    STOP_REQUESTED = 1
    """A request to stop is in the session's mailbox: the session starts nothing new."""
    TERMINATING = 2
    """The session has processed the request: its termination runs."""
    FINISHED = 3
    """No task, agent or child of the session runs any more."""
    RECORDED = 4
    """The session's last record is durable, or its actor crashed."""


class LiveSession:
    """State of one live session."""

    def __init__(
        self,
        registry: IdleListener,
        *,
        session_id: str,
        parent: LiveSession | None,
        profile: AgentProfile,
        policy: AbortPolicy,
        started_by: str | None,
        transcript: TranscriptSink,
        mode: CancelMode = CancelMode.WAIT_COMPLETED,
    ) -> None:
        self._registry = registry
        self.session_id = session_id
        self.parent = parent
        contained = parent is not None and mode is CancelMode.WAIT_COMPLETED
        self.root_id: str = parent.root_id if parent is not None and contained else session_id
        self.profile = profile
        self.policy = policy
        self.started_by = started_by
        self.mode = mode
        """Effect of its parent's end on the session."""
        self.transcript = transcript
        self.rights: Rights | None = None
        """Rights that the agent's trust score gives; ``None``: there is no access policy."""
        self.standing_decisions: dict[PermissionRequest, Decision] = {}
        """Decisions of a human that hold while the session lives."""
        self.directory = profile.directory
        self.workspace_spec = NO_WORKSPACE
        """Workspace wanted for the session."""
        self.children: dict[str, LiveSession] = {}
        """Child sessions that are alive, oldest first."""
        self.turns: dict[str, Entity] = {}
        self.assigned_task: AssignedTask | None = None
        self.connection: Connection | None = None
        self.monitor: Monitor | None = None
        self.progressed = False
        """The agent has made progress since the monitor looked last."""
        self.launches = 0
        self.requests = 0
        self.resume_id: str | None = None
        """Conversation that the next agent is to load: of an agent that ended with its supervisor, or of a program that
        served one prompt."""
        self.interrupted = False
        """An agent may have begun the last prompt when its supervisor ended."""
        self.incoming_requests: dict[str, None] = {}
        self.incoming_messages: dict[str, None] = {}
        """Ids of the prompts, and of the messages, on their way to the session. They count as waiting."""
        self.cause_seq: int | None = None
        """Record that the agent's present actions follow from: its launch, its prompt, or the request to stop."""
        self.phase = SessionPhase.RUNNING
        self._reached: dict[SessionPhase, OneShotEvent] = {}
        self.stopped_by_seq: int | None = None
        """Record that requested the stop; ``None`` while nothing has, or if no record did."""
        self.stop_request: AbortRequest | None = None
        """Requests to stop, merged into one."""
        self.prompted = 0
        """Incarnation that was given its prompt last: a failure after that is a crash, not a failed launch."""
        self.crashes: tuple[float, ...] = ()
        """Times of crashes within the restart window (journal clock)."""
        self.kill_at_once = False
        self.first_prompt_sent = OneShotEvent()
        self.report: TerminationReport | None = None
        self.fates: list[ProcessFate] = []
        self.text = ""
        self.text_of: str | None = None
        """Request that the text answers."""
        self.said = ""
        """Text of the agent for that request, from turns that succeeded."""
        self.busy = 0
        """Number of tasks that work for the session, and of children that have not finished."""
        self.unrecorded = 0
        """Number of entities below the session that its last record waits for."""
        self._rest: OneShotEvent | None = None

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables for the agent's process: none, unless the agent may split its task."""
        if self.assigned_task is None or not self.assigned_task.state_dir:
            return {}
        return {"SUPERVISOR_STATE_DIR": self.assigned_task.state_dir, "SUPERVISOR_TASK": self.assigned_task.name}

    @property
    def cause(self) -> Cause:
        """Cause of the agent's present actions."""
        return Cause(self.cause_seq, None, self.profile.adapter)

    @property
    def parent_id(self) -> str | None:
        return self.parent.session_id if self.parent is not None else None

    def record_process(self, owner: str, report: ProcessReport) -> None:
        """Keep the fate of a process for receipts."""
        fate = ProcessFate(
            owner=owner,
            pid=report.pid,
            status=report.status,
            ended_by=report.ended_by,
            killed=report.killed,
            survivors="unknown" if report.survivors < 0 else report.survivors,
        )
        self.fates.append(fate)

    def start(self, ctx: Context, fn: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Run ``fn(*args)`` in that actor's scope, counted in ``busy``.

        Raises:
            ActorStopped: the actor is stopping, or its scope was cancelled.
        """
        self.busy += 1
        try:
            ctx.start_task(self._counted, fn, args, name=fn.__qualname__)
        except ActorStopped:
            self._done()
            raise

    async def _counted(self, fn: Callable[..., Coroutine[Any, Any, None]], args: tuple[Any, ...]) -> None:
        try:
            await fn(*args)
        finally:
            self._done()

    def _done(self) -> None:
        self.busy -= 1
        if self.busy == 0:
            if self._rest is not None:
                self._rest.set()
            self._registry.on_idle(self)

    async def wait_idle(self) -> None:
        """Wait until ``busy`` is 0."""
        while self.busy:
            if self._rest is None or self._rest.is_set():
                self._rest = OneShotEvent()
            await self._rest.wait()

    def attach(self) -> None:
        """Count as a child of the parent until the session has finished."""
        if self.parent is not None:
            self.parent.children[self.session_id] = self
            self.parent.busy += 1

    @property
    def is_stopping(self) -> bool:
        """True from the request to stop on."""
        return self.phase > SessionPhase.RUNNING

    @property
    def is_terminating(self) -> bool:
        """True once the session has processed the request to stop, and afterwards."""
        return self.phase >= SessionPhase.TERMINATING

    def reached(self, phase: SessionPhase) -> OneShotEvent:
        """Return the event that is set as soon as the session is in *phase* or in a later phase."""
        event = self._reached.get(phase)
        if event is None:
            event = self._reached[phase] = OneShotEvent()
            if self.phase >= phase:
                event.set()
        return event

    def advance(self, phase: SessionPhase) -> None:
        """Move to *phase* unless the session is there already, and set the events of every phase up to *phase*."""
        was_finished = self.phase >= SessionPhase.FINISHED
        while self.phase < phase:
            self.phase = SessionPhase(self.phase + 1)
            if (event := self._reached.get(self.phase)) is not None:
                event.set()
        if not was_finished and phase >= SessionPhase.FINISHED and self.parent is not None:
            self.parent._done()

    def reparent(self, parent: LiveSession | None) -> None:
        """Belong to *parent*, or to none; the former parent stops waiting for the session."""
        left, self.parent = self.parent, parent
        if left is not None:
            left.children.pop(self.session_id, None)
        over = self.phase >= SessionPhase.FINISHED
        if parent is not None:
            parent.children[self.session_id] = self
            parent.busy += not over
        if left is not None and not over:
            left._done()

    def hold_until(self, moment: OneShotEvent) -> None:
        """Count *moment* in ``busy`` until it is set."""
        if not moment.is_set():
            self.busy += 1
            moment.then(self._done)

    def report_progress(self) -> None:
        """Note output of the agent that may mean nothing."""
        if self.monitor is not None:
            self.monitor.report_progress()

    def append_text(self, text: str) -> None:
        """Keep the end of the agent's text in this turn."""
        self.text = (self.text + text)[-TEXT_MAX:]
