"""Operator commands on tasks of a running plan, with real programs: the effect of each command, and when it is
refused."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import msgspec
import pytest
from anyio.lowlevel import checkpoint

from supervisor.cli.rendering import receipt_text
from supervisor.diagnostics.causal_trace import RecordList, why
from supervisor.embedding.runtime import open_supervisor
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.task import Task
from supervisor.lifecycles.types import AbortScope, HeldBy, NoSuchEntity
from supervisor.plans import AgentConfig, BadPlan, Plan, TaskConfig
from supervisor.plans.task_control import CommandResult
from supervisor.ports import Merge, WorkspaceSpec
from supervisor.ports.agent_profile import AgentProfile
from supervisor.runtime.entity import Refused
from supervisor.sessions.inprocess import AgentTurn
from supervisor.sessions.verification import Verification
from supervisor.work import plan_runner as runner
from supervisor.work.blocking import BlockedTasks
from supervisor.work.plan_handle import run_plan
from supervisor.work.plan_runner import PlanRunner
from supervisor.work.results import PlanResult
from supervisor.work.task_commands import TaskCommands
from tests.support import FIRST_LINE, Run, quick_settings, states_of, supervising, wait_for_record

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]

AGENTS = {
    "sh": AgentConfig(adapter="command", command=("sh", "-c", "{prompt}")),
    "other": AgentConfig(adapter="command", command=("sh", "-c", "{prompt}")),
    "reader": FIRST_LINE,
}
BOUNDS = quick_settings(max_total_errors=1, max_consecutive_errors=1)
ME = "operator:me"
QUICK: dict[str, Any] = {"base_retry_delay": 0, "max_retry_delay": 0, "jitter_percentage": 0}
ONCE: dict[str, Any] = {**QUICK, "max_attempts": 1, "circuit_breaker": {"enabled": False}}


def task(name: str, prompt: str = "true", *depends_on: str, **more: Any) -> TaskConfig:
    given = {"agent": "sh", "max_retries": 0, **more}
    return TaskConfig(id=name, prompt=prompt, depends_on=depends_on, **given)


def plan_of(*tasks: TaskConfig, lifecycle: dict[str, Any] = ONCE, **more: Any) -> Plan:
    settings = {"limits": BOUNDS.limits, "policy": BOUNDS.policy, "drain_s": BOUNDS.drain_s}
    return Plan.model_validate({"agents": AGENTS, "tasks": tasks, "task_lifecycle": lifecycle, **settings, **more})


class RunningPlan:
    """Helper with a plan that runs: its commands, its records, and its result in the end."""

    def __init__(self, run: Run, commands: TaskCommands) -> None:
        self.run, self.commands = run, commands
        self.results: list[PlanResult] = []

    @property
    def result(self) -> PlanResult:
        (one,) = self.results
        return one

    def outcomes(self) -> dict[str, str]:
        return {name: one.outcome for name, one in self.result.tasks.items()}

    def path(self, name: str) -> list[str]:
        return states_of(self.run.events(), f"r1#{name}")

    async def until(self, event: str, entity_id: str, **how: Any) -> None:
        await wait_for_record(self.run.sup, event, entity_id, **how)


@asynccontextmanager
async def running_plan(workdir: Path, plan: Plan, *, refused: bool = False) -> AsyncIterator[RunningPlan]:
    """Run *plan* during the block, and wait for the end of the plan after the block."""
    async with supervising(workdir, settings=plan.settings, agents=plan.agents, refused=refused) as run:
        runner = PlanRunner(run.sup.core)
        under_way = RunningPlan(run, runner.commands)

        async def carry_out() -> None:
            under_way.results.append(await runner.run(plan))

        async with anyio.create_task_group() as group:
            group.start_soon(carry_out)
            yield under_way


@pytest.fixture
def gate(tmp_path: Path) -> Callable[[str], Awaitable[None]]:
    """Fixture: a function that lets a program go on which waits (by ``HELD``, say) at the FIFO with the given name."""
    for name in ("one", "two"):
        os.mkfifo(tmp_path / name)

    async def let_go(name: str) -> None:
        await anyio.to_thread.run_sync((tmp_path / name).write_text, "go\n")

    return let_go


Gate = Callable[[str], Awaitable[None]]
HELD = "read _ < one"
SILENT: dict[str, Any] = {"prompt": "test -e done || exec sleep 60", "timeout_s": 0.3}
"""A task whose attempts time out, so that its open circuit is probed, until the file ``done`` exists."""


# -------------------------------------------------------------------------------------------------------- approvals
async def test_a_planned_task_waits_for_its_approval(tmp_path: Path) -> None:
    """A task with ``approval: before`` is PLANNED until it is approved; the operator's command is the root cause of the
    task's records."""
    async with running_plan(tmp_path, plan_of(task("a", approval="before"), task("b", "true", "a"))) as plan:
        await plan.until("all_tasks_created", "r1")
        assert await plan.commands.planned() == ("a",)
        answer = await plan.commands.approve("a", by=ME, reason="go")
        assert (answer.entity_id, answer.state) == ("r1#a", "OPEN")
    assert plan.outcomes() == {"a": "completed", "b": "completed"}
    assert plan.path("a") == ["PLANNED", "OPEN", "CLAIMED", "IN_PROGRESS", "DONE", "CLOSED"]
    (approved,) = plan.run.transitions("approved", "r1#a")
    assert (approved.actor, approved.cause_id) == ("plan", answer.seq)
    root = why(RecordList(plan.run.events()), "r1#a").root
    assert root is not None
    assert (root.event, root.actor, root.reason) == ("Commanded", ME, "go")


async def test_an_operators_name_is_escaped(tmp_path: Path) -> None:
    """Bytes of an operator's name that are not UTF-8 are escaped in the record."""
    async with running_plan(tmp_path, plan_of(task("a", approval="before"), task("b", approval="after"))) as plan:
        await plan.until("all_tasks_created", "r1")
        await plan.commands.approve("a", by="caf\udce9")
        await plan.until("approval_requested", "r1#b")
        await plan.commands.approve("b", by="caf\udce9")
    assert plan.outcomes() == {"a": "completed", "b": "completed"}
    commanded = [one.actor for one in plan.run.events() if one.event == "Commanded"]
    assert commanded == [r"caf\udce9", r"caf\udce9"]


async def test_a_plan_can_be_approved_as_a_whole(tmp_path: Path) -> None:
    """With ``approve_plan`` every task waits for an approval; a rejected task is cancelled, and its dependents are not
    begun."""
    tasks = (task("a"), task("b"), task("c", "true", "b"))
    async with running_plan(tmp_path, plan_of(*tasks, approve_plan=True)) as plan:
        await plan.until("all_tasks_created", "r1")
        assert await plan.commands.planned() == ("a", "b", "c")
        assert (await plan.commands.reject("r1#b", by=ME, reason="not now")).state == "CANCELLED"
        await plan.until("rejected", "r1#c")
        await plan.commands.approve("a", by=ME)
    assert plan.outcomes() == {"a": "completed", "b": "rejected", "c": "blocked"}
    assert "rejected by operator:me: not now" in plan.result.tasks["b"].error


async def test_a_result_waits_for_its_approval(tmp_path: Path) -> None:
    """A task with ``approval: after`` is closed only when it is approved; tasks that do not depend on it go on
    meanwhile."""
    async with running_plan(tmp_path, plan_of(task("a", approval="after"), task("b"), task("c", "true", "a"))) as plan:
        await plan.until("approval_requested", "r1#a")
        await plan.until("closed", "r1#b")
        answer = await plan.commands.approve("a", by=ME)
        assert answer.state == "CLOSED"
    assert plan.outcomes() == {"a": "completed", "b": "completed", "c": "completed"}
    (granted,) = plan.run.transitions("approval_granted", "r1#a")
    (given,) = plan.run.transitions("approval_given", "r1#a")
    assert (granted.metadata["by"], granted.cause_id, given.cause_id) == (ME, given.seq, answer.seq)


