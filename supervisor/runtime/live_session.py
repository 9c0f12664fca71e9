"""What goes on for one session: its agent's link, its tasks, its children, and what is known of its end.

It decides nothing. It counts: every task that works for a session, and every child that is not over, so that the end of
the last one is an event and not a guess.
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
from supervisor.policies.abort_request import AbortState
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

__all__ = [
    "AgentFunction",
    "AgentProfile",
    "AssignedTask",
    "Connection",
    "IdleListener",
    "LiveSession",
    "ModelMonitor",
    "Monitor",
    "NoSuchEntity",
    "Outcome",
    "SessionPhase",
    "TerminationReport",
]

TEXT_MAX = 64 * 1024
"""Characters of an agent's last answer that are kept in memory for whoever asked for it."""

AgentFunction = Callable[[Any], Awaitable[Any]]
"""An in-process agent: it is given its turn (``supervisor.agents.protocols.inprocess.AgentTurn``) and works on it."""


class NoSuchEntity(LookupError):
    """Nothing alive has that id."""

    def __init__(self, entity_id: str) -> None:
        self.entity_id = entity_id
        super().__init__(f"nothing alive has the id {entity_id!r}; `supervisor tree` shows the ids")


class AgentProfile(msgspec.Struct, frozen=True, kw_only=True):
    """How to have an agent: a program and the adapter that it speaks to, or a function; and what is wished of it."""

    name: str
    adapter: str
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    directory: str = "."
    permissions: PermissionPolicy = PermissionPolicy()
    operates: tuple[str, ...] = ()
    """What it may ask of the supervisor beyond its own session and those below."""
    wishes: AgentOptions = AgentOptions()
    function: AgentFunction | None = None
    mapping: LineMapping | None = None
    """What its lines mean, where its adapter needs to be told."""
    quirks: Quirks = NO_QUIRKS
    servers: tuple[str, ...] = ()
    """The names of the programs that it keeps from turn to turn, such as language servers."""


class Outcome(NamedTuple):
    """How a request ended: ``completed``, ``failed`` or ``aborted``; ``seq`` is the record that settled it, ``how``
    what its last turn ended with."""

    outcome: str
    error: str
    text: str
    seq: int | None = None
    how: Verdict | None = None


class TerminationReport(NamedTuple):
    """How a session's scope was joined."""

    rung: TerminationStage
    took_s: float
    killed_at: float
    survivors: Survivors


class Connection(Protocol):
    """The live connection to one agent: what a session's hands hold while the agent is there."""

    agent_id: str
    turn_id: str | None
    ended: OneShotEvent
    is_ready: bool
    steers: bool
    """It can be told something within a turn."""
    outlived: tuple[ProcessSeen, ...]
    """What still ran of its turn when its program had exited by itself, and was ended then."""

    @property
    def reusable(self) -> bool:
        """True if it is ready and idle, and will stay."""
        ...

    async def run(self) -> None:
        """Have the agent, from its start to its end. Reports everything to the entities."""
        ...

    async def wait_turn_over(self, turn_id: str | None = None) -> None:
        """Wait until it works on no turn; given one, until not on that one: it may have the next by then."""
        ...

    def start_turn(self, turn_id: str, incarnation: int, prompt: str) -> None:
        """Begin a turn. Its end is reported exactly once, whatever happens."""
        ...

    def steer(self, message_id: str, incarnation: int, text: str) -> None:
        """Say that within the turn under way; the session hears what becomes of it."""
        ...

    def interrupt(self, turn_id: str, intent: Verdict, abort_id: str | None) -> None:
        """Ask it, within its protocol, to stop that turn; *intent* is why."""
        ...

    def answer_permission(self, turn_id: str, request_id: str, option: str | None) -> None:
        """Answer a permission that it asked for in that turn; ``None``: nothing was chosen. A repeat says nothing."""
        ...

    def runs_call(self, call_id: str) -> bool:
        """True if we run that call's work, and can end it by its scope."""
        ...

    def has_returned(self, turn_id: str, call_id: str) -> bool:
        """True if that call's work is over, so that an abort of it comes too late."""
        ...

    def abandon_call(self, call_id: str) -> None:
        """Expect no result of that call any more."""
        ...

    def abort_own_call(self, call_id: str, reason: str, abort_id: str) -> None:
        """The agent runs that call by itself, and will be asked to end it: its result will be that of this abort."""
        ...

    def terminate_call(self, call_id: str, kept: Callable[[str], None]) -> str:
        """End this one call, which the agent runs by itself; its turn goes on. How that is done; ``""``: it cannot be.

        *kept* is told why it was not ended alone, once, where that turns out later.
        """
        ...

    def answer_delegation(self, call_id: str, outcome: Outcome) -> None:
        """Answer the delegation that this call is, without waiting for the child session."""
        ...

    def processes(self) -> tuple[PlannedProcess, ...]:
        """The processes that are known to be alive."""
        ...

    async def processes_of_turn(self) -> tuple[ProcessSeen, ...] | None:
        """Return the processes that run below it, but for what it had before its first prompt and its servers;
        ``None``: it cannot be told."""
        ...

    def signal_processes(self, found: Iterable[ProcessSeen], number: int) -> None:
        """Send a signal to those processes."""
        ...

    async def wait_process_exit(self, pid: int) -> None:
        """Wait until one of :meth:`processes_of_turn` has ended; it may return early, so look again."""
        ...

    def report_started(self, incarnation: int) -> None:
        """Say that it is ready for the prompt of this incarnation (an agent that was idle)."""
        ...

    def close_when_idle(self) -> None:
        """Let it end by itself as soon as it is idle."""
        ...

    def kill(self, intent: Verdict) -> None:
        """End it and everything it started, now."""
        ...


