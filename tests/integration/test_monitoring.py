"""Sessions that are overseen: budgets that are spent, circles, and agents that do not move. Whole runs."""

from __future__ import annotations

import itertools
from pathlib import Path
from unittest.mock import patch

import anyio
import pytest

from supervisor import AgentTurn
from supervisor.embedding.runtime import Supervisor
from supervisor.plans import Settings
from supervisor.policies.budgets import Amounts, Budget, Scope
from supervisor.sessions.session_monitor import MonitorSettings
from tests.support import Run, send_prompt, supervising, wait_for_record

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]


def overseen(**rules: object) -> object:
    """Settings that oversee every session like that."""
    return patch.object(Settings, "oversight", property(lambda self: MonitorSettings(**rules)))  # type: ignore[arg-type]


def facts(run: Run, name: str, entity_id: str) -> list[dict[str, object]]:
    return [one.metadata for one in run.events(entity_id) if one.event == name and one.outcome == "fact"]


def prompts(run: Run, session_id: str) -> list[str]:
    return [str(one.metadata["prompt"]) for one in run.transitions("PromptReady", session_id)]


def scope(sup: Supervisor, **limits: float) -> Scope:
    made = sup.scope("ws", "workstream plan", Budget(**limits))  # type: ignore[arg-type]
    assert made is not None
    return made


# ---------------------------------------------------------------------------------------------------- usage
async def test_what_an_agent_says_it_used_is_on_record(tmp_path: Path) -> None:
    """Tokens and money of a program's updates and answers, each counted once, are in its log and at hand."""
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted")
        await session.run("@use 1200 300 0.01\n@use 100 50 0.02")
        await session.run("@use 10 5")
        assert session.used == Amounts(input_tokens=1310, output_tokens=355, cost_usd=0.03, turns=2)
        assert session.budget == Budget()
        await session.close()
        assert facts(run, "Usage", "s")[-1]["used"] == session_used(run, "s")


def session_used(run: Run, session_id: str) -> dict[str, object]:
    return {"input_tokens": 1310, "output_tokens": 355, "cost_usd": 0.03, "turns": 2}


async def test_a_function_says_what_it_used(tmp_path: Path) -> None:
    """``turn.used`` counts, and refuses what is no amount with the field's name."""

    async def agent(turn: AgentTurn) -> None:
        turn.used(input_tokens=3, output_tokens=4, cost_usd=0.5)
        with pytest.raises(ValueError, match="used: output_tokens: -1 is no amount"):
            turn.used(output_tokens=-1)

    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent=agent)
        assert (await session.run("go")).ok
        assert session.used == Amounts(input_tokens=3, output_tokens=4, cost_usd=0.5, turns=1)


async def test_reports_are_bounded_in_number(tmp_path: Path) -> None:
    """Of thousands of reports a bounded number has a record, and the last one tells the whole."""

    async def agent(turn: AgentTurn) -> None:
        for _ in range(3000):
            turn.used(input_tokens=1)

    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent=agent)
        await session.run("go")
        await session.close()
        told = facts(run, "Usage", "s")
        assert len(told) < 250
        assert told[-1]["used"] == {"input_tokens": 3000, "turns": 1}


async def test_without_a_budget_nothing_is_recorded_of_it(tmp_path: Path) -> None:
    """A session without a budget whose agent says nothing of its use has no record of either."""
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted")
        await session.run("@say hello")
        await session.close()
        assert not facts(run, "Usage", "s") + facts(run, "Budgeted", "s")


