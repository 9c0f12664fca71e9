"""Monitor of one session: use against the budget, errors of the model, repeated calls, and signs of life.

The monitor counts and decides what follows; it ends a session only by ``MonitorOwner.abort_session``. A session whose
budget is used up gets one more turn, in which its agent hands back its work: reports what is done and what is not. The
session is aborted when that turn is over, or when that turn has used up its own budget. Every step is a fact in the
session's log.

An agent that is one-shot gets no message: it would begin its work anew. It is neither woken nor asked for anything, its
silence is bounded by the time-out of its turn, and a spent budget ends it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from math import inf
from typing import Any, Final, Protocol

from actors.timers import Timer
from supervisor.diagnostics.notices import BUDGET_NEAR
from supervisor.lifecycles.events import ProgressSeen, TaskFailed, UrgentMessage
from supervisor.lifecycles.session_data import Message
from supervisor.lifecycles.turn import DEADLINE, EXTENSION_LEAST_S
from supervisor.lifecycles.types import AbortReason, DeliveryPoint, ModelFailure, RecordId, Severity, Verdict
from supervisor.policies import liveness
from supervisor.policies.budgets import Amounts, BudgetLease, BudgetScope, SpentBudget, hand_back_budget
from supervisor.policies.context_window import ContextUse
from supervisor.policies.liveness import ONE_SHOT, SilentAgent, Stall, StallAction, StallProfileName
from supervisor.policies.loop_detection import FinishedCall, LoopDetector
from supervisor.policies.model_errors import ModelLimits, ModelRecord
from supervisor.policies.monitor_settings import MonitorSettings
from supervisor.policies.usage import USAGE, ConversationTotals
from supervisor.ports import (
    ChildRequested,
    Compaction,
    ModelErrorReported,
    Out,
    PermissionNeeded,
    TerminalOpened,
    Text,
    ToolClosed,
    ToolOpened,
    Usage,
)
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.live_session import LiveSession

BUDGETED: Final = "Budgeted"
"""Name of the fact about the budget scopes in which a session counts, with the limits of these scopes."""

CALL_TIMED_OUT: Final = "CallTimedOut"
"""Name of the fact that a tool call has taken longer than calls of its kind may."""
CONTEXT_NEAR: Final = "ContextNear"
"""Name of the fact that an agent's context nears the limit of its model's window."""

EACH_MAX: Final = 32
"""Number of usage reports of one turn that are recorded one by one; later reports are recorded only if they add more
than a 32nd to the recorded usage."""

PROGRESS_S: Final = 120.0
"""Seconds since the last sign of life within which a session counts as making progress, so that its turn may get more
time (spec 000 requires a heartbeat)."""

TROUBLE: Final = "ModelTrouble"
"""Name of the fact that an agent's model failed and that the agent tries again by itself."""
IN_VAIN: Final = "ModelAskedInVain"
"""Name of the fact that an agent calls its model again and again, without progress."""
ERRORS_MAX: Final = 32
"""Number of model errors of one turn that are recorded one by one; the failure of the turn names the total number."""
_PROGRESS: Final = (ToolOpened, ToolClosed, PermissionNeeded, TerminalOpened, ChildRequested, Compaction)
"""Messages that count as progress since the last model error, whatever they contain."""

WALL_LEAST_S: Final = 0.01
"""Shortest timer, in seconds, for the time that a turn may take."""

ASKED: Final = (
    "Your budget is used up: {words}. Begin nothing new. Hand back what you have, in this one turn and in a few words:"
    " what is done, what is not, and where it is."
)
_ASKED_ID: Final = "budget of "
"""Prefix of the ids of messages that request the agent to hand back its work; the turn's id follows."""
REPEATS: Final = (
    "You repeat yourself: {words}. Do something else, or say what keeps you. If you go on like that you are ended."
)
WAKE: Final = "Nothing was heard from you for {silent_s:g} s. Say where you are, and go on."
STOP: Final = "Nothing was heard from you for {silent_s:g} s. Stop what you are at, and say what keeps you."


