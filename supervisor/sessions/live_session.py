"""Live session: the entity of a session, with what it knows beyond its recorded data, its children, and its end.

``busy`` is the number of tasks that work for a session, plus the number of its children that have not finished. The end
of the last of them finishes the session's termination, if one is under way, so that no code has to poll.

Callers can rely on these rules:

* ``request_stop`` never awaits. An abort that has planned the tree can terminate the tree before an entity is created
  or ends.
* A session that is stopping accepts only the events that its table allows in the state Stopped. Nothing is created
  below it, and ``reparent`` gives a child that may outlive it to the nearest ancestor that is not stopping.
* A session's last record comes after the last records of its turns and agents, and after those of its child sessions.
  ``unrecorded`` counts them; the termination appends the last record when the count is 0 and the session has finished.

Example: an abort of session ``s`` with the turn ``s:t1``::

    s.request_stop(stop, cause=...)      ->  phase STOP_REQUESTED, OperatorStop in the mailbox of "s"
    "s" processes it: effect TerminateSession -> s.terminate(...), phase TERMINATING
    nothing works for "s" any more       ->  phase FINISHED
    "s:t1" appends its last record       ->  remove("s:t1"), unrecorded == 0: Ended in the mailbox of "s"
    "s" appends Ended                    ->  remove("s"), phase RECORDED

``supervisor.sessions.session`` derives from this class the entity that performs the effects. Everything that works for
a session, such as its connection and its turns, is given a ``LiveSession``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from enum import IntEnum
from math import inf
from typing import Any, NamedTuple

import msgspec

from actors import ActorStopped, Context
from actors.machine import Event
from actors.one_shot_event import OneShotEvent
from supervisor.lifecycles.entity_types import SESSION_KIND
from supervisor.lifecycles.events import Ended, OperatorStop, StageBegan
from supervisor.lifecycles.session import SESSION, Session
from supervisor.lifecycles.session_data import SessionData
from supervisor.lifecycles.types import (
    AbortPolicy,
    AbortReason,
    CancelMode,
    Exit,
    HeldBy,
    Kind,
    RecordId,
    Survivors,
    TerminationStage,
    TransitionReason,
    Verdict,
)
from supervisor.policies.abort_plan import ProcessFate, stage_of_fates, total_survivors
from supervisor.policies.abort_request import AbortRequest, MergeOutcome, merge_request, same_abort
from supervisor.policies.access import Rights
from supervisor.policies.permissions import Decision, PermissionRequest
from supervisor.policies.stage_deadlines import ROUNDING_S, SessionSchedule, session_deadlines
from supervisor.ports import NO_WORKSPACE, ProcessReport, TranscriptSink
from supervisor.ports.agent_profile import AgentProfile
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Entity, EntityActor
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.connection import Connection, Monitor
from supervisor.sessions.termination import Background, StageBudgetSpent, Termination

_log = get_logger()

ALLOWED_WHILE_STOPPING = frozenset(SESSION.allowed(Session.STOPPED))
"""Types of events that a stopping session still accepts."""

TEXT_MAX = 64 * 1024
"""Number of characters of an agent's last answer that are kept in memory for the caller of the request."""


class TerminationReport(NamedTuple):
    """Report about the end of a session: the most forceful stage that was needed, the seconds taken, the Unix time of
    the end, and the processes that may have survived."""

    stage: TerminationStage
    took_s: float
    killed_at: float
    survivors: Survivors


class AssignedTask(NamedTuple):
    """Task of a plan that a session works on: its id, and its name in the plan. ``split`` and ``block`` are operations
    of ``WorkControl``; ``split`` is ``None`` unless the plan lets the agent split its task.

    ``charge_launch`` charges the next launch, which follows a launch that failed, to the plan: it is called with the
    error, and returns the reason why there is no next launch, or ``""``. ``charge_child`` does the same for a retry of
    a session below. ``note_stop`` is called with the request that ends the session, and the cause of the request.
    ``note_obstacle`` is called with what holds the making of the session's workspace, and with ``None`` afterwards.
    ``state_dir`` is the state directory by which the agent's own process can reach these operations; ``""`` if it
    cannot.
    """

    id: str
    name: str
    split: Callable[..., Awaitable[Any]] | None
    block: Callable[..., Awaitable[Any]]
    charge_launch: Callable[[str], str]
    charge_child: Callable[[], str]
    note_stop: Callable[[AbortRequest, Cause], None]
    note_obstacle: Callable[[HeldBy | None], None]
    state_dir: str


