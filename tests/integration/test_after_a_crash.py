"""Continuation of work after SIGKILL of the supervisor: conversations loaded, prompts completed, messages delivered.

The first supervisor is a process of its own and is killed; the second supervisor runs in the test.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest

from supervisor.diagnostics.validate import validate_lines
from supervisor.embedding.runtime import open_supervisor
from supervisor.journal.reader import JournalReader
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.plans import AgentConfig, LimitsConfig, RecoveryConfig, Settings
from tests import support
from tests.support import DEADLINE_S, check_records, git, reap_all, running_program, states_of, wait_for_record

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_backend,
    pytest.mark.skipif(sys.platform != "linux", reason="the whole promise is Linux's"),
]

ROOT = Path(__file__).parents[2]

FIRST = """
import sys
import anyio
from pathlib import Path
from supervisor.plans import AgentConfig, LimitsConfig, Settings
from supervisor.embedding.runtime import open_supervisor

async def main():
    agents = {"a": AgentConfig(adapter="scripted", env={"SCRIPTED_MEMORY": memory} if memory else {})}
    settings = Settings(limits=LimitsConfig(backoff_base_ms=10))
    async with open_supervisor(workdir + "/sd", agents=agents, settings=settings, workdir=workdir) as sup:
        session = await sup.start_session("s", agent="a")
        async with anyio.create_task_group() as group:
            group.start_soon(session.run, script)
            while not Path(workdir, "here").exists():
                await anyio.sleep(0.01)
            await session.send("one thing more", urgent=bool(at), at=at or None, sender="ann")
            print("sent", flush=True)
            await anyio.sleep_forever()

