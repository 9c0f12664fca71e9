"""Monitors of all sessions, with one timer for all progress snapshots of the same interval, and the budget scopes.

While no turn runs no timer runs. Times are those of the actors' timers, which do not count time in which the process
did not run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from supervisor.lifecycles.session import Session
from supervisor.lifecycles.types import AbortReason, ModelFailure, RecordId
from supervisor.policies.budgets import WHOLE, Amounts, Budget, BudgetScope, SpentBudget
from supervisor.policies.liveness import SilentAgent, StallProfileName
from supervisor.policies.monitor_settings import MonitorSettings
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.live_session import LiveSession, SessionPhase
from supervisor.sessions.registry import SessionRegistry
from supervisor.sessions.session_monitor import BUDGETED, SessionMonitor

AbortNow = Callable[[str, str, str, RecordId, AbortReason], None]
"""Function that aborts a session, or a tool call, without waiting: (id, reason, actor, number of the record that the
abort follows from, abort reason)."""


def hosts_scope(scope_id: str) -> str:
    """Return the id of a budget scope that the embedding program names. No entity has such an id; the budget scope of
    an entity has the entity's id."""
    return f"host:{scope_id}"


class RecordedUsage(NamedTuple):
    """Budget state of a session, restored from the session's log."""

    used: Amounts = Amounts()
    """Amounts that the session itself has used."""
    scopes: Sequence[Mapping[str, Any]] = ()
    patience: StallProfileName = StallProfileName.DEFAULT
    common: bool = False
    """True if the session's own limits are the default limits of all sessions."""
    troubles: int = 0
    """Number of model errors in a row at the last record, if no turn has succeeded since."""
    spent: tuple[SpentBudget, RecordId] | None = None
    """The budget that was used up, and the number of the record about it."""
    totals: Mapping[str, Amounts] = MappingProxyType({})
    """Last usage total of each conversation of the session, as of the record of ``used``."""

    def apply(self, fact: Mapping[str, Any]) -> RecordedUsage:
        """Return the state after the next fact about the session's budget or its used amounts."""
        used = msgspec.convert(fact["used"], Amounts) if "used" in fact else self.used
        patience = StallProfileName(fact["patience"]) if "patience" in fact else self.patience
        scopes, common = fact.get("scopes", self.scopes), fact.get("common", self.common)
        totals = {**self.totals, **msgspec.convert(fact.get("totals", {}), dict[str, Amounts])}
        return RecordedUsage(used, scopes, patience, common, fact.get("in_a_row", self.troubles), self.spent, totals)

    def counting(self, used: Mapping[str, Amounts]) -> RecordedUsage:
        """Return the state with the used amounts of its scopes raised to at least *used*, which is given by scope
        id."""
        scopes = [
            {**one, "used": msgspec.convert(one["used"], Amounts).at_least(used.get(one["id"], Amounts())).as_record}
            for one in self.scopes
        ]
        return self._replace(scopes=scopes)


class BudgetGrant(NamedTuple):
    """Budget of a new session: its own budget (``None``: the default one), the scope around it, and its stall
    profile."""

    budget: Budget | None = None
    within: BudgetScope | None = None
    patience: StallProfileName = StallProfileName.DEFAULT


NO_GRANT = BudgetGrant()
LAUNCHED = frozenset({Session.INITIALIZING, Session.BUILDING_PROMPT, Session.SPAWNING, Session.COOLING_DOWN})
"""States in which a session with a request waits until the supervisor has launched an agent."""


