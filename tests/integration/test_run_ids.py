"""Ids of runs and tasks: two plans with the same names of tasks run side by side in one supervisor, and nothing of one
is taken for something of the other."""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from supervisor import AgentConfig, AgentTurn, NoSuchEntity, Plan, PlanHandle, Supervisor, TaskConfig, open_supervisor
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import InvalidArgument, LifecycleEvent
from supervisor.work.plan_handle import run_plan
from tests.support import CommandOutput, git, quick_settings, run_command, wait_for_record

pytestmark = pytest.mark.anyio

SH = {"sh": AgentConfig(adapter="command", command=("sh", "-c", "{prompt}"))}
SOON_S = 120.0


async def records_of(sup: Supervisor) -> list[LifecycleEvent]:
    with sup.reader() as reader:
        return list(reader.events())


def born(records: list[LifecycleEvent], *kinds: str) -> list[str]:
    return [one.entity_id for one in records if one.outcome == "born" and one.entity_type in kinds]


# --------------------------------------------------------------------------------------------------- side by side
def shell_plan(name: str, first: str, **more: Any) -> Plan:
    """Return a plan whose task ``make`` runs the command *first* and writes a file, and whose task ``check`` reads
    it."""
    bounds = quick_settings(max_total_errors=1, max_consecutive_errors=1)
    tasks = [
        TaskConfig(id="make", agent="sh", prompt=f"{first} && echo {name} > {name}.txt", max_retries=0),
        TaskConfig(id="check", agent="sh", prompt=f"grep {name} {name}.txt", depends_on=["make"], max_retries=0),
    ]
    settings = {"limits": bounds.limits, "policy": bounds.policy, **more}
    return Plan.model_validate({"workstream": name, "agents": SH, "tasks": tasks, **settings})


@pytest.mark.parametrize("workspace", ["directory", "worktree"])
async def test_two_plans_with_the_same_names_have_nothing_in_common(tmp_path: Path, workspace: str) -> None:
    """Runs, tasks, task runs, jobs, sessions, transcripts and branches of two plans that run at the same time have ids
    of their own, and both plans are completed and merged."""
    repository = tmp_path / "work"
    repository.mkdir()
    git(repository, "init", "-q", "-b", "main")
    git(repository, "commit", "-q", "--allow-empty", "-m", "begin")
    os.mkfifo(tmp_path / "gate")  # opened by both or by none: so the two tasks run at the same time
    one = shell_plan("one", f"echo go > {tmp_path / 'gate'}", workspace=workspace)
    two = shell_plan("two", f"cat {tmp_path / 'gate'}", workspace=workspace)

    async with open_supervisor(
        repository / ".sdd", agents=SH, settings=one.settings, workdir=repository, control=False
    ) as sup:
        handles = [run_plan(sup, one), run_plan(sup, two)]
        with anyio.fail_after(SOON_S):
            results = [await handle for handle in handles]
        records = await records_of(sup)

    assert [one.outcome for one in results] == ["completed", "completed"]
    ids = [handle.run_id for handle in handles]
    assert (sorted(ids), [one.run for one in results]) == (["r1", "r2"], ids)
    assert sorted(born(records, "workstream")) == sorted(ids)
    assert sorted(born(records, "task")) == sorted(f"{run}#{task}" for run in ids for task in ("make", "check"))
    assert sorted(born(records, "run")) == sorted(f"{run}#{task}:run" for run in ids for task in ("make", "check"))
    assert sorted(born(records, "job")) == sorted(f"{run}#{task}:job" for run in ids for task in ("make", "check"))
    assert sorted(born(records, "session")) == ["check", "check-2", "make", "make-2"]
    assert max(Counter(one.entity_id for one in records if one.outcome == "born").values()) == 1
    state = StateDir(repository / ".sdd")
    written = {session: state.transcript(session).read_text() for session in ("make", "make-2")}
    assert sum("echo one" in text for text in written.values()) == sum("echo two" in text for text in written.values())
    assert {path.name for path in repository.glob("*.txt")} == {"one.txt", "two.txt"}
    if workspace == "worktree":
        merged = {
            one.entity_id: one.reason.partition(" as ")[0]
            for one in records
            if one.reason.startswith("merged into") and one.event in ("closed", "validation_passed")
        }
        own = {f"{run}#make": f"merged into supervisor/{run}" for run in ids}
        assert merged == {**own, **dict.fromkeys(ids, "merged into main")}
        assert git(repository, "branch", "--list", "supervisor/*") == ""  # each was merged, and removed as its own
        assert git(repository, "status", "--porcelain", "--untracked-files=no") == ""


