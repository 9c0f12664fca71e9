"""Tests of the oracle's own invariants: each is violated once here, and obeyed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from supervisor.lifecycles.types import AbortPolicy, AbortScope, LifecycleEvent, StageBudgets
from supervisor.policies.abort_plan import NodeReceipt, Receipt
from supervisor.ports import EntityRow
from supervisor.simulation.machine.processes import ProcessEvent
from supervisor.simulation.oracle import HOME, RECORD_S, SLACK_S, Oracle
from supervisor.simulation.trace import Trace
from tests.verification.records import append_of, record_of

LADDER_S = 1.0
LADDER = StageBudgets(request_s=0.0, cancel_s=0.0, terminate_s=0.0, kill_s=LADDER_S)


class _World:
    """Oracle with a clock that the test sets, and helpers that give it processes and records."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seq = 0
        self.oracle = Oracle(lambda: self.now, Trace(lambda: self.now), LADDER)

    def spawned(self, pid: int, agent: str, what: str = "spawned") -> None:
        owner = f"{HOME}/s$ {agent}"
        self.oracle.process(ProcessEvent(self.now, what, pid, owner, owner))

    def record(self, *, ended: bool = False, **fields: object) -> None:
        self.seq += 1
        words: dict[str, object] = {"entity_type": "session", "entity_id": "s", "event": "OperatorStop", **fields}
        one = LifecycleEvent(seq=self.seq, entity_seq=self.seq, timestamp=0.0, monotonic_s=self.now, **words)  # type: ignore[arg-type]
        self.oracle.wrote([append_of(one, "", ended=ended)], [b""])

    def broken(self) -> set[str]:
        """Return the violated invariants of the simulated world; violations of invariants of records are left out,
        since the test's records are incomplete."""
        return {one.invariant for one in self.oracle.violations} & {
            "no_survivor",
            "recorded",
            "no_level_crossed",
            "one_holder",
            "durable",
            "nothing_lost",
        }


ENDED = Receipt(
    abort_id="abort-1",
    target="s",
    scope=AbortScope.SESSION,
    reason="",
    already_ended=False,
    nodes=(NodeReceipt(id="s", kind="session", outcome="ended"),),
)


@pytest.fixture
def world() -> _World:
    return _World()


def test_a_receipt_is_held_to_the_processes(world: _World) -> None:
    """A receipt that reports a session as ended, while a process of the session is left, is reported."""
    world.spawned(7, "agent")
    world.oracle.receipt_came(ENDED, 0.0, None, None)
    assert world.broken() == {"no_survivor"}


def test_a_receipt_of_the_dead_is_true(world: _World) -> None:
    """A receipt of an ended session whose process has ended is not reported."""
    world.spawned(7, "agent")
    world.spawned(7, "agent", "reaped")
    world.oracle.receipt_came(ENDED, 0.0, None, None)
    assert world.broken() == set()


@pytest.mark.parametrize(("settled", "broken"), [(("1.0",), set()), (("1.0", "1.0"), {"nothing_lost"})])
def test_an_effect_is_settled_once(world: _World, settled: tuple[str, ...], broken: set[str]) -> None:
    """An effect that is acknowledged a second time is reported."""
    record = record_of("session", "s", "x")
    batch = append_of(record, "", owed=(("1.0", b""),)), append_of(record, "", settled=settled)
    world.oracle.wrote(batch, [b"", b""])
    assert world.broken() & {"nothing_lost"} == broken


@pytest.mark.parametrize(("late_s", "broken"), [(0.0, set()), (0.1, {"recorded"})])
def test_the_last_record_comes_within_its_bound(world: _World, late_s: float, broken: set[str]) -> None:
    """A last record of a session that comes later than the time of the termination stages plus the slowest disk is
    reported."""
    world.record(from_status="Running", to_status="Stopped")
    world.now = LADDER_S + SLACK_S + RECORD_S + late_s
    told = {"rung": "kill", "took_s": LADDER_S}
    world.record(event="Ended", from_status="Stopped", to_status="Stopped", ended=True, metadata=told)
    assert world.broken() == broken


