"""A host that runs a plan and steers it: approve one task, reject another, and ask why.

Run it in a directory of its own: ``python host.py``. While it runs, ``supervisor tree --state-dir sd`` shows it from
another terminal.
"""

from __future__ import annotations

import anyio

from supervisor import AgentConfig, Plan, TaskConfig, open_supervisor, run_plan

PLAN = Plan(
    agents={"sh": AgentConfig(adapter="command", command=["sh", "-c", "{prompt}"])},
    tasks=[
        TaskConfig(id="build", agent="sh", prompt="echo built > built.txt"),
        TaskConfig(id="deploy", agent="sh", prompt="echo deployed", depends_on=["build"], approval="before"),
        TaskConfig(id="announce", agent="sh", prompt="echo announced", approval="before"),
    ],
)


async def main() -> None:
    async with open_supervisor("sd", agents=PLAN.agents, settings=PLAN.settings) as sup:
        run = run_plan(sup, PLAN)
        await run.approve("deploy", by="ops", reason="the release is due")
        await run.reject("announce", by="ops", reason="nothing to announce")
        result = await run
        for task in result.tasks.values():
            print(f"{task.id}: {task.outcome}")
        last = (await run.why("announce")).steps[-1].record
        print(f"announce ended by {last.actor}: {last.reason}")


anyio.run(main)