# ------------------------------------------------------------------------------------------------------- commands
async def hang(turn: AgentTurn) -> str:
    await anyio.sleep_forever()
    return ""


FUNCTIONS: dict[str, Any] = {"hang": hang}


def hanging_plan(name: str, **more: Any) -> Plan:
    return Plan(workstream=name, agents=FUNCTIONS, tasks=[TaskConfig(id="fix", agent="hang", prompt=name, **more)])


async def command(where: Path, *words: str) -> CommandOutput:
    """Run a command line in another thread, as a second terminal would."""
    return await anyio.to_thread.run_sync(partial(run_command, *words, "--state-dir", where))


async def started(sup: Supervisor, *names: str, **more: Any) -> list[PlanHandle]:
    """Run a plan of each name, with the task ``fix``, one after another; wait until each task is worked on."""
    handles = []
    for number, name in enumerate(names, 1):
        handles.append(run_plan(sup, hanging_plan(name, **more)))
        event, outcome = ("Born", "born") if more else ("started", "transition")
        await wait_for_record(sup, event, f"r{number}#fix", outcome=outcome)
    return handles


@pytest.mark.parametrize(
    "words",
    [
        ("task", "cancel", "fix"),
        ("abort", "fix", "--scope", "session"),
        ("send", "fix", "hello"),
        ("inspect", "fix"),
        ("why", "fix"),
        ("logs", "fix"),
        ("wait", "fix", "--timeout", "0"),
    ],
    ids=lambda words: words[0],
)
async def test_a_name_of_two_running_runs_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    """A command with the name of a task that two running runs have does nothing, and says what to type."""
    async with open_supervisor(tmp_path / "sd", agents=FUNCTIONS) as sup:
        handles = await started(sup, "one", "two")
        before = await records_of(sup)
        output = await command(tmp_path / "sd", *words)

        assert (output.status, output.out) == (2, "")
        assert "'fix' is a task of 2 running plans; give r1#fix or r2#fix" in output.err
        assert await records_of(sup) == before
        for handle in handles:
            handle.cancel()


async def test_a_task_is_named_with_its_run(tmp_path: Path) -> None:
    """``RUN#TASK``, and ``--run RUN``, reach the task of that run alone, and its session, turns and calls."""
    where = tmp_path / "sd"
    async with open_supervisor(where, agents=FUNCTIONS) as sup:
        handles = await started(sup, "one", "two")
        assert (await command(where, "send", "r1#fix", "a", "--urgent")).out.endswith("for r1#fix\n")
        assert (await command(where, "inspect", "fix:t1", "--run", "r2", "--json")).json["id"] == "fix-2:t1"
        assert (await command(where, "inspect", "r2#fix", "--json")).json["id"] == "r2#fix"
        assert "prompt| one" in (await command(where, "logs", "fix", "--run", "r1")).out
        assert "prompt| two" in (await command(where, "logs", "r2#fix")).out
        assert (await command(where, "why", "r2#fix")).out.startswith("task r2#fix is IN_PROGRESS since ")
        assert (await command(where, "why", "r2#fix:t1")).out.startswith("turn fix-2:t1 is ")
        assert "r1#fix" in (await command(where, "ps")).out
        assert "r2#fix" in (await command(where, "tree")).out

        cancelled = await command(where, "task", "cancel", "r2#fix")
        assert (cancelled.status, cancelled.out) == (0, "r2#fix: cancelled, now CANCELLED\n")
        assert (await command(where, "wait", "r2#fix")).out.startswith("r2#fix: aborted")
        with anyio.fail_after(SOON_S):
            await handles[1]
        assert handles[0].results == {}
        # Now one running run has the task.
        assert (await command(where, "task", "cancel", "fix")).out == "fix: cancelled, now CANCELLED\n"
        with anyio.fail_after(SOON_S):
            assert (await handles[0]).tasks["fix"].outcome == "aborted"


