"""Delivery points of urgent messages: at once (``now``), at the tool boundary, at the end of the turn.

The agents of the tests are functions, whose tool calls a test lets return, and processes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from supervisor import run_plan
from supervisor.lifecycles.types import AbortScope, DeliveryPoint
from supervisor.plans.plan import Plan
from supervisor.policies.retry_reason import HEADING
from supervisor.runtime.entity import Refused
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.inprocess import AgentTurn
from tests.support import (
    Run,
    data_of,
    quick_settings,
    send_prompt,
    states_of,
    supervising,
    wait_for_record,
)

pytestmark = pytest.mark.anyio


class Worker:
    """Agent function that makes one tool call after another, each of which returns when the test allows it."""

    def __init__(self, calls: int = 2) -> None:
        self.begun = [anyio.Event() for _ in range(calls)]
        self.let_go = [anyio.Event() for _ in range(calls)]
        self.prompts: list[str] = []
        self.cancelled = 0

    async def __call__(self, turn: AgentTurn) -> str:
        self.prompts.append(turn.prompt)
        if len(self.prompts) > 1:
            return f"heard {turn.prompt}"
        for number in range(len(self.begun)):
            await turn.call(f"call {number}", self._tool, number)
        return "worked"

    async def _tool(self, number: int) -> None:
        self.begun[number].set()
        try:
            await self.let_go[number].wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise


def calls_of(run: Run, turn_id: str) -> list[str]:
    """Return the outcomes of the calls of a turn, in order; a call that was still open when its turn failed is not
    among them."""
    return [one.metadata["outcome"] for one in run.transitions("tool_completed", turn_id)]


def results_of(run: Run, turn_id: str, call_id: str) -> int:
    """Return how many results a call got: results of the call itself, and failures of its turn while the call
    was open."""
    opened = False
    results = 0
    for one in run.events(turn_id):
        if one.outcome != "transition":
            continue
        if one.metadata.get("call_id") == call_id:
            opened = one.event == "tool_started"
            results += one.event == "tool_completed"
        elif one.event == "task_failed" and opened:
            opened, results = False, results + 1
    return results


# ---------------------------------------------------------------------------------------------------- functions
async def test_now_abandons_the_call_that_is_open(tmp_path: Path) -> None:
    """An urgent message for ``now`` ends the open call with exactly one result, before the message is delivered."""
    worker = Worker()
    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent=worker.__call__)
        asked = send_prompt(group, session, "dig")
        await worker.begun[0].wait()
        await session.send("come", urgent=True, at="now", sender="ann")
        assert (await asked.result()).text == "heard dig\n\nUrgent message from ann:\ncome"
    assert (worker.cancelled, results_of(run, "s:t1", "call-1")) == (1, 1)
    ends = [one.seq for one in run.events("s:t1") if one.event in ("tool_completed", "task_failed")]
    delivered = run.transitions("PromptReady", "s")[1].seq
    assert max(ends) < delivered


async def test_the_tool_boundary_waits_for_the_call_that_is_open(tmp_path: Path) -> None:
    """With a message for the tool boundary the open call returns, no further call begins, and the message is delivered
    in the next turn of the same request."""
    worker = Worker()
    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent=worker.__call__)
        asked = send_prompt(group, session, "dig")
        await worker.begun[0].wait()
        await session.send("come", urgent=True, at="tool_boundary", sender="ann")
        await wait_for_record(run.sup, "BoundaryAwaited", "s:t1")
        assert session.state == "Running"
        worker.let_go[0].set()
        assert (await asked.result()).text == "heard dig\n\nUrgent message from ann:\ncome"
        assert data_of(run.row("s")).total_errors == 0
    assert worker.cancelled == 0
    assert not worker.begun[1].is_set()
    assert calls_of(run, "s:t1") == ["completed"]
    assert len(run.transitions("tool_started", "s:t1")) == 1


async def test_the_tool_boundary_waits_for_every_call_that_is_open(tmp_path: Path) -> None:
    """With two calls open the tool boundary is the return of the last call; the message is delivered after that."""
    begun, first, second = anyio.Event(), anyio.Event(), anyio.Event()
    prompts: list[str] = []

    async def agent(turn: AgentTurn) -> str:
        prompts.append(turn.prompt)
        if len(prompts) > 1:
            return "heard"

        async def tool(gate: anyio.Event) -> None:
            if gate is second:
                begun.set()
            await gate.wait()

        async with anyio.create_task_group() as calls:
            calls.start_soon(turn.call, "first", tool, first)
            calls.start_soon(turn.call, "second", tool, second)
        await anyio.sleep_forever()
        return "never"

    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent=agent)
        asked = send_prompt(group, session, "dig")
        await wait_for_record(run.sup, "tool_started", "s:t1", number=2)
        await begun.wait()
        await session.send("come", urgent=True, at="tool_boundary")
        first.set()
        await wait_for_record(run.sup, "tool_completed", "s:t1")
        assert session.state == "Running"
        second.set()
        assert (await asked.result()).text == "heard"
    assert calls_of(run, "s:t1") == ["completed", "completed"]


async def test_the_tool_boundary_is_now_where_no_call_is_open(tmp_path: Path) -> None:
    """Without an open call, a message for the tool boundary interrupts the agent at once."""
    thinking = anyio.Event()

    async def agent(turn: AgentTurn) -> str:
        if "come" in turn.prompt:
            return "came"
        thinking.set()
        await anyio.sleep_forever()
        return "never"

    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent=agent)
        asked = send_prompt(group, session, "think")
        await thinking.wait()
        await session.send("come", urgent=True, at=DeliveryPoint.TOOL_BOUNDARY)
        assert (await asked.result()).text == "came"
    assert "Interrupting" in states_of(run.events(), "s")


async def test_a_call_that_is_aborted_is_a_boundary_too(tmp_path: Path) -> None:
    """The abort of the last open call is a tool boundary: the message is delivered, and the call has the one result
    ``aborted``."""
    worker = Worker()
    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent=worker.__call__)
        asked = send_prompt(group, session, "dig")
        await worker.begun[0].wait()
        await session.send("come", urgent=True, at="tool_boundary")
        await run.sup.abort("s:t1:c1", AbortScope.TOOL, reason="too slow")
        assert (await asked.result()).text.startswith("heard dig")
    assert calls_of(run, "s:t1") == ["aborted"]


async def test_a_turn_that_fails_before_its_boundary_hands_the_message_on(tmp_path: Path) -> None:
    """When a turn times out before its tool boundary, the prompt of the next attempt contains the waiting message,
    once."""
    prompts: list[str] = []
    begun = anyio.Event()

    async def agent(turn: AgentTurn) -> str:
        prompts.append(turn.prompt)
        if len(prompts) > 1:
            return "heard"
        begun.set()
        await turn.call("tool", anyio.sleep_forever)
        return "never"

    settings = quick_settings(turn_timeout_s=0.2)
    async with supervising(tmp_path, settings=settings) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent=agent)
        asked = send_prompt(group, session, "dig")
        await begun.wait()
        await wait_for_record(run.sup, "tool_started", "s:t1")
        await session.send("come", urgent=True, at="tool_boundary", sender="ann")
        assert (await asked.result()).text == "heard"
        assert (await session.run("more")).text == "heard"
    assert (prompts[0], prompts[2:]) == ("dig", ["more"])
    assert prompts[1].startswith(f"dig\n\n{HEADING}\n")
    assert prompts[1].endswith("\n\nUrgent message from ann:\ncome")
    assert "Interrupting" not in states_of(run.events(), "s")


async def test_the_turn_end_interrupts_nothing_and_opens_a_turn(tmp_path: Path) -> None:
    """A message for the end of the turn does not interrupt the turn but gets a turn of its own; the result of the
    request has the text of both turns."""
    worker = Worker(calls=1)
    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent=worker.__call__)
        asked = send_prompt(group, session, "dig")
        await worker.begun[0].wait()
        after = send_prompt(group, session, "then this")
        await session.send("tidy up", urgent=True, at="turn_end", sender="ann")
        assert session.state == "Running"
        assert data_of(run.row("s")).inbox[0].point == "turn_end"
        worker.let_go[0].set()
        first, second = await asked.result(), await after.result()
    assert first[:3] == ("completed", "", "workedheard Urgent message from ann:\ntidy up")
    assert second.text == "heard then this"
    assert worker.cancelled == 0
    assert "Interrupting" not in states_of(run.events(), "s")
    assert [one.metadata["request_id"] for one in run.transitions("task_claimed")] == ["s:r1", "s:r1", "s:r2"]


async def test_the_turn_end_is_kept_by_a_try_that_failed(tmp_path: Path) -> None:
    """When the turn of a message for the end of the turn fails, the turn is tried again, and the result keeps the text
    of the turn before."""
    prompts: list[str] = []
    begun, let_go = anyio.Event(), anyio.Event()

    async def agent(turn: AgentTurn) -> str:
        prompts.append(turn.prompt)
        if len(prompts) == 1:
            begun.set()
            await let_go.wait()
            return "one."
        if len(prompts) == 2:
            turn.say("lost")
            raise RuntimeError("broken")
        return "two."

    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent=agent)
        asked = send_prompt(group, session, "dig")
        await begun.wait()
        await session.send("tidy up", urgent=True, at="turn_end")
        let_go.set()
        assert (await asked.result()).text == "one.two."
    assert prompts[:2] == ["dig", "Urgent message from host:\ntidy up"]
    assert prompts[2].startswith(f"{HEADING}\n> RuntimeError: broken")
    assert prompts[2].endswith(f"\n\n{prompts[1]}")


async def test_the_turn_end_at_rest_is_a_turn_at_once(tmp_path: Path) -> None:
    """A message for the end of the turn that is sent after a turn has ended gets a turn at once, and a drain waits for
    that turn."""
    prompts: list[str] = []

    async def agent(turn: AgentTurn) -> str:
        prompts.append(turn.prompt)
        await anyio.lowlevel.checkpoint()
        return "fine"

    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent=agent)
        await session.send("first of all", urgent=True, at="turn_end", sender="ann")  # no turn has ended: it waits
        assert session.state == "Initializing"
        await session.run("dig")
        await session.send("tidy up", urgent=True, at="turn_end", sender="ann")
    assert prompts == ["dig\n\nUrgent message from ann:\nfirst of all", "Urgent message from ann:\ntidy up"]
    assert states_of(run.events(), "s:t2")[-1] == "REAPED"
    assert [one.event for one in run.transitions("task_completed")] == ["task_completed"] * 2


@pytest.mark.parametrize("once", [False, True])
async def test_the_turn_end_after_a_failure_for_good_is_the_next_prompts(tmp_path: Path, once: bool) -> None:
    """After a turn that failed and is not retried, a message for the end of the turn waits for the next prompt, even
    past the end of the backoff."""
    prompts: list[str] = []

    async def agent(turn: AgentTurn) -> str:
        prompts.append(turn.prompt)
        if len(prompts) == 1:
            raise RuntimeError("broken" if once else "401 invalid api key")
        return "fine"

    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent=agent)
        failed = await run.sup.core.requests.outcome_of("s", "dig", Cause(actor="host"), once=once)
        assert (failed.outcome, session.state) == ("failed", "CoolingDown")
        await session.send("tidy up", urgent=True, at="turn_end", sender="ann")
        await wait_for_record(run.sup, "BackoffElapsed", "s")
        assert session.state == "CoolingDown"
        assert (await session.run("again")).text == "fine"
    assert prompts == ["dig", "again\n\nUrgent message from ann:\ntidy up"]


async def test_a_message_for_the_turn_end_survives_an_interrupt(tmp_path: Path) -> None:
    """When an urgent message for ``now`` follows a message for the end of the turn, both are delivered in the order in
    which they were sent."""
    worker = Worker()
    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent=worker.__call__)
        asked = send_prompt(group, session, "dig")
        await worker.begun[0].wait()
        await session.send("tidy up", urgent=True, at="turn_end", sender="ann")
        await session.send("stop", urgent=True, sender="bob")
        text = (await asked.result()).text
    assert text == "heard dig\n\nUrgent message from ann:\ntidy up\n\nUrgent message from bob:\nstop"
    assert len(worker.prompts) == 2


@pytest.mark.parametrize("point", ["tool_boundary", "turn_end"])
async def test_an_abort_does_not_wait_for_a_boundary(tmp_path: Path, point: str) -> None:
    """The abort of a session does not wait until a message is delivered at its boundary; the message stays in the inbox
    in the journal."""
    worker = Worker()
    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent=worker.__call__)
        asked = send_prompt(group, session, "dig")
        await worker.begun[0].wait()
        await session.send("come", urgent=True, at=point)
        await session.abort(reason="enough")
        assert (await asked.result()).outcome == "aborted"
    assert [one.point for one in data_of(run.row("s")).inbox] == [point]


async def test_an_urgent_message_that_misses_a_prompt_interrupts_it(tmp_path: Path) -> None:
    """An urgent message that comes while the prompt is written to the disk is part of that prompt; no prompt is sent
    without the message."""

    prompts: list[str] = []

    async def agent(turn: AgentTurn) -> str:
        prompts.append(turn.prompt)
        await anyio.lowlevel.checkpoint()
        return "fine"

    async with supervising(tmp_path, freeze_at="WorktreeReady") as run, anyio.create_task_group() as group:
        disk = run.disk
        session = await run.sup.start_session("s", agent=agent)
        asked = send_prompt(group, session, "dig")
        await disk.frozen.wait()
        group.start_soon(_send_now, session)
        while not run.sup.core.registry.entity("s").data.inbox:
            await anyio.lowlevel.checkpoint()
        disk.thaw.set()
        assert (await asked.result()).outcome == "completed"
    assert prompts == ["dig\n\nUrgent message from host:\ncome"]


async def _send_now(session: Any) -> None:
    await session.send("come", urgent=True)


# ---------------------------------------------------------------------------------------------------- processes
async def test_the_tool_boundary_of_a_process(tmp_path: Path) -> None:
    """With a message for the tool boundary the agent's running command completes, the rest of the turn is interrupted,
    and the message is delivered in the next turn."""
    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="scripted")
        asked = send_prompt(group, session, "@run while [ ! -e go ]; do sleep 0.01; done; echo peace > kept\n@hang")
        await wait_for_record(run.sup, "ProcessStarted", "s:t1", outcome="fact")
        await session.send("come", urgent=True, at="tool_boundary")
        assert session.state == "Running"
        (tmp_path / "go").touch()
        assert (await asked.result()).text == "understood: from host: come\n"
    assert (tmp_path / "kept").read_text() == "peace\n"
    assert calls_of(run, "s:t1") == ["completed"]
    assert states_of(run.events(), "s").count("Interrupting") == 1


async def test_now_abandons_the_command_of_a_process(tmp_path: Path) -> None:
    """An urgent message for ``now`` ends the agent's running command, which gets one result, before the message is
    delivered."""
    async with supervising(tmp_path, settings=quick_settings(grace_s=5.0)) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="scripted")
        asked = send_prompt(group, session, "@run sleep 1000; echo late > kept")
        await wait_for_record(run.sup, "ProcessStarted", "s:t1", outcome="fact")
        await session.send("come", urgent=True, at="now")
        assert (await asked.result()).text == "understood: from host: come\n"
    assert not (tmp_path / "kept").exists()
    [started] = run.transitions("tool_started", "s:t1")
    assert results_of(run, "s:t1", started.metadata["call_id"]) == 1


async def test_the_turn_end_of_a_process(tmp_path: Path) -> None:
    """A message for the end of the turn gets a turn of its own in the same agent process, and the result of the request
    has the text of both turns."""
    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="scripted")
        asked = send_prompt(group, session, "@wait go\n@say first")
        await wait_for_record(run.sup, "SessionStarted", "s")
        await session.send("@say second", urgent=True, at="turn_end")
        (tmp_path / "go").touch()
        assert (await asked.result()).text == "first\nsecond\n"
    assert states_of(run.events(), "s:a1") == ["starting", "working", "idle", "working", "idle", "dead"]
    assert states_of(run.events(), "s:t1")[-2:] == ["COMPLETING", "REAPED"]


# ---------------------------------------------------------------------------------------------------- one prompt only
async def test_a_message_that_no_prompt_may_hold_is_refused(tmp_path: Path) -> None:
    """The session of a task gets no prompt after its turn: a message that is not urgent is refused with a fix, and the
    fix works."""
    worker = Worker(calls=1)
    plan = Plan.model_validate({"agents": {"a": worker.__call__}, "tasks": [{"id": "t", "agent": "a", "prompt": "x"}]})
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        handle = run_plan(run.sup, plan)
        await worker.begun[0].wait()
        with pytest.raises(Refused, match=r"t works for a task and may get no further prompt; .* urgent at turn_end"):
            await run.sup.session("t").send("look here")
        await run.sup.session("t").send("look here", urgent=True, at="turn_end")
        worker.let_go[0].set()
        assert (await handle).ok
    assert [one.partition("\n")[2] for one in worker.prompts] == ["", "look here"]


async def test_a_message_for_a_delegated_session_is_refused(tmp_path: Path) -> None:
    """A delegated child session gets one prompt; a message that is not urgent is refused."""
    worker = Worker(calls=1)

    async def lead(turn: AgentTurn) -> str:
        return (await turn.delegate("kid", "work", agent=worker.__call__)).text

    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        asked = send_prompt(group, await run.sup.start_session("s", agent=lead), "")
        await worker.begun[0].wait()
        with pytest.raises(Refused, match="s/kid works for the call that started it and may get no further prompt"):
            await run.sup.session("s/kid").send("look here")
        await run.sup.session("s").send("look here")
        worker.let_go[0].set()
        assert (await asked.result()).text == "worked"


# ---------------------------------------------------------------------------------------------------- bad values
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"urgent": True, "at": "noon"}, "at: 'noon' is no delivery point.*allowed: now, tool_boundary, turn_end"),
        ({"at": "turn_end"}, "at: turn_end is for urgent messages only"),
        ({"at": DeliveryPoint.NOW}, "at: now is for urgent messages only"),
        ({"urgent": True, "at": ""}, "at: '' is no delivery point"),
    ],
)
async def test_an_invalid_delivery_point_is_refused(tmp_path: Path, arguments: dict[str, Any], words: str) -> None:
    """A send with an invalid delivery point is refused, the error names the allowed values, and no message is sent."""
    worker = Worker()
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent=worker.__call__)
        with pytest.raises(ValueError, match=words):
            await session.send("come", **arguments)
        assert data_of(run.row("s")).inbox == ()
