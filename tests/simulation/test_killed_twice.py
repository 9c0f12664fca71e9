"""A supervisor is killed while a task is worked on, and the next one at every commit of what it makes of that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from supervisor.simulation.host import Host, LoadGenerator
from supervisor.simulation.scenario import parsed
from supervisor.simulation.world import World
from tests.verification.checkers import simulate

SCENARIO = """
name = "killed-twice"
[load]
customers = 1
works = 1.0
tasks = 1
[faults]
kinds = []
[world]
schedules = ["fifo"]
operators = 0
grain_s = 0.0
[settings.recovery]
sessions = "{sessions}"
orphans = "{orphans}"
"""
COMMITS = 24
"""Of the second supervisor: the taking over of an orphan takes a dozen."""


class Killer:
    """Kills the first supervisor as soon as a task is worked on, and the second one at its commit of that number."""

    def __init__(self, at: int) -> None:
        self._at, self._commits = at, 0
        self.kills = 0

    def __call__(self, number: int, world: World, host: Host) -> None:
        if world.killed.is_set():
            self._commits = world.disk.commits
        elif self._is_its_moment(world):
            self.kills += 1
            world.kill()

    def _is_its_moment(self, world: World) -> bool:
        if self.kills == 0:
            return bool(world.board.waiting("IN_PROGRESS", ("w0t0",)))
        return self.kills == 1 and world.lives == 2 and world.disk.commits - self._commits >= self._at


@pytest.mark.parametrize(
    ("sessions", "orphans"), [("resume", "open"), ("resume", "failed"), ("resume", "done"), ("restart", "open")]
)
@pytest.mark.parametrize("seed", [1])
def test_what_is_taken_over_can_be_taken_over_again(sessions: str, orphans: str, seed: int) -> None:
    """Whatever of it was on record by then, the third one goes on with that, and everything comes to its end."""
    drawn, kills = parsed("killed-twice", SCENARIO.format(sessions=sessions, orphans=orphans)).draw(seed), 0
    for at in range(1, COMMITS):
        killer = Killer(at)
        report = simulate(drawn, intrude=killer)
        assert report.problems == (), f"killed at commit {at} of the second supervisor"
        kills += killer.kills
    assert kills >= 2 * 12


def _second_gives_up(patience_s: float) -> Callable[[Host, LoadGenerator], float | None]:
    return lambda host, load_generator: patience_s if host._world.lives > 1 else None


def test_what_is_taken_over_can_be_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """However far the second supervisor has come with it: nothing of it is left open, and nobody works on it."""
    drawn = parsed("killed-twice", SCENARIO.format(sessions="resume", orphans="open")).draw(1)
    for at in range(COMMITS):
        monkeypatch.setattr(Host, "_gives_up_s", _second_gives_up((at + 0.5) * drawn.commit_s))
        report = simulate(drawn, intrude=Killer(1_000_000))
        assert report.problems == (), f"given up after {at} commits"
        assert report.ended.keys() <= {"Stopped"}


class _InSecondAttempt(Killer):
    """The same, in the second attempt, when the run of the first one rests in its open circuit."""

    def _is_its_moment(self, world: World) -> bool:
        return "run:w0t0-2" in world.disk.entities and super()._is_its_moment(world)


def test_a_run_that_rests_is_not_taken_for_the_last_one() -> None:
    """The last run of a task is over, and the task was about to be told as a dead letter: an earlier one rests."""
    scenario = SCENARIO.format(sessions="resume", orphans="failed")
    scenario = scenario.replace("kinds = []", 'kinds = ["work.permanent"]\nrates = { "work.permanent" = 1.0 }')
    drawn, kills = parsed("killed-twice", scenario).draw(7), 0  # its task may be tried twice
    for at in range(1, COMMITS):
        killer = _InSecondAttempt(at)
        report = simulate(drawn, intrude=killer)
        assert report.problems == (), f"killed at commit {at} of the second supervisor"
        kills += killer.kills
    assert kills >= 2 * 12
