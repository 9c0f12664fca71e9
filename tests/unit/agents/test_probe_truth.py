"""The probe compares what an agent says with what its model was asked: an agent of this file that is honest, or lies in
one way, is probed against the scripted model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from supervisor.agent_catalogue import KnownAgent
from supervisor.agents.probe import driver, trial, turns
from supervisor.agents.probe.conformance import probe
from supervisor.agents.probe.sandbox import make_sandbox
from supervisor.agents.probe.trial import ProbeResult
from supervisor.mock_model.server import open_stub_model
from supervisor.processes.host import ShimHost

pytestmark = pytest.mark.anyio

AGENT = r"""
import json, os, subprocess, sys, urllib.error, urllib.request, uuid
lie = os.environ["LIE"]
def say(**line):
    print(json.dumps(line), flush=True)
if sys.argv[1:] and sys.argv[-1].startswith("--no-such"):
    sys.exit("unexpected argument " + sys.argv[-1])
name = sys.argv[-1] if len(sys.argv) > 1 else str(uuid.uuid4())
store = os.path.join(os.environ["HOME"], name + ".jsonl")
history = []
if os.path.exists(store) and lie != "forgets":
    for line in open(store):
        try:
            history.append(json.loads(line))
        except ValueError:
            if lie == "loses":
                history.clear()
def keep(message):
    history.append(message)
    with open(store, "a") as file:
        file.write("\n" + json.dumps(message))
def shell(command):
    def schema(*names):
        return {"type": "object", "properties": {one: {"type": "string"} for one in names}, "required": list(names)}
    return {"type": "function", "function": {"name": command, "parameters": schema("command")}}
say(type="hello", id=name)
keep({"role": "user", "content": sys.stdin.read()})
used = []
while True:
    body = {"model": "m", "messages": history, "tools": [shell("bash")]}
    request = urllib.request.Request(os.environ["MODEL"] + "/chat/completions", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request) as response:
            answer = json.load(response)
    except Exception as error:
        if lie == "completes":
            break
        words = error.read().decode() if hasattr(error, "code") else "connection error: " + repr(error)
        say(type="failed", words=words, status=getattr(error, "code", 0))
        sys.exit(1)
    used.append((answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]))
    message = answer["choices"][0]["message"]
    keep(message)
    calls = message.get("tool_calls", [])
    for call in calls:
        say(type="call", id=call["id"], name="bash")
    for call in calls:
        command = json.loads(call["function"]["arguments"])["command"]
        subprocess.run(command, shell=True, stdin=subprocess.DEVNULL, capture_output=True)
        say(type="back", id=call["id"])
        keep({"role": "tool", "tool_call_id": call["id"], "content": "done"})
    if not calls:
        say(type="words", text=message["content"])
        break
counted = used[-1:] if lie == "counts the last" else used
say(type="used", into=sum(one[0] for one in counted), out=sum(one[1] for one in counted))
say(type="over")
"""
MAPPING = {
    "prompt": "stdin",
    "resume_arguments": ["{id}"],
    "rules": [
        {"when": {"type": "hello"}, "says": "session", "id": "id"},
        {"when": {"type": "call"}, "says": "tool_begin", "id": "id", "title": "name"},
        {"when": {"type": "back"}, "says": "tool_end", "id": "id"},
        {"when": {"type": "words"}, "says": "text", "text": "text"},
        {"when": {"type": "used"}, "says": "usage", "scope": "result", "input": "into", "output": "out"},
        {"when": {"type": "failed"}, "says": "end", "stop": "error", "words": "words", "status": "status"},
        {"when": {"type": "over"}, "says": "end", "stop": "end_turn"},
    ],
}


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the times that the probe waits for processes to 0, where the agent of this file needs none."""
    monkeypatch.setattr(trial, "WORKED_S", 0.0)
    monkeypatch.setattr(driver, "SETTLE_S", 0.1)
    monkeypatch.setattr(turns, "SETTLE_S", 0.1)
    monkeypatch.setattr(turns, "BACKGROUND_S", 0)


async def probed(folder: Path, lie: str, *cases: str) -> dict[str, ProbeResult]:
    """Probe the agent of this file, which lies in the way *lie*."""
    program = folder / "agent.py"
    program.write_text(AGENT)
    known = {
        "name": "fake",
        "title": "An agent that may lie",
        "ways": [{"adapter": "jsonl", "command": [sys.executable, str(program)], "mapping": MAPPING, "asks": False}],
        "env": {"LIE": lie},
        "model": {"env": {"MODEL": "{base_url}/v1"}},
    }
    agent = KnownAgent.model_validate(known)
    async with open_stub_model() as stub, ShimHost() as host:
        sandbox = make_sandbox(agent, agent.variant(), stub.base_url, folder / "probe")
        return {one.case: one async for one in probe(host, sandbox, cases, stub)}


async def test_an_honest_agent_is_good(tmp_path: Path) -> None:
    """Of an agent that says the truth, the use, the calls, the conversation and the failures are good."""
    found = await probed(tmp_path, "", "turn", "parallel", "use", "resume", "crash", "model", "start")
    bad = {case: one.found for case, one in found.items() if one.good is not True}
    assert set(bad) == {"start without a login", "resumes in another directory"}, bad
    assert found["reports its use"].found == "22/14 of 22/14 in 2 requests"
    assert found["use over three processes"].found == "300/30 of 300/30 in 3 requests"
    assert found["model: 429 with Retry-After"].found.startswith("rate_limit (1 requests")
    assert "unexpected argument" in found["start with a bad option"].found


@pytest.mark.parametrize(
    ("lie", "case", "words"),
    [
        ("counts the last", "reports its use", "11/7 of 22/14 in 2 requests"),
        ("forgets", "resumes a conversation", "resume 1 of 2 says the same id and HAS FORGOTTEN the first turn"),
        ("loses", "resumes after a cut", "resume 1 of 2 says the same id and HAS FORGOTTEN the first turn"),
        ("forgets", "resumes after kill -9 in a tool", "HAS FORGOTTEN the prompt"),
        ("completes", "model: 404", "COMPLETED of no words (1 requests"),
    ],
)
async def test_a_lie_is_found(tmp_path: Path, lie: str, case: str, words: str) -> None:
    """An agent whose words differ from what its model was asked is not believed."""
    cases = {"reports its use": "turn", "model: 404": "model", "resumes after kill -9 in a tool": "crash"}
    found = await probed(tmp_path, lie, cases.get(case, "resume"))
    assert found[case].good is False
    assert words in found[case].found


async def test_what_cannot_be_tried_is_not_held_against_the_agent(tmp_path: Path) -> None:
    """A case that the agent's protocol does not allow, or its tools, is neither good nor bad, and says why."""
    found = await probed(tmp_path, "", "edit", "permission", "urgent", "end-call")
    assert {one.good for one in found.values()} == {None}
    assert found["edit"].found == "not tried: the scripted model knows none of its tools for files"
    assert found["permission"].found == "not tried: it never asks for permission"
    assert found["urgent"].found == "not tried: a process serves one prompt"
    assert found["end-call"].found.startswith("not tried: its protocol cannot end one call")