# ---------------------------------------------------------------------------------------------------- budgets
async def test_a_spent_budget_is_one_hand_back_and_then_an_abort(tmp_path: Path) -> None:
    """The agent is interrupted, told what is spent, asked to hand back in one turn, and its session is aborted then;
    the answer names the budget, its limit and what was used, and holds what was handed back."""
    told: list[str] = []

    async def agent(turn: AgentTurn) -> str:
        told.append(turn.prompt)
        if len(told) == 1:
            turn.used(input_tokens=1500)
            await anyio.sleep_forever()
        return "half of it is done"

    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent=agent, budget=Budget(tokens=1000))
        result = await session.run("do it")
        why = "the budget of session s is spent: tokens: limit 1000, used 1500"
        assert (result.outcome, result.error) == ("aborted", why)
        assert result.text.endswith("half of it is done")
        assert len(told) == 2
        assert why in told[1]
        await wait_for_record(run.sup, "Ended", "s")
        (record,) = facts(run, "AbortRecord", "s")
        assert (record["actor"], record["reason"], record["scope"]) == ("budget", why, "session")
        (spent,) = [one for one in run.events("s") if one.event == "BudgetSpent"]
        (abort,) = [one for one in run.events("s") if one.event == "AbortRecord"]
        assert (spent.metadata["measure"], abort.cause_id, abort.severity) == ("tokens", spent.seq, "warning")


async def test_handing_back_is_bounded_itself(tmp_path: Path) -> None:
    """Who goes on using what it may not, instead of handing back, is ended in the middle of that."""
    turns = itertools.count()

    async def agent(turn: AgentTurn) -> None:
        if next(turns) == 0:
            turn.used(cost_usd=2.0)
        else:
            turn.used(cost_usd=0.2)
        await anyio.sleep_forever()

    async with supervising(tmp_path) as run:
        above = scope(run.sup, cost_usd=100.0)
        session = await run.sup.start_session("s", agent=agent, budget=Budget(cost_usd=1.0), within=above)
        result = await session.run("do it")
        assert result.outcome == "aborted"
        assert "handing back took too much: the budget of the turn that hands back is spent: cost_usd" in result.error
        assert above.used.cost_usd == pytest.approx(2.2)  # that counts, too


async def test_handing_back_is_bounded_in_time(tmp_path: Path) -> None:
    """Who is silent when it is asked to hand back is ended after a while."""

    async def agent(turn: AgentTurn) -> None:
        if "used up" not in turn.prompt:
            turn.used(input_tokens=5)
        await anyio.sleep_forever()

    with overseen(hand_back=Budget(wall_s=0.05)):
        async with supervising(tmp_path) as run:
            session = await run.sup.start_session("s", agent=agent, budget=Budget(tokens=1))
            result = await session.run("do it")
            assert "handing back took too much" in result.error
            assert "wall_s" in result.error


async def test_a_call_beyond_the_budget_does_not_begin(tmp_path: Path) -> None:
    """A call is leased before it begins: the one too many is not made, and not on record."""
    made: list[int] = []

    async def tool(number: int) -> None:
        made.append(number)

    async def agent(turn: AgentTurn) -> str:
        if "used up" in turn.prompt:
            return "handed back"
        for number in range(10):
            await turn.call("step", tool, number)
        return "all of it"

    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent=agent, budget=Budget(tool_calls=3))
        result = await session.run("do it")
        assert "tool_calls: limit 3, used 3" in result.error
        assert made == [0, 1, 2]
        await wait_for_record(run.sup, "Ended", "s")
        assert len(run.transitions("tool_started", "s:t1")) == 3


async def test_a_turn_that_fails_may_not_be_tried_beyond_the_budget(tmp_path: Path) -> None:
    """Turns are counted when they begin: the one after the last is that in which is handed back."""
    told: list[str] = []

    async def agent(turn: AgentTurn) -> str:
        told.append(turn.prompt)
        if "used up" not in turn.prompt:
            raise RuntimeError("it does not work")
        return "what there is"

    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent=agent, budget=Budget(turns=2))
        result = await session.run("do it")
        assert result.error == "the budget of session s is spent: turns: limit 2, used 2"
        assert [("used up" in one) for one in told] == [False, False, True]


async def test_a_message_does_not_take_the_place_of_the_budgets(tmp_path: Path) -> None:
    """A try that hands back says so in its prompt, also where an operator's message stands in it."""
    told: list[str] = []

    async def agent(turn: AgentTurn) -> None:
        told.append(turn.prompt)
        if len(told) == 1:
            await run.sup.session(turn.session_id).send("and one thing more")
        raise RuntimeError("it does not work")

    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent=agent, budget=Budget(turns=1))
        await session.run("do it")
        assert [("one thing more" in one, "used up" in one) for one in told] == [(False, False), (True, True)]