backend, workdir, memory, script, at = sys.argv[1:]
anyio.run(main, backend=backend)
"""
BEGUN = "@say first\n@run echo once >> effects\n@write here yes\n@wait gate\n@run echo last >> effects\n@say done"


@contextmanager
def killed(workdir: Path, backend: str, script: str, *, memory: bool = True, at: str = "") -> Iterator[None]:
    """Kill a supervisor with SIGKILL during the prompt *script*, after the supervisor has acknowledged a message; then
    run the block."""
    folder = str(workdir / "memory") if memory else ""
    (workdir / "memory").mkdir()
    command = [sys.executable, "-c", FIRST, backend, str(workdir), folder, script, at]
    with running_program(command, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}, stdout=subprocess.PIPE) as it:
        assert it.stdout is not None
        assert it.stdout.readline() == b"sent\n"
        it.send_signal(signal.SIGKILL)
    yield


def second(workdir: Path, *, memory: bool = True, how: str = "resume") -> dict[str, object]:
    agent = AgentConfig(adapter="scripted", env={"SCRIPTED_MEMORY": str(workdir / "memory")} if memory else {})
    settings = Settings(
        limits=LimitsConfig(backoff_base_ms=10), recovery=RecoveryConfig.model_validate({"sessions": how})
    )
    return {"agents": {"a": agent}, "settings": settings, "workdir": workdir}


def read_records(workdir: Path) -> list[LifecycleEvent]:
    """Return every record, and check that journal and log are valid."""
    with JournalReader(workdir / "sd" / "runtime" / "journal.db") as journal:
        events = list(journal.events())
        check_records(events, journal.entities(), [])
    lines = (workdir / "sd" / "transitions.jsonl").read_bytes().splitlines(keepends=True)
    assert validate_lines(lines).problems == []
    return events


async def test_a_conversation_is_loaded_and_its_prompt_completed(tmp_path: Path, anyio_backend: str) -> None:
    """After a crash the interrupted prompt is completed in the loaded conversation, no step is done twice, and the
    message is delivered."""
    with killed(tmp_path, anyio_backend, BEGUN):
        (tmp_path / "gate").touch()
        with anyio.fail_after(DEADLINE_S):
            async with open_supervisor(tmp_path / "sd", **second(tmp_path)) as sup:  # type: ignore[arg-type]
                result = await sup.session("s").result()
    await reap_all()
    assert result is not None
    assert result.ok
    assert "going on after 3 of 6" in result.text
    assert (tmp_path / "effects").read_text().split() == ["once", "last"]
    events = read_records(tmp_path)
    prompts = [one.metadata["prompt"] for one in events if one.event == "PromptReady"]
    assert len(prompts) == 2
    assert "one thing more" in prompts[1]
    assert [one.to_status for one in events if one.event == "Ended"] == ["Stopped"]
    errors = [one.metadata for one in events if one.event == "Resumed"]
    assert [one["state"] for one in errors] == ["Running"]


async def test_a_session_without_a_conversation_is_stopped(tmp_path: Path, anyio_backend: str) -> None:
    """After a crash the session of an agent that cannot load its conversation is stopped; its prompt is not
    sent again."""
    with killed(tmp_path, anyio_backend, BEGUN, memory=False):
        async with open_supervisor(tmp_path / "sd", **second(tmp_path, memory=False)) as sup:  # type: ignore[arg-type]
            assert sup.sessions() == []
    await reap_all()
    assert not [one for one in read_records(tmp_path) if one.event == "Resumed"]
    assert (tmp_path / "effects").read_text().split() == ["once"]


async def test_a_restarted_session_gets_its_prompt_again(tmp_path: Path, anyio_backend: str) -> None:
    """With ``sessions: restart`` the interrupted prompt is sent again in a new conversation, so its steps are done
    twice."""
    with killed(tmp_path, anyio_backend, BEGUN, memory=False):
        (tmp_path / "gate").touch()
        with anyio.fail_after(DEADLINE_S):
            settings = second(tmp_path, memory=False, how="restart")
            async with open_supervisor(tmp_path / "sd", **settings) as sup:  # type: ignore[arg-type]
                result = await sup.session("s").result()
    await reap_all()
    assert result is not None
    assert result.ok
    assert (tmp_path / "effects").read_text().split() == ["once", "once", "last"]
    assert len([one for one in read_records(tmp_path) if one.event == "Resumed"]) == 1


async def test_a_host_may_stop_all_sessions(tmp_path: Path, anyio_backend: str) -> None:
    """With ``sessions: stop`` the next supervisor continues no session; the interrupted session is ended."""
    with killed(tmp_path, anyio_backend, BEGUN):
        async with open_supervisor(tmp_path / "sd", **second(tmp_path, how="stop")) as sup:  # type: ignore[arg-type]
            assert sup.sessions() == []
    await reap_all()
    (ended,) = [one for one in read_records(tmp_path) if one.event == "Ended"]
    assert ended.metadata["rung"] == "kill"


async def test_a_crash_counts_as_no_error_of_a_session(tmp_path: Path, anyio_backend: str) -> None:
    """A session that is continued after a crash counts no error, and the call that was running has the one result
    ``unknown``."""
    script = "@run touch here; exec sleep 1000"
    with killed(tmp_path, anyio_backend, script):
        async with open_supervisor(tmp_path / "sd", **second(tmp_path)) as sup:  # type: ignore[arg-type]
            await wait_for_record(sup, "SessionStarted", "s", number=2)
            data = sup.core.registry.entity("s").data
            assert (data.consecutive_errors, data.total_errors) == (0, 0)
            await sup.session("s").abort(reason="enough")
    await reap_all()
    outcomes = [one.metadata["outcome"] for one in read_records(tmp_path) if one.event == "tool_completed"]
    assert outcomes[0] == "unknown"


async def test_an_urgent_message_is_delivered(tmp_path: Path, anyio_backend: str) -> None:
    """A message that waited for the end of the interrupted turn is part of the next prompt, and leaves the inbox when
    that prompt has succeeded."""
    with killed(tmp_path, anyio_backend, BEGUN, at="turn_end"):
        (tmp_path / "gate").touch()
        with anyio.fail_after(DEADLINE_S):
            async with open_supervisor(tmp_path / "sd", **second(tmp_path)) as sup:  # type: ignore[arg-type]
                result = await sup.session("s").result()
                assert sup.core.registry.entity("s").data.inbox == ()
    await reap_all()
    assert result is not None
    assert "understood: from ann: one thing more" in result.text
    read_records(tmp_path)


# ---------------------------------------------------------------------------------------------------- plans
PLAN = """
limits: {{backoff_base_ms: 10}}
recovery: {{orphans: {orphans}}}
max_sessions: 2
agents:
  a: {{adapter: scripted, env: {{{variable}: {memory}}}}}