def test_what_was_given_up_may_be_recorded_late(world: _World) -> None:
    """A late last record of an abandoned termination is not reported."""
    world.record(from_status="Running", to_status="Stopped")
    world.now = 10 * (LADDER_S + SLACK_S + RECORD_S)
    given_up = {"rung": "abandon", "took_s": 10 * LADDER_S}
    world.record(event="Ended", from_status="Stopped", to_status="Stopped", ended=True, metadata=given_up)
    assert world.broken() == set()


@pytest.mark.parametrize(("edge", "closed"), [("tool_to_sibling", False), ("sibling_to_session", True)])
def test_a_crossing_is_held_to_the_policy(world: _World, edge: str, closed: bool) -> None:
    """An abort that crosses a policy edge is reported if the policy of the session that counts does not open this
    edge."""
    world.oracle.set_policy("s", AbortPolicy(tool_to_sibling=True))
    crossing = {"policy_edge": edge, "ruled_by": "s/child", "deadline_s": 18.0}
    world.record(event="AbortRecord", outcome="fact", metadata=crossing)
    world.oracle.check_quiescence((), ())
    said = [one.message for one in world.oracle.violations if "which its policy does not let" in one.message]
    assert len(said) == closed


def _acknowledge_first(world: _World) -> None:
    world.oracle.acknowledged("m1.1")


def _acknowledge_then(world: _World) -> None:
    world.record(event="MessageReceived", metadata={"message_id": "m1.1"})
    world.oracle.acknowledged("m1.1")


@pytest.mark.parametrize(("act", "broken"), [(_acknowledge_first, {"durable"}), (_acknowledge_then, set())])
def test_a_message_is_durable_before_it_is_acknowledged(
    world: _World, act: Callable[[_World], None], broken: set[str]
) -> None:
    """A message id that is returned to the sender before the message's record is durable is reported."""
    act(world)
    assert world.broken() == broken


def test_nothing_is_owed_in_the_end(world: _World) -> None:
    """An effect that a closed supervisor has not performed and acknowledged is reported."""
    world.oracle.check_quiescence((), [("1.0", "s", b"")])
    assert [one.message for one in world.oracle.violations] == [
        "still owes the effect 1.0 after its supervisor has closed"
    ]


def _row(state: str, *, ended: bool) -> EntityRow:
    times: dict[str, Any] = {"born_seq": 1, "born_at": 0.0, "changed_at": 0.0}
    return EntityRow(kind="task", id="t", parent_id=None, state=state, data=b"", entity_seq=1, ended=ended, **times)


@pytest.mark.parametrize(
    ("row", "count"),
    [(_row("IN_PROGRESS", ended=False), 1), (_row("CLOSED", ended=True), 0), (_row("FAILED", ended=False), 0)],
)
def test_who_closes_in_order_leaves_no_open_books(world: _World, row: EntityRow, count: int) -> None:
    """An entity that has neither ended nor settled when its supervisor closes in order is reported."""
    world.oracle.check_closed([row])
    assert [one.invariant for one in world.oracle.violations] == ["nothing_lost"] * count


def test_whom_the_host_is_starting_is_ruled_by_what_it_has_not_said_yet(world: _World) -> None:
    """While the host starts a child session of ``s``, whose name is not known yet, no policy is expected of an unnamed
    child session of ``s``; after the start, the policy of ``s`` is. Sessions with a policy of their own are always
    expected to have that policy."""
    above, own = AbortPolicy(), AbortPolicy(tool_to_sibling=True)
    world.oracle.set_policy("s", above)
    world.oracle.set_policy("s/named", own)
    with world.oracle.starting("s"):
        found = [world.oracle.policy_of(one) for one in ("s", "s/named", "s/named/t1", "s/guest")]
    assert found == [above, own, own, None]
    assert world.oracle.policy_of("s/guest") == above
