"""A turn is opened while the agent of the last one still works: what that uses is the last one's, and what is leased
for the next one is held for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from supervisor.policies.budgets import Amounts, Budget, BudgetScope
from supervisor.policies.liveness import StallProfileName
from supervisor.sessions.session_monitor import MonitorSettings, SessionMonitor


def watched(notes: list[tuple[str, dict[str, Any]]], scope: BudgetScope) -> SessionMonitor:
    def note(name: str, cause: object, metadata: dict[str, Any], **how: object) -> SimpleNamespace:
        notes.append((name, metadata))
        return SimpleNamespace(seq=len(notes))

    tree: Any = SimpleNamespace(
        entities={"s": SimpleNamespace(ended=False, record_fact=note)},
        journal_writer=SimpleNamespace(last_seq=0),
        system=SimpleNamespace(timers=SimpleNamespace(now=lambda: 0.0)),
        send=lambda *told, **how: None,
    )
    session: Any = SimpleNamespace(
        session_id="s", cause_seq=0, progressed=False, profile=SimpleNamespace(adapter="acp")
    )
    monitors: Any = SimpleNamespace(turn_began=lambda watch: None, turn_ended=lambda watch: None)
    return SessionMonitor(
        tree, session, monitors, MonitorSettings(turn=Budget(tokens=100)), scope, StallProfileName.DEFAULT
    )


def test_the_next_turn_has_its_own() -> None:
    notes, scope = list[tuple[str, dict[str, Any]]](), BudgetScope("s", "session s", Budget())
    watch = watched(notes, scope)
    watch.turn_opened("s:t1")
    watch.turn_began()
    watch.turn_opened("s:t2")
    watch.record_usage(Amounts(input_tokens=90), {})
    assert [told["turn"] for _, told in notes] == ["s:t1", "s:t1"]
    watch.turn_ended()
    assert notes[-1][1]["turn"] == "s:t2"
    assert scope.used.turns == 2
    watch.turn_began()
    watch.record_usage(Amounts(input_tokens=90), {})
    assert "BudgetSpent" not in [name for name, _ in notes]
    watch.record_usage(Amounts(input_tokens=11), {})
    assert "BudgetSpent" in [name for name, _ in notes]


def test_the_end_of_a_turn_is_progress() -> None:
    """A turn that has just ended counts as progress once, so that a parent session that waits for it is not stalled."""
    watch = watched([], BudgetScope("s", "session s", Budget()))
    watch.turn_opened("s:t1")
    watch.turn_began()
    assert [watch.take_progress(), watch.take_progress()] == [True, False]
    watch.turn_ended()
    assert [watch.take_progress(), watch.take_progress()] == [True, False]
