"""Progress is what says something new, and a circle is what begins again after an answer."""

from __future__ import annotations

import pytest
from field_kit import Scratch, until

from supervisor.policies.loop_detection import FinishedCall, LoopDetector, LoopLimits
from supervisor.policies.output_novelty import LINE_MAX, OutputNovelty

STUCK = """
    import sys
    send = {
        "usage": lambda n: agent.update(sessionUpdate="usage_update", used=1000, size=200000),
        "spinner": lambda n: agent.update(sessionUpdate="session_info_update", title=f"thinking for {n} s"),
        "clock": lambda n: print(f"12:00:{n % 60:02d} still waiting for the lock", file=sys.stderr, flush=True),
        "talks": lambda n: agent.update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": "so "}),
    }[text.split()[0]]
    for number in range(100_000):
        send(number)
        time.sleep(0.1)
"""


def test_noise_does_not_keep_an_agent_alive(scratch: Scratch) -> None:
    """An agent that repeats its usage, counts in its title, or logs the time, is given up by the liveness policy; a
    neighbour that goes on talking is not, though each of its messages is the same."""
    scratch.acp_agent(STUCK)
    scratch.plan("""
        liveness: {snapshot_s: 0.5, default: {wake: 2, stop: 4, kill: 6}}
        limits: {grace_s: 1}
        agents: {a: {adapter: acp, command: [python3, agent.py]}}
        tasks:
          - {id: usage, agent: a, prompt: usage}
          - {id: spinner, agent: a, prompt: spinner}
          - {id: clock, agent: a, prompt: clock}
          - {id: talks, agent: a, prompt: talks}
    """)
    run = scratch.start("run", "plan.yaml")
    until(lambda: "talks: begins" in run.out)

    def given_up() -> set[str]:
        return {one["entity_id"] for one in scratch.records() if one["event"] == "AbortRecord"}

    until(lambda: given_up() >= {"usage", "spinner", "clock"})
    assert "talks" not in given_up()


@pytest.mark.parametrize(
    ("first", "second", "is_new"),
    [
        (b'{"tokens": 10}\n', b'{"tokens": 11}\n', False),
        (b"10:00:01 waiting\n", b"10:00:02 waiting\n", False),
        (b"beat 0f2e4d6c8b0a11ee\n", b"beat 9a8b7c6d5e4f33cc\n", False),
        (b"compiling a.c\n", b"compiling b.c\n", True),
        (b"42%\r", b"43%\r", False),
        (b"same\n", b"\n\n", False),
        (b"same\n", b"x" * (LINE_MAX + 1), True),
    ],
)
def test_a_line_is_new_by_more_than_numbers(first: bytes, second: bytes, is_new: bool) -> None:
    """Clocks, counters and ids make no new line; other words do, and so does a line too long to compare."""
    novelty = OutputNovelty()
    assert novelty.take(first)
    assert novelty.take(second) is is_new


def test_a_line_in_pieces_is_one_line() -> None:
    """A line that arrives in pieces is compared when it is whole."""
    novelty = OutputNovelty()
    assert novelty.take(b"hello wor") is False
    assert novelty.take(b"ld\n")
    assert not novelty.take(b"hello world\n")


def test_equal_calls_side_by_side_are_no_circle(scratch: Scratch) -> None:
    """Eight equal calls of one answer are all completed; the agent is not told that it repeats itself."""
    scratch.acp_agent("""
        for number in range(8):
            call = {"toolCallId": f"k{number}", "title": "pytest", "kind": "execute", "rawInput": {"command": "pytest"}}
            agent.update(sessionUpdate="tool_call", status="in_progress", **call)
        for number in range(8):
            ended = {"toolCallId": f"k{number}", "rawOutput": {"exit": 0}}
            agent.update(sessionUpdate="tool_call_update", status="completed", **ended)
        return "all passed"
    """)
    scratch.plan("""
        agents: {a: {adapter: acp, command: [python3, agent.py]}}
        tasks: [{id: t, agent: a, prompt: go}]
    """)
    run = scratch.run("run", "plan.yaml")
    assert run.status == 0, run.text
    outcomes = [one["metadata"]["outcome"] for one in scratch.records("t:t1") if one["event"] == "tool_completed"]
    assert outcomes == ["completed"] * 8
    assert not [one for one in scratch.records() if one["event"] == "Repeats"]


def test_rounds_of_equal_calls_are_a_circle() -> None:
    """Three equal calls at a time, again and again: each round counts once, and the fifth is the limit."""
    loops, call = LoopDetector(LoopLimits(same_call_max=5)), FinishedCall("make", "execute", "a", "failed")
    found = []
    for _ in range(5):
        began = loops.taken
        found.append([loops.take(call, began) is not None for _ in range(3)])
    assert found == [[False] * 3] * 4 + [[True, False, False]]