tasks:
  - {{id: first, agent: a, prompt: "@run echo first >> effects"}}
  - id: second
    agent: a
    prompt: |
      @run echo second >> effects
      @write here yes
      @wait gate
      @run echo gated >> effects
    depends_on: [first]
  - {{id: third, agent: a, prompt: "@run echo third >> effects", depends_on: [second]}}
"""


def run_command(workdir: Path, backend: str, *options: str) -> list[str]:
    at = ["--state-dir", str(workdir / "sd"), "--workdir", str(workdir), "--backend", backend]
    return [sys.executable, "-m", "supervisor", "run", str(workdir / "plan.yaml"), *at, *options]


def interrupted_run(workdir: Path, backend: str, *, orphans: str = "open", memory: bool = True) -> None:
    """Run the plan with ``supervisor run``, and kill that process during the second task."""
    (workdir / "memory").mkdir()
    variable = "SCRIPTED_MEMORY" if memory else "NO_MEMORY"
    plan = PLAN.format(memory=workdir / "memory", variable=variable, orphans=orphans)
    (workdir / "plan.yaml").write_text(plan)
    with running_program(run_command(workdir, backend, "--json"), cwd=ROOT, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        for line in first.stdout:
            if b'"entity_id":"r1#second"' in line and b'"event":"started"' in line:
                break
        deadline_s = time.monotonic() + 60
        while not (workdir / "here").exists():  # a task that has started may not have done anything
            assert time.monotonic() < deadline_s, "the agent has not begun to work"
            time.sleep(0.01)
        first.send_signal(signal.SIGKILL)
    (workdir / "gate").touch()


def second_run(workdir: Path, backend: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        run_command(workdir, backend, *options), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


async def test_a_run_goes_on(tmp_path: Path, anyio_backend: str) -> None:
    """A second ``supervisor run`` does not run closed tasks again, continues the started task in its session, and runs
    the open tasks."""
    await anyio.to_thread.run_sync(interrupted_run, tmp_path, anyio_backend)
    done = await anyio.to_thread.run_sync(second_run, tmp_path, anyio_backend)
    await reap_all()
    assert done.returncode == 0, done.stderr
    told = "continuing the interrupted run: r1: 1 completed; 2 going on: second (IN_PROGRESS), third (OPEN)"
    assert told in done.stderr
    events = read_records(tmp_path)
    assert [one.entity_id for one in events if one.event == "Born" and one.entity_type == "task"] == [
        "r1#first",
        "r1#second",
        "r1#third",
    ]
    assert [one.entity_id for one in events if one.event == "closed"] == ["r1#first", "r1#second", "r1#third"]
    assert [one.entity_id for one in events if one.event == "Born" and one.entity_type == "session"] == [
        "first",
        "second",
        "third",
    ]


WORKTREES = """
workspace: worktree
limits: {{backoff_base_ms: 10}}
agents:
  a: {{adapter: scripted, env: {{{variable}: {folder}/memory}}}}
tasks:
  - {{id: first, agent: a, prompt: "@run echo first >> effects"}}
  - id: second
    agent: a
    prompt: |
      @run echo second >> effects
      @write here yes
      @wait {folder}/gate
      @run echo gated >> effects
    depends_on: [first]
    acceptance: [{{command: [grep, -q, gated, effects]}}]
