"""Commands about work that is under way, on the real engine with real programs: what each does, and what it may not."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint

from actors.machine import Event
from supervisor.agents.protocols.inprocess import AgentTurn
from supervisor.control.server import serve_control
from supervisor.diagnostics.causal_trace import why
from supervisor.embedding.runtime import open_supervisor
from supervisor.host.verification import Janitor
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.task import Split
from supervisor.plans import AgentConfig, Plan, TaskConfig
from supervisor.plans.acceptance import AcceptanceTest
from supervisor.ports import Merge, WorkspaceSpec
from supervisor.runtime.entity import Refused
from supervisor.runtime.live_session import AgentProfile, NoSuchEntity
from supervisor.work import plan_runner as runner
from supervisor.work.plan_run import PlanRun
from supervisor.work.plan_runner import PlanRunner
from supervisor.work.results import PlanResult
from supervisor.work.task_commands import TaskCommands
from supervisor.work.task_execution import TaskExecution
from tests.support import Run, nothing_left, path_of, quick, supervising, until

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]

AGENTS = {
    "sh": AgentConfig(adapter="command", command=("sh", "-c", "{prompt}")),
    "other": AgentConfig(adapter="command", command=("sh", "-c", "{prompt}")),
}
BOUNDS = quick(max_total_errors=1, max_consecutive_errors=1)
ME = "operator:me"
QUICK: dict[str, Any] = {"base_retry_delay": 0, "max_retry_delay": 0, "jitter_percentage": 0}
ONCE: dict[str, Any] = {**QUICK, "max_attempts": 1, "circuit_breaker": {"enabled": False}}


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with nothing_left():
        yield


def task(name: str, prompt: str = "true", *depends_on: str, **more: Any) -> TaskConfig:
    return TaskConfig(id=name, agent="sh", prompt=prompt, depends_on=depends_on, **{"max_retries": 0, **more})


def plan_of(*tasks: TaskConfig, lifecycle: dict[str, Any] = ONCE, **more: Any) -> Plan:
    settings = {"limits": BOUNDS.limits, "policy": BOUNDS.policy, "drain_s": BOUNDS.drain_s}
    return Plan.model_validate({"agents": AGENTS, "tasks": tasks, "task_lifecycle": lifecycle, **settings, **more})


class Going:
    """A plan that runs, and what came of it in the end."""

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
        return path_of(self.run.events(), f"task:{name}")

    async def until(self, event: str, entity_id: str, **how: Any) -> None:
        await until(self.run.sup, event, entity_id, **how)


@asynccontextmanager
async def going(workdir: Path, plan: Plan, *, refused: bool = False) -> AsyncIterator[Going]:
    """Run *plan*; in the block it is under way, and after it it has ended."""
    async with supervising(workdir, settings=plan.settings, agents=plan.agents, refused=refused) as run:
        runner = PlanRunner(run.sup)
        under_way = Going(run, runner.commands)

        async def carry_out() -> None:
            under_way.results.append(await runner.run(plan))

        async with anyio.create_task_group() as group:
            group.start_soon(carry_out)
            yield under_way


@pytest.fixture
def gate(tmp_path: Path) -> Callable[[str], Awaitable[None]]:
    """Let go whoever waits at the gate of that name with ``HELD``."""
    for name in ("one", "two"):
        os.mkfifo(tmp_path / name)

    async def let_go(name: str) -> None:
        await anyio.to_thread.run_sync((tmp_path / name).write_text, "go\n")

    return let_go


Gate = Callable[[str], Awaitable[None]]
HELD = "read _ < one"


# -------------------------------------------------------------------------------------------------------- approvals
async def test_a_planned_task_waits_for_its_approval(tmp_path: Path) -> None:
    """It is born PLANNED and begun when it is approved, and the operator is the root of what follows."""
    async with going(tmp_path, plan_of(task("a", approval="before"), task("b", "true", "a"))) as plan:
        await plan.until("all_tasks_created", "workstream:plan")
        assert await plan.commands.planned() == ("a",)
        answer = await plan.commands.approve("a", by=ME, reason="go")
        assert (answer.entity_id, answer.state) == ("task:a", "OPEN")
    assert plan.outcomes() == {"a": "completed", "b": "completed"}
    assert plan.path("a") == ["PLANNED", "OPEN", "CLAIMED", "IN_PROGRESS", "DONE", "CLOSED"]
    (approved,) = plan.run.transitions("approved", "task:a")
    assert (approved.actor, approved.cause_id) == ("plan", answer.seq)
    root = why(plan.run.events(), "task:a").root
    assert root is not None
    assert (root.event, root.actor, root.reason) == ("Commanded", ME, "go")


async def test_who_commands_may_have_any_name(tmp_path: Path) -> None:
    """What UTF-8 cannot hold of it is escaped on record."""
    async with going(tmp_path, plan_of(task("a", approval="before"), task("b", approval="after"))) as plan:
        await plan.until("all_tasks_created", "workstream:plan")
        await plan.commands.approve("a", by="caf\udce9")
        await plan.until("approval_requested", "task:b")
        await plan.commands.approve("b", by="caf\udce9")
    assert plan.outcomes() == {"a": "completed", "b": "completed"}
    commanded = [one.actor for one in plan.run.events() if one.event == "Commanded"]
    assert commanded == [r"caf\udce9", r"caf\udce9"]


async def test_a_plan_can_be_approved_as_a_whole(tmp_path: Path) -> None:
    """With ``approve_plan`` every task waits; one that is rejected is cancelled, and what depends on it not begun."""
    tasks = (task("a"), task("b"), task("c", "true", "b"))
    async with going(tmp_path, plan_of(*tasks, approve_plan=True)) as plan:
        await plan.until("all_tasks_created", "workstream:plan")
        assert await plan.commands.planned() == ("a", "b", "c")
        assert (await plan.commands.reject("task:b", by=ME, reason="not now")).state == "CANCELLED"
        await plan.until("rejected", "task:c")
        await plan.commands.approve("a", by=ME)
    assert plan.outcomes() == {"a": "completed", "b": "aborted", "c": "blocked"}
    assert "rejected by operator:me: not now" in plan.result.tasks["b"].error


async def test_a_result_waits_for_its_approval(tmp_path: Path) -> None:
    """What is done is closed when it was approved, and others go on meanwhile."""
    async with going(tmp_path, plan_of(task("a", approval="after"), task("b"), task("c", "true", "a"))) as plan:
        await plan.until("approval_requested", "task:a")
        await plan.until("closed", "task:b")
        answer = await plan.commands.approve("a", by=ME)
        assert answer.state == "CLOSED"
    assert plan.outcomes() == {"a": "completed", "b": "completed", "c": "completed"}
    (granted,) = plan.run.transitions("approval_granted", "task:a")
    assert (granted.metadata["by"], granted.cause_id) == (ME, answer.seq)


async def test_a_result_that_is_rejected_is_tried_again(tmp_path: Path) -> None:
    """The task has failed with the reason, and is claimed anew within its retries."""
    async with going(tmp_path, plan_of(task("a", approval="after", max_retries=1))) as plan:
        await plan.until("approval_requested", "task:a")
        assert (await plan.commands.reject("a", by=ME, reason="no tests")).state == "FAILED"
        await plan.until("approval_requested", "task:a", number=2)
        await plan.commands.approve("a", by=ME)
    assert plan.outcomes() == {"a": "completed"}
    states = plan.path("a")
    assert states[states.index("PENDING_APPROVAL") :][:3] == ["PENDING_APPROVAL", "FAILED", "OPEN"]


async def test_a_command_with_an_id_takes_effect_once(tmp_path: Path, gate: Gate) -> None:
    """Given again it has the same answer; without the id, the table refuses it."""
    async with going(tmp_path, plan_of(task("a", approval="before"), task("b", HELD)), refused=True) as plan:
        first = await plan.commands.approve("a", by=ME, command_id="c")
        await plan.until("closed", "task:a")
        again = await plan.commands.approve("a", by=ME, command_id="c")
        assert (again.repeated, again.seq, again.state) == (True, first.seq, first.state)
        with pytest.raises(Refused, match="task: approved in CLOSED"):
            await plan.commands.approve("a", by=ME)
        await gate("one")
    assert len(plan.run.transitions("approved")) == 1


async def test_an_unknown_task_is_named(tmp_path: Path, gate: Gate) -> None:
    """Neither by its name nor by its id is it there."""
    async with going(tmp_path, plan_of(task("a", HELD))) as plan:
        with pytest.raises(NoSuchEntity, match="'z'"):
            await plan.commands.approve("z", by=ME)
        await gate("one")
    with pytest.raises((Refused, NoSuchEntity)):
        await plan.commands.cancel("a", by=ME)


# ------------------------------------------------------------------------------------------------------------ cancel
async def test_a_task_that_is_worked_on_is_cancelled(tmp_path: Path, gate: Gate) -> None:
    """Its session is ended, its run and job are cancelled, and what depends on it is not begun."""
    async with going(tmp_path, plan_of(task("a", HELD), task("b", "true", "a"), task("c"))) as plan:
        await plan.until("started", "task:a")
        assert (await plan.commands.cancel("a", by=ME, reason="no need")).state == "CANCELLED"
    assert plan.outcomes() == {"a": "aborted", "b": "blocked", "c": "completed"}
    assert path_of(plan.run.events(), "run:a")[-1] == "CANCELLED"
    assert path_of(plan.run.events(), "job:a")[-1] == "cancelled"


async def test_a_task_that_waits_is_cancelled(tmp_path: Path, gate: Gate) -> None:
    """One that nobody has begun, and one whose result waits for an approval."""
    tasks = (task("a", HELD), task("b", "true", "a"), task("c", approval="after"), task("d", approval="before"))
    async with going(tmp_path, plan_of(*tasks), refused=True) as plan:
        await plan.until("approval_requested", "task:c")
        await plan.commands.cancel("b", by=ME)
        await plan.commands.cancel("c", by=ME)
        with pytest.raises(Refused, match="task: cancelled in PLANNED; allowed here: approved, rejected"):
            await plan.commands.cancel("d", by=ME)
        await plan.commands.reject("d", by=ME, reason="x")
        with pytest.raises(Refused, match="task: cancelled in CANCELLED"):
            await plan.commands.cancel("b", by=ME)
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "b": "aborted", "c": "aborted", "d": "aborted"}


# --------------------------------------------------------------------------------------------------- requeue, unclaim
async def test_a_task_is_taken_from_its_session(tmp_path: Path, gate: Gate) -> None:
    """Its session is ended, it is open again, charged with nothing, and another session has it."""
    async with going(tmp_path, plan_of(task("a", f"echo x >> log; test -e done || {HELD}"))) as plan:
        await plan.until("started", "task:a")
        (tmp_path / "done").touch()
        assert (await plan.commands.requeue("a", by=ME, reason="too slow")).state == "OPEN"
    assert plan.outcomes() == {"a": "completed"}
    assert plan.path("a") == ["OPEN", "CLAIMED", "IN_PROGRESS", "OPEN", "CLAIMED", "IN_PROGRESS", "DONE", "CLOSED"]
    (requeued,) = plan.run.transitions("requeued", "task:a")
    assert requeued.reason == "taken away by operator:me: too slow"
    (failed,) = plan.run.transitions("execution_failed", "run:a")
    assert failed.metadata["charged"] is False


async def test_what_is_not_worked_on_cannot_be_taken_away(tmp_path: Path, gate: Gate) -> None:
    """A task that is open, or begun, or not, is refused in the words of its table."""
    async with going(tmp_path, plan_of(task("a", HELD), task("b", "true", "a")), refused=True) as plan:
        await plan.until("started", "task:a")
        with pytest.raises(Refused, match="task: requeued in OPEN"):
            await plan.commands.requeue("b", by=ME)
        with pytest.raises(Refused, match="task: unclaimed in IN_PROGRESS"):
            await plan.commands.unclaim("a", by=ME)
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "b": "completed"}


# ------------------------------------------------------------------------------------------------------------- reset
async def test_a_task_that_was_given_up_is_tried_afresh(tmp_path: Path, gate: Gate) -> None:
    """Its circuit is closed, its attempts are forgotten, and it is done after all."""
    async with going(tmp_path, plan_of(task("a", "test -e done"), task("b", HELD))) as plan:
        await plan.until("DeadLettered", "task:a", outcome="fact")
        (tmp_path / "done").touch()
        assert (await plan.commands.reset("a", by=ME, reason="mended")).state == "OPEN"
        await plan.until("closed", "task:a")
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "b": "completed"}
    assert plan.path("a")[2:5] == ["IN_PROGRESS", "FAILED", "OPEN"]
    (reset,) = plan.run.transitions("manual_reset", "run:a")
    assert reset.metadata["by"] == ME


async def test_a_circuit_that_cools_down_is_reset(tmp_path: Path, gate: Gate) -> None:
    """The task does not wait for the probe: it is tried at once."""
    lifecycle = {**QUICK, "max_attempts": 2, "circuit_breaker": {"max_error_repeats": 0, "cooldown_period": 3600}}
    tasks = (task("a", "test -e done"), task("b", HELD))
    async with going(tmp_path, plan_of(*tasks, lifecycle=lifecycle, limits=quick().limits)) as plan:
        await plan.until("execution_failed", "job:a")
        (tmp_path / "done").touch()
        assert (await plan.commands.reset("a", by=ME)).state == "PENDING"
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "b": "completed"}


async def test_a_circuit_that_was_reset_is_not_tried_by_a_supervisor_that_ends(tmp_path: Path) -> None:
    """Its worker has kept it meanwhile: the task has failed, and nothing of it looks as if it went on."""
    lifecycle = {**QUICK, "max_attempts": 1, "circuit_breaker": {"max_error_repeats": 0, "cooldown_period": 3600}}
    async with going(tmp_path, plan_of(task("a", "false"), lifecycle=lifecycle, limits=quick().limits)) as plan:
        await plan.until("retry_decided", "run:a")
        assert (await plan.commands.reset("a", by=ME)).state == "PENDING"
        await plan.run.sup.stop()
    assert plan.outcomes() == {"a": "failed"}
    assert plan.run.row("run:a").state == "CANCELLED"


OFTEN: dict[str, Any] = {
    **QUICK,
    "max_attempts": 3,
    "circuit_breaker": {"max_error_repeats": 1, "cooldown_period": 3600},
}
"""Its circuit opens at the second failure. A run that was reset then may fail as often again: its job may not."""


async def test_a_run_that_was_reset_waits_as_it_decides(tmp_path: Path, gate: Gate) -> None:
    """Its job has no retry left: it waits with its worker for its own delay, not for the circuit that was closed."""
    tasks = (task("a", "echo >> tries; test $(wc -l < tries) -eq 4"), task("b", HELD))
    async with going(tmp_path, plan_of(*tasks, lifecycle=OFTEN, limits=quick().limits)) as plan:
        await plan.until("retry_decided", "run:a", number=2)
        assert (await plan.commands.reset("a", by=ME)).state == "PENDING"
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "b": "completed"}


async def test_a_run_that_was_reset_does_not_wait_for_ever(tmp_path: Path, gate: Gate) -> None:
    """A supervisor that ends while it waits leaves no run of a task that has failed looking alive."""
    tasks = (task("a", "echo >> tries; false"), task("b", HELD))
    lifecycle = {**OFTEN, "base_retry_delay": 1, "max_retry_delay": 1}
    async with going(tmp_path, plan_of(*tasks, lifecycle=lifecycle, limits=quick().limits)) as plan:
        await plan.until("retry_decided", "run:a", number=2)
        await plan.commands.reset("a", by=ME)
        await plan.until("retry_decided", "run:a", number=3)
        await anyio.wait_all_tasks_blocked()  # it waits in its slot
        await plan.run.sup.stop()
        await gate("one")
    assert plan.outcomes()["a"] == "failed"
    assert path_of(plan.run.events(), "run:a")[-1] == "CIRCUIT_OPEN"


async def test_what_has_no_open_circuit_is_not_reset(tmp_path: Path, gate: Gate) -> None:
    """A run that is under way is refused in the words of its table."""
    async with going(tmp_path, plan_of(task("a", HELD)), refused=True) as plan:
        await plan.until("started", "task:a")
        with pytest.raises(Refused, match="run: manual_reset in IN_PROGRESS"):
            await plan.commands.reset("a", by=ME)
        await gate("one")


# ------------------------------------------------------------------------------------------------------------- split
async def test_an_open_task_is_split(tmp_path: Path, gate: Gate) -> None:
    """It is not worked on: its subtasks are, once what it waits for is there, and it is closed when they are."""
    async with going(tmp_path, plan_of(task("a", HELD), task("b", "echo b >> log", "a"))) as plan:
        await plan.until("started", "task:a")
        parts = (TaskConfig(id="b1", prompt="echo b1 >> log"), task("b2", "echo b2 >> log", "b1"))
        answer = await plan.commands.split("b", parts, by=ME)
        assert (answer.state, answer.subtasks) == ("WAITING_FOR_SUBTASKS", ("task:b1", "task:b2"))
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "b": "completed", "b1": "completed", "b2": "completed"}
    assert (tmp_path / "log").read_text().split() == ["b1", "b2"]
    assert plan.path("b") == ["OPEN", "WAITING_FOR_SUBTASKS", "DONE", "CLOSED"]
    (closed,), (begun,) = plan.run.transitions("closed", "task:a"), plan.run.transitions("claimed", "task:b1")
    assert closed.seq < begun.seq


async def test_a_part_of_what_is_not_begun_is_not_split(tmp_path: Path, gate: Gate) -> None:
    """Nobody knows yet whether its whole is wanted: its subtasks would begin before that is approved."""
    whole = task("b", approval="before", subtasks=[{"id": "b1", "agent": "sh", "prompt": "true"}])
    async with going(tmp_path, plan_of(task("a", HELD), whole), refused=True) as plan:
        await plan.until("started", "task:a")
        with pytest.raises(Refused, match="'b1' is a part of 'b', which is not begun; split it after that"):
            await plan.commands.split("b1", (task("b11", "true"),), by=ME)
        await plan.commands.approve("b", by=ME)
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "b": "completed", "b1": "completed"}


async def test_what_may_not_be_wanted_is_not_split(tmp_path: Path, gate: Gate) -> None:
    """Its condition is looked at when its moment has come: before that its subtasks would begin in spite of it."""
    maybe = task("b", "true", when={"task": "a", "is": "failed"})
    async with going(tmp_path, plan_of(task("a", HELD), maybe), refused=True) as plan:
        await plan.until("started", "task:a")
        with pytest.raises(Refused, match="'b' has a condition, and its moment is not there yet; split it after that"):
            await plan.commands.split("b", (task("b1", "true"),), by=ME)
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "b": "skipped"}


async def test_what_the_plan_splits_is_not_split_before_its_turn(tmp_path: Path, gate: Gate) -> None:
    """It waits for another task: the subtasks that the plan has for it would begin before that is done."""
    whole = task("b", "", "a", subtasks=[{"id": "b1", "agent": "sh", "prompt": "true"}])
    async with going(tmp_path, plan_of(task("a", HELD), whole), refused=True) as plan:
        await plan.until("started", "task:a")
        with pytest.raises(Refused, match="'b' has subtasks, and waits for 'a'; split it after that"):
            await plan.commands.split("b", (task("b2", "true"),), by=ME)
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "b": "completed", "b1": "completed"}


@pytest.mark.parametrize("last", ["its turn", "a subtask"])
@pytest.mark.parametrize("status", [0, 1])
async def test_a_task_is_split_while_it_is_worked_on(tmp_path: Path, gate: Gate, last: str, status: int) -> None:
    """The turn under way may end before its subtasks or after them, well or not: the task is closed after both."""
    async with going(tmp_path, plan_of(task("a", f"{HELD}; exit {status}"))) as plan:
        await plan.until("started", "task:a")
        await plan.commands.split("a", (TaskConfig(id="a1", prompt="read _ < two"),), by=ME)
        if last == "its turn":
            await gate("two")
            await plan.until("closed", "task:a1")
            await gate("one")
        else:
            await gate("one")
            await plan.until("execution_completed", "run:a")
            await gate("two")
    assert plan.outcomes() == {"a": "completed", "a1": "completed"}
    assert plan.path("a") == ["OPEN", "CLAIMED", "IN_PROGRESS", "WAITING_FOR_SUBTASKS", "DONE", "CLOSED"]


async def test_a_task_is_split_between_two_attempts(tmp_path: Path, gate: Gate) -> None:
    """What it waits for is over first; then its subtasks are waited for, and nobody tries it again."""
    waits = {**ONCE, "max_attempts": 2, "base_retry_delay": 1, "max_retry_delay": 1}
    tries = task("a", "echo a >> log; exit 1")
    async with going(tmp_path, plan_of(tries, lifecycle=waits, limits=quick().limits)) as plan:
        await plan.until("retry_decided", "run:a")
        await plan.until("execution_failed", "job:a")
        await plan.commands.split("a", (TaskConfig(id="a1", prompt="read _ < two"),), by=ME)
        await plan.until("retry_delay_elapsed", "job:a")
        await gate("two")
    assert plan.outcomes() == {"a": "completed", "a1": "completed"}
    assert (tmp_path / "log").read_text().split() == ["a"]


async def test_the_retries_of_a_plan_are_what_it_says(tmp_path: Path) -> None:
    """A plan without any tries nothing again, whatever its runs may."""
    tries = {**ONCE, "max_attempts": 3}
    none = {"retry_budget": {"share": 0.0, "least": 0}, "limits": quick().limits}
    async with going(tmp_path, plan_of(task("a", "echo a >> log; exit 1"), lifecycle=tries, **none)) as plan:
        pass
    assert plan.outcomes() == {"a": "failed"}
    assert (tmp_path / "log").read_text().split() == ["a"]
    (opened,) = [one for one in plan.run.events() if one.event == "circuit_opened"]
    assert "retry budget is spent (0 of 0 retries)" in opened.reason


async def test_a_dead_letter_says_that_no_retry_was_left_to_spend(tmp_path: Path) -> None:
    """The task might have been claimed anew; its plan had nothing left for that."""
    none = {"retry_budget": {"share": 0.0, "least": 0}}
    async with going(tmp_path, plan_of(task("a", "exit 1", max_retries=2), **none)) as plan:
        pass
    (letter,) = [one for one in plan.run.events() if one.event == "DeadLettered"]
    assert "(no further try: the workstream's retry budget is spent (0 of 0 retries))" in letter.reason


async def test_a_split_that_comes_too_late_leaves_nothing_to_do(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task came to its end after its subtasks were born: they are skipped, and the run ends."""
    post = TaskExecution.post

    async def late(execution: TaskExecution, event: Event) -> None:
        if isinstance(event, Split):
            raise Refused("it is done")
        await post(execution, event)

    monkeypatch.setattr(TaskExecution, "post", late)
    async with going(tmp_path, plan_of(task("a", HELD)), refused=True) as plan:
        await plan.until("started", "task:a")
        with pytest.raises(Refused, match="it is done"):
            await plan.commands.split("a", (TaskConfig(id="a1"),), by=ME)
        with pytest.raises(Refused, match="a1 was in this run before; use other ids"):
            await plan.commands.split("a", (TaskConfig(id="a1"),), by=ME)
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "a1": "skipped"}