async def test_a_rejected_result_is_retried(tmp_path: Path) -> None:
    """A rejected result fails its task; the task is claimed again if it has a retry left."""
    async with running_plan(tmp_path, plan_of(task("a", agent="reader", approval="after", max_retries=1))) as plan:
        await plan.until("approval_requested", "r1#a")
        assert (await plan.commands.reject("a", by=ME, reason="no tests")).state == "FAILED"
        await plan.until("approval_requested", "r1#a", number=2)
        await plan.commands.approve("a", by=ME)
    assert plan.outcomes() == {"a": "completed"}
    states = plan.path("a")
    assert states[states.index("PENDING_APPROVAL") :][:3] == ["PENDING_APPROVAL", "FAILED", "OPEN"]


async def test_a_command_with_an_id_takes_effect_once(tmp_path: Path, gate: Gate) -> None:
    """A command repeated with the same id returns the first result and has no second effect; repeated without an id, it
    is refused by the state machine."""
    async with running_plan(tmp_path, plan_of(task("a", approval="before"), task("b", HELD)), refused=True) as plan:
        first = await plan.commands.approve("a", by=ME, command_id="c")
        await plan.until("closed", "r1#a")
        again = await plan.commands.approve("a", by=ME, command_id="c")
        assert (again.repeated, again.seq, again.state) == (True, first.seq, first.state)
        with pytest.raises(Refused, match=r"has ended \(CLOSED\): no command changes it"):
            await plan.commands.approve("a", by=ME)
        await gate("one")
    assert len(plan.run.transitions("approved")) == 1


async def test_an_unknown_task_is_named(tmp_path: Path, gate: Gate) -> None:
    """A command to an unknown task raises an error that names the task; a command after the end of the plan is
    refused."""
    async with running_plan(tmp_path, plan_of(task("a", HELD))) as plan:
        with pytest.raises(NoSuchEntity, match="'z'"):
            await plan.commands.approve("z", by=ME)
        await gate("one")
    with pytest.raises((Refused, NoSuchEntity)):
        await plan.commands.cancel("a", by=ME)


# ------------------------------------------------------------------------------------------------------------ cancel
async def test_a_started_task_is_cancelled(tmp_path: Path, gate: Gate) -> None:
    """When a started task is cancelled, its session ends, its task run and job are cancelled, and its dependents are
    not begun."""
    async with running_plan(tmp_path, plan_of(task("a", HELD), task("b", "true", "a"), task("c"))) as plan:
        await plan.until("started", "r1#a")
        assert (await plan.commands.cancel("a", by=ME, reason="no need")).state == "CANCELLED"
    assert plan.outcomes() == {"a": "aborted", "b": "blocked", "c": "completed"}
    assert states_of(plan.run.events(), "r1#a:run")[-1] == "CANCELLED"
    assert states_of(plan.run.events(), "r1#a:job")[-1] == "cancelled"


async def test_a_waiting_task_is_cancelled(tmp_path: Path, gate: Gate) -> None:
    """A task that is not begun, and a task whose result waits for an approval, can be cancelled; a cancel of a PLANNED
    or a cancelled task is refused."""
    tasks = (task("a", HELD), task("b", "true", "a"), task("c", approval="after"), task("d", approval="before"))
    async with running_plan(tmp_path, plan_of(*tasks), refused=True) as plan:
        await plan.until("approval_requested", "r1#c")
        await plan.commands.cancel("b", by=ME)
        await plan.commands.cancel("c", by=ME)
        with pytest.raises(Refused, match="is PLANNED: cancel is not possible now, only approve, reject"):
            await plan.commands.cancel("d", by=ME)
        await plan.commands.reject("d", by=ME, reason="x")
        with pytest.raises(Refused, match=r"has ended \(CANCELLED\): no command changes it"):
            await plan.commands.cancel("b", by=ME)
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "b": "aborted", "c": "aborted", "d": "rejected"}


# --------------------------------------------------------------------------------------------------- requeue, unclaim
async def test_a_requeued_task_gets_another_session(tmp_path: Path, gate: Gate) -> None:
    """When a task is requeued, its session ends, the failure is not charged, and another session works on the task."""
    async with running_plan(tmp_path, plan_of(task("a", f"echo x >> log; test -e done || {HELD}"))) as plan:
        await plan.until("started", "r1#a")
        (tmp_path / "done").touch()
        assert (await plan.commands.requeue("a", by=ME, reason="too slow")).state == "OPEN"
    assert plan.outcomes() == {"a": "completed"}
    assert plan.path("a") == ["OPEN", "CLAIMED", "IN_PROGRESS", "OPEN", "CLAIMED", "IN_PROGRESS", "DONE", "CLOSED"]
    (requeued,) = plan.run.transitions("requeued", "r1#a")
    assert requeued.reason == "taken away by operator:me: too slow"
    (failed,) = plan.run.transitions("execution_failed", "r1#a:run")
    assert failed.metadata["charged"] is False


async def test_a_task_is_requeued_only_in_progress(tmp_path: Path, gate: Gate) -> None:
    """A requeue of an open task, and an unclaim of a started task, are refused with the message of the state
    machine."""
    async with running_plan(tmp_path, plan_of(task("a", HELD), task("b", "true", "a")), refused=True) as plan:
        await plan.until("started", "r1#a")
        with pytest.raises(Refused, match="is OPEN: requeue is not possible now, only cancel, split"):
            await plan.commands.requeue("b", by=ME)
        with pytest.raises(Refused, match="is IN_PROGRESS: unclaim is not possible now, only "):
            await plan.commands.unclaim("a", by=ME)
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "b": "completed"}


# --------------------------------------------------------------------------------------------------------------- add
async def test_tasks_are_added_once_and_by_somebody(tmp_path: Path, gate: Gate) -> None:
    """Tasks that are added run beside the others, and may depend on them. The journal has who added them, as the cause
    of their births. A second command with the same id adds nothing; with other tasks it is refused."""
    async with running_plan(tmp_path, plan_of(task("a", HELD))) as plan:
        await plan.until("started", "r1#a")
        await plan.commands.split("a", [task("part")], by=ME)
        more = [task("b", "true", "part"), task("c", "true", "b")]
        added = await plan.commands.add_tasks(more, by=ME, reason="found meanwhile", command_id="k")
        again = await plan.commands.add_tasks(more, by=ME, command_id="k")
        assert (added.entity_id, added.state, added.subtasks) == ("r1", "executing", ("r1#b", "r1#c"))
        assert again == msgspec.structs.replace(added, repeated=True)
        with pytest.raises(ValueError, match="was given to add r1 with other tasks by operator:me"):
            await plan.commands.add_tasks([task("d")], by=ME, command_id="k")
        await gate("one")
    assert plan.outcomes() == dict.fromkeys(("a", "part", "b", "c"), "completed")
    (fact,) = [one for one in plan.run.events() if one.event == "Commanded" and one.entity_id == "r1"]
    (birth,) = [one for one in plan.run.events() if one.outcome == "born" and one.entity_id == "r1#b"]
    assert (fact.actor, fact.reason, birth.cause_id) == (ME, "found meanwhile", fact.seq)


