"""The agent's table against specification 000: each of its states with each of its events."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from actors.machine import Effect, Event, IllegalTransition
from supervisor.lifecycles.agent import AGENT, Agent, AgentData, stale
from supervisor.lifecycles.effects import FinalizeEntity
from supervisor.lifecycles.events import AgentExited, AgentNamed, AgentReady, AgentStarted, TaskAssigned, TaskFinished

A = Agent
BORN = AgentData(id="s:a1", session_id="s", adapter="acp")
READY = replace(BORN, pid=42, resume_id="u1", info="v1")
DATA = {
    A.STARTING: BORN,
    A.WORKING: READY,
    A.IDLE: READY,
    A.DEAD: replace(READY, status=-9, ended_by="kill"),
}
EVENTS: dict[str, Event] = {
    "process_started": AgentStarted(pid=7),
    "agent_ready": AgentReady(resume_id="u2", info="v2"),
    "agent_named": AgentNamed(resume_id="u3"),
    "task_finished": TaskFinished(),
    "task_assigned": TaskAssigned(turn_id="s:t2"),
    "agent_exited": AgentExited(status=3, ended_by="exit"),
}
GONE = {"status": 3, "ended_by": "exit"}

RULES: dict[tuple[A, str], tuple[A, dict[str, Any], tuple[Effect, ...]]] = {
    (A.STARTING, "process_started"): (A.STARTING, {"pid": 7}, ()),
    (A.STARTING, "agent_ready"): (A.WORKING, {"resume_id": "u2", "info": "v2"}, ()),
    (A.STARTING, "agent_exited"): (A.DEAD, GONE, (FinalizeEntity(),)),
    (A.WORKING, "agent_named"): (A.WORKING, {"resume_id": "u3"}, ()),
    (A.WORKING, "task_finished"): (A.IDLE, {}, ()),
    (A.WORKING, "agent_exited"): (A.DEAD, GONE, (FinalizeEntity(),)),
    (A.IDLE, "task_assigned"): (A.WORKING, {}, ()),
    (A.IDLE, "agent_exited"): (A.DEAD, GONE, (FinalizeEntity(),)),
}
CELLS = [(state, name) for state in A for name in EVENTS]


@pytest.mark.parametrize(("state", "name"), CELLS, ids=[f"{state.value}+{name}" for state, name in CELLS])
def test_cell(state: A, name: str) -> None:
    """In the given state the event leads to the listed state, data and effects, or is refused and changes nothing."""
    before = replace(DATA[state])
    if (state, name) in RULES:
        target, changes, effects = RULES[state, name]
        step = AGENT.step(state, DATA[state], EVENTS[name])
        assert (step.state, step.effects) == (target, effects)
        assert step.data == replace(before, **changes)
    else:
        with pytest.raises(IllegalTransition) as caught:
            AGENT.step(state, DATA[state], EVENTS[name])
        assert {one.name() for one in caught.value.allowed} == {on for at, on in RULES if at is state}
    assert DATA[state] == before


def test_every_cell_is_tested() -> None:
    """Four states and six events are 24 cells; eight of them are rules, and every rule is tested."""
    assert set(EVENTS) == set(AGENT.events)
    assert (len(CELLS), len(RULES), len(AGENT.rules)) == (24, 8, 8)


@pytest.mark.parametrize("status", [0, 3, -9, 137, None])
@pytest.mark.parametrize("state", [A.STARTING, A.WORKING, A.IDLE], ids=lambda one: one.value)
def test_the_raw_status_is_kept(state: A, status: int | None) -> None:
    """Every exit of an agent leads to the state dead with the raw exit status, and finalizes the agent once."""
    step = AGENT.step(state, DATA[state], AgentExited(status=status, ended_by="terminate"))
    assert (step.state, step.data.status, step.data.ended_by) == (A.DEAD, status, "terminate")
    assert step.effects == (FinalizeEntity(),)


@pytest.mark.parametrize("name", EVENTS)
def test_nothing_is_stale(name: str) -> None:
    """No event of an agent is stale: an event that its table does not allow is refused."""
    assert not any(stale(data, EVENTS[name]) for data in DATA.values())


def test_an_agent_is_used_again() -> None:
    """An idle agent is assigned the next turn, any number of times, and its data stay the same."""
    state, data = AGENT.replay(A.STARTING, BORN, [EVENTS["process_started"], EVENTS["agent_ready"]])
    for _ in range(3):
        state, data = AGENT.replay(state, data, [TaskFinished(), TaskAssigned(turn_id="s:t2")])
    assert (state, data.pid, data.resume_id) == (A.WORKING, 7, "u2")


def test_an_exit_tells_of_no_process_that_nobody_counted() -> None:
    """AgentExited reports no killed and no surviving process by default."""
    assert (AgentExited().killed, AgentExited().survivors) == (0, 0)