"""


def interrupted_in_worktrees(workdir: Path, backend: str, *, memory: bool) -> None:
    """Run a plan in worktrees of a repository with one commit, and kill ``supervisor run`` during the second task."""
    git(workdir, "init", "--quiet", "--initial-branch=main")
    (workdir / ".git" / "info" / "exclude").write_text("*\n!effects\n")
    git(workdir, "commit", "--quiet", "--allow-empty", "--message", "first")
    (workdir / "memory").mkdir()
    plan = WORKTREES.format(folder=workdir, variable="SCRIPTED_MEMORY" if memory else "NO_MEMORY")
    (workdir / "plan.yaml").write_text(plan)
    with running_program(run_command(workdir, backend, "--json"), cwd=ROOT, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        for line in first.stdout:
            if b'"entity_id":"r1#second"' in line and b'"event":"started"' in line:
                break
        while not (workdir / "sd" / "worktrees" / "second" / "here").exists():
            assert first.poll() is None
        first.send_signal(signal.SIGKILL)
    (workdir / "gate").touch()


@pytest.mark.parametrize("memory", [True, False])
async def test_work_in_a_worktree_goes_on(tmp_path: Path, anyio_backend: str, *, memory: bool) -> None:
    """After a crash an agent that loads its conversation goes on in its worktree, and each line is in the repository
    once. An agent that cannot is prompted again in a new session, which starts from the work of the lost session; the
    branch of the lost session has that work too."""
    await anyio.to_thread.run_sync(partial(interrupted_in_worktrees, tmp_path, anyio_backend, memory=memory))
    done = await anyio.to_thread.run_sync(second_run, tmp_path, anyio_backend)
    await reap_all()
    assert done.returncode == 0, done.stderr
    effects = ["first", "second", "gated"] if memory else ["first", "second", "second", "gated"]
    assert git(tmp_path, "show", "main:effects").split() == effects
    assert (tmp_path / "effects").read_text().split() == effects
    kept = git(tmp_path, "for-each-ref", "--format=%(refname:short)", "refs/heads/supervisor").split()
    assert kept == ([] if memory else ["supervisor/second"])
    if kept:
        assert git(tmp_path, "show", "supervisor/second:effects").split() == ["first", "second"]
    assert list((tmp_path / "sd" / "worktrees").iterdir()) == []
    assert [one.entity_id for one in read_records(tmp_path) if one.event == "closed"] == ["r1#first", "r1#second"]


STOPPED = """
recovery: {sessions: stop}
agents: {sh: {adapter: command, command: [sh, -c, "{prompt}"]}}
tasks:
  - {id: closed, agent: sh, prompt: "echo closed >> effects"}
  - {id: unwanted, agent: sh, approval: before, prompt: "echo unwanted >> effects"}
  - {id: held, agent: sh, depends_on: [closed], prompt: "echo held >> effects; test -e gate || exec sleep 1000"}
  - {id: open, agent: sh, depends_on: [held], prompt: "echo open >> effects"}
