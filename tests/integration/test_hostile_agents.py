"""Agents that misbehave: each fails its own turn, with an error that names the reason, and no other session is
affected.

A second session works beside each misbehaving agent and must complete. No process of either session is left.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from supervisor.agents.codecs import scripted_command
from supervisor.embedding.runtime import open_supervisor
from supervisor.host.handle import TurnResult
from supervisor.journal.transcript import follow_from
from supervisor.plans import AgentConfig
from supervisor.sessions import process_connection
from tests.support import (
    AGENTS,
    DEADLINE_S,
    HeldPipe,
    Run,
    agent_pids,
    data_of,
    quick_settings,
    send_prompt,
    states_of,
    supervising,
    wait_for_exit,
    wait_for_record,
)

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]

ONE_STRIKE = quick_settings(max_total_errors=1, ladder={"request_s": 0.3})
"""Settings with which the first error ends a session, so that the result of the session is that of the one turn."""


@pytest.fixture
def roll(tmp_path: Path, nothing_left: None) -> Iterator[HeldPipe]:
    roll = HeldPipe(tmp_path)
    yield roll
    roll.close()


async def beside_a_neighbour(run: Run, script: str, workdir: Path) -> TurnResult:
    """Run *script* in a session and return its result; a second session begins before it, ends after it, and must
    complete."""
    async with anyio.create_task_group() as group:
        neighbour = await run.sup.start_session("neighbour", agent="scripted")
        asked = send_prompt(group, neighbour, "@run echo working\n@wait over\n@run echo done")
        await wait_for_record(run.sup, "tool_completed", "neighbour:t1")
        session = await run.sup.start_session("bad", agent="scripted")
        result = await session.run(script)
        (workdir / "over").touch()
        assert (await asked.result())[:3] == ("completed", "", "working\ndone\n")
        assert data_of(run.row("neighbour")).total_errors == 0
    return result


REASONS = {
    "half a line and death": ("@halfline", "its last line was no message: '{"),
    "another protocol": ("@garbage\n" * 1_001, "1001 lines in a row that are no messages of its protocol"),
    "an error": ("@fail it is too hard", "it is too hard"),
    "a refusal": ("@refuse", "the agent refused to go on"),
    "an exit with status 0": ("@exit 0", "the agent exited with status 0 in the middle of a turn"),
    "an exit with status 3": ("@exit 3", "the agent exited with status 3 in the middle of a turn"),
    "a bad script": ("@juggle", "unknown step @juggle"),
    "another protocol, and deaf": ("@deaf\n@daemon\n" + "@garbage\n" * 1_001, "'this is not JSON'"),
}


@pytest.mark.parametrize("how", REASONS)
async def test_a_misbehaving_agent_fails_its_turn(tmp_path: Path, how: str) -> None:
    """Another protocol, refusals and exits of an agent fail its turn with the reason, and the other session
    completes."""
    script, why = REASONS[how]
    async with supervising(tmp_path, settings=ONE_STRIKE) as run:
        result = await beside_a_neighbour(run, script, tmp_path)
        assert result.outcome == "failed"
        assert why in result.error
        await wait_for_exit(*agent_pids(run.events(), "bad"))
    [failed] = run.transitions("task_failed", "bad:t1")
    assert why in failed.reason
    assert states_of(run.events(), "bad:t1")[-2:] == ["FAILED", "REAPED"]
    assert states_of(run.events(), "bad")[-2:] == ["Running", "Stopped"]


@pytest.mark.parametrize("noise", ["@garbage", "@utf8", "@longline 20000000"])
async def test_lines_that_are_no_messages_cost_nothing(tmp_path: Path, noise: str) -> None:
    """A turn with a line that is no message, before and after a tool, completes; the line is on record and in the
    transcript."""
    async with supervising(tmp_path, settings=ONE_STRIKE) as run:
        result = await beside_a_neighbour(run, f"{noise}\n@run echo done\n{noise}\n@say over", tmp_path)
        assert (result.outcome, result.text) == ("completed", "done\nover\n")
    facts = [one for one in run.events() if (one.event, one.entity_id) == ("StrayLine", "bad:a1")]
    assert len(facts) == 2
    assert all(len(one.metadata["line"]) <= 200 and one.metadata["why"] for one in facts)


TWO_LINES = "{ for line in 1 2; do read -r it; printf '%s\\n' \"$it\"; done; }"
LAST_WORDS = {
    "at once": ("exec 1>&-; sleep 1000", "Spawning"),
    "at once with all its ends": ("exec 1>&- 2>&- 0<&-; sleep 1000", "Spawning"),
    "in the middle of a turn": (f'"$@" | {TWO_LINES}; exec 1>&-; sleep 1000', "Running"),
}


@pytest.mark.parametrize("when", LAST_WORDS)
async def test_an_agent_that_closes_its_output(tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn of an agent that closes its standard output and does not exit fails, and the agent's process is
    ended."""
    monkeypatch.setattr(process_connection, "MUTE_S", 0.1)
    line, state = LAST_WORDS[when]
    agents = {**AGENTS, "mute": AgentConfig(adapter="acp", command=("sh", "-c", line, "sh", *scripted_command()))}
    async with supervising(tmp_path, settings=ONE_STRIKE, agents=agents) as run:
        session = await run.sup.start_session("s", agent="mute")
        result = await session.run("@flood 10000000\n@hang")
        assert result.outcome == "failed"
        assert "the agent closed its output and did not exit" in result.error
        await wait_for_exit(*agent_pids(run.events(), "s"))
    assert states_of(run.events(), "s")[-2:] == [state, "Stopped"]