class AnswerText:
    """Text with which the agent answers the present request, over all turns of the request that have succeeded."""

    __slots__ = ("before", "exception", "request_id", "said", "text")

    def __init__(self) -> None:
        self.request_id: str | None = None
        self.text = ""
        """Text of the turns that have succeeded, and of the present turn."""
        self.said = ""
        """Text of the turns that have succeeded."""
        self.before = ""
        """Beginning of ``text`` that was said before the agent was asked to go on."""
        self.exception: BaseException | None = None
        """Exception that an in-process agent raised after its last prompt."""

    def begin_prompt(self, request_id: str | None, *, goes_on: bool) -> None:
        """Begin another prompt for the request *request_id*; the text of an earlier request is dropped."""
        self.said = self.said if request_id == self.request_id else ""
        self.before = self.said if goes_on else ""
        self.request_id, self.exception = request_id, None

    def append(self, text: str) -> None:
        """Append *text* to the text of this turn, of which only the end is stored."""
        self.text = (self.text + text)[-TEXT_MAX:]

    def to(self, request_id: str) -> tuple[str, BaseException | None]:
        """Return the text, and the exception, of the answer to the request *request_id*."""
        return (self.text, self.exception) if self.request_id == request_id else ("", None)


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


RECORDED_S = 60.0
"""Seconds that ``Ended`` waits for the last records of the session's turns and agents. The wait is extended while the
journal cannot be written."""


