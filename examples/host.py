"""A host that runs a plan and steers it: approve, reject, split, cancel, requeue, and ask why.

Run it in a directory of its own: ``python host.py``. While it runs, ``supervisor tree --state-dir sd`` shows it from
another terminal.
"""

from __future__ import annotations

import anyio

from supervisor import BEGINNING, AgentConfig, AgentTurn, Plan, Supervisor, TaskConfig, open_supervisor, run_plan

BUILDS: list[str] = []


async def builder(turn: AgentTurn) -> str:
    """Build, but for the first time, when the build hangs."""
    BUILDS.append(turn.prompt)
    if len(BUILDS) == 1:
        await turn.call("a build that hangs", anyio.sleep_forever)
    return "built"


PLAN = Plan(
    agents={"builder": builder, "sh": AgentConfig(adapter="command", command=["sh", "-c", "{prompt}"])},
    tasks=[
        TaskConfig(id="build", agent="builder", prompt="Build it."),
        TaskConfig(id="test", agent="sh", prompt="echo tested", depends_on=["build"]),
        TaskConfig(id="measure", agent="sh", prompt="echo measured", depends_on=["build"]),
        TaskConfig(id="deploy", agent="sh", prompt="echo deployed", depends_on=["build"], approval="before"),
        TaskConfig(id="announce", agent="sh", prompt="echo announced", approval="before"),
    ],
)


async def until(sup: Supervisor, *events: str) -> None:
    """Wait until the journal has a record of each of *events*."""
    left = set(events)
    async with sup.subscribe(after_seq=BEGINNING) as records:
        async for record in records:
            left.discard(record.event)
            if not left:
                return


async def main() -> None:
    async with open_supervisor("sd", agents=PLAN.agents, settings=PLAN.settings) as sup:
        run = run_plan(sup, PLAN)
        await run.approve("deploy", by="ops", reason="the release is due")
        await run.reject("announce", by="ops", reason="nothing to announce")
        await run.cancel_task("measure", by="ops", reason="no machine is free")
        parts = [TaskConfig(id=name, agent="sh", prompt=f"echo {name}") for name in ("unit-tests", "lint")]
        await run.split("test", parts, by="ops", reason="two can work on it")
        await until(sup, "started", "tool_started")
        await run.requeue("build", by="ops", reason="it hangs")
        result = await run
        for name in sorted(result.tasks):
            print(f"{name}: {result.tasks[name].outcome}")
        last = (await run.why("announce")).steps[-1].record
        print(f"announce ended by {last.actor}: {last.reason}")


anyio.run(main)