async def test_tasks_that_do_not_fit_are_not_added(tmp_path: Path, gate: Gate) -> None:
    """A task with an unknown agent or a used id is refused, with its place in what was given; nothing is added."""
    async with running_plan(tmp_path, plan_of(task("a", HELD))) as plan:
        with pytest.raises(BadPlan, match=r"^tasks\[1\]\.agent: 'nobody' is not an agent of this plan; the agents are"):
            await plan.commands.add_tasks([task("b"), task("c", agent="nobody")], by=ME)
        with pytest.raises(BadPlan, match=r"tasks\[0\]\.id: 'a' is or was a task of run r1; use another"):
            await plan.commands.add_tasks([task("a")], by=ME)
        await gate("one")
    assert plan.outcomes() == {"a": "completed"}
    assert [one.event for one in plan.run.events() if one.event.startswith("Command")] == [
        "Commanded", "CommandRefused", "Commanded", "CommandRefused"
    ]  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- keep
WORKS = "echo half > work; touch at_work; exec sleep 600"
"""Prompt of a task whose agent has done a half, and does not end."""


async def test_work_that_is_kept_is_checked_and_the_task_is_closed(tmp_path: Path) -> None:
    """A task whose work is kept is closed after its acceptance tests, although its agent was interrupted and its
    completion signal is missing. `why` of the task names the command, and who gave it."""
    kept = task(
        "a", WORKS, acceptance=[{"command": ["grep", "half", "work"]}], completion=[{"answer_contains": "all done"}]
    )
    async with running_plan(tmp_path, plan_of(kept, task("b", "true", "a"))) as plan:
        await plan.until("started", "r1#a")
        while not (tmp_path / "at_work").exists():
            await checkpoint()
        assert (await plan.commands.keep("a", by=ME, reason="good enough")).state == "IN_PROGRESS"
        await plan.until("closed", "r1#a")
        with pytest.raises(Refused, match="has ended"):
            await plan.commands.keep("a", by=ME)
    assert plan.outcomes() == {"a": "completed", "b": "completed"}
    records = plan.run.events()
    (closed,) = [one for one in records if one.event == "closed" and one.entity_id == "r1#a"]
    root = closed
    while root.cause_id is not None:
        root = next(one for one in records if one.seq == root.cause_id)
        if root.event == "Commanded":
            break
    assert (root.actor, root.reason, root.metadata["command"]) == (ME, "good enough", "keep")


async def test_kept_work_that_fails_its_checks_is_not_tried_again(tmp_path: Path) -> None:
    """A task whose kept work fails a check has failed, though it has attempts and retries left; a person may retry."""
    kept = task("a", WORKS, acceptance=[{"command": ["grep", "whole", "work"]}], max_retries=3)
    lifecycle = {**QUICK, "max_attempts": 3}
    async with running_plan(tmp_path, plan_of(kept, lifecycle=lifecycle)) as plan:
        await plan.until("started", "r1#a")
        while not (tmp_path / "at_work").exists():
            await checkpoint()
        await plan.commands.keep("a", by=ME)
    assert plan.outcomes() == {"a": "failed"}
    assert plan.result.tasks["a"].error.endswith(f"(no further try: {ME} has ended the work on it)")
    assert plan.path("a").count("CLAIMED") == 1


async def test_a_task_that_nobody_works_on_is_not_kept(tmp_path: Path, gate: Gate) -> None:
    """A task that waits, or whose attempt is over, is refused, and nothing changes."""
    async with running_plan(tmp_path, plan_of(task("a", HELD), task("b", "true", "a"))) as plan:
        await plan.until("started", "r1#a")
        with pytest.raises(Refused, match="task 'b' is OPEN: keep is not possible now, only"):
            await plan.commands.keep("b", by=ME)
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "b": "completed"}


# ------------------------------------------------------------------------------------------------------------- retry
async def test_a_failed_task_is_retried(tmp_path: Path, gate: Gate) -> None:
    """A retry of a failed task closes the circuit of its task run and clears the count of attempts; the task is tried
    again and completes."""
    async with running_plan(tmp_path, plan_of(task("a", "test -e done"), task("b", HELD))) as plan:
        await plan.until("DeadLettered", "r1#a")
        (tmp_path / "done").touch()
        assert (await plan.commands.retry("a", by=ME, reason="mended")).state == "OPEN"
        await plan.until("closed", "r1#a")
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "b": "completed"}
    assert plan.path("a")[2:5] == ["IN_PROGRESS", "FAILED", "OPEN"]
    (given,) = plan.run.transitions("manual_reset", "r1#a:run")
    assert given.metadata["by"] == ME


async def test_a_circuit_that_cools_down_is_retried(tmp_path: Path, gate: Gate) -> None:
    """A task that is retried during the cool-down is tried again at once, as a normal attempt instead of a
    probe."""
    lifecycle = {**QUICK, "max_attempts": 2, "circuit_breaker": {"max_error_repeats": 0, "cooldown_period": 3600}}
    tasks = (task("a", **SILENT), task("b", HELD))
    async with running_plan(tmp_path, plan_of(*tasks, lifecycle=lifecycle, limits=quick_settings().limits)) as plan:
        await plan.until("execution_failed", "r1#a:job")
        (tmp_path / "done").touch()
        assert (await plan.commands.retry("a", by=ME)).state == "PENDING"
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "b": "completed"}


@pytest.mark.parametrize(("attempts", "state"), [(2, "RETRYING"), (1, "PENDING")])
async def test_a_retry_ends_the_wait_for_the_next_try(tmp_path: Path, gate: Gate, attempts: int, state: str) -> None:
    """A task that waits for its next attempt, or for its next claim by another agent, is tried at once when it is
    retried."""
    lifecycle = {"max_attempts": attempts, "base_retry_delay": 3600, "max_retry_delay": 3600}
    tasks = (task("a", "test -e done", fallback_agents=["other"], max_retries=1), task("b", HELD))
    async with running_plan(tmp_path, plan_of(*tasks, lifecycle=lifecycle, limits=quick_settings().limits)) as plan:
        await (plan.until("execution_failed", "r1#a:job") if attempts > 1 else plan.until("retried", "r1#a"))
        (tmp_path / "done").touch()
        assert (await plan.commands.retry("a", by=ME)).state == state
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "b": "completed"}


async def test_an_abort_between_two_attempts_cancels_the_task(tmp_path: Path) -> None:
    """A session that is aborted while its task waits for the next attempt takes the task with it: the task is
    cancelled, and no further attempt is made."""
    lifecycle = {"max_attempts": 2, "base_retry_delay": 3600, "max_retry_delay": 3600}
    limits = quick_settings().limits
    async with running_plan(tmp_path, plan_of(task("a", "exit 3"), lifecycle=lifecycle, limits=limits)) as plan:
        await plan.until("execution_failed", "r1#a:job")
        await plan.run.sup.abort("a", AbortScope.SESSION, reason="enough")
    assert plan.outcomes() == {"a": "aborted"}
    assert plan.path("a")[-1] == "CANCELLED"
    assert "enough" in plan.result.tasks["a"].error


@pytest.mark.parametrize("state", ["before its next claim", "before its approval"])
async def test_an_abort_of_the_last_session_cancels_the_task(tmp_path: Path, state: str) -> None:
    """An abort of the session that worked last for a task which is not settled cancels the task, although the session
    has ended, and the receipt says so. A second abort does nothing."""
    lifecycle = {"base_retry_delay": 3600, "max_retry_delay": 3600}
    wanted = task("a", agent="reader", acceptance=[{"command": ["false"]}], max_retries=1)
    event = "retried"
    if state == "before its approval":
        wanted, event = task("a", approval="after"), "approval_requested"
    # The task b keeps the run going until the second abort has been answered.
    plan = plan_of(wanted, task("b", approval="before"), lifecycle=lifecycle)
    async with running_plan(tmp_path, plan) as running:
        await running.until(event, "r1#a")
        await running.until("Ended", "a")
        receipt = await running.run.sup.abort("a", AbortScope.SESSION, reason="enough")
        again = await running.run.sup.abort("a", AbortScope.SESSION, reason="enough")
        await running.commands.reject("b", by=ME, reason="no")
    assert (receipt.already_ended, receipt.cancelled_task, again.cancelled_task) == (True, "a", None)
    assert "its task a is cancelled" in receipt_text(receipt)
    assert (running.outcomes()["a"], running.result.tasks["a"].error) == ("aborted", "enough")