async def test_time_is_leased_and_runs_out(tmp_path: Path) -> None:
    """A turn whose session has no time left is interrupted, without its agent having said anything."""

    async def agent(turn: AgentTurn) -> str:
        if "used up" not in turn.prompt:
            await anyio.sleep_forever()
        return "what there is"

    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent=agent, budget=Budget(wall_s=0.05))
        result = await session.run("do it")
        assert (result.outcome, "wall_s: limit 0.05" in result.error) == ("aborted", True)


async def test_a_budget_that_ends_with_the_turn_does_not_undo_it(tmp_path: Path) -> None:
    """What an agent says with its last word has been used, and the work is done; the next prompt finds nothing left."""
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted", budget=Budget(turns=1))
        assert (await session.run("@say done")).ok
        result = await session.run("@say more")
        assert (result.outcome, "turns: limit 1, used 1" in result.error) == ("aborted", True)


async def test_a_session_that_finds_nothing_left_is_not_launched(tmp_path: Path) -> None:
    """Where all is spent by others, a session that has nothing to hand back ends without a turn of its agent."""
    called: list[str] = []

    async def agent(turn: AgentTurn) -> None:
        called.append(turn.session_id)
        turn.used(input_tokens=10)

    async with supervising(tmp_path) as run:
        above = scope(run.sup, tokens=10)
        one = await run.sup.start_session("one", agent=agent, within=above)
        await one.run("do it")
        other = await run.sup.start_session("other", agent=agent, within=above)
        result = await other.run("do it")
        assert result.outcome == "aborted"
        assert result.error.startswith("the budget of workstream plan is spent: tokens: limit 10")
        assert called == ["one", "one"] or called == ["one"]


async def test_two_sessions_share_a_workstream(tmp_path: Path) -> None:
    """Together they exceed it by no more than the one report of each that crosses it, and what each hands back with."""

    async def agent(turn: AgentTurn) -> str:
        while "used up" not in turn.prompt:
            turn.used(output_tokens=7)
            await anyio.lowlevel.checkpoint()
        turn.used(output_tokens=5)
        return "handed back"

    async with supervising(tmp_path) as run:
        above = scope(run.sup, tokens=1000)
        sessions = [await run.sup.start_session(name, agent=agent, within=above) for name in ("a", "b")]
        async with anyio.create_task_group() as group:
            asked = [send_prompt(group, session, "do it") for session in sessions]
            results = [await one.result() for one in asked]
        assert [one.outcome for one in results] == ["aborted", "aborted"]
        crossing = [int(found[0]["used"]) for found in (facts(run, "BudgetSpent", name) for name in ("a", "b"))]  # type: ignore[call-overload]
        assert max(crossing) < 1000 + 2 * 7 + 2 * 7 + 5


@pytest.mark.parametrize("own", [Budget(turns=5), None], ids=["with a budget of its own", "without"])
async def test_a_session_may_have_the_name_of_the_scope_it_lies_in(tmp_path: Path, own: Budget | None) -> None:
    """Its budget narrows that of the scope and does not become it; the scope is open when it has ended."""

    async def agent(turn: AgentTurn) -> None:
        turn.used(input_tokens=900)

    async with supervising(tmp_path) as run:
        above = scope(run.sup, tokens=1000)
        session = await run.sup.start_session("ws", agent=agent, budget=own, within=above)
        assert (above.limits, above.title) == ({"tokens": 1000}, "workstream plan")
        limits = own.limits if own is not None else {}
        assert session.budget.limits == {"tokens": 1000, **limits}
        assert (await session.run("go")).ok
        await session.close()
        assert scope(run.sup, tokens=1000) is above
        assert above.used.tokens == 900