class ModelErrorMonitor:
    """Monitor of model API errors of one session: errors are recorded, and a turn with too many of them fails.

    Such a turn gets ``TaskFailed``, as at its time-out. The clean-up of the turn requests the agent to interrupt its
    work, and kills the agent after ``grace_s`` seconds.

    Args:
        record_fact: appends a fact (name, fields, reason) to the session's log, and returns the record's number.
        on_failure: called at once with every model failure, both of single requests of the agent and of whole turns;
            the provider breaker uses it.
    """

    def __init__(
        self,
        registry: EntityRegistry,
        limits: ModelLimits,
        record_fact: Callable[[str, dict[str, Any], str], RecordId],
        on_failure: Callable[[ModelFailure], None],
    ) -> None:
        self._registry = registry
        self._record_fact = record_fact
        self._on_failure = on_failure
        self._turn_id = ""
        self._failed = False
        self._error_seq: RecordId | None = None
        """Number of the record about the last error."""
        self._counts_requests = False
        """True if the agent reports how many requests to the model it makes."""
        self.record = ModelRecord(limits)

    def turn_began(self, turn_id: str) -> None:
        """Begin to count for another turn, whose prompt the agent has received. Earlier messages belong to the turn
        before, even if that turn had failed already and the new turn was waiting for the agent."""
        self._turn_id, self._failed = turn_id, False
        self.record.turn_opened()

    def observe(self, out: Out) -> None:
        """Process a message that the agent sent within its turn."""
        if isinstance(out, Text):
            if out.kind != "log":
                self.record.said(out.text)
        elif isinstance(out, _PROGRESS):
            self.record.progressed()
        elif isinstance(out, ModelErrorReported) and not self._failed:
            self._on_error(out)
        elif isinstance(out, Usage) and not self._failed:
            # Each report of an agent that does not count its requests is one request; their rate then has no meaning.
            self._counts_requests = self._counts_requests or out.requests > 0
            if self._counts_requests:
                verdict = self.record.requested(out.requests, self._registry.system.timers.now())
            else:
                verdict = self.record.reported()
            if verdict is not None:
                self._fail_turn(verdict, self._record_fact(IN_VAIN, {"turn": self._turn_id}, verdict.error))

    def judge(self, verdict: Verdict) -> Verdict:
        """Return the final verdict of a turn that the agent ended with *verdict*, with regard to the model errors
        before."""
        if verdict.model is None:
            return verdict
        self._on_failure(verdict.model)
        return self.record.failed(verdict)

    def _on_error(self, error: ModelErrorReported) -> None:
        now = self._registry.system.timers.now()
        ruling = self.record.troubled(error.problem, error.status, error.words, now)
        if self.record.attempts <= ERRORS_MAX:
            given = {
                "problem": error.problem.value,
                "status": error.status,
                "attempt": error.attempt or None,
                "retry_s": error.retry_s,
                "words": error.words or None,
            }
            fields = {name: one for name, one in given.items() if one is not None}
            fact = {"turn": self._turn_id, **fields, "in_a_row": ruling.in_a_row}
            self._error_seq = self._record_fact(TROUBLE, fact, "")
        self._on_failure(ModelFailure(problem=error.problem, status=error.status))
        if ruling.verdict is not None:
            self._fail_turn(ruling.verdict, self._error_seq)

    def _fail_turn(self, verdict: Verdict, because: RecordId | None) -> None:
        self._failed = True
        self._registry.send(self._turn_id, TaskFailed(verdict=verdict), cause=Cause(because, None, "model"))


class MonitorOwner(Protocol):
    """Part of the :class:`MonitorRegistry` that a session monitor needs."""

    def turn_began(self, monitor: SessionMonitor) -> None: ...

    def turn_ended(self, monitor: SessionMonitor) -> None: ...

    def model_failed(self, session_id: str, failure: ModelFailure) -> None:
        """Report one model failure of the session's agent."""
        ...

    def abort_session(self, session_id: str, reason: str, actor: str, because: RecordId, blamed: AbortReason) -> None:
        """Abort the session now, without a receipt."""
        ...

    def abort_call(self, call_id: str, reason: str, actor: str, because: RecordId, blamed: AbortReason) -> None:
        """Abort the tool call now, without a receipt."""
        ...


class _HandBackPhase(Enum):
    """Phase of handing back the work, for a session whose budget is used up."""

    NONE = "none"
    ASKED = "asked"
    BEGUN = "begun"
    OVER = "over"