async def test_what_is_approved_is_merged_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if whoever approved it does not wait for that."""
    merging, go_on = anyio.Event(), anyio.Event()
    merge = Janitor.merge

    async def slow(janitor: Janitor, session_id: str, message: str, commit: str) -> Merge:
        merging.set()
        await go_on.wait()
        return await merge(janitor, session_id, message, commit)

    monkeypatch.setattr(Janitor, "merge", slow)
    async with going(tmp_path, plan_of(task("a", approval="after"))) as plan:
        await plan.until("approval_requested", "task:a")
        async with anyio.create_task_group() as group:

            async def approve() -> None:
                await plan.commands.approve("a", by=ME)

            group.start_soon(approve)
            await merging.wait()
            group.cancel_scope.cancel()
            go_on.set()
    assert plan.path("a")[-2:] == ["PENDING_APPROVAL", "CLOSED"]


async def test_what_is_approved_at_once_is_merged_when_it_is_let_go_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever carried it out is still about to end its session: it is not merged beside that."""
    plan, order = plan_of(task("a", approval="after")), list[str]()
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        runner, janitor = PlanRunner(run.sup), run.sup.janitor
        accept, merge = janitor.accept, janitor.merge

        async def accept_meanwhile(place: WorkspaceSpec) -> None:
            group.start_soon(approve)
            await until(run.sup, "Commanded", "task:a", outcome="fact")
            for _ in range(20):  # whatever it does by now, it has done
                await checkpoint()
            await accept(place)
            order.append("accepted")

        async def merge_then(session_id: str, message: str, commit: str) -> Merge:
            order.append("merged")
            return await merge(session_id, message, commit)

        async def approve() -> None:
            order.append((await runner.commands.approve("a", by=ME)).state)

        monkeypatch.setattr(janitor, "accept", accept_meanwhile)
        monkeypatch.setattr(janitor, "merge", merge_then)
        async with anyio.create_task_group() as group:
            result = await runner.run(plan)
    assert order == ["accepted", "merged", "CLOSED"]
    assert [one.outcome for one in result.tasks.values()] == ["completed"]


