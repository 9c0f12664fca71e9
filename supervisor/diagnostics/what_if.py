"""Run the recorded events again under another policy, up to the record where the new run differs from the recorded one.
Pure.

Aborts are planned again on the tree at the time of the abort (:func:`supervisor.policies.abort_plan.plan_abort`);
sessions are stepped again through their table under other limits. For an entity that would have ended earlier the
consequences are followed: its later records would not exist. For an entity that would have lived longer they are not:
its actions are unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

import msgspec

from actors.restart import Intensity, add_restart
from supervisor.diagnostics.event_replay import Mismatch, event_of, step_of
from supervisor.diagnostics.invariants import RecordChecker
from supervisor.diagnostics.invariants.aborts import EDGES
from supervisor.diagnostics.invariants.shadow_state import EntityShadow, SessionShadow, TurnShadow
from supervisor.lifecycles.effects import SendPrompt
from supervisor.lifecycles.session import Session, backoff_ms
from supervisor.lifecycles.session_data import SessionData
from supervisor.lifecycles.types import (
    AbortPolicy,
    CancelMode,
    LifecycleEvent,
    NoSuchEntity,
    RecordId,
    SessionLimits,
    TransitionReason,
    UnknownValue,
)
from supervisor.policies.abort_plan import AbortPlan, NoSiblings, TreeNode, plan_abort

LIMITS: Final[Mapping[str, type]] = {
    "max_consecutive_errors": int,
    "max_total_errors": int,
    "backoff_base_ms": int,
    "backoff_cap_ms": int,
    "restarts_max": int,
    "restarts_within_s": float,
}
"""Limits of a session that decide about another start, with their types; ``supervisor replay`` can change them."""


# ----------------------------------------------------------------------------------------------------- what comes out
class AbortDiffers(msgspec.Struct, frozen=True, kw_only=True):
    """An abort with another reach than recorded: ``would_end`` lists additional ends, ``would_live`` the ends that
    would not have happened."""

    seq: RecordId
    abort_id: str
    target: str
    scope: str
    would_end: tuple[str, ...]
    would_live: tuple[str, ...]


class SessionDiffers(msgspec.Struct, frozen=True, kw_only=True):
    """A session that would have acted differently after a failure: ``give_up`` where it tried again, or
    ``try_again``."""

    seq: RecordId
    session_id: str
    would: str
    why: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Differences between the new run and the recorded one. ``parts_at`` is the first record after which the runs
    differ, or ``None``.

    The entities in ``ended`` would have ended earlier or not been born, those in ``lived`` would have continued.
    ``launches`` counts the agents that were started; ``launches_saved`` the agents that would not have been started,
    ``launches_spent`` the additional agents, at least. ``waited_s`` is the recorded time in backoff, ``would_wait_s``
    the time under the other limits, both up to ``parts_at``.
    """

    records: int
    parts_at: RecordId | None
    aborts: tuple[AbortDiffers, ...]
    sessions: tuple[SessionDiffers, ...]
    ended: tuple[str, ...]
    lived: tuple[str, ...]
    launches: int
    launches_saved: int
    launches_spent: int
    waited_s: float
    would_wait_s: float


