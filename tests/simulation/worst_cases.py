"""Worst cases of a plan: each way in which an agent can fail for ever, run by the production scheduler on the virtual
clock.

``measure`` runs a plan with one task and all settings at their defaults, unless the way needs a key (an acceptance
test, a reviewer). ``python -m tests.simulation.worst_cases`` prints the table of ``docs/explanation/retries.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
from msgspec.structs import replace

from supervisor import AgentTurn
from supervisor.diagnostics.outcomes import data_of
from supervisor.host.api import Supervisor
from supervisor.lifecycles.types import Kind
from supervisor.plans import Plan
from supervisor.ports.agent_profile import AgentFunction
from supervisor.simulation.agents.profile import AgentShape
from supervisor.simulation.plan_workload.plans import MISSING
from supervisor.simulation.plan_workload.task_scripts import TaskScript, prompt_of
from supervisor.simulation.running import EmbeddingProgram, simulate
from supervisor.simulation.scenario import FaultsConfig, LoadConfig, Scenario, WorldConfig
from supervisor.simulation.world import World
from supervisor.work.plan_runner import PlanRunner

TASK: Final = "w0t0"
"""Id of the task. (Scripts of the simulator are for names of this form.)"""
QUICK: Final[dict[str, Any]] = {
    "steps": (1, 1),
    "tools": (0, 0),
    "delegation": 0.0,
    "think_s": (0.0, 0.0),
    "start_s": (0.0, 0.0),
    "cancel_s": (0.0, 0.0),
}
"""A shape whose agent takes no time of its own."""
PROGRAMS: Final = ("acp", "command", "jsonl")
EVERY: Final = (*PROGRAMS, "inprocess")
NOT_ACP: Final = ("command", "jsonl", "inprocess")


class Measured(NamedTuple):
    """Cost of a task that always fails: tries (launches of the agent, or prompts to an agent that lives on), seconds
    until the plan has its result, and the error."""

    tries: int
    seconds: float
    error: str


class Way(NamedTuple):
    """A way to fail for ever: the words of the table, the adapters that can fail in this way, the fault that strikes
    each launch (if any), keys of the task and of the plan, and the function that runs as in-process agent."""

    words: str
    adapters: tuple[str, ...]
    fault: str = ""
    task: Mapping[str, Any] = {}
    plan: Mapping[str, Any] = {}
    function: AgentFunction | None = None
    script: TaskScript | None = None
    agent: str = "w"
    shape: Mapping[str, Any] = {}
    seed: int = 1


async def fails(turn: AgentTurn) -> str:
    raise RuntimeError("it broke")


async def hangs(turn: AgentTurn) -> str:
    await anyio.sleep_forever()
    return ""


async def works_on(turn: AgentTurn) -> str:
    while True:
        await anyio.sleep(20.0)
        turn.heartbeat()


async def answers(turn: AgentTurn) -> str:
    return "done"


async def rejects(turn: AgentTurn) -> str:
    return '{"verdict": "reject", "findings": ["there is no test"]}'


def other_findings() -> AgentFunction:
    """Return a reviewer that finds something else each time."""
    number = iter("abcdefgh")

    async def review(turn: AgentTurn) -> str:
        return f'{{"verdict": "reject", "findings": ["part {next(number)} is missing"]}}'

    return review


def other_errors() -> AgentFunction:
    """Return an agent that fails in other words each time."""
    number = iter("abcdefgh")

    async def agent(turn: AgentTurn) -> str:
        raise RuntimeError(f"part {next(number)} is broken")

    return agent


REVIEW: Final = {"review": {"agent": "reviewer"}}
TESTED: Final = {"acceptance": [{"command": ["sim-check", TASK]}]}


def ways() -> tuple[Way, ...]:
    """Return the rows of the table. (Scripts and agents count, so each call makes new ones.)"""
    return (
        Way("the agent fails, with the same error each time", NOT_ACP, "agent.refuses", function=fails),
        Way(
            "the agent fails, with another error each time",
            ("acp", "inprocess"),
            "agent.refuses",
            function=other_errors(),
        ),
        Way("a completion signal is missing", EVERY, task={"completion": [{"answer_contains": "§"}]}, function=answers),
        Way("the agent hangs", ("acp", "jsonl", "inprocess"), "process.hang", function=hangs),
        Way("a command prints nothing and does not end", ("command",), "process.hang"),
        Way("the provider of the model fails, and announces no wait", ("acp", "command"), "agent.provider_error"),
        Way("the agent works on without end", ("inprocess",), function=works_on),
        Way("the agent exits before it is ready", ("acp",), "process.fast_exit", seed=3),
        Way("the agent says nothing at its start", ("acp",), shape={"start_s": (100_000.0, 100_000.0)}),
        Way("there is no such program", ("command",), agent=MISSING),
        Way(
            "an acceptance test fails, in the same way each time",
            EVERY,
            task=TESTED,
            function=answers,
            script=TaskScript(TASK, checks=(False,)),
        ),
        Way("a reviewer rejects, with the same findings each time", EVERY, plan=REVIEW, function=answers),
        Way("a reviewer rejects, with other findings each time", EVERY, plan=REVIEW, function=answers),
    )


def measure(way: Way, adapter: str) -> Measured:
    """Run the plan of *way* with an agent of *adapter* until the plan has its result."""
    reviewer = other_findings() if "other findings" in way.words else rejects
    shape = AgentShape(adapter=adapter, **{**QUICK, **way.shape})  # type: ignore[arg-type]  # the literal is checked
    agents: dict[str, AgentShape | AgentFunction] = {"reviewer": reviewer}
    agents["w"] = shape if adapter != "inprocess" or way.function is None else way.function
    scenario = Scenario(
        name="worst-case",
        faults=FaultsConfig(kinds=(way.fault,) if way.fault else (), rates={way.fault: 1.0} if way.fault else {}),
        load=LoadConfig(works=1.0),
        world=WorldConfig(schedules=("fifo",), crashes_max=0, operators=0, grain_s=0.0, horizon_s=200_000.0),
    )
    plan = plan_of(way, adapter)
    found: list[Measured] = []

    async def main(world: World, sup: Supervisor) -> None:
        if way.script is not None:
            world.task_scripts.add(way.script)
        began_s = anyio.current_time()
        result = (await PlanRunner(sup.core).run(plan)).tasks[TASK]
        assert result.outcome == "failed", result
        seconds = anyio.current_time() - began_s
        await sup.core.journal_writer.flush()
        runs = [data_of(row) for row in world.disk.entities.values() if row.kind == Kind.RUN]
        tries = sum(run["attempts"] + run["relaunches"] for run in runs)
        found.append(Measured(tries, round(seconds, 3), result.error))

    def host(world: World) -> EmbeddingProgram[None]:
        return programs.setdefault(0, EmbeddingProgram(partial(main, world)))

    programs: dict[int, EmbeddingProgram[None]] = {}
    report = simulate(replace(scenario.draw(way.seed), settings=plan.settings), host=host, agents=agents)
    if error := programs[0].error:
        raise error
    assert report.problems == (), report.problems
    return found[0]


def plan_of(way: Way, adapter: str) -> Plan:
    """Return the plan of *way*: one task, with all settings at their defaults."""
    config: dict[str, Any] = {"adapter": "command" if adapter == "command" else "acp", "command": ["agent"]}
    task = {"id": TASK, "agent": way.agent, "prompt": prompt_of(TASK), **way.task}
    return Plan.model_validate({"agents": {way.agent: config, "reviewer": config}, "tasks": [task], **way.plan})


def describe_times(least_s: float, most_s: float) -> str:
    """Return times in the unit in which people count them: ``7 s``, ``30 to 31 s``, ``17 min``."""
    unit, size = ("s", 1) if most_s < 120 else ("min", 60)
    least, most = f"{least_s / size:.0f}", f"{most_s / size:.0f}"
    return f"{least} {unit}" if least == most else f"{least} to {most} {unit}"


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield the rows of the table: words, adapters, tries, times. Adapters with equal tries share a row."""
    for way in ways():
        found: dict[int, dict[str, float]] = {}
        for adapter in way.adapters:
            cost = measure(way, adapter)
            found.setdefault(cost.tries, {})[adapter] = cost.seconds
        for tries, times in found.items():
            yield way.words, ", ".join(times), str(tries), describe_times(min(times.values()), max(times.values()))


if __name__ == "__main__":
    for row in rows():
        print(f"| {' | '.join(row)} |")