async def test_what_is_not_cancelled_is_not_caused_by_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its work is being checked, which is not interrupted: it is closed, by what went before, the cancel refused."""
    plan = plan_of(task("a"))
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        runner, check = PlanRunner(run.sup), run.sup.janitor.check

        async def cancel() -> None:
            with pytest.raises(Refused, match="came to its end"):
                await runner.commands.cancel("a", by=ME)

        async def check_meanwhile(session_id: str, tests: Sequence[AcceptanceTest]) -> str:
            group.start_soon(cancel)
            await until(run.sup, "Commanded", "task:a", outcome="fact")
            for _ in range(20):  # whatever it does by now, it has done
                await checkpoint()
            return await check(session_id, tests)

        monkeypatch.setattr(run.sup.janitor, "check", check_meanwhile)
        async with anyio.create_task_group() as group:
            await runner.run(plan)
    command = next(one for one in run.events("task:a") if one.event == "Commanded")
    assert [one.event for one in run.events() if one.cause_id == command.seq] == ["CommandRefused"]


async def test_nothing_is_reset_while_the_whole_is_concluded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every task is settled, and what is to be said of the run is being said."""
    said: list[str] = []

    async def concluding(plan_run: PlanRun) -> None:
        try:
            await plan.commands.reset("a", by=ME)
        except Refused as refusal:
            said.append(str(refusal))

    monkeypatch.setattr(runner, "export_workstream", concluding)
    async with going(tmp_path, plan_of(task("a", "exit 1")), refused=True) as plan:
        pass
    assert plan.outcomes() == {"a": "failed"}
    assert said == ["the run of task 'a' has ended; run the plan again"]


