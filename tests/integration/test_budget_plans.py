"""Budgets of plans: workstreams and tasks as budget scopes, the checks of `plan check`, budgets after a crash."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import anyio
import pytest

from supervisor.journal.memory import MemoryStore
from supervisor.plans import AgentConfig, BudgetConfig, Plan, RecoveryConfig, TaskConfig, load_plan
from supervisor.plans.source import BadPlan
from supervisor.policies.budgets import Amounts, Budget
from supervisor.work.budgeting import narrowings
from supervisor.work.plan_handle import run_plan
from tests.support import check_records, quick_settings, send_prompt, supervising, taking_over, wait_for_record
from tests.verification.checkers.leaks import counted

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]

AGENTS = {"a": AgentConfig(adapter="scripted")}
QUICK = quick_settings()


def plan_of(*tasks: dict[str, Any], **changes: Any) -> Plan:
    configs = tuple(TaskConfig.model_validate({"agent": "a", **one}) for one in tasks)
    return Plan(agents=AGENTS, tasks=configs, limits=QUICK.limits, policy=QUICK.policy, **changes)


def budget(**limits: float) -> BudgetConfig:
    return BudgetConfig.model_validate(limits)


# ---------------------------------------------------------------------------------------------------- at work
async def test_tasks_share_the_budget_of_their_workstream(tmp_path: Path) -> None:
    """The task that exceeds the workstream's budget is requested to hand back its work as it is, and then has failed;
    its error names the limit and the use. There is no further attempt, and each record names the spent budget."""
    plan = plan_of(
        {"id": "first", "prompt": "@use 600 0"},
        {"id": "second", "prompt": "@use 500 0 0.5\n@hang", "depends_on": ["first"]},
        budget=budget(tokens=1000, cost_usd=3.0),
    )
    async with supervising(tmp_path, agents=AGENTS, settings=plan.settings) as run:
        result = await run_plan(run.sup, plan)
        assert (result.tasks["first"].outcome, result.tasks["second"].outcome) == ("completed", "failed")
        why = "the budget of workstream plan is spent: tokens: limit 1000, used 1100"
        assert result.tasks["second"].error.startswith(why)
        (failed,) = run.transitions("failed", "r1#second")
        assert failed.abort_reason == "budget_spent"
        assert [one.abort_reason for one in run.transitions("task_failed", "second:t1")] == ["budget_spent"]
        assert [one.abort_reason for one in run.transitions("OperatorStop", "second")][:1] == ["budget_spent"]
        assert len([one for one in run.store.entities if one.startswith("second") and ":" not in one]) == 1


async def test_a_task_has_its_own_budget(tmp_path: Path) -> None:
    """A task that exceeds its own budget has failed; another task of the workstream goes on."""
    plan = plan_of(
        {"id": "lavish", "prompt": "@use 50 0\n@hang", "budget": {"tokens": 10}},
        {"id": "modest", "prompt": "@use 50 0\n@say done"},
        budget=budget(tokens=1000),
    )
    async with supervising(tmp_path, agents=AGENTS, settings=plan.settings) as run:
        result = await run_plan(run.sup, plan)
        assert (result.tasks["lavish"].outcome, result.tasks["modest"].outcome) == ("failed", "completed")
        assert result.tasks["lavish"].error.startswith("the budget of task lavish is spent: tokens: limit 10, used 50")


# ---------------------------------------------------------------------------------------------------- after a crash
async def taken_over(workdir: Path, left: MemoryStore, plan: Plan | None = None) -> tuple[Any, Any]:
    """Take over the journal *left*; return the budget and the use of its one session or, with *plan*, the result of the
    plan's run."""
    settings = QUICK.model_copy(update={"recovery": RecoveryConfig(sessions="restart")})
    async with taking_over(left, workdir, agents=AGENTS, settings=settings) as sup:
        if plan is not None:
            result = await run_plan(sup, plan)
            return result, None
        (session,) = sup.sessions()
        found = session.budget, session.used
        await session.abort(reason="enough")
        return found