class ModelMonitor(Protocol):
    """What is watched of the model of a session's agent."""

    def observe(self, out: Out) -> None:
        """The agent said something within its turn."""
        ...

    def judge(self, verdict: Verdict) -> Verdict:
        """The agent has ended its turn by itself, with that verdict: what it means after what was before."""
        ...


class Monitor(Protocol):
    """What is watched of a session: what its agent uses, whether it goes round in a circle, and whether it moves."""

    scope: BudgetScope | None
    patience: StallProfileName

    @property
    def model(self) -> ModelMonitor: ...

    @property
    def used(self) -> Amounts:
        """What its agent has used."""
        ...

    def start_request(self) -> None:
        """It was asked for something."""
        ...

    def turn_opened(self, turn_id: str) -> None:
        """Another turn begins; its agent is not launched yet."""
        ...

    def select_messages(self, messages: Sequence[Message]) -> list[Message]:
        """Of the messages that wait for its next prompt, those that are to be in it."""
        ...

    def complete_prompt(self, prompt: str) -> str:
        """The prompt that the agent is given."""
        ...

    def turn_began(self) -> None:
        """The agent has the prompt."""
        ...

    def turn_ended(self) -> None:
        """The agent works on it no more."""
        ...

    def record_usage(self, amounts: Amounts, said: dict[str, Any]) -> None:
        """The agent says that it has used so much more; *said* is how it says it."""
        ...

    def admit_call(self) -> bool:
        """Whether another tool call may begin; it counts from here on."""
        ...

    def record_call(self, call: FinishedCall) -> None:
        """A tool call is over."""
        ...

    def report_progress(self) -> None:
        """Something came from the agent that may mean nothing."""
        ...

    def take_progress(self) -> bool:
        """Whether something came from the agent since this was asked last."""
        ...


class AssignedTask(NamedTuple):
    """The task that a session works on: *split* and *block* as ``WorkControl`` has them, *split* where the plan lets
    its agent do that.

    *state_dir* is where the agent's own process can ask for that; ``""`` where it cannot.
    """

    name: str
    split: Callable[..., Awaitable[Any]] | None
    block: Callable[..., Awaitable[Any]]
    state_dir: str


