"""In-memory state of one live session: the connection to its agent, its tasks, its children, and its phase.

``busy`` is the number of tasks that work for a session, plus the number of its children that have not finished. The end
of the last of them is an event (``IdleListener.on_idle``), so that no code has to poll. This module makes no decisions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from actors import ActorStopped, Context
from actors.one_shot_event import OneShotEvent
from supervisor.lifecycles.session import Message
from supervisor.lifecycles.types import AbortPolicy, CancelMode, RecordId, Survivors, TerminationStage, Verdict
from supervisor.policies.abort_plan import PlannedProcess, ProcessFate
from supervisor.policies.abort_request import AbortRequest
from supervisor.policies.access import Rights
from supervisor.policies.budgets import Amounts, BudgetScope
from supervisor.policies.call_processes import ProcessSeen
from supervisor.policies.liveness import StallProfileName
from supervisor.policies.loop_detection import FinishedCall
from supervisor.policies.permissions import Decision, PermissionRequest
from supervisor.policies.usage import ConversationTotals
from supervisor.ports import NO_WORKSPACE, Out, Outcome, ProcessReport, TranscriptSink
from supervisor.ports.agent_profile import AgentProfile
from supervisor.runtime.entity import Entity
from supervisor.runtime.journal_writer import Cause

TEXT_MAX = 64 * 1024
"""Number of characters of an agent's last answer that are kept in memory for the caller of the request."""


class TerminationReport(NamedTuple):
    """Report about the end of a session: the most forceful stage that was needed, the seconds taken, the Unix time of
    the end, and the processes that may have survived."""

    stage: TerminationStage
    took_s: float
    killed_at: float
    survivors: Survivors


class Connection(Protocol):
    """Live connection to one agent. The effect executor calls its methods; the connection reports events to the
    entities."""

    agent_id: str
    turn_id: str | None
    ended: OneShotEvent
    is_ready: bool
    steers: bool
    """True if the agent can receive a message within a turn."""
    clean_up_s: float
    """Seconds that ``run`` may take to end the agent after its cancellation."""
    outlived: tuple[ProcessSeen, ...]
    """Processes of the agent's turn that were still running when the agent's program had exited by itself; they were
    killed then."""

    @property
    def reusable(self) -> bool:
        """True if the agent is ready and idle, and accepts another turn."""
        ...

    async def run(self) -> None:
        """Run the agent from its start to its end."""
        ...

    async def wait_turn_over(self, turn_id: str | None = None) -> None:
        """Wait until the agent works on no turn; with *turn_id*, only until the agent no longer works on that turn."""
        ...

    def start_turn(self, turn_id: str, incarnation: int, prompt: str) -> None:
        """Begin a turn. The end of the turn is reported exactly once, whatever happens."""
        ...

    def steer(self, message_id: str, incarnation: int, text: str) -> None:
        """Send *text* within the running turn; an event to the session then reports whether the agent accepted the
        text."""
        ...

    def interrupt(self, turn_id: str, intent: Verdict, abort_id: str | None) -> None:
        """Request the agent, in its protocol, to stop work on the turn *turn_id*. *intent* is the verdict of the turn
        if the agent reports no other end."""
        ...

    def answer_permission(self, turn_id: str, request_id: str, option: str | None) -> None:
        """Answer a permission request of the turn *turn_id*; ``None`` means that no option was chosen. A repeated
        answer has no effect."""
        ...

    def runs_call(self, call_id: str) -> bool:
        """Return whether the supervisor runs the work of the call *call_id*, and can end the call by its scope."""
        ...

    def has_returned(self, turn_id: str, call_id: str) -> bool:
        """Return whether the work of the call *call_id* is over, so that an abort comes too late."""
        ...

    def abandon_call(self, call_id: str, reason: str) -> None:
        """Drop the call *call_id*, so that a later result of the call is ignored. An in-process agent is given the
        *reason*."""
        ...

    def abort_own_call(self, call_id: str, reason: str, abort_id: str, cause_seq: RecordId | None) -> None:
        """Mark a call whose work the agent runs by itself as aborted: the call then ends with the result of the abort
        whose record has the number *cause_seq*."""
        ...

    def terminate_call(
        self, call_id: str, not_ended: Callable[[str], None], *, now: bool = False, within_s: float | None = None
    ) -> str:
        """Terminate one call whose work the agent runs by itself; the call's turn continues.

        *not_ended* is called once, with the reason, if it turns out that the call cannot be ended alone. With *now* the
        termination begins with the kill; *within_s* bounds the seconds until the termination is given up. A second
        request can only hasten the end.

        Returns:
            Description, for the receipt, of the way in which the call is terminated; ``""`` if it cannot be terminated
            alone.
        """
        ...

    def answer_delegation(self, call_id: str, outcome: Outcome) -> None:
        """Complete the wait for the child session that the call *call_id* started, with *outcome*, while the child
        still runs."""
        ...

    def processes(self) -> tuple[PlannedProcess, ...]:
        """Return the processes of the agent and its terminals that are known to be alive."""
        ...

    async def processes_of_turn(self) -> tuple[ProcessSeen, ...] | None:
        """Return the processes below the agent, except those from before the agent's first prompt and the agent's
        servers; ``None`` if the processes cannot be listed."""
        ...

    def signal_processes(self, found: Iterable[ProcessSeen], number: int) -> None:
        """Send the signal *number* to the processes in *found*."""
        ...

    async def wait_process_exit(self, pid: int) -> None:
        """Wait until the process *pid*, a result of :meth:`processes_of_turn`, has ended. The method may return early:
        the caller must check again."""
        ...

    def report_started(self, incarnation: int) -> None:
        """Report that an agent that was idle is ready for the prompt of the launch with number *incarnation*."""
        ...

    def close_when_idle(self) -> None:
        """Let the agent end by itself as soon as it works on no turn."""
        ...

    def kill(self, intent: Verdict) -> None:
        """Kill the agent and everything that the agent started, at once."""
        ...