async def test_the_next_supervisor_knows_what_was_used(tmp_path: Path) -> None:
    """The budget of a session that is continued after a crash is its limit minus the recorded use."""
    async with supervising(tmp_path, agents=AGENTS) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="a", budget=Budget(tokens=1000, turns=9))
        await session.run("@use 300 50 0.25")
        send_prompt(group, session, "@use 100 0\n@write here yes\n@hang")
        await wait_for_record(run.sup, "Usage", "s", number=7, outcome="fact")
        left = copy.deepcopy(run.store)
        await session.abort(reason="it has died")
    had, used = await taken_over(tmp_path, left)
    assert used == Amounts(input_tokens=400, output_tokens=50, cost_usd=0.25, turns=2, wall_s=used.wall_s)
    assert (had.tokens, had.turns) == (550, 7)
    check_records(left.log.after(0, 1_000_000), left.entities.values(), left.owed.values())


async def test_a_plan_that_goes_on_knows_what_was_used(tmp_path: Path) -> None:
    """The use of tasks that were closed before a crash still counts in the workstream's budget after the crash."""
    plan = plan_of(
        {"id": "first", "prompt": "@use 900 0"},
        {"id": "second", "prompt": "@wait gate\n@use 200 0\n@hang", "depends_on": ["first"]},
        budget=budget(tokens=1000),
    )
    async with supervising(tmp_path, agents=AGENTS, settings=plan.settings) as run, anyio.create_task_group() as group:
        group.start_soon(run_plan(run.sup, plan).wait)
        await wait_for_record(run.sup, "SessionStarted", "second")
        left = copy.deepcopy(run.store)
        await run.sup.abort("second", "session", reason="it has died")
    (tmp_path / "gate").touch()
    result, _ = await taken_over(tmp_path, left, plan)
    assert result.tasks["second"].outcome == "failed"
    assert "workstream plan is spent: tokens: limit 1000, used 1100" in result.tasks["second"].error


async def test_what_ended_sessions_used_of_a_shared_budget_stays_used(tmp_path: Path) -> None:
    """After a crash a budget scope of the host, and a parent session, still count the use of sessions that had ended
    before."""
    settings = QUICK.model_copy(update={"recovery": RecoveryConfig(sessions="restart")})
    limits = Budget(tokens=1000)
    async with supervising(tmp_path, agents=AGENTS) as run:
        night = run.sup.scope("night", "the night's work", limits)
        waits = await run.sup.start_session("waits", agent="a", within=night)
        above = await run.sup.start_session("above", agent="a", budget=limits)
        for done in (
            await run.sup.start_session("done", agent="a", within=night),
            await above.start_child("below", agent="a"),
        ):
            await done.run("@use 900 0")
            await done.close()
        left = copy.deepcopy(run.store)
        await waits.close()
        await above.close()
    async with taking_over(left, tmp_path, agents=AGENTS, settings=settings) as sup:
        assert [(one.id, one.budget.tokens) for one in sup.sessions()] == [("waits", 100), ("above", 100)]
        again = sup.scope("night", "the night's work", limits)
        assert again is not None
        assert again.used.tokens == 900
        for one in sup.sessions():
            await one.close()


async def test_a_plan_that_goes_on_knows_what_child_sessions_used(tmp_path: Path) -> None:
    """After a crash the use of a child session of a task still counts in the workstream."""
    plan = plan_of({"id": "only", "prompt": "@wait gate\n@use 200 0\n@hang"}, budget=budget(tokens=1000))
    async with supervising(tmp_path, agents=AGENTS, settings=plan.settings) as run, anyio.create_task_group() as group:
        group.start_soon(run_plan(run.sup, plan).wait)
        await wait_for_record(run.sup, "SessionStarted", "only")
        child = await run.sup.session("only").start_child("below", agent="a")
        await child.run("@use 900 0")
        await child.close()
        left = copy.deepcopy(run.store)
        await run.sup.abort("only", "session", reason="it has died")
    (tmp_path / "gate").touch()
    result, _ = await taken_over(tmp_path, left, plan)
    assert "workstream plan is spent: tokens: limit 1000, used 1100" in result.tasks["only"].error


