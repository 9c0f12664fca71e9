"""Recovery of a run whose task was split at run time: the subtasks, which are in no plan file, are continued as
well. And of a run whose task had failed: the reason for its next claim is kept."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from supervisor.embedding.runtime import open_supervisor
from supervisor.host import factories
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.plans.earlier_runs import resumed_ids
from supervisor.plugins.reading import load_plan
from supervisor.work.plan_runner import PlanRunner
from tests.integration.test_retry_reasons import FAILS, plan_of, prompts
from tests.support import check_records, running_program, states_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the whole promise is Linux's")

DEADLINE_S = 120
ASKS = f"{sys.executable} -m supervisor task split --json > told <<'END' || exit 1"
PLAN = f"""
agents: {{sh: {{adapter: command, command: [sh, -c, "{{prompt}}"]}}}}
max_sessions: 2
tasks:
  - id: a
    agent: sh
    may_split: true
    prompt: |
      {ASKS}
      - {{id: a1, prompt: "[ -e gate ] || sleep 60; echo a1 >> log", subtasks: []}}
      - {{id: a2, prompt: "", subtasks: [{{id: a2a, prompt: echo a2a >> log}}], depends_on: [a1]}}
      END
      [ -e ended ] || sleep 60
  - {{id: b, agent: sh, prompt: echo b >> log, depends_on: [a]}}
"""
WHOLE = {"a", "a1", "a2", "a2a", "b"}


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """Override the fixture of the same name: the processes of a killed run end by themselves, a little after
    the test."""


@contextmanager
def started(workdir: Path) -> Iterator[subprocess.Popen[str]]:
    """Start ``supervisor run`` on the plan; kill the process at the end of the block."""
    run = [sys.executable, "-m", "supervisor", "run", "plan.yaml", "--json"]
    with running_program(run, cwd=workdir, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def killed_at(workdir: Path, event: str, who: str) -> None:
    with started(workdir) as process:
        assert process.stdout is not None
        told: dict[str, object] = {}
        for line in process.stdout:
            told = json.loads(line)
            if (told.get("event"), told.get("entity_id")) == (event, who):
                break
        assert told.get("event") == event, told
        process.send_signal(signal.SIGKILL)


def completed(workdir: Path, status: int = 0) -> set[str]:
    """Run the plan to its end, which has that exit *status*, and return the names of the completed tasks."""
    with started(workdir) as process:
        assert process.stdout is not None
        last = [json.loads(line) for line in process.stdout][-1]
        assert process.wait(DEADLINE_S) == status, process.stderr.read() if process.stderr else ""
    return {task["id"] for task in last["tasks"] if task["outcome"] == "completed"}


class InAnHour:
    """Wall clock that is an hour ahead, as after a pause between two supervisors."""

    def time(self) -> float:
        return time.time() + 3600


WAITS = """
agents: {sh: {adapter: command, command: [sh, -c, "{prompt}"]}}
tasks:
  - {id: a, agent: sh, timeout_s: 600, subtasks: [{id: a1, prompt: sleep 60}]}
"""


@pytest.mark.anyio
async def test_the_wait_for_subtasks_does_not_start_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task's time-out of ten minutes for its subtasks has passed when the next supervisor starts an hour after a
    crash, since time without a supervisor counts."""
    (tmp_path / "plan.yaml").write_text(WAITS)
    await anyio.to_thread.run_sync(killed_at, tmp_path, "started", "r1#a1")
    plan = load_plan(tmp_path / "plan.yaml")
    monkeypatch.setattr(factories, "WALL", InAnHour())  # hosts have no clock of their own to give
    with anyio.fail_after(DEADLINE_S):
        async with open_supervisor(
            tmp_path / ".sdd",
            agents=plan.agents,
            settings=plan.settings,
            workdir=tmp_path,
            choose=partial(resumed_ids, plan),
        ) as sup:
            async with anyio.create_task_group() as group, sup.subscribe(after_seq=0) as events:
                group.start_soon(PlanRunner(sup.core).run, plan)
                async for record in events:
                    if record.event == "subtask_timed_out":
                        break
                await sup.stop(now=True)
    assert (record.entity_id, record.to_status) == ("r1#a", "BLOCKED")


@pytest.mark.parametrize(
    ("event", "who"), [("split", "r1#a"), ("started", "r1#a1"), ("execution_completed", "r1#a:run")]
)
def test_a_split_run_goes_on_after_a_kill(tmp_path: Path, event: str, who: str) -> None:
    """After a kill the next command continues a run with a split task, and all subtasks, at any depth, are closed
    before the dependents begin, and before a turn of the split task is completed."""
    (tmp_path / "plan.yaml").write_text(PLAN)
    if who == "r1#a:run":
        (tmp_path / "ended").touch()
    killed_at(tmp_path, event, who)
    (tmp_path / "gate").touch()
    (tmp_path / "ended").touch()
    assert completed(tmp_path) == WHOLE
    assert list(dict.fromkeys((tmp_path / "log").read_text().split())) == ["a1", "a2a", "b"]
    with JournalReader(StateDir(tmp_path / ".sdd").journal) as journal:
        events = list(journal.events())
        check_records(events, journal.entities(), [], refused=True)
    born = [one.entity_id for one in events if one.event == "Born" and one.entity_type in ("task", "workstream")]
    assert sorted(born) == ["r1", "r1#a", "r1#a1", "r1#a2", "r1#a2a", "r1#b"]
    assert states_of(events, "r1#a")[-3:] == ["WAITING_FOR_SUBTASKS", "DONE", "CLOSED"]
    closed = max(one.seq for one in events if one.event == "closed" and one.entity_id in ("r1#a1", "r1#a2"))
    verified = [one.seq for one in events if one.event == "task_completed" and one.entity_id.startswith("a:t")]
    assert all(seq > closed for seq in verified)
    assert len(verified) == 1 or who != "r1#a:run"


def test_a_kill_loses_no_reason(tmp_path: Path) -> None:
    """The supervisor is killed as soon as a failed test is on record: the claim under the next one is given its
    output."""
    plan = plan_of(tmp_path / "prompts", "true", acceptance=[FAILS])
    (tmp_path / "plan.yaml").write_text(plan.model_dump_json(exclude_unset=True))
    killed_at(tmp_path, "failed", "r1#t")
    assert completed(tmp_path, status=1) == set()
    heard = [text for text in prompts(tmp_path / "prompts") if text]  # the kill may hit an agent before it reads
    assert len(heard) >= 2
    assert all(text.endswith("\n> test_a: expected 1\n> got 2") for text in heard[1:])
