"""Agents that are silent for long: a turn that answers a message does not end their task, a quiet command is left to
its time-out, and a worker that is lost again and again does not start a task without end.

Most tests run in virtual time; the agents are functions, or simulated programs of the adapter ``command``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from field_kit import Scratch, until

from supervisor import AgentTurn
from supervisor.host.api import Supervisor
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.plans import Plan
from supervisor.policies.turn_outcome import GO_ON
from supervisor.simulation.agents.profile import AgentShape
from supervisor.simulation.testing import Simulate
from supervisor.work.plan_handle import run_plan
from supervisor.work.plan_run import LOSSES_MAX
from supervisor.work.plan_runner import PlanRunner
from supervisor.work.workers import WorkerPool

AGENT = {"adapter": "acp", "command": ["agent"]}
COMMAND = {"adapter": "command", "command": ["build"]}


def plan_of(agent: dict[str, Any], task: dict[str, Any] | None = None, **keys: Any) -> Plan:
    """Return a plan with the task ``t``, which is tried once, and the default times."""
    lifecycle = {"max_attempts": 1, "circuit_breaker": {"enabled": False}}
    tasks = [{"id": "t", "agent": "worker", "prompt": "work", "max_retries": 0, **(task or {})}]
    return Plan.model_validate({"agents": {"worker": agent}, "tasks": tasks, "task_lifecycle": lifecycle, **keys})


def quiet(silent_s: float) -> AgentShape:
    """Return a command that prints nothing for *silent_s* seconds, then a line, and exits with 0."""
    return AgentShape(adapter="command", steps=(1, 1), tools=(0, 0), think_s=(silent_s, silent_s), start_s=(0.0, 0.0))


async def records(sup: Supervisor, event: str) -> list[LifecycleEvent]:
    await sup.core.journal_writer.flush()
    return [one for one in await sup.core.journal.events() if one.event == event]


# ------------------------------------------------------------------------------------------ a message is no word
async def _nobody(sup: Supervisor) -> None:
    """Send nothing: the liveness policy sends the message."""


async def _operator(sup: Supervisor) -> None:
    await sup.core.requests.send("t", "how far are you?", urgent=True, sender="ann")


async def _at_the_end(sup: Supervisor) -> None:
    await sup.core.requests.send("t", "how far are you?", urgent=True, sender="ann", at="tool_boundary")


@pytest.mark.parametrize("ask", [_nobody, _operator, _at_the_end])
def test_an_answer_to_a_message_does_not_complete_the_task(
    simulated_supervisor: Simulate, ask: Callable[[Supervisor], Awaitable[None]]
) -> None:
    """An agent that has done nothing answers a wake-up, or a question of an operator. Its task goes on: the agent is
    asked to go on, and the task is completed with the work of the turn after that."""
    prompts: list[str] = []

    async def agent(turn: AgentTurn) -> str:
        prompts.append(turn.prompt)
        if len(prompts) == 1:
            await anyio.sleep_forever()
        return "I am here." if "Urgent message" in turn.prompt else "The work is done."

    async def main(sup: Supervisor) -> None:
        prompts.clear()
        running = run_plan(sup, plan_of(AGENT))
        await anyio.sleep(10)
        await ask(sup)
        result = await running
        assert (result.ok, result.tasks["t"].outcome) == (True, "completed")
        assert prompts[2:] == [f"work\n\n{GO_ON}"]

    simulated_supervisor(main, agents={"worker": agent})


def test_an_agent_that_only_answers_wake_ups_is_ended(simulated_supervisor: Simulate) -> None:
    """The steps against silence count on over the turns that answer: an agent that answers each wake-up and works at
    nothing is ended, and its task has failed with the reason ``timeout``."""

    async def agent(turn: AgentTurn) -> str:
        if "Urgent message" in turn.prompt:
            return ""
        await anyio.sleep_forever()
        return "never"

    async def main(sup: Supervisor) -> None:
        result = await run_plan(sup, plan_of(AGENT))
        assert result.tasks["t"].outcome == "failed"
        assert [one.metadata["step"] for one in await records(sup, "Stalled")] == ["wake", "stop", "kill"]
        assert [one.abort_reason for one in await records(sup, "failed")] == ["timeout"]

    simulated_supervisor(main, agents={"worker": agent})


def test_turns_that_answer_give_an_attempt_no_more_time(simulated_supervisor: Simulate) -> None:
    """An agent that works a little after each wake-up, answers the next one, and is never done, has the time of one
    attempt, however many turns it takes."""

    async def agent(turn: AgentTurn) -> str:
        if "Urgent message" in turn.prompt:
            return "I am here."
        for _ in range(5):
            await anyio.sleep(20)
            turn.heartbeat()
        await anyio.sleep_forever()
        return "never"

    async def main(sup: Supervisor) -> None:
        began_s = anyio.current_time()
        with anyio.move_on_after(20_000) as over:
            result = await run_plan(sup, plan_of(AGENT, {"timeout_s": 1000}))
            assert result.tasks["t"].outcome == "failed"
            assert "took longer than 1000 s (timeout_s of the task)" in result.tasks["t"].error
            assert len(await records(sup, "PromptReady")) > 3
            assert anyio.current_time() - began_s < 1100
        assert not over.cancelled_caught

    simulated_supervisor(main, agents={"worker": agent})


def test_an_agent_that_repeats_itself_fails_its_attempt(simulated_supervisor: Simulate) -> None:
    """An agent that goes round in a circle again after it was told so ends its attempt, not its task: another session
    tries again, and its prompt says why."""
    prompts: list[str] = []

    async def same() -> str:
        return "the same"

    async def agent(turn: AgentTurn) -> str:
        prompts.append(turn.prompt)
        if "it goes round in a circle" in turn.prompt:
            return "done"
        while True:
            await turn.call("look", same)

    async def main(sup: Supervisor) -> None:
        prompts.clear()
        lifecycle = {"max_attempts": 2, "circuit_breaker": {"enabled": False}}
        result = await run_plan(sup, plan_of(AGENT, task_lifecycle=lifecycle))
        assert result.tasks["t"].outcome == "completed"
        stops = await records(sup, "OperatorStop")
        assert [one.abort_reason for one in stops if one.abort_id is not None] == ["loop"]

    simulated_supervisor(main, agents={"worker": agent})


# ------------------------------------------------------------------------------------------------ quiet commands
@pytest.mark.parametrize(
    ("silent_s", "task"), [(170.0, {}), (290.0, {}), (1000.0, {"timeout_s": 1200}), (800.0, {"scope": "small"})]
)
def test_a_quiet_command_is_left_to_its_time_out(
    simulated_supervisor: Simulate, silent_s: float, task: dict[str, Any]
) -> None:
    """A command that prints nothing until its end is launched once and completes its task, if its time suffices."""

    async def main(sup: Supervisor) -> None:
        result = await run_plan(sup, plan_of(COMMAND, task))
        assert result.tasks["t"].outcome == "completed"
        assert len(await records(sup, "process_started")) == 1
        assert not await records(sup, "Stalled")

    simulated_supervisor(main, agents={"worker": quiet(silent_s)})


@pytest.mark.parametrize(
    ("agent", "limit_s"),
    [(COMMAND, 300.0), ({"known": "aider"}, 1800.0), ({"known": "mini"}, 1800.0), (AGENT, 1800.0)],
)
def test_a_task_without_a_time_has_that_of_its_kind_of_agent(
    simulated_supervisor: Simulate, agent: dict[str, Any], limit_s: float
) -> None:
    """A task without ``scope`` and ``timeout_s`` has half an hour; five minutes if a program that is no agent does it.
    A known agent that runs by ``command`` counts as an agent."""

    async def busy(turn: AgentTurn) -> None:
        while True:
            await anyio.sleep(50)
            turn.heartbeat()

    async def main(sup: Supervisor) -> None:
        result = await run_plan(sup, plan_of(agent))
        assert result.tasks["t"].outcome == "failed"
        assert f"took longer than {limit_s:g} s (the default of a" in result.tasks["t"].error

    worker = quiet(5000.0) if agent is not AGENT else busy
    simulated_supervisor(main, agents={"worker": worker})


def test_an_agent_waits_for_a_quiet_command_below_it(simulated_supervisor: Simulate) -> None:
    """An agent whose sub-agent is a quiet command is as silent as the command, and is not woken either."""

    async def agent(turn: AgentTurn) -> str:
        return (await turn.delegate("c", "build", agent="build")).outcome

    async def main(sup: Supervisor) -> None:
        result = await run_plan(sup, plan_of(AGENT))
        assert result.tasks["t"].outcome == "completed"
        assert not await records(sup, "Stalled")

    simulated_supervisor(main, agents={"worker": agent, "build": quiet(280.0)})


def test_a_command_is_not_asked_to_hand_back(simulated_supervisor: Simulate) -> None:
    """A command that has used up its budget is ended at once: a request to hand back its work would launch it again."""

    async def main(sup: Supervisor) -> None:
        result = await run_plan(sup, plan_of(COMMAND, {"budget": {"wall_s": 60}}))
        assert result.tasks["t"].outcome == "failed"
        assert "wall_s: limit 60" in result.tasks["t"].error
        assert len(await records(sup, "process_started")) == 1
        assert [one.abort_reason for one in await records(sup, "failed")] == ["budget_spent"]

    simulated_supervisor(main, agents={"worker": quiet(200.0)})


# ------------------------------------------------------------------------------------------------ what is shown
def test_a_woken_agent_is_shown_as_stalled(scratch: Scratch) -> None:
    """From its first wake-up on a silent agent is STALLED in ``ps``, with the time at which its session is aborted."""
    scratch.acp_agent("time.sleep(600)")
    scratch.plan("""
        agents: {a: {adapter: acp, command: [python3, agent.py]}}
        liveness: {snapshot_s: 0.5, default: {wake: 2, stop: 400, kill: 500}}
        limits: {grace_s: 600}
        tasks: [{id: t, agent: a, prompt: work}]
    """)
    scratch.start("run", "plan.yaml")

    def shown() -> dict[str, Any] | None:
        listed = scratch.run("ps", "--json")
        lines = json.loads(listed.out) if listed.status == 0 else []
        return next((one for one in lines if one["id"] == "t" and one["visual"] == "STALLED"), None)

    assert re.search(r"silent, aborted at \d\d:\d\d:\d\d unless it shows progress", until(shown)["note"])


def test_the_time_left_is_shown(simulated_supervisor: Simulate) -> None:
    """Each step against silence records how many seconds are left until the session is aborted."""

    async def agent(turn: AgentTurn) -> None:
        await anyio.sleep_forever()

    async def main(sup: Supervisor) -> None:
        await run_plan(sup, plan_of(AGENT))
        steps = [one.metadata for one in await records(sup, "Stalled")]
        assert [(one["step"], one["ends_in_s"]) for one in steps] == [("wake", 120.0), ("stop", 60.0), ("kill", 0.0)]

    simulated_supervisor(main, agents={"worker": agent})


# ------------------------------------------------------------------------------------------------------- workers
@pytest.mark.parametrize("worker", ["heartbeat_s: 40", "check_s: 5", "{heartbeat_s: 30, misses_max: 1}"])
def test_a_heartbeat_rarer_than_the_checks_is_refused(scratch: Scratch, worker: str) -> None:
    """``plan check`` refuses a worker that one late heartbeat can lose, with the reason and the fix."""
    inner = worker if worker.startswith("{") else f"{{{worker}}}"
    scratch.plan(f"""
        agents: {{a: {{adapter: command, command: [echo]}}}}
        workers: {{w: {inner}}}
        tasks: [{{id: t, agent: a, prompt: ""}}]
    """)
    checked = scratch.run("plan", "check", "plan.yaml")
    assert checked.status == 2
    assert "workers.w.heartbeat_s" in checked.text
    assert "each check between two heartbeats counts as a missed heartbeat" in checked.text
    assert "lower heartbeat_s, or raise check_s" in checked.text


def test_a_task_whose_worker_is_lost_again_and_again_fails(simulated_supervisor: Simulate) -> None:
    """A task is given to another worker when its worker is lost, but not without end: at the third loss it has failed,
    with a plain reason."""
    launches: list[str] = []

    async def agent(turn: AgentTurn) -> str:
        launches.append(turn.session_id)
        await anyio.sleep(2000)
        return "done"

    async def one_beat(pool: WorkerPool, worker_id: str, heartbeat_s: float) -> None:
        pool.beat(worker_id)

    async def main(sup: Supervisor) -> None:
        launches.clear()
        plan = plan_of(AGENT, liveness={"snapshot_s": 0})
        result = await PlanRunner(sup.core, heartbeat=one_beat).run(plan)
        assert result.tasks["t"].outcome == "failed"
        assert result.tasks["t"].error.startswith(f"its worker was lost {LOSSES_MAX} times")
        assert len(launches) == LOSSES_MAX

    simulated_supervisor(main, agents={"worker": agent})
