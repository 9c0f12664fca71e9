"""The turn of a task lasts until its task has judged the work: VERIFYING while tests and a review run, FAILED after a
rejection, and REAPED after the work is handed over.

An acceptance test of these plans opens a pipe that the test reads, and then waits at a gate: so the test knows that the
acceptance test runs, and nobody waits for a time.
"""

from __future__ import annotations

import copy
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from supervisor.diagnostics.validate import validate_lines
from supervisor.journal.reader import JournalReader
from supervisor.lifecycles.turn import DEADLINE
from supervisor.lifecycles.types import AbortScope, LifecycleEvent
from supervisor.plans import AgentConfig, Plan, RecoveryConfig
from supervisor.runtime.entity import Refused
from supervisor.work.plan_handle import run_plan
from supervisor.work.plan_runner import PlanRunner
from tests.support import (
    DEADLINE_S,
    FrozenJournal,
    Gate,
    HeldPipe,
    Run,
    check_records,
    quick_settings,
    reap_all,
    run_command,
    running_program,
    start_call,
    states_of,
    supervising,
    taking_over,
    wait_for_record,
)

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]

BEGUN = ["IDLE", "CLAIMING", "SPAWNING", "RUNNING", "VERIFYING"]
BOUNDS = quick_settings()
WAITS_AT_GATE = "exec 9>roll; echo test $$ >&9; read go < gate"


@pytest.fixture
def roll(tmp_path: Path) -> Iterator[HeldPipe]:
    roll = HeldPipe(tmp_path)
    yield roll
    roll.close()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path)
    yield gate
    gate.close()


def plan_of(test: str, *, agents: dict[str, Any] | None = None, **task: Any) -> Plan:
    """Return a plan with the task ``t``, whose agent is a program that does nothing, and whose acceptance test is the
    command line *test*."""
    acceptance = [{"command": ["sh", "-c", test], "timeout_s": 2 * DEADLINE_S}] if test else []
    one = {"id": "t", "agent": "sh", "prompt": "go", "max_retries": 0, "acceptance": acceptance, **task}
    known = {"sh": AgentConfig(adapter="command", command=("true",)), **(agents or {})}
    return Plan.model_validate({"agents": known, "tasks": [one], "limits": BOUNDS.limits, "policy": BOUNDS.policy})


def only(events: list[LifecycleEvent], event: str, entity_id: str) -> LifecycleEvent:
    """Return the one transition by *event* of an entity."""
    [found] = [one for one in events if (one.event, one.entity_id, one.outcome) == (event, entity_id, "transition")]
    return found


def state_of(run: Run, entity_id: str) -> str:
    return run.row(entity_id).state


# ------------------------------------------------------------------------------------------------- it is verified
async def test_a_turn_is_verified_while_its_acceptance_test_runs(tmp_path: Path, roll: HeldPipe, gate: Gate) -> None:
    """While the acceptance test runs, the turn is VERIFYING, its agent has exited and its time-out has no timer; when
    the test has passed, the turn ends after the work was handed over, and before its session."""
    plan = plan_of(WAITS_AT_GATE)
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        async with anyio.create_task_group() as group:
            results = start_call(group, run_plan, run.sup, plan)
            await roll.here(1)
            found = {one: state_of(run, one) for one in ("t:t1", "t:a1", "t", "r1#t:run", "r1#t:job", "r1#t")}
            [root] = [one for one in run.sup.tree() if one.id == "t"]
            shown = {one.id: one.state for one in root.children}
            context = run.sup.core.registry.system.context("t:t1")
            assert context is not None
            assert context.read_timer(DEADLINE) is None
            gate.open()
    assert found == {
        "t:t1": "VERIFYING",
        "t:a1": "dead",
        "t": "SessionComplete",
        "r1#t:run": "VALIDATING",
        "r1#t:job": "validating",
        "r1#t": "IN_PROGRESS",
    }
    assert shown["t:t1"] == "VERIFYING"
    assert results[0].ok
    events = run.events()
    assert states_of(events, "t:t1") == [*BEGUN, "COMPLETING", "REAPED"]
    passed, verified = only(events, "tests_passed", "r1#t:run"), only(events, "task_completed", "t:t1")
    assert verified.cause_id == passed.seq
    order = [
        passed,
        only(events, "completed", "r1#t"),
        verified,
        only(events, "agent_reaped", "t:t1"),
        only(events, "Ended", "t"),
        only(events, "closed", "r1#t"),
    ]
    assert [one.seq for one in order] == sorted(one.seq for one in order)


async def test_a_rejected_turn_has_failed(tmp_path: Path) -> None:
    """An acceptance test that fails takes the turn to FAILED, with the reason and the result of the tests as cause."""
    plan = plan_of("echo no; exit 3")
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        result = await run_plan(run.sup, plan)
    assert result.tasks["t"].outcome == "failed"
    events = run.events()
    assert states_of(events, "t:t1") == [*BEGUN, "FAILED", "REAPED"]
    rejected, failed = only(events, "tests_failed", "r1#t:run"), only(events, "task_failed", "t:t1")
    assert failed.cause_id == rejected.seq
    assert failed.reason == result.tasks["t"].error
    assert failed.reason.startswith("not accepted: command sh -c echo no; exit 3: exited with 3")
    assert only(events, "agent_reaped", "t:t1").seq < only(events, "Ended", "t").seq


