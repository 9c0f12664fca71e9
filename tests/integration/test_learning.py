"""Time-outs that learn: what earlier runs of a plan took decides the time limits of the next run, from the journal and
its archives, over restarts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from supervisor.embedding.journals import compact_files, open_reader
from supervisor.embedding.runtime import open_supervisor
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import Kind
from supervisor.plans import AgentConfig, Plan
from supervisor.ports import Retention
from supervisor.work.attempt_limits import kind_of
from supervisor.work.plan_handle import run_plan
from supervisor.work.plan_histories import read_history
from supervisor.work.timeouts import TaskSize
from tests.support import quick_settings, reap_all, run_command, running_program

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]

USUAL_S, LEARNED_S = 900.0, 300.0
"""Time limits of a small task that nobody has tried, and of one whose attempts took a moment."""


def plan_of(*tasks: dict[str, Any]) -> Plan:
    usual = quick_settings()
    return Plan.model_validate(
        {
            "workstream": "nightly",
            "agents": {"sh": AgentConfig(adapter="command", command=("sh", "-c", "{prompt}"))},
            "tasks": [{"agent": "sh", "prompt": "true", "max_retries": 0, **one} for one in tasks],
            "max_sessions": 1,
            "limits": usual.limits,
            "policy": usual.policy,
        }
    )


async def run_once(plan: Plan, where: Path) -> None:
    """Run the plan under a supervisor of its own."""
    async with open_supervisor(where / ".sdd", agents=plan.agents, settings=plan.settings, workdir=where) as sup:
        assert (await run_plan(sup, plan, fresh=True)).ok


def limits(where: Path) -> list[float]:
    """Return the time limits of all turns of the state directory, oldest first."""
    with open_reader(where / ".sdd") as reader:
        born = (one for one in reader.events(archived=True) if one.event == "Born" and one.entity_type == Kind.TURN)
        return [one.metadata["timeout_s"] for one in born]


def archive_all(where: Path) -> None:
    """Move everything that has ended to the archive, as a compaction does after a week."""
    state = StateDir.open(where / ".sdd", create=False)
    with state.lock():
        compact_files(state, Retention(keep_s=0.0, records_max=0), time.time() + 3600.0)
    assert list(state.archive.glob("*.db"))


async def test_the_tenth_run_uses_what_nine_have_taught(tmp_path: Path) -> None:
    """Five runs have the time of the size; later ones that of the attempts, each under a supervisor of its own, and
    also when the runs that taught it lie in an archive."""
    plan = plan_of({"id": "t", "scope": "small"})
    for number in range(10):
        await run_once(plan, tmp_path)
        if number == 6:
            archive_all(tmp_path)
    assert limits(tmp_path) == [USUAL_S] * 5 + [LEARNED_S] * 5
    with open_reader(tmp_path / ".sdd") as reader:
        history = read_history(reader, "nightly", where=".sdd")
        other = read_history(reader, "weekly", where=".sdd")
    assert history.warnings == []
    past = history.of_task("t")
    assert [(one.outcome, one.agent, one.size, one.launches) for one in past] == [("completed", "sh", "small", 1)] * 10
    assert all(0 < one.attempt_s < 60 for one in past)
    assert other.of_task("t") == ()


async def test_runs_of_one_supervisor_teach_each_other(tmp_path: Path) -> None:
    """A supervisor that runs the plan again and again reads the history once, and goes on in memory."""
    plan, reads = plan_of({"id": "t", "scope": "small"}), list[str]()
    async with open_supervisor(tmp_path / ".sdd", agents=plan.agents, settings=plan.settings, workdir=tmp_path) as sup:
        read = sup.core.journal.read

        async def counted(follow: Any, work: Any) -> Any:
            reads.append("read")
            return await read(follow, work)

        sup.core.journal.read = counted  # type: ignore[method-assign]
        for _ in range(6):
            assert (await run_plan(sup, plan, fresh=True)).ok
    assert limits(tmp_path) == [USUAL_S] * 5 + [LEARNED_S]
    assert reads == ["read"]


async def test_tasks_of_one_size_teach_each_other_within_a_run(tmp_path: Path) -> None:
    """From the sixth small task of a plan on, its tasks have the time that the first five took; a large one has not."""
    small = [{"id": f"t{number}", "scope": "small"} for number in range(6)]
    await run_once(plan_of(*small, {"id": "large", "scope": "large"}), tmp_path)
    assert limits(tmp_path) == [USUAL_S] * 5 + [LEARNED_S, 3600.0]


async def test_a_task_that_failed_teaches_nothing(tmp_path: Path) -> None:
    """The attempts of tasks that failed their tests do not count, though they are in the history."""
    fails = [{"command": ["false"]}]
    plan = plan_of(*({"id": f"t{number}", "scope": "small", "acceptance": fails} for number in range(6)))
    async with open_supervisor(tmp_path / ".sdd", agents=plan.agents, settings=plan.settings, workdir=tmp_path) as sup:
        assert not (await run_plan(sup, plan)).ok
    assert limits(tmp_path) == [USUAL_S] * 6
    with open_reader(tmp_path / ".sdd") as reader:
        assert [one.outcome for one in read_history(reader, "nightly", where="").of_task("t0")] == ["failed"]


async def test_an_archive_that_is_missing_teaches_nothing(tmp_path: Path) -> None:
    """The journal alone teaches then, and the warning names the file; put back, the archive teaches again."""
    plan = plan_of({"id": "t", "scope": "small"})
    for _ in range(5):
        await run_once(plan, tmp_path)
    archive_all(tmp_path)
    (archive,) = (tmp_path / ".sdd" / "archive").glob("*.db")
    archive.rename(tmp_path / "kept")
    await run_once(plan, tmp_path)
    with open_reader(tmp_path / ".sdd") as reader:
        history = read_history(reader, "nightly", where=".sdd")
    assert str(archive) in "".join(history.warnings)
    assert [one.outcome for one in history.of_task("t")][-1:] == ["completed"]
    (tmp_path / "kept").rename(archive)
    await run_once(plan, tmp_path)
    assert limits(tmp_path)[-2:] == [USUAL_S, LEARNED_S]


INTERRUPTED = """
workstream: nightly
recovery: {sessions: stop}
agents: {sh: {adapter: command, command: [sh, -c, "{prompt}"]}}
max_sessions: 1
tasks:
  - {id: a, agent: sh, scope: small, prompt: "true"}
  - {id: b, agent: sh, scope: small, prompt: "true"}
  - {id: c, agent: sh, scope: small, prompt: "true"}
  - {id: d, agent: sh, scope: small, prompt: "true"}
  - {id: e, agent: sh, scope: small, prompt: "true", depends_on: [a, b, c, d]}
  - {id: held, agent: sh, scope: large, prompt: "test -e gate || exec sleep 1000", depends_on: [e]}
  - {id: last, agent: sh, scope: small, prompt: "true", depends_on: [held]}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the whole promise is Linux's")
