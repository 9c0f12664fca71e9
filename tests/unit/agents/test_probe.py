"""``supervisor agents``: discovery of agents on this machine, and the probe of an agent that the test writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from supervisor.agent_catalogue import KnownAgent, known_agent
from supervisor.agent_catalogue.measured import at_least
from supervisor.agents.probe import driver, trial
from supervisor.agents.probe.conformance import probe
from supervisor.agents.probe.discovery import find
from supervisor.agents.probe.sandbox import Sandbox, make_sandbox
from supervisor.agents.probe.trial import ProbeResult
from supervisor.cli.commands import supervisor
from supervisor.cli.invocation import execute
from supervisor.processes.host import ShimHost

AGENT = """
import json, re, subprocess, sys
def say(**line):
    print(json.dumps(line), flush=True)
prompt = sys.stdin.read()
say(type="hello", id=sys.argv[-1] if sys.argv[1:] else "talk")
for command in re.findall(r"RUN\\[\\[(.*)\\]\\]", prompt):
    say(type="call", id="c", name=command)
    done = subprocess.run(command, shell=True, start_new_session=True, stdin=subprocess.DEVNULL, capture_output=True)
    say(type="back", id="c", ok=done.returncode == 0)
say(type="used", n=18)
say(type="over")
"""
KNOWN = {
    "name": "fake",
    "title": "An agent that runs its tools in sessions of their own",
    "ways": [
        {
            "adapter": "jsonl",
            "command": [sys.executable],
            "mapping": {
                "prompt": "stdin",
                "resume_arguments": ["{id}"],
                "rules": [
                    {"when": {"type": "hello"}, "says": "session", "id": "id"},
                    {"when": {"type": "call"}, "says": "tool_begin", "id": "id", "title": "name"},
                    {"when": {"type": "back"}, "says": "tool_end", "id": "id", "failed": {"ok": False}},
                    {"when": {"type": "used"}, "says": "usage", "scope": "request", "input": "n"},
                    {"when": {"type": "over"}, "says": "end", "stop": "end_turn"},
                ],
            },
        }
    ],
    "model": {
        "env": {"MODEL": "{base_url}/v1"},
        "files": [{"path": ".fake/model.json", "text": '{"url": "{base_url}", "key": "{key}"}'}],
    },
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """Return a sandbox for the agent program of this file."""
    monkeypatch.setattr(trial, "WORKED_S", 0.0)
    program = tmp_path / "agent.py"
    program.write_text(AGENT)
    agent = KnownAgent.model_validate({**KNOWN, "model": {**KNOWN["model"], "arguments": [str(program)]}})  # type: ignore[dict-item]
    return make_sandbox(agent, agent.variant(), "http://127.0.0.1:1/", tmp_path)


async def tried(place: Sandbox, *cases: str) -> list[ProbeResult]:
    async with ShimHost() as host:
        return [one async for one in probe(host, place, cases)]


# ------------------------------------------------------------------------------------------------------ the probe
@pytest.mark.anyio
async def test_a_turn_is_probed_with_its_tool_and_its_use(place: Sandbox) -> None:
    """The probe reports that a turn completed with one tool call, the turn's token usage, and that a second process
    resumed the conversation."""
    turn, used, resumed, *_ = await tried(place, "turn", "resume")
    assert turn.good
    assert turn.found.endswith("1 tool calls reported")
    assert used == ProbeResult("reports its use", "18/0 tokens")
    assert resumed == ProbeResult("resumes a conversation", "2x", True)


@pytest.mark.anyio
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="who is left is read from /proc")
@pytest.mark.parametrize(("case", "status"), [("kill", -9), ("term", -15), ("daemon", 0)])
async def test_what_an_agent_leaves_behind_is_seen(
    place: Sandbox, monkeypatch: pytest.MonkeyPatch, case: str, status: int
) -> None:
    """The probe reports a tool or a daemon that outlives its agent as a failed case, and ends that process."""
    monkeypatch.setattr(driver, "SETTLE_S", 0.1)
    (found,) = await tried(place, case)
    assert not found.good
    assert found.found.startswith(f"exits with {status}, ")
    assert found.found.endswith(" LEFT, with the tool")


@pytest.mark.anyio
async def test_a_cancel_by_a_signal_is_verified(place: Sandbox) -> None:
    """The probe verifies that a signal ends the agent and its tool, and that the next process resumes the
    conversation."""
    cancel, dead, again = await tried(place, "cancel")
    assert (cancel.good, dead.good, again.good) == (True, True, True)


@pytest.mark.anyio
async def test_a_case_that_cannot_be_tried_says_why(tmp_path: Path) -> None:
    """A probe case that cannot be tried is reported with the reason, as no fault of the agent, and the next case is
    tried."""
    agent = KnownAgent.model_validate({**KNOWN, "ways": [{"adapter": "acp", "command": ["/nowhere/agent"]}]})
    (turn, silent) = await tried(make_sandbox(agent, agent.variant(), "http://x", tmp_path), "turn", "silent")
    assert turn.case == "turn"
    assert turn.found.startswith("could not be tried: ")
    assert (turn.good, silent.good) == (None, None)


def test_a_place_points_at_the_model_server(place: Sandbox, tmp_path: Path) -> None:
    """The sandbox of a probe has its own home directory, and its files and variables name the test's model server."""
    assert place.env["MODEL"] == "http://127.0.0.1:1/v1"
    assert place.env["HOME"] == str(tmp_path / "home")
    written = json.loads((tmp_path / "home/.fake/model.json").read_text())
    assert written == {"url": "http://127.0.0.1:1", "key": "stub-key"}