class IdleListener(Protocol):
    """Who wants to know that nothing works for a session any more."""

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
    """What goes on for one session: its link, its tasks, its children, and what is known of its end."""

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
        """What the end of its parent means to it."""
        self.transcript = transcript
        self.rights: Rights | None = None
        """What its agent is trusted with; ``None``: it is not judged."""
        self.standing_decisions: dict[PermissionRequest, Decision] = {}
        """What a human has answered for as long as it lives."""
        self.directory = profile.directory
        self.place = NO_WORKSPACE
        """What is asked of the place that it works in."""
        self.children: dict[str, LiveSession] = {}
        """The child sessions that are alive, oldest first."""
        self.turns: dict[str, Entity] = {}
        self.assigned_task: AssignedTask | None = None
        self.connection: Connection | None = None
        self.monitor: Monitor | None = None
        self.progressed = False
        """Something came from its agent since that was looked at last."""
        self.launches = 0
        self.requests = 0
        self.resume_id: str | None = None
        """The conversation that its next agent is to load: that of an agent which ended with its supervisor, or of a
        program that served one prompt."""
        self.interrupted = False
        """Its last prompt may have been worked on when its supervisor ended."""
        self.incoming_requests: dict[str, None] = {}
        self.incoming_messages: dict[str, None] = {}
        """The ids of the prompts, and of the messages, that are on their way to it: until it has them, they count as
        waiting."""
        self.cause_seq: int | None = None
        """The record that the agent's present doings answer to: its launch, its prompt, or what ends it."""
        self.phase = SessionPhase.RUNNING
        self._reached: dict[SessionPhase, OneShotEvent] = {}
        self.stopped_by_seq: int | None = None
        """Record that requested the stop; ``None`` while nothing has, or if no record did."""
        self.stop_request: AbortState | None = None
        """What it was told, all who said so merged."""
        self.prompted = 0
        """The incarnation that was given its prompt last: a failure after that is a crash, not a failed launch."""
        self.crashes: tuple[float, ...] = ()
        """When it failed after a start, within the window that counts."""
        self.kill_at_once = False
        self.first_prompt_sent = OneShotEvent()
        self.report: TerminationReport | None = None
        self.fates: list[ProcessFate] = []
        self.text = ""
        self.text_of: str | None = None
        """The request that the text answers."""
        self.said = ""
        """What the agent said to that request in turns that succeeded."""
        self.busy = 0
        """The tasks that work for it, and the children that are not over."""
        self.unrecorded = 0
        """The entities below it that its last record waits for."""
        self._rest: OneShotEvent | None = None

    @property
    def variables(self) -> dict[str, str]:
        """What its agent's process is told of us: nothing, but for one that may split its task."""
        if self.assigned_task is None or not self.assigned_task.state_dir:
            return {}
        return {"SUPERVISOR_STATE_DIR": self.assigned_task.state_dir, "SUPERVISOR_TASK": self.assigned_task.name}

    @property
    def cause(self) -> Cause:
        """What the agent's present doings answer to."""
        return Cause(self.cause_seq, None, self.profile.adapter)

    @property
    def parent_id(self) -> str | None:
        return self.parent.session_id if self.parent is not None else None

    def record_process(self, owner: str, report: ProcessReport) -> None:
        """Keep a process's fate for receipts."""
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
        """Run ``fn(*args)`` in that actor's scope, counted as work of this session.

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
        """Wait until nothing works for this session."""
        while self.busy:
            if self._rest is None or self._rest.is_set():
                self._rest = OneShotEvent()
            await self._rest.wait()

    def attach(self) -> None:
        """It is there: its parent is not quiet before it is over."""
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

    def reparent(self, heir: LiveSession | None) -> None:
        """Belong to *heir* from now on, or to nobody: its parent waits for it no more."""
        left, self.parent = self.parent, heir
        if left is not None:
            left.children.pop(self.session_id, None)
        over = self.phase >= SessionPhase.FINISHED
        if heir is not None:
            heir.children[self.session_id] = self
            heir.busy += not over
        if left is not None and not over:
            left._done()

    def hold_until(self, moment: OneShotEvent) -> None:
        """It is not quiet before that has come."""
        if not moment.is_set():
            self.busy += 1
            moment.then(self._done)

    def report_progress(self) -> None:
        """Something came from its agent that may mean nothing."""
        if self.monitor is not None:
            self.monitor.report_progress()

    def append_text(self, text: str) -> None:
        """Keep the end of what the agent says in this turn."""
        self.text = (self.text + text)[-TEXT_MAX:]
