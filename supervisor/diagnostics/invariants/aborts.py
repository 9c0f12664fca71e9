"""Invariants of aborts: their reach, the policy edges they cross, and that each abort is requested once and takes
effect.

The reach is computed on the checker's own tree: SESSION covers the target and all below it; SIBLING all below the
target's parent except the target and its descendants; TOOL all below the call's session that the call started. A
recorded policy edge adds to the reach; nothing else does.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from supervisor.diagnostics.invariants.catalogue import ReportViolation
from supervisor.diagnostics.invariants.shadow_state import RECOVERY, EntityShadow, SessionShadow, TurnShadow
from supervisor.lifecycles.types import AbortPolicy, AbortScope, LifecycleEvent, RecordId, ToolOutcome, TransitionReason
from supervisor.policies.abort_request import CAUSES_MAX

EDGES: Final = tuple(one.name for one in msgspec.structs.fields(AbortPolicy) if one.type is bool)
"""Policy edges that an abort may cross."""
RETURN_S: Final = 1.0
"""Seconds that the result of a returned call may take to reach its turn; the result waits for nothing."""
_ABANDONED: Final = frozenset({ToolOutcome.ABORTED.value, ToolOutcome.UNKNOWN.value})


class _Abort:
    """State of one abort: the target's session and that session's parent at the time of the request, and the policy
    edges crossed so far."""

    def __init__(self, record: LifecycleEvent, session: SessionShadow | None) -> None:
        self.seq, self.at = record.seq, record.monotonic_s
        self.scope = str(record.metadata.get("scope"))
        self.target = str(record.metadata.get("target"))
        self.session = session
        self.above = session.parent if session is not None else None
        self.edges: set[str] = set()
        self.records: dict[str, int] = {}
        self.scopes: dict[int, str] = {}
        """Scopes of the request and of each edge, by the number of the record."""
        self.target_told = False
        self.hits = 0
        """Effects so far: ended sessions, and calls whose result is that of an abort."""
        self.branches: dict[tuple[str, str], SessionShadow | None] = {}

    def branch(self, shadow: EntityShadow, top: SessionShadow | None) -> SessionShadow | None:
        """Return the child of *top* that is *shadow* or has *shadow* below it; ``None`` if *shadow* is not below *top*.
        Results are cached."""
        if top is None:
            return None
        path: list[str] = []
        found: SessionShadow | None = None
        pending = [shadow]
        while pending and found is None:
            one = pending.pop()
            if (top.id, one.id) in self.branches:
                found = self.branches[top.id, one.id]
                continue
            path.append(one.id)
            for above in (one.former_parent, one.parent):
                if above is top and isinstance(one, SessionShadow):
                    found = one
                elif above is not None:
                    pending.append(above)
        for one_id in path:
            self.branches[top.id, one_id] = found
        return found

    def reaches(self, shadow: EntityShadow) -> bool:
        """Return whether the abort's scope, or a recorded policy edge, covers the session *shadow*."""
        if "sibling_to_session" in self.edges and (shadow is self.above or self.branch(shadow, self.above)):
            return True
        if self.scope == AbortScope.SESSION:
            return shadow is self.session or self.branch(shadow, self.session) is not None
        if self.scope == AbortScope.TOOL and self._was_asked_for_by_a_call(shadow):
            return True
        if self.scope == AbortScope.SIBLING or "tool_to_sibling" in self.edges:
            branch = self.branch(shadow, self.above)
            return branch is not None and branch is not self.session
        return False

    def _was_asked_for_by_a_call(self, shadow: EntityShadow) -> bool:
        """Return whether the session *shadow* is, or is below, a child session that the target call started (if the
        target is a session: that any call of the target started)."""
        child = self.branch(shadow, self.session)
        if child is None or self.session is None:
            return False
        return child.started_by is not None and (
            self.target == self.session.id or self.target in _enclosing(self.session, child.started_by)
        )


def _enclosing(session: SessionShadow, call: str) -> list[str]:
    """Return the id of *call* and the ids of the calls in which it is nested."""
    turn_id, _, number = call.rpartition(":c")
    turn, found = session.live.get(turn_id), [call]
    within = turn.within if isinstance(turn, TurnShadow) else {}
    at = int(number) if number.isdigit() else 0
    while at := within.get(at, 0):
        found.append(f"{turn_id}:c{at}")
    return found