# ----------------------------------------------------------------------------------------------------------- the tree
class _AbortTree(Mapping[str, TreeNode]):
    """Living sessions and their open calls as the abort planner sees them, without those that would have ended
    earlier."""

    def __init__(
        self, shadows: Mapping[str, EntityShadow], modes: Mapping[str, CancelMode], ended_earlier: Mapping[str, int]
    ) -> None:
        self._shadows, self._modes, self._ended_earlier = shadows, modes, ended_earlier

    def __getitem__(self, node_id: str) -> TreeNode:
        shadow = self._shadows.get(node_id)
        if isinstance(shadow, SessionShadow) and not shadow.ended:
            return self._session(shadow)
        turn_id, _, number = node_id.rpartition(":c")
        turn = self._shadows.get(turn_id)
        if isinstance(turn, TurnShadow) and turn.parent is not None and number in map(str, turn.open.values()):
            return TreeNode(id=node_id, kind="tool", parent=turn.parent.id, ended=self._is_ending(turn.parent))
        raise KeyError(node_id)

    def __iter__(self) -> Iterator[str]:
        return (one.id for one in self._shadows.values() if isinstance(one, SessionShadow) and not one.ended)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _is_ending(self, shadow: SessionShadow) -> bool:
        return shadow.stopping or shadow.id in self._ended_earlier

    def _session(self, shadow: SessionShadow) -> TreeNode:
        below = [one for one in shadow.live.values() if isinstance(one, SessionShadow)]
        turns = [one for one in shadow.live.values() if isinstance(one, TurnShadow)]
        calls = [f"{turn.id}:c{number}" for turn in turns for number in turn.open.values()]
        return TreeNode(
            id=shadow.id,
            kind="session",
            parent=shadow.parent.id if shadow.parent is not None and not shadow.parent.ended else None,
            children=(*(one.id for one in below), *calls),
            started_by=shadow.started_by,
            mode=self._modes.get(shadow.id, CancelMode.WAIT_COMPLETED),
            ended=self._is_ending(shadow),
        )


# -------------------------------------------------------------------------------------------------------- one session
class _SessionReplay:
    """State of a session under the recorded limits and under the other limits, until the two runs differ."""

    def __init__(self, shadow: SessionShadow, limits: Mapping[str, Any]) -> None:
        self.state: Enum = shadow.state
        self.was: SessionLimits = shadow.data.limits
        self.data: SessionData = msgspec.structs.replace(
            shadow.data, limits=msgspec.structs.replace(self.was, **limits)
        )
        self.prompted = 0
        self.crashes: dict[bool, tuple[float, ...]] = {True: (), False: ()}
        """Failures after a start within the window that counts: under the recorded limits (``True``) and the others
        (``False``)."""
        self.waited_s = self.would_wait_s = 0.0

    def replay(self, record: LifecycleEvent, shadow: SessionShadow) -> SessionDiffers | None:
        """Replay the next event; return the difference if the two runs begin to differ with this record.

        Raises:
            Mismatch: the table refuses the event.
        """
        source, kind = self.state, shadow.kind
        step = step_of(kind, source, self.data, event_of(kind, record))
        self.state, self.data = step.state, step.data
        if any(type(one) is SendPrompt for one in step.effects):
            self.prompted = self.data.incarnation
        if record.event != "SessionExited" or source not in (Session.RUNNING, Session.SPAWNING):
            return None
        if str(step.state.value) != record.to_status:
            counted = f"{self.data.consecutive_errors} errors in a row, {self.data.total_errors} in all"
            return self._differs(record, step.state is Session.STOPPED, counted)
        if step.state is not Session.COOLING_DOWN:
            return None
        return self._cool_down(record, source)

    def _cool_down(self, record: LifecycleEvent, source: Enum) -> SessionDiffers | None:
        """Compare the restart intensities under both limits: a session tries again unless it did so too often
        lately."""
        lost = record.transition_reason == TransitionReason.ORPHAN_RECOVERED  # with its supervisor: that is no failure
        if source is Session.RUNNING and self.prompted == self.data.incarnation and not (self.data.spent or lost):
            self.prompted = 0
            was, would = self._exceeds(record, self.was, True), self._exceeds(record, self.data.limits, False)
            if was is not would:
                counted = f"{len(self.crashes[True])} as it was, {len(self.crashes[False])} as it would be"
                return self._differs(record, would, f"failures within the window: {counted}")
            if was:
                return None
        errors = self.data.consecutive_errors
        self.waited_s += backoff_ms(errors, self.was) / 1000
        self.would_wait_s += backoff_ms(errors, self.data.limits) / 1000
        return None

    def _exceeds(self, record: LifecycleEvent, limits: SessionLimits, was: bool) -> bool:
        self.crashes[was] = add_restart(self.crashes[was], record.monotonic_s, limits.restarts_within_s)
        return Intensity(limits.restarts_max, limits.restarts_within_s).exceeded(self.crashes[was])

    def _differs(self, record: LifecycleEvent, gives_up: bool, why: str) -> SessionDiffers:
        would = "give_up" if gives_up else "try_again"
        return SessionDiffers(seq=record.seq, session_id=record.entity_id, would=would, why=why)