async def test_a_budget_is_released_with_its_session_after_a_crash(tmp_path: Path) -> None:
    """After a crash the budget of an ended session no longer counts the use of its abandoned child."""
    async with supervising(tmp_path, agents=AGENTS) as run:
        above = await run.sup.start_session("above", agent="a", budget=Budget(tokens=1000))
        free = await above.start_child("free", agent="a", cancel_mode="abandon")
        await above.close()
        left = copy.deepcopy(run.store)
        await free.close()
    settings = QUICK.model_copy(update={"recovery": RecoveryConfig(sessions="restart")})
    async with taking_over(left, tmp_path, agents=AGENTS, settings=settings) as sup:
        (session,) = sup.sessions()
        assert session.budget.tokens == 1000
        assert counted(sup, ["above"]) == []
        await session.close()


async def test_a_scope_and_a_session_of_one_name_stay_apart_after_a_crash(tmp_path: Path) -> None:
    """After a crash a budget scope of the host and a session with the same name have separate limits and use; the end
    of the session closes the session's budget scope only."""
    settings = QUICK.model_copy(update={"recovery": RecoveryConfig(sessions="restart")})
    async with supervising(tmp_path, agents=AGENTS) as run:
        night = run.sup.scope("night", "the night's work", Budget(tokens=1000))
        other = await run.sup.start_session("other", agent="a", within=night)
        session = await run.sup.start_session("night", agent="a", budget=Budget(turns=5), within=night)
        for one, used in ((session, 100), (other, 300)):
            await one.run(f"@use {used} 0")
        left = copy.deepcopy(run.store)
        for one in (session, other):
            await one.close()
    async with taking_over(left, tmp_path, agents=AGENTS, settings=settings) as sup:
        bounds = {one.id: one.budget.limits for one in sup.sessions()}
        assert bounds == {"other": {"tokens": 600}, "night": {"tokens": 600, "turns": 4}}
        await sup.session("night").close()
        again = sup.scope("night", "the night's work", Budget(tokens=1000))
        assert again is not None
        assert again.used.tokens == 400
        await sup.session("other").close()


@pytest.mark.parametrize("now", [100_000, None])
@pytest.mark.parametrize("which", ["session_budget", "turn_budget"])
async def test_a_larger_limit_after_a_crash_revokes_the_hand_back(tmp_path: Path, which: str, now: int | None) -> None:
    """After a crash a session that was requested to hand back its work, since its limit was reached, goes on when the
    new settings have a larger limit or none."""
    tight = QUICK.model_copy(update={which: budget(tokens=100)})
    async with supervising(tmp_path, agents=AGENTS, settings=tight) as run, anyio.create_task_group() as group:
        send_prompt(group, await run.sup.start_session("s", agent="a"), "@use 101 0\n@wait gate")
        await wait_for_record(run.sup, "UrgentMessage", "s")
        left = copy.deepcopy(run.store)
        await run.sup.abort("s", "session", reason="it has died")
    (tmp_path / "gate").touch()
    limits = BudgetConfig(tokens=now)
    wide = QUICK.model_copy(update={"recovery": RecoveryConfig(sessions="restart"), which: limits})
    async with taking_over(left, tmp_path, agents=AGENTS, settings=wide) as sup:
        assert (await sup.session("s").result()).outcome == "completed"