async def test_a_close_by_the_host_between_two_attempts_cancels_the_task(tmp_path: Path) -> None:
    """A host that closes the session of a task which waits for its next attempt ends the task."""
    lifecycle = {"max_attempts": 2, "base_retry_delay": 3600, "max_retry_delay": 3600}
    limits = quick_settings().limits
    async with running_plan(tmp_path, plan_of(task("a", "exit 3"), lifecycle=lifecycle, limits=limits)) as plan:
        await plan.until("execution_failed", "r1#a:job")
        await plan.run.sup.session("a").close("no longer needed")
    assert (plan.outcomes(), plan.result.tasks["a"].error) == ({"a": "aborted"}, "no longer needed")


async def test_a_stopping_supervisor_does_not_try_a_retried_task(tmp_path: Path) -> None:
    """When the supervisor is stopped after the retry of a task, the task and its task run are cancelled
    without a retry."""
    lifecycle = {**QUICK, "max_attempts": 1, "circuit_breaker": {"max_error_repeats": 0, "cooldown_period": 3600}}
    async with running_plan(
        tmp_path, plan_of(task("a", **SILENT), lifecycle=lifecycle, limits=quick_settings().limits)
    ) as plan:
        await plan.until("execution_timed_out", "r1#a:run")
        assert (await plan.commands.retry("a", by=ME)).state == "PENDING"
        await plan.run.sup.stop()
    assert plan.outcomes() == {"a": "aborted"}
    assert plan.run.row("r1#a:run").state == "CANCELLED"


OFTEN: dict[str, Any] = {
    **QUICK,
    "max_attempts": 3,
    "circuit_breaker": {"max_error_repeats": 1, "cooldown_period": 3600},
}
"""Task settings with which the circuit opens at the second failure. After a retry by a person the task run may fail as
often again; its job may not."""


async def test_a_retried_task_run_waits_for_its_own_delay(tmp_path: Path, gate: Gate) -> None:
    """A failed attempt after a person's retry is repeated after the retry delay of the task run, not after the
    circuit's cool-down, though the job has no retry left."""
    tries = "echo >> tries; case $(wc -l < tries) in 4) ;; 3) exit 1 ;; *) exec sleep 60 ;; esac"
    tasks = (task("a", tries, timeout_s=0.3), task("b", HELD))
    async with running_plan(tmp_path, plan_of(*tasks, lifecycle=OFTEN, limits=quick_settings().limits)) as plan:
        await plan.until("execution_timed_out", "r1#a:run", number=2)
        assert (await plan.commands.retry("a", by=ME)).state == "PENDING"
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "b": "completed"}


async def test_a_stop_ends_the_wait_of_a_retried_task_run(tmp_path: Path, gate: Gate) -> None:
    """A stop during the retry delay of a task run that a person has retried ends the wait, and the task, as aborted."""
    tasks = (task("a", "echo >> tries; false"), task("b", HELD))
    lifecycle = {**OFTEN, "base_retry_delay": 1, "max_retry_delay": 1}
    async with running_plan(tmp_path, plan_of(*tasks, lifecycle=lifecycle, limits=quick_settings().limits)) as plan:
        await plan.until("retry_decided", "r1#a:run", number=2)
        await plan.commands.retry("a", by=ME)
        await plan.until("retry_decided", "r1#a:run", number=3)
        await anyio.wait_all_tasks_blocked()  # it waits
        await plan.run.sup.stop()
        await gate("one")
    assert plan.outcomes()["a"] == "aborted"
    assert states_of(plan.run.events(), "r1#a:run")[-1] == "CANCELLED"


async def test_task_run_and_job_are_inspected(tmp_path: Path, gate: Gate) -> None:
    """An inspection of a task, of its run or of its job shows the state of that one; the three have one actor."""
    async with running_plan(tmp_path, plan_of(task("a", HELD))) as plan:
        await plan.until("started", "r1#a")
        seen = [plan.run.sup.inspect(one) for one in ("r1#a", "r1#a:run", "r1#a:job")]
        await gate("one")
    assert [(one.id, one.kind, one.state, one.phase) for one in seen] == [
        ("r1#a", "task", "IN_PROGRESS", "live"),
        ("r1#a:run", "run", "IN_PROGRESS", "live"),
        ("r1#a:job", "job", "running", "live"),
    ]


async def test_a_started_task_is_not_retried(tmp_path: Path, gate: Gate) -> None:
    """A retry of a task whose task run is in progress is refused with the state of the run."""
    async with running_plan(tmp_path, plan_of(task("a", HELD)), refused=True) as plan:
        await plan.until("started", "r1#a")
        with pytest.raises(Refused, match="needs no retry: its run is IN_PROGRESS"):
            await plan.commands.retry("a", by=ME)
        await gate("one")


# ------------------------------------------------------------------------------------------------------------- split
async def test_an_open_task_is_split(tmp_path: Path, gate: Gate) -> None:
    """Subtasks of an open task that is split wait for the task's dependencies; the task itself is not run, and is
    closed after the subtasks."""
    async with running_plan(tmp_path, plan_of(task("a", HELD), task("b", "echo b >> log", "a"))) as plan:
        await plan.until("started", "r1#a")
        parts = (TaskConfig(id="b1", prompt="echo b1 >> log"), task("b2", "echo b2 >> log", "b1"))
        answer = await plan.commands.split("b", parts, by=ME)
        assert (answer.state, answer.subtasks) == ("WAITING_FOR_SUBTASKS", ("r1#b1", "r1#b2"))
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "b": "completed", "b1": "completed", "b2": "completed"}
    assert (tmp_path / "log").read_text().split() == ["b1", "b2"]
    assert plan.path("b") == ["OPEN", "WAITING_FOR_SUBTASKS", "DONE", "CLOSED"]
    (closed,), (begun,) = plan.run.transitions("closed", "r1#a"), plan.run.transitions("claimed", "r1#b1")
    assert closed.seq < begun.seq


async def test_a_task_that_was_split_ends_with_the_task_that_it_depends_on(tmp_path: Path, gate: Gate) -> None:
    """A task that was split while it waited for a task ends, with its subtasks, when that task fails."""
    async with running_plan(tmp_path, plan_of(task("a", f"{HELD}; exit 1"), task("b", "true", "a"))) as plan:
        await plan.until("started", "r1#a")
        await plan.commands.split("b", (task("b1", "true"), task("b2", "true")), by=ME)
        await gate("one")
    assert plan.outcomes() == {"a": "failed", "b": "blocked", "b1": "blocked", "b2": "blocked"}
    assert plan.path("b") == ["OPEN", "WAITING_FOR_SUBTASKS", "CANCELLED"]


async def test_a_subtask_of_an_unapproved_task_is_not_split(tmp_path: Path, gate: Gate) -> None:
    """A split of a subtask is refused until the parent task is approved, since the new subtasks would begin before the
    approval."""
    whole = task("b", approval="before", subtasks=[{"id": "b1", "agent": "sh", "prompt": "true"}])
    async with running_plan(tmp_path, plan_of(task("a", HELD), whole), refused=True) as plan:
        await plan.until("started", "r1#a")
        with pytest.raises(Refused, match="'b1' is a part of 'b', which is not begun; split it after that"):
            await plan.commands.split("b1", (task("b11", "true"),), by=ME)
        await plan.commands.approve("b", by=ME)
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "b": "completed", "b1": "completed"}


