"""When a turn is over: what an agent sends after the end that it has reported, and programs that report a result and
stay.

Some agents answer the prompt before they send their last words, or before they report the end of a tool call. Such a
turn must not be paid a second time.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
from field_kit import Finished, Scratch

LATE = """
    sent = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "forty-two"}}
    way = text.split()
    if way[0] == "text":
        threading.Timer(float(way[1]), lambda: agent.update(**sent)).start()
    elif way[0] == "call":
        agent.tool_call("c1", "make it")
        threading.Timer(0.1, lambda: agent.tool_ended("c1")).start()
    elif way[0] == "endless":
        agent.tool_call("c1", "make it")
    return ""
"""
"""Body of an agent that answers each prompt at once, with its words or the end of its call still to come."""

REPORTS = """
import json, signal, sys, time
print(json.dumps({"type": "text", "text": "the result"}), flush=True)
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "protesting" in sys.argv:
    def end(*_):
        print(json.dumps({"type": "end", "good": False}), flush=True)
        sys.exit(143)
    signal.signal(signal.SIGTERM, end)
if "failed" in sys.argv:
    print(json.dumps({"type": "end", "good": False}), flush=True)
    time.sleep(float(sys.argv[2]))
    print(json.dumps({"type": "text", "text": "again"}), flush=True)
    time.sleep(float(sys.argv[2]))
print(json.dumps({"type": "end", "good": True}), flush=True)
time.sleep(600)
"""
"""Program that prints its result and stays; with the word ``failed`` it reports a failure first and goes on."""

MAPPING = """
prompt = "stdin"
[[rules]]
when = { type = "text" }
says = "text"
text = "text"
[[rules]]
when = { type = "end", good = true }
says = "end"
stop = "end_turn"
[[rules]]
when = { type = "end" }
says = "end"
stop = "error"
"""


def run_acp(scratch: Scratch, prompt: str, rest: str = "") -> Finished:
    """Run a plan with one task, whose agent answers at once, and *rest* as further lines of the plan."""
    scratch.acp_agent(LATE)
    scratch.plan(f"""
        agents: {{a: {{adapter: acp, command: [{sys.executable}, agent.py]}}}}
        task_lifecycle: {{max_attempts: 2, base_retry_delay: 0.1}}
        {rest}
        tasks: [{{id: t, agent: a, prompt: "{prompt}", max_retries: 0}}]
    """)
    return scratch.run("run", "plan.yaml")


def run_jsonl(scratch: Scratch, *words: str, settle_s: float) -> Finished:
    """Run a plan with one task, whose program prints lines of JSON and gets *words* as arguments."""
    scratch.write("program.py", REPORTS)
    scratch.write("map.toml", MAPPING)
    command = ", ".join(f'"{word}"' for word in (sys.executable, "program.py", *words))
    scratch.plan(f"""
        agents: {{a: {{adapter: jsonl, command: [{command}], mapping: map.toml}}}}
        limits: {{settle_s: {settle_s}}}
        policy: {{ladder: {{terminate_s: 0.2}}}}
        tasks: [{{id: t, agent: a, prompt: go, max_retries: 0}}]
    """)
    return scratch.run("run", "plan.yaml")


def names(scratch: Scratch, entity_id: str = "") -> list[str]:
    """Return the names of the records of the journal, or of those of one entity."""
    return [one["event"] for one in scratch.records(entity_id)]


def prompts(scratch: Scratch) -> int:
    """Return the number of prompts that the agent of the task was given."""
    return names(scratch, "t").count("TurnRequested")


def exit_of_agent(scratch: Scratch) -> dict[str, Any]:
    """Return the metadata of the record of the agent's exit."""
    return next(one["metadata"] for one in scratch.records("t:a1") if one["event"] == "agent_exited")


@pytest.mark.parametrize("delay_s", [0.01, 0.3])
def test_words_after_the_answer_are_the_answer(scratch: Scratch, delay_s: float) -> None:
    """Words that come up to half a second after the reply to the prompt complete the task, after one prompt."""
    done = run_acp(scratch, f"text {delay_s}")
    assert done.status == 0, done.text
    assert prompts(scratch) == 1
    assert "forty-two" in scratch.run("logs", "t").out


def test_a_call_may_end_after_the_answer(scratch: Scratch) -> None:
    """A tool call whose end comes after the reply has completed, and so has its task, after one prompt."""
    done = run_acp(scratch, "call")
    assert done.status == 0, done.text
    assert prompts(scratch) == 1
    assert [one["metadata"]["outcome"] for one in scratch.records("t:t1") if one["event"] == "tool_completed"] == [
        "completed"
    ]


def test_a_call_that_never_ends_fails_the_turn(scratch: Scratch) -> None:
    """A tool call that is still open after the silence fails the turn, as before, with a reason that names it."""
    done = run_acp(scratch, "endless", "limits: {max_consecutive_errors: 1}")
    assert done.status == 1, done.text
    assert "open tool calls: c1" in done.text


def test_success_without_a_word_is_an_attempt(scratch: Scratch) -> None:
    """An agent that reports success and says nothing is asked twice where two attempts are set; the provider is not
    blamed, so that no other task of the agent waits."""
    done = run_acp(scratch, "nothing")
    assert done.status == 1, done.text
    assert prompts(scratch) == 2
    assert "no text, tool call or token" in done.text
    assert "ProviderTroubled" not in names(scratch)


def test_a_program_that_stays_after_its_result_is_ended(scratch: Scratch) -> None:
    """A program that has reported success and does not exit is ended after ``settle_s``; its result counts, and it is
    launched once."""
    done = run_jsonl(scratch, settle_s=0.2)
    assert done.status == 0, done.text
    assert (prompts(scratch), exit_of_agent(scratch)["ended_by"]) == (1, "terminate")
    assert "had reported its result, and did not exit" in exit_of_agent(scratch)["reason"]
    assert scratch.run("validate", ".sdd").status == 0
    assert "the result" in scratch.run("logs", "t").out


def test_a_program_that_reports_its_end_by_the_supervisor_has_its_result(scratch: Scratch) -> None:
    """A program that stays after its result, and reports an error when it is ended for that, has succeeded."""
    done = run_jsonl(scratch, "protesting", settle_s=0.2)
    assert done.status == 0, done.text
    assert (prompts(scratch), exit_of_agent(scratch)["ended_by"]) == (1, "terminate")


def test_a_program_that_ignores_sigterm_is_killed(scratch: Scratch) -> None:
    """A program that stays after its result and ignores SIGTERM is killed; its result counts."""
    done = run_jsonl(scratch, "stubborn", settle_s=0.2)
    assert done.status == 0, done.text
    assert (prompts(scratch), exit_of_agent(scratch)["ended_by"]) == (1, "kill")
    assert scratch.run("validate", ".sdd").status == 0


def test_a_program_that_goes_on_after_a_failure_is_not_ended(scratch: Scratch) -> None:
    """A program that reports a failure, works on by itself and then reports success has succeeded: what it does after
    the first report shows that it had not ended."""
    done = run_jsonl(scratch, "failed", "0.7", settle_s=1.0)
    assert done.status == 0, done.text
    assert prompts(scratch) == 1
