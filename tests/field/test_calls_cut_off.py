"""A user aborts one of several tool calls of an agent that cannot end one alone: plan, receipt and the next prompt name
everything that ends with it, in words that a person and a model know."""

from __future__ import annotations

import json

import pytest
from field_kit import Scratch, until

AGENT = """
if Path("prompt-1").exists():
    Path("prompt-2.new").write_text(text)
    Path("prompt-2.new").rename("prompt-2")
    return "went on"
Path("prompt-1").write_text(text)
for number, title in enumerate(TITLES, 1):
    agent.tool_call(f"call_{number}x", title)
agent.cancelled.wait()
for number, title in enumerate(TITLES, 1):
    agent.tool_ended(f"call_{number}x", "failed")
"""
PLAN = """
    agents: {a: {adapter: acp, command: [python3, agent.py]}}
    tasks: [{id: t, agent: a, prompt: go}]
"""


def begun(scratch: Scratch, titles: list[str]) -> None:
    """Start a run whose agent has a call open for each of *titles*."""
    scratch.acp_agent(AGENT.replace("TITLES", repr(titles)))
    scratch.plan(PLAN)
    scratch.start("run", "plan.yaml")
    until(lambda: f"t:t1:c{len(titles)}" in scratch.run("tree").out)


@pytest.mark.parametrize(
    ("titles", "beside"),
    [
        (["make lint", "make docs"], ["make docs"]),
        (["cargo test", "cargo doc", "cargo bench", "cargo clippy"], ["cargo doc", "cargo bench", "cargo clippy"]),
    ],
)
def test_calls_that_end_with_an_aborted_call_are_named(scratch: Scratch, titles: list[str], beside: list[str]) -> None:
    """The dry run says which calls end if the agent does not end the call alone, the receipt which have ended, and the
    next prompt which the model may want to make again; each by its title."""
    begun(scratch, titles)
    abort = ("abort", "t:t1:c1", "--scope", "tool")
    planned = json.loads(scratch.run(*abort, "--dry-run", "--json").out)
    assert [one["title"] for one in planned["beside"]] == beside
    shown = scratch.run(*abort, "--dry-run").out
    assert all(f'tool t:t1:c{number} "{title}"' in shown for number, title in enumerate(beside, 2))
    receipt = json.loads(scratch.run(*abort, "--json").out)
    assert [(one["id"], one["title"]) for one in receipt["beside"]] == [
        (f"t:t1:c{number}", title) for number, title in enumerate(beside, 2)
    ]
    until((scratch.path / "prompt-2").exists)
    prompt = (scratch.path / "prompt-2").read_text()
    assert f"The tool call `{titles[0]}` (call_1x) was aborted" in prompt
    assert all(f"`{title}` (call_{number}x)" in prompt for number, title in enumerate(beside, 2))
    ended = [one["metadata"]["call_id"] for one in scratch.records("t:t1") if one.get("event") == "tool_completed"]
    assert len(ended) == len(titles)


def test_a_call_beside_nothing_ends_alone(scratch: Scratch) -> None:
    """The only call of a turn is aborted: nothing else is named, in plan, receipt and prompt."""
    begun(scratch, ["make all"])
    abort = ("abort", "t:t1:c1", "--scope", "tool")
    assert "its turn ends, and with it" not in scratch.run(*abort, "--dry-run").out
    assert json.loads(scratch.run(*abort, "--json").out)["beside"] == []
    until((scratch.path / "prompt-2").exists)
    assert "beside" not in (scratch.path / "prompt-2").read_text()