async def test_a_task_with_an_undecided_condition_is_not_split(tmp_path: Path, gate: Gate) -> None:
    """A split of a task is refused until the task's condition is checked, since the new subtasks would begin in spite
    of the condition."""
    maybe = task("b", "true", when={"task": "a", "is": "failed"})
    async with running_plan(tmp_path, plan_of(task("a", HELD), maybe), refused=True) as plan:
        await plan.until("started", "r1#a")
        with pytest.raises(Refused, match="'b' has a condition that is not checked yet; split it after that"):
            await plan.commands.split("b", (task("b1", "true"),), by=ME)
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "b": "skipped"}


async def test_a_waiting_task_with_subtasks_is_not_split(tmp_path: Path, gate: Gate) -> None:
    """A split of a task that has subtasks in the plan is refused until the task's dependencies are closed."""
    whole = task("b", "", "a", subtasks=[{"id": "b1", "agent": "sh", "prompt": "true"}])
    async with running_plan(tmp_path, plan_of(task("a", HELD), whole), refused=True) as plan:
        await plan.until("started", "r1#a")
        with pytest.raises(Refused, match="'b' has subtasks, and waits for 'a'; split it after that"):
            await plan.commands.split("b", (task("b2", "true"),), by=ME)
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "b": "completed", "b1": "completed"}


@pytest.mark.parametrize("last", ["its turn", "a subtask"])
@pytest.mark.parametrize("status", [0, 1])
async def test_a_started_task_is_split(tmp_path: Path, gate: Gate, last: str, status: int) -> None:
    """A task that is split while it runs is closed when its turn has ended, failed or not, and its subtasks are closed,
    in either order."""
    async with running_plan(tmp_path, plan_of(task("a", f"{HELD}; exit {status}"))) as plan:
        await plan.until("started", "r1#a")
        await plan.commands.split("a", (TaskConfig(id="a1", prompt="read _ < two"),), by=ME)
        if last == "its turn":
            await gate("two")
            await plan.until("closed", "r1#a1")
            await gate("one")
        else:
            await gate("one")
            await plan.until("execution_completed", "r1#a:run")
            await gate("two")
    assert plan.outcomes() == {"a": "completed", "a1": "completed"}
    assert plan.path("a") == ["OPEN", "CLAIMED", "IN_PROGRESS", "WAITING_FOR_SUBTASKS", "DONE", "CLOSED"]


async def test_a_task_is_split_between_two_attempts(tmp_path: Path, gate: Gate) -> None:
    """A split of a task during the retry delay replaces the next attempt: the task waits for its subtasks, and is not
    tried again."""
    waits = {**ONCE, "max_attempts": 2, "base_retry_delay": 1, "max_retry_delay": 1}
    tries = task("a", "echo a >> log; exit 1")
    async with running_plan(tmp_path, plan_of(tries, lifecycle=waits, limits=quick_settings().limits)) as plan:
        await plan.until("retry_decided", "r1#a:run")
        await plan.until("execution_failed", "r1#a:job")
        await plan.commands.split("a", (TaskConfig(id="a1", prompt="read _ < two"),), by=ME)
        await plan.until("retry_delay_elapsed", "r1#a:job")
        await gate("two")
    assert plan.outcomes() == {"a": "completed", "a1": "completed"}
    assert (tmp_path / "log").read_text().split() == ["a"]


async def test_a_plan_without_retries_retries_nothing(tmp_path: Path) -> None:
    """With an empty retry budget of the plan a failed task run is not retried, though it has attempts left."""
    tries = {**ONCE, "max_attempts": 3}
    none = {"retry_budget": {"share": 0.0, "least": 0}, "limits": quick_settings().limits}
    async with running_plan(tmp_path, plan_of(task("a", "echo a >> log; exit 1"), lifecycle=tries, **none)) as plan:
        pass
    assert plan.outcomes() == {"a": "failed"}
    assert (tmp_path / "log").read_text().split() == ["a"]
    (opened,) = [one for one in plan.run.events() if one.event == "circuit_opened"]
    assert "retry budget is spent (0 of 0 retries)" in opened.reason


async def test_a_dead_letter_names_the_spent_retry_budget(tmp_path: Path) -> None:
    """When the plan's retry budget is used up, the dead letter of a task with retries left says so."""
    none = {"retry_budget": {"share": 0.0, "least": 0}}
    tasks = [task("a", "exit 1", max_retries=2, fallback_agents=["other"])]
    async with running_plan(tmp_path, plan_of(*tasks, **none)) as plan:
        pass
    (letter,) = [one for one in plan.run.events() if one.event == "DeadLettered"]
    assert "(no further try: the workstream's retry budget is spent (0 of 0 retries))" in letter.reason


async def test_a_merge_outlives_its_approver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The merge of an approved task is completed although the operator's call of ``approve`` is cancelled."""
    merging, go_on = anyio.Event(), anyio.Event()
    merge = Verification.merge

    async def slow(verification: Verification, *given: str, workstream: str) -> Merge:
        merging.set()
        await go_on.wait()
        return await merge(verification, *given, workstream=workstream)

    monkeypatch.setattr(Verification, "merge", slow)
    async with running_plan(tmp_path, plan_of(task("a", approval="after"))) as plan:
        await plan.until("approval_requested", "r1#a")
        async with anyio.create_task_group() as group:

            async def approve() -> None:
                await plan.commands.approve("a", by=ME)

            group.start_soon(approve)
            await merging.wait()
            group.cancel_scope.cancel()
            go_on.set()
    assert plan.path("a")[-2:] == ["PENDING_APPROVAL", "CLOSED"]


async def test_an_approved_task_is_merged_after_its_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is approved before the task's session has ended is merged after the end of the session."""
    plan, order = plan_of(task("a", approval="after")), list[str]()
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        runner, verification = PlanRunner(run.sup.core), run.sup.core.verification
        accept, merge = verification.accept, verification.merge

        async def accept_meanwhile(place: WorkspaceSpec) -> None:
            group.start_soon(approve)
            await wait_for_record(run.sup, "Commanded", "r1#a", outcome="fact")
            for _ in range(20):  # whatever it does by now, it has done
                await checkpoint()
            await accept(place)
            order.append("accepted")

        async def merge_then(*given: str, workstream: str) -> Merge:
            order.append("merged")
            return await merge(*given, workstream=workstream)

        async def approve() -> None:
            order.append((await runner.commands.approve("a", by=ME)).state)

        monkeypatch.setattr(verification, "accept", accept_meanwhile)
        monkeypatch.setattr(verification, "merge", merge_then)
        async with anyio.create_task_group() as group:
            result = await runner.run(plan)
    assert order == ["accepted", "merged", "CLOSED"]
    assert [one.outcome for one in result.tasks.values()] == ["completed"]