async def test_a_plan_that_fails_as_it_is_given_up_is_preserved(tmp_path: Path) -> None:
    """Its dossier has its last record, also where nobody waited for the validation of the whole."""
    plan = plan_of(task("a"), validation=[{"command": ["sleep", "1000"]}])
    async with open_supervisor(tmp_path / ".sdd", settings=plan.settings, agents=plan.agents, workdir=tmp_path) as sup:
        async with anyio.create_task_group() as group:
            group.start_soon(PlanRunner(sup).run, plan)
            await until(sup, "all_tasks_completed", "workstream:plan")
            group.cancel_scope.cancel()
    dossier = tmp_path / ".sdd" / "archive" / "workstream-plan.jsonl"
    kept = [json.loads(line) for line in dossier.read_text().splitlines()]
    assert [one["to_status"] for one in kept if one["entity_type"] == "workstream"][-1] == "failed"


async def test_a_plan_that_is_done_as_it_is_given_up_is_preserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has it run is cancelled just before its dossier is written: it is written all the same."""
    export_workstream, scope = runner.export_workstream, anyio.CancelScope()

    async def given_up_first(plan_run: PlanRun) -> None:
        scope.cancel()
        await checkpoint()
        await export_workstream(plan_run)

    monkeypatch.setattr(runner, "export_workstream", given_up_first)
    plan = plan_of(task("a"))
    async with open_supervisor(tmp_path / ".sdd", settings=plan.settings, agents=plan.agents, workdir=tmp_path) as sup:
        with scope:
            await PlanRunner(sup).run(plan)
    dossier = tmp_path / ".sdd" / "archive" / "workstream-plan.jsonl"
    kept = [json.loads(line) for line in dossier.read_text().splitlines()]
    assert scope.cancelled_caught
    assert [one["to_status"] for one in kept if one["entity_type"] == "workstream"][-1] == "completed"


async def test_subtasks_that_cannot_be_change_nothing(tmp_path: Path, gate: Gate) -> None:
    """An id that is taken is refused, and so is a split of what is over; the task goes on."""
    async with going(tmp_path, plan_of(task("a", HELD), task("z")), refused=True) as plan:
        await plan.until("started", "task:a")
        await plan.until("closed", "task:z")
        with pytest.raises(Refused, match="'a' is not split: a was in this run before; use other ids"):
            await plan.commands.split("a", (TaskConfig(id="a"),), by=ME, command_id="c")
        with pytest.raises(Refused, match="task: split in CLOSED"):
            await plan.commands.split("z", (TaskConfig(id="z1"),), by=ME)
        await plan.commands.split("a", (TaskConfig(id="a1"),), by=ME, command_id="c")
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "z": "completed", "a1": "completed"}


async def test_the_parts_of_a_cancelled_task_are_cancelled(tmp_path: Path, gate: Gate) -> None:
    """Nobody goes on with a part of what nobody wants."""
    whole = task("a", subtasks=(task("a1", HELD), task("a2", "true", "a1")))
    async with going(tmp_path, plan_of(whole, task("b"))) as plan:
        await plan.until("started", "task:a1")
        await plan.commands.cancel("a", by=ME)
    assert plan.outcomes() == {"a": "aborted", "a1": "aborted", "a2": "aborted", "b": "completed"}


# ----------------------------------------------------------------------------------------------------------- blocked
async def test_a_blocked_task_waits_for_another_one(tmp_path: Path, gate: Gate) -> None:
    """Its slot is free meanwhile, nothing is charged, and it goes on by itself when the other one is closed."""
    tasks = (task("a", f"test -e done || {HELD}"), task("b", "read _ < two; touch done"))
    async with going(tmp_path, plan_of(*tasks, max_sessions=1)) as plan:
        await plan.until("started", "task:a")
        assert (await plan.commands.block("a", ["b"], by=ME, reason="needs b")).state == "BLOCKED"
        await plan.until("started", "task:b")
        await gate("two")
    assert plan.outcomes() == {"a": "completed", "b": "completed"}
    path = ["OPEN", "CLAIMED", "IN_PROGRESS", "BLOCKED", "OPEN", "CLAIMED", "IN_PROGRESS", "DONE", "CLOSED"]
    assert plan.path("a") == path
    (blocked,) = plan.run.transitions("blocked", "task:a")
    assert (blocked.metadata["on"], blocked.reason) == (["task:b"], "blocked by operator:me: needs b")
    (failed,) = plan.run.transitions("execution_failed", "run:a")
    assert failed.metadata["charged"] is False


async def test_a_task_that_waits_for_a_person_keeps_the_run(tmp_path: Path, gate: Gate) -> None:
    """When nothing else can go on that is said, once; it goes on when somebody says so."""
    tasks = (task("a", f"test -e done || {HELD}"), task("b", "true", "a"))
    async with going(tmp_path, plan_of(*tasks), refused=True) as plan:
        await plan.until("started", "task:a")
        with pytest.raises(Refused, match="'b', which waits for it"):
            await plan.commands.block("a", ["b"], by=ME)
        with pytest.raises(Refused, match="blocked on nothing"):
            await plan.commands.block("a", [], by=ME)
        with pytest.raises(Refused, match="task: unblocked in IN_PROGRESS"):
            await plan.commands.unblock("a", by=ME)
        await plan.commands.block("a", ["the key"], by=ME, command_id="c")
        await plan.until("WaitsForPerson", "task:a", outcome="fact")
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
    """Its sessions do not give up: the runs of its tasks decide about another attempt."""
    return plan_of(*tasks, limits=quick(max_total_errors=9, max_consecutive_errors=9).limits, **more)


async def test_who_waits_twice_for_a_cool_down_shortens_no_later_one(tmp_path: Path) -> None:
    """A task that is blocked and let go on while it cools down is waited for twice; the next cool-down is as long."""
    async with going(tmp_path, patient(task("a", "exit 1"), task("b", "sleep 0.2"), lifecycle=PROBED)) as plan:
        await plan.until("execution_failed", "job:a")
        await plan.commands.block("a", ["b"], by=ME)
    opened = [one.monotonic_s for one in plan.run.events() if one.to_status == "CIRCUIT_OPEN" != one.from_status]
    cooled = [one.monotonic_s for one in plan.run.transitions("cooldown_expired", "run:a")]
    assert len(cooled) == 2
    assert all(end - begin >= 0.5 for begin, end in zip(opened, cooled, strict=False))
    assert plan.outcomes() == {"a": "failed", "b": "completed"}


async def test_a_last_probe_that_is_taken_away_begins_anew(tmp_path: Path) -> None:
    """It is charged with nothing: the task has another run, and the plan goes on."""
    lifecycle = {**PROBED, "circuit_breaker": {**PROBED["circuit_breaker"], "cooldown_period": 0.1, "probes_max": 1}}
    tries = f"test -e done && exit 0; test -e tried || {{ touch tried; exit 1; }}; {HELD}"
    async with going(tmp_path, patient(task("a", tries), lifecycle=lifecycle)) as plan:
        await plan.until("probe_started", "run:a")
        (tmp_path / "done").touch()
        await plan.commands.requeue("a", by=ME)
    assert plan.outcomes() == {"a": "completed"}
    assert plan.run.transitions("tests_passed", "run:a-2")


async def test_what_is_blocked_for_ever_is_cancelled(tmp_path: Path, gate: Gate) -> None:
    """Once nothing else can go on, for the task that did not complete; not before: that could be reset."""
    tasks = (task("a", HELD), task("b", "read _ < two; exit 1"), task("c", "true", "a"))
    async with going(tmp_path, plan_of(*tasks)) as plan:
        await plan.until("started", "task:a")
        await plan.commands.block("a", ["b"], by=ME)
        await plan.until("started", "task:b")
        await gate("two")
    assert plan.outcomes() == {"a": "aborted", "b": "failed", "c": "blocked"}
    assert plan.result.tasks["a"].error == "it was blocked on b, which did not complete"


async def test_tasks_that_are_blocked_on_each_other_are_cancelled(tmp_path: Path, gate: Gate) -> None:
    """Nobody else could end that."""
    async with going(tmp_path, plan_of(task("a", HELD), task("b", HELD))) as plan:
        await plan.until("started", "task:a")
        await plan.until("started", "task:b")
        await plan.commands.block("a", ["b"], by=ME)
        await plan.commands.block("b", ["task:a"], by=ME)
    assert plan.outcomes() == {"a": "aborted", "b": "aborted"}


async def test_a_supervisor_that_ends_does_not_wait_for_what_is_blocked(tmp_path: Path, gate: Gate) -> None:
    """The blocked task is cancelled."""
    async with going(tmp_path, plan_of(task("a", HELD))) as plan:
        await plan.until("started", "task:a")
        await plan.commands.block("a", ["the key"], by=ME)
        await plan.until("WaitsForPerson", "task:a", outcome="fact")
        await plan.run.sup.stop()
    assert plan.outcomes() == {"a": "aborted"}


async def test_a_supervisor_that_ends_does_not_wait_for_what_came_meanwhile(tmp_path: Path, gate: Gate) -> None:
    """What is split while it drains may have parts that wait for a person: they are cancelled, and so is the whole."""
    async with going(tmp_path, plan_of(task("a", HELD))) as plan:
        await plan.until("started", "task:a")
        await plan.run.sup.stop()
        parts = (task("a1", approval="before"), task("a2", "true", "a1"))
        assert (await plan.commands.split("a", parts, by=ME)).state == "WAITING_FOR_SUBTASKS"
        await gate("one")
    assert plan.outcomes() == {"a": "aborted", "a1": "aborted", "a2": "blocked"}


async def test_a_supervisor_that_ends_waits_for_no_provider(tmp_path: Path, gate: Gate) -> None:
    """One that turns everybody away holds up nobody: who is queued for it is cancelled, and a whole whose parts are
    closed, which asks it for nothing, is closed."""
    scripted = {"agents": {**AGENTS, "s": AgentConfig(adapter="scripted")}}
    troubled = TaskConfig(id="a", agent="s", prompt="@trouble overloaded 529 6")
    queued = TaskConfig(id="b", agent="s", prompt="@say hello", depends_on=("a",))
    whole = TaskConfig(id="c", agent="s", prompt="", subtasks=(task("c1", HELD),))
    async with going(tmp_path, plan_of(troubled, queued, whole, **scripted)) as plan:
        await plan.until("ProviderBreaker", "task:a", outcome="fact")
        await plan.until("scheduler_assigned", "job:b")
        await gate("one")
        await plan.until("scheduler_assigned", "job:c")
        await plan.run.sup.stop()
    assert plan.outcomes() == {"a": "completed", "b": "aborted", "c": "completed", "c1": "completed"}
    [breaker] = [one for one in plan.run.events() if one.event == "ProviderBreaker"]
    ends = [*plan.run.transitions("cancelled", "task:b"), *plan.run.transitions("closed", "task:c")]
    assert [one.monotonic_s < breaker.metadata["free_at_s"] for one in ends] == [True, True]


async def test_a_supervisor_that_ends_keeps_no_queue(tmp_path: Path, gate: Gate) -> None:
    """Who is queued needs no slot to be cancelled, nor waits for one: the only one is held."""
    queued = (task("b"), task("c"), task("d", "true", "c"))
    async with going(tmp_path, plan_of(task("a", HELD, priority=1), *queued, max_sessions=1)) as plan:
        await plan.until("started", "task:a")
        await plan.run.sup.stop()
        for name in ("b", "c"):
            await plan.until("cancelled", f"task:{name}")
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "b": "aborted", "c": "aborted", "d": "blocked"}
    assert path_of(plan.run.events(), "job:c") == ["pending", "queued", "cancelled"]


async def test_an_agent_in_the_process_blocks_its_own_task(tmp_path: Path) -> None:
    """Its turn is over with that; the next session goes on with it when the other task is closed."""
    said: list[str] = []

    async def agent(turn: AgentTurn) -> None:
        said.append(turn.prompt)
        if turn.prompt == "a" and said.count("a") == 1:
            await turn.block(["b"], reason="b first")

    plan = plan_of(task("a", "a", priority=1), task("b", "b"), max_sessions=1)
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        run.sup.configure({"sh": AgentProfile(name="sh", adapter="function", function=agent)}, plan.settings)
        result = await PlanRunner(run.sup).run(plan)
    assert {name: one.outcome for name, one in result.tasks.items()} == {"a": "completed", "b": "completed"}
    assert [one for one in said if one] == ["a", "b", "a"]
    (blocked,) = run.transitions("blocked", "task:a")
    assert blocked.reason == "blocked by agent of a: b first"


async def test_a_subtask_that_does_not_answer_blocks_its_parent(tmp_path: Path, gate: Gate) -> None:
    """After the parent's time-out; when the subtask is closed after all the parent is, too."""
    whole = task("a", subtasks=(task("a1", HELD), task("a2", "true", "a1")), timeout_s=0.05)
    async with going(tmp_path, plan_of(whole)) as plan:
        await plan.until("subtask_timed_out", "task:a")
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "a1": "completed", "a2": "completed"}
    assert plan.path("a")[:4] == ["OPEN", "WAITING_FOR_SUBTASKS", "BLOCKED", "OPEN"]
    assert plan.path("a")[-3:] == ["WAITING_FOR_SUBTASKS", "DONE", "CLOSED"]


