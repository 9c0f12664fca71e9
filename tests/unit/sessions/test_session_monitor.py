"""Monitor of a session: budget of a turn that is opened early, and the time limits of tool calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from supervisor.policies.budgets import Amounts, Budget, BudgetScope
from supervisor.policies.liveness import StallProfileName
from supervisor.policies.monitor_settings import MonitorSettings
from supervisor.sessions.session_monitor import SessionMonitor


class Owner:
    """Monitor registry that does nothing."""

    def turn_began(self, monitor: SessionMonitor) -> None: ...

    def turn_ended(self, monitor: SessionMonitor) -> None: ...

    def model_failed(self, session_id: str, failure: object) -> None: ...

    def abort_session(self, *arguments: object) -> None: ...

    def abort_call(self, *arguments: object) -> None: ...


def session_monitor(facts: list[tuple[str, dict[str, Any]]], scope: BudgetScope) -> SessionMonitor:
    """Return the monitor of a session ``s`` with 100 tokens a turn, which appends its facts to *facts*."""

    def record_fact(name: str, cause: object, metadata: dict[str, Any], **how: object) -> SimpleNamespace:
        facts.append((name, metadata))
        return SimpleNamespace(seq=len(facts))

    registry: Any = SimpleNamespace(
        entities={"s": SimpleNamespace(ended=False, record_fact=record_fact)},
        journal_writer=SimpleNamespace(last_seq=0),
        system=SimpleNamespace(timers=SimpleNamespace(now=lambda: 0.0)),
        send=lambda *event, **how: None,
    )
    session: Any = SimpleNamespace(session_id="s", cause_seq=0, profile=SimpleNamespace(adapter="acp", one_shot=False))
    settings = MonitorSettings(turn=Budget(tokens=100))
    return SessionMonitor(registry, session, Owner(), settings, scope, StallProfileName.DEFAULT)


def test_use_before_the_end_of_a_turn_does_not_count_for_the_next_turn() -> None:
    """The next turn is opened while the agent works on the first one, and still has its whole budget afterwards."""
    facts, scope = list[tuple[str, dict[str, Any]]](), BudgetScope("s", "session s", Budget())
    monitor = session_monitor(facts, scope)
    monitor.turn_opened("s:t1")
    monitor.turn_began()
    monitor.turn_opened("s:t2")
    monitor.record_usage(Amounts(input_tokens=90), {})
    assert [fact["turn"] for _, fact in facts] == ["s:t1", "s:t1"]
    monitor.turn_ended()
    assert facts[-1][1]["turn"] == "s:t2"
    assert scope.used.turns == 2
    monitor.turn_began()
    monitor.record_usage(Amounts(input_tokens=90), {})
    assert "BudgetSpent" not in [name for name, _ in facts]
    monitor.record_usage(Amounts(input_tokens=11), {})
    assert "BudgetSpent" in [name for name, _ in facts]


def test_the_end_of_a_turn_is_progress() -> None:
    """A turn that has just ended counts as progress once, so that a parent session that waits for it is not stalled."""
    monitor = session_monitor([], BudgetScope("s", "session s", Budget()))
    monitor.turn_opened("s:t1")
    monitor.turn_began()
    assert [monitor.take_progress(), monitor.take_progress()] == [True, False]
    monitor.turn_ended()
    assert [monitor.take_progress(), monitor.take_progress()] == [True, False]


def test_the_time_of_a_call_begins_anew_while_a_person_is_asked() -> None:
    """A call whose time is over is aborted, unless a person is asked for a permission then; a call that has ended, or
    is of another kind, has no timer."""
    facts, aborted, timers = list[tuple[str, dict[str, Any]]](), list[tuple[object, ...]](), dict[int, Any]()
    monitor = session_monitor(facts, BudgetScope("s", "session s", Budget()))
    monitor.session.profile.tool_timeouts = {"execute": 5.0}  # type: ignore[misc]
    monitor._monitors.abort_call = lambda *given: aborted.append(given)  # type: ignore[method-assign]

    def set_timer(_: object, __: object, delay_s: float, call: Any) -> int:
        timers[len(timers)] = (delay_s, call)
        return len(timers) - 1

    registry: Any = monitor._registry
    registry.system.timers.set, registry.system.timers.cancel = set_timer, timers.pop
    asking = SimpleNamespace(asked=True)
    turn = registry.entities["s:t1"] = SimpleNamespace(data=SimpleNamespace(asking=(asking,)))
    monitor.turn_opened("s:t1")
    monitor.call_opened("s:t1:c1", "edit")
    monitor.call_opened("s:t1:c2", "execute")
    monitor.call_closed("s:t1:c2")
    assert timers == {}
    monitor.call_opened("s:t1:c3", "execute")
    ((delay_s, fire),) = timers.values()
    assert delay_s == 5.0
    fire(None)
    assert (facts[1:], aborted) == ([], [])
    turn.data.asking = ()
    timers[1][1](None)
    assert facts[-1] == ("CallTimedOut", {"call": "s:t1:c3", "kind": "execute", "limit_s": 5.0})
    assert [one[0] for one in aborted] == ["s:t1:c3"]
