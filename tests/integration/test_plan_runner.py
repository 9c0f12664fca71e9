"""Runs of plans: the order of tasks, the number of sessions at the same time, and the effect of a failed task on other
tasks."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from supervisor.lifecycles.types import AbortScope
from supervisor.plans import AgentConfig, CircuitBreakerConfig, Plan, TaskConfig, TaskLifecycle
from supervisor.plans.tasks import ConditionConfig
from supervisor.work.plan_handle import run_plan
from supervisor.work.results import PlanResult
from tests.support import Run, quick_settings, start_call, states_of, supervising, wait_for_record

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]

AGENTS = {
    "sh": AgentConfig(adapter="command", command=("sh", "-c", "{prompt}")),
    "scripted": AgentConfig(adapter="scripted"),
    "ghost": AgentConfig(adapter="command", command=("/no/such/program",)),
}
BOUNDS = quick_settings(max_total_errors=1, max_consecutive_errors=1)


READY = "all_tasks_created"
ONCE = TaskLifecycle(max_attempts=1, circuit_breaker=CircuitBreakerConfig(enabled=False))
"""Task settings with which a failed task is not retried."""


def task(
    name: str, prompt: str = "true", *depends_on: str, agent: str = "sh", when: ConditionConfig | None = None
) -> TaskConfig:
    return TaskConfig(id=name, agent=agent, prompt=prompt, depends_on=depends_on, max_retries=0, when=when)


def plan_of(*tasks: TaskConfig, max_sessions: int = 6) -> Plan:
    return Plan(
        agents=AGENTS,
        tasks=tasks,
        max_sessions=max_sessions,
        limits=BOUNDS.limits,
        policy=BOUNDS.policy,
        task_lifecycle=ONCE,
    )


async def carried_out(workdir: Path, plan: Plan) -> tuple[PlanResult, Run]:
    async with supervising(workdir, settings=plan.settings, agents=plan.agents) as run:
        result = await run_plan(run.sup, plan)
    return result, run


def outcomes(result: PlanResult) -> dict[str, str]:
    return {name: one.outcome for name, one in result.tasks.items()}


async def test_an_expected_file_must_be_in_the_agents_directory(tmp_path: Path) -> None:
    """The condition ``file_exists`` of a task is not met by a file outside of the agent's directory, also not through a
    link, nor by a name that is too long; the task is skipped."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "outside").touch()
    (tmp_path / "sub" / "inside").touch()
    (tmp_path / "sub" / "link").symlink_to(tmp_path)
    wanted = {"a": "inside", "b": "outside", "c": "link/outside", "d": "x" * 5_000}
    plan = plan_of(*(task(name, when=ConditionConfig(file_exists=file)) for name, file in wanted.items()))
    agents = {"sh": AgentConfig(adapter="command", command=("sh", "-c", "{prompt}"), cwd="sub")}
    result, _ = await carried_out(tmp_path, plan.model_copy(update={"agents": agents}))
    assert outcomes(result) == {"a": "completed", "b": "skipped", "c": "skipped", "d": "skipped"}


async def test_tasks_wait_for_those_they_depend_on(tmp_path: Path) -> None:
    """In a plan where b and c depend on a, and d on both, no task starts before its dependencies are closed, and each
    task passes through the states of the spec."""
    plan = plan_of(
        task("d", "echo d >> log", "b", "c"),
        task("b", "echo b >> log", "a"),
        task("c", "echo c >> log", "a"),
        task("a", "echo a >> log"),
    )
    result, run = await carried_out(tmp_path, plan)
    assert result.ok
    assert list(outcomes(result)) == ["d", "b", "c", "a"]
    log = (tmp_path / "log").read_text().split()
    assert (log[0], sorted(log[1:3]), log[3:]) == ("a", ["b", "c"], ["d"])
    born = {one.entity_id: one.seq for one in run.events() if one.event == "Born"}
    closed = {one.entity_id: one.seq for one in run.events() if one.to_status == "CLOSED"}
    for name, needed in (("b", "a"), ("c", "a"), ("d", "b"), ("d", "c")):
        assert closed[f"r1#{needed}"] < born[name]
    assert states_of(run.events(), "r1#a") == ["OPEN", "CLAIMED", "IN_PROGRESS", "DONE", "CLOSED"]
    claimed_s = {one.entity_id: one.monotonic_s for one in run.events() if one.to_status == "CLAIMED"}
    waited_s = claimed_s["r1#d"] - claimed_s["r1#a"]
    all_s = run.events()[-1].monotonic_s - claimed_s["r1#a"]
    assert 0 < result.tasks["d"].took_s < all_s - waited_s / 2  # the wait for dependencies does not count