async def test_a_turn_is_verified_while_it_is_reviewed(tmp_path: Path, roll: HeldPipe, gate: Gate) -> None:
    """While a reviewer works, the turn is VERIFYING; when the reviewer rejects the work, the turn has failed. The turn
    of the reviewer is its own."""
    verdict = '{"verdict": "reject", "findings": ["no test"]}'
    command = ("sh", "-c", f"{WAITS_AT_GATE}; echo '{verdict}'")
    critic = {"critic": AgentConfig(adapter="command", command=command)}
    plan = plan_of("", agents=critic, review={"agent": "critic"})
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        async with anyio.create_task_group() as group:
            results = start_call(group, run_plan, run.sup, plan)
            await roll.here(1)
            found = state_of(run, "t:t1")
            gate.open()
    assert found == "VERIFYING"
    assert results[0].tasks["t"].error == "rejected by review: no test"
    assert states_of(run.events(), "t:t1") == [*BEGUN, "FAILED", "REAPED"]
    assert states_of(run.events(), "t/review:t1") == [*BEGUN, "COMPLETING", "REAPED"]


async def test_a_turn_whose_work_is_incomplete_has_failed(tmp_path: Path) -> None:
    """A turn that misses a completion signal has failed; the turn of the next attempt is another one."""
    shell = AgentConfig(adapter="command", command=("sh", "-c", "[ -e half ] && touch whole; touch half"))
    plan = plan_of("", agents={"sh": shell}, completion=[{"glob_exists": "whole"}])
    fast = {"base_retry_delay": 0.01, "max_retry_delay": 0.01}
    plan = Plan.model_validate({**dict(plan), "task_lifecycle": fast})
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        assert (await run_plan(run.sup, plan)).ok
    assert states_of(run.events(), "t:t1") == [*BEGUN, "FAILED", "REAPED"]
    assert states_of(run.events(), "t:t2") == [*BEGUN, "COMPLETING", "REAPED"]
    assert only(run.events(), "task_failed", "t:t1").reason == "not complete: nothing is at whole"


async def test_a_turn_ends_after_its_figures(tmp_path: Path) -> None:
    """The usage of a turn is on record before the turn is REAPED."""
    scripted = {"sh": AgentConfig(adapter="scripted")}
    plan = plan_of("true", agents=scripted, prompt="@use 5 7 0.01\n@say done")
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        result = await run_plan(run.sup, plan)
    assert (result.tasks["t"].tokens, result.tasks["t"].cost_usd) == (12, 0.01)
    used = [one for one in run.events("t") if one.event == "Usage" and one.metadata["turn"] == "t:t1"]
    assert used[-1].metadata["used"]["cost_usd"] == 0.01
    assert used[-1].seq < only(run.events(), "agent_reaped", "t:t1").seq


async def test_an_approval_is_not_the_turns(tmp_path: Path) -> None:
    """The turn of a task that waits for an approval is over."""
    plan = plan_of("true", approval="after")
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        runner = PlanRunner(run.sup.core)
        async with anyio.create_task_group() as group:
            start_call(group, runner.run, plan)
            await wait_for_record(run.sup, "Ended", "t")
            assert state_of(run, "r1#t") == "PENDING_APPROVAL"
            assert state_of(run, "t:t1") == "REAPED"
            await runner.commands.approve("t", by="operator:ann")
    assert states_of(run.events(), "t:t1") == [*BEGUN, "COMPLETING", "REAPED"]


# ------------------------------------------------------------------------------------------------- it is ended
async def test_an_abort_ends_the_verification(tmp_path: Path, roll: HeldPipe, gate: Gate) -> None:
    """An abort of the session ends the processes of its acceptance test, and the turn has failed by that abort."""
    plan = plan_of(f"{WAITS_AT_GATE} & wait")
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        async with anyio.create_task_group() as group:
            results = start_call(group, run_plan, run.sup, plan)
            await roll.here(1)
            receipt = await run.sup.abort("t", AbortScope.SESSION, reason="enough")
            await roll.all_gone()
    assert [(one.id, one.outcome) for one in receipt.nodes] == [("t", "ended")]
    assert receipt.nodes[0].how == "its turn t:t1 was being verified"
    assert (results[0].tasks["t"].outcome, results[0].tasks["t"].error) == ("aborted", "enough")
    assert states_of(run.events(), "t:t1") == [*BEGUN, "FAILED", "REAPED"]
    failed = only(run.events(), "task_failed", "t:t1")
    assert (failed.reason, failed.abort_id) == ("enough", receipt.abort_id)
    assert only(run.events(), "agent_reaped", "t:t1").seq < only(run.events(), "Ended", "t").seq


