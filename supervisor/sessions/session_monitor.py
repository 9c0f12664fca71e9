"""Monitor of one session: use against its budget, repeated calls, and signs of life.

The monitor counts and decides what follows; it ends a session only by ``MonitorOwner.abort_session``. A session whose
budget is spent has one more turn, in which it hands back its work. It is aborted when that turn is over, or has used up
its own budget. Every step is a fact in the session's log.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import inf
from typing import Any, Final, Protocol

import msgspec

from actors.timers import Timer
from supervisor.lifecycles.events import ProgressSeen, UrgentMessage
from supervisor.lifecycles.session import Message
from supervisor.lifecycles.turn import DEADLINE, EXTENSION_LEAST_S
from supervisor.lifecycles.types import AbortReason, DeliveryPoint, ModelFailure, Severity
from supervisor.policies import liveness
from supervisor.policies.budgets import Amounts, Budget, BudgetLease, BudgetScope, SpentBudget, hand_back_budget
from supervisor.policies.liveness import Liveness, Stall, StallAction, StallProfileName
from supervisor.policies.loop_detection import FinishedCall, LoopDetector, LoopLimits, Repeated
from supervisor.policies.model_errors import ModelLimits
from supervisor.policies.usage import USAGE
from supervisor.runtime.entity import Entity
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.runtime.journal_writer import Cause
from supervisor.runtime.live_session import LiveSession
from supervisor.sessions.model_error_monitor import ModelErrorMonitor

__all__ = ["BUDGETED", "MonitorOwner", "MonitorSettings", "SessionMonitor"]

BUDGETED: Final = "Budgeted"
"""The fact that says in which scopes a session counts, and with which limits."""

EACH_MAX: Final = 32
"""Reports of one turn that have a record each; of more, those that add a part (1/32) to what is on record."""

PROGRESS_S: Final = 120.0
"""Seconds since the last sign of life within which a session counts as making progress and may get more time (spec 000
asks for a heartbeat)."""

WALL_LEAST_S: Final = 0.01
"""A timer of a turn's time is not set for less."""

ASKED: Final = (
    "Your budget is used up: {words}. Begin nothing new. Hand back what you have, in this one turn and in a few words:"
    " what is done, what is not, and where it is."
)
_WISH: Final = "budget of "
"""Prefix of the ids of such messages; the turn's id follows."""
REPEATS: Final = (
    "You repeat yourself: {words}. Do something else, or say what keeps you. If you go on like that you are ended."
)
WAKE: Final = "Nothing was heard from you for {silent_s:g} s. Say where you are, and go on."
STOP: Final = "Nothing was heard from you for {silent_s:g} s. Stop what you are at, and say what keeps you."


class MonitorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the monitor, for each session and each of its turns."""

    loops: LoopLimits = LoopLimits()
    liveness: Liveness = Liveness()
    model: ModelLimits = ModelLimits()
    session: Budget = Budget()
    turn: Budget = Budget()
    hand_back: Budget = Budget(wall_s=60.0, tool_calls=10)
    """Budget of the turn that hands back; of tokens and money by default a tenth of the limit."""


class MonitorOwner(Protocol):
    """Part of the :class:`MonitorRegistry` that a monitor needs."""

    def turn_began(self, watch: SessionMonitor) -> None: ...

    def turn_ended(self, watch: SessionMonitor) -> None: ...

    def model_failed(self, session_id: str, failure: ModelFailure) -> None:
        """The model of a session's agent failed once."""
        ...

    def abort_session(self, session_id: str, reason: str, actor: str, because: int, blamed: AbortReason) -> None:
        """Abort the session, now; nobody waits for the receipt."""
        ...


class _HandBackPhase(Enum):
    """Progress of handing back, for a session that has spent its budget."""

    NONE = "none"
    ASKED = "asked"
    BEGUN = "begun"
    OVER = "over"