class SessionTermination(Termination):
    """Termination of one session and of everything below it, up to the session's last record, ``Ended``.

    A stage ends early as soon as nothing works for the session. ``Ended`` comes after the last records of the session's
    turns and agents, so that no reader of the journal sees a session end before its parts; while the journal cannot be
    written the wait for these records is extended. Example: a child session, and a tool of the parent that ignores
    SIGTERM::

        0.0 s   begin(parent): the child is requested to stop; stage request
        0.1 s   the child's agent exits                                      -> Ended(child, request)
       10.0 s   request budget spent: cancel; the tool's process context is left and sends SIGTERM
       12.0 s   SIGKILL; the shim reports that the process tree is gone      -> Ended(parent, kill)

    Finishing a child may finish its parent, and so on upwards. Such follow-up checks are queued, not called: a session
    tree may be deeper (2,000 levels are tested) than the Python stack.

    Args:
        abort_id, cause: abort that the termination belongs to, and the cause of everything that it does.
        began: time at which the termination began (monotonic seconds); earlier than now if an earlier supervisor began
            it.
    """

    __slots__ = (
        "_background",
        "_fates_before",
        "_is_over",
        "_outages",
        "abort_id",
        "began",
        "cause",
        "session",
    )

    stages = (
        TerminationStage.REQUEST,
        TerminationStage.CANCEL,
        TerminationStage.KILL,
        TerminationStage.EXITING,
        TerminationStage.ABANDON,
    )

    def __init__(
        self,
        session: LiveSession,
        background: Background,
        cause: Cause,
        abort_id: str | None,
        *,
        began: float,
    ) -> None:
        super().__init__(session.registry.system.timers)
        self._background, self.session = background, session
        self.cause, self.abort_id, self.began = cause, abort_id, began
        self._fates_before = len(session.fates)
        self._is_over = False
        self._outages = 0
        """Number of journal outages that had ended when ``Ended`` began to wait for the last records of turns and
        agents."""

    def begin(self) -> None:
        """Stop the children, give another parent to those that may outlive the session, and enter the first stage."""
        session = self.session
        if session.stop_request is None:  # the session's own last error is the reason
            session.stop_request = AbortRequest(
                abort_id=None,
                reason=session.data.last_error,
                severity=TerminationStage.REQUEST,
                deadline=self.began + session.policy.ladder.total_s,
            )
        session.advance(SessionPhase.TERMINATING)
        self._stop_children()
        self._detach_survivors()
        first = TerminationStage.KILL if session.kill_at_once else TerminationStage.REQUEST
        if session.busy:
            self.enter(first)
        else:
            self.stage = first
            self.on_idle()

    # ------------------------------------------------------------------ stages
    @property
    def schedule(self) -> SessionSchedule:
        request = self.session.stop_request
        assert request is not None, "set when the termination begins"
        return SessionSchedule(self.session.policy.ladder, self.began, request.deadline, self._background.slack_s)

    def act(self, stage: TerminationStage) -> None:
        session = self.session
        match stage:
            case TerminationStage.REQUEST:
                if session.connection is not None:
                    session.connection.close_when_idle()
            case TerminationStage.CANCEL:
                session.registry.cancel_scope(session.session_id, self.abort_id or stage)
            case TerminationStage.KILL:
                if session.connection is not None:
                    words = "it was ended at once"
                    intent = Verdict(exit=Exit.ERROR, error=words, abort_reason=AbortReason.SHUTDOWN_SIGNAL)
                    session.connection.kill(intent)
                session.registry.cancel_scope(session.session_id, self.abort_id or stage)
            case TerminationStage.ABANDON:
                self.on_idle()

    def applies(self, stage: TerminationStage) -> bool:
        return stage is not TerminationStage.EXITING or self.session.waits_for_kernel

    def reschedule(self) -> None:
        super().reschedule()
        self._report_stage()

    def _report_stage(self) -> None:
        """Tell the session in which stage its termination is, and until when, unless its data say so already."""
        assert self.stage is not None, "the stage has just been entered"
        ends_at, known = self.ends_at, self.session.data.ending
        wall = self.session.registry.journal_writer.clock.wall
        until = None if ends_at is None else wall.time() + ends_at - self.timers.now()
        is_sooner = until is not None and known is not None and until < (known.deadline or inf) - ROUNDING_S
        if known is None or known.stage is not self.stage or is_sooner:
            began = StageBegan(stage=self.stage, until=until)
            self.session.registry.send(self.session.session_id, began, cause=self.cause)

    def set_timer(self, delay_s: float, call: Callable[[], None]) -> None:
        # As a message to an actor: what the dispatcher has for others at that moment comes first.
        self._background.context.set_timer(self.session.session_id, delay_s, StageBudgetSpent(call))

    def cancel_timer(self) -> None:
        self._background.context.cancel_timer(self.session.session_id)

    def _is_gentle(self) -> bool:
        """Return whether the present stage is one that a more urgent request can still shorten."""
        return self.stage in (TerminationStage.REQUEST, TerminationStage.CANCEL)

    # ------------------------------------------------------------------ children
    def _stop_children(self) -> None:
        """Request every child session to stop, except children with the cancel mode ABANDON.

        A child that the session waits for gets the same deadline. A child that the same abort has already requested
        to stop, with a deadline that is not later, is not requested again.
        """
        session, stop = self.session, None
        if not session.children:
            return
        deadline = self.began + self.schedule.due.kill_s
        for child in list(session.children.values()):
            waits, known = child.mode is CancelMode.WAIT_COMPLETED, child.stop_request
            is_asked = known is not None and same_abort(known, self.abort_id)
            in_time = not waits or (known is not None and known.deadline <= deadline + ROUNDING_S)
            if child.mode is CancelMode.ABANDON or (is_asked and in_time):
                continue
            stop = stop or OperatorStop(
                reason=f"its parent {session.session_id} ended",
                abort_id=self.abort_id,
                abort_reason=AbortReason.PARENT_ABORTED,
                transition_reason=TransitionReason.ABORTED,
            )
            within_s = deadline - self.timers.now() if waits else None
            child.request_stop(stop, cause=self.cause, within_s=within_s)

    def _detach_survivors(self) -> None:
        """Give another parent to every child session that may outlive the session."""
        session = self.session
        for child in [one for one in session.children.values() if one.mode is not CancelMode.WAIT_COMPLETED]:
            if child.ended:
                continue  # its last record is on its way: nothing is left that could outlive this session
            if child.mode is CancelMode.WAIT_REQUESTED:
                session.hold_until(child.reached(SessionPhase.TERMINATING))
            child.reparent(self.cause, self.abort_id)

    # ------------------------------------------------------------------ more urgent
    def skip_to_kill(self) -> None:
        """Enter the kill stage, unless the termination is there already or over."""
        if self._is_gentle():
            self.enter(TerminationStage.KILL)

    def on_deadline_shortened(self) -> None:
        """Set the timer, and the deadlines of the children, by the stop request, whose deadline is earlier now."""

        def shorten() -> None:
            if self._is_gentle():
                self.reschedule()
                self._stop_children()

        if self._is_gentle():
            self._background.enqueue(shorten)

    # ------------------------------------------------------------------ finish
    def on_idle(self) -> None:
        """Finish the termination: no task and no child works for the session any more."""
        if self.stage is not None:
            self._background.enqueue(self._finish)

    def _finish(self) -> None:
        session, stage = self.session, self.stage
        if stage is None:
            return
        took_s = max(0.0, self.timers.now() - self.began)
        fates = session.fates[self._fates_before :]
        if stage is TerminationStage.CANCEL or (stage is TerminationStage.KILL and any(one.exiting_s for one in fates)):
            stage = stage_of_fates(fates)
        survivors = total_survivors(fate.survivors for fate in session.fates)
        session.report = TerminationReport(stage, took_s, session.registry.journal_writer.clock.wall.time(), survivors)
        self.finish()
        session.advance(SessionPhase.FINISHED)  # only after the report is there: the abort's receipt reads it
        if session.unrecorded:
            self._await_records()
        else:
            self._append_ended()

    def _await_records(self) -> None:
        disk = self.session.registry.journal_writer.disk
        self._outages = disk.outages

        def give_up() -> None:
            if disk.outage is not None or disk.outages > self._outages:
                self._await_records()  # the records have only just begun to be written, or cannot be yet
            else:
                self._append_ended()

        self.call_at(self.timers.now() + RECORDED_S, give_up)

    def on_recorded(self) -> None:
        """Append ``Ended`` to the session's log, because every turn, agent and child of the session has its last
        record."""
        if self.stage is None and not self._is_over:
            self.finish()
            self._append_ended()

    def _append_ended(self) -> None:
        session, report = self.session, self.session.report
        assert report is not None, "a session that has finished has a report"
        self._is_over = True
        ended = Ended(rung=report.stage.value, took_s=round(report.took_s, 6), survivors=report.survivors)
        session.registry.send(session.session_id, ended, cause=self.cause)


