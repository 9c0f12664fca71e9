"""Results of runs: a run has ended when its result is printed or returned; if the supervisor is killed before, the next
run prints the result.

In the tests a run is stopped just before its result by a standard output that nobody reads, and that is full from the
beginning.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
from field_kit import Scratch, until

from supervisor import AgentConfig, Plan, TaskConfig, open_supervisor, run_plan
from supervisor.work.plan_runner import PlanRunner

PLAN = """
    agents:
      effect: {adapter: command, command: [sh, -c, 'echo "$0" >> effects; [ "$0" != break ]', "{prompt}"]}
    tasks:
      - {id: deploy, agent: effect, prompt: deploy}
      - {id: mail, agent: effect, prompt: %s, depends_on: [deploy], max_retries: 0}
    task_lifecycle: {max_attempts: 1, circuit_breaker: {enabled: false}}
"""


@contextmanager
def full_pipe() -> Iterator[int]:
    """Yield the write end of a full pipe; a program that writes to it waits for ever."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"." * 4096)
    os.set_blocking(writer, True)
    try:
        yield writer
    finally:
        os.close(reader)
        os.close(writer)


def effects(scratch: Scratch) -> list[str]:
    path = scratch.path / "effects"
    return path.read_text().split() if path.exists() else []


def over(scratch: Scratch, state: str) -> bool:
    """Return whether a record says that the workstream has ended in *state*."""
    path = scratch.path / ".sdd/transitions.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return any('"entity_id":"r1"' in line and f'"to_state":"{state}"' in line for line in lines)


def killed_before_it_is_shown(scratch: Scratch, state: str = "completed") -> None:
    """Run the plan until its workstream has ended, and kill the supervisor before it has printed the result."""
    with full_pipe() as nobody:
        run = scratch.start("run", "plan.yaml", stdout=nobody)
        until(lambda: over(scratch, state))
        run.kill()


def test_the_next_run_shows_the_result_and_does_nothing(scratch: Scratch) -> None:
    """After a kill before the result, the next run prints the result with all tasks and exit status 0, and does no task
    again; the run after that begins anew."""
    scratch.plan(PLAN % "mail")
    killed_before_it_is_shown(scratch)
    shown = scratch.run("run", "plan.yaml", "--json")
    assert shown.status == 0, shown.text
    told = shown.json()
    assert told["ok"] is True
    assert [(task["id"], task["outcome"]) for task in told["tasks"]] == [("deploy", "completed"), ("mail", "completed")]
    assert all(task["took_s"] > 0 and task["session_id"] == task["id"] for task in told["tasks"])
    assert "r1 ended before its result could be shown" in shown.err
    assert effects(scratch) == ["deploy", "mail"]
    assert scratch.run("run", "plan.yaml").status == 0
    assert effects(scratch) == ["deploy", "mail", "deploy", "mail"]


def test_a_failure_that_nobody_saw_is_shown_as_it_was(scratch: Scratch) -> None:
    """After a kill before the result of a failed run, the next run prints that result with exit status 1, and does not
    try the failed task again."""
    scratch.plan(PLAN % "break")
    killed_before_it_is_shown(scratch, "failed")
    shown = scratch.run("run", "plan.yaml")
    assert shown.status == 1, shown.text
    assert "deploy  completed" in shown.out
    assert "mail    failed" in shown.out
    assert effects(scratch) == ["deploy", "break"]


def test_a_critical_failure_is_shown_with_those_it_cut_short(scratch: Scratch) -> None:
    """After a kill before the result of a run that a critical task has failed, the next run prints the critical task as
    failed and the other as cancelled, and tries neither again."""
    scratch.plan("""
        agents:
          slow: {adapter: command, command: [sh, -c, "trap '' TERM; echo slow >> effects; sleep 300 & wait"]}
          bad: {adapter: command, command: [sh, -c, "until [ -e effects ]; do sleep 0.02; done; exit 1"]}
        tasks:
          - {id: long, agent: slow, prompt: ""}
          - {id: vital, agent: bad, prompt: "", critical: true, max_retries: 0}
        task_lifecycle: {max_attempts: 1, circuit_breaker: {enabled: false}}
    """)
    killed_before_it_is_shown(scratch, "failed")
    shown = scratch.run("run", "plan.yaml", "--json")
    assert shown.status == 1, shown.text
    assert {task["id"]: task["outcome"] for task in shown.json()["tasks"]} == {"long": "cancelled", "vital": "failed"}
    assert effects(scratch) == ["slow"]