class SessionMonitor:
    """Monitor of one session, which counts the session's use and decides when to warn the agent or abort the session.

    Args:
        scope: budget scope in which the session's use counts; ``None``: the session has no budget.
        patience: name of the session's stall profile.
    """

    def __init__(
        self,
        registry: EntityRegistry,
        session: LiveSession,
        monitors: MonitorOwner,
        rules: MonitorSettings,
        scope: BudgetScope | None,
        patience: StallProfileName,
    ) -> None:
        self._registry = registry
        self._monitors = monitors
        self.session = session
        self.rules = rules
        self.scope = scope
        self.patience = patience
        self.progressed = False
        self._used = self._recorded = Amounts()
        self.totals = ConversationTotals()
        self._calls = 0
        """Number of tool calls that ``_used`` does not include yet, for a session whose calls no budget bounds."""
        self._records = 0
        self._context_near = False
        """True if the agent has reported that its context nears the limit of the window."""
        self._lease: BudgetLease | None = None
        self._turn_id = ""
        self._opened: list[str] = []
        """Ids of turns that were opened while the agent worked on an earlier turn."""
        self._wall_from_s: float | None = None
        """Time up to which the running turn's time was counted (seconds of the timers)."""
        self._wall: Timer | None = None
        self._call_timers: dict[str, Timer] = {}
        """Timers of the open calls of kinds that have a time limit, by the id of the call."""
        self._under_way = False
        self._hand_back = _HandBackPhase.NONE
        self._spent: tuple[SpentBudget, RecordId] | None = None
        """The budget that was used up, and the number of the record about it."""
        self._recalled = False
        """True if the budget was used up under an earlier supervisor."""
        self._was_asked = False
        """True if a message in the agent's next prompt requests the agent to hand back its work."""
        self._loops = LoopDetector(rules.loops)
        self._stall = Stall()
        self.model = ModelErrorMonitor(
            registry, rules.model, self._record_fact, partial(monitors.model_failed, session.session_id)
        )

    @property
    def idle_s(self) -> float:
        return self.rules.liveness.idle_s

    @property
    def used(self) -> Amounts:
        """Amounts that the session's agents have used, without the amounts of child sessions."""
        if self._calls:
            self._used, self._calls = self._used + Amounts(tool_calls=self._calls), 0
        return self._used

    def recall(self, used: Amounts, totals: Mapping[str, Amounts]) -> None:
        """Restore the used amounts that were recorded under an earlier supervisor, and the totals of the session's
        conversations up to which they were counted."""
        self._used = self._recorded = used
        self.totals = ConversationTotals(totals)

    def recall_spent(self, spent: SpentBudget, because: RecordId) -> None:
        """Restore the fact, from the record *because*, that the budget was used up under an earlier supervisor. In the
        next turn the agent hands back its work, unless the limits that then apply are larger."""
        self._spent, self._hand_back, self._recalled = (spent, because), _HandBackPhase.ASKED, True

    # ------------------------------------------------------------------ a turn
    def start_request(self) -> None:
        """Begin another request, or another try of a request that failed: repeated calls and silence before that no
        longer count."""
        self._loops.begin()
        self._stall = Stall()

    def turn_opened(self, turn_id: str) -> None:
        """Lease the budget of another turn, before the turn's agent is launched. If the agent still works on the last
        turn, the budget is leased when that turn has ended: until then the use counts for the last turn."""
        if self._under_way:
            self._opened.append(turn_id)
        else:
            self._open(turn_id)

    def _open(self, turn_id: str) -> None:
        self._give_back()
        self._turn_id, self._records = turn_id, 0
        if self._recalled and self._spent is not None and not self._is_spent(self._spent[0]):
            self._hand_back = _HandBackPhase.NONE
        self._recalled = False
        match self._hand_back:
            case _HandBackPhase.NONE:
                self._lease_turn(turn_id)
            case _HandBackPhase.ASKED if not self.session.profile.one_shot:
                self._begin_hand_back()
            case _HandBackPhase.ASKED | _HandBackPhase.BEGUN:
                self._abort_spent()
        self._use(Amounts(turns=1))
        self._record_use()

    def _is_spent(self, spent: SpentBudget) -> bool:
        """Return whether the budget in *spent*, of a scope or of a turn, is still used up under the present limits."""
        above = self.scope
        whose = next((one for one in above.chain if one.title == spent.whose), None) if above is not None else None
        if above is not None and whose is not None and above.left(spent.measure) == 0.0:
            return True
        limit = (self.rules.turn if whose is None else whose).limits.get(spent.measure)
        return limit is not None and limit <= spent.used  # the last of its use may not be on record

    def _lease_turn(self, turn_id: str) -> None:
        if self.rules.turn.limits:
            self._lease = BudgetLease(BudgetScope(turn_id, f"turn {turn_id}", self.rules.turn, self.scope))
        elif self.scope is not None:
            self._lease = BudgetLease(self.scope)
        spent = self._lease.lacking() if self._lease is not None else None
        if spent is not None:
            self._note_spent(spent)
            if self.used.turns and not self.session.profile.one_shot:
                self._begin_hand_back()
            else:  # nothing to hand back
                self._abort_spent()

    def turn_began(self) -> None:
        """Begin to count the turn's time, because the agent has received the turn's prompt."""
        self._under_way = True
        self.model.turn_began(self._turn_id)
        self.report_progress()
        self._monitors.turn_began(self)
        if self._lease is not None:
            self._wall_from_s = self._now()
            self._set_wall()

    def turn_ended(self) -> None:
        """Count the rest of the turn's time, return the leased budget and record the use, because the agent has stopped
        work on the turn."""
        self._under_way = False
        self.report_progress()
        for call_id in [*self._call_timers]:
            self.call_closed(call_id)
        self._monitors.turn_ended(self)
        self._count_wall()
        self._give_back()
        self._record_use(last=True)
        opened, self._opened = self._opened, []
        if self._hand_back is _HandBackPhase.BEGUN:
            self._abort_spent()
            return
        for turn_id in opened:
            self._open(turn_id)

    def ended(self) -> None:
        """Return the leased budget, because the session has ended."""
        self._monitors.turn_ended(self)
        self._give_back()

    # ------------------------------------------------------------------ use
    def record_usage(self, amounts: Amounts, report: dict[str, Any], total_of: str | None = None) -> None:
        """Count amounts that the agent reports in addition to earlier reports, or, with *total_of*, as the totals of
        the conversation with that id; *report* is what the agent wrote."""
        added = amounts if total_of is None else self.totals.increase(total_of, amounts)
        if added.tokens or added.cost_usd:  # the same report again says nothing about the work
            self.report_progress()
        self._use(added)
        self._record_use(report)

    def record_context(self, context: ContextUse) -> None:
        """Record that the agent's context nears the limit of the window, when that is reported for the first time."""
        if context.is_near and not self._context_near:
            fact = {"turn": self._turn_id, "tokens": context.tokens, "window": context.window}
            self._record_fact(CONTEXT_NEAR, fact, context.words)
        self._context_near = context.is_near

    @property
    def context_near(self) -> bool:
        """Whether the agent's last report said that its context nears the limit, and it has not compacted since."""
        return self._context_near

    def context_compacted(self) -> None:
        """Note that the agent compacts its context now."""
        self._context_near = False

    def admit_call(self) -> bool:
        """Count another tool call; return ``False`` if the budget does not allow the call."""
        if self._lease is None and self.scope is None:
            self._calls += 1
            return True
        if self._hand_back in (_HandBackPhase.ASKED, _HandBackPhase.OVER):
            return False
        if self._lease is not None and (spent := self._lease.lack("tool_calls")) is not None:
            self._exhaust(spent)
            return False
        self._use(Amounts(tool_calls=1))
        if self._lease is not None:
            self._record_use()
        return True

    def _use(self, amounts: Amounts) -> None:
        self._used = self._used + amounts
        lease = self._lease
        if lease is not None:
            spent = lease.use(amounts)
            if spent is not None:
                self._exhaust(spent)
        counted = () if lease is None else lease.scope.chain
        if self.scope is not None and self.scope not in counted:  # between turns, or in the turn that hands back
            self.scope.count(amounts)
        for near in self.scope.check_near() if self.scope is not None else ():
            text = f"{near.used / near.limit:.0%} of the budget of {near.whose} is used ({near.measure})"
            self._record_fact(BUDGET_NEAR, near._asdict(), text)

    def _give_back(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.give_back()
        wall, self._wall = self._wall, None
        if wall is not None:
            self._registry.system.timers.cancel(wall)

    # ------------------------------------------------------------------ time
    def _now(self) -> float:
        return self._registry.system.timers.now()

    def _set_wall(self) -> None:
        """Set a timer for the end of the leased time, if the lease bounds the time."""
        held_s = self._lease.held("wall_s") if self._lease is not None else inf
        if held_s != inf and self._hand_back in (_HandBackPhase.NONE, _HandBackPhase.BEGUN):
            self._wall = self._registry.system.timers.set(None, None, max(held_s, WALL_LEAST_S), self._wall_due)

    def _wall_due(self, timer: Timer) -> None:
        self._wall = None
        self._count_wall(due=True)
        self._set_wall()

    def _count_wall(self, *, due: bool = False) -> None:
        if self._wall_from_s is None:
            return
        now_s, from_s = self._now(), self._wall_from_s
        self._wall_from_s = now_s if due else None
        self._use(Amounts(wall_s=now_s - from_s))

    # ------------------------------------------------------------------ a spent budget
    def _exhaust(self, spent: SpentBudget) -> None:
        """Request the agent, once, to hand back its work; abort a session that is already handing back. If the turn
        that used up the budget has already ended, nothing is done: the next turn is affected."""
        if not self._under_way:
            return
        if self._hand_back is _HandBackPhase.BEGUN:
            self._abort_spent(f"; handing back took too much: {spent.words}")
        elif self._hand_back is _HandBackPhase.NONE:
            because = self._note_spent(spent)
            if self.session.profile.one_shot:
                self._abort_spent()
                return
            self._hand_back, self._was_asked = _HandBackPhase.ASKED, True
            asked = ASKED.format(words=spent.words)
            self._send_message(f"{_ASKED_ID}{self._turn_id}", asked, because, AbortReason.BUDGET_SPENT)

    def _note_spent(self, spent: SpentBudget) -> RecordId:
        because = self._record_fact("BudgetSpent", spent._asdict(), spent.words)
        self._spent = spent, because
        return because

    def _abort_spent(self, more: str = "") -> None:
        assert self._spent is not None, "a session hands back only after its budget was spent"
        spent, because = self._spent
        self._abort(f"{spent.words}{more}", because, "budget", AbortReason.BUDGET_SPENT)

    def _begin_hand_back(self) -> None:
        """Make the beginning turn the one in which the agent hands back its work, and give it a budget of its own."""
        self._give_back()
        self._hand_back = _HandBackPhase.BEGUN
        above = self.scope or BudgetScope("", "", self.rules.turn)
        budget = hand_back_budget(self.rules.hand_back, above)
        self._lease = BudgetLease(BudgetScope(f"{self._turn_id} hand-back", "the turn that hands back", budget))
        self._lease.lacking()

    def select_messages(self, messages: Sequence[Message]) -> list[Message]:
        """Return *messages* without requests to hand back the work that come from an earlier supervisor with smaller
        limits."""
        spent = self._spent if self._hand_back is not _HandBackPhase.NONE else None
        asked = ASKED.format(words=spent[0].words) if spent is not None else None
        return [one for one in messages if not one.id.startswith(_ASKED_ID) or one.text == asked]

    def complete_prompt(self, prompt: str) -> str:
        """Return *prompt*. In the turn in which the agent hands back its work, add the request to do so, unless a
        message already contains it."""
        if self._hand_back is not _HandBackPhase.BEGUN or self._was_asked or self._spent is None:
            return prompt
        asked = ASKED.format(words=self._spent[0].words)
        return prompt if asked in prompt else f"{prompt}\n\n{asked}"

    def _abort(self, reason: str, because: RecordId, actor: str, blamed: AbortReason) -> None:
        if self._hand_back is not _HandBackPhase.OVER:
            self._hand_back = _HandBackPhase.OVER
            self._monitors.abort_session(self.session.session_id, reason, actor, because, blamed)

    # ------------------------------------------------------------------ time of a call
    def call_opened(self, call_id: str, kind: str) -> None:
        limit_s = self.session.profile.tool_timeouts.get(kind)
        if limit_s is not None:
            timers = self._registry.system.timers
            self._call_timers[call_id] = timers.set(
                None, None, limit_s, lambda _: self._call_due(call_id, kind, limit_s)
            )

    def call_closed(self, call_id: str) -> None:
        if (timer := self._call_timers.pop(call_id, None)) is not None:
            self._registry.system.timers.cancel(timer)

    def _call_due(self, call_id: str, kind: str, limit_s: float) -> None:
        """Abort a call that takes too long. If a person is asked for a permission, its time begins anew instead."""
        del self._call_timers[call_id]  # a timer that has fired must not be cancelled
        turn = self._registry.entities.get(self._turn_id)
        if turn is not None and any(one.asked for one in turn.data.asking):
            self.call_opened(call_id, kind)
            return
        reason = f"a call of the kind {kind} may take {limit_s:g} s (agents.*.tool_timeouts)"
        because = self._record_fact(CALL_TIMED_OUT, {"call": call_id, "kind": kind, "limit_s": limit_s}, reason)
        self._monitors.abort_call(call_id, reason, "timeout", because, AbortReason.TIMEOUT)

    # ------------------------------------------------------------------ loops
    @property
    def finished_calls(self) -> int:
        """Number of calls that have finished so far, for :meth:`record_call`."""
        return self._loops.taken

    def record_call(self, call: FinishedCall, after: int) -> None:
        """Check whether a finished call, which began when *after* calls had finished, is part of a loop: warn the agent
        at the first loop, abort the session at the next."""
        repeated = self._loops.take(call, after)
        if repeated is None or self._hand_back is not _HandBackPhase.NONE:
            return
        because = self._record_fact("Repeats", repeated._asdict(), repeated.words)
        if repeated.again:
            said = "" if self.session.profile.one_shot else ", after it was told so"
            words = f"it goes round in a circle: {repeated.words}{said}"
            self._abort(words, because, "loops", AbortReason.LOOP)
        elif not self.session.profile.one_shot:
            text = REPEATS.format(words=repeated.words)
            self._send_message(f"circle of {self._turn_id}", text, because, AbortReason.LOOP)

    # ------------------------------------------------------------------ life
    def report_progress(self) -> None:
        """Count output of the agent, before its meaning is known, as progress. After a stall action (the agent was
        woken or asked to stop) such output does not count: it may be a mere reaction to that action."""
        if not self._stall.taken:
            self.progressed = True

    @property
    def is_bounded(self) -> bool:
        """Whether the time-out of the turn under way alone bounds the agent's silence."""
        return self._under_way and self.session.profile.one_shot

    def take_progress(self) -> bool:
        """Return whether the session has progressed since the last call of this method, or waits for a human, which has
        a deadline of its own."""
        moved, self.progressed = self.progressed, False
        turn = self._registry.entities.get(self._turn_id)
        return moved or (turn is not None and any(one.asked for one in turn.data.asking))

    def snapshot(self, moved: bool) -> None:
        """Apply the stall profile. *moved* is true if the session, or a session below it, has progressed since the last
        snapshot."""
        moved = moved or self._registry.journal_writer.disk.outage is not None  # it may wait for the disk
        profile = ONE_SHOT if self.session.profile.one_shot else self.rules.liveness.profile(self._patience)
        step = self._stall.snapshot(moved, profile)
        if step is not None:
            self._stalled(step)
        elif self._stall.silent * self.rules.liveness.snapshot_s < PROGRESS_S:
            self._see_progress()

    def silence(self) -> SilentAgent | None:
        """Return the snapshots without progress of the turn under way; ``None`` if the last one had progress and no
        action is to be forgotten."""
        if not (self._under_way and (self._stall.silent or self._stall.taken)):
            return None
        one_shot = self.session.profile.one_shot
        return self._stall.describe(
            self.session.session_id, self._turn_id, self._patience, self.rules.liveness, one_shot=one_shot
        )

    def _see_progress(self) -> None:
        """Report progress, which extends the turn's deadline, when no more than two snapshots are left before the
        deadline: two timers may not fire in order."""
        turn, ctx = self._registry.entities.get(self._turn_id), self._registry.system.context(self._turn_id)
        left_s = ctx.read_timer(DEADLINE) if ctx is not None else None
        if turn is None or left_s is None or left_s > 2 * self.rules.liveness.snapshot_s:
            return
        more_s = (turn.data.most_s or 0.0) - turn.data.due_s
        if turn.data.verdict is None and more_s >= EXTENSION_LEAST_S:
            seen = ProgressSeen(left_s=left_s)
            self._registry.send(self._turn_id, seen, cause=Cause(self.session.cause_seq, None, "supervisor"))

    @property
    def _patience(self) -> StallProfileName:
        """Stall profile that applies now. While a tool call is open it is the profile for tests, because a silent agent
        may be running tests."""
        turn = self._registry.entities.get(self._turn_id)
        return StallProfileName.TESTS if turn is not None and turn.data.open else self.patience

    def _stalled(self, step: StallAction) -> None:
        silent_s = self._stall.silent * self.rules.liveness.snapshot_s
        reason = f"nothing was heard from it for {silent_s:g} s"
        liveness_rules = self.rules.liveness
        kill_s = liveness_rules.profile(self._patience).kill * liveness_rules.snapshot_s
        fact = {"step": step.value, "silent_s": silent_s, "ends_in_s": max(0.0, kill_s - silent_s)}
        because = self._record_fact("Stalled", fact, reason)
        message_id = f"{step.value} of {self._turn_id} after {silent_s:g} s"
        match step:
            case StallAction.WAKE:
                text, point = WAKE.format(silent_s=silent_s), DeliveryPoint.TOOL_BOUNDARY
                self._send_message(message_id, text, because, AbortReason.TIMEOUT, point)
            case StallAction.STOP:
                self._send_message(message_id, STOP.format(silent_s=silent_s), because, AbortReason.TIMEOUT)
            case StallAction.KILL:
                words = f"{reason}, after it was woken up and asked to stop"
                self._abort(words, because, liveness.ACTOR, AbortReason.TIMEOUT)

    # ------------------------------------------------------------------ messages and records
    def _send_message(
        self,
        message_id: str,
        text: str,
        because: RecordId,
        blamed: AbortReason,
        point: DeliveryPoint = DeliveryPoint.NOW,
    ) -> None:
        message = UrgentMessage(message_id=message_id, sender="supervisor", text=text, point=point, blamed=blamed)
        self._registry.send(self.session.session_id, message, cause=Cause(because, None, "supervisor"))

    def _record_fact(self, name: str, metadata: dict[str, Any], reason: str) -> RecordId:
        """Append a fact to the session's log; return the record's number."""
        cause = Cause(self.session.cause_seq, None, self.session.profile.adapter)
        entity = self._registry.entities.get(self.session.session_id)
        if entity is None or entity.ended:
            return self._registry.journal_writer.last_seq
        severity = Severity.INFO if name == USAGE else Severity.WARNING
        return entity.record_fact(name, cause, metadata, reason=reason, severity=severity).seq

    def _record_use(self, report: dict[str, Any] | None = None, *, last: bool = False) -> None:
        """Record the amounts used so far, unless the record would add little to the earlier records of this turn."""
        if self.scope is None and report is None and not (last and self._records):
            return
        if self.used == self._recorded and not (report and self._records < EACH_MAX):
            return
        if self._records >= EACH_MAX and not last and not _much_more(self.used, self._recorded):
            return
        self._records += 1
        self._recorded = self.used
        fact: dict[str, Any] = {"turn": self._turn_id, "used": self.used.as_record}
        if totals := self.totals.take_changed():
            fact["totals"] = totals
        if report:
            fact["said"] = report
        if self.scope is not None:
            fact["scopes"] = self.scope.as_record
        self._record_fact(USAGE, fact, self.used.words)


def _much_more(used: Amounts, before: Amounts) -> bool:
    """Return whether any amount in *used* is more than a 32nd larger than in *before*."""
    return any(
        getattr(used, name) - getattr(before, name) > getattr(before, name) / EACH_MAX
        for name in ("tokens", "cost_usd", "turns", "tool_calls", "wall_s", "requests")
    )