class SessionMonitor:
    """Monitor of one session.

    Args:
        scope: what its use counts in; ``None``: it has no budget.
        patience: which stall profile holds for it.
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
        self._used = self._recorded = Amounts()
        self._calls = 0
        """Its tool calls that are not in there yet: nothing bounds them."""
        self._records = 0
        self._lease: BudgetLease | None = None
        self._turn_id = ""
        self._opened: list[str] = []
        """The turns that wait for the end of that one."""
        self._wall_from_s: float | None = None
        """Until when the time of the turn that runs has been counted."""
        self._wall: Timer | None = None
        self._under_way = False
        self._hand_back = _HandBackPhase.NONE
        self._spent: tuple[SpentBudget, int] | None = None
        """The spent budget, and the number of its record."""
        self._recalled = False
        """An earlier supervisor's record says so."""
        self._told = False
        """Its agent is asked to hand back by a message, which stands in its next prompt."""
        self._loops = LoopDetector(rules.loops)
        self._stall = Stall()
        self.model = ModelErrorMonitor(
            registry, rules.model, self._note, lambda one: monitors.model_failed(session.session_id, one)
        )

    @property
    def used(self) -> Amounts:
        """Return the agent's use, without its child sessions."""
        if self._calls:
            self._used, self._calls = self._used + Amounts(tool_calls=self._calls), 0
        return self._used

    def recall(self, used: Amounts) -> None:
        """Restore the use from an earlier supervisor."""
        self._used = self._recorded = used

    def recall_spent(self, spent: SpentBudget, because: int) -> None:
        """Its budget was spent under an earlier supervisor, as that record says: its next turn hands back, unless the
        limits that hold then are larger."""
        self._spent, self._hand_back, self._recalled = (spent, because), _HandBackPhase.ASKED, True

    # ------------------------------------------------------------------ a turn
    def start_request(self) -> None:
        """Begin with a new request: repeats and silence of the last one do not count."""
        self._loops.begin()
        self._stall = Stall()

    def turn_opened(self, turn_id: str) -> None:
        """Another turn, before its agent is launched: what it is to use is leased now; or, where the agent of the last
        one works on, when that has ended, for what it uses until then is the last one's."""
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
            case _HandBackPhase.ASKED:
                self._begin_hand_back()
            case _HandBackPhase.BEGUN:
                self._abort_spent()
        self._use(Amounts(turns=1))
        self._record_use()

    def _is_spent(self, spent: SpentBudget) -> bool:
        """Whether it still is: that of a scope, or else that of a turn."""
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
            if self.used.turns:
                self._begin_hand_back()
            else:  # it has nothing to hand back
                self._abort_spent()

    def turn_began(self) -> None:
        """Its agent has the prompt."""
        self._under_way = True
        self.model.turn_began(self._turn_id)
        self.report_progress()
        self._monitors.turn_began(self)
        if self._lease is not None:
            self._wall_from_s = self._now()
            self._set_wall()

    def turn_ended(self) -> None:
        """Its agent works on it no more."""
        self._under_way = False
        self.report_progress()
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
        """The session has ended."""
        self._monitors.turn_ended(self)
        self._give_back()

    # ------------------------------------------------------------------ use
    def record_usage(self, amounts: Amounts, said: dict[str, Any]) -> None:
        """Its agent says that it has used so much more; *said* is how it says it."""
        self._use(amounts)
        self._record_use(said)

    def admit_call(self) -> bool:
        """Whether another tool call may begin; it counts from here on."""
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
        if self.scope is not None and self.scope not in counted:  # between turns, or what hands back: bounded apart
            self.scope.count(amounts)

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
        """Look again when the time that is leased has passed."""
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

    # ------------------------------------------------------------------ what is spent
    def _exhaust(self, spent: SpentBudget) -> None:
        """The agent is asked to hand back, once. Where it is doing that, it is over. What is found out when its turn
        has ended is for the next one to hear."""
        if not self._under_way:
            return
        if self._hand_back is _HandBackPhase.BEGUN:
            self._abort_spent(f"; handing back took too much: {spent.words}")
        elif self._hand_back is _HandBackPhase.NONE:
            because = self._note_spent(spent)
            self._hand_back, self._told = _HandBackPhase.ASKED, True
            self._tell(f"{_WISH}{self._turn_id}", ASKED.format(words=spent.words), because)

    def _note_spent(self, spent: SpentBudget) -> int:
        because = self._note("BudgetSpent", spent._asdict(), spent.words)
        self._spent = spent, because
        return because

    def _abort_spent(self, more: str = "") -> None:
        assert self._spent is not None, "something is handed back because of something"
        spent, because = self._spent
        self._abort(f"{spent.words}{more}", because, "budget")

    def _begin_hand_back(self) -> None:
        """The turn that begins is the one that hands back, with a budget of its own."""
        self._give_back()
        self._hand_back = _HandBackPhase.BEGUN
        above = self.scope or BudgetScope("", "", self.rules.turn)
        budget = hand_back_budget(self.rules.hand_back, above)
        self._lease = BudgetLease(BudgetScope(f"{self._turn_id} hand-back", "the turn that hands back", budget))
        self._lease.lacking()

    def select_messages(self, messages: Sequence[Message]) -> list[Message]:
        """Those, but not the wish to hand back of an earlier supervisor whose limits were smaller."""
        spent = self._spent if self._hand_back is not _HandBackPhase.NONE else None
        asked = ASKED.format(words=spent[0].words) if spent is not None else None
        return [one for one in messages if not one.id.startswith(_WISH) or one.text == asked]

    def complete_prompt(self, prompt: str) -> str:
        """The prompt of the turn that begins; one that hands back says so, where no message does: one of an earlier
        supervisor may."""
        if self._hand_back is not _HandBackPhase.BEGUN or self._told or self._spent is None:
            return prompt
        asked = ASKED.format(words=self._spent[0].words)
        return prompt if asked in prompt else f"{prompt}\n\n{asked}"

    def _abort(self, reason: str, because: int, actor: str, blamed: AbortReason = AbortReason.USER_INTERRUPT) -> None:
        if self._hand_back is not _HandBackPhase.OVER:
            self._hand_back = _HandBackPhase.OVER
            self._monitors.abort_session(self.session.session_id, reason, actor, because, blamed)

    # ------------------------------------------------------------------ circles
    def record_call(self, call: FinishedCall) -> None:
        """A call of its agent is over."""
        repeated = self._loops.take(call)
        if repeated is not None and self._hand_back is _HandBackPhase.NONE:
            self._repeats(repeated)

    def _repeats(self, repeated: Repeated) -> None:
        because = self._note("Repeats", repeated._asdict(), repeated.words)
        if repeated.again:
            self._abort(f"it goes round in a circle: {repeated.words}, after it was told so", because, "loops")
        else:
            self._tell(f"circle of {self._turn_id}", REPEATS.format(words=repeated.words), because)

    # ------------------------------------------------------------------ life
    def report_progress(self) -> None:
        """Something came from its agent that may mean nothing: a sign, but from who was woken or asked to stop."""
        if not self._stall.stepped:
            self.session.progressed = True

    def take_progress(self) -> bool:
        """Whether something came from its agent since this was asked last."""
        moved, self.session.progressed = self.session.progressed, False
        if moved:
            return True
        turn = self._registry.entities.get(self._turn_id)
        return turn is not None and _waits_for_human(turn)

    def snapshot(self, moved: bool) -> None:
        """See whether it moves; *moved*: it has, or a session below it."""
        moved = moved or self._registry.journal_writer.disk.outage is not None  # it may wait for the disk
        step = self._stall.snapshot(moved, self.rules.liveness.profile(self._patience))
        if step is not None:
            self._stalled(step)
        elif self._stall.silent * self.rules.liveness.snapshot_s < PROGRESS_S:
            self._see_progress()

    def _see_progress(self) -> None:
        """Its time is extended before it is over: by the snapshot before the last one, since no two clocks agree."""
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
        """While a tool call is open tests may run in it: an agent says nothing then, and may be right."""
        turn = self._registry.entities.get(self._turn_id)
        return StallProfileName.TESTS if turn is not None and turn.data.open else self.patience

    def _stalled(self, step: StallAction) -> None:
        silent_s = self._stall.silent * self.rules.liveness.snapshot_s
        reason = f"nothing was heard from it for {silent_s:g} s"
        because = self._note("Stalled", {"step": step.value, "silent_s": silent_s}, reason)
        message_id = f"{step.value} of {self._turn_id} after {silent_s:g} s"
        match step:
            case StallAction.WAKE:
                self._tell(message_id, WAKE.format(silent_s=silent_s), because, DeliveryPoint.TOOL_BOUNDARY)
            case StallAction.STOP:
                self._tell(message_id, STOP.format(silent_s=silent_s), because)
            case StallAction.KILL:
                words = f"{reason}, after it was woken up and asked to stop"
                self._abort(words, because, liveness.ACTOR, AbortReason.TIMEOUT)

    # ------------------------------------------------------------------ what is said
    def _tell(self, message_id: str, text: str, because: int, point: DeliveryPoint = DeliveryPoint.NOW) -> None:
        message = UrgentMessage(message_id=message_id, sender="supervisor", text=text, point=point)
        self._registry.send(self.session.session_id, message, cause=Cause(because, None, "supervisor"))

    def _note(self, name: str, metadata: dict[str, Any], reason: str) -> int:
        """A fact in the log of the session; its number."""
        cause = Cause(self.session.cause_seq, None, self.session.profile.adapter)
        entity = self._registry.entities.get(self.session.session_id)
        if entity is None or entity.ended:
            return self._registry.journal_writer.last_seq
        severity = Severity.INFO if name == USAGE else Severity.WARNING
        return entity.record_fact(name, cause, metadata, reason=reason, severity=severity).seq

    def _record_use(self, said: dict[str, Any] | None = None, *, last: bool = False) -> None:
        """Put on record what was used, as long as that says enough that is new."""
        if self.scope is None and said is None and not (last and self._records):
            return
        if self.used == self._recorded and not (said and self._records < EACH_MAX):
            return
        if self._records >= EACH_MAX and not last and not _much_more(self.used, self._recorded):
            return
        self._records += 1
        self._recorded = self.used
        told: dict[str, Any] = {"turn": self._turn_id, "used": self.used.as_record}
        if said:
            told["said"] = said
        if self.scope is not None:
            told["scopes"] = self.scope.as_record
        self._note(USAGE, told, self.used.words)


def _much_more(used: Amounts, before: Amounts) -> bool:
    """True if some amount is larger by a part that counts."""
    return any(
        getattr(used, name) - getattr(before, name) > getattr(before, name) / EACH_MAX
        for name in ("tokens", "cost_usd", "turns", "tool_calls", "wall_s", "requests")
    )


def _waits_for_human(turn: Entity) -> bool:
    """Return whether the turn waits for a human: that wait has a deadline of its own."""
    return any(one.asked for one in turn.data.asking)