def test_a_plan_that_changed_begins_anew_and_says_what_was_not_shown(scratch: Scratch) -> None:
    """A plan with a changed prompt is another plan: it is run, and a message on standard error says that the result of
    the earlier run was not shown."""
    scratch.plan(PLAN % "mail")
    killed_before_it_is_shown(scratch)
    scratch.plan(PLAN % "news")
    shown = scratch.run("run", "plan.yaml")
    assert shown.status == 0, shown.text
    assert "not shown is the result of run r1" in shown.err
    assert "2 of 2 tasks completed" in shown.err
    assert effects(scratch) == ["deploy", "mail", "deploy", "news"]


def test_a_fresh_start_takes_the_place_of_the_result(scratch: Scratch) -> None:
    """`--fresh` runs the plan anew, says that the earlier result was not shown, and records that result as reported."""
    scratch.plan(PLAN % "mail")
    killed_before_it_is_shown(scratch)
    fresh = scratch.run("run", "plan.yaml", "--fresh")
    assert fresh.status == 0, fresh.text
    assert "not shown is the result of run r1" in fresh.err
    assert effects(scratch) == ["deploy", "mail"] * 2
    reported = [one["reason"] for one in scratch.records() if one["event"] == "ResultReported"]
    assert reported == ["another run of the plan was asked for", "printed"]


def test_each_of_two_plans_has_its_own_result(scratch: Scratch) -> None:
    """A run of another plan in the same state directory does not show the result, which the next run of its own plan
    still shows."""
    scratch.plan(PLAN % "mail")
    killed_before_it_is_shown(scratch)
    scratch.write("other.yaml", PLAN % "other")
    assert scratch.run("run", "other.yaml").status == 0
    shown = scratch.run("run", "plan.yaml")
    assert shown.status == 0, shown.text
    assert "ended before its result could be shown" in shown.err
    assert effects(scratch) == ["deploy", "mail", "deploy", "other"]


def test_a_result_that_cannot_be_written_is_not_shown(scratch: Scratch) -> None:
    """When the result cannot be written, since the disk is full, the run says so, and the next run shows the result."""
    scratch.plan(PLAN % "mail")
    with Path("/dev/full").open("wb") as full:
        lost = scratch.start("run", "plan.yaml", stdout=full).wait()
    assert "the result could not be written" in lost.err
    shown = scratch.run("run", "plan.yaml")
    assert shown.status == 0, shown.text
    assert "mail    completed" in shown.out
    assert effects(scratch) == ["deploy", "mail"]


def test_a_reader_that_went_away_wanted_no_more(scratch: Scratch) -> None:
    """When the reader of the output has gone (as with `| head`), the result counts as shown, and the next run does the
    tasks again."""
    scratch.plan(PLAN % "mail")
    reader, writer = os.pipe()
    os.close(reader)
    assert scratch.start("run", "plan.yaml", stdout=writer).wait().status == 0
    os.close(writer)
    assert scratch.run("run", "plan.yaml").status == 0
    assert effects(scratch) == ["deploy", "mail"] * 2


def test_run_plan_returns_the_result_that_an_earlier_host_did_not_have(tmp_path: Path) -> None:
    """``run_plan`` returns once the result that an earlier host did not get, with the id of its workstream; the next
    call runs the plan again."""
    effect = AgentConfig(adapter="command", command=("sh", "-c", "echo done >> effects"))
    plan = Plan(agents={"a": effect}, tasks=(TaskConfig(id="t", agent="a"),))

    async def host() -> list[str]:
        async with open_supervisor(tmp_path / ".sdd", agents=plan.agents, workdir=tmp_path) as sup:
            await PlanRunner(sup.core).run(plan)  # and whoever asked for it never hears of that
        async with open_supervisor(tmp_path / ".sdd", agents=plan.agents, workdir=tmp_path) as sup:
            results = [await run_plan(sup, plan), await run_plan(sup, plan)]
        async with open_supervisor(tmp_path / ".sdd", agents=plan.agents, workdir=tmp_path) as sup:
            results.append(await run_plan(sup, plan))
        assert all(one.ok and list(one.tasks) == ["t"] for one in results)
        return [one.earlier for one in results]

    assert anyio.run(host) == ["r1", "", ""]
    assert (tmp_path / "effects").read_text().split() == ["done"] * 3