async def test_a_command_that_closes_its_output(tmp_path: Path) -> None:
    """The turn of an agent of the adapter ``command`` that closes its output succeeds or fails by the exit status."""
    agents = {"sh": AgentConfig(adapter="command", command=("sh", "-c", "echo hi; exec 1>&- 2>&-; read line; exit 5"))}
    async with supervising(tmp_path, settings=ONE_STRIKE, agents=agents) as run:
        session = await run.sup.start_session("s", agent="sh")
        result = await session.run("go")
        assert (result.outcome, "exit status 5" in result.error) == ("failed", True)


async def test_a_command_killed_from_outside(tmp_path: Path) -> None:
    """When an agent ends by a SIGKILL that the supervisor did not send, the record gives the out-of-memory killer
    (``oom``) as the reason."""
    agents = {"sh": AgentConfig(adapter="command", command=("sh", "-c", "kill -9 $$"))}
    async with supervising(tmp_path, settings=ONE_STRIKE, agents=agents) as run:
        session = await run.sup.start_session("s", agent="sh")
        result = await session.run("")
        assert (result.outcome, "ended by signal SIGKILL" in result.error) == ("failed", True)
    [exited] = run.transitions("agent_exited", "s:a1")
    assert (exited.metadata["status"], exited.metadata["ended_by"], exited.abort_reason) == (-9, "exit", "oom")


async def test_an_agent_killed_from_outside_is_replaced(tmp_path: Path, roll: HeldPipe) -> None:
    """When an agent's process is killed from outside, the session counts an error and goes on with another agent
    process, which completes the prompt."""
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted")
        async with anyio.create_task_group() as group:
            asked = send_prompt(group, session, "@crash-once died 137\n@say here again")
            assert (await asked.result()).text == "here again\n"
        [first, second] = agent_pids(run.events(), "s")
    assert first != second


async def test_a_daemon_does_not_outlive_a_good_turn(tmp_path: Path) -> None:
    """A daemon that an agent starts is killed when the agent's session ends."""
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted")
        result = await session.run("@daemon")
        pid = int(result.text.split()[1])
        await session.close()
        await wait_for_exit(pid)
    [exited] = run.transitions("agent_exited", "s:a1")
    assert (exited.metadata["killed"], exited.metadata["survivors"]) == (1, 0)


async def test_a_daemon_of_a_tool_does_not_outlive_the_call(tmp_path: Path, roll: HeldPipe) -> None:
    """A daemon that a tool call starts is killed when the call ends, while the agent lives on."""
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted")
        daemon = "(setsid sh -c 'trap \"\" TERM; echo daemon $$ >&9; echo > ready; sleep 1000' &)"
        script = f"@run mkfifo ready; exec 9>roll; {daemon}; read it < ready; echo ok"
        assert (await session.run(script)).text == "ok\n"
        await roll.here(1)
        await roll.all_gone()
        assert run.sup.core.registry.state_of("s:a1") == "idle"


async def test_a_flood_is_capped(tmp_path: Path) -> None:
    """After forty megabytes of output the turn completes; the result has the end of the output only, and the transcript
    stays below its size limit."""
    async with open_supervisor(tmp_path / "sd", agents=AGENTS, settings=quick_settings(), workdir=tmp_path) as sup:
        session = await sup.start_session("s", agent="scripted")
        with anyio.fail_after(DEADLINE_S):
            result = await session.run("@flood 40000000\n@say that was it")
        assert result.outcome == "completed"
        assert len(result.text) <= 64 * 1024
        assert result.text.endswith("xthat was it\n")
    files = list((tmp_path / "sd" / "agents").rglob("transcript.log*"))
    assert 1_000_000 < sum(one.stat().st_size for one in files) <= 8 * 1024 * 1024
    [first] = [one for one in files if one.name == "transcript.log"]
    assert "that was it" in follow_from(first, 0)[0]