class LiveSession(EntityActor):
    """Entity of a live session, without the performance of its effects, which ``SessionEntity`` adds."""

    data: SessionData

    def __init__(
        self,
        registry: EntityRegistry,
        background: Background,
        data: SessionData,
        *,
        state: Session = Session.INITIALIZING,
        parent: LiveSession | None,
        profile: AgentProfile,
        policy: AbortPolicy,
        started_by: str | None,
        transcript: TranscriptSink,
        mode: CancelMode = CancelMode.WAIT_COMPLETED,
    ) -> None:
        super().__init__(
            SESSION_KIND, data.id, None if parent is None else parent.id, state, data, registry.journal_writer
        )
        self.registry = registry
        self._background = background
        self.parent = parent
        contained = parent is not None and mode is CancelMode.WAIT_COMPLETED
        self.root_id: str = parent.root_id if parent is not None and contained else data.id
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
        self.plan_run: str = parent.plan_run if parent is not None else ""
        """Id of the run whose agents and settings apply to the session; ``""`` for those of the supervisor."""
        self.assigned_task: AssignedTask | None = None
        self.connection: Connection | None = None
        self.monitor: Monitor | None = None
        self.launches = 0
        self.requests = 0
        self.resume_id: str | None = None
        """Name of the conversation that the next agent loads: the conversation of an agent that ended with its
        supervisor, or of a program that served one prompt."""
        self.interrupted = False
        """True if an agent may have begun to work on the last prompt when it was ended, by its own crash or with its
        supervisor, and no turn has succeeded since."""
        self.open_calls: tuple[str, ...] = ()
        """Titles of the calls that were open then."""
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
        self.kill_at_once = False
        self.first_prompt_sent = OneShotEvent()
        self.report: TerminationReport | None = None
        self.fates: list[ProcessFate] = []
        self.exiting: dict[str, tuple[int, ...]] = {}
        """Killed processes that run no code any more and that the session waits for, since the kernel is still ending
        them: their pids, by the agent or tool call that they belong to."""
        self.answer = AnswerText()
        self.busy = 0
        """Number of tasks that work for the session, plus the number of its children that have not finished."""
        self.unrecorded = 0
        """Number of entities below the session whose last records must come before the session's last record."""
        self._rest: OneShotEvent | None = None
        self._termination: SessionTermination | None = None

    @property
    def session_id(self) -> str:
        return self.id

    @property
    def answered(self) -> str:
        """Beginning of the answer's text that was said before the agent was asked to go on: it answers a message, not
        the request (rule 49)."""
        return self.answer.before

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables for the agent's process; empty unless the agent may split its task."""
        if self.assigned_task is None or not self.assigned_task.state_dir:
            return {}
        return {"SUPERVISOR_STATE_DIR": self.assigned_task.state_dir, "SUPERVISOR_TASK": self.assigned_task.id}

    @property
    def cause(self) -> Cause:
        """Cause that the agent's present actions have."""
        return Cause(self.cause_seq, None, self.profile.adapter)

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

    # ------------------------------------------------------------------ tasks
    def start_in(
        self, actor_id: str, fn: Callable[..., Coroutine[Any, Any, None]], *args: Any, clean_up_s: float = 0.0
    ) -> bool:
        """Run ``fn(*args)`` as a task in the scope of the actor *actor_id*, as :meth:`start` does; return ``False`` if
        this scope has ended."""
        ctx = self.registry.system.context(actor_id)
        if ctx is None:
            return False
        try:
            self.start(ctx, fn, *args, clean_up_s=clean_up_s)
        except ActorStopped:
            _log.debug("not begun: its scope has ended", actor=actor_id)
            return False
        return True

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
            if self._termination is not None:
                self._termination.on_idle()

    async def wait_idle(self) -> None:
        """Wait until ``busy`` is 0."""
        while self.busy:
            if self._rest is None or self._rest.is_set():
                self._rest = OneShotEvent()
            await self._rest.wait()

    # ------------------------------------------------------------------ family
    def attach(self) -> None:
        """Register the session as a child of its parent; the parent counts it in ``busy`` until it has finished."""
        if self.parent is not None:
            self.parent.children[self.session_id] = self
            self.parent.busy += self.phase < SessionPhase.FINISHED

    def count_in(self, entity: Entity) -> None:
        """Wait for the last record of *entity* before the session's own. The record must be durable; the last record of
        a child session need only be appended."""
        self.unrecorded += 1
        if entity.kind is Kind.TURN:
            self.turns[entity.id] = entity
        if entity.kind is Kind.SESSION:
            entity.on_ended = self._count_out
        else:
            entity.on_buried = self._count_out

    def _count_out(self) -> None:
        self.unrecorded -= 1
        if self.unrecorded == 0 and self.phase >= SessionPhase.FINISHED and self._termination is not None:
            self._termination.on_recorded()

    def reparent(self, cause: Cause, abort_id: str | None) -> None:
        """Give the session, which outlives its parent, to the nearest ancestor that is not stopping; without such an
        ancestor it becomes a root session. The former parent stops waiting for it."""
        left, parent = self.parent, self.parent
        while parent is not None and parent.is_stopping:
            parent = parent.parent
        left_id, self.parent_id = self.parent_id, parent.session_id if parent is not None else None
        self._report_last_record()
        if parent is not None:
            parent.count_in(self)
        if left is not None:
            left.children.pop(self.session_id, None)
        self.parent = parent
        self.attach()
        if left is not None and self.phase < SessionPhase.FINISHED:
            left._done()
        if not self.ended:
            ruled = msgspec.to_builtins(self.policy)  # the session keeps the policy that it had below its former parent
            fact = {"left": left_id, "parent": self.parent_id, "mode": self.mode.value, "policy": ruled}
            self.record_fact("Adopted", cause, fact, abort_id=abort_id, reason=f"its parent {left_id} ended")

    @property
    def is_adopted(self) -> bool:
        """Whether the parent that started the session, by whose id the session is named, has ended and left it to
        another one, or to nobody."""
        return (self.parent_id or "") != self.session_id.rpartition("/")[0]

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

    # ------------------------------------------------------------------ end
    def accepts(self, event: Event) -> bool:
        return not self.is_stopping or type(event) in ALLOWED_WHILE_STOPPING

    def request_stop(self, stop: OperatorStop, *, cause: Cause, within_s: float | None = None) -> MergeOutcome:
        """Request the session to stop, within *within_s* seconds if that is sooner than its stage budgets. Never
        awaits.

        The first request is sent to the session. Later requests are merged into the first. The first request with
        ``now`` is sent too, as long as the session still runs; any other request is recorded, unless it belongs to an
        abort that was merged before.

        Returns:
            Effect of the request: it began the stop, made the stop harder or sooner, or only joined it.
        """
        if self.ended or self.phase is SessionPhase.RECORDED:
            return MergeOutcome.JOINED  # its last record is written
        ladder, before = self.policy.ladder, self.stop_request
        bound_s = ladder.kill_s if stop.now else ladder.total_s
        bound_s = bound_s if within_s is None else min(bound_s, within_s)
        due = session_deadlines(ladder, bound_s, now=stop.now)
        until = self.registry.journal_writer.clock.wall.time() + (due.kill_s if stop.now else due.request_s)
        stop = msgspec.structs.replace(stop, until=until)
        request = AbortRequest(
            abort_id=stop.abort_id,
            reason=stop.reason,
            abort_reason=stop.abort_reason,
            severity=TerminationStage.KILL if stop.now else TerminationStage.REQUEST,
            deadline=self.registry.system.timers.now() + bound_s,
        )
        self.stop_request, joined = merge_request(before, request)
        if joined is MergeOutcome.BEGAN and not self.is_stopping:
            self.stopped_by_seq = cause.seq
            self.advance(SessionPhase.STOP_REQUESTED)
            self.registry.send(self.id, stop, cause=cause)
            if self.assigned_task is not None:
                self.assigned_task.note_stop(request, cause)
            return joined
        if stop.now and not self.kill_at_once and self.phase < SessionPhase.FINISHED:
            self.registry.send(self.id, stop, cause=cause)
        elif before is not None and not same_abort(before, stop.abort_id):
            first = {"joined": before.abort_id, "first_reason": before.reason}
            self.record_fact("AbortJoined", cause, first, abort_id=stop.abort_id, reason=stop.reason)
        if joined is MergeOutcome.RAISED and self._termination is not None:
            self._termination.on_deadline_shortened()
        return joined

    def terminate(self, cause: Cause, abort_id: str | None, *, now: bool, elapsed_s: float = 0.0) -> None:
        """Terminate the session, and everything below it. A termination that has begun already only becomes more
        urgent.

        Args:
            now: start at the kill stage, or continue there.
            elapsed_s: age of a termination that an earlier supervisor began (seconds).
        """
        if now:
            hurried: list[LiveSession] = [self]
            while hurried:  # no recursion: a tree may be deeper than the stack
                session = hurried.pop()
                session._skip_to_kill()
                hurried += [child for child in session.children.values() if child.mode is CancelMode.WAIT_COMPLETED]
        if self.is_terminating:
            return
        if not self.is_stopping:
            self.stopped_by_seq = cause.seq  # the session stops by itself, or was stopping when its supervisor died
        began = self.registry.system.timers.now() - elapsed_s
        self._termination = SessionTermination(self, self._background, cause, abort_id, began=began)
        self._termination.begin()

    def _skip_to_kill(self) -> None:
        """Let the termination of the session, which is running or comes later, start at the kill stage."""
        self.kill_at_once = True
        if self._termination is not None:
            self._termination.skip_to_kill()

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

    def hold_until(self, moment: OneShotEvent) -> None:
        """Count the session as busy until the event *moment* is set."""
        if not moment.is_set():
            self.busy += 1
            moment.then(self._done)

    # ------------------------------------------------------------------ facts and texts
    def record_turn_fact(self, name: str, metadata: dict[str, Any]) -> None:
        """Append a fact to the log of the turn that the agent works on; do nothing if there is no such turn."""
        turn_id = self.connection.turn_id if self.connection is not None else None
        if turn_id is not None:
            self.registry.record_fact(turn_id, name, self.cause, metadata)

    def begin_exiting(self, owner: str, pids: tuple[int, ...]) -> None:
        """Record that the session waits for killed processes of *owner*, an agent or a tool call, which run no code any
        more, because the kernel is still ending them."""
        self.exiting[owner] = pids
        self.registry.record_fact(self.id, "ProcessesExiting", self.cause, {"of": owner, "pids": [*pids]})

    def write_transcript(self, source: str, text: str) -> None:
        """Write *text*, which comes from *source*, into the transcript."""
        self.transcript.write(source, text, at=self.registry.journal_writer.clock.wall.time())

    def note_progress(self) -> None:
        """Report to the monitor, if there is one, that the agent has made progress."""
        if self.monitor is not None:
            self.monitor.progressed = True

    def report_progress(self) -> None:
        """Report output of the agent, before its meaning is known, to the monitor, if there is one."""
        if self.monitor is not None:
            self.monitor.report_progress()