async def test_a_child_only_narrows_its_parent(tmp_path: Path) -> None:
    """What a child session uses counts in its parent's budget, and it has no more than that, whatever it is given."""

    async def agent(turn: AgentTurn) -> None:
        turn.used(input_tokens=30)

    async with supervising(tmp_path) as run:
        parent = await run.sup.start_session("p", agent=agent, budget=Budget(tokens=100, turns=9))
        child = await parent.start_child("c", budget=Budget(tokens=5000))
        assert (child.budget.tokens, child.budget.turns) == (100, 9)
        await child.run("go")
        assert (parent.budget.tokens, parent.budget.turns, parent.used.tokens) == (70, 8, 0)


async def test_only_who_is_reached_ends(tmp_path: Path) -> None:
    """A child that has spent its own budget ends; its parent, and its sibling, go on."""

    async def agent(turn: AgentTurn) -> str:
        if "spend" in turn.prompt:
            turn.used(input_tokens=50)
            await anyio.lowlevel.checkpoint()
            await anyio.sleep_forever()
        return "fine"

    async with supervising(tmp_path) as run:
        parent = await run.sup.start_session("p", agent=agent, budget=Budget(tokens=1000))
        child = await parent.start_child("c", budget=Budget(tokens=10))
        sibling = await parent.start_child("d")
        assert (await child.run("spend it")).outcome == "aborted"
        assert (await sibling.run("go on")).ok
        assert (await parent.run("go on")).ok


async def test_a_turn_has_a_budget_too(tmp_path: Path) -> None:
    """The settings' budget of each turn begins anew with each, and ends the one that goes beyond it."""

    async def agent(turn: AgentTurn) -> None:
        turn.used(input_tokens=6)
        if "more" in turn.prompt:
            turn.used(input_tokens=6)
            await anyio.sleep_forever()

    with overseen(turn=Budget(tokens=10)):
        async with supervising(tmp_path) as run:
            session = await run.sup.start_session("s", agent=agent)
            assert [(await session.run("go")).ok for _ in range(3)] == [True] * 3
            result = await session.run("more")
            assert result.error.startswith("the budget of turn s:t4 is spent: tokens: limit 10, used 12")


# ---------------------------------------------------------------------------------------------------- circles
async def test_a_program_that_goes_round_in_a_circle_is_told_and_then_ended(tmp_path: Path) -> None:
    """The same command with the same output: told at the limit, ended at the next, with the reason."""
    script = "\n".join(["@run echo the same"] * 5 + ["@hang"])
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted")
        async with anyio.create_task_group() as group:
            asked = send_prompt(group, session, script)
            await wait_for_record(run.sup, "Repeats", "s", outcome="fact")
            result = await asked.result()
        assert result.ok  # it was told, and did something else
        assert "You repeat yourself: the same call, 'echo the same', was made 5 times" in prompts(run, "s")[-1]
        await session.close()
        assert len(facts(run, "Repeats", "s")) == 1


async def test_who_goes_on_repeating_is_ended(tmp_path: Path) -> None:
    """An agent that was told so and goes on is aborted, and the reason says what it repeated."""

    async def look() -> str:
        return "nothing new"

    async def agent(turn: AgentTurn) -> None:
        while True:
            await turn.call("look", look)

    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent=agent)
        result = await session.run("look")
        assert result.outcome == "aborted"
        assert result.error.startswith("it goes round in a circle: the same call, 'look', was made 5 times")
        assert [one["again"] for one in facts(run, "Repeats", "s")] == [False, True]


async def test_polling_for_what_changes_is_left_alone(tmp_path: Path) -> None:
    """The same call with another result each time, and one that tells none, may be made as often as one likes."""
    numbers = itertools.count()

    async def poll() -> int:
        return next(numbers)

    async def nothing() -> None:
        return None

    async def agent(turn: AgentTurn) -> None:
        for _ in range(30):
            await turn.call("poll", poll)
        for _ in range(30):
            await turn.call("step", nothing)

    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent=agent)
        assert (await session.run("wait for it")).ok
        assert not facts(run, "Repeats", "s")