async def test_permissions_are_answered(tmp_path: Path) -> None:
    """A permission request gets the answer that the agent's configuration prescribes, and the answer is recorded."""
    agents = {
        "trusted": AgentConfig(adapter="scripted"),
        "watched": AgentConfig(adapter="scripted", permissions="deny"),
    }
    async with supervising(tmp_path, agents=agents) as run:
        for agent, said in (("trusted", "did it\n"), ("watched", "refused: rm -rf\n")):
            session = await run.sup.start_session(agent, agent=agent)
            assert (await session.run("@ask rm -rf\n@say did it")).text == said
    answers = [one.metadata["option"] for one in run.events() if one.event == "PermissionAnswered"]
    assert answers == ["allow_once", "reject_once"]


async def test_the_files_of_a_session_are_those_of_its_workspace(tmp_path: Path) -> None:
    """Through the supervisor an agent reads and writes files of its workspace; access to other files is refused, on
    record."""
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted")
        assert (await session.run("@save a/b.txt hello\n@open a/b.txt")).text == "hello\n"
        refused = (await session.run("@save ../../b.txt hello\n@open /etc/passwd\n@open none")).text.splitlines()
        assert [line.partition(":")[0] for line in refused] == [
            "it could not be written",
            *["it could not be read"] * 2,
        ]
    assert [Path(one.metadata["path"]).name for one in run.events() if one.event == "FileRefused"] == [
        "b.txt",
        "passwd",
    ]
    assert not (tmp_path.parent / "b.txt").exists()


async def test_a_sub_agent_that_cannot_be_started(tmp_path: Path) -> None:
    """A request for a child session with an unknown agent or a bad name fails with the reason, and the turn goes on."""
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted")
        result = await session.run("@agent kid nobody\n  @say hi\n@agent b/d\n  @say hi\n@say and on")
        assert result.outcome == "completed"
        assert "kid failed: agent: no agent is named 'nobody'" in result.text
        assert "b/d failed: name: 'b/d' cannot be a session's name" in result.text
        assert result.text.endswith("and on\n")


async def test_compaction_is_followed(tmp_path: Path) -> None:
    """A turn whose agent compacts its context passes through the state COMPACTING and completes."""
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted")
        assert (await session.run("@compact\n@usage 5\n@say fit again")).outcome == "completed"
    assert states_of(run.events(), "s:t1")[3:6] == ["RUNNING", "COMPACTING", "RUNNING"]


FORGETFUL = """
import json, sys
def tell(**message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def compacts(name):
    update = {"sessionUpdate": "compaction_update", "compactionId": name, "status": "in_progress"}
    tell(method="session/update", params={"sessionId": "one", "update": update})
RESULTS = {
    "initialize": {"protocolVersion": 1, "agentCapabilities": {}},
    "session/new": {"sessionId": "one"},
    "session/prompt": {"stopReason": "end_turn"},
}
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "session/prompt":
        compacts("k"), compacts("m")
    tell(id=asked["id"], result=RESULTS[asked["method"]])
"""
"""Source code of an agent that begins two compactions and ends neither."""


async def test_compactions_that_are_never_over_end_with_their_turn(tmp_path: Path) -> None:
    """A turn in which the agent begins compactions without ending them completes, and the compactions end with the
    turn."""
    agents = {"forgetful": AgentConfig(adapter="acp", command=(sys.executable, "-c", FORGETFUL))}
    async with supervising(tmp_path, agents=agents) as run:
        session = await run.sup.start_session("s", agent="forgetful")
        assert (await session.run("remember")).outcome == "completed"
    path = ["RUNNING", "COMPACTING", "RUNNING", "VERIFYING", "COMPLETING", "REAPED"]
    assert states_of(run.events(), "s:t1")[3:] == path


async def test_the_environment_is_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent's tool sees only the environment variables that the configuration names, no other variable of the
    supervisor."""
    monkeypatch.setenv("OUR_SECRET", "hush")
    monkeypatch.setenv("WANTED", "yes")
    agents = {"a": AgentConfig(adapter="scripted", env={"GIVEN": "1"}, inherit_env=("WANTED", "ABSENT"))}
    async with supervising(tmp_path, agents=agents) as run:
        session = await run.sup.start_session("s", agent="a")
        result = await session.run("@run echo $OUR_SECRET-$GIVEN-$WANTED-$ABSENT")
        assert result.text == "-1-yes-\n"
