"""Agents that repeat their prompt in their errors: an error counts as the same error, and no prompt quotes a prompt
that quotes a prompt.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import anyio
import pytest
from field_kit import Scratch

from supervisor import AgentTurn, Plan, PlanResult, TaskConfig, open_supervisor, run_plan
from supervisor.policies.retry_reason import HEADING, join_reasons, quote_reason, without_quoted_reasons

ASKED = "Write a.txt"
PROMPTS = "cat > prompt; cat prompt >> prompts; echo ==== >> prompts"
"""Line of a shell script that keeps each prompt of its agent."""


def prompts(scratch: Scratch) -> list[str]:
    return (scratch.path / "prompts").read_text().split("====\n")[:-1]


def test_an_agent_that_repeats_its_prompt_opens_its_circuit(scratch: Scratch) -> None:
    """A program that prints its prompt before it fails has failed with the same error each time: no attempt follows
    the third, and each prompt has one level of quotes."""
    scratch.write("agent.sh", f"{PROMPTS}\ncat prompt >&2\nexit 3\n")
    scratch.plan("""
        agents: {a: {adapter: command, command: [sh, agent.sh]}}
        tasks: [{id: t, agent: a, prompt: Write a.txt}]
        task_lifecycle: {max_attempts: 5}
    """)
    run = scratch.run("run", "plan.yaml")
    assert "the same error came 3 times in a row" in run.out, run.text
    first, *others = prompts(scratch)
    assert first == "Write a.txt"
    error = "exit status 3; its last words: Write a.txt"
    assert others == [f"Write a.txt\n\n{HEADING}\n> {error}"] * 2


def test_an_agent_that_reports_its_prompt_in_an_error_opens_its_circuit() -> None:
    """An agent whose error holds the whole prompt, as a client library writes the request that failed, opens its
    circuit too; each prompt holds one reason and one traceback, and the error of the task none of our words."""
    asked = list[str]()

    async def agent(turn: AgentTurn) -> str:
        asked.append(turn.prompt)
        raise ValueError(f"the request {turn.prompt!r} failed\nTraceback (most recent call last): x")

    plan = Plan(agents={"a": agent}, tasks=[TaskConfig(id="t", agent="a", prompt=ASKED)])

    async def carry_out() -> PlanResult:
        async with open_supervisor(agents=plan.agents, settings=plan.settings) as sup:
            return await run_plan(sup, plan)

    result = anyio.run(carry_out)
    assert [one.count(HEADING) for one in asked] == [0, 1, 1]
    assert [one.count("Traceback") for one in asked] == [0, 1, 1]
    assert HEADING not in result.tasks["t"].error


@pytest.mark.parametrize("command", ["[sh, -eu]", '[sh, -c, "{prompt}"]'])
def test_refused_work_of_a_shell_is_tried_again(scratch: Scratch, command: str) -> None:
    """A task whose prompt is a program is claimed again after a failed test, and the program is the same each time."""
    scratch.plan(f"""
        agents: {{sh: {{adapter: command, command: {command}}}}}
        tasks:
          - id: t
            agent: sh
            prompt: "echo x >> tries; [ $(wc -l < tries) -lt 2 ] || echo 2 > made"
            acceptance: [{{file_exists: made}}]
    """)
    run = scratch.run("run", "plan.yaml")
    assert run.status == 0, run.text
    asked = [one["metadata"]["prompt"] for one in scratch.records() if one["event"] == "PromptReady"]
    assert (len(asked), len(set(asked))) == (2, 1)


def test_refused_work_of_a_shell_with_the_same_findings_ends(scratch: Scratch) -> None:
    """A program that fails its test in the same way again is not run for ever: two claims of four."""
    scratch.plan("""
        agents: {sh: {adapter: command, command: [sh, -eu]}}
        tasks: [{id: t, agent: sh, prompt: "echo x >> tries", acceptance: [{file_exists: made}]}]
    """)
    run = scratch.run("run", "plan.yaml")
    assert "(no further try: the findings are those of the claim before)" in run.out, run.text
    assert (scratch.path / "tries").read_text() == "x\nx\n"


ERROR = 'exit status 3: it said "no", and that was it'
AGAIN = f"{ASKED}\n\n{quote_reason(ERROR)}"


def as_request(text: str) -> str:
    return json.dumps({"prompt": text})


@pytest.mark.parametrize("spelled", [repr, json.dumps, as_request])
def test_a_repeated_reason_is_left_out_of_an_escaped_text(spelled: Callable[[str], str]) -> None:
    """An error that holds the prompt as Python or JSON write it is the same with and without a reason in it."""
    first, later = (f"failed: {spelled(text)}; code 7" for text in (ASKED, AGAIN))
    assert HEADING in later
    assert without_quoted_reasons(later) == first


def test_a_repeated_reason_is_left_out_of_lines() -> None:
    """Of an error with the prompt in its lines, the lines before and after the reason stay."""
    assert without_quoted_reasons(f"failed: {AGAIN}\nat line 7") == f"failed: {ASKED}\nat line 7"
    nested = quote_reason(AGAIN)
    assert without_quoted_reasons(f"failed: {nested}\nat line 7") == "failed:\nat line 7"


def test_equal_errors_are_told_once() -> None:
    """Of a claim's and an attempt's error that differ only in times and directories, the newest is told."""
    trace = "Traceback (most recent call last):\n  File '/w/{0}/a.py', line 3\nValueError: after {1} s"
    assert join_reasons(trace.format("t", 2), "", trace.format("t-2", 4)) == trace.format("t-2", 4)
