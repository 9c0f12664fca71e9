"""Tests that a hanging turn ends at its time limit, however often the supervisor is killed meanwhile."""

from __future__ import annotations

import msgspec
import pytest

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.simulation.host import Host
from supervisor.simulation.scenario import parsed
from supervisor.simulation.world import World
from tests.verification.checkers import simulate

SCENARIO = """
name = "time-goes-on"
[load]
customers = 1
works = 1.0
tasks = 1
[faults]
kinds = ["work.hangs"]
[faults.rates]
"work.hangs" = 1.0
[world]
schedules = ["fifo"]
operators = 0
grain_s = 0.0
[settings.recovery]
sessions = "restart"
"""
SEED = 6
"""Seed that draws one task whose attempts may take 45 s, and whose first seven attempts hang."""
TIME_S = 45.0
COMMIT_S = 0.01
"""Tolerance in seconds: more than the commit between the record of a timer and the start of the timer."""


class Killer:
    """Intruder that kills the supervisor at the given seconds after the first turn began, each at the next step, and
    stores the records of the run."""

    def __init__(self, *at_s: float) -> None:
        self.kills = list(at_s)
        self.killed_s: list[float] = []
        self.records: dict[int, LifecycleEvent] = {}

    def __call__(self, number: int, world: World, host: Host) -> None:
        for record in world.disk.log.records[-20:]:
            known = msgspec.convert(msgspec.json.decode(record), LifecycleEvent)
            self.records[known.seq] = known
        began_s = self.began_s()
        if self.kills and began_s is not None and not world.killed.is_set():
            passed_s = world.wall.time() - began_s
            if passed_s >= self.kills[0]:
                self.killed_s.append(passed_s)
                del self.kills[0]
                world.kill()

    def began_s(self) -> float | None:
        """Return the time at which the first turn of the task's session began to run; ``None`` before that."""
        began = self.turns("agent_spawned", "RUNNING")
        return began[0].monotonic_s if began else None

    def turns(self, event: str, status: str) -> list[LifecycleEvent]:
        wanted = (event, status, "transition")
        known = [self.records[seq] for seq in sorted(self.records)]
        return [one for one in known if (one.event, one.to_status, one.outcome) == wanted]


class Times:
    """Run the scenario with kills at the given seconds, and store when turns of the task's session began to run and
    timed out, by the id of the turn, in seconds after the first turn began."""

    def __init__(self, *at_s: float) -> None:
        killer = Killer(*at_s)
        report = simulate(parsed("time-goes-on", SCENARIO).draw(SEED), intrude=killer)
        assert report.problems == ()
        assert len(killer.killed_s) == len(at_s)
        first_s = killer.began_s()
        assert first_s is not None
        late = [one for one in killer.turns("task_failed", "FAILED") if one.abort_reason == "timeout"]
        assert late[0].reason.startswith(f"the turn took longer than {TIME_S:g} s (")
        began = killer.turns("agent_spawned", "RUNNING")
        self.began = {one.entity_id: one.monotonic_s - first_s for one in began}
        self.ended = {one.entity_id: one.monotonic_s - first_s for one in late}
        judged = killer.turns("execution_timed_out", "TIMEOUT")
        self.decided_s = judged[0].monotonic_s - first_s
        """Time at which the first attempt at the task was recorded as timed out."""


@pytest.mark.parametrize("at_s", [(), (20.0,), (5.0, 25.0), (1.0, 11.0, 22.0, 33.0)])
def test_a_hung_attempt_is_over_in_its_time(at_s: tuple[float, ...]) -> None:
    """A hanging attempt times out exactly after the time limit of its first turn, however often the supervisor is
    killed."""
    times = Times(*at_s)
    turn_id, ended_s = next(iter(times.ended.items()))
    assert list(times.began).index(turn_id) == len(at_s)
    assert TIME_S <= ended_s <= times.decided_s <= TIME_S + 10 * COMMIT_S
    assert ended_s <= TIME_S + COMMIT_S


@pytest.mark.parametrize("at_s", [(44.5,), (20.0, 44.5), (44.5, 46.0)])
def test_what_is_over_when_it_is_asked_again_times_out_at_once(at_s: tuple[float, ...]) -> None:
    """A turn whose time limit ended while no supervisor ran, or during a backoff, fails as soon as the repeated turn's
    agent is ready."""
    times = Times(*at_s)
    turn_id, ended_s = next(iter(times.ended.items()))
    assert TIME_S < times.began[turn_id] <= ended_s <= times.began[turn_id] + COMMIT_S


def test_the_next_try_has_a_time_of_its_own() -> None:
    """The attempt after a failed one has the full time limit of its own."""
    times = Times(20.0)
    turn_id, ended_s = list(times.ended.items())[1]
    assert TIME_S <= ended_s - times.began[turn_id] <= TIME_S + COMMIT_S