"""


def test_stopped_sessions_leave_tasks_as_they_are(tmp_path: Path) -> None:
    """With ``recovery: {sessions: stop}`` a closed task stays closed and a cancelled one cancelled after a kill; the
    others go on with new sessions, and the terminal says with what the run goes on."""
    (tmp_path / "plan.yaml").write_text(STOPPED)
    with running_program(run_command(tmp_path, "asyncio", "--json"), cwd=ROOT, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert any(b'"entity_id":"r1#held"' in line and b'"event":"started"' in line for line in first.stdout)
        words = ("reject", "unwanted", "--reason", "not now", "--state-dir", tmp_path / "sd")
        assert support.run_command(*words).status == 0
        first.send_signal(signal.SIGKILL)
    (tmp_path / "gate").touch()
    done = second_run(tmp_path, "asyncio")
    anyio.run(reap_all)
    assert done.returncode == 0, done.stderr  # somebody has rejected a task, and the others are completed
    told = "continuing the interrupted run: r1: 1 completed, 1 rejected; 2 going on: held (IN_PROGRESS), open"
    assert told in done.stderr
    assert (tmp_path / "effects").read_text().split() == ["closed", "held", "held", "open"]
    tasks = [one for one in read_records(tmp_path) if one.entity_type == "task"]
    assert [one.entity_id for one in tasks if one.event == "Born"] == [f"r1#{one}" for one in NAMES]
    ends = {one.entity_id: one.to_status for one in tasks if one.to_status}
    assert ends == {f"r1#{one}": "CANCELLED" if one == "unwanted" else "CLOSED" for one in NAMES}


NAMES = ("closed", "unwanted", "held", "open")


async def test_a_run_may_start_anew(tmp_path: Path, anyio_backend: str) -> None:
    """With --fresh the interrupted run is recorded as ended, and every task is run again under a new id."""
    await anyio.to_thread.run_sync(interrupted_run, tmp_path, anyio_backend)
    done = await anyio.to_thread.run_sync(second_run, tmp_path, anyio_backend, "--fresh")
    await reap_all()
    assert done.returncode == 0, done.stderr
    assert "starting over: run r1 (executing: 1 completed, 2 open) is not continued: as requested" in done.stderr
    events = read_records(tmp_path)
    ends = [(one.entity_id, one.to_status) for one in events if one.to_status in ("CLOSED", "CANCELLED", "FAILED")]
    assert [one for one, state in ends if state == "CLOSED"] == [
        "r1#first",
        "r2#first",
        "r2#second",
        "r2#third",
    ]
    assert dict(ends)["r1#second"] == "FAILED"
    assert dict(ends)["r1#third"] == "CANCELLED"


async def test_a_changed_plan_keeps_its_finished_tasks(tmp_path: Path, anyio_backend: str) -> None:
    """A plan with a changed task does not continue the interrupted run: the terminal says why, the closed task stays
    closed, and every other task is done by a new run."""
    await anyio.to_thread.run_sync(interrupted_run, tmp_path, anyio_backend)
    plan = (tmp_path / "plan.yaml").read_text()
    (tmp_path / "plan.yaml").write_text(plan.replace("echo third", "echo another"))
    done = await anyio.to_thread.run_sync(second_run, tmp_path, anyio_backend)
    await reap_all()
    assert done.returncode == 0, done.stderr
    assert "r1 (executing: 1 completed, 2 open) is not continued: changed in the plan: third" in done.stderr
    again = "second (from its beginning), third (changed in the plan)"
    assert f"resumed: 1 completed and not done again; done again: {again}" in done.stderr
    assert (tmp_path / "effects").read_text().split() == ["first", "second", "second", "gated", "another"]
    read_records(tmp_path)


@pytest.mark.parametrize(
    ("orphans", "path", "status"),
    [
        ("open", ["CLAIMED", "IN_PROGRESS", "ORPHANED", "OPEN", "CLAIMED", "IN_PROGRESS", "DONE", "CLOSED"], 0),
        ("failed", ["CLAIMED", "IN_PROGRESS", "ORPHANED", "FAILED"], 1),
        ("done", ["CLAIMED", "IN_PROGRESS", "ORPHANED", "DONE", "CLOSED"], 0),
    ],
)
async def test_an_orphan_goes_by_policy(
    tmp_path: Path, anyio_backend: str, orphans: str, path: list[str], status: int
) -> None:
    """A task whose session is lost by a crash is opened again, failed or closed, as ``recovery.orphans`` says. What
    opens the task has the reason ``orphan_recovered``."""
    await anyio.to_thread.run_sync(partial(interrupted_run, tmp_path, anyio_backend, orphans=orphans, memory=False))
    done = await anyio.to_thread.run_sync(second_run, tmp_path, anyio_backend)
    await reap_all()
    assert done.returncode == status, done.stderr
    records = read_records(tmp_path)
    assert states_of(records, "r1#second")[1:] == path
    reasons = [one.transition_reason for one in records if one.entity_id == "r1#second" and one.event == "requeued"]
    assert reasons == ["orphan_recovered"] * path.count("OPEN")