class ModelMonitor(Protocol):
    """Interface of the monitor for errors of an agent's model."""

    def observe(self, out: Out) -> None:
        """Process a message that the agent sent within its turn."""
        ...

    def judge(self, verdict: Verdict) -> Verdict:
        """Return the final verdict of a turn that the agent ended with *verdict*, with regard to the model errors
        before."""
        ...


class Monitor(Protocol):
    """Interface of the monitor of a session: use against budgets, loops, and signs of life."""

    scope: BudgetScope | None
    patience: StallProfileName

    @property
    def model(self) -> ModelMonitor: ...

    @property
    def used(self) -> Amounts:
        """Amounts that the session's agents have used."""
        ...

    def start_request(self) -> None:
        """Reset the counts that begin anew with each request, and with each try of a request."""
        ...

    def turn_opened(self, turn_id: str) -> None:
        """Record that another turn begins, whose agent is not launched yet."""
        ...

    def select_messages(self, messages: Sequence[Message]) -> list[Message]:
        """Return those of the waiting *messages* that are to be part of the next prompt."""
        ...

    def complete_prompt(self, prompt: str) -> str:
        """Return the text that is sent to the agent as the prompt: *prompt*, with additions of the monitor."""
        ...

    def turn_began(self) -> None:
        """Record that the agent has received the turn's prompt."""
        ...

    def turn_ended(self) -> None:
        """Record that the agent no longer works on the turn."""
        ...

    @property
    def totals(self) -> ConversationTotals:
        """Last usage totals that the agents have reported of their conversations."""
        ...

    def record_usage(self, amounts: Amounts, report: dict[str, Any], total_of: str | None = None) -> None:
        """Count *amounts* that the agent has used, or, with *total_of*, the part of the conversation's total *amounts*
        that was not counted before; *report* is what the agent wrote."""
        ...

    def admit_call(self) -> bool:
        """Return whether another tool call may begin, and count this call."""
        ...

    def record_call(self, call: FinishedCall) -> None:
        """Record a tool call that has ended."""
        ...

    def report_progress(self) -> None:
        """Count output of the agent, before its meaning is known, as progress."""
        ...

    def take_progress(self) -> bool:
        """Return whether the agent has made progress since the last call of this method."""
        ...


