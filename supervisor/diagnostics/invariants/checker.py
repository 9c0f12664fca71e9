"""Check a journal's records one by one against all invariants that records alone can show.

Theory of operation
-------------------
The checker keeps a shadow of every entity (:mod:`.shadow_state`): the tree, error counters, claims, open calls, ends.
Shadows are updated from records only. Of the code under test the checker uses only the lifecycle tables, which define
legality (:mod:`supervisor.diagnostics.event_replay`); counters, containment and the reach of aborts are computed again
in a different way, so that a fault in the runtime does not hide itself.

For each record, in this order:

1. number: no gap, and the cause is older (``_check_numbering``);
2. the entity's own sequence and time (``_check_sequence``), or the birth of the entity (``_on_first_record``);
3. a transition is stepped again through the table and compared with the record (``_step_again``);
4. the handlers of the event check their invariants (``_register_handlers``).

A violation is reported once. The shadow then adopts the record, so that one wrong record is one report and not a
thousand. An entity whose record could not be stepped is ``lost``: of its later records only the edges are checked. Each
record costs the same time, however long the log is.

For example, a ``task_completed`` of turn ``lead:t1`` without an earlier ``verify_requested`` violates ``honest_ends``:
success needs the agent's own report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from actors.machine import Step
from supervisor.diagnostics.event_replay import KINDS, Mismatch, data_of, event_of, step_of
from supervisor.diagnostics.invariants.aborts import AbortInvariants
from supervisor.diagnostics.invariants.catalogue import Violation
from supervisor.diagnostics.invariants.containment import ContainmentInvariants
from supervisor.diagnostics.invariants.counters import ErrorCounterInvariants
from supervisor.diagnostics.invariants.exactly_once import ExactlyOnceInvariants
from supervisor.diagnostics.invariants.outcomes import OutcomeInvariants
from supervisor.diagnostics.invariants.shadow_state import EntityShadow, SessionShadow, TurnShadow, new_shadow
from supervisor.diagnostics.work_invariants import WorkInvariants
from supervisor.lifecycles.record_ids import id_after
from supervisor.lifecycles.types import BEGINNING, LifecycleEvent, RecordId

RecordHandler = Callable[[LifecycleEvent, Any, Any], None]
"""Check of one record. Arguments: the record, the shadow of its entity after the record, and the step that the table
makes of the record (``None`` if the record could not be stepped)."""
OnStep = Callable[[LifecycleEvent, Step[Any, Any]], None]
BirthHandler = Callable[[LifecycleEvent, Any], None]

_ANONYMOUS_ACTORS: Final = frozenset({"", "supervisor"})
"""Actors of a record that name nobody in particular."""
_AT_REST: Final[Mapping[str, frozenset[str]]] = {
    "session": frozenset({"Initializing", "SessionComplete"}),
    "agent": frozenset({"idle", "dead"}),
    "turn": frozenset({"REAPED"}),
}
"""States in which an entity that has not ended may be when nothing is in progress; entities of other kinds may be in
any state."""


_TIMED: Final[Mapping[str, frozenset[str]]] = {
    "session": frozenset({"SessionExited", "SessionStable", "GraceExceeded", "BackoffElapsed"}),
}
"""Events of an entity's own timers. The timers end with the state that started them, so such events are never late. A
turn is not listed, because its deadline outlasts its states."""


_SINGLE_ENTITY: Final = frozenset(
    {"legal", "final", "monotonic", "single_active_state", "monotonic_progress", "retry_limit"}
)
"""Invariants that the log of a single entity can show."""


class RecordChecker:
    """Checker of a journal; pass every record in order, from the first, to :meth:`check`.

    *on_step* is called with each transition and the result of the table for it. ``shadows`` is the state of every
    entity so far. With *whole* false, as for an archive, only the invariants of each entity's own log are checked.
    """

    def __init__(self, *, on_step: OnStep | None = None, whole: bool = True) -> None:
        self._on_step = on_step
        self._whole = whole
        self.shadows: dict[str, EntityShadow] = {}
        self._found: list[Violation] = []
        self._seq = BEGINNING
        self._now: LifecycleEvent | None = None
        self._entity_by_seq: list[str] = [""]
        self._roots: list[RecordId] = [BEGINNING]
        self._register_handlers()

    def _register_handlers(self) -> None:
        shadows, report = self.shadows, self._report
        self._tree = tree = ContainmentInvariants(shadows, self._entity_by_seq, report)
        self._outcomes = outcomes = OutcomeInvariants(shadows, self._entity_by_seq, report)
        self._exactly_once = exactly_once = ExactlyOnceInvariants(shadows, report)
        self._aborts = aborts = AbortInvariants(shadows, self._roots, report)
        counters, self._work = ErrorCounterInvariants(report), WorkInvariants(self._report_work_problem)
        self._births: Mapping[str, tuple[BirthHandler, ...]] = {
            "session": (tree.session_born,),
            "turn": (tree.turn_or_agent_born, outcomes.turn_born),
            "agent": (tree.turn_or_agent_born, outcomes.agent_born),
        }
        self._facts: Mapping[str, tuple[RecordHandler, ...]] = {
            "AbortRecord": (aborts.asked,),
            "AbortJoined": (aborts.joined,),
            "Adopted": (tree.adopted,),
        }
        self._refusals: Mapping[tuple[str, str], RecordHandler] = {
            ("turn", "verify_requested"): outcomes.success_refused
        }
        self._every: Mapping[str, RecordHandler] = {
            "task": self._task_moved,
            **dict.fromkeys(("job", "worker", "workstream"), self._work_moved),
        }
        self._events: Mapping[str, Mapping[str, tuple[RecordHandler, ...]]] = {
            "session": {
                "TurnRequested": (exactly_once.requested,),
                "PromptReady": (outcomes.prompt_ready, counters.launches, exactly_once.prompt_ready),
                "AgentLaunched": (outcomes.started,),
                "SessionStarted": (outcomes.started, counters.started),
                "SessionStable": (counters.stable,),
                "SessionExited": (counters.exited, outcomes.session_exited, exactly_once.session_exited),
                "BackoffElapsed": (counters.tried_again,),
                "FatalError": (counters.given_up, aborts.stopped),
                "UrgentMessage": (exactly_once.message,),
                "MessageReceived": (exactly_once.message,),
                "MessageHeard": (exactly_once.message_heard,),
                "OperatorStop": (aborts.stopped,),
                "Ended": (aborts.ended,),
                "TurnReaped": (outcomes.turn_over,),
            },
            "turn": {
                "tool_started": (outcomes.call_started,),
                "tool_completed": (outcomes.call_completed, aborts.call_completed),
                "verify_requested": (outcomes.verify_requested,),
                "task_completed": (outcomes.task_completed,),
                "task_failed": (aborts.turn_failed,),
                "agent_reaped": (outcomes.turn_reaped,),
            },
            "agent": {"agent_ready": (outcomes.agent_ready,), "agent_exited": (outcomes.agent_exited,)},
            "task": {"claimed": (exactly_once.claimed,)},
        }

    def _report(self, invariant: str, entity_id: str, message: str) -> None:
        if not self._whole and invariant not in _SINGLE_ENTITY:
            return
        seq = self._now.seq if self._now is not None else None
        self._found.append(Violation(invariant=invariant, entity_id=entity_id, seq=seq, message=message))

    def _work_moved(self, record: LifecycleEvent, shadow: EntityShadow, step: Any) -> None:
        self._work.check(shadow.name, shadow.id, record.to_status, record.metadata, record.event)

    def _task_moved(self, record: LifecycleEvent, shadow: Any, step: Any) -> None:
        self._exactly_once.task_moved(record, shadow, step)
        self._work_moved(record, shadow, step)

    def _report_work_problem(self, field: str | None, message: str) -> None:
        assert self._now is not None, "work is looked at with each of its records"
        self._report(self._work.invariant, self._now.entity_id, f"{field}: {message}" if field else message)

    # ------------------------------------------------------------------ one record
    def check(self, record: LifecycleEvent) -> list[Violation]:
        """Check *record* against all invariants; return the violations, usually none."""
        self._now, self._found = record, []
        self._check_numbering(record)
        shadow = self.shadows.get(record.entity_id)
        if shadow is None:
            shadow = self._on_first_record(record)
            if shadow is None:
                return self._found
        else:
            self._check_sequence(record, shadow)
        if record.outcome == "transition":
            self._apply_transition(record, shadow)
        elif record.outcome == "fact":
            for handle in self._facts.get(record.event, ()):
                handle(record, shadow, None)
        elif record.outcome == "refused" and (shadow.name, record.event) in self._refusals:
            self._refusals[shadow.name, record.event](record, shadow, None)
        return self._found

    def _check_numbering(self, record: LifecycleEvent) -> None:
        """Check that record numbers have no gap, that causes are older, and that a record without a cause names an
        actor."""
        seq, cause = record.seq, record.cause_id
        if seq != id_after(self._seq):
            if self._whole:
                self._report("legal", record.entity_id, f"record {seq} comes after {self._seq}")
            self._fill_gap(seq)
        self._seq = seq
        root = seq
        if cause is None:
            if record.actor in _ANONYMOUS_ACTORS:
                self._report("honest_ends", record.entity_id, f"{record.event} has no cause, and nobody is named")
        elif 0 < cause < seq:
            root = self._roots[cause]
        else:
            self._report(
                "honest_ends", record.entity_id, f"{record.event} is caused by record {cause}, which is no older"
            )
        if seq == len(self._roots):
            self._roots.append(root)
            self._entity_by_seq.append(record.entity_id)

    def _fill_gap(self, seq: RecordId) -> None:
        """Fill in missing records as root records without an entity."""
        missing = range(len(self._roots), min(seq, len(self._roots) + 1_000_000))
        self._roots.extend(map(RecordId, missing))
        self._entity_by_seq.extend("" for _ in missing)

    # ------------------------------------------------------------------ births
    def _on_first_record(self, record: LifecycleEvent) -> EntityShadow | None:
        """Create the shadow of an entity from the entity's first record; return ``None`` for an unknown kind."""
        kind = KINDS.get(record.entity_type)
        if kind is None:
            known = ", ".join(KINDS)
            self._report("legal", record.entity_id, f"is a {record.entity_type!r}; there are {known}")
            return None
        shadow = self.shadows[record.entity_id] = new_shadow(kind, record)
        if record.outcome != "born" or record.entity_seq != 1:
            self._report("legal", shadow.id, f"begins with record {record.entity_seq} of its log, a {record.outcome}")
            shadow.lost = True
            return shadow
        if record.to_status not in kind.initial:
            born = ", ".join(sorted(kind.initial))
            self._report("legal", shadow.id, f"is born in {record.to_status}; a {record.entity_type} is born in {born}")
        try:
            shadow.data = data_of(kind, record)
        except Mismatch as words:
            self._mark_lost(shadow, str(words))
        for handle in self._births.get(record.entity_type, ()):
            handle(record, shadow)
        return shadow

    def _mark_lost(self, shadow: EntityShadow, words: str) -> None:
        shadow.lost = True
        self._report("legal", shadow.id, words)

    def _check_sequence(self, record: LifecycleEvent, shadow: EntityShadow) -> None:
        """Check that the record follows the entity's last record."""
        if record.entity_seq != shadow.entity_seq + 1:
            self._report("legal", shadow.id, f"record {record.entity_seq} of its log comes after {shadow.entity_seq}")
        if record.monotonic_s < shadow.at:
            self._report("monotonic", shadow.id, f"its time goes back by {shadow.at - record.monotonic_s:g} s")
        shadow.entity_seq, shadow.at = record.entity_seq, record.monotonic_s
        if record.outcome == "transition":
            return
        if record.outcome == "born":
            self._report("once", shadow.id, "is born a second time")
        elif record.to_status != shadow.status:
            self._report("legal", shadow.id, f"a {record.outcome} moves it from {shadow.status} to {record.to_status}")
        elif record.outcome in ("refused", "stale"):
            if not shadow.lost:
                self._check_refusal(record, shadow)
            if record.actor == shadow.id and record.event in _TIMED.get(shadow.name, ()):
                self._report(
                    "legal", shadow.id, f"its own timer raises {record.event} in {shadow.status}, which it outlived"
                )

    def _check_refusal(self, record: LifecycleEvent, shadow: EntityShadow) -> None:
        """Check that the table does not allow a refused event, and that a stale event came too late."""
        kind = shadow.kind
        try:
            event = event_of(kind, record)
            if record.outcome == "refused":
                step_of(kind, shadow.state, shadow.data, event)
            elif kind.stale(shadow.data, event):
                return
        except Mismatch:
            return
        words = "which its table allows" if record.outcome == "refused" else "which did not come too late"
        self._report("legal", shadow.id, f"records {record.event} in {shadow.status} as {record.outcome}, {words}")

    # ------------------------------------------------------------------ transitions
    def _apply_transition(self, record: LifecycleEvent, shadow: EntityShadow) -> None:
        source = shadow.status
        if record.from_status != source:
            invariant = "single_active_state" if shadow.name == "job" else "legal"
            self._report(
                invariant, shadow.id, f"{record.event} comes from {record.from_status}; it was last in {source}"
            )
        step = self._step_again(record, shadow)
        if shadow.ended and (step is None or step.rule.extension is None):
            self._report("final", shadow.id, f"{record.event} takes effect after its last record")
        shadow.status = record.to_status
        if source != record.to_status:
            self._on_state_changed(record, shadow, source, step)
        every = self._every.get(shadow.name)
        if every is not None:
            every(record, shadow, step)
        for handle in self._events.get(shadow.name, {}).get(record.event, ()):
            handle(record, shadow, step)
        if step is not None:
            if self._on_step is not None:
                self._on_step(record, step)
            if step.effects and type(shadow) is SessionShadow:
                self._outcomes.record_opened_turns(record, shadow, step)
                self._exactly_once.check_replies(record, shadow, step)
            if not shadow.ended and shadow.kind.ends_with(step):
                shadow.ended = True
                self._tree.ended(record, shadow)

    def _step_again(self, record: LifecycleEvent, shadow: EntityShadow) -> Step[Any, Any] | None:
        """Step the event through the production table and compare the result with the record."""
        kind = shadow.kind
        if shadow.lost:
            self._check_edge(record, shadow)
            return None
        try:
            event = event_of(kind, record)
            if kind.stale(shadow.data, event):
                self._report("legal", shadow.id, f"{record.event} takes effect, though it came too late")
            step = step_of(kind, shadow.state, shadow.data, event)
        except Mismatch as words:
            self._mark_lost(shadow, str(words))
            self._adopt_recorded_state(record, shadow)
            return None
        shadow.state, shadow.data = step.state, step.data
        if step.state._value_ != record.to_status:
            came = f"{record.event} takes it from {record.from_status} to {step.state.value}, not to {record.to_status}"
            self._mark_lost(shadow, came)
            self._adopt_recorded_state(record, shadow)
        return step

    def _adopt_recorded_state(self, record: LifecycleEvent, shadow: EntityShadow) -> None:
        shadow.state = shadow.kind.states.get(record.to_status, shadow.state)

    def _check_edge(self, record: LifecycleEvent, shadow: EntityShadow) -> None:
        """Check only the edge of an entity whose data is unknown."""
        if (record.from_status, record.event, record.to_status) not in shadow.kind.edges:
            words = f"{record.event} does not take it from {record.from_status} to {record.to_status}"
            self._report("legal", shadow.id, words)
        self._adopt_recorded_state(record, shadow)

    def _on_state_changed(
        self, record: LifecycleEvent, shadow: EntityShadow, source: str, step: Step[Any, Any] | None
    ) -> None:
        if record.to_status == "Stopped" and type(shadow) is SessionShadow:
            shadow.stopping = True
        marked = step is not None and step.rule.extension is not None
        if source in shadow.kind.terminal and not marked:
            work = shadow.name in ("job", "worker", "workstream")
            invariant = "monotonic_progress" if work else "final"
            self._report(invariant, shadow.id, f"leaves {source}, which is terminal, for {record.to_status}")

    # ------------------------------------------------------------------ the end
    def finish(self, *, quiescent: bool) -> list[Violation]:
        """Return the violations that missing records show. *quiescent*: nothing is in progress, or should be."""
        self._now, self._found = None, []
        if quiescent:
            for shadow in self.shadows.values():
                self._check_rest(shadow)
            self._exactly_once.check_end()
            self._aborts.check_end()
        return self._found

    @property
    def all_ended(self) -> bool:
        """Whether every session has its last record, so that nothing is in progress or will be."""
        return all(shadow.ended for shadow in self.shadows.values() if type(shadow) is SessionShadow)

    def _check_rest(self, shadow: EntityShadow) -> None:
        if shadow.ended:
            return
        if type(shadow) is SessionShadow and shadow.stopping:
            self._report("recorded", shadow.id, "was stopped, and has no last record")
        elif shadow.status not in _AT_REST.get(shadow.name, (shadow.status,)):
            self._report("quiescence", shadow.id, f"is still in {shadow.status}")
        if type(shadow) is TurnShadow and shadow.open:
            self._report("recorded", shadow.id, f"its calls {', '.join(shadow.open)} have no result")
