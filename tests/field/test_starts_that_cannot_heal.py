"""Agents that cannot start, whatever is tried: the task fails after a launch, with the agent's own last words."""

from __future__ import annotations

import pytest
from field_kit import Scratch


@pytest.mark.parametrize(
    ("words", "adapter"),
    [
        ("error: unexpected argument '--mode' found", "acp"),
        ("error: unknown option '--permission'", "claude"),
        ("Error loading config: unknown variant `untrusted`, expected `never`", "codex"),
    ],
)
def test_an_option_that_is_refused_costs_one_launch(scratch: Scratch, words: str, adapter: str) -> None:
    """An agent that does not accept its command line is launched once, and the reason has its words."""
    script = f"echo launched >> launches\ncat >&2 <<'END'\n{words}\nEND\nexit 2\n"
    (scratch.path / "agent.sh").write_text(script)
    scratch.plan(f"""
        agents: {{a: {{adapter: {adapter}, command: [sh, agent.sh]}}}}
        tasks: [{{id: t, agent: a, prompt: go}}]
    """)
    done = scratch.run("run", "plan.yaml")
    assert done.status == 1
    assert words in " ".join(done.text.split())
    assert (scratch.path / "launches").read_text() == "launched\n"
