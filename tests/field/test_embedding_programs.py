"""Programs that embed a supervisor: the number of tries, what has ended, and arguments as the plan writes them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from supervisor import AbortPolicy, AgentConfig, AgentTurn, NoSuchEntity, PolicyConfig, Settings, open_supervisor

pytestmark = pytest.mark.anyio

SOON = Settings.model_validate({"limits": {"backoff_base_ms": 1, "backoff_cap_ms": 1}})
"""Settings with which a session tries again at once."""


class Failing:
    """Agent that fails the first *failures* times, and counts its prompts."""

    def __init__(self, failures: int) -> None:
        self.failures, self.prompts = failures, list[str]()

    async def __call__(self, turn: AgentTurn) -> str:
        self.prompts.append(turn.prompt)
        if len(self.prompts) <= self.failures:
            raise OSError("no route to the model")
        return "done"


# --------------------------------------------------------------------------------------------------- how many tries
async def test_a_prompt_without_retries_is_run_once() -> None:
    """`run(..., retries=0)` gives the agent one turn; its failure is the result, and the session takes the next
    prompt."""
    agent = Failing(1)
    async with open_supervisor(settings=SOON) as sup:
        session = await sup.start_session("s", agent=agent)
        failed = await session.run("sum up the log", retries=0)
        assert (failed.outcome, len(agent.prompts)) == ("failed", 1)
        assert "no route to the model" in failed.error
        assert (await session.run("once more")).outcome == "completed"


async def test_a_prompt_is_tried_as_often_as_it_says() -> None:
    """With `retries=2` a prompt has three turns, whatever prompts before it have used."""
    agent = Failing(5)
    async with open_supervisor(settings=SOON) as sup:
        session = await sup.start_session("s", agent=agent)
        assert not (await session.run("first", retries=1)).ok
        assert len(agent.prompts) == 2
        assert not (await session.run("second", retries=2)).ok
        assert len(agent.prompts) == 5
        assert (await session.run("third", retries=0)).ok


async def test_an_agent_that_cannot_start_is_started_as_often_as_the_prompt_says(tmp_path: Path) -> None:
    """A start that fails counts as a try: without retries, a program that ends at once is started once."""
    starts = tmp_path / "starts"
    program = ("sh", "-c", f"echo x >> {starts}; exit 3")
    agents = {"broken": AgentConfig(adapter="acp", command=program)}
    async with open_supervisor(settings=SOON, agents=agents) as sup:
        session = await sup.start_session("s", agent="broken")
        assert not (await session.run("hello", retries=0)).ok
        assert not (await session.run("hello", retries=1)).ok
    assert starts.read_text().count("x") == 3


async def test_a_prompt_has_its_own_time_out() -> None:
    """`timeout_s` ends a turn that takes longer, and no other prompt of the session."""

    async def slow(turn: AgentTurn) -> str:
        if turn.prompt == "think":
            await anyio.sleep_forever()
        return "done"

    async with open_supervisor() as sup:
        session = await sup.start_session("s", agent=slow)
        result = await session.run("think", retries=0, timeout_s=0.05)
        assert (result.outcome, (await session.run("answer")).outcome) == ("failed", "completed")
        assert "0.05 s" in result.error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"retries": -1}, "retries: -1 is out of range; give 0 or more"),
        ({"timeout_s": 0}, "timeout_s: 0 is out of range; give seconds, more than 0"),
        ({"timeout_s": float("nan")}, "timeout_s: nan is out of range; give seconds, more than 0"),
        ({"retries": 1.5}, "retries: 1.5 is of type float; give an int"),
    ],
)
async def test_a_number_of_tries_that_cannot_be_is_refused(arguments: dict[str, float], words: str) -> None:
    """A wrong number is an error of the call that names field, value and fix; no turn begins."""
    agent = Failing(0)
    async with open_supervisor() as sup:
        session = await sup.start_session("s", agent=agent)
        with pytest.raises((TypeError, ValueError)) as caught:
            await session.run("hello", **arguments)
        assert (str(caught.value), agent.prompts) == (words, [])


# ------------------------------------------------------------------------------------------------- errors of arguments
async def test_an_id_that_never_was_is_one_error_everywhere() -> None:
    """Every call with the id of nothing alive raises `NoSuchEntity` with the same words."""
    async with open_supervisor() as sup:
        nobody = sup.session("nobody")
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: nobody.run("hello"),
            lambda: nobody.send("hello"),
            nobody.abort,
            lambda: nobody.start_child("kid"),
            lambda: sup.abort("nobody", "tool"),
            lambda: sup.processes("nobody"),
            lambda: sup.start_mcp_server("nobody", "files", ["true"]),
        ]
        for call in calls:
            with pytest.raises(NoSuchEntity, match=r"^nothing alive has the id 'nobody'$"):
                await call()
        with pytest.raises(NoSuchEntity):
            sup.plan_abort("nobody", "session")
        with pytest.raises(NoSuchEntity):
            sup.inspect("nobody")


@pytest.mark.parametrize(
    "policy",
    [AbortPolicy(tool_to_sibling=True), PolicyConfig(tool_to_sibling=True), {"tool_to_sibling": True}],
    ids=["value", "model", "mapping"],
)
async def test_a_policy_is_written_in_any_form(policy: Any) -> None:
    """A session takes an abort policy as the settings do: as a value, as a model, as a mapping."""
    assert Settings(policy=policy).abort_policy == AbortPolicy(tool_to_sibling=True)
    async with open_supervisor() as sup:
        calls = await sup.start_session("s", agent=Failing(0), policy=policy, budget={"turns": 3})
        assert calls.budget.turns == 3
        assert sup.core.registry.session("s").policy == AbortPolicy(tool_to_sibling=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"policy": {"tool_to_siblings": True}}, "policy: Object contains unknown field `tool_to_siblings`"),
        ({"policy": AbortPolicy(tool_to_sibling="yes")}, "policy.tool_to_sibling: Expected `bool`, got `str`"),  # type: ignore[arg-type]
        ({"policy": AbortPolicy(ladder=7)}, "policy.ladder: Expected `object`, got `int`"),  # type: ignore[arg-type]
        ({"policy": {"ladder": {"kill_s": -1}}}, "policy.ladder: StageBudgets: kill_s"),
        ({"policy": "strict"}, "policy: 'strict' is of type str; give an AbortPolicy or a mapping of its fields"),
        ({"budget": {"tokens": "many"}}, "budget.tokens: Expected `int | null`, got `str`"),
        ({"budget": {"turns": -1}}, "budget: budget: turns: -1 is no limit"),
    ],
)
async def test_a_wrong_policy_or_budget_is_refused_at_once(arguments: dict[str, Any], words: str) -> None:
    """A wrong field is found when the session is started; it broke the supervisor at the next abort."""
    async with open_supervisor() as sup:
        with pytest.raises((TypeError, ValueError), match=re.escape(words)):
            await sup.start_session("s", agent=Failing(0), **arguments)
        assert sup.sessions() == []


# -------------------------------------------------------------------------------------------------- after the end
async def test_ended_sessions_are_known_by_the_api(tmp_path: Path) -> None:
    """A program lists what has ended, also under an earlier supervisor, says why, and what was used."""

    async def spender(turn: AgentTurn) -> str:
        turn.used(input_tokens=70, output_tokens=7)
        return "done"

    async with open_supervisor(tmp_path / "state") as sup:
        worker = await sup.start_session("worker", agent=spender)
        await worker.run("count")
        await worker.close("counted")
    async with open_supervisor(tmp_path / "state") as sup:
        other = await sup.start_session("other", agent=spender)
        assert [(one.id, one.outcome) for one in await sup.ended_sessions()] == [("worker", "completed")]
        await other.run("count")
        await other.abort(reason="it counts wrong")
        [first, second] = await sup.ended_sessions()
        assert (second.id, second.outcome, second.reason) == ("other", "aborted", "it counts wrong")
        assert first.started_at <= first.ended_at <= second.started_at
        assert "counted" in (await sup.why("worker")).sentence
        assert (await sup.why("other:t1")).entity_id == "other:t1"
        usage = await sup.usage()
        assert (usage["worker"].tokens, usage["other"].tokens, usage["other:t1"].input_tokens) == (77, 77, 70)
        with pytest.raises(NoSuchEntity):
            await sup.why("never")
