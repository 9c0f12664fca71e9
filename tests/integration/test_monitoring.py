"""Session monitor in whole runs: budgets, loops, and reported usage.

A hand-back is the last turn of a session whose budget is spent: the agent is requested to return its work as it is.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import anyio
import pytest

from supervisor import AgentTurn
from supervisor.host.api import Supervisor
from supervisor.plans.monitoring import BudgetConfig, HandBackConfig
from supervisor.policies.budgets import Amounts, Budget, BudgetScope
from supervisor.policies.turn_outcome import GO_ON
from tests.support import Run, quick_settings, send_prompt, supervising, wait_for_record

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]


def facts(run: Run, name: str, entity_id: str) -> list[dict[str, object]]:
    return [one.metadata for one in run.events(entity_id) if one.event == name and one.outcome == "fact"]


def prompts(run: Run, session_id: str) -> list[str]:
    return [str(one.metadata["prompt"]) for one in run.transitions("PromptReady", session_id)]


def scope(sup: Supervisor, **limits: float) -> BudgetScope:
    made = sup.scope("ws", "workstream plan", Budget(**limits))  # type: ignore[arg-type]
    assert made is not None
    return made


# ---------------------------------------------------------------------------------------------------- usage
async def test_reported_usage_is_recorded(tmp_path: Path) -> None:
    """Tokens and money that an agent reports, in updates and in results, are each recorded once."""
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


async def test_a_function_reports_its_usage(tmp_path: Path) -> None:
    """Usage that a function agent reports by ``turn.used`` is counted; an invalid amount raises an error that names the
    field."""

    async def agent(turn: AgentTurn) -> None:
        turn.used(input_tokens=3, output_tokens=4, cost_usd=0.5)
        with pytest.raises(ValueError, match="used: output_tokens: -1 is not an amount"):
            turn.used(output_tokens=-1)

    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent=agent)
        assert (await session.run("go")).ok
        assert session.used == Amounts(input_tokens=3, output_tokens=4, cost_usd=0.5, turns=1)


async def test_reports_are_bounded_in_number(tmp_path: Path) -> None:
    """Three thousand usage reports result in fewer than 250 records, the last of which has the sum of all reports."""

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
    """A session without a budget, whose agent reports no usage, has no record about a budget or usage."""
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted")
        await session.run("@say hello")
        await session.close()
        assert not facts(run, "Usage", "s") + facts(run, "Budgeted", "s")


# ---------------------------------------------------------------------------------------------------- budgets
async def test_a_spent_budget_is_one_hand_back_and_then_an_abort(tmp_path: Path) -> None:
    """The agent that exceeds its session's budget is interrupted and requested to hand back its work in one more turn;
    then the session is aborted. The result names budget, limit and use, and has the text of that last turn."""
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


async def test_the_hand_back_has_a_budget(tmp_path: Path) -> None:
    """A session that exceeds the budget of the hand-back, the turn in which it returns its work as it is, is aborted;
    that use counts in the budget scope above, too."""
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


async def test_the_hand_back_has_a_time_limit(tmp_path: Path) -> None:
    """A session that does not hand back its work within the time limit for that is aborted."""

    async def agent(turn: AgentTurn) -> None:
        if "used up" not in turn.prompt:
            turn.used(input_tokens=5)
        await anyio.sleep_forever()

    settings = quick_settings().model_copy(update={"hand_back": HandBackConfig(wall_s=0.05)})
    async with supervising(tmp_path, settings=settings) as run:
        session = await run.sup.start_session("s", agent=agent, budget=Budget(tokens=1))
        result = await session.run("do it")
        assert "handing back took too much" in result.error
        assert "wall_s" in result.error


async def test_a_call_beyond_the_budget_does_not_begin(tmp_path: Path) -> None:
    """A tool call is counted before it begins: a call that would exceed the budget is neither made nor recorded."""
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
    """A failed turn counts in the budget of turns; after the last allowed turn the session hands back its work in one
    more turn, instead of a retry."""
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


async def test_a_hand_back_prompt_keeps_operators_messages(tmp_path: Path) -> None:
    """The prompt by which a session is requested to hand back its work says that the budget is spent, and contains a
    waiting message of an operator."""
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


async def test_a_turn_out_of_time_is_interrupted(tmp_path: Path) -> None:
    """A turn whose session has used up its time is interrupted, even though the agent reports nothing."""

    async def agent(turn: AgentTurn) -> str:
        if "used up" not in turn.prompt:
            await anyio.sleep_forever()
        return "what there is"

    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent=agent, budget=Budget(wall_s=0.05))
        result = await session.run("do it")
        assert (result.outcome, "wall_s: limit 0.05" in result.error) == ("aborted", True)


async def test_a_budget_that_ends_with_the_turn_does_not_undo_it(tmp_path: Path) -> None:
    """When a turn that completes uses up the budget, its result stays completed; the next prompt is aborted."""
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted", budget=Budget(turns=1))
        assert (await session.run("@say done")).ok
        result = await session.run("@say more")
        assert (result.outcome, "turns: limit 1, used 1" in result.error) == ("aborted", True)


async def test_a_session_that_finds_nothing_left_is_not_launched(tmp_path: Path) -> None:
    """A session that starts in a budget scope that is used up ends without any turn of its agent."""
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
    """Two sessions of one workstream exceed the common budget by no more than a report or two of each, and the turn in
    which one of them hands back its work."""

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
    """A session with the same name as its budget scope narrows the scope's budget, and the scope stays open when the
    session ends."""

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
    """The usage of a child session counts in its parent's budget, and a budget of the child that is larger than the
    parent's has no effect."""

    async def agent(turn: AgentTurn) -> None:
        turn.used(input_tokens=30)

    async with supervising(tmp_path) as run:
        parent = await run.sup.start_session("p", agent=agent, budget=Budget(tokens=100, turns=9))
        child = await parent.start_child("c", budget=Budget(tokens=5000))
        assert (child.budget.tokens, child.budget.turns) == (100, 9)
        await child.run("go")
        assert (parent.budget.tokens, parent.budget.turns, parent.used.tokens) == (70, 8, 0)