async def test_an_unknown_run_or_task_is_told_with_what_there_is(tmp_path: Path) -> None:
    """A command about a run that does not go on, or that has no such task, does nothing, and exits with 2."""
    where = tmp_path / "sd"
    async with open_supervisor(where, agents=FUNCTIONS) as sup:
        (handle,) = await started(sup, "one")
        for words, message in (
            (("task", "cancel", "r9#fix"), "run 'r9' does not go on here, only r1"),
            (("task", "cancel", "r1#fox"), "did you mean r1#fix?"),
            (("task", "cancel", "nothing", "--run", "r1"), "run r1 has no task 'nothing'"),
            (("send", "r9#fix", "x"), "run 'r9' is not in the journal; the runs are: r1"),
            (("why", "r1#fox"), "run r1 has no task 'fox'; did you mean r1#fix?"),
            (("logs", "fix", "--run", "plan"), "run: 'plan' is not the id of a run; give one like r1"),
            (("wait", "r9", "--timeout", "0"), "nothing has the id 'r9'"),
            (("abort", "r1#fix", "--scope", "session", "--run", "r2"), "run: 'r2' is not the run in 'r1#fix'"),
        ):
            output = await command(where, *words)
            assert (output.status, output.out) == (2, ""), output.err
            assert message in output.err
        assert handle.results == {}
        handle.cancel()


async def test_planned_tasks_are_those_of_one_run(tmp_path: Path) -> None:
    """``--all-planned --run RUN`` approves the planned tasks of that run alone; without it, those of every run."""
    where = tmp_path / "sd"
    async with open_supervisor(where, agents=FUNCTIONS) as sup:
        handles = await started(sup, "one", "two", approval="before")
        of_one = await command(where, "reject", "--all-planned", "--run", "r2", "--reason", "no")
        assert of_one.out == "r2#fix: rejected, now CANCELLED\n"
        rest = await command(where, "reject", "--all-planned", "--reason", "no")
        assert rest.out == "r1#fix: rejected, now CANCELLED\n"
        with anyio.fail_after(SOON_S):
            assert [(await one).tasks["fix"].outcome for one in handles] == ["rejected", "rejected"]


async def test_a_handle_knows_its_run() -> None:
    """The commands of a handle are about its own run, whatever names another run has."""
    async with open_supervisor(agents=FUNCTIONS) as sup:
        one, two = await started(sup, "one", "two")
        assert (one.run_id, two.run_id) == ("r1", "r2")
        with pytest.raises(NoSuchEntity):
            await one.cancel_task("r2#fix")
        assert (await two.cancel_task("fix")).entity_id == "r2#fix"
        assert (await one.why("fix")).entity_id == "r1#fix"
        with anyio.fail_after(SOON_S):
            await two
        assert one.results == {}
        one.cancel()


async def test_a_run_goes_on_with_its_id(tmp_path: Path) -> None:
    """Runs are numbered through a state directory, also over supervisors, and a resumed task is found by either run."""
    for _ in range(2):
        async with open_supervisor(tmp_path / "sd", agents=SH) as sup:
            bounds = {"agents": SH, "tasks": [TaskConfig(id="t", agent="sh", prompt="true")]}
            assert (await run_plan(sup, Plan.model_validate(bounds))).ok
            assert born(await records_of(sup), "workstream")[0] == "r1"
    assert run_command("wait", "r2", "--state-dir", tmp_path / "sd").status == 0
    assert run_command("wait", "r1#t", "--state-dir", tmp_path / "sd").out == "r1#t: completed\n"
    assert run_command("wait", "t", "--state-dir", tmp_path / "sd").out == "r2#t: completed\n"


async def test_no_session_has_the_id_of_a_run() -> None:
    """A root session cannot be named like a run; a child session may."""

    async def agent(turn: AgentTurn) -> str:
        return "done"

    async with open_supervisor() as sup:
        with pytest.raises(InvalidArgument, match="'r1' has the form of the id of a plan's run; use another name"):
            await sup.start_session("r1", agent=agent)
        lead = await sup.start_session("lead", agent=agent)
        assert (await sup.start_session("r1", parent=lead.id)).id == "lead/r1"