async def test_a_refused_cancel_causes_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancel of a task whose work is merged and not closed yet is refused, and no record of the closed task names the
    command as its cause."""
    plan = plan_of(task("a"))
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        runner, merge = PlanRunner(run.sup.core), run.sup.core.verification.merge

        async def cancel() -> None:
            with pytest.raises(Refused, match="came to its end"):
                await runner.commands.cancel("a", by=ME)

        async def merge_before(*given: Any, workstream: str) -> Merge:
            merged = await merge(*given, workstream=workstream)
            group.start_soon(cancel)
            with anyio.CancelScope(shield=True):  # behind the last safe point
                await wait_for_record(run.sup, "Commanded", "r1#a", outcome="fact")
                for _ in range(20):  # whatever it does by now, it has done
                    await checkpoint()
            return merged

        monkeypatch.setattr(run.sup.core.verification, "merge", merge_before)
        async with anyio.create_task_group() as group:
            result = await runner.run(plan)
    assert result.tasks["a"].outcome == "completed"
    command = next(one for one in run.events("r1#a") if one.event == "Commanded")
    assert [one.event for one in run.events() if one.cause_id == command.seq] == ["CommandRefused"]


async def test_a_cancel_during_the_tests_of_a_whole_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that was split and is cancelled while its whole is tested is cancelled at once."""
    plan, states = plan_of(task("a", subtasks=(task("b"),))), list[str]()
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        runner, inspect = PlanRunner(run.sup.core), run.sup.core.verification.inspect

        async def cancel() -> None:
            states.append((await runner.commands.cancel("a", by=ME)).state)

        async def inspect_meanwhile(name: str, *given: Any) -> Any:
            if name == "r1#a.whole":
                group.start_soon(cancel)
                await wait_for_record(run.sup, "Commanded", "r1#a", outcome="fact")
                for _ in range(20):  # whatever it does by now, it has done
                    await checkpoint()
            return await inspect(name, *given)

        monkeypatch.setattr(run.sup.core.verification, "inspect", inspect_meanwhile)
        async with anyio.create_task_group() as group:
            result = await runner.run(plan)
    assert states == ["CANCELLED"]
    assert {name: one.outcome for name, one in result.tasks.items()} == {"a": "aborted", "b": "completed"}


async def test_an_approval_is_given_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the work of an approved task is merged, another approval and a rejection are refused at once, and a cancel
    stops the merge; the approval is answered that the task was ended."""
    plan, answers = plan_of(task("a", approval="after")), dict[str, str]()
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        runner, merging = PlanRunner(run.sup.core), anyio.Event()

        async def merge_for_ever(*given: Any, workstream: str) -> Merge:
            merging.set()
            await anyio.sleep_forever()
            raise AssertionError

        async def give(name: str, command: Callable[..., Awaitable[CommandResult]], **more: str) -> None:
            try:
                answers[name] = (await command("a", by=ME, **more)).state
            except Refused as refusal:
                answers[name] = str(refusal)

        async def operate() -> None:
            await wait_for_record(run.sup, "approval_requested", "r1#a")
            group.start_soon(give, "approve", runner.commands.approve)
            await merging.wait()
            await give("again", runner.commands.approve)
            await give("reject", partial(runner.commands.reject, reason="no"))
            await give("cancel", runner.commands.cancel)

        monkeypatch.setattr(run.sup.core.verification, "merge", merge_for_ever)
        async with anyio.create_task_group() as group:
            group.start_soon(operate)
            result = await runner.run(plan)
    goes_on = "task 'a' is PENDING_APPROVAL, and is about to go on by itself; ask again"
    ended = "task 'a' was ended before its work was merged"
    assert answers == {"approve": ended, "again": goes_on, "reject": goes_on, "cancel": "CANCELLED"}
    assert result.tasks["a"].outcome == "aborted"


async def test_a_retry_after_the_last_task_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry after the last task has ended, while the workstream is exported, is refused."""
    said: list[str] = []

    async def concluding(*given: object) -> None:
        try:
            await plan.commands.retry("a", by=ME)
        except Refused as refusal:
            said.append(str(refusal))

    monkeypatch.setattr(runner, "export_workstream", concluding)
    async with running_plan(tmp_path, plan_of(task("a", "exit 1")), refused=True) as plan:
        pass
    assert plan.outcomes() == {"a": "failed"}
    assert said == ["the run of task 'a' has ended; run the plan again"]


async def test_a_plan_cancelled_in_its_validation_is_exported(tmp_path: Path) -> None:
    """When a plan is cancelled during its validation, its workstream export is written and ends with the state
    ``failed``."""
    plan = plan_of(task("a"), validation=[{"command": ["sleep", "1000"]}])
    async with open_supervisor(tmp_path / ".sdd", settings=plan.settings, agents=plan.agents, workdir=tmp_path) as sup:
        async with anyio.create_task_group() as group:
            group.start_soon(PlanRunner(sup.core).run, plan)
            await wait_for_record(sup, "all_tasks_completed", "r1")
            group.cancel_scope.cancel()
    dossier = tmp_path / ".sdd" / "archive" / "r1.jsonl"
    kept = [json.loads(line) for line in dossier.read_text().splitlines()]
    assert [one["to_status"] for one in kept if one["entity_type"] == "workstream"][-1] == "failed"