class MonitorRegistry:
    """Monitors of one supervisor's sessions, and the budget scopes.

    Args:
        abort_session: function that aborts a session.
        abort_call: function that aborts a tool call.
    """

    def __init__(self, registry: SessionRegistry, abort_session: AbortNow, abort_call: AbortNow) -> None:
        self._registry = registry
        self.abort_session, self.abort_call = abort_session, abort_call
        self._scopes: dict[str, BudgetScope] = {}
        self._running: dict[str, SessionMonitor] = {}
        self._news: dict[float, set[str]] = {}
        """Sessions with progress since the last snapshot, by the snapshot interval in seconds."""
        self.on_model_failed: list[Callable[[str, ModelFailure], None]] = []
        """Functions that are called with every model failure of any session's agent; each running plan adds one
        function."""

    def model_failed(self, session_id: str, failure: ModelFailure) -> None:
        for call in list(self.on_model_failed):
            call(session_id, failure)

    # ------------------------------------------------------------------ scopes
    def scope(self, scope_id: str, title: str, budget: Budget, parent: BudgetScope | None = None) -> BudgetScope | None:
        """Return the budget scope with the id *scope_id*, created if it does not exist; or *parent*, if *budget* has no
        limits."""
        if not budget.limits:
            return parent
        scope = self._scopes.setdefault(scope_id, BudgetScope(scope_id, title, budget, parent))
        scope.bound(budget)
        return scope

    def close(self, scope_id: str) -> None:
        """Close the budget scope with the id *scope_id*, if it exists."""
        self._scopes.pop(scope_id, None)

    def close_ended(self) -> None:
        """Close the budget scopes of entities that have ended; sessions that outlived such an entity continue to count
        in its scope. A scope that belongs to no entity is closed by the embedding program."""
        for one in [one for one in self._scopes if one in self._registry.names and one not in self._registry.entities]:
            self.close(one)

    def restore_scope(self, recorded: Sequence[Mapping[str, Any]]) -> BudgetScope | None:
        """Return the budget scope that was recorded, together with the scopes above it, each with at least its recorded
        use. If a scope exists already, its present limits stay, because they are newer than those of the record; a
        record holds no scope whose limits were removed."""
        scope: BudgetScope | None = None
        for one in reversed(recorded):
            budget = msgspec.convert(one["limits"], Budget)
            scope = self._scopes.setdefault(one["id"], BudgetScope(one["id"], one["title"], budget, scope))
            scope.recall(msgspec.convert(one["used"], Amounts))
        return scope

    def count(self, used: Mapping[str, Amounts]) -> None:
        """Raise the used amounts of existing budget scopes to at least *used*, which is given by scope id."""
        for scope_id, amounts in used.items():
            if (scope := self._scopes.get(scope_id)) is not None:
                scope.recall(amounts)

    # ------------------------------------------------------------------ sessions
    def start_monitor(self, session: LiveSession, rules: MonitorSettings, given: BudgetGrant) -> None:
        """Start to monitor a session. Its budget scope lies within ``given.within``, or else within the scope of its
        parent session."""
        above = given.within
        if above is None and session.parent is not None and session.parent.monitor is not None:
            above = session.parent.monitor.scope
        budget = given.budget if given.budget is not None else rules.session
        scope = self.scope(session.session_id, f"session {session.session_id}", budget, above)
        self._start(session, rules, scope, given.patience)

    def note_budget(self, session: LiveSession, given: BudgetGrant, cause: Cause) -> None:
        """Record the budget scopes and the stall profile of a session, unless there are no scopes and the profile is
        the default."""
        scope = self._scope_of(session)
        if scope is not None or given.patience is not StallProfileName.DEFAULT:
            fact = {"scopes": scope.as_record if scope is not None else [], "patience": given.patience.value}
            self._registry.record_fact(session.session_id, BUDGETED, cause, {**fact, "common": given.budget is None})

    def restore_monitor(self, session: LiveSession, rules: MonitorSettings, recalled: RecordedUsage) -> None:
        """Start to monitor a session of an earlier supervisor, with the use that was recorded. If the session is
        bounded by the default limits of all sessions, the present default limits apply; without any default limits, the
        session still counts in its scope."""
        monitor = self._start(session, rules, self.restore_scope(recalled.scopes), recalled.patience)
        own = self._scopes.get(session.session_id)
        if recalled.common and own is not None:
            own.bound(rules.session)
        monitor.recall(recalled.used, recalled.totals)
        if recalled.spent is not None:
            monitor.recall_spent(*recalled.spent)
        monitor.model.record.in_a_row = recalled.troubles

    def left_of(self, session_id: str) -> Budget:
        """Return the amounts that a session may still use; an amount without a limit is ``None``.

        Raises:
            NoSuchEntity: the session has ended.
        """
        scope = self._scope_of(self._registry.session(session_id))
        if scope is None:
            return Budget()
        left = {name: scope.left(name) or 0 for name in scope.measures}
        whole = {name: int(one) if name in WHOLE else one for name, one in left.items()}
        return Budget(**whole)  # type: ignore[arg-type]  # measures are its fields

    def used_by(self, session_id: str) -> Amounts:
        """Return the amounts that the agents of a session have used so far, without the amounts of its child sessions.

        Raises:
            NoSuchEntity: the session has ended.
        """
        monitor = self._registry.session(session_id).monitor
        return monitor.used if monitor is not None else Amounts()

    def _scope_of(self, session: LiveSession) -> BudgetScope | None:
        return session.monitor.scope if session.monitor is not None else None

    def _start(
        self, session: LiveSession, rules: MonitorSettings, scope: BudgetScope | None, patience: StallProfileName
    ) -> SessionMonitor:
        monitor = session.monitor = SessionMonitor(self._registry, session, self, rules, scope, patience)

        def end() -> None:
            monitor.ended()
            self.close(session.session_id)

        session.reached(SessionPhase.FINISHED).then(end)
        return monitor

    # ------------------------------------------------------------------ snapshots
    def turn_began(self, monitor: SessionMonitor) -> None:
        self._running[monitor.session.session_id] = monitor
        every_s = monitor.rules.liveness.snapshot_s
        if every_s and every_s not in self._news:
            self._snapshot_later(every_s)

    def turn_ended(self, monitor: SessionMonitor) -> None:
        self._running.pop(monitor.session.session_id, None)

    def silences(self) -> list[SilentAgent]:
        """Return the agents at work that make no progress, those that have been silent for longest first."""
        # A copy, since a scrape of the metrics comes from another thread.
        found = [silence for one in list(self._running.values()) if (silence := one.silence()) is not None]
        return sorted(found, key=lambda one: -one.silent_s)

    def _snapshot_later(self, every_s: float) -> None:
        self._news[every_s] = set()
        self._registry.system.timers.set(None, None, every_s, lambda _: self._snapshot(every_s))

    def _snapshot(self, every_s: float) -> None:
        moved = self._moved()
        for news in self._news.values():
            news |= moved
        moved = self._news.pop(every_s)
        monitors = [one for one in self._running.values() if one.rules.liveness.snapshot_s == every_s]
        for monitor in monitors:
            monitor.snapshot(monitor.session.session_id in moved)
        if monitors:
            self._snapshot_later(every_s)

    def _moved(self) -> set[str]:
        """Return the ids of the sessions whose agent has progressed since the last call of this method, and of the
        sessions above them. A child session whose agent is being launched is included, because launches have deadlines
        of their own; so are the sessions above a one-shot agent at work, which may be silent until its time-out."""
        moved: set[str] = set()
        for session in self._registry.sessions.values():
            progressed = session.monitor is not None and session.monitor.progressed
            if not (progressed or session.turns or session.parent is not None):
                continue  # most of a large host is idle
            moves = (session.monitor is not None and session.monitor.take_progress()) or self._is_launched(session)
            running = self._running.get(session.session_id)
            above: LiveSession | None = session if moves else None
            if above is None and running is not None and running.is_bounded:
                above = session.parent  # which waits for it, and may be as silent as long
            while above is not None and above.session_id not in moved:
                moved.add(above.session_id)
                above = above.parent
        return moved

    def _is_launched(self, session: LiveSession) -> bool:
        """Return whether *session* is a child session that has a request but no launched agent yet."""
        return session.parent is not None and session.state in LAUNCHED and session.data.current is not None
