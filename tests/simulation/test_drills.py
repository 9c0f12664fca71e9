"""The drills of the kernel, and what a host may not ask for: all is well, and a runtime that is not so is noticed."""

from __future__ import annotations

from typing import Any

import pytest

import actors.breaker
import actors.place
import actors.supervision
from actors import mailbox, timers
from supervisor.agents.protocols.acp import errors as acp_problems
from supervisor.agents.protocols.framing import Lines
from supervisor.host import supervision
from supervisor.host.supervision import Supervisor
from supervisor.lifecycles.types import DeliveryPoint
from supervisor.policies import abort_plan as abort
from supervisor.policies import budgets
from supervisor.ports import Malformed
from supervisor.runtime import availability as outage
from supervisor.runtime.entity import Refused
from supervisor.simulation.drills.kernel.waiting import draw_senders
from supervisor.simulation.engine import Schedule
from supervisor.simulation.keyed_random import Chance
from supervisor.simulation.misuse import misuse
from supervisor.simulation.running import simulate, simulate_main
from supervisor.simulation.scenario import Drawn, named
from supervisor.work import backlog, leases
from supervisor.work import plan_run as workload
from supervisor.work import task_commands as operating

_RUNGS_DUE = abort.rungs_due


def _drawn(schedule: Schedule) -> Drawn:
    """A run of the drills under that order of steps."""
    return next(one for one in map(named("kernel").draw, range(100)) if one.schedule is schedule)


@pytest.mark.parametrize("schedule", list(Schedule))
def test_the_kernel_keeps_its_word(schedule: Schedule) -> None:
    """Nothing is found, in whatever order steps are taken."""
    assert simulate(_drawn(schedule)).problems == ()


def test_another_order_of_lanes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One URGENT message less before a NORMAL one is a breach of the kernel's law."""
    monkeypatch.setattr(mailbox, "URGENT_RUN_MAX", 31)
    problems = simulate(_drawn(Schedule.FIFO)).problems
    assert {one.split(": ")[1] for one in problems} == {"lanes", "bounds", "plain", "bursts"}


def test_no_two_senders_give_up_at_once() -> None:
    """Which of the two is first would be a matter of rounding: what the drill foresees knows nothing of that."""
    for seed in range(50):
        told = draw_senders(Chance(seed))
        assert len({round(one.until_s, 6) for one in told}) == len(told)


def test_a_timer_that_cannot_be_cancelled_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was cancelled rings all the same: the drill of timers says so."""
    monkeypatch.setattr(timers.TimerService, "cancel", lambda service, timer: None)
    assert any(one.startswith("kernel: timers:") for one in simulate(_drawn(Schedule.FIFO)).problems)


@pytest.mark.parametrize(
    ("whose", "name", "other", "drill"),
    [
        (actors.supervision, "affected", lambda strategy, order, failed: tuple(order), "strategies"),
        (actors.supervision.Supervisor, "_expected", lambda app, child: False, "significants"),
        (actors.place.Place, "demonitor", lambda place, monitor: None, "monitors"),
        (actors.breaker, "_window", lambda data, at: (at,), "breakers"),
        (leases.Leases, "renew", lambda held, item, token, now_s: held.check(item, token), "leases"),
        (backlog.Backlog, "_is_blocked", lambda held, lane: False, "backlogs"),
        (acp_problems, "problem_of_status", lambda status: None, "troubles"),
        (budgets, "SMALLEST", dict.fromkeys(budgets.SMALLEST, 7.0), "budgets"),
        (abort, "rungs_due", lambda ladder, within_s=None, now=False: _RUNGS_DUE(ladder, None, now=now), "plans"),
        (outage, "HELD_BYTES_MAX", 1, "bounds"),
    ],
)
def test_what_is_decided_otherwise_is_noticed(
    whose: Any, name: str, other: Any, drill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule that is another one than that of its page is found by the drill of that rule."""
    monkeypatch.setattr(whose, name, other)
    problems = simulate(_drawn(Schedule.FIFO)).problems
    assert any(one.startswith((f"kernel: {drill}:", "no_level_crossed:", "bounded_kill:")) for one in problems), (
        problems
    )


def _misused() -> list[str]:
    broken: list[str] = []

    async def main(sup: Supervisor) -> None:
        session = await sup.start_session("s", agent="inprocess")
        await misuse(lambda law, whose, words: broken.append(words), sup, session.id)

    assert simulate_main(main, named("quiet").draw(1)).error is None
    return broken


def test_what_cannot_be_is_refused() -> None:
    """Every wish that makes no sense is an error."""
    assert _misused() == []


def test_what_is_granted_all_the_same_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor that takes any delivery point grants what means nothing."""
    monkeypatch.setattr(supervision, "_point", lambda urgent, at: DeliveryPoint.NOW)
    assert [words.partition(" was granted")[0] for words in _misused()] == [
        "a point of what is not urgent",
        "no point at all",
    ]


def test_without_a_fault_there_is_no_excuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing strikes every prompt is completed: a codec that takes every line for too long is noticed."""
    monkeypatch.setattr(Lines, "feed", lambda lines, data: [Malformed("too long")])
    (problem,) = simulate(named("quiet").draw(1)).problems
    assert problem.startswith("nothing_lost: run: nothing struck")


@pytest.mark.parametrize("schedule", [Schedule.SHUFFLE, Schedule.TRIO])
def test_plans_in_offices_go_as_foretold(schedule: Schedule) -> None:
    """Nothing is found, in whatever order steps are taken."""
    drawn = next(one for one in map(named("offices").draw, range(100)) if one.schedule is schedule)
    assert simulate(drawn).problems == ()


def test_a_probe_that_is_not_alone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that wait for a provider that failed, one is launched, and the others when it has an answer."""
    monkeypatch.setattr(workload.Workload, "claimed", lambda load, case: None)
    assert any("providers" in one for one in simulate(named("offices").draw(5)).problems)


def test_an_answer_that_is_not_true_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A requeue that took effect, and is answered as if it had not, is a breach of what operators are promised."""
    answered = operating.Operating._take_away

    async def forgets(self: Any, wish: Any, state: Any, refused: Any) -> None:
        await answered(self, wish, state, refused)
        raise Refused("it came to its end")

    monkeypatch.setattr(operating.Operating, "_take_away", forgets)
    assert any("requeue" in one for one in simulate(named("offices").draw(5)).problems)
