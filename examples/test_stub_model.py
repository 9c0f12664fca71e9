"""Tests of one's own against a scripted model: `pytest examples/test_stub_model.py`.

The agent here is a few lines of Python; a real one gets the same environment, and talks to the stub as to its provider.
"""

from __future__ import annotations

import sys

import anyio

from supervisor import AgentConfig, open_supervisor
from supervisor.mock_model import Fail, Say

AGENT = """
import json, os, sys, urllib.error, urllib.request
body = {"model": "m", "messages": [{"role": "user", "content": sys.stdin.read()}]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
try:
    answer = json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())))
except urllib.error.HTTPError as error:
    sys.exit(f"the model said {error.code}")
print(answer["choices"][0]["message"]["content"])
"""


async def ask(stub_model, state_dir, prompt):
    """Run one prompt under supervision; what became of it."""
    agent = AgentConfig(adapter="command", command=(sys.executable, "-c", AGENT), env=stub_model.env)
    async with open_supervisor(state_dir, agents={"mine": agent}) as sup:
        session = await sup.start_session("asked", agent="mine")
        return await session.run(prompt)


def test_an_agent_answers(stub_model, tmp_path) -> None:
    """The prompt is the script."""
    result = anyio.run(ask, stub_model, tmp_path, "SAY[[good morning]]")
    assert result.text.strip() == "good morning"
    assert len(stub_model.requests) == 1


def test_a_limit_is_survived(stub_model, tmp_path) -> None:
    """Or the test has the script, whatever the prompt says: the agent fails at first, and is tried again."""
    stub_model.script([Fail(429), Say("better now")])
    result = anyio.run(ask, stub_model, tmp_path, "hello")
    assert result.text.strip() == "better now"
    assert [request.status for request in stub_model.requests] == [429, 200]