async def test_a_task_does_not_wait_for_its_own_subtasks_while_it_is_worked_on(tmp_path: Path, gate: Gate) -> None:
    """They were settled before: there is nothing to wait for, and its session goes on."""
    accepted = [{"command": ["test", "-e", "whole"]}]
    whole = task("a", f"{HELD}; touch whole", subtasks=(task("a1"),), acceptance=accepted, max_retries=1)
    async with going(tmp_path, plan_of(whole), refused=True) as plan:
        await plan.until("started", "task:a")
        with pytest.raises(Refused, match="'a1', its own subtask"):
            await plan.commands.block("a", ["a1"], by=ME)
        await gate("one")
    assert plan.outcomes() == {"a": "completed", "a1": "completed"}


# -------------------------------------------------------------------------------------------- an agent and its task
ASKS = f"{sys.executable} -m supervisor task split --json > told 2>&1 <<'END'\n- {{id: a1, prompt: touch made}}\nEND\n"


async def _with_socket(workdir: Path, plan: Plan) -> PlanResult:
    """Run *plan* with its socket, as ``supervisor run`` does."""
    state, closing = StateDir(workdir / "state"), anyio.Event()
    with anyio.fail_after(60):
        async with (
            anyio.create_task_group() as group,
            open_supervisor(workdir / "state", agents=plan.agents, settings=plan.settings, workdir=workdir) as sup,
        ):
            runner = PlanRunner(sup)

            async def serve(*, task_status: anyio.abc.TaskStatus[None]) -> None:
                path, work = state.control_socket, runner.commands
                await serve_control(path, sup, closing=closing, work=work, task_status=task_status)

            await group.start(serve)
            result = await runner.run(plan)
            closing.set()
    return result


