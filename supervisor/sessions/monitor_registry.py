"""Oversees every session: one clock for the snapshots of all that are looked at equally often, one place that has the
scopes of budgets.

While no turn runs no timer does. Time is that of the actors' timers, which does not count what nobody ran through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from supervisor.lifecycles.session import Session
from supervisor.lifecycles.types import AbortReason, ModelFailure
from supervisor.policies.budgets import WHOLE, Amounts, Budget, BudgetScope, SpentBudget
from supervisor.policies.liveness import StallProfileName
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.runtime.journal_writer import Cause
from supervisor.runtime.live_session import LiveSession, SessionPhase
from supervisor.sessions.session_monitor import BUDGETED, MonitorSettings, SessionMonitor

__all__ = ["NO_GRANT", "AbortSession", "BudgetGrant", "MonitorRegistry", "RecordedUsage", "hosts_scope"]

AbortSession = Callable[[str, str, str, int, AbortReason], None]
"""Aborts a session without waiting for it: its id, the reason, who wants it, and the record that it follows from."""


def hosts_scope(scope_id: str) -> str:
    """The id of the scope that a host calls so: no entity has such a one, and an entity's scope has the entity's id."""
    return f"host:{scope_id}"


class RecordedUsage(NamedTuple):
    """Budget state of a session, read from its log: its own use, its scopes, and its stall profile;
    whether its own limits are those of every session; and how often in a row its model had failed, when that was told
    last and no turn has succeeded since."""

    used: Amounts = Amounts()
    scopes: Sequence[Mapping[str, Any]] = ()
    patience: StallProfileName = StallProfileName.DEFAULT
    common: bool = False
    troubles: int = 0
    spent: tuple[SpentBudget, int] | None = None
    """The spent budget, and the number of its record."""

    def apply(self, told: Mapping[str, Any]) -> RecordedUsage:
        """The next fact about its budget, or its use."""
        used = msgspec.convert(told["used"], Amounts) if "used" in told else self.used
        patience = StallProfileName(told["patience"]) if "patience" in told else self.patience
        scopes, common = told.get("scopes", self.scopes), told.get("common", self.common)
        return RecordedUsage(used, scopes, patience, common, told.get("in_a_row", self.troubles), self.spent)

    def counting(self, used: Mapping[str, Amounts]) -> RecordedUsage:
        """The same, with at least that *used* of its scopes, by their ids."""
        return self._replace(scopes=[_counting(one, used) for one in self.scopes])


def _counting(scope: Mapping[str, Any], used: Mapping[str, Amounts]) -> Mapping[str, Any]:
    """A scope as it stands in a record."""
    least = used.get(scope["id"], Amounts())
    return {**scope, "used": msgspec.convert(scope["used"], Amounts).at_least(least).as_record}


class BudgetGrant(NamedTuple):
    """Budget of a new session: its own (``None``: the common one), the scope around it, its stall profile."""

    budget: Budget | None = None
    within: BudgetScope | None = None
    patience: StallProfileName = StallProfileName.DEFAULT


NO_GRANT = BudgetGrant()
LAUNCHED = frozenset({Session.INITIALIZING, Session.BUILDING_PROMPT, Session.SPAWNING, Session.COOLING_DOWN})
"""The states of a session, while it has a request, in which it is ours to have an agent work on that."""


class MonitorRegistry:
    """Monitors of one supervisor's sessions, and the budget scopes.

    Args:
        abort_session: how a session is aborted.
    """

    def __init__(self, registry: EntityRegistry, abort_session: AbortSession) -> None:
        self._registry = registry
        self.abort_session = abort_session
        self._scopes: dict[str, BudgetScope] = {}
        self._running: dict[str, SessionMonitor] = {}
        self._news: dict[float, set[str]] = {}
        """Sessions with progress since the last snapshot, by the snapshot interval in seconds."""
        self.on_model_failed: list[Callable[[str, ModelFailure], None]] = []
        """Each is called when the model of any session's agent failed once: many plans may run at the same time."""

    def model_failed(self, session_id: str, failure: ModelFailure) -> None:
        """The model of a session's agent failed once: everybody who wants to know hears of it."""
        for hear in list(self.on_model_failed):
            hear(session_id, failure)

    # ------------------------------------------------------------------ scopes
    def scope(self, scope_id: str, title: str, budget: Budget, parent: BudgetScope | None = None) -> BudgetScope | None:
        """The scope of that id, made if there is none; the one above, where *budget* bounds nothing."""
        if not budget.limits:
            return parent
        scope = self._scopes.get(scope_id) or self._open(scope_id, title, budget, parent)
        scope.bound(budget)
        return scope

    def _open(self, scope_id: str, title: str, budget: Budget, parent: BudgetScope | None) -> BudgetScope:
        scope = self._scopes[scope_id] = BudgetScope(scope_id, title, budget, parent)
        return scope

    def close(self, scope_id: str) -> None:
        """Nothing counts any more in the scope of that id, if there is one."""
        self._scopes.pop(scope_id, None)

    def close_ended(self) -> None:
        """Nothing counts any more in the scopes of those that have ended; who outlived them goes on counting there. A
        scope that was nobody's is its host's to close."""
        for one in [one for one in self._scopes if one in self._registry.names and one not in self._registry.entities]:
            self.close(one)

    def restore_scope(self, told: Sequence[Mapping[str, Any]]) -> BudgetScope | None:
        """The scope that a record tells of, with those above it, and at least what was used of each. Limits that hold
        already are newer than those of a record; it has none of a scope whose limits were taken away."""
        scope: BudgetScope | None = None
        for one in reversed(told):
            budget = msgspec.convert(one["limits"], Budget)
            scope = self._scopes.get(one["id"]) or self._open(one["id"], one["title"], budget, scope)
            scope.recall(msgspec.convert(one["used"], Amounts))
        return scope

    def count(self, used: Mapping[str, Amounts]) -> None:
        """At least that was *used*, by the ids of scopes, of those that there are."""
        for scope_id, amounts in used.items():
            if (scope := self._scopes.get(scope_id)) is not None:
                scope.recall(amounts)

    # ------------------------------------------------------------------ sessions
    def start_monitor(self, session: LiveSession, rules: MonitorSettings, given: BudgetGrant) -> None:
        """Watch a session. Its budget lies in that of ``given.within``, or else of its parent."""
        above = given.within
        if above is None and session.parent is not None and session.parent.monitor is not None:
            above = session.parent.monitor.scope
        budget = given.budget if given.budget is not None else rules.session
        scope = self.scope(session.session_id, f"session {session.session_id}", budget, above)
        self._watch(session, rules, scope, given.patience)

    def note_budget(self, session: LiveSession, given: BudgetGrant, cause: Cause) -> None:
        """Say in its log what bounds a session, if something does."""
        scope = self._scope_of(session)
        if scope is not None or given.patience is not StallProfileName.DEFAULT:
            told = {"scopes": scope.as_record if scope is not None else [], "patience": given.patience.value}
            self._registry.record_fact(session.session_id, BUDGETED, cause, {**told, "common": given.budget is None})

    def restore_monitor(self, session: LiveSession, rules: MonitorSettings, recalled: RecordedUsage) -> None:
        """Watch a session that an earlier supervisor left: what was used stays used. Where the limits of every session
        bound it, those do that there are now; where there are none any more, it still counts in its scope."""
        watch = self._watch(session, rules, self.restore_scope(recalled.scopes), recalled.patience)
        own = self._scopes.get(session.session_id)
        if recalled.common and own is not None:
            own.bound(rules.session)
        watch.recall(recalled.used)
        if recalled.spent is not None:
            watch.recall_spent(*recalled.spent)
        watch.model.record.in_a_row = recalled.troubles

    def left_of(self, session: LiveSession) -> Budget:
        """Return the budget that is left for a session."""
        scope = self._scope_of(session)
        if scope is None:
            return Budget()
        left = {name: scope.left(name) or 0 for name in scope.measures}
        whole = {name: int(one) if name in WHOLE else one for name, one in left.items()}
        return Budget(**whole)  # type: ignore[arg-type]  # measures are its fields

    def used_by(self, session: LiveSession) -> Amounts:
        """Return the use of a session's agents."""
        return session.monitor.used if session.monitor is not None else Amounts()

    def _scope_of(self, session: LiveSession) -> BudgetScope | None:
        return session.monitor.scope if session.monitor is not None else None

    def _watch(
        self, session: LiveSession, rules: MonitorSettings, scope: BudgetScope | None, patience: StallProfileName
    ) -> SessionMonitor:
        watch = session.monitor = SessionMonitor(self._registry, session, self, rules, scope, patience)
        session.reached(SessionPhase.FINISHED).then(lambda: self._ended(watch))
        return watch

    def _ended(self, watch: SessionMonitor) -> None:
        watch.ended()
        self.close(watch.session.session_id)

    # ------------------------------------------------------------------ snapshots
    def turn_began(self, watch: SessionMonitor) -> None:
        self._running[watch.session.session_id] = watch
        every_s = watch.rules.liveness.snapshot_s
        if every_s and every_s not in self._news:
            self._look_later(every_s)

    def turn_ended(self, watch: SessionMonitor) -> None:
        self._running.pop(watch.session.session_id, None)

    def _look_later(self, every_s: float) -> None:
        self._news[every_s] = set()
        self._registry.system.timers.set(None, None, every_s, lambda _: self._snapshot(every_s))

    def _snapshot(self, every_s: float) -> None:
        moved = self._moved()
        for news in self._news.values():
            news |= moved
        moved = self._news.pop(every_s)
        watches = [one for one in self._running.values() if one.rules.liveness.snapshot_s == every_s]
        for watch in watches:
            watch.snapshot(watch.session.session_id in moved)
        if watches:
            self._look_later(every_s)

    def _moved(self) -> set[str]:
        """The sessions whose agent has moved since the last time, and those that wait for one of them, or for one that
        is being launched: that has bounds of its own."""
        moved: set[str] = set()
        for session in self._registry.sessions.values():
            if not (session.progressed or session.turns or session.parent is not None):
                continue  # most of a large host is idle
            moves = (session.monitor is not None and session.monitor.take_progress()) or self._is_launched(session)
            above: LiveSession | None = session if moves else None
            while above is not None and above.session_id not in moved:
                moved.add(above.session_id)
                above = above.parent
        return moved

    def _is_launched(self, session: LiveSession) -> bool:
        """Somebody below another session was asked for something, and has no agent for it yet."""
        entity = self._registry.entities.get(session.session_id) if session.parent is not None else None
        return entity is not None and entity.state in LAUNCHED and entity.data.current is not None