async def test_a_plan_cancelled_before_its_export_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workstream export of a completed plan is written although the host is cancelled just before."""
    export_workstream, scope = runner.export_workstream, anyio.CancelScope()

    async def given_up_first(*given: Any) -> None:
        scope.cancel()
        await checkpoint()
        await export_workstream(*given)

    monkeypatch.setattr(runner, "export_workstream", given_up_first)
    plan = plan_of(task("a"))
    async with open_supervisor(tmp_path / ".sdd", settings=plan.settings, agents=plan.agents, workdir=tmp_path) as sup:
        with scope:
            await PlanRunner(sup.core).run(plan)
    dossier = tmp_path / ".sdd" / "archive" / "r1.jsonl"
    kept = [json.loads(line) for line in dossier.read_text().splitlines()]
    assert scope.cancelled_caught
    assert [one["to_status"] for one in kept if one["entity_type"] == "workstream"][-1] == "completed"


async def test_an_invalid_split_changes_nothing(tmp_path: Path, gate: Gate) -> None:
    """A split with an id that is in use, and a split of a closed task, are refused without an effect on the started
    task."""
    async with running_plan(tmp_path, plan_of(task("a", HELD), task("z")), refused=True) as plan:
        await plan.until("started", "r1#a")
        await plan.until("closed", "r1#z")
        with pytest.raises(Refused, match="'a' is not split: a was in this run before; use other ids"):
            await plan.commands.split("a", (TaskConfig(id="a"),), by=ME, command_id="c")
        with pytest.raises(Refused, match=r"has ended \(CLOSED\): no command changes it"):
            await plan.commands.split("z", (TaskConfig(id="z1"),), by=ME)
        await plan.commands.split("a", (TaskConfig(id="a1"),), by=ME, command_id="c")
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "z": "completed", "a1": "completed"}


async def test_subtasks_of_a_cancelled_task_are_cancelled(tmp_path: Path, gate: Gate) -> None:
    """A cancel of a task cancels its subtasks, started or waiting."""
    whole = task("a", subtasks=(task("a1", HELD), task("a2", "true", "a1")))
    async with running_plan(tmp_path, plan_of(whole, task("b"))) as plan:
        await plan.until("started", "r1#a1")
        await plan.commands.cancel("a", by=ME)
    assert plan.outcomes() == {"a": "aborted", "a1": "cancelled", "a2": "cancelled", "b": "completed"}


async def test_a_session_that_lost_its_task_does_not_hold_it(tmp_path: Path, gate: Gate) -> None:
    """An obstacle in the workspace of a session is recorded of its task until the task is requeued: from then on until
    the session has ended, and while another session has the task, only of the session."""
    obstacle = HeldBy(what="a lock", fix="remove it")
    async with running_plan(tmp_path, plan_of(task("a", f"test -e done || {HELD}"))) as plan:
        await plan.until("started", "r1#a")
        former = plan.run.sup.core.registry.sessions["a"].assigned_task
        of_task = plan.run.sup.core.registry.entity("r1#a")
        assert former is not None
        former.note_obstacle(obstacle)
        assert of_task.data.held_by == obstacle
        former.note_obstacle(None)
        assert of_task.data.held_by is None
        former.note_obstacle(obstacle)
        await plan.commands.requeue("a", by=ME)
        former.note_obstacle(obstacle)
        assert (of_task.state, of_task.data.held_by) == (Task.OPEN, None)
        await plan.until("started", "r1#a", number=2)
        former.note_obstacle(obstacle)
        assert of_task.data.held_by is None
        await gate("one")
    assert plan.outcomes() == {"a": "completed"}


# ----------------------------------------------------------------------------------------------------------- blocked
async def test_a_blocked_task_waits_for_another_one(tmp_path: Path, gate: Gate) -> None:
    """A blocked task releases its slot, the failure is not charged, and the task goes on when the other task is
    closed."""
    tasks = (task("a", f"test -e done || {HELD}"), task("b", "read _ < two; touch done"))
    async with running_plan(tmp_path, plan_of(*tasks, max_sessions=1)) as plan:
        await plan.until("started", "r1#a")
        assert (await plan.commands.block("a", ["b"], by=ME, reason="needs b")).state == "BLOCKED"
        await plan.until("started", "r1#b")
        await gate("two")
    assert plan.outcomes() == {"a": "completed", "b": "completed"}
    path = ["OPEN", "CLAIMED", "IN_PROGRESS", "BLOCKED", "OPEN", "CLAIMED", "IN_PROGRESS", "DONE", "CLOSED"]
    assert plan.path("a") == path
    (blocked,) = plan.run.transitions("blocked", "r1#a")
    assert (blocked.metadata["on"], blocked.reason) == (["r1#b"], "blocked by operator:me: needs b")
    (failed,) = plan.run.transitions("execution_failed", "r1#a:run")
    assert failed.metadata["charged"] is False


async def test_a_task_that_waits_for_a_person_keeps_the_run(tmp_path: Path, gate: Gate) -> None:
    """When a task is blocked on a person, the run waits, reports the wait once, and goes on after ``unblock``; a block
    in a circle, a block on nothing and an unblock of a running task are refused."""
    tasks = (task("a", f"test -e done || {HELD}"), task("b", "true", "a"))
    async with running_plan(tmp_path, plan_of(*tasks), refused=True) as plan:
        await plan.until("started", "r1#a")
        with pytest.raises(Refused, match="'b', which waits for it"):
            await plan.commands.block("a", ["b"], by=ME)
        with pytest.raises(Refused, match="blocked on nothing"):
            await plan.commands.block("a", [], by=ME)
        with pytest.raises(Refused, match="is IN_PROGRESS: unblock is not possible now, only "):
            await plan.commands.unblock("a", by=ME)
        await plan.commands.block("a", ["the key"], by=ME, command_id="c")
        await plan.until("WaitsForPerson", "r1#a", outcome="fact")
        assert (await plan.commands.block("a", ["the key"], by=ME, command_id="c")).repeated
        (tmp_path / "done").touch()
        assert (await plan.commands.unblock("a", by=ME, reason="it is there")).state == "OPEN"
    assert plan.outcomes() == {"a": "completed", "b": "completed"}
    assert len([one for one in plan.run.events() if one.event == "WaitsForPerson"]) == 1


PROBED: dict[str, Any] = {
    **QUICK,
    "max_attempts": 3,
    "circuit_breaker": {"enabled": True, "cooldown_period": 0.5, "probes_max": 2, "max_error_repeats": 0},
}


def patient(*tasks: TaskConfig, **more: Any) -> Plan:
    """Return a plan whose sessions retry as often as the task runs allow."""
    return plan_of(*tasks, limits=quick_settings(max_total_errors=9, max_consecutive_errors=9).limits, **more)


async def test_a_second_wait_does_not_shorten_later_cool_downs(tmp_path: Path) -> None:
    """After a task was blocked and unblocked during a cool-down, the next cool-down of its circuit has the full
    length."""
    tasks = (task("a", **SILENT), task("b", "sleep 0.2"))
    async with running_plan(tmp_path, patient(*tasks, lifecycle=PROBED)) as plan:
        await plan.until("execution_failed", "r1#a:job")
        await plan.commands.block("a", ["b"], by=ME)
    opened = [one.monotonic_s for one in plan.run.events() if one.to_status == "CIRCUIT_OPEN" != one.from_status]
    cooled = [one.monotonic_s for one in plan.run.transitions("cooldown_expired", "r1#a:run")]
    assert len(cooled) == 2
    assert all(end - begin >= 0.5 for begin, end in zip(opened, cooled, strict=False))
    assert plan.outcomes() == {"a": "failed", "b": "completed"}


async def test_a_requeued_last_probe_gets_another_task_run(tmp_path: Path) -> None:
    """When the last probe of a task run is requeued, the attempt is not charged, and the task gets another task run."""
    lifecycle = {**PROBED, "circuit_breaker": {**PROBED["circuit_breaker"], "cooldown_period": 0.1, "probes_max": 1}}
    async with running_plan(tmp_path, patient(task("a", **SILENT), lifecycle=lifecycle)) as plan:
        await plan.until("probe_started", "r1#a:run")
        (tmp_path / "done").touch()
        await plan.commands.requeue("a", by=ME)
    assert plan.outcomes() == {"a": "completed"}
    assert plan.run.transitions("tests_passed", "r1#a:run-2")


async def test_tasks_that_wait_for_each_other_lose_no_work(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If tasks wait for each other although each block was checked, the run waits for a person, and both are completed
    after one of them is unblocked."""
    monkeypatch.setattr(BlockedTasks, "check_wait", lambda *_: None)
    tasks = (task("a", f"test -e done || {HELD}"), task("b", "test -e done || read _ < two"))
    async with running_plan(tmp_path, plan_of(*tasks)) as plan:
        for name, other in (("a", "b"), ("b", "a")):
            await plan.until("started", f"r1#{name}")
            await plan.commands.block(name, [other], by=ME)
        for name, other in (("a", "b"), ("b", "a")):
            await plan.until("WaitsForPerson", f"r1#{name}", outcome="fact")
            (waits,) = [one for one in plan.run.events(f"r1#{name}") if one.event == "WaitsForPerson"]
            assert waits.reason.startswith(f"nothing else can go on; it waits for {other}, which waits for it")
        (tmp_path / "done").touch()
        assert (await plan.commands.unblock("a", by=ME)).state == "OPEN"
    assert plan.outcomes() == {"a": "completed", "b": "completed"}


async def test_a_task_blocked_on_a_failed_task_is_cancelled(tmp_path: Path, gate: Gate) -> None:
    """A task that is blocked on a task that failed ends as blocked when nothing else can go on."""
    tasks = (task("a", HELD), task("b", "read _ < two; exit 1"), task("c", "true", "a"))
    async with running_plan(tmp_path, plan_of(*tasks)) as plan:
        await plan.until("started", "r1#a")
        await plan.commands.block("a", ["b"], by=ME)
        await plan.until("started", "r1#b")
        await gate("two")
    assert plan.outcomes() == {"a": "blocked", "b": "failed", "c": "blocked"}
    assert plan.result.tasks["a"].error == "it was blocked on b, which did not complete"


async def test_a_stop_cancels_a_blocked_task(tmp_path: Path, gate: Gate) -> None:
    """A stop of the supervisor cancels a task that is blocked on a person."""
    async with running_plan(tmp_path, plan_of(task("a", HELD))) as plan:
        await plan.until("started", "r1#a")
        await plan.commands.block("a", ["the key"], by=ME)
        await plan.until("WaitsForPerson", "r1#a", outcome="fact")
        await plan.run.sup.stop()
    assert plan.outcomes() == {"a": "aborted"}


async def test_a_stop_cancels_unapproved_subtasks(tmp_path: Path, gate: Gate) -> None:
    """Subtasks that are split off during a drain and wait for an approval are cancelled, and so is their parent
    task."""
    async with running_plan(tmp_path, plan_of(task("a", HELD))) as plan:
        await plan.until("started", "r1#a")
        await plan.run.sup.stop()
        parts = (task("a1", approval="before"), task("a2", "true", "a1"))
        assert (await plan.commands.split("a", parts, by=ME)).state == "WAITING_FOR_SUBTASKS"
        await gate("one")
    assert plan.outcomes() == {"a": "blocked", "a1": "aborted", "a2": "blocked"}


