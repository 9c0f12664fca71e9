"""Test an agent against a scripted model: `pytest examples/test_stub_model.py`.

The agent here is a few lines of Python. A real agent gets the same environment, and uses the stub like its provider.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from supervisor import AgentConfig, TurnResult, open_supervisor
from supervisor.mock_model import Fail, Say
from supervisor.mock_model.server import StubModel

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


async def ask(stub_model: StubModel, state_dir: Path, prompt: str) -> TurnResult:
    """Run one prompt under supervision and return its result."""
    agent = AgentConfig(adapter="command", command=[sys.executable, "-c", AGENT], env=stub_model.env)
    async with open_supervisor(state_dir, agents={"mine": agent}) as sup:
        session = await sup.start_session("asked", agent="mine")
        return await session.run(prompt)


def test_an_agent_answers(stub_model: StubModel, tmp_path: Path) -> None:
    """The model follows the script in the prompt."""
    result = anyio.run(ask, stub_model, tmp_path, "SAY[[good morning]]")
    assert result.text.strip() == "good morning"
    assert len(stub_model.requests) == 1


def test_a_limit_is_survived(stub_model: StubModel, tmp_path: Path) -> None:
    """The test gives the answers, in place of the prompt: the first attempt of the agent fails, the second succeeds."""
    stub_model.script([Fail(429), Say("better now")])
    result = anyio.run(ask, stub_model, tmp_path, "hello")
    assert result.text.strip() == "better now"
    assert [request.status for request in stub_model.requests] == [429, 200]