# ------------------------------------------------------------------------------------------------------ what is here
def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_an_agent_is_found_with_the_version_of_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version of an installed agent is read from the package that its program belongs to."""
    package = tmp_path / "node_modules/@openai/codex"
    program(package / "bin", "codex", "exit 1")
    (package / "package.json").write_text('{"name": "@openai/codex", "version": "0.1.2"}')
    (tmp_path / "codex").symlink_to(package / "bin/codex")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find(known_agent("codex"))
    assert (found.version, found.path, bool(found.untried)) == ("0.1.2", str(tmp_path / "codex"), True)
    assert found.ways == ("codex", "jsonl")


def test_an_agent_is_asked_for_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version of an agent without a package is the output of its program; it is empty if the program fails."""
    program(tmp_path, "gemini", "echo gemini 99.1")
    program(tmp_path, "pi", "exit 3")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert find(known_agent("gemini")).version == "99.1"
    assert find(known_agent("gemini")).untried.startswith("99.1 is newer than ")
    assert (find(known_agent("pi")).version, find(known_agent("pi")).untried) == ("", "")


@pytest.mark.parametrize(
    ("version", "least", "does"),
    [("1.2.3", "1.2.3", True), ("1.10", "1.9.9", True), ("1.2", "1.2.0", True), ("1.2", "1.2.1", False)],
)
def test_versions_are_compared_number_by_number(version: str, least: str, does: bool) -> None:
    """Versions are compared number by number, so that 10 is more than 9."""
    assert at_least(version, least) is does


# ------------------------------------------------------------------------------------------------------ the commands
def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = execute(supervisor, arguments)
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set PATH to a directory with one agent, ``pi``, and the system's directories."""
    program(tmp_path / "bin", "pi", "echo 0.73.1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")


@pytest.mark.usefixtures("bare")
def test_agents_lists_what_is_here_and_how_to_get_the_rest(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """``agents`` prints one line per known agent, with its path, or with the installation command if it is not
    installed."""
    status, out, _ = ran(capsys, "agents")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert status == 0
    assert lines["pi"].split()[:2] == ["pi", "0.73.1"]
    assert lines["pi"].endswith(f" {tmp_path / 'bin/pi'}")
    assert lines["gemini"].endswith("not installed: npm install --global @google/gemini-cli@0.61.0")


@pytest.mark.usefixtures("bare")
def test_agents_is_told_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """``agents --json`` prints the list of agents as JSON."""
    _, out, _ = ran(capsys, "agents", "--json")
    told = {one["name"]: one for one in json.loads(out)}
    assert (told["pi"]["installed"], told["pi"]["version"], told["qwen"]["installed"]) == (True, "0.73.1", False)


@pytest.mark.usefixtures("bare")
def test_show_says_all_that_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    """``agents show`` prints an agent's variants, quirks, variables and settings for a model server."""
    status, out, _ = ran(capsys, "agents", "show", "gemini-cli")
    assert status == 0
    for words in ("gemini --acp", "needs_kill", "GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL={base_url}", "settings.json"):
        assert words in out


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("agents", "show", "gemni"), "'gemni' is not in the catalogue of agents; did you mean 'gemini'?"),
        (("agents", "probe", "gemni"), "'gemni' is not in the catalogue of agents; did you mean 'gemini'?"),
        (
            ("agents", "probe", "pi", "--adapter", "acp"),
            "--adapter: pi has no variant with the adapter 'acp'; use one of: jsonl",
        ),
        (("agents", "probe", "qwen"), "qwen: no program 'qwen' on PATH; install it: npm install"),
        (("run", "plan.yaml", "--agent", "worker"), "--agent worker: give NAME=KNOWN, for example worker=codex"),
        (("run", "plan.yaml", "--agent", "a=pi", "--agent", "a=qwen"), "--agent a=qwen: a is pi already; give it once"),
    ],
)
def test_what_cannot_be_meant_is_bad_input(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    """A wrong name or option gives exit status 2 and a message that names the correction."""
    status, _, err = ran(capsys, *arguments)
    assert status == 2
    assert words in err