async def test_a_spent_child_budget_ends_the_child_only(tmp_path: Path) -> None:
    """A child session that uses up its budget is aborted; its parent and its sibling go on."""

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
    """The turn budget of the settings starts anew with each turn; a turn that exceeds it ends, and its session is
    aborted."""

    async def agent(turn: AgentTurn) -> None:
        turn.used(input_tokens=6)
        if "more" in turn.prompt:
            turn.used(input_tokens=6)
            await anyio.sleep_forever()

    settings = quick_settings().model_copy(update={"turn_budget": BudgetConfig(tokens=10)})
    async with supervising(tmp_path, settings=settings) as run:
        session = await run.sup.start_session("s", agent=agent)
        assert [(await session.run("go")).ok for _ in range(3)] == [True] * 3
        result = await session.run("more")
        assert result.error.startswith("the budget of turn s:t4 is spent: tokens: limit 10, used 12")


# ---------------------------------------------------------------------------------------------------- circles
async def test_an_agent_that_repeats_a_command_is_warned_and_goes_on(tmp_path: Path) -> None:
    """An agent that repeats a command with the same output is warned at the limit. Its answer to the warning does not
    end its prompt: the agent is asked to go on, and the prompt completes with what it does then."""

    async def echo() -> str:
        return "the same"

    async def agent(turn: AgentTurn) -> str:
        if "You repeat yourself" in turn.prompt:
            return "I see."
        if GO_ON in turn.prompt:
            return "I did something else."
        while True:
            await turn.call("echo the same", echo)

    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent=agent)
        result = await session.run("go")
        assert (result.ok, result.text) == (True, "I see.I did something else.")
        warning, last = prompts(run, "s")[-2:]
        assert "You repeat yourself: the same call, 'echo the same', was made 5 times" in warning
        assert last == f"go\n\n{GO_ON}"
        await session.close()
        assert len(facts(run, "Repeats", "s")) == 1


async def test_an_agent_that_keeps_repeating_is_aborted(tmp_path: Path) -> None:
    """An agent that repeats a call after the warning is aborted, and the error names the call."""

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


async def test_polling_is_no_repetition(tmp_path: Path) -> None:
    """An agent may repeat calls whose results change, and calls without results, without a warning."""
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
