"""Lines that agents write to the output of their protocol besides messages: half characters, banners, warnings, codes
for a terminal. None of it may cost the work of a session.
"""

from __future__ import annotations

import json
import socket
import sys

import pytest
from field_kit import Finished, Scratch, until

WRITES = """
    def write(data):
        sys.stdout.flush()
        os.write(1, data)

    chunk = ('{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"%s","update":'
             '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"%s"}}}}\\n')
    way = text.split()[0]
    if way == "half":
        write((chunk % (agent.conversation, "cut \\\\ud83d")).encode())
        write((chunk % (agent.conversation, "\\\\ude00 whole \\\\ud83d\\\\ude00")).encode())
    elif way == "title":
        write(('{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"%s","update":{"sessionUpdate":'
               '"tool_call","toolCallId":"c1","title":"echo cut \\\\ud83d","kind":"execute","status":"completed",'
               '"rawOutput":{"text":"cut \\\\ud83d"}}}}\\n' % agent.conversation).encode())
    elif way == "child":
        reply = agent.call("_supervisor/session/run", name="cut \\ud83d", prompt="go")
        agent.update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": json.dumps(reply)})
    elif way == "terminal":
        made = agent.call("terminal/create", command="printf", args=["cut \\\\360\\\\237 \\ud83d"])["result"]
        agent.call("terminal/wait_for_exit", **made)
        output = agent.call("terminal/output", **made)["result"]["output"]
        agent.update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": output})
    elif way == "stray":
        write(b"npm WARN deprecated rimraf@2\\n\\r\\n\\x1b[33mWelcome!\\x1b[0m\\n[1, 2]\\n7\\n\\x00\\n\\xff\\xfe\\n")
        write(b'{"level":30,"msg":"a log line"}\\n{"jsonrpc":"2.0","id":"unknown","result":{}}\\n')
        write(b'{"jsonrpc":"2.0","method":"of/another"}\\n{"jsonrpc":"2.0","met')
        time.sleep(0.1)
        write(b'hod":"of/another"}\\n' + b"x" * 9_000_000 + b"\\n\\xef\\xbb\\xbf\\x1b[?25h")
    elif way == "flood":
        write(b"debug: poll\\n" * 5_000)
        time.sleep(600)
    return "done"
"""
"""Body of an agent that writes, by the first word of its prompt, something besides messages."""


def run(scratch: Scratch, prompt: str) -> Finished:
    """Run a plan with one task of the agent above."""
    scratch.acp_agent(WRITES)
    scratch.plan(f"""
        agents: {{a: {{adapter: acp, command: [{sys.executable}, agent.py]}}}}
        limits: {{max_consecutive_errors: 1}}
        tasks: [{{id: t, agent: a, prompt: "{prompt}", max_retries: 0}}]
    """)
    return scratch.run("run", "plan.yaml")


@pytest.mark.parametrize(
    ("prompt", "shown"),
    [
        ("half", "cut \ufffd\ufffd whole \U0001f600done"),
        ("title", "done"),
        ("child", "name"),
        ("terminal", "cut \ufffd \ufffddone"),
    ],
)
def test_half_a_character_costs_nothing(scratch: Scratch, prompt: str, shown: str) -> None:
    """Half a character, as a JavaScript program writes it, in an answer, a title, a child's name or an argument of a
    command is replaced; the rest is kept, and the task is completed with one launch."""
    done = run(scratch, prompt)
    assert done.status == 0, done.text
    assert [one["event"] for one in scratch.records("t")].count("TurnRequested") == 1
    assert shown in scratch.run("logs", "t").out
    assert scratch.run("validate", ".sdd").status == 0


def test_lines_of_other_programs_cost_nothing(scratch: Scratch) -> None:
    """Banners, warnings, log lines, numbers, NUL bytes, bytes that are no UTF-8 and a line of 9 MB between the messages
    are kept in the log and on record, without codes for the terminal in what is printed, and the task is completed."""
    done = run(scratch, "stray")
    assert done.status == 0, done.text
    log = scratch.run("logs", "t").out
    assert all(words in log for words in ("npm WARN deprecated rimraf@2", "Welcome!", "a log line", "done"))
    assert "\x1b" not in log
    facts = [one["metadata"] for one in scratch.records("t:a1") if one["event"] == "StrayLine"]
    assert len(facts) == 8
    assert "longer than 8388608 bytes" in facts[-1]["why"]


def test_a_program_of_another_protocol_is_ended_with_a_reason(scratch: Scratch) -> None:
    """A program that writes 1,001 lines in a row that are no messages is ended; the reason quotes the last line."""
    done = run(scratch, "flood")
    assert done.status == 1, done.text
    assert "1001 lines in a row that are no messages of its protocol, the last one: 'debug: poll'" in done.text


def test_a_program_that_is_no_agent_is_quoted(scratch: Scratch) -> None:
    """A program that prints its usage and exits before it was ready fails with its last line as part of the reason."""
    scratch.plan("""
        agents: {a: {adapter: acp, command: [sh, -c, "echo 'usage: thing [OPTIONS]'; exit 2"]}}
        limits: {max_consecutive_errors: 1}
        tasks: [{id: t, agent: a, prompt: go, max_retries: 0}]
    """)
    done = scratch.run("run", "plan.yaml")
    assert done.status == 1, done.text
    assert (
        "exited with status 2 before it was ready; its last line was no message: 'usage: thing [OPTIONS]'" in done.text
    )


def test_a_plan_in_json_may_escape_characters(scratch: Scratch) -> None:
    """A plan in JSON whose characters are escaped as surrogate pairs runs with these characters."""
    tasks = [{"id": "t", "agent": "a", "prompt": "@say smile \U0001f600"}]
    scratch.write("plan.json", json.dumps({"agents": {"a": {"adapter": "scripted"}}, "tasks": tasks}))
    assert r"\ud83d" in (scratch.path / "plan.json").read_text()
    done = scratch.run("run", "plan.json")
    assert done.status == 0, done.text
    assert "smile \U0001f600" in done.out


def test_half_a_character_in_a_plan_is_named(scratch: Scratch) -> None:
    """Half a character in a plan is bad input, with the field and the fix."""
    scratch.write(
        "plan.json", r'{"agents": {"a": {"adapter": "scripted"}}, "tasks": [{"id": "t", "prompt": "\ud83d"}]}'
    )
    done = scratch.run("plan", "check", "plan.json")
    assert done.status == 2
    assert "tasks[0].prompt: contains half of a surrogate pair" in done.text


def test_a_message_with_half_a_character_is_delivered(scratch: Scratch) -> None:
    """A message that a program sends over the control socket with half a character is delivered, with the half
    replaced; the command refuses bytes that are no UTF-8 with exit status 2."""
    scratch.plan("""
        agents: {a: {adapter: scripted}}
        tasks: [{id: t, agent: a, prompt: "@run echo begun\\n@wait over"}]
    """)
    running = scratch.start("run", "plan.yaml")
    until(lambda: "begun" in running.out)
    refused = scratch.start("send", "t", b"cut \xff", "--urgent").wait()  # type: ignore[arg-type]
    assert (refused.status, "is not UTF-8" in refused.text) == (2, True)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(scratch.path / ".sdd/runtime/control.sock"))
        client.sendall(rb'{"do":"send","id":"t","text":"@say cut \ud83d","urgent":true}' + b"\n")
        assert b'"error"' not in client.recv(65536)
    (scratch.path / "over").touch()
    done = running.wait()
    assert done.status == 0, done.text
    assert "cut \ufffd" in scratch.run("logs", "t").out
