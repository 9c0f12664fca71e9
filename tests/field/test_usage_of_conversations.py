"""Usage of conversations: an agent that goes on counting in a resumed conversation is counted once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from field_kit import Scratch, until

AGENT = """
    #!/usr/bin/env python3
    import json, os, sys, uuid
    again = [word for word in sys.argv if word.startswith("--again=")]
    name = again[0].removeprefix("--again=") if again else str(uuid.uuid4())
    sys.stdin.read()
    prompts = (int(open("prompts").read()) if os.path.exists("prompts") else 0) + 1
    with open("prompts", "w") as file:
        file.write(str(prompts))
    {before}
    print(json.dumps({{"type": "hello", "id": name}}))
    print(json.dumps({{"type": "use", "in": {total}, "usd": ({total}) / 1000}}))
    print(json.dumps({{"type": "text", "text": "DONE" if prompts == {last} else "not yet"}}))
    print(json.dumps({{"type": "end"}}), flush=True)
    {after}
"""
"""Program of JSON lines that is prompted until its last prompt, and reports a total after each prompt."""

MAPPING = """
    prompt = "stdin"
    resume_arguments = ["--again={id}"]

    [[rules]]
    when = { type = "hello" }
    says = "session"
    id = "id"

    [[rules]]
    when = { type = "use" }
    says = "usage"
    scope = "SCOPE"
    input = "in"
    cost = "usd"

    [[rules]]
    when = { type = "text" }
    says = "text"
    text = "text"

    [[rules]]
    when = { type = "end" }
    says = "end"
    stop = "end_turn"
"""


def prepare(
    scratch: Scratch, total: str, *, last: int = 3, scope: str = "conversation", before: str = "", after: str = ""
) -> None:
    """Write the agent, its mapping and the plan; *total* is an expression of the number of *prompts*."""
    program = AGENT.format(total=total, last=last, before=before, after=after)
    scratch.write("mine", program).chmod(0o755)
    scratch.write("mine.toml", MAPPING.replace("SCOPE", scope))
    scratch.plan("""
        agents: {a: {adapter: jsonl, command: [./mine], mapping: mine.toml}}
        task_lifecycle: {base_retry_delay: 0.1}
        tasks: [{id: t, agent: a, prompt: go, completion: [{answer_contains: DONE}]}]
    """)


def used(scratch: Scratch) -> dict[str, Any]:
    """Return the usage of the session, as recorded last."""
    records = [one for one in scratch.records("t") if one["event"] == "Usage"]
    found: dict[str, Any] = records[-1]["metadata"]["used"]
    return found


@pytest.mark.parametrize(
    ("scope", "total", "expected"),
    [
        ("conversation", "1000 * prompts", 3000),
        ("conversation", "1000 if prompts == 3 else 2000 * prompts", 5000),
        ("result", "1000 * prompts", 6000),
        ("request", "1000 * prompts", 6000),
        ("turn", "1000 * prompts", 6000),
    ],
    ids=["a total", "a total that falls", "result", "request", "turn"],
)
def test_usage_counts_by_its_scope(scratch: Scratch, scope: str, total: str, expected: int) -> None:
    """Three prompts of one conversation, each in a process of its own: the total of a conversation counts once, and
    begins anew when it falls; the usage of a turn, a result or a request is added."""
    prepare(scratch, total, scope=scope)
    done = scratch.run("run", "plan.yaml", "--json")
    assert done.status == 0, done.text
    assert used(scratch)["input_tokens"] == expected
    assert used(scratch)["cost_usd"] == pytest.approx(expected / 1000)


def test_the_total_outlives_the_supervisor(scratch: Scratch) -> None:
    """The supervisor is killed between two prompts of a conversation: the next supervisor counts only what the total
    has grown since then."""
    prepare(scratch, "1000 * prompts", last=2, after=(
        'import time\n    while prompts == 1 and os.path.exists("wait"): time.sleep(0.01)'
    ))  # fmt: skip
    (scratch.path / "wait").touch()
    first = scratch.start("run", "plan.yaml")
    until(lambda: '"event":"Usage"' in scratch.run("events", "--json").out)  # before that there may be no journal
    first.kill()
    (scratch.path / "wait").unlink()
    done = scratch.run("run", "plan.yaml", "--json")
    assert done.status == 0, done.text
    assert json.loads((scratch.path / "prompts").read_text()) == 2
    assert used(scratch)["input_tokens"] == 2000


def test_another_conversation_counts_from_zero(scratch: Scratch) -> None:
    """A program that begins a new conversation, although it was asked to resume the last one, is counted from 0: what
    it reports is the usage of the new conversation alone."""
    prepare(scratch, "1000", before="name = str(uuid.uuid4())")
    done = scratch.run("run", "plan.yaml", "--json")
    assert done.status == 0, done.text
    assert used(scratch)["input_tokens"] == 3000


def test_a_usage_rule_without_a_scope_is_refused(scratch: Scratch) -> None:
    """A mapping whose usage rule does not say what its figures count is refused by the check of the plan."""
    prepare(scratch, "1000")
    mapping = scratch.path / "mine.toml"
    mapping.write_text(mapping.read_text().replace('scope = "conversation"\n', ""))
    done = scratch.run("plan", "check", "plan.yaml")
    assert done.status == 2, done.text
    assert "scope: missing" in done.text
    assert "Traceback" not in done.text