async def test_a_message_that_would_reach_nobody_is_refused(tmp_path: Path, roll: HeldPipe, gate: Gate) -> None:
    """While the work is checked, an urgent message has no turn to interrupt, and no prompt need follow."""
    plan = plan_of(WAITS_AT_GATE)
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        async with anyio.create_task_group() as group:
            results = start_call(group, run_plan, run.sup, plan)
            await roll.here(1)
            with pytest.raises(Refused, match="is being checked, and it may get no further prompt; urgent at turn_end"):
                await run.sup.session("t").send("stop that", urgent=True)
            gate.open()
    assert results[0].ok


async def test_a_killed_supervisor_verifies_again(tmp_path: Path, roll: HeldPipe, gate: Gate) -> None:
    """A supervisor that is killed while a turn is verified leaves the turn VERIFYING; the next one runs the acceptance
    test again, and the turn is completed once."""
    plan = f"""
agents: {{sh: {{adapter: command, command: ["true"]}}}}
tasks:
  - id: t
    agent: sh
    prompt: go
    acceptance: [{{command: [sh, -c, "{WAITS_AT_GATE}"], timeout_s: {2 * DEADLINE_S}}}]
"""
    (tmp_path / "plan.yaml").write_text(plan)
    command = [sys.executable, "-m", "supervisor", "run", "plan.yaml", "--json"]
    with running_program(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as first:
        await roll.here(1)
        first.send_signal(signal.SIGKILL)
        await roll.all_gone()
    before = records(tmp_path)
    assert states_of(before, "t:t1") == BEGUN
    with running_program(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as second:
        await roll.here(2)
        shown = run_command("ps", "--json", cwd=tmp_path)
        gate.open()
        with anyio.fail_after(DEADLINE_S):
            assert await anyio.to_thread.run_sync(second.wait) == 0
    await reap_all()
    assert [one["state"] for one in shown.json if one["id"] == "t:t1"] == ["VERIFYING"]
    events = records(tmp_path)
    assert states_of(events, "t:t1") == [*BEGUN, "COMPLETING", "REAPED"]
    assert only(events, "task_completed", "t:t1").cause_id == only(events, "tests_passed", "r1#t:run").seq
    assert only(events, "execution_completed", "r1#t:run").seq < only(events, "agent_reaped", "t:t1").seq
    assert states_of(events, "r1#t") == ["OPEN", "CLAIMED", "IN_PROGRESS", "DONE", "CLOSED"]


@pytest.mark.parametrize("sessions", ["resume", "stop"])
@pytest.mark.parametrize(
    ("verdict", "states", "ends"),
    [
        ("task_completed", ("DONE", "VERIFYING"), ["COMPLETING", "REAPED"]),
        ("task_failed", ("FAILED", "VERIFYING"), ["FAILED", "REAPED"]),
    ],
)
async def test_a_verdict_outlives_its_supervisor(
    tmp_path: Path, roll: HeldPipe, gate: Gate, sessions: str, verdict: str, states: tuple[str, str], ends: list[str]
) -> None:
    """A supervisor that dies between the result of the tests and the end of the turn leaves the turn VERIFYING; the
    next one gives the turn the verdict of its tests, also if it stops the session, and others after it."""
    plan = plan_of(WAITS_AT_GATE + ("" if verdict == "task_completed" else "; false"))
    agents = plan.agents
    async with supervising(
        tmp_path,
        settings=plan.settings,
        agents=agents,
        journal=lambda store: FrozenJournal(store, verdict),
    ) as run:
        async with anyio.create_task_group() as group:
            start_call(group, run_plan, run.sup, plan)
            await roll.here(1)
            for _ in range(5):
                await run.sup.start_session("other", agent="sh")
            gate.open()
            await run.disk.frozen.wait()
            left = copy.deepcopy(run.store)
            run.disk.thaw.set()
    assert (left.entities["r1#t"].state, left.entities["t:t1"].state) == states
    settings = plan.settings.model_copy(update={"recovery": RecoveryConfig.model_validate({"sessions": sessions})})
    async with taking_over(left, tmp_path, agents=agents, settings=settings):
        pass
    events = left.log.after(0, 1_000_000)
    assert states_of(events, "t:t1") == [*BEGUN, *ends]
    tested = {"task_completed": "tests_passed", "task_failed": "tests_failed"}[verdict]
    assert only(events, verdict, "t:t1").cause_id == only(events, tested, "r1#t:run").seq


def records(workdir: Path) -> list[LifecycleEvent]:
    """Return every record of the state directory; if its sessions have ended, check that journal and log are valid."""
    with JournalReader(workdir / ".sdd" / "runtime" / "journal.db") as journal:
        events, rows = list(journal.events()), list(journal.entities())
    if all(row.ended for row in rows if row.kind == "session"):
        check_records(events, rows, [])
        lines = (workdir / ".sdd" / "transitions.jsonl").read_bytes().splitlines(keepends=True)
        assert validate_lines(lines).problems == []
    return events