class AbortInvariants:
    """Invariants of every recorded abort."""

    def __init__(self, shadows: dict[str, EntityShadow], roots: list[RecordId], report: ReportViolation) -> None:
        self._shadows, self._roots, self._report = shadows, roots, report
        self._aborts: dict[str, _Abort] = {}
        self._joins: set[str] = set()
        self._causes: dict[str, set[str]] = {}
        """Aborts that are causes of each session's end."""
        self._lost_calls: set[str] = set()
        """Turns that had a call aborted."""

    # ------------------------------------------------------------------ the request, and its edges
    def asked(self, record: LifecycleEvent, shadow: EntityShadow, _: Any) -> None:
        if record.metadata.get("policy_edge") is not None:
            self._cross(record, shadow)
            return
        abort_id = str(record.metadata.get("id"))
        if abort_id in self._aborts or abort_id in self._joins:
            self._report("once", shadow.id, f"the abort {abort_id} is asked for a second time")
        session = shadow if isinstance(shadow, SessionShadow) else shadow.parent
        abort = self._aborts[abort_id] = _Abort(record, session)
        abort.records[abort_id] = record.seq
        abort.scopes[record.seq] = abort.scope
        if abort.scope == AbortScope.TOOL:
            self._await_results(abort_id, abort, shadow)
            if isinstance(shadow, TurnShadow):
                self._lost_calls.add(shadow.id)

    def _await_results(self, abort_id: str, abort: _Abort, shadow: EntityShadow) -> None:
        """Add the abort to each open call that it targets, in the shadows of the turns."""
        turns = [shadow] if isinstance(shadow, TurnShadow) else list(shadow.live.values())
        for turn in turns:
            if isinstance(turn, TurnShadow):
                named = [
                    call for call, number in turn.open.items() if abort.target in (shadow.id, f"{turn.id}:c{number}")
                ]
                turn.aborted.update({call: (*turn.aborted.get(call, ()), abort_id) for call in named})

    def _cross(self, record: LifecycleEvent, shadow: EntityShadow) -> None:
        fact, abort = record.metadata, self._aborts.get(str(record.abort_id))
        edge, before = str(fact.get("policy_edge")), str(fact.get("parent_record"))
        if abort is None or abort.records.get(before) != record.cause_id:
            self._report(
                "no_level_crossed", shadow.id, f"crosses {edge} after {before}, which is no record of its abort"
            )
            return
        if edge in abort.edges:
            self._report("no_level_crossed", shadow.id, f"{record.abort_id} crosses {edge} a second time")
        if edge not in EDGES:
            self._report("no_level_crossed", shadow.id, f"crosses {edge}; policies have {', '.join(EDGES)}")
        ruler = abort.session if edge == "tool_to_sibling" else abort.above
        if ruler is None or fact.get("ruled_by") != ruler.id:
            ruling = ruler.id if ruler is not None else "nobody"
            self._report(
                "no_level_crossed", shadow.id, f"crosses {edge} by {fact.get('ruled_by')}'s policy, not {ruling}'s"
            )
        abort.edges.add(edge)
        abort.records[str(fact.get("id"))] = record.seq
        abort.scopes[record.seq] = str(fact.get("scope"))

    # ------------------------------------------------------------------ its effects
    def stopped(self, record: LifecycleEvent, shadow: EntityShadow, step: Any) -> None:
        """Check the record of a session's stop."""
        if record.abort_id is not None:
            self._reached(record, shadow, shadow)
            self._check_named(record, shadow)
            self._causes.setdefault(shadow.id, set()).add(record.abort_id)
        else:
            self.ended(record, shadow, step)

    def _check_named(self, record: LifecycleEvent, shadow: EntityShadow) -> None:
        """Check the reason of an end by an abort: ``sibling_aborted`` exactly for an abort with scope SIBLING."""
        abort = self._aborts.get(str(record.abort_id))
        scope = abort.scopes.get(record.cause_id) if abort is not None and record.cause_id is not None else None
        if scope is None or record.from_status == record.to_status:
            return
        over = TransitionReason.SIBLING_ABORTED if scope == AbortScope.SIBLING else TransitionReason.ABORTED
        if record.transition_reason != over:
            self._report("honest_ends", shadow.id, f"ends as {record.transition_reason} by a {scope} abort")

    def ended(self, record: LifecycleEvent, shadow: EntityShadow, step: Any) -> None:
        """Mark the aborts of a session that recovery ended as received: a dead supervisor could not complete its
        aborts."""
        if record.actor == RECOVERY:
            for abort in self._aborts.values():
                abort.target_told = abort.target_told or abort.session is shadow

    def joined(self, record: LifecycleEvent, shadow: EntityShadow, step: Any) -> None:
        if record.abort_id is None:
            self._report("one_answer", shadow.id, "has one more cause of its end on record, which nobody asked for")
            return
        self._reached(record, shadow, shadow)
        self._check_first(record, shadow)

    def _check_first(self, record: LifecycleEvent, shadow: EntityShadow) -> None:
        """Check that an end names each cause once, up to the number of causes that are remembered."""
        causes = self._causes.setdefault(shadow.id, set())
        if record.abort_id in causes and len(causes) <= CAUSES_MAX:
            self._report("once", shadow.id, f"{record.abort_id} is a cause of its end already")
        causes.add(str(record.abort_id))

    def turn_failed(self, record: LifecycleEvent, shadow: EntityShadow, step: Any) -> None:
        session, verdict = shadow.parent, record.metadata.get("verdict") or {}
        if record.abort_id is not None and session is not None:
            self._reached(record, shadow, session)
        elif shadow.id in self._lost_calls and session is not None:
            aborted = verdict.get("transition_reason") == TransitionReason.ABORTED
            if aborted and session.status == "Running":
                self._report(
                    "tool_stays_tool", shadow.id, "was aborted with one of its calls, and nobody asked for that"
                )

    def call_completed(self, record: LifecycleEvent, shadow: TurnShadow, step: Any) -> None:
        if record.abort_id is not None and record.abort_id not in self._aborts:
            self._unknown(record, shadow)
        for abort_id in shadow.aborted.pop(str(record.metadata.get("call_id")), ()):
            abort = self._aborts[abort_id]
            after_s = record.monotonic_s - abort.at
            if record.metadata.get("outcome") in _ABANDONED:
                abort.hits += 1
            elif after_s > RETURN_S:
                self._report("one_answer", shadow.id, f"a call of it returns {after_s:g} s after its abort {abort_id}")

    def _reached(self, record: LifecycleEvent, shadow: EntityShadow, session: EntityShadow) -> None:
        abort = self._aborts.get(str(record.abort_id))
        if abort is None:
            self._unknown(record, shadow)
            return
        abort.target_told = abort.target_told or session is abort.session
        abort.hits += 1
        if not abort.reaches(session):
            invariant = (
                "tool_stays_tool" if session is abort.session and abort.scope == AbortScope.TOOL else "no_level_crossed"
            )
            edges = f" over {', '.join(sorted(abort.edges))}" if abort.edges else ""
            self._report(
                invariant, shadow.id, f"{record.abort_id}, a {abort.scope} abort of {abort.target}{edges}, reaches it"
            )
        if record.from_status != record.to_status and self._roots[record.seq] != self._roots[abort.seq]:
            self._report("honest_ends", shadow.id, f"ends by {record.abort_id}, and goes back to another root")

    def _unknown(self, record: LifecycleEvent, shadow: EntityShadow) -> None:
        """Check a record that names an abort without a record of its own, which is allowed only if the abort joined an
        end under way."""
        joins = record.cause_id is None and record.from_status == record.to_status
        joins = joins or (record.event == "AbortJoined" and record.cause_id is None)
        if joins or record.abort_id in self._joins:
            self._joins.add(str(record.abort_id))
        else:
            self._report("one_answer", shadow.id, f"{record.event} names {record.abort_id}, which nobody asked for")

    # ------------------------------------------------------------------ in the end
    def check_end(self) -> None:
        """Check at the end that each abort took effect.

        A call may have returned before its abort while its child sessions still lived: then the abort ended those
        sessions. A call that is aborted twice ends by the first abort. An abort of all calls of a session may have
        found no open call.
        """
        hit = {abort.target for abort in self._aborts.values() if abort.hits}
        for abort_id, abort in self._aborts.items():
            session = abort.session
            if abort.scope == AbortScope.SESSION and session is not None and not (abort.target_told and session.ended):
                how = "was never told" if not abort.target_told else "has no last record"
                self._report("one_answer", session.id, f"{abort_id} was to end it, and it {how}")
            of_a_call = session is not None and abort.target != session.id
            if abort.scope == AbortScope.TOOL and of_a_call and abort.target not in hit:
                words = f"{abort_id} aborts {abort.target}, and no call has the result of an abort"
                self._report("tool_stays_tool", session.id if session is not None else abort.target, words)