async def test_an_agent_splits_its_own_task(tmp_path: Path) -> None:
    """Where the plan lets it, its process knows where to ask and for which task; the record names it."""
    result = await _with_socket(tmp_path, plan_of(task("a", ASKS, may_split=True)))
    told = (tmp_path / "told").read_text()
    assert {name: one.outcome for name, one in result.tasks.items()} == {"a": "completed", "a1": "completed"}, told
    assert (tmp_path / "made").exists()
    with JournalReader(StateDir(tmp_path / "state").journal) as reader:
        (fact,) = [one for one in reader.events("task:a") if one.event == "Commanded"]
    assert (fact.actor, fact.metadata["command"]) == ("agent of a", "split")


async def test_other_agents_are_told_nothing_of_us(tmp_path: Path) -> None:
    """Without ``may_split`` no variable says where the supervisor is, and there is nothing to split."""
    result = await _with_socket(tmp_path, plan_of(task("a", f"env > variables; {ASKS} true")))
    assert result.ok
    assert "SUPERVISOR_TASK" not in (tmp_path / "variables").read_text()
    assert "SUPERVISOR_STATE_DIR" not in (tmp_path / "variables").read_text()
    assert "TASK: none is named" in (tmp_path / "told").read_text()


async def test_an_agent_in_the_process_splits_its_own_task(tmp_path: Path) -> None:
    """By its turn; one whose plan does not let it is refused."""
    said: list[str] = []

    async def agent(turn: AgentTurn) -> None:
        if turn.prompt:
            try:
                said.append((await turn.split([TaskConfig(id=f"{turn.prompt}1")])).state)
            except Refused as refusal:
                said.append(str(refusal))

    plan = plan_of(task("a", "a", may_split=True), task("b", "b"), max_sessions=1)
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        run.sup.configure({"sh": AgentProfile(name="sh", adapter="function", function=agent)}, plan.settings)
        result = await PlanRunner(run.sup).run(plan)
    assert {name: one.outcome for name, one in result.tasks.items()} == dict.fromkeys(("a", "b", "a1"), "completed")
    assert said[0] == "WAITING_FOR_SUBTASKS"
    assert "'b' has no task that it may split; set may_split in the plan" in said[1]