class AssignedTask(NamedTuple):
    """Task of a plan that a session works on. ``split`` and ``block`` are operations of ``WorkControl``; ``split`` is
    ``None`` unless the plan lets the agent split its task.

    ``charge_launch`` charges the next launch, which follows a launch that failed, to the plan: it is called with the
    error, and returns the reason why there is no next launch, or ``""``. ``charge_child`` does the same for a retry of
    a session below. ``note_stop`` is called with the request that ends the session, and the cause of the request.
    ``state_dir`` is the state directory by which the agent's own process can reach these operations; ``""`` if it
    cannot.
    """

    name: str
    split: Callable[..., Awaitable[Any]] | None
    block: Callable[..., Awaitable[Any]]
    charge_launch: Callable[[str], str]
    charge_child: Callable[[], str]
    note_stop: Callable[[AbortRequest, Cause], None]
    state_dir: str


class IdleListener(Protocol):
    """Interface of an object that is notified when no task and no child works for a session any more."""

    on_idle: Callable[[LiveSession], None]


class SessionPhase(IntEnum):
    """Phase of a live session. A session only moves to later phases; a session that is removed may skip phases."""

    RUNNING = 0
    STOP_REQUESTED = 1
    """A request to stop is in the session's mailbox: the session starts no new work."""
    TERMINATING = 2
    """The session has processed the request to stop: its termination is running."""
    FINISHED = 3
    """No task, agent or child of the session runs any more."""
    RECORDED = 4
    """The session's last record is durable, or the session's actor crashed."""