def test_a_killed_supervisor_forgets_nothing(tmp_path: Path) -> None:
    """The attempts that a run completed before its supervisor was killed count after it, and in the run's result; `plan
    check` says what the next run would use, and why."""
    (tmp_path / "plan.yaml").write_text(INTERRUPTED)
    run = [sys.executable, "-m", "supervisor", "run", "plan.yaml", "--state-dir", ".sdd", "--json"]
    with running_program(run, cwd=tmp_path, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert any(b'"entity_id":"r1#held"' in line and b'"event":"started"' in line for line in first.stdout)
        first.send_signal(signal.SIGKILL)
    (tmp_path / "gate").touch()
    second = subprocess.run(run, cwd=tmp_path, capture_output=True, timeout=120, check=False)
    anyio.run(reap_all)
    assert second.returncode == 0, second.stderr
    assert limits(tmp_path) == [USUAL_S] * 5 + [3600.0] * 2 + [LEARNED_S]
    tasks = {one["id"]: one for one in json.loads(second.stdout.splitlines()[-1])["tasks"]}
    assert all(one["attempt_s"] > 0 and one["agent"] == "sh" for one in tasks.values())
    assert tasks["held"]["size"] == "large"
    checked = json.loads(run_command("plan", "check", "plan.yaml", "--json", cwd=tmp_path).out)
    told = {name: one for one in checked["time_outs"] for name in one["tasks"]}
    assert (told["a"]["timeout_s"], told["held"]["timeout_s"]) == (LEARNED_S, 3600.0)
    assert told["a"]["why"].startswith("95 % of 6 completed attempts of small tasks of this plan with sh took up to ")
    assert told["a"]["earlier"]["outcomes"] == {"completed": 1}
    words = run_command("plan", "check", "plan.yaml", cwd=tmp_path).out
    assert "1 completed; median 0." in words


def test_the_sizes_of_a_plan_are_those_of_the_time_limits() -> None:
    """Every size that a plan may name has a time limit."""
    found = [kind_of(plan_of({"id": "t", "scope": one}).tasks[0]) for one in TaskSize]
    assert [one.scope for one in found if one is not None] == list(TaskSize)