async def test_a_limit_that_the_settings_dropped_is_dropped(tmp_path: Path) -> None:
    """A limit that the new settings lack ends at the restart; use is counted on, for a limit that later settings set
    again."""
    common = QUICK.model_copy(update={"recovery": RecoveryConfig(sessions="restart")})
    bounded = common.model_copy(update={"session_budget": budget(tokens=100)})
    async with supervising(tmp_path, agents=AGENTS, settings=bounded) as run:
        session = await run.sup.start_session("s", agent="a")
        await session.run("@use 90 0")
        left = copy.deepcopy(run.store)
        await session.close()
    found: list[int | None] = []
    for settings in (common, common, common.model_copy(update={"session_budget": budget(tokens=1000)})):
        async with taking_over(left, tmp_path, agents=AGENTS, settings=settings) as sup:
            session = sup.session("s")
            found.append(session.budget.tokens)
            assert (await session.run("@use 60 0")).outcome == "completed"
            left = copy.deepcopy(left)
            await session.close()
    assert found == [None, None, 1000 - 90 - 2 * 60]


# ---------------------------------------------------------------------------------------------------- what is written
def test_a_budget_above_its_parents_is_reported(tmp_path: Path) -> None:
    """`plan check` reports a budget of a task that exceeds the plan's, and a budget of a subtask that exceeds the
    task's."""
    plan = plan_of(
        {"id": "t", "budget": {"tokens": 500, "turns": 7}, "subtasks": [{"id": "part", "budget": {"turns": 8}}]},
        budget=budget(tokens=100),
    )
    assert list(narrowings(plan)) == [
        "tasks[0].budget.tokens: 500 is narrowed to 100, which the plan has",
        "tasks[0].subtasks[0].budget.turns: 8 is narrowed to 7, which the task t has",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("budget: {tokens: 0}", "budget.tokens: 0 is too small; give 1 or more"),
        ("budget: {cost_usd: -1}", "budget.cost_usd: -1 is negative; give US dollars > 0"),
        ("budget: {cost_usd: a lot}", "budget.cost_usd: 'a lot' is text; give US dollars > 0"),
        ("session_budget: {turn: 3}", "session_budget.turn: unknown key; did you mean 'turns'?"),
        ("turn_budget: 5", "turn_budget: 5 is a number; give a mapping, for example {tool_calls: 100}"),
        ("hand_back: {wall_s: 0}", "hand_back.wall_s: 0 is too small; give seconds > 0"),
        ("loops: {same_call_max: -1}", "loops.same_call_max: -1 is negative; give 0 or more"),
        (
            "liveness: {default: {wake: 5}}",
            "liveness.default: wake 5, stop 5, kill 7: give each more than the one before",
        ),
    ],
)
def test_an_invalid_budget_is_named_with_its_field(tmp_path: Path, text: str, words: str) -> None:
    """The error about an invalid budget in a plan names the field, the value and the fix."""
    path = tmp_path / "plan.yaml"
    path.write_text(f"{text}\nagents: {{a: {{adapter: scripted}}}}\ntasks: [{{id: t, agent: a}}]\n")
    with pytest.raises(BadPlan) as refused:
        load_plan(path)
    assert words in str(refused.value)


def test_every_budget_key_reaches_the_monitor_settings(tmp_path: Path) -> None:
    """The value of each budget key of a plan is found in the settings of the session monitor."""
    path = tmp_path / "plan.yaml"
    path.write_text(
        "budget: {tokens: 9}\nsession_budget: {turns: 3}\nturn_budget: {tool_calls: 4}\nhand_back: {wall_s: 5}\n"
        "loops: {same_call_max: 6, same_edit_max: 0}\nliveness: {snapshot_s: 1, large: {kill: 99}}\n"
        "agents: {a: {adapter: scripted}}\ntasks: [{id: t, agent: a, budget: {cost_usd: 0.5}}]\n"
    )
    plan = load_plan(path)
    rules = plan.settings.monitor_settings
    assert (plan.budget.value(), plan.tasks[0].budget.value()) == (Budget(tokens=9), Budget(cost_usd=0.5))
    assert (rules.session, rules.turn) == (Budget(turns=3), Budget(tool_calls=4))
    assert rules.hand_back == Budget(wall_s=5, tool_calls=10)
    assert (rules.loops.same_call_max, rules.loops.same_edit_max) == (6, 0)
    assert (rules.liveness.snapshot_s, rules.liveness.large.kill, rules.liveness.large.wake) == (1, 99, 5)