async def test_no_more_sessions_than_allowed(tmp_path: Path) -> None:
    """With ``max_sessions: 2`` no more than two of seven tasks run at the same time, and all complete."""
    plan = plan_of(*(task(f"t{number}", "@run true", agent="scripted") for number in range(7)), max_sessions=2)
    result, run = await carried_out(tmp_path, plan)
    assert result.ok
    alive, most = 0, 0
    for one in run.events():
        if one.entity_type == "session":
            alive += (one.event == "Born") - (one.event == "Ended")
            most = max(most, alive)
    assert (alive, most) == (0, 2)


async def test_a_failed_task_blocks_its_dependents(tmp_path: Path) -> None:
    """Tasks that depend on a failed task, directly or indirectly, are never started; the other tasks complete."""
    plan = plan_of(
        task("bad", "echo trouble; exit 3"),
        task("next", "touch next", "bad"),
        task("last", "touch last", "next", "good"),
        task("good", "touch good"),
    )
    result, run = await carried_out(tmp_path, plan)
    assert not result.ok
    assert outcomes(result) == {"bad": "failed", "next": "blocked", "last": "blocked", "good": "completed"}
    assert "exit status 3" in result.tasks["bad"].error
    assert result.tasks["next"].error == "it depends on bad, which did not complete"
    assert (result.tasks["next"].session_id, result.tasks["bad"].session_id) == ("", "bad")
    assert result.tasks["next"].took_s == 0
    assert [one.name for one in tmp_path.iterdir()] == ["good"]
    assert states_of(run.events(), "r1#bad")[-1] == "FAILED"
    assert states_of(run.events(), "r1#next") == ["OPEN", "CANCELLED"]
    assert {one.id for one in run.store.entities.values() if one.kind == "session"} == {"bad", "good"}


async def test_a_program_that_is_missing_fails_its_task(tmp_path: Path) -> None:
    """A task whose agent's program does not exist fails without having been in the state IN_PROGRESS."""
    result, run = await carried_out(tmp_path, plan_of(task("lost", agent="ghost")))
    assert outcomes(result) == {"lost": "failed"}
    assert "/no/such/program" in result.tasks["lost"].error
    assert states_of(run.events(), "r1#lost") == ["OPEN", "CLAIMED", "FAILED"]


async def test_an_aborted_task(tmp_path: Path) -> None:
    """A task whose session is aborted is cancelled with the reason of the abort, and its dependents are blocked."""
    plan = plan_of(
        task("long", "@run sleep 1000", agent="scripted"),
        task("after", "true", "long"),
        task("other", "@wait go", agent="scripted"),
    )
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        async with anyio.create_task_group() as group:
            results = start_call(group, run_plan, run.sup, plan)
            await wait_for_record(run.sup, "tool_started", "long:t1")
            receipt = await run.sup.abort("long", AbortScope.SESSION, reason="too long")
            assert receipt.survivors == 0
            (tmp_path / "go").touch()
    assert outcomes(results[0]) == {"long": "aborted", "after": "blocked", "other": "completed"}
    assert results[0].tasks["long"].error == "too long"
    assert states_of(run.events(), "r1#long") == ["OPEN", "CLAIMED", "IN_PROGRESS", "CANCELLED"]


async def test_a_plan_on_a_supervisor_that_stops(tmp_path: Path) -> None:
    """After a stop the running tasks are finished, and no other task is started."""
    plan = plan_of(task("one", "@wait go", agent="scripted"), task("two", "touch two", "one"), max_sessions=1)
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        async with anyio.create_task_group() as group:
            results = start_call(group, run_plan, run.sup, plan)
            await wait_for_record(run.sup, "SessionStarted", "one")
            await run.sup.stop()
            (tmp_path / "go").touch()
    assert outcomes(results[0]) == {"one": "completed", "two": "aborted"}
    assert "the supervisor is ending" in results[0].tasks["two"].error


async def test_a_second_run_of_a_plan_has_new_ids(tmp_path: Path) -> None:
    """The tasks and sessions of a second run of the same plan get ids with a number at the end."""
    plan = plan_of(task("t", "true"))
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        first, second = await run_plan(run.sup, plan), await run_plan(run.sup, plan)
    assert (first.tasks["t"].session_id, second.tasks["t"].session_id) == ("t", "t-2")
    assert states_of(run.events(), "r2#t")[-1] == "CLOSED"


@pytest.mark.parametrize("approval", ["before", "after"])
async def test_a_stop_cancels_unapproved_tasks(tmp_path: Path, approval: str) -> None:
    """A task that waits for its approval, before or after its work, is cancelled when the supervisor is stopped."""
    wanted = TaskConfig(id="t", agent="sh", prompt="true", approval=approval)
    plan = plan_of(wanted)
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        async with anyio.create_task_group() as group:
            results = start_call(group, run_plan, run.sup, plan)
            # the workstream is ready once its tasks are there; a result waits when its task says so
            event, who = ("approval_requested", "r1#t") if approval == "after" else (READY, "r1")
            await wait_for_record(run.sup, event, who)
            await run.sup.stop()
    assert outcomes(results[0]) == {"t": "aborted"}
    assert states_of(run.events(), "r1#t")[-1] == "CANCELLED"