# -------------------------------------------------------------------------------------------------------- the whole run
def what_if(
    records: Sequence[LifecycleEvent],
    *,
    edges: Mapping[str, bool] | None = None,
    limits: Mapping[str, Any] | None = None,
) -> Outcome:
    """Run *records* again under other policy *edges* and other *limits*; values that are not named stay as recorded.

    An edge that an abort did not cross counts as an edge that its policy did not have.
    """
    run = _WhatIfRun(edges or {}, limits or {}, _modes_of(records))
    for record in records:
        run.replay(record)
    return run.outcome(len(records))


def _modes_of(records: Sequence[LifecycleEvent]) -> dict[str, CancelMode]:
    """Return the cancel modes of child sessions that differ from the default."""
    found = {one.entity_id: str(one.metadata.get("mode")) for one in records if one.event in ("Placed", "Adopted")}
    known = {mode.value: mode for mode in CancelMode}
    return {name: known[mode] for name, mode in found.items() if mode in known}


class _WhatIfRun:
    """State of a what-if run so far."""

    def __init__(self, edges: Mapping[str, bool], limits: Mapping[str, Any], modes: Mapping[str, CancelMode]) -> None:
        self._edges, self._limits, self._modes = edges, limits, modes
        self._checker = RecordChecker()
        self._shadows = self._checker.shadows
        self._ended_earlier: dict[str, int] = {}
        self._not_ended: dict[str, int] = {}
        self._as_it_was = _AbortTree(self._shadows, modes, {})
        self._as_it_would_be = _AbortTree(self._shadows, modes, self._ended_earlier)
        self._session_replays: dict[str, _SessionReplay] = {}
        self._request: LifecycleEvent | None = None
        self._crossed: set[str] = set()
        self._aborts: list[AbortDiffers] = []
        self._sessions: list[SessionDiffers] = []
        self._launches = self._saved = self._spent = 0
        self._waited_s = self._would_wait_s = 0.0

    def replay(self, record: LifecycleEvent) -> None:
        """Replay the next record. An abort is planned again once its policy edges, which follow at once, are known."""
        if self._request is not None and not self._is_crossing(record):
            self._plan_again(self._request)
            self._request = None
        self._checker.check(record)
        shadow = self._shadows.get(record.entity_id)
        if record.outcome == "born":
            self._born(record, shadow)
        elif record.outcome == "transition" and isinstance(shadow, SessionShadow):
            self._step(record, shadow)
        elif record.event == "AbortRecord" and not record.metadata.get("policy_edge"):
            self._request, self._crossed = record, set()

    def _is_crossing(self, record: LifecycleEvent) -> bool:
        edge = record.metadata.get("policy_edge") if record.event == "AbortRecord" else None
        if edge is None or self._request is None or record.abort_id != self._request.abort_id:
            return False
        self._crossed.add(str(edge))
        return True

    # ------------------------------------------------------------------ births
    def _born(self, record: LifecycleEvent, shadow: EntityShadow | None) -> None:
        if shadow is None:
            return
        above = shadow.parent.id if shadow.parent is not None else ""
        if isinstance(shadow, SessionShadow):
            if above in self._ended_earlier:
                self._ended_earlier[shadow.id] = record.seq
            if shadow.data is not None:
                self._session_replays[shadow.id] = _SessionReplay(shadow, self._limits)
        elif shadow.name == "agent":
            self._launches += 1
            self._saved += above in self._ended_earlier

    # ------------------------------------------------------------------ sessions
    def _step(self, record: LifecycleEvent, shadow: SessionShadow) -> None:
        session_replay = self._session_replays.get(shadow.id)
        if session_replay is None or shadow.id in self._ended_earlier:
            return
        try:
            differs = session_replay.replay(record, shadow)
        except Mismatch:  # a record that is not legal: nothing follows from it
            differs = None
            self._finish_replay(shadow.id)
        if differs is not None:
            self._sessions.append(differs)
            self._finish_replay(shadow.id)
            if differs.would == "give_up":
                self._end(shadow, record.seq)
            else:
                self._not_ended.setdefault(shadow.id, record.seq)
                self._spent += 1

    def _finish_replay(self, session_id: str) -> None:
        session_replay = self._session_replays.pop(session_id, None)
        if session_replay is not None:
            self._waited_s += session_replay.waited_s
            self._would_wait_s += session_replay.would_wait_s

    def _end(self, shadow: SessionShadow, seq: RecordId) -> None:
        """Mark a session and everything below it, except sessions with cancel mode ``abandon``, as ended earlier."""
        pending = [shadow]
        while pending:
            one = pending.pop()
            if one.id not in self._ended_earlier:
                self._ended_earlier[one.id] = seq
            below = (child for child in one.live.values() if isinstance(child, SessionShadow))
            pending += [child for child in below if self._modes.get(child.id) is not CancelMode.ABANDON]

    # ------------------------------------------------------------------ aborts
    def _plan_again(self, request: LifecycleEvent) -> None:
        crossed = {name: name in self._crossed for name in EDGES}
        was = self._reached(request, self._as_it_was, crossed)
        would = self._reached(request, self._as_it_would_be, {**crossed, **self._edges})
        ended = tuple(one for one in would if one not in was)
        lived = tuple(one for one in was if one not in would and one.partition(":")[0] not in self._ended_earlier)
        if ended or lived:
            target, scope = str(request.metadata.get("target")), str(request.metadata.get("scope"))
            self._aborts.append(
                AbortDiffers(
                    seq=request.seq,
                    abort_id=str(request.abort_id),
                    target=target,
                    scope=scope,
                    would_end=ended,
                    would_live=lived,
                )
            )
        for one in ended:
            if isinstance(shadow := self._shadows.get(one), SessionShadow):
                self._finish_replay(one)
                self._ended_earlier.setdefault(shadow.id, request.seq)
        for one in lived:
            self._finish_replay(one)
            self._not_ended.setdefault(one, request.seq)

    def _reached(self, request: LifecycleEvent, tree: _AbortTree, edges: Mapping[str, bool]) -> tuple[str, ...]:
        """Return the ids of the entities that the abort ends; empty if the abort is not possible, for example since its
        target does not exist."""
        try:
            plan: AbortPlan = plan_abort(
                tree,
                str(request.metadata.get("target")),
                str(request.metadata.get("scope")),
                msgspec.convert(edges, AbortPolicy),
            )
        except (NoSuchEntity, UnknownValue, NoSiblings):
            return ()
        return tuple(one.id for one in plan.nodes)

    # ------------------------------------------------------------------ the outcome
    def outcome(self, records: int) -> Outcome:
        if self._request is not None:
            self._plan_again(self._request)
        for session_id in tuple(self._session_replays):
            self._finish_replay(session_id)
        parts = [*(one.seq for one in self._aborts), *(one.seq for one in self._sessions)]
        return Outcome(
            records=records,
            parts_at=min(parts, default=None),
            aborts=tuple(self._aborts),
            sessions=tuple(self._sessions),
            ended=tuple(self._ended_earlier),
            lived=tuple(one for one in self._not_ended if one not in self._ended_earlier),
            launches=self._launches,
            launches_saved=self._saved,
            launches_spent=self._spent,
            waited_s=round(self._waited_s, 6),
            would_wait_s=round(self._would_wait_s, 6),
        )