class LiveSession:
    """In-memory state of one live session."""

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
        """Cancel mode: the effect that the end of the parent has on this session."""
        self.transcript = transcript
        self.rights: Rights | None = None
        """Rights that the agent has by its trust level; ``None``: there is no access policy."""
        self.standing_decisions: dict[PermissionRequest, Decision] = {}
        """Decisions of a human that are valid as long as the session lives."""
        self.directory = profile.directory
        self.workspace_spec = NO_WORKSPACE
        """Specification of the workspace that the session needs."""
        self.children: dict[str, LiveSession] = {}
        """Child sessions that are alive, oldest first."""
        self.turns: dict[str, Entity] = {}
        self.assigned_task: AssignedTask | None = None
        self.connection: Connection | None = None
        self.monitor: Monitor | None = None
        self.progressed = False
        """True if the agent has made progress since the monitor last checked."""
        self.launches = 0
        self.requests = 0
        self.resume_id: str | None = None
        """Name of the conversation that the next agent loads: the conversation of an agent that ended with its
        supervisor, or of a program that served one prompt."""
        self.interrupted = False
        """True if an agent may have begun to work on the last prompt when its supervisor ended."""
        self.incoming_requests: dict[str, None] = {}
        self.incoming_messages: dict[str, None] = {}
        """Ids of the prompts, and of the messages, that were sent but have not reached the session yet. They count as
        waiting."""
        self.cause_seq: RecordId | None = None
        """Number of the record that the agent's present actions follow from: its launch, its prompt, or the request to
        stop."""
        self.phase = SessionPhase.RUNNING
        self._reached: dict[SessionPhase, OneShotEvent] = {}
        self.stopped_by_seq: RecordId | None = None
        """Number of the record that requested the session to stop; ``None`` before the request, or if no record made
        it."""
        self.stop_request: AbortRequest | None = None
        """Request to stop, into which all such requests were merged."""
        self.prompted = 0
        """Incarnation that received its prompt last: a failure after the prompt is a crash, not a failed launch."""
        self.errors_charged = 0
        """Errors of the session, in all, that were charged to the retry budget of its plan, or need not be."""
        self.crashes: tuple[float, ...] = ()
        """Times of crashes within the restart window (journal clock)."""
        self.kill_at_once = False
        self.first_prompt_sent = OneShotEvent()
        self.report: TerminationReport | None = None
        self.fates: list[ProcessFate] = []
        self.exiting: dict[str, tuple[int, ...]] = {}
        """Killed processes that run no code any more and that the session waits for, since the kernel is still ending
        them: their pids, by the agent or tool call that they belong to."""
        self.text = ""
        self.answered = ""
        """Beginning of ``text`` that was said before the agent was asked to go on: it answers a message, not the
        request (rule 49)."""
        self.text_of: str | None = None
        """Id of the request that ``text`` belongs to."""
        self.said = ""
        """Text that the agent wrote for that request, in turns that succeeded."""
        self.exception: BaseException | None = None
        """Exception that an in-process agent raised after its last prompt."""
        self.busy = 0
        """Number of tasks that work for the session, plus the number of its children that have not finished."""
        self.unrecorded = 0
        """Number of entities below the session whose last records must come before the session's last record."""
        self._rest: OneShotEvent | None = None

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables for the agent's process; empty unless the agent may split its task."""
        if self.assigned_task is None or not self.assigned_task.state_dir:
            return {}
        return {"SUPERVISOR_STATE_DIR": self.assigned_task.state_dir, "SUPERVISOR_TASK": self.assigned_task.name}

    @property
    def cause(self) -> Cause:
        """Cause that the agent's present actions have."""
        return Cause(self.cause_seq, None, self.profile.adapter)

    @property
    def parent_id(self) -> str | None:
        return self.parent.session_id if self.parent is not None else None

    def record_process(self, owner: str, report: ProcessReport) -> None:
        """Store the fate of a process, as reported at its end, for receipts."""
        self.exiting.pop(owner, None)
        fate = ProcessFate(
            owner=owner,
            pid=report.pid,
            status=report.status,
            ended_by=report.ended_by,
            killed=report.killed,
            survivors="unknown" if report.survivors < 0 else report.survivors,
            exiting_s=report.exiting_s,
        )
        self.fates.append(fate)

    def start(
        self, ctx: Context, fn: Callable[..., Coroutine[Any, Any, None]], *args: Any, clean_up_s: float = 0.0
    ) -> None:
        """Run ``fn(*args)`` as a task in the scope of the actor *ctx*, counted in ``busy``. *clean_up_s* is the number
        of seconds that the task may take to end after its cancellation.

        Raises:
            ActorStopped: the actor is stopping, or its scope was cancelled.
        """
        self.busy += 1
        try:
            ctx.start_task(self._counted, fn, args, name=fn.__qualname__, clean_up_s=clean_up_s)
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
        """Register the session as a child of its parent; the parent counts it in ``busy`` until it has finished."""
        if self.parent is not None:
            self.parent.children[self.session_id] = self
            self.parent.busy += 1

    @property
    def waits_for_kernel(self) -> bool:
        """Whether the session, or a child session that it waits for, waits for killed processes that the kernel is
        still ending."""
        pending = [self]
        for session in pending:  # the list grows while it is read
            if session.exiting:
                return True
            pending += [child for child in session.children.values() if child.mode is CancelMode.WAIT_COMPLETED]
        return False

    @property
    def is_stopping(self) -> bool:
        """True from the request to stop on, in all later phases."""
        return self.phase > SessionPhase.RUNNING

    @property
    def is_terminating(self) -> bool:
        """True once the session has processed the request to stop, in all later phases."""
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
        """Change the parent to *parent*, or to none; the former parent stops waiting for the session."""
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
        """Count the session as busy until the event *moment* is set."""
        if not moment.is_set():
            self.busy += 1
            moment.then(self._done)

    def report_progress(self) -> None:
        """Report output of the agent, before its meaning is known, to the monitor, if there is one."""
        if self.monitor is not None:
            self.monitor.report_progress()

    def append_text(self, text: str) -> None:
        """Append *text* to the agent's text of this turn, of which only the end is stored."""
        self.text = (self.text + text)[-TEXT_MAX:]
