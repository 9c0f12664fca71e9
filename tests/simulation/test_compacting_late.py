"""An agent that compacts just after it has said that it is done: its turn must compact first, and is verified then."""

from __future__ import annotations

from supervisor.simulation.running import Report
from supervisor.simulation.scenario import parsed
from tests.verification.checkers import simulate

SCENARIO = """
name = "compacting-late"
[load]
customers = 2
turns = 3
plans = 0.0
[agents]
acp = 1.0
command = 0.0
inprocess = 0.0
[agents.shape]
tools = [0, 1]
delegation = 0.0
permission = 0.0
[faults]
kinds = [{kinds}]
[faults.rates]
"agent.compacts" = 0.6
{rates}
[world]
operators = 0
grain_s = 0.0
{world}
"""
EDGES = {"turn: VERIFYING compact_needed RUNNING", "turn: COMPACTING verify_requested RUNNING"}


def played(seed: int, kinds: str = '"agent.compacts"', rates: str = "", world: str = "") -> Report:
    report = simulate(parsed("late", SCENARIO.format(kinds=kinds, rates=rates, world=world)).draw(seed))
    assert report.problems == ()
    return report


def test_it_is_verified_when_it_has_compacted() -> None:
    """Both edges of the specification are taken, and no success is lost: only a compaction in the middle of a turn that
    fails, fails that."""
    reports = [played(seed) for seed in range(8)]
    assert set.union(*(set(one.reached) for one in reports)) >= EDGES
    assert all(one.tally.unanswered == 0 for one in reports)


def test_a_supervisor_may_be_killed_meanwhile() -> None:
    """There is nobody left to compact: the next supervisor verifies what was done."""
    kinds, rates = '"agent.compacts", "machine.crash_then"', '"machine.crash_then" = 0.8'
    reports = [played(seed, kinds, rates, 'crashes_at = ["turn COMPACTING"]') for seed in range(8)]
    killed = [one for one in reports if one.faults["machine.crash_then"]]
    assert set.union(*(set(one.reached) for one in killed)) >= EDGES