async def test_a_stop_does_not_wait_for_a_provider(tmp_path: Path, gate: Gate) -> None:
    """During a drain a task that is queued for a failing provider is cancelled at once; a task whose subtasks are
    closed is closed at once."""
    scripted = {"agents": {**AGENTS, "s": AgentConfig(adapter="scripted")}}
    troubled = TaskConfig(id="a", agent="s", prompt="@trouble overloaded 529 6")
    queued = TaskConfig(id="b", agent="s", prompt="@say hello", depends_on=("a",))
    whole = TaskConfig(id="c", agent="s", prompt="", subtasks=(task("c1", HELD),))
    async with running_plan(tmp_path, plan_of(troubled, queued, whole, **scripted)) as plan:
        await plan.until("ProviderBreaker", "r1#a", outcome="fact")
        await plan.until("scheduler_assigned", "r1#b:job")
        await gate("one")
        await plan.until("scheduler_assigned", "r1#c:job")
        await plan.run.sup.stop()
    assert plan.outcomes() == {"a": "completed", "b": "aborted", "c": "completed", "c1": "completed"}
    [breaker] = [one for one in plan.run.events() if one.event == "ProviderBreaker"]
    ends = [*plan.run.transitions("cancelled", "r1#b"), *plan.run.transitions("closed", "r1#c")]
    assert [one.monotonic_s < breaker.metadata["free_at_s"] for one in ends] == [True, True]


async def test_a_stop_cancels_queued_tasks(tmp_path: Path, gate: Gate) -> None:
    """A stop of the supervisor cancels queued tasks, even while they have no slot."""
    queued = (task("b"), task("c"), task("d", "true", "c"))
    async with running_plan(tmp_path, plan_of(task("a", HELD, priority=1), *queued, max_sessions=1)) as plan:
        await plan.until("started", "r1#a")
        await plan.run.sup.stop()
        for name in ("b", "c"):
            await plan.until("cancelled", f"r1#{name}")
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "b": "aborted", "c": "aborted", "d": "blocked"}
    assert states_of(plan.run.events(), "r1#c:job") == ["pending", "queued", "cancelled"]


async def test_an_in_process_agent_blocks_its_own_task(tmp_path: Path) -> None:
    """``turn.block`` of an in-process agent ends the turn; another session continues the task when the other task is
    closed."""
    said: list[str] = []

    async def agent(turn: AgentTurn) -> None:
        said.append(turn.prompt.partition("\n")[0])
        if said[-1] == "a" and said.count("a") == 1:
            await turn.block(["b"], reason="b first")

    plan = plan_of(task("a", "a", priority=1), task("b", "b"), max_sessions=1)
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        profile = AgentProfile(name="sh", adapter="function", function=agent)
        run.sup.core.setups.configure({"sh": profile}, plan.settings)
        result = await PlanRunner(run.sup.core).run(plan)
    assert {name: one.outcome for name, one in result.tasks.items()} == {"a": "completed", "b": "completed"}
    assert [one for one in said if one] == ["a", "b", "a"]
    (blocked,) = run.transitions("blocked", "r1#a")
    assert blocked.reason == "blocked by agent of a: b first"


async def test_a_slow_subtask_blocks_its_parent(tmp_path: Path, gate: Gate) -> None:
    """A task whose subtasks take longer than its time-out is BLOCKED, and is closed when the subtasks are closed."""
    whole = task("a", subtasks=(task("a1", HELD), task("a2", "true", "a1")), timeout_s=0.05)
    async with running_plan(tmp_path, plan_of(whole)) as plan:
        await plan.until("subtask_timed_out", "r1#a")
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "a1": "completed", "a2": "completed"}
    assert plan.path("a")[:4] == ["OPEN", "WAITING_FOR_SUBTASKS", "BLOCKED", "OPEN"]
    assert plan.path("a")[-3:] == ["WAITING_FOR_SUBTASKS", "DONE", "CLOSED"]


async def test_a_task_is_not_blocked_on_its_own_subtask(tmp_path: Path, gate: Gate) -> None:
    """A block of a started task on its own closed subtask is refused, and the session of the task goes on."""
    accepted = [{"command": ["test", "-e", "whole"]}]
    subtasks = (task("a1"),)
    whole = task("a", f"{HELD}; touch whole", agent="reader", subtasks=subtasks, acceptance=accepted, max_retries=1)
    async with running_plan(tmp_path, plan_of(whole), refused=True) as plan:
        await plan.until("started", "r1#a")
        with pytest.raises(Refused, match="'a1', its own subtask"):
            await plan.commands.block("a", ["a1"], by=ME)
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "a1": "completed"}


# -------------------------------------------------------------------------------------------- an agent and its task
ASKS = f"{sys.executable} -m supervisor task split --json > told 2>&1 <<'END'\n- {{id: a1, prompt: touch made}}\nEND\n"


async def _with_socket(workdir: Path, plan: Plan) -> PlanResult:
    """Run *plan* on a supervisor with a state directory, and thus with a control socket."""
    with anyio.fail_after(60):
        async with open_supervisor(
            workdir / "state", agents=plan.agents, settings=plan.settings, workdir=workdir
        ) as sup:
            return await run_plan(sup, plan)


async def test_an_agent_splits_its_own_task(tmp_path: Path) -> None:
    """An agent of a task with ``may_split`` splits its own task with the command line, without naming the task; the
    record names the agent."""
    result = await _with_socket(tmp_path, plan_of(task("a", ASKS, may_split=True)))
    told = (tmp_path / "told").read_text()
    assert {name: one.outcome for name, one in result.tasks.items()} == {"a": "completed", "a1": "completed"}, told
    assert (tmp_path / "made").exists()
    with JournalReader(StateDir(tmp_path / "state").journal) as reader:
        (fact,) = [one for one in reader.events("r1#a") if one.event == "Commanded"]
    assert (fact.actor, fact.metadata["command"]) == ("agent of a", "split")


async def test_an_agent_without_may_split_gets_no_address(tmp_path: Path) -> None:
    """The process of an agent without ``may_split`` gets no variable that names the supervisor or the task, and the
    split command fails."""
    result = await _with_socket(tmp_path, plan_of(task("a", f"env > variables; {ASKS} true")))
    assert result.ok
    assert "SUPERVISOR_TASK" not in (tmp_path / "variables").read_text()
    assert "SUPERVISOR_STATE_DIR" not in (tmp_path / "variables").read_text()
    assert "TASK: missing; name the task to split" in (tmp_path / "told").read_text()


async def test_an_in_process_agent_splits_its_own_task(tmp_path: Path) -> None:
    """``turn.split`` of an in-process agent splits the agent's task; without ``may_split`` the split is refused."""
    said: list[str] = []

    async def agent(turn: AgentTurn) -> None:
        if turn.prompt:
            try:
                said.append((await turn.split([TaskConfig(id=f"{turn.prompt}1")])).state)
            except Refused as refusal:
                said.append(str(refusal))

    plan = plan_of(task("a", "a", may_split=True), task("b", "b"), max_sessions=1)
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        profile = AgentProfile(name="sh", adapter="function", function=agent)
        run.sup.core.setups.configure({"sh": profile}, plan.settings)
        result = await PlanRunner(run.sup.core).run(plan)
    assert {name: one.outcome for name, one in result.tasks.items()} == dict.fromkeys(("a", "b", "a1"), "completed")
    assert said[0] == "WAITING_FOR_SUBTASKS"
    assert "'b' has no task that it may split; set may_split: true" in said[1]
