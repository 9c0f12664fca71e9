"""The visual states of spec 000, at and around their thresholds."""

from __future__ import annotations

import math

import msgspec
import pytest

from supervisor.diagnostics.visual_state import AgentStateThresholds, VisualState, visual_state

V = VisualState
BORN = 1000.0


def seen(
    agent_state: str, age_s: float, *, beat_s: float | None = None, pid: int | None = 7, status: str = ""
) -> VisualState:
    """Return the visual state of an agent born *age_s* seconds ago, whose last heartbeat was *beat_s* seconds ago."""
    now = BORN + age_s
    beat = None if beat_s is None else now - beat_s
    return visual_state(agent_state, spawned_at=BORN, now=now, last_heartbeat_at=beat, pid=pid, status=status)


def before(seconds: float) -> float:
    """Return the largest number of seconds below *seconds*, to test just before a threshold."""
    return math.nextafter(BORN + seconds, 0) - BORN


@pytest.mark.parametrize(
    ("spelling", "indicator", "colour"),
    [
        ("SPAWNING", "◔", "yellow"),
        ("RUNNING", "●", "green"),
        ("STALLED", "◐", "dark orange"),
        ("MERGING", "⇄", "blue"),
        ("DEAD", "○", "red"),
        ("IDLE", "□", "gray"),
        ("UNKNOWN", "◌", "dim"),
    ],
)
def test_states_look_as_specified(spelling: str, indicator: str, colour: str) -> None:
    """Each visual state has the spelling, symbol and colour of the specification."""
    state = VisualState(spelling)
    assert (state.name, state.indicator, state.colour) == (spelling, indicator, colour)


def test_there_are_seven() -> None:
    """There are seven visual states."""
    assert len(VisualState) == 7


@pytest.mark.parametrize(
    ("agent_state", "age_s", "beat_s", "status", "expected"),
    [
        ("starting", 0, None, "", V.SPAWNING),
        ("starting", before(60), None, "", V.SPAWNING),
        ("starting", 60, None, "", V.DEAD),
        ("starting", 61, None, "spawning", V.DEAD),
        ("starting", 60, 1, "", V.DEAD),
        ("working", 0, None, "", V.RUNNING),
        ("working", before(300), None, "", V.RUNNING),
        ("working", 300, None, "", V.STALLED),
        ("working", 900, 1, "", V.RUNNING),
        ("working", 900, 299, "in_progress", V.RUNNING),
        ("working", 900, 300, "in_progress", V.STALLED),
        ("working", 900, 301, "running", V.STALLED),
        ("working", 10, 400, "", V.RUNNING),
        ("working", 900, 599, "merging", V.MERGING),
        ("working", 900, 599, "committing", V.MERGING),
        ("working", 900, 599, "pushing", V.MERGING),
        ("working", 900, 600, "merging", V.STALLED),
        ("working", 600, None, "pushing", V.STALLED),
        ("working", before(600), None, "pushing", V.MERGING),
        ("idle", 9999, None, "", V.IDLE),
        ("idle", 9999, 9999, "idle", V.IDLE),
        ("idle", 1, 1, "waiting", V.IDLE),
        ("idle", 1, 1, "PAUSED", V.IDLE),
        ("dead", 1, 1, "", V.DEAD),
        ("dead", 1, 1, "no such status", V.DEAD),
        ("working", 1, 1, "done", V.DEAD),
        ("working", 1, 1, "failed", V.DEAD),
        ("idle", 1, 1, "cancelled", V.DEAD),
        ("starting", 1, 1, "killed", V.DEAD),
        ("working", 1, 1, "no such status", V.UNKNOWN),
        ("working", 1, 1, "paused", V.UNKNOWN),
        ("idle", 1, 1, "merging", V.UNKNOWN),
        ("starting", 1, 1, "merging", V.UNKNOWN),
        ("no such state", 1, 1, "", V.UNKNOWN),
        ("no such state", 1, 1, "done", V.UNKNOWN),
        ("", 1, 1, "", V.UNKNOWN),
    ],
)
def test_classification(
    agent_state: str, age_s: float, beat_s: float | None, status: str, expected: VisualState
) -> None:
    """State, age, last heartbeat and status of an agent with a process give the listed visual state."""
    assert seen(agent_state, age_s, beat_s=beat_s, status=status) is expected


@pytest.mark.parametrize(
    ("agent_state", "status", "expected"),
    [
        ("idle", "waiting", V.DEAD),
        ("idle", "", V.IDLE),
        ("working", "paused", V.DEAD),
        ("working", "running", V.RUNNING),
        ("working", "", V.RUNNING),
        ("starting", "", V.SPAWNING),
    ],
)
def test_agent_without_a_process(agent_state: str, status: str, expected: VisualState) -> None:
    """An agent without a pid is shown as dead only if its status is one of waiting, such as ``paused``."""
    assert seen(agent_state, 1, beat_s=1, pid=None, status=status) is expected


def test_thresholds_are_configurable() -> None:
    """Each configured threshold changes only the visual state that it is for."""
    thresholds = AgentStateThresholds(stall_threshold_s=3, spawn_timeout_s=2, merging_stall_s=4)

    def at(agent_state: str, age_s: float, status: str = "") -> VisualState:
        return visual_state(
            agent_state,
            spawned_at=0,
            now=age_s,
            last_heartbeat_at=None,
            pid=1,
            status=status,
            thresholds=thresholds,
        )

    assert [at("starting", 1.9), at("starting", 2)] == [V.SPAWNING, V.DEAD]
    assert [at("working", 2.9), at("working", 3)] == [V.RUNNING, V.STALLED]
    assert [at("working", 3.9, "merging"), at("working", 4, "merging")] == [V.MERGING, V.STALLED]


def test_default_thresholds() -> None:
    """The default thresholds are five minutes for a stall, sixty seconds for a start, and ten minutes for a merge."""
    assert AgentStateThresholds() == AgentStateThresholds(
        stall_threshold_s=300, spawn_timeout_s=60, merging_stall_s=600
    )


def test_a_misspelt_threshold_is_an_error() -> None:
    """A misspelt name of a threshold is a ValidationError."""
    with pytest.raises(msgspec.ValidationError, match="stall_s"):
        msgspec.convert({"stall_s": 1}, AgentStateThresholds)
